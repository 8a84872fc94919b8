"""Find routes between sites with networkx, and build the path tables that kernels read (docs/netmodel.md, "Routes")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError, check_known
from gridweave.netmodel.kernels.paths import add_up_paths
from gridweave.netmodel.tables import ROUTES, SEGMENT_BYTES
from gridweave.netmodel.topology import BoolArray, FloatArray, IntArray, Topology

if TYPE_CHECKING:
    import networkx as nx

NS_PER_MS = 1_000_000

Links = tuple[int, ...]
"""The links of a route, in travel order."""


@dataclass(frozen=True, eq=False)
class Paths:
    """The path from every site to every other site, with its latency, bandwidth and loss.

    Attributes
    ----------
    latency_ms : numpy.ndarray of float64, shape (sites, sites)
        Expected latency from row to column, including half of the jitter and the cost of lost packets; infinite if
        there is no path.
    jitter_ms : numpy.ndarray of float64, shape (sites, sites)
        Sum of the jitter of all links.
    bandwidth_bps : numpy.ndarray of float64, shape (sites, sites)
        Bandwidth of the narrowest link; infinite within a node, 0 if there is no path.
    loss : numpy.ndarray of float64, shape (sites, sites)
        Probability that a packet is lost along the path.
    stream_bps : numpy.ndarray of float64, shape (sites, sites)
        Throughput of one TCP stream given this loss; infinite without loss.
    first : numpy.ndarray of int64, shape (sites x sites + 1,)
    links : numpy.ndarray of uint32
        The links of the path from site *i* to site *j* are ``links[first[p]:first[p + 1]]``, p = i x sites + j.
    routes, k, segment_bytes
        Arguments of `find_paths` for these paths; used again to find new paths when links change.
    """

    latency_ms: FloatArray
    jitter_ms: FloatArray
    bandwidth_bps: FloatArray
    loss: FloatArray
    stream_bps: FloatArray
    first: IntArray
    links: npt.NDArray[np.uint32]
    routes: str = "latency"
    k: int = 4
    segment_bytes: int = SEGMENT_BYTES

    def between(self, origin: int, target: int) -> list[int]:
        """Return the links of the path from one site to another."""
        path = origin * len(self.latency_ms) + target
        return [int(link) for link in self.links[self.first[path] : self.first[path + 1]]]


@dataclass(frozen=True, eq=False)
class Route:
    """One route between two nodes.

    The latency includes half of the jitter; the bandwidth is the bandwidth of the narrowest link.
    """

    links: tuple[int, ...]
    nodes: tuple[int, ...]
    latency_ms: float
    bandwidth_bps: float
    loss: float


def find_paths(topology: Topology, routes: str = "latency", *, k: int = 4, segment_bytes: int = SEGMENT_BYTES) -> Paths:
    """Return the path from every site to every other site.

    Parameters
    ----------
    topology : Topology
        Links that are down are ignored.
    routes : str
        ``latency``: the shortest route. ``bandwidth``: the route with the widest bottleneck; ties go to the shorter
        route. ``k-shortest``: the widest of the k shortest; slow for more than a few dozen sites.
    k : int
        Number of routes that ``k-shortest`` compares.
    segment_bytes : int
        Packet size, used to compute the cost of lost packets.

    Raises
    ------
    OptionError
        If ``routes`` is unknown, or k is less than 1.
    """
    check_known("routes", routes, ROUTES)
    if k < 1:
        raise OptionError("k", f"is {k}; expected at least 1 route")
    rows = _rows_of(topology, routes, k, range(len(topology.sites)))
    return _paths_of_rows(topology, [rows[site] for site in range(len(topology.sites))], routes, k, segment_bytes)


def find_changed_paths(before: Paths, topology: Topology, worse: BoolArray) -> Paths:
    """Update the paths of a topology after some links became slower or failed.

    Parameters
    ----------
    before : Paths
        Paths before the change; the new paths are found by the same rules.
    topology : Topology
        The network after the change.
    worse : numpy.ndarray of bool, shape (links,)
        Links that are slower than before, or down.

    Notes
    -----
    A route without a worse link remains the best, because no other route has improved. This does not hold for
    ``k-shortest``: when one of the k shortest routes is lost, another route takes its place.
    """
    sites = range(len(topology.sites))
    affected = worse.copy()
    if before.routes == "latency":
        affected[_usable_links(topology)] = False
    if before.routes == "k-shortest":
        moved = list(sites) if worse.any() else []
    else:
        moved = [site for site in sites if affected[_row_of(before, site)[1]].any()]
    new = _rows_of(topology, before.routes, before.k, moved)
    rows = [new[site] if site in new else _row_of(before, site) for site in sites]
    return _paths_of_rows(topology, rows, before.routes, before.k, before.segment_bytes)


_Row = tuple[IntArray, npt.NDArray[np.uint32]]
"""The paths from one site: the number of links of each path, and the links of all paths, concatenated."""


def _row_of(paths: Paths, site: int) -> _Row:
    sites = len(paths.latency_ms)
    first = paths.first[site * sites : (site + 1) * sites + 1]
    return np.diff(first), paths.links[first[0] : first[-1]]


def _paths_of_rows(topology: Topology, rows: Sequence[_Row], routes: str, k: int, segment_bytes: int) -> Paths:
    lengths = np.concatenate([[0], *(row[0] for row in rows)])
    links = np.concatenate([np.zeros(0, np.uint32), *(row[1] for row in rows)])
    paths = value_paths(topology, np.cumsum(lengths).astype(np.int64), links, segment_bytes)
    return replace(paths, routes=routes, k=k)


def _rows_of(topology: Topology, routes: str, k: int, sites: Sequence[int]) -> dict[int, _Row]:
    """Return the paths from ``sites`` to all sites, found by the rule ``routes``."""
    at = topology.node_of_site.tolist()
    origins = list(dict.fromkeys(at[site] for site in sites))
    if routes == "k-shortest":
        routes_by_node = _widest_of_shortest(topology, origins, k)
    elif routes == "bandwidth":
        routes_by_node = _widest_routes(topology, origins)
    else:
        routes_by_node = _shortest_routes(topology, origins)
    rows = {}
    for site in sites:
        routes_to_sites = [routes_by_node[at[site]].get(node, ()) for node in at]
        links = np.array([link for route in routes_to_sites for link in route], np.uint32)
        rows[site] = np.array([len(route) for route in routes_to_sites], np.int64), links
    return rows


def mean_latency_ms(topology: Topology) -> FloatArray:
    """Return the mean latency of each link; jitter is uniform, so its mean is half of its maximum."""
    return topology.latency_ms + 0.5 * topology.jitter_ms


def _usable_links(topology: Topology) -> list[int]:
    links: list[int] = np.flatnonzero(topology.up & (topology.bandwidth_bps > 0)).tolist()
    return links


def route_costs(topology: Topology) -> list[int]:
    """Return the cost that each link adds to a route, as integers that encode the tie rule.

    No two routes between the same nodes have the same cost. The high bits hold the latency in nanoseconds, the next
    bits the number of links, and the lowest bits one bit per link, higher for links listed later. Any algorithm that
    sums costs therefore applies the tie rule.
    """
    links, bits_of_hops = len(topology.source), len(topology.nodes).bit_length()
    latency_ns = np.rint(mean_latency_ms(topology) * NS_PER_MS).astype(np.int64).tolist()
    return [(((ns << bits_of_hops) + 1) << links) + (1 << link) for link, ns in enumerate(latency_ns)]


def _search_graph(topology: Topology, links: Iterable[int]) -> nx.DiGraph[int]:
    """Return a graph of node numbers with edge attributes ``cost`` and, except for helper edges, ``link``.

    networkx finds shortest simple paths only in graphs without parallel edges. A parallel link therefore leads to a
    helper node, from which an edge without cost and without ``link`` leads to the target.
    """
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    nodes, costs = len(topology.nodes), route_costs(topology)
    graph.add_nodes_from(range(nodes))
    for link in links:
        origin, target = int(topology.source[link]), int(topology.target[link])
        if graph.has_edge(origin, target):
            graph.add_edge(nodes + link, target, cost=0)
            target = nodes + link
        graph.add_edge(origin, target, cost=costs[link], link=link)
    return graph


def _routes_from(search: nx.DiGraph[int], origin: int) -> dict[int, Links]:
    """Return the shortest routes from a node to every node that it can reach."""
    import networkx as nx

    before, costs = nx.dijkstra_predecessor_and_distance(search, origin, weight="cost")
    routes: dict[int, Links] = {origin: ()}
    for node in costs:  # in order of distance
        if node != origin:
            (last,) = before[node]
            link = search.edges[last, node].get("link")
            routes[node] = routes[last] if link is None else (*routes[last], link)
    return routes


def _shortest_routes(topology: Topology, origins: Sequence[int]) -> dict[int, dict[int, Links]]:
    """Return the shortest routes from each origin to every node that it can reach."""
    search = _search_graph(topology, _usable_links(topology))
    return {origin: _routes_from(search, origin) for origin in origins}


def _widest_routes(topology: Topology, origins: Sequence[int]) -> dict[int, dict[int, Links]]:
    """Return, from each origin, the shortest of the routes with the widest bottleneck.

    Bandwidths are tried from high to low. At each bandwidth, an origin is searched again only if a link of exactly this
    bandwidth leaves the set of nodes that the origin already reaches.
    """
    usable = _usable_links(topology)
    ends = list(zip(topology.source.tolist(), topology.target.tolist(), strict=True))
    routes: dict[int, dict[int, Links]] = {origin: {origin: ()} for origin in origins}
    for speed in sorted({float(topology.bandwidth_bps[link]) for link in usable}, reverse=True):
        fast = [link for link in usable if topology.bandwidth_bps[link] >= speed]
        new_ends = [ends[link] for link in fast if topology.bandwidth_bps[link] == speed]
        longer = [
            origin for origin, reached in routes.items() if any(a in reached and b not in reached for a, b in new_ends)
        ]
        if longer:
            search = _search_graph(topology, fast)
            for origin in longer:
                routes[origin] = _routes_from(search, origin) | routes[origin]
    return routes


def _widest_of_shortest(topology: Topology, origins: Sequence[int], k: int) -> dict[int, dict[int, Links]]:
    """Return the widest of the k shortest routes from each origin to each node with a site; ties: the shorter route."""
    search = _search_graph(topology, _usable_links(topology))
    targets = set(topology.node_of_site.tolist())
    widest: dict[int, dict[int, Links]] = {}
    for origin in origins:
        ranked = {target: islice(_shortest_first(search, origin, target), k) for target in targets}
        widest[origin] = {
            target: max(candidates, key=lambda links: _narrowest(topology, links), default=())
            for target, candidates in ranked.items()
        }
    return widest


def _narrowest(topology: Topology, links: Links) -> float:
    return float(min((topology.bandwidth_bps[link] for link in links), default=np.inf))


def _shortest_first(search: nx.DiGraph[int], origin: int, target: int) -> Iterator[Links]:
    """Yield the routes without repeated nodes between two nodes, shortest first; yield nothing if there is no route."""
    import networkx as nx

    if origin == target:
        yield ()
        return
    try:
        for nodes in nx.shortest_simple_paths(search, origin, target, weight="cost"):
            links = (search.edges[ends].get("link") for ends in pairwise(nodes))
            yield tuple(link for link in links if link is not None)
    except nx.NetworkXNoPath:
        return


def best_routes(topology: Topology, origin: int, target: int, *, by: str = "latency", k: int = 1) -> list[Route]:
    """Return the best routes without repeated nodes between two nodes.

    Parameters
    ----------
    origin, target : int
        Node numbers.
    by : str
        ``latency``, or ``bandwidth`` (ties go to the shorter route).
    k : int
        Maximum number of routes.

    Returns
    -------
    list of Route
        Best first; empty if there is no route.

    Raises
    ------
    OptionError
        If ``by`` is unknown, or k is less than 1.
    """
    check_known("by", by, ("latency", "bandwidth"))
    if k < 1:
        raise OptionError("k", f"is {k}; expected at least 1 route")
    usable = _usable_links(topology)
    if by == "latency" or origin == target:
        routes = islice(_shortest_first(_search_graph(topology, usable), origin, target), k)
        return [_route(topology, origin, links) for links in routes]
    ranked: list[Links] = []
    for speed in np.unique(topology.bandwidth_bps[usable])[::-1]:
        # Routes with a wider bottleneck were already found at a higher speed.
        search = _search_graph(topology, [link for link in usable if topology.bandwidth_bps[link] >= speed])
        every = _shortest_first(search, origin, target)
        ranked += islice((links for links in every if _narrowest(topology, links) == speed), k - len(ranked))
        if len(ranked) == k:
            break
    return [_route(topology, origin, links) for links in ranked]


def _route(topology: Topology, origin: int, links: Links) -> Route:
    numbers = list(links)
    return Route(
        links=links,
        nodes=(origin, *(int(topology.target[link]) for link in links)),
        latency_ms=float(mean_latency_ms(topology)[numbers].sum()) if numbers else 0.0,
        bandwidth_bps=_narrowest(topology, links),
        loss=1.0 - float(np.prod(1.0 - topology.loss[numbers])) if numbers else 0.0,
    )


def value_paths(topology: Topology, first: IntArray, links: npt.NDArray[np.uint32], segment_bytes: int) -> Paths:
    """Compute latency, bandwidth and loss of paths whose links are given as in `Paths`."""
    sites = len(topology.sites)
    sums = np.zeros((4, sites * sites))
    add_up_paths(
        first, links, mean_latency_ms(topology), topology.jitter_ms, topology.bandwidth_bps, topology.loss, sums
    )
    mean_ms, jitter_ms, bandwidth_bps, loss = (np.ascontiguousarray(row.reshape(sites, sites)) for row in sums)
    same = topology.node_of_site[:, None] == topology.node_of_site[None, :]
    no_path = (np.diff(first).reshape(sites, sites) == 0) & ~same
    mean_ms[no_path], bandwidth_bps[no_path] = np.inf, 0.0
    round_trip_ms = mean_ms + mean_ms.T
    resent_ms = np.zeros_like(mean_ms)
    np.multiply(loss / (1.0 - loss), round_trip_ms, out=resent_ms, where=loss > 0)
    return Paths(
        latency_ms=mean_ms + resent_ms,
        jitter_ms=jitter_ms,
        bandwidth_bps=bandwidth_bps,
        loss=loss,
        stream_bps=stream_bandwidth_bps(round_trip_ms, loss, segment_bytes),
        first=first,
        links=links,
        segment_bytes=segment_bytes,
    )


def stream_bandwidth_bps(round_trip_ms: FloatArray, loss: FloatArray, segment_bytes: int = SEGMENT_BYTES) -> FloatArray:
    """Return the throughput of one TCP stream under packet loss; infinite without loss.

    Source: Mathis, Semke, Mahdavi and Ott, The macroscopic behavior of the TCP congestion avoidance algorithm, 1997:
    segment / round trip x sqrt(3 / 2) / sqrt(loss).
    """
    stream = np.full_like(loss, np.inf)
    slowed = (loss > 0) & (round_trip_ms > 0)
    stream[slowed] = 8000.0 * segment_bytes / round_trip_ms[slowed] * np.sqrt(1.5 / loss[slowed])
    return stream

"""Routes between sites, found by networkx, and the tables of paths that kernels read (docs/netmodel.md, "Routes")."""

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
"""The links of a route, in the order in which it crosses them."""


@dataclass(frozen=True, eq=False)
class Paths:
    """The path from every site to every other, and what it is worth.

    Attributes
    ----------
    latency_ms : numpy.ndarray of float64, shape (sites, sites)
        Expected, from row to column: with half of the jitter, and with what lost packets cost. Infinite without a path.
    jitter_ms : numpy.ndarray of float64, shape (sites, sites)
        By how much the latency varies, all in all.
    bandwidth_bps : numpy.ndarray of float64, shape (sites, sites)
        Of the narrowest link; infinite within a node, 0 without a path.
    loss : numpy.ndarray of float64, shape (sites, sites)
        Probability that a packet is lost on the way.
    stream_bps : numpy.ndarray of float64, shape (sites, sites)
        What one TCP stream can reach because of these losses; infinite if there are none.
    first : numpy.ndarray of int64, shape (sites x sites + 1,)
    links : numpy.ndarray of uint32
        The links of the path from site *i* to site *j* are ``links[first[p]:first[p + 1]]``, p = i x sites + j.
    routes, k, segment_bytes
        By which rules they were found (`find_paths`), so that others can be when the links change.
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
    """One route between two nodes; latency is with half of the jitter, bandwidth that of the narrowest link."""

    links: tuple[int, ...]
    nodes: tuple[int, ...]
    latency_ms: float
    bandwidth_bps: float
    loss: float


def find_paths(topology: Topology, routes: str = "latency", *, k: int = 4, segment_bytes: int = SEGMENT_BYTES) -> Paths:
    """Return the path from every site to every other.

    Parameters
    ----------
    topology : Topology
        Links that are down are not used.
    routes : str
        ``latency``: the shortest. ``bandwidth``: the one whose narrowest link is widest, of several the shortest.
        ``k-shortest``: of the k shortest, the one whose narrowest link is widest; worked out pair by pair, for some
        dozens of sites.
    k : int
        Of ``k-shortest``.
    segment_bytes : int
        Size of the packets that can be lost.

    Raises
    ------
    OptionError
        If there is no such kind of route, or k is less than 1.
    """
    check_known("routes", routes, ROUTES)
    if k < 1:
        raise OptionError("k", f"is {k}; routes, from 1 up")
    rows = _rows_of(topology, routes, k, range(len(topology.sites)))
    return _paths_of_rows(topology, [rows[site] for site in range(len(topology.sites))], routes, k, segment_bytes)


def find_changed_paths(before: Paths, topology: Topology, worse: BoolArray) -> Paths:
    """Return the paths of a topology of which the paths are known as they were before some links became worse.

    Parameters
    ----------
    before : Paths
        Of the same topology before; by its rules the new paths are found.
    worse : numpy.ndarray of bool, shape (links,)
        Links that are slower than before, or down.

    Notes
    -----
    A route that crosses no worse link stays the best: all others are as they were, or worse. This does not hold for
    the k shortest, which another route joins when one of them is gone.
    """
    sites = range(len(topology.sites))
    lost = worse.copy()
    if before.routes == "latency":
        lost[_usable_links(topology)] = False
    if before.routes == "k-shortest":
        moved = list(sites) if worse.any() else []
    else:
        moved = [site for site in sites if lost[_row_of(before, site)[1]].any()]
    new = _rows_of(topology, before.routes, before.k, moved)
    rows = [new[site] if site in new else _row_of(before, site) for site in sites]
    return _paths_of_rows(topology, rows, before.routes, before.k, before.segment_bytes)


_Row = tuple[IntArray, npt.NDArray[np.uint32]]
"""Of the paths from one site: how many links each has, and the links of all."""


def _row_of(paths: Paths, site: int) -> _Row:
    sites = len(paths.latency_ms)
    first = paths.first[site * sites : (site + 1) * sites + 1]
    return np.diff(first), paths.links[first[0] : first[-1]]


def _paths_of_rows(topology: Topology, rows: Sequence[_Row], routes: str, k: int, segment_bytes: int) -> Paths:
    lengths = np.concatenate([[0], *(row[0] for row in rows)])
    links = np.concatenate([np.zeros(0, np.uint32), *(row[1] for row in rows)])
    found = value_paths(topology, np.cumsum(lengths).astype(np.int64), links, segment_bytes)
    return replace(found, routes=routes, k=k)


def _rows_of(topology: Topology, routes: str, k: int, sites: Sequence[int]) -> dict[int, _Row]:
    """Return the paths from some sites to all, found by the rule ``routes``."""
    at = topology.node_of_site.tolist()
    origins = list(dict.fromkeys(at[site] for site in sites))
    if routes == "k-shortest":
        found = _widest_of_shortest(topology, origins, k)
    elif routes == "bandwidth":
        found = _widest_routes(topology, origins)
    else:
        found = _shortest_routes(topology, origins)
    rows = {}
    for site in sites:
        ways = [found[at[site]].get(node, ()) for node in at]
        links = np.array([link for way in ways for link in way], np.uint32)
        rows[site] = np.array([len(way) for way in ways], np.int64), links
    return rows


def mean_latency_ms(topology: Topology) -> FloatArray:
    """Return what a message takes over each link on average: jitter is evenly distributed from 0 up."""
    return topology.latency_ms + 0.5 * topology.jitter_ms


def _usable_links(topology: Topology) -> list[int]:
    links: list[int] = np.flatnonzero(topology.up & (topology.bandwidth_bps > 0)).tolist()
    return links


def route_costs(topology: Topology) -> list[int]:
    """Return what each link adds to the cost of a route.

    The sums order all routes between two nodes, as no two of them cost the same: the high digits are the latency in
    nanoseconds, the next the number of links, and the lowest have a binary digit for each link, which is higher the
    later the link is listed. So an algorithm that adds up costs keeps the rule for ties.
    """
    links, bits_of_hops = len(topology.source), len(topology.nodes).bit_length()
    latency_ns = np.rint(mean_latency_ms(topology) * NS_PER_MS).astype(np.int64).tolist()
    return [(((ns << bits_of_hops) + 1) << links) + (1 << link) for link, ns in enumerate(latency_ns)]


def _search_graph(topology: Topology, links: Iterable[int]) -> nx.DiGraph[int]:
    """Return links as a graph of node numbers, whose edges have a ``cost`` and, but for some, a ``link``.

    networkx finds the shortest simple paths only where two nodes are joined by one edge. So links that are parallel to
    another one lead over a node of their own, and the edge from there costs nothing and has no link.
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
    """Return the shortest routes from a node to all that it reaches."""
    import networkx as nx

    before, costs = nx.dijkstra_predecessor_and_distance(search, origin, weight="cost")
    routes: dict[int, Links] = {origin: ()}
    for node in costs:  # from the nearest to the farthest
        if node != origin:
            (last,) = before[node]
            link = search.edges[last, node].get("link")
            routes[node] = routes[last] if link is None else (*routes[last], link)
    return routes


def _shortest_routes(topology: Topology, origins: Sequence[int]) -> dict[int, dict[int, Links]]:
    """Return the shortest routes from some nodes to all others."""
    search = _search_graph(topology, _usable_links(topology))
    return {origin: _routes_from(search, origin) for origin in origins}


def _widest_routes(topology: Topology, origins: Sequence[int]) -> dict[int, dict[int, Links]]:
    """Return from some nodes to all others the shortest routes over links of the highest speed at which there is one.

    A node is asked for its routes at a speed only if a link of that speed leads on from those that it reaches by now.
    """
    usable = _usable_links(topology)
    ends = list(zip(topology.source.tolist(), topology.target.tolist(), strict=True))
    found: dict[int, dict[int, Links]] = {origin: {origin: ()} for origin in origins}
    for speed in sorted({float(topology.bandwidth_bps[link]) for link in usable}, reverse=True):
        fast = [link for link in usable if topology.bandwidth_bps[link] >= speed]
        new = [ends[link] for link in fast if topology.bandwidth_bps[link] == speed]
        longer = [origin for origin, wider in found.items() if any(a in wider and b not in wider for a, b in new)]
        if longer:
            search = _search_graph(topology, fast)
            for origin in longer:
                found[origin] = _routes_from(search, origin) | found[origin]
    return found


def _widest_of_shortest(topology: Topology, origins: Sequence[int], k: int) -> dict[int, dict[int, Links]]:
    """Return from some nodes to each node of a site, of the k shortest routes, the widest; the shorter of several."""
    search = _search_graph(topology, _usable_links(topology))
    targets = set(topology.node_of_site.tolist())
    found: dict[int, dict[int, Links]] = {}
    for origin in origins:
        ranked = {target: islice(_shortest_first(search, origin, target), k) for target in targets}
        found[origin] = {
            target: max(routes, key=lambda links: _narrowest(topology, links), default=())
            for target, routes in ranked.items()
        }
    return found


def _narrowest(topology: Topology, links: Links) -> float:
    return float(min((topology.bandwidth_bps[link] for link in links), default=np.inf))


def _shortest_first(search: nx.DiGraph[int], origin: int, target: int) -> Iterator[Links]:
    """Yield the routes between two nodes that pass no node twice, shortest first; none if there is no route."""
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
    """Return the best routes between two nodes, none of which passes a node twice.

    Parameters
    ----------
    origin, target : int
        Nodes.
    by : str
        ``latency``, or ``bandwidth`` (of equally wide ones the shorter first).
    k : int
        How many, if there are so many.

    Returns
    -------
    list of Route
        Empty if there is none.

    Raises
    ------
    OptionError
        If ``by`` is not known, or k is less than 1.
    """
    check_known("by", by, ("latency", "bandwidth"))
    if k < 1:
        raise OptionError("k", f"is {k}; routes, from 1 up")
    usable = _usable_links(topology)
    if by == "latency" or origin == target:
        found = islice(_shortest_first(_search_graph(topology, usable), origin, target), k)
        return [_route(topology, origin, links) for links in found]
    ranked: list[Links] = []
    for speed in np.unique(topology.bandwidth_bps[usable])[::-1]:
        # Wider routes were found at a higher speed.
        search = _search_graph(topology, [link for link in usable if topology.bandwidth_bps[link] >= speed])
        every = _shortest_first(search, origin, target)
        ranked += islice((links for links in every if _narrowest(topology, links) == speed), k - len(ranked))
        if len(ranked) == k:
            break
    return [_route(topology, origin, links) for links in ranked]


def _route(topology: Topology, origin: int, links: Links) -> Route:
    picked = list(links)
    return Route(
        links=links,
        nodes=(origin, *(int(topology.target[link]) for link in links)),
        latency_ms=float(mean_latency_ms(topology)[picked].sum()) if picked else 0.0,
        bandwidth_bps=_narrowest(topology, links),
        loss=1.0 - float(np.prod(1.0 - topology.loss[picked])) if picked else 0.0,
    )


def value_paths(topology: Topology, first: IntArray, links: npt.NDArray[np.uint32], segment_bytes: int) -> Paths:
    """Return what the paths are worth, of which ``first`` and ``links`` are as in `Paths`."""
    sites = len(topology.sites)
    sums = np.zeros((4, sites * sites))
    add_up_paths(
        first, links, mean_latency_ms(topology), topology.jitter_ms, topology.bandwidth_bps, topology.loss, sums
    )
    mean_ms, jitter_ms, bandwidth_bps, loss = (np.ascontiguousarray(row.reshape(sites, sites)) for row in sums)
    same = topology.node_of_site[:, None] == topology.node_of_site[None, :]
    lost = (np.diff(first).reshape(sites, sites) == 0) & ~same
    mean_ms[lost], bandwidth_bps[lost] = np.inf, 0.0
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
    """Return what one TCP stream can reach in spite of lost packets; infinite without loss.

    Source: Mathis, Semke, Mahdavi and Ott, The macroscopic behavior of the TCP congestion avoidance algorithm, 1997:
    segment / round trip x sqrt(3 / 2) / sqrt(loss).
    """
    stream = np.full_like(loss, np.inf)
    slowed = (loss > 0) & (round_trip_ms > 0)
    stream[slowed] = 8000.0 * segment_bytes / round_trip_ms[slowed] * np.sqrt(1.5 / loss[slowed])
    return stream

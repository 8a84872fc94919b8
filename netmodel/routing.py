"""Routes between sites, and the tables of paths that kernels read (docs/netmodel.md, "Routes")."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError, check_known
from gridweave.netmodel.kernels.routes import (
    FAR_NS,
    LinkArrays,
    add_up_paths,
    find_routes_to,
    follow_routes,
    gather_routes,
    missing_hops,
)
from gridweave.netmodel.tables import ROUTES, SEGMENT_BYTES
from gridweave.netmodel.topology import FloatArray, IntArray, Topology

NS_PER_MS = 1_000_000


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
    search = search_arrays(topology)
    if routes == "k-shortest":
        first, links = _paths_of_pairs(topology, search, k)
    elif routes == "bandwidth":
        speeds = np.unique(topology.bandwidth_bps[search.usable])[::-1]
        first, links = _paths_in_rounds(topology, search, speeds)
    else:
        first, links = _paths_in_rounds(topology, search, np.zeros(1))
    return replace(value_paths(topology, first, links, segment_bytes), routes=routes, k=k, segment_bytes=segment_bytes)


def search_arrays(topology: Topology) -> LinkArrays:
    """Return the links of a topology as routes are looked for."""
    nodes, links = len(topology.nodes), len(topology.source)
    return LinkArrays(
        source=topology.source,
        target=topology.target,
        latency_ns=np.rint(mean_latency_ms(topology) * NS_PER_MS).astype(np.int64),
        first_into=np.concatenate(([0], np.cumsum(np.bincount(topology.target, minlength=nodes)))).astype(np.int64),
        into=np.argsort(topology.target, kind="stable").astype(np.int64),
        usable=topology.up & (topology.bandwidth_bps > 0),
        far_ns=np.zeros(nodes, np.int64),
        hops=np.zeros(nodes, np.int64),
        next_link=np.zeros(nodes, np.int64),
        heap_ns=np.zeros(links + 1, np.int64),
        heap_hops=np.zeros(links + 1, np.int64),
        heap_node=np.zeros(links + 1, np.int64),
    )


def mean_latency_ms(topology: Topology) -> FloatArray:
    """Return what a message takes over each link on average: jitter is evenly distributed from 0 up."""
    return topology.latency_ms + 0.5 * topology.jitter_ms


def _paths_in_rounds(
    topology: Topology, search: LinkArrays, speeds: FloatArray
) -> tuple[IntArray, npt.NDArray[np.uint32]]:
    """Return the shortest paths over links of at least the highest speed at which there is one at all."""
    sites = len(topology.sites)
    begin = np.zeros((sites, sites), np.int64)
    length = np.full((sites, sites), -1, np.int64)
    found: list[npt.NDArray[np.uint32]] = []
    cursor = 0
    up = search.usable.copy()
    for speed in speeds if len(speeds) else np.zeros(1):
        search.usable[:] = up & (topology.bandwidth_bps >= speed)
        for site in np.flatnonzero((length < 0).any(axis=0)):
            goal = topology.node_of_site[site]
            find_routes_to(search, goal)
            chunk = np.zeros(missing_hops(search, topology.node_of_site, length, site), np.uint32)
            follow_routes(search, goal, topology.node_of_site, site, begin, length, cursor, chunk)
            found.append(chunk)
            cursor += len(chunk)
    search.usable[:] = up
    first = _firsts(length)
    links = np.zeros(first[-1], np.uint32)
    gather_routes(begin, length, np.concatenate([np.zeros(0, np.uint32), *found]), first, links)
    return first, links


def _firsts(length: IntArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(np.maximum(length, 0).ravel()))).astype(np.int64)


def _paths_of_pairs(topology: Topology, search: LinkArrays, k: int) -> tuple[IntArray, npt.NDArray[np.uint32]]:
    """Return, for each pair of sites, of its k shortest paths the one with the most bandwidth."""
    sites = len(topology.sites)
    length = np.zeros((sites, sites), np.int64)
    found: list[int] = []
    up = search.usable.copy()
    for one in range(sites):
        for other in range(sites):
            ends = int(topology.node_of_site[one]), int(topology.node_of_site[other])
            ranked = islice(_shortest_first(search, *ends, up), k)
            best = max(ranked, key=lambda links: _narrowest(topology, links), default=())
            length[one, other] = len(best)
            found += best
    return _firsts(length), np.array(found, np.uint32)


def _narrowest(topology: Topology, links: tuple[int, ...]) -> float:
    return float(min((topology.bandwidth_bps[link] for link in links), default=np.inf))


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
    search = search_arrays(topology)
    up = search.usable.copy()
    if by == "latency":
        return [_route(topology, origin, links) for links in islice(_shortest_first(search, origin, target, up), k)]
    ranked: list[tuple[int, ...]] = []
    for speed in np.unique(topology.bandwidth_bps[up])[::-1]:
        # Those that are wider have been found at a higher speed.
        every = _shortest_first(search, origin, target, up & (topology.bandwidth_bps >= speed))
        ranked += islice((links for links in every if _narrowest(topology, links) == speed), k - len(ranked))
        if len(ranked) == k:
            break
    if origin == target:
        ranked = [()]
    return [_route(topology, origin, links) for links in ranked]


def _shortest_first(
    search: LinkArrays, origin: int, target: int, usable: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, ...]]:
    """Yield the routes between two nodes, shortest first (Yen, 1971), in the order of `kernels.routes`."""
    accepted: list[tuple[int, ...]] = []
    waiting: list[tuple[int, int, tuple[int, ...]]] = []
    seen: set[tuple[int, ...]] = set()
    _offer(search, (), origin, target, usable, waiting, seen)
    while waiting:
        links = heapq.heappop(waiting)[2]
        yield links
        accepted.append(links)
        open_links = usable.copy()
        node = origin
        for place in range(len(links)):
            open_links[[other[place] for other in accepted if other[: place + 1][:-1] == links[:place]]] = False
            _offer(search, links[:place], node, target, open_links, waiting, seen)
            # Behind this node, routes go on; they must not come back to it.
            open_links[(search.source == node) | (search.target == node)] = False
            node = int(search.target[links[place]])


def _offer(
    search: LinkArrays,
    root: tuple[int, ...],
    node: int,
    target: int,
    usable: npt.NDArray[np.bool_],
    waiting: list[tuple[int, int, tuple[int, ...]]],
    seen: set[tuple[int, ...]],
) -> None:
    """Add the best route that begins with the root, goes on from a node and uses these links."""
    search.usable[:] = usable
    find_routes_to(search, np.int64(target))
    if search.far_ns[node] == FAR_NS:
        return
    links = list(root)
    while node != target:
        links.append(int(search.next_link[node]))
        node = int(search.target[links[-1]])
    if tuple(links) not in seen:
        seen.add(tuple(links))
        heapq.heappush(waiting, (int(search.latency_ns[links].sum()) if links else 0, len(links), tuple(links)))


def _route(topology: Topology, origin: int, links: tuple[int, ...]) -> Route:
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

"""Shortest routes with every tie broken by rule (docs/netmodel.md, "Routes").

Of two routes the better one has less latency, to the nanosecond; then fewer links; then, where they part, the link with
the lower number. This is an order of all routes, so there is one best route between two nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Bools, Floats, Int, Ints, kernel, kernel_part
from gridweave.netmodel.kernels.state import IntArray, LinkRows

FAR_NS = np.int64(2**62)
NO_LINK = np.int64(-1)


class LinkArrays(NamedTuple):
    """The links of a topology as routes are looked for, and room for the search.

    Attributes
    ----------
    source, target : numpy.ndarray of int64, shape (links,)
    latency_ns : numpy.ndarray of int64, shape (links,)
        In whole nanoseconds, so that sums are exact.
    first_into : numpy.ndarray of int64, shape (nodes + 1,)
        Where the links into each node begin in ``into``.
    into : numpy.ndarray of int64, shape (links,)
    usable : numpy.ndarray of bool, shape (links,)
    far_ns, hops : numpy.ndarray of int64, shape (nodes,)
        What is found: how far each node is from the target, and in how many links; FAR_NS if there is no route.
    next_link : numpy.ndarray of int64, shape (nodes,)
        The first link of the best route to the target; NO_LINK if there is none.
    heap_ns, heap_hops, heap_node : numpy.ndarray of int64, shape (links + 1,)
    """

    source: IntArray
    target: IntArray
    latency_ns: IntArray
    first_into: IntArray
    into: IntArray
    usable: npt.NDArray[np.bool_]
    far_ns: IntArray
    hops: IntArray
    next_link: IntArray
    heap_ns: IntArray
    heap_hops: IntArray
    heap_node: IntArray


@kernel
def find_routes_to(net: LinkArrays, goal: Int) -> None:
    """Find the best routes from all nodes to one, over the links that are usable (Dijkstra's algorithm).

    Parameters
    ----------
    net : LinkArrays
        Is told how far each node is, and by which link its route begins.
    goal : int
        A node.
    """
    for node in range(len(net.far_ns)):
        net.far_ns[node] = FAR_NS
        net.hops[node] = 0
        net.next_link[node] = NO_LINK
    net.far_ns[goal] = 0
    size = _push(net, 0, np.int64(0), np.int64(0), np.int64(goal))
    while size > 0:
        far_ns, hops, node = net.heap_ns[0], net.heap_hops[0], net.heap_node[0]
        size = _pop(net, size)
        if far_ns != net.far_ns[node] or hops != net.hops[node]:
            continue  # a shorter way has been found since
        for place in range(net.first_into[node], net.first_into[node + 1]):
            link = net.into[place]
            before = net.source[link]
            if net.usable[link] and _before(
                far_ns + net.latency_ns[link], hops + 1, net.far_ns[before], net.hops[before]
            ):
                net.far_ns[before] = far_ns + net.latency_ns[link]
                net.hops[before] = hops + 1
                size = _push(net, size, net.far_ns[before], net.hops[before], before)
    for link in range(len(net.source) - 1, -1, -1):
        source, target = net.source[link], net.target[link]
        if net.usable[link] and net.far_ns[target] < FAR_NS:
            begins = net.far_ns[source] == net.far_ns[target] + net.latency_ns[link]
            if begins and net.hops[source] == net.hops[target] + 1:
                net.next_link[source] = link


@kernel_part
def _before(ns: Int, hops: Int, other_ns: Int, other_hops: Int) -> bool:
    return ns < other_ns or (ns == other_ns and hops < other_hops)


@kernel_part
def _push(net: LinkArrays, size: Int, ns: Int, hops: Int, node: Int) -> Int:
    """Put an entry into the heap; return its size."""
    place = size
    while place > 0:
        above = (place - 1) // 2
        if not _before(ns, hops, net.heap_ns[above], net.heap_hops[above]):
            break
        _move(net, above, place)
        place = above
    net.heap_ns[place], net.heap_hops[place], net.heap_node[place] = ns, hops, node
    return size + 1


@kernel_part
def _pop(net: LinkArrays, size: Int) -> Int:
    """Take the first entry out of the heap; return its size."""
    size -= 1
    ns, hops, node = net.heap_ns[size], net.heap_hops[size], net.heap_node[size]
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _before(
            net.heap_ns[below + 1], net.heap_hops[below + 1], net.heap_ns[below], net.heap_hops[below]
        ):
            below += 1
        if not _before(net.heap_ns[below], net.heap_hops[below], ns, hops):
            break
        _move(net, below, place)
        place = below
    net.heap_ns[place], net.heap_hops[place], net.heap_node[place] = ns, hops, node
    return size


@kernel_part
def _move(net: LinkArrays, origin: Int, place: Int) -> None:
    net.heap_ns[place] = net.heap_ns[origin]
    net.heap_hops[place] = net.heap_hops[origin]
    net.heap_node[place] = net.heap_node[origin]


@kernel
def follow_routes(
    net: LinkArrays, goal: Int, node_of_site: Ints, column: Int, begin: Ints, length: Ints, cursor: Int, links: LinkRows
) -> Int:
    """Write down the routes that were found to one node, from every site that has none yet.

    Parameters
    ----------
    net : LinkArrays
        After `find_routes_to`.
    goal : int
        The node.
    node_of_site : numpy.ndarray of int64, shape (sites,)
    column : int
        The site at that node.
    begin, length : numpy.ndarray of int64, shape (sites, sites)
        Where the route of each pair stands among all; a length of -1 is none yet.
    cursor : int
        Where this call's first route stands among all.
    links : numpy.ndarray of uint32
        Is written from its beginning on.

    Returns
    -------
    int
        How many links were written.
    """
    written = 0
    for site in range(len(node_of_site)):
        node = node_of_site[site]
        if length[site, column] >= 0 or net.far_ns[node] == FAR_NS:
            continue
        begin[site, column] = cursor + written
        length[site, column] = net.hops[node]
        while node != goal:
            link = net.next_link[node]
            links[written] = link
            written += 1
            node = net.target[link]
    return written


@kernel
def missing_hops(net: LinkArrays, node_of_site: Ints, length: Ints, column: Int) -> Int:
    """Return how many links `follow_routes` will write, for a site."""
    total = 0
    for site in range(len(node_of_site)):
        node = node_of_site[site]
        if length[site, column] < 0 and net.far_ns[node] < FAR_NS:
            total += net.hops[node]
    return total


@kernel
def gather_routes(begin: Ints, length: Ints, found: Ints, first: Ints, links: LinkRows) -> None:
    """Put the routes in the order of pairs (from x sites + to)."""
    sites = len(begin)
    for path in range(sites * sites):
        row, column = path // sites, path % sites
        for place in range(max(np.int64(0), length[row, column])):
            links[first[path] + place] = found[begin[row, column] + place]


@kernel
def add_up_paths(
    first: Ints,
    links: LinkRows,
    latency_ms: Floats,
    jitter_ms: Floats,
    bandwidth_bps: Floats,
    loss: Floats,
    sums: Floats,
) -> None:
    """Add up the links of each path.

    Parameters
    ----------
    first, links : numpy.ndarray of int
    latency_ms, jitter_ms, bandwidth_bps, loss : numpy.ndarray of float64, shape (links,)
    sums : numpy.ndarray of float64, shape (4, paths)
        Is written: latency, jitter, least bandwidth (infinite without a link) and loss of each path.
    """
    for path in range(len(first) - 1):
        latency, jitter, least, kept = 0.0, 0.0, np.inf, 1.0
        for place in range(first[path], first[path + 1]):
            link = links[place]
            latency += latency_ms[link]
            jitter += jitter_ms[link]
            least = min(least, bandwidth_bps[link])
            kept *= 1.0 - loss[link]
        sums[0, path], sums[1, path], sums[2, path], sums[3, path] = latency, jitter, least, 1.0 - kept


@kernel
def find_ways_apart(first: Ints, links: LinkRows, mark: Ints, apart: Bools) -> None:
    """Find out whether the path from one site to another and the path back have no link in common.

    Parameters
    ----------
    first, links : numpy.ndarray of int
    mark : numpy.ndarray of int64, shape (links,)
        Room: -1 everywhere at first.
    apart : numpy.ndarray of bool, shape (sites, sites)
        Is written.
    """
    sites = len(apart)
    for one in range(sites):
        for other in range(one, sites):
            there, back = one * sites + other, other * sites + one
            for place in range(first[there], first[there + 1]):
                mark[links[place]] = there
            common = False
            for place in range(first[back], first[back + 1]):
                common = common or mark[links[place]] == there
            apart[one, other] = apart[other, one] = not common or one == other


@kernel
def find_mirrors(first: Ints, links: LinkRows, ms_per_bit: Floats, mirror: Ints, both: LinkRows) -> bool:
    """Find out whether every path back is the path there in a mirror: link for link, each as fast as the one there.

    Parameters
    ----------
    first, links : numpy.ndarray of int
    ms_per_bit : numpy.ndarray of float64, shape (links,)
    mirror : numpy.ndarray of int64, shape (links,)
        Room: -1 everywhere at first.
    both : numpy.ndarray of uint32, shape (links of all paths,)
        Is written: for each link of the paths the first of it and its mirror.

    Returns
    -------
    bool
        If not, what is in ``both`` means nothing.
    """
    sites = int(np.sqrt(len(first) - 1))
    for one in range(sites):
        for other in range(one + 1, sites):
            there, back = one * sites + other, other * sites + one
            count = first[there + 1] - first[there]
            if first[back + 1] - first[back] != count:
                return False
            for step in range(count):
                link, opposite = links[first[there] + step], links[first[back + 1] - 1 - step]
                known = mirror[link] == opposite and mirror[opposite] == link
                if not known and (mirror[link] >= 0 or mirror[opposite] >= 0):
                    return False
                if link == opposite or ms_per_bit[link] != ms_per_bit[opposite]:
                    return False
                mirror[link], mirror[opposite] = opposite, link
    for place in range(len(links)):
        both[place] = min(links[place], mirror[links[place]]) if mirror[links[place]] >= 0 else links[place]
    return True

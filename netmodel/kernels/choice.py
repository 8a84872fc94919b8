"""Where to split a job so that it ends first (docs/netmodel.md, "Where to split").

A placement is judged by ``max(delay of its sites) + length x factor``. Exact: all placements are tried. Otherwise sites
are gathered around several starts, the nearest first, and the best placement of each start is improved by moving nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import kernel, kernel_part
from gridweave.netmodel.kernels.overhead import split_factor
from gridweave.netmodel.kernels.state import FloatArray, IntArray

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"

NEAREST, NEAREST_AND_LARGE = np.int64(0), np.int64(1)


class Choice(NamedTuple):
    """Room for choosing sites, and what was chosen.

    Attributes
    ----------
    best, parts, last : numpy.ndarray of PART, shape (sites,)
        The best placement so far, the one in hand, and the best of the starts before; by site.
    nodes : numpy.ndarray of int64, shape (sites,)
        Nodes of each site in the placement in hand.
    starts : numpy.ndarray of int64, shape (sites,)
    ways : numpy.ndarray of float64, shape (widest job + 1,)
    ahead : numpy.ndarray of int64, shape (sites + 1,)
        Nodes that are free on the sites from each one on.
    end_ms, factor : numpy.ndarray of float64, shape (1,)
        Of the best; infinite if there is none.
    n_best, tried : numpy.ndarray of int64, shape (1,)
        Parts of the best (0: none), and how many placements were looked at.
    """

    best: npt.NDArray[np.void]
    parts: npt.NDArray[np.void]
    last: npt.NDArray[np.void]
    nodes: IntArray
    starts: IntArray
    ways: FloatArray
    ahead: IntArray
    end_ms: FloatArray
    factor: FloatArray
    n_best: IntArray
    tried: IntArray


@kernel
def choose_sites(net, communication, free, length_ms, delay_ms, exact_up_to, n_starts, n_rounds, choice):
    """Choose sites and nodes of each for a job that is to end as early as it can.

    Parameters
    ----------
    net : NetArrays
    communication : COMMUNICATION
        With the width of the job.
    free : numpy.ndarray of int64, shape (sites,)
        Nodes that the job may have on each site.
    length_ms : float
        How long it takes on one site.
    delay_ms : numpy.ndarray of float64, shape (sites,)
        How long a site cannot begin: its input is on the way, or nodes are to come free.
    exact_up_to : float
        All placements are tried if they are no more than this.
    n_starts, n_rounds : int
        Of the heuristic: from how many sites it starts, and how often it goes over all moves.
    choice : Choice
        Is told the placement, in order of sites.

    Returns
    -------
    bool
        Whether the job can be placed at all.
    """
    choice.n_best[0] = choice.tried[0] = 0
    choice.end_ms[0] = choice.factor[0] = np.inf
    width = communication.width
    _try_single_sites(free, width, length_ms, delay_ms, choice)
    if _all_free(free) < width:
        return choice.n_best[0] > 0
    if count_placements(free, width, choice.ways, exact_up_to) <= exact_up_to:
        _try_all(net, communication, free, length_ms, delay_ms, choice)
    else:
        _try_gathered(net, communication, free, length_ms, delay_ms, n_starts, n_rounds, choice)
    return choice.n_best[0] > 0


@kernel_part
def _all_free(free):
    total = 0
    for site in range(len(free)):
        total += free[site]
    return total


@kernel
def _try_single_sites(free, width, length_ms, delay_ms, choice):
    """Take the site where the job ends first; of several the one that leaves the fewest nodes free, then the first."""
    best = -1
    for site in range(len(free)):
        if free[site] >= width and delay_ms[site] < np.inf:
            sooner = best < 0 or delay_ms[site] < delay_ms[best]
            if sooner or (delay_ms[site] == delay_ms[best] and free[site] < free[best]):
                best = site
    if best >= 0:
        choice.best[0].site = best
        choice.best[0].width = width
        choice.n_best[0] = 1
        choice.end_ms[0] = delay_ms[best] + length_ms
        choice.factor[0] = 1.0


@kernel
def count_placements(free, width, ways, enough):
    """Return in how many ways a width can be made of the nodes that are free on the sites, as a double.

    The count ends when it is more than ``enough``.
    """
    for nodes in range(width + 1):
        ways[nodes] = 0.0
    ways[0] = 1.0
    for site in range(len(free)):
        if free[site] == 0:
            continue
        # ways[n] becomes the sum of ways[n - k] for k from 0 to what is free: first all up to n, then less the others.
        for nodes in range(1, width + 1):
            ways[nodes] += ways[nodes - 1]
        for nodes in range(width, free[site], -1):
            ways[nodes] -= ways[nodes - free[site] - 1]
        if ways[width] > enough:
            break
    return ways[width]


@kernel
def judge(net, communication, length_ms, delay_ms, choice):
    """Work out when the placement in ``nodes`` ends, and keep it if it is the best so far.

    The best ends first; of several that do, it has the fewest parts; of those, it is the one that was tried first.

    Returns
    -------
    bool
        Whether it was kept.
    """
    count = 0
    wait_ms = 0.0
    for site in range(len(choice.nodes)):
        if choice.nodes[site] > 0:
            choice.parts[count].site = site
            choice.parts[count].width = choice.nodes[site]
            wait_ms = max(wait_ms, delay_ms[site])
            count += 1
    choice.tried[0] += 1
    if wait_ms + length_ms > choice.end_ms[0]:
        return False
    factor = split_factor(net, communication, choice.parts, count)
    end_ms = wait_ms + length_ms * factor
    fewer = end_ms == choice.end_ms[0] and count < choice.n_best[0]
    if end_ms == np.inf or not (end_ms < choice.end_ms[0] or fewer):
        return False
    for place in range(count):
        choice.best[place] = choice.parts[place]
    choice.n_best[0] = count
    choice.end_ms[0] = end_ms
    choice.factor[0] = factor
    return True


@kernel
def _try_all(net, communication, free, length_ms, delay_ms, choice):
    """Try all placements, those with more nodes on earlier sites first."""
    sites = len(free)
    nodes, ahead = choice.nodes, choice.ahead
    ahead[sites] = 0
    for site in range(sites - 1, -1, -1):
        ahead[site] = ahead[site + 1] + free[site]
        nodes[site] = 0
    missing = _fill_from(nodes, free, np.int64(0), communication.width)
    while missing == 0:
        judge(net, communication, length_ms, delay_ms, choice)
        # The last site that can give one node less while those behind it can take it, and what they have.
        behind = nodes[sites - 1]
        site = sites - 2
        while site >= 0 and (nodes[site] == 0 or behind + 1 > ahead[site + 1]):
            behind += nodes[site]
            site -= 1
        if site < 0:
            return
        nodes[site] -= 1
        missing = _fill_from(nodes, free, site + 1, behind + 1)


@kernel_part
def _fill_from(nodes, free, site, missing):
    """Let the sites from one on give all they have, one after the other; return what is still missing."""
    for other in range(site, len(nodes)):
        nodes[other] = min(free[other], missing)
        missing -= nodes[other]
    return missing


@kernel
def _try_gathered(net, communication, free, length_ms, delay_ms, n_starts, n_rounds, choice):
    """Try what is gathered around the sites with the most free nodes, and the fewest fragments; improve each."""
    count = _find_starts(free, n_starts, choice)
    for place in range(count + 1):
        n_last, last_ms, last_factor = _set_aside(choice)
        if place == count:
            _take_fewest(free, communication.width, choice.nodes)
            judge(net, communication, length_ms, delay_ms, choice)
        else:
            for way in (NEAREST, NEAREST_AND_LARGE):
                _gather(net, communication, free, choice, choice.starts[place], way)
                judge(net, communication, length_ms, delay_ms, choice)
                _level(free, choice.nodes)
                judge(net, communication, length_ms, delay_ms, choice)
        if choice.n_best[0] > 1:
            _improve(net, communication, free, length_ms, delay_ms, count, n_rounds, choice)
        _keep_better(choice, n_last, last_ms, last_factor)


@kernel
def _find_starts(free, n_starts, choice):
    """Write down the sites with the most free nodes; return how many."""
    for site in range(len(free)):
        choice.nodes[site] = 0
    count = 0
    while count < n_starts:
        site = _largest(free, choice.nodes)
        if site < 0:
            break
        choice.nodes[site] = 1
        choice.starts[count] = site
        count += 1
    return count


@kernel
def _set_aside(choice):
    """Begin anew, and remember the best so far; return how many parts it has, its end and its factor."""
    n_last, last_ms, last_factor = choice.n_best[0], choice.end_ms[0], choice.factor[0]
    for place in range(n_last):
        choice.last[place] = choice.best[place]
    choice.n_best[0] = 0
    choice.end_ms[0] = choice.factor[0] = np.inf
    return n_last, last_ms, last_factor


@kernel
def _keep_better(choice, n_last, last_ms, last_factor):
    """Take back what was set aside, unless what has been found since is better."""
    fewer = choice.end_ms[0] == last_ms and choice.n_best[0] < n_last
    if n_last == 0 or choice.end_ms[0] < last_ms or fewer:
        return
    for place in range(n_last):
        choice.best[place] = choice.last[place]
    choice.n_best[0] = n_last
    choice.end_ms[0], choice.factor[0] = last_ms, last_factor


@kernel
def _take_fewest(free, width, nodes):
    """Take all that the sites with the most free nodes have (Streit, section 6.5.3)."""
    for site in range(len(free)):
        nodes[site] = 0
    while width > 0:
        site = _largest(free, nodes)
        nodes[site] = min(free[site], width)
        width -= nodes[site]


@kernel
def _level(free, nodes):
    """Let the sites of a placement have as nearly the same number of nodes as what is free on them allows."""
    missing, sites = np.int64(0), 0
    for site in range(len(free)):
        missing += nodes[site]
        sites += nodes[site] > 0
        nodes[site] = -1 if nodes[site] > 0 else 0
    while missing > 0:
        share = max(np.int64(1), missing // sites)
        sites = 0
        for site in range(len(free)):
            if nodes[site] != 0 and missing > 0:
                have = max(np.int64(0), nodes[site])
                nodes[site] = have + min(share, free[site] - have, missing)
                missing -= nodes[site] - have
                sites += nodes[site] < free[site]


@kernel
def _largest(free, nodes):
    """Return the site with the most free nodes among those that have no part yet, the first of several; -1 if none."""
    best = -1
    for site in range(len(free)):
        if nodes[site] == 0 and free[site] > 0 and (best < 0 or free[site] > free[best]):
            best = site
    return best


@kernel
def _gather(net, communication, free, choice, start, way):
    """Place a job around a site: add the site whose farthest way to those taken is the shortest, until it fits.

    In the second way, that distance is divided by the nodes that the site can give.
    """
    nodes = choice.nodes
    for site in range(len(free)):
        nodes[site] = 0
        net.messages[site] = 0.0  # the farthest way from each site to those taken
    missing = communication.width
    taken = start
    while taken >= 0:
        nodes[taken] = min(free[taken], missing)
        missing -= nodes[taken]
        if missing == 0:
            return
        best, best_cost = -1, np.inf
        for site in range(len(free)):
            if nodes[site] == 0 and free[site] > 0:
                far_ms = max(net.messages[site], _apart_ms(net, communication, taken, site))
                net.messages[site] = far_ms
                cost = far_ms if way == NEAREST else far_ms / min(free[site], missing)
                if best < 0 or cost < best_cost:
                    best, best_cost = site, cost
        taken = best


@kernel_part
def _apart_ms(net, communication, one, other):
    """Return what a message takes there and another one back, alone."""
    sites = len(net.lag_ms)
    there = max(net.stream_ms_per_bit[one, other], net.local_ms_per_bit)
    for place in range(net.first[one * sites + other], net.first[one * sites + other + 1]):
        there = max(there, net.ms_per_bit[net.links[place]])
    back = max(net.stream_ms_per_bit[other, one], net.local_ms_per_bit)
    for place in range(net.first[other * sites + one], net.first[other * sites + one + 1]):
        back = max(back, net.ms_per_bit[net.links[place]])
    return net.lag_ms[one, other] + net.lag_ms[other, one] + communication.bits * (there + back)


@kernel
def _improve(net, communication, free, length_ms, delay_ms, n_starts, n_rounds, choice):
    """Move nodes from a part to another site while that lets the job end earlier: all, or half, a quarter, ... of them.

    They move to sites that have a part, and to those that were started from.
    """
    sites = len(free)
    nodes, mark = choice.nodes, choice.ahead
    for site in range(sites):
        nodes[site] = mark[site] = 0
    for place in range(choice.n_best[0]):
        nodes[choice.best[place].site] = choice.best[place].width
        mark[choice.best[place].site] = 1
    for place in range(n_starts):
        mark[choice.starts[place]] = 1
    improved = True
    for _ in range(n_rounds):
        if not improved:
            return
        improved = False
        for one in range(sites):
            for other in range(sites):
                if nodes[one] > 0 and mark[other] == 1 and one != other:
                    improved |= _move_some(net, communication, free, length_ms, delay_ms, choice, one, other)


@kernel
def _move_some(net, communication, free, length_ms, delay_ms, choice, one, other):
    """Move as many nodes as can be, or half of them and so on, if that is better; return whether it was."""
    nodes = choice.nodes
    moved = min(nodes[one], free[other] - nodes[other])
    while moved > 0:
        nodes[one] -= moved
        nodes[other] += moved
        if judge(net, communication, length_ms, delay_ms, choice):
            return True
        nodes[one] += moved
        nodes[other] -= moved
        moved //= 2
    return False

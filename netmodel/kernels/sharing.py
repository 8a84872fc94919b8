"""Max-min fair sharing of links by progressive filling (docs/netmodel.md, "Sharing links").

Source: Bertsekas and Gallager, Data Networks, second edition, section 6.5.2.
"""

from __future__ import annotations

import numpy as np

from gridweave.jit import Floats, Int, Ints, kernel, kernel_part
from gridweave.netmodel.kernels.state import Filling, LinkRows

NO_LINK = np.int64(-1)


@kernel
def share_max_min(
    n_flows: Int,
    path: Ints,
    demand: Floats,
    first: Ints,
    links: LinkRows,
    capacity: Floats,
    filling: Filling,
    rate: Floats,
) -> None:
    """Give each flow its max-min fair rate: none can have more but at the cost of one that has no more than it.

    Parameters
    ----------
    n_flows : int
        How many entries of ``path``, ``demand`` and ``rate`` count.
    path : numpy.ndarray of int64
        On which path each flow goes.
    demand : numpy.ndarray of float64
        What each can use at most; infinite for one that takes what it gets.
    first, links : numpy.ndarray of int
        The links of path *p* are ``links[first[p]:first[p + 1]]``, none of them twice.
    capacity : numpy.ndarray of float64, shape (links,)
    filling : Filling
    rate : numpy.ndarray of float64
        Is written. In the unit of demand and capacity; a flow that crosses no link has its demand.
    """
    n_used = _count_crossing(n_flows, path, demand, first, links, capacity, filling)
    n_rising = n_flows
    if _all_have_enough(filling, n_used):
        for flow in range(n_flows):
            rate[flow] = demand[flow]
        n_rising = 0
    while n_rising > 0:
        fair, tightest = _tightest(filling, n_used)
        left = _settle_modest(n_rising, path, demand, first, links, filling, rate, fair)
        if left == n_rising:
            left = _settle_link(n_rising, path, first, links, filling, rate, fair, tightest)
        n_rising = left


@kernel
def _count_crossing(
    n_flows: Int, path: Ints, demand: Floats, first: Ints, links: LinkRows, capacity: Floats, filling: Filling
) -> Int:
    """Let all flows rise; return how many links they cross."""
    n_used = 0
    for flow in range(n_flows):
        filling.rising[flow] = flow
        for place in range(first[path[flow]], first[path[flow] + 1]):
            link = links[place]
            if filling.crossing[link] == 0:
                filling.used[n_used] = link
                filling.left[link] = capacity[link]
                filling.wanted[link] = 0.0
                n_used += 1
            filling.crossing[link] += 1
            filling.wanted[link] += demand[flow]
    return n_used


@kernel
def _all_have_enough(filling: Filling, n_used: Int) -> bool:
    """Whether no link is wanted for more than it has; then nobody is left to rise."""
    for place in range(n_used):
        if filling.wanted[filling.used[place]] > filling.left[filling.used[place]]:
            return False
    for place in range(n_used):
        filling.crossing[filling.used[place]] = 0
    return True


@kernel
def _tightest(filling: Filling, n_used: Int) -> tuple[float, Int]:
    """Return the least that a link can give to each flow that still rises on it, and which link that is."""
    fair, tightest = np.inf, NO_LINK
    for place in range(n_used):
        link = filling.used[place]
        if filling.crossing[link] > 0:
            share = filling.left[link] / filling.crossing[link]
            if share < fair:
                fair, tightest = share, link
    return fair, tightest


@kernel
def _settle_modest(
    n_rising: Int, path: Ints, demand: Floats, first: Ints, links: LinkRows, filling: Filling, rate: Floats, fair: float
) -> Int:
    """Settle flows that want no more than the least share, which any link can give; return how many still rise."""
    left = 0
    for place in range(n_rising):
        flow = filling.rising[place]
        if demand[flow] <= fair:
            _settle(flow, demand[flow], path, first, links, filling, rate)
        else:
            filling.rising[left] = flow
            left += 1
    return left


@kernel
def _settle_link(
    n_rising: Int, path: Ints, first: Ints, links: LinkRows, filling: Filling, rate: Floats, fair: float, tightest: Int
) -> Int:
    """Settle the flows of the tightest link at its share; return how many still rise."""
    left = 0
    for place in range(n_rising):
        flow = filling.rising[place]
        crosses = False
        for at in range(first[path[flow]], first[path[flow] + 1]):
            crosses = crosses or links[at] == tightest
        if crosses:
            _settle(flow, fair, path, first, links, filling, rate)
        else:
            filling.rising[left] = flow
            left += 1
    return left


@kernel_part
def _settle(flow: Int, share: float, path: Ints, first: Ints, links: LinkRows, filling: Filling, rate: Floats) -> None:
    """Give a flow its rate, once and for all."""
    rate[flow] = share
    for place in range(first[path[flow]], first[path[flow] + 1]):
        link = links[place]
        filling.left[link] = max(0.0, filling.left[link] - share)
        filling.crossing[link] -= 1

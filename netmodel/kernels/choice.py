"""Choose the sites of a job so that it ends as early as possible (docs/netmodel.md, "Where to split").

A placement ends at ``max(delay of its sites) + length x factor``, with the factor from `split_factor`. If there are few
placements, all are tried; otherwise the heuristic in gathering.py proposes some.

A lower bound on the factor rejects many cases without trying a placement. In a synchronous all-to-all exchange, the
links with the most messages take nearly all of the time. A part with n of w ranks sends n (w - n) messages to the other
parts, and all of them leave the site over the first links of its paths.
"""

from __future__ import annotations

import numpy as np

from gridweave.jit import Floats, Int, Ints, Record, Records, kernel, kernel_apart, kernel_part
from gridweave.netmodel.kernels.gathering import try_gathered
from gridweave.netmodel.kernels.overhead import local_exchange_ms
from gridweave.netmodel.kernels.placements import BEGUN, WHOLE, Choice, judge, placed_end_ms, take_fewest_sites
from gridweave.netmodel.kernels.state import ALL_TO_ALL, NetArrays


@kernel_apart
def choose_sites(
    net: NetArrays,
    communication: Record,
    free: Ints,
    length_ms: float,
    delay_ms: Floats,
    exact_up_to: float,
    n_starts: Int,
    n_rounds: Int,
    choice: Choice,
) -> bool:
    """Choose the sites of a job, and its nodes on each, so that it ends as early as possible.

    Parameters
    ----------
    net : NetArrays
    communication : COMMUNICATION
        Includes the width of the job.
    free : numpy.ndarray of int64, shape (sites,)
        Number of nodes that the job can use on each site.
    length_ms : float
        Run time on a single site.
    delay_ms : numpy.ndarray of float64, shape (sites,)
        Time until each site can start its part, e.g. because input is in transfer or nodes are busy.
    exact_up_to : float
        Try all placements if there are at most this many.
    n_starts, n_rounds : int
        Heuristic: number of starting sites, and number of passes over all moves.
    choice : Choice
        Output: the placement, by site. The content of ``earlier`` is overwritten.

    Returns
    -------
    bool
        Whether the job can be placed.
    """
    choice.n_best[0] = choice.tried[0] = choice.all_tried[0] = choice.alike.n_parts[0] = 0
    choice.end_ms[0] = choice.factor[0] = choice.limit_ms[0] = np.inf
    width = communication.width
    _try_single_sites(free, width, length_ms, delay_ms, choice)
    if _all_free(free) < width:
        return choice.n_best[0] > 0
    if count_placements(free, width, choice.ways, exact_up_to) <= exact_up_to:
        choice.all_tried[0] = 1
        _try_all(net, communication, free, length_ms, delay_ms, choice)
    else:
        choice.earlier.n_parts[0] = 0
        try_gathered(net, communication, free, length_ms, delay_ms, n_starts, n_rounds, choice)
    return choice.n_best[0] > 0


@kernel_part
def _all_free(free: Ints) -> Int:
    total = 0
    for site in range(len(free)):
        total += free[site]
    return total


@kernel
def _try_single_sites(free: Ints, width: Int, length_ms: float, delay_ms: Floats, choice: Choice) -> None:
    """Choose the single site where the job ends first; ties: the fewest free nodes left, then the first site."""
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
def count_placements(free: Ints, width: Int, ways: Floats, enough: float) -> float:
    """Return the number of ways to take ``width`` nodes from the free nodes of the sites, as a float.

    Counting stops above ``enough``. Every choice of nodes to use is also a choice of nodes to leave free,
    so the smaller of these two groups is counted.
    """
    width = min(width, _all_free(free) - width)
    if width < 0:
        return 0.0
    for nodes in range(width + 1):
        ways[nodes] = 0.0
    ways[0] = 1.0
    for site in range(len(free)):
        if free[site] == 0:
            continue
        # ways[n] becomes the sum of ways[n - k] for k from 0 to free[site]: a prefix sum, minus an earlier prefix sum.
        for nodes in range(1, width + 1):
            ways[nodes] += ways[nodes - 1]
        for nodes in range(width, free[site], -1):
            ways[nodes] -= ways[nodes - free[site] - 1]
        if ways[width] > enough:
            break
    return ways[width]


@kernel
def _try_all(
    net: NetArrays, communication: Record, free: Ints, length_ms: float, delay_ms: Floats, choice: Choice
) -> None:
    """Try all placements, starting with placements that put more nodes on earlier sites.

    The placement on the fewest sites gives an upper bound. A partial placement that cannot end earlier than this bound
    or the best placement so far is skipped with all its completions. If the best placement of an earlier
    call is known, placements that were already possible in that call are skipped.
    """
    last = len(free) - 1
    nodes, ahead, missing, earlier = choice.nodes, choice.ahead, choice.starts, choice.earlier
    take_fewest_sites(free, communication.width, nodes)
    choice.limit_ms[0] = placed_end_ms(net, communication, length_ms, delay_ms, choice)
    _recall_known(free, length_ms, choice)
    ahead[last + 1] = earlier.rising[last + 1] = 0
    for site in range(last, -1, -1):
        ahead[site] = ahead[site + 1] + free[site]
        earlier.rising[site] = earlier.rising[site + 1] | (free[site] > earlier.free[site])
        nodes[site] = 0
    site = 0
    missing[0] = communication.width
    nodes[0] = min(free[0], missing[0])
    while True:
        left = missing[site] - nodes[site]
        rises = earlier.rose[site] | (nodes[site] > earlier.free[site])
        if nodes[site] < 0 or left > ahead[site + 1] or not (rises | earlier.rising[site + 1]):
            nodes[site] = 0
            if site == 0:
                return
            site -= 1
        elif left == 0:
            if rises:
                judge(net, communication, length_ms, delay_ms, choice, WHOLE)
        elif site == last - 1 or judge(net, communication, length_ms, delay_ms, choice, BEGUN):
            site += 1
            earlier.rose[site] = rises
            missing[site] = left
            nodes[site] = min(free[site], left)
            continue
        nodes[site] -= 1


@kernel
def _recall_known(free: Ints, length_ms: float, choice: Choice) -> None:
    """Start from the earlier best placement if it still fits and no single site can hold the job."""
    earlier = choice.earlier
    usable = earlier.n_parts[0] > 0 and choice.n_best[0] == 0
    for place in range(earlier.n_parts[0]):
        usable = usable and earlier.parts[place].width <= free[earlier.parts[place].site]
    earlier.rose[0] = not usable
    if not usable:
        earlier.n_parts[0] = 0
        return
    for place in range(earlier.n_parts[0]):
        choice.best[place] = earlier.parts[place]
    choice.n_best[0] = earlier.n_parts[0]
    choice.factor[0] = earlier.factor[0]
    choice.end_ms[0] = length_ms * earlier.factor[0]


SLACK = 1.0 + 1e-9
"""Tolerance for rounding errors."""


@kernel_part
def waits_for_all(net: NetArrays, communication: Record) -> bool:
    """Whether every rank waits in each exchange for the slowest message of an all-to-all pattern."""
    return not net.overlapped and communication.pattern == ALL_TO_ALL and communication.fraction > 0.0


@kernel_part
def first_parts_factor(net: NetArrays, communication: Record, parts: Records) -> float:
    """Return a lower bound on `split_factor`, based on the messages between the first two parts alone.

    Requires `waits_for_all`. The bound holds for all choices of the other parts.
    """
    part, other = parts[0], parts[1]
    own_ms = communication.messages * communication.bits * net.local_ms_per_bit
    count = float(part.width * other.width)
    ms_per_bit = max(
        net.stream_ms_per_bit[part.site, other.site], count * net.narrowest_ms_per_bit[part.site, other.site]
    )
    more_ms = net.lag_ms[part.site, other.site] + max(0.0, communication.bits * ms_per_bit - own_ms)
    return (1.0 + communication.fraction * more_ms / local_exchange_ms(net, communication)) / SLACK


@kernel
def may_grow_by(net: NetArrays, communication: Record, free: Ints, factor: float) -> bool:
    """Whether a placement whose factor is at most ``factor`` might fit on the free nodes.

    Requires `waits_for_all`.

    Parameters
    ----------
    net : NetArrays
    communication : COMMUNICATION
        Includes the width of the job.
    free : numpy.ndarray of int64, shape (sites,)
    factor : float

    Returns
    -------
    bool
        False only if no such placement exists.

    Notes
    -----
    The factor limits how many messages each site can send to other sites, and so how many of the job's w nodes the site
    can hold. Unless this limit is too high to matter, a site holds either at most k nodes or at least w - k nodes, for
    some k < w / 2. At most one site can hold w - k nodes or more.
    """
    width = float(communication.width)
    over_ms = (factor * SLACK - 1.0) / communication.fraction * local_exchange_ms(net, communication)
    if over_ms < 0.0:
        return False
    if communication.bits <= 0.0:
        return True
    ms_per_bit = over_ms / communication.bits + communication.messages * net.local_ms_per_bit
    total = most = 0.0
    for site in range(len(free)):
        nodes = min(float(free[site]), width)
        square = width * width - 4.0 * ms_per_bit * net.outgoing[site]
        few = 0.5 * (width - np.sqrt(square)) * SLACK if square > 0.0 else width
        usable = min(nodes, few)
        total += usable
        if nodes >= width - few:
            most = max(most, nodes - usable)
    return total + most >= width / SLACK

"""Where to split a job so that it ends first (docs/netmodel.md, "Where to split").

A placement is judged by ``max(delay of its sites) + length x factor``. Exact: all placements are tried. Otherwise those
that gathering.py finds.

What no placement can take less than is found without a look at any. Bulk-synchronous and all to all, nearly all time
goes to the links on which most messages lie. A part of n of w ranks sends n (w - n) messages to the others, and all of
them leave its site by the first links of its paths.
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
        Is told the placement, in order of sites. What is known from before is used up.

    Returns
    -------
    bool
        Whether the job can be placed at all.
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
        choice.known.n_parts[0] = 0
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
def count_placements(free: Ints, width: Int, ways: Floats, enough: float) -> float:
    """Return in how many ways a width can be made of the nodes that are free on the sites, as a double.

    The count ends when it is more than ``enough``. What is given and what is kept are counted alike; the fewer of them.
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
        # ways[n] becomes the sum of ways[n - k] for k from 0 to what is free: first all up to n, then less the others.
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
    """Try all placements, those with more nodes on earlier sites first.

    How long the job takes over the fewest sites is known before. Where no placement that begins as the one in hand can
    end sooner than that, nor than the best so far, none of them is looked at. Where the best is known of all that were
    possible before, no other of those is.
    """
    last = len(free) - 1
    nodes, ahead, missing, known = choice.nodes, choice.ahead, choice.starts, choice.known
    take_fewest_sites(free, communication.width, nodes)
    choice.limit_ms[0] = placed_end_ms(net, communication, length_ms, delay_ms, choice)
    _recall_known(free, length_ms, choice)
    ahead[last + 1] = known.rising[last + 1] = 0
    for site in range(last, -1, -1):
        ahead[site] = ahead[site + 1] + free[site]
        known.rising[site] = known.rising[site + 1] | (free[site] > known.free[site])
        nodes[site] = 0
    site = 0
    missing[0] = communication.width
    nodes[0] = min(free[0], missing[0])
    while True:
        left = missing[site] - nodes[site]
        rises = known.rose[site] | (nodes[site] > known.free[site])
        if nodes[site] < 0 or left > ahead[site + 1] or not (rises | known.rising[site + 1]):
            nodes[site] = 0
            if site == 0:
                return
            site -= 1
        elif left == 0:
            if rises:
                judge(net, communication, length_ms, delay_ms, choice, WHOLE)
        elif site == last - 1 or judge(net, communication, length_ms, delay_ms, choice, BEGUN):
            site += 1
            known.rose[site] = rises
            missing[site] = left
            nodes[site] = min(free[site], left)
            continue
        nodes[site] -= 1


@kernel
def _recall_known(free: Ints, length_ms: float, choice: Choice) -> None:
    """Begin with the best that was known before, if the job can still be placed so, and on no single site."""
    known = choice.known
    usable = known.n_parts[0] > 0 and choice.n_best[0] == 0
    for place in range(known.n_parts[0]):
        usable = usable and known.parts[place].width <= free[known.parts[place].site]
    known.rose[0] = not usable
    if not usable:
        known.n_parts[0] = 0
        return
    for place in range(known.n_parts[0]):
        choice.best[place] = known.parts[place]
    choice.n_best[0] = known.n_parts[0]
    choice.factor[0] = known.factor[0]
    choice.end_ms[0] = length_ms * known.factor[0]


SLACK = 1.0 + 1e-9
"""For the roundings on the way."""


@kernel_part
def waits_for_all(net: NetArrays, communication: Record) -> bool:
    """Whether each rank of a job waits in each exchange for the slowest of the messages of all to all."""
    return not net.overlapped and communication.pattern == ALL_TO_ALL and communication.fraction > 0.0


@kernel_part
def first_parts_factor(net: NetArrays, communication: Record, parts: Records) -> float:
    """Return by which factor a job for which `waits_for_all` grows if its first two parts alone send messages.

    It is no more than that of `split_factor` for these parts and any others.
    """
    one, other = parts[0], parts[1]
    own_ms = communication.messages * communication.bits * net.local_ms_per_bit
    count = float(one.width * other.width)
    ms_per_bit = max(
        net.stream_ms_per_bit[one.site, other.site], count * net.narrowest_ms_per_bit[one.site, other.site]
    )
    more_ms = net.lag_ms[one.site, other.site] + max(0.0, communication.bits * ms_per_bit - own_ms)
    return (1.0 + communication.fraction * more_ms / local_exchange_ms(net, communication)) / SLACK


@kernel
def may_grow_by(net: NetArrays, communication: Record, free: Ints, factor: float) -> bool:
    """Whether a job for which `waits_for_all` may be split over free nodes so that it grows by no more than a factor.

    Parameters
    ----------
    net : NetArrays
    communication : COMMUNICATION
        With the width of the job.
    free : numpy.ndarray of int64, shape (sites,)
    factor : float

    Returns
    -------
    bool
        False only if no placement does.

    Notes
    -----
    By the factor it is known how many messages may leave each site, and so which numbers of nodes n it may give: if all
    may not leave it, up to some number below w / 2, or from w less that number on. At most one site gives so many.
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
        given = min(nodes, few)
        total += given
        if nodes >= width - few:
            most = max(most, nodes - given)
    return total + most >= width / SLACK

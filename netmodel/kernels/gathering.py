"""Placement heuristic for jobs with too many placements to try all (docs/netmodel.md, "Where to split").

The heuristic starts from several sites, adds the nearest sites until the job fits, and then improves the best placement
of each start by moving nodes between sites.
"""

from __future__ import annotations

import numpy as np

from gridweave.jit import Floats, Int, Ints, Record, kernel, kernel_part
from gridweave.netmodel.kernels.placements import WHOLE, Choice, Placements, judge, largest_left, take_fewest_sites
from gridweave.netmodel.kernels.state import NetArrays

NEAREST, NEAREST_AND_LARGE = np.int64(0), np.int64(1)


@kernel
def try_gathered(
    net: NetArrays,
    communication: Record,
    free: Ints,
    length_ms: float,
    delay_ms: Floats,
    n_starts: Int,
    n_rounds: Int,
    choice: Choice,
) -> None:
    """Improve placements gathered around the sites with the most free nodes, and the placement on the fewest sites."""
    count = _find_starts(free, n_starts, choice)
    choice.begun.n_rows[0] = choice.settled.n_rows[0] = 0
    for place in range(count + 1):
        n_last, last_ms, last_factor = _save_best(choice)
        if place == count:
            take_fewest_sites(free, communication.width, choice.nodes)
            judge(net, communication, length_ms, delay_ms, choice, WHOLE)
        else:
            for way in (NEAREST, NEAREST_AND_LARGE):
                _gather(net, communication, free, choice, choice.starts[place], way)
                judge(net, communication, length_ms, delay_ms, choice, WHOLE)
                _level(free, choice.nodes)
                judge(net, communication, length_ms, delay_ms, choice, WHOLE)
        if _is_among(choice, choice.begun):
            # An earlier start already led to this placement and improved it.
            choice.n_best[0] = 0
            choice.end_ms[0] = np.inf
        elif choice.n_best[0] > 1:
            _add_to(choice, choice.begun)
            _improve(net, communication, free, length_ms, delay_ms, count, n_rounds, choice)
        _keep_better(choice, n_last, last_ms, last_factor)


@kernel
def _is_among(choice: Choice, placements: Placements) -> bool:
    """Whether the best placement so far is already in the list."""
    for row in range(placements.n_rows[0]):
        same = placements.n_parts[row] == choice.n_best[0]
        for place in range(choice.n_best[0] if same else 0):
            part, other = placements.parts[row, place], choice.best[place]
            same = same and part.site == other.site and part.width == other.width
        if same:
            return True
    return False


@kernel
def _add_to(choice: Choice, placements: Placements) -> None:
    """Append the best placement so far to the list."""
    row = placements.n_rows[0]
    placements.n_parts[row] = choice.n_best[0]
    for place in range(choice.n_best[0]):
        placements.parts[row, place] = choice.best[place]
    placements.n_rows[0] = row + 1


@kernel
def _find_starts(free: Ints, n_starts: Int, choice: Choice) -> Int:
    """Write the sites with the most free nodes to ``choice.starts``; return their number."""
    for site in range(len(free)):
        choice.nodes[site] = 0
    count = 0
    while count < n_starts:
        site = largest_left(free, choice.nodes)
        if site < 0:
            break
        choice.nodes[site] = 1
        choice.starts[count] = site
        count += 1
    return count


@kernel
def _save_best(choice: Choice) -> tuple[Int, float, float]:
    """Save the best placement so far and reset it; return its number of parts, end and factor."""
    n_last, last_ms, last_factor = choice.n_best[0], choice.end_ms[0], choice.factor[0]
    for place in range(n_last):
        choice.last[place] = choice.best[place]
    choice.n_best[0] = 0
    choice.end_ms[0] = choice.factor[0] = np.inf
    return n_last, last_ms, last_factor


@kernel
def _keep_better(choice: Choice, n_last: Int, last_ms: float, last_factor: float) -> None:
    """Restore the saved placement unless the new one is better."""
    fewer = choice.end_ms[0] == last_ms and choice.n_best[0] < n_last
    if n_last == 0 or choice.end_ms[0] < last_ms or fewer:
        return
    for place in range(n_last):
        choice.best[place] = choice.last[place]
    choice.n_best[0] = n_last
    choice.end_ms[0], choice.factor[0] = last_ms, last_factor


@kernel
def _level(free: Ints, nodes: Ints) -> None:
    """Spread the nodes of a placement over its sites as evenly as their free nodes allow."""
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
def _gather(net: NetArrays, communication: Record, free: Ints, choice: Choice, start: Int, way: Int) -> None:
    """Place a job around a start site: repeatedly add the site whose longest distance to the chosen sites is shortest.

    With `NEAREST_AND_LARGE`, the distance is divided by the number of nodes that the site can contribute.
    """
    nodes = choice.nodes
    for site in range(len(free)):
        nodes[site] = 0
        net.messages[site] = 0.0  # longest distance from each site to the chosen sites
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
def _apart_ms(net: NetArrays, communication: Record, site: Int, other: Int) -> float:
    """Return the total time of one message in each direction on idle links."""
    least = net.local_ms_per_bit
    there = max(net.stream_ms_per_bit[site, other], least, net.narrowest_ms_per_bit[site, other])
    back = max(net.stream_ms_per_bit[other, site], least, net.narrowest_ms_per_bit[other, site])
    return net.lag_ms[site, other] + net.lag_ms[other, site] + communication.bits * (there + back)


@kernel
def _improve(
    net: NetArrays,
    communication: Record,
    free: Ints,
    length_ms: float,
    delay_ms: Floats,
    n_starts: Int,
    n_rounds: Int,
    choice: Choice,
) -> None:
    """Move nodes between sites as long as the job ends earlier.

    Each move tries all nodes that fit, then half of them, and so on. Targets are the sites with a part and the start
    sites.
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
    # If nodes can move to any site, a local optimum does not depend on the start that led to it.
    everywhere = True
    for site in range(sites):
        everywhere = everywhere and (free[site] == 0 or mark[site] == 1)
    improved = True
    for _ in range(n_rounds):
        if not improved:
            if everywhere:
                _add_to(choice, choice.settled)
            return
        improved = False
        for source in range(sites):
            for other in range(sites):
                if nodes[source] == 0 or mark[other] == 0 or source == other:
                    continue
                if _move_some(net, communication, free, length_ms, delay_ms, choice, source, other):
                    improved = True
                    if everywhere and _is_among(choice, choice.settled):
                        return


@kernel
def _move_some(
    net: NetArrays,
    communication: Record,
    free: Ints,
    length_ms: float,
    delay_ms: Floats,
    choice: Choice,
    source: Int,
    other: Int,
) -> bool:
    """Try to move as many nodes as possible, then half of them, and so on; return whether a move was an improvement."""
    nodes = choice.nodes
    moved = min(nodes[source], free[other] - nodes[other])
    while moved > 0:
        nodes[source] -= moved
        nodes[other] += moved
        if judge(net, communication, length_ms, delay_ms, choice, WHOLE):
            return True
        nodes[source] += moved
        nodes[other] -= moved
        moved //= 2
    return False

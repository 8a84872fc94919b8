"""Place a job on the site that the selection rule picks, or on as few sites as possible (docs/grid.md).

Sources: Streit, sections 6.5.2 and 6.5.3; Figure 7.12 and Table 7.5.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.links import GridLinks
from gridweave.grid.kernels.running import FIRST_PLACE, end_place, next_place, row_at
from gridweave.grid.kernels.state import (
    GridState,
    SiteNodes,
    SiteOrder,
    Slot,
    first_with,
    freed_by,
    largest_for,
    most_of,
    nodes_of,
    site_of,
)
from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.state import NEVER_MS, NO_PLACE

BEST_FIT, BIGGEST_FREE, EQUAL_UTIL, RANDOM, EARLIEST_END = 0, 1, 2, 3, 4

ANYWHERE, SINGLE_SITE, NOTHING = 0, 1, 2
"""Kinds of reservation for the head of the queue."""


class GridCodes(NamedTuple):
    """The policy of a grid, for compiled code.

    Attributes
    ----------
    splits : bool
        Whether jobs may be split.
    adaptive : bool
        Whether to split a job only if it then ends earlier than on a single site.
    backfills : bool
    head_reservation : int
        ANYWHERE, SINGLE_SITE (except for a job wider than every site) or NOTHING.
    selection : int
        BEST_FIT, BIGGEST_FREE, EQUAL_UTIL, RANDOM or EARLIEST_END.
    lower_bound : int
        Only jobs wider than this, or wider than the largest site, may be split.
    width_up_to, fragments : numpy.ndarray of int64, shape (rows,)
        Maximum number of fragments of a job up to each width, by ascending width; wider jobs have no limit.
    overhead : numpy.ndarray of float64, shape (at least 1,)
        Overhead of 2, 3, ... fragments as a fraction of the job's length; the last value also holds for more.
    net : GridLinks or None
        The links between the sites and the traffic of the jobs; None if the overhead is a fixed number.
    offers : numpy.ndarray of int64, shape (slots,), or None
        Each job's end if it started now on offered shared nodes; ``NEVER_MS`` without an offer, 0 if not known
        yet. None if no site shares nodes or splits do not depend on such offers.
    """

    splits: bool
    adaptive: bool
    backfills: bool
    head_reservation: int
    selection: int
    lower_bound: int
    width_up_to: npt.NDArray[np.int64]
    fragments: npt.NDArray[np.int64]
    overhead: npt.NDArray[np.float64]
    net: GridLinks | None = None
    offers: npt.NDArray[np.int64] | None = None


@kernel_part
def fragments_allowed(codes: GridCodes, width: Int) -> Int:
    """Return the maximum number of fragments of a job of this width."""
    for row in range(len(codes.width_up_to)):
        if width <= codes.width_up_to[row]:
            return codes.fragments[row]
    return NEVER_MS


@kernel
def choose_site(
    state: GridState, codes: GridCodes, slot: Slot, available: SiteNodes, free: SiteNodes, total: SiteNodes
) -> Int:
    """Return the selected site among the sites with enough available nodes, or ``NO_PLACE``.

    Parameters
    ----------
    state : GridState
    codes : GridCodes
    slot : int
        Slot of the job.
    available : numpy.ndarray of int64, shape (sites,)
        The nodes that the job may take.
    free, total : numpy.ndarray of int64, shape (sites,)
        The free nodes, and all nodes, by which the sites are compared.
    """
    width = state.jobs[slot].width
    if codes.selection == RANDOM:
        return _choose_at_random(state, slot, available)
    best = NO_PLACE
    for site in range(len(available)):
        if available[site] < width:
            continue
        if best == NO_PLACE:
            best = site
            if codes.selection == EARLIEST_END:
                # All nodes are equal, so a job that starts now ends at the same time on every site.
                return site
        elif codes.selection == BEST_FIT:
            if free[site] < free[best]:
                best = site
        elif codes.selection == BIGGEST_FREE:
            if free[site] > free[best]:
                best = site
        else:
            in_use = total[site] - free[site]
            if in_use * total[best] < (total[best] - free[best]) * total[site]:
                best = site
    return best


@kernel
def _choose_at_random(state: GridState, slot: Slot, available: SiteNodes) -> Int:
    """Return the site that the job's random number selects among those with enough available nodes, in site order."""
    width = state.jobs[slot].width
    fitting = 0
    for site in range(len(available)):
        fitting += available[site] >= width
    to_skip = int(state.draw[slot] * fitting)
    for site in range(len(available)):
        if available[site] >= width:
            if to_skip == 0:
                return site
            to_skip -= 1
    return NO_PLACE


@kernel_part
def take_site(state: GridState, slot: Slot, site: Int) -> None:
    """Set ``taken`` to a placement of the whole job on one site."""
    state.taken[0].site = site
    state.taken[0].width = state.jobs[slot].width
    state.counters[0].n_taken = 1


@kernel_part
def may_split(state: GridState, codes: GridCodes, slot: Slot) -> bool:
    """Whether the policy allows splitting a job; the lower bound does not apply to a job wider than every site."""
    width = state.jobs[slot].width
    return codes.splits and (width > codes.lower_bound or width > largest_for(state, state.resources, slot))


@kernel
def take_split(state: GridState, codes: GridCodes, slot: Slot, available: SiteNodes) -> bool:
    """Split a job over the fewest sites, with the fragments in ``taken``; return whether that is possible.

    Sites are picked one by one, in descending order of available nodes. A job has few fragments, so picking is faster
    than sorting all sites. The function changes ``available``.
    """
    missing = state.jobs[slot].width
    most = min(fragments_allowed(codes, missing), len(available))
    count = 0
    while missing > 0:
        best = NO_PLACE
        for site in range(len(available)):
            if available[site] > 0 and (best == NO_PLACE or available[site] > available[best]):
                best = site
        if best == NO_PLACE or count >= most:
            return False
        width = min(missing, available[best])
        state.taken[count].site = best
        state.taken[count].width = width
        available[best] = 0
        missing -= width
        count += 1
    state.counters[0].n_taken = count
    return True


@kernel_part
def choose_free_site(state: GridState, codes: GridCodes, slot: Slot, late: bool) -> Int:
    """Return the selected site for a job that starts now, or ``NO_PLACE``.

    Only spare nodes count for a job that ends after the shadow time (``late``); otherwise all free nodes count.
    Best-fit and biggest-free use the sorted order of the sites and skip at most the sites that the head has reserved.
    """
    width = state.jobs[slot].width
    order = state.free_order
    if most_of(order) < width:
        return NO_PLACE
    if codes.selection == BEST_FIT:
        return _first_to_spare(state, first_with(order, width), len(order), width, late)
    if codes.selection == BIGGEST_FREE:
        high = len(order)
        site = NO_PLACE
        while site == NO_PLACE and high > 0 and nodes_of(order[high - 1]) >= width:
            low = first_with(order, nodes_of(order[high - 1]))
            site = _first_to_spare(state, low, high, width, late)
            high = low
        return site
    if not late:
        return choose_site(state, codes, slot, state.free, state.free, state.nodes)
    for site in range(len(state.free)):
        state.available[site] = min(state.free[site], state.extra[site])
    return choose_site(state, codes, slot, state.available, state.free, state.nodes)


@kernel_part
def _first_to_spare(state: GridState, low: Int, high: Int, width: Int, late: bool) -> Int:
    """Return the first site with enough spare nodes in the order from ``low`` to ``high``, or ``NO_PLACE``."""
    for place in range(low, high):
        site = site_of(state.free_order[place])
        if not late or state.extra[site] >= width:
            return site
    return NO_PLACE


@kernel_part
def take_split_in_order(state: GridState, codes: GridCodes, slot: Slot, order: SiteOrder) -> bool:
    """Split a job over the fewest sites, like `take_split`, but with sites sorted by available nodes."""
    width = state.jobs[slot].width
    count = _take_fewest(order, state.taken, width, fragments_allowed(codes, width))
    state.counters[0].n_taken = count
    return count > 0


@kernel
def _take_fewest(order: SiteOrder, taken: npt.NDArray[np.void], missing: Int, most: Int) -> Int:
    """Take nodes from the sites that have the most; return the number of sites, 0 if more than ``most`` are needed."""
    count = 0
    high = len(order)
    while high > 0 and nodes_of(order[high - 1]) > 0:
        nodes = nodes_of(order[high - 1])
        low = first_with(order, nodes)
        for place in range(low, high):
            if count == most:
                return 0
            taken[count].site = site_of(order[place])
            taken[count].width = min(missing, nodes)
            missing -= nodes
            count += 1
            if missing <= 0:
                return count
        high = low
    return 0


@kernel_part
def fits_one_site_by(state: GridState, slot: Slot, limit_ms: Int) -> bool:
    """Whether a site has enough free nodes for a job by ``limit_ms``, according to the running jobs' estimates."""
    return fits_one_site_ms(state, slot, limit_ms) <= limit_ms


@kernel_part
def fits_one_site_ms(state: GridState, slot: Slot, limit_ms: Int) -> Int:
    """Return the first time at which a site has enough free nodes for a job, according to the running jobs' estimates.

    It is 0 if a site has the nodes now, and `NEVER_MS` if no site ever has; times after ``limit_ms`` may be `NEVER_MS`.
    """
    counters = state.counters[0]
    width = state.jobs[slot].width
    if most_of(state.free_order) >= width:
        return np.int64(0)
    if width > counters.largest:
        return NEVER_MS
    if counters.n_horizon == 0 or state.horizon_most[counters.n_horizon - 1] < width:
        _look_ahead(state, width, limit_ms)
    for k in range(counters.n_horizon):
        if state.horizon_most[k] >= width:
            return state.horizon_ms[k]
    return NEVER_MS


@kernel
def _look_ahead(state: GridState, width: Int, limit_ms: Int) -> None:
    """Extend the horizon, the times at which the largest number of free nodes on one site grows.

    The search stops at ``width`` nodes or at ``limit_ms``. The horizon stays valid until a job starts or ends, and
    later calls continue it.
    """
    counters = state.counters[0]
    later = state.later
    if counters.n_horizon == 0:
        for site in range(len(later)):
            later[site] = state.free[site]
        state.horizon_ms[0] = 0
        state.horizon_most[0] = most_of(state.free_order)
        counters.n_horizon = 1
        counters.horizon_next = FIRST_PLACE
    most = state.horizon_most[counters.n_horizon - 1]
    while most < width and counters.horizon_next < end_place(state):
        ending = state.running[row_at(state, counters.horizon_next)]
        if ending.end_ms > limit_ms:
            return
        first = state.first_fragment[ending.slot]
        for k in range(first, first + state.n_fragments[ending.slot]):
            site = state.fragments[k].site
            later[site] += freed_by(state, k)
            most = max(most, later[site])
        if most > state.horizon_most[counters.n_horizon - 1]:
            state.horizon_ms[counters.n_horizon] = ending.end_ms
            state.horizon_most[counters.n_horizon] = most
            counters.n_horizon += 1
        counters.horizon_next = next_place(state, counters.horizon_next)

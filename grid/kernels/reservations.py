"""The grid's reservations for waiting jobs, and the search for their placements (docs/grid.md, "Reserved starts").

A reservation is the earliest start on one site, or a split over several sites.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.links_placement import take_parts
from gridweave.grid.kernels.overhead import split_length_ms
from gridweave.grid.kernels.placement import GridCodes, choose_site, may_split, take_site
from gridweave.grid.kernels.state import FRAGMENT, GridState, Slot, freed_by, freed_in_all
from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.profile import clear, earliest_fit, occupy
from gridweave.site.kernels.state import NEVER_MS

RESERVED = np.dtype([("length_ms", np.int64), ("n_fragments", np.int64)], align=True)
"""The length and number of fragments of a reservation; its start is ``promised_ms`` in the job's slot."""

PLAN_COUNTERS = np.dtype([("n_spare", np.int64), ("stale", np.int64), ("next_start_ms", np.int64)], align=True)
"""Number of free rows, staleness of the plan (``FRESH``, ``COMPRESS`` or ``REPLAN``), and the next reserved start."""


class ReservedStarts(NamedTuple):
    """The reservations of a grid.

    Attributes
    ----------
    counters : numpy.ndarray of PLAN_COUNTERS, shape (1,)
    step_ms, step_free : numpy.ndarray of int64, shape (sites + 1, steps)
        The availability profile of each site (`gridweave.site.kernels.profile`); the last row is for all sites.
    n_steps : numpy.ndarray of int64, shape (sites + 1,)
    row : numpy.ndarray of int64, shape (slots,)
        For each waiting job its row in ``reserved`` and ``fragments``.
    reserved : numpy.ndarray of RESERVED, shape (capacity,)
    fragments : numpy.ndarray of FRAGMENT, shape (capacity, most fragments)
    spare : numpy.ndarray of int64, shape (capacity,)
        A stack of the free rows.
    earliest_ms, cursor : numpy.ndarray of int64, shape (sites,)
        Scratch: the earliest start of a job on each single site, and the profile step in force at a time.
    """

    counters: npt.NDArray[np.void]
    step_ms: npt.NDArray[np.int64]
    step_free: npt.NDArray[np.int64]
    n_steps: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    reserved: npt.NDArray[np.void]
    fragments: npt.NDArray[np.void]
    spare: npt.NDArray[np.int64]
    earliest_ms: npt.NDArray[np.int64]
    cursor: npt.NDArray[np.int64]


def empty_grid_plan(state: GridState, codes: GridCodes, *, capacity: int) -> ReservedStarts:
    """Return a plan without reservations for an idle grid, with capacity for ``capacity`` waiting and running jobs."""
    sites = len(state.nodes)
    # Each job adds at most two steps; one more step is for the last pass, and one for now.
    steps = 2 * capacity + 2
    plan = ReservedStarts(
        counters=np.zeros(1, PLAN_COUNTERS),
        step_ms=np.zeros((sites + 1, steps), np.int64),
        step_free=np.zeros((sites + 1, steps), np.int64),
        n_steps=np.zeros(sites + 1, np.int64),
        row=np.zeros(len(state.jobs), np.int64),
        reserved=np.zeros(capacity, RESERVED),
        fragments=np.zeros((capacity, sites if codes.splits else 1), FRAGMENT),
        spare=np.arange(capacity),
        earliest_ms=np.zeros(sites, np.int64),
        cursor=np.zeros(sites, np.int64),
    )
    plan.counters["n_spare"] = capacity
    plan.counters["next_start_ms"] = NEVER_MS
    for row, nodes in enumerate([*state.nodes, state.nodes.sum()]):
        plan.n_steps[row] = clear(plan.step_ms[row], plan.step_free[row], np.int64(0), nodes)
    return plan


def enlarged(plan: ReservedStarts) -> ReservedStarts:
    """Return a copy of the plan with twice the capacity."""
    capacity = len(plan.reserved)
    wider = ((0, 0), (0, 2 * capacity))
    spare = np.zeros(2 * capacity, np.int64)
    n_spare = int(plan.counters[0]["n_spare"])
    spare[:n_spare] = plan.spare[:n_spare]
    spare[n_spare : n_spare + capacity] = np.arange(capacity, 2 * capacity)
    plan.counters["n_spare"] += capacity
    return plan._replace(
        step_ms=np.pad(plan.step_ms, wider),
        step_free=np.pad(plan.step_free, wider),
        reserved=np.concatenate([plan.reserved, np.zeros_like(plan.reserved)]),
        fragments=np.concatenate([plan.fragments, np.zeros_like(plan.fragments)]),
        spare=spare,
    )


@kernel_part
def has_capacity(state: GridState, plan: ReservedStarts, n_new: Int) -> bool:
    """Whether the plan has capacity for ``n_new`` more jobs."""
    counters = state.counters[0]
    return counters.n_waiting + counters.n_running + n_new <= len(plan.reserved)


@kernel
def note_reserved(state: GridState, plan: ReservedStarts, slot: Slot, start_ms: Int, length_ms: Int) -> None:
    """Record the nodes in ``taken`` as a job's reservation; a reservation without a start (``NEVER_MS``) has none."""
    row = plan.row[slot]
    n_taken = state.counters[0].n_taken if start_ms < NEVER_MS else 0
    for k in range(n_taken):
        plan.fragments[row, k] = state.taken[k]
    plan.reserved[row].length_ms = length_ms
    plan.reserved[row].n_fragments = n_taken
    state.jobs[slot].promised_ms = start_ms


@kernel
def occupy_reserved(state: GridState, plan: ReservedStarts, slot: Slot, sign: Int) -> None:
    """Add a job's reservation to the profiles (sign ``TAKE``) or remove it (``GIVE_BACK``).

    Parameters
    ----------
    plan : ReservedStarts
        Changed in place.
    sign : int
        ``TAKE`` or ``GIVE_BACK``.
    """
    row = plan.row[slot]
    start_ms = state.jobs[slot].promised_ms
    if start_ms == NEVER_MS:
        return
    end_ms = start_ms + plan.reserved[row].length_ms
    for k in range(plan.reserved[row].n_fragments):
        occupy_nodes(plan, plan.fragments[row, k].site, start_ms, end_ms, sign * plan.fragments[row, k].width)
    occupy_nodes(plan, len(state.nodes), start_ms, end_ms, sign * state.jobs[slot].width)


@kernel
def occupy_running(state: GridState, plan: ReservedStarts, slot: Slot, start_ms: Int, end_ms: Int, sign: Int) -> None:
    """Add a running job's nodes between two times to the profiles (``TAKE``) or remove them (``GIVE_BACK``).

    Nodes on a closed site are ignored, because the site's profile has no nodes.
    """
    first = state.first_fragment[slot]
    for k in range(first, first + state.n_fragments[slot]):
        occupy_nodes(plan, state.fragments[k].site, start_ms, end_ms, sign * freed_by(state, k))
    occupy_nodes(plan, len(state.nodes), start_ms, end_ms, sign * freed_in_all(state, slot))


@kernel_part
def occupy_nodes(plan: ReservedStarts, row: Int, start_ms: Int, end_ms: Int, width: Int) -> None:
    """Subtract nodes from a profile between two times; a negative width adds nodes."""
    plan.n_steps[row] = occupy(plan.step_ms[row], plan.step_free[row], plan.n_steps[row], start_ms, end_ms, width)


@kernel_part
def release_row(plan: ReservedStarts, slot: Slot) -> None:
    """Release a job's row, so that another job can use it."""
    plan.spare[plan.counters[0].n_spare] = plan.row[slot]
    plan.counters[0].n_spare += 1


@kernel
def find_place(
    state: GridState, codes: GridCodes, plan: ReservedStarts, slot: Slot, now_ms: Int, latest_end_ms: Int
) -> tuple[Int, Int]:
    """Find the preferred placement of a job among the placements that end by ``latest_end_ms``.

    Parameters
    ----------
    state : GridState
        Afterwards, ``taken`` holds the fragments.
    codes : GridCodes
    plan : ReservedStarts
        Advanced to now, without the job's own reservation.
    slot, now_ms : int
    latest_end_ms : int
        The latest allowed end.

    Returns
    -------
    start_ms : int
        ``NEVER_MS`` if there is no such placement.
    length_ms : int
    """
    job = state.jobs[slot]
    single_ms = NEVER_MS
    for site in range(len(state.nodes)):
        plan.earliest_ms[site] = earliest_fit(
            plan.step_ms[site], plan.step_free[site], plan.n_steps[site], now_ms, job.width, job.estimate_ms
        )
        single_ms = min(single_ms, plan.earliest_ms[site])
    single_counts = single_ms < NEVER_MS and single_ms + job.estimate_ms <= latest_end_ms
    if may_split(state, codes, slot):
        before_end_ms = latest_end_ms + 1
        if codes.adaptive and single_counts:
            before_end_ms = single_ms + job.estimate_ms
        start_ms, length_ms = _earliest_split(state, codes, plan, slot, now_ms, single_ms, before_end_ms)
        if start_ms < NEVER_MS:
            return start_ms, length_ms
    if not single_counts:
        return NEVER_MS, job.estimate_ms
    _take_earliest_site(state, codes, plan, slot, single_ms)
    return single_ms, job.estimate_ms


@kernel
def _take_earliest_site(state: GridState, codes: GridCodes, plan: ReservedStarts, slot: Slot, start_ms: Int) -> None:
    """Select one of the sites on which a job has its earliest start, and put its nodes into ``taken``."""
    for site in range(len(state.nodes)):
        state.available[site] = state.jobs[slot].width if plan.earliest_ms[site] == start_ms else 0
        i = 0
        while i + 1 < plan.n_steps[site] and plan.step_ms[site, i + 1] <= start_ms:
            i += 1
        state.later[site] = plan.step_free[site, i]
    take_site(state, slot, choose_site(state, codes, slot, state.available, state.later, state.nodes))


@kernel
def _earliest_split(
    state: GridState,
    codes: GridCodes,
    plan: ReservedStarts,
    slot: Slot,
    now_ms: Int,
    before_ms: Int,
    before_end_ms: Int,
) -> tuple[Int, Int]:
    """Find the earliest split starting before ``before_ms``, with its fragments in ``taken``; return start and length.

    The start is ``NEVER_MS`` without such a split, or if the earliest split does not end before ``before_end_ms``.
    """
    job = state.jobs[slot]
    for site in range(len(state.nodes)):
        plan.cursor[site] = 0
    everywhere = len(state.nodes)
    when_ms = now_ms
    while True:
        # All sites together must have enough nodes for the whole length, which leaves few times to examine.
        when_ms = earliest_fit(
            plan.step_ms[everywhere],
            plan.step_free[everywhere],
            plan.n_steps[everywhere],
            when_ms,
            job.width,
            job.estimate_ms,
        )
        if when_ms >= before_ms or when_ms + job.estimate_ms >= before_end_ms:
            return NEVER_MS, job.estimate_ms
        next_ms = NEVER_MS
        for site in range(len(state.nodes)):
            i = plan.cursor[site]
            while i + 1 < plan.n_steps[site] and plan.step_ms[site, i + 1] <= when_ms:
                i += 1
            plan.cursor[site] = i
            if i + 1 < plan.n_steps[site]:
                next_ms = min(next_ms, plan.step_ms[site, i + 1])
        length_ms = _split_from(state, codes, plan, slot, when_ms)
        if length_ms < NEVER_MS:
            return when_ms if when_ms + length_ms < before_end_ms else NEVER_MS, length_ms
        if next_ms == NEVER_MS:
            return NEVER_MS, job.estimate_ms
        when_ms = next_ms


@kernel
def _split_from(state: GridState, codes: GridCodes, plan: ReservedStarts, slot: Slot, start_ms: Int) -> Int:
    """Split a job that starts at the time of the cursors; return its length, or ``NEVER_MS`` if no split is possible.

    If a split takes longer than assumed, fewer nodes may be free for that length, so the search is repeated.
    """
    estimate_ms = state.jobs[slot].estimate_ms
    length_ms = estimate_ms
    while True:
        for site in range(len(state.nodes)):
            state.available[site] = _least_free(plan, site, start_ms + length_ms)
        if not take_parts(state, codes, codes.net, slot, state.available, start_ms):
            return NEVER_MS
        needed_ms = split_length_ms(state, codes, slot, estimate_ms)
        if needed_ms <= length_ms:
            return needed_ms
        length_ms = needed_ms


@kernel_part
def _least_free(plan: ReservedStarts, site: Int, end_ms: Int) -> Int:
    """Return how many nodes of a site are free for the whole time from its cursor to ``end_ms``."""
    i = plan.cursor[site]
    least = plan.step_free[site, i]
    i += 1
    while i < plan.n_steps[site] and plan.step_ms[site, i] < end_ms:
        least = min(least, plan.step_free[site, i])
        i += 1
    return least

"""Where a reservation goes: on one site at its earliest, or on several (docs/grid.md, "Reserved starts")."""

from __future__ import annotations

from gridweave.grid.kernels.links_placement import take_parts
from gridweave.grid.kernels.overhead import split_length_ms
from gridweave.grid.kernels.placement import GridCodes, choose_site, may_split, take_site
from gridweave.grid.kernels.reservations import ReservedStarts
from gridweave.grid.kernels.state import GridState, Slot
from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.profile import earliest_fit
from gridweave.site.kernels.state import NEVER_MS


@kernel
def find_place(
    state: GridState, codes: GridCodes, plan: ReservedStarts, slot: Slot, now_ms: Int, latest_end_ms: Int
) -> tuple[Int, Int]:
    """Find the preferred place of a job, among those that end by an instant.

    Parameters
    ----------
    state : GridState
        ``taken`` then holds the fragments.
    codes : GridCodes
    plan : ReservedStarts
        Brought up to now; what is reserved for the job itself is taken out.
    slot, now_ms : int
    latest_end_ms : int
        A place that ends later does not count.

    Returns
    -------
    start_ms : int
        ``NEVER_MS`` if there is no such place.
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
    """Take the nodes of the selected site among those on which a job has this earliest start."""
    for site in range(len(state.nodes)):
        state.available[site] = state.jobs[slot].width if plan.earliest_ms[site] == start_ms else 0
        i = 0
        while i + 1 < plan.n_steps[site] and plan.step_ms[site, i + 1] <= start_ms:
            i += 1
        state.later[site] = plan.step_free[site, i]
    take_site(state, slot, choose_site(state, codes, slot, state.available, state.later))


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
    """Find the first start of a split before an instant, with its fragments in ``taken``; return start and length.

    The start is ``NEVER_MS`` if there is none, or if that split does not end before ``before_end_ms``.
    """
    job = state.jobs[slot]
    for site in range(len(state.nodes)):
        plan.cursor[site] = 0
    everywhere = len(state.nodes)
    when_ms = now_ms
    while True:
        # What all sites have together must suffice for that long; few instants are left that are worth a closer look.
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
    """Split a job that starts at the instant of the cursors; return its length, ``NEVER_MS`` if it cannot be split.

    A split that takes longer than was thought may find fewer nodes, and then be another.
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
    """Return how many nodes of a site are free from the cursor on for the whole time until an instant."""
    i = plan.cursor[site]
    least = plan.step_free[site, i]
    i += 1
    while i < plan.n_steps[site] and plan.step_ms[site, i] < end_ms:
        least = min(least, plan.step_free[site, i])
        i += 1
    return least

"""The grid queue under conservative backfilling: every job has a reserved start (docs/grid.md, "Reserved starts").

Source: Mu'alem and Feitelson's rule, extended to several sites, which Streit's thesis (chapter 8) names as future work.
"""

from __future__ import annotations

from gridweave.grid.kernels.grid_queue import begin_taken, finish_job, move_end
from gridweave.grid.kernels.links import judge_started
from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.kernels.reservations import (
    ReservedStarts,
    find_place,
    note_reserved,
    occupy_reserved,
    occupy_running,
    release_row,
)
from gridweave.grid.kernels.running import FIRST_PLACE, end_place, next_place, place_of, row_at
from gridweave.grid.kernels.state import GridState, Place, Slot, freed_by, give_back
from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.planning import OVERDUE_MS
from gridweave.site.kernels.profile import advance, clear, earliest_fit
from gridweave.site.kernels.state import (
    COMPRESS,
    FRESH,
    GIVE_BACK,
    NEVER_MS,
    NO_PLACE,
    REPLAN,
    TAKE,
    UNPLACED_MS,
    dequeue,
    drop_started,
)


@kernel
def planned_job_ended(state: GridState, plan: ReservedStarts, slot: Slot, now_ms: Int) -> bool:
    """Remove an ended job and free the rest of its planned time; return whether the job was running.

    Parameters
    ----------
    state : GridState
        Changed in place.
    plan : ReservedStarts
        Changed in place.
    slot : int
        Slot of the job.
    now_ms : int
    """
    end_ms = state.end_ms[slot]
    place = place_of(state, slot)
    if place == NO_PLACE:
        return False
    if end_ms > now_ms:
        occupy_running(state, plan, slot, now_ms, end_ms, GIVE_BACK)
        make_stale(plan, COMPRESS)
    finish_job(state, place)
    return True


@kernel
def planned_end_moved(state: GridState, plan: ReservedStarts, slot: Slot, end_ms: Int, now_ms: Int) -> None:
    """Change the expected end of a running job, and keep all reservations if possible.

    Parameters
    ----------
    state : GridState
        Changed in place.
    plan : ReservedStarts
        Changed in place.
    slot : int
        Slot of the job.
    end_ms, now_ms : int
    """
    before_ms = state.end_ms[slot]
    if before_ms <= now_ms or (end_ms > before_ms and not _can_stay(state, plan, slot, before_ms, end_ms)):
        make_stale(plan, REPLAN)
    elif end_ms > before_ms:
        occupy_running(state, plan, slot, before_ms, end_ms, TAKE)
    else:
        occupy_running(state, plan, slot, max(end_ms, now_ms), before_ms, GIVE_BACK)
        make_stale(plan, COMPRESS)
    move_end(state, slot, end_ms)


@kernel
def _can_stay(state: GridState, plan: ReservedStarts, slot: Slot, from_ms: Int, until_ms: Int) -> bool:
    """Whether a running job's nodes are free of other jobs' reservations between two times."""
    first = state.first_fragment[slot]
    for k in range(first, first + state.n_fragments[slot]):
        site = state.fragments[k].site
        profile = plan.step_ms[site], plan.step_free[site], plan.n_steps[site]
        if earliest_fit(*profile, from_ms, freed_by(state, k), until_ms - from_ms) != from_ms:
            return False
    return True


@kernel_part
def make_stale(plan: ReservedStarts, stale: Int) -> None:
    """Raise the staleness of the plan to this level, unless it is already higher."""
    plan.counters[0].stale = max(plan.counters[0].stale, stale)


@kernel
def planned_job_withdrawn(state: GridState, plan: ReservedStarts, place: Place) -> None:
    """Remove the waiting job at this place from the queue, and cancel its reservation.

    Parameters
    ----------
    state : GridState
        Changed in place.
    plan : ReservedStarts
        Changed in place.
    place : int
        Place in the queue.
    """
    slot = state.waiting[place]
    if state.jobs[slot].promised_ms != UNPLACED_MS:
        occupy_reserved(state, plan, slot, GIVE_BACK)
        release_row(plan, slot)
        make_stale(plan, COMPRESS)
    dequeue(state, place)


@kernel
def grid_plan_pass(state: GridState, codes: GridCodes, plan: ReservedStarts, now_ms: Int) -> None:
    """Update the reservations, make reservations for new jobs, and start the jobs whose reserved start is due.

    If jobs have ended early, reservations are first moved to earlier times. Then the new jobs are placed in submit
    order. On live grids, a job may run past its expected end, and a site may withdraw nodes or refuse a start. In these
    cases the plan is void, and all jobs are placed again in queue order.

    Parameters
    ----------
    state : GridState
    codes : GridCodes
    plan : ReservedStarts
        Changed in place, like the state; ``state.started`` lists the slots of the started jobs.
    now_ms : int
    """
    counters = state.counters[0]
    counters.n_started = 0
    if _is_late(state, plan, now_ms):
        make_stale(plan, REPLAN)
    if plan.counters[0].stale == REPLAN:
        _replan(state, codes, plan, now_ms)
    else:
        for row in range(len(plan.n_steps)):
            plan.n_steps[row] = advance(plan.step_ms[row], plan.step_free[row], plan.n_steps[row], now_ms)
        if plan.counters[0].stale == COMPRESS:
            _compress(state, codes, plan, now_ms)
    plan.counters[0].stale = FRESH
    while counters.first_new < counters.n_waiting:
        slot = _first_unplaced(state, counters.first_new)
        if slot == NO_PLACE:
            break
        _reserve(state, codes, plan, slot, now_ms)
    counters.first_new = NEVER_MS
    _start_reserved(state, codes, plan, now_ms)


@kernel_part
def _is_late(state: GridState, plan: ReservedStarts, now_ms: Int) -> bool:
    """Whether a reserved start has passed or a job is running past its expected end."""
    return _is_overdue(state, now_ms) or plan.counters[0].next_start_ms < now_ms


@kernel_part
def _is_overdue(state: GridState, now_ms: Int) -> bool:
    return end_place(state) > FIRST_PLACE and state.running[row_at(state, FIRST_PLACE)].end_ms <= now_ms


@kernel
def _replan(state: GridState, codes: GridCodes, plan: ReservedStarts, now_ms: Int) -> None:
    """Recompute all reservations in queue order, given the running jobs and the sites' current nodes."""
    while _is_overdue(state, now_ms):
        move_end(state, state.running[row_at(state, FIRST_PLACE)].slot, now_ms + OVERDUE_MS)
    for site in range(len(state.nodes)):
        state.ahead[site] = state.free[site]
    place = FIRST_PLACE
    while place < end_place(state):
        give_back(state, state.running[row_at(state, place)].slot, state.ahead)
        place = next_place(state, place)
    everywhere = len(state.nodes)
    total = 0
    for site in range(everywhere):
        plan.n_steps[site] = clear(plan.step_ms[site], plan.step_free[site], now_ms, state.ahead[site])
        total += state.ahead[site]
    plan.n_steps[everywhere] = clear(plan.step_ms[everywhere], plan.step_free[everywhere], now_ms, total)
    place = FIRST_PLACE
    while place < end_place(state):
        running = state.running[row_at(state, place)]
        occupy_running(state, plan, running.slot, now_ms, running.end_ms, TAKE)
        place = next_place(state, place)
    for place in range(state.counters[0].n_waiting):
        slot = state.waiting[place]
        if state.jobs[slot].promised_ms != UNPLACED_MS:
            release_row(plan, slot)
        _reserve(state, codes, plan, slot, now_ms)


@kernel
def _reserve(state: GridState, codes: GridCodes, plan: ReservedStarts, slot: Slot, now_ms: Int) -> None:
    """Reserve a waiting job's preferred placement."""
    start_ms, length_ms = find_place(state, codes, plan, slot, now_ms, NEVER_MS)
    plan.counters[0].n_spare -= 1
    plan.row[slot] = plan.spare[plan.counters[0].n_spare]
    note_reserved(state, plan, slot, start_ms, length_ms)
    occupy_reserved(state, plan, slot, TAKE)


@kernel
def _first_unplaced(state: GridState, first: Int) -> Int:
    """Return the slot of the first job without a reservation, by submit time and id, or ``NO_PLACE``."""
    best = NO_PLACE
    for place in range(first, state.counters[0].n_waiting):
        slot = state.waiting[place]
        job = state.jobs[slot]
        if job.promised_ms == UNPLACED_MS:
            other = state.jobs[best]
            if best == NO_PLACE or (job.submit_ms, job.job_id) < (other.submit_ms, other.job_id):
                best = slot
    return best


@kernel
def _compress(state: GridState, codes: GridCodes, plan: ReservedStarts, now_ms: Int) -> None:
    """Improve reservations in queue order until none can be improved."""
    moved = True
    while moved:
        moved = False
        for place in range(state.counters[0].n_waiting):
            slot = state.waiting[place]
            if state.jobs[slot].promised_ms != UNPLACED_MS and _improve(state, codes, plan, slot, now_ms):
                moved = True


@kernel
def _improve(state: GridState, codes: GridCodes, plan: ReservedStarts, slot: Slot, now_ms: Int) -> bool:
    """Move a reservation to an earlier end, or to the same end in fewer fragments; return whether that was possible."""
    job = state.jobs[slot]
    row = plan.row[slot]
    n_fragments = plan.reserved[row].n_fragments
    if job.promised_ms == now_ms and n_fragments == 1:
        return False
    end_ms = job.promised_ms + plan.reserved[row].length_ms
    occupy_reserved(state, plan, slot, GIVE_BACK)
    start_ms, length_ms = find_place(state, codes, plan, slot, now_ms, end_ms)
    better = start_ms < NEVER_MS and (start_ms + length_ms < end_ms or state.counters[0].n_taken < n_fragments)
    if better:
        note_reserved(state, plan, slot, start_ms, length_ms)
    occupy_reserved(state, plan, slot, TAKE)
    return better


@kernel
def _start_reserved(state: GridState, codes: GridCodes, plan: ReservedStarts, now_ms: Int) -> None:
    """Start the jobs whose reserved start is due, and record the next reserved start."""
    counters = state.counters[0]
    first = counters.n_waiting
    next_start_ms = NEVER_MS
    for place in range(counters.n_waiting):
        slot = state.waiting[place]
        promised_ms = state.jobs[slot].promised_ms
        if promised_ms <= now_ms:
            row = plan.row[slot]
            counters.n_taken = plan.reserved[row].n_fragments
            for k in range(counters.n_taken):
                state.taken[k] = plan.fragments[row, k]
            judge_started(state, codes.net, slot, now_ms)
            begin_taken(state, codes, place, now_ms)
            release_row(plan, slot)
            first = min(first, place)
        elif promised_ms < next_start_ms:
            next_start_ms = promised_ms
    plan.counters[0].next_start_ms = next_start_ms
    drop_started(state, first)

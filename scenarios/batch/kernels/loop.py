"""Driver 1: run a whole workload in one compiled loop over the kernels of a site or a grid of sites.

The loop is a discrete event simulation. At each instant it handles job ends (by job id), cancellations, node events and
submissions, and then runs one scheduling pass. Features that a simulation does not use are None, and numba omits their
code: changing rates, a site's rules, shared nodes, a grid, link contention, cancellations, node failures and evictions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.candidates import withdraw
from gridweave.grid.kernels.grid_plan import grid_plan_pass, planned_job_ended, planned_job_withdrawn
from gridweave.grid.kernels.grid_queue import grid_job_ended, grid_pass
from gridweave.grid.kernels.links import GridLinks, grown_ms
from gridweave.grid.kernels.overhead import longest_split_ms, split_length_ms
from gridweave.grid.kernels.placement import GridCodes, may_split
from gridweave.grid.kernels.reservations import ReservedStarts, has_capacity
from gridweave.grid.kernels.state import GridState, is_full, recall_taken
from gridweave.jit import Int, kernel, kernel_part
from gridweave.scenarios.batch.kernels.contention import (
    Contention,
    begin_job,
    begin_to_work,
    delivers_output,
    expect_late_ends,
    fetch_for,
    is_to_share,
    moves_fit,
    next_data_ms,
    share_anew,
)
from gridweave.scenarios.batch.kernels.moves import NO_MOVE, drop_moves, next_job_served
from gridweave.scenarios.batch.kernels.outages import Outages, change_nodes, next_change_ms, take_nodes
from gridweave.site.kernels.dispatch import Evictions, RateRules, SiteRules, job_ended, job_withdrawn
from gridweave.site.kernels.state import NEVER_MS, enqueue
from gridweave.site.kernels.work import (
    NOT_YET,
    RunArrays,
    WorkTable,
    first_end_ms,
    pop_end,
    push_end,
    stop_work,
    take_end,
)

# The fields of records have no types; and if there is link contention, then work, grid and its network are not None.
# mypy: disable-error-code="no-any-return, arg-type, union-attr"

DONE, LINKS_CHANGE, NO_CAPACITY, NO_CAPACITY_FOR_MOVES = 0, 1, 2, 3
"""Return codes of the loop."""


class OnGrid(NamedTuple):
    """The state of a grid apart from its job table.

    Attributes
    ----------
    codes : GridCodes
        Includes the links between the sites, or None.
    plan : ReservedStarts or None
        Reserved starts, for conservative backfilling.
    unplaceable_ms : numpy.ndarray of int64, shape (n,)
        Time from which each job can no longer be placed.
    length_ms : numpy.ndarray of int64, shape (n,)
        Output: run time of each job with its placement, on idle links.
    """

    codes: GridCodes
    plan: ReservedStarts | None
    unplaceable_ms: npt.NDArray[np.int64]
    length_ms: npt.NDArray[np.int64]


class Cancellations(NamedTuple):
    """Jobs to cancel if they are still waiting.

    Attributes
    ----------
    at_ms, row : numpy.ndarray of int64, shape (k,)
        Time and row of each cancellation, sorted by time and job id.
    """

    at_ms: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]


# Features that a simulation does not use are None. Numba removes a branch only if its condition tests for None, so code
# for one kind of state must be inside an "is not None" test.
_Work = WorkTable | None
_Site = SiteRules | None
_Paced = RateRules | None
_Grid = OnGrid | None
_Links = Contention | None
_Cancels = Cancellations | None
_Outages = Outages | None
_Evictions = Evictions | None


@kernel
def run_batch(
    state: Any,
    work: WorkTable | None,
    site: SiteRules | None,
    paced: RateRules | None,
    grid: OnGrid | None,
    links: Contention | None,
    cancels: Cancellations | None,
    outages: Outages | None,
    evictions: Evictions | None,
    run: RunArrays,
    until: Int,
    stop_ms: Int,
) -> int:
    """Simulate a workload, continuing where the last call stopped.

    Parameters
    ----------
    state : SiteState, GridState, or the state of a discipline that changes rates
        Idle at the first call; its job table holds the workload in submit order.
    work : numpy.ndarray of WORK, shape (n,), or None
        The running jobs, if rates can change.
    site, paced, grid : SiteRules, RateRules, OnGrid or None
        The rules for the kind of ``state``; the other two are None.
    links : Contention or None
        Contention for the links between a grid's jobs.
    outages : Outages or None
        Node events of a site; require ``work`` and constant rates.
    evictions : Evictions or None
        Evictions by a site's scheduling passes; require ``work``.
    until : int
        Return once this many jobs in total have been submitted. If this is the number of all jobs, return once no
        events are left.
    stop_ms : int
        Return before this time, at which links change; `NEVER_MS` if they do not change again.

    Returns
    -------
    int
        LINKS_CHANGE; NO_CAPACITY if the fragments or the plan are full; NO_CAPACITY_FOR_MOVES; otherwise DONE.
    """
    clock = run.clock[0]
    while clock.submitted < until or clock.submitted == len(state.jobs):
        now_ms = _next_instant(state, site, paced, grid, links, cancels, outages, evictions, run)
        if now_ms >= stop_ms:
            return DONE if stop_ms == NEVER_MS else LINKS_CHANGE
        if grid is not None:
            lacking = _lacking_capacity(state, grid.plan, links, run, now_ms)
            if lacking != DONE:
                return lacking
        if paced is not None:
            paced.counted(state, now_ms)
        decides = _is_woken(links, run, now_ms)
        if links is not None:
            decides = _serve_jobs(state, work, grid, links, run, now_ms) or decides
        decides = _end_jobs(state, work, site, paced, grid, links, run, now_ms) or decides
        if cancels is not None:
            decides = _cancel_jobs(state, work, site, paced, grid, links, cancels, run, now_ms) or decides
        if outages is not None:
            decides = change_nodes(state, work, site, outages, run, now_ms) or decides
        decides = _submit_jobs(state, site, paced, grid, links, run, now_ms) or decides
        if decides:
            _pass_and_begin(state, work, site, paced, grid, links, outages, evictions, run, now_ms)
        if links is not None and is_to_share(links, clock):
            share_anew(work, grid.codes.net, links, clock, run.ends, now_ms)
    return DONE


@kernel_part
def _next_instant(
    state: Any,
    site: _Site,
    paced: _Paced,
    grid: _Grid,
    links: _Links,
    cancels: _Cancels,
    outages: _Outages,
    evictions: _Evictions,
    run: RunArrays,
) -> Int:
    """Return the time of the next event."""
    clock = run.clock[0]
    now_ms = min(clock.woken_ms, first_end_ms(run.ends))
    if clock.submitted < len(state.jobs):
        now_ms = min(now_ms, state.jobs[clock.submitted].submit_ms)
    if site is not None:
        now_ms = min(now_ms, state.counters[0].next_start_ms)
    if paced is not None:
        now_ms = min(now_ms, paced.wakeup_ms(state))
    if grid is not None:
        now_ms = min(now_ms, _next_reserved_ms(grid.plan))
    if links is not None:
        now_ms = min(now_ms, next_data_ms(links))
    if outages is not None:
        now_ms = min(now_ms, next_change_ms(outages, run))
    if cancels is not None:
        if outages is None and evictions is None:  # otherwise a running job may wait again
            while clock.cancelled < len(cancels.row) and run.start_ms[cancels.row[clock.cancelled]] != NOT_YET:
                clock.cancelled += 1
        if clock.cancelled < len(cancels.row):
            now_ms = min(now_ms, cancels.at_ms[clock.cancelled])
    return now_ms


@kernel_part
def _next_reserved_ms(plan: ReservedStarts | None) -> Int:
    """Return the time of the next reserved start on a grid."""
    return NEVER_MS if plan is None else plan.counters[0].next_start_ms


@kernel_part
def _lacking_capacity(state: GridState, plan: ReservedStarts | None, links: _Links, run: RunArrays, now_ms: Int) -> int:
    """Return the return code for arrays that are too small for the events at this time, or DONE."""
    if is_full(state):
        return NO_CAPACITY
    if plan is not None and not has_capacity(state, plan, _count_new(state, run, now_ms)):
        return NO_CAPACITY
    if links is not None and links.moves_data and not moves_fit(state, links, _count_new(state, run, now_ms)):
        return NO_CAPACITY_FOR_MOVES
    return DONE


@kernel_part
def _count_new(state: GridState, run: RunArrays, now_ms: Int) -> Int:
    """Return the number of jobs submitted at this time."""
    row = run.clock[0].submitted
    new = row
    while new < len(state.jobs) and state.jobs[new].submit_ms == now_ms:
        new += 1
    return new - row


@kernel_part
def _is_woken(links: _Links, run: RunArrays, now_ms: Int) -> bool:
    """Whether a pass is due even without a job end or submission; after link changes, request new bandwidth shares."""
    clock = run.clock[0]
    if clock.woken_ms == now_ms:
        clock.woken_ms = NEVER_MS
        clock.stirred = 1
        return True
    # Arrivals or departures of data alone do not require a pass.
    return links is None or not links.moves_data


@kernel
def _serve_jobs(
    state: GridState, work: WorkTable, grid: OnGrid, links: Contention, run: RunArrays, now_ms: Int
) -> bool:
    """End completed moves and start the work of jobs whose input has arrived; return whether a job ended."""
    ended_any = False
    if links.moves_data:
        row = next_job_served(links.moves, links.flows, now_ms)
        while row != NO_MOVE:
            links.moved_ms[row] += now_ms - work[row].since_ms
            if work[row].left > 0:
                begin_to_work(state, work, grid.codes.net, links, run.clock[0], run.ends, row, now_ms)
            else:
                end_job(state, work, None, None, grid, run, row, now_ms)
                ended_any = True
            row = next_job_served(links.moves, links.flows, now_ms)
    return ended_any


@kernel_part
def _end_jobs(
    state: Any, work: _Work, site: _Site, paced: _Paced, grid: _Grid, links: _Links, run: RunArrays, now_ms: Int
) -> bool:
    """End the jobs whose work is done, unless their output must be transferred first; return whether a job ended."""
    ended_any = False
    while first_end_ms(run.ends) == now_ms:
        row = pop_end(run.ends, work)
        if links is None or not delivers_output(state, work, links, run.clock[0], run.ends, row, now_ms):
            end_job(state, work, site, paced, grid, run, row, now_ms)
            ended_any = True
    return ended_any


@kernel_part
def end_job(
    state: Any, work: _Work, site: _Site, paced: _Paced, grid: _Grid, run: RunArrays, row: Int, now_ms: Int
) -> None:
    """Record the end of a job and release its nodes."""
    run.end_ms[row] = now_ms
    if work is not None:
        stop_work(run.ends, work, row)
    if site is not None:
        job = state.jobs[row]
        end_ms = run.start_ms[row] + job.estimate_ms
        job_ended(state, site, end_ms, job.job_id, now_ms)
    if paced is not None:
        paced.ended(state, run, row, now_ms)
    if grid is not None:
        _leave_grid(state, grid.plan, row, now_ms)


@kernel_part
def _leave_grid(state: GridState, plan: ReservedStarts | None, row: Int, now_ms: Int) -> None:
    if plan is None:
        grid_job_ended(state, row)
    else:
        planned_job_ended(state, plan, row, now_ms)


@kernel_part
def _cancel_jobs(
    state: Any,
    work: _Work,
    site: _Site,
    paced: _Paced,
    grid: _Grid,
    links: _Links,
    cancels: Cancellations,
    run: RunArrays,
    now_ms: Int,
) -> bool:
    """Remove the waiting jobs that are cancelled at this time; return whether there were any."""
    clock = run.clock[0]
    left_any = False
    while clock.cancelled < len(cancels.row) and cancels.at_ms[clock.cancelled] == now_ms:
        row = cancels.row[clock.cancelled]
        clock.cancelled += 1
        left_any = _leave_if_waiting(state, work, site, paced, grid, links, run, row, now_ms) or left_any
    return left_any


@kernel_part
def _leave_if_waiting(
    state: Any,
    work: _Work,
    site: _Site,
    paced: _Paced,
    grid: _Grid,
    links: _Links,
    run: RunArrays,
    row: Int,
    now_ms: Int,
) -> bool:
    """Remove a job from the queue; return whether it was waiting."""
    waits = False
    if paced is not None:
        waits = paced.withdrawn(state, work, run, row, now_ms)
    if site is not None:
        waits = _leave_queue_of(state, site, grid, links, row)
    if grid is not None:
        waits = _leave_queue_of(state, site, grid, links, row)
    return waits


@kernel
def _leave_queue_of(state: Any, site: _Site, grid: _Grid, links: _Links, row: Int) -> bool:
    """Remove a job from the queue of a site or a grid; return whether it was waiting."""
    for place in range(state.counters[0].n_waiting):
        if state.waiting[place] == row:
            leave_queue(state, site, grid, links, row, place)
            return True
    return False


@kernel
def leave_queue(state: Any, site: _Site, grid: _Grid, links: _Links, row: Int, place: Int) -> None:
    """Remove a waiting job, given its row and its index in the queue."""
    if site is not None:
        job_withdrawn(state, site, place)
        if state.counters[0].n_waiting == 0:
            # No pass runs on an empty queue, so nothing else would clear the promised start.
            state.counters[0].next_start_ms = NEVER_MS
    if grid is not None:
        _leave_grid_queue(state, grid.plan, place)
    if links is not None and links.moves_data:
        drop_moves(links.moves, links.flows, row)


@kernel_part
def _leave_grid_queue(state: GridState, plan: ReservedStarts | None, place: Int) -> None:
    if plan is None:
        withdraw(state, place)
    else:
        planned_job_withdrawn(state, plan, place)


@kernel_part
def _submit_jobs(
    state: Any, site: _Site, paced: _Paced, grid: _Grid, links: _Links, run: RunArrays, now_ms: Int
) -> bool:
    """Submit the jobs that are due at this time; return whether there were any."""
    clock = run.clock[0]
    first = clock.submitted
    while clock.submitted < len(state.jobs) and state.jobs[clock.submitted].submit_ms == now_ms:
        row = clock.submitted
        if site is not None:
            site.submitted(state, row)
        if paced is not None:
            paced.submitted(state, row, now_ms)
        if grid is not None and now_ms < grid.unplaceable_ms[row]:
            enqueue(state, row)
            if links is not None:
                fetch_for(state, grid.codes.net, links, row, now_ms)
        clock.submitted = row + 1
    return clock.submitted > first


@kernel_part
def _pass_and_begin(
    state: Any,
    work: _Work,
    site: _Site,
    paced: _Paced,
    grid: _Grid,
    links: _Links,
    outages: _Outages,
    evictions: _Evictions,
    run: RunArrays,
    now_ms: Int,
) -> None:
    """Run the scheduling pass at this time and begin the jobs that it starts."""
    counters = state.counters[0]
    if site is not None and counters.n_waiting > 0:
        # Under low load, the queue is empty at half of all event times.
        site.run_pass(state, now_ms)
        if evictions is not None:
            _take_off_evicted(evictions, work, run, now_ms)
        for i in range(counters.n_started):
            row = state.started[i]
            if outages is not None:
                take_nodes(outages, run, row)
            run.start_ms[row] = now_ms
            push_end(run.ends, work, now_ms + run.run_ms[row], state.jobs[row].job_id, row)
    if paced is not None:
        paced.run_pass(state, work, run, now_ms)
    if grid is not None:
        if links is not None:
            expect_late_ends(state, work, grid.plan, links, now_ms)
        _grid_pass(state, grid.codes, grid.plan, now_ms)
        for i in range(counters.n_started):
            row = state.started[i]
            run.start_ms[row] = now_ms
            _begin_on_grid(state, work, grid, grid.codes.net, links, run, row, now_ms)


@kernel_part
def _take_off_evicted(evictions: Evictions, work: WorkTable, run: RunArrays, now_ms: Int) -> None:
    """Stop the jobs that the pass evicted; shorten the remaining run time of jobs that keep their work."""
    for i in range(evictions.counts[0]):
        row = evictions.slots[i]
        if evictions.keeps_work[i]:
            run.run_ms[row] -= now_ms - run.start_ms[row]
        take_end(run.ends, work, work[row].place)
        run.start_ms[row] = NOT_YET


@kernel_part
def _grid_pass(state: GridState, codes: GridCodes, plan: ReservedStarts | None, now_ms: Int) -> None:
    if plan is None:
        grid_pass(state, codes, now_ms)
    else:
        grid_plan_pass(state, codes, plan, now_ms)


@kernel_part
def _begin_on_grid(
    state: GridState,
    work: _Work,
    grid: OnGrid,
    net: GridLinks | None,
    links: _Links,
    run: RunArrays,
    row: Int,
    now_ms: Int,
) -> None:
    """Begin a job that the pass started on a grid, or the transfer of its input."""
    if net is None:
        recall_taken(state, row)
        grid.length_ms[row] = split_length_ms(state, grid.codes, row, run.run_ms[row])
    else:
        grid.length_ms[row] = net.data_ms[row] + grown_ms(run.run_ms[row], net.factor[row])
    if links is None:
        # On idle links, transfers count as part of the job's work, at rate 1.
        push_end(run.ends, work, now_ms + grid.length_ms[row], state.jobs[row].job_id, row)
    else:
        begin_job(state, work, net, links, run.clock[0], run.ends, row, run.run_ms[row], grid.length_ms[row], now_ms)


@kernel
def longest_ms(
    state: GridState, codes: GridCodes, run_ms: npt.NDArray[np.int64], longest: npt.NDArray[np.float64]
) -> None:
    """Write an upper bound of each job's run time, for any placement, to ``longest``: float64, shape (n,)."""
    for row in range(len(state.jobs)):
        longest[row] = max(state.jobs[row].estimate_ms, run_ms[row])
        if may_split(state, codes, row):
            longest[row] = longest_split_ms(state, codes, row, longest[row])

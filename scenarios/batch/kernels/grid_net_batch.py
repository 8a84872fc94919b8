"""Driver 1 for a grid with a network: as grid_batch.py, and what runs slows what else is on its links."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.adjust import move_end
from gridweave.grid.kernels.grid_plan import grid_plan_pass, planned_end_moved, planned_job_ended
from gridweave.grid.kernels.grid_queue import grid_job_ended, grid_pass
from gridweave.grid.kernels.links import PREFETCH, grown_ms
from gridweave.grid.kernels.reservations import has_room
from gridweave.grid.kernels.running import FIRST_PLACE, end_place, next_place, row_at
from gridweave.grid.kernels.state import is_full, recall_taken
from gridweave.jit import kernel, kernel_part
from gridweave.netmodel.kernels.contention import add_job_flows, all_slowdowns, drop_flows, share_links
from gridweave.netmodel.kernels.state import Filling, Flows
from gridweave.scenarios.batch.kernels.heap import pop_end, push_end
from gridweave.scenarios.batch.kernels.moves import (
    IN_USE,
    NEXT_MS,
    NO_MOVE,
    STIRRED,
    Moves,
    added_work,
    deliver,
    fetch,
    fetch_ahead,
    last_move,
    next_job_served,
    output_work,
    set_move_rates,
)
from gridweave.site.kernels.state import NEVER_MS, enqueue
from gridweave.site.kernels.work import RATE_ONE, late_end_ms, rate_of, work_done_ms, work_left, work_of

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def, assignment"

APART, STATIC, DYNAMIC = 0, 1, 2
"""Contention: none, by what runs at the start, by what runs at any instant."""

NOT_RUNNING = np.int64(-1)
"""The rate of jobs that have not started, or have ended."""

LINKS_CHANGE, NO_ROOM, NO_ROOM_FOR_MOVES, DONE = 0, 1, 2, 3
"""Why the loop returns."""


class NetRun(NamedTuple):
    """The jobs of one simulation, and what they send.

    Attributes
    ----------
    contention : int
        APART, STATIC or DYNAMIC.
    flows : Flows
        Of the running jobs, whose rows are the owners, and of the moves.
    filling : Filling
    slowdown : numpy.ndarray of float64, shape (n + room for moves,)
        Of each owner of a flow, as of the last sharing.
    moves : Moves
        Input and output on their way.
    moves_data : bool
        Whether these are flows on the links; otherwise they take what they take on idle links.
    anywhere : numpy.ndarray of bool, shape (n,)
        Whether each job might be split.
    run_ms : numpy.ndarray of int64, shape (n,)
        Run times on one site, which the grid does not know.
    hopeless_ms : numpy.ndarray of int64, shape (n,)
        From when on no job like this could be placed, whatever becomes free.
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        Filled in: the start and the end of each job; of running ones the end at their present rates.
    length_ms : numpy.ndarray of int64, shape (n,)
        Filled in: how long each job takes on idle links, where it is placed.
    spare_ms : numpy.ndarray of int64, shape (n,)
        How much less its work is than by its estimate.
    left, rate, since_ms : numpy.ndarray of int64, shape (n,)
        Work that was left at an instant, and the rate since then (`gridweave.site.kernels.work`); `NOT_RUNNING` at
        first. While its data moves, a job has all its work, or none, and no end.
    moved_ms : numpy.ndarray of int64, shape (n,)
        Filled in, if there are moves: how long the data of each job moved while it held its nodes.
    ends, ends_row : numpy.ndarray of int64, shape (room,)
        A heap of ends, under dynamic contention with old ones among them: the end that counts is the one in ``end_ms``.
        There is room for twice the jobs that may run.
    clock : numpy.ndarray of int64, shape (4,)
        How many jobs have been submitted; how many entries of the heap are in use; at which instant links have just
        changed (`NEVER_MS` if that has been seen to); whether flows have begun or ended since the last sharing.
    """

    contention: int
    flows: Flows
    filling: Filling
    slowdown: npt.NDArray[np.float64]
    moves: Moves
    moves_data: bool
    anywhere: npt.NDArray[np.bool_]
    run_ms: npt.NDArray[np.int64]
    hopeless_ms: npt.NDArray[np.int64]
    start_ms: npt.NDArray[np.int64]
    end_ms: npt.NDArray[np.int64]
    length_ms: npt.NDArray[np.int64]
    spare_ms: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    rate: npt.NDArray[np.int64]
    since_ms: npt.NDArray[np.int64]
    moved_ms: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    ends_row: npt.NDArray[np.int64]
    clock: npt.NDArray[np.int64]


@kernel
def run_net_batch(state, codes, plan, run, change_ms):
    """Simulate a workload from where the last call left off, up to the next change of the links.

    Parameters
    ----------
    state : GridState
        Of an idle grid at first; its table of jobs holds the workload, in the order of submission.
    codes : GridCodes
        With a network.
    plan : ReservedStarts or None
        What is reserved, under conservative backfilling.
    run : NetRun
    change_ms : int
        The call returns before this instant; `NEVER_MS` if the links change no more.

    Returns
    -------
    int
        LINKS_CHANGE; NO_ROOM for more fragments, or in the plan; NO_ROOM_FOR_MOVES; DONE if nothing is to come that
        could change anything.
    """
    jobs, clock = state.jobs, run.clock
    while True:
        _drop_old(run, jobs)
        now_ms = clock[2]
        if clock[0] < len(jobs):
            now_ms = min(now_ms, jobs[clock[0]].submit_ms)
        if clock[1] > 0:
            now_ms = min(now_ms, run.ends[0])
        if plan is not None:
            now_ms = min(now_ms, plan.counters[0].next_start_ms)
        if run.moves_data:
            now_ms = min(now_ms, run.moves.counts[NEXT_MS])
        if now_ms >= change_ms:
            return DONE if change_ms == NEVER_MS else LINKS_CHANGE
        if now_ms == NEVER_MS:
            return DONE
        new = _new_jobs(state, plan, run, now_ms)
        if is_full(state) or not (plan is None or has_room(state, plan, new)):
            return NO_ROOM
        if run.moves_data and not _moves_fit(state, run, new):
            return NO_ROOM_FOR_MOVES
        # Nothing is decided at an instant at which only data comes, or is sent.
        decides = not run.moves_data or clock[2] == now_ms
        if clock[2] == now_ms:
            clock[2] = NEVER_MS
            clock[3] = 1
        if run.moves_data:
            decides = _serve_jobs(state, codes.net, plan, run, now_ms) or decides
        decides = _end_jobs(state, plan, run, now_ms) or decides
        while clock[0] < len(jobs) and jobs[clock[0]].submit_ms == now_ms:
            if now_ms < run.hopeless_ms[clock[0]]:
                enqueue(state, clock[0])
                if run.moves_data and codes.net.staging == PREFETCH:
                    row = clock[0]
                    job = codes.net.data[row], row, jobs[row].width
                    fetch_ahead(codes.net.paths, run.moves, run.flows, *job, state.nodes, run.anywhere[row], now_ms)
            clock[0] += 1
            decides = True
        if decides:
            if run.contention != APART:
                _expect_late_ends(state, plan, run, now_ms)
            if plan is None:
                grid_pass(state, codes, now_ms)
            else:
                grid_plan_pass(state, codes, plan, now_ms)
            if state.counters[0].n_started > 0:
                _begin_jobs(state, codes.net, run, now_ms)
        if run.contention != APART and (clock[3] == 1 or run.moves.counts[STIRRED] == 1):
            _share_anew(state, codes.net, run, now_ms)


@kernel_part
def _new_jobs(state, plan, run, now_ms):
    """Return how many jobs are submitted at this instant, if there are arrays that they need room in."""
    row = run.clock[0]
    new = row
    if plan is None and not run.moves_data:
        return 0
    while new < len(state.jobs) and state.jobs[new].submit_ms == now_ms:
        new += 1
    return new - row


@kernel_part
def _moves_fit(state, run, new):
    """Whether there is room for what so many new jobs, and those that start on all nodes, might move."""
    most = run.moves.counts[IN_USE] + new * len(state.nodes) + 2 * state.counters[0].nodes
    return most <= len(run.moves.row)


@kernel_part
def _drop_old(run, jobs):
    """Take ends that count no more off the top of the heap."""
    while run.clock[1] > 0 and not _counts(run, run.ends_row[0], run.ends[0]):
        run.clock[1] = pop_end(run.ends, run.ends_row, run.clock[1], jobs)


@kernel_part
def _counts(run, row, end_ms):
    """Whether a job ends at this instant, and has not yet: an end that moves away and back stands in the heap twice.

    Without contention no end moves, and what is known of a job's rate need be neither read nor kept.
    """
    return run.contention == APART or (run.end_ms[row] == end_ms and run.rate[row] != NOT_RUNNING)


@kernel
def _push(state, run, row):
    """Put the end of a job, if it has one, into the heap; when that is full, make it anew of those that count."""
    jobs = state.jobs
    if run.end_ms[row] >= NEVER_MS:
        return
    if run.clock[1] == len(run.ends):
        run.clock[1] = 0
        place = FIRST_PLACE
        while place < end_place(state):
            other = state.running[row_at(state, place)].slot
            if run.rate[other] != NOT_RUNNING and run.end_ms[other] < NEVER_MS and other != row:
                run.clock[1] = push_end(run.ends, run.ends_row, run.clock[1], jobs, run.end_ms[other], other)
            place = next_place(state, place)
    run.clock[1] = push_end(run.ends, run.ends_row, run.clock[1], jobs, run.end_ms[row], row)


@kernel_part
def _end_jobs(state, plan, run, now_ms):
    """Take out the jobs that end now; the output of those that have any sets out. Return whether any has ended."""
    ended_any = False
    while run.clock[1] > 0 and run.ends[0] == now_ms:
        ended = run.ends_row[0]
        run.clock[1] = pop_end(run.ends, run.ends_row, run.clock[1], state.jobs)
        if _counts(run, ended, now_ms):
            ended_any = _work_is_done(state, plan, run, ended, now_ms) or ended_any
    return ended_any


@kernel
def _work_is_done(state, plan, run, row, now_ms):
    """Let the flows of a job end; return whether it ends with them, as it has no output to send."""
    if run.contention != APART and state.n_fragments[row] > 1 and drop_flows(run.flows, row) > 0:
        # Those that run are not slowed less under static contention.
        run.clock[3] = max(run.clock[3], run.contention == DYNAMIC)
    if run.moves_data and deliver(run.moves, run.flows, row, now_ms):
        run.left[row] = 0
        run.rate[row] = RATE_ONE
        run.since_ms[row] = now_ms
        run.end_ms[row] = NEVER_MS
        return False
    _leave(state, plan, run, row, now_ms)
    return True


@kernel
def _leave(state, plan, run, row, now_ms):
    """Take a job out that has ended."""
    if run.contention != APART:
        run.rate[row] = NOT_RUNNING
        run.end_ms[row] = now_ms
    if plan is None:
        grid_job_ended(state, row)
    else:
        planned_job_ended(state, plan, row, now_ms)


@kernel
def _serve_jobs(state, net, plan, run, now_ms):
    """End the moves that are over; let jobs work that have their input. Return whether a job has ended with that."""
    ended_any = False
    row = next_job_served(run.moves, run.flows, now_ms)
    while row != NO_MOVE:
        run.moved_ms[row] += now_ms - run.since_ms[row]
        if run.left[row] > 0:
            _begin_work(state, net, run, row, now_ms)
        else:
            _leave(state, plan, run, row, now_ms)
            ended_any = True
        row = next_job_served(run.moves, run.flows, now_ms)
    return ended_any


@kernel
def _expect_late_ends(state, plan, run, now_ms):
    """Expect jobs that run past their end by estimate to go on at the rate that they have; if that is 0, at rate 1."""
    while state.counters[0].n_running > 0:
        ending = state.running[row_at(state, FIRST_PLACE)]
        if ending.end_ms > now_ms:
            return
        slot = ending.slot
        left, rate = _left_by_estimate(run, slot, now_ms)
        end_ms = late_end_ms(left, rate, now_ms)
        if plan is None:
            move_end(state, slot, end_ms)
        else:
            planned_end_moved(state, plan, slot, end_ms, now_ms)


@kernel_part
def _left_by_estimate(run, row, now_ms):
    """Return what is left of a running job by its estimate, and the rate at which it goes on now."""
    left = work_left(run.left[row], run.rate[row], run.since_ms[row], now_ms) + work_of(run.spare_ms[row])
    if not run.moves_data:
        return left, run.rate[row]
    move = last_move(run.moves, row)
    if move == NO_MOVE:
        return added_work(left, output_work(run.moves, row)), run.rate[row]
    moves = run.moves
    coming = work_left(moves.left[move], moves.rate[move], moves.since_ms[move], now_ms)
    if run.left[row] > 0:
        coming = added_work(coming, added_work(run.left[row] + work_of(run.spare_ms[row]), output_work(moves, row)))
    return coming, moves.rate[move]


@kernel
def _begin_jobs(state, net, run, now_ms):
    """Let the jobs run that the pass has started, or their input come."""
    for i in range(state.counters[0].n_started):
        row = state.started[i]
        work_ms = grown_ms(run.run_ms[row], net.factor[row])
        run.start_ms[row] = now_ms
        run.length_ms[row] = net.data_ms[row] + work_ms
        if run.contention == APART:
            # On idle links its data is a part of its work, and it goes on at rate 1.
            run.end_ms[row] = now_ms + run.length_ms[row]
            _push(state, run, row)
            continue
        run.spare_ms[row] = state.end_ms[row] - now_ms - run.length_ms[row]
        run.rate[row] = RATE_ONE
        run.since_ms[row] = now_ms
        run.left[row] = work_of(work_ms)
        if run.moves_data:
            recall_taken(state, row)
            parts = state.taken, state.counters[0].n_taken
            if fetch(net.paths, run.moves, run.flows, net.data[row], row, *parts, now_ms):
                run.end_ms[row] = NEVER_MS
                continue
        _begin_work(state, net, run, row, now_ms)


@kernel
def _begin_work(state, net, run, row, now_ms):
    """Let a job work, at rate 1 so far."""
    run.since_ms[row] = now_ms
    run.end_ms[row] = work_done_ms(run.left[row], RATE_ONE, now_ms)
    _push(state, run, row)
    if run.contention != APART and state.n_fragments[row] > 1:
        recall_taken(state, row)
        parts = state.taken, state.counters[0].n_taken
        if add_job_flows(net.paths, run.flows, row, net.communication[row], *parts, net.factor[row]) > 0:
            run.clock[3] = 1


@kernel
def _share_anew(state, net, run, now_ms):
    """Share the links anew; under static contention this counts for what has just begun alone, or stands still."""
    run.clock[3] = 0
    share_links(net.paths, run.flows, run.filling)
    all_slowdowns(run.flows, run.slowdown)
    last = np.int64(-1)
    for place in range(run.flows.n_flows[0]):
        row = run.flows.owner[place]
        # The flows of a job stand together; those of moves have owners behind the jobs.
        if row != last and row < len(run.rate) and _feels(run, row, now_ms):
            rate = 0 if run.slowdown[row] == np.inf else rate_of(run.slowdown[row])
            if rate != run.rate[row]:
                _change_rate(state, run, row, rate, now_ms)
        last = row
    if run.moves_data:
        set_move_rates(run.moves, run.flows, run.slowdown, run.contention == DYNAMIC, now_ms)


@kernel_part
def _feels(run, row, now_ms):
    """Whether what has just been shared counts for a job that works."""
    return run.contention == DYNAMIC or run.since_ms[row] == now_ms or run.rate[row] == 0


@kernel
def _change_rate(state, run, row, rate, now_ms):
    """Let a running job go on at another rate; its end moves."""
    run.left[row] = work_left(run.left[row], run.rate[row], run.since_ms[row], now_ms)
    run.rate[row] = rate
    run.since_ms[row] = now_ms
    run.end_ms[row] = min(NEVER_MS, work_done_ms(run.left[row], rate, now_ms))
    _push(state, run, row)

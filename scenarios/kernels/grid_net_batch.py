"""Driver 1 for a grid with a network: as grid_batch.py, and what runs slows what else is on its links."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.adjust import move_end
from gridweave.grid.kernels.grid_plan import grid_plan_pass, planned_end_moved, planned_job_ended
from gridweave.grid.kernels.grid_queue import grid_job_ended, grid_pass
from gridweave.grid.kernels.links import grown_ms
from gridweave.grid.kernels.reservations import has_room
from gridweave.grid.kernels.running import FIRST_PLACE, end_place, next_place, row_at
from gridweave.grid.kernels.state import is_full, recall_taken
from gridweave.jit import kernel, kernel_part
from gridweave.netmodel.kernels.contention import add_job_flows, all_slowdowns, drop_flows, share_links
from gridweave.netmodel.kernels.state import Filling, Flows
from gridweave.scenarios.kernels.heap import pop_end, push_end
from gridweave.site.kernels.rates import RATE_ONE, late_end_ms, rate_of, work_done_ms, work_left, work_of
from gridweave.site.kernels.state import NEVER_MS, enqueue

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"

APART, STATIC, DYNAMIC = 0, 1, 2
"""Contention: none, by what runs at the start, by what runs at any instant."""

NOT_RUNNING = np.int64(-1)
"""The rate of jobs that have not started, or have ended."""

LINKS_CHANGE, NO_ROOM, DONE = 0, 1, 2
"""Why the loop returns."""


class NetRun(NamedTuple):
    """The jobs of one simulation, and what they send.

    Attributes
    ----------
    contention : int
        APART, STATIC or DYNAMIC.
    flows : Flows
        Of the running jobs; their rows are the owners.
    filling : Filling
    slowdown : numpy.ndarray of float64, shape (n,)
        Of each running job with flows, as of the last sharing.
    run_ms : numpy.ndarray of int64, shape (n,)
        Run times on one site, which the grid does not know.
    hopeless_ms : numpy.ndarray of int64, shape (n,)
        From when on no job like this could be placed, whatever becomes free.
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        Filled in: the start and the end of each job; of running ones the end at their present rates.
    length_ms : numpy.ndarray of int64, shape (n,)
        Filled in: how long each job takes on idle links, where it is placed.
    spare_ms : numpy.ndarray of int64, shape (n,)
        How much less that is than by its estimate.
    left, rate, since_ms : numpy.ndarray of int64, shape (n,)
        Work that was left at an instant, and the rate since then (`gridweave.site.kernels.rates`); `NOT_RUNNING` at
        first.
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
    run_ms: npt.NDArray[np.int64]
    hopeless_ms: npt.NDArray[np.int64]
    start_ms: npt.NDArray[np.int64]
    end_ms: npt.NDArray[np.int64]
    length_ms: npt.NDArray[np.int64]
    spare_ms: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    rate: npt.NDArray[np.int64]
    since_ms: npt.NDArray[np.int64]
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
    plan : GridPlan or None
        What is reserved, under conservative backfilling.
    run : NetRun
    change_ms : int
        The call returns before this instant; `NEVER_MS` if the links change no more.

    Returns
    -------
    int
        LINKS_CHANGE; NO_ROOM for more fragments, or in the plan; DONE if nothing is to come that could change anything.
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
        if now_ms >= change_ms:
            return DONE if change_ms == NEVER_MS else LINKS_CHANGE
        if now_ms == NEVER_MS:
            return DONE
        if is_full(state) or not _has_room(state, plan, clock[0], now_ms):
            return NO_ROOM
        if clock[2] == now_ms:
            clock[2] = NEVER_MS
            clock[3] = 1
        _end_jobs(state, plan, run, now_ms)
        while clock[0] < len(jobs) and jobs[clock[0]].submit_ms == now_ms:
            if now_ms < run.hopeless_ms[clock[0]]:
                enqueue(state, clock[0])
            clock[0] += 1
        if run.contention != APART:
            _expect_late_ends(state, plan, run, now_ms)
        if plan is None:
            grid_pass(state, codes, now_ms)
        else:
            grid_plan_pass(state, codes, plan, now_ms)
        _begin_jobs(state, codes.net, run, now_ms)
        if run.contention != APART and clock[3] == 1:
            _share_anew(state, codes.net, run, now_ms)


@kernel_part
def _has_room(state, plan, row, now_ms):
    """Whether the plan, if there is one, has room for the jobs that are submitted at this instant."""
    if plan is None:
        return True
    new = row
    while new < len(state.jobs) and state.jobs[new].submit_ms == now_ms:
        new += 1
    return has_room(state, plan, new - row)


@kernel_part
def _drop_old(run, jobs):
    """Take ends that count no more off the top of the heap."""
    while run.clock[1] > 0 and not _counts(run, run.ends_row[0], run.ends[0]):
        run.clock[1] = pop_end(run.ends, run.ends_row, run.clock[1], jobs)


@kernel_part
def _counts(run, row, end_ms):
    """Whether a job ends at this instant, and has not yet: an end that moves away and back stands in the heap twice."""
    return run.end_ms[row] == end_ms and run.rate[row] != NOT_RUNNING


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
    """Take out the jobs that end now."""
    while run.clock[1] > 0 and run.ends[0] == now_ms:
        ended = run.ends_row[0]
        run.clock[1] = pop_end(run.ends, run.ends_row, run.clock[1], state.jobs)
        if _counts(run, ended, now_ms):
            run.rate[ended] = NOT_RUNNING
            if plan is None:
                grid_job_ended(state, ended)
            else:
                planned_job_ended(state, plan, ended, now_ms)
            if run.contention != APART and state.n_fragments[ended] > 1 and drop_flows(run.flows, ended) > 0:
                # Those that run are not slowed less under static contention.
                run.clock[3] = max(run.clock[3], run.contention == DYNAMIC)


@kernel
def _expect_late_ends(state, plan, run, now_ms):
    """Expect jobs that run past their end by estimate to go on at the rate that they have; if that is 0, at rate 1."""
    while state.counters[0].n_running > 0:
        ending = state.running[row_at(state, FIRST_PLACE)]
        if ending.end_ms > now_ms:
            return
        slot = ending.slot
        left = work_left(run.left[slot], run.rate[slot], run.since_ms[slot], now_ms) + work_of(run.spare_ms[slot])
        end_ms = late_end_ms(left, run.rate[slot], now_ms)
        if plan is None:
            move_end(state, slot, end_ms)
        else:
            planned_end_moved(state, plan, slot, end_ms, now_ms)


@kernel
def _begin_jobs(state, net, run, now_ms):
    """Let the jobs run that the pass has started, at rate 1 so far."""
    for i in range(state.counters[0].n_started):
        row = state.started[i]
        length_ms = net.data_ms[row] + grown_ms(run.run_ms[row], net.factor[row])
        run.start_ms[row] = now_ms
        run.end_ms[row] = now_ms + length_ms
        run.length_ms[row] = length_ms
        run.spare_ms[row] = state.end_ms[row] - run.end_ms[row]
        run.left[row] = work_of(length_ms)
        run.rate[row] = RATE_ONE
        run.since_ms[row] = now_ms
        _push(state, run, row)
        if run.contention != APART and state.n_fragments[row] > 1:
            recall_taken(state, row)
            parts = state.taken, state.counters[0].n_taken
            if add_job_flows(net.paths, run.flows, row, net.communication[row], *parts, net.factor[row]) > 0:
                run.clock[3] = 1


@kernel
def _share_anew(state, net, run, now_ms):
    """Share the links anew; under static contention this counts for the jobs that have just started alone."""
    run.clock[3] = 0
    share_links(net.paths, run.flows, run.filling)
    all_slowdowns(run.flows, run.slowdown)
    last = np.int64(-1)
    for place in range(run.flows.n_flows[0]):
        row = run.flows.owner[place]
        # The flows of a job stand together.
        if row != last and (run.contention == DYNAMIC or run.start_ms[row] == now_ms):
            rate = 0 if run.slowdown[row] == np.inf else rate_of(run.slowdown[row])
            if rate != run.rate[row]:
                _change_rate(state, run, row, rate, now_ms)
        last = row


@kernel
def _change_rate(state, run, row, rate, now_ms):
    """Let a running job go on at another rate; its end moves."""
    run.left[row] = work_left(run.left[row], run.rate[row], run.since_ms[row], now_ms)
    run.rate[row] = rate
    run.since_ms[row] = now_ms
    run.end_ms[row] = min(NEVER_MS, work_done_ms(run.left[row], rate, now_ms))
    _push(state, run, row)

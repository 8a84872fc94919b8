"""Replay a schedule, and record what EASY or conservative backfilling promises its jobs.

No scheduling decisions are made here: jobs start when the schedule starts them. The site's kernels compute the
promises.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.dispatch import PromiseRules, job_ended
from gridweave.site.kernels.planning import keep_promises, occupy_plan
from gridweave.site.kernels.queueing import free_at, may_backfill, shadow_time
from gridweave.site.kernels.state import (
    GIVE_BACK,
    HEAD,
    NEVER_MS,
    NO_LIMITS,
    NO_PLACE,
    REPLAN,
    TAKE,
    Plan,
    SiteState,
    begin,
    drop_started,
    enqueue,
    finish,
    running_place,
)

_CLOCK = np.dtype([(name, np.int64) for name in ("submitted", "ended", "started")], align=True)


class ReplayedSchedule(NamedTuple):
    """A schedule that is being replayed, with one row per job in submit order; rows are also the site's slots.

    Attributes
    ----------
    clock : numpy.ndarray of records, shape (1,)
        Number of jobs that have been ``submitted``, have ``ended`` and have ``started``.
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        Each job ends after it starts and starts no earlier than it is submitted; no node is overused.
    by_start, by_end : numpy.ndarray of int64, shape (n,)
        The rows sorted by start time, and the rows sorted by end time.
    shown_ms : numpy.ndarray of int64, shape (n,)
        Output: the earliest start that each job was promised; `NEVER_MS` if it was promised none.
    """

    clock: npt.NDArray[np.void]
    start_ms: npt.NDArray[np.int64]
    end_ms: npt.NDArray[np.int64]
    by_start: npt.NDArray[np.int64]
    by_end: npt.NDArray[np.int64]
    shown_ms: npt.NDArray[np.int64]


def start_replay(start_ms: npt.NDArray[np.int64], end_ms: npt.NDArray[np.int64]) -> ReplayedSchedule:
    """Prepare a schedule for replay from its beginning."""
    by_start, by_end = (np.argsort(times, kind="stable").astype(np.int64) for times in (start_ms, end_ms))
    return ReplayedSchedule(np.zeros(1, _CLOCK), start_ms, end_ms, by_start, by_end, np.full(len(start_ms), NEVER_MS))


@kernel
def replay(state: SiteState, promises: Plan | None, schedule: ReplayedSchedule, until_ms: Int) -> None:
    """Replay all instants before ``until_ms``.

    Parameters
    ----------
    state : SiteState
        State of the site; its job table must be filled.
    promises : Plan or None
        The plan with which conservative backfilling makes promises; None to record the promises of EASY.
    schedule : ReplayedSchedule
    until_ms : int
    """
    now_ms = _next_instant(state, schedule)
    while now_ms < until_ms:
        take_in(state, promises, schedule, now_ms)
        if promises is None:
            _start_under_easy(state, schedule, now_ms)
        else:
            _start_under_conservative(state, promises, schedule, now_ms)
        now_ms = _next_instant(state, schedule)


@kernel_part
def _next_instant(state: SiteState, schedule: ReplayedSchedule) -> Int:
    """Return the time of the next submission, start or end."""
    clock, now_ms = schedule.clock[0], NEVER_MS
    if clock.submitted < len(schedule.start_ms):
        now_ms = min(now_ms, state.jobs[clock.submitted].submit_ms)
    if clock.ended < len(schedule.by_end):
        now_ms = min(now_ms, schedule.end_ms[schedule.by_end[clock.ended]])
    if clock.started < len(schedule.by_start):
        now_ms = min(now_ms, schedule.start_ms[schedule.by_start[clock.started]])
    return now_ms


@kernel
def take_in(state: SiteState, promises: Plan | None, schedule: ReplayedSchedule, now_ms: Int) -> None:
    """Replay the job ends and submissions at ``now_ms``.

    Parameters
    ----------
    state : SiteState
    promises : Plan or None
    schedule : ReplayedSchedule
        As for `replay`.
    now_ms : int
        All earlier instants have been replayed.
    """
    clock = schedule.clock[0]
    while clock.ended < len(schedule.by_end):
        row = schedule.by_end[clock.ended]
        if schedule.end_ms[row] > now_ms:
            break
        job = state.jobs[row]
        expected_ms = schedule.start_ms[row] + job.estimate_ms
        if promises is None:
            finish(state, running_place(state, expected_ms, job.job_id))
        else:
            job_ended(state, PromiseRules(promises, None), expected_ms, job.job_id, now_ms)
        clock.ended += 1
    while clock.submitted < len(schedule.start_ms) and state.jobs[clock.submitted].submit_ms <= now_ms:
        enqueue(state, clock.submitted)
        clock.submitted += 1
    state.counters[0].n_started = 0
    if promises is not None:
        keep_promises(state, promises, None, None, now_ms)


@kernel_part
def _start_under_easy(state: SiteState, schedule: ReplayedSchedule, now_ms: Int) -> None:
    """Start the jobs that start at ``now_ms``; record the promise to the first job that remains in the queue.

    The promise ignores jobs behind it in the queue, even those that start now.
    """
    counters = state.counters[0]
    head, first = NO_PLACE, counters.n_waiting
    for index in range(counters.n_waiting):
        slot = state.waiting[index]
        if schedule.start_ms[slot] == now_ms:
            begin(state, index, now_ms)
            first = min(first, index)
        elif head == NO_PLACE:
            head = index
            width = state.jobs[slot].width
            shown_ms = now_ms if width <= counters.free else shadow_time(state, width)
            schedule.shown_ms[slot] = min(schedule.shown_ms[slot], shown_ms)
    _drop(state, schedule, first)


@kernel_part
def _start_under_conservative(state: SiteState, promises: Plan, schedule: ReplayedSchedule, now_ms: Int) -> None:
    """Start the jobs due at ``now_ms``; if a job was promised another start time, request new promises for all jobs."""
    counters = state.counters[0]
    first, next_start_ms = counters.n_waiting, NEVER_MS
    for index in range(counters.n_waiting):
        slot = state.waiting[index]
        job = state.jobs[slot]
        promised_ms = job.promised_ms
        schedule.shown_ms[slot] = min(schedule.shown_ms[slot], promised_ms)
        if schedule.start_ms[slot] != now_ms:
            next_start_ms = min(next_start_ms, promised_ms)
            continue
        if promised_ms != now_ms:
            occupy_plan(promises, None, promised_ms, promised_ms + job.estimate_ms, job.width, NO_LIMITS, GIVE_BACK)
            occupy_plan(promises, None, now_ms, now_ms + job.estimate_ms, job.width, NO_LIMITS, TAKE)
            counters.stale = REPLAN
        begin(state, index, now_ms)
        first = min(first, index)
    counters.next_start_ms = next_start_ms  # if it passes, a promise was broken and all promises are renewed
    _drop(state, schedule, first)


@kernel_part
def _drop(state: SiteState, schedule: ReplayedSchedule, first: Int) -> None:
    """Remove the started jobs from the queue."""
    schedule.clock[0].started += state.counters[0].n_started
    if state.counters[0].n_started > 0:
        drop_started(state, max(first, HEAD))


@kernel
def chance_under_easy(
    state: SiteState, schedule: ReplayedSchedule, slot: Int, now_ms: Int
) -> tuple[Int, Int, Int, bool]:
    """Return whether EASY would start a waiting job once the jobs ahead of it in the queue have started.

    Parameters
    ----------
    state : SiteState
        The state after `take_in` for ``now_ms``. It is modified; do not use it afterwards.
    schedule : ReplayedSchedule
    slot : int
        The job's slot.
    now_ms : int

    Returns
    -------
    head : int
        The slot of the first job that is then left in the queue.
    shadow_ms : int
        Time at which the head can start, according to the running jobs' estimates; ``now_ms`` if it fits now.
    extra : int
        The number of nodes left over when the head starts.
    starts : bool
        Whether EASY would start the job.
    """
    head = slot
    for index in range(state.counters[0].n_waiting):
        other = state.waiting[index]
        if other == slot:
            break
        if schedule.start_ms[other] == now_ms:
            begin(state, index, now_ms)
        elif head == slot:
            head = other
    free, width = state.counters[0].free, state.jobs[head].width
    if width <= free:
        return head, now_ms, free - width, head == slot
    shadow_ms = shadow_time(state, width)
    extra = free_at(state, shadow_ms) - width
    return head, shadow_ms, extra, head != slot and may_backfill(state.jobs[slot], now_ms, free, shadow_ms, extra)

"""Play a schedule as it stands, and note what EASY or conservative backfilling promises its jobs on the way.

Nothing is decided here: jobs start when the schedule says. What is promised, the kernels of the sites say.
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


class PlayedSchedule(NamedTuple):
    """A schedule that is played, one row a job, in the order of submission; the rows are the slots of the site.

    Attributes
    ----------
    clock : numpy.ndarray of records, shape (1,)
        How many jobs have been ``submitted``, have ``ended`` and have ``started``.
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        Each end after its start, each start at or after its submission, and never more nodes in use than there are.
    by_start, by_end : numpy.ndarray of int64, shape (n,)
        The rows by their start, and by their end.
    shown_ms : numpy.ndarray of int64, shape (n,)
        Filled in: the earliest start that each job was promised; `NEVER_MS` if it was promised none.
    """

    clock: npt.NDArray[np.void]
    start_ms: npt.NDArray[np.int64]
    end_ms: npt.NDArray[np.int64]
    by_start: npt.NDArray[np.int64]
    by_end: npt.NDArray[np.int64]
    shown_ms: npt.NDArray[np.int64]


def new_played(start_ms: npt.NDArray[np.int64], end_ms: npt.NDArray[np.int64]) -> PlayedSchedule:
    """Return a schedule at its beginning."""
    by_start, by_end = (np.argsort(times, kind="stable").astype(np.int64) for times in (start_ms, end_ms))
    return PlayedSchedule(np.zeros(1, _CLOCK), start_ms, end_ms, by_start, by_end, np.full(len(start_ms), NEVER_MS))


@kernel
def replay(state: SiteState, promises: Plan | None, played: PlayedSchedule, until_ms: Int) -> None:
    """Play all instants before one.

    Parameters
    ----------
    state : SiteState
        Its table of jobs is filled in.
    promises : Plan or None
        For the promises of conservative backfilling; without it those of EASY are noted.
    played : PlayedSchedule
    until_ms : int
    """
    now_ms = _next_instant(state, played)
    while now_ms < until_ms:
        take_in(state, promises, played, now_ms)
        if promises is None:
            _start_under_easy(state, played, now_ms)
        else:
            _start_under_conservative(state, promises, played, now_ms)
        now_ms = _next_instant(state, played)


@kernel_part
def _next_instant(state: SiteState, played: PlayedSchedule) -> Int:
    """Return when the next job is submitted, starts or ends."""
    clock, now_ms = played.clock[0], NEVER_MS
    if clock.submitted < len(played.start_ms):
        now_ms = min(now_ms, state.jobs[clock.submitted].submit_ms)
    if clock.ended < len(played.by_end):
        now_ms = min(now_ms, played.end_ms[played.by_end[clock.ended]])
    if clock.started < len(played.by_start):
        now_ms = min(now_ms, played.start_ms[played.by_start[clock.started]])
    return now_ms


@kernel
def take_in(state: SiteState, promises: Plan | None, played: PlayedSchedule, now_ms: Int) -> None:
    """Play the ends and the submissions of an instant.

    Parameters
    ----------
    state : SiteState
    promises : Plan or None
    played : PlayedSchedule
        As for `replay`.
    now_ms : int
        Nothing that lies before is left to play.
    """
    clock = played.clock[0]
    while clock.ended < len(played.by_end):
        row = played.by_end[clock.ended]
        if played.end_ms[row] > now_ms:
            break
        job = state.jobs[row]
        expected_ms = played.start_ms[row] + job.estimate_ms
        if promises is None:
            finish(state, running_place(state, expected_ms, job.job_id))
        else:
            job_ended(state, PromiseRules(promises), expected_ms, job.job_id, now_ms)
        clock.ended += 1
    while clock.submitted < len(played.start_ms) and state.jobs[clock.submitted].submit_ms <= now_ms:
        enqueue(state, clock.submitted)
        clock.submitted += 1
    state.counters[0].n_started = 0
    if promises is not None:
        keep_promises(state, promises, None, now_ms)


@kernel_part
def _start_under_easy(state: SiteState, played: PlayedSchedule, now_ms: Int) -> None:
    """Start the jobs of an instant; what is promised to the first that waits does not reckon with those behind it."""
    counters = state.counters[0]
    head, first = NO_PLACE, counters.n_waiting
    for place in range(counters.n_waiting):
        slot = state.waiting[place]
        if played.start_ms[slot] == now_ms:
            begin(state, place, now_ms)
            first = min(first, place)
        elif head == NO_PLACE:
            head = place
            width = state.jobs[slot].width
            shown_ms = now_ms if width <= counters.free else shadow_time(state, width)
            played.shown_ms[slot] = min(played.shown_ms[slot], shown_ms)
    _drop(state, played, first)


@kernel_part
def _start_under_conservative(state: SiteState, promises: Plan, played: PlayedSchedule, now_ms: Int) -> None:
    """Start the jobs of an instant; if one was promised another start, all promises are to be made anew."""
    counters = state.counters[0]
    first, next_start_ms = counters.n_waiting, NEVER_MS
    for place in range(counters.n_waiting):
        slot = state.waiting[place]
        job = state.jobs[slot]
        promised_ms = job.promised_ms
        played.shown_ms[slot] = min(played.shown_ms[slot], promised_ms)
        if played.start_ms[slot] != now_ms:
            next_start_ms = min(next_start_ms, promised_ms)
            continue
        if promised_ms != now_ms:
            occupy_plan(promises, None, promised_ms, promised_ms + job.estimate_ms, job.width, NO_LIMITS, GIVE_BACK)
            occupy_plan(promises, None, now_ms, now_ms + job.estimate_ms, job.width, NO_LIMITS, TAKE)
            counters.stale = REPLAN
        begin(state, place, now_ms)
        first = min(first, place)
    counters.next_start_ms = next_start_ms  # if that passes, a promise was broken, and others take its place
    _drop(state, played, first)


@kernel_part
def _drop(state: SiteState, played: PlayedSchedule, first: Int) -> None:
    """Take the jobs that were started out of the queue."""
    played.clock[0].started += state.counters[0].n_started
    if state.counters[0].n_started > 0:
        drop_started(state, max(first, HEAD))


@kernel
def chance_under_easy(state: SiteState, played: PlayedSchedule, slot: Int, now_ms: Int) -> tuple[Int, Int, Int, bool]:
    """Say what EASY sees of a waiting job, once those have started that stand before it and do start now.

    Parameters
    ----------
    state : SiteState
        After `take_in` of this instant; it is of no further use.
    played : PlayedSchedule
    slot : int
        Of the job.
    now_ms : int

    Returns
    -------
    head : int
        The slot of the first in the queue then.
    shadow_ms : int
        When the head can start by the estimates of the running jobs; now if it fits.
    extra : int
        The nodes that are to spare then.
    starts : bool
        Whether EASY starts the job.
    """
    head = slot
    for place in range(state.counters[0].n_waiting):
        other = state.waiting[place]
        if other == slot:
            break
        if played.start_ms[other] == now_ms:
            begin(state, place, now_ms)
        elif head == slot:
            head = other
    free, width = state.counters[0].free, state.jobs[head].width
    if width <= free:
        return head, now_ms, free - width, head == slot
    shadow_ms = shadow_time(state, width)
    extra = free_at(state, shadow_ms) - width
    return head, shadow_ms, extra, head != slot and may_backfill(state.jobs[slot], now_ms, free, shadow_ms, extra)

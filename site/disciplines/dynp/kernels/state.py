"""The candidates of a dynP site, and the record of its decisions.

Each candidate is a planning site that shares the running jobs of the real site, but has its own queue order, planned
starts and profiles. The planning kernels can therefore make its plan, and recompute only the parts that may have
changed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.limits import LimitArrays
from gridweave.site.kernels.state import (
    COUNTERS,
    JOB,
    NEVER_MS,
    REPLAN,
    UNPLACED_MS,
    Plan,
    SiteState,
    dequeue,
    enqueue,
)

SELF_TUNING, BOUNDS, CALENDAR = 0, 1, 2
"""How a policy is chosen: by comparing plans, by the average estimate, or by the time of the week."""

SIMPLE, ADVANCED, PREFERRED = 0, 1, 2
"""The deciders, i.e. the rules that choose a candidate by comparing the candidates' plans."""

ART, ARTWA, ARTWW, MAKESPAN, SLD, SLDWW, PPSLD_60 = 0, 1, 2, 3, 4, 5, 6
"""The self-tuning metrics."""

SUBMITTED, ENDED, STARTED = 1, 2, 4
"""The events that can cause a tuning step, as bits."""

NO_CANDIDATE = np.int64(-1)
"""Value used instead of a candidate's index if there is no candidate."""

N_CASES = 18
"""Number of cases of Table 4.3, in `gridweave.site.disciplines.dynp.kernels.deciding.CASES`."""

TUNING = np.dtype(
    [
        ("active", np.int64),
        ("due", np.int64),
        ("since_ms", np.int64),
        ("n_waiting", np.int64),
        ("decisions", np.int64),
        ("n_logged", np.int64),
        ("arrivals", np.int64),
    ],
    align=True,
)
"""The active candidate, the events since the last pass (as bits), the time when the candidate became active, and the
numbers of waiting jobs, decisions, logged switches and jobs that have arrived so far."""

SWITCH = np.dtype([("when_ms", np.int64), ("candidate", np.int64)], align=True)
"""A log entry: the time of a switch, and the candidate that became active."""


class TuningCodes(NamedTuple):
    """The options of a dynP site, encoded for the kernels.

    Attributes
    ----------
    way : int
        `SELF_TUNING`, `BOUNDS` or `CALENDAR`.
    decider : int
        `SIMPLE`, `ADVANCED` or `PREFERRED`.
    preferred : int
        The preferred candidate, or `NO_CANDIDATE`.
    metric : int
        The self-tuning metric: `ART`, `ARTWA` and so on.
    follows : int
        The events that cause a tuning step: bits of `SUBMITTED`, `ENDED`, `STARTED`.
    keeps : float
        Factor by which the active candidate's value is multiplied: 1 minus the slackness.
    first_jobs : int
        The metric covers only this many waiting jobs, in order of submission.
    within_ms : int
        The metric covers only jobs whose planned start is at most this far from now.
    least_waiting : int
        Minimum number of waiting jobs for a tuning step.
    unsorted : int
        With ``reading="thesis"``, the candidate that leaves the list of waiting jobs unsorted; else `NO_CANDIDATE`.
    lower_ms, upper_ms : float
        The bounds for the average estimate.
    """

    way: int
    decider: int
    preferred: int
    metric: int
    follows: int
    keeps: float
    first_jobs: int
    within_ms: int
    least_waiting: int
    unsorted: int
    lower_ms: float
    upper_ms: float


class Candidates(NamedTuple):
    """The arrays of each candidate's `SiteState` and `Plan`, one row per candidate.

    Attributes
    ----------
    counters : numpy.ndarray of COUNTERS, shape (candidates, 1)
    jobs : numpy.ndarray of JOB, shape (candidates, slots)
    waiting : numpy.ndarray of int64, shape (candidates, slots)
    step_ms, step_free : numpy.ndarray of int64, shape (candidates, profiles, capacity)
    n_steps : numpy.ndarray of int64, shape (candidates, profiles)
    """

    counters: npt.NDArray[np.void]
    jobs: npt.NDArray[np.void]
    waiting: npt.NDArray[np.int64]
    step_ms: npt.NDArray[np.int64]
    step_free: npt.NDArray[np.int64]
    n_steps: npt.NDArray[np.int64]


class TuningMemory(NamedTuple):
    """The record of a dynP site's decisions.

    Attributes
    ----------
    now : numpy.ndarray of TUNING, shape (1,)
    arrived : numpy.ndarray of int64, shape (slots,)
        Slots of the waiting jobs in order of arrival.
    listed : numpy.ndarray of int64, shape (slots,)
        The same slots in the order of the last sort; used with ``reading="thesis"``.
    started_by : numpy.ndarray of int64, shape (slots,)
        The candidate that was active when the job in a slot started; `NO_CANDIDATE` before the start.
    values : numpy.ndarray of float64, shape (candidates,)
        The value of each candidate's plan in the last decision.
    active_ms, switches, started : numpy.ndarray of int64, shape (candidates,)
        For each candidate: its active time up to the last switch, and its numbers of switches and job starts.
    cases : numpy.ndarray of int64, shape (N_CASES,)
        Number of times that each case of Table 4.3 occurred; all 0 unless there are three candidates.
    log : numpy.ndarray of SWITCH, shape (capacity,)
        The most recent switches, as a ring buffer.
    """

    now: npt.NDArray[np.void]
    arrived: npt.NDArray[np.int64]
    listed: npt.NDArray[np.int64]
    started_by: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    active_ms: npt.NDArray[np.int64]
    switches: npt.NDArray[np.int64]
    started: npt.NDArray[np.int64]
    cases: npt.NDArray[np.int64]
    log: npt.NDArray[np.void]


class Calendar(NamedTuple):
    """The calendar: spans of the week and their candidates; if spans overlap, the first one applies.

    Attributes
    ----------
    from_ms, to_ms : numpy.ndarray of int64, shape (spans,)
        Milliseconds since Monday 00:00 local time.
    candidate : numpy.ndarray of int64, shape (spans,)
    """

    from_ms: npt.NDArray[np.int64]
    to_ms: npt.NDArray[np.int64]
    candidate: npt.NDArray[np.int64]


class Tuning(NamedTuple):
    """All data that the kernels of a dynP site use, except its `SiteState`.

    Attributes
    ----------
    plan : Plan
        The plan of the active candidate.
    limits : LimitArrays
    codes : TuningCodes
    calendar : Calendar
    candidates : Candidates
    memory : TuningMemory
    """

    plan: Plan
    limits: LimitArrays
    codes: TuningCodes
    calendar: Calendar
    candidates: Candidates
    memory: TuningMemory


def empty_candidates(state: SiteState, plan: Plan, count: int) -> Candidates:
    """Return ``count`` candidates for an idle site, with the same number of slots as the site."""
    slots, (profiles, steps) = len(state.jobs), plan.step_ms.shape
    candidates = Candidates(
        counters=np.zeros((count, 1), COUNTERS),
        jobs=np.zeros((count, slots), JOB),
        waiting=np.zeros((count, slots), np.int64),
        step_ms=np.zeros((count, profiles, steps), np.int64),
        step_free=np.zeros((count, profiles, steps), np.int64),
        n_steps=np.zeros((count, profiles), np.int64),
    )
    candidates.counters[:] = state.counters
    return candidates


def empty_memory(slots: int, count: int, log: int) -> TuningMemory:
    """Return the record of a new site, which has not made any decisions yet.

    Parameters
    ----------
    slots : int
        Maximum number of jobs that are waiting or running at the same time.
    count : int
        Number of candidates.
    log : int
        Number of switches to keep.
    """
    return TuningMemory(
        now=np.zeros(1, TUNING),
        arrived=np.zeros(slots, np.int64),
        listed=np.zeros(slots, np.int64),
        started_by=np.full(slots, NO_CANDIDATE),
        values=np.zeros(count),
        active_ms=np.zeros(count, np.int64),
        switches=np.zeros(count, np.int64),
        started=np.zeros(count, np.int64),
        cases=np.zeros(N_CASES, np.int64),
        log=np.zeros(log, SWITCH),
    )


@kernel_part
def site_of(state: SiteState, candidates: Candidates, c: Int) -> SiteState:
    """Return a candidate as a site that shares the real site's running jobs; update the candidate's counters."""
    counters = candidates.counters[c, 0]
    counters.n_running = state.counters[0].n_running
    counters.n_reservations = state.counters[0].n_reservations
    return SiteState(
        candidates.counters[c],
        candidates.jobs[c],
        candidates.waiting[c],
        state.running,
        state.started,
        state.blocks,
        state.shortest_ms,
    )


@kernel_part
def plan_of(plan: Plan, candidates: Candidates, c: Int) -> Plan:
    """Return the plan of a candidate."""
    return Plan(candidates.step_ms[c], candidates.step_free[c], candidates.n_steps[c], plan.total, plan.reservations)


@kernel
def add_to_candidates(state: SiteState, tuning: Tuning, slot: Int) -> None:
    """Add a job to the queues of all candidates; the caller must have filled in the job's slot in their tables.

    Also copy the job's key from the active candidate to the site's own table.
    """
    now = tuning.memory.now[0]
    state.jobs[slot].key = tuning.candidates.jobs[now.active, slot].key
    for c in range(len(tuning.candidates.jobs)):
        enqueue(site_of(state, tuning.candidates, c), slot)
    tuning.memory.arrived[now.n_waiting] = slot
    tuning.memory.listed[now.n_waiting] = slot
    tuning.memory.started_by[slot] = NO_CANDIDATE
    now.n_waiting += 1
    now.arrivals += 1
    now.due |= SUBMITTED


@kernel
def leave_candidates(state: SiteState, tuning: Tuning, slot: Int) -> None:
    """Remove a job from the queues of all candidates."""
    now = tuning.memory.now[0]
    for c in range(len(tuning.candidates.jobs)):
        site = site_of(state, tuning.candidates, c)
        dequeue(site, place_in(site.waiting, site.counters[0].n_waiting, slot))
    _drop(tuning.memory.arrived, now.n_waiting, slot)
    _drop(tuning.memory.listed, now.n_waiting, slot)
    now.n_waiting -= 1


@kernel_part
def place_in(slots: npt.NDArray[np.int64], count: Int, slot: Int) -> Int:
    """Return the index of a slot in ``slots``, or ``count`` if the slot is not among the first ``count`` entries."""
    place = 0
    while place < count and slots[place] != slot:
        place += 1
    return place


@kernel
def _drop(slots: npt.NDArray[np.int64], count: Int, slot: Int) -> None:
    for place in range(place_in(slots, count, slot), count - 1):
        slots[place] = slots[place + 1]


@kernel
def make_stale(tuning: Tuning) -> None:
    """Mark the plans of all candidates as stale, so that the next update makes new plans from scratch."""
    for c in range(len(tuning.candidates.jobs)):
        tuning.candidates.counters[c, 0].stale = REPLAN


@kernel
def follow_start(state: SiteState, tuning: Tuning, slot: Int, now_ms: Int) -> None:
    """Record that a job has started, and remove it from the queues of the candidates.

    A candidate's plan becomes stale unless the job starts now in this plan, too.
    """
    memory = tuning.memory
    active = memory.now[0].active
    memory.started[active] += 1
    memory.started_by[slot] = active
    for c in range(len(tuning.candidates.jobs)):
        if tuning.candidates.jobs[c, slot].promised_ms != now_ms:
            tuning.candidates.counters[c, 0].stale = REPLAN
    leave_candidates(state, tuning, slot)


@kernel
def note_next_starts(tuning: Tuning) -> None:
    """Record the next planned start in each candidate's plan; the plan is stale after this time."""
    candidates = tuning.candidates
    for c in range(len(candidates.jobs)):
        counters = candidates.counters[c, 0]
        next_ms = NEVER_MS
        for place in range(counters.n_waiting):
            promised_ms = candidates.jobs[c, candidates.waiting[c, place]].promised_ms
            if promised_ms != UNPLACED_MS:
                next_ms = min(next_ms, promised_ms)
        counters.next_start_ms = next_ms

"""What a self-tuning site keeps beside its state: its candidates, and what came of them.

A candidate is a planning site of its own that sees the running jobs of the real one: it has its own order of the
waiting jobs, its own planned starts and its own profiles. So the kernels of planning make its plan, and make no part of
it anew that cannot have changed.
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
"""How a policy is chosen: by the plans, by the average estimate, or by the time of the week."""

SIMPLE, ADVANCED, PREFERRED = 0, 1, 2
"""The deciders."""

ART, ARTWA, ARTWW, MAKESPAN, SLD, SLDWW, PPSLD_60 = 0, 1, 2, 3, 4, 5, 6
"""The self-tuning metrics."""

SUBMITTED, ENDED, STARTED = 1, 2, 4
"""What a tuning step follows, as bits."""

NO_CANDIDATE = np.int64(-1)
"""Stands for a candidate where there is none."""

N_CASES = 18
"""Cases of Table 4.3: `gridweave.site.disciplines.dynp.kernels.deciding.CASES`."""

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
"""The candidate in force, what has happened since the last tuning step (bits), since when the candidate is in force,
how many jobs wait, how many decisions there were, how many switches were logged, and how many jobs have ever come."""

SWITCH = np.dtype([("when_ms", np.int64), ("candidate", np.int64)], align=True)
"""A switch to a candidate."""


class TuningCodes(NamedTuple):
    """The options of a self-tuning site as kernels read them.

    Attributes
    ----------
    way : int
        `SELF_TUNING`, `BOUNDS` or `CALENDAR`.
    decider : int
        `SIMPLE`, `ADVANCED` or `PREFERRED`.
    preferred : int
        The candidate that is preferred, or `NO_CANDIDATE`.
    metric : int
        `ART` and so on.
    follows : int
        After what there is a tuning step: bits of `SUBMITTED`, `ENDED`, `STARTED`.
    keeps : float
        The part of its own value that the candidate in force counts with: 1 less the slackness.
    first_jobs : int
        Only so many waiting jobs count, those that were submitted first.
    within_ms : int
        Only jobs count that are planned to start within this time.
    least_waiting : int
        With fewer waiting jobs there is no tuning step.
    unsorted : int
        The candidate for which the list of waiting jobs is not sorted, as in the thesis; else `NO_CANDIDATE`.
    lower_ms, upper_ms : float
        The bounds of the average estimate.
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
    """The candidates, one a row: what `SiteState` and `Plan` have of each.

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
    """What a self-tuning site remembers.

    Attributes
    ----------
    now : numpy.ndarray of TUNING, shape (1,)
    arrived : numpy.ndarray of int64, shape (slots,)
        Slots of the waiting jobs in the order in which they came.
    listed : numpy.ndarray of int64, shape (slots,)
        The same slots in the order in which the last sort left them; for the reading ``thesis``.
    started_by : numpy.ndarray of int64, shape (slots,)
        The candidate that was in force when the job of a slot started; `NO_CANDIDATE` before.
    values : numpy.ndarray of float64, shape (candidates,)
        What each candidate's plan was worth in the last decision.
    active_ms, switches, started : numpy.ndarray of int64, shape (candidates,)
        How long each was in force until the last switch, how often it came into force, and how many jobs it started.
    cases : numpy.ndarray of int64, shape (N_CASES,)
        How often each case of Table 4.3 was met, where there are its three policies.
    log : numpy.ndarray of SWITCH, shape (capacity,)
        The last switches, as a ring.
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
    """Which candidate is in force when, under the calendar: the first span that holds a time decides.

    Attributes
    ----------
    from_ms, to_ms : numpy.ndarray of int64, shape (spans,)
        Within the week, from Monday 00:00 local time.
    candidate : numpy.ndarray of int64, shape (spans,)
    """

    from_ms: npt.NDArray[np.int64]
    to_ms: npt.NDArray[np.int64]
    candidate: npt.NDArray[np.int64]


class Tuning(NamedTuple):
    """What a self-tuning site works with.

    Attributes
    ----------
    plan : Plan
        That of the candidate in force.
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
    """Return so many candidates of an idle site, with room for all that the site has room for."""
    slots, (profiles, steps) = len(state.jobs), plan.step_ms.shape
    found = Candidates(
        counters=np.zeros((count, 1), COUNTERS),
        jobs=np.zeros((count, slots), JOB),
        waiting=np.zeros((count, slots), np.int64),
        step_ms=np.zeros((count, profiles, steps), np.int64),
        step_free=np.zeros((count, profiles, steps), np.int64),
        n_steps=np.zeros((count, profiles), np.int64),
    )
    found.counters[:] = state.counters
    return found


def empty_memory(slots: int, count: int, log: int) -> TuningMemory:
    """Return the memory of a site that has done nothing yet.

    Parameters
    ----------
    slots : int
        Jobs that may wait or run at one time.
    count : int
        Candidates.
    log : int
        Switches that are kept.
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
    """Return a candidate as a site: it shares the running jobs with the real one, and learns how many they are."""
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
def tell_candidates(state: SiteState, tuning: Tuning, slot: Int) -> None:
    """Put the job of a slot into the queues of all candidates, in whose tables it is filled in.

    Its key for the site's own queue is that of the candidate in force.
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
    """Take the job of a slot out of the queues of all candidates."""
    now = tuning.memory.now[0]
    for c in range(len(tuning.candidates.jobs)):
        site = site_of(state, tuning.candidates, c)
        dequeue(site, place_in(site.waiting, site.counters[0].n_waiting, slot))
    _drop(tuning.memory.arrived, now.n_waiting, slot)
    _drop(tuning.memory.listed, now.n_waiting, slot)
    now.n_waiting -= 1


@kernel_part
def place_in(slots: npt.NDArray[np.int64], count: Int, slot: Int) -> Int:
    """Return where a slot stands, which is among them."""
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
    """Have the plans of all candidates be made anew from the first job on when they are next asked for."""
    for c in range(len(tuning.candidates.jobs)):
        tuning.candidates.counters[c, 0].stale = REPLAN


@kernel
def follow_start(state: SiteState, tuning: Tuning, slot: Int, now_ms: Int) -> None:
    """Have the candidates see that the job of a slot has started; a plan that had it start now stays as it is."""
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
    """Note the next planned start of each candidate: once that has passed, its plan is not to be kept."""
    candidates = tuning.candidates
    for c in range(len(candidates.jobs)):
        counters = candidates.counters[c, 0]
        next_ms = NEVER_MS
        for place in range(counters.n_waiting):
            promised_ms = candidates.jobs[c, candidates.waiting[c, place]].promised_ms
            if promised_ms != UNPLACED_MS:
                next_ms = min(next_ms, promised_ms)
        counters.next_start_ms = next_ms

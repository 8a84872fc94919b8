"""Evaluate the plans of the candidates, and choose a candidate (Streit, sections 4.2 to 4.5 and 5.1.3)."""

from __future__ import annotations

from gridweave.jit import Floats, Int, kernel, kernel_part
from gridweave.site.disciplines.dynp.kernels.state import (
    ADVANCED,
    ART,
    ARTWA,
    ARTWW,
    MAKESPAN,
    PPSLD_60,
    PREFERRED,
    SLD,
    SLDWW,
    Calendar,
    Candidates,
    TuningCodes,
    TuningMemory,
)
from gridweave.site.kernels.limits import WeekClock, of_week_at
from gridweave.site.kernels.state import NEVER_MS, SiteState

CASES = ("1", "2", "3", "4a", "4b", "4c", "5", "6a", "6b", "6c", "7", "8a", "8b", "8c", "9", "10a", "10b", "10c")
"""The cases of Table 4.3. Cases 5, 7 and 9 never occur: cases 4b, 2 and 3 are tested first and include them."""

SAME = 1e-12
"""Relative difference up to which two values are considered equal, to allow for rounding errors in the sums."""

NO_VALUE = 1e300
"""The value of a plan in which the metric covers no job; larger than any other value."""

_MINUTE_MS = 60_000.0


@kernel
def worth(candidates: Candidates, c: Int, memory: TuningMemory, codes: TuningCodes, now_ms: Int) -> float:
    """Return the value of a candidate's plan under the self-tuning metric; lower is better.

    Parameters
    ----------
    candidates : Candidates
        All waiting jobs must have planned starts.
    c : int
        The candidate.
    memory : TuningMemory
    codes : TuningCodes
    now_ms : int

    Returns
    -------
    float
        In ms for response times and makespan, a ratio for slowdowns; `NO_VALUE` if it covers no job. Jobs are summed in
        order of arrival, so that rounding is the same for all candidates.
    """
    total, weights = 0.0, 0.0
    last_ms = now_ms
    for i in range(min(memory.now[0].n_waiting, codes.first_jobs)):
        job = candidates.jobs[c, memory.arrived[i]]
        # A job that is wider than the nodes in service has no start in any plan.
        if job.promised_ms == NEVER_MS or job.promised_ms - now_ms > codes.within_ms:
            continue
        end_ms = job.promised_ms + job.estimate_ms
        last_ms = max(last_ms, end_ms)
        weight = _weight(codes.metric, job.width, job.estimate_ms)
        total += weight * _cost(codes.metric, job.width, job.estimate_ms, end_ms - job.submit_ms)
        weights += weight
    if weights == 0:
        return NO_VALUE
    return float(last_ms - now_ms) if codes.metric == MAKESPAN else total / weights


@kernel_part
def _weight(metric: Int, width: Int, estimate_ms: Int) -> float:
    if metric in (ARTWW, SLDWW):
        return float(width)
    return float(width) * estimate_ms if metric == ARTWA else 1.0


@kernel_part
def _cost(metric: Int, width: Int, estimate_ms: Int, response_ms: Int) -> float:
    if metric in (ART, ARTWA, ARTWW):
        return float(response_ms)
    if metric in (SLD, SLDWW):
        return float(response_ms) / estimate_ms
    if metric == PPSLD_60:
        return max(float(response_ms) / (width * max(float(estimate_ms), _MINUTE_MS)), 1.0)
    return 0.0


@kernel_part
def same(value: float, other: float) -> bool:
    """Whether two values are equal up to rounding errors."""
    return value == other or abs(value - other) <= SAME * max(abs(value), abs(other))


@kernel
def decide(values: Floats, active: Int, codes: TuningCodes) -> Int:
    """Return the candidate that the decider chooses.

    Parameters
    ----------
    values : numpy.ndarray of float64, shape (candidates,)
        The value of each candidate's plan (lower is better), with the slackness already deducted from the active
        candidate's value.
    active : int
        The active candidate.
    codes : TuningCodes

    Notes
    -----
    The simple decider chooses the first of the best candidates (Example 4.1: FCFS before SJF before LJF). The advanced
    decider keeps the active candidate if it is among the best, and otherwise chooses the first of them (Table 4.3). The
    preferred decider chooses the preferred candidate if it is among the best, and otherwise decides like the advanced
    decider.
    """
    best = 0
    for c in range(1, len(values)):
        if values[c] < values[best]:
            best = c
    if codes.decider == PREFERRED and same(values[codes.preferred], values[best]):
        return codes.preferred
    if codes.decider in (ADVANCED, PREFERRED) and same(values[active], values[best]):
        return active
    first = 0
    while not same(values[first], values[best]):
        first += 1
    return first


@kernel
def case_of(values: Floats, active: Int) -> Int:
    """Return the case of Table 4.3 for the values of FCFS, SJF and LJF, as an index into `CASES`.

    Parameters
    ----------
    values : numpy.ndarray of float64, shape (3,)
    active : int
        The active candidate.
    """
    fcfs, sjf, ljf = values[0], values[1], values[2]
    fcfs_sjf, fcfs_ljf, sjf_ljf = same(fcfs, sjf), same(fcfs, ljf), same(sjf, ljf)
    if fcfs_sjf and sjf_ljf:
        return 0
    if not fcfs_sjf and not sjf_ljf and sjf < fcfs and sjf < ljf:
        return 1
    if not fcfs_sjf and not fcfs_ljf and fcfs < sjf and fcfs < ljf:
        return 2
    if not fcfs_ljf and not sjf_ljf and ljf < fcfs and ljf < sjf:
        return 4 if fcfs_sjf else (3 if fcfs < sjf else 5)
    if fcfs_sjf:
        return 7 + active
    return 11 + active if fcfs_ljf else 15 + active


@kernel
def by_bounds(site: SiteState, codes: TuningCodes) -> Int:
    """Return the candidate selected by the average estimate of the waiting jobs (Streit, equation 4.1).

    The choice is SJF (1) up to ``lower_ms``, FCFS (0) up to ``upper_ms``, and LJF (2) above.
    """
    n_waiting = site.counters[0].n_waiting
    total = 0.0
    for place in range(n_waiting):
        total += site.jobs[site.waiting[place]].estimate_ms
    average_ms = total / n_waiting
    if average_ms <= codes.lower_ms:
        return 1
    return 0 if average_ms <= codes.upper_ms else 2


@kernel
def by_calendar(calendar: Calendar, week: WeekClock, now_ms: Int) -> Int:
    """Return the candidate of the first span that contains the current time of the week, or candidate 0."""
    of_week_ms = of_week_at(week, now_ms)
    for k in range(len(calendar.candidate)):
        if calendar.from_ms[k] <= of_week_ms < calendar.to_ms[k]:
            return calendar.candidate[k]
    return 0

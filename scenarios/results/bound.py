"""Metrics based on jobs' CPU needs, and a lower bound on the maximum stretch (docs/fractional.md, "The bound").

No schedule has a maximum stretch below the bound. Source: Stillwell, Vivien and Casanova on dynamic fractional resource
scheduling, section 3, Theorem 1. The theorem assumes known run times, unlimited memory, and tasks that move at no cost.
A stretch gives each job a deadline; a binary search finds the lowest stretch with which all jobs can meet theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gridweave.errors import InputError, check_known
from gridweave.scenarios.results.kernels.flow import WorkFlow, is_feasible
from gridweave.scenarios.traces.text import FloatArray
from gridweave.scenarios.workload.needs import cpu_needs, needs_of
from gridweave.scenarios.workload.table import MS_PER_S, BoolArray, IntArray, Workload
from gridweave.site.kernels.parts import UNIT, parts_of_node

METHODS = ("flow", "lp")

STEPS = 1_000
"""Steps of the binary search per unit of stretch: the bound is a multiple of 0.001."""

STRETCH_BOUND_MS = 10 * MS_PER_S
"""The bounded stretch rounds shorter times up to this value (Stillwell, section 2.2)."""

MAX_ARCS = 100_000_000
"""Maximum number of arcs, one per job and interval in which the job may run; this many arcs take three gigabytes."""


class BoundedJobs(NamedTuple):
    """The jobs' submit times, run times and total CPU needs; a job's need is summed over its tasks."""

    submit_ms: IntArray
    run_ms: IntArray
    weight: IntArray


def stretch_bound(workload: Workload, nodes: int, *, method: str = "flow") -> float:
    """Return a lower bound on the maximum stretch of every schedule.

    Parameters
    ----------
    workload : Workload
        A job's width is its number of tasks. The column ``cpu_need`` has their CPU needs, by default a whole node each.
    nodes : int
    method : {"flow", "lp"}
        How to test a stretch: with an integer maximum flow, or by solving Linear System (1) with HiGHS.

    Returns
    -------
    float
        At least 1, a multiple of 0.001. The lowest possible maximum stretch is at most 0.001 higher.

    Raises
    ------
    InputError
        If the workload is empty, or too large for the available memory.
    OptionError
        If the method is unknown.

    Examples
    --------
    Two one-minute jobs are submitted to one node at the same time, so one of them takes at least two minutes:

    >>> jobs = Workload(job_id=[1, 2], submit_ms=[0, 0], width=[1, 1], estimate_ms=[60_000] * 2, run_ms=[60_000] * 2)
    >>> stretch_bound(jobs, 1), stretch_bound(jobs, 1, method="lp"), stretch_bound(jobs, 2)
    (1.999, 1.999, 1.0)
    """
    check_known("method", method, METHODS)
    if not len(workload):
        raise InputError(f"{workload.name}: has no jobs; the stretch needs at least 1")
    jobs = _jobs_of(workload)
    feasible = _flow_feasible if method == "flow" else _lp_feasible
    if feasible(jobs, nodes, STEPS):
        return 1.0
    low, high = STEPS, 2 * STEPS
    while not feasible(jobs, nodes, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if feasible(jobs, nodes, middle) else (middle, high)
    return low / STEPS


def _jobs_of(workload: Workload) -> BoundedJobs:
    groups = needs_of(workload)
    need = np.zeros(len(workload), np.int64)
    np.add.at(need, groups.row, parts_of_node(groups.cpu) * groups.tasks)
    return BoundedJobs(workload.submit_ms, workload.run_ms, need)


class _Intervals(NamedTuple):
    """The intervals between release dates and deadlines, and the jobs in order of deadline, each with its intervals."""

    jobs: BoundedJobs
    length_ms: IntArray
    first: IntArray
    last: IntArray


def _intervals(jobs: BoundedJobs, stretch: int) -> _Intervals:
    """Divide time into intervals for a stretch, given in thousandths; round deadlines up to whole milliseconds."""
    # Rounding up is safe: later deadlines can only lower the bound.
    allowed_ms = -(-stretch * np.maximum(jobs.run_ms, STRETCH_BOUND_MS) // STEPS)
    due_ms = jobs.submit_ms + allowed_ms
    order = np.argsort(due_ms, kind="stable")
    jobs, due_ms = BoundedJobs._make(column[order] for column in jobs), due_ms[order]
    borders = np.unique(np.concatenate([jobs.submit_ms, due_ms]))
    first, last = np.searchsorted(borders, jobs.submit_ms), np.searchsorted(borders, due_ms)
    return _Intervals(jobs, np.diff(borders), first.astype(np.int64), last.astype(np.int64))


def _flow_feasible(jobs: BoundedJobs, nodes: int, stretch: int) -> bool:
    parts = _intervals(jobs, stretch)
    jobs = parts.jobs
    n_arcs = int((parts.last - parts.first).sum())
    if n_arcs > MAX_ARCS:
        problem = f"the bound needs {n_arcs:,} arcs from jobs to intervals, above {MAX_ARCS:,}; use a part of the trace"
        raise InputError(problem)
    scale = math.gcd(int(np.gcd.reduce(jobs.weight)), nodes * UNIT)
    weight, capacity = jobs.weight // scale, nodes * UNIT // scale
    _check_size(jobs, weight, capacity, parts)
    n, m = len(weight), len(parts.length_ms)
    arcs = np.concatenate([[0], np.cumsum(parts.last - parts.first)]).astype(np.int64)
    levels: list[IntArray] = [np.zeros(size, np.int64) for size in (n, m, n, m, n, n, n)]
    flow = WorkFlow(
        weight,
        weight * jobs.run_ms,
        parts.first,
        arcs,
        parts.length_ms,
        capacity * parts.length_ms,
        np.zeros(n_arcs, np.int64),
        np.zeros(n_arcs, np.int32),
        np.zeros(n_arcs, np.int32),
        np.zeros(m + 1, np.int64),
        *levels,
    )
    return bool(is_feasible(flow))


def _check_size(jobs: BoundedJobs, weight: IntArray, capacity: int, parts: _Intervals) -> None:
    """Raise InputError if the jobs' total work, or the work possible over the whole time, does not fit in 64 bits."""
    largest = max(float(weight.max()), float(capacity)) * float(parts.length_ms.sum())
    if max(largest, float(weight.astype(np.float64) @ jobs.run_ms)) >= 2**62:
        raise InputError("the work of these jobs does not fit into 64 bits; use a part of the trace")


def _lp_feasible(jobs: BoundedJobs, nodes: int, stretch: int) -> bool:
    """Whether Linear System (1) has a solution; its variables are the fractions of each job done in each interval.

    HiGHS tolerates errors of 10^-7, so maximize the work done instead of requiring that all work is done.
    """
    from scipy import optimize
    from scipy.sparse import coo_array

    parts = _intervals(jobs, stretch)
    jobs = parts.jobs
    counts = parts.last - parts.first
    job = np.repeat(np.arange(len(counts)), counts)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    interval = np.arange(len(job)) - np.repeat(starts - parts.first, counts)
    work = (jobs.weight * jobs.run_ms / UNIT)[job]
    rows: Any = np.concatenate([job, len(counts) + interval])
    columns: Any = np.tile(np.arange(len(job)), 2)
    capacity = np.asarray(parts.length_ms * float(nodes), np.float64)
    values = np.concatenate([np.ones(len(job)), work / capacity[interval]])
    shape = (len(counts) + len(capacity), len(job))
    matrix = coo_array((values, (rows, columns)), shape=shape).tocsr()
    upper = np.minimum(1.0, parts.length_ms[interval] / jobs.run_ms[job])
    limits = np.ones(shape[0])
    solve: Any = optimize.linprog
    solution = solve(-work / work.mean(), A_ub=matrix, b_ub=limits, bounds=np.column_stack([np.zeros(len(job)), upper]))
    total = float((jobs.weight * jobs.run_ms / UNIT).sum() / work.mean())
    return bool(solution.status == 0 and -solution.fun >= total * (1 - 1e-7))


def need_metrics(workload: Workload, nodes: int, start_ms: IntArray, end_ms: IntArray) -> Mapping[str, float]:
    """Return the metrics of dynamic fractional resource scheduling.

    ``need_max_stretch`` is the largest of max(turn-around, 10 s) / max(run time alone, 10 s).
    ``need_underutilization_normalized`` is ``need_underutilization_node_ms`` relative to the work. The workload's run
    times apply to jobs that run alone; without a column ``cpu_need``, tasks need whole nodes. Starts and ends are -1
    for jobs that did not run; at least one job must have run.

    Notes
    -----
    Source: Stillwell, sections 2 and 5.3.1. All work was allocated at some time, however jobs were paused or slowed, so
    the underutilization, the integral of min(nodes, demand) - allocated, depends only on the jobs' submit and end
    times. While a job spends time on a pause or a move, its CPU counts as idle.
    """
    ran = start_ms >= 0
    flow_ms, run_ms = (end_ms - workload.submit_ms)[ran], workload.run_ms[ran]
    stretch = np.maximum(flow_ms, STRETCH_BOUND_MS) / np.maximum(run_ms, STRETCH_BOUND_MS)
    need = cpu_needs(workload)[ran]
    work = float(need @ run_ms)
    idle = _demand(workload, ran, end_ms, need, nodes) - work
    return {
        "need_max_stretch": float(stretch.max()),
        "need_underutilization_node_ms": idle,
        "need_underutilization_normalized": idle / work,
    }


def _demand(workload: Workload, ran: BoolArray, end_ms: IntArray, need: FloatArray, nodes: int) -> float:
    """Return the integral over time of the unfinished jobs' CPU need, capped at ``nodes`` at any time."""
    instants = np.concatenate([workload.submit_ms[ran], end_ms[ran]])
    changes = np.concatenate([need, -need])
    order = np.argsort(instants, kind="stable")
    demand = np.minimum(np.cumsum(changes[order])[:-1], nodes)
    return float(demand @ np.diff(instants[order]))

"""Schedules of any discipline by the CPU needs of their jobs: metrics, and a bound for them (docs/fractional.md).

The bound is the least maximum stretch of any schedule ("The bound"). Source: Stillwell, Vivien and Casanova on dynamic
fractional resource scheduling, section 3, Theorem 1. The jobs' run times are known, memory has no end, and tasks move
at no cost. A binary search over the stretch asks each time whether all jobs can be done by the deadlines that it gives
them.
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
"""The bound is a whole number of thousandths."""

STRETCH_BOUND_MS = 10 * MS_PER_S
"""The bounded stretch takes shorter times for as long as this (Stillwell, section 2.2)."""

MAX_ARCS = 100_000_000
"""Pairs of a job and an interval of time in which it may run: three gigabytes."""


class BoundedJobs(NamedTuple):
    """What the bound asks of jobs: when they come, how long they take alone, and what CPU all tasks need together."""

    submit_ms: IntArray
    run_ms: IntArray
    weight: IntArray


def stretch_bound(workload: Workload, nodes: int, *, method: str = "flow") -> float:
    """Return a stretch that no schedule's maximum is below.

    Parameters
    ----------
    workload : Workload
        Its width is tasks, with CPU needs in the column ``cpu_need``; all of a node if there is none.
    nodes : int
    method : {"flow", "lp"}
        How a stretch is tried: by a flow in whole numbers, or by Linear System (1) with HiGHS.

    Returns
    -------
    float
        At least 1, in thousandths. The least maximum stretch is less than one thousandth above it, or equal.

    Raises
    ------
    InputError
        If the workload is empty, or so long that there is no memory for it.
    OptionError
        If there is no such method.

    Examples
    --------
    Two jobs of a minute that come together to one node: one of them takes two minutes at least.

    >>> jobs = Workload(job_id=[1, 2], submit_ms=[0, 0], width=[1, 1], estimate_ms=[60_000] * 2, run_ms=[60_000] * 2)
    >>> stretch_bound(jobs, 1), stretch_bound(jobs, 1, method="lp"), stretch_bound(jobs, 2)
    (1.999, 1.999, 1.0)
    """
    check_known("method", method, METHODS)
    if not len(workload):
        raise InputError(f"{workload.name}: has no jobs, and so no stretch")
    jobs = _jobs_of(workload)
    tried = _flow_feasible if method == "flow" else _lp_feasible
    if tried(jobs, nodes, STEPS):
        return 1.0
    low, high = STEPS, 2 * STEPS
    while not tried(jobs, nodes, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tried(jobs, nodes, middle) else (middle, high)
    return low / STEPS


def _jobs_of(workload: Workload) -> BoundedJobs:
    groups = needs_of(workload)
    need = np.zeros(len(workload), np.int64)
    np.add.at(need, groups.row, parts_of_node(groups.cpu) * groups.tasks)
    return BoundedJobs(workload.submit_ms, workload.run_ms, need)


class _Intervals(NamedTuple):
    """The intervals between all release dates and deadlines, and which of them are each job's own; jobs by deadline."""

    jobs: BoundedJobs
    length_ms: IntArray
    first: IntArray
    last: IntArray


def _intervals(jobs: BoundedJobs, stretch: int) -> _Intervals:
    """Part the time at a stretch in thousandths; a deadline between two milliseconds is the later one."""
    # Rounded up: a deadline that is too late leaves the bound a bound.
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
        problem = (
            f"the bound needs {n_arcs:,} arcs from jobs to intervals, above {MAX_ARCS:,}; bound a part of the trace"
        )
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
    """Refuse what does not fit into 64 bits: sums of work over a job's or the whole time."""
    largest = max(float(weight.max()), float(capacity)) * float(parts.length_ms.sum())
    if max(largest, float(weight.astype(np.float64) @ jobs.run_ms)) >= 2**62:
        raise InputError("the work of these jobs does not fit into 64 bits; bound a part of the trace")


def _lp_feasible(jobs: BoundedJobs, nodes: int, stretch: int) -> bool:
    """Whether Linear System (1) has a solution, with a variable for the part of a job that is done in an interval.

    HiGHS allows for errors of 10^-7, so instead of whether all can be done it is asked how much can.
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
    room = np.asarray(parts.length_ms * float(nodes), np.float64)
    values = np.concatenate([np.ones(len(job)), work / room[interval]])
    shape = (len(counts) + len(room), len(job))
    matrix = coo_array((values, (rows, columns)), shape=shape).tocsr()
    most = np.minimum(1.0, parts.length_ms[interval] / jobs.run_ms[job])
    limits = np.ones(shape[0])
    solve: Any = optimize.linprog
    found = solve(-work / work.mean(), A_ub=matrix, b_ub=limits, bounds=np.column_stack([np.zeros(len(job)), most]))
    wanted = float((jobs.weight * jobs.run_ms / UNIT).sum() / work.mean())
    return bool(found.status == 0 and -found.fun >= wanted * (1 - 1e-7))


def need_metrics(workload: Workload, nodes: int, start_ms: IntArray, end_ms: IntArray) -> Mapping[str, float]:
    """Return the metrics of dynamic fractional resource scheduling.

    ``need_max_stretch`` is the largest of max(turn-around, 10 s) / max(run time alone, 10 s);
    ``need_underutilization_node_ms`` comes with ``..._normalized``, the same as a part of the work. The run times of
    the workload are those on a machine of its own; where it has no column ``cpu_need``, tasks need whole nodes. Starts
    and ends are -1 for jobs that did not run; at least one did.

    Notes
    -----
    Source: Stillwell, sections 2 and 5.3.1. What was allocated over all time is the work of the jobs, whatever was
    paused or slowed in between; so the underutilization, integral of min(nodes, demand) - allocated, takes no more than
    when jobs came and ended. While a job pays for a pause or a move, its CPU counts as idle.
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
    """Return the integral of what unfinished jobs need, as far as there are nodes."""
    instants = np.concatenate([workload.submit_ms[ran], end_ms[ran]])
    changes = np.concatenate([need, -need])
    order = np.argsort(instants, kind="stable")
    demand = np.minimum(np.cumsum(changes[order])[:-1], nodes)
    return float(demand @ np.diff(instants[order]))

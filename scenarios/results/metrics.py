"""Metrics of a schedule, with the names and definitions used in the literature (docs/metrics.md).

A schedule consists of four arrays: the submit time, start time, end time and width of every job that ran. Sources:
*Streit*, A. Streit's thesis on self-tuning job scheduling, sections 3.4, 3.5 and 7.3; *Zhang*, Zhang, Franke, Moreira
and Sivasubramaniam, A Comparative Analysis of Space- and Time-Sharing Techniques, section 2.3; *Stillwell*, Stillwell,
Vivien and Casanova on dynamic fractional resource scheduling, sections 2.2 and 5.3.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError
from gridweave.scenarios.results.files import plain_numbers
from gridweave.scenarios.results.steps import Steps, queue_length_seen, step_parts
from gridweave.scenarios.traces.text import FloatArray
from gridweave.scenarios.workload.columns import JobClasses
from gridweave.scenarios.workload.table import MS_PER_S, BoolArray, IntArray

MS_PER_H = 3600 * MS_PER_S

SHARED_BOUND_MS = 60_000
"""The bound for the relative bounded response time on shared nodes (Sodan and Lan, section 6.1)."""

PARTS_OF_ONE = ("util", "rho", "kappa", "loss_of_capacity", "underutilization_normalized")
"""Metrics that tables show as percentages."""


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a schedule, or of one class of its jobs.

    In the notation of Streit, section 3.4: a job arrives at t^a, starts at t^s, ends at t^e and is w nodes wide; its
    length is l = t^e - t^s, its wait t^w = t^s - t^a, its response time t^r = t^w + l, its slowdown s = t^r / l and its
    area a = w l. N is the number of nodes; the *span* goes from the first submission to the last end. Means and
    standard deviations (of the population) are over the m jobs. Counts are int. All other metrics are float, and NaN if
    undefined: every metric if there are no jobs, and metrics of the whole machine for a class of jobs.

    Attributes
    ----------
    jobs, jobs_waited : int
        Number of jobs, and number of jobs that did not start at the time of their submission.
    awt_ms, wait_std_ms, wait_median_ms, wait_p95_ms, wait_max_ms : float
        Average wait (Streit eq. 3.1), its standard deviation (Zhang's measure of fairness), quantiles (interpolated
        linearly) and maximum.
    art_ms, artww_ms : float
        Average response time, plain (Streit eq. 3.2) and weighted by width (eq. 3.3).
    awrt_width_ms, awrt_area_ms : float
        Average weighted response time; the weight is the width (Streit eq. 7.1, equal to ARTwW) or the resource
        consumption, which is the area (section 7.3.3; ARTwA in chapter 5).
    awwt_width_ms, awwt_area_ms : float
        Average weighted wait; the weight is the width (Streit eq. 7.2) or the area.
    slowdown, slowdown_std, sldww, sldwa : float
        Average slowdown: plain, with its standard deviation; weighted by width; weighted by area (Streit eq. 3.4).
    bounded_slowdown_10s, bounded_slowdown_10s_std, bounded_slowdown_60s : float
        Average of max(t^r, G) / max(l, G) with G = 10 s (Zhang, section 2.3), its standard deviation (fairness), and
        the average with G = 60 s (Streit, section 3.4).
    pp_slowdown_60s : float
        Average per-processor slowdown, max(t^r / (w max(l, 60 s)), 1) (Streit, section 3.4).
    max_stretch : float
        Largest slowdown bounded by 10 s (Stillwell, section 2.2).
    mean_run_ms, mean_width, area_node_ms : float
        Average length and width; the sum of all areas, also called the squashed area (Streit, section 7.3.1).
    makespan_ms, span_ms, virtual_end_ms : float
        The time of the last end (Streit eq. 3.5); the same, counted from the first submission; and the time at which
        the last submitted job would have ended without waiting (section 3.5: makespan - virtual end is the backlog).
    util, rho : float
        Node time that jobs used, relative to N x span (Streit eq. 3.6), and relative to N x makespan (Zhang eq. 1,
        where the first job arrives at time zero, so that both are equal). For a class of jobs, N, span and makespan are
        those of the whole schedule.
    loss_of_capacity, kappa : float
        Node time that was idle while a job was waiting, relative to N x span (Streit eq. 3.7), and relative to N x
        makespan (Zhang eq. 2). Undefined for a class.
    underutilization_node_ms, underutilization_normalized : float
        Integral of min(N, nodes that unfinished jobs request) - busy nodes; the same, relative to the area (Stillwell,
        section 5.3.1). Undefined for a class.
    throughput_per_h : float
        Jobs per hour of the whole schedule's span.
    queued_submissions : int
        Submissions at which an earlier job is still waiting ("waiting jobs > 1" of Streit, Table 3.6); see
        `gridweave.scenarios.results.steps.queue_length_seen`.
    queue_length_seen : float
        Number of waiting earlier jobs, averaged over these submissions ("avg. queue length" of Table 3.6).
    """

    jobs: int
    jobs_waited: int
    awt_ms: float
    wait_std_ms: float
    wait_median_ms: float
    wait_p95_ms: float
    wait_max_ms: float
    art_ms: float
    artww_ms: float
    awrt_width_ms: float
    awrt_area_ms: float
    awwt_width_ms: float
    awwt_area_ms: float
    slowdown: float
    slowdown_std: float
    sldww: float
    sldwa: float
    bounded_slowdown_10s: float
    bounded_slowdown_10s_std: float
    bounded_slowdown_60s: float
    pp_slowdown_60s: float
    max_stretch: float
    mean_run_ms: float
    mean_width: float
    area_node_ms: float
    makespan_ms: float
    span_ms: float
    virtual_end_ms: float
    util: float
    rho: float
    loss_of_capacity: float
    kappa: float
    underutilization_node_ms: float
    underutilization_normalized: float
    throughput_per_h: float
    queued_submissions: int
    queue_length_seen: float

    def to_dict(self) -> dict[str, int | float | None]:
        """Return the metrics by name, with None for undefined metrics, ready for JSON."""
        return plain_numbers(msgspec.structs.asdict(self))


class SharedMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of a site where jobs shared nodes (Sodan and Lan, section 6.1); NaN if no job ran.

    Attributes
    ----------
    jobs, shared_starts : int
        Jobs that ran, and jobs that started on nodes shared with another job, which may have started in the same pass.
    art_ms : float
        Average response time.
    relative_response : float
        Average of the response time divided by the run time alone, both raised to at least 60 s.
    mean_slowdown : float
        Average of the time from start to end, divided by the run time alone.
    util : float
        Node time during which at least one job used the node, as a share of nodes x makespan.
    efficiency : float
        Sum of width x run time alone, divided by nodes x makespan; may exceed 1 thanks to sharing.
    makespan_ms : float
        From the first submission to the last end.
    """

    jobs: int
    shared_starts: int
    art_ms: float
    relative_response: float
    mean_slowdown: float
    util: float
    efficiency: float
    makespan_ms: float


def compute_metrics(
    submit_ms: npt.ArrayLike,
    start_ms: npt.ArrayLike,
    end_ms: npt.ArrayLike,
    width: npt.ArrayLike,
    nodes: int,
    *,
    select: npt.ArrayLike | None = None,
    shared: bool = False,
) -> Metrics:
    """Compute the metrics of a schedule.

    Parameters
    ----------
    submit_ms, start_ms, end_ms, width : array_like of int, shape (n,)
        The jobs that ran, in any order, except that jobs with equal submit times must be sorted by job id.
    nodes : int
        Nodes of the site.
    select : array_like of bool, shape (n,), optional
        The jobs to measure. Other jobs still count towards the span and the queue lengths.
    shared : bool
        Whether jobs may share nodes. If so, UTIL counts the nodes that jobs request and may exceed 1, and the idle time
        is a lower bound, as if every requested node had been busy.

    Raises
    ------
    InputError
        If the arrays are not a schedule: a job is submitted before time zero, starts before its submission, does not
        end after its start or has a width below 1, or more nodes are busy than the site has.

    Examples
    --------
    >>> metrics = compute_metrics([0, 0], [0, 1000], [1000, 3000], [4, 4], nodes=4)
    >>> metrics.awt_ms, metrics.sldwa, metrics.util
    (500.0, 1.3333333333333333, 1.0)
    """
    schedule = MeasuredSchedule.of(submit_ms, start_ms, end_ms, width, nodes, shared=shared)
    if select is None:
        return schedule.metrics()
    mask = np.asarray(select)
    if mask.dtype != np.bool_ or mask.shape != schedule.submit_ms.shape:
        raise InputError(f"select is {mask.dtype} of shape {mask.shape}; give one bool per job")
    return schedule.metrics(np.flatnonzero(mask[schedule.order]))


def compute_by_class(
    submit_ms: npt.ArrayLike,
    start_ms: npt.ArrayLike,
    end_ms: npt.ArrayLike,
    width: npt.ArrayLike,
    nodes: int,
    classes: JobClasses,
    *,
    shared: bool = False,
) -> dict[str, Metrics]:
    """Compute a schedule's metrics for each class of jobs, in the order of the class names.

    `classes` assigns jobs to classes; for the other parameters and the errors, see `compute_metrics`.
    """
    return MeasuredSchedule.of(submit_ms, start_ms, end_ms, width, nodes, shared=shared).by_class(classes)


@dataclass(frozen=True, eq=False, slots=True)
class MeasuredSchedule:
    """A validated schedule in submit order, whose idle times and queue lengths are computed once for all metrics."""

    submit_ms: IntArray
    start_ms: IntArray
    end_ms: IntArray
    width: IntArray
    nodes: int
    order: IntArray | slice  # the original row of each job
    seen: IntArray  # how many jobs were waiting when each job was submitted
    begin_ms: int
    makespan_ms: int
    lost_node_ms: float  # node time that was idle while a job was waiting
    under_node_ms: float  # node time that was idle although unfinished jobs requested it

    @classmethod
    def of(
        cls,
        submit_ms: npt.ArrayLike,
        start_ms: npt.ArrayLike,
        end_ms: npt.ArrayLike,
        width: npt.ArrayLike,
        nodes: int,
        *,
        shared: bool,
    ) -> MeasuredSchedule:
        """Check and measure a schedule; for the parameters and the errors, see `compute_metrics`."""
        submit = _integers("submit_ms", submit_ms)
        start = _integers("start_ms", start_ms, len(submit))
        end = _integers("end_ms", end_ms, len(submit))
        wide = _integers("width", width, len(submit))
        if nodes < 1:
            raise InputError(f"nodes is {nodes}; expected at least 1")
        order: IntArray | slice = slice(None)
        if (submit[1:] < submit[:-1]).any():
            order = np.argsort(submit, kind="stable")
            submit, start, end, wide = submit[order], start[order], end[order], wide[order]
        _refuse(order, submit < 0, "is submitted before time zero")
        _refuse(order, start < submit, "starts before its submission")
        _refuse(order, end <= start, "does not end after its start")
        _refuse(order, wide < 1, "has a width below 1")
        seen = queue_length_seen(submit, start)
        begin_ms, makespan_ms = (int(submit[0]), int(end.max())) if len(submit) else (0, 0)
        lost, under = _idle_node_ms(step_parts(submit, start, end, wide), nodes, shared=shared)
        return cls(submit, start, end, wide, nodes, order, seen, begin_ms, makespan_ms, lost, under)

    def metrics(self, selected: IntArray | None = None) -> Metrics:
        """Return the metrics of the selected rows, by default of all rows; ``selected`` must be in ascending order."""
        rows: IntArray | slice = slice(None) if selected is None else selected
        submit, start, end, width = self.submit_ms[rows], self.start_ms[rows], self.end_ms[rows], self.width[rows]
        if not len(submit):
            return _UNDEFINED
        seen = self.seen[rows]
        values = {**_of_jobs(submit, start, end, width), **self._of_site(float(np.sum(_areas(start, end, width))))}
        if selected is not None:
            values |= dict.fromkeys(_OF_WHOLE_SITE, math.nan)
        return Metrics(
            jobs=len(submit),
            jobs_waited=int(np.count_nonzero(start > submit)),
            throughput_per_h=len(submit) * MS_PER_H / (self.makespan_ms - self.begin_ms),
            queued_submissions=int(np.count_nonzero(seen)),
            queue_length_seen=float(np.mean(seen[seen > 0])) if seen.any() else math.nan,
            **values,
        )

    def by_class(self, classes: JobClasses) -> dict[str, Metrics]:
        """Return the metrics of each class, in the order of the class names."""
        of_job = _integers("the class", classes.of_job, len(self.submit_ms))[self.order]
        rows = np.argsort(of_job, kind="stable")
        borders = np.searchsorted(of_job[rows], np.arange(len(classes.names) + 1))
        return {
            name: self.metrics(rows[begin:end])
            for name, begin, end in zip(classes.names, borders[:-1], borders[1:], strict=True)
        }

    def _of_site(self, area: float) -> dict[str, float]:
        """Return the metrics of the whole site's used and idle node time; ``area`` is the total area of the jobs."""
        of_span = float(self.nodes) * (self.makespan_ms - self.begin_ms)
        of_makespan = float(self.nodes) * self.makespan_ms
        return {
            "util": area / of_span,
            "rho": area / of_makespan,
            "loss_of_capacity": self.lost_node_ms / of_span,
            "kappa": self.lost_node_ms / of_makespan,
            "underutilization_node_ms": self.under_node_ms,
            "underutilization_normalized": self.under_node_ms / area,
        }


_OF_WHOLE_SITE = ("loss_of_capacity", "kappa", "underutilization_node_ms", "underutilization_normalized")
_COUNTS = ("jobs", "jobs_waited", "queued_submissions")
_UNDEFINED = msgspec.convert({n: 0 if n in _COUNTS else math.nan for n in Metrics.__struct_fields__}, Metrics)


def _idle_node_ms(parts: Iterable[Steps], nodes: int, *, shared: bool) -> tuple[float, float]:
    """Return the idle node time while a job was waiting, and the idle node time that unfinished jobs requested."""
    lost = under = 0.0
    for steps in parts:
        if not shared and (steps.busy > nodes).any():
            row = int(np.argmax(steps.busy > nodes))
            raise InputError(f"{steps.busy[row]} nodes are busy at {steps.time_ms[row]} ms; the site has {nodes}")
        lasted = np.diff(steps.time_ms).astype(np.float64)
        busy, waiting, demand = np.minimum(steps.busy[:-1], nodes), steps.waiting[:-1], steps.demand[:-1]
        lost += float(np.sum((nodes - busy) * lasted * (waiting > 0)))
        under += float(np.sum((np.minimum(nodes, demand) - busy) * lasted))
    return lost, under


def _of_jobs(submit_ms: IntArray, start_ms: IntArray, end_ms: IntArray, width: IntArray) -> dict[str, float]:
    """Return the averages over at least one job; jobs must be in submit order."""
    run = (end_ms - start_ms).astype(np.float64)
    wait = (start_ms - submit_ms).astype(np.float64)
    response = wait + run
    area = _areas(start_ms, end_ms, width)
    slowdown = response / run
    bounded_10s = _bounded(response, run, 10 * MS_PER_S)
    median, p95 = np.quantile(wait, (0.5, 0.95))
    by_width = _weighted(response, width)
    values = {
        "awt_ms": np.mean(wait),
        "wait_std_ms": np.std(wait),
        "wait_median_ms": median,
        "wait_p95_ms": p95,
        "wait_max_ms": np.max(wait),
        "art_ms": np.mean(response),
        "artww_ms": by_width,
        "awrt_width_ms": by_width,
        "awrt_area_ms": _weighted(response, area),
        "awwt_width_ms": _weighted(wait, width),
        "awwt_area_ms": _weighted(wait, area),
        "slowdown": np.mean(slowdown),
        "slowdown_std": np.std(slowdown),
        "sldww": _weighted(slowdown, width),
        "sldwa": _weighted(slowdown, area),
        "bounded_slowdown_10s": np.mean(bounded_10s),
        "bounded_slowdown_10s_std": np.std(bounded_10s),
        "bounded_slowdown_60s": np.mean(_bounded(response, run, 60 * MS_PER_S)),
        "pp_slowdown_60s": np.mean(np.maximum(response / (width * np.maximum(run, 60 * MS_PER_S)), 1.0)),
        "max_stretch": np.max(bounded_10s),
        "mean_run_ms": np.mean(run),
        "mean_width": np.mean(width),
        "area_node_ms": np.sum(area),
        "makespan_ms": np.max(end_ms),
        "span_ms": np.max(end_ms) - submit_ms[0],
        "virtual_end_ms": submit_ms[-1] + end_ms[-1] - start_ms[-1],
    }
    return {name: float(value) for name, value in values.items()}


def _areas(start_ms: IntArray, end_ms: IntArray, width: IntArray) -> FloatArray:
    """Return width x length as floats, because ten million nodes for three thousand years exceed int64."""
    return width.astype(np.float64) * (end_ms - start_ms)


def _bounded(response_ms: FloatArray, run_ms: FloatArray, bound_ms: int) -> FloatArray:
    return np.maximum(response_ms, bound_ms) / np.maximum(run_ms, bound_ms)


def _weighted(values: FloatArray, weights: IntArray | FloatArray) -> float:
    # Not numpy.dot: its order of summation, and so its last digit, depends on the number of threads.
    return float(np.sum(values * weights) / np.sum(weights))


def _integers(name: str, values: npt.ArrayLike, n: int | None = None) -> IntArray:
    array = np.asarray(values)
    if array.ndim != 1 or (n is not None and len(array) != n) or (len(array) and array.dtype.kind not in "iu"):
        raise InputError(f"{name} is {array.dtype} of shape {array.shape}; give one whole number per job")
    return array.astype(np.int64, copy=False)


def _refuse(order: IntArray | slice, wrong: BoolArray, problem: str) -> None:
    if wrong.any():
        row = np.arange(len(wrong))[order][np.argmax(wrong)]
        raise InputError(f"the job in row {row} {problem}; this is not a schedule")


def compute_shared(
    submit_ms: IntArray,
    start_ms: IntArray,
    end_ms: IntArray,
    width: IntArray,
    run_ms: IntArray,
    nodes: int,
    shared_starts: int,
    busy_node_ms: int,
) -> SharedMetrics:
    """Compute the metrics of a site where jobs shared nodes.

    Parameters
    ----------
    submit_ms, start_ms, end_ms, width, run_ms : numpy.ndarray of int64, shape (m,)
        The jobs that ran; ``run_ms`` is a job's run time when it runs alone.
    nodes : int
    shared_starts : int
        Number of jobs that started on nodes shared with another job.
        busy_node_ms : int
        Node time during which at least one job used the node.
    """
    if not len(submit_ms):
        nan = float("nan")
        values = dict.fromkeys(("art_ms", "relative_response", "mean_slowdown", "util", "efficiency"), nan)
        return SharedMetrics(jobs=0, shared_starts=0, makespan_ms=nan, **values)
    response_ms = end_ms - submit_ms
    makespan_ms = int(end_ms.max() - submit_ms.min())
    capacity = nodes * makespan_ms
    relative = np.maximum(response_ms, SHARED_BOUND_MS) / np.maximum(run_ms, SHARED_BOUND_MS)
    return SharedMetrics(
        jobs=len(submit_ms),
        shared_starts=shared_starts,
        art_ms=float(response_ms.mean()),
        relative_response=float(relative.mean()),
        mean_slowdown=float(((end_ms - start_ms) / run_ms).mean()),
        util=busy_node_ms / capacity,
        efficiency=float(np.sum(width * run_ms.astype(np.float64)) / capacity),
        makespan_ms=float(makespan_ms),
    )

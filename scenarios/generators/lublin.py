"""The workload model of Lublin and Feitelson: rigid jobs with a daily cycle, for a machine of any size.

U. Lublin and D. G. Feitelson, *The Workload on Parallel Supercomputers: Modeling the Characteristics of Rigid Jobs*,
Journal of Parallel and Distributed Computing 63(11), 2003. Sizes are two-stage log-uniform, with extra serial jobs and
powers of two. Logarithms of run times are hyper-gamma distributed and grow with the width. Logarithms of gaps are gamma
distributed, on a clock that follows the daily cycle. All jobs can have one type, or interactive and batch jobs can be
two types with separate parameters and arrivals. The parameters are the published ones; docs/generators.md lists them.

The gap between two jobs is drawn in *points*. A second in a half hour of the day with weight w is worth w points, so
points pass quickly in rush hours and slowly at night. If W(t) is the number of points up to time t, job k arrives when
W(t) is the sum of the first k gaps: arrivals are a renewal process on a clock that follows the daily cycle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Unpack

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError, check_known
from gridweave.scenarios.generators.common import (
    FloatArray,
    Name,
    Request,
    Scaling,
    Width,
    assemble,
    check_apart,
    check_last,
)
from gridweave.scenarios.workload.table import MS_PER_S, IntArray, Workload

BUCKETS = 48
DAY_S = 86_400.0
BUCKET_S = DAY_S / BUCKETS

FIRST_BUCKET = 11
"""First bucket of the daily cycle; bucket 1 is the half hour after midnight."""

MAX_LOG_GAP = 13.0
"""Gaps above e^13 points, about five days, are drawn again."""

CHUNK = 4096
"""Number of gaps or jobs drawn at a time; fixed, so that a shorter workload is a prefix of a longer one."""

# A bucket below this fraction of the mean gets less than one job in a billion; points could not be converted to times.
_LEAST_WEIGHT = 1e-9


@dataclass(frozen=True, slots=True)
class DailyCycle:
    """Points per second in each half hour of a day (mean 1), and points from midnight to each half hour."""

    weights: FloatArray
    points: FloatArray

    def time_s(self, points: npt.ArrayLike) -> FloatArray:
        """Return the time, in seconds after midnight, at which this number of points (>= 0) has passed."""
        days, rest = np.divmod(np.asarray(points, np.float64), self.points[-1])
        time_s: FloatArray = days * DAY_S + np.interp(rest, self.points, _EDGES_S)
        return time_s


_EDGES_S = np.arange(BUCKETS + 1) * BUCKET_S


def daily_cycle(anum: float, bnum: float) -> DailyCycle:
    """Return the daily cycle given by a gamma distribution over the half hours of a day.

    Bucket i, from 11 to 58 and wrapping at midnight, gets the probability between i - 0.5 and i + 0.5. Raise InputError
    if a half hour would have almost no arrivals.

    Examples
    --------
    The whole sample is busiest in the half hour that starts at 13:30:

    >>> int(daily_cycle(8.1737, 3.9631).weights.argmax()) / 2
    13.5
    """
    from scipy.special import gammainc

    bucket = np.arange(FIRST_BUCKET, FIRST_BUCKET + BUCKETS)
    mass = gammainc(anum, (bucket + 0.5) / bnum) - gammainc(anum, (bucket - 0.5) / bnum)
    weights = np.zeros(BUCKETS)
    weights[(bucket - 1) % BUCKETS] = mass
    mean = float(weights.mean())
    if not weights.min() > _LEAST_WEIGHT * mean:
        raise InputError(f"anum {anum} and bnum {bnum} leave a half hour of the day without arrivals; widen the cycle")
    weights /= mean
    return DailyCycle(weights, np.concatenate([[0.0], np.cumsum(weights * BUCKET_S)]))


def draw_gaps(shape: float, scale: float, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw gaps between arrivals, from 1 to e^13 points; without a daily cycle, a point would be a second.

    The gaps' logarithms are gamma distributed, with shape aarr * arar. A smaller ``size`` gives a prefix of these gaps.
    """
    parts = []
    for _ in range(-(-size // CHUNK)):
        log_gap = rng.gamma(shape, scale, CHUNK)
        rows = np.flatnonzero(log_gap > MAX_LOG_GAP)
        while len(rows):
            log_gap[rows] = rng.gamma(shape, scale, len(rows))
            rows = rows[log_gap[rows] > MAX_LOG_GAP]
        parts.append(np.exp(log_gap))
    return np.concatenate(parts)[:size]


def factor_for_span(cycles: Sequence[DailyCycle], points: Sequence[FloatArray], span_s: float) -> float:
    """Return the factor that, applied to all gaps, makes the jobs' submissions span ``span_s`` seconds.

    The daily cycle is not stretched, so the span is not proportional to the factor. But the span grows continuously
    from zero, so a solver can find the factor.
    """
    from scipy.optimize import brentq

    ends = [
        (cycle, np.array([type_points[0], type_points[-1]]))
        for cycle, type_points in zip(cycles, points, strict=True)
        if len(type_points)
    ]

    def excess(log_factor: float) -> float:
        times = np.array([cycle.time_s(type_points * np.exp(log_factor)) for cycle, type_points in ends])
        return float(times.max() - times.min()) - span_s

    low = high = float(np.log(span_s / max(type_points[1] for _, type_points in ends)))
    while excess(low) > 0:
        low -= 1.0
    while excess(high) < 0:
        high += 1.0
    return float(np.exp(brentq(excess, low, high, xtol=1e-15, rtol=1e-14)))


MAX_LOG_RUN = 12.0
"""Run times above e^12 s, about two days, are drawn again."""

# Published values are far lower; a much larger shape has almost no spread and is most likely an error in a model file.
_MAX_SHAPE = 1e6


class LublinJobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of one type of jobs, under their published names; gamma(a, b) has mean a * b.

    Parameters
    ----------
    serial : float
        Probability that a job has one node.
    pow2 : float
        Probability, among all jobs, that a job's size is rounded to a power of two; serial + pow2 <= 1.
    low : float
        Minimum log2 of the size of a parallel job, before rounding.
    med_offset : float
        Distance between the break and the top of the two-stage distribution: med = hi - med_offset.
    hi_offset : float
        Distance between the top and the size of the machine: hi = log2(nodes) - hi_offset.
    prob : float
        Probability of a size between low and med.
    a1, b1, a2, b2 : float
        The two gamma distributions of ln(run time in seconds), > 0, with means of at most 12.
    pa, pb : float
        A job of n nodes uses the first distribution with probability pa * n + pb, limited to [0, 1].
    aarr, barr : float
        Gamma distribution of ln(gap in points) in rush hours, > 0. Sodan and Lan call aarr "alpha".
    arar : float
        Ratio of all hours to rush hours, > 0. The shape is aarr * arar; the mean, aarr * arar * barr, is at most 13.
    anum, bnum : float
        Gamma distribution of arrivals over the half hours of a day, > 0.
    job_class : int, optional
        Value of the column ``job_class`` for these jobs: SWF's queue, 0 for interactive and 1 for batch jobs.

    Raises
    ------
    InputError
        If a parameter is out of range.
    """

    serial: float
    pow2: float
    low: float
    med_offset: float
    hi_offset: float
    prob: float
    a1: float
    b1: float
    a2: float
    b2: float
    pa: float
    pb: float
    aarr: float
    barr: float
    anum: float
    bnum: float
    arar: float
    job_class: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None

    def __post_init__(self) -> None:
        for names, low, high in (
            (("serial", "pow2", "prob"), 0.0, 1.0),
            (("low", "med_offset", "hi_offset"), 0.0, 24.0),
            (("pa", "pb"), -1e6, 1e6),
        ):
            for name in names:
                if not low <= getattr(self, name) <= high:
                    raise InputError(f"{name} {getattr(self, name)} is not within {low:g} to {high:g}")
        for name in ("a1", "b1", "a2", "b2", "aarr", "barr", "arar", "anum", "bnum"):
            if not 0 < getattr(self, name) <= _MAX_SHAPE:
                raise InputError(f"{name} {getattr(self, name)} is not above 0 and up to {_MAX_SHAPE:g}")
        if self.serial + self.pow2 > 1:
            raise InputError(f"serial {self.serial} and pow2 {self.pow2} sum to more than 1")
        # At least half of the draws are below the mean, so rejection sampling terminates.
        for names_of, mean, limit in (
            ("a1 * b1", self.a1 * self.b1, MAX_LOG_RUN),
            ("a2 * b2", self.a2 * self.b2, MAX_LOG_RUN),
            ("aarr * arar * barr", self.aarr * self.arar * self.barr, MAX_LOG_GAP),
        ):
            if mean > limit:
                raise InputError(f"{names_of} is {mean:.6g}; above {limit:g} most values would be drawn again")
        daily_cycle(self.anum, self.bnum)

    def size_range(self, nodes: int) -> tuple[float, float, float]:
        """Return low <= med <= hi, as log2 of node counts. On a small machine, med is at least hi / 2."""
        hi = max(math.log2(nodes) - self.hi_offset, self.low)
        return self.low, min(max(hi - self.med_offset, hi / 2, self.low), hi), hi


def draw_widths(jobs: LublinJobs, nodes: int, size: int, rng: np.random.Generator) -> IntArray:
    """Draw job sizes from 1 to ``nodes``."""
    kind, stage, position = rng.random((3, size))
    if nodes == 1:
        return np.ones(size, np.int64)
    low, med, hi = jobs.size_range(nodes)
    exponent = np.where(stage < jobs.prob, low + position * (med - low), med + position * (hi - med))
    # Rounding up must not exceed the size of a machine that is not a power of two.
    power = np.minimum(np.floor(exponent + 0.5), nodes.bit_length() - 1)
    exponent = np.where(kind < jobs.serial + jobs.pow2, power, exponent)
    width: IntArray = np.minimum(np.floor(np.exp2(exponent) + 0.5).astype(np.int64), nodes)
    width[kind < jobs.serial] = 1
    return width


def draw_run_s(jobs: LublinJobs, width: IntArray, rng: np.random.Generator) -> FloatArray:
    """Draw run times, given the widths, in whole seconds from 1 to 162754 (e^12, rounded down).

    Notes
    -----
    A value above e^12 is drawn again, including the choice between the two distributions.
    """
    first = np.clip(jobs.pa * width + jobs.pb, 0.0, 1.0)
    log_run = np.empty(len(width))
    rows = np.arange(len(width))
    while len(rows):
        is_first = rng.random(len(rows)) < first[rows]
        shape = np.where(is_first, jobs.a1, jobs.a2)
        log_run[rows] = rng.standard_gamma(shape) * np.where(is_first, jobs.b1, jobs.b2)
        rows = rows[log_run[rows] > MAX_LOG_RUN]
    return np.floor(np.exp(log_run))


def draw_jobs(jobs: LublinJobs, nodes: int, size: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
    """Draw widths, and run times in seconds; drawing fewer jobs gives a prefix of the same sequence."""
    for_widths, for_runs = rng.spawn(2)
    chunks = -(-size // CHUNK)
    width = np.empty(chunks * CHUNK, np.int64)
    run_s = np.empty(chunks * CHUNK)
    for start in range(0, chunks * CHUNK, CHUNK):
        rows = slice(start, start + CHUNK)
        width[rows] = draw_widths(jobs, nodes, CHUNK, for_widths)
        run_s[rows] = draw_run_s(jobs, width[rows], for_runs)
    return width[:size], run_s[:size]


PUBLISHED_NODES = 128
"""Machine size to which the published values of med and hi apply."""

INTERACTIVE, BATCH = 0, 1
"""Values of the column ``job_class`` for the two types, as in the output of the authors' program."""

WHOLE_SAMPLE = LublinJobs(
    serial=0.244, pow2=0.576, low=0.8, med_offset=2.5, hi_offset=0.0, prob=0.86,
    a1=4.2, b1=0.94, a2=312.0, b2=0.03, pa=-0.0054, pb=0.78,
    aarr=10.2303, barr=0.4871, anum=8.1737, bnum=3.9631, arar=1.0225,
)  # fmt: skip
"""Parameters of a single type that represents all jobs."""

BATCH_JOBS = LublinJobs(
    serial=0.2927, pow2=0.6686, low=1.2, med_offset=2.0, hi_offset=0.0, prob=0.875,
    a1=6.57, b1=0.823, a2=639.1, b2=0.0156, pa=-0.003, pb=0.6986,
    aarr=6.0415, barr=0.8531, anum=6.1271, bnum=5.2740, arar=1.0519, job_class=BATCH,
)  # fmt: skip
"""Parameters of batch jobs."""

INTERACTIVE_JOBS = LublinJobs(
    serial=0.1541, pow2=0.625, low=1.0, med_offset=2.5, hi_offset=1.5, prob=0.705,
    a1=3.8351, b1=0.6605, a2=7.073, b2=0.6856, pa=-0.0118, pb=0.9156,
    aarr=6.5510, barr=0.6621, anum=8.9186, bnum=3.6680, arar=0.9797, job_class=INTERACTIVE,
)  # fmt: skip
"""Parameters of interactive jobs; on a machine with 128 nodes, the widest job has 45 nodes."""


class LublinModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload model with one type of jobs, or several types with independent arrivals.

    Parameters
    ----------
    name : str
        Name of the model, used in workload names and messages.
    types : tuple of LublinJobs
        At least one type. If jobs arrive at the same time, jobs of earlier types come first.

    Raises
    ------
    InputError
        If there is no type.
    """

    name: Name
    nodes: Width
    types: Annotated[tuple[LublinJobs, ...], msgspec.Meta(max_length=16)]

    def __post_init__(self) -> None:
        if not self.types:
            raise InputError("a Lublin model has at least one type of jobs")


def lublin_model(kind: str = "whole", *, nodes: int = PUBLISHED_NODES) -> LublinModel:
    """Return a model with the published parameters.

    Parameters
    ----------
    kind : str
        ``whole``: all jobs have one type. ``batch`` or ``interactive``: only that type. ``types``: both types, with
        independent arrivals, which is the default of the authors' program. 1,000 jobs on 128 nodes arrive within 7 to
        18 days with ``whole`` and within 3 to 10 days with ``types``.

    Raises
    ------
    OptionError
        If the kind is unknown.

    Examples
    --------
    >>> lublin_model("types").types[1].serial
    0.2927
    """
    check_known("kind", kind, _KINDS)
    name, types = _KINDS[kind]
    return LublinModel(name, nodes, types)


_KINDS = {
    "whole": ("lublin", (WHOLE_SAMPLE,)),
    "batch": ("lublin-batch", (BATCH_JOBS,)),
    "interactive": ("lublin-interactive", (INTERACTIVE_JOBS,)),
    "types": ("lublin-types", (INTERACTIVE_JOBS, BATCH_JOBS)),
}


def with_alpha(model: LublinModel, alpha: float) -> LublinModel:
    """Return the model with a new value of aarr ("alpha") and the same daily cycle; a lower alpha gives a higher load.

    Parameters
    ----------
    model : LublinModel
        Must have a single type of jobs.
    alpha : float
        New value of aarr, > 0. Sodan and Lan, Table 4, use 10.23, 9.83 and 8.83.

    Raises
    ------
    OptionError
        If alpha is out of range, or the model has several types, each with its own aarr.
    """
    if len(model.types) != 1:
        raise OptionError("alpha", f"{model.name} has {len(model.types)} types of jobs, each with its own aarr")
    try:
        jobs = msgspec.structs.replace(model.types[0], aarr=alpha)
    except InputError as error:
        raise OptionError("alpha", f"{alpha} cannot be aarr: {error}") from None
    return LublinModel(model.name, model.nodes, (jobs,))


def generate_lublin(model: LublinModel, jobs: int, rng: np.random.Generator, **scaling: Unpack[Scaling]) -> Workload:
    """Generate a workload with perfect estimates that starts at midnight.

    Parameters
    ----------
    jobs : int
        Number of jobs, >= 1.
    rng : numpy.random.Generator
        Spawns separate streams for the sizes and run times and for the gaps of each type.
    **scaling
        See `Scaling`. Job widths depend on the machine size. If a load is given, ``interarrival_factor`` multiplies
        the time between the first and the last submission.

    Returns
    -------
    Workload
        Time zero is midnight, ids start at 1, and times are whole seconds. The column ``job_class`` exists if every
        type has a class.

    Raises
    ------
    OptionError
        If an argument is out of range.

    Notes
    -----
    Gaps are scaled in points, before points are converted to times, so the daily cycle keeps its 24 hours. The jobs of
    each type are selected before the gaps are scaled.
    """
    request = Request.of(jobs, model.nodes, scaling)
    cycles = [daily_cycle(kind.anum, kind.bnum) for kind in model.types]
    streams = [source.spawn(2) for source in rng.spawn(len(model.types))]
    points = _first_arrivals(model, cycles, jobs, [for_gaps for _, for_gaps in streams])
    drawn = [
        draw_jobs(kind, request.nodes, len(type_points), for_jobs)
        for kind, type_points, (for_jobs, _) in zip(model.types, points, streams, strict=True)
    ]
    width, run_s = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    time_s = _submit_s(cycles, points, request, float(np.dot(width.astype(np.float64), run_s)))
    order = np.argsort(time_s, kind="stable")
    submit_ms = np.floor(time_s[order]) * MS_PER_S
    check_apart(request.load, submit_ms)
    workload = assemble(
        model.name,
        replace(request, load=None, interarrival_factor=1.0),
        submit_ms=submit_ms,
        width=width[order],
        estimate_ms=run_s[order] * MS_PER_S,
        run_ms=run_s[order] * MS_PER_S,
        resolution_ms=MS_PER_S,
    )
    # `assemble` moves the first job to time zero, which would lose the time of day.
    since_midnight_ms = workload.submit_ms + np.int64(submit_ms[0])
    return workload.replace(
        submit_ms=since_midnight_ms, columns=_columns(model, [len(type_points) for type_points in points], order)
    )


def _first_arrivals(
    model: LublinModel, cycles: Sequence[DailyCycle], jobs: int, rngs: Sequence[np.random.Generator]
) -> list[FloatArray]:
    """Return the first ``jobs`` arrivals over all types, as points per type."""
    points = [
        np.cumsum(draw_gaps(kind.aarr * kind.arar, kind.barr, jobs, for_gaps))
        for kind, for_gaps in zip(model.types, rngs, strict=True)
    ]
    if len(points) == 1:
        return points
    time_s = np.concatenate([cycle.time_s(type_points) for cycle, type_points in zip(cycles, points, strict=True)])
    first = np.argsort(time_s, kind="stable")[:jobs]
    counts = np.bincount(first // jobs, minlength=len(points)).tolist()
    return [type_points[:count] for type_points, count in zip(points, counts, strict=True)]


def _submit_s(
    cycles: Sequence[DailyCycle], points: Sequence[FloatArray], request: Request, area_node_s: float
) -> FloatArray:
    """Return submit times in seconds, type by type, with gaps scaled by the factor or to the requested load."""
    option, factor = "interarrival_factor", request.interarrival_factor
    if request.load is not None:
        option = "load"
        span_s = area_node_s / request.nodes / request.load * factor
        check_last(option, span_s * MS_PER_S)
        factor = factor_for_span(cycles, points, span_s)
    time_s = np.concatenate(
        [cycle.time_s(type_points * factor) for cycle, type_points in zip(cycles, points, strict=True)]
    )
    check_last(option, float(time_s.max()) * MS_PER_S)
    return time_s


def _columns(model: LublinModel, counts: list[int], order: npt.NDArray[np.intp]) -> dict[str, IntArray]:
    """Return the column ``job_class`` if every type has a class."""
    classes = [kind.job_class for kind in model.types if kind.job_class is not None]
    if len(classes) < len(model.types):
        return {}
    return {"job_class": np.repeat(np.array(classes, np.int64), counts)[order]}

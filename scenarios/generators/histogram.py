"""The workload model of Streit's thesis: Weibull interarrival times, and a histogram of width, estimate and run time.

A. Streit, *Self-Tuning Job Scheduling Strategies for the Resource Management of HPC Systems and Computational Grids*
(below: *Streit*), section 3.6. No distribution fits width, estimate and run time jointly, so the model stores the
frequency of each combination in the trace. Times are binned: each short time has its own bin, and the bins of
long times grow by a constant ratio.
"""

from __future__ import annotations

import functools
import math
from types import MappingProxyType
from typing import Annotated, Unpack

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.generators.common import (
    FloatArray,
    Moments,
    Name,
    Request,
    Scaling,
    Width,
    assemble,
    machine_nodes,
    measure,
    plain_name,
    resolution_ms,
)
from gridweave.scenarios.workload.table import MAX_TIME_MS, MS_PER_S, BoolArray, IntArray, Workload

# Plausible shapes: a smaller alpha gives gaps longer than the trace, a larger alpha gives almost equal gaps.
ALPHA_MIN, ALPHA_MAX = 0.1, 20.0


class Weibull(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Interarrival times with distribution function 1 - exp(-(x / beta)^alpha).

    Parameters
    ----------
    alpha : float
        Shape, from `ALPHA_MIN` to `ALPHA_MAX`. Arrivals are bursty below 1 and a Poisson process at 1.
    beta_ms : float
        Scale in milliseconds, > 0 and at most `MAX_TIME_MS`.

    Raises
    ------
    InputError
        If a parameter is out of range.

    Examples
    --------
    >>> round(Weibull(alpha=0.35, beta_ms=60_000.0).mean_ms)
    301749
    """

    alpha: float
    beta_ms: float

    def __post_init__(self) -> None:
        if not ALPHA_MIN <= self.alpha <= ALPHA_MAX:
            raise InputError(f"Weibull alpha {self.alpha} is not within {ALPHA_MIN} to {ALPHA_MAX}")
        if not 0 < self.beta_ms <= MAX_TIME_MS:
            raise InputError(f"Weibull beta_ms {self.beta_ms} is not within 0 to {MAX_TIME_MS}")

    @property
    def mean_ms(self) -> float:
        """Mean interarrival time in milliseconds, beta * Gamma(1 + 1 / alpha)."""
        return self.beta_ms * math.gamma(1 + 1 / self.alpha)

    def sample_ms(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Draw interarrival times in milliseconds."""
        return rng.weibull(self.alpha, size) * self.beta_ms


# Streit, Table 3.7; there beta is in seconds.
WEIBULL_TABLE = MappingProxyType(
    {
        "CTC": Weibull(alpha=0.35, beta_ms=60_000.0),
        "KTH": Weibull(alpha=0.35, beta_ms=200_000.0),
        "SDSC": Weibull(alpha=0.40, beta_ms=290_000.0),
        "LANL": Weibull(alpha=0.45, beta_ms=180_000.0),
        "PC2-2001": Weibull(alpha=0.25, beta_ms=40_000.0),
        "PC2-2002": Weibull(alpha=0.25, beta_ms=40_000.0),
        "CHPC": Weibull(alpha=0.35, beta_ms=300_000.0),
        "MHPCC": Weibull(alpha=0.35, beta_ms=120_000.0),
    }
)


def fit_weibull(interarrival_ms: npt.NDArray[np.integer], *, resolution_ms: int) -> Weibull:
    """Fit a Weibull distribution to observed interarrival times, preserving their mean.

    Of all Weibull distributions with the observed mean, choose the one with the maximum likelihood. The mean is
    preserved because it determines the offered load. An observed time x with a clock resolution of `resolution_ms`
    stands for all times within half a tick of x, so jobs submitted in the same second (x = 0) need no special case.
    """
    from scipy.optimize import minimize_scalar

    if not len(interarrival_ms) or not np.any(interarrival_ms):
        raise InputError("no time passes between the first and the last job, so there is no arrival process to learn")
    values, counts = np.unique(interarrival_ms, return_counts=True)
    mean_ms = float(np.average(values, weights=counts))
    low = np.maximum(values - resolution_ms / 2, 0.0)
    high = values + resolution_ms / 2
    with np.errstate(divide="ignore"):
        log_ratio = np.log(high) - np.log(low)
    at_zero = low == 0

    def cost(log_alpha: float) -> float:
        alpha = math.exp(log_alpha)
        beta_ms = mean_ms / math.gamma(1 + 1 / alpha)
        with np.errstate(all="ignore"):
            below = (low / beta_ms) ** alpha
            # expm1 keeps precision where a tick is short compared with the time; a difference of powers would not.
            between = np.where(at_zero, (high / beta_ms) ** alpha, below * np.expm1(alpha * log_ratio))
            log_mass = -below + np.log(-np.expm1(-between))
            total = -float(np.dot(counts, log_mass))
        return total if math.isfinite(total) else math.inf

    # Start with a coarse grid, because the bounded search alone could stop where the cost is infinite.
    grid = np.linspace(math.log(ALPHA_MIN), math.log(ALPHA_MAX), 64)
    best = int(np.argmin([cost(point) for point in grid]))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    minimum = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    alpha = min(max(math.exp(float(minimum.x)), ALPHA_MIN), ALPHA_MAX)
    return Weibull(alpha=alpha, beta_ms=mean_ms / math.gamma(1 + 1 / alpha))


def weibull_by_name(text: str) -> Weibull:
    """Return the published parameters for a text such as ``table:KTH``, where ``KTH`` is a key of `WEIBULL_TABLE`."""
    head, _, name = text.partition(":")
    if head != "table" or name not in WEIBULL_TABLE:
        names = ", ".join(WEIBULL_TABLE)
        raise OptionError("weibull", f"{text!r} is not known; write fit, or table: and one of {names}")
    return WEIBULL_TABLE[name]


# Neighbouring bins differ by 9%.
BINS_PER_OCTAVE = 8


@functools.cache
def bin_edges() -> IntArray:
    """Return the bin edges in clock ticks, from 1 to beyond the maximum time of a workload.

    Bin b holds the whole numbers t with ``edges[b] <= t < edges[b + 1]``. The edges are the distinct powers of 2^(1 /
    `BINS_PER_OCTAVE`), rounded up, so each small number of ticks has its own bin.
    """
    octaves = int(MAX_TIME_MS).bit_length()
    within = np.exp2(np.arange(BINS_PER_OCTAVE) / BINS_PER_OCTAVE)
    # ldexp scales exactly, so the powers of two are edges regardless of rounding in exp2.
    powers = np.ldexp(within[None, :], np.arange(octaves + 1)[:, None])
    edges = np.unique(np.ceil(powers).astype(np.int64))
    edges.flags.writeable = False
    return edges


def bin_of(ticks: IntArray) -> IntArray:
    """Return the bin of each time, in ticks >= 1."""
    return np.searchsorted(bin_edges(), ticks, side="right").astype(np.int64) - 1


# Codes of run times that are not binned: equal to the estimate, or killed at the estimate.
RUN_IS_ESTIMATE = -1
RUN_OVERRAN = -2

# Users choose round estimates: a trace of several years has a few hundred distinct values, which are stored exactly. If
# there are more, only estimates shared by at least two jobs and one job in two thousand are exact; the rest are binned.
MAX_EXACT_ESTIMATES = 1024
COMMON_ONE_IN = 2000

Ticks = Annotated[int, msgspec.Meta(ge=1, le=MAX_TIME_MS)]
Code = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class HistogramModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload model that consists of a Weibull distribution and a sparse histogram.

    Cell i of the histogram counts ``counts[i]`` jobs with width ``widths[i]``, estimate code ``estimates[i]`` and
    run time code ``runs[i]``. Times are in ticks of `resolution_ms`.

    Parameters
    ----------
    name : str
        Name of the workload to which the model was fitted.
    estimate_values : list of int
        Estimates that are stored exactly, in ticks.
    estimates : list of int
        Estimate of each cell: e >= 0 means ``estimate_values[e]``, e < 0 means bin -1 - e.
    runs : list of int
        Run time of each cell: a bin, `RUN_IS_ESTIMATE` or `RUN_OVERRAN`. A binned run time is shorter than the
        estimate.
    moments : Moments
        Statistics of the workload to which the model was fitted.

    Raises
    ------
    InputError
        If the columns contradict each other.
    """

    name: Name
    nodes: Width
    resolution_ms: Annotated[int, msgspec.Meta(ge=1, le=MS_PER_S)]
    weibull: Weibull
    estimate_values: list[Ticks]
    widths: list[Width]
    estimates: list[Code]
    runs: list[Code]
    counts: list[Count]
    moments: Moments

    def __post_init__(self) -> None:
        cells = len(self.counts)
        if not cells or {len(self.widths), len(self.estimates), len(self.runs)} != {cells}:
            raise InputError("the columns widths, estimates, runs and counts must have one common length, at least 1")
        if sum(self.counts) != self.moments.jobs:
            raise InputError(
                f"the counts sum to {sum(self.counts)}, the model was learnt from {self.moments.jobs} jobs"
            )
        if max(self.widths) > self.nodes:
            raise InputError(f"the model has a width of {max(self.widths)}, but its machine has {self.nodes} nodes")
        bins = len(bin_edges()) - 1
        if min(self.estimates) < -bins or max(self.estimates) >= len(self.estimate_values):
            raise InputError("estimates contains a code without a value or bin")
        if min(self.runs) < RUN_OVERRAN or max(self.runs) >= bins:
            raise InputError("runs contains a code without a bin")
        low, high = self._estimate_bounds(np.arange(cells))
        if np.any(low >= high):
            raise InputError("a cell has run times that are longer than its estimates")

    def _estimate_bounds(self, cells: IntArray) -> tuple[IntArray, IntArray]:
        """Return each cell's half-open range of estimates, limited to estimates above the cell's shortest run time."""
        edges = bin_edges()
        code = np.asarray(self.estimates, np.int64)[cells]
        run = np.asarray(self.runs, np.int64)[cells]
        values = np.asarray([*self.estimate_values, 0], np.int64)  # the last value is a placeholder
        exact = values[np.where(code >= 0, code, len(self.estimate_values))]
        box = np.where(code >= 0, 0, -1 - code)
        low = np.where(code >= 0, exact, edges[box])
        high = np.where(code >= 0, exact + 1, edges[box + 1])
        shortest = np.where(run >= 0, edges[np.maximum(run, 0)] + 1, 1)
        return np.maximum(low, shortest), high

    def draw(self, jobs: int, rng: np.random.Generator, nodes: int) -> tuple[IntArray, IntArray, IntArray, BoolArray]:
        """Draw jobs of at most ``nodes`` nodes: widths, estimates and run times in ticks, and whether each job overran.

        A cell is drawn with a probability proportional to its count, then an estimate and a run time are drawn
        uniformly from the cell's ranges. A run time never exceeds the estimate.
        """
        widths = np.asarray(self.widths, np.int64)
        fits = np.flatnonzero(widths <= nodes)
        if not len(fits):
            raise OptionError("nodes", f"no job of {self.name} fits on {nodes}; its narrowest has {widths.min()} nodes")
        cumulated = np.cumsum(np.asarray(self.counts, np.int64)[fits])
        cell = fits[np.searchsorted(cumulated, rng.integers(cumulated[-1], size=jobs), side="right")]
        low, high = self._estimate_bounds(cell)
        estimate = _uniform(low, high, rng)
        code = np.asarray(self.runs, np.int64)[cell]
        edges = bin_edges()
        box = np.maximum(code, 0)
        binned = _uniform(edges[box], np.minimum(edges[box + 1], estimate), rng)
        return widths[cell], estimate, np.where(code >= 0, binned, estimate), code == RUN_OVERRAN


def _uniform(low: IntArray, high: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw whole numbers x with low <= x < high; an empty range gives low."""
    span = np.maximum(high - low, 1)
    step: IntArray = np.minimum(np.floor(rng.random(len(low)) * span).astype(np.int64), span - 1)
    return low + step


def learn_histogram(workload: Workload, *, nodes: int | None = None, weibull: str | Weibull = "fit") -> HistogramModel:
    """Fit a histogram model to a workload.

    Parameters
    ----------
    workload : Workload
        At least two jobs with different submit times.
    nodes : int, optional
        Size of the machine; defaults to the workload's.
    weibull : str or Weibull
        Distribution of interarrival times: ``fit`` (`gridweave.scenarios.generators.histogram.fit_weibull`),
        ``table:NAME`` for the parameters in Streit, Table 3.7, or a `Weibull`.

    Raises
    ------
    InputError
        If the workload has fewer than two jobs, or all have the same submit time.
    OptionError
        If the machine size is unknown or too small, or `weibull` is invalid.
    """
    nodes = machine_nodes(workload, nodes)
    moments = measure(workload, nodes)
    tick = resolution_ms(workload)
    if weibull == "fit":
        law = fit_weibull(np.diff(workload.submit_ms), resolution_ms=tick)
    else:
        law = weibull_by_name(weibull) if isinstance(weibull, str) else weibull
    estimate, run = workload.estimate_ms // tick, workload.run_ms // tick
    values, estimate_code = _estimate_codes(estimate)
    run_code = np.where(run == estimate, np.where(workload.overran, RUN_OVERRAN, RUN_IS_ESTIMATE), bin_of(run))
    table = np.stack([workload.width, estimate_code, run_code], axis=1)
    cells, counts = np.unique(table, axis=0, return_counts=True)
    return HistogramModel(
        name=plain_name(workload.name),
        nodes=nodes,
        resolution_ms=tick,
        weibull=law,
        estimate_values=values.tolist(),
        widths=cells[:, 0].tolist(),
        estimates=cells[:, 1].tolist(),
        runs=cells[:, 2].tolist(),
        counts=counts.tolist(),
        moments=moments,
    )


def _estimate_codes(estimate: IntArray) -> tuple[IntArray, IntArray]:
    """Return the estimates to store exactly, in ascending order, and the code of each job's estimate."""
    values, counts = np.unique(estimate, return_counts=True)
    if len(values) > MAX_EXACT_ESTIMATES:
        values = values[(counts > 1) & (counts * COMMON_ONE_IN >= len(estimate))]
    index = np.searchsorted(values, estimate)
    exact = np.zeros(len(estimate), np.bool_)
    if len(values):
        exact = values[np.minimum(index, len(values) - 1)] == estimate
    return values, np.where(exact, index, -1 - bin_of(estimate))


def generate_histogram(
    model: HistogramModel, jobs: int, rng: np.random.Generator, **scaling: Unpack[Scaling]
) -> Workload:
    """Generate a workload from a histogram model.

    The first job is submitted at time zero. Interarrival times come from the Weibull distribution. Width, estimate and
    run time come from the histogram, independently of the arrivals (Streit, section 3.6; there is no daily cycle).

    Parameters
    ----------
    jobs : int
        Number of jobs, >= 1.
    rng : numpy.random.Generator
        Arrivals and jobs are drawn from two spawned streams.
    **scaling
        See `Scaling`.

    Returns
    -------
    Workload
        Times are whole ticks of the model; job ids start at 1.

    Raises
    ------
    OptionError
        If an argument is out of range.
    """
    request = Request.of(jobs, model.nodes, scaling)
    arrivals, cells = rng.spawn(2)
    gaps_ms = model.weibull.sample_ms(arrivals, jobs - 1)
    width, estimate, run, overran = model.draw(jobs, cells, request.nodes)
    return assemble(
        model.name,
        request,
        submit_ms=np.concatenate([[0.0], np.cumsum(gaps_ms)]),
        width=width,
        estimate_ms=estimate.astype(np.float64) * model.resolution_ms,
        run_ms=run.astype(np.float64) * model.resolution_ms,
        overran=overran,
        resolution_ms=model.resolution_ms,
    )

"""The workload model of Jann et al. and Zhang et al.: hyper-Erlang arrivals and run times for each width class.

Zhang, Franke, Moreira and Sivasubramaniam, *A Comparative Analysis of Space- and Time-Sharing Techniques for Parallel
Job Scheduling in Large Scale Parallel Systems* (below: *Zhang*), section 2.1. Jobs are grouped into width classes whose
upper bounds are powers of two. Each class is a separate renewal process. Its interarrival times and its run times have
hyper-Erlang distributions of common order, fitted to the first three moments.

Such a distribution is a mixture of two Erlang distributions with the same number of phases n: J. Jann, P. Pattnaik, H.
Franke, F. Wang, J. Skovira and J. Riodan, *Modeling of Workload in MPPs* (JSSPP 1997; below: *Jann*). M. Johnson and M.
Taaffe (*Matching moments to phase distributions: mixtures of Erlang distributions of common order*, 1989) show which
moments such a mixture can have; see `fit_sample`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    check_positive,
    machine_nodes,
    measure,
    plain_name,
    resolution_ms,
    submission_span_ms,
)
from gridweave.scenarios.traces.convert import check_nodes
from gridweave.scenarios.workload.table import MS_PER_S, IntArray, Workload

# With ten thousand phases, a branch's coefficient of variation is 0.01, so a branch with more is treated as constant.
MAX_ORDER = 10_000

# A branch's mean may exceed all observed times, but its moments must fit in a float.
MAX_MEAN_MS = 1e30

# Rounding error of moments of magnitude 1; smaller differences count as zero.
_NOISE = 1e-12


class HyperErlang(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mixture of one or two Erlang distributions of common order.

    With probability ``probabilities[i]``, a value is Erlang distributed with `order` phases and mean ``means_ms[i]``;
    the rate of a phase is order / mean.

    Parameters
    ----------
    order : int or None
        Number of phases n >= 1. None is the limit of infinitely many phases, where each branch is a constant.
    probabilities : tuple of float
        One or two values > 0 that sum to 1.
    means_ms : tuple of float
        Means of the branches in milliseconds, ascending and > 0; the mean of a constant branch may be 0.

    Raises
    ------
    InputError
        If a parameter is out of range.
    """

    order: Annotated[int, msgspec.Meta(ge=1, le=MAX_ORDER)] | None
    probabilities: Annotated[tuple[float, ...], msgspec.Meta(min_length=1, max_length=2)]
    means_ms: Annotated[tuple[float, ...], msgspec.Meta(min_length=1, max_length=2)]

    def __post_init__(self) -> None:
        if len(self.probabilities) != len(self.means_ms):
            raise InputError("a hyper-Erlang distribution needs as many probabilities as means")
        if not all(0 < p <= 1 for p in self.probabilities) or abs(sum(self.probabilities) - 1) > 1e-9:
            raise InputError(f"the probabilities {self.probabilities} of a hyper-Erlang distribution must sum to 1")
        if not all(0 <= mean <= MAX_MEAN_MS for mean in self.means_ms) or max(self.means_ms) <= 0:
            raise InputError(
                f"the means {self.means_ms} of a hyper-Erlang distribution must be within 0 to {MAX_MEAN_MS}"
            )
        if self.order is not None and min(self.means_ms) <= 0:
            raise InputError(f"a branch of order {self.order} has mean 0; it must be > 0")

    def moment(self, k: int) -> float:
        """Return the k-th raw moment E[X^k], in milliseconds to the power of k."""
        phases = 1.0 if self.order is None else math.prod(1 + j / self.order for j in range(k))
        return phases * math.fsum(p * mean**k for p, mean in zip(self.probabilities, self.means_ms, strict=True))

    def sample_ms(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Draw values in milliseconds."""
        return self._draw(rng, size, self.probabilities, self.order)

    def sample_residual_ms(self, rng: np.random.Generator) -> float:
        """Draw the time until the next event of a stationary renewal process with this distribution.

        The interval that contains a given time has the length-weighted distribution, and the time is uniform within it.
        Length weighting turns an Erlang distribution of order n into one of order n + 1 with the same rate.
        """
        weights = [p * mean / self.moment(1) for p, mean in zip(self.probabilities, self.means_ms, strict=True)]
        interval = self._draw(rng, 1, weights, None if self.order is None else self.order + 1)[0]
        return float(interval * rng.random())

    def _draw(self, rng: np.random.Generator, size: int, weights: Sequence[float], shape: int | None) -> FloatArray:
        """Draw Erlang values of `shape` phases from the branches, weighted by ``weights``."""
        second = rng.random(size) >= weights[0] if len(weights) == 2 else np.zeros(size, np.bool_)
        mean = np.where(second, self.means_ms[-1], self.means_ms[0])
        if self.order is None or shape is None:
            return mean
        return rng.standard_gamma(shape, size) * (mean / self.order)


def fit_sample(values_ms: npt.NDArray[np.integer] | FloatArray) -> HyperErlang:
    """Fit a hyper-Erlang distribution of common order to the first three moments of a sample of non-negative values.

    The order is the lowest possible. If all values are equal, the distribution is a constant.

    Notes
    -----
    The k-th moment of an Erlang distribution of order n and mean a is a^k n (n + 1) ... (n + k - 1) / n^k. Dividing the
    sample's moments m1, m2, m3 by these factors gives the moments t1, t2, t3 of a two-point distribution of branch
    means, with variance V and third central moment K. The two branch means are t1 + d-, t1 + d+, where d-, d+ are the
    roots of d^2 - (K / V) d - V = 0, and the smaller mean has probability d+ / (d+ - d-).

    This works with positive means if and only if t2 > t1^2 and t1 t3 > t2^2, i.e. (Johnson and Taaffe, 1989) if n >
    m1^2 / (m2 - m1^2) and (n + 2) / (n + 1) < m1 m3 / m2^2. For any data, both conditions hold for large n, unless
    all values, or all nonzero values, are equal. In that case, or if more than `MAX_ORDER` phases are needed, the
    branches are constants (order None) with the same three moments. If t2 = t1^2 and t3 = t1^3, one branch is enough.
    """
    values = np.asarray(values_ms, np.float64)
    if not len(values) or not np.all(np.isfinite(values)) or values.min() < 0 or values.max() == 0:
        raise InputError("fitting a distribution takes at least one value, none negative and not all zero")
    mean = math.fsum(values) / len(values)
    deviation = values / mean - 1
    deviation -= deviation.mean()
    return _fit(mean, float(np.mean(deviation**2)), float(np.mean(deviation**3)))


def _fit(mean: float, variance: float, skew: float) -> HyperErlang:
    """Fit a distribution to a mean and to the second and third central moments in units of that mean."""
    if variance <= _NOISE:
        return HyperErlang(order=None, probabilities=(1.0,), means_ms=(mean,))
    order = _lowest_order(variance, skew)
    while order <= MAX_ORDER:
        branches = _branches(order, variance, skew)
        if branches is not None:
            probabilities, points = branches
            return HyperErlang(order, probabilities, tuple(mean * point for point in points))
        order += 1
    probabilities, points = _two_points(variance, skew)
    return HyperErlang(None, probabilities, tuple(mean * max(point, 0.0) for point in points))


def _lowest_order(variance: float, skew: float) -> int:
    """Return a lower bound on the order from Johnson and Taaffe's two conditions; it is exact except for rounding."""
    from_variance = 1 / variance
    ratio_above_one = (skew + variance - variance**2) / (1 + variance) ** 2
    from_skew = 1 / ratio_above_one - 1 if ratio_above_one > 0 else math.inf
    return max(1, math.floor(min(max(from_variance, from_skew) * (1 - 1e-9), float(MAX_ORDER)) + 1e-9))


def _branches(order: int, variance: float, skew: float) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the branches' probabilities and means (in units of the overall mean), or None if the order is too low."""
    n = float(order)
    left = (n * variance - 1) / (n + 1)
    third = (n * n * skew - 6 * n * variance + 4) / ((n + 1) * (n + 2))
    if abs(left) <= _NOISE and abs(third) <= _NOISE:
        return (1.0,), (1.0,)
    if left <= _NOISE:
        return None
    probabilities, points = _two_points(left, third)
    return (probabilities, points) if points[0] > 0 else None


def _two_points(variance: float, skew: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the probabilities and the ascending points of the two-point distribution with mean 1 and these moments."""
    slope = skew / variance
    root = math.hypot(slope, 2 * math.sqrt(variance))
    # To avoid cancellation, add to get the larger deviation; the smaller follows from their product, -variance.
    if slope >= 0:
        above = (slope + root) / 2
        below = -variance / above
    else:
        below = (slope - root) / 2
        above = -variance / below
    return (above / (above - below), -below / (above - below)), (1 + below, 1 + above)


Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]

# Number of a class's jobs drawn at a time; fixed, so that a shorter workload is a prefix of a longer one.
_CHUNK = 1024


class SizeClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The jobs of one width class.

    Parameters
    ----------
    max_width : int
        Upper bound of the class's widths.
    widths : list of int
        Widths that occur in the class, in ascending order.
    interarrival : HyperErlang
        Time between consecutive submissions in this class.

    Raises
    ------
    InputError
        If the columns contradict each other.
    """

    max_width: Width
    widths: list[Width]
    counts: list[Count]
    interarrival: HyperErlang
    run: HyperErlang

    def __post_init__(self) -> None:
        if not self.counts or len(self.widths) != len(self.counts):
            raise InputError("the widths and counts of a class must have one common length, at least 1")
        if max(self.widths) > self.max_width:
            raise InputError(f"a class of widths up to {self.max_width} has a width of {max(self.widths)}")

    @property
    def jobs(self) -> int:
        """Number of jobs to which the class was fitted."""
        return sum(self.counts)

    def jobs_per_ms(self, nodes: int) -> float:
        """Return the arrival rate, per ms, of jobs with at most ``nodes`` nodes."""
        narrow = sum(count for width, count in zip(self.widths, self.counts, strict=True) if width <= nodes)
        return narrow / self.jobs / self.interarrival.moment(1)

    def nodes_in_use(self, nodes: int) -> float:
        """Return the mean number of nodes occupied by jobs of at most ``nodes`` nodes: rate x run time x width."""
        pairs = zip(self.widths, self.counts, strict=True)
        mean_width = sum(width * count for width, count in pairs if width <= nodes) / self.jobs
        return mean_width * self.run.moment(1) / self.interarrival.moment(1)


class Stream:
    """The jobs of one class with at most ``nodes`` nodes, drawn on demand.

    The process starts in its stationary state: the first gap is the remainder of an interval in progress. Arrivals,
    widths and run times are drawn from separate streams.
    """

    def __init__(self, group: SizeClass, nodes: int, rng: np.random.Generator) -> None:
        self._group, self._nodes = group, nodes
        self._arrivals, self._widths, self._runs = rng.spawn(3)
        self._cumulated = np.cumsum(np.asarray(group.counts, np.int64))
        self._last_ms = 0.0
        self._chunks: list[tuple[FloatArray, FloatArray, FloatArray]] = []

    def jobs_until(self, horizon_ms: float) -> int:
        """Draw jobs up to a time; return the number of jobs submitted until then."""
        while self._last_ms <= horizon_ms:
            self._draw()
        return sum(int(np.searchsorted(submit_ms, horizon_ms, side="right")) for submit_ms, _, _ in self._chunks)

    def columns_until(self, horizon_ms: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the ascending submit times, widths and run times of jobs up to a time passed to `jobs_until`."""
        submit_ms, width, run_ms = (np.concatenate(parts) for parts in zip(*self._chunks, strict=True))
        count = int(np.searchsorted(submit_ms, horizon_ms, side="right"))
        return submit_ms[:count], width[:count], run_ms[:count]

    def _draw(self) -> None:
        gaps_ms = self._group.interarrival.sample_ms(self._arrivals, _CHUNK)
        if not self._chunks:
            gaps_ms[0] = self._group.interarrival.sample_residual_ms(self._arrivals)
        submit_ms = self._last_ms + np.cumsum(gaps_ms)
        pick = self._widths.integers(self._cumulated[-1], size=_CHUNK)
        width = np.asarray(self._group.widths, np.float64)[np.searchsorted(self._cumulated, pick, side="right")]
        run_ms = self._group.run.sample_ms(self._runs, _CHUNK)
        fits = width <= self._nodes
        self._last_ms = float(submit_ms[-1])
        self._chunks.append((submit_ms[fits], width[fits], run_ms[fits]))


class HyperErlangModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload model with one renewal process per width class.

    Parameters
    ----------
    name : str
        Name of the workload to which the model was fitted.
    classes : list of SizeClass
        The width classes, in ascending order of width.
    moments : Moments
        Statistics of the workload to which the model was fitted.

    Raises
    ------
    InputError
        If there is no class, or a job is wider than the machine.
    """

    name: Name
    nodes: Width
    resolution_ms: Annotated[int, msgspec.Meta(ge=1, le=MS_PER_S)]
    classes: list[SizeClass]
    moments: Moments

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("a hyper-Erlang model has at least one class of widths")
        widest = max(max(group.widths) for group in self.classes)
        if widest > self.nodes:
            raise InputError(f"the model has a width of {widest}, but its machine has {self.nodes} nodes")

    def offered_load(self, nodes: int | None = None) -> float:
        """Return the offered load according to the model's means.

        Parameters
        ----------
        nodes : int, optional
            Size of the machine; defaults to the model's. Wider jobs are ignored.

        Returns
        -------
        float
            Mean number of busy nodes, divided by all nodes. Long generated workloads approach this load.
        """
        nodes = self.nodes if nodes is None else nodes
        check_nodes(nodes)
        return math.fsum(group.nodes_in_use(nodes) for group in self.classes) / nodes


def learn_hyper_erlang(workload: Workload, *, nodes: int | None = None) -> HyperErlangModel:
    """Fit a hyper-Erlang model to a workload.

    Parameters
    ----------
    workload : Workload
        At least two jobs with different submit times.
    nodes : int, optional
        Size of the machine; defaults to the workload's.

    Raises
    ------
    InputError
        If the workload has fewer than two jobs, or all have the same submit time.
    OptionError
        If the machine size is unknown or too small.

    Notes
    -----
    The classes are 1, 2, 3-4, 5-8, ... nodes. Zhang does not say how to draw a width within a class; this model draws
    it by frequency, independently of the run time.

    A class of k jobs has k interarrival times: k - 1 between its jobs, and one that wraps around from its last job to
    its first, as if the trace were a ring. (The length of the ring is the span of the trace plus the mean interarrival
    time of all jobs.) The model therefore keeps the trace's offered load and each class's arrival rate, even if a class
    has only a few jobs close together. A class of one or two jobs is modelled as a Poisson process with that rate,
    because three moments of one or two values are meaningless.
    """
    nodes = machine_nodes(workload, nodes)
    moments = measure(workload, nodes)
    ring_ms = submission_span_ms(workload) * len(workload) / (len(workload) - 1)
    bounds = _upper_bound(workload.width)
    classes = []
    for bound in np.unique(bounds).tolist():
        rows = bounds == bound
        submit_ms = workload.submit_ms[rows]
        widths, counts = np.unique(workload.width[rows], return_counts=True)
        classes.append(
            SizeClass(
                max_width=min(bound, nodes),
                widths=widths.tolist(),
                counts=counts.tolist(),
                interarrival=_fit_arrivals(submit_ms, ring_ms),
                run=fit_sample(workload.run_ms[rows]),
            )
        )
    return HyperErlangModel(plain_name(workload.name), nodes, resolution_ms(workload), classes, moments)


def _upper_bound(width: IntArray) -> IntArray:
    """Return, for each width, the smallest power of two that is at least that width."""
    return np.left_shift(np.int64(1), np.frexp(width - 1)[1].astype(np.int64))


def _fit_arrivals(submit_ms: IntArray, ring_ms: float) -> HyperErlang:
    """Fit a class's interarrival times, as if the trace were a ring of this length."""
    if len(submit_ms) < 3:
        return HyperErlang(order=1, probabilities=(1.0,), means_ms=(ring_ms / len(submit_ms),))
    around = ring_ms - float(submit_ms[-1] - submit_ms[0])
    return fit_sample(np.append(np.diff(submit_ms), around))


def rescale(model: HyperErlangModel, *, nodes: int, max_width: int | None = None) -> HyperErlangModel:
    """Convert a model to a machine of another size.

    Parameters
    ----------
    nodes : int
        Number of nodes of the new machine.
    max_width : int, optional
        Maximum width of a job; defaults to the whole machine. Wider jobs get this width and keep their arrivals and
        run times.

    Raises
    ------
    OptionError
        If `nodes` or `max_width` is out of range.

    Examples
    --------
    Zhang, section 2.2, uses 320 nodes and jobs of up to 256 nodes: ``rescale(model, nodes=320, max_width=256)``.
    """
    check_nodes(nodes)
    max_width = nodes if max_width is None else max_width
    if not 1 <= max_width <= nodes:
        raise OptionError("max_width", f"{max_width} is not within 1 to the {nodes} nodes of the machine")
    classes = []
    for group in model.classes:
        capped = np.minimum(group.widths, max_width)
        widths = np.unique(capped)
        counts = [sum(n for w, n in zip(capped, group.counts, strict=True) if w == width) for width in widths]
        classes.append(
            SizeClass(min(group.max_width, max_width), widths.tolist(), counts, group.interarrival, group.run)
        )
    return HyperErlangModel(model.name, nodes, model.resolution_ms, classes, model.moments)


def interarrival_factor_for(model: HyperErlangModel, load: float, *, nodes: int | None = None) -> float:
    """Return the factor by which to scale interarrival times so that the model offers a given load.

    Parameters
    ----------
    load : float
        Desired offered load, > 0; the baseline workload of Zhang has 0.55.
    nodes : int, optional
        Size of the machine; defaults to the model's.

    Raises
    ------
    OptionError
        If `load` or `nodes` is out of range, or no job of the model fits on the machine.
    """
    check_positive("load", load)
    offered = model.offered_load(nodes)
    if offered == 0:
        raise OptionError("nodes", f"no job of {model.name} fits on {nodes}")
    return offered / load


def generate_hyper_erlang(
    model: HyperErlangModel, jobs: int, rng: np.random.Generator, **scaling: Unpack[Scaling]
) -> Workload:
    """Generate a workload with perfect estimates: the first jobs of all classes' arrival processes, merged.

    Each class starts in its stationary state, so its arrival rate is constant from the beginning. The random numbers do
    not depend on the two factors: workloads with the same seed differ only by the factors (Zhang, section 2.2: run
    times multiplied by 1.0 to 1.8 with the same arrivals).

    Parameters
    ----------
    jobs : int
        Number of jobs, >= 1.
    rng : numpy.random.Generator
        Each class draws from its own spawned streams.
    **scaling
        See `Scaling`. For a factor that gives a load only on average, use `interarrival_factor_for`.

    Returns
    -------
    Workload
        The first job is submitted at time zero, job ids start at 1, and times are whole ticks of the model.

    Raises
    ------
    OptionError
        If an argument is out of range, or no job of the model fits on the machine.
    """
    request = Request.of(jobs, model.nodes, scaling)
    rate = math.fsum(group.jobs_per_ms(request.nodes) for group in model.classes)
    if rate == 0:
        raise OptionError("nodes", f"no job of {model.name} fits on {request.nodes}")
    sources = rng.spawn(len(model.classes))
    streams = [Stream(group, request.nodes, source) for group, source in zip(model.classes, sources, strict=True)]
    horizon_ms = jobs / rate
    while sum(stream.jobs_until(horizon_ms) for stream in streams) < jobs:
        horizon_ms *= 1.25
    columns = [stream.columns_until(horizon_ms) for stream in streams]
    submit_ms, width, run_ms = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    first = np.argsort(submit_ms, kind="stable")[:jobs]
    return assemble(
        model.name,
        request,
        submit_ms=submit_ms[first],
        width=width[first].astype(np.int64),
        estimate_ms=run_ms[first],
        run_ms=run_ms[first],
        resolution_ms=model.resolution_ms,
    )

"""The workload model of Streit's thesis: Weibull interarrival times and a histogram of width, estimate and run time.

A. Streit, *Self-Tuning Job Scheduling Strategies for the Resource Management of HPC Systems and Computational Grids*
(below: *Streit*), section 3.6. No distribution fits width, estimate and run time together, so the model keeps the
frequency of every combination that occurred.

Bins for times: exact where times are short, of a constant ratio where they are long.
"""

from __future__ import annotations

import functools
from typing import Annotated

import msgspec
import numpy as np

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.generators.assemble import assemble, check_request
from gridweave.scenarios.generators.moments import Moments, Name, machine_nodes, measure, plain_name, resolution_ms
from gridweave.scenarios.generators.weibull import Weibull, fit_weibull, weibull_by_name
from gridweave.scenarios.workload.table import MAX_TIME_MS, MAX_WIDTH, MS_PER_S, BoolArray, IntArray, Workload

# Eight to an octave: neighbouring bins differ by 9%.
BINS_PER_OCTAVE = 8


@functools.cache
def bin_edges() -> IntArray:
    """Return the edges of the bins, in ticks of the clock.

    Bin b holds the whole numbers t with ``edges[b] <= t < edges[b + 1]``. The edges are the powers of
    2^(1 / `BINS_PER_OCTAVE`), rounded up; where these coincide there is one, so that up to a few ticks every number has
    a bin of its own.

    Returns
    -------
    numpy.ndarray of int64
        Ascending, from 1 to beyond the longest time that a workload holds. Read-only.
    """
    octaves = int(MAX_TIME_MS).bit_length()
    within = np.exp2(np.arange(BINS_PER_OCTAVE) / BINS_PER_OCTAVE)
    # Scaled by ldexp, which is exact: the powers of two are edges, whatever the last bit of exp2.
    powers = np.ldexp(within[None, :], np.arange(octaves + 1)[:, None])
    edges = np.unique(np.ceil(powers).astype(np.int64))
    edges.flags.writeable = False
    return edges


def bin_of(ticks: IntArray) -> IntArray:
    """Return the bin of each time, in ticks from 1 up."""
    return np.searchsorted(bin_edges(), ticks, side="right").astype(np.int64) - 1


# Codes of run times that are no bin: exactly the estimate, by itself or killed there.
RUN_IS_ESTIMATE = -1
RUN_OVERRAN = -2

# Users choose round estimates, a few hundred different ones in a trace of years: each is kept as it is. Where there are
# more, only those that one job in two thousand has, and two at least, are kept; the others go into bins.
MAX_EXACT_ESTIMATES = 1024
COMMON_ONE_IN = 2000

Width = Annotated[int, msgspec.Meta(ge=1, le=MAX_WIDTH)]
Ticks = Annotated[int, msgspec.Meta(ge=1, le=MAX_TIME_MS)]
Code = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class HistogramModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload as a Weibull law and a sparse histogram.

    Cell i of the histogram says that ``counts[i]`` jobs had the width ``widths[i]``, an estimate of code
    ``estimates[i]`` and a run time of code ``runs[i]``. Times are in ticks of `resolution_ms`.

    Parameters
    ----------
    name : str
        What the model was learnt from.
    nodes : int
        Nodes of that machine.
    resolution_ms : int
        Tick of its clock.
    weibull : Weibull
        Interarrival times.
    estimate_values : list of int
        Estimates that are kept exactly, in ticks.
    widths : list of int
        Width of each cell.
    estimates : list of int
        Estimate of each cell: e >= 0 is ``estimate_values[e]``, e < 0 is bin -1 - e.
    runs : list of int
        Run time of each cell: a bin, or `RUN_IS_ESTIMATE` or `RUN_OVERRAN`. A run time in a bin is shorter than the
        estimate.
    counts : list of int
        Jobs in each cell.
    moments : Moments
        Figures of the workload it was learnt from.

    Raises
    ------
    InputError
        If the columns do not agree with each other.
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
            raise InputError(f"a width of {max(self.widths)} stands in the model of a machine of {self.nodes} nodes")
        bins = len(bin_edges()) - 1
        if min(self.estimates) < -bins or max(self.estimates) >= len(self.estimate_values):
            raise InputError("estimates holds a code for which there is neither a value nor a bin")
        if min(self.runs) < RUN_OVERRAN or max(self.runs) >= bins:
            raise InputError("runs holds a code for which there is no bin")
        low, high = self._estimate_bounds(np.arange(cells))
        if np.any(low >= high):
            raise InputError("a cell has run times that are longer than its estimates")

    def _estimate_bounds(self, cells: IntArray) -> tuple[IntArray, IntArray]:
        """Return the least estimate of each cell and the first beyond its greatest, above its least run time."""
        edges = bin_edges()
        code = np.asarray(self.estimates, np.int64)[cells]
        run = np.asarray(self.runs, np.int64)[cells]
        values = np.asarray([*self.estimate_values, 0], np.int64)  # the last is never asked for
        exact = values[np.where(code >= 0, code, len(self.estimate_values))]
        box = np.where(code >= 0, 0, -1 - code)
        low = np.where(code >= 0, exact, edges[box])
        high = np.where(code >= 0, exact + 1, edges[box + 1])
        shortest = np.where(run >= 0, edges[np.maximum(run, 0)] + 1, 1)
        return np.maximum(low, shortest), high

    def draw(self, jobs: int, rng: np.random.Generator, nodes: int) -> tuple[IntArray, IntArray, IntArray, BoolArray]:
        """Draw jobs from the histogram.

        The cell comes first, with a probability in proportion to its count; then an estimate and a run time, uniform
        over the ticks that the cell allows. A run time is never longer than the estimate.

        Parameters
        ----------
        jobs : int
            How many.
        rng : numpy.random.Generator
            Three numbers per job.
        nodes : int
            Jobs wider than this are left out: the histogram is restricted to the others.

        Returns
        -------
        width, estimate, run : numpy.ndarray of int64, shape (jobs,)
            The times in ticks.
        overran : numpy.ndarray of bool, shape (jobs,)

        Raises
        ------
        OptionError
            If no job is that narrow.
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
    """Draw whole numbers, low <= x < high; low where there is no room."""
    room = np.maximum(high - low, 1)
    step: IntArray = np.minimum(np.floor(rng.random(len(low)) * room).astype(np.int64), room - 1)
    return low + step


def learn_histogram(workload: Workload, *, nodes: int | None = None, weibull: str | Weibull = "fit") -> HistogramModel:
    """Learn the model from a workload.

    Parameters
    ----------
    workload : Workload
        At least two jobs, not all submitted at one instant.
    nodes : int, optional
        Size of the machine; that of the workload if left out.
    weibull : str or Weibull
        Interarrival times: ``fit`` (`gridweave.scenarios.generators.weibull.fit_weibull`), ``table:NAME`` for the
        parameters of Streit, Table 3.7, or the law itself.

    Raises
    ------
    InputError
        If the workload has too few jobs.
    OptionError
        If the machine size is unknown or too small, or `weibull` names no law.
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
    """Return the estimates that are kept exactly, ascending, and the code of each job's estimate."""
    values, counts = np.unique(estimate, return_counts=True)
    if len(values) > MAX_EXACT_ESTIMATES:
        values = values[(counts > 1) & (counts * COMMON_ONE_IN >= len(estimate))]
    place = np.searchsorted(values, estimate)
    exact = np.zeros(len(estimate), np.bool_)
    if len(values):
        exact = values[np.minimum(place, len(values) - 1)] == estimate
    return values, np.where(exact, place, -1 - bin_of(estimate))


def generate_histogram(
    model: HistogramModel,
    jobs: int,
    rng: np.random.Generator,
    *,
    nodes: int | None = None,
    load: float | None = None,
    run_factor: float = 1.0,
    interarrival_factor: float = 1.0,
) -> Workload:
    """Generate a workload.

    The first job is submitted at time zero. Interarrival times are drawn from the Weibull law, and width, estimate and
    run time from the histogram, independent of the arrivals (Streit, section 3.6; there is no daily cycle).

    Parameters
    ----------
    jobs : int
        Number of jobs, >= 1.
    rng : numpy.random.Generator
        Arrivals and jobs are drawn from two streams spawned from it.
    nodes : int, optional
        Size of the machine; that of the model if left out. Jobs that are wider do not occur.
    load : float, optional
        Offered load of the generated jobs, > 0, before the two factors: total area over nodes x time from the first
        submission to the last. All interarrival times are multiplied by one number to reach it.
    run_factor : float
        Run times and estimates are multiplied by it, > 0.
    interarrival_factor : float
        Interarrival times are multiplied by it, > 0.

    Returns
    -------
    Workload
        With times in whole ticks of the model, and ids from 1.

    Raises
    ------
    OptionError
        If an argument is out of its bounds.
    """
    nodes = model.nodes if nodes is None else nodes
    check_request(jobs, nodes, load, run_factor, interarrival_factor)
    arrivals, cells = rng.spawn(2)
    gaps_ms = model.weibull.sample_ms(arrivals, jobs - 1)
    width, estimate, run, overran = model.draw(jobs, cells, nodes)
    return assemble(
        model.name,
        submit_ms=np.concatenate([[0.0], np.cumsum(gaps_ms)]),
        width=width,
        estimate_ms=estimate.astype(np.float64) * model.resolution_ms,
        run_ms=run.astype(np.float64) * model.resolution_ms,
        overran=overran,
        nodes=nodes,
        resolution_ms=model.resolution_ms,
        load=load,
        run_factor=run_factor,
        interarrival_factor=interarrival_factor,
    )

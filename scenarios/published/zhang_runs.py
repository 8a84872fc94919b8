"""The simulations behind Figures 5 to 8 of Zhang et al., with CTC-SP2 in place of the trace that is not public.

Zhang, Franke, Moreira and Sivasubramaniam, *A Comparative Analysis of Space- and Time-Sharing Techniques for Parallel
Job Scheduling in Large Scale Parallel Systems* (below: *Zhang*), sections 2 to 4. Their model is fitted to CTC-SP2; the
rest is as in section 2.2: 320 nodes, jobs of up to 256 nodes, 10,000 jobs, a baseline load of 0.55 and eight workloads
with the same arrivals and run times 1.1 to 1.8 times as long.

CTC-SP2 has far fewer large jobs than the paper's workload. To tell what that does, every figure is also made with the
large jobs coming so much more often that they are 30% of the jobs, as in the paper.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.scenarios.generators.hyper_erlang import (
    HyperErlang,
    HyperErlangModel,
    generate_hyper_erlang,
    learn_hyper_erlang,
    rescale,
)
from gridweave.scenarios.published.thesis_runs import THESIS_TRACES, Progress
from gridweave.scenarios.traces.swf import read_swf
from gridweave.scenarios.workload.columns import NARROW_UP_TO
from gridweave.scenarios.workload.estimates import with_estimates
from gridweave.scenarios.workload.table import MS_PER_S, Workload

if TYPE_CHECKING:
    from pathlib import Path

    from gridweave.scenarios.results.schedule import SimulationResult

FloatArray = npt.NDArray[np.float64]

TRACE, TRACE_NODES = THESIS_TRACES["CTC"].name, THESIS_TRACES["CTC"].nodes
NODES, MAX_WIDTH, JOBS, BASELINE_LOAD = 320, 256, 10_000, 0.55
RUN_FACTORS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8)
CLASSES = 10
DEFAULT_SEEDS = 3


class Reading(NamedTuple):
    """How what the paper leaves open is read.

    Parameters
    ----------
    discipline : str
        What backfilling is: "queue" (EASY: only the first waiting job is not delayed) or "planning" (no job ahead is).
    large_share : float or None
        Share of large jobs that the model is changed to; None to leave it as it was fitted.
    """

    discipline: str
    large_share: float | None = None


LARGE_SHARE = 0.30
"""Share of jobs of more than 32 nodes in the paper's workload (Zhang, section 2.2)."""

READINGS = {
    "EASY": Reading("queue"),
    "planning": Reading("planning"),
    "EASY (30% large)": Reading("queue", LARGE_SHARE),
    "planning (30% large)": Reading("planning", LARGE_SHARE),
}
"""Name to reading."""


class Setting(NamedTuple):
    """One line of a figure.

    Parameters
    ----------
    order : str
        Order of the queue, as in `gridweave.site.policy.SitePolicy`.
    estimates : str
        As in `gridweave.scenarios.workload.estimates.with_estimates`.
    """

    order: str
    estimates: str


@dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """What one setting gives at the nine workloads: means over the seeds.

    Parameters
    ----------
    rho : numpy.ndarray of float64, shape (9,)
        Utilisation (Zhang, equation 1).
    wait_s : numpy.ndarray of float64, shape (9,)
        Average wait.
    slowdown : numpy.ndarray of float64, shape (9,)
        Average slowdown, bounded by 10 s.
    loss : numpy.ndarray of float64, shape (9,)
        Loss of capacity (Zhang, equation 2).
    class_wait_s : numpy.ndarray of float64, shape (9, 10)
        Average wait of the classes of estimators (see `estimator_class`); NaN for perfect estimates.
    """

    rho: FloatArray
    wait_s: FloatArray
    slowdown: FloatArray
    loss: FloatArray
    class_wait_s: FloatArray

    @property
    def highest(self) -> float:
        """The highest utilisation that is reached."""
        return float(self.rho.max())

    def at(self, values: FloatArray, utilisation: float) -> float:
        """Return a quantity at a utilisation, as it is read from a figure: on the straight line between two workloads.

        Parameters
        ----------
        values : numpy.ndarray of float64, shape (9,)
            One of the arrays of this curve.

        Returns
        -------
        float
            Below the first workload its value; NaN above the highest utilisation that is reached.
        """
        if utilisation > self.highest:
            return float("nan")
        after = int(np.argmax(self.rho >= utilisation))
        if after == 0:
            return float(values[0])
        part = (utilisation - self.rho[after - 1]) / (self.rho[after] - self.rho[after - 1])
        return float(values[after - 1] + part * (values[after] - values[after - 1]))


class _Point(NamedTuple):
    """One simulation."""

    rho: float
    wait_s: float
    slowdown: float
    loss: float
    class_wait_s: FloatArray


def estimator_class(workload: Workload, estimates: str) -> npt.NDArray[np.int64]:
    """Return which of ten classes of estimators each job is in (Zhang, section 4).

    Parameters
    ----------
    estimates : str
        The model that its estimates are drawn from: ``omega:X`` or ``phi:X``.

    Returns
    -------
    numpy.ndarray of int64, shape (n,)
        Omega model: class i has the ratios of estimate to run time from 1 + i X / 10 up to, not including,
        1 + (i + 1) X / 10. Phi model: class i has those whose run time is more than i and at most i + 1 tenths of the
        estimate. Rounding of estimates to whole milliseconds is not let to make an eleventh class.

    Raises
    ------
    OptionError
        If the model has no such classes.
    """
    name, _, text = estimates.partition(":")
    if name == "omega" and float(text) > 0:
        excess = (workload.estimate_ms - workload.run_ms) / workload.run_ms
        number = np.floor(excess * CLASSES / float(text))
    elif name == "phi":
        number = np.ceil(workload.run_ms / workload.estimate_ms * CLASSES) - 1
    else:
        raise OptionError("estimates", f"{estimates!r} has no classes of estimators; omega:X (X > 0) and phi:X have")
    return np.clip(number, 0, CLASSES - 1).astype(np.int64)


def learn_model(path: str | Path) -> HyperErlangModel:
    """Fit Zhang's model to a trace file of CTC-SP2, for 320 nodes and jobs of up to 256.

    Parameters
    ----------
    path : str or pathlib.Path
        SWF file.
    """
    workload, _ = read_swf(path, nodes=TRACE_NODES)
    return rescale(learn_hyper_erlang(workload, nodes=TRACE_NODES), nodes=NODES, max_width=MAX_WIDTH)


def with_large_share(model: HyperErlangModel, share: float) -> HyperErlangModel:
    """Return a model in which large jobs come more often or less often, each as large and as long as before.

    Parameters
    ----------
    model : HyperErlangModel
        With jobs of up to 32 nodes, and wider ones.
    share : float
        Share of jobs of more than 32 nodes, above 0 and below 1.

    Returns
    -------
    HyperErlangModel
        The interarrival times of the classes beyond 32 nodes are all multiplied by one number.
    """
    rates = [(group.max_width > NARROW_UP_TO, group.jobs_per_ms(model.nodes)) for group in model.classes]
    large, small = (sum(rate for wide, rate in rates if wide is kind) for kind in (True, False))
    factor = large * (1 - share) / (small * share)
    classes = [
        msgspec.structs.replace(group, interarrival=_multiplied(group.interarrival, factor)) if wide else group
        for group, (wide, _) in zip(model.classes, rates, strict=True)
    ]
    return msgspec.structs.replace(model, classes=classes)


def _multiplied(law: HyperErlang, factor: float) -> HyperErlang:
    return HyperErlang(law.order, law.probabilities, tuple(mean * factor for mean in law.means_ms))


class ZhangRuns:
    """The curves, each simulated once.

    The workloads of one seed have the same jobs, arrivals and over-estimation draws, whatever the run time factor, the
    policy and the parameter of the estimate model: what differs between two curves is not chance.

    Parameters
    ----------
    model : HyperErlangModel
        As from `learn_model`.
    seeds : int
        Number of baseline workloads, >= 1: the seeds are 1, 2, ...
    jobs : int
        Jobs of each workload.
    progress : callable, optional
        Called with the number of simulations done, the number of all, and what is going on.

    Raises
    ------
    OptionError
        If `seeds` is less than 1.
    """

    def __init__(
        self, model: HyperErlangModel, *, seeds: int = DEFAULT_SEEDS, jobs: int = JOBS, progress: Progress | None = None
    ) -> None:
        if seeds < 1:
            raise OptionError("seeds", f"is {seeds}; at least 1")
        shares = sorted({reading.large_share for reading in READINGS.values() if reading.large_share is not None})
        self._models = {None: model} | {share: with_large_share(model, share) for share in shares}
        self._seeds = tuple(range(1, seeds + 1))
        self._jobs = jobs
        self._progress = progress or (lambda done, total, what: None)
        self._curves: dict[tuple[str, Setting], Curve] = {}

    @property
    def seeds(self) -> int:
        """Number of baseline workloads."""
        return len(self._seeds)

    @property
    def jobs(self) -> int:
        """Jobs of each workload."""
        return self._jobs

    def curves(self, reading: str, settings: Iterable[Setting]) -> dict[Setting, Curve]:
        """Return the curves of these settings.

        Parameters
        ----------
        reading : str
            A key of `READINGS`.
        """
        wanted = list(dict.fromkeys(settings))
        new = [setting for setting in wanted if (reading, setting) not in self._curves]
        runs = [(setting, seed, factor) for factor in reversed(RUN_FACTORS) for setting in new for seed in self._seeds]
        points = self._in_parallel(runs, reading) if runs else {}
        for setting in new:
            grid = [[points[setting, seed, factor] for seed in self._seeds] for factor in RUN_FACTORS]
            self._curves[reading, setting] = Curve(*(_means(grid, place) for place in range(len(_Point._fields))))
        return {setting: self._curves[reading, setting] for setting in wanted}

    def large_jobs(self, large_share: float | None = None) -> tuple[float, float]:
        """Return what large jobs make of the baseline workloads.

        Parameters
        ----------
        large_share : float or None
            As of a reading.

        Returns
        -------
        share_of_jobs, share_of_work : float
            Jobs of more than 32 nodes; means over the seeds. In Zhang, section 2.2: 30%, and more than 80%.
        """
        shares = []
        for seed in self._seeds:
            workload = self._workload(large_share, seed, RUN_FACTORS[0])
            large = workload.width > NARROW_UP_TO
            work = workload.width.astype(np.float64) * workload.run_ms
            shares.append((float(large.mean()), float(work[large].sum() / work.sum())))
        of_jobs, of_work = np.mean(shares, axis=0).tolist()
        return of_jobs, of_work

    def _in_parallel(
        self, runs: list[tuple[Setting, int, float]], reading: str
    ) -> dict[tuple[Setting, int, float], _Point]:
        """Simulate on all cores: the kernels leave the interpreter to the other threads."""
        discipline, share = READINGS[reading]
        jobs = {(seed, factor): self._workload(share, seed, factor) for seed in self._seeds for factor in RUN_FACTORS}
        points = {}
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            try:
                futures: dict[Future[_Point], tuple[Setting, int, float]] = {
                    pool.submit(_simulate, jobs[run[1:]], run[0], discipline, run[1]): run for run in runs
                }
                for done, future in enumerate(as_completed(futures), start=1):
                    points[futures[future]] = future.result()
                    self._progress(done, len(runs), f"Simulating: {reading}")
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return points

    def _workload(self, large_share: float | None, seed: int, factor: float) -> Workload:
        """Return the workload of a seed: the same but for the run times, whatever the factor."""
        model, rng = self._models[large_share], np.random.default_rng(seed)
        return generate_hyper_erlang(model, self._jobs, rng, load=BASELINE_LOAD, run_factor=factor)


def _means(grid: list[list[_Point]], place: int) -> FloatArray:
    """Return one quantity of all simulations, averaged over the seeds."""
    values = np.array([[point[place] for point in points] for points in grid], np.float64)
    return np.asarray(values.mean(axis=1))


def _simulate(workload: Workload, setting: Setting, discipline: str, seed: int) -> _Point:
    from gridweave.scenarios.batch.simulate import simulate_policy
    from gridweave.site.policy import SitePolicy

    estimated = with_estimates(workload, setting.estimates, np.random.default_rng([seed, 1]))
    policy = SitePolicy(discipline=discipline, order=setting.order)
    result = simulate_policy(estimated, workload.nodes, policy)
    metrics = result.metrics()
    return _Point(
        rho=metrics.rho,
        wait_s=metrics.awt_ms / MS_PER_S,
        slowdown=metrics.bounded_slowdown_10s,
        loss=metrics.kappa,
        class_wait_s=_class_waits(result, setting.estimates),
    )


def _class_waits(result: SimulationResult, estimates: str) -> FloatArray:
    if estimates == "perfect":
        return np.full(CLASSES, np.nan)
    number = estimator_class(result.workload, estimates)
    wait_s = (result.start_ms - result.workload.submit_ms) / MS_PER_S
    jobs = np.bincount(number, minlength=CLASSES)
    sums = np.bincount(number, weights=wait_s, minlength=CLASSES)
    waits: FloatArray = np.divide(sums, jobs, out=np.full(CLASSES, np.nan), where=jobs > 0)
    return waits

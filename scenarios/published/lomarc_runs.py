"""The simulations behind the evaluation of LOMARC: 8,000 jobs of the Lublin model on 128 nodes, by workload and mix.

Sodan and Lan, *LOMARC: Lookahead Matchmaking for Multi-Resource Coscheduling* (below: *LOMARC*), section 6. The rules
and what they leave open are in docs/sharing.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import NamedTuple

import numpy as np

from gridweave.errors import OptionError
from gridweave.scenarios.batch.shared import simulate_shared
from gridweave.scenarios.generators.lublin import generate_lublin, lublin_model, with_alpha
from gridweave.scenarios.published.thesis_runs import Progress
from gridweave.scenarios.workload.columns import assign_resources
from gridweave.scenarios.workload.table import MS_PER_S, Workload
from gridweave.site.disciplines.sharing.policy import VARIANTS
from gridweave.site.disciplines.sharing.slowdown_tables import SlowdownModel

NODES, JOBS, DEFAULT_SEEDS = 128, 8_000, 3

MS_PER_WEEK = 7 * 24 * 3600 * MS_PER_S

ALPHAS = {"W1": 10.23, "W2": 9.83, "W3": 8.83}
"""Workload to the shape of its gaps (LOMARC, Table 4)."""

WORKLOADS = tuple(ALPHAS)
MIXES = ("M1", "M2", "M3")


class Reading(NamedTuple):
    """How what the paper leaves open is read.

    Parameters
    ----------
    formula : str
        Slowdown formula, as in `gridweave.site.disciplines.sharing.slowdown_tables.FORMULAS`.
    weeks : float or None
        How long the jobs of workload 1 take to arrive; those of the others by as much shorter or longer. None for what
        the model gives.
    """

    formula: str
    weeks: float | None = None


PUBLISHED_WEEKS = 10.0
"""The makespan of workload 1 (LOMARC, section 6.2); the model's jobs arrive over 12 weeks."""

READINGS = {
    "with unshared time": Reading("whole"),
    "as printed": Reading("printed"),
    "as printed, in 10 weeks": Reading("printed", PUBLISHED_WEEKS),
}
"""Name to reading."""

COLUMNS = ("waiting", "long_enough", "narrow_enough", "fitting", "matchable", "bearable")
"""What is counted of a search, in the order of Table 5."""


class Setting(NamedTuple):
    """One bar of a figure.

    Parameters
    ----------
    reading : str
        A key of `READINGS`.
    workload : str
        A key of `ALPHAS`.
    mix : str
        M1, M2 or M3.
    variant : str
        A key of `gridweave.site.disciplines.sharing.policy.VARIANTS`.
    """

    reading: str
    workload: str
    mix: str
    variant: str


class Point(NamedTuple):
    """What one simulation came to.

    Parameters
    ----------
    response_s, relative : float
        Average response time, and average relative bounded response time.
    util, efficiency : float
        Utilisation and utilisation efficiency.
    candidates : tuple of float
        The means over the searches among the waiting jobs, as in `COLUMNS`; NaN without a search.
    selected : float
        The mean place of the chosen among the candidates left; NaN without a match.
    """

    response_s: float
    relative: float
    util: float
    efficiency: float
    makespan_s: float
    candidates: tuple[float, ...]
    selected: float


class Load(NamedTuple):
    """Readings of the load of a workload, r n / (P a).

    Parameters
    ----------
    formula : float
        With arithmetic means throughout: r of the run times, n of the sizes, a of the gaps.
    offered : float
        With the mean of the products: all work over what the machine could do until the last submission.
    geometric : float
        The formula with the geometric mean of the gaps.
    """

    formula: float
    offered: float
    geometric: float


def load_of(workload: Workload, nodes: int) -> Load:
    """Return readings of the load of a workload.

    Parameters
    ----------
    workload : Workload
        Of at least two instants of submission.

    Returns
    -------
    Load
        Jobs of one instant count with a gap of one second in the geometric mean.
    """
    gaps_s = np.diff(workload.submit_ms) / MS_PER_S
    run_s, width = workload.run_ms / MS_PER_S, workload.width.astype(np.float64)
    product = float(run_s.mean() * width.mean()) / nodes
    geometric_s = float(np.exp(np.log(np.maximum(gaps_s, 1.0)).mean()))
    return Load(
        product / float(gaps_s.mean()),
        float((run_s * width).mean()) / nodes / float(gaps_s.mean()),
        product / geometric_s,
    )


class LomarcRuns:
    """The points of all figures, each simulated once.

    The workloads of one seed have the same jobs whatever alpha and the mix, and one mix gives them the same needs: what
    differs between two bars is not chance.

    Parameters
    ----------
    seeds : int
        Number of workloads for each bar, >= 1: the seeds are 1, 2, ...
    jobs : int
        Jobs of each workload.
    progress : callable, optional
        Called with the number of simulations done, the number of all, and what is going on.

    Raises
    ------
    OptionError
        If `seeds` is less than 1.
    """

    def __init__(self, *, seeds: int = DEFAULT_SEEDS, jobs: int = JOBS, progress: Progress | None = None) -> None:
        if seeds < 1:
            raise OptionError("seeds", f"is {seeds}; at least 1")
        self.seeds = tuple(range(1, seeds + 1))
        self.jobs = jobs
        self._progress = progress or (lambda done, total, what: None)
        self._points: dict[tuple[Setting, int], Point] = {}

    def workload(self, seed: int, workload: str, mix: str, weeks: float | None = None) -> Workload:
        """Return the workload of a seed.

        Parameters
        ----------
        workload : str
            A key of `ALPHAS`.
        weeks : float, optional
            As of a `Reading`.
        """
        factor = 1.0 if weeks is None else weeks * MS_PER_WEEK / _jobs(seed, "W1", self.jobs).submit_ms[-1]
        return assign_resources(_jobs(seed, workload, self.jobs, factor), mix, np.random.default_rng([seed, 1]))

    def points(self, settings: Iterable[Setting]) -> dict[Setting, tuple[Point, ...]]:
        """Return what settings come to, a point for each seed."""
        wanted = list(dict.fromkeys(settings))
        self._simulate([(one, seed) for one in {_same(one): None for one in wanted} for seed in self.seeds])
        return {one: tuple(self._points[_same(one), seed] for seed in self.seeds) for one in wanted}

    def _simulate(self, runs: Sequence[tuple[Setting, int]]) -> None:
        """Simulate what is not known yet, on all cores: the kernels leave the interpreter to the other threads."""
        new = [run for run in runs if run not in self._points]
        keys = dict.fromkeys(_key(one, seed) for one, seed in new)
        jobs = {key: self.workload(*key) for key in keys}
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            try:
                futures: dict[Future[Point], tuple[Setting, int]] = {
                    pool.submit(_point, jobs[_key(one, seed)], one): (one, seed) for one, seed in new
                }
                for done, future in enumerate(as_completed(futures), start=1):
                    self._points[futures[future]] = future.result()
                    self._progress(done, len(new), "Simulating: LOMARC")
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def _jobs(seed: int, workload: str, jobs: int, factor: float = 1.0) -> Workload:
    model = with_alpha(lublin_model("whole", nodes=NODES), ALPHAS[workload])
    return generate_lublin(model, jobs, np.random.default_rng(seed), interarrival_factor=factor)


def _key(setting: Setting, seed: int) -> tuple[int, str, str, float | None]:
    """Return the arguments of `LomarcRuns.workload`."""
    return seed, setting.workload, setting.mix, READINGS[setting.reading].weeks


def _same(setting: Setting) -> Setting:
    """Return the setting whose runs a setting shares: PSS asks for neither the slowdown nor the mix."""
    if setting.variant != "PSS":
        return setting
    weeks = READINGS[setting.reading].weeks
    return setting._replace(reading=next(name for name, one in READINGS.items() if one.weeks == weeks), mix="M1")


def _point(workload: Workload, setting: Setting) -> Point:
    model = SlowdownModel(formula=READINGS[setting.reading].formula)
    result = simulate_shared(workload, NODES, VARIANTS[setting.variant], model=model)
    metrics, searches = result.metrics(), result.searches
    count, matches = searches["searches"], searches["matches"]
    return Point(
        response_s=metrics.art_ms / MS_PER_S,
        relative=metrics.relative_response,
        util=metrics.util,
        efficiency=metrics.efficiency,
        makespan_s=metrics.makespan_ms / MS_PER_S,
        candidates=tuple(searches[name] / count if count else float("nan") for name in COLUMNS),
        selected=searches["selected"] / matches if matches else float("nan"),
    )

"""Figures 11 to 25 and Table 1 of Zhang et al.: time sharing with backfilling and migration.

The nine workloads are the workloads of Figures 5 to 8 with 30% large jobs (zhang.py): 320 nodes, 10,000 jobs, and
CTC-SP2 because the original trace is not public. Slices take 200 s; estimates follow the Φ model with Φ = 0.2 unless a
figure varies them.

Backfilling within each row is interpreted in two ways: EASY, or conservative ("each waiting job is assigned a maximum
starting time"). Space sharing with backfilling (BF) is time sharing with one row. The paper's figures are not available
as numbers; zhang_gang.py checks what the text says about the figures, at equal utilisation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from gridweave.scenarios.generators.hyper_erlang import HyperErlangModel, generate_hyper_erlang
from gridweave.scenarios.scenario.run import Progress
from gridweave.scenarios.traces.text import FloatArray
from gridweave.scenarios.workload.columns import NARROW_UP_TO
from gridweave.scenarios.workload.estimates import with_estimates
from gridweave.scenarios.workload.table import MS_PER_S, Workload
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave_papers.studies.study import Study, seeds_of
from gridweave_papers.studies.zhang import BASELINE_LOAD, JOBS, LARGE_SHARE, NODES, RUN_FACTORS, with_large_share

if TYPE_CHECKING:
    from gridweave.scenarios.results.schedule import SimulationResult

READINGS = {"EASY": "easy", "conservative": "conservative"}
"""Backfilling within each row, by name of the reading."""

SLICE_MS = 200_000
SWITCHES = (0.0, 0.01, 0.02, 0.05)
"""Cost of a switch as a fraction of a slice (Figures 15 to 20)."""

LEVELS = (2, 3, 5)
TASKS = (0, 8, 16, 32, 64, 128, None)
"""Maximum number of tasks that can migrate in one decision (Figure 24); None for no maximum."""

MOVE_COSTS_S = (0, 10, 20, 30)
"""Cost of migrating a job (Figure 24)."""

QUANTITIES = {
    "slowdown": ("average slowdown, bounded by 10 s", 1),
    "slowdown_sd": ("standard deviation of the slowdown", 1),
    "wait_s": ("average wait [s]", 0),
    "wait_sd_s": ("standard deviation of the wait [s]", 0),
    "loss": ("loss of capacity (equation 3)", 3),
    "small_slowdown": ("average slowdown of jobs of up to 32 nodes", 1),
    "large_slowdown": ("average slowdown of jobs of more than 32 nodes", 1),
    "small_wait_s": ("average wait of jobs of up to 32 nodes [s]", 0),
    "large_wait_s": ("average wait of jobs of more than 32 nodes [s]", 0),
    "short_slowdown": ("average slowdown of jobs shorter than the median", 1),
    "long_slowdown": ("average slowdown of the other jobs", 1),
}
"""Name and decimals of each recorded quantity, except the utilisation ``rho``."""


class Line(NamedTuple):
    """One line of a figure: the policy, with its backfilling set by the reading, and the model of the estimates."""

    policy: GangPolicy
    estimates: str = "phi:0.2"


class GangCurve:
    """The results of one line at the nine workloads.

    Attributes
    ----------
    rho : numpy.ndarray of float64, shape (9,)
        Utilisation (equation 1), mean over the seeds.
    values : mapping from str to numpy.ndarray of float64, shape (9, seeds)
        Each of `QUANTITIES`, and ``rho``.
    """

    def __init__(self, values: Mapping[str, FloatArray]) -> None:
        self.values = values
        self.rho: FloatArray = values["rho"].mean(axis=1)

    @property
    def highest(self) -> float:
        """The highest utilisation of the workloads."""
        return float(self.rho.max())

    def mean(self, quantity: str) -> FloatArray:
        """Return the mean of a quantity over the seeds at each of the nine workloads."""
        mean: FloatArray = self.values[quantity].mean(axis=1)
        return mean

    def at(self, quantity: str, utilisation: float) -> float:
        """Interpolate a quantity linearly between workloads; NaN beyond the highest utilisation."""
        if utilisation > self.highest:
            return float("nan")
        return float(np.interp(utilisation, np.maximum.accumulate(self.rho), self.mean(quantity)))

    def reached(self, quantity: str, limit: float) -> float:
        """Return the utilisation up to which a quantity is at most a limit; NaN if the first value exceeds it."""
        values = self.mean(quantity)
        above = np.flatnonzero(values > limit)
        if not len(above):
            return self.highest
        after = int(above[0])
        if after == 0:
            return float("nan")
        part = (limit - values[after - 1]) / (values[after] - values[after - 1])
        return float(self.rho[after - 1] + part * (self.rho[after] - self.rho[after - 1]))


GangCurves = Mapping[Line, GangCurve]


def gang(mpl: int, backfill: str = "easy", switch: float = 0.0, **options: Any) -> Line:
    """Return a line with slices of 200 s; the reading overrides any ``backfill`` except "none" (GS and MGS)."""
    switch_ms = round(switch * SLICE_MS)
    return Line(msgspec.convert({"mpl": mpl, "backfill": backfill, "switch_ms": switch_ms, **options}, GangPolicy))


def gs(mpl: int, switch: float = 0.0, **options: Any) -> Line:
    """Return a line of plain gang scheduling, without backfilling."""
    return gang(mpl, "none", switch, **options)


BF = gang(1)
COSTLY_MOVES: dict[str, Any] = {"migration": "all", "migration_ms": 10_000}
"""Unlimited migration at the cost of Figure 25; Figure 23 states no cost, but shows a cost that offsets the gain."""

MOVES: dict[str, Any] = COSTLY_MOVES | {"max_tasks": 64}
"""Migration in Figure 25: a cost of 10 s, and at most 64 tasks ("and we choose that value for further comparisons",
section 6.6)."""

FREE_MOVES: dict[str, Any] = {"migration": "all"}
"""The best case, as in Table 1: unlimited migration at no cost."""


def with_moves(mpl: int, backfill: str, *, tasks: int | None, cost_s: int) -> Line:
    """Return a line of Figure 24; if `tasks` is 0, there is no migration."""
    if tasks == 0:
        return gang(mpl, backfill)
    return gang(mpl, backfill, migration="all", migration_ms=cost_s * MS_PER_S, max_tasks=tasks)


class GangRuns:
    """The curves of all figures; each point is simulated once.

    Parameters
    ----------
    model : HyperErlangModel
        Result of `gridweave_papers.studies.zhang.learn_model`; its share of large jobs is changed to 30%.
    seeds : int
        Number of baseline workloads, at least 1; the seeds are 1, 2, ...
    jobs : int
        Number of jobs per workload.
    progress : callable, optional
        Called with the number of finished simulations, their total, and a text.

    Raises
    ------
    OptionError
        If `seeds` is less than 1.
    """

    def __init__(
        self, model: HyperErlangModel, *, seeds: int = 3, jobs: int = JOBS, progress: Progress | None = None
    ) -> None:
        self._model = with_large_share(model, LARGE_SHARE)
        self.seeds = seeds_of(seeds)
        self.jobs = jobs
        self._jobs_of = lru_cache(maxsize=16)(self._workload)
        self._points = Study(self._point, title="Zhang, time sharing", progress=progress)

    def curves(
        self, reading: str, lines: Iterable[Line], factors: Sequence[float] = RUN_FACTORS
    ) -> dict[Line, GangCurve]:
        """Return the curves of these lines under one of `READINGS`, at the workloads with these run time factors."""
        read_lines = {line: _read(line, READINGS[reading]) for line in lines}
        points = self._points.results(
            (line, factor, seed) for factor in reversed(factors) for seed in self.seeds for line in read_lines.values()
        )
        curves = {}
        for line, read in read_lines.items():
            by_factor = [[points[read, factor, seed] for seed in self.seeds] for factor in factors]
            names = ("rho", *QUANTITIES)
            curves[line] = GangCurve(
                {name: np.array([[sample[name] for sample in at] for at in by_factor]) for name in names}
            )
        return curves

    def _point(self, run: tuple[Line, float, int]) -> dict[str, float]:
        from gridweave.scenarios.batch.simulate import simulate

        line, factor, seed = run
        estimates = np.random.default_rng([seed, 1])
        workload = with_estimates(self._jobs_of(seed, factor), line.estimates, estimates)
        return _quantities(simulate(workload, NODES, line.policy))

    def _workload(self, seed: int, factor: float) -> Workload:
        """Return the workload generated with this seed; the factor changes only the run times."""
        rng = np.random.default_rng(seed)
        return generate_hyper_erlang(self._model, self.jobs, rng, load=BASELINE_LOAD, run_factor=factor)


def _read(line: Line, backfill: str) -> Line:
    if line.policy.backfill == "none":
        return line
    return line._replace(policy=msgspec.structs.replace(line.policy, backfill=backfill))


def _quantities(result: SimulationResult) -> dict[str, float]:
    """Return `QUANTITIES` and ``rho`` of a schedule, for all jobs and for classes of jobs (sections 2.2 and 6.6)."""
    jobs, own = result.workload, result.own_metrics
    least_ms = 10 * MS_PER_S
    slowdown = np.maximum(result.end_ms - jobs.submit_ms, least_ms) / np.maximum(jobs.run_ms, least_ms)
    wait_s = (result.start_ms - jobs.submit_ms) / MS_PER_S
    large, long = jobs.width > NARROW_UP_TO, jobs.run_ms >= np.median(jobs.run_ms)
    return {
        "rho": own["utilisation"],
        "slowdown": own["slowdown_10s"],
        "slowdown_sd": own["slowdown_10s_sd"],
        "wait_s": own["wait_ms"] / MS_PER_S,
        "wait_sd_s": own["wait_ms_sd"] / MS_PER_S,
        "loss": own["loss_of_capacity"],
        "small_slowdown": float(slowdown[~large].mean()),
        "large_slowdown": float(slowdown[large].mean()),
        "small_wait_s": float(wait_s[~large].mean()),
        "large_wait_s": float(wait_s[large].mean()),
        "short_slowdown": float(slowdown[~long].mean()),
        "long_slowdown": float(slowdown[long].mean()),
    }


_PHASES = (("1: Schedule, Fill", "fill"), ("2: and Clean", "clean"), ("3: and Compact", "compact"))
_OMEGAS, _PHIS = (0, 1, 2, 3), (1.0, 0.8, 0.6, 0.4, 0.2)


def seven(switch: float = 0.0, scheduling: str = "continuous") -> dict[str, Line]:
    """Return BF, and GS and BGS at each multiprogramming level, by the paper's names; also BGS-1 if discrete."""
    lines = {"BF": BF}
    if scheduling == "discrete":
        lines["BGS-1"] = gang(1, scheduling=scheduling)
    for mpl in LEVELS:
        lines[f"GS-{mpl}"] = gs(mpl, switch, scheduling=scheduling)
    for mpl in LEVELS:
        lines[f"BGS-{mpl}"] = gang(mpl, "easy", switch, scheduling=scheduling)
    return lines


def _by_switch() -> dict[str, Line]:
    return {
        f"{name}, switch {switch:.0%}" if name != "BF" else name: line
        for switch in SWITCHES
        for name, line in seven(switch).items()
    }


LINES: Mapping[str, Mapping[str, Line]] = {
    "zhang-11": {name: gs(5, phases=phases) for name, phases in _PHASES},
    "zhang-12": {name: gang(5, phases=phases) for name, phases in _PHASES},
    "zhang-13": {f"Ω = {one}": gang(5)._replace(estimates=f"omega:{one}" if one else "perfect") for one in _OMEGAS},
    "zhang-14": {f"Φ = {one:g}": gang(5)._replace(estimates=f"phi:{one:g}") for one in _PHIS},
    **dict.fromkeys(("zhang-15", "zhang-16", "zhang-17", "zhang-18", "zhang-20"), _by_switch()),
    "zhang-19": {"BF": BF, "BGS-5": gang(5)},
    "zhang-21": {
        **{f"{name}, continuous" if name != "BF" else name: line for name, line in seven().items()},
        **{f"{name}, discrete": line for name, line in seven(0, "discrete").items() if name != "BF"},
    },
    "zhang-23": {
        "1: GS": gs(5),
        "2: and FillMatrix-2": gs(5, **(COSTLY_MOVES | {"migration": "fill"})),
        "3: and CollapseMatrix-2": gs(5, **COSTLY_MOVES),
    },
    "zhang-25": {"GS": gs(5), "BGS": gang(5), "MGS": gs(5, **MOVES), "MBGS": gang(5, **MOVES)},
    "zhang-table1": {"BGS": gang(5), "MBGS": gang(5, **FREE_MOVES), "GS": gs(5), "MGS": gs(5, **FREE_MOVES)},
}
"""Lines of each figure by name, except Figure 24, which has different axes."""

SHOWN: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("zhang-11", "zhang-12", "zhang-13", "zhang-14"), ("slowdown", "wait_s")),
    "zhang-15": ("slowdown",),
    "zhang-16": ("slowdown_sd",),
    "zhang-17": ("wait_s",),
    "zhang-18": ("wait_sd_s",),
    "zhang-19": ("small_slowdown", "large_slowdown", "small_wait_s", "large_wait_s"),
    "zhang-20": ("loss",),
    "zhang-21": ("slowdown",),
    "zhang-23": ("slowdown", "wait_s"),
    "zhang-25": ("loss", "slowdown", "wait_s"),
    "zhang-table1": ("slowdown",),
}
"""Quantities shown in each figure."""


class GangPanel(NamedTuple):
    """One panel of a drawn figure: a quantity of some lines against utilisation."""

    title: str
    quantity: str
    lines: Mapping[str, Line]


def panels_of(table: str) -> list[GangPanel]:
    """Return the panels of a figure: one per cost of switches, per kind of scheduling, or per quantity."""
    lines, (first, *_) = LINES[table], SHOWN[table]
    if table == "zhang-21":
        kinds = ("continuous", "discrete")
        return [GangPanel(kind, first, {name: line for name, line in lines.items() if kind in name}) for kind in kinds]
    if lines == _by_switch():
        return [GangPanel(f"switch {switch:.0%}", first, seven(switch)) for switch in SWITCHES]
    return [GangPanel("", quantity, lines) for quantity in SHOWN[table]]


def curves_of(table: str, runs: GangRuns) -> dict[str, GangCurves]:
    """Return the curves of a figure, for each reading."""
    return {reading: runs.curves(reading, LINES[table].values()) for reading in READINGS}

"""``gridweave.sweep``: plan a sweep, run the runs that are not finished yet, and return the results."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridweave.errors import InputError, OptionError, not_installed
from gridweave.scenarios.results.files import save_figure, write_all, write_json
from gridweave.scenarios.scenario.read import Overrides
from gridweave.scenarios.scenario.run import Progress
from gridweave.scenarios.scenario.tables import Scenario
from gridweave.scenarios.sweep.identity import run_key, workload_key
from gridweave.scenarios.sweep.plan import PlannedRun, Seeds, SweepPlan, Vary, check_workloads, make_plan
from gridweave.scenarios.sweep.runner import carry_out
from gridweave.scenarios.sweep.tables import (
    run_columns,
    same_for_all_seeds,
    samples_of,
    summary_columns,
    to_frame,
    without_effect,
)
from gridweave.scenarios.sweep.work import METRICS, FinishedRuns, Values
from gridweave.version import __version__

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

SHOWN_AT_MOST = 4

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A failed run: its combination (as values and as a label), its seed, and the one-line reason."""

    settings: dict[str, Any]
    seed: int
    problem: str
    label: str

    def __str__(self) -> str:
        return f"{self.label}, seed {self.seed}: {self.problem}"


@dataclass(frozen=True, eq=False)
class SweepResult:
    """The results of a sweep.

    Attributes
    ----------
    values : tuple of dict or None
        Metrics of each planned run; None for failed runs.
    n_reused : int
        Number of runs that were already finished by an earlier sweep.
    """

    plan: SweepPlan
    values: tuple[Values | None, ...]
    failures: tuple[FailedRun, ...] = ()
    n_reused: int = 0

    def __repr__(self) -> str:
        runs, combinations = len(self.plan.runs), len(self.plan.combinations)
        return f"SweepResult({self.plan.name!r}: {combinations} combinations, {runs} runs, {len(self.failures)} failed)"

    @functools.cached_property
    def runs(self) -> pandas.DataFrame:
        """One row per finished run: the varied keys, the seed, and all metrics."""
        return to_frame(run_columns(self.plan, self.values))

    @functools.cached_property
    def summary(self) -> pandas.DataFrame:
        """One row per combination: the varied keys, n, and each metric's mean with its 95% confidence interval."""
        return to_frame(summary_columns(self.plan, self.values))

    @functools.cached_property
    def same_for_all_seeds(self) -> tuple[int, ...]:
        """Combinations for which several seeds gave the same result, so their confidence intervals are meaningless."""
        return same_for_all_seeds(self.plan, self.values)

    @property
    def finished_combinations(self) -> tuple[int, ...]:
        """The combinations with finished runs, in the order of the rows of `summary`."""
        return tuple(samples_of(self.plan, self.values))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for the user on how to read the intervals."""
        return (*self._about_seeds(), *self._about_keys())

    def _about_seeds(self) -> Iterator[str]:
        several, seeds = len(self.plan.combinations), len(self.plan.seeds)

        def where(count: int) -> str:
            return "" if count == several else f" in {count} of {several} combinations"

        if without := len(self.plan.without_chance):
            yield f"nothing is random{where(without)}: only the first of the {seeds} seeds is run"
        if same := len(self.same_for_all_seeds):
            reason = f"the {seeds} seeds gave the same result{where(same)}: no random value affects it"
            yield f"{reason}, so the intervals have no width, and one seed is enough"

    def _about_keys(self) -> Iterator[str]:
        for name in without_effect(self.plan, self.values):
            yield f"{name} has no effect here: all of its values gave the same results"

    def metrics(self, chosen: tuple[str, ...] | list[str] = ()) -> tuple[str, ...]:
        """Return the metrics to show: the chosen metrics or, by default, the first few metrics that the scenario shows.

        Raises
        ------
        OptionError
            If a metric is unknown.
        """
        for name in chosen:
            check_metric(name)
        return tuple(dict.fromkeys(chosen)) or self.plan.shown[:SHOWN_AT_MOST]

    def plot(self, metric: str | None = None, *, over: str | None = None) -> Figure:
        """Draw a metric over the varied keys.

        Parameters
        ----------
        metric : str, optional
            A column of `runs`; by default, the first metric that the scenario shows.
        over : str, optional
            The key on the x axis; by default, the numeric key with the most values or, if there is none, the first key.

        Returns
        -------
        matplotlib.figure.Figure
            For a numeric key, lines with the confidence intervals as bands; for a key of names, groups of bars.

        Raises
        ------
        OptionError
            If there is no such metric or key.
        UnavailableError
            If there is nothing to draw, or there are too many lines.
        """
        from gridweave.scenarios.sweep.plots import plot_sweep

        name = self.metrics([] if metric is None else [metric])[0]
        return plot_sweep(self.plan, self.summary, name, over=over)

    def to_dict(self) -> dict[str, Any]:
        """Return the sweep as plain values, with None for undefined metrics."""
        plan = self.plan
        return {
            "scenario": plan.name,
            "gridweave": __version__,
            "vary": {axis.name: list(axis.values) for axis in plan.axes},
            "seeds": list(plan.seeds),
            "keys": [run_key(run.scenario, run.files, "") for run in plan.runs],
            "remarks": list(self.remarks),
            "failed": [{"settings": run.settings, "seed": run.seed, "problem": run.problem} for run in self.failures],
            "runs": _rows(run_columns(plan, self.values)),
            "summary": _rows(summary_columns(plan, self.values)),
        }

    def write(
        self,
        folder: str | Path,
        *,
        metrics: tuple[str, ...] | list[str] = (),
        over: str | None = None,
        plots: bool = True,
    ) -> tuple[Path, ...]:
        """Write the tables as CSV and Parquet, ``sweep.json``, and a plot of each chosen metric.

        Parameters
        ----------
        folder : str or pathlib.Path
            Target folder, created if necessary. Files with the same names are replaced; other files are kept.
        metrics : sequence of str, optional
            The metrics to plot; see `metrics` for the default.
        over : str, optional
            The key on the x axis of the plots; see `plot`.

        Returns
        -------
        tuple of pathlib.Path
            ``runs.csv``, ``runs.parquet``, ``summary.csv``, ``summary.parquet``, ``sweep.json`` and the plots.

        Raises
        ------
        InputError
            If the folder cannot be written to.
        UnavailableError
            If pandas or pyarrow is not installed.
        """
        files: dict[str, Callable[[Path], None]] = {}
        for name, frame in (("runs", self.runs), ("summary", self.summary)):
            files[f"{name}.csv"] = functools.partial(_write_csv, frame)
            files[f"{name}.parquet"] = functools.partial(_write_parquet, frame)
        files[SWEEP_FILE] = lambda path: write_json(path, self.to_dict())
        if plots and len(self.summary):
            for metric in self.metrics(metrics):
                figure = self.plot(metric, over=over)
                files[f"{metric}.png"] = functools.partial(save_figure, figure=figure)
        return write_all(Path(folder), files)


def sweep(
    scenario: str | Path | Scenario,
    vary: Vary = (),
    *,
    seeds: Seeds = None,
    overrides: Overrides = (),
    out: str | Path | None = None,
    address: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Run every combination of varied values with every seed, in parallel.

    Parameters
    ----------
    scenario : str, pathlib.Path or Scenario
        A file, the name of a scenario in the catalogue, or a scenario object.
    vary : mapping or sequence of str, optional
        Lists of values by key, as in ``{"grid.overhead": [0, 0.3]}``, or texts ``key=v1,v2``. The keys are the same as
        in ``gridweave run --set``; in addition, ``config`` stands for machine configurations (Streit, Table 7.1), and
        ``p`` for the overhead.
    seeds : int or sequence of int, optional
        Number of seeds to derive from the scenario's seed, or a list of seeds; by default, only the scenario's seed.
    overrides : mapping or sequence of str, optional
        Changes that apply to every run.
    out : str or pathlib.Path, optional
        A folder. Every run is saved to it as soon as it has finished, and saved runs are not repeated; at the end, the
        tables and plots are written to it too. By default, nothing is written.
    address : str, optional
        Address of a Ray cluster; by default, runs are carried out on this machine.
    workers : int, optional
        Number of parallel runs; by default, the number of cores. With one worker and no address, all runs are carried
        out in this process.
    progress : callable, optional
        Called with the progress at intervals.

    Returns
    -------
    SweepResult
        Failed runs are listed in its ``failures``; they do not affect other runs.

    Raises
    ------
    ScenarioError
        If any combination is invalid; raised before anything is run, with the problems of all combinations.
    InputError
        If there is no such scenario, or the folder cannot be written to or contains another sweep.
    UnavailableError
        If Ray, pandas or the cluster is unavailable.

    Examples
    --------
    >>> result = sweep("two-sites", {"p": [0, 0.5]}, seeds=2, overrides={"workload.jobs": 100}, workers=1)
    >>> result.summary[["p", "n"]].values.tolist()
    [[0.0, 2.0], [0.5, 2.0]]
    """
    plan = make_plan(scenario, vary, overrides=overrides, seeds=seeds)
    result = run_plan(plan, out=out, address=address, workers=workers, progress=progress)
    if out is not None:
        result.write(out)
    return result


def run_plan(
    plan: SweepPlan,
    *,
    out: str | Path | None = None,
    address: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Carry out a plan's runs that are not saved in ``out``; save finished runs there, but no tables or plots."""
    store = None if out is None else FinishedRuns(Path(out))
    if out is not None:
        _check_same_sweep(Path(out), plan)
    values = [None if store is None else store.find(run) for run in plan.runs]
    todo = _by_workload([run for run in plan.runs if values[run.number] is None])
    n_finished = len(plan.runs) - len(todo)
    check_workloads(plan, todo, progress)
    failures: dict[int, FailedRun] = {}

    def report_progress() -> None:
        if progress is not None:
            saved = f", {n_finished} finished before" if n_finished else ""
            phase = f"{done - len(failures)} finished, {len(failures)} failed{saved}"
            progress(n_finished + done, len(plan.runs), phase)

    done = 0
    report_progress()
    outcomes = carry_out(todo, address=address, workers=workers)
    try:
        for run, outcome in outcomes:
            if outcome.metrics is None:
                settings, label = plan.settings(run.combination), plan.label(run.combination)
                failures[run.number] = FailedRun(settings, run.seed, outcome.problem, label)
            else:
                values[run.number] = outcome.metrics
                if store is not None:
                    store.keep(plan, run, outcome)
            done += 1
            report_progress()
    finally:
        outcomes.close()
    return SweepResult(plan, tuple(values), tuple(failures[number] for number in sorted(failures)), n_finished)


def _check_same_sweep(folder: Path, plan: SweepPlan) -> None:
    """Raise InputError if a folder contains another sweep's tables, unless the plan contains all runs of that sweep."""
    path = folder / SWEEP_FILE
    try:
        held = json.loads(path.read_bytes())
        keys, vary = set(held["keys"]), dict(held["vary"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if not keys <= {run_key(run.scenario, run.files, "") for run in plan.runs}:
        over = f" over {', '.join(vary)}" if vary else ""
        raise InputError(
            f"{folder}: has the tables of another sweep ({held.get('scenario')}{over}, {len(keys):,} runs), which this "
            "one would replace; give another folder with --out, or remove this one"
        )


def check_metric(name: str) -> None:
    """Raise OptionError if there is no metric with this name."""
    if name not in METRICS:
        raise OptionError(
            "--metric", f"{name!r} is not a metric; docs/metrics.md lists them, and {', '.join(METRICS[:3])}"
        )


def _by_workload(runs: list[PlannedRun]) -> list[PlannedRun]:
    """Sort runs so that runs with the same workload are adjacent, because a worker then builds it only once."""
    first: dict[str, int] = {}
    keys = [workload_key(run.scenario, run.files) for run in runs]
    ranks = [first.setdefault(key, number) for number, key in enumerate(keys)]
    return [run for _, run in sorted(zip(ranks, runs, strict=True), key=lambda pair: pair[0])]


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    names = list(columns)
    return [dict(zip(names, map(_plain, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _write_csv(frame: pandas.DataFrame, path: Path) -> None:
    frame.to_csv(path, index=False, lineterminator="\n")


def _write_parquet(frame: pandas.DataFrame, path: Path) -> None:
    try:
        frame.to_parquet(path, engine="pyarrow", index=False)
    except ImportError:
        raise not_installed("pyarrow", "sweep") from None

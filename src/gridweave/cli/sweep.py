"""``gridweave sweep``: run a scenario with varied keys and seeds in parallel, and write one table and its plots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.arguments import Json
from gridweave.cli.output import Report, check_folder, delayed_progress, print_json, print_table, say
from gridweave.cli.run import Overrides, Source, problems_as_lines
from gridweave.errors import GridweaveError, InputError, ScenarioError, UnavailableError

if TYPE_CHECKING:
    from gridweave.scenarios.sweep.api import SweepResult
    from gridweave.scenarios.sweep.plan import SweepPlan

_FAILURES_SHOWN = 20

Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=V1,V2,...",
        help="Values to try for a key, e.g. grid.mode=sharing,adaptive, config=m128,m256 (sites) or p=0,0.3 "
        "(overhead). Repeatable.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Ray cluster, e.g. auto or ray://HOST:10001. \\[default: this machine]"),
]


_Seeds = Annotated[
    str | None,
    typer.Option(metavar="N|S1,S2,...", help="Number of seeds to derive from the scenario's seed, or a list of seeds."),
]
_Out = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="Folder for runs, tables and plots. \\[default: NAME-sweep]")
]
_Workers = Annotated[int | None, typer.Option(metavar="N", help="Number of parallel runs. \\[default: one per core]")]
_Metric = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Metric to print and plot; the files have all of them. Repeatable."),
]


def sweep(
    scenario: Source,
    vary: Vary = None,
    overrides: Overrides = None,
    seeds: _Seeds = None,
    out: _Out = None,
    address: Address = None,
    workers: _Workers = None,
    metric: _Metric = None,
    over: Annotated[str | None, typer.Option(metavar="KEY", help="Varied key for the x axis of the plots.")] = None,
    as_json: Json = False,
) -> None:
    """Run every combination of varied keys with every seed, in parallel; finished runs are not repeated.

    Example: gridweave sweep two-sites --vary p=0,0.1,0.3 --vary grid.mode=multi-site,adaptive --seeds 10
    """
    with problems_as_lines(), delayed_progress("Planning") as report:
        plan, folder = _planned(scenario, vary or [], overrides or [], seeds, out, workers, metric or [], over)
        result = _run(plan, folder, address, workers, report)
    for remark in result.remarks:
        say(remark)
    chosen = result.metrics(metric or [])
    if as_json:
        print_json(result.to_dict())
    else:
        _print(result, chosen)
    _write(result, folder, chosen, over)
    _print_failures(result)


def _planned(
    scenario: str,
    vary: list[str],
    overrides: list[str],
    seeds: str | None,
    out: str | None,
    workers: int | None,
    metrics: list[str],
    over: str | None,
) -> tuple[SweepPlan, Path]:
    """Return the plan and its folder; ScenarioError reports all problems of the options and the scenario at once."""
    from gridweave.scenarios.results.files import folder_name
    from gridweave.scenarios.sweep.api import check_metric
    from gridweave.scenarios.sweep.plan import make_plan, parse_seeds

    problems: list[object] = []
    texts: list[str] = []
    parsed = None if seeds is None else parse_seeds(seeds, texts)
    problems += texts
    if workers is not None and workers < 1:
        problems.append(f"--workers: is {workers}; expected at least 1")
    for name in metrics:
        with _collecting(problems):
            check_metric(name)
    with _collecting(problems):
        if out is not None:
            check_folder(out)
    with _collecting(problems):
        plan = make_plan(scenario, vary, overrides=overrides, seeds=parsed)
        with _collecting(problems):
            if over is not None:
                plan.axis(over)
        folder = check_folder(out if out is not None else f"{folder_name(plan.name)}-sweep")
    if problems:
        raise ScenarioError(dict.fromkeys(map(str, problems)))
    return plan, folder


@contextmanager
def _collecting(problems: list[object]) -> Iterator[None]:
    try:
        yield
    except ScenarioError as error:
        problems += error.problems
    except InputError as error:
        problems.append(error)


def _run(plan: SweepPlan, folder: Path, address: str | None, workers: int | None, report: Report) -> SweepResult:
    """Run the unfinished runs of a plan; after Ctrl-C, print how many runs are kept and how to continue."""
    from gridweave.scenarios.sweep.api import run_plan
    from gridweave.scenarios.sweep.work import FinishedRuns

    try:
        return run_plan(plan, out=folder, address=address, workers=workers, progress=report)
    except KeyboardInterrupt:
        store = FinishedRuns(folder)
        kept = sum(store.find(run) is not None for run in plan.runs)
        say(f"{kept:,} of {len(plan.runs):,} runs are kept in {folder}; run the same command to continue")
        raise


def _print(result: SweepResult, metrics: tuple[str, ...]) -> None:
    """Print one row per combination: its varied keys, and each metric's mean with half of the confidence interval."""
    from gridweave.scenarios.sweep.tables import naming_of

    plan, summary = result.plan, result.summary
    names = [naming_of(metric) for metric in metrics]
    same = set(result.same_for_all_seeds)
    rows = []
    for row, combination in enumerate(result.finished_combinations):
        indices = plan.combinations[combination]
        cells = [axis.labels[place] for axis, place in zip(plan.axes, indices, strict=True)]
        cells.append(str(summary["n"][row]))
        for metric, naming in zip(metrics, names, strict=True):
            mean, low, high = (float(summary[f"{metric}_{end}"][row]) for end in ("mean", "low", "high"))
            cells.append(naming.write(mean, low, high, interval=combination not in same))
        rows.append(cells)
    headings = [*(axis.name for axis in plan.axes), "n", *(naming.heading for naming in names)]
    sample = ": means of n seeds, ± half of the 95% confidence interval" if len(plan.seeds) > 1 else ""
    print_table(rows, headings=headings, title=f"{plan.name}{sample}", left=len(plan.axes))


def _write(result: SweepResult, folder: Path, metrics: tuple[str, ...], over: str | None) -> None:
    """Write tables and plots; write only the tables if the plots cannot be drawn."""
    with delayed_progress("Writing files"):
        try:
            files = result.write(folder, metrics=metrics, over=over)
        except UnavailableError as error:
            files = result.write(folder, plots=False)
            say(f"no plot: {error}")
    runs, failed = len(result.plan.runs), len(result.failures)
    counts = f"{runs - failed - result.n_reused:,} run now, {result.n_reused:,} finished before, {failed:,} failed"
    say(f"{runs:,} runs: {counts}; wrote {len(files)} files to {folder}")


def _print_failures(result: SweepResult) -> None:
    """Print the runs that failed, and exit with status 1 if there are any."""
    if not result.failures:
        return
    for failure in result.failures[:_FAILURES_SHOWN]:
        say(f"gridweave: {failure}")
    if len(result.failures) > _FAILURES_SHOWN:
        say(f"gridweave: and {len(result.failures) - _FAILURES_SHOWN:,} more, which sweep.json names")
    raise typer.Exit(GridweaveError.exit_status)

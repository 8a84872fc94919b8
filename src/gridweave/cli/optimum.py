"""``gridweave optimum``: the best plan at instants of a trace, and how much worse the policies are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridweave.cli.arguments import Json, Nodes, Trace
from gridweave.cli.options import named_as_typed, policies
from gridweave.cli.output import (
    Report,
    check_folder,
    delayed_progress,
    interruptible,
    print_json,
    print_table,
    say,
)
from gridweave.errors import OptionError
from gridweave.site.times import parse_time_ms
from gridweave.values import counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gridweave.scenarios.optimum.table import GapPoint, OptimumLine, SizeLine
    from gridweave.scenarios.results.schedule import SimulationResult
    from gridweave.scenarios.workload.table import Workload
    from gridweave.site.disciplines.entry import Policy


MOST_JOBS = 200
"""For --optimum-every: instants with more waiting jobs are skipped."""

LIMIT_S = 10.0
"""For --optimum-every: how long the solver may search at each instant."""

At = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="The instant, counted from the start of the trace, e.g. 9d or 3600s."),
]
Every = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Solve at every Nth submission with several waiting jobs, instead of at one instant."
    ),
]
Sizes = Annotated[
    str | None,
    typer.Option(metavar="N,...", help="Queue lengths at which to solve; prints the loss for each."),
]
PerSize = Annotated[
    int, typer.Option(metavar="N", help="With --sizes: instants for each length, spread over the trace.")
]
Metric = Annotated[
    str, typer.Option(metavar="NAME", help="Metric that the plan minimises: artww, art, artwa, sld or sldww.")
]
Solver = Annotated[
    str,
    typer.Option(metavar="NAME", help="cp-sat: exact (OR-Tools). highs: the integer program of Streit, section 4.6."),
]
TimeLimit = Annotated[str, typer.Option(metavar="TIME", help="Time limit of the solver at each instant.")]
Most = Annotated[int, typer.Option(metavar="N", help="With --every: skip instants with more than N waiting jobs.")]
Shrink = Annotated[float, typer.Option(metavar="X", help="Multiply all submit times by X; below 1, queues are longer.")]
Own = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="Option of dynP, the discipline that schedules the trace."),
]
Out = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Write the table, and the gap over time as CSV and plot, to this folder."),
]


def optimum(
    trace: Trace,
    nodes: Nodes = None,
    at: At = None,
    every: Every = None,
    sizes: Sizes = None,
    per_size: PerSize = 3,
    metric: Metric = "artww",
    solver: Solver = "cp-sat",
    time_limit: TimeLimit = "60s",
    most: Most = 200,
    shrink: Shrink = 1.0,
    option: Own = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Find the best plan at an instant, and print how much worse the best policy is.

    The trace is simulated under dynP; the best plans are only compared with it.

    Example: gridweave optimum KTH-SP2-1996-2 --nodes 100 --every 2000
    """
    from gridweave.scenarios.optimum.table import by_size
    from gridweave.scenarios.traces.load import load_workload
    from gridweave.scenarios.workload import transform

    if (at is not None) + (every is not None) + (sizes is not None) != 1:
        raise OptionError("--at", "selects the instants, as --every and --sizes do; give exactly one of the three")
    at_ms = None if at is None else parse_time_ms("--at", at)
    chosen_sizes = _sizes(sizes)
    folder = None if out is None else check_folder(out)
    options = {"solver": solver, "metric": metric, "limit_s": parse_time_ms("--time-limit", time_limit) / 1000}
    with named_as_typed(), delayed_progress("Reading") as progress:
        (policy,) = policies("dynp", "fcfs", "easy", "first-fit", 0.5, "none", [], option or [], nodes or 1)[:1]
        workload, _ = load_workload(trace, nodes=nodes, columns=())
        if shrink != 1.0:
            workload = transform.shrink(workload, shrink)
        asked = (at_ms, every, chosen_sizes, per_size, most)
        lines_by_size = interruptible(lambda: _solved(workload, nodes, policy, asked, progress, options))
    everything = [line for of_size in lines_by_size.values() for line in of_size]
    _show(everything, by_size(lines_by_size) if chosen_sizes else None, as_json=as_json)
    if folder is not None:
        _write(folder, everything)


def _show(lines: list[OptimumLine], sizes: list[SizeLine] | None, *, as_json: bool) -> None:
    """Print the line of each instant, or with --sizes the loss by number of waiting jobs."""
    if as_json:
        import msgspec

        print_json([msgspec.to_builtins(line) for line in (lines if sizes is None else sizes)])
    elif not lines:
        say("at most one job is waiting at each of these instants")
    elif sizes is not None:
        _print_sizes(sizes)
    else:
        _print(lines)


def _solved(
    workload: Workload,
    nodes: int | None,
    policy: Policy,
    asked: tuple[int | None, int | None, list[int], int, int],
    progress: Report,
    options: dict[str, Any],
) -> dict[int, list[OptimumLine]]:
    """Simulate a trace and solve its instants; return the lines by number of waiting jobs, or all under 0."""
    from gridweave.scenarios.batch.simulate import simulate_site
    from gridweave.scenarios.optimum.table import instants_by_size, instants_of, lines_of

    at_ms, every, sizes, per_size, most = asked
    result = simulate_site(workload, nodes, policy)
    if sizes:
        instants_ms = instants_by_size(result, sizes, per_size)
    else:
        instants_ms = {0: instants_of(result, every or 0, most=most) if at_ms is None else [at_ms]}
    return {
        size: list(lines_of(result, of_size, _progress_line(progress, size), **options))
        for size, of_size in instants_ms.items()
    }


def _sizes(text: str | None) -> list[int]:
    try:
        return [] if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError("--sizes", f"{text!r} is not a list of numbers; write 5,10,20") from None


def _progress_line(report: Report, size: int = 0) -> Callable[[int, int, GapPoint | None], None]:
    """Return a callback that shows how many instants are solved, and the bound and the gap of the present one."""

    def show(done: int, total: int, point: GapPoint | None) -> None:
        what = f"Solving {size} jobs" if size else "Solving"
        if point is not None:
            what += f": best {point.worth / 1000:,.0f}, bound {point.bound / 1000:,.0f}, gap {point.gap_pct:.2f}%"
        report(done, total, what)

    return show


def loss_over(result: SimulationResult, every: int, report: Report) -> dict[str, float]:
    """Return how much worse the best policy was than the best plan, at every Nth submission of a run.

    Instants with more than `MOST_JOBS` waiting jobs are skipped, and each is solved for at most `LIMIT_S`. The result
    has the number of instants, the number with a proven best plan, and the mean and the largest loss in per cent.
    """
    from gridweave.scenarios.optimum.table import instants_of, lines_of

    instants_ms = instants_of(result, every, most=MOST_JOBS)
    lines = interruptible(lambda: list(lines_of(result, instants_ms, _progress_line(report), limit_s=LIMIT_S)))
    losses = [line.loss_pct for line in lines]
    return {
        "instants": len(lines),
        "proven": sum(line.gap_pct == 0 for line in lines),
        "loss_pct": sum(losses) / max(len(losses), 1),
        "most_loss_pct": max(losses, default=0.0),
    }


def print_loss(label: str, loss: dict[str, float]) -> None:
    """Print the result of `loss_over`."""
    if not loss["instants"]:
        typer.echo(f"{label}: none of these instants has 2 to {MOST_JOBS} waiting jobs")
        return
    counts = f"{counted(int(loss['instants']), 'instant')}, {loss['proven']:.0f} proven"
    typer.echo(
        f"{label}: the best policy loses {loss['loss_pct']:.2f}% against the best plan found, at most "
        f"{loss['most_loss_pct']:.2f}% ({counts})"
    )


def _write(folder: Path, lines: list[OptimumLine]) -> None:
    import functools

    from gridweave.scenarios.optimum.table import write_gaps, write_lines
    from gridweave.scenarios.plots.results import plot_gaps
    from gridweave.scenarios.results.files import save_figure, write_all

    files: dict[str, Callable[[Path], None]] = {
        "optimum.csv": functools.partial(write_lines, lines),
        "gap.csv": functools.partial(write_gaps, lines),
        "gap.png": functools.partial(save_figure, figure=plot_gaps(lines)),
    }
    write_all(folder, files)
    say(f"wrote {len(files)} files to {folder}")


def _print_sizes(lines: list[SizeLine]) -> None:
    """Print the loss by number of waiting jobs."""
    rows = [
        (
            f"{line.jobs}", f"{line.mean_jobs:.1f}", f"{line.instants}", f"{line.proven}", f"{line.loss_pct:.2f}",
            f"{line.most_loss_pct:.2f}", f"{line.gap_pct:.2f}", f"{line.seconds:,.2f}",
        )
        for line in lines
    ]  # fmt: skip
    headings = ("about", "jobs", "instants", "proven", "loss [%]", "greatest [%]", "gap [%]", "time [s]")
    print_table(rows, headings=headings, left=0)


def _print(lines: list[OptimumLine]) -> None:
    """Print the lines in the form of Streit's Table 4.4, with their averages below."""
    names = ("jobs", "makespan_s", "run_s", "scale_s", "quality", "loss_pct", "seconds")
    means = {name: sum(getattr(line, name) for line in lines) / len(lines) for name in names}
    rows = [
        (
            f"{line.at_ms / 1000:,.0f}", line.policy, f"{line.jobs}", f"{line.makespan_s:,.0f}", f"{line.run_s:,.0f}",
            f"{line.scale_s // 60}", f"{line.quality:.4f}", f"{line.loss_pct:.2f}",
            "–" if line.gap_pct is None else f"{line.gap_pct:.2f}", f"{line.seconds:,.2f}",
        )
        for line in lines
    ]  # fmt: skip
    averages = (
        "averages", "", f"{means['jobs']:.1f}", f"{means['makespan_s']:,.0f}", f"{means['run_s']:,.0f}",
        f"{means['scale_s'] / 60:.1f}", f"{means['quality']:.4f}", f"{means['loss_pct']:.2f}", "",
        f"{means['seconds']:,.2f}",
    )  # fmt: skip
    headings = (
        "at [s]", "best policy", "jobs", "makespan [s]", "acc. run time [s]", "scale [min]", "quality", "loss [%]",
        "gap [%]", "time [s]",
    )  # fmt: skip
    print_table([*rows, averages], headings=headings, left=2)

"""``gridweave optimum``: the best plan of instants of a trace, and how far the policies are from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.arguments import Json, Nodes, Trace
from gridweave.cli.options import named_as_typed, policies
from gridweave.cli.output import delayed_progress, interruptible, print_json, print_table, say
from gridweave.errors import OptionError
from gridweave.site.times import parse_time_ms

if TYPE_CHECKING:
    from gridweave.scenarios.optimum.table import OptimumLine
    from gridweave.scenarios.results.schedule import SimulationResult


At = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="The instant, from the beginning of the trace, such as 9d or 3600s."),
]
Every = Annotated[
    int | None,
    typer.Option(metavar="N", help="Every Nth submission at which several jobs wait, instead of one instant."),
]
Metric = Annotated[str, typer.Option(metavar="NAME", help="What the plan minimises: artww, art, artwa, sld or sldww.")]
Solver = Annotated[
    str,
    typer.Option(metavar="NAME", help="cp-sat: exact (OR-Tools). highs: the integer program of Streit, section 4.6."),
]
TimeLimit = Annotated[str, typer.Option(metavar="TIME", help="For each instant.")]
Most = Annotated[int, typer.Option(metavar="N", help="Instants at which more jobs wait are passed over.")]
Own = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Of dynP, under which the trace is played.")
]


def optimum(
    trace: Trace,
    nodes: Nodes = None,
    at: At = None,
    every: Every = None,
    metric: Metric = "artww",
    solver: Solver = "cp-sat",
    time_limit: TimeLimit = "60s",
    most: Most = 200,
    option: Own = None,
    as_json: Json = False,
) -> None:
    """Find the best plan of an instant, and print what the best policy loses against it.

    The trace is played under dynP; the best plans are only compared. Example: gridweave optimum KTH-SP2-1996-2 --nodes
    100 --every 2000
    """
    from gridweave.scenarios.batch.simulate import simulate
    from gridweave.scenarios.optimum.table import instants_of, lines_of
    from gridweave.scenarios.traces.load import load_workload

    if (at is None) == (every is None):
        raise OptionError("--at", "or --every: give one of them")
    limit_s = parse_time_ms("--time-limit", time_limit) / 1000
    with named_as_typed(), delayed_progress("Reading") as progress:
        chosen = policies("dynp", "fcfs", "easy", "first-fit", 0.5, "none", [], option or [], nodes or 1)
        workload, _ = load_workload(trace, nodes=nodes)

        def lines() -> list[OptimumLine]:
            result: SimulationResult = simulate(workload, nodes, chosen[0])
            instants_ms = [parse_time_ms("--at", at)] if at else instants_of(result, every or 1, most=most)
            report = lambda done, total: progress(done, total, "Solving")  # noqa: E731
            return list(lines_of(result, instants_ms, report, solver=solver, metric=metric, limit_s=limit_s))

        found = interruptible(lines)
    if as_json:
        import msgspec

        print_json([msgspec.to_builtins(line) for line in found])
    elif found:
        _print(found)
    else:
        say("at none of these instants several jobs wait")


def _print(lines: list[OptimumLine]) -> None:
    """Print the lines as Table 4.4 has them, with their averages below."""
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

"""``gridweave check`` finds faults and broken promises in a schedule; ``gridweave view`` shows runs in a browser."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.arguments import Json
from gridweave.cli.options import named_as_typed
from gridweave.cli.output import delayed_progress, print_json, print_table, say
from gridweave.errors import OptionError, check_known
from gridweave.site.times import parse_time_ms

if TYPE_CHECKING:
    from gridweave.scenarios.check.faults import Fault, Matched
    from gridweave.scenarios.check.promises import Parting, PromiseUse

WRONG_STATUS = 1
"""Exit status of the command if it finds a fault in the schedule."""

File = Annotated[
    str,
    typer.Argument(
        metavar="SCHEDULE", help="jobs.csv from gridweave, a schedule from Batsim, Alea or AccaSim, or a trace (SWF)."
    ),
]
OfTrace = Annotated[
    str, typer.Option("--trace", metavar="TRACE", help="The trace that was scheduled: a file, or a known name.")
]
Nodes = Annotated[int | None, typer.Option(metavar="N", help="Nodes of the machine. \\[default: from the trace]")]
Promise = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Policy that the schedule claims to follow: easy or conservative. A broken promise is then an error.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option(metavar="OTHER", help="Another schedule of the trace; report where the two first differ, and why."),
]
Tolerance = Annotated[
    str, typer.Option(metavar="TIME", help="Tolerated error of times, e.g. 1s if the simulator rounds to seconds.")
]


def check(
    schedule: File,
    trace: OfTrace,
    nodes: Nodes = None,
    promise: Promise = None,
    against: Against = None,
    tolerance: Tolerance = "0",
    as_json: Json = False,
) -> None:
    """Check a schedule: over-used nodes, jobs that run early, too long or not at all, and broken promises.

    The exit status is 1 if anything is wrong, or if the two schedules differ.

    Example: gridweave check result/jobs.csv --trace CTC-SP2-1996-3.1-cln --nodes 430 --promise easy
    """
    from gridweave.scenarios.check.faults import faults, match
    from gridweave.scenarios.check.promises import PROMISES, parting, promise_use
    from gridweave.scenarios.check.reading import read_schedule
    from gridweave.scenarios.traces.convert import check_nodes
    from gridweave.scenarios.traces.load import load_workload

    tolerance_ms = parse_time_ms("--tolerance", tolerance)
    if promise is not None:
        check_known("--promise", promise, PROMISES)
    with named_as_typed(), delayed_progress("Reading"):
        check_nodes(nodes)
        files = [schedule] if against is None else [schedule, against]
        read = [read_schedule(file) for file in files]
        workload, report = load_workload(trace, nodes=nodes, columns=())
        machine = nodes or workload.nodes or 1
        matched = [match(item, workload) for item in read]
        all_faults = [faults(item, machine, tolerance_ms=tolerance_ms) for item in matched]
        uses = []
        if not all_faults[0]:
            uses = [promise_use(matched[0], machine, kind, tolerance_ms=tolerance_ms) for kind in PROMISES]
        parted = parting(matched[0], matched[1], machine) if against is not None and not any(all_faults) else None
    for line in report.lines():
        say(line)
    if as_json:
        _print_json(matched, all_faults, uses, parted)
    else:
        _print(matched, all_faults, machine)
        _print_rest(uses, parted, compared=against is not None, wrong=any(all_faults))
    if any(all_faults) or parted is not None or any(use.broken and use.kind == promise for use in uses):
        raise typer.Exit(WRONG_STATUS)


def _print(matched: list[Matched], fault_lists: list[list[Fault]], nodes: int) -> None:
    """Print the faults of each schedule."""
    from gridweave.scenarios.traces.text import seconds_text

    for match, wrong in zip(matched, fault_lists, strict=True):
        read = match.schedule
        sign = "-" if match.shift_ms < 0 else ""
        moved = f", moved by {sign}{seconds_text(abs(match.shift_ms))} s to the trace's clock" if match.shift_ms else ""
        typer.echo(f"{read.path} ({read.kind}): {len(read):,} jobs of {match.workload.name} on {nodes:,} nodes{moved}")
        if wrong:
            rows = [(fault.kind, f"{fault.count:,}", fault.first) for fault in wrong]
            print_table(rows, headings=("fault", "times", "the first"), right=(1,))
        else:
            typer.echo("no faults")


def _print_rest(uses: list[PromiseUse], parted: Parting | None, *, compared: bool, wrong: bool) -> None:
    """Print whether promises were kept, and where two schedules differ."""
    if wrong:
        typer.echo("promises and differences are checked only in schedules without faults")
        return
    for use in uses:
        typer.echo(str(use))
    if compared:
        typer.echo("both schedules are the same" if parted is None else str(parted))


def _print_json(
    matched: list[Matched], fault_lists: list[list[Fault]], uses: list[PromiseUse], parted: Parting | None
) -> None:
    import msgspec

    schedules = [
        {
            "path": match.schedule.path,
            "format": match.schedule.kind,
            "jobs": len(match.schedule),
            "shift_ms": match.shift_ms,
            "faults": msgspec.to_builtins(wrong),
        }
        for match, wrong in zip(matched, fault_lists, strict=True)
    ]
    print_json({"schedules": schedules, "promises": msgspec.to_builtins(uses), "parting": msgspec.to_builtins(parted)})


def view(
    folders: Annotated[list[str], typer.Argument(metavar="RESULT...", help="Folders written by --out.")],
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the report to this file instead of opening a browser.")
    ] = None,
) -> None:
    """Show one run, or several side by side, in a browser: schedule and metrics.

    The report is one HTML file that works offline.

    Example: gridweave view result/ --out report.html
    """
    from gridweave.scenarios.plots.report import read_run, report

    page = report([read_run(folder) for folder in folders])
    path = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="gridweave-")) / "report.html"
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OptionError("--out", f"{path}: {error.strerror}; name a file in a folder that you may write to") from None
    if out is None and not webbrowser.open(path.resolve().as_uri()):
        say("cannot start a browser here")
    say(f"the report is in {path}")

"""``gridweave reproduce``: recompute published tables and figures."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.arguments import Json
from gridweave.cli.output import check_folder, delayed_progress, interruptible, print_json, print_table, say
from gridweave.errors import OptionError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gridweave_papers.registry import Bench
    from gridweave_papers.studies.report import Report

MAX_SEEDS = 1000

FULL = "dfrs (100 synthetic traces, all weeks) and streit-load (10 workloads of each set)"
"""The studies that simulate more with ``--full``."""


_Tables = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE]...",
        help="Tables to recompute, e.g. streit-5.1 or zhang-5; or streit, zhang, all. \\[default: list them]",
    ),
]
_Seeds = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="For zhang, lomarc, dfrs, collins and streit-load: number of workloads to average over. \\[default: "
        "10 for dfrs, 5 for lomarc, 3 for others]",
    ),
]
_Out = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="Write tables (CSV) and figures (PNG) to this folder.")
]


def reproduce(
    tables: _Tables = None,
    seeds: _Seeds = None,
    full: Annotated[
        bool,
        typer.Option("--full", help=f"For {FULL}. Takes hours; after an interrupt, run the same command to continue."),
    ] = False,
    out: _Out = None,
    as_json: Json = False,
) -> None:
    """Recompute published tables and figures, and print published numbers next to ours; without a name, list them.

    Example: gridweave reproduce streit-3.6 streit-5.1 streit-A zhang --out published
    """
    if not tables:
        _list(as_json=as_json)
        return
    from gridweave_papers.registry import Bench, compute, resolve

    ids = resolve(tables)
    if seeds is not None and not 1 <= seeds <= MAX_SEEDS:
        raise OptionError("--seeds", f"is {seeds}; expected a number from 1 to {MAX_SEEDS}")
    folder = None if out is None else check_folder(out)
    with delayed_progress("Reading") as progress:
        bench = Bench(seeds=seeds, full=full, progress=progress)
        reports = interruptible(lambda: [compute(table, bench) for table in ids])
    _check_something(reports)
    (_print_json if as_json else _print)(reports)
    if folder is not None:
        _write(folder, reports, bench)


def _list(*, as_json: bool) -> None:
    """List the tables that can be recomputed, and whether their traces are on this machine."""
    from gridweave_papers.registry import TABLES

    at_hand = {name: table.at_hand() for name, table in TABLES.items()}
    if as_json:
        print_json(
            {
                name: {"title": table.title, "source": table.source, "traces": at_hand[name]}
                for name, table in TABLES.items()
            }
        )
        return
    rows = []
    for name, table in TABLES.items():
        missing = [trace for trace, is_available in at_hand[name].items() if not is_available]
        state = "at hand" if not missing else f"missing: {', '.join(missing)}"
        rows.append((name, table.title, table.source, state))
    print_table(rows, headings=("table", "content", "published in", "traces"), left=4)
    for trace in dict.fromkeys(
        trace for traces in at_hand.values() for trace, is_available in traces.items() if not is_available
    ):
        say(f"get a missing trace with: gridweave trace fetch {trace}")


def _check_something(reports: Iterable[Report]) -> None:
    if all(report.empty for report in reports):
        missing = list(dict.fromkeys(name for report in reports for name in report.missing))
        commands = ", ".join(f"`gridweave trace fetch {name}`" for name in missing)
        raise UnavailableError(f"none of the required traces is on this machine; get them with {commands}")


def _tally(reports: Iterable[Report]) -> dict[str, dict[str, int]]:
    from gridweave_papers.studies.report import tally

    return {reading: {"hold": held, "of": judged} for reading, (held, judged) in tally(reports).items()}


def _print_json(reports: list[Report]) -> None:
    print_json({"reports": [report.to_dict() for report in reports], "conclusions_that_hold": _tally(reports)})


def _print(reports: list[Report]) -> None:
    from gridweave_papers.studies.report import conclusion_lines, text_table

    for report in reports:
        typer.echo(f"{report.id}: {report.title} ({report.source})\n")
        for section in report.sections:
            headings, rows = text_table(section)
            print_table(rows, headings=headings, title=section.title, left=len(section.headings))
        for conclusion in report.conclusions:
            typer.echo("\n".join(conclusion_lines(conclusion)))
        if report.conclusions:
            typer.echo("")
        for note in report.notes:
            typer.echo(f"- {note}")
        for trace in report.missing:
            typer.echo(f"- left out: {trace} is not on this machine; get it with `gridweave trace fetch {trace}`")
        typer.echo("")
    counts = _tally(reports)
    if counts:
        parts = [f"{tally['hold']} of {tally['of']} with {reading}" for reading, tally in counts.items()]
        typer.echo(f"Conclusions that hold, by reading: {'; '.join(parts)}")


def _write(folder: Path, reports: list[Report], bench: Bench) -> None:
    """Create all tables and figures, then write them to a folder."""
    from gridweave.scenarios.results.files import save_figure, write_all
    from gridweave_papers.registry import draw
    from gridweave_papers.studies.report import csv_files

    files: dict[str, Callable[[Path], None]] = {}
    for report in reports:
        files |= {name: functools.partial(_write_text, text) for name, text in csv_files(report).items()}
        for name, figure in draw(report.id, bench).items():
            files[f"{name}.png"] = functools.partial(save_figure, figure=figure)
    write_all(folder, files)
    say(f"wrote {len(files)} files to {folder}")


def _write_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8", newline="")

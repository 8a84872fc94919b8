"""The command `gridweave trace`: look at traces, convert them, make new ones of them, and fetch known ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.options import named_as_typed, parse_time_ms
from gridweave.cli.output import counted, picture_kind, print_json, print_table, save_picture, say
from gridweave.errors import InputError

if TYPE_CHECKING:
    from gridweave.scenarios.traces.convert import ConversionReport
    from gridweave.scenarios.workload.table import Workload

app = typer.Typer(help="Inspect, convert, transform and fetch workload traces.", no_args_is_help=True)

File = Annotated[
    str, typer.Argument(metavar="FILE", help="Trace file (SWF or MuPSiE; plain, .gz or .xz) or name of a known trace.")
]
Out = Annotated[
    str, typer.Argument(metavar="OUT", help="File to write: .swf, .mupsie or .txt, optionally with .gz or .xz.")
]
Nodes = Annotated[int | None, typer.Option("--nodes", help="Nodes of the machine. \\[default: as the file says]")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Format = Annotated[
    str | None, typer.Option("--to", metavar="swf|mupsie", help="Format of OUT. \\[default: by its suffix]")
]


@app.command()
def info(
    file: File,
    nodes: Nodes = None,
    as_json: Json = False,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="OUT.png", help="Draw the distributions to this file.")
    ] = None,
) -> None:
    """Show what is in a trace: widths, estimates, run times, interarrival times, load and dates."""
    from gridweave.scenarios.traces.info import describe

    picture = picture_kind("--plot", plot) if plot is not None else None
    workload, report = _load(file, nodes)
    figures = describe(workload)
    if plot is not None and picture is not None:
        from gridweave.scenarios.plots.traces import plot_trace

        save_picture(plot_trace(workload), plot, picture)
    if as_json:
        print_json({**figures.to_dict(), "conversion": report.to_dict(), "plot": plot})
        return
    say(str(report))
    print_table(figures.figure_rows(), title=figures.name)
    print_table(figures.spread_rows(), headings=("", "min", "avg", "max"))
    if plot is not None:
        say(f"plot written to {plot}")


@app.command()
def convert(
    file: File,
    out: Out,
    nodes: Nodes = None,
    to: Format = None,
    as_json: Json = False,
) -> None:
    """Write a trace in another format, with what cannot be simulated left out."""
    workload, report = _load(file, nodes)
    _save(workload, report, out, as_json, file_format=to)


@app.command()
def shrink(
    file: File,
    out: Out,
    factor: Annotated[float, typer.Option("--factor", help="Factor for submit times; below 1 raises the load.")],
    nodes: Nodes = None,
    as_json: Json = False,
) -> None:
    """Let the jobs come faster or slower: multiply their submit times."""
    from gridweave.scenarios.workload import transform

    _scale(transform.shrink, file, out, factor, nodes, as_json=as_json)


@app.command()
def stretch(
    file: File,
    out: Out,
    factor: Annotated[float, typer.Option("--factor", help="Factor for run times and estimates.")],
    nodes: Nodes = None,
    as_json: Json = False,
) -> None:
    """Make the jobs longer or shorter: multiply their run times and estimates."""
    from gridweave.scenarios.workload import transform

    _scale(transform.stretch, file, out, factor, nodes, as_json=as_json)


@app.command()
def cut(
    file: File,
    out: Out,
    first: Annotated[int | None, typer.Option("--first", help="First job to keep, counted from 1.")] = None,
    last: Annotated[int | None, typer.Option("--last", help="Last job to keep.")] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Keep jobs submitted at or after this time, e.g. 90, 10m, 12h or 1d12h."
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Keep jobs submitted before this time.")
    ] = None,
    nodes: Nodes = None,
    as_json: Json = False,
) -> None:
    """Cut out a piece of a trace, by job number or by time."""
    from gridweave.scenarios.workload import transform

    start_ms = None if start is None else parse_time_ms("--from", start)
    end_ms = None if end is None else parse_time_ms("--to", end)
    workload, report = _load(file, nodes)
    with named_as_typed(start_ms="--from", end_ms="--to"):
        piece = transform.cut(workload, first=first, last=last, start_ms=start_ms, end_ms=end_ms)
    _save(piece, report, out, as_json)


@app.command()
def split(
    file: File,
    out: Out,
    max_width: Annotated[int, typer.Option("--max-width", help="Nodes of the widest part.")],
    nodes: Nodes = None,
    as_json: Json = False,
) -> None:
    """Cut wide jobs into parts with the same total area."""
    from gridweave.scenarios.workload import transform

    workload, report = _load(file, nodes)
    with named_as_typed(max_width="--max-width"):
        parts = transform.split(workload, max_width)
        stride = transform.split_stride(workload, max_width)
    _save(parts, report, out, as_json, {"id_stride": stride})
    if stride > 1 and not as_json:
        say(f"part k of job i has the id {stride} i + k")


@app.command()
def fetch(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the trace, or the beginning of it.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the known traces.")] = False,
    folder: Annotated[str | None, typer.Option("--folder", help="Folder to put it in. \\[default: your cache]")] = None,
    as_json: Json = False,
) -> None:
    """Get a trace from the Parallel Workloads Archive into your cache, checked by its SHA-256."""
    from gridweave.scenarios.traces import fetch as archive

    if show_list:
        known = {key: archive.KNOWN_TRACES[key] for key in sorted(archive.KNOWN_TRACES)}
        if as_json:
            print_json({key: {"url": one.url, "sha256": one.sha256, "nodes": one.nodes} for key, one in known.items()})
        else:
            rows = [(key, one.url, f"{one.nodes:,}") for key, one in known.items()]
            print_table(rows, headings=("name", "address", "nodes"), left=2)
        return
    if name is None:
        raise InputError("NAME is missing; `gridweave trace fetch --list` shows the traces that are known")
    got = archive.fetch(name, folder=folder)
    if as_json:
        print_json({"name": got.name, "path": str(got.path), "downloaded": got.downloaded, "nodes": got.nodes})
    else:
        state = "fetched and checked" if got.downloaded else "already there, and right"
        typer.echo(f"{got.name}: {state}: {got.path} (publications use {got.nodes:,} nodes)")


def _scale(
    by: Callable[[Workload, float], Workload], file: str, out: str, factor: float, nodes: int | None, *, as_json: bool
) -> None:
    """Load a workload, multiply some of its times by a factor, and write it."""
    workload, report = _load(file, nodes)
    with named_as_typed(factor="--factor"):
        scaled = by(workload, factor)
    _save(scaled, report, out, as_json, {"factor": factor})


def _load(file: str, nodes: int | None) -> tuple[Workload, ConversionReport]:
    """Load a workload with every optional column that its format holds, so that none is lost on the way."""
    from gridweave.scenarios.traces.load import columns_of, load_workload

    with named_as_typed():
        return load_workload(file, nodes=nodes, columns=columns_of(file))


def _save(
    workload: Workload,
    report: ConversionReport,
    out: str,
    as_json: bool,
    more: Mapping[str, object] | None = None,
    *,
    file_format: str | None = None,
) -> None:
    """Write a workload and say what was done."""
    from gridweave.scenarios.traces.load import save_workload

    with named_as_typed(file_format="--to"):
        written = save_workload(workload, out, file_format=file_format)
    if as_json:
        result = {"out": out, "format": written, "jobs": len(workload), "nodes": workload.nodes, **(more or {})}
        print_json({**result, "conversion": report.to_dict()})
    else:
        say(str(report))
        typer.echo(f"{counted(len(workload), 'job')} written to {out} ({written})")

"""`gridweave trace`: show, convert, transform, fetch and generate workload traces, and learn models from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.arguments import Json, Trace
from gridweave.cli.options import check_seed, named_as_typed
from gridweave.cli.output import picture_kind, print_json, print_table, save_picture, say
from gridweave.errors import InputError, OptionError
from gridweave.site.times import parse_time_ms, span_text
from gridweave.values import counted

if TYPE_CHECKING:
    from gridweave.scenarios.generators.common import Moments, Scaling
    from gridweave.scenarios.traces.convert import ConversionReport
    from gridweave.scenarios.workload.table import Workload


app = typer.Typer(help="Inspect, convert, transform and fetch workload traces.", no_args_is_help=True)

Out = Annotated[
    str, typer.Argument(metavar="OUT", help="File to write: .swf, .mupsie or .txt, optionally with .gz or .xz.")
]
Nodes = Annotated[
    int | None, typer.Option("--nodes", metavar="N", help="Nodes of the machine. \\[default: from the file]")
]
Format = Annotated[
    str | None, typer.Option("--to", metavar="swf|mupsie", help="Format of OUT. \\[default: by its suffix]")
]


_Plot = Annotated[str | None, typer.Option("--plot", metavar="OUT.png", help="Draw the distributions to this file.")]


@app.command()
def info(file: Trace, nodes: Nodes = None, as_json: Json = False, plot: _Plot = None) -> None:
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


_Source = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="sacct|csv|parquet",
        help="TRACE is the output of Slurm's `sacct --parsable2`, or a table of jobs whose columns --map names.",
    ),
]
_ByCores = Annotated[
    bool,
    typer.Option("--by-cores", help="Widths in cores, for clusters whose jobs share nodes; --nodes are the cores."),
]
_Cancelled = Annotated[
    bool, typer.Option("--cancelled", help="Keep jobs that were cancelled before they started (SWF: status 5).")
]
_Chunks = Annotated[
    bool,
    typer.Option(
        "--chunks",
        help="Also write what jobs ask for to OUT.chunks.csv: for each processor its memory (SWF), or for each node "
        "its share of cores, memory and GPUs (sacct: AllocTRES, ReqTRES).",
    ),
]
_Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="KEY=COLUMN,...",
        help="For csv and parquet: the columns of a table of jobs, e.g. "
        "job_id=JobID,submit=submit_time:ms,run=duration,gpus=gpu_num; docs/traces.md lists keys and units. "
        "Repeatable.",
    ),
]


@app.command()
def convert(
    file: Trace,
    out: Out,
    nodes: Nodes = None,
    to: Format = None,
    source: _Source = None,
    columns: _Map = None,
    chunks: _Chunks = False,
    cancelled: _Cancelled = False,
    by_cores: _ByCores = False,
    as_json: Json = False,
) -> None:
    """Write a trace in another format, without the jobs that cannot be simulated.

    From Slurm's accounting, cancelled jobs are kept, and how each job ended is written to OUT.states.csv.

    Example: gridweave trace convert jobs.csv jobs.swf --from csv --nodes 99 --map submit=queued,run=duration,gpus=gpus
    """
    _check_convert(source, by_cores=by_cores, has_map=bool(columns), chunks=chunks)
    if source == "sacct":
        _convert_accounting(file, out, nodes, to, by_cores=by_cores, chunks=chunks, as_json=as_json)
    elif source is not None:
        _convert_table(file, out, nodes, to, columns or [], source, as_json=as_json)
    else:
        workload, report = _load(file, nodes, cancelled=cancelled)
        if chunks:
            from gridweave.scenarios.traces.chunk_files import chunks_of_processors

            workload = chunks_of_processors(workload)
        _save(workload, report, out, as_json, file_format=to)


def _check_convert(source: str | None, *, by_cores: bool, has_map: bool, chunks: bool) -> None:
    """Raise OptionError for options of `trace convert` that do not go together."""
    from gridweave.scenarios.traces.mapped import TABLE_FORMATS

    if source is not None and source not in ("sacct", *TABLE_FORMATS):
        raise OptionError("--from", f"{source!r} is not known; write sacct, csv or parquet, or leave it out")
    if by_cores and source != "sacct":
        raise OptionError("--by-cores", "works only on the output of sacct; add --from sacct, or leave it out")
    if by_cores and chunks:
        raise OptionError("--chunks", "counts cores, memory and GPUs of each node; leave out --by-cores")
    if has_map != (source in TABLE_FORMATS):
        problem = "names the columns of a table; add --from csv" if has_map else "is missing; it names the columns"
        raise OptionError("--map", f"{problem}, e.g. submit=submit_time,run=duration")
    if chunks and source in TABLE_FORMATS:
        raise OptionError("--chunks", "follows from --map with cores, memory or gpus; leave it out")


def _convert_table(
    file: str, out: str, nodes: int | None, to: str | None, columns: list[str], source: str, *, as_json: bool
) -> None:
    from gridweave.scenarios.traces.mapped import parse_map, read_table_of_jobs

    with named_as_typed():
        workload, report = read_table_of_jobs(file, parse_map(columns), nodes=nodes, file_format=source)
    _save(workload, report, out, as_json, file_format=to)


def _convert_accounting(
    file: str, out: str, nodes: int | None, to: str | None, *, by_cores: bool, chunks: bool, as_json: bool
) -> None:
    from gridweave.scenarios.traces.sacct import read_sacct, states_of, write_states

    with named_as_typed():
        workload, report, jobs = read_sacct(file, nodes=nodes, by_cores=by_cores, chunks=chunks)
    _save(workload, report, out, as_json, {"states": states_of(jobs)}, file_format=to)
    write_states(jobs, f"{out}.states.csv")
    if not as_json:
        say(
            f"states written to {out}.states.csv: {', '.join(f'{n:,} {state}' for state, n in states_of(jobs).items())}"
        )


_File = Annotated[
    str,
    typer.Argument(
        metavar="LOG",
        help="Output of Slurm's `sacctmgr --parsable2 show event`, or failure data of Los Alamos.",
    ),
]
_Start = Annotated[
    str | None, typer.Option("--start", metavar="DATE", help="Time 0, e.g. 2005-06-01T00:00 on the clock of LOG.")
]
_System = Annotated[
    str | None, typer.Option("--system", metavar="N", help="Number of the system in the Los Alamos data.")
]


@app.command()
def outages(
    file: _File,
    out: Annotated[str, typer.Argument(metavar="OUT", help="File to write, for `simulate --node-events` (.csv).")],
    trace: Annotated[str | None, typer.Option("--trace", metavar="FILE", help="Take time 0 from this trace.")] = None,
    start: _Start = None,
    system: _System = None,
) -> None:
    """Extract node outages from a log, for `gridweave simulate --node-events`.

    Example: gridweave trace outages events.txt nodes.csv --trace log.swf
    """
    from gridweave.scenarios.traces.outages import node_events, node_events_text, read_outages
    from gridweave.scenarios.traces.text import write_file

    start_unix_s = _time_0(trace, start)
    with named_as_typed():
        outage_records = read_outages(file, system=system)
    events = node_events(outage_records, start_unix_s=start_unix_s)
    write_file(out, lambda stream: stream.write(node_events_text(events).encode()))
    nodes = max((event.first_node + 1 for event in events), default=0)
    changes = f"{counted(len(events), 'event')} of {counted(nodes, 'node')}"
    say(f"{counted(len(outage_records), 'outage')} read, {changes} written to {out}")


def _time_0(trace: str | None, start: str | None) -> int:
    """Return time 0 in seconds since 1970, from a trace or from a date; exactly one of the two must be given."""
    if (trace is None) == (start is None):
        raise OptionError("--start", "sets time 0, as --trace does; give exactly one of them")
    if trace is not None:
        workload, _ = _load(trace, None)
        if workload.start_unix_s is None:
            raise OptionError("--trace", f"{trace} does not have the date of its time 0; give --start")
        return workload.start_unix_s
    import datetime as dt

    with suppress(ValueError):
        instant = dt.datetime.fromisoformat(str(start))
        if instant.tzinfo is None:
            return int(instant.replace(tzinfo=dt.UTC).timestamp())
    right = "write for example 2005-06-01T00:00, without a time zone"
    raise OptionError("--start", f"{start!r} is not a date on the clock of LOG; {right}")


@app.command()
def shrink(
    file: Trace,
    out: Out,
    factor: Annotated[
        float, typer.Option("--factor", metavar="X", help="Factor for submit times; below 1 raises the load.")
    ],
    nodes: Nodes = None,
    as_json: Json = False,
) -> None:
    """Make the jobs arrive faster or slower: multiply their submit times."""
    from gridweave.scenarios.workload import transform

    _scale(transform.shrink, file, out, factor, nodes, as_json=as_json)


@app.command()
def stretch(
    file: Trace,
    out: Out,
    factor: Annotated[float, typer.Option("--factor", metavar="X", help="Factor for run times and estimates.")],
    nodes: Nodes = None,
    as_json: Json = False,
) -> None:
    """Make the jobs longer or shorter: multiply their run times and estimates."""
    from gridweave.scenarios.workload import transform

    _scale(transform.stretch, file, out, factor, nodes, as_json=as_json)


_First = Annotated[int | None, typer.Option("--first", metavar="N", help="First job to keep, counted from 1.")]
_CutStart = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TIME", help="Keep jobs submitted at or after this time, e.g. 90, 10m, 12h or 1d12h."
    ),
]
_End = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Keep jobs submitted before this time.")]


@app.command()
def cut(
    file: Trace,
    out: Out,
    first: _First = None,
    last: Annotated[int | None, typer.Option("--last", metavar="N", help="Last job to keep.")] = None,
    start: _CutStart = None,
    end: _End = None,
    nodes: Nodes = None,
    as_json: Json = False,
) -> None:
    """Cut a section out of a trace, by job number or by time."""
    from gridweave.scenarios.workload import transform

    start_ms = None if start is None else parse_time_ms("--from", start)
    end_ms = None if end is None else parse_time_ms("--to", end)
    workload, report = _load(file, nodes)
    with named_as_typed(start_ms="--from", end_ms="--to"):
        excerpt = transform.cut(workload, first=first, last=last, start_ms=start_ms, end_ms=end_ms)
    _save(excerpt, report, out, as_json)


@app.command()
def split(
    file: Trace,
    out: Out,
    max_width: Annotated[int, typer.Option("--max-width", metavar="N", help="Nodes of the widest part.")],
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


_Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the trace, or the beginning of it.")]
_Folder = Annotated[
    str | None, typer.Option("--folder", metavar="FOLDER", help="Folder for the trace. \\[default: your cache]")
]


@app.command()
def fetch(
    name: _Name = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the known traces.")] = False,
    folder: _Folder = None,
    as_json: Json = False,
) -> None:
    """Download a trace from the Parallel Workloads Archive into your cache, and check its SHA-256."""
    from gridweave.scenarios.traces import fetch as archive

    if show_list:
        traces = {key: archive.KNOWN_TRACES[key] for key in sorted(archive.KNOWN_TRACES)}
        if as_json:
            print_json({key: {"url": it.url, "sha256": it.sha256, "nodes": it.nodes} for key, it in traces.items()})
        else:
            rows = [(key, trace.url, f"{trace.nodes:,}") for key, trace in traces.items()]
            print_table(rows, headings=("name", "address", "nodes"), left=2)
        return
    if name is None:
        raise InputError("NAME is missing; `gridweave trace fetch --list` lists the known traces")
    got = archive.fetch(name, folder=folder)
    if as_json:
        print_json({"name": got.name, "path": str(got.path), "downloaded": got.downloaded, "nodes": got.nodes})
    else:
        state = "fetched and checked" if got.downloaded else "already there, checksum correct"
        typer.echo(f"{got.name}: {state}: {got.path} (publications use {got.nodes:,} nodes)")


def _scale(
    by: Callable[[Workload, float], Workload], file: str, out: str, factor: float, nodes: int | None, *, as_json: bool
) -> None:
    """Load a workload, scale it by a factor with `by`, and write it."""
    workload, report = _load(file, nodes)
    with named_as_typed(factor="--factor"):
        scaled = by(workload, factor)
    _save(scaled, report, out, as_json, {"factor": factor})


def _load(file: str, nodes: int | None, *, cancelled: bool = False) -> tuple[Workload, ConversionReport]:
    """Load a workload with all optional columns of its format, so that the written file keeps them."""
    from gridweave.scenarios.traces.load import load_workload

    with named_as_typed():
        return load_workload(file, nodes=nodes, cancelled=cancelled)


def _save(
    workload: Workload,
    report: ConversionReport,
    out: str,
    as_json: bool,
    more: Mapping[str, object] | None = None,
    *,
    file_format: str | None = None,
) -> None:
    from gridweave.scenarios.traces.load import save_workload

    with named_as_typed(file_format="--to"):
        written = save_workload(workload, out, file_format=file_format)
    chunks_out = _save_chunks(workload, f"{out}.chunks.csv")
    if as_json:
        result = {"out": out, "format": written, "jobs": len(workload), "nodes": workload.nodes, **(more or {})}
        print_json({**result, "chunks_out": chunks_out, "conversion": report.to_dict()})
        return
    say(str(report))
    typer.echo(f"{counted(len(workload), 'job')} written to {out} ({written})")
    if chunks_out is not None:
        say(f"{counted(len(workload.chunks), 'different chunk')} written to {chunks_out}, for simulate --chunks")


def _save_chunks(workload: Workload, out: str) -> str | None:
    """Write what jobs ask for to a file, and return its name; None if all jobs get whole nodes."""
    if not workload.chunks:
        return None
    from gridweave.scenarios.traces.chunk_files import write_chunks

    write_chunks(workload, out)
    return out


DEFAULT_MODEL = "ctc-sp2"

_MODEL_FILE = re.compile(r".\.json(\.(gz|xz))?$", re.IGNORECASE)
_CSV_FILE = re.compile(r".\.csv(\.(gz|xz))?$", re.IGNORECASE)
_MIX = "M1|M2|M3|CPU/NETWORK/DISK"

Load = Annotated[
    float | None,
    typer.Option(
        "--load",
        metavar="X",
        help="Offered load to reach by scaling interarrival times, before --shrink and --run-factor.",
    ),
]
Estimates = Annotated[
    str,
    typer.Option(
        "--estimates", metavar="keep|perfect|omega:X|phi:X", help="Keep the model's estimates, or draw new ones."
    ),
]
Weibull = Annotated[
    str | None,
    typer.Option(
        "--weibull",
        metavar="fit|table:NAME",
        help="Interarrival times of a histogram model: fitted, or as published, e.g. table:CTC.",
    ),
]
ModelName = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME|FILE", help="Name of a model that ships with gridweave, or file of a learned model."
    ),
]
ModelNodes = Annotated[
    int | None,
    typer.Option("--nodes", metavar="N", help="Nodes of the machine; no job is wider. \\[default: the model's]"),
]
Alpha = Annotated[
    float | None,
    typer.Option(
        "--alpha",
        metavar="X",
        help="Lublin models: shape parameter aarr of the gaps between jobs; below 10.23 raises the load.",
    ),
]
Mix = Annotated[
    str | None,
    typer.Option("--resources", metavar=_MIX, help="Also draw the CPU, network, disk and memory needs of the jobs."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed; the same seed gives the same result.")]
ResourcesOut = Annotated[
    str | None,
    typer.Option("--resources-out", metavar="FILE", help="File for --resources. \\[default: OUT.resources.csv]"),
]


_Model = Annotated[str, typer.Option("--model", metavar="histogram|hyper-erlang", help="Kind of model to learn.")]


@app.command()
def learn(
    file: Trace,
    out: Annotated[str, typer.Argument(metavar="OUT", help="File to write: .json, optionally with .gz or .xz.")],
    nodes: Nodes = None,
    model: _Model = "histogram",
    weibull: Weibull = None,
    as_json: Json = False,
) -> None:
    """Learn a workload model from a trace and keep it as a small file."""
    from gridweave.scenarios.generators.registry import GENERATORS, save_model
    from gridweave.scenarios.traces.load import load_workload

    entry = GENERATORS.get(model)
    if entry is None or entry.learn is None:
        valid_names = ", ".join(name for name, generator in GENERATORS.items() if generator.learn is not None)
        raise OptionError("--model", f"{model!r} is not a kind of model that can be learnt; one of {valid_names}")
    options = {} if weibull is None else {"weibull": weibull}
    for option in options:
        if option not in entry.learn_options:
            raise OptionError(f"--{option}", f"a {model} model has no such parameter; leave it out")
    if not _MODEL_FILE.search(out):
        raise InputError(f"{out}: a model is written as .json, .json.gz or .json.xz; give such a name")
    with named_as_typed():
        workload, report = load_workload(file, nodes=nodes, columns=())
        learnt = entry.learn(workload, nodes=nodes, **options)
    save_model(learnt, out)
    moments: Moments = learnt.moments
    if as_json:
        figures = {"jobs": moments.jobs, "nodes": learnt.nodes, "offered_load": moments.offered_load}
        print_json({"out": out, "model": model, **figures, "conversion": report.to_dict()})
        return
    say(str(report))
    typer.echo(
        f"{model} model of {moments.jobs:,} jobs, offered load {moments.offered_load:.3f} on {learnt.nodes:,} nodes, "
        f"written to {out}"
    )


_Shrink = Annotated[
    float, typer.Option("--shrink", metavar="X", help="Factor for interarrival times; below 1 raises the load.")
]
_RunFactor = Annotated[float, typer.Option("--run-factor", metavar="X", help="Factor for run times and estimates.")]


@app.command()
def generate(
    out: Out,
    model: ModelName = DEFAULT_MODEL,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", help="Number of jobs.")] = 10_000,
    seed: Seed = 1,
    nodes: ModelNodes = None,
    load: Load = None,
    shrink: _Shrink = 1.0,
    run_factor: _RunFactor = 1.0,
    estimates: Estimates = "keep",
    alpha: Alpha = None,
    mix: Mix = None,
    resources_out: ResourcesOut = None,
    to: Format = None,
    as_json: Json = False,
) -> None:
    """Generate a workload from a model."""
    from gridweave.scenarios.traces.load import save_workload
    from gridweave.scenarios.traces.resources import write_resources

    check_seed(seed)
    if resources_out is not None and mix is None:
        raise OptionError("--resources-out", "needs --resources")
    resources_out = resources_out or f"{out}.resources.csv"
    _check_csv("--resources-out", resources_out)
    scaling: Scaling = {"nodes": nodes, "load": load, "run_factor": run_factor, "interarrival_factor": shrink}
    with named_as_typed(interarrival_factor="--shrink", file_format="--to", mix="--resources"):
        workload = _drawn(model, jobs, seed, alpha, scaling, estimates, mix)
        written = save_workload(workload, out, file_format=to)
    origin: dict[str, object] = {"model": model, "seed": seed}
    if mix is not None:
        write_resources(workload, resources_out)
        origin |= {"resources": mix, "resources_out": resources_out}
    _print_written(workload, out, written, origin, as_json)


def _drawn(
    model: str, jobs: int, seed: int, alpha: float | None, scaling: Scaling, estimates: str, mix: str | None
) -> Workload:
    """Draw jobs from a model, with their estimates and, with --resources, their needs."""
    import numpy as np

    from gridweave.scenarios.generators.registry import generate, load_model, with_settings
    from gridweave.scenarios.workload.columns import assign_resources
    from gridweave.scenarios.workload.estimates import with_estimates

    source = load_model(model)
    if alpha is not None:
        source = with_settings(source, {"alpha": alpha})
    # Separate random streams, so that another model of estimates or resources does not change the jobs.
    for_jobs, for_estimates, for_resources = np.random.default_rng(seed).spawn(3)
    workload = with_estimates(generate(source, jobs, for_jobs, **scaling), estimates, for_estimates)
    return workload if mix is None else assign_resources(workload, mix, for_resources)


@app.command()
def resources(
    file: Trace,
    out: Annotated[str, typer.Argument(metavar="OUT", help="File to write: .csv, optionally with .gz or .xz.")],
    mix: Annotated[str, typer.Option("--mix", metavar=_MIX, help="Mix of jobs bound by CPU, network or disk.")] = "M1",
    seed: Seed = 1,
    nodes: Nodes = None,
    as_json: Json = False,
) -> None:
    """Draw the CPU, network, disk and memory needs of a trace's jobs."""
    import numpy as np

    from gridweave.scenarios.traces.load import load_workload
    from gridweave.scenarios.traces.resources import write_resources
    from gridweave.scenarios.workload.columns import assign_resources

    check_seed(seed)
    _check_csv("OUT", out)
    with named_as_typed():
        workload, report = load_workload(file, nodes=nodes, columns=())
        write_resources(assign_resources(workload, mix, np.random.default_rng(seed)), out)
    if as_json:
        print_json({"out": out, "mix": mix, "seed": seed, "jobs": len(workload), "conversion": report.to_dict()})
        return
    say(str(report))
    typer.echo(f"resources of {counted(len(workload), 'job')} written to {out}")


def _check_csv(option: str, out: str) -> None:
    """Raise OptionError for a file name that does not end in .csv, e.g. the trace's own name."""
    if not _CSV_FILE.search(out):
        raise OptionError(option, f"{out}: resources are written as .csv, .csv.gz or .csv.xz; give such a name")


def _print_written(workload: Workload, out: str, written: str, origin: dict[str, object], as_json: bool) -> None:
    from gridweave.scenarios.generators.common import measure

    span_ms = int(workload.submit_ms[-1] - workload.submit_ms[0])
    load = measure(workload).offered_load if span_ms else None
    if as_json:
        figures = {"jobs": len(workload), "nodes": workload.nodes, "span_ms": span_ms, "offered_load": load}
        print_json({"out": out, "format": written, **figures, **origin})
        return
    offered = f", offered load {load:.3f} on {workload.nodes:,} nodes" if load is not None else ""
    typer.echo(f"{counted(len(workload), 'job')} over {span_text(span_ms)}{offered}, written to {out} ({written})")
    if "resources_out" in origin:
        typer.echo(f"resources written to {origin['resources_out']}")

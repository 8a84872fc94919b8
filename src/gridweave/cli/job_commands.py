"""Commands about submitted jobs: jobs, usage, show, explain, cancel, requeue, hold, release, logs."""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from gridweave.cli.grid_client import (
    Here,
    Jobs,
    Profile,
    Reach,
    States,
    Url,
    agreed,
    at_grid,
    checked_values,
    clock,
    complete_outcomes,
    complete_sites,
    job_numbers,
    jobs_text,
    listed_jobs,
    named_jobs,
    now_ms,
    places_text,
    plain,
    print_forecast,
    relative,
    shortened,
    state_text,
)
from gridweave.cli.output import print_json, print_table, say
from gridweave.cli.terminal import VisibleBytes, visible
from gridweave.errors import InputError, OptionError
from gridweave.site.resources.chunks import WHOLE_NODE, Chunk, most_nodes
from gridweave.site.resources.text import size_text
from gridweave.site.times import parse_time_ms, processes_ended_ms, run_time_ms, span_text
from gridweave.values import counted

if TYPE_CHECKING:
    from gridweave.grid.api import JobHistory, JobProgress, QueuedJob
    from gridweave.grid.client.client import Client
    from gridweave.site.array_tasks import ArrayTask
    from gridweave.site.job import ActionKind, JobRecord, JobRequest, SignalName
    from gridweave.site.launch import Used
    from gridweave.site.lifecycle import JobState

_Outcomes = Annotated[
    list[str] | None,
    typer.Option(metavar="OUTCOME", help="Only jobs with this outcome. Repeatable.", autocompletion=complete_outcomes),
]
_OfSite = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only jobs that run on this site.", autocompletion=complete_sites)
]
_Own = Annotated[
    str,
    typer.Option(
        metavar="SITE", help="Only jobs that this site's own users submitted to it.", autocompletion=complete_sites
    ),
]
_OfUser = Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="Only jobs of this user.")]
_Since = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN", help="Only jobs that ended after this time: 2026-11-23, 2026-11-23T14:00, 14:00, or 2d (ago)."
    ),
]
_Until = Annotated[
    str | None, typer.Option(metavar="WHEN", help="Only jobs submitted before this time, written like --since.")
]
_EndedUntil = Annotated[
    str | None, typer.Option(metavar="WHEN", help="Only jobs that ended before this time, written like --since.")
]
_Csv = Annotated[bool, typer.Option("--csv", help="Print comma-separated values; times are in ms since 1970.")]

EXPLAINED = 50
"""Number of jobs at the front of the queue whose expected starts are shown."""

BY = ("user", "account", "class", "name", "site", "day", "month")
"""What `gridweave usage` can group by."""


_Limit = Annotated[
    int | None, typer.Option("--limit", "-l", metavar="N", min=1, help="Show at most the N newest. \\[default: 50]")
]


@at_grid
def jobs(
    reach: Reach,
    all_jobs: Annotated[bool, typer.Option("--all", "-a", help="Include jobs that have ended.")] = False,
    state: States = None,
    outcome: _Outcomes = None,
    user: _OfUser = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs with this name.")] = None,
    array: Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this array.")] = None,
    site: _OfSite = None,
    own: _Own = "",
    since: _Since = None,
    until: _Until = None,
    limit: _Limit = None,
    as_csv: _Csv = False,
) -> None:
    """List the jobs that have not ended, newest first, and when waiting ones are expected to start.

    Jobs of sites' own users (`submit --site`) are listed with those of the grid.

    With --since or --until, list all jobs from that period, including ended ones.

    Example: gridweave jobs --all --user anna --outcome failed

    Example: gridweave jobs --since 2026-11-01 --until 2026-12-01 --csv
    """
    is_past = bool(since or until)
    states, outcomes = _selection(state, outcome, all_jobs or is_past)
    most = limit or (None if as_csv else 50)
    query: dict[str, Any] = {"user": user, "name": name, "array": array, "site": site}
    query |= {"state": states, "outcome": outcomes} | _span(since, until)

    async def work(grid: Client) -> tuple[list[JobRecord], list[QueuedJob]]:
        listed = await listed_jobs(grid, own, query, None if most is None else most + 1)
        if not any(record.state == "waiting" for record in listed) or reach.as_json or as_csv or own:
            return listed, []
        return listed, (await grid.queue(EXPLAINED, explain=True)).jobs

    records, queued = reach.ask(work)
    if as_csv:
        _print_csv(_COLUMNS, (_job_cells(record) for record in records[:most]))
        return
    if not records and not reach.as_json:
        has_selection = all_jobs or state or outcome or is_past
        say("no matching jobs" + ("" if has_selection else "; add --all to include ended ones"))
        return
    reach.show(records[:most], lambda shown: print_jobs(shown, {job.job_id: job.start_ms for job in queued}))
    if most is not None and len(records) > most and not reach.as_json:
        say(f"there are more; see them with --limit {10 * most}")


def _selection(
    state: Sequence[str] | None, outcome: Sequence[str] | None, all_jobs: bool
) -> tuple[Sequence[JobState], list[str]]:
    """Return the states and outcomes to list; by default the states of jobs that have not ended."""
    from gridweave.site.job import OUTCOMES
    from gridweave.site.lifecycle import OPEN, OVER

    states, outcomes = checked_values("--state", state, (*OPEN, *OVER)), checked_values("--outcome", outcome, OUTCOMES)
    if not states and not outcomes and not all_jobs:
        return OPEN, outcomes
    return cast("list[JobState]", states), outcomes


def print_jobs(records: Iterable[JobRecord], starts_ms: dict[int, int | None]) -> None:
    """Print jobs as a table; `starts_ms` has the expected starts of waiting jobs, if known."""
    at_ms, records = now_ms(), list(records)
    with_parts = any(record.request.chunk for record in records)
    rows = [
        (
            str(record.job_id),
            shortened(record.request.name or "-", 24),
            shortened(record.request.user or "-", 16),
            state_text(record),
            places_text(record.places) or "-",
            _size_cell(record.request),
            *(_amount_cells(record.request) if with_parts else ()),
            span_text(record.request.limit_ms),
            _starts(record, starts_ms.get(record.job_id), at_ms),
            "-" if (ran_ms := run_time_ms(record, at_ms)) is None else span_text(ran_ms),
            relative(record.submit_ms, at_ms),
        )
        for record in records
    ]
    parts = ("cores", "GPUs") if with_parts else ()
    headings = ("job", "name", "user", "state", "where", "nodes", *parts, "limit", "starts", "runs", "submitted")
    print_table(rows, headings=headings, left=5)


def _size_cell(request: JobRequest) -> str:
    if not request.chunk or request.chunk.is_whole:
        return f"{request.nodes:,}"
    return counted(request.nodes, "chunk")


def _amount_cells(request: JobRequest) -> tuple[str, str]:
    """Return the cores and GPUs of all chunks of a job; a dash for whole nodes."""
    chunk = request.chunk
    if not chunk or chunk.is_whole:
        return "-", "-"
    return f"{request.nodes * chunk.cores:,}", f"{request.nodes * chunk.gpus:,}"


def _starts(record: JobRecord, expected_ms: int | None, at_ms: int) -> str:
    """Return the expected start of a waiting job, or the start of any other job."""
    if record.state == "waiting":
        return relative(expected_ms, at_ms)
    return relative(record.start_ms, at_ms)


_COLUMNS = (
    *("job", "name", "user", "account", "state", "outcome", "nodes", "limit_ms", "submit_ms", "start_ms", "end_ms"),
    *("sites", "starts", "cpu_s", "peak_memory_bytes", "exit_codes", "reason", "cores", "memory_mb", "gpus"),
)


def _job_cells(record: JobRecord) -> Sequence[object]:
    request, used = record.request, record.used
    codes = " ".join(f"{rank}:{code if signal is None else 128 + signal}" for rank, code, signal in record.exit_codes)
    where = " ".join(f"{name}:{nodes}" for name, nodes in record.places)
    times = record.submit_ms, record.start_ms, record.end_ms
    named = record.job_id, request.name, request.user, request.account, record.state, record.outcome
    used_of = where, record.starts, round(used.cpu_s, 3), used.peak_memory_bytes, codes, record.reason
    chunk = request.chunk or Chunk(cores=0)
    amounts = (request.nodes * amount for amount in (chunk.cores, chunk.memory_mb, chunk.gpus))
    return *named, request.nodes, request.limit_ms, *times, *used_of, *amounts


def _print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    typer.echo(visible(text.getvalue()), nl=False)


# -- when


def _span(since: str | None, until: str | None) -> dict[str, int | None]:
    """Return the time span of --since and --until as parameters of the request."""
    span = {
        "since_ms": None if since is None else parse_when_ms("--since", since, now_ms()),
        "until_ms": None if until is None else parse_when_ms("--until", until, now_ms()),
    }
    if since is not None and until is not None and (span["until_ms"] or 0) <= (span["since_ms"] or 0):
        raise OptionError("--until", f"{until!r} is not later than --since {since!r}")
    return span


_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2})?", re.ASCII)


def parse_when_ms(option: str, text: str, at_ms: int) -> int:
    """Return an instant in ms since 1970; it is written as a date, a time of today, or a time span before `at_ms`.

    Examples
    --------
    >>> parse_when_ms("--since", "2h", 10_000_000), parse_when_ms("--since", "1970-01-02T00:00+00:00", 0)
    (2800000, 86400000)
    """
    written = text.strip()
    now = datetime.datetime.fromtimestamp(at_ms / 1000).astimezone()
    is_today = _TIME_OF_DAY.fullmatch(written) is not None
    try:
        if is_today:
            hours = datetime.time.fromisoformat(written if written[1] != ":" else f"0{written}")
            instant = datetime.datetime.combine(now.date(), hours)
        else:
            instant = datetime.datetime.fromisoformat(written)
        return max(0, round(instant.astimezone().timestamp() * 1000))
    except (ValueError, OverflowError):
        with contextlib.suppress(OptionError):
            if not is_today:
                return max(0, at_ms - parse_time_ms(option, written))
    right = "write 2026-11-23, 2026-11-23T14:00, 14:00 (today), or 2d (ago)"
    raise OptionError(option, f"{text!r} is not a time; {right}")


# -- usage


_By = Annotated[
    str, typer.Option(metavar="WHAT", help=f"Sum up by one or several of these, separated by commas: {', '.join(BY)}.")
]


@at_grid
def usage(
    reach: Reach,
    by: _By = "user",
    user: _OfUser = None,
    own: _Own = "",
    since: _Since = "30d",
    until: _EndedUntil = None,
    as_csv: _Csv = False,
) -> None:
    """Show what ended jobs used, by user, account, class, name, site, day or month.

    A node-hour is one node for an hour, a core-hour one core; jobs that get whole nodes have no core-hours. A job
    counts on the day of its end, and at each site by its nodes or chunks there.

    Example: gridweave usage --by user,day --since 2026-11-01 --csv
    """
    keys = list(dict.fromkeys(word.strip().lower() for word in by.split(",") if word.strip()))
    wrong = [key for key in keys if key not in BY] or ([] if keys else [repr(by)])
    if wrong:
        raise OptionError("--by", f"{', '.join(wrong)}: not known; one or several of {', '.join(BY)}")
    query: dict[str, Any] = {"user": user, "state": ("ended",)} | _span(since, until)

    async def work(grid: Client) -> dict[tuple[str, ...], list[float]]:
        sums: dict[tuple[str, ...], list[float]] = {}
        for record in await listed_jobs(grid, own, query):
            if query["until_ms"] is None or (record.end_ms or 0) < query["until_ms"]:
                _add_usage(sums, record, keys)
        return sums

    totals = sorted(reach.ask(work).items())
    columns = (*keys, "jobs", "node_hours", "cpu_hours", "core_hours", "gpu_hours")
    cells = [(*key, int(n_jobs), *(round(hours, 4) for hours in used)) for key, (n_jobs, *used) in totals]
    if as_csv:
        _print_csv(columns, cells)
    elif reach.as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in cells])
    elif not cells:
        say("no job has ended in that time")
    else:
        headings = ("node-hours", "CPU hours", "core-hours", "GPU-hours")
        # The last columns are only for grids with jobs that ask for parts of nodes.
        width = 4 if any(used[2] for _, (_, *used) in totals) else 2
        shown = [
            (*key, f"{n_jobs:,.0f}", *(f"{hours:,.2f}" for hours in used[:width])) for key, (n_jobs, *used) in totals
        ]
        print_table(shown, headings=(*keys, "jobs", *headings[:width]), left=len(keys))


def _add_usage(sums: dict[tuple[str, ...], list[float]], record: JobRecord, keys: Sequence[str]) -> None:
    """Add a job's usage to the totals of its keys; a split job's usage is divided in proportion to its nodes."""
    run_ms = run_time_ms(record)
    if run_ms is None or record.end_ms is None:
        return
    request = record.request
    ended = datetime.datetime.fromtimestamp(record.end_ms / 1000).astimezone()
    values = {"user": request.user, "account": request.account, "class": request.job_class, "name": request.name}
    values |= {"day": f"{ended:%Y-%m-%d}", "month": f"{ended:%Y-%m}"}
    hours = run_ms / 3_600_000
    placement = record.places if "site" in keys else (("", request.nodes),)
    total = sum(nodes for _, nodes in placement) or 1
    for site, nodes in placement:
        key = tuple((values | {"site": site})[name] or "-" for name in keys)
        chunk = request.chunk or WHOLE_NODE
        row = sums.setdefault(key, [0, 0.0, 0.0, 0.0, 0.0])
        row[0] += 1
        row[1] += most_nodes(nodes, request.chunk) * hours
        row[2] += record.used.cpu_s / 3600 * nodes / total
        row[3] += chunk.cores * nodes * hours
        row[4] += chunk.gpus * nodes * hours


# -- one job, and actions on jobs

OneJob = Annotated[int, typer.Argument(metavar="JOB", help="Job number.", min=1)]
All = Annotated[bool, typer.Option("--all", help="All jobs that have not ended.")]


_Tasks = Annotated[
    bool, typer.Option("--elements", help="For a packed array: show how each array task ended, and what it used.")
]


@at_grid
def show(reach: Reach, job: OneJob, array_tasks: _Tasks = False) -> None:
    """Show everything about a job, and what has happened to it so far.

    Example: gridweave show 17
    """

    async def work(grid: Client) -> tuple[JobRecord, JobHistory, JobProgress | None]:
        record = await grid.record(job)
        return record, await grid.history(job), await _progress(grid, record)

    record, history, progress = reach.ask(work)
    if reach.as_json:
        details = {"history": plain(history)["entries"], "progress": None if progress is None else plain(progress)}
        print_json(plain(record) | details)
        return
    if array_tasks:
        _print_tasks(record)
        return
    print_table(list(_shown(record, progress)), title=f"Job {job}: {state_text(record)}", left=2)
    begin_ms = history.entries[0].at_ms if history.entries else 0
    rows = [
        (clock(entry.at_ms), f"+{span_text(entry.at_ms - begin_ms)}", entry.kind, entry.detail)
        for entry in history.entries
    ]
    print_table(rows, headings=("at", "", "what happened", ""), left=4)


async def _progress(grid: Client, record: JobRecord) -> JobProgress | None:
    """Return the progress of a job that runs at one site whose limits count work, or None."""
    if record.state != "running" or len(record.places) != 1:
        return None
    candidates = (
        candidate for site in await grid.sites() if site.name == record.places[0][0] for candidate in site.progress
    )
    return next((candidate for candidate in candidates if candidate.job_id == record.job_id), None)


def _progress_text(record: JobRecord, progress: JobProgress) -> str:
    """Return the work a job has done, its present speed and its average speed."""
    span_ms = max(1, now_ms() - (record.start_ms or 0))
    speeds = f"at {progress.speed:.0%} of full speed now, {min(1.0, progress.worked_ms / span_ms):.0%} on average"
    return f"{span_text(progress.worked_ms)} of work, {speeds}"


def _print_tasks(record: JobRecord) -> None:
    """Print how the tasks of a packed array ended."""
    again = Counter(record.interrupted)
    rows = [
        (
            f"{task.index}",
            f"{task.exit_code}" if task.signal is None else f"signal {task.signal}",
            f"{1 + again[task.index]}",
            clock(task.start_ms),
            span_text(task.wall_ms),
            span_text(task.cpu_ms),
            f"{task.peak_memory_bytes / 1e6:,.0f} MB",
            f"{task.out[1] + task.err[1]:,}",
        )
        for task in sorted(record.array_tasks, key=lambda task: task.index)
    ]
    if not rows:
        say("no array task is known to have ended yet; results arrive when the job or an attempt ends")
        return
    headings = ("array task", "exit code", "starts", "started", "ran for", "CPU", "memory", "bytes written")
    print_table(rows, headings=headings, left=0)


def _tasks_text(record: JobRecord) -> str:
    """Return how many tasks of a packed array have ended, failed and were interrupted; empty for any other job."""
    from gridweave.site.array_tasks import count_of

    left = record.left()
    if left is None:
        return ""
    failed = sum(task.failed for task in record.array_tasks)
    parts = [f"{len(record.array_tasks) + count_of(left):,}", f"{len(record.array_tasks):,} have ended"]
    parts += [f"{failed:,} of them failed"] * bool(failed)
    parts += [f"{len(record.interrupted):,} interrupted"] * bool(record.interrupted)
    return ", ".join(parts)


def _shown(record: JobRecord, progress: JobProgress | None) -> Iterable[tuple[str, str]]:
    """Yield the rows of `gridweave show`; empty values are left out."""
    from gridweave.site.eligibility import after_texts
    from gridweave.site.needs.text import resources_text

    request, program, used = record.request, record.request.program, record.used
    call = program.call
    values: dict[str, Any] = {
        "runs": _command(record) if call is None else f"{call.function} with {shortened(repr(call.args)[1:-1], 60)}",
        "name": request.name,
        "user": request.user,
        "class": request.job_class,
        "array": f"{request.array.name}, number {request.array.index}" if request.array else "",
        "array tasks": _tasks_text(record),
        **_size_rows(request),
        "limit": span_text(request.limit_ms) + (" of work, not of elapsed time" if progress else ""),
        "has done": _progress_text(record, progress) if progress else "",
        "directory": program.working_directory,
        "after": ", ".join(after_texts(request.after)),
        "submitted": clock(record.submit_ms),
        "started": clock(record.start_ms) if record.start_ms is not None else "",
        "ended": _end_text(record),
        "ran for": "" if (run_ms := run_time_ms(record)) is None else span_text(run_ms),
        "starts": f"{record.starts}" if record.starts > 1 else "",
        "where": places_text(record.places),
        "needs": "" if request.resources is None else resources_text(request.resources),
        "split": _split_text(record),
        "shares": _sharing_text(record),
        "sends": _sends_text(record),
        "reason": record.reason,
        "exit codes": ", ".join(_exit_text(*exit_code) for exit_code in record.exit_codes),
        "used": _used_text(used) if used.wall_s else "",
    }
    yield from ((name, str(value)) for name, value in values.items() if value)


def _size_rows(request: JobRequest) -> dict[str, str]:
    """Return the size of a job and the place of its ranks, as a row of `gridweave show`."""
    first_only = request.program.ranks == "first-node"
    if not request.chunk:
        return {"nodes": f"{request.nodes:,}, a rank on {'first node' if first_only else 'each node'}"}
    ranks = "a rank on first node" if first_only else f"a rank on each {'node' if request.chunk.is_whole else 'chunk'}"
    return {"asks for": f"{size_text(request.nodes, request.chunk)}; {ranks}"}


def _used_text(used: Used) -> str:
    return f"{span_text(1000 * used.cpu_s)} of CPU, {used.peak_memory_bytes / 1e6:,.0f} MB at most"


def _split_text(record: JobRecord) -> str:
    """Return the expected cost of a job's split, and its real run time."""
    from gridweave.site.explain import took_text

    if record.split is None:
        return ""
    took = took_text(record)
    return f"{record.split.text}; {took}" if took else record.split.text


def _sharing_text(record: JobRecord) -> str:
    """Return which jobs share the nodes of a job, and the expected and the measured slowdown."""
    from gridweave.site.explain import really_text

    if record.sharing is None:
        return ""
    return record.sharing.text if record.end_ms is None else f"{record.sharing.text}; {really_text(record.sharing)}"


def _sends_text(record: JobRecord) -> str:
    """Return a job's traffic over the links: what the grid assumes, or before that what the user specified."""
    traffic = record.request.traffic
    parts = []
    if record.split is not None and record.split.communication:
        parts = [record.split.communication]
    elif traffic is not None and (traffic.communication or traffic.pattern):
        exact = f"fraction={traffic.fraction:g},pattern={traffic.pattern},message={traffic.message_bytes:.0f}B"
        parts = [traffic.communication or exact]
    if traffic is not None and traffic.input_bytes:
        parts.append(f"reads {traffic.input_bytes:,} bytes at {traffic.input_site}")
    if traffic is not None and traffic.output_bytes:
        parts.append(f"writes {traffic.output_bytes:,} bytes at {traffic.output_site}")
    return "; ".join(parts)


_HEARD_LATE_MS = 10_000


def _end_text(record: JobRecord) -> str:
    """Return when a job ended; if the grid learned of it late, also how much later."""
    ended_ms = processes_ended_ms(record)
    if ended_ms is None or record.end_ms is None:
        return ""
    late_ms = record.end_ms - ended_ms
    return clock(ended_ms) + (f", reported {span_text(late_ms)} later" if late_ms > _HEARD_LATE_MS else "")


def _command(record: JobRecord) -> str:
    """Return the command as a shell would read it, or the name of a script that was sent with the job."""
    import shlex

    from gridweave.grid.client.scripts import shipped_name

    argv = record.request.program.argv
    return shipped_name(argv) or shortened(shlex.join(argv).replace("\n", "\\n"), 100)


def _exit_text(rank: int, code: int | None, signal: int | None) -> str:
    return f"rank {rank}: {code}" if signal is None else f"rank {rank}: signal {signal}"


@at_grid
def explain(reach: Reach, job: OneJob) -> None:
    """Explain when and where a job will start, and why not sooner: each site's reason, and what a split would gain.

    Example: gridweave explain 17
    """
    reach.show(reach.ask(lambda grid: grid.explain(job)), print_forecast)


_Job = Annotated[
    list[str] | None, typer.Argument(metavar="JOB...", help="Job numbers (17), ranges (3-9) and array names.")
]
_Now = Annotated[bool, typer.Option("--now", help="Kill running jobs at once, without giving them time to exit.")]
_Signal = Annotated[
    str | None,
    typer.Option(
        "--signal", "-s", metavar="SIGNAL", help="Send running jobs this signal, e.g. USR1, instead of ending them."
    ),
]


@at_grid
def cancel(
    reach: Reach,
    job: _Job = None,
    all_jobs: All = False,
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="All jobs of this user.")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="All jobs with this name.")] = None,
    state: States = None,
    now: _Now = False,
    signal: _Signal = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --all: do not ask for confirmation.")] = False,
) -> None:
    """Cancel waiting and running jobs: those named, or all that the options select.

    A running job gets TERM, and is killed if it does not exit; with --now it is killed at once.

    Example: gridweave cancel 17 20-29 sweep-1f0c9a77

    Example: gridweave cancel --name solver --state waiting

    Example: gridweave cancel 17 --signal USR1
    """
    from gridweave.grid.client.option_texts import parse_signal
    from gridweave.site.lifecycle import OPEN

    if now and signal is not None:
        raise OptionError("--now", "ends jobs, but --signal does not; give only one of them")
    states = checked_values("--state", state, OPEN)
    query: dict[str, Any] = {"user": user, "name": name, "state": states or OPEN}
    has_selection = all_jobs or bool(user or name or states)
    kind: ActionKind = "signal" if signal is not None else "kill" if now else "cancel"
    sent = None if signal is None else parse_signal("--signal", signal)
    _apply_action(kind, job, reach, query=query if has_selection else None, ask=all_jobs and not yes, signal=sent)


@at_grid
def requeue(reach: Reach, job: Jobs) -> None:
    """Requeue running jobs: let them save their work, stop them, and run them again, here or elsewhere.

    A job is sent its checkpoint signal (`gridweave submit --checkpoint-signal`) and gets time to exit. Then it waits
    in the queue again. Jobs with --no-requeue are left alone.

    Example: gridweave requeue 17
    """
    _apply_action("requeue", job, reach)


@at_grid
def hold(reach: Reach, job: Jobs) -> None:
    """Hold waiting jobs, so that they do not start.

    Example: gridweave hold 17
    """
    _apply_action("hold", job, reach)


@at_grid
def release(reach: Reach, job: Jobs) -> None:
    """Release held jobs back into the queue.

    Example: gridweave release 17
    """
    _apply_action("release", job, reach)


_DONE = {
    "cancel": "cancelled",
    "kill": "cancelled at once",
    "signal": "sent the signal",
    "requeue": "requeued",
    "hold": "held",
    "release": "released",
}
_NOT_DONE = {
    "cancel": "already ended",
    "kill": "already ended",
    "signal": "not running",
    "requeue": "not running, may not be requeued",
    "hold": "not waiting",
    "release": "not held",
}


def _apply_action(
    kind: ActionKind,
    texts: Sequence[str] | None,
    reach: Reach,
    *,
    query: Mapping[str, Any] | None = None,
    ask: bool = False,
    signal: SignalName | None = None,
) -> None:
    """Carry out an action on the named jobs, or on all jobs that a query finds, after asking the user if `ask`."""
    if bool(texts) == (query is not None):
        raise OptionError(
            "JOB",
            "give job numbers or selection options, not both" if texts else "name the jobs, or give --all",
        )
    for text in texts or ():
        job_numbers(text)  # raises for a malformed number before a grid is contacted

    async def work(grid: Client) -> tuple[list[int], list[int]]:
        if query is not None:
            selected = [record.job_id for record in await listed_jobs(grid, "", query)]
            if ask and selected:
                many = counted(len(selected), "job")
                question = f"Cancel {many} ({jobs_text(selected)})?"
                agreed("--all", f"would cancel {many}", question, "nothing was cancelled")
        else:
            selected = await named_jobs(grid, texts or (), open_only=True)
        if signal is not None:
            return selected, await grid.signal(selected, signal)
        return selected, await grid.apply_action(kind, selected) if selected else []

    job_ids, done = reach.ask(work)
    if reach.as_json:
        print_json({"job_ids": done})
    elif done:
        typer.echo(f"{_DONE[kind]}: {jobs_text(done)}")
    left = sorted(set(job_ids) - set(done))
    if left and query is None:
        raise InputError(f"{jobs_text(left)}: {_NOT_DONE[kind]}, or not one of your jobs")
    if not job_ids and not reach.as_json:
        say("no matching jobs")


_Element = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="For a packed array: print only the output of this array task.")
]

_Raw = Annotated[bool, typer.Option("--raw", help="Print control sequences even on a terminal.")]


def logs(
    job: OneJob,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the job ends.")] = False,
    rank: Annotated[int, typer.Option(metavar="N", min=0, help="Rank whose output is printed.")] = 0,
    stderr: Annotated[bool, typer.Option("--stderr", help="Print standard error instead of standard output.")] = False,
    element: _Element = None,
    raw: _Raw = False,
    attempt: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Attempt whose output is printed, numbered as in GRIDWEAVE_TRY. \\[default: the last]",
        ),
    ] = None,
    url: Url = None,
    here: Here = None,
    profile: Profile = None,
) -> None:
    """Print the output of a job.

    On a terminal, control sequences such as colours are left out. A file or a pipe gets all bytes unchanged.

    If the machine has removed the output, report when and why, and exit with status 2.

    Example: gridweave logs 17 -f --rank 2
    """
    from gridweave.grid.client.streams import output

    async def work(grid: Client) -> None:
        stream: Literal["out", "err"] = "err" if stderr else "out"
        where: dict[str, Any] = {"rank": rank, "follow": follow, "attempt": attempt}
        if element is not None:
            ended = _element(await grid.record(job), element)
            part = ended.err if stderr else ended.out
            where = {"rank": ended.rank, "part": part, "attempt": ended.attempt or None}
        shown = VisibleBytes() if sys.stdout.isatty() and not raw else None
        async for data in output(grid.transport, job, stream=stream, **where):
            sys.stdout.buffer.write(data if shown is None else shown.add(data))
            sys.stdout.buffer.flush()
        if shown is not None:
            sys.stdout.buffer.write(shown.end())

    if element is not None and (follow or rank or attempt):
        raise OptionError("--element", "does not work with --follow, --rank or --attempt")
    Reach(url, here, profile).ask(work, waits=True)


def _element(record: JobRecord, index: int) -> ArrayTask:
    """Return the record of one task of a packed array; OptionError if it has not ended."""
    task = next((candidate for candidate in record.array_tasks if candidate.index == index), None)
    if task is None:
        raise OptionError("--element", f"job {record.job_id} has no array task {index} that is known to have ended")
    return task

"""Commands that list jobs, and what they used: jobs, usage."""

from __future__ import annotations

import csv
import datetime
import io
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from gridweave.cli.grid_client import (
    Reach,
    States,
    at_grid,
    checked_values,
    complete_outcomes,
    complete_sites,
    now_ms,
    places_text,
    relative,
    rounded,
    shortened,
    state_text,
)
from gridweave.cli.output import print_json, print_table, say
from gridweave.errors import OptionError
from gridweave.site.times import parse_time_ms, span_text

if TYPE_CHECKING:
    from gridweave.grid.api import QueuedJob
    from gridweave.grid.client.client import Client
    from gridweave.site.job import JobRecord, State

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
        metavar="SITE", help="Jobs that this site's own users submitted to it.", autocompletion=complete_sites
    ),
]
_OfUser = Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="Only jobs of this user.")]
_Since = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="Only jobs that ended later: 2026-11-23, 2026-11-23T14:00, 14:00, or 2d (ago)."),
]
_Until = Annotated[str | None, typer.Option(metavar="WHEN", help="Only jobs submitted earlier; as for --since.")]
_Csv = Annotated[bool, typer.Option("--csv", help="Print comma-separated values; times are in ms since 1970.")]

EXPLAINED = 50
"""Of so many waiting jobs, the first of the queue, it is asked when they start."""

BY = ("user", "account", "class", "name", "site", "day", "month")
"""By what usage can be summed up."""


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
    limit: Annotated[
        int | None, typer.Option("--limit", "-l", metavar="N", min=1, help="Show at most the N newest. \\[default: 50]")
    ] = None,
    as_csv: _Csv = False,
) -> None:
    """List the jobs that have not ended, newest first; of waiting ones when they are expected to start.

    With --since or --until: all jobs that were there in that time.

    Example: gridweave jobs --all --user anna --outcome failed

    Example: gridweave jobs --since 2026-11-01 --until 2026-12-01 --csv
    """
    is_past = bool(since or until)
    states, outcomes = _wanted(state, outcome, all_jobs or is_past)
    most = limit or (None if as_csv else 50)
    query: dict[str, Any] = {"own": own, "user": user, "name": name, "array": array, "site": site}
    query |= {"state": states, "outcome": outcomes} | _span(since, until)

    async def work(grid: Client) -> tuple[list[JobRecord], list[QueuedJob]]:
        found = [record async for record in grid.jobs(**query, limit=None if most is None else most + 1)]
        if not any(record.state == "waiting" for record in found) or reach.as_json or as_csv or own:
            return found, []
        return found, (await grid.queue(EXPLAINED, explain=True)).jobs

    records, queued = reach.ask(work)
    if as_csv:
        _print_csv(_COLUMNS, (_job_cells(record) for record in records[:most]))
        return
    if not records and not reach.as_json:
        told = all_jobs or state or outcome or is_past
        say("there are no such jobs" + ("" if told else "; with --all also those that ended"))
        return
    reach.show(records[:most], lambda shown: print_jobs(shown, {job.job_id: job.start_ms for job in queued}))
    if most is not None and len(records) > most and not reach.as_json:
        say(f"there are more; see them with --limit {10 * most}")


def _wanted(
    state: Sequence[str] | None, outcome: Sequence[str] | None, all_jobs: bool
) -> tuple[Sequence[State], list[str]]:
    """Return the states and outcomes that are asked for; if nothing is said, jobs that have not ended."""
    from gridweave.site.job import OPEN, OUTCOMES, OVER

    states, outcomes = checked_values("--state", state, (*OPEN, *OVER)), checked_values("--outcome", outcome, OUTCOMES)
    if not states and not outcomes and not all_jobs:
        return OPEN, outcomes
    return cast("list[State]", states), outcomes


def print_jobs(records: Iterable[JobRecord], starts_ms: dict[int, int | None]) -> None:
    """Print jobs as a table, of those that wait with when they start, if that is known."""
    at_ms = now_ms()
    rows = [
        (
            str(record.job_id),
            shortened(record.request.name or "-", 24),
            shortened(record.request.user or "-", 16),
            state_text(record),
            places_text(record.places) or "-",
            f"{record.request.nodes:,}",
            span_text(record.request.limit_ms),
            _starts(record, starts_ms.get(record.job_id), at_ms),
            rounded((record.end_ms or at_ms) - record.start_ms) if record.start_ms is not None else "-",
            relative(record.submit_ms, at_ms),
        )
        for record in records
    ]
    headings = ("job", "name", "user", "state", "where", "nodes", "limit", "starts", "runs", "submitted")
    print_table(rows, headings=headings, left=5)


def _starts(record: JobRecord, expected_ms: int | None, at_ms: int) -> str:
    """Return when a job is expected to start, or has started."""
    if record.state == "waiting":
        return relative(expected_ms, at_ms)
    return relative(record.start_ms, at_ms)


_COLUMNS = (
    *("job", "name", "user", "account", "state", "outcome", "nodes", "limit_ms", "submit_ms", "start_ms", "end_ms"),
    *("sites", "starts", "cpu_s", "peak_memory_bytes", "exit_codes", "reason"),
)


def _job_cells(record: JobRecord) -> Sequence[object]:
    request, used = record.request, record.used
    codes = " ".join(f"{rank}:{code if signal is None else 128 + signal}" for rank, code, signal in record.exit_codes)
    where = " ".join(f"{name}:{nodes}" for name, nodes in record.places)
    times = record.submit_ms, record.start_ms, record.end_ms
    named = record.job_id, request.name, request.user, request.account, record.state, record.outcome
    used_of = where, record.starts, round(used.cpu_s, 3), used.peak_memory_bytes, codes, record.reason
    return *named, request.nodes, request.limit_ms, *times, *used_of


def _print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    typer.echo(text.getvalue(), nl=False)


# -- when


def _span(since: str | None, until: str | None) -> dict[str, int | None]:
    """Return the time that is asked for, as the grid is asked for it."""
    found = {
        "since_ms": None if since is None else parse_when_ms("--since", since, now_ms()),
        "until_ms": None if until is None else parse_when_ms("--until", until, now_ms()),
    }
    if since is not None and until is not None and (found["until_ms"] or 0) <= (found["since_ms"] or 0):
        raise OptionError("--until", f"{until!r} is not later than --since {since!r}")
    return found


def parse_when_ms(option: str, text: str, at_ms: int) -> int:
    """Return an instant as people write it, in ms since 1970: a day, a time of a day, or how long ago it was.

    Examples
    --------
    >>> parse_when_ms("--since", "2h", 10_000_000), parse_when_ms("--since", "1970-01-02T00:00+00:00", 0)
    (2800000, 86400000)
    """
    written = text.strip()
    now = datetime.datetime.fromtimestamp(at_ms / 1000).astimezone()
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", written, re.ASCII):
            hours = datetime.time.fromisoformat(written.zfill(5))
            found = datetime.datetime.combine(now.date(), hours)
        else:
            found = datetime.datetime.fromisoformat(written)
        return max(0, round(found.astimezone().timestamp() * 1000))
    except (ValueError, OverflowError):
        pass
    try:
        return max(0, at_ms - parse_time_ms(option, written))
    except OptionError:
        right = "write 2026-11-23, 2026-11-23T14:00, 14:00 (today), or 2d (ago)"
        raise OptionError(option, f"{text!r} is not an instant; {right}") from None


# -- usage


@at_grid
def usage(
    reach: Reach,
    by: Annotated[str, typer.Option(metavar="WHAT", help=f"Sum up by these, with commas: {', '.join(BY)}.")] = "user",
    user: _OfUser = None,
    own: _Own = "",
    since: _Since = "30d",
    until: _Until = None,
    as_csv: _Csv = False,
) -> None:
    """Show how much jobs that have ended used, by user, account, class, name, site, day or month.

    A node-hour is one node for an hour. A job counts on the day of its end, and at each site by its nodes there.

    Example: gridweave usage --by user,day --since 2026-11-01 --csv
    """
    keys = list(dict.fromkeys(word.strip().lower() for word in by.split(",") if word.strip()))
    wrong = [key for key in keys if key not in BY] or ([] if keys else [repr(by)])
    if wrong:
        raise OptionError("--by", f"{', '.join(wrong)}: not known; one or several of {', '.join(BY)}")
    query: dict[str, Any] = {"own": own, "user": user, "state": ("ended",)} | _span(since, until)

    async def work(grid: Client) -> dict[tuple[str, ...], list[float]]:
        sums: dict[tuple[str, ...], list[float]] = {}
        async for record in grid.jobs(**query):
            if query["until_ms"] is None or (record.end_ms or 0) < query["until_ms"]:
                _add_usage(sums, record, keys)
        return sums

    found = sorted(reach.ask(work).items())
    columns = (*keys, "jobs", "node_hours", "cpu_hours")
    cells = [(*key, int(n_jobs), round(nodes, 4), round(cpu, 4)) for key, (n_jobs, nodes, cpu) in found]
    if as_csv:
        _print_csv(columns, cells)
    elif reach.as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in cells])
    elif not cells:
        say("no job has ended in that time")
    else:
        shown = [(*key, f"{n_jobs:,.0f}", f"{nodes:,.2f}", f"{cpu:,.2f}") for key, (n_jobs, nodes, cpu) in found]
        print_table(shown, headings=(*keys, "jobs", "node-hours", "CPU hours"), left=len(keys))


def _add_usage(sums: dict[tuple[str, ...], list[float]], record: JobRecord, keys: Sequence[str]) -> None:
    """Add a job to what it counts for: its node-hours at each site, the rest by its nodes there."""
    if record.start_ms is None or record.end_ms is None:
        return
    request = record.request
    ended = datetime.datetime.fromtimestamp(record.end_ms / 1000).astimezone()
    known = {"user": request.user, "account": request.account, "class": request.job_class, "name": request.name}
    known |= {"day": f"{ended:%Y-%m-%d}", "month": f"{ended:%Y-%m}"}
    hours = (record.end_ms - record.start_ms) / 3_600_000
    places = record.places if "site" in keys else (("", request.nodes),)
    total = sum(nodes for _, nodes in places) or 1
    for site, nodes in places:
        key = tuple((known | {"site": site})[name] or "-" for name in keys)
        found = sums.setdefault(key, [0, 0.0, 0.0])
        found[0] += 1
        found[1] += nodes * hours
        found[2] += record.used.cpu_s / 3600 * nodes / total

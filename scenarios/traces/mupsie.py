"""Read and write the job format of the MuPSiE simulation environment (thesis section 3.8).

A file has comment lines, which start with ``#``, and one job per line: job number, submit time, requested resources,
actual run time and estimated run time, with times in seconds. Two kinds of comments are parsed::

    # Machine Size: 96
    # Start Time: Tuesday, 2 Jan 01, 08:15:43

The format has no time zone. A start time is read as UTC, so that dates are printed as in the file, unless the file has
the comments ``# Time Zone:`` and ``# Unix Start Time:``, which `write_mupsie` adds.
"""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gridweave.errors import OptionError
from gridweave.scenarios.traces.convert import ConversionReport, Records, convert, known_zone, local_datetime
from gridweave.scenarios.traces.text import (
    MAX_TIME_S,
    Field,
    check_exact,
    leading_number,
    read_table,
    seconds_text,
    time_field,
    whole_field,
    width_field,
    write_records,
)
from gridweave.scenarios.workload.table import Workload

MUPSIE_FIELDS: tuple[Field, ...] = (
    whole_field("job_id", low=0),
    time_field("submit_s"),
    width_field("resources"),
    time_field("run_s"),
    time_field("estimate_s"),
)

_NAMES = tuple(field.name for field in MUPSIE_FIELDS)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ENTRY = re.compile(r"#+\s*(Machine Size|Start Time|Time Zone|Unix Start Time)\s*:\s*(.*)", re.IGNORECASE)
_DATE = re.compile(r"(?:[A-Za-z]+,\s*)?(\d{1,2})\s+([A-Za-z]{3})[a-z]*\.?\s+(\d{4}|\d{2}),?\s+(\d{1,2}):(\d\d):(\d\d)")


def read_mupsie(
    path: str | Path, *, nodes: int | None = None, columns: Sequence[str] = ()
) -> tuple[Workload, ConversionReport]:
    """Read a MuPSiE job file as a workload, like `read_swf`; the format has no optional columns."""
    for name in columns:
        raise OptionError("columns", f"{name!r} is not available: the MuPSiE format has no optional columns")
    table, comments = read_table(path, MUPSIE_FIELDS, keep=_NAMES, comment="#", record="a MuPSiE record")
    entries = {entry[1].lower(): entry[2] for entry in map(_ENTRY.match, reversed(comments)) if entry}
    zone = known_zone(entries.get("time zone"))
    records = Records(
        job_id=table["job_id"].astype(np.int64),
        submit_s=table["submit_s"],
        run_s=table["run_s"],
        estimate_s=table["estimate_s"],
        width=table["resources"].astype(np.int64),
    )
    return convert(
        path,
        records,
        nodes=nodes,
        stated=(leading_number(entries.get("machine size", "")),),
        start_unix_s=_start(entries.get("unix start time", ""), entries.get("start time", ""), zone),
        timezone=zone,
    )


def _start(unix_text: str, local_text: str, zone: str | None) -> int | None:
    """Return the Unix time of the trace's time zero, from the comments; None if missing or invalid."""
    unix = leading_number(unix_text)
    if unix is not None and abs(unix) <= MAX_TIME_S:
        return unix
    date = _DATE.match(local_text)
    if not date or date[2].title() not in _MONTHS:
        return None
    year = int(date[3])
    if len(date[3]) == 2:  # two-digit years as in POSIX
        year += 1900 if year >= 69 else 2000
    day, hour, minute, second = (int(date[group]) for group in (1, 4, 5, 6))
    tzinfo = zoneinfo.ZoneInfo(zone) if zone else dt.UTC
    try:
        local = dt.datetime(year, _MONTHS.index(date[2].title()) + 1, day, hour, minute, second, tzinfo=tzinfo)
        return int(local.timestamp())
    except (ValueError, OverflowError):  # no such day
        return None


def write_mupsie(workload: Workload, path: str | Path) -> None:
    """Write a workload as a MuPSiE job file atomically, compressed if the suffix is ``.gz`` or ``.xz``.

    The format cannot hold `Workload.columns` and `Workload.overran`; `read_mupsie` restores everything else.
    """
    check_exact(path, "job_id", workload.job_id)
    head = "".join(f"{line}\n" for line in _comments(workload))
    columns = (workload.job_id, workload.submit_ms, workload.width, workload.run_ms, workload.estimate_ms)
    write_records(path, head, columns, _record)


def _record(job: int, submit: int, width: int, run: int, estimate: int) -> str:
    return f"{job} {seconds_text(submit)} {width} {seconds_text(run)} {seconds_text(estimate)}\n"


def _comments(workload: Workload) -> Iterator[str]:
    """Yield the comments at the head of the file."""
    if workload.nodes is not None:
        yield f"# Machine Size: {workload.nodes}"
    start = workload.start_unix_s
    local = local_datetime(start, workload.timezone) if start is not None else None
    if local is not None:
        year = f"{local.year % 100:02d}" if 1969 <= local.year <= 2068 else f"{local.year:04d}"
        date = f"{_WEEKDAYS[local.weekday()]}, {local.day} {_MONTHS[local.month - 1]} {year}, {local:%H:%M:%S}"
        yield f"# Start Time: {date}"
    if start is not None:
        yield f"# Unix Start Time: {start}"
    if workload.timezone is not None:
        yield f"# Time Zone: {' '.join(workload.timezone.split())}"
    yield "## format: job number, submit time, req. resources, actual run time, est. run time"

"""Read and write the Standard Workload Format (SWF) of the Parallel Workloads Archive, version 2.2.

A file has header comments, which start with ``;``, and one record per line with the 18 fields of `SWF_FIELDS`,
separated by white space; -1 means unknown. The format: D. G. Feitelson, "The Standard Workload Format",
https://www.cs.huji.ac.il/labs/parallel/workload/swf.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.scenarios.traces.convert import ConversionReport, Records, convert, known_zone
from gridweave.scenarios.traces.text import (
    MAX_TIME_S,
    Field,
    amount_field,
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

SWF_FIELDS: tuple[Field, ...] = (
    whole_field("job_id", low=0),
    time_field("submit_s"),
    time_field("wait_s"),
    time_field("run_s"),
    width_field("processors"),
    amount_field("cpu_s"),
    amount_field("memory_kb"),
    width_field("requested_processors"),
    time_field("requested_s"),
    amount_field("requested_memory_kb"),
    whole_field("status"),
    whole_field("user"),
    whole_field("group"),
    whole_field("executable"),
    whole_field("queue"),
    whole_field("partition"),
    whole_field("preceding_job"),
    time_field("think_s"),
)

# Optional columns of a workload, and the SWF fields that hold them.
COLUMN_FIELDS: Mapping[str, str] = MappingProxyType(
    {name: name for name in ("user", "group", "partition", "memory_kb", "requested_memory_kb")} | {"job_class": "queue"}
)

_NAMES = tuple(field.name for field in SWF_FIELDS)
_JOB_FIELDS = ("job_id", "submit_s", "run_s", "processors", "requested_processors", "requested_s", "status")
_ENTRY = re.compile(r";\s{0,3}([A-Z][A-Za-z]*):(?!//)\s*(.*)")

# Header entry of write_swf: status 0 marks jobs that were killed at their estimate.
_KILLED_ENTRY = ("KilledAtEstimate", "status 0")
_STATUS_FAILED, _STATUS_COMPLETED, _STATUS_CANCELLED = 0, 1, 5


@dataclass(frozen=True)
class SwfHeader:
    """The header comments of an SWF file, with their ``;``.

    Examples
    --------
    >>> header = SwfHeader(("; MaxNodes: 338 (batch partition; 512 total)", "; Queue: 1 DSI", "; Queue: 2 astro"))
    >>> header.max_nodes, header.entries["Queue"]
    (338, ('1 DSI', '2 astro'))
    """

    lines: tuple[str, ...]

    @cached_property
    def entries(self) -> Mapping[str, tuple[str, ...]]:
        """The values of the header entries by label, in file order, including continuation lines."""
        entries: dict[str, list[str]] = {}
        last: list[str] | None = None
        for line in self.lines:
            entry = _ENTRY.match(line)
            more = line.lstrip("; \t").rstrip()
            if entry:
                last = entries.setdefault(entry[1], [])
                last.append(entry[2].rstrip())
            elif last and more:
                last[-1] = f"{last[-1]}\n{more}"
        return MappingProxyType({label: tuple(values) for label, values in entries.items()})

    def text(self, label: str) -> str | None:
        """Return the first value of an entry such as "Computer", or None."""
        return (self.entries.get(label) or ("",))[0] or None

    def number(self, label: str) -> int | None:
        """Return the whole number at the beginning of an entry such as "MaxNodes", or None."""
        return leading_number(self.text(label) or "")

    @property
    def max_nodes(self) -> int | None:
        """Number of nodes of the machine."""
        return self.number("MaxNodes")

    @property
    def max_procs(self) -> int | None:
        """Number of processors of the machine; SWF counts job widths in processors."""
        return self.number("MaxProcs")

    @property
    def unix_start_time(self) -> int | None:
        """Unix time of the trace's time zero, in seconds."""
        start = self.number("UnixStartTime")
        return start if start is not None and abs(start) <= MAX_TIME_S else None

    @property
    def time_zone_string(self) -> str | None:
        """IANA name of the machine's time zone."""
        return self.text("TimeZoneString")

    @property
    def time_zone_offset_s(self) -> int | None:
        """Offset from UTC to local standard time in seconds (older entry ``TimeZone``)."""
        return self.number("TimeZone")


def read_records(
    path: str | Path, fields: Sequence[str] | None = None
) -> tuple[dict[str, npt.NDArray[np.generic]], SwfHeader]:
    """Read the records of an SWF file without converting them.

    Parameters
    ----------
    path : str or pathlib.Path
        Plain, gzip or xz.
    fields : sequence of str, optional
        Names from `SWF_FIELDS`; defaults to all 18. Memory use is proportional to the number of fields.

    Returns
    -------
    columns : dict from str to numpy.ndarray, shape (n,)
        int64 for whole numbers, float64 for times and amounts; -1 if unknown. n may be 0.

    Raises
    ------
    TraceError
        If the file cannot be read or a record is invalid; the message names the file, line and field.
    OptionError
        If a name is not that of an SWF field.
    """
    names = _NAMES if fields is None else tuple(dict.fromkeys(fields))
    for name in names:
        if name not in _NAMES:
            raise OptionError("fields", f"{name!r} is not a field of SWF; the fields are {', '.join(_NAMES)}")
    table, comments = read_table(path, SWF_FIELDS, keep=names, comment=";", record="an SWF record")
    whole = {field.name for field in SWF_FIELDS if field.whole}
    columns: dict[str, npt.NDArray[np.generic]] = {}
    for name in names:
        column = table.pop(name)
        columns[name] = column.astype(np.int64) if name in whole else column
    return columns, SwfHeader(comments)


def read_swf(
    path: str | Path, *, nodes: int | None = None, columns: Sequence[str] = (), cancelled: bool = False
) -> tuple[Workload, ConversionReport]:
    """Read an SWF file as a workload, following the rules of `gridweave.scenarios.traces.convert.convert`.

    Parameters
    ----------
    path : str or pathlib.Path
        Plain, gzip or xz.
    nodes : int, optional
        Number of nodes of the machine; defaults to the header's MaxProcs (SWF counts processors), or else its MaxNodes.
    columns : sequence of str, optional
        Optional columns of the workload to read: ``user``, ``group``, ``job_class`` (SWF's queue), ``partition``.
    cancelled : bool, optional
        Whether to keep jobs that were cancelled before they started, i.e. jobs with status 5 and no run time, and to
        compute ``cancel_ms`` from their wait time. Otherwise they are dropped as jobs that never ran.

    Raises
    ------
    TraceError
        If the file cannot be read, a record is invalid, or every job is dropped.
    OptionError
        If `nodes` or `columns` is invalid.
    """
    for name in columns:
        if name not in COLUMN_FIELDS:
            raise OptionError("columns", f"{name!r} is not a column of SWF; it has {', '.join(COLUMN_FIELDS)}")
    extra = {name: COLUMN_FIELDS[name] for name in columns}
    raw, header = read_records(path, (*_JOB_FIELDS, *(("wait_s",) if cancelled else ()), *extra.values()))
    failed = np.asarray(raw["status"] == _STATUS_FAILED)
    marked = (header.text(_KILLED_ENTRY[0]) or "").partition("\n")[0] == _KILLED_ENTRY[1]
    records = Records(
        job_id=raw["job_id"].astype(np.int64, copy=False),
        submit_s=raw["submit_s"].astype(np.float64, copy=False),
        run_s=raw["run_s"].astype(np.float64, copy=False),
        estimate_s=raw["requested_s"].astype(np.float64, copy=False),
        width=raw["processors"].astype(np.int64, copy=False),
        requested_width=raw["requested_processors"].astype(np.int64, copy=False),
        killed=failed if marked else None,
        columns={name: _whole(raw[source]) for name, source in extra.items()},
        cancel_s=_cancel_s(raw) if cancelled else None,
    )
    return convert(
        path,
        records,
        nodes=nodes,
        stated=(header.max_procs, header.max_nodes),
        start_unix_s=header.unix_start_time,
        timezone=known_zone(header.time_zone_string, header.time_zone_offset_s),
    )


def _whole(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Round amounts of memory, which may have fractions in SWF, up to whole numbers."""
    return np.ceil(values).astype(np.int64) if values.dtype.kind == "f" else values


def _cancel_s(raw: Mapping[str, npt.NDArray[np.generic]]) -> npt.NDArray[np.float64]:
    """Return the cancel time of each job that never started, and -1 for every other job."""
    submit_s, wait_s, run_s = (np.asarray(raw[name], np.float64) for name in ("submit_s", "wait_s", "run_s"))
    waited = (np.asarray(raw["status"]) == _STATUS_CANCELLED) & (run_s <= 0) & (wait_s > 0)
    return np.where(waited, submit_s + wait_s, -1.0)


def write_swf(workload: Workload, path: str | Path) -> None:
    """Write a workload as an SWF file atomically, compressed if the suffix is ``.gz`` or ``.xz``.

    `read_swf` restores the workload, except for ``priority`` and ``weight``, which SWF cannot hold. A job's width is
    written as both allocated and requested processors. Jobs killed at their estimate get status 0, which a header entry
    explains, and other jobs status 1. A job with ``cancel_ms`` gets status 5, its wait time up to the cancellation, and
    no run time; `read_swf` sets its run time to its estimate. InputError if a number cannot be read back exactly.
    """
    columns = {source: workload.columns[name] for name, source in COLUMN_FIELDS.items() if name in workload.columns}
    for name, values in (("job_id", workload.job_id), *columns.items()):
        check_exact(path, name, values)
    head = "".join(f"; {label}: {value}\n" for label, value in _header_entries(workload))
    unknown = np.full(len(workload), -1, np.int64)
    status = np.where(workload.overran, _STATUS_FAILED, _STATUS_COMPLETED)
    cancel_ms = np.asarray(workload.columns.get("cancel_ms", unknown), np.int64)
    waited = cancel_ms > workload.submit_ms
    status[waited] = _STATUS_CANCELLED
    wait_ms, run_ms = np.where(waited, cancel_ms - workload.submit_ms, -1), np.where(waited, -1, workload.run_ms)
    jobs = (workload.job_id, workload.submit_ms, wait_ms, run_ms, workload.width, workload.estimate_ms, status)
    names = ("memory_kb", "requested_memory_kb", "user", "group", "queue", "partition")
    write_records(path, head, (*jobs, *(columns.get(name, unknown) for name in names)), _record)


def _record(
    job: int,
    submit: int,
    wait: int,
    run: int,
    width: int,
    estimate: int,
    state: int,
    memory: int,
    requested: int,
    user: int,
    group: int,
    queue: int,
    part: int,
) -> str:
    times = (seconds_text(ms) if ms >= 0 else "-1" for ms in (submit, wait, run))
    return (
        f"{job} {' '.join(times)} {width} -1 {memory} {width} {seconds_text(estimate)} {requested} {state} "
        f"{user} {group} -1 {queue} {part} -1 -1\n"
    )


def _header_entries(workload: Workload) -> Iterator[tuple[str, object]]:
    """Yield the header entries that describe the machine and the log, with SWF's labels."""
    yield "Version", "2.2"
    yield "Conversion", "gridweave"
    yield "MaxJobs", len(workload)
    yield "MaxRecords", len(workload)
    if workload.start_unix_s is not None:
        yield "UnixStartTime", workload.start_unix_s
    if workload.timezone is not None:
        yield "TimeZoneString", " ".join(workload.timezone.split())
    if workload.nodes is not None:
        yield "MaxNodes", workload.nodes
        yield "MaxProcs", workload.nodes
    yield "Note", f"workload {' '.join(workload.name.split())}"
    if workload.overran.any():
        yield _KILLED_ENTRY

"""Read a table of jobs, CSV or Parquet, whose columns are named by a map (docs/traces.md, "Tables of jobs").

A map has texts ``KEY=COLUMN``, such as ``submit=submit_time:ms``. `KEYS` lists the keys, `UNITS` the units.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError, ProblemsError, TraceError, not_installed
from gridweave.scenarios.traces.convert import MISSING, ConversionReport, Records, convert
from gridweave.scenarios.traces.text import MAX_TIME_S, MAX_WHOLE, NUMBER, FloatArray, csv_rows, open_trace, short
from gridweave.scenarios.workload.table import MAX_WIDTH, BoolArray, IntArray, Workload
from gridweave.site.times import parse_time_ms
from gridweave.values import parse_bytes

TABLE_FORMATS = ("csv", "parquet")

_INSTANTS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SPANS = {"s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0}
_MEMORY = {"B": 1e-6, "KB": 1e-3, "MB": 1.0, "GB": 1e3, "TB": 1e6}
_MEMORY |= {"KiB": 1024e-6, "MiB": 1024**2 * 1e-6, "GiB": 1024**3 * 1e-6, "TiB": 1024**4 * 1e-6}
_COUNTS = {"": 1.0, "%": 0.01}
_NO_UNIT = {"": 1.0}

UNITS: Mapping[str, Mapping[str, float]] = {
    **dict.fromkeys(("submit", "start", "end"), _INSTANTS),
    **dict.fromkeys(("run", "limit"), _SPANS),
    "memory": _MEMORY,
    **dict.fromkeys(("cores", "gpus"), _COUNTS),
    **dict.fromkeys(("job_id", "nodes", "chunks", "gpu_type", "user", "group", "queue"), _NO_UNIT),
}
"""The units of plain numbers for each key, and their factors: times to seconds, memory to MB, percentages to one."""

USUAL_UNIT = {"memory": "MB"} | dict.fromkeys(("submit", "start", "end", "run", "limit"), "s")
"""The units of numbers for which the map names no unit."""

KEYS = (
    *("job_id", "submit", "start", "end", "run", "limit", "nodes", "chunks", "cores", "memory", "gpus", "gpu_type"),
    *("user", "group", "queue"),
)
"""The keys of a map."""

_NAMES = {"user": "user", "group": "group", "queue": "job_class"}
"""Keys whose values may be any text, and the columns of the workload with a number for each text."""

_MISSING = ("", "-1", "none", "nan", "nat", "null", "na", "n/a", "\\n", "unknown")
_FIRST_DATE_S = 631_152_000
"""1990-01-01; later instants are dates, earlier numbers count from an unknown time zero."""

_MOST = 1e15
_MOST_PROBLEMS = 20
_NO_MEMORY = re.compile(r"0+(\.0+)? ?[KMGTP]?i?B?", re.IGNORECASE)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]+")


@dataclass(frozen=True, slots=True)
class MapEntry:
    """An entry of a map: a key, and the column with its values or one value for all jobs."""

    key: str
    column: str
    unit: str = ""

    @property
    def factor(self) -> float:
        """The factor of plain numbers in this unit."""
        return UNITS[self.key][self.unit or USUAL_UNIT.get(self.key, "")]


@dataclass(frozen=True, slots=True)
class _Column:
    """The values of a column, and the line or row of each."""

    entry: MapEntry
    values: Sequence[Any]
    lines: Sequence[int]


def parse_map(texts: Iterable[str]) -> dict[str, MapEntry]:
    """Parse a map, and check that it has all the keys that every map needs.

    Parameters
    ----------
    texts : iterable of str
        ``KEY=COLUMN`` or ``KEY=COLUMN:UNIT``, several with commas. A column is a name, ``#3`` for the third column of a
        file without a header, or a number that is the value for all jobs.

    Returns
    -------
    dict of str to MapEntry
        The entries by key.

    Raises
    ------
    ProblemsError
        If a key is unknown, repeated or missing; the error lists all problems.

    Examples
    --------
    >>> entries = parse_map(["job_id=JobID,submit=submit_time:ms", "run=duration:min"])
    >>> entries["submit"].column, entries["submit"].unit, entries["run"].factor
    ('submit_time', 'ms', 60.0)
    """
    entries: dict[str, MapEntry] = {}
    problems = []
    for text in (part.strip() for whole in texts for part in whole.split(",") if part.strip()):
        key, equals, column = (part.strip() for part in text.partition("="))
        if not equals or not column or key not in KEYS:
            problems.append(f"{text!r} is not KEY=COLUMN with a key of {', '.join(KEYS)}")
        elif key in entries:
            problems.append(f"{key} appears twice; give it once")
        else:
            entries[key] = _entry(key, column)
    problems += _incomplete(entries) if entries or not problems else []
    if problems:
        raise ProblemsError([f"--map: {problem}" for problem in problems])
    return entries


def _entry(key: str, column: str) -> MapEntry:
    name, _, unit = column.rpartition(":")
    return MapEntry(key, name, unit) if name and unit and unit in UNITS[key] else MapEntry(key, column)


def _incomplete(entries: Mapping[str, MapEntry]) -> Iterable[str]:
    if "submit" not in entries:
        yield "has no submit; give the column of the submit times (or of the starts), e.g. submit=submit_time"
    if "run" not in entries and not {"start", "end"} <= entries.keys():
        yield "has no run times; give run, or start and end"
    if {"nodes", "chunks"} <= entries.keys():
        yield "has nodes and chunks; amounts are for the whole job with nodes, for each chunk with chunks; give one"
    if "gpu_type" in entries and "gpus" not in entries:
        yield "has gpu_type but no gpus; give the number of GPUs, too"


def read_table_of_jobs(
    path: str | Path, entries: Mapping[str, MapEntry], *, nodes: int | None, file_format: str = "csv"
) -> tuple[Workload, ConversionReport]:
    """Read a table of jobs as a workload; docs/traces.md, "Tables of jobs", has the rules.

    Parameters
    ----------
    path : str or pathlib.Path
        CSV in UTF-8, also with tabs, semicolons or bars, plain, gzip or xz; or Parquet.
    entries : mapping from str to MapEntry
        Result of `parse_map`.
    nodes : int, optional
        Number of nodes of the machine, or with ``chunks`` the number of chunks that it can run; wider jobs are dropped.
    file_format : str
        One of `TABLE_FORMATS`.

    Raises
    ------
    TraceError
        If the file cannot be read, has no jobs, or the number of nodes is missing.
    ProblemsError
        If columns are missing or values cannot be read; the error lists all problems, up to a limit.
    UnavailableError
        If the file is Parquet, and pyarrow is not installed.
    """
    columns = (_of_parquet if file_format == "parquet" else _of_csv)(path, entries)
    reader = _Values(path, columns, "row" if file_format == "parquet" else "line")
    submit = reader.floats("submit", _instant_s)
    first_s = float(np.nanmin(submit)) if np.isfinite(submit).any() else 0.0
    start, end = (reader.floats(key, _instant_s) for key in ("start", "end"))
    run = reader.floats("run", _span_s) if "run" in columns else end - start
    width, amounts, rounded = _amounts(reader, columns)
    job_id = _ids(reader, columns)
    named = {column: reader.numbered(key) for key, column in _NAMES.items() if key in columns}
    records = Records(
        job_id=job_id,
        submit_s=_or_missing(submit - first_s),
        run_s=_or_missing(run),
        estimate_s=_or_missing(reader.floats("limit", _span_s)),
        width=width,
        columns=named,
        amounts=amounts,
        rounded=rounded,
    )
    reader.raise_problems()
    start_unix_s = int(first_s) if first_s >= _FIRST_DATE_S else None
    return convert(path, _from_whole_second(records, first_s), nodes=nodes, start_unix_s=start_unix_s)


def _from_whole_second(records: Records, first_s: float) -> Records:
    """Let time zero be the whole second in which the first job was submitted."""
    has_time = records.submit_s != MISSING
    return dataclasses.replace(records, submit_s=np.where(has_time, records.submit_s + first_s % 1.0, MISSING))


def _or_missing(seconds: FloatArray) -> FloatArray:
    return np.where(np.isfinite(seconds), seconds, float(MISSING))


def _amounts(
    reader: _Values, columns: Mapping[str, _Column]
) -> tuple[IntArray, dict[str, npt.NDArray[Any]], BoolArray]:
    """Return the widths, what each chunk asks for, and which jobs have an amount that was rounded up.

    With ``nodes``, amounts belong to the whole job and are shared evenly among its nodes; otherwise to each chunk.
    """
    count = reader.count
    key = "nodes" if "nodes" in columns else "chunks"
    width = reader.whole(key, MAX_WIDTH) if key in columns else np.ones(count, np.int64)
    rounded = np.zeros(count, np.bool_)
    if not {"cores", "memory", "gpus"} & columns.keys():
        return width, {}, rounded
    parts = np.maximum(width, 1) if "nodes" in columns else np.ones(count, np.int64)
    amounts: dict[str, npt.NDArray[Any]] = {}
    parsers = (("cores", "cores", _amount), ("memory_mb", "memory", _memory_mb), ("gpus", "gpus", _amount))
    for name, key, parse in parsers:
        exact = np.nan_to_num(reader.floats(key, parse), nan=0.0) / parts
        whole = np.ceil(exact - 1e-9)
        rounded |= (whole - exact > 1e-9) & (name != "memory_mb")
        amounts[name] = whole.astype(np.int64)
    amounts["cores"] = np.where(amounts["cores"] == 0, 1, amounts["cores"])
    if "gpu_type" in columns:
        amounts["gpu_type"] = reader.names("gpu_type")
    return width, amounts, rounded


def _ids(reader: _Values, columns: Mapping[str, _Column]) -> IntArray:
    """Return the job ids if all of them are whole numbers, and else the positions of the jobs, from 1."""
    texts = [_text(value) for value in columns["job_id"].values] if "job_id" in columns else [""]
    if all(text.isascii() and text.isdecimal() and int(text) <= MAX_WHOLE for text in texts):
        return np.array([int(text) for text in texts], np.int64)
    return np.arange(1, reader.count + 1)


class _Values:
    """Converts the values of columns, and collects the problems."""

    def __init__(self, path: str | Path, columns: Mapping[str, _Column], line_name: str) -> None:
        self.path, self.columns, self.line_name = path, columns, line_name
        self.count = max(len(column.values) for column in columns.values())
        self.problems: list[tuple[int, str, str]] = []

    def floats(self, key: str, parse: Callable[[Any, float], float]) -> FloatArray:
        """Return numbers, NaN where a value is missing; all NaN if the map does not have the key."""
        numbers = np.full(self.count, math.nan)
        if (column := self.columns.get(key)) is None:
            return numbers
        for row, value in enumerate(column.values):
            if _is_missing(value):
                continue
            try:
                numbers[row] = parse(value, column.entry.factor)
            except ValueError as error:
                self.problems.append((column.lines[row], column.entry.column, str(error)))
        return numbers

    def whole(self, key: str, most: int) -> IntArray:
        """Return whole numbers; -1 where a value is missing."""
        numbers = self.floats(key, _amount)
        column = self.columns[key]
        is_there = np.isfinite(numbers)
        wrong = is_there & ((numbers != np.floor(numbers)) | (np.abs(numbers) > most))
        for row in np.flatnonzero(wrong).tolist():
            problem = f"{short(_text(column.values[row]))!r} is not a whole number up to {most}"
            self.problems.append((column.lines[row], column.entry.column, problem))
        return np.where(is_there, np.clip(numbers, -most, most), MISSING).astype(np.int64)

    def names(self, key: str) -> npt.NDArray[np.str_]:
        """Return names for labels: other characters become hyphens; empty where a value is missing."""
        texts = ["" if _is_missing(value) else _text(value) for value in self.columns[key].values]
        return np.array([_NOT_IN_NAMES.sub("-", text).strip("-") for text in texts], np.str_)

    def numbered(self, key: str) -> IntArray:
        """Return whole numbers as they are; if a value is any other text, number the texts from 1 as they appear."""
        texts = ["-1" if _is_missing(value) else _text(value) for value in self.columns[key].values]
        if all(re.fullmatch(r"-1|\d{1,15}", text, re.ASCII) for text in texts):
            return np.array([int(text) for text in texts], np.int64)
        numbers: dict[str, int] = {"-1": MISSING}
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)

    def raise_problems(self) -> None:
        """Raise ProblemsError with the first problems in the order of the lines, if there are any."""
        if not self.problems:
            return
        shown = sorted(self.problems)[:_MOST_PROBLEMS]
        lines = [f"{self.path}:{line}: {name}: {text}" for line, name, text in shown]
        more = len(self.problems) - len(shown)
        raise ProblemsError(lines + ([f"{self.path}: {more:,} more values cannot be read"] if more else []))


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def _is_missing(value: Any) -> bool:
    return value is None or _text(value).lower() in _MISSING


def _number(value: Any) -> float | None:
    """Return a plain number, or None if the value is anything else."""
    if isinstance(value, str):
        return float(value) if NUMBER.fullmatch(value.strip()) else None
    return float(value) if isinstance(value, int | float | Decimal) else None


def _instant_s(value: Any, factor: float) -> float:
    """Parse an instant, as a number or an ISO date, as seconds since 1970 or since the time zero of the numbers."""
    number = _number(value)
    if number is not None:
        return _within(number * factor, value, "a time")
    try:
        instant = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value).strip())
        return (instant if instant.tzinfo else instant.replace(tzinfo=dt.UTC)).timestamp()
    except (ValueError, OverflowError):
        right = "a number or a date such as 2026-01-05T08:00:00"
        raise ValueError(f"{short(_text(value))!r} is not a time; expected {right}") from None


def _span_s(value: Any, factor: float) -> float:
    """Parse a length of time, given as a number or as text for `parse_time_ms`; return seconds."""
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    number = _number(value)
    if number is not None:
        return _within(number * factor, value, "a length of time")
    try:
        return parse_time_ms("", _text(value)) / 1000
    except OptionError as error:
        raise ValueError(error.problem) from None


def _amount(value: Any, factor: float) -> float:
    """Parse a number of cores, GPUs, nodes or chunks."""
    number = _number(value)
    if number is None:
        raise ValueError(f"{short(_text(value))!r} is not a number")
    return _within(number * factor, value, "an amount", most=_MOST)


def _memory_mb(value: Any, factor: float) -> float:
    """Parse an amount of memory, as a number or with a unit, in MB."""
    number = _number(value)
    if number is not None:
        return _within(number * factor, value, "an amount of memory", most=_MOST)
    try:
        return 0.0 if _NO_MEMORY.fullmatch(_text(value)) else parse_bytes("", _text(value)) * _MEMORY["B"]
    except OptionError:
        raise ValueError(f"{short(_text(value))!r} is not an amount of memory; expected a number or 8GB") from None


def _within(number: float, value: Any, what: str, *, most: float = MAX_TIME_S) -> float:
    if not abs(number) <= most:
        raise ValueError(f"{short(_text(value))!r} is not {what}; expected at most {most:g}")
    return number


def _of_csv(path: str | Path, entries: Mapping[str, MapEntry]) -> dict[str, _Column]:
    """Return the columns of a CSV file by key."""
    rows: list[list[str]] = []
    lines: list[int] = []
    with open_trace(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
        try:
            first = text.readline()
            delimiter = max(",;\t|", key=first.count)
            for line, values in csv_rows(path, _with_first(first, text), delimiter=delimiter):
                if any(value.strip() for value in values):
                    rows.append(values)
                    lines.append(line)
        finally:
            text.detach()  # open_trace closes the stream
    if not rows:
        raise TraceError(path, "is empty; expected a table of jobs")
    is_plain = all(entry.column.startswith("#") or _number(entry.column) is not None for entry in entries.values())
    header = [f"#{number}" for number in range(1, len(rows[0]) + 1)] if is_plain else [name.strip() for name in rows[0]]
    body, body_lines = (rows, lines) if is_plain else (rows[1:], lines[1:])
    wrong = [(line, len(row)) for line, row in zip(body_lines, body, strict=True) if len(row) != len(header)]
    if wrong:
        problems = [f"{path}:{line}: has {count} fields; the first line has {len(header)}" for line, count in wrong]
        raise ProblemsError(problems[:_MOST_PROBLEMS])
    return _chosen(path, entries, header, lambda index: [row[index] for row in body], body_lines)


def _with_first(first: str, rest: Iterable[str]) -> Iterable[str]:
    yield first
    yield from rest


def _of_parquet(path: str | Path, entries: Mapping[str, MapEntry]) -> dict[str, _Column]:
    """Return the columns of a Parquet file by key."""
    try:
        from pyarrow import ArrowException  # type: ignore[import-untyped]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]
    except ImportError:
        raise not_installed("pyarrow", "sweep") from None
    try:
        file = ParquetFile(path)
        header = list(file.schema_arrow.names)
        rows = range(1, file.metadata.num_rows + 1)
        return _chosen(path, entries, header, lambda index: file.read([header[index]])[0].to_pylist(), rows)
    except FileNotFoundError:
        raise TraceError(path, "there is no such file") from None
    except (ArrowException, OSError) as error:
        raise TraceError(path, f"is not a Parquet file: {short(' '.join(str(error).split()))}") from None


def _chosen(
    path: str | Path,
    entries: Mapping[str, MapEntry],
    header: Sequence[str],
    values_of: Callable[[int], Sequence[Any]],
    lines: Sequence[int],
) -> dict[str, _Column]:
    """Return the columns that the map names; raise ProblemsError if a column does not exist."""
    columns: dict[str, _Column] = {}
    problems = []
    for key, entry in entries.items():
        with_unit = f"{entry.column}:{entry.unit}"
        chosen = MapEntry(key, with_unit) if entry.unit and with_unit in header else entry
        if chosen.column in header:
            columns[key] = _Column(chosen, values_of(header.index(chosen.column)), lines)
        elif _number(chosen.column) is not None:
            columns[key] = _Column(chosen, [chosen.column] * len(lines), lines)
        else:
            problems.append(f"{path}: there is no column {entry.column!r} for {key}; it has {', '.join(header)}")
    if problems:
        raise ProblemsError(problems)
    if not len(lines):
        raise TraceError(path, "contains no jobs; expected one line per job")
    return columns

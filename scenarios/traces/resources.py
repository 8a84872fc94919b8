"""What jobs need, in a file beside the trace: CSV with a header, and a line for each job or group of its tasks.

It has the resources of jobs that share nodes, or what tasks need of a node (docs/fractional.md, "Needs").
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from gridweave.errors import TraceError
from gridweave.scenarios.traces.text import (
    MAX_WHOLE,
    NUMBER,
    check_exact,
    csv_rows,
    open_trace,
    read_text,
    short,
    write_file,
)
from gridweave.scenarios.workload.columns import RESOURCE_COLUMNS, assign_resources, check_resources
from gridweave.scenarios.workload.needs import with_groups, with_needs
from gridweave.scenarios.workload.table import MAX_WIDTH, Workload
from gridweave.site.disciplines.sharing.slowdown_tables import SlowdownTable, parse_table
from gridweave.site.kernels.parts import MOST_GROUPS, NeedsOfTasks

FILE_COLUMNS = (*RESOURCE_COLUMNS, "message_bytes")
"""Columns of a workload that a file may hold beside ``job_id``; the first four are needed."""

SUM_TOLERANCE = 1e-3
"""How far the three fractions of a job may be from summing to 1 in a file: thirds with three decimals are right."""

MAX_KIND = 2**31 - 1

TIME_FRACTIONS = RESOURCE_COLUMNS[:3]

# Nearer to 1 than this a sum is 1 but for the last digits of its parts, which stay as they are written.
_EXACT_SUM = 1e-9

_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CsvColumn:
    """What may stand in a column of a file beside a trace."""

    whole: bool
    high: int
    needed: bool
    right: str
    above_zero: bool = False


_FRACTION = CsvColumn(whole=False, high=1, needed=True, right="a number within 0 to 1")
_BYTES = CsvColumn(whole=True, high=MAX_WHOLE, needed=False, right=f"a whole number within 0 to {MAX_WHOLE}")
JOB_ID = CsvColumn(whole=True, high=MAX_WHOLE, needed=True, right="the whole number of a job")
PART_OF_NODE = CsvColumn(whole=False, high=1, needed=True, right="a number above 0 and up to 1", above_zero=True)
_KIND = "the number of a kind of CPU work, such as 0 (integer) or 1 (floating point)"
_COLUMNS = {
    "job_id": JOB_ID,
    **dict.fromkeys(TIME_FRACTIONS, _FRACTION),
    "memory_fraction": PART_OF_NODE,
    "cpu_kind": CsvColumn(whole=True, high=MAX_KIND, needed=False, right=_KIND),
    "cache_bytes": _BYTES,
    "message_bytes": _BYTES,
}


def read_resources(path: str | Path, workload: Workload) -> Workload:
    """Give jobs the resources that a file says.

    Parameters
    ----------
    path : str or pathlib.Path
        CSV in UTF-8 (.gz and .xz, too) whose first line names its columns, in any order: ``job_id``,
        ``cpu_fraction``, ``network_fraction``, ``disk_fraction``, ``memory_fraction``, and if they are known
        ``cpu_kind`` (0 for integer, 1 for floating point), ``cache_bytes`` and ``message_bytes``. One line for each
        job, in any order.
    workload : Workload
        The jobs. Columns of `FILE_COLUMNS` that it has are replaced, or dropped if the file does not have them.

    Returns
    -------
    Workload
        The fractions of CPU, network and disk of a job sum to 1. Those that miss it by up to `SUM_TOLERANCE` in the
        file are divided by their sum.

    Raises
    ------
    TraceError
        If the file cannot be read, a column is missing, unknown or there twice, a value is none, the fractions of a job
        do not sum to 1, or a job is unknown, there twice or missing; with line and field where there is one.
    """
    table = _read_lines(path, workload)
    columns = {name: values for name, values in workload.columns.items() if name not in FILE_COLUMNS}
    return workload.replace(columns={**columns, **table})


def with_mix(workload: Workload, resources: str | Path, rng: np.random.Generator) -> Workload:
    """Return a workload whose jobs say what they need beside nodes.

    Parameters
    ----------
    resources : str or pathlib.Path
        A mix to draw from (M1, M2, M3 or per cent), or a file, with a suffix, as `write_resources` makes one.

    Raises
    ------
    InputError
        If the mix is none, or the file cannot be read or is not that of these jobs.
    """
    if Path(resources).suffix:
        return read_resources(resources, workload)
    return assign_resources(workload, str(resources), rng)


def read_csv(
    path: str | Path, columns: Mapping[str, CsvColumn], take: Callable[[int, dict[str, float]], None]
) -> list[str]:
    """Read a file beside a trace, CSV in UTF-8 (.gz and .xz, too); return the names of its columns.

    Its first line has them, in any order; `take` is told the number of each further line, and its values by column.
    TraceError if the file cannot be read, a column is missing, unknown or there twice, or a value is none.
    """
    with open_trace(path) as stream:
        # What is no UTF-8 becomes part of a value, which is then refused with its line and field.
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
        try:
            rows = _rows(path, text)
            line, names = next(rows, (None, []))
            if line is None:
                raise TraceError(path, f"is empty; its first line names its columns: {', '.join(columns)}")
            _check_header(path, line, names, columns)
            for line, texts in rows:
                if len(texts) != len(names):
                    raise TraceError(path, f"has {len(texts)} fields; the header has {len(names)}", line=line)
                values = zip(names, texts, strict=True)
                take(line, {name: _value(path, line, name, value, columns[name]) for name, value in values})
        finally:
            text.detach()  # the stream is closed by whoever opened it
    return names


def row_of_job(path: str | Path, line: int, job_id: float, row_of: Mapping[int, int], workload: Workload) -> int:
    """Return the row of the job that a line is about."""
    row = row_of.get(int(job_id))
    if row is None:
        raise TraceError(path, f"{int(job_id)} is not a job of {workload.name}", line=line, field="job_id")
    return row


def check_all_told(path: str | Path, told: Sequence[object], workload: Workload) -> None:
    """Check that of each job something is told."""
    missing = [row for row, found in enumerate(told) if not found]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        problem = f"has no line for job {workload.job_id[missing[0]]}{more} of {workload.name}; every job has one"
        raise TraceError(path, problem)


def _rows(path: str | Path, text: io.TextIOWrapper) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines that are not blank with their numbers, split at the commas."""
    for line, values in csv_rows(path, text, strict=True):
        stripped = [value.strip() for value in values]
        if any(stripped):
            yield line, stripped


def _check_header(path: str | Path, line: int, names: list[str], columns: Mapping[str, CsvColumn]) -> None:
    """Check that the names are those of columns, each once, and all that are needed."""
    for number, name in enumerate(names):
        if name not in columns:
            problem = f"{short(name)!a} is not the name of a column; there are {', '.join(columns)}"
            raise TraceError(path, problem, line=line)
        if name in names[:number]:
            raise TraceError(path, "this column is there twice", line=line, field=name)
    for name, column in columns.items():
        if column.needed and name not in names:
            raise TraceError(path, "this column is missing", line=line, field=name)


def _read_lines(path: str | Path, workload: Workload) -> dict[str, npt.NDArray[np.generic]]:
    """Return the columns, in the order of the workload's jobs."""
    row_of = {job: row for row, job in enumerate(workload.job_id.tolist())}
    line_of = [0] * len(workload)
    table: dict[str, list[float]] = {name: [0.0] * len(workload) for name in FILE_COLUMNS}

    def take(line: int, job: dict[str, float]) -> None:
        row = row_of_job(path, line, job["job_id"], row_of, workload)
        if line_of[row]:
            problem = f"{int(job['job_id'])} is there twice; it is on line {line_of[row]}, too"
            raise TraceError(path, problem, line=line, field="job_id")
        line_of[row] = line
        _make_whole(path, line, job)
        for name in job.keys() & table.keys():
            table[name][row] = job[name]

    names = read_csv(path, _COLUMNS, take)
    check_all_told(path, line_of, workload)
    kinds = {name: np.int64 if _COLUMNS[name].whole else np.float64 for name in FILE_COLUMNS if name in names}
    return {name: np.array(table[name], kind) for name, kind in kinds.items()}


def _value(path: str | Path, line: int, name: str, text: str, column: CsvColumn) -> float:
    """Parse one field."""
    pattern = _WHOLE if column.whole else NUMBER
    value: float = -1
    if pattern.fullmatch(text):
        value = int(text) if column.whole else float(text)
    if not 0 <= value <= column.high or (column.above_zero and value == 0):
        raise TraceError(path, f"{short(text)!a} is not {column.right}", line=line, field=name)
    return value


def _make_whole(path: str | Path, line: int, job: dict[str, float]) -> None:
    """Let the three fractions of a job sum to 1, if they nearly do."""
    total = math.fsum(job[name] for name in TIME_FRACTIONS)
    if abs(total - 1) > SUM_TOLERANCE:
        problem = f"sum to {total:.6g}; they are parts of the job's run time and sum to 1, within {SUM_TOLERANCE:g}"
        raise TraceError(path, problem, line=line, field=" + ".join(TIME_FRACTIONS))
    if abs(total - 1) > _EXACT_SUM:
        for name in TIME_FRACTIONS:
            job[name] /= total


def write_resources(workload: Workload, path: str | Path) -> None:
    """Write the resources of all jobs into a file, whole or not at all; `read_resources` gives the same back.

    Parameters
    ----------
    workload : Workload
        With the four fractions at least. (Sums that miss 1 by more than a billionth are made 1 when they are read.)
    path : str or pathlib.Path
        The file; one that is there is replaced. The suffixes ``.gz`` and ``.xz`` compress it.

    Raises
    ------
    InputError
        If a fraction is missing, the fractions of a job do not sum to 1, or the file cannot be written.
    """
    check_resources(workload)
    names = [name for name in FILE_COLUMNS if name in workload.columns]
    check_exact(path, "job_id", workload.job_id)
    columns = [workload.job_id.tolist(), *(workload.columns[name].tolist() for name in names)]

    def write(stream: IO[bytes]) -> None:
        stream.write(f"{','.join(('job_id', *names))}\n".encode("ascii"))
        # repr gives the shortest decimals that are read back as the same float.
        stream.writelines(f"{','.join(map(repr, values))}\n".encode("ascii") for values in zip(*columns, strict=True))

    write_file(path, write)


def read_slowdowns(path: str | Path) -> SlowdownTable:
    """Read a table of measured slowdowns from a CSV file.

    Parameters
    ----------
    path : str or pathlib.Path
        The labels stand in the first row and in the first column.

    Raises
    ------
    TraceError
        If the file cannot be read.
    InputError
        If it holds no such table, or a slowdown below 1; the message names the file and the cell.
    """
    return parse_table(read_text(path), str(path))


_NEED_COLUMNS = {
    "job_id": JOB_ID,
    "tasks": CsvColumn(
        whole=True, high=MAX_WIDTH, needed=False, right="a whole number of tasks, from 1", above_zero=True
    ),
    "cpu_need": PART_OF_NODE,
    "memory_fraction": PART_OF_NODE,
}


def read_needs(path: str | Path, workload: Workload) -> Workload:
    """Give the tasks of jobs the needs that a file says.

    Parameters
    ----------
    path : str or pathlib.Path
        CSV in UTF-8 (.gz and .xz, too) whose first line names its columns, in any order: ``job_id``, ``cpu_need``,
        ``memory_fraction``, and where tasks of a job differ ``tasks``. Then a job has a line for each group of tasks
        that are alike, and ``tasks`` says how many those are; else it has one.
    workload : Workload
        The jobs.

    Returns
    -------
    Workload
        Its widths are the sums of ``tasks``, if the file has that column.

    Raises
    ------
    TraceError
        If the file cannot be read, a column is missing, unknown or there twice, a value is none, a job is unknown or
        missing, is there twice without ``tasks``, or has more than `MOST_GROUPS` groups of tasks that differ.
    """
    row_of = {job: row for row, job in enumerate(workload.job_id.tolist())}
    told: list[Counter[tuple[float, float]]] = [Counter() for _ in range(len(workload))]

    def take(line: int, values: dict[str, float]) -> None:
        row = row_of_job(path, line, values["job_id"], row_of, workload)
        if told[row] and "tasks" not in values:
            problem = f"{workload.job_id[row]} is there twice; groups of tasks that differ need the column tasks"
            raise TraceError(path, problem, line=line, field="job_id")
        told[row][values["memory_fraction"], values["cpu_need"]] += int(values.get("tasks", workload.width[row]))
        if len(told[row]) > MOST_GROUPS:
            problem = f"job {workload.job_id[row]} has more than {MOST_GROUPS} groups of tasks that differ"
            raise TraceError(path, problem, line=line)

    read_csv(path, _NEED_COLUMNS, take)
    check_all_told(path, told, workload)
    rows = [
        (row, count, cpu, memory)
        for row, groups in enumerate(told)
        for (memory, cpu), count in sorted(groups.items(), reverse=True)
    ]
    columns = (np.array(column) for column in zip(*rows, strict=True)) if rows else [np.zeros(0, np.int64)] * 4
    return with_groups(workload, NeedsOfTasks(*columns))


def with_needs_said(workload: Workload, needs: str | Path, rng: np.random.Generator) -> Workload:
    """Give the tasks of jobs the needs that are said: an annotation of `with_needs`, or a file of `read_needs`.

    A name with a suffix is that of a file.
    """
    if Path(needs).suffix:
        return read_needs(needs, workload)
    return with_needs(workload, str(needs), rng)

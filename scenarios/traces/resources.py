"""Read and write the needs of a trace's jobs in a separate CSV file, with a line per job or group of tasks.

A file holds either the resources of jobs that share nodes or the needs of tasks (docs/fractional.md, "Needs").
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
"""Workload columns that a resource file can hold, in addition to ``job_id``; the first four are required."""

SUM_TOLERANCE = 1e-3
"""Maximum deviation from 1 of the sum of a job's three fractions; accepts thirds written with three decimals."""

MAX_KIND = 2**31 - 1

TIME_FRACTIONS = RESOURCE_COLUMNS[:3]

# A smaller deviation is a rounding error; the fractions are then kept as written.
_EXACT_SUM = 1e-9

_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CsvColumn:
    """The values allowed in a column of a resource or needs file; ``right`` describes them in error messages."""

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
    """Read the resources of a workload's jobs from a file.

    Parameters
    ----------
    path : str or pathlib.Path
        CSV in UTF-8, also compressed (.gz, .xz), whose header names the columns in any order: ``job_id``,
        ``cpu_fraction``, ``network_fraction``, ``disk_fraction``, ``memory_fraction``, and optionally ``cpu_kind`` (0
        for integer, 1 for floating point), ``cache_bytes`` and ``message_bytes``. One line per job, in any order.
    workload : Workload
        The jobs; their columns in `FILE_COLUMNS` are replaced, or dropped if the file does not have them.

    Returns
    -------
    Workload
        With these resources. The CPU, network and disk fractions of each job sum to 1; they are normalized if the sum
        in the file deviates from 1 by up to `SUM_TOLERANCE`.

    Raises
    ------
    TraceError
        If the file cannot be read, a column is missing, unknown or repeated, a value is invalid, a job's fractions do
        not sum to 1, or a job is unknown, repeated or missing. The message names the line and the field if possible.
    """
    table = _read_lines(path, workload)
    columns = {name: values for name, values in workload.columns.items() if name not in FILE_COLUMNS}
    return workload.replace(columns={**columns, **table})


def with_mix(workload: Workload, resources: str | Path, rng: np.random.Generator) -> Workload:
    """Set the resources of a workload's jobs, either drawn from a mix or read from a file.

    Parameters
    ----------
    resources : str or pathlib.Path
        A mix to draw from (M1, M2, M3 or percentages), or, if it has a file suffix, the path of a resource file.

    Raises
    ------
    InputError
        If the mix is unknown, or the file is invalid or its jobs are not those of the workload.
    """
    if Path(resources).suffix:
        return read_resources(resources, workload)
    return assign_resources(workload, str(resources), rng)


def read_csv(
    path: str | Path, columns: Mapping[str, CsvColumn], take: Callable[[int, dict[str, float]], None]
) -> list[str]:
    """Read a UTF-8 CSV file (plain, .gz or .xz) with columns in any order; return the file's column names.

    Calls ``take(line, values)`` for each line after the header. Raises TraceError if the file cannot be read, a column
    is missing, unknown or repeated, or a value is invalid.
    """
    with open_trace(path) as stream:
        # Invalid UTF-8 becomes part of a value, which is then rejected with its line and field.
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
        try:
            rows = csv_lines(path, text)
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
            text.detach()  # open_trace closes the stream
    return names


def row_of_job(path: str | Path, line: int, job_id: float, row_of: Mapping[int, int], workload: Workload) -> int:
    """Return the workload row of the job on this line; raise TraceError if the workload does not have the job."""
    row = row_of.get(int(job_id))
    if row is None:
        raise TraceError(path, f"{int(job_id)} is not a job of {workload.name}", line=line, field="job_id")
    return row


def check_complete(path: str | Path, has_lines: Sequence[object], workload: Workload) -> None:
    """Raise TraceError if a job of the workload has no line; ``has_lines`` is true for each job with a line."""
    missing = [row for row, has_line in enumerate(has_lines) if not has_line]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        problem = f"has no line for job {workload.job_id[missing[0]]}{more} of {workload.name}; every job has one"
        raise TraceError(path, problem)


def csv_lines(path: str | Path, text: io.TextIOBase) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-blank lines with their numbers, split into stripped fields."""
    for line, values in csv_rows(path, text, strict=True):
        stripped = [value.strip() for value in values]
        if any(stripped):
            yield line, stripped


def _check_header(path: str | Path, line: int, names: list[str], columns: Mapping[str, CsvColumn]) -> None:
    """Check that the header names each required column, no unknown column, and no column twice."""
    for number, name in enumerate(names):
        if name not in columns:
            problem = f"{short(name)!a} is not the name of a column; expected one of {', '.join(columns)}"
            raise TraceError(path, problem, line=line)
        if name in names[:number]:
            raise TraceError(path, "this column appears twice", line=line, field=name)
    for name, column in columns.items():
        if column.needed and name not in names:
            raise TraceError(path, "this column is missing", line=line, field=name)


def _read_lines(path: str | Path, workload: Workload) -> dict[str, npt.NDArray[np.generic]]:
    """Return the columns of a resource file by name, with rows in the order of the workload's jobs."""
    row_of = {job: row for row, job in enumerate(workload.job_id.tolist())}
    line_of = [0] * len(workload)
    table: dict[str, list[float]] = {name: [0.0] * len(workload) for name in FILE_COLUMNS}

    def take_line(line: int, job: dict[str, float]) -> None:
        row = row_of_job(path, line, job["job_id"], row_of, workload)
        if line_of[row]:
            problem = f"{int(job['job_id'])} appears twice; it is also on line {line_of[row]}"
            raise TraceError(path, problem, line=line, field="job_id")
        line_of[row] = line
        _make_whole(path, line, job)
        for name in job.keys() & table.keys():
            table[name][row] = job[name]

    names = read_csv(path, _COLUMNS, take_line)
    check_complete(path, line_of, workload)
    kinds = {name: np.int64 if _COLUMNS[name].whole else np.float64 for name in FILE_COLUMNS if name in names}
    return {name: np.array(table[name], kind) for name, kind in kinds.items()}


def _value(path: str | Path, line: int, name: str, text: str, column: CsvColumn) -> float:
    """Parse one field; raise TraceError if its value is not allowed."""
    pattern = _WHOLE if column.whole else NUMBER
    value: float = -1
    if pattern.fullmatch(text):
        value = int(text) if column.whole else float(text)
    if not 0 <= value <= column.high or (column.above_zero and value == 0):
        raise TraceError(path, f"{short(text)!a} is not {column.right}", line=line, field=name)
    return value


def _make_whole(path: str | Path, line: int, job: dict[str, float]) -> None:
    """Normalize a job's three fractions to a sum of 1; raise TraceError if their sum is not close to 1."""
    total = math.fsum(job[name] for name in TIME_FRACTIONS)
    if abs(total - 1) > SUM_TOLERANCE:
        problem = (
            f"sum to {total:.6g}; they are fractions of the job's run time and must sum to 1, within {SUM_TOLERANCE:g}"
        )
        raise TraceError(path, problem, line=line, field=" + ".join(TIME_FRACTIONS))
    if abs(total - 1) > _EXACT_SUM:
        for name in TIME_FRACTIONS:
            job[name] /= total


def write_resources(workload: Workload, path: str | Path) -> None:
    """Write the resources of all jobs to a file that `read_resources` can read; the write is atomic.

    Parameters
    ----------
    workload : Workload
        Must have the four fractions. `read_resources` normalizes sums that deviate from 1 by more than 1e-9.
    path : str or pathlib.Path
        An existing file is replaced. The suffixes ``.gz`` and ``.xz`` compress it.

    Raises
    ------
    InputError
        If a fraction is missing, a job's fractions do not sum to 1, or the file cannot be written.
    """
    check_resources(workload)
    names = [name for name in FILE_COLUMNS if name in workload.columns]
    check_exact(path, "job_id", workload.job_id)
    columns = [workload.job_id.tolist(), *(workload.columns[name].tolist() for name in names)]

    def write(stream: IO[bytes]) -> None:
        stream.write(f"{','.join(('job_id', *names))}\n".encode("ascii"))
        # repr returns the shortest decimals that parse to the same float.
        stream.writelines(f"{','.join(map(repr, values))}\n".encode("ascii") for values in zip(*columns, strict=True))

    write_file(path, write)


def read_slowdowns(path: str | Path) -> SlowdownTable:
    """Read a table of measured slowdowns from a CSV file.

    Parameters
    ----------
    path : str or pathlib.Path
        The file, with row labels in the first column and column labels in the first row.

    Raises
    ------
    TraceError
        If the file cannot be read.
    InputError
        If the file is not a table of slowdowns, or a slowdown is below 1; the message names the file and the cell.
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
    """Read the needs of a workload's tasks from a file.

    Parameters
    ----------
    path : str or pathlib.Path
        CSV in UTF-8, also compressed (.gz, .xz), whose header names the columns in any order: ``job_id``, ``cpu_need``,
        ``memory_fraction``, and ``tasks`` if the tasks of a job differ. With ``tasks``, a job has one line per group of
        identical tasks; otherwise, a job has one line.
    workload : Workload
        The jobs.

    Returns
    -------
    Workload
        With these needs. If the file has ``tasks``, the width of a job is the number of tasks in all of its groups.

    Raises
    ------
    TraceError
        If the file cannot be read, a column is missing, unknown or repeated, a value is invalid, or a job is unknown,
        missing, repeated without ``tasks``, or has more than `MOST_GROUPS` groups.
    """
    row_of = {job: row for row, job in enumerate(workload.job_id.tolist())}
    groups_of_job: list[Counter[tuple[float, float]]] = [Counter() for _ in range(len(workload))]

    def take(line: int, values: dict[str, float]) -> None:
        row = row_of_job(path, line, values["job_id"], row_of, workload)
        if groups_of_job[row] and "tasks" not in values:
            problem = f"{workload.job_id[row]} appears twice; groups of tasks that differ need the column tasks"
            raise TraceError(path, problem, line=line, field="job_id")
        groups_of_job[row][values["memory_fraction"], values["cpu_need"]] += int(
            values.get("tasks", workload.width[row])
        )
        if len(groups_of_job[row]) > MOST_GROUPS:
            problem = f"job {workload.job_id[row]} has more than {MOST_GROUPS} groups of tasks that differ"
            raise TraceError(path, problem, line=line)

    read_csv(path, _NEED_COLUMNS, take)
    check_complete(path, groups_of_job, workload)
    rows = [
        (row, count, cpu, memory)
        for row, groups in enumerate(groups_of_job)
        for (memory, cpu), count in sorted(groups.items(), reverse=True)
    ]
    columns = (np.array(column) for column in zip(*rows, strict=True)) if rows else [np.zeros(0, np.int64)] * 4
    return with_groups(workload, NeedsOfTasks(*columns))


def with_needs_from(workload: Workload, needs: str | Path, rng: np.random.Generator) -> Workload:
    """Set the needs of a workload's tasks, from an annotation (`with_needs`) or a file (`read_needs`).

    `needs` is taken as a path if it has a file suffix.
    """
    if Path(needs).suffix:
        return read_needs(needs, workload)
    return with_needs(workload, str(needs), rng)

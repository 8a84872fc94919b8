"""Read and write the chunks of a trace's jobs in a separate CSV file with a line per job (docs/traces.md, "Chunks")."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from gridweave.errors import InputError, OptionError, ProblemsError, TraceError
from gridweave.scenarios.traces.resources import csv_lines
from gridweave.scenarios.traces.text import MAX_WHOLE, check_exact, open_trace, short, write_file
from gridweave.scenarios.workload.chunks import NO_CHUNK, with_amounts, with_chunks
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.site.resources.chunks import MAX_AMOUNT, WHOLE_NODE, Chunk
from gridweave.site.resources.problems import OPTION_OF, chunk_problems
from gridweave.site.resources.text import parse_gpus, parse_gres, parse_memory

FILE_COLUMNS = ("job_id", "cores", "memory", "gpus", "gres", "labels", "exclusive", "per_node")
"""Columns of a file; all but ``job_id`` are optional, and an empty field means that nothing of it is asked for."""

BY_PROCESSOR = "cores"
"""The name, in place of a file, for the rule of `chunks_of_processors`."""

MB_PER_KB = 1024 / 10**6

_NOTHING_ELSE: tuple[tuple[str, int], ...] = ()

Value = TypeVar("Value")

_MOST_PROBLEMS = 20


def with_chunks_from(workload: Workload, chunks: str | Path) -> Workload:
    """Set the chunks of a workload's jobs: by the rule `BY_PROCESSOR`, or from a file, if `chunks` has a suffix.

    Raises
    ------
    InputError
        If the rule is unknown, or the file is invalid or does not have all jobs of the workload.
    """
    if Path(chunks).suffix:
        return read_chunks(chunks, workload)
    if str(chunks) != BY_PROCESSOR:
        raise OptionError("chunks", f"{str(chunks)!r} is not known; give {BY_PROCESSOR}, or a .csv file")
    return chunks_of_processors(workload)


def chunks_of_processors(workload: Workload) -> Workload:
    """Make each processor of a trace a chunk with one core and the memory that the trace states for a processor.

    The memory is the requested memory (SWF field 10) or, if that is unknown or 0, the memory used (field 7), in KB of
    1024 bytes, rounded up to MB. If both are unknown, memory is not counted.

    Parameters
    ----------
    workload : Workload
        With the columns ``requested_memory_kb`` and ``memory_kb``, if the trace has them.

    Raises
    ------
    InputError
        If a job has more memory than `MAX_AMOUNT`.
    """
    unknown = np.zeros(len(workload), np.int64)
    requested, used = (np.asarray(workload.columns.get(name, unknown)) for name in ("requested_memory_kb", "memory_kb"))
    memory_kb = np.where(requested > 0, requested, np.maximum(used, 0))
    return with_amounts(workload, cores=1, memory_mb=np.ceil(memory_kb * MB_PER_KB).astype(np.int64))


def read_chunks(path: str | Path, workload: Workload) -> Workload:
    """Read the chunks of a workload's jobs from a file.

    Parameters
    ----------
    path : str or pathlib.Path
        CSV in UTF-8, also compressed (.gz, .xz), whose header names some of `FILE_COLUMNS` in any order. One line per
        job, in any order; lines of jobs that the workload does not have are ignored.
    workload : Workload
        The jobs; the chunks that they have so far are replaced.

    Raises
    ------
    TraceError
        If the file cannot be read, a column is unknown, missing or repeated, or a job of the workload has no line.
    ProblemsError
        If values are invalid; the error lists the first ones, a line for each.
    """
    rows = {job: row for row, job in enumerate(workload.job_id.tolist())}
    chunks: list[Chunk | None] = [None] * len(workload)
    line_of = [0] * len(workload)
    problems: list[str] = []
    with open_trace(path) as stream:
        for line, values in _lines(path, stream.read().decode("utf-8", "surrogateescape")):
            where = f"{path}:{line}"
            job = _job_id(values["job_id"])
            row = rows.get(job)
            if job < 0:
                problems.append(f"{where}: job_id: {short(values['job_id'])!a} is not the whole number of a job")
            elif row is not None and line_of[row]:
                problems.append(f"{where}: job_id: {job} appears twice; it is also on line {line_of[row]}")
            elif row is not None:
                line_of[row] = line
                chunks[row] = _chunk(values, int(workload.width[row]), where, problems)
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        raise ProblemsError(problems[:_MOST_PROBLEMS] + ([f"{path}: {more:,} more problems"] if more > 0 else []))
    _check_all(path, line_of, workload)
    return with_chunks(workload, chunks)


def _lines(path: str | Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number and the values of each line after the header."""
    rows = csv_lines(path, io.StringIO(text, newline=""))
    line, header = next(rows, (1, []))
    for number, name in enumerate(header):
        if name not in FILE_COLUMNS:
            problem = f"{short(name)!a} is not the name of a column; expected one of {', '.join(FILE_COLUMNS)}"
            raise TraceError(path, problem, line=line)
        if name in header[:number]:
            raise TraceError(path, "this column appears twice", line=line, field=name)
    if "job_id" not in header:
        raise TraceError(path, "this column is missing", line=line, field="job_id")
    for line, values in rows:
        if len(values) != len(header):
            raise TraceError(path, f"has {len(values)} fields; the header has {len(header)}", line=line)
        yield line, dict(zip(header, values, strict=True))


def _job_id(text: str) -> int:
    """Return a job id, or -1 if the text is not one."""
    return int(text) if text.isascii() and text.isdecimal() and int(text) <= MAX_WHOLE else -1


def _chunk(values: Mapping[str, str], width: int, where: str, problems: list[str]) -> Chunk | None:
    """Return the chunk of a line, None for whole nodes; add the problems of the line to ``problems``."""
    before = len(problems)

    def parsed(name: str, parse: Callable[[str, str], Value], default: Value) -> Value:
        try:
            return parse(name, values[name]) if values.get(name) else default
        except OptionError as error:
            problems.append(f"{where}: {error}")
            return default

    cores, per_node = (parsed(name, _parse_whole, 0) for name in ("cores", "per_node"))
    memory_mb = parsed("memory", parse_memory, 0)
    gpus, gpu_type = parsed("gpus", parse_gpus, (0, ""))
    others = parsed("gres", _parse_others, _NOTHING_ELSE)
    exclusive = parsed("exclusive", _parse_flag, default=False)
    if len(problems) > before:
        return None
    asks = bool(memory_mb or gpus or others or per_node)
    chunk = Chunk(
        cores=cores or int(asks),
        memory_mb=memory_mb,
        gpus=gpus,
        gpu_type=gpu_type,
        others=others,
        labels=tuple(sorted({*values.get("labels", "").split()})),
        exclusive=exclusive or not (cores or asks),
        per_node=per_node,
    )
    problems += [f"{where}: {OPTION_OF.get(field, field)}: {text}" for field, text in chunk_problems(chunk, width)]
    return None if chunk == WHOLE_NODE else chunk


def _parse_whole(option: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= MAX_AMOUNT):
        raise OptionError(option, f"{short(text)!a} is not a whole number within 0 to {MAX_AMOUNT}")
    return int(text)


def _parse_others(option: str, text: str) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(parse_gres(option, word) for word in text.split()))


def _parse_flag(option: str, text: str) -> bool:
    if text not in ("0", "1"):
        raise OptionError(option, f"{short(text)!a} is neither 0 nor 1")
    return text == "1"


def _check_all(path: str | Path, line_of: list[int], workload: Workload) -> None:
    missing = [row for row, line in enumerate(line_of) if not line]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        problem = f"has no line for job {workload.job_id[missing[0]]}{more} of {workload.name}"
        raise TraceError(path, f"{problem}; every job has one, with cores 0 for whole nodes")


def write_chunks(workload: Workload, path: str | Path) -> None:
    """Write the chunks of all jobs to a file that `read_chunks` can read; the write is atomic.

    Raises
    ------
    InputError
        If the jobs ask for whole nodes only, or the file cannot be written.
    """
    if not workload.chunks:
        raise InputError(f"{workload.name}: the jobs ask for whole nodes, so there are no chunks to write")
    check_exact(path, "job_id", workload.job_id)
    fields = [_fields(chunk) for chunk in workload.chunks]
    used = [name for name in FILE_COLUMNS[1:] if name == "cores" or any(name in values for values in fields)]
    rows = [[values.get(name, "") for name in used] for values in fields]
    rows.append(["0" if name == "cores" else "" for name in used])  # NO_CHUNK is the last index
    assert NO_CHUNK == -1
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["job_id", *used])
    numbers: IntArray = np.asarray(workload.columns["chunk"], np.int64)
    writer.writerows(
        [job, *rows[number]] for job, number in zip(workload.job_id.tolist(), numbers.tolist(), strict=True)
    )
    write_file(path, lambda stream: stream.write(text.getvalue().encode()))


def _fields(chunk: Chunk) -> dict[str, str]:
    """Return the fields of a chunk that are not empty."""
    gpus = f"{chunk.gpu_type}:{chunk.gpus}" if chunk.gpu_type else str(chunk.gpus or "")
    fields = {
        "cores": str(chunk.cores),
        "memory": f"{chunk.memory_mb}MB" if chunk.memory_mb else "",
        "gpus": gpus,
        "gres": " ".join(f"{name}:{amount}" for name, amount in chunk.others),
        "labels": " ".join(chunk.labels),
        "exclusive": "1" if chunk.exclusive and not chunk.is_whole else "",
        "per_node": str(chunk.per_node or ""),
    }
    return {name: text for name, text in fields.items() if text}

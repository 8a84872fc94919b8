"""Read the schedules that gridweave and other simulators write (docs/check.md).

Batsim: oar-team/batsim, ``docs/output-jobs.rst`` and ``src/export.cpp``; some column names depend on the
version. AccaSim: ``SCHEDULE_OUTPUT`` of ``accasim/utils/misc.py``; ``total_cpu`` counts the whole job, and missing
resources are ``NA``. Alea: ``ResultCollector.java``. Simulators that write a trace, such as descendants of pyss, store
the wait time in field 3 of SWF.
"""

from __future__ import annotations

import csv
import datetime as dt
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gridweave.errors import TraceError
from gridweave.scenarios.traces.text import short
from gridweave.scenarios.workload.table import MAX_TIME_MS, MAX_WIDTH, MS_PER_S, IntArray

NEVER = -1
"""Start and end of a job that never ran."""

_MAX_ID = 2**62


class RanJob(NamedTuple):
    """One line of a schedule: a job's nodes and its submit, start and end times."""

    job_id: int
    submit_ms: int
    width: int
    start_ms: int = NEVER
    end_ms: int = NEVER
    nodes: frozenset[int] | None = None  # node numbers, if the file lists them


@dataclass(frozen=True, eq=False)
class Schedule:
    """A schedule read from a file, with one row per line, in file order.

    Parameters
    ----------
    path : str
        The file that was read.
        kind : str
        The name of the file format.
    job_id, submit_ms, width, start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        Values from the file; `NEVER` for the start and end of a job that never ran.
    nodes : sequence of frozenset of int, or None
        The numbers of each job's nodes, if the format lists them.
    """

    path: str
    kind: str
    job_id: IntArray
    submit_ms: IntArray
    width: IntArray
    start_ms: IntArray
    end_ms: IntArray
    nodes: Sequence[frozenset[int] | None] | None = None

    def __len__(self) -> int:
        return len(self.job_id)


def read_schedule(path: str | Path) -> Schedule:
    """Read a schedule of gridweave (``jobs.csv``), Batsim, Alea, AccaSim or SWF, recognized by its first line.

    Raise TraceError if the file cannot be read, its format is unknown, or a line is invalid; the error names the line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise TraceError(path, "is not text in UTF-8; give a schedule") from None
    except (OSError, ValueError) as error:
        raise TraceError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    rows = [(number, line) for number, line in enumerate(lines, start=1) if line.strip() and line[0] not in ";#"]
    if not rows:
        raise TraceError(path, "has no jobs")
    for form in _FORMS:
        if form.is_of(rows[0][1]):
            return _schedule(path, form, rows)
    raise TraceError(path, "is in an unknown format; expected gridweave, Batsim, Alea, AccaSim or SWF (docs/check.md)")


class _Form(NamedTuple):
    """A file format; ``is_of`` recognizes its first line, and ``job`` converts a line's values, by column, to a job.

    In a file with headings, columns may be in any order, and ``a|b`` is a column with two possible names. `split`
    returns the values of a line, in file order.
    """

    name: str
    is_of: Callable[[str], bool]
    columns: tuple[str, ...]
    split: Callable[[str], list[str]]
    job: Callable[..., RanJob]
    has_headings: bool = True


def _column_indices(path: str | Path, form: _Form, first: tuple[int, str]) -> list[int]:
    """Return the index in the file of each column of the format, given the file's first line."""
    if not form.has_headings:
        return list(range(len(form.columns)))
    headings = [name.strip() for name in form.split(first[1])]
    indices = []
    for names in form.columns:
        present = [name for name in names.split("|") if name in headings]
        if not present:
            expected = " or ".join(names.split("|"))
            raise TraceError(path, f"has no column {expected}, as schedules of {form.name} do", line=first[0])
        indices.append(headings.index(present[0]))
    return indices


def _schedule(path: str | Path, form: _Form, rows: list[tuple[int, str]]) -> Schedule:
    """Parse all lines of a file."""
    indices = _column_indices(path, form, rows[0])
    jobs = []
    for number, line in rows[1:] if form.has_headings else rows:
        values: list[str] = []
        try:
            values = form.split(line)
            jobs.append(_checked(form.job(*[values[index] for index in indices])))
        except IndexError:
            problem = f"ends after {len(values)} values; a job of {form.name} has more"
            raise TraceError(path, problem, line=number) from None
        except ValueError as error:
            raise TraceError(path, f"is not a job as {form.name} writes it: {short(str(error))}", line=number) from None
    if not jobs:
        raise TraceError(path, "has no jobs")
    *numbers, nodes = zip(*jobs, strict=True)
    job_id, submit_ms, width, start_ms, end_ms = (np.array(column, np.int64) for column in numbers)
    listed_nodes = nodes if any(numbers is not None for numbers in nodes) else None
    return Schedule(str(path), form.name, job_id, submit_ms, width, start_ms, end_ms, listed_nodes)


def _checked(ran: RanJob) -> RanJob:
    """Return the job unchanged; raise ValueError if one of the job's numbers is invalid."""
    if not 0 <= ran.job_id <= _MAX_ID:
        raise ValueError(f"job id {ran.job_id} is not within 0 to {_MAX_ID}")
    if not 1 <= ran.width <= MAX_WIDTH:
        raise ValueError(f"{ran.width} nodes")
    if max(abs(ran.submit_ms), abs(ran.start_ms), abs(ran.end_ms)) > MAX_TIME_MS:
        raise ValueError("a time is too large")
    return ran


def _ms(text: str) -> int:
    """Convert seconds, possibly with a decimal comma, to milliseconds."""
    try:
        return round(float(text.replace(",", ".")) * MS_PER_S)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time in seconds") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _by_commas(line: str) -> list[str]:
    return _separated(line, ",")


def _by_tabs(line: str) -> list[str]:
    return _separated(line, "\t")


def _separated(line: str, by: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=by))
    except csv.Error:
        raise ValueError("it cannot be split into columns; check it for quotes and NUL characters") from None


_OWN = ("job_id", "submit_ms", "width", "start_ms", "end_ms", "fragments")


def _own(job_id: str, submit_ms: str, width: str, start_ms: str, end_ms: str, fragments: str) -> RanJob:
    if _whole(fragments) > 1:
        raise ValueError("in several fragments")
    return RanJob(_whole(job_id), _whole(submit_ms), _whole(width), _whole(start_ms), _whole(end_ms))


_BATSIM = (
    *("job_id|jobID", "submission_time", "requested_number_of_resources|requested_number_of_processors"),
    *("starting_time", "finish_time", "allocated_resources|allocated_processors"),
)


def _batsim(job_id: str, submit: str, width: str, start: str, end: str, nodes: str) -> RanJob:
    job = _whole(job_id.rpartition("!")[2]), _ms(submit), _whole(width)
    if not start:  # rejected
        return RanJob(*job)
    return RanJob(*job, _ms(start), _ms(end), _interval_set(nodes) if nodes.strip() else None)


def _interval_set(text: str) -> frozenset[int]:
    """Return the numbers in a set of intervals, as Batsim writes it.

    Examples
    --------
    >>> sorted(_interval_set("0-2 5"))
    [0, 1, 2, 5]
    """
    numbers: set[int] = set()
    for part in re.split(r"[\s,]+", text.strip()):
        first, _, last = part.partition("-")
        low, high = _whole(first), _whole(last or first)
        if high - low > MAX_WIDTH:
            raise ValueError(f"nodes {part}")
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


_ALEA = ("giID", "arrival", "wait", "runtime", "CPUs")


def _alea(job_id: str, submit: str, wait: str, run: str, width: str) -> RanJob:
    submit_ms = _ms(submit)
    start_ms = submit_ms + _ms(wait)
    return RanJob(_whole(job_id), submit_ms, _whole(width), start_ms, start_ms + _ms(run))


_ACCASIM = re.compile(
    r"(\d+);[^;]*;([\d-]+ [\d:]+)__.*__([\d-]+ [\d:]+);([\d-]+ [\d:]+);(\d+|NA);(\d+|NA);(?:\d+|NA);(?:\d+|NA);?"
)


def _accasim_values(line: str) -> list[str]:
    match = _ACCASIM.fullmatch(line.strip())
    return [] if match is None else list(match.groups())


def _accasim(job_id: str, submit: str, start: str, end: str, nodes: str, cores: str) -> RanJob:
    width = _whole(nodes if cores == "NA" else cores)
    return RanJob(_whole(job_id), _clock_ms(submit), width, _clock_ms(start), _clock_ms(end))


def _clock_ms(text: str) -> int:
    """Convert a local date and time to milliseconds since 1970 on the same clock."""
    try:
        return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()) * MS_PER_S
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a date and time") from None


_SWF_FIELDS = 18


def _swf_values(line: str) -> list[str]:
    return line.split()[:8]


def _swf(job_id: str, submit: str, wait: str, run: str, width: str, _cpu: str, _memory: str, requested: str) -> RanJob:
    submit_ms, wait_ms, run_ms = _ms(submit), _ms(wait), _ms(run)
    nodes = _whole(width) if _whole(width) > 0 else _whole(requested)
    if wait_ms < 0 or run_ms < 0:
        return RanJob(_whole(job_id), submit_ms, nodes)
    return RanJob(_whole(job_id), submit_ms, nodes, submit_ms + wait_ms, submit_ms + wait_ms + run_ms)


_FORMS = (
    _Form("gridweave", lambda line: line.startswith("job_id,submit_ms,start_ms,"), _OWN, _by_commas, _own),
    _Form("Batsim", lambda line: "starting_time" in line, _BATSIM, _by_commas, _batsim),
    _Form("Alea", lambda line: line.split("\t")[0].strip() == "giID", _ALEA, _by_tabs, _alea),
    _Form(
        "AccaSim",
        lambda line: _ACCASIM.fullmatch(line.strip()) is not None,
        ("id", "queued", "start", "end", "nodes", "cores"),
        _accasim_values,
        _accasim,
        has_headings=False,
    ),
    _Form(
        "SWF",
        lambda line: len(line.split()) == _SWF_FIELDS,
        ("job", "submit", "wait", "run", "processors", "cpu", "memory", "requested"),
        _swf_values,
        _swf,
        has_headings=False,
    ),
)
"""All formats; a file's first line determines its format."""

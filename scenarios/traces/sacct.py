"""Read Slurm's accounting data, as printed by ``sacct --parsable2``, as a workload (docs/traces.md, "Slurm").

Columns are identified by the header line, so their order does not matter. `_one_job` handles the differences between
versions of Slurm.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import io
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.errors import TraceError
from gridweave.scenarios.traces.convert import ConversionReport, Records, convert
from gridweave.scenarios.traces.shared_nodes import sharing_problem
from gridweave.scenarios.traces.text import MAX_TIME_S, MAX_WHOLE, open_trace, short, write_file
from gridweave.scenarios.workload.table import BoolArray, Workload
from gridweave.site.resources.chunks import MAX_AMOUNT

NEEDED = ("JobIDRaw", "Submit", "Start", "End", "State", "Timelimit", "NNodes")
"""Required columns; the optional ones are `FURTHER` and ``JobID``."""

FURTHER = ("Reason", "NodeList", "AllocCPUS", "ReqCPUS")

OF_CHUNKS = ("AllocTRES", "ReqTRES")
"""The columns with the cores, memory and GPUs of a job; at least one is required to convert by chunks."""

STATES_HEADER = ("job_id", "state", "reason", "nodes")
"""Header of the CSV file written next to a converted trace, for job data that the trace format cannot hold."""

MOST_TASKS = 4_000_001
"""Maximum size of a job array in Slurm."""

_UNKNOWN = ("", "None", "Unknown", "INVALID")
_LENGTH = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?", re.ASCII)
_TASKS = re.compile(r"\d+_\[([\d,:-]+)(?:%\d+)?\]", re.ASCII)
_SPAN = re.compile(r"(\d+)(?:-(\d+)(?::([1-9]\d*))?)?", re.ASCII)  # first, last, and the step from one to the next
_NOT_ENDED = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING")
_RAN_ONCE = ("REQUEUED", "RESIZING")
"""States of a run that ended although its job continued; the run used nodes if its line has start and end times."""

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)", re.ASCII)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)", re.ASCII)
_FREE_TEXT = ("JobName", "Comment", "AdminComment", "SystemComment", "WorkDir", "SubmitLine", "Extra")
"""Columns of text written by users, which may contain the separator."""

STEPS, NOT_ENDED = "steps of jobs", "jobs that have not ended"
"""Kinds of lines in an export that do not become jobs of the trace."""


class SlurmJob(NamedTuple):
    """A job in Slurm's accounting; times are in seconds since 1970 on the clock of the export, -1 if missing."""

    job_id: int
    submit_s: float
    start_s: float
    end_s: float
    estimate_s: float
    nodes: int
    state: str
    reason: str = ""
    node_list: str = ""
    cores: int = 0
    memory_mb: float = 0.0
    gpus: int = 0
    gpu_type: str = ""

    @property
    def never_started(self) -> bool:
        """Whether the job ended before it started."""
        return self.start_s < 0


def read_sacct(
    path: str | Path, *, nodes: int | None = None, by_cores: bool = False, chunks: bool = False
) -> tuple[Workload, ConversionReport, list[SlurmJob]]:
    """Read the output of ``sacct --parsable2 --format=...``, including its header, as a workload; plain, gzip or xz.

    Time zero is the first submission. `nodes` is the machine's size, which the file does not contain. Jobs cancelled
    before they started have a ``cancel_ms``; each run of a requeued job is a separate job. The returned list has every
    job that has ended, including jobs dropped from the workload; the report counts the lines that were left out. A
    job's width is its number of nodes or, with `by_cores`, cores; `nodes` is then the machine's number of cores. With
    `chunks`, a job asks for a chunk on each of its nodes, with an equal share of its cores, memory and GPUs.

    Raises TraceError, with the line number, if the file cannot be read, a column is missing, or a line is invalid, or
    if jobs shared nodes and neither `by_cores` nor `chunks` is true: on whole nodes, these jobs would have to wait for
    each other.
    """
    jobs, left_out = _jobs(path)
    if not jobs:
        raise TraceError(path, "contains no job that has ended")
    if by_cores and not any(job.cores for job in jobs):
        raise TraceError(path, "has no column AllocCPUS, the number of cores of a job; add it to the export")
    if chunks and not any(job.cores for job in jobs):
        raise TraceError(path, f"has no column {' or '.join(OF_CHUNKS)} with cores; add {','.join(OF_CHUNKS)}")
    problem = None if by_cores or chunks else sharing_problem(jobs, nodes)
    if problem is not None:
        right = "convert its cores, memory and GPUs (--chunks), or its cores (--by-cores, with --nodes in cores)"
        raise TraceError(path, f"{problem}; {right}")
    # Slurm lists jobs by id, but the later runs of a requeued job have later submit times.
    in_order = sorted(jobs, key=lambda job: (job.submit_s, job.job_id))
    first_s = in_order[0].submit_s
    cancelled = [job.never_started and job.state == "CANCELLED" for job in in_order]
    amounts, rounded = _amounts(in_order) if chunks else ({}, None)
    records = Records(
        job_id=np.array([job.job_id for job in in_order], np.int64),
        submit_s=np.array([job.submit_s - first_s for job in in_order]),
        run_s=np.array([-1.0 if job.never_started else job.end_s - job.start_s for job in in_order]),
        estimate_s=np.array([job.estimate_s for job in in_order], np.float64),
        width=np.array([job.cores if by_cores else job.nodes for job in in_order], np.int64),
        killed=np.array([job.state == "TIMEOUT" for job in in_order], np.bool_),
        cancel_s=np.where(cancelled, [job.end_s - first_s for job in in_order], -1.0),
        amounts=amounts,
        rounded=rounded,
    )
    workload, report = convert(path, records, nodes=nodes, start_unix_s=int(first_s))
    return workload, dataclasses.replace(report, left_out=left_out), jobs


def _amounts(jobs: list[SlurmJob]) -> tuple[dict[str, npt.NDArray[Any]], BoolArray]:
    """Return the share of each node in the cores, memory and GPUs of the jobs, and which shares are rounded up."""
    nodes = np.array([max(job.nodes, 1) for job in jobs], np.int64)
    cores, gpus = (np.array([getattr(job, name) for job in jobs], np.int64) for name in ("cores", "gpus"))
    memory_mb = np.ceil(np.array([job.memory_mb for job in jobs]) / nodes).astype(np.int64)
    amounts: dict[str, npt.NDArray[Any]] = {
        "cores": np.maximum(-(-cores // nodes), 1),
        "memory_mb": memory_mb,
        "gpus": -(-gpus // nodes),
        "gpu_type": np.array([job.gpu_type for job in jobs], np.str_),
    }
    return amounts, (cores % nodes != 0) | (gpus % nodes != 0)


def _jobs(path: str | Path) -> tuple[list[SlurmJob], dict[str, int]]:
    """Return the jobs of an export that have ended, and the number of all other lines by kind."""
    with open_trace(path) as stream:
        lines = stream.read().decode("utf-8", "replace").splitlines()
    rows = [(number, line.split("|")) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise TraceError(path, "has no jobs")
    headings = [name.strip() for name in rows[0][1]]
    missing = [name for name in NEEDED if name not in headings]
    if missing:
        command = f"sacct --parsable2 --format=JobID,{','.join((*NEEDED, *FURTHER))}"
        raise TraceError(path, f"has no column {missing[0]}; export it with: {command}", line=rows[0][0])
    jobs, left_out = [], Counter[str]()
    for number, values in rows[1:]:
        try:
            row = _row(headings, values)
            job, tasks = _one_job(row), _tasks(row.get("JobID", ""))
        except ValueError as error:
            raise TraceError(path, str(error), line=number) from None
        if isinstance(job, SlurmJob):
            jobs += [job] * tasks
        else:
            left_out[job] += tasks
    return _numbered(jobs), dict(sorted(left_out.items()))


def _row(headings: list[str], values: list[str]) -> dict[str, str]:
    """Return the values of a line by column; attribute extra separators to the only column of user text.

    Examples
    --------
    >>> _row(["JobIDRaw", "JobName", "State"], ["7", "a", "b", "FAILED"])["JobName"]
    'a|b'
    """
    more = len(values) - len(headings)
    free_text = [index for index, name in enumerate(headings) if name in _FREE_TEXT]
    if more > 0 and len(free_text) == 1:
        index = free_text[0]
        values = [*values[:index], "|".join(values[index : index + more + 1]), *values[index + more + 1 :]]
    elif more:
        expected = "leave out columns with user text, such as JobName and Comment" if more > 0 else "was it cut off?"
        raise ValueError(f"has {len(values)} values; the header has {len(headings)}; {expected}")
    return dict(zip(headings, values, strict=True))


def _tasks(job_id: str) -> int:
    """Return the number of jobs that a line stands for; array tasks that never started share one line.

    Examples
    --------
    >>> _tasks("11_[1-3,7%2]"), _tasks("11_[0-20:5]"), _tasks("11_4"), _tasks("11")
    (4, 5, 1, 1)
    """
    match = _TASKS.fullmatch(job_id)
    if match is None:
        return 1
    spans = _SPAN.findall(match[1])
    tasks = sum((int(last or first) - int(first)) // int(step or 1) + 1 for first, last, step in spans)
    if not 1 <= tasks <= MOST_TASKS:
        raise ValueError(f"JobID: {short(job_id)!r} is not an array of 1 to {MOST_TASKS:,} tasks")
    return tasks


def _numbered(jobs: list[SlurmJob]) -> list[SlurmJob]:
    """Give each job whose id is already in use a new id, above all existing ids."""
    seen: set[int] = set()
    last = max((job.job_id for job in jobs), default=0)
    numbered = []
    for job in jobs:
        last += job.job_id in seen
        numbered.append(job._replace(job_id=last) if job.job_id in seen else job)
        seen.add(job.job_id)
    return numbered


def _one_job(row: Mapping[str, str]) -> SlurmJob | str:
    """Convert a line to a job, or return `STEPS` or `NOT_ENDED`.

    Versions of Slurm differ. The start of a job that never started is ``Unknown``, ``None`` since 21.08, or its end
    time in old versions; its nodes are 0 or the number requested. The state of a cancelled job is followed by the user
    who cancelled it; a truncated word ends with a plus sign; a limit may be ``UNLIMITED`` or ``Partition_Limit``.
    """
    if not row["JobIDRaw"].isdecimal():
        return STEPS
    state = row["State"].split()[0].rstrip("+") if row["State"].strip() else ""
    if state in _NOT_ENDED or row["End"] in _UNKNOWN or (state in _RAN_ONCE and row["Start"] in _UNKNOWN):
        return NOT_ENDED
    start_s, end_s = _instant_s("Start", row["Start"]), _instant_s("End", row["End"])
    if state == "CANCELLED" and start_s == end_s:
        start_s = -1.0
    tres = _tres(next((row[name] for name in OF_CHUNKS if row.get(name)), ""))
    return SlurmJob(
        job_id=_whole("JobIDRaw", row["JobIDRaw"]),
        submit_s=_instant_s("Submit", row["Submit"], is_required=True),
        start_s=start_s,
        end_s=end_s,
        estimate_s=_length_s(row["Timelimit"]),
        nodes=_whole("NNodes", row["NNodes"]) or _whole("ReqNodes", row.get("ReqNodes", "")) or tres.nodes,
        state=state,
        reason="" if row.get("Reason", "") in _UNKNOWN else row["Reason"],
        node_list="" if row.get("NodeList", "").startswith("None") else row.get("NodeList", ""),
        cores=_whole("AllocCPUS", row.get("AllocCPUS", "")) or tres.cores or _whole("ReqCPUS", row.get("ReqCPUS", "")),
        memory_mb=tres.memory_mb,
        gpus=tres.gpus,
        gpu_type=tres.gpu_type,
    )


class _Tres(NamedTuple):
    """The trackable resources of a job: totals over all its nodes; 0 and "" if unknown."""

    cores: int = 0
    memory_mb: float = 0.0
    nodes: int = 0
    gpus: int = 0
    gpu_type: str = ""


def _tres(text: str) -> _Tres:
    """Parse Slurm's trackable resources; a job with GPUs of several types gets no type.

    Examples
    --------
    >>> _tres("billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=2")
    _Tres(cores=8, memory_mb=68719.476736, nodes=2, gpus=2, gpu_type='a100')
    """
    amounts = dict(pair.rpartition("=")[::2] for pair in text.split(",") if "=" in pair)
    types = {name.partition(":")[2]: _whole(name, amounts[name]) for name in amounts if name.startswith("gres/gpu:")}
    gpus = _whole("gres/gpu", amounts.get("gres/gpu", "")) or sum(types.values())
    return _Tres(
        cores=_whole("cpu", amounts.get("cpu", "")),
        memory_mb=_megabytes(amounts.get("mem", "")),
        nodes=_whole("node", amounts.get("node", "")),
        gpus=gpus,
        gpu_type=next(iter(types)) if len(types) == 1 and gpus else "",
    )


def _megabytes(text: str) -> float:
    """Parse memory as Slurm prints it, in MB if there is no unit; units are powers of 1024. Return MB of 10**6 bytes.

    Examples
    --------
    >>> _megabytes("4G"), _megabytes("")
    (4294.967296, 0.0)
    """
    if not text:
        return 0.0
    match = _MEMORY.fullmatch(text)
    memory_mb = float(match[1]) * 1024.0 ** "KMGTP".index(match[2] or "M") * 1024 / 10**6 if match else math.inf
    if not memory_mb <= MAX_AMOUNT:
        raise ValueError(f"mem: {short(text)!r} is not an amount of memory up to {MAX_AMOUNT} MB, such as 64G")
    return memory_mb


def _whole(name: str, text: str) -> int:
    """Parse a whole number; 0 if empty. Without ``--noconvert``, sacct prints 2048 as ``2K``.

    Examples
    --------
    >>> _whole("NNodes", "12"), _whole("NNodes", "2K"), _whole("NNodes", "1.50K"), _whole("NNodes", "")
    (12, 2048, 1536, 0)
    """
    if not text.strip():
        return 0
    match = _COUNT.fullmatch(text.strip())
    number = float(match[1]) * 1024 ** " KMGT".index(match[2] or " ") if match else math.nan
    if not number <= MAX_WHOLE or number != math.floor(number):
        raise ValueError(f"{name}: {short(text)!r} is not a whole number up to {MAX_WHOLE}, such as 12 or 2K")
    return int(number)


def _instant_s(name: str, text: str, *, is_required: bool = False) -> float:
    """Parse a date and time as seconds since 1970 on the clock of the export; -1 if unknown and not required."""
    if text in _UNKNOWN and not is_required:
        return -1.0
    try:
        return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{name}: {short(text)!r} is not a date and time, such as 2026-01-05T08:00:00") from None


def _length_s(text: str) -> float:
    """Convert a time limit printed by sacct to seconds; -1 if unknown or unlimited.

    Examples
    --------
    >>> _length_s("1-02:00:00"), _length_s("10:30"), _length_s("UNLIMITED")
    (93600.0, 630.0, -1.0)
    """
    match = _LENGTH.fullmatch(text)
    if match is None:
        if text in (*_UNKNOWN, "UNLIMITED", "Partition_Limit", "PartitionLimit"):
            return -1.0
        raise ValueError(f"Timelimit: {short(text)!r} is not a time limit, such as 1-02:00:00")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    length_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if length_s > MAX_TIME_S:
        raise ValueError(f"Timelimit: {short(text)!r} is longer than {MAX_TIME_S} s")
    return float(length_s)


def states_of(jobs: list[SlurmJob]) -> dict[str, int]:
    """Count jobs by final state, most frequent first."""
    return dict(Counter(job.state for job in jobs).most_common())


def write_states(jobs: list[SlurmJob], path: str | Path) -> None:
    """Write a CSV file with each job's final state, last reason for waiting, and nodes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(STATES_HEADER)
    writer.writerows((job.job_id, job.state, job.reason, job.node_list) for job in jobs)
    write_file(path, lambda stream: stream.write(text.getvalue().encode()))

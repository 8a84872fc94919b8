"""Convert the records of a trace to jobs that can be simulated; all conversion rules are in this file."""

from __future__ import annotations

import dataclasses
import datetime as dt
import zoneinfo
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError, TraceError
from gridweave.scenarios.traces.text import FloatArray, trace_stem
from gridweave.scenarios.workload.table import MAX_WIDTH, MS_PER_S, BoolArray, IntArray, Workload, repeated_id
from gridweave.site.resources.chunks import MAX_AMOUNT

MISSING = -1

# Reasons to drop a record; the first one that applies counts.
DROP_REASONS: Mapping[str, str] = {
    "width_not_positive": "width zero, negative or unknown",
    "wider_than_machine": "wider than the machine",
    "zero_run_time": "zero run time",
    "negative_run_time": "negative or unknown run time",
    "negative_submit_time": "negative submit time",
    "negative_estimate": "negative estimate",
    "wrong_amount": "cores, memory or GPUs negative or too large",
    "duplicate_job_id": "duplicate job id",
}


@dataclass(frozen=True, eq=False, slots=True)
class Records:
    """The jobs as listed in a trace file: one array of shape (n,) per property, in file order.

    Parameters
    ----------
    job_id : numpy.ndarray of int64
        Job numbers, >= 0.
    submit_s, run_s, estimate_s : numpy.ndarray of float64
        Submit times, run times and estimates in seconds; -1 if unknown.
    width : numpy.ndarray of int64
        Allocated processors or nodes; -1 if unknown.
    requested_width : numpy.ndarray of int64, optional
        Requested processors or nodes, used if `width` is unknown.
    killed : numpy.ndarray of bool, optional
        Jobs that were killed at their estimate according to the file.
    columns : mapping from str to numpy.ndarray, optional
        Optional columns of the workload.
    cancel_s : numpy.ndarray of float64, optional
        Cancel times of jobs that never started; -1 for other jobs.
    amounts : mapping from str to numpy.ndarray, optional
        What each chunk of a job asks for: ``cores``, ``memory_mb``, ``gpus`` and ``gpu_type``, as for
        `gridweave.scenarios.workload.chunks.with_amounts`. The widths then count chunks. Empty: whole nodes.
    rounded : numpy.ndarray of bool, optional
        Jobs with an amount that was rounded up to a whole number.
    """

    job_id: IntArray
    submit_s: FloatArray
    run_s: FloatArray
    estimate_s: FloatArray
    width: IntArray
    requested_width: IntArray | None = None
    killed: BoolArray | None = None
    columns: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    cancel_s: FloatArray | None = None
    amounts: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    rounded: BoolArray | None = None


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """Counts of the records that were changed or dropped while a trace was converted.

    Parameters
    ----------
    nodes : int
        Number of nodes of the machine, which limits the widths.
    dropped : dict from str to int
        Number of dropped records for every key of `DROP_REASONS`, in the same order, including zeros.
    cut : int
        Kept jobs whose run time was truncated to their estimate.
    estimates_filled : int
        Kept jobs without an estimate, for which the run time is used.
    widths_filled : int
        Kept jobs without allocated processors, for which the requested number is used.
    cancelled : int
        Kept jobs that were cancelled before they started.
    reordered : int
        Kept jobs that the file lists after a job submitted later; all kept jobs are sorted by submit time.
    left_out : mapping of str to int
        Number of lines that are not records of finished jobs, by kind.
    rounded : int
        Kept jobs with an amount of cores, memory or GPUs that was rounded up.
    """

    name: str
    nodes: int
    records: int
    kept: int
    dropped: dict[str, int]
    cut: int
    estimates_filled: int
    widths_filled: int
    cancelled: int = 0
    reordered: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    rounded: int = 0

    def lines(self) -> list[str]:
        """Format the report: one line with the number of kept jobs, then one line per kind of change."""
        machine = f"on {self.nodes:,} nodes" if self.nodes != 1 else "on 1 node"
        lines = [f"{self.name}: {self.kept:,} of {self.records:,} records kept, {machine}"]
        lines += [f"  left out {count:,}: {what}" for what, count in self.left_out.items()]
        lines += [f"  dropped {count:,}: {DROP_REASONS[reason]}" for reason, count in self.dropped.items() if count]
        notes = (
            (self.reordered, "listed after a job submitted later; the trace was sorted by submit time"),
            (self.cut, "run time cut at the estimate"),
            (self.estimates_filled, "estimate missing, run time used"),
            (self.widths_filled, "allocated processors missing, requested ones used"),
            (self.rounded, "cores, memory or GPUs of a chunk rounded up"),
            (self.cancelled, "cancelled before the start; if one starts in a simulation, it runs for its estimate"),
        )
        return lines + [f"  changed {count:,}: {what}" for count, what in notes if count]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain values for JSON."""
        return dataclasses.asdict(self)


def convert(
    path: str | Path,
    records: Records,
    *,
    nodes: int | None,
    stated: Sequence[int | None] = (),
    start_unix_s: int | None = None,
    timezone: str | None = None,
) -> tuple[Workload, ConversionReport]:
    """Convert the records of a trace to a workload named after the file.

    The rules follow section 3.6 of the thesis, with additions:

    - The width is the number of allocated processors or, if that is -1, of requested processors. A width of 0 is not
      missing: the job received no processors and is dropped.
    - An estimate of -1 or 0 counts as missing and is replaced with the run time. A record with any other negative
      estimate is dropped.
    - A run time above the estimate is truncated to the estimate, and the job is marked in `Workload.overran`.
    - Times are rounded to whole milliseconds (half to even) before they are compared.
    - A record whose job id was used before is dropped. SWF files that list the parts of an interrupted job put the
      summary of the whole job first.
    - Kept jobs are sorted by submit time, then by id. The report counts jobs that the file lists after a job submitted
      later.
    - A job that was cancelled before it started gets its estimate as its run time, and its cancel time in the column
      ``cancel_ms``.
    - The machine size is ``nodes`` or, if None, the first valid size ``stated`` in the file.
    - A record whose cores, memory or GPUs are negative or above `MAX_AMOUNT` is dropped.
    """
    if not len(records.job_id):
        raise TraceError(path, "contains no jobs; a trace has one record per line")
    nodes = _machine_size(path, nodes, stated)
    submit, run, estimate = (_to_ms(times) for times in (records.submit_s, records.run_s, records.estimate_s))
    cancel, waited = _cancels(records, submit)
    no_estimate = _fill_times(records, run, estimate, waited)
    width, no_width = _widths(records)
    keep, dropped = _select(records, submit, run, estimate, width, nodes)
    cut = run > estimate
    late = _listed_late(submit, keep)
    masks = {"estimates_filled": no_estimate, "widths_filled": no_width, "cancelled": waited, "reordered": late}
    masks |= {} if records.rounded is None else {"rounded": records.rounded}
    report = _report(path, nodes, keep, dropped, masks | {"cut": cut})
    if not report.kept:
        raise TraceError(path, f"no job is left of {report.records:,} records: {_reasons(dropped)}")
    rows = _in_order(records.job_id, submit, keep)
    killed = cut if records.killed is None else cut | (records.killed & (run == estimate) & ~no_estimate)
    workload = Workload(
        job_id=records.job_id[rows],
        submit_ms=submit[rows],
        width=width[rows],
        estimate_ms=estimate[rows],
        run_ms=np.minimum(run, estimate)[rows],
        overran=killed[rows],
        columns={name: values[rows] for name, values in _columns(records, cancel, waited & keep).items()},
        nodes=nodes,
        name=trace_stem(path),
        start_unix_s=start_unix_s,
        timezone=timezone,
    )
    return _with_chunks(workload, records, rows), report


def _with_chunks(workload: Workload, records: Records, rows: IntArray | slice) -> Workload:
    """Add the chunks of the kept jobs, if the trace has amounts."""
    if not records.amounts:
        return workload
    from gridweave.scenarios.workload.chunks import with_amounts

    return with_amounts(workload, **{name: values[rows] for name, values in records.amounts.items()})


def _report(
    path: str | Path, nodes: int, keep: BoolArray, dropped: dict[str, int], changed: Mapping[str, BoolArray]
) -> ConversionReport:
    """Build the report; ``changed`` maps each kind of change to the changed records."""
    counts: dict[str, Any] = {name: int((mask & keep).sum()) for name, mask in changed.items()}
    return ConversionReport(trace_stem(path), nodes, len(keep), int(keep.sum()), dropped, **counts)


def _fill_times(records: Records, run: IntArray, estimate: IntArray, waited: BoolArray) -> BoolArray:
    """Fill in missing run times of cancelled jobs and missing estimates; return where estimates were missing."""
    no_estimate: BoolArray = (records.estimate_s == MISSING) | (estimate == 0)
    np.copyto(run, estimate, where=waited)
    np.copyto(estimate, run, where=no_estimate)
    return no_estimate


def _columns(records: Records, cancel: IntArray, waited: BoolArray) -> dict[str, npt.NDArray[np.generic]]:
    """Return the optional columns, and ``cancel_ms`` if a kept job was cancelled."""
    return dict(records.columns) | ({"cancel_ms": cancel} if waited.any() else {})


def _cancels(records: Records, submit: IntArray) -> tuple[IntArray, BoolArray]:
    """Return the cancel times (-1 for jobs not cancelled before their start), and a mask of the cancelled jobs."""
    if records.cancel_s is None:
        return np.full(len(submit), MISSING), np.zeros(len(submit), np.bool_)
    cancel = _to_ms(records.cancel_s)
    waited = cancel > submit
    return np.where(waited, cancel, MISSING), waited


def _widths(records: Records) -> tuple[IntArray, BoolArray]:
    """Return the allocated widths, with missing widths replaced by requested widths, and a mask of missing widths."""
    if records.requested_width is None:
        return records.width, np.zeros(len(records.width), np.bool_)
    missing = records.width == MISSING
    return np.where(missing, records.requested_width, records.width), missing


def _machine_size(path: str | Path, nodes: int | None, stated: Sequence[int | None]) -> int:
    """Return ``nodes`` or, if None, the first valid size stated in the file; raise TraceError if there is none."""
    check_nodes(nodes)
    if nodes is not None:
        return nodes
    for size in stated:
        if size is not None and 1 <= size <= MAX_WIDTH:
            return size
    problem = (
        "does not state the machine's size (SWF: MaxProcs or MaxNodes; MuPSiE: Machine Size); give it with --nodes"
    )
    raise TraceError(path, problem)


def _to_ms(seconds: FloatArray) -> IntArray:
    return np.rint(seconds * MS_PER_S).astype(np.int64)


def _select(
    records: Records, submit: IntArray, run: IntArray, estimate: IntArray, width: IntArray, nodes: int
) -> tuple[BoolArray, dict[str, int]]:
    """Return a mask of the kept records, and the number of dropped records by reason."""
    keep = np.ones(len(submit), np.bool_)
    dropped = dict.fromkeys(DROP_REASONS, 0)

    def drop(reason: str, wrong: BoolArray) -> None:
        dropped[reason] += int((wrong & keep).sum())
        keep[wrong] = False

    drop("width_not_positive", width <= 0)
    drop("wider_than_machine", width > nodes)
    drop("zero_run_time", run == 0)
    drop("negative_run_time", run < 0)
    drop("negative_submit_time", submit < 0)
    drop("negative_estimate", estimate < 0)
    for name, amount in records.amounts.items():
        if name != "gpu_type":
            drop("wrong_amount", (amount < 0) | (amount > MAX_AMOUNT))
    drop("duplicate_job_id", _repeats(records.job_id, keep))
    return keep, dropped


def _repeats(job_id: IntArray, keep: BoolArray) -> BoolArray:
    """Return a mask of the kept records with the same job id as an earlier kept record."""
    repeats = np.zeros_like(keep)
    rows = np.flatnonzero(keep)
    if repeated_id(job_id[rows]) is not None:
        repeats[rows] = True
        repeats[rows[np.unique(job_id[rows], return_index=True)[1]]] = False
    return repeats


def _listed_late(submit: IntArray, keep: BoolArray) -> BoolArray:
    """Return a mask of the kept records that come after a kept record with a later submit time."""
    late = np.zeros_like(keep)
    rows = np.flatnonzero(keep)
    late[rows] = submit[rows] < np.maximum.accumulate(submit[rows])
    return late


def _in_order(job_id: IntArray, submit: IntArray, keep: BoolArray) -> IntArray | slice:
    """Return the kept rows by submit time and job id; a full slice, without a copy, if all rows are kept and sorted."""
    step = np.diff(submit)
    if keep.all() and ((step > 0) | ((step == 0) & (np.diff(job_id) > 0))).all():
        return slice(None)
    rows = np.flatnonzero(keep)
    return rows[np.lexsort((job_id[rows], submit[rows]))]


def _reasons(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {DROP_REASONS[reason]}" for reason, count in dropped.items() if count)


def check_nodes(nodes: int | None) -> None:
    """Raise OptionError if a machine size is out of range; None is allowed and means the size stated in the file."""
    if nodes is not None and not 1 <= nodes <= MAX_WIDTH:
        raise OptionError("nodes", f"{nodes} is not the size of a machine; give 1 to {MAX_WIDTH} nodes")


def known_zone(name: str | None, offset_s: int | None = None) -> str | None:
    """Return the IANA name of a time zone that Python knows, or None.

    If the name is unknown, the offset east of Greenwich is used, provided that it is a whole number of hours.
    """
    candidates = [name.strip()] if name else []
    if offset_s is not None and offset_s % 3600 == 0:
        candidates.append(f"Etc/GMT{-offset_s // 3600:+d}")  # POSIX counts westward
    for candidate in candidates:
        try:
            return zoneinfo.ZoneInfo(candidate).key
        except (OSError, ValueError, zoneinfo.ZoneInfoNotFoundError):
            continue
    return None


def local_datetime(unix_s: int, timezone: str | None) -> dt.datetime | None:
    """Return a Unix time in a time zone, or in UTC if the zone is unknown; None for times after the year 9999."""
    zone = known_zone(timezone)
    try:
        moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=unix_s)
        return moment.astimezone(zoneinfo.ZoneInfo(zone)) if zone else moment
    except (OverflowError, ValueError):
        return None

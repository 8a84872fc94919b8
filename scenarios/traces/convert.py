"""From the records of a trace to the jobs that can be simulated: the one place of the conversion rules."""

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

MISSING = -1

# Why a record is dropped, in the order in which the reasons are tried: a record counts under the first that holds.
DROP_REASONS: Mapping[str, str] = {
    "width_not_positive": "width zero, negative or unknown",
    "wider_than_machine": "wider than the machine",
    "zero_run_time": "zero run time",
    "negative_run_time": "negative or unknown run time",
    "negative_submit_time": "negative submit time",
    "negative_estimate": "negative estimate",
    "duplicate_job_id": "job id that another job has",
}


@dataclass(frozen=True, eq=False, slots=True)
class Records:
    """What a trace file says of its jobs, one array per property, all of shape (n,) and in the order of the file.

    Parameters
    ----------
    job_id : numpy.ndarray of int64
        Job numbers, >= 0.
    submit_s, run_s, estimate_s : numpy.ndarray of float64
        Submit times, run times and estimates in seconds; -1 for one that is not known.
    width : numpy.ndarray of int64
        Allocated processors or nodes; -1 for one that is not known.
    requested_width : numpy.ndarray of int64, optional
        Requested processors or nodes, used where `width` is not known.
    killed : numpy.ndarray of bool, optional
        Jobs of which the file says that they were killed at their estimate.
    columns : mapping from str to numpy.ndarray, optional
        Optional columns of the workload.
    cancel_s : numpy.ndarray of float64, optional
        When a job was cancelled that never started; -1 for all others.
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


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What became of the records of a trace.

    Parameters
    ----------
    nodes : int
        Nodes of the machine that the widths were held against.
    dropped : dict from str to int
        Records dropped, by reason: every key of `DROP_REASONS`, in that order, zeros included.
    cut : int
        Kept jobs whose run time was longer than their estimate and was cut there.
    estimates_filled : int
        Kept jobs without an estimate, which were given their run time.
    widths_filled : int
        Kept jobs without allocated processors, which were given the requested ones.
    cancelled : int
        Kept jobs that never started, since they were cancelled.
    reordered : int
        Kept jobs that the file lists after a job submitted later; all kept jobs were then sorted by submit time.
    left_out : mapping of str to int
        Lines of the file that are no records of jobs that have ended, by what they are.
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

    def lines(self) -> list[str]:
        """Return the report as lines for people: what was kept, then one line for each thing that happened."""
        machine = f"on {self.nodes:,} nodes" if self.nodes != 1 else "on 1 node"
        lines = [f"{self.name}: {self.kept:,} of {self.records:,} records kept, {machine}"]
        lines += [f"  left out {count:,}: {what}" for what, count in self.left_out.items()]
        lines += [f"  dropped {count:,}: {DROP_REASONS[reason]}" for reason, count in self.dropped.items() if count]
        notes = (
            (self.reordered, "listed after a job submitted later; the trace was sorted by submit time"),
            (self.cut, "run time cut at the estimate"),
            (self.estimates_filled, "estimate missing, run time taken"),
            (self.widths_filled, "allocated processors missing, requested ones taken"),
            (self.cancelled, "cancelled before the start; if one starts in a simulation, it runs for its estimate"),
        )
        return lines + [f"  changed {count:,}: {what}" for count, what in notes if count]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain values, for JSON."""
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
    """Turn the records of a trace into a workload, named after its file.

    The rules are those of thesis section 3.6 with what the design adds:

    - The width is the number of allocated processors, or the requested one where that is -1. A width of 0 is not
      missing: such a job got nothing and is dropped.
    - An estimate that is -1 or 0 is missing: the run time stands in. Any other negative one drops the record.
    - The run time is cut at the estimate, and the job is marked in `Workload.overran`.
    - Times are rounded to whole milliseconds (a half to the even one) before anything is compared.
    - A job id that was taken before drops the record. SWF files that list the parts of an interrupted job put the
      summary of the whole job first.
    - The jobs that are kept are sorted by submit time, those of one instant by their id. The report counts the jobs
      that the file lists after one submitted later.
    - A job that never started, since it was cancelled after its submission, has its estimate for its run time, and that
      instant in the column ``cancel_ms``.
    - The machine has the nodes that the caller says, or else the first usable number that the file has ``stated``.
    """
    if not len(records.job_id):
        raise TraceError(path, "contains no jobs; a trace has one record per line")
    nodes = _machine_size(path, nodes, stated)
    submit, run, estimate = (_to_ms(times) for times in (records.submit_s, records.run_s, records.estimate_s))
    cancel, waited = _cancels(records, submit)
    no_estimate = _fill_times(records, run, estimate, waited)
    width, no_width = _widths(records)
    keep, dropped = _select(records.job_id, submit, run, estimate, width, nodes)
    cut = run > estimate
    late = _listed_late(submit, keep)
    masks = {"estimates_filled": no_estimate, "widths_filled": no_width, "cancelled": waited, "reordered": late}
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
    return workload, report


def _report(
    path: str | Path, nodes: int, keep: BoolArray, dropped: dict[str, int], changed: Mapping[str, BoolArray]
) -> ConversionReport:
    """Return the report, with how many of the kept jobs were changed in which way."""
    counts: dict[str, Any] = {name: int((mask & keep).sum()) for name, mask in changed.items()}
    return ConversionReport(trace_stem(path), nodes, len(keep), int(keep.sum()), dropped, **counts)


def _fill_times(records: Records, run: IntArray, estimate: IntArray, waited: BoolArray) -> BoolArray:
    """Let run time and estimate stand in for each other where one is not known; return where estimates are missing."""
    no_estimate: BoolArray = (records.estimate_s == MISSING) | (estimate == 0)
    np.copyto(run, estimate, where=waited)
    np.copyto(estimate, run, where=no_estimate)
    return no_estimate


def _columns(records: Records, cancel: IntArray, waited: BoolArray) -> dict[str, npt.NDArray[np.generic]]:
    """Return the optional columns, with the cancellations if any job that is kept has one."""
    return dict(records.columns) | ({"cancel_ms": cancel} if waited.any() else {})


def _cancels(records: Records, submit: IntArray) -> tuple[IntArray, BoolArray]:
    """Return when jobs were cancelled that never started, -1 for the others, and which those are."""
    if records.cancel_s is None:
        return np.full(len(submit), MISSING), np.zeros(len(submit), np.bool_)
    cancel = _to_ms(records.cancel_s)
    waited = cancel > submit
    return np.where(waited, cancel, MISSING), waited


def _widths(records: Records) -> tuple[IntArray, BoolArray]:
    """Return the allocated widths, with the requested ones where they are missing, and where that is."""
    if records.requested_width is None:
        return records.width, np.zeros(len(records.width), np.bool_)
    missing = records.width == MISSING
    return np.where(missing, records.requested_width, records.width), missing


def _machine_size(path: str | Path, nodes: int | None, stated: Sequence[int | None]) -> int:
    """Return the size of the machine, from the caller or else from the file."""
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
    job_id: IntArray, submit: IntArray, run: IntArray, estimate: IntArray, width: IntArray, nodes: int
) -> tuple[BoolArray, dict[str, int]]:
    """Return which records are kept, and how many are dropped by which reason."""
    keep = np.ones(len(job_id), np.bool_)
    dropped = dict.fromkeys(DROP_REASONS, 0)

    def drop(reason: str, wrong: BoolArray) -> None:
        dropped[reason] = int((wrong & keep).sum())
        keep[wrong] = False

    drop("width_not_positive", width <= 0)
    drop("wider_than_machine", width > nodes)
    drop("zero_run_time", run == 0)
    drop("negative_run_time", run < 0)
    drop("negative_submit_time", submit < 0)
    drop("negative_estimate", estimate < 0)
    drop("duplicate_job_id", _repeats(job_id, keep))
    return keep, dropped


def _repeats(job_id: IntArray, keep: BoolArray) -> BoolArray:
    """Return which of the records still kept have the job id of an earlier one of them."""
    repeats = np.zeros_like(keep)
    rows = np.flatnonzero(keep)
    if repeated_id(job_id[rows]) is not None:
        repeats[rows] = True
        repeats[rows[np.unique(job_id[rows], return_index=True)[1]]] = False
    return repeats


def _listed_late(submit: IntArray, keep: BoolArray) -> BoolArray:
    """Return which of the kept records stand after a kept record that was submitted later."""
    late = np.zeros_like(keep)
    rows = np.flatnonzero(keep)
    late[rows] = submit[rows] < np.maximum.accumulate(submit[rows])
    return late


def _in_order(job_id: IntArray, submit: IntArray, keep: BoolArray) -> IntArray | slice:
    """Return the rows that are kept, by submit time and job id; all of them, as they stand, take no copies."""
    step = np.diff(submit)
    if keep.all() and ((step > 0) | ((step == 0) & (np.diff(job_id) > 0))).all():
        return slice(None)
    rows = np.flatnonzero(keep)
    return rows[np.lexsort((job_id[rows], submit[rows]))]


def _reasons(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {DROP_REASONS[reason]}" for reason, count in dropped.items() if count)


def check_nodes(nodes: int | None) -> None:
    """Refuse a machine size that a caller gave and that no machine has; with None the file is to tell it."""
    if nodes is not None and not 1 <= nodes <= MAX_WIDTH:
        raise OptionError("nodes", f"{nodes} is not the size of a machine; give 1 to {MAX_WIDTH} nodes")


def known_zone(name: str | None, offset_s: int | None = None) -> str | None:
    """Return the IANA name of a time zone that Python knows; None if neither name nor offset is of use.

    An offset east of Greenwich of whole hours stands in for a name that is not known.
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
    """Return an instant where the machine stands, in UTC if the zone is not known; None beyond the year 9999."""
    zone = known_zone(timezone)
    try:
        moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=unix_s)
        return moment.astimezone(zoneinfo.ZoneInfo(zone)) if zone else moment
    except (OverflowError, ValueError):
        return None

"""Pure functions that change a workload's load, extract a range of its jobs, or split wide jobs.

Scaled times are rounded to whole milliseconds, half to even. Rounding is monotonic, so a run time still does not exceed
its estimate; jobs whose submit times become equal are ordered by id.
"""

from __future__ import annotations

import math

import numpy as np

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.workload.table import MAX_TIME_MS, MAX_WIDTH, MS_PER_S, IntArray, Workload

_MAX_PARTS = 10**7


def shrink(workload: Workload, factor: float) -> Workload:
    """Multiply every submit time by a factor (thesis section 3.7, shrinking factor).

    Everything else stays the same; a factor below 1 increases the load. Submit times are relative to the workload's
    time zero, so the first job moves too, unless it is submitted at time zero.

    Parameters
    ----------
    workload : Workload
        The jobs.
    factor : float
        Finite and > 0.

    Raises
    ------
    OptionError
        If the factor is invalid, or a submit time would become too large.
    """
    submit_ms = _scaled(workload.submit_ms, factor)
    order = np.lexsort((workload.job_id, submit_ms))
    shrunk = workload.take(order, submit_ms=submit_ms[order])
    return with_cancels_moved(shrunk, submit_ms[order] - workload.submit_ms[order])


def stretch(workload: Workload, factor: float) -> Workload:
    """Multiply every run time and every estimate by a factor (thesis section 3.7, run time extension).

    Submit times do not change; a factor above 1 increases the load. Scaled times are at least 1 ms.

    Parameters
    ----------
    workload : Workload
        The jobs.
    factor : float
        Finite and > 0.

    Raises
    ------
    OptionError
        If the factor is invalid, or a time would become too large.
    """
    run_ms, estimate_ms = (np.maximum(_scaled(times, factor), 1) for times in (workload.run_ms, workload.estimate_ms))
    return workload.replace(run_ms=run_ms, estimate_ms=estimate_ms)


def _scaled(times_ms: IntArray, factor: float) -> IntArray:
    """Multiply times by a factor and round them; raise OptionError if the factor is invalid or a result too large."""
    if not (math.isfinite(factor) and factor > 0):
        raise OptionError("factor", f"{factor} cannot be used; give a number greater than 0")
    longest = int(times_ms.max(initial=0))
    if longest * factor > MAX_TIME_MS:
        raise OptionError("factor", f"{factor} times {longest} ms is more than {MAX_TIME_MS} ms; give a smaller factor")
    scaled: IntArray = np.rint(times_ms * factor).astype(np.int64)
    return scaled


def cut(
    workload: Workload,
    *,
    first: int | None = None,
    last: int | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> Workload:
    """Return the jobs in a range of job numbers or submit times.

    Time zero and `Workload.start_unix_s` move to the start of the second in which the first of these jobs is submitted,
    so every job keeps its date and time of day to the millisecond.

    Parameters
    ----------
    workload : Workload
        The jobs.
    first, last : int, optional
        Numbers of the first and the last job to keep, in submit order and starting at 1. They default to the first and
        the last job of the workload. If `last` is greater than the number of jobs, it means the last job.
    start_ms, end_ms : int, optional
        Keep the jobs with ``start_ms <= submit_ms < end_ms``. Cannot be combined with job numbers.

    Raises
    ------
    OptionError
        If the limits contradict each other, or no job is left.
    """
    by_number = first is not None or last is not None
    if by_number and (start_ms is not None or end_ms is not None):
        raise OptionError("first, last", "cannot be given together with times; cut by job number or by time")
    if by_number:
        rows = _rows_by_number(len(workload), 1 if first is None else first, len(workload) if last is None else last)
    else:
        rows = _rows_by_time(workload, 0 if start_ms is None else start_ms, end_ms)
    part = workload.take(np.arange(len(workload))[rows])
    shift_s = int(part.submit_ms[0]) // MS_PER_S
    start_unix_s = None if workload.start_unix_s is None else workload.start_unix_s + shift_s
    moved = part.replace(submit_ms=part.submit_ms - shift_s * MS_PER_S, start_unix_s=start_unix_s)
    return with_cancels_moved(moved, -shift_s * MS_PER_S)


def with_cancels_moved(workload: Workload, by_ms: IntArray | int) -> Workload:
    """Shift the cancel times by ``by_ms``, the same amount by which the submit times were shifted."""
    if "cancel_ms" not in workload.columns:
        return workload
    cancel_ms = np.asarray(workload.columns["cancel_ms"], np.int64)
    moved = np.where(cancel_ms >= 0, cancel_ms + by_ms, cancel_ms)
    return workload.replace(columns={**workload.columns, "cancel_ms": moved})


def _rows_by_number(n: int, first: int, last: int) -> slice:
    if first < 1:
        raise OptionError("first", f"{first} is not a job number; the first job is number 1")
    if first > n:
        raise OptionError("first", f"{first} is beyond the last job, which is number {n}")
    if last < first:
        raise OptionError("last", f"{last} is before the first job to keep, {first}; give {first} or more")
    return slice(first - 1, last)


def _rows_by_time(workload: Workload, start_ms: int, end_ms: int | None) -> slice:
    if end_ms is not None and end_ms <= start_ms:
        raise OptionError("end_ms", f"{end_ms / 1000:,g} s is not after the start, {start_ms / 1000:,g} s")
    beyond = MAX_TIME_MS + 1  # keeps every argument within int64
    begin = int(np.searchsorted(workload.submit_ms, max(0, min(start_ms, beyond))))
    end = len(workload) if end_ms is None else int(np.searchsorted(workload.submit_ms, max(0, min(end_ms, beyond))))
    if begin >= end:
        span = (
            f"jobs come at {workload.submit_ms[0]} to {workload.submit_ms[-1]} ms" if len(workload) else "there is none"
        )
        raise OptionError("start_ms", f"no job is submitted from {start_ms} ms on and before the end; {span}")
    return slice(begin, end)


def split(workload: Workload, max_width: int | IntArray) -> Workload:
    """Split jobs that are too wide into parts with the same total area (thesis section 7.2).

    A job of width w becomes ceil(w / max_width) jobs: as many as possible of the maximum width, and one for the rest.
    Each part has the job's submit time, run time, estimate and optional columns, and is scheduled independently.

    All jobs get new ids: part k = 0, 1, ... of job i gets ``i * split_stride(workload, max_width) + k``. So ``id //
    stride`` is the original id, and the order of jobs does not change. The stride is a power of ten, so the last digits
    of an id are the part number.

    Parameters
    ----------
    workload : Workload
        The jobs.
    max_width : int or numpy.ndarray of int64, shape (n,)
        Maximum width of a job, >= 1; an array has one value per job, e.g. the size of its home site.

    Returns
    -------
    Workload
        The same object if no job is too wide.

    Raises
    ------
    OptionError
        If `max_width` is less than 1.
    InputError
        If a new id would not fit in 64 bits.
    """
    stride = split_stride(workload, max_width)
    if stride == 1:
        return workload
    largest = int(workload.job_id.max())
    if largest > (np.iinfo(np.int64).max - stride + 1) // stride:
        raise InputError(f"{workload.name}: job {largest}: id times {stride} is beyond 64 bits; renumber the jobs")
    parts = _parts(workload, max_width)
    if parts.sum() > _MAX_PARTS:
        least = np.min(max_width)
        raise OptionError("max_width", f"{least} makes {parts.sum()} jobs, over {_MAX_PARTS}; give a greater width")
    rows = np.repeat(np.arange(len(workload)), parts)
    part = np.arange(len(rows)) - np.repeat(np.cumsum(parts) - parts, parts)
    most = np.broadcast_to(max_width, len(workload))[rows]
    width = np.minimum(workload.width[rows] - part * most, most)
    return workload.take(rows, job_id=workload.job_id[rows] * stride + part, width=width)


def split_stride(workload: Workload, max_width: int | IntArray) -> int:
    """Return the factor by which `split` multiplies job ids.

    Parameters
    ----------
    workload : Workload
        The jobs.
    max_width : int or numpy.ndarray of int64, shape (n,)
        As in `split`.

    Returns
    -------
    int
        The smallest power of ten that is at least the number of parts of the widest job; 1 if no job is split.

    Raises
    ------
    OptionError
        If `max_width` is less than 1.
    """
    most = int(_parts(workload, max_width).max(initial=1))
    return 10 ** len(str(most - 1)) if most > 1 else 1


def _parts(workload: Workload, max_width: int | IntArray) -> IntArray:
    """Return the number of parts of each job."""
    widest = min(max_width, MAX_WIDTH) if isinstance(max_width, int) else max_width  # no job is wider than that
    if np.min(widest, initial=MAX_WIDTH) < 1:
        raise OptionError("max_width", f"{np.min(widest)} is not a width; give 1 or more")
    return -(-workload.width // widest)

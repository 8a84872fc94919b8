"""Progress of running jobs: the one mechanism for slowing, pausing, moving and resuming them.

A job's work is its length in milliseconds at rate 1, in fixed point with 16 binary digits. A running job has a rate, an
integer multiple of 2**-16 (`RATE_ONE` is rate 1; rate 0 pauses the job). Work progresses in whole milliseconds without
rounding, so the remaining work is exact after any number of rate changes. There are only two roundings: a rate is
rounded to the nearest 2**-16, and a job ends at the first whole millisecond at which its work is done.

The longest time (``MAX_TIME_MS``, 10**14) is less than 2**63 of these units, so it fits into 64 bits; with more binary
digits it would not. A slowdown of 1.3 is exact to one part in a hundred thousand.

Running jobs are rows of a `WORK` table, and their end times are in a heap (`Ends`): earliest first, ties by job id.
When a job's rate changes, its end time moves within the heap; a paused job is not in the heap. If rates never change,
pass None instead of the table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.state import NEVER_MS

WorkTable = npt.NDArray[np.void]

RATE_ONE = 1 << 16
"""Rate 1, at which a millisecond of work takes a millisecond of wall time."""


@kernel_part
def work_of(length_ms: Int) -> Int:
    """Return the work of a job that takes ``length_ms`` at rate 1."""
    return length_ms * RATE_ONE


@kernel_part
def rate_of(slowdown: float) -> Int:
    """Return the rate, at least 2**-16, of a job that takes ``slowdown`` (at least 1.0) times as long as at rate 1."""
    return max(1, round(RATE_ONE / slowdown))


@kernel_part
def work_left(left: Int, rate: Int, since_ms: Int, now_ms: Int) -> Int:
    """Return the work remaining at ``now_ms`` if ``left`` remained at ``since_ms`` and the rate has not changed."""
    return max(0, left - rate * (now_ms - since_ms))


@kernel_part
def work_done_ms(left: Int, rate: Int, now_ms: Int) -> Int:
    """Return the first millisecond at which the remaining work is done, or `NEVER_MS` if the rate is 0."""
    if left <= 0:
        return now_ms
    if rate == 0:
        return NEVER_MS
    return now_ms + (left + rate - 1) // rate


@kernel_part
def late_end_ms(left: Int, rate: Int, now_ms: Int) -> Int:
    """Return the new expected end of a late job, assuming that it continues at its rate, or at rate 1 if it is paused.

    ``left`` is the job's remaining work according to its estimate (docs/grid.md, "Late ends").
    """
    return work_done_ms(left, rate if rate > 0 else RATE_ONE, now_ms)


WORK = np.dtype(
    [(name, np.int64) for name in ("left", "rate", "since_ms", "end_ms", "job_id", "place")],
    align=True,
)
"""A running job: the work ``left`` at ``since_ms``, its ``rate`` since then, and its end time ``end_ms`` at that rate
(`NEVER_MS` if it is paused). ``place`` is its index in the heap of end times, or `NOT_THERE`."""

END = np.dtype([("end_ms", np.int64), ("job_id", np.int64), ("row", np.int64)], align=True)
"""A heap entry: a job's end time, its id, and its row in the `WORK` table."""

NOT_RUNNING = np.int64(-1)
"""The rate of a job that has not started yet or has ended."""

NOT_THERE = np.int64(-1)


class Ends(NamedTuple):
    """A heap of the end times of running jobs.

    Attributes
    ----------
    heap : numpy.ndarray of END, shape (capacity,)
    size : numpy.ndarray of int64, shape (1,)
        Number of entries in use.
    """

    heap: npt.NDArray[np.void]
    size: npt.NDArray[np.int64]


def no_ends(capacity: int) -> Ends:
    """Return an empty heap with this capacity."""
    return Ends(np.zeros(capacity, END), np.zeros(1, np.int64))


NOT_YET = np.int64(-1)
"""The start or end time of a simulated job that has not started or ended yet."""

_CLOCK = np.dtype(
    [(name, np.int64) for name in ("submitted", "cancelled", "changed", "woken_ms", "stirred")], align=True
)


class RunArrays(NamedTuple):
    """The jobs of one simulation, in order of submission.

    Attributes
    ----------
    clock : numpy.ndarray of records, shape (1,)
        The progress of the simulation: the numbers of jobs ``submitted``, cancellations handled (``cancelled``) and
        node changes applied (``changed``); ``woken_ms``, when any other change needs a scheduling pass (`NEVER_MS`:
        no change); ``stirred``, whether flows have started or ended since link bandwidth was last shared out.
    run_ms : numpy.ndarray of int64, shape (n,)
        Actual run times on a single site; hidden from the sites and the grid.
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        Filled in by the simulation; `NOT_YET` at first.
    ends : Ends
    """

    clock: npt.NDArray[np.void]
    run_ms: npt.NDArray[np.int64]
    start_ms: npt.NDArray[np.int64]
    end_ms: npt.NDArray[np.int64]
    ends: Ends


def new_run(run_ms: npt.NDArray[np.int64], capacity: int) -> RunArrays:
    """Return a new simulation whose heap can hold ``capacity`` end times."""
    start_ms, end_ms = np.full((2, len(run_ms)), NOT_YET)
    clock = np.zeros(1, _CLOCK)
    clock["woken_ms"] = NEVER_MS
    return RunArrays(clock, np.ascontiguousarray(run_ms), start_ms, end_ms, no_ends(capacity))


def no_work(rows: int) -> npt.NDArray[np.void]:
    """Return a `WORK` table with this number of rows and no running jobs."""
    work = np.zeros(rows, WORK)
    work["rate"], work["end_ms"], work["place"] = NOT_RUNNING, NEVER_MS, NOT_THERE
    return work


@kernel_part
def set_rate(job: Any, rate: Int, now_ms: Int) -> None:
    """Change the rate of a job (0 pauses it), and update its end time.

    Parameters
    ----------
    job : record
        A record with the int64 fields ``left``, ``rate``, ``since_ms`` and ``end_ms``.
    rate, now_ms : int
    """
    job.left = work_left(job.left, job.rate, job.since_ms, now_ms)
    job.rate = rate
    job.since_ms = now_ms
    job.end_ms = min(NEVER_MS, work_done_ms(job.left, rate, now_ms))


@kernel
def begin_work(ends: Ends, work: WorkTable, row: Int, job_id: Int, left: Int, rate: Int, now_ms: Int) -> None:
    """Start the job in a row of the table, or continue it with a new amount of work.

    Parameters
    ----------
    ends : Ends
    work : numpy.ndarray of WORK
    row : int
    job_id : int
        Breaks ties between equal end times.
    left : int
        Remaining work (`work_of`).
    rate, now_ms : int
    """
    job = work[row]
    job.job_id = job_id
    job.left = left
    job.rate = rate
    job.since_ms = now_ms
    job.end_ms = min(NEVER_MS, work_done_ms(left, rate, now_ms))
    place_end(ends, work, row)


@kernel
def expect_work(ends: Ends, work: WorkTable, row: Int, job_id: Int, left: Int, now_ms: Int, end_ms: Int) -> None:
    """Start or continue a job that runs in time slices; the caller has computed its end time.

    Parameters
    ----------
    ends : Ends
    work : numpy.ndarray of WORK
    row, job_id : int
    left : int
        Remaining work (`work_of`).
    now_ms : int
    end_ms : int
        When the work will be done (`gridweave.site.kernels.turns`).
    """
    job = work[row]
    job.job_id = job_id
    job.left = left
    job.rate = RATE_ONE
    job.since_ms = now_ms
    job.end_ms = end_ms
    place_end(ends, work, row)


@kernel
def change_rate(ends: Ends, work: WorkTable, row: Int, rate: Int, now_ms: Int) -> None:
    """Change the rate of the job in a row (0 pauses it), and move its end time in the heap."""
    set_rate(work[row], rate, now_ms)
    place_end(ends, work, row)


@kernel
def stop_work(ends: Ends, work: WorkTable, row: Int) -> None:
    """Stop the job in a row, at its end or earlier, and remove its end time from the heap."""
    work[row].rate = NOT_RUNNING
    work[row].end_ms = NEVER_MS
    place_end(ends, work, row)


@kernel
def place_end(ends: Ends, work: WorkTable, row: Int) -> None:
    """Insert or move a row's end time in the heap; remove it from the heap if it is `NEVER_MS`."""
    job = work[row]
    if job.place != NOT_THERE:
        take_end(ends, work, job.place)
    if job.end_ms < NEVER_MS:
        push_end(ends, work, job.end_ms, job.job_id, row)


@kernel_part
def first_end_ms(ends: Ends) -> Int:
    """Return the earliest end time, or `NEVER_MS` if the heap is empty."""
    return ends.heap[0].end_ms if ends.size[0] > 0 else NEVER_MS


@kernel_part
def push_end(ends: Ends, work: WorkTable | None, end_ms: Int, job_id: Int, row: Int) -> None:
    """Insert an end time into the heap; ``work`` is None if rates never change."""
    ends.size[0] += 1
    _sift_up(ends.heap, work, ends.size[0] - 1, end_ms, job_id, row)


@kernel_part
def pop_end(ends: Ends, work: WorkTable | None) -> Int:
    """Remove the earliest end time from the heap; return its row. ``work`` is None if rates never change."""
    row = ends.heap[0].row
    take_end(ends, work, 0)
    return row


@kernel_part
def take_end(ends: Ends, work: WorkTable | None, hole: Int) -> None:
    """Remove the entry at index ``hole`` from the heap.

    The hole moves down to a leaf along the smaller children, and the last entry moves up from there. The last entry
    nearly always belongs near the leaves, so this needs fewer comparisons than sifting it down.
    """
    heap = ends.heap
    if work is not None:
        work[heap[hole].row].place = NOT_THERE
    count = ends.size[0] - 1
    ends.size[0] = count
    child = 2 * hole + 2
    while child <= count:
        if child == count or _before(heap[child - 1].end_ms, heap[child - 1].job_id, heap[child]):
            child -= 1
        _move(heap, work, child, hole)
        hole = child
        child = 2 * hole + 2
    if hole < count:
        last = heap[count]
        _sift_up(heap, work, hole, last.end_ms, last.job_id, last.row)


@kernel_part
def _sift_up(
    heap: npt.NDArray[np.void], work: WorkTable | None, child: Int, end_ms: Int, job_id: Int, row: Int
) -> None:
    """Insert an end time on the path from index ``child`` up to the root."""
    while child > 0:
        parent = (child - 1) >> 1
        if not _before(end_ms, job_id, heap[parent]):
            break
        _move(heap, work, parent, child)
        child = parent
    heap[child].end_ms = end_ms
    heap[child].job_id = job_id
    heap[child].row = row
    if work is not None:
        work[row].place = child


@kernel_part
def _before(end_ms: Int, job_id: Int, other: Any) -> bool:
    """Whether an end time precedes another heap entry; ties by job id."""
    return end_ms < other.end_ms or (end_ms == other.end_ms and job_id < other.job_id)


@kernel_part
def _move(heap: npt.NDArray[np.void], work: WorkTable | None, origin: Int, target: Int) -> None:
    """Move a heap entry to another index."""
    heap[target].end_ms = heap[origin].end_ms
    heap[target].job_id = heap[origin].job_id
    heap[target].row = heap[origin].row
    if work is not None:
        work[heap[target].row].place = target

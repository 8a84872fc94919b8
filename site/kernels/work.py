"""Running work: the one mechanism for whatever slows, pauses, moves or resumes a running job.

A job has work: its length in milliseconds at rate 1, in fixed point with 16 binary digits. A running job has a rate, a
whole number of 2**-16 (`RATE_ONE` is rate 1, 0 pauses it). Work is done by whole milliseconds and nothing is rounded as
it is: what is left after any number of changes is exact, whatever their order. There are two roundings, both here: a
rate is the nearest 2**-16 to what it was worked out as, and a job ends at the first whole millisecond by which its work
is done.

The longest time of the project (``MAX_TIME_MS``, 10**14) is less than 2**63 of these units, so 64 bits hold it all, but
would not with more digits. A slowdown of 1.3 is kept to within one part in a hundred thousand.

What runs stands in a table of `WORK`, and its ends in a heap (`Ends`): each end once, the earliest first, at one
instant by job id. A job whose rate changes moves within the heap; one that stands still is not in it. Where no rate
ever changes the heap does without the table: give None for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.state import NEVER_MS

WorkTable = npt.NDArray[np.void]

RATE_ONE = 1 << 16
"""Rate 1, at which a millisecond of work takes a millisecond."""


@kernel_part
def work_of(length_ms: Int) -> Int:
    """Return the work of a job that runs this long at rate 1."""
    return length_ms * RATE_ONE


@kernel_part
def rate_of(slowdown: float) -> Int:
    """Return the rate of a job that takes ``slowdown`` times as long, a float of at least 1; at least 2**-16."""
    return max(1, round(RATE_ONE / slowdown))


@kernel_part
def work_left(left: Int, rate: Int, since_ms: Int, now_ms: Int) -> Int:
    """Return what is left of the work ``left`` of instant ``since_ms`` after running at this rate until now."""
    return max(0, left - rate * (now_ms - since_ms))


@kernel_part
def work_done_ms(left: Int, rate: Int, now_ms: Int) -> Int:
    """Return the first millisecond by which this work is done at this rate; NEVER_MS at rate 0, if any is left."""
    if left <= 0:
        return now_ms
    if rate == 0:
        return NEVER_MS
    return now_ms + (left + rate - 1) // rate


@kernel_part
def late_end_ms(left: Int, rate: Int, now_ms: Int) -> Int:
    """Return when a job is expected to end that was to have ended by now: it goes on at its rate, or at 1 if that is 0.

    ``left`` is its work as of now, by its estimate (docs/grid.md, "Late ends").
    """
    return work_done_ms(left, rate if rate > 0 else RATE_ONE, now_ms)


WORK = np.dtype(
    [(name, np.int64) for name in ("left", "rate", "since_ms", "end_ms", "job_id", "place")],
    align=True,
)
"""What runs: the work that was ``left`` at ``since_ms``, the ``rate`` since then, and the ``end_ms`` at that rate
(`NEVER_MS` if it stands still). ``place`` is where that end stands in the heap, `NOT_THERE` if it does not."""

END = np.dtype([("end_ms", np.int64), ("job_id", np.int64), ("row", np.int64)], align=True)
"""An end in the heap, and the row of what ends."""

NOT_RUNNING = np.int64(-1)
"""The rate of what has not begun, or is over."""

NOT_THERE = np.int64(-1)


class Ends(NamedTuple):
    """A heap of the ends of what runs.

    Attributes
    ----------
    heap : numpy.ndarray of END, shape (room,)
    size : numpy.ndarray of int64, shape (1,)
        How many entries are in use.
    """

    heap: npt.NDArray[np.void]
    size: npt.NDArray[np.int64]


def no_ends(room: int) -> Ends:
    """Return an empty heap with room for so many ends."""
    return Ends(np.zeros(room, END), np.zeros(1, np.int64))


NOT_YET = np.int64(-1)
"""The start or end of a job of a simulation that has not started, or ended."""

_CLOCK = np.dtype(
    [(name, np.int64) for name in ("submitted", "cancelled", "changed", "woken_ms", "stirred")], align=True
)


class RunArrays(NamedTuple):
    """The jobs of one simulation, in the order of submission.

    Attributes
    ----------
    clock : numpy.ndarray of records, shape (1,)
        How many jobs have been ``submitted``, how many entries of the cancellations are dealt with, and how many of the
        changes of nodes (``changed``); at which instant something else has changed that a pass is to see (`NEVER_MS` if
        nothing has), and whether flows have begun or ended since links were shared last.
    run_ms : numpy.ndarray of int64, shape (n,)
        Run times on one site, which sites and grid do not know.
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        Filled in; `NOT_YET` at first.
    ends : Ends
    """

    clock: npt.NDArray[np.void]
    run_ms: npt.NDArray[np.int64]
    start_ms: npt.NDArray[np.int64]
    end_ms: npt.NDArray[np.int64]
    ends: Ends


def new_run(run_ms: npt.NDArray[np.int64], room: int) -> RunArrays:
    """Return a simulation at its beginning, with room for the ends of so many jobs."""
    start_ms, end_ms = np.full((2, len(run_ms)), NOT_YET)
    clock = np.zeros(1, _CLOCK)
    clock["woken_ms"] = NEVER_MS
    return RunArrays(clock, np.ascontiguousarray(run_ms), start_ms, end_ms, no_ends(room))


def no_work(rows: int) -> npt.NDArray[np.void]:
    """Return a table of so many rows in which nothing runs, of `WORK`."""
    work = np.zeros(rows, WORK)
    work["rate"], work["end_ms"], work["place"] = NOT_RUNNING, NEVER_MS, NOT_THERE
    return work


@kernel_part
def set_rate(job: Any, rate: Int, now_ms: Int) -> None:
    """Let a job go on at another rate, 0 to pause it; its end moves.

    Parameters
    ----------
    job : record
        Any with the int64 fields ``left``, ``rate``, ``since_ms`` and ``end_ms``.
    rate, now_ms : int
    """
    job.left = work_left(job.left, job.rate, job.since_ms, now_ms)
    job.rate = rate
    job.since_ms = now_ms
    job.end_ms = min(NEVER_MS, work_done_ms(job.left, rate, now_ms))


@kernel
def begin_work(ends: Ends, work: WorkTable, row: Int, job_id: Int, left: Int, rate: Int, now_ms: Int) -> None:
    """Let what stands in a row begin, or go on with other work than it had.

    Parameters
    ----------
    ends : Ends
    work : numpy.ndarray of WORK
    row : int
    job_id : int
        Settles which of several comes first that end at one instant.
    left : int
        Its work (`work_of`).
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
    """Let what stands in a row begin or go on in turns, in which its work is done at an instant that is worked out.

    Parameters
    ----------
    ends : Ends
    work : numpy.ndarray of WORK
    row, job_id : int
    left : int
        What is left of its work (`work_of`).
    now_ms : int
    end_ms : int
        When that will be done (`gridweave.site.kernels.turns`).
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
    """Let what runs in a row go on at another rate, 0 to pause it; its end moves in the heap."""
    set_rate(work[row], rate, now_ms)
    place_end(ends, work, row)


@kernel
def stop_work(ends: Ends, work: WorkTable, row: Int) -> None:
    """Take what runs in a row out, at its end or before."""
    work[row].rate = NOT_RUNNING
    work[row].end_ms = NEVER_MS
    place_end(ends, work, row)


@kernel
def place_end(ends: Ends, work: WorkTable, row: Int) -> None:
    """Bring the heap up to date with the end of a row."""
    job = work[row]
    if job.place != NOT_THERE:
        take_end(ends, work, job.place)
    if job.end_ms < NEVER_MS:
        push_end(ends, work, job.end_ms, job.job_id, row)


@kernel_part
def first_end_ms(ends: Ends) -> Int:
    """Return the earliest end, `NEVER_MS` if there is none."""
    return ends.heap[0].end_ms if ends.size[0] > 0 else NEVER_MS


@kernel_part
def push_end(ends: Ends, work: WorkTable | None, end_ms: Int, job_id: Int, row: Int) -> None:
    """Put an end into the heap; ``work`` is None where no rate ever changes."""
    ends.size[0] += 1
    _sift_up(ends.heap, work, ends.size[0] - 1, end_ms, job_id, row)


@kernel_part
def pop_end(ends: Ends, work: WorkTable | None) -> Int:
    """Take the first end out of the heap; return its row. ``work`` is None where no rate ever changes."""
    row = ends.heap[0].row
    take_end(ends, work, 0)
    return row


@kernel_part
def take_end(ends: Ends, work: WorkTable | None, hole: Int) -> None:
    """Take the end at a place out of the heap.

    The hole goes down to a leaf along the smaller children, and the last end goes up from there: it nearly always
    belongs near the leaves, so this takes fewer comparisons than a sift down.
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
    """Put an end where it belongs on the way from a place up to the root."""
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
    """Whether an end comes before another: earlier, or at the same instant with the smaller job id."""
    return end_ms < other.end_ms or (end_ms == other.end_ms and job_id < other.job_id)


@kernel_part
def _move(heap: npt.NDArray[np.void], work: WorkTable | None, origin: Int, target: Int) -> None:
    """Move an entry of the heap to another place."""
    heap[target].end_ms = heap[origin].end_ms
    heap[target].job_id = heap[origin].job_id
    heap[target].row = heap[origin].row
    if work is not None:
        work[heap[target].row].place = target

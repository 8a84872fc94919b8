"""The arrays on which a site's kernels operate, and functions that insert and remove jobs.

A site's state is a `SiteState` and, if its discipline plans, a `Plan`. Both are named tuples of numpy arrays, which
compiled code can use directly and Python code can read by name. Only these functions and the passes change them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, Ints, Record, Records, kernel, kernel_part

NEVER_MS = np.int64(2**62)
"""A time that is never reached."""

UNPLACED_MS = np.int64(-1)
"""Value of ``promised_ms`` for a job without a promise."""

GONE = np.int64(-1)
"""Marks a queue position whose job has been started by the current pass."""

JOB = np.dtype(
    [
        ("key", np.float64),
        ("submit_ms", np.int64),
        ("job_id", np.int64),
        ("width", np.int64),
        ("estimate_ms", np.int64),
        ("promised_ms", np.int64),
        ("limits", np.int64),
    ],
    align=True,
)
"""A site's job; its row in the table of jobs is called its *slot*.

The queue is sorted by ``key``. ``promised_ms`` is the planned or reserved start or, with EASY and slack, the earliest
shadow time computed while the job was the head. In ``limits``, bit k is set if limit k applies.
"""

RUNNING = np.dtype([("end_ms", np.int64), ("slot", np.int64)], align=True)
"""A running job; ``end_ms`` is its estimated end."""

BLOCK = np.dtype([("first", np.int64), ("narrowest", np.int64)], align=True)
"""A block of the queue: its first position, and a lower bound on the widths of its jobs (blocks.py)."""

BLOCK_PLACES = 64
"""Number of queue positions in a new block."""

WIDTH_CLASSES = 32
"""Number of width classes for which a block stores a bound on the jobs' length."""

RESERVATION = np.dtype(
    [("start_ms", np.int64), ("end_ms", np.int64), ("width", np.int64), ("reservation_id", np.int64)], align=True
)
"""An accepted advance reservation."""

COUNTERS = np.dtype(
    [
        ("nodes", np.int64),
        ("free", np.int64),
        ("n_waiting", np.int64),
        ("n_running", np.int64),
        ("n_started", np.int64),
        ("n_reservations", np.int64),
        ("n_blocks", np.int64),
        # Results that a pass can reuse: see queueing.py and planning.py.
        ("stale", np.int64),
        ("first_new", np.int64),
        ("narrowest", np.int64),
        ("limit_ms", np.int64),
        ("extra", np.int64),
        ("next_start_ms", np.int64),
    ],
    align=True,
)
"""A site's counters: total and ``free`` nodes, the used length of each array, and results of the last pass."""

# Typed, because Numba would compile a kernel again for a plain literal.
HEAD = np.int64(0)
"""The first position in the queue."""

NO_PLACE = np.int64(-1)
"""The result of a search without a match."""

TAKE, GIVE_BACK = np.int64(1), np.int64(-1)
"""Whether an occupation is added to or removed from the profiles."""

NO_LIMITS = np.int64(0)
"""The bit mask of a job without limits."""


FRESH, COMPRESS, REPLAN = 0, 1, 2
"""How much of the last pass is still valid: all; all, but jobs may move into new gaps; or nothing."""


class JobQueue(Protocol):
    """The arrays of a queue, in the form common to sites and grids; see `SiteState`."""

    @property
    def counters(self) -> Records:
        """The counters, in a single row."""

    @property
    def jobs(self) -> Records:
        """The jobs by slot."""

    @property
    def waiting(self) -> Ints:
        """Slots of the waiting jobs, in queue order."""


class SiteState(NamedTuple):
    """The jobs and nodes of a site.

    Attributes
    ----------
    counters : numpy.ndarray of COUNTERS, shape (1,)
    jobs : numpy.ndarray of JOB, shape (slots,)
    waiting : numpy.ndarray of int64, shape (slots,)
        Slots of the waiting jobs in queue order: ascending (key, submit time, job id).
    running : numpy.ndarray of RUNNING, shape (capacity,)
        The running jobs, ascending by (estimated end, job id).
    started : numpy.ndarray of int64, shape (capacity,)
        Slots of the jobs started by the last pass, in the order in which they started.
    blocks : numpy.ndarray of BLOCK, shape (capacity,)
        Index for a long queue (blocks.py).
    shortest_ms : numpy.ndarray of int64, shape (capacity, WIDTH_CLASSES)
        Lower bound on the estimates of the jobs in each block and width class.
    """

    counters: npt.NDArray[np.void]
    jobs: npt.NDArray[np.void]
    waiting: npt.NDArray[np.int64]
    running: npt.NDArray[np.void]
    started: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.void]
    shortest_ms: npt.NDArray[np.int64]


class Plan(NamedTuple):
    """A site's planned occupation.

    Attributes
    ----------
    step_ms, step_free : numpy.ndarray of int64, shape (profiles, capacity)
        Availability profiles (profile.py): row 0 for the nodes, and one more row for each limit with a cap.
    n_steps : numpy.ndarray of int64, shape (profiles,)
    total : numpy.ndarray of int64, shape (profiles,)
        Capacity of each profile when no job is running.
    reservations : numpy.ndarray of RESERVATION, shape (capacity,)
        Accepted reservations, ascending by (start, reservation id).
    """

    step_ms: npt.NDArray[np.int64]
    step_free: npt.NDArray[np.int64]
    n_steps: npt.NDArray[np.int64]
    total: npt.NDArray[np.int64]
    reservations: npt.NDArray[np.void]


def empty_state(nodes: int, *, slots: int, most_running: int | None = None) -> SiteState:
    """Return the state of an idle site, with capacity for ``slots`` waiting and running jobs.

    At most ``most_running`` jobs can run at the same time; by default, one on each node.
    """
    running = min(nodes if most_running is None else most_running, slots)
    blocks = 2 * (slots // BLOCK_PLACES + 1)
    state = SiteState(
        counters=np.zeros(1, COUNTERS),
        jobs=np.zeros(slots, JOB),
        waiting=np.zeros(slots, np.int64),
        running=np.zeros(running, RUNNING),
        started=np.zeros(running, np.int64),
        blocks=np.zeros(blocks, BLOCK),
        shortest_ms=np.zeros((blocks, WIDTH_CLASSES), np.int64),
    )
    counters = state.counters[0]
    counters["nodes"] = counters["free"] = nodes
    counters["stale"] = REPLAN
    counters["first_new"] = counters["narrowest"] = counters["next_start_ms"] = NEVER_MS
    return state


def empty_plan(state: SiteState, total: npt.NDArray[np.int64], *, reservations: int = 0) -> Plan:
    """Return an empty plan with capacity for all jobs in a site's state.

    Parameters
    ----------
    state : SiteState
    total : numpy.ndarray of int64, shape (profiles,)
        The number of nodes, and the capacity of each limit with a cap.
    reservations : int
        Maximum number of reservations at any time.
    """
    # Each occupation adds at most two steps, and the first step starts now.
    steps = 2 * (len(state.jobs) + reservations) + 2
    return Plan(
        step_ms=np.zeros((len(total), steps), np.int64),
        step_free=np.zeros((len(total), steps), np.int64),
        n_steps=np.zeros(len(total), np.int64),
        total=total,
        reservations=np.zeros(reservations, RESERVATION),
    )


@kernel_part
def comes_before(a: Record, b: Record) -> bool:
    """Whether job a is ahead of job b in the queue: by key, then submit time, then job id."""
    if a.key != b.key:
        return a.key < b.key
    if a.submit_ms != b.submit_ms:
        return a.submit_ms < b.submit_ms
    return a.job_id < b.job_id


@kernel_part
def enqueue(state: JobQueue, slot: Int) -> Int:
    """Insert a slot's job, whose row must be filled in, into the queue; return its position.

    The caller must ensure that the array has capacity.
    """
    job = state.jobs[slot]
    place = state.counters[0].n_waiting
    if place > 0 and comes_before(job, state.jobs[state.waiting[place - 1]]):
        place = place_before(state, job, HEAD, place - 1)
    enqueue_at(state, slot, place)
    return place


@kernel_part
def enqueue_at(state: JobQueue, slot: Int, place: Int) -> None:
    """Insert a slot's job into the queue at index `place`, which must be consistent with `comes_before`."""
    counters = state.counters[0]
    waiting = state.waiting
    job = state.jobs[slot]
    job.promised_ms = UNPLACED_MS
    # Indexing slices avoids the check for negative indices and is several times as fast.
    source, target = waiting[place : counters.n_waiting], waiting[place + 1 : counters.n_waiting + 1]
    for i in range(len(source) - 1, -1, -1):
        target[i] = source[i]
    waiting[place] = slot
    counters.n_waiting += 1
    counters.first_new = min(counters.first_new, place)
    counters.narrowest = min(counters.narrowest, job.width)


@kernel_part
def place_before(state: JobQueue, job: Record, first: Int, last: Int) -> Int:
    """Return the first position from ``first`` on whose job belongs behind ``job``, or else ``last``."""
    while first < last:
        middle = (first + last) >> 1
        if comes_before(job, state.jobs[state.waiting[middle]]):
            last = middle
        else:
            first = middle + 1
    return first


@kernel
def dequeue(state: JobQueue, place: Int) -> None:
    """Remove the job at index `place` from the queue."""
    counters = state.counters[0]
    counters.n_waiting -= 1
    if place < counters.first_new < NEVER_MS:
        counters.first_new -= 1
    for i in range(place, counters.n_waiting):
        state.waiting[i] = state.waiting[i + 1]


@kernel_part
def begin(state: SiteState, place: Int, now_ms: Int) -> None:
    """Start the job at index `place` of the queue: allocate its nodes and add it to the running jobs.

    Its queue position is only marked until `drop_started`, so that a loop over the queue can continue.
    """
    counters = state.counters[0]
    slot = state.waiting[place]
    running, job_id = state.running, state.jobs[slot].job_id
    end_ms = now_ms + state.jobs[slot].estimate_ms
    i = counters.n_running
    while i > 0 and (
        running[i - 1].end_ms > end_ms
        or (running[i - 1].end_ms == end_ms and state.jobs[running[i - 1].slot].job_id > job_id)
    ):
        running[i] = running[i - 1]
        i -= 1
    running[i].end_ms = end_ms
    running[i].slot = slot
    counters.n_running += 1
    counters.free -= state.jobs[slot].width
    state.started[counters.n_started] = slot
    counters.n_started += 1
    state.waiting[place] = GONE


@kernel_part
def leave_running(state: SiteState, place: Int) -> Int:
    """Remove the job at index `place` from the running jobs; return its slot."""
    counters = state.counters[0]
    running = state.running
    slot = running[place].slot
    counters.n_running -= 1
    for i in range(place, counters.n_running):
        running[i] = running[i + 1]
    return slot


@kernel_part
def drop_started(state: JobQueue, first: Int) -> None:
    """Close the gaps left by `begin` in the queue; all gaps must be at or after position ``first``."""
    counters = state.counters[0]
    waiting = state.waiting
    place = first
    gaps = 0
    while gaps < counters.n_started:
        slot = waiting[place]
        waiting[place - gaps] = slot
        gaps += slot == GONE
        place += 1
    move_down(waiting, place, counters.n_waiting, gaps)
    counters.n_waiting -= gaps


@kernel_part
def move_down(waiting: Ints, begin: Int, end: Int, by: Int) -> None:
    """Move the entries from `begin` to `end` towards the front by ``by`` positions."""
    source, target = waiting[begin:end], waiting[begin - by : end - by]
    for i in range(len(source)):
        target[i] = source[i]


@kernel_part
def running_place(state: SiteState, end_ms: Int, job_id: Int) -> Int:
    """Return the index of a running job, found by estimated end and id; ``NO_PLACE`` if the job is not running."""
    running = state.running
    low = 0
    left = state.counters[0].n_running
    while left > 0:
        half = (left + 1) >> 1
        # Both outcomes are equally likely; in this form, the compiler can use a conditional move instead of a branch.
        low += half if running[low + half - 1].end_ms < end_ms else 0
        left -= half
    while low < state.counters[0].n_running and running[low].end_ms == end_ms:
        if state.jobs[running[low].slot].job_id == job_id:
            return low
        low += 1
    return NO_PLACE


@kernel_part
def finish(state: SiteState, place: Int) -> None:
    """Remove the job at index `place` from the running jobs, and free its nodes."""
    slot = leave_running(state, place)
    state.counters[0].free += state.jobs[slot].width

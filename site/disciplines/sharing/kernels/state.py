"""The arrays of a site with shared nodes, its queue, and its list of running jobs (docs/sharing.md).

A node has one *cell* per hardware thread, core by core. A running job's cells form a chain in ascending order. A job's
*slot* is its row in the table of jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.kernels.state import GONE, NEVER_MS
from gridweave.site.kernels.work import RATE_ONE

SHORT, MEDIUM, LONG = 0, 1, 2
"""Job classes by length."""

CLASSES = 3

CPU, NETWORK, DISK = 0, 1, 2
"""The resource that limits a job's speed."""

EMPTY, NO_CELL = np.int64(-1), np.int64(-1)
"""Values that mark a hardware thread without a job, and the end of a chain of cells."""

BLOCKED = np.int64(-2)
"""Marks a cell that nodes of this kind do not have."""

UNKNOWN_ROW = np.int64(-1)
"""The row of a job with unknown resource needs, which never shares its nodes."""

MIXED, LEAVING = np.int64(-1), np.int64(-2)
"""Values of ``one_kind``: the job's nodes are of several kinds; some are out of service, so no job may join it."""

SHARED_JOB = np.dtype(
    [
        # The fields that a pass over the queue reads: 64 bytes.
        *((name, np.int64) for name in ("submit_ms", "job_id", "width", "estimate_ms")),
        *((name, np.int64) for name in ("job_class", "tested", "cores", "waits")),
        # Other fields set at submission.
        *((name, np.int64) for name in ("bound", "cpu_kind", "row")),
        *((name, np.float64) for name in ("cpu", "network", "disk", "memory")),
        # Fields of a running job.
        *((name, np.int64) for name in ("start_ms", "left", "rate", "since_ms", "end_ms")),
        *((name, np.int64) for name in ("first_cell", "n_partners", "one_kind", "version", "changed", "promised_ms")),
        ("slowdown", np.float64),
        # The effects of the match being tested.
        *((name, np.int64) for name in ("tried", "trial_end_ms")),
        ("trial_slowdown", np.float64),
    ],
    align=True,
)
"""The record of a job.

``waits`` is 1 if the job is in the queue, else 0. ``left`` is the rest of its estimated work (work.py) at ``since_ms``,
and ``end_ms`` its estimated end. ``changed`` is 1 if the slot is in the list of changes, perhaps because of an earlier
job in the same slot. A running job's ``version`` grows whenever the jobs on its nodes change. A waiting job can never
join a running job whose version is at most the waiting job's ``tested``.
"""

KIND = np.dtype(
    [("cores", np.int64), ("threads", np.int64), ("hyperthreaded", np.int64), ("memory", np.float64)], align=True
)
"""A kind of node."""

COUNTERS = np.dtype(
    [
        *((name, np.int64) for name in ("lanes", "threads", "idle")),
        *((name, np.int64) for name in ("n_queue", "n_running", "n_started", "n_changed", "n_affected")),
        *((name, np.int64) for name in ("waiting_width", "version", "open_version", "n_open", "newest_open")),
        # Statistics of all submissions and starts so far, for aging and prediction.
        *((name, np.int64) for name in ("n_starts", "wait_sum_ms", "n_seen", "n_short_seen")),
        *((name, np.int64) for name in ("first_submit_ms", "last_submit_ms", "short_work", "other_work")),
        # Values of the current pass.
        *((name, np.int64) for name in ("head", "limit_ms", "extra", "packed_running", "n_counted", "n_steps")),
        *((name, np.float64) for name in ("base", "relief_all", "relief_short", "relief_other")),
    ],
    align=True,
)
"""A site's counters, such as ``lanes`` (cells per node), ``threads`` (cells per core) and ``idle`` (idle nodes).

``idle`` only counts nodes in service.
"""

SEARCHES = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("searches", "waiting", "long_enough", "narrow_enough", "fitting", "matchable", "bearable"),
            *("matches", "selected", "running_matches"),
        )
    ],
    align=True,
)
"""Statistics of the searches for a match (the paper's Table 5), as in `SharedUse`."""


class SharedSite(NamedTuple):
    """The jobs and nodes of a site.

    Attributes
    ----------
    counters : numpy.ndarray of COUNTERS, shape (1,)
    searches : numpy.ndarray of SEARCHES, shape (1,)
    jobs : numpy.ndarray of SHARED_JOB, shape (slots,)
    waiting : numpy.ndarray of int64, shape (3, slots)
        Slots of the waiting jobs in each class, by submit time, ties by job id.
    n_waiting : numpy.ndarray of int64, shape (3,)
        Number of waiting jobs in each class.
    queue : numpy.ndarray of int64, shape (slots,)
        Slots in queue order, rebuilt in each pass; ``GONE`` replaces a job that the pass has started.
    packed_ms, relief : numpy.ndarray of float64, shape (slots,)
        R and the running sum of 1/R at each index of the queue (docs/sharing.md, "Profit").
    running : numpy.ndarray of int64, shape (capacity,)
        Slots of the running jobs, in the order in which they started.
    started : numpy.ndarray of int64, shape (capacity,)
        Slots of the jobs started by the last pass, in the order in which they started.
    changed : numpy.ndarray of int64, shape (slots,)
        Slots of the jobs that started, or whose rate may have changed, since the last `forget_changes`.
    open_hosts : numpy.ndarray of int64, shape (capacity,)
        Slots of the running jobs that may get another partner, in the order in which they started.
    affected, partners : numpy.ndarray of int64, shape (capacity,)
        Scratch: slots of the jobs affected by a match, and of the jobs that share nodes with a job.
    kinds : numpy.ndarray of KIND, shape (k,)
    node_kind, used, closed, free_ms, marked : numpy.ndarray of int64, shape (nodes,)
        Each node's kind, number of cells in use, and 1 if it is out of service (its jobs keep running, but no other job
        may join them). ``free_ms`` and ``marked`` are scratch.
    occupant : numpy.ndarray of int64, shape (nodes, lanes)
        The slot of the job in each cell, ``EMPTY`` or ``BLOCKED``.
    next_cell : numpy.ndarray of int64, shape (nodes * lanes,)
        For each cell, the next cell of the same job, or ``NO_CELL``.
    step_ms, step_free : numpy.ndarray of int64, shape (steps,)
        An availability profile (profile.py), for reservations and queries.
    """

    counters: npt.NDArray[np.void]
    searches: npt.NDArray[np.void]
    jobs: npt.NDArray[np.void]
    waiting: npt.NDArray[np.int64]
    n_waiting: npt.NDArray[np.int64]
    queue: npt.NDArray[np.int64]
    packed_ms: npt.NDArray[np.float64]
    relief: npt.NDArray[np.float64]
    running: npt.NDArray[np.int64]
    started: npt.NDArray[np.int64]
    changed: npt.NDArray[np.int64]
    open_hosts: npt.NDArray[np.int64]
    affected: npt.NDArray[np.int64]
    partners: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.void]
    node_kind: npt.NDArray[np.int64]
    used: npt.NDArray[np.int64]
    closed: npt.NDArray[np.int64]
    free_ms: npt.NDArray[np.int64]
    marked: npt.NDArray[np.int64]
    occupant: npt.NDArray[np.int64]
    next_cell: npt.NDArray[np.int64]
    step_ms: npt.NDArray[np.int64]
    step_free: npt.NDArray[np.int64]


def empty_site(kinds: npt.NDArray[np.void], counts: Sequence[int], *, slots: int, plans: bool = False) -> SharedSite:
    """Return the state of an idle site.

    Parameters
    ----------
    kinds : numpy.ndarray of KIND, shape (k,)
    counts : sequence of int
        Number of nodes of each kind.
    slots : int
        Maximum number of jobs waiting or running at any time.
    plans : bool
        Whether to allocate an availability profile with space for reservations of all jobs.
    """
    nodes, threads = sum(counts), int(kinds["threads"].max())
    lanes = int(kinds["cores"].max()) * threads
    node_kind = np.repeat(np.arange(len(kinds)), counts)
    core, thread = np.divmod(np.arange(lanes), threads)
    lacks = (core >= kinds["cores"][node_kind, None]) | (thread >= kinds["threads"][node_kind, None])
    running, steps = min(nodes * lanes, slots), 2 * (slots + nodes * lanes) + 2 if plans else 0
    state = SharedSite(
        counters=np.zeros(1, COUNTERS),
        searches=np.zeros(1, SEARCHES),
        jobs=np.zeros(slots, SHARED_JOB),
        waiting=np.zeros((CLASSES, slots), np.int64),
        n_waiting=np.zeros(CLASSES, np.int64),
        queue=np.zeros(slots, np.int64),
        packed_ms=np.zeros(slots, np.float64),
        relief=np.zeros(slots, np.float64),
        running=np.zeros(running, np.int64),
        started=np.zeros(running, np.int64),
        changed=np.zeros(slots, np.int64),
        open_hosts=np.zeros(running, np.int64),
        affected=np.zeros(running, np.int64),
        partners=np.zeros(running, np.int64),
        kinds=kinds,
        node_kind=node_kind,
        used=np.zeros(nodes, np.int64),
        closed=np.zeros(nodes, np.int64),
        free_ms=np.zeros(nodes, np.int64),
        marked=np.zeros(nodes, np.int64),
        occupant=np.where(lacks, BLOCKED, EMPTY),
        next_cell=np.full(nodes * lanes, NO_CELL),
        step_ms=np.zeros(steps, np.int64),
        step_free=np.zeros(steps, np.int64),
    )
    counters = state.counters[0]
    counters["lanes"], counters["threads"], counters["idle"] = lanes, threads, nodes
    return state


@kernel
def job_submitted(state: SharedSite, slot: Int) -> None:
    """Add a slot's job, whose row must be filled in, to the queue and to the statistics for predictions."""
    counters = state.counters[0]
    job = state.jobs[slot]
    job.waits = 1
    job.tried = 0
    job.first_cell = NO_CELL
    job.tested = 0
    job.slowdown = 1.0
    kind = job.job_class
    place = state.n_waiting[kind]
    while place > 0 and _is_younger(state.jobs[state.waiting[kind, place - 1]], job):
        state.waiting[kind, place] = state.waiting[kind, place - 1]
        place -= 1
    state.waiting[kind, place] = slot
    state.n_waiting[kind] += 1
    counters.waiting_width += job.width
    if counters.n_seen == 0:
        counters.first_submit_ms = job.submit_ms
    counters.last_submit_ms = job.submit_ms
    counters.n_seen += 1
    if kind == SHORT:
        counters.n_short_seen += 1
        counters.short_work += job.width * job.estimate_ms
    else:
        counters.other_work += job.width * job.estimate_ms


@kernel_part
def _is_younger(a: Record, b: Record) -> bool:
    """Whether job a is behind job b in their class."""
    return a.submit_ms > b.submit_ms or (a.submit_ms == b.submit_ms and a.job_id > b.job_id)


@kernel
def job_withdrawn(state: SharedSite, slot: Int) -> None:
    """Remove a waiting job from the queue."""
    state.jobs[slot].waits = 0
    state.counters[0].waiting_width -= state.jobs[slot].width
    drop_gone(state)


@kernel
def drop_gone(state: SharedSite) -> None:
    """Remove jobs that are no longer waiting from the lists of waiting jobs."""
    for kind in range(CLASSES):
        kept = 0
        for place in range(state.n_waiting[kind]):
            slot = state.waiting[kind, place]
            if state.jobs[slot].waits == 1:
                state.waiting[kind, kept] = slot
                kept += 1
        state.n_waiting[kind] = kept


@kernel_part
def average_wait_ms(state: SharedSite) -> Int:
    """Return the average wait of the jobs started so far in ms, rounded down; 0 if none has started."""
    counters = state.counters[0]
    return counters.wait_sum_ms // counters.n_starts if counters.n_starts > 0 else np.int64(0)


@kernel_part
def level_of(job: Record, now_ms: Int, age_ms: Int) -> Int:
    """Return a waiting job's level: its class minus 1 per ``age_ms`` waited, at least 0 (0 ms: no aging)."""
    level = job.job_class
    if age_ms > 0:
        waited_ms = now_ms - job.submit_ms
        level -= (waited_ms >= age_ms) + (waited_ms - age_ms >= age_ms)
    return max(0, level)


@kernel
def order_queue(state: SharedSite, age_ms: Int, now_ms: Int) -> None:
    """Fill ``state.queue`` by level, then submit time, then job id, by merging the lists of the three classes."""
    waiting, n_waiting = state.waiting, state.n_waiting
    at_short = at_medium = at_long = np.int64(0)
    short = _head_of(state, SHORT, at_short, age_ms, now_ms)
    medium = _head_of(state, MEDIUM, at_medium, age_ms, now_ms)
    long = _head_of(state, LONG, at_long, age_ms, now_ms)
    total = n_waiting[SHORT] + n_waiting[MEDIUM] + n_waiting[LONG]
    for place in range(total):
        if not _ranks_before(medium, short) and not _ranks_before(long, short):
            state.queue[place] = waiting[SHORT, at_short]
            at_short += 1
            short = _head_of(state, SHORT, at_short, age_ms, now_ms)
        elif not _ranks_before(long, medium):
            state.queue[place] = waiting[MEDIUM, at_medium]
            at_medium += 1
            medium = _head_of(state, MEDIUM, at_medium, age_ms, now_ms)
        else:
            state.queue[place] = waiting[LONG, at_long]
            at_long += 1
            long = _head_of(state, LONG, at_long, age_ms, now_ms)
    state.counters[0].n_queue = total


@kernel_part
def _head_of(state: SharedSite, kind: Int, at: Int, age_ms: Int, now_ms: Int) -> tuple[Int, Int, Int]:
    """Return a waiting job's level, submit time and job id; past the end of the class, values that sort last."""
    if at == state.n_waiting[kind]:
        return np.int64(CLASSES), NEVER_MS, NEVER_MS
    job = state.jobs[state.waiting[kind, at]]
    return level_of(job, now_ms, age_ms), job.submit_ms, job.job_id


@kernel_part
def _ranks_before(a: tuple[Int, Int, Int], b: tuple[Int, Int, Int]) -> bool:
    """Whether a waiting job with level, submit time and id ``a`` is ahead of a job with ``b``."""
    if a[0] != b[0]:
        return a[0] < b[0]
    return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])


@kernel_part
def note_change(state: SharedSite, slot: Int) -> None:
    """Add a job to the list of changes unless it is already listed."""
    if state.jobs[slot].changed == 0:
        state.jobs[slot].changed = 1
        state.changed[state.counters[0].n_changed] = slot
        state.counters[0].n_changed += 1


@kernel
def forget_changes(state: SharedSite) -> None:
    """Clear the list of changes; call this after the driver has read it."""
    for i in range(state.counters[0].n_changed):
        state.jobs[state.changed[i]].changed = 0
    state.counters[0].n_changed = 0


@kernel
def enter_running(state: SharedSite, place: Int, now_ms: Int) -> Int:
    """Turn the job at index `place` of the queue into a running job at rate 1, without cells yet; return its slot."""
    counters = state.counters[0]
    slot = state.queue[place]
    state.queue[place] = GONE
    job = state.jobs[slot]
    job.waits = 0
    job.start_ms = job.since_ms = now_ms
    job.left = job.estimate_ms * RATE_ONE
    job.rate = RATE_ONE
    job.end_ms = NEVER_MS
    job.first_cell = NO_CELL
    counters.waiting_width -= job.width
    counters.n_starts += 1
    counters.wait_sum_ms += now_ms - job.submit_ms
    counters.packed_running = 0
    counters.version += 1
    state.running[counters.n_running] = slot
    counters.n_running += 1
    state.started[counters.n_started] = slot
    counters.n_started += 1
    return slot


@kernel
def leave_running(state: SharedSite, slot: Int) -> None:
    """Remove a job from the list of running jobs."""
    counters = state.counters[0]
    kept = 0
    for i in range(counters.n_running):
        if state.running[i] != slot:
            state.running[kept] = state.running[i]
            kept += 1
    counters.n_running = kept
    counters.version += 1

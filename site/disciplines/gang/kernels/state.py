"""The arrays of a gang site: the Ousterhout matrix, and how jobs enter and leave it.

The matrix has a row for each time slice and a column for each node. A *placed* job has the same columns in all its
rows. One of these rows is its *home*; the other rows hold replicas, which every decision recomputes. A placed job
*begins* in the first slice of any of its rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, Ints, Record, kernel, kernel_part
from gridweave.site.disciplines.gang.kernels.columns import WORD_BITS, add, copy, count, remove, take_lowest, words_for
from gridweave.site.kernels.parts import UNIT
from gridweave.site.kernels.state import NEVER_MS, dequeue, enqueue
from gridweave.site.kernels.turns import Cycle, time_of_turn_ms, times_of_turn

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

MAX_ROWS = 62
"""Maximum number of rows of a matrix, because sets of rows are stored as the bits of an int64."""

NO_ROW = np.int64(-1)
"""Value that means no row: the home of a job that is not placed, and ``last_row`` before the first slice."""

NO_MEMORY = np.int64(-2)
"""Value returned instead of a row if rows have enough free nodes for the job, but no row has enough memory."""

GANG_JOB = np.dtype(
    [
        ("key", np.float64),
        *((name, np.int64) for name in ("submit_ms", "job_id", "width", "estimate_ms", "memory")),
        # Its promised start while it waits.
        *((name, np.int64) for name in ("promised_ms", "promised_row")),
        # Its position in the matrix; ``rows`` are bits.
        *((name, np.int64) for name in ("home", "rows", "bits", "last_row", "moved")),
        # Its progress (gridweave.site.kernels.turns), as of the last decision.
        *((name, np.int64) for name in ("turns", "works", "switch_left_ms", "is_fresh")),
        *((name, np.int64) for name in ("owed_ms", "worked_ms", "begin_ms", "end_ms")),
    ],
    align=True,
)
"""A job. ``memory``: its need on each of its nodes in millionths (`gridweave.site.kernels.parts`), 0 if unknown;
``bits``: its row in ``GangSite.columns``; ``moved``: the number of the last decision that moved it; ``owed_ms``: the
time that it still has to pay for moves; ``begin_ms``: when it began or will begin; ``end_ms``: when it will have worked
for its estimate, unless a decision comes first."""

GANG_COUNTERS = np.dtype(
    [
        *((name, np.int64) for name in ("nodes", "rows", "n_waiting", "first_new", "narrowest")),
        *((name, np.int64) for name in ("n_placed", "n_vacant")),
        # The row of the last slice, the instant of the last decision, and the number of slices in the cycle since then.
        *((name, np.int64) for name in ("last_row", "since_ms", "n_turns")),
        # Whether a decision is needed, when it is due, the number of decisions, and the contents of the profiles.
        *((name, np.int64) for name in ("is_stirred", "due_ms", "decisions", "has_profiles")),
        # Number of tasks that this decision may still move; total numbers of jobs and tasks moved.
        *((name, np.int64) for name in ("tasks_left", "migrations", "tasks_migrated")),
        # The rows that may get jobs, as bits; whether space is shared; how often space sharing began (`adapt`).
        *((name, np.int64) for name in ("open_rows", "shares_space", "changes", "measured_ms")),
        *((name, np.float64) for name in ("utilisation", "switch_part", "lost_measured", "switched_measured")),
        # Node milliseconds lost up to ``counted_ms``: ``lost`` while jobs were waiting, ``lost_any`` at all times.
        ("counted_ms", np.int64),
        *(
            (name, np.float64)
            for name in ("lost", "lost_any", "lost_before", "switched", "switched_before", "migrated")
        ),
    ],
    align=True,
)
"""A site's counters."""


class GangSite(NamedTuple):
    """The jobs and the matrix of one site.

    Attributes
    ----------
    counters : numpy.ndarray of GANG_COUNTERS, shape (1,)
    jobs : numpy.ndarray of GANG_JOB, shape (slots,)
    waiting : numpy.ndarray of int64, shape (slots,)
        Slots of the waiting jobs, in queue order.
    placed, by_width : numpy.ndarray of int64, shape (capacity,)
        Slots of the placed jobs, in order of placement and in ascending order of (width, job id).
    columns : numpy.ndarray of int64, shape (capacity, words)
        The columns of each placed job.
    vacant : numpy.ndarray of int64, shape (capacity,)
        Unused rows of ``columns``; the last is used first.
    taken : numpy.ndarray of int64, shape (rows, words)
        The occupied columns of each row of the matrix; columns beyond the last node count as occupied.
    used : numpy.ndarray of int64, shape (rows,)
        Number of nodes in use in each row.
    closed : numpy.ndarray of int64, shape (words,)
        The columns out of service: jobs stay on these columns, but no other job gets them.
    shut : numpy.ndarray of int64, shape (rows,)
        Number of nodes in each row that are in use but out of service.
    memory : numpy.ndarray of int64, shape (nodes,)
        Memory in use on each node by placed jobs of all rows, in millionths; paused jobs stay in memory.
    turn_row : numpy.ndarray of int64, shape (rows,)
        The row of the matrix in each slice of the cycle.
    empty, first_switched, switched : numpy.ndarray of int64, shape (rows,)
        For each slice of the cycle: the number of empty nodes, and the numbers of nodes on which a job is resumed in
        the first cycle and in each later cycle.
    step_ms, step_free : numpy.ndarray of int64, shape (rows, steps)
        The profile of each row: times, and the number of nodes that are free from each of these times on, based on
        estimates (`gridweave.site.kernels.profile`).
    n_steps : numpy.ndarray of int64, shape (rows,)
    order, overlapping, scratch : numpy.ndarray of int64, shapes (rows,), (capacity,) and (words,)
        Scratch space.
    """

    counters: npt.NDArray[np.void]
    jobs: npt.NDArray[np.void]
    waiting: npt.NDArray[np.int64]
    placed: npt.NDArray[np.int64]
    by_width: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    vacant: npt.NDArray[np.int64]
    taken: npt.NDArray[np.int64]
    used: npt.NDArray[np.int64]
    closed: npt.NDArray[np.int64]
    shut: npt.NDArray[np.int64]
    memory: npt.NDArray[np.int64]
    turn_row: npt.NDArray[np.int64]
    empty: npt.NDArray[np.int64]
    first_switched: npt.NDArray[np.int64]
    switched: npt.NDArray[np.int64]
    step_ms: npt.NDArray[np.int64]
    step_free: npt.NDArray[np.int64]
    n_steps: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    overlapping: npt.NDArray[np.int64]
    scratch: npt.NDArray[np.int64]


class GangCodes(NamedTuple):
    """A site's policy, encoded for the kernels.

    Attributes
    ----------
    slice_ms, switch_ms : int
    backfill : int
        `NO_BACKFILL`, `EASY` or `CONSERVATIVE`.
    is_discrete : bool
        Whether decisions are made only at the end of a slice.
    cleans, compacts : bool
        Whether decisions include the phases CleanMatrix and CompactMatrix.
    migrates_to_compact, migrates_to_fill : bool
        Whether jobs move to other columns in order to empty rows, and to let other jobs run in more rows.
    migration_ms : int
        Time that a move costs the job: half to save it, half to restart it.
    max_tasks : int
        Maximum number of tasks moved in one decision.
    window_ms : int
        Window over which the adaptive switch measures utilisation; 0 for time sharing at all times.
    """

    slice_ms: Int
    switch_ms: Int
    backfill: Int
    is_discrete: bool
    cleans: bool
    compacts: bool
    migrates_to_compact: bool
    migrates_to_fill: bool
    migration_ms: Int
    max_tasks: Int
    window_ms: Int


NO_BACKFILL, EASY, CONSERVATIVE = 0, 1, 2
"""When a job may overtake waiting jobs: never, if it does not delay the first, or if it does not delay any."""


def empty_matrix(nodes: int, rows: int, *, slots: int) -> GangSite:
    """Return the state of an idle site.

    Parameters
    ----------
    nodes : int
    rows : int
        The multiprogramming level.
    slots : int
        Maximum number of jobs that are waiting or running at the same time.
    """
    capacity, words, steps = min(slots, nodes * rows), words_for(nodes), 2 * slots + 2
    state = GangSite(
        counters=np.zeros(1, GANG_COUNTERS),
        jobs=np.zeros(slots, GANG_JOB),
        waiting=np.zeros(slots, np.int64),
        placed=np.zeros(capacity, np.int64),
        by_width=np.zeros(capacity, np.int64),
        columns=np.zeros((capacity, words), np.int64),
        vacant=np.arange(capacity - 1, -1, -1),
        taken=np.zeros((rows, words), np.int64),
        used=np.zeros(rows, np.int64),
        closed=np.zeros(words, np.int64),
        shut=np.zeros(rows, np.int64),
        memory=np.zeros(nodes, np.int64),
        turn_row=np.zeros(rows, np.int64),
        empty=np.zeros(rows, np.int64),
        first_switched=np.zeros(rows, np.int64),
        switched=np.zeros(rows, np.int64),
        step_ms=np.zeros((rows, steps), np.int64),
        step_free=np.zeros((rows, steps), np.int64),
        n_steps=np.zeros(rows, np.int64),
        order=np.zeros(rows, np.int64),
        overlapping=np.zeros(capacity, np.int64),
        scratch=np.zeros(words, np.int64),
    )
    state.taken[:] = _beyond(nodes)
    state.jobs["home"] = NO_ROW
    counters = state.counters[0]
    counters["nodes"], counters["rows"], counters["n_vacant"] = nodes, rows, capacity
    counters["last_row"], counters["open_rows"] = NO_ROW, all_rows(state)
    counters["first_new"] = counters["narrowest"] = counters["due_ms"] = counters["counted_ms"] = NEVER_MS
    return state


def _beyond(nodes: int) -> npt.NDArray[np.int64]:
    """Return the set of columns beyond the last node; all of these columns are in the last word."""
    beyond = np.zeros(words_for(nodes), np.int64)
    spare = len(beyond) * WORD_BITS - nodes
    beyond[-1] = ((1 << spare) - 1) << (WORD_BITS - spare)
    return beyond


@kernel_part
def all_rows(state: GangSite) -> Int:
    """Return the set of all rows of the matrix, as bits."""
    return (1 << state.counters[0].rows) - 1


@kernel_part
def cycle_of(state: GangSite, codes: GangCodes) -> Cycle:
    """Return the cycle of slices that the last decision started."""
    return Cycle(state.counters[0].n_turns, codes.slice_ms, codes.switch_ms)


@kernel_part
def stir(state: GangSite, codes: GangCodes, now_ms: Int) -> None:
    """Request a decision at this instant or, under discrete scheduling, at the end of the slice."""
    counters = state.counters[0]
    counters.is_stirred = 1
    counters.due_ms = now_ms
    if codes.is_discrete:
        counters.due_ms = (now_ms + codes.slice_ms - 1) // codes.slice_ms * codes.slice_ms


@kernel
def gang_job_submitted(state: GangSite, codes: GangCodes, slot: Int, now_ms: Int) -> None:
    """Add a job to the queue; the caller must have filled in the job's slot."""
    job = state.jobs[slot]
    job.home = job.promised_row = NO_ROW
    job.rows = 0
    job.begin_ms = NEVER_MS
    count_loss(state, codes, now_ms)
    enqueue(state, slot)
    stir(state, codes, now_ms)


@kernel
def gang_job_withdrawn(state: GangSite, codes: GangCodes, slot: Int, now_ms: Int) -> bool:
    """Remove a queued or placed job unless it began before now; return whether the job was removed."""
    job = state.jobs[slot]
    if job.home != NO_ROW:
        if job.begin_ms < now_ms:
            return False
        gang_job_ended(state, codes, slot, now_ms)
        return True
    for place in range(state.counters[0].n_waiting):
        if state.waiting[place] == slot:
            count_loss(state, codes, now_ms)
            dequeue(state, place)
            stir(state, codes, now_ms)
            return True
    return False


@kernel
def gang_job_ended(state: GangSite, codes: GangCodes, slot: Int, now_ms: Int) -> None:
    """Remove a placed job from the matrix."""
    counters = state.counters[0]
    job = state.jobs[slot]
    count_loss(state, codes, now_ms)
    stir(state, codes, now_ms)
    if job.begin_ms < now_ms:
        # Under discrete scheduling, the job's nodes stay idle until the slice ends (equation 3, the jobs H).
        rest = 1.0 * job.width * (counters.due_ms - now_ms)
        counters.lost_any += rest
        if counters.n_waiting > 0:
            counters.lost += rest
    for row in range(counters.rows):
        if (job.rows >> row) & 1:
            leave_row(state, job, row)
    occupy_memory(state, job, -job.memory)
    state.vacant[counters.n_vacant] = job.bits
    counters.n_vacant += 1
    _drop(state.placed, counters.n_placed, slot)
    _drop(state.by_width, counters.n_placed, slot)
    counters.n_placed -= 1
    job.home = NO_ROW


@kernel_part
def _drop(slots: npt.NDArray[np.int64], count: Int, slot: Int) -> None:
    """Remove a slot from a list that contains it."""
    place = 0
    while slots[place] != slot:
        place += 1
    for i in range(place, count - 1):
        slots[i] = slots[i + 1]


@kernel
def place_job(state: GangSite, slot: Int, row: Int) -> None:
    """Give a waiting job the lowest free columns of a row that has enough of them; the row becomes the job's home."""
    counters = state.counters[0]
    job = state.jobs[slot]
    counters.n_vacant -= 1
    job.bits = state.vacant[counters.n_vacant]
    job.home = job.last_row = row
    job.rows = 0
    job.works = job.switch_left_ms = job.owed_ms = job.worked_ms = 0
    job.is_fresh = 1
    job.moved = 0
    columns = state.columns[job.bits]
    for word in range(len(columns)):
        columns[word] = 0
    copy(state.scratch, state.taken[row])
    add(state.scratch, state.closed)
    add_crowded(state, job, state.scratch)
    take_lowest(state.scratch, job.width, columns)
    occupy_memory(state, job, job.memory)
    join_row(state, job, row)
    state.placed[counters.n_placed] = slot
    place = counters.n_placed
    while place > 0 and _is_wider(state, state.by_width[place - 1], job):
        state.by_width[place] = state.by_width[place - 1]
        place -= 1
    state.by_width[place] = slot
    counters.n_placed += 1


@kernel_part
def _is_wider(state: GangSite, slot: Int, job: Record) -> bool:
    other = state.jobs[slot]
    return other.width > job.width or (other.width == job.width and other.job_id > job.job_id)


@kernel_part
def free_in(state: GangSite, row: Int) -> Int:
    """Return the number of free nodes in service in a row."""
    return state.counters[0].nodes - state.used[row] + state.shut[row]


@kernel_part
def open_width(state: GangSite, job: Record) -> Int:
    """Return the number of a placed job's nodes that are in service."""
    width = job.width
    if state.counters[0].nodes < len(state.memory):
        columns = state.columns[job.bits]
        for word in range(len(columns)):
            bits = columns[word] & state.closed[word]
            while bits:
                bits &= bits - 1
                width -= 1
    return width


@kernel
def close_columns(state: GangSite, codes: GangCodes, closed: Ints, now_ms: Int) -> None:
    """Set the columns that are out of service; jobs on these columns stay until they end.

    Parameters
    ----------
    state : GangSite
    codes : GangCodes
    closed : numpy.ndarray of int64, shape (words,)
        Must not contain columns beyond the last node.
    now_ms : int
    """
    counters = state.counters[0]
    count_loss(state, codes, now_ms)
    copy(state.closed, closed)
    counters.nodes = len(state.memory) - count(closed)
    for row in range(counters.rows):
        state.shut[row] = 0
    for i in range(counters.n_placed):
        job = state.jobs[state.placed[i]]
        for row in range(counters.rows):
            if (job.rows >> row) & 1:
                state.shut[row] += job.width - open_width(state, job)
    stir(state, codes, now_ms)


@kernel_part
def join_row(state: GangSite, job: Record, row: Int) -> None:
    """Add a job to a row of the matrix in which its columns are free."""
    add(state.taken[row], state.columns[job.bits])
    state.used[row] += job.width
    state.shut[row] += job.width - open_width(state, job)
    job.rows |= 1 << row


@kernel_part
def leave_row(state: GangSite, job: Record, row: Int) -> None:
    """Remove a job from a row of the matrix."""
    remove(state.taken[row], state.columns[job.bits])
    state.used[row] -= job.width
    state.shut[row] -= job.width - open_width(state, job)
    job.rows &= ~(1 << row)


@kernel_part
def turns_until(state: GangSite, row: Int) -> Int:
    """Return the number of rows that get their slice before this row does; the row of the last slice comes last."""
    rows = state.counters[0].rows
    return (row - state.counters[0].last_row - 1) % rows


@kernel_part
def is_ahead(state: GangSite, job: Record, row: Int) -> bool:
    """Whether this row's turn comes within one cycle of the job's last slice (the clock algorithm)."""
    return turns_until(state, row) <= turns_until(state, job.last_row)


@kernel
def occupy_memory(state: GangSite, job: Record, part: Int) -> None:
    """Add ``part`` (in millionths, may be negative) to the memory in use on each node of a placed job."""
    if part == 0:
        return
    columns = state.columns[job.bits]
    for node in range(len(state.memory)):
        state.memory[node] += part * ((columns[node // WORD_BITS] >> (node % WORD_BITS)) & 1)


@kernel
def add_crowded(state: GangSite, job: Record, columns: Ints) -> None:
    """Add to a set of columns the nodes that do not have enough free memory for a job."""
    if job.memory == 0:
        return
    for node in range(len(state.memory)):
        if state.memory[node] + job.memory > UNIT:
            columns[node // WORD_BITS] |= 1 << (node % WORD_BITS)


@kernel
def has_capacity(state: GangSite, job: Record, row: Int) -> bool:
    """Whether a row has enough free nodes for a job that also have enough memory.

    The caller must check that the row has enough free nodes. Memory that the job itself is already using counts as
    free.
    """
    if job.memory == 0:
        return True
    scratch = state.scratch
    if job.home != NO_ROW:
        occupy_memory(state, job, -job.memory)
    copy(scratch, state.taken[row])
    add(scratch, state.closed)
    add_crowded(state, job, scratch)
    if job.home != NO_ROW:
        occupy_memory(state, job, job.memory)
    return len(scratch) * WORD_BITS - count(scratch) >= job.width


@kernel
def give_columns(state: GangSite, job: Record, row: Int) -> None:
    """Give columns of a row to a job that is not in any row: its own columns where free, then the lowest columns.

    Enough free columns must have the memory for the job (`has_capacity`).
    """
    columns, scratch = state.columns[job.bits], state.scratch
    occupy_memory(state, job, -job.memory)
    copy(scratch, state.taken[row])
    remove(columns, scratch)
    add(scratch, columns)
    add(scratch, state.closed)
    add_crowded(state, job, scratch)
    take_lowest(scratch, job.width - count(columns), columns)
    occupy_memory(state, job, job.memory)
    join_row(state, job, row)


@kernel
def count_loss(state: GangSite, codes: GangCodes, now_ms: Int) -> None:
    """Add the capacity lost since the last call (Zhang, equation 3).

    Parameters
    ----------
    state : GangSite
        The state before the events of this instant.
    codes : GangCodes
    now_ms : int
    """
    counters = state.counters[0]
    if counters.counted_ms == NEVER_MS:
        # This is the first event of the site.
        counters.since_ms = counters.counted_ms = counters.measured_ms = now_ms
    if now_ms == counters.counted_ms:
        return
    elapsed_ms, lost, switched = now_ms - counters.since_ms, 0.0, 0.0
    cycle = cycle_of(state, codes)
    if cycle.n_turns == 0:
        lost = 1.0 * counters.nodes * elapsed_ms
    for turn in range(cycle.n_turns):
        lost += 1.0 * state.empty[turn] * time_of_turn_ms(turn, elapsed_ms, cycle)
        times = times_of_turn(turn, elapsed_ms, cycle)
        if times > 0:
            nodes = state.first_switched[turn] + (times - 1) * state.switched[turn]
            switched += 1.0 * nodes * codes.switch_ms
    lost += switched
    new = lost - counters.lost_before
    counters.lost_any += new
    if counters.n_waiting > 0:
        counters.lost += new
    counters.lost_before = lost
    counters.switched += switched - counters.switched_before
    counters.switched_before = switched
    counters.counted_ms = now_ms

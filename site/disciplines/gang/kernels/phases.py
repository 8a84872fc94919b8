"""The phases of a decision, which assign rows of the matrix to jobs (Zhang, sections 5.2, 6.1 and 6.2).

Schedule puts each waiting job into the row that it fits best. CompactMatrix, CollapseMatrix-1 and CollapseMatrix-2 move
jobs from less populated rows to more populated rows. CleanMatrix removes the replicas of jobs, and FillMatrix-1 and
FillMatrix-2 put new replicas into the holes of other rows.

Each row has a profile of its free nodes over time, based on the estimates of running jobs and of waiting jobs with a
promised start. Since a job may get only one slice per cycle, the profile assumes that it needs the rest of its estimate
times the number of rows, from now on.

To move a job to other nodes, it is saved and restarted; each of the two takes half of the cost (section 6.4, equations
4 and 5). A job that has not begun does not need to be saved: its move is free and does not count towards the limit on
moved tasks. No job is moved twice in one decision.
"""

from __future__ import annotations

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.disciplines.gang.kernels.columns import overlap
from gridweave.site.disciplines.gang.kernels.state import (
    CONSERVATIVE,
    NO_BACKFILL,
    NO_MEMORY,
    NO_ROW,
    GangCodes,
    GangSite,
    free_in,
    give_columns,
    has_capacity,
    is_ahead,
    join_row,
    leave_row,
    open_width,
    place_job,
    turns_until,
)
from gridweave.site.kernels.profile import clear, earliest_fit, occupy
from gridweave.site.kernels.state import GONE, NEVER_MS, UNPLACED_MS

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"


@kernel
def schedule(state: GangSite, codes: GangCodes, now_ms: Int) -> None:
    """Put waiting jobs into the matrix, in queue order.

    Notes
    -----
    A job may join a row if it does not delay any promised start in this row. It gets the row with the fewest free nodes
    (ties: the row whose turn comes first). Without backfilling, the first job that does not fit into any row ends the
    phase. With backfilling, this job is promised its earliest start in any row, based on estimates (ties: the first
    row). EASY promises a start only to this job, conservative backfilling to every job that does not fit. The first job
    that lacks only memory ends the phase without a promise, as profiles do not show when memory becomes free.
    """
    counters = state.counters[0]
    if counters.n_waiting == 0:
        return
    backfills = codes.backfill != NO_BACKFILL
    if backfills:
        fill_profiles(state, now_ms, RUNNING_ALONE)
    promises = 0
    placed = 0
    widest = _most_free(state)
    for place in range(counters.n_waiting):
        slot = state.waiting[place]
        job = state.jobs[slot]
        job.promised_ms = UNPLACED_MS
        row = NO_ROW
        if job.width <= widest:
            row = _best_row(state, job, backfills, now_ms)
        if row >= 0:
            place_job(state, slot, row)
            state.waiting[place] = GONE
            placed += 1
            widest = _most_free(state)
            if backfills:
                occupy_row(state, row, now_ms, longest_ms(state, job), job.width)
        elif not backfills or row == NO_MEMORY:
            _promise_nothing_from(state, place)
            break
        elif promises == 0 or codes.backfill == CONSERVATIVE:
            _promise(state, job, now_ms)
            promises += 1
    if placed > 0:
        _close_gaps(state)


@kernel_part
def _promise_nothing_from(state: GangSite, first: Int) -> None:
    """Clear the promised starts of all jobs from index ``first`` of the queue on."""
    for place in range(first, state.counters[0].n_waiting):
        state.jobs[state.waiting[place]].promised_ms = UNPLACED_MS


@kernel_part
def _most_free(state: GangSite) -> Int:
    """Return the largest number of free nodes in any row that is open to new jobs."""
    counters = state.counters[0]
    most = 0
    for row in range(counters.rows):
        if _is_open(state, row):
            most = max(most, free_in(state, row))
    return most


@kernel_part
def _is_open(state: GangSite, row: Int) -> bool:
    """Whether a row is open to new jobs."""
    return (state.counters[0].open_rows >> row) & 1 == 1


@kernel_part
def _best_row(state: GangSite, job: Record, backfills: bool, now_ms: Int) -> Int:
    """Return the row that a job should join (see `schedule`), or `NO_ROW` or `NO_MEMORY` if it cannot join any."""
    counters = state.counters[0]
    best = none = NO_ROW
    for row in range(counters.rows):
        free = free_in(state, row)
        if not _is_open(state, row) or job.width > free:
            continue
        if best != NO_ROW and (free, turns_until(state, row)) >= (
            free_in(state, best),
            turns_until(state, best),
        ):
            continue
        if backfills and row_start_ms(state, row, now_ms, job.width, longest_ms(state, job)) != now_ms:
            continue
        if not has_capacity(state, job, row):
            none = NO_MEMORY
            continue
        best = row
    return best if best != NO_ROW else none


@kernel_part
def _promise(state: GangSite, job: Record, now_ms: Int) -> None:
    """Promise a job its earliest start in any row open to new jobs, and reserve its nodes in the row's profile."""
    length_ms = longest_ms(state, job)
    job.promised_ms = NEVER_MS
    for row in range(state.counters[0].rows):
        if _is_open(state, row):
            start_ms = row_start_ms(state, row, now_ms, job.width, length_ms)
            if start_ms < job.promised_ms:
                job.promised_ms = start_ms
                job.promised_row = row
    if job.promised_ms != NEVER_MS:
        occupy_row(state, job.promised_row, job.promised_ms, length_ms, job.width)


@kernel_part
def _close_gaps(state: GangSite) -> None:
    """Remove the placed jobs from the queue."""
    counters = state.counters[0]
    kept = 0
    for place in range(counters.n_waiting):
        state.waiting[kept] = state.waiting[place]
        kept += state.waiting[place] != GONE
    counters.n_waiting = kept


PROMISED, RUNNING_ALONE = 1, 2
"""What the profiles contain: placed jobs and the starts promised by the last decision, or only placed jobs."""


@kernel_part
def longest_ms(state: GangSite, job: Record) -> Int:
    """Return the longest time in ms that a job can still take, given its estimate and one slice per cycle."""
    left_ms = job.estimate_ms
    if job.rows:
        left_ms += job.owed_ms - job.worked_ms
    return left_ms * state.counters[0].rows


@kernel
def fill_profiles(state: GangSite, now_ms: Int, what: Int) -> None:
    """Rebuild the profiles of all rows; ``what`` is `PROMISED` or `RUNNING_ALONE`."""
    counters = state.counters[0]
    for row in range(counters.rows):
        state.n_steps[row] = clear(state.step_ms[row], state.step_free[row], now_ms, counters.nodes)
    for i in range(counters.n_placed):
        job = state.jobs[state.placed[i]]
        for row in range(counters.rows):
            if (job.rows >> row) & 1:
                occupy_row(state, row, now_ms, longest_ms(state, job), open_width(state, job))
    if what == PROMISED:
        for place in range(counters.n_waiting):
            job = state.jobs[state.waiting[place]]
            if job.promised_ms not in (UNPLACED_MS, NEVER_MS):
                occupy_row(state, job.promised_row, max(now_ms, job.promised_ms), longest_ms(state, job), job.width)
    counters.has_profiles = what


@kernel_part
def occupy_row(state: GangSite, row: Int, from_ms: Int, length_ms: Int, width: Int) -> None:
    """Mark ``width`` nodes as occupied in a row's profile; a negative width frees nodes."""
    steps = state.n_steps[row]
    state.n_steps[row] = occupy(state.step_ms[row], state.step_free[row], steps, from_ms, from_ms + length_ms, width)


@kernel_part
def row_start_ms(state: GangSite, row: Int, now_ms: Int, width: Int, length_ms: Int) -> Int:
    """Return the earliest time from which, in a row's profile, ``width`` nodes are free for ``length_ms``."""
    return earliest_fit(state.step_ms[row], state.step_free[row], state.n_steps[row], now_ms, width, length_ms)


@kernel
def compact(state: GangSite, codes: GangCodes, now_ms: Int, migrates: bool) -> bool:
    """Move jobs from less populated to more populated rows; return whether any job was moved.

    Parameters
    ----------
    state : GangSite
        Must not contain any replicas.
    codes : GangCodes
    now_ms : int
    migrates : bool
        Whether jobs may also move to other nodes.

    Notes
    -----
    The rows are sorted by their number of nodes in use at the beginning of the phase (ties: the first row). For each
    row, beginning with the least populated, its jobs are tried in the rows after it in this order, most populated first
    and, within a row, narrowest job first (ties: by job id). So no job moves to a less populated row.
    """
    counters = state.counters[0]
    counters.has_profiles = 0
    _order_rows(state)
    moved_any = False
    for least in range(counters.rows):
        row = state.order[least]
        for most in range(counters.rows - 1, least, -1):
            target = state.order[most]
            if state.used[row] == 0 or free_in(state, target) == 0:
                continue
            for i in range(counters.n_placed):
                job = state.jobs[state.by_width[i]]
                if job.width > free_in(state, target):
                    break
                if job.home == row and _move(state, codes, job, target, now_ms, migrates):
                    moved_any = True
    return moved_any


@kernel_part
def _order_rows(state: GangSite) -> None:
    """Write the rows to ``order``, from least to most populated (ties: the first row)."""
    for row in range(state.counters[0].rows):
        place = row
        while place > 0 and state.used[state.order[place - 1]] > state.used[row]:
            state.order[place] = state.order[place - 1]
            place -= 1
        state.order[place] = row


@kernel_part
def _move(state: GangSite, codes: GangCodes, job: Record, target: Int, now_ms: Int, migrates: bool) -> bool:
    """Move a job, if allowed, to a new home row with enough free nodes; return whether the job was moved."""
    home = job.home
    own = not overlap(state.columns[job.bits], state.taken[target])
    if not (own or migrates) or not is_ahead(state, job, target):
        return False
    if codes.backfill != NO_BACKFILL and not _spares_promises(state, job, target, now_ms):
        return False
    if own:
        leave_row(state, job, home)
        join_row(state, job, target)
        if codes.backfill != NO_BACKFILL:
            occupy_row(state, home, now_ms, longest_ms(state, job), -open_width(state, job))
            occupy_row(state, target, now_ms, longest_ms(state, job), open_width(state, job))
    elif not _migrate(state, codes, job, target, now_ms):
        return False
    else:
        # The cost of the move delays jobs in both rows.
        state.counters[0].has_profiles = 0
    job.home = target
    return True


@kernel_part
def _spares_promises(state: GangSite, job: Record, target: Int, now_ms: Int) -> bool:
    """Whether a job can continue in a row without delaying, based on estimates, any start promised in this row."""
    if state.counters[0].has_profiles != PROMISED:
        fill_profiles(state, now_ms, PROMISED)
    return row_start_ms(state, target, now_ms, job.width, longest_ms(state, job)) == now_ms


@kernel
def _migrate(state: GangSite, codes: GangCodes, job: Record, target: Int, now_ms: Int) -> bool:
    """Move a job, at the lowest cost, to a row in which other jobs use its nodes; return whether the job was moved.

    Option 1 moves the other jobs to free nodes of the row; option 2 moves the job itself (ties: option 2).
    """
    counters = state.counters[0]
    n_overlapping = find_overlapping(state, job, target)
    tasks, others = tasks_of(job), tasks_in_the_way(state, target, n_overlapping)
    whole_ms, half_ms = codes.migration_ms, codes.migration_ms // 2
    if 0 <= others < tasks and others <= counters.tasks_left:
        if not _may_cost(state, codes, job, target, now_ms, n_overlapping, half_ms if others > 0 else 0, whole_ms):
            return False
        leave_row(state, job, job.home)
        move_others(state, codes, job, target, n_overlapping)
        return True
    if not may_move(state, job) or tasks > counters.tasks_left or not has_capacity(state, job, target):
        return False
    if tasks > 0 and not _may_cost(state, codes, job, target, now_ms, n_overlapping, whole_ms, half_ms):
        return False
    leave_row(state, job, job.home)
    move_job(state, codes, job, target, n_overlapping)
    return True


@kernel
def _may_cost(
    state: GangSite, codes: GangCodes, job: Record, target: Int, now_ms: Int, count: Int, job_ms: Int, other_ms: Int
) -> bool:
    """Whether a job can move to a row without delaying any start promised in this row.

    The move costs this job ``job_ms``. It also costs ``other_ms`` for every job that has begun among the first
    ``count`` jobs in ``overlapping``.
    """
    if codes.backfill == NO_BACKFILL or codes.migration_ms == 0:
        return True
    counters = state.counters[0]
    length_ms = longest_ms(state, job) + job_ms * counters.rows
    if row_start_ms(state, target, now_ms, job.width, length_ms) != now_ms:
        return False
    occupy_row(state, target, now_ms, length_ms, job.width)
    for i in range(count):
        other = state.jobs[state.overlapping[i]]
        longer_ms = other_ms * counters.rows if tasks_of(other) > 0 else 0
        if longer_ms > 0:
            end_ms = now_ms + longest_ms(state, other)
            if row_start_ms(state, target, end_ms, other.width, longer_ms) != end_ms:
                counters.has_profiles = 0
                return False
            occupy_row(state, target, end_ms, longer_ms, other.width)
    return True


@kernel
def clean(state: GangSite) -> None:
    """Remove every job from all rows except its home row."""
    counters = state.counters[0]
    for i in range(counters.n_placed):
        job = state.jobs[state.placed[i]]
        if job.rows != 1 << job.home:
            for row in range(counters.rows):
                if row != job.home and (job.rows >> row) & 1:
                    leave_row(state, job, row)


@kernel
def fill(state: GangSite, codes: GangCodes, migrates: bool) -> None:
    """Put replicas of jobs into rows in which their nodes are free or can be freed.

    Parameters
    ----------
    state : GangSite
    codes : GangCodes
    migrates : bool
        Whether jobs that are in only one row may move to other nodes to make space for replicas in this row.

    Notes
    -----
    In each round, every job, in order of placement, gets at most one additional row, which is the first possible row.
    The rounds end when no job gets a row. Empty rows do not get replicas, because they have no slice.
    """
    counters = state.counters[0]
    changed = _has_holes(state)
    while changed:
        changed = False
        for i in range(counters.n_placed):
            job = state.jobs[state.placed[i]]
            for row in range(counters.rows):
                if _replicate(state, codes, job, row, migrates):
                    changed = True
                    break


@kernel_part
def _has_holes(state: GangSite) -> bool:
    """Whether a row in use has free nodes."""
    holes = 0
    for row in range(state.counters[0].rows):
        if state.used[row] > 0:
            holes += free_in(state, row)
    return holes > 0


@kernel_part
def _replicate(state: GangSite, codes: GangCodes, job: Record, row: int, migrates: bool) -> bool:
    """Put a replica of a job into a row if possible; return whether the row got a replica."""
    if state.used[row] == 0 or open_width(state, job) > free_in(state, row) or (job.rows >> row) & 1:
        return False
    if not overlap(state.columns[job.bits], state.taken[row]):
        join_row(state, job, row)
        return True
    if not migrates or job.width > free_in(state, row):
        return False
    n_overlapping = find_overlapping(state, job, row)
    tasks = tasks_in_the_way(state, row, n_overlapping)
    if tasks < 0 or tasks > state.counters[0].tasks_left:
        return False
    move_others(state, codes, job, row, n_overlapping)
    return True


@kernel_part
def tasks_of(job: Record) -> Int:
    """Return the number of tasks to save if a job moves: the job's width, or 0 if the job has not begun."""
    return 0 if job.is_fresh else job.width


@kernel_part
def may_move(state: GangSite, job: Record) -> bool:
    """Whether this decision has not moved the job yet; no decision moves a job twice."""
    return job.moved != state.counters[0].decisions


@kernel
def find_overlapping(state: GangSite, job: Record, row: Int) -> Int:
    """Find the jobs in a row that share nodes with a job; return the number of these jobs.

    Their slots are written to ``overlapping``, in order of placement.
    """
    n_overlapping = 0
    for i in range(state.counters[0].n_placed):
        other = state.jobs[state.placed[i]]
        if (other.rows >> row) & 1 and overlap(state.columns[other.bits], state.columns[job.bits]):
            state.overlapping[n_overlapping] = state.placed[i]
            n_overlapping += 1
    return n_overlapping


@kernel
def tasks_in_the_way(state: GangSite, row: Int, n_overlapping: Int) -> Int:
    """Return the number of tasks to save if the overlapping jobs move, or -1 if one of the jobs cannot move.

    A job cannot move if this decision has already moved it, if it is also in another row (where it would lose its
    nodes), or if its memory need is known (because its new nodes are not known in advance).
    """
    tasks = 0
    for i in range(n_overlapping):
        other = state.jobs[state.overlapping[i]]
        if other.rows != 1 << row or other.memory > 0 or not may_move(state, other):
            return -1
        tasks += tasks_of(other)
    return tasks


@kernel
def move_others(state: GangSite, codes: GangCodes, job: Record, row: Int, n_overlapping: Int) -> None:
    """Move the overlapping jobs to other nodes of a row, and add a job to this row on its own nodes (option 1).

    Each moved job pays the full cost. The added job pays half, as it waits until the others are saved (equation 4).
    """
    counters = state.counters[0]
    waits = False
    for i in range(n_overlapping):
        leave_row(state, state.jobs[state.overlapping[i]], row)
    join_row(state, job, row)
    for i in range(n_overlapping):
        other = state.jobs[state.overlapping[i]]
        give_columns(state, other, row)
        other.moved = counters.decisions
        waits = waits or tasks_of(other) > 0
        _pay(state, other, codes.migration_ms)
        _count(state, other)
    if waits:
        _pay(state, job, codes.migration_ms // 2)


@kernel
def move_job(state: GangSite, codes: GangCodes, job: Record, row: Int, n_overlapping: Int) -> None:
    """Put a job that is not in any row on free nodes of a row (option 2).

    The job pays the full cost. The overlapping jobs pay half, because they wait until it is saved (equation 5).
    """
    give_columns(state, job, row)
    job.moved = state.counters[0].decisions
    if tasks_of(job) > 0:
        for i in range(n_overlapping):
            _pay(state, state.jobs[state.overlapping[i]], codes.migration_ms // 2)
    _pay(state, job, codes.migration_ms)
    _count(state, job)


@kernel_part
def _pay(state: GangSite, job: Record, cost_ms: Int) -> None:
    """Charge a job ``cost_ms`` of time, lost before the job continues; a job that has not begun pays nothing."""
    if tasks_of(job) > 0:
        job.owed_ms += cost_ms
        state.counters[0].migrated += 1.0 * cost_ms * job.width


@kernel_part
def _count(state: GangSite, job: Record) -> None:
    counters = state.counters[0]
    tasks = tasks_of(job)
    counters.tasks_left -= tasks
    counters.tasks_migrated += tasks
    counters.migrations += tasks > 0

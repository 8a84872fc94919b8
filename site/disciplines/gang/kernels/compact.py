"""The phases CompactMatrix, and CollapseMatrix-1 and -2: jobs leave the less populated rows for the more populated."""

from __future__ import annotations

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.disciplines.gang.kernels.columns import overlap
from gridweave.site.disciplines.gang.kernels.migration import (
    find_overlapping,
    may_move,
    move_job,
    move_others,
    tasks_in_the_way,
    tasks_of,
)
from gridweave.site.disciplines.gang.kernels.promises import (
    PROMISED,
    fill_profiles,
    longest_ms,
    occupy_row,
    row_start_ms,
)
from gridweave.site.disciplines.gang.kernels.state import (
    NO_BACKFILL,
    GangCodes,
    GangSite,
    free_in,
    has_room,
    is_ahead,
    join_row,
    leave_row,
    open_width,
)


@kernel
def compact(state: GangSite, codes: GangCodes, now_ms: Int, migrates: bool) -> bool:
    """Empty the less populated rows as far as that goes; return whether any job was moved.

    Parameters
    ----------
    state : GangSite
        Without replicas.
    codes : GangCodes
    now_ms : int
    migrates : bool
        Whether jobs may be moved to other nodes.

    Notes
    -----
    The rows are taken as they are populated before (ties: the first row): from each, beginning with the least
    populated, the jobs that may are moved to the most populated first; within a row the narrowest first (ties: by job
    id). A job is not moved to a row that is less populated than its own.
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
    """Order the rows from the least to the most populated."""
    for row in range(state.counters[0].rows):
        place = row
        while place > 0 and state.used[state.order[place - 1]] > state.used[row]:
            state.order[place] = state.order[place - 1]
            place -= 1
        state.order[place] = row


@kernel_part
def _move(state: GangSite, codes: GangCodes, job: Record, target: Int, now_ms: Int, migrates: bool) -> bool:
    """Make another row, which has the nodes for it, the home of a job, if that may be; return whether it was done."""
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
        # What it costs lets jobs of both rows take longer.
        state.counters[0].has_profiles = 0
    job.home = target
    return True


@kernel_part
def _spares_promises(state: GangSite, job: Record, target: Int, now_ms: Int) -> bool:
    """Whether a job may run on in a row, by its estimate, without delaying what has been promised there."""
    if state.counters[0].has_profiles != PROMISED:
        fill_profiles(state, now_ms, PROMISED)
    return row_start_ms(state, target, now_ms, job.width, longest_ms(state, job)) == now_ms


@kernel
def _migrate(state: GangSite, codes: GangCodes, job: Record, target: Int, now_ms: Int) -> bool:
    """Move a job to a row in which others have its nodes, the cheaper way; return whether it was done.

    Either those others are moved to free nodes of the row (option 1) or the job is (option 2, and if both cost alike).
    """
    counters = state.counters[0]
    found = find_overlapping(state, job, target)
    tasks, others = tasks_of(job), tasks_in_the_way(state, target, found)
    whole_ms, half_ms = codes.migration_ms, codes.migration_ms // 2
    if 0 <= others < tasks and others <= counters.tasks_left:
        if not _may_cost(state, codes, job, target, now_ms, found, half_ms if others > 0 else 0, whole_ms):
            return False
        leave_row(state, job, job.home)
        move_others(state, codes, job, target, found)
        return True
    if not may_move(state, job) or tasks > counters.tasks_left or not has_room(state, job, target):
        return False
    if tasks > 0 and not _may_cost(state, codes, job, target, now_ms, found, whole_ms, half_ms):
        return False
    leave_row(state, job, job.home)
    move_job(state, codes, job, target, found)
    return True


@kernel
def _may_cost(
    state: GangSite, codes: GangCodes, job: Record, target: Int, now_ms: Int, found: Int, job_ms: Int, other_ms: Int
) -> bool:
    """Whether a job, and those in ``overlapping``, may take so much longer without delaying what has been promised."""
    if codes.backfill == NO_BACKFILL or codes.migration_ms == 0:
        return True
    counters = state.counters[0]
    length_ms = longest_ms(state, job) + job_ms * counters.rows
    if row_start_ms(state, target, now_ms, job.width, length_ms) != now_ms:
        return False
    occupy_row(state, target, now_ms, length_ms, job.width)
    for i in range(found):
        other = state.jobs[state.overlapping[i]]
        longer_ms = other_ms * counters.rows if tasks_of(other) > 0 else 0
        if longer_ms > 0:
            end_ms = now_ms + longest_ms(state, other)
            if row_start_ms(state, target, end_ms, other.width, longer_ms) != end_ms:
                counters.has_profiles = 0
                return False
            occupy_row(state, target, end_ms, longer_ms, other.width)
    return True

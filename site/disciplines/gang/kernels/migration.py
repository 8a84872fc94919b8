"""Moving jobs to other nodes, and what that costs (Zhang, section 6.4, equations 4 and 5).

A job is moved by saving it and starting it anew; either takes half of the cost. A job that has not begun has nothing to
save: it costs nothing, and does not count among the tasks that may be moved. No job is moved twice in one decision.
"""

from __future__ import annotations

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.disciplines.gang.kernels.columns import overlap
from gridweave.site.disciplines.gang.kernels.state import GangCodes, GangSite, give_columns, join_row, leave_row

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"


@kernel_part
def tasks_of(job: Record) -> Int:
    """Return how many tasks a job has that moving it would have to save."""
    return 0 if job.is_fresh else job.width


@kernel_part
def may_move(state: GangSite, job: Record) -> bool:
    """Whether a job has not been moved in this decision."""
    return job.moved != state.counters[0].decisions


@kernel
def find_overlapping(state: GangSite, job: Record, row: Int) -> Int:
    """List the jobs of a row that have nodes of a job; return how many there are.

    They stand in ``overlapping``, in the order in which they were placed.
    """
    found = 0
    for i in range(state.counters[0].n_placed):
        other = state.jobs[state.placed[i]]
        if (other.rows >> row) & 1 and overlap(state.columns[other.bits], state.columns[job.bits]):
            state.overlapping[found] = state.placed[i]
            found += 1
    return found


@kernel
def tasks_in_the_way(state: GangSite, row: Int, found: Int) -> Int:
    """Return how many tasks the jobs in ``overlapping`` have; -1 if one of them cannot be moved.

    None can that is in another row too, where it would have to leave its nodes as well; nor one whose memory is known:
    where it would come to lie is not known before all are moved.
    """
    tasks = 0
    for i in range(found):
        other = state.jobs[state.overlapping[i]]
        if other.rows != 1 << row or other.memory > 0 or not may_move(state, other):
            return -1
        tasks += tasks_of(other)
    return tasks


@kernel
def move_others(state: GangSite, codes: GangCodes, job: Record, row: Int, found: Int) -> None:
    """Move the jobs in ``overlapping`` to other nodes of their row, and put a job there on its own (option 1).

    Each of them loses the whole cost; the job loses half of it, until they are saved (equation 4).
    """
    counters = state.counters[0]
    waits = False
    for i in range(found):
        leave_row(state, state.jobs[state.overlapping[i]], row)
    join_row(state, job, row)
    for i in range(found):
        other = state.jobs[state.overlapping[i]]
        give_columns(state, other, row)
        other.moved = counters.decisions
        waits = waits or tasks_of(other) > 0
        _pay(state, other, codes.migration_ms)
        _count(state, other)
    if waits:
        _pay(state, job, codes.migration_ms // 2)


@kernel
def move_job(state: GangSite, codes: GangCodes, job: Record, row: Int, found: Int) -> None:
    """Put a job, which is in no row, on free nodes of a row (option 2).

    It loses the whole cost; those in ``overlapping`` lose half of it, until it is saved (equation 5).
    """
    give_columns(state, job, row)
    job.moved = state.counters[0].decisions
    if tasks_of(job) > 0:
        for i in range(found):
            _pay(state, state.jobs[state.overlapping[i]], codes.migration_ms // 2)
    _pay(state, job, codes.migration_ms)
    _count(state, job)


@kernel_part
def _pay(state: GangSite, job: Record, cost_ms: Int) -> None:
    """Let a job that has begun lose this much time before it works on."""
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

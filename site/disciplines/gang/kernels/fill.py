"""The phases CleanMatrix, FillMatrix-1 and FillMatrix-2: replicas of jobs in the holes of other rows."""

from __future__ import annotations

from gridweave.jit import Record, kernel, kernel_part
from gridweave.site.disciplines.gang.kernels.columns import overlap
from gridweave.site.disciplines.gang.kernels.migration import find_overlapping, move_others, tasks_in_the_way
from gridweave.site.disciplines.gang.kernels.state import GangCodes, GangSite, free_in, join_row, leave_row, open_width

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"


@kernel
def clean(state: GangSite) -> None:
    """Take every job out of all rows but its home."""
    counters = state.counters[0]
    for i in range(counters.n_placed):
        job = state.jobs[state.placed[i]]
        if job.rows != 1 << job.home:
            for row in range(counters.rows):
                if row != job.home and (job.rows >> row) & 1:
                    leave_row(state, job, row)


@kernel
def fill(state: GangSite, codes: GangCodes, migrates: bool) -> None:
    """Replicate jobs in the rows in which their nodes are free, or can be made free.

    Parameters
    ----------
    state : GangSite
    codes : GangCodes
    migrates : bool
        Whether jobs that are in one row alone may be moved to other nodes of it, so that others can be replicated.

    Notes
    -----
    In each round every job, in the order in which they were placed, gets one more row if there is any: the first. The
    rounds end when nobody got one. An empty row is none: it has no time slice.
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
    """Put a job into one more row if that may be; return whether it was done."""
    if state.used[row] == 0 or open_width(state, job) > free_in(state, row) or (job.rows >> row) & 1:
        return False
    if not overlap(state.columns[job.bits], state.taken[row]):
        join_row(state, job, row)
        return True
    if not migrates or job.width > free_in(state, row):
        return False
    found = find_overlapping(state, job, row)
    tasks = tasks_in_the_way(state, row, found)
    if tasks < 0 or tasks > state.counters[0].tasks_left:
        return False
    move_others(state, codes, job, row, found)
    return True

"""Driver 1 for a grid under full control: a whole workload through one compiled loop that calls the grid's kernels."""

from __future__ import annotations

from gridweave.grid.kernels.grid_plan import grid_plan_pass, planned_job_ended
from gridweave.grid.kernels.grid_queue import grid_job_ended, grid_pass
from gridweave.grid.kernels.overhead import longest_split_ms, split_length_ms
from gridweave.grid.kernels.placement import may_split
from gridweave.grid.kernels.reservations import has_room
from gridweave.grid.kernels.state import is_full, recall_taken
from gridweave.jit import kernel
from gridweave.scenarios.batch.kernels.heap import pop_end, push_end
from gridweave.site.kernels.state import NEVER_MS, enqueue

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"


@kernel
def longest_ms(state, codes, run_ms, longest):
    """Write what no job takes longer than, however it is placed, into ``longest``: float64, shape (n,)."""
    for row in range(len(state.jobs)):
        longest[row] = max(state.jobs[row].estimate_ms, run_ms[row])
        if may_split(state, codes, row):
            longest[row] = longest_split_ms(state, codes, row, longest[row])


@kernel
def run_grid_batch(state, codes, plan, run_ms, start_ms, end_ms, ends, ends_row, clock, until):
    """Simulate a workload from where the last call left off, up to a row of it.

    Parameters
    ----------
    state : GridState
        Of an idle grid at first; its table of jobs holds the workload, in the order of submission.
    codes : GridCodes
    plan : ReservedStarts or None
        What is reserved, under conservative backfilling.
    run_ms : numpy.ndarray of int64, shape (n,)
        Run times on one site, which the grid does not know.
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        Filled in: the start and the end of each job.
    ends, ends_row : numpy.ndarray of int64, shape (capacity,)
        A heap: the ends of the running jobs, and their rows.
    clock : numpy.ndarray of int64, shape (2,)
        How many jobs have been submitted, and how many entries of the heap are in use; zeros at first.
    until : int
        How many jobs are to be submitted in all when the call returns. When it is all of them, the call returns when
        nothing waits or runs any more.

    Returns
    -------
    bool
        False if the call returned before that, because there is no room for more fragments, or in the plan.
    """
    jobs = state.jobs
    row = clock[0]
    n_ends = clock[1]
    done = True
    while row < until or row == len(jobs):
        now_ms = NEVER_MS
        if row < len(jobs):
            now_ms = jobs[row].submit_ms
        if n_ends > 0:
            now_ms = min(now_ms, ends[0])
        if plan is not None:
            now_ms = min(now_ms, plan.counters[0].next_start_ms)
        if now_ms == NEVER_MS:
            break
        if is_full(state):
            done = False
            break
        if plan is not None:
            new = row
            while new < len(jobs) and jobs[new].submit_ms == now_ms:
                new += 1
            if not has_room(state, plan, new - row):
                done = False
                break
        while n_ends > 0 and ends[0] == now_ms:
            ended = ends_row[0]
            n_ends = pop_end(ends, ends_row, n_ends, jobs)
            if plan is None:
                grid_job_ended(state, ended)
            else:
                planned_job_ended(state, plan, ended, now_ms)
        while row < len(jobs) and jobs[row].submit_ms == now_ms:
            enqueue(state, row)
            row += 1
        if plan is None:
            grid_pass(state, codes, now_ms)
        else:
            grid_plan_pass(state, codes, plan, now_ms)
        for i in range(state.counters[0].n_started):
            started = state.started[i]
            start_ms[started] = now_ms
            recall_taken(state, started)
            end_ms[started] = now_ms + split_length_ms(state, codes, started, run_ms[started])
            n_ends = push_end(ends, ends_row, n_ends, jobs, end_ms[started], started)
    clock[0] = row
    clock[1] = n_ends
    return done

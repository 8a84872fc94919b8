"""Driver 1 for a grid under full control: a whole workload through one compiled loop that calls the grid's kernels."""

from __future__ import annotations

from gridweave.grid.kernels.grid_queue import grid_job_ended, grid_pass
from gridweave.grid.kernels.state import is_full
from gridweave.jit import kernel
from gridweave.scenarios.kernels.heap import pop_end, push_end
from gridweave.site.kernels.state import NEVER_MS, enqueue

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"


@kernel
def run_grid_batch(state, codes, run_ms, stretched_run_ms, start_ms, ends, ends_row, clock, until):
    """Simulate a workload from where the last call left off, up to a row of it.

    Parameters
    ----------
    state : GridState
        Of an idle grid at first; its table of jobs holds the workload, in the order of submission.
    codes : GridCodes
    run_ms, stretched_run_ms : numpy.ndarray of int64, shape (n,)
        Run times on one site and when split, which the grid does not know.
    start_ms : numpy.ndarray of int64, shape (n,)
        Filled in: the start of each job.
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
        False if the call returned before that, because there is no room for more fragments.
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
        if now_ms == NEVER_MS:
            break
        if is_full(state):
            done = False
            break
        while n_ends > 0 and ends[0] == now_ms:
            ended = ends_row[0]
            n_ends = pop_end(ends, ends_row, n_ends, jobs)
            length_ms = jobs[ended].estimate_ms if state.n_fragments[ended] == 1 else state.stretched_ms[ended]
            grid_job_ended(state, start_ms[ended] + length_ms, jobs[ended].job_id)
        while row < len(jobs) and jobs[row].submit_ms == now_ms:
            enqueue(state, row)
            row += 1
        grid_pass(state, codes, now_ms)
        for i in range(state.counters[0].n_started):
            started = state.started[i]
            start_ms[started] = now_ms
            length_ms = run_ms[started] if state.n_fragments[started] == 1 else stretched_run_ms[started]
            n_ends = push_end(ends, ends_row, n_ends, jobs, now_ms + length_ms, started)
    clock[0] = row
    clock[1] = n_ends
    return done

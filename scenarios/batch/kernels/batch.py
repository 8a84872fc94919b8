"""Driver 1: a whole trace through one compiled loop that calls the kernels of the site.

The loop is a discrete event simulation: at each instant the jobs that end, then those that are
submitted, then one pass.
"""

from __future__ import annotations

from gridweave.jit import kernel
from gridweave.scenarios.batch.kernels.heap import pop_end, push_end
from gridweave.site.kernels.dispatch import job_ended, job_submitted, site_pass
from gridweave.site.kernels.state import NEVER_MS

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"


@kernel
def run_batch(state, queue, promises, planning, run_ms, start_ms, ends, ends_row, clock, until):
    """Simulate a workload from where the last call left off, up to a row of it.

    Parameters
    ----------
    state : SiteState
        Of an idle site; its table of jobs holds the workload, in the order of submission.
    queue : QueueCodes or None
    promises : Plan or None
    planning : Planning or None
        What the discipline works with (`gridweave.site.kernels.dispatch.DisciplineArrays`).
    run_ms : numpy.ndarray of int64, shape (n,)
        Run times, which the site does not know.
    start_ms : numpy.ndarray of int64, shape (n,)
        Filled in: the start of each job.
    ends, ends_row : numpy.ndarray of int64, shape (capacity,)
        A heap: the ends of the running jobs, and their rows.
    clock : numpy.ndarray of int64, shape (2,)
        How many jobs have been submitted, and how many entries of the heap are in use; zeros at first.
    until : int
        How many jobs are to be submitted in all when the call returns. When it is all of them, the call returns when
        nothing waits or runs any more.
    """
    jobs = state.jobs
    row = clock[0]
    n_ends = clock[1]
    while row < until or row == len(jobs):
        now_ms = state.counters[0].next_start_ms
        if row < len(jobs):
            now_ms = min(now_ms, jobs[row].submit_ms)
        if n_ends > 0:
            now_ms = min(now_ms, ends[0])
        if now_ms == NEVER_MS:
            break
        while n_ends > 0 and ends[0] == now_ms:
            ended = ends_row[0]
            n_ends = pop_end(ends, ends_row, n_ends, jobs)
            end_ms = start_ms[ended] + jobs[ended].estimate_ms
            job_ended(state, queue, promises, planning, end_ms, jobs[ended].job_id, now_ms)
        while row < len(jobs) and jobs[row].submit_ms == now_ms:
            job_submitted(state, queue, row)
            row += 1
        if state.counters[0].n_waiting == 0:
            # Nothing can start; half of all instants on a machine with little load are so.
            continue
        site_pass(state, queue, promises, planning, now_ms)
        for i in range(state.counters[0].n_started):
            started = state.started[i]
            start_ms[started] = now_ms
            n_ends = push_end(ends, ends_row, n_ends, jobs, now_ms + run_ms[started], started)
    clock[0] = row
    clock[1] = n_ends

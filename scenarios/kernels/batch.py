"""Driver 1: a whole trace through one compiled loop that calls the kernels of the site.

The loop is a discrete event simulation: at each instant the jobs that end, then those that are
submitted, then one pass.
"""

from __future__ import annotations

from gridweave.jit import kernel, kernel_part
from gridweave.site.kernels.dispatch import job_ended, site_pass
from gridweave.site.kernels.state import NEVER_MS, enqueue

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"


@kernel
def run_batch(state, plan, policy, limits, run_ms, start_ms, ends, ends_row, clock, until):
    """Simulate a workload from where the last call left off, up to a row of it.

    Parameters
    ----------
    state : SiteState
        Of an idle site; its table of jobs holds the workload, in the order of submission.
    plan : Plan or None
        None for a queue without reservations.
    policy : PolicyCodes
    limits : LimitArrays or None
        None for a queue.
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
            n_ends = _pop(ends, ends_row, n_ends, jobs)
            end_ms = start_ms[ended] + jobs[ended].estimate_ms
            job_ended(state, plan, limits, end_ms, jobs[ended].job_id, now_ms)
        while row < len(jobs) and jobs[row].submit_ms == now_ms:
            enqueue(state, row)
            row += 1
        if state.counters[0].n_waiting == 0:
            # Nothing can start; half of all instants on a machine with little load are so.
            continue
        site_pass(state, plan, policy, limits, now_ms)
        for i in range(state.counters[0].n_started):
            started = state.started[i]
            start_ms[started] = now_ms
            n_ends = _push(ends, ends_row, n_ends, jobs, now_ms + run_ms[started], started)
    clock[0] = row
    clock[1] = n_ends


@kernel_part
def _before(a_ms, a_row, b_ms, b_row, jobs):
    """Whether end a comes before end b: earlier, or at the same instant with the smaller job id."""
    if a_ms == b_ms:
        return jobs[a_row].job_id < jobs[b_row].job_id
    return a_ms < b_ms


@kernel_part
def _push(ends, ends_row, n_ends, jobs, end_ms, row):
    """Put an end into the heap; return its new size."""
    _sift_up(ends, ends_row, n_ends, jobs, end_ms, row)
    return n_ends + 1


@kernel_part
def _sift_up(ends, ends_row, child, jobs, end_ms, row):
    """Put an end where it belongs on the way from a leaf up to the root."""
    while child > 0:
        parent = (child - 1) >> 1
        if not _before(end_ms, row, ends[parent], ends_row[parent], jobs):
            break
        ends[child] = ends[parent]
        ends_row[child] = ends_row[parent]
        child = parent
    ends[child] = end_ms
    ends_row[child] = row


@kernel_part
def _pop(ends, ends_row, n_ends, jobs):
    """Take the first end out of the heap; return its new size.

    The hole goes down to a leaf along the smaller children, and the last end goes up from there: it nearly always
    belongs near the leaves, so this takes fewer comparisons than a sift down.
    """
    n_ends -= 1
    hole = 0
    child = 2
    while child < n_ends:
        if _before(ends[child - 1], ends_row[child - 1], ends[child], ends_row[child], jobs):
            child -= 1
        ends[hole] = ends[child]
        ends_row[hole] = ends_row[child]
        hole = child
        child = 2 * child + 2
    if child == n_ends:
        ends[hole] = ends[child - 1]
        ends_row[hole] = ends_row[child - 1]
        hole = child - 1
    _sift_up(ends, ends_row, hole, jobs, ends[n_ends], ends_row[n_ends])
    return n_ends

"""Driver 1 for sites whose nodes are shared: a whole trace through one compiled loop that calls the site's kernels."""

from __future__ import annotations

import numpy as np

from gridweave.jit import kernel, kernel_part
from gridweave.scenarios.batch.kernels.heap import pop_end, push_end
from gridweave.site.disciplines.sharing.kernels.sharing_pass import sharing_pass
from gridweave.site.disciplines.sharing.kernels.slowdown import job_ended
from gridweave.site.disciplines.sharing.kernels.state import forget_changes, job_submitted
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import work_done_ms, work_of

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"

UNKNOWN = np.int64(-1)
"""The end of a job that has not ended, its start before it has started."""


@kernel
def run_shared_batch(state, model, codes, run_ms, start_ms, end_ms, beside, busy, ends, ends_row, clock, until):
    """Simulate a workload from where the last call left off, up to a row of it.

    Parameters
    ----------
    state : SharedSite
        Of an idle site; its table of jobs holds the workload, in the order of submission.
    model : SlowdownArrays
    codes : SharingCodes
    run_ms : numpy.ndarray of int64, shape (n,)
        Run times, which the site does not know.
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        ``UNKNOWN`` at first; filled in.
    beside : numpy.ndarray of int64, shape (n,)
        Filled in: how many jobs a job shared nodes with after the pass that started it.
    busy : numpy.ndarray of int64, shape (2,)
        Node milliseconds that were used, and until when that is counted.
    ends, ends_row : numpy.ndarray of int64, shape (capacity,)
        A heap of ends, old ones among them: the end of a job that counts is the one in ``end_ms``. Its capacity is at
        least twice the number of jobs that may run.
    clock : numpy.ndarray of int64, shape (2,)
        How many jobs have been submitted, and how many entries of the heap are in use; zeros at first.
    until : int
        How many jobs are to be submitted in all when the call returns. When it is all of them, the call returns when
        nothing waits or runs any more.
    """
    jobs, counters = state.jobs, state.counters[0]
    row, n_ends = clock[0], clock[1]
    while row < until or row == len(jobs):
        n_ends = _drop_old(end_ms, ends, ends_row, n_ends, jobs)
        now_ms = jobs[row].submit_ms if row < len(jobs) else NEVER_MS
        if n_ends > 0:
            now_ms = min(now_ms, ends[0])
        if now_ms == NEVER_MS:
            break
        busy[0] += (len(state.used) - counters.idle) * (now_ms - busy[1])
        busy[1] = now_ms
        while n_ends > 0 and ends[0] == now_ms:
            ended = ends_row[0]
            n_ends = pop_end(ends, ends_row, n_ends, jobs)
            if end_ms[ended] == now_ms and jobs[ended].first_cell >= 0:
                job_ended(state, model, ended, now_ms)
        while row < len(jobs) and jobs[row].submit_ms == now_ms:
            job_submitted(state, row)
            row += 1
        if counters.waiting_width > 0:
            sharing_pass(state, model, codes, now_ms)
            for i in range(counters.n_started):
                start_ms[state.started[i]] = now_ms
                beside[state.started[i]] = jobs[state.started[i]].n_partners
        n_ends = _push_changes(state, run_ms, end_ms, ends, ends_row, n_ends, now_ms)
    clock[0] = row
    clock[1] = n_ends


@kernel_part
def _drop_old(end_ms, ends, ends_row, n_ends, jobs):
    """Take ends that count no more off the top of the heap; return its new size."""
    while n_ends > 0 and (end_ms[ends_row[0]] != ends[0] or jobs[ends_row[0]].first_cell < 0):
        n_ends = pop_end(ends, ends_row, n_ends, jobs)
    return n_ends


@kernel
def _push_changes(state, run_ms, end_ms, ends, ends_row, n_ends, now_ms):
    """Put the ends that have moved into the heap; when it is full, first make it anew of those that count."""
    jobs, counters = state.jobs, state.counters[0]
    for i in range(counters.n_changed):
        slot = state.changed[i]
        if jobs[slot].first_cell >= 0:
            moved_ms = _end_of(jobs[slot], run_ms[slot])
            if moved_ms != end_ms[slot]:
                end_ms[slot] = moved_ms
                if n_ends == len(ends):
                    n_ends = 0
                    for place in range(counters.n_running):
                        running = state.running[place]
                        if end_ms[running] != UNKNOWN and running != slot:
                            n_ends = push_end(ends, ends_row, n_ends, jobs, end_ms[running], running)
                n_ends = push_end(ends, ends_row, n_ends, jobs, moved_ms, slot)
    forget_changes(state)
    return n_ends


@kernel_part
def _end_of(job, run_ms):
    """Return when a job really ends, if its rate stays: when it has left of its estimate what it will not need."""
    left = job.left - work_of(job.estimate_ms - run_ms)
    return work_done_ms(left, job.rate, job.since_ms)

"""The one door through which the loop serves the disciplines under which rates change.

Each of them is an entry of `Paced`, and has a branch in each function here. Of one simulation all entries but one are
None, and numba leaves their branches out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.scenarios.batch.kernels.run import NOT_YET, RunArrays
from gridweave.site.disciplines.fractional.kernels.fractional_pass import FractionalCodes, fractional_pass
from gridweave.site.disciplines.fractional.kernels.state import WAITS, fractional_left, fractional_submitted
from gridweave.site.disciplines.gang.kernels.gang_pass import gang_pass
from gridweave.site.disciplines.gang.kernels.state import (
    GangCodes,
    GangSite,
    cycle_of,
    gang_job_ended,
    gang_job_submitted,
    gang_job_withdrawn,
)
from gridweave.site.disciplines.sharing.kernels.pairing import SharingCodes
from gridweave.site.disciplines.sharing.kernels.sharing_pass import sharing_pass
from gridweave.site.disciplines.sharing.kernels.slowdown import SlowdownArrays
from gridweave.site.disciplines.sharing.kernels.slowdown import job_ended as shared_job_ended
from gridweave.site.disciplines.sharing.kernels.state import forget_changes
from gridweave.site.disciplines.sharing.kernels.state import job_submitted as shared_job_submitted
from gridweave.site.disciplines.sharing.kernels.state import job_withdrawn as shared_job_withdrawn
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.turns import done_in_turns_ms
from gridweave.site.kernels.work import NOT_RUNNING, WorkTable, begin_work, change_rate, expect_work, stop_work, work_of

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"


class Sharing(NamedTuple):
    """What a site works with whose nodes jobs share.

    Attributes
    ----------
    model : SlowdownArrays
    codes : SharingCodes
    beside : numpy.ndarray of int64, shape (n,)
        Filled in: how many jobs a job shared nodes with after the pass that started it.
    busy : numpy.ndarray of int64, shape (2,)
        Node milliseconds that were used, and until when that is counted.
    """

    model: SlowdownArrays
    codes: SharingCodes
    beside: npt.NDArray[np.int64]
    busy: npt.NDArray[np.int64]


class Paced(NamedTuple):
    """What a site works with under whose discipline rates change: one entry for each, all but one None.

    Attributes
    ----------
    sharing : Sharing or None
        Jobs share nodes; the state is a `SharedSite`.
    gang : GangCodes or None
        Jobs share nodes in time; the state is a `GangSite`.
    fractional : FractionalCodes or None
        Tasks have fractions of nodes; the state is a `FractionalSite`.
    """

    sharing: Sharing | None = None
    gang: GangCodes | None = None
    fractional: FractionalCodes | None = None


_Sharing = Sharing | None
_Gang = GangCodes | None
_Fractional = FractionalCodes | None


@kernel_part
def paced_wakeup_ms(state: Any, sharing: _Sharing, gang: _Gang, fractional: _Fractional) -> Int:
    """Return the next instant at which there is to be a pass though nothing happens; `NEVER_MS` if there is none."""
    if gang is not None:
        return state.counters[0].due_ms
    if fractional is not None:
        return state.counters[0].next_wake_ms
    return NEVER_MS


@kernel_part
def paced_counted(state: Any, sharing: _Sharing, gang: _Gang, fractional: _Fractional, now_ms: Int) -> None:
    """Count what the time since the last instant came to, before anything changes."""
    if sharing is not None:
        sharing.busy[0] += (len(state.used) - state.counters[0].idle) * (now_ms - sharing.busy[1])
        sharing.busy[1] = now_ms


@kernel_part
def paced_submitted(state: Any, sharing: _Sharing, gang: _Gang, fractional: _Fractional, row: Int, now_ms: Int) -> None:
    """Put the job of a row into the queue."""
    if sharing is not None:
        shared_job_submitted(state, row)
    if gang is not None:
        gang_job_submitted(state, gang, row, now_ms)
    if fractional is not None:
        fractional_submitted(state, row)


@kernel_part
def paced_withdrawn(
    state: Any,
    work: WorkTable,
    sharing: _Sharing,
    gang: _Gang,
    fractional: _Fractional,
    run: RunArrays,
    row: Int,
    now_ms: Int,
) -> bool:
    """Take the job of a row out if it waits; return whether it did."""
    waits = False
    if sharing is not None:
        waits = state.jobs[row].waits == 1
        if waits:
            shared_job_withdrawn(state, row)
    if gang is not None:
        waits = gang_job_withdrawn(state, gang, row, now_ms)
        if waits:
            stop_work(run.ends, work, row)
    if fractional is not None:
        waits = state.jobs[row].status == WAITS
        if waits:
            fractional_left(state, row)
    return waits


@kernel_part
def paced_ended(
    state: Any, sharing: _Sharing, gang: _Gang, fractional: _Fractional, run: RunArrays, row: Int, now_ms: Int
) -> None:
    """Take a running job off its nodes."""
    if sharing is not None:
        shared_job_ended(state, sharing.model, row, now_ms)
    if gang is not None:
        run.start_ms[row] = state.jobs[row].begin_ms
        gang_job_ended(state, gang, row, now_ms)
    if fractional is not None:
        fractional_left(state, row)


@kernel_part
def paced_pass(
    state: Any, work: WorkTable, sharing: _Sharing, gang: _Gang, fractional: _Fractional, run: RunArrays, now_ms: Int
) -> None:
    """Run the pass of an instant, and let the jobs go on at the rates that it gives them."""
    if sharing is not None:
        counters = state.counters[0]
        if counters.waiting_width > 0:
            sharing_pass(state, sharing.model, sharing.codes, now_ms)
            for i in range(counters.n_started):
                run.start_ms[state.started[i]] = now_ms
                sharing.beside[state.started[i]] = state.jobs[state.started[i]].n_partners
        _follow_rates(state, work, run, now_ms)
        forget_changes(state)
    if gang is not None and gang_pass(state, gang, now_ms):
        _follow_turns(state, gang, work, run, now_ms)
    if fractional is not None:
        fractional_pass(state, fractional, now_ms)
        for i in range(state.counters[0].n_started):
            run.start_ms[state.started[i]] = now_ms
        _follow_rates(state, work, run, now_ms)


@kernel
def _follow_rates(state: Any, work: WorkTable, run: RunArrays, now_ms: Int) -> None:
    """Let the jobs begin, or go on, at the rates that the nodes that they share leave them."""
    for i in range(state.counters[0].n_changed):
        row = state.changed[i]
        job = state.jobs[row]
        if run.start_ms[row] != NOT_YET and run.end_ms[row] == NOT_YET:
            if work[row].rate == NOT_RUNNING:
                begin_work(run.ends, work, row, job.job_id, work_of(run.run_ms[row]), job.rate, now_ms)
            elif work[row].rate != job.rate:
                change_rate(run.ends, work, row, job.rate, now_ms)


@kernel
def _follow_turns(state: GangSite, gang: GangCodes, work: WorkTable, run: RunArrays, now_ms: Int) -> None:
    """Let the jobs go on in the slices that they have been given: each ends when it has worked long enough in them."""
    cycle = cycle_of(state, gang)
    for i in range(state.counters[0].n_placed):
        row = state.placed[i]
        job = state.jobs[row]
        left_ms = job.owed_ms + run.run_ms[row] - job.worked_ms
        end_ms = now_ms + done_in_turns_ms(job, cycle, left_ms)
        expect_work(run.ends, work, row, job.job_id, work_of(left_ms), now_ms, end_ms)

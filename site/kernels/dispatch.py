"""What a driver calls: the events of a site, and its scheduling pass, for whichever discipline the site runs.

A discipline that is array code has one argument and one branch in each function: the argument is what its kernels work
with, and None at a site that runs another discipline. Numba leaves out a branch whose argument is known to be None, so
the code of one discipline is compiled in a third of the time that all of them take.
"""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.disciplines.dynp.kernels.state import Tuning, tell_candidates
from gridweave.site.disciplines.dynp.kernels.tuning import job_cancelled, job_left, tuned_pass
from gridweave.site.kernels.blocks import index_new
from gridweave.site.kernels.limits import LimitArrays
from gridweave.site.kernels.planning import conservative_pass, hold, job_ended_early, plan_pass
from gridweave.site.kernels.queueing import QueueCodes, queue_pass
from gridweave.site.kernels.state import (
    COMPRESS,
    FRESH,
    GIVE_BACK,
    NEVER_MS,
    NO_PLACE,
    REPLAN,
    UNPLACED_MS,
    Plan,
    SiteState,
    dequeue,
    enqueue,
    finish,
    running_place,
)


class Planning(NamedTuple):
    """What a planning site works with.

    Attributes
    ----------
    plan : Plan
    limits : LimitArrays
    backfills : bool
        Whether a job may be planned to start before the one ahead of it.
    """

    plan: Plan
    limits: LimitArrays
    backfills: bool


class DisciplineArrays(NamedTuple):
    """What the discipline of a site works with; all but one are None.

    Attributes
    ----------
    queue : QueueCodes or None
        Backfilling none, EASY or with slack.
    promises : Plan or None
        Conservative backfilling.
    planning : Planning or None
    tuning : Tuning or None
        A planning site that tunes itself.
    """

    queue: QueueCodes | None
    promises: Plan | None
    planning: Planning | None
    tuning: Tuning | None = None


_Queue = QueueCodes | None
_Promises = Plan | None
_Planning = Planning | None
_Tuning = Tuning | None


@kernel_part
def site_pass(
    state: SiteState, queue: _Queue, promises: _Promises, planning: _Planning, tuning: _Tuning, now_ms: Int
) -> None:
    """Run the one scheduling pass of an instant; ``state.started`` then lists the jobs that started."""
    if queue is not None:
        queue_pass(state, queue, now_ms)
    if promises is not None:
        conservative_pass(state, promises, None, now_ms)
    if planning is not None:
        plan_pass(state, planning.plan, planning.limits, planning.backfills, now_ms)
    if tuning is not None:
        tuned_pass(state, tuning, now_ms)


@kernel
def pass_and_outlook(
    state: SiteState, queue: _Queue, promises: _Promises, planning: _Planning, tuning: _Tuning, now_ms: Int
) -> tuple[int, int, int]:
    """Run the pass of an instant; return how many jobs it started, the first end by estimate, and the next start."""
    site_pass(state, queue, promises, planning, tuning, now_ms)
    counters = state.counters[0]
    first_end_ms = state.running[0].end_ms if counters.n_running > 0 else NEVER_MS
    return counters.n_started, first_end_ms, counters.next_start_ms


@kernel_part
def job_submitted(state: SiteState, queue: _Queue, tuning: _Tuning, slot: Int) -> None:
    """Put the job of a slot, which is filled in, into the queue."""
    if tuning is not None:
        tell_candidates(state, tuning, slot)
    place = enqueue(state, slot)
    if queue is not None:
        index_new(state, place)


@kernel_part
def job_ended(
    state: SiteState,
    queue: _Queue,
    promises: _Promises,
    planning: _Planning,
    tuning: _Tuning,
    end_ms: Int,
    job_id: Int,
    now_ms: Int,
) -> bool:
    """Take a job out that has ended; ``end_ms`` is its end by estimate. Return whether it was running."""
    place = running_place(state, end_ms, job_id)
    if place == NO_PLACE:
        return False
    counters = state.counters[0]
    if queue is not None or end_ms < now_ms:
        counters.stale = REPLAN
    elif end_ms > now_ms:
        if promises is None:
            counters.stale = REPLAN
        else:
            job_ended_early(state, promises, None, place, now_ms)
    if tuning is not None:
        job_left(tuning)
    finish(state, place)
    return True


@kernel
def job_arrived(
    state: SiteState,
    queue: _Queue,
    tuning: _Tuning,
    slot: Int,
    key: float,
    submit_ms: Int,
    job_id: Int,
    width: Int,
    estimate_ms: Int,
    limits: Int,
) -> None:
    """Fill a slot in with a job, and put that into the queue."""
    job = state.jobs[slot]
    job.key = key
    job.submit_ms = submit_ms
    job.job_id = job_id
    job.width = width
    job.estimate_ms = estimate_ms
    job.limits = limits
    job_submitted(state, queue, tuning, slot)


@kernel
def job_withdrawn(state: SiteState, promises: _Promises, tuning: _Tuning, place: Int) -> None:
    """Take a waiting job out of the queue, and out of the promises if it stands there (None where there are none)."""
    counters = state.counters[0]
    counters.n_blocks = 0
    if tuning is not None:
        job_cancelled(state, tuning, state.waiting[place])
    if promises is None:
        counters.stale = REPLAN
    else:
        job = state.jobs[state.waiting[place]]
        if job.promised_ms != UNPLACED_MS and counters.stale != REPLAN:
            hold(promises, None, job.promised_ms, job.promised_ms + job.estimate_ms, job.width, job.limits, GIVE_BACK)
            if counters.stale == FRESH:
                counters.stale = COMPRESS
    dequeue(state, place)

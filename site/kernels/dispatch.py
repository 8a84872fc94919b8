"""What drivers call at a site whose jobs run from start to end at full speed: its events, and its scheduling pass.

Such a discipline hands them `SiteRules`: a named tuple of what its kernels work with, and these kernels as methods.
What all of them have in common stands here, and is compiled for each class of rules apart.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gridweave.jit import Int, kernel, kernel_method, kernel_part
from gridweave.site.kernels.blocks import index_new
from gridweave.site.kernels.limits import LimitArrays
from gridweave.site.kernels.planning import conservative_pass, job_ended_early, occupy_plan, plan_pass
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


class SiteRules(Protocol):
    """What drivers ask of a discipline; all methods are made by `gridweave.jit.kernel_method`."""

    def submitted(self, state: SiteState, slot: Int) -> None:
        """Put the job of a slot, which is filled in, into the queue."""

    def withdrawn(self, state: SiteState, place: Int) -> None:
        """Note that a waiting job is about to leave the queue."""

    def ended(self, state: SiteState, place: Int, end_ms: Int, now_ms: Int) -> None:
        """Note that a running job is about to leave; ``end_ms`` is its end by estimate."""

    def resized(self, by: Int) -> None:
        """Note that the site has so many nodes more, or fewer."""

    def run_pass(self, state: SiteState, now_ms: Int) -> None:
        """Run the one scheduling pass of an instant; ``state.started`` then lists the jobs that started."""


class QueueRules(NamedTuple):
    """The rules of a queue without a plan: backfilling none, EASY or with slack."""

    codes: QueueCodes

    @kernel_method
    def submitted(self, state: SiteState, slot: Int) -> None:
        index_new(state, enqueue(state, slot))

    @kernel_method
    def withdrawn(self, state: SiteState, place: Int) -> None:
        state.counters[0].stale = REPLAN

    @kernel_method
    def ended(self, state: SiteState, place: Int, end_ms: Int, now_ms: Int) -> None:
        state.counters[0].stale = REPLAN

    @kernel_method
    def resized(self, by: Int) -> None:
        pass

    @kernel_method
    def run_pass(self, state: SiteState, now_ms: Int) -> None:
        queue_pass(state, self.codes, now_ms)


class PromiseRules(NamedTuple):
    """The rules of a queue with conservative backfilling."""

    plan: Plan

    @kernel_method
    def submitted(self, state: SiteState, slot: Int) -> None:
        enqueue(state, slot)

    @kernel_method
    def withdrawn(self, state: SiteState, place: Int) -> None:
        counters = state.counters[0]
        job = state.jobs[state.waiting[place]]
        if job.promised_ms != UNPLACED_MS and counters.stale != REPLAN:
            end_ms = job.promised_ms + job.estimate_ms
            occupy_plan(self.plan, None, job.promised_ms, end_ms, job.width, job.limits, GIVE_BACK)
            if counters.stale == FRESH:
                counters.stale = COMPRESS

    @kernel_method
    def ended(self, state: SiteState, place: Int, end_ms: Int, now_ms: Int) -> None:
        if end_ms < now_ms:
            state.counters[0].stale = REPLAN
        elif end_ms > now_ms:
            job_ended_early(state, self.plan, None, place, now_ms)

    @kernel_method
    def resized(self, by: Int) -> None:
        self.plan.total[0] += by

    @kernel_method
    def run_pass(self, state: SiteState, now_ms: Int) -> None:
        conservative_pass(state, self.plan, None, now_ms)


class PlanRules(NamedTuple):
    """The rules of a planning site.

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

    @kernel_method
    def submitted(self, state: SiteState, slot: Int) -> None:
        enqueue(state, slot)

    @kernel_method
    def withdrawn(self, state: SiteState, place: Int) -> None:
        state.counters[0].stale = REPLAN

    @kernel_method
    def ended(self, state: SiteState, place: Int, end_ms: Int, now_ms: Int) -> None:
        if end_ms != now_ms:
            state.counters[0].stale = REPLAN

    @kernel_method
    def resized(self, by: Int) -> None:
        self.plan.total[0] += by

    @kernel_method
    def run_pass(self, state: SiteState, now_ms: Int) -> None:
        plan_pass(state, self.plan, self.limits, self.backfills, now_ms)


@kernel
def pass_and_outlook(state: SiteState, rules: SiteRules, now_ms: Int) -> tuple[int, int, int]:
    """Run the pass of an instant; return how many jobs it started, the first end by estimate, and the next start."""
    rules.run_pass(state, now_ms)
    counters = state.counters[0]
    first_end_ms = state.running[0].end_ms if counters.n_running > 0 else NEVER_MS
    return counters.n_started, first_end_ms, counters.next_start_ms


@kernel_part
def job_ended(state: SiteState, rules: SiteRules, end_ms: Int, job_id: Int, now_ms: Int) -> bool:
    """Take a job out that has ended; ``end_ms`` is its end by estimate. Return whether it was running."""
    place = running_place(state, end_ms, job_id)
    if place == NO_PLACE:
        return False
    rules.ended(state, place, end_ms, now_ms)
    finish(state, place)
    return True


@kernel
def job_arrived(
    state: SiteState,
    rules: SiteRules,
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
    rules.submitted(state, slot)


@kernel
def job_withdrawn(state: SiteState, rules: SiteRules, place: Int) -> None:
    """Take a waiting job out of the queue."""
    state.counters[0].n_blocks = 0
    rules.withdrawn(state, place)
    dequeue(state, place)

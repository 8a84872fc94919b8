"""What a site could offer: how many nodes now, and when nodes could be had behind all that waits."""

from __future__ import annotations

from gridweave.jit import Int, kernel
from gridweave.site.kernels.planning import earliest_start, occupy_plan, rebuild
from gridweave.site.kernels.queueing import QueueCodes, free_at, head_limit, spare_nodes
from gridweave.site.kernels.state import HEAD, NO_LIMITS, TAKE, Plan, SiteState


@kernel
def startable_behind_queue(state: SiteState, queue: QueueCodes, now_ms: Int, length_ms: Int) -> Int:
    """Return how many nodes a job of this length, at the end of a queue without promises, could have at once.

    Parameters
    ----------
    state : SiteState
        Read only, after a pass.
    queue : QueueCodes
    now_ms, length_ms : int
    """
    free = state.counters[0].free
    if state.counters[0].n_waiting == 0:
        return free
    if not queue.backfills:
        return 0
    head = state.jobs[state.waiting[0]]
    limit_ms, _ = head_limit(state, head, queue.slack)
    extra = free_at(state, limit_ms) - head.width
    return max(0, spare_nodes(length_ms, now_ms, free, limit_ms, extra))


@kernel
def start_behind_queue(state: SiteState, plan: Plan, backfills: bool, now_ms: Int, width: Int, length_ms: Int) -> Int:
    """Return when a job could start behind all that wait in a queue, if the queue were planned and estimates held.

    Parameters
    ----------
    state : SiteState
        Read only.
    plan : Plan
        Room to work in, with one profile.
    backfills : bool
        Whether a job may start before the one ahead of it.
    now_ms, width, length_ms : int
    """
    rebuild(state, plan, None, now_ms, HEAD)
    from_ms = now_ms
    for place in range(state.counters[0].n_waiting):
        job = state.jobs[state.waiting[place]]
        start_ms = earliest_start(plan, None, from_ms, job.width, job.estimate_ms, job.limits)
        occupy_plan(plan, None, start_ms, start_ms + job.estimate_ms, job.width, job.limits, TAKE)
        if not backfills:
            from_ms = start_ms
    return earliest_start(plan, None, from_ms, width, length_ms, NO_LIMITS)


@kernel
def free_throughout(plan: Plan, from_ms: Int, to_ms: Int) -> Int:
    """Return how many nodes are free by a plan at every instant from one to another, at least."""
    free = plan.total[0]
    for i in range(plan.n_steps[0]):
        until_ms = plan.step_ms[0, i + 1] if i + 1 < plan.n_steps[0] else to_ms
        if until_ms > from_ms and plan.step_ms[0, i] < to_ms:
            free = min(free, plan.step_free[0, i])
    return free

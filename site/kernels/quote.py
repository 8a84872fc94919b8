"""What a site could offer: when nodes could be had behind all that waits, and how many of them now."""

from __future__ import annotations

from gridweave.jit import kernel
from gridweave.site.kernels.planning import OVERDUE_MS
from gridweave.site.kernels.profile import clear, earliest_fit, occupy

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"


@kernel
def start_behind_queue(state, plan, backfills, now_ms, width, length_ms):
    """Return when a job could start behind all that wait in a queue, if the queue were planned and estimates held.

    Parameters
    ----------
    state : SiteState
        Read only.
    plan : Plan
        Room to work in.
    backfills : bool
        Whether a job may start before the one ahead of it.
    now_ms, width, length_ms : int

    Returns
    -------
    int
    """
    step_ms, step_free = plan.step_ms[0], plan.step_free[0]
    n_steps = clear(step_ms, step_free, now_ms, plan.total[0])
    for i in range(state.counters[0].n_running):
        end_ms = state.running[i].end_ms
        if end_ms <= now_ms:
            end_ms = now_ms + OVERDUE_MS
        n_steps = occupy(step_ms, step_free, n_steps, now_ms, end_ms, state.jobs[state.running[i].slot].width)
    from_ms = now_ms
    for place in range(state.counters[0].n_waiting):
        job = state.jobs[state.waiting[place]]
        start_ms = earliest_fit(step_ms, step_free, n_steps, from_ms, job.width, job.estimate_ms)
        n_steps = occupy(step_ms, step_free, n_steps, start_ms, start_ms + job.estimate_ms, job.width)
        if not backfills:
            from_ms = start_ms
    return earliest_fit(step_ms, step_free, n_steps, from_ms, width, length_ms)


@kernel
def free_throughout(plan, from_ms, to_ms):
    """Return how many nodes are free by a plan at every instant from one to another, at least."""
    free = plan.total[0]
    for i in range(plan.n_steps[0]):
        until_ms = plan.step_ms[0, i + 1] if i + 1 < plan.n_steps[0] else to_ms
        if until_ms > from_ms and plan.step_ms[0, i] < to_ms:
            free = min(free, plan.step_free[0, i])
    return free

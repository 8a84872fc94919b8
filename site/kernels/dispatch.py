"""What a driver calls: the events of a site, and its scheduling pass, for whichever discipline the site runs.

A discipline that is array code has one branch in each function. Disciplines differ by what they keep: EASY and its like
have no plan, conservative backfilling has a plan but no limits, planning has both. What is not kept is None, and numba
leaves out the branches that would need it: a site's code is compiled in a third of the time that all of them take.
"""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import kernel, kernel_part
from gridweave.site.kernels.planning import conservative_pass, hold, job_ended_early, plan_pass
from gridweave.site.kernels.queueing import queue_pass
from gridweave.site.kernels.state import (
    COMPRESS,
    FRESH,
    GIVE_BACK,
    NO_PLACE,
    REPLAN,
    UNPLACED_MS,
    dequeue,
    finish,
    running_place,
)

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"


class PolicyCodes(NamedTuple):
    """A site's policy as compiled code reads it.

    Attributes
    ----------
    backfills : bool
        Whether a job may start ahead of one before it in the queue.
    best_fit : bool
        Whether the widest backfill candidate is chosen, rather than the first.
    slack : float
        By which part of its estimate a head may be held back; 0 is EASY.
    """

    backfills: bool
    best_fit: bool
    slack: float


@kernel_part
def site_pass(state, plan, policy, limits, now_ms):
    """Run the one scheduling pass of an instant; ``state.started`` then lists the jobs that started."""
    if plan is None:
        queue_pass(state, policy, now_ms)
    elif limits is None:
        conservative_pass(state, plan, limits, now_ms)
    else:
        plan_pass(state, plan, policy, limits, now_ms)


@kernel_part
def job_ended(state, plan, limits, end_ms, job_id, now_ms):
    """Take a job out that has ended; ``end_ms`` is its end by estimate. Return whether it was running."""
    place = running_place(state, end_ms, job_id)
    if place == NO_PLACE:
        return False
    counters = state.counters[0]
    if plan is None:
        counters.stale = REPLAN
    elif limits is None:
        if end_ms > now_ms:
            job_ended_early(state, plan, limits, place, now_ms)
        elif end_ms < now_ms:
            counters.stale = REPLAN
    elif end_ms != now_ms:
        counters.stale = REPLAN
    finish(state, place)
    return True


@kernel
def job_withdrawn(state, plan, limits, place):
    """Take a waiting job out of the queue, and out of the plan if it stands there."""
    counters = state.counters[0]
    job = state.jobs[state.waiting[place]]
    if plan is None:  # noqa: SIM114  # numba leaves out what follows only if the test stands alone
        counters.stale = REPLAN
    elif limits is not None:
        counters.stale = REPLAN
    elif job.promised_ms != UNPLACED_MS and counters.stale != REPLAN:
        hold(plan, limits, job.promised_ms, job.promised_ms + job.estimate_ms, job.width, job.limits, GIVE_BACK)
        if counters.stale == FRESH:
            counters.stale = COMPRESS
    dequeue(state, place)

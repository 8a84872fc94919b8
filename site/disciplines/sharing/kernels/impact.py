"""The impact of a match on response times (docs/sharing.md, "Profit: response"; the paper, Figure 5).

Nothing here walks over the queue for a single candidate: what a search needs is summed up once.
"""

from __future__ import annotations

import math

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.disciplines.sharing.kernels.state import SharedSite
from gridweave.site.kernels.state import GONE
from gridweave.site.kernels.work import RATE_ONE, work_left

BOUND_MS = 60_000.0
"""No response time in a denominator is shorter (section 6.1)."""


@kernel_part
def ms_left(job: Record, now_ms: Int) -> float:
    """Return what a running job still has to do by its estimate, in milliseconds at rate 1, as a float."""
    return work_left(job.left, job.rate, job.since_ms, now_ms) / RATE_ONE


@kernel
def running_work(state: SharedSite, now_ms: Int) -> float:
    """Return the work of all running jobs over the nodes of the site, in ms."""
    total = 0.0
    for i in range(state.counters[0].n_running):
        job = state.jobs[state.running[i]]
        total += ms_left(job, now_ms) * job.width / len(state.used)
    return total


@kernel
def sum_up(state: SharedSite, base_ms: float) -> None:
    """Work out R and the sums of 1/R for all places of the queue, and for the predicted jobs, from R_0 on."""
    counters = state.counters[0]
    response_ms, relief, waiting = base_ms, 0.0, 0
    for place in range(counters.n_queue):
        if state.queue[place] != GONE:
            job = state.jobs[state.queue[place]]
            response_ms += 1.0 * job.estimate_ms * job.width / len(state.used)
            relief += 1.0 / max(response_ms, BOUND_MS)
            waiting += 1
        state.packed_ms[place] = response_ms
        state.relief[place] = relief
    counters.base = base_ms
    counters.relief_all = relief
    counters.relief_short = counters.relief_other = 0.0
    counters.n_counted = waiting
    _predict(state, response_ms)


@kernel
def _predict(state: SharedSite, response_ms: float) -> None:
    """Work out the sums of 1/R for the jobs that are predicted to come while the queue is worked off."""
    counters = state.counters[0]
    lasted_ms = counters.last_submit_ms - counters.first_submit_ms
    if counters.n_seen < 2 or lasted_ms == 0:
        return
    coming = math.floor(response_ms / (lasted_ms / (counters.n_seen - 1)))
    short = math.floor(coming * (counters.n_short_seen / counters.n_seen))
    if counters.n_short_seen > 0:
        mean_ms = counters.short_work / counters.n_short_seen / len(state.used)
        counters.relief_short = _relief_of(response_ms, short, mean_ms)
        response_ms += short * mean_ms
    others_seen = counters.n_seen - counters.n_short_seen
    if others_seen > 0:
        mean_ms = counters.other_work / others_seen / len(state.used)
        counters.relief_other = _relief_of(response_ms, coming - short, mean_ms)


@kernel_part
def _relief_of(response_ms: float, count: Int, mean_ms: float) -> float:
    """Return the sum of 1/R over jobs of one size that follow each other: the integral, and the bound before it."""
    bounded = min(count, max(0.0, math.floor((BOUND_MS - response_ms) / mean_ms)))
    from_ms = response_ms + (bounded + 0.5) * mean_ms
    return bounded / BOUND_MS + math.log((from_ms + (count - bounded) * mean_ms) / from_ms) / mean_ms


@kernel
def response_profit(state: SharedSite, host: Int, place: Int, slowdown: float, now_ms: Int) -> float:
    """Return the profit of letting the job at a place of the queue join a host, by its impact on response times."""
    counters = state.counters[0]
    nodes = len(state.used)
    a, b = state.jobs[host], state.jobs[state.queue[place]]
    a_ms, b_ms = ms_left(a, now_ms), 1.0 * b.estimate_ms
    pair_ms = min(a_ms, b_ms) * (slowdown - 1.0) + max(a_ms, b_ms)
    delay_ms = (pair_ms * a.width - a_ms * a.width) / nodes
    improvement_ms = b_ms * b.width / nodes - delay_ms
    before = state.relief[place - 1] if place > 0 else 0.0
    behind = counters.relief_all - state.relief[place]
    own_ms = state.packed_ms[place]
    increase = delay_ms / max(counters.base, BOUND_MS) + delay_ms * before
    decrease = (own_ms - b_ms * slowdown * b.width / nodes) / max(own_ms, BOUND_MS) + improvement_ms * behind
    increase += delay_ms * counters.relief_short
    decrease += improvement_ms * counters.relief_other
    return (decrease - increase) / counters.n_counted

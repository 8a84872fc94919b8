"""What a site with shared nodes can offer a job that is not in its queue (docs/sharing.md, "Quotes")."""

from __future__ import annotations

from gridweave.jit import Int, Ints, kernel
from gridweave.site.disciplines.sharing.kernels.matching import BEHIND, FREELY, NO_HOST, match_running, may_join
from gridweave.site.disciplines.sharing.kernels.nodes import count_open
from gridweave.site.disciplines.sharing.kernels.pairing import EASY, NO_BACKFILL, SharingCodes, try_match
from gridweave.site.disciplines.sharing.kernels.sharing_pass import reserve
from gridweave.site.disciplines.sharing.kernels.slowdown import SlowdownArrays
from gridweave.site.disciplines.sharing.kernels.state import EMPTY, SharedSite, average_wait_ms, order_queue
from gridweave.site.kernels.profile import clear, earliest_fit, occupy
from gridweave.site.kernels.state import GONE, NEVER_MS


@kernel
def idle_to_spare(
    state: SharedSite, codes: SharingCodes, step_ms: Ints, step_free: Ints, now_ms: Int, length_ms: Int
) -> Int:
    """Return how many idle nodes a job of this length could start on now, without harm to the jobs that wait.

    Parameters
    ----------
    state : SharedSite
    codes : SharingCodes
    step_ms, step_free : numpy.ndarray of int64, shape (steps,)
        Room for a profile, of the length that `empty_site` gives one that plans.
    now_ms, length_ms : int
    """
    counters = state.counters[0]
    _order(state, codes, now_ms)
    if counters.n_queue == 0:
        return counters.idle
    if codes.backfill == NO_BACKFILL:
        return 0
    if codes.backfill == EASY:
        reserve(state, state.queue[0], now_ms)
        return counters.idle if now_ms + length_ms <= counters.limit_ms else min(counters.idle, max(0, counters.extra))
    n_steps = _plan_queue(state, step_ms, step_free, now_ms)
    least, i = counters.idle, 0
    while i < n_steps and step_ms[i] < now_ms + length_ms:
        least = min(least, step_free[i])
        i += 1
    return max(0, least)


@kernel
def start_behind_queue(
    state: SharedSite, codes: SharingCodes, step_ms: Ints, step_free: Ints, now_ms: Int, width: Int, length_ms: Int
) -> Int:
    """Return when a job would start on its own nodes, if all that wait were planned alone, in the queue's order."""
    _order(state, codes, now_ms)
    n_steps = _plan_queue(state, step_ms, step_free, now_ms)
    return earliest_fit(step_ms, step_free, n_steps, now_ms, width, length_ms)


@kernel
def slowdown_offered(state: SharedSite, model: SlowdownArrays, codes: SharingCodes, slot: Int, now_ms: Int) -> float:
    """Return at which slowdown the job of a slot, which is filled in, could join a running one now; 0 if it could not.

    It is matched as a job at the end of the queue would be.
    """
    counters = state.counters[0]
    _order(state, codes, now_ms)
    state.jobs[slot].tested = 0
    if not may_join(state, codes, state.jobs[slot], BEHIND if counters.n_queue > 0 else FREELY):
        return 0.0
    backfills = counters.n_queue > 0 and codes.backfill == EASY
    if counters.n_queue > 0 and not backfills:
        return 0.0
    if backfills:
        reserve(state, state.queue[0], now_ms)
    counters.packed_running = 0
    place = counters.n_queue
    state.queue[place] = slot
    counters.n_queue += 1
    matches = state.searches[0].running_matches
    host = match_running(state, model, codes, place, backfills, now_ms)
    state.searches[0].running_matches = matches
    slowdown = 0.0
    if host != NO_HOST:
        try_match(state, model, codes, host, slot)
        slowdown = state.jobs[slot].trial_slowdown
    counters.n_queue -= 1
    counters.packed_running = 0
    return slowdown


@kernel
def _order(state: SharedSite, codes: SharingCodes, now_ms: Int) -> None:
    order_queue(state, average_wait_ms(state) if codes.age_ms == 0 else codes.age_ms, now_ms)


@kernel
def _plan_queue(state: SharedSite, step_ms: Ints, step_free: Ints, now_ms: Int) -> Int:
    """Make a profile of the nodes that are free of jobs: of the running ones, then of the waiting ones in turn."""
    counters = state.counters[0]
    n_steps = clear(step_ms, step_free, now_ms, count_open(state))
    for node in range(len(state.used)):
        free_ms = now_ms
        for lane in range(counters.lanes if state.closed[node] == 0 else 0):
            if state.occupant[node, lane] > EMPTY:
                free_ms = max(free_ms, state.jobs[state.occupant[node, lane]].end_ms)
        if free_ms > now_ms:
            n_steps = occupy(step_ms, step_free, n_steps, now_ms, free_ms, 1)
    for place in range(counters.n_queue):
        if state.queue[place] != GONE:
            job = state.jobs[state.queue[place]]
            start_ms = earliest_fit(step_ms, step_free, n_steps, now_ms, job.width, job.estimate_ms)
            if start_ms != NEVER_MS:
                n_steps = occupy(step_ms, step_free, n_steps, start_ms, start_ms + job.estimate_ms, job.width)
    return n_steps

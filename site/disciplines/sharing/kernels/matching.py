"""Search for the best match among the waiting or running jobs (docs/sharing.md; the paper, Figures 4 and 5).

The profit of a match may be its impact on response times. The sums needed for that are computed once per search, so
computing a candidate's profit takes no pass over the queue.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.disciplines.sharing.kernels.pairing import (
    ADJACENT,
    ALWAYS,
    BEARABLE,
    CONSERVATIVE,
    FIRST,
    FITS,
    MATCHABLE,
    MATCHING,
    RESPONSE,
    TOO_SHORT,
    TOO_WIDE,
    U2,
    SharingCodes,
    may_share,
    try_match,
)
from gridweave.site.disciplines.sharing.kernels.promises import keeps_promises, nodes_late
from gridweave.site.disciplines.sharing.kernels.slowdown import SlowdownArrays
from gridweave.site.disciplines.sharing.kernels.state import LEAVING, SharedSite
from gridweave.site.kernels.state import GONE, NO_PLACE
from gridweave.site.kernels.work import RATE_ONE, work_left

# Typed, because passing a plain literal to a kernel makes Numba compile the kernel again for that literal.
NO_HOST = np.int64(-1)
"""Result of a search among the running jobs if there is no match."""

FREELY, BEHIND = np.int64(0), np.int64(1)
"""Where a job starts from: the front of the queue, or behind the head, where it must not violate reservations."""


class CandidatesLeft(NamedTuple):
    """The number of waiting jobs behind a host, and how many of these jobs pass each test (the paper's Table 5)."""

    waiting: Int
    long_enough: Int
    narrow_enough: Int
    fitting: Int
    matchable: Int
    bearable: Int


@kernel
def profit_of(state: SharedSite, codes: SharingCodes, host: Int, place: Int, now_ms: Int) -> float:
    """Return the profit of a match; call this right after the match has passed `try_match`."""
    a, b = state.jobs[host], state.jobs[state.queue[place]]
    if codes.heuristic == RESPONSE:
        return response_profit(state, host, place, max(a.trial_slowdown, b.trial_slowdown), now_ms)
    gain = b.width / b.trial_slowdown
    for i in range(state.counters[0].n_affected):
        other = state.jobs[state.affected[i]]
        gain += other.width * (1.0 / other.trial_slowdown - 1.0 / other.slowdown)
    if codes.heuristic == U2:
        return gain / a.width
    a_ms, b_ms = ms_left(a, now_ms), 1.0 * b.estimate_ms
    return gain * min(a_ms, b_ms) / max(a_ms, b_ms) / a.width


@kernel
def match_waiting(
    state: SharedSite, model: SlowdownArrays, codes: SharingCodes, host: Int, first: Int, backfills: Int, now_ms: Int
) -> Int:
    """Return the queue index of the waiting job that should join a job that has just started, or ``NO_PLACE``.

    Parameters
    ----------
    state : SharedSite
    model : SlowdownArrays
    codes : SharingCodes
    host : int
        Slot of the job that has just started.
    first : int
        Queue index that the host had before it started.
    backfills : int
        ``FREELY`` or ``BEHIND``.
    now_ms : int
    """
    counters = state.counters[0]
    best, best_profit, allowed, rank = NO_PLACE, 0.0, 0, 0
    left = CandidatesLeft(0, 0, 0, 0, 0, 0)
    if codes.heuristic == RESPONSE and codes.coscheduling == MATCHING:
        a = state.jobs[host]
        sum_up(state, ms_left(a, now_ms) * a.width / len(state.used))
        counters.packed_running = 0
    for place in range(first if codes.coscheduling == ADJACENT else 0, counters.n_queue):
        slot = state.queue[place]
        if slot == GONE:
            continue
        passed = _last_test(state, model, codes, host, slot)
        if place > first:  # the statistics leave out the jobs ahead of the host, which this pass has already skipped
            left = _with_one_more(left, passed)
        if passed == BEARABLE and _keeps_word(state, codes, host, slot, backfills, now_ms):
            allowed += 1
            profit = 1.0 if codes.heuristic == FIRST else profit_of(state, codes, host, place, now_ms)
            if profit > best_profit:
                best, best_profit, rank = np.int64(place), profit, allowed
        if codes.coscheduling == ADJACENT or (best != NO_PLACE and codes.heuristic == FIRST):
            break
    state.searches[0].searches += 1
    if best != NO_PLACE:
        _count_match(state, left, rank)
    return best


@kernel_part
def _with_one_more(left: CandidatesLeft, passed: Int) -> CandidatesLeft:
    """Return the counts with one more candidate, whose test result is ``passed``."""
    return CandidatesLeft(
        left.waiting + 1,
        left.long_enough + (passed > TOO_SHORT),
        left.narrow_enough + (passed > TOO_WIDE),
        left.fitting + (passed >= FITS),
        left.matchable + (passed >= MATCHABLE),
        left.bearable + (passed >= BEARABLE),
    )


@kernel_part
def _count_match(state: SharedSite, left: CandidatesLeft, rank: Int) -> None:
    searches = state.searches[0]
    searches.matches += 1
    searches.selected += rank
    searches.waiting += left.waiting
    searches.long_enough += left.long_enough
    searches.narrow_enough += left.narrow_enough
    searches.fitting += left.fitting
    searches.matchable += left.matchable
    searches.bearable += left.bearable


@kernel
def _last_test(state: SharedSite, model: SlowdownArrays, codes: SharingCodes, host: Int, slot: Int) -> Int:
    """Return the result of tests 1 to 5 for a waiting job, from ``TOO_SHORT`` to ``BEARABLE``."""
    if not may_share(codes, state.jobs[slot]):
        return TOO_SHORT
    if state.jobs[slot].width > state.jobs[host].width:
        return TOO_WIDE
    return try_match(state, model, codes, host, slot)


@kernel_part
def _keeps_word(state: SharedSite, codes: SharingCodes, host: Int, slot: Int, backfills: Int, now_ms: Int) -> bool:
    """Whether a match that has passed `try_match` keeps the head's reservation (EASY) or all reservations."""
    if backfills == FREELY:
        return True
    if codes.backfill == CONSERVATIVE:
        return keeps_promises(state, codes, host, slot, now_ms)
    return nodes_late(state, codes, host, slot, now_ms) <= state.counters[0].extra


@kernel_part
def may_join(state: SharedSite, codes: SharingCodes, job: Record, mode: Int) -> bool:
    """Whether any running job that a waiting job may join has changed since the waiting job was last tested with it."""
    if mode == BEHIND and not codes.joins_behind:
        return False
    return searches_running(codes) and may_share(codes, job) and newest_open(state, codes) > job.tested


@kernel_part
def searches_running(codes: SharingCodes) -> bool:
    """Whether this policy allows waiting jobs to join running jobs."""
    return codes.coscheduling in (MATCHING, ALWAYS)


@kernel_part
def newest_open(state: SharedSite, codes: SharingCodes) -> Int:
    """Return the highest version of any running job that may get another partner; 0 if there is no such job."""
    if state.counters[0].open_version != state.counters[0].version:
        _list_open_hosts(state, codes)
    return state.counters[0].newest_open


@kernel
def _list_open_hosts(state: SharedSite, codes: SharingCodes) -> None:
    """Fill ``state.open_hosts`` with the running jobs that may get another partner."""
    counters = state.counters[0]
    count, newest = 0, np.int64(0)
    for i in range(counters.n_running):
        host = state.jobs[state.running[i]]
        if host.n_partners < codes.partners and host.one_kind != LEAVING and may_share(codes, host):
            state.open_hosts[count] = state.running[i]
            newest = max(newest, host.version)
            count += 1
    counters.n_open, counters.newest_open, counters.open_version = count, newest, counters.version


@kernel
def match_running(
    state: SharedSite, model: SlowdownArrays, codes: SharingCodes, place: Int, backfills: Int, now_ms: Int
) -> Int:
    """Return the slot of the running job that a waiting job should join, or ``NO_HOST``; call `may_join` first.

    The results of tests 1 to 5 change only when the jobs on the host's nodes change. So a job that has failed with all
    hosts is tested again only with hosts that have changed since then.
    """
    counters = state.counters[0]
    slot = state.queue[place]
    tested = state.jobs[slot].tested
    best, best_profit, any_passed = NO_HOST, 0.0, False
    for i in range(counters.n_open):
        host = state.open_hosts[i]
        a = state.jobs[host]
        if a.version <= tested or a.width < state.jobs[slot].width:
            continue
        if try_match(state, model, codes, host, slot) == BEARABLE:
            any_passed = True
            if codes.heuristic == RESPONSE and counters.packed_running == 0:
                sum_up(state, running_work(state, now_ms))
                counters.packed_running = 1
            profit = 1.0 if codes.heuristic == FIRST else profit_of(state, codes, host, place, now_ms)
            if profit > best_profit and _keeps_word(state, codes, host, slot, backfills, now_ms):
                best, best_profit = host, profit
                if codes.heuristic == FIRST:
                    break
    if not any_passed:
        state.jobs[slot].tested = counters.version
    state.searches[0].running_matches += best != NO_HOST
    return best


BOUND_MS = 60_000.0
"""Lower bound on response times in denominators, in ms (section 6.1)."""


@kernel_part
def ms_left(job: Record, now_ms: Int) -> float:
    """Return a running job's remaining work according to its estimate, in ms at rate 1."""
    return work_left(job.left, job.rate, job.since_ms, now_ms) / RATE_ONE


@kernel
def running_work(state: SharedSite, now_ms: Int) -> float:
    """Return the remaining work of all running jobs divided by the site's number of nodes, in ms."""
    total = 0.0
    for i in range(state.counters[0].n_running):
        job = state.jobs[state.running[i]]
        total += ms_left(job, now_ms) * job.width / len(state.used)
    return total


@kernel
def sum_up(state: SharedSite, base_ms: float) -> None:
    """Compute response times R and the sums of 1/R for queued and predicted jobs, starting from R_0 = `base_ms`."""
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
    """Compute the sums of 1/R for the jobs that are predicted to be submitted before the queue is empty."""
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
    """Return the sum of 1/R (R: response time) over successive equal jobs; integrate where R exceeds `BOUND_MS`."""
    bounded = min(count, max(0.0, math.floor((BOUND_MS - response_ms) / mean_ms)))
    from_ms = response_ms + (bounded + 0.5) * mean_ms
    return bounded / BOUND_MS + math.log((from_ms + (count - bounded) * mean_ms) / from_ms) / mean_ms


@kernel
def response_profit(state: SharedSite, host: Int, place: Int, slowdown: float, now_ms: Int) -> float:
    """Return the profit of letting a queued job join a host, measured by the impact on response times."""
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

"""Which match is best, among the waiting and among the running jobs (docs/sharing.md; the paper, Figure 4)."""

from __future__ import annotations

import numpy as np

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.disciplines.sharing.kernels.impact import ms_left, response_profit, running_work, sum_up
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
    U2,
    SharingCodes,
    may_share,
    try_match,
)
from gridweave.site.disciplines.sharing.kernels.promises import keeps_promises, nodes_late
from gridweave.site.disciplines.sharing.kernels.slowdown import SlowdownArrays
from gridweave.site.disciplines.sharing.kernels.state import LEAVING, SharedSite
from gridweave.site.kernels.state import GONE, NO_PLACE

# Typed, because a kernel called with a plain literal is compiled once more for that literal.
NO_HOST = np.int64(-1)
"""What a search among the running jobs returns that found none."""

FREELY, BEHIND = np.int64(0), np.int64(1)
"""Whether a job starts at the front of the queue, or behind those that have been promised something."""


@kernel
def profit_of(state: SharedSite, codes: SharingCodes, host: Int, place: Int, now_ms: Int) -> float:
    """Return the profit of a match that `try_match` has passed."""
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
    """Return the place of the waiting job that is to join a job which has just started, or ``NO_PLACE``.

    Parameters
    ----------
    state : SharedSite
    model : SlowdownArrays
    codes : SharingCodes
    host : int
        Slot of the job that has started.
    first : int
        The place of the queue where it stood.
    backfills : int
        ``FREELY`` or ``BEHIND``.
    now_ms : int
    """
    counters, searches = state.counters[0], state.searches[0]
    best, best_profit, passed, rank = NO_PLACE, 0.0, 0, 0
    searches.searches += 1
    if codes.heuristic == RESPONSE and codes.coscheduling == MATCHING:
        a = state.jobs[host]
        sum_up(state, ms_left(a, now_ms) * a.width / len(state.used))
        counters.packed_running = 0
    for place in range(first if codes.coscheduling == ADJACENT else 0, counters.n_queue):
        slot = state.queue[place]
        if slot == GONE:
            continue
        searches.waiting += 1
        if _passes_waiting(state, model, codes, host, slot):
            passed += 1
            profit = 1.0 if codes.heuristic == FIRST else profit_of(state, codes, host, place, now_ms)
            if profit > best_profit and _keeps_word(state, codes, host, slot, backfills, now_ms):
                best, best_profit, rank = np.int64(place), profit, passed
        if codes.coscheduling == ADJACENT or (best != NO_PLACE and codes.heuristic == FIRST):
            break
    searches.matches += best != NO_PLACE
    searches.selected += rank
    return best


@kernel
def _passes_waiting(state: SharedSite, model: SlowdownArrays, codes: SharingCodes, host: Int, slot: Int) -> bool:
    """Whether a waiting job passes the tests, which are counted."""
    searches = state.searches[0]
    if not may_share(codes, state.jobs[slot]):
        return False
    searches.long_enough += 1
    if state.jobs[slot].width > state.jobs[host].width:
        return False
    searches.narrow_enough += 1
    passed = try_match(state, model, codes, host, slot)
    searches.fitting += passed >= FITS
    searches.matchable += passed >= MATCHABLE
    searches.bearable += passed >= BEARABLE
    return passed == BEARABLE


@kernel_part
def _keeps_word(state: SharedSite, codes: SharingCodes, host: Int, slot: Int, backfills: Int, now_ms: Int) -> bool:
    """Whether a match that `try_match` has passed leaves the head, or all that wait, what they have been promised."""
    if backfills == FREELY:
        return True
    if codes.backfill == CONSERVATIVE:
        return keeps_promises(state, codes, host, slot, now_ms)
    return nodes_late(state, codes, host, slot, now_ms) <= state.counters[0].extra


@kernel_part
def may_join(state: SharedSite, codes: SharingCodes, job: Record, mode: Int) -> bool:
    """Whether there are running jobs that a waiting job may join and has not been tried with as they are now."""
    if mode == BEHIND and not codes.joins_behind:
        return False
    return searches_running(codes) and may_share(codes, job) and newest_open(state, codes) > job.tested


@kernel_part
def searches_running(codes: SharingCodes) -> bool:
    """Whether waiting jobs may join running ones at all."""
    return codes.coscheduling in (MATCHING, ALWAYS)


@kernel_part
def newest_open(state: SharedSite, codes: SharingCodes) -> Int:
    """Return the latest version of a running job that may get one more partner; 0 if there is none."""
    if state.counters[0].open_version != state.counters[0].version:
        _list_open_hosts(state, codes)
    return state.counters[0].newest_open


@kernel
def _list_open_hosts(state: SharedSite, codes: SharingCodes) -> None:
    """List the running jobs that may get one more partner."""
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
    """Return the slot of the running job that a waiting job, which `may_join`, is to join, or ``NO_HOST``.

    What the tests 1 to 5 say changes only when something changes on the nodes of the host, so a job that none of the
    hosts can take is tried again only with those on whose nodes something has changed since.
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

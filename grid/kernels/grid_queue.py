"""The grid queue: one queue over all sites, EASY backfilling with the head's reservation protected (docs/grid.md)."""

from __future__ import annotations

from gridweave.grid.kernels.placement import choose_site, earliest_single_end, may_split, take_site, take_split
from gridweave.grid.kernels.state import begin_taken, finish_job, give_back
from gridweave.jit import kernel, kernel_part
from gridweave.site.kernels.state import HEAD, NEVER_MS, NO_PLACE, drop_started, running_place

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def, assignment"


@kernel_part
def grid_job_ended(state, end_ms, job_id):
    """Take a job out that has ended; ``end_ms`` is its end by estimate. Return whether it was running."""
    place = running_place(state, end_ms, job_id)
    if place == NO_PLACE:
        return False
    finish_job(state, place)
    return True


@kernel
def grid_pass(state, codes, now_ms):
    """Start what may start now: the head while it can be placed, then backfill candidates.

    Parameters
    ----------
    state : GridState
        Changed in place; ``started`` lists the slots of the jobs that started.
    codes : GridCodes
    now_ms : int

    Notes
    -----
    Other than on one site, every pass is worked out anew: a job that starts on one site can move the head's reservation
    to another, and, under ``adaptive``, make a split pay that did not before. ``narrowest`` is a lower bound on the
    widths in the queue.
    """
    counters = state.counters[0]
    counters.n_started = 0
    counters.first_new = NEVER_MS
    if counters.n_waiting == 0 or counters.free < counters.narrowest:
        return
    head = HEAD
    while head < counters.n_waiting and _place_head(state, codes, state.waiting[head], state.free, now_ms):
        begin_taken(state, head, now_ms)
        head += 1
    if codes.backfills and head < counters.n_waiting and counters.free > 0:
        _reserve(state, codes, state.waiting[head])
        _backfill(state, codes, head, now_ms)
    if counters.n_started > 0:
        drop_started(state, HEAD)
    if counters.n_waiting == 0:
        counters.narrowest = NEVER_MS


@kernel
def _place_head(state, codes, slot, free, when_ms):
    """Place a job at an instant with these nodes free; return whether it can be, with the fragments in ``taken``."""
    site = choose_site(state, codes, slot, free, free)
    if site != NO_PLACE:
        take_site(state, slot, site)
        return True
    if not may_split(state, codes, slot):
        return False
    total = 0
    for s in range(len(free)):
        state.available[s] = free[s]
        total += free[s]
    if total < state.jobs[slot].width:
        return False
    if codes.adaptive and when_ms + state.stretched_ms[slot] >= earliest_single_end(state, slot, when_ms):
        return False
    return take_split(state, codes, slot, state.available)


@kernel
def _reserve(state, codes, slot):
    """Find the shadow time of the head and the nodes that it will take then; note what can be spared beyond it."""
    counters = state.counters[0]
    if codes.adaptive:
        # Works in ``later`` too, so it comes first; it stays valid for the whole search.
        earliest_single_end(state, slot, 0)
    later = state.extra
    for site in range(len(later)):
        later[site] = state.free[site]
    counters.shadow_ms = NEVER_MS
    i = 0
    while i < counters.n_running:
        when_ms = state.running[i].end_ms
        while i < counters.n_running and state.running[i].end_ms == when_ms:
            give_back(state, state.running[i].slot, later)
            i += 1
        if _place_head(state, codes, slot, later, when_ms):
            counters.shadow_ms = when_ms
            for k in range(counters.n_taken):
                later[state.taken[k].site] -= state.taken[k].width
            return


@kernel
def _backfill(state, codes, head, now_ms):
    """Try every job behind the head, in the order of the queue."""
    counters = state.counters[0]
    narrowest = state.jobs[state.waiting[head]].width
    for place in range(head + 1, counters.n_waiting):
        slot = state.waiting[place]
        job = state.jobs[slot]
        if job.width <= counters.free and _place_behind_head(state, codes, slot, now_ms):
            end_ms = begin_taken(state, place, now_ms)
            if end_ms > counters.shadow_ms:
                for k in range(counters.n_taken):
                    state.extra[state.taken[k].site] -= state.taken[k].width
            if counters.free == 0:
                return
        else:
            narrowest = min(narrowest, job.width)
    counters.narrowest = narrowest


@kernel
def _place_behind_head(state, codes, slot, now_ms):
    """Place a candidate so that the head is not delayed; return whether it can be, with the fragments in ``taken``."""
    _spare(state, now_ms + state.jobs[slot].estimate_ms)
    site = choose_site(state, codes, slot, state.available, state.free)
    if site != NO_PLACE:
        take_site(state, slot, site)
        return True
    if not may_split(state, codes, slot):
        return False
    end_ms = now_ms + state.stretched_ms[slot]
    if codes.adaptive and end_ms >= earliest_single_end(state, slot, now_ms):
        return False
    _spare(state, end_ms)
    return take_split(state, codes, slot, state.available)


@kernel_part
def _spare(state, end_ms):
    """Make available what a job that ends at an instant may take on each site."""
    for site in range(len(state.free)):
        available = state.free[site]
        if end_ms > state.counters[0].shadow_ms:
            available = min(available, state.extra[site])
        state.available[site] = available

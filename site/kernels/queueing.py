"""Queue disciplines: start jobs from the head, and backfill behind it with EASY or slack (docs/disciplines.md)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.kernels.blocks import (
    block_end,
    block_may_have,
    block_of,
    close_gaps,
    forget_block,
    keep_index,
    learn_block,
    widen_block,
    width_class,
)
from gridweave.site.kernels.state import (
    FRESH,
    GONE,
    HEAD,
    NEVER_MS,
    NO_PLACE,
    UNPLACED_MS,
    SiteState,
    begin,
)


class QueueCodes(NamedTuple):
    """The policy of a queue without promises, in the form that the kernels read.

    Attributes
    ----------
    backfills : bool
        Whether a job may overtake jobs ahead of it.
    best_fit : bool
        Whether to backfill the widest candidate instead of the first.
    slack : float
        Maximum delay of the head, as a fraction of its estimate; 0 is EASY.
    """

    backfills: bool
    best_fit: bool
    slack: float


@kernel_part
def shadow_time(state: SiteState, width: Int) -> Int:
    """Return when ``width`` nodes will be free if running jobs end as estimated (EASY's shadow time)."""
    free = state.counters[0].free
    for i in range(state.counters[0].n_running):
        free += state.jobs[state.running[i].slot].width
        if free >= width:
            return state.running[i].end_ms
    return NEVER_MS


@kernel_part
def free_at(state: SiteState, when_ms: Int) -> Int:
    """Return the estimated number of free nodes at a time, including the nodes of jobs that end at that time."""
    free = state.counters[0].free
    for i in range(state.counters[0].n_running):
        if state.running[i].end_ms > when_ms:
            break
        free += state.jobs[state.running[i].slot].width
    return free


@kernel_part
def spare_nodes(length_ms: Int, now_ms: Int, free: Int, limit_ms: Int, extra: Int) -> Int:
    """Return how many nodes a job of this length may use now without delaying the head past the head's limit."""
    return free if now_ms + length_ms <= limit_ms else min(free, extra)


@kernel_part
def may_backfill(job: Record, now_ms: Int, free: Int, limit_ms: Int, extra: Int) -> bool:
    """Whether a waiting job may start now without delaying the head past the head's limit."""
    # Compare with the free nodes first: most candidates are too wide, so that no other field is read.
    return job.width <= free and job.width <= spare_nodes(job.estimate_ms, now_ms, free, limit_ms, extra)


@kernel
def queue_pass(state: SiteState, queue: QueueCodes, now_ms: Int) -> None:
    """Start jobs from the head while they fit, then backfill candidates.

    Parameters
    ----------
    state : SiteState
        Changed in place; ``started`` lists the slots of the started jobs.
    queue : QueueCodes
    now_ms : int

    Notes
    -----
    A waiting job that could not start before can start only after another job has ended: until then, the free nodes,
    the extra nodes and the time up to the head's limit only shrink. So if no job has ended (``stale``) and no new job
    has become the head, the pass begins at the first new job. ``narrowest`` is a lower bound on the widths in the
    queue.
    """
    counters = state.counters[0]
    counters.n_started = 0
    # With slack, every computed shadow time of the head is a promise, so no pass may be skipped.
    if counters.n_waiting == 0 or (counters.free < counters.narrowest and queue.slack == 0):
        return
    keep_index(state)
    first = counters.first_new if counters.stale == FRESH else 0
    counters.first_new = NEVER_MS
    counters.stale = FRESH
    if first >= counters.n_waiting:
        return
    head = _start_from_head(state, now_ms) if first == 0 else HEAD
    if queue.backfills and head < counters.n_waiting:
        if first == 0:
            _guard_head(state, head, queue.slack)
        if queue.best_fit:
            _backfill_best_fit(state, max(first, head + 1), now_ms)
        elif counters.n_blocks == 0:
            _backfill_first_fit(state, head, max(first, head + 1), now_ms)
        else:
            _backfill_first_fit_by_blocks(state, head, max(first, head + 1), now_ms)
    if counters.n_started > 0:
        close_gaps(state, first)
    if counters.n_waiting == 0:
        counters.narrowest = NEVER_MS


@kernel_part
def _start_from_head(state: SiteState, now_ms: Int) -> Int:
    """Start jobs from the head while they fit; return the position of the first job that does not fit."""
    counters = state.counters[0]
    place = HEAD
    while place < counters.n_waiting and state.jobs[state.waiting[place]].width <= counters.free:
        begin(state, place, now_ms)
        place += 1
    return place


@kernel_part
def head_limit(state: SiteState, head: Record, slack: float) -> tuple[Int, Int]:
    """Return the head's limit (its latest start with backfilling) and its promise (its earliest shadow time)."""
    shadow_ms = shadow_time(state, head.width)
    promised_ms = head.promised_ms
    if promised_ms == UNPLACED_MS or shadow_ms < promised_ms:
        promised_ms = shadow_ms
    return max(shadow_ms, promised_ms + int(slack * head.estimate_ms)), promised_ms


@kernel_part
def _guard_head(state: SiteState, place: Int, slack: float) -> None:
    """Compute the head's limit and the number of extra nodes at that time."""
    counters = state.counters[0]
    head = state.jobs[state.waiting[place]]
    limit_ms, head.promised_ms = head_limit(state, head, slack)
    counters.limit_ms = limit_ms
    counters.extra = free_at(state, limit_ms) - head.width


@kernel_part
def _backfill_first_fit(state: SiteState, head: Int, first: Int, now_ms: Int) -> None:
    """Start every candidate that may start, in queue order; update ``narrowest`` if this covers the whole queue."""
    counters = state.counters[0]
    free, limit_ms, extra = counters.free, counters.limit_ms, counters.extra
    narrowest = state.jobs[state.waiting[head]].width
    for place in range(first, counters.n_waiting):
        job = state.jobs[state.waiting[place]]
        if may_backfill(job, now_ms, free, limit_ms, extra):
            _begin_behind_head(state, place, now_ms)
            free, extra = counters.free, counters.extra
            if free == 0:
                return
        else:
            narrowest = min(narrowest, job.width)
    if first == head + 1:
        counters.narrowest = narrowest


@kernel
def _backfill_first_fit_by_blocks(state: SiteState, head: Int, first: Int, now_ms: Int) -> None:
    """Backfill like `_backfill_first_fit`, but use the index to skip blocks."""
    counters = state.counters[0]
    narrowest = state.jobs[state.waiting[head]].width
    reach = _reach(state)
    for number in range(block_of(state, first), counters.n_blocks):
        if _block_may_backfill(state, number, 0, reach, now_ms):
            begin, end = state.blocks[number].first, block_end(state, number)
            if begin >= first:
                forget_block(state, number)
            for place in range(max(begin, first), end):
                job = state.jobs[state.waiting[place]]
                if may_backfill(job, now_ms, counters.free, counters.limit_ms, counters.extra):
                    _begin_behind_head(state, place, now_ms)
                else:
                    widen_block(state, number, job)
            reach = _reach(state)
        narrowest = min(narrowest, state.blocks[number].narrowest)
    if first == head + 1:
        counters.narrowest = narrowest


@kernel_part
def _reach(state: SiteState) -> tuple[Int, Int]:
    """Return the width classes of the widest job that may start and the widest that may run past the head's limit."""
    counters = state.counters[0]
    return width_class(counters.free), width_class(min(counters.free, counters.extra))


@kernel_part
def _block_may_backfill(state: SiteState, number: Int, lowest: Int, reach: tuple[Int, Int], now_ms: Int) -> bool:
    """Whether, judging by the index, a job of at least width class ``lowest`` in this block may start now."""
    in_time, beyond = reach
    counters = state.counters[0]
    if block_may_have(state, number, lowest, in_time, counters.limit_ms, now_ms):
        return True
    if state.blocks[number].narrowest > counters.extra:
        return False
    return block_may_have(state, number, lowest, beyond, NEVER_MS - 1, np.int64(0))


@kernel
def _backfill_best_fit(state: SiteState, first: Int, now_ms: Int) -> None:
    """Start the widest candidate that may start (ties: first in the queue), and repeat until none may start."""
    counters = state.counters[0]
    while counters.free > 0:
        best = NO_PLACE
        if counters.n_blocks == 0:
            best = _widest_candidate(state, first, counters.n_waiting, best, now_ms)
        else:
            lowest = 0
            reach = _reach(state)
            for number in range(block_of(state, first), counters.n_blocks):
                if _block_may_backfill(state, number, lowest, reach, now_ms):
                    begin, end = state.blocks[number].first, block_end(state, number)
                    wider = _widest_candidate(state, max(first, begin), end, best, now_ms)
                    if wider == best:
                        learn_block(state, number, begin, end)
                    else:
                        best = wider
                        lowest = width_class(state.jobs[state.waiting[best]].width + 1)
        if best == NO_PLACE:
            return
        _begin_behind_head(state, best, now_ms)


@kernel_part
def _widest_candidate(state: SiteState, begin: Int, end: Int, best: Int, now_ms: Int) -> Int:
    """Return the position of the widest job that may start, among ``best`` and the positions `begin` to `end`."""
    counters = state.counters[0]
    width = 0 if best == NO_PLACE else state.jobs[state.waiting[best]].width
    for place in range(begin, end):
        if state.waiting[place] != GONE:
            job = state.jobs[state.waiting[place]]
            if job.width > width and may_backfill(job, now_ms, counters.free, counters.limit_ms, counters.extra):
                best = place
                width = job.width
    return best


@kernel_part
def _begin_behind_head(state: SiteState, place: Int, now_ms: Int) -> None:
    """Start a candidate; if it will run past the head's limit, subtract its width from the extra nodes."""
    counters = state.counters[0]
    job = state.jobs[state.waiting[place]]
    if now_ms + job.estimate_ms > counters.limit_ms:
        counters.extra -= job.width
    begin(state, place, now_ms)

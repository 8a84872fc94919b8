"""Priority levels on top of a queue's rules: the order of the queue, and evictions before a pass (docs/levels.md)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_method, kernel_part
from gridweave.site.kernels.blocks import index_new
from gridweave.site.kernels.chunks import MANY, NodeArrays, add_held, choose
from gridweave.site.kernels.counted import copy_free, leave_nodes, take_chosen
from gridweave.site.kernels.dispatch import Evictions, evict
from gridweave.site.kernels.state import HEAD, NO_PLACE, REPLAN, SiteState, comes_before, enqueue_at, place_before

RESTARTS, CHECKPOINTS, STAYS = np.int64(0), np.int64(1), np.int64(2)
"""What happens to a job on eviction: it starts over, resumes from its checkpoint, or (`STAYS`) is never evicted."""

SPARED = np.int64(-1)
"""Replaces the slot of a job that was picked for eviction but is not needed."""


class LevelTable(NamedTuple):
    """The levels of a site's jobs, and which levels may evict which; level 0 is the highest.

    Attributes
    ----------
    base : numpy.ndarray of int64, shape (slots,)
        Level of each slot's job, according to its priority.
    times : numpy.ndarray of int64, shape (slots,)
        Number of times each slot's job was evicted.
    by : numpy.ndarray of int64, shape (slots,)
        Id of the job for which each slot's job was last evicted; meaningless if ``times`` is 0.
    way : numpy.ndarray of int64, shape (slots,)
        What happens to each slot's job on eviction: `RESTARTS`, `CHECKPOINTS` or `STAYS`.
    evictions : Evictions
    picked : numpy.ndarray of int64, shape (capacity,)
        Scratch: slots of the jobs selected for eviction.
    evicts : numpy.ndarray of bool, shape (levels, levels)
        Whether jobs of the row's level may evict jobs of the column's level, which must be lower.
    raise_after : int
        Number of evictions that raise a job by one level; 0: jobs are never raised.
    least_gain_ms : int
        Jobs are evicted for a waiting job only if it would otherwise start at least this much later.
    """

    base: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    by: npt.NDArray[np.int64]
    way: npt.NDArray[np.int64]
    evictions: Evictions
    picked: npt.NDArray[np.int64]
    evicts: npt.NDArray[np.bool_]
    raise_after: Int
    least_gain_ms: Int


class LevelRules(NamedTuple):
    """The rules of a queue or planning site with levels: the queue is sorted by level first.

    Attributes
    ----------
    under : SiteRules
        The site's rules without levels.
    levels : LevelTable
    nodes : NodeArrays or None
        The nodes, if the site counts resources.
    """

    under: Any
    levels: LevelTable
    nodes: NodeArrays | None = None

    @kernel_method
    def submitted(self, state: SiteState, slot: Int) -> None:
        index_new(state, enqueue_by_level(state, self.levels, slot))

    @kernel_method
    def withdrawn(self, state: SiteState, place: Int) -> None:
        self.under.withdrawn(state, place)

    @kernel_method
    def ended(self, state: SiteState, place: Int, end_ms: Int, now_ms: Int) -> None:
        self.under.ended(state, place, end_ms, now_ms)

    @kernel_method
    def resized(self, by: Int) -> None:
        self.under.resized(by)

    @kernel_method
    def run_pass(self, state: SiteState, now_ms: Int) -> None:
        _evict_on(state, self.nodes, self.levels, now_ms)
        self.under.run_pass(state, now_ms)


@kernel_part
def _evict_on(state: SiteState, nodes: NodeArrays | None, levels: LevelTable, now_ms: Int) -> None:
    if nodes is None:
        evict_for_heads(state, levels, now_ms)
    if nodes is not None:
        evict_on_nodes(state, nodes, levels, now_ms)


@kernel_part
def level_after(levels: LevelTable, slot: Int, times: Int) -> Int:
    """Return the level of a slot's job after ``times`` evictions."""
    if levels.raise_after == 0:
        return levels.base[slot]
    return max(np.int64(0), levels.base[slot] - times // levels.raise_after)


@kernel_part
def _level(levels: LevelTable, slot: Int) -> Int:
    return level_after(levels, slot, levels.times[slot])


@kernel
def enqueue_by_level(state: SiteState, levels: LevelTable, slot: Int) -> Int:
    """Insert a job into the queue, behind all higher levels and sorted within its own level; return its index."""
    level = _level(levels, slot)
    first = _first_from(state, levels, level)
    last = _first_from(state, levels, level + 1)
    place = place_before(state, state.jobs[slot], first, last)
    enqueue_at(state, slot, place)
    return place


@kernel_part
def _first_from(state: SiteState, levels: LevelTable, level: Int) -> Int:
    """Return the queue index of the first job of this level or a lower level, by bisection."""
    first, last = HEAD, state.counters[0].n_waiting
    while first < last:
        middle = (first + last) >> 1
        if _level(levels, state.waiting[middle]) >= level:
            last = middle
        else:
            first = middle + 1
    return first


@kernel
def evict_for_heads(state: SiteState, levels: LevelTable, now_ms: Int) -> None:
    """Evict jobs for the waiting jobs from the head of the queue up to the first job that still cannot start.

    Parameters
    ----------
    state : SiteState
        Changed in place; evicted jobs return to the queue.
    levels : LevelTable
        Changed in place; on return, its ``evictions`` list the evicted jobs.
    now_ms : int

    Notes
    -----
    Jobs are evicted only for jobs that can then start in the pass, and never for a job behind one that cannot start.
    """
    counters = state.counters[0]
    levels.evictions.counts[0] = 0
    place, ahead = HEAD, np.int64(0)
    while place < counters.n_waiting:
        width = state.jobs[state.waiting[place]].width
        lacking = ahead + width - counters.free
        if lacking > 0 and not _evict_for(state, levels, state.waiting[place], lacking, now_ms):
            return
        ahead += width
        place += 1


@kernel
def _evict_for(state: SiteState, levels: LevelTable, head: Int, lacking: Int, now_ms: Int) -> bool:
    """Evict jobs until `lacking` nodes are free for a waiting job; return whether that worked.

    Jobs are selected in the order of `_goes_first`; then, in that order, a job is spared if the rest free enough nodes.
    """
    if not _is_worth_it(state, levels, head, lacking, now_ms):
        return False
    last, n_picked = NO_PLACE, 0
    while lacking > 0:
        last = _next_victim(state, levels, head, last, now_ms)
        levels.picked[n_picked] = state.running[last].slot
        n_picked += 1
        lacking -= state.jobs[state.running[last].slot].width
    for number in range(n_picked):
        slot = levels.picked[number]
        if state.jobs[slot].width <= -lacking:
            lacking += state.jobs[slot].width
        else:
            _put_back(state, levels, head, slot, now_ms)
    return True


@kernel_part
def _put_back(state: SiteState, levels: LevelTable, head: Int, slot: Int, now_ms: Int) -> None:
    """Evict a running job for the waiting job `head`, and insert it into the queue."""
    state.counters[0].n_blocks = 0
    keeps_work = levels.way[slot] == CHECKPOINTS
    evict(state, levels.evictions, _running_place(state, slot), keeps_work, now_ms)
    levels.times[slot] += 1
    levels.by[slot] = state.jobs[head].job_id
    enqueue_by_level(state, levels, slot)


@kernel_part
def _is_worth_it(state: SiteState, levels: LevelTable, head: Int, lacking: Int, now_ms: Int) -> bool:
    """Whether evictions can free `lacking` nodes at least `least_gain_ms` before running jobs are due to free them."""
    evictable = np.int64(0)
    freed, free_ms = np.int64(0), now_ms
    for i in range(state.counters[0].n_running):
        width = state.jobs[state.running[i].slot].width
        if freed < lacking:
            freed += width
            free_ms = state.running[i].end_ms
        if _may_evict(state, levels, head, i, now_ms):
            evictable += width
    return evictable >= lacking and free_ms - now_ms >= levels.least_gain_ms


@kernel_part
def _may_evict(state: SiteState, levels: LevelTable, head: Int, place: Int, now_ms: Int) -> bool:
    """Whether a running job may be evicted for the waiting job `head`; once evicted, it must queue behind `head`."""
    slot = state.running[place].slot
    level = _level(levels, head)
    if not levels.evicts[level, _level(levels, slot)] or levels.way[slot] == STAYS:
        return False
    if state.running[place].end_ms <= now_ms:  # it has reached its time limit and is about to end
        return False
    raised = level_after(levels, slot, levels.times[slot] + 1)
    return raised > level or comes_before(state.jobs[head], state.jobs[slot])


@kernel_part
def _next_victim(state: SiteState, levels: LevelTable, head: Int, last: Int, now_ms: Int) -> Int:
    """Return the index of the running job to evict after the one at ``last``; the first if ``last`` is `NO_PLACE`."""
    best = NO_PLACE
    for i in range(state.counters[0].n_running):
        is_left = last == NO_PLACE or _goes_first(state, levels, last, i)
        is_better = best == NO_PLACE or _goes_first(state, levels, i, best)
        if is_left and is_better and _may_evict(state, levels, head, i, now_ms):
            best = i
    return best


@kernel_part
def _goes_first(state: SiteState, levels: LevelTable, place: Int, other: Int) -> bool:
    """Whether one running job is evicted before another: lower level first, then later start, then higher job id."""
    a, b = state.running[place].slot, state.running[other].slot
    level_a, level_b = _level(levels, a), _level(levels, b)
    if level_a != level_b:
        return level_a > level_b
    start_a = state.running[place].end_ms - state.jobs[a].estimate_ms
    start_b = state.running[other].end_ms - state.jobs[b].estimate_ms
    if start_a != start_b:
        return start_a > start_b
    return state.jobs[a].job_id > state.jobs[b].job_id


@kernel_part
def _running_place(state: SiteState, slot: Int) -> Int:
    place = HEAD
    while state.running[place].slot != slot:
        place += 1
    return place


# At a site that counts resources, the jobs from the head on fit if each fits after the nodes of the jobs ahead of it
# have been chosen by rule 4 of docs/resources.md, which is what the pass then does.


@kernel
def evict_on_nodes(state: SiteState, nodes: NodeArrays, levels: LevelTable, now_ms: Int) -> None:
    """Evict jobs like `evict_for_heads`, at a site that counts resources.

    Parameters
    ----------
    state : SiteState
        Changed in place; evicted jobs return to the queue.
    nodes : NodeArrays
        Changed in place; evicted jobs give back what they hold.
    levels : LevelTable
        Changed in place; on return, its ``evictions`` list the evicted jobs.
    now_ms : int
    """
    levels.evictions.counts[0] = 0
    state.counters[0].stale = REPLAN  # the last pass may have left the free amounts at the head's limit in `later`
    copy_free(nodes)
    last = HEAD
    while last < state.counters[0].n_waiting:
        if not _fit_on_later(state, nodes, last, last):
            if not _evict_on_nodes_for(state, nodes, levels, last, now_ms):
                return
            copy_free(nodes)
            _fit_on_later(state, nodes, HEAD, last)
        last += 1


@kernel_part
def _fit_on_later(state: SiteState, nodes: NodeArrays, first: Int, last: Int) -> bool:
    """Whether the waiting jobs from index `first` to `last` fit into ``later``; subtract the amounts that they take."""
    for place in range(first, last + 1):
        slot = state.waiting[place]
        if not choose(nodes, nodes.later, slot, state.jobs[slot].width):
            return False
        take_chosen(nodes, slot)
    return True


@kernel_part
def _fit_without(state: SiteState, nodes: NodeArrays, levels: LevelTable, n_picked: Int, last: Int) -> bool:
    """Whether the waiting jobs up to index `last` fit if all picked jobs that are not spared are evicted."""
    copy_free(nodes)
    for number in range(n_picked):
        if levels.picked[number] != SPARED:
            add_held(nodes, levels.picked[number], nodes.later, 1)
    return _fit_on_later(state, nodes, HEAD, last)


@kernel
def _evict_on_nodes_for(state: SiteState, nodes: NodeArrays, levels: LevelTable, last: Int, now_ms: Int) -> bool:
    """Evict jobs until the waiting jobs up to index `last` fit; return whether that worked."""
    head = state.waiting[last]
    victim, n_picked = NO_PLACE, 0
    while n_picked == 0 or not _fit_without(state, nodes, levels, n_picked, last):
        victim = _next_victim(state, levels, head, victim, now_ms)
        if victim == NO_PLACE:
            return False
        levels.picked[n_picked] = state.running[victim].slot
        n_picked += 1
    if not _gains_enough(state, nodes, levels, last, now_ms):
        return False
    for number in range(n_picked):
        slot = levels.picked[number]
        levels.picked[number] = SPARED
        if not _fit_without(state, nodes, levels, n_picked, last):
            levels.picked[number] = slot
    for number in range(n_picked):
        slot = levels.picked[number]
        if slot != SPARED:
            leave_nodes(nodes, slot)
            nodes.bound[slot] = MANY
            _put_back(state, levels, head, slot, now_ms)
    return True


@kernel_part
def _gains_enough(state: SiteState, nodes: NodeArrays, levels: LevelTable, last: Int, now_ms: Int) -> bool:
    """Whether the jobs up to `last` would fit, by the estimates, at least ``least_gain_ms`` later without evictions."""
    copy_free(nodes)
    for i in range(state.counters[0].n_running):
        if state.running[i].end_ms - now_ms < levels.least_gain_ms:
            add_held(nodes, state.running[i].slot, nodes.later, 1)
    return not _fit_on_later(state, nodes, HEAD, last)

"""A queue at a site that counts cores, memory and GPUs: the pass (docs/resources.md, "Rules").

The functions correspond to those in queueing.py, which only count nodes. Here, ``counters.free`` and
``counters.narrowest`` have no meaning, and there is no index of blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.chunks import (
    MANY,
    NO_ENTRY,
    Amounts,
    NodeArrays,
    add_held,
    amount,
    choose,
    choose_units,
    drop_entries,
    hold_chosen,
    units_on,
)
from gridweave.site.kernels.queueing import QueueCodes
from gridweave.site.kernels.state import (
    FRESH,
    GONE,
    HEAD,
    NEVER_MS,
    NO_PLACE,
    UNPLACED_MS,
    SiteState,
    begin,
    drop_started,
)

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"


@kernel
def counted_pass(state: SiteState, nodes: NodeArrays, queue: QueueCodes, now_ms: Int) -> None:
    """Start jobs from the head while they fit, then backfill candidates until no candidate may start.

    Parameters
    ----------
    state : SiteState
        Changed in place; ``started`` lists the slots of the started jobs.
    nodes : NodeArrays
        Changed in place; the started jobs have entries.
    queue : QueueCodes
    now_ms : int

    Notes
    -----
    As in `gridweave.site.kernels.queueing.queue_pass`, no job that waited before can start until another job has ended
    or a new job has started. ``later`` and ``extra`` are kept for such passes.
    """
    counters = state.counters[0]
    counters.n_started = 0
    if counters.n_waiting == 0:
        return
    first = counters.first_new if counters.stale == FRESH else 0
    counters.first_new = NEVER_MS
    counters.stale = FRESH
    if first >= counters.n_waiting:
        return
    _raise_bounds(state, nodes)
    head = _start_from_head(state, nodes, now_ms) if first == 0 else HEAD
    if queue.backfills and head < counters.n_waiting:
        if first == 0:
            counters.limit_ms = UNPLACED_MS
            if queue.slack > 0:  # every shadow time of the head is a promise
                _guard_head(state, nodes, state.waiting[head], queue.slack)
        if queue.best_fit:
            _backfill_best_fit(state, nodes, head, now_ms)
        else:
            _backfill_first_fit(state, nodes, head, max(first, head + 1), now_ms)
    if counters.n_started > 0:
        drop_started(state, HEAD)


@kernel_part
def _raise_bounds(state: SiteState, nodes: NodeArrays) -> None:
    """Raise the bounds of the waiting jobs by the units that may now fit on nodes where resources were freed."""
    if nodes.n_freed[0] == 0:
        return
    for place in range(state.counters[0].n_waiting):
        slot = state.waiting[place]
        needed = state.jobs[slot].width // nodes.chunks[slot]
        i = 0
        while i < nodes.n_freed[0] and nodes.bound[slot] < needed:
            if i == len(nodes.freed):
                nodes.bound[slot] = MANY
            else:
                nodes.bound[slot] += units_on(nodes, nodes.free, slot, nodes.freed[i])
            i += 1
    nodes.n_freed[0] = 0


@kernel_part
def fits_now(nodes: NodeArrays, slot: Int, width: Int) -> bool:
    """Whether a waiting job fits now; if so, choose its nodes."""
    needed = width // nodes.chunks[slot]
    if nodes.bound[slot] < needed:
        return False
    nodes.bound[slot] = choose_units(nodes, nodes.free, slot, needed)
    return nodes.bound[slot] >= needed


@kernel_part
def _start_from_head(state: SiteState, nodes: NodeArrays, now_ms: Int) -> Int:
    """Start jobs from the head while they fit; return the position of the first job that does not fit."""
    place = HEAD
    while place < state.counters[0].n_waiting:
        slot = state.waiting[place]
        if not fits_now(nodes, slot, state.jobs[slot].width):
            break
        begin_on_chosen(state, nodes, place, now_ms)
        place += 1
    return place


@kernel_part
def begin_on_chosen(state: SiteState, nodes: NodeArrays, place: Int, now_ms: Int) -> None:
    """Start the job at index `place` of the queue on the chosen nodes."""
    slot = state.waiting[place]
    hold_chosen(nodes, slot)
    add_held(nodes, slot, nodes.free, -1)
    begin(state, place, now_ms)


@kernel_part
def leave_nodes(nodes: NodeArrays, slot: Int) -> None:
    """Free a running job's resources."""
    number = nodes.first[slot]
    while number != NO_ENTRY:
        if nodes.n_freed[0] < len(nodes.freed):
            nodes.freed[nodes.n_freed[0]] = nodes.entries[number].node
        nodes.n_freed[0] += 1
        number = nodes.entries[number].next
    add_held(nodes, slot, nodes.free, 1)
    drop_entries(nodes, slot)


@kernel_part
def copy_free(nodes: NodeArrays) -> None:
    """Set ``later`` to the amounts that are free now."""
    for node in range(len(nodes.later)):
        for column in range(nodes.later.shape[1]):
            nodes.later[node, column] = nodes.free[node, column]


@kernel
def units_that_fit(nodes: NodeArrays, free: Amounts, slot: Int) -> Int:
    """Return how many units of a job fit on nodes with these free amounts, added up over all nodes."""
    units, column = np.int64(0), nodes.scarcest[slot]
    least = nodes.request[slot, column]
    for node in range(len(free)):
        if free[node, column] >= least:
            units += units_on(nodes, free, slot, node)
    return units


@kernel_part
def take_chosen(nodes: NodeArrays, slot: Int) -> None:
    """Subtract the resources that a job would hold on the chosen nodes from ``later``."""
    for i in range(nodes.n_chosen[0]):
        _take_later(nodes, slot, nodes.chosen[i, 0], nodes.chosen[i, 1], -1)


class HeadLimit(NamedTuple):
    """The limit up to which backfilled jobs may delay the head of the queue.

    Attributes
    ----------
    shadow_ms : int
        First estimated end of a running job at which the head fits; 0 if the head fits now, `NEVER_MS` if it does not
        fit even after all jobs have ended.
    limit_ms : int
        Latest start of the head with backfilling.
    promised_ms : int
        The head's earliest shadow time.
    extra : int
        Number of units of the head that fit at the limit in excess of the number that it needs.
    """

    shadow_ms: Int
    limit_ms: Int
    promised_ms: Int
    extra: Int


@kernel
def head_limit_on_nodes(state: SiteState, nodes: NodeArrays, head: Int, slack: float) -> HeadLimit:
    """Return the limit of the job in the slot ``head``; fill ``later`` with the free amounts at that time."""
    job, running = state.jobs[head], state.running
    copy_free(nodes)
    extra = units_that_fit(nodes, nodes.later, head) - job.width // nodes.chunks[head]
    i, shadow_ms = 0, np.int64(0)
    while i < state.counters[0].n_running and (extra < 0 or running[i].end_ms == shadow_ms):
        shadow_ms = running[i].end_ms
        extra += _give_back(nodes, running[i].slot, head)
        i += 1
    if extra < 0:
        shadow_ms = NEVER_MS
    promised_ms = job.promised_ms
    if promised_ms == UNPLACED_MS or shadow_ms < promised_ms:
        promised_ms = shadow_ms
    limit_ms = max(shadow_ms, promised_ms + int(slack * job.estimate_ms))
    while i < state.counters[0].n_running and running[i].end_ms <= limit_ms:
        extra += _give_back(nodes, running[i].slot, head)
        i += 1
    return HeadLimit(shadow_ms, limit_ms, promised_ms, extra)


@kernel_part
def _give_back(nodes: NodeArrays, slot: Int, head: Int) -> Int:
    """Add a running job's resources to ``later``; return how many more units of the head then fit."""
    more = np.int64(0)
    number = nodes.first[slot]
    while number != NO_ENTRY:
        entry = nodes.entries[number]
        suits = (nodes.kinds[head] >> nodes.kind[entry.node]) & 1 == 1
        if suits:
            more -= units_on(nodes, nodes.later, head, entry.node)
        _take_later(nodes, slot, entry.node, entry.units, 1)
        if suits:
            more += units_on(nodes, nodes.later, head, entry.node)
        number = entry.next
    return more


@kernel_part
def _guard_head(state: SiteState, nodes: NodeArrays, head: Int, slack: float) -> None:
    """Compute the head's limit, and what is free at that time."""
    counters = state.counters[0]
    limit = head_limit_on_nodes(state, nodes, head, slack)
    state.jobs[head].promised_ms = limit.promised_ms
    counters.limit_ms = limit.limit_ms
    counters.extra = limit.extra


@kernel_part
def cost_to_head(nodes: NodeArrays, head: Int, slot: Int) -> Int:
    """Return how many fewer units of the head fit at its limit if a candidate still holds the chosen nodes then."""
    cost = np.int64(0)
    for i in range(nodes.n_chosen[0]):
        node, units = nodes.chosen[i, 0], nodes.chosen[i, 1]
        cost += units_on(nodes, nodes.later, head, node)
        _take_later(nodes, slot, node, units, -1)
        cost -= units_on(nodes, nodes.later, head, node)
        _take_later(nodes, slot, node, units, 1)
    return cost


@kernel_part
def _take_later(nodes: NodeArrays, slot: Int, node: Int, units: Int, sign: Int) -> None:
    for column in range(nodes.later.shape[1]):
        nodes.later[node, column] += sign * amount(nodes, slot, node, units, column)


@kernel_part
def _begin_behind_head(state: SiteState, nodes: NodeArrays, head: Int, place: Int, now_ms: Int) -> None:
    """Start a candidate on the chosen nodes; if it runs past the head's limit, reduce what is left for the head."""
    counters = state.counters[0]
    slot = state.waiting[place]
    runs_past = now_ms + state.jobs[slot].estimate_ms > counters.limit_ms
    if runs_past:
        counters.extra -= cost_to_head(nodes, head, slot)
    begin_on_chosen(state, nodes, place, now_ms)
    if runs_past:
        add_held(nodes, slot, nodes.later, -1)


@kernel_part
def _may_start(state: SiteState, nodes: NodeArrays, head: Int, place: Int, now_ms: Int) -> bool:
    """Whether a candidate may start now without delaying the head past its limit; if so, choose its nodes.

    Without slack, the head's limit is computed for the first candidate that fits, because often none does.
    """
    counters = state.counters[0]
    slot = state.waiting[place]
    job = state.jobs[slot]
    if not fits_now(nodes, slot, job.width):
        return False
    if counters.limit_ms == UNPLACED_MS:
        _guard_head(state, nodes, head, 0.0)
    return now_ms + job.estimate_ms <= counters.limit_ms or cost_to_head(nodes, head, slot) <= counters.extra


@kernel
def _backfill_first_fit(state: SiteState, nodes: NodeArrays, head_place: Int, first: Int, now_ms: Int) -> None:
    """Start the first candidate in the queue that may start, and repeat until none may start.

    A start can change the nodes that rule 4 gives to earlier candidates, and thus whether they delay the head.
    """
    head = state.waiting[head_place]
    place = first
    while place < state.counters[0].n_waiting:
        if state.waiting[place] != GONE and _may_start(state, nodes, head, place, now_ms):
            _begin_behind_head(state, nodes, head, place, now_ms)
            place = head_place
        place += 1


@kernel
def _backfill_best_fit(state: SiteState, nodes: NodeArrays, head_place: Int, now_ms: Int) -> None:
    """Start the widest candidate that may start (ties: first in the queue), and repeat until none may start."""
    head = state.waiting[head_place]
    best = HEAD
    while best != NO_PLACE:
        best, width = NO_PLACE, np.int64(0)
        for place in range(head_place + 1, state.counters[0].n_waiting):
            slot = state.waiting[place]
            is_wider = slot != GONE and state.jobs[slot].width > width
            if is_wider and _may_start(state, nodes, head, place, now_ms):
                best, width = place, state.jobs[slot].width
        if best != NO_PLACE and _may_start(state, nodes, head, best, now_ms):
            _begin_behind_head(state, nodes, head, best, now_ms)


@kernel
def startable_on_nodes(
    state: SiteState, nodes: NodeArrays, queue: QueueCodes, slot: Int, now_ms: Int, length_ms: Int
) -> Int:
    """Return how many chunks of a job could start now at the end of a queue without promises.

    Parameters
    ----------
    state : SiteState
        Read only, after a pass.
    nodes : NodeArrays
        ``later`` and ``chosen`` are changed.
    queue : QueueCodes
    slot : int
        Slot with the request; its job may be of any width.
    now_ms, length_ms : int
    """
    units = units_that_fit(nodes, nodes.free, slot)
    if state.counters[0].n_waiting == 0 or units == 0:
        return units * nodes.chunks[slot]
    if not queue.backfills:
        return np.int64(0)
    head = state.waiting[HEAD]
    limit = head_limit_on_nodes(state, nodes, head, queue.slack)
    if now_ms + length_ms <= limit.limit_ms:
        return units * nodes.chunks[slot]
    choose(nodes, nodes.free, slot, units * nodes.chunks[slot])
    extra, startable = limit.extra, np.int64(0)
    for i in range(nodes.n_chosen[0]):
        node = nodes.chosen[i, 0]
        for _ in range(nodes.chosen[i, 1]):
            extra -= units_on(nodes, nodes.later, head, node)
            _take_later(nodes, slot, node, 1, -1)
            extra += units_on(nodes, nodes.later, head, node)
            if extra < 0:
                return startable * nodes.chunks[slot]
            startable += 1
    return startable * nodes.chunks[slot]

"""Waiting jobs' reservations, and which starts would violate them (docs/sharing.md, "The pass")."""

from __future__ import annotations

import numpy as np

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.disciplines.sharing.kernels.nodes import count_open, has_capacity, is_usable, skip_node
from gridweave.site.disciplines.sharing.kernels.pairing import SharingCodes, counts_memory, is_alike
from gridweave.site.disciplines.sharing.kernels.slowdown import forget_tried
from gridweave.site.disciplines.sharing.kernels.state import NO_CELL, SharedSite
from gridweave.site.kernels.profile import clear, earliest_fit, occupy
from gridweave.site.kernels.state import GIVE_BACK, GONE, NEVER_MS, TAKE, UNPLACED_MS
from gridweave.site.kernels.work import rate_of, work_done_ms, work_left, work_of

# Marks on nodes: the job would use the node; the node has been counted.
_TAKEN, _SEEN = 1, 2


@kernel
def nodes_late(state: SharedSite, codes: SharingCodes, host: Int, slot: Int, now_ms: Int) -> Int:
    """Return how many nodes the head would get late because of a match that has just passed `try_match`."""
    counters = state.counters[0]
    job = state.jobs[slot]
    _note_ends(state, slot, now_ms)
    if is_alike(state, host):
        node = state.jobs[host].first_cell // counters.lanes
        late = job.width * _becomes_late(state, node, job, True)
        late += (state.jobs[host].width - job.width) * _becomes_late(state, node, job, False)
    else:
        late = _count_late(state, codes, host, slot)
    forget_tried(state, state.affected, counters.n_affected)
    return late


@kernel
def _note_ends(state: SharedSite, slot: Int, now_ms: Int) -> None:
    """Set ``trial_end_ms`` to the estimated ends after a match, and mark the affected jobs as ``tried``."""
    job = state.jobs[slot]
    job.trial_end_ms = work_done_ms(work_of(job.estimate_ms), rate_of(job.trial_slowdown), now_ms)
    for i in range(state.counters[0].n_affected):
        other = state.jobs[state.affected[i]]
        left = work_left(other.left, other.rate, other.since_ms, now_ms)
        other.trial_end_ms = work_done_ms(left, rate_of(other.trial_slowdown), now_ms)
        other.tried = 1


@kernel
def _count_late(state: SharedSite, codes: SharingCodes, host: Int, slot: Int) -> Int:
    """Return how many nodes the head would get late, by checking each node of the affected jobs."""
    counters = state.counters[0]
    _mark_taken(state, codes, host, slot)
    late = 0
    for i in range(counters.n_affected):
        cell = state.jobs[state.affected[i]].first_cell
        while cell != NO_CELL:
            node = cell // counters.lanes
            # Count each node once, even if several of these jobs use it.
            if state.marked[node] < _SEEN:
                late += _becomes_late(state, node, state.jobs[slot], state.marked[node] == _TAKEN)
            state.marked[node] |= _SEEN
            cell = skip_node(state, cell)
    _unmark(state)
    return late


@kernel
def _unmark(state: SharedSite) -> None:
    """Clear the marks on the affected jobs' nodes."""
    for i in range(state.counters[0].n_affected):
        cell = state.jobs[state.affected[i]].first_cell
        while cell != NO_CELL:
            state.marked[cell // state.counters[0].lanes] = 0
            cell = skip_node(state, cell)


@kernel
def _mark_taken(state: SharedSite, codes: SharingCodes, host: Int, slot: Int) -> None:
    """Mark the host's nodes that a job would use: the first nodes with enough capacity."""
    n_nodes, cell = 0, state.jobs[host].first_cell
    while n_nodes < state.jobs[slot].width:
        node = cell // state.counters[0].lanes
        if has_capacity(state, node, state.jobs[slot], codes.partners, counts_memory(codes)):
            state.marked[node] = _TAKEN
            n_nodes += 1
        cell = skip_node(state, cell)


@kernel_part
def _becomes_late(state: SharedSite, node: Int, job: Record, taken: bool) -> bool:
    """Whether a node that the head can use would be busy beyond the shadow time with a match, but not without it."""
    counters = state.counters[0]
    if state.closed[node] or not is_usable(state, node, state.jobs[counters.head]):
        return False
    before_ms, after_ms = _free_times(state, node, job, taken)
    return before_ms <= counters.limit_ms < after_ms


@kernel_part
def _free_times(state: SharedSite, node: Int, job: Record, taken: bool) -> tuple[Int, Int]:
    """Return the estimated times at which a node becomes free, without the match and with it."""
    before_ms = np.int64(0)
    after_ms = job.trial_end_ms if taken else before_ms
    for lane in range(state.counters[0].lanes):
        if state.occupant[node, lane] >= 0:
            other = state.jobs[state.occupant[node, lane]]
            before_ms = max(before_ms, other.end_ms)
            after_ms = max(after_ms, other.trial_end_ms if other.tried == 1 else other.end_ms)
    return before_ms, after_ms


@kernel
def plan_running(state: SharedSite, now_ms: Int) -> None:
    """Build the profile of nodes left free by the running jobs, and clear the reservations of all waiting jobs."""
    counters = state.counters[0]
    counters.n_steps = clear(state.step_ms, state.step_free, now_ms, count_open(state))
    run, run_ms = np.int64(0), now_ms
    for node in range(len(state.used)):
        free_ms = now_ms
        if state.used[node] > 0 and state.closed[node] == 0:
            # Assume that a job past its time limit ends in the next millisecond.
            free_ms = max(now_ms + 1, node_free_ms(state, node))
        if free_ms != run_ms:
            _occupy(state, now_ms, run_ms, run)
            run, run_ms = np.int64(0), free_ms
        run += 1
    _occupy(state, now_ms, run_ms, run)
    for place in range(counters.n_queue):
        if state.queue[place] != GONE:
            state.jobs[state.queue[place]].promised_ms = UNPLACED_MS


@kernel_part
def node_free_ms(state: SharedSite, node: Int) -> Int:
    """Return the latest estimated end of any job on a node; 0 if the node has no jobs."""
    free_ms = np.int64(0)
    for lane in range(state.counters[0].lanes):
        if state.occupant[node, lane] >= 0:
            free_ms = max(free_ms, state.jobs[state.occupant[node, lane]].end_ms)
    return free_ms


@kernel_part
def _occupy(state: SharedSite, start_ms: Int, end_ms: Int, width: Int) -> None:
    """Subtract nodes from the profile; a negative width adds them back."""
    if end_ms > start_ms and width != 0:
        counters = state.counters[0]
        counters.n_steps = occupy(state.step_ms, state.step_free, counters.n_steps, start_ms, end_ms, width)


@kernel
def planned_start(state: SharedSite, slot: Int, now_ms: Int) -> Int:
    """Return a waiting job's earliest start that conflicts with no running job and no reservation."""
    job, steps = state.jobs[slot], state.counters[0].n_steps
    return earliest_fit(state.step_ms, state.step_free, steps, now_ms, job.width, job.estimate_ms)


@kernel
def promise(state: SharedSite, slot: Int, start_ms: Int) -> None:
    """Reserve nodes for a waiting job; if the start is ``NEVER_MS`` (too few nodes in service), only record it."""
    job = state.jobs[slot]
    job.promised_ms = start_ms
    if start_ms != NEVER_MS:
        _occupy(state, start_ms, start_ms + job.estimate_ms, job.width)


@kernel
def take_back(state: SharedSite, slot: Int) -> bool:
    """Remove a waiting job's reservation from the profile; return whether its start had been planned."""
    job = state.jobs[slot]
    if job.promised_ms == UNPLACED_MS:
        return False
    if job.promised_ms != NEVER_MS:
        _occupy(state, job.promised_ms, job.promised_ms + job.estimate_ms, -job.width)
    return True


@kernel
def occupy_alone(state: SharedSite, slot: Int, now_ms: Int) -> None:
    """Subtract from the profile the nodes of a job that starts on idle nodes."""
    _occupy(state, now_ms, now_ms + state.jobs[slot].estimate_ms, state.jobs[slot].width)


@kernel
def occupy_match(state: SharedSite, codes: SharingCodes, host: Int, slot: Int, now_ms: Int, sign: Int) -> None:
    """Subtract from the profile (or add back, depending on `sign`) the extra time for which a match occupies nodes.

    The match must have just passed `try_match`.
    """
    counters = state.counters[0]
    _note_ends(state, slot, now_ms)
    _mark_taken(state, codes, host, slot)
    for i in range(counters.n_affected):
        cell = state.jobs[state.affected[i]].first_cell
        while cell != NO_CELL:
            node = cell // counters.lanes
            if state.marked[node] < _SEEN and state.closed[node] == 0:
                taken = state.marked[node] == _TAKEN
                before_ms, after_ms = _free_times(state, node, state.jobs[slot], taken)
                _occupy(state, max(before_ms, now_ms + 1), max(after_ms, now_ms + 1), sign)
            state.marked[node] |= _SEEN
            cell = skip_node(state, cell)
    _unmark(state)
    forget_tried(state, state.affected, counters.n_affected)


@kernel
def keeps_promises(state: SharedSite, codes: SharingCodes, host: Int, slot: Int, now_ms: Int) -> bool:
    """Whether a match that has just passed `try_match` keeps all reservations except the job's own.

    The profile is restored before returning.
    """
    had = take_back(state, slot)
    occupy_match(state, codes, host, slot, now_ms, TAKE)
    kept = True
    for step in range(state.counters[0].n_steps):
        kept = kept and state.step_free[step] >= 0
    occupy_match(state, codes, host, slot, now_ms, GIVE_BACK)
    if had:
        promise(state, slot, state.jobs[slot].promised_ms)
    return kept

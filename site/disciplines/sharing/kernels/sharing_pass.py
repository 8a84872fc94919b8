"""Kernels of a site with shared nodes (docs/sharing.md).

They implement the scheduling pass (the paper, Figure 1), queries about jobs that are not in the queue, and the rules
with which the compiled loop runs such a site.
"""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import Int, Ints, Record, kernel, kernel_method, kernel_part
from gridweave.site.disciplines.sharing.kernels.matching import (
    BEHIND,
    FREELY,
    NO_HOST,
    match_running,
    match_waiting,
    may_join,
    newest_open,
    searches_running,
)
from gridweave.site.disciplines.sharing.kernels.nodes import count_idle, count_open, is_idle, is_usable
from gridweave.site.disciplines.sharing.kernels.pairing import (
    ALWAYS,
    CONSERVATIVE,
    EASY,
    NO_BACKFILL,
    SharingCodes,
    counts_memory,
    may_share,
    try_match,
)
from gridweave.site.disciplines.sharing.kernels.promises import (
    node_free_ms,
    nodes_late,
    occupy_alone,
    occupy_match,
    plan_running,
    planned_start,
    promise,
    take_back,
)
from gridweave.site.disciplines.sharing.kernels.slowdown import SlowdownArrays, job_ended, join, start_idle
from gridweave.site.disciplines.sharing.kernels.state import (
    SharedSite,
    average_wait_ms,
    drop_gone,
    forget_changes,
    job_submitted,
    job_withdrawn,
    order_queue,
)
from gridweave.site.kernels.dispatch import follow_rates
from gridweave.site.kernels.profile import clear, earliest_fit, occupy
from gridweave.site.kernels.state import GONE, NEVER_MS, NO_PLACE, TAKE
from gridweave.site.kernels.work import RunArrays, WorkTable


@kernel
def sharing_pass(state: SharedSite, model: SlowdownArrays, codes: SharingCodes, now_ms: Int) -> None:
    """Run the scheduling pass at time `now_ms`.

    On return, ``state.started`` lists the jobs that the pass started, and ``state.changed`` all jobs that started or
    whose rate may have changed since the last `forget_changes`.
    """
    counters = state.counters[0]
    counters.n_started = 0
    counters.packed_running = 0
    order_now(state, codes, now_ms)
    # One pass over the queue: jobs start freely up to the first that cannot; jobs behind it must keep all reservations.
    mode = FREELY
    for place in range(counters.n_queue):
        slot = state.queue[place]
        if slot == GONE or _is_passed_over(state, codes, state.jobs[slot], mode):
            continue
        if _may_start_alone(state, codes, slot, mode, now_ms):
            _start_with_matches(state, model, codes, place, mode, now_ms)
        elif not _join_running(state, model, codes, place, mode, now_ms):
            if not _is_walked_on(state, codes):
                break
            _give_promise(state, codes, slot, mode, now_ms)
            mode = BEHIND
    if counters.n_started > 0:
        drop_gone(state)


@kernel_part
def _is_passed_over(state: SharedSite, codes: SharingCodes, job: Record, mode: Int) -> bool:
    """Whether a job behind the head certainly cannot start. This test is fast and saves most of the slower calls."""
    if mode == FREELY or codes.backfill == CONSERVATIVE:
        return False
    return job.width > state.counters[0].idle and not may_join(state, codes, job, mode)


@kernel
def _may_start_alone(state: SharedSite, codes: SharingCodes, slot: Int, mode: Int, now_ms: Int) -> bool:
    """Whether a job may start on idle nodes now; if so, subtract its nodes from the extra nodes or the profile."""
    counters = state.counters[0]
    job = state.jobs[slot]
    if count_idle(state, job) < job.width:
        return False
    if mode == BEHIND and codes.backfill == CONSERVATIVE:
        if planned_start(state, slot, now_ms) != now_ms:
            return False
        occupy_alone(state, slot, now_ms)
    elif mode == BEHIND:
        late = _late_alone(state, job, now_ms)
        if late > counters.extra:
            return False
        counters.extra -= late
    return True


@kernel_part
def _is_walked_on(state: SharedSite, codes: SharingCodes) -> bool:
    """Whether this pass also tries the jobs behind a job that cannot start."""
    if codes.backfill == CONSERVATIVE:
        return state.counters[0].idle > 0 or (searches_running(codes) and newest_open(state, codes) > 0)
    return codes.backfill == EASY


@kernel
def _give_promise(state: SharedSite, codes: SharingCodes, slot: Int, mode: Int, now_ms: Int) -> None:
    """Reserve nodes for a job that cannot start: with EASY only for the head, with conservative for every job."""
    if codes.backfill == CONSERVATIVE:
        if mode == FREELY:
            plan_running(state, now_ms)
        promise(state, slot, planned_start(state, slot, now_ms))
    elif mode == FREELY:
        reserve(state, slot, now_ms)


@kernel_part
def _is_weakly_loaded(state: SharedSite, codes: SharingCodes) -> bool:
    """Whether the widths of all waiting jobs add up to at most the fraction ``load_part`` of the idle nodes."""
    counters = state.counters[0]
    return codes.coscheduling != ALWAYS and counters.waiting_width <= codes.load_part * counters.idle


@kernel
def _start_with_matches(
    state: SharedSite, model: SlowdownArrays, codes: SharingCodes, place: Int, backfills: Int, now_ms: Int
) -> None:
    """Start a job on idle nodes (enough must be idle), then let its best matches among the waiting jobs join it."""
    shares = may_share(codes, state.jobs[state.queue[place]]) and not _is_weakly_loaded(state, codes)
    host = start_idle(state, model, place, now_ms)
    while shares and state.jobs[host].n_partners < codes.partners:
        match = match_waiting(state, model, codes, host, place, backfills, now_ms)
        if match == NO_PLACE:
            return
        _join(state, model, codes, host, match, backfills, now_ms)


@kernel
def _join_running(
    state: SharedSite, model: SlowdownArrays, codes: SharingCodes, place: Int, backfills: Int, now_ms: Int
) -> bool:
    """Start a job on the nodes of the best matching running job; return whether there was a match."""
    if not may_join(state, codes, state.jobs[state.queue[place]], backfills):
        return False
    host = match_running(state, model, codes, place, backfills, now_ms)
    if host == NO_HOST:
        return False
    _join(state, model, codes, host, place, backfills, now_ms)
    return True


@kernel
def _join(
    state: SharedSite, model: SlowdownArrays, codes: SharingCodes, host: Int, place: Int, backfills: Int, now_ms: Int
) -> None:
    """Start a waiting job on its host's nodes; when backfilling, update the extra nodes or the profile."""
    slot = state.queue[place]
    if backfills == BEHIND:
        try_match(state, model, codes, host, slot)
        if codes.backfill == CONSERVATIVE:
            take_back(state, slot)
            occupy_match(state, codes, host, slot, now_ms, TAKE)
        else:
            state.counters[0].extra -= nodes_late(state, codes, host, slot, now_ms)
    join(state, model, host, place, codes.partners, counts_memory(codes), now_ms)


@kernel
def _late_alone(state: SharedSite, job: Record, now_ms: Int) -> Int:
    """Return how many nodes the head would get late if a job started on idle nodes."""
    counters = state.counters[0]
    if now_ms + job.estimate_ms <= counters.limit_ms:
        return 0
    head = state.jobs[counters.head]
    if len(state.kinds) == 1:
        return job.width
    late, missing, node = 0, job.width, 0
    while missing > 0:
        if is_idle(state, node) and is_usable(state, node, job):
            late += is_usable(state, node, head)
            missing -= 1
        node += 1
    return late


@kernel
def reserve(state: SharedSite, slot: Int, now_ms: Int) -> None:
    """Make a slot's job the head, and compute its shadow time (``limit_ms``) and the extra nodes."""
    counters = state.counters[0]
    counters.head = slot
    head = state.jobs[slot]
    count = 0
    for node in range(len(state.used)):
        if state.closed[node] == 0 and is_usable(state, node, head):
            state.free_ms[count] = max(now_ms, node_free_ms(state, node))
            count += 1
    if count < head.width:
        # Too few nodes are in service for the head, so no start can delay it.
        counters.limit_ms, counters.extra = NEVER_MS, 0
        return
    counters.limit_ms = _smallest(state.free_ms, count, head.width - 1)
    counters.extra = -head.width
    for i in range(count):
        counters.extra += state.free_ms[i] <= counters.limit_ms


@kernel
def _smallest(values: Ints, count: Int, rank: Int) -> Int:
    """Return the ``rank``-th smallest (from 0) of the first ``count`` values by quickselect, which reorders them."""
    low, high = 0, count - 1
    while low < high:
        pivot = values[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            break
    return values[rank]


@kernel
def idle_to_spare(state: SharedSite, codes: SharingCodes, now_ms: Int, length_ms: Int) -> Int:
    """Return the number of idle nodes on which a job of this length could start now without delaying waiting jobs.

    Parameters
    ----------
    state : SharedSite
        A state with an availability profile (`empty_site` with ``plans``).
    codes : SharingCodes
    now_ms, length_ms : int
    """
    counters = state.counters[0]
    order_now(state, codes, now_ms)
    if counters.n_queue == 0:
        return counters.idle
    if codes.backfill == NO_BACKFILL:
        return 0
    if codes.backfill == EASY:
        reserve(state, state.queue[0], now_ms)
        return counters.idle if now_ms + length_ms <= counters.limit_ms else min(counters.idle, max(0, counters.extra))
    n_steps = _plan_queue(state, now_ms)
    least, i = counters.idle, 0
    while i < n_steps and state.step_ms[i] < now_ms + length_ms:
        least = min(least, state.step_free[i])
        i += 1
    return max(0, least)


@kernel
def start_behind_queue(state: SharedSite, codes: SharingCodes, now_ms: Int, width: Int, length_ms: Int) -> Int:
    """Return when a job would start on unshared nodes after all waiting jobs, if these also share no nodes."""
    order_now(state, codes, now_ms)
    return earliest_fit(state.step_ms, state.step_free, _plan_queue(state, now_ms), now_ms, width, length_ms)


@kernel
def slowdown_offered(
    state: SharedSite, model: SlowdownArrays, codes: SharingCodes, slot: Int, now_ms: Int
) -> tuple[float, Int]:
    """Return the slowdown that a job would have if it joined a running job now, and the running job's slot.

    The slowdown is 0 if the job cannot join any running job. The row of `slot` must be filled in; the job is matched
    as if it were at the end of the queue.
    """
    counters = state.counters[0]
    order_now(state, codes, now_ms)
    state.jobs[slot].tested = 0
    mode = BEHIND if counters.n_queue > 0 else FREELY
    if not may_join(state, codes, state.jobs[slot], mode):
        return 0.0, NO_HOST
    if mode == BEHIND:
        if codes.backfill != EASY:
            return 0.0, NO_HOST
        reserve(state, state.queue[0], now_ms)
    counters.packed_running = 0
    place = counters.n_queue
    state.queue[place] = slot
    counters.n_queue += 1
    matches = state.searches[0].running_matches
    host = match_running(state, model, codes, place, mode, now_ms)
    state.searches[0].running_matches = matches
    slowdown = 0.0
    if host != NO_HOST:
        try_match(state, model, codes, host, slot)
        slowdown = state.jobs[slot].trial_slowdown
    counters.n_queue -= 1
    counters.packed_running = 0
    return slowdown, host


@kernel
def order_now(state: SharedSite, codes: SharingCodes, now_ms: Int) -> None:
    """Sort the queue as of time `now_ms`, which determines how far the jobs have aged."""
    order_queue(state, average_wait_ms(state) if codes.age_ms == 0 else codes.age_ms, now_ms)


@kernel
def _plan_queue(state: SharedSite, now_ms: Int) -> Int:
    """Build the profile of free nodes: subtract running jobs, then place the waiting jobs in queue order.

    Return the number of steps in the profile.
    """
    step_ms, step_free = state.step_ms, state.step_free
    n_steps = clear(step_ms, step_free, now_ms, count_open(state))
    for node in range(len(state.used)):
        free_ms = node_free_ms(state, node)
        if state.closed[node] == 0 and free_ms > now_ms:
            n_steps = occupy(step_ms, step_free, n_steps, now_ms, free_ms, 1)
    for place in range(state.counters[0].n_queue):
        if state.queue[place] != GONE:
            job = state.jobs[state.queue[place]]
            start_ms = earliest_fit(step_ms, step_free, n_steps, now_ms, job.width, job.estimate_ms)
            if start_ms != NEVER_MS:
                n_steps = occupy(step_ms, step_free, n_steps, start_ms, start_ms + job.estimate_ms, job.width)
    return n_steps


class SharingRules(NamedTuple):
    """The `RateRules` of a `SharedSite`.

    Attributes
    ----------
    model : SlowdownArrays
    codes : SharingCodes
    beside : numpy.ndarray of int64, shape (n,)
        Output: the number of jobs with which each job shared nodes right after the pass that started it.
    busy : numpy.ndarray of int64, shape (2,)
        Output: node milliseconds used so far, and the time up to which they are counted.
    """

    model: SlowdownArrays
    codes: SharingCodes
    beside: Ints
    busy: Ints

    @kernel_method
    def wakeup_ms(self, state: SharedSite) -> Int:
        return NEVER_MS

    @kernel_method
    def counted(self, state: SharedSite, now_ms: Int) -> None:
        self.busy[0] += (len(state.used) - state.counters[0].idle) * (now_ms - self.busy[1])
        self.busy[1] = now_ms

    @kernel_method
    def submitted(self, state: SharedSite, row: Int, now_ms: Int) -> None:
        job_submitted(state, row)

    @kernel_method
    def withdrawn(self, state: SharedSite, work: WorkTable, run: RunArrays, row: Int, now_ms: Int) -> bool:
        if state.jobs[row].waits != 1:
            return False
        job_withdrawn(state, row)
        return True

    @kernel_method
    def ended(self, state: SharedSite, run: RunArrays, row: Int, now_ms: Int) -> None:
        job_ended(state, self.model, row, now_ms)

    @kernel_method
    def run_pass(self, state: SharedSite, work: WorkTable, run: RunArrays, now_ms: Int) -> None:
        counters = state.counters[0]
        if counters.waiting_width > 0:
            sharing_pass(state, self.model, self.codes, now_ms)
            for i in range(counters.n_started):
                run.start_ms[state.started[i]] = now_ms
                self.beside[state.started[i]] = state.jobs[state.started[i]].n_partners
        follow_rates(state, work, run, now_ms)
        forget_changes(state)

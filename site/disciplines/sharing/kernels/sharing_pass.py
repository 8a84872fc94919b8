"""The scheduling pass of a site whose nodes are shared (docs/sharing.md, "The pass"; the paper, Figure 1)."""

from __future__ import annotations

from gridweave.jit import Int, Ints, Record, kernel, kernel_part
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
from gridweave.site.disciplines.sharing.kernels.nodes import count_idle, is_idle, is_usable
from gridweave.site.disciplines.sharing.kernels.pairing import (
    ALWAYS,
    CONSERVATIVE,
    EASY,
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
from gridweave.site.disciplines.sharing.kernels.slowdown import SlowdownArrays, join, start_idle
from gridweave.site.disciplines.sharing.kernels.state import SharedSite, average_wait_ms, drop_gone, order_queue
from gridweave.site.kernels.state import GONE, NEVER_MS, NO_PLACE, TAKE


@kernel
def sharing_pass(state: SharedSite, model: SlowdownArrays, codes: SharingCodes, now_ms: Int) -> None:
    """Run the one scheduling pass of an instant.

    ``state.started`` then lists the jobs that started, and ``state.changed`` those that started or whose rate may have
    changed since `forget_changes`.
    """
    counters = state.counters[0]
    counters.n_started = 0
    counters.packed_running = 0
    order_queue(state, average_wait_ms(state) if codes.age_ms == 0 else codes.age_ms, now_ms)
    # One walk: at first jobs start freely; behind the first that cannot, without harm to what has been promised.
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
    """Whether a job behind the head can start in no way. Nearly all are passed over here, and calls take time."""
    if mode == FREELY or codes.backfill == CONSERVATIVE:
        return False
    return job.width > state.counters[0].idle and not may_join(state, codes, job, mode)


@kernel
def _may_start_alone(state: SharedSite, codes: SharingCodes, slot: Int, mode: Int, now_ms: Int) -> bool:
    """Whether a job may start on idle nodes now; if so it is taken account of in what others have been promised."""
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
    """Whether a job behind one that does not start may start at all."""
    if codes.backfill == CONSERVATIVE:
        return state.counters[0].idle > 0 or (searches_running(codes) and newest_open(state, codes) > 0)
    return codes.backfill == EASY


@kernel
def _give_promise(state: SharedSite, codes: SharingCodes, slot: Int, mode: Int, now_ms: Int) -> None:
    """Give a job that does not start what backfilling promises: to the head, or to everybody."""
    if codes.backfill == CONSERVATIVE:
        if mode == FREELY:
            plan_running(state, now_ms)
        promise(state, slot, planned_start(state, slot, now_ms))
    elif mode == FREELY:
        reserve(state, slot, now_ms)


@kernel_part
def _is_weakly_loaded(state: SharedSite, codes: SharingCodes) -> bool:
    """Whether the idle nodes leave room beyond all that the waiting jobs ask for."""
    counters = state.counters[0]
    return codes.coscheduling != ALWAYS and counters.waiting_width <= codes.load_part * counters.idle


@kernel
def _start_with_matches(
    state: SharedSite, model: SlowdownArrays, codes: SharingCodes, place: Int, backfills: Int, now_ms: Int
) -> None:
    """Start a job on idle nodes, which suffice, and with it what matches it among the waiting jobs."""
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
    """Start a job for which there are no idle nodes with a running one, if one matches; return whether it started."""
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
    """Let a waiting job join its match; in backfilling what others were promised is kept account of."""
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
    """Return how many nodes a job would make late for the head by starting on idle nodes."""
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
    """Work out the shadow time and the extra nodes for the head."""
    counters = state.counters[0]
    counters.head = slot
    head = state.jobs[slot]
    count = 0
    for node in range(len(state.used)):
        if state.closed[node] == 0 and is_usable(state, node, head):
            state.free_ms[count] = max(now_ms, node_free_ms(state, node))
            count += 1
    if count < head.width:
        # Too few are in service: nothing that starts delays it.
        counters.limit_ms, counters.extra = NEVER_MS, 0
        return
    counters.limit_ms = _smallest(state.free_ms, count, head.width - 1)
    counters.extra = -head.width
    for i in range(count):
        counters.extra += state.free_ms[i] <= counters.limit_ms


@kernel
def _smallest(values: Ints, count: Int, rank: Int) -> Int:
    """Return the value that stood at this place, from 0, if the first ``count`` were sorted; changes their order."""
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

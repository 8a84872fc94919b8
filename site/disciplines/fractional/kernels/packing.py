"""MCB8: all jobs at once on the nodes, as vectors of CPU and memory in bins (Stillwell, sections 4.3 and 4.7)."""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import Int, Ints, Record, kernel, kernel_part
from gridweave.site.disciplines.fractional.kernels.greedy import by_priority
from gridweave.site.disciplines.fractional.kernels.state import RUNS, SHARE_ONE, FractionalSite, put_on, take_off
from gridweave.site.kernels.parts import UNIT

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

LEVELS = 100
"""Steps of the binary search: the yield is found to 0.01."""

_PLACE = 1 << 20


class Remapping(NamedTuple):
    """How MCB8 is to work.

    Attributes
    ----------
    min_flow_ms, min_virtual : int
        A running job with less flow time, or less virtual time (as work), stays on its nodes or pauses; 0 if not set.
    horizon_ms : int
        Time until the next such event, for MCB8-stretch; 0 for MCB8, which looks at yields.
    """

    min_flow_ms: Int
    min_virtual: Int
    horizon_ms: Int


@kernel
def remap_all(state: FractionalSite, how: Remapping, now_ms: Int) -> None:
    """Place all jobs anew at the highest yield (or least expected stretch) for which a packing is found.

    Notes
    -----
    As long as there is none at a hundredth, the job of the lowest priority is left out. Source: Stillwell, section 4.3.
    With an expected stretch there may be none for any job: for one that has waited so long that it wants all of a need
    which is more than all nodes have. Then that of the highest priority has the highest yield that it can have alone,
    or it would never end. (The paper says nothing of it; no job of its workloads needs so much.)
    """
    by_priority(state)
    _pin(state, how, now_ms)
    lowest = _leave_out(state, how, 0, now_ms)
    if how.horizon_ms > 0 and 0 < lowest == state.counters[0].n_here:
        how = Remapping(how.min_flow_ms, how.min_virtual, 0)
        state.jobs[state.order[lowest - 1]].out = 0
        lowest = _leave_out(state, how, lowest - 1, now_ms)
    low, high = 1, LEVELS
    if lowest < state.counters[0].n_here:
        if pack(state, how, high, now_ms):
            low = high
        while high - low > 1:
            middle = (low + high) // 2
            if pack(state, how, middle, now_ms):
                low = middle
            else:
                high = middle
        pack(state, how, low, now_ms)
    _take_over(state)


@kernel_part
def _leave_out(state: FractionalSite, how: Remapping, lowest: Int, now_ms: Int) -> Int:
    """Leave jobs out, from this one on, until there is room for the others; return how many are out."""
    while lowest < state.counters[0].n_here and not pack(state, how, 1, now_ms):
        state.jobs[state.order[lowest]].out = 1
        lowest += 1
    return lowest


@kernel_part
def _pin(state: FractionalSite, how: Remapping, now_ms: Int) -> None:
    """Find out who may not move."""
    for place in range(state.counters[0].n_here):
        job = state.jobs[state.here[place]]
        young = now_ms - job.submit_ms < how.min_flow_ms or job.virtual < how.min_virtual
        job.pinned = 1 if job.status == RUNS and young else 0
        job.out = 0


@kernel_part
def _take_over(state: FractionalSite) -> None:
    """Let the last packing be how jobs are placed; who is left out is on no nodes."""
    for place in range(state.counters[0].n_here):
        slot = state.here[place]
        if state.jobs[slot].status == RUNS:
            take_off(state, slot)
    for place in range(state.counters[0].n_here):
        slot = state.here[place]
        if state.jobs[slot].out == 0:
            put_on(state, slot)
        state.jobs[slot].out = 0


@kernel_part
def wanted_yield(job: Record, how: Remapping, level: Int, now_ms: Int) -> Int:
    """Return the yield that a job is to have, in millionths, at a level of the search.

    For MCB8 the level is the yield. For MCB8-stretch it is the inverse of the stretch that is expected at the end of
    the horizon, flow time / virtual time: a job that is better off anyway needs nothing, one that cannot reach it all.
    """
    if how.horizon_ms == 0:
        return min(UNIT, level * (UNIT // LEVELS) * job.share // SHARE_ONE)
    flow_ms = now_ms - job.submit_ms + how.horizon_ms
    missing = (level * (UNIT // LEVELS)) * (flow_ms / how.horizon_ms) - UNIT * (job.virtual / 65536.0 / how.horizon_ms)
    return int(min(float(UNIT), max(0.0, missing)))


@kernel
def pack(state: FractionalSite, how: Remapping, level: Int, now_ms: Int) -> bool:
    """Try to place all jobs that are not left out at a level of the search; the nodes are then in ``trial``.

    Parameters
    ----------
    state : FractionalSite
        ``out`` and ``pinned`` of its jobs are set.
    how : Remapping
    level : int
        1 to `LEVELS`.
    now_ms : int

    Returns
    -------
    bool
        Whether there is room for all.

    Notes
    -----
    Source: Leinberger et al. as Stillwell, section 4.3, cites them. Jobs that want more CPU than memory stand in one
    list, the others in a second, both by the larger of the two, falling. A node takes tasks from the list of what it
    has more left of, the first that fits, and from the other if none does; then the next node is filled. Where it has
    as much left of both, the list of CPU goes first; of jobs alike, the earlier submission. The groups of a job stand
    in the lists as jobs would, each by itself; of groups alike the one of more memory is the first.
    """
    if not _begin_packing(state, how, level, now_ms):
        return False
    counters = state.counters[0]
    for node in range(len(state.nodes)):
        if counters.n_cpu + counters.n_memory == 0:
            return True
        _fill_node(state, node)
    return counters.n_cpu + counters.n_memory == 0


@kernel_part
def _begin_packing(state: FractionalSite, how: Remapping, level: Int, now_ms: Int) -> bool:
    """Empty the nodes but for the pinned jobs and make the lists; return whether a sum does not say no already."""
    counters = state.counters[0]
    for node in range(len(state.nodes)):
        state.nodes[node].cpu_left = UNIT
        state.nodes[node].memory_left = UNIT
    counters.n_listed = counters.n_cpu = counters.n_memory = 0
    cpu = memory = len(state.nodes) * UNIT
    for place in range(counters.n_here):
        job = state.jobs[state.here[place]]
        if job.out == 1:
            continue
        wanted = wanted_yield(job, how, level, now_ms)
        for number in range(job.first_group, job.end_group):
            group = state.groups[number]
            group.wanted = (group.need * wanted + UNIT - 1) // UNIT
            group.left = group.count
            cpu -= group.wanted * group.count
            memory -= group.memory * group.count
            if cpu < 0 or memory < 0 or (job.pinned == 1 and not _keep(state, number)):
                return False
            if job.pinned == 0:
                _enter(state, number)
    _sort_falling(state.by_cpu, counters.n_cpu)
    _sort_falling(state.by_memory, counters.n_memory)
    _groups_of_keys(state, state.by_cpu, counters.n_cpu)
    _groups_of_keys(state, state.by_memory, counters.n_memory)
    return True


@kernel_part
def _keep(state: FractionalSite, number: Int) -> bool:
    """Leave a group of a pinned job where it is; return whether its nodes have what it wants."""
    group = state.groups[number]
    for task in range(group.first, group.first + group.count):
        state.trial[task] = state.tasks[task]
        node = state.nodes[state.tasks[task]]
        node.cpu_left -= group.wanted
        node.memory_left -= group.memory
        if node.cpu_left < 0 or node.memory_left < 0:
            return False
    group.left = 0
    return True


@kernel_part
def _enter(state: FractionalSite, number: Int) -> None:
    """Put a group into one of the lists, as a key that is larger the further ahead it belongs."""
    group = state.groups[number]
    counters = state.counters[0]
    key = max(group.wanted, group.memory) * _PLACE + (_PLACE - 1 - counters.n_listed)
    state.listed[counters.n_listed] = number
    counters.n_listed += 1
    if group.wanted >= group.memory:
        state.by_cpu[counters.n_cpu] = key
        counters.n_cpu += 1
    else:
        state.by_memory[counters.n_memory] = key
        counters.n_memory += 1


@kernel_part
def _sort_falling(keys: Ints, count: Int) -> None:
    """Sort keys, no two of which are alike, the largest first."""
    gap = count // 2
    while gap > 0:
        for i in range(gap, count):
            key = keys[i]
            hole = i
            while hole >= gap and keys[hole - gap] < key:
                keys[hole] = keys[hole - gap]
                hole -= gap
            keys[hole] = key
        gap = gap // 2


@kernel_part
def _groups_of_keys(state: FractionalSite, keys: Ints, count: Int) -> None:
    for i in range(count):
        keys[i] = state.listed[_PLACE - 1 - keys[i] % _PLACE]


@kernel_part
def _fill_node(state: FractionalSite, place: Int) -> None:
    """Fill one node. What does not fit once does not fit later, so each list is gone through once."""
    counters = state.counters[0]
    node = state.nodes[place]
    cpu = memory = 0
    placed_all = False
    while True:
        cpu = _next_fitting(state, state.by_cpu, counters.n_cpu, cpu, place)
        memory = _next_fitting(state, state.by_memory, counters.n_memory, memory, place)
        if cpu == counters.n_cpu and memory == counters.n_memory:
            break
        takes_cpu = node.cpu_left >= node.memory_left
        if cpu == counters.n_cpu or memory == counters.n_memory:
            takes_cpu = cpu < counters.n_cpu
        group = state.groups[state.by_cpu[cpu] if takes_cpu else state.by_memory[memory]]
        node.cpu_left -= group.wanted
        node.memory_left -= group.memory
        state.trial[group.first + group.count - group.left] = place
        group.left -= 1
        placed_all = placed_all or group.left == 0
    if placed_all:
        counters.n_cpu = _without_placed(state, state.by_cpu, counters.n_cpu)
        counters.n_memory = _without_placed(state, state.by_memory, counters.n_memory)


@kernel_part
def _next_fitting(state: FractionalSite, numbers: Ints, count: Int, entry: Int, place: Int) -> Int:
    """Return the first entry from here on of a group with a task that fits on a node; ``count`` if there is none."""
    cpu_left, memory_left = state.nodes[place].cpu_left, state.nodes[place].memory_left
    while entry < count:
        group = state.groups[numbers[entry]]
        if group.left > 0 and group.wanted <= cpu_left and group.memory <= memory_left:
            break
        entry += 1
    return entry


@kernel_part
def _without_placed(state: FractionalSite, numbers: Ints, count: Int) -> Int:
    """Take the groups out of a list that are placed; return how many are left."""
    kept = 0
    for entry in range(count):
        if state.groups[numbers[entry]].left > 0:
            numbers[kept] = numbers[entry]
            kept += 1
    return kept

"""MCB8: place all jobs at once by vector packing of CPU and memory (Stillwell, sections 4.3 and 4.7)."""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import Int, Ints, Record, kernel, kernel_part
from gridweave.site.disciplines.fractional.kernels.greedy import by_priority
from gridweave.site.disciplines.fractional.kernels.state import RUNS, SHARE_ONE, FractionalSite, put_on, take_off
from gridweave.site.kernels.parts import UNIT

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

LEVELS = 100
"""Number of levels in the binary search, so yields are found to within 0.01."""

_PLACE = 1 << 20


class Remapping(NamedTuple):
    """The parameters of MCB8.

    Attributes
    ----------
    min_flow_ms, min_virtual : int
        MINFT in ms, and MINVT as work; 0 if not set. A running job with less flow time or less virtual time keeps its
        nodes or pauses, but does not move.
    horizon_ms : int
        Time until the next packing, for MCB8-stretch; 0 for MCB8, which optimises yields.
    """

    min_flow_ms: Int
    min_virtual: Int
    horizon_ms: Int


@kernel
def remap_all(state: FractionalSite, how: Remapping, now_ms: Int) -> None:
    """Place all jobs from scratch, at the highest yield (or lowest expected stretch) for which a packing is found.

    Notes
    -----
    As long as there is no packing at the lowest level, 0.01, the job with the lowest priority is left out (Stillwell,
    section 4.3). When optimising the stretch, a job that has waited long may demand its full CPU need, which can exceed
    the CPU of all nodes, so that no job can be packed. Then the job with the highest priority is placed alone, at the
    highest yield possible for it, because otherwise it would never end. (The paper does not discuss this case; no job
    in its workloads needs that much CPU.)
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
    """Leave out jobs, from entry ``lowest`` of ``order`` on, until the rest fit; return how many jobs are left out."""
    while lowest < state.counters[0].n_here and not pack(state, how, 1, now_ms):
        state.jobs[state.order[lowest]].out = 1
        lowest += 1
    return lowest


@kernel_part
def _pin(state: FractionalSite, how: Remapping, now_ms: Int) -> None:
    """Mark the running jobs that must not move as pinned, and no job as left out."""
    for place in range(state.counters[0].n_here):
        job = state.jobs[state.here[place]]
        young = now_ms - job.submit_ms < how.min_flow_ms or job.virtual < how.min_virtual
        job.pinned = 1 if job.status == RUNS and young else 0
        job.out = 0


@kernel_part
def _take_over(state: FractionalSite) -> None:
    """Place the jobs as in the last packing; jobs that were left out get no nodes."""
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
def yield_at_level(job: Record, how: Remapping, level: Int, now_ms: Int) -> Int:
    """Return the yield, in millionths, that a job needs at a level of the search.

    For MCB8, the level is the yield of a job with share 1. For MCB8-stretch, it is the inverse of the expected stretch,
    flow time / virtual time, at the end of the horizon. The yield is 0 if the job's stretch is lower even without any
    CPU, and 1 if the job cannot reach this stretch.
    """
    if how.horizon_ms == 0:
        return min(UNIT, level * (UNIT // LEVELS) * job.share // SHARE_ONE)
    flow_ms = now_ms - job.submit_ms + how.horizon_ms
    missing = (level * (UNIT // LEVELS)) * (flow_ms / how.horizon_ms) - UNIT * (job.virtual / 65536.0 / how.horizon_ms)
    return int(min(float(UNIT), max(0.0, missing)))


@kernel
def pack(state: FractionalSite, how: Remapping, level: Int, now_ms: Int) -> bool:
    """Try to place all jobs that are not left out, at this level of the search; write the tasks' nodes to ``trial``.

    Parameters
    ----------
    state : FractionalSite
        The fields ``out`` and ``pinned`` of its jobs must be set.
    how : Remapping
    level : int
        From 1 to `LEVELS`.
    now_ms : int

    Returns
    -------
    bool
        Whether all of these jobs fit.

    Notes
    -----
    Source: Leinberger et al., as cited by Stillwell, section 4.3. Task groups that need at least as much CPU as memory
    are in one list, and all other groups in a second list. Both are sorted by the larger need, descending (ties: by
    submission and, within a job, more memory first). Nodes are filled one after the other: a node takes the first task
    that fits from the list of the resource of which it has more left (ties: CPU), or else from the other list.
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
    """Clear the nodes except for pinned jobs, and make the two lists.

    Return False if the jobs need more than all nodes together have, or a pinned job more than its nodes have.
    """
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
        job_yield = yield_at_level(job, how, level, now_ms)
        for number in range(job.first_group, job.end_group):
            group = state.groups[number]
            group.cpu_need = (group.need * job_yield + UNIT - 1) // UNIT
            group.left = group.count
            cpu -= group.cpu_need * group.count
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
    """Keep the tasks of a pinned job's group on their nodes; return whether these nodes have enough CPU and memory."""
    group = state.groups[number]
    for task in range(group.first, group.first + group.count):
        state.trial[task] = state.tasks[task]
        node = state.nodes[state.tasks[task]]
        node.cpu_left -= group.cpu_need
        node.memory_left -= group.memory
        if node.cpu_left < 0 or node.memory_left < 0:
            return False
    group.left = 0
    return True


@kernel_part
def _enter(state: FractionalSite, number: Int) -> None:
    """Add a group's sort key to one of the two lists; groups with larger keys come first."""
    group = state.groups[number]
    counters = state.counters[0]
    key = max(group.cpu_need, group.memory) * _PLACE + (_PLACE - 1 - counters.n_listed)
    state.listed[counters.n_listed] = number
    counters.n_listed += 1
    if group.cpu_need >= group.memory:
        state.by_cpu[counters.n_cpu] = key
        counters.n_cpu += 1
    else:
        state.by_memory[counters.n_memory] = key
        counters.n_memory += 1


@kernel_part
def _sort_falling(keys: Ints, count: Int) -> None:
    """Sort distinct keys in descending order (Shell sort)."""
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
    """Fill one node. A task that does not fit now will not fit later, so one scan of each list is enough."""
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
        node.cpu_left -= group.cpu_need
        node.memory_left -= group.memory
        state.trial[group.first + group.count - group.left] = place
        group.left -= 1
        placed_all = placed_all or group.left == 0
    if placed_all:
        counters.n_cpu = _without_placed(state, state.by_cpu, counters.n_cpu)
        counters.n_memory = _without_placed(state, state.by_memory, counters.n_memory)


@kernel_part
def _next_fitting(state: FractionalSite, numbers: Ints, count: Int, entry: Int, place: Int) -> Int:
    """Return the first list entry, from ``entry`` on, that has a task that fits on a node; ``count`` if none has."""
    cpu_left, memory_left = state.nodes[place].cpu_left, state.nodes[place].memory_left
    while entry < count:
        group = state.groups[numbers[entry]]
        if group.left > 0 and group.cpu_need <= cpu_left and group.memory <= memory_left:
            break
        entry += 1
    return entry


@kernel_part
def _without_placed(state: FractionalSite, numbers: Ints, count: Int) -> Int:
    """Remove groups that have no tasks left to place from a list; return the list's new length."""
    kept = 0
    for entry in range(count):
        if state.groups[numbers[entry]].left > 0:
            numbers[kept] = numbers[entry]
            kept += 1
    return kept

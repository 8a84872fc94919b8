"""Place a job's tasks greedily, pausing or moving other jobs if necessary (Stillwell, section 4.2)."""

from __future__ import annotations

from gridweave.jit import Int, Ints, Record, kernel, kernel_part
from gridweave.site.disciplines.fractional.kernels.state import (
    RUNS,
    FractionalSite,
    count_tasks,
    goes_before,
    put_back,
    take_off,
)
from gridweave.site.kernels.parts import UNIT

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"


@kernel_part
def would_fit(state: FractionalSite, slot: Int) -> bool:
    """Whether `place_greedily` would place a job; the state does not change."""
    if not _each_fits(state, slot):
        return False
    job = state.jobs[slot]
    if job.end_group - job.first_group == 1:
        return True  # identical tasks fit in any order
    if not place_greedily(state, slot):
        return False
    take_off(state, slot)
    return True


@kernel_part
def _each_fits(state: FractionalSite, slot: Int) -> bool:
    """Whether each of a job's groups would fit into the free memory if it were the only group."""
    job = state.jobs[slot]
    for number in range(job.first_group, job.end_group):
        group = state.groups[number]
        capacity = 0
        for node in range(len(state.nodes)):
            capacity += (UNIT - state.nodes[node].memory) // group.memory
        if capacity < group.count:
            return False
    return True


@kernel
def place_greedily(state: FractionalSite, slot: Int) -> bool:
    """Place each of a job's tasks on the node with the lowest CPU load that has enough memory (ties: the first).

    Parameters
    ----------
    state : FractionalSite
    slot : int
        The slot of a job that has no nodes.

    Returns
    -------
    bool
        Whether the job was placed; if not, nothing has changed.

    Notes
    -----
    Source: Stillwell, section 4.2. The load includes tasks of this job that are already placed. Tasks are placed in
    order of descending memory.
    """
    if not _each_fits(state, slot):
        return False
    job = state.jobs[slot]
    for number in range(job.first_group, job.end_group):
        group = state.groups[number]
        for task in range(group.first, group.first + group.count):
            best = _least_loaded(state, group.memory)
            if best < 0:
                count_tasks(state, slot, task, -1)
                return False
            state.nodes[best].load += group.need
            state.nodes[best].memory += group.memory
            keep_ascending(state.tasks, group.first, task, best)
    job.status = RUNS
    return True


@kernel_part
def _least_loaded(state: FractionalSite, memory: Int) -> Int:
    """Return the least loaded node (by CPU; ties: the first) with this much free memory, or -1 if none has it."""
    best = -1
    for node in range(len(state.nodes)):
        fits = state.nodes[node].memory + memory <= UNIT
        if fits and (best < 0 or state.nodes[node].load < state.nodes[best].load):
            best = node
    return best


@kernel_part
def keep_ascending(tasks: Ints, first: Int, task: Int, node: Int) -> None:
    """Insert a task's node so that the nodes of the task's group remain sorted."""
    while task > first and tasks[task - 1] > node:
        tasks[task] = tasks[task - 1]
        task -= 1
    tasks[task] = node


@kernel
def by_priority(state: FractionalSite) -> None:
    """Sort the slots of all jobs at the site into ``order``, lowest priority first."""
    count = state.counters[0].n_here
    for place in range(count):
        slot = state.here[place]
        state.jobs[slot].place = place
        hole = place
        # At equal priority, the job submitted earlier ranks higher and therefore comes later in this order.
        while hole > 0 and not goes_before(state.jobs[slot], place, _job(state, hole - 1), _place(state, hole - 1)):
            state.order[hole] = state.order[hole - 1]
            hole -= 1
        state.order[hole] = slot


@kernel_part
def _job(state: FractionalSite, entry: Int) -> Record:
    return state.jobs[state.order[entry]]


@kernel_part
def _place(state: FractionalSite, entry: Int) -> Int:
    return state.jobs[state.order[entry]].place


@kernel
def displace(state: FractionalSite, slot: Int, moves: bool) -> bool:
    """Place a job that does not fit by pausing or moving jobs of lower priority.

    Parameters
    ----------
    state : FractionalSite
    slot : int
        The slot of a job that has no nodes.
    moves : bool
        Whether marked jobs move to other nodes if they fit there (GreedyPM), highest priority first.

    Returns
    -------
    bool
        Whether the job was placed; if not, nothing has changed.

    Notes
    -----
    Source: Stillwell, section 4.2, which leaves the choice of jobs open. We mark running jobs, from the lowest priority
    up, until the new job would fit. Then we unmark jobs, from the highest priority down, as long as the new job still
    fits. Only jobs of lower priority than the new job are marked.
    """
    by_priority(state)
    marked = 0
    for entry in range(state.counters[0].n_here):
        other = state.order[entry]
        if other == slot or would_fit(state, slot):
            break
        if state.jobs[other].status == RUNS:
            _mark(state, other)
        marked = entry + 1
    fits = would_fit(state, slot)
    for entry in range(marked - 1, -1, -1):
        if state.jobs[state.order[entry]].out == 1:
            _mark_back(state, state.order[entry], slot, fits)
    if fits:
        place_greedily(state, slot)
    for entry in range(marked - 1, -1, -1):
        other = state.order[entry]
        if state.jobs[other].out == 1 and moves:
            place_greedily(state, other)
        state.jobs[other].out = 0
    return fits


@kernel_part
def _mark(state: FractionalSite, other: Int) -> None:
    """Mark a running job and remove it from its nodes."""
    state.jobs[other].out = 1
    take_off(state, other)


@kernel_part
def _mark_back(state: FractionalSite, other: Int, slot: Int, fits: bool) -> None:
    """Put a marked job back on its nodes unless the new job fits only without the marked job."""
    put_back(state, other)
    if fits and not would_fit(state, slot):
        take_off(state, other)
    else:
        state.jobs[other].out = 0


@kernel
def place_waiting(state: FractionalSite, count: Int) -> None:
    """Place waiting and paused jobs greedily, highest priority first; skip jobs that do not fit.

    Parameters
    ----------
    state : FractionalSite
    count : int
        Number of jobs at the beginning of ``here`` to consider, i.e. the jobs submitted before now.
    """
    by_priority(state)
    for entry in range(state.counters[0].n_here - 1, -1, -1):
        slot = state.order[entry]
        if state.jobs[slot].status != RUNS and state.jobs[slot].place < count:
            place_greedily(state, slot)

"""Greedy placement of a job's tasks, and room for it by pausing or moving others (Stillwell, section 4.2)."""

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
    """Whether `place_greedily` would place a job."""
    if not _each_has_room(state, slot):
        return False
    job = state.jobs[slot]
    if job.end_group - job.first_group == 1:
        return True  # tasks that are alike are as many as there is room for, in whichever order nodes are filled
    if not place_greedily(state, slot):
        return False
    take_off(state, slot)
    return True


@kernel_part
def _each_has_room(state: FractionalSite, slot: Int) -> bool:
    """Whether the memory that is free has room for all tasks of each group of a job, the others left aside."""
    job = state.jobs[slot]
    for number in range(job.first_group, job.end_group):
        group = state.groups[number]
        room = 0
        for node in range(len(state.nodes)):
            room += (UNIT - state.nodes[node].memory) // group.memory
        if room < group.count:
            return False
    return True


@kernel
def place_greedily(state: FractionalSite, slot: Int) -> bool:
    """Place a job, task by task, on the node with the lowest CPU load of those that have the memory.

    Parameters
    ----------
    state : FractionalSite
    slot : int
        Of a job that is on no nodes. Of nodes with the same load the first is taken.

    Returns
    -------
    bool
        Whether it was placed; if not, nothing has changed.

    Notes
    -----
    Source: Stillwell, section 4.2. The load counts the tasks of this job that are already placed. Tasks that need more
    memory go first.
    """
    if not _each_has_room(state, slot):
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
    """Return the node with the lowest CPU load of those with so much memory left, -1 if there is none."""
    best = -1
    for node in range(len(state.nodes)):
        fits = state.nodes[node].memory + memory <= UNIT
        if fits and (best < 0 or state.nodes[node].load < state.nodes[best].load):
            best = node
    return best


@kernel_part
def keep_ascending(tasks: Ints, first: Int, task: Int, node: Int) -> None:
    """Enter the node of a task so that those of its group stay ascending."""
    while task > first and tasks[task - 1] > node:
        tasks[task] = tasks[task - 1]
        task -= 1
    tasks[task] = node


@kernel
def by_priority(state: FractionalSite) -> None:
    """Write the slots of all jobs that are here into ``order``, the lowest priority first."""
    count = state.counters[0].n_here
    for place in range(count):
        slot = state.here[place]
        state.jobs[slot].place = place
        hole = place
        # Of two alike the earlier submission has the higher priority, so it comes later here.
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
def make_room(state: FractionalSite, slot: Int, moves: bool) -> bool:
    """Place a job that does not fit by pausing jobs of lower priority, or by moving them.

    Parameters
    ----------
    state : FractionalSite
    slot : int
        Of a job that is on no nodes.
    moves : bool
        GreedyPM: a job that is to be paused is placed anew if there is room (in the order of their priority).

    Returns
    -------
    bool
        Whether it was placed; if not, nothing has changed.

    Notes
    -----
    Source: Stillwell, section 4.2, which leaves open how jobs are chosen. Here: from the lowest priority up, running
    jobs are marked until the new one would fit; then, from the highest down, a mark is taken back if the job fits
    without. Only jobs of a lower priority than the new one's are marked.
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
    """Take a running job off its nodes as if it were paused."""
    state.jobs[other].out = 1
    take_off(state, other)


@kernel_part
def _mark_back(state: FractionalSite, other: Int, slot: Int, fits: bool) -> None:
    """Put a marked job back on its nodes, if the new one does not fit anyway, or fits besides."""
    put_back(state, other)
    if fits and not would_fit(state, slot):
        take_off(state, other)
    else:
        state.jobs[other].out = 0


@kernel
def place_waiting(state: FractionalSite, count: Int) -> None:
    """Place the jobs that are on no nodes greedily, in the order of their priority; who does not fit is passed over.

    Parameters
    ----------
    state : FractionalSite
    count : int
        Of the jobs that are here, so many of the first are looked at: those that were submitted before now.
    """
    by_priority(state)
    for entry in range(state.counters[0].n_here - 1, -1, -1):
        slot = state.order[entry]
        if state.jobs[slot].status != RUNS and state.jobs[slot].place < count:
            place_greedily(state, slot)

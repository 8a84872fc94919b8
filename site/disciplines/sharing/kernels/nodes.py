"""Assign the hardware threads of nodes to jobs (docs/sharing.md, "Nodes")."""

from __future__ import annotations

import numpy as np

from gridweave.jit import Int, Ints, Record, kernel, kernel_part
from gridweave.site.disciplines.sharing.kernels.state import EMPTY, LEAVING, MIXED, NO_CELL, SharedSite

MEMORY_SLACK = 1e-9
"""Tolerance when comparing memory, because sums of decimal fractions are not exact."""


@kernel_part
def is_usable(state: SharedSite, node: Int, job: Record) -> bool:
    """Whether a node without jobs would have enough cores and memory for a job."""
    kind = state.kinds[state.node_kind[node]]
    return job.cores <= kind.cores and job.memory <= kind.memory + MEMORY_SLACK


@kernel_part
def is_idle(state: SharedSite, node: Int) -> bool:
    """Whether a node is in service and has no job."""
    return state.used[node] == 0 and state.closed[node] == 0


@kernel
def count_open(state: SharedSite) -> Int:
    """Return the number of nodes in service."""
    count = len(state.closed)
    for node in range(len(state.closed)):
        count -= state.closed[node]
    return count


@kernel
def close_nodes(state: SharedSite, closed: Ints) -> None:
    """Set which nodes are out of service; jobs on these nodes keep running, but no other job may join them.

    Parameters
    ----------
    state : SharedSite
    closed : numpy.ndarray of int64, shape (nodes,)
        1 for a node out of service, 0 for a node in service.
    """
    counters = state.counters[0]
    # A new version forces the next search to list the open hosts again.
    counters.version += 1
    for node in range(len(closed)):
        counters.idle += (state.closed[node] - closed[node]) * (state.used[node] == 0)
        state.closed[node] = closed[node]
        if closed[node]:
            for lane in range(counters.lanes):
                if state.occupant[node, lane] >= 0:
                    state.jobs[state.occupant[node, lane]].one_kind = LEAVING


@kernel_part
def is_first_cell(state: SharedSite, node: Int, lane: Int) -> bool:
    """Whether this cell is a job's first cell on this node; iterating over first cells visits each job once."""
    slot = state.occupant[node, lane]
    first = slot >= 0
    for before in range(lane):
        first = first and state.occupant[node, before] != slot
    return first


@kernel_part
def skip_node(state: SharedSite, cell: Int) -> Int:
    """Return the first cell of the same job on its next node, or ``NO_CELL``."""
    lanes = state.counters[0].lanes
    node = cell // lanes
    while cell != NO_CELL and cell // lanes == node:
        cell = state.next_cell[cell]
    return cell


@kernel_part
def core_load(state: SharedSite, node: Int, core: Int) -> tuple[Int, Int]:
    """Return how many of a core's hardware threads are in use, and its first free thread (``NO_CELL`` if none)."""
    threads = state.counters[0].threads
    load, free = np.int64(0), NO_CELL
    for lane in range(core * threads, (core + 1) * threads):
        if state.occupant[node, lane] >= 0:
            load += 1
        elif state.occupant[node, lane] == EMPTY and free == NO_CELL:
            free = np.int64(lane)
    return load, free


@kernel
def has_capacity(state: SharedSite, node: Int, job: Record, partners: Int, counts_memory: bool) -> bool:
    """Whether a node has enough threads and memory for another job, and its jobs may all get another partner."""
    if not is_usable(state, node, job):
        return False
    kind = state.kinds[state.node_kind[node]]
    memory = 0.0
    for lane in range(state.counters[0].lanes):
        if is_first_cell(state, node, lane):
            other = state.jobs[state.occupant[node, lane]]
            if other.n_partners >= partners:
                return False
            memory += other.memory
    if counts_memory and memory + job.memory > kind.memory + MEMORY_SLACK:
        return False
    open_cores = 0
    for core in range(kind.cores):
        _, free = core_load(state, node, core)
        open_cores += free != NO_CELL
    return open_cores >= job.cores


@kernel
def put(state: SharedSite, node: Int, slot: Int) -> None:
    """Assign a node's cells to a job, on the cores with the fewest jobs, ties by core number; enough must be free."""
    kind = state.kinds[state.node_kind[node]]
    missing = state.jobs[slot].cores
    if state.used[node] == 0:
        state.counters[0].idle -= 1
    state.used[node] += missing
    for target_load in range(kind.threads):
        for core in range(kind.cores):
            load, free = core_load(state, node, core)
            if missing > 0 and load == target_load and not has_core(state, node, core, slot):
                state.occupant[node, free] = slot
                missing -= 1


@kernel_part
def has_core(state: SharedSite, node: Int, core: Int, slot: Int) -> bool:
    """Whether a job uses a hardware thread of this core."""
    threads = state.counters[0].threads
    held = False
    for lane in range(core * threads, (core + 1) * threads):
        held = held or state.occupant[node, lane] == slot
    return held


@kernel
def take_off(state: SharedSite, node: Int, slot: Int) -> None:
    """Free a job's cells on a node."""
    for lane in range(state.counters[0].lanes):
        if state.occupant[node, lane] == slot:
            state.occupant[node, lane] = EMPTY
            state.used[node] -= 1
    if state.used[node] == 0 and state.closed[node] == 0:
        state.counters[0].idle += 1


@kernel_part
def chain(state: SharedSite, node: Int, slot: Int, last: Int) -> Int:
    """Append a job's cells on a node to the job's chain, after the cell ``last``; return the new last cell."""
    job = state.jobs[slot]
    lanes = state.counters[0].lanes
    for lane in range(lanes):
        if state.occupant[node, lane] == slot:
            cell = node * lanes + lane
            if last == NO_CELL:
                job.first_cell = cell
                job.one_kind = state.node_kind[node]
            else:
                state.next_cell[last] = cell
                if job.one_kind != state.node_kind[node]:
                    job.one_kind = MIXED
            state.next_cell[cell] = NO_CELL
            last = cell
    return last


@kernel
def count_idle(state: SharedSite, job: Record) -> Int:
    """Return the number of idle nodes that a job can use."""
    if len(state.kinds) == 1:
        return state.counters[0].idle if is_usable(state, 0, job) else 0
    count = 0
    for node in range(len(state.used)):
        count += is_idle(state, node) and is_usable(state, node, job)
    return count


@kernel
def occupy_idle(state: SharedSite, slot: Int) -> None:
    """Assign to a job the lowest-numbered idle nodes that it can use; there must be enough of them."""
    job = state.jobs[slot]
    missing, last, node = job.width, NO_CELL, 0
    while missing > 0:
        if is_idle(state, node) and is_usable(state, node, job):
            put(state, node, slot)
            last = chain(state, node, slot, last)
            missing -= 1
        node += 1


@kernel
def release(state: SharedSite, slot: Int) -> None:
    """Free all of a job's cells."""
    lanes = state.counters[0].lanes
    cell = state.jobs[slot].first_cell
    while cell != NO_CELL:
        node = cell // lanes
        cell = skip_node(state, cell)
        take_off(state, node, slot)
    state.jobs[slot].first_cell = NO_CELL

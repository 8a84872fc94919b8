"""Slowdowns of jobs that share nodes (docs/sharing.md, "Slowdown"; the paper, section 4.1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, Ints, Record, kernel, kernel_part
from gridweave.site.disciplines.sharing.kernels.nodes import (
    MEMORY_SLACK,
    chain,
    has_capacity,
    has_core,
    is_first_cell,
    occupy_idle,
    put,
    release,
    skip_node,
)
from gridweave.site.disciplines.sharing.kernels.state import (
    NO_CELL,
    SharedSite,
    enter_running,
    leave_running,
    note_change,
)
from gridweave.site.kernels.work import rate_of, set_rate

WHOLE, PRINTED, MEASURED = 0, 1, 2
"""The slowdown formula: including the unshared part, as printed in the paper, or a table of measured slowdowns."""

SERIAL = 2.0
"""Factor by which two jobs slow each other on a resource that serves one job at a time: network, disk, plain CPU."""


class SlowdownArrays(NamedTuple):
    """The slowdown model in the form that the kernels read.

    Attributes
    ----------
    formula : int
        ``WHOLE``, ``PRINTED`` or ``MEASURED``.
    cpu_factor : numpy.ndarray of float64, shape (kinds, kinds)
        Factor by which CPU work of the column's kind slows down CPU work of the row's kind.
    measured : numpy.ndarray of float64, shape (rows, rows)
        Slowdown of a job of the row's type that shares a core with a job of the column's type.
    paging : float
        Amount added to the slowdown if a node's memory is too small for its jobs.
    """

    formula: int
    cpu_factor: npt.NDArray[np.float64]
    measured: npt.NDArray[np.float64]
    paging: float


@kernel_part
def cpu_factor(model: SlowdownArrays, a: Record, b: Record, hyperthreaded: Int) -> float:
    """Return the factor by which job b slows down job a's CPU work while both use the CPU."""
    return model.cpu_factor[a.cpu_kind, b.cpu_kind] if hyperthreaded else SERIAL


@kernel_part
def core_excess(model: SlowdownArrays, a: Record, b: Record, hyperthreaded: Int) -> float:
    """Return how much job b adds to job a's slowdown when it runs on the same core."""
    if model.formula == MEASURED:
        return model.measured[a.row, b.row] - 1.0
    factor = cpu_factor(model, a, b, hyperthreaded)
    cpu, network, disk = min(a.cpu, b.cpu), min(a.network, b.network), min(a.disk, b.disk)
    if model.formula == PRINTED:
        return max(0.0, factor * cpu + SERIAL * network + SERIAL * disk - 1.0)
    return (factor - 1.0) * cpu + (SERIAL - 1.0) * network + (SERIAL - 1.0) * disk


@kernel_part
def node_excess(a: Record, b: Record) -> float:
    """Return how much job b adds to job a's slowdown when it runs on other cores of the same node."""
    return (SERIAL - 1.0) * min(a.network, b.network) + (SERIAL - 1.0) * min(a.disk, b.disk)


@kernel
def node_slowdown(state: SharedSite, model: SlowdownArrays, node: Int, slot: Int) -> float:
    """Return a job's slowdown on one of its nodes, given all jobs that are on the node now."""
    kind = state.kinds[state.node_kind[node]]
    worst = 0.0
    for core in range(kind.cores):
        if has_core(state, node, core, slot):
            worst = max(worst, _core_sum(state, model, node, core, slot))
    memory, jobs = 0.0, 0
    for lane in range(state.counters[0].lanes):
        if is_first_cell(state, node, lane):
            memory += state.jobs[state.occupant[node, lane]].memory
            jobs += 1
    if jobs > 1 and memory > kind.memory + MEMORY_SLACK:
        worst += model.paging
    return 1.0 + worst


@kernel
def _core_sum(state: SharedSite, model: SlowdownArrays, node: Int, core: Int, slot: Int) -> float:
    """Return how much the node's other jobs add to a job's slowdown on this core."""
    job = state.jobs[slot]
    hyperthreaded = state.kinds[state.node_kind[node]].hyperthreaded
    total = 0.0
    for lane in range(state.counters[0].lanes):
        other = state.occupant[node, lane]
        if other != slot and is_first_cell(state, node, lane):
            if has_core(state, node, core, other):
                total += core_excess(model, job, state.jobs[other], hyperthreaded)
            else:
                total += node_excess(job, state.jobs[other])
    return total


@kernel
def retime(state: SharedSite, model: SlowdownArrays, slot: Int, now_ms: Int) -> None:
    """Update a running job's slowdown, rate and estimated end, given the jobs that share its nodes now.

    The slowest node determines the slowdown. Also record the change, and give the job and its partners a new version.
    """
    job = state.jobs[slot]
    worst = 1.0
    cell = job.first_cell
    while cell != NO_CELL:
        node = cell // state.counters[0].lanes
        if state.used[node] > job.cores:
            worst = max(worst, node_slowdown(state, model, node, slot))
        cell = skip_node(state, cell)
    job.slowdown = worst
    set_rate(job, rate_of(worst), now_ms)
    job.n_partners = collect_partners(state, slot, state.partners)
    note_change(state, slot)
    # Whether a waiting job may join depends on the jobs on the nodes and on their numbers of partners.
    counters = state.counters[0]
    counters.version += 1
    job.version = counters.version
    for i in range(job.n_partners):
        state.jobs[state.partners[i]].version = counters.version


@kernel
def collect_partners(state: SharedSite, slot: Int, listed: Ints) -> Int:
    """Fill ``listed`` with the jobs that share a node with this job, each once; return their number."""
    count = 0
    cell = state.jobs[slot].first_cell
    while cell != NO_CELL:
        node = cell // state.counters[0].lanes
        if state.used[node] > state.jobs[slot].cores:
            count = collect(state, node, slot, listed, count)
        cell = skip_node(state, cell)
    forget_tried(state, listed, count)
    return count


@kernel_part
def collect(state: SharedSite, node: Int, slot: Int, listed: Ints, count: Int) -> Int:
    """Append a node's other jobs to ``listed``, marking each so that it is listed once; return the new length."""
    for lane in range(state.counters[0].lanes):
        other = state.occupant[node, lane]
        if other >= 0 and other != slot and state.jobs[other].tried == 0:
            state.jobs[other].tried = 1
            listed[count] = other
            count += 1
    return count


@kernel_part
def forget_tried(state: SharedSite, listed: Ints, count: Int) -> None:
    """Clear the marks on the first ``count`` jobs in ``listed``."""
    for i in range(count):
        state.jobs[listed[i]].tried = 0


@kernel
def start_idle(state: SharedSite, model: SlowdownArrays, place: Int, now_ms: Int) -> Int:
    """Start the job at index `place` of the queue on idle nodes; return its slot."""
    slot = enter_running(state, place, now_ms)
    occupy_idle(state, slot)
    retime(state, model, slot, now_ms)
    return slot


@kernel
def join(
    state: SharedSite, model: SlowdownArrays, host: Int, place: Int, partners: Int, counts_memory: bool, now_ms: Int
) -> None:
    """Start the job at index `place` of the queue on the host's first nodes that have capacity for it."""
    slot = enter_running(state, place, now_ms)
    job = state.jobs[slot]
    missing, last, cell = job.width, NO_CELL, state.jobs[host].first_cell
    while missing > 0:
        node = cell // state.counters[0].lanes
        if has_capacity(state, node, job, partners, counts_memory):
            put(state, node, slot)
            last = chain(state, node, slot, last)
            missing -= 1
        cell = skip_node(state, cell)
    retime(state, model, slot, now_ms)
    count = collect_partners(state, slot, state.affected)
    for i in range(count):
        retime(state, model, state.affected[i], now_ms)


@kernel
def job_ended(state: SharedSite, model: SlowdownArrays, slot: Int, now_ms: Int) -> None:
    """Remove a job that has ended from its nodes, and update the rates of the jobs with which it shared them."""
    count = collect_partners(state, slot, state.affected)
    release(state, slot)
    leave_running(state, slot)
    for i in range(count):
        retime(state, model, state.affected[i], now_ms)
    state.counters[0].packed_running = 0

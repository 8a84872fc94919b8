"""Test whether jobs may share nodes (docs/sharing.md, "Matching", tests 1 to 5; the paper, Figure 4)."""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.disciplines.sharing.kernels.nodes import has_capacity, is_first_cell, put, skip_node, take_off
from gridweave.site.disciplines.sharing.kernels.slowdown import (
    SERIAL,
    SlowdownArrays,
    collect,
    cpu_factor,
    forget_tried,
    node_slowdown,
)
from gridweave.site.disciplines.sharing.kernels.state import CPU, DISK, NO_CELL, SHORT, UNKNOWN_ROW, SharedSite

U1, U2, RESPONSE, FIRST = 0, 1, 2, 3
"""Heuristics: how the best match is chosen."""

ALONE, MATCHING, ALWAYS, ADJACENT = 0, 1, 2, 3
"""Coscheduling: which jobs share nodes."""

NO_BACKFILL, EASY, CONSERVATIVE = 0, 1, 2

# Results of testing a match: the test that failed (too short, too wide, no capacity), or the last test passed.
TOO_SHORT, TOO_WIDE, REFUSED, FITS, MATCHABLE, BEARABLE = -2, -1, 0, 1, 2, 3


class SharingCodes(NamedTuple):
    """The policy in the form that the kernels read.

    Attributes
    ----------
    coscheduling, heuristic, backfill : int
        The constants above.
    max_slowdown : float
    age_ms : int
        The parameter T_age; 0 stands for the average wait so far.
    load_part : float
        The site is weakly loaded if the widths of the waiting jobs add up to at most this fraction of the idle nodes.
    partners : int
        Maximum number of jobs with which a job may share nodes.
    joins_behind : bool
        Whether a job behind the head of the queue may join a running job.
    """

    coscheduling: int
    heuristic: int
    backfill: int
    max_slowdown: float
    age_ms: int
    load_part: float
    partners: int
    joins_behind: bool


@kernel_part
def may_share(codes: SharingCodes, job: Record) -> bool:
    """Whether a job may share its nodes: medium and long jobs, or all jobs (AC), except jobs with unknown needs."""
    if job.row == UNKNOWN_ROW:
        return False
    return codes.coscheduling == ALWAYS or (codes.coscheduling != ALONE and job.job_class != SHORT)


@kernel_part
def counts_memory(codes: SharingCodes) -> bool:
    """Whether jobs may share a node only if all of them fit into its memory."""
    return codes.coscheduling != ALWAYS


@kernel_part
def is_matchable(model: SlowdownArrays, a: Record, b: Record, hyperthreaded: Int) -> bool:
    """Whether two jobs may share a node, given their limiting resources (the paper, section 5.1 and Figure 4)."""
    if not hyperthreaded:
        return (a.bound == CPU and b.bound == DISK) or (a.bound == DISK and b.bound == CPU)
    if a.bound == CPU and b.bound == CPU:
        return max(cpu_factor(model, a, b, True), cpu_factor(model, b, a, True)) < SERIAL
    return a.bound != b.bound


@kernel
def try_match(state: SharedSite, model: SlowdownArrays, codes: SharingCodes, host: Int, slot: Int) -> Int:
    """Test whether a waiting job may join a running job; return ``REFUSED``, or the last test passed.

    If all tests are passed, ``state.affected`` lists the jobs on the nodes that the job would use. For each of these
    jobs and for the job itself, ``trial_slowdown`` is then the slowdown after the join.
    """
    if not _fits(state, codes, host, slot):
        return REFUSED
    if not _suits_all(state, model, codes, host, slot):
        return FITS
    if not _is_bearable(state, model, codes, host, slot):
        return MATCHABLE
    return BEARABLE


@kernel_part
def is_alike(state: SharedSite, host: Int) -> bool:
    """Whether a host's nodes are all alike: of one kind, and without other jobs."""
    return state.jobs[host].n_partners == 0 and state.jobs[host].one_kind >= 0


@kernel
def _fits(state: SharedSite, codes: SharingCodes, host: Int, slot: Int) -> bool:
    """Whether enough of the host's nodes have capacity for the job."""
    job = state.jobs[slot]
    n_nodes, cell = 0, state.jobs[host].first_cell
    while cell != NO_CELL and n_nodes < job.width:
        node = cell // state.counters[0].lanes
        if has_capacity(state, node, job, codes.partners, counts_memory(codes)):
            if is_alike(state, host):
                return True
            n_nodes += 1
        elif is_alike(state, host):
            return False
        cell = skip_node(state, cell)
    return n_nodes == job.width


@kernel
def _suits_all(state: SharedSite, model: SlowdownArrays, codes: SharingCodes, host: Int, slot: Int) -> bool:
    """Whether the job matches all jobs on the nodes that it would use; list these jobs in ``state.affected``."""
    counters = state.counters[0]
    job = state.jobs[slot]
    n_nodes, count, suits = 0, 0, True
    cell = state.jobs[host].first_cell
    while n_nodes < job.width and suits:
        node = cell // counters.lanes
        if has_capacity(state, node, job, codes.partners, counts_memory(codes)):
            n_nodes += 1
            count = collect(state, node, slot, state.affected, count)
            if codes.coscheduling != ALWAYS:
                hyperthreaded = state.kinds[state.node_kind[node]].hyperthreaded
                for lane in range(counters.lanes):
                    other = state.occupant[node, lane]
                    if other >= 0 and not is_matchable(model, state.jobs[other], job, hyperthreaded):
                        suits = False
            if is_alike(state, host):
                break
        cell = skip_node(state, cell)
    forget_tried(state, state.affected, count)
    counters.n_affected = count
    return suits and count <= codes.partners


@kernel
def _is_bearable(state: SharedSite, model: SlowdownArrays, codes: SharingCodes, host: Int, slot: Int) -> bool:
    """Whether all slowdowns on the nodes that the job would use stay within the limit; set ``trial_slowdown``."""
    counters = state.counters[0]
    job = state.jobs[slot]
    limit = codes.max_slowdown if codes.coscheduling != ALWAYS else 1e300
    for i in range(counters.n_affected):
        other = state.jobs[state.affected[i]]
        other.trial_slowdown = other.slowdown
    job.trial_slowdown = 1.0
    n_nodes, bearable, cell = 0, True, state.jobs[host].first_cell
    while n_nodes < job.width and bearable:
        node = cell // counters.lanes
        if has_capacity(state, node, job, codes.partners, counts_memory(codes)):
            n_nodes += 1
            put(state, node, slot)
            for lane in range(counters.lanes):
                if is_first_cell(state, node, lane):
                    other = state.occupant[node, lane]
                    slowdown = node_slowdown(state, model, node, other)
                    state.jobs[other].trial_slowdown = max(state.jobs[other].trial_slowdown, slowdown)
                    bearable = bearable and slowdown <= limit
            take_off(state, node, slot)
            if is_alike(state, host):
                break
        cell = skip_node(state, cell)
    return bearable

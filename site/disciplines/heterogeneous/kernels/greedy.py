"""Jobs mapped to single machines that differ: OLB, best assignment, min-min and min-max.

Source: Collins and George, *Parallel and Sequential Job Scheduling in Heterogeneous Clusters* (2001), sections 2.2
and 3.

Jobs of one *kind* take equally long on each machine, and machines of one *class* are alike; so times stand in a table
of kinds by classes. Where nothing is alike, each job is a kind and each machine a class. Jobs of a kind are mapped in
the order of their rows. Of alike machines the one that is ready first is taken, and of those the lowest number.

min-min and min-max keep the best class of each kind. As a machine only ever becomes ready later, what was the best
class of a kind stays so until a machine of that very class is given a job: nothing else is worked out again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.state import NEVER_MS

IntArray = npt.NDArray[np.int64]

OLB, BEST_ASSIGNMENT, MIN_MIN, MIN_MAX = (np.int64(number) for number in range(4))
"""The rules by which jobs go to single machines."""

UNMAPPED = np.int64(-1)


class JobKinds(NamedTuple):
    """The jobs to map, by kind.

    Attributes
    ----------
    alone_ms : numpy.ndarray of int64, shape (kinds, classes)
        How long a job of a kind is expected to take on one machine of a class; `NEVER_MS` if it cannot run there.
    team_ms : numpy.ndarray of int64, shape (kinds, teams)
        The same on a team.
    kind : numpy.ndarray of int64, shape (n,)
        Of each job.
    first : numpy.ndarray of int64, shape (kinds + 1,)
        Where the rows of each kind begin in ``rows``.
    rows : numpy.ndarray of int64, shape (n,)
        The rows of the jobs, by kind, ascending within each.
    """

    alone_ms: IntArray
    team_ms: IntArray
    kind: IntArray
    first: IntArray
    rows: IntArray


class MachineArrays(NamedTuple):
    """The machines of a site, and the teams that they can form.

    Attributes
    ----------
    first : numpy.ndarray of int64, shape (classes + 1,)
        Where the machines of each class begin in ``by_class``.
    by_class : numpy.ndarray of int64, shape (m,)
        The machines by class, ascending within each.
    cluster_first : numpy.ndarray of int64, shape (clusters + 1,)
        Where the members of each cluster begin in ``members``.
    members : numpy.ndarray of int64
        Machines, ascending within each cluster.
    team_cluster, team_width : numpy.ndarray of int64, shape (teams,)
        The cluster of each team, and how many of its machines it has.
    """

    first: IntArray
    by_class: IntArray
    cluster_first: IntArray
    members: IntArray
    team_cluster: IntArray
    team_width: IntArray


class Mapping(NamedTuple):
    """Where each job runs, and when.

    Attributes
    ----------
    ready_ms : numpy.ndarray of int64, shape (m,)
        When each machine has done all that it was given.
    end_ms : numpy.ndarray of int64, shape (n,)
        When each job is expected to end.
    place : numpy.ndarray of int64, shape (n,)
        Its machine, or the number of machines plus its team; `UNMAPPED` if it has none.
    team : numpy.ndarray of int64, shape (n, widest)
        The machines of a job that runs on a team, as many as that is wide.
    """

    ready_ms: IntArray
    end_ms: IntArray
    place: IntArray
    team: IntArray


class Scratch(NamedTuple):
    """Room to work in.

    Attributes
    ----------
    heap : numpy.ndarray of int64, shape (m,)
        The machines of each class as a heap, the one that is ready first on top.
    next_row : numpy.ndarray of int64, shape (kinds,)
        Where each kind's next job stands in ``JobKinds.rows``.
    best_ms, best_class : numpy.ndarray of int64, shape (kinds,)
        When that job would end on its best class of machines, and that class.
    """

    heap: IntArray
    next_row: IntArray
    best_ms: IntArray
    best_class: IntArray


@kernel
def map_alone(jobs: JobKinds, machines: MachineArrays, plan: Mapping, scratch: Scratch, rule: Int) -> Int:
    """Map every job that has no place yet to a single machine, behind what the machines have been given.

    Parameters
    ----------
    jobs : JobKinds
    machines : MachineArrays
    plan : Mapping
        Jobs that have a place keep it.
    scratch : Scratch
    rule : int
        `OLB`, `BEST_ASSIGNMENT`, `MIN_MIN` or `MIN_MAX`.

    Returns
    -------
    int
        The sum of the ends of the jobs mapped, in ms. Jobs that cannot run on one machine are left without a place.
    """
    for place in range(len(machines.by_class)):
        scratch.heap[place] = machines.by_class[place]
    for c in range(len(machines.first) - 1):
        _make_heap(scratch.heap, machines.first[c], machines.first[c + 1], plan.ready_ms)
    if rule <= BEST_ASSIGNMENT:
        return _map_in_order(jobs, machines, plan, scratch, rule)
    for kind in range(len(jobs.alone_ms)):
        scratch.next_row[kind] = _next_row(jobs, plan, kind, jobs.first[kind])
        _find_best(jobs, machines, plan, scratch, kind)
    total: Int = 0
    while True:
        kind = _next_kind(jobs, scratch, rule)
        if kind < 0:
            return total
        c, end_ms = scratch.best_class[kind], scratch.best_ms[kind]
        _give(machines, plan, scratch, jobs.rows[scratch.next_row[kind]], c, end_ms)
        total += end_ms
        scratch.next_row[kind] = _next_row(jobs, plan, kind, scratch.next_row[kind])
        for other in range(len(jobs.alone_ms)):
            if scratch.best_class[other] == c and scratch.next_row[other] < jobs.first[other + 1]:
                _find_best(jobs, machines, plan, scratch, other)


@kernel
def _map_in_order(jobs: JobKinds, machines: MachineArrays, plan: Mapping, scratch: Scratch, rule: Int) -> Int:
    """Map jobs in the order of their rows: to the machine that is ready first, or the first of the best class."""
    total: Int = 0
    for row in range(len(jobs.kind)):
        if plan.place[row] != UNMAPPED:
            continue
        times = jobs.alone_ms[jobs.kind[row]]
        best: Int = -1
        least: Int = NEVER_MS
        for c in range(len(times)):
            if times[c] == NEVER_MS:
                continue
            value = times[c] if rule == BEST_ASSIGNMENT else 0
            if best < 0 or value < least or (value == least and _is_before(machines, plan, scratch, c, best)):
                best, least = c, value
        if best >= 0:
            end_ms = plan.ready_ms[scratch.heap[machines.first[best]]] + times[best]
            _give(machines, plan, scratch, row, best, end_ms)
            total += end_ms
    return total


@kernel_part
def _is_before(machines: MachineArrays, plan: Mapping, scratch: Scratch, one: Int, other: Int) -> bool:
    """Whether the first machine of a class is ready before that of another; the lower number at one instant."""
    a, b = scratch.heap[machines.first[one]], scratch.heap[machines.first[other]]
    return _goes_before(a, b, plan.ready_ms)


@kernel_part
def _next_row(jobs: JobKinds, plan: Mapping, kind: Int, at: Int) -> Int:
    """Return where the next job of a kind without a place stands in the rows."""
    while at < jobs.first[kind + 1] and plan.place[jobs.rows[at]] != UNMAPPED:
        at += 1
    return at


@kernel_part
def _find_best(jobs: JobKinds, machines: MachineArrays, plan: Mapping, scratch: Scratch, kind: Int) -> None:
    """Find on which class the next job of a kind ends first; of several the one with the lowest machine."""
    scratch.best_ms[kind], scratch.best_class[kind] = NEVER_MS, -1
    for c in range(len(machines.first) - 1):
        length_ms = jobs.alone_ms[kind, c]
        if length_ms == NEVER_MS:
            continue
        machine = scratch.heap[machines.first[c]]
        end_ms = plan.ready_ms[machine] + length_ms
        best = scratch.best_class[kind]
        if end_ms < scratch.best_ms[kind] or (
            end_ms == scratch.best_ms[kind] and machine < scratch.heap[machines.first[best]]
        ):
            scratch.best_ms[kind], scratch.best_class[kind] = end_ms, c


@kernel_part
def _next_kind(jobs: JobKinds, scratch: Scratch, rule: Int) -> Int:
    """Return the kind whose next job ends first (min-min) or last (min-max), the lowest row of several; -1: none."""
    found = -1
    for kind in range(len(jobs.alone_ms)):
        at, end_ms = scratch.next_row[kind], scratch.best_ms[kind]
        if at == jobs.first[kind + 1] or end_ms == NEVER_MS:
            continue
        if found >= 0:
            best_ms = scratch.best_ms[found]
            is_better = end_ms < best_ms if rule == MIN_MIN else end_ms > best_ms
            if not is_better and (end_ms != best_ms or jobs.rows[at] > jobs.rows[scratch.next_row[found]]):
                continue
        found = kind
    return found


@kernel_part
def _give(machines: MachineArrays, plan: Mapping, scratch: Scratch, row: Int, c: Int, end_ms: Int) -> None:
    """Give a job to the first machine of a class."""
    machine = scratch.heap[machines.first[c]]
    plan.place[row], plan.end_ms[row], plan.ready_ms[machine] = machine, end_ms, end_ms
    _sink(scratch.heap, machines.first[c], machines.first[c + 1], machines.first[c], plan.ready_ms)


@kernel_part
def _make_heap(heap: IntArray, first: Int, end: Int, ready_ms: IntArray) -> None:
    for place in range(first + (end - first) // 2 - 1, first - 1, -1):
        _sink(heap, first, end, place, ready_ms)


@kernel_part
def _sink(heap: IntArray, first: Int, end: Int, place: Int, ready_ms: IntArray) -> None:
    """Let the machine at a place of a heap go down to where it belongs."""
    machine: Any = heap[place]
    while True:
        child = first + 2 * (place - first) + 1
        if child >= end:
            break
        if child + 1 < end and _goes_before(heap[child + 1], heap[child], ready_ms):
            child += 1
        if not _goes_before(heap[child], machine, ready_ms):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = machine


@kernel_part
def _goes_before(one: Int, other: Int, ready_ms: IntArray) -> bool:
    before: bool = ready_ms[one] < ready_ms[other] or (ready_ms[one] == ready_ms[other] and one < other)
    return before

"""Jobs mapped to single machines that differ: OLB, best assignment, min-min and min-max.

Source: Collins and George, *Parallel and Sequential Job Scheduling in Heterogeneous Clusters* (2001), sections 2.2
and 3.

Jobs of one *kind* take equally long on each machine, and machines of one *class* are alike; so times stand in a table
of kinds by classes. Where nothing is alike, each job is a kind and each machine a class. Jobs of a kind are mapped in
the order of their rows. Of alike machines the one that is ready first is taken, and of those the one with the lowest
rank: the one whose taking troubles others least, then the lowest number.

A job may take several machines of one class. So jobs are mapped to the sites of a grid: the nodes of each are a class.

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
    taken : numpy.ndarray of int64, shape (kinds, classes)
        How many machines of a class a job takes that runs on it, at most all of them.
    from_ms : numpy.ndarray of int64, shape (kinds, classes)
        Before which it does not start there, though the machines are ready.
    kind : numpy.ndarray of int64, shape (n,)
        Of each job.
    first : numpy.ndarray of int64, shape (kinds + 1,)
        Where the rows of each kind begin in ``rows``.
    rows : numpy.ndarray of int64, shape (n,)
        The rows of the jobs, by kind, ascending within each.
    """

    alone_ms: IntArray
    team_ms: IntArray
    taken: IntArray
    from_ms: IntArray
    kind: IntArray
    first: IntArray
    rows: IntArray


class MachineArrays(NamedTuple):
    """The machines of a site, and the teams that they can form.

    Attributes
    ----------
    class_of : numpy.ndarray of int64, shape (m,)
        Of each machine.
    widest, largest : int
        The machines of the widest team, and of the largest class or cluster.
    first : numpy.ndarray of int64, shape (classes + 1,)
        Where the machines of each class begin in ``by_class``.
    rank : numpy.ndarray of int64, shape (m,)
        Of machines that are ready equally early the one with the lowest goes first: the number of a machine, and m
        times how much others are troubled by its taking (0, 1 or 2).
    by_class : numpy.ndarray of int64, shape (m,)
        The machines by class, ascending within each.
    cluster_first : numpy.ndarray of int64, shape (clusters + 1,)
        Where the members of each cluster begin in ``members``.
    members : numpy.ndarray of int64
        Machines, ascending within each cluster.
    team_cluster, team_width : numpy.ndarray of int64, shape (teams,)
        The cluster of each team, and how many of its machines it has.
    """

    class_of: IntArray
    rank: IntArray
    widest: int
    largest: int
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
        Its machine (the first of several of a class), or the number of machines plus its team; `UNMAPPED` if it has
        none.
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
        _make_heap(machines, scratch.heap, machines.first[c], machines.first[c + 1], plan.ready_ms)
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
        _give(machines, plan, scratch, jobs.rows[scratch.next_row[kind]], c, jobs.taken[kind, c], end_ms)
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
        kind = jobs.kind[row]
        times = jobs.alone_ms[kind]
        best: Int = -1
        least: Int = NEVER_MS
        best_ms: Int = NEVER_MS
        for c in range(len(times)):
            if times[c] == NEVER_MS:
                continue
            value = times[c] if rule == BEST_ASSIGNMENT else 0
            start_ms = _start_ms(jobs, machines, plan, scratch, kind, c)
            is_before = start_ms < best_ms or (start_ms == best_ms and _is_lower(machines, scratch, c, best))
            if best < 0 or value < least or (value == least and is_before):
                best, least, best_ms = c, value, start_ms
        if best >= 0:
            end_ms = best_ms + times[best]
            _give(machines, plan, scratch, row, best, jobs.taken[kind, best], end_ms)
            total += end_ms
    return total


@kernel_part
def _is_lower(machines: MachineArrays, scratch: Scratch, one: Int, other: Int) -> bool:
    """Whether the first machine of a class has a lower rank than that of another."""
    first, second = scratch.heap[machines.first[one]], scratch.heap[machines.first[other]]
    lower: bool = machines.rank[first] < machines.rank[second]
    return lower


@kernel_part
def _start_ms(jobs: JobKinds, machines: MachineArrays, plan: Mapping, scratch: Scratch, kind: Int, c: Int) -> Int:
    """Return when a job of a kind would start on a class, as its machines are now."""
    first, end, count = machines.first[c], machines.first[c + 1], jobs.taken[kind, c]
    if count == 1:
        ready_ms = plan.ready_ms[scratch.heap[first]]
    else:
        _take_first(machines, scratch.heap, first, end, count, plan.ready_ms)
        ready_ms = plan.ready_ms[scratch.heap[end - count]]
        _make_heap(machines, scratch.heap, first, end, plan.ready_ms)
    return max(ready_ms, jobs.from_ms[kind, c])


@kernel_part
def _next_row(jobs: JobKinds, plan: Mapping, kind: Int, at: Int) -> Int:
    """Return where the next job of a kind without a place stands in the rows."""
    while at < jobs.first[kind + 1] and plan.place[jobs.rows[at]] != UNMAPPED:
        at += 1
    return at


@kernel_part
def _find_best(jobs: JobKinds, machines: MachineArrays, plan: Mapping, scratch: Scratch, kind: Int) -> None:
    """Find on which class the next job of a kind ends first; of several by the rank of their first machine."""
    scratch.best_ms[kind], scratch.best_class[kind] = NEVER_MS, -1
    for c in range(len(machines.first) - 1):
        length_ms = jobs.alone_ms[kind, c]
        if length_ms == NEVER_MS:
            continue
        end_ms = _start_ms(jobs, machines, plan, scratch, kind, c) + length_ms
        best_ms, best = scratch.best_ms[kind], scratch.best_class[kind]
        if end_ms < best_ms or (end_ms == best_ms and _is_lower(machines, scratch, c, best)):
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
def _give(machines: MachineArrays, plan: Mapping, scratch: Scratch, row: Int, c: Int, count: Int, end_ms: Int) -> None:
    """Give a job to the first machines of a class."""
    first, end = machines.first[c], machines.first[c + 1]
    machine = scratch.heap[first]
    plan.place[row], plan.end_ms[row] = machine, end_ms
    if count == 1:
        plan.ready_ms[machine] = end_ms
        _sink(machines, scratch.heap, first, end, first, plan.ready_ms)
        return
    _take_first(machines, scratch.heap, first, end, count, plan.ready_ms)
    for place in range(end - count, end):
        plan.ready_ms[scratch.heap[place]] = end_ms
    _make_heap(machines, scratch.heap, first, end, plan.ready_ms)


@kernel_part
def _take_first(machines: MachineArrays, heap: IntArray, first: Int, end: Int, count: Int, ready_ms: IntArray) -> None:
    """Have the machines that are ready first stand behind the others, the very first at the end, out of the heap."""
    for taken in range(count):
        last = end - 1 - taken
        heap[first], heap[last] = heap[last], heap[first]
        _sink(machines, heap, first, last, first, ready_ms)


@kernel_part
def _make_heap(machines: MachineArrays, heap: IntArray, first: Int, end: Int, ready_ms: IntArray) -> None:
    for place in range(first + (end - first) // 2 - 1, first - 1, -1):
        _sink(machines, heap, first, end, place, ready_ms)


@kernel_part
def _sink(machines: MachineArrays, heap: IntArray, first: Int, end: Int, place: Int, ready_ms: IntArray) -> None:
    """Let the machine at a place of a heap go down to where it belongs."""
    machine: Any = heap[place]
    while True:
        child = first + 2 * (place - first) + 1
        if child >= end:
            break
        if child + 1 < end and goes_before(machines, heap[child + 1], heap[child], ready_ms):
            child += 1
        if not goes_before(machines, heap[child], machine, ready_ms):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = machine


@kernel_part
def goes_before(machines: MachineArrays, one: Int, other: Int, ready_ms: IntArray) -> bool:
    """Whether a machine is taken before another: the one that is ready first, else that with the lower rank.

    Parameters
    ----------
    machines : MachineArrays
    one, other : int
        Machines.
    ready_ms : numpy.ndarray of int64, shape (m,)
        When each machine is ready.
    """
    before: bool = ready_ms[one] < ready_ms[other]
    return before or (ready_ms[one] == ready_ms[other] and machines.rank[one] < machines.rank[other])

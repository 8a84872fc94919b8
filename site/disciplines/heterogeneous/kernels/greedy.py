"""Map jobs to single machines of different classes, by OLB, best assignment, min-min or min-max.

Source: Collins and George, *Parallel and Sequential Job Scheduling in Heterogeneous Clusters* (2001), sections 2.2
and 3.

Jobs of one *kind* have the same run time on any given machine, and machines of one *class* are identical, so run times
are in a table of kinds by classes. In the extreme, each job is its own kind and each machine its own class. Jobs of a
kind are mapped in the order of their rows. A job gets the machine of a class that is ready first; ties go to the lowest
rank: the machine whose use harms other jobs least, then the lowest number.

A job may use several machines of one class. Jobs are mapped to the sites of a grid in the same way: each site's nodes
form a class.

min-min and min-max store the best class of each kind. Mapping a job only ever makes machines ready later, so a kind's
best class can change only after a machine of that class has been given a job. Only then is it computed again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.state import NEVER_MS

IntArray = npt.NDArray[np.int64]

OLB, BEST_ASSIGNMENT, MIN_MIN, MIN_MAX = (np.int64(number) for number in range(4))
"""Rules for mapping jobs to single machines."""

UNMAPPED = np.int64(-1)


class JobKinds(NamedTuple):
    """The jobs to map, by kind.

    Attributes
    ----------
    alone_ms : numpy.ndarray of int64, shape (kinds, classes)
        Expected run time of a job of each kind on machines of each class; `NEVER_MS` if it cannot run on the class.
    team_ms : numpy.ndarray of int64, shape (kinds, teams)
        Expected run time of a job of each kind on each team; `NEVER_MS` if it cannot run on the team.
    taken : numpy.ndarray of int64, shape (kinds, classes)
        Number of machines that a job of each kind uses on each class, at most the size of the class.
    from_ms : numpy.ndarray of int64, shape (kinds, classes)
        Earliest start of a job of each kind on each class, even if the machines are ready earlier.
    kind : numpy.ndarray of int64, shape (jobs,)
        The kind of each job.
    first : numpy.ndarray of int64, shape (kinds + 1,)
        Index in ``rows`` of the first job of each kind, followed by the number of jobs.
    rows : numpy.ndarray of int64, shape (jobs,)
        Rows of the jobs, grouped by kind, ascending within each kind.
    """

    alone_ms: IntArray
    team_ms: IntArray
    taken: IntArray
    from_ms: IntArray
    kind: IntArray
    first: IntArray
    rows: IntArray


class MachineArrays(NamedTuple):
    """A site's machines, and the teams that they can form.

    Attributes
    ----------
    class_of : numpy.ndarray of int64, shape (machines,)
        The class of each machine.
    widest, largest : int
        Number of machines in the widest team, and in the largest class or cluster.
    first : numpy.ndarray of int64, shape (classes + 1,)
        Index in ``by_class`` of the first machine of each class, followed by the number of machines.
    rank : numpy.ndarray of int64, shape (machines,)
        Tie-breaker between machines that are ready at the same time, lowest first: the machine's number, plus the harm
        that its use does to other jobs (0, 1 or 2) times the total number of machines.
    by_class : numpy.ndarray of int64, shape (machines,)
        The machines, grouped by class, ascending within each class.
    cluster_first : numpy.ndarray of int64, shape (clusters + 1,)
        Index in ``members`` of the first machine of each cluster, followed by the length of ``members``.
    members : numpy.ndarray of int64
        The machines, grouped by cluster, ascending within each cluster.
    team_cluster, team_width : numpy.ndarray of int64, shape (teams,)
        The cluster and the number of machines of each team.
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
    """The placement and end time of each job.

    Attributes
    ----------
    ready_ms : numpy.ndarray of int64, shape (machines,)
        When each machine finishes its last job.
    end_ms : numpy.ndarray of int64, shape (jobs,)
        Expected end time of each job.
    place : numpy.ndarray of int64, shape (jobs,)
        The machine of each job (the first machine, if the job uses several), or the number of machines plus the job's
        team; `UNMAPPED` if the job is not mapped.
    team : numpy.ndarray of int64, shape (jobs, widest)
        The machines of each job that runs on a team, in the first columns.
    """

    ready_ms: IntArray
    end_ms: IntArray
    place: IntArray
    team: IntArray


class Scratch(NamedTuple):
    """Scratch arrays for mapping.

    Attributes
    ----------
    heap : numpy.ndarray of int64, shape (machines,)
        One heap of machines per class, with the machine that is ready first on top.
    next_row : numpy.ndarray of int64, shape (kinds,)
        Index in ``JobKinds.rows`` of the next job of each kind.
    best_ms, best_class : numpy.ndarray of int64, shape (kinds,)
        The end time of each kind's next job on the class on which it ends first, and that class.
    """

    heap: IntArray
    next_row: IntArray
    best_ms: IntArray
    best_class: IntArray


@kernel
def map_alone(jobs: JobKinds, machines: MachineArrays, plan: Mapping, scratch: Scratch, rule: Int) -> Int:
    """Map every unmapped job to machines of one class, after the jobs already mapped to these machines.

    Parameters
    ----------
    jobs : JobKinds
    machines : MachineArrays
    plan : Mapping
        Changed in place; the mapping of already mapped jobs is kept.
    scratch : Scratch
    rule : int
        `OLB`, `BEST_ASSIGNMENT`, `MIN_MIN` or `MIN_MAX`.

    Returns
    -------
    int
        The sum of the end times of the newly mapped jobs, in ms. Jobs that cannot run on any class stay unmapped.
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
    """Map jobs in row order: OLB uses the first ready class, best assignment the class with the shortest run time."""
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
def _is_lower(machines: MachineArrays, scratch: Scratch, class_number: Int, other: Int) -> bool:
    """Whether the first ready machine of one class has a lower rank than the first ready machine of another class."""
    first, second = scratch.heap[machines.first[class_number]], scratch.heap[machines.first[other]]
    lower: bool = machines.rank[first] < machines.rank[second]
    return lower


@kernel_part
def _start_ms(jobs: JobKinds, machines: MachineArrays, plan: Mapping, scratch: Scratch, kind: Int, c: Int) -> Int:
    """Return when a job of a kind would start on a class, after the jobs mapped so far."""
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
    """Return the index in ``rows`` of a kind's next unmapped job at or after `at`; the kind's end if none is left."""
    while at < jobs.first[kind + 1] and plan.place[jobs.rows[at]] != UNMAPPED:
        at += 1
    return at


@kernel_part
def _find_best(jobs: JobKinds, machines: MachineArrays, plan: Mapping, scratch: Scratch, kind: Int) -> None:
    """Find the class on which a kind's next job ends first; ties go to the class whose first machine ranks lowest."""
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
    """Return the kind whose next job ends first (min-min) or last (min-max), ties by row; -1 if no job is left."""
    best_kind = -1
    for kind in range(len(jobs.alone_ms)):
        at, end_ms = scratch.next_row[kind], scratch.best_ms[kind]
        if at == jobs.first[kind + 1] or end_ms == NEVER_MS:
            continue
        if best_kind >= 0:
            best_ms = scratch.best_ms[best_kind]
            is_better = end_ms < best_ms if rule == MIN_MIN else end_ms > best_ms
            if not is_better and (end_ms != best_ms or jobs.rows[at] > jobs.rows[scratch.next_row[best_kind]]):
                continue
        best_kind = kind
    return best_kind


@kernel_part
def _give(machines: MachineArrays, plan: Mapping, scratch: Scratch, row: Int, c: Int, count: Int, end_ms: Int) -> None:
    """Map a job to the `count` machines of a class that are ready first."""
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
    """Move the `count` machines that are ready first from the heap to the end of its array, in reverse order."""
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
    """Sift a machine down from index `place` of the heap."""
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
def goes_before(machines: MachineArrays, machine: Int, other: Int, ready_ms: IntArray) -> bool:
    """Whether one machine is preferred to another: it is ready earlier, or both are ready at once and it ranks lower.

    Parameters
    ----------
    machines : MachineArrays
    machine, other : int
        The machines to compare.
    ready_ms : numpy.ndarray of int64, shape (machines,)
        When each machine is ready.
    """
    before: bool = ready_ms[machine] < ready_ms[other]
    return before or (ready_ms[machine] == ready_ms[other] and machines.rank[machine] < machines.rank[other])

"""Map jobs to machines and teams by genetic simulated annealing, starting from the mapping of PJS.

Collins and George (2001), section 6, name this as future work. The method follows Braun and others, *A Comparison
of Eleven Static Heuristics for Mapping a Class of Independent Tasks onto Heterogeneous Distributed Computing Systems*
(2001), section "GSA": a genetic algorithm in which a child replaces a parent unless the child is worse by at least a
temperature, which falls by a tenth with each generation.

A *plan* holds the order in which jobs are mapped, and each job's machine class or team. The job gets the machines of
that class or team that are ready first. The sizes and probabilities below are guesses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.disciplines.heterogeneous.kernels.greedy import UNMAPPED, JobKinds, MachineArrays, goes_before
from gridweave.site.disciplines.heterogeneous.kernels.parallel import MappingWork, commit, copy_mapping
from gridweave.site.kernels.state import NEVER_MS

IntArray = npt.NDArray[np.int64]

GSA = np.int64(6)

PLANS, GENERATIONS = 16, 100

DRAWS = 7
"""Random numbers per child: two parents, a crossover point, two jobs to swap, a job to move, its class or team."""

_COOLING = 0.9
_CHANGES = 0.5


class Plans(NamedTuple):
    """The plans, the current child, and the random numbers for the search.

    Attributes
    ----------
    order : numpy.ndarray of int64, shape (plans + 1, jobs)
        Rows of the jobs that can run, in the order in which they are mapped; the last plan is the child.
    way : numpy.ndarray of int64, shape (plans + 1, n)
        The machine class of each row's job; for a job on a team, the number of classes plus the team's index.
    total_ms : numpy.ndarray of int64, shape (plans + 1,)
        The sum of the jobs' end times under each plan.
    ready_ms : numpy.ndarray of int64, shape (machines,)
        When each machine is ready before any job is mapped.
    is_taken : numpy.ndarray of bool, shape (n,)
        Scratch: the rows that the child already contains.
    draws : numpy.ndarray of float64, shape (generations, plans, `DRAWS`)
        Random numbers in [0, 1).
    """

    order: IntArray
    way: IntArray
    total_ms: IntArray
    ready_ms: IntArray
    is_taken: npt.NDArray[np.bool_]
    draws: npt.NDArray[np.float64]


@kernel
def anneal(jobs: JobKinds, machines: MachineArrays, work: MappingWork, plans: Plans, best_ms: Int) -> Int:
    """Search for a mapping with a smaller sum of end times.

    Parameters
    ----------
    jobs : JobKinds
    machines : MachineArrays
    work : MappingWork
        On entry ``work.best`` is a mapping of all jobs that can run; on return it is the best mapping found.
    plans : Plans
        On entry, every plan describes the mapping in ``work.best``; changed in place.
    best_ms : int
        The sum of the end times in the initial mapping.

    Returns
    -------
    int
        The sum of the end times in the best mapping, at most `best_ms`.
    """
    n_plans, n = len(plans.total_ms) - 1, plans.order.shape[1]
    first_ms = _map_by_plan(jobs, machines, work, plans, 0)
    for plan in range(n_plans):
        plans.total_ms[plan] = first_ms
    temperature = best_ms / n
    for generation in range(len(plans.draws)):
        for number in range(n_plans):
            draws = plans.draws[generation, number]
            parent = int(draws[0] * n_plans)
            _cross(plans, parent, int(draws[1] * n_plans), int(draws[2] * (n + 1)))
            if draws[3] < _CHANGES:
                index, other = int(draws[3] / _CHANGES * n), int(draws[4] * n)
                rows = plans.order[n_plans]
                rows[index], rows[other] = rows[other], rows[index]
            if draws[5] < _CHANGES:
                row = plans.order[n_plans, int(draws[5] / _CHANGES * n)]
                plans.way[n_plans, row] = _drawn_way(jobs, machines, jobs.kind[row], draws[6])
            total_ms = _map_by_plan(jobs, machines, work, plans, n_plans)
            if total_ms < best_ms:
                best_ms = total_ms
                copy_mapping(work.base, work.best)
            if total_ms < plans.total_ms[parent] + temperature:
                _replace(plans, parent, total_ms)
        temperature *= _COOLING
    return best_ms


@kernel
def _map_by_plan(jobs: JobKinds, machines: MachineArrays, work: MappingWork, plans: Plans, plan: Int) -> Int:
    """Map the jobs into ``work.base`` according to a plan; return the sum of their end times."""
    n_classes = len(machines.first) - 1
    for machine in range(len(plans.ready_ms)):
        work.base.ready_ms[machine] = plans.ready_ms[machine]
    total: Int = 0
    for at in range(plans.order.shape[1]):
        row = plans.order[plan, at]
        way = plans.way[plan, row]
        if way >= n_classes:
            total += commit(jobs, machines, work, row, way - n_classes)
            continue
        best = machines.by_class[machines.first[way]]
        for place in range(machines.first[way] + 1, machines.first[way + 1]):
            machine = machines.by_class[place]
            if goes_before(machines, machine, best, work.base.ready_ms):
                best = machine
        end_ms = work.base.ready_ms[best] + jobs.alone_ms[jobs.kind[row], way]
        work.base.place[row], work.base.end_ms[row], work.base.ready_ms[best] = best, end_ms, end_ms
        total += end_ms
    return total


@kernel
def _cross(plans: Plans, parent: Int, other: Int, cut: Int) -> None:
    """Build the child from a parent's jobs before `cut`, followed by all other jobs in the other parent's order."""
    child, n = len(plans.total_ms) - 1, plans.order.shape[1]
    for row in range(len(plans.is_taken)):
        plans.is_taken[row] = False
        plans.way[child, row] = plans.way[other, row]
    for at in range(cut):
        row = plans.order[parent, at]
        plans.order[child, at] = row
        plans.way[child, row] = plans.way[parent, row]
        plans.is_taken[row] = True
    place = cut
    for at in range(n):
        row = plans.order[other, at]
        if not plans.is_taken[row]:
            plans.order[child, place] = row
            place += 1


@kernel
def _drawn_way(jobs: JobKinds, machines: MachineArrays, kind: Int, draw: float) -> Int:
    """Return a class or team, drawn uniformly from those on which jobs of a kind can run; `draw` is in [0, 1)."""
    n_classes, n_teams = jobs.alone_ms.shape[1], jobs.team_ms.shape[1]
    count = 0
    for way in range(n_classes + n_teams):
        count += _can_run(jobs, machines, kind, way)
    remaining = int(draw * count)
    for way in range(n_classes + n_teams):
        if _can_run(jobs, machines, kind, way):
            if remaining == 0:
                return way
            remaining -= 1
    return UNMAPPED


@kernel_part
def _can_run(jobs: JobKinds, machines: MachineArrays, kind: Int, way: Int) -> bool:
    """Whether jobs of a kind can run on a class or team; they cannot run on a class without machines."""
    n_classes = jobs.alone_ms.shape[1]
    if way >= n_classes:
        on_team: bool = jobs.team_ms[kind, way - n_classes] != NEVER_MS
        return on_team
    alone: bool = jobs.alone_ms[kind, way] != NEVER_MS and machines.first[way] < machines.first[way + 1]
    return alone


@kernel_part
def _replace(plans: Plans, parent: Int, total_ms: Int) -> None:
    """Replace a parent with the child, whose sum of end times is `total_ms`."""
    child = len(plans.total_ms) - 1
    plans.total_ms[parent] = total_ms
    for at in range(plans.order.shape[1]):
        plans.order[parent, at] = plans.order[child, at]
    for row in range(plans.way.shape[1]):
        plans.way[parent, row] = plans.way[child, row]

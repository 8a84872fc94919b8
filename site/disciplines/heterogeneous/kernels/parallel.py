"""Map jobs to machines and teams by SJS, the better of min-min and min-max, or by PJS, which adds teams to SJS.

Source: Collins and George (2001), section 3, steps 1 to 5 of the Parallel Job Scheduler.

A *team* of width w consists of the w machines of one cluster that are ready first. The team is ready when the last of
its machines is ready, and a job that runs on the team makes all its machines ready later (section 5.1).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.disciplines.heterogeneous.kernels.greedy import (
    MIN_MAX,
    MIN_MIN,
    UNMAPPED,
    JobKinds,
    MachineArrays,
    Mapping,
    Scratch,
    goes_before,
    map_alone,
)
from gridweave.site.kernels.state import NEVER_MS

SJS, PJS = np.int64(4), np.int64(5)

BY_END, BY_LENGTH = np.int64(0), np.int64(1)
"""How profit is computed: end time (or run time) on the best single machine minus end time (run time) on the team."""


class MappingWork(NamedTuple):
    """The best mapping so far, three mappings to compare it with, and scratch arrays.

    Attributes
    ----------
    best : Mapping
        On entry, an empty mapping that says when each machine is ready; on return, the best mapping.
    base, trial, other : Mapping
        The mapping of only the jobs on teams; the better of two ways to complete it; and the other way.
    scratch : Scratch
    reach : numpy.ndarray of int64
        Scratch, as long as the largest cluster or class: first the machines that a team or job uses, in the order in
        which they become ready.
    """

    best: Mapping
    base: Mapping
    trial: Mapping
    other: Mapping
    scratch: Scratch
    reach: npt.NDArray[np.int64]


@kernel
def map_jobs(jobs: JobKinds, machines: MachineArrays, work: MappingWork, rule: Int, profit: Int) -> Int:
    """Map jobs to machines and teams.

    Jobs that can run only on teams are mapped first, in the order of their rows, each to the team on which it ends
    first.

    Parameters
    ----------
    jobs : JobKinds
    machines : MachineArrays
    work : MappingWork
        On entry, ``work.best`` says when each machine is ready and maps no job; on return, it is the mapping.
    rule : int
        `OLB`, `BEST_ASSIGNMENT`, `MIN_MIN`, `MIN_MAX`, `SJS` or `PJS`.
    profit : int
        `BY_END` or `BY_LENGTH`, for `PJS`.

    Returns
    -------
    int
        The sum of the end times of all mapped jobs, in ms. To get the sum of the expected execution and delay times,
        subtract the current time once for each mapped job.
    """
    copy_mapping(work.best, work.base)
    forced: Int = 0
    for row in range(len(jobs.kind)):
        if not _runs_alone(jobs, jobs.kind[row]):
            team = _earliest_team(jobs, machines, work, jobs.kind[row])
            if team >= 0:
                forced += commit(jobs, machines, work, row, team)
    copy_mapping(work.base, work.best)
    if rule < SJS:
        return forced + map_alone(jobs, machines, work.best, work.scratch, rule)
    best: Int = forced + _better_of_two(jobs, machines, work)
    copy_mapping(work.trial, work.best)
    while rule == PJS:
        kind, team = _most_profitable(jobs, machines, work, profit)
        if team < 0:
            break
        forced += commit(jobs, machines, work, _first_row(jobs, work, kind), team)
        total = forced + _better_of_two(jobs, machines, work)
        if total >= best:
            break
        best = total
        copy_mapping(work.trial, work.best)
    return best


@kernel_part
def _runs_alone(jobs: JobKinds, kind: Int) -> bool:
    """Whether a job of a kind can run on a single machine."""
    classes = 0
    for c in range(jobs.alone_ms.shape[1]):
        classes += jobs.alone_ms[kind, c] != NEVER_MS
    return classes > 0


@kernel
def _better_of_two(jobs: JobKinds, machines: MachineArrays, work: MappingWork) -> Int:
    """Complete ``work.base`` by min-min and by min-max, and keep the better (on a tie min-min) in ``work.trial``."""
    copy_mapping(work.base, work.trial)
    total = map_alone(jobs, machines, work.trial, work.scratch, MIN_MIN)
    copy_mapping(work.base, work.other)
    second = map_alone(jobs, machines, work.other, work.scratch, MIN_MAX)
    if second < total:
        copy_mapping(work.other, work.trial)
        return second
    return total


@kernel
def _most_profitable(jobs: JobKinds, machines: MachineArrays, work: MappingWork, profit: Int) -> Any:
    """Return the kind and team of the most profitable unmapped job; -1, -1 if no job gains from running on a team.

    Ties go to the lowest row, then to the team whose use harms other jobs least, then to the lowest team.
    """
    n_kinds, n_teams = jobs.team_ms.shape
    best_kind, found_team, most, found_row, found_trouble = -1, -1, 0, -1, 0
    for kind in range(n_kinds):
        row = _first_row(jobs, work, kind)
        work.scratch.next_row[kind] = row
        work.scratch.best_ms[kind] = _end_alone(jobs, machines, work, kind, profit) if row >= 0 else NEVER_MS
    for team in range(n_teams):
        team_ms = _ready_ms(machines, work, team)
        ready_ms, trouble = team_ms if profit == BY_END else 0, _trouble(machines, work, team)
        for kind in range(n_kinds):
            row, length_ms = work.scratch.next_row[kind], jobs.team_ms[kind, team]
            if row < 0 or length_ms == NEVER_MS or work.scratch.best_ms[kind] == NEVER_MS:
                continue
            gain = work.scratch.best_ms[kind] - ready_ms - length_ms
            is_better = row < found_row or (row == found_row and trouble < found_trouble)
            if gain > most or (gain == most and best_kind >= 0 and is_better):
                best_kind, found_team, most, found_row, found_trouble = kind, team, gain, row, trouble
    return best_kind, found_team


@kernel_part
def _end_alone(jobs: JobKinds, machines: MachineArrays, work: MappingWork, kind: Int, profit: Int) -> Int:
    """Return a job's earliest end without a team, given ``work.base``; if `BY_LENGTH`, its shortest run time."""
    best = NEVER_MS
    for c in range(len(machines.first) - 1):
        length_ms = jobs.alone_ms[kind, c]
        if length_ms == NEVER_MS:
            continue
        start_ms: Int = 0
        if profit == BY_END:
            first, size = machines.first[c], machines.first[c + 1] - machines.first[c]
            ready_ms = _all_ready_ms(machines, machines.by_class, first, size, jobs.taken[kind, c], work)
            start_ms = max(ready_ms, jobs.from_ms[kind, c])
        best = min(best, start_ms + length_ms)
    return best


@kernel_part
def _first_row(jobs: JobKinds, work: MappingWork, kind: Int) -> Int:
    """Return the row of the first job of a kind that ``work.base`` does not map; -1 if it maps all of them."""
    for at in range(jobs.first[kind], jobs.first[kind + 1]):
        if work.base.place[jobs.rows[at]] == UNMAPPED:
            row: Int = jobs.rows[at]
            return row
    return -1


@kernel_part
def _earliest_team(jobs: JobKinds, machines: MachineArrays, work: MappingWork, kind: Int) -> Int:
    """Return the team on which a job of a kind would end first; -1 if the job cannot run on any team.

    Ties go to the team whose use harms other jobs least, then to the lowest team.
    """
    best_team, end_ms, least = -1, NEVER_MS, 0
    for team in range(jobs.team_ms.shape[1]):
        if jobs.team_ms[kind, team] != NEVER_MS:
            ends_ms = _ready_ms(machines, work, team) + jobs.team_ms[kind, team]
            trouble = _trouble(machines, work, team)
            if ends_ms < end_ms or (ends_ms == end_ms and trouble < least):
                best_team, end_ms, least = team, ends_ms, trouble
    return best_team


@kernel_part
def _trouble(machines: MachineArrays, work: MappingWork, team: Int) -> Int:
    """Return how much using a team harms other jobs: the largest value (0, 1 or 2) of any of its machines.

    Call this right after `_ready_ms`, which puts the team's machines into ``work.reach``.
    """
    most = 0
    for place in range(machines.team_width[team]):
        most = max(most, machines.rank[work.reach[place]] // len(machines.rank))
    return most


@kernel
def _ready_ms(machines: MachineArrays, work: MappingWork, team: Int) -> Int:
    """Return when a team is ready; put its machines at the start of ``work.reach``."""
    cluster = machines.team_cluster[team]
    first = machines.cluster_first[cluster]
    size = machines.cluster_first[cluster + 1] - first
    ready_ms: Int = _all_ready_ms(machines, machines.members, first, size, machines.team_width[team], work)
    return ready_ms


@kernel
def _all_ready_ms(
    machines: MachineArrays, group: npt.NDArray[np.int64], first: Int, size: Int, count: Int, work: MappingWork
) -> Int:
    """Return when `count` machines of a group are ready; put these machines at the start of ``work.reach``.

    Ties between machines go to the lowest rank.
    """
    ready_ms = work.base.ready_ms
    if count == 1:
        work.reach[0] = group[first]
        for place in range(first + 1, first + size):
            if goes_before(machines, group[place], work.reach[0], ready_ms):
                work.reach[0] = group[place]
        only_ms: Int = ready_ms[work.reach[0]]
        return only_ms
    for place in range(size):
        work.reach[place] = group[first + place]
    for place in range(count):
        best = place
        for other in range(place + 1, size):
            if goes_before(machines, work.reach[other], work.reach[best], ready_ms):
                best = other
        work.reach[place], work.reach[best] = work.reach[best], work.reach[place]
    last_ms: Int = ready_ms[work.reach[count - 1]]
    return last_ms


@kernel
def commit(jobs: JobKinds, machines: MachineArrays, work: MappingWork, row: Int, team: Int) -> Int:
    """Map a job to a team in ``work.base``.

    Parameters
    ----------
    jobs : JobKinds
    machines : MachineArrays
    work : MappingWork
    row, team : int

    Returns
    -------
    int
        When the job ends, in ms.
    """
    end_ms: Int = _ready_ms(machines, work, team) + jobs.team_ms[jobs.kind[row], team]
    for place in range(machines.team_width[team]):
        machine = work.reach[place]
        work.base.team[row, place] = machine
        work.base.ready_ms[machine] = end_ms
    work.base.place[row], work.base.end_ms[row] = len(work.base.ready_ms) + team, end_ms
    return end_ms


@kernel
def copy_mapping(source: Mapping, target: Mapping) -> None:
    """Copy a mapping element by element, because a slice would allocate a temporary copy.

    Parameters
    ----------
    source, target : Mapping
        Mappings of the same jobs to the same machines.
    """
    for machine in range(len(source.ready_ms)):
        target.ready_ms[machine] = source.ready_ms[machine]
    for row in range(len(source.place)):
        target.end_ms[row], target.place[row] = source.end_ms[row], source.place[row]
        if source.place[row] >= len(source.ready_ms):
            for place in range(source.team.shape[1]):
                target.team[row, place] = source.team[row, place]

"""Python interface to the kernels that map jobs to different machines, given tables of expected run times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from gridweave.errors import OptionError, check_known
from gridweave.site.disciplines.heterogeneous.kernels import annealing, greedy, parallel
from gridweave.site.disciplines.heterogeneous.kernels.annealing import Plans, anneal
from gridweave.site.disciplines.heterogeneous.kernels.greedy import UNMAPPED, JobKinds, MachineArrays, Mapping, Scratch
from gridweave.site.disciplines.heterogeneous.kernels.parallel import BY_END, BY_LENGTH, MappingWork, map_jobs
from gridweave.site.kernels.state import NEVER_MS

__all__ = ["ALGORITHMS", "NEVER_MS", "PROFITS", "MachineArrays", "Mapped", "machine_arrays", "map_to"]

IntArray = npt.NDArray[np.int64]

ALGORITHMS = {
    "olb": greedy.OLB,
    "best-assignment": greedy.BEST_ASSIGNMENT,
    "min-min": greedy.MIN_MIN,
    "min-max": greedy.MIN_MAX,
    "sjs": parallel.SJS,
    "pjs": parallel.PJS,
    "gsa": annealing.GSA,
}
"""The rule of each algorithm, by name."""

PROFITS = {"end": BY_END, "length": BY_LENGTH}
"""How the profit of running a job on a team is computed: from the job's end times, or from its run times alone."""


class Mapped(NamedTuple):
    """The machines, start time and end time of each job.

    Attributes
    ----------
    start_ms, end_ms : numpy.ndarray of int64, shape (jobs,)
        `NEVER_MS` for a job that cannot run on any machine.
    first : numpy.ndarray of int64, shape (jobs,)
        The machine of each job, or the first of its machines of a class; -1 for jobs on teams and unmapped jobs.
    team : numpy.ndarray of int64, shape (jobs,)
        The team of each job that runs on a team; -1 for other jobs.
    members : numpy.ndarray of int64, shape (jobs, widest)
        The machines of each job that runs on a team, in the first columns.
    ready_ms : numpy.ndarray of int64, shape (machines,)
        When each machine finishes its last job.
    is_given : numpy.ndarray of bool, shape (machines,)
        Whether each machine was given a job with a run time above 0.
    team_width : numpy.ndarray of int64, shape (teams,)
        As in `MachineArrays`.
    """

    start_ms: IntArray
    end_ms: IntArray
    first: IntArray
    team: IntArray
    members: IntArray
    ready_ms: IntArray
    is_given: npt.NDArray[np.bool_]
    team_width: IntArray

    @property
    def machines(self) -> tuple[tuple[int, ...], ...]:
        """Each job's machines: all machines of its team, or else only its first machine; empty if unmapped."""
        return tuple(self.machines_of(row) for row in range(len(self.team)))

    def machines_of(self, row: int) -> tuple[int, ...]:
        """Return one job's machines, as in `machines`."""
        if self.team[row] >= 0:
            return tuple(sorted(self.members[row, : self.team_width[self.team[row]]].tolist()))
        return (int(self.first[row]),) if self.first[row] >= 0 else ()

    def total_ms(self, now_ms: int) -> int:
        """Return the sum of the expected execution and delay times, which the algorithms aim to minimise."""
        mapped = self.end_ms[self.end_ms != NEVER_MS]
        return int(mapped.sum() - now_ms * len(mapped))


def machine_arrays(
    classes: Sequence[int], clusters: Sequence[Sequence[int]] = (), teams: Sequence[tuple[int, int]] | None = None
) -> MachineArrays:
    """Return a site's machines as arrays for the kernels.

    Parameters
    ----------
    classes : sequence of int
        The class of each machine, numbered from 0.
    clusters : sequence of sequence of int
        The machines of each cluster.
    teams : sequence of (int, int), optional
        The cluster and width of each team; None: one team per cluster, with all machines of the cluster.
    """
    kinds = np.asarray(classes, np.int64)
    teams = [(number, len(members)) for number, members in enumerate(clusters)] if teams is None else teams
    sizes = np.array([len(members) for members in clusters], np.int64)
    counts = np.bincount(kinds)
    return MachineArrays(
        class_of=kinds,
        rank=np.arange(len(kinds)),
        widest=max((width for _, width in teams), default=0),
        largest=int(max(counts.max(initial=0), sizes.max(initial=0))),
        first=_bounds(counts),
        by_class=np.argsort(kinds, kind="stable").astype(np.int64),
        cluster_first=_bounds(sizes),
        members=np.array([number for members in clusters for number in sorted(members)], np.int64),
        team_cluster=np.array([cluster for cluster, _ in teams], np.int64),
        team_width=np.array([width for _, width in teams], np.int64),
    )


def map_to(
    machines: MachineArrays,
    ready_ms: npt.ArrayLike,
    kind: npt.ArrayLike,
    alone_ms: npt.ArrayLike,
    team_ms: npt.ArrayLike | None = None,
    *,
    algorithm: str = "pjs",
    profit: str = "end",
    rng: Generator | None = None,
    trouble: npt.ArrayLike = 0,
    taken: npt.ArrayLike | None = None,
    from_ms: npt.ArrayLike | None = None,
) -> Mapped:
    """Map jobs to machines and teams.

    Parameters
    ----------
    machines : MachineArrays
        From `machine_arrays`.
    ready_ms : array_like of int, shape (machines,)
        When each machine finishes its current job, or the current time if it is idle.
    kind : array_like of int, shape (jobs,)
        The kind of each job, in order of submission.
    alone_ms : array_like of int, shape (kinds, classes)
        Run time of each kind of job on a machine of each class; `NEVER_MS` if it cannot run on the class.
    team_ms : array_like of int, shape (kinds, teams), optional
        Run time of each kind of job on each team; None: no job runs on a team.
    algorithm : str
        One of `ALGORITHMS`.
    profit : str
        One of `PROFITS`, for ``pjs`` and ``gsa``.
    rng : numpy.random.Generator, optional
        Source of random numbers; required for ``gsa``.
    trouble : array_like of int, shape (machines,), optional
        How much using each machine harms other jobs (0, 1 or 2). Ties between machines that are ready at the same time,
        and between teams with the same gain, go to the smaller value; a team has the largest value of its machines.
    taken : array_like of int, shape (kinds, classes), optional
        Number of machines that each kind of job uses on each class, at most all of them [default: 1]. Not for ``gsa``.
    from_ms : array_like of int, shape (kinds, classes), optional
        Earliest start of each kind of job on each class, even if machines are ready earlier. Not for ``gsa``.

    Returns
    -------
    Mapped

    Raises
    ------
    OptionError
        If the algorithm or profit is unknown, or if ``gsa`` is used without `rng` or with `taken` or `from_ms`.

    Examples
    --------
    >>> two = machine_arrays([0, 0], clusters=[[0, 1]])
    >>> map_to(two, [0, 0], [0], [[100]], [[60]]).machines
    ((0, 1),)
    >>> map_to(two, [0, 0], [0, 0], [[100]], [[60]]).machines
    ((0,), (1,))
    """
    check_known("algorithm", algorithm, ALGORITHMS)
    check_known("profit", profit, PROFITS)
    anneals = algorithm == "gsa"
    if anneals and rng is None:
        raise OptionError("rng", "is missing; the algorithm gsa needs a seeded generator")
    if anneals and not (taken is None and from_ms is None):
        raise OptionError("algorithm", "is gsa, which does not support taken and from_ms")
    ready, kinds, alone = (np.ascontiguousarray(values, np.int64) for values in (ready_ms, kind, alone_ms))
    machines = machines._replace(rank=machines.rank + len(machines.rank) * np.asarray(trouble, np.int64))
    n_teams = len(machines.team_width)
    team = np.full((len(alone), n_teams), NEVER_MS) if team_ms is None else np.ascontiguousarray(team_ms, np.int64)
    counts = np.bincount(kinds, minlength=len(alone)) if len(kinds) else np.zeros(len(alone), np.int64)
    jobs = JobKinds(
        alone_ms=alone,
        team_ms=team,
        taken=np.ones_like(alone) if taken is None else np.ascontiguousarray(taken, np.int64),
        from_ms=np.zeros_like(alone) if from_ms is None else np.ascontiguousarray(from_ms, np.int64),
        kind=kinds,
        first=_bounds(counts),
        rows=np.argsort(kinds, kind="stable").astype(np.int64),
    )
    work = _work(machines, ready, len(kinds), len(alone))
    total_ms = map_jobs(jobs, machines, work, parallel.PJS if anneals else ALGORITHMS[algorithm], PROFITS[profit])
    if rng is not None and anneals and (work.best.place != UNMAPPED).any():
        anneal(jobs, machines, work, _plans(jobs, machines, work.best, ready, rng), total_ms)
    return _read(jobs, machines, work.best, ready)


def _read(jobs: JobKinds, machines: MachineArrays, plan: Mapping, ready_ms: IntArray) -> Mapped:
    """Convert the kernels' mapping to a `Mapped`; start times are end times minus run times."""
    n_machines, n_classes = len(plan.ready_ms), jobs.alone_ms.shape[1]
    on_team = plan.place >= n_machines
    first, team = np.where(on_team, -1, plan.place), np.where(on_team, plan.place - n_machines, -1)
    start_ms = plan.end_ms.copy()
    way = np.where(on_team, n_classes + team, machines.class_of[first])
    lengths_ms = np.concatenate((jobs.alone_ms, jobs.team_ms), axis=1)
    start_ms -= lengths_ms[jobs.kind, way]
    has_place = plan.place != UNMAPPED
    if not has_place.all():
        start_ms[~has_place] = plan.end_ms[~has_place] = NEVER_MS
    is_given = plan.ready_ms != ready_ms
    return Mapped(start_ms, plan.end_ms, first, team, plan.team, plan.ready_ms, is_given, machines.team_width)


def _plans(jobs: JobKinds, machines: MachineArrays, plan: Mapping, ready_ms: IntArray, rng: Generator) -> Plans:
    """Return the initial plans, all equal to a given mapping, with jobs in the order of their starts in it."""
    n_classes, n_machines = len(machines.first) - 1, len(ready_ms)
    alone = np.where(plan.place < n_machines, plan.place, 0)
    way = np.where(plan.place < n_machines, machines.class_of[alone], n_classes + plan.place - n_machines)
    mapped = np.flatnonzero(plan.place != UNMAPPED)
    length_ms = np.concatenate([jobs.alone_ms, jobs.team_ms], axis=1)[jobs.kind[mapped], way[mapped]]
    order = mapped[np.argsort(plan.end_ms[mapped] - length_ms, kind="stable")]
    n_plans = annealing.PLANS + 1
    return Plans(
        order=np.tile(order, (n_plans, 1)),
        way=np.tile(way, (n_plans, 1)),
        total_ms=np.zeros(n_plans, np.int64),
        ready_ms=ready_ms.copy(),
        is_taken=np.zeros(len(plan.place), np.bool_),
        draws=rng.random((annealing.GENERATIONS, annealing.PLANS, annealing.DRAWS)),
    )


def _work(machines: MachineArrays, ready_ms: IntArray, n_jobs: int, n_kinds: int) -> MappingWork:
    placements = np.full((4, n_jobs), UNMAPPED)
    teams = np.empty((4, n_jobs, machines.widest), np.int64)
    rows = zip(np.tile(ready_ms, (4, 1)), np.empty((4, n_jobs), np.int64), placements, teams, strict=True)
    best, base, trial, other = (Mapping(*row) for row in rows)
    scratch = Scratch(np.empty(len(ready_ms), np.int64), *np.empty((3, n_kinds), np.int64))
    return MappingWork(best, base, trial, other, scratch, np.empty(machines.largest, np.int64))


def _bounds(counts: npt.NDArray[np.int64]) -> IntArray:
    """Convert group sizes to bounds: the first index of each group, followed by the end of the last group."""
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds

"""How long jobs are expected to take on each class of machines and each team, kept until more is known of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gridweave.site.disciplines.heterogeneous.experience import ExperienceDatabase
from gridweave.site.disciplines.heterogeneous.machines import MOST_KINDS, Inventory, Speeds, Team, class_of
from gridweave.site.disciplines.heterogeneous.running import WaitingJob, work_limit_ms
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import RATE_ONE

IntArray = npt.NDArray[np.int64]

_DIGITS = 6
"""Of a millisecond; what means and quotients have beyond them is no time, and is not rounded up."""


class JobKind:
    """Jobs that take equally long on each resource.

    Parameters
    ----------
    one : WaitingJob
        Any of them.
    speeds : Speeds
    """

    def __init__(self, one: WaitingJob, speeds: Speeds) -> None:
        self.job, self.done_ms, self.speeds = one.job, one.done_ms, speeds
        self.seen: object = None
        """What was known when the lengths were worked out."""
        self.length_ms: list[int] = []
        """On each class of machines, and then on each team; `NEVER_MS` where they cannot run."""
        rates = {rate for rate in (*speeds.alone, *speeds.teams.values()) if rate}
        self.limit_ms = {rate: work_limit_ms(one, rate) for rate in rates}


class Lengths:
    """The expected lengths of all kinds of jobs of a site.

    Parameters
    ----------
    site : Inventory
    experience : ExperienceDatabase
        By which they are expected.
    only_limits : bool
        Whether each job is expected to run until its limit instead.
    deviations : float
        How many standard deviations more than the mean a run is expected to take.
    """

    def __init__(
        self, site: Inventory, experience: ExperienceDatabase, *, only_limits: bool, deviations: float
    ) -> None:
        self._site, self._experience, self._only_limits, self._deviations = site, experience, only_limits, deviations
        # The last class, of machines out of service, has no name and runs nothing.
        self._classes = [*(each.name for each in site.classes), ""]
        self._teams: list[Team] = []
        self._names: list[str] = []
        self._kinds: dict[object, JobKind] = {}

    def kind_of(self, one: WaitingJob) -> JobKind:
        """Return the kind of a job that waits."""
        job = one.job
        user = job.user_name or job.user
        key = (class_of(job), job.width, job.forms, job.in_step, job.estimate_ms, user, one.done_ms)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= MOST_KINDS:
                self._kinds.clear()
            kind = self._kinds[key] = JobKind(one, self._site.speeds_of(job))
            new = kind.speeds.teams.keys() - self._teams
            if new:
                self._teams = sorted({*self._teams, *new})
                self._names = [self._site.name_of(team) for team in self._teams]
        return kind

    def table_of(self, kinds: Sequence[JobKind]) -> tuple[IntArray, IntArray, tuple[Team, ...]]:
        """Return how long jobs of each of some kinds take: alone, on teams, and on which teams any of them can run.

        Returns
        -------
        alone_ms, team_ms : numpy.ndarray of int64, shapes (kinds, classes + 1) and (kinds, teams)
        teams : tuple of (int, int)
            Ascending.
        """
        for kind in kinds:
            seen = len(self._teams), None if self._only_limits else self._experience.changes_of(kind.job)
            if kind.seen != seen:
                kind.seen, kind.length_ms = seen, self._lengths_of(kind)
        table = np.array([kind.length_ms for kind in kinds], np.int64)
        alone_ms, team_ms = table[:, : len(self._classes)], table[:, len(self._classes) :]
        some_can = (team_ms != NEVER_MS).any(axis=0)
        if some_can.all():
            return alone_ms, team_ms, tuple(self._teams)
        return alone_ms, team_ms[:, some_can], tuple(self._teams[at] for at in np.flatnonzero(some_can).tolist())

    def _lengths_of(self, kind: JobKind) -> list[int]:
        """Return how long jobs of a kind are expected to run on each resource, in whole milliseconds."""
        rates = [*kind.speeds.alone, *(kind.speeds.teams.get(team, 0) for team in self._teams)]
        if self._only_limits:
            return [kind.limit_ms[rate] if rate else int(NEVER_MS) for rate in rates]
        names = (*self._classes, *self._names)
        runs_at = [at for at, rate in enumerate(rates) if rate]
        found = [int(NEVER_MS)] * len(rates)
        expected = self._experience.predictions(kind.job, ((names[at], rates[at]) for at in runs_at))
        for at, predicted in zip(runs_at, expected, strict=True):
            rate = rates[at]
            run_ms = predicted.mean_ms + self._deviations * predicted.deviation_ms
            left_ms = math.ceil(round(run_ms - kind.done_ms * RATE_ONE / rate, _DIGITS))
            found[at] = min(left_ms, kind.limit_ms[rate]) if left_ms > 0 else kind.limit_ms[rate]
        return found

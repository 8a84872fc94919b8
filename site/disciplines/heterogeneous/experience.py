"""A site's experience: past run times by job class and resource, used to predict run times.

Source: Collins and George (2001), section 3 and Figure 1: execution times are kept for each pair of a job class and a
computing resource, as the mean, variance and number of runs.

For a pair without runs, the prediction is the mean work (at speed 1) of the job's class on all resources, else the mean
work of the user's jobs, else the estimate.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.site.disciplines.heterogeneous.machines import MOST_KINDS, Inventory, Speeds, Team, class_of
from gridweave.site.disciplines.heterogeneous.running import WaitingJob, work_limit_ms
from gridweave.site.job import Job
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.known_times import KnownTimes, Name, TimesKey, experience_text, in_order, name_text

IntArray = npt.NDArray[np.int64]


class RunTimes(msgspec.Struct, kw_only=True):
    """The run times of a job class or a user on a resource: their number, mean, and sum of squared deviations.

    Attributes
    ----------
    job_class, user : int or str, optional
    resource : str
        A machine class or a team; empty for work at speed 1 on any resource.
    count : int
    mean_ms : float
    squares : float
        Sum of the squared differences from the mean, in ms².
    """

    job_class: Name = None
    user: Name = None
    resource: str = ""
    count: int = 0
    mean_ms: float = 0.0
    squares: float = 0.0

    @property
    def key(self) -> TimesKey:
        """The class, user and resource as a key; the number 3 and the text '3' give the same key."""
        return name_text(self.job_class), name_text(self.user), self.resource

    @classmethod
    def of(cls, times: KnownTimes) -> RunTimes:
        """Convert `KnownTimes` to `RunTimes`, to which more runs can be added."""
        return cls(
            job_class=times.job_class,
            user=times.user,
            resource=times.resource,
            count=times.runs,
            mean_ms=times.mean_ms,
            squares=times.deviation_ms**2 * max(0, times.runs - 1),
        )

    def times(self) -> KnownTimes:
        """Convert these run times to `KnownTimes`, the form used in files and shown to users."""
        return KnownTimes(
            job_class=self.job_class,
            user=self.user,
            resource=self.resource,
            runs=self.count,
            mean_ms=self.mean_ms,
            deviation_ms=math.sqrt(self.variance),
        )

    def add(self, time_ms: float) -> None:
        """Add a run time (Welford 1962, *Note on a Method for Calculating Corrected Sums of Squares and Products*)."""
        self.count += 1
        difference = time_ms - self.mean_ms
        self.mean_ms += difference / self.count
        self.squares += difference * (time_ms - self.mean_ms)

    @property
    def variance(self) -> float:
        """Sample variance of the run times, in ms²; 0 for fewer than two runs."""
        return self.squares / (self.count - 1) if self.count > 1 else 0.0


class LearnedTimes(NamedTuple):
    """The run times that a site learned in a simulation; a later simulation can start with them."""

    times: tuple[KnownTimes, ...]

    def texts(self) -> dict[str, str]:
        """Return the text of ``experience.toml``, keyed by file name; ``--option @FILE`` reads this file."""
        return {"experience.toml": experience_text(self.times)}


class Prediction(NamedTuple):
    """A job's predicted run time on a resource.

    Attributes
    ----------
    mean_ms, deviation_ms : float
    runs : int
        Number of past runs on which the prediction is based.
    source : str
        Basis of the prediction: ``resource``, ``class``, ``user`` or ``estimate``.
    """

    mean_ms: float
    deviation_ms: float
    runs: int
    source: str


class ExperienceDatabase:
    """Past run times by job class and resource, and past work at speed 1 by job class and by user.

    Examples
    --------
    >>> database = ExperienceDatabase()
    >>> job = Job(job_id=1, width=1, estimate_ms=1000, job_class=3, user=8)
    >>> rates = [("slow", RATE_ONE), ("fast", 2 * RATE_ONE)]
    >>> [(expected.mean_ms, expected.source) for expected in database.predictions(job, rates)]
    [(1000.0, 'estimate'), (500.0, 'estimate')]
    >>> database.learn(job, "slow", RATE_ONE, 400)
    >>> [(expected.mean_ms, expected.source) for expected in database.predictions(job, rates)]
    [(400.0, 'resource'), (200.0, 'class')]
    """

    def __init__(self) -> None:
        self._times: dict[TimesKey, RunTimes] = {}
        # The number of edits, and the number of learned runs by class and by user.
        self._edits = 0
        self._learned: dict[tuple[str | None, str | None], int] = {}

    def learn(self, job: Job, resource: str, rate: int, run_ms: int) -> None:
        """Add the run time of a job that ran to completion.

        Parameters
        ----------
        job : Job
        resource : str
            The class of the job's machine, or its team.
        rate : int
            The rate of the job on the resource.
        run_ms : int
        """
        # Identify a class by its name if it has one, else by its number.
        job_class, user = job.class_name or job.job_class, _user_of(job)
        work_ms = run_ms * rate / RATE_ONE
        if job_class is not None:
            self._add(RunTimes(job_class=job_class, resource=resource), run_ms)
            self._add(RunTimes(job_class=job_class), work_ms)
        if user is not None:
            self._add(RunTimes(user=user), work_ms)

    def predictions(self, job: Job, resource_rates: Iterable[tuple[str, int]]) -> Iterator[Prediction]:
        """Yield the predicted run time of a job for each (resource, rate) pair.

        The mean is at most the job's estimate converted to the rate.
        """
        job_class, user = class_of(job), name_text(_user_of(job))
        of_class, of_user = self._times.get((job_class, None, "")), self._times.get((None, user, ""))
        of_work, whose = (of_class, "class") if of_class is not None else (of_user, "user")
        for resource, rate in resource_rates:
            limit_ms = job.estimate_ms * RATE_ONE / rate
            times, source, factor = self._times.get((job_class, None, resource)), "resource", 1.0
            if times is None:
                times, source, factor = of_work, whose, RATE_ONE / rate
            if times is None:
                yield Prediction(limit_ms, 0.0, 0, "estimate")
            else:
                deviation_ms = math.sqrt(times.variance) * factor
                yield Prediction(min(times.mean_ms * factor, limit_ms), deviation_ms, times.count, source)

    def changes_of(self, job: Job) -> tuple[int, int, int]:
        """Return version numbers; at least one of them changes whenever the predictions for this job may change."""
        job_class, user = class_of(job), name_text(_user_of(job))
        return self._edits, self._learned.get((job_class, None), 0), self._learned.get((None, user), 0)

    def copy(self) -> ExperienceDatabase:
        """Return an independent copy."""
        new = ExperienceDatabase()
        new._times = {key: msgspec.structs.replace(times) for key, times in self._times.items()}
        new._edits, new._learned = self._edits, self._learned.copy()
        return new

    def times(self) -> tuple[KnownTimes, ...]:
        """Return all run times as `KnownTimes`, sorted by class, user and resource."""
        return tuple(in_order(times.times() for times in self._times.values()))

    def edit(self, changes: Iterable[KnownTimes]) -> None:
        """Replace the run times for each change's class, user and resource; a change with 0 runs deletes them."""
        self._edits += 1
        for change in changes:
            self._times.pop(change.key, None)
            if change.runs:
                self._times[change.key] = RunTimes.of(change)

    def rows(self) -> list[RunTimes]:
        """Return all run times, in the order in which they were first learned."""
        return list(self._times.values())

    def restore(self, rows: Iterable[RunTimes]) -> None:
        """Replace all run times with these rows, as returned by `rows`."""
        self._edits += 1
        self._times = {row.key: row for row in rows}

    def _add(self, empty: RunTimes, time_ms: float) -> None:
        key = empty.key
        self._times.setdefault(key, empty).add(time_ms)
        self._learned[key[:2]] = self._learned.get(key[:2], 0) + 1


def _user_of(job: Job) -> Name:
    return job.user_name or job.user


_DIGITS = 6
"""Decimal places of a millisecond to keep; later digits are floating-point error and must not round a run time up."""


class JobKind:
    """A kind of job: all jobs of a kind take equally long on any given resource.

    Parameters
    ----------
    waiting_job : WaitingJob
        Any job of the kind.
    speeds : Speeds
    """

    def __init__(self, waiting_job: WaitingJob, speeds: Speeds) -> None:
        self.job, self.done_ms, self.speeds = waiting_job.job, waiting_job.done_ms, speeds
        self.seen: object = None
        """Version of the teams and of the experience from which `length_ms` was computed."""
        self.length_ms: list[int] = []
        """Expected run time on each machine class, then on each team; `NEVER_MS` where the jobs cannot run."""
        rates = {rate for rate in (*speeds.alone, *speeds.teams.values()) if rate}
        self.limit_ms = {rate: work_limit_ms(waiting_job, rate) for rate in rates}


def _kind_key(waiting_job: WaitingJob) -> object:
    """Return the fields of a waiting job that determine its expected run times."""
    job = waiting_job.job
    return class_of(job), job.width, job.forms, job.in_step, job.estimate_ms, _user_of(job), waiting_job.done_ms


class Lengths:
    """The expected run times of all kinds of jobs at a site.

    Parameters
    ----------
    site : Inventory
    experience : ExperienceDatabase
        Source of the predictions.
    only_limits : bool
        Whether to ignore the experience and expect each job to run until its time limit.
    deviations : float
        Number of standard deviations added to the predicted mean.
    """

    def __init__(
        self, site: Inventory, experience: ExperienceDatabase, *, only_limits: bool, deviations: float
    ) -> None:
        self._site, self._experience, self._only_limits, self._deviations = site, experience, only_limits, deviations
        # The last class holds the machines that are out of service: it has no name, and no job runs on it.
        self._classes = [*(machine_class.name for machine_class in site.classes), ""]
        self._teams: list[Team] = []
        self._names: list[str] = []
        self._kinds: dict[object, JobKind] = {}

    def kind_of(self, waiting_job: WaitingJob) -> JobKind:
        """Return the kind of a waiting job; create the kind if it is new."""
        job, key = waiting_job.job, _kind_key(waiting_job)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= MOST_KINDS:
                self._kinds.clear()
            kind = self._kinds[key] = JobKind(waiting_job, self._site.speeds_of(job))
            new = kind.speeds.teams.keys() - self._teams
            if new:
                self._teams = sorted({*self._teams, *new})
                self._names = [self._site.name_of(team) for team in self._teams]
        return kind

    def copy(self, experience: ExperienceDatabase, waiting: Iterable[WaitingJob]) -> Lengths:
        """Return a copy that predicts from another experience database and keeps only these waiting jobs' kinds."""
        new = copy.copy(self)
        new._experience = experience
        new._kinds = {_kind_key(waiting_job): copy.copy(self.kind_of(waiting_job)) for waiting_job in waiting}
        return new

    def table_of(self, kinds: Sequence[JobKind]) -> tuple[IntArray, IntArray, tuple[Team, ...]]:
        """Return the expected run times of these kinds of jobs on single machines and on teams.

        Returns
        -------
        alone_ms, team_ms : numpy.ndarray of int64, shapes (kinds, classes + 1) and (kinds, teams)
        teams : tuple of (int, int)
            The teams on which at least one of the kinds can run, ascending.
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
        """Return a kind's expected run time on each machine class, then on each team, rounded up to whole ms."""
        rates = [*kind.speeds.alone, *(kind.speeds.teams.get(team, 0) for team in self._teams)]
        if self._only_limits:
            return [kind.limit_ms[rate] if rate else int(NEVER_MS) for rate in rates]
        names = (*self._classes, *self._names)
        runs_at = [at for at, rate in enumerate(rates) if rate]
        lengths_ms = [int(NEVER_MS)] * len(rates)
        expected = self._experience.predictions(kind.job, ((names[at], rates[at]) for at in runs_at))
        for at, predicted in zip(runs_at, expected, strict=True):
            rate = rates[at]
            run_ms = predicted.mean_ms + self._deviations * predicted.deviation_ms
            left_ms = math.ceil(round(run_ms - kind.done_ms * RATE_ONE / rate, _DIGITS))
            lengths_ms[at] = min(left_ms, kind.limit_ms[rate]) if left_ms > 0 else kind.limit_ms[rate]
        return lengths_ms

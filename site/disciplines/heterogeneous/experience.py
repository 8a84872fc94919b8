"""The experience of a site: how long jobs of each class took on each resource, and what that says of the next.

Source: Collins and George (2001), section 3 and Figure 1: execution times are kept for each pair of a job class and a
computing resource, as mean, variance and number of runs.

Of a pair that has not run, the mean of its class on all resources is taken, then that of its user's jobs, each by the
work done at speed 1; then the estimate.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import msgspec

from gridweave.site.job import Job
from gridweave.site.kernels.work import RATE_ONE


class RunTimes(msgspec.Struct, kw_only=True):
    """Times of one kind: how many, their mean, and the sum of the squared differences from it.

    Attributes
    ----------
    job_class, user : int, optional
    resource : str
        A class of machines, or a team; empty for work at speed 1 anywhere.
    count : int
    mean_ms, squares : float
    """

    job_class: int | None = None
    user: int | None = None
    resource: str = ""
    count: int = 0
    mean_ms: float = 0.0
    squares: float = 0.0

    def add(self, time_ms: float) -> None:
        """Take in a run (Welford 1962, *Note on a Method for Calculating Corrected Sums of Squares and Products*)."""
        self.count += 1
        difference = time_ms - self.mean_ms
        self.mean_ms += difference / self.count
        self.squares += difference * (time_ms - self.mean_ms)

    @property
    def variance(self) -> float:
        """Of the times, in ms²; 0 of a single one."""
        return self.squares / (self.count - 1) if self.count > 1 else 0.0


class KnownTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Times of one kind as an operator reads and writes them: one of ``[[experience]]``.

    Attributes
    ----------
    job_class, user : int, optional
        Of the jobs; one of the two.
    resource : str
        A class of machines, or a team as ``NAME x WIDTH``; left out for work at speed 1 anywhere.
    runs : int
        From how many runs the rest is.
    mean_ms, deviation_ms : float
        Their mean, and their standard deviation.
    """

    job_class: int | None = None
    user: int | None = None
    resource: str = ""
    runs: int
    mean_ms: float
    deviation_ms: float = 0.0

    @classmethod
    def of(cls, times: RunTimes) -> KnownTimes:
        """Return times as they are read and written."""
        return cls(
            job_class=times.job_class,
            user=times.user,
            resource=times.resource,
            runs=times.count,
            mean_ms=times.mean_ms,
            deviation_ms=math.sqrt(times.variance),
        )

    def times(self) -> RunTimes:
        """Return them as they are learned on."""
        return RunTimes(
            job_class=self.job_class,
            user=self.user,
            resource=self.resource,
            count=self.runs,
            mean_ms=self.mean_ms,
            squares=self.deviation_ms**2 * max(0, self.runs - 1),
        )

    def problem(self) -> str | None:
        """Return what is wrong with them, in one line, or None."""
        whose = f"job class {self.job_class}" if self.user is None else f"user {self.user}"
        if (self.job_class is None) == (self.user is None):
            return "experience is of a job_class or of a user; give one of the two"
        if self.user is not None and self.resource:
            return f"experience of {whose} names the resource {self.resource!r}; only that of a job class has one"
        if self.runs < 1 or not 0 < self.mean_ms < math.inf or not 0 <= self.deviation_ms < math.inf:
            return f"experience of {whose} needs runs of at least 1, a mean_ms above 0 and a deviation_ms of at least 0"
        return None


class LearnedTimes(NamedTuple):
    """What a site has learned in a simulation, for the next to begin with."""

    known: tuple[KnownTimes, ...]

    def texts(self) -> dict[str, str]:
        """Return the file ``experience.toml``, which ``--option @FILE`` reads."""
        return {"experience.toml": "\n".join(map(_toml, self.known))}


def _toml(known: KnownTimes) -> str:
    values = {name: value for name, value in msgspec.to_builtins(known).items() if value is not None}
    return "".join(["[[experience]]\n", *(f"{name} = {json.dumps(value)}\n" for name, value in values.items())])


class Prediction(NamedTuple):
    """How long a job is expected to run on a resource.

    Attributes
    ----------
    mean_ms, deviation_ms : float
    runs : int
        From how many runs that is.
    source : str
        ``resource``, ``class``, ``user`` or ``estimate``.
    """

    mean_ms: float
    deviation_ms: float
    runs: int
    source: str


Key = tuple[int | None, int | None, str]


class ExperienceDatabase:
    """What runs have taken, by job class and resource, by job class, and by user.

    Examples
    --------
    >>> known = ExperienceDatabase()
    >>> job = Job(job_id=1, width=1, estimate_ms=1000, job_class=3, user=8)
    >>> known.predict(job, "fast", 2 * RATE_ONE).source
    'estimate'
    >>> known.learn(job, "slow", RATE_ONE, 400)
    >>> known.predict(job, "slow", RATE_ONE), known.predict(job, "fast", 2 * RATE_ONE).mean_ms
    (Prediction(mean_ms=400.0, deviation_ms=0.0, runs=1, source='resource'), 200.0)
    """

    def __init__(self) -> None:
        self._times: dict[Key, RunTimes] = {}

    def learn(self, job: Job, resource: str, rate: int, run_ms: int) -> None:
        """Take in that a job has run to its end.

        Parameters
        ----------
        job : Job
        resource : str
            The class of its machine, or its team.
        rate : int
            Its rate there.
        run_ms : int
        """
        work_ms = run_ms * rate / RATE_ONE
        if job.job_class is not None:
            self._add((job.job_class, None, resource), run_ms)
            self._add((job.job_class, None, ""), work_ms)
        if job.user is not None:
            self._add((None, job.user, ""), work_ms)

    def predict(self, job: Job, resource: str, rate: int) -> Prediction:
        """Return how long a job is expected to run on a resource; never longer than its estimate lets it."""
        limit_ms = job.estimate_ms * RATE_ONE / rate
        for key, source, factor in (
            ((job.job_class, None, resource), "resource", 1.0),
            ((job.job_class, None, ""), "class", RATE_ONE / rate),
            ((None, job.user, ""), "user", RATE_ONE / rate),
        ):
            known = self._times.get(key)
            if known is not None:
                deviation = math.sqrt(known.variance) * factor
                return Prediction(min(known.mean_ms * factor, limit_ms), deviation, known.count, source)
        return Prediction(limit_ms, 0.0, 0, "estimate")

    def rows(self) -> list[RunTimes]:
        """Return all that is known, by class, user and resource."""
        return [self._times[key] for key in sorted(self._times, key=_order)]

    def restore(self, rows: list[RunTimes]) -> None:
        """Take in what another knew."""
        self._times = {(one.job_class, one.user, one.resource): one for one in rows}

    def copy(self) -> ExperienceDatabase:
        """Return one that knows the same; neither learns from the other."""
        twin = ExperienceDatabase()
        twin.restore([msgspec.structs.replace(one) for one in self._times.values()])
        return twin

    def _add(self, key: Key, time_ms: float) -> None:
        if key not in self._times:
            self._times[key] = RunTimes(job_class=key[0], user=key[1], resource=key[2])
        self._times[key].add(time_ms)


def _order(key: Key) -> tuple[int, int, str]:
    return (-1 if key[0] is None else key[0], -1 if key[1] is None else key[1], key[2])

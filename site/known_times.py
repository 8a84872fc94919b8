"""Represent recorded run times in the form that operators read and edit: a list of TOML tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

EXPERIENCE = "experience"
"""Name of the query for learned run times in `Discipline.answer`; also the last part of the REST route."""

MOST_CHANGES = 1_000
"""The largest number of changes in one edit."""

Name = int | str | None
"""A job class or a user: a number in simulations, a name at live sites."""

TimesKey = tuple[str | None, str | None, str]
"""The class, user and resource that identify a `KnownTimes` entry."""


class KnownTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Run time statistics for one class or user and one resource, i.e. one ``[[experience]]`` table.

    Attributes
    ----------
    job_class, user : int or str, optional
        Class or user of the jobs; exactly one of the two is set.
    resource : str
        A machine class, or a team of machines as ``NAME x WIDTH``; empty for work at speed 1 on any machine.
    runs : int
        Number of runs.
    mean_ms, deviation_ms : float
        Mean and standard deviation of the run times.
    """

    job_class: Name = None
    user: Name = None
    resource: str = ""
    runs: int
    mean_ms: float
    deviation_ms: float = 0.0

    @property
    def key(self) -> TimesKey:
        """The entry's class, user and resource as text, so that the number 10 equals the name "10"."""
        return (name_text(self.job_class), name_text(self.user), self.resource)

    def problem(self) -> str | None:
        """Return a one-line error message if a value is invalid, or None."""
        whose = f"job class {self.job_class}" if self.user is None else f"user {self.user}"
        if (self.job_class is None) == (self.user is None):
            return "experience needs either a job_class or a user"
        if self.user is not None and self.resource:
            return f"experience of {whose} has resource {self.resource!r}; only a job_class may have a resource"
        if self.runs < 1 or not 0 < self.mean_ms < math.inf or not 0 <= self.deviation_ms < math.inf:
            expected = "runs of at least 1, mean_ms above 0 and deviation_ms of at least 0"
            return f"experience of {whose} is out of range; expected {expected}"
        return None

    def edit_problem(self) -> str | None:
        """Return why these times cannot be an edit, or None; with 0 runs they delete an entry, and need no values."""
        whole = self if self.runs else msgspec.structs.replace(self, runs=1, mean_ms=1.0, deviation_ms=0.0)
        return whole.problem()


class ExperienceChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to the run times that a site has learned.

    Attributes
    ----------
    times : list of KnownTimes
        The new run times; each replaces the entry with the same class or user and the same resource. An entry with 0
        runs is deleted.
    """

    times: Annotated[list[KnownTimes], Meta(min_length=1, max_length=MOST_CHANGES)]


class SiteExperience(msgspec.Struct, frozen=True, kw_only=True):
    """A site's recorded run times.

    Attributes
    ----------
    learns : bool
        Whether the site's discipline records run times.
    times : list of KnownTimes
        One entry per class, user and resource.
    """

    site: str
    learns: bool
    times: list[KnownTimes] = []


def name_text(name: Name) -> str | None:
    """Return a job class or user as text; None stays None."""
    return None if name is None else str(name)


def in_order(times: Iterable[KnownTimes]) -> list[KnownTimes]:
    """Sort run times by class, user and resource: entries without a class first, numbers before names.

    Examples
    --------
    >>> times = in_order(KnownTimes(job_class=name, runs=1, mean_ms=1) for name in ("cfd", 10, 9))
    >>> [entry.job_class for entry in times]
    [9, 10, 'cfd']
    """
    return sorted(times, key=lambda entry: (_rank(entry.job_class), _rank(entry.user), entry.resource))


def read_times(plain: object) -> list[KnownTimes]:
    """Convert a list of plain tables to run times; raise msgspec.ValidationError if the list is invalid."""
    return msgspec.convert(plain, list[KnownTimes])


def experience_text(times: Iterable[KnownTimes]) -> str:
    """Return the run times as TOML."""
    return "\n".join(map(_table, times))


def _table(times: KnownTimes) -> str:
    values = {name: value for name, value in msgspec.to_builtins(times).items() if value is not None}
    return "".join(["[[experience]]\n", *(f"{name} = {_toml_text(value)}\n" for name, value in values.items())])


def _toml_text(value: object) -> str:
    """Return a number or string in TOML syntax."""
    # JSON is valid TOML here, except that TOML accepts no escaped surrogates and no bare DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _rank(name: Name) -> tuple[int, int, str]:
    text = name_text(name)
    if text is None:
        return 0, 0, ""
    return (1, int(text), "") if text.isdecimal() else (2, 0, text)

"""What the jobs of each user and job class have used, from journals, and what it suggests (docs/experience.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from gridweave.errors import InputError, OptionError
from gridweave.site.journal.reader import LAST, JournalReader
from gridweave.site.journal.records import Experience, Group, JobUsage, experience_of
from gridweave.site.journal.suggest import Rule, Suggestion, suggest

_MOST_NAMES = 8


class Learnt(msgspec.Struct, frozen=True):
    """What the jobs of a user and class have used, and what that suggests for the next one."""

    # None: jobs that name none.
    user: str | None
    job_class: str | None
    experience: Experience
    suggestion: Suggestion


def learn(
    journals: Sequence[str | Path],
    rule: Rule | None = None,
    *,
    user: str | int | None = None,
    job_class: str | int | None = None,
    last: int = LAST,
) -> list[Learnt]:
    """Return what the jobs of each user and job class have used, all journals together, and what that suggests.

    The journals are paths or URLs, may be written meanwhile, and count once if they are named twice. Only the newest
    jobs of each user and class count, so many as `last` says. What is returned is ordered by user and class; those that
    name none come first.

    InputError if there is no journal at a place, UnavailableError if it cannot be reached; OptionError if no job has
    such a user or class, or an option makes no sense.
    """
    found = read_usage(journals, user=user, job_class=job_class, last=last)
    return [
        Learnt(group.user, group.job_class, experience_of(jobs), suggest(jobs, rule)) for group, jobs in found.items()
    ]


def read_usage(
    journals: Sequence[str | Path],
    *,
    user: str | int | None = None,
    job_class: str | int | None = None,
    last: int = LAST,
) -> dict[Group, list[JobUsage]]:
    """Return what jobs have used one by one, by user and class, in the order of their ends; else as `learn`."""
    if not journals:
        raise OptionError("journals", "names none; give at least one path or URL")
    if last < 1:
        raise OptionError("last", f"is {last}; a number of jobs from 1 up")
    merged: dict[tuple[str | None, str | None], list[JobUsage]] = {}
    seen: dict[str, str] = {}
    for place in journals:
        with JournalReader(place) as reader:
            if reader.journal_id in seen:
                continue
            seen[reader.journal_id] = reader.where
            for group in reader.groups():
                jobs = merged.setdefault((group.user, group.job_class), [])
                if _is_wanted(group, user, job_class):
                    jobs += reader.usage(group, last=last)
    wanted = {key: jobs for key, jobs in merged.items() if jobs}
    if not wanted and (user is not None or job_class is not None):
        raise _nobody(merged, list(seen.values()), user, job_class)
    found = {}
    for name, kind in sorted(wanted, key=lambda key: (key[0] or "", key[1] or "")):
        jobs = sorted(wanted[name, kind], key=lambda used: used.at_ms)[-last:]
        found[Group(name, kind, len(jobs))] = jobs
    return found


def _is_wanted(group: Group, user: str | int | None, job_class: str | int | None) -> bool:
    return (user is None or group.user == str(user)) and (job_class is None or group.job_class == str(job_class))


def _nobody(
    known: Iterable[tuple[str | None, str | None]],
    places: Sequence[str],
    user: str | int | None,
    job_class: str | int | None,
) -> InputError:
    where = _in_a_row(places)
    users = {name for name, _ in known if name is not None}
    if user is not None and str(user) not in users:
        return OptionError("user", f"{str(user)!r:.100} has no jobs in {where}; there are {_in_a_row(sorted(users))}")
    of_user = [kind for name, kind in known if user is None or name == str(user)]
    kinds = sorted({kind for kind in of_user if kind is not None})
    whose = "" if user is None else f" of user {user}"
    return OptionError(
        "job_class", f"{str(job_class)!r:.100}: no jobs{whose} have it in {where}; there are {_in_a_row(kinds)}"
    )


def _in_a_row(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more if names else "none"

"""Past resource use by user and job class, and suggestions for the next job (docs/experience.md)."""

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
    """The resource use of a user's jobs in one class, and the suggestion derived from it."""

    # None: jobs without a user or class.
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
    """Return resource use and a suggestion for each user and job class, combining all journals.

    Parameters
    ----------
    journals : sequence of str or pathlib.Path
        Paths or URLs. Other processes may be writing to the journals. A journal that is listed twice counts once.
    rule : Rule, optional
        How to make suggestions.
    user, job_class : str or int, optional
        Return only this user or class.
    last : int
        Maximum number of jobs to use for each user and class, newest first.

    Returns
    -------
    list of Learnt
        Sorted by user, then class; jobs without a user or class come first.

    Raises
    ------
    InputError
        If there is no journal at one of the locations.
    UnavailableError
        If a journal cannot be reached.
    OptionError
        If there are no jobs with this user or class, or if an option is invalid.
    """
    usage = read_usage(journals, user=user, job_class=job_class, last=last)
    return [
        Learnt(group.user, group.job_class, experience_of(jobs), suggest(jobs, rule)) for group, jobs in usage.items()
    ]


def read_usage(
    journals: Sequence[str | Path],
    *,
    user: str | int | None = None,
    job_class: str | int | None = None,
    last: int = LAST,
) -> dict[Group, list[JobUsage]]:
    """Return each job's resource use, by user and class, sorted by end time; arguments as for `learn`."""
    if not journals:
        raise OptionError("journals", "is empty; expected at least one path or URL")
    if last < 1:
        raise OptionError("last", f"is {last}; expected at least 1 job")
    merged: dict[tuple[str | None, str | None], list[JobUsage]] = {}
    seen: dict[str, str] = {}
    for place in journals:
        with JournalReader(place) as reader:
            if reader.journal_id in seen:
                continue
            seen[reader.journal_id] = reader.where
            for group in reader.groups():
                jobs = merged.setdefault((group.user, group.job_class), [])
                if _is_selected(group, user, job_class):
                    jobs += reader.usage(group, last=last)
    selected = {key: jobs for key, jobs in merged.items() if jobs}
    if not selected and (user is not None or job_class is not None):
        raise _no_such_group(merged, list(seen.values()), user, job_class)
    groups = {}
    for name, kind in sorted(selected, key=lambda key: (key[0] or "", key[1] or "")):
        jobs = sorted(selected[name, kind], key=lambda used: used.at_ms)[-last:]
        groups[Group(name, kind, len(jobs))] = jobs
    return groups


def _is_selected(group: Group, user: str | int | None, job_class: str | int | None) -> bool:
    return (user is None or group.user == str(user)) and (job_class is None or group.job_class == str(job_class))


def _no_such_group(
    groups: Iterable[tuple[str | None, str | None]],
    sources: Sequence[str],
    user: str | int | None,
    job_class: str | int | None,
) -> InputError:
    where = _listed(sources)
    users = {name for name, _ in groups if name is not None}
    if user is not None and str(user) not in users:
        return OptionError("user", f"{str(user)!r:.100} has no jobs in {where}; it has {_listed(sorted(users))}")
    of_user = [kind for name, kind in groups if user is None or name == str(user)]
    kinds = sorted({kind for kind in of_user if kind is not None})
    whose = "" if user is None else f" of user {user}"
    return OptionError("job_class", f"{str(job_class)!r:.100} has no jobs{whose} in {where}; it has {_listed(kinds)}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more if names else "none"

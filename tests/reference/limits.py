"""Limits of a planning site (docs/disciplines.md, "Limits")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reference.availability import Occupation, fits
from reference.model import DAY, WEEK, Job, Limit, Window


def applies(limit: Limit, job: Job) -> bool:
    """Return whether a job is one of those that a limit speaks of."""
    return (
        job.width > limit.wider_than
        and job.estimate > limit.longer_than_ms
        and (limit.user is None or limit.user == job.user)
    )


def length_of(window: Window) -> int:
    """Return for how long a window is closed each time."""
    length = window.to_ms_of_day - window.from_ms_of_day
    return length if length > 0 else length + DAY


def is_closed(window: Window, instant: int, week_offset: int) -> bool:
    """Return whether an instant lies in a window; ``week_offset`` is the local time of instant zero in its week."""
    since_monday = (week_offset + instant) % WEEK
    return any(
        (since_monday - (day * DAY + window.from_ms_of_day)) % WEEK < length_of(window) for day in sorted(window.days)
    )


def openings(window: Window, after: int, until: int, week_offset: int) -> list[int]:
    """Return the instants in (after, until] at which a closing of the window ends."""
    found = []
    for day in sorted(window.days):
        end_of_week_zero = day * DAY + window.from_ms_of_day + length_of(window) - week_offset
        weeks = range((after - end_of_week_zero) // WEEK, (until - end_of_week_zero) // WEEK + 1)
        found += [end_of_week_zero + week * WEEK for week in weeks]
    return sorted(instant for instant in found if after < instant <= until)


def allows(limit: Limit, job: Job, start: int, occupations: Iterable[Occupation], week_offset: int) -> bool:
    """Return whether one limit lets a job start at an instant, given all jobs that are running or planned."""
    if not applies(limit, job):
        return True
    if limit.window is not None and is_closed(limit.window, start, week_offset):
        return False
    alike = [other for other in occupations if other.job is not None and applies(limit, other.job)]
    if limit.max_nodes is not None and not fits(start, job.estimate, job.width, limit.max_nodes, alike):
        return False
    ones = [other._replace(width=1) for other in alike]
    return limit.max_jobs is None or fits(start, job.estimate, 1, limit.max_jobs, ones)


def never_starts(job: Job, limits: Sequence[Limit], week_offset: int) -> bool:
    """Return whether the limits would keep a job waiting forever, on an empty machine too."""
    mine = [limit for limit in limits if applies(limit, job)]
    if any(limit.max_nodes is not None and job.width > limit.max_nodes for limit in mine):
        return True
    if any(limit.max_jobs is not None and limit.max_jobs < 1 for limit in mine):
        return True
    windows = [limit.window for limit in mine if limit.window is not None]
    # If the week is open at all, it is open from the end of some window on; or no window ever closes.
    ends = [end for window in windows for end in openings(window, 0, WEEK, week_offset)]
    return bool(ends) and all(any(is_closed(window, end, week_offset) for window in windows) for end in ends)

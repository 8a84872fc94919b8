"""Priority levels, the users and evictions they allow, and metrics for schedules with levels.

See docs/levels.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gridweave.errors import not_known
from gridweave.site.job import MAX_TIME_MS

if TYPE_CHECKING:
    from gridweave.site.disciplines.entry import SiteOutcome

EVICTED = ("restart", "checkpoint")
"""What can happen to an evicted job: it starts over, or resumes from its checkpoint."""

PAUSE = "pause"
"""The choice for sites that assign machines: an evicted job pauses, and resumes when its machines are free again."""


MOST_EVICTIONS = 10**9
"""Largest ``raise_after``: more evictions than any job will ever have, and small enough for the kernels' int64."""


class Level(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A priority level.

    Attributes
    ----------
    name : str
    priority : float
        Minimum priority of the level's jobs; a job belongs to the highest level whose minimum it reaches.
    users : tuple of int or str, optional
        Users who may use the level: user numbers or, on a live site, names. None: all users.
    evicts : tuple of str
        Names of the levels whose running jobs this level may evict; they must all be lower.
    """

    name: str
    priority: float
    users: tuple[int | str, ...] | None = None
    evicts: tuple[str, ...] = ()


EVERYBODY = Level(name="all", priority=float("-inf"))
"""The only level of a site that defines no levels."""


def level_of(levels: Sequence[Level], priority: float) -> int:
    """Return the index of the highest level that a priority reaches; the lowest level if it reaches none."""
    return next((at for at, level in enumerate(levels) if priority >= level.priority), len(levels) - 1)


def levels_text(levels: Sequence[Level]) -> str:
    """Return the number of levels as text, followed by the levels' properties in brackets unless all are usual.

    Usual levels have priorities that count down by 1, are open to all users, and either evict no jobs or evict the jobs
    of all lower levels. The priority of the lowest level has no effect.

    Examples
    --------
    >>> high, low = Level(name="high", priority=1), Level(name="low", priority=0)
    >>> levels_text((high, low))
    '2 levels'
    >>> levels_text((Level(name="high", priority=10, users=("anna",), evicts=("low",)), low))
    '2 levels [high from 10 users=anna evicts=low; low]'
    """
    below = [tuple(level.name for level in levels[at + 1 :]) for at in range(len(levels))]
    evicts = [tuple(name for name in lower if name in level.evicts) for level, lower in zip(levels, below, strict=True)]
    count = f"{len(levels)} level{'s' if len(levels) > 1 else ''}"
    is_usual = all(level.priority == len(levels) - at for at, level in enumerate(levels[:-1], start=1))
    if is_usual and all(level.users is None for level in levels) and (evicts == below or not any(evicts)):
        return count
    parts = []
    for at, level in enumerate(levels):
        words = [level.name]
        words += [f"from {level.priority:.15g}"] if at < len(levels) - 1 else []
        words += [f"users={','.join(map(str, level.users))}"] if level.users is not None else []
        words += [f"evicts={','.join(evicts[at])}"] if evicts[at] else []
        parts.append(" ".join(words))
    return f"{count} [{'; '.join(parts)}]"


def why_not_allowed(levels: Sequence[Level], priority: float, user: int | str | None) -> str | None:
    """Return why a user may not submit a job of this priority; None if the user may."""
    level = levels[level_of(levels, priority)]
    if level.users is None or user in level.users:
        return None
    allowed = ", ".join(map(str, level.users)) or "nobody"
    return f"priority {priority:g} belongs to level {level.name!r}, which is for users {allowed}; its user is {user}"


def option_problems(evicted: str, raise_after: int | None, least_gain_ms: int, *, pauses: bool = False) -> list[str]:
    """Return all problems with the eviction options, one per line; `pauses` says whether ``pause`` is allowed."""
    accepted = (*EVICTED, PAUSE) if pauses else EVICTED
    problems = [] if evicted in accepted else [f"evicted {not_known(evicted, accepted)}"]
    if evicted == PAUSE and not pauses:
        problems = [f"evicted {evicted!r} is for sites of machines that differ; one of {', '.join(accepted)}"]
    if raise_after is not None and not 1 <= raise_after <= MOST_EVICTIONS:
        right = "at least 1 eviction" if raise_after < 1 else f"at most {MOST_EVICTIONS:,}"
        problems.append(f"raise_after is {raise_after}; expected {right}")
    if not 0 <= least_gain_ms <= MAX_TIME_MS:
        right = "at least 0" if least_gain_ms < 0 else f"at most {MAX_TIME_MS:,}"
        problems.append(f"least_gain_ms is {least_gain_ms}; expected {right}")
    return problems


def level_problems(levels: Sequence[Level]) -> list[str]:
    """Return all problems with the levels and their evictions, one line per problem."""
    if not levels:
        return ["levels is empty; expected at least one level"]
    names = [level.name for level in levels]
    problems = [f"level {name!r} is listed twice" for name in sorted(set(names)) if names.count(name) > 1]
    for place, (above, below) in enumerate(itertools.pairwise(levels)):
        if not above.priority > below.priority:
            problems.append(
                f"level {names[place + 1]!r} has the priority {below.priority:g}, and {names[place]!r} before it "
                f"{above.priority:g}; list the levels from the highest down"
            )
    for place, level in enumerate(levels):
        for name in level.evicts:
            if name not in names:
                problems.append(
                    f"level {level.name!r} evicts {name!r}, which is not a level; one of {', '.join(names)}"
                )
            elif names.index(name) <= place:
                why = "which is not below it: evictions would go in a circle"
                if not _reaches(levels, name, level.name):
                    why = "which is above it: the higher level is served first, and would take the nodes back"
                problems.append(f"{level.name!r} evicts {name!r}, {why}; name levels below it")
    return problems


def _reaches(levels: Sequence[Level], first: str, last: str) -> bool:
    """Whether a chain of evictions leads from the level `first` to the level `last`; true if they are the same."""
    evicts = {level.name: level.evicts for level in levels}
    reached, left = {first}, [first]
    while left:
        new = set(evicts.get(left.pop(), ())) - reached
        reached |= new
        left += sorted(new)
    return last in reached


COLUMNS = ("level", "evictions")
"""Columns with each job's level by priority (0 is the highest), and its number of evictions."""


def times_by_level(outcome: SiteOutcome) -> dict[str, float]:
    """Return the mean time from submission to completion in ms: overall and, if there are several levels, per level."""
    job_time_ms = (outcome.end_ms - outcome.submit_ms).astype(np.float64)
    level = outcome.columns["level"]
    metrics = {"job_time_ms": float(job_time_ms.mean())}
    for number in np.unique(level).astype(int).tolist() if len(np.unique(level)) > 1 else ():
        metrics[f"job_time_level_{number + 1}_ms"] = float(job_time_ms[level == number].mean())
    return metrics


def metrics_of(outcome: SiteOutcome) -> Mapping[str, float]:
    """Return the metrics for a schedule with levels.

    Returns
    -------
    dict from str to float
        ``job_time_ms``: mean time from submission to completion, also per level if there are several; ``evictions``:
        number of evictions; ``lost_node_ms``: node time of the work lost when jobs restarted.
    """
    metrics = {"evictions": int(outcome.totals["evictions"]), "lost_node_ms": outcome.totals["lost_node_ms"]}
    return times_by_level(outcome) | metrics

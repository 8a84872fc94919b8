"""Levels of priority, the users and evictions that they allow, and the metrics of schedules with levels.

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
"""Effects of an eviction on a job: it starts again from zero, or resumes from where it was."""

PAUSE = "pause"
"""Another effect, for sites that choose the machines: the job pauses on them, and resumes when they are free again."""


MOST_EVICTIONS = 10**9
"""Largest ``raise_after``, more evictions than any job will have; the kernels count with 64 bits."""


class Level(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A level of priority.

    Attributes
    ----------
    name : str
    priority : float
        Least priority of its jobs; a job belongs to the highest level whose priority it reaches.
    users : tuple of int or str, optional
        Users who may use the level, by number or, live, by name; None: all users.
    evicts : tuple of str
        Names of the levels whose running jobs it may evict, all below it.
    """

    name: str
    priority: float
    users: tuple[int | str, ...] | None = None
    evicts: tuple[str, ...] = ()


EVERYBODY = Level(name="all", priority=float("-inf"))
"""The only level of a site that defines none."""


def level_of(levels: Sequence[Level], priority: float) -> int:
    """Return the number of the highest level that a priority reaches, from 0; the lowest level if it reaches none."""
    return next((at for at, level in enumerate(levels) if priority >= level.priority), len(levels) - 1)


def levels_text(levels: Sequence[Level]) -> str:
    """Return the number of levels, with their properties in brackets unless these are the usual ones.

    Usual levels have priorities that count down by 1 and are open to all users, and either none evicts others or each
    evicts all below it. The priority of the lowest level has no effect.

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
    """Return why a user may not submit a job of this priority, or None."""
    level = levels[level_of(levels, priority)]
    if level.users is None or user in level.users:
        return None
    allowed = ", ".join(map(str, level.users)) or "nobody"
    return f"priority {priority:g} belongs to level {level.name!r}, which is for users {allowed}; its user is {user}"


def option_problems(evicted: str, raise_after: int | None, least_gain_ms: int, *, pauses: bool = False) -> list[str]:
    """Return the problems of the options for evictions, a line each; `pauses`: whether ``pause`` is allowed."""
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
    """Return the problems of the levels and of their evictions, a line each."""
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
    """Whether a chain of evictions leads from the first level to the last, or both are the same."""
    evicts = {level.name: level.evicts for level in levels}
    reached, left = {first}, [first]
    while left:
        new = set(evicts.get(left.pop(), ())) - reached
        reached |= new
        left += sorted(new)
    return last in reached


COLUMNS = ("level", "evictions")
"""The figures of each job: its level by its priority (0 is the highest), and its number of evictions."""


def times_by_level(outcome: SiteOutcome) -> dict[str, float]:
    """Return the mean time from submission to the end in ms, of all jobs and, if there are several levels, of each."""
    job_time_ms = (outcome.end_ms - outcome.submit_ms).astype(np.float64)
    level = outcome.columns["level"]
    metrics = {"job_time_ms": float(job_time_ms.mean())}
    for number in np.unique(level).astype(int).tolist() if len(np.unique(level)) > 1 else ():
        metrics[f"job_time_level_{number + 1}_ms"] = float(job_time_ms[level == number].mean())
    return metrics


def metrics_of(outcome: SiteOutcome) -> Mapping[str, float]:
    """Return the metrics of a schedule.

    Returns
    -------
    dict from str to float
        ``job_time_ms``: mean time from submission to the end, also for each level if there are several; ``evictions``;
        ``lost_node_ms``: node time of the work that was lost when jobs restarted.
    """
    metrics = {"evictions": int(outcome.totals["evictions"]), "lost_node_ms": outcome.totals["lost_node_ms"]}
    return times_by_level(outcome) | metrics

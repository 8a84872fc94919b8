"""The policy of a queue with priority levels, as its operator configures it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np

from gridweave.errors import OptionError
from gridweave.site.disciplines.levels.kernels.levels import CHECKPOINTS, RESTARTS, STAYS, LevelTable
from gridweave.site.disciplines.levels.rights import Level, level_problems, levels_text, option_problems
from gridweave.site.kernels.dispatch import no_evictions
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import NodeKind

NAME = "levels"
"""Name of the discipline."""

WAYS = {"restart": RESTARTS, "checkpoint": CHECKPOINTS, "never": STAYS}
"""The kernels' codes for what an eviction does to a job, keyed by the name used in site and job options."""


class LevelsPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of a queue or planning site with priority levels.

    Attributes
    ----------
    under : SitePolicy
        Order of the jobs within a level, backfilling, and limits.
    levels : tuple of Level
        Highest level first. Jobs whose priority is too low for any level belong to the lowest level.
    evicted : str
        What happens to an evicted job: it starts over (``restart``), or resumes from its checkpoint
        (``checkpoint``).
    raise_after : int, optional
        Number of evictions that raise a job by one level; None: jobs are never raised.
    least_gain_ms : int
        Jobs are evicted for a waiting job only if it would otherwise start at least this much later.

    Raises
    ------
    OptionError
        If a value is invalid; the message lists all problems.

    Examples
    --------
    >>> high = Level(name="high", priority=1, evicts=("low",))
    >>> LevelsPolicy(levels=(high, Level(name="low", priority=0))).label
    'fcfs easy 2 levels evicting (restart)'
    """

    discipline: ClassVar[str] = NAME
    under: SitePolicy = SitePolicy()
    levels: tuple[Level, ...]
    evicted: str = "restart"
    raise_after: int | None = None
    least_gain_ms: int = 0

    def __post_init__(self) -> None:
        problems = level_problems(self.levels)
        problems += option_problems(self.evicted, self.raise_after, self.least_gain_ms)
        if self.evicts and self.under.backfill == "conservative":
            problems.append("conservative backfilling promises starts, which evictions would break; use easy or none")
        if self.evicts and self.under.limits:
            problems.append("limits could hold back a job for which others were evicted; leave one of them out")
        if problems:
            raise OptionError(NAME, "; ".join(problems))

    @property
    def kinds(self) -> tuple[NodeKind, ...]:
        """The kinds of the site's nodes; empty if jobs get whole nodes."""
        return self.under.kinds

    @property
    def evicts(self) -> bool:
        """Whether any level may evict jobs of another level."""
        return any(level.evicts for level in self.levels)

    @property
    def label(self) -> str:
        """The name of the policy in tables and plots; policies that schedule differently have different names."""
        words = [self.under.label, levels_text(self.levels)]
        if self.evicts:
            words.append(f"evicting ({self.evicted})")
            words += [f"raise-after={self.raise_after}"] if self.raise_after is not None else []
            words += [f"least-gain={self.least_gain_ms / 1000:.15g}s"] if self.least_gain_ms else []
        return " ".join(words)

    def on(self, nodes: int | Sequence[NodeKind] | None) -> tuple[int | None, LevelsPolicy]:
        """Return the number of nodes, and the policy for them; ``nodes`` is a number, kinds of nodes, or None."""
        count, under = self.under.on(nodes)
        return count, msgspec.structs.replace(self, under=under)

    def table(self, slots: int, capacity: int) -> LevelTable:
        """Return the levels as arrays for the kernels, for `slots` jobs of which at most `capacity` run at once."""
        names = [level.name for level in self.levels]
        evicts = np.array([[name in level.evicts for name in names] for level in self.levels], np.bool_)
        base, times, by = np.zeros((3, slots), np.int64)
        return LevelTable(
            base=base,
            times=times,
            by=by,
            way=np.full(slots, WAYS[self.evicted]),
            evictions=no_evictions(capacity),
            picked=np.zeros(capacity, np.int64),
            evicts=evicts,
            raise_after=self.raise_after or 0,
            least_gain_ms=self.least_gain_ms,
        )

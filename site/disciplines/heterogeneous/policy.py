"""The policy of a site with different machines, as its operator configures it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from gridweave.errors import OptionError, not_known
from gridweave.site.disciplines.heterogeneous.machines import Cluster, Form, machine_problems
from gridweave.site.disciplines.heterogeneous.mapping import ALGORITHMS, PROFITS
from gridweave.site.disciplines.levels.rights import (
    EVERYBODY,
    PAUSE,
    Level,
    level_problems,
    levels_text,
    option_problems,
)
from gridweave.site.known_times import KnownTimes
from gridweave.site.resources.chunks import NodeKind

NAME = "heterogeneous"
"""Name of the discipline."""

PREDICTIONS = ("experience", "estimate")

MOST_DEVIATIONS = 10.0


class HeterogeneousPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of a site with the discipline heterogeneous.

    Attributes
    ----------
    nodes : int
        Number of nodes at the site; each machine is a node.
    classes : tuple of NodeKind
        The kinds of machines; a kind's name is that of its class.
    clusters, forms
        As in `gridweave.site.disciplines.heterogeneous.machines`.
    algorithm : str
        One of `ALGORITHMS`.
    profit : str
        One of `PROFITS`, for ``pjs`` and ``gsa``.
    seed : int
        Seed for ``gsa``; each mapping starts a new generator with this seed.
    predict : str
        Basis of expected run times: ``experience``, or only the ``estimate``.
    levels : tuple of Level
        Highest level first. Jobs whose priority is too low for any level belong to the lowest level.
    evicted : str
        What happens to an evicted job: it starts over (``restart``), resumes from its checkpoint (``checkpoint``), or
        stays paused on its machines while the other job runs, if both fit into memory (``pause``).
    raise_after : int, optional
        Number of evictions that raise a job by one level; None: jobs are never raised.
    least_gain_ms : int
        A job is evicted only if the job that replaces it ends at least this much earlier as a result.
    out_of_service : str
        Numbers of the machines that are out of service, e.g. ``3,17-20``.
    experience : tuple of KnownTimes
        Run times that the site knows at the start.
    deviations : float
        Number of standard deviations added to the predicted mean.

    Raises
    ------
    OptionError
        If a value is invalid; the message lists all problems.
    """

    discipline: ClassVar[str] = NAME
    nodes: int
    classes: tuple[NodeKind, ...]
    clusters: tuple[Cluster, ...] = ()
    forms: tuple[Form, ...] = ()
    algorithm: str = "pjs"
    profit: str = "end"
    seed: int = 0
    predict: str = "experience"
    levels: tuple[Level, ...] = (EVERYBODY,)
    evicted: str = "restart"
    raise_after: int | None = None
    least_gain_ms: int = 0
    out_of_service: str = ""
    experience: tuple[KnownTimes, ...] = ()
    deviations: float = 0.0

    def __post_init__(self) -> None:
        chosen = {"algorithm": ALGORITHMS, "profit": PROFITS, "predict": PREDICTIONS}
        problems = [
            f"{option} {not_known(getattr(self, option), entry)}"
            for option, entry in chosen.items()
            if getattr(self, option) not in entry
        ]
        problems += machine_problems(self.nodes, self.classes, self.clusters, self.forms, self.out_of_service)
        problems += level_problems(self.levels)
        problems += [problem for entry in self.experience if (problem := entry.problem()) is not None]
        problems += option_problems(self.evicted, self.raise_after, self.least_gain_ms, pauses=True)
        if self.seed < 0:
            problems.append(f"seed is {self.seed}; expected a whole number of at least 0")
        if not 0 <= self.deviations <= MOST_DEVIATIONS:
            problems.append(f"deviations is {self.deviations:g}; expected a number from 0 to {MOST_DEVIATIONS:g}")
        if problems:
            raise OptionError(NAME, "; ".join(problems))

    def on(self, nodes: int | Sequence[NodeKind] | None) -> tuple[int, HeterogeneousPolicy]:
        """Return the number of nodes, and the policy for them; kinds of nodes replace the policy's classes."""
        if not isinstance(nodes, Sequence):
            return self.nodes if nodes is None else nodes, self
        count = sum(kind.count for kind in nodes)
        return count, msgspec.structs.replace(self, nodes=count, classes=tuple(nodes))

    @property
    def pauses_jobs(self) -> bool:
        """Whether an evicted job may pause on its machines."""
        return self.evicted == PAUSE

    @property
    def label(self) -> str:
        """The name of the policy in tables and plots.

        Two policies with the same machines, forms and known run times have different names if they schedule
        differently.
        """
        parts = [NAME, self.algorithm] + (
            [self.profit] if self.algorithm in ("pjs", "gsa") and self.profit != "end" else []
        )
        if self.algorithm == "gsa" and self.seed:
            parts.append(f"seed={self.seed}")
        if (levels := levels_text(self.levels)) != "1 level":
            parts.append(levels)
        if any(level.evicts for level in self.levels):
            parts.append(f"evicting ({self.evicted})")
            parts += [f"raise-after={self.raise_after}"] if self.raise_after is not None else []
            parts += [f"least-gain={self.least_gain_ms / 1000:.15g}s"] if self.least_gain_ms else []
        if self.predict != "experience":
            parts.append(f"by {self.predict}")
        if self.deviations:
            parts.append(f"mean+{self.deviations:.15g}sd")
        return " ".join(parts)

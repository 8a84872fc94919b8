"""How a site of machines that differ schedules, as its operator writes it down."""

from __future__ import annotations

import itertools
from typing import ClassVar

import msgspec

from gridweave.errors import OptionError
from gridweave.site.disciplines.heterogeneous.machines import Cluster, Form, MachineClass, machine_problems
from gridweave.site.disciplines.heterogeneous.mapping import ALGORITHMS, PROFITS

NAME = "heterogeneous"
"""Of the discipline."""

PREDICTIONS = ("experience", "estimate")
EVICTED = ("restart", "checkpoint")


class Level(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A level of priority.

    Attributes
    ----------
    name : str
    priority : float
        A job is of the highest level whose priority it has or exceeds.
    users : tuple of int or str, optional
        Who may use it, by number or, live, by name; everybody, if it is not said.
    evicts : tuple of str
        The levels whose running jobs it may evict, all below it.
    """

    name: str
    priority: float
    users: tuple[int | str, ...] | None = None
    evicts: tuple[str, ...] = ()


EVERYBODY = Level(name="all", priority=float("-inf"))
"""The level where there are no others."""


class HeterogeneousPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a site with the discipline heterogeneous schedules.

    Attributes
    ----------
    nodes : int
        Of the site.
    classes, clusters, forms
        As in `gridweave.site.disciplines.heterogeneous.machines`.
    algorithm : str
        One of `ALGORITHMS`.
    profit : str
        One of `PROFITS`, for ``pjs``.
    predict : str
        Whether times are expected by ``experience``, or by the ``estimate`` alone.
    levels : tuple of Level
        From the highest down; the lowest has all jobs below it as well.
    evicted : str
        What becomes of an evicted job: it begins again from zero (``restart``), or goes on from where it was
        (``checkpoint``).
    raise_after : int, optional
        After so many evictions a job is of the next higher level, after as many more of the one above that.
    least_gain_ms : int
        Nobody is evicted if the job in question would end less than so much sooner.
    out_of_service : str
        Machines that are not there, as ``3,17-20``.

    Raises
    ------
    OptionError
        With all that is wrong.
    """

    discipline: ClassVar[str] = NAME
    nodes: int
    classes: tuple[MachineClass, ...]
    clusters: tuple[Cluster, ...] = ()
    forms: tuple[Form, ...] = ()
    algorithm: str = "pjs"
    profit: str = "end"
    predict: str = "experience"
    levels: tuple[Level, ...] = (EVERYBODY,)
    evicted: str = "restart"
    raise_after: int | None = None
    least_gain_ms: int = 0
    out_of_service: str = ""

    def __post_init__(self) -> None:
        chosen = {"algorithm": ALGORITHMS, "profit": PROFITS, "predict": PREDICTIONS, "evicted": EVICTED}
        problems = [
            f"{option} {getattr(self, option)!r} is not known; one of {', '.join(known)}"
            for option, known in chosen.items()
            if getattr(self, option) not in known
        ]
        problems += machine_problems(self.nodes, self.classes, self.clusters, self.forms, self.out_of_service)
        problems += _level_problems(self.levels)
        if self.raise_after is not None and self.raise_after < 1:
            problems.append(f"raise_after is {self.raise_after}; at least 1 eviction")
        if self.least_gain_ms < 0:
            problems.append(f"least_gain_ms is {self.least_gain_ms}; at least 0")
        if problems:
            raise OptionError(NAME, "; ".join(problems))

    @property
    def label(self) -> str:
        """What tables and plots call it."""
        parts = [NAME, self.algorithm] + ([self.profit] if self.algorithm == "pjs" and self.profit != "end" else [])
        if len(self.levels) > 1:
            parts.append(f"{len(self.levels)} levels")
        if any(level.evicts for level in self.levels):
            parts.append(f"evicting ({self.evicted})")
        return " ".join(parts)


def _level_problems(levels: tuple[Level, ...]) -> list[str]:
    """Return what is wrong with the levels and with who may evict whom."""
    if not levels:
        return ["levels names none; at least one"]
    names = [level.name for level in levels]
    found = [f"level {name!r} is there twice" for name in sorted(set(names)) if names.count(name) > 1]
    for place, (above, below) in enumerate(itertools.pairwise(levels)):
        if not above.priority > below.priority:
            found.append(
                f"level {names[place + 1]!r} has the priority {below.priority:g}, and {names[place]!r} before it "
                f"{above.priority:g}; levels go from the highest down"
            )
    for place, level in enumerate(levels):
        for name in level.evicts:
            if name not in names:
                found.append(f"level {level.name!r} evicts {name!r}, which is no level; one of {', '.join(names)}")
            elif names.index(name) <= place:
                cycle = f"{level.name!r} evicts {name!r}"
                found.append(f"{cycle}, which is not below it: evictions would go in a circle; name levels below it")
    return found

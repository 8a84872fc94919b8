"""How a site of machines that differ schedules, as its operator writes it down."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gridweave.errors import OptionError, not_known
from gridweave.site.disciplines.heterogeneous.machines import Cluster, Form, MachineClass, machine_problems
from gridweave.site.disciplines.heterogeneous.mapping import ALGORITHMS, PROFITS
from gridweave.site.disciplines.levels.rights import EVERYBODY, PAUSE, Level, level_problems, option_problems
from gridweave.site.known_times import KnownTimes

NAME = "heterogeneous"
"""Of the discipline."""

PREDICTIONS = ("experience", "estimate")

MOST_DEVIATIONS = 10.0


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
        One of `PROFITS`, for ``pjs`` and ``gsa``.
    seed : int
        From which ``gsa`` draws, anew for each mapping.
    predict : str
        Whether times are expected by ``experience``, or by the ``estimate`` alone.
    levels : tuple of Level
        From the highest down; the lowest has all jobs below it as well.
    evicted : str
        What becomes of an evicted job: it begins again from zero (``restart``), goes on from where it was
        (``checkpoint``), or stands still on its machines beside the job that takes them, if its memory fits
        (``pause``).
    raise_after : int, optional
        After so many evictions a job is of the next higher level, after as many more of the one above that.
    least_gain_ms : int
        Nobody is evicted if the job in question would end less than so much sooner.
    out_of_service : str
        Machines that are not there, as ``3,17-20``.
    experience : tuple of KnownTimes
        What the site knows of run times before it has seen any.
    deviations : float
        How many standard deviations more than the mean a run is expected to take.

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
            f"{option} {not_known(getattr(self, option), known)}"
            for option, known in chosen.items()
            if getattr(self, option) not in known
        ]
        problems += machine_problems(self.nodes, self.classes, self.clusters, self.forms, self.out_of_service)
        problems += level_problems(self.levels)
        problems += [problem for known in self.experience if (problem := known.problem()) is not None]
        problems += option_problems(self.evicted, self.raise_after, self.least_gain_ms, pauses=True)
        if self.seed < 0:
            problems.append(f"seed is {self.seed}; a whole number from 0 up")
        if not 0 <= self.deviations <= MOST_DEVIATIONS:
            problems.append(f"deviations is {self.deviations:g}; a number from 0 to {MOST_DEVIATIONS:g}")
        if problems:
            raise OptionError(NAME, "; ".join(problems))

    @property
    def pauses_jobs(self) -> bool:
        """Whether an evicted job may stand still on its machines."""
        return self.evicted == PAUSE

    @property
    def label(self) -> str:
        """What tables and plots call it."""
        parts = [NAME, self.algorithm] + ([self.profit] if self.algorithm == "pjs" and self.profit != "end" else [])
        if len(self.levels) > 1:
            parts.append(f"{len(self.levels)} levels")
        if any(level.evicts for level in self.levels):
            parts.append(f"evicting ({self.evicted})")
        if self.deviations:
            parts.append(f"mean+{self.deviations:g}sd")
        return " ".join(parts)

"""How a site asks a batch system for the nodes of its jobs, as its operator writes it down (docs/slurm.md)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gridweave.errors import OptionError
from gridweave.site.policy import SitePolicy

NAME = "slurm"
"""Of the discipline."""


class PilotRules(msgspec.Struct, frozen=True, kw_only=True):
    """How a site asks for nodes ahead of work, and what it does in them.

    Attributes
    ----------
    policy : SitePolicy
        How jobs are queued for the nodes that are there; promised starts are made anew when nodes come and go.
    size : int
        The nodes of a pilot at most; >= 1.
    length_ms : int
        The longest time for which a pilot is asked for; at least twice ``job_ms``.
    job_ms : int
        The longest that a job in a pilot may take; >= 1.
    idle_ms : int
        A pilot that has run nothing for so long is given back, if nothing waits; >= 0.
    keep : int
        So many nodes are kept though nothing waits; >= 0.

    Raises
    ------
    OptionError
        If a number is out of its range.
    """

    policy: SitePolicy = SitePolicy()
    size: int = 1
    length_ms: int = 14_400_000
    job_ms: int = 3_600_000
    idle_ms: int = 120_000
    keep: int = 0

    def __post_init__(self) -> None:
        if self.policy.discipline != "queue":
            raise OptionError("discipline", "of what starts in pilots is a queue: no node is sure to be there later")
        if self.size < 1:
            raise OptionError("size", f"is {self.size}; at least 1 node")
        if self.job_ms < 1:
            raise OptionError("job_hours", "is 0 or less; more than 0")
        if self.length_ms < 2 * self.job_ms:
            raise OptionError("hours", "is too little; at least twice job_hours, so that pilots take jobs for a while")
        for name, value in (("idle_s", self.idle_ms), ("keep", self.keep)):
            if value < 0:
                raise OptionError(name, "is below 0; 0 or more")


class BatchPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a site passes jobs to its batch system.

    Attributes
    ----------
    most_asked : int
        For so many waiting jobs it is asked at one time, the first in the queue of the site; >= 1.
    margin_ms : int
        For so much longer than a job may take nodes are asked for: what it takes to start it and to end it; >= 0.
    pilots : PilotRules, optional
        None: nodes are asked for on behalf of each job, and the batch system decides when it starts.

    Raises
    ------
    OptionError
        If a number is out of its range.

    Examples
    --------
    >>> BatchPolicy(most_asked=8).label
    'slurm up to 8 waiting'
    """

    discipline: ClassVar[str] = NAME

    most_asked: int = 100
    margin_ms: int = 120_000
    pilots: PilotRules | None = None

    def __post_init__(self) -> None:
        if self.most_asked < 1:
            raise OptionError("most_asked", f"is {self.most_asked}; at least 1")
        if self.margin_ms < 0:
            raise OptionError("margin_ms", f"is {self.margin_ms}; at least 0")

    @property
    def label(self) -> str:
        """What tables and plots call this policy."""
        if self.pilots is not None:
            return f"{NAME} pilots, {self.pilots.policy.label}"
        return f"{NAME} up to {self.most_asked} waiting"

"""How a site asks a batch system for the nodes of its jobs, as its operator writes it down (docs/slurm.md)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gridweave.errors import OptionError
from gridweave.site.disciplines.dictionary import DISCIPLINES, entry_named, entry_of
from gridweave.site.disciplines.entry import Entry, Policy
from gridweave.site.policy import SitePolicy

NAME = "slurm"
"""Of the discipline."""


def check_discipline(name: str) -> Entry:
    """Return the discipline of this name; OptionError if it cannot be that of pilots."""
    entry = entry_named(name)
    if not entry.traits.elastic:
        known = ", ".join(name for name, entry in DISCIPLINES.items() if entry.traits.elastic)
        raise OptionError("discipline", f"{name!r} cannot be that of pilots; one of {known}")
    return entry


class PilotRules(msgspec.Struct, frozen=True, kw_only=True):
    """How a site asks for nodes ahead of work, and what it does in them.

    Attributes
    ----------
    policy : Policy
        Which jobs get the nodes that are there, of a discipline that stands that these come and go; promised starts are
        made anew then.
    size : int
        The nodes of a pilot at most; >= 1.
    length_ms : int
        The longest time for which a pilot is asked for; at least twice `stay_ms`.
    job_ms : int
        The longest that a job in a pilot may take by its limit; >= 1.
    idle_ms : int
        A pilot that has run nothing for so long is given back, if nothing waits; >= 0.
    keep : int
        So many nodes are kept though nothing waits; >= 0.

    Raises
    ------
    OptionError
        If a number is out of its range.
    """

    policy: Policy = SitePolicy()
    size: int = 1
    length_ms: int = 14_400_000
    job_ms: int = 3_600_000
    idle_ms: int = 120_000
    keep: int = 0

    def __post_init__(self) -> None:
        check_discipline(self.policy.discipline)
        if self.size < 1:
            raise OptionError("size", f"is {self.size}; at least 1 node")
        if self.job_ms < 1:
            raise OptionError("job_hours", "must be more than 0")
        if self.length_ms < 2 * self.stay_ms:
            least = "twice job_hours"
            if self.stay_ms > self.job_ms:
                least = f"{2 * self.stay_ms / 3_600_000:.4g}, as jobs of {self.policy.label!r} may take longer"
            raise OptionError("hours", f"is too little; at least {least}, so that pilots take jobs for a while")
        for name, value in (("idle_s", self.idle_ms), ("keep", self.keep)):
            if value < 0:
                raise OptionError(name, "is below 0; 0 or more")

    @property
    def stay_ms(self) -> int:
        """How long a job may have its nodes, as a rule: others may slow it, or have its nodes in between."""
        return entry_of(self.policy).stay_ms(self.policy, self.job_ms)


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
    def inside(self) -> Policy:
        """By what jobs get nodes: in pilots, or as the batch system gives them."""
        return self if self.pilots is None else self.pilots.policy

    @property
    def label(self) -> str:
        """What tables and plots call this policy."""
        if self.pilots is not None:
            return f"{NAME} pilots, {self.pilots.policy.label}"
        return f"{NAME} up to {self.most_asked} waiting"

"""How a site requests nodes from a batch system, as configured by the site's operator (docs/slurm.md)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gridweave.errors import OptionError
from gridweave.site.disciplines.dictionary import DISCIPLINES, entry_named, entry_of
from gridweave.site.disciplines.entry import Entry, Policy
from gridweave.site.policy import SitePolicy

NAME = "slurm"
"""Name of the discipline."""


def check_discipline(name: str) -> Entry:
    """Return the entry of the discipline with this name; raise OptionError if it cannot schedule jobs in pilots."""
    entry = entry_named(name)
    if not entry.traits.elastic:
        valid_names = ", ".join(name for name, entry in DISCIPLINES.items() if entry.traits.elastic)
        raise OptionError("discipline", f"{name!r} does not work with pilots; expected one of {valid_names}")
    return entry


class PilotRules(msgspec.Struct, frozen=True, kw_only=True):
    """How a site requests pilots, and schedules jobs in them.

    Attributes
    ----------
    policy : Policy
        Schedules jobs on the pilots' nodes. Its discipline must accept nodes that come and go, and promise new starts
        when nodes do so.
    size : int
        Maximum number of nodes per pilot, >= 1.
    length_ms : int
        Maximum time limit of a pilot; at least twice `stay_ms`.
    job_ms : int
        Maximum estimate of a job in a pilot, >= 1.
    idle_ms : int
        Time after which an idle pilot that no job needs is given back, >= 0.
    keep : int
        Number of nodes to keep when no job is waiting, >= 0.

    Raises
    ------
    OptionError
        If a number is out of range, or the discipline does not accept nodes that come and go.
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
            raise OptionError("size", f"is {self.size}; expected at least 1 node")
        if self.job_ms < 1:
            raise OptionError("job_hours", "is 0 or less; expected more than 0")
        if self.length_ms < 2 * self.stay_ms:
            least = "twice job_hours"
            if self.stay_ms > self.job_ms:
                least = f"{2 * self.stay_ms / 3_600_000:.4g}, because jobs of {self.policy.label!r} may take longer"
            raise OptionError(
                "hours", f"is too small; expected at least {least}, so that pilots accept jobs for a while"
            )
        for name, value in (("idle_s", self.idle_ms), ("keep", self.keep)):
            if value < 0:
                raise OptionError(name, "is below 0; expected at least 0")

    @property
    def stay_ms(self) -> int:
        """The longest time that a job usually has its nodes [ms]; longer than `job_ms` if jobs share nodes or time."""
        return entry_of(self.policy).stay_ms(self.policy, self.job_ms)


class BatchPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a site passes its jobs to a batch system.

    Attributes
    ----------
    most_asked : int
        Maximum number of waiting jobs, in queue order, for which nodes are requested at one time; >= 1.
    margin_ms : int
        Time added to a job's estimate in the request for its nodes, for starting and ending the job; >= 0.
    pilots : PilotRules, optional
        The rules for pilots; None: nodes are requested for each job, and the batch system decides when it starts.
    chunks : bool
        Whether jobs may ask for parts of nodes; pilots always have whole nodes.

    Raises
    ------
    OptionError
        If a number is out of range.

    Examples
    --------
    >>> BatchPolicy(most_asked=8).label
    'slurm up to 8 waiting'
    """

    discipline: ClassVar[str] = NAME

    most_asked: int = 100
    margin_ms: int = 120_000
    pilots: PilotRules | None = None
    chunks: bool = True

    def __post_init__(self) -> None:
        if self.most_asked < 1:
            raise OptionError("most_asked", f"is {self.most_asked}; expected at least 1")
        if self.margin_ms < 0:
            raise OptionError("margin_ms", f"is {self.margin_ms}; expected at least 0")

    @property
    def inside(self) -> Policy:
        """The policy that assigns nodes to jobs: the pilots' policy, or this policy if there are no pilots."""
        return self if self.pilots is None else self.pilots.policy

    @property
    def label(self) -> str:
        """Name of the policy in tables and plots."""
        if self.pilots is not None:
            return f"{NAME} pilots, {self.pilots.policy.label}"
        return f"{NAME} up to {self.most_asked} waiting"

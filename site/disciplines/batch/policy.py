"""How a site asks a batch system for the nodes of its jobs, as its operator writes it down (docs/slurm.md)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gridweave.errors import OptionError

NAME = "slurm"
"""Of the discipline."""


class BatchPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a site passes jobs to its batch system.

    Attributes
    ----------
    most_asked : int
        For so many waiting jobs it is asked at one time, the first in the queue of the site; >= 1.
    margin_ms : int
        For so much longer than a job may take nodes are asked for: what it takes to start it and to end it; >= 0.

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

    def __post_init__(self) -> None:
        if self.most_asked < 1:
            raise OptionError("most_asked", f"is {self.most_asked}; at least 1")
        if self.margin_ms < 0:
            raise OptionError("margin_ms", f"is {self.margin_ms}; at least 0")

    @property
    def label(self) -> str:
        """What tables and plots call this policy."""
        return f"{NAME} up to {self.most_asked} waiting"

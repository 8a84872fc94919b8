"""A job that the grid has delegated, or is about to: where it stands, and what the sites have offered for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gridweave.grid.sends import Sends
from gridweave.site.job import Job
from gridweave.site.messages import Quoted

ASKING, BACKLOG, WAITING = "asking", "backlog", "waiting"
WITHDRAWING, RUNNING, SPLIT = "withdrawing", "running", "split"
"""Where a job stands."""


@dataclass(slots=True)
class Delegation:
    """A job of the grid, and where it stands."""

    job: Job
    sensitivity: float
    draw: float
    sends: Sends
    submit_ms: int
    state: str = ASKING
    number: int = 0
    site: int = -1
    next_site: int = -1
    # Whether it was sent where it would start at once by the quotes of all, which other jobs have been given as well.
    hurried: bool = False
    cancelled: bool = False
    # Whether it is to be taken out when it comes back.
    held: bool = False
    # When it is to end where it waits, and why it is not to be asked for again, if that is so.
    end_ms: int = 0
    hopeless: str = ""
    asked: set[int] = field(default_factory=set)
    quotes: dict[int, Quoted] = field(default_factory=dict)
    # When each of the quotes came.
    quoted_ms: dict[int, int] = field(default_factory=dict)

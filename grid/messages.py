"""What the meta-scheduler is told (events, in the past tense) and what it answers (commands, in the imperative)."""

from __future__ import annotations

import msgspec

from gridweave.site.contract import Answer, Request
from gridweave.site.messages import Job


class GridJobSubmitted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A user has submitted a job to the grid.

    Attributes
    ----------
    job : Job
    sensitivity : float
        By which the overhead of a split is multiplied for this job, >= 0.
    """

    job: Job
    sensitivity: float = 1.0


class GridJobCancelled(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A user wants a job of the grid to end, or not to start."""

    job_id: int


class FromSite(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A site has answered, or told something by itself."""

    site: int
    answer: Answer


GridEvent = GridJobSubmitted | GridJobCancelled | FromSite


class ToSite(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Send a request to a site."""

    site: int
    request: Request


class ReportRefused(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Tell the user that a job can never run, and why."""

    job_id: int
    reason: str


class ReportDone(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Tell the user that a job has left the grid.

    Attributes
    ----------
    job_id : int
    outcome : str
        ``finished``, ``limit`` or ``cancelled``.
    """

    job_id: int
    outcome: str


GridCommand = ToSite | ReportRefused | ReportDone

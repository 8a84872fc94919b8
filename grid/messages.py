"""What the meta-scheduler is told (events, in the past tense) and what it answers (commands, in the imperative)."""

from __future__ import annotations

import msgspec

from gridweave.grid.sends import Sends
from gridweave.netmodel.measured import PairMeasured
from gridweave.site.contract import Answer, Request
from gridweave.site.messages import Job


class GridJobSubmitted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A user has submitted a job to the grid.

    Attributes
    ----------
    job : Job
    sensitivity : float
        By which the overhead of a split is multiplied for this job, >= 0.
    sends : Sends, optional
        Over the links between sites; nothing, if left out.
    """

    job: Job
    sensitivity: float = 1.0
    sends: Sends | None = None


class GridJobCancelled(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A user wants a job of the grid to end, or not to start."""

    job_id: int


class GridJobHopeless(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Whoever knows what becomes of the links has found that a job can be placed no more: it is not to wait for that.

    One that runs is not touched; if it is to be tried again, it is refused then.
    """

    job_id: int
    reason: str


class LinksChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Links between the sites have slowed, failed or come back.

    Attributes
    ----------
    factors : tuple of float
        Which part of its bandwidth each cable has now; 0 if it is down.
    """

    factors: tuple[float, ...]


class PathsMeasured(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Probes have shown how the ways between the sites are; this takes the place of what they showed before.

    Attributes
    ----------
    pairs : tuple of PairMeasured
    """

    pairs: tuple[PairMeasured, ...]


class FromSite(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A site has answered, or told something by itself."""

    site: int
    answer: Answer


GridEvent = GridJobSubmitted | GridJobCancelled | GridJobHopeless | LinksChanged | PathsMeasured | FromSite


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

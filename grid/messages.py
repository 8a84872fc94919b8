"""What the meta-scheduler, and the live grid around it, are told (events) and what they answer (commands)."""

from __future__ import annotations

import msgspec

from gridweave.grid.sends import Sends
from gridweave.netmodel.correction import PairMeasured
from gridweave.settings import SettingsChanged
from gridweave.site.job import Accepted, Declined, Job, Noted, RecordEnded, RecordUsage
from gridweave.site.maxima import MaximaSet
from gridweave.site.messages import Answer, GridMessage, Probed, Request, SiteMessage, UserSubmitted, Wish


class GridJobSubmitted(msgspec.Struct, frozen=True, tag="GridJobSubmitted", gc=False):
    """A user has submitted a job to the grid."""

    job: Job
    sensitivity: float = 1.0  # by which the overhead of a split is multiplied for this job, >= 0
    sends: Sends | None = None  # over the links between sites; nothing, if left out
    # Number of its last attempt, of a job that was taken out of the queue (`GridJobHeld`) and comes back: sites know
    # attempts by their numbers, and none is used twice.
    attempt: int = 0
    barred: tuple[int, ...] = ()  # the sites that do not take its user


class GridJobBarred(msgspec.Struct, frozen=True, tag="GridJobBarred", gc=False):
    """Sites take the user of a job no more, or take it now: a job that does not run is placed by that."""

    submitted: GridJobSubmitted  # as it would be now


class GridJobCancelled(msgspec.Struct, frozen=True, tag="GridJobCancelled", gc=False):
    """A user wants a job of the grid to end, or not to start."""

    job_id: int


class GridJobHeld(msgspec.Struct, frozen=True, tag="GridJobHeld", gc=False):
    """A user wants a job of the grid not to start: it is to be taken out of the queue (`ReportHeld`).

    One that is placed is taken out when it comes back, one that runs when it is to be tried again; unless the wish was
    withdrawn before (`GridJobReleased`).
    """

    job_id: int


class GridJobReleased(msgspec.Struct, frozen=True, tag="GridJobReleased", gc=False):
    """A user does not want any more that a job is taken out of the queue."""

    job_id: int


class SiteCutOff(msgspec.Struct, frozen=True, tag="SiteCutOff", gc=False):
    """No messages are exchanged with a site, for a reason that an operator is to see to; or they are again."""

    site: int
    reason: str  # empty: they are again


class GridJobHopeless(msgspec.Struct, frozen=True, tag="GridJobHopeless", gc=False):
    """Whoever knows what becomes of the links has found that a job can be placed no more: it is not to wait for that.

    One that runs is not touched; if it is to be tried again, it is refused then.
    """

    job_id: int
    reason: str


class LinksChanged(msgspec.Struct, frozen=True, tag="LinksChanged", gc=False):
    """Links between the sites have slowed, failed or come back."""

    factors: tuple[float, ...]  # which part of its bandwidth each cable has now; 0 if it is down


class PathsMeasured(msgspec.Struct, frozen=True, tag="PathsMeasured", gc=False):
    """Probes have shown how the ways between the sites are; this takes the place of what they showed before."""

    pairs: tuple[PairMeasured, ...]


class SiteShares(msgspec.Struct, frozen=True, tag="SiteShares", gc=False):
    """Jobs share the nodes of a site by hardware threads: it can be asked what it offers."""

    site: int


class FromSite(msgspec.Struct, frozen=True, tag="FromSite", gc=False):
    """A site has answered, or told something by itself."""

    site: int
    answer: Answer


GridEvent = (
    GridJobSubmitted
    | GridJobBarred
    | GridJobCancelled
    | GridJobHeld
    | GridJobReleased
    | GridJobHopeless
    | SiteCutOff
    | LinksChanged
    | PathsMeasured
    | SiteShares
    | FromSite
)


class ToSite(msgspec.Struct, frozen=True, tag="ToSite", gc=False):
    """Send a request to a site."""

    site: int
    request: Request


class ReportRefused(msgspec.Struct, frozen=True, tag="ReportRefused", gc=False):
    """Tell the user that a job can never run, and why."""

    job_id: int
    reason: str


class ReportDone(msgspec.Struct, frozen=True, tag="ReportDone", gc=False):
    """Tell the user that a job has left the grid."""

    job_id: int
    outcome: str  # ``finished``, ``limit`` or ``cancelled``


class ReportHeld(msgspec.Struct, frozen=True, tag="ReportHeld", gc=False):
    """Tell that a job was taken out of the queue, and is nowhere any more."""

    job_id: int
    attempt: int  # number of its last attempt, for when it comes back


class ReportRefusal(msgspec.Struct, frozen=True, tag="ReportRefusal", gc=False):
    """Tell the user that a site which had taken a job will not have it: how often, why, and when it is asked again."""

    job_id: int
    site: int
    said: str


GridCommand = ToSite | ReportRefused | ReportRefusal | ReportDone | ReportHeld


class FromLiveSite(msgspec.Struct, frozen=True, tag="FromLiveSite"):
    """A site has answered, or told something by itself."""

    site: int
    message: SiteMessage


LiveGridEvent = UserSubmitted | Wish | FromLiveSite | Probed | MaximaSet | SettingsChanged | SiteCutOff
"""What the live grid is told."""


class TellSite(msgspec.Struct, frozen=True, tag="TellSite"):
    """Send a message to a site."""

    site: int
    message: GridMessage


LiveGridCommand = TellSite | Accepted | Declined | Noted | RecordUsage | RecordEnded

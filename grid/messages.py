"""The events and commands of the meta-scheduler, and of the live grid around it."""

from __future__ import annotations

import msgspec

from gridweave.grid.sends import Sends
from gridweave.netmodel.correction import PairMeasured
from gridweave.settings import SettingsChanged
from gridweave.site.job import Accepted, Declined, Job, Noted, RecordEnded, RecordUsage
from gridweave.site.messages import Answer, GridMessage, JobAction, Probed, Request, SiteMessage, UserSubmitted
from gridweave.site.quotas import QuotasChanged


class GridJobSubmitted(msgspec.Struct, frozen=True, tag="GridJobSubmitted", gc=False):
    """A user has submitted a job to the grid."""

    job: Job
    sensitivity: float = 1.0  # multiplies the overhead of a split of this job, >= 0
    sends: Sends | None = None  # transfers over the links between sites; None for no transfers
    # The number of the last attempt, if the job was taken out of the queue (`GridJobHeld`) and returns. Sites identify
    # attempts by number, so no number may be used twice.
    attempt: int = 0
    excluded: tuple[int, ...] = msgspec.field(default=(), name="barred")  # the sites that do not accept the job's user


class GridJobExclusions(msgspec.Struct, frozen=True, tag="GridJobBarred", gc=False):
    """The sites that accept a job's user have changed; place the job again if it is not running yet."""

    submitted: GridJobSubmitted  # the submission with the sites that are excluded now


class GridJobCancelled(msgspec.Struct, frozen=True, tag="GridJobCancelled", gc=False):
    """A user has cancelled a job of the grid."""

    job_id: int


class GridJobHeld(msgspec.Struct, frozen=True, tag="GridJobHeld", gc=False):
    """A user has held a job of the grid, so the job is taken out of the queue (`ReportHeld`).

    A placed or running job is taken out when it returns to the queue for another attempt, unless the user has released
    the job by then (`GridJobReleased`).
    """

    job_id: int


class GridJobReleased(msgspec.Struct, frozen=True, tag="GridJobReleased", gc=False):
    """A user has released a job before it was taken out of the queue."""

    job_id: int


class SiteCutOff(msgspec.Struct, frozen=True, tag="SiteCutOff", gc=False):
    """A site has been cut off from all messages until an operator solves a problem, or it is reachable again."""

    site: int
    reason: str  # the problem; empty if messages are exchanged again


class GridJobUnplaceable(msgspec.Struct, frozen=True, tag="GridJobHopeless", gc=False):
    """A job can never be placed, given the planned changes of links or settings, and must be refused.

    A running job continues, but the job is refused if it needs another attempt.
    """

    job_id: int
    reason: str


class LinksChanged(msgspec.Struct, frozen=True, tag="LinksChanged", gc=False):
    """Links between the sites have slowed down, failed or recovered."""

    factors: tuple[float, ...]  # each cable's current bandwidth as a fraction of the configured one; 0 if it is down


class PathsMeasured(msgspec.Struct, frozen=True, tag="PathsMeasured", gc=False):
    """Probes have measured the paths between the sites; this replaces all earlier measurements."""

    pairs: tuple[PairMeasured, ...]


class SiteShares(msgspec.Struct, frozen=True, tag="SiteShares", gc=False):
    """A site's jobs can share nodes by hardware threads, so the grid can ask the site for offers of shared nodes."""

    site: int


class FromSite(msgspec.Struct, frozen=True, tag="FromSite", gc=False):
    """A site has answered a request or sent an unsolicited report."""

    site: int
    answer: Answer


GridEvent = (
    GridJobSubmitted
    | GridJobExclusions
    | GridJobCancelled
    | GridJobHeld
    | GridJobReleased
    | GridJobUnplaceable
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
    """Report that a job can never run, and why."""

    job_id: int
    reason: str


class ReportDone(msgspec.Struct, frozen=True, tag="ReportDone", gc=False):
    """Report that a job has left the grid."""

    job_id: int
    outcome: str  # ``finished``, ``limit`` or ``cancelled``


class ReportHeld(msgspec.Struct, frozen=True, tag="ReportHeld", gc=False):
    """Report that a job was taken out of the queue; the core keeps no record of the job."""

    job_id: int
    attempt: int  # the number of the job's last attempt, needed if the job returns (`GridJobSubmitted.attempt`)


class ReportRefusal(msgspec.Struct, frozen=True, tag="ReportRefusal", gc=False):
    """Report that a site refuses a job that it had accepted, with the reason."""

    job_id: int
    site: int
    reason: str = msgspec.field(name="said")


GridCommand = ToSite | ReportRefused | ReportRefusal | ReportDone | ReportHeld


class FromLiveSite(msgspec.Struct, frozen=True, tag="FromLiveSite"):
    """A site has answered a request or sent an unsolicited report."""

    site: int
    message: SiteMessage


LiveGridEvent = UserSubmitted | JobAction | FromLiveSite | Probed | QuotasChanged | SettingsChanged | SiteCutOff
"""The events of the live grid."""


class SendToSite(msgspec.Struct, frozen=True, tag="TellSite"):
    """Send a message to a site."""

    site: int
    message: GridMessage


LiveGridCommand = SendToSite | Accepted | Declined | Noted | RecordUsage | RecordEnded

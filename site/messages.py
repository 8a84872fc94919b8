"""What a site is told (events, in the past tense) and what it answers (commands, in the imperative).

First what its core is told and what that commands, then the site contract: what a meta-scheduler may ask of any site,
whatever discipline it runs, and what the site answers. Requests and answers travel in order and exactly once
(`gridweave.site.channel`). A job that the grid places anew gets a new attempt number, so that what is said of an
earlier attempt is never taken for the present one. The rules are in docs/contract.md.

Last what a live site is told and answers besides, and what it and its machines tell each other, as bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gridweave.errors import InputError, OptionError
from gridweave.settings import SettingsChanged
from gridweave.site.elements import Element
from gridweave.site.eligibility import Past
from gridweave.site.job import (
    MAX_ID,
    MAX_TIME_MS,
    MAX_WIDTH,
    Accepted,
    Declined,
    DescribeJob,
    FragmentReport,
    Job,
    JobRequest,
    NodeIntervals,
    Noted,
    RecordEnded,
    RecordUsage,
    Resources,
    SignalName,
    WishKind,
)
from gridweave.site.known_times import KnownTimes
from gridweave.site.launch import ANYONE, Launch, NodeSharing, Outcome, Ran, RankReport, TakenUsers, Used
from gridweave.site.maxima import MaximaSet

# Messages hold no cycles, so the garbage collector need not look at them (``gc=False``).


class JobSubmitted(msgspec.Struct, frozen=True, tag="JobSubmitted", gc=False):
    """A user, or the grid, has submitted a job to this site."""

    job: Job
    now_or_never: bool = False  # whether the job is refused rather than queued if it does not start in this very pass


class JobFinished(msgspec.Struct, frozen=True, tag="JobFinished", gc=False):
    """A job has left its nodes, by itself or killed."""

    job_id: int
    succeeded: bool = True  # whether it came to a good end of its own; what was killed, failed or was lost did not
    ended_ms: int | None = None  # when its processes ended, which may be long ago; None: just now


class JobCancelled(msgspec.Struct, frozen=True, tag="JobCancelled", gc=False):
    """A user wants a job no more, whether it waits or runs."""

    job_id: int


class ReservationRequested(msgspec.Struct, frozen=True, tag="ReservationRequested", gc=False):
    """A user has asked for nodes at a fixed time (Streit, section 3.1: a Fix-Time request)."""

    reservation_id: int
    start_ms: int
    length_ms: int
    width: int


def check_reservation(request: ReservationRequested) -> None:
    """Raise InputError if a reservation can be none."""
    if not (
        0 <= request.reservation_id <= MAX_ID
        and 1 <= request.width <= MAX_WIDTH
        and 1 <= request.length_ms <= MAX_TIME_MS
        and abs(request.start_ms) <= MAX_TIME_MS
    ):
        raise InputError(
            f"reservation {request.reservation_id}: id from 0, width from 1 to {MAX_WIDTH}, "
            f"length_ms from 1 and start_ms up to {MAX_TIME_MS}"
        )


class ReservationCancelled(msgspec.Struct, frozen=True, tag="ReservationCancelled", gc=False):
    """A user gives a reservation back, before it begins or while it lasts."""

    reservation_id: int


AskState = Literal["waiting", "ready", "over", "refused", "cancelled"]


class AskSeen(msgspec.Struct, frozen=True, gc=False):
    """What has become of the nodes that a batch system was asked for on behalf of a job."""

    job_id: int
    ask: int  # the number under which it was asked
    # ``ready``: all nodes are there, and wait for the job; ``over``: they were given back, lost, or never came;
    # ``refused``: the batch system will never give them; ``cancelled``: somebody cancelled that there.
    state: AskState
    start_ms: int | None = None  # when they are expected, as the batch system says
    reason: str = ""
    # Whether it has looked at what waits, and has not given it its nodes; before that nothing is known of the start.
    is_put_off: bool = False


class BatchSeen(msgspec.Struct, frozen=True, tag="BatchSeen", gc=False):
    """The batch system that the nodes belong to has been looked at."""

    nodes: int  # that run jobs, or could
    longest_ms: int | None  # the longest time for which nodes are given; None: any
    free_from: tuple[tuple[int, int], ...]  # from when on how many nodes nobody has, as is expected now; by the instant
    asks: tuple[AskSeen, ...] = ()
    problem: str = ""  # why it does not answer; empty if it does


class ExperienceEdited(msgspec.Struct, frozen=True, tag="ExperienceEdited", gc=False):
    """An operator knows better how long jobs take."""

    times: tuple[KnownTimes, ...]  # in place of those of the same kind; those of 0 runs are forgotten


Event = (
    JobSubmitted
    | JobFinished
    | JobCancelled
    | ReservationRequested
    | ReservationCancelled
    | BatchSeen
    | ExperienceEdited
)


class StartJob(msgspec.Struct, frozen=True, tag="StartJob", gc=False, repr_omit_defaults=True):
    """Start a job, now, on these nodes."""

    job_id: int
    # Where jobs have parts of nodes, a node stands here once for each task on it.
    nodes: NodeIntervals
    # The hardware threads that it has, counted through node by node, where nodes are shared; empty if all are its.
    threads: NodeIntervals = ()


class ChangeRate(msgspec.Struct, frozen=True, tag="ChangeRate", gc=False):
    """Expect a running job to go on at another rate, as who shares its nodes has changed."""

    job_id: int
    rate: int  # in units of `gridweave.site.kernels.work.RATE_ONE`; that is also the rate at which every job starts


class MoveJob(msgspec.Struct, frozen=True, tag="MoveJob", gc=False):
    """Move a running job to other nodes: what it has done is saved, and it goes on there."""

    job_id: int
    nodes: NodeIntervals
    threads: NodeIntervals


class EvictJob(msgspec.Struct, frozen=True, tag="EvictJob", gc=False):
    """Take a running job off its nodes, now; it is back in the queue, and starts again later."""

    job_id: int
    keeps_work: bool  # whether it goes on from where it was, or begins from zero
    by: int  # the job that has its nodes, or some of them
    reason: str  # why, in one line


class RequeueJob(msgspec.Struct, frozen=True, tag="RequeueJob", gc=False):
    """Have a running job save what it has done and end; when that is reported it is lost, and runs again."""

    job_id: int
    reason: str


class KillJob(msgspec.Struct, frozen=True, tag="KillJob", gc=False, repr_omit_defaults=True):
    """End a running job; its nodes are free when it is reported as finished."""

    job_id: int
    reason: str
    at_once: bool = False  # whether it gets no time to end by itself


class OpenFragment(msgspec.Struct, frozen=True, tag="OpenFragment", gc=False):
    """Let the ranks of a fragment begin, which wait at their gate."""

    job_id: int


class RefuseJob(msgspec.Struct, frozen=True, tag="RefuseJob", gc=False):
    """Tell the user that the site does not run a job, and why."""

    job_id: int
    reason: str
    is_final: bool = False  # the job can never run here as it is


class AcceptReservation(msgspec.Struct, frozen=True, tag="AcceptReservation", gc=False):
    """Tell the user that the nodes are reserved."""

    reservation_id: int


class RefuseReservation(msgspec.Struct, frozen=True, tag="RefuseReservation", gc=False):
    """Tell the user that the nodes are not free then, and when they are (``None``: never, and why)."""

    reservation_id: int
    reason: str
    earliest_start_ms: int | None = None


class OpenReservation(msgspec.Struct, frozen=True, tag="OpenReservation", gc=False):
    """Hand these nodes to the holder of a reservation, now."""

    reservation_id: int
    nodes: NodeIntervals


class CloseReservation(msgspec.Struct, frozen=True, tag="CloseReservation", gc=False):
    """Take the nodes of a reservation back, now."""

    reservation_id: int


Command = (
    StartJob
    | ChangeRate
    | MoveJob
    | KillJob
    | RefuseJob
    | OpenFragment
    | EvictJob
    | RequeueJob
    | AcceptReservation
    | RefuseReservation
    | OpenReservation
    | CloseReservation
)


class OfAttempt(msgspec.Struct, frozen=True, gc=False):
    """What is said of an attempt of a job of the grid."""

    job_id: int
    attempt: int


class RequestQuote(msgspec.Struct, frozen=True, tag="RequestQuote", gc=False):
    """Ask when these nodes could be had for so long, if asked for now."""

    quote_id: int
    width: int
    length_ms: int
    # What the job needs beside nodes: a site whose nodes are shared then says whether it could share some.
    resources: Resources | None = None
    job_id: int | None = None  # for which job
    user: str = ""  # whose job; who knows names fills that in
    # The job itself, for which the site then says how long it expects it to take, and when its nodes come free.
    job: Job | None = None
    wants_ready: bool = True  # whether, if it has the job, it is to say when its nodes come free
    assumed: Resources | None = None  # as in `Job`


class ReserveNodes(OfAttempt, frozen=True, tag="ReserveNodes", gc=False, repr_omit_defaults=True):
    """Ask for nodes for a fragment of a job, now or never."""

    width: int  # nodes of the fragment
    length_ms: int  # how long it will run at most, from its start on
    # The agreed start. Until then the nodes wait to be committed; their lease ends with that instant. None: it is the
    # only fragment, so nothing is to be agreed on: it starts as soon as it is granted.
    start_ms: int | None = None
    # What else a site's queue goes by, of a job of which the site has been told; the grid leaves it out.
    job: Job | None = None
    evictions: int = 0  # how often the job has been evicted
    # Not now or never: the fragment waits in the queue of the site, and keeps the nodes that it gets there until all
    # other sites have theirs. ``start_ms`` is when that lease ends, if it is not renewed.
    ahead: bool = False
    # Now, on nodes that others use, if the job takes at most so many times as long as alone; None: on nodes of its own.
    beside: float | None = None


class CommitNodes(OfAttempt, frozen=True, tag="CommitNodes", gc=False, repr_omit_defaults=True):
    """Start the fragment at the agreed instant: all sites have reserved their nodes."""

    rendezvous: str = ""  # where the ranks of a live job find each other, as in `Launch`
    start_ms: int | None = None  # the agreed instant, of nodes that were reserved ahead


class ReleaseNodes(OfAttempt, frozen=True, tag="ReleaseNodes", gc=False):
    """Give the nodes back: some other site did not grant its part."""


class EnqueueJob(msgspec.Struct, frozen=True, tag="EnqueueJob", gc=False):
    """Delegate a job to the site's own queue."""

    job: Job
    attempt: int
    # If the job still waits after that instant, and the lease has not been renewed, the site withdraws it by itself.
    lease_until_ms: int


class WithdrawJob(OfAttempt, frozen=True, tag="WithdrawJob", gc=False):
    """Take a delegated job back if it still waits; if it has started, the site has said so already."""


class CancelJob(OfAttempt, frozen=True, tag="CancelJob", gc=False):
    """End whatever the site has of a job: a wait, reserved nodes, or a run."""


class RenewLeases(msgspec.Struct, frozen=True, tag="RenewLeases", gc=False):
    """Let the delegated jobs wait on, until this instant at least."""

    until_ms: int


class DrainSite(msgspec.Struct, frozen=True, tag="DrainSite", gc=False):
    """Take in nothing new for the grid until told otherwise; what runs or waits goes on."""


class ResumeSite(msgspec.Struct, frozen=True, tag="ResumeSite", gc=False):
    """Take in jobs of the grid again."""


Request = (
    RequestQuote
    | ReserveNodes
    | CommitNodes
    | ReleaseNodes
    | EnqueueJob
    | WithdrawJob
    | CancelJob
    | RenewLeases
    | DrainSite
    | ResumeSite
)


Cause = Literal["", "user", "job", "never"]
"""Of a refusal: ``user`` if the site takes no job of that user, and ``never`` if it can never run this job, neither of
which any wait changes; ``job`` if it had taken the job and will not have it after all, as its batch system cancels it;
otherwise what it has now."""


class Quoted(msgspec.Struct, frozen=True, tag="Quoted", gc=False):
    """When the nodes could be had."""

    quote_id: int
    free: int  # nodes that the grid may have now, one node each for this length
    start_ms: int | None  # the earliest start, by estimates; None if there is none, for the given reason
    reason: str = ""
    # The job could start now on nodes that others use, and would take so many times as long.
    slowdown: float | None = None
    cause: Cause = ""  # of a refusal
    takes_parts: bool = True  # of a job on several sites
    # Nodes for this length that the site has asked its batch system for, and that nothing which waits there needs; and
    # when the last of them is expected.
    coming: int = 0
    coming_ms: int | None = None
    # Only if the job itself was told: how long it is expected to take from its start on, on how many nodes. And if that
    # is wanted: from when on how many nodes have nothing to run, by the instant; and how many jobs wait there that are
    # not the grid's.
    length_ms: int | None = None
    nodes: int | None = None
    ready: tuple[tuple[int, int], ...] = ()
    queued: int = 0
    evicts: bool = False  # whether it would start now on nodes of jobs that are evicted for it
    beside: tuple[int, ...] = ()  # which jobs are on the nodes that it could share


class Reserved(OfAttempt, frozen=True, tag="Reserved", gc=False, repr_omit_defaults=True):
    """The nodes are reserved, until the agreed start at most."""

    # Where the ranks of a live job could find each other (as in `Launch`), if the first of them is here.
    rendezvous: str = ""


class Refused(OfAttempt, frozen=True, tag="Refused", gc=False):
    """The site has not taken in a fragment or a job, and why."""

    reason: str
    cause: Cause = ""


class LeaseEnded(OfAttempt, frozen=True, tag="LeaseEnded", gc=False, repr_omit_defaults=True):
    """Reserved nodes were released, or not committed in time, or others have them; the job does not."""

    evicted: str = ""  # for which job, and why, if others were given the nodes


class Enqueued(OfAttempt, frozen=True, tag="Enqueued", gc=False, repr_omit_defaults=True):
    """A delegated job waits in the site's queue: it did not start at once; said again when it is to start later still.

    Where a batch system gives the nodes, that is known when it has looked at the job.
    """

    start_ms: int | None = None  # when it is expected to start, if the site knows that already


class Withdrawn(OfAttempt, frozen=True, tag="Withdrawn", gc=False):
    """A delegated job waits here no longer: it was taken back, cancelled, or its lease has ended."""


class Started(OfAttempt, frozen=True, tag="Started", gc=False):
    """A fragment, or a delegated job, has started."""

    start_ms: int


class Ended(OfAttempt, frozen=True, tag="Ended", gc=False, repr_omit_defaults=True):
    """A fragment, or a delegated job, has left its nodes."""

    end_ms: int
    # ``finished`` by itself; ``failed``: by itself, and its program says that it went wrong; ``limit``: killed at its
    # limit; ``cancelled``; ``unmet``: its other fragments did not come; ``lost``: the site failed, or it was evicted.
    outcome: str
    evicted: str = ""  # for which job, and why, if others were given its nodes


class TakesUsers(msgspec.Struct, frozen=True, tag="TakesUsers"):
    """The site takes jobs of these users from now on, whoever asks it."""

    users: TakenUsers


class SiteChanged(msgspec.Struct, frozen=True, tag="SiteChanged", gc=False):
    """What the grid may have of the site has changed by what is not the grid's."""

    # Of the nodes that the owner lets the grid have, those that it cannot have now even if it held none; below 0 where
    # jobs of the grid share nodes, and so take fewer than they are wide.
    others: int
    free: int  # nodes that a job of the grid may have now
    closed: str = ""  # why the site takes in nothing new for the grid, as it is drained; empty if it does
    longest_ms: int | None = None  # the longest estimate of a job that it can ever run; None: any


class RunsLate(OfAttempt, frozen=True, tag="RunsLate", gc=False):
    """A fragment still runs at its end by estimate, as something slows it; said again whenever its rate changes."""

    left: int  # of its work by its estimate (`gridweave.site.kernels.work`), as of ``since_ms``
    rate: int  # at which it has been done since then, in units of `gridweave.site.kernels.work.RATE_ONE`
    since_ms: int


Answer = Quoted | Reserved | Refused | LeaseEnded | Enqueued | Withdrawn | Started | Ended | SiteChanged | RunsLate


class ToGrid(msgspec.Struct, frozen=True, tag="ToGrid", gc=False):
    """Send an answer to the meta-scheduler."""

    answer: Answer


class SiteShut(msgspec.Struct, frozen=True, tag="SiteShut", gc=False):
    """The site can start nothing for now: it takes in nothing new for the grid until `SiteOpened`."""

    reason: str  # in one line; the grid is told it


class SiteOpened(msgspec.Struct, frozen=True, tag="SiteOpened", gc=False):
    """The site can start jobs again."""


class FragmentReady(OfAttempt, frozen=True, tag="FragmentReady", gc=False):
    """All ranks of a fragment wait at their gate, on all machines of the site."""


class OpenGate(OfAttempt, frozen=True, tag="OpenGate", gc=False):
    """Let the ranks of a fragment begin: those of all others are ready, too."""

    by_ms: int  # later than that the others have given up


class FragmentOpened(OfAttempt, frozen=True, tag="FragmentOpened", gc=False):
    """All ranks of a fragment have begun."""


class FragmentEnding(OfAttempt, frozen=True, tag="FragmentEnding", gc=False):
    """A fragment has reached its limit: its ranks were told to end, and have their time for that."""


class NodesShared(OfAttempt, frozen=True, tag="NodesShared"):
    """Others have come to the nodes of a job that shares them, or have left; said once more when it has ended."""

    sharing: NodeSharing


class FragmentsMet(OfAttempt, frozen=True, tag="FragmentsMet", gc=False):
    """All fragments of a job have started and found each other; now it runs."""


class KillFragment(OfAttempt, frozen=True, tag="KillFragment", gc=False):
    """End the ranks of a fragment at once, without the time that they have otherwise; it is cancelled, too."""


class SignalFragment(OfAttempt, frozen=True, tag="SignalFragment", gc=False):
    """Send the ranks of a fragment a signal, if they run."""

    signal: SignalName


class RequeueFragment(OfAttempt, frozen=True, tag="RequeueFragment", gc=False):
    """Have the ranks of a fragment save what they have done and end; it is lost, so that the job runs again."""

    reason: str  # in one line


class RateMeasured(OfAttempt, frozen=True, tag="RateMeasured", gc=False):
    """The fragments of a job go on at another rate: what they send has other links, or more company there."""

    rate: int  # in units of `gridweave.site.kernels.work.RATE_ONE`; 0 if they stand still
    # Of its work by its estimate, where that is not what was left of it at the rates told so far: it has gone on to
    # something else, as from fetching data to working.
    left: int | None = None


class SiteRestarted(msgspec.Struct, frozen=True, tag="SiteRestarted", gc=False):
    """The site has failed and come back: what ran is lost, what waited still waits."""


LOCAL = "127.0.0.1"
"""By which a machine is reached that has not said how."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of a site.

    Raises
    ------
    OptionError
        If a value makes no sense.
    """

    name: str  # unique within the site
    nodes: int  # how many nodes of the site it is, >= 1
    ports: tuple[int, int] = (0, 0)  # half-open range of ports at which the ranks of jobs may meet; empty: none

    def __post_init__(self) -> None:
        if not self.name:
            raise OptionError("name", "of a machine is empty; give it a name")
        if self.nodes < 1:
            raise OptionError("nodes", f"is {self.nodes} of machine {self.name}; a whole number from 1 up")
        low, high = self.ports
        if not (low == high == 0 or 1 <= low <= high <= 65536):
            raise OptionError("ports", f"is {self.ports} of machine {self.name}; two ports from 1 to 65536, ascending")


class UserSubmitted(msgspec.Struct, frozen=True, tag="UserSubmitted"):
    """A user has handed in a job, to a site or to the grid."""

    key: str
    request: JobRequest
    origin: str = ""  # who asked, and with which request; it is told in the story
    past: tuple[Past, ...] = ()  # what the journal knows of the jobs that it waits for and that are over


class Wish(msgspec.Struct, frozen=True, tag="Wish"):
    """A user wants something of jobs: of a site's own, or of the grid's."""

    kind: WishKind  # see `WishKind`
    job_ids: tuple[int, ...]
    origin: str = ""  # who asked, and with which request; it is told in the stories
    signal: SignalName | None = None  # which one, if it is to be sent one

    @property
    def why_requeued(self) -> str:
        """Why a job is begun anew that somebody wants requeued, for its story."""
        return "requeued by wish" + (f", by {self.origin}" if self.origin else "")


class OfRun(msgspec.Struct, frozen=True):
    """What a site and a machine tell each other of what the machine has of an attempt of a job."""

    machine: str
    job_id: int
    attempt: int


class RunReady(OfRun, frozen=True, tag="RunReady"):
    """The ranks of a machine's part of a job wait at their gate."""


class RunStarted(OfRun, frozen=True, tag="RunStarted"):
    """A machine runs its part of a job."""


class RunEnded(OfRun, frozen=True, tag="RunEnded"):
    """A machine runs nothing of a job any more."""

    outcome: Outcome  # ``lost``: nobody knows how that came
    reason: str = ""
    ranks: tuple[RankReport, ...] = ()
    used: Used = Used()
    has_run: bool = True  # whether it may have run; if not, it certainly has not
    elements: tuple[Element, ...] = ()  # of a packed array: those that ended
    interrupted: tuple[int, ...] = ()  # ... and those that were begun, and did not end
    ran_ms: Ran = None  # from when to when its processes ran; None if none did, or nobody knows


class RunDelayed(OfRun, frozen=True, tag="RunDelayed"):
    """A machine cannot start its part of a job now; what it is asked again once it has room it starts."""

    reason: str


class MachineReady(msgspec.Struct, frozen=True, tag="MachineReady"):
    """A machine that could not start anything can again."""

    machine: str


class MachineJoined(msgspec.Struct, frozen=True, tag="MachineJoined"):
    """A machine is there, for the first time or again; it is asked what it still knows (`ConfirmRun`)."""

    machine: str
    host: str  # by which other machines reach it
    users: TakenUsers = ANYONE  # of whom it starts jobs
    secret: str = ""  # from which follow the keys of the jobs whose ranks meet there; empty: they have none


class MachineTakes(msgspec.Struct, frozen=True, tag="MachineTakes"):
    """A machine starts jobs of these users from now on."""

    machine: str
    users: TakenUsers


class MachineForgotten(msgspec.Struct, frozen=True, tag="MachineForgotten"):
    """The operator says that a machine will not come back: what it ran is lost."""

    machine: str


class Probed(msgspec.Struct, frozen=True, tag="Probed"):
    """A site has measured the way to another."""

    origin: str
    target: str
    at_ms: int
    round_trips_ms: tuple[float, ...]
    # 0 if that was not measured.
    there_bps: float = 0.0
    back_bps: float = 0.0


LiveSiteEvent = (
    Request
    | DescribeJob
    | OpenGate
    | FragmentsMet
    | KillFragment
    | SignalFragment
    | RequeueFragment
    | UserSubmitted
    | Wish
    | RunReady
    | RunStarted
    | RunEnded
    | RunDelayed
    | MachineReady
    | MachineJoined
    | MachineTakes
    | MachineForgotten
    | MaximaSet
    | BatchSeen
    | ExperienceEdited
    | SettingsChanged
)
"""What a live site is told."""

GridMessage = Request | DescribeJob | OpenGate | FragmentsMet | KillFragment | SignalFragment | RequeueFragment
"""What the grid tells a site."""

SiteMessage = Answer | FragmentReport | FragmentReady | FragmentOpened | FragmentEnding | TakesUsers | NodesShared
"""What a site tells the grid."""


class StartRun(msgspec.Struct, frozen=True, tag="StartRun"):
    """Have a machine run its part of a job; all times are the site's."""

    machine: str
    launch: Launch  # the hardware threads of its ranks are counted from 0 on each node
    slots: tuple[int, ...]  # the node of that machine, from 0, that each rank runs on


class ConfirmRun(OfRun, frozen=True, tag="ConfirmRun"):
    """Have a machine that was away say that it runs its part of a job, or that it knows nothing of it any more."""


class EndRun(OfRun, frozen=True, tag="EndRun", repr_omit_defaults=True):
    """Have a machine end its part of a job."""

    reason: str
    at_once: bool = False  # whether its ranks get no time to end by themselves
    saves: bool = False  # whether they are sent the signal at which they save what they have done, in place of TERM


class OpenRun(OfRun, frozen=True, tag="OpenRun"):
    """Have a machine let the ranks of its part of a job begin, which wait at their gate."""


class KeepRun(OfRun, frozen=True, tag="KeepRun"):
    """Have a machine not end its part of a job for being alone: the grid is being told that all of this site runs."""


class PaceRun(OfRun, frozen=True, tag="PaceRun", repr_omit_defaults=True):
    """Have a machine let its part of a job stand still, or go on."""

    runs: bool
    at_ms: int = 0  # at which instant, the same for all machines of the job; one that has passed is now
    speed: float = 1.0  # at which part of its full speed it works while it runs


class SignalRun(OfRun, frozen=True, tag="SignalRun"):
    """Have a machine send the ranks of its part of a job a signal; one that is away then sends none."""

    signal: SignalName


class LookForRoom(msgspec.Struct, frozen=True, tag="LookForRoom"):
    """Have a machine that could not start anything say so when it can."""

    machine: str


class TellGrid(msgspec.Struct, frozen=True, tag="TellGrid"):
    """Send a message to the meta-scheduler."""

    message: SiteMessage


LiveSiteCommand = (
    StartRun
    | OpenRun
    | KeepRun
    | EndRun
    | SignalRun
    | TellGrid
    | Accepted
    | Declined
    | Noted
    | RecordUsage
    | RecordEnded
)

Order = StartRun | OpenRun | KeepRun | ConfirmRun | EndRun | PaceRun | SignalRun | LookForRoom
"""What a site tells a machine."""

Report = RunReady | RunStarted | RunEnded | RunDelayed | MachineReady | MachineJoined | MachineTakes
"""What a machine tells its site."""


ENCODER = msgspec.msgpack.Encoder()
ORDERS: msgspec.msgpack.Decoder[list[Order]] = msgspec.msgpack.Decoder(list[Order])
REPORTS: msgspec.msgpack.Decoder[list[Report]] = msgspec.msgpack.Decoder(list[Report])

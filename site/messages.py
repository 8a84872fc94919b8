"""Define the messages of a site: events and reports in the past tense, commands and requests in the imperative.

The first part has the events and commands of the scheduler. The second part is the site contract: the requests of a
meta-scheduler to a site with any discipline, and the answers. Requests and answers arrive in order and exactly once
(`gridweave.site.channel`). When the grid places a job again, it increments the attempt number, so a late message about
an earlier attempt never affects the current one. The rules are in docs/contract.md.

The last part has the further messages of a live site, and those between the site and its machines, with their encoding.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gridweave.errors import InputError, OptionError
from gridweave.settings import SettingsChanged
from gridweave.site.array_tasks import ArrayTask
from gridweave.site.eligibility import Past
from gridweave.site.job import (
    MAX_ID,
    MAX_TIME_MS,
    MAX_WIDTH,
    Accepted,
    ActionKind,
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
)
from gridweave.site.launch import ANYONE, AcceptedUsers, Launch, NodeSharing, Outcome, Ran, RankReport, Used
from gridweave.site.quotas import QuotasChanged

# No message contains a reference cycle, so the garbage collector can skip them (``gc=False``).


class JobSubmitted(msgspec.Struct, frozen=True, tag="JobSubmitted", gc=False):
    """A user, or the grid, has submitted a job to this site."""

    job: Job
    # whether to refuse the job, rather than queue it, if it cannot start in this scheduling pass
    now_or_never: bool = False


class JobFinished(msgspec.Struct, frozen=True, tag="JobFinished", gc=False):
    """A job has left its nodes, because it ended or was killed."""

    job_id: int
    succeeded: bool = True  # False if it was killed, failed or was lost
    ended_ms: int | None = None  # when its processes ended, perhaps long ago; None: now


class JobCancelled(msgspec.Struct, frozen=True, tag="JobCancelled", gc=False):
    """A user has cancelled a waiting or running job."""

    job_id: int


class ReservationRequested(msgspec.Struct, frozen=True, tag="ReservationRequested", gc=False):
    """A user has requested nodes at a fixed time (Streit, section 3.1: a Fix-Time request)."""

    reservation_id: int
    start_ms: int
    length_ms: int
    width: int


def check_reservation(request: ReservationRequested) -> None:
    """Raise InputError if a reservation request is invalid."""
    if not (
        0 <= request.reservation_id <= MAX_ID
        and 1 <= request.width <= MAX_WIDTH
        and 1 <= request.length_ms <= MAX_TIME_MS
        and abs(request.start_ms) <= MAX_TIME_MS
    ):
        raise InputError(
            f"reservation {request.reservation_id}: expected an id from 0, a width from 1 to {MAX_WIDTH}, "
            f"length_ms from 1 and start_ms up to {MAX_TIME_MS}"
        )


class ReservationCancelled(msgspec.Struct, frozen=True, tag="ReservationCancelled", gc=False):
    """A user has cancelled a reservation, before its start or while it lasts."""

    reservation_id: int


AskState = Literal["waiting", "ready", "over", "refused", "cancelled"]


class RequestStatus(msgspec.Struct, frozen=True, gc=False):
    """The state of the request that a site made to its batch system for the nodes of a job."""

    job_id: int
    ask: int  # the number of the request
    # ``ready``: all nodes are available and wait for the job; ``over``: the nodes were returned or lost, or never came;
    # ``refused``: the batch system will never provide them; ``cancelled``: somebody cancelled the request in the batch
    # system.
    state: AskState
    start_ms: int | None = None  # when the batch system expects to provide the nodes
    reason: str = ""
    # Whether the batch system has considered the request and given it no nodes yet; before that, its start is unknown.
    is_put_off: bool = False


class BatchSnapshot(msgspec.Struct, frozen=True, tag="BatchSeen", gc=False):
    """The state of the batch system has been read."""

    nodes: int  # nodes in service
    longest_ms: int | None  # the batch system's longest wall time limit; None: no limit
    free_from: tuple[tuple[int, int], ...]  # (instant, number of nodes expected to be free from then on), ascending
    asks: tuple[RequestStatus, ...] = ()
    problem: str = ""  # why the batch system does not answer; empty if it does


class DisciplineEdited(msgspec.Struct, frozen=True, tag="ExperienceEdited"):
    """An operator has edited what the discipline has learned."""

    # Plain data that only the discipline understands (`Discipline.edit`). Journals have it as ``times``.
    changes: Any = msgspec.field(name="times")


DirectEvent = BatchSnapshot | DisciplineEdited
"""Events that are not part of the contract: `ContractCore` passes them to the nodes or the discipline unread."""

Event = JobSubmitted | JobFinished | JobCancelled | ReservationRequested | ReservationCancelled | DirectEvent
"""The events of a `SiteCore`."""


class StartJob(msgspec.Struct, frozen=True, tag="StartJob", gc=False, repr_omit_defaults=True):
    """Start a job on these nodes now."""

    job_id: int
    # Where jobs get fractions of nodes, a node is listed once for each task on it.
    nodes: NodeIntervals
    # The job's hardware threads, numbered across its nodes, where nodes are shared; empty: all threads of its nodes.
    threads: NodeIntervals = ()


class ChangeRate(msgspec.Struct, frozen=True, tag="ChangeRate", gc=False):
    """Expect a running job to progress at another rate, because the jobs on its nodes have changed."""

    job_id: int
    rate: int  # in units of `gridweave.site.kernels.work.RATE_ONE`, the rate of every job at its start


class MoveJob(msgspec.Struct, frozen=True, tag="MoveJob", gc=False):
    """Move a running job to other nodes, where it continues from its checkpoint."""

    job_id: int
    nodes: NodeIntervals
    threads: NodeIntervals


class EvictJob(msgspec.Struct, frozen=True, tag="EvictJob", gc=False):
    """Remove a running job from its nodes now and put it back in the queue."""

    job_id: int
    keeps_work: bool  # whether it continues from its checkpoint; otherwise it starts again from zero
    by: int  # the job that gets some or all of its nodes
    reason: str  # in one line


class RequeueJob(msgspec.Struct, frozen=True, tag="RequeueJob", gc=False):
    """Have a running job write a checkpoint and end; its end is then reported as lost, and it runs again."""

    job_id: int
    reason: str


class KillJob(msgspec.Struct, frozen=True, tag="KillJob", gc=False, repr_omit_defaults=True):
    """End a running job; its nodes are free when its end is reported."""

    job_id: int
    reason: str
    at_once: bool = False  # whether to skip the grace period


class OpenFragment(msgspec.Struct, frozen=True, tag="OpenFragment", gc=False):
    """Let the ranks of a fragment, which wait at their gate, start."""

    job_id: int


class RefuseJob(msgspec.Struct, frozen=True, tag="RefuseJob", gc=False):
    """Notify the user that the site does not run a job, and why."""

    job_id: int
    reason: str
    is_final: bool = False  # whether the job can never run here as submitted


class AcceptReservation(msgspec.Struct, frozen=True, tag="AcceptReservation", gc=False):
    """Notify the user that the nodes are reserved."""

    reservation_id: int


class RefuseReservation(msgspec.Struct, frozen=True, tag="RefuseReservation", gc=False):
    """Notify the user that the nodes are not free at that time, and when they are; ``None``: never."""

    reservation_id: int
    reason: str
    earliest_start_ms: int | None = None


class OpenReservation(msgspec.Struct, frozen=True, tag="OpenReservation", gc=False):
    """Give these nodes to the holder of a reservation now."""

    reservation_id: int
    nodes: NodeIntervals


class CloseReservation(msgspec.Struct, frozen=True, tag="CloseReservation", gc=False):
    """Take back the nodes of a reservation now."""

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
    """Base of the messages about one attempt of a grid job."""

    job_id: int
    attempt: int


class RequestQuote(msgspec.Struct, frozen=True, tag="RequestQuote", gc=False):
    """Ask for the earliest start of ``width`` nodes for ``length_ms``, if requested now."""

    quote_id: int
    width: int
    length_ms: int
    # The job's needs on its nodes; a site whose nodes are shared then answers whether the job could share some.
    resources: Resources | None = None
    job_id: int | None = None
    user: str = ""  # the job's user; filled in where user names are available
    # The job itself; the answer then has its expected run time, and the times at which nodes become free.
    job: Job | None = None
    wants_ready: bool = True  # whether the answer to a request with a job includes the times at which nodes become free
    assumed: Resources | None = None  # see `Job`


class ReserveNodes(OfAttempt, frozen=True, tag="ReserveNodes", gc=False, repr_omit_defaults=True):
    """Ask for the nodes of a fragment of a job; refused if they are not free now."""

    width: int  # number of nodes of the fragment
    length_ms: int  # wall time limit, from the start of the fragment
    # The agreed start, at which the lease ends unless the nodes were committed. None: this is the only fragment, so no
    # start has to be agreed on, and it starts as soon as it is granted.
    start_ms: int | None = None
    # The job itself, if the site needs more than its width. If the grid omits it, a live site adds it from the job's
    # description.
    job: Job | None = None
    evictions: int = 0  # number of earlier evictions of the job
    # Whether the fragment may wait in the site's queue. It then keeps the nodes that it gets until all other sites have
    # theirs; ``start_ms`` is the end of that lease, unless it is renewed.
    ahead: bool = False
    # Start now on nodes of other jobs if the slowdown is at most this factor; None: use free nodes only.
    beside: float | None = None


class CommitNodes(OfAttempt, frozen=True, tag="CommitNodes", gc=False, repr_omit_defaults=True):
    """Start the fragment at the agreed time; all sites have reserved their nodes."""

    rendezvous: str = ""  # where the ranks of a live job connect to each other; see `Launch`
    start_ms: int | None = None  # the agreed start, if the nodes were reserved ahead


class ReleaseNodes(OfAttempt, frozen=True, tag="ReleaseNodes", gc=False):
    """Release the reserved nodes; another site did not grant its fragment."""


class EnqueueJob(msgspec.Struct, frozen=True, tag="EnqueueJob", gc=False):
    """Delegate a job to the site's own queue."""

    job: Job
    attempt: int
    # The site withdraws the job if it still waits after this instant and the lease was not renewed.
    lease_until_ms: int


class WithdrawJob(OfAttempt, frozen=True, tag="WithdrawJob", gc=False):
    """Remove a delegated job from the site's queue; no effect if the job has already started."""


class CancelJob(OfAttempt, frozen=True, tag="CancelJob", gc=False):
    """Cancel a job at this site, whether it waits, has reserved nodes, or runs."""


class RenewLeases(msgspec.Struct, frozen=True, tag="RenewLeases", gc=False):
    """Extend the leases of the waiting delegated jobs to this instant at least."""

    until_ms: int


class DrainSite(msgspec.Struct, frozen=True, tag="DrainSite", gc=False):
    """Accept no new jobs from the grid until `ResumeSite`; waiting and running jobs are not affected."""


class ResumeSite(msgspec.Struct, frozen=True, tag="ResumeSite", gc=False):
    """Accept jobs from the grid again."""


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
"""Cause of a refusal.

``user``: the site accepts no job of that user; ``never``: the site can never run this job; ``job``: the site had
accepted the job and gives it up, because its batch system cancelled it. Empty: the current load or state of the site,
which can change.
"""


class Quoted(msgspec.Struct, frozen=True, tag="Quoted", gc=False):
    """The answer to `RequestQuote`."""

    quote_id: int
    free: int  # nodes that the grid can have now for this length
    start_ms: int | None  # the earliest start by estimates; None: no start, because of ``reason``
    reason: str = ""
    # On nodes of other jobs: the time from now until the job ends, in multiples of its length; None: it cannot share.
    slowdown: float | None = None
    cause: Cause = ""
    takes_parts: bool = True  # whether the site accepts fragments of multi-site jobs
    # Nodes for this length that the site has requested from its batch system and that no waiting job there needs, and
    # when the last of them is expected.
    coming: int = 0
    coming_ms: int | None = None
    # Only for a request with a job: its expected run time, its number of nodes, the (instant, number of nodes) pairs at
    # which nodes become idle if ``wants_ready``, and how many jobs of the site's own users wait.
    length_ms: int | None = None
    nodes: int | None = None
    ready: tuple[tuple[int, int], ...] = ()
    queued: int = 0
    evicts: bool = False  # whether it would start now by evicting other jobs
    beside: tuple[int, ...] = ()  # the jobs on the nodes that it could share
    shared_ms: int | None = None  # when it would start on nodes of other jobs; None: now


class Reserved(OfAttempt, frozen=True, tag="Reserved", gc=False, repr_omit_defaults=True):
    """The nodes are reserved, at most until the agreed start."""

    # Where the ranks of a live job can connect to each other (see `Launch`), if the first rank is at this site.
    rendezvous: str = ""


class Refused(OfAttempt, frozen=True, tag="Refused", gc=False):
    """The site has refused a fragment or a job."""

    reason: str
    cause: Cause = ""


class LeaseEnded(OfAttempt, frozen=True, tag="LeaseEnded", gc=False, repr_omit_defaults=True):
    """Reserved nodes were released, not committed in time, or given to another job; the fragment ends."""

    evicted: str = ""  # for an eviction: which job gets the nodes, and why


class Enqueued(OfAttempt, frozen=True, tag="Enqueued", gc=False, repr_omit_defaults=True):
    """A delegated job did not start at once and waits in the site's queue; sent again if its start moves later.

    If a batch system provides the nodes, the expected start is known only after the batch system has considered the
    job.
    """

    start_ms: int | None = None  # the expected start, if already known


class Withdrawn(OfAttempt, frozen=True, tag="Withdrawn", gc=False):
    """A delegated job was withdrawn or cancelled, or its lease has ended; it does not wait here any more."""


class Started(OfAttempt, frozen=True, tag="Started", gc=False):
    """A fragment or a delegated job has started."""

    start_ms: int


class Ended(OfAttempt, frozen=True, tag="Ended", gc=False, repr_omit_defaults=True):
    """A fragment or a delegated job has left its nodes."""

    end_ms: int
    # ``finished``; ``failed``: the program reported an error; ``limit``: killed at its limit; ``cancelled``; ``unmet``:
    # the other fragments did not start; ``lost``: the site failed, or the job was evicted.
    outcome: str
    evicted: str = ""  # for an eviction: which job gets the nodes, and why


class TakesUsers(msgspec.Struct, frozen=True, tag="TakesUsers"):
    """The set of users whose jobs the site accepts has changed."""

    users: AcceptedUsers


class SiteChanged(msgspec.Struct, frozen=True, tag="SiteChanged", gc=False):
    """The capacity that the grid can use at the site has changed, for a reason other than the grid's own jobs."""

    # How many nodes of the grid's share are unavailable even if the grid used none. Negative where grid jobs share
    # nodes and so occupy fewer nodes than the sum of their widths.
    others: int
    free: int  # nodes that a grid job can have now
    closed: str = ""  # why the site accepts no new grid jobs, e.g. it is drained; empty if it does
    longest_ms: int | None = None  # the longest estimate that the site accepts; None: no limit


class RunsLate(OfAttempt, frozen=True, tag="RunsLate", gc=False):
    """A fragment runs beyond its estimated end because it was slowed; sent again whenever its rate changes."""

    left: int  # remaining work by the estimate (`gridweave.site.kernels.work`) at ``since_ms``
    rate: int  # rate since then, in units of `gridweave.site.kernels.work.RATE_ONE`
    since_ms: int


Answer = Quoted | Reserved | Refused | LeaseEnded | Enqueued | Withdrawn | Started | Ended | SiteChanged | RunsLate


class ToGrid(msgspec.Struct, frozen=True, tag="ToGrid", gc=False):
    """Send an answer to the meta-scheduler."""

    answer: Answer


class SiteShut(msgspec.Struct, frozen=True, tag="SiteShut", gc=False):
    """The site cannot start jobs now; it accepts no new grid jobs until `SiteOpened`."""

    reason: str  # in one line; also sent to the grid


class SiteOpened(msgspec.Struct, frozen=True, tag="SiteOpened", gc=False):
    """The site can start jobs again."""


class FragmentReady(OfAttempt, frozen=True, tag="FragmentReady", gc=False):
    """All ranks of a fragment, on all machines of the site, wait at their gate."""


class OpenGate(OfAttempt, frozen=True, tag="OpenGate", gc=False):
    """Let the ranks of a fragment start; the ranks of all other fragments are ready, too."""

    by_ms: int  # deadline: the other fragments give up after it


class FragmentOpened(OfAttempt, frozen=True, tag="FragmentOpened", gc=False):
    """All ranks of a fragment have started to run."""


class FragmentEnding(OfAttempt, frozen=True, tag="FragmentEnding", gc=False):
    """A fragment has reached its limit; its ranks were asked to exit and are in their grace period."""


class NodesShared(OfAttempt, frozen=True, tag="NodesShared"):
    """The jobs that share nodes with this job have changed; sent a last time when the job has ended."""

    sharing: NodeSharing


class FragmentsMet(OfAttempt, frozen=True, tag="FragmentsMet", gc=False):
    """All fragments of a job have started and connected to each other; the job runs."""


class KillFragment(OfAttempt, frozen=True, tag="KillFragment", gc=False):
    """Cancel a fragment and end its ranks at once, without a grace period."""


class SignalFragment(OfAttempt, frozen=True, tag="SignalFragment", gc=False):
    """Send a signal to the ranks of a fragment, if they run."""

    signal: SignalName


class RequeueFragment(OfAttempt, frozen=True, tag="RequeueFragment", gc=False):
    """Have the ranks of a fragment write a checkpoint and exit; the fragment is then lost and the job runs again."""

    reason: str  # in one line


class RateMeasured(OfAttempt, frozen=True, tag="RateMeasured", gc=False):
    """The fragments of a job progress at another rate, because the links or their load have changed."""

    rate: int  # in units of `gridweave.site.kernels.work.RATE_ONE`; 0: no progress
    # Remaining work by the estimate, if it does not follow from the rates sent so far: the job has entered another
    # phase, e.g. from transferring data to computing.
    left: int | None = None


class SiteRestarted(msgspec.Struct, frozen=True, tag="SiteRestarted", gc=False):
    """The site has failed and restarted: running jobs are lost, waiting jobs still wait."""


LOCAL = "127.0.0.1"
"""Address of a machine that has not reported a host."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of a site.

    Raises
    ------
    OptionError
        If a value is invalid.
    """

    name: str  # unique within the site
    nodes: int  # number of the site's nodes on this machine, >= 1
    ports: tuple[int, int] = (0, 0)  # half-open range of ports for the rendezvous of ranks; empty: none

    def __post_init__(self) -> None:
        if not self.name:
            raise OptionError("name", "of a machine is empty; give it a name")
        if self.nodes < 1:
            raise OptionError("nodes", f"of machine {self.name} is {self.nodes}; expected at least 1")
        low, high = self.ports
        if not (low == high == 0 or 1 <= low <= high <= 65536):
            expected = "two ascending ports from 1 to 65536"
            raise OptionError("ports", f"of machine {self.name} is {self.ports}; expected {expected}")


class UserSubmitted(msgspec.Struct, frozen=True, tag="UserSubmitted"):
    """A user has submitted a job, to a site or to the grid."""

    key: str
    request: JobRequest
    origin: str = ""  # the user and the request, for the job's history
    past: tuple[Past, ...] = ()  # state of ended jobs that it depends on, from the journal


class JobAction(msgspec.Struct, frozen=True, tag="Wish"):
    """A user's action on jobs of a site or of the grid."""

    kind: ActionKind
    job_ids: tuple[int, ...]
    origin: str = ""  # the user and the request, for the jobs' histories
    signal: SignalName | None = None  # the signal, for the action ``signal``

    @property
    def why_requeued(self) -> str:
        """The reason for the history of a job that a user requeues."""
        return "requeued on request" + (f", by {self.origin}" if self.origin else "")


class OfRun(msgspec.Struct, frozen=True):
    """Base of the messages between a site and a machine about one attempt of a job on that machine."""

    machine: str
    job_id: int
    attempt: int


class RunReady(OfRun, frozen=True, tag="RunReady"):
    """The ranks of a job on a machine wait at their gate."""


class RunStarted(OfRun, frozen=True, tag="RunStarted"):
    """The ranks of a job on a machine have started."""


class RunEnded(OfRun, frozen=True, tag="RunEnded"):
    """No process of a job is left on a machine."""

    outcome: Outcome  # ``lost``: for an unknown reason
    reason: str = ""
    ranks: tuple[RankReport, ...] = ()
    used: Used = Used()
    has_run: bool = True  # False if it certainly never ran
    # Of a packed array: the tasks that ended.
    array_tasks: tuple[ArrayTask, ...] = msgspec.field(default=(), name="elements")
    interrupted: tuple[int, ...] = ()  # ... and the tasks that started and did not end
    ran_ms: Ran = None  # first and last instant of its processes; None: none ran, or unknown


class RunDelayed(OfRun, frozen=True, tag="RunDelayed"):
    """A machine cannot start its ranks of a job now; it starts them if asked again when it has capacity."""

    reason: str


class MachineReady(msgspec.Struct, frozen=True, tag="MachineReady"):
    """A machine that could start nothing can start jobs again."""

    machine: str


class MachineJoined(msgspec.Struct, frozen=True, tag="MachineJoined"):
    """A machine has connected or reconnected; the site then confirms the machine's runs (`ConfirmRun`)."""

    machine: str
    host: str  # its address for other machines
    users: AcceptedUsers = ANYONE  # the users whose jobs it accepts
    secret: str = ""  # source of the keys for the rendezvous of ranks on this machine; empty: no keys


class MachineTakes(msgspec.Struct, frozen=True, tag="MachineTakes"):
    """The set of users whose jobs a machine accepts has changed."""

    machine: str
    users: AcceptedUsers


class MachineForgotten(msgspec.Struct, frozen=True, tag="MachineForgotten"):
    """The operator reports that a machine will not come back; its jobs are lost."""

    machine: str


class Probed(msgspec.Struct, frozen=True, tag="Probed"):
    """A site has measured the link to another site."""

    origin: str
    target: str
    at_ms: int
    round_trips_ms: tuple[float, ...]
    # 0: not measured.
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
    | JobAction
    | RunReady
    | RunStarted
    | RunEnded
    | RunDelayed
    | MachineReady
    | MachineJoined
    | MachineTakes
    | MachineForgotten
    | QuotasChanged
    | DirectEvent
    | SettingsChanged
)
"""The events of a live site."""

GridMessage = Request | DescribeJob | OpenGate | FragmentsMet | KillFragment | SignalFragment | RequeueFragment
"""The messages from the grid to a site."""

SiteMessage = Answer | FragmentReport | FragmentReady | FragmentOpened | FragmentEnding | TakesUsers | NodesShared
"""The messages from a site to the grid."""


class StartRun(msgspec.Struct, frozen=True, tag="StartRun"):
    """Have a machine start its ranks of a job; all times are by the site's clock."""

    machine: str
    launch: Launch  # hardware threads are numbered from 0 on each node
    slots: tuple[int, ...]  # the node of each rank, numbered from 0 on the machine


class ConfirmRun(OfRun, frozen=True, tag="ConfirmRun"):
    """Have a reconnected machine report whether it still has this run."""


class EndRun(OfRun, frozen=True, tag="EndRun", repr_omit_defaults=True):
    """Have a machine end its ranks of a job."""

    reason: str
    at_once: bool = False  # whether to skip the grace period
    saves: bool = False  # whether to send the checkpoint signal in place of TERM


class OpenRun(OfRun, frozen=True, tag="OpenRun"):
    """Have a machine let its ranks of a job, which wait at their gate, start."""


class KeepRun(OfRun, frozen=True, tag="KeepRun"):
    """Have a machine keep its ranks running past ``alone_ms``: the grid is being notified that the fragment runs."""


class PaceRun(OfRun, frozen=True, tag="PaceRun", repr_omit_defaults=True):
    """Have a machine pause, resume or slow its ranks of a job."""

    runs: bool
    at_ms: int = 0  # when, the same instant on all machines of the job; in the past: now
    speed: float = 1.0  # fraction of full speed while it is not paused


class SignalRun(OfRun, frozen=True, tag="SignalRun"):
    """Have a machine send a signal to its ranks of a job; a disconnected machine never sends it."""

    signal: SignalName


class CheckCapacity(msgspec.Struct, frozen=True, tag="LookForRoom"):
    """Have a machine that could start nothing report when it can."""

    machine: str


class SendToGrid(msgspec.Struct, frozen=True, tag="TellGrid"):
    """Send a message to the meta-scheduler."""

    message: SiteMessage


LiveSiteCommand = (
    StartRun
    | OpenRun
    | KeepRun
    | EndRun
    | SignalRun
    | SendToGrid
    | Accepted
    | Declined
    | Noted
    | RecordUsage
    | RecordEnded
)

Order = StartRun | OpenRun | KeepRun | ConfirmRun | EndRun | PaceRun | SignalRun | CheckCapacity
"""The messages from a site to a machine."""

Report = RunReady | RunStarted | RunEnded | RunDelayed | MachineReady | MachineJoined | MachineTakes
"""The messages from a machine to its site."""


ENCODER = msgspec.msgpack.Encoder()
ORDERS: msgspec.msgpack.Decoder[list[Order]] = msgspec.msgpack.Decoder(list[Order])
REPORTS: msgspec.msgpack.Decoder[list[Report]] = msgspec.msgpack.Decoder(list[Report])

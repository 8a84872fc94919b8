"""Define a site's messages; events and reports have names in the past tense, commands and requests in the imperative.

The first part contains the scheduler's events and commands. The second part is the site contract: the requests that a
meta-scheduler sends to a site with any discipline, and the answers. Requests and answers arrive in order and exactly
once (`gridweave.site.channel`). When the grid places a job again, it increments the attempt number, so a late message
about an earlier attempt never affects the current one. The rules are in docs/contract.md.

The last part contains the other messages of a live site, and the messages to and from its machines with their encoding.
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
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.resources.groups import NodeGroup

# No message contains a reference cycle, so the garbage collector can skip them (``gc=False``).


class JobSubmitted(msgspec.Struct, frozen=True, tag="JobSubmitted", gc=False):
    """A user, or the grid, has submitted a job to this site."""

    job: Job
    # Whether to refuse the job instead of queueing it if it cannot start in this scheduling pass.
    now_or_never: bool = False


class JobFinished(msgspec.Struct, frozen=True, tag="JobFinished", gc=False):
    """A job has left its nodes, because it ended or was killed."""

    job_id: int
    succeeded: bool = True  # False if the job failed, was killed or was lost
    ended_ms: int | None = None  # when the job's processes ended, possibly long ago; None: now


class JobCancelled(msgspec.Struct, frozen=True, tag="JobCancelled", gc=False):
    """A user has cancelled a waiting or running job."""

    job_id: int


class ReservationRequested(msgspec.Struct, frozen=True, tag="ReservationRequested", gc=False):
    """A user has requested nodes for a fixed time (Streit, section 3.1: a Fix-Time request)."""

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
    """A user has cancelled a reservation before its start or during it."""

    reservation_id: int


AskState = Literal["waiting", "ready", "over", "refused", "cancelled"]


class RequestStatus(msgspec.Struct, frozen=True, gc=False):
    """The state of a site's request to its batch system for the nodes of a job."""

    job_id: int
    ask: int  # the number of the request
    # ``ready``: all nodes are available for the job; ``over``: the nodes were returned, lost, or never provided;
    # ``refused``: the batch system will never provide the nodes; ``cancelled``: the request was cancelled in the batch
    # system.
    state: AskState
    start_ms: int | None = None  # when the batch system expects to provide the nodes
    reason: str = ""
    # Whether the batch system has considered the request but not granted it yet; until then, its start is unknown.
    is_put_off: bool = False
    # For a ready job that asked for chunks: how many of them each of its nodes has, in the order of its ranks.
    chunks: tuple[int, ...] = ()


class BatchSnapshot(msgspec.Struct, frozen=True, tag="BatchSeen", gc=False):
    """The site has read the state of its batch system."""

    nodes: int  # nodes in service
    longest_ms: int | None  # the batch system's longest wall time limit; None: no limit
    free_from: tuple[tuple[int, int], ...]  # (time, number of nodes expected to be free from that time), ascending
    asks: tuple[RequestStatus, ...] = ()
    problem: str = ""  # why the batch system does not answer; empty if it answers
    # If jobs may ask for chunks: the kinds of the batch system's nodes, and what is free on the nodes in service.
    kinds: tuple[NodeKind, ...] = ()
    groups: tuple[NodeGroup, ...] = ()


class DisciplineEdited(msgspec.Struct, frozen=True, tag="ExperienceEdited"):
    """An operator has edited data that the discipline has learned."""

    # Plain data that only the discipline understands (`Discipline.edit`). In journals, the field is called ``times``.
    changes: Any = msgspec.field(name="times")


DirectEvent = BatchSnapshot | DisciplineEdited
"""Events outside the contract: `ContractCore` passes them to the nodes or the discipline without reading them."""

Event = JobSubmitted | JobFinished | JobCancelled | ReservationRequested | ReservationCancelled | DirectEvent
"""The events of a `SiteCore`."""


class StartJob(msgspec.Struct, frozen=True, tag="StartJob", gc=False, repr_omit_defaults=True):
    """Start a job on these nodes now."""

    job_id: int
    # If jobs get fractions of nodes, a node is listed once for each task on it.
    nodes: NodeIntervals
    # The job's hardware threads, numbered across its nodes, if nodes are shared; empty: all threads of its nodes.
    threads: NodeIntervals = ()


class ChangeRate(msgspec.Struct, frozen=True, tag="ChangeRate", gc=False):
    """Expect a running job to progress at a different rate, because the jobs that share its nodes have changed."""

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
    keeps_work: bool  # whether the job will continue from its checkpoint; otherwise it will start from the beginning
    by: int  # the job that gets some or all of the nodes
    reason: str  # one line


class RequeueJob(msgspec.Struct, frozen=True, tag="RequeueJob", gc=False):
    """Make a running job write a checkpoint and end; it is then reported as lost, and runs again."""

    job_id: int
    reason: str


class KillJob(msgspec.Struct, frozen=True, tag="KillJob", gc=False, repr_omit_defaults=True):
    """End a running job; its nodes become free when its end is reported."""

    job_id: int
    reason: str
    at_once: bool = False  # whether to skip the grace period


class OpenFragment(msgspec.Struct, frozen=True, tag="OpenFragment", gc=False):
    """Open the gate at which a fragment's ranks are waiting, so that they start."""

    job_id: int


class RefuseJob(msgspec.Struct, frozen=True, tag="RefuseJob", gc=False):
    """Notify the user that the site will not run a job, and why."""

    job_id: int
    reason: str
    is_final: bool = False  # whether the job can never run here as submitted


class AcceptReservation(msgspec.Struct, frozen=True, tag="AcceptReservation", gc=False):
    """Notify the user that the nodes are reserved."""

    reservation_id: int


class RefuseReservation(msgspec.Struct, frozen=True, tag="RefuseReservation", gc=False):
    """Notify the user that the nodes are not free at the requested time; `earliest_start_ms`: None for never."""

    reservation_id: int
    reason: str
    earliest_start_ms: int | None = None


class OpenReservation(msgspec.Struct, frozen=True, tag="OpenReservation", gc=False):
    """Give these nodes to a reservation's holder now."""

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
    """Ask for the earliest time at which ``width`` nodes would be free for ``length_ms`` if requested now."""

    quote_id: int
    width: int
    length_ms: int
    # The job's needs on its nodes; if given, a site with shared nodes answers whether the job could share some nodes.
    resources: Resources | None = None
    job_id: int | None = None
    user: str = ""  # the job's user; set if user names are available
    # The job itself; if given, the answer has its expected run time, and the times at which nodes become free.
    job: Job | None = None
    wants_ready: bool = True  # if ``job`` is given: whether to answer with the times at which nodes become free
    assumed: Resources | None = None  # see `Job`


class ReserveNodes(OfAttempt, frozen=True, tag="ReserveNodes", gc=False, repr_omit_defaults=True):
    """Request the nodes of a job's fragment; the site refuses if they are not free now, unless ``ahead`` is true."""

    width: int  # number of nodes of the fragment
    length_ms: int  # wall time limit, from the start of the fragment
    # The agreed start, at which the lease ends unless the nodes have been committed. None: this is the only fragment,
    # so it starts as soon as the nodes are granted.
    start_ms: int | None = None
    # The job itself, if the site needs more than its width. If the grid omits the job, a live site adds it from the
    # job's description.
    job: Job | None = None
    evictions: int = 0  # number of earlier evictions of the job
    # Whether the fragment may wait in the site's queue. If so, it keeps its nodes until all other sites have theirs;
    # ``start_ms`` is the end of this lease, unless the lease is renewed.
    ahead: bool = False
    # Start now on other jobs' nodes if the slowdown factor is at most this; None: use only free nodes.
    beside: float | None = None


class CommitNodes(OfAttempt, frozen=True, tag="CommitNodes", gc=False, repr_omit_defaults=True):
    """Start the fragment at the agreed time, because all sites have reserved their nodes."""

    rendezvous: str = ""  # the address at which the ranks of a live job connect to each other; see `Launch`
    start_ms: int | None = None  # the agreed start, if the nodes were reserved ahead


class ReleaseNodes(OfAttempt, frozen=True, tag="ReleaseNodes", gc=False):
    """Release the reserved nodes, because another site did not grant its fragment."""


class EnqueueJob(msgspec.Struct, frozen=True, tag="EnqueueJob", gc=False):
    """Delegate a job to the site's own queue."""

    job: Job
    attempt: int
    # The site withdraws the job if it is still waiting at this time and the lease has not been renewed.
    lease_until_ms: int


class WithdrawJob(OfAttempt, frozen=True, tag="WithdrawJob", gc=False):
    """Remove a delegated job from the site's queue; has no effect if the job has already started."""


class CancelJob(OfAttempt, frozen=True, tag="CancelJob", gc=False):
    """Cancel a job at this site, whether it is waiting, has reserved nodes, or is running."""


class RenewLeases(msgspec.Struct, frozen=True, tag="RenewLeases", gc=False):
    """Extend the leases of all waiting delegated jobs at least to this time."""

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

``user``: the site accepts no jobs of this user; ``never``: the site can never run this job; ``job``: the site had
accepted the job, but its batch system cancelled it. Empty: the current load or state of the site, which can change.
"""


class Quoted(msgspec.Struct, frozen=True, tag="Quoted", gc=False):
    """The answer to `RequestQuote`."""

    quote_id: int
    free: int  # number of nodes (or chunks, see ``most``) that the grid could get now for this length
    start_ms: int | None  # the earliest start according to the estimates; None: no start, because of ``reason``
    reason: str = ""
    # If it shared other jobs' nodes: the time until the job ends, in multiples of its length; None: it cannot share.
    slowdown: float | None = None
    cause: Cause = ""
    takes_parts: bool = True  # whether the site accepts fragments of multi-site jobs
    # Number of nodes that the site has requested from its batch system for this length and that no waiting job needs,
    # and when the last of these nodes is expected.
    coming: int = 0
    coming_ms: int | None = None
    # Only for a request with a job: its expected run time, its number of nodes, (time, number of nodes that become
    # idle) pairs if ``wants_ready``, and the number of waiting jobs of the site's own users.
    length_ms: int | None = None
    nodes: int | None = None
    ready: tuple[tuple[int, int], ...] = ()
    queued: int = 0
    evicts: bool = False  # whether the job would start now by evicting other jobs
    beside: tuple[int, ...] = ()  # the jobs with which the job could share nodes
    shared_ms: int | None = None  # when the job would start on other jobs' nodes; None: now
    # If the request has a job that asks for chunks, ``free`` counts chunks, too. ``most`` is the number of such chunks
    # that the grid could have at the idle site; None: unknown.
    most: int | None = None


class Reserved(OfAttempt, frozen=True, tag="Reserved", gc=False, repr_omit_defaults=True):
    """The nodes are reserved, at most until the agreed start."""

    # The address at which the ranks of a live job can connect (see `Launch`), if the first rank is at this site.
    rendezvous: str = ""
    # The nodes, each listed once for each chunk on it, if the site counts resources.
    nodes: NodeIntervals | msgspec.UnsetType = msgspec.UNSET


class Refused(OfAttempt, frozen=True, tag="Refused", gc=False):
    """The site has refused a fragment or a job."""

    reason: str
    cause: Cause = ""


class LeaseEnded(OfAttempt, frozen=True, tag="LeaseEnded", gc=False, repr_omit_defaults=True):
    """A fragment has ended because its reserved nodes were released, not committed in time, or given to another job."""

    evicted: str = ""  # for an eviction: which job gets the nodes, and why


class Enqueued(OfAttempt, frozen=True, tag="Enqueued", gc=False, repr_omit_defaults=True):
    """A delegated job did not start at once and is waiting in the site's queue; sent again if its start is delayed.

    If a batch system provides the nodes, the expected start is known only after the batch system has considered the
    job.
    """

    start_ms: int | None = None  # the expected start, if already known


class Withdrawn(OfAttempt, frozen=True, tag="Withdrawn", gc=False):
    """A delegated job is no longer waiting at the site: it was withdrawn or cancelled, or its lease has ended."""


class Started(OfAttempt, frozen=True, tag="Started", gc=False, repr_omit_defaults=True):
    """A fragment or a delegated job has started."""

    start_ms: int
    # The nodes as in `Reserved`; unset if `Reserved` has listed them.
    nodes: NodeIntervals | msgspec.UnsetType = msgspec.UNSET


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


NodeAmounts = tuple[tuple[int, tuple[int, ...]], ...]
"""How much of each resource is held on some nodes, by node; the resources are those of `columns_of`."""


class SiteChanged(msgspec.Struct, frozen=True, tag="SiteChanged", gc=False, repr_omit_defaults=True):
    """The capacity that the grid can use at the site has changed, for a reason other than the grid's own jobs."""

    # How many nodes of the grid's share would be unavailable even if the grid used none. Negative if grid jobs share
    # nodes and therefore occupy fewer nodes than the sum of their widths.
    others: int
    free: int  # number of nodes that a grid job can get now
    closed: str = ""  # why the site accepts no new grid jobs, e.g. it is drained; empty if it accepts them
    longest_ms: int | None = None  # the longest estimate that the site accepts; None: no limit
    # What the site's own users hold on each node, if the site counts resources; ``others`` then does not matter.
    held: NodeAmounts | msgspec.UnsetType = msgspec.UNSET


class RunsLate(OfAttempt, frozen=True, tag="RunsLate", gc=False):
    """A fragment is running beyond its estimated end because it was slowed; sent again whenever its rate changes."""

    left: int  # remaining work at ``since_ms`` according to the estimate (`gridweave.site.kernels.work`)
    rate: int  # rate since ``since_ms``, in units of `gridweave.site.kernels.work.RATE_ONE`
    since_ms: int


Answer = Quoted | Reserved | Refused | LeaseEnded | Enqueued | Withdrawn | Started | Ended | SiteChanged | RunsLate


class ToGrid(msgspec.Struct, frozen=True, tag="ToGrid", gc=False):
    """Send an answer to the meta-scheduler."""

    answer: Answer


class SiteShut(msgspec.Struct, frozen=True, tag="SiteShut", gc=False):
    """The site cannot start jobs now; it accepts no new grid jobs until `SiteOpened`."""

    reason: str  # one line; also sent to the grid


class SiteOpened(msgspec.Struct, frozen=True, tag="SiteOpened", gc=False):
    """The site can start jobs again."""


class FragmentReady(OfAttempt, frozen=True, tag="FragmentReady", gc=False):
    """All ranks of a fragment, on all machines of the site, are waiting at their gate."""


class OpenGate(OfAttempt, frozen=True, tag="OpenGate", gc=False):
    """Let the ranks of a fragment start, because the ranks of all fragments are ready."""

    by_ms: int  # deadline after which the other fragments give up


class FragmentOpened(OfAttempt, frozen=True, tag="FragmentOpened", gc=False):
    """All ranks of a fragment have started running."""


class FragmentEnding(OfAttempt, frozen=True, tag="FragmentEnding", gc=False):
    """A fragment has reached its limit; its ranks were asked to exit and are in their grace period."""


class NodesShared(OfAttempt, frozen=True, tag="NodesShared"):
    """The set of jobs that share nodes with this job has changed; sent for the last time when the job has ended."""

    sharing: NodeSharing


class FragmentsMet(OfAttempt, frozen=True, tag="FragmentsMet", gc=False):
    """All fragments of a job have started and connected to each other, so the job is running."""


class KillFragment(OfAttempt, frozen=True, tag="KillFragment", gc=False):
    """Cancel a fragment and end its ranks at once, without a grace period."""


class SignalFragment(OfAttempt, frozen=True, tag="SignalFragment", gc=False):
    """Send a signal to the ranks of a fragment; do nothing if the fragment is not running."""

    signal: SignalName


class RequeueFragment(OfAttempt, frozen=True, tag="RequeueFragment", gc=False):
    """Make the ranks of a fragment write a checkpoint and exit; the fragment is then lost, and the job runs again."""

    reason: str  # one line


class RateMeasured(OfAttempt, frozen=True, tag="RateMeasured", gc=False):
    """The progress rate of a job's fragments has changed, because the links or their load have changed."""

    rate: int  # in units of `gridweave.site.kernels.work.RATE_ONE`; 0: no progress
    # Remaining work according to the estimate, if it does not follow from the rates sent so far, because the job has
    # changed its phase, e.g. from transferring data to computing.
    left: int | None = None


class SiteRestarted(msgspec.Struct, frozen=True, tag="SiteRestarted", gc=False):
    """The site has failed and restarted: running jobs are lost, and waiting jobs are still waiting."""


LOCAL = "127.0.0.1"
"""The address assumed for a machine that has not reported its host."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of a site.

    Raises
    ------
    OptionError
        If a value is invalid.
    """

    name: str  # unique within the site
    nodes: int  # number of the site's nodes on this machine, >= 1
    ports: tuple[int, int] = (0, 0)  # half-open range of rendezvous ports; empty range: no ports

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
    past: tuple[Past, ...] = ()  # the ended jobs on which the job depends, from the journal


class JobAction(msgspec.Struct, frozen=True, tag="Wish"):
    """A user's action on jobs of a site or the grid."""

    kind: ActionKind
    job_ids: tuple[int, ...]
    origin: str = ""  # the user and the request, for the jobs' histories
    signal: SignalName | None = None  # the signal, for the action ``signal``

    @property
    def why_requeued(self) -> str:
        """The reason to record in the history of a job that a user requeues."""
        return "requeued on request" + (f", by {self.origin}" if self.origin else "")


class OfRun(msgspec.Struct, frozen=True):
    """Base of the messages between a site and a machine about one attempt of a job on that machine."""

    machine: str
    job_id: int
    attempt: int


class RunReady(OfRun, frozen=True, tag="RunReady"):
    """The ranks of a job on a machine are waiting at their gate."""


class RunStarted(OfRun, frozen=True, tag="RunStarted"):
    """The ranks of a job on a machine have started."""


class RunEnded(OfRun, frozen=True, tag="RunEnded"):
    """All processes of a job on a machine have ended."""

    outcome: Outcome  # see `gridweave.site.launch.Outcome`
    reason: str = ""
    ranks: tuple[RankReport, ...] = ()
    used: Used = Used()
    has_run: bool = True  # False if the job certainly never ran
    # For a packed array: the ended tasks.
    array_tasks: tuple[ArrayTask, ...] = msgspec.field(default=(), name="elements")
    interrupted: tuple[int, ...] = ()  # for a packed array: indexes of the tasks that started but did not end
    ran_ms: Ran = None  # start and end of the processes; None: no process ran, or unknown


class RunDelayed(OfRun, frozen=True, tag="RunDelayed"):
    """A machine cannot start its ranks of a job now; the site must repeat the order once the machine has capacity."""

    reason: str


class MachineReady(msgspec.Struct, frozen=True, tag="MachineReady"):
    """A machine that was unable to start jobs can start jobs again."""

    machine: str


class MachineJoined(msgspec.Struct, frozen=True, tag="MachineJoined"):
    """A machine has connected or reconnected; the site then checks which jobs the machine still has (`ConfirmRun`)."""

    machine: str
    host: str  # the machine's address for other machines
    users: AcceptedUsers = ANYONE  # the users whose jobs the machine accepts
    secret: str = ""  # secret from which rendezvous keys are derived if rank 0 is on this machine; empty: no keys


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
    """Make a machine start its ranks of a job; all times are by the site's clock."""

    machine: str
    launch: Launch  # hardware threads are numbered from 0 on each node
    slots: tuple[int, ...]  # each rank's node, numbered from 0 on the machine


class ConfirmRun(OfRun, frozen=True, tag="ConfirmRun"):
    """Make a reconnected machine report whether it still has this attempt of a job."""


class EndRun(OfRun, frozen=True, tag="EndRun", repr_omit_defaults=True):
    """Make a machine end its ranks of a job."""

    reason: str
    at_once: bool = False  # whether to skip the grace period
    saves: bool = False  # whether to send the checkpoint signal instead of TERM


class OpenRun(OfRun, frozen=True, tag="OpenRun"):
    """Make a machine open the gate at which its ranks of a job are waiting."""


class KeepRun(OfRun, frozen=True, tag="KeepRun"):
    """Make a machine keep its ranks running past ``alone_ms``, because all ranks of the fragment have started."""


class PaceRun(OfRun, frozen=True, tag="PaceRun", repr_omit_defaults=True):
    """Make a machine pause, resume or slow its ranks of a job."""

    runs: bool
    at_ms: int = 0  # time of the change, the same on all machines of the job; a past time means now
    speed: float = 1.0  # fraction of full speed while the job is not paused


class SignalRun(OfRun, frozen=True, tag="SignalRun"):
    """Make a machine send a signal to its ranks of a job; the signal is lost if the machine is disconnected."""

    signal: SignalName


class CheckCapacity(msgspec.Struct, frozen=True, tag="LookForRoom"):
    """Make a machine that was unable to start jobs report once it can."""

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

"""What the gateway and its clients say to each other: the types of every request and answer (docs/gateway.md).

The same structs go over the wire as JSON or as MessagePack, and the description of the interface is made from them.
Times are milliseconds of the grid's clock (since 1970), spans milliseconds. Nothing here does I/O.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

# What desks are asked and tell as well.
from gridweave.site.desk_messages import MOST_LISTED as MOST_LISTED  # noqa: PLC0414
from gridweave.site.desk_messages import BusyNodes as BusyNodes  # noqa: PLC0414
from gridweave.site.desk_messages import EventKind as EventKind  # noqa: PLC0414
from gridweave.site.desk_messages import GivenUp as GivenUp  # noqa: PLC0414
from gridweave.site.desk_messages import Instant as Instant  # noqa: PLC0414
from gridweave.site.desk_messages import JobEvent as JobEvent  # noqa: PLC0414
from gridweave.site.desk_messages import JobEvents as JobEvents  # noqa: PLC0414
from gridweave.site.desk_messages import JobId as JobId  # noqa: PLC0414
from gridweave.site.desk_messages import JobPage as JobPage  # noqa: PLC0414
from gridweave.site.desk_messages import JobProgress as JobProgress  # noqa: PLC0414
from gridweave.site.desk_messages import JobQuery as JobQuery  # noqa: PLC0414
from gridweave.site.desk_messages import KeptNodes as KeptNodes  # noqa: PLC0414
from gridweave.site.desk_messages import LoggedFault as LoggedFault  # noqa: PLC0414
from gridweave.site.desk_messages import MachineInfo as MachineInfo  # noqa: PLC0414
from gridweave.site.desk_messages import Queue as Queue  # noqa: PLC0414
from gridweave.site.desk_messages import QueuedJob as QueuedJob  # noqa: PLC0414
from gridweave.site.desk_messages import SiteExperience as SiteExperience  # noqa: PLC0414
from gridweave.site.desk_messages import SiteInfo as SiteInfo  # noqa: PLC0414
from gridweave.site.explain import Forecast as Forecast  # noqa: PLC0414
from gridweave.site.explain import SiteReason as SiteReason  # noqa: PLC0414
from gridweave.site.explain import SplitReason as SplitReason  # noqa: PLC0414
from gridweave.site.job import JobRequest, SignalName
from gridweave.site.known_times import KnownTimes as KnownTimes  # noqa: PLC0414
from gridweave.site.launch import UsageCurve
from gridweave.site.needs.known import NeedsExperience as NeedsExperience  # noqa: PLC0414

Scope = Literal["read", "submit", "cancel", "operate"]
"""What a token may do: see the sites, the queue and its user's jobs; hand in jobs; cancel, hold and release its user's
jobs; everything, for everybody."""

SCOPES: tuple[Scope, ...] = ("read", "submit", "cancel", "operate")
"""``operate`` includes all the others."""

Scopes = Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=4)]
ShortScope = Literal["read", "submit", "cancel"]
USUAL_SCOPES: tuple[ShortScope, ...] = ("read", "submit", "cancel")

USUAL_DAYS = 90.0
"""So long a token can be used if nothing else is said."""

MOST_HOURS = 24.0
"""So long a token can be used at most that was made by a token which may not operate."""

Count = Annotated[int, Meta(ge=0)]
Key = Annotated[str, Meta(min_length=1, max_length=200)]


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is handed in.

    Attributes
    ----------
    request : JobRequest
        Its ``user`` is that of the token, whatever it says; an operator may hand in for others.
    key : str, optional
        Idempotency key, unique among those of its user. Left out: made of the header ``Idempotency-Key`` and the place
        of the job in the request; without that header a new one.
    """

    request: JobRequest
    key: Key | None = None


class SubmitJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Hand in jobs: to the grid, or to a site as one of its own users."""

    jobs: list[NewJob]
    site: str | None = None


class SubmitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job that was handed in.

    Attributes
    ----------
    key : str
        With which it can be handed in again and gets this very answer.
    job_id : int, optional
        Its number, if it was taken in; that is durable.
    reason : str
        Why it was not.
    """

    key: str
    job_id: int | None = None
    reason: str = ""


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to jobs that were handed in, in their order."""

    answers: list[SubmitAnswer]


class JobIds(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs, by their numbers."""

    job_ids: list[JobId]


class SignalJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Send the processes of running jobs a signal.

    Attributes
    ----------
    signal : str
        Its name, without ``SIG``.
    """

    job_ids: list[JobId]
    signal: SignalName


class StoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a job.

    Attributes
    ----------
    at_ms : int
    kind : str
        What: ``submitted``, ``waits``, ``runs``, ``ended`` and others (docs/live.md).
    detail : str
    """

    at_ms: int
    kind: str
    detail: str = ""


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """All that happened to a job, the oldest first."""

    job_id: int
    entries: list[StoryEntry]


class UsageOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """What a job uses over time, in its last attempt.

    Attributes
    ----------
    pieces : list of UsageCurve
        For each machine, in the order of the ranks there; none if nothing is kept of it any more.
    is_whole : bool
        Whether that is all of the job: false if it is on more machines than are told of, or one does not answer.
    """

    job_id: int
    pieces: list[UsageCurve]
    is_whole: bool


class StreamEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Why a stream of events ends: the last thing that is told (``event: end`` of server-sent events).

    Attributes
    ----------
    reason : str
        ``slow``: its reader did not take what there was; ``revoked``: its token can be used no more; ``stopping``: the
        gateway stops.
    after : int
        The number of the last event that was sent, or passed over: after which to go on.
    """

    reason: Literal["slow", "revoked", "stopping"]
    after: int


class ExperienceChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a site is to know of how long jobs take.

    Attributes
    ----------
    times : list of KnownTimes
        In place of those of the same class or user and the same resource; those of 0 runs are forgotten.
    """

    times: Annotated[list[KnownTimes], Meta(min_length=1, max_length=MOST_LISTED)]


class Sites(msgspec.Struct, frozen=True, kw_only=True):
    """All sites of the grid, in their order."""

    sites: list[SiteInfo]


class FragmentLimit(msgspec.Struct, frozen=True):
    """Jobs up to a width may be in so many fragments."""

    width: int
    fragments: int


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    """How the grid schedules.

    Attributes
    ----------
    now_ms : int
        What its clock shows.
    mode, control, order, backfill, head_reservation, selection : str
    overhead : tuple of float
        In 2, 3, ... fragments; the last one holds for more.
    lower_bound : int
    max_fragments : tuple of FragmentLimit
        As for `gridweave.grid.policy.GridPolicy`.
    links : bool
        Whether it knows the links between its sites, from which the cost of a split follows then.
    margin_ms : int
        So much after its sites were asked a job on several of them starts.
    start_ms, end_ms : int, optional
        How long after it was placed the processes of a job run, and how long after their end the grid hears of it, as
        the last jobs had it or ``[live]`` in GRID.toml says; None: no job has ended yet.
    """

    now_ms: int
    mode: str
    control: str
    order: str
    backfill: str
    selection: str
    overhead: tuple[float, ...]
    lower_bound: int
    max_fragments: tuple[FragmentLimit, ...]
    links: bool
    margin_ms: int
    head_reservation: str = "anywhere"
    start_ms: int | None = None
    end_ms: int | None = None


class NetworkNode(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the network: a site, several, or a router.

    Attributes
    ----------
    latitude, longitude : float, optional
        In degrees, where they are known.
    """

    name: str
    sites: tuple[str, ...] = ()
    latitude: float | None = None
    longitude: float | None = None


class NetworkWay(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of a link; a message takes the latency and up to the jitter more.

    Attributes
    ----------
    latency_ms, bandwidth_bps : float, optional
        None: not known.
    loss : float
        Probability that a packet is lost.
    """

    latency_ms: float | None = None
    bandwidth_bps: float | None = None
    loss: float = 0.0
    jitter_ms: float = 0.0


class NetworkLink(msgspec.Struct, frozen=True, kw_only=True):
    """What joins two nodes of the network, or, where no links are known, two sites.

    Attributes
    ----------
    one, other : str
        The nodes.
    latency_ms, bandwidth_bps : float, optional
        From one to the other, as they are in force: as the operator wrote them down, wider if more was measured, and as
        measured if the link is all of a path on which the measurement counts. None: not known.
    part : float
        Which part of its bandwidth it has now; 0: it is down.
    jobs : int
        Running jobs that have parts on both sides of it.
    measured : bool
        Whether some of the figures were measured.
    name : str
        Distinguishes links with the same ends.
    loss, jitter_ms : float
        As of `NetworkWay`.
    back : NetworkWay, optional
        From the other to the one, if that direction differs.
    one_way : bool
        Whether it leads from one to the other alone.
    cable : int, optional
        Links of the same number fail together; None: no other does.
    """

    one: str
    other: str
    latency_ms: float | None = None
    bandwidth_bps: float | None = None
    part: float = 1.0
    jobs: int = 0
    measured: bool = False
    name: str = ""
    loss: float = 0.0
    jitter_ms: float = 0.0
    back: NetworkWay | None = None
    one_way: bool = False
    cable: int | None = None


class NetworkPath(msgspec.Struct, frozen=True, kw_only=True):
    """The path from one site to another, as decisions count it.

    Attributes
    ----------
    latency_ms, bandwidth_bps : float, optional
        One way, on average; of one job. None: there is no path, or no limit.
    measured : bool
        Whether measurements have corrected what was written down.
    jitter_ms : float
        By how much the latency varies.
    written_latency_ms, written_bandwidth_bps : float, optional
        As the links alone would have it.
    """

    origin: str
    target: str
    latency_ms: float | None = None
    bandwidth_bps: float | None = None
    measured: bool = False
    jitter_ms: float = 0.0
    written_latency_ms: float | None = None
    written_bandwidth_bps: float | None = None


class KnownNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """The network between the sites, as far as it is known, and how many jobs are on each link.

    Attributes
    ----------
    paths : list of NetworkPath
        From each site to each other one; empty where no links were written down.
    """

    nodes: list[NetworkNode]
    links: list[NetworkLink]
    paths: list[NetworkPath] = []


class LearntSplit(msgspec.Struct, frozen=True, kw_only=True):
    """What splits of the jobs of a user, a class and a width really cost (docs/experience.md).

    Attributes
    ----------
    whole_runs, split_runs : int
        Runs on one site, and on several, of jobs that do not declare what they send.
    factor, modelled : float
        How many times as long the split runs took (None if runs of one kind are missing), and should have taken.
    used : bool
        Whether the grid goes by it: there are enough runs, and they vary little enough.
    """

    user: str
    job_class: str
    nodes: int
    whole_runs: int
    split_runs: int
    factor: float | None
    modelled: float
    used: bool


class GridExperience(msgspec.Struct, frozen=True, kw_only=True):
    """What the grid has learnt from jobs that are over."""

    splits: list[LearntSplit]
    needs: list[NeedsExperience] = []


class QuoteJob(msgspec.Struct, frozen=True, kw_only=True):
    """Ask when a job would start, and where; nothing is submitted.

    Attributes
    ----------
    instead_of : int, optional
        A job that waits: it is asked as if that one were cancelled first.
    """

    request: JobRequest
    instead_of: JobId | None = None


class ScheduledJob(msgspec.Struct, frozen=True, array_like=True):
    """A job as a picture of the schedule needs it: an array, as there may be very many.

    Attributes
    ----------
    state : str
        Its outcome, once it has ended.
    start_ms : int, optional
        None: it has not started, and when it does is not said here.
    end_ms : int, optional
        Of one that runs or waits: when it ends at the latest.
    places : tuple of (str, int)
        Sites and nodes.
    """

    job_id: int
    user: str
    name: str
    state: str
    submit_ms: int
    start_ms: int | None
    end_ms: int | None
    places: tuple[tuple[str, int], ...]


class SchedulePart(msgspec.Struct, frozen=True, kw_only=True):
    """Some jobs that have started, the newest first.

    Attributes
    ----------
    below : int, optional
        With which the next part is asked for; None: there is none.
    """

    jobs: list[ScheduledJob]
    below: int | None = None


class PlannedStarts(msgspec.Struct, frozen=True, kw_only=True):
    """When and where jobs that wait start, if each job takes as long as it may and no other comes.

    Those of which that is known, by their starts; which these are depends on the level of control (docs/explain.md).

    Attributes
    ----------
    waits_at : dict of int to str
        The sites in whose own queues jobs wait, by job: these start when their site expects it.
    """

    now_ms: int
    jobs: list[ScheduledJob]
    waits_at: dict[int, str] = {}


class OtherPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of how the grid schedules is to be another; None: it stays (`gridweave.grid.policy.GridPolicy`)."""

    mode: str | None = None
    order: str | None = None
    backfill: str | None = None
    head_reservation: str | None = None
    selection: str | None = None
    overhead: tuple[float, ...] | None = None
    lower_bound: int | None = None


class WhatIf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask what would become of waits and of the use of nodes if the grid were another; nothing is changed by that.

    Attributes
    ----------
    nodes : dict from str to int
        How many nodes of a site the grid has, where that is another number; a name that it does not know is a new site.
    drain : tuple of str
        Sites that take nothing new.
    cut : tuple of (str, str)
        Sites, or nodes of the network, between which no link works.
    policy : OtherPolicy
    again : bool
        Whether the jobs that came in the last hours come again, to the grid as it is and as it would be.
    load : float
        To the grid as it would be they come so many times as often.
    hours : float
        How far it is looked ahead, and back for the jobs that came.
    """

    nodes: dict[str, Count] = {}
    drain: tuple[str, ...] = ()
    cut: tuple[tuple[str, str], ...] = ()
    policy: OtherPolicy = OtherPolicy()
    again: bool = True
    load: Annotated[float, Meta(ge=0, le=100)] = 1.0
    hours: Annotated[float, Meta(gt=0, le=720)] = 24.0


class UsedSite(msgspec.Struct, frozen=True):
    """A site in a play: its nodes, and which part of their time jobs of the grid had them."""

    site: str
    nodes: int
    used: float


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the jobs of the grid in the time that is looked ahead.

    Attributes
    ----------
    jobs, started, never : int
        Jobs that wait or come; those of them that start; those that could not start as the grid is then.
    wait_ms, longest_ms : int
        How long they wait, from now on or since they came: the mean, and the longest. Of one that has not started by
        then as long as it has waited; those that never could do not count.
    used : float
        Which part of the time of all nodes jobs of the grid have them.
    sites : tuple of UsedSite
    """

    jobs: int
    started: int
    never: int
    wait_ms: int
    longest_ms: int
    used: float
    sites: tuple[UsedSite, ...]


class Outlooks(msgspec.Struct, frozen=True, kw_only=True):
    """The grid as it is, and as it would be, played with the same jobs.

    Attributes
    ----------
    length : float
        Which part of its limit each job takes of which it is not known; 1: as long as it may.
    """

    length: float
    now: Outlook
    then: Outlook


class WhatIfAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of waits and of the use of nodes.

    Attributes
    ----------
    plays : tuple of Outlooks
        If each job takes as long as it may; and, if enough have ended to tell, as long as those did.
    sure : str
        How sure that is.
    assumed : tuple of str
        What was assumed.
    """

    now_ms: int
    plays: tuple[Outlooks, ...]
    sure: str
    assumed: tuple[str, ...]


class OutputPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what a rank has written.

    Attributes
    ----------
    data : bytes
    offset : int
        Of its first byte.
    is_last : bool
        Whether nothing follows: the job has ended, and this reaches to the end.
    removed : str
        When and why the output was removed, in one line; empty if it was not.
    """

    data: bytes
    offset: int
    is_last: bool
    removed: str = ""


class TokenLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which jobs may be handed in with a token; there is no limit where nothing is said.

    Attributes
    ----------
    sites : tuple of str
        At these sites alone, as one of their own users; not to the grid, which would choose among all.
    accounts : tuple of str
        For these accounts; a job that names none is for the only one, if there is one.
    max_nodes : int, optional
        Of each job.
    max_array : int, optional
        Jobs of an array.
    max_limit_ms : int, optional
        How long each job may run.
    max_priority, max_weight : float, optional
        Of each job.
    """

    sites: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    max_nodes: Annotated[int, Meta(ge=1)] | None = None
    max_array: Annotated[int, Meta(ge=1)] | None = None
    max_limit_ms: Annotated[int, Meta(ge=1)] | None = None
    max_priority: float | None = None
    max_weight: float | None = None


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """Make a token.

    Attributes
    ----------
    user : str
    scopes : tuple of str
    days : float, optional
        How long it can be used; None: until it is revoked.
    limits : TokenLimits
    """

    user: Annotated[str, Meta(min_length=1, max_length=100)]
    scopes: Scopes = USUAL_SCOPES
    days: Annotated[float, Meta(gt=0, le=36_500)] | None = USUAL_DAYS
    limits: TokenLimits = TokenLimits()


class ShortToken(msgspec.Struct, frozen=True, kw_only=True):
    """Make a token for a short time, e.g. for a job that hands in jobs; its user and limits are those of who asks.

    Attributes
    ----------
    scopes : tuple of str
        Not more than those of the token that asks.
    hours : float
        How long it can be used; no longer than the token that asks, and gone when that is revoked.
    """

    scopes: Annotated[tuple[ShortScope, ...], Meta(min_length=1, max_length=4)] = USUAL_SCOPES
    hours: Annotated[float, Meta(gt=0, le=MOST_HOURS)] = MOST_HOURS


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret.

    Attributes
    ----------
    token_id : str
        By which it is revoked; the first part of the token.
    user : str
    scopes : tuple of str
    limits : TokenLimits
    made_ms : int
    until_ms : int, optional
        When it ends; None: never.
    used_ms : int, optional
        When it was used last, to a minute; None: not yet.
    parent : str
        The id of the token by which it was made, if it was made for a short time.
    is_login : bool
        Whether it is the login of a browser, which is no bearer token.
    """

    token_id: str
    user: str
    scopes: tuple[Scope, ...]
    limits: TokenLimits = TokenLimits()
    made_ms: int
    until_ms: int | None = None
    used_ms: int | None = None
    parent: str = ""
    is_login: bool = False


class MadeToken(msgspec.Struct, frozen=True, kw_only=True):
    """A new token; its secret is not kept, and is seen only here."""

    token: str
    info: TokenInfo


class NewLogin(msgspec.Struct, frozen=True, kw_only=True):
    """Log a browser in: by a token, or by a code that is good once.

    Attributes
    ----------
    token, code : str
        One of them; the other one is empty.
    """

    token: Annotated[str, Meta(max_length=4_000)] = ""
    code: Annotated[str, Meta(max_length=200)] = ""


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """The login of a browser.

    Attributes
    ----------
    info : TokenInfo
        What the login allows.
    key : str
        Half of its secret: pages send it as the header ``Gridweave-Login``, together with the cookie.
    """

    info: TokenInfo
    key: str


class LoginCode(msgspec.Struct, frozen=True, kw_only=True):
    """A code by which a browser logs in once.

    Attributes
    ----------
    seconds : float
        So long it is good.
    """

    code: str
    seconds: float


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """All tokens that can be used."""

    tokens: list[TokenInfo]


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for is done, and durable.

    Attributes
    ----------
    job_ids : list of int
        Jobs that it was done to; others had ended, or are in no state for it.
    """

    job_ids: list[int] = []


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the grid works.

    Attributes
    ----------
    status : str
        ``ok``, or ``unavailable`` while the meta-scheduler does not answer.
    version : str
    sites : dict from str to bool
        Which answer.
    """

    status: str
    version: str = ""
    sites: dict[str, bool] = {}


class FieldProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a part of a request.

    Attributes
    ----------
    where : str
        For example ``jobs[3].request.nodes``.
    detail : str
    """

    where: str
    detail: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused, and what to do: a problem document (RFC 9457), ``application/problem+json``.

    Attributes
    ----------
    type : str
        Which kind: ``urn:gridweave:problem:`` and a name of docs/gateway.md.
    title : str
        That kind in words.
    status : int
        Of HTTP.
    detail : str
        What was wrong here, and what would be right.
    instance : str
        The id of the request, as in the gateway's log.
    errors : list of FieldProblem
    retry_after_s : float, optional
        After which time the same may succeed.
    """

    type: str
    title: str
    status: int
    detail: str
    instance: str = ""
    errors: list[FieldProblem] = []
    retry_after_s: float | None = None

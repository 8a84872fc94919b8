"""The gateway's request and response types (docs/gateway.md), except those of individual disciplines.

The same structs are sent as JSON or MessagePack, and the OpenAPI description is generated from them. Times are
milliseconds since 1970 on the grid's clock; durations are milliseconds. This module does no I/O.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gridweave.site.explain import Forecast as Forecast  # noqa: PLC0414
from gridweave.site.explain import SiteReason as SiteReason  # noqa: PLC0414
from gridweave.site.explain import SplitReason as SplitReason  # noqa: PLC0414
from gridweave.site.job import JobRequest, SignalName
from gridweave.site.launch import UsageCurve
from gridweave.site.needs.estimates import NeedsExperience as NeedsExperience  # noqa: PLC0414

# Types that the gateway shares with the queries of a site.
from gridweave.site.query_messages import MOST_LISTED as MOST_LISTED  # noqa: PLC0414
from gridweave.site.query_messages import BusyNodes as BusyNodes  # noqa: PLC0414
from gridweave.site.query_messages import EventKind as EventKind  # noqa: PLC0414
from gridweave.site.query_messages import GivenUp as GivenUp  # noqa: PLC0414
from gridweave.site.query_messages import Instant as Instant  # noqa: PLC0414
from gridweave.site.query_messages import JobEvent as JobEvent  # noqa: PLC0414
from gridweave.site.query_messages import JobEvents as JobEvents  # noqa: PLC0414
from gridweave.site.query_messages import JobId as JobId  # noqa: PLC0414
from gridweave.site.query_messages import JobPage as JobPage  # noqa: PLC0414
from gridweave.site.query_messages import JobProgress as JobProgress  # noqa: PLC0414
from gridweave.site.query_messages import JobQuery as JobQuery  # noqa: PLC0414
from gridweave.site.query_messages import KeptNodes as KeptNodes  # noqa: PLC0414
from gridweave.site.query_messages import LoggedFault as LoggedFault  # noqa: PLC0414
from gridweave.site.query_messages import MachineInfo as MachineInfo  # noqa: PLC0414
from gridweave.site.query_messages import Queue as Queue  # noqa: PLC0414
from gridweave.site.query_messages import QueuedJob as QueuedJob  # noqa: PLC0414
from gridweave.site.query_messages import SiteInfo as SiteInfo  # noqa: PLC0414

Scope = Literal["read", "submit", "cancel", "operate"]
"""The permissions of a token, in this order: see the sites, the queue and its user's jobs; submit jobs; cancel, hold
and release its user's jobs; do everything, for all users."""

SCOPES: tuple[Scope, ...] = ("read", "submit", "cancel", "operate")
"""All scopes; ``operate`` includes the others."""

Scopes = Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=4)]
ShortScope = Literal["read", "submit", "cancel"]
USUAL_SCOPES: tuple[ShortScope, ...] = ("read", "submit", "cancel")

USUAL_DAYS = 90.0
"""The default lifetime of a token, in days."""

MOST_HOURS = 24.0
"""The longest lifetime, in hours, of a token created by a client without the scope ``operate``."""

Count = Annotated[int, Meta(ge=0)]
Key = Annotated[str, Meta(min_length=1, max_length=200)]


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to submit.

    Attributes
    ----------
    request : JobRequest
        The job. Its ``user`` is replaced by the token's user, unless the token belongs to an operator.
    key : str, optional
        Idempotency key, unique per user. By default derived from the header ``Idempotency-Key`` and the job's index in
        the request; random without that header.
    """

    request: JobRequest
    key: Key | None = None


class SubmitJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Submit jobs to the grid, or to a site's own queue as one of the site's users."""

    jobs: list[NewJob]
    site: str | None = None


class SubmitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a submitted job.

    Attributes
    ----------
    key : str
        The idempotency key; submitting the job again with this key returns the same answer.
    job_id : int, optional
        The number of the job if it was accepted; the acceptance is durable.
    reason : str
        Why the job was not accepted.
    """

    key: str
    job_id: int | None = None
    reason: str = ""


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """One answer per submitted job, in the order of submission."""

    answers: list[SubmitAnswer]


class JobIds(msgspec.Struct, frozen=True, kw_only=True):
    """A list of job numbers."""

    job_ids: list[JobId]


class SignalJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Send a signal to the processes of running jobs.

    Attributes
    ----------
    signal : str
        The name of the signal, without ``SIG``.
    """

    job_ids: list[JobId]
    signal: SignalName


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the history of a job.

    Attributes
    ----------
    at_ms : int
    kind : str
        The kind of event: ``submitted``, ``waits``, ``runs``, ``ended`` and others (docs/live.md).
    detail : str
    """

    at_ms: int
    kind: str
    detail: str = ""


class JobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The history of a job, oldest event first."""

    job_id: int
    entries: list[HistoryEntry]


class UsageOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """A job's resource use over time, in its last attempt.

    Attributes
    ----------
    pieces : list of UsageCurve
        One curve per machine, in rank order; empty if the measurements have been deleted.
    is_whole : bool
        Whether all machines of the job are included: false if the job has too many, or if one is not responding.
    """

    job_id: int
    pieces: list[UsageCurve]
    is_whole: bool


class StreamEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The last message of an event stream, with the reason why the stream ended (``event: end`` of server-sent events).

    Attributes
    ----------
    reason : str
        ``slow`` if the client read too slowly, ``revoked`` if its token is no longer valid, ``stopping`` if the gateway
        is shutting down.
    after : int
        The number of the last event that was sent or skipped; resume after this number.
    """

    reason: Literal["slow", "revoked", "stopping"]
    after: int


class Sites(msgspec.Struct, frozen=True, kw_only=True):
    """All sites of the grid, in the grid's order."""

    sites: list[SiteInfo]


class FragmentLimit(msgspec.Struct, frozen=True):
    """The largest number of fragments for jobs of up to `width` nodes."""

    width: int
    fragments: int


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduling settings of the grid; see `gridweave.grid.policy.GridPolicy`.

    Attributes
    ----------
    now_ms : int
        The time on the grid's clock.
    mode, control, order, backfill, head_reservation, selection : str
    overhead : tuple of float
        The overheads of jobs with 2, 3, ... fragments; the last value also applies to jobs with more fragments.
    lower_bound : int
    max_fragments : tuple of FragmentLimit
    links : bool
        Whether the grid has a model of the links between its sites, which determines the cost of a split.
    margin_ms : int
        How far in advance sites agree on the start of a multi-site job.
    start_ms, end_ms : int, optional
        The delay from a job's placement until its processes are running, and from their end until the grid is notified:
        set in ``[live]`` of GRID.toml, or measured on recent jobs; None if no job has ended yet.
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
    """A node of the network: a site, several sites, or a router.

    Attributes
    ----------
    latitude, longitude : float, optional
        The location in degrees, if known.
    """

    name: str
    sites: tuple[str, ...] = ()
    latitude: float | None = None
    longitude: float | None = None


class NetworkWay(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of a link; the delay of a message varies between the latency and the latency plus the jitter.

    Attributes
    ----------
    latency_ms, bandwidth_bps : float, optional
        None if unknown.
    loss : float
        Probability that a packet is lost.
    """

    latency_ms: float | None = None
    bandwidth_bps: float | None = None
    loss: float = 0.0
    jitter_ms: float = 0.0


class NetworkLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link between two nodes of the network, or between two sites if the grid has no model of the links.

    Attributes
    ----------
    one, other : str
        The nodes.
    latency_ms, bandwidth_bps : float, optional
        The current values from `one` to `other`; None if unknown. These are the configured values, except that a
        higher measured bandwidth replaces the configured one. A link that represents a whole path has measured values.
    part : float
        The fraction of the link's bandwidth that is currently available; 0 if the link is down.
    jobs : int
        The number of running jobs with fragments on both sides of the link.
    measured : bool
        Whether some of the values were measured.
    name : str
        A name that distinguishes links between the same nodes.
    loss, jitter_ms : float
        As in `NetworkWay`.
    back : NetworkWay, optional
        The direction from `other` to `one`, if it differs.
    one_way : bool
        Whether the link leads only from `one` to `other`.
    cable : int, optional
        Links with the same number fail together; None if the link fails alone.
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
    """The path from one site to another, as scheduling decisions use it.

    Attributes
    ----------
    latency_ms, bandwidth_bps : float, optional
        The mean one-way latency, None if there is no path; the bandwidth available to one job, None if unlimited.
    measured : bool
        Whether measurements have corrected the configured values.
    jitter_ms : float
        The variation of the latency.
    written_latency_ms, written_bandwidth_bps : float, optional
        The values computed from the configured links alone.
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
    """The network between the sites, with the number of running jobs on each link.

    Attributes
    ----------
    paths : list of NetworkPath
        The path from each site to each other site; empty if no links are configured.
    """

    nodes: list[NetworkNode]
    links: list[NetworkLink]
    paths: list[NetworkPath] = []


class LearntSplit(msgspec.Struct, frozen=True, kw_only=True):
    """The measured cost of splitting jobs that share a user, a job class and a width (docs/experience.md).

    Attributes
    ----------
    whole_runs, split_runs : int
        The numbers of unsplit and split runs, counting only jobs that declare no communication.
    factor, modelled : float
        The factor by which split runs took longer: as measured (None without runs of both kinds), and as modelled.
    used : bool
        Whether the grid uses the measured factor: there are enough runs, and they vary little.
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
    """The statistics that the grid has learned from ended jobs."""

    splits: list[LearntSplit]
    needs: list[NeedsExperience] = []


class QuoteJob(msgspec.Struct, frozen=True, kw_only=True):
    """Ask when and where a job would start; nothing is submitted.

    Attributes
    ----------
    instead_of : int, optional
        The number of a waiting job; the answer assumes that this job is cancelled first.
    """

    request: JobRequest
    instead_of: JobId | None = None


class ScheduledJob(msgspec.Struct, frozen=True, array_like=True):
    """A job in a chart of the schedule, encoded as an array because there may be many jobs.

    Attributes
    ----------
    state : str
        The state of the job, or its outcome once it has ended.
    start_ms : int, optional
        The start of the job; None if it has not started and its start is unknown.
    end_ms : int, optional
        The end of the job; for a running or waiting job, the latest possible end.
    places : tuple of (str, int)
        The job's sites, with the number of nodes at each.
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
    """A page of the jobs that have started, newest first.

    Attributes
    ----------
    below : int, optional
        The parameter ``below`` for the next page; None on the last page.
    """

    jobs: list[ScheduledJob]
    below: int | None = None


class PlannedStarts(msgspec.Struct, frozen=True, kw_only=True):
    """The starts of waiting jobs, assuming that each job runs up to its limit and that no new jobs arrive.

    `jobs` lists the jobs whose start is known at this level of control (docs/explain.md), earliest first.

    Attributes
    ----------
    waits_at : dict of int to str
        The site of each job that is waiting in a site's queue; the start of such a job is the site's forecast.
    """

    now_ms: int
    jobs: list[ScheduledJob]
    waits_at: dict[int, str] = {}


class OtherPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to the scheduling policy (`gridweave.grid.policy.GridPolicy`); a field that is None stays as it is."""

    mode: str | None = None
    order: str | None = None
    backfill: str | None = None
    head_reservation: str | None = None
    selection: str | None = None
    overhead: tuple[float, ...] | None = None
    lower_bound: int | None = None


class WhatIf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Simulate the grid with other settings to compare waiting times and utilisation; the grid itself does not change.

    Attributes
    ----------
    nodes : dict from str to int
        The new numbers of nodes, by site; an unknown name adds a site.
    drain : tuple of str
        Sites that accept no new jobs.
    cut : tuple of (str, str)
        Pairs of sites, or of nodes of the network, without a working link between them.
    policy : OtherPolicy
    again : bool
        Whether both simulations resubmit the jobs of the last `hours`.
    load : float
        The rate of these submissions to the changed grid, as a multiple of the original rate.
    hours : float
        The simulated period, and the past period whose jobs are submitted again, in hours.
    """

    nodes: dict[str, Count] = {}
    drain: tuple[str, ...] = ()
    cut: tuple[tuple[str, str], ...] = ()
    policy: OtherPolicy = OtherPolicy()
    again: bool = True
    load: Annotated[float, Meta(ge=0, le=100)] = 1.0
    hours: Annotated[float, Meta(gt=0, le=720)] = 24.0


class UsedSite(msgspec.Struct, frozen=True):
    """A site in a simulation: its number of nodes, and their utilisation by jobs of the grid, from 0 to 1."""

    site: str
    nodes: int
    used: float


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a simulation of the grid.

    Attributes
    ----------
    jobs, started, never : int
        The numbers of jobs that are waiting or submitted, that start, and that the grid can never start.
    wait_ms, longest_ms : int
        The mean and the longest wait, from now or from a later submission. If a job does not start, its wait until
        the end of the simulation counts. Jobs that can never start do not count.
    used : float
        The utilisation of all nodes by jobs of the grid, from 0 to 1.
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
    """The results of simulating the current grid and the changed grid with the same jobs.

    Attributes
    ----------
    length : float
        The assumed run time of jobs whose run time is unknown, as a fraction of their limits.
    """

    length: float
    now: Outlook
    then: Outlook


class WhatIfAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting times and the utilisation of the current grid and of the changed grid.

    Attributes
    ----------
    plays : tuple of Outlooks
        The results if each job runs up to its limit; then, if enough jobs have ended, with run times like theirs.
    sure : str
        How certain the results are, in one sentence.
    assumed : tuple of str
        The assumptions of the simulation.
    """

    now_ms: int
    plays: tuple[Outlooks, ...]
    sure: str
    assumed: tuple[str, ...]


class OutputPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a rank's output.

    Attributes
    ----------
    data : bytes
    offset : int
        The offset of the first byte within the output.
    is_last : bool
        Whether this is the end of the output: the job has ended, and no data follows.
    removed : str
        When and why the output was removed, in one line; empty if it was not.
    """

    data: bytes
    offset: int
    is_last: bool
    removed: str = ""


class TokenLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits on the jobs that may be submitted with a token; an empty field means no limit.

    Attributes
    ----------
    sites : tuple of str
        Jobs may be submitted only to these sites, as one of their own users, and not to the grid.
    accounts : tuple of str
        Jobs may use only these accounts; if only one is listed, it is the default.
    max_nodes : int, optional
        The largest number of nodes of a job.
    max_array : int, optional
        The largest number of jobs in an array.
    max_limit_ms : int, optional
        The largest wall time limit of a job.
    max_priority, max_weight : float, optional
        The largest priority and weight of a job.
    """

    sites: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    max_nodes: Annotated[int, Meta(ge=1)] | None = None
    max_array: Annotated[int, Meta(ge=1)] | None = None
    max_limit_ms: Annotated[int, Meta(ge=1)] | None = None
    max_priority: float | None = None
    max_weight: float | None = None


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """Create a token.

    Attributes
    ----------
    user : str
    scopes : tuple of str
    days : float, optional
        The lifetime of the token; None for a token that is valid until it is revoked.
    limits : TokenLimits
    """

    user: Annotated[str, Meta(min_length=1, max_length=100)]
    scopes: Scopes = USUAL_SCOPES
    days: Annotated[float, Meta(gt=0, le=36_500)] | None = USUAL_DAYS
    limits: TokenLimits = TokenLimits()


class ShortToken(msgspec.Struct, frozen=True, kw_only=True):
    """Create a short-lived token from another token, with the same user and limits, e.g. for a job that submits jobs.

    Attributes
    ----------
    scopes : tuple of str
        The scopes of the token, at most those of the other token.
    hours : float
        The lifetime of the token. It ends earlier if the other token expires or is revoked.
    """

    scopes: Annotated[tuple[ShortScope, ...], Meta(min_length=1, max_length=4)] = USUAL_SCOPES
    hours: Annotated[float, Meta(gt=0, le=MOST_HOURS)] = MOST_HOURS


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret.

    Attributes
    ----------
    token_id : str
        The id for revoking the token; it is the first part of the token.
    user : str
    scopes : tuple of str
    limits : TokenLimits
    made_ms : int
    until_ms : int, optional
        When the token expires; None for never.
    used_ms : int, optional
        When the token was last used, accurate to a minute; None if it has not been used.
    parent : str
        The id of the token from which a short-lived token was created.
    is_login : bool
        Whether this token is a browser's login, which cannot be used as a bearer token.
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
    """A new token with its secret, which is not stored and cannot be shown again."""

    token: str
    info: TokenInfo


class NewLogin(msgspec.Struct, frozen=True, kw_only=True):
    """Log a browser in with a token or a single-use code.

    Attributes
    ----------
    token, code : str
        The token or the code; the other field is empty.
    """

    token: Annotated[str, Meta(max_length=4_000)] = ""
    code: Annotated[str, Meta(max_length=200)] = ""


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """The login of a browser.

    Attributes
    ----------
    info : TokenInfo
        The user, scopes and limits of the login.
    key : str
        One half of the secret; pages send this half in the header ``Gridweave-Login``, together with the cookie.
    """

    info: TokenInfo
    key: str


class LoginCode(msgspec.Struct, frozen=True, kw_only=True):
    """A single-use code for logging a browser in.

    Attributes
    ----------
    seconds : float
        The lifetime of the code.
    """

    code: str
    seconds: float


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """All valid tokens."""

    tokens: list[TokenInfo]


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The requested action is done and durable.

    Attributes
    ----------
    job_ids : list of int
        The jobs to which the action applied, excluding jobs that have ended or are in the wrong state.
    """

    job_ids: list[int] = []


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the grid is working.

    Attributes
    ----------
    status : str
        ``ok``, or ``unavailable`` if the meta-scheduler is not responding.
    version : str
    sites : dict from str to bool
        Whether each site is responding.
    """

    status: str
    version: str = ""
    sites: dict[str, bool] = {}


class FieldProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with one field of a request.

    Attributes
    ----------
    where : str
        The path of the field, for example ``jobs[3].request.nodes``.
    detail : str
    """

    where: str
    detail: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem document (RFC 9457, ``application/problem+json``): why a request was refused, and what would be right.

    Attributes
    ----------
    type : str
        The kind of problem: ``urn:gridweave:problem:`` plus a name from docs/gateway.md.
    title : str
        The kind of problem in words.
    status : int
        The HTTP status.
    detail : str
        What was wrong with this request, and what would be right.
    instance : str
        The id of the request, as in the gateway's log.
    errors : list of FieldProblem
    retry_after_s : float, optional
        The time after which the same request may succeed [s].
    """

    type: str
    title: str
    status: int
    detail: str
    instance: str = ""
    errors: list[FieldProblem] = []
    retry_after_s: float | None = None

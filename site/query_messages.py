"""Define the queries that sites and the grid answer; this module does not import their schedulers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gridweave.site.job import JobOutcome, JobRecord, NodeIntervals
from gridweave.site.lifecycle import JobState
from gridweave.site.resources.chunks import NodeKind

MOST_LISTED = 1_000
"""Largest number of jobs on one page."""

JobId = Annotated[int, Meta(ge=1, le=2**62)]
Instant = Annotated[int, Meta(ge=0, le=2**62)]
Answers = Annotated[int, Meta(ge=1, le=MOST_LISTED)]


class JobQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conditions of a search for jobs, which returns the newest jobs first.

    Attributes
    ----------
    own : str
        Search the jobs of this site's own users; empty: the grid's jobs.
    job : tuple of int
        Only these jobs, wherever they were submitted (`own` is ignored); empty: all jobs.
    user, name, array, site : str, optional
        Only jobs with this user, name or array, or with a fragment at this site.
    state : tuple of str
        Only jobs in one of these states; empty: jobs in any state.
    outcome : tuple of str
        Only ended jobs with one of these outcomes; empty: all jobs.
    follows : int, optional
        Only jobs that depend on this job; of the ended jobs, only the newest.
    since_ms, until_ms : int, optional
        Only jobs that existed in this time span: submitted before `until_ms`, and not ended before `since_ms`.
    below : int, optional
        Only jobs with smaller ids; used to get the next page.
    """

    own: str = ""
    job: Annotated[tuple[JobId, ...], Meta(max_length=MOST_LISTED)] = ()
    user: str | None = None
    name: str | None = None
    array: str | None = None
    site: str | None = None
    state: tuple[JobState, ...] = ()
    outcome: tuple[JobOutcome, ...] = ()
    follows: JobId | None = None
    since_ms: Instant | None = None
    until_ms: Instant | None = None
    below: JobId | None = None
    limit: Answers = 100


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of jobs, newest first.

    Attributes
    ----------
    below : int, optional
        The value of `JobQuery.below` for the next page; None if this is the last page.
    """

    jobs: list[JobRecord]
    below: int | None = None


def matches(record: JobRecord, query: JobQuery) -> bool:
    """Whether a job meets all conditions of a query except those on job ids."""
    request = record.request
    array = None if request.array is None else request.array.name
    return (
        (not query.state or record.state in query.state)
        and (not query.outcome or record.outcome in query.outcome)
        and (query.user is None or request.user == query.user)
        and (query.name is None or request.name == query.name)
        and (query.array is None or array == query.array)
        and (query.site is None or any(site == query.site for site, _ in record.places))
        and (query.follows is None or any(after.job_id == query.follows for after in request.after))
        and (query.since_ms is None or record.end_ms is None or record.end_ms >= query.since_ms)
        and (query.until_ms is None or record.submit_ms < query.until_ms)
    )


def page_of(records: Mapping[int, JobRecord], query: JobQuery) -> JobPage:
    """Return the requested page of the matching jobs; it refers to a next page if there are more jobs."""
    numbers = sorted((job_id for job_id in records if query.below is None or job_id < query.below), reverse=True)
    page = [records[job_id] for job_id in numbers[: query.limit]]
    return JobPage(jobs=page, below=page[-1].job_id if len(numbers) > query.limit else None)


class LinkStatus(msgspec.Struct, frozen=True):
    """State of a connection; requests are counted since the reporting end started.

    Attributes
    ----------
    site : str
        The site to which the connection belongs.
    url : str
        Address of the other end.
    answered, failed : int
        Numbers of requests that were answered, and of requests that failed or were refused.
    answered_ms : int
        Unix time of the last answer; 0: no answer yet.
    seconds : float
        Duration of the last answered request.
    problem : str
        Why the last request failed; empty if it succeeded.
    """

    site: str
    url: str
    answered: int = 0
    failed: int = 0
    answered_ms: int = 0
    seconds: float = 0.0
    problem: str = ""


class LoggedFault(msgspec.Struct, frozen=True):
    """A warning or error in a component's log.

    Attributes
    ----------
    at_ms : int
        Unix time.
    text : str
        First line of the log message.
    """

    at_ms: int
    text: str


class MachineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of a site.

    Attributes
    ----------
    here : bool
        Whether the machine's agent answers.
    problem : str
        Why the machine cannot start jobs now; empty if it has reported no problem.
    """

    name: str
    host: str = ""
    nodes: int = 0
    here: bool = True
    problem: str = ""


class BusyNodes(msgspec.Struct, frozen=True):
    """The nodes of a running job at a site.

    Attributes
    ----------
    job_id : int
        The job's id; 0 for users who may not see the job.
    nodes : tuple of (int, int)
        Half-open intervals of node numbers at the site; each machine's nodes are numbered consecutively.
    """

    job_id: int
    nodes: NodeIntervals


class JobProgress(msgspec.Struct, frozen=True):
    """Progress of a running job at a site whose time limits count work instead of wall time.

    Attributes
    ----------
    speed : float
        Current speed as a fraction of full speed; 0: paused.
    worked_ms : int
        Work done so far, expressed as run time at full speed.
    """

    job_id: int
    speed: float
    worked_ms: int


class ResourceAmount(msgspec.Struct, frozen=True):
    """The total amount of a resource on a site's nodes, and the amount that running jobs hold.

    Attributes
    ----------
    name : str
        ``cores``, ``memory_mb``, ``gpus``, or the name of another resource.
    """

    name: str
    total: int
    used: int


class KeptNodes(msgspec.Struct, frozen=True):
    """Nodes of a site that are reserved for a period.

    Attributes
    ----------
    kind : str
        ``reservation``: an advance reservation; ``lease``: nodes held for a multi-site job until its agreed start.
    number : int
        Id of the reservation or job; 0 for users who may not see the job.
    start_ms, end_ms : int
        Start and latest possible end of the reservation or job.
    """

    kind: Literal["reservation", "lease"]
    number: int
    nodes: int
    start_ms: int
    end_ms: int


class SiteInfo(msgspec.Struct, frozen=True, kw_only=True):
    """State of a site.

    Attributes
    ----------
    answers : bool
        Whether the site answers; if not, the other fields contain the last known values.
    nodes, for_grid, free : int
        Numbers of all nodes, of nodes in the grid's share, and of free nodes.
    waiting, running : int
        Numbers of waiting and running jobs at the site, including those of its own users.
    draining : bool
        Whether the site accepts no new grid jobs because an operator is draining it.
    policy : str
        Scheduling policy in words; different policies have different texts; empty: unknown.
    paused : tuple of int
        Jobs that are paused until their next time slice, or until other jobs end.
    busy : tuple of BusyNodes
        Running jobs and their nodes.
    progress : tuple of JobProgress
        Progress of the running jobs, if time limits count work.
    uplink : LinkStatus, optional
        The site's connection to the grid as reported by the site, if it uses HTTP.
    kept : tuple of KeptNodes
        The site's reservations and leases.
    users : str
        Accepted users in words; shown only to operators.
    problem : str
        Why the site does not work or answer now; empty if there is no problem.
    fault : LoggedFault, optional
        Last warning or error in the site's log, shown for a day and only to operators.
    kinds : tuple of NodeKind
        Kinds of the site's nodes, if it counts cores, memory and GPUs; empty: it gives out whole nodes.
    amounts : tuple of ResourceAmount
        The total amount, and the amount that running jobs hold, of each resource that the site counts.
    """

    name: str
    answers: bool = True
    nodes: int = 0
    for_grid: int = 0
    free: int = 0
    waiting: int = 0
    running: int = 0
    draining: bool = False
    machines: tuple[MachineInfo, ...] = ()
    policy: str = ""
    paused: tuple[int, ...] = ()
    busy: tuple[BusyNodes, ...] = ()
    progress: tuple[JobProgress, ...] = ()
    uplink: LinkStatus | None = None
    kept: tuple[KeptNodes, ...] = ()
    users: str = ""
    problem: str = ""
    fault: LoggedFault | None = None
    kinds: tuple[NodeKind, ...] = ()
    amounts: tuple[ResourceAmount, ...] = ()


class GivenUp(msgspec.Struct, frozen=True):
    """Result of a request to give up a machine: accepted, or refused with a reason in words."""

    refused: Literal["", "unknown-machine", "machine-answers"] = ""
    reason: str = ""


class SiteNames(msgspec.Struct, frozen=True):
    """A site of the grid: its name, number of nodes in the grid's share, machines, and connection problem."""

    name: str
    for_grid: int
    machines: tuple[str, ...] = ()
    problem: str = ""  # why the grid and the site reject each other's messages; empty: connected


EventKind = Literal[
    "submitted", "waits", "kept", "queued", "hold", "release", "cancelled", "signal", "requeue", "reserved", "released",
    "refused", "delegated", "starting", "runs", "delayed", "left", "moved", "evicts", "evicted", "retried",
    "paused", "resumed", "ended", "split", "took", "beside", "shares",
]  # fmt: skip
"""Kinds of events in the history of a job (docs/live.md, "The history")."""


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event in a job's history, as sent to subscribers.

    Attributes
    ----------
    number : int
        Ascending number; a subscriber that reconnects requests the events after the last number it has received.
    kind, detail : str
        As in the job's history.
    user, name : str
        The job's user and name.
    """

    number: int
    at_ms: int
    job_id: int
    kind: str
    detail: str = ""
    user: str = ""
    name: str = ""


class JobEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The events after a given number.

    Attributes
    ----------
    events : list of JobEvent
        In ascending order of their numbers.
    last : int
        The number to use in the next request; there may be no event with this number.
    """

    events: list[JobEvent]
    last: int


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting job, as visible to all users."""

    job_id: int
    user: str = ""
    nodes: int
    limit_ms: int
    submit_ms: int
    state: JobState = "waiting"
    # Expected start, expected placement and reason for waiting, if requested and known.
    start_ms: int | None = None
    places: tuple[tuple[str, int], ...] = ()
    reason: str = ""
    waits_at: str = ""  # the site in whose own queue the job is waiting


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting jobs of a grid or a site, in queue order.

    Attributes
    ----------
    waiting, held, starting, running, ending : int
        Number of jobs in each state.
    jobs : list of QueuedJob
        The first waiting jobs.
    problem : str
        Why the grid or site accepts no jobs now; empty if it accepts jobs.
    fault : LoggedFault, optional
        Last warning or error in the grid's or site's log, shown for a day and only to operators.
    """

    waiting: int = 0
    held: int = 0
    starting: int = 0
    running: int = 0
    ending: int = 0
    jobs: list[QueuedJob] = []
    problem: str = ""
    fault: LoggedFault | None = None

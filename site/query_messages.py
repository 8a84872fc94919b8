"""Define the queries that sites and the grid answer, without importing their schedulers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gridweave.site.job import JobOutcome, JobRecord, NodeIntervals
from gridweave.site.lifecycle import JobState

MOST_LISTED = 1_000
"""Most jobs on one page."""

JobId = Annotated[int, Meta(ge=1, le=2**62)]
Instant = Annotated[int, Meta(ge=0, le=2**62)]
Answers = Annotated[int, Meta(ge=1, le=MOST_LISTED)]


class JobQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conditions of a search for jobs; the result has the newest first.

    Attributes
    ----------
    own : str
        Search the jobs of this site's own users; empty: the jobs of the grid.
    job : tuple of int
        Only these jobs, wherever they were submitted; `own` is then ignored; empty: all jobs.
    user, name, array, site : str, optional
        Only jobs with this user, name or array, or with a fragment at this site.
    state : tuple of str
        Only jobs in one of these states; empty: all.
    outcome : tuple of str
        Only ended jobs with one of these outcomes; empty: all.
    follows : int, optional
        Only jobs that depend on this job; of the ended ones, only the newest.
    since_ms, until_ms : int, optional
        Only jobs that existed between these instants: submitted before the second and not ended before the first.
    below : int, optional
        Only jobs with smaller ids, for the next page.
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
    """A page of jobs, the newest first.

    Attributes
    ----------
    below : int, optional
        The value of `JobQuery.below` for the next page; None: this is the last page.
    """

    jobs: list[JobRecord]
    below: int | None = None


def matches(record: JobRecord, query: JobQuery) -> bool:
    """Whether a job meets all conditions of a query except those on its id."""
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
    """Return the page of a query from the matching jobs; it has a next page if more jobs were found."""
    numbers = sorted((job_id for job_id in records if query.below is None or job_id < query.below), reverse=True)
    page = [records[job_id] for job_id in numbers[: query.limit]]
    return JobPage(jobs=page, below=page[-1].job_id if len(numbers) > query.limit else None)


class LinkStatus(msgspec.Struct, frozen=True):
    """State of a connection since this end started.

    Attributes
    ----------
    site : str
        The site that the connection belongs to.
    url : str
        Address of the other end.
    answered, failed : int
        Number of requests that were answered, and that failed or were refused.
    answered_ms : int
        Unix time of the last answer; 0: none yet.
    seconds : float
        Duration of the last answered request.
    problem : str
        What was wrong with the last request; empty if it succeeded.
    """

    site: str
    url: str
    answered: int = 0
    failed: int = 0
    answered_ms: int = 0
    seconds: float = 0.0
    problem: str = ""


class LoggedFault(msgspec.Struct, frozen=True):
    """A warning or an error in the log of a component.

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
        Whether the agent of the machine answers.
    problem : str
        Why the machine can start nothing now; empty if it has reported no problem.
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
        0 for users who may not see the job.
    nodes : tuple of (int, int)
        Half-open intervals of node numbers at the site; the numbers of each machine are consecutive.
    """

    job_id: int
    nodes: NodeIntervals


class JobProgress(msgspec.Struct, frozen=True):
    """Progress of a running job at a site whose limits count work, not wall time.

    Attributes
    ----------
    speed : float
        Current fraction of full speed; 0: paused.
    worked_ms : int
        Work done so far, as run time at full speed.
    """

    job_id: int
    speed: float
    worked_ms: int


class KeptNodes(msgspec.Struct, frozen=True):
    """Nodes of a site that are reserved for a period.

    Attributes
    ----------
    kind : str
        ``reservation``: an advance reservation; ``lease``: for a multi-site job until its agreed start.
    number : int
        Id of the reservation or the job; 0 for users who may not see the job.
    start_ms, end_ms : int
        Start of the reservation or the job, and its latest end.
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
        Whether the site answers; if not, the other fields have the last known values.
    nodes, for_grid, free : int
        Total nodes, nodes of the grid's share, and free nodes.
    waiting, running : int
        Number of jobs at the site, of the grid and of its own users.
    draining : bool
        Whether it accepts no new grid jobs because an operator drains it.
    policy : str
        Scheduling policy in words, different for any two policies; empty: unknown.
    paused : tuple of int
        Paused jobs: they wait for their time slice, or for other jobs to end.
    busy : tuple of BusyNodes
        Running jobs and their nodes.
    progress : tuple of JobProgress
        Progress of the running jobs, if limits count work.
    uplink : LinkStatus, optional
        The site's connection to the grid as the site reports it, if it uses HTTP.
    kept : tuple of KeptNodes
        Its reservations and leases.
    users : str
        Accepted users in words; only shown to operators.
    problem : str
        Why the site does not work or answer now; empty if it does.
    fault : LoggedFault, optional
        Last warning or error in its log, for a day; only shown to operators.
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


class GivenUp(msgspec.Struct, frozen=True):
    """Result of giving up a machine: done, or refused with a reason in words."""

    refused: Literal["", "unknown-machine", "machine-answers"] = ""
    reason: str = ""


class SiteNames(msgspec.Struct, frozen=True):
    """A site of the grid: name, nodes of the grid's share, machines, and why it is disconnected."""

    name: str
    for_grid: int
    machines: tuple[str, ...] = ()
    problem: str = ""  # why the grid and the site reject each other's messages; empty: connected


EventKind = Literal[
    "submitted", "waits", "kept", "queued", "hold", "release", "cancelled", "signal", "requeue", "reserved", "released",
    "refused", "delegated", "starting", "runs", "delayed", "left", "moved", "evicts", "evicted", "retried",
    "paused", "resumed", "ended", "split", "took", "beside", "shares",
]  # fmt: skip
"""Kinds of events in the history of a job (docs/live.md, "From submission to end")."""


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a job, as sent to subscribers.

    Attributes
    ----------
    number : int
        Ascending; a subscriber that reconnects asks for the events after the last number it has.
    kind, detail : str
        As in the history of the job.
    user, name : str
        User and name of the job.
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
        Ascending by number.
    last : int
        The number for the next request; an event with this number need not exist.
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
    # Start, placement and reason of the wait, if requested and known.
    start_ms: int | None = None
    places: tuple[tuple[str, int], ...] = ()
    reason: str = ""
    waits_at: str = ""  # the site whose own queue has it


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting jobs of a grid or a site, in queue order.

    Attributes
    ----------
    waiting, held, starting, running, ending : int
        Number of jobs in each state.
    jobs : list of QueuedJob
        The first waiting jobs.
    problem : str
        Why the grid or the site accepts no jobs now; empty if it does.
    fault : LoggedFault, optional
        Last warning or error in its log, for a day; only shown to operators.
    """

    waiting: int = 0
    held: int = 0
    starting: int = 0
    running: int = 0
    ending: int = 0
    jobs: list[QueuedJob] = []
    problem: str = ""
    fault: LoggedFault | None = None

"""What desks are asked and answer; whoever asks them need not load the cores for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gridweave.site.job import JobOutcome, JobRecord, NodeIntervals
from gridweave.site.known_times import KnownTimes
from gridweave.site.lifecycle import JobState

MOST_LISTED = 1_000
"""So many jobs are in one page at most."""

JobId = Annotated[int, Meta(ge=1, le=2**62)]
Instant = Annotated[int, Meta(ge=0, le=2**62)]
Answers = Annotated[int, Meta(ge=1, le=MOST_LISTED)]


class JobQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs are asked for; the newest first.

    Attributes
    ----------
    own : str
        Jobs of the own users of this site; empty: those of the grid.
    job : tuple of int
        Only these jobs, wherever they were submitted: `own` does not matter then; empty: all.
    user, name, array, site : str, optional
        Only jobs of this user, of this name, of this array, with a part at this site.
    state : tuple of str
        Only jobs in one of these states; empty: all.
    outcome : tuple of str
        Only jobs that have ended so.
    follows : int, optional
        Only jobs that are to wait for this one; of those that have ended the last ones alone.
    since_ms, until_ms : int, optional
        Only jobs that were there at some time between these instants: not over before the first, and submitted before
        the second.
    below : int, optional
        Only jobs with smaller numbers: where the next page begins.
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
    """Some jobs, the newest first.

    Attributes
    ----------
    below : int, optional
        With which the next page is asked for; None: there is none.
    """

    jobs: list[JobRecord]
    below: int | None = None


def matches(record: JobRecord, wanted: JobQuery) -> bool:
    """Whether a job meets all conditions of a query except those on its number."""
    request = record.request
    array = None if request.array is None else request.array.name
    return (
        (not wanted.state or record.state in wanted.state)
        and (not wanted.outcome or record.outcome in wanted.outcome)
        and (wanted.user is None or request.user == wanted.user)
        and (wanted.name is None or request.name == wanted.name)
        and (wanted.array is None or array == wanted.array)
        and (wanted.site is None or any(site == wanted.site for site, _ in record.places))
        and (wanted.follows is None or any(after.job_id == wanted.follows for after in request.after))
        and (wanted.since_ms is None or record.end_ms is None or record.end_ms >= wanted.since_ms)
        and (wanted.until_ms is None or record.submit_ms < wanted.until_ms)
    )


def page_of(found: Mapping[int, JobRecord], wanted: JobQuery) -> JobPage:
    """Return the page that a query asks for, of jobs that meet it; there is a next page if more were found."""
    numbers = sorted((job_id for job_id in found if wanted.below is None or job_id < wanted.below), reverse=True)
    page = [found[job_id] for job_id in numbers[: wanted.limit]]
    return JobPage(jobs=page, below=page[-1].job_id if len(numbers) > wanted.limit else None)


class LinkStatus(msgspec.Struct, frozen=True):
    """How the way to the other end of a link is, as this end has seen it since it was started.

    Attributes
    ----------
    site : str
        The site whose link it is.
    url : str
        Of the other end.
    answered, failed : int
        Requests that had an answer, and that had none, or were refused.
    answered_ms : int
        Unix time of the last answer; 0: there was none.
    seconds : float
        How long that took.
    problem : str
        What was wrong with the last request; empty: nothing.
    """

    site: str
    url: str
    answered: int = 0
    failed: int = 0
    answered_ms: int = 0
    seconds: float = 0.0
    problem: str = ""


class LoggedFault(msgspec.Struct, frozen=True):
    """A warning or an error that a part of the grid has logged.

    Attributes
    ----------
    at_ms : int
        When, in Unix time.
    text : str
        Its first line.
    """

    at_ms: int
    text: str


class MachineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of a site.

    Attributes
    ----------
    here : bool
        Whether its agent answers.
    problem : str
        Why it can start nothing now; empty if it can, as far as it has said.
    """

    name: str
    host: str = ""
    nodes: int = 0
    here: bool = True
    problem: str = ""


class BusyNodes(msgspec.Struct, frozen=True):
    """The nodes of a site that a running job has.

    Attributes
    ----------
    job_id : int
        0 for who may not know of the job.
    nodes : tuple of (int, int)
        Half-open intervals of their numbers at the site; its machines have theirs one after the other.
    """

    job_id: int
    nodes: NodeIntervals


class JobProgress(msgspec.Struct, frozen=True):
    """How far a running job has come at a site whose limits count work, not time on the clock.

    Attributes
    ----------
    speed : float
        At which part of full speed it works now: 0 while it stands still.
    worked_ms : int
        How much it has done: so long it would have taken at full speed.
    """

    job_id: int
    speed: float
    worked_ms: int


class KeptNodes(msgspec.Struct, frozen=True):
    """Nodes of a site that nothing else may have in a span of time.

    Attributes
    ----------
    kind : str
        ``reservation``: asked for in advance; ``lease``: kept for a job on several sites until its agreed start.
    number : int
        Of the reservation, or of the job; 0 for who may not know of the job.
    start_ms, end_ms : int
        From when the reservation, or the job, has them; and until when, at most.
    """

    kind: Literal["reservation", "lease"]
    number: int
    nodes: int
    start_ms: int
    end_ms: int


class SiteInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a site is.

    Attributes
    ----------
    answers : bool
        Whether its actor does; the numbers are those last known if not.
    nodes, for_grid, free : int
        Nodes in all, how many of them the grid may have, and how many are free.
    waiting, running : int
        Jobs there, of the grid and of its own users.
    draining : bool
        Whether it takes nothing new of the grid.
    policy : str
        How it schedules by itself, in words that tell apart any two policies; empty: not known.
    paused : tuple of int
        Jobs that run there and stand still: until their time slice comes, or those have ended that were to go first.
    busy : tuple of BusyNodes
        What runs on which nodes.
    progress : tuple of JobProgress
        Of the jobs that run there, if limits count work.
    uplink : LinkStatus, optional
        How it reaches the grid, by its own word, if it does so over HTTP.
    kept : tuple of KeptNodes
        Its reservations, and what it keeps under leases.
    users : str
        Whose jobs it takes, in words; told to operators alone.
    problem : str
        Why it does not work now, or does not answer; empty if it works.
    fault : LoggedFault, optional
        The last fault that it has logged, for a day; told to operators alone.
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


class SiteExperience(msgspec.Struct, frozen=True, kw_only=True):
    """What a site knows of how long jobs take.

    Attributes
    ----------
    learns : bool
        Whether it learns that at all: its discipline does, or does not.
    times : list of KnownTimes
        By class, user and resource.
    """

    site: str
    learns: bool
    times: list[KnownTimes] = []


class GivenUp(msgspec.Struct, frozen=True):
    """What became of giving up a machine: it is done, or refused, for a reason in words."""

    refused: Literal["", "unknown-machine", "machine-answers"] = ""
    reason: str = ""


class SiteNames(msgspec.Struct, frozen=True):
    """A site of the grid: its name, how many of its nodes the grid may have, its machines, and why it is cut off."""

    name: str
    for_grid: int
    machines: tuple[str, ...] = ()
    problem: str = ""  # why the grid and the site take no messages from each other; empty: they do


EventKind = Literal[
    "submitted", "waits", "kept", "queued", "hold", "release", "cancelled", "signal", "requeue", "reserved", "released",
    "refused", "delegated", "starting", "runs", "delayed", "left", "moved", "evicts", "evicted", "retried",
    "paused", "resumed", "ended", "split", "took", "beside", "shares",
]  # fmt: skip
"""What happens to jobs (docs/live.md, "The story")."""


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a job, as it is told to those who watch.

    Attributes
    ----------
    number : int
        Ascending; whoever was cut off asks for what came after it.
    kind, detail : str
        As in the story of the job.
    user, name : str
        Of the job.
    """

    number: int
    at_ms: int
    job_id: int
    kind: str
    detail: str = ""
    user: str = ""
    name: str = ""


class JobEvents(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened after an event.

    Attributes
    ----------
    events : list of JobEvent
        In ascending order.
    last : int
        With which the next ones are asked for; there may be no event of that number.
    """

    events: list[JobEvent]
    last: int


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits, as everybody may see it."""

    job_id: int
    user: str = ""
    nodes: int
    limit_ms: int
    submit_ms: int
    state: JobState = "waiting"
    # When it starts, where, and why not sooner, if that was asked for and is known.
    start_ms: int | None = None
    places: tuple[tuple[str, int], ...] = ()
    reason: str = ""
    waits_at: str = ""  # the site in whose own queue it waits


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a grid, or of a site, that wait, the first first.

    Attributes
    ----------
    waiting, held, starting, running, ending : int
        How many jobs there are in each state.
    jobs : list of QueuedJob
        The first of those that wait.
    problem : str
        Why the grid, or the site, takes no jobs now; empty if it does.
    fault : LoggedFault, optional
        The last fault that it has logged, for a day; told to operators alone.
    """

    waiting: int = 0
    held: int = 0
    starting: int = 0
    running: int = 0
    ending: int = 0
    jobs: list[QueuedJob] = []
    problem: str = ""
    fault: LoggedFault | None = None

"""What desks answer; whoever asks them need not load the cores for it."""

from __future__ import annotations

import msgspec

from gridweave.site.job import JobRecord, State


class JobList(msgspec.Struct, frozen=True):
    """Some jobs, those with the highest numbers first.

    Attributes
    ----------
    jobs : list of JobRecord
    below : int, optional
        What the next page is below; None: there is none.
    """

    jobs: list[JobRecord]
    below: int | None = None


class MachineStatus(msgspec.Struct, frozen=True):
    """A machine of a site.

    Attributes
    ----------
    name : str
    host : str
        By which it is reached.
    nodes : int
    here : bool
        Whether it answers.
    problem : str
        Why it can start nothing now; empty if it can, as far as it has said.
    """

    name: str
    host: str
    nodes: int
    here: bool
    problem: str = ""


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


class SiteStatus(msgspec.Struct, frozen=True):
    """How a site is.

    Attributes
    ----------
    name : str
    nodes, for_grid, free : int
        Nodes in all, how many of them the grid may have, and how many are free.
    waiting, running : int
        Jobs in its queue, and jobs that have nodes.
    draining : bool
        Whether it takes in nothing new for the grid.
    machines : tuple of MachineStatus
    policy : str
        How it schedules by itself, in words.
    uplink : LinkStatus, optional
        How the way to the grid is, if it is one over HTTP.
    """

    name: str
    nodes: int
    for_grid: int
    free: int
    waiting: int
    running: int
    draining: bool = False
    machines: tuple[MachineStatus, ...] = ()
    policy: str = ""
    uplink: LinkStatus | None = None


class SiteNames(msgspec.Struct, frozen=True):
    """A site of the grid: its name, how many of its nodes the grid may have, and its machines."""

    name: str
    for_grid: int
    machines: tuple[str, ...] = ()


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a job, as it is told to those who watch.

    Attributes
    ----------
    number : int
        Ascending; whoever was cut off asks for what came after it.
    at_ms, job_id : int
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
    state: State = "waiting"


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a grid, or of a site, that wait, the first first.

    Attributes
    ----------
    waiting, held, starting, running : int
        How many jobs there are in each state.
    jobs : list of QueuedJob
        The first of those that wait.
    """

    waiting: int = 0
    held: int = 0
    starting: int = 0
    running: int = 0
    jobs: list[QueuedJob] = []

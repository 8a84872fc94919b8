"""What a live site is told (events, in the past tense), and what it answers (commands, in the imperative)."""

from __future__ import annotations

import msgspec

from gridweave.errors import OptionError
from gridweave.site.contract import Answer, FragmentsMet, Request
from gridweave.site.eligibility import Past
from gridweave.site.live.launch import Launch, Outcome, RankReport
from gridweave.site.live.launch import Usage as Used
from gridweave.site.program import (
    Accepted,
    Declined,
    DescribeJob,
    FragmentReport,
    JobRequest,
    Noted,
    RecordEnded,
    RecordUsage,
)

LOCAL = "127.0.0.1"
"""By which a machine is reached that has not said how."""


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of a site.

    Attributes
    ----------
    name : str
        Unique within the site.
    nodes : int
        How many nodes of the site it is, >= 1.
    ports : tuple of (int, int)
        Half-open range of ports at which the ranks of jobs may meet; empty: none.

    Raises
    ------
    OptionError
        If a value makes no sense.
    """

    name: str
    nodes: int
    ports: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if not self.name:
            raise OptionError("name", "of a machine is empty; any text will do")
        if self.nodes < 1:
            raise OptionError("nodes", f"is {self.nodes} of machine {self.name}; a whole number from 1 up")
        low, high = self.ports
        if not (low == high == 0 or 1 <= low <= high <= 65536):
            raise OptionError("ports", f"is {self.ports} of machine {self.name}; two ports from 1 to 65536, ascending")


class OwnSubmitted(msgspec.Struct, frozen=True, tag=True):
    """A user of the site has handed in a job.

    Attributes
    ----------
    key : str
    request : JobRequest
    origin : str
        Who asked, and with which request; it is told in the story.
    past : tuple of Past
        What the journal knows of the jobs that it waits for and that are over.
    """

    key: str
    request: JobRequest
    origin: str = ""
    past: tuple[Past, ...] = ()


class OwnCancelled(msgspec.Struct, frozen=True, tag=True):
    """A user of the site wants a job to end, or not to start."""

    job_id: int
    origin: str = ""


class OwnHeld(msgspec.Struct, frozen=True, tag=True):
    """A user of the site wants jobs that wait not to start."""

    job_ids: tuple[int, ...]
    origin: str = ""


class OwnReleased(msgspec.Struct, frozen=True, tag=True):
    """A user of the site wants jobs to be held no more."""

    job_ids: tuple[int, ...]
    origin: str = ""


class RunStarted(msgspec.Struct, frozen=True, tag=True):
    """A machine runs its part of a job."""

    agent: str
    job_id: int
    attempt: int


class RunEnded(msgspec.Struct, frozen=True, tag=True):
    """A machine runs nothing of a job any more.

    Attributes
    ----------
    agent : str
    job_id, attempt : int
    outcome : str
        ``lost``: nobody knows how that came.
    reason : str
    ranks : tuple of RankReport
    used : Used
    has_run : bool
        Whether it may have run; if not, it certainly has not.
    """

    agent: str
    job_id: int
    attempt: int
    outcome: Outcome
    reason: str = ""
    ranks: tuple[RankReport, ...] = ()
    used: Used = Used()
    has_run: bool = True


class RunDelayed(msgspec.Struct, frozen=True, tag=True):
    """A machine cannot start its part of a job now; what it is asked again once it has room it starts."""

    agent: str
    job_id: int
    attempt: int
    reason: str


class MachineReady(msgspec.Struct, frozen=True, tag=True):
    """A machine that could not start anything can again."""

    agent: str


class AgentJoined(msgspec.Struct, frozen=True, tag=True):
    """A machine is there, for the first time or again; it is asked what it still knows (`ConfirmRun`).

    Attributes
    ----------
    agent : str
    host : str
        By which other machines reach it.
    """

    agent: str
    host: str


class AgentForgotten(msgspec.Struct, frozen=True, tag=True):
    """The operator says that a machine will not come back: what it ran is lost."""

    agent: str


class Probed(msgspec.Struct, frozen=True, tag=True):
    """A site has measured the way to another.

    Attributes
    ----------
    origin, target : str
    at_ms : int
    round_trips_ms : tuple of float
    there_bps, back_bps : float
        0 if that was not measured.
    """

    origin: str
    target: str
    at_ms: int
    round_trips_ms: tuple[float, ...]
    there_bps: float = 0.0
    back_bps: float = 0.0


LiveSiteEvent = (
    Request
    | DescribeJob
    | FragmentsMet
    | OwnSubmitted
    | OwnCancelled
    | OwnHeld
    | OwnReleased
    | RunStarted
    | RunEnded
    | RunDelayed
    | MachineReady
    | AgentJoined
    | AgentForgotten
)
"""What a live site is told."""

SiteMessage = Answer | FragmentReport
"""What a site tells the grid."""


class StartRun(msgspec.Struct, frozen=True, tag=True):
    """Have a machine run its part of a job; all times are the site's.

    Attributes
    ----------
    agent : str
    launch : Launch
        The hardware threads of its ranks are counted from 0 on each node.
    slots : tuple of int
        The node of that machine, from 0, that each rank runs on.
    """

    agent: str
    launch: Launch
    slots: tuple[int, ...]


class ConfirmRun(msgspec.Struct, frozen=True, tag=True):
    """Have a machine that was away say that it runs its part of a job, or that it knows nothing of it any more."""

    agent: str
    job_id: int
    attempt: int


class EndRun(msgspec.Struct, frozen=True, tag=True):
    """Have a machine end its part of a job."""

    agent: str
    job_id: int
    attempt: int
    reason: str


class LookForRoom(msgspec.Struct, frozen=True, tag=True):
    """Have a machine that could not start anything say so when it can."""

    agent: str


class TellGrid(msgspec.Struct, frozen=True, tag=True):
    """Send a message to the meta-scheduler."""

    message: SiteMessage


LiveSiteCommand = StartRun | EndRun | TellGrid | Accepted | Declined | Noted | RecordUsage | RecordEnded

Order = StartRun | ConfirmRun | EndRun | LookForRoom
"""What a site tells a machine."""

Report = RunStarted | RunEnded | RunDelayed | MachineReady | AgentJoined
"""What a machine tells its site."""

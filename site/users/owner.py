"""What the owner of a site lets the grid have of it, and what of that the jobs of the grid have."""

from __future__ import annotations

import math

import msgspec

from gridweave.errors import OptionError
from gridweave.site.disciplines.entry import Policy
from gridweave.site.job import Job
from gridweave.site.kernels.work import RATE_ONE, late_end_ms, work_left
from gridweave.site.messages import RunsLate, StartJob


class OwnerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner of a site lets the grid have.

    Raises
    ------
    OptionError
        If the share is not within [0, 1].
    """

    grid_share: float = 1.0  # part of the nodes that jobs of the grid may hold at one time, within [0, 1]
    own_users_first: bool = False  # whether the owner's users stand ahead of the grid's delegated jobs in the queue

    def __post_init__(self) -> None:
        if not 0 <= self.grid_share <= 1:
            raise OptionError("grid_share", f"is {self.grid_share}; a number from 0 to 1, 0.5 for half of the nodes")

    def nodes_for_grid(self, nodes: int) -> int:
        """Return how many of a site's nodes jobs of the grid may hold at one time: the share, rounded down."""
        return math.floor(nodes * self.grid_share + 1e-9)

    def as_delegated(self, job: Job) -> Job:
        """Return a job of the grid as it stands in the queue of the site."""
        return msgspec.structs.replace(job, behind=self.own_users_first)


def policy_label(policy: Policy, owner: OwnerPolicy) -> str:
    """Return how a site schedules, in words that tell apart any two that do so differently.

    Examples
    --------
    >>> from gridweave.site.policy import SitePolicy
    >>> policy_label(SitePolicy(order="sjf"), OwnerPolicy(own_users_first=True))
    'sjf easy, own users first'
    """
    return f"{policy.label}, own users first" if owner.own_users_first else policy.label


class ShareState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What jobs of the grid have and wait for, as in `GridShare`."""

    draining: bool
    shut: str
    nodes: int
    waiting: int
    outside: list[Job]


class GridShare:
    """The nodes that jobs of the grid have and wait for, beside what the owner gives.

    They may hold as many as the ``cap`` at one time; where that is the whole site and several jobs may be on a node,
    the share `overlaps`: they may have more nodes, added up, than there are. `nodes` are those that they hold or wait
    for, `waiting` those of them that they wait for, and `outside` the delegated jobs that are not let into the queue of
    the site yet.
    """

    def __init__(self, site_nodes: int, cap: int, *, shares_nodes: bool) -> None:
        self._site_nodes = site_nodes
        self.cap = cap
        self.is_whole = cap == site_nodes
        self.overlaps = shares_nodes and self.is_whole
        self.draining = False
        self.shut = ""
        self.nodes = 0
        self.waiting = 0
        self.outside: dict[int, Job] = {}
        self._outside_nodes = 0

    def state(self) -> ShareState:
        """Return what jobs of the grid have and wait for."""
        return ShareState(self.draining, self.shut, self.nodes, self.waiting, list(self.outside.values()))

    def restore(self, state: ShareState) -> None:
        """Take in what jobs of the grid had and waited for."""
        self.draining, self.shut, self.nodes, self.waiting = state.draining, state.shut, state.nodes, state.waiting
        self.outside = {job.job_id: job for job in state.outside}
        self._outside_nodes = sum(job.width for job in state.outside)

    @property
    def closed(self) -> str | None:
        """Why the site takes in nothing new for the grid; None if it does."""
        return "the site is being drained" if self.draining else self.shut or None

    @property
    def held(self) -> int:
        """Nodes that jobs of the grid have now."""
        return self.nodes - self.waiting

    @property
    def room(self) -> int:
        """Nodes that jobs of the grid may have now beside those that they have, if they are free."""
        if self.closed:
            return 0
        return self.cap if self.overlaps else max(0, self.cap - self.held)

    def others(self, free: int) -> int:
        """Return how many of the nodes of the share the grid could not have now even if it held none.

        Below 0 where the grid's own jobs share nodes: then they take fewer than they are wide.
        """
        if self.closed:
            return self.cap - self.held
        others = self._site_nodes - free - self.held
        return others if self.overlaps else max(0, others - (self._site_nodes - self.cap))

    def why_not(self, width: int) -> str | None:
        """Return why the grid may not have so many more nodes, or wait for them; None if it may."""
        nodes = width if self.is_whole else self.nodes + width
        return self.closed or (self.why_outside if nodes > self.cap else None)

    def why_not_ever(self, width: int) -> str | None:
        """Return why the grid may not have so many nodes though it waits for them; None if it may."""
        return self.closed or (self.why_outside if width > self.cap else None)

    @property
    def why_outside(self) -> str:
        """Why a job is not let in, in one line."""
        return f"the owner lets the grid have {self.cap} nodes, and its jobs have or wait for {self.nodes}"

    def wait(self, job: Job) -> None:
        """Have a delegated job wait to be let in."""
        self.nodes += job.width
        self.waiting += job.width
        self.outside[job.job_id] = job
        self._outside_nodes += job.width

    def let_in(self) -> list[Job]:
        """Let delegated jobs into the site's queue, first come first, as far as the share goes.

        Where the share is the whole site, the queue itself sees to it that no more nodes are held than there are.
        """
        entering: list[Job] = []
        for job_id, job in list(self.outside.items()):
            inside = self.nodes - self._outside_nodes
            if not self.is_whole and inside + job.width > self.cap:
                break
            self.leave_outside(job_id)
            entering.append(job)
        return entering

    def leave_outside(self, job_id: int) -> bool:
        """Take a job out of those that wait to be let in; return whether it was there."""
        job = self.outside.pop(job_id, None)
        if job is not None:
            self._outside_nodes -= job.width
        return job is not None


class SlowedFragment(msgspec.Struct, gc=False):
    """How a fragment gets on that something outside of its site slows: links that are loaded, or down.

    Its limit counts work and not time: if that comes and the work is not done, it is put off to the instant at which it
    will be done at the rate that the fragment has then. From then on the grid is told of its rate (docs/grid.md, "Late
    ends").
    """

    left: int  # of its work by its estimate, as of ``since_ms``
    rate: int  # since then
    since_ms: int
    limit_ms: int  # when it is killed if its work is done by then
    is_late: bool = False  # whether the grid has been told

    def left_at(self, now_ms: int) -> int:
        """Return what is left of the work."""
        return int(work_left(self.left, self.rate, self.since_ms, now_ms))

    def measured(self, now_ms: int, rate: int, left: int | None) -> None:
        """Record the rate from now on; `left` is the remaining work, or None if it follows from the rates so far."""
        self.left = self.left_at(now_ms) if left is None else left
        self.rate, self.since_ms = rate, now_ms

    def put_off(self, now_ms: int) -> bool:
        """Move a limit that has come to the end of the work at the present rate; return whether work was left."""
        left = self.left_at(now_ms) if self.limit_ms <= now_ms else 0
        if left > 0:
            self.limit_ms = int(late_end_ms(left, self.rate, now_ms))
        return left > 0

    def as_told(self, job_id: int, attempt: int) -> RunsLate:
        """Return the message that tells the grid how the fragment gets on."""
        return RunsLate(job_id, attempt, self.left, self.rate, self.since_ms)


class GridJob(msgspec.Struct, gc=False):
    """What the site has of a job of the grid: a fragment that has nodes reserved or runs, or a delegated job."""

    attempt: int
    width: int
    state: str
    start_ms: int = 0
    shared: bool = False
    length_ms: int = 0
    grant: StartJob | None = None
    rate: int = RATE_ONE
    lease_until_ms: int = 0
    outcome: str = "finished"
    slowed: SlowedFragment | None = None
    opened_ms: int | None = None
    evicted: str = ""  # for which job, and why, where it was
    ahead: bool = False  # whether its start is agreed on when all sites have their nodes; till then it has a lease

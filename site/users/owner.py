"""The share of a site that its owner gives to the grid, and the grid jobs that use it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from gridweave.errors import OptionError
from gridweave.site.disciplines.entry import Policy
from gridweave.site.job import Job
from gridweave.site.kernels.work import RATE_ONE, late_end_ms, work_left
from gridweave.site.lifecycle import EVICTED, GRANTED, LEASED, STARTED, WAITING
from gridweave.site.messages import RunsLate, StartJob
from gridweave.site.resources.shares import NODE


class OwnerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The share of a site that its owner gives to the grid.

    Raises
    ------
    OptionError
        If the share is not within [0, 1].
    """

    grid_share: float = 1.0  # largest fraction of the nodes that grid jobs can use at one time, within [0, 1]
    own_users_first: bool = False  # whether jobs of the site's own users come before delegated jobs in the queue

    def __post_init__(self) -> None:
        if not 0 <= self.grid_share <= 1:
            raise OptionError("grid_share", f"is {self.grid_share}; expected 0 to 1, e.g. 0.5 for half of the nodes")

    def nodes_for_grid(self, nodes: int) -> int:
        """Return the maximum number of nodes that grid jobs can use at one time: the share of `nodes`, rounded down."""
        return math.floor(nodes * self.grid_share + 1e-9)

    def as_delegated(self, job: Job) -> Job:
        """Return a delegated job for the site's queue, marked to come after the site's own jobs if those come first."""
        return msgspec.structs.replace(job, behind=self.own_users_first)


def policy_label(policy: Policy, owner: OwnerPolicy) -> str:
    """Return a label for how a site schedules; sites that schedule differently get different labels.

    Examples
    --------
    >>> from gridweave.site.policy import SitePolicy
    >>> policy_label(SitePolicy(order="sjf"), OwnerPolicy(own_users_first=True))
    'sjf easy, own users first'
    """
    return f"{policy.label}, own users first" if owner.own_users_first else policy.label


class ShareState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a `GridShare`."""

    draining: bool
    shut: str
    nodes: int
    waiting: int
    outside: list[Job]


class GridShare:
    """The nodes that grid jobs use or wait for, counted against the owner's share.

    Parameters
    ----------
    site_nodes : int
        Number of nodes of the site.
    cap : int
        Maximum number of nodes that grid jobs can use at one time.
    overlaps : bool
        Whether jobs can share nodes, so that the total width of grid jobs can exceed the site's number of nodes.
    share_of : callable
        Returns what a job counts as, in millionths of a node (`gridweave.site.resources.shares`).
    counts_resources : bool
        Whether the site counts resources. Jobs that need different ones can together count as more nodes than it has.

    Attributes
    ----------
    is_whole : bool
        Whether the share is the whole site.
    overlaps : bool
        Whether the share is the whole site and jobs can share nodes.
    is_bounded : bool
        Whether grid jobs can never count as more nodes than the share.
    draining : bool
        Whether an operator is draining the site.
    shut : str
        Why the site cannot start jobs; empty if it can.
    used, waiting : int
        What grid jobs use or wait for, and what they wait for, in millionths of a node.
    outside : dict of int to Job
        Delegated jobs that have not entered the site's queue yet.
    """

    def __init__(
        self,
        site_nodes: int,
        cap: int,
        *,
        overlaps: bool,
        share_of: Callable[[Job], int],
        counts_resources: bool = False,
    ) -> None:
        self._site_nodes = site_nodes
        self.cap = cap
        self.is_whole = cap == site_nodes
        self.overlaps = overlaps and self.is_whole
        self.is_bounded = not (self.is_whole and (overlaps or counts_resources))
        self.draining = False
        self.shut = ""
        self.used = 0
        self.waiting = 0
        self.outside: dict[int, Job] = {}
        self._share_of = share_of
        # What each job in `outside` counts as; the estimate of a batch system can change while a job waits.
        self._outside_shares: dict[int, int] = {}

    def state(self) -> ShareState:
        """Return the state between two instants."""
        waiting = nodes_in(self.waiting)
        return ShareState(self.draining, self.shut, self.nodes, waiting, list(self.outside.values()))

    def restore(self, state: ShareState, parts: Mapping[int, GridJob]) -> None:
        """Restore this new share from a state and from the parts of grid jobs at the site."""
        self.draining, self.shut = state.draining, state.shut
        self.used = sum(part.counts_as for part in parts.values() if part.state != EVICTED)
        self.waiting = sum(part.counts_as for part in parts.values() if part.state == WAITING)
        self.outside = {job.job_id: job for job in state.outside}
        self._outside_shares = {job_id: parts[job_id].counts_as for job_id in self.outside}

    @property
    def closed(self) -> str | None:
        """Why the site is accepting no new grid jobs, or None."""
        return "the site is being drained" if self.draining else self.shut or None

    @property
    def nodes(self) -> int:
        """Number of nodes that grid jobs use or wait for, rounded up."""
        return nodes_in(self.used)

    @property
    def held(self) -> int:
        """Number of nodes that grid jobs are using, rounded up."""
        return nodes_in(self.used - self.waiting)

    @property
    def left(self) -> int:
        """What further grid jobs may use now, in millionths of a node, whether or not that much is free."""
        if self.closed:
            return 0
        return max(0, self.cap * NODE - (self.used - self.waiting)) if self.is_bounded else self.cap * NODE

    @property
    def further_nodes(self) -> int:
        """Number of additional nodes that grid jobs may use now, whether or not that many are free."""
        return self.left // NODE

    def others(self, free: int) -> int:
        """Return the number of nodes in the grid's share that grid jobs are not using and could not use now.

        `free` is the site's number of free nodes. The result can be negative if jobs share nodes by hardware threads
        or slow each other down, because grid jobs then occupy fewer nodes than their total width.
        """
        others = self.cap - self.held if self.closed else self._site_nodes - free - self.held
        if self.overlaps:
            return others
        return max(0, others if self.closed else others - (self._site_nodes - self.cap))

    def why_not(self, job: Job) -> str | None:
        """Return why the grid cannot use or wait for the nodes of one more job, or None."""
        return self._why_beyond(job, 0 if self.is_whole else self.used)

    def why_not_ever(self, job: Job) -> str | None:
        """Return why the grid could not use or wait for a job's nodes even without its current jobs, or None."""
        return self._why_beyond(job, 0)

    def _why_beyond(self, job: Job, used: int) -> str | None:
        if self.closed or (self.is_whole and job.chunk):  # the site itself knows whether the chunks fit
            return self.closed
        share = self._share_of(job)
        if used + share <= self.cap * NODE:
            return None
        return f"{self.why_outside}; this job counts as {nodes_in(share)}" if job.chunk else self.why_outside

    @property
    def why_outside(self) -> str:
        """One-line reason why a delegated job cannot enter the site's queue yet."""
        return f"the grid's share is {self.cap} nodes, and its jobs use or wait for {self.nodes}"

    def wait(self, job: Job, share: int) -> None:
        """Add a delegated job that waits to enter the site's queue."""
        self.used += share
        self.waiting += share
        self.outside[job.job_id], self._outside_shares[job.job_id] = job, share

    def let_in(self) -> list[Job]:
        """Admit delegated jobs to the site's queue, first come, first served, within the share; return them.

        If the share is the whole site, all jobs enter, because the queue itself starts only jobs that fit.
        """
        entering: list[Job] = []
        for job_id, job in list(self.outside.items()):
            inside = self.used - sum(self._outside_shares.values())
            if not self.is_whole and inside + self._outside_shares[job_id] > self.cap * NODE:
                break
            self.leave_outside(job_id)
            entering.append(job)
        return entering

    def leave_outside(self, job_id: int) -> bool:
        """Remove a delegated job that has not entered the site's queue; return whether there was one with this id."""
        self._outside_shares.pop(job_id, None)
        return self.outside.pop(job_id, None) is not None


def nodes_in(share: int) -> int:
    """Return a share as a number of nodes, rounded up."""
    return -(-share // NODE)


class SlowedFragment(msgspec.Struct, gc=False):
    """The progress of a fragment that is delayed by slow or broken links.

    The fragment's limit applies to work, not to time. If work remains at the limit, the limit moves to the end of that
    work at the current rate. From then on, the site reports each new rate to the grid (docs/grid.md, "Late ends").
    """

    left: int  # remaining work at ``since_ms``, according to the job's estimate
    rate: int  # rate since ``since_ms``
    since_ms: int
    limit_ms: int  # when the fragment is killed, unless work remains
    is_late: bool = False  # whether the limit has moved and the grid was notified

    def left_at(self, now_ms: int) -> int:
        """Return the work that remains at ``now_ms``."""
        return int(work_left(self.left, self.rate, self.since_ms, now_ms))

    def measured(self, now_ms: int, rate: int, left: int | None) -> None:
        """Record the rate from now on; `left` is the remaining work, or None to compute it from the previous rate."""
        self.left = self.left_at(now_ms) if left is None else left
        self.rate, self.since_ms = rate, now_ms

    def put_off(self, now_ms: int) -> bool:
        """If the limit has passed and work remains, move the limit to the end of that work; return whether it moved."""
        left = self.left_at(now_ms) if self.limit_ms <= now_ms else 0
        if left > 0:
            self.limit_ms = int(late_end_ms(left, self.rate, now_ms))
        return left > 0

    def late_report(self, job_id: int, attempt: int) -> RunsLate:
        """Return the message that reports the remaining work and the rate to the grid."""
        return RunsLate(job_id, attempt, self.left, self.rate, self.since_ms)


class GridJob(msgspec.Struct, gc=False):
    """A fragment of a grid job, or a delegated job, at a site; its states are in the table `PART`."""

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
    evicted: str = ""  # which job took the fragment's nodes, and why; empty if it was not evicted
    ahead: bool = False  # whether nodes are reserved in advance, with no agreed start yet
    share: int = 0  # what a job with chunks counts as, in millionths of a node; 0: its width counts

    @property
    def counts_as(self) -> int:
        """What the job counts as against the owner's share, in millionths of a node."""
        return self.share or self.width * NODE

    @property
    def has_lease(self) -> bool:
        """Whether the fragment times out unless the grid renews its lease or commits its nodes."""
        return self.state in LEASED

    @property
    def is_granted(self) -> bool:
        """Whether the fragment has nodes but has not started."""
        return self.state in GRANTED

    @property
    def has_started(self) -> bool:
        """Whether the fragment may have processes."""
        return self.state in STARTED

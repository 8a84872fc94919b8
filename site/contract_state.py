"""What one site has promised to its own users and to the grid, and the questions about it that change nothing."""

from __future__ import annotations

import msgspec

from gridweave.site.checks import why_impossible
from gridweave.site.contract import Quoted, RequestQuote, SiteChanged, ToGrid
from gridweave.site.core import SiteCore
from gridweave.site.disciplines import PlainDiscipline, Policy
from gridweave.site.explain import Explanation
from gridweave.site.kernels.rates import RATE_ONE
from gridweave.site.messages import Command, Event, Job, StartJob
from gridweave.site.owner import GridShare, OwnerPolicy
from gridweave.site.pace import Paces

RENDEZVOUS_MS = 30_000
"""How long the fragments of a job wait for each other after the agreed start, before they end by themselves."""

OWN = 0
"""Stands where jobs of the grid have the number of their attempt."""

HELD, COMMITTED, RUNNING, WAITING = "held", "committed", "running", "waiting"


class Part(msgspec.Struct, gc=False):
    """What the site has of a job of the grid."""

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


class ContractState:
    """A site as the site contract sees it; what changes it is in `gridweave.site.contract_core.ContractCore`.

    Parameters
    ----------
    nodes, policy, owner, week_offset_ms, rendezvous_ms
        As for `ContractCore`.
    """

    def __init__(
        self,
        nodes: int,
        policy: Policy,
        *,
        owner: OwnerPolicy | None = None,
        week_offset_ms: int = 0,
        rendezvous_ms: int = RENDEZVOUS_MS,
    ) -> None:
        self.site = SiteCore(nodes, policy, week_offset_ms=week_offset_ms)
        self.nodes = nodes
        self._owner = owner or OwnerPolicy()
        self._share = GridShare(nodes, self._owner.nodes_for_grid(nodes), shares_nodes=self.site.threads_per_node > 1)
        self.rendezvous_ms = rendezvous_ms
        self._now_ms = 0
        self._parts: dict[int, Part] = {}
        # Those of the parts that some instant may change; the others are not looked at.
        self._timed: set[int] = set()
        self._paces = Paces()
        self._own_running: dict[int, Job] = {}
        self._own_jobs: dict[int, Job] = {}
        self._told = SiteChanged(0, self._share.cap)
        self._out: list[Command | ToGrid] = []
        # What the site is to be told at this instant.
        self._inner: list[Event] = []
        self._plain = self._at_rest()

    def _at_rest(self) -> PlainDiscipline | None:
        """Return the discipline if neither it nor what is promised needs a decision but for what comes; or None.

        What is done at once does not change that, so it is asked for after all else.
        """
        share = self._share
        if self._timed or self._paces.by_job or share.draining or share.shut or share.outside:
            return None
        return self.site.at_rest

    @property
    def draining(self) -> bool:
        """Whether the site takes in nothing new for the grid, as somebody wished."""
        return self._share.draining

    @property
    def shut(self) -> str:
        """Why the site can take in nothing new for the grid; empty if it can."""
        return self._share.shut

    def forecast(self, now_ms: int, job_id: int) -> Explanation | None:
        """Return when a job starts that waits or is held here, the grid's or an own user's; None if there is no such.

        Nothing changes by that.
        """
        part = self._parts.get(job_id)
        if job_id in self._own_jobs or (
            part is not None and part.state == WAITING and job_id not in self._share.outside
        ):
            return self.site.aside().explain(now_ms, job_id)
        if part is None or part.state == RUNNING:
            return None
        place, start_ms, reason = 0, part.start_ms, "its nodes are held until the start that was agreed on"
        if part.state == WAITING:
            place, start_ms = list(self._share.outside).index(job_id), -1
            reason = self._share.why_outside
        return Explanation(
            job_id=job_id,
            place=place,
            start_ms=None if start_ms < 0 else start_ms,
            is_bound=False,
            width=part.width,
            free=self.site.free,
            waits_for=(),
            reason=reason,
        )

    def quote(self, now_ms: int, job: Job, *, for_grid: bool = False) -> Explanation:
        """Return when a job would start that were submitted now, by an own user or by the grid.

        Nothing changes by that.

        Parameters
        ----------
        now_ms : int
        job : Job
            One that is not here.
        for_grid : bool
            Whether it would be the grid's, which may have no more than the owner gives.
        """
        answer = self.site.aside().quote(now_ms, job)
        reason = self._share.why_not(job.width) if for_grid else None
        if reason is None:
            return answer
        return msgspec.structs.replace(answer, start_ms=None, waits_for=(), reason=reason)

    def part_state(self, job_id: int) -> str | None:
        """Return whether a job of the grid is held, committed, running or waiting here; None if it is not here."""
        part = self._parts.get(job_id)
        return None if part is None else part.state

    def attempt_of(self, job_id: int) -> int:
        """Return the attempt of a job of the grid that is here; `OWN` for a job of the site's own users."""
        part = self._parts.get(job_id)
        return OWN if part is None else part.attempt

    def grant_of(self, job_id: int) -> StartJob | None:
        """Return the nodes that a job of the grid holds or runs on here; None if it has none."""
        part = self._parts.get(job_id)
        return None if part is None else part.grant

    def _quote(self, request: RequestQuote) -> Quoted:
        room = self._share.room
        free = min(room, self.site.startable(self._now_ms, request.length_ms))
        reason = self._share.why_not(request.width)
        start_ms = None
        if reason is None:
            start_ms = self.site.earliest_start_ms(self._now_ms, request.width, request.length_ms)
            reason = "" if start_ms is not None else f"the site has {self.nodes} nodes"
        return Quoted(request.quote_id, free, start_ms, reason, self._slowdown_of(request, room))

    def _slowdown_of(self, request: RequestQuote, room: int) -> float | None:
        """Return at which slowdown a job could share nodes now, if it says what it needs, and the site shares any."""
        if request.resources is None or request.width > room:
            return None
        job = Job(job_id=0, width=request.width, estimate_ms=request.length_ms, resources=request.resources)
        return self.site.slowdown_offered(self._now_ms, job) if why_impossible(job) is None else None

    def _part(self, job_id: int, attempt: int) -> Part | None:
        part = self._parts.get(job_id)
        return part if part is not None and part.attempt == attempt else None

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself, or the grid has more than the owner gives."""
        self.site.check_invariants()
        share = self._share
        assert share.waiting == sum(part.width for part in self._parts.values() if part.state == WAITING)
        assert share.nodes == sum(part.width for part in self._parts.values()), "the grid's nodes do not add up"
        assert share.overlaps or share.held <= share.cap, "the owner's share is exceeded"
        running = {running.job.job_id for running in self.site.running()}
        waiting = {job.job_id for job, _ in self.site.waiting()}
        for job_id, part in self._parts.items():
            place = share.outside if job_id in share.outside else waiting if part.state == WAITING else running
            assert job_id in place, f"job {job_id} is {part.state}, not so"
            assert part.state not in (HELD, WAITING) or job_id in self._timed, f"job {job_id} has no lease"
        grid = set(self._parts)
        assert running - grid == set(self._own_running), "the own users' running jobs differ"
        assert waiting - grid == set(self._own_jobs), "the own users' waiting jobs differ"

"""The simulated world: real site cores and a real meta-scheduler in virtual time.

The world replaces users, networks and nodes. It knows the run times, delivers messages, injects faults and records the
history. It makes no scheduling decisions: as in a live grid, the cores decide when and where each job starts.

A watchdog stops a run that makes no progress for longer than any job or fault can last.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from gridweave.grid.messages import (
    FromSite,
    GridEvent,
    GridJobCancelled,
    GridJobSubmitted,
    ReportDone,
    ReportRefused,
    ToSite,
)
from gridweave.grid.meta.core import MetaCore
from gridweave.scenarios.world.connections import GRID, GRID_END, PACKET, RESEND, SITE_END, Connections, Faults, Routes
from gridweave.scenarios.world.history import History, ViolationError
from gridweave.scenarios.world.traffic import WorldLinks
from gridweave.scenarios.world.works import Works, WorldJob, WorldLengths
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.messages import (
    Answer,
    ChangeRate,
    Command,
    CommitNodes,
    EnqueueJob,
    EvictJob,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    KillJob,
    LeaseEnded,
    MoveJob,
    RefuseJob,
    RenewLeases,
    Request,
    Reserved,
    ReserveNodes,
    SiteRestarted,
    Started,
    StartJob,
    ToGrid,
)
from gridweave.site.scheduler.contract import ContractCore, ContractEvent

LOOK_EVERY = 4096
"""Number of instants between two checks for progress."""

PATIENCE_MS = 8 * 86_400_000
"""Maximum time without progress while no job is running; sites may be closed for a week, and messages get lost."""

PATIENCE_INSTANTS = 1_000_000
"""Maximum number of instants without progress while no job is running; beyond it, messages circulate endlessly."""


class Watchdog:
    """Raises ViolationError if a run makes no progress for too long."""

    def __init__(self, longest_ms: Callable[[], int]) -> None:
        self._longest_ms = longest_ms
        self._progress: Hashable = None
        self._since_ms = 0
        self._instants = 0

    def look(self, now_ms: int, progress: Hashable, *, open_jobs: int, works: bool) -> None:
        """Compare ``progress`` with its value at the last call; any difference counts as progress."""
        if progress != self._progress:
            self._progress, self._since_ms, self._instants = progress, now_ms, 0
            return
        self._instants = 0 if works else self._instants + LOOK_EVERY
        idle_ms = now_ms - self._since_ms
        if self._instants < PATIENCE_INSTANTS and idle_ms <= PATIENCE_MS:
            return
        if self._instants < PATIENCE_INSTANTS and idle_ms <= PATIENCE_MS + self._longest_ms():
            return
        raise ViolationError(
            f"{now_ms} ms: the run never ends: no progress since {self._since_ms} ms, and {open_jobs} jobs are open"
        )


# Kinds of events, in processing order within an instant. Arriving data and ending jobs are processed before them.
_LINKS, _FAIL, _RETURN, _CUT, _END_CUT = range(PACKET)
_CANCEL = RESEND + 1

_PLANNED = "planned"
"""Value that marks the events of planned faults in the event heap."""

_NEVER = int(NEVER_MS)

_MAX_ROUNDS = 10_000
"""Maximum number of message rounds between the sites and the grid at one instant, plus one for each job."""


def _history_of(sites: Sequence[ContractCore]) -> History:
    lanes = [site.site.threads_per_node for site in sites]
    traits = [site.site.traits for site in sites]
    slices, fractions = (
        [site_traits.slices_time or site_traits.pauses for site_traits in traits],
        [site_traits.fractions for site_traits in traits],
    )
    return History([site.nodes for site in sites], lanes, slices, fractions)


class World:
    """Sites, a meta-scheduler, and the connections between them.

    ``check`` enables slow checks: of the cores' invariants after every step, and of all leases after every instant.
    With ``channels``, messages travel through channels even if the network keeps their order.
    """

    def __init__(
        self,
        sites: Sequence[ContractCore],
        meta: MetaCore,
        lengths: WorldLengths,
        routes: Routes,
        faults: Faults,
        rng: np.random.Generator,
        *,
        check: bool = False,
        channels: bool = False,
        links: WorldLinks | None = None,
    ) -> None:
        self._sites, self._meta = list(sites), meta
        self._routes, self._links = routes, links
        self._traffic = None if links is None else links.traffic
        self._faults, self._rng, self._check = faults, rng, check
        self.history = _history_of(sites)
        self.works = Works(self._sites, lengths, self._traffic, self.history, self._notify_site)
        # Future events other than data arrivals, job ends and submissions.
        self._heap: list[tuple[int, int, int, int, Any]] = []
        self._numbers = itertools.count(1)
        self._pending: list[WorldJob] = []
        self.now_ms = self.crashes = self.cuts = self.link_changes = 0
        self.refused: dict[int, str] = {}
        # The times at which the grid's queue changed its order, each with the index of the new order.
        self.switches: list[tuple[int, int]] = []
        self._down = [False] * len(sites)
        self._failed = [0] * len(sites)
        self._parked: list[list[ContractEvent]] = [[] for _ in sites]
        # The next wakeup time of each site and, as the last entry (`GRID`), of the grid.
        self._wake_ms = [_NEVER] * (len(sites) + 1)
        # The events that each site or the grid receives at this instant; an empty list is just a wakeup.
        self._inboxes: dict[int, list[Any]] = {}
        channels = channels or not routes.keeps_order or faults.any
        self.connections = Connections(
            routes, self._down, channels=channels, plan=self._schedule, deliver=self._deliver
        )
        self._most_rounds = _MAX_ROUNDS
        self._faults_until_ms = 0

    @property
    def overlaps(self) -> bool:
        """Whether jobs that have started may share nodes at any of the sites (`Traits.overlaps`)."""
        return any(site.site.traits.overlaps for site in self._sites)

    def run(self, submissions: Iterable[WorldJob]) -> None:
        """Simulate jobs, which must be sorted by submit time, until all of them are done."""
        pending = self._pending = list(submissions)
        pending.reverse()
        self._most_rounds = _MAX_ROUNDS + len(pending)
        self._faults_until_ms = pending[0].submit_ms if pending else 0
        self._plan_changes()
        watchdog = Watchdog(lambda: self.works.longest_ms * RATE_ONE // self.works.slowest)
        while not self._simulate(LOOK_EVERY):
            failing = any(self._down) or self.connections.any_cut
            failing = failing or (self._links is not None and self._links.is_failing)
            n_open = len(pending) + self.history.n_open
            progress = len(pending), n_open, self.crashes, self.cuts, self.now_ms if failing else None
            watchdog.look(self.now_ms, progress, open_jobs=n_open, works=self.history.is_working)
        self.history.check_complete(self.now_ms)

    def _simulate(self, instants: int) -> bool:
        """Simulate up to ``instants`` instants; return whether the run has ended."""
        heap, pending = self._heap, self._pending
        for _ in range(instants):
            self.now_ms = now_ms = self._next_ms()
            if now_ms == _NEVER:
                return True
            for target in (*range(len(self._sites)), GRID):
                if self._wake_ms[target] == now_ms:
                    self._inboxes.setdefault(target, [])
            self.works.go_on(now_ms)
            while heap and heap[0][0] == now_ms:
                _, kind, _, target, what = heapq.heappop(heap)
                self._carry_out(kind, target, what)
            while pending and pending[-1].submit_ms == now_ms:
                self._submit(pending.pop())
            self._settle()
            while self._traffic is not None and self._traffic.stirred:
                self._change_rates()
                self._settle()
            if not pending and not self.history.n_open and self._is_quiet():
                return True
        return False

    def _next_ms(self) -> int:
        """Return the time of the next event, or `_NEVER`."""
        next_ms = min(self.works.next_ms(), *self._wake_ms)
        if self._heap:
            next_ms = min(next_ms, self._heap[0][0])
        if self._pending:
            next_ms = min(next_ms, self._pending[-1].submit_ms)
        return next_ms

    def _plan_changes(self) -> None:
        """Schedule the first random faults, the planned faults, and the changes of links."""
        if self._faults.any:
            for site in range(len(self._sites)):
                self._plan_fault(site, _FAIL, self._faults.crash_every_ms)
                self._plan_fault(site, _CUT, self._faults.cut_every_ms)
            for fault in self._faults.planned:
                kind, end = (_FAIL, _RETURN) if fault.action == "crash" else (_CUT, _END_CUT)
                self._schedule(fault.at_ms, kind, fault.site, _PLANNED)
                self._schedule(fault.at_ms + fault.lasts_ms, end, fault.site, _PLANNED)
        if self._links is not None:
            for period, at_ms in enumerate(self._links.instants_ms):
                self._schedule(at_ms, _LINKS, period)

    def _schedule(self, when_ms: int, kind: int, target: int, what: Any = None) -> None:
        heapq.heappush(self._heap, (when_ms, kind, next(self._numbers), target, what))

    def _is_quiet(self) -> bool:
        """Whether no messages are in transit and no sites are down."""
        return self.connections.is_idle and not any(self._down)

    def _carry_out(self, kind: int, target: int, what: Any) -> None:
        """Process an event from the heap."""
        if kind == PACKET:
            self.connections.arrive(self.now_ms, target, what)
        elif kind == RESEND:
            self.connections.resend(self.now_ms, target, what)
        elif kind == _LINKS:
            self._change_links(target)
        elif kind == _CANCEL:
            self._cancel(what)
        else:
            self._toggle_fault(kind, target, is_planned=what == _PLANNED)

    def _toggle_fault(self, kind: int, site: int, *, is_planned: bool) -> None:
        """Begin or end a fault of a site or connection; if the fault is random, draw the time of the next change."""
        faults = self._faults
        follows = {
            _FAIL: (_RETURN, faults.crash_lasts_ms),
            _RETURN: (_FAIL, faults.crash_every_ms),
            _CUT: (_END_CUT, faults.cut_lasts_ms),
            _END_CUT: (_CUT, faults.cut_every_ms),
        }
        if kind == _FAIL:
            self._fail(site)
        elif kind == _RETURN:
            self._bring_back(site)
        elif kind == _CUT:
            self.cuts += 1
            self.connections.cut(site)
        else:
            self.connections.end_cut(site)
        if not is_planned:
            self._plan_fault(site, *follows[kind], always=kind in (_FAIL, _CUT))

    def _plan_fault(self, site: int, kind: int, mean_ms: float, *, always: bool = False) -> None:
        """Draw when a fault begins or ends; without ``always``, ignore times after the last submission, so runs end."""
        if mean_ms > 0 or always:
            when_ms = self.now_ms + 1 + int(self._rng.exponential(mean_ms))
            if always or when_ms < self._faults_until_ms:
                self._schedule(when_ms, kind, site)

    def _submit(self, job: WorldJob) -> None:
        """Submit a job to the grid or to its home site."""
        self.works.hand_in(job)
        if job.cancel_ms >= 0:
            self._schedule(job.cancel_ms, _CANCEL, job.home, job)
        if not job.to_grid:
            self._notify_site(job.home, JobSubmitted(job.job))
            return
        self._notify_grid(GridJobSubmitted(job.job, job.sensitivity, job.sends))
        if self._links is not None:
            self._notify_grid(*self._links.handed_in(self.now_ms, job.job.job_id))

    def _cancel(self, submission: WorldJob) -> None:
        """Cancel a job that is still waiting; record the end of a site's own job, which no core reports."""
        job_id = submission.job.job_id
        if not self.history.waits(job_id):
            return
        self.history.cancelled(job_id)
        if submission.to_grid:
            self._notify_grid(GridJobCancelled(job_id))
        else:
            self.history.reported(self.now_ms, job_id, "cancelled")
            self._notify_site(submission.home, JobCancelled(job_id))

    def _change_links(self, period: int) -> None:
        """Apply a link change, and notify the grid of it."""
        assert self._links is not None, "no links are simulated"
        events, cut_off = self._links.change(period, self._routes)
        self._notify_grid(*events)
        self.cuts += cut_off
        self.link_changes += 1

    def _change_rates(self) -> None:
        """Update the rates of the jobs whose share of the links' bandwidth has changed."""
        self.works.change_rates(self.now_ms)
        if self._links is not None:
            self._links.check_all_move(self.now_ms)

    def _notify_grid(self, *events: GridEvent) -> None:
        self._inboxes.setdefault(GRID, []).extend(events)

    def _notify_site(self, site: int, event: ContractEvent) -> None:
        """Notify a site. While a site is down, its users' submissions and cancellations wait; other events are lost."""
        if not self._down[site]:
            self._inboxes.setdefault(site, []).append(event)
        elif isinstance(event, JobSubmitted):
            self._parked[site].append(event)
        elif isinstance(event, JobCancelled):
            before = self._parked[site]
            kept = [other for other in before if not _submits(other, event.job_id)]
            self._parked[site] = kept if len(kept) < len(before) else [*kept, event]

    def _settle(self) -> None:
        """Let the sites and the grid act in turn until nothing more happens at this instant."""
        inboxes = self._inboxes
        for _ in range(self._most_rounds):
            # An event that a site causes at a later site of this loop is processed in the same round.
            for site in sorted(inboxes):
                if site != GRID:
                    self._step_site(site, inboxes.pop(site))
            if GRID in inboxes:
                self._step_meta(inboxes.pop(GRID))
            elif not inboxes:
                break
        else:
            raise ViolationError(
                f"{self.now_ms} ms: the run never ends: the sites and the grid keep answering each other"
            )
        self.history.check_shares(self.now_ms)
        if self._check:
            self.history.check_leases(self.now_ms)

    def _step_site(self, site: int, events: list[ContractEvent]) -> None:
        core, now_ms = self._sites[site], self.now_ms
        for command in core.take_in(now_ms, events):
            if isinstance(command, ToGrid):
                self._record_answer(site, command.answer)
                self.connections.put(now_ms, site, SITE_END, command.answer)
            elif isinstance(command, StartJob):
                self.works.start(now_ms, site, command)
            else:
                self._carry_out_command(site, command)
        self.connections.send(now_ms)
        if self._check:
            core.check_invariants()
        self._set_wakeup(site, core.next_wakeup_ms())

    def _set_wakeup(self, target: int, wake_ms: int | None) -> None:
        """Record the next wakeup time of a site or the grid."""
        self._wake_ms[target] = _NEVER if wake_ms is None else wake_ms

    def _carry_out_command(self, site: int, command: Command | ToGrid) -> None:
        """Carry out a site's command other than `StartJob`, which is the most frequent command."""
        if isinstance(command, ChangeRate):
            self.works.slow(self.now_ms, site, command)
        elif isinstance(command, MoveJob):
            self.works.move(self.now_ms, site, command)
        elif isinstance(command, EvictJob):
            self.works.evict(self.now_ms, site, command)
        elif isinstance(command, KillJob):
            self.works.kill(self.now_ms, site, command.job_id)
        elif isinstance(command, RefuseJob):
            self._record_refusal(command.job_id, command.reason)

    def _step_meta(self, events: list[GridEvent]) -> None:
        meta, now_ms = self._meta, self.now_ms
        for command in meta.take_in(now_ms, events):
            if isinstance(command, ToSite):
                self._record_request(command.site, command.request)
                self.connections.put(now_ms, command.site, GRID_END, command.request)
            elif isinstance(command, ReportDone):
                self.history.reported(now_ms, command.job_id, command.outcome)
                if self._traffic is not None and command.outcome == "cancelled":
                    self._traffic.given_up(command.job_id)
            elif isinstance(command, ReportRefused):
                self._record_refusal(command.job_id, command.reason)
        self.connections.send(now_ms)
        if meta.tuning is not None and meta.tuning.active != (self.switches[-1][1] if self.switches else 0):
            self.switches.append((now_ms, meta.tuning.active))
        if self._check:
            meta.check_invariants()
        self._set_wakeup(GRID, meta.next_wakeup_ms())

    def _record_refusal(self, job_id: int, reason: str) -> None:
        self.history.refused(job_id)
        self.refused[job_id] = reason
        if self._traffic is not None:
            self._traffic.given_up(job_id)

    def _fail(self, site: int) -> None:
        """Crash a site; if crashes overlap, the site stays down until the last crash is over."""
        self._failed[site] += 1
        if self._failed[site] > 1:
            return
        self._down[site], self._wake_ms[site] = True, _NEVER
        self.crashes += 1
        self.works.fail(self.now_ms, site)
        # Submissions at this instant survive the crash, as do the ends of jobs that ended before it.
        events = self._inboxes.pop(site, [])
        self._parked[site] += [event for event in events if isinstance(event, (JobFinished, JobSubmitted))]

    def _bring_back(self, site: int) -> None:
        """Bring a site back up, and deliver the events that were held back while it was down."""
        self._failed[site] -= 1
        if self._failed[site]:
            return
        self._down[site] = False
        parked, self._parked[site] = self._parked[site], []
        ends = [event for event in parked if isinstance(event, JobFinished)]
        users = [event for event in parked if not isinstance(event, JobFinished)]
        events: list[ContractEvent] = [*ends, SiteRestarted(), *users]
        for event in events:
            self._notify_site(site, event)
        self.connections.resume(self.now_ms, site)

    def _record_request(self, site: int, request: Request) -> None:
        """Record a request or commitment when the grid sends it to a site."""
        if isinstance(request, ReserveNodes):
            self.works.ask(site, request)
        elif isinstance(request, EnqueueJob):
            self.works.delegate(site, request)
        elif isinstance(request, CommitNodes):
            self.works.commit(self.now_ms, request)
        elif isinstance(request, RenewLeases):
            self.works.renew(site, request)

    def _record_answer(self, site: int, answer: Answer) -> None:
        """Record whether nodes are reserved, according to a site's answer; called when the site sends the answer."""
        if isinstance(answer, (Started, LeaseEnded)):
            self.history.unreserved(self.now_ms, site, answer.job_id, answer.attempt)
        elif isinstance(answer, Reserved):
            self.works.granted(site, answer.job_id, answer.attempt)

    def _deliver(self, to: int, site: int, message: Any) -> None:
        if to == GRID:
            self._notify_grid(FromSite(site, message))
        else:
            self._notify_site(to, message)


def _submits(event: ContractEvent, job_id: int) -> bool:
    """Whether the event is the submission of this job to its home site."""
    return isinstance(event, JobSubmitted) and event.job.job_id == job_id

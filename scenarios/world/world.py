"""The simulated world: real site cores and a real meta-scheduler in virtual time.

The world plays users, networks and nodes. It knows the run times, carries the messages, lets things fail, and keeps the
history. It decides nothing: what starts where is the cores' doing, as it is live.

A world that would never end is found out: nothing has got on for longer than anything can take.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from gridweave.grid.core import MetaCore
from gridweave.grid.messages import (
    FromSite,
    GridEvent,
    GridJobCancelled,
    GridJobSubmitted,
    ReportDone,
    ReportRefused,
    ToSite,
)
from gridweave.scenarios.world.connections import GRID, GRID_END, PACKET, RESEND, SITE_END, Connections, Faults, Routes
from gridweave.scenarios.world.history import History, ViolationError
from gridweave.scenarios.world.traffic import WorldLinks
from gridweave.scenarios.world.works import Works, WorldJob, WorldLengths
from gridweave.site.contract import ContractCore, ContractEvent
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

LOOK_EVERY = 4096
"""Instants between two looks."""

PATIENCE_MS = 8 * 86_400_000
"""How long nothing may happen though no job runs: a site may be closed to a job until next week, and a message lost."""

PATIENCE_INSTANTS = 1_000_000
"""So many instants, while no job works, are a storm of messages about nothing."""


class Watchdog:
    """Looks now and then whether anything has got on."""

    def __init__(self, longest_ms: Callable[[], int]) -> None:
        self._longest_ms = longest_ms
        self._progress: Hashable = None
        self._since_ms = 0
        self._instants = 0

    def look(self, now_ms: int, progress: Hashable, *, open_jobs: int, works: bool) -> None:
        """Compare what has been reached, which changes whenever something gets on, with the last look."""
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
            f"{now_ms} ms: it never ends: nothing has got on since {self._since_ms} ms, and {open_jobs} jobs are open"
        )


# What happens at an instant, behind data that arrives and jobs that end, in this order.
_LINKS, _FAIL, _RETURN, _CUT, _MEND = range(PACKET)
_CANCEL = RESEND + 1

_PLANNED = "planned"
"""Said of a fault that a scenario plans."""

_NEVER = int(NEVER_MS)

_MAX_ROUNDS = 10_000
"""So many times the sites and the grid may answer each other at one instant, and once more for every job."""


def _history_of(sites: Sequence[ContractCore]) -> History:
    """Return an empty history of these sites."""
    lanes = [site.site.threads_per_node for site in sites]
    traits = [site.site.traits for site in sites]
    slices, fractions = [each.slices_time or each.pauses for each in traits], [each.fractions for each in traits]
    return History([site.nodes for site in sites], lanes, slices, fractions)


class World:
    """Sites, a meta-scheduler, and what is between them.

    ``check`` has the invariants of the cores checked after every step, and all leases after every instant: slow.
    ``channels`` has messages travel through channels even in a network that keeps order.
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
        self.works = Works(self._sites, lengths, self._traffic, self.history, self._tell_site)
        # What is to happen, but for data that arrives, jobs that end, and what users hand in.
        self._heap: list[tuple[int, int, int, int, Any]] = []
        self._numbers = itertools.count(1)
        self._pending: list[WorldJob] = []
        self.now_ms = self.crashes = self.cuts = self.link_changes = 0
        self.refused: dict[int, str] = {}
        # When the queue of the grid came to stand in another order, and in which of those that it may.
        self.switches: list[tuple[int, int]] = []
        self._down = [False] * len(sites)
        self._failed = [0] * len(sites)
        self._parked: list[list[ContractEvent]] = [[] for _ in sites]
        # When each site, and behind them (`GRID`) the grid, wants to act though it is told nothing.
        self._wake_ms = [_NEVER] * (len(sites) + 1)
        # What each of them has to take in at this instant; nothing, if it was only to be woken.
        self._told: dict[int, list[Any]] = {}
        channels = channels or not routes.keeps_order or faults.any
        self.connections = Connections(routes, self._down, channels=channels, plan=self._at, deliver=self._delivered)
        self._most_rounds = _MAX_ROUNDS
        self._faults_until_ms = 0

    @property
    def shares_nodes(self) -> bool:
        """Whether jobs may share nodes, in space or in time, on any site."""
        return any(site.site.traits.overlaps for site in self._sites)

    def run(self, submissions: Iterable[WorldJob]) -> None:
        """Play jobs, given in the order of submission, until every one is done."""
        pending = self._pending = list(submissions)
        pending.reverse()
        self._most_rounds = _MAX_ROUNDS + len(pending)
        self._faults_until_ms = pending[0].submit_ms if pending else 0
        self._plan_changes()
        watchdog = Watchdog(lambda: self.works.longest_ms * RATE_ONE // self.works.slowest)
        while not self._play(LOOK_EVERY):
            failing = any(self._down) or self.connections.any_cut
            failing = failing or (self._links is not None and self._links.is_failing)
            n_open = len(pending) + self.history.n_open
            progress = len(pending), n_open, self.crashes, self.cuts, self.now_ms if failing else None
            watchdog.look(self.now_ms, progress, open_jobs=n_open, works=self.history.is_working)
        self.history.check_complete(self.now_ms)

    def _play(self, instants: int) -> bool:
        """Play on for so many instants at which something happens; return whether nothing more will."""
        heap, pending = self._heap, self._pending
        for _ in range(instants):
            self.now_ms = now_ms = self._next_ms()
            if now_ms == _NEVER:
                return True
            for place in (*range(len(self._sites)), GRID):
                if self._wake_ms[place] == now_ms:
                    self._told.setdefault(place, [])
            self.works.go_on(now_ms)
            while heap and heap[0][0] == now_ms:
                _, kind, _, place, what = heapq.heappop(heap)
                self._happens(kind, place, what)
            while pending and pending[-1].submit_ms == now_ms:
                self._hand_in(pending.pop())
            self._settle()
            while self._traffic is not None and self._traffic.stirred:
                self._change_rates()
                self._settle()
            if not pending and not self.history.n_open and self._is_quiet():
                return True
        return False

    def _next_ms(self) -> int:
        """Return when something happens next, `_NEVER` if nothing will."""
        next_ms = min(self.works.next_ms(), *self._wake_ms)
        if self._heap:
            next_ms = min(next_ms, self._heap[0][0])
        if self._pending:
            next_ms = min(next_ms, self._pending[-1].submit_ms)
        return next_ms

    def _plan_changes(self) -> None:
        """Plan when something fails first, and when links change."""
        if self._faults.any:
            for site in range(len(self._sites)):
                self._plan_fault(site, _FAIL, self._faults.crash_every_ms)
                self._plan_fault(site, _CUT, self._faults.cut_every_ms)
            for fault in self._faults.planned:
                kind, end = (_FAIL, _RETURN) if fault.action == "crash" else (_CUT, _MEND)
                self._at(fault.at_ms, kind, fault.site, _PLANNED)
                self._at(fault.at_ms + fault.lasts_ms, end, fault.site, _PLANNED)
        if self._links is not None:
            for period, at_ms in enumerate(self._links.instants_ms):
                self._at(at_ms, _LINKS, period)

    def _at(self, when_ms: int, kind: int, place: int, what: Any = None) -> None:
        heapq.heappush(self._heap, (when_ms, kind, next(self._numbers), place, what))

    def _is_quiet(self) -> bool:
        """Whether nothing is under way any more: no message, and no site that is to come back."""
        return self.connections.is_idle and not any(self._down)

    def _happens(self, kind: int, place: int, what: Any) -> None:
        """Have something happen: a message arrives or is sent again, something fails or is mended, links change."""
        if kind == PACKET:
            self.connections.arrive(self.now_ms, place, what)
        elif kind == RESEND:
            self.connections.resend(self.now_ms, place, what)
        elif kind == _LINKS:
            self._links_change(place)
        elif kind == _CANCEL:
            self._cancel(what)
        else:
            self._fails_or_returns(kind, place, is_planned=what == _PLANNED)

    def _fails_or_returns(self, kind: int, site: int, *, is_planned: bool) -> None:
        """Have a site or its connection fail or come back; of what comes at random, plan the next."""
        faults = self._faults
        follows = {
            _FAIL: (_RETURN, faults.crash_lasts_ms),
            _RETURN: (_FAIL, faults.crash_every_ms),
            _CUT: (_MEND, faults.cut_lasts_ms),
            _MEND: (_CUT, faults.cut_every_ms),
        }
        if kind == _FAIL:
            self._fail(site)
        elif kind == _RETURN:
            self._return(site)
        elif kind == _CUT:
            self.cuts += 1
            self.connections.cut(site)
        else:
            self.connections.mend(site)
        if not is_planned:
            self._plan_fault(site, *follows[kind], always=kind in (_FAIL, _CUT))

    def _plan_fault(self, site: int, kind: int, mean_ms: float, *, always: bool = False) -> None:
        """Draw when a fault begins or ends; none begins after the last submission, so every run comes to an end."""
        if mean_ms > 0 or always:
            when_ms = self.now_ms + 1 + int(self._rng.exponential(mean_ms))
            if always or when_ms < self._faults_until_ms:
                self._at(when_ms, kind, site)

    def _hand_in(self, job: WorldJob) -> None:
        """Have a user submit a job."""
        self.works.hand_in(job)
        if job.cancel_ms >= 0:
            self._at(job.cancel_ms, _CANCEL, job.home, job)
        if not job.to_grid:
            self._tell_site(job.home, JobSubmitted(job.job))
            return
        self._tell_grid(GridJobSubmitted(job.job, job.sensitivity, job.sends))
        if self._links is not None:
            self._tell_grid(*self._links.handed_in(self.now_ms, job.job.job_id))

    def _cancel(self, handed_in: WorldJob) -> None:
        """Have a user take back a job that still waits; the grid tells when one that was handed to it is gone."""
        job_id = handed_in.job.job_id
        if not self.history.waits(job_id):
            return
        self.history.cancelled(job_id)
        if handed_in.to_grid:
            self._tell_grid(GridJobCancelled(job_id))
        else:
            self.history.reported(self.now_ms, job_id, "cancelled")
            self._tell_site(handed_in.home, JobCancelled(job_id))

    def _links_change(self, period: int) -> None:
        """Have links slow, fail or come back, and tell the grid."""
        assert self._links is not None, "links change that there are not"
        events, cut_off = self._links.change(period, self._routes)
        self._tell_grid(*events)
        self.cuts += cut_off
        self.link_changes += 1

    def _change_rates(self) -> None:
        """Let jobs go on as their links let them."""
        self.works.change_rates(self.now_ms)
        if self._links is not None:
            self._links.check_all_move(self.now_ms)

    def _tell_grid(self, *events: GridEvent) -> None:
        self._told.setdefault(GRID, []).extend(events)

    def _tell_site(self, site: int, event: ContractEvent) -> None:
        """Tell a site something; while it is down, its users wait, and what else there was is lost anyway."""
        if not self._down[site]:
            self._told.setdefault(site, []).append(event)
        elif isinstance(event, JobSubmitted):
            self._parked[site].append(event)
        elif isinstance(event, JobCancelled):
            before = self._parked[site]
            kept = [each for each in before if not _submits(each, event.job_id)]
            self._parked[site] = kept if len(kept) < len(before) else [*kept, event]

    def _settle(self) -> None:
        """Let the sites and the grid act in turn until nothing more happens at this instant."""
        told = self._told
        for _ in range(self._most_rounds):
            # A site that is told something by one before it takes that in with the rest.
            for site in sorted(told):
                if site != GRID:
                    self._step_site(site, told.pop(site))
            if GRID in told:
                self._step_meta(told.pop(GRID))
            elif not told:
                break
        else:
            raise ViolationError(f"{self.now_ms} ms: it never ends: the sites and the grid have no end of answers")
        self.history.check_shares(self.now_ms)
        if self._check:
            self.history.check_leases(self.now_ms)

    def _step_site(self, site: int, events: list[ContractEvent]) -> None:
        core, now_ms = self._sites[site], self.now_ms
        for command in core.take_in(now_ms, events):
            if isinstance(command, ToGrid):
                self._note_answer(site, command.answer)
                self.connections.put(now_ms, site, SITE_END, command.answer)
            elif isinstance(command, StartJob):
                self.works.start(now_ms, site, command)
            else:
                self._obey(site, command)
        self.connections.send(now_ms)
        if self._check:
            core.check_invariants()
        self._wakes(site, core.next_wakeup_ms())

    def _wakes(self, place: int, wake_ms: int | None) -> None:
        """Note when a site, or the grid, wants to act next."""
        self._wake_ms[place] = _NEVER if wake_ms is None else wake_ms

    def _obey(self, site: int, command: Command | ToGrid) -> None:
        """Carry out what a site commands but seldom."""
        if isinstance(command, ChangeRate):
            self.works.slow(self.now_ms, site, command)
        elif isinstance(command, MoveJob):
            self.works.move(self.now_ms, site, command)
        elif isinstance(command, EvictJob):
            self.works.evict(self.now_ms, site, command)
        elif isinstance(command, KillJob):
            self.works.kill(self.now_ms, site, command.job_id)
        elif isinstance(command, RefuseJob):
            self._is_refused(command.job_id, command.reason)

    def _step_meta(self, events: list[GridEvent]) -> None:
        meta, now_ms = self._meta, self.now_ms
        for command in meta.take_in(now_ms, events):
            if isinstance(command, ToSite):
                self._note_request(command.site, command.request)
                self.connections.put(now_ms, command.site, GRID_END, command.request)
            elif isinstance(command, ReportDone):
                self.history.reported(now_ms, command.job_id, command.outcome)
                if self._traffic is not None and command.outcome == "cancelled":
                    self._traffic.given_up(command.job_id)
            elif isinstance(command, ReportRefused):
                self._is_refused(command.job_id, command.reason)
        self.connections.send(now_ms)
        if meta.tuning is not None and meta.tuning.active != (self.switches[-1][1] if self.switches else 0):
            self.switches.append((now_ms, meta.tuning.active))
        if self._check:
            meta.check_invariants()
        self._wakes(GRID, meta.next_wakeup_ms())

    def _is_refused(self, job_id: int, reason: str) -> None:
        self.history.refused(job_id)
        self.refused[job_id] = reason
        if self._traffic is not None:
            self._traffic.given_up(job_id)

    def _fail(self, site: int) -> None:
        """Take a site down; if failures overlap, it stays down until all of them are over."""
        self._failed[site] += 1
        if self._failed[site] > 1:
            return
        self._down[site], self._wake_ms[site] = True, _NEVER
        self.crashes += 1
        self.works.fail(self.now_ms, site)
        # What its own users did at this very instant is not lost, nor what had ended before the site failed.
        told = self._told.pop(site, [])
        self._parked[site] += [event for event in told if isinstance(event, (JobFinished, JobSubmitted))]

    def _return(self, site: int) -> None:
        """Let a site come back: it hears of that, and what its users have done meanwhile."""
        self._failed[site] -= 1
        if self._failed[site]:
            return
        self._down[site] = False
        parked, self._parked[site] = self._parked[site], []
        ends = [event for event in parked if isinstance(event, JobFinished)]
        users = [event for event in parked if not isinstance(event, JobFinished)]
        told: list[ContractEvent] = [*ends, SiteRestarted(), *users]
        for event in told:
            self._tell_site(site, event)
        self.connections.resume(self.now_ms, site)

    def _note_request(self, site: int, request: Request) -> None:
        """Keep at hand what the grid asks for and commits, at the instant at which it does."""
        if isinstance(request, ReserveNodes):
            self.works.ask(site, request)
        elif isinstance(request, EnqueueJob):
            self.works.delegate(site, request)
        elif isinstance(request, CommitNodes):
            self.works.commit(self.now_ms, request)
        elif isinstance(request, RenewLeases):
            self.works.renew(site, request)

    def _note_answer(self, site: int, answer: Answer) -> None:
        """Keep the history of reserved nodes from what a site says at the instant at which it says it."""
        if isinstance(answer, (Started, LeaseEnded)):
            self.history.unreserved(self.now_ms, site, answer.job_id, answer.attempt)
        elif isinstance(answer, Reserved):
            self.works.granted(site, answer.job_id, answer.attempt)

    def _delivered(self, to: int, site: int, message: Any) -> None:
        if to == GRID:
            self._tell_grid(FromSite(site, message))
        else:
            self._tell_site(to, message)


def _submits(event: ContractEvent, job_id: int) -> bool:
    """Return whether by this an own user hands in a job."""
    return isinstance(event, JobSubmitted) and event.job.job_id == job_id

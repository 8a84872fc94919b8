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
    GridJobSubmitted,
    ReportDone,
    ReportRefused,
    ToSite,
)
from gridweave.scenarios.world.connections import GRID, GRID_END, SITE_END, Connections, Faults, Routes
from gridweave.scenarios.world.history import History, ViolationError
from gridweave.scenarios.world.links import LinkWorld
from gridweave.scenarios.world.works import Lengths, Submission, Work, Works
from gridweave.site.contract import ContractCore, ContractEvent
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.messages import (
    Answer,
    ChangeRate,
    Command,
    CommitHold,
    EnqueueJob,
    Held,
    HoldEnded,
    HoldNodes,
    JobFinished,
    JobSubmitted,
    KillJob,
    RefuseJob,
    Request,
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
    """Looks now and then whether anything has got on.

    Parameters
    ----------
    longest_ms : callable () -> int
        Returns how long the longest job takes; called only if something looks wrong.
    """

    def __init__(self, longest_ms: Callable[[], int]) -> None:
        self._longest_ms = longest_ms
        self._progress: Hashable = None
        self._since_ms = 0
        self._instants = 0

    def look(self, now_ms: int, progress: Hashable, *, open_jobs: int, works: bool) -> None:
        """Compare what has been reached with the last look.

        Parameters
        ----------
        progress : hashable
            What changes whenever something gets on: jobs handed in, jobs done, faults that begin or end.
        open_jobs : int
            Jobs that are not done, for the message.
        works : bool
            Whether a job works now.

        Raises
        ------
        ViolationError
            If nothing has got on for too long.
        """
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


# What happens at an instant, in this order.
_DATA, _END, _LINKS, _FAIL, _RETURN, _CUT, _MEND, _PACKET, _RESEND = range(9)

_NEVER = int(NEVER_MS)
_UNKNOWN = -1

_MAX_ROUNDS = 10_000
"""So many times the sites and the grid may answer each other at one instant, and once more for every job."""


class World:
    """Sites, a meta-scheduler, and what is between them.

    Parameters
    ----------
    lengths : Lengths
        How long jobs take.
    routes : Routes
        What messages go through.
    rng : numpy.random.Generator
        For faults.
    check : bool
        Whether the invariants of the cores are checked after every step, and all leases after every instant: slow.
    channels : bool
        Whether messages travel through channels even in a network that keeps order.
    links : LinkWorld, optional
        The links between the sites, if they change.
    """

    def __init__(
        self,
        sites: Sequence[ContractCore],
        meta: MetaCore,
        lengths: Lengths,
        *,
        routes: Routes,
        faults: Faults,
        rng: np.random.Generator,
        check: bool = False,
        channels: bool = False,
        links: LinkWorld | None = None,
    ) -> None:
        self._sites = list(sites)
        self._meta = meta
        self._lengths = lengths
        self._links = links
        self._faults = faults
        self._rng = rng
        self._check = check
        self.history = History([site.nodes for site in sites], [site.site.threads_per_node for site in sites])
        self.works = Works(
            self._sites,
            lengths,
            self.history,
            tell=self._tell_site,
            plan_end=self._plan_end,
        )
        # What is to happen, and behind all of it what never does, so that there is always a next.
        self._heap: list[tuple[int, int, int, int, Any]] = [(_NEVER, _RESEND, 0, 0, None)]
        self._numbers = itertools.count(1)
        self.now_ms = 0
        self.crashes = 0
        self.cuts = 0
        self.link_changes = 0
        self.refused: dict[int, str] = {}
        n_sites = len(self._sites)
        self._down = [False] * n_sites
        # When each site wants to act though it is told nothing; and behind them (`GRID`) when the grid first wanted to,
        # which is not put off: it takes in what it need not hear of at once.
        self._wake_ms = [_NEVER] * (n_sites + 1)
        # None of them is earlier, though it may be that none is as early; `_UNKNOWN` if that is to be looked for.
        self._woken_ms = _UNKNOWN
        self._data_ms = _NEVER
        # What sites have to take in at this instant; nothing, if they were only to be woken.
        self._for_site: dict[int, list[ContractEvent]] = {}
        self._for_meta: list[GridEvent] = []
        self._meta_woken = False
        self._pending: list[Submission] = []
        self._most_rounds = _MAX_ROUNDS
        self._parked: list[list[ContractEvent]] = [[] for _ in range(n_sites)]
        self.connections = Connections(
            routes,
            self._down,
            channels=channels or not routes.keeps_order or faults.any,
            send=self._plan_packet,
            wake=self._plan_resend,
            deliver=self._delivered,
        )
        self._faults_until_ms = 0

    def run(self, submissions: Iterable[Submission]) -> None:
        """Play until every job is done.

        Parameters
        ----------
        submissions : iterable of Submission
            In the order of submission.

        Raises
        ------
        ViolationError
            If something happened that must never happen, or it would never end.
        """
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
        heap, heappop, pending = self._heap, heapq.heappop, self._pending
        end_work, for_site, wake_ms = self.works.end, self._for_site, self._wake_ms
        are_plain, checks = self._lengths.are_plain, self._check
        submit_ms = pending[-1].submit_ms if pending else _NEVER
        for _ in range(instants):
            next_ms = heap[0][0]
            now_ms = next_ms if next_ms < submit_ms else submit_ms
            if self._woken_ms <= now_ms:
                self._woken_ms = woken_ms = min(wake_ms)
                if woken_ms <= now_ms:
                    if woken_ms == _NEVER:
                        return True
                    now_ms = woken_ms
                    self._wake(now_ms)
            self.now_ms = now_ms
            while next_ms == now_ms:
                _, kind, _, place, what = heappop(heap)
                if kind == _END:
                    end_work(now_ms, what)
                else:
                    self._happens(kind, place, what)
                next_ms = heap[0][0]
            while submit_ms == now_ms:
                self._hand_in(pending.pop())
                submit_ms = pending[-1].submit_ms if pending else _NEVER
            if for_site or self._meta_woken or checks:
                self._settle()
            if not are_plain:
                self._move_on()
            if not pending and not self.history.n_open and self._is_quiet():
                return True
        return False

    def _move_on(self) -> None:
        """Let jobs go on as what has happened lets them, and have the next of their data arrive."""
        lengths = self._lengths
        while lengths.stirred:
            self._change_rates()
            self._settle()
        if lengths.next_ms < self._data_ms:
            self._data_ms = lengths.next_ms
            self._at(self._data_ms, _DATA, 0)

    def _plan_changes(self) -> None:
        """Plan when something fails first, and when links change."""
        if self._faults.any:
            for site in range(len(self._sites)):
                self._plan_fault(site, _FAIL, self._faults.crash_every_ms)
                self._plan_fault(site, _CUT, self._faults.cut_every_ms)
        if self._links is not None:
            for period, at_ms in enumerate(self._links.instants_ms):
                self._at(at_ms, _LINKS, period)

    def _at(self, when_ms: int, kind: int, place: int, what: Any = None) -> None:
        heapq.heappush(self._heap, (when_ms, kind, next(self._numbers), place, what))

    def _plan_end(self, when_ms: int, work: Work) -> None:
        heapq.heappush(self._heap, (when_ms, _END, next(self._numbers), 0, work))

    def _plan_packet(self, when_ms: int, to: int, what: tuple[int, Any]) -> None:
        heapq.heappush(self._heap, (when_ms, _PACKET, next(self._numbers), to, what))

    def _plan_resend(self, when_ms: int, site: int, end: int) -> None:
        heapq.heappush(self._heap, (when_ms, _RESEND, next(self._numbers), site, end))

    def _is_quiet(self) -> bool:
        """Whether nothing is under way any more: no message, and no site that is to come back."""
        return self.connections.is_idle and not any(self._down)

    def _happens(self, kind: int, place: int, what: Any) -> None:
        """Have something happen other than the end of a job."""
        if kind == _PACKET:
            self.connections.arrive(self.now_ms, place, what)
        elif kind == _RESEND:
            self.connections.resend(self.now_ms, place, what)
        elif kind == _DATA:
            if self._data_ms == self.now_ms:
                self._data_ms = _NEVER
                self.works.move_data(self.now_ms)
        elif kind == _LINKS:
            self._links_change(place)
        elif kind == _FAIL:
            self._fail(place)
        elif kind == _RETURN:
            self._return(place)
        elif kind == _CUT:
            self.cuts += 1
            self.connections.cut(place)
            self._plan_fault(place, _MEND, self._faults.cut_lasts_ms, always=True)
        elif kind == _MEND:
            self.connections.mend(place)
            self._plan_fault(place, _CUT, self._faults.cut_every_ms)

    def _plan_fault(self, site: int, kind: int, mean_ms: float, *, always: bool = False) -> None:
        """Draw when a fault begins or ends; none begins after the last submission, so every run comes to an end."""
        if mean_ms > 0 or always:
            when_ms = self.now_ms + 1 + int(self._rng.exponential(mean_ms))
            if always or when_ms < self._faults_until_ms:
                self._at(when_ms, kind, site)

    def _hand_in(self, submission: Submission) -> None:
        """Have a user submit a job."""
        self.works.hand_in(submission)
        if not submission.to_grid:
            self._tell_site(submission.home, JobSubmitted(submission.job))
            return
        self._for_meta.append(GridJobSubmitted(submission.job, submission.sensitivity, submission.sends))
        self._meta_woken = True
        if not self._lengths.are_plain:
            job_id = submission.job.job_id
            if self._links is not None and (hopeless := self._links.hopeless(self.now_ms, job_id)):
                self._for_meta += hopeless
            else:
                self._lengths.handed_in(self.now_ms, job_id)

    def _links_change(self, period: int) -> None:
        """Have links slow, fail or come back, and tell the grid."""
        assert self._links is not None, "links change that there are not"
        events, cut_off = self._links.change(period)
        self._for_meta += events
        self._meta_woken = True
        self.cuts += cut_off
        self.link_changes += 1

    def _change_rates(self) -> None:
        """Let jobs go on as their links let them."""
        self.works.change_rates(self.now_ms)
        if self._links is not None:
            self._links.check_all_move(self.now_ms)

    def _tell_site(self, site: int, event: ContractEvent) -> None:
        """Tell a site something; while it is down, its users wait, and what else there was is lost anyway."""
        if not self._down[site]:
            self._for_site.setdefault(site, []).append(event)
        elif isinstance(event, JobSubmitted):
            self._parked[site].append(event)

    def _settle(self) -> None:
        """Let the sites and the grid act in turn until nothing more happens at this instant."""
        for_site = self._for_site
        for _ in range(self._most_rounds):
            if len(for_site) == 1:
                site, events = for_site.popitem()
                self._step_site(site, events)
            elif for_site:
                # A site that is told something by one before it takes that in with the rest.
                for site in sorted(for_site):
                    self._step_site(site, for_site.pop(site))
            if self._meta_woken:
                self._step_meta()
            elif not for_site:
                break
        else:
            raise ViolationError(f"{self.now_ms} ms: it never ends: the sites and the grid have no end of answers")
        if self._check:
            self.history.check_leases(self.now_ms)

    def _wake(self, now_ms: int) -> None:
        """Have those act that want to by now."""
        for place, wake_ms in enumerate(self._wake_ms[:GRID]):
            if wake_ms == now_ms:
                self._for_site.setdefault(place, [])
        if self._wake_ms[GRID] == now_ms:
            self._wake_ms[GRID], self._meta_woken = _NEVER, True

    def _step_site(self, site: int, events: list[ContractEvent]) -> None:
        core, connections, now_ms = self._sites[site], self.connections, self.now_ms
        leases, is_instant = self.history.leases, connections.is_instant
        for command in core.take_in(now_ms, events):
            if type(command) is ToGrid:
                answer = command.answer
                kind = type(answer)
                if leases or kind is Held:
                    self._note_answer(site, answer)
                if is_instant:
                    # `_delivered`, which every job would call twice.
                    connections.messages += 1
                    self._for_meta.append(FromSite(site, answer))
                    if kind is not Started:
                        self._meta_woken = True
                else:
                    connections.put(now_ms, site, SITE_END, answer)
            elif type(command) is StartJob:
                self.works.start(now_ms, site, command)
            else:
                self._obey(site, command)
        if connections.unsent:
            connections.send(now_ms)
        if self._check:
            core.check_invariants()
        wake_ms = core.next_wakeup_ms()
        if wake_ms is None:
            wake_ms = _NEVER
        self._wake_ms[site] = wake_ms
        if wake_ms < self._woken_ms:
            self._woken_ms = _UNKNOWN

    def _obey(self, site: int, command: Command | ToGrid) -> None:
        """Carry out what a site commands but seldom."""
        if isinstance(command, ChangeRate):
            self.works.slow(self.now_ms, site, command)
        elif isinstance(command, KillJob):
            self.works.kill(self.now_ms, site, command.job_id)
        elif isinstance(command, RefuseJob):
            self._is_refused(command.job_id, command.reason)

    def _step_meta(self) -> None:
        meta, connections, now_ms = self._meta, self.connections, self.now_ms
        is_instant = connections.is_instant
        events, self._for_meta, self._meta_woken = self._for_meta, [], False
        for command in meta.take_in(now_ms, events):
            if type(command) is ToSite:
                site, request = command.site, command.request
                if type(request) is HoldNodes:
                    self.works.ask(site, request)
                else:
                    self._note_request(site, request)
                if is_instant:
                    # Where sites fail no message is instant, so this one is up.
                    connections.messages += 1
                    self._for_site.setdefault(site, []).append(request)
                else:
                    connections.put(now_ms, site, GRID_END, request)
            elif type(command) is ReportDone:
                self.history.reported(now_ms, command.job_id, command.outcome)
            elif type(command) is ReportRefused:
                self._is_refused(command.job_id, command.reason)
        if connections.unsent:
            connections.send(now_ms)
        if self._check:
            meta.check_invariants()
        wake_ms = meta.next_wakeup_ms()
        if wake_ms is not None and wake_ms < self._wake_ms[GRID]:
            self._wake_ms[GRID], self._woken_ms = wake_ms, _UNKNOWN

    def _is_refused(self, job_id: int, reason: str) -> None:
        self.history.refused(job_id)
        self.refused[job_id] = reason
        self._lengths.given_up(job_id)

    def _fail(self, site: int) -> None:
        """Let a site fail."""
        self._down[site], self._wake_ms[site] = True, _NEVER
        self.crashes += 1
        self.works.fail(self.now_ms, site)
        # What its own users did at this very instant is not lost, nor what had ended before the site failed.
        told = self._for_site.pop(site, [])
        self._parked[site] += [event for event in told if isinstance(event, (JobFinished, JobSubmitted))]
        self._plan_fault(site, _RETURN, self._faults.crash_lasts_ms, always=True)

    def _return(self, site: int) -> None:
        """Let a site come back: it hears of that, and what its users have done meanwhile."""
        self._down[site] = False
        parked, self._parked[site] = self._parked[site], []
        ends = [event for event in parked if isinstance(event, JobFinished)]
        users = [event for event in parked if isinstance(event, JobSubmitted)]
        told: list[ContractEvent] = [*ends, SiteRestarted(), *users]
        for event in told:
            self._tell_site(site, event)
        self.connections.resume(self.now_ms, site)
        self._plan_fault(site, _FAIL, self._faults.crash_every_ms)

    def _note_request(self, site: int, request: Request) -> None:
        """Keep at hand what the grid asks for and commits, at the instant at which it does."""
        if type(request) is EnqueueJob:
            self.works.delegate(site, request)
        elif type(request) is CommitHold:
            self.works.commit(self.now_ms, request)

    def _note_answer(self, site: int, answer: Answer) -> None:
        """Keep the history of holds from what a site says at the instant at which it says it."""
        if type(answer) is Started or type(answer) is HoldEnded:
            self.history.unheld(self.now_ms, site, answer.job_id, answer.attempt)
        elif type(answer) is Held:
            self.works.granted(site, answer.job_id, answer.attempt)

    def _delivered(self, to: int, site: int, message: Any) -> None:
        if to == GRID:
            self._for_meta.append(FromSite(site, message))
            # That something has started, as the grid wanted it to, gives it nothing to decide: it learns of it with
            # whatever happens next. This saves a third of its steps.
            if type(message) is not Started:
                self._meta_woken = True
        else:
            self._tell_site(to, message)

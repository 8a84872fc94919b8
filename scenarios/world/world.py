"""The simulated world: real site cores and a real meta-scheduler in virtual time.

The world plays users, networks and nodes. It knows the run times, carries the messages, lets things fail, and keeps the
history. It decides nothing: what starts where is the cores' doing, as it is live.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from gridweave.grid.coallocation import Fragments
from gridweave.grid.messages import (
    FromSite,
    GridCommand,
    GridEvent,
    GridJobSubmitted,
    ReportDone,
    ReportRefused,
    ToSite,
)
from gridweave.grid.meta_core import MetaCore
from gridweave.grid.sends import Sends
from gridweave.scenarios.world.connections import GRID, Connections
from gridweave.scenarios.world.history import History, ViolationError
from gridweave.scenarios.world.lengths import Lengths, Pace
from gridweave.scenarios.world.link_world import LinkWorld
from gridweave.scenarios.world.network import Faults
from gridweave.scenarios.world.routes import GRID_END, SITE_END, Routes
from gridweave.scenarios.world.watchdog import LOOK_EVERY, Watchdog
from gridweave.site.contract import (
    Answer,
    CommitHold,
    EnqueueJob,
    FragmentsMet,
    Held,
    HoldEnded,
    HoldNodes,
    RateMeasured,
    SiteRestarted,
    Started,
    ToGrid,
)
from gridweave.site.contract_core import OWN, ContractCore, ContractEvent
from gridweave.site.kernels.rates import RATE_ONE, work_done_ms, work_left
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.messages import ChangeRate, Job, JobFinished, JobSubmitted, KillJob, RefuseJob, StartJob

# What happens at an instant, in this order.
_DATA, _END, _LINKS, _FAIL, _RETURN, _CUT, _MEND, _PACKET, _WAKE, _RESEND = range(10)

_MAX_ROUNDS = 10_000
"""So many times the sites and the grid may answer each other at one instant, and once more for every job."""


class Submission(msgspec.Struct, frozen=True):
    """A job that a user hands in.

    Attributes
    ----------
    submit_ms : int
    job : Job
    run_ms : int
        On one site; known to the world alone.
    home : int
        Site of the user.
    to_grid : bool
        Whether it is handed to the grid, rather than to the user's site.
    sensitivity : float
        To the overhead of a split.
    sends : Sends, optional
        Over the links between the sites.
    """

    submit_ms: int
    job: Job
    run_ms: int
    home: int
    to_grid: bool = True
    sensitivity: float = 1.0
    sends: Sends | None = None


class _Work(msgspec.Struct):
    """An attempt as it really is: which fragments were asked for, which have started, and since when the job works.

    A job goes at the pace of its slowest fragment, times what links leave of it; ``left`` is its work as of
    ``since_ms``. While its data moves it has no end.
    """

    fragments: dict[int, int]
    started: set[int]
    begun_ms: int = -1
    start_ms: int | None = None
    is_dead: bool = False
    rates: dict[int, int] | None = None
    on_links: int = RATE_ONE
    left: int = 0
    rate: int = RATE_ONE
    moves_data: bool = False
    since_ms: int = 0
    end_ms: int = 0


class World:
    """Sites, a meta-scheduler, and what is between them.

    Parameters
    ----------
    sites : sequence of ContractCore
    meta : MetaCore
    lengths : Lengths
        How long jobs take.
    routes : Routes
        What messages go through.
    faults : Faults
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
        self._longest_ms = 0
        self._faults = faults
        self._rng = rng
        self._check = check
        self.history = History([site.nodes for site in sites], [site.site.threads_per_node for site in sites])
        self._slowest = RATE_ONE
        self._heap: list[tuple[int, int, int, int, Any]] = []
        self._sequence = 0
        self.now_ms = 0
        self.crashes = 0
        self.cuts = 0
        self.link_changes = 0
        self.start_ms: dict[int, int] = {}
        self.end_ms: dict[int, int] = {}
        self.fragments: dict[int, Fragments] = {}
        self.refused: dict[int, str] = {}
        self._jobs: dict[int, Submission] = {}
        self._work: dict[tuple[int, int], _Work] = {}
        n_sites = len(self._sites)
        self._down = [False] * n_sites
        self._site_wake_ms: list[int | None] = [None] * n_sites
        self._data_ms = int(NEVER_MS)
        self._meta_wake_ms: int | None = None
        self._for_site: list[list[ContractEvent]] = [[] for _ in range(n_sites)]
        # Sites that have something to take in, or were to be woken, at this instant.
        self._active: set[int] = set()
        self._for_meta: list[GridEvent] = []
        self._meta_woken = False
        self._parked: list[list[ContractEvent]] = [[] for _ in range(n_sites)]
        self.connections = Connections(
            routes,
            self._down,
            channels=channels or not routes.keeps_order or faults.any,
            send=lambda when_ms, to, what: self._at(when_ms, _PACKET, to, what),
            wake=lambda when_ms, site, end: self._at(when_ms, _RESEND, site, end),
            deliver=self._delivered,
        )
        self._open_jobs = 0
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
        pending = list(submissions)
        pending.reverse()
        self._open_jobs = len(pending)
        self._faults_until_ms = pending[0].submit_ms if pending else 0
        if self._faults.any:
            for site in range(len(self._sites)):
                self._plan_fault(site, _FAIL, self._faults.crash_every_ms)
                self._plan_fault(site, _CUT, self._faults.cut_every_ms)
        heap = self._heap
        if self._links is not None:
            for period, at_ms in enumerate(self._links.instants_ms):
                self._at(at_ms, _LINKS, period)
        watchdog = Watchdog(lambda: self._longest_ms * RATE_ONE // self._slowest)
        instants = 0
        while pending or heap:
            now_ms = heap[0][0] if heap else pending[-1].submit_ms
            if pending and pending[-1].submit_ms < now_ms:
                now_ms = pending[-1].submit_ms
            self.now_ms = now_ms
            while heap and heap[0][0] == now_ms:
                self._happens(heapq.heappop(heap))
            while pending and pending[-1].submit_ms == now_ms:
                self._hand_in(pending.pop())
            self._settle()
            while self._lengths.stirred:
                self._change_rates()
                self._settle()
            if self._lengths.next_ms < self._data_ms:
                self._data_ms = self._lengths.next_ms
                self._at(self._data_ms, _DATA, 0)
            if not pending and not self._open_jobs and self._is_quiet():
                break
            instants += 1
            if not instants & (LOOK_EVERY - 1):
                failing = any(self._down) or self.connections.any_cut
                failing = failing or (self._links is not None and self._links.is_failing)
                progress = len(pending), self._open_jobs, self.crashes, self.cuts, self.now_ms if failing else None
                watchdog.look(self.now_ms, progress, open_jobs=self._open_jobs, works=self.history.is_working)
        self.history.check_complete(self.now_ms)

    def _at(self, when_ms: int, kind: int, place: int, what: Any = None) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when_ms, kind, self._sequence, place, what))

    def _is_quiet(self) -> bool:
        """Whether nothing is under way any more: no message, and no site that is to come back."""
        return self.connections.is_idle and not any(self._down)

    def _happens(self, entry: tuple[int, int, int, int, Any]) -> None:
        _, kind, _, place, what = entry
        if kind == _END:
            self._work_ends(what, place)
        elif kind == _DATA:
            if self._data_ms == self.now_ms:
                self._data_ms = int(NEVER_MS)
                self._data_moved()
        elif kind == _PACKET:
            self.connections.arrive(self.now_ms, place, what)
        elif kind == _RESEND:
            self.connections.resend(self.now_ms, place, what)
        elif kind == _WAKE:
            # One that an earlier one has replaced is passed over, or it would leave another behind, and that again.
            if place == GRID:
                if self._meta_wake_ms == self.now_ms:
                    self._meta_wake_ms = None
                    self._meta_woken = True
            elif self._site_wake_ms[place] == self.now_ms:
                self._site_wake_ms[place] = None
                self._wake_site(place)
        elif kind == _LINKS:
            self._links_change(place)
        elif kind == _FAIL:
            self._fail(place)
        elif kind == _RETURN:
            self._down[place] = False
            ends = [event for event in self._parked[place] if isinstance(event, JobFinished)]
            users = [event for event in self._parked[place] if isinstance(event, JobSubmitted)]
            told: list[ContractEvent] = [*ends, SiteRestarted(), *users]
            for event in told:
                self._tell_site(place, event)
            self._parked[place] = []
            self.connections.resume(self.now_ms, place)
            self._plan_fault(place, _FAIL, self._faults.crash_every_ms)
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
        job_id = submission.job.job_id
        self._jobs[job_id] = submission
        self._longest_ms = max(self._longest_ms, submission.job.estimate_ms)
        self.history.accepted(job_id)
        if submission.to_grid:
            self._for_meta.append(GridJobSubmitted(submission.job, submission.sensitivity, submission.sends))
            hopeless = [] if self._links is None else self._links.hopeless(self.now_ms, job_id)
            self._for_meta += hopeless
            if not hopeless:
                self._lengths.handed_in(self.now_ms, job_id)
            self._meta_woken = True
        else:
            self._tell_site(submission.home, JobSubmitted(submission.job))

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
        for pace in self._lengths.rates(self.now_ms):
            self._slowest = min(self._slowest, pace.rate) or self._slowest
            if pace.works:
                work = self._work[pace.job_id, pace.attempt]
                work.on_links = pace.rate
                self._set_rate(pace.job_id, pace.attempt, work)
            self._tell_pace(pace)
        if self._links is not None:
            self._links.check_all_move(self.now_ms)

    def _tell_pace(self, pace: Pace) -> None:
        """Tell the sites of a job how it goes on."""
        for site in self._work[pace.job_id, pace.attempt].fragments:
            self._tell_site(site, RateMeasured(pace.job_id, pace.attempt, pace.rate, pace.left))

    def _data_moved(self) -> None:
        """Let jobs work whose data has come, and end those whose output is where it is wanted."""
        for pace, run_ms in self._lengths.served(self.now_ms):
            work = self._work[pace.job_id, pace.attempt]
            if run_ms is None:
                self._is_over(pace.job_id, pace.attempt, work)
            else:
                self._begin_work(pace.job_id, pace.attempt, work, run_ms)
                self._tell_pace(pace)

    def _tell_site(self, site: int, event: ContractEvent) -> None:
        """Tell a site something; while it is down, its users wait, and what else there was is lost anyway."""
        if not self._down[site]:
            self._for_site[site].append(event)
            self._active.add(site)
        elif isinstance(event, JobSubmitted):
            self._parked[site].append(event)

    def _settle(self) -> None:
        """Let the sites and the grid act in turn until nothing more happens at this instant."""
        rounds = 0
        while self._active or self._meta_woken:
            if self._active:
                active, self._active = sorted(self._active), set()
                for site in active:
                    events, self._for_site[site] = self._for_site[site], []
                    if not self._down[site]:
                        self._step_site(site, events)
            if self._meta_woken:
                events_of_meta, self._for_meta = self._for_meta, []
                self._meta_woken = False
                self._step_meta(events_of_meta)
            rounds += 1
            if rounds > _MAX_ROUNDS + len(self._jobs):
                raise ViolationError(f"{self.now_ms} ms: it never ends: the sites and the grid have no end of answers")
        if self._check:
            self.history.check_leases(self.now_ms)

    def _wake_site(self, site: int) -> None:
        """Have a site act if it still wants to; most wakeups are for limits of jobs that ended before."""
        wake_ms = None if self._down[site] else self._sites[site].next_wakeup_ms()
        if wake_ms is not None and wake_ms <= self.now_ms:
            self._active.add(site)
        else:
            self._plan_wake(site, wake_ms)

    def _plan_wake(self, site: int, wake_ms: int | None) -> None:
        scheduled_ms = self._site_wake_ms[site]
        if wake_ms is not None and (scheduled_ms is None or wake_ms < scheduled_ms):
            self._site_wake_ms[site] = wake_ms
            self._at(wake_ms, _WAKE, site)

    def _step_site(self, site: int, events: list[ContractEvent]) -> None:
        core = self._sites[site]
        answered = False
        for command in core.handle(self.now_ms, *events):
            if isinstance(command, ToGrid):
                self._note_answer(site, command.answer)
                answered = True
                self.connections.put(self.now_ms, site, SITE_END, command.answer)
            elif isinstance(command, StartJob):
                self._starts(site, command)
            elif isinstance(command, ChangeRate):
                self._slows(site, command)
            elif isinstance(command, KillJob):
                self._killed(site, command.job_id)
            elif isinstance(command, RefuseJob):
                self._is_refused(command.job_id, command.reason)
        if answered:
            self.connections.flush(self.now_ms, site, SITE_END)
        if self._check:
            core.check_invariants()
        self._plan_wake(site, core.next_wakeup_ms())

    def _step_meta(self, events: list[GridEvent]) -> None:
        commands: list[GridCommand] = self._meta.handle(self.now_ms, *events)
        written: list[int] = []
        for command in commands:
            if isinstance(command, ToSite):
                request = command.request
                if isinstance(request, HoldNodes):
                    self._is_asked(command.site, request.job_id, request.attempt, request.width, request.start_ms)
                    self._longest_ms = max(self._longest_ms, request.length_ms)
                elif isinstance(request, EnqueueJob):
                    self._is_asked(command.site, request.job.job_id, request.attempt, request.job.width, None)
                    self._longest_ms = max(self._longest_ms, request.job.estimate_ms)
                elif isinstance(request, CommitHold):
                    self._is_committed(request)
                self.connections.put(self.now_ms, command.site, GRID_END, request)
                written.append(command.site)
            elif isinstance(command, ReportDone):
                self.history.reported(self.now_ms, command.job_id, command.outcome)
                self._open_jobs -= 1
            elif isinstance(command, ReportRefused):
                self._is_refused(command.job_id, command.reason)
        for site in dict.fromkeys(written):
            self.connections.flush(self.now_ms, site, GRID_END)
        if self._check:
            self._meta.check_invariants()
        wake_ms = self._meta.next_wakeup_ms()
        if wake_ms is not None and (self._meta_wake_ms is None or wake_ms < self._meta_wake_ms):
            self._meta_wake_ms = wake_ms
            self._at(wake_ms, _WAKE, GRID)

    def _is_refused(self, job_id: int, reason: str) -> None:
        self.history.refused(job_id)
        self.refused[job_id] = reason
        self._lengths.given_up(job_id)
        self._open_jobs -= 1

    def _is_asked(self, site: int, job_id: int, attempt: int, width: int, start_ms: int | None) -> None:
        """Note which fragments make up a job; all of them are asked for in one step of the grid."""
        work = self._work.setdefault((job_id, attempt), _Work({}, set(), start_ms=start_ms))
        work.fragments[site] = width
        self._lengths.asked(job_id, attempt)

    def _is_committed(self, request: CommitHold) -> None:
        """Note that a job may start; the same is said to each of its sites, and the first time counts."""
        key = (request.job_id, request.attempt)
        if not self.history.is_committed(*key):
            self.history.committed(self.now_ms, *key, tuple(self._work[key].fragments.items()))

    def _starts(self, site: int, command: StartJob) -> None:
        """Put a fragment on its nodes; the job works when it is the last."""
        job_id = command.job_id
        attempt = self._sites[site].attempt_of(job_id)
        if attempt == OWN:
            self._work[job_id, OWN] = _Work({site: self._jobs[job_id].job.width}, set())
        work = self._work[job_id, attempt]
        self.history.occupied(self.now_ms, site, job_id, attempt, command.nodes, work.fragments[site], command.threads)
        if len(work.fragments) > 1:
            self.history.joined(self.now_ms, site, job_id, attempt, work.start_ms)
        work.started.add(site)
        if work.is_dead or len(work.started) < len(work.fragments):
            return
        submission = self._jobs[job_id]
        run_ms: int | None = min(submission.run_ms, submission.job.estimate_ms)
        fragments = tuple(work.fragments.items())
        if attempt != OWN:
            assert run_ms is not None, "a job has a length"
            run_ms = self._lengths.begins(self.now_ms, job_id, attempt, fragments, run_ms)
        if len(fragments) > 1:
            for other in work.fragments:
                self._tell_site(other, FragmentsMet(job_id, attempt))
        self.history.began(self.now_ms, job_id, attempt, fragments)
        work.begun_ms = self.now_ms
        if run_ms is None:
            work.moves_data, work.end_ms = True, int(NEVER_MS)
        else:
            self._begin_work(job_id, attempt, work, run_ms)

    def _begin_work(self, job_id: int, attempt: int, work: _Work, run_ms: int) -> None:
        """Let a job work that has its nodes and its data."""
        work.moves_data = False
        work.since_ms = self.now_ms
        work.left = run_ms * RATE_ONE
        work.end_ms = self.now_ms + run_ms
        self._at(work.end_ms, _END, attempt, job_id)
        if work.rates is not None:
            self._set_rate(job_id, attempt, work)

    def _slows(self, site: int, command: ChangeRate) -> None:
        """Have a fragment, and with it its job, go on at another rate."""
        attempt = self._sites[site].attempt_of(command.job_id)
        work = self._work.get((command.job_id, attempt))
        if work is None:
            return
        if work.rates is None:
            work.rates = dict.fromkeys(work.fragments, RATE_ONE)
        work.rates[site] = command.rate
        self._slowest = min(self._slowest, command.rate)
        if work.begun_ms >= 0:
            self._set_rate(command.job_id, attempt, work)

    def _set_rate(self, job_id: int, attempt: int, work: _Work) -> None:
        """Let a job go on at the rate that its sites and its links leave it, which may be 0."""
        rate = min(work.rates.values()) if work.rates is not None else RATE_ONE
        if work.on_links != RATE_ONE:
            rate = rate * work.on_links // RATE_ONE
        if rate != work.rate and not work.moves_data:
            work.left = int(work_left(work.left, work.rate, work.since_ms, self.now_ms))
            work.rate, work.since_ms = rate, self.now_ms
            work.end_ms = int(work_done_ms(work.left, rate, self.now_ms))
            if work.end_ms < NEVER_MS:
                self._at(work.end_ms, _END, attempt, job_id)

    def _work_ends(self, job_id: int, attempt: int) -> None:
        """Have a job end by itself, or send its output first."""
        work = self._work.get((job_id, attempt))
        if work is None or work.is_dead or work.begun_ms < 0 or work.end_ms != self.now_ms:
            return
        pace = None if attempt == OWN else self._lengths.delivers(self.now_ms, job_id)
        if pace is None:
            self._is_over(job_id, attempt, work)
        else:
            work.moves_data, work.end_ms = True, int(NEVER_MS)
            self._tell_pace(pace)

    def _is_over(self, job_id: int, attempt: int, work: _Work) -> None:
        """Have a job end that has nothing left to do."""
        self.start_ms[job_id] = work.begun_ms
        self.end_ms[job_id] = self.now_ms
        self.fragments[job_id] = tuple(work.fragments.items())
        self._leaves(job_id, attempt, work, completed=True)
        if attempt == OWN:
            self.history.reported(self.now_ms, job_id, "finished")
            self._open_jobs -= 1

    def _leaves(self, job_id: int, attempt: int, work: _Work, *, completed: bool) -> None:
        """Take a job that works off all its nodes."""
        del self._work[job_id, attempt]
        self.history.stopped(self.now_ms, job_id, completed=completed)
        self._lengths.ends(job_id)
        for site in work.fragments:
            self.history.left(self.now_ms, site, job_id)
            self._tell_site(site, JobFinished(job_id))

    def _killed(self, site: int, job_id: int) -> None:
        """End a fragment, and with it the job if it works; one that waits for its partners will not work any more."""
        attempt = self._sites[site].attempt_of(job_id)
        work = self._work[job_id, attempt]
        if work.begun_ms >= 0:
            self._leaves(job_id, attempt, work, completed=False)
            return
        work.is_dead = True
        self.history.gave_up(self.now_ms, site, job_id, self._sites[site].rendezvous_ms)
        self._tell_site(site, JobFinished(job_id))

    def _fail(self, site: int) -> None:
        """Let a site fail: what it runs is lost, and with that the other fragments of these jobs."""
        self._down[site] = True
        self.crashes += 1
        for job_id, attempt in self.history.running_on(site):
            work = self._work[job_id, attempt]
            if work.begun_ms < 0:
                work.is_dead = True
                continue
            del self._work[job_id, attempt]
            self.history.stopped(self.now_ms, job_id, completed=False)
            self._lengths.ends(job_id)
            for other in work.fragments:
                if other != site:
                    self.history.left(self.now_ms, other, job_id)
                    self._tell_site(other, JobFinished(job_id))
        self.history.site_failed(self.now_ms, site)
        # What its own users did at this very instant is not lost, nor what had ended before the site failed.
        self._parked[site] += [e for e in self._for_site[site] if isinstance(e, (JobFinished, JobSubmitted))]
        self._for_site[site] = []
        self._plan_fault(site, _RETURN, self._faults.crash_lasts_ms, always=True)

    def _note_answer(self, site: int, answer: Answer) -> None:
        """Keep the history of holds from what a site says at the instant at which it says it."""
        if isinstance(answer, Held):
            start_ms = self._work[answer.job_id, answer.attempt].start_ms
            assert start_ms is not None, "a site holds what is to start at once"
            self.history.held(site, answer.job_id, answer.attempt, start_ms)
        elif isinstance(answer, (HoldEnded, Started)):
            self.history.unheld(self.now_ms, site, answer.job_id, answer.attempt)

    def _delivered(self, to: int, site: int, message: Any) -> None:
        if to == GRID:
            self._for_meta.append(FromSite(site, message))
            # That something has started, as the grid wanted it to, gives it nothing to decide: it learns of it with
            # whatever happens next. This saves a third of its steps.
            self._meta_woken = self._meta_woken or not isinstance(message, Started)
        else:
            self._tell_site(to, message)

"""Full control: one queue over all sites; the grid decides, the sites start (docs/grid.md)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

import msgspec

from gridweave.grid.control.coallocation import (
    ENDED,
    MOVED,
    PART_ENDED,
    Attempt,
    AttemptChange,
    AttemptsState,
    CoAllocator,
)
from gridweave.grid.control.common import NOWHERE, Control, ControlOptions, ControlState, Never, QuoteQuestion
from gridweave.grid.control.delegated_forecasts import apart_forecast
from gridweave.grid.control.forecasts import QueueForecasts, attempt_forecast, quoted_forecast
from gridweave.grid.control.limited import LimitedControl, LimitedControlState
from gridweave.grid.control.past import LeftAlone
from gridweave.grid.control.queue import GridQueue, QueueState
from gridweave.grid.control.sharing import KnownOffer, SharedOffers, SharedOffersState
from gridweave.grid.control.tuning import QueueTuning
from gridweave.grid.messages import (
    GridCommand,
    GridJobSubmitted,
    LinksChanged,
    PathsMeasured,
    ReportDone,
    ReportHeld,
    ReportRefused,
)
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.model import NetworkModel
from gridweave.site.explain import Forecast, Forecaster, Planner, offer_text, settled
from gridweave.site.job import Job
from gridweave.site.messages import (
    Answer,
    Ended,
    Enqueued,
    LeaseEnded,
    OfAttempt,
    Quoted,
    Refused,
    Reserved,
    RunsLate,
    SiteChanged,
    Started,
)


class FullControlState(ControlState, frozen=True, kw_only=True, tag="FullControl 1"):
    """What is known at this level."""

    queue: QueueState
    attempts: AttemptsState
    number: dict[int, int]
    held: list[int]
    hopeless: dict[int, str]
    closed: dict[int, tuple[int, int]]
    # Jobs that not all sites take: of those in the queue's hands, what is known of them; the others, and their nodes.
    barred: dict[int, GridJobSubmitted] = msgspec.field(default_factory=dict)
    apart: LimitedControlState | None = None
    apart_nodes: list[tuple[int, int, int]] = msgspec.field(default_factory=list)
    never: dict[int, dict[int, str]] = msgspec.field(default_factory=dict)
    # Why those of the closed sites that refused a job did so; the others were silent.
    refusals: dict[int, str] = msgspec.field(default_factory=dict)
    # Of the nodes of each site, those that are not the grid's to have, as it has said.
    others: dict[int, int] = msgspec.field(default_factory=dict)
    offers: SharedOffersState | None = None


class FullControl(Control):
    """The grid queue, and the attempts to start what it has placed.

    The queue places a job on any site. One whose user some sites do not take, or that a site can never run, is apart
    from it: it is delegated to the queue of a site that takes it, as under limited control.
    """

    state_type: Any = FullControlState

    def __init__(self, nodes: Sequence[int], policy: GridPolicy, options: ControlOptions) -> None:
        super().__init__(nodes, policy, options)
        self._queue = GridQueue(nodes, policy, options.network)
        self._offers = SharedOffers(options.shared, nodes, options.retry_ms)
        self._attempts = CoAllocator(options.margin_ms)
        self._number: dict[int, int] = {}
        # Jobs that are under way, and are to be taken out if they come back; or could be placed no more then, and why.
        self._held: set[int] = set()
        self._hopeless: dict[int, str] = {}
        # Sites that are not asked for now: what of them counts as taken for that, and until when.
        self._closed: dict[int, tuple[int, int]] = {}
        self._refusals: dict[int, str] = {}
        self._others: dict[int, int] = {}
        # The parts of jobs that ended at this instant: a job whose last part ends with them frees all its nodes itself.
        self._parts_over: list[tuple[int, int]] = []
        self._changed = False
        self._options = options._replace(rng=None)
        self._barred: dict[int, GridJobSubmitted] = {}
        # The sites that are too small for a job and take no part of it, and what each has said of that, by job.
        self._never: dict[int, dict[int, str]] = {}
        self._apart: LimitedControl | None = None
        # What jobs that are apart have at sites, by job and site: the queue counts it with what others have.
        self._apart_nodes: dict[tuple[int, int], int] = {}

    def state(self) -> FullControlState:
        """Return all that is known between two instants."""
        return FullControlState(
            draws=self._draws(),
            shut=self._shut,
            longest_ms=self._longest_ms,
            cut_off=self.cut_off_sites,
            queue=self._queue.state(),
            attempts=self._attempts.state(),
            number=self._number,
            held=sorted(self._held),
            hopeless=self._hopeless,
            closed=self._closed,
            barred=self._barred,
            apart=None if self._apart is None else self._apart.state(),
            apart_nodes=[(*key, nodes) for key, nodes in self._apart_nodes.items()],
            never=self._never,
            refusals=self._refusals,
            others=self._others,
            offers=self._offers.state(),
        )

    def restore(self, state: FullControlState) -> None:
        """Take in all that another of the same settings knew; this one is fresh."""
        super().restore(state)
        self._queue.restore(state.queue)
        self._attempts.restore(state.attempts)
        self._number, self._held = state.number, set(state.held)
        self._hopeless, self._closed = state.hopeless, state.closed
        self._barred, self._never, self._refusals = state.barred, state.never, state.refusals
        self._others = state.others
        if state.apart is not None:
            self._those_apart().restore(state.apart)
        self._apart_nodes = {(job_id, site): nodes for job_id, site, nodes in state.apart_nodes}
        if state.offers is not None:
            self._offers.restore(state.offers)
        # A journal of an older release does not have it in the queue.
        for site in self._shut:
            self._queue.set_shut(site, True)

    @property
    def model(self) -> NetworkModel | None:
        """The links between the sites as the queue knows them now."""
        return self._queue.model

    def _links_news(self) -> Sequence[LinksChanged | PathsMeasured]:
        return self._queue.links_news

    @property
    def tuning(self) -> QueueTuning | None:
        """What the queue knows of its orders, if it tunes itself."""
        return self._queue.tuning

    def copy(self) -> Self:
        """Return the same state; neither sees what is done to the other."""
        twin = copy.copy(self)
        twin._queue, twin._attempts = self._queue.copy(), self._attempts.copy()
        twin._rng = copy.deepcopy(self._rng)
        twin._number, twin._closed = self._number.copy(), self._closed.copy()
        twin._held, twin._hopeless, twin._barred = self._held.copy(), self._hopeless.copy(), self._barred.copy()
        twin._never, twin._shut, twin._refusals = self._never.copy(), self._shut.copy(), self._refusals.copy()
        twin._others = self._others.copy()
        # What jobs apart have they keep in the twin; what sites offer they offer now, and not in a play.
        twin._apart, twin._offers = None, SharedOffers((), self._nodes, self._retry_ms)
        return twin

    def queue_copy(self) -> GridQueue:
        """Return a copy of the queue over all sites, with those that are left alone for a while."""
        twin = self.copy()
        for site in list(twin._closed):
            twin._open(site)
        return twin._queue

    @property
    def queue(self) -> GridQueue:
        """The queue, to look at."""
        return self._queue

    @property
    def margin_ms(self) -> int:
        """How far ahead the start of a job on several sites is agreed."""
        return self._attempts.margin_ms

    @property
    def attempts(self) -> dict[int, Attempt]:
        """The attempts that are under way, by job, to look at."""
        return self._attempts.attempts

    @property
    def closed(self) -> dict[int, LeftAlone]:
        """The sites that are not asked for now, and why."""
        return {
            site: LeftAlone(until_ms - self._retry_ms, until_ms, self._refusals.get(site, ""))
            for site, (_, until_ms) in self._closed.items()
        }

    def forecaster(self, now_ms: int, job_id: int, end_ms: int = 0) -> Forecaster | None:
        """Return what works out when a job starts, and why not sooner; None if it is not known."""
        return self.forecasters(now_ms, [job_id], end_ms)[0]

    def forecasters(self, now_ms: int, job_ids: Sequence[int], end_ms: int = 0) -> list[Forecaster | None]:
        """Return what works out when jobs start: those of the queue share one play."""
        shared: QueueForecasts | None = None
        found: list[Forecaster | None] = []
        for job_id in job_ids:
            if self._is_apart(job_id):
                forecaster = self._those_apart().forecaster(now_ms, job_id)
                found.append(forecaster and partial(apart_forecast, forecaster))
            elif job_id not in self._number:
                found.append(None)
            elif job_id in self._attempts.attempts:
                found.append(settled(attempt_forecast(now_ms, self._attempts.attempts[job_id], self._names)))
            else:
                shared = shared or QueueForecasts(self.copy(), now_ms, self._names, end_ms)
                forecast = partial(shared.forecast, job_id)
                offers = {self._names[site]: offer for site, offer in self._offers.said(job_id).items()}
                found.append(partial(_with_offers, forecast, offers) if offers else forecast)
        return found

    def quoter(self, now_ms: int, question: QuoteQuestion) -> Forecaster:
        """See `Control`: by a copy of the queue."""
        asked, end_ms, without, _ = question
        if asked.barred:
            return partial(apart_forecast, self._those_apart().quoter(now_ms, question))
        twin = self.copy()
        if without in twin._number and without not in twin._attempts.attempts:
            twin.cancel(now_ms, without)
        quoted = partial(quoted_forecast, twin, now_ms, asked, self._names, end_ms)
        able = tuple(self._names[site] for site in self._offers.could_offer(asked.job))
        return partial(_offered_by, quoted, able) if able else quoted

    def planner(self, now_ms: int, most_jobs: int, end_ms: int = 0) -> Planner:
        """Return what works out when jobs start that wait: one play for all of the queue."""
        queued = partial(QueueForecasts(self.copy(), now_ms, self._names, end_ms).starts, most_jobs)
        if self._apart is None:
            return queued
        apart = self._apart.planner(now_ms, most_jobs, end_ms)
        return lambda: [*queued(), *apart()][:most_jobs]

    def knows(self, job_id: int) -> bool:
        """Return whether a job is here."""
        return job_id in self._number or self._is_apart(job_id)

    def site_changed(self, site: int, change: SiteChanged) -> None:
        """See `Control`."""
        super().site_changed(site, change)
        self._queue.set_shut(site, site in self._shut)
        if self._apart is not None:
            self._apart.site_changed(site, change)

    def cut_off(self, now_ms: int, site: int, why: str) -> None:
        """See `Control`."""
        super().cut_off(now_ms, site, why)
        self._open(site)
        self._queue.set_shut(site, site in self._shut)
        if site not in self._shut:
            # All that was free there has counted as others', and the site says nothing if nothing has changed.
            self._queue.set_others(site, self._others.get(site, 0) + self._nodes_apart(site))
        self._changed = True
        if self._apart is not None:
            self._apart.cut_off(now_ms, site, why)

    def site_shares(self, site: int) -> None:
        """See `Control`; the first jobs of the queue are asked for."""
        self._offers.add(site)
        self._changed = True

    @property
    def shut(self) -> dict[int, str]:
        """The sites that accept no new jobs, each with the reason."""
        return self._shut

    def _is_apart(self, job_id: int) -> bool:
        return self._apart is not None and self._apart.knows(job_id)

    def _those_apart(self) -> LimitedControl:
        """Return what places the jobs that are apart; most grids have none."""
        if self._apart is None:
            self._apart = LimitedControl(self._nodes, self.policy, self._options)
            for site in self._shut.keys() | self._longest_ms.keys():
                change = SiteChanged(0, 0, self._shut.get(site, ""), self._longest_ms.get(site))
                self._apart.site_changed(site, change)
            for site, why in self.cut_off_sites.items():
                self._apart.cut_off(0, site, why)
        return self._apart

    def _admit(self, now_ms: int, asked: GridJobSubmitted, draw: float, never: Never) -> list[GridCommand]:
        if asked.barred or never:
            return self._those_apart().submit(now_ms, asked, never)
        self._number[asked.job.job_id] = asked.attempt
        self._queue.submit(now_ms, asked.job, draw=draw, sensitivity=asked.sensitivity, sends=asked.sends)
        self._changed = True
        return []

    def bar(self, now_ms: int, event: GridJobSubmitted) -> list[GridCommand]:
        """Take a job that waits out of the queue, and place it apart; one that is under way, when it comes back."""
        job_id = event.job.job_id
        if self._is_apart(job_id):
            return self._those_apart().bar(now_ms, event)
        if job_id not in self._number:
            return []
        self._barred.pop(job_id, None)
        self._never.pop(job_id, None)
        if not event.barred:
            return []
        if job_id in self._attempts.attempts:
            self._barred[job_id] = event
            return []
        asked = self._as_submitted(job_id, event)
        self._queue.withdraw(job_id)
        self._changed = True
        return self._those_apart().submit(now_ms, asked)

    def _as_submitted(self, job_id: int, barred: GridJobSubmitted | None) -> GridJobSubmitted:
        """Return a job that leaves the queue as one that comes anew, with the sites that do not take its user."""
        job, sensitivity, sends = self._queue.told(job_id)
        return GridJobSubmitted(job, sensitivity, sends, self._forget(job_id), barred.barred if barred else ())

    def _forget(self, job_id: int) -> int:
        """Have nothing more of a job that leaves the queue; return the number of its last attempt."""
        self._never.pop(job_id, None)
        return self._number.pop(job_id)

    def evicted(self, job_id: int) -> int:
        """Count that a site has evicted a job; return how often it has been; 0: it is not known."""
        if self._is_apart(job_id):
            return self._those_apart().evicted(job_id)
        return self._queue.evicted(job_id) if job_id in self._number else 0

    def cancel(self, now_ms: int, job_id: int) -> list[GridCommand]:
        """End a job, or take it out of the queue."""
        if self._is_apart(job_id):
            return self._those_apart().cancel(now_ms, job_id)
        if job_id not in self._number:
            return []
        if job_id in self._attempts.attempts:
            return self._attempts.cancel(job_id)
        self._queue.withdraw(job_id)
        self._forget(job_id)
        self._changed = True
        return [ReportDone(job_id, "cancelled")]

    def hold(self, now_ms: int, job_id: int) -> list[GridCommand]:
        """Take a job out of the queue; one that is under way when it comes back there."""
        if self._is_apart(job_id):
            return self._those_apart().hold(now_ms, job_id)
        if job_id not in self._number:
            return []
        if job_id in self._attempts.attempts:
            self._held.add(job_id)
            return []
        self._queue.withdraw(job_id)
        self._changed = True
        return [ReportHeld(job_id, self._forget(job_id))]

    def release(self, job_id: int) -> None:
        """Do not take a job out of the queue any more."""
        if self._is_apart(job_id):
            self._those_apart().release(job_id)
        self._held.discard(job_id)

    def answered(self, now_ms: int, site: int, answer: Answer) -> list[GridCommand]:
        """Take in what a site says."""
        if type(answer) is RunsLate:
            # It gives nothing to decide: what waits, waits for longer.
            attempt = self._attempts.attempts.get(answer.job_id)
            if attempt is not None and attempt.number == answer.attempt:
                self._queue.runs_late(answer)
            return []
        if self._offers.sites and self._heard(self._offers, site, answer):
            return []
        if type(answer) is SiteChanged:
            self._open(site)
            self._others[site] = answer.others
            self._queue.set_others(site, answer.others + self._nodes_apart(site))
            self._changed = True
            return [] if self._apart is None else self._apart.answered(now_ms, site, answer)
        if self._apart is not None:
            self._note_apart(self._apart, site, answer)
            if type(answer) is Quoted or (isinstance(answer, OfAttempt) and self._is_apart(answer.job_id)):
                return self._apart.answered(now_ms, site, answer)
        if self._closed and type(answer) is Ended:
            self._open(site)
        commands, change = self._attempts.answered(now_ms, site, answer)
        return commands if change is None else commands + self._take_note(now_ms, change)

    def _nodes_apart(self, site: int) -> int:
        """Return how many nodes of a site jobs have that are apart."""
        return sum(nodes for (_, other), nodes in self._apart_nodes.items() if other == site)

    def _heard(self, offers: SharedOffers, site: int, answer: Answer) -> bool:
        """Take in what a site offers, or that its offers hold no more; return whether that is all that it says."""
        if type(answer) is Quoted and answer.quote_id < 0:
            self._changed = offers.answered(answer) or self._changed
            return True
        if type(answer) is Refused:
            offers.refused(answer.job_id, site)
        elif not isinstance(answer, (Quoted, RunsLate, Enqueued)):
            offers.changed(site)
            self._changed = True
        return False

    def _note_apart(self, apart: LimitedControl, site: int, answer: Answer) -> None:
        """Take note of the nodes that a job has which is apart, or was; the queue cannot have these."""
        if not isinstance(answer, (Reserved, Started, Ended, LeaseEnded)):
            return
        key = answer.job_id, site
        had = self._apart_nodes.pop(key, 0)
        has = 0
        is_there = isinstance(answer, (Reserved, Started)) and apart.knows(answer.job_id)
        if is_there and apart.attempt_of(answer.job_id) == answer.attempt:
            has = had or apart.nodes_at(answer.job_id, site)
        if has:
            self._apart_nodes[key] = has
        if has != had:
            self._queue.set_others(site, self._queue.others(site) + has - had)
            self._changed = True

    def _take_note(self, now_ms: int, change: AttemptChange) -> list[GridCommand]:
        attempt, kind = change.attempt, change.kind
        job_id = attempt.job.job_id
        if kind == MOVED:
            self._queue.expect_end(now_ms, job_id, attempt.start_ms + attempt.length_ms)
            return []
        self._changed = True
        if kind == PART_ENDED:
            self._parts_over += [(job_id, site) for site in change.sites]
            return []
        no_part = change.never is not None and len(attempt.fragments) > 1
        if no_part:
            self._note_no_part(attempt.job, change)
            change = msgspec.structs.replace(change, never=None)
        barred = self._barred[job_id].barred if job_id in self._barred else ()
        report = self._came_back(now_ms, change)
        # A job that is gone asks for no part again.
        if kind != ENDED and change.never is None and not (no_part and job_id not in self._number):
            width = dict(attempt.fragments)
            for site in change.sites:
                # A site that has said why (others have its nodes, it does not take the user, it can never run the job)
                # need not be left alone as well.
                if self._queue.free(site) >= width[site] and site not in barred:
                    self._close(now_ms, site, change.refusal)
        return report

    def _note_no_part(self, job: Job, change: AttemptChange) -> None:
        """Take note that sites take no part of a job; if it is too wide for all but those, it is refused."""
        too_small = {site: change.never or "" for site in change.sites if self._nodes[site] < job.width}
        if too_small:
            never = self._never[job.job_id] = self._never.get(job.job_id, {}) | too_small
            why_never = self.why_never(job, never=never, sends=self._queue.told(job.job_id)[2])
            if why_never is not None:
                self._hopeless.setdefault(job.job_id, why_never)

    def _came_back(self, now_ms: int, change: AttemptChange) -> list[GridCommand]:
        """Report a job whose attempt is over; without an outcome it waits again, if it is wanted and has hope."""
        attempt, job_id = change.attempt, change.attempt.job.job_id
        outcome = attempt.outcome if change.kind == ENDED else None
        if outcome is None and attempt.cancelled:
            outcome = "cancelled"
        is_held = job_id in self._held
        self._held.discard(job_id)
        hopeless = self._hopeless.pop(job_id, None)
        barred = self._barred.pop(job_id, None)
        if outcome is None and hopeless is None and not is_held:
            return self._waits_again(now_ms, job_id, barred, change)
        self._queue.ended(now_ms, job_id)
        number = self._forget(job_id)
        if outcome is not None:
            return [ReportDone(job_id, outcome)]
        return [ReportHeld(job_id, number) if is_held or hopeless is None else ReportRefused(job_id, hopeless)]

    def _waits_again(
        self, now_ms: int, job_id: int, barred: GridJobSubmitted | None, change: AttemptChange
    ) -> list[GridCommand]:
        """Put a job back into the queue; apart, if a site does not take its user any more, or can never run it."""
        if barred is None and change.never is None:
            self._queue.requeue(now_ms, job_id)
            return []
        asked, never = self._as_submitted(job_id, barred), NOWHERE
        # Where it may be split, each site is asked whether it takes a part at least.
        if change.never is not None and not self._queue.may_split(job_id):
            never = dict.fromkeys(change.sites, change.never)
        self._queue.ended(now_ms, job_id)
        return self._those_apart().submit(now_ms, asked, never)

    def links_changed(self, now_ms: int, news: LinksChanged | PathsMeasured) -> list[GridCommand]:
        """Place jobs by the links as they are now."""
        self._queue.links_changed(news)
        self._changed = True
        return [] if self._apart is None else self._apart.links_changed(now_ms, news)

    def reconsider(self, now_ms: int) -> None:
        """Place what waits by the policy as it is now."""
        self._queue.reconsider()
        self._attempts.reconsider()
        self._changed = True
        if self._apart is not None:
            self._apart.reconsider(now_ms)

    def hopeless(self, now_ms: int, job_id: int, reason: str) -> list[GridCommand]:
        """Refuse a job that waits; one that is under way, when it is to be tried again."""
        if self._is_apart(job_id):
            return self._those_apart().hopeless(now_ms, job_id, reason)
        if job_id not in self._number:
            return []
        if job_id in self._attempts.attempts:
            self._hopeless[job_id] = reason
            return []
        self._queue.withdraw(job_id)
        self._forget(job_id)
        self._changed = True
        return [ReportRefused(job_id, reason)]

    def run(self, now_ms: int) -> list[GridCommand]:
        """Give up what was not granted in time, and run the one pass of this instant if something has changed."""
        commands: list[GridCommand] = [] if self._apart is None else self._apart.run(now_ms)
        for job_id, site in self._parts_over:
            if job_id in self._attempts.attempts:
                self._queue.part_ended(job_id, site)
        self._parts_over = []
        if self._attempts.asking:
            requests, changes = self._attempts.expire(now_ms)
            commands += requests
            for change in changes:
                commands += self._take_note(now_ms, change)
        if self._closed:
            for site, (_, until_ms) in sorted(self._closed.items()):
                if until_ms <= now_ms:
                    self._open(site)
                    self._changed = True
        offers = self._offers
        if offers.expire(now_ms):
            self._changed = True
        if self._changed or self._is_due(now_ms):
            self._changed = False
            if offers.sites:
                self._queue.offer(offers.ends(now_ms, self._queue))
            commands += self._place(now_ms)
            if offers.sites:
                commands += self._share(now_ms, offers)
        return commands

    def _place(self, now_ms: int) -> list[GridCommand]:
        """Run the pass of this instant, and ask for the nodes of what it starts."""
        commands: list[GridCommand] = []
        for placement in self._queue.run_pass(now_ms):
            job, fragments, length_ms = placement.job, placement.fragments, placement.length_ms
            job_id = job.job_id
            self._number[job_id] = number = self._number[job_id] + 1
            is_told = fragments[0][0] in self._offers.sites
            commands += self._attempts.begin(now_ms, job, number, fragments, length_ms, is_told=is_told)
            if len(fragments) > 1 and self.margin_ms:
                self._queue.expect_end(now_ms, job_id, now_ms + self.margin_ms + length_ms)
        return commands

    def _share(self, now_ms: int, offers: SharedOffers) -> list[GridCommand]:
        """Have jobs that wait start beside others where that pays, and ask for offers to those that go on waiting."""
        commands: list[GridCommand] = []
        for job, site, slowdown, work_ms, end_ms in offers.take(now_ms, self._queue):
            self._number[job.job_id] = number = self._number[job.job_id] + 1
            commands += self._attempts.begin_beside(now_ms, job, number, site, work_ms, slowdown, end_ms)
        return commands + offers.ask(now_ms, self._queue)

    def _is_due(self, now_ms: int) -> bool:
        start_ms = self._queue.next_start_ms()
        return start_ms is not None and start_ms <= now_ms

    def waiting(self) -> Iterator[int]:
        """Yield the jobs that wait, in the order in which they are thought of."""
        yield from (job.job_id for job in self._queue.waiting)
        if self._apart is not None:
            yield from self._apart.waiting()

    def next_wakeup_ms(self) -> int | None:
        """Return when `run` is to be called though nothing is heard."""
        apart_ms = None if self._apart is None else self._apart.next_wakeup_ms()
        offers_ms = self._offers.next_wakeup_ms()
        if offers_ms is None and not (self._attempts.asking or self._closed or self._queue.reserves_starts):
            return apart_ms
        instants = [apart_ms, offers_ms, self._attempts.next_wakeup_ms(), self._queue.next_start_ms()]
        instants += [until_ms for _, until_ms in self._closed.values()]
        return min((instant for instant in instants if instant is not None), default=None)

    def _close(self, now_ms: int, site: int, refusal: str) -> None:
        """Ask a site for nothing until something is heard of it, or some time has passed; it refused, or was silent."""
        self._open(site)
        taken = max(0, self._queue.free(site))
        self._queue.set_others(site, self._queue.others(site) + taken)
        self._closed[site] = taken, now_ms + self._retry_ms
        if refusal:
            self._refusals[site] = refusal

    def _open(self, site: int) -> None:
        if site in self._closed:
            taken, _ = self._closed.pop(site)
            self._refusals.pop(site, None)
            self._queue.set_others(site, self._queue.others(site) - taken)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        self._queue.check_invariants()
        assert self._queue.shut == set(self._shut), "the queue has other sites that are shut"
        assert all(self._queue.free(site) <= 0 for site in self._shut), "a site that is shut has free nodes"
        if self._apart is not None:
            self._apart.check_invariants()
        assert set(self._barred) <= set(self._attempts.attempts), "a job is in the queue that not all sites take"
        assert set(self._never) <= set(self._number), "it is known who can never run a job that is gone"
        waiting = {job.job_id for job in self._queue.waiting}
        assert waiting.isdisjoint(self._attempts.attempts), "a job waits and is being started"
        assert waiting | set(self._attempts.attempts) == set(self._number), "a job is lost"
        assert self._held | set(self._hopeless) <= set(self._attempts.attempts), (
            "a job is to be taken out, and is nowhere"
        )


def _offered_by(forecaster: Forecaster, offers: tuple[str, ...]) -> Forecast:
    """Return the quote of a job, with the sites that know beside whom it could start now."""
    return msgspec.structs.replace(forecaster(), offers=offers)


def _with_offers(forecaster: Forecaster, offers: Mapping[str, KnownOffer]) -> Forecast:
    """Return the forecast of a job that waits, with the shared nodes that sites offer it, which it has not taken."""
    found = forecaster()
    texts = {site: offer_text(offer.slowdown, offer.beside) for site, offer in offers.items()}
    rows = [msgspec.structs.replace(row, offer=texts.get(row.site, "")).with_offer() for row in found.sites]
    return msgspec.structs.replace(found, sites=tuple(rows))

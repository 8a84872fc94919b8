"""Full control: one queue over all sites; the grid decides, and the sites start the jobs (docs/grid.md)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

import msgspec
from typing_extensions import override

from gridweave.grid.control.coallocation import (
    ENDED,
    MOVED,
    PART_ENDED,
    Attempt,
    AttemptChange,
    AttemptsState,
    CoAllocator,
)
from gridweave.grid.control.common import (
    NO_SIZES,
    NOWHERE,
    Control,
    ControlOptions,
    ControlState,
    Never,
    QuoteQuestion,
)
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
    RequestQuote,
    Reserved,
    RunsLate,
    SiteChanged,
    Started,
)
from gridweave.site.resources.refusals import why_whole_only


def why_whole_nodes(nodes: Sequence[int], policy: GridPolicy, options: ControlOptions) -> str | None:
    """Return why the queue cannot count the cores, memory and GPUs of the sites, or None if it can."""
    if not any(site.counts for site in options.counted):
        return "no site has kinds of nodes that the grid knows"
    if [site.nodes for site in options.counted] != list(nodes) or min(nodes) < 1:
        return "a site with kinds of nodes gives the grid only a share of them (grid_share)"
    if policy.backfill == "conservative":
        return "it reserves starts (backfill conservative)"
    if policy.tuning is not None:
        return "it tunes its order (tuning)"
    return None if options.network is None else "it knows the links between the sites"


class FullControlState(ControlState, frozen=True, kw_only=True, tag="FullControl 1"):
    """The state of full control."""

    queue: QueueState
    attempts: AttemptsState
    number: dict[int, int]
    held: list[int]
    unplaceable: dict[int, str] = msgspec.field(name="hopeless")
    closed: dict[int, tuple[int, int]]
    # The submissions of jobs that still have an attempt but now have excluded sites. For jobs kept apart,
    # `apart` is the state of their level of control, and `apart_nodes` contains (job, site, nodes).
    excluded: dict[int, GridJobSubmitted] = msgspec.field(default_factory=dict, name="barred")
    apart: LimitedControlState | None = None
    apart_nodes: list[tuple[int, int, int]] = msgspec.field(default_factory=list)
    never: dict[int, dict[int, str]] = msgspec.field(default_factory=dict)
    # Why a closed site refused a job, by site; the other closed sites did not answer.
    refusals: dict[int, str] = msgspec.field(default_factory=dict)
    # The number of nodes that are not available to the grid, as reported by each site.
    others: dict[int, int] = msgspec.field(default_factory=dict)
    offers: SharedOffersState | None = None


class FullControl(Control):
    """The grid queue, and the attempts to start the jobs that the queue has placed.

    The queue can place a job on any site. A job that some site does not accept or can never run is kept apart from the
    queue: the grid delegates the job to the queue of a site that accepts it, as under limited control.
    """

    state_type: Any = FullControlState

    def __init__(self, nodes: Sequence[int], policy: GridPolicy, options: ControlOptions) -> None:
        super().__init__(nodes, policy, options)
        self._why_whole_nodes = why_whole_nodes(nodes, policy, options)
        self._counted = options.counted if self._why_whole_nodes is None else ()
        self._queue = GridQueue(nodes, policy, options.network, self._counted)
        self._offers = SharedOffers(options.shared, nodes, options.retry_ms)
        self._attempts = CoAllocator(options.margin_ms)
        self._number: dict[int, int] = {}
        # Jobs with an attempt in progress that will be held or refused (with the reason) if they return to the queue.
        self._held: set[int] = set()
        self._unplaceable: dict[int, str] = {}
        # Sites that are not asked now: the nodes counted as unavailable for that reason, and the end of the pause.
        self._closed: dict[int, tuple[int, int]] = {}
        self._refusals: dict[int, str] = {}
        self._others: dict[int, int] = {}
        # (job, site) of the parts that ended in this step; a job whose last part ends frees all its nodes itself.
        self._parts_over: list[tuple[int, int]] = []
        self._changed = False
        self._options = options._replace(rng=None)
        self._excluded: dict[int, GridJobSubmitted] = {}
        # The sites that are too small for a job and accept no part of it, each with its reason, by job.
        self._never: dict[int, dict[int, str]] = {}
        self._apart: LimitedControl | None = None
        # The nodes of jobs kept apart from the queue, by job and site; the queue counts them as unavailable.
        self._apart_nodes: dict[tuple[int, int], int] = {}

    @override
    def why_unsuited(self, job: Job) -> str | None:
        """Return why a queue that counts whole nodes cannot place a job that asks for parts of nodes, or None."""
        if self._why_whole_nodes is None or why_whole_only(job.chunk) is None:
            return None
        reason = f"it asks for parts of nodes, and the grid's queue counts whole nodes: {self._why_whole_nodes}"
        return f'{reason}; write control = "limited" in [grid], and the sites place such jobs'

    @override
    def sizes_for(self, job: Job, most: Mapping[int, int] = NO_SIZES) -> list[int]:
        return [site.most_chunks(job.chunk) for site in self._counted] or super().sizes_for(job, most)

    def state(self) -> FullControlState:
        """Return the state; call only between two steps."""
        return FullControlState(
            draws=self._draws(),
            shut=self._shut,
            longest_ms=self._longest_ms,
            cut_off=self.cut_off_sites,
            queue=self._queue.state(),
            attempts=self._attempts.state(),
            number=self._number,
            held=sorted(self._held),
            unplaceable=self._unplaceable,
            closed=self._closed,
            excluded=self._excluded,
            apart=None if self._apart is None else self._apart.state(),
            apart_nodes=[(*key, nodes) for key, nodes in self._apart_nodes.items()],
            never=self._never,
            refusals=self._refusals,
            others=self._others,
            offers=self._offers.state(),
        )

    def restore(self, state: FullControlState) -> None:
        """Restore the state of a level with the same settings; this level must be new."""
        super().restore(state)
        self._queue.restore(state.queue)
        self._attempts.restore(state.attempts)
        self._number, self._held = state.number, set(state.held)
        self._unplaceable, self._closed = state.unplaceable, state.closed
        self._excluded, self._never, self._refusals = state.excluded, state.never, state.refusals
        self._others = state.others
        if state.apart is not None:
            self._those_apart().restore(state.apart)
        self._apart_nodes = {(job_id, site): nodes for job_id, site, nodes in state.apart_nodes}
        if state.offers is not None:
            self._offers.restore(state.offers)
        # In a journal of an older release, the queue's state lacks the shut sites.
        for site in self._shut:
            self._queue.set_shut(site, True)

    @property
    def model(self) -> NetworkModel | None:
        """The current model of the links between the sites, or None."""
        return self._queue.model

    def _links_news(self) -> Sequence[LinksChanged | PathsMeasured]:
        return self._queue.links_news

    @property
    def tuning(self) -> QueueTuning | None:
        """The state of a queue that tunes its order itself, or None."""
        return self._queue.tuning

    def copy(self) -> Self:
        """Return an independent copy."""
        new = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(new, name, value.copy())
        new._queue, new._attempts = self._queue.copy(), self._attempts.copy()
        new._rng = copy.deepcopy(self._rng)
        # In the copy, jobs apart keep their nodes. Offers of shared nodes hold only now, so a simulation has none.
        new._apart, new._offers = None, SharedOffers((), self._nodes, self._retry_ms)
        return new

    def queue_copy(self) -> GridQueue:
        """Return a copy of the queue in which all closed sites are open again."""
        trial = self.copy()
        for site in list(trial._closed):
            trial._open(site)
        return trial._queue

    @property
    def queue(self) -> GridQueue:
        """The queue; callers must not change it."""
        return self._queue

    @property
    def margin_ms(self) -> int:
        """How far in advance sites agree on the start of a split job."""
        return self._attempts.margin_ms

    @property
    def attempts(self) -> dict[int, Attempt]:
        """The attempts in progress, by job; callers must not change them."""
        return self._attempts.attempts

    @property
    def closed(self) -> dict[int, LeftAlone]:
        """The sites that are not asked for nodes at present, each with the reason and the period."""
        return {
            site: LeftAlone(until_ms - self._retry_ms, until_ms, self._refusals.get(site, ""))
            for site, (_, until_ms) in self._closed.items()
        }

    def forecaster(self, now_ms: int, job_id: int, end_ms: int = 0) -> Forecaster | None:
        """Return a function that forecasts the start of a job, with the reason; None if the job is unknown."""
        return self.forecasters(now_ms, [job_id], end_ms)[0]

    def forecasters(self, now_ms: int, job_ids: Sequence[int], end_ms: int = 0) -> list[Forecaster | None]:
        """Return the `forecaster` of each job; one simulation serves all jobs in the queue."""
        shared: QueueForecasts | None = None
        forecasters: list[Forecaster | None] = []
        for job_id in job_ids:
            if self._is_apart(job_id):
                forecaster = self._those_apart().forecaster(now_ms, job_id)
                forecasters.append(forecaster and partial(apart_forecast, forecaster))
            elif job_id not in self._number:
                forecasters.append(None)
            elif job_id in self._attempts.attempts:
                forecasters.append(settled(attempt_forecast(now_ms, self._attempts.attempts[job_id], self._names)))
            else:
                shared = shared or QueueForecasts(self.copy(), now_ms, self._names, end_ms)
                forecast = partial(shared.forecast, job_id)
                offers = {self._names[site]: offer for site, offer in self._offers.offers(job_id).items()}
                forecasters.append(partial(_with_offers, forecast, offers) if offers else forecast)
        return forecasters

    def questions(self, now_ms: int, asked: GridJobSubmitted) -> dict[int, RequestQuote]:
        """See `Control`; only the forecasts of jobs kept apart from the queue depend on the sites' answers."""
        return self._those_apart().questions(now_ms, asked) if asked.excluded else {}

    def quoter(self, now_ms: int, question: QuoteQuestion) -> Forecaster:
        """See `Control`; the forecast simulates a copy of the queue."""
        asked, end_ms, without, _ = question
        if asked.excluded:
            return partial(apart_forecast, self._those_apart().quoter(now_ms, question))
        trial = self.copy()
        if without in trial._number and without not in trial._attempts.attempts:
            trial.cancel(now_ms, without)
        quoted = partial(quoted_forecast, trial, now_ms, asked, self._names, end_ms)
        able = tuple(self._names[site] for site in self._offers.could_offer(asked.job))
        return partial(_offered_by, quoted, able) if able else quoted

    def planner(self, now_ms: int, most_jobs: int, end_ms: int = 0) -> Planner:
        """Return a function that forecasts the starts of the first `most_jobs` waiting jobs in one simulation."""
        queued = partial(QueueForecasts(self.copy(), now_ms, self._names, end_ms).starts, most_jobs)
        if self._apart is None:
            return queued
        apart = self._apart.planner(now_ms, most_jobs, end_ms)
        return lambda: [*queued(), *apart()][:most_jobs]

    def knows(self, job_id: int) -> bool:
        """Whether a job is in the queue, in an attempt, or kept apart from the queue."""
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
            # The site's free nodes counted as unavailable until now, and an unchanged site sends no report.
            self._queue.set_others(site, self._others.get(site, 0) + self._nodes_apart(site))
        self._changed = True
        if self._apart is not None:
            self._apart.cut_off(now_ms, site, why)

    def site_shares(self, site: int) -> None:
        """See `Control`; the grid then also asks the site to offer shared nodes to the first jobs in the queue."""
        self._offers.add(site)
        self._changed = True

    @property
    def shut(self) -> dict[int, str]:
        """The sites that accept no new jobs, each with the reason."""
        return self._shut

    def _is_apart(self, job_id: int) -> bool:
        return self._apart is not None and self._apart.knows(job_id)

    def _those_apart(self) -> LimitedControl:
        """Return the level of control for jobs kept apart from the queue; the first call creates it."""
        if self._apart is None:
            self._apart = LimitedControl(self._nodes, self.policy, self._options)
            for site in self._shut.keys() | self._longest_ms.keys():
                change = SiteChanged(0, 0, self._shut.get(site, ""), self._longest_ms.get(site))
                self._apart.site_changed(site, change)
            for site, why in self.cut_off_sites.items():
                self._apart.cut_off(0, site, why)
        return self._apart

    def _admit(self, now_ms: int, asked: GridJobSubmitted, draw: float, never: Never) -> list[GridCommand]:
        if asked.excluded or never:
            return self._those_apart().submit(now_ms, asked, never)
        self._number[asked.job.job_id] = asked.attempt
        self._queue.submit(now_ms, asked.job, draw=draw, sensitivity=asked.sensitivity, sends=asked.sends)
        self._changed = True
        return []

    def bar(self, now_ms: int, event: GridJobSubmitted) -> list[GridCommand]:
        """Keep a job with excluded sites apart from the queue: now if the job is waiting, otherwise once it returns."""
        job_id = event.job.job_id
        if self._is_apart(job_id):
            return self._those_apart().bar(now_ms, event)
        if job_id not in self._number:
            return []
        self._excluded.pop(job_id, None)
        self._never.pop(job_id, None)
        if not event.excluded:
            return []
        if job_id in self._attempts.attempts:
            self._excluded[job_id] = event
            return []
        asked = self._as_submitted(job_id, event)
        self._queue.withdraw(job_id)
        self._changed = True
        return self._those_apart().submit(now_ms, asked)

    def _as_submitted(self, job_id: int, excluded: GridJobSubmitted | None) -> GridJobSubmitted:
        """Drop the records of a job that leaves the queue; return the job's submission with its excluded sites."""
        job, sensitivity, sends = self._queue.described(job_id)
        return GridJobSubmitted(job, sensitivity, sends, self._forget(job_id), excluded.excluded if excluded else ())

    def _forget(self, job_id: int) -> int:
        """Drop the records of a job that leaves the queue; return the number of its last attempt."""
        self._never.pop(job_id, None)
        return self._number.pop(job_id)

    def evicted(self, job_id: int) -> int:
        """Count an eviction of a job; return the count, or 0 for an unknown job."""
        if self._is_apart(job_id):
            return self._those_apart().evicted(job_id)
        return self._queue.evicted(job_id) if job_id in self._number else 0

    def cancel(self, now_ms: int, job_id: int) -> list[GridCommand]:
        """Cancel a job: end it, or remove it from the queue."""
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
        """Remove a job from the queue: now if it is waiting, otherwise when it returns to the queue."""
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
        """Undo `hold` for a job that has not been removed yet."""
        if self._is_apart(job_id):
            self._those_apart().release(job_id)
        self._held.discard(job_id)

    def answered(self, now_ms: int, site: int, answer: Answer) -> list[GridCommand]:
        """Apply a site's answer; return the commands to send."""
        if type(answer) is RunsLate:
            # A late job frees no nodes, so no pass is needed.
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
            self._queue.set_held(site, answer.held or ())
            self._changed = True
            return [] if self._apart is None else self._apart.answered(now_ms, site, answer)
        if self._apart is not None:
            self._note_apart(self._apart, site, answer)
            if type(answer) is Quoted or (isinstance(answer, OfAttempt) and self._is_apart(answer.job_id)):
                return self._apart.answered(now_ms, site, answer)
        if self._closed and type(answer) is Ended:
            self._open(site)
        if isinstance(answer, Reserved | Started) and answer.nodes and self._is_current(answer):
            self._changed = self._queue.move(answer.job_id, site, answer.nodes) or self._changed
        commands, change = self._attempts.answered(now_ms, site, answer)
        return commands if change is None else commands + self._take_note(now_ms, change)

    def _is_current(self, answer: OfAttempt) -> bool:
        """Whether an answer is about the current attempt of a job in the queue."""
        attempt = self._attempts.attempts.get(answer.job_id)
        return attempt is not None and attempt.number == answer.attempt

    def _nodes_apart(self, site: int) -> int:
        """Return how many nodes of a site are used by jobs kept apart from the queue."""
        return sum(nodes for (_, other), nodes in self._apart_nodes.items() if other == site)

    def _heard(self, offers: SharedOffers, site: int, answer: Answer) -> bool:
        """Update the offers of shared nodes from an answer; return whether the answer has been handled completely."""
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
        """Update the nodes used by a job kept apart from the queue; those nodes are unavailable to the queue."""
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
        if has and isinstance(answer, Reserved | Started) and answer.nodes:
            self._queue.set_apart(site, answer.job_id, answer.nodes, apart.job(answer.job_id).chunk)
        elif had and not has:
            self._queue.set_apart(site, answer.job_id, (), msgspec.UNSET)
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
        excluded = self._excluded[job_id].excluded if job_id in self._excluded else ()
        report = self._came_back(now_ms, change)
        # A job that has left needs no pause at its sites.
        if kind != ENDED and change.never is None and not (no_part and job_id not in self._number):
            width = dict(attempt.fragments)
            for site in change.sites:
                # A site needs no pause if its report already explains the refusal: other users have its nodes, it does
                # not accept the user, or it can never run the job.
                if self._queue.fits(job_id, site, width[site]) and site not in excluded:
                    self._close(now_ms, site, change.refusal)
        return report

    def _note_no_part(self, job: Job, change: AttemptChange) -> None:
        """Record the sites that accept no part of a job; make the job unplaceable if the other sites cannot run it."""
        too_small = {site: change.never or "" for site in change.sites if self.sizes_for(job)[site] < job.width}
        if too_small:
            never = self._never[job.job_id] = self._never.get(job.job_id, {}) | too_small
            why_never = self.why_never(job, never=never, sends=self._queue.described(job.job_id)[2])
            if why_never is not None:
                self._unplaceable.setdefault(job.job_id, why_never)

    def _came_back(self, now_ms: int, change: AttemptChange) -> list[GridCommand]:
        """Report a job whose attempt has ended, or return it to the queue if it still has to run."""
        attempt, job_id = change.attempt, change.attempt.job.job_id
        outcome = attempt.outcome if change.kind == ENDED else None
        if outcome is None and attempt.cancelled:
            outcome = "cancelled"
        is_held = job_id in self._held
        self._held.discard(job_id)
        unplaceable = self._unplaceable.pop(job_id, None)
        excluded = self._excluded.pop(job_id, None)
        if outcome is None and unplaceable is None and not is_held:
            return self._waits_again(now_ms, job_id, excluded, change)
        self._queue.ended(now_ms, job_id)
        number = self._forget(job_id)
        if outcome is not None:
            return [ReportDone(job_id, outcome)]
        return [ReportHeld(job_id, number) if is_held or unplaceable is None else ReportRefused(job_id, unplaceable)]

    def _waits_again(
        self, now_ms: int, job_id: int, excluded: GridJobSubmitted | None, change: AttemptChange
    ) -> list[GridCommand]:
        """Return a job to the queue, or keep it apart if a site no longer accepts it or can never run it."""
        if excluded is None and change.never is None:
            self._queue.requeue(now_ms, job_id)
            return []
        asked, never = self._as_submitted(job_id, excluded), NOWHERE
        # If the job may be split, a site that cannot run the whole job may still take a part.
        if change.never is not None and not self._queue.may_split(job_id):
            never = dict.fromkeys(change.sites, change.never)
        self._queue.ended(now_ms, job_id)
        return self._those_apart().submit(now_ms, asked, never)

    def links_changed(self, now_ms: int, news: LinksChanged | PathsMeasured) -> list[GridCommand]:
        """Apply a link change or a measurement to all later placements."""
        self._queue.links_changed(news)
        self._changed = True
        return [] if self._apart is None else self._apart.links_changed(now_ms, news)

    def reconsider(self, now_ms: int) -> None:
        """Make the next pass reconsider all waiting jobs under the current policy."""
        self._queue.reconsider()
        self._attempts.reconsider()
        self._changed = True
        if self._apart is not None:
            self._apart.reconsider(now_ms)

    def unplaceable(self, now_ms: int, job_id: int, reason: str) -> list[GridCommand]:
        """Refuse a job that can never be placed: now if it is waiting, otherwise when it needs another attempt."""
        if self._is_apart(job_id):
            return self._those_apart().unplaceable(now_ms, job_id, reason)
        if job_id not in self._number:
            return []
        if job_id in self._attempts.attempts:
            self._unplaceable[job_id] = reason
            return []
        self._queue.withdraw(job_id)
        self._forget(job_id)
        self._changed = True
        return [ReportRefused(job_id, reason)]

    def run(self, now_ms: int) -> list[GridCommand]:
        """Give up attempts that were not granted in time; if anything has changed, run a pass over the queue."""
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
        """Run a pass over the queue, and ask the sites for the nodes of the jobs that the pass starts."""
        commands: list[GridCommand] = []
        for placement in self._queue.run_pass(now_ms):
            job, fragments, length_ms = placement.job, placement.fragments, placement.length_ms
            job_id = job.job_id
            self._number[job_id] = number = self._number[job_id] + 1
            includes_job = fragments[0][0] in self._offers.sites
            commands += self._attempts.begin(now_ms, job, number, fragments, length_ms, includes_job=includes_job)
            if len(fragments) > 1 and self.margin_ms:
                self._queue.expect_end(now_ms, job_id, now_ms + self.margin_ms + length_ms)
        return commands

    def _share(self, now_ms: int, offers: SharedOffers) -> list[GridCommand]:
        """Start waiting jobs on shared nodes where that is faster; request offers for jobs that keep waiting."""
        commands: list[GridCommand] = []
        for job, site, slowdown, work_ms, end_ms in offers.take(now_ms, self._queue):
            self._number[job.job_id] = number = self._number[job.job_id] + 1
            commands += self._attempts.begin_beside(now_ms, job, number, site, work_ms, slowdown, end_ms)
        return commands + offers.ask(now_ms, self._queue)

    def _is_due(self, now_ms: int) -> bool:
        start_ms = self._queue.next_start_ms()
        return start_ms is not None and start_ms <= now_ms

    def waiting(self) -> Iterator[int]:
        """Yield the waiting jobs in the order in which they are considered: the queue first, then jobs kept apart."""
        yield from (job.job_id for job in self._queue.waiting)
        if self._apart is not None:
            yield from self._apart.waiting()

    def next_wakeup_ms(self) -> int | None:
        """Return when `run` must be called even without an event, or None."""
        apart_ms = None if self._apart is None else self._apart.next_wakeup_ms()
        offers_ms = self._offers.next_wakeup_ms()
        if offers_ms is None and not (self._attempts.asking or self._closed or self._queue.reserves_starts):
            return apart_ms
        instants = [apart_ms, offers_ms, self._attempts.next_wakeup_ms(), self._queue.next_start_ms()]
        instants += [until_ms for _, until_ms in self._closed.values()]
        return min((instant for instant in instants if instant is not None), default=None)

    def _close(self, now_ms: int, site: int, refusal: str) -> None:
        """Stop asking a site until it changes or the retry time has passed; an empty `refusal` means no answer."""
        self._open(site)
        self._closed[site] = self._queue.pause(site), now_ms + self._retry_ms
        if refusal:
            self._refusals[site] = refusal

    def _open(self, site: int) -> None:
        if site in self._closed:
            taken, _ = self._closed.pop(site)
            self._refusals.pop(site, None)
            self._queue.resume(site, taken)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent."""
        self._queue.check_invariants()
        assert self._queue.shut == set(self._shut), "the queue and the level disagree on the shut sites"
        assert all(self._queue.free(site) <= 0 for site in self._shut), "a shut site has free nodes"
        if self._apart is not None:
            self._apart.check_invariants()
        assert set(self._excluded) <= set(self._attempts.attempts), "the queue has a job that not all sites accept"
        assert set(self._never) <= set(self._number), "a job that is gone has sites that can never run it"
        waiting = {job.job_id for job in self._queue.waiting}
        assert waiting.isdisjoint(self._attempts.attempts), "a job waits and is being started"
        assert waiting | set(self._attempts.attempts) == set(self._number), "a job is lost"
        assert self._held | set(self._unplaceable) <= set(self._attempts.attempts), (
            "a job that must be taken out is nowhere"
        )


def _offered_by(forecaster: Forecaster, offers: tuple[str, ...]) -> Forecast:
    """Return a job's quote, extended by the sites that might let the job start now on shared nodes."""
    return msgspec.structs.replace(forecaster(), offers=offers)


def _with_offers(forecaster: Forecaster, offers: Mapping[str, KnownOffer]) -> Forecast:
    """Return a waiting job's forecast, extended by the offers of shared nodes that the job has not accepted."""
    forecast = forecaster()
    texts = {site: offer_text(offer.slowdown, offer.beside) for site, offer in offers.items()}
    rows = [msgspec.structs.replace(row, offer=texts.get(row.site, "")).with_offer() for row in forecast.sites]
    return msgspec.structs.replace(forecast, sites=tuple(rows))

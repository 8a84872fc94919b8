"""The base classes of the levels of control: `Control`, and `DelegatingControl` for levels that use sites' queues."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.random import Generator

from gridweave.grid.control.links import GridNetwork
from gridweave.grid.control.mapping import PlannedPlace
from gridweave.grid.control.past import SiteRefusals, another, once_more_evicted
from gridweave.grid.control.placing import Awaited, OneJob, why_too_dear
from gridweave.grid.control.queue import GridQueue
from gridweave.grid.control.tuning import QueueTuning
from gridweave.grid.kernels.resources import CountedSite
from gridweave.grid.lifecycle import ASKING, BACKLOG, DELEGATION, QUEUED, UNPLACED, WAITING, DelegationCause
from gridweave.grid.messages import (
    GridCommand,
    GridJobSubmitted,
    LinksChanged,
    PathsMeasured,
    ReportDone,
    ReportHeld,
    ReportRefusal,
    ReportRefused,
    ToSite,
)
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import NOTHING, Sends
from gridweave.netmodel.model import NetworkModel
from gridweave.site.explain import Forecaster, Planner
from gridweave.site.job import Job
from gridweave.site.lifecycle import Lifecycle
from gridweave.site.messages import Answer, CancelJob, Quoted, Refused, RequestQuote, SiteChanged, WithdrawJob
from gridweave.site.state import CoreState, GeneratorState, generator_state, restore_generator
from gridweave.site.times import span_text


class ControlOptions(NamedTuple):
    """The options of a level of control, apart from the sites' nodes and the policy."""

    rng: Generator | None  # for the selection ``random``, one draw per submitted job
    margin_ms: int  # how far in advance sites agree on the start of a split job
    retry_ms: int  # pause before a site that refused or did not answer is asked again, unless it reports earlier
    lease_ms: int  # how long a delegated job may wait at a site that receives nothing from the grid
    network: GridNetwork | None  # the links between the sites
    names: tuple[str, ...]  # the names of the sites, for forecasts
    shared: tuple[int, ...] = ()  # the sites on which jobs share nodes by hardware threads
    counted: tuple[CountedSite, ...] = ()  # the nodes of all sites, if a site counts resources


class ControlState(CoreState, frozen=True, kw_only=True):
    """The state common to all levels of control."""

    draws: GeneratorState | None
    shut: dict[int, str] = msgspec.field(default_factory=dict)
    longest_ms: dict[int, int] = msgspec.field(default_factory=dict)
    cut_off: dict[int, str] = msgspec.field(default_factory=dict)


ExcludedSites = tuple[int, ...]
"""The sites that do not accept a job's user."""

Never = Mapping[int, str]
"""The sites that can never run a job, by site, with the reason."""

NOWHERE: Never = MappingProxyType({})
NO_PART = "it runs no parts of split jobs, and is too small for the whole job"
"""The reason why a site can never run a job that is wider than the site, although the grid may split the job."""

NO_OFFERS: Mapping[int, Quoted] = MappingProxyType({})
NO_SIZES: Mapping[int, int] = MappingProxyType({})


class QuoteQuestion(NamedTuple):
    """A request to forecast the start of a job as if it were submitted now.

    Attributes
    ----------
    asked : GridJobSubmitted
        The job.
    end_ms : int
        The delay from a job's end until the grid is notified and can use the job's nodes.
    without : int, optional
        A waiting job that the new job would replace.
    offers : mapping from int to Quoted
        The sites' answers to `Control.questions`; without answers, only full control can forecast a start.
    """

    asked: GridJobSubmitted
    end_ms: int = 0
    without: int | None = None
    offers: Mapping[int, Quoted] = NO_OFFERS


class Control(ABC):
    """A level of control: how much the grid decides (Streit, section 2.5; Gehring and Preiss 1999).

    Each level defines `state_type`, the type of its state.
    """

    state_type: Any

    def __init__(self, nodes: Sequence[int], policy: GridPolicy, options: ControlOptions) -> None:
        self.policy = policy
        self._nodes = list(nodes)
        self._rng = options.rng if policy.selection == "random" else None
        self._retry_ms = options.retry_ms
        self._names = options.names
        self._network = options.network
        # The sites that have reported that they accept no new jobs of the grid, with the reason.
        self._shut: dict[int, str] = {}
        # The sites with which no messages are exchanged, with the reason; they are in `_shut`, too.
        self.cut_off_sites: dict[int, str] = {}
        # The longest estimate that a job may have at a site, for sites that have reported a limit.
        self._longest_ms: dict[int, int] = {}

    def _links_news(self) -> Sequence[LinksChanged | PathsMeasured]:
        """Return the messages with the latest change and the latest measurement of the links."""
        return ()

    def sizes_for(self, job: Job, most: Mapping[int, int] = NO_SIZES) -> list[int]:
        """Return the widest part of a job that each idle site could run, in nodes, or in chunks if it asks for chunks.

        `most` has the numbers of chunks that sites have quoted. Another site counts as large enough: it will say so.
        """
        if not job.chunk:
            return self._nodes
        return [most.get(site, job.width) if nodes else 0 for site, nodes in enumerate(self._nodes)]

    def why_unsuited(self, job: Job) -> str | None:
        """Return why this level of control cannot place a job, wherever it would run, or None."""
        return None

    def why_never(
        self,
        job: Job,
        excluded: ExcludedSites = (),
        never: Never = NOWHERE,
        sends: Sends | None = None,
        most: Mapping[int, int] = NO_SIZES,
    ) -> str | None:
        """Return why a job could not be placed even on an idle grid, without the excluded sites; None if it could.

        `sends` matters only if the job is wider than every remaining site: a split can then exceed the allowed cost.
        For `most` see `sizes_for`.
        """
        unsuited = self.why_unsuited(job)
        if unsuited is not None:
            return unsuited
        never = {**self._too_long(job), **never} if self._longest_ms else never
        sizes = self.sizes_for(job, most)
        if job.width <= max(sizes) and not (excluded or never):
            return None
        left = [0 if site in excluded or site in never else size for site, size in enumerate(sizes)]
        count = {"of_chunks": bool(job.chunk)}
        reason = (
            self.policy.why_never(np.array(left, np.int64), job.width, **count) if any(left) else "no site accepts it"
        )
        if reason is None and self._network is not None and sends is not None and job.width > max(left):
            asked = job, sends
            reason = why_too_dear(left, self.policy, self._network, self._links_news(), asked, self._names)
        if reason is None or not (excluded or never):
            return reason
        reason = f"{reason}; only sites that accept it count" if any(left) else reason
        if not never:
            return reason
        reasons = "; ".join(f"{self._names[site]}: {why}" for site, why in sorted(never.items()))
        return f"no site can run it: {reasons}" + (f"; {reason}" if any(left) else "")

    def submit(self, now_ms: int, asked: GridJobSubmitted, never: Never = NOWHERE) -> list[GridCommand]:
        """Submit a job; `never` lists the sites that can never run it. Ignore a job that was submitted before."""
        draw = self._draw(self._rng)
        job_id = asked.job.job_id
        if self.knows(job_id):
            return []
        reason = self.why_never(asked.job, asked.excluded, never, asked.sends)
        never = {**self._too_long(asked.job), **never} if self._longest_ms else never
        return [ReportRefused(job_id, reason)] if reason is not None else self._admit(now_ms, asked, draw, never)

    @staticmethod
    def _draw(rng: Generator | None) -> float:
        """Return the next random number in [0, 1) for a submitted job; 0 if the selection rule does not use one."""
        return 0.0 if rng is None else float(rng.random())

    def _next_draw(self) -> float:
        """Return the random number that the next submitted job will get, without using it up."""
        return self._draw(copy.deepcopy(self._rng))

    def cut_off(self, now_ms: int, site: int, why: str) -> None:
        """Record why no messages are exchanged with a site; an empty reason reconnects the site.

        A site that had reported itself closed stays closed.
        """
        before = self.cut_off_sites.pop(site, None)
        if before is not None and self._shut.get(site) == before:
            del self._shut[site]
        if why:
            self.cut_off_sites[site] = why
            self._shut.setdefault(site, why)

    def site_changed(self, site: int, change: SiteChanged) -> None:
        """Record whether a site accepts new jobs, and the longest estimate it allows; `answered` applies the rest."""
        self._shut.pop(site, None)
        if change.closed:
            self._shut[site] = change.closed
        self._longest_ms.pop(site, None)
        if change.longest_ms is not None:
            self._longest_ms[site] = change.longest_ms

    @abstractmethod
    def site_shares(self, site: int) -> None:
        """Record that jobs on a site can share nodes by using different hardware threads."""

    def _too_long(self, job: Job) -> dict[int, str]:
        """Return the sites whose limit on estimates a job exceeds, each with the reason."""
        sites = sorted(site for site, longest_ms in self._longest_ms.items() if job.estimate_ms > longest_ms)
        asked = f"the job may take {span_text(job.estimate_ms)}; give it a lower limit"
        return {site: f"it runs jobs of at most {span_text(self._longest_ms[site])}, and {asked}" for site in sites}

    @abstractmethod
    def knows(self, job_id: int) -> bool:
        """Whether this level of control manages a job."""

    @abstractmethod
    def _admit(self, now_ms: int, asked: GridJobSubmitted, draw: float, never: Never) -> list[GridCommand]:
        """Add a new job that can be placed."""

    @abstractmethod
    def bar(self, now_ms: int, event: GridJobSubmitted) -> list[GridCommand]:
        """Exclude the sites that no longer accept a job's user."""

    @abstractmethod
    def hold(self, now_ms: int, job_id: int) -> list[GridCommand]:
        """Remove a job from the queue: now if the job is waiting, otherwise when it returns to the queue."""

    @abstractmethod
    def release(self, job_id: int) -> None:
        """Undo `hold` for a job that has not yet been removed from the queue."""

    @abstractmethod
    def cancel(self, now_ms: int, job_id: int) -> list[GridCommand]:
        """Cancel a job: end it, or remove it from the queue."""

    @abstractmethod
    def answered(self, now_ms: int, site: int, answer: Answer) -> list[GridCommand]:
        """Apply a site's answer."""

    @abstractmethod
    def evicted(self, job_id: int) -> int:
        """Count an eviction of a job, before the site's answer is applied; return the count, or 0 for an unknown job.

        Later attempts report the count to the sites.
        """

    @abstractmethod
    def links_changed(self, now_ms: int, news: LinksChanged | PathsMeasured) -> list[GridCommand]:
        """Apply a change or a measurement of the links."""

    def reconsider(self, now_ms: int) -> None:
        """Make the next pass reconsider all waiting jobs, because the policy or the network options changed."""
        return

    @abstractmethod
    def unplaceable(self, now_ms: int, job_id: int, reason: str) -> list[GridCommand]:
        """Refuse a job that can never be placed: now if it is waiting, otherwise when it needs another attempt."""

    @abstractmethod
    def run(self, now_ms: int) -> list[GridCommand]:
        """Make scheduling decisions; call after all events at `now_ms` have been applied."""

    @property
    def model(self) -> NetworkModel | None:
        """The current model of the links between the sites, or None."""
        return None

    @property
    def tuning(self) -> QueueTuning | None:
        """The tuning state of a queue that chooses its own order, or None."""
        return None

    def queue_copy(self) -> GridQueue | None:
        """Return a copy of the queue over all sites, or None."""
        return None

    @abstractmethod
    def waiting(self) -> Iterator[int]:
        """Yield the ids of the waiting jobs, in the order in which the jobs are considered."""

    @abstractmethod
    def next_wakeup_ms(self) -> int | None:
        """Return when `run` must be called even without an event, or None."""

    @abstractmethod
    def forecaster(self, now_ms: int, job_id: int, end_ms: int = 0) -> Forecaster | None:
        """Return a function that forecasts the start of a job, with the reason; None if the job is unknown.

        The forecast assumes that the grid is notified `end_ms` after a job ends.
        """

    def forecasters(self, now_ms: int, job_ids: Sequence[int], end_ms: int = 0) -> list[Forecaster | None]:
        """Return the `forecaster` of each job, all for the current state."""
        return [self.forecaster(now_ms, job_id, end_ms) for job_id in job_ids]

    def questions(self, now_ms: int, asked: GridJobSubmitted) -> dict[int, RequestQuote]:
        """Return the quote requests, by site, whose answers `quoter` needs; empty if the grid decides on starts."""
        return {}

    @abstractmethod
    def quoter(self, now_ms: int, question: QuoteQuestion) -> Forecaster:
        """Return a function that forecasts the start of a job submitted now."""

    def planner(self, now_ms: int, most_jobs: int, end_ms: int = 0) -> Planner:
        """Return a function that forecasts the starts of the first `most_jobs` waiting jobs.

        A job in a site's queue may have no forecast start, because only the site knows when the job will start.
        """
        forecasters = [self.forecaster(now_ms, job_id, end_ms) for job_id in islice(self.waiting(), most_jobs)]
        forecasts = [forecast() for forecast in forecasters if forecast is not None]
        return lambda: [forecast for forecast in forecasts if forecast.start_ms is not None or forecast.queues]

    @abstractmethod
    def state(self) -> Any:
        """Return the state of this level of control; call only between two steps."""

    def _draws(self) -> GeneratorState | None:
        return None if self._rng is None else generator_state(self._rng)

    def restore(self, state: Any) -> None:
        """Restore the state of a level with the same settings; this level must be new."""
        if self._rng is not None and state.draws is not None:
            restore_generator(self._rng, state.draws)
        self._shut, self._longest_ms, self.cut_off_sites = state.shut, state.longest_ms, state.cut_off

    @abstractmethod
    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent."""


class PutOff(msgspec.Struct, frozen=True):
    """The number of times a site delayed a job beyond its quote, and when to ask the site again even if unchanged."""

    times: int
    again_ms: int


class Delegation(msgspec.Struct):
    """A grid job at a level of control that uses sites' queues; `state` is a state of the table `DELEGATION`."""

    job: Job
    draw: float
    number: int = 0
    sensitivity: float = 1.0
    sends: Sends = msgspec.field(default_factory=Sends)
    submit_ms: int = 0
    state: str = ASKING
    site: int = -1
    next_site: int = -1
    # Whether the job's site quoted an immediate start, which may still fail if other jobs got the same quote.
    hurried: bool = False
    # The sites that have delayed the job since all sites were last asked.
    put_off: dict[int, PutOff] = msgspec.field(default_factory=dict)
    cancelled: bool = False
    # Whether the user holds the job: it leaves this level as soon as its site returns it.
    held: bool = False
    # The job's expected end at the site where it is waiting.
    end_ms: int = 0
    # Why the job can never be placed; empty if it can.
    unplaceable: str = msgspec.field(default="", name="hopeless")
    asked: set[int] = msgspec.field(default_factory=set)
    # The sites that have changed since they quoted, recorded while other quotes are missing.
    changed: set[int] = msgspec.field(default_factory=set)
    quotes: dict[int, Quoted] = msgspec.field(default_factory=dict)
    # When each quote arrived.
    quoted_ms: dict[int, int] = msgspec.field(default_factory=dict)
    refused_by: set[int] = msgspec.field(default_factory=set)
    # The refusals since the job last ran, by sites that had accepted it before.
    refusals: dict[int, SiteRefusals] = msgspec.field(default_factory=dict)
    excluded: ExcludedSites = msgspec.field(default=(), name="barred")
    # The sites that can never run the job, each with the reason.
    never: dict[int, str] = msgspec.field(default_factory=dict)
    # The split whose last nodes the job is waiting for.
    awaited: Awaited | None = None
    # The job's site and times in the last mapping over the sites, or None.
    mapped: PlannedPlace | None = None
    # Since when no site has accepted the job, or None.
    waits_since_ms: int | None = None
    # The sites that have yet to answer a question about the job, each with the id of that question.
    unanswered: dict[int, int] = msgspec.field(default_factory=dict)
    # For a job that asks for chunks: how many of them each idle site holds, according to its last quote.
    most: dict[int, int] = msgspec.field(default_factory=dict)

    def avoids(self, site: int, now_ms: int) -> bool:
        """Whether the job must not be sent to a site now."""
        refusals = self.refusals.get(site)
        return site in self.excluded or site in self.never or (refusals is not None and refusals.is_left_alone(now_ms))

    def may_go_to(self, site: int, now_ms: int) -> bool:
        """Whether the job may be sent to a site: the job is neither cancelled nor held, and does not avoid the site."""
        return not (self.cancelled or self.held or self.avoids(site, now_ms))

    def leaves_alone(self, site: int, now_ms: int) -> bool:
        """Whether the job must not move to a site, even a changed one, because the site delayed the job repeatedly."""
        put_off = self.put_off.get(site)
        return put_off is not None and put_off.times > 1 and now_ms < put_off.again_ms


class DelegatingState(ControlState, frozen=True, kw_only=True):
    """The state common to all levels of control at which jobs wait in sites' queues."""

    jobs: list[Delegation]
    retry_at_ms: int | None


class DelegatingControl(Control):
    """A level of control at which jobs wait in sites' queues; a subclass sets `_one_job`."""

    _one_job: OneJob

    def __init__(self, nodes: Sequence[int], policy: GridPolicy, options: ControlOptions) -> None:
        super().__init__(nodes, policy, options)
        self._jobs: dict[int, Delegation] = {}
        self._life = Lifecycle(DELEGATION)
        # When to ask the sites again for the jobs that none of them has accepted, or None.
        self._retry_at_ms: int | None = None

    def site_shares(self, site: int) -> None:
        """Do nothing: at these levels, each quote includes the site's offer of shared nodes."""

    def restore(self, state: Any) -> None:
        """Restore the state of a level with the same settings; this level must be new."""
        super().restore(state)
        self._jobs = {delegation.job.job_id: delegation for delegation in state.jobs}
        self._retry_at_ms = state.retry_at_ms

    def knows(self, job_id: int) -> bool:
        """Whether this level of control manages a job."""
        return job_id in self._jobs

    def job(self, job_id: int) -> Job:
        """Return a job that this level of control manages."""
        return self._jobs[job_id].job

    def attempt_of(self, job_id: int) -> int:
        """Return the number of a job's current attempt."""
        return self._jobs[job_id].number

    def questions(self, now_ms: int, asked: GridJobSubmitted) -> dict[int, RequestQuote]:
        """Return the quote requests that the grid would send if a job were submitted now; see `Control`."""
        job = self._delegation_of(now_ms, asked, 0.0)
        sites = (site for site in range(len(self._nodes)) if site not in self.cut_off_sites)
        return {site: self._request(now_ms, job, site, 0) for site in sites if not job.avoids(site, now_ms)}

    def _request(self, now_ms: int, delegation: Delegation, site: int, quote_id: int) -> RequestQuote:
        job = delegation.job
        length_ms = job.estimate_ms + (self._delay_ms(delegation, site, now_ms) or 0)
        asked = RequestQuote(quote_id, job.width, length_ms, job.resources, job.job_id, assumed=job.assumed)
        if self.policy.maps or job.needs_telling:
            adjusted = msgspec.structs.replace(job, estimate_ms=length_ms)
            asked = msgspec.structs.replace(asked, job=adjusted, wants_ready=self.policy.maps)
        return asked

    def _delay_ms(self, delegation: Delegation, site: int, when_ms: int) -> int | None:
        """Return how long a job that starts at `when_ms` waits at a site for its data; None if the data has no path."""
        return self._one_job.delay_ms(delegation.job, delegation.sends, delegation.submit_ms, site, when_ms)

    @staticmethod
    def _delegation_of(now_ms: int, asked: GridJobSubmitted, draw: float, never: Never = NOWHERE) -> Delegation:
        """Return the record of a newly submitted job."""
        args = asked.job, draw, asked.attempt, asked.sensitivity, asked.sends or NOTHING, now_ms
        return Delegation(*args, excluded=asked.excluded, never=dict(never))

    def _begin_delegation(self, delegation: Delegation) -> None:
        """Record a job that is new at this level of control."""
        job_id = delegation.job.job_id
        self._jobs[job_id] = delegation
        self._life.begin(job_id, "submit")

    def _change(self, delegation: Delegation, cause: DelegationCause) -> None:
        """Change the state of a job according to the table `DELEGATION`."""
        self._life.change(delegation.job.job_id, delegation, cause)

    def cancel(self, now_ms: int, job_id: int) -> list[GridCommand]:
        """Cancel a job in any state."""
        delegation = self._jobs.get(job_id)
        if delegation is None or delegation.cancelled:
            return []
        delegation.cancelled = True
        if delegation.state in UNPLACED:
            return self._done(delegation, "cancelled")
        return self._end(delegation)

    def _end(self, delegation: Delegation) -> list[GridCommand]:
        return [ToSite(delegation.site, CancelJob(delegation.job.job_id, delegation.number))]

    def hold(self, now_ms: int, job_id: int) -> list[GridCommand]:
        """Remove a job: now if the job is at no site, otherwise when its site returns the job.

        A job in a site's queue is withdrawn. A running job is removed only if it needs another attempt.
        """
        delegation = self._jobs.get(job_id)
        if delegation is None or delegation.cancelled:
            return []
        if delegation.state in UNPLACED:
            return self._take_out(delegation)
        delegation.held = True
        if delegation.state == WAITING:
            return [ToSite(delegation.site, WithdrawJob(job_id, delegation.number))]
        return []

    def evicted(self, job_id: int) -> int:
        """Count an eviction of a job; return the count, or 0 for an unknown job."""
        delegation = self._jobs.get(job_id)
        if delegation is None:
            return 0
        delegation.job = once_more_evicted(delegation.job)
        return delegation.job.evictions

    def bar(self, now_ms: int, event: GridJobSubmitted) -> list[GridCommand]:
        """Exclude sites for a job, and withdraw the job from its site if that site is now excluded.

        A site that reports its accepted users may have new machines, so sites that could never run the job are asked
        again. If no site can run the job any more, it is refused: now if it is at no site, otherwise when it needs
        another attempt.
        """
        delegation = self._jobs.get(event.job.job_id)
        if delegation is None:
            return []
        delegation.excluded, delegation.never, delegation.unplaceable = event.excluded, {}, ""
        self._count_those_left(delegation)
        if delegation.unplaceable and delegation.state in UNPLACED:
            return self._refuse(delegation)
        if delegation.state != WAITING or delegation.site not in event.excluded:
            return []
        return [ToSite(delegation.site, WithdrawJob(delegation.job.job_id, delegation.number))]

    def release(self, job_id: int) -> None:
        """Undo `hold`; if a site has already been asked to return the job, the job is then placed again."""
        if job_id in self._jobs:
            self._jobs[job_id].held = False

    def unplaceable(self, now_ms: int, job_id: int, reason: str) -> list[GridCommand]:
        """Refuse a job that can never be placed: now if it is at no site, otherwise when it needs another attempt."""
        delegation = self._jobs.get(job_id)
        if delegation is None:
            return []
        delegation.unplaceable = reason
        return self._refuse(delegation) if delegation.state in UNPLACED else []

    def _remove_withdrawn(self, delegation: Delegation) -> list[GridCommand] | None:
        """Remove a job if it is cancelled, held or unplaceable, and return the reports; otherwise return None."""
        if delegation.cancelled:
            return self._done(delegation, "cancelled")
        if delegation.held:
            return self._take_out(delegation)
        if delegation.unplaceable:
            return self._refuse(delegation)
        return None

    def _note_refusal(self, now_ms: int, delegation: Delegation, answer: Refused) -> list[GridCommand]:
        """Record that a job's site has refused the job.

        A site that can never run the job is not asked again. A site that had accepted the job before is asked again
        after a pause. A site that refused at once, for example because it is drained, is asked again as usual.
        """
        site, refusals = delegation.site, delegation.refusals
        if answer.cause == "never":
            self._note_never(delegation, site, answer.reason)
        if answer.cause != "job":
            return []
        refusals[site] = another(refusals.get(site), now_ms, answer.reason, self._retry_ms)
        self._count_those_left(delegation)
        return [ReportRefusal(delegation.job.job_id, site, refusals[site].text(now_ms))]

    def _note_never(self, delegation: Delegation, site: int, reason: str) -> None:
        """Record that a site can never run a job."""
        delegation.never[site] = reason
        self._count_those_left(delegation)

    def _count_those_left(self, delegation: Delegation) -> None:
        """Mark a job as unplaceable if every sufficiently large site is excluded or can never run the job."""
        if delegation.unplaceable:
            return
        out = {
            site: f"it accepted the job {refusals.times} times and then refused it: {refusals.reason}"
            for site, refusals in delegation.refusals.items()
            if refusals.again_ms is None
        }
        never = delegation.never | out
        args = delegation.job, delegation.excluded, never, delegation.sends, delegation.most
        delegation.unplaceable = self.why_never(*args) or ""

    def _why_never_there(self, site: int, delegation: Delegation, quote: Quoted) -> str | None:
        """Return why, according to its quote, a site can run neither a job nor a part of the job; None if it might."""
        # Until all sites have quoted, it is not known whether a job that asks for chunks fits on one of them.
        job = delegation.job
        may_split = self.policy.splits if job.chunk else self._one_job.may_split(job)
        if quote.cause == "never":
            return None if quote.takes_parts and may_split else quote.reason
        if quote.takes_parts or job.width <= self._sizes(delegation)[site]:
            return None
        # If the job is not split, the site's own quote already gives the reason: the site is too small.
        return NO_PART if may_split else None

    def _sizes(self, delegation: Delegation) -> list[int]:
        """Return the widest part of a job that each idle site could run, see `sizes_for`."""
        return self.sizes_for(delegation.job, delegation.most)

    def _converted(self, count: int, site: int, of: Delegation | None, to: Delegation | None) -> int:
        """Convert chunks of a job to the chunks of another job that fill as much of the idle site, rounded up.

        Whole nodes are the chunks of a job that asks for none; None stands for such a job, too.
        """
        mosts = [self._nodes[site] if job is None else self._sizes(job)[site] for job in (of, to)]
        return -(-count * mosts[1] // max(1, mosts[0]))

    def _put_back(self, now_ms: int, delegation: Delegation) -> list[GridCommand]:
        """Keep a job that no site accepts at present, until a site changes or the retry time has passed."""
        removal = self._remove_withdrawn(delegation)
        if removal is not None:
            return removal
        self._change(delegation, "put back")
        if delegation.waits_since_ms is None:
            delegation.waits_since_ms = now_ms
        if self._retry_at_ms is None:
            self._retry_at_ms = now_ms + self._retry_ms
        return []

    def _done(self, delegation: Delegation, outcome: str) -> list[GridCommand]:
        self._forget(delegation)
        return [ReportDone(delegation.job.job_id, outcome)]

    def _take_out(self, delegation: Delegation) -> list[GridCommand]:
        self._forget(delegation)
        return [ReportHeld(delegation.job.job_id, delegation.number)]

    def _refuse(self, delegation: Delegation) -> list[GridCommand]:
        self._forget(delegation)
        return [ReportRefused(delegation.job.job_id, delegation.unplaceable)]

    def _forget(self, delegation: Delegation) -> None:
        """Drop a job that leaves this level of control."""
        self._change(delegation, "leave")
        del self._jobs[delegation.job.job_id]

    def waiting(self) -> Iterator[int]:
        """Yield the waiting jobs, in the order in which they were submitted."""
        waits = (*UNPLACED, *QUEUED)
        return (job_id for job_id, delegation in self._jobs.items() if delegation.state in waits)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent."""
        assert self._retry_at_ms is not None or not any(d.state == BACKLOG for d in self._jobs.values()), "no retry"

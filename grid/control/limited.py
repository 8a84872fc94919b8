"""Limited control: sites keep their queues and users; the grid asks for quotes and delegates (docs/control.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from gridweave.grid.control.coallocation import (
    ENDED,
    MOVED,
    PART_ENDED,
    AttemptChange,
    AttemptsState,
    CoAllocator,
    Fragments,
)
from gridweave.grid.control.common import (
    ControlOptions,
    DelegatingControl,
    DelegatingState,
    Delegation,
    Never,
    PutOff,
    QuoteQuestion,
)
from gridweave.grid.control.delegated_forecasts import delegated_forecast, offered_quote, unasked_quote
from gridweave.grid.control.forecasts import attempt_forecast
from gridweave.grid.control.links import LinksState
from gridweave.grid.control.mapping import SEVERAL, JobToMap, MappingDecision, PlannedPlace, SiteOffer, map_over_sites
from gridweave.grid.control.offered import PlaceChoice, earliest_end, end_at, last_quoted, length_at
from gridweave.grid.control.placing import OneJob, awaited
from gridweave.grid.control.sent import SentWork, WorkSent
from gridweave.grid.lifecycle import ASKING, BACKLOG, QUEUED, SPLIT, UNPLACED, WAITING, WITHDRAWING
from gridweave.grid.messages import GridCommand, GridJobSubmitted, LinksChanged, PathsMeasured, ToSite
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import NOTHING
from gridweave.netmodel.model import NetworkModel
from gridweave.site.explain import Forecaster, SplitReason, settled
from gridweave.site.messages import (
    Answer,
    Ended,
    Enqueued,
    EnqueueJob,
    OfAttempt,
    Quoted,
    Refused,
    RenewLeases,
    SiteChanged,
    Started,
    WithdrawJob,
    Withdrawn,
)
from gridweave.site.times import growing_pause_ms

LEASE_MS = 3_600_000
"""Lease of a delegated job: how long the job may wait at a site that hears nothing from the grid."""

MOST_MAPPED = 1_000
"""The largest number of waiting jobs that are mapped over the sites together, in order of submission."""

LOOKS = 16
"""The largest number of waiting jobs reconsidered when a site has new capacity, to limit messages (a guess)."""


class LimitedControlState(DelegatingState, frozen=True, kw_only=True, tag="LimitedControl 1"):
    """The state of limited control."""

    attempts: AttemptsState
    links: LinksState | None
    quote_id: int
    asked: dict[int, tuple[int, int]]
    news: list[int]
    claimed: dict[int, tuple[int, int]]
    patience_ms: dict[int, int]
    renew_at_ms: int | None
    sent: dict[int, list[SentWork]] = msgspec.field(default_factory=dict)


class LimitedControl(DelegatingControl):
    """Delegate each job to the site with the best quote; move a waiting job if another site would start it now."""

    state_type: Any = LimitedControlState

    def __init__(self, nodes: Sequence[int], policy: GridPolicy, options: ControlOptions) -> None:
        super().__init__(nodes, policy, options)
        self._attempts = CoAllocator(options.margin_ms)
        self._one_job = OneJob(nodes, policy, options.network)
        self._quote_id = 0
        # The purpose of each quote: a job, and the number of the round that asks all sites, or 0 for a single site.
        self._asked: dict[int, tuple[int, int]] = {}
        self._news: dict[int, None] = {}
        self._claimed: dict[int, tuple[int, int]] = {}
        # When the grid stops waiting for quotes, by job; the job is then placed by the quotes that have arrived.
        self._patience_ms: dict[int, int] = {}
        self._lease_ms = options.lease_ms
        self._renew_at_ms: int | None = None
        self._sent = WorkSent(nodes, options.retry_ms)
        # Whether `run` must map the waiting jobs: all quotes requested at the same time have arrived or are overdue.
        self._map_is_due = False

    @property
    def model(self) -> NetworkModel | None:
        """The current model of the links, used to decide on splits; None without links."""
        return self._one_job.model

    def _links_news(self) -> Sequence[LinksChanged | PathsMeasured]:
        return self._one_job.news

    def state(self) -> LimitedControlState:
        """Return the state; call only between two steps."""
        return LimitedControlState(
            draws=self._draws(),
            shut=self._shut,
            longest_ms=self._longest_ms,
            cut_off=self.cut_off_sites,
            jobs=list(self._jobs.values()),
            retry_at_ms=self._retry_at_ms,
            attempts=self._attempts.state(),
            links=self._one_job.state(),
            quote_id=self._quote_id,
            asked=self._asked,
            news=list(self._news),
            claimed=self._claimed,
            patience_ms=self._patience_ms,
            renew_at_ms=self._renew_at_ms,
            sent=self._sent.by_site,
        )

    def restore(self, state: LimitedControlState) -> None:
        """Restore the state of a level with the same settings; this level must be new."""
        super().restore(state)
        self._attempts.restore(state.attempts)
        self._one_job.restore(state.links)
        self._quote_id, self._asked, self._claimed = state.quote_id, state.asked, state.claimed
        self._news = dict.fromkeys(state.news)
        self._patience_ms, self._renew_at_ms = state.patience_ms, state.renew_at_ms
        self._sent.by_site = state.sent

    def _admit(self, now_ms: int, asked: GridJobSubmitted, draw: float, never: Never) -> list[GridCommand]:
        delegation = self._delegation_of(now_ms, asked, draw, never)
        self._begin_delegation(delegation)
        return self._ask_all(now_ms, delegation)

    def _end(self, delegation: Delegation) -> list[GridCommand]:
        if delegation.state == SPLIT:
            return self._attempts.cancel(delegation.job.job_id)
        return super()._end(delegation)

    def _forget(self, delegation: Delegation) -> None:
        super()._forget(delegation)
        self._wait_no_more(delegation)
        for quote_id in delegation.unanswered.values():
            del self._asked[quote_id]

    def _wait_no_more(self, delegation: Delegation) -> None:
        """Stop waiting for a job's quotes; if no job of the same round is waiting any more, the mapping is due."""
        until_ms = self._patience_ms.pop(delegation.job.job_id, None)
        if until_ms is not None and self.policy.maps and until_ms not in self._patience_ms.values():
            self._map_is_due = True

    def answered(self, now_ms: int, site: int, answer: Answer) -> list[GridCommand]:
        """Apply a site's answer; return the commands to send."""
        if isinstance(answer, Quoted):
            return self._quoted(now_ms, site, answer)
        # `LeaseEnded` and `Withdrawn` count as no change of the site: the grid itself caused them, and asking again at
        # once for nodes that were just refused would never end.
        if isinstance(answer, (SiteChanged, Ended)):
            self._news[site] = None
        if not isinstance(answer, OfAttempt):
            return []
        delegation = self._jobs.get(answer.job_id)
        if delegation is None:
            return []
        if delegation.state == SPLIT:
            requests, change = self._attempts.answered(now_ms, site, answer)
            return [*requests, *(self._split_changed(now_ms, change) if change is not None else ())]
        return [] if delegation.number != answer.attempt else self._heard(now_ms, delegation, answer)

    def _heard(self, now_ms: int, delegation: Delegation, answer: Answer) -> list[GridCommand]:
        match answer:
            case Started():
                self._change(delegation, "start")
                delegation.refusals.clear()
            case Enqueued(start_ms=start_ms) if delegation.state == WAITING and not delegation.cancelled:
                return self._waits_longer(now_ms, delegation, start_ms)
            case Ended(outcome="lost") if not delegation.cancelled:
                return self._ask_all(now_ms, delegation)
            case Ended(outcome=outcome):
                return self._done(delegation, "cancelled" if outcome == "lost" else outcome)
            case Refused():
                # The site breaks its quote, so drop the quote and ask all sites again.
                delegation.quotes.pop(delegation.site, None)
                commands = self._note_refusal(now_ms, delegation, answer)
                # If this site can never run the job, ask the other sites without a pause.
                again = self._ask_all if answer.cause == "never" else self._put_back
                return [*commands, *again(now_ms, delegation)]
            case Withdrawn():
                return self._withdrawn(now_ms, delegation)
        return []

    def _waits_longer(self, now_ms: int, delegation: Delegation, start_ms: int | None) -> list[GridCommand]:
        """Offer a job to other sites if its site did not start it immediately as quoted, or now expects a later end.

        Sites that have delayed the job before are not asked yet, but only after they have changed or after a growing
        pause; otherwise two sites could pass the job back and forth.
        """
        end_ms = delegation.end_ms
        if start_ms is not None:
            delay_ms = self._delay_ms(delegation, delegation.site, start_ms) or 0
            delegation.end_ms = max(end_ms, end_at(delegation, delegation.site, start_ms, delay_ms))
        if not delegation.hurried and delegation.end_ms == end_ms:
            return []
        delegation.hurried = False
        self._note_put_off(now_ms, delegation)
        if self._retry_at_ms is None and len(delegation.put_off) > 1:
            self._retry_at_ms = now_ms + self._retry_ms
        others = [site for site in range(len(self._nodes)) if site not in delegation.put_off]
        return self._ask_others(now_ms, delegation, others)

    def _note_put_off(self, now_ms: int, delegation: Delegation) -> None:
        """Record that a job's site has not started it when expected."""
        put_off = delegation.put_off.get(delegation.site)
        times = 0 if put_off is None else put_off.times
        again_ms = now_ms + growing_pause_ms(self._retry_ms, times)
        delegation.put_off[delegation.site] = PutOff(times + 1, again_ms)

    def nodes_at(self, job_id: int, site: int) -> int:
        """Return the number of nodes that a job uses at a site that has reported its start or its reservation."""
        attempt = self._attempts.attempts.get(job_id)
        if attempt is None:
            return self._jobs[job_id].job.width
        # Ends are applied before other answers of the same time, even the end of a part that has just started.
        return 0 if site in attempt.ended else dict(attempt.fragments).get(site, 0)

    def links_changed(self, now_ms: int, news: LinksChanged | PathsMeasured) -> list[GridCommand]:
        """Apply a change or a measurement of the links, and ask sites again at once about unplaced jobs."""
        self._one_job.links_changed(news)
        self._retry_now(now_ms)
        return []

    def reconsider(self, now_ms: int) -> None:
        """Ask sites again at once about unplaced jobs."""
        self._attempts.reconsider()
        self._retry_now(now_ms)

    def cut_off(self, now_ms: int, site: int, why: str) -> None:
        """See `Control`; drop open questions to the site, and retry unplaced jobs once the site is reconnected."""
        super().cut_off(now_ms, site, why)
        for delegation in self._jobs.values():
            self._asked.pop(delegation.unanswered.pop(site, 0), None)
        if not why:
            self._retry_now(now_ms)

    def _retry_now(self, now_ms: int) -> None:
        if self._retry_at_ms is not None:
            self._retry_at_ms = now_ms

    def run(self, now_ms: int) -> list[GridCommand]:
        """Decide on placements, splits, moves and retries after all events at `now_ms`; renew leases when due."""
        requests, changes = self._attempts.expire(now_ms)
        commands: list[GridCommand] = [*requests]
        for change in changes:
            commands += self._split_changed(now_ms, change)
        retry = self._retry_at_ms is not None and self._retry_at_ms <= now_ms
        for job_id in [job_id for job_id, until_ms in self._patience_ms.items() if until_ms <= now_ms]:
            commands += self._decide(now_ms, self._jobs[job_id])
        if self._map_is_due:
            # Map before asking sites again, which drops the quotes that have just arrived.
            commands += self._map(now_ms)
        if self._news or retry:
            commands += self._think_again(now_ms, retry=retry)
        if self._map_is_due:
            commands += self._map(now_ms)
        if self._renew_at_ms is not None and self._renew_at_ms <= now_ms:
            commands += self._renew(now_ms)
        return commands

    def next_wakeup_ms(self) -> int | None:
        """Return when `run` must be called even without an event, or None."""
        # All jobs wait equally long for quotes, so the oldest request is the first to run out of time.
        patience_ms = next(iter(self._patience_ms.values()), None)
        instants = (self._retry_at_ms, self._renew_at_ms, self._attempts.next_wakeup_ms(), patience_ms)
        return min((instant for instant in instants if instant is not None), default=None)

    def _ask_all(self, now_ms: int, delegation: Delegation) -> list[GridCommand]:
        """Ask all suitable sites for quotes for a job; remove a job that is cancelled, held or unplaceable."""
        removal = self._remove_withdrawn(delegation)
        if removal is not None:
            return removal
        job_id = delegation.job.job_id
        # A site that is cut off never answers.
        able = [site for site in range(len(self._nodes)) if site not in self.cut_off_sites]
        sites = [site for site in able if not delegation.avoids(site, now_ms)]
        self._wait_no_more(delegation)
        if not sites:
            return self._put_back(now_ms, delegation)
        self._patience_ms[job_id] = now_ms + self._retry_ms
        self._change(delegation, "ask")
        # A new number makes the grid ignore late answers to the last attempt, for example its start.
        delegation.number += 1
        delegation.mapped = None
        delegation.quotes, delegation.quoted_ms, delegation.put_off = {}, {}, {}
        delegation.asked, delegation.changed = set(sites), set()
        return self._ask(now_ms, delegation, sites, whole=True)

    def _ask(
        self, now_ms: int, delegation: Delegation, sites: Iterable[int], *, whole: bool = False
    ) -> list[GridCommand]:
        """Ask sites for quotes, either to choose among all sites (`whole`) or to move a waiting job.

        A site that has yet to answer an earlier question about the job is not asked again; its pending answer is used.
        That answer is up to date: a site's messages arrive in order, so it reflects all that the site has reported.
        """
        commands: list[GridCommand] = []
        for site in sites:
            is_new = site not in delegation.unanswered
            if is_new:
                self._quote_id += 1
                delegation.unanswered[site] = self._quote_id
                commands.append(ToSite(site, self._request(now_ms, delegation, site, self._quote_id)))
            self._asked[delegation.unanswered[site]] = delegation.job.job_id, delegation.number if whole else 0
        return commands

    def _ask_others(self, now_ms: int, delegation: Delegation, sites: Iterable[int]) -> list[GridCommand]:
        """Ask sites for quotes, except the job's own site and sites that are too small, cut off or excluded."""
        sizes, width = self._sizes(delegation), delegation.job.width
        fitting = [s for s in sites if not delegation.avoids(s, now_ms) and sizes[s] >= width]
        others = [s for s in fitting if s != delegation.site and s not in self.cut_off_sites]
        return self._ask(now_ms, delegation, others)

    def _quoted(self, now_ms: int, site: int, quote: Quoted) -> list[GridCommand]:
        job_id, number = self._asked.get(quote.quote_id, (-1, 0))
        delegation = self._jobs.get(job_id)
        if delegation is None or delegation.unanswered.get(site) != quote.quote_id:
            return []  # the job has left, or the grid has not asked this site
        del self._asked[quote.quote_id], delegation.unanswered[site]
        if number and (delegation.state not in UNPLACED or number != delegation.number):
            return []
        self._note_quote(now_ms, site, delegation, quote)
        if delegation.unplaceable and delegation.state in UNPLACED:
            return self._refuse(delegation)
        if delegation.state == BACKLOG:
            # The answer is late for a round that found no site for the job, or it refreshes the mapping.
            self._map_is_due |= self.policy.maps
            return [] if self.policy.maps else self._choose(now_ms, delegation)
        if not number:
            return self._consider_move(now_ms, site, delegation, quote)
        delegation.asked.discard(site)
        return [] if delegation.asked else self._decide(now_ms, delegation)

    def _note_quote(self, now_ms: int, site: int, delegation: Delegation, quote: Quoted) -> None:
        """Record a site's quote for a job; exclude the site if it can run neither the job nor a part of it."""
        if quote.most is not None:
            delegation.most[site] = quote.most
            self._count_those_left(delegation)
        why_never = self._why_never_there(site, delegation, quote)
        if why_never is not None:
            delegation.quotes.pop(site, None)
            self._note_never(delegation, site, why_never)
        else:
            delegation.quotes[site], delegation.quoted_ms[site] = quote, now_ms

    def _decide(self, now_ms: int, delegation: Delegation) -> list[GridCommand]:
        """Place a job by its quotes; if it has to wait, request new quotes from sites that have changed since."""
        self._wait_no_more(delegation)
        changed, delegation.changed = sorted(delegation.changed), set()
        if self.policy.maps:
            commands = self._put_back(now_ms, delegation)
            if delegation.state == BACKLOG:
                again = (site for site in changed if not delegation.avoids(site, now_ms))
                commands += self._ask(now_ms, delegation, again)
            return commands
        commands = self._choose(now_ms, delegation)
        if changed and delegation.state == BACKLOG:
            commands += self._ask_all(now_ms, delegation)
        elif changed and delegation.state == WAITING and not delegation.hurried:
            commands += self._ask_others(now_ms, delegation, changed)
        return commands

    def _choose(self, now_ms: int, delegation: Delegation) -> list[GridCommand]:
        """Delegate, split or keep a job according to the sites' quotes."""
        choice = self._choice(now_ms, delegation)
        if choice.split is not None:
            begin = self._begin_ahead if choice.is_ahead else self._begin
            return begin(now_ms, delegation, choice.split, choice.length_ms)
        if choice.site is None:
            return self._put_back(now_ms, delegation)
        commands = self._delegate(now_ms, delegation, choice.site, choice.end_ms)
        delegation.hurried |= choice.is_hurried
        return commands

    def _choice(self, now_ms: int, delegation: Delegation) -> PlaceChoice:
        """Choose a site that starts the job now, otherwise a split, otherwise the site where the job ends first."""
        # A site may have been excluded since it quoted.
        quoted = {s: quote for s, quote in delegation.quotes.items() if not delegation.avoids(s, now_ms)}
        quotes = {s: self._sent.subtracted(now_ms, s, quote, delegation.job) for s, quote in quoted.items()}
        delays = {s: self._delay_ms(delegation, s, max(now_ms, q.start_ms or 0)) for s, q in quotes.items()}
        delay_ms = {s: delay for s, delay in delays.items() if delay is not None}
        starts = {s: q.start_ms for s, q in quotes.items() if q.start_ms is not None and s in delay_ms}
        ready = [s for s, start_ms in starts.items() if start_ms <= now_ms]
        free = {s: quote.free for s, quote in quotes.items()}
        # A site that would evict other jobs is used only if no site starts the job without evictions.
        ready = [s for s in ready if not quotes[s].evicts] or ready
        ends = {s: end_at(delegation, s, now_ms, delay_ms[s]) for s in ready}
        ready = [s for s in ready if ends[s] == min(ends.values())]
        site = self._one_job.choose_site(delegation.job, delegation.draw, ready, free)
        if site is not None:
            return PlaceChoice(site)
        end_ms, site = earliest_end(now_ms, delegation, quotes, delay_ms)
        # Judge a split by the sites' own quotes: nodes promised to several jobs at once are no reason to split.
        end_ms = earliest_end(now_ms, delegation, quoted, delay_ms)[0]
        starts_now = any(quoted[s].start_ms is not None and (quoted[s].start_ms or 0) <= now_ms for s in starts)
        split = None if starts_now else self._split_now(now_ms, delegation, quotes)
        if split is not None and (end_ms is None or not self.policy.adaptive or now_ms + split[1] < end_ms):
            return PlaceChoice(split=split[0], length_ms=split[1])
        if split is None and (ahead := self._ahead(now_ms, delegation, quotes)) is not None:
            return PlaceChoice(split=ahead[0], length_ms=ahead[1], is_ahead=True)
        waits = split is None and self._awaits(now_ms, delegation, quotes, end_ms)
        if site is None or waits:
            return PlaceChoice()
        return PlaceChoice(site, end_ms, is_hurried=starts_now)

    def _split_now(
        self,
        now_ms: int,
        delegation: Delegation,
        quotes: Mapping[int, Quoted],
        taken: Mapping[int, int] = MappingProxyType({}),
    ) -> tuple[Fragments, int] | None:
        """Return a split of a job over the quoted free nodes minus `taken`, with its length; None if impossible."""
        less = {s: self._converted(nodes, s, None, delegation) for s, nodes in taken.items()}
        left = {s: quote.free - less.get(s, 0) for s, quote in quotes.items() if quote.takes_parts}
        free = {s: max(0, nodes) for s, nodes in left.items() if not delegation.avoids(s, now_ms)}
        return self._split_over(now_ms, delegation, self._not_asked(delegation, free))

    def _split_over(self, now_ms: int, delegation: Delegation, free: Mapping[int, int]) -> tuple[Fragments, int] | None:
        """Return a split of a job over free nodes or chunks, with its length; None if impossible."""
        args = delegation.job, delegation.sensitivity, free, delegation.sends, delegation.submit_ms, now_ms
        return self._one_job.split(*args, largest=max(self._sizes(delegation)))

    def _ahead_at_ms(self, delegation: Delegation) -> int | None:
        """Return when sites should start reserving nodes ahead for an unplaced job; None if one site can run it."""
        if delegation.job.width <= max(self._sizes(delegation)) or delegation.waits_since_ms is None:
            return None
        return delegation.waits_since_ms + self.policy.reserve_after_ms

    def _ahead(self, now_ms: int, delegation: Delegation, quotes: Mapping[int, Quoted]) -> tuple[Fragments, int] | None:
        """Return a split of a long-waiting job over sites that reserve nodes ahead, and the split job's length."""
        at_ms = self._ahead_at_ms(delegation)
        if at_ms is None or now_ms < at_ms or self._attempts.ahead is not None:
            return None
        sizes = self._sizes(delegation)
        able = {s: sizes[s] for s, quote in quotes.items() if quote.takes_parts and s not in self._shut}
        return self._split_over(now_ms, delegation, able)

    def _begin_ahead(
        self, now_ms: int, delegation: Delegation, fragments: Fragments, length_ms: int
    ) -> list[GridCommand]:
        """Ask sites to lease nodes to a split job as soon as the nodes are free."""
        self._change(delegation, "split")
        delegation.awaited = None
        delegation.number += 1
        self._plan_renewal(now_ms)
        args = delegation.job, delegation.number, fragments, length_ms
        return self._attempts.begin_ahead(*args, now_ms + self._lease_ms)

    def _put_back(self, now_ms: int, delegation: Delegation) -> list[GridCommand]:
        """See `DelegatingControl`; retry earlier if the time to reserve ahead for the job comes first."""
        commands = super()._put_back(now_ms, delegation)
        at_ms = self._ahead_at_ms(delegation) if delegation.state == BACKLOG else None
        if at_ms is not None and self._retry_at_ms is not None and at_ms > now_ms:
            self._retry_at_ms = min(self._retry_at_ms, at_ms)
        return commands

    def _begin(self, now_ms: int, delegation: Delegation, fragments: Fragments, length_ms: int) -> list[GridCommand]:
        """Ask several sites to reserve the fragments of a job."""
        self._change(delegation, "split")
        delegation.awaited = None
        delegation.number += 1
        return [*self._attempts.begin(now_ms, delegation.job, delegation.number, fragments, length_ms)]

    def _map(self, now_ms: int) -> list[GridCommand]:
        """Map the unplaced jobs over the sites; delegate the jobs and begin the splits that can start now."""
        self._map_is_due = False
        waiting = self._to_be_mapped()
        plan = self._plan(now_ms, waiting)
        commands: list[GridCommand] = []
        for delegation, mapped in zip(waiting, plan, strict=True):
            delegation.mapped = mapped.place
            if mapped.place is not None and mapped.goes:
                commands += self._delegate(now_ms, delegation, mapped.place.site, mapped.place.end_ms)
                delegation.hurried = mapped.place.start_ms <= now_ms
        for delegation, mapped in zip(waiting, plan, strict=True):
            if mapped.split is not None:
                commands += self._begin(now_ms, delegation, *mapped.split)
        return commands

    def _to_be_mapped(self, without: int | None = None) -> list[Delegation]:
        """Return the first unplaced jobs in order of submission, at most `MOST_MAPPED`."""
        backlog = (delegation for delegation in self._jobs.values() if delegation.state == BACKLOG)
        return [delegation for delegation in backlog if delegation.job.job_id != without][:MOST_MAPPED]

    def _plan(self, now_ms: int, waiting: Sequence[Delegation]) -> list[MappingDecision]:
        """Map jobs over the sites by their quotes, and return the decision for each job; nothing changes."""
        last = last_quoted(waiting)
        quotes = {site: delegation.quotes[site] for site, delegation in last.items()}
        ready_ms = [self._ready_ms(now_ms, site, quotes.get(site)) for site in range(len(self._nodes))]
        takes_parts = [site in quotes and quotes[site].takes_parts for site in range(len(self._nodes))]
        jobs = [self._to_map(now_ms, delegation, last, quotes) for delegation in waiting]
        planned = map_over_sites(jobs, ready_ms, takes_parts, self.policy.selection)
        plan, taken = [MappingDecision(place) for place in planned], dict[int, int]()
        for number, (delegation, job, place) in enumerate(zip(waiting, jobs, planned, strict=True)):
            if place is not None and place.site != SEVERAL and self._goes_now(now_ms, delegation, place):
                taken[place.site] = taken.get(place.site, 0) + job.offers[place.site].nodes
                plan[number] = MappingDecision(place, goes=True)
        for number, (delegation, place) in enumerate(zip(waiting, planned, strict=True)):
            if place is not None and place.site == SEVERAL and place.start_ms <= now_ms:
                offers = delegation.quotes if delegation.job.chunk else quotes
                split = self._split_now(now_ms, delegation, offers, taken)
                # Jobs that go now may force more fragments, and so a longer run than the mapping assumed.
                if split is not None and now_ms + split[1] <= place.end_ms:
                    plan[number] = MappingDecision(place, split=split)
                    for site, nodes in split[0]:
                        taken[site] = taken.get(site, 0) + self._converted(nodes, site, delegation, None)
        return plan

    def _ready_ms(self, now_ms: int, site: int, last: Quoted | None) -> list[int]:
        """Return when each node of a site will be free according to its last quote; now if the quote does not say.

        The list is empty for a site without a quote.
        """
        if last is None:
            return []
        ready = last.ready or ((now_ms, self._nodes[site]),)
        return [max(now_ms, instant) for instant, nodes in ready for _ in range(nodes)][: self._nodes[site]]

    def _to_map(
        self, now_ms: int, delegation: Delegation, last: Mapping[int, Delegation], quotes: Mapping[int, Quoted]
    ) -> JobToMap:
        """Convert a job to the form that the mapping needs.

        A quoted start is used only if the site has sent no newer quote for another job; otherwise the start is now.
        """
        job, offers = delegation.job, dict[int, SiteOffer]()
        for site, quote in delegation.quotes.items():
            if quote.start_ms is None or delegation.avoids(site, now_ms):
                continue
            if self._delay_ms(delegation, site, max(now_ms, quote.start_ms)) is None:
                continue
            is_new = delegation.quoted_ms[site] == last[site].quoted_ms[site]
            start_ms = max(now_ms, quote.start_ms) if is_new else now_ms
            nodes = self._converted(quote.nodes or job.width, site, delegation, None)
            offers[site] = SiteOffer(start_ms, nodes, length_at(delegation, site))
        # The free nodes in other jobs' quotes are not free chunks of this job.
        split = self._split_now(now_ms, delegation, delegation.quotes if job.chunk else quotes)
        return JobToMap(min(job.width, sum(self._nodes)), offers, None if split is None else split[1])

    def _goes_now(self, now_ms: int, delegation: Delegation, place: PlannedPlace) -> bool:
        """Whether to delegate a mapped job now: it would start at once, or its site already has a queue."""
        return place.start_ms <= now_ms or delegation.quotes[place.site].queued > 0

    def _awaits(self, now_ms: int, delegation: Delegation, quotes: Mapping[int, Quoted], alone_ms: int | None) -> bool:
        """Whether a job should wait for the nodes of a split that is not possible yet; record that split.

        `alone_ms` is the earliest end of the job on a single site; None if no site offers a start.
        """
        before = delegation.awaited

        def split(nodes: Mapping[int, int]) -> tuple[Fragments, int] | None:
            return self._split_over(now_ms, delegation, self._not_asked(delegation, nodes))

        since_ms = now_ms if before is None else before.since_ms
        delegation.awaited = awaited(now_ms, since_ms, quotes, split, alone_ms)
        return delegation.awaited is not None and delegation.awaited.is_worth_it

    def _not_asked(self, delegation: Delegation, free: Mapping[int, int]) -> dict[int, int]:
        """Return the nodes or chunks of a job that are free at each site, minus those that other split jobs request.

        Otherwise, jobs that request the same nodes could prevent each other from starting.
        """
        left = dict(free)
        for attempt in self._attempts.asked:
            other = self._jobs[attempt.job.job_id]
            for site, width in attempt.fragments:
                left[site] = max(0, left.get(site, 0) - self._converted(width, site, other, delegation))
        return left

    def _delegate(self, now_ms: int, delegation: Delegation, site: int, end_ms: int | None = None) -> list[GridCommand]:
        """Send a job to the queue of a site.

        `end_ms` is the expected end there; None if the site quoted an immediate start.
        """
        delay_ms = self._delay_ms(delegation, site, now_ms)
        if delay_ms is None:
            return self._put_back(now_ms, delegation)
        job = delegation.job
        if delay_ms:
            job = msgspec.structs.replace(job, estimate_ms=job.estimate_ms + delay_ms)
        self._change(delegation, "delegate")
        delegation.site, delegation.awaited, delegation.mapped = site, None, None
        delegation.hurried = end_ms is None
        delegation.end_ms = end_at(delegation, site, now_ms, delay_ms) if end_ms is None else end_ms
        delegation.number += 1
        if self._patience_ms:
            self._sent.add(now_ms, site, job, self._quote_id, delegation.most.get(site, 0))
        else:
            self._sent.clear()
        self._plan_renewal(now_ms)
        return [ToSite(site, EnqueueJob(job, delegation.number, now_ms + self._lease_ms))]

    def _plan_renewal(self, now_ms: int) -> None:
        """Schedule the next renewal of leases, after a third of their length, unless one is already scheduled."""
        if self._renew_at_ms is None:
            self._renew_at_ms = now_ms + self._lease_ms // 3

    def _withdrawn(self, now_ms: int, delegation: Delegation) -> list[GridCommand]:
        if delegation.state == WITHDRAWING and delegation.may_go_to(delegation.next_site, now_ms):
            return self._delegate(now_ms, delegation, delegation.next_site)
        return self._ask_all(now_ms, delegation)

    def _split_changed(self, now_ms: int, change: AttemptChange) -> list[GridCommand]:
        delegation = self._jobs[change.attempt.job.job_id]
        if change.kind in (MOVED, PART_ENDED):
            return []
        if change.never is not None:
            for site in change.sites:
                self._note_never(delegation, site, change.never)
            return self._ask_all(now_ms, delegation)
        if change.kind != ENDED:
            return self._put_back(now_ms, delegation)
        outcome = change.attempt.outcome
        delegation.waits_since_ms = None
        return self._ask_all(now_ms, delegation) if outcome is None else self._done(delegation, outcome)

    def _think_again(self, now_ms: int, *, retry: bool) -> list[GridCommand]:
        """Ask sites again about unplaced jobs, and ask changed sites about jobs that are waiting at other sites.

        One question per site is enough for all mapped jobs, because each quote includes the state of the site.
        """
        news = sorted(self._news)
        self._news = {}
        commands: list[GridCommand] = []
        for delegation in map(self._jobs.__getitem__, self._patience_ms):
            delegation.changed.update(site for site in news if site in delegation.quotes)
        looks = LOOKS
        backlog = (candidate for candidate in self._jobs.values() if candidate.state == BACKLOG)
        mapped = [candidate for candidate in backlog if candidate.mapped is not None]
        for site in range(len(self._nodes)) if retry else news:
            first = next((candidate for candidate in mapped if not candidate.avoids(site, now_ms)), None)
            commands += [] if first is None else self._ask(now_ms, first, [site])
        for delegation in list(self._jobs.values()):
            if looks == 0:
                break
            if delegation.state == BACKLOG and delegation.mapped is not None:
                continue
            if delegation.state == BACKLOG:
                looks -= 1
                commands += self._ask_all(now_ms, delegation)
            elif delegation.state == WAITING:
                due = {site for site, put_off in delegation.put_off.items() if retry and put_off.again_ms <= now_ms}
                changed = (site for site in news if not delegation.leaves_alone(site, now_ms))
                asked = self._ask_others(now_ms, delegation, sorted({*due, *changed}))
                looks -= bool(asked)
                commands += asked
        waits = any(d.state == BACKLOG or (d.state == WAITING and len(d.put_off) > 1) for d in self._jobs.values())
        if retry or not waits:
            self._retry_at_ms = now_ms + self._retry_ms if waits else None
        return commands

    def _consider_move(self, now_ms: int, site: int, delegation: Delegation, quote: Quoted) -> list[GridCommand]:
        """Withdraw a waiting job if another site would start it now on nodes that no other moving job has claimed."""
        when_ms, claimed = self._claimed.get(site, (now_ms, 0))
        claimed = claimed if when_ms == now_ms else 0
        starts_now = quote.start_ms is not None and quote.start_ms <= now_ms
        if delegation.state != WAITING or delegation.site == site or not starts_now:
            return []
        if not delegation.may_go_to(site, now_ms):
            return []
        free = max(quote.free, quote.nodes or 0) if quote.evicts else quote.free
        needed = quote.nodes or delegation.job.width
        claimed_too = self._converted(claimed, site, None, delegation)
        if needed > free - claimed_too or not self._is_nearer(now_ms, delegation, site):
            return []
        self._claimed[site] = now_ms, claimed + self._converted(needed, site, delegation, None)
        if delegation.hurried:
            # The job leaves before its site has reported anything about it.
            self._note_put_off(now_ms, delegation)
        self._change(delegation, "withdraw")
        delegation.next_site = site
        return [ToSite(delegation.site, WithdrawJob(delegation.job.job_id, delegation.number))]

    def _is_nearer(self, now_ms: int, delegation: Delegation, site: int) -> bool:
        """Whether a job started at a site now would end sooner than at the site where it is waiting.

        Always true if jobs move no data and both sites run the job equally fast. If the job can no longer meet its
        expected end at its current site, its earliest possible end there is used instead.
        """
        there_ms = length_at(delegation, delegation.site)
        sites_differ = self.policy.maps or length_at(delegation, site) != there_ms
        if not (self._one_job.moves_data or sites_differ):
            return True
        delay_ms = self._delay_ms(delegation, site, now_ms)
        least_ms = now_ms + there_ms
        end_ms = delegation.end_ms if delegation.end_ms >= least_ms else least_ms + 1
        return delay_ms is not None and end_at(delegation, site, now_ms, delay_ms) < end_ms

    def _renew(self, now_ms: int) -> list[GridCommand]:
        sites = {d.site for d in self._jobs.values() if d.state in QUEUED}
        if (ahead := self._attempts.ahead) is not None:
            sites.update(site for site, _ in ahead.fragments)
        self._renew_at_ms = now_ms + self._lease_ms // 3 if sites else None
        return [ToSite(site, RenewLeases(now_ms + self._lease_ms)) for site in sorted(sites)]

    def forecaster(self, now_ms: int, job_id: int, end_ms: int = 0) -> Forecaster | None:
        """Return a function that forecasts a job's start from the sites' last answers; None if the job is unknown."""
        delegation = self._jobs.get(job_id)
        if delegation is None:
            return None
        attempt = self._attempts.attempts.get(job_id)
        if attempt is not None:
            forecast = attempt_forecast(now_ms, attempt, self._names)
        else:
            at_ms = self._ahead_at_ms(delegation)
            args = self._nodes, self._retry_at_ms or 0, self._names, self._shut
            forecast = delegated_forecast(now_ms, delegation, *args, at_ms, self._awaited_split(delegation))
        return settled(forecast)

    def quoter(self, now_ms: int, question: QuoteQuestion) -> Forecaster:
        """See `Control`; the forecast uses the sites' quotes if `question` contains quotes."""
        asked, offers = question.asked, question.offers
        why_never = self.why_never(asked.job, asked.excluded, sends=asked.sends)
        split = None if why_never is not None or asked.job.chunk else self._wide_split(now_ms, asked)
        forecast = unasked_quote(now_ms, asked.job, self._nodes, why_never, self._names, self._shut, split=split)
        if why_never is not None or not offers:
            return settled(forecast)
        job = self._delegation_of(now_ms, asked, self._next_draw(), self._too_long(asked.job))
        for site, quote in offers.items():
            # Treat each offer as the answer to the grid's latest question.
            self._note_quote(now_ms, site, job, msgspec.structs.replace(quote, quote_id=self._quote_id + 1))
        if job.unplaceable:
            return settled(msgspec.structs.replace(forecast, state="refused", reason=job.unplaceable))
        choice = self._mapped_choice(now_ms, job, question.without) if self.policy.maps else self._choice(now_ms, job)
        cost = None
        if choice.split is not None:
            cost = self._one_job.split_reason(job.job, job.sends, choice.split, choice.length_ms, self._names)
        return settled(offered_quote(forecast, job, choice, cost or self._awaited_split(job), self._names))

    def _mapped_choice(self, now_ms: int, delegation: Delegation, without: int | None) -> PlaceChoice:
        """Return the placement that the mapping would choose for a new job, given all unplaced jobs except `without`.

        If the job would stay with the grid, record its planned placement.
        """
        waiting = self._to_be_mapped(without)
        if len(waiting) == MOST_MAPPED:
            return PlaceChoice()
        mapped = self._plan(now_ms, [*waiting, delegation])[-1]
        delegation.mapped = mapped.place
        if mapped.split is not None:
            return PlaceChoice(split=mapped.split[0], length_ms=mapped.split[1])
        if mapped.place is None or not mapped.goes:
            return PlaceChoice()
        site, start_ms = mapped.place.site, delegation.quotes[mapped.place.site].start_ms or now_ms
        starts_now = mapped.place.start_ms <= now_ms
        return PlaceChoice(site, None if starts_now else max(now_ms, start_ms) + length_at(delegation, site))

    def _awaited_split(self, delegation: Delegation) -> SplitReason | None:
        """Return the cost of the split whose last nodes a job is waiting for, or None."""
        if (split := delegation.awaited) is None:
            return None
        args = delegation.job, delegation.sends, split.fragments, split.end_ms - split.start_ms
        return self._one_job.split_reason(*args, self._names)

    def _wide_split(self, now_ms: int, asked: GridJobSubmitted) -> SplitReason | None:
        """Return the cost of splitting a job wider than every site, assuming that all nodes are free; else None."""
        sizes = {s: n for s, n in enumerate(self._nodes) if s not in asked.excluded and s not in self._shut}
        if asked.job.width <= max(sizes.values(), default=0):
            return None
        sends = asked.sends or NOTHING
        placement = self._one_job.split(asked.job, asked.sensitivity, sizes, sends, now_ms, now_ms)
        return None if placement is None else self._one_job.split_reason(asked.job, sends, *placement, self._names)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent."""
        super().check_invariants()
        split = {job_id for job_id, delegation in self._jobs.items() if delegation.state == SPLIT}
        assert split == set(self._attempts.attempts), "a split job is lost"
        asking = {job_id for job_id, delegation in self._jobs.items() if delegation.state == ASKING}
        assert asking == set(self._patience_ms), "a job waits for quotes forever"
        unanswered = {quote_id for entry in self._jobs.values() for quote_id in entry.unanswered.values()}
        assert unanswered == self._asked.keys(), "an answer will not be recognized, or is awaited for a job that left"
        assert self._renew_at_ms is not None or not any(d.state == WAITING for d in self._jobs.values()), "no renewal"

"""No control: the grid knows only the sizes of the sites and the jobs that it has sent to each (docs/control.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gridweave.grid.control.common import (
    ControlOptions,
    DelegatingControl,
    DelegatingState,
    Delegation,
    Never,
    QuoteQuestion,
)
from gridweave.grid.control.delegated_forecasts import sent_forecast, sent_quote, unasked_quote
from gridweave.grid.control.placing import OneJob
from gridweave.grid.lifecycle import BACKLOG
from gridweave.grid.messages import GridCommand, GridJobSubmitted, LinksChanged, PathsMeasured, ToSite
from gridweave.grid.policy import GridPolicy
from gridweave.site.explain import Forecaster, settled
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.messages import Answer, Ended, EnqueueJob, Refused, Withdrawn


class NoControlState(DelegatingState, frozen=True, kw_only=True, tag="NoControl 1"):
    """The state of `NoControl`."""

    area: list[int]


class NoControl(DelegatingControl):
    """Send each job to a site when it is submitted, and leave it there.

    This level never splits jobs and ignores the network. Of the selection rules, only ``random`` has an effect.
    """

    state_type: Any = NoControlState

    def __init__(self, nodes: Sequence[int], policy: GridPolicy, options: ControlOptions) -> None:
        super().__init__(nodes, policy, options)
        self._one_job = OneJob(nodes, policy)
        # The sum of width x estimate of the jobs that are at each site.
        self._area = [0] * len(self._nodes)

    def state(self) -> NoControlState:
        """Return the state; call only between two steps."""
        return NoControlState(
            draws=self._draws(),
            shut=self._shut,
            longest_ms=self._longest_ms,
            cut_off=self.cut_off_sites,
            jobs=list(self._jobs.values()),
            retry_at_ms=self._retry_at_ms,
            area=self._area,
        )

    def restore(self, state: NoControlState) -> None:
        """Restore the state of a level with the same settings; this level must be new."""
        super().restore(state)
        self._area = state.area

    def _admit(self, now_ms: int, asked: GridJobSubmitted, draw: float, never: Never) -> list[GridCommand]:
        sent = self._delegation_of(now_ms, asked, draw, never)
        self._begin_delegation(sent)
        return self._send(now_ms, sent)

    def answered(self, now_ms: int, site: int, answer: Answer) -> list[GridCommand]:
        """Apply a site's answer about a job; answers about the site itself have no effect at this level."""
        if not isinstance(answer, (Ended, Withdrawn, Refused)):
            return []
        sent = self._jobs.get(answer.job_id)
        if sent is None or sent.state == BACKLOG or sent.number != answer.attempt:
            return []
        self._area[sent.site] -= sent.job.width * sent.job.estimate_ms
        if isinstance(answer, Ended) and answer.outcome != "lost":
            return self._done(sent, answer.outcome)
        commands: list[GridCommand] = []
        if isinstance(answer, Refused):
            sent.refused_by.add(sent.site)
            commands = self._note_refusal(now_ms, sent, answer)
        else:
            sent.refused_by.clear()
            sent.refusals.clear()
        removal = self._remove_withdrawn(sent)
        if removal is not None:
            return [*commands, *removal]
        return [*commands, *self._send(now_ms, sent)]

    def links_changed(self, now_ms: int, news: LinksChanged | PathsMeasured) -> list[GridCommand]:
        """Do nothing: this level ignores the network."""
        return []

    def run(self, now_ms: int) -> list[GridCommand]:
        """Resend the jobs that all sites have refused, if the retry is due."""
        if self._retry_at_ms is None or self._retry_at_ms > now_ms:
            return []
        self._retry_at_ms = None
        commands: list[GridCommand] = []
        for sent in self._jobs.values():
            if sent.state == BACKLOG:
                sent.refused_by.clear()
                commands += self._send(now_ms, sent)
        return commands

    def next_wakeup_ms(self) -> int | None:
        """Return when `run` must be called even without an event, or None."""
        return self._retry_at_ms

    def _fitting(self, now_ms: int, sent: Delegation) -> list[int]:
        """Return the sites that are large enough for a job, have not refused it, and are not cut off."""
        sizes = self.sizes_for(sent.job)
        left = [s for s, size in enumerate(sizes) if size >= sent.job.width and s not in self.cut_off_sites]
        return [s for s in left if s not in sent.refused_by and not sent.avoids(s, now_ms)]

    def _send(self, now_ms: int, sent: Delegation) -> list[GridCommand]:
        """Send a job to the site with the least grid work per node, or to a random site; keep it if no site is left."""
        site = self._choose(now_ms, sent)
        if site is None:
            return self._put_back(now_ms, sent)
        self._change(sent, "delegate")
        sent.site = site
        sent.number += 1
        self._area[site] += sent.job.width * sent.job.estimate_ms
        return [ToSite(site, EnqueueJob(sent.job, sent.number, int(NEVER_MS)))]

    def _choose(self, now_ms: int, sent: Delegation) -> int | None:
        """Return the site that gets a job, or None if no site is left."""
        fitting = self._fitting(now_ms, sent)
        if self._rng is not None:
            return self._one_job.choose_site(sent.job, sent.draw, fitting, {})
        return min(fitting, key=lambda site: (self._area[site] / self._nodes[site], site), default=None)

    def forecaster(self, now_ms: int, job_id: int, end_ms: int = 0) -> Forecaster | None:
        """Return a function that reports a job's site and the work sent to each site; None if the job is unknown.

        The forecast has no start, because only the site knows it.
        """
        sent = self._jobs.get(job_id)
        if sent is None:
            return None
        loads = self._loads(sent.refused_by)
        forecast = sent_forecast(now_ms, sent, self._nodes, loads, self._retry_at_ms or 0, self._names, self._shut)
        return lambda: forecast

    def quoter(self, now_ms: int, question: QuoteQuestion) -> Forecaster:
        """See `Control`; the forecast names the site that would get the job."""
        asked, offers = question.asked, question.offers
        never = self._too_long(asked.job) | {s: quote.reason for s, quote in offers.items() if quote.cause == "never"}
        why_never, loads = self.why_never(asked.job, asked.excluded, never), self._loads(set(asked.excluded))
        forecast = unasked_quote(now_ms, asked.job, self._nodes, why_never, self._names, self._shut, loads)
        if why_never is not None:
            return settled(forecast)
        sent = self._delegation_of(now_ms, asked, self._next_draw(), never)
        # Forecast as if each of these sites had already refused the job.
        sent.refused_by |= self._shut.keys()
        site = self._choose(now_ms, sent)
        if site is None:
            reason = "all sites would refuse it now; it would be sent again later"
            return settled(msgspec.structs.replace(forecast, reason=reason))
        why = "has the least work of the grid per node" if self._rng is None else "was chosen at random"
        return settled(sent_quote(forecast, asked.job, site, offers, self._names, why))

    def _loads(self, refused_by: set[int]) -> list[int | None]:
        """Return how long each site needs for the jobs sent to it [ms]; None for a site that has refused the job."""
        return [
            None if site in refused_by else area // max(1, self._nodes[site]) for site, area in enumerate(self._area)
        ]

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent."""
        super().check_invariants()
        area = [0] * len(self._nodes)
        for sent in self._jobs.values():
            if sent.state != BACKLOG:
                area[sent.site] += sent.job.width * sent.job.estimate_ms
        assert area == self._area, "the work at the sites does not add up"

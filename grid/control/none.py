"""No control: the grid knows of the sites their sizes, and what it has sent them itself (docs/control.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from numpy.random import Generator

from gridweave.grid.control.links import GridNetwork
from gridweave.grid.control.placing import OneJob
from gridweave.grid.explain.delegated import sent_forecast, unasked_quote
from gridweave.grid.messages import (
    GridCommand,
    LinksChanged,
    PathsMeasured,
    ReportDone,
    ReportHeld,
    ReportRefused,
    ToSite,
)
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import Sends
from gridweave.site.explain import Forecaster
from gridweave.site.job import Job
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.messages import Answer, CancelJob, Ended, EnqueueJob, Refused, Started, WithdrawJob, Withdrawn


@dataclass(slots=True)
class _Sent:
    """A job, and the site that it was sent to."""

    job: Job
    draw: float
    number: int = 0
    site: int = -1
    refused_by: frozenset[int] = frozenset()
    cancelled: bool = False
    held: bool = False


class NoControl:
    """Jobs are sent away when they come, and stay where they were sent.

    Parameters
    ----------
    nodes, policy, rng, margin_ms, retry_ms
        As for `gridweave.grid.control.full.FullControl`; no job is split, and only ``random`` counts as a selection.
    network : GridNetwork, optional
        Not known at this level: nothing is made of it.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        policy: GridPolicy,
        rng: Generator | None,
        margin_ms: int,
        retry_ms: int,
        network: GridNetwork | None = None,
    ) -> None:
        self._nodes = list(nodes)
        self._rng = rng if policy.selection == "random" else None
        self._one_job = OneJob(nodes, policy)
        self._retry_ms = retry_ms
        self._sent: dict[int, _Sent] = {}
        # Width x estimate of all that was sent to a site and has not come back.
        self._area = [0] * len(self._nodes)
        self._refused: dict[int, None] = {}
        self._retry_at_ms: int | None = None

    def why_never(self, job: Job) -> str | None:
        """Return why a job could not be placed on the idle grid, or None."""
        if job.width <= max(self._nodes):
            return None
        return f"it needs {job.width} nodes, the largest site has {max(self._nodes)}, and nothing is split"

    def submit(
        self, now_ms: int, job: Job, sensitivity: float, sends: Sends | None = None, attempt: int = 0
    ) -> list[GridCommand]:
        """Send a job to a site."""
        draw = 0.0 if self._rng is None else float(self._rng.random())
        if job.job_id in self._sent:
            return []
        reason = self.why_never(job)
        if reason is not None:
            return [ReportRefused(job.job_id, reason)]
        self._sent[job.job_id] = _Sent(job, draw, attempt)
        return self._send(job.job_id)

    def cancel(self, now_ms: int, job_id: int) -> list[GridCommand]:
        """End a job, wherever it stands."""
        sent = self._sent.get(job_id)
        if sent is None or sent.cancelled:
            return []
        sent.cancelled = True
        if job_id in self._refused:
            del self._refused[job_id]
            return self._done(job_id, "cancelled")
        return [ToSite(sent.site, CancelJob(job_id, sent.number))]

    def hold(self, now_ms: int, job_id: int) -> list[GridCommand]:
        """Take a job out: its site is asked for it, and if it runs there it is taken out when it comes back."""
        sent = self._sent.get(job_id)
        if sent is None or sent.cancelled:
            return []
        if job_id in self._refused:
            del self._refused[job_id]
            return self._take_out(sent)
        sent.held = True
        return [ToSite(sent.site, WithdrawJob(job_id, sent.number))]

    def release(self, job_id: int) -> None:
        """Do not take a job out any more; one that its site gives back is sent again."""
        if job_id in self._sent:
            self._sent[job_id].held = False

    def _take_out(self, sent: _Sent) -> list[GridCommand]:
        del self._sent[sent.job.job_id]
        return [ReportHeld(sent.job.job_id, sent.number)]

    def expects(self, answer: Started) -> bool:
        """Return False: when a job starts is for its site to say."""
        return False

    def answered(self, now_ms: int, site: int, answer: Answer) -> list[GridCommand]:
        """Take in what a site says of a job; what it says of itself is not known at this level."""
        sent = self._sent.get(getattr(answer, "job_id", -1))
        if sent is None or sent.number != getattr(answer, "attempt", 0):
            return []
        job_id = sent.job.job_id
        match answer:
            case Ended(outcome=outcome) if outcome != "lost" or sent.cancelled:
                self._take_back(sent)
                return self._done(job_id, "cancelled" if sent.cancelled and outcome == "lost" else outcome)
            case Withdrawn() if sent.cancelled:
                self._take_back(sent)
                return self._done(job_id, "cancelled")
            case Ended() | Withdrawn():
                self._take_back(sent)
                if sent.held:
                    return self._take_out(sent)
                sent.refused_by = frozenset()
                return self._send(job_id)
            case Refused():
                return self._was_refused(now_ms, sent)
        return []

    def links_changed(self, now_ms: int, news: LinksChanged | PathsMeasured) -> list[GridCommand]:
        """Take no note: links are not known at this level."""
        return []

    def hopeless(self, now_ms: int, job_id: int, reason: str) -> list[GridCommand]:
        """Take no note: a job that is not split, and moves no data, needs no links."""
        return []

    def run(self, now_ms: int) -> list[GridCommand]:
        """Send once more what all sites had refused."""
        if self._retry_at_ms is None or self._retry_at_ms > now_ms:
            return []
        self._retry_at_ms = None
        again, self._refused = list(self._refused), {}
        commands: list[GridCommand] = []
        for job_id in again:
            self._sent[job_id].refused_by = frozenset()
            commands += self._send(job_id)
        return commands

    def waiting(self) -> Iterator[int]:
        """Yield the jobs that were sent away and have not come back, in the order in which they came."""
        return iter(self._sent)

    def next_wakeup_ms(self) -> int | None:
        """Return when `run` is to be called though nothing is heard."""
        return self._retry_at_ms

    def _send(self, job_id: int) -> list[GridCommand]:
        """Choose the site with the least of the grid's own work for its size; or at random."""
        sent = self._sent[job_id]
        fitting = [
            site for site, nodes in enumerate(self._nodes) if nodes >= sent.job.width and site not in sent.refused_by
        ]
        if self._rng is None:
            site = min(fitting, key=lambda s: (self._area[s] / self._nodes[s], s))
        else:
            chosen = self._one_job.choose_site(sent.job, sent.draw, fitting, {})
            assert chosen is not None, "a job is sent to nowhere"
            site = chosen
        sent.site = site
        sent.number += 1
        self._area[site] += sent.job.width * sent.job.estimate_ms
        return [ToSite(site, EnqueueJob(sent.job, sent.number, int(NEVER_MS)))]

    def _was_refused(self, now_ms: int, sent: _Sent) -> list[GridCommand]:
        """Try the other sites; when all have refused, wait."""
        self._take_back(sent)
        if sent.cancelled:
            return self._done(sent.job.job_id, "cancelled")
        if sent.held:
            return self._take_out(sent)
        sent.refused_by |= {sent.site}
        if all(site in sent.refused_by for site, nodes in enumerate(self._nodes) if nodes >= sent.job.width):
            self._refused[sent.job.job_id] = None
            if self._retry_at_ms is None:
                self._retry_at_ms = now_ms + self._retry_ms
            return []
        return self._send(sent.job.job_id)

    def _take_back(self, sent: _Sent) -> None:
        self._area[sent.site] -= sent.job.width * sent.job.estimate_ms

    def _done(self, job_id: int, outcome: str) -> list[GridCommand]:
        del self._sent[job_id]
        return [ReportDone(job_id, outcome)]

    def forecaster(self, now_ms: int, job_id: int, names: Sequence[str]) -> Forecaster | None:
        """Return what works out where a job was sent, and what was sent there beside it; None if it is not known."""
        sent = self._sent.get(job_id)
        if sent is None:
            return None
        site = None if job_id in self._refused else sent.site
        loads = self._loads(sent.refused_by)
        found = sent_forecast(now_ms, sent.job, site, self._nodes, loads, self._retry_at_ms or 0, names)
        return lambda: found

    def quoter(
        self, now_ms: int, job: Job, sensitivity: float, sends: Sends | None, names: Sequence[str]
    ) -> Forecaster:
        """Return what works out where a job would be sent; when it starts there, the site knows."""
        found = unasked_quote(now_ms, job, self._nodes, self.why_never(job), names, self._loads(frozenset()))
        return lambda: found

    def _loads(self, refused_by: frozenset[int]) -> list[int | None]:
        """Return for how long each site is busy with what it was sent; None for one that has refused."""
        return [
            None if site in refused_by else area // max(1, self._nodes[site]) for site, area in enumerate(self._area)
        ]

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        area = [0] * len(self._nodes)
        for job_id, sent in self._sent.items():
            if job_id not in self._refused:
                area[sent.site] += sent.job.width * sent.job.estimate_ms
        assert area == self._area, "the work that was sent away does not add up"
        assert self._retry_at_ms is not None or not self._refused, "no retry"

"""Collect offers of shared nodes from sites with hyperthreading, and choose the jobs that use them, under full control.

The grid requests offers for the first jobs in its queue whenever such a site has changed. The rule that compares an
offer with waiting and with a split is in `gridweave.grid.kernels.sharing` (docs/control.md, "Shared nodes").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np

from gridweave.grid.control.queue import GridQueue
from gridweave.grid.kernels.sharing import shared_end_ms
from gridweave.grid.messages import GridCommand, ToSite
from gridweave.site.job import Job
from gridweave.site.messages import Quoted, RequestQuote

LOOKS = 16
"""The number of jobs at the front of the queue for which offers are requested."""


class KnownOffer(msgspec.Struct, frozen=True):
    """A site's offer to start a job now on shared nodes: the slowdown of the job, and the jobs that use the nodes."""

    slowdown: float = 0.0  # run time on shared nodes / run time alone; 0 if the site offers nothing
    beside: tuple[int, ...] = ()


NOTHING = KnownOffer()


class AskedOffer(msgspec.Struct, frozen=True):
    """A request for an offer that the site has not answered."""

    job_id: int
    site: int
    asked_ms: int
    is_late: bool = False  # whether the grid makes decisions without waiting for the answer


class SharedOffersState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offers by job and site, the open requests by number, and the sites to ask."""

    offers: dict[int, dict[int, KnownOffer]] = msgspec.field(name="said")
    asked: dict[int, AskedOffer]
    last: int
    sites: tuple[int, ...]


class AcceptedOffer(NamedTuple):
    """A job that starts on shared nodes of a site; `work_ms` is its length alone, `end_ms` its end on shared nodes."""

    job: Job
    site: int
    slowdown: float
    work_ms: int
    end_ms: int


class SharedOffers:
    """The sites' offers to start jobs on shared nodes."""

    def __init__(self, sites: Sequence[int], nodes: Sequence[int], retry_ms: int) -> None:
        self.sites = tuple(sites)
        self._nodes, self._retry_ms = list(nodes), retry_ms
        self._offers: dict[int, dict[int, KnownOffer]] = {}
        self._asked: dict[int, AskedOffer] = {}
        # Questions are numbered -1, -2, ...; the questions about jobs kept apart from the queue have positive numbers.
        self._last = 0

    def state(self) -> SharedOffersState:
        """Return the state; call only between two steps."""
        return SharedOffersState(self._offers, self._asked, self._last, self.sites)

    def restore(self, state: SharedOffersState) -> None:
        """Restore the state."""
        self._offers, self._asked, self._last, self.sites = state.offers, state.asked, state.last, state.sites

    def add(self, site: int) -> None:
        """Add a site to those that are asked for offers."""
        self.sites = tuple(sorted({*self.sites, site}))

    def could_offer(self, job: Job) -> list[int]:
        """Return the sites that are large enough to offer a job shared nodes; no sites if its needs are unknown."""
        is_known = job.resources is not None or job.assumed is not None
        return [site for site in self.sites if is_known and self._nodes[site] >= job.width]

    def offers(self, job_id: int) -> dict[int, KnownOffer]:
        """Return the current offers for a waiting job, by site."""
        return {site: offer for site, offer in self._offers.get(job_id, {}).items() if offer.slowdown}

    def changed(self, site: int) -> None:
        """Drop the offers of a site that has changed, and the open requests to it."""
        if site in self.sites:
            self._offers = {
                job: {at: offer for at, offer in offers.items() if at != site} for job, offers in self._offers.items()
            }
            self._asked = {number: asked for number, asked in self._asked.items() if asked.site != site}

    def refused(self, job_id: int, site: int) -> None:
        """Ignore a site's offers for a job that the site refused, until it changes; otherwise it might refuse again."""
        if site in self.sites:
            self._offers.setdefault(job_id, {})[site] = NOTHING

    def answered(self, quoted: Quoted) -> bool:
        """Record a site's offer; return whether the offer answers an open request."""
        asked = self._asked.pop(quoted.quote_id, None)
        if asked is None:
            return False
        self._offers.setdefault(asked.job_id, {})[asked.site] = KnownOffer(quoted.slowdown or 0.0, quoted.beside)
        return True

    def expire(self, now_ms: int) -> bool:
        """Stop waiting for sites that have not answered within the retry time; return whether any did not answer."""
        silent = [number for number, due_ms in self._due_ms() if due_ms <= now_ms]
        for number in silent:
            asked = self._asked[number] = msgspec.structs.replace(self._asked[number], is_late=True)
            self._offers.setdefault(asked.job_id, {})[asked.site] = NOTHING
        return bool(silent)

    def _due_ms(self) -> Iterator[tuple[int, int]]:
        """Yield the number and the expiry time of each open request that jobs are waiting for."""
        return ((n, asked.asked_ms + self._retry_ms) for n, asked in self._asked.items() if not asked.is_late)

    def next_wakeup_ms(self) -> int | None:
        """Return when the next open request expires, or None."""
        return min((due_ms for _, due_ms in self._due_ms()), default=None)

    def ask(self, now_ms: int, queue: GridQueue) -> list[GridCommand]:
        """Request offers for the first waiting jobs from all sites that have neither been asked nor answered yet."""
        asked = {(question.job_id, question.site) for question in self._asked.values()}
        commands: list[GridCommand] = []
        for job in self._thought_of(queue):
            for site in self._lacking(job):
                if (job.job_id, site) not in asked:
                    length_ms = job.estimate_ms + (queue.delay_ms(job.job_id, site, now_ms) or 0)
                    self._last -= 1
                    self._asked[self._last] = AskedOffer(job.job_id, site, now_ms)
                    args = self._last, job.width, length_ms, job.resources, job.job_id
                    commands.append(ToSite(site, RequestQuote(*args, assumed=job.assumed)))
        return commands

    def _thought_of(self, queue: GridQueue) -> list[Job]:
        """Return the first jobs of the queue that could share nodes; drop the records of all other jobs."""
        first = [job for job in islice(queue.waiting, LOOKS) if self.could_offer(job)]
        here = {job.job_id for job in first}
        self._offers = {job_id: offers for job_id, offers in self._offers.items() if job_id in here}
        self._asked = {number: asked for number, asked in self._asked.items() if asked.job_id in here}
        return first

    def _lacking(self, job: Job) -> Iterator[int]:
        """Yield the sites that could offer a job shared nodes and have not answered."""
        offers = self._offers.get(job.job_id, {})
        return (site for site in self.could_offer(job) if site not in offers)

    def ends(self, now_ms: int, queue: GridQueue) -> dict[int, int]:
        """Return, by job, when the job would end with its best offer; 0 while some site has not answered."""
        ends_ms: dict[int, int] = {}
        for job in self._thought_of(queue):
            best = self._best(now_ms, queue, job)
            if next(self._lacking(job), None) is not None:
                ends_ms[job.job_id] = 0
            elif best is not None:
                ends_ms[job.job_id] = best.end_ms
        return ends_ms

    def _best(self, now_ms: int, queue: GridQueue, job: Job) -> AcceptedOffer | None:
        """Return the offer with which a job ends earliest, or None; ties go to the first site."""
        best: AcceptedOffer | None = None
        for site, offer in sorted(self._offers.get(job.job_id, {}).items()):
            delay_ms = queue.delay_ms(job.job_id, site, now_ms) if offer.slowdown else None
            if delay_ms is None or site in queue.shut:
                continue
            work_ms = job.estimate_ms + delay_ms
            end_ms = int(shared_end_ms(offer.slowdown, np.int64(work_ms), np.int64(now_ms)))
            if best is None or end_ms < best.end_ms:
                best = AcceptedOffer(job, site, offer.slowdown, work_ms, end_ms)
        return best

    def take(self, now_ms: int, queue: GridQueue) -> Iterator[AcceptedOffer]:
        """Yield the waiting jobs that start on shared nodes now; the queue counts them as running.

        A site starts at most one such job at a time, and none if nodes of the site are reserved for another waiting
        job, because a job that shares nodes delays the ends of the jobs already running there.
        """
        kept: dict[int, set[int]] | None = None
        for job in self._thought_of(queue):
            best = None if next(self._lacking(job), None) is not None else self._best(now_ms, queue, job)
            if best is None or not queue.shares_now(job.job_id, now_ms, best.end_ms):
                continue
            kept = queue.kept_sites() if kept is None else kept
            if any(best.site in sites for other, sites in kept.items() if other != job.job_id):
                continue
            queue.take_over(job.job_id, ((best.site, job.width),), best.end_ms)
            self.changed(best.site)
            yield best

"""How a waiting job stands in the grid queue: at each site, and with the split that could start soonest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gridweave.grid.control.queue import GridQueue
from gridweave.grid.explain.facts import GridForecast, SiteFacts, SiteWhy, SplitFacts, SplitWhy, Why
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Job

MOST_SPLITS = 256
"""At so many ends of running jobs a split is looked for at most."""


def queue_facts(
    queue: GridQueue, policy: GridPolicy, closed: Mapping[int, tuple[int, int]], now_ms: int, job_id: int
) -> GridForecast:
    """Return what keeps a waiting job from starting, as things are now; when it does start is left open.

    Parameters
    ----------
    queue : GridQueue
        No running job is past its expected end.
    closed : mapping of int to (int, int)
        The sites that are not asked for now: since when, and until when.
    """
    return _Facts(queue, policy, closed, now_ms, job_id).forecast()


class _Facts:
    """A waiting job, and all that is said of it."""

    def __init__(
        self, queue: GridQueue, policy: GridPolicy, closed: Mapping[int, tuple[int, int]], now_ms: int, job_id: int
    ) -> None:
        self.queue, self.policy, self.closed, self.now_ms = queue, policy, closed, now_ms
        waiting = list(queue.waiting)
        self.ahead = next(place for place, job in enumerate(waiting) if job.job_id == job_id)
        self.job: Job = waiting[self.ahead]
        self.n_sites = len(queue.nodes)
        self.free = [max(0, queue.free(site)) for site in range(self.n_sites)]
        # Of each site: (end, job, nodes) of what runs there, by its end.
        self.running: list[list[tuple[int, int, int]]] = [[] for _ in self.free]
        for running in queue.running:
            for site, width in running.fragments:
                self.running[site].append((running.end_ms, running.job.job_id, width))
        self.gaps_ms = queue.gaps_ms(job_id, now_ms) if policy.backfill == "conservative" else []
        self.head: int | None = waiting[0].job_id if self.ahead else None
        self.head_start_ms: int | None = None
        self.kept = [0] * self.n_sites
        if self.ahead and policy.backfill == "easy":
            self.head_start_ms, _, self.kept = queue.kept_for_head()
        elif self.ahead and (reserved := queue.reserved(waiting[0].job_id)) is not None:
            self.head_start_ms = reserved[0]

    def forecast(self) -> GridForecast:
        """Return all that is said of the job."""
        sites = tuple(self._site(site) for site in range(self.n_sites))
        return GridForecast(
            job_id=self.job.job_id,
            now_ms=self.now_ms,
            width=self.job.width,
            estimate_ms=self.job.estimate_ms,
            why=self._why(sites),
            ahead=self.ahead,
            head=self.head,
            head_start_ms=self.head_start_ms,
            sites=sites,
            split=self._split(sites),
        )

    def _why(self, sites: Sequence[SiteFacts]) -> Why:
        """Return what keeps the job from starting now."""
        found = {site.why for site in sites}
        if self.policy.backfill == "conservative":
            return "reserved"
        if not self.ahead:
            return "first"
        if self.policy.backfill == "none":
            return "strict"
        if "fits" in found:
            return "next"
        if "kept" in found:
            return "kept"
        return "parted" if sum(self.free) >= self.job.width else "narrow"

    # -- alone ---------------------------------------------------------------------------------------------------------

    def _site(self, site: int) -> SiteFacts:
        """Return how the job stands at a site."""
        width, nodes, free = self.job.width, self.queue.nodes[site], self.free[site]
        start_ms, more, waits_for = self._alone(site)
        delay_ms = None if start_ms is None else self.queue.delay_ms(self.job.job_id, site, start_ms)
        since_ms, until_ms = self.closed.get(site, (0, 0))
        gap_ms = self.gaps_ms[site] if self.gaps_ms else None
        why: SiteWhy
        if nodes < width:
            why = "small"
        elif start_ms is not None and delay_ms is None:
            why, start_ms = "apart", None
        elif site in self.closed:
            why = "closed"
        elif free < width:
            why = "busy"
        else:
            why = self._why_not_there(site)
        return SiteFacts(
            site=site,
            nodes=nodes,
            free=free,
            why=why,
            start_ms=start_ms,
            delay_ms=delay_ms or 0,
            more=more,
            waits_for=waits_for,
            others=max(0, self.queue.others(site)),
            kept=self.kept[site],
            since_ms=since_ms,
            until_ms=until_ms,
            gap_ms=gap_ms,
        )

    def _alone(self, site: int) -> tuple[int | None, int, tuple[int, ...]]:
        """Return when a site has the nodes, were the job the next; how many come free by then, and which jobs end."""
        missing = self.job.width - self.free[site]
        if missing <= 0:
            return self.now_ms, 0, ()
        more = 0
        ends: list[int] = []
        start_ms: int | None = None
        for end_ms, job_id, width in self.running[site]:
            if start_ms is not None and end_ms > start_ms:
                break
            more += width
            ends.append(job_id)
            if more >= missing:
                start_ms = end_ms
        return start_ms, more, tuple(ends)

    def _why_not_there(self, site: int) -> SiteWhy:
        """Return why the job does not start now at a site that has the nodes."""
        if self.gaps_ms:
            return "fits" if self.gaps_ms[site] == self.now_ms else "reserved"
        if self.ahead and self.policy.backfill == "none":
            return "ahead"
        is_late = self.head_start_ms is None or self.now_ms + self.job.estimate_ms > self.head_start_ms
        return "kept" if self.ahead and is_late and self.free[site] - self.kept[site] < self.job.width else "fits"

    # -- split ---------------------------------------------------------------------------------------------------------

    def _split(self, sites: Sequence[SiteFacts]) -> SplitFacts | None:
        """Return the split that could start soonest, were the job the next; None if nothing is ever split."""
        if not self.policy.splits or self.job.width < 2 or self.n_sites < 2:
            return None
        estimate_ms = self.job.estimate_ms
        starts = [(s.gap_ms if self.gaps_ms else s.start_ms, s) for s in sites if s.start_ms is not None]
        ends = [(start_ms + s.delay_ms + estimate_ms, s.site) for start_ms, s in starts if start_ms is not None]
        end_ms, whole_site = min(ends, default=(None, -1))
        whole_ms = estimate_ms + (sites[whole_site].delay_ms if ends else 0)
        about = SplitFacts(why="bound", least=self.policy.lower_bound, whole_ms=whole_ms, whole_site=whole_site)
        about = msgspec.structs.replace(about, whole_end_ms=end_ms)
        if not self.queue.may_split(self.job.job_id):
            return about
        allowed = self.queue.fragments_allowed(self.job.width)
        found = self._soonest_split() if allowed > 1 else None
        if found is None:
            why: SplitWhy = "fragments" if allowed < self.n_sites else "links"
            if sum(self.free) + sum(nodes for site in self.running for _, _, nodes in site) < self.job.width:
                why = "few"
            return msgspec.structs.replace(about, why=why, least=allowed)
        start_ms, fragments, length_ms = found
        if len(fragments) == 1:
            return msgspec.structs.replace(about, why="alone", start_ms=start_ms)
        gain_ms = None if end_ms is None else end_ms - start_ms - length_ms
        if self.policy.adaptive and gain_ms is not None and gain_ms <= 0:
            why = "waits"
        elif start_ms > self.now_ms:
            why = "later"
        else:
            why = "ahead" if self.ahead else "pays"
        return msgspec.structs.replace(
            about, why=why, fragments=fragments, start_ms=start_ms, length_ms=length_ms, gain_ms=gain_ms
        )

    def _soonest_split(self) -> tuple[int, tuple[tuple[int, int], ...], int] | None:
        """Return the first instant at which what is free can be had in parts, with the parts and the length then."""
        free, width = self.free.copy(), self.job.width
        ends = sorted({end_ms for running in self.running for end_ms, _, _ in running})
        at_ms: dict[int, list[tuple[int, int]]] = {end_ms: [] for end_ms in ends}
        for site, running in enumerate(self.running):
            for end_ms, _, nodes in running:
                at_ms[end_ms].append((site, nodes))
        tries = 0
        for when_ms in [self.now_ms, *ends]:
            for site, nodes in at_ms.get(when_ms, ()):
                free[site] += nodes
            if sum(free) < width:
                continue
            found = self.queue.split(self.job.job_id, free, when_ms)
            tries += 1
            if found is not None:
                return when_ms, *found
            if tries == MOST_SPLITS:
                break
        return None

"""Explain why a job is waiting in the grid queue, for each site and for the earliest possible split.

The reasons come from the numbers that the kernels have stored: free nodes, the shadow time, the nodes kept for the head
and the reservations. This module does not repeat any decision rule (docs/explain.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gridweave.grid.control.coallocation import Fragments
from gridweave.grid.control.cost import bound_text, named, split_cost
from gridweave.grid.control.past import LeftAlone
from gridweave.grid.control.queue import GridQueue
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.communication import communication_text
from gridweave.site.explain import (
    STARTS_AT_ONCE,
    Forecast,
    Places,
    SiteReason,
    SplitReason,
    ahead_text,
    free_text,
    listed,
    nodes_text,
    places_text,
    shut_text,
    too_small_text,
)
from gridweave.site.job import Job
from gridweave.site.launch import SplitCost
from gridweave.site.times import span_text, when_text

MOST_SPLITS = 256
"""The search for a split considers at most this many ends of running jobs."""


_Split = Callable[[int, Sequence[int], int], tuple[Fragments, int] | None]
"""A function that splits a waiting job over free nodes at a given time, and returns its fragments and length."""


class _Alone(NamedTuple):
    """The earliest start of a job on one site, if the job were the next one to start there.

    An unknown ``start_ms`` is None. ``delay_ms`` is the wait for the job's data, or None without a path to the data.
    The jobs in ``waits_for`` end no later than the start and free ``more`` nodes.
    """

    start_ms: int | None
    delay_ms: int | None
    more: int
    waits_for: tuple[int, ...]


class Standing:
    """The reasons why a job is waiting now; the caller finds the job's start by simulation.

    Parameters
    ----------
    queue : GridQueue
        A queue in which no running job is past its expected end.
    closed, shut : mapping from int
        Sites that the grid does not ask at present, and sites that accept no new jobs, each with its reason.
    is_quote : bool
        Whether the job is hypothetical, so that the forecast has no job id.
    """

    def __init__(
        self,
        queue: GridQueue,
        policy: GridPolicy,
        closed: Mapping[int, LeftAlone],
        shut: Mapping[int, str],
        now_ms: int,
        job_id: int,
        names: Sequence[str],
        *,
        is_quote: bool = False,
    ) -> None:
        self._queue, self._policy, self._closed, self._now_ms = queue, policy, dict(closed), now_ms
        self._names, self._is_quote, self._shut = names, is_quote, dict(shut)
        waiting = list(queue.waiting)
        self._ahead = next(place for place, job in enumerate(waiting) if job.job_id == job_id)
        self._job: Job = waiting[self._ahead]
        self._sites = range(len(queue.nodes))
        self._free = [max(0, queue.free(site)) for site in self._sites]
        self._running = self._ends_by_site()
        self._gaps_ms = queue.gaps_ms(job_id, now_ms) if policy.backfill == "conservative" else []
        self._head: int | None = waiting[0].job_id if self._ahead else None
        self._head_start_ms: int | None = None
        self._kept = [0] * len(self._sites)
        if self._ahead and policy.backfill == "easy":
            self._head_start_ms, _, self._kept = queue.kept_for_head()
        elif self._ahead and (reserved := queue.reserved(waiting[0].job_id)) is not None:
            self._head_start_ms = reserved[0]
        self._alone = [self._when_alone(site) for site in self._sites]
        # The earliest end on a single site, the name of that site, and the length of the job there.
        self._whole_end_ms, self._whole_site, self._whole_ms = self._first_end_alone()
        # Collect all reasons before the caller simulates the queue.
        self._model = queue.model
        self._moves = "" if queue.tuning is None else f"; {queue.tuning.why_starts_move()}"
        self._cause, self._reason = self._why()
        self._rows = tuple(self._row(site) for site in self._sites)
        self._split = self._split_now()

    def _ends_by_site(self) -> list[list[tuple[int, int, int]]]:
        """Return, for each site, its running jobs as (end, job, nodes), by end.

        The list of a site that accepts no new jobs is empty, because jobs that end there free no nodes for the grid.
        """
        ends: list[list[tuple[int, int, int]]] = [[] for _ in self._sites]
        for running in self._queue.running:
            for site, width in (part for part in running.fragments if part[0] not in self._shut):
                ends[site].append((running.end_ms, running.job.job_id, width))
        return ends

    @property
    def job_id(self) -> int:
        """Id of the job."""
        return self._job.job_id

    def unplaced(self, *, is_too_far: bool = False) -> Forecast:
        """Return the forecast without a start, because it is unknown or (``is_too_far``) beyond the simulated steps."""
        why = "; nodes used by others must come free first, and it is unknown when"
        if self._shut_suits():
            why = "; it cannot start before such a site accepts jobs again"
        if is_too_far:
            why = "; its start is too far ahead to be computed"
        return self._forecast(self._reason + why)

    def placed(
        self, start_ms: int, fragments: Fragments, length_ms: int, *, is_reserved_only: bool = False
    ) -> Forecast:
        """Return the forecast with a start; ``is_reserved_only`` marks a reserved start that can still change."""
        placement = named(fragments, self._names)
        # Start and sites have their own fields; only the cost of a split belongs in the reason.
        reason = self._reason
        if len(placement) > 1:
            reason += f"; it starts{self._where(placement, length_ms)}"
        if is_reserved_only:
            reason = f"{self._reason}; its start is too far ahead to be computed; this is its present reservation"
        return self._found(reason, start_ms, placement, length_ms)

    def placed_at_once(self, start_ms: int, fragments: Fragments, length_ms: int) -> Forecast:
        """Return the forecast of a job that would start at once."""
        placement = named(fragments, self._names)
        return self._found(f"{STARTS_AT_ONCE},{self._where(placement, length_ms)}", start_ms, placement, length_ms)

    def _where(self, placement: Places, length_ms: int) -> str:
        """Return a clause with the sites on which the job starts and, for a split, its cost."""
        return f" {self._cost(placement, length_ms).text}" if len(placement) > 1 else f" on {places_text(placement)}"

    def _cost(self, placement: Places, length_ms: int) -> SplitCost:
        _, _, sends = self._queue.described(self._job.job_id)
        communication = sends.communication
        return split_cost(
            placement,
            self._whole_ms,
            length_ms,
            self._model,
            communication,
            names=self._names,
            traffic=communication_text(communication),
        )

    def _found(self, reason: str, start_ms: int, placement: Places, length_ms: int) -> Forecast:
        forecast = self._forecast(reason)
        split = forecast.split
        if len(placement) > 1 and split is not None:
            split = self._split_found(start_ms, placement, length_ms)
        return msgspec.structs.replace(forecast, start_ms=start_ms, places=placement, length_ms=length_ms, split=split)

    def _forecast(self, reason: str) -> Forecast:
        return Forecast(
            job_id=None if self._is_quote else self._job.job_id,
            now_ms=self._now_ms,
            ahead=self._ahead,
            reason=reason + self._moves,
            cause=self._cause,
            sites=self._rows,
            split=self._split,
        )

    # -- the job ------------------------------------------------------------------------------------------------------

    def _why(self) -> tuple[str, str]:
        """Return why the job is waiting: a short text without numbers, and a text with numbers."""
        need, length = f"it needs {nodes_text(self._job.width)}", span_text(self._job.estimate_ms)
        if self._policy.backfill == "conservative":
            return "its start is reserved", f"its start is reserved: {need} for {length}, and no earlier gap has them"
        if not self._ahead:
            first = f"it is first in the queue; {need}, {self._most_free()}{self._shut_away()}"
            return "it is first in the queue", first
        if self._policy.backfill == "none":
            ahead = f"{ahead_text(self._ahead)} must start before it: this queue lets none be overtaken"
            return "others must start before it", ahead
        roomy = [site for site in self._sites if self._has_capacity(site)]
        if any(self._hindrance(site) is None for site in roomy):
            placed = f"{need}, which are free: the next pass over the queue places it, if no job ahead takes them"
            return "its nodes are free", placed
        if roomy:
            kept = f"but it would run for {length} on nodes that are kept for job {self._head}, first in the queue"
            return "free nodes are kept for the first", f"{need}, which are free, {kept}{self._head_due()}"
        ahead = f"{ahead_text(self._ahead)} would be offered them before it"
        if self._shut_suits():
            return "sites accept no new jobs", f"{need}, {self._most_free()}{self._shut_away()}; {ahead}"
        return "too few nodes are free", f"{need}, {self._most_free()}{self._shut_away()}; {ahead}"

    def _shut_suits(self) -> bool:
        """Whether the job is too wide for the open sites, so that it needs sites that accept no new jobs."""
        left = [nodes for site, nodes in enumerate(self._queue.nodes) if site not in self._shut]
        fits = sum(left) if self._policy.splits else max(left, default=0)
        return bool(self._shut) and fits < self._job.width

    def _shut_away(self) -> str:
        """Return clauses that name the sites that accept no new jobs, each with the reason."""
        clauses = [f"{self._names[site]} {shut_text(why)}" for site, why in sorted(self._shut.items())]
        return f"; {'; '.join(clauses)}" if clauses else ""

    def _most_free(self) -> str:
        most, total = max(self._free, default=0), sum(self._free)
        if not total:
            return "and none is free"
        return f"and {free_text(most)} at one site at most" + (f", {total} in all" if total > most else "")

    def _head_due(self) -> str:
        if self._head_start_ms is None:
            return ""
        return f", which is to start {when_text(self._head_start_ms, self._now_ms)}"

    # -- alone, at a site ---------------------------------------------------------------------------------------------

    def _when_alone(self, site: int) -> _Alone:
        if site in self._shut:
            return _Alone(None, 0, 0, ())
        missing = self._job.width - self._free[site]
        start_ms, more = (self._now_ms if missing <= 0 else None), 0
        ends: list[int] = []
        for end_ms, job_id, nodes in self._running[site] if missing > 0 else ():
            if start_ms is not None and end_ms > start_ms:
                break
            more += nodes
            ends.append(job_id)
            if more >= missing:
                start_ms = end_ms
        if start_ms is None:
            return _Alone(None, 0, more, ())
        delay_ms = self._queue.delay_ms(self._job.job_id, site, start_ms)
        return _Alone(None if delay_ms is None else start_ms, delay_ms, more, tuple(ends))

    def _has_capacity(self, site: int) -> bool:
        """Whether a site has enough free nodes for the job and may be asked now."""
        alone = self._alone[site]
        return site not in self._closed and alone.delay_ms is not None and self._free[site] >= self._job.width

    def _row(self, site: int) -> SiteReason:
        """Return the forecast's row about a site."""
        alone = self._alone[site]
        return SiteReason(
            site=self._names[site],
            nodes=self._queue.nodes[site],
            free=self._free[site],
            start_ms=alone.start_ms,
            ahead=self._ahead,
            waits_for=alone.waits_for,
            reason=self._standing(site),
        )

    def _standing(self, site: int) -> str:
        """Return the first reason why the job is not running on a site."""
        now_ms, width, nodes = self._now_ms, self._job.width, self._queue.nodes[site]
        free = free_text(self._free[site], nodes)
        if nodes < width:
            return too_small_text(nodes)
        if self._alone[site].delay_ms is None:
            return "has no path to its data now"
        if site in self._shut:
            return shut_text(self._shut[site])
        if site in self._closed:
            return self._closed[site].text(now_ms)
        if self._free[site] < width:
            return f"needs {nodes_text(width)}, {free}{self._later(site)}"
        return free + (self._hindrance(site) or ": it could start there now")

    def _hindrance(self, site: int) -> str | None:
        """Return why the job cannot start on a site with enough free nodes; None if it can."""
        now_ms, estimate_ms = self._now_ms, self._job.estimate_ms
        if self._gaps_ms:
            gap_ms = self._gaps_ms[site]
            if gap_ms == now_ms:
                return None
            later = "" if gap_ms is None else f"; they are free for that long {when_text(gap_ms, now_ms)}"
            return f", but not for {span_text(estimate_ms)}: others have reserved them{later}"
        if not self._ahead:
            return None
        if self._policy.backfill == "none":
            return f"; {ahead_text(self._ahead)} must start first"
        ends_by_then = self._head_start_ms is not None and now_ms + estimate_ms <= self._head_start_ms
        if ends_by_then or self._free[site] - self._kept[site] >= self._job.width:
            return None
        return f", {self._kept[site]} of them kept for job {self._head}{self._head_due()}"

    def _later(self, site: int) -> str:
        """Return a clause that says how many nodes become free at a site, and when."""
        alone, count = self._alone[site], max(0, self._queue.others(site))
        others = f"; others have {count}" if count else ""
        if alone.start_ms is None:
            return others + (", and it is unknown when they leave" if others else "")
        more = f"{alone.more} more {'comes' if alone.more == 1 else 'come'} free"
        ahead = f"; offered to {ahead_text(self._ahead)} first" if self._ahead else ""
        return f"{others}; {more} {when_text(alone.start_ms, self._now_ms)} when {_ends(alone.waits_for)}{ahead}"

    def _first_end_alone(self) -> tuple[int | None, str, int]:
        """Return the earliest end on one site, or None if no site can run the job, the site's name, and the length."""
        estimate_ms, ends = self._job.estimate_ms, []
        for site, alone in enumerate(self._alone):
            start_ms = self._gaps_ms[site] if self._gaps_ms else alone.start_ms
            if alone.start_ms is not None and start_ms is not None:
                length_ms = estimate_ms + (alone.delay_ms or 0)
                ends.append((start_ms + length_ms, site, length_ms))
        if not ends:
            return None, "", estimate_ms
        end_ms, site, length_ms = min(ends)
        return end_ms, self._names[site], length_ms

    # -- split --------------------------------------------------------------------------------------------------------

    def _split_now(self) -> SplitReason | None:
        """Return the split that could start earliest if the job were next; None if the grid does not split jobs."""
        width = self._job.width
        if not self._policy.splits or width < 2 or len(self._sites) < 2:
            return None
        if not self._queue.may_split(self._job.job_id):
            return self._no_split(f"only jobs of more than {nodes_text(self._policy.lower_bound)} are split")
        allowed = self._queue.fragments_allowed(width)
        soonest = self._soonest_split(self._queue.split) if allowed > 1 else None
        if soonest is None:
            return self._too_dear() or self._no_split(self._why_no_split(allowed))
        start_ms, fragments, length_ms = soonest
        if len(fragments) > 1:
            return self._split_possible(start_ms, named(fragments, self._names), length_ms)
        alone = f"{self._whole_site} alone has the nodes"
        if start_ms == self._now_ms:
            return self._no_split(f"no split is needed: {alone} now")
        return self._no_split(f"no split is possible before {alone}, {when_text(start_ms, self._now_ms)}")

    def _too_dear(self) -> SplitReason | None:
        """Explain that every split exceeds the largest allowed factor; None if no split is possible at any cost."""
        soonest = self._soonest_split(self._queue.split_at_any_cost)
        if soonest is None or len(soonest[1]) < 2:
            return None
        start_ms, fragments, length_ms = soonest
        cost = self._cost(named(fragments, self._names), length_ms)
        start = when_text(start_ms, self._now_ms)
        reason = f"it is not {cost.text}, {start} at the earliest: {bound_text(self._queue.max_split_factor)}"
        return SplitReason(whole_ms=self._whole_ms, reason=reason, cost=cost)

    def _no_split(self, reason: str) -> SplitReason:
        return SplitReason(whole_ms=self._whole_ms, reason=reason)

    def _why_no_split(self, allowed: int) -> str:
        """Return why there is no split over at most ``allowed`` sites."""
        width = nodes_text(self._job.width)
        if sum(self._free) + sum(nodes for site in self._running for _, _, nodes in site) < self._job.width:
            return "no split is possible: too few nodes are known to come free"
        if allowed == 1:
            return f"a job of {width} may not be split"
        if allowed < len(self._sites):
            return f"a job of {width} may be on {allowed} sites, but would need more"
        return "no split is possible: there is no path between its parts"

    def _split_found(self, start_ms: int, placement: Places, length_ms: int) -> SplitReason:
        gain_ms = None if self._whole_end_ms is None else self._whole_end_ms - start_ms - length_ms
        cost = self._cost(placement, length_ms)
        reason = f"it is {cost.text}"
        if gain_ms is not None and gain_ms > 0:
            reason += f", and ends {span_text(gain_ms)} sooner than {self._whole_site} alone"
        return self._worded(reason, start_ms, placement, cost, gain_ms)

    def _split_possible(self, start_ms: int, placement: Places, length_ms: int) -> SplitReason:
        gain_ms = None if self._whole_end_ms is None else self._whole_end_ms - start_ms - length_ms
        waits = self._policy.adaptive and gain_ms is not None and gain_ms <= 0
        if not waits and start_ms == self._now_ms and not self._ahead:
            return self._split_found(start_ms, placement, length_ms)
        cost = self._cost(placement, length_ms)
        reason = f"it could start {when_text(start_ms, self._now_ms)}, {cost.text}"
        if gain_ms is None:
            reason += "; no single site has the nodes"
        else:
            ends = f"{span_text(abs(gain_ms))} {'later' if gain_ms > 0 else 'sooner'}" if gain_ms else "no later"
            reason += f"; waiting for {self._whole_site} ends {ends}"
        if not waits and start_ms == self._now_ms:
            reason += f"; {ahead_text(self._ahead)} would be placed first"
        return self._worded(reason, start_ms, placement, cost, gain_ms)

    def _worded(
        self, reason: str, start_ms: int, placement: Places, cost: SplitCost, gain_ms: int | None
    ) -> SplitReason:
        return SplitReason(
            places=placement,
            start_ms=start_ms,
            length_ms=cost.length_ms,
            whole_ms=cost.whole_ms,
            gain_ms=gain_ms,
            reason=reason,
            cost=cost,
        )

    def _soonest_split(self, split: _Split) -> tuple[int, Fragments, int] | None:
        """Return the earliest split of the job over free nodes: its start, fragments and length; None if impossible."""
        free, width = self._free.copy(), self._job.width
        ends = sorted({end_ms for running in self._running for end_ms, _, _ in running})
        at_ms: dict[int, list[tuple[int, int]]] = {end_ms: [] for end_ms in ends}
        for site, running in enumerate(self._running):
            for end_ms, _, nodes in running:
                at_ms[end_ms].append((site, nodes))
        tries = 0
        for when_ms in [self._now_ms, *ends]:
            for site, nodes in at_ms.get(when_ms, ()):
                free[site] += nodes
            if sum(free) < width:
                continue
            placement = split(self._job.job_id, free, when_ms)
            tries += 1
            if placement is not None:
                return when_ms, *placement
            if tries == MOST_SPLITS:
                break
        return None


_Closed = Mapping[int, LeftAlone]
_Shut = Mapping[int, str]


class CountedStanding:
    """The reasons why a job waits in a queue that counts resources, without the ends it waits for; see `Standing`.

    `job` is the id of the job, and whether it is hypothetical. Numbers are chunks of this job.
    """

    def __init__(
        self, queue: GridQueue, closed: _Closed, shut: _Shut, now_ms: int, job: tuple[int, bool], names: Sequence[str]
    ) -> None:
        job_id, is_quote = job
        self.job_id, self._now_ms, self._names, self._is_quote = job_id, now_ms, names, is_quote
        waiting = list(queue.waiting)
        self._ahead = next(place for place, job in enumerate(waiting) if job.job_id == job_id)
        self._width = waiting[self._ahead].width
        most, fitting = queue.most_chunks(job_id), queue.fitting(job_id)
        self._reason = f"it needs {self._width} chunks, and {max(fitting)} fit now at one site at most"
        if self._ahead:
            self._reason += f"; {ahead_text(self._ahead)} would be placed first"
        self._rows = tuple(
            SiteReason(
                site=names[site],
                nodes=most[site],
                free=fitting[site],
                start_ms=None,
                ahead=self._ahead,
                reason=self._why(site, most[site], fitting[site], closed, shut),
            )
            for site in range(len(most))
        )

    def _why(self, site: int, most: int, fitting: int, closed: _Closed, shut: _Shut) -> str:
        if site in shut:
            return shut_text(shut[site])
        if site in closed:
            return closed[site].text(self._now_ms)
        return f"{fitting} chunks of it fit now, and {most} on the idle site"

    def unplaced(self, *, is_too_far: bool = False) -> Forecast:
        """Return the forecast without a start, because it is unknown or (``is_too_far``) beyond the simulated steps."""
        why = "its start is too far ahead to be computed" if is_too_far else "it is unknown when more come free"
        return self._forecast(f"{self._reason}; {why}")

    def placed(
        self, start_ms: int, fragments: Fragments, length_ms: int, *, is_reserved_only: bool = False
    ) -> Forecast:
        """Return the forecast with a start; no start is reserved in such a queue."""
        assert not is_reserved_only, "a queue that counts resources reserves no starts"
        return self._found(self._reason, start_ms, fragments, length_ms)

    def placed_at_once(self, start_ms: int, fragments: Fragments, length_ms: int) -> Forecast:
        """Return the forecast of a job that would start at once."""
        reason = f"{STARTS_AT_ONCE}, on {places_text(named(fragments, self._names))}"
        return self._found(reason, start_ms, fragments, length_ms)

    def _found(self, reason: str, start_ms: int, fragments: Fragments, length_ms: int) -> Forecast:
        placement = named(fragments, self._names)
        return msgspec.structs.replace(self._forecast(reason), start_ms=start_ms, places=placement, length_ms=length_ms)

    def _forecast(self, reason: str) -> Forecast:
        return Forecast(
            job_id=None if self._is_quote else self.job_id,
            now_ms=self._now_ms,
            ahead=self._ahead,
            reason=reason,
            cause="too few chunks fit",
            sites=self._rows,
        )


def _ends(job_ids: Sequence[int]) -> str:
    if len(job_ids) == 1:
        return f"job {job_ids[0]} ends"
    if len(job_ids) <= 3:
        return f"jobs {listed([str(job_id) for job_id in job_ids])} end"
    return f"job {job_ids[-1]} and {len(job_ids) - 1} others end"

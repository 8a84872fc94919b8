"""The grid queue with reserved starts (docs/grid.md, "Reserved starts"): `simulate_reserved`.

As in `reference.grid`, everything is worked out again from what runs and what is reserved whenever it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from reference.grid import NEVER_PLACED, Fragments, GridOutcome, GridRunning, Rules, place, select, split
from reference.model import Job
from reference.ordering import key_of


@dataclass(frozen=True)
class Reserved:
    """Nodes from ``start`` up to, not including, ``end``; also what a running job holds until its end by estimate."""

    start: int
    end: int
    fragments: Fragments


@dataclass(frozen=True)
class ReservedMoment:
    """What one pass did: who waited when it began, with what reserved, and who started."""

    now: int
    started: tuple[int, ...]
    plan: dict[int, Reserved]


@dataclass
class ReservedOutcome(GridOutcome):
    """The whole story.

    ``cancelled`` has the jobs that a cancellation met while they waited or ran, with the instant; ``held_until`` the
    ends by estimate of all jobs that started; ``rules`` what was asked for.
    """

    moments: list[ReservedMoment] = field(default_factory=list)
    cancelled: dict[int, int] = field(default_factory=dict)
    held_until: dict[int, int] = field(default_factory=dict)
    rules: Rules = field(default_factory=lambda: Rules(()))


@dataclass
class Planner:
    """A grid at an instant: what runs, what waits, and what is reserved for those that wait."""

    rules: Rules
    now: int = -1
    running: list[GridRunning] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)
    reserved: dict[int, Reserved] = field(default_factory=dict)

    def held(self) -> list[Reserved]:
        """Return all that is taken from now on."""
        runs = [Reserved(self.now, one.end_by_estimate, one.fragments) for one in self.running]
        return runs + list(self.reserved.values())

    def in_order(self) -> list[Job]:
        """Return the waiting jobs in the order of the queue."""
        return sorted(self.waiting, key=lambda job: (key_of(job, self.rules.order, math.inf), job.submit, job.id))

    def instants(self) -> list[int]:
        """Return now, and the later instants at which the free nodes of some site change."""
        held = self.held()
        bounds = {instant for one in held for instant in (one.start, one.end)}
        later = {instant for instant in bounds if instant > self.now}
        return sorted(
            {self.now} | {one for one in later if free(self.rules, held, one - 1) != free(self.rules, held, one)}
        )

    def places(self, job: Job) -> Iterator[Reserved]:
        """Yield the places of a job: the split if there is one, then the one on one site if there is one."""
        held, instants = self.held(), self.instants()
        starts: dict[int, int] = {}
        for site in range(len(self.rules.nodes)):
            fitting = (
                start
                for start in instants
                if least_free(self.rules, held, start, start + job.estimate)[site] >= job.width
            )
            start = next(fitting, None)
            if start is not None:
                starts[site] = start
        earliest = min(starts.values(), default=math.inf)
        if self.rules.may_be_split(job):
            for start in instants:
                if start < earliest and (fragments := self.split_at(job, held, start)):
                    length = self.rules.takes(job, job.estimate, fragments)
                    yield Reserved(start, start + length, fragments)
                    break
        if starts:
            start = min(starts.values())
            fitting_sites = [site for site in sorted(starts) if starts[site] == start]
            site = select(self.rules, job, fitting_sites, free(self.rules, held, start))
            yield Reserved(start, start + job.estimate, ((site, job.width),))

    def split_at(self, job: Job, held: Sequence[Reserved], start: int) -> Fragments | None:
        """Return the fragments of a job that is split and starts at an instant, None if it cannot be."""
        length = job.estimate
        while fragments := split(self.rules, job, least_free(self.rules, held, start, start + length)):
            needed = self.rules.takes(job, job.estimate, fragments)
            if needed <= length:
                return fragments
            length = needed
        return None

    def preferred(self, places: Sequence[Reserved]) -> Reserved | None:
        """Return which of the places is taken, by the mode."""
        if len(places) < 2:
            return next(iter(places), None)
        in_parts, whole = places
        assert in_parts.start < whole.start
        return whole if self.rules.mode == "adaptive" and in_parts.end >= whole.end else in_parts

    def compress(self) -> None:
        """Move reservations up until none moves."""
        moved = True
        while moved:
            moved = False
            for job in self.in_order():
                old = self.reserved.pop(job.id)
                new = self.preferred([one for one in self.places(job) if one.end <= old.end])
                better = new is not None and (new.end, len(new.fragments)) < (old.end, len(old.fragments))
                self.reserved[job.id] = new if better and new is not None else old
                moved = moved or better

    def submitted(self, job: Job) -> None:
        """Reserve a new job its preferred place."""
        place = self.preferred(list(self.places(job)))
        assert place is not None, "a job that was not refused can be placed on the idle grid"
        self.reserved[job.id] = place
        self.waiting.append(job)

    def run_pass(self) -> ReservedMoment:
        """Start what is reserved to start now."""
        plan = dict(self.reserved)
        started = [job for job in self.in_order() if plan[job.id].start == self.now]
        for job in started:
            self.waiting.remove(job)
            held = self.reserved.pop(job.id)
            lasts = self.rules.takes(job, job.length, held.fragments)
            self.running.append(GridRunning(job, held.fragments, held.end, self.now + lasts))
        return ReservedMoment(self.now, tuple(job.id for job in started), plan)


def free(rules: Rules, held: Sequence[Reserved], instant: int) -> list[int]:
    """Return what is left on each site at an instant."""
    left = list(rules.nodes)
    for one in held:
        if one.start <= instant < one.end:
            for site, width in one.fragments:
                left[site] -= width
    return left


def least_free(rules: Rules, held: Sequence[Reserved], start: int, end: int) -> list[int]:
    """Return what is left on each site at all instants from a start up to, not including, an end."""
    instants = [start] + [one.start for one in held if start < one.start < end]
    return [min(column) for column in zip(*(free(rules, held, instant) for instant in instants), strict=True)]


def simulate_reserved(
    jobs: Iterable[Job], nodes: Sequence[int], *, cancellations: Iterable[tuple[int, int]] = (), **options: Any
) -> ReservedOutcome:
    """Run jobs on several sites with reserved starts and return the whole story.

    Parameters
    ----------
    jobs, nodes
        As for `reference.grid.simulate_grid`.
    cancellations : iterable of (int, int)
        Instant and job id. One that meets its job neither waiting nor running has no effect.
    **options
        As for `reference.grid.simulate_grid`, but for ``home`` and ``backfill``; not mode ``local``.

    Returns
    -------
    ReservedOutcome
    """
    planner = Planner(Rules(tuple(nodes), **options))
    outcome = ReservedOutcome(rules=planner.rules)
    kept = []
    for job in jobs:
        if place(planner.rules, job, 0, [], planner.rules.nodes) is None:
            outcome.refused[job.id] = NEVER_PLACED
        else:
            kept.append(job)
    cancellations = [(when, job_id) for when, job_id in cancellations if job_id not in outcome.refused]
    calendar = {job.submit for job in kept} | {when for when, _ in cancellations}
    while True:
        timers = [one.start for one in planner.reserved.values()]
        upcoming = [*calendar, *(one.end for one in planner.running), *timers]
        if not (upcoming := [instant for instant in upcoming if instant > planner.now]):
            break
        planner.now = min(upcoming)
        _end_and_cancel(planner, cancellations, outcome)
        for job in sorted((job for job in kept if job.submit == planner.now), key=lambda job: job.id):
            planner.submitted(job)
        outcome.moments.append(planner.run_pass())
        for one in planner.running:
            if one.job.id not in outcome.start:
                outcome.start[one.job.id] = planner.now
                outcome.end[one.job.id] = one.end
                outcome.fragments[one.job.id] = one.fragments
                outcome.held_until[one.job.id] = one.end_by_estimate
    assert not planner.waiting, "the simulation stopped with jobs that wait"
    return outcome


def _end_and_cancel(planner: Planner, cancellations: Sequence[tuple[int, int]], outcome: ReservedOutcome) -> None:
    """Take out what ends now and what is cancelled now, and compress if any of it comes early."""
    now = planner.now
    early = any(one.end == now < one.end_by_estimate for one in planner.running)
    planner.running = [one for one in planner.running if one.end > now]
    for when, job_id in cancellations:
        if when != now:
            continue
        for one in [one for one in planner.running if one.job.id == job_id]:
            planner.running.remove(one)
            outcome.end[job_id] = outcome.cancelled[job_id] = now
            early = True
        for job in [job for job in planner.waiting if job.id == job_id]:
            planner.waiting.remove(job)
            del planner.reserved[job_id]
            outcome.cancelled[job_id] = now
            early = True
    if early:
        planner.compress()

"""Conservative backfilling and planning with cores, memory and GPUs (docs/resources.md, rule 6): `simulate_planned`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from reference import availability
from reference.counted import Ask, Site, Units
from reference.limits import allows, applies, never_starts, openings
from reference.model import NEVER, WEEK, Answer, Job, Limit, Outcome, Reservation, Running, State
from reference.node_plans import Occupation, colour, earliest, idle_nodes
from reference.ordering import in_order

RESERVED = -1
"""The job that stands for a reservation has this id or a lower one."""

Promise = tuple[int, Units | None]
"""A start, and the nodes if the plan is kept for each node."""


@dataclass
class PlannedOutcome(Outcome):
    """An outcome with the start, id, and number of chunks by node of each job that started, and the promised starts.

    ``promises`` has all starts that a job was promised, in their order.
    """

    placed: list[tuple[int, int, Units]] = field(default_factory=list)
    promises: dict[int, list[int]] = field(default_factory=dict)


class Planner(ABC):
    """Keeps the nodes of running jobs, and knows whether the plan counts nodes or is kept for each node."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.per_node = False
        self.held: dict[int, Units] = {}
        self.promised: dict[int, Promise] = {}

    def asks_for_parts(self, jobs: Iterable[Job]) -> bool:
        """Return whether a job asks for parts of nodes, or for whole nodes that not every node is."""
        return not all(self.site.asks[job.id].is_whole and self._suits_all(job) for job in jobs)

    def _suits_all(self, job: Job) -> bool:
        return all(self.site.units_on(self.site.idle(), job, node) for node in self.site.nodes)

    def running(self, state: State) -> list[Occupation]:
        """Return what the running jobs occupy until their ends by estimate."""
        return [Occupation(one.start, one.end_by_estimate, one.job, self.held[one.job.id]) for one in state.running]

    def planned(self, job: Job) -> Occupation:
        """Return what a waiting job will occupy."""
        start, units = self.promised[job.id]
        return Occupation(start, start + job.estimate, job, units)

    def reserved(self) -> list[Occupation]:
        """Return the accepted reservations; those that have not begun may be without nodes."""
        return []

    @abstractmethod
    def freed(self, state: State, *, early: bool) -> None:
        """Apply the ends and cancellations of an instant; ``early`` if any job left before its end by estimate."""

    @abstractmethod
    def submitted(self, state: State, job: Job) -> None:
        """Add a job to the queue."""

    @abstractmethod
    def complete(self, state: State) -> None:
        """Complete the plan of an instant, and begin its reservations."""

    def run_pass(self, state: State) -> list[tuple[Job, Units]]:
        """Return the jobs whose planned start is now, in the order of the queue, with their nodes."""
        started: list[tuple[Job, Units]] = []
        for job in in_order(state):
            start, units = self.promised[job.id]
            if start == state.now:
                if units is None:
                    taken = {number for _, nodes in started for number in nodes}
                    idle = idle_nodes(self.site, [*self.running(state), *self.reserved()], state.now)
                    units = dict.fromkeys([number for number in idle if number not in taken][: job.width], 1)
                self.held[job.id] = units
                started.append((job, units))
                del self.promised[job.id]
        return started


class PlannedQueue(Planner):
    """A queue with conservative backfilling: every waiting job holds a promised start, which is never delayed."""

    def freed(self, state: State, *, early: bool) -> None:
        """Count nodes again if all jobs take whole nodes; compress if anything ended early."""
        waiting = {job.id for job in state.waiting}
        self.promised = {job_id: promise for job_id, promise in self.promised.items() if job_id in waiting}
        if not self.asks_for_parts([*state.waiting, *(one.job for one in state.running)]):
            self.per_node = False
            self.promised = {job_id: (start, None) for job_id, (start, _) in self.promised.items()}
        moved = early
        while moved:
            moved = False
            for job in in_order(state):
                old = self.promised.pop(job.id)
                new = self._earliest(state, job)
                assert new[0] <= old[0], "a promised start was delayed"
                self.promised[job.id] = new if new[0] < old[0] else old
                moved = moved or new[0] < old[0]

    def submitted(self, state: State, job: Job) -> None:
        """Promise the earliest start that leaves all promises in place."""
        if not self.per_node and self.asks_for_parts([job]):
            self.per_node = True
            for one in colour(self.site, [*self.running(state), *map(self.planned, state.waiting)]):
                if one.job.id in self.promised:
                    self.promised[one.job.id] = one.start, one.units
        self.promised[job.id] = self._earliest(state, job)
        state.waiting.append(job)

    def complete(self, state: State) -> None:
        """Do nothing: the promises are complete, and a queue has no reservations."""

    def _earliest(self, state: State, job: Job) -> Promise:
        others = [self.planned(other) for other in state.waiting if other.id in self.promised]
        return earliest(self.site, [*self.running(state), *others], job, state.now, per_node=self.per_node)


class PlannedSite(Planner):
    """A planning site: the plan is made again whenever something happens; reservations stay where they are."""

    def __init__(self, site: Site, backfill: str, limits: Sequence[Limit] = (), week_offset: int = 0) -> None:
        super().__init__(site)
        self.backfill = backfill
        self.limits = limits
        self.week_offset = week_offset
        self.accepted: dict[int | str, Occupation] = {}
        self.begun: set[int | str] = set()
        self.is_fresh = False

    def freed(self, state: State, *, early: bool) -> None:
        """Make the plan again at the next question."""
        self.is_fresh = False

    def submitted(self, state: State, job: Job) -> None:
        """Make the plan again at the next question."""
        self.is_fresh = False
        state.waiting.append(job)

    def requested(self, state: State, request: Reservation) -> Answer:
        """Accept or refuse a reservation of whole nodes by the plan with the jobs submitted so far."""
        if request.width > len(self.site.nodes):
            return Answer(accepted=False, start=None)
        self.is_fresh = False
        self._plan(state)
        asked = Job(RESERVED - len(self.accepted), 0, request.width, request.length, request.length)
        self.site.asks = {**self.site.asks, asked.id: Ask()}
        occupations = [*self.running(state), *self.reserved(), *map(self.planned, state.waiting)]
        not_before = max(request.start, state.now)
        start, units = earliest(self.site, occupations, asked, not_before, per_node=self.per_node)
        if start != request.start:
            return Answer(accepted=False, start=start)
        self.accepted[request.id] = Occupation(start, start + request.length, asked, units)
        return Answer(accepted=True, start=start)

    def reserved(self) -> list[Occupation]:
        """Return the accepted reservations; those that have not begun may be without nodes."""
        return list(self.accepted.values())

    def complete(self, state: State) -> None:
        """Make the plan, and give the lowest idle nodes to reservations that begin now and have no nodes."""
        self._plan(state)
        for key, one in self._by_start():
            if one.start == state.now:
                self.begun.add(key)
                if one.units is None:
                    idle = idle_nodes(self.site, [*self.running(state), *self.reserved()], state.now)
                    self.accepted[key] = one._replace(units=dict.fromkeys(idle[: one.job.width], 1))

    def _by_start(self) -> list[tuple[int | str, Occupation]]:
        return sorted(self.accepted.items(), key=lambda item: (item[1].start, item[0]))

    def _plan(self, state: State) -> None:
        """Place the waiting jobs in order, around the running jobs and the reservations."""
        if self.is_fresh:
            return
        self.is_fresh = True
        self._count_or_place_reservations(state)
        self.promised = {}
        not_before = state.now
        for place, job in enumerate(in_order(state)):
            self.promised[job.id] = self._earliest(state, job, not_before, in_order(state)[:place])
            if self.backfill == "none":
                not_before = self.promised[job.id][0]

    def _count_or_place_reservations(self, state: State) -> None:
        self.per_node = self.asks_for_parts([*state.waiting, *(one.job for one in state.running)])
        self.accepted = {key: one for key, one in self.accepted.items() if one.end > state.now}
        if not self.per_node:
            for key in self.accepted.keys() - self.begun:
                self.accepted[key] = self.accepted[key]._replace(units=None)
            return
        for key, one in self._by_start():
            if one.units is None:
                placed = [other for other in self.reserved() if other.units is not None]
                self.accepted[key] = colour(self.site, [*self.running(state), *placed, one])[-1]

    def _earliest(self, state: State, job: Job, not_before: int, ahead: Sequence[Job]) -> Promise:
        occupations = [*self.running(state), *self.reserved(), *map(self.planned, ahead)]
        known = {one.job.id for one in self.reserved()}
        counted = [
            availability.Occupation(one.start, one.end, one.job.width, None if one.job.id in known else one.job)
            for one in occupations
        ]
        # A week after the last end, every opening has come by once with nothing else in the way.
        until = max([not_before, *(other.end for other in occupations)]) + WEEK
        windows = [limit.window for limit in self.limits if limit.window is not None and applies(limit, job)]
        return earliest(
            self.site,
            occupations,
            job,
            not_before,
            per_node=self.per_node,
            allowed=lambda start: all(allows(limit, job, start, counted, self.week_offset) for limit in self.limits),
            openings=[when for window in windows for when in openings(window, not_before, until, self.week_offset)],
        )


def simulate_planned(
    jobs: Sequence[Job],
    planner: Planner,
    *,
    order: str = "fcfs",
    aging_ms: float = math.inf,
    reservations: Sequence[Reservation] = (),
    cancellations: Sequence[tuple[int, int]] = (),
    cancels_running: bool = True,
) -> PlannedOutcome:
    """Run jobs, each of which must fit on the idle site, and return the whole schedule.

    The parameters are those of `reference.simulation.simulate`.
    """
    state, outcome = State(len(planner.site.nodes), order, aging_ms), PlannedOutcome()
    calendar = {job.submit for job in jobs} | {one.request for one in reservations}
    calendar |= {when for when, _ in cancellations} | {one.start for one in reservations}
    while upcoming := [
        instant
        for instant in [
            *calendar,
            *(one.end for one in state.running),
            *(start for start, _ in planner.promised.values()),
        ]
        if state.now < instant < NEVER
    ]:
        state.now = min(upcoming)
        _end_and_cancel(state, planner, cancellations, outcome, cancels_running=cancels_running)
        for item in _submissions(jobs, reservations, state.now):
            if isinstance(item, Reservation):
                assert isinstance(planner, PlannedSite), "only planning has reservations"
                outcome.reservations[item.id] = (item, planner.requested(state, item))
            elif isinstance(planner, PlannedSite) and never_starts(item, planner.limits, planner.week_offset):
                outcome.refused[item.id] = "a limit never lets it start"
            else:
                planner.submitted(state, item)
        planner.complete(state)
        for job_id, (start, _) in planner.promised.items():
            outcome.promises.setdefault(job_id, []).append(start)
        for job, units in planner.run_pass(state):
            state.waiting.remove(job)
            state.running.append(Running(job, state.now))
            outcome.start[job.id] = state.now
            outcome.placed.append((state.now, job.id, planner.site.chunks(job, units)))
    assert not state.waiting, "the simulation stopped with jobs that wait"
    return outcome


def _end_and_cancel(
    state: State,
    planner: Planner,
    cancellations: Sequence[tuple[int, int]],
    outcome: Outcome,
    *,
    cancels_running: bool,
) -> None:
    """Remove the jobs that end or are cancelled now, and report that to the planner once."""
    ended = [one for one in state.running if one.end == state.now]
    cancelled = [job_id for when, job_id in cancellations if when == state.now]
    stopped = [one for one in state.running if cancels_running and one.job.id in cancelled and one not in ended]
    withdrawn = [job for job in state.waiting if job.id in cancelled]
    for one in [*ended, *stopped]:
        state.running.remove(one)
        outcome.end[one.job.id] = state.now
    for job in withdrawn:
        state.waiting.remove(job)
    for job_id in [*(one.job.id for one in stopped), *(job.id for job in withdrawn)]:
        outcome.cancelled[job_id] = state.now
    if ended or stopped or withdrawn:
        early = any(one.end_by_estimate > state.now for one in ended)
        planner.freed(state, early=early or bool(stopped or withdrawn))


def _submissions(jobs: Sequence[Job], reservations: Sequence[Reservation], now: int) -> list[Job | Reservation]:
    """Return what is submitted at an instant: the jobs by id, each request at its place among them."""
    arriving = sorted((job for job in jobs if job.submit == now), key=lambda job: job.id)
    requests = [one for one in reservations if one.request == now]
    sequence: list[Job | Reservation] = []
    for place in range(len(arriving) + 1):
        last = place == len(arriving)
        sequence += [
            one for one in requests if one.place == place or (last and (one.place is None or one.place > place))
        ]
        sequence += arriving[place : place + 1]
    return sequence

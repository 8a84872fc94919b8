"""A queue whose nodes have cores, memory and GPUs (docs/resources.md, "Rules"), written the slow and obvious way.

Amounts are kept in one dictionary for each node. A job that gives out whole nodes has an `Ask` without needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from reference.levels import Levels
from reference.model import NEVER, Job, Running, State
from reference.ordering import in_order

FIRST = ("cores", "memory", "gpus")
"""The resources in the order that decides ties; others follow by name."""

Free = dict[int, dict[str, int]]
"""How much of each resource is free, by node."""

Units = dict[int, int]
"""How many units of a job are on which node."""


@dataclass(frozen=True)
class Ask:
    """What a job asks for: for each chunk, and of its nodes."""

    needs: Mapping[str, int] = field(default_factory=dict)
    labels: frozenset[str] = frozenset()
    gpu_type: str = ""
    exclusive: bool = False
    per_node: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether each chunk is a whole node."""
        return not self.needs


@dataclass(frozen=True)
class Node:
    """One node; its labels include the name of its kind."""

    number: int
    has: Mapping[str, int]
    labels: frozenset[str]
    gpu_type: str = ""


@dataclass
class CountedOutcome:
    """A schedule: each job's start, end and number of chunks by node, the evictions, and each head's shadow times."""

    start: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    placed: list[tuple[int, int, Units]] = field(default_factory=list)
    evictions: list[tuple[int, int, int]] = field(default_factory=list)
    shadows: dict[int, list[int]] = field(default_factory=dict)


class Site:
    """The nodes, what each job asks for, and rules 1 to 4."""

    def __init__(self, nodes: Sequence[Node], asks: Mapping[int, Ask], placement: str) -> None:
        self.nodes, self.asks, self.placement = nodes, asks, placement

    def idle(self) -> Free:
        """Return the free amounts of the idle site."""
        return {node.number: dict(node.has) for node in self.nodes}

    def units(self, job: Job) -> int:
        """Return the number of units of a job."""
        return job.width // (self.asks[job.id].per_node or 1)

    def unit_needs(self, job: Job) -> dict[str, int]:
        """Return what a unit of a job asks for."""
        ask = self.asks[job.id]
        return {name: amount * (ask.per_node or 1) for name, amount in ask.needs.items() if amount}

    def units_on(self, free: Free, job: Job, node: Node) -> int:
        """Return how many units of a job fit on a node."""
        ask = self.asks[job.id]
        if not ask.labels <= node.labels or ask.gpu_type not in ("", node.gpu_type):
            return 0
        if (ask.exclusive or ask.is_whole) and free[node.number]["cores"] < node.has["cores"]:
            return 0
        if ask.is_whole:
            return 1
        most = min(free[node.number].get(name, 0) // amount for name, amount in self.unit_needs(job).items())
        return min(most, 1) if ask.per_node else most

    def fits(self, free: Free, job: Job) -> bool:
        """Whether a job fits."""
        return sum(self.units_on(free, job, node) for node in self.nodes) >= self.units(job)

    def scarcest(self, job: Job) -> str:
        """Return the resource of which a unit asks for the largest share of the whole site."""
        needs = self.unit_needs(job)
        names = [*FIRST, *sorted(needs.keys() - {*FIRST})]
        total = {name: sum(node.has.get(name, 0) for node in self.nodes) for name in names}
        shares = [Fraction(needs.get(name, 0), total[name]) if total[name] else Fraction(0) for name in names]
        return names[shares.index(max(shares))]

    def place(self, free: Free, job: Job) -> Units | None:
        """Return a job's nodes, or None if it does not fit."""
        if not self.fits(free, job):
            return None
        sign = {"best-fit": 1, "worst-fit": -1, "first-fit": 0}[self.placement]
        if self.asks[job.id].is_whole:
            sign = 0
        scarcest = self.scarcest(job)
        able = [node for node in self.nodes if self.units_on(free, job, node)]
        able.sort(key=lambda node: (sign * free[node.number].get(scarcest, 0), node.number))
        left, placed = self.units(job), {}
        for node in able:
            if left:
                placed[node.number] = min(left, self.units_on(free, job, node))
                left -= placed[node.number]
        return placed

    def take(self, free: Free, job: Job, placed: Units) -> Free:
        """Return what is left if a job holds its units."""
        left = {number: dict(amounts) for number, amounts in free.items()}
        ask = self.asks[job.id]
        for number, units in placed.items():
            if ask.exclusive or ask.is_whole:
                left[number] = dict.fromkeys(left[number], 0)
            for name, amount in () if ask.exclusive or ask.is_whole else self.unit_needs(job).items():
                left[number][name] -= units * amount
        return left

    def chunks(self, job: Job, placed: Units) -> Units:
        """Return the number of a job's chunks on each of its nodes."""
        return {number: units * (self.asks[job.id].per_node or 1) for number, units in placed.items()}


@dataclass
class CountedQueue:
    """Rule 5, or starts in the order of the queue, with rule 7 for levels."""

    site: Site
    backfill: str = "easy"
    choice: str = "first-fit"
    slack: float = 0.5
    levels: Levels | None = None
    held: dict[int, Units] = field(default_factory=dict)
    promises: dict[int, int] = field(default_factory=dict)

    def free_without(self, running: Iterable[Running]) -> Free:
        """Return what is free if only these jobs run."""
        free = self.site.idle()
        for one in running:
            free = self.site.take(free, one.job, self.held[one.job.id])
        return free

    def run_pass(self, state: State, outcome: CountedOutcome) -> None:
        """Start the jobs that may start."""
        queue = in_order(state)
        running = state.running

        def free_at(instant: int) -> Free:
            return self.free_without(one for one in running if one.end_by_estimate > instant)

        def start(job: Job) -> None:
            placed = self.site.place(self.free_without(running), job)
            assert placed is not None
            self.held[job.id] = placed
            running.append(Running(job, state.now))
            queue.remove(job)
            state.waiting.remove(job)
            outcome.start[job.id] = state.now
            outcome.placed.append((state.now, job.id, self.site.chunks(job, placed)))

        while queue and self.site.fits(self.free_without(running), queue[0]):
            start(queue[0])
        if not queue or self.backfill == "none":
            return
        head = queue[0]
        ends = sorted({one.end_by_estimate for one in running})
        shadow = next((end for end in ends if self.site.fits(free_at(end), head)), NEVER)
        outcome.shadows.setdefault(head.id, []).append(shadow)
        self.promises[head.id] = min(shadow, self.promises.get(head.id, shadow))
        limit = shadow
        if self.backfill == "slack":
            limit = max(shadow, self.promises[head.id] + math.floor(self.slack * head.estimate))

        def may_start(job: Job) -> bool:
            placed = self.site.place(self.free_without(running), job)
            if placed is None or state.now + job.estimate <= limit:
                return placed is not None
            return self.site.fits(self.site.take(free_at(limit), job, placed), head)

        while able := [job for job in queue[1:] if may_start(job)]:
            widest = max(job.width for job in able) if self.choice == "best-fit" else able[0].width
            start(next(job for job in able if job.width == widest))

    def evict(self, state: State, outcome: CountedOutcome) -> None:
        """Evict jobs for the jobs from the head on, until one of them still does not fit (rule 7)."""
        assert self.levels is not None
        place = 0
        while place < len(state.waiting):
            heads = in_order(state)[: place + 1]
            if not self.all_fit(state.running, heads):
                victims = self.victims(state, heads)
                if not victims:
                    return
                for one in victims:
                    self._evict(state, outcome, one, heads[-1])
            place += 1

    def all_fit(self, running: Iterable[Running], heads: Sequence[Job]) -> bool:
        """Whether jobs fit one after the other beside the running jobs."""
        free = self.free_without(running)
        for job in heads:
            placed = self.site.place(free, job)
            if placed is None:
                return False
            free = self.site.take(free, job, placed)
        return True

    def victims(self, state: State, heads: Sequence[Job]) -> list[Running]:
        """Return the jobs to evict so that the heads fit; empty if that is impossible or not worth it."""
        levels, head = self.levels, heads[-1]
        assert levels is not None

        def fit_without(gone: Sequence[Running]) -> bool:
            return self.all_fit([one for one in state.running if one not in gone], heads)

        able = [one for one in state.running if levels.may_evict(state, head, one.job)]
        able = [one for one in able if one.end_by_estimate > state.now]
        able.sort(key=lambda one: (-levels.level_of(one.job), -one.start, -one.job.id))
        count = next((count for count in range(1, len(able) + 1) if fit_without(able[:count])), None)
        if count is None:
            return []
        if fit_without([one for one in state.running if one.end_by_estimate - state.now < levels.least_gain]):
            return []
        picked = able[:count]
        for one in picked[:]:
            rest = [other for other in picked if other is not one]
            if fit_without(rest):
                picked = rest
        return picked

    def _evict(self, state: State, outcome: CountedOutcome, one: Running, by: Job) -> None:
        assert self.levels is not None
        state.running.remove(one)
        del outcome.start[one.job.id], self.held[one.job.id]
        outcome.placed = [entry for entry in outcome.placed if entry[1] != one.job.id]
        outcome.evictions.append((state.now, one.job.id, by.id))
        self.levels.times[one.job.id] += 1
        job = one.job
        if self.levels.keeps_work:
            state.whole.setdefault(job.id, job)
            done = state.now - one.start
            job = replace(job, estimate=job.estimate - done, run=job.run - done)
        self.promises.pop(job.id, None)
        state.waiting.append(job)


def simulate_counted(
    jobs: Iterable[Job],
    queue: CountedQueue,
    *,
    order: str = "fcfs",
    aging: float = math.inf,
    cancellations: Iterable[tuple[int, int]] = (),
) -> CountedOutcome:
    """Run jobs, each of which fits on the idle site; cancellations (instant, job id) only affect jobs that wait."""
    jobs, cancellations = list(jobs), list(cancellations)
    state, outcome = State(len(queue.site.nodes), order, aging), CountedOutcome()
    levels = queue.levels
    if levels is not None:
        state.rank = lambda job: (levels.level_of(job),)
    calendar = {job.submit for job in jobs} | {instant for instant, _ in cancellations}
    while coming := {t for t in calendar | {one.end for one in state.running} if t > state.now}:
        state.now = min(coming)
        for one in [one for one in state.running if one.end == state.now]:
            state.running.remove(one)
            del queue.held[one.job.id]
            outcome.end[one.job.id] = state.now
        cancelled = {job_id for instant, job_id in cancellations if instant == state.now}
        state.waiting[:] = [job for job in state.waiting if job.id not in cancelled]
        state.waiting += [job for job in jobs if job.submit == state.now]
        if levels is not None:
            queue.evict(state, outcome)
        queue.run_pass(state, outcome)
    assert not [*state.waiting, *state.running], "the simulation stopped too early"
    return outcome

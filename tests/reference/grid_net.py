"""The grid under full control with a network between its sites (docs/grid.md, "With a network").

Everything is worked out again from the running jobs at every instant, in whole numbers and fractions. What the network
itself says (factors, transfers, flows, the choice of sites) is docs/netmodel.md's, and is asked of a `Network`; jobs
and times are those of `reference.model`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any, Protocol

from reference.grid import Fragments
from reference.grid_conservative import Reserved, free, least_free
from reference.model import Job
from reference.ordering import key_of

MOST_FACTOR = 10_001.0
LONGEST = 10**14


@dataclass(frozen=True)
class Flow:
    """What one part of a job sends to another: from site to site, and how much it can use."""

    origin: int
    target: int
    demand: float


class Network(Protocol):
    """The links in one period."""

    capacity: Sequence[float]

    def links(self, origin: int, target: int) -> tuple[int, ...] | None:
        """Return the links from one site to another; None if there is no path."""

    def factor(self, job: int, fragments: Fragments) -> float:
        """Return by which factor a job grows."""

    def choose(self, job: int, estimate: int, available: Sequence[int], delays: Sequence[float]) -> Fragments | None:
        """Return where a job ends first."""

    def transfer(self, origin: int, target: int, n_bytes: int) -> int | None:
        """Return how long data takes; None if there is no path."""

    def alone(self, origin: int, target: int) -> float:
        """Return the rate of one transfer that has the links for itself."""

    def flows(self, job: int, fragments: Fragments, factor: float) -> list[Flow]:
        """Return what a job sends."""


@dataclass(frozen=True)
class Data:
    """What a job reads and writes, and where that lies."""

    input_bytes: int
    input_site: int
    output_bytes: int
    output_site: int


@dataclass(frozen=True, kw_only=True)
class NetRules:
    """What a simulation was asked for."""

    nodes: tuple[int, ...]
    mode: str = "adaptive"
    order: str = "fcfs"
    backfill: str = "easy"
    head_reservation: str = "anywhere"
    selection: str = "best-fit"
    lower_bound: int = 0
    max_fragments: Sequence[tuple[int, int]] = ()
    contention: str = "none"
    split: str = "fewest"
    max_split_factor: float = MOST_FACTOR
    staging: str = "none"
    data: dict[int, Data] = field(default_factory=dict)
    draws: dict[int, float] = field(default_factory=dict)


@dataclass
class Task:
    """Something that takes time on the links: the work of a job, or a transfer; what is left of it, and its rate."""

    site: int
    left: Fraction
    flows: list[Flow]
    since: int = -1
    rate: Fraction = Fraction(1)

    def left_at(self, now: int) -> Fraction:
        """Return what is left at an instant."""
        return max(Fraction(0), self.left - self.rate * (now - self.since))

    @property
    def end(self) -> float:
        """The first whole millisecond by which nothing is left; infinity if it stands still."""
        if self.rate == 0:
            return math.inf
        return self.since + math.ceil(self.left / self.rate)


@dataclass
class NetRunning:
    """A job that runs: its input comes, it works, its output goes; ``tasks`` are what it does now."""

    job: Job
    fragments: Fragments
    expected: int
    spare: int
    work: Task
    outputs: list[Task]
    tasks: list[Task]
    work_began: int = -1
    work_ended: int = -1

    def left_by_estimate(self, now: int) -> tuple[Fraction, Fraction]:
        """Return what is left by the estimate, and the rate at which that goes on: that of the task that ends last."""
        last = min(self.tasks, key=lambda task: (-task.end, task.site))
        left = last.left_at(now)
        if last is not self.work and self.work_began < 0:
            left += self.work.left
        if self.work_ended < 0:
            left += self.spare + max((task.left for task in self.outputs), default=Fraction(0))
        return left, last.rate


@dataclass
class NetOutcome:
    """What a simulation comes to, by job id."""

    start: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    fragments: dict[int, Fragments] = field(default_factory=dict)
    factor: dict[int, float] = field(default_factory=dict)
    length: dict[int, int] = field(default_factory=dict)
    moved: dict[int, int] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)


@dataclass
class Moment:
    """An instant at which a pass is made: what runs, the links as they are, and input that moves ahead of its job."""

    rules: NetRules
    network: Network
    now: int
    running: list[NetRunning]
    ahead: dict[int, list[Task]] = field(default_factory=dict)

    @property
    def plays_data(self) -> bool:
        """Whether transfers are flows on the links."""
        return self.rules.contention != "none" and self.rules.staging != "none"

    def transfer(self, origin: int, target: int, site: int, n_bytes: int) -> Task | None:
        """Return a transfer that is to set out; None if there is no path, or nothing to move."""
        time = self.network.transfer(origin, target, n_bytes)
        if not time or time > LONGEST:
            return None
        return Task(site, Fraction(time), [Flow(origin, target, self.network.alone(origin, target))])

    def set_out(self, tasks: list[Task]) -> list[Task]:
        """Let tasks begin."""
        for task in tasks:
            task.since = self.now
        return tasks

    def inputs(self, job: Job, sites: Iterable[int]) -> list[Task]:
        """Return the transfers of the input of a job to some sites."""
        data = self.rules.data[job.id]
        return [
            task for site in sites if (task := self.transfer(data.input_site, site, site, data.input_bytes)) is not None
        ]

    def outputs(self, job: Job, sites: Iterable[int]) -> list[Task]:
        """Return the transfers of the output of a job from some sites."""
        data = self.rules.data[job.id]
        return [
            task
            for site in sites
            if (task := self.transfer(site, data.output_site, site, data.output_bytes)) is not None
        ]

    def may_be_split(self, job: Job) -> bool:
        """Return whether a job may be split."""
        rules = self.rules
        return rules.mode != "sharing" and (job.width > rules.lower_bound or job.width > max(rules.nodes))

    def free_at(self, instant: float) -> list[int]:
        """Return what is free on each site by the expected ends."""
        free = list(self.rules.nodes)
        for one in self.running:
            if one.expected > instant:
                for site, width in one.fragments:
                    free[site] -= width
        return free

    def delay(self, job: Job, site: int, instant: int) -> float:
        """Return how long the data of a job keeps a site on which it starts at an instant."""
        if self.rules.staging == "none":
            return 0
        data = self.rules.data[job.id]
        there = self.network.transfer(data.input_site, site, data.input_bytes)
        back = self.network.transfer(site, data.output_site, data.output_bytes)
        if there is None or back is None or max(there, back) > LONGEST:
            return math.inf
        if self.rules.staging == "prefetch":
            there = max(0, job.submit + there - instant)
        return there + back

    def takes(self, job: Job, time: int, fragments: Fragments, instant: int) -> float:
        """Return how long a job takes that takes so long on one site; infinity if it cannot be there."""
        delay = max(self.delay(job, site, instant) for site, _ in fragments)
        factor = self.network.factor(job.id, fragments)
        if factor > self.rules.max_split_factor or delay + job.estimate * factor > LONGEST:
            return math.inf
        return delay + math.ceil(time * factor)

    def whole(self, job: Job, instant: int, shadow: float, extra: Sequence[int] | None) -> Fragments | None:
        """Return on which one site a job is placed."""
        free = self.free_at(instant)
        delays: dict[int, float] = {}
        for site in range(len(free)):
            delay = self.delay(job, site, instant)
            late = extra is not None and instant + delay + job.estimate > shadow
            available = min(free[site], extra[site]) if late and extra is not None else free[site]
            if available >= job.width and delay < math.inf:
                delays[site] = delay
        fitting = [site for site in delays if delays[site] == min(delays.values())]
        return ((self.select(job, fitting, free), job.width),) if fitting else None

    def select(self, job: Job, fitting: Sequence[int], free: Sequence[int]) -> int:
        """Return the one site for a job, among those that come into question."""
        if self.rules.selection == "random":
            return fitting[math.floor(self.rules.draws[job.id] * len(fitting))]

        def rank(site: int) -> Fraction:
            if self.rules.selection == "best-fit":
                return Fraction(free[site])
            if self.rules.selection == "biggest-free":
                return Fraction(-free[site])
            if self.rules.selection == "equal-util":
                return Fraction(self.rules.nodes[site] - free[site], self.rules.nodes[site])
            return Fraction(0)

        return min(fitting, key=lambda site: (rank(site), site))

    def parts(self, job: Job, instant: int, available: Sequence[int]) -> Fragments | None:
        """Return how a job is split at an instant, if that is to be."""
        fragments = self.split(job, instant, available)
        if fragments is not None and self.rules.mode == "adaptive":
            length = self.takes(job, job.estimate, fragments, instant)
            if not instant + length < self.single_end(job, instant):
                return None
        return fragments

    def split(self, job: Job, instant: int, available: Sequence[int]) -> Fragments | None:
        """Return how a job could be split at an instant."""
        rules = self.rules
        if not self.may_be_split(job):
            return None
        allowed = next((count for bound, count in rules.max_fragments if job.width <= bound), math.inf)
        fragments: Fragments | None = None
        if rules.split == "earliest-end":
            delays = [self.delay(job, site, instant) for site in range(len(rules.nodes))]
            fragments = self.network.choose(job.id, job.estimate, available, delays)
            if fragments is None:
                return None
        if fragments is None or len(fragments) > allowed:
            fragments = fewest(job.width, available)
        if fragments is None or len(fragments) > allowed:
            return None
        return None if self.takes(job, job.estimate, fragments, instant) == math.inf else fragments

    def single_end(self, job: Job, instant: int) -> float:
        """Return the earliest end on a single site from an instant on."""
        ends = [math.inf]
        for start in sorted({instant, *(one.expected for one in self.running if one.expected > instant)}):
            free = self.free_at(start)
            ends += [
                start + self.delay(job, site, start) + job.estimate
                for site in range(len(free))
                if free[site] >= job.width
            ]
        return min(ends)

    def place(self, job: Job, instant: int) -> Fragments | None:
        """Return where a job is placed with all that is free at an instant."""
        return self.whole(job, instant, math.inf, None) or self.parts(job, instant, self.free_at(instant))

    def shadow_of(self, head: Job) -> tuple[float, Fragments]:
        """Return when and where the head can be placed by the expected ends; never, nowhere if the links hinder it."""
        if self.rules.head_reservation == "nothing":
            return math.inf, ()
        alone = self.rules.head_reservation == "single-site" and head.width <= max(self.rules.nodes)
        for instant in sorted({one.expected for one in self.running}):
            if fragments := (self.whole(head, instant, math.inf, None) if alone else self.place(head, instant)):
                return instant, fragments
        return math.inf, ()

    def behind_head(self, job: Job, shadow: float, extra: Sequence[int]) -> Fragments | None:
        """Return where a candidate is placed."""
        if fragments := self.whole(job, self.now, shadow, extra):
            return fragments
        free = self.free_at(self.now)
        fragments = self.parts(job, self.now, free)
        if fragments and self.now + self.takes(job, job.estimate, fragments, self.now) <= shadow:
            return fragments
        return self.parts(job, self.now, [min(pair) for pair in zip(free, extra, strict=True)])


def fewest(width: int, available: Sequence[int]) -> Fragments | None:
    """Return the fragments of a job on the sites with the most nodes; None if they do not suffice."""
    fragments: list[tuple[int, int]] = []
    for site in sorted(range(len(available)), key=lambda site: (-available[site], site)):
        part = min(available[site], width)
        if part > 0:
            fragments.append((site, part))
            width -= part
    return None if width > 0 else tuple(fragments)


@dataclass
class Reservations:
    """What is reserved for the jobs that wait, with backfilling ``conservative``; some have no place as yet."""

    moment: Moment
    reserved: dict[int, Reserved] = field(default_factory=dict)

    def held(self) -> list[Reserved]:
        """Return all that is taken from now on."""
        runs = [Reserved(self.moment.now, one.expected, one.fragments) for one in self.moment.running]
        return runs + list(self.reserved.values())

    def place(self, job: Job, latest_end: float) -> Reserved | None:
        """Return the preferred place of a job, among those that end by an instant."""
        moment, held = self.moment, self.held()
        rules: Any = moment.rules
        later = {instant for one in held for instant in (one.start, one.end) if instant > moment.now}
        instants = sorted({moment.now, *later})
        parts = None
        for start in instants:
            least = least_free(rules, held, start, start + job.estimate)
            if fitting := [site for site, nodes in enumerate(least) if nodes >= job.width]:
                site = moment.select(job, fitting, free(rules, held, start))
                whole = Reserved(start, start + job.estimate, ((site, job.width),))
                break
            parts = parts or self.split_at(job, held, start)
        else:
            whole = None
        if whole is not None and whole.end > latest_end:
            whole = None
        if parts is None or parts.end > latest_end:
            return whole
        return whole if whole is not None and rules.mode == "adaptive" and parts.end >= whole.end else parts

    def split_at(self, job: Job, held: Sequence[Reserved], start: int) -> Reserved | None:
        """Return the place of a job that is split and starts at an instant."""
        rules: Any = self.moment.rules
        length = job.estimate
        while fragments := self.moment.split(job, start, least_free(rules, held, start, start + length)):
            needed = int(self.moment.takes(job, job.estimate, fragments, start))
            if needed <= length:
                return Reserved(start, start + needed, fragments)
            length = needed
        return None

    def reserve(self, job: Job) -> None:
        """Reserve a job its preferred place, if it has one."""
        if (place := self.place(job, math.inf)) is not None:
            self.reserved[job.id] = place

    def follow(self, waiting: Sequence[Job], new: Sequence[Job], *, is_early: bool, breaks: bool) -> None:
        """Bring the reservations up to now; the jobs that wait stand in the order of the queue."""
        if breaks:
            self.reserved.clear()
            for job in waiting:
                self.reserve(job)
            return
        if is_early:
            self.compress([job for job in waiting if job not in new])
        for job in sorted(new, key=lambda job: job.id):
            self.reserve(job)

    def compress(self, waiting: Sequence[Job]) -> None:
        """Move reservations to better places until none moves."""
        moved = True
        while moved:
            moved = False
            for job in waiting:
                old = self.reserved.pop(job.id, None)
                place = self.place(job, math.inf if old is None else old.end)
                if place is not None and (
                    old is None or (place.end, len(place.fragments)) < (old.end, len(old.fragments))
                ):
                    self.reserved[job.id] = place
                    moved = True
                elif old is not None:
                    self.reserved[job.id] = old


def simulate_with_net(jobs: Sequence[Job], rules: NetRules, periods: Sequence[tuple[int, Network]]) -> NetOutcome:
    """Run jobs on several sites with links between them, whose state changes at the beginning of each period."""
    outcome = NetOutcome()
    moment = Moment(rules, periods[0][1], -1, [])
    plan = Reservations(moment) if rules.backfill == "conservative" else None
    waiting: list[Job] = []
    to_come = sorted(jobs, key=lambda job: (job.submit, job.id))
    changes = list(periods[1:])

    @cache
    def is_possible(job: Job, network: Network) -> bool:
        return Moment(rules, network, 0, []).place(job, job.submit) is not None

    while to_come or waiting or moment.running:
        upcoming = [job.submit for job in to_come] + [at for at, _ in changes]
        upcoming += [task.end for one in moment.running for task in one.tasks]
        upcoming += [task.end for tasks in moment.ahead.values() for task in tasks if task.left > 0]
        if plan is not None:
            upcoming += [one.start for one in plan.reserved.values()]
        now = moment.now = int(min(upcoming))
        expected = {one.job.id: one.expected for one in moment.running}
        decides = end_tasks(moment, outcome) or not moment.plays_data
        early = expected.keys() - {one.job.id for one in moment.running}
        is_early, breaks = any(expected[job_id] > now for job_id in early), False
        if changes and changes[0][0] == now:
            moment.network = changes.pop(0)[1]
            decides = breaks = True
        new = [job for job in to_come if job.submit == now]
        waiting += new
        decides = decides or bool(new)
        to_come = [job for job in to_come if job.submit > now]
        networks = [moment.network, *(network for _, network in changes)]
        for job in list(waiting):
            if not any(is_possible(job, network) for network in networks):
                waiting.remove(job)
                moment.ahead.pop(job.id, None)
                if plan is not None:
                    plan.reserved.pop(job.id, None)
                outcome.refused.add(job.id)
        if moment.plays_data and rules.staging == "prefetch":
            for job in new:
                if job in waiting:
                    sites = [s for s, nodes in enumerate(rules.nodes) if nodes >= job.width or moment.may_be_split(job)]
                    moment.ahead[job.id] = moment.set_out(moment.inputs(job, sites))
        if decides:
            for one in moment.running:
                if one.expected <= now:
                    breaks = True
                    left, rate = one.left_by_estimate(now)
                    one.expected = now + math.ceil(left / (rate or 1))
            waiting.sort(key=lambda job: (key_of(job, rules.order, math.inf), job.submit, job.id))
            if plan is None:
                run_pass(moment, waiting, outcome)
            else:
                plan.follow(waiting, [job for job in new if job in waiting], is_early=is_early, breaks=breaks)
                for job in [job for job in waiting if job.id in plan.reserved]:
                    if plan.reserved[job.id].start == now:
                        begin(moment, job, plan.reserved.pop(job.id).fragments, waiting, outcome)
        share(moment)
    return outcome


def end_tasks(moment: Moment, outcome: NetOutcome) -> bool:
    """End what is over now, and begin what follows; return whether a job has ended."""
    now, ended = moment.now, False
    for tasks in moment.ahead.values():
        for task in tasks:
            if task.left > 0 and task.end == now:
                task.left, task.flows = Fraction(0), []
    for one in list(moment.running):
        one.tasks = [task for task in one.tasks if task.end > now]
        if not one.tasks and one.work_began < 0:
            one.work_began = now
            one.tasks = moment.set_out([one.work])
        elif not one.tasks and one.work_ended < 0:
            one.work_ended = now
            one.tasks = moment.set_out(one.outputs)
        if not one.tasks:
            moment.running.remove(one)
            outcome.end[one.job.id] = now
            outcome.moved[one.job.id] += one.work_began - outcome.start[one.job.id] + now - one.work_ended
            ended = True
    return ended


def run_pass(moment: Moment, waiting: list[Job], outcome: NetOutcome) -> None:
    """Start what starts now, and take it out of the queue."""
    while waiting and (fragments := moment.place(waiting[0], moment.now)):
        begin(moment, waiting[0], fragments, waiting, outcome)
    if not waiting or moment.rules.backfill == "none":
        return
    shadow, reserved = moment.shadow_of(waiting[0])
    extra = moment.free_at(shadow)
    for site, width in reserved:
        extra[site] -= width
    for job in waiting[1:]:
        fragments = moment.behind_head(job, shadow, extra)
        if fragments and begin(moment, job, fragments, waiting, outcome).expected > shadow:
            for site, width in fragments:
                extra[site] -= width


def begin(moment: Moment, job: Job, fragments: Fragments, waiting: list[Job], outcome: NetOutcome) -> NetRunning:
    """Start a job that waits."""
    by_estimate = moment.takes(job, job.estimate, fragments, moment.now)
    length = int(moment.takes(job, job.length, fragments, moment.now))
    factor = moment.network.factor(job.id, fragments)
    sites = [site for site, _ in fragments]
    moved = int(max(moment.delay(job, site, moment.now) for site in sites))
    flows = moment.network.flows(job.id, fragments, factor) if len(fragments) > 1 else []
    one = NetRunning(
        job=job,
        fragments=fragments,
        expected=moment.now + int(by_estimate),
        spare=int(by_estimate) - length,
        work=Task(-1, Fraction(length - (moved if moment.plays_data else 0)), flows),
        outputs=moment.outputs(job, sites) if moment.plays_data else [],
        tasks=inputs_of(moment, job, sites) if moment.plays_data else [],
    )
    if not one.tasks:
        one.work_began = moment.now
        one.tasks = moment.set_out([one.work])
    waiting.remove(job)
    moment.running.append(one)
    outcome.moved[job.id] = 0 if moment.plays_data else moved
    outcome.start[job.id], outcome.fragments[job.id] = moment.now, fragments
    outcome.factor[job.id], outcome.length[job.id] = factor, length
    return one


def inputs_of(moment: Moment, job: Job, sites: Sequence[int]) -> list[Task]:
    """Return the input of a job that starts on some sites, as far as it is not there; none goes to others any more."""
    ahead = {task.site: task for task in moment.ahead.pop(job.id, [])}
    missing = [site for site in sites if site not in ahead]
    return moment.set_out(moment.inputs(job, missing)) + [
        ahead[site] for site in sites if site in ahead and ahead[site].left > 0
    ]


def share(moment: Moment) -> None:
    """Share the links among all that runs; under static contention what has just begun, or stands still, feels it."""
    if moment.rules.contention == "none":
        return
    tasks = [task for one in moment.running for task in one.tasks]
    tasks += [task for ahead in moment.ahead.values() for task in ahead if task.left > 0]
    flows = [flow for task in tasks for flow in task.flows]
    routes = [moment.network.links(flow.origin, flow.target) for flow in flows]
    rates = max_min(routes, [flow.demand for flow in flows], moment.network.capacity)
    for one in tasks:
        own = [rates.pop(0) for _ in one.flows]
        if moment.rules.contention == "static" and one.since != moment.now and one.rate > 0:
            continue
        slowdown: float = 1.0
        for flow, rate in zip(one.flows, own, strict=True):
            if rate < Fraction(flow.demand):
                slowdown = max(slowdown, math.inf if rate == 0 else flow.demand / float(rate))
        one.left = one.left_at(moment.now)
        one.since = moment.now
        one.rate = Fraction(0 if slowdown == math.inf else max(1, round(65536 / slowdown)), 65536)


def max_min(
    routes: Sequence[tuple[int, ...] | None], demand: Sequence[float], capacity: Sequence[float]
) -> list[Fraction]:
    """Return the max-min fair rates: all rise together until a link is full or a flow has all it can use."""
    rate = [Fraction(0)] * len(routes)
    rising = [number for number, route in enumerate(routes) if route is not None]
    while rising:
        steps = [Fraction(demand[number]) - rate[number] for number in rising]
        left = {}
        for link in sorted({link for number in rising for link in routes[number] or ()}):
            crossing = [number for number, route in enumerate(routes) if link in (route or ())]
            left[link] = Fraction(capacity[link]) - sum((rate[number] for number in crossing), Fraction(0))
            steps.append(left[link] / sum(number in rising for number in crossing))
        step = min(steps)
        for number in rising:
            rate[number] += step
        for link in left:
            left[link] -= step * sum(link in (routes[number] or ()) for number in rising)
        rising = [
            number
            for number in rising
            if rate[number] < Fraction(demand[number]) and all(left[link] > 0 for link in routes[number] or ())
        ]
    return rate

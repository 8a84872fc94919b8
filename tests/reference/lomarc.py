"""A slow reference for shared nodes and LOMARC, written from docs/sharing.md: plain objects, worked out again.

It shares no code with the project. Options are those of the page, under its names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

ONE = 2**16
CPU, NETWORK, DISK = "cpu", "network", "disk"
SLACK = 1e-9


@dataclass(frozen=True)
class Kind:
    """Nodes that are alike."""

    count: int
    cores: int = 1
    threads: int = 2
    memory: float = 1.0
    hyperthreaded: bool = True


@dataclass(frozen=True)
class Options:
    """How the site schedules."""

    coscheduling: str = "lomarc"
    heuristic: str = "u1"
    max_slowdown: float = 1.6
    short_up_to: int = 60_000
    medium_up_to: int = 3_600_000
    aging: float | None = None
    load_threshold: float = 0.2
    partners: int | None = None
    backfill: str = "easy"
    joins_behind: bool = True
    formula: str = "whole"
    cpu_factors: tuple[tuple[float, ...], ...] = ((1.4, 1.4), (1.4, 2.0))
    measured: tuple[tuple[float, ...], ...] = ((1.0,),)
    paging: float = 2.5


@dataclass(eq=False)
class Job:
    """A job: what is known of it, and how it fares."""

    id: int
    submit: int
    width: int
    estimate: int
    run: int
    cpu: float
    network: float
    disk: float
    memory: float
    cpu_kind: int = 0
    cores: int = 1
    row: int = 0
    start: int | None = None
    end: int | None = None
    nodes: list[Node] = field(default_factory=list)
    done: int = 0
    rate: int = ONE
    slowdown: float = 1.0

    @property
    def bound(self) -> str:
        """What takes most of its time."""
        parts = {CPU: self.cpu, NETWORK: self.network, DISK: self.disk}
        return max(parts, key=lambda name: parts[name])

    def left(self) -> int:
        """Work left of its estimate, in 2**-16 ms."""
        return max(0, self.estimate * ONE - self.done)

    def end_by_estimate(self, now: int) -> int:
        """Return the end if the present rate lasted."""
        return now + -(-self.left() // self.rate)

    def real_end(self, now: int) -> int:
        """Return the end if the present rate lasted, as only the simulation knows it."""
        return now + -(-max(0, self.run * ONE - self.done) // self.rate)


@dataclass(eq=False)
class Node:
    """A node: for each core the threads, each with a job or None."""

    number: int
    kind: Kind
    cores: list[list[Job | None]]

    def jobs(self) -> list[Job]:
        """Return the jobs here, core after core."""
        found: list[Job] = []
        for job in (job for core in self.cores for job in core if job is not None):
            if job not in found:
                found.append(job)
        return found

    def usable(self, job: Job) -> bool:
        """Whether it has the cores and the memory."""
        return job.cores <= self.kind.cores and job.memory <= self.kind.memory + SLACK

    def put(self, job: Job) -> None:
        """Give a job the cores with the fewest jobs."""
        free = [number for number, core in enumerate(self.cores) if None in core]
        free.sort(key=lambda number: (sum(one is not None for one in self.cores[number]), number))
        for number in free[: job.cores]:
            core = self.cores[number]
            core[core.index(None)] = job

    def take_off(self, job: Job) -> None:
        """Take a job off."""
        self.cores = [[None if one is job else one for one in core] for core in self.cores]


class Site:
    """One site, and the pass."""

    def __init__(self, kinds: Sequence[Kind], options: Options) -> None:
        self.options = options
        self.nodes: list[Node] = []
        for kind in kinds:
            for _ in range(kind.count):
                cores: list[list[Job | None]] = [[None] * kind.threads for _ in range(kind.cores)]
                self.nodes.append(Node(len(self.nodes), kind, cores))
        most = max(kind.cores * kind.threads for kind in kinds) - 1
        self.partners = most if options.partners is None else options.partners
        self.now = 0
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.waits: list[int] = []
        self.seen: list[Job] = []

    # What slows whom.

    def core_excess(self, a: Job, b: Job, node: Node) -> float:
        """Return what b on the same core adds to the slowdown of a."""
        if self.options.formula == "measured":
            return self.options.measured[a.row][b.row] - 1
        factor = self.factor(a, b, node)
        shared = [min(a.cpu, b.cpu), min(a.network, b.network), min(a.disk, b.disk)]
        if self.options.formula == "printed":
            return max(0.0, factor * shared[0] + 2 * shared[1] + 2 * shared[2] - 1)
        return (factor - 1) * shared[0] + shared[1] + shared[2]

    def factor(self, a: Job, b: Job, node: Node) -> float:
        """Return the factor of their parts on the CPU."""
        return self.options.cpu_factors[a.cpu_kind][b.cpu_kind] if node.kind.hyperthreaded else 2.0

    def slowdown_on(self, node: Node, job: Job) -> float:
        """Return the slowdown of a job on one of its nodes."""
        worst = 0.0
        for core in (core for core in node.cores if job in core):
            total = 0.0
            for other in node.jobs():
                if other is not job:
                    if other in core:
                        total += self.core_excess(job, other, node)
                    else:
                        total += min(job.network, other.network) + min(job.disk, other.disk)
            worst = max(worst, total)
        if len(node.jobs()) > 1 and sum(other.memory for other in node.jobs()) > node.kind.memory + SLACK:
            worst += self.options.paging
        return 1 + worst

    def set_rates(self) -> None:
        """Give every running job the rate that its nodes allow."""
        for job in self.running:
            job.slowdown = max(self.slowdown_on(node, job) for node in job.nodes)
            job.rate = max(1, round(ONE / job.slowdown))

    def partners_of(self, job: Job) -> list[Job]:
        """Those who share a node with it."""
        return [other for other in self.running if other is not job and set(other.nodes) & set(job.nodes)]

    # The queue.

    def job_class(self, job: Job) -> int:
        """0 short, 1 medium, 2 long."""
        return (job.estimate > self.options.short_up_to) + (job.estimate > self.options.medium_up_to)

    def order(self) -> None:
        """Order the queue by level, submit time and id."""
        age = self.options.aging
        if age is None:
            age = sum(self.waits) // len(self.waits) if self.waits else 0
        steps = (lambda job: (self.now - job.submit) // age) if 0 < age < math.inf else (lambda job: 0)
        self.waiting.sort(key=lambda job: (max(0, self.job_class(job) - steps(job)), job.submit, job.id))

    def may_share(self, job: Job) -> bool:
        """Whether it may share its nodes."""
        if self.options.coscheduling == "lomarc" or self.options.coscheduling == "adjacent":
            return self.job_class(job) > 0
        return self.options.coscheduling == "always"

    def idle(self, job: Job) -> list[Node]:
        """Return the idle nodes that it could use."""
        return [node for node in self.nodes if not node.jobs() and node.usable(job)]

    def weakly_loaded(self) -> bool:
        """Whether the waiting jobs ask for little."""
        if self.options.coscheduling == "always":
            return False
        idle = sum(not node.jobs() for node in self.nodes)
        return sum(job.width for job in self.waiting) <= (1 - self.options.load_threshold) * idle

    # Starting.

    def start(self, job: Job, nodes: Sequence[Node]) -> None:
        """Let a job run on these nodes."""
        self.waiting.remove(job)
        self.waits.append(self.now - job.submit)
        self.running.append(job)
        job.start, job.nodes = self.now, list(nodes)
        for node in nodes:
            node.put(job)
        self.set_rates()

    def run_pass(self) -> None:
        """One scheduling pass."""
        self.order()
        head = self.start_from_the_front()
        if head is not None and self.options.backfill == "easy":
            self.easy(head)
        if head is not None and self.options.backfill == "conservative":
            self.conservative()

    def start_from_the_front(self) -> Job | None:
        """Start the first job while that can be done; return the one that is left."""
        while self.waiting:
            job = self.waiting[0]
            if len(self.idle(job)) >= job.width:
                self.start_with_matches(job, None)
            else:
                host = self.match_running(job, None)
                if host is None:
                    return job
                self.start(job, self.room(host, job))
        return None

    def start_with_matches(self, job: Job, promise: Promise | Book | None) -> None:
        """Start a job on idle nodes, and others with it."""
        behind = self.waiting[self.waiting.index(job) + 1 :]
        shares = self.may_share(job) and not self.weakly_loaded()
        self.start(job, self.idle(job)[: job.width])
        while shares and len(self.partners_of(job)) < self.partners:
            match = self.match_waiting(job, [one for one in behind if one in self.waiting], promise)
            if match is None:
                return
            nodes = self.room(job, match)
            if promise is not None:
                promise.accept(self.trial(job, match, nodes), match, nodes)
            self.start(match, nodes)

    # Matching.

    def room(self, host: Job, job: Job) -> list[Node]:
        """Return the nodes of a host that a job would take; fewer than it needs if there are not enough."""
        found = [node for node in host.nodes if self.has_capacity(node, job)]
        return found[: job.width]

    def has_capacity(self, node: Node, job: Job) -> bool:
        """Whether a job could join those of a node."""
        here = node.jobs()
        if not node.usable(job) or sum(None in core for core in node.cores) < job.cores:
            return False
        if any(len(self.partners_of(other)) >= self.partners for other in here):
            return False
        memory = sum(other.memory for other in here) + job.memory
        return self.options.coscheduling == "always" or memory <= node.kind.memory + SLACK

    def trial(self, host: Job, job: Job, nodes: Sequence[Node]) -> dict[Job, float]:
        """Return the slowdowns of those whom a match would concern, had it been made."""
        after = {other: other.slowdown for node in nodes for other in node.jobs()}
        after[job] = 1.0
        for node in nodes:
            node.put(job)
            for other in node.jobs():
                after[other] = max(after[other], self.slowdown_on(node, other))
            node.take_off(job)
        return after

    def matches(self, host: Job, job: Job) -> bool:
        """Whether a match passes tests 1 to 5."""
        if not (self.may_share(host) and self.may_share(job)) or job.width > host.width:
            return False
        nodes = self.room(host, job)
        if len(nodes) < job.width:
            return False
        after = self.trial(host, job, nodes)
        if len(after) - 1 > self.partners:
            return False
        if self.options.coscheduling == "always":
            return True
        suits = all(self.matchable(other, job, node) for node in nodes for other in node.jobs())
        return suits and all(
            self.slowdown_after(node, job, other) <= self.options.max_slowdown
            for node in nodes
            for other in [*node.jobs(), job]
        )

    def slowdown_after(self, node: Node, job: Job, other: Job) -> float:
        """Return the slowdown of a job on a node, had another joined it."""
        node.put(job)
        slowdown = self.slowdown_on(node, other)
        node.take_off(job)
        return slowdown

    def matchable(self, a: Job, b: Job, node: Node) -> bool:
        """By what they are bound by."""
        if not node.kind.hyperthreaded:
            return {a.bound, b.bound} == {CPU, DISK}
        if a.bound == b.bound == CPU:
            return max(self.factor(a, b, node), self.factor(b, a, node)) < 2
        return a.bound != b.bound

    def match_waiting(self, host: Job, behind: list[Job], promise: Promise | Book | None) -> Job | None:
        """Return the waiting job that is to join a job that has just started."""
        candidates = behind[:1] if self.options.coscheduling == "adjacent" else list(self.waiting)
        base = host.left() / ONE * host.width / len(self.nodes)
        best, best_profit = None, 0.0
        for job in candidates:
            if self.matches(host, job):
                profit = self.profit(host, job, base)
                if profit > best_profit and self.allowed(promise, host, job):
                    best, best_profit = job, profit
        return best

    def match_running(self, job: Job, promise: Promise | Book | None) -> Job | None:
        """Return the running job that a waiting one is to join."""
        if self.options.coscheduling in ("none", "adjacent"):
            return None
        if promise is not None and not self.options.joins_behind:
            return None
        base = 0.0
        for one in self.running:
            base += one.left() / ONE * one.width / len(self.nodes)
        best, best_profit = None, 0.0
        for host in self.running:
            if self.matches(host, job):
                profit = self.profit(host, job, base)
                if profit > best_profit and self.allowed(promise, host, job):
                    best, best_profit = host, profit
        return best

    def allowed(self, promise: Promise | Book | None, host: Job, job: Job) -> bool:
        """Whether a match passes test 7."""
        if promise is None:
            return True
        nodes = self.room(host, job)
        return promise.allows(self.trial(host, job, nodes), job, nodes)

    # Profit.

    def profit(self, host: Job, job: Job, base: float) -> float:
        """Return what a match is worth."""
        if self.options.heuristic == "first" or self.options.coscheduling != "lomarc":
            # No other is worth more, so the first that passes the tests is taken.
            return 1.0
        after = self.trial(host, job, self.room(host, job))
        if self.options.heuristic == "response":
            return self.response(host, job, max(after[host], after[job]), base)
        gain = job.width / after[job]
        for other, slowdown in after.items():
            if other is not job:
                gain += other.width * (1 / slowdown - 1 / other.slowdown)
        if self.options.heuristic == "u2":
            return gain / host.width
        lengths = host.left() / ONE, float(job.estimate)
        return gain * min(lengths) / max(lengths) / host.width

    def response(self, host: Job, job: Job, slowdown: float, base: float) -> float:
        """Work out the impact of Figure 5."""
        n = len(self.nodes)
        a, b = host.left() / ONE, float(job.estimate)
        pair = min(a, b) * (slowdown - 1) + max(a, b)
        delay = (pair * host.width - a * host.width) / n
        improvement = b * job.width / n - delay
        response, sums, own, before, through = base, 0.0, 0.0, 0.0, 0.0
        for one in self.waiting:
            response += one.estimate * one.width / n
            if one is job:
                before = sums
            sums += 1 / max(response, 60_000)
            if one is job:
                own, through = response, sums
        short_sum, other_sum = self.predict(response)
        increase = delay / max(base, 60_000) + delay * before
        decrease = (own - b * slowdown * job.width / n) / max(own, 60_000) + improvement * (sums - through)
        increase += delay * short_sum
        decrease += improvement * other_sum
        return (decrease - increase) / len(self.waiting)

    def predict(self, response: float) -> tuple[float, float]:
        """Return the sums of 1/R over predicted short and other jobs."""
        n, seen = len(self.nodes), len(self.seen)
        lasted = max((job.submit for job in self.seen), default=0) - min((job.submit for job in self.seen), default=0)
        if seen < 2 or lasted == 0:
            return 0.0, 0.0
        short = [job for job in self.seen if self.job_class(job) == 0]
        others = [job for job in self.seen if self.job_class(job) > 0]
        coming = math.floor(response / (lasted / (seen - 1)))
        coming_short = math.floor(coming * (len(short) / seen))
        sums = []
        for jobs, count in ((short, coming_short), (others, coming - coming_short)):
            total = 0.0
            if jobs:
                mean = sum(job.width * job.estimate for job in jobs) / len(jobs) / n
                bounded = min(count, max(0, math.floor((60_000 - response) / mean)))
                begin = response + (bounded + 0.5) * mean
                total = bounded / 60_000 + math.log((begin + (count - bounded) * mean) / begin) / mean
                response += count * mean
            sums.append(total)
        return sums[0], sums[1]

    # Backfilling.

    def easy(self, head: Job) -> None:
        """Backfill behind the head."""
        promise = Promise(self, head)
        for job in self.waiting[1:]:
            if job not in self.waiting:
                continue
            idle = self.idle(job)[: job.width]
            if len(idle) == job.width and promise.allows({job: 1.0}, job, idle):
                promise.accept({job: 1.0}, job, idle)
                self.start_with_matches(job, promise)
                continue
            host = self.match_running(job, promise)
            if host is not None:
                nodes = self.room(host, job)
                promise.accept(self.trial(host, job, nodes), job, nodes)
                self.start(job, nodes)

    def conservative(self) -> None:
        """Give everybody who does not start a reservation."""
        registry = Book(self)
        for job in list(self.waiting):
            if job not in self.waiting:
                continue
            start = registry.earliest(job)
            if start == self.now:
                self.start_with_matches(job, registry)
                continue
            host = self.match_running(job, registry)
            if host is None:
                registry.reserved[job] = start
            else:
                self.start(job, self.room(host, job))


def free_at(site: Site, node: Node, after: dict[Job, float]) -> int:
    """Return when a node is free, by the ends by estimate, with these slowdowns in place of the present ones."""
    ends = [site.now]
    for job in node.jobs():
        rate = max(1, round(ONE / after[job])) if job in after else job.rate
        ends.append(site.now + -(-job.left() // rate))
    return max(ends)


def end_after(site: Site, after: dict[Job, float], job: Job) -> int:
    """Return the end by estimate of a job that would start with this slowdown."""
    return site.now + -(-job.estimate * ONE // max(1, round(ONE / after[job])))


class Book:
    """The reservations of conservative backfilling."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.reserved: dict[Job, int] = {}

    def free(self, instant: int) -> int:
        """Return the nodes that are free of running jobs and of reservations."""
        idle = sum(free_at(self.site, node, {}) <= instant for node in self.site.nodes)
        return idle - self.reserved_at(instant)

    def reserved_at(self, instant: int) -> int:
        """Return the nodes that reservations need."""
        return sum(job.width for job, start in self.reserved.items() if start <= instant < start + job.estimate)

    def earliest(self, job: Job) -> int:
        """Return the earliest start of a job."""
        ends = [free_at(self.site, node, {}) for node in self.site.nodes]
        ends += [start + one.estimate for one, start in self.reserved.items()]
        for start in sorted({self.site.now, *ends}):
            looks = [start, *(one for one in self.reserved.values() if start < one < start + job.estimate)]
            if all(self.free(instant) >= job.width for instant in looks):
                return start
        raise AssertionError("an empty site has room")

    def allows(self, after: dict[Job, float], job: Job, nodes: Sequence[Node]) -> bool:
        """Whether a match leaves the reservations of others what they need."""
        own = self.reserved.pop(job, None)
        end = end_after(self.site, after, job)
        ends = [max(free_at(self.site, node, after), end if node in nodes else 0) for node in self.site.nodes]
        kept = all(
            sum(one > instant for one in ends) + self.reserved_at(instant) <= len(ends)
            for instant in self.reserved.values()
        )
        if own is not None:
            self.reserved[job] = own
        return kept

    def accept(self, after: dict[Job, float], job: Job, nodes: Sequence[Node]) -> None:
        """Forget the reservation of a job that starts."""
        self.reserved.pop(job, None)


class Promise:
    """The head's reservation."""

    def __init__(self, site: Site, head: Job) -> None:
        self.site, self.head = site, head
        free = sorted(free_at(site, node, {}) for node in site.nodes if node.usable(head))
        self.shadow = free[head.width - 1]
        self.extra = sum(instant <= self.shadow for instant in free) - head.width

    def late(self, after: dict[Job, float], job: Job, nodes: Sequence[Node]) -> int:
        """How many nodes become late."""
        late = 0
        end = end_after(self.site, after, job)
        for node in self.site.nodes:
            if node.usable(self.head):
                then = max(free_at(self.site, node, after), end if node in nodes else 0)
                late += free_at(self.site, node, {}) <= self.shadow < then
        return late

    def allows(self, after: dict[Job, float], job: Job, nodes: Sequence[Node]) -> bool:
        """Whether a start keeps the reservation."""
        return self.late(after, job, nodes) <= self.extra

    def accept(self, after: dict[Job, float], job: Job, nodes: Sequence[Node]) -> None:
        """Let a start use up extra nodes."""
        self.extra -= self.late(after, job, nodes)


def simulate(jobs: Sequence[Job], kinds: Sequence[Kind], options: Options) -> Iterator[tuple[int, list[Job]]]:
    """Run jobs; yield after each instant the instant and the running jobs. The jobs then have their starts and ends."""
    site = Site(kinds, options)
    to_come = sorted(jobs, key=lambda job: (job.submit, job.id))
    while to_come or site.running:
        instants = [job.real_end(site.now) for job in site.running] + [job.submit for job in to_come[:1]]
        now = min(instants)
        ended = [job for job in site.running if job.real_end(site.now) == now]
        for job in site.running:
            job.done += job.rate * (now - site.now)
        site.now = now
        for job in ended:
            job.end = now
            site.running.remove(job)
            for node in job.nodes:
                node.take_off(job)
        site.set_rates()
        while to_come and to_come[0].submit == now:
            site.waiting.append(to_come[0])
            site.seen.append(to_come.pop(0))
        site.run_pass()
        yield now, list(site.running)
    assert not site.waiting, "the simulation ended with jobs that wait"

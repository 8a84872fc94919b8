"""Fractional scheduling once more, slow and plain, as docs/fractional.md states it.

Every task stands for itself, whether others of its job are like it or not; yields are exact fractions until they are
rounded to a rate, and everything is worked out again at every instant. Only the rounding of the page is shared: needs
and memory in millionths, rates in 2**-16.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

UNIT = 1_000_000
RATE_ONE = 1 << 16
INVERSE_ONE = 1 << 20


@dataclass
class Algorithm:
    """What a name of section 4.5 says."""

    on_submit: str = ""  # "", Greedy, GreedyP, GreedyPM, MCB8
    on_end: bool = False
    periodic: str = ""  # "", per, stretch-per
    optimise: str = "MIN"  # MIN, MAX
    min_flow_ms: int = 0
    min_virtual_ms: int = 0
    period_ms: int = 600_000
    penalty_ms: int = 300_000
    long_ms: int = 0


@dataclass
class Job:
    """A job; of each task its need and its memory, in millionths of a node; ``share`` is a fraction."""

    job_id: int
    submit_ms: int
    run_ms: int
    tasks: list[tuple[int, int]]
    weight: Fraction = Fraction(1)
    share: Fraction = Fraction(1)
    nodes: list[int] = field(default_factory=list)  # of each of its tasks; empty if it is on none
    virtual: int = 0  # in 2**-16 ms
    rate: int = 0
    yield_: int = 0
    pays_until_ms: int = 0
    start_ms: int | None = None
    end_ms: int | None = None
    preempted: int = 0
    migrated: int = 0
    moved: int = 0

    def __post_init__(self) -> None:
        """Let the tasks that need the most memory be the first, and of these those with the largest need."""
        self.tasks = sorted(self.tasks, key=lambda task: (-task[1], -task[0]))

    def need_on(self, node: int) -> int:
        """Return what its tasks on a node need of the CPU."""
        return sum(need for (need, _), at in zip(self.tasks, self.nodes, strict=False) if at == node)

    def memory_on(self, node: int) -> int:
        """Return the memory of its tasks on a node."""
        return sum(memory for (_, memory), at in zip(self.tasks, self.nodes, strict=False) if at == node)

    def priority(self, now_ms: int) -> float:
        """Return flow time / (virtual time)^2."""
        if self.virtual == 0:
            return math.inf
        virtual_ms = self.virtual / RATE_ONE
        return (now_ms - self.submit_ms) * float(self.share) / (virtual_ms * virtual_ms)


class Site:
    """A site with fractional nodes."""

    def __init__(self, nodes: int, algorithm: Algorithm) -> None:
        self.n_nodes, self.how = nodes, algorithm
        self.jobs: list[Job] = []  # in the order of submission
        self.now_ms = 0

    def load(self, node: int) -> int:
        """Return the sum of the needs on a node."""
        return sum(job.need_on(node) for job in self.jobs)

    def memory(self, node: int) -> int:
        """Return the memory that is used on a node."""
        return sum(job.memory_on(node) for job in self.jobs)

    def rising(self) -> list[Job]:
        """Return the jobs, the lowest priority first; of two alike the later submission."""
        later_first = list(reversed(self.jobs))
        return sorted(later_first, key=lambda job: job.priority(self.now_ms))

    # Section 4.2

    def greedy(self, job: Job) -> bool:
        """Place a job on the least loaded nodes that have room."""
        for _, memory in job.tasks:
            fitting = [node for node in range(self.n_nodes) if self.memory(node) + memory <= UNIT]
            if not fitting:
                job.nodes = []
                return False
            # What is placed of the job counts with the rest.
            job.nodes = [*job.nodes, min(fitting, key=lambda node: (self.load(node), node))]
        return True

    def could_start(self, job: Job) -> bool:
        """Whether Greedy would place a job."""
        done = self.greedy(job)
        job.nodes = []
        return done

    def greedy_by_pausing(self, job: Job, moves: bool) -> bool:
        """Place a job by pausing, or moving, jobs of lower priority."""
        were = {id(each): each.nodes for each in self.jobs}
        marked: list[Job] = []
        for other in self.rising():
            if self.could_start(job) or other is job:
                break
            if other.nodes:
                other.nodes = []
                marked.append(other)
        if not self.could_start(job):
            for other in marked:
                other.nodes = were[id(other)]
            return False
        off = []
        for other in reversed(marked):
            other.nodes = were[id(other)]
            if not self.could_start(job):
                other.nodes = []
                off.append(other)
        assert self.greedy(job)
        if moves:
            for other in off:
                self.greedy(other)
        return True

    # Sections 4.3 and 4.7

    def required(self, job: Job, percent: int, horizon_ms: int) -> list[int]:
        """Return the CPU that each task is to have at a level of the search."""
        if horizon_ms == 0:
            wanted = min(UNIT, math.floor(percent * 10_000 * job.share))
        else:
            flow_ms = self.now_ms - job.submit_ms + horizon_ms
            exact = percent * 10_000 * (flow_ms / horizon_ms) - UNIT * (job.virtual / 65536.0 / horizon_ms)
            wanted = int(min(float(UNIT), max(0.0, exact)))
        return [math.ceil(Fraction(need * wanted, UNIT)) for need, _ in job.tasks]

    def packed(
        self, jobs: Sequence[Job], pinned: Sequence[Job], percent: int, horizon_ms: int
    ) -> dict[int, list[int]] | None:
        """Return the nodes of each job's tasks by job id, None if they do not fit."""
        cpu, memory = [UNIT] * self.n_nodes, [UNIT] * self.n_nodes
        found: dict[int, list[int]] = {job.job_id: [-1] * len(job.tasks) for job in jobs}
        free = []
        for job in jobs:
            for place, required in enumerate(self.required(job, percent, horizon_ms)):
                held = job.tasks[place][1]
                if job in pinned:
                    node = found[job.job_id][place] = job.nodes[place]
                    cpu[node] -= required
                    memory[node] -= held
                else:
                    free.append((job.job_id, place, required, held))
        if min(cpu) < 0 or min(memory) < 0:
            return None
        free.sort(key=lambda task: -max(task[2:]))  # stable: the earlier submission first
        by_cpu = [task for task in free if task[2] >= task[3]]
        by_memory = [task for task in free if task[2] < task[3]]
        for node in range(self.n_nodes):
            while True:
                lists = [by_cpu, by_memory] if cpu[node] >= memory[node] else [by_memory, by_cpu]
                fitting = [task for task in lists[0] + lists[1] if task[2] <= cpu[node] and task[3] <= memory[node]]
                if not fitting:
                    break
                job_id, place, required, held = fitting[0]
                found[job_id][place] = node
                cpu[node] -= required
                memory[node] -= held
                (by_cpu if required >= held else by_memory).remove(fitting[0])
        return None if by_cpu or by_memory else found

    def mcb8(self, horizon_ms: int = 0) -> None:
        """Place all jobs again."""
        how = self.how
        pinned = [
            job
            for job in self.jobs
            if job.nodes
            and (self.now_ms - job.submit_ms < how.min_flow_ms or job.virtual < how.min_virtual_ms * RATE_ONE)
        ]
        kept, rising = list(self.jobs), self.rising()
        best = self.packed(kept, pinned, 1, horizon_ms)
        while best is None:
            if len(kept) == 1 and horizon_ms > 0:
                horizon_ms = 0  # it wants more than there is: alone it gets the yield that there is
            else:
                kept.remove(rising.pop(0))
            best = self.packed(kept, pinned, 1, horizon_ms)
        low, high = 1, 100
        if (all_of_it := self.packed(kept, pinned, 100, horizon_ms)) is not None:
            low, best = 100, all_of_it
        while high - low > 1:
            middle = (low + high) // 2
            tried = self.packed(kept, pinned, middle, horizon_ms)
            if tried is None:
                high = middle
            else:
                low, best = middle, tried
        for job in self.jobs:
            job.nodes = best.get(job.job_id, [])

    # Sections 4.6 and 4.7

    def fair_yields(self) -> None:
        """Raise all yields together; who cannot be raised any more keeps what it has."""
        done: dict[int, int] = {}
        running = [job for job in self.jobs if job.nodes]
        while len(done) < len(running):
            levels = {}
            for node in range(self.n_nodes):
                on_it = [(job, job.need_on(node)) for job in running if node in job.nodes]
                wants = sum(need * int(job.share * 1000) for job, need in on_it if job.job_id not in done)
                given = sum(need * done[job.job_id] for job, need in on_it if job.job_id in done)
                if wants:
                    levels[node] = (UNIT * RATE_ONE - given) * 1000 // wants
            left = [job for job in running if job.job_id not in done]
            whole = {job.job_id: math.ceil(Fraction(RATE_ONE * 1000, int(job.share * 1000))) for job in left}
            level = min([*levels.values(), *whole.values(), RATE_ONE * 1000])
            now = {}
            for job in left:
                if whole[job.job_id] <= level or any(levels[node] <= level for node in job.nodes):
                    now[job.job_id] = min(RATE_ONE, level * int(job.share * 1000) // 1000)
            done |= now
        for job in self.jobs:
            job.yield_ = done.get(job.job_id, 0)

    def yield_for(self, job: Job, inverse: int, horizon_ms: int) -> int:
        """Return the yield that leads to an expected stretch."""
        flow_ms = float(self.now_ms - job.submit_ms + horizon_ms)
        wanted = (inverse / INVERSE_ONE * flow_ms - job.virtual / 65536.0) / horizon_ms * RATE_ONE
        return int(min(float(RATE_ONE), max(0.0, wanted)))

    def stretch_yields(self, horizon_ms: int) -> None:
        """Minimise the largest expected stretch, then the next."""
        done: dict[int, int] = {}
        running = [job for job in self.jobs if job.nodes]

        def overfull(inverse: int) -> set[int]:
            yields = {job.job_id: done.get(job.job_id, self.yield_for(job, inverse, horizon_ms)) for job in running}
            return {
                node
                for node in range(self.n_nodes)
                if sum(job.need_on(node) * yields[job.job_id] for job in running) > UNIT * RATE_ONE
            }

        inverse = 0
        while len(done) < len(running):
            low, high = inverse, INVERSE_ONE
            if not overfull(high):
                low = high
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if overfull(middle) else (middle, high)
            inverse = low
            beyond = overfull(inverse + 1)
            now = {
                job.job_id: self.yield_for(job, inverse, horizon_ms)
                for job in running
                if job.job_id not in done and (inverse == INVERSE_ONE or beyond & set(job.nodes))
            }
            done |= now
        for job in self.jobs:
            job.yield_ = done.get(job.job_id, 0)

    # Section 4.4

    def step(self, now_ms: int, new: Sequence[Job]) -> None:
        """Let an instant come: jobs that end, the period, new jobs."""
        for job in self.jobs:
            job.virtual += job.rate * (now_ms - self.now_ms)
        self.now_ms = now_ms
        for job in [*self.jobs, *new]:
            long_ms, virtual_ms = self.how.long_ms, job.virtual // RATE_ONE
            job.share = job.weight
            if 0 < long_ms < virtual_ms:
                job.share = Fraction(max(1, math.floor(1000 * job.weight * long_ms / virtual_ms)), 1000)
        ended = [job for job in self.jobs if job.virtual >= job.run_ms * RATE_ONE]
        for job in ended:
            job.end_ms, job.rate = now_ms, 0
            self.jobs.remove(job)
        due = bool(self.jobs) and bool(self.how.periodic) and now_ms % self.how.period_ms == 0
        old = list(self.jobs)
        self.jobs += new
        were = {id(job): list(job.nodes) for job in self.jobs}
        if due or ended or new:
            self._place(due, bool(ended), old, new)
            for job in self.jobs:
                self._settle(job, were[id(job)])
            horizon_ms = self.how.period_ms - now_ms % self.how.period_ms
            if self.how.periodic == "stretch-per":
                self.stretch_yields(horizon_ms)
            else:
                self.fair_yields()
        for job in self.jobs:
            job.rate = job.yield_ if job.nodes and job.pays_until_ms <= now_ms else 0

    def _place(self, due: bool, ended: bool, old: Sequence[Job], new: Sequence[Job]) -> None:
        how = self.how
        if due:
            self.mcb8(how.period_ms if how.periodic == "stretch-per" else 0)
        elif how.on_submit == "MCB8":
            if new or how.on_end:
                self.mcb8()
        elif how.on_submit:
            if ended and how.on_end:
                for job in reversed(self.rising()):
                    if job in old and not job.nodes:
                        self.greedy(job)
            for job in new:
                if not self.greedy(job) and how.on_submit != "Greedy":
                    self.greedy_by_pausing(job, how.on_submit == "GreedyPM")

    def _settle(self, job: Job, were: list[int]) -> None:
        # Which of several tasks that are alike is on a node makes no difference.
        moved = Counter(zip(job.tasks, job.nodes, strict=False)) - Counter(zip(job.tasks, were, strict=False))
        if job.nodes and job.start_ms is None:
            job.start_ms = self.now_ms
        elif job.nodes and moved:
            job.pays_until_ms = self.now_ms + self.how.penalty_ms
            job.migrated += bool(were)
            job.moved += sum(memory for (_, memory), _ in moved.elements())
        elif were and not job.nodes:
            job.preempted += 1
            job.pays_until_ms = 0
            job.moved += sum(memory for _, memory in job.tasks)

    def next_ms(self) -> int | None:
        """Return the next instant at which anything happens by itself."""
        instants = []
        for job in self.jobs:
            if job.rate > 0:
                left = job.run_ms * RATE_ONE - job.virtual
                instants.append(self.now_ms + max(0, math.ceil(Fraction(left, job.rate))))
            if job.nodes and job.pays_until_ms > self.now_ms:
                instants.append(job.pays_until_ms)
        if self.jobs and self.how.periodic:
            instants.append((self.now_ms // self.how.period_ms + 1) * self.how.period_ms)
        return min(instants, default=None)


def simulate(jobs: Sequence[Job], nodes: int, algorithm: Algorithm) -> Site:
    """Play jobs, which are in the order of submission, to their end; what has become of each stands in it."""
    site, coming = Site(nodes, algorithm), list(jobs)
    while coming or site.jobs:
        instants = [site.next_ms(), coming[0].submit_ms if coming else None]
        now_ms = min(instant for instant in instants if instant is not None)
        new = [job for job in coming if job.submit_ms == now_ms]
        coming = coming[len(new) :]
        site.step(now_ms, new)
        check(site)
    return site


def check(site: Site) -> None:
    """Check what must always hold."""
    for node in range(site.n_nodes):
        assert site.memory(node) <= UNIT, "a node is above its memory"
        cpu = sum(job.need_on(node) * job.yield_ for job in site.jobs)
        assert cpu <= UNIT * RATE_ONE, "a node gives more CPU than it has"

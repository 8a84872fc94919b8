"""A site of machines that differ, played the slow and obvious way, from docs/heterogeneous.md and docs/levels.md alone.

Jobs have forms and classes, run times are learned, and levels evict (restart or checkpoint). Speeds and run times are
fractions, work is in ms at speed 1. What is mapped is mapped by the slow second writing of the algorithms.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from gridweave.site.disciplines.heterogeneous.machines import Form
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.job import Job, JobForm
from reference.heterogeneous import Plan, mapped

Team = tuple[int, int]
"""A cluster, and how many of its machines."""


@dataclass(eq=False)
class OneJob:
    """A job, the work that it really has, and how it is with it; `kept` is what it has done before, and kept."""

    job: Job
    submit: int
    work: int
    kept: int = 0
    evictions: int = 0
    machines: tuple[int, ...] = ()
    resource: str = ""
    speed: Fraction = Fraction(0)
    start: int = 0
    expected: int = 0
    ended: int | None = None

    @property
    def runs(self) -> bool:
        """Whether it is on machines."""
        return bool(self.machines)

    @property
    def end(self) -> int:
        """When it ends, if it is let."""
        return self.start + math.ceil((self.work - self.kept) / self.speed)

    @property
    def limit(self) -> int:
        """When it is ended at the latest."""
        return self.start + math.ceil((self.job.estimate_ms - self.kept) / self.speed)

    @property
    def place_in_queue(self) -> tuple[int, int]:
        """Whom it stands behind."""
        return self.submit, self.job.job_id


@dataclass
class JobHistory:
    """What has happened: (instant, job, ...), in the order in which it did."""

    starts: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    evictions: list[tuple[int, int, int]] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    lost_machine_ms: int = 0


class Experience:
    """All runs of each class on each resource, the work of all of each class, and of each user."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, object], list[Fraction]] = defaultdict(list)

    def learn(self, one: OneJob, now: int) -> None:
        """Take in a run that came to a good end of its own, and that did all of its work there."""
        took = Fraction(now - one.start)
        if one.kept or now >= one.limit:
            return
        if one.job.job_class is not None:
            self.runs[one.resource, one.job.job_class].append(took)
            self.runs["any", one.job.job_class].append(took * one.speed)
        if one.job.user is not None:
            self.runs["user", one.job.user].append(took * one.speed)

    def expected(self, job: Job, resource: str, speed: Fraction, deviations: float) -> Fraction:
        """Return how long a whole run is expected to be: by the pair, the class, the user, the estimate."""
        most = job.estimate_ms / speed
        for key, by in (
            ((resource, job.job_class), Fraction(1)),
            (("any", job.job_class), speed),
            (("user", job.user), speed),
        ):
            if key in self.runs and key[1] is not None:
                times = [time / by for time in self.runs[key]]
                spread = Fraction(statistics.stdev(times)) if len(times) > 1 else Fraction(0)
                return min(Fraction(statistics.mean(times)), most) + Fraction(deviations) * spread
        return most


class Site:
    """The machines, and the jobs that have come."""

    def __init__(self, policy: HeterogeneousPolicy) -> None:
        self.policy = policy
        self.kind = [one for one in policy.classes for _ in range(one.count)]
        self.out = numbers(policy.out_of_service)
        self.members = [[one for one in numbers(each.nodes) if one not in self.out] for each in policy.clusters]
        self.known = Experience()
        self.jobs: list[OneJob] = []
        self.history = JobHistory()
        self.now = 0

    # Where a job can run, at which speed.

    def forms_of(self, job: Job) -> Sequence[Form | JobForm]:
        """Return its own, else those of its class, else those that name no class, else its width."""
        forms = self.policy.forms
        of_class = [form for form in forms if form.job_class is not None and form.job_class == job.job_class]
        return job.forms or of_class or [form for form in forms if form.job_class is None] or [Form(width=job.width)]

    def fits(self, form: Form | JobForm, machine: int) -> bool:
        """Whether a machine is one on which a form runs."""
        kind = self.kind[machine]
        named = not form.on or any(name in (kind.name, *kind.labels) for name in form.on)
        has_capacity = kind.memory_mb is None or kind.memory_mb >= form.memory_mb
        return named and has_capacity and kind.cores >= form.cores and machine not in self.out

    def speed_alone(self, job: Job, machine: int) -> Fraction:
        """Return the speed of a job on a machine alone, in the fastest of its forms; 0 if it does not run there."""
        speeds = [form.speed for form in self.forms_of(job) if form.width == 1 and self.fits(form, machine)]
        return as_rate(Fraction(max(speeds, default=0)) * Fraction(self.kind[machine].speed))

    def teams_of(self, job: Job) -> dict[Team, Fraction]:
        """Return the teams on which a job can run, and its speed there."""
        found: dict[Team, Fraction] = {}
        for number, cluster in enumerate(self.policy.clusters):
            here, whole = self.members[number], len(numbers(cluster.nodes))
            for form in self.forms_of(job):
                width = len(here) if form.width == "all" else form.width
                enough = max(width, whole if cluster.minimum is None else cluster.minimum)
                if form.width == 1 or len(here) < enough or not all(self.fits(form, machine) for machine in here):
                    continue
                slowest = min(Fraction(self.kind[machine].speed) for machine in here)
                part = Fraction(width, whole) if form.width == "all" else 1
                speed = as_rate(Fraction(form.speed) * slowest * part)
                found[number, width] = max(speed, found.get((number, width), speed))
        return found

    def name_of(self, team: Team) -> str:
        """Return what the experience calls a team."""
        return f"{self.policy.clusters[team[0]].name} x {team[1]}"

    def length(self, one: OneJob, resource: str, speed: Fraction) -> int | None:
        """Return how long a job is expected to run from now; at most its limit, and that if it is past its time."""
        if not speed:
            return None
        limit = math.ceil((one.job.estimate_ms - one.kept) / speed)
        if self.policy.predict == "estimate":
            return limit
        whole = self.known.expected(one.job, resource, speed, self.policy.deviations)
        left = math.ceil(whole - one.kept / speed)
        return min(left, limit) if left > 0 else limit

    # Levels.

    def level_of(self, one: OneJob) -> int:
        """Return the highest level that the priority reaches, and one higher for each `raise_after` evictions."""
        reached = [at for at, level in enumerate(self.policy.levels) if one.job.priority >= level.priority]
        base = min(reached, default=len(self.policy.levels) - 1)
        after = self.policy.raise_after
        return base if after is None else max(0, base - one.evictions // after)

    def may_evict(self, level: int, one: OneJob) -> bool:
        """Whether jobs of a level may take the machines of a running job."""
        name = self.policy.levels[self.level_of(one)].name
        return one.job.if_evicted != "never" and name in self.policy.levels[level].evicts

    @property
    def running(self) -> list[OneJob]:
        """Return the jobs on machines, by job id."""
        return sorted((one for one in self.jobs if one.runs), key=lambda one: one.job.job_id)

    def waiting(self, level: int | None = None) -> list[OneJob]:
        """Return the jobs that wait, of one level or of all, in the order of submission."""
        waits = [one for one in self.jobs if not one.runs and one.ended is None]
        return sorted(
            (one for one in waits if level is None or self.level_of(one) == level), key=lambda one: one.place_in_queue
        )

    # What happens at an instant.

    def step(self, now: int, comes: Iterable[OneJob]) -> None:
        """End what ends, take in what comes, and map all that waits."""
        self.now = now
        for one in self.running:
            if one.end == now:
                self.known.learn(one, now)
                one.machines, one.ended = (), now
                self.history.ends.append((now, one.job.job_id))
        self.jobs += comes
        for one in self.running:
            if one.expected <= now:
                one.expected = one.limit
        level, claimed = 0, [now] * len(self.kind)
        while level < len(self.policy.levels):
            after = claimed.copy()
            evicted = self.run_level(level, after)
            if not any(self.level_of(one) == level for one in evicted):
                level, claimed = level + 1, after

    def run_level(self, level: int, claimed: list[int]) -> list[OneJob]:
        """Map the jobs of a level behind those above it; start whose turn it is, and return who was evicted."""
        queue = self.waiting(level)
        teams = sorted({team for one in queue for team in self.teams_of(one.job)})
        plan = self.wanted(level, queue, teams, claimed)
        evicted = []
        for at, one in enumerate(queue):
            resource, speed = self.kind[plan.places[at][0]].name, self.speed_alone(one.job, plan.places[at][0])
            if at in plan.teams:
                team = teams[plan.teams[at]]
                resource, speed = self.name_of(team), self.teams_of(one.job)[team]
            for machine in plan.places[at]:
                claimed[machine] = plan.ready[machine]
            if plan.starts[at] == self.now:
                evicted += self.evict(level, one, plan.places[at])
                one.machines, one.resource, one.speed = plan.places[at], resource, speed
                one.start, one.expected = self.now, plan.ends[at]
                self.history.starts.append((self.now, one.job.job_id, one.machines))
        return evicted

    def wanted(self, level: int, queue: list[OneJob], teams: list[Team], claimed: list[int]) -> Plan:
        """Return the mapping of a level in which nobody is evicted for less than the least gain."""
        if not self.policy.least_gain_ms:
            return self.mapped(level, queue, teams, claimed, [])
        without, spared = self.mapped(level, queue, teams, claimed, self.running), list[OneJob]()
        while True:
            plan = self.mapped(level, queue, teams, claimed, spared)
            too_little = [
                at
                for at in range(len(queue))
                if plan.starts[at] == self.now and without.ends[at] - plan.ends[at] < self.policy.least_gain_ms
            ]
            in_vain = {machine for at in too_little for machine in plan.places[at]}
            more = [one for one in self.running if in_vain & set(one.machines)]
            if not more:
                return plan
            spared += more

    def mapped(
        self, level: int, queue: list[OneJob], teams: list[Team], claimed: list[int], spared: Sequence[OneJob]
    ) -> Plan:
        """Map the jobs of a level; machines whose jobs it may evict count as free, but for jobs that are spared."""
        ready, trouble = claimed.copy(), [0] * len(claimed)
        for one in self.running:
            taken = self.may_evict(level, one) and one not in spared
            for machine in one.machines:
                ready[machine] = ready[machine] if taken else max(ready[machine], one.expected)
                trouble[machine] = 2 if taken else 0
        alone = [
            [self.length(one, kind.name, self.speed_alone(one.job, at)) for at, kind in enumerate(self.kind)]
            for one in queue
        ]
        speeds = [self.teams_of(one.job) for one in queue]
        on_team = [
            [self.length(one, self.name_of(team), speeds[at].get(team, Fraction(0))) for team in teams]
            for at, one in enumerate(queue)
        ]
        places = [(self.members[cluster], width) for cluster, width in teams]
        return mapped(self.policy.algorithm, ready, alone, on_team, places, self.policy.profit, trouble)

    def evict(self, level: int, by: OneJob, machines: tuple[int, ...]) -> list[OneJob]:
        """Take all jobs off that are on any of some machines, whole; the highest level first, then by job id."""
        gone = sorted((one for one in self.running if set(one.machines) & set(machines)), key=self.level_of)
        for one in gone:
            assert self.may_evict(level, one), "a machine has two jobs"
            if (one.job.if_evicted or self.policy.evicted) == "checkpoint":
                one.kept += math.floor((self.now - one.start) * one.speed)
            else:
                self.history.lost_machine_ms += (self.now - one.start) * len(one.machines)
            one.machines = ()
            one.evictions += 1
            self.history.evictions.append((self.now, one.job.job_id, by.job.job_id))
        return gone


def as_rate(speed: Fraction) -> Fraction:
    """Return a speed as sites reckon with it: to the nearest 65,536th."""
    return Fraction(round(speed * 2**16), 2**16)


def numbers(text: str) -> list[int]:
    """Return what a text such as ``0-3,8`` names."""
    ends = [part.split("-") for part in text.split(",") if part]
    return [number for part in ends for number in range(int(part[0]), int(part[-1]) + 1)]


def play(policy: HeterogeneousPolicy, jobs: Sequence[tuple[int, Job, int]]) -> JobHistory:
    """Return what happens to jobs: of each when it is submitted, and the work that it has, at most its estimate."""
    site = Site(policy)
    coming = [OneJob(job, submit, work, evictions=job.evictions) for submit, job, work in jobs]
    while coming or site.running:
        instants = [one.submit for one in coming] + [one.end for one in site.running]
        if site.waiting():
            instants += [one.expected for one in site.running]
        now = min(instants)
        site.step(now, [one for one in coming if one.submit == now])
        coming = [one for one in coming if one.submit > now]
    assert all(one.ended is not None for one in site.jobs), "a job waits on a site on which nothing runs"
    return site.history

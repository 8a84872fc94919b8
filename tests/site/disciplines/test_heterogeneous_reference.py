"""Sites of machines that differ start, evict and end what a slow second writing of the pages says, job for job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.scenarios.batch.stepped import RunningWork
from gridweave.site.disciplines.heterogeneous.machines import Cluster, Form
from gridweave.site.disciplines.heterogeneous.mapping import ALGORITHMS
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.job import Job, JobForm
from gridweave.site.messages import ChangeRate, Command, EvictJob, JobFinished, JobSubmitted, StartJob
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.scheduler.core import SiteCore
from reference.different_machines import JobHistory, play

Arrival = tuple[int, Job, int]
"""When a job is submitted, and the work that it has."""

NAMES = ("high", "medium", "low")
SPEEDS = (0.5, 1.0, 1.5, 2.0, 3.0)


class PlayedSite:
    """A site, the work that runs on it, and what has happened."""

    def __init__(self, policy: HeterogeneousPolicy, jobs: list[Arrival]) -> None:
        self.core, self.work, self.history = SiteCore(policy.nodes, policy), RunningWork(), JobHistory()
        self.coming, self.left = jobs, {job.job_id: work for _, job, work in jobs}
        self.on: dict[int, set[int]] = {}

    def play(self) -> JobHistory:
        """Step from instant to instant until nothing runs any more."""
        while self.coming or self.on:
            instants = [self.work.next_end_ms(), self.core.next_wakeup_ms(), *(at for at, *_ in self.coming)]
            now_ms = min(at for at in instants if at is not None)
            ended = self.work.ended(now_ms)
            for number in ended:
                self.history.ends.append((now_ms, number))
                del self.on[number]
            comes = [JobSubmitted(job) for at, job, _ in self.coming if at == now_ms]
            self.coming = [each for each in self.coming if each[0] > now_ms]
            for command in self.core.handle(now_ms, *map(JobFinished, ended), *comes):
                self.carry_out(now_ms, command)
            self.core.check_invariants()
            taken = [machine for machines in self.on.values() for machine in machines]
            assert len(taken) == len(set(taken)), "a machine has two jobs"
        assert not list(self.core.waiting())
        self.history.lost_machine_ms = int(self.core.totals()["lost_machine_ms"])
        return self.history

    def carry_out(self, now_ms: int, command: Command) -> None:
        """Do what the site says."""
        if isinstance(command, StartJob):
            machines = tuple(machine for first, last in command.nodes for machine in range(first, last))
            self.history.starts.append((now_ms, command.job_id, machines))
            self.on[command.job_id] = set(machines)
            self.work.begin(now_ms, command.job_id, self.left[command.job_id])
        elif isinstance(command, EvictJob):
            self.history.evictions.append((now_ms, command.job_id, command.by))
            if command.keeps_work:
                self.left[command.job_id] = self.work.left_ms(now_ms, command.job_id)
            self.work.leave(command.job_id)
            del self.on[command.job_id]
        else:
            assert isinstance(command, ChangeRate)
            self.work.change_rate(now_ms, command.job_id, command.rate)


def random_site(rng: np.random.Generator, **options: Any) -> HeterogeneousPolicy:
    """Draw machines of up to three classes, up to two clusters, forms, and who may evict whom."""
    nodes = int(rng.choice([2, 2, 3, 3, 4, 5, 6, 7, 8]))
    cuts = np.sort(rng.choice(np.arange(1, nodes), min(int(rng.integers(0, 3)), nodes - 1), replace=False))
    counts = np.diff([0, *cuts, nodes]).tolist()
    classes = tuple(
        NodeKind(
            name="abc"[at],
            count=count,
            speed=float(rng.choice(SPEEDS)),
            memory_mb=[None, 100, 200][rng.integers(0, 3)],
            labels=("x",) if rng.random() < 0.5 else (),
        )
        for at, count in enumerate(counts)
    )
    clusters = []
    for name in ("west", "east")[: rng.choice([0, 1, 1, 2, 2])]:
        size = int(rng.integers(2, nodes + 1))
        members = sorted(rng.choice(nodes, size, replace=False).tolist())
        minimum = None if rng.random() < 0.5 else int(rng.integers(2, size + 1))
        clusters.append(Cluster(name=name, nodes=",".join(map(str, members)), minimum=minimum))
    out = str(rng.integers(0, nodes)) if rng.random() < 0.3 and nodes > 2 else ""
    levels = tuple(
        Level(name=name, priority=2 - at, evicts=tuple(below for below in NAMES[at + 1 :] if rng.random() < 0.75))
        for at, name in enumerate(NAMES)
    )
    forms = tuple(random_form(rng, kind, clusters) for kind in (0, 0, 1, 1, 2)[: rng.integers(1, 6)])
    plain = {"nodes": nodes, "classes": classes, "clusters": tuple(clusters), "out_of_service": out, "levels": levels}
    fits = [form for form in forms if runs_somewhere(plain, form)]
    return HeterogeneousPolicy(**plain, forms=(*fits, Form()), **options)


def random_form(rng: np.random.Generator, kind: int, clusters: list[Cluster]) -> Form:
    """Draw a form of the jobs of a class."""
    width = ["all", 2, 3][rng.integers(0, 3)] if clusters and rng.random() < 0.8 else 1
    on = (str(rng.choice(["a", "x"])),) if rng.random() < 0.3 else ()
    speed = float(rng.choice(SPEEDS)) * (1 if width == 1 else 4)
    return Form(job_class=kind, width=width, on=on, speed=speed, memory_mb=int(rng.choice([0, 50, 150])))  # type: ignore[arg-type]


def runs_somewhere(site: dict[str, Any], form: Form) -> bool:
    """Whether a site takes a form at all."""
    try:
        HeterogeneousPolicy(**site, forms=(form,))
    except OptionError:
        return False
    return True


def random_jobs(rng: np.random.Generator, policy: HeterogeneousPolicy) -> list[Arrival]:
    """Draw jobs of few lengths, so that ties are met; some run to their limit, most end long before."""
    count, every = int(rng.integers(5, 25)), int(rng.integers(1, 15))
    jobs = []
    for number in range(count):
        estimate = int(rng.choice([7, 20, 40, 60, 101]))
        work = estimate if rng.random() < 0.2 else int(rng.integers(1, estimate + 1))
        job = Job(
            job_id=number,
            width=1,
            estimate_ms=estimate,
            priority=float(rng.integers(0, 3)),
            job_class=[0, 1, 2, None][rng.integers(0, 4)],
            user=[None, 7, 8][rng.integers(0, 3)],
            if_evicted=str(rng.choice(["", "", "", "never", "restart", "checkpoint"])),  # type: ignore[arg-type]
            forms=(JobForm(), JobForm(width=2, speed=2.5)) if rng.random() < 0.15 else (),
            evictions=int(rng.integers(0, 3)) if rng.random() < 0.1 else 0,
        )
        jobs.append((int(rng.integers(0, count * every)), job, work))
    core = SiteCore(policy.nodes, policy)
    return sorted((each for each in jobs if core.why_never(each[1]) is None), key=lambda each: each[:1])


def random_case(seed: int, algorithm: str, evicted: str) -> tuple[HeterogeneousPolicy, list[Arrival]]:
    """Draw a site and its jobs."""
    rng = np.random.default_rng(seed)
    policy = random_site(
        rng,
        algorithm=algorithm,
        evicted=evicted,
        raise_after=[None, 1, 2][rng.integers(0, 3)],
        least_gain_ms=[0, 0, 5, 30][rng.integers(0, 4)],
        predict="estimate" if rng.random() < 0.3 else "experience",
        profit="length" if rng.random() < 0.2 else "end",
        deviations=0.5 if rng.random() < 0.2 else 0.0,
    )
    return policy, random_jobs(rng, policy)


def differences(seed: int, algorithm: str, evicted: str) -> tuple[JobHistory, JobHistory]:
    """Return what the site and the second writing make of one case."""
    policy, jobs = random_case(seed, algorithm, evicted)
    return PlayedSite(policy, jobs).play(), play(policy, jobs)


@pytest.mark.parametrize("evicted", ["restart", "checkpoint"])
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "gsa"])
def test_a_site_does_what_the_second_writing_says(algorithm: str, evicted: str) -> None:
    """Each job starts when, and on the machines, that the pages give it, and is evicted for whom they say."""
    evictions = teams = of_teams = 0
    for seed in range(20):
        found, expected = differences(seed, algorithm, evicted)
        assert found.starts == expected.starts
        assert found.evictions == expected.evictions
        assert found.ends == expected.ends
        assert found.lost_machine_ms == expected.lost_machine_ms
        evictions += len(found.evictions)
        wide = {number for _, number, machines in found.starts if len(machines) > 1}
        teams += len(wide)
        of_teams += sum(victim in wide for _, victim, _ in found.evictions)
    assert evictions > 10
    assert teams > 10
    assert of_teams > 0

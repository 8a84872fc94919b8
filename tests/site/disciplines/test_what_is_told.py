"""What a site has told is what is, though events of one instant come in several calls, and wakeups late."""

from __future__ import annotations

import numpy as np
import pytest

from gridweave.site.allocation import bits_of
from gridweave.site.disciplines.dynp.policy import DynPPolicy
from gridweave.site.disciplines.entry import Policy
from gridweave.site.disciplines.fractional.policy import FractionalPolicy
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.disciplines.heterogeneous.machines import Cluster, MachineClass
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.disciplines.sharing.policy import SharedNodes, SharingPolicy
from gridweave.site.job import Job, Resources
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.messages import (
    ChangeRate,
    Command,
    Event,
    EvictJob,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    MoveJob,
    StartJob,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.state import dump_state

NODES = 6
LEVELS = (
    Level(name="high", priority=2, evicts=("medium", "low")),
    Level(name="medium", priority=1, evicts=("low",)),
    Level(name="low", priority=0),
)
CLASSES = (MachineClass(name="fast", count=2, speed=2.0), MachineClass(name="slow", count=4))


def machines(**options: object) -> HeterogeneousPolicy:
    """Return how a site schedules whose machines differ."""
    clusters = (Cluster(name="c", nodes="2-5", minimum=2),)
    fixed = {"nodes": NODES, "classes": CLASSES, "clusters": clusters, "levels": LEVELS, "raise_after": 1}
    return HeterogeneousPolicy(**{**fixed, **options})


POLICIES: dict[str, Policy] = {
    "queue": SitePolicy(),
    "conservative": SitePolicy(backfill="conservative"),
    "planning": SitePolicy(discipline="planning", order="sjf"),
    "dynp": DynPPolicy(),
    "levels": LevelsPolicy(levels=LEVELS, evicted="checkpoint", raise_after=2),
    "lomarc": SharedNodes(sharing=SharingPolicy(coscheduling="always", load_threshold=0.0)),
    "gang": GangPolicy(mpl=3, slice_ms=100, switch_ms=5),
    "gang that moves": GangPolicy(mpl=3, slice_ms=100, migration="all", migration_ms=10, scheduling="discrete"),
    "fractional": FractionalPolicy(algorithm="MCB8*/per/OPT=MIN", period_ms=700, penalty_ms=50),
    "fractional averages": FractionalPolicy(algorithm="GreedyPM*/OPT=AVG", penalty_ms=50),
    "machines": machines(),
    "machines that pause": machines(evicted="pause", algorithm="min-min"),
}
NEEDS = ((1.0, 0.0, 0.0), (0.1, 0.8, 0.1), (0.1, 0.1, 0.8))


class Play:
    """A site, and what it has told of its running jobs."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self.core, self.rng = SiteCore(NODES, policy), np.random.default_rng(seed)
        self.now_ms = self.number = 0
        self.nodes: dict[int, int] = {}  # as bits
        self.rate: dict[int, int] = {}

    def job(self, number: int) -> Job:
        """Return a random job."""
        cpu, network, disk = NEEDS[self.rng.integers(3)]
        memory, need = float(self.rng.choice([0.1, 0.3, 0.9])), float(self.rng.choice([0.1, 0.5, 1.0]))
        return Job(
            job_id=number,
            width=int(self.rng.choice([1, 1, 2, 3, NODES])),
            estimate_ms=int(self.rng.choice([1, 50, 300, 5000])),
            priority=float(self.rng.integers(3)),
            resources=Resources(cpu=cpu, network=network, disk=disk, memory=memory, cpu_need=need),
        )

    def events(self) -> list[Event]:
        """Return what happens at an instant."""
        part = self.rng.choice([0.0, 0.1, 0.9])
        found: list[Event] = [JobFinished(job_id) for job_id in self.nodes if self.rng.random() < part]
        waiting = [job.job_id for job, _ in self.core.waiting()]
        if waiting and self.rng.random() < 0.3:
            found.append(JobCancelled(int(self.rng.choice(waiting))))
        for _ in range(int(self.rng.choice([0, 1, 3, 25], p=[0.4, 0.3, 0.2, 0.1]))):
            self.number += 1
            found.append(JobSubmitted(self.job(self.number), now_or_never=bool(self.rng.random() < 0.1)))
        return found

    def step(self) -> None:
        """Let some time pass, perhaps beyond the next wakeup; what happens then is told in one call or two."""
        self.now_ms += int(self.rng.choice([0, 1, 7, 50, 400]))
        events = self.events()
        first = int(self.rng.integers(len(events) + 1))
        for part in (events[:first], events[first:]):
            self.hear(self.core.handle(self.now_ms, *part))
            self.core.check_invariants()
            self.check()

    def hear(self, commands: list[Command]) -> None:
        """Take in what is told."""
        for each in commands:
            match each:
                case StartJob():
                    self.nodes[each.job_id], self.rate[each.job_id] = bits_of(each.nodes), RATE_ONE
                case MoveJob():
                    self.nodes[each.job_id] = bits_of(each.nodes)
                case ChangeRate():
                    assert each.job_id in self.rate, "a rate of a job that was not told to run"
                    self.rate[each.job_id] = each.rate
                case EvictJob():
                    del self.nodes[each.job_id], self.rate[each.job_id]

    def check(self) -> None:
        """Compare what was told with what is."""
        site = self.core
        running = {run.job.job_id for run in site.running()}
        self.nodes = {job_id: nodes for job_id, nodes in self.nodes.items() if job_id in running}
        assert self.nodes.keys() == running
        assert self.nodes == site.source.nodes_of, "other nodes"
        for job_id, speed, _ in site.progress(self.now_ms):
            assert speed == self.rate[job_id] / RATE_ONE, "another rate"
        if site.traits.slices_time:
            working = [nodes for job_id, nodes in self.nodes.items() if self.rate[job_id]]
            assert sum(map(int.bit_count, working)) <= NODES, "two jobs work on a node"

    def ask(self) -> None:
        """Ask a copy of the site what can be asked; that leaves no trace."""
        before, copy, job = dump_state(self.core), self.core.copy(), self.job(0)
        copy.quote(self.now_ms, job)
        copy.sharing_offered(self.now_ms, job)
        assert dump_state(self.core) == before


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", POLICIES)
def test_what_is_told_is_what_is(name: str, seed: int) -> None:
    """Who runs, where and how fast is at all times as it was told, whatever comes."""
    play = Play(POLICIES[name], seed)
    for _ in range(60):
        play.step()
        play.ask()

"""Every discipline that may decide in pilots, in random pilots that come, end and are lost."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from gridweave.site.disciplines.dynp.policy import DynPPolicy
from gridweave.site.disciplines.entry import Policy
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.disciplines.sharing.policy import SharedNodes, SharingPolicy
from gridweave.site.job import Job, Resources
from gridweave.site.kernels.work import RATE_ONE, work_done_ms, work_left, work_of
from gridweave.site.messages import (
    BatchSnapshot,
    ChangeRate,
    Command,
    Event,
    EvictJob,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    KillJob,
    MoveJob,
    RefuseJob,
    RequestStatus,
    RequeueJob,
    StartJob,
)
from gridweave.site.nodes.source import PILOT
from gridweave.site.policy import SitePolicy
from gridweave.site.scheduler.core import SiteCore
from gridweave.slurm.policy import BatchPolicy, PilotRules

MINUTE = 60_000
JOB_MS = 10 * MINUTE
NODES = 6
THREE = (
    Level(name="high", priority=2, evicts=("medium", "low")),
    Level(name="medium", priority=1, evicts=("low",)),
    Level(name="low", priority=0),
)

POLICIES: dict[str, Policy] = {
    "easy": SitePolicy(),
    "planning": SitePolicy(discipline="planning", order="sjf"),
    "dynp": DynPPolicy(),
    "levels": LevelsPolicy(levels=THREE),
    "gang": GangPolicy(mpl=3, slice_ms=20_000),
    "gang with promises": GangPolicy(mpl=2, slice_ms=30_000, switch_ms=500, backfill="conservative"),
    "gang that moves": GangPolicy(mpl=3, slice_ms=20_000, migration="all", migration_ms=1_000),
    "lomarc": SharedNodes(),
    "lomarc with promises": SharedNodes(sharing=SharingPolicy(backfill="conservative")),
    "planned levels": LevelsPolicy(levels=THREE, under=SitePolicy(discipline="planning"), evicted="checkpoint"),
}


NEEDS = (
    Resources(cpu=0.9, network=0.0, disk=0.1, memory=0.4),
    Resources(cpu=0.1, network=0.0, disk=0.9, memory=0.4),
    Resources(cpu=0.2, network=0.8, disk=0.0, memory=0.4),
    None,
)


class Running(msgspec.Struct):
    """A job that runs, and how it gets on."""

    job: Job
    nodes: frozenset[int]
    left: int
    since_ms: int
    rate: int = RATE_ONE

    @property
    def end_ms(self) -> int:
        """When its work will be done."""
        return int(work_done_ms(self.left, self.rate, self.since_ms))

    def pace(self, now_ms: int, rate: int) -> None:
        """Have it go on at another rate."""
        self.left = int(work_left(self.left, self.rate, self.since_ms, now_ms))
        self.rate, self.since_ms = rate, now_ms


class Play:
    """A site with pilots, its jobs, and a batch system that gives and takes nodes as it likes."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        rules = PilotRules(policy=policy, length_ms=600 * MINUTE, job_ms=JOB_MS, idle_ms=2 * MINUTE)
        # As short as they may be, so that many end.
        length_ms = 2 * rules.stay_ms
        more = {"size": int(rng.integers(1, 4)), "keep": seed % 2, "length_ms": length_ms}
        self.stay_ms = rules.stay_ms
        # So long after it was put on its nodes a job may begin: some decisions cut slices short.
        self.slack_ms = 2 * policy.mpl * policy.slice_ms if isinstance(policy, GangPolicy) else 0
        self.policy = BatchPolicy(pilots=msgspec.structs.replace(rules, **more))
        self.core, self.now_ms, self.number = SiteCore(NODES, self.policy), 0, 0
        self.running: dict[int, Running] = {}
        self.waiting: dict[int, Job] = {}
        self.left: dict[int, int] = {}  # of those that waiting jobs go on with
        self.last_start_ms: dict[int, int] = {}  # of each place whose node is there
        self.counts = dict.fromkeys(("ended", "again", "lost", "paused", "slowed", "evicted", "moved", "beside"), 0)

    def job(self, number: int) -> Job:
        """Return a random job."""
        rng = self.rng
        return Job(
            job_id=number,
            width=int(rng.integers(1, NODES + 1)),
            estimate_ms=int(rng.integers(1, JOB_MS)),
            priority=float(rng.integers(0, 3)),
            resources=NEEDS[int(rng.integers(0, len(NEEDS)))],
        )

    def step(self, *, comes: bool, is_lost: Callable[[], bool]) -> None:
        """Let some time pass, no more than until something is due, and whatever happens then happen."""
        due_ms = [run.end_ms for run in self.running.values()]
        wakeup_ms = self.core.next_wakeup_ms()
        assert wakeup_ms is None or wakeup_ms > self.now_ms
        later_ms = self.now_ms + int(self.rng.integers(1, 2 * MINUTE))
        self.now_ms = min([later_ms, *due_ms, *([] if wakeup_ms is None else [wakeup_ms])])
        events: list[Event] = []
        for job_id in [job_id for job_id, run in self.running.items() if run.end_ms <= self.now_ms]:
            del self.running[job_id]
            self.counts["ended"] += 1
            events.append(JobFinished(job_id))
        if comes:
            self.number += 1
            job = self.waiting[self.number] = self.job(self.number)
            events.append(JobSubmitted(job))
        elif self.waiting and self.rng.random() < 0.02:
            job_id = min(self.waiting)
            del self.waiting[job_id]
            events.append(JobCancelled(job_id))
        events += self.batch_system(is_lost)
        self.carry_out(self.core.handle(self.now_ms, *events))
        self.core.check_invariants()

    def batch_system(self, is_lost: Callable[[], bool]) -> list[Event]:
        """Return what the batch system tells: some pilots that come, and some that are lost with the jobs in them."""
        asks, events = [], []
        for pilot in self.core.source.requests(self.now_ms):
            if pilot.has_started and is_lost():
                asks.append(RequestStatus(PILOT, pilot.ask, "over", None, "a node failed"))
                for job_id in [key for key, run in self.running.items() if run.nodes & set(pilot.node_indices)]:
                    self.counts["lost"] += 1
                    events += self.ends_to_run_again(job_id)
            elif not pilot.has_started and self.rng.random() < 0.4:
                asks.append(RequestStatus(PILOT, pilot.ask, "ready", None, ""))
                last_ms = self.now_ms + max(0, pilot.job.estimate_ms - self.stay_ms)
                self.last_start_ms.update(dict.fromkeys(pilot.node_indices, last_ms))
        return [*events, BatchSnapshot(NODES, None, ((0, NODES),), tuple(asks))]

    def ends_to_run_again(self, job_id: int) -> list[Event]:
        """Return that a job has left its nodes and waits again."""
        run = self.running.pop(job_id)
        self.waiting[job_id] = run.job
        return [JobFinished(job_id), JobSubmitted(run.job)]

    def carry_out(self, commands: list[Command]) -> None:
        """Do what the site has decided."""
        again: list[Event] = []
        for command in commands:
            match command:
                case StartJob(job_id=job_id):
                    self.start(command)
                case EvictJob(job_id=job_id):
                    self.counts["evicted"] += 1
                    run = self.running.pop(job_id)
                    self.waiting[job_id] = run.job
                    if command.keeps_work:
                        self.left[job_id] = int(work_left(run.left, run.rate, run.since_ms, self.now_ms))
                case ChangeRate(job_id=job_id, rate=rate):
                    self.running[job_id].pace(self.now_ms, rate)
                    self.counts["paused" if rate == 0 else "slowed"] += rate < RATE_ONE
                case MoveJob(job_id=job_id):
                    self.counts["moved"] += 1
                    self.running[job_id].nodes = nodes_of(command)
                case RequeueJob(job_id=job_id):
                    self.counts["again"] += 1
                    again += self.ends_to_run_again(job_id)
                case KillJob() | RefuseJob():
                    raise AssertionError(f"nobody wanted this: {command}")
        if again:
            self.carry_out(self.core.handle(self.now_ms, *again))

    def start(self, command: StartJob) -> None:
        """Start a job on nodes whose pilots take jobs, and on which all that runs may stay as long."""
        job = self.waiting.pop(command.job_id)
        nodes = nodes_of(command)
        assert len(nodes) == job.width
        for node in nodes:
            assert self.last_start_ms[node] + self.slack_ms >= self.now_ms, "a pilot takes a job that is too late"
        self.counts["beside"] += any(run.nodes & nodes for run in self.running.values())
        left = self.left.pop(job.job_id, 0) or work_of(int(self.rng.integers(1, job.estimate_ms + 1)))
        self.running[job.job_id] = Running(job, nodes, int(left), self.now_ms)

    def keep(self) -> None:
        """Write the state of the site down, and go on with a site that has read it."""
        kept = msgspec.msgpack.decode(msgspec.msgpack.encode(self.core.state()), type=self.core.state_type)
        self.core = SiteCore(NODES, self.policy)
        self.core.restore(kept)
        self.core.check_invariants()

    def ask(self) -> None:
        """Ask the site all that can be asked; that leaves no trace."""
        before = msgspec.msgpack.encode(self.core.state())
        twin = self.core.copy()
        for job_id in self.waiting:
            assert twin.explain(self.now_ms, job_id).reason
        job = self.job(999_999)
        twin.quote(self.now_ms, job)
        assert 0 <= twin.startable(self.now_ms, job.estimate_ms) <= NODES
        twin.sharing_offered(self.now_ms, job)
        assert msgspec.msgpack.encode(self.core.state()) == before


def nodes_of(command: StartJob | MoveJob) -> frozenset[int]:
    """Return nodes that are told as intervals."""
    return frozenset(node for low, high in command.nodes for node in range(low, high))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", POLICIES)
def test_no_job_is_lost_or_outlives_its_pilot(name: str, seed: int) -> None:
    """Nothing starts on a node that is to leave, no job stays behind, and all of them end once nothing more comes."""
    play = Play(POLICIES[name], seed)
    for number in range(400):
        play.step(comes=play.rng.random() < 0.25, is_lost=lambda: play.rng.random() < 0.01)
        if number % 20 == 0:
            play.ask()
            play.keep()
    for _ in range(2_000):
        if not play.running and not play.waiting:
            break
        play.step(comes=False, is_lost=lambda: False)
    assert not play.running
    assert not play.waiting
    counts = play.counts
    assert counts["ended"] > 60
    assert counts["lost"] > 0
    assert (counts["evicted"] > 0) == ("levels" in name)
    assert (counts["beside"] > 0) == ("gang" in name or "lomarc" in name)
    assert (counts["slowed"] > 0) == ("lomarc" in name)
    assert (counts["paused"] > 0) == ("gang" in name)
    assert (counts["moved"] > 0) == ("moves" in name)

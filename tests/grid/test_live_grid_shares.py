"""A live grid and live sites with hyperthreaded nodes, message by message: the schedule is that of the simulation."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gridweave.grid.messages import FromLiveSite, SendToSite
from gridweave.grid.meta.live import GridSettings, LiveGrid
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.stepped import job_messages
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.disciplines.sharing.policy import SharedNodes
from gridweave.site.job import JobRequest, Noted, Program
from gridweave.site.kernels.work import RATE_ONE, work_done_ms, work_left, work_of
from gridweave.site.messages import (
    Machine,
    MachineJoined,
    PaceRun,
    RunEnded,
    RunStarted,
    SendToGrid,
    StartRun,
    UserSubmitted,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite
from support.builders import random_workload, workload_of

MINUTE = 60_000
POLICY = GridPolicy(mode="sharing", control="full")


@dataclass
class Work:
    """What is left of a job that runs at a site, at which rate."""

    site: int
    attempt: int
    left: int
    since_ms: int
    rate: int = RATE_ONE

    @property
    def end_ms(self) -> int:
        """When it is done, if the rate stays."""
        return int(work_done_ms(self.left, self.rate, self.since_ms))


class LiveTogether:
    """A live grid and its sites, with messages that take no time, and programs that begin at once."""

    def __init__(self, workload: Workload, nodes: list[int], shared: int) -> None:
        names = [f"site{number}" for number in range(len(nodes))]
        self.grid = LiveGrid(GridSettings(sites=tuple(zip(names, nodes, strict=True)), policy=POLICY))
        self.sites = [
            LiveSite(
                SiteSettings(
                    name=name,
                    number=number,
                    machines=(Machine(name="m", nodes=nodes[number]),),
                    policy=SharedNodes() if number < shared else SitePolicy(),
                )
            )
            for number, name in enumerate(names)
        ]
        self.run_ms = np.minimum(workload.run_ms, workload.estimate_ms).tolist()
        self.works: dict[int, Work] = {}
        self.notes: dict[int, list[tuple[str, str]]] = defaultdict(list)
        self._told: dict[int, list[Any]] = defaultdict(list)
        for number in range(len(nodes)):
            self._told[number].append(MachineJoined("m", "here"))
        self._settle(0, [])
        submissions = defaultdict(list)
        for number, job in enumerate(job_messages(workload)):
            program = Program(argv=("true",))
            request = JobRequest(program=program, nodes=job.width, limit_ms=job.estimate_ms, resources=job.resources)
            submissions[int(workload.submit_ms[number])].append(UserSubmitted(f"{number}", request))
        while submissions or self.works:
            ends = [work.end_ms for work in self.works.values()]
            now_ms = min([*submissions, *ends])
            for job_id, work in sorted(self.works.items()):
                if work.end_ms == now_ms:
                    del self.works[job_id]
                    self._told[work.site].append(RunEnded("m", job_id, work.attempt, "finished"))
            self._settle(now_ms, submissions.pop(now_ms, []))

    def _settle(self, now_ms: int, events: list[Any]) -> None:
        """Have the sites and the grid answer each other until nothing more happens at this instant."""
        while self._told or events:
            for site in sorted(self._told):
                for command in self.sites[site].handle(now_ms, *self._told.pop(site)):
                    events += self._at_site(now_ms, site, command)
            commands, events = self.grid.handle(now_ms, *events), []
            for command in commands:
                if isinstance(command, SendToSite):
                    self._told[command.site].append(command.message)
                elif isinstance(command, Noted):
                    self.notes[command.job_id].append((command.kind, command.detail))
            for core in (self.grid, *self.sites):
                core.check_invariants()

    def _at_site(self, now_ms: int, site: int, command: Any) -> list[Any]:
        """Do what a site wants of its machine; return what the grid hears."""
        if isinstance(command, StartRun):
            job_id, attempt = command.launch.job_id, command.launch.attempt
            self.works[job_id] = Work(site, attempt, int(work_of(self.run_ms[job_id - 1])), now_ms)
            self._told[site].append(RunStarted("m", job_id, attempt))
        elif isinstance(command, PaceRun):
            work = self.works[command.job_id]
            work.left = int(work_left(work.left, work.rate, work.since_ms, now_ms))
            work.rate, work.since_ms = round(command.speed * RATE_ONE), now_ms
        return [FromLiveSite(site, command.message)] if isinstance(command, SendToGrid) else []


def simulated(workload: Workload, nodes: list[int], shared: int) -> Any:
    """Return what the simulation makes of the same jobs and sites."""
    policies = [SharedNodes() if number < shared else SitePolicy() for number in range(len(nodes))]
    return simulate_world(workload, nodes, POLICY, site_policies=policies)


@pytest.mark.parametrize("seed", range(12))
def test_the_live_schedule_is_that_of_the_simulation(seed: int) -> None:
    """Start, end and site of each job are the same, of those that share nodes, too."""
    rng = np.random.default_rng(seed)
    workload = random_workload(rng, 8, coarse=seed % 2 == 0)
    nodes = [8, int(rng.integers(2, 9))]
    result, live = simulated(workload, nodes, 1), LiveTogether(workload, nodes, 1)
    records = live.grid.registry.records
    # The grid numbers jobs in the order of submission, from 1.
    found = [(records[n].start_ms, records[n].end_ms, records[n].places[0][0]) for n in range(1, len(workload) + 1)]
    sites = [f"site{result.fragments_of(n)[0][0]}" for n in range(len(workload))]
    assert found == list(zip(result.start_ms.tolist(), result.end_ms.tolist(), sites, strict=True))


def test_a_pair_of_the_grid_is_named_with_its_slowdown() -> None:
    """The story says why a job shares nodes, beside whom, and what came of it; the record has the slowdown."""
    needs = {"cpu": 0.6, "network": 0.3, "disk": 0.1}, {"cpu": 0.2, "network": 0.1, "disk": 0.7}
    jobs = [{"submit": 0, "width": 4, "estimate": 20 * MINUTE} | needs[0] for _ in range(2)]
    jobs.append({"submit": MINUTE, "width": 4, "estimate": 10 * MINUTE} | needs[1])
    live = LiveTogether(workload_of(jobs), [4, 4], 1)
    sharing = live.grid.registry.records[3].sharing
    assert sharing is not None
    assert (sharing.beside, sharing.now, round(sharing.slowdown, 2)) == ((1,), (), 1.28)
    notes = dict(live.notes[3])
    assert notes["beside"] == (
        "on nodes shared with other jobs: 12 min 48 s instead of 10 min (factor 1.28) at site0, "
        "rather than wait or be split"
    )
    on_its_nodes = "on nodes shared with job 1: 12 min 48 s instead of 10 min (factor 1.28)"
    assert notes["shares"] == f"its nodes at site0: {on_its_nodes}"
    took = "it took 12 min 48 s, on nodes shared with job 1: expected to take 1.28 times as long as alone; "
    assert notes["took"].startswith(took)
    host = live.grid.registry.records[1].sharing
    assert host is not None
    assert (host.beside, round(host.slowdown, 3)) == ((3,), round(22.8 / 20, 3))

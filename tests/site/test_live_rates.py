"""How fast the jobs of a live site work: what machines are told at the start, and when a rate changes."""

from __future__ import annotations

from typing import Any

import pytest

from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.sharing.policy import VARIANTS, SharedNodes
from gridweave.site.job import DescribeJob, JobRequest, Program, Resources
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.messages import (
    CommitNodes,
    Machine,
    PaceRun,
    ReserveNodes,
    RunEnded,
    RunStarted,
    StartRun,
    UserSubmitted,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite
from support.stepping import do

OWN = 1_000_000_000_001
HOUR_MS = 3_600_000


def site(policy: Any, nodes: int = 4) -> LiveSite:
    """Return a site of one machine."""
    return LiveSite(SiteSettings(name="north", number=0, machines=(Machine(name="m0", nodes=nodes),), policy=policy))


def asked(nodes: int, limit_ms: int, **needs: float) -> JobRequest:
    """Return a request for nodes of which these parts are needed."""
    resources = Resources(**needs) if needs else None  # type: ignore[arg-type]
    return JobRequest(program=Program(argv=("work",)), nodes=nodes, limit_ms=limit_ms, resources=resources)


def of(commands: list[Any], kind: type) -> list[Any]:
    """Return the commands of a kind."""
    return [command for command in commands if isinstance(command, kind)]


def test_machines_hear_how_fast_jobs_work_that_share_nodes() -> None:
    """Both jobs work slower from the instant at which they share nodes, and at full speed when one has left."""
    north = site(SharedNodes(sharing=VARIANTS["L-U1"]))
    needs = {"cpu": 0.9, "network": 0.05, "disk": 0.05, "memory": 0.3}
    other = {"cpu": 0.05, "network": 0.05, "disk": 0.9, "memory": 0.3}
    do(north, 0, UserSubmitted("cpu", asked(4, 2 * HOUR_MS, **needs)))
    do(north, 1, RunStarted("m0", OWN, 1))
    commands = do(north, 10, UserSubmitted("disk", asked(4, 2 * HOUR_MS, **other)))
    assert [start.launch.job_id for start in of(commands, StartRun)] == [OWN + 1]
    speeds = {pace.job_id: pace.speed for pace in of(commands, PaceRun)}
    assert speeds.keys() == {OWN, OWN + 1}
    assert all(1 / 1.6 <= speed < 1 for speed in speeds.values())
    do(north, 11, RunStarted("m0", OWN + 1, 1))
    # The site expects their ends by the same rates.
    ends = {one.job.job_id: one.end_by_estimate_ms for one in north.core.site.running()}
    expected_ms = 10 + (2 * HOUR_MS - 10) / speeds[OWN]
    assert ends[OWN] == pytest.approx(expected_ms, abs=1)
    commands = do(north, HOUR_MS, RunEnded("m0", OWN + 1, 1, "finished"))
    assert [(pace.job_id, pace.runs, pace.speed) for pace in of(commands, PaceRun)] == [(OWN, True, 1.0)]


def test_a_part_of_a_split_job_works_slower_by_its_factor() -> None:
    """A job that takes 1.25 times as long on several sites does 0.8 of its work in each ms; on one site all of it."""
    north = site(SitePolicy())
    for job_id, sites in ((1, ("north", "south")), (2, ("north",))):
        described = DescribeJob(job_id, 1, asked(2, 100_000), 125_000 if job_id == 1 else 100_000, 0, 4, sites)
        do(north, 0, described, ReserveNodes(job_id, 1, 2, described.limit_ms, 50 if job_id == 1 else None))
    starts = of(north.handle(20, CommitNodes(1, 1)) + north.handle(50), StartRun)
    starts += [order for order in north.runs.orders("m0") if isinstance(order, StartRun)]
    assert {start.launch.job_id: (start.launch.rate, start.launch.limit_ms) for start in starts} == {
        1: (0.8, 125_000),
        2: (1.0, 100_000),
    }


def test_a_job_on_a_fast_machine_works_faster_and_its_limit_is_shorter() -> None:
    """On a machine of speed 2.5 it does that much work in each ms; one job ends sooner on a slow one."""
    classes = NodeKind(name="slow", count=2), NodeKind(name="fast", count=2, speed=2.5)
    north = site(HeterogeneousPolicy(nodes=4, classes=classes))
    commands = do(north, 0, *[UserSubmitted(str(number), asked(1, 100_000)) for number in range(5)])
    launches = [start.launch for start in of(commands, StartRun)]
    assert sorted((launch.rate, launch.limit_ms) for launch in launches) == [(1.0, 100_000), *[(2.5, 40_000)] * 2]
    assert {north.core.site.rate_of(launch.job_id) / RATE_ONE for launch in launches} == {1.0, 2.5}
    assert {pace.speed for pace in of(commands, PaceRun)} <= {1.0}

"""A live grid whose journals are in PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridweave.errors import UnavailableError
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import JobRequest, Program
from support.checks import WRITES_ITS_OWN_STORY, check_history, check_stories
from support.machine import PATIENCE_S, Server, running_server

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Return a server, or skip where PostgreSQL is not installed."""
    with running_server() as running:
        yield running


def test_journals_in_postgresql_outlast_a_kill(ray_cluster: None, server: Server, tmp_path: Path) -> None:
    """A grid whose journals are in PostgreSQL loses nothing when the meta-scheduler and a site are killed."""
    from gridweave.grid.service.cluster import GridPlan, SitePlan, start_grid

    nodes = {"north": 4, "south": 2}
    sites = tuple(
        SitePlan(name=name, nodes=n, journal=server.new_database(f"live-{name}")) for name, n in nodes.items()
    )
    plan = GridPlan(
        folder=str(tmp_path),
        sites=sites,
        policy=GridPolicy(mode="multi-site"),
        namespace=tmp_path.name,
        labelled=False,
        journal=server.new_database("live-grid"),
        retry_ms=2_000,
    )
    history = tmp_path / "story"
    grid = start_grid(plan, timeout_s=PATIENCE_S)
    try:
        program = Program(argv=(*WRITES_ITS_OWN_STORY, str(history), "1"))
        requests = [
            (f"job {k}", JobRequest(program=program, nodes=width, limit_ms=3_600_000))
            for k, width in enumerate((5, 2, 6))
        ]
        jobs = [answer.job_id for answer in grid.submit(requests)]
        for name in ("grid", "site:north"):
            os.kill(grid.call(name, "process"), signal.SIGKILL)
        ended = 0
        while ended < len(jobs):
            with contextlib.suppress(UnavailableError):
                ended = sum(record.state == "ended" for record in grid.records(jobs))
    finally:
        grid.stop()
    outcomes = check_history(plan)
    assert outcomes == dict.fromkeys(jobs, "finished")
    check_stories(history, outcomes, nodes)

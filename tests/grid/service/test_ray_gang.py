"""A site that shares its nodes in time, as actors on Ray: jobs of several processes take turns on two machines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.job import JobRequest, Program
from gridweave.site.machine.folders import RATE
from support.machine import PATIENCE_S, one_works_while_the_other_is_paused, read_turns, the_end

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SLICE_MS = 600
TURNS = 2
PROCESSES = 8
"""Two jobs with two ranks each, and each rank has a child."""

# However slow the machine is, it ends when each process of both jobs has seen its job go on after so many pauses.
TAKE_TURNS = f"""
import os, sys, time
job, rank = os.environ["GRIDWEAVE_JOB_ID"], os.environ["GRIDWEAVE_RANK"]
child = os.fork()
has_turned = f"{{sys.argv[1]}}/{{job}}-{{rank}}-{{'child' if child == 0 else 'rank'}}"
while len(os.listdir(sys.argv[1])) < {PROCESSES}:
    with open(os.environ["GRIDWEAVE_RATE"]) as rates:
        if [line.split()[1] for line in rates].count("0") >= {TURNS}:
            open(has_turned, "w").close()
    time.sleep(0.01)
if child:
    os.waitpid(child, 0)
"""


def test_jobs_take_turns_with_all_their_processes(ray_cluster: None, tmp_path: Path) -> None:
    """Two jobs on both machines: each is paused several times, on both, and the other works meanwhile; both finish."""
    from gridweave.grid.service.cluster import GridPlan, SitePlan, start_grid

    turned = tmp_path / "turned"
    turned.mkdir()
    site = SitePlan(name="north", nodes=2, machines=2, policy=GangPolicy(mpl=2, slice_ms=SLICE_MS))
    policy, folder = GridPolicy(mode="sharing", control="none"), str(tmp_path / "grid")
    plan = GridPlan(folder=folder, sites=(site,), policy=policy, namespace=tmp_path.name, labelled=False)
    grid = start_grid(plan, timeout_s=PATIENCE_S)
    try:
        program = Program(argv=(sys.executable, "-c", TAKE_TURNS, str(turned)), grace_ms=200)
        request = JobRequest(program=program, nodes=2, limit_ms=3_600_000)
        jobs = [answer.job_id for answer in grid.submit([("one", request), ("two", request)])]
        assert {the_end(grid, job_id).outcome for job_id in jobs} == {"finished"}
        machines = sorted(tmp_path.glob(f"grid/**/jobs/{jobs[0]}.1"))
        assert len(machines) == 2
        for first in machines:
            one, other = (read_turns(piece / RATE) for piece in (first, first.with_name(f"{jobs[1]}.1")))
            assert min(len(one.pauses), len(other.pauses)) >= TURNS
            assert one_works_while_the_other_is_paused(one, other)
    finally:
        grid.stop()

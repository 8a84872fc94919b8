"""A site that gives jobs parts of its nodes, as actors on Ray: what the kernel lets a job use follows who is there."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.site.disciplines.fractional.policy import FractionalPolicy
from gridweave.site.job import JobRequest, Program, Resources
from gridweave.site.launch import MachineRules
from gridweave.site.machine.cgroups import open_cgroups, parts_problem
from support.machine import PATIENCE_S, the_end, until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# Waits until the kernel lets it use as many processors, of those that it may use alone, as each argument says in turn;
# then until it may end.
WATCH = """
import os, sys, time
from gridweave.site.machine.cgroups import mounted
folder, is_2 = mounted()["cpu"]
whole = len(os.sched_getaffinity(0))
def processors():
    if is_2:
        quota, period = (folder / "cpu.max").read_text().split()
    else:
        quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(quota) / int(period) / whole
for part in map(float, sys.argv[2:]):
    while abs(processors() - part) > 0.01:
        time.sleep(0.01)
    open(os.path.join(sys.argv[1], f"{os.environ['GRIDWEAVE_JOB_ID']}-{part}"), "w").close()
while not os.path.exists(os.path.join(sys.argv[1], "go")):
    time.sleep(0.01)
"""


def test_the_kernel_is_told_what_each_job_may_use(ray_cluster: None, tmp_path: Path) -> None:
    """A job alone has all that it needs; beside another both have half, and the one that is left has all again."""
    from gridweave.grid.service.cluster import GridPlan, SitePlan, start_grid

    trial = open_cgroups(f"gridweave-test-{uuid.uuid4().hex[:8]}")
    problem = parts_problem(trial.paths)
    trial.parent.remove()
    if problem:
        pytest.skip(problem)
    site = SitePlan(
        name="north",
        nodes=1,
        policy=FractionalPolicy(algorithm="Greedy*/OPT=MIN", penalty_ms=0),
        rules=MachineRules(gives_parts=True),
    )
    policy, folder = GridPolicy(mode="sharing", control="none"), str(tmp_path / "grid")
    plan = GridPlan(folder=folder, sites=(site,), policy=policy, namespace=tmp_path.name, labelled=False)
    grid = start_grid(plan, timeout_s=PATIENCE_S)

    def job(*parts: float) -> JobRequest:
        program = Program(argv=(sys.executable, "-c", WATCH, str(tmp_path), *map(str, parts)), grace_ms=200)
        needs = Resources(cpu_need=1.0, memory=0.4)
        return JobRequest(program=program, limit_ms=7_200_000, resources=needs)

    try:
        (first,) = grid.submit([("first", job(1.0, 0.5))])
        until((tmp_path / f"{first.job_id}-1.0").exists)
        (second,) = grid.submit([("second", job(0.5, 1.0))])
        until((tmp_path / f"{second.job_id}-0.5").exists)
        (tmp_path / "go").touch()
        ends = [the_end(grid, each.job_id) for each in (first, second)]
    finally:
        grid.stop()
    assert [record.outcome for record in ends] == ["finished", "finished"]
    assert ends[0].end_ms <= ends[1].end_ms

"""A site with hyperthreaded nodes, as actors on Ray: two jobs of the grid on one node, each on its own threads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.site.disciplines.sharing.policy import SharedNodes
from gridweave.site.explain import Forecast
from gridweave.site.job import JobRecord, JobRequest, Program
from gridweave.site.needs.text import parse_resources
from gridweave.site.service.calls import answer_of, question
from support.machine import PATIENCE_S, the_end, until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# Leaves on which hardware threads it may run, and waits until it may end.
SAY = """
import os, sys, time
folder, job = sys.argv[1], os.environ["GRIDWEAVE_JOB_ID"]
with open(os.path.join(folder, f"{job}.new"), "w") as file:
    file.write(" ".join(map(str, sorted(os.sched_getaffinity(0)))))
os.rename(os.path.join(folder, f"{job}.new"), os.path.join(folder, f"{job}.threads"))
while not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.01)
"""


def test_a_pair_runs_on_one_node_and_explain_and_record_say_so(ray_cluster: None, tmp_path: Path) -> None:
    """The second job starts beside the first; explain names the partner and the slowdown, and so does the record."""
    from gridweave.grid.service.cluster import GRID_ACTOR, GridPlan, SitePlan, start_grid

    site = SitePlan(name="north", nodes=1, policy=SharedNodes(), virtual=False)
    policy, folder = GridPolicy(mode="sharing"), str(tmp_path / "grid")
    plan = GridPlan(folder=folder, sites=(site,), policy=policy, namespace=tmp_path.name, labelled=False)
    grid = start_grid(plan, timeout_s=PATIENCE_S)

    def job(needs: str) -> JobRequest:
        program = Program(argv=(sys.executable, "-c", SAY, str(tmp_path)), grace_ms=200)
        return JobRequest(program=program, limit_ms=7_200_000, resources=parse_resources("resources", needs))

    def record(job_id: int) -> JobRecord:
        return grid.records([job_id])[0]

    try:
        jobs = []
        for needs in ("cpu=0.6,network=0.3,disk=0.1", "cpu=0.2,network=0.1,disk=0.7"):
            (accepted,) = grid.submit([(needs, job(needs))])
            jobs.append(accepted.job_id)
            until((tmp_path / f"{accepted.job_id}.threads").exists)
        found = until(lambda: all(record(job_id).sharing is not None for job_id in jobs) and [record(n) for n in jobs])
        answer = grid.call(GRID_ACTOR, "ask", "forecast", question(jobs[1]))
        forecast: Forecast = answer_of(answer, msgspec.msgpack.Decoder(Forecast))
        threads = [{*map(int, (tmp_path / f"{job_id}.threads").read_text().split())} for job_id in jobs]
        (tmp_path / "go").touch()
        ends = [the_end(grid, job_id) for job_id in jobs]
    finally:
        grid.stop()
    text = f"on nodes shared with job {jobs[0]}: 2 h 34 min instead of 2 h (factor 1.28)"
    assert [each.sharing.now for each in found if each.sharing] == [(jobs[1],), (jobs[0],)]
    assert found[1].sharing is not None
    assert found[1].sharing.text == forecast.reason == text
    assert [end.outcome for end in ends] == ["finished", "finished"]
    assert [end.sharing.beside for end in ends if end.sharing] == [(jobs[1],), (jobs[0],)]
    assert all(own for own in threads)
    if len(os.sched_getaffinity(0)) > 1:
        assert threads[0].isdisjoint(threads[1])

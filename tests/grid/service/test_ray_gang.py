"""A site that shares its nodes in time, as actors on Ray: jobs of several processes take turns on two machines."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.job import JobRequest, Program
from gridweave.site.machine.folders import read_state
from waiting import the_end

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PATIENCE_S = 120.0
SLICE_MS = 400
GAP_S = 0.1
"""Who has not counted for so long was paused, or had no processor."""

WORK_S = 2.4
# Each rank and a child of it count until they have worked for so long, and write down from when to when they did.
COUNT = f"""
import json, os, sys, time
def count(name):
    spans, worked, last = [[time.monotonic()] * 2], 0.0, time.monotonic()
    while worked < {WORK_S}:
        now = time.monotonic()
        if now - last < {GAP_S}:
            worked += now - last
            spans[-1][1] = now
        else:
            spans.append([now, now])
        last = now
    with open(os.path.join(sys.argv[1], name), "w") as file:
        json.dump(spans, file)
job, rank = os.environ["GRIDWEAVE_JOB_ID"], os.environ["GRIDWEAVE_RANK"]
child = os.fork()
count(f"{{job}}-{{rank}}-{{'child' if child == 0 else 'rank'}}")
if child:
    os.waitpid(child, 0)
"""

Spans = list[tuple[float, float]]


def overlap_s(one: Spans, other: Spans) -> float:
    """Return for how long two processes both counted."""
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in itertools.product(one, other))


def test_jobs_take_turns_with_all_their_processes(ray_cluster: None, tmp_path: Path) -> None:
    """Two jobs on both machines, each rank with a child: no process of one counts in the slices of the other.

    Each stands still for as long as its machines say that it was paused, and both finish, in several turns.
    """
    from gridweave.grid.service.cluster import GridPlan, SitePlan, start_grid

    counts = tmp_path / "counts"
    counts.mkdir()
    site = SitePlan(name="north", nodes=2, machines=2, policy=GangPolicy(mpl=2, slice_ms=SLICE_MS))
    policy, folder = GridPolicy(mode="sharing", control="none"), str(tmp_path / "grid")
    plan = GridPlan(folder=folder, sites=(site,), policy=policy, namespace=tmp_path.name, labelled=False)
    grid = start_grid(plan, timeout_s=PATIENCE_S)
    try:
        program = Program(argv=(sys.executable, "-c", COUNT, str(counts)), grace_ms=200)
        request = JobRequest(program=program, nodes=2, limit_ms=120_000)
        jobs = [answer.job_id for answer in grid.submit([("one", request), ("two", request)])]
        assert {the_end(grid, job_id).outcome for job_id in jobs} == {"finished"}
        folders = {job_id: list(tmp_path.glob(f"grid/**/jobs/{job_id}.1")) for job_id in jobs}
        states = {job_id: [read_state(folder) for folder in found] for job_id, found in folders.items()}
    finally:
        grid.stop()
    spans = {path.name: json.loads(path.read_text()) for path in counts.iterdir()}
    assert len(spans) == 8
    for one, other in itertools.product(spans, spans):
        if one.partition("-")[0] < other.partition("-")[0]:
            # A process stops when it next has a processor: eight of them and other tests share two. Without pauses the
            # two jobs would count together all of the time; that nothing runs while paused has a test of its own.
            assert overlap_s(spans[one], spans[other]) < 0.4 * WORK_S, (one, other)
    for job_id, pieces in states.items():
        paused_ms = min(state.paused_ms for state in pieces if state is not None)
        assert len(pieces) == 2
        assert paused_ms > 2 * SLICE_MS, "it was paused in several slices"
        last = max((found for name, found in spans.items() if name.startswith(f"{job_id}-")), key=lambda one: one[-1])
        gaps_s = sum(after[0] - before[1] for before, after in itertools.pairwise(last))
        assert gaps_s > 0.9 * paused_ms / 1000 - GAP_S, "it counted while it was paused"

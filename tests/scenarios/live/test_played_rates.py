"""Scenarios on Ray whose jobs work at rates other than 1, change their rates, or are evicted and resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridweave.scenarios.live.compare import LiveRun
from gridweave.scenarios.live.runner import run_on_ray
from gridweave.scenarios.scenario.run import run_scenario

SPEED = 200.0  # a job of 200 s runs for 1 s: longer than a busy machine needs to start another beside it

HEAD = """
[workload]
trace = "jobs.swf"
nodes = 8
"""

JOBS = ((0, 200, 4), (1, 240, 4), (2, 320, 4), (3, 200, 2), (4, 280, 2))
"""Submit time, run time and width of the jobs, in seconds and nodes."""

NORTH = """
[[sites]]
name = "north"
nodes = 4
"""


def played(folder: Path, *parts: str, jobs: tuple[tuple[int, int, int], ...] = JOBS, speed: float = SPEED) -> LiveRun:
    """Run jobs live on the sites and the grid of a scenario, with limits that no busy machine reaches."""
    lines = ["; MaxNodes: 8"]
    for number, (submit_s, run_s, width) in enumerate(jobs, 1):
        fields = ["-1"] * 18
        fields[:5] = [str(number), str(submit_s), "-1", str(run_s), str(width)]
        fields[7:9], fields[10], fields[11] = [str(width), str(20 * run_s)], "1", "1"
        fields[14] = str(number)
        lines.append(" ".join(fields))
    (folder / "jobs.swf").write_text("\n".join(lines) + "\n")
    path = folder / "played.toml"
    path.write_text("\n".join([parts[0], HEAD, *parts[1:]]) + "\n")
    return run_on_ray(path, speed=speed)


def slowdowns(done: LiveRun) -> tuple[list[float], list[float]]:
    """Return each job's slowdown relative to rate 1, simulated and live; check that all jobs ended."""
    assert set(done.outcomes) == {"finished"}
    run_ms = done.live.workload.run_ms
    simulated = (done.simulated.end_ms - done.simulated.start_ms) / run_ms
    return simulated.tolist(), (done.needed_ms / run_ms).tolist()


LOCAL = '[grid]\nmode = "local"\n'

LINKS = """
[net]
nodes = [{ name = "a" }, { name = "b" }]
links = [{ from = "a", to = "b", latency_ms = 5, bandwidth_bps = 1e9 }]
"""


@pytest.mark.ray
def test_split_jobs_slow_down_by_the_factor_of_the_links(ray_cluster: None, tmp_path: Path) -> None:
    """A job that communicates is slower on two sites by the factor of the links between them."""
    sites = NORTH + 'at = "a"\n' + NORTH.replace("north", "south") + 'at = "b"\n'
    sends = '[workload.communication]\npattern = "ring"\nfraction = 0.02\nmessage_bytes = 1e6\n'
    grid = '[grid]\nmode = "multi-site"\n'
    done = played(tmp_path, sites, sends, grid, LINKS, jobs=((0, 200, 6), (1, 240, 2)))
    _, live = slowdowns(done)
    assert done.live.multi_site.tolist() == [True, False]
    idle = run_scenario(tmp_path / "played.toml")  # on a grid where starts and ends take no time
    factors = (idle.end_ms - idle.start_ms) / idle.workload.run_ms
    assert factors[0] > 1.1
    assert live == pytest.approx(factors.tolist(), rel=1e-3)
    # Its processes worked no less than that.
    assert (done.longer_ms >= 0).all()


@pytest.mark.ray
def test_jobs_that_share_nodes_slow_each_other(ray_cluster: None, tmp_path: Path) -> None:
    """On hyperthreaded nodes both jobs overlap and take longer than alone, as in the simulation."""
    header = "job_id,cpu_fraction,network_fraction,disk_fraction,memory_fraction"
    needs = ("1,0.9,0.05,0.05,0.3", "2,0.05,0.05,0.9,0.3")
    (tmp_path / "jobs.csv").write_text("\n".join([header, *needs]) + "\n")
    policy = 'discipline = "lomarc"\nsharing = { variant = "L-U1" }\n'
    jobs = ((0, 400, 4), (1, 400, 4))
    done = played(tmp_path, NORTH + policy, 'resources = "jobs.csv"', LOCAL, jobs=jobs)
    simulated, live = slowdowns(done)
    assert min(simulated) > 1.1
    assert min(live) > 1.05
    assert done.live.start_ms.max() < done.live.end_ms.min()


@pytest.mark.ray
def test_jobs_take_turns(ray_cluster: None, tmp_path: Path) -> None:
    """Under gang scheduling three jobs as wide as the site start before any of them ends."""
    done = played(tmp_path, NORTH + 'discipline = "gang"\ngang = { mpl = 3, slice_ms = 40_000 }\n', LOCAL)
    simulated, live = slowdowns(done)
    assert min(simulated[:3]) > 2
    assert min(live[:3]) > 1.5
    assert done.live.start_ms[:3].max() < done.live.end_ms[:3].min()


@pytest.mark.ray
def test_jobs_get_parts_of_nodes(ray_cluster: None, tmp_path: Path) -> None:
    """On a site that gives parts of nodes all jobs run at once and slower than alone, without control groups."""
    rows = [f"{number},{width},0.8,0.3" for number, (_, _, width) in enumerate(JOBS, 1)]
    (tmp_path / "needs.csv").write_text("\n".join(["job_id,tasks,cpu_need,memory_fraction", *rows]) + "\n")
    policy = 'discipline = "fractional"\nfractional = { algorithm = "GreedyP*/OPT=MIN" }\n'
    done = played(tmp_path, NORTH + policy, 'needs = "needs.csv"', LOCAL)
    simulated, live = slowdowns(done)
    assert min(simulated) > 2
    assert min(live) > 1.5
    assert done.live.start_ms.max() < done.live.end_ms.min()


@pytest.mark.ray
def test_jobs_are_faster_on_fast_machines(ray_cluster: None, tmp_path: Path) -> None:
    """A job on a machine of speed 10 takes a tenth of its time."""
    kinds = 'heterogeneous.classes = [{ name = "old", count = 2 }, { name = "new", count = 2, speed = 10.0 }]\n'
    policy = f'discipline = "heterogeneous"\n{kinds}heterogeneous.predict = "estimate"\n'
    jobs = ((0, 20_000, 1), (100, 24_000, 1), (200, 200, 1), (300, 240, 1))
    done = played(tmp_path, NORTH + policy, LOCAL, jobs=jobs, speed=2 * SPEED)
    simulated, live = slowdowns(done)
    is_fast = [one < 0.5 for one in simulated]
    assert any(is_fast)
    assert [one < 0.5 for one in live] == is_fast


@pytest.mark.ray
def test_evicted_jobs_resume_from_their_saved_work(ray_cluster: None, tmp_path: Path) -> None:
    """A job of low level saves its work for a job of high level, and finishes the rest afterwards."""
    levels = '[{ name = "high", priority = 1, evicts = ["low"] }, { name = "low", priority = 0 }]'
    policy = f'discipline = "levels"\nlevels = {{ evicted = "checkpoint", levels = {levels} }}\n'
    jobs = ((0, 800, 4), (600, 200, 4))
    done = played(tmp_path, NORTH + policy, 'priorities = "job_class:2=1"', LOCAL, jobs=jobs)
    slowdowns(done)
    assert done.attempts.tolist() == [2, 1]
    assert done.live.start_ms[0] >= done.live.end_ms[1]
    # Its second start had a quarter of its work left.
    assert done.live.end_ms[0] - done.live.start_ms[0] < done.live.workload.run_ms[0]

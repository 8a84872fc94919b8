"""Scenarios on Ray whose jobs work at rates other than 1, change their rates, or are evicted and resume.

How many jobs run at once depends on how fast the machine starts them. So the tests claim nothing about that, only what
follows from the times at which the jobs ran.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gridweave.scenarios.live.compare import LiveRun
from gridweave.scenarios.live.runner import run_on_ray
from gridweave.scenarios.scenario.run import run_scenario

SPEED = 100.0  # a job of 200 s works for 2 s

HEAD = """
[workload]
trace = "jobs.swf"
nodes = 8
"""

JOBS = ((0, 200, 4), (1, 240, 4), (2, 320, 4))
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


def slowdowns(folder: Path, done: LiveRun) -> tuple[list[float], list[float]]:
    """Return each job's slowdown relative to rate 1, simulated without delays and live; check that all jobs ended."""
    assert set(done.outcomes) == {"finished"}
    simulated = run_scenario(folder / "played.toml")
    run_ms = simulated.workload.run_ms
    return ((simulated.end_ms - simulated.start_ms) / run_ms).tolist(), (done.needed_ms / run_ms).tolist()


def shared_ms(done: LiveRun) -> list[int]:
    """Return the time for which each job held its nodes at the same time as other jobs."""
    spans = list(zip(done.live.start_ms.tolist(), done.live.end_ms.tolist(), strict=True))
    times = []
    for row, (start_ms, end_ms) in enumerate(spans):
        until_ms, shared = start_ms, 0  # the time before ``until_ms`` has been counted
        for other_start_ms, other_end_ms in sorted(spans[:row] + spans[row + 1 :]):
            from_ms, to_ms = max(until_ms, other_start_ms), min(end_ms, other_end_ms)
            shared += max(0, to_ms - from_ms)
            until_ms = max(until_ms, to_ms)
        times.append(shared)
    return times


def check_slower_together(done: LiveRun, least_loss: float) -> None:
    """Check that each job lost at least the fraction `least_loss` of the time that it ran together with others.

    The time before its processes started does not count, although the job already held its nodes. Jobs that ran
    together with others for less than half of the time that they need alone are not checked.
    """
    run_ms = done.live.workload.run_ms
    together_ms = shared_ms(done) - done.longer_ms
    for lost_ms, together, alone_ms in zip(done.needed_ms - run_ms, together_ms, run_ms, strict=True):
        if together > alone_ms / 2:
            assert lost_ms > least_loss * together


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
    factors, live = slowdowns(tmp_path, done)
    assert done.live.multi_site.tolist() == [True, False]
    assert factors[0] > 1.1
    assert live == pytest.approx(factors, rel=1e-3)
    # Its processes worked no less than that.
    assert (done.longer_ms >= 0).all()


@pytest.mark.ray
def test_jobs_that_share_nodes_slow_each_other(ray_cluster: None, tmp_path: Path) -> None:
    """On hyperthreaded nodes jobs take longer together than alone."""
    header = "job_id,cpu_fraction,network_fraction,disk_fraction,memory_fraction"
    needs = ("1,0.9,0.05,0.05,0.3", "2,0.05,0.05,0.9,0.3")
    (tmp_path / "jobs.csv").write_text("\n".join([header, *needs]) + "\n")
    policy = 'discipline = "lomarc"\nsharing = { variant = "L-U1" }\n'
    jobs = ((0, 400, 4), (1, 400, 4))
    done = played(tmp_path, NORTH + policy, 'resources = "jobs.csv"', LOCAL, jobs=jobs)
    simulated, _ = slowdowns(tmp_path, done)
    assert min(simulated) > 1.1
    check_slower_together(done, 0.05)


@pytest.mark.ray
def test_jobs_take_turns(ray_cluster: None, tmp_path: Path) -> None:
    """Under gang scheduling jobs as wide as the site are paused while others work."""
    done = played(tmp_path, NORTH + 'discipline = "gang"\ngang = { mpl = 3, slice_ms = 20_000 }\n', LOCAL)
    simulated, _ = slowdowns(tmp_path, done)
    assert min(simulated) > 2
    check_slower_together(done, 0.2)


@pytest.mark.ray
def test_jobs_get_parts_of_nodes(ray_cluster: None, tmp_path: Path) -> None:
    """On a site that gives parts of nodes jobs are slower together than alone, even without control groups."""
    rows = [f"{number},{width},0.8,0.3" for number, (_, _, width) in enumerate(JOBS, 1)]
    (tmp_path / "needs.csv").write_text("\n".join(["job_id,tasks,cpu_need,memory_fraction", *rows]) + "\n")
    policy = 'discipline = "fractional"\nfractional = { algorithm = "GreedyP*/OPT=MIN" }\n'
    done = played(tmp_path, NORTH + policy, 'needs = "needs.csv"', LOCAL)
    simulated, _ = slowdowns(tmp_path, done)
    assert min(simulated) > 1.9
    check_slower_together(done, 0.2)


@pytest.mark.ray
def test_jobs_are_faster_on_fast_machines(ray_cluster: None, tmp_path: Path) -> None:
    """A job on a machine of speed 10 takes a tenth of its time, and jobs that find no such machine take all of it."""
    kinds = 'heterogeneous.classes = [{ name = "old", count = 2 }, { name = "new", count = 2, speed = 10.0 }]\n'
    policy = f'discipline = "heterogeneous"\n{kinds}heterogeneous.predict = "estimate"\n'
    jobs = ((0, 20_000, 1), (100, 24_000, 1), (200, 200, 1), (300, 240, 1))
    done = played(tmp_path, NORTH + policy, LOCAL, jobs=jobs, speed=4 * SPEED)
    simulated, live = slowdowns(tmp_path, done)
    assert [factor < 0.5 for factor in simulated] == [True, True, False, False]
    assert max(live[:2]) < 0.5
    for row in (2, 3):
        if done.live.start_ms[row] < done.live.end_ms[:2].min():
            assert live[row] > 0.9


@pytest.mark.ray
def test_evicted_jobs_resume_from_their_saved_work(ray_cluster: None, tmp_path: Path) -> None:
    """A job of low level saves its work for a job of high level, and finishes the rest afterwards."""
    levels = '[{ name = "high", priority = 1, evicts = ["low"] }, { name = "low", priority = 0 }]'
    policy = f'discipline = "levels"\nlevels = {{ evicted = "checkpoint", levels = {levels} }}\n'
    jobs = ((0, 1200, 4), (800, 20, 4))
    done = played(tmp_path, NORTH + policy, 'priorities = "job_class:2=1"', LOCAL, jobs=jobs)
    slowdowns(tmp_path, done)
    begin_ms, end_ms = done.live.start_ms.tolist(), done.live.end_ms.tolist()
    # The job of high level never waits for the other to end.
    assert done.submitted_ms[1] >= end_ms[0] or begin_ms[0] >= end_ms[1]
    if done.attempts[0] > 1:
        # Its second start had a third of its work left.
        assert end_ms[0] - begin_ms[0] < done.live.workload.run_ms[0]

"""Scenarios on Ray: what is played, what cannot be, and that it comes to an end as it should."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gridweave.errors import GridweaveError, OptionError, ScenarioError, UnavailableError
from gridweave.grid.control.limited import LEASE_MS
from gridweave.scenarios.live.compare import HEADER, LiveRun, live_run_of
from gridweave.scenarios.live.plan import (
    MARGIN_MS,
    check_playable,
    first_jobs,
    grid_plan,
)
from gridweave.scenarios.live.runner import as_live, run_on_ray
from gridweave.scenarios.live.submissions import PlannedJob, compressed
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.scenario.build import Built, build_scenario
from gridweave.scenarios.scenario.read import scenario_names
from gridweave.scenarios.scenario.run import run_built
from gridweave.scenarios.workload.table import IntArray
from gridweave.scenarios.world.connections import LiveTimes
from gridweave.site.job import JobRecord
from gridweave.site.policy import Limit, SitePolicy, Window
from gridweave.site.service.clock import Clock

SPEED = 1000.0

FILE = """
[[sites]]
name = "north"
nodes = 8

[[sites]]
name = "south"
nodes = 4

[workload]
trace = "jobs.swf"
nodes = 12

[grid]
"""


def scenario_file(folder: Path, *grid: str, jobs: int = 20, widest: int = 8, limit_s: int = 600) -> Path:
    """Write a scenario with a load of three times its nodes; the jobs of south's users fit there."""
    fields = ["-1"] * 18
    lines = ["; MaxNodes: 12"]
    for number in range(1, jobs + 1):
        width, run_s = 1 + number * 5 % (widest if number % 2 else 4), 100 + 37 * number % 400
        fields[:5] = [str(number), str(20 * number), "-1", str(run_s), str(width)]
        fields[7:9], fields[10], fields[11] = [str(width), str(limit_s)], "1", str(number % 3)
        lines.append(" ".join(fields))
    (folder / "jobs.swf").write_text("\n".join(lines) + "\n")
    path = folder / "small.toml"
    path.write_text(FILE + "\n".join(grid) + "\n")
    return path


def small(folder: Path, *grid: str, **overrides: object) -> Built:
    """Return the small scenario, ready to run."""
    return build_scenario(scenario_file(folder, *grid), {key.replace("__", "."): v for key, v in overrides.items()})


def submissions(built: Built) -> list[PlannedJob]:
    """Return the jobs of a scenario as they are submitted."""
    return compressed(built, SPEED, "run")


def test_jobs_are_submitted_as_in_the_scenario(tmp_path: Path) -> None:
    """Every job goes to the grid or its user's site, in the order of submission, with its width and limit."""
    built = small(tmp_path, 'mode = "adaptive"', workload__to_grid=0.5)
    jobs = submissions(built)
    assert [job.row for job in jobs] == list(range(20))
    assert [job.submit_ms for job in jobs] == (built.workload.submit_ms // 1000).tolist()
    assert [job.request.nodes for job in jobs] == built.workload.width.tolist()
    assert [job.request.limit_ms for job in jobs] == (built.workload.estimate_ms // 1000).tolist()
    homes = [built.site_names[home] for home in built.home]
    assert [job.site for job in jobs] == [
        None if grid else home for grid, home in zip(built.to_grid, homes, strict=True)
    ]
    assert {job.site for job in jobs} == {None, "north", "south"}


def test_jobs_that_overran_are_ended_at_their_limit(tmp_path: Path) -> None:
    """A job that overran its estimate in the trace has work far beyond its limit."""
    built = small(tmp_path)
    overran = np.arange(20) == 3
    workload = built.workload.replace(run_ms=np.where(overran, 600_000, built.workload.run_ms), overran=overran)
    jobs = submissions(replace(built, workload=workload))
    works_ms = [float(job.request.program.argv[-1]) for job in jobs]
    assert works_ms[3] >= 60_000
    assert max(work for row, work in enumerate(works_ms) if row != 3) < 600


def test_the_plan_has_the_sites_and_the_policy_of_the_scenario(tmp_path: Path) -> None:
    built = small(tmp_path, 'mode = "adaptive"', "overhead = 0.2", sites__south__grid_share=0.5)
    plan = grid_plan(built, folder="f", namespace="n", labelled=True, clock=Clock(speed=100.0))
    assert [(site.name, site.nodes, site.machines, site.virtual) for site in plan.sites] == [
        ("north", 8, 1, True),
        ("south", 4, 1, True),
    ]
    assert plan.policy == built.policy
    assert plan.settings().sites == (("north", 8), ("south", 2))
    # On a fast clock what takes real time takes longer.
    assert (plan.margin_ms, plan.lease_ms) == (100 * MARGIN_MS, 100 * LEASE_MS)


def test_mode_local_has_an_idle_grid(tmp_path: Path) -> None:
    """All jobs are submitted to sites, but the grid has a policy."""
    built = small(tmp_path, 'mode = "local"')
    assert grid_plan(built, folder="f", namespace="n", labelled=True).policy.mode == "sharing"
    assert {job.site for job in submissions(built)} == {"north", "south"}


def test_a_run_can_be_limited_to_its_first_jobs(tmp_path: Path) -> None:
    """The jobs keep their homes; zero jobs are refused."""
    built = small(tmp_path)
    some = first_jobs(built, 5)
    assert some.workload.job_id.tolist() == built.workload.job_id[:5].tolist()
    assert len(some.home) == len(some.to_grid) == 5
    assert len(first_jobs(built, 500).workload) == len(first_jobs(built, None).workload) == 20
    with pytest.raises(OptionError, match="at least 1"):
        first_jobs(built, 0)


def test_unsupported_features_are_reported_at_once(tmp_path: Path) -> None:
    """Features that need real traffic are refused, and on a running grid also faults and lost messages."""
    faulty = small(tmp_path, faults__crash_every_ms=1e6, network__loss=0.1)
    with pytest.raises(ScenarioError) as refused:
        check_playable(faulty, "http://127.0.0.1:8765")
    assert [str(problem).split(": ")[2] for problem in refused.value.problems] == ["network", "faults"]
    assert check_playable(faulty) == ["a lost message is sent again after 1 s of real time: give a low --speed"]
    few = {"workload.jobs": 20}
    shared = build_scenario("hyperthreaded-site", few)
    assert check_playable(shared, speed=100.0) == check_playable(shared, "grid", speed=1.0) == []
    with pytest.raises(ScenarioError, match=r"sites\.north\.discipline: .*; give --speed 1, or use --on ray"):
        check_playable(shared, "grid", speed=100.0)
    assert check_playable(build_scenario("european-grid", few)) == []
    with pytest.raises(ScenarioError) as refused:
        check_playable(build_scenario("link-cut", few))
    assert [str(problem).split(": ")[2] for problem in refused.value.problems] == [
        "grid.contention",
        "net.changes, net.failures",
    ]
    with pytest.raises(ScenarioError, match=r"grid\.data: is 'blocking'; workers read and write no data"):
        check_playable(build_scenario("data-grid", few))
    late = small(tmp_path, network__latency_ms=20, grid__selection="random")
    assert (len(check_playable(late)), len(check_playable(late, "grid"))) == (1, 2)


REFUSED = {"data-grid": ["grid.data"], "link-cut": ["grid.contention", "net.changes, net.failures"]}


@pytest.mark.parametrize("name", scenario_names())
def test_all_of_the_catalogue_can_be_played_but_for_named_reasons(name: str) -> None:
    """What a live run refuses of a scenario is in docs/live-runs.md; `benchmarks/live_scenarios.py` plays the rest."""
    try:
        built = build_scenario(name)
    except GridweaveError as error:
        pytest.skip(str(error))  # its trace or its topology has to be fetched
    try:
        check_playable(built)
        refused = []
    except ScenarioError as error:
        refused = [str(problem).split(": ")[2] for problem in error.problems]
    assert refused == REFUSED.get(name, [])


def test_windows_of_the_week_are_not_played(tmp_path: Path) -> None:
    """They follow the time of day, which passes no faster in a live run."""
    built = small(tmp_path)
    windows = SitePolicy(discipline="planning", limits=(Limit(window=Window(to_ms=3_600_000)),))
    with pytest.raises(ScenarioError, match="sites with windows can only be simulated"):
        check_playable(replace(built, site_policies=(windows, *built.site_policies[1:])))


def test_jobs_declare_their_traffic() -> None:
    """With [net] each job declares its traffic; without, each declares none."""
    sends = submissions(build_scenario("european-grid", {"workload.jobs": 50}))
    said = [job.request.traffic for job in sends]
    assert {traffic.pattern for traffic in said if traffic} >= {"ring", "all-to-all"}
    assert all(traffic and (traffic.fraction > 0) != (traffic.communication == "none") for traffic in said)
    quiet = submissions(build_scenario("two-sites", {"workload.jobs": 50}))
    assert {job.request.traffic.communication for job in quiet if job.request.traffic} == {"none"}


def test_invalid_speeds_and_addresses_are_refused(tmp_path: Path) -> None:
    """An invalid speed and a silent address are reported before anything starts."""
    path = scenario_file(tmp_path)
    with pytest.raises(OptionError, match="speed"):
        run_on_ray(path, speed=-1)
    with pytest.raises(OptionError, match="address"):
        run_on_ray(path, address=" ")


def compared(built: Built, *, later_ms: int, longer_ms: int) -> LiveRun:
    """Return a run in which all jobs start later and take longer than in the simulation by fixed times."""
    simulated = run_built(built)
    moved = replace(simulated, start_ms=simulated.start_ms + later_ms, end_ms=simulated.end_ms + later_ms + longer_ms)
    count = len(built.workload)
    return LiveRun(
        simulated=simulated,
        live=replace(moved, shared=True),
        speed=SPEED,
        submitted_ms=built.workload.submit_ms + 100,
        placed_ms=moved.start_ms,
        needed_ms=simulated.end_ms - simulated.start_ms,
        outcomes=("limit", *["finished"] * (count - 1)),
        attempts=np.ones(count, np.int64),
        remarks=(),
    )


def test_differences_from_the_simulation_are_reported(tmp_path: Path) -> None:
    """Differences of starts and ends, delays and the verdict are those of the two schedules."""
    done = compared(small(tmp_path, "overhead = 0.5"), later_ms=2_000, longer_ms=1_000)
    assert set(done.start_differences_ms.tolist()) == {2_000}
    assert set(done.end_differences_ms.tolist()) == {3_000}
    assert set(done.longer_ms.tolist()) == {1_000}
    assert set(done.late_ms.tolist()) == {100}
    assert not done.elsewhere.any()
    span_ms = int(done.simulated.end_ms.max()) - int(done.live.workload.submit_ms[0])
    assert done.makespan_difference == pytest.approx(3_000 / span_ms)
    assert done.is_within_tolerance
    assert "yes" in done.verdict()
    assert done.warnings() == []
    assert dict(done.count_rows())["of these ended at their limit"] == "1"


def test_a_slow_machine_is_warned_of(tmp_path: Path) -> None:
    """If jobs hold their nodes much longer than they work, a warning proposes a lower speed."""
    done = compared(small(tmp_path), later_ms=10_000, longer_ms=100_000)
    assert done.behind > 0.2
    assert "such as" in done.warnings()[0]
    assert not done.is_within_tolerance
    failed = replace(done, outcomes=("failed",) * 20)
    assert "20 jobs failed" in failed.verdict()


def test_files_of_a_run(tmp_path: Path) -> None:
    """jobs.csv has both schedules, summary.json the printed figures."""
    done = compared(small(tmp_path), later_ms=2_000, longer_ms=1_000)
    files = done.write(tmp_path / "out", plots=False)
    assert [file.name for file in files] == ["jobs.csv", "summary.json"]
    rows = list(csv.DictReader(files[0].read_text().splitlines()))
    assert tuple(rows[0]) == HEADER
    assert all(int(row["live_start_ms"]) - int(row["simulated_start_ms"]) == 2_000 for row in rows)
    assert json.loads(files[1].read_text())["placed_elsewhere"] == 0


def records_of(built: Built, result: SimulationResult, submitted_ms: IntArray) -> list[JobRecord]:
    """Return the records that a live grid would have of a schedule."""
    jobs, records = submissions(built), []
    for row, job in enumerate(jobs):
        places = tuple((built.site_names[site], nodes) for site, nodes in result.fragments_of(row))
        start_ms, end_ms = int(result.start_ms[row]), int(result.end_ms[row])
        times = {"submit_ms": int(submitted_ms[row]), "placed_ms": start_ms, "start_ms": start_ms, "end_ms": end_ms}
        ended = {"state": "ended", "outcome": "finished", "places": places}
        records.append(JobRecord(job_id=row + 1, request=job.request, **times, **ended))  # type: ignore[arg-type]
    return records


@pytest.mark.parametrize("mode", ["sharing", "multi-site", "adaptive"])
def test_a_run_simulated_again_with_its_times_is_the_same(tmp_path: Path, mode: str) -> None:
    """The simulation reproduces a run's placements even if jobs arrived late, ran longer and changed order."""
    built = small(tmp_path, f'mode = "{mode}"', "overhead = 0.25")
    rng = np.random.default_rng(3)
    late_ms = built.workload.submit_ms + rng.integers(0, 60_000, 20)
    order = np.lexsort((built.workload.job_id, late_ms))
    longer_ms = built.workload.run_ms + rng.integers(0, 50, 20) * 1_000
    happened = built.workload.take(order, submit_ms=late_ms[order], run_ms=longer_ms[order])
    live = run_built(replace(built, workload=happened, home=built.home[order], to_grid=built.to_grid[order]))
    row_of = np.argsort(order)
    records = records_of(replace(built, workload=happened), live, late_ms[order])
    done = live_run_of(built, run_built(built), [records[row] for row in row_of], speed=SPEED, replay=True)
    assert done.start_differences_ms.any()
    assert done.same_decisions == (20, 20)
    assert done.summary()["placed_as_replayed"] == done.summary()["replayed"] == 20
    files = done.write(tmp_path / "out", plots=False)
    rows = list(csv.DictReader(files[0].read_text().splitlines()))
    assert [row["replayed_start_ms"] for row in rows] == [row["live_start_ms"] for row in rows]


def test_decisions_not_due_to_timing_are_counted(tmp_path: Path) -> None:
    """Decisions that the live times do not explain are counted."""
    built = small(tmp_path)
    result = run_built(built)
    records = records_of(built, result, built.workload.submit_ms)
    moved = next(record for record in records if record.places[0][0] == "south")
    moved.places = (("north", moved.places[0][1]),)
    done = live_run_of(built, result, records, speed=SPEED, replay=True)
    assert done.same_decisions == (19, 20)


def test_jobs_that_ended_at_their_limit_count_as_killed(tmp_path: Path) -> None:
    """Live jobs count by their outcome, simulated jobs if their work leaves no time before the limit."""
    built = small(tmp_path)
    tight = np.arange(20) < 3
    workload = built.workload.replace(estimate_ms=np.where(tight, built.workload.run_ms, built.workload.estimate_ms))
    built = as_live(replace(built, workload=workload), LiveTimes(start_ms=5, end_ms=5), SPEED)
    simulated = run_built(built)
    records = records_of(built, simulated, workload.submit_ms)
    for record in records[:3]:
        record.outcome = "limit"
    done = live_run_of(built, simulated, records, speed=SPEED)
    assert (done.summary()["simulated"]["killed"], done.summary()["live"]["killed"]) == (3, 3)
    done.write(tmp_path / "out", plots=False)
    assert [bool(killed) for killed in done.live.killed] == tight.tolist()
    assert done.same_decisions is None


def legal(done: LiveRun) -> None:
    """Check that every job of a live run ended, on nodes that exist."""
    result = done.live
    assert set(done.outcomes) <= {"finished", "limit"}
    assert (done.attempts >= 1).all()
    for row, width in enumerate(result.workload.width.tolist()):
        parts = result.fragments_of(row)
        assert sum(nodes for _, nodes in parts) == width
        assert all(1 <= nodes <= result.site_nodes[site] for site, nodes in parts)
        assert len({site for site, _ in parts}) == len(parts)
    assert (result.start_ms >= done.submitted_ms).all()
    assert (result.end_ms > result.start_ms).all()


@pytest.mark.ray
def test_first_come_first_served_on_ray(ray_cluster: None, tmp_path: Path) -> None:
    """Without backfilling the jobs of a site start in the order of submission; nothing of the run is left."""
    import ray

    path = scenario_file(tmp_path, 'mode = "sharing"', 'backfill = "none"')
    done = run_on_ray(path, speed=SPEED)
    legal(done)
    result = done.live
    site_of = result.fragments["site"][result.first_fragment]
    for site in (0, 1):
        starts = result.start_ms[site_of == site]
        assert len(starts) > 2
        assert (np.diff(starts) >= 0).all()
    assert "no node has the label" in "".join(done.remarks)
    assert not [actor for actor in ray.util.list_named_actors(all_namespaces=True) if "run" in actor["namespace"]]


@pytest.mark.ray
def test_splits_and_own_users_on_ray(ray_cluster: None, tmp_path: Path) -> None:
    """Jobs are split over real sites, own users' jobs run at home, and all end."""
    path = scenario_file(tmp_path, 'mode = "multi-site"', "overhead = 0.5", widest=12)
    built = build_scenario(path, {"workload.drop_wide": True, "workload.to_grid": 0.7})
    done = run_on_ray(path, overrides={"workload.drop_wide": True, "workload.to_grid": 0.7}, speed=SPEED)
    legal(done)
    assert done.live.multi_site.any()
    own = ~built.to_grid
    assert own.any()
    assert all(
        done.live.fragments_of(row) == [(built.home[row], built.workload.width[row])] for row in np.flatnonzero(own)
    )
    assert (done.longer_ms[np.array(done.outcomes) == "finished"] >= 0).all()


@pytest.mark.ray
@pytest.mark.parametrize("mode", ["sharing", "multi-site"])
def test_a_live_run_is_as_simulated_with_its_lengths(mode: str, ray_cluster: None, tmp_path: Path) -> None:
    """The simulation has the submissions and the lengths that jobs had live, and decides as the grid did on the first.

    It does not know how long each message took: on a busy machine any of the later jobs may be placed otherwise.
    """
    speed = 100.0
    path = scenario_file(tmp_path, f'mode = "{mode}"', jobs=12, widest=8 if mode == "sharing" else 12, limit_s=6_000)
    done = run_on_ray(path, speed=speed)
    assert set(done.outcomes) == {"finished"}
    assert any("simulated with measured times: processes took" in remark for remark in done.remarks)
    assert done.live.multi_site.any() == (mode == "multi-site")
    assert done.same_decisions is not None
    assert done.replay is not None
    alike, of = done.same_decisions
    assert of == 12
    first = int(np.lexsort((done.live.workload.job_id, done.submitted_ms))[0])
    assert done.replay.fragments[first] == tuple(sorted(done.live.fragments_of(first)))
    assert (done.replay.start_ms >= done.submitted_ms).all()
    on_one_site = np.array([len(parts) == 1 for parts in done.replay.fragments]) & ~done.live.multi_site
    assert on_one_site.any()
    lengths_ms = (done.replay.end_ms - done.replay.start_ms)[on_one_site]
    assert lengths_ms == pytest.approx((done.live.end_ms - done.placed_ms)[on_one_site], abs=1)
    assert dict(done.count_rows())["placed as simulated again with the live times"] == f"{alike} of 12"


@pytest.mark.ray
def test_sites_need_their_labels(ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only some sites have labelled nodes, the first that has none is told."""
    import ray

    nodes = [node | {"Labels": {"gridweave.io/site": "north"}} for node in ray.nodes()]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    with pytest.raises(UnavailableError, match="site=south"):
        run_on_ray(scenario_file(tmp_path), speed=SPEED)

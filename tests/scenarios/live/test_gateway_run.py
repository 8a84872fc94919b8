"""Scenarios on a running grid: which grids are accepted, what is submitted, and that a run leaves nothing behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web

import gridweave
from gridweave.errors import OptionError, ScenarioError, UnavailableError
from gridweave.grid.api import FragmentLimit, Scheduling, SiteInfo
from gridweave.grid.gateway.call import GatewayCall, Router
from gridweave.grid.gateway.problems import RefusalError
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.live import runner
from gridweave.scenarios.live.plan import (
    START_REAL_MS,
    check_grid,
    expanded,
    short_limits,
    suitable_speed,
)
from gridweave.scenarios.live.runner import PLAYING, run_on_gateway
from gridweave.scenarios.live.submissions import compressed, working
from gridweave.scenarios.scenario.build import Built, build_scenario
from gridweave.scenarios.scenario.run import run_scenario
from gridweave.scenarios.workload.table import Workload
from gridweave.site.job import JobRecord
from support.gateway import Elsewhere
from support.live_grids import GridBehindGateway
from support.machine import PATIENCE_S

SITES = (("north", (2, 2)), ("south", (2,)))

FILE = """
[[sites]]
name = "north"
nodes = 4

[[sites]]
name = "south"
nodes = 2

[workload]
trace = "jobs.swf"
nodes = 6

[grid]
mode = "multi-site"
"""


def scenario_file(folder: Path, *grid: str, jobs: int = 8, run_s: int = 100) -> Path:
    """Write a scenario of some jobs for two sites with 4 and 2 nodes; one of them is wider than any site."""
    fields = ["-1"] * 18
    lines = ["; MaxNodes: 6"]
    for number in range(1, jobs + 1):
        width = 6 if number == 3 else 1 + number % 3
        fields[:5] = [str(number), str(10 * number), "-1", str(run_s + 10 * (number % 4)), str(width)]
        fields[7:9], fields[10], fields[11] = [str(width), str(run_s * 200)], "1", "1"
        lines.append(" ".join(fields))
    (folder / "jobs.swf").write_text("\n".join(lines) + "\n")
    path = folder / "small.toml"
    path.write_text(FILE + "\n".join(grid) + "\n")
    return path


def small(folder: Path, *grid: str, **overrides: object) -> Built:
    """Return the small scenario, ready to run."""
    return build_scenario(scenario_file(folder, *grid), {key.replace("__", "."): v for key, v in overrides.items()})


def sites(**changes: Any) -> list[SiteInfo]:
    """Return the sites of the small scenario as a gateway reports them, with changes to the first."""
    north = SiteInfo(name="north", nodes=4, for_grid=4, free=4, policy="fcfs easy")
    south = SiteInfo(name="south", nodes=2, for_grid=2, free=2, policy="fcfs easy")
    return [msgspec.structs.replace(north, **changes), south]


def scheduling(policy: GridPolicy | None = None, *, links: bool = False) -> Scheduling:
    """Return the report of a grid with this policy on how it schedules."""
    policy = policy or GridPolicy(mode="multi-site")
    names = ("mode", "control", "order", "backfill", "selection", "lower_bound")
    said: dict[str, Any] = {name: getattr(policy, name) for name in names}
    said["max_fragments"] = tuple(FragmentLimit(*limit) for limit in policy.max_fragments)
    return Scheduling(now_ms=0, overhead=policy.overheads, links=links, margin_ms=500, **said)


# -- whether the grid is that of the scenario -------------------------------------------------------------------------


def test_a_matching_grid_is_accepted(tmp_path: Path) -> None:
    """A grid with the scenario's sites and policy is accepted; if it models links, a remark says so."""
    built = small(tmp_path)
    assert check_grid(built, sites(), scheduling()) == []
    assert "a split costs nothing" in check_grid(built, sites(), scheduling(links=True))[0]
    sharing = small(tmp_path, grid__mode="sharing", workload__drop_wide=True)
    assert check_grid(sharing, sites(), scheduling(GridPolicy(mode="sharing"), links=True)) == []


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ([], "its sites are none; the scenario has north 4, south 2"),
        (sites(nodes=5), "its sites are north 5, south 2; the scenario has north 4, south 2"),
        (list(reversed(sites())), "its sites are south 2, north 4; the scenario"),
        (sites(for_grid=3), "its site north grants the grid 3 nodes; in the scenario 4"),
        (sites(answers=False), "its site north does not answer"),
        (sites(draining=True), "gridweave resume north"),
    ],
)
def test_other_sites_are_refused(there: list[SiteInfo], says: str, tmp_path: Path) -> None:
    """Other sites, sizes or shares, and drained or silent sites, are refused by name."""
    with pytest.raises(ScenarioError) as refused:
        check_grid(small(tmp_path), there, scheduling())
    assert says in str(refused.value)


def test_other_policies_are_refused_all_at_once(tmp_path: Path) -> None:
    """Every differing key is reported with both values."""
    other = GridPolicy(mode="adaptive", order="sjf", overhead=(0.1, 0.2), max_fragments=((4, 2),))
    with pytest.raises(ScenarioError) as refused:
        check_grid(small(tmp_path), sites(), scheduling(other))
    assert [problem.split("differs from the scenario: ")[1] for problem in refused.value.problems] == [
        "its grid.mode is adaptive; in the scenario multi-site",
        "its grid.order is sjf; in the scenario fcfs",
        "its grid.overhead is 0.1, 0.2; in the scenario 0",
        "its grid.max_fragments is (4, 2); in the scenario unlimited",
    ]


def test_policies_that_affect_no_job_are_ignored(tmp_path: Path) -> None:
    """Disciplines of sites matter only if jobs queue there, the grid's policy only if it gets jobs."""
    other = sites(policy="sjf none")
    assert check_grid(small(tmp_path), other, scheduling()) == []
    own = small(tmp_path, workload__to_grid=0.5, workload__transform=[{"split": "site"}])
    with pytest.raises(ScenarioError, match="its site north schedules by 'sjf none'; in the scenario by 'fcfs easy'"):
        check_grid(own, other, scheduling())
    local = small(tmp_path, grid__mode="local", workload__transform=[{"split": "site"}])
    assert check_grid(local, sites(for_grid=0), scheduling(GridPolicy(mode="sharing"))) == []


# -- what is handed in ------------------------------------------------------------------------------------------------


def test_times_are_divided_by_the_speed(tmp_path: Path) -> None:
    """Submissions, work and limits are divided by the speed; the jobs are an array, indexed by row."""
    built = small(tmp_path)
    jobs = compressed(built, 100.0, "run-7")
    assert [job.submit_ms for job in jobs] == (built.workload.submit_ms // 100).tolist()
    assert {job.request.limit_ms for job in jobs} == {200_000}
    assert jobs[0].request.program == working(1_100.0)
    assert [job.request.array.index for job in jobs if job.request.array] == list(range(8))
    assert {job.request.array.name for job in jobs if job.request.array} == {"run-7"}


def test_records_are_converted_to_scenario_time() -> None:
    """Times of the grid's clock become scenario times; missing times stay missing."""
    request = gridweave.JobRequest(program=gridweave.Program(argv=("true",)), limit_ms=1_000)
    record = JobRecord(
        job_id=1, request=request, submit_ms=1_010, placed_ms=1_190, start_ms=1_200, ran_ms=(1_210, 1_220)
    )
    found = expanded(record, 1_000, 50.0)
    assert (found.submit_ms, found.placed_ms, found.start_ms, found.end_ms) == (500, 9_500, 10_000, None)
    assert found.ran_ms == (10_500, 11_000)


def test_the_chosen_speed_keeps_starts_short() -> None:
    """Starting processes takes at most 1% of the work, and at least a fifth of that."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        count = int(rng.integers(1, 30))
        width, run_ms = rng.integers(1, 64, count), rng.integers(20_000, 10**8, count)
        jobs = Workload(
            job_id=np.arange(1, count + 1),
            submit_ms=np.zeros(count, np.int64),
            width=width,
            run_ms=run_ms,
            estimate_ms=run_ms,
        )
        speed = suitable_speed(jobs)
        part = START_REAL_MS * speed * float(width.sum()) / float((width * run_ms).sum())
        assert part <= 0.01 or speed == 1
        assert part > 0.002
    short = Workload(job_id=[1], submit_ms=[0], width=[1], run_ms=[1_000], estimate_ms=[1_000])
    assert suitable_speed(short) == 1


def test_short_limits_are_counted() -> None:
    """Jobs with less than a second of real time before their limit are counted, except jobs that overran it."""
    jobs = Workload(
        job_id=[1, 2, 3],
        submit_ms=[0, 0, 0],
        width=[1, 1, 1],
        run_ms=[50_000, 59_000, 60_000],
        estimate_ms=[60_000, 60_000, 60_000],
        overran=[False, False, True],
    )
    assert [short_limits(jobs, speed) for speed in (1.0, 5.0, 100.0)] == [0, 1, 2]


# -- played -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_on_real_sites(tmp_path: Path) -> None:
    """Jobs run as processes, a wide one on both sites; all records are read, and idempotency keys are used once."""
    told: list[tuple[int, int, str]] = []
    path = scenario_file(tmp_path, run_s=60)
    with GridBehindGateway(tmp_path / "grid", SITES) as grid:
        done = run_on_gateway(path, grid.url, speed=100.0, progress=lambda *what: told.append(what))
        with gridweave.SyncClient(grid.url) as client:
            records = list(client.jobs())
    assert set(done.outcomes) == {"finished"}
    result = done.live
    assert result.multi_site[2]  # wider than a site; on a busy machine another may find its nodes on both, too
    assert [sum(nodes for _, nodes in result.fragments_of(row)) for row in range(8)] == result.workload.width.tolist()
    assert (done.longer_ms >= 0).all()
    assert (done.submitted_ms >= result.workload.submit_ms - 100).all()
    assert (result.start_ms >= done.submitted_ms).all()
    assert len(records) == 8
    assert {record.request.array.name for record in records if record.request.array} == {
        records[0].request.array.name if records[0].request.array else ""
    }
    assert not [remark for remark in done.remarks if "others" in remark]
    assert (done.where, done.speed) == (grid.url, 100.0)
    assert told[-1][:2] == (8, 8)
    files = done.write(tmp_path / "out", plots=False)
    assert json.loads(files[1].read_text())["on"] == grid.url


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["local", "multi-site"])
def test_users_cancel_waiting_jobs(tmp_path: Path, mode: str) -> None:
    """A cancelled job never starts if it still waits; a job that has started continues."""
    path = scenario_file(tmp_path, jobs=3, run_s=300)
    # Number, submission, wait until it is cancelled, run time, width, limit.
    jobs = ((1, 0, -1, 300, 4, 9000), (2, 10, 60, -1, 4, 9000), (3, 20, 500, -1, 1, 400), (4, 30, -1, 100, 4, 9000))
    lines = ["; MaxNodes: 6"]
    for number, submit_s, wait_s, run_s, width, limit_s in jobs:
        fields = ["-1"] * 18
        fields[:5] = [str(number), str(submit_s), str(wait_s), str(run_s), str(width)]
        fields[7:9], fields[10], fields[11] = [str(width), str(limit_s)], "5" if run_s < 0 else "1", "1"
        lines.append(" ".join(fields))
    (tmp_path / "jobs.swf").write_text("\n".join(lines) + "\n")
    changes = {"workload.cancelled": True, "grid.mode": mode, "workload.home": {"north": 1}}
    with GridBehindGateway(tmp_path / "grid", SITES) as grid:
        done = run_on_gateway(path, grid.url, overrides=changes, speed=100.0)
        with gridweave.SyncClient(grid.url) as client:
            records = {record.request.name: record for own in ("", "north") for record in client.jobs(own=own)}
    assert run_scenario(path, overrides=changes).cancelled.tolist() == [False, True, False, False]
    # On a busy machine job 2 may start before, and job 3 after, the time at which it is cancelled.
    for row in (1, 2):
        assert (done.outcomes[row] == "cancelled") == (records[f"job {row + 1}"].starts == 0)
    assert done.same_decisions is not None
    assert done.same_decisions[0] == done.same_decisions[1]
    if done.outcomes[2] != "cancelled":
        assert "cancelled" not in done.verdict()


@pytest.mark.slow
def test_jobs_of_own_users_and_of_others(tmp_path: Path) -> None:
    """Own users' jobs run at their sites; jobs of others before and during the run are reported."""
    path = scenario_file(tmp_path, run_s=30)
    overrides = {"workload.to_grid": 0.5, "workload.transform": [{"split": "site"}]}
    built = build_scenario(path, overrides)
    with GridBehindGateway(tmp_path / "grid", SITES) as grid, gridweave.SyncClient(grid.url) as client:
        before = client.submit(["sleep", "600"], site="south")
        seen: list[int] = []

        def another(done: int, total: int, what: str) -> None:
            if what == PLAYING and not seen:
                before.cancel()
                seen.append(client.submit(["true"]).id)

        done = run_on_gateway(path, grid.url, overrides=overrides, speed=100.0, progress=another)
    own = ~built.to_grid
    assert own.any()
    assert set(done.outcomes) == {"finished"}
    for row in np.flatnonzero(own).tolist():
        assert done.live.fragments_of(row) == [(built.home[row], built.workload.width[row])]
    text = "\n".join(done.remarks)
    assert "others used the grid at the start: 1 node of south" in text
    assert "the grid had jobs of others during the run (1 submitted during it" in text


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    """Yield a gateway of an idle grid in memory with the sites of the small scenario."""
    here = Elsewhere()
    here.grid.nodes = {"north": 4, "south": 2}
    yield here
    here.close()


def test_jobs_that_do_not_end_are_cancelled(
    elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time limit a run fails with one line, and none of its jobs is left."""
    monkeypatch.setattr(runner, "patience_s", lambda simulated, speed: 5.0)
    with pytest.raises(UnavailableError, match="have not ended after 5 s"):
        run_on_gateway(scenario_file(tmp_path), elsewhere.url, speed=100.0)
    assert {record.outcome for record in elsewhere.grid.records_by_id.values()} == {"cancelled"}


def test_lost_answers_submit_nothing_twice(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """Submissions with lost answers are repeated with the same keys; the grid's clock may differ."""
    grid, proxy = elsewhere.grid, elsewhere.gateway.proxy

    def at_once(record: JobRecord) -> None:
        grid.start(record.job_id)
        grid.end(record.job_id)

    grid.runs = at_once
    proxy.kinds, proxy.chance = ("after", "half"), 0.4
    done = run_on_gateway(scenario_file(tmp_path), elsewhere.url, speed=100.0)
    assert proxy.faults["after"] + proxy.faults["half"] > 0
    assert len(grid.records_by_id) == 8
    assert done.outcomes == ("finished",) * 8
    assert re.search(r"the grid's clock is \d+ d( \d+ h)? behind that of this machine", "\n".join(done.remarks))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_cancels_its_jobs(
    elsewhere: Elsewhere, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """After Ctrl-C or TERM all jobs of the run are cancelled, but no other jobs."""
    all_are_there = threading.Event()
    with gridweave.SyncClient(elsewhere.url) as client:
        other = client.submit(["true"])
    elsewhere.grid.runs = lambda record: all_are_there.set() if record.job_id == 9 else None
    command = [sys.executable, "-m", "gridweave.cli", "run", str(scenario_file(tmp_path)), "--on", elsewhere.url]
    with subprocess.Popen([*command, "--speed", "100"], stderr=subprocess.PIPE, text=True) as run:
        try:
            assert all_are_there.wait(PATIENCE_S)
            run.send_signal(number)
            said = run.communicate(timeout=PATIENCE_S)[1]
        finally:
            run.kill()
    assert run.returncode == status
    assert "Traceback" not in said
    records = elsewhere.grid.records_by_id
    assert [records[job_id].outcome for job_id in range(2, 10)] == ["cancelled"] * 8
    assert records[other.id].state == "waiting"


def test_a_gateway_without_scheduling_is_refused(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """Gateways of earlier releases and of sites are recognized."""
    answer = Router.answer

    async def answer_without_it(self: Router, call: GatewayCall) -> web.StreamResponse:
        if call.request.path == "/v1/scheduling":
            raise RefusalError("unknown-route", "there is nothing at '/v1/scheduling'")
        return await answer(self, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Router, "answer", answer_without_it)
        with pytest.raises(UnavailableError, match="does not report how it schedules"):
            run_on_gateway(scenario_file(tmp_path), elsewhere.url, speed=100.0)
    assert elsewhere.grid.records_by_id == {}


def test_invalid_input_is_reported_first(tmp_path: Path) -> None:
    """Invalid addresses, speeds and scenarios are reported before anything else happens."""
    path = scenario_file(tmp_path)
    with pytest.raises(OptionError, match="url"):
        run_on_gateway(path, "http://")
    with pytest.raises(OptionError, match="speed"):
        run_on_gateway(path, "http://127.0.0.1:1", speed=0.0)
    with pytest.raises(ScenarioError, match=r"--on http://127\.0\.0\.1:1: faults"):
        run_on_gateway(path, "http://127.0.0.1:1", overrides={"faults.crash_every_ms": 1e6})

"""Faults of a scenario, drawn in advance and injected on Ray: sites that crash, connections that are cut."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridweave.errors import ScenarioError, SiteAwayError, UnavailableError
from gridweave.scenarios.live import runner
from gridweave.scenarios.live.failing import Downtime, FailingSite, Unsteady
from gridweave.scenarios.live.faults import fails, with_planned_faults
from gridweave.scenarios.live.runner import run_on_ray
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.run import run_world
from gridweave.scenarios.world.connections import Faults, PlannedFault
from gridweave.site.service.actor import SiteActor

FILE = """
[[sites]]
name = "north"
nodes = 4

[[sites]]
name = "south"
nodes = 4

[workload]
trace = "jobs.swf"
nodes = 4

[grid]
mode = "sharing"
"""

PLANNED = """
[[faults.planned]]
at_ms = 40_000
action = "crash"
site = "south"
lasts_ms = 20_000

[[faults.planned]]
at_ms = 30_000
action = "cut"
site = "north"
lasts_ms = 60_000
"""


def scenario_file(folder: Path, faults: str = PLANNED) -> Path:
    """Write a scenario of two jobs that each fill a site, and one that waits for either."""
    lines = ["; MaxNodes: 4"]
    for number, (submit_s, run_s) in enumerate(((0, 200), (1, 200), (2, 100)), 1):
        fields = ["-1"] * 18
        fields[:5] = [str(number), str(submit_s), "-1", str(run_s), "4"]
        fields[7:9], fields[10], fields[11] = ["4", "9000"], "1", "1"
        lines.append(" ".join(fields))
    (folder / "jobs.swf").write_text("\n".join(lines) + "\n")
    path = folder / "failing.toml"
    path.write_text(FILE + faults)
    return path


def drawn(seed: int) -> tuple[PlannedFault, ...]:
    """Draw faults of two sites within 100 s."""
    faults = Faults(crash_every_ms=20_000, crash_lasts_ms=2_000, cut_every_ms=10_000, cut_lasts_ms=1_000)
    return faults.drawn(2, 100_000, np.random.default_rng(seed))


def test_faults_are_drawn_by_a_seed_before_the_last_submission() -> None:
    """The same seed gives the same faults; faults of one kind do not overlap at a site."""
    found = drawn(3)
    assert found == drawn(3) != drawn(4)
    assert {fault.action for fault in found} == {"crash", "cut"}
    assert all(0 < fault.at_ms < 100_000 and fault.lasts_ms > 0 for fault in found)
    for site in (0, 1):
        for action in ("crash", "cut"):
            own = [fault for fault in found if (fault.site, fault.action) == (site, action)]
            assert all(one.at_ms + one.lasts_ms < other.at_ms for one, other in itertools.pairwise(own))


def test_the_simulation_has_planned_faults_at_their_times(tmp_path: Path) -> None:
    """A crash restarts running jobs when the site is back; a site that is cut off keeps working."""
    built = build_scenario(scenario_file(tmp_path))
    assert built.faults.planned == (
        PlannedFault(at_ms=40_000, action="crash", site=1, lasts_ms=20_000),
        PlannedFault(at_ms=30_000, action="cut", site=0, lasts_ms=60_000),
    )
    result = run_world(built, check=True)
    assert result.start_ms.tolist() == [0, 60_000, 200_000]
    assert (result.world.restarts if result.world else 0) == 1
    # Two crashes that overlap are one: the site is back after both.
    twice = Faults(planned=(*built.faults.planned, PlannedFault(at_ms=50_000, action="crash", site=1, lasts_ms=30_000)))
    assert run_world(replace(built, faults=twice), check=True).start_ms.tolist() == [0, 80_000, 200_000]


def test_a_planned_fault_with_a_missing_key_is_reported(tmp_path: Path) -> None:
    """The missing key is named, and the other faults are still checked."""
    more = '\n[[faults.planned]]\nat_ms = 1\naction = "crash"\nsite = "north"\n'
    with pytest.raises(ScenarioError) as told:
        build_scenario(scenario_file(tmp_path, PLANNED.replace('"south"', '"east"') + more))
    assert sorted(str(problem).partition("toml:")[2].split(": ", 1)[1] for problem in told.value.problems) == [
        "faults.planned.lasts_ms: is missing",
        "faults.planned.site: there is no site 'east'; expected one of north, south",
    ]


def test_invalid_planned_faults_are_reported(tmp_path: Path) -> None:
    """Unknown sites, unknown kinds and overlapping faults give one line each, with what would be right."""
    wrong = PLANNED.replace('"south"', '"east"').replace('"cut"', '"burn"')
    more = "".join(
        f'\n[[faults.planned]]\nat_ms = {at_ms}\naction = "crash"\nsite = "north"\nlasts_ms = 10\n' for at_ms in (5, 9)
    )
    with pytest.raises(ScenarioError) as told:
        build_scenario(scenario_file(tmp_path, wrong + more))
    assert [str(problem).partition("toml:")[2].split(": ", 1)[1] for problem in told.value.problems] == [
        "faults.planned.site: there is no site 'east'; expected one of north, south",
        "faults.planned.action: 'burn' is not known; one of crash, cut",
        "faults.planned.at_ms: overlaps another crash at north; let one end before the other begins",
    ]


def test_a_live_run_has_the_faults_of_its_simulation(tmp_path: Path) -> None:
    """Random faults become planned ones; nothing fails in mode local, which has no messages."""
    often = {"faults.planned": [], "faults.crash_every_ms": 500.0}
    built = with_planned_faults(build_scenario(scenario_file(tmp_path), often))
    assert built.faults.crash_every_ms == 0
    assert built.faults.planned == with_planned_faults(build_scenario(scenario_file(tmp_path), often)).faults.planned
    assert built.faults.planned
    local = build_scenario(scenario_file(tmp_path), {"grid.mode": "local"})
    assert (fails(built), fails(local), with_planned_faults(local).faults.any) == (True, False, False)


@pytest.mark.asyncio
async def test_packets_are_lost_duplicated_and_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults of packets persist when the site restarts, and no packet passes a cut."""
    carried: list[bytes] = []

    async def carry(_site: Any, data: bytes) -> None:
        carried.append(data)

    monkeypatch.setattr(SiteActor, "packet", carry)
    site = object.__new__(FailingSite)
    site._unsteady_file, site._cut_until_s = tmp_path / "unsteady.json", 0.0
    await site.be_unsteady(b'{"loss": 0.3, "duplicate": 0.5, "seed": 7}')
    lost = 0
    for number in range(200):
        try:
            await site.packet(bytes([number]))
        except UnavailableError:
            lost += 1
    assert 30 < lost < 90
    assert len(set(carried)) == 200 - lost
    assert 0.3 < len(carried) / len(set(carried)) - 1 < 0.7
    assert (tmp_path / "unsteady.json").exists()
    site._unsteady = Unsteady()
    await site.cut(float("inf"))
    with pytest.raises(UnavailableError):
        await site.packet(b"")
    await site.cut(0.0)
    await site.packet(b"")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("planned", "error", "silence_s", "is_repeated"),
    [
        (PLANNED, UnavailableError, 0.0, True),
        ("", SiteAwayError, 60.0, True),
        ("", SiteAwayError, 0.0, False),
        ("", UnavailableError, 60.0, False),
    ],
    ids=["planned fault", "busy site", "site that stays silent", "no grid"],
)
async def test_a_player_waits_for_sites_that_fail_by_plan_or_are_busy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    planned: str,
    error: type[UnavailableError],
    silence_s: float,
    is_repeated: bool,
) -> None:
    """A call is repeated during a planned fault and while a busy site is silent; otherwise it fails at once."""
    monkeypatch.setattr(runner, "_SILENCE_S", silence_s)
    monkeypatch.setattr(runner, "_LOOK_EVERY_S", 0.0)
    built = build_scenario(scenario_file(tmp_path, planned))
    player = object.__new__(runner.Player)
    player._built, player._faults = built, runner.FaultPlayer(None, built, 1.0)  # type: ignore[arg-type]
    tries: list[int] = []

    async def call(number: int) -> int:
        tries.append(number)
        if len(tries) < 3:
            raise error("site west does not answer")
        return number

    if is_repeated:
        assert await player._despite_faults(call, 7) == 7
        assert tries == [7, 7, 7]
    else:
        with pytest.raises(UnavailableError):
            await player._despite_faults(call, 7)


def test_a_site_without_a_crash_does_not_wait(tmp_path: Path) -> None:
    """An actor waits only if the file has an instant in the future."""
    outage = Downtime(tmp_path)
    outage.wait()
    (tmp_path / "down-until").write_text("0.5")
    asyncio.run(asyncio.to_thread(outage.wait))


@pytest.mark.ray
def test_a_site_crashes_and_another_is_cut_off_on_ray(ray_cluster: None, tmp_path: Path) -> None:
    """The job at the crashed site starts again, the job at the other continues, and both end."""
    # The faults begin seconds after both jobs were submitted, and seconds before they end.
    faults = PLANNED.replace("at_ms = 40_000", "at_ms = 110_000").replace("at_ms = 30_000", "at_ms = 100_000")
    done = run_on_ray(scenario_file(tmp_path, faults), speed=15.0)
    assert set(done.outcomes) == {"finished"}
    in_time = done.submitted_ms < 50_000
    if in_time[0]:
        assert (done.attempts[0], done.live.fragments_of(0)) == (1, [(0, 4)])
    if in_time[:2].all():
        assert done.attempts[1] > 1
    # South lost what it had done: a job there worked all of its time after the crash.
    assert all(done.live.start_ms[row] >= 110_000 for row in (0, 1) if done.live.fragments_of(row) == [(1, 4)])

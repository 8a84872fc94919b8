"""Scenario files of the simulated world: control, owners, own users, networks and faults."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from gridweave.cli.run import run_scenario as run_command
from gridweave.errors import ScenarioError
from gridweave.grid.config.tables import Site
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.scenario.build import Built, build_scenario
from gridweave.scenarios.scenario.read import read_scenario
from gridweave.scenarios.scenario.run import run_scenario, run_world
from gridweave.scenarios.scenario.tables import Scenario, WorkloadTable, json_schema
from gridweave.scenarios.traces.load import save_workload
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Faults, LiveTimes, Network
from gridweave.site.policy import SitePolicy
from gridweave.site.users.owner import OwnerPolicy

GOOD = """\
[[sites]]
name = "alpha"
nodes = 64
order = "sjf"
grid_share = 0.25
[[sites]]
name = "beta"
nodes = 32
own_users_first = true
[workload]
generator = "ctc-sp2"
jobs = 400
nodes = 16
to_grid = 0.75
[grid]
mode = "sharing"
control = "limited"
[network]
latency_ms = 20
jitter_ms = 5
loss = 0.01
duplicate = 0.02
[faults]
crash_every_ms = 1e9
crash_lasts_ms = 2e6
cut_every_ms = 3e7
cut_lasts_ms = 4e4
"""

SMALL = ["workload.jobs=200"]

app = typer.Typer()
app.command("run")(run_command)


@app.callback()
def _several() -> None:
    """Make the app a group: Typer drops the name of an only command."""


def invoke(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """Write a valid scenario with every table."""
    path = tmp_path / "good.toml"
    path.write_text(GOOD)
    return path


def problems(path: Path, text: str, *overrides: str) -> list[tuple[int | None, str]]:
    """Write a file, check it, and return line and field of each problem."""
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        build_scenario(path, overrides)
    assert len(str(caught.value).splitlines()) == len(caught.value.problems)
    return [(problem.line, problem.field) for problem in caught.value.problems]


def of_widths(folder: Path, widths: list[int], sites: list[Site], **table: object) -> Scenario:
    """Return a scenario of jobs of these widths, one per second, shared under limited control."""
    n = len(widths)
    times = np.full(n, 5000)
    workload = Workload(np.arange(1, n + 1), np.arange(n) * 1000, np.array(widths, np.int64), times, times)
    save_workload(workload.replace(nodes=1000), folder / "jobs.swf")
    scenario = Scenario(sites=sites, workload=WorkloadTable(trace=str(folder / "jobs.swf"), **table))  # type: ignore[arg-type]
    return read_scenario(scenario, {"grid.mode": "sharing", "grid.control": "limited"})


# -- what is read


def test_all_tables_are_built(good: Path) -> None:
    """Control, owners, sites, network and faults of the file reach the simulation."""
    built = build_scenario(good)
    assert (built.policy.mode, built.policy.control) == ("sharing", "limited")
    assert built.owners == (OwnerPolicy(grid_share=0.25), OwnerPolicy(own_users_first=True))
    assert built.site_policies == (SitePolicy(order="sjf", backfill="easy"), SitePolicy(backfill="easy"))
    assert built.network == Network(latency_ms=20, jitter_ms=5, loss=0.01, duplicate=0.02)
    assert built.faults == Faults(crash_every_ms=1e9, crash_lasts_ms=2e6, cut_every_ms=3e7, cut_lasts_ms=4e4)
    assert built.to_grid.shape == (400,)
    assert 0.65 < built.to_grid.mean() < 0.85


def test_defaults_are_full_control_and_no_faults(good: Path) -> None:
    text = GOOD.partition("[network]")[0]
    for line in ("grid_share = 0.25\n", "own_users_first = true\n", "to_grid = 0.75\n", 'control = "limited"\n'):
        text = text.replace(line, "")
    good.write_text(text)
    built = build_scenario(good)
    assert (built.policy.control, built.network, built.faults) == ("full", Network(), Faults())
    assert built.owners == (OwnerPolicy(), OwnerPolicy())
    assert built.to_grid.all()
    assert not built.needs_world


def test_all_wrong_values_are_named_at_once(tmp_path: Path) -> None:
    """Each wrong value is reported as a separate problem, with line and field."""
    text = """\
[[sites]]
name = "alpha"
nodes = 64
grid_share = 1.5
[[sites]]
name = "beta"
nodes = 32
own_users_first = "yes"
[workload]
generator = "ctc-sp2"
jobs = 40
nodes = 16
to_grid = -0.1
[grid]
control = "some"
[network]
latency_ms = -1
jitter_ms = 3_600_001
loss = 1
duplicate = nan
delay_ms = 3
[faults]
crash_every_ms = -1.0
crash_lasts_ms = inf
cut_every_ms = "often"
"""
    assert problems(tmp_path / "bad.toml", text) == [
        (4, "sites.grid_share"),
        (8, "sites.own_users_first"),
        (13, "workload.to_grid"),
        (15, "grid.control"),
        (17, "network.latency_ms"),
        (18, "network.jitter_ms"),
        (19, "network.loss"),
        (20, "network.duplicate"),
        (21, "network.delay_ms"),
        (23, "faults.crash_every_ms"),
        (24, "faults.crash_lasts_ms"),
        (25, "faults.cut_every_ms"),
    ]


def test_overrides_set_missing_keys() -> None:
    """Overrides may set tables that the file lacks; a wrong value is reported as it was typed."""
    changes = [
        "grid.control=limited",
        "sites.north.grid_share=0.5",
        "sites.south.own_users_first=true",
        "workload.to_grid=0.5",
        "network.latency_ms=30",
        "faults.cut_every_ms=1e8",
    ]
    built = build_scenario("two-sites", [*SMALL, *changes])
    assert built.policy.control == "limited"
    assert built.owners == (OwnerPolicy(grid_share=0.5), OwnerPolicy(own_users_first=True))
    assert (built.network, built.faults.cut_every_ms) == (Network(latency_ms=30), 1e8)
    with pytest.raises(ScenarioError, match=r"--set grid\.control: 'most' is not known; one of full, limited, none"):
        build_scenario("two-sites", [*SMALL, "grid.control=most"])
    with pytest.raises(ScenarioError, match=r"--set network\.lost: is not known \(perhaps loss was meant\)"):
        build_scenario("two-sites", [*SMALL, "network.lost=0.1"])


def test_the_schema_describes_every_key() -> None:
    """Every table and key is in the schema, with a description, and so are the levels of control."""
    tables = json_schema()["$defs"]
    assert {"network", "faults", "live"} <= set(tables["Scenario"]["properties"])
    assert tables["GridTable"]["properties"]["control"]["enum"] == ["full", "limited", "none"]
    keys = {
        "Site": {"grid_share", "own_users_first"},
        "WorkloadTable": {"to_grid"},
        "NetworkTable": set(Network.__struct_fields__),
        "FaultsTable": set(Faults.__struct_fields__),
        "LiveTable": set(LiveTimes.__struct_fields__),
    }
    for table, names in keys.items():
        properties = tables[table]["properties"]
        assert names <= set(properties)
        assert all(properties[name]["description"].endswith((".", ";")) for name in names)


# -- which jobs can run


def test_a_job_submitted_to_its_own_site_must_fit_there(tmp_path: Path) -> None:
    sites = [Site(name="a", nodes=8), Site(name="b", nodes=4)]
    scenario = of_widths(tmp_path, [3, 3, 5, 6], sites, to_grid=0.0)
    with pytest.raises(ScenarioError) as caught:
        build_scenario(scenario)
    reason = "submitted to its own site, it needs 6 nodes and its site has 4"
    assert f"1 job can never run; the widest, job 4: {reason}" in str(caught.value)
    assert len(build_scenario(scenario, {"workload.to_grid": 1}).workload) == 4
    kept = build_scenario(scenario, {"workload.drop_wide": True})
    assert (kept.workload.width.tolist(), kept.home.tolist(), len(kept.to_grid)) == ([3, 3, 5], [0, 1, 0], 3)


def test_a_job_submitted_to_the_grid_must_fit_the_granted_nodes(tmp_path: Path) -> None:
    """Own users may use all nodes of their sites."""
    sites = [Site(name="a", nodes=8, grid_share=0.5), Site(name="b", nodes=8, grid_share=0.7)]
    scenario = of_widths(tmp_path, [5, 6, 8], sites)
    with pytest.raises(ScenarioError, match=r"2 jobs can never run; the widest, job 3: .* the largest site has 5, and"):
        build_scenario(scenario)
    assert len(build_scenario(scenario, {"workload.to_grid": 0}).workload) == 3
    assert len(build_scenario(scenario, {"grid.mode": "local"}).workload) == 3


def test_no_control_splits_nothing(tmp_path: Path) -> None:
    """Under control none a job wider than the largest site is invalid, even in a mode that splits."""
    scenario = of_widths(tmp_path, [5], [Site(name="a", nodes=4), Site(name="b", nodes=4)])
    assert len(build_scenario(scenario, {"grid.mode": "adaptive"}).workload) == 1
    with pytest.raises(ScenarioError, match="control none splits no job"):
        build_scenario(scenario, {"grid.mode": "adaptive", "grid.control": "none"})


def test_dropped_jobs_do_not_shift_random_draws(tmp_path: Path) -> None:
    """Whether a job is submitted to the grid depends only on its position in the workload."""
    sites = [Site(name="a", nodes=8)]
    narrow = build_scenario(of_widths(tmp_path, [1] * 40, sites, to_grid=0.5))
    wide = build_scenario(of_widths(tmp_path, [9, *[1] * 39], sites, to_grid=0.5, drop_wide=True))
    assert wide.to_grid.tolist() == narrow.to_grid.tolist()[1:]


def test_conservative_backfilling_works_with_a_network(good: Path) -> None:
    """Conservative backfilling belongs to the grid under full control, and to the sites under limited control."""
    changes = ["grid.backfill=conservative", "grid.control=full"]
    built = build_scenario(good, changes)
    assert (built.needs_world, built.policy.backfill) == (True, "conservative")
    assert run_scenario(good, overrides=changes).start_ms.min() >= 0
    built = build_scenario(good, changes[:1])
    assert [policy.backfill for policy in built.site_policies] == ["conservative", "conservative"]


@pytest.mark.parametrize(
    ("change", "needs_world"),
    [
        ("scenario.seed=2", False),
        ("network.latency_ms=0", False),
        ("faults.crash_lasts_ms=5", False),
        ("grid.control=limited", True),
        ("grid.control=none", True),
        ("network.latency_ms=1", True),
        ("network.loss=0.1", True),
        ("faults.crash_every_ms=1e9", True),
        ("live.margin_ms=0", False),
        ("live.end_ms=1", True),
        ("faults.cut_every_ms=1e9", True),
        ("workload.to_grid=0.5", True),
        ("sites.north.grid_share=0.9", True),
        ("sites.south.own_users_first=true", True),
    ],
)
def test_the_world_is_simulated_only_if_needed(change: str, needs_world: bool) -> None:
    """The batch driver runs the scenarios that it supports; mode local needs no grid."""
    changes = ["workload.jobs=40", "grid.mode=sharing", "workload.transform.split=64", change]
    assert (run_scenario("two-sites", overrides=changes).world is not None) is needs_world
    local = run_scenario("two-sites", overrides=[*changes, "grid.mode=local"])
    assert not (local.world is not None)


def test_without_delays_and_faults_the_world_equals_the_batch_driver() -> None:
    built = build_scenario("two-sites", SMALL)
    batch = simulate(built.workload, [256, 128], GridPolicy(overhead=0.25))
    world = run_world(built, check=True)
    assert world.start_ms.tolist() == batch.start_ms.tolist()
    assert [world.fragments_of(row) for row in range(200)] == [batch.fragments_of(row) for row in range(200)]


def runs_at_home(built: Built, result: SimulationResult) -> None:
    """Assert that every job ran, and at home unless it was submitted to the grid."""
    assert (result.n_fragments >= 1).all()
    own = np.flatnonzero(~built.to_grid)
    assert len(own) > 0
    assert [result.fragments_of(row)[0][0] for row in own] == built.home[own].tolist()
    assert result.n_fragments[own].tolist() == [1] * len(own)


@pytest.mark.parametrize("name", ["control-levels", "flaky-network"])
@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_shipped_scenarios_run_at_every_level(name: str, control: str) -> None:
    """Every job runs, own users' jobs at home, and the same seed gives the same run."""
    built = build_scenario(name, [*SMALL, f"grid.control={control}"])
    result = run_world(built, check=True)
    runs_at_home(built, result)
    again = run_world(built)
    assert result.start_ms.tolist() == again.start_ms.tolist()
    assert result.world.messages == again.world.messages


@pytest.mark.parametrize("name", ["control-levels", "flaky-network"])
def test_shipped_scenarios_run_the_same_jobs_without_a_grid(name: str) -> None:
    run = run_scenario(name, overrides=[*SMALL, "grid.mode=local"])
    assert run.workload.job_id.tolist() == build_scenario(name, SMALL).workload.job_id.tolist()
    assert (run.end_ms > run.start_ms).all()


# -- what comes out


def test_a_run_reports_messages_and_restarts(good: Path, tmp_path: Path) -> None:
    """The table and summary.json have the messages and the restarted jobs."""
    result = invoke("run", good, "--out", tmp_path / "out", "--no-plots")
    assert result.exception is None, result.output
    lines = {" ".join(line.split()[:-1]): line.split()[-1] for line in result.stdout.splitlines() if line.strip()}
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["label"] == "sharing limited control"
    assert f"{summary['world']['messages']:,}" == lines["messages between sites and grid"]
    assert f"{summary['world']['restarts']:,}" == lines["jobs started again after a failure"]
    assert summary["world"]["messages"] > 400
    scenario = summary["scenario"]
    assert (scenario["grid"]["control"], scenario["workload"]["to_grid"]) == ("limited", 0.75)
    assert scenario["network"] == {"latency_ms": 20, "jitter_ms": 5, "loss": 0.01, "duplicate": 0.02}


def test_a_batch_run_reports_no_messages(tmp_path: Path) -> None:
    result = invoke("run", "two-sites", "--set", "workload.jobs=50", "--out", tmp_path / "out", "--no-plots")
    assert result.exception is None, result.output
    assert "messages" not in result.stdout
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["world"] is None

"""Runs of scenarios with a network: their tables and files, and the effect of changes of links."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gridweave.cli.main import app
from gridweave.scenarios.batch.grid_network import COLUMNS, policy_label
from gridweave.scenarios.results.schedule import NEVER, SimulationResult
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.fuzz import fuzz, world_of
from gridweave.scenarios.scenario.read import scenario_names
from gridweave.scenarios.scenario.run import run_built, run_scenario, run_world

SCENARIO = """\
[[sites]]
name = "alpha"
nodes = 64
[[sites]]
name = "beta"
nodes = 64
[workload]
generator = "ctc-sp2"
jobs = 400
nodes = 96
load = 1.2
[workload.communication]
pattern = "ring"
fraction = 0.1
message_bytes = 1e6
[workload.data]
input_bytes = [1e8, 1e11]
input_site = "alpha"
[grid]
mode = "multi-site"
split = "fewest"
max_split_factor = 10001
[net]
nodes = [{name = "a"}, {name = "b"}]
links = [{from = "a", to = "b", latency_ms = 5, bandwidth = "1 Gbps"}]
attach = {alpha = "a", beta = "b"}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write the scenario."""
    file = tmp_path / "net.toml"
    file.write_text(SCENARIO)
    return file


def run_of(path: Path, *overrides: str) -> SimulationResult:
    """Run the scenario with changes."""
    return run_scenario(path, overrides=overrides)


def test_run_times_of_split_jobs_follow_the_model(path: Path) -> None:
    """Split jobs take their run time times the factor of their placement, other jobs their run time."""
    result, net = run_of(path), build_scenario(path).net
    assert net is not None
    assert result.multi_site.any()
    from gridweave.netmodel.communication import Communication

    ring = Communication(fraction=0.1, message_bytes=1e6, pattern="ring")
    columns = result.columns
    for row in np.flatnonzero(result.start_ms != NEVER):
        parts = {result.site_names[site]: width for site, width in result.fragments_of(row)}
        factor = net.model.split_factor(ring, parts)
        assert columns["factor"][row] == pytest.approx(factor)
        took_ms, run_ms = int(result.end_ms[row] - result.start_ms[row]), int(result.workload.run_ms[row])
        assert took_ms == pytest.approx(factor * run_ms, abs=1.0)
    split = result.multi_site
    lengthened = (result.end_ms - result.start_ms)[split] / result.workload.run_ms[split]
    assert lengthened == pytest.approx(columns["factor"][split], abs=2e-3)


def test_network_use_covers_multi_site_jobs(path: Path) -> None:
    """Means cover multi-site jobs, weighted by width x run time; without a network there is no report."""
    narrow = 'net.links=[{from="a", to="b", latency_ms=5, bandwidth="200 Mbps"}]'
    crowd = "workload.communication.pattern=all-to-all"
    run = run_of(path, "grid.contention=dynamic", "grid.data=blocking", narrow, crowd)
    use, result = run.network, run
    assert use is not None
    columns = result.columns
    several = result.multi_site
    assert use.mean_factor == pytest.approx(columns["factor"][several].mean())
    area = (result.workload.width * result.workload.run_ms)[several]
    assert use.mean_factor_by_area == pytest.approx(np.average(columns["factor"][several], weights=area))
    assert use.jobs_with_transfers == np.count_nonzero(columns["transfer_ms"]) > 0
    assert use.transfer_ms == columns["transfer_ms"].sum()
    assert use.transfer_share is not None
    assert 0 < use.transfer_share < 1
    assert use.mean_slowdown is not None
    assert use.mean_slowdown > 1
    assert (use.nodes, use.cables, use.changes) == (2, 1, 0)
    plain = run_of(path, "grid.mode=sharing", "grid.data=none", "workload.drop_wide=true")
    assert plain.network is None
    assert not set(COLUMNS) & set(plain.columns)


def test_the_label_describes_the_network(path: Path) -> None:
    """The label has no overhead p, and names settings that are not the default."""
    usual = ["grid.split=earliest-end", "grid.max_split_factor=2"]
    built = build_scenario(path, [*usual, "grid.contention=static", "grid.data=prefetch"])
    assert built.label == "multi-site over the network static contention prefetch data"
    assert build_scenario(path).label == "multi-site over the network to the fewest sites up to factor 10001"
    assert policy_label(built.policy, None) == "multi-site p=0%"


def test_files_report_the_network(path: Path, tmp_path: Path) -> None:
    """jobs.csv has each job's factor, summary.json the use of the network; without a network neither has them."""
    run = run_of(path, "grid.data=blocking")
    run.write(tmp_path / "out", plots=False)
    with (tmp_path / "out" / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = run.columns
    for name in COLUMNS:
        assert [float(row[name]) for row in rows] == columns[name].tolist()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["network"]["data"] == "blocking"
    assert summary["network"]["transfer_ms"] == int(columns["transfer_ms"].sum())
    assert summary["scenario"]["net"]["attach"] == {"alpha": "a", "beta": "b"}
    without = run_scenario("two-sites", overrides={"workload.jobs": 30})
    assert without.summary()["network"] is None
    assert not set(COLUMNS) & set(without.job_columns())


def test_the_table_is_printed(path: Path) -> None:
    """The table has the topology, the mean factor, the slowdown, and with data the time in transfers."""
    printed = CliRunner().invoke(app, ["run", str(path), "--set", "grid.data=blocking"]).output
    for text in ("net: 2 nodes, 1 links", "factor of multi-site jobs", "slowdown by contention (none)", "in transfers"):
        assert text in printed
    assert "in transfers" not in CliRunner().invoke(app, ["run", str(path)]).output


def test_failures_of_links_have_their_own_random_stream(path: Path) -> None:
    """The same seed gives the same failures of links, another seed others; the jobs stay the same."""
    fails = "net.failures={mean_up_ms=3e7, mean_down_ms=1e6, factor=0.1}"
    one, again, other = (build_scenario(path, [fails, f"scenario.seed={seed}"]) for seed in (1, 1, 2))
    instants = []
    for built in (one, again, other):
        assert built.net is not None
        assert built.net.timetable is not None
        instants.append(built.net.timetable.instants_ms.tolist())
    assert instants[0] == instants[1] != instants[2]
    whole = build_scenario(path)
    assert whole.workload.width.tolist() == one.workload.width.tolist()
    assert whole.workload.columns["input_bytes"].tolist() == one.workload.columns["input_bytes"].tolist()
    assert all(result.start_ms.min() >= 0 for result in [run_built(one)])


def test_a_slow_link_makes_later_splits_longer(path: Path) -> None:
    """After a link slows, splits have the factors of the slow link."""
    middle_ms = int(np.median(build_scenario(path).workload.submit_ms))
    run = run_of(path, f'net.changes=[{{at_ms={middle_ms}, action="slow", link=["a", "b"], factor=0.01}}]')
    result = run
    factor, late = result.columns["factor"], result.start_ms >= middle_ms
    assert factor[result.multi_site & late].min() > factor[result.multi_site & ~late].max()


@pytest.mark.parametrize("name", [name for name in scenario_names() if not name.startswith(("streit", "geant"))])
def test_shipped_scenarios_can_be_built(name: str) -> None:
    """Every scenario without external files can be built; with a network all its sites are on it."""
    built = build_scenario(name, ["workload.jobs=40"])
    if built.net is not None:
        assert built.net.model.topology.sites == built.site_names
        assert np.isfinite(built.net.model.paths.latency_ms).all()


def test_the_geant_scenario_runs_on_the_shipped_topology() -> None:
    """The overrides in the scenario's description select the shipped topology."""
    places = dict(zip(("n128-1", "n128-2", "n128-3", "n128-4"), ("London", "Geneva", "Milan", "Athens"), strict=True))
    changes = {f"net.attach.{site}": node for site, node in places.items()}
    built = build_scenario("geant", {"net.file": "europe.toml", "workload.jobs": 40} | changes)
    assert built.net is not None
    assert built.net.model.topology.sites == tuple(places)


def test_less_control_runs_over_the_network(path: Path, tmp_path: Path) -> None:
    """Under limited control, with messages over the links, jobs are split by the same model."""
    run = run_of(path, "grid.control=limited", "grid.contention=dynamic", "grid.at=b")
    result = run
    assert result.world is not None
    assert result.multi_site.any()
    assert result.world.messages > len(result.workload)
    columns = result.columns
    assert columns["factor"][result.multi_site].min() > 1
    assert (columns["factor"][~result.multi_site] == 1).all()
    use = run.network
    assert use is not None
    assert use.mean_factor == pytest.approx(columns["factor"][result.multi_site].mean())
    run.write(tmp_path / "out", plots=False)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["world"]["messages"] == result.world.messages
    assert summary["network"]["contention"] == "dynamic"
    printed = CliRunner().invoke(app, ["run", str(path), "--set", "grid.control=limited"])
    assert printed.exit_code == 0
    assert "factor of multi-site jobs" in printed.output


def test_both_drivers_give_the_same_schedule(path: Path) -> None:
    """Starts, ends and factors agree."""
    built = build_scenario(path, ["grid.contention=dynamic", "grid.data=prefetch", "workload.jobs=150"])
    assert not built.needs_world
    batch, world = run_built(built), run_world(built, check=True)
    assert world.start_ms.tolist() == batch.start_ms.tolist()
    assert world.end_ms.tolist() == batch.end_ms.tolist()
    for name in COLUMNS:
        assert world.columns[name].tolist() == batch.columns[name].tolist()


def test_jobs_start_later_farther_from_the_grid(path: Path) -> None:
    """With grid.at, jobs start later the farther their site is from the grid."""
    slow = 'net.links=[{from="a", to="b", latency_ms=40, bandwidth="1 Gbps"}]'
    sharing = "grid.mode=sharing", "workload.drop_wide=true", "workload.jobs=60", "workload.load=0.1", slow
    delays = {}
    for at in ("a", "b"):
        result = run_of(path, *sharing, f"grid.at={at}")
        wait_ms = result.start_ms - result.workload.submit_ms
        site = result.fragments["site"][result.first_fragment]
        delays[at] = [int(wait_ms[site == number].min()) for number in (0, 1) if (site == number).any()]
    assert delays["a"][0] == 0
    assert delays["b"][0] == 41


@pytest.mark.parametrize("name", ["european-grid", "link-cut", "data-grid"])
def test_shipped_networks_show_no_violation(name: str) -> None:
    """No shipped scenario with a network shows a violation under faults."""
    found = fuzz(world_of(build_scenario(name, ["workload.jobs=300"]), jobs=60), 2, 1)
    assert found.violation is None
    assert found.tried.jobs == 120

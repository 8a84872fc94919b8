"""Scenarios with sites whose jobs share nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gridweave.errors import OptionError, ScenarioError
from gridweave.scenarios.results.metrics import compute_metrics
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.run import run_scenario
from gridweave.scenarios.traces.resources import write_resources
from gridweave.site.disciplines.sharing.policy import SharedNodes

NAME = "hyperthreaded-site"
SMALL = ["workload.jobs=150"]


def test_one_site_shares_and_the_others_do_not() -> None:
    """A site's table becomes its policy, which the simulated world uses."""
    built = build_scenario(NAME, [*SMALL, "sites.north.sharing.threads=4", "sites.north.sharing.max_slowdown=1.4"])
    shared, *others = built.site_policies
    assert isinstance(shared, SharedNodes)
    assert (shared.kinds[0].threads, shared.kinds[0].count) == (4, 64)
    assert (shared.sharing.heuristic, shared.sharing.max_slowdown) == ("response", 1.4)
    assert not any(isinstance(other, SharedNodes) for other in others)
    assert built.needs_world
    assert "cpu_fraction" in built.workload.columns


def test_the_resources_of_a_seed_do_not_depend_on_the_sites() -> None:
    """Every variant of a site's discipline gets the same random resources."""
    one, other = (build_scenario(NAME, [*SMALL, f"sites.north.sharing.variant={name}"]) for name in ("PSS", "AC"))
    assert np.array_equal(one.workload.columns["cpu_fraction"], other.workload.columns["cpu_fraction"])


@pytest.mark.parametrize("change", ["grid.control=full", "grid.control=none", "grid.mode=local", "grid.mode=sharing"])
def test_sites_with_shared_nodes_run_under_every_control(change: str, tmp_path: Path) -> None:
    """All jobs run in mode local and under every level of control, and all files but the schedule plot are written."""
    run = run_scenario(NAME, overrides=[*SMALL, change, "workload.drop_wide=true"])
    assert (run.end_ms > run.start_ms).all()
    assert (run.world is not None) is (change != "grid.mode=local")
    names = {path.name for path in run.write(tmp_path / "out")}
    assert names == {"jobs.csv", "summary.json", "utilisation.png", "waits.png"}
    with pytest.raises(OptionError, match="cannot be drawn where jobs share nodes"):
        run.plot("schedule")


def test_settings_without_effect_are_remarked() -> None:
    """A remark says that under full control only own users share nodes."""
    remarks = build_scenario(NAME, [*SMALL, "grid.control=full"]).remarks
    assert any("only jobs of a site's own users share" in remark for remark in remarks)


def test_sharing_needs_its_discipline() -> None:
    """A table of shared nodes at a site with another discipline is refused."""
    with pytest.raises(ScenarioError, match=r"sites\.sharing: is for the discipline lomarc, .* has 'queue'"):
        build_scenario(NAME, [*SMALL, "sites.north.discipline=queue"])


def test_resources_can_come_from_a_file(tmp_path: Path) -> None:
    """The file may be in the scenario's folder or elsewhere; an invalid file is reported with its line."""
    built = build_scenario(NAME, SMALL)
    path = tmp_path / "resources.csv"
    write_resources(built.workload, path)
    again = build_scenario(NAME, [*SMALL, f"workload.resources={path}"])
    for name in ("cpu_fraction", "memory_fraction", "cpu_kind"):
        assert np.array_equal(built.workload.columns[name], again.workload.columns[name])
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))
    with pytest.raises(ScenarioError, match=r"resources\.csv: has no line for job"):
        build_scenario(NAME, [*SMALL, f"workload.resources={path}"])


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ("sites.north.sharing.variant=X", "'X' is not known; one of PSS, AC"),
        ("sites.north.sharing.threads=0", "threads"),
        ("sites.north.sharing.cpu=quick", "'quick' is not known"),
        ("sites.north.sharing.formula=mine", "'mine' is not known"),
        ("sites.north.sharing.max_slowdown=0.5", "max_slowdown"),
        ("sites.north.order=sjf", "'sjf' is not for a lomarc site"),
        ("sites.north.backfill=slack", "slack"),
        ("workload.resources=M9", "'M9' is not known"),
        ("workload.resources=missing.csv", "missing.csv: there is no such file"),
    ],
)
def test_wrong_tables_are_refused(change: str, want: str) -> None:
    """The error has the key and what would be right."""
    with pytest.raises(ScenarioError, match=r".") as caught:
        build_scenario(NAME, [*SMALL, change])
    assert want in str(caught.value)
    key = change.partition("=")[0]
    assert key.rpartition(".")[2] in str(caught.value)


def test_metrics_accept_more_busy_nodes_than_exist() -> None:
    """With shared nodes more can be busy than exist; then none is idle."""
    schedule = ([0, 0], [0, 0], [10, 10], [4, 3])
    metrics = compute_metrics(*schedule, 4, shared=True)
    assert metrics.util == 7 / 4
    assert metrics.loss_of_capacity == 0

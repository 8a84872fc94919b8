"""Sites of machines that differ, in scenarios."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gridweave.errors import ScenarioError
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.run import run_built

TEXT = """
[workload]
generator = "lublin"
jobs = 20
nodes = 4

[[sites]]
name = "north"
nodes = 8
discipline = "heterogeneous"

[sites.heterogeneous]
classes = [{{ name = "old", count = 4 }}, {{ name = "new", count = 4, speed = 2.0 }}]
clusters = [{{ name = "a", nodes = "0-3" }}, {{ name = "b", nodes = "{nodes}" }}]

[grid]
mode = "{mode}"
"""


def written(folder: Path, mode: str = "local", nodes: str = "4-7") -> Path:
    """Return the file of a scenario."""
    path = folder / "mixed.toml"
    path.write_text(TEXT.format(mode=mode, nodes=nodes))
    return path


def test_a_site_of_machines_that_differ_plays_the_jobs_of_a_scenario(tmp_path: Path) -> None:
    """Its metrics are there under its name, and the columns of each job."""
    result = run_built(build_scenario(written(tmp_path)))
    assert (result.end_ms > 0).all()
    assert result.own_metrics["north.job_time_ms"] > 0
    assert set(result.columns) == {"level", "machines", "team", "evictions"}


def test_jobs_that_stand_still_beside_others_are_measured(tmp_path: Path) -> None:
    """Two jobs are on one machine then, so that more nodes are in use than there are: metrics allow for that."""
    path = written(tmp_path)
    levels = "levels = [{ name = 'wide', priority = 1, evicts = ['low'] }, { name = 'low', priority = 0 }]"
    text = path.read_text().replace("[grid]", f"evicted = 'pause'\n{levels}\n\n[grid]")
    path.write_text(text.replace("jobs = 20", "jobs = 60\nload = 30.0"))
    built = build_scenario(path)
    assert built.shares_nodes
    columns = {"priority": np.arange(len(built.workload)) % 2}
    result = run_built(replace(built, workload=built.workload.replace(columns=built.workload.columns | columns)))
    assert result.own_metrics["north.evictions"] > 0
    assert result.metrics().awt_ms >= 0


def test_a_grid_over_machines_that_differ_is_played_in_the_world(tmp_path: Path) -> None:
    """There jobs of the grid are as fast as the machines that they are given."""
    built = build_scenario(written(tmp_path, mode="sharing"))
    assert built.needs_world
    result = run_built(built)
    ran_ms = result.end_ms - result.start_ms
    assert (ran_ms < result.workload.run_ms).any()
    assert (ran_ms <= result.workload.run_ms).all()


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"nodes": "4-8"}, "cluster 'b' names machine 8; the site has machines 0 to 7"),
    ],
)
def test_what_cannot_be_is_told(tmp_path: Path, wrong: dict[str, str], problem: str) -> None:
    """A cluster of machines that are not there, in one line."""
    with pytest.raises(ScenarioError, match=problem):
        build_scenario(written(tmp_path, **wrong))

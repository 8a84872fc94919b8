"""Scenarios with sites of different machines."""

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
    """Write the scenario to a file."""
    path = folder / "mixed.toml"
    path.write_text(TEXT.format(mode=mode, nodes=nodes))
    return path


def test_a_heterogeneous_site_runs_the_jobs_of_a_scenario(tmp_path: Path) -> None:
    """The result has its columns, and its metrics under the site's name."""
    result = run_built(build_scenario(written(tmp_path)))
    assert (result.end_ms > 0).all()
    assert result.own_metrics["north.job_time_ms"] > 0
    assert set(result.columns) == {"level", "machines", "team", "evictions"}


def by_kinds(path: Path) -> None:
    """Rewrite the scenario so that its machines are the kinds of the site's nodes."""
    lines = path.read_text().splitlines()
    classes = next(line for line in lines if line.startswith("classes"))
    lines.remove(classes)
    lines[lines.index("nodes = 8")] = classes.replace("classes", "kinds")
    path.write_text("\n".join(lines))


@pytest.mark.parametrize("mode", ["local", "sharing"])
def test_kinds_of_a_site_mean_the_same_as_classes(tmp_path: Path, mode: str) -> None:
    path = written(tmp_path, mode)
    by_classes = run_built(build_scenario(path))
    by_kinds(path)
    result = run_built(build_scenario(path))
    assert result.start_ms.tolist() == by_classes.start_ms.tolist()
    assert result.end_ms.tolist() == by_classes.end_ms.tolist()


def test_jobs_do_not_ask_for_parts_of_machines_that_differ(tmp_path: Path) -> None:
    path = written(tmp_path)
    by_kinds(path)
    path.write_text(path.read_text().replace("jobs = 20", "jobs = 20\nchunks = [{ cores = 2 }]"))
    with pytest.raises(ScenarioError, match=r"workload\.chunks: needs a site .* every site gives out whole nodes"):
        build_scenario(path)


def test_metrics_accept_paused_jobs_on_busy_machines(tmp_path: Path) -> None:
    """With two jobs on one machine more nodes are in use than exist, which the metrics accept."""
    path = written(tmp_path)
    levels = "levels = [{ name = 'wide', priority = 1, evicts = ['low'] }, { name = 'low', priority = 0 }]"
    text = path.read_text().replace("[grid]", f"evicted = 'pause'\n{levels}\n\n[grid]")
    path.write_text(text.replace("jobs = 20", "jobs = 60\nload = 30.0"))
    built = build_scenario(path)
    assert built.overlaps
    columns = {"priority": np.arange(len(built.workload)) % 2}
    result = run_built(replace(built, workload=built.workload.replace(columns=built.workload.columns | columns)))
    assert result.own_metrics["north.evictions"] > 0
    assert result.metrics().awt_ms >= 0


def test_a_grid_with_heterogeneous_sites_runs_in_the_world(tmp_path: Path) -> None:
    """Jobs of the grid are as fast as their machines."""
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
def test_unknown_machines_are_reported(tmp_path: Path, wrong: dict[str, str], problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        build_scenario(written(tmp_path, **wrong))


def test_jobs_of_a_trace_run_in_the_forms_of_their_class(tmp_path: Path) -> None:
    """The classes come from SWF field 15, and run times are drawn from the experience of each class."""
    jobs = [f"{n} {100 * n} -1 50 1 -1 -1 1 90 -1 1 5 -1 -1 {1 + n % 2} -1 -1 -1" for n in range(1, 21)]
    (tmp_path / "jobs.swf").write_text("\n".join(["; MaxNodes: 8", *jobs]) + "\n")
    (tmp_path / "known.toml").write_text("[[experience]]\njob_class = 1\nruns = 3\nmean_ms = 20_000\n")
    text = written(tmp_path).read_text()
    text = text.replace(
        'generator = "lublin"\njobs = 20\nnodes = 4', 'trace = "jobs.swf"\nrun_times = "experience:known.toml"'
    )
    forms = 'forms = [{ job_class = 1, width = 4 }, { on = ["old"] }]'
    (tmp_path / "mixed.toml").write_text(text.replace("[grid]", f"{forms}\n\n[grid]"))
    result = run_built(build_scenario(tmp_path / "mixed.toml"))
    kinds = result.workload.columns["job_class"]
    assert set(result.columns["machines"][kinds == 1]) == {4}
    assert set(result.columns["machines"][kinds == 2]) == {1}
    assert set(result.workload.run_ms[kinds == 1]) == {20_000}
    assert set(result.workload.run_ms[kinds == 2]) == {50_000}


def test_a_missing_file_of_experience_is_reported(tmp_path: Path) -> None:
    """The error names the key."""
    path = written(tmp_path)
    path.write_text(path.read_text().replace("jobs = 20", 'jobs = 20\nrun_times = "experience:nowhere.toml"'))
    with pytest.raises(ScenarioError, match=r"workload\.run_times.*nowhere\.toml"):
        build_scenario(path)

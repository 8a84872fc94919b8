"""Scenarios with sites that give jobs parts of nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridweave.errors import ScenarioError
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.run import run_built

TEXT = """
[workload]
generator = "lublin"
jobs = 40
nodes = 8
{needs}

[[sites]]
name = "north"
nodes = 8
discipline = "fractional"
fractional = {{ algorithm = "{algorithm}", period_s = 3000 }}

[grid]
mode = "{mode}"
"""


def written(folder: Path, text: str) -> Path:
    """Write the scenario to a file."""
    path = folder / "fractional.toml"
    path.write_text(text)
    return path


def scenario(needs: str = 'needs = "lublin"', algorithm: str = "MCB8*/per/OPT=MIN", mode: str = "local") -> str:
    """Return a scenario of one site."""
    return TEXT.format(needs=needs, algorithm=algorithm, mode=mode)


def test_a_fractional_site_runs_the_jobs_of_a_scenario(tmp_path: Path) -> None:
    """The result has its columns, and its metrics under the site's name."""
    result = run_built(build_scenario(written(tmp_path, scenario())))
    assert (result.end_ms > 0).all()
    assert result.own_metrics["north.need_max_stretch"] >= 1
    assert set(result.columns) == {"preemptions", "migrations", "moved_nodes"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (scenario(algorithm="MCB9*/per/OPT=MIN"), "similar names: MCB8*/per/OPT=MIN"),
        (scenario(needs='needs = "vm"'), "lublin"),
    ],
)
def test_invalid_keys_are_reported(tmp_path: Path, text: str, problem: str) -> None:
    """The error has the key and what would be right."""
    with pytest.raises(ScenarioError) as caught:
        build_scenario(written(tmp_path, text))
    assert problem in str(caught.value)

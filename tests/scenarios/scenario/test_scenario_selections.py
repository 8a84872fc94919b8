"""The selections of the meta-scheduler over different sites, as compared in docs/control.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gridweave.errors import ScenarioError
from gridweave.grid.policy import MAPPINGS
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.run import run_built

PAGE = Path(__file__).parents[3] / "docs" / "control.md"
SECTION = PAGE.read_text().split("## Mapped over sites")[1].split("\n## ")[0]
NUMBER = r"([\d,.]+)"
ROWS = re.findall(rf"^\| (`[^|]*) \| {NUMBER} \| {NUMBER} \| {NUMBER} \|$", SECTION, re.MULTILINE)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the scenario of the docs page to a file."""
    path = tmp_path_factory.mktemp("selections") / "differ.toml"
    path.write_text(SECTION.split("```toml\n")[1].split("```")[0])
    return path


def test_the_figures_in_the_docs_are_those_of_the_scenario(scenario: Path) -> None:
    """Waits, response times and messages of each selection are as in the docs; SJS has the best."""
    art_ms: dict[str, float] = {}
    for names, *figures in ROWS:
        for name in re.findall(r"[a-z-]+", names):
            result = run_built(build_scenario(scenario, [f"grid.selection={name}"]))
            metrics, sent = result.metrics(), result.world.messages / len(result.workload)
            found = [f"{metrics.awt_ms / 1000:,.0f}", f"{metrics.art_ms / 1000:,.0f}", f"{sent:.1f}"]
            assert found == figures, name
            assert (result.n_fragments == 1).all()
            art_ms[name] = metrics.art_ms
    assert set(MAPPINGS) < set(art_ms)
    assert art_ms["pjs"] == art_ms["sjs"] == min(art_ms.values())


def test_a_selection_that_needs_other_control_is_reported(scenario: Path) -> None:
    """The problem has its file, line and remedy; another problem is reported too."""
    with pytest.raises(ScenarioError) as caught:
        build_scenario(scenario, ["grid.control=full", "grid.overhead=-1"])
    told = str(caught.value)
    assert "grid.selection: 'pjs' uses the quotes of sites; it needs control" in told
    assert "grid.overhead: is -1" in told

"""The search for violations, in Python and as `gridweave scenario fuzz`, and its reproduction by seed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from gridweave.cli.scenario import app as scenario_app
from gridweave.errors import OptionError
from gridweave.grid.control.coallocation import CoAllocator
from gridweave.grid.control.full import FullControl
from gridweave.grid.messages import GridCommand
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.fuzz import WorldInputs, fuzz, seed_of, world_of
from gridweave.site.job import Job

FILE = """
[workload]
generator = "ctc-sp2"
jobs = 120
load = 0.9
drop_wide = true
[grid]
mode = "multi-site"
[[sites]]
name = "a"
nodes = 12
[[sites]]
name = "b"
nodes = 8
"""

app = typer.Typer()
app.add_typer(scenario_app, name="scenario")


def invoke(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, ["scenario", "fuzz", *(str(argument) for argument in arguments)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a scenario file of two small sites."""
    path = tmp_path / "grid.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.fixture
def inputs(file: Path) -> WorldInputs:
    """Return the inputs of that scenario's worlds, with few jobs each."""
    return world_of(build_scenario(file), jobs=60)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the grid: it ignores the end of every job whose id is a multiple of 5."""
    sound = FullControl._take_note

    def forgetful(self: FullControl, now_ms: int, change: object) -> object:
        attempt = change.attempt  # type: ignore[attr-defined]
        if attempt.job.job_id % 5 == 0 and attempt.outcome == "finished":
            return []
        return sound(self, now_ms, change)  # type: ignore[arg-type]

    monkeypatch.setattr(FullControl, "_take_note", forgetful)


def test_nodes_reserved_ahead_survive_faults(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under lost messages and crashes no lease is exceeded, and no fragment runs alone."""
    begun: list[int] = []
    begin = CoAllocator.begin_ahead

    def begin_ahead(self: CoAllocator, job: Job, *asked: Any) -> list[GridCommand]:
        begun.append(job.job_id)
        return begin(self, job, *asked)

    monkeypatch.setattr(CoAllocator, "begin_ahead", begin_ahead)
    limited = FILE.replace("drop_wide = true\n", "").replace('"multi-site"', '"multi-site"\ncontrol = "limited"')
    file.write_text(limited.replace("[grid]", "[grid]\nreserve_after_s = 1.0"), encoding="utf-8")
    found = fuzz(world_of(build_scenario(file), jobs=60), 12, 3)
    assert found.violation is None
    assert begun


def test_a_sound_grid_shows_no_violation(inputs: WorldInputs) -> None:
    """The search reports what it has tried, including faults."""
    told: list[tuple[int, int]] = []
    found = fuzz(inputs, 12, 3, progress=lambda done, total, what: told.append((done, total)))
    assert found.violation is None
    assert told == [(number, 12) for number in range(1, 13)]
    assert (found.tried.runs, found.tried.jobs) == (12, 12 * 60)
    assert min(found.tried.messages, found.tried.lost, found.tried.crashes, found.tried.cuts) > 0
    assert found.tried.multi_site > 0


def test_the_same_seed_searches_the_same_worlds(inputs: WorldInputs) -> None:
    assert fuzz(inputs, 3, 5) == fuzz(inputs, 3, 5)
    assert fuzz(inputs, 3, 5).tried != fuzz(inputs, 3, 6).tried


def test_every_run_has_its_own_seed() -> None:
    """The first run has the seed of the search."""
    seeds = [seed_of(9, run) for run in range(1000)]
    assert seeds[0] == 9
    assert len(set(seeds)) == 1000


@pytest.mark.usefixtures("broken")
def test_a_violation_is_found_and_reproduced(inputs: WorldInputs) -> None:
    """The search stops at the violation; a search of one run with the reported seed finds it again."""
    found = fuzz(inputs, 50, 1)
    assert found.violation is not None
    assert found.tried.runs == found.violation.run < 50
    again = fuzz(inputs, 1, found.violation.seed)
    assert again.violation is not None
    assert again.violation.problem == found.violation.problem
    assert again.violation.conditions == found.violation.conditions


def test_the_command_prints_what_was_tried(file: Path) -> None:
    """Without a violation the command exits with 0 and prints runs, messages and faults, as a table or as JSON."""
    result = invoke(file, "--runs", 3, "--seed", 4, "--jobs", 40)
    assert result.exit_code == 0, result.output
    rows = dict(line.rsplit(None, 1) for line in result.stdout.splitlines() if line.strip())
    assert {name.strip(): count for name, count in rows.items()}["runs without a violation"] == "3"
    report = json.loads(invoke(file, "--runs", 3, "--seed", 4, "--jobs", 40, "--json").stdout)
    assert report["tried"]["jobs"] == 120
    assert report["violation"] is None
    assert report["repeat"] is None


@pytest.mark.usefixtures("broken")
def test_the_command_prints_how_to_repeat_a_violation(file: Path) -> None:
    """The command exits with 1, and the printed command finds the violation again."""
    result = invoke(file, "--runs", 50, "--jobs", 60, "--set", "grid.mode=adaptive")
    assert result.exit_code == 1
    problem = next(line for line in result.stdout.splitlines() if line.startswith("violation in run"))
    words = shlex.split(result.stdout.partition("again: ")[2])
    assert words[:4] == ["gridweave", "scenario", "fuzz", str(file)]
    again = invoke(*words[3:])
    assert again.exit_code == 1
    told = next(line for line in again.stdout.splitlines() if line.startswith("violation in run"))
    assert told.partition(", ")[2] == problem.partition(", ")[2]
    as_json = invoke(*words[3:], "--json")
    assert as_json.exit_code == 1
    report = json.loads(as_json.stdout)
    assert report["violation"]["problem"] in problem
    assert shlex.split(report["repeat"]) == words


@pytest.mark.parametrize(("option", "value"), [("--runs", 0), ("--seed", -1), ("--jobs", 0)])
def test_wrong_numbers_are_refused(file: Path, option: str, value: int) -> None:
    result = invoke(file, option, value)
    assert isinstance(result.exception, OptionError)
    assert result.exception.option == option


def test_problems_of_the_scenario_are_reported(tmp_path: Path) -> None:
    """The problems are those of `scenario check`."""
    path = tmp_path / "bad.toml"
    path.write_text(FILE.replace("nodes = 8", "nodes = 0"), encoding="utf-8")
    result = invoke(path)
    assert result.exit_code == 2
    assert "sites" in result.stderr


NET = """
[workload.communication]
pattern = "ring"
fraction = 0.05
message_bytes = 1e7
[net]
nodes = [{name = "x"}, {name = "y"}, {name = "z"}]
links = [
  {from = "x", to = "y", latency_ms = 4, bandwidth = "10 Gbps", jitter_ms = 1},
  {from = "y", to = "z", latency_ms = 4, bandwidth = "10 Gbps", loss = 1e-4},
  {from = "z", to = "x", latency_ms = 20, bandwidth = "1 Gbps"},
]
attach = {a = "x", b = "y"}
changes = [
  {at_ms = 1000, action = "partition", nodes = ["x"]},
  {at_ms = 900_000, action = "heal", nodes = ["x"]},
]
"""


@pytest.mark.parametrize("control", ["full", "limited"])
def test_the_search_includes_failures_of_links(file: Path, control: str) -> None:
    """With a network, links fail at random, and jobs are split over them."""
    file.write_text(FILE + NET, encoding="utf-8")
    inputs = world_of(build_scenario(file, [f"grid.control={control}", "grid.contention=dynamic"]), jobs=25)
    assert inputs.net is not None
    assert inputs.grid_node is not None
    found = fuzz(inputs, 6, 3)
    assert found.violation is None
    assert min(found.tried.link_changes, found.tried.lost, found.tried.cuts, found.tried.multi_site) > 6
    assert fuzz(inputs, 1, 3) == fuzz(inputs, 1, 3)


def test_a_network_that_stays_disconnected_is_refused(file: Path) -> None:
    file.write_text(FILE + NET.replace('{at_ms = 900_000, action = "heal", nodes = ["x"]},', ""), encoding="utf-8")
    result = invoke(file, "--runs", 2)
    assert result.exit_code != 0
    assert "has no path to or from the grid, at node" in str(result.exception or result.output)


@pytest.mark.usefixtures("broken")
def test_a_violation_reports_failures_of_links(file: Path) -> None:
    """The report names the failures of links, and its seed reproduces them."""
    file.write_text(FILE + NET, encoding="utf-8")
    result = invoke(file, "--runs", 20, "--jobs", 60)
    assert result.exit_code == 1
    assert "  links: " in result.stdout
    again = invoke(*shlex.split(result.stdout.partition("again: ")[2])[3:])
    assert again.exit_code == 1

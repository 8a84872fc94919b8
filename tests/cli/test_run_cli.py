"""The commands `gridweave run` and `gridweave scenario`, through applications of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gridweave.cli.run import run_scenario
from gridweave.cli.scenario import app as scenario_app
from gridweave.errors import InputError, OptionError
from gridweave.scenarios.scenario.read import scenario_names, scenario_text

app = typer.Typer()
app.command("run")(run_scenario)
app.add_typer(scenario_app, name="scenario")


def invoke(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run(*arguments: object) -> Result:
    """Run the command; it must end well."""
    result = invoke(*arguments)
    assert result.exception is None, result.output
    return result


def test_run_prints_sites_and_metrics() -> None:
    """The output has a row for each site and the grid, the multi-site jobs, and the metrics of the scenario."""
    text = run("run", "two-sites", "--set", "workload.jobs=200", "--set", "output.metrics=['util','sldwa']").stdout
    words = [line.split() for line in text.splitlines() if line.strip()]
    assert words[0] == ["two-sites:", "adaptive", "p=25%"]
    starts = [line[0] for line in words]
    assert starts[3:6] == ["north", "south", "whole"]
    assert starts[-2:] == ["UTIL", "SLDwA"]


def test_run_writes_files(tmp_path: Path) -> None:
    """--out writes the files, and --json prints what summary.json says."""
    out = tmp_path / "a" / "b"
    result = run("run", "two-sites", "--set", "workload.jobs=200", "--out", out, "--json")
    names = ["jobs.csv", "schedule.png", "summary.json", "utilisation.png", "waits.png"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert json.loads(result.stdout) == json.loads((out / "summary.json").read_text())
    assert "wrote 5 files" in result.stderr
    run("run", "two-sites", "--set", "workload.jobs=50", "--no-plots", "--out", tmp_path / "c")
    assert len(list((tmp_path / "c").iterdir())) == 2


def test_run_and_check_tell_the_same_problems(tmp_path: Path) -> None:
    """Both commands name all problems, one line each with file, line and field, and end with 2 and no file."""
    path = tmp_path / "bad.toml"
    path.write_text('sites = "m3"\n[grid]\noverhead = -1\nmood = 3\n')
    results = [invoke("run", path, "--out", tmp_path / "out"), invoke("scenario", "check", path)]
    for result in results:
        assert result.exit_code == 2
        assert result.stdout == ""
        assert [line.rpartition(f"{path}")[2].split(": ")[:2] for line in result.stderr.splitlines()] == [
            ["", "workload"],
            [":1", "sites"],
            [":3", "grid.overhead"],
            [":4", "grid.mood"],
        ]
    assert results[0].stderr == results[1].stderr
    assert not (tmp_path / "out").exists()


def test_overrides_are_named_as_typed() -> None:
    """A wrong --set is told by the key that was typed."""
    result = invoke("run", "two-sites", "--set", "sites.north.nodes=0", "--set", "grid.overhead=-1")
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["--set sites.north.nodes", "--set grid.overhead"]


def test_out_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in the place of the folder is refused before the work."""
    (tmp_path / "file").write_text("x")
    assert isinstance(invoke("run", "two-sites", "--out", tmp_path / "file").exception, OptionError)


@pytest.mark.parametrize("arguments", [("run", "nothing"), ("scenario", "check", "nothing"), ("scenario", "show", "x")])
def test_unknown_names(arguments: tuple[str, ...]) -> None:
    """A scenario that is not there is refused with the names of those that are."""
    error = invoke(*arguments).exception
    assert isinstance(error, InputError)
    assert "two-sites" in str(error)


def test_check_says_what_can_be_run() -> None:
    """A good scenario is summed up in one line."""
    result = run("scenario", "check", "two-sites", "--set", "workload.jobs=10", "--set", "workload.transform=[]")
    assert result.stdout == "two-sites: can be run; 10 jobs, 384 nodes at 2 sites, adaptive p=25%\n"


def test_list_show_and_schema() -> None:
    """The catalogue is listed, each scenario is shown as it is, and the schema is JSON."""
    text = run("scenario", "list").stdout
    assert all(name in text for name in (*scenario_names(), "m64-8", "1 x 384 + 1 x 64 + 4 x 16"))
    listed = json.loads(run("scenario", "list", "--json").stdout)
    assert list(listed["scenarios"]) == scenario_names()
    assert listed["machines"]["m256"]["nodes"] == [256, 256]
    assert run("scenario", "show", "two-sites").stdout == scenario_text("two-sites")
    assert json.loads(run("scenario", "schema").stdout)["title"] == "A gridweave scenario"

"""The command that compares what sharing nodes brings."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gridweave.cli.main import app
from gridweave.cli.simulate import WITH_SHARING, simulate
from gridweave.errors import GridweaveError

SITE_OPTIONS = {
    name: option.default for name, option in inspect.signature(simulate).parameters.items() if name not in WITH_SHARING
}
"""Options of simulate that have no meaning for shared nodes, with their defaults."""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Return a small generated workload with its resources beside it."""
    path = tmp_path / "jobs.swf"
    arguments = ["--model", "lublin", "--jobs", "60", "--nodes", "16", "--load", "1.5", "--resources", "M1"]
    result = CliRunner().invoke(app, ["trace", "generate", str(path), *arguments])
    assert result.exit_code == 0, result.output
    return path


def lomarc(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, ["simulate", "--discipline", "lomarc", *map(str, arguments)])


def refusal(*arguments: object) -> str:
    """Return the one line with which the command refuses."""
    error = lomarc(*arguments).exception
    assert isinstance(error, GridweaveError)
    return str(error)


@pytest.mark.parametrize("name", SITE_OPTIONS)
def test_no_option_is_taken_and_then_ignored(name: str) -> None:
    """Each option of simulate that lomarc makes no use of is refused by its name."""
    default = SITE_OPTIONS[name]
    typed = f"--{'no-' * (default is True)}{name.replace('_', '-')}"
    value = () if isinstance(default, bool) else ("7",)
    result = CliRunner().invoke(app, ["simulate", "jobs.swf", "--discipline", "lomarc", typed, *value])
    assert str(result.exception) == f"{typed}: does not work with --discipline lomarc; leave it out"


def test_variants_are_compared_in_one_table(jobs: Path) -> None:
    """Each variant has a line, PSS starts no job beside another, and AC most."""
    result = lomarc(jobs, "--resources", f"{jobs}.resources.csv", "--variants", "PSS,AC,L-U1")
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line.split() for line in result.output.splitlines() if line.strip()}
    assert lines["PSS"][4] == "0"
    assert int(lines["AC"][4]) > int(lines["L-U1"][4]) > 0


def test_figures_and_jobs_are_written(jobs: Path, tmp_path: Path) -> None:
    """The files hold every job of each variant, and the figures that are printed for machines."""
    out = tmp_path / "out"
    arguments = (jobs, "--variants", "PSS,L-R", "--backfill", "easy,conservative", "--json", "--out", out)
    result = lomarc(*arguments)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed == json.loads((out / "summary.json").read_text())
    labels = ["PSS", "PSS backfill=conservative", "L-R", "L-R backfill=conservative"]
    assert [one["label"] for one in printed] == labels
    names = {"jobs-PSS.csv", "jobs-PSS-backfill=conservative.csv", "jobs-L-R.csv", "jobs-L-R-backfill=conservative.csv"}
    assert {path.name for path in out.iterdir()} == names | {"summary.json"}
    assert len((out / "jobs-L-R.csv").read_text().splitlines()) == 61


def test_measured_slowdowns_replace_the_formula(jobs: Path, tmp_path: Path) -> None:
    """With a table of measured slowdowns its values hold; one below 1 is refused with its cell."""
    table = tmp_path / "mine.csv"
    rows = ["cpu", "network", "disk"]
    table.write_text("\n".join([",".join(["", *rows]), *(f"{row},1.5,1.5,1.5" for row in rows)]))
    result = lomarc(jobs, "--variants", "AC", "--slowdowns", table, "--json")
    assert result.exit_code == 0, result.output
    assert 1 < json.loads(result.stdout)[0]["sharing"]["mean_slowdown"] <= 1.5
    table.write_text(table.read_text().replace("disk,1.5", "disk,0.5"))
    assert "row 'disk', column 'cpu': slowdown 0.5" in refusal(jobs, "--slowdowns", table)


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (("--variants", "PSS,X"), "--variants: 'X' is not known; one of PSS"),
        (("--variants", ","), "--variants: names no variant"),
        (("--resources", "M9"), "--resources: 'M9' is not known"),
        (("--resources", "missing.csv"), "missing.csv: there is no such file"),
        (("--max-slowdown", "0.5"), "--max-slowdown: is 0.5"),
        (("--threads", "0"), "--threads: is 0"),
        (("--backfill", "slack"), "--backfill: 'slack' is not known"),
        (("--seed", "-1"), "--seed: is -1"),
        (("--slowdowns", "missing.csv"), "missing.csv"),
    ],
)
def test_wrong_options_are_refused_in_one_line(jobs: Path, arguments: tuple[str, str], want: str) -> None:
    """What is wrong is named as it was typed, with what would be right."""
    message = refusal(jobs, *arguments)
    assert want in message
    assert "\n" not in message

"""``gridweave optimum`` and what ``gridweave simulate`` says of the best plans."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gridweave.cli.main import app
from gridweave.errors import GridweaveError, OptionError, UnavailableError
from gridweave.scenarios.traces.mupsie import write_mupsie
from support.builders import random_jobs, to_workload


def written(folder: Path, jobs: int) -> Path:
    """Return a file of so many jobs."""
    path = folder / "jobs.mupsie"
    write_mupsie(to_workload(random_jobs(np.random.default_rng(5), jobs, 8, load=1.3, tick=1000), nodes=8), path)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a file of sixty jobs."""
    return written(tmp_path, jobs=60)


def run(*arguments: object) -> str:
    """Return what the command prints; it must end well."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None, result.output
    return result.stdout


def refused(*arguments: object) -> GridweaveError:
    """Return the error of a command that must fail with one of the project."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(result.exception, GridweaveError), result.output
    return result.exception


def test_what_is_lost_by_size_is_printed_and_written(trace: Path, tmp_path: Path) -> None:
    """A row for each number of jobs, and the gap over time as a table and a picture."""
    printed = run("optimum", trace, "--sizes", "2,4", "--per-size", 1, "--out", tmp_path / "out")
    rows = [line.split() for line in printed.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["2", "4"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"optimum.csv", "gap.csv", "gap.png"}


def test_a_run_of_dynp_tells_what_it_lost(tmp_path: Path) -> None:
    """The loss against the best plans stands below the metrics, and in what is written for machines."""
    few = written(tmp_path, jobs=24)
    options = ("simulate", few, "--discipline", "dynp", "--optimum-every", 8)
    assert "dynp advanced: the best policy loses" in run(*options)
    (found,) = json.loads(run(*options, "--json"))
    assert found["optimum"]["instants"] > 1
    assert 0 <= found["optimum"]["loss_pct"] <= found["optimum"]["most_loss_pct"] < 100


def test_wrong_questions_are_refused_in_a_line(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another discipline, no number, two ways at once, and no solver: each is said before anything is played."""
    for arguments, line in (
        (("simulate", trace, "--optimum-every", 5), "--optimum-every: works only with --discipline dynp"),
        (
            ("simulate", trace, "--discipline", "dynp", "--optimum-every", 0),
            "--optimum-every: is 0; expected at least 1",
        ),
        (("optimum", trace, "--sizes", "a"), "--sizes: 'a' is not a list of numbers; write 5,10,20"),
        (("optimum", trace, "--sizes", "1"), "sizes: has 1; expected at least 2 jobs"),
        (
            ("optimum", trace, "--at", "1d", "--every", 3),
            "--at: selects the instants, as --every and --sizes do; give exactly one",
        ),
        (("optimum", trace, "--at", ""), "--at: '' is not a time"),
        (("optimum", trace, "--every", 0), "--every: is 0; expected at least 1"),
        (("optimum", trace, "--sizes", ""), "--sizes: '' is not a list of numbers; write 5,10,20"),
    ):
        error = refused(*arguments)
        assert isinstance(error, OptionError)
        assert line in str(error)
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    for more in (("--discipline", "dynp", "--optimum-every", 5), ("--discipline", "optimal")):
        error = refused("simulate", trace, *more)
        assert isinstance(error, UnavailableError)
        assert "OR-Tools is not installed; in a checkout of gridweave run: pip install '.[optimum]'" in str(error)

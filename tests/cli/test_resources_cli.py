"""Lublin models and resources on the command line: `trace generate` and `trace resources`, run as from a shell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from gridweave.cli.trace import app
from gridweave.errors import GridweaveError
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.traces.resources import read_resources
from gridweave.scenarios.workload.table import Workload


def run(*arguments: object) -> Result:
    """Run a command line; an exception that it ends with is in the result."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def made(out: Path, *options: object) -> Workload:
    """Generate a workload of 500 jobs and return it."""
    result = run("generate", out, "--jobs", 500, *options)
    assert result.exit_code == 0, result.exception
    return load_workload(out, columns=("job_class",) if out.suffix == ".swf" else ())[0]


def refusal(result: Result) -> str:
    """Return the one line of the error that a command ended with."""
    assert isinstance(result.exception, GridweaveError), result.exception
    assert result.exception.exit_status == 2
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_lublin_models_need_no_file(tmp_path: Path) -> None:
    """Each is known by its name, for a machine of any size; the merged one says the type of each job as SWF's queue."""
    classes = {"lublin": {-1}, "lublin-batch": {1}, "lublin-interactive": {0}, "lublin-types": {0, 1}}
    for model, expected in classes.items():
        workload = made(tmp_path / "w.swf", "--model", model, "--nodes", 300)
        assert (len(workload), workload.nodes) == (500, 300)
        assert set(workload.columns["job_class"].tolist()) == expected
    assert made(tmp_path / "w.swf", "--model", "lublin").nodes == 128


def test_alpha_changes_the_arrivals_alone(tmp_path: Path) -> None:
    """A lower alpha lets the same jobs come sooner."""
    plain = made(tmp_path / "w.swf", "--model", "lublin")
    faster = made(tmp_path / "w.swf", "--model", "lublin", "--alpha", 8.83)
    assert np.array_equal(plain.width, faster.width)
    assert np.array_equal(plain.run_ms, faster.run_ms)
    assert faster.submit_ms[-1] < plain.submit_ms[-1]


@pytest.mark.parametrize("name", ["w.swf", "w.mupsie"])
def test_resources_are_written_beside_the_workload(tmp_path: Path, name: str) -> None:
    """The file holds a line for each job, in whatever format the jobs are; the jobs are those without it."""
    plain = made(tmp_path / name)
    workload = made(tmp_path / name, "--resources", "M3")
    assert np.array_equal(plain.submit_ms, workload.submit_ms)
    assert np.array_equal(plain.width, workload.width)
    columns = read_resources(tmp_path / f"{name}.resources.csv", workload).columns
    assert set(columns) > {"cpu_fraction", "network_fraction", "disk_fraction", "memory_fraction", "cpu_kind"}


def test_resources_go_where_one_says(tmp_path: Path) -> None:
    """With --resources-out the file has that name; same seed, same bytes; the output names it, for machines, too."""
    out, files = tmp_path / "w.swf", [tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "c.csv"]
    for file, seed in zip(files, (3, 3, 4), strict=True):
        result = run("generate", out, "--jobs", 50, "--seed", seed, "--resources", "M1", "--resources-out", file)
        assert result.stdout.endswith(f"\nresources written to {file}\n")
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()
    result = run("generate", out, "--jobs", 50, "--resources", "50/25/25", "--json")
    printed = json.loads(result.stdout)
    assert (printed["resources"], printed["resources_out"]) == ("50/25/25", f"{out}.resources.csv")


def test_resources_of_a_trace(tmp_path: Path) -> None:
    """`trace resources` draws them for the jobs of any trace."""
    workload = made(tmp_path / "w.swf")
    out = tmp_path / "r.csv.gz"
    result = run("resources", tmp_path / "w.swf", out, "--mix", "M2")
    assert result.stdout == f"resources of 500 jobs written to {out}\n"
    assert len(read_resources(out, workload).columns["memory_fraction"]) == 500
    printed = json.loads(run("resources", tmp_path / "w.swf", out, "--json").stdout)
    assert (printed["mix"], printed["jobs"]) == ("M1", 500)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--alpha", "9"], "--alpha: a histogram model has no such parameter"),
        (["--model", "lublin-types", "--alpha", "9"], "--alpha"),
        (["--model", "lublin", "--alpha", "nan"], "--alpha"),
        (["--model", "lublin", "--alpha", "50"], "--alpha"),
        (["--model", "lublin", "--load", "1e100"], "--load"),
        (["--model", "lublin", "--shrink", "1e100"], "--shrink"),
        (["--resources", "M9"], "--resources"),
        (["--resources", "50/50"], "--resources"),
        (["--resources-out", "r.csv"], "--resources-out"),
        (["--resources", "M1", "--resources-out", "w.swf"], "--resources-out"),
    ],
)
def test_generate_refuses_and_writes_nothing(tmp_path: Path, options: list[str], words: str) -> None:
    """An option that cannot be used is an error in one line that names it, and no file is left."""
    assert words in refusal(run("generate", tmp_path / "w.swf", "--jobs", 10, *options))
    assert not list(tmp_path.iterdir())


def test_resources_refuses_what_cannot_be_meant(tmp_path: Path) -> None:
    """A trace is not overwritten by its resources, and mixes and seeds that are none are refused."""
    trace = tmp_path / "w.swf"
    made(trace)
    before = trace.read_bytes()
    assert ".csv" in refusal(run("resources", trace, trace))
    assert "--mix" in refusal(run("resources", trace, tmp_path / "r.csv", "--mix", "M0"))
    assert "--seed" in refusal(run("resources", trace, tmp_path / "r.csv", "--seed", "-1"))
    assert trace.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["w.swf"]

"""``gridweave bound`` and ``--needs``: what they print, and what they say of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gridweave.cli.main import app
from gridweave.errors import GridweaveError

SWF = """; MaxProcs: 4
1 0 0 60 2 -1 500000 2 60 -1 1 1 1 1 1 1 -1 -1
2 0 0 60 4 -1 500000 4 60 -1 1 1 1 1 1 1 -1 -1
3 10 0 600 1 -1 -1 1 600 -1 1 1 1 1 1 1 -1 -1
"""


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Return a trace of three jobs on four processors, two of them with known memory."""
    path = tmp_path / "three.swf"
    path.write_text(SWF)
    return str(path)


def run(*arguments: str) -> str:
    """Return what the command prints; raise what it raises."""
    result = CliRunner().invoke(app, arguments, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_the_bound_of_a_trace(trace: str) -> None:
    """By hand: on four nodes the two minutes of work of jobs 1 and 2 take 90 s of all nodes; both methods say so."""
    for method in ("flow", "lp"):
        found = json.loads(run("bound", trace, "--nodes", "4", "--method", method, "--json"))
        assert found["bound"] == pytest.approx(1.5, abs=0.002)
        assert (found["jobs"], found["nodes"]) == (3, 4)
    assert run("bound", trace, "--nodes", "4", "--jobs", "1").strip() == "bound 1.000"


def test_disciplines_beside_the_bound(trace: str) -> None:
    """EASY and an algorithm are compared with it, and none is below it."""
    names = "easy,GreedyPM*/per/OPT=MIN/MINVT=600"
    found = json.loads(run("bound", trace, "--nodes", "4", "--against", names, "--json"))
    assert [row["discipline"] for row in found["against"]] == names.split(",")
    assert all(row["degradation_from_bound"] >= 1 for row in found["against"])
    assert "preemptions/h" in run("bound", trace, "--nodes", "4", "--against", names)


def test_a_fractional_site_is_simulated_with_needs_of_the_trace(trace: str) -> None:
    """With the needs of HPC2N, two processors of job 1 are one task; several algorithms are compared."""
    options = ("--nodes", "2", "--needs", "hpc2n", "--discipline", "fractional", "--json")
    found = json.loads(run("simulate", trace, *options, "--option", "algorithm=Greedy*/OPT=MIN,MCB8*/OPT=MIN"))
    assert [result["label"] for result in found] == ["Greedy*/OPT=MIN", "MCB8*/OPT=MIN"]
    for result in found:
        assert result["metrics"]["jobs"] == 3
        assert result["own_metrics"]["need_max_stretch"] >= 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("simulate", "--nodes", "4", "--discipline", "fractional"), "has no column cpu_need"),
        (("simulate", "--nodes", "4", "--needs", "vm"), "'vm' is not known; one of lublin, hpc2n, whole"),
        (("bound", "--nodes", "4", "--against", "GreedyPN*/OPT=MIN"), "similar names: "),
        (("bound", "--nodes", "4", "--method", "guess"), "one of flow, lp"),
        (("bound", "--nodes", "4", "--jobs", "0"), "at least 1"),
        (("bound", "--nodes", "4", "--load", "0"), "above 0"),
        (("bound", "--nodes", "2", "--needs", "whole", "--against", "easy"), "refuses 1 jobs"),
    ],
)
def test_bad_input_is_one_line(trace: str, arguments: tuple[str, ...], problem: str) -> None:
    """Each is told in one line, by an error of gridweave."""
    with pytest.raises(GridweaveError) as caught:
        run(arguments[0], trace, *arguments[1:])
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)

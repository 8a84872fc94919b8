"""``gridweave check``, run as from a shell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from gridweave.cli.main import make_app
from gridweave.errors import OptionError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.traces.load import save_workload
from support.builders import random_jobs, to_workload

NODES = 16


def run(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(make_app("check"), ["check", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a trace and its schedules under EASY and conservative backfilling."""
    jobs = random_jobs(np.random.default_rng(5), 300, nodes=NODES, load=0.95)
    workload = to_workload(jobs)
    seconds = workload.replace(
        **{name: getattr(workload, name) * 1000 for name in ("submit_ms", "estimate_ms", "run_ms")}
    )
    save_workload(seconds, tmp_path / "trace.swf")
    for backfill in ("easy", "conservative"):
        simulate(tmp_path / "trace.swf", NODES, backfill=backfill).write(tmp_path / backfill, plots=False)
    return tmp_path


def test_a_right_schedule(folder: Path) -> None:
    """It has no faults and keeps its promise; the status is 0."""
    result = run(folder / "easy" / "jobs.csv", "--trace", folder / "trace.swf", "--nodes", NODES, "--promise", "easy")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[1] == "no faults"
    assert lines[2].startswith("easy: kept")
    assert lines[3].startswith("conservative: broken for")


def test_a_broken_promise_is_wrong_if_it_is_claimed(folder: Path) -> None:
    """The status is 1 then, and 0 without the claim."""
    given = (folder / "easy" / "jobs.csv", "--trace", folder / "trace.swf", "--nodes", NODES)
    assert run(*given, "--promise", "conservative").exit_code == 1
    assert run(*given).exit_code == 0
    with_slack = run(*given, "--promise", "slack")
    assert isinstance(with_slack.exception, OptionError)


def test_a_schedule_that_accasim_wrote() -> None:
    """AccaSim 1.1.3, EASYBackfilling, 4 nodes of 2 cores: it has no faults, but long jobs go before wide ones."""
    data = Path(__file__).parents[1] / "data" / "schedules"
    given = (data / "accasim-1.1.3-easy.txt", "--trace", data / "accasim-1.1.3-trace.txt", "--nodes", 8)
    result = run(*given)
    assert result.exit_code == 0, result.output
    first, faults, easy, _ = result.stdout.splitlines()
    assert first.endswith(
        "(AccaSim): 15 jobs of accasim-1.1.3-trace on 8 nodes, moved by -1000000000 s to the trace's clock"
    )
    assert faults == "no faults"
    assert easy == (
        "easy: broken for 3 of 3 promised starts; first job 2, promised 320 s, started 12 min 47 s later "
        "(at most 12 min 47 s)"
    )
    assert run(*given, "--promise", "easy").exit_code == 1


def test_faults(folder: Path) -> None:
    """On a machine with fewer nodes it is over-used; the status is 1."""
    schedule = folder / "easy" / "jobs.csv"
    result = run(schedule, "--trace", folder / "trace.swf", "--nodes", NODES - 1, "--json")
    assert result.exit_code == 1
    kinds = {fault["kind"] for fault in json.loads(result.stdout)["schedules"][0]["faults"]}
    assert "machine over-used" in kinds
    result = run(schedule, "--trace", folder / "trace.swf", "--nodes", NODES - 1)
    assert "promises and differences are checked only in schedules without faults" in result.stdout


def test_against_another(folder: Path) -> None:
    """Where two part is told, and the status is 1; a schedule does not part from itself."""
    easy, other = (folder / name / "jobs.csv" for name in ("easy", "conservative"))
    given = ("--trace", folder / "trace.swf", "--nodes", NODES)
    result = run(easy, *given, "--against", other)
    assert result.exit_code == 1
    assert "the same until" in result.stdout
    assert "start at different times" in result.stdout
    parted = json.loads(run(easy, *given, "--against", other, "--json").stdout)["parting"]
    assert parted["path"] in (str(easy), str(other))
    same = run(easy, *given, "--against", easy)
    assert same.exit_code == 0
    assert same.stdout.endswith("both schedules are the same\n")

"""Fixtures of the failure drills: one grid in containers for all drills, and the report with their outcomes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.containers import ROOT, ComposeGrid, Outcome, Report, compose_command, docker

ASKED_FOR = "GRIDWEAVE_DRILLS"
SEED = "GRIDWEAVE_DRILLS_SEED"
BUDGET = "GRIDWEAVE_DRILLS_BUDGET_S"

_REPORT = pytest.StashKey[Report]()


def _missing() -> str | None:
    """Return why the drills cannot run on this machine, or None."""
    if not os.environ.get(ASKED_FOR):
        return "the failure drills are run on purpose: make test-compose"
    if os.geteuid() != 0:
        return "the failure drills kill containers from outside, cut their networks and mount a small disk, as root"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return "no Docker engine answers (docker info)"
    return None if compose_command() else "there is no Compose (docker compose, or docker-compose)"


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    """Return the report that collects the outcomes of the drills."""
    made = Report(int(os.environ.get(SEED, "0")), float(os.environ.get(BUDGET, "inf")))
    return pytestconfig.stash.setdefault(_REPORT, made)


@pytest.fixture(scope="session")
def grid(report: Report) -> Iterator[ComposeGrid]:
    """Build the image, start the grid, and remove it after the last drill."""
    missing = _missing()
    if missing is not None:
        pytest.skip(missing)
    command = compose_command()
    assert command is not None
    with tempfile.TemporaryDirectory(prefix="gridweave-drills-") as folder:
        # All users in the containers need access to the file of the job histories.
        Path(folder).chmod(0o755)
        grid = ComposeGrid(Path(folder), command, "drills")
        grid.clear()
        try:
            with report.phase("image built"):
                docker("build", "--tag", "gridweave:drills", str(ROOT), timeout_s=1200)
                docker("build", "--tag", "gridweave-postgres:15", "--target", "postgres", str(ROOT), timeout_s=600)
            grid.prepare()
            with report.phase("up and healthy"):
                grid.up()
            yield grid
        finally:
            grid.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table of drills and outcomes, and write it to out/."""
    report = config.stash.get(_REPORT, None)
    if report is None or not report.outcomes:
        return
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=150).print(report.table())
    terminalreporter.write_line(text.getvalue())
    folder = ROOT / "out" / "drills"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "drills.txt").write_text(text.getvalue(), encoding="utf-8")
    rows = [Outcome.as_dict(outcome) for outcome in report.outcomes]
    (folder / "drills.json").write_text(json.dumps({"seed": report.seed, "drills": rows}, indent=2), encoding="utf-8")

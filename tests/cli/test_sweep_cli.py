"""The command `gridweave sweep`."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from gridweave.scenarios.sweep import runner, work
from gridweave.scenarios.sweep.plan import PlannedRun
from gridweave.scenarios.sweep.work import Outcome, perform

SMALL = ("two-sites", "--set", "workload.jobs=60", "--workers", "1")


def test_a_sweep_prints_and_writes(shell: object, tmp_path: Path) -> None:
    """A sweep prints a row for each combination with its interval, and writes both tables and the plots."""
    out = tmp_path / "out"
    asked = (
        "--vary",
        "p=0,0.5",
        "--vary",
        "grid.mode=multi-site,adaptive",
        "--seeds",
        3,
        "--metric",
        "util",
        "--out",
        out,
    )
    status, printed, said = shell("sweep", *SMALL, *asked)  # type: ignore[operator]
    assert status == 0
    rows = [line.split() for line in printed.splitlines() if "adaptive" in line or "multi-site" in line]
    assert [row[:3] for row in rows] == [[p, mode, "3"] for p in ("0", "0.5") for mode in ("multi-site", "adaptive")]
    table = pd.read_csv(out / "summary.csv")
    for row, mean, high in zip(rows, table["util_mean"], table["util_high"], strict=True):
        assert row[3:] == [f"{mean * 100:.2f}", "±", f"{(high - mean) * 100:.2f}"]
    assert sorted(path.name for path in out.iterdir()) == [
        *("runs", "runs.csv", "runs.parquet", "summary.csv", "summary.parquet", "sweep.json", "util.png")
    ]
    assert "12 runs: 12 run now, 0 finished before, 0 failed" in said
    _, again, said = shell("sweep", *SMALL, *asked)  # type: ignore[operator]
    assert again == printed
    assert "0 run now, 12 finished before" in said


def test_json_and_the_folder_by_default(shell: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--json prints what sweep.json says; without --out the folder has the name of the scenario."""
    monkeypatch.chdir(tmp_path)
    status, printed, _ = shell("sweep", *SMALL, "--vary", "p=0,0.5", "--json")  # type: ignore[operator]
    assert status == 0
    assert json.loads(printed) == json.loads((tmp_path / "two-sites-sweep" / "sweep.json").read_text())
    assert [row["p"] for row in json.loads(printed)["summary"]] == [0, 0.5]


def test_bad_input_all_at_once(shell: object, tmp_path: Path) -> None:
    """All that is wrong with the options and the combinations is told, one line each, with status 2 and no file."""
    wrong = ("--vary", "p=0,x", "--vary", "grid.modd=1", "--vary", "grid.mode=", "--seeds", "1,1", "--workers", "0")
    out = ("--metric", "speed", "--out", tmp_path / "out")
    status, printed, said = shell("sweep", "two-sites", *wrong, *out)  # type: ignore[operator]
    assert (status, printed) == (2, "")
    assert [line.split(": ")[:2] for line in said.splitlines()] == [
        ["gridweave", option]
        for option in ("--seeds", "--workers", "--metric", "--vary grid.mode", "--vary grid.modd", "--vary p")
    ]
    assert not (tmp_path / "out").exists()
    status, _, said = shell("sweep", "two-sites", "--vary", "p=0,1", "--over", "config")  # type: ignore[operator]
    assert (status, said) == (2, "gridweave: --over: 'config' is not varied; the varied keys are p\n")
    status, _, said = shell("sweep", "nothing", "--vary", "p=0,1")  # type: ignore[operator]
    assert status == 2
    assert said.count("\n") == 1


def test_failed_runs_are_told(shell: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails is named on standard error, the status is 1, and the table has the others."""

    def failing(run: PlannedRun, stamp: str) -> Outcome:
        return Outcome(None, "is broken") if run.scenario.grid.overhead else perform(run, stamp)

    monkeypatch.setattr(runner, "perform", failing)
    arguments = ("--vary", "p=0,0.5", "--metric", "util", "--out", tmp_path)
    status, printed, said = shell("sweep", *SMALL, *arguments)  # type: ignore[operator]
    assert status == 1
    assert "gridweave: p=0.5, seed 1: is broken" in said.splitlines()
    assert len(pd.read_csv(tmp_path / "runs.csv")) == 1
    assert "0.5" not in printed


def test_interrupted(shell: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C the command says what is kept and how to go on, and ends with 130."""

    def interrupted(run: PlannedRun, stamp: str) -> Outcome:
        if run.scenario.grid.overhead:
            raise KeyboardInterrupt
        return work.perform(run, stamp)

    monkeypatch.setattr(runner, "perform", interrupted)
    status, _, said = shell("sweep", *SMALL, "--vary", "p=0,0.5", "--out", tmp_path)  # type: ignore[operator]
    assert status == 130
    assert said.splitlines() == [
        f"1 of 2 runs are kept in {tmp_path}; run the same command to continue",
        "gridweave: interrupted",
    ]


def test_a_plot_that_cannot_be_drawn(shell: object, tmp_path: Path) -> None:
    """Where lines cannot be told apart the tables are written all the same."""
    many = ",".join(map(str, range(40)))
    vary = ("--vary", f"grid.lower_bound={many}", "--vary", "p=0,1", "--over", "p", "--out", tmp_path)
    status, _, said = shell("sweep", *SMALL, "--set", "workload.jobs=3", *vary)  # type: ignore[operator]
    assert status == 0
    assert "no plot: " in said
    assert len(pd.read_parquet(tmp_path / "summary.parquet")) == 80

"""Join clusters: a trace for each site's own users, and the table of docs/join-clusters.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridweave.errors import ScenarioError
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.run import run_scenario
from gridweave.scenarios.traces.load import load_workload, save_workload
from gridweave.scenarios.workload.homes import home_of
from gridweave.scenarios.workload.table import Workload

PAGE = Path(__file__).parents[3] / "docs" / "join-clusters.md"
SITES = ("physics", "chemistry", "biology")
OWN_FIRST = {f"sites.{name}.own_users_first": True for name in SITES}
ROWS: tuple[dict[str, Any], ...] = (
    {"grid.mode": "local"},
    {"workload.to_grid": 0.25},
    {},
    OWN_FIRST,
    {"workload.to_grid": 1},
)

TWO = """\
[[sites]]
name = "north"
nodes = 8
[[sites]]
name = "south"
nodes = 4
[workload.traces]
north = "north.swf"
south = "south.swf"
[grid]
mode = "sharing"
"""


def write(path: Path, submit_s: list[int], width: int, start_unix_s: int | None) -> None:
    """Write jobs of ten minutes as a trace."""
    n = len(submit_s)
    run_ms = np.full(n, 600_000)
    submit_ms = np.array(submit_s) * 1000
    jobs = Workload(
        np.arange(1, n + 1), submit_ms, np.full(n, width), run_ms, run_ms, nodes=8, start_unix_s=start_unix_s
    )
    save_workload(jobs, path)


@pytest.mark.parametrize(
    ("south_unix_s", "submit_s", "homes"),
    [
        (1_000_050, [0, 50, 60, 100], [0, 1, 1, 0]),  # recorded at one time: they stay beside each other
        (9_000_000, [0, 0, 10, 100], [0, 1, 1, 0]),  # at another, so each begins at 0
        (None, [0, 0, 10, 100], [0, 1, 1, 0]),
    ],
)
def test_each_site_has_a_trace_of_its_own_users(
    tmp_path: Path, south_unix_s: int | None, submit_s: list[int], homes: list[int]
) -> None:
    """The jobs are at home at the trace's site and renumbered; a remark reports traces without a common period."""
    write(tmp_path / "north.swf", [0, 100], 3, 1_000_000)
    write(tmp_path / "south.swf", [0, 10], 2, south_unix_s)
    (tmp_path / "two.toml").write_text(TWO)
    built = build_scenario(tmp_path / "two.toml")
    jobs = built.workload
    assert jobs.job_id.tolist() == [1, 2, 3, 4]
    assert (jobs.submit_ms // 1000).tolist() == submit_s
    assert home_of(jobs).tolist() == homes
    assert jobs.width.tolist() == [3, 2, 2, 3]
    assert any("have no common period" in remark for remark in built.remarks) == (submit_s[1] == 0)


@pytest.mark.parametrize(("text", "said"), [
    (TWO.replace('south = "s', 'east = "s'), "workload.traces.east: there is no site 'east'; expected one of north"),
    (TWO.replace("[workload.traces]", '[workload]\ngenerator = "ctc-sp2"\n[workload.traces]'), "with traces; give"),
    (TWO.replace("[workload.traces]", '[workload]\nhome = "partition"\n[workload.traces]'), "follows from traces"),
    (TWO.replace("[workload.traces]", "[workload]\nnodes = 3\n[workload.traces]"), "nodes: is the size of each site"),
    (TWO.replace("south.swf", "nowhere/x.swf"), "there is no such file"),
    (TWO.partition("north = ")[0] + "[grid]\nmode = 'local'\n", "workload.traces: "),
])  # fmt: skip
def test_problems_are_reported_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path / "north.swf", [0, 100], 3, None)
    write(tmp_path / "south.swf", [0, 100], 2, None)
    (tmp_path / "two.toml").write_text(text)
    with pytest.raises(ScenarioError) as refused:
        build_scenario(tmp_path / "two.toml")
    (problem,) = map(str, refused.value.problems)
    assert said in problem


@pytest.mark.slow
def test_the_figures_in_the_docs_are_those_of_runs() -> None:
    """Every figure in the table of docs/join-clusters.md is that of a run."""
    printed = [
        [int(cell) for cell in line.split("|")[2:6]]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if re.match(r"\| .+(\|\s*\d+ ){4}\|$", line)
    ]
    for row, changes in zip(printed, ROWS, strict=True):
        jobs = run_scenario("join-three-clusters", overrides=changes).to_pandas()
        waits = (jobs.start_ms - jobs.submit_ms) / 60_000
        of_home = waits.groupby(jobs.home).mean()
        assert row == [*(round(of_home[name]) for name in SITES), round(waits.mean())]


def cancelling_traces(tmp_path: Path) -> Path:
    """Write two traces; in the north the second job waits for the first and is cancelled after 50 s."""
    for name, submit_s, cancel_ms in (("north", [0, 10, 20], [-1, 60_000, -1]), ("south", [0, 500], None)):
        write(tmp_path / f"{name}.swf", submit_s, 8 if name == "north" else 2, 1_000_000)
        if cancel_ms is not None:
            jobs, _ = load_workload(tmp_path / f"{name}.swf")
            save_workload(jobs.replace(columns={**jobs.columns, "cancel_ms": cancel_ms}), tmp_path / f"{name}.swf")
    (tmp_path / "two.toml").write_text(
        TWO.replace("[workload.traces]", "[workload]\ncancelled = true\n[workload.traces]")
    )
    return tmp_path / "two.toml"


@pytest.mark.parametrize("changes", [
    {"grid.mode": "local"},
    {},
    {"grid.control": "limited", "network.look_ms": 1000},
    {"grid.control": "limited", "network.look_ms": 1000, "workload.to_grid": 0},
])  # fmt: skip
def test_jobs_cancelled_while_waiting_leave_the_queue(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Every level of control does this; without the key the jobs are left out."""
    path = cancelling_traces(tmp_path)
    result = run_scenario(path, overrides=changes)
    assert result.workload.columns["cancel_ms"].tolist() == [-1, -1, 60_000, -1, -1]
    assert result.cancelled.tolist() == [False, False, True, False, False]
    assert result.summary()["cancelled"] == 1
    dropped = run_scenario(path, overrides={**changes, "workload.cancelled": False})
    assert len(dropped.workload) == 4

"""The demonstration: its jobs and its grid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from gridweave.grid.config.reading import grid_of_text
from gridweave.scenarios.live.demo import JOBS, RUN_MS, SPAN_MS, WIDE, Demo, grid_text, make_demo
from gridweave.scenarios.world.connections import LiveTimes


def test_the_demonstration_has_jobs_of_seconds(no_traces: Path, tmp_path: Path) -> None:
    """Its jobs take seconds, all are handed in within seconds, and one is wider than any site; each time the same."""
    demo = make_demo(tmp_path)
    jobs = demo.built.workload
    assert "model" in demo.source
    assert len(jobs) == JOBS
    assert (jobs.width > 8).sum() == 1
    assert jobs.width.max() == WIDE
    assert int(jobs.submit_ms[-1]) == SPAN_MS
    assert jobs.run_ms.min() >= RUN_MS[0]
    assert jobs.run_ms.max() <= RUN_MS[1]
    assert (jobs.estimate_ms > jobs.run_ms).all()
    again = make_demo(tmp_path).built.workload
    assert again.run_ms.tolist() == jobs.run_ms.tolist()


def placed(demo: Demo) -> list[list[tuple[int, int]]]:
    """Simulate it as on a grid of one machine; return where each job was."""
    run = demo.on(LiveTimes(start_ms=25, end_ms=10, margin_ms=500)).simulated()
    return [run.fragments_of(row) for row in range(len(run.workload))]


def test_no_decision_of_the_demonstration_hangs_on_a_tenth_of_a_second(no_traces: Path, tmp_path: Path) -> None:
    """Jobs stay where they are, on one site or several, if any take 0.1 s longer, start at once, or are late."""
    demo = make_demo(tmp_path)
    jobs, rng = demo.built.workload, np.random.default_rng(5)
    where = placed(demo)
    assert sum(len(fragments) > 1 for fragments in where) >= 3
    for _ in range(12):
        run_ms = jobs.run_ms + rng.integers(-35, 100, JOBS)
        submit_ms = np.sort(jobs.submit_ms + rng.integers(0, 10, JOBS))
        late = replace(demo.built, workload=jobs.replace(run_ms=run_ms, submit_ms=submit_ms))
        assert placed(replace(demo, built=late)) == where


def test_the_grid_of_the_demonstration_is_fine() -> None:
    """Its GRID.toml can be read, and has room for the widest job on no one site."""
    sites = grid_of_text(grid_text(), "GRID.toml", "").sites
    assert max(site.nodes for site in sites) < WIDE <= sum(site.nodes for site in sites)

"""The demonstration: its jobs and its grid."""

from __future__ import annotations

from pathlib import Path

from gridweave.grid.config.reading import grid_of_text
from gridweave.scenarios.live.demo import JOBS, RUN_MS, SPAN_MS, WIDE, grid_text, make_demo


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


def test_the_grid_of_the_demonstration_is_fine() -> None:
    """Its GRID.toml can be read, and has room for the widest job on no one site."""
    sites = grid_of_text(grid_text(), "GRID.toml", "").sites
    assert max(site.nodes for site in sites) < WIDE <= sum(site.nodes for site in sites)

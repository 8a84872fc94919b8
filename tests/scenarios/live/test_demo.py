"""The demonstration: its jobs and its grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gridweave.grid.config.reading import read_grid
from gridweave.grid.service.cluster import FIRST_PORT, plan_of
from gridweave.scenarios.live.demo import JOBS, PAIR, SPLIT, STAYS, WIDE, Demo, make_demo
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.world.connections import LiveTimes

LIVE = LiveTimes(start_ms=25, end_ms=10, margin_ms=500)
ROWS = {job.name: row for row, job in enumerate(JOBS)}


@pytest.fixture
def demo() -> Demo:
    """Return the demonstration with the times of a grid on one machine."""
    return make_demo().on(LIVE)


def placed(demo: Demo) -> list[list[tuple[int, int]]]:
    """Simulate the demonstration; return the sites of each job."""
    run = demo.simulated()
    return [run.fragments_of(row) for row in range(len(JOBS))]


def span_s(run: SimulationResult, name: str) -> float:
    """Return how long a job held its nodes."""
    return float(run.end_ms[ROWS[name]] - run.start_ms[ROWS[name]]) / 1000


def test_the_demonstration_uses_the_shipped_grid(demo: Demo) -> None:
    """Its simulation has the sites, disciplines, links and policy of the default grid."""
    shipped = plan_of(read_grid(None), folder="", namespace="", labelled=False, first_port=FIRST_PORT, secret=b"")
    built, settings = demo.built, shipped.settings()
    assert [(site.name, site.nodes) for site in shipped.sites] == list(
        zip(built.site_names, built.nodes.tolist(), strict=True)
    )
    assert tuple(site.policy for site in shipped.sites) == built.site_policies
    assert built.policy == settings.policy
    assert built.net is not None
    assert settings.network is not None
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert built.net.model.paths.latency_ms[one, other] == settings.network.model.paths.latency_ms[one, other]
    assert built.live.margin_ms == settings.margin_ms


def test_the_demonstration_shows_the_decisions_of_the_grid(demo: Demo) -> None:
    """One split is made and one is not, two jobs slow each other on shared nodes, and one is wider than any site."""
    run = demo.simulated()
    split, stays, wide = (run.fragments_of(ROWS[name]) for name in (SPLIT, STAYS, WIDE))
    assert len(split) == 2
    assert len(stays) == 1
    assert run.start_ms[ROWS[STAYS]] > run.workload.submit_ms[ROWS[STAYS]] + 1_000
    free_then = demo.built.nodes.sum() - sum(
        job.nodes
        for row, job in enumerate(JOBS)
        if run.start_ms[row] <= run.workload.submit_ms[ROWS[STAYS]] < run.end_ms[row] and job.name not in PAIR
    )
    assert free_then - demo.built.nodes[2] >= JOBS[ROWS[STAYS]].nodes, "it could have been split"
    assert sum(nodes for _, nodes in wide) > demo.built.nodes.max()
    one, other = (run.fragments_of(ROWS[name]) for name in PAIR)
    assert {site for site, _ in one + other} == {2}
    assert sum(nodes for _, nodes in one + other) > demo.built.nodes[2]
    assert all(span_s(run, name) > 1.1 * JOBS[ROWS[name]].run_s for name in PAIR)


def with_sends(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> SimulationResult:
    """Simulate the demonstration with a changed job `sends`."""
    jobs = tuple(job._replace(**changed) if job.name == "sends" else job for job in JOBS)
    monkeypatch.setattr("gridweave.scenarios.live.demo.JOBS", jobs)
    return make_demo().on(LIVE).simulated()


def test_the_grid_starts_a_job_on_shared_nodes_rather_than_wait_or_split(
    demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job `sends` waits for a site if it cannot share nodes, and is split if that costs little."""
    row = ROWS["sends"]
    assert demo.built.to_grid[row]
    run = demo.simulated()
    submit_ms = run.workload.submit_ms[row]
    assert run.start_ms[row] < submit_ms + 200
    alone = with_sends(monkeypatch, resources=(1.0, 0.0, 0.0, 1.0))
    assert len(alone.fragments_of(row)) == 1
    assert alone.start_ms[row] > submit_ms + 10_000
    assert len(with_sends(monkeypatch, communication="light").fragments_of(row)) == 2


def test_delays_of_half_a_second_change_no_decision(demo: Demo) -> None:
    """Placements stay the same if jobs take 0.5 s longer or 0.3 s less, or are late."""
    jobs, rng = demo.built.workload, np.random.default_rng(5)
    where = placed(demo)
    for _ in range(12):
        run_ms = jobs.run_ms + rng.integers(-300, 500, len(JOBS))
        submit_ms = np.sort(jobs.submit_ms + rng.integers(0, 300, len(JOBS)))
        late = replace(demo.built, workload=jobs.replace(run_ms=run_ms, submit_ms=submit_ms))
        assert placed(Demo(late)) == where

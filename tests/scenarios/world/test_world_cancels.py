"""Jobs that their users cancel while they wait, in the simulated world."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gridweave.errors import InputError
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.scenario.fuzz import WorldInputs, draw_conditions, run_world
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.policy import SitePolicy
from support.builders import cancelling, random_grid_jobs, to_workload


def drawn(rng: np.random.Generator, tick: int = 1) -> tuple[Workload, list[int]]:
    """Draw busy sites and jobs, half of which are cancelled if they still wait."""
    nodes = rng.integers(1, 10, rng.integers(1, 5)).tolist()
    case = random_grid_jobs(rng, int(rng.integers(5, 50)), nodes, load=1.5, tick=tick)
    return cancelling(rng, to_workload(case.jobs)), nodes


def cancels_of(workload: Workload) -> Any:
    """Return the cancellation times, with a late time for jobs that are not cancelled."""
    cancel_ms = np.asarray(workload.columns["cancel_ms"], np.int64)
    return np.where(cancel_ms < 0, np.iinfo(np.int64).max, cancel_ms)


@pytest.mark.parametrize("part", range(2))
def test_a_grid_without_delays_equals_the_batch_driver(part: int) -> None:
    """Cancelled jobs leave the grid's queue, and all others start and end as in the batch driver."""
    cancelled = 0
    for seed in range(part * 60, (part + 1) * 60):
        rng = np.random.default_rng(seed)
        workload, nodes = drawn(rng)
        backfill = ("easy", "none", "conservative")[seed % 3]
        policy = GridPolicy(mode=("sharing", "multi-site")[seed % 2], overhead=0.3, backfill=backfill)
        batch = simulate(workload, nodes, policy)
        world = simulate_world(workload, nodes, policy, check=seed % 5 == 0, channels=seed % 4 == 0)
        assert world.start_ms.tolist() == batch.start_ms.tolist(), seed
        assert world.end_ms.tolist() == batch.end_ms.tolist(), seed
        assert world.cancelled.tolist() == batch.cancelled.tolist(), seed
        cancelled += int(world.cancelled.sum())
    assert cancelled > 100


def test_sites_without_grid_jobs_follow_their_own_schedule() -> None:
    for seed in range(40):
        rng = np.random.default_rng([seed, 1])
        workload, nodes = drawn(rng)
        home = rng.integers(0, len(nodes), len(workload))
        world = simulate_world(workload, nodes, GridPolicy(mode="local"), home=home, check=True)
        for site, count in enumerate(nodes):
            rows = np.flatnonzero(home == site)
            if len(rows):
                alone = simulate(workload.take(rows), count)
                assert world.start_ms[rows].tolist() == alone.start_ms.tolist(), seed
                assert world.cancelled[rows].tolist() == alone.cancelled.tolist(), seed


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_cancelled_jobs_never_start_under_faults(control: str) -> None:
    """Every job runs, is refused or is cancelled, and no site starts a job that it knows as cancelled."""
    cancelled = crashes = 0
    for seed in range(60):
        rng = np.random.default_rng([seed, 78])
        workload, nodes = drawn(rng, tick=1000)
        inputs = WorldInputs(
            workload=workload,
            home=rng.integers(0, len(nodes), len(workload)),
            nodes=tuple(nodes),
            policy=GridPolicy(mode=("sharing", "multi-site")[seed % 2], overhead=0.3, control=control),
            site_policies=(SitePolicy(),) * len(nodes),
        )
        result = run_world(inputs, draw_conditions(inputs, rng), rng)
        assert result.world is not None
        refused = {job_id for job_id, _ in result.refused}
        for row, job_id in enumerate(result.workload.job_id.tolist()):
            states = bool(result.ran[row]), bool(result.cancelled[row]), job_id in refused
            assert sum(states) == 1, (seed, job_id)
        assert (cancels_of(result.workload)[result.cancelled] < np.iinfo(np.int64).max).all()
        cancelled, crashes = cancelled + int(result.cancelled.sum()), crashes + result.world.crashes
    assert min(cancelled, crashes) > 50


def test_a_cancellation_before_the_submission_is_refused() -> None:
    times = {"job_id": [1, 2], "submit_ms": [0, 1], "width": [1, 2], "estimate_ms": [9, 9], "run_ms": [9, 9]}
    with pytest.raises(InputError, match="job 2: cancel_ms 1 is not after its submission at 1 ms"):
        simulate_world(Workload(**times, columns={"cancel_ms": [-1, 1]}), [2, 2], GridPolicy())
    nobody = simulate_world(Workload(**times, columns={"cancel_ms": [-1, -1]}), [2, 2], GridPolicy())
    assert nobody.start_ms.tolist() == [0, 1]

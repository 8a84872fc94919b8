"""Queues whose high jobs evict low ones in the simulated world, alone and with a grid and faults."""

from __future__ import annotations

import numpy as np
import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.scenarios.world.works import Works
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.messages import EvictJob
from gridweave.site.policy import SitePolicy
from support.checks import play_troubled

NODES = 8
LEVELS = (
    Level(name="high", priority=2, evicts=("low",)),
    Level(name="medium", priority=1),
    Level(name="low", priority=0),
)


def drawn(seed: int, jobs: int = 60) -> Workload:
    """Return jobs of all three levels under high load."""
    rng = np.random.default_rng(seed)
    run_ms = rng.integers(60_000, 2_000_000, jobs)
    return Workload(
        job_id=np.arange(1, jobs + 1),
        submit_ms=np.sort(rng.integers(0, jobs * 400_000, jobs)),
        width=rng.integers(1, NODES + 1, jobs),
        estimate_ms=run_ms + rng.integers(0, 3, jobs) * 200_000,
        run_ms=run_ms,
        columns={"priority": rng.choice([0, 0, 0, 1, 2], jobs), "user": rng.integers(0, 3, jobs)},
    )


@pytest.mark.parametrize("evicted", ["restart", "checkpoint"])
def test_queues_without_grid_jobs_follow_the_compiled_loop(evicted: str) -> None:
    workload, policy = drawn(3), LevelsPolicy(levels=LEVELS, evicted=evicted)
    alone = simulate(workload, NODES, policy)
    world = simulate_world(workload, [NODES], GridPolicy(mode="local"), site_policies=[policy], check=True)
    assert alone.own_metrics["evictions"] > 3
    assert world.start_ms.tolist() == alone.start_ms.tolist()
    assert world.end_ms.tolist() == alone.end_ms.tolist()


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_a_job_of_the_grid_is_evicted_no_more_often_than_raises_its_level(
    control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With raise_after 1 each low job of the grid is evicted at most once."""
    seen: list[int] = []
    evict = Works.evict

    def noted(self: Works, now_ms: int, site: int, command: EvictJob) -> None:
        seen.append(command.job_id)
        evict(self, now_ms, site, command)

    monkeypatch.setattr(Works, "evict", noted)
    # Every 100 s a high job of each site for 50 s; the low ones, of 1,000 s, are the grid's.
    grid, own = 6, 60
    workload = Workload(
        job_id=np.arange(1, grid + own + 1),
        submit_ms=np.concatenate([np.zeros(grid, np.int64), 100_000 * (1 + np.arange(own) // 2)]),
        width=np.full(grid + own, NODES),
        estimate_ms=np.array([1_000_000] * grid + [50_000] * own),
        run_ms=np.array([1_000_000] * grid + [50_000] * own),
        columns={
            "priority": np.array([0] * grid + [2] * own),
            "user": np.zeros(grid + own, np.int64),
        },
    )
    sites = [LevelsPolicy(levels=LEVELS, raise_after=1)] * 2
    homes, to_grid = [0] * grid + [0, 1] * (own // 2), [True] * grid + [False] * own
    policy = GridPolicy(mode="sharing", control=control)
    simulate_world(workload, [NODES, NODES], policy, site_policies=sites, home=homes, to_grid=to_grid)
    assert len(seen) >= 2
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("control", ["full", "limited"])
def test_no_invariant_is_violated_with_levels_and_faults(control: str) -> None:
    site = LevelsPolicy(under=SitePolicy(order="sjf"), levels=LEVELS, evicted="checkpoint", raise_after=2)
    for seed in range(2):
        play_troubled(drawn(seed), [NODES, 8, NODES], [site, SitePolicy(), site], seed, control)


def test_high_jobs_do_not_wait_at_sites_that_evict_for_them() -> None:
    """Under limited control high jobs start at once on nodes of low jobs, as the quotes promise."""
    levels = (Level(name="high", priority=1, evicts=("low",)), Level(name="low", priority=0))
    low, high = 8, 4
    count = low + high
    workload = Workload(
        job_id=np.arange(1, count + 1),
        submit_ms=np.array([0] * low + [10_000 * (number + 1) for number in range(high)]),
        width=np.array([4] * low + [4] * high),
        estimate_ms=np.array([500_000] * low + [5_000] * high),
        run_ms=np.array([500_000] * low + [5_000] * high),
        columns={"priority": np.array([0] * low + [1] * high)},
    )
    # The first has no levels, and less to do: there a high job stands behind all that wait.
    homes, to_grid = [0, 0, 0, 1, 1, 1, 1, 1, *[0] * high], [False] * low + [True] * high
    sites = [SitePolicy(), LevelsPolicy(levels=levels)]
    policy = GridPolicy(mode="sharing", control="limited")
    result = simulate_world(workload, [4, 4], policy, site_policies=sites, home=homes, to_grid=to_grid)
    assert result.start_ms.tolist()[low:] == workload.submit_ms.tolist()[low:]

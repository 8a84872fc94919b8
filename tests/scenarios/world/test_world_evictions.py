"""Sites on which jobs of high level evict others, in the simulated world, without and with faults."""

from __future__ import annotations

import numpy as np
import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.scenarios.world.works import Works
from gridweave.site.disciplines.heterogeneous.machines import Cluster
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.messages import EvictJob
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import NodeKind
from support.checks import play_troubled

NODES = 8
LEVELS = (
    Level(name="high", priority=2, evicts=("low",)),
    Level(name="medium", priority=1),
    Level(name="low", priority=0),
)


def evicting(evicted: str = "restart", fast: float = 2.0) -> HeterogeneousPolicy:
    """Return a site with a fast and a slow half, which run wide jobs together."""
    return HeterogeneousPolicy(
        nodes=NODES,
        classes=(NodeKind(name="plain", count=4), NodeKind(name="fast", count=4, speed=fast)),
        clusters=(Cluster(name="all", nodes="0-7"), Cluster(name="front", nodes="0-3")),
        levels=LEVELS,
        evicted=evicted,
    )


def drawn(seed: int, jobs: int = 80) -> Workload:
    """Return jobs of all three levels under high load, half of them on one machine."""
    rng = np.random.default_rng(seed)
    run_ms = rng.integers(60_000, 2_000_000, jobs)
    return Workload(
        job_id=np.arange(1, jobs + 1),
        submit_ms=np.sort(rng.integers(0, jobs * 250_000, jobs)),
        width=rng.choice([1, 1, 1, 2, 3, 8], jobs),
        estimate_ms=run_ms + rng.integers(0, 3, jobs) * 200_000,
        run_ms=run_ms,
        columns={"priority": rng.choice([0, 0, 0, 1, 2], jobs), "user": rng.integers(0, 3, jobs)},
    )


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Return a list that receives every eviction: the site, and whether the job was the grid's."""
    seen: list[tuple[int, bool]] = []
    evict = Works.evict

    def noted(self: Works, now_ms: int, site: int, command: EvictJob) -> None:
        seen.append((site, self._sites[site].attempt_of(command.job_id) != 0))
        evict(self, now_ms, site, command)

    monkeypatch.setattr(Works, "evict", noted)
    return seen


@pytest.mark.parametrize("evicted", ["restart", "checkpoint", "pause"])
def test_sites_without_grid_jobs_follow_their_own_schedule(evicted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, workload, policy = counted(monkeypatch), drawn(3), evicting(evicted)
    alone = simulate(workload, NODES, policy)
    world = simulate_world(workload, [NODES], GridPolicy(mode="local"), site_policies=[policy], check=True)
    # Who stands still on its machines has not left them.
    assert alone.own_metrics["evictions"] > 3
    assert len(seen) == (0 if evicted == "pause" else alone.own_metrics["evictions"])
    assert world.start_ms.tolist() == alone.start_ms.tolist()
    assert world.end_ms.tolist() == alone.end_ms.tolist()


@pytest.mark.parametrize("control", ["full", "limited", "none"])
@pytest.mark.parametrize("evicted", ["restart", "checkpoint", "pause"])
def test_no_invariant_is_violated_with_evictions_and_faults(
    control: str, evicted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = counted(monkeypatch)
    for seed in range(6):
        play_troubled(
            drawn(seed, jobs=60), [NODES, 8, NODES], [evicting(evicted), SitePolicy(), evicting()], seed, control
        )
    if control == "limited":
        play_troubled(
            drawn(2, jobs=60), [NODES, 8, NODES], [evicting(evicted), SitePolicy(), evicting()], 2, control, "pjs"
        )
    assert any(of_grid for _, of_grid in seen), "jobs of the grid are evicted too"

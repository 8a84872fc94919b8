"""Full control over sites that count cores, memory and GPUs, in the simulated world."""

from __future__ import annotations

import numpy as np
import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate_grid
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Network
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import Chunk, NodeKind

CPU = NodeKind(name="cpu", count=3, cores=8, memory_mb=16)
GPU = NodeKind(name="gpu", count=2, cores=4, memory_mb=8, gpus=4, others=(("fpga", 1),))
SITES = (SitePolicy(kinds=(CPU, GPU)), SitePolicy(kinds=(GPU,), placement="worst-fit"), SitePolicy())
NODES = (5, 2, 3)
CHUNKS = (
    Chunk(cores=2, memory_mb=4),
    Chunk(cores=1, gpus=1),
    Chunk(cores=2, exclusive=True),
    Chunk(cores=1, per_node=2),
    Chunk(cores=1, others=(("fpga", 1),)),
)


def drawn_jobs(rng: np.random.Generator, count: int, *, tick: int = 1) -> Workload:
    """Return jobs with and without chunks, more than the sites can run at once."""
    asked = rng.integers(-1, len(CHUNKS), count)
    per_node = np.array([chunk.per_node or 1 for chunk in CHUNKS] + [1])[asked]
    run_ms = tick * rng.integers(1, 30, count)
    return Workload(
        job_id=np.arange(1, count + 1),
        submit_ms=np.sort(tick * rng.integers(0, 60, count)),
        width=np.where(asked < 0, rng.integers(1, 5, count), rng.integers(1, 8, count) * per_node),
        estimate_ms=run_ms + tick * rng.integers(0, 10, count),
        run_ms=run_ms,
        columns={"chunk": asked},
        chunks=CHUNKS,
    )


def drawn_policy(rng: np.random.Generator) -> GridPolicy:
    return GridPolicy(
        mode=str(rng.choice(["sharing", "multi-site", "adaptive"])),
        order=str(rng.choice(["fcfs", "sjf", "ljf"])),
        backfill=str(rng.choice(["easy", "easy", "none"])),
        selection=str(rng.choice(["best-fit", "biggest-free", "equal-util"])),
        overhead=float(rng.choice([0.0, 0.3])),
    )


@pytest.mark.parametrize("part", range(4))
def test_without_delays_the_world_equals_the_batch_driver(part: int) -> None:
    for seed in range(part * 15, (part + 1) * 15):
        rng = np.random.default_rng(seed)
        jobs, policy = drawn_jobs(rng, 40), drawn_policy(rng)
        batch = simulate_grid(jobs, [SITES[0], SITES[1], NODES[2]], policy)
        world = simulate_world(jobs, NODES, policy, site_policies=SITES, check=seed % 3 == 0)
        what = f"seed {seed}, {policy}"
        assert world.start_ms.tolist() == batch.start_ms.tolist(), what
        assert world.end_ms.tolist() == batch.end_ms.tolist(), what
        assert [world.fragments_of(row) for row in range(40)] == [batch.fragments_of(row) for row in range(40)], what
        assert world.refused == batch.refused, what
        assert world.ran.sum() > 20, what


@pytest.mark.parametrize("seed", range(12))
def test_with_delays_no_node_is_overbooked_and_every_job_runs(seed: int) -> None:
    """A third of the jobs are those of the sites' own users."""
    rng = np.random.default_rng([seed, 39])
    jobs, policy = drawn_jobs(rng, 60, tick=20), drawn_policy(rng)
    to_grid, home = rng.random(60) < 0.67, np.where(jobs.columns["chunk"] < 0, 2, 0)
    result = simulate_world(
        jobs,
        NODES,
        policy,
        site_policies=SITES,
        to_grid=to_grid,
        home=home,
        network=Network(latency_ms=5, jitter_ms=10, loss=0.02 * (seed % 2)),
        check=True,
    )
    assert result.ran.sum() + len(result.refused) == 60
    assert result.ran.sum() > 30

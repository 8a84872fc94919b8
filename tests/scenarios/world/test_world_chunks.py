"""Sites that count cores, memory and GPUs in the simulated world."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.workload.chunks import ChunkRanges, draw_mixed_chunks
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.history import History, ViolationError
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import Chunk, NodeKind

GPU = NodeKind(name="gpu", count=2, cores=8, memory_mb=1000, gpus=4, gpu_type="a100")
CPU = NodeKind(name="cpu", count=2, cores=16, memory_mb=3000)


def counting_history() -> History:
    history = History([4])
    history.count_resources([(GPU, CPU)])
    return history


def occupy(history: History, job_id: int, nodes: Sequence[tuple[int, int]], chunk: Chunk) -> None:
    width = sum(stop - start for start, stop in nodes)
    history.occupied(7, 0, job_id, 1, tuple(nodes), width, chunk=chunk)


@pytest.mark.parametrize(
    ("nodes", "chunk", "problem"),
    [
        ([(0, 1)], Chunk(cores=5), "node 0 has not enough cores free"),
        ([(1, 2), (1, 2), (1, 2)], Chunk(gpus=2), "node 1 has not enough gpus free"),
        ([(1, 2)], Chunk(memory_mb=1001), "node 1 has not enough memory_mb free"),
        ([(2, 3)], Chunk(gpus=1, gpu_type="a100"), "node 2 has not the labels or the GPUs that it asks for"),
        ([(2, 3)], Chunk(labels=("gpu",)), "node 2 has not the labels"),
        ([(0, 1)], Chunk(exclusive=True), "node 0 is not idle"),
        ([(1, 2)], Chunk(per_node=2), "node 1 has 1 of its chunks"),
    ],
)
def test_the_history_finds_chunks_that_do_not_fit(nodes: list[tuple[int, int]], chunk: Chunk, problem: str) -> None:
    history = counting_history()
    occupy(history, 1, [(0, 1)], Chunk(cores=4))
    with pytest.raises(ViolationError, match=f"7 ms: job 2 starts on site 0, but {problem}"):
        occupy(history, 2, nodes, chunk)


def test_resources_are_free_again_when_a_job_leaves() -> None:
    history = counting_history()
    occupy(history, 1, [(0, 1), (0, 1)], Chunk(cores=4, gpus=2))
    history.left(8, 0, 1)
    occupy(history, 2, [(0, 1)], Chunk(exclusive=True))


@pytest.mark.parametrize("control", ["limited", "none"])
@pytest.mark.parametrize("seed", range(3))
def test_jobs_that_share_nodes_never_hold_more_than_the_nodes_have(control: str, seed: int) -> None:
    """The world checks every start; all jobs fit some site."""
    rng = np.random.default_rng(seed)
    n = 60
    run_ms = rng.integers(1000, 60_000, n)
    jobs = Workload(
        np.arange(1, n + 1), np.sort(rng.integers(0, 200_000, n)), rng.integers(1, 4, n), run_ms * 2, run_ms
    )
    mix = [
        ChunkRanges(cores=(1, 8), memory_mb=(100, 1000)),
        ChunkRanges(cores=(1, 2), gpus=(1, 4), max_chunks=2),
    ]
    jobs = draw_mixed_chunks(jobs, mix, rng)
    policies = [SitePolicy(kinds=(GPU, CPU)), SitePolicy(kinds=(GPU,), backfill="none")]
    result = simulate_world(
        jobs, [4, 2], GridPolicy(mode="sharing", control=control), site_policies=policies, check=True
    )
    assert result.ran.sum() + len(result.refused) == n
    assert result.ran.sum() > n / 2

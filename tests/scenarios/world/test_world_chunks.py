"""Sites that count cores, memory and GPUs in the simulated world."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.workload.chunks import ChunkRanges, draw_mixed_chunks
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Network
from gridweave.scenarios.world.history import History, ViolationError
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import Chunk, NodeKind
from gridweave.site.users.owner import OwnerPolicy
from support.counted import random_case

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


def random_jobs(seed: int, most_chunks: int = 3) -> Workload:
    """Return 60 jobs that ask for chunks with cores, memory or GPUs."""
    rng = np.random.default_rng(seed)
    n = 60
    run_ms = rng.integers(1000, 60_000, n)
    submit_ms = np.sort(rng.integers(0, 200_000, n))
    jobs = Workload(np.arange(1, n + 1), submit_ms, rng.integers(1, most_chunks + 1, n), run_ms * 2, run_ms)
    mix = [
        ChunkRanges(cores=(1, 8), memory_mb=(100, 1000)),
        ChunkRanges(cores=(1, 2), gpus=(1, 4), max_chunks=2),
        ChunkRanges(cores=(1, 3), max_chunks=most_chunks),
    ]
    return draw_mixed_chunks(jobs, mix, rng)


@pytest.mark.parametrize("control", ["limited", "none"])
@pytest.mark.parametrize("seed", range(3))
def test_jobs_that_share_nodes_never_hold_more_than_the_nodes_have(control: str, seed: int) -> None:
    """The world checks every start; all jobs fit some site."""
    policies = [SitePolicy(kinds=(GPU, CPU)), SitePolicy(kinds=(GPU,), backfill="none")]
    result = simulate_world(
        random_jobs(seed), [4, 2], GridPolicy(mode="sharing", control=control), site_policies=policies, check=True
    )
    assert result.ran.sum() + len(result.refused) == len(result.workload)
    assert result.ran.sum() > len(result.workload) / 2


@pytest.mark.parametrize("mode", ["multi-site", "adaptive"])
@pytest.mark.parametrize("latency_ms", [0, 20])
@pytest.mark.parametrize("seed", range(3))
def test_delegated_jobs_are_split_in_chunks_over_sites(mode: str, latency_ms: int, seed: int) -> None:
    """The world checks that no part of a job exceeds what the nodes have."""
    policies = [
        SitePolicy(kinds=(GPU, CPU)),
        SitePolicy(kinds=(GPU,), backfill="none"),
        SitePolicy(kinds=(CPU,), discipline="planning"),
    ]
    policy, network = GridPolicy(mode=mode, control="limited"), Network(latency_ms=latency_ms)
    result = simulate_world(
        random_jobs(seed, 20), [4, 2, 2], policy, site_policies=policies, network=network, check=True
    )
    assert result.ran.sum() + len(result.refused) == len(result.workload)
    assert all("and all sites together have room for" in reason for _, reason in result.refused)
    assert any(len(result.fragments_of(row)) > 1 for row in range(len(result.workload)))


@pytest.mark.parametrize(
    "options",
    [{}, {"backfill": "none"}, {"discipline": "planning"}, {"backfill": "conservative"}],
    ids=lambda options: " ".join(options.values()) or "easy",
)
@pytest.mark.parametrize("seed", range(5))
def test_limited_control_of_one_site_changes_no_start(options: dict[str, str], seed: int) -> None:
    case = random_case(np.random.default_rng(seed), max_jobs=25)
    nodes, policies = [sum(kind.count for kind in case.kinds)], [SitePolicy(kinds=case.kinds, **options)]  # type: ignore[arg-type]
    alone, delegated = (
        simulate_world(case.workload, nodes, policy, site_policies=policies, check=True)
        for policy in (GridPolicy(mode="local"), GridPolicy(mode="sharing", control="limited"))
    )
    assert delegated.start_ms.tolist() == alone.start_ms.tolist()


def test_owners_keep_what_the_grid_may_not_use() -> None:
    """The cores check that grid jobs never exceed the share."""
    policies, owners = [SitePolicy(kinds=(GPU, CPU))] * 2, [OwnerPolicy(grid_share=0.5)] * 2
    policy = GridPolicy(mode="multi-site", control="limited")
    result = simulate_world(random_jobs(1), [4, 4], policy, site_policies=policies, owners=owners, check=True)
    assert result.ran.sum() + len(result.refused) == len(result.workload)
    assert result.ran.sum() > len(result.workload) / 2

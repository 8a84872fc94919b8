"""The grid queue step by step, on sites that count cores, memory and GPUs."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.grid.control.queue import GridQueue
from gridweave.grid.kernels.resources import CountedSite, whole_nodes
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate_grid
from gridweave.scenarios.workload.table import Workload
from gridweave.site.job import Job
from gridweave.site.policy import PLACEMENTS, SitePolicy
from gridweave.site.resources.chunks import Chunk, NodeKind

CHUNKS = (
    Chunk(cores=2, memory_mb=4),
    Chunk(cores=1, gpus=1),
    Chunk(cores=2, exclusive=True),
    Chunk(cores=1, per_node=2),
)
CPU = NodeKind(name="cpu", count=3, cores=8, memory_mb=16)
GPU = NodeKind(name="gpu", count=2, cores=4, memory_mb=8, gpus=4)
SITES: list[int | SitePolicy] = [SitePolicy(kinds=(CPU, GPU)), SitePolicy(kinds=(GPU,), placement="worst-fit"), 3]


def counted(sites: list[int | SitePolicy]) -> list[CountedSite]:
    """Convert sites for a queue."""
    return [
        whole_nodes(site)
        if isinstance(site, int)
        else CountedSite(site.kinds, PLACEMENTS.index(site.placement), counts=True)
        for site in sites
    ]


def queue_of(policy: GridPolicy) -> GridQueue:
    """Return an idle queue over all sites."""
    sites = counted(SITES)
    return GridQueue([site.nodes for site in sites], policy, counted=sites)


def jobs_for(rng: np.random.Generator, count: int) -> Workload:
    """Return jobs with and without chunks, more than the sites can run at once."""
    asked = rng.integers(-1, len(CHUNKS), count)
    per_node = np.array([chunk.per_node or 1 for chunk in CHUNKS] + [1])[asked]
    run_ms = rng.integers(1, 30, count)
    return Workload(
        job_id=np.arange(1, count + 1),
        submit_ms=np.sort(rng.integers(0, 60, count)),
        width=np.where(asked < 0, rng.integers(1, 5, count), rng.integers(1, 8, count) * per_node),
        estimate_ms=run_ms + rng.integers(0, 10, count),
        run_ms=run_ms,
        columns={"chunk": asked},
        chunks=CHUNKS,
    )


def job_of(workload: Workload, row: int) -> Job:
    """Return a job of the workload."""
    chunk = int(workload.columns["chunk"][row])
    return Job(
        job_id=int(workload.job_id[row]),
        width=int(workload.width[row]),
        estimate_ms=int(workload.estimate_ms[row]),
        chunk=CHUNKS[chunk] if chunk >= 0 else msgspec.UNSET,
    )


def step_through(workload: Workload, policy: GridPolicy) -> dict[int, tuple[int, tuple[tuple[int, int], ...]]]:
    """Run a workload step by step; return the start and the fragments of each job."""
    queue, ends, started = queue_of(policy), {}, {}
    at_ms = set(workload.submit_ms.tolist())
    while at_ms:
        now_ms = min(at_ms)
        at_ms.remove(now_ms)
        for job_id in sorted(job_id for job_id, end_ms in ends.items() if end_ms == now_ms):
            del ends[job_id]
            queue.ended(now_ms, job_id)
        for row in np.flatnonzero(workload.submit_ms == now_ms).tolist():
            queue.submit(now_ms, job_of(workload, row), draw=0.0, sensitivity=1.0)
        for placed in queue.run_pass(now_ms):
            job_id = placed.job.job_id
            started[job_id] = now_ms, placed.fragments
            run_ms = int(workload.run_ms[job_id - 1])
            ends[job_id] = now_ms + policy.split_length_ms(run_ms, len(placed.fragments))
            at_ms.add(ends[job_id])
        queue.check_invariants()
        queue = restored(queue, policy) if now_ms % 7 == 0 else queue.copy()
    return started


def restored(queue: GridQueue, policy: GridPolicy) -> GridQueue:
    """Return a new queue with the state of another."""
    new = queue_of(policy)
    new.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(queue.state()), type=type(queue.state())))
    return new


@pytest.mark.parametrize("mode", ["sharing", "multi-site", "adaptive"])
def test_a_queue_that_is_copied_and_restored_gives_the_schedule_of_the_loop(mode: str) -> None:
    """More jobs wait than the queue first has slots for."""
    policy = GridPolicy(mode=mode, overhead=0.25)
    workload = jobs_for(np.random.default_rng(39), 150)
    result = simulate_grid(workload, SITES, policy)
    ran = np.flatnonzero(result.start_ms >= 0).tolist()
    kept = workload.take(np.array(ran))
    expected = {int(workload.job_id[row]): (int(result.start_ms[row]), tuple(result.fragments_of(row))) for row in ran}
    assert len(kept) > 100
    renumbered = Workload(
        **{name: getattr(kept, name) for name in ("submit_ms", "width", "estimate_ms", "run_ms")},
        job_id=np.arange(1, len(kept) + 1),
        columns=dict(kept.columns),
        chunks=CHUNKS,
    )
    assert {ran[job_id - 1] + 1: what for job_id, what in step_through(renumbered, policy).items()} == expected


def test_a_part_that_ends_first_frees_what_it_holds_on_its_site() -> None:
    queue = queue_of(GridPolicy(mode="multi-site"))
    queue.submit(0, Job(job_id=1, width=12, estimate_ms=100, chunk=CHUNKS[1]), draw=0.0, sensitivity=1.0)
    (placed,) = queue.run_pass(0)
    assert sorted(placed.fragments) == [(0, 8), (1, 4)]
    queue.submit(1, Job(job_id=2, width=8, estimate_ms=100, chunk=CHUNKS[1]), draw=0.0, sensitivity=1.0)
    assert queue.run_pass(1) == []
    queue.part_ended(1, 0)
    (placed,) = queue.run_pass(2)
    assert placed.fragments == ((0, 8),)
    queue.ended(3, 1)
    queue.ended(4, 2)
    queue.check_invariants()


def test_a_job_that_returns_to_the_queue_frees_its_nodes() -> None:
    queue = queue_of(GridPolicy(mode="sharing"))
    queue.submit(0, Job(job_id=1, width=8, estimate_ms=100, chunk=CHUNKS[1]), draw=0.0, sensitivity=1.0)
    queue.run_pass(0)
    queue.requeue(1, 1)
    queue.check_invariants()
    assert [placed.job.job_id for placed in queue.run_pass(1)] == [1]


def test_reserved_starts_need_sites_that_give_out_whole_nodes() -> None:
    with pytest.raises(OptionError, match="backfill: conservative plans whole nodes"):
        queue_of(GridPolicy(backfill="conservative"))

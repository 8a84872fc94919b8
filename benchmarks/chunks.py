"""Measure simulations of jobs that ask for cores, GPUs and memory: python benchmarks/chunks.py TRACE."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from measuring import Stopwatch, waiting

from gridweave.scenarios.batch import one_site
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.table import Workload
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import Chunk, NodeKind

NODES = 430
KINDS = (
    NodeKind(name="cpu", count=330, cores=16, memory_mb=64_000),
    NodeKind(name="gpu", count=100, cores=32, memory_mb=256_000, gpus=4),
)


def with_chunks(workload: Workload, load: float, seed: int = 1) -> Workload:
    """Return the jobs with random chunks: 1 to 16 cores, 0 to 4 GPUs, and memory; jobs with GPUs have up to 8 chunks.

    Parameters
    ----------
    workload : Workload
    load : float
        What the jobs ask for of the most demanded resource, as a fraction of what the site has over the same time. The
        times between submissions are scaled accordingly.
    seed : int
    """
    rng = np.random.default_rng(seed)
    asked = np.stack(
        [
            rng.choice([1, 1, 2, 4, 8, 12, 16], len(workload)),
            rng.choice([1_000, 2_000, 4_000, 16_000], len(workload)),
            rng.choice([0] * 12 + [1, 1, 2, 4], len(workload)),
        ],
        axis=1,
    )
    shapes, chunk = np.unique(asked, axis=0, return_inverse=True)
    chunks = tuple(Chunk(cores=cores, memory_mb=memory_mb, gpus=gpus) for cores, memory_mb, gpus in shapes.tolist())
    width = np.where(asked[:, 2] > 0, np.minimum(workload.width, 8), np.minimum(workload.width, 330))
    work = (asked * (width * workload.run_ms)[:, None]).sum(axis=0)
    site = np.array([kind.count * np.array([kind.cores, kind.memory_mb, kind.gpus]) for kind in KINDS]).sum(axis=0)
    longer = float((work / site).max()) / (load * float(workload.submit_ms[-1]))
    submit_ms = (workload.submit_ms * longer).astype(np.int64)
    return workload.replace(submit_ms=submit_ms, width=width, columns={"chunk": chunk.reshape(-1)}, chunks=chunks)


def main() -> None:
    """Print the speed under EASY and conservative backfilling for several loads."""
    whole = load_workload(Path(sys.argv[1]), nodes=NODES)[0]
    for load in (0.6, 0.75, 0.9):
        jobs = with_chunks(whole, load)
        for backfill, placement in (("easy", "best-fit"), ("easy", "first-fit"), ("conservative", "best-fit")):
            policy = SitePolicy(backfill=backfill, placement=placement)
            one_site.prepared = watch = Stopwatch()  # type: ignore[assignment]
            result = simulate(jobs, KINDS, policy)  # compiles
            watch.seconds = 0.0
            result = simulate(jobs, KINDS, policy)
            mean, most = waiting(result)
            speed = f"{len(jobs) / watch.seconds:9,.0f} jobs/s"
            queue = f"{mean:6.1f} waiting on average, at most {most}"
            print(f"load {load:.2f} {backfill:12} {placement:9} {speed}, {queue}", flush=True)


if __name__ == "__main__":
    main()

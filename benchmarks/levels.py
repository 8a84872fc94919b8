"""Measure the time of simulations with priority levels and evictions: python benchmarks/levels.py."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.policy import SitePolicy
from gridweave_papers.studies.collins import CLUSTER_SIZES, REFERENCE_S, site_policy

NODES = 256
LEVELS = (
    Level(name="high", priority=2, evicts=("low",)),
    Level(name="medium", priority=1),
    Level(name="low", priority=0),
)


def workload(jobs: int, load: float = 0.8, seed: int = 1) -> Workload:
    """Return jobs with powers of two of nodes; 10, 10 and 80% have high, medium and low priority (Collins, Table 1)."""
    rng = np.random.default_rng(seed)
    width = 2 ** rng.integers(0, 7, jobs)
    run_ms = (rng.lognormal(7.0, 1.2, jobs) * 1000).astype(np.int64) + 1000
    every_ms = float(np.mean(width * run_ms)) / (load * NODES)
    return Workload(
        job_id=np.arange(jobs),
        submit_ms=np.cumsum(rng.exponential(every_ms, jobs)).astype(np.int64),
        width=width,
        estimate_ms=run_ms * rng.integers(1, 4, jobs),
        run_ms=run_ms,
        columns={"priority": rng.choice([0, 1, 2], jobs, p=[0.8, 0.1, 0.1])},
    )


def programs(jobs: int, every_ms: float, seed: int = 1) -> Workload:
    """Return jobs of the five classes of `gridweave reproduce collins`, with shares of priorities as in `workload`."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, len(REFERENCE_S), jobs)
    most_ms = np.array(REFERENCE_S)[kind] * 1000
    return Workload(
        job_id=np.arange(jobs),
        submit_ms=np.cumsum(rng.exponential(every_ms, jobs)).astype(np.int64),
        width=np.ones(jobs, np.int64),
        estimate_ms=most_ms,
        run_ms=(most_ms * rng.uniform(0.5, 1, jobs)).astype(np.int64),
        columns={"priority": rng.choice([0, 1, 2], jobs, p=[0.8, 0.1, 0.1]), "job_class": kind},
    )


def main() -> None:
    """Print a line for each policy, in processor time, since the machine may be busy."""
    alike, apart = workload(100_000), msgspec.structs.replace(site_policy(with_levels=True), predict="experience")
    ways = {
        "EASY without levels": (alike, SitePolicy()),
        "EASY, 3 levels, restart": (alike, LevelsPolicy(levels=LEVELS)),
        "EASY, 3 levels, checkpoint": (alike, LevelsPolicy(levels=LEVELS, evicted="checkpoint")),
        "planning, 3 levels, restart": (alike, LevelsPolicy(under=SitePolicy(discipline="planning"), levels=LEVELS)),
        "heterogeneous, 3 levels, short queue": (programs(10_000, 5_000), apart),
        "heterogeneous, 3 levels, long queue": (programs(3_000, 1_300), apart),
    }
    for name, (jobs, policy) in ways.items():
        nodes = sum(CLUSTER_SIZES) if policy is apart else NODES
        simulate(programs(50, 5_000) if policy is apart else workload(50), nodes, policy)  # compiles
        since = time.process_time()
        result = simulate(jobs, nodes, policy)
        took_s = time.process_time() - since
        found = f"{result.own_metrics.get('evictions', 0):6,.0f} evictions, {len(jobs) / took_s:9,.0f} arrivals/s"
        waiting_s = float(np.mean(result.start_ms - jobs.submit_ms)) / 1000
        print(f"{name:37} {len(jobs):7,} jobs {took_s:6.2f} s {found}, mean wait {waiting_s:,.0f} s", flush=True)


if __name__ == "__main__":
    main()

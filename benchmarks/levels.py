"""How long a simulation with levels of priority and evictions takes: python benchmarks/levels.py."""

from __future__ import annotations

import time

import numpy as np

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.policy import SitePolicy

NODES = 256
LEVELS = (
    Level(name="high", priority=2, evicts=("low",)),
    Level(name="medium", priority=1),
    Level(name="low", priority=0),
)


def workload(jobs: int, load: float = 0.8, seed: int = 1) -> Workload:
    """Return jobs of powers of two of nodes, 10, 10 and 80% of them high, medium and low (Collins, Table 1)."""
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


def main() -> None:
    """Print a line for each way."""
    jobs = workload(100_000)
    ways = {
        "EASY without levels": SitePolicy(),
        "EASY, 3 levels, restart": LevelsPolicy(levels=LEVELS),
        "EASY, 3 levels, checkpoint": LevelsPolicy(levels=LEVELS, evicted="checkpoint"),
        "planning, 3 levels, restart": LevelsPolicy(under=SitePolicy(discipline="planning"), levels=LEVELS),
    }
    for name, policy in ways.items():
        simulate(workload(50), NODES, policy)  # compiles
        since = time.perf_counter()
        result = simulate(jobs, NODES, policy)
        took_s = time.perf_counter() - since
        print(f"{name:28} {len(jobs):,} jobs {took_s:6.2f} s  {result.own_metrics.get('evictions', 0):,.0f} evictions")


if __name__ == "__main__":
    main()

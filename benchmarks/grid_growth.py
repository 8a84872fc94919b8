"""Measure the speed of the grid queue, and how its cost grows; print it and write benchmarks/results/grid.json.

    python benchmarks/grid_growth.py

Times are thread times of the compiled loop on one core, the best of several runs: first m128 with the CTC extracts of
Streit's chapter 7, if the trace is available; then growth. For growth, the sites have five sizes in turn, so that grids
of ten and of a thousand sites are alike, and jobs of the shipped model arrive at the same load: more sites get jobs at
a higher rate. Under sharing, jobs wider than the largest site are split.

A pass of EASY backfilling looks at every waiting job, so the table has the number of waiting jobs: a long queue is
expensive, many sites are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from measuring import Stopwatch, waiting, write_results

from gridweave.errors import TraceError
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch import grid_network
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.generators.registry import generate, load_model
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.traces.load import find_trace
from gridweave.scenarios.workload.transform import split
from gridweave_papers.studies.streit_grid import CONFIGURATIONS, EXTRACTS, GridRuns

TRACE = "CTC-SP2-1996-3.1-cln"
SITE_NODES = (16, 32, 48, 64, 128)
SITES = (10, 100, 1000)
JOBS = (10_000, 100_000, 1_000_000)
LOAD = 0.85
POLICIES = (GridPolicy(mode="sharing"), GridPolicy(mode="adaptive", overhead=0.3))


def best_us(watch: Stopwatch, times: int, *arguments: Any) -> tuple[float, SimulationResult]:
    """Return the shortest of several simulations [us per job], and the result."""
    best_s = math.inf
    for _ in range(times):
        watch.seconds = 0.0
        result = simulate(*arguments, rng=np.random.default_rng(1))
        best_s = min(best_s, watch.seconds)
    return best_s / len(result.workload) * 1e6, result


def m128(watch: Stopwatch) -> Iterator[tuple[str, float]]:
    """Yield jobs per second on m128 for each extract of the CTC trace."""
    try:
        runs = GridRuns(find_trace(TRACE))
    except TraceError:
        return
    for policy in (*POLICIES, GridPolicy(mode="multi-site", overhead=0.3)):
        for name in EXTRACTS:
            us, _ = best_us(watch, 25, runs.extract(name), CONFIGURATIONS["m128"], policy)
            yield f"m128 {policy.label} {name} [jobs/s]", 1e6 / us


def growth(watch: Stopwatch) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of jobs, policy and number of sites: the time per job, and its ratio to ten sites."""
    model = load_model("ctc-sp2")
    for policy in POLICIES:
        for jobs in JOBS:
            first_us = None
            for sites in SITES:
                nodes = SITE_NODES * (sites // len(SITE_NODES))
                workload = generate(model, jobs, np.random.default_rng(1), nodes=sum(nodes), load=LOAD)
                if policy.mode == "sharing":
                    workload = split(workload, max(SITE_NODES))
                us, result = best_us(watch, 5 if jobs < 10**6 else 2, workload, nodes, policy)
                first_us = first_us or us
                yield {
                    "policy": policy.label,
                    "jobs": jobs,
                    "sites": sites,
                    "us a job": us,
                    "to 10 sites": us / first_us,
                    "to the logarithm of the sites": us / first_us / math.log10(sites),
                    "mean waiting jobs": waiting(result)[0],
                    "use": result.metrics().util,
                }


def main() -> None:
    """Run all measurements, print them, and save them."""
    watch = Stopwatch()
    grid_network.prepared = watch  # type: ignore[assignment]
    # The first call compiles, and is not measured.
    small = generate(load_model("ctc-sp2"), 2, np.random.default_rng(1), nodes=512)
    for policy in POLICIES:
        simulate(small, [512], policy)
    speeds = {}
    for label, speed in m128(watch):
        speeds[label] = speed
        print(f"{label:50} {speed:12,.0f}", flush=True)
    rows = []
    print(f"load {LOAD}; us a job; to 10 sites; that by log10(sites); mean number of waiting jobs; use")
    for row in growth(watch):
        rows.append(row)
        print(
            f"{row['policy']:16} {row['jobs']:>9,} jobs {row['sites']:>5,} sites {row['us a job']:7.2f} "
            f"{row['to 10 sites']:6.2f} {row['to the logarithm of the sites']:6.2f} "
            f"{row['mean waiting jobs']:8.1f} {row['use']:5.2f}",
            flush=True,
        )
    write_results("grid", {"speeds": speeds, "load": LOAD, "growth": rows})


if __name__ == "__main__":
    main()

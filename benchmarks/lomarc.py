"""Measure the speed of shared nodes, and its growth with the queue; print it and write benchmarks/results/lomarc.json.

    python benchmarks/lomarc.py

Times are thread times of whole calls of `simulate`, the best of three; the first call, which compiles, is not measured.
First every variant on 8,000 jobs of LOMARC's workload 3 on 128 nodes; then growth: jobs of the same model with shorter
gaps, until up to 5,000 of them wait, and the time of a scheduling pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from measuring import waiting, write_results

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.generators.lublin import generate_lublin, lublin_model, with_alpha
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.columns import assign_resources
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.sharing.policy import VARIANTS
from gridweave.site.disciplines.sharing.slowdown_tables import SlowdownModel
from gridweave_papers.studies.lomarc import ALPHAS, JOBS, NODES, READINGS

FACTORS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.05)
GROWTH_VARIANTS = ("PSS", "L-U1", "L-R")


def workload_3(factor: float = 1.0) -> Workload:
    """Return workload 3 with mix M1 and its gaps multiplied by a factor."""
    model = with_alpha(lublin_model("whole", nodes=NODES), ALPHAS["W3"])
    jobs = generate_lublin(model, JOBS, np.random.default_rng(1), interarrival_factor=factor)
    return assign_resources(jobs, "M1", np.random.default_rng([1, 1]))


def timed(workload: Workload, variant: str, formula: str) -> tuple[float, SimulationResult]:
    """Return the time of the fastest of three simulations [s], and its result."""
    best_s, model = math.inf, SlowdownModel(formula=formula)
    for _ in range(3):
        began = time.thread_time()
        result = simulate(workload, NODES, variant, model=model)
        best_s = min(best_s, time.thread_time() - began)
    return best_s, result


def speeds() -> Iterator[dict[str, Any]]:
    """Yield the time of every variant on workload 3, with each formula."""
    workload = workload_3()
    for formula in dict.fromkeys(reading.formula for reading in READINGS.values()):
        for variant in VARIANTS:
            seconds, result = timed(workload, variant, formula)
            mean, _ = waiting(result)
            yield {"formula": formula, "variant": variant, "s": seconds, "mean waiting": mean}


def growth() -> Iterator[dict[str, Any]]:
    """Yield the time by the length of the queue."""
    for variant in GROWTH_VARIANTS:
        for factor in FACTORS:
            seconds, result = timed(workload_3(factor), variant, "whole")
            mean, most = waiting(result)
            passes = len(np.union1d(result.workload.submit_ms, result.end_ms))
            row = {"variant": variant, "gaps": factor, "mean waiting": mean, "most waiting": most, "s": seconds}
            yield row | {
                "us a pass": seconds / passes * 1e6,
                "ns a pass and waiting job": seconds / passes / mean * 1e9,
            }


def main() -> None:
    """Run all measurements, print them, and save them."""
    simulate(workload_3().take(np.arange(10)), NODES, "L-U1")
    first, second = [], []
    print(f"{JOBS:,} jobs of workload 3 on {NODES} nodes")
    for row in speeds():
        first.append(row)
        print(f"{row['formula']:8} {row['variant']:5} {row['s']:6.2f} s {row['mean waiting']:8.0f} waiting", flush=True)
    print("growth: gaps; mean and most waiting jobs; seconds; us a pass; ns a pass and waiting job")
    for row in growth():
        second.append(row)
        print(
            f"{row['variant']:5} {row['gaps']:5.2f} {row['mean waiting']:8.0f} {row['most waiting']:6,} "
            f"{row['s']:7.2f} s {row['us a pass']:8.1f} {row['ns a pass and waiting job']:7.1f}",
            flush=True,
        )
    write_results("lomarc", {"workload 3": first, "growth": second})


if __name__ == "__main__":
    main()

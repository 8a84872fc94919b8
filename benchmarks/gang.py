"""Measure the speed of gang scheduling and its growth; print it and write benchmarks/results/gang.json.

    python benchmarks/gang.py

The workload is of the Lublin model on 320 nodes. Times are thread times of whole calls, the best of three; the first
call, which compiles, is not measured.
"""

from __future__ import annotations

import functools

import msgspec
import numpy as np
from measuring import timed, write_results

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.generators.lublin import generate_lublin, lublin_model
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.gang.policy import GangPolicy

NODES = 320
LOAD = 0.9
MBGS = GangPolicy(mpl=5, migration="all")
MBGS_CONSERVATIVE = msgspec.structs.replace(MBGS, backfill="conservative")
POLICIES = (
    GangPolicy(mpl=5, backfill="none"),
    GangPolicy(mpl=5),
    GangPolicy(mpl=5, backfill="none", migration="all"),
    MBGS,
    MBGS_CONSERVATIVE,
)


def drawn(jobs: int) -> Workload:
    """Return jobs of the Lublin model that arrive at load `LOAD`."""
    return generate_lublin(lublin_model(), jobs, np.random.default_rng(1), nodes=NODES, load=LOAD)


def at_once(jobs: int) -> Workload:
    """Return jobs that are all submitted at the start, so that the queue is as long as there are jobs."""
    workload = drawn(jobs)
    return workload.replace(submit_ms=np.zeros(jobs, np.int64))


def main() -> None:
    """Run all measurements, and print them."""
    found: dict[str, float] = {}

    def measure(name: str, workload: Workload, policy: GangPolicy) -> None:
        found[name] = timed(functools.partial(simulate, workload, NODES, policy))
        print(f"{name:60} {1000 * found[name]:10,.1f} ms", flush=True)

    for policy in POLICIES:
        measure(f"10,000 jobs at load {LOAD:g}, {policy.label}", drawn(10_000), policy)
    for jobs in (1_000, 3_000, 30_000, 100_000):
        measure(f"{jobs:,} jobs at load {LOAD:g}, {MBGS.label}", drawn(jobs), MBGS)
    for jobs in (250, 500, 1_000, 2_000):
        for policy in (MBGS, MBGS_CONSERVATIVE):
            measure(f"a queue of {jobs:,} jobs, {policy.label}", at_once(jobs), policy)
    for slice_ms in (200, 200_000):
        policy = msgspec.structs.replace(MBGS, slice_ms=slice_ms)
        measure(f"10,000 jobs at load {LOAD:g}, slices of {slice_ms:,} ms", drawn(10_000), policy)
    write_results("gang", found)


if __name__ == "__main__":
    main()

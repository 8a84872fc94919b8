"""Measure the time to map jobs to different machines, its growth, and the distance of the result from the optimum.

    python benchmarks/mapping.py

Collins and George (2001) report less than 0.2 s for SJS with 100 jobs and 100 machines, and seconds for PJS with 1,000
jobs on 40 machines, on an UltraSPARC of 200 MHz (Figures 3 and 4).
"""

from __future__ import annotations

import time

import numpy as np

from gridweave.site.disciplines.heterogeneous.mapping import ALGORITHMS, machine_arrays, map_to
from gridweave.site.disciplines.heterogeneous.optimum import best_mapping

REPEATS, CASES = 5, 30
DIFFERENT = (1_000, 2_000, 4_000, 8_000, 16_000)
GROWTH = ((100, 100), (1_000, 100), (1_000, 1_000), (10_000, 1_000), (10_000, 10_000), (100_000, 10_000))


def seconds_of(n_jobs: int, n_machines: int, kinds: int, classes: int, algorithm: str, cluster: int = 8) -> float:
    """Return the least processor time of several runs [s]; clusters have `cluster` machines, the last one the rest."""
    rng = np.random.default_rng(7)
    class_of = np.sort(np.arange(n_machines) % classes)
    clusters = [list(range(at, min(at + cluster, n_machines))) for at in range(0, n_machines, cluster)]
    machines = machine_arrays(class_of.tolist(), clusters)
    alone_ms = rng.integers(100_000, 1_000_000, (kinds, classes))
    team_ms = rng.integers(33_000, 330_000, (kinds, len(machines.team_width)))
    kind, ready_ms = rng.integers(0, kinds, n_jobs), np.zeros(n_machines, np.int64)
    taken = []
    for _ in range(REPEATS if n_jobs <= 1_000 else 1):
        begun = time.process_time()
        map_to(machines, ready_ms, kind, alone_ms, team_ms, algorithm=algorithm, rng=np.random.default_rng(7))
        taken.append(time.process_time() - begun)
    return min(taken)


def totals_of(seed: int) -> dict[str, float]:
    """Return the sum of the ends of six jobs on four machines of two classes, by algorithm, and the optimum."""
    rng = np.random.default_rng(seed)
    machines, ready_ms, kind = machine_arrays([0, 0, 1, 1], [[0, 1], [2, 3]]), rng.integers(0, 200, 4), np.arange(6)
    alone_ms, team_ms = rng.integers(100, 1_000, (6, 2)), rng.integers(33, 700, (6, 2))
    case = (machines, ready_ms, kind, alone_ms, team_ms)
    found: dict[str, float] = {}
    for name in ALGORITHMS:
        found[name] = map_to(*case, algorithm=name, rng=np.random.default_rng(seed)).total_ms(0)
    best = best_mapping(*case)
    assert best.total_ms == best.bound_ms, "the solver has not proven it"
    return found | {"best": best.total_ms}


def main() -> None:
    """Print a line for each measurement."""
    for algorithm in ("pjs", "gsa"):
        seconds_of(5, 16, 2, 2, algorithm)  # compiles
    print(f"SJS, 100 different jobs, 100 different machines: {seconds_of(100, 100, 100, 100, 'sjs') * 1e3:.2f} ms")
    for kinds, what in ((5, "of five classes"), (1_000, "all different")):
        taken = seconds_of(1_000, 142, kinds, 7, "pjs")
        print(f"PJS, 1,000 jobs {what}, 142 machines in 18 clusters: {taken * 1e3:.1f} ms")
    print(f"GSA, 100 different jobs, 100 different machines: {seconds_of(100, 100, 100, 100, 'gsa') * 1e3:.0f} ms")
    cases = [totals_of(seed) for seed in range(CASES)]
    print(f"6 jobs on 4 machines, {CASES} cases: the sum above the least, mean and most; cases with the least")
    for name in ALGORITHMS:
        above = [100 * (one[name] / one["best"] - 1) for one in cases]
        print(f"{name:>16} {np.mean(above):6.2f}% {max(above):6.2f}% {sum(each == 0 for each in above):4}")
    print("jobs, machines: seconds of SJS and PJS with 5 classes of jobs and 10 of machines")
    for n_jobs, n_machines in GROWTH:
        sjs, pjs = (seconds_of(n_jobs, n_machines, 5, 10, name) for name in ("sjs", "pjs"))
        print(f"{n_jobs:8,} {n_machines:8,} {sjs:10.4f} {pjs:10.4f}", flush=True)
    print("the same where all jobs differ")
    for n_jobs in DIFFERENT:
        sjs, pjs = (seconds_of(n_jobs, 1_000, n_jobs, 10, name) for name in ("sjs", "pjs"))
        print(f"{n_jobs:8,} {1_000:8,} {sjs:10.4f} {pjs:10.4f}", flush=True)


if __name__ == "__main__":
    main()

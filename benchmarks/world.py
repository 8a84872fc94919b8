"""Measure the speed of the simulated world; print it and write benchmarks/results/world.json.

    make bench, or: python benchmarks/world.py

The jobs are drawn from the shipped model, for four sites of 128 nodes at a load of 0.7, in mode adaptive with an
overhead of 30%. One in six jobs waits, one in twenty is split, and a job takes 3.4 messages. The history of the run is
recorded and checked, as always. The batch driver runs the same jobs for comparison. Without delays and faults both give
the same schedule, which is checked.

Each figure is of ten runs in one process, after one that does not count, and includes everything from the workload to
the schedule. It is processor time, so that other processes matter less. They still matter: a process that shares the
caches and the clock of a core slows a run by a third. So the median is what to expect on this machine at its present
load, and the best is what the program can do. Nine tenths of the world's time is Python: an interpreter built with
``--enable-optimizations`` is a fifth faster than one built without.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from measuring import write_results

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.generators.registry import generate, load_model
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.world.connections import Faults, Network
from gridweave.scenarios.world.simulate import simulate_world

NODES = [128] * 4
TARGET = 8_000
REPEATS = 10


def rates_of(run: Callable[[], SimulationResult]) -> tuple[list[float], SimulationResult]:
    """Return the rates of several runs [jobs per second of processor time], and their result, equal for all."""
    rates = []
    result = run()
    for _ in range(REPEATS):
        began = time.process_time()
        result = run()
        rates.append(len(result.workload) / (time.process_time() - began))
    return rates, result


def main() -> None:
    """Run all measurements, print them, and save them."""
    jobs = generate(load_model("ctc-sp2"), 10_000, np.random.default_rng(1), nodes=128, load=2.8)
    policy = GridPolicy(mode="adaptive", overhead=0.3)
    rates: dict[str, list[float]] = {}
    rates["batch driver"], batch = rates_of(lambda: simulate(jobs, NODES, policy))
    worlds = {
        "no delay": (Network(), Faults()),
        "20 ms": (Network(latency_ms=20), Faults()),
        "20 ms, 1% lost": (Network(latency_ms=20, jitter_ms=5, loss=0.01), Faults()),
        "20 ms, 1% lost, sites fail": (Network(latency_ms=20, jitter_ms=5, loss=0.01), Faults(crash_every_ms=1e9)),
    }
    for name, (network, faults) in worlds.items():
        label = f"simulated world, {name}"
        rates[label], result = rates_of(
            lambda n=network, f=faults: simulate_world(jobs, NODES, policy, network=n, faults=f)
        )  # type: ignore[misc]
        if name == "no delay":
            assert (result.start_ms == batch.start_ms).all(), "the world and the batch driver differ"
    figures: dict[str, float] = {}
    print(f"{'jobs/s':45}{'median':>12}{'best':>12}")
    for label, found in rates.items():
        median, best = statistics.median(found), max(found)
        figures[f"{label}, median [jobs/s]"], figures[f"{label}, best [jobs/s]"] = median, best
        met = "met" if median >= TARGET else "met at best" if best >= TARGET else "NOT MET"
        target = f"   target: {TARGET:,}: {met}" if "no delay" in label else ""
        print(f"{label:45}{median:>12,.0f}{best:>12,.0f}{target}")
    write_results("world", figures)


if __name__ == "__main__":
    main()

"""Speed of the simulated world: printed, and written to benchmarks/results/world.json.

    make bench, or: python benchmarks/world.py

The jobs are drawn from the shipped model, for four sites of 128 nodes at a load of 0.7: adaptive, an overhead of 30%.
The batch driver plays the same jobs beside it. Without delay and fault both give the same schedule, which is checked.
Processor time counts, so that what else runs on the machine counts less. Nine tenths of what the world does is Python:
an interpreter that was built with ``--enable-optimizations`` is a fifth faster than one that was not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.generators.model_file import load_model
from gridweave.scenarios.generators.registry import generate
from gridweave.scenarios.grid_simulator import GridResult, simulate_grid
from gridweave.scenarios.world.network import Faults, Network
from gridweave.scenarios.world.simulate import simulate_world

RESULTS = Path(__file__).parent / "results" / "world.json"
NODES = [128] * 4
ASKED = 20_000


def best_rate(run: Callable[[], GridResult], repeats: int = 2) -> tuple[float, GridResult]:
    """Return the jobs per second of processor time of the best of several runs, and the result."""
    rates = []
    result = run()
    for _ in range(repeats):
        began = time.process_time()
        result = run()
        rates.append(len(result.workload) / (time.process_time() - began))
    return max(rates), result


def main() -> None:
    """Run everything, print it, and write it down."""
    jobs = generate(load_model("ctc-sp2"), 10_000, np.random.default_rng(1), nodes=128, load=2.8)
    policy = GridPolicy(mode="adaptive", overhead=0.3)
    figures: dict[str, float] = {}
    figures["batch driver [jobs/s]"], batch = best_rate(lambda: simulate_grid(jobs, NODES, policy))
    worlds = {
        "no delay": (Network(), Faults()),
        "20 ms": (Network(latency_ms=20), Faults()),
        "20 ms, 1% lost": (Network(latency_ms=20, jitter_ms=5, loss=0.01), Faults()),
        "20 ms, 1% lost, sites fail": (Network(latency_ms=20, jitter_ms=5, loss=0.01), Faults(crash_every_ms=1e9)),
    }
    for name, (network, faults) in worlds.items():
        rate, result = best_rate(lambda n=network, f=faults: simulate_world(jobs, NODES, policy, network=n, faults=f))  # type: ignore[misc]
        figures[f"simulated world, {name} [jobs/s]"] = rate
        if name == "no delay":
            assert (result.start_ms == batch.start_ms).all(), "the world and the batch driver differ"
    for label, figure in figures.items():
        asked = f"   asked: {ASKED:,}: {'met' if figure >= ASKED else 'NOT MET'}" if "no delay" in label else ""
        print(f"{label:55}{figure:>12,.0f}{asked}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()

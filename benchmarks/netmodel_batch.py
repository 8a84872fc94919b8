"""Speed of a grid with a network in batch simulation: printed, and written to benchmarks/results/netmodel_batch.json.

    python benchmarks/netmodel_batch.py [jobs]

m128 (the sites of Streit's section 7.3) under adaptive multi-site scheduling, with jobs of the shipped model `ctc-sp2`:
with the constant p, then with links between the sites. Times are those of the compiled loop on one core, in seconds of
its own thread, the best of several runs.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.build import topology_of_graph
from gridweave.netmodel.communication import PATTERNS
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.routing import find_paths
from gridweave.scenarios import grid_net_run, grid_simulator
from gridweave.scenarios.generators.model_file import load_model
from gridweave.scenarios.generators.registry import generate
from gridweave.scenarios.grid_net import GridNet
from gridweave.scenarios.grid_simulator import GridResult, simulate_grid
from gridweave.scenarios.published.grid_runs import CONFIGURATIONS
from gridweave.scenarios.workload import Workload

RESULTS = Path(__file__).parent / "results" / "netmodel_batch.json"
M128 = CONFIGURATIONS["m128"]
LOAD = 0.85
JOBS = 100_000
FRACTION, MESSAGE_BYTES = 0.05, 100_000


class Stopwatch:
    """Takes the place of a compiled loop, and adds up its time."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.seconds = 0.0

    def __call__(self, *arguments: Any) -> Any:
        """Run the loop."""
        began = time.thread_time()
        done = self.loop(*arguments)
        self.seconds += time.thread_time() - began
        return done


def backbone() -> NetworkModel:
    """Return a site for each of m128, around a ring of 10 Gbps with one link across."""
    graph: nx.Graph[int] = nx.cycle_graph(len(M128))
    graph.add_edge(0, len(M128) // 2)
    nx.set_edge_attributes(graph, 4.0, "latency_ms")
    topology = topology_of_graph(graph, bandwidth_bps=1e10)
    return NetworkModel(topology, find_paths(topology), "overlapped")


def communicating(workload: Workload, pattern: str) -> Workload:
    """Return the same jobs, all of which communicate."""
    jobs = len(workload)
    return workload.replace(
        columns=dict(workload.columns)
        | {
            "pattern": np.full(jobs, tuple(PATTERNS).index(pattern)),
            "communication_fraction": np.full(jobs, FRACTION),
            "message_bytes": np.full(jobs, MESSAGE_BYTES),
        }
    )


def measured(watch: Stopwatch, times: int, *arguments: Any, net: GridNet | None = None) -> tuple[float, GridResult]:
    """Return the shortest time of several simulations, in microseconds a job, and what they come to."""
    best_s = math.inf
    for _ in range(times):
        watch.seconds = 0.0
        result = simulate_grid(*arguments, net=net)
        best_s = min(best_s, watch.seconds)
    return best_s / len(result.workload) * 1e6, result


def main() -> None:
    """Run everything, print it, and write it down."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    plain, linked = Stopwatch(grid_simulator.run_grid_batch), Stopwatch(grid_net_run.run_net_batch)
    grid_simulator.run_grid_batch = plain  # type: ignore[assignment]
    grid_net_run.run_net_batch = linked  # type: ignore[assignment]
    model = backbone()
    rows = []
    source = load_model("ctc-sp2")
    small = generate(source, 2, np.random.default_rng(1), nodes=sum(M128))
    drawn = generate(source, jobs, np.random.default_rng(1), nodes=sum(M128), load=LOAD)
    for overhead in (0.0, 0.3):
        policy = GridPolicy(mode="adaptive", overhead=overhead)
        measured(plain, 1, small, M128, policy)
        us, result = measured(plain, 5, drawn, M128, policy)
        rows.append((f"constant p = {overhead:.0%}", us, int(result.multi_site.sum()), 1.0, 1.0))
    policy = GridPolicy(mode="adaptive")
    for pattern in ("none", "ring", "3d-neighbours", "all-to-all"):
        for split in ("fewest", "earliest-end"):
            for contention in ("none", "static", "dynamic"):
                net = GridNet(model, contention=contention, split=split, exact_up_to=200)
                measured(linked, 1, small, M128, policy, net=net)
                us, result = measured(linked, 2, communicating(drawn, pattern), M128, policy, net=net)
                assert result.factor is not None
                assert result.slowdown is not None
                split_jobs = result.multi_site
                factor = float(result.factor[split_jobs].mean()) if split_jobs.any() else 1.0
                slowed = float(result.slowdown[split_jobs].mean()) if split_jobs.any() else 1.0
                rows.append((f"{pattern}, {split}, {contention}", us, int(split_jobs.sum()), factor, slowed))
    print(f"{'':40} {'us a job':>9} {'jobs/s':>10} {'split':>8} {'factor':>7} {'slowed':>7}")
    for label, us, count, factor, slowed in rows:
        print(f"{label:40} {us:9.2f} {1e6 / us:10,.0f} {count:8,} {factor:7.3f} {slowed:7.3f}", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    names = ("what", "us a job", "split jobs", "mean factor", "mean slowdown")
    written = {"jobs": jobs, "load": LOAD, "rows": [dict(zip(names, row, strict=True)) for row in rows]}
    RESULTS.write_text(json.dumps(written, indent=2) + "\n")
    print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()

"""Measure a grid with a network in batch simulation; print it and write benchmarks/results/netmodel_batch.json.

    python benchmarks/netmodel_batch.py [jobs]

m128 (the sites of Streit's section 7.3) under adaptive multi-site scheduling, with jobs of the shipped model `ctc-sp2`:
with a constant p of 30%, with links between the sites, and with a constant p equal to the mean overhead of the splits
over these links. Times are thread times of the compiled loop on one core, the best of several runs in turn.
"""

from __future__ import annotations

import math
import sys
from itertools import product
from typing import NamedTuple

import networkx as nx
import numpy as np
from measuring import Stopwatch, write_results

from gridweave.grid.kernels.links import MAX_OVERHEAD
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.communication import PATTERNS
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths
from gridweave.netmodel.tables import CONTENTIONS, EXCHANGES
from gridweave.scenarios.batch import grid_network
from gridweave.scenarios.batch.grid_network import SPLITS, GridNet
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.generators.registry import generate, load_model
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.table import Workload
from gridweave_papers.studies.streit_grid import CONFIGURATIONS

M128 = CONFIGURATIONS["m128"]
LOAD = 0.85
JOBS = 100_000
FRACTION, MESSAGE_BYTES = 0.05, 100_000
USUAL = 0.3
ROUNDS = 5


def backbone(exchange: str = "overlapped") -> NetworkModel:
    """Return the sites of m128 on a ring of 10 Gbps with one link across."""
    graph: nx.Graph[int] = nx.cycle_graph(len(M128))
    graph.add_edge(0, len(M128) // 2)
    nx.set_edge_attributes(graph, 4.0, "latency_ms")
    topology = topology_of_graph(graph, bandwidth_bps=1e10)
    return NetworkModel(topology, find_paths(topology), exchange)


def communicating(workload: Workload, pattern: str) -> Workload:
    """Return the same jobs with communication in all of them."""
    jobs = len(workload)
    return workload.replace(
        columns=dict(workload.columns)
        | {
            "pattern": np.full(jobs, tuple(PATTERNS).index(pattern)),
            "communication_fraction": np.full(jobs, FRACTION),
            "message_bytes": np.full(jobs, MESSAGE_BYTES),
        }
    )


class Case(NamedTuple):
    """A simulation to be measured.

    Attributes
    ----------
    label : str
    workload : Workload
    policy : GridPolicy
    net : GridNet, optional
    """

    label: str
    workload: Workload
    policy: GridPolicy
    net: GridNet | None = None


class Bench:
    """The compiled loop with a stopwatch, and the shortest time of each case so far."""

    def __init__(self) -> None:
        self._watch = Stopwatch()
        grid_network.prepared = self._watch  # type: ignore[assignment]
        self.best_us: dict[str, float] = {}
        self.results: dict[str, SimulationResult] = {}

    def run(self, case: Case) -> SimulationResult:
        """Simulate a case once, and keep its time if it is the shortest."""
        self._watch.seconds = 0.0
        result = self.results[case.label] = simulate(case.workload, M128, case.policy, net=case.net)
        took_us = self._watch.seconds / len(result.workload) * 1e6
        self.best_us[case.label] = min(took_us, self.best_us.get(case.label, math.inf))
        return result


def amounts_to(result: SimulationResult) -> float:
    """Return the mean overhead of a simulation's splits as a constant p, weighted by their area on one site."""
    split = result.multi_site
    area = (result.workload.width * result.workload.run_ms)[split]
    return float(((result.columns["factor"][split] - 1.0) * area).sum() / max(1, area.sum()))


def constant(label: str, workload: Workload, overhead: float) -> Case:
    """Return the case of a constant p."""
    return Case(label, workload, GridPolicy(mode="adaptive", overhead=overhead))


def linked_cases(drawn: Workload, bench: Bench) -> list[tuple[Case, Case, Case]]:
    """Return the cases with links, each with two cases of constant p: the usual one, and that of `amounts_to`.

    All cases run equally often, since the shortest time of many runs is less than that of few.
    """
    cases = []
    for exchange in EXCHANGES:
        model = backbone(exchange)
        for pattern, split in product(("none", "ring", "3d-neighbours", "all-to-all"), SPLITS):
            for contention in CONTENTIONS:
                net = GridNet(model, contention=contention, split=split, max_split_factor=1.0 + MAX_OVERHEAD)
                label = f"{exchange}, {pattern}, {split}, {contention}"
                case = Case(label, communicating(drawn, pattern), GridPolicy(mode="adaptive"), net)
                p = amounts_to(bench.run(case))
                usual = constant(f"{label}: usual p", drawn, USUAL)
                cases.append((case, usual, constant(f"{label}: constant p = {p:.1%}", drawn, p)))
    return cases


def main() -> None:
    """Run all measurements, print them, and save them."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    bench = Bench()
    drawn = generate(load_model("ctc-sp2"), jobs, np.random.default_rng(1), nodes=sum(M128), load=LOAD)
    cases = linked_cases(drawn, bench)
    # Cases are simulated in turn, since the speed of a machine changes with time.
    for _ in range(ROUNDS):
        for together in cases:
            for case in together:
                bench.run(case)
    print(f"{'':48} {'us a job':>9} {'jobs/s':>10} {'split':>8} {'p':>6} {'to 30%':>7} {'to p':>6}")
    rows = []
    for case, usual, like in cases:
        us, result = bench.best_us[case.label], bench.results[case.label]
        split, p = int(result.multi_site.sum()), amounts_to(result)
        rows.append((case.label, us, split, p, bench.best_us[usual.label] / us, bench.best_us[like.label] / us))
        print(f"{case.label:48} {us:9.2f} {1e6 / us:10,.0f} {split:8,} {p:6.1%} {rows[-1][4]:7.2f} {rows[-1][5]:6.2f}")
    names = ("what", "us a job", "split jobs", "p", "speed to constant p = 30%", "speed to constant p")
    written = {"jobs": jobs, "load": LOAD, "rows": [dict(zip(names, row, strict=True)) for row in rows]}
    write_results("netmodel_batch", written)


if __name__ == "__main__":
    main()

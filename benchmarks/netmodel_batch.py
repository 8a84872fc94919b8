"""Speed of a grid with a network in batch simulation: printed, and written to benchmarks/results/netmodel_batch.json.

    python benchmarks/netmodel_batch.py [jobs]

m128 (the sites of Streit's section 7.3) under adaptive multi-site scheduling, with jobs of the shipped model `ctc-sp2`:
with a constant p of 30%, with links between the sites, and with the constant p that the splits over these amount to.
Times are those of the compiled loop on one core, in seconds of its own thread, the best of several runs in turn.
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
    """Return a site for each of m128, around a ring of 10 Gbps with one link across."""
    graph: nx.Graph[int] = nx.cycle_graph(len(M128))
    graph.add_edge(0, len(M128) // 2)
    nx.set_edge_attributes(graph, 4.0, "latency_ms")
    topology = topology_of_graph(graph, bandwidth_bps=1e10)
    return NetworkModel(topology, find_paths(topology), exchange)


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


class Case(NamedTuple):
    """What is simulated.

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
    """The compiled loop behind a stopwatch, and the shortest time of each case so far."""

    def __init__(self) -> None:
        self._watch = Stopwatch()
        grid_network.prepared = self._watch  # type: ignore[assignment]
        self.best_us: dict[str, float] = {}
        self.results: dict[str, SimulationResult] = {}

    def run(self, case: Case) -> SimulationResult:
        """Simulate a case once more, and keep its time if it is the shortest."""
        self._watch.seconds = 0.0
        result = self.results[case.label] = simulate(case.workload, M128, case.policy, net=case.net)
        took_us = self._watch.seconds / len(result.workload) * 1e6
        self.best_us[case.label] = min(took_us, self.best_us.get(case.label, math.inf))
        return result


def amounts_to(result: SimulationResult) -> float:
    """Return the constant p that the splits of a simulation amount to: its mean, weighted by the area on one site."""
    split = result.multi_site
    area = (result.workload.width * result.workload.run_ms)[split]
    return float(((result.columns["factor"][split] - 1.0) * area).sum() / max(1, area.sum()))


def constant(label: str, workload: Workload, overhead: float) -> Case:
    """Return the case of a constant p."""
    return Case(label, workload, GridPolicy(mode="adaptive", overhead=overhead))


def linked_cases(drawn: Workload, bench: Bench) -> list[tuple[Case, Case, Case]]:
    """Return the cases with links, each run once; beside each that of the usual p, and of the one that it amounts to.

    All are run equally often: the shortest time of many runs is less than that of few.
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
    """Run everything, print it, and write it down."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    bench = Bench()
    drawn = generate(load_model("ctc-sp2"), jobs, np.random.default_rng(1), nodes=sum(M128), load=LOAD)
    cases = linked_cases(drawn, bench)
    # What is compared is simulated in turn: a machine is not as fast at one time as at another.
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

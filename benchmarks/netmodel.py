"""Measure the speed of the network model; print it and write benchmarks/results/netmodel.json.

    python benchmarks/netmodel.py

Times are thread times on one core, the best of several runs, without compilation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import numpy.typing as npt
from measuring import timed, write_results

from gridweave.errors import InputError
from gridweave.jit import kernel
from gridweave.netmodel.communication import PATTERNS, Communication
from gridweave.netmodel.kernels.contention import add_job_flows, share_links
from gridweave.netmodel.kernels.overhead import split_factor
from gridweave.netmodel.kernels.state import PART, new_filling, new_flows
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths
from gridweave.netmodel.topology import Topology
from gridweave.scenarios.scenario.read import network_of_file

WIDTH = 336
"""The widest job of CTC."""


@kernel
def repeat_split_factor(net, communication, placements):
    """Return the sum of the factors of many placements, an array (placements, parts) of PART."""
    total = 0.0
    for number in range(len(placements)):
        total += split_factor(net, communication[0], placements[number], placements.shape[1])
    return total


@kernel
def repeat_sharing(net, flows, filling, times):
    """Recompute the shares of the links `times` times."""
    for _ in range(times):
        share_links(net, flows, filling)


def backbone(sites: int, seed: int = 1) -> Topology:
    """Return sites on a plane, each linked to those near it, with links of five speeds."""
    rng = np.random.default_rng(seed)
    places = rng.uniform(0, 3000, (sites, 2))
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(sites))
    for site in range(sites):
        distance = np.hypot(*(places - places[site]).T)
        for other in np.argsort(distance)[1:4]:
            graph.add_edge(site, int(other), latency_ms=float(distance[other]) / 133)
    parts = [min(part) for part in nx.connected_components(graph)]
    for one, other in pairwise(parts):
        graph.add_edge(one, other, latency_ms=math.dist(places[one], places[other]) / 133)
    for _, _, link in graph.edges(data=True):
        link["bandwidth_bps"] = float(rng.choice([1e9, 2.5e9, 1e10, 4e10, 1e11]))
    return topology_of_graph(graph)


def networks() -> Iterator[tuple[str, Topology]]:
    """Yield random networks, and GEANT if its file is available."""
    for sites in (10, 100, 200, 1000):
        yield f"{sites} sites", backbone(sites)
    drawn, rng = backbone(200), np.random.default_rng(6)
    every_speed = rng.uniform(1e9, 1e11, drawn.n_cables)[drawn.cable]
    yield "200 sites, every cable of another speed", drawn.with_figures(bandwidth_bps=every_speed)
    try:
        yield "GEANT", network_of_file("Geant2012.gml")[1]
    except InputError as problem:
        print(problem)


def failure_s(topology: Topology, routes: str, times: int = 10) -> float:
    """Return the time to update the network after one cable has failed [s], the mean over some cables."""
    model = NetworkModel(topology, find_paths(topology, routes))
    cables = np.linspace(0, topology.n_cables - 1, min(times, topology.n_cables)).astype(np.int64)
    states = [np.where(np.arange(topology.n_cables) == cable, 0.0, 1.0) for cable in cables]
    took_s = timed(lambda: [replace(model).with_cables(state) for state in states], 1)
    return (took_s - timed(lambda: [replace(model) for _ in states], 1)) / len(states)


def placements(rng: np.random.Generator, sites: int, n_parts: int, count: int) -> npt.NDArray[np.void]:
    """Return `count` random placements of a job, each with `n_parts` parts."""
    parts = np.zeros((count, n_parts), PART)
    for row in parts:
        row["site"] = rng.permutation(sites)[:n_parts]
        row["width"] = 1
        row["width"] += rng.multinomial(WIDTH - n_parts, np.ones(n_parts) / n_parts)
    return parts


def factor_us(model: NetworkModel, pattern: str, n_parts: int) -> float:
    """Return the time to compute the overhead of one placement [us]."""
    sites = len(model.topology.sites)
    parts = placements(np.random.default_rng(2), sites, n_parts, 2000)
    record = Communication(fraction=0.2, message_bytes=1e5, pattern=pattern).records([WIDTH])
    return timed(lambda: repeat_split_factor(model.arrays, record, parts), 5) / len(parts) * 1e6


def sharing_us(model: NetworkModel, jobs: int) -> tuple[float, int]:
    """Return the time to recompute link shares for `jobs` jobs of three parts [us], and the number of flows."""
    rng = np.random.default_rng(3)
    flows = new_flows(6 * jobs)
    filling = new_filling(len(model.topology.source), 6 * jobs)
    record = Communication(fraction=0.5, message_bytes=1e6, pattern="all-to-all").records([WIDTH])[0]
    for owner, parts in enumerate(placements(rng, len(model.topology.sites), 3, jobs)):
        add_job_flows(model.arrays, flows, np.int64(owner), record, parts, 3, 1.5)
    times = 2000
    return timed(lambda: repeat_sharing(model.arrays, flows, filling, times), 5) / times * 1e6, int(flows.n_flows[0])


def choice_us(model: NetworkModel, n_free: int, exact_up_to: int) -> tuple[float, int]:
    """Return the time to choose among `n_free` sites with free nodes [us], and the number of placements tried."""
    rng = np.random.default_rng(4)
    free = np.zeros(len(model.topology.sites), np.int64)
    free[rng.permutation(len(free))[:n_free]] = rng.integers(2, 13, n_free)
    some = Communication(fraction=0.2, message_bytes=1e5, pattern="2d-neighbours")
    width = int(free.max()) + 6
    found = model.choose_sites(some, width, free, exact_up_to=exact_up_to)
    assert found is not None
    return timed(lambda: model.choose_sites(some, width, free, exact_up_to=exact_up_to), 20) * 1e6, found.tried


def heuristic_figures(grids: int = 600) -> dict[str, float]:
    """Return how close the heuristic comes to the exact choice, on grids of six sites on a plane."""
    rng = np.random.default_rng(5)
    ratios = []
    for _ in range(grids):
        places = rng.uniform(0, 3000, (6, 2))
        graph = nx.complete_graph(6)
        for one, other, link in graph.edges(data=True):
            link["latency_ms"] = math.dist(places[one], places[other]) / 133
            link["bandwidth_bps"] = float(rng.choice([1e9, 2.5e9, 1e10]))
        topology = topology_of_graph(graph)
        model = NetworkModel(topology, find_paths(topology), str(rng.choice(["synchronous", "overlapped"])))
        pattern = str(rng.choice([name for name in PATTERNS if name != "none"]))
        some = Communication(fraction=rng.uniform(0.05, 0.5), message_bytes=10 ** rng.uniform(2, 7), pattern=pattern)
        free = rng.integers(1, 13, 6)
        width = int(rng.integers(free.max() + 1, max(free.max() + 2, min(free.sum(), 30))))
        exact = model.choose_sites(some, width, free, exact_up_to=10**7)
        found = model.choose_sites(some, width, free, exact_up_to=0)
        if exact is not None and found is not None:
            ratios.append(found.end_ms / exact.end_ms)
    figures = np.array(ratios)
    return {
        "heuristic, part of grids where it is exact": float(np.mean(figures < 1 + 1e-9)),
        "heuristic, end over that of the exact choice, mean": float(figures.mean()),
        "heuristic, end over that of the exact choice, worst": float(figures.max()),
    }


def main() -> None:
    """Run all measurements, print them, and save them."""
    figures: dict[str, float] = {}
    for name, topology in networks():
        for routes in ("latency", "bandwidth"):
            took_s = timed(lambda topology=topology, routes=routes: find_paths(topology, routes), 2)  # type: ignore[misc]
            figures[f"path table, {name}, by {routes} [s]"] = took_s
            figures[f"a cable fails, {name}, by {routes} [s]"] = failure_s(topology, routes)
    topology = backbone(40)
    figures["path table, 40 sites, k-shortest [s]"] = timed(lambda: find_paths(topology, "k-shortest"), 2)
    model = NetworkModel(topology, find_paths(topology))
    for n_parts in (2, 3, 4, 8):
        for pattern in PATTERNS:
            figures[f"overhead, {n_parts} parts, {pattern} [us]"] = factor_us(model, pattern, n_parts)
    for jobs in (2, 5, 10, 30, 100):
        took_us, flows = sharing_us(model, jobs)
        figures[f"sharing, {jobs} jobs, {flows} flows [us]"] = took_us
    for n_free, exact_up_to in ((4, 10**6), (6, 10**6), (4, 0), (6, 0), (40, 0)):
        took_us, tried = choice_us(model, n_free, exact_up_to)
        kind = "exact" if exact_up_to else "heuristic"
        figures[f"choice, {n_free} sites, {kind}, {tried} placements [us]"] = took_us
    figures |= heuristic_figures()
    for name, value in figures.items():
        print(f"{name:55} {value:12.3f}")
    write_results("netmodel", figures)


if __name__ == "__main__":
    main()

"""Random networks, changes of their links, and jobs that communicate."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np

from gridweave.errors import InputError
from gridweave.netmodel.changes import CableChange, Timetable
from gridweave.netmodel.communication import PATTERNS
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths
from gridweave.scenarios.batch.grid_network import GridNet
from gridweave.scenarios.workload.table import Workload

PATTERN_NAMES = tuple(PATTERNS)
AT_ANY_COST = 10_001.0
"""A bound on the factor of a split that is so large that it has no effect."""

ZOO = """\
graph [
  label "Zoo"
  node [ id 0 label "AMS" Longitude 4.88969 Latitude 52.37403 ]
  node [ id 1 label "BRU" Longitude 4.34878 Latitude 50.85045 ]
  node [ id 2 label "FRA" Longitude 8.68333 Latitude 50.11667 ]
  node [ id 3 label "Kiev" ]
  node [ id 4 label "FRA" Longitude 8.6 Latitude 50.2 ]
  edge [ source 0 target 1 LinkSpeedRaw 10000000000.0 LinkLabel "10 Gbps" ]
  edge [ source 1 target 2 LinkSpeed "2.5" LinkSpeedUnits "G" ]
  edge [ source 2 target 0 LinkLabel "Lit Fibre" LinkLabel "155 Mbps" ]
  edge [ source 2 target 3 LinkLabel "Lit Fibre" ]
  edge [ source 0 target 1 LinkSpeedRaw 10000000000.0 ]
  edge [ source 2 target 4 LinkSpeed "1" LinkSpeedUnits "G" latency_ms 0.25 jitter_ms 0.5 loss 0.001 ]
]
"""


def as_in_thesis(model: NetworkModel, timetable: Timetable | None = None, **options: Any) -> GridNet:
    """Return a network that by default splits jobs over the fewest sites, at any cost."""
    return GridNet(model, timetable, **{"split": "fewest", "max_split_factor": AT_ANY_COST, **options})


def no_file(name: str) -> str:
    """Raise InputError in place of reading another file."""
    raise InputError(f"{name}: there is no such file")


def drawn_model(rng: np.random.Generator, sites: int) -> NetworkModel:
    """Draw a connected network between sites, with latencies and bandwidths that slow down some jobs."""
    graph: nx.Graph[int] = nx.path_graph(sites)
    for one in range(sites):
        for other in range(one + 2, sites):
            if rng.random() < 0.1:
                graph.add_edge(one, other)
    for _, _, cable in graph.edges(data=True):
        cable["latency_ms"] = float(rng.choice((0.01, 0.1, 7.0)))
        cable["bandwidth_bps"] = float(rng.choice((1e8, 2e9, 5e9)))
    topology = topology_of_graph(graph)
    return NetworkModel(topology, find_paths(topology), str(rng.choice(("synchronous", "overlapped"))))


def drawn_timetable(rng: np.random.Generator, model: NetworkModel, until_ms: int) -> Timetable:
    """Draw times at which cables fail or slow down; all cables work again at `3 * until_ms`."""
    cables = int(model.topology.cable.max(initial=-1)) + 1
    changes = []
    for _ in range(4):
        at_ms, cable = int(rng.integers(0, until_ms)), int(rng.integers(0, cables))
        changes.append(CableChange(at_ms, "link", (cable,), float(rng.choice((0.0, 0.2)))))
        changes.append(CableChange(at_ms + int(rng.integers(1, until_ms + 1)), "link", (cable,), 1.0))
    changes += [CableChange(3 * until_ms, "link", (cable,), 1.0) for cable in range(cables)]
    return Timetable.of(model.topology, changes)


def with_columns(rng: np.random.Generator, workload: Workload, sites: int) -> Workload:
    """Return the jobs with random communication, and with random amounts of input and output data."""
    jobs = len(workload)
    columns = {
        "pattern": rng.integers(0, len(PATTERN_NAMES), jobs),
        "communication_fraction": rng.choice((0.0, 0.02, 0.3, 0.8), jobs),
        "message_bytes": rng.choice((0, 100, 200_000, 5_000_000), jobs),
        **{f"{what}_bytes": rng.choice((0, 10**6, 10**8), jobs) for what in ("input", "output")},
        **{f"{what}_site": rng.integers(0, sites, jobs) for what in ("input", "output")},
    }
    return workload.replace(columns=dict(workload.columns) | columns)

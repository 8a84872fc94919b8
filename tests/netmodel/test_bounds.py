"""Lower bounds on the split factor, compared with all placements."""

from __future__ import annotations

from itertools import product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.netmodel.communication import Communication
from gridweave.netmodel.kernels.choice import first_parts_factor, may_grow_by
from gridweave.netmodel.kernels.overhead import split_factor
from gridweave.netmodel.kernels.state import PART
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths


@st.composite
def models(draw: st.DrawFn) -> NetworkModel:
    """Draw synchronous models, with different links in each direction and two sites at one node."""
    graph = nx.DiGraph()
    cables = st.tuples(st.sampled_from([0.0, 0.1, 9.0]), st.sampled_from([1e8, 1e9, 4e9]), st.sampled_from([0.0, 0.01]))
    for one, other in [("x", "y"), ("y", "z"), ("z", "x"), *draw(st.sampled_from(([], [("w", "x")], [("y", "w")])))]:
        for ends in ((one, other), (other, one)):
            latency_ms, bandwidth_bps, loss = draw(cables)
            graph.add_edge(*ends, latency_ms=latency_ms, bandwidth_bps=bandwidth_bps, loss=loss)
    at = {name: name for name in graph} | ({"beside": "x"} if draw(st.booleans()) else {})
    topology = topology_of_graph(graph, attach=at)
    return NetworkModel(topology, find_paths(topology))


def all_to_all(width: int, fraction: float, message_bytes: float) -> np.void:
    """Return an all-to-all job as a record for kernels."""
    some = Communication(fraction=fraction, message_bytes=message_bytes, pattern="all-to-all")
    record: np.void = some.records([width])[0]
    return record


def factors(model: NetworkModel, job: np.void, free: list[int]) -> list[float]:
    """Return the factor of every placement with several parts, the largest parts first."""
    found = []
    for taken in product(*(range(nodes + 1) for nodes in free)):
        parts = np.array(sorted(((k, n) for k, n in enumerate(taken) if n), key=lambda part: -part[1]), PART)
        if sum(taken) == job["width"] and len(parts) > 1:
            found.append(float(split_factor(model.arrays, job, parts, len(parts))))
            assert first_parts_factor(model.arrays, job, parts) <= found[-1]
    return found


@settings(max_examples=150, deadline=None)
@given(
    models(),
    st.lists(st.integers(0, 7), min_size=5, max_size=5),
    st.integers(2, 14),
    st.floats(0.01, 1.0),
    st.sampled_from([0.0, 1e2, 1e5, 1e7]),
)
def test_no_placement_beats_the_bounds(
    model: NetworkModel, free: list[int], width: int, fraction: float, message_bytes: float
) -> None:
    job = all_to_all(width, fraction, message_bytes)
    free = free[: len(model.topology.sites)]
    for factor in factors(model, job, free):
        assert may_grow_by(model.arrays, job, np.array(free), factor)


def test_outgoing_links_bound_the_factor() -> None:
    """A single 1 Gbps link carries all messages, so halves cannot grow less, nor can 6 + 2 nodes."""
    graph = nx.Graph()
    graph.add_edge("a", "b", latency_ms=0.0, bandwidth_bps=1e9)
    topology = topology_of_graph(graph)
    model = NetworkModel(topology, find_paths(topology), local_latency_ms=0.0, local_bandwidth_bps=1e10)
    job = all_to_all(8, 1.0, 1e6)
    for free, crossing in (([4, 4], 16), ([6, 6], 12), ([6, 2], 12), ([7, 5], 7)):
        # 7 messages leave each node at 10 Gbps on one site.
        factor = (crossing / 1e9) / (7 / 1e10)
        assert may_grow_by(model.arrays, job, np.array(free), factor)
        assert not may_grow_by(model.arrays, job, np.array(free), 0.999 * factor)
        assert min(factors(model, job, free)) == pytest.approx(factor)
    assert not may_grow_by(model.arrays, job, np.array([4, 3]), 1e6)
    assert not may_grow_by(model.arrays, job, np.array([4, 4]), 0.9)


def test_outgoing_capacity_counts_each_first_link_once() -> None:
    """It is infinite for a site that shares its node with another site."""
    graph = nx.Graph()
    for end, bandwidth_bps in (("b", 1e9), ("c", 2e9), ("d", 4e9)):
        graph.add_edge("a", end, latency_ms=1.0, bandwidth_bps=bandwidth_bps)
    topology = topology_of_graph(graph)
    assert NetworkModel(topology, find_paths(topology)).arrays.outgoing.tolist() == [7e6, 1e6, 2e6, 4e6]
    topology = topology_of_graph(graph, attach={"one": "b", "other": "b", "third": "c"})
    assert NetworkModel(topology, find_paths(topology)).arrays.outgoing.tolist() == [np.inf, np.inf, 2e6]

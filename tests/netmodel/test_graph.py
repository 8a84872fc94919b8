"""The network as a networkx graph, and networks built from graphs."""

from __future__ import annotations

import pickle
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import parse_network, topology_of_graph
from gridweave.netmodel.tables import NetTable
from gridweave.netmodel.topology import Topology
from support.builders import ZOO, drawn_model, no_file

TABLES = ("source", "target", "latency_ms", "bandwidth_bps", "loss", "jitter_ms", "cable", "up", "node_of_site")


def assert_same(one: Topology, other: Topology) -> None:
    """Compare all tables of two topologies."""
    assert (one.nodes, one.sites, one.link_names) == (other.nodes, other.sites, other.link_names)
    np.testing.assert_array_equal(one.positions, other.positions)
    for name in TABLES:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def zoo() -> Topology:
    """Return a network with routers, parallel cables, and two sites at one node."""
    attach = 'attach = {alpha = "AMS", beta = "AMS", gamma = "Kiev"}'
    return parse_network(f'[net]\nfile = "zoo.gml"\n{attach}\n', "net.toml", {"zoo.gml": ZOO}.__getitem__)[1]


def test_nodes_and_edges_have_the_documented_attributes() -> None:
    topology = zoo()
    assert isinstance(topology.graph, nx.MultiDiGraph)
    assert dict(topology.graph.nodes["AMS"]) == {
        "latitude": 52.37403,
        "longitude": 4.88969,
        "sites": ("alpha", "beta"),
    }
    assert dict(topology.graph.nodes["Kiev"]) == {"sites": ("gamma",)}
    for link, (origin, target) in enumerate(zip(topology.source, topology.target, strict=True)):
        edge = topology.graph.edges[topology.nodes[origin], topology.nodes[target], link]
        figures = {name: float(getattr(topology, name)[link]) for name in TABLES[2:6]}
        assert edge == figures | {"cable": int(topology.cable[link]), "name": "", "up": True}


def test_the_graph_is_frozen_but_its_copy_is_not() -> None:
    topology = zoo()
    with pytest.raises(nx.NetworkXError, match="Frozen graph"):
        topology.graph.add_edge("AMS", "Kiev")
    graph = topology.graph.copy()
    graph.add_edge("AMS", "Kiev", latency_ms=9.0, bandwidth_bps=1e9)
    assert len(topology_of_graph(graph).source) == len(topology.source) + 1


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.booleans())
def test_a_network_built_from_the_graph_is_the_same(seed: int, cut: bool) -> None:
    """Slow and failed links are included."""
    rng = np.random.default_rng(seed)
    topology = drawn_model(rng, int(rng.integers(1, 7))).topology
    if cut:
        topology = topology.with_cables(rng.choice([0.0, 0.5, 1.0], topology.n_cables))
    assert_same(topology_of_graph(topology.graph, sites=topology.sites), topology)


def test_a_pickled_topology_is_the_same_and_frozen() -> None:
    topology = zoo()
    copy = pickle.loads(pickle.dumps(topology))
    assert_same(copy, topology)
    assert nx.is_frozen(copy.graph)


def test_a_graph_survives_gml() -> None:
    topology = zoo().with_cables([1.0, 0.5, 0.0, 1.0, 1.0, 1.0])
    text = "\n".join(nx.generate_gml(topology.graph))
    assert_same(parse_network(text, "now.gml", no_file)[1], topology)


def test_networkx_finds_the_routes_of_the_model() -> None:
    graph = nx.MultiDiGraph()
    for one, other, latency_ms, bandwidth_bps in (("a", "b", 5, 1e9), ("b", "c", 5, 1e10), ("a", "c", 12, 1e8)):
        figures: dict[str, Any] = {"latency_ms": latency_ms, "bandwidth_bps": bandwidth_bps}
        graph.add_edge(one, other, **figures)
        graph.add_edge(other, one, **figures)
    model = NetworkModel.of_graph(graph)
    held = model.topology.graph
    assert nx.shortest_path(held, "a", "c", weight="latency_ms") == ["a", "b", "c"]
    assert model.paths.latency_ms[0, 2] == nx.shortest_path_length(held, "a", "c", weight="latency_ms")
    assert nx.edge_connectivity(nx.Graph(held)) == 2


def test_a_table_supplies_settings_for_a_graph() -> None:
    graph = nx.cycle_graph(["a", "b", "c"])
    nx.set_edge_attributes(graph, 5.0, "latency_ms")
    graph.edges["a", "b"]["bandwidth_bps"] = 1e8
    table = NetTable(routes="bandwidth", bandwidth="1 Gbps", exchange="overlapped", attach={"x": "a", "y": "b"})
    model = NetworkModel.of_graph(graph, table)
    assert model.topology.sites == ("x", "y")
    assert model.paths.latency_ms[0, 1] == 10.0
    assert model.paths.bandwidth_bps[0, 1] == 1e9
    assert model.exchange == "overlapped"


def test_edges_with_the_same_cable_fail_together() -> None:
    graph = nx.MultiDiGraph()
    for one, other in (("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")):
        graph.add_edge(one, other, latency_ms=1.0, bandwidth_bps=1e9, cable=7)
    topology = topology_of_graph(graph)
    assert topology.cable.tolist() == [0, 0, 0, 0]
    assert not topology.with_cables([0.0]).up.any()

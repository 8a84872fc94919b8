"""Routes, compared with all simple paths, and the path tables."""

from __future__ import annotations

import math
from itertools import product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import OptionError
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import best_routes, find_paths, stream_bandwidth_bps
from gridweave.netmodel.topology import Topology


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Draw a small directed network with parallel links and many ties, where each node is a site."""
    nodes = draw(st.integers(2, 6))
    graph: nx.MultiDiGraph[int] = nx.MultiDiGraph()
    ends = [(node, (node + 1) % nodes) for node in range(nodes)]
    ends += draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=8))
    for one, other in ends:
        if one != other:
            latency_ms = draw(st.sampled_from([0.0, 1.0, 1.5, 2.0]))
            graph.add_edge(one, other, latency_ms=latency_ms, bandwidth_bps=draw(st.sampled_from([1e8, 1e9, 1e10])))
    return topology_of_graph(graph)


def all_routes(topology: Topology, origin: int, target: int) -> list[tuple[int, ...]]:
    """Return every route without repeated nodes, as its links."""
    if origin == target:
        return [()]
    ends = zip(topology.source.tolist(), topology.target.tolist(), range(len(topology.source)), strict=True)
    graph: nx.MultiDiGraph[int] = nx.MultiDiGraph(ends)
    return [tuple(key for _, _, key in path) for path in nx.all_simple_edge_paths(graph, origin, target)]


def by_latency(topology: Topology, links: tuple[int, ...]) -> tuple[int, int, list[int]]:
    """Return a sort key for routes by latency; a tie goes to the route without the highest link number."""
    latency_ns = round(sum(topology.latency_ms[link] for link in links) * 1e6)
    return latency_ns, len(links), sorted(links, reverse=True)


def narrowest(topology: Topology, links: tuple[int, ...]) -> float:
    """Return the smallest bandwidth on a route."""
    return min((float(topology.bandwidth_bps[link]) for link in links), default=math.inf)


@settings(max_examples=60)
@given(topologies())
def test_shortest_paths_are_the_best_simple_paths(topology: Topology) -> None:
    paths = find_paths(topology)
    for one, other in product(range(len(topology.sites)), repeat=2):
        best = min(all_routes(topology, one, other), key=lambda links: by_latency(topology, links))
        assert tuple(paths.between(one, other)) == best


@settings(max_examples=60)
@given(topologies())
def test_widest_paths_are_the_best_simple_paths(topology: Topology) -> None:
    paths = find_paths(topology, "bandwidth")
    for one, other in product(range(len(topology.sites)), repeat=2):
        routes = all_routes(topology, one, other)
        best = min(routes, key=lambda links: (-narrowest(topology, links), by_latency(topology, links)))
        assert tuple(paths.between(one, other)) == best
        assert paths.bandwidth_bps[one, other] == narrowest(topology, best)


@settings(max_examples=60)
@given(topologies(), st.integers(1, 5))
def test_the_k_best_routes_are_the_first_k_of_all(topology: Topology, k: int) -> None:
    last = len(topology.nodes) - 1
    routes = sorted(all_routes(topology, 0, last), key=lambda links: by_latency(topology, links))
    assert [route.links for route in best_routes(topology, 0, last, k=k)] == routes[:k]
    routes.sort(key=lambda links: -narrowest(topology, links))
    assert [route.links for route in best_routes(topology, 0, last, by="bandwidth", k=k)] == routes[:k]


@settings(max_examples=30)
@given(topologies(), st.integers(1, 4))
def test_k_shortest_takes_the_widest_of_the_k_shortest(topology: Topology, k: int) -> None:
    paths = find_paths(topology, "k-shortest", k=k)
    for one, other in product(range(len(topology.sites)), repeat=2):
        routes = sorted(all_routes(topology, one, other), key=lambda links: by_latency(topology, links))[:k]
        assert tuple(paths.between(one, other)) == max(routes, key=lambda links: narrowest(topology, links))


@given(topologies(), st.sampled_from(["latency", "bandwidth", "k-shortest"]))
def test_path_tables_sum_their_links(topology: Topology, routes: str) -> None:
    paths = find_paths(topology, routes)
    for one, other in product(range(len(topology.sites)), repeat=2):
        links = paths.between(one, other)
        nodes = [int(topology.node_of_site[one]), *(int(topology.target[link]) for link in links)]
        assert [int(topology.source[link]) for link in links] == nodes[:-1]
        assert nodes[-1] == topology.node_of_site[other]
        assert paths.latency_ms[one, other] == pytest.approx(sum(topology.latency_ms[link] for link in links))


@settings(max_examples=60)
@given(
    topologies(),
    st.sampled_from(["latency", "bandwidth", "k-shortest"]),
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=16, max_size=16),
)
def test_updated_paths_equal_paths_from_scratch(topology: Topology, routes: str, factors: list[float]) -> None:
    """Only paths over slower or failed links are searched again."""
    changed = NetworkModel(topology, find_paths(topology, routes)).with_cables(factors[: topology.n_cables])
    expected = find_paths(topology.with_cables(factors[: topology.n_cables]), routes)
    sites = range(len(topology.sites))
    for one, other in product(sites, sites):
        assert changed.paths.between(one, other) == expected.between(one, other)
    assert (changed.paths.latency_ms == expected.latency_ms).all()
    assert (changed.paths.bandwidth_bps == expected.bandwidth_bps).all()


def test_tied_routes_use_the_same_cables_in_both_directions() -> None:
    """Both avoid the cable that is listed last."""
    graph = nx.Graph([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    nx.set_edge_attributes(graph, 1.0, "latency_ms")
    topology = topology_of_graph(graph, bandwidth_bps=1e9)
    paths = find_paths(topology)
    assert [topology.link_label(link) for link in paths.between(0, 3)] == ["a - b", "b - d"]
    assert [topology.link_label(link) for link in paths.between(3, 0)] == ["d - b", "b - a"]


def test_sites_at_one_node_have_an_empty_path() -> None:
    graph = nx.path_graph(["x", "y"])
    nx.set_edge_attributes(graph, 3.0, "latency_ms")
    topology = topology_of_graph(graph, bandwidth_bps=1e9, attach={"a": "x", "b": "x", "c": "y"})
    paths = find_paths(topology)
    assert paths.between(0, 1) == []
    assert paths.latency_ms.tolist() == [[0, 0, 3], [0, 0, 3], [3, 3, 0]]
    assert paths.bandwidth_bps[0, 1] == math.inf
    assert paths.bandwidth_bps[0, 2] == 1e9


def test_each_direction_has_its_own_values() -> None:
    graph = nx.DiGraph()
    graph.add_edge("a", "b", latency_ms=1.0, bandwidth_bps=1e9)
    graph.add_edge("b", "a", latency_ms=4.0, bandwidth_bps=1e8)
    paths = find_paths(topology_of_graph(graph))
    assert paths.latency_ms.tolist() == [[0, 1], [4, 0]]
    assert paths.bandwidth_bps.tolist() == [[math.inf, 1e9], [1e8, math.inf]]


def test_routes_count_the_mean_jitter() -> None:
    """A link with a lower minimum but a higher mean latency is not used."""
    graph = nx.MultiGraph()
    graph.add_edge("a", "b", latency_ms=10.0, jitter_ms=6.0)
    graph.add_edge("a", "b", latency_ms=12.0, jitter_ms=0.0)
    topology = topology_of_graph(graph, bandwidth_bps=1e9)
    paths = find_paths(topology)
    assert paths.latency_ms[0, 1] == 12.0
    assert paths.jitter_ms[0, 1] == 0.0


def test_loss_adds_round_trips_and_limits_streams() -> None:
    """A lost packet costs a round trip; a single stream follows Mathis's formula."""
    graph = nx.path_graph(["a", "b", "c"])
    nx.set_edge_attributes(graph, 10.0, "latency_ms")
    nx.set_edge_attributes(graph, 0.1, "loss")
    paths = find_paths(topology_of_graph(graph, bandwidth_bps=1e9))
    assert paths.loss[0, 2] == pytest.approx(0.19)
    assert paths.latency_ms[0, 2] == pytest.approx(20 + 0.19 / 0.81 * 40)
    assert paths.stream_bps[0, 2] == pytest.approx(1460 * 8 / 0.040 * math.sqrt(1.5 / 0.19))
    assert paths.stream_bps[0, 0] == math.inf


def test_the_formula_of_mathis() -> None:
    """100 ms, segments of 1460 bytes and a loss of 1 in 10,000 allow 14.3 Mbps; without loss there is no limit."""
    stream = stream_bandwidth_bps(np.array([100.0, 100.0]), np.array([1e-4, 0.0]))
    assert stream.tolist() == [pytest.approx(14.305e6, rel=1e-3), math.inf]


def test_unknown_kinds_of_routes_are_refused() -> None:
    topology = topology_of_graph(nx.relabel_nodes(nx.path_graph(1), str))
    with pytest.raises(OptionError, match="routes: 'fastest' is not known; one of latency, bandwidth, k-shortest"):
        find_paths(topology, "fastest")
    with pytest.raises(OptionError, match="k: is 0"):
        find_paths(topology, "k-shortest", k=0)
    with pytest.raises(OptionError, match="by: 'hops' is not known"):
        best_routes(topology, 0, 0, by="hops")
    with pytest.raises(OptionError, match="k: is 0"):
        best_routes(topology, 0, 0, k=0)


def test_a_network_of_one_node_has_a_path_table() -> None:
    paths = find_paths(topology_of_graph(nx.path_graph(1)))
    assert paths.latency_ms.tolist() == [[0.0]]
    assert paths.between(0, 0) == []

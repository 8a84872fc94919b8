"""The network as it is told: its links, how they are, and how many jobs are on each."""

from __future__ import annotations

import networkx as nx

from gridweave.grid.api import NetworkLink, NetworkNode
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.explain.network import network_now
from gridweave.grid.kernels.links import NO_DATA
from gridweave.netmodel.correction import PairMeasured
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths


def line_of_three() -> GridNetwork:
    """Return three sites in a line, a - b - c."""
    graph: nx.Graph[str] = nx.path_graph(["a", "b", "c"])  # type: ignore[arg-type]
    nx.set_edge_attributes(graph, 2.0, "latency_ms")
    nx.set_edge_attributes(graph, 1e9, "bandwidth_bps")
    topology = topology_of_graph(graph)
    return GridNetwork(NetworkModel(topology, find_paths(topology)), True, int(NO_DATA), 0)


def test_a_job_is_on_each_link_of_the_way_once() -> None:
    """A job at both ends of a line is on both links; one on all three sites is on each of them once."""
    network = line_of_three()
    found = network_now(["a", "b", "c"], network, network.model, (), [[0, 2], [0, 1, 2], [1, 2]])
    links = [(link.one, link.other, link.part, link.jobs) for link in found.links]
    assert links == [("a", "b", 1.0, 2), ("b", "c", 1.0, 3)]
    assert [link.latency_ms for link in found.links] == [2.0, 2.0]
    assert found.nodes[0] == NetworkNode(name="a", sites=("a",))


def test_without_links_what_was_measured_is_told() -> None:
    """Half of a round trip is the latency between two sites; two without either have none."""
    pair = PairMeasured(
        origin="c",
        target="a",
        round_trip_ms=9.0,
        least_ms=8.0,
        bandwidth_bps=1e8,
        round_trips=3,
        bandwidths=1,
        newest_ms=5,
    )
    found = network_now(["a", "b", "c"], None, None, [pair], [[2, 1]])
    assert found.links == [
        NetworkLink(one="a", other="c", latency_ms=4.5, bandwidth_bps=1e8, measured=True),
        NetworkLink(one="b", other="c", jobs=1),
    ]

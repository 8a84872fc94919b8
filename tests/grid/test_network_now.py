"""The network as it is told: its links, how they are, and how many jobs are on each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import networkx as nx

from gridweave.grid.api import KnownNetwork, NetworkLink, NetworkNode, NetworkWay
from gridweave.grid.client.network import graph_of
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.explain.network import network_now
from gridweave.grid.kernels.links import NO_DATA
from gridweave.netmodel.communication import Communication
from gridweave.netmodel.correction import PairMeasured, correct
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import parse_network, topology_of_graph
from gridweave.netmodel.routing import find_paths


def line_of_three() -> GridNetwork:
    """Return three sites in a line, a - b - c."""
    graph: nx.Graph[str] = nx.path_graph(["a", "b", "c"])  # type: ignore[arg-type]
    nx.set_edge_attributes(graph, 2.0, "latency_ms")
    nx.set_edge_attributes(graph, 1e9, "bandwidth_bps")
    topology = topology_of_graph(graph)
    return GridNetwork(NetworkModel(topology, find_paths(topology)), True, int(NO_DATA), 0)


def shown(measured: Sequence[PairMeasured], spread: Sequence[Sequence[int]] = ()) -> KnownNetwork:
    """Return the line as it is shown with these measurements, and jobs with parts at these sites."""
    network = line_of_three()
    return network_now(["a", "b", "c"], network, correct(network.model, measured).model, measured, spread)


def test_a_job_is_on_each_link_of_the_way_once() -> None:
    """A job at both ends of a line is on both links; one on all three sites is on each of them once."""
    found = shown((), [[0, 2], [0, 1, 2], [1, 2]])
    links = [(link.one, link.other, link.part, link.jobs) for link in found.links]
    assert links == [("a", "b", 1.0, 2), ("b", "c", 1.0, 3)]
    assert [link.latency_ms for link in found.links] == [2.0, 2.0]
    assert found.nodes[0] == NetworkNode(name="a", sites=("a",))


def pair(
    origin: str, target: str, round_trip_ms: float | None = None, bandwidth_bps: float | None = None
) -> PairMeasured:
    """Return what was measured of a way, with 2 ms of jitter."""
    return PairMeasured(
        origin=origin,
        target=target,
        round_trip_ms=round_trip_ms,
        least_ms=None if round_trip_ms is None else round_trip_ms - 2.0,
        bandwidth_bps=bandwidth_bps,
        round_trips=3,
        bandwidths=3,
        newest_ms=5,
    )


def test_without_links_what_was_measured_is_told() -> None:
    """A round trip holds both ways, a bandwidth one way; two sites with neither jobs nor measurements have no link."""
    found = network_now(["a", "b", "c"], None, None, [pair("c", "a", 9.0, 1e8)], [[2, 1]])
    back = NetworkWay(latency_ms=3.5, bandwidth_bps=1e8, jitter_ms=2.0)
    assert found.links == [
        NetworkLink(one="a", other="c", latency_ms=3.5, jitter_ms=2.0, measured=True, back=back),
        NetworkLink(one="b", other="c", jobs=1),
    ]


def test_a_link_that_is_a_whole_path_shows_what_was_measured() -> None:
    """The link between a and b has the measured figures; a path of two links is listed on its own."""
    measured = [pair("a", "b", 12.0, 2e8), pair("b", "a", 12.0), pair("a", "c", 30.0, 1e9), pair("c", "a", 30.0)]
    found = shown(measured)
    there, other = found.links
    assert (there.latency_ms, there.jitter_ms, there.bandwidth_bps, there.measured) == (5.0, 2.0, 2e8, True)
    assert there.back == NetworkWay(latency_ms=5.0, bandwidth_bps=1e9, jitter_ms=2.0)
    assert (other.latency_ms, other.bandwidth_bps, other.measured, other.back) == (2.0, 1e9, False, None)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=KnownNetwork) == found
    far = {(path.origin, path.target): path for path in found.paths}["a", "c"]
    assert (far.latency_ms, far.written_latency_ms, far.bandwidth_bps, far.measured) == (15.0, 4.0, 1e9, True)
    assert len(found.paths) == 6


def test_a_wider_path_widens_its_links() -> None:
    """If more came through than modelled, all links of the path have carried it."""
    found = shown([pair("a", "c", bandwidth_bps=5e9)])
    assert [(link.bandwidth_bps, link.measured) for link in found.links] == [(5e9, True)] * 2
    assert [link.back and link.back.bandwidth_bps for link in found.links] == [1e9, 1e9]


def test_a_graph_of_the_answer_is_the_network() -> None:
    """A client's graph has the links in force, and where they are all of what was measured, the same costs."""
    model, measured = line_of_three().model, [pair("a", "b", 12.0, 2e8), pair("b", "a", 12.0, 2e8)]
    graph = graph_of(shown(measured, [[0, 1]]))
    corrected, read = correct(model, measured).model, NetworkModel.of_graph(graph)
    ring = Communication(fraction=0.2, message_bytes=1e5, pattern="ring")
    nodes = {"a": 3, "b": 3}
    assert read.split_factor(ring, nodes) == corrected.split_factor(ring, nodes) > model.split_factor(ring, nodes)
    assert nx.shortest_path_length(graph, "a", "b", weight="latency_ms") == 5.0
    assert (graph.edges["a", "b", 0]["jobs"], graph.edges["a", "b", 0]["measured"]) == (1, True)
    assert [path["written_latency_ms"] for path in graph.graph["measured"]] == [2.0, 2.0]
    assert graph.nodes["a"] == {"sites": ("a",)}


def test_a_graph_of_the_answer_can_be_written_to_a_file() -> None:
    """A file of it in GML is a network with the same links and sites."""
    graph = graph_of(shown([pair("a", "b", 12.0, 2e8), pair("b", "a", 12.0, 2e8)], [[0, 1]]))
    _, topology = parse_network("\n".join(nx.generate_gml(graph)), "now.gml", read_text=str)
    assert topology.sites == ("a", "b", "c")
    assert topology.latency_ms.tolist() == [5.0, 5.0, 2.0, 2.0]


def test_a_link_that_is_down_is_down_in_the_graph() -> None:
    """A link with no part of its bandwidth left carries nothing, one way or both; figures nobody knows are left out."""
    known = KnownNetwork(
        nodes=[NetworkNode(name=name) for name in "abc"],
        links=[
            NetworkLink(one="a", other="b", latency_ms=1.0, bandwidth_bps=1e9, part=0.0, one_way=True),
            NetworkLink(one="b", other="c"),
        ],
    )
    graph = graph_of(known)
    assert list(graph.edges) == [("a", "b", 0), ("b", "c", 1), ("c", "b", 2)]
    assert (graph.edges["a", "b", 0]["up"], graph.edges["a", "b", 0]["bandwidth_bps"]) == (False, 0.0)
    assert not {"latency_ms", "bandwidth_bps"} & graph.edges["b", "c", 1].keys()


def test_links_of_one_cable_have_its_number() -> None:
    """Cables that fail together, and parallel ones, stay so when the graph is read again."""
    graph = nx.MultiDiGraph()
    for one, other, cable in (("a", "b", 0), ("b", "a", 0), ("a", "b", 1), ("b", "a", 1), ("b", "c", 1), ("c", "b", 1)):
        graph.add_edge(one, other, latency_ms=1.0, bandwidth_bps=1e9, cable=cable)
    model = NetworkModel.of_graph(graph)
    known = network_now(["a", "b", "c"], GridNetwork(model, True, int(NO_DATA), 0), model, [], [])
    assert [(link.one, link.other, link.cable) for link in known.links] == [("a", "b", 0), ("a", "b", 1), ("b", "c", 1)]
    read = NetworkModel.of_graph(graph_of(known)).topology.graph
    assert sorted(read.edges(data="cable")) == sorted(model.topology.graph.edges(data="cable"))

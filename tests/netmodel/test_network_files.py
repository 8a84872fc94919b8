"""Networks from TOML, GML, GraphML and generators: parsing, and filling in of missing values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import InputError
from gridweave.netmodel.reading import known_generators, parse_network, topology_of_graph
from gridweave.netmodel.tables import AttachTable, NetTable, parse_bandwidth, show_bandwidth
from gridweave.netmodel.topology import FIBRE_KM_PER_MS, Topology, fibre_latency_ms, great_circle_km
from support.builders import ZOO, no_file


def read(
    text: str, name: str = "net.toml", files: Mapping[str, str] | None = None, sites: list[str] | None = None
) -> Topology:
    """Parse a network; ``files`` supplies the files that it names."""
    return parse_network(text, name, files.__getitem__ if files else no_file, sites)[1]


# -- TOML

TWO_WAYS = """
[net]
routes = "bandwidth"
bandwidth = "2.5 Gbps"
[[net.nodes]]
name = "x"
latitude = 0
longitude = 0
[[net.nodes]]
name = "y"
latitude = 0
longitude = 90
[[net.nodes]]
name = "z"
[[net.links]]
from = "x"
to = "y"
[[net.links]]
from = "y"
to = "z"
latency_ms = 3
bandwidth = "10 Gbit/s"
loss = 0.01
jitter_ms = 1.5
back = {latency_ms = 4, bandwidth_bps = 1e9, loss = 0.0}
[[net.links]]
from = "z"
to = "x"
name = "satellite"
latency_ms = 250
one_way = true
[net.attach]
alpha = "x"
beta = {node = "y", latency_ms = 0.5, bandwidth = "1 Gbps"}
"""


def test_back_overrides_values_of_the_reverse_link() -> None:
    topology = read(TWO_WAYS)
    links = [
        (topology.nodes[one], topology.nodes[other])
        for one, other in zip(topology.source, topology.target, strict=True)
    ]
    assert links == [("x", "y"), ("y", "x"), ("y", "z"), ("z", "y"), ("z", "x"), ("beta", "y"), ("y", "beta")]
    quarter_ms = math.pi / 2 * 6371.0088 * 1.5 / FIBRE_KM_PER_MS
    assert topology.latency_ms.tolist() == pytest.approx([quarter_ms, quarter_ms, 3, 4, 250, 0.5, 0.5])
    assert topology.bandwidth_bps.tolist() == [2.5e9, 2.5e9, 1e10, 1e9, 2.5e9, 1e9, 1e9]
    assert topology.loss.tolist() == [0, 0, 0.01, 0, 0, 0, 0]
    assert topology.jitter_ms.tolist() == [0, 0, 1.5, 1.5, 0, 0, 0]
    assert topology.cable.tolist() == [0, 0, 1, 1, 2, 3, 3]
    assert topology.link_label(4) == "z - x (satellite)"


def test_sites_are_attached_to_their_nodes_or_access_lines() -> None:
    topology = read(TWO_WAYS)
    assert topology.sites == ("alpha", "beta")
    assert [topology.nodes[node] for node in topology.node_of_site] == ["x", "beta"]
    named = read(TWO_WAYS, sites=["z", "beta", "alpha"])
    assert [named.nodes[node] for node in named.node_of_site] == ["z", "beta", "x"]


def test_a_table_keeps_its_settings_and_defaults() -> None:
    table, _ = parse_network(TWO_WAYS, "net.toml", no_file)
    assert isinstance(table, NetTable)
    assert (table.routes, table.exchange, table.contention, table.detour) == ("bandwidth", "synchronous", "none", 1.5)
    assert isinstance(table.attach["beta"], AttachTable)


def test_a_table_can_name_a_graph_file() -> None:
    topology = read('[net]\nfile = "zoo.gml"\ndetour = 2.0\nattach = {a = "AMS", b = "Kiev"}\n', files={"zoo.gml": ZOO})
    plain = read(ZOO, "zoo.gml")
    assert topology.latency_ms[0] == pytest.approx(plain.latency_ms[0] * 2.0 / 1.5)
    assert topology.sites == ("a", "b")


# -- GML and GraphML


def test_topology_zoo_files_are_read() -> None:
    """Bandwidths come from any known attribute; parallel links and equal labels are kept apart."""
    topology = read(ZOO, "zoo.gml")
    assert topology.nodes == ("AMS", "BRU", "FRA (2)", "Kiev", "FRA (4)")
    assert topology.sites == topology.nodes
    there = topology.bandwidth_bps[::2]
    # Nodes may change the order of edges, so they are told by their ends.
    speeds = {topology.link_label(2 * cable): float(there[cable]) for cable in range(6)}
    assert speeds == {
        "AMS - BRU": 1e10,
        "BRU - FRA (2)": 2.5e9,
        "AMS - FRA (2)": 155e6,
        "FRA (2) - Kiev": 1e10,
        "FRA (2) - FRA (4)": 1e9,
    }
    assert len(topology.cables_between("AMS", "BRU")) == 2
    assert (topology.bandwidth_bps[::2] == topology.bandwidth_bps[1::2]).all()


def test_a_default_bandwidth_without_effect_is_remarked() -> None:
    link = "[[net.links]]\nfrom = 'a'\nto = 'b'\nlatency_ms = 1\nbandwidth = '1 Gbps'\n"
    nodes = "[[net.nodes]]\nname = 'a'\n[[net.nodes]]\nname = 'b'\n"
    said = "net.bandwidth has no effect: every link has its own bandwidth"
    assert read(f"[net]\nbandwidth = '10 Gbps'\n{nodes}{link}").remarks == (said,)
    assert read(f"[net]\n{nodes}{link}").remarks == ()


def test_filled_gaps_are_remarked() -> None:
    """The most common bandwidth and the median latency replace missing values."""
    topology = read(ZOO, "zoo.gml")
    label = "FRA (2) - Kiev"
    assert topology.remarks == (
        f"link {label}: no bandwidth given; using 10 Gbps",
        f"link {label}: no latency given, and an end has no position; using the median of the other links, 1.3 ms",
    )
    (kiev,) = topology.cables_between("FRA (2)", "Kiev")
    others = topology.latency_ms[topology.cable != kiev]
    assert topology.latency_ms[topology.cable == kiev].tolist() == [np.median(others)] * 2


def test_latency_follows_the_great_circle() -> None:
    """Amsterdam and Brussels are 173.5 km apart; light in a fibre half as long again takes 1.3 ms."""
    topology = read(ZOO, "zoo.gml")
    (cable, _) = topology.cables_between("AMS", "BRU")
    assert topology.latency_ms[topology.cable == cable][0] == pytest.approx(173.5 * 1.5 / 199.8616, rel=1e-3)


def test_graphml_is_read_like_gml() -> None:
    plain = ZOO.replace(' LinkLabel "155 Mbps"', "")
    graph = nx.parse_gml(plain.replace("graph [", "graph [ multigraph 1", 1), label="id")
    text = "\n".join(nx.generate_graphml(graph))
    one, other = read(text, "zoo.graphml"), read(plain, "zoo.gml")
    assert one.nodes == other.nodes
    assert one.latency_ms.tolist() == pytest.approx(other.latency_ms.tolist())
    assert one.bandwidth_bps.tolist() == other.bandwidth_bps.tolist()


def test_opposite_links_of_a_directed_graph_share_a_cable() -> None:
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("b", "a"), ("c", "b")])
    nx.set_edge_attributes(graph, {edge: 1.0 + place for place, edge in enumerate(graph.edges)}, "latency_ms")
    topology = topology_of_graph(graph, bandwidth_bps=1e9)
    ends = [frozenset((int(one), int(other))) for one, other in zip(topology.source, topology.target, strict=True)]
    for cable in np.unique(topology.cable):
        assert len({ends[link] for link in np.flatnonzero(topology.cable == cable)}) == 1
    assert len(np.unique(topology.cable)) == 2


def test_geant_2012_is_read() -> None:
    """It has 40 nodes, 61 cables with bandwidths, and plausible latencies."""
    path = Path(__file__).parents[3] / "shared" / "topologies" / "Geant2012.gml"
    if not path.is_file():
        pytest.skip("Geant2012.gml of the Internet Topology Zoo is not beside the project")
    topology = read(path.read_text(encoding="utf-8"), path.name)
    assert len(topology.nodes) == 40
    assert len(np.unique(topology.cable)) == 61
    assert set(topology.bandwidth_bps.tolist()) == {155e6, 1e9, 2.5e9, 1e10}
    assert len(topology.remarks) == 1
    assert "PL - UA, PL - BY, MD - RO" in topology.remarks[0]
    assert 0 < topology.latency_ms.min() < 1
    assert 20 < topology.latency_ms.max() < 30
    assert topology.has_map


# -- generators


def generated(**entries: object) -> str:
    """Return a table with a generator."""
    rows = "\n".join(f"{key} = {value}" for key, value in entries.items())
    return f"[net.generator]\n{rows}\n"


def test_a_generator_creates_the_graph() -> None:
    text = generated(name='"cycle_graph"', arguments="{n = 8}", latency_ms=4, bandwidth='"1 Gbps"')
    topology = read(text)
    assert len(topology.nodes) == 8
    assert topology.latency_ms.tolist() == [4.0] * 16
    assert topology.bandwidth_bps.tolist() == [1e9] * 16


def test_generated_graphs_depend_on_the_seed() -> None:
    """Latencies follow the distances on the square."""
    texts = [
        generated(
            name='"waxman_graph"',
            arguments="{n = 30, beta = 0.9, alpha = 0.5}",
            seed=seed,
            side_km=1000,
            bandwidth_bps=1e9,
        )
        for seed in (3, 3, 4)
    ]
    one, same, other = (read(text) for text in texts)
    assert one.latency_ms.tolist() == same.latency_ms.tolist()
    assert one.latency_ms.tolist() != other.latency_ms.tolist()
    assert 0 < one.latency_ms.max() <= fibre_latency_ms(1000 * math.sqrt(2), 1.5)


@pytest.mark.parametrize("name", known_generators())
def test_every_accepted_generator_works(name: str) -> None:
    arguments = {
        "balanced_tree": "{r = 2, h = 3}",
        "barabasi_albert_graph": "{n = 20, m = 2}",
        "barbell_graph": "{m1 = 4, m2 = 2}",
        "connected_watts_strogatz_graph": "{n = 20, k = 4, p = 0.2}",
        "gnm_random_graph": "{n = 20, m = 150}",
        "gnp_random_graph": "{n = 20, p = 0.8}",
        "grid_2d_graph": "{m = 3, n = 4}",
        "hypercube_graph": "{n = 3}",
        "random_geometric_graph": "{n = 30, radius = 1.0}",
        "random_internet_as_graph": "{n = 50}",
        "random_regular_graph": "{d = 4, n = 20}",
        "soft_random_geometric_graph": "{n = 30, radius = 1.5}",
        "waxman_graph": "{n = 20, beta = 1.0, alpha = 5.0}",
    }.get(name, "{n = 9}")
    topology = read(generated(name=f'"{name}"', arguments=arguments, latency_ms=1, bandwidth_bps=1e9))
    assert len(topology.sites) == len(topology.nodes) >= 8


# -- units and distances


@pytest.mark.parametrize(
    ("text", "bandwidth_bps"),
    [
        ("10 Gbps", 1e10),
        ("155Mbit/s", 155e6),
        ("2.5 Gb/s", 2.5e9),
        (" 64 Kbps ", 64e3),
        ("1e3 bps", 1e3),
        ("1 Tbps", 1e12),
    ],
)
def test_bandwidths_are_parsed(text: str, bandwidth_bps: float) -> None:
    assert parse_bandwidth(text) == bandwidth_bps


@pytest.mark.parametrize("text", ["", "10", "10 GB/s", "fast", "-1 Gbps", "1 Pbps", "10 mbps", "1,5 Gbps"])
def test_invalid_bandwidths_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a bandwidth"):
        parse_bandwidth(text)


@given(st.floats(1, 1e15))
def test_formatted_bandwidths_parse_to_four_digits(bandwidth_bps: float) -> None:
    assert parse_bandwidth(show_bandwidth(bandwidth_bps)) == pytest.approx(bandwidth_bps, rel=1e-3)


@given(st.floats(-90, 90), st.floats(-180, 180), st.floats(-90, 90), st.floats(-180, 180))
def test_great_circle_distances_are_symmetric_and_bounded(
    latitude: float, longitude: float, other_latitude: float, other_longitude: float
) -> None:
    there = great_circle_km(latitude, longitude, other_latitude, other_longitude)
    back = great_circle_km(other_latitude, other_longitude, latitude, longitude)
    assert there == pytest.approx(back, abs=1e-6)
    assert 0 <= there <= math.pi * 6371.0088 + 1e-6

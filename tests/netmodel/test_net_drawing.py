"""Pictures of networks: their content, not their appearance."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from matplotlib.figure import Figure

from gridweave.netmodel.drawing import draw_topology
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.topology import Topology


def mapped() -> Topology:
    """Return a network with one node of unknown position."""
    graph = nx.MultiGraph()
    for name, latitude, longitude in (("NL", 52.4, 4.9), ("BE", 50.9, 4.3), ("DE", 50.1, 8.7)):
        graph.add_node(name, Latitude=latitude, Longitude=longitude)
    graph.add_edge("NL", "BE", bandwidth_bps=1e10)
    graph.add_edge("NL", "BE", bandwidth_bps=1e9)
    graph.add_edge("NL", "DE", bandwidth_bps=1e10)
    graph.add_edge("DE", "UA", latency_ms=8.0, bandwidth_bps=1e8)
    return topology_of_graph(graph, attach={"alpha": "NL", "DE": "DE"})


def texts(figure: Figure) -> set[str]:
    """Return the labels and the legend entries."""
    figure.draw_without_rendering()
    return {text.get_text() for text in figure.axes[0].texts} | {
        text.get_text() for text in figure.legends[0].get_texts()
    }


def test_a_map_places_nodes_by_longitude_and_latitude() -> None:
    figure = draw_topology(mapped())
    axes = figure.axes[0]
    assert axes.get_xlabel() == "longitude [degrees]"
    drawn = np.concatenate([np.asarray(points.get_offsets()) for points in axes.collections])
    assert any(np.allclose(point, (4.9, 52.4)) for point in drawn)
    assert len(drawn) == 4
    assert {"NL: alpha", "BE", "DE", "UA", "100 Mbps", "1 Gbps", "10 Gbps", "site", "router"} <= texts(figure)
    assert "router without a position" in texts(figure)
    assert axes.get_title(loc="left") == "graph: 4 nodes, 4 links, 2 sites"


def test_dollar_signs_in_names_are_not_formulas() -> None:
    graph = nx.path_graph([r"$\foo$", "b"])
    nx.set_edge_attributes(graph, 1.0, "latency_ms")
    figure = draw_topology(topology_of_graph(graph, name="$^$", bandwidth_bps=1e9))
    assert r"$\foo$" in texts(figure)
    assert figure.axes[0].get_title(loc="left") == "$^$: 2 nodes, 1 links, 2 sites"


def test_parallel_links_do_not_overlap() -> None:
    lines = draw_topology(mapped()).axes[0].lines
    assert len(lines) == 4
    ends = {tuple(np.round(np.asarray(line.get_xydata()).ravel(), 6)) for line in lines}
    assert len(ends) == 4


def test_links_that_are_down_are_dashed() -> None:
    topology = mapped()
    figure = draw_topology(topology.with_figures(up=topology.cable != 3))
    assert [line.get_linestyle() for line in figure.axes[0].lines].count("--") == 1
    assert "down" in texts(figure)


@pytest.mark.parametrize("nodes", [1, 2, 12, 320])
def test_a_network_without_positions_gets_a_layout_without_axes(nodes: int) -> None:
    """Large networks have no labels."""
    graph = nx.path_graph(nodes)
    nx.set_edge_attributes(graph, 1.0, "latency_ms")
    figure = draw_topology(topology_of_graph(graph, bandwidth_bps=1e9))
    assert not figure.axes[0].axison
    assert len(figure.axes[0].texts) == (nodes if nodes <= 150 else 0)


def test_more_than_five_bandwidths_are_drawn_in_five_classes() -> None:
    graph = nx.path_graph(13)
    nx.set_edge_attributes(graph, 1.0, "latency_ms")
    for number, (_, _, attributes) in enumerate(graph.edges(data=True)):
        attributes["bandwidth_bps"] = 1e9 * (number + 1)
    assert sum(" to " in text for text in texts(draw_topology(topology_of_graph(graph)))) == 5

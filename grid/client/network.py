"""Build a networkx graph from the gateway's description of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gridweave.grid.api import KnownNetwork, NetworkLink, NetworkWay

if TYPE_CHECKING:
    import networkx as nx


def graph_of(network: KnownNetwork) -> nx.MultiDiGraph[str]:
    """Convert a network to a graph that `gridweave.netmodel.model.NetworkModel.of_graph` accepts.

    Unknown values are left out: an edge between two sites without measurements has no ``latency_ms``.
    """
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for node in network.nodes:
        attributes = _without_none(sites=node.sites or None, latitude=node.latitude, longitude=node.longitude)
        graph.add_node(node.name, **attributes)
    for number, link in enumerate(network.links):
        for origin, target, way in _ways(link):
            figures = _without_none(**msgspec.structs.asdict(way))
            if way.bandwidth_bps is not None:
                figures["bandwidth_bps"] = way.bandwidth_bps * link.part
            graph.add_edge(
                origin,
                target,
                graph.number_of_edges(),
                **figures,
                cable=number if link.cable is None else link.cable,
                name=link.name,
                up=link.part > 0,
                jobs=link.jobs,
                measured=link.measured,
            )
    graph.graph["measured"] = [_without_none(**msgspec.structs.asdict(path)) for path in network.paths if path.measured]
    return graph


def _ways(link: NetworkLink) -> list[tuple[str, str, NetworkWay]]:
    there = NetworkWay(**{name: getattr(link, name) for name in NetworkWay.__struct_fields__})
    ways = [(link.one, link.other, there)]
    return ways if link.one_way else [*ways, (link.other, link.one, link.back or there)]


def _without_none(**attributes: Any) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}

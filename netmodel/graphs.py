"""Networks out of graphs of networkx, as the Internet Topology Zoo and others write them in GML and GraphML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from gridweave.errors import InputError
from gridweave.netmodel.assemble import LinkRow, NodeRow, Rows
from gridweave.netmodel.problems import Reporter
from gridweave.netmodel.units import PREFIXES, parse_bandwidth

if TYPE_CHECKING:
    import networkx as nx

FORMATS = (".gml", ".graphml")
_LATITUDE = ("latitude", "lat")
_LONGITUDE = ("longitude", "lon", "long", "lng")
_NODE_TAG = "{http://graphml.graphdrawing.org/xmlns}node"


def parse_graph(text: str, suffix: str, name: str) -> nx.Graph[Any]:
    """Read a graph.

    Parameters
    ----------
    text : str
        Of the file.
    suffix : str
        ``.gml`` or ``.graphml``.
    name : str
        Of the file.

    Returns
    -------
    networkx.Graph
        Or one of its kin: directed, or with parallel edges.

    Raises
    ------
    InputError
        If it is none.
    """
    import networkx as nx

    kind = {".gml": "GML", ".graphml": "GraphML"}.get(suffix.lower())
    if kind is None:
        raise InputError(f"{name}: has no suffix of a graph; use {' or '.join(FORMATS)}, or a table in .toml")
    try:
        return _parse_gml(text) if kind == "GML" else _parse_graphml(text)
    except (nx.NetworkXException, ElementTree.ParseError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{name}: is no {kind} that can be read: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InputError(f"{name}: is no {kind} that can be read: it is nested too deeply") from None


def _parse_gml(text: str) -> nx.Graph[Any]:
    """Read GML; files with parallel edges often do not say that they have some."""
    import networkx as nx

    try:
        return nx.parse_gml(text, label="id")
    except nx.NetworkXError as error:
        if not re.match(r"edge .* is duplicated", str(error)):
            raise
        return nx.parse_gml(re.sub(r"(?m)^(\s*graph\s*\[)", r"\1 multigraph 1 ", text, count=1), label="id")


def _parse_graphml(text: str) -> nx.Graph[Any]:
    """Read GraphML; an edge to a node that is not there would make one."""
    import networkx as nx

    declared = {element.get("id") for element in ElementTree.fromstring(text).iter(_NODE_TAG)}
    graph = nx.parse_graphml(text)
    for one, other in graph.edges():
        for end in (one, other):
            if str(end) not in declared:
                raise InputError(f"link {one} - {other}: there is no node {end!r}")
    return graph


def rows_of_graph(graph: nx.Graph[Any], name: str, report: Reporter) -> Rows:
    """Return the nodes and links of a graph; an edge without a direction is a link each way.

    Parameters
    ----------
    graph : networkx.Graph
        Or one of its kin. Nodes may have Latitude and Longitude; edges latency_ms, bandwidth_bps (or the Topology Zoo's
        LinkSpeedRaw, or LinkSpeed with LinkSpeedUnits, or a LinkLabel that is a speed), loss and jitter_ms.
    name : str
        The file, or what else it came from.
    report : Reporter

    Returns
    -------
    Rows
    """
    labels = _labels(graph)
    rows = Rows(name, fills_gaps=True, allows_parallel=True)
    for number, (node, attributes) in enumerate(graph.nodes(data=True)):
        lower = {str(key).lower(): value for key, value in attributes.items()}
        latitude, longitude = (
            _number(next((lower[key] for key in keys if key in lower), None), f"node {labels[node]}: {keys[0]}", report)
            for keys in (_LATITUDE, _LONGITUDE)
        )
        rows.nodes.append(NodeRow(("nodes", number), labels[node], latitude, longitude))
    for number, (one, other, attributes) in enumerate(graph.edges(data=True)):
        rows.links.append(_link(number, labels[one], labels[other], attributes, report))
        if not graph.is_directed():
            there = rows.links[-1]
            rows.links.append(
                LinkRow(
                    there.path,
                    there.target,
                    there.origin,
                    number,
                    there.name,
                    there.latency_ms,
                    there.bandwidth_bps,
                    there.loss,
                    there.jitter_ms,
                    is_back=True,
                )
            )
    if graph.is_directed():
        _pair_cables(rows)
    return rows


def _pair_cables(rows: Rows) -> None:
    """Let two links between the same nodes, one each way, be one cable, in the order in which they stand."""
    waiting: dict[tuple[str, str], list[LinkRow]] = {}
    for row in rows.links:
        others = waiting.get((row.target, row.origin))
        if others:
            row.cable = others.pop(0).cable
        else:
            waiting.setdefault((row.origin, row.target), []).append(row)


def _labels(graph: nx.Graph[Any]) -> dict[Any, str]:
    """Return what nodes are called: their labels, with the id behind where several have the same."""
    labels = {node: str(attributes.get("label", _plain(node))) for node, attributes in graph.nodes(data=True)}
    often = Counter(labels.values())
    return {node: label if often[label] == 1 else f"{label} ({_plain(node)})" for node, label in labels.items()}


def _plain(node: object) -> str:
    """Return the name of a node: generators number them, or give them places on a grid."""
    return "-".join(map(str, node)) if isinstance(node, tuple) else str(node)


def _link(number: int, origin: str, target: str, attributes: Mapping[str, Any], report: Reporter) -> LinkRow:
    row = LinkRow(("links", number), origin, target, number)
    if "name" in attributes:
        row.name = str(attributes["name"])
    label = f"link {row.label}"
    row.latency_ms = _number(attributes.get("latency_ms"), f"{label}: latency_ms", report)
    row.bandwidth_bps = _speed(attributes, label, report)
    row.loss = _number(attributes.get("loss"), f"{label}: loss", report) or 0.0
    row.jitter_ms = _number(attributes.get("jitter_ms"), f"{label}: jitter_ms", report) or 0.0
    return row


def _speed(attributes: Mapping[str, Any], label: str, report: Reporter) -> float | None:
    """Return a link's bits per second, from the first attribute that tells; None if none does."""
    for key in ("bandwidth_bps", "LinkSpeedRaw"):
        if _first(attributes.get(key)) not in (None, ""):
            return _number(attributes[key], f"{label}: {key}", report)
    speed = _first(attributes.get("LinkSpeed"))
    if speed not in (None, ""):
        unit = str(_first(attributes.get("LinkSpeedUnits")) or "")
        prefix = {"K": "k", "m": "M", "g": "G", "t": "T"}.get(unit, unit)
        if prefix not in PREFIXES:
            report.add((), f"{label}: LinkSpeedUnits is {unit!r}; one of K, M, G and T, for bits per second")
            return 1.0
        value = _number(speed, f"{label}: LinkSpeed", report)
        return None if value is None else value * PREFIXES[prefix]
    texts = attributes.get("bandwidth", attributes.get("LinkLabel"))
    for text in texts if isinstance(texts, list) else [texts]:
        try:
            return parse_bandwidth(str(text))
        except InputError as error:
            if "bandwidth" in attributes:
                report.add((), f"{label}: bandwidth: {error}")
                return 1.0
    return None


def _first(value: Any) -> Any:
    """Return the first of several values that a file gives for one attribute."""
    return value[0] if isinstance(value, list) and value else value


def _number(value: Any, what: str, report: Reporter) -> float | None:
    value = _first(value)
    if value is None or value == "":
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        report.add((), f"{what} is {value!r}; a number")
        return 0.0 if "bps" not in what and "Speed" not in what else 1.0

"""From tables, texts and graphs to a topology, with all that is wrong told at once.

A network is written down as tables, node by node and link by link; or is a graph of networkx: from a file in GML or
GraphML, as the Internet Topology Zoo and others write them, or made by a generator, for what-if questions and tests of
scale.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import msgspec

from gridweave.errors import InputError, not_known
from gridweave.netmodel.assemble import LinkRow, NodeRow, WrittenNetwork, assemble
from gridweave.netmodel.changes import written_changes
from gridweave.netmodel.tables import (
    CONTENTIONS,
    DETOUR,
    EXCHANGES,
    PREFIXES,
    ROUTES,
    AttachTable,
    BackTable,
    ChangeTable,
    GeneratorTable,
    KeyPath,
    LinkTable,
    NetTable,
    NodeTable,
    Problems,
    Reporter,
    parse_bandwidth,
    speed_of,
)
from gridweave.netmodel.topology import Topology, fibre_latency_ms, named

if TYPE_CHECKING:
    import networkx as nx


FORMATS = (".gml", ".graphml")
_LATITUDE = ("latitude", "lat")
_LONGITUDE = ("longitude", "lon", "long", "lng")
_NODE_TAG = "{http://graphml.graphdrawing.org/xmlns}node"


def parse_graph(text: str, suffix: str, name: str) -> nx.Graph[Any]:
    """Read a graph of networkx, of whichever kind, from the text of a ``.gml`` or ``.graphml`` file."""
    import networkx as nx

    kind = {".gml": "GML", ".graphml": "GraphML"}.get(suffix.lower())
    if kind is None:
        raise InputError(f"{name}: the suffix is not that of a graph; use {' or '.join(FORMATS)}, or a table in .toml")
    try:
        return _parse_gml(text) if kind == "GML" else _parse_graphml(text)
    except (nx.NetworkXException, ElementTree.ParseError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{name}: cannot be read as {kind}: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InputError(f"{name}: cannot be read as {kind}: it is nested too deeply") from None


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


def rows_of_graph(graph: nx.Graph[Any], name: str, report: Reporter) -> WrittenNetwork:
    """Return the nodes and links of a graph; an edge without a direction is a link each way.

    Nodes may have Latitude and Longitude, and ``sites``, one name or several; edges latency_ms, bandwidth_bps (or the
    Topology Zoo's LinkSpeedRaw, or LinkSpeed with LinkSpeedUnits, or a LinkLabel that is a speed), loss, jitter_ms,
    name, up and cable. Links are listed in the order of the keys of their edges, if these are different whole numbers.
    """
    labels = _labels(graph)
    rows = WrittenNetwork(name, fills_gaps=True, allows_parallel=True)
    for number, (node, attributes) in enumerate(graph.nodes(data=True)):
        lower = {str(key).lower(): value for key, value in attributes.items()}
        latitude, longitude = (
            _number(next((lower[key] for key in keys if key in lower), None), f"node {labels[node]}: {keys[0]}", report)
            for keys in (_LATITUDE, _LONGITUDE)
        )
        rows.nodes.append(NodeRow(("nodes", number), labels[node], latitude, longitude))
        _attach_sites(rows, labels[node], lower.get("sites", ()), report)
    edges = _listed_edges(graph)
    for number, (one, other, attributes) in enumerate(edges):
        rows.links.append(_link(number, labels[one], labels[other], attributes, report))
        if not graph.is_directed():
            rows.links.append(rows.links[-1].back())
    if edges and all(_is_whole(attributes.get("cable")) for _, _, attributes in edges):
        _number_cables(rows, [attributes["cable"] for _, _, attributes in edges])
    elif graph.is_directed():
        _pair_cables(rows)
    return rows


def _attach_sites(rows: WrittenNetwork, node: str, sites: Any, report: Reporter) -> None:
    """Note which sites are at a node: one name, or a list of names."""
    names = [sites] if isinstance(sites, str) else sites
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        report.add((), f"node {node}: sites is {sites!r:.100}; the name of a site, or a list of names")
        return
    for name in names:
        if rows.attached.setdefault(name, node) != node:
            report.add((), f"site {name} is at two nodes, {rows.attached[name]} and {node}; expected one")


def _listed_edges(graph: nx.Graph[Any]) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Return the edges by their keys if these number them, or else as the graph lists them."""
    if not graph.is_multigraph():
        return list(graph.edges(data=True))
    edges = list(graph.edges(keys=True, data=True))
    keys = [key for _, _, key, _ in edges]
    if all(map(_is_whole, keys)) and len(set(keys)) == len(keys):
        edges.sort(key=itemgetter(2))
    return [(one, other, attributes) for one, other, _, attributes in edges]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number_cables(rows: WrittenNetwork, cables: Sequence[int]) -> None:
    """Renumber the edges' cables from 0 in ascending order; a link and its reverse stay on the same cable."""
    number = {cable: place for place, cable in enumerate(sorted(set(cables)))}
    for row in rows.links:
        row.cable = number[cables[row.cable]]


def _pair_cables(rows: WrittenNetwork) -> None:
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
    row.is_up = bool(attributes.get("up", True))
    if attributes.get("up", True) not in (True, False):
        report.add((), f"{label}: up is {attributes['up']!r:.100}; true or false")
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
    except (TypeError, ValueError, OverflowError):
        report.add((), f"{what} is {value!r:.100}; a number")
        return 0.0 if "bps" not in what and "Speed" not in what else 1.0


GENERATORS = (
    "balanced_tree",
    "barabasi_albert_graph",
    "barbell_graph",
    "complete_graph",
    "connected_watts_strogatz_graph",
    "cycle_graph",
    "gnm_random_graph",
    "gnp_random_graph",
    "grid_2d_graph",
    "hypercube_graph",
    "internet_as_graph",
    "path_graph",
    "random_geometric_graph",
    "random_regular_graph",
    "random_internet_as_graph",
    "star_graph",
    "soft_random_geometric_graph",
    "waxman_graph",
    "wheel_graph",
)
"""Functions of networkx that may be named, of those that it has."""


def known_generators() -> list[str]:
    """Return the names of the generators that the installed networkx has."""
    import networkx as nx

    return [name for name in GENERATORS if hasattr(nx, name)]


def generated_rows(table: GeneratorTable, name: str, detour: float, report: Reporter) -> WrittenNetwork | None:
    """Make a network; None if the function is not known or refuses its arguments."""
    graph = _generated_graph(table, report)
    if graph is None:
        return None
    rows = rows_of_graph(graph, name, report)
    rows.fills_gaps = False
    bandwidth_bps = speed_of(table.bandwidth_bps, table.bandwidth, ("generator",), report)
    for row in rows.links:
        row.bandwidth_bps, row.loss, row.jitter_ms = bandwidth_bps, table.loss, table.jitter_ms
    _set_latency(table, rows, graph, detour, report)
    return rows


def _generated_graph(table: GeneratorTable, report: Reporter) -> Any:
    """Return what a function of networkx makes of its arguments, or None."""
    import networkx as nx

    if table.name not in known_generators():
        report.add(("generator", "name"), not_known(table.name, known_generators()))
        return None
    function = getattr(nx, table.name)
    arguments = dict(table.arguments)
    if "seed" in inspect.signature(function).parameters:
        arguments.setdefault("seed", table.seed)
    try:
        return function(**arguments)
    except Exception as error:  # networkx refuses arguments with errors of every kind
        own = ("seed", "create_using", "backend", "backend_kwargs")
        takes = [key for key in inspect.signature(function).parameters if key not in own]
        problem = " ".join(str(error).split()) or type(error).__name__
        report.add(("generator", "arguments"), f"{table.name} refuses them: {problem}; it takes {named(takes)}")
        return None


def _set_latency(table: GeneratorTable, rows: WrittenNetwork, graph: Any, detour: float, report: Reporter) -> None:
    """Give all links the latency that was said, or that of their lengths on a square."""
    if table.latency_ms is not None:
        if table.side_km is not None:
            report.add(("generator", "side_km"), "is given together with latency_ms; leave one of them out")
        for row in rows.links:
            row.latency_ms = table.latency_ms
        return
    places = {
        row.name: attributes.get("pos") for row, (_, attributes) in zip(rows.nodes, graph.nodes(data=True), strict=True)
    }
    if table.side_km is None or not 0 < table.side_km < math.inf:
        wrong = "is missing" if table.side_km is None else f"is {table.side_km:g}"
        report.add(("generator", "latency_ms"), f"{wrong}; give latency_ms, or side_km > 0 where nodes have positions")
    elif any(place is None for place in places.values()):
        report.add(("generator", "side_km"), f"{table.name} gives its nodes no positions; give latency_ms")
    for row in rows.links:
        one, other = places[row.origin], places[row.target]
        length = math.dist(one, other) if one is not None and other is not None else 0.0
        row.latency_ms = fibre_latency_ms(length * (table.side_km or 0.0), detour)


TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
"""What people call the types that msgspec names."""

_LISTS: dict[str, type[msgspec.Struct]] = {"nodes": NodeTable, "links": LinkTable, "changes": ChangeTable}


def _elements(listed: object, key: str, report: Reporter) -> list[Any]:
    if not isinstance(listed, list):
        report.add((key,), f"is {listed!r}; a list of tables, [[net.{key}]]")
        return []
    elements = [_element(value, _LISTS[key], (key, number), report) for number, value in enumerate(listed)]
    return [element for element in elements if element is not None]


def read_table(raw: dict[str, Any], report: Reporter) -> NetTable:
    """Read the table ``[net]`` of a file; what is unknown, missing or of a wrong type is told, and is as if left out.

    A node or a link that is refused is there all the same, if its name or its ends can be read, so that nothing else is
    found wrong for lack of it.
    """
    lists: dict[str, Any] = {key: _elements(raw.get(key, []), key, report) for key in _LISTS}
    attach = raw.get("attach", {})
    if isinstance(attach, dict):
        entries = {site: _element(value, AttachTable, ("attach", site), report) for site, value in attach.items()}
        lists["attach"] = {site: entry for site, entry in entries.items() if entry is not None}
    known = {one.encode_name: one for one in msgspec.structs.fields(NetTable)}
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in known:
            report.add((key,), f"is not known{meant(key, known)}; known are {', '.join(known)}")
        elif key not in lists:
            alone = _element({key: value}, NetTable, (), report)
            if alone is not None:
                values[key] = getattr(alone, known[key].name)
    return NetTable(**values, **lists)


def _element(value: object, kind: type[msgspec.Struct], path: KeyPath, report: Reporter) -> Any:
    """Read one table; say in plain words what is wrong with it."""
    if kind is AttachTable and isinstance(value, str):
        return value
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        keys = re.findall(r"[A-Za-z_]\w*", place)
        label = ""
        if kind is LinkTable and isinstance(value, dict):
            label = f"link {value.get('from', '?')} - {value.get('to', '?')}: "
        known = [one.encode_name for one in msgspec.structs.fields(kind)]
        report.add((*path, *keys), label + _told(message, known))
        return _stand_in(value, kind)


def _stand_in(value: object, kind: type[msgspec.Struct]) -> NodeTable | LinkTable | None:
    """Return what keeps the place of a node or a link that is refused, with numbers that nobody will complain of."""
    if not isinstance(value, dict):
        return None
    if kind is NodeTable and isinstance(value.get("name"), str):
        return NodeTable(name=value["name"], latitude=0.0, longitude=0.0)
    if kind is LinkTable and isinstance(value.get("from"), str) and isinstance(value.get("to"), str):
        name = value.get("name")
        return LinkTable(
            origin=value["from"],
            target=value["to"],
            name=name if isinstance(name, str) else "",
            latency_ms=0.0,
            bandwidth_bps=1.0,
        )
    return None


def _told(message: str, known: list[str]) -> str:
    """Say in plain words what msgspec says."""
    quoted = re.findall(r"`([^`]*)`", message)
    if "unknown field" in message:
        return f"{quoted[0]!r} is not known{meant(quoted[0], known)}; known are {', '.join(known)}"
    if "missing required field" in message:
        return f"{quoted[0]} is missing"
    if message.startswith("Expected") and len(quoted) == 2:
        needed = " or ".join(TYPE_WORDS.get(name, name) for name in quoted[0].split(" | ") if name != "null")
        return f"is {TYPE_WORDS.get(quoted[1], quoted[1])}; {needed} is needed"
    return message[:1].lower() + message[1:]


def meant(key: str, known: Iterable[str]) -> str:
    """Return which known key is nearest to one that is not, in words; nothing if none is near."""
    close = difflib.get_close_matches(key, list(known), 1)
    return f" (perhaps {close[0]} was meant)" if close else ""


def rows_of(table: NetTable, name: str, report: Reporter) -> WrittenNetwork:
    """Return the nodes and links that are written in a table."""
    rows = WrittenNetwork(
        name, detour=table.detour, bandwidth_bps=speed_of(table.bandwidth_bps, table.bandwidth, (), report)
    )
    rows.nodes = [
        NodeRow(("nodes", number), node.name, node.latitude, node.longitude) for number, node in enumerate(table.nodes)
    ]
    for number, link in enumerate(table.links):
        rows.links += _both_ways(link, number, report)
    return rows


def _both_ways(link: LinkTable, number: int, report: Reporter) -> list[LinkRow]:
    """Return the links of a cable, one for each direction in which it is used."""
    path: KeyPath = ("links", number)
    row = LinkRow(
        path=path,
        origin=link.origin,
        target=link.target,
        cable=number,
        name=link.name,
        latency_ms=link.latency_ms,
        bandwidth_bps=_link_speed(link.bandwidth_bps, link.bandwidth, link, path, report),
        loss=link.loss,
        jitter_ms=link.jitter_ms,
    )
    if link.one_way:
        if link.back is not None:
            report.add((*path, "back"), f"link {row.label}: is one way, and has a way back; leave out one of them")
        return [row]
    return [row, _way_back(link, row, report)]


def _way_back(link: LinkTable, row: LinkRow, report: Reporter) -> LinkRow:
    """Return the way back over a cable: as the way there, but for what is said of it."""
    back, path = link.back or BackTable(), (*row.path, "back")
    back_bps = _link_speed(back.bandwidth_bps, back.bandwidth, link, path, report)
    there = row.back()
    if link.back is not None:
        there.path = path
    for field in ("latency_ms", "loss", "jitter_ms"):
        if getattr(back, field) is not None:
            setattr(there, field, getattr(back, field))
    if back_bps is not None:
        there.bandwidth_bps = back_bps
    return there


def _link_speed(bps: float | None, text: str | None, link: LinkTable, path: KeyPath, report: Reporter) -> float | None:
    return speed_of(bps, text, path, report, f"link {link.origin} - {link.target}: ")


ReadText = Callable[[str], str]
"""From the name of a file that a table names to its text; raises InputError if it cannot be read."""

TOML = ".toml"


def parse_network(
    text: str, name: str, read_text: ReadText, sites: Sequence[str] | None = None
) -> tuple[NetTable, Topology]:
    """Read a network out of the text of a file.

    Parameters
    ----------
    name : str
        Of the file; its suffix tells the format: .toml (with a table ``[net]``, as in a scenario), .gml or .graphml.
    read_text : callable
        Reads the file that a table names.
    sites : sequence of str, optional
        If left out: those of ``[net.attach]``, or every node.

    Raises
    ------
    ScenarioError
        With all that is wrong with the network.
    InputError
        If the text is of no such format.

    Examples
    --------
    >>> text = '''
    ... [net]
    ... nodes = [{name = "a"}, {name = "b"}]
    ... links = [{from = "a", to = "b", latency_ms = 5, bandwidth = "10 Gbps"}]
    ... '''
    >>> table, topology = parse_network(text, "two.toml", read_text=str)
    >>> topology.sites, topology.latency_ms.tolist(), topology.bandwidth_bps.tolist()
    (('a', 'b'), [5.0, 5.0], [10000000000.0, 10000000000.0])
    """
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    problems = Problems(name)
    if suffix == TOML:
        table = read_table(raw_net(text, name)["net"], problems)
    elif suffix in FORMATS:
        table = NetTable(file=name)
        given, read_text = text, lambda _: given
    else:
        raise InputError(f"{name}: the suffix is not that of a network; use {TOML}, {' or '.join(FORMATS)}")
    topology = build_topology(table, name, read_text, problems, sites)
    problems.raise_if_any()
    assert topology is not None
    return table, topology


def raw_net(text: str, name: str) -> dict[str, Any]:
    """Return what a file in TOML holds, unread; InputError if it has no table ``[net]``."""
    try:
        raw: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: is not TOML: {' '.join(str(error).split())}") from None
    if not isinstance(raw.get("net"), dict):
        raise InputError(f"{name}: has no table [net]")
    return raw


def topology_of_graph(
    graph: nx.Graph[Any],
    *,
    name: str = "graph",
    sites: Sequence[str] | None = None,
    attach: Mapping[str, str | AttachTable] | None = None,
    detour: float = DETOUR,
    bandwidth_bps: float | None = None,
) -> Topology:
    """Return the topology of a graph of networkx.

    Parameters
    ----------
    graph : networkx.Graph, DiGraph, MultiGraph or MultiDiGraph
        With the attributes that `gridweave.netmodel.reading.rows_of_graph` reads, of which each edge needs a latency
        (or its nodes positions) and a bandwidth. The graph of a `Topology` gives the same topology again.
    sites : sequence of str, optional
        If left out: those of ``attach``, else those that nodes name, else every node.
    attach : mapping from str to str or AttachTable, optional
        Site to node; before what nodes say.
    detour, bandwidth_bps : float
        As in `gridweave.netmodel.tables.NetTable`.

    Raises
    ------
    ScenarioError
        With all that is wrong.
    InputError
        If it is no graph.

    Examples
    --------
    >>> import networkx as nx
    >>> graph = nx.cycle_graph(["a", "b", "c"])
    >>> nx.set_edge_attributes(graph, 5.0, "latency_ms")
    >>> topology_of_graph(graph, bandwidth_bps=1e9).sites
    ('a', 'b', 'c')
    """
    import networkx as nx

    if not isinstance(graph, nx.Graph):
        raise InputError(f"{name}: is a {type(graph).__name__}; expected a graph of networkx")
    problems = Problems(name)
    rows = rows_of_graph(graph, name, problems)
    rows.fills_gaps = False
    rows.detour, rows.bandwidth_bps = detour, bandwidth_bps
    topology = assemble(rows, sites, attach or {}, problems)
    problems.raise_if_any()
    assert topology is not None
    return topology


def build_topology(
    table: NetTable, name: str, read_text: ReadText, report: Reporter, sites: Sequence[str] | None = None
) -> Topology | None:
    """Return the topology of a table, as for `parse_network`; None if there is no telling what was meant.

    Every problem is told, by paths within the table.
    """
    check_settings(table, report)
    rows = _source_rows(table, name, read_text, report)
    if rows is None:
        return None
    rows.detour = table.detour
    rows.bandwidth_bps = speed_of(table.bandwidth_bps, table.bandwidth, (), report)
    topology = assemble(rows, sites, table.attach, report)
    if topology is not None:
        written_changes(table.changes, topology, report)
    return topology


def _source_rows(table: NetTable, name: str, read_text: ReadText, report: Reporter) -> WrittenNetwork | None:
    """Return what the one source of a network says."""
    sources = [key for key in ("file", "generator", "nodes") if getattr(table, key)]
    if table.links and not table.nodes:
        sources.append("links")
    if len(sources) != 1:
        wrong = f"has {' and '.join(sources)}" if sources else "has no source"
        report.add((), f"{wrong}; a network comes from one of file, generator, and nodes with links")
        return None
    if sources == ["links"]:
        report.add(("links",), "are given without nodes; name the nodes in [[net.nodes]]")
        return None
    if table.generator is not None:
        return generated_rows(table.generator, name, table.detour, report)
    if table.file is None:
        return rows_of(table, name, report)
    try:
        text = read_text(table.file)
        graph = parse_graph(text, table.file[max(0, table.file.rfind(".")) :], table.file)
    except InputError as error:
        report.add(("file",) if table.file != name else (), str(error).removeprefix(f"{name}: "))
        return None
    return rows_of_graph(graph, name, report)


def check_settings(table: NetTable, report: Reporter) -> None:
    """Check what a table says beside its nodes and links."""
    for key, known in (("routes", ROUTES), ("exchange", EXCHANGES), ("contention", CONTENTIONS)):
        if getattr(table, key) not in known:
            report.add((key,), not_known(getattr(table, key), known))
    for key, low, right in (
        ("detour", 1.0, "a factor, from 1 up"),
        ("local_latency_ms", 0.0, "milliseconds, from 0 up"),
        ("local_bandwidth_bps", 1.0, "bits per second, from 1 up"),
        ("segment_bytes", 1, "bytes, from 1 up"),
        ("k", 1, "routes, from 1 up"),
    ):
        value = getattr(table, key)
        if isinstance(value, int) and abs(value) >= 2**63:  # TOML has whole numbers of any size
            report.add((key,), f"has more than 64 bits; {right}")
        elif not low <= value < math.inf:
            report.add((key,), f"is {value:g}; {right}")
    if table.failures is not None:
        for key in ("mean_up_ms", "mean_down_ms"):
            value = getattr(table.failures, key)
            if not 0 < value < math.inf:
                report.add(("failures", key), f"is {value:g}; milliseconds, above 0")
        if not 0 <= table.failures.factor < 1:
            report.add(
                ("failures", "factor"), f"is {table.failures.factor:g}; a part of the bandwidth, from 0 to below 1"
            )

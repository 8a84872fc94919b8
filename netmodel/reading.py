"""Build topologies from tables, texts and graphs, and report all problems at once.

A network is specified by tables of nodes and links, or by a networkx graph. Graphs come from GML or GraphML files, such
as those of the Internet Topology Zoo, or from a generator, for what-if questions and scaling tests.
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
    """Parse the text of a ``.gml`` or ``.graphml`` file into a networkx graph."""
    import networkx as nx

    kind = {".gml": "GML", ".graphml": "GraphML"}.get(suffix.lower())
    if kind is None:
        raise InputError(f"{name}: the suffix names no graph format; use {' or '.join(FORMATS)}, or a table in .toml")
    try:
        return _parse_gml(text) if kind == "GML" else _parse_graphml(text)
    except (nx.NetworkXException, ElementTree.ParseError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{name}: cannot be read as {kind}: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InputError(f"{name}: cannot be read as {kind}: it is nested too deeply") from None


def _parse_gml(text: str) -> nx.Graph[Any]:
    """Parse GML; a file with parallel edges often lacks the ``multigraph`` flag, so add it if needed."""
    import networkx as nx

    try:
        return nx.parse_gml(text, label="id")
    except nx.NetworkXError as error:
        if not re.match(r"edge .* is duplicated", str(error)):
            raise
        return nx.parse_gml(re.sub(r"(?m)^(\s*graph\s*\[)", r"\1 multigraph 1 ", text, count=1), label="id")


def _parse_graphml(text: str) -> nx.Graph[Any]:
    """Parse GraphML; raise InputError if an edge names an undeclared node, which networkx would silently create."""
    import networkx as nx

    declared = {element.get("id") for element in ElementTree.fromstring(text).iter(_NODE_TAG)}
    graph = nx.parse_graphml(text)
    for origin, target in graph.edges():
        for end in (origin, target):
            if str(end) not in declared:
                raise InputError(f"link {origin} - {target}: there is no node {end!r}")
    return graph


def rows_of_graph(graph: nx.Graph[Any], name: str, report: Reporter) -> WrittenNetwork:
    """Convert a graph to rows of nodes and links; an undirected edge becomes a link in each direction.

    Nodes can have the attributes Latitude, Longitude and ``sites`` (one name or several). Edges can have latency_ms,
    bandwidth_bps (or the Topology Zoo's LinkSpeedRaw, or LinkSpeed with LinkSpeedUnits, or a LinkLabel with a
    bandwidth), loss, jitter_ms, name, up and cable. If the edge keys are distinct integers, links are in the order of
    these keys.
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
    for number, (origin, target, attributes) in enumerate(edges):
        rows.links.append(_link(number, labels[origin], labels[target], attributes, report))
        if not graph.is_directed():
            rows.links.append(rows.links[-1].back())
    if edges and all(_is_whole(attributes.get("cable")) for _, _, attributes in edges):
        _number_cables(rows, [attributes["cable"] for _, _, attributes in edges])
    elif graph.is_directed():
        _pair_cables(rows)
    return rows


def _attach_sites(rows: WrittenNetwork, node: str, sites: Any, report: Reporter) -> None:
    """Record the sites at a node, given as one name or a list of names."""
    names = [sites] if isinstance(sites, str) else sites
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        report.add((), f"node {node}: sites is {sites!r:.100}; expected the name of a site, or a list of names")
        return
    for name in names:
        if rows.attached.setdefault(name, node) != node:
            report.add((), f"site {name} is at two nodes, {rows.attached[name]} and {node}; expected one")


def _listed_edges(graph: nx.Graph[Any]) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Return the edges, ordered by their keys if these are distinct integers, otherwise in graph order."""
    if not graph.is_multigraph():
        return list(graph.edges(data=True))
    edges = list(graph.edges(keys=True, data=True))
    keys = [key for _, _, key, _ in edges]
    if all(map(_is_whole, keys)) and len(set(keys)) == len(keys):
        edges.sort(key=itemgetter(2))
    return [(origin, target, attributes) for origin, target, _, attributes in edges]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number_cables(rows: WrittenNetwork, cables: Sequence[int]) -> None:
    """Renumber the edges' cables from 0 in ascending order; a link and its reverse stay on the same cable."""
    number = {cable: index for index, cable in enumerate(sorted(set(cables)))}
    for row in rows.links:
        row.cable = number[cables[row.cable]]


def _pair_cables(rows: WrittenNetwork) -> None:
    """Put each link and the next unpaired link in the opposite direction on the same cable, in listed order."""
    waiting: dict[tuple[str, str], list[LinkRow]] = {}
    for row in rows.links:
        others = waiting.get((row.target, row.origin))
        if others:
            row.cable = others.pop(0).cable
        else:
            waiting.setdefault((row.origin, row.target), []).append(row)


def _labels(graph: nx.Graph[Any]) -> dict[Any, str]:
    """Return a unique name for each node: its label, followed by its id if several nodes have the same label."""
    labels = {node: str(attributes.get("label", _plain(node))) for node, attributes in graph.nodes(data=True)}
    count = Counter(labels.values())
    return {node: label if count[label] == 1 else f"{label} ({_plain(node)})" for node, label in labels.items()}


def _plain(node: object) -> str:
    """Format a node id as a name; some generators use tuples such as grid positions as ids."""
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
        report.add((), f"{label}: up is {attributes['up']!r:.100}; expected true or false")
    return row


def _speed(attributes: Mapping[str, Any], label: str, report: Reporter) -> float | None:
    """Return a link's bandwidth in bits per second from the first attribute that specifies it; None if unspecified."""
    for key in ("bandwidth_bps", "LinkSpeedRaw"):
        if _first(attributes.get(key)) not in (None, ""):
            return _number(attributes[key], f"{label}: {key}", report)
    speed = _first(attributes.get("LinkSpeed"))
    if speed not in (None, ""):
        unit = str(_first(attributes.get("LinkSpeedUnits")) or "")
        prefix = {"K": "k", "m": "M", "g": "G", "t": "T"}.get(unit, unit)
        if prefix not in PREFIXES:
            report.add((), f"{label}: LinkSpeedUnits is {unit!r}; expected K, M, G or T, prefixes of bits per second")
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
    """Return the first value of an attribute that can have several values."""
    return value[0] if isinstance(value, list) and value else value


def _number(value: Any, what: str, report: Reporter) -> float | None:
    value = _first(value)
    if value is None or value == "":
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        report.add((), f"{what} is {value!r:.100}; expected a number")
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
"""The networkx functions that ``[net.generator]`` accepts."""


def known_generators() -> list[str]:
    """Return the names of the accepted generators that the installed networkx provides."""
    import networkx as nx

    return [name for name in GENERATORS if hasattr(nx, name)]


def generated_rows(table: GeneratorTable, name: str, detour: float, report: Reporter) -> WrittenNetwork | None:
    """Generate a network; return None if the function is unknown or rejects its arguments."""
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
    """Call the networkx function named in a table; on failure, report the problem and return None."""
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
    except Exception as error:  # networkx rejects arguments with many kinds of exceptions
        ignored = ("seed", "create_using", "backend", "backend_kwargs")
        parameters = [key for key in inspect.signature(function).parameters if key not in ignored]
        problem = " ".join(str(error).split()) or type(error).__name__
        report.add(
            ("generator", "arguments"),
            f"{table.name} rejects these arguments: {problem}; it accepts {named(parameters)}",
        )
        return None


def _set_latency(table: GeneratorTable, rows: WrittenNetwork, graph: Any, detour: float, report: Reporter) -> None:
    """Set the latency of all links, from the table or from the distances between generated positions."""
    if table.latency_ms is not None:
        if table.side_km is not None:
            report.add(("generator", "side_km"), "conflicts with latency_ms; remove one of them")
        for row in rows.links:
            row.latency_ms = table.latency_ms
        return
    positions = {
        row.name: attributes.get("pos") for row, (_, attributes) in zip(rows.nodes, graph.nodes(data=True), strict=True)
    }
    if table.side_km is None or not 0 < table.side_km < math.inf:
        wrong = "is missing" if table.side_km is None else f"is {table.side_km:g}"
        report.add(
            ("generator", "latency_ms"), f"{wrong}; give latency_ms, or side_km > 0 if the generator places the nodes"
        )
    elif any(position is None for position in positions.values()):
        report.add(("generator", "side_km"), f"{table.name} generates no positions; give latency_ms")
    for row in rows.links:
        origin, target = positions[row.origin], positions[row.target]
        length = math.dist(origin, target) if origin is not None and target is not None else 0.0
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
"""Plain-English names for the types in msgspec's messages."""

_LISTS: dict[str, type[msgspec.Struct]] = {"nodes": NodeTable, "links": LinkTable, "changes": ChangeTable}


def _elements(listed: object, key: str, report: Reporter) -> list[Any]:
    if not isinstance(listed, list):
        report.add((key,), f"is {listed!r}; expected a list of tables, [[net.{key}]]")
        return []
    tables = [_element(value, _LISTS[key], (key, number), report) for number, value in enumerate(listed)]
    return [element for element in tables if element is not None]


def read_table(raw: dict[str, Any], report: Reporter) -> NetTable:
    """Convert the raw table ``[net]``; report unknown, missing and mistyped keys and ignore them.

    An invalid node or link is kept with substitute values if its name or ends can be read, so that it causes no
    follow-up problems.
    """
    lists: dict[str, Any] = {key: _elements(raw.get(key, []), key, report) for key in _LISTS}
    attach = raw.get("attach", {})
    if isinstance(attach, dict):
        entries = {site: _element(value, AttachTable, ("attach", site), report) for site, value in attach.items()}
        lists["attach"] = {site: entry for site, entry in entries.items() if entry is not None}
    fields = {field.encode_name: field for field in msgspec.structs.fields(NetTable)}
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in fields:
            report.add((key,), f"is not known{meant(key, fields)}; known are {', '.join(fields)}")
        elif key not in lists:
            converted = _element({key: value}, NetTable, (), report)
            if converted is not None:
                values[key] = getattr(converted, fields[key].name)
    return NetTable(**values, **lists)


def _element(value: object, kind: type[msgspec.Struct], path: KeyPath, report: Reporter) -> Any:
    """Convert one table; on failure, report the problem in plain English and return a substitute or None."""
    if kind is AttachTable and isinstance(value, str):
        return value
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, location = str(error).partition(" - at ")
        keys = re.findall(r"[A-Za-z_]\w*", location)
        label = ""
        if kind is LinkTable and isinstance(value, dict):
            label = f"link {value.get('from', '?')} - {value.get('to', '?')}: "
        field_names = [field.encode_name for field in msgspec.structs.fields(kind)]
        report.add((*path, *keys), label + _plain_message(message, field_names))
        return _stand_in(value, kind)


def _stand_in(value: object, kind: type[msgspec.Struct]) -> NodeTable | LinkTable | None:
    """Return a valid substitute for an invalid node or link, if its name or ends can be read; otherwise None."""
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


def _plain_message(message: str, field_names: list[str]) -> str:
    """Rewrite an error message of msgspec in plain English."""
    quoted = re.findall(r"`([^`]*)`", message)
    if "unknown field" in message:
        return f"{quoted[0]!r} is not known{meant(quoted[0], field_names)}; known are {', '.join(field_names)}"
    if "missing required field" in message:
        return f"{quoted[0]} is missing"
    if message.startswith("Expected") and len(quoted) == 2:
        needed = " or ".join(TYPE_WORDS.get(name, name) for name in quoted[0].split(" | ") if name != "null")
        return f"is {TYPE_WORDS.get(quoted[1], quoted[1])}; {needed} is needed"
    return message[:1].lower() + message[1:]


def meant(key: str, valid_keys: Iterable[str]) -> str:
    """Return " (perhaps X was meant)" for the closest valid key, or an empty string."""
    close = difflib.get_close_matches(key, list(valid_keys), 1)
    return f" (perhaps {close[0]} was meant)" if close else ""


def rows_of(table: NetTable, name: str, report: Reporter) -> WrittenNetwork:
    """Convert the nodes and links listed in a table to rows."""
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
    """Return the links of a cable: one per direction, or a single one if the cable is one-way."""
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
            report.add((*path, "back"), f"link {row.label}: is one way but has back; remove one of them")
        return [row]
    return [row, _way_back(link, row, report)]


def _way_back(link: LinkTable, row: LinkRow, report: Reporter) -> LinkRow:
    """Return the reverse link of a cable: a copy of the forward link, except for the values that ``back`` sets."""
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
"""Returns the text of a file that a table names; raises InputError if the file cannot be read."""

TOML = ".toml"


def parse_network(
    text: str, name: str, read_text: ReadText, sites: Sequence[str] | None = None
) -> tuple[NetTable, Topology]:
    """Parse a network file.

    Parameters
    ----------
    name : str
        File name. Its suffix selects the format: .toml (with a table ``[net]``, as in a scenario), .gml or .graphml.
    read_text : callable
        Returns the text of a file that the table names.
    sites : sequence of str, optional
        Defaults to the sites of ``[net.attach]``, or to every node.

    Raises
    ------
    ScenarioError
        If the network is invalid; lists every problem.
    InputError
        If the text is not in the format that the suffix names.

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
        graph_text, read_text = text, lambda _: graph_text
    else:
        raise InputError(f"{name}: the suffix names no network format; use {TOML}, {' or '.join(FORMATS)}")
    topology = build_topology(table, name, read_text, problems, sites)
    problems.raise_if_any()
    assert topology is not None
    return table, topology


def raw_net(text: str, name: str) -> dict[str, Any]:
    """Parse a TOML file without checking its tables; raise InputError if it has no table ``[net]``."""
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
    """Build the topology of a networkx graph.

    Parameters
    ----------
    graph : networkx.Graph, DiGraph, MultiGraph or MultiDiGraph
        Attributes are described in `gridweave.netmodel.reading.rows_of_graph`. Each edge needs a bandwidth, and a
        latency or positions at both ends. The graph of a `Topology` reproduces that topology.
    sites : sequence of str, optional
        Defaults to the sites of ``attach``, then to the sites that nodes name, then to every node.
    attach : mapping from str to str or AttachTable, optional
        Node of each site; overrides the ``sites`` attributes of nodes.
    detour, bandwidth_bps : float
        As in `gridweave.netmodel.tables.NetTable`.

    Raises
    ------
    ScenarioError
        If the graph is invalid; lists every problem.
    InputError
        If ``graph`` is not a networkx graph.

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
        raise InputError(f"{name}: is a {type(graph).__name__}; expected a networkx graph")
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
    """Build the topology of a table, as in `parse_network`; return None if it is too broken to build.

    All problems are reported with their paths within the table.
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
    """Return the rows of the network's source; report a network that does not have exactly one source."""
    sources = [key for key in ("file", "generator", "nodes") if getattr(table, key)]
    if table.links and not table.nodes:
        sources.append("links")
    if len(sources) != 1:
        wrong = f"has {' and '.join(sources)}" if sources else "has no source"
        report.add((), f"{wrong}; expected exactly one of file, generator, and nodes with links")
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
    """Report out-of-range settings; nodes and links are checked elsewhere."""
    for key, allowed in (("routes", ROUTES), ("exchange", EXCHANGES), ("contention", CONTENTIONS)):
        if getattr(table, key) not in allowed:
            report.add((key,), not_known(getattr(table, key), allowed))
    for key, low, right in (
        ("detour", 1.0, "a factor of at least 1"),
        ("local_latency_ms", 0.0, "at least 0 ms"),
        ("local_bandwidth_bps", 1.0, "at least 1 bit per second"),
        ("segment_bytes", 1, "at least 1 byte"),
        ("k", 1, "at least 1 route"),
    ):
        value = getattr(table, key)
        if isinstance(value, int) and abs(value) >= 2**63:  # Python's TOML reader accepts integers of any size
            report.add((key,), f"has more than 64 bits; expected {right}")
        elif not low <= value < math.inf:
            report.add((key,), f"is {value:g}; expected {right}")
    if table.failures is not None:
        for key in ("mean_up_ms", "mean_down_ms"):
            value = getattr(table.failures, key)
            if not 0 < value < math.inf:
                report.add(("failures", key), f"is {value:g}; expected more than 0 ms")
        if not 0 <= table.failures.factor < 1:
            report.add(
                ("failures", "factor"),
                f"is {table.failures.factor:g}; expected a fraction of the bandwidth from 0 to below 1",
            )

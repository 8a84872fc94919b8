"""From tables, texts and graphs to a topology, with all that is wrong told at once."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridweave.errors import InputError
from gridweave.netmodel.assemble import Rows, assemble
from gridweave.netmodel.changes import written_changes
from gridweave.netmodel.generators import generated_rows
from gridweave.netmodel.graphs import FORMATS, parse_graph, rows_of_graph
from gridweave.netmodel.problems import Problems, Reporter
from gridweave.netmodel.tables import CONTENTIONS, EXCHANGES, ROUTES, NetTable
from gridweave.netmodel.topology import Topology
from gridweave.netmodel.units import speed_of
from gridweave.netmodel.written import read_table, rows_of

if TYPE_CHECKING:
    import networkx as nx

ReadText = Callable[[str], str]
"""From the name of a file that a table names to its text; raises InputError if it cannot be read."""

TOML = ".toml"


def parse_network(
    text: str, name: str, read_text: ReadText, sites: Sequence[str] | None = None
) -> tuple[NetTable, Topology]:
    """Read a network out of the text of a file.

    Parameters
    ----------
    text : str
    name : str
        Of the file; its suffix tells the format: .toml (with a table ``[net]``, as in a scenario), .gml or .graphml.
    read_text : callable
        Reads the file that a table names.
    sites : sequence of str, optional
        If left out: those of ``[net.attach]``, or every node.

    Returns
    -------
    NetTable, Topology

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
        table = _parsed_table(text, name, problems)
    elif suffix in FORMATS:
        table = NetTable(file=name)
        given, read_text = text, lambda _: given
    else:
        raise InputError(f"{name}: has no suffix of a network; use {TOML}, {' or '.join(FORMATS)}")
    topology = build_topology(table, name, read_text, problems, sites)
    problems.raise_if_any()
    assert topology is not None
    return table, topology


def _parsed_table(text: str, name: str, problems: Problems) -> NetTable:
    try:
        raw: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: is no TOML: {' '.join(str(error).split())}") from None
    if not isinstance(raw.get("net"), dict):
        raise InputError(f"{name}: has no table [net]")
    return read_table(raw["net"], problems)


def topology_of_graph(
    graph: nx.Graph[Any],
    *,
    name: str = "graph",
    sites: Sequence[str] | None = None,
    attach: Mapping[str, str] | None = None,
    detour: float | None = None,
    bandwidth_bps: float | None = None,
) -> Topology:
    """Return the topology of a graph of networkx.

    Parameters
    ----------
    graph : networkx.Graph
        Or one of its kin, with the attributes that `gridweave.netmodel.graphs.rows_of_graph` reads.
    name : str
        For messages.
    sites : sequence of str, optional
        If left out: those of ``attach``, or every node.
    attach : mapping from str to str, optional
        Site to node.
    detour, bandwidth_bps : float, optional
        As in `gridweave.netmodel.tables.NetTable`.

    Returns
    -------
    Topology

    Raises
    ------
    ScenarioError
        With all that is wrong.

    Examples
    --------
    >>> import networkx as nx
    >>> graph = nx.cycle_graph(["a", "b", "c"])
    >>> nx.set_edge_attributes(graph, 5.0, "latency_ms")
    >>> topology_of_graph(graph, bandwidth_bps=1e9).sites
    ('a', 'b', 'c')
    """
    problems = Problems(name)
    table = NetTable(attach=dict(attach or {}), bandwidth_bps=bandwidth_bps)
    rows = rows_of_graph(graph, name, problems)
    rows.detour = table.detour if detour is None else detour
    rows.bandwidth_bps = bandwidth_bps
    topology = assemble(rows, sites, table.attach, problems)
    problems.raise_if_any()
    assert topology is not None
    return topology


def build_topology(
    table: NetTable, name: str, read_text: ReadText, report: Reporter, sites: Sequence[str] | None = None
) -> Topology | None:
    """Return the topology of a table.

    Parameters
    ----------
    table : NetTable
    name : str
        The file, or what else it came from.
    read_text : callable
        Reads the file that the table names.
    report : Reporter
        Is told of every problem; paths are those within the table.
    sites : sequence of str, optional
        If left out: those of ``attach``, or every node.

    Returns
    -------
    Topology or None
        None if there is no telling what was meant.
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


def _source_rows(table: NetTable, name: str, read_text: ReadText, report: Reporter) -> Rows | None:
    """Return what the one source of a network says."""
    sources = [key for key in ("file", "generator", "nodes") if getattr(table, key)]
    if table.links and not table.nodes:
        sources.append("links")
    if len(sources) != 1:
        wrong = f"has {' and '.join(sources)}" if sources else "has no source"
        report.add((), f"{wrong}; a network comes from one of file, generator, and nodes with links")
        return None
    if sources == ["links"]:
        report.add(("links",), "stand without nodes; name the nodes in [[net.nodes]]")
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
    """Check what a table says beside its nodes and links.

    Parameters
    ----------
    table : NetTable
    report : Reporter
    """
    for key, known in (("routes", ROUTES), ("exchange", EXCHANGES), ("contention", CONTENTIONS)):
        if getattr(table, key) not in known:
            report.add((key,), f"{getattr(table, key)!r} is not known; one of {', '.join(known)}")
    for key, low, right in (
        ("detour", 1.0, "a factor, from 1 up"),
        ("local_latency_ms", 0.0, "milliseconds, from 0 up"),
        ("local_bandwidth_bps", 1.0, "bits per second, from 1 up"),
        ("segment_bytes", 1, "bytes, from 1 up"),
        ("k", 1, "routes, from 1 up"),
    ):
        value = getattr(table, key)
        if not low <= value < math.inf:
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

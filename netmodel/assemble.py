"""Build a validated topology from rows of nodes and links, regardless of where the rows come from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gridweave.netmodel.tables import AttachTable, KeyPath, Reporter, show_bandwidth, speed_of
from gridweave.netmodel.topology import FIGURES, Topology, fibre_latency_ms, great_circle_km, named


@dataclass(slots=True)
class NodeRow:
    """A node as specified in the source."""

    path: KeyPath
    name: str
    latitude: float | None = None
    longitude: float | None = None

    @property
    def is_placed(self) -> bool:
        """Whether both latitude and longitude are specified."""
        return self.latitude is not None and self.longitude is not None


@dataclass(slots=True)
class LinkRow:
    """A link in one direction as specified in the source; missing values are None."""

    path: KeyPath
    origin: str
    target: str
    cable: int
    name: str = ""
    latency_ms: float | None = None
    bandwidth_bps: float | None = None
    loss: float = 0.0
    jitter_ms: float = 0.0
    is_up: bool = True
    is_back: bool = False

    @property
    def label(self) -> str:
        """The link's name as shown in messages."""
        ends = f"{self.target} - {self.origin} (back)" if self.is_back else f"{self.origin} - {self.target}"
        return f"{ends} ({self.name})" if self.name else ends

    def back(self) -> LinkRow:
        """Return the reverse link of the same cable, with the same values."""
        return replace(self, origin=self.target, target=self.origin, is_back=True)


@dataclass(slots=True)
class WrittenNetwork:
    """A network as specified in the source; cables are numbered from 0.

    If ``fills_gaps``, missing values of a link are taken from the other links. If ``allows_parallel``, several cables
    can have the same ends and name. ``attached`` maps each site that the source names to its node.
    """

    name: str
    nodes: list[NodeRow] = field(default_factory=list)
    links: list[LinkRow] = field(default_factory=list)
    detour: float = 1.0
    bandwidth_bps: float | None = None
    fills_gaps: bool = False
    allows_parallel: bool = False
    attached: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def assemble(
    rows: WrittenNetwork, sites: Sequence[str] | None, attach: Mapping[str, str | AttachTable], report: Reporter
) -> Topology | None:
    """Check a network, fill in missing values, and attach the sites; return None if it is too broken to build.

    ``sites`` defaults to the sites of ``attach``, then to the sites that the network names, then to all nodes. A site
    that neither ``attach`` nor the network mentions is attached to the node of the same name.
    """
    nodes = _check_nodes(rows, report)
    sound_links = [row for row in rows.links if _ends_are_sound(row, nodes, report)]
    _check_duplicates(rows, report)
    _fill_bandwidth(rows, report)
    _fill_latency(rows, nodes, report)
    there: dict[int, LinkRow] = {}
    for row in rows.links:
        _check_numbers(row, there.get(row.cable) if row.is_back else None, report)
        there.setdefault(row.cable, row)
    whole = nodes and len(sound_links) == len(rows.links)
    if whole:
        _check_connected(rows, report)
    names, at = _attach(rows, nodes, sites, attach, report)
    if (
        not whole
        or len(at) < len(names)
        or any(row.latency_ms is None or row.bandwidth_bps is None for row in rows.links)
    ):
        return None
    return _topology(rows, names, at)


def _check_nodes(rows: WrittenNetwork, report: Reporter) -> dict[str, NodeRow]:
    """Report invalid nodes; return all nodes by name."""
    nodes: dict[str, NodeRow] = {}
    for row in rows.nodes:
        if not row.name:
            report.add(row.path, "a node has no name")
        if row.name in nodes:
            report.add(row.path, f"{row.name!r} is also the name of another node; names must be unique")
        nodes.setdefault(row.name, row)
        for what, value, most in (("latitude", row.latitude, 90.0), ("longitude", row.longitude, 180.0)):
            if value is not None and not abs(value) <= most:
                report.add(row.path, f"node {row.name}: {what} is {value}; expected -{most:g} to {most:g} degrees")
        if (row.latitude is None) != (row.longitude is None):
            report.add(row.path, f"node {row.name}: has only one of latitude and longitude; give both or neither")
    if not rows.nodes:
        report.add((), "has no nodes; expected at least one")
    return nodes


def _ends_are_sound(row: LinkRow, nodes: Mapping[str, NodeRow], report: Reporter) -> bool:
    """Whether a link joins two different known nodes; report the link if it does not."""
    if row.is_back:
        return row.origin in nodes and row.target in nodes and row.origin != row.target
    unknown = [end for end in dict.fromkeys((row.origin, row.target)) if end not in nodes]
    for end in unknown:
        report.add(row.path, f"link {row.label}: there is no node {end!r}; there are {named(list(nodes))}")
    if row.origin == row.target:
        report.add(row.path, f"link {row.label}: connects a node to itself; remove it")
    return not unknown and row.origin != row.target


def _check_duplicates(rows: WrittenNetwork, report: Reporter) -> None:
    if rows.allows_parallel:
        return
    seen: dict[tuple[str, str, str], int] = {}
    reported: set[int] = set()
    for row in rows.links:
        before = seen.setdefault((row.origin, row.target, row.name), row.cable)
        if before != row.cable and row.cable not in reported and row.origin != row.target:
            reported.add(row.cable)
            report.add(row.path, f"link {row.label}: appears twice; name parallel links, or remove one of them")


def _fill_bandwidth(rows: WrittenNetwork, report: Reporter) -> None:
    """Fill in missing bandwidths: the default if set, otherwise the most common bandwidth in a file (ties: lowest)."""
    missing = [row for row in rows.links if row.bandwidth_bps is None]
    if not missing:
        if rows.bandwidth_bps is not None and rows.links:
            rows.remarks.append("net.bandwidth has no effect: every link has its own bandwidth")
        return
    common = Counter(row.bandwidth_bps for row in rows.links if row.bandwidth_bps is not None)
    value = rows.bandwidth_bps
    if value is None and rows.fills_gaps and common:
        value = min(common, key=lambda speed: (-common[speed], speed))
    if value is not None:
        rows.remarks.append(f"{_links(missing)}: no bandwidth given; using {show_bandwidth(value)}")
    for row in missing:
        if value is not None:
            row.bandwidth_bps = value
        elif not row.is_back:
            report.add(row.path, f"link {row.label}: has no bandwidth; give bandwidth_bps, or bandwidth = '10 Gbps'")


def _fill_latency(rows: WrittenNetwork, nodes: Mapping[str, NodeRow], report: Reporter) -> None:
    """Fill in missing latencies from the distance between the two ends of a link.

    If ``fills_gaps``, links without positions get the median latency of the other links, provided that at least half of
    all links have a latency.
    """
    missing = []
    for row in rows.links:
        origin, target = nodes.get(row.origin), nodes.get(row.target)
        if row.latency_ms is None and origin is not None and target is not None:
            row.latency_ms = _latency_between(origin, target, rows.detour)
            missing += [row] if row.latency_ms is None else []
    if not missing:
        return
    latencies = sorted(row.latency_ms for row in rows.links if row.latency_ms is not None)
    if rows.fills_gaps and 2 * len(latencies) >= len(rows.links):
        median = float(np.median(latencies))
        rows.remarks.append(
            f"{_links(missing)}: no latency given, and an end has no position; "
            f"using the median of the other links, {median:.3g} ms"
        )
        for row in missing:
            row.latency_ms = median
        return
    for row in missing:
        if not row.is_back:
            unplaced = [end for end in (row.origin, row.target) if not nodes[end].is_placed]
            report.add(
                row.path,
                f"link {row.label}: has no latency, and the position of {' and '.join(unplaced)} is unknown; "
                "give latency_ms, or latitude and longitude",
            )


def _latency_between(origin: NodeRow, target: NodeRow, detour: float) -> float | None:
    if origin.latitude is None or origin.longitude is None or target.latitude is None or target.longitude is None:
        return None
    return fibre_latency_ms(
        great_circle_km(origin.latitude, origin.longitude, target.latitude, target.longitude), detour
    )


def _links(rows: Sequence[LinkRow]) -> str:
    labels = list(dict.fromkeys(row.label for row in rows if not row.is_back))
    return f"{'link' if len(labels) == 1 else 'links'} {named(labels)}"


def _check_numbers(row: LinkRow, there: LinkRow | None, report: Reporter) -> None:
    """Report out-of-range numbers; skip a value that was already reported for the opposite direction."""
    checks: tuple[tuple[str, float | None, bool, str], ...] = (
        ("latency_ms", row.latency_ms, row.latency_ms is None or 0 <= row.latency_ms <= 1e9, "0 to 1e9 ms"),
        (
            "bandwidth_bps",
            row.bandwidth_bps,
            row.bandwidth_bps is None or 0 < row.bandwidth_bps < math.inf or (row.bandwidth_bps == 0 and not row.is_up),
            "a finite number above 0",
        ),
        ("loss", row.loss, 0 <= row.loss < 1, "a probability from 0 to below 1"),
        ("jitter_ms", row.jitter_ms, 0 <= row.jitter_ms <= 1e9, "0 to 1e9 ms"),
    )
    for what, value, is_right, right in checks:
        # Compare as text, because NaN is not equal to itself.
        if not is_right and (there is None or str(getattr(there, what)) != str(value)):
            report.add(row.path, f"link {row.label}: {what} is {value:g}; expected {right}")


def _check_connected(rows: WrittenNetwork, report: Reporter) -> None:
    """Report a problem if some node cannot reach every other node."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(row.name for row in rows.nodes)
    graph.add_edges_from((row.origin, row.target) for row in rows.links)
    order = {row.name: number for number, row in enumerate(rows.nodes)}
    components = [_in_order(component, order) for component in nx.weakly_connected_components(graph)]
    if len(components) > 1:
        listed = "; ".join(
            named(component, 5) for component in sorted(components, key=lambda component: order[component[0]])[:4]
        )
        report.add((), f"has {len(components)} parts with no link between them: {listed}")
        return
    strong_components = [_in_order(component, order) for component in nx.strongly_connected_components(graph)]
    strong_components.sort(key=lambda component: (-len(component), order[component[0]]))
    if len(strong_components) > 1:
        unreachable = _in_order((name for component in strong_components[1:] for name in component), order)
        report.add(
            (), f"has one-way links: {named(unreachable)} cannot reach every node, or cannot be reached from every node"
        )


def _in_order(names: Iterable[str], order: Mapping[str, int]) -> list[str]:
    return sorted(names, key=order.__getitem__)


def _attach(
    rows: WrittenNetwork,
    nodes: Mapping[str, NodeRow],
    sites: Sequence[str] | None,
    attach: Mapping[str, str | AttachTable],
    report: Reporter,
) -> tuple[list[str], list[str]]:
    """Return the site names and each site's node; a site with its own access line gets a new node and cable."""
    names = list(sites) if sites is not None else list(attach) or list(rows.attached) or list(nodes)
    placement: list[str] = []
    for stray in [name for name in attach if name not in names]:
        report.add(("attach", stray), f"there is no site {stray!r}; there are {named(names)}")
    for name in names:
        entry = attach.get(name, rows.attached.get(name, name))
        node = entry.node if isinstance(entry, AttachTable) else entry
        if node in nodes:
            placement.append(_line_to(rows, nodes, name, entry, report) if isinstance(entry, AttachTable) else node)
        elif name in attach:
            report.add(
                ("attach", name),
                f"site {name} is attached to {node!r}, which is not a node; there are {named(list(nodes))}",
            )
        else:
            report.add(
                (), f"site {name} is not attached to a node; add it to [net.attach], with one of {named(list(nodes))}"
            )
    return names, placement


def _line_to(
    rows: WrittenNetwork, nodes: Mapping[str, NodeRow], site: str, entry: AttachTable, report: Reporter
) -> str:
    """Add a site's access line to the network; return the new node at its end."""
    path: KeyPath = ("attach", site)
    node = f"{site}*" if site in nodes else site
    bandwidth_bps = speed_of(entry.bandwidth_bps, entry.bandwidth, path, report)
    if bandwidth_bps is None:
        report.add(
            path, f"the access line of site {site} has no bandwidth; give bandwidth_bps, or bandwidth = '10 Gbps'"
        )
    rows.nodes.append(NodeRow(path, node))
    cable = 1 + max((row.cable for row in rows.links), default=-1)
    row = LinkRow(path, node, entry.node, cable, "", entry.latency_ms, bandwidth_bps, entry.loss, entry.jitter_ms)
    _check_numbers(row, None, report)
    rows.links += [row, row.back()]
    return node


def _topology(rows: WrittenNetwork, sites: Sequence[str], at: Sequence[str]) -> Topology:
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for node in rows.nodes:
        placed = {"latitude": node.latitude, "longitude": node.longitude} if node.is_placed else {}
        graph.add_node(node.name, **placed)
    for number, row in enumerate(rows.links):
        figures = {name: getattr(row, name) for name in FIGURES}
        graph.add_edge(row.origin, row.target, number, **figures, cable=row.cable, name=row.name, up=row.is_up)
    for site, node_name in zip(sites, at, strict=True):
        graph.nodes[node_name]["sites"] = (*graph.nodes[node_name].get("sites", ()), site)
    number_of = {node: number for number, node in enumerate(graph)}
    return Topology(
        name=rows.name,
        graph=graph,
        sites=tuple(sites),
        node_of_site=np.array([number_of[node] for node in at], np.int64),
        remarks=tuple(rows.remarks),
    )

"""Draw a network: on a map if nodes have positions, otherwise with a graph layout.

Import this module only to draw a network, since matplotlib loads slowly. Figures do not use pyplot's global state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import AbstractPathEffect, withStroke

from gridweave.netmodel.tables import show_bandwidth
from gridweave.netmodel.topology import FloatArray, Topology

# Blues based on Okabe and Ito's palette, from slow to fast.
_SPEEDS = ("#8FBFDD", "#56B4E9", "#0072B2", "#004B78", "#00304D")
_SITE, _ROUTER, _DOWN, _LABEL = "#D55E00", "#FFFFFF", "#CC79A7", "#222222"


def draw_topology(topology: Topology) -> Figure:
    """Draw a network: links coloured by bandwidth, sites filled, routers hollow, links that are down dashed."""
    positions = _map_positions(topology) if topology.has_map else _layout_positions(topology)
    figure = Figure(figsize=(11, _height(topology, positions)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    handles = _draw_links(axes, topology, positions) + _draw_nodes(axes, topology, positions)
    if topology.has_map:
        _draw_as_map(axes, positions)
    else:
        axes.set_axis_off()
        axes.set_aspect("equal", "datalim")
        axes.margins(0.08)
    if len(topology.nodes) <= 150:
        _name_nodes(figure, axes, topology, positions)
    name = topology.name.replace("\\", "/").rpartition("/")[2]
    axes.set_title(f"{name}: {_count(topology)}", loc="left", fontsize=11, parse_math=False)
    figure.legend(handles=handles, loc="outside lower center", ncols=7, fontsize=8, frameon=False)
    return figure


def _height(topology: Topology, positions: FloatArray) -> float:
    """Return the height in inches at which a map fills a figure 11 inches wide."""
    if not topology.has_map:
        return 8.0
    wide, high = np.ptp(positions, axis=0)
    return float(np.clip(10.2 * high / max(0.01, wide * _narrowing(positions)) + 0.9, 4.0, 12.0))


def _narrowing(positions: FloatArray) -> float:
    """Return the length of a degree of longitude relative to a degree of latitude, at the map's middle latitude."""
    return max(0.1, float(np.cos(np.radians((positions[:, 1].min() + positions[:, 1].max()) / 2))))


def _count(topology: Topology) -> str:
    nodes, cables, sites = len(topology.nodes), len(np.unique(topology.cable)), len(topology.sites)
    return f"{nodes:,} nodes, {cables:,} links, {sites:,} sites"


def _map_positions(topology: Topology) -> FloatArray:
    """Return longitude and latitude; a node without a position is put next to its neighbours."""
    positions = topology.positions[:, ::-1].copy()
    has_position = np.array([bool(np.isfinite(position).all()) for position in positions])
    spread = np.ptp(positions[has_position], axis=0).max() or 1.0
    angle = 0.0
    for node in np.flatnonzero(~has_position):
        at = topology.source == node
        near = [neighbour for neighbour in topology.target[at] if has_position[neighbour]]
        middle = (
            positions[near].mean(axis=0)
            if near
            else np.array([positions[has_position, 0].max(), positions[has_position, 1].min()])
        )
        angle += 2.4  # the golden angle separates nodes around the same neighbour
        positions[node] = middle + 0.06 * spread * np.array([np.cos(angle), 0.7 * np.sin(angle)])
    return positions


def _layout_positions(topology: Topology) -> FloatArray:
    """Return positions that put connected nodes near each other."""
    import networkx as nx

    graph: nx.Graph[str] = nx.Graph(topology.graph)
    if len(graph) <= 300:
        # Kamada-Kawai starts from a circle, so the layout is deterministic.
        positions = nx.kamada_kawai_layout(graph, weight=None) if len(graph) > 1 else dict.fromkeys(graph, np.zeros(2))
    else:
        positions = nx.spring_layout(graph, seed=1)
    return np.array([positions[node] for node in graph])


def _draw_links(axes: Axes, topology: Topology, positions: FloatArray) -> list[Line2D]:
    """Draw each cable once, coloured by the bandwidth of its faster direction; return the legend entries."""
    handles = []
    speeds = np.unique(topology.bandwidth_bps[topology.up])
    steps = _steps(speeds)
    cables = sorted(set(topology.cable.tolist()))
    offsets = _parallel_shifts(topology, positions)
    for number, (low, high) in enumerate(steps):
        shade = _SPEEDS[round(number * (len(_SPEEDS) - 1) / max(1, len(steps) - 1))] if len(steps) > 1 else _SPEEDS[2]
        width = 1.2 + 1.8 * number / (len(steps) - 1) if len(steps) > 1 else 1.8
        label = show_bandwidth(low) if low == high else f"{show_bandwidth(low)} to {show_bandwidth(high)}"
        style: dict[str, Any] = {"color": shade, "linewidth": width}
        for cable in cables:
            links = np.flatnonzero((topology.cable == cable) & topology.up)
            if len(links) and low <= topology.bandwidth_bps[links].max() <= high:
                _draw_line(axes, topology, positions, int(links[0]), offsets, style)
        handles.append(Line2D([], [], label=label, **style))
    down = [cable for cable in cables if not topology.up[topology.cable == cable].any()]
    style = {"color": _DOWN, "linewidth": 1.5, "linestyle": "--"}
    for cable in down:
        _draw_line(axes, topology, positions, int(np.flatnonzero(topology.cable == cable)[0]), offsets, style)
    return handles + ([Line2D([], [], label="down", **style)] if down else [])


def _steps(speeds: FloatArray) -> list[tuple[float, float]]:
    """Group bandwidths into at most five classes; return the lowest and highest value of each."""
    if len(speeds) <= len(_SPEEDS):
        return [(float(speed), float(speed)) for speed in speeds]
    bounds = np.array_split(speeds, len(_SPEEDS))
    return [(float(part[0]), float(part[-1])) for part in bounds]


def _parallel_shifts(topology: Topology, positions: FloatArray) -> dict[int, float]:
    """Return the sideways offset of each cable, so that parallel cables do not overlap."""
    groups: dict[tuple[int, int], list[int]] = {}
    for link in range(len(topology.source)):
        low, high = sorted((int(topology.source[link]), int(topology.target[link])))
        group = groups.setdefault((low, high), [])
        if int(topology.cable[link]) not in group:
            group.append(int(topology.cable[link]))
    gap = 0.008 * float(np.ptp(positions, axis=0).max() or 1.0)
    return {
        cable: gap * (index - (len(group) - 1) / 2) for group in groups.values() for index, cable in enumerate(group)
    }


def _draw_line(
    axes: Axes, topology: Topology, positions: FloatArray, link: int, offsets: dict[int, float], style: dict[str, Any]
) -> None:
    low, high = sorted((int(topology.source[link]), int(topology.target[link])))
    along = positions[high] - positions[low]
    length = float(np.hypot(*along)) or 1.0
    offset = offsets[int(topology.cable[link])] * np.array([-along[1], along[0]]) / length
    ends = np.array([positions[low] + offset, positions[high] + offset])
    # Draw thin, slow links on top of fast ones.
    axes.add_line(Line2D(ends[:, 0], ends[:, 1], zorder=1 + 1 / (1 + style["linewidth"]), **style))


def _draw_nodes(axes: Axes, topology: Topology, positions: FloatArray) -> list[Line2D]:
    """Draw the nodes; return the legend entries."""
    handles = []
    has_site = np.isin(np.arange(len(topology.nodes)), topology.node_of_site)
    unplaced = ~np.isfinite(topology.positions).all(axis=1) & topology.has_map
    size = 40.0 if len(topology.nodes) <= 100 else 10.0
    for label, colour, marker, chosen in (
        ("site", _SITE, "o", has_site & ~unplaced),
        ("router", _ROUTER, "o", ~has_site & ~unplaced),
        ("site without a position", _SITE, "D", has_site & unplaced),
        ("router without a position", _ROUTER, "D", ~has_site & unplaced),
    ):
        if chosen.any():
            across, up = positions[chosen].T
            axes.scatter(across, up, s=size, c=colour, marker=marker, edgecolors="#333333", linewidths=0.8, zorder=2)
            handles.append(
                Line2D([], [], label=label, marker=marker, linestyle="", color=colour, markeredgecolor="#333333")
            )
    return handles


def _name_nodes(figure: Figure, axes: Axes, topology: Topology, positions: FloatArray) -> None:
    """Label each node with its name and sites, on the side where the label hides the least."""
    texts = [_node_text(topology, node) for node in range(len(topology.nodes))]
    figure.draw_without_rendering()  # the transform below is valid only after drawing
    points = axes.transData.transform(positions)
    along = np.linspace(0.0, 1.0, 25)[:, None]
    starts, ends = points[topology.source], points[topology.target]
    lines = np.concatenate(
        [starts[link] + along * (ends[link] - starts[link]) for link in range(len(starts))] + [points]
    )
    halo: list[AbstractPathEffect] = [withStroke(linewidth=2.0, foreground="white")]
    label_boxes: list[FloatArray] = []
    for node, name in enumerate(texts):
        box, offset, ha, va = min(
            (_label_box(points[node], len(name), *side) for side in _SIDES),
            key=lambda label: _hidden(label[0], lines, points, label_boxes),
        )
        label_boxes.append(box)
        axes.annotate(
            name,
            tuple(positions[node]),
            offset,
            textcoords="offset points",
            ha=ha,
            va=va,
            fontsize=8,
            color=_LABEL,
            zorder=3,
            parse_math=False,
        ).set_path_effects(halo)


_SIDES = (
    ("left", "bottom"),
    ("right", "bottom"),
    ("left", "top"),
    ("right", "top"),
    ("left", "center"),
    ("right", "center"),
)


def _node_text(topology: Topology, node: int) -> str:
    sites = [site for site, at in zip(topology.sites, topology.node_of_site, strict=True) if at == node]
    name = topology.nodes[node]
    return name if sites in ([], [name]) else f"{name}: {', '.join(sites)}"


def _label_box(point: FloatArray, letters: int, ha: str, va: str) -> tuple[FloatArray, tuple[float, float], str, str]:
    """Return a label's box in dots (lower left, upper right), its offset in points, and its alignment."""
    dots = 120 / 72
    offset = (5.0 if ha == "left" else -5.0, {"bottom": 4.0, "top": -4.0, "center": 0.0}[va])
    wide, high = 5.2 * letters * dots, 8.5 * dots
    x = point[0] + offset[0] * dots - (wide if ha == "right" else 0.0)
    y = point[1] + offset[1] * dots - {"bottom": 0.0, "top": high, "center": high / 2}[va]
    return np.array([[x, y], [x + wide, y + high]]), offset, ha, va


def _hidden(box: FloatArray, lines: FloatArray, points: FloatArray, label_boxes: list[FloatArray]) -> float:
    """Return a score for what a label would hide: other labels weigh most, then nodes, then links."""
    labels = sum(bool((box[0] < label_box[1]).all() and (label_box[0] < box[1]).all()) for label_box in label_boxes)
    nodes = int(((points > box[0] - 6) & (points < box[1] + 6)).all(axis=1).sum())
    return 100.0 * labels + 20.0 * nodes + int(((lines > box[0]) & (lines < box[1])).all(axis=1).sum())


def _draw_as_map(axes: Axes, positions: FloatArray) -> None:
    """Set the aspect ratio so that a kilometre has the same length in both directions at the middle of the map."""
    axes.set_aspect(1.0 / _narrowing(positions), "datalim")
    axes.margins(0.05)
    axes.grid(color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("longitude [degrees]")
    axes.set_ylabel("latitude [degrees]")
    axes.spines[["top", "right"]].set_visible(False)

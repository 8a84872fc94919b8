"""Networks made by the generators of networkx, for what-if questions and tests of scale."""

from __future__ import annotations

import inspect
import math
from typing import Any

from gridweave.netmodel.assemble import Rows
from gridweave.netmodel.geography import fibre_latency_ms
from gridweave.netmodel.graphs import rows_of_graph
from gridweave.netmodel.problems import Reporter
from gridweave.netmodel.tables import GeneratorTable
from gridweave.netmodel.topology import named
from gridweave.netmodel.units import speed_of

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
    """Return the names of the generators that the installed networkx has.

    Returns
    -------
    list of str
    """
    import networkx as nx

    return [name for name in GENERATORS if hasattr(nx, name)]


def generated_rows(table: GeneratorTable, name: str, detour: float, report: Reporter) -> Rows | None:
    """Make a network.

    Parameters
    ----------
    table : GeneratorTable
    name : str
        What the network is called.
    detour : float
        How many times as long as the straight line a fibre is.
    report : Reporter

    Returns
    -------
    Rows or None
        None if the function is not known or refuses its arguments.
    """
    import networkx as nx

    if table.name not in known_generators():
        report.add(("generator", "name"), f"{table.name!r} is not known; known are {', '.join(known_generators())}")
        return None
    function = getattr(nx, table.name)
    arguments = dict(table.arguments)
    if "seed" in inspect.signature(function).parameters:
        arguments.setdefault("seed", table.seed)
    try:
        graph = function(**arguments)
    except Exception as error:  # networkx refuses arguments with errors of every kind
        own = ("seed", "create_using", "backend", "backend_kwargs")
        takes = [key for key in inspect.signature(function).parameters if key not in own]
        problem = " ".join(str(error).split()) or type(error).__name__
        report.add(("generator", "arguments"), f"{table.name} refuses them: {problem}; it takes {named(takes)}")
        return None
    rows = rows_of_graph(graph, name, report)
    rows.fills_gaps = False
    bandwidth_bps = speed_of(table.bandwidth_bps, table.bandwidth, ("generator",), report)
    for row in rows.links:
        row.bandwidth_bps, row.loss, row.jitter_ms = bandwidth_bps, table.loss, table.jitter_ms
    _set_latency(table, rows, graph, detour, report)
    return rows


def _set_latency(table: GeneratorTable, rows: Rows, graph: Any, detour: float, report: Reporter) -> None:
    """Give all links the latency that was said, or that of their lengths on a square."""
    if table.latency_ms is not None:
        if table.side_km is not None:
            report.add(("generator", "side_km"), "stands beside latency_ms; give one of them")
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

"""The command `gridweave net`: show and draw the network between sites, and find paths in it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridweave.cli.arguments import Json
from gridweave.cli.options import named_as_typed
from gridweave.cli.output import picture_kind, print_json, print_table, save_picture, say
from gridweave.cli.run import problems_as_lines
from gridweave.errors import InputError

if TYPE_CHECKING:
    from gridweave.netmodel.routing import Route
    from gridweave.netmodel.tables import NetTable
    from gridweave.netmodel.topology import Topology

app = typer.Typer(help="Show and draw the network between sites, and find paths in it.", no_args_is_help=True)

File = Annotated[
    str, typer.Argument(metavar="FILE", help="GML or GraphML file, TOML file with a table \\[net], or scenario.")
]


_Out = Annotated[
    str | None, typer.Option("--out", metavar="OUT.png", help="Draw the network to this file (.png, .svg or .pdf).")
]


@app.command()
def show(file: File, out: _Out = None, as_json: Json = False) -> None:
    """Show the links of a network and its sites, and draw it, as a map if its nodes have positions.

    Example: gridweave net show Geant2012.gml --out geant.png
    """
    kind = picture_kind("--out", out) if out is not None else None
    table, topology = _read(file)
    if out is not None and kind is not None:
        from gridweave.netmodel.drawing import draw_topology

        save_picture(draw_topology(topology), out, kind)
    if as_json:
        print_json(_as_plain(table, topology) | {"picture": out})
        return
    for remark in topology.remarks:
        say(f"{topology.name}: {remark}")
    print_table(_link_rows(topology), headings=_LINK_HEADINGS, title=_title(topology), left=3)
    print_table(_site_rows(topology), headings=("site", "node", "position"), left=3)
    if out is not None:
        say(f"picture written to {out}")


_By = Annotated[str, typer.Option("--by", metavar="latency|bandwidth", help="Rank paths by latency or by bandwidth.")]


@app.command()
def path(
    file: File,
    origin: Annotated[str, typer.Argument(metavar="A", help="Site or node to start from.")],
    target: Annotated[str, typer.Argument(metavar="B", help="Site or node to reach.")],
    by: _By = "latency",
    k: Annotated[int, typer.Option("-k", metavar="N", help="Number of paths to show, best first.")] = 1,
    as_json: Json = False,
) -> None:
    """Show the best paths from one site or node to another.

    Example: gridweave net path Geant2012.gml UK GR --by bandwidth -k 3
    """
    from gridweave.netmodel.routing import best_routes

    _, topology = _read(file)
    ends = _end(topology, origin), _end(topology, target)
    with named_as_typed(by="--by", k="-k"):
        routes = best_routes(topology, *ends, by=by, k=k)
    if as_json:
        print_json([_route_as_plain(topology, route) for route in routes])
        return
    rows = [
        (
            str(place),
            " - ".join(topology.nodes[node] for node in route.nodes),
            _ms(route.latency_ms),
            _speed(route.bandwidth_bps),
            f"{route.loss:.2%}" if route.loss else "",
        )
        for place, route in enumerate(routes, start=1)
    ]
    print_table(rows, headings=("", "way", "latency [ms]", "bandwidth", "loss"), left=2)


_LINK_HEADINGS = ("from", "to", "name", "latency [ms]", "bandwidth", "loss", "jitter [ms]")


def _read(file: str) -> tuple[NetTable, Topology]:
    """Read a network; if the file is invalid, print all its problems and exit."""
    from gridweave.scenarios.scenario.read import network_of_file

    with problems_as_lines():
        return network_of_file(file)


def _end(topology: Topology, name: str) -> int:
    from gridweave.netmodel.topology import named

    if name in topology.sites:
        return int(topology.node_of_site[topology.site_number(name)])
    if name in topology.nodes:
        return topology.node_number(name)
    names = [*topology.sites, *(node for node in topology.nodes if node not in topology.sites)]
    raise InputError(f"{topology.name}: there is no site or node {name!r}; expected one of {named(names, 50)}")


def _title(topology: Topology) -> str:
    nodes, links, sites = len(topology.nodes), len(set(topology.cable.tolist())), len(topology.sites)
    return f"{Path(topology.name).name}: {nodes:,} nodes, {links:,} links, {sites:,} sites"


def _link_rows(topology: Topology) -> list[tuple[str, ...]]:
    """Return a row for each link, or two rows if its directions differ."""
    rows: list[tuple[str, ...]] = []
    before: dict[int, tuple[str, ...]] = {}
    for link in range(len(topology.source)):
        ends = topology.nodes[topology.source[link]], topology.nodes[topology.target[link]]
        values = (
            topology.link_names[link],
            _ms(float(topology.latency_ms[link])),
            _speed(float(topology.bandwidth_bps[link])),
            f"{topology.loss[link]:.2%}" if topology.loss[link] else "",
            _ms(float(topology.jitter_ms[link])) if topology.jitter_ms[link] else "",
        )
        if before.get(int(topology.cable[link])) != values:
            rows.append((*ends, *values))
        before[int(topology.cable[link])] = values
    return rows


def _site_rows(topology: Topology) -> list[tuple[str, str, str]]:
    rows = []
    for site, node in zip(topology.sites, topology.node_of_site, strict=True):
        latitude, longitude = topology.positions[node]
        position = "" if math.isnan(latitude) else f"{_degrees(latitude, 'N', 'S')} {_degrees(longitude, 'E', 'W')}"
        rows.append((site, topology.nodes[node], position))
    return rows


def _degrees(value: float, positive: str, negative: str) -> str:
    return f"{abs(value):.2f}° {positive if value >= 0 else negative}"


def _ms(value: float) -> str:
    return f"{value:,.3f}"


def _speed(bandwidth_bps: float) -> str:
    from gridweave.netmodel.tables import show_bandwidth

    return show_bandwidth(bandwidth_bps)


def _as_plain(table: NetTable, topology: Topology) -> dict[str, Any]:
    positions = [None if math.isnan(row[0]) else row.tolist() for row in topology.positions]
    return {
        "name": topology.name,
        "nodes": [
            {"name": node, "position": position} for node, position in zip(topology.nodes, positions, strict=True)
        ],
        "links": [
            {
                "from": topology.nodes[topology.source[link]],
                "to": topology.nodes[topology.target[link]],
                "name": topology.link_names[link],
                "latency_ms": float(topology.latency_ms[link]),
                "bandwidth_bps": float(topology.bandwidth_bps[link]),
                "loss": float(topology.loss[link]),
                "jitter_ms": float(topology.jitter_ms[link]),
            }
            for link in range(len(topology.source))
        ],
        "sites": {site: topology.nodes[node] for site, node in zip(topology.sites, topology.node_of_site, strict=True)},
        "routes": table.routes,
        "remarks": list(topology.remarks),
    }


def _route_as_plain(topology: Topology, route: Route) -> dict[str, Any]:
    return {
        "nodes": [topology.nodes[node] for node in route.nodes],
        "links": list(route.links),
        "latency_ms": route.latency_ms,
        "bandwidth_bps": None if math.isinf(route.bandwidth_bps) else route.bandwidth_bps,
        "loss": route.loss,
    }

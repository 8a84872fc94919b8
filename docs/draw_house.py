"""Draw the house from its imports: ``python docs/draw_house.py`` renews the diagram in CONTRIBUTING.md.

A room is a folder; deeper folders and kernels count as part of it. Layers import only the layers below them, so one
arrow stands for all imports between two neighbouring layers. Within a layer, an arrow leads from a room to one that it
imports, unless a longer path of arrows says so already.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import house  # noqa: E402

PAGE = ROOT / "CONTRIBUTING.md"
DIAGRAM = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)

LAYERS = ("papers", "cli", "scenarios", "grid", "slurm", "site", "netmodel")
"""From the top."""

BETWEEN_LAYERS = (
    ("papers", "cli"),
    ("cli", "scenarios"),
    ("scenarios", "grid"),
    ("grid", "slurm"),
    ("slurm", "site"),
    ("grid", "netmodel"),
)
"""The arrows between layers; `tests/test_house.py` checks that imports point down."""


def room_of(file: str) -> str:
    """Return the room of a file, such as "grid/control"; empty for a file of src/gridweave itself."""
    inner = file.removeprefix("src/gridweave/").replace(house.PAPERS, "papers/")
    folders = inner.split("/")[:-1]
    return "/".join(folder for folder in folders[:2] if folder != "kernels")


def rooms(layer: str) -> list[str]:
    """Return the rooms of a layer; its own files are a room, too."""
    found = {room_of(file) for file in house.product_files() if not file.endswith("/__init__.py")}
    return sorted(room for room in found if room.split("/")[0] == layer)


def arrows(layer: str) -> list[tuple[str, str]]:
    """Return the arrows between the rooms of a layer; none leads to its own files, which all rooms import."""
    graph = nx.DiGraph()
    for file, home in house.import_graph().edges:
        pair = room_of(file), room_of(home)
        draws_itself = house.RESULTS.match(file) and house.PLOTS.match(home)
        if pair[0] != pair[1] and not draws_itself and all(room.startswith(f"{layer}/") for room in pair):
            graph.add_edge(*pair)
    return sorted(nx.transitive_reduction(graph).edges)


def diagram() -> str:
    """Return the house as a Mermaid diagram, which GitHub and most editors draw."""
    lines = ["flowchart TB"]
    for layer in LAYERS:
        lines.append(f'  subgraph {layer}_layer["{layer}"]')
        for room in rooms(layer):
            name = room.removeprefix(f"{layer}/") if room != layer else f"{layer}/*.py"
            lines.append(f'    {_id(room)}["{name}"]')
        lines += [f"    {_id(upper)} --> {_id(lower)}" for upper, lower in arrows(layer)]
        lines.append("  end")
    lines += [f"  {upper}_layer ==> {lower}_layer" for upper, lower in BETWEEN_LAYERS]
    return "\n".join(lines) + "\n"


def _id(room: str) -> str:
    return room.replace("/", "_")


def renewed(page: str) -> str:
    """Return a page with its diagram redrawn."""
    return DIAGRAM.sub(lambda _: f"```mermaid\n{diagram()}```\n", page, count=1)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""Draw the house from its imports: ``python docs/draw_house.py`` renews docs/images/house.png.

A room is a folder, as wide as it has lines of code. An arrow runs from a room to one that it imports, the thicker
the more files do so. Bands are layers: imports run down from band to band.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import house  # noqa: E402  (it stands beside the tests)

PICTURE = ROOT / "docs" / "images" / "house.png"
LAYERS = (("cli",), ("scenarios",), ("grid",), ("site", "netmodel"))
"""From the top: the folders whose rooms stand in one band."""

COLOURS = {"cli": "#c9a3d9", "scenarios": "#f2c28b", "grid": "#9cc5e8", "site": "#a6d7a8", "netmodel": "#e8e29c"}
WIDTH, HEIGHT, GAP, BAND = 100.0, 4.6, 0.7, 9.5

Place = tuple[float, float, float]
"""Left edge, lower edge, and width of a room."""


def room_of(file: str) -> str:
    """Return the room of a file: its folder, with kernels and other folders below the second level counted in."""
    parts = file.removeprefix("src/gridweave/").split("/")[:-1]
    return "/".join(part for part in parts[:2] if part != "kernels")


def rooms() -> dict[str, tuple[int, int]]:
    """Return the lines and the files of each room."""
    lines, files = Counter[str](), Counter[str]()
    for file, count in house.line_counts().items():
        lines[room_of(file)] += count
        files[room_of(file)] += 1
    return {room: (lines[room], files[room]) for room in lines if room and files[room] > 1}


def imports() -> dict[tuple[str, str], int]:
    """Return how many imports lead from one room to another, but for those of the errors, which all import."""
    found = Counter((room_of(one), room_of(other)) for one, other in house.import_graph().edges)
    return {pair: count for pair, count in found.items() if pair[0] != pair[1] and set(pair) <= set(rooms())}


def places(sizes: Mapping[str, tuple[int, int]]) -> dict[str, Place]:
    """Return where each room is drawn: band by band, the widest layer over the whole width."""
    bands: dict[int, list[str]] = defaultdict(list)
    for room in sorted(sizes):
        bands[next(n for n, tops in enumerate(LAYERS) if room.startswith(tops))].append(room)
    found = {}
    for band, names in bands.items():
        weights = [max(sizes[room][0], 900) for room in names]
        scale = (WIDTH - GAP * (len(names) - 1)) / sum(weights)
        left = 0.0
        for room, weight in zip(names, weights, strict=True):
            found[room] = (left, (len(LAYERS) - 1 - band) * BAND, weight * scale)
            left += weight * scale + GAP
    return found


def draw_room(axes: Axes, room: str, place: Place, size: tuple[int, int]) -> None:
    """Draw one room; those of shells, which do I/O, have a dashed wall."""
    left, low, width = place
    colour = COLOURS[room.split("/", maxsplit=1)[0]]
    dashes = "--" if f"{room}/".startswith((*house.SHELLS, "cli/")) else "-"
    wall = FancyBboxPatch((left, low), width, HEIGHT, "round,pad=0,rounding_size=0.4")
    wall.set(facecolor=colour, edgecolor="black", linestyle=dashes, zorder=2)
    axes.add_patch(wall)
    files = f"{size[1]} file{'s' * (size[1] != 1)}"
    is_narrow = width < 10
    name = room.rsplit("/", maxsplit=1)[-1] if is_narrow else room
    text = f"{name}\n{files}\n{size[0]:,} lines" if is_narrow else f"{name}\n{files}, {size[0]:,} lines"
    size_pt = 6.5 if is_narrow else 8
    axes.text(left + width / 2, low + HEIGHT / 2, text, ha="center", va="center", fontsize=size_pt, zorder=4)


def edge(place: Place, other: Place) -> float:
    """Return where on the edge of a room the arrow to or from another one is: nearer to the side on which that is."""
    (left, _, width), (left_2, _, width_2) = place, other
    towards = (left_2 + width_2 / 2) / WIDTH
    return left + width * (0.15 + 0.7 * towards)


def draw_arrows(axes: Axes, found: Mapping[str, Place], pairs: Iterable[tuple[tuple[str, str], int]]) -> None:
    """Draw the imports between bands as lines down, and those within a band as arcs above its rooms."""
    for (one, other), count in pairs:
        here, there = found[one], found[other]
        is_within = here[1] == there[1]
        start = edge(here, there), here[1] + (HEIGHT if is_within else 0)
        end = edge(there, here), there[1] + HEIGHT
        bend = (-0.22 if here[0] < there[0] else 0.22) if is_within else 0.0
        arrow = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=6, connectionstyle=f"arc3,rad={bend}")
        colour = COLOURS[one.split("/")[0]]
        arrow.set(linewidth=0.5 + 0.06 * count, edgecolor="#333333", facecolor=colour, alpha=0.45, zorder=1)
        axes.add_patch(arrow)


def draw(path: Path) -> None:
    """Draw the house into a file."""
    figure = Figure(figsize=(15, 7), dpi=110, layout="tight")
    axes = figure.add_subplot()
    sizes = rooms()
    found = places(sizes)
    for room, place in found.items():
        draw_room(axes, room, place, sizes[room])
    draw_arrows(axes, found, sorted(imports().items()))
    total = sum(lines for lines, _ in sizes.values())
    axes.set_title(
        f"gridweave: {sum(files for _, files in sizes.values())} files, {total:,} lines. "
        "Arrows are imports, the thicker the more. Dashed rooms do I/O.",
        fontsize=10,
    )
    axes.set(xlim=(-1, WIDTH + 1), ylim=(-1, BAND * len(LAYERS) - 0.5))
    axes.axis("off")
    figure.savefig(path)


if __name__ == "__main__":
    draw(PICTURE)

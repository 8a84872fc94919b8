"""Install packages for a single test: write their metadata into a folder of sys.path, like pip."""

from __future__ import annotations

import tomllib
from pathlib import Path

PAPERS = Path(__file__).parent.parent / "papers"
PAPERS_SOURCES = PAPERS / "src"


def papers_entry_points() -> str:
    """Return the entry points of gridweave-papers in the format of installed metadata."""
    groups = tomllib.loads((PAPERS / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    lines = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    return "\n".join(lines) + "\n"


def write_metadata(folder: Path, name: str, entry_points: str | None = None) -> None:
    """Write the metadata of a package; the default entry points are those of gridweave-papers."""
    metadata = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n", encoding="utf-8")
    text = papers_entry_points() if entry_points is None else entry_points
    (metadata / "entry_points.txt").write_text(text, encoding="utf-8")

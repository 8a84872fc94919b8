"""Find the entry points of gridweave and of installed packages that extend gridweave."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from gridweave.errors import InputError

OWN = "gridweave"
"""Name of this distribution."""

_CHECKOUT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def own_entry_points(group: str) -> dict[str, str]:
    """Return gridweave's own entry points in a group, as a map from names to ``module:attribute``.

    In a checkout, read the entry points from pyproject.toml, as the installed package may be older or missing.
    """
    try:
        project = tomllib.loads(_CHECKOUT.read_text(encoding="utf-8"))["project"]
    except FileNotFoundError:
        project = {}
    if project.get("name") == OWN:
        return dict(project["entry-points"].get(group, {}))
    return {point.name: point.value for point in metadata.distribution(OWN).entry_points.select(group=group)}


def all_entry_points(group: str) -> dict[str, str]:
    """Return all entry points in a group, as a map from names to ``module:attribute``, sorted by name.

    The search through all installed packages takes about 10 ms.

    Raises
    ------
    InputError
        If two packages have different entry points with the same name.
    """
    entry_points = own_entry_points(group)
    owner = dict.fromkeys(entry_points, OWN)
    for point in metadata.entry_points(group=group):
        package = "" if point.dist is None else point.dist.name
        if package != OWN and entry_points.setdefault(point.name, point.value) != point.value:
            both = f"{owner[point.name]} and {package}"
            raise InputError(f"{point.name!r} is an entry point in the group {group} of {both}; remove one of them")
        owner.setdefault(point.name, package)
    return dict(sorted(entry_points.items()))

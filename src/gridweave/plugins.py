"""Find what installed packages add to gridweave: the entry points of a group, gridweave's own included."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from gridweave.errors import InputError

OWN = "gridweave"
"""The name of this distribution."""

_CHECKOUT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def own_entry_points(group: str) -> dict[str, str]:
    """Return gridweave's own entry points of a group as ``module:attribute``, by name.

    In a checkout they are read from its pyproject.toml: what is installed may be older, or not there at all.
    """
    try:
        project = tomllib.loads(_CHECKOUT.read_text(encoding="utf-8"))["project"]
    except FileNotFoundError:
        project = {}
    if project.get("name") == OWN:
        return dict(project["entry-points"].get(group, {}))
    return {point.name: point.value for point in metadata.distribution(OWN).entry_points.select(group=group)}


def all_entry_points(group: str) -> dict[str, str]:
    """Return the entry points of a group as ``module:attribute``, by name in alphabetical order.

    This looks at all installed packages, which takes some 10 ms.

    Raises
    ------
    InputError
        If two packages have an entry point of one name.
    """
    found = own_entry_points(group)
    owner = dict.fromkeys(found, OWN)
    for point in metadata.entry_points(group=group):
        package = "" if point.dist is None else point.dist.name
        if package != OWN and found.setdefault(point.name, point.value) != point.value:
            both = f"{owner[point.name]} and {package}"
            raise InputError(f"{point.name!r} is an entry point in the group {group} of {both}; remove one of them")
        owner.setdefault(point.name, package)
    return dict(sorted(found.items()))

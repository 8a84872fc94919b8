"""Find what installed packages add to gridweave: the entry points of a group, gridweave's own included."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from gridweave.errors import InputError

OWN = "gridweave"
"""The name of this distribution."""

_CHECKOUT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def entry_points(group: str) -> dict[str, str]:
    """Return the entry points of a group as ``module:attribute``, by name in alphabetical order.

    In a checkout, gridweave's own are read from its pyproject.toml: what is installed may be older, or not there.

    Raises
    ------
    InputError
        If two packages have an entry point of one name.
    """
    own = _own_in_checkout(group)
    found, owner = own.copy(), dict.fromkeys(own, OWN)
    for point in metadata.entry_points(group=group):
        package = OWN if point.dist is None else point.dist.name
        if own and package == OWN:
            continue
        if found.setdefault(point.name, point.value) != point.value:
            both = f"{owner[point.name]} and {package}"
            raise InputError(f"{point.name!r} is an entry point in the group {group} of {both}; remove one of them")
        owner.setdefault(point.name, package)
    return dict(sorted(found.items()))


def _own_in_checkout(group: str) -> dict[str, str]:
    try:
        project = tomllib.loads(_CHECKOUT.read_text(encoding="utf-8"))["project"]
    except FileNotFoundError:
        return {}
    return dict(project["entry-points"][group]) if project["name"] == OWN else {}

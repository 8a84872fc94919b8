"""What ships with gridweave: scenarios, and machine configurations that scenarios name."""

from __future__ import annotations

import importlib.resources
from importlib.resources.abc import Traversable

import msgspec

from gridweave.errors import InputError
from gridweave.grid.config.tables import Site

_MACHINES_FILE = "machines.toml"
_SUFFIX = ".toml"


class Machines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine configuration.

    Attributes
    ----------
    description : str
    groups : list of (int, int)
        How many sites, and the nodes of each of them.
    """

    description: str
    groups: list[tuple[int, int]]

    def sites(self) -> list[Site]:
        """Return the sites: ``n64-1`` is the first with 64 nodes."""
        return [
            Site(name=f"n{nodes}-{number}", nodes=nodes)
            for sites, nodes in self.groups
            for number in range(1, sites + 1)
        ]

    def __str__(self) -> str:
        return " + ".join(f"{sites} x {nodes}" for sites, nodes in self.groups)


def scenario_names() -> list[str]:
    """Return the names of the scenarios that ship with gridweave, in alphabetical order."""
    names = [entry.name for entry in _folder().iterdir()]
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and name != _MACHINES_FILE)


def scenario_text(name: str) -> str:
    """Return the text of a shipped scenario.

    Parameters
    ----------
    name : str
        One of `scenario_names`.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    if name not in scenario_names():
        raise InputError(f"{name}: there is no such scenario in the catalogue; it has {', '.join(scenario_names())}")
    return (_folder() / f"{name}{_SUFFIX}").read_text(encoding="utf-8")


def machine_configurations() -> dict[str, Machines]:
    """Return the machine configurations by name (Streit, Table 7.1).

    Examples
    --------
    >>> [site.name for site in machine_configurations()["m128"].sites()]
    ['n128-1', 'n128-2', 'n128-3', 'n128-4']
    """
    return msgspec.toml.decode((_folder() / _MACHINES_FILE).read_bytes(), type=dict[str, Machines])


def _folder() -> Traversable:
    return importlib.resources.files("gridweave.scenarios") / "catalogue"

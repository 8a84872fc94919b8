"""Commands that other packages add to ``gridweave``, through the entry point group ``gridweave.commands``.

An entry point is named after its command. It points to a function that typer turns into a command, or to a
``typer.Typer`` with commands of its own. ``gridweave --help`` imports it, so heavy imports belong inside its functions.
The commands of gridweave itself cannot be replaced.
"""

from __future__ import annotations

import importlib
from typing import Any

from gridweave.errors import UnavailableError

GROUP = "gridweave.commands"

OFFERED = {"reproduce": "gridweave-papers (in a checkout: pip install ./papers)"}
"""Maps each command from a separate package of this repository to that package."""


def installed() -> dict[str, str]:
    """Return the added commands as ``module:attribute``, by name in alphabetical order."""
    from gridweave.plugins import all_entry_points  # commands that always exist start 10 ms sooner without it

    return all_entry_points(GROUP)


def find(name: str) -> str | None:
    """Return an added command as ``module:attribute``, or None if there is no such command.

    Raises
    ------
    UnavailableError
        If a package of this repository has the command and is not installed.
    """
    place = installed().get(name)
    if place is None and name in OFFERED:
        raise UnavailableError(f"{name} is not installed; install {OFFERED[name]}")
    return place


def load(name: str, place: str) -> Any:
    """Import an added command.

    Raises
    ------
    UnavailableError
        If the import fails, whatever it raises.
    """
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise UnavailableError(f"{name}: cannot import {place}: {error}") from error

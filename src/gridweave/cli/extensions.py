"""Commands that other packages add to ``gridweave``, through the entry point group ``gridweave.commands``.

An entry point is named after its command. It points to a function that typer turns into a command, or to a
``typer.Typer`` with commands of its own. ``gridweave --help`` imports it, so heavy imports belong inside its functions.
The commands of gridweave itself cannot be replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gridweave.errors import UnavailableError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "gridweave.commands"

OFFERED = {"reproduce": "gridweave-papers (in a checkout: pip install ./papers)"}
"""Command to the package that has it, for packages of ours."""


def installed() -> dict[str, EntryPoint]:
    """Return the entry point of each added command, sorted by name."""
    from importlib.metadata import entry_points  # commands that always exist start 10 ms sooner without it

    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def find(name: str) -> EntryPoint | None:
    """Return the entry point of a command, or None if there is no such command.

    Raises
    ------
    UnavailableError
        If a package of ours has the command and is not installed.
    """
    entry = installed().get(name)
    if entry is None and name in OFFERED:
        raise UnavailableError(f"{name} is not installed; install {OFFERED[name]}")
    return entry


def load(entry: EntryPoint) -> Any:
    """Import an added command.

    Raises
    ------
    UnavailableError
        If the import fails, whatever it raises.
    """
    try:
        return entry.load()
    except Exception as error:
        package = entry.dist.name if entry.dist else entry.module
        raise UnavailableError(f"{entry.name}: cannot import {entry.value} from {package}: {error}") from error

"""``gridweave status``: whether all is well with the grid on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from gridweave.cli.output import print_json, print_table, say
from gridweave.cli.up import Json, Name
from gridweave.errors import UnavailableError

if TYPE_CHECKING:
    from gridweave.grid.service.status import LocalStatus


def status(name: Name = None, as_json: Json = False) -> None:
    """Show whether the grid on this machine is well; exits with status 3 if a part of it is missing.

    Example: gridweave status --json
    """
    from gridweave.grid.service.state import DEFAULT_NAME, known_grids
    from gridweave.grid.service.status import look

    name = name or DEFAULT_NAME
    found = look(name)
    if as_json:
        print_json(_plain(found))
    elif found.up:
        _print(found)
    else:
        say(f"nothing runs of the grid {name}; start it with: gridweave up" + f" --name {name}" * (name != "default"))
        if found.kept:
            say(f"{found.kept:,} parts of jobs go on; the next up finds them again, `gridweave down` ends them")
        others = [other for other in known_grids() if other != name]
        if others:
            say(f"other grids of yours: {', '.join(others)}")
    if not found.well:
        raise typer.Exit(UnavailableError.exit_status)


def _plain(found: LocalStatus) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain | {"well": found.well}


def _print(found: LocalStatus) -> None:
    from datetime import datetime

    def since(ms: int | None) -> str:
        return "" if ms is None else datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")

    rows = [
        (part.name, "well" if part.well else "MISSING", str(part.pid or ""), since(part.since_ms), part.detail)
        for part in found.parts
    ]
    word = "is well" if found.well else "is not well; `gridweave up` starts what is missing"
    print_table(rows, headings=("", "", "process", "since", ""), title=f"The grid {found.name} {word}", left=5)
    typer.echo(f"journals, jobs and output: {found.folder}")

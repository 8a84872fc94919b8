"""The reference of the command, made of its help: ``python -m gridweave.cli.reference docs/cli.md`` renews it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

MARK = "<!-- All below is made by `python -m gridweave.cli.reference docs/cli.md`. -->"


def reference(app: typer.Typer) -> str:
    """Return the reference of all commands, as Markdown."""
    group = typer.main.get_command(app)
    return "\n".join(line for name, command in _commands(group, "gridweave") for line in _section(name, command))


def renewed(page: str, app: typer.Typer) -> str:
    """Return a page with all below the mark made anew."""
    head, mark, _ = page.partition(MARK)
    assert mark, "the page has no mark below which the reference stands"
    return f"{head}{MARK}\n\n{reference(app)}"


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield all commands that do something, by their full names, in the order of the help."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for part, each in inner.items():
        yield from _commands(each, f"{name} {part}")


def _section(name: str, command: Any) -> Iterator[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *map(_argument, arguments)])
    yield f"### {name}\n\n    {usage}\n"
    for paragraph in (command.help or "").strip().split("\n\n"):
        text = " ".join(paragraph.split())
        example = text.removeprefix("Example: ")
        yield f"{text}\n" if example == text else f"    {example}\n"
    rows = [(f"`{_argument(param)}`", _help(param)) for param in arguments if getattr(param, "help", None)]
    rows += [(_option(param), _help(param)) for param in options if param.name != "help"]
    if rows:
        yield "| | |\n|---|---|"
        for left, right in rows:
            yield f"| {left} | {right} |"
        yield ""


def _help(param: Any) -> str:
    """Return the help text of an option or argument, without what is there for the terminal's markup alone."""
    return " ".join((param.help or "").split()).replace("\\[", "[")


def _argument(param: Any) -> str:
    shown = param.metavar or param.name.upper()
    return shown if param.required or shown.startswith("[") else f"[{shown}]"


def _option(param: Any) -> str:
    """Return the names of an option, and what its value is."""
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    if param.is_flag:
        return names
    value = param.metavar or "VALUE"
    return f"{names} `{value}`".replace("|", "\\|")


if __name__ == "__main__":
    from gridweave.cli.main import app as whole

    for place in map(Path, sys.argv[1:]):
        place.write_text(renewed(place.read_text(encoding="utf-8"), whole), encoding="utf-8")

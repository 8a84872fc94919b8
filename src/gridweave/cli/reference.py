"""Generate pages of the docs from the code.

``python -m gridweave.cli.reference docs/cli.md docs/options.md`` updates both pages: the command reference from the
command's help, and the tables of a job's options from `SubmitOptions`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from gridweave.grid.client.option import Option
from gridweave.grid.client.options import JOB_OPTIONS, OPTIONS, SBATCH, off_flag
from gridweave.site.job import JobRequest

MARK = "<!-- All below is made by `python -m gridweave.cli.reference docs/cli.md`. -->"

OPTIONS_MARK = "<!-- All below is made by `python -m gridweave.cli.reference docs/options.md`. -->"


def reference(app: typer.Typer) -> str:
    """Return the reference of all commands, as Markdown."""
    group = typer.main.get_command(app)
    return "\n".join(line for name, command in _commands(group, "gridweave") for line in _section(name, command))


def renewed(page: str, app: typer.Typer) -> str:
    """Return a page whose part below the mark is regenerated from the code."""
    mark, content = (OPTIONS_MARK, option_tables()) if OPTIONS_MARK in page else (MARK, reference(app))
    head, separator, _ = page.partition(mark)
    assert separator, "the page has no mark below which the reference stands"
    return f"{head}{mark}\n\n{content}"


def option_tables() -> str:
    """Return the tables of a job's options, as Markdown."""
    lines = ["## All options\n"]
    lines += ["| command line, `#GRIDWEAVE` | Python | field of the request | |", "|---|---|---|---|"]
    for key, option in OPTIONS.items():
        python = f"`{key}`" if key in JOB_OPTIONS else ""
        default = f" [default: {option.default}]" if option.default else ""
        if option.flags or python:
            lines.append(f"| {_flags(option)} | {python} | {_field(option)} | {option.help}{default} |")
    lines += ["", "## In `#SBATCH` lines\n", "| `#SBATCH` | as | |", "|---|---|---|"]
    for key, how in dict.fromkeys(SBATCH.values()):
        names = ", ".join(f"`--{name}`" if len(name) > 1 else f"`-{name}`" for name in how.names)
        same = OPTIONS[key].flag if how.value is None or how.names[0] == OPTIONS[key].flag[2:] else off_flag(key)
        lines.append(f"| {names} | {f'`{same}`' if same else ''} | {how.note} |")
    return "\n".join([*lines, ""])


def _flags(option: Option) -> str:
    """Return the flags of an option and its metavar."""
    names = ", ".join(f"`{name}`" for flag in option.flags for name in flag.split("/"))
    return f"{names} `{option.metavar}`".replace("|", "\\|") if names and option.metavar else names


def _field(option: Option) -> str:
    """Return the field that an option sets in a request to the REST interface."""
    if not option.field:
        return ""
    return f"`{option.field}`" if option.field in JobRequest.__struct_fields__ else f"`program.{option.field}`"


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield all commands without subcommands, with their full names, in the order of the help."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for part, subcommand in inner.items():
        yield from _commands(subcommand, f"{name} {part}")


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
    """Return the help text of an option or argument, without the escapes of the terminal's markup."""
    return " ".join((param.help or "").split()).replace("\\[", "[")


def _argument(param: Any) -> str:
    shown = param.metavar or param.name.upper()
    return shown if param.required or shown.startswith("[") else f"[{shown}]"


def _option(param: Any) -> str:
    """Return the names of an option and its metavar."""
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    if param.is_flag:
        return names
    value = param.metavar or "VALUE"
    return f"{names} `{value}`".replace("|", "\\|")


if __name__ == "__main__":
    from gridweave.cli.main import app as whole

    for place in map(Path, sys.argv[1:]):
        place.write_text(renewed(place.read_text(encoding="utf-8"), whole), encoding="utf-8")

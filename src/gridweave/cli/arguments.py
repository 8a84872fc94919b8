"""Arguments that several commands share, and the fast parsing of a command's arguments."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

# Base of typer's usage errors; it has no public name that is the same in all versions.
UsageError: type[Any] = typer.BadParameter.__mro__[1]

Trace = Annotated[
    str,
    typer.Argument(metavar="TRACE", help="Trace file (SWF or MuPSiE; plain, .gz or .xz) or name of a known trace."),
]
Nodes = Annotated[int | None, typer.Option(metavar="N", help="Nodes of the site. \\[default: from the trace]")]
Needs = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Needs of each task if the trace has none: lublin (drawn; quad-core nodes), lublin-root (the same, "
        "but one task needs more memory), hpc2n (from the trace's memory use; dual-core nodes), "
        "whole (a whole node), or a .csv file.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


Command = Callable[..., None]


def options_of(kind: type[Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds the fields of a dataclass to a command as options, after the command's own options.

    The command's first parameter gets the dataclass with the values of these options.
    """
    hints = get_type_hints(kind, include_extras=True)
    defaults = inspect.signature(kind).parameters

    def give(command: Command) -> Command:
        first, *own = inspect.signature(command, eval_str=True).parameters.values()
        added = [defaults[name].replace(annotation=hint) for name, hint in hints.items()]
        return with_parameters(command, [*own, *added], first.name, lambda values: kind(**values), hints)

    return give


def with_parameters(
    command: Command,
    parameters: Iterable[inspect.Parameter],
    name: str,
    make: Callable[[dict[str, Any]], Any],
    taken: Iterable[str],
) -> Command:
    """Return a command with other parameters; those in `taken` are turned into the original's parameter `name`."""

    @functools.wraps(command)
    def changed(**values: Any) -> None:
        command(**{name: make({key: values.pop(key) for key in taken})}, **values)

    signature = inspect.Signature([parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters])
    changed.__signature__ = signature  # type: ignore[attr-defined]
    changed.__annotations__ = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
    return changed


_READ = "gridweave.read"
_TEXTS = (str, str | None, list[str], list[str] | None)
_DIGITS = re.compile(r"\d{1,18}", re.ASCII)


class QuickCommand(TyperCommand):
    """A command that parses plain arguments itself and leaves only the others to typer.

    Some versions of typer load pydantic to convert arguments, which takes longer than a whole request to the grid.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        if not ctx.resilient_parsing:  # otherwise a shell is completing the command, and needs all parameters
            values, _, typed = self.make_parser(ctx).parse_args([*args])
            if not any(param.is_eager for param in typed):  # such as --help, which needs all parameters
                plain = dict(self._plain(values))
                ctx.params |= plain
                ctx.meta[_READ] = {"help", *plain}
        return super().parse_args(ctx, args)

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser for all parameters, including those that are already parsed."""
        read = ctx.meta.pop(_READ, set())
        parser = super().make_parser(ctx)
        ctx.meta[_READ] = read
        return parser

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters that are not parsed yet."""
        return [param for param in super().get_params(ctx) if param.name not in ctx.meta.get(_READ, ())]

    def _plain(self, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield name and value of each argument that is a text or a whole number, or is absent with a plain default."""
        hints = get_type_hints(self.callback, include_extras=True)
        for param in self.params:
            value, default = values.get(param.name), param.default
            if param.callback or param.envvar or getattr(param, "prompt", None):
                continue
            if value in (None, ()):
                if not param.required and isinstance(default, bool | int | float | str | None):
                    yield param.name, () if param.nargs == -1 or getattr(param, "multiple", False) else default
            elif get_origin(hint := hints.get(param.name)) is Annotated:
                kind, info = get_args(hint)[:2]
                if kind in _TEXTS and isinstance(value, str | list | tuple):
                    yield param.name, value
                elif kind in (int, int | None) and _is_number(value, info.min, info.max):
                    yield param.name, int(value)


def _is_number(value: Any, least: float | None, most: float | None) -> bool:
    """Whether a word is a whole number within the bounds; typer reports the errors of all other words."""
    if not isinstance(value, str) or not _DIGITS.fullmatch(value):
        return False
    return (least is None or int(value) >= least) and (most is None or int(value) <= most)

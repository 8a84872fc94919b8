"""Describe the syntax of a job option on the command line, in ``#GRIDWEAVE`` lines and in ``#SBATCH`` lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gridweave.errors import check_known


@dataclass(frozen=True, kw_only=True)
class Sbatch:
    """The syntax of an option in ``#SBATCH`` lines.

    Parameters
    ----------
    names : tuple of str
        The long name, then the one-letter name if the option has one.
    parse : callable, optional
        Parses the value, if Slurm's format differs from gridweave's. The first argument is the option's name for error
        messages. By default, whole numbers must be at least 1.
    value : object
        The value to set, for options that take no value in Slurm.
    note : str
        Text for docs/options.md: the accepted values, and how the option differs from gridweave's.
    """

    names: tuple[str, ...]
    parse: Callable[[str, str], Any] | None = None
    value: Any = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A job option, with its syntax in each place where a user can set the option.

    Parameters
    ----------
    flags : tuple of str
        Flags on the command line and in ``#GRIDWEAVE`` lines; empty if the option cannot be set there.
    value : type
        Type of the flag's value; bool for flags without a value.
    many : type, optional
        For repeatable flags, the type that collects their values: tuple or dict. Values from a script and from the
        command line are then combined.
    metavar, help, default : str
        Help texts: the placeholder for the value, the description of the option, and the default in words.
    least, most : int, optional
        Bounds of a whole number.
    choices : tuple of str
        The allowed values.
    parse : callable, optional
        Parses the value, given the option's name for error messages and the text. By default the value is the text.
    sbatch : tuple of Sbatch
        The option's syntax in ``#SBATCH`` lines; empty if the option cannot be set there.
    field : str
        The field of a `JobRequest`, or of its `Program`, that the option sets. Errors about the field name the flag.
    quoted : bool
        Whether ``gridweave quote`` accepts the option.
    is_site : bool
        Whether the value is the name of a site, so that shells can complete it.
    """

    flags: tuple[str, ...] = ()
    value: type = str
    many: type[tuple[Any, ...]] | type[dict[Any, Any]] | None = None
    metavar: str | None = None
    help: str = ""
    default: str = ""
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    parse: Callable[[str, str], Any] | None = None
    sbatch: tuple[Sbatch, ...] = ()
    field: str = ""
    quoted: bool = False
    is_site: bool = False

    @property
    def flag(self) -> str:
        """The flag that help texts and errors use for the option."""
        return self.flags[0].partition("/")[0] if self.flags else ""

    def read(self, name: str, written: Any) -> Any:
        """Parse a value as the user wrote it; errors refer to the option as `name`."""
        if self.many is not None:
            return self.many(self._read_one(name, text) for text in written)
        return self._read_one(name, written)

    def _read_one(self, name: str, written: Any) -> Any:
        if self.choices:
            check_known(name, written, self.choices)
        return written if self.parse is None else self.parse(name, written)

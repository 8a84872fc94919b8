"""How an option of a job is written: on the command line, in ``#GRIDWEAVE`` and in ``#SBATCH`` lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gridweave.errors import check_known


@dataclass(frozen=True, kw_only=True)
class Sbatch:
    """How an option is written in ``#SBATCH`` lines.

    Parameters
    ----------
    names : tuple of str
        The long name, then the letter if there is one.
    parse : callable, optional
        Parses a text, if Slurm writes the value differently from our command line. Its first argument is the name of
        the option for an error. By default whole numbers are counts from 1 up.
    value : object
        The value, for options that take no value in Slurm.
    note : str
        For docs/options.md: the accepted values, and how the option differs from ours.
    """

    names: tuple[str, ...]
    parse: Callable[[str, str], Any] | None = None
    value: Any = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Option:
    """How an option of a job is written, wherever a user can write it.

    Parameters
    ----------
    flags : tuple of str
        Flags on the command line and in ``#GRIDWEAVE`` lines; empty if the option cannot be written there.
    value : type
        Type of the value behind a flag; bool for flags without a value.
    many : type, optional
        For repeatable flags, the collection of their values: tuple or dict. The values of a script and of the command
        line then add up.
    metavar, help, default : str
        For the help: the name of the value, the description of the option, and the default in words.
    least, most : int, optional
        Bounds of a whole number.
    choices : tuple of str
        The allowed words.
    parse : callable, optional
        Parses a text; its first argument is the name of the option for an error. By default the value is the text.
    sbatch : tuple of Sbatch
        How the option is written in ``#SBATCH`` lines; empty if it cannot be written there.
    field : str
        The field of a `JobRequest`, or of its `Program`, that the option sets. Errors about the field name the flag.
    quoted : bool
        Whether ``gridweave quote`` has the option.
    is_site : bool
        Whether the value is the name of a site, which a shell can complete.
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
        """The flag that help and errors name."""
        return self.flags[0].partition("/")[0] if self.flags else ""

    def read(self, name: str, written: Any) -> Any:
        """Parse what a user has written; errors call the option `name`."""
        if self.many is not None:
            return self.many(self._read_one(name, text) for text in written)
        return self._read_one(name, written)

    def _read_one(self, name: str, written: Any) -> Any:
        if self.choices:
            check_known(name, written, self.choices)
        return written if self.parse is None else self.parse(name, written)

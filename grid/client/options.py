"""Look up job options, and parse their values from a command line or from option lines in a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast, get_type_hints

from gridweave.errors import OptionError, ProblemsError
from gridweave.grid.client import option_texts as texts
from gridweave.grid.client.job_options import JobOptions, SubmitOptions
from gridweave.grid.client.option import Option, Sbatch

OPTIONS: Mapping[str, Option] = {
    key: next(part for part in hint.__metadata__ if isinstance(part, Option))
    for key, hint in get_type_hints(SubmitOptions, include_extras=True).items()
}
"""All job options, by key."""

JOB_OPTIONS: Mapping[str, Option] = {key: OPTIONS[key] for key in JobOptions.__annotations__}
"""The options that `Client.submit` accepts as keyword arguments, by key."""

FLAGS: Mapping[str, str] = {key: option.flag for key, option in OPTIONS.items() if option.flag}
"""The flag that errors use for an option, by the option's key."""

FLAG_OF_FIELD: Mapping[str, str] = {
    option.field: option.flag for option in OPTIONS.values() if option.field and option.flag
}
"""The flag that sets a field of a `JobRequest` or of its `Program`, by field."""


class SbatchName(NamedTuple):
    """The key of the option that a name in an ``#SBATCH`` line sets, and the option's ``#SBATCH`` syntax."""

    key: str
    how: Sbatch


SBATCH: Mapping[str, SbatchName] = {
    name: SbatchName(key, how) for key, option in OPTIONS.items() for how in option.sbatch for name in how.names
}
"""The options of ``#SBATCH`` lines, by long name and by letter."""


def read_flags(flags: Mapping[str, Any]) -> SubmitOptions:
    """Parse a command line's options and return their values by key; None and empty lists stand for absent options.

    Raises
    ------
    OptionError
        If a value is invalid; the error names the flag.
    ProblemsError
        If several values are invalid.
    """
    values: dict[str, Any] = {}
    problems: list[OptionError] = []
    for key, option in OPTIONS.items():
        written = flags.get(key)
        if written is None or written in ((), []):
            continue
        try:
            values[key] = option.read(option.flag, written)
        except OptionError as error:
            problems.append(error)
    if problems:
        raise problems[0] if len(problems) == 1 else ProblemsError(problems)
    return cast("SubmitOptions", values)


def read_sbatch(name: str, text: str) -> SubmitOptions:
    """Parse an option of an ``#SBATCH`` line and return its value by key; raise OptionError if the option is invalid.

    Examples
    --------
    >>> read_sbatch("N", "2"), read_sbatch("no-requeue", "")
    ({'slurm_nodes': 2}, {'if_lost': 'fail'})
    """
    key, how = SBATCH[name]
    shown = f"--{how.names[0]}"
    option = OPTIONS[key]
    parse = how.parse or (texts.parse_count if option.value is int else option.read)
    return cast("SubmitOptions", {key: parse(shown, text) if how.value is None else how.value})


def joined(below: SubmitOptions, above: SubmitOptions) -> SubmitOptions:
    """Merge the options of two sources; `above` overrides `below`, but the values of repeatable options are combined.

    Examples
    --------
    >>> joined({"nodes": 1, "batch_options": ("nice=7",)}, {"nodes": 2, "batch_options": ("qos=night",)})
    {'nodes': 2, 'batch_options': ('nice=7', 'qos=night')}
    """
    values: dict[str, Any] = {**below, **above}
    for key in below.keys() & above.keys():
        if OPTIONS[key].many is not None:
            first, second = below[key], above[key]  # type: ignore[literal-required]
            values[key] = first | second if isinstance(first, dict) else first + second
    return cast("SubmitOptions", values)


def flag(key: str) -> str:
    """Return the flag of an option, for error messages."""
    return FLAGS[key]


def off_flag(key: str) -> str:
    """Return the flag that switches an option off, for error messages.

    Examples
    --------
    >>> off_flag("if_lost")
    '--no-requeue'
    """
    return OPTIONS[key].flags[0].partition("/")[2]

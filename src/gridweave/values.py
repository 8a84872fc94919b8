"""Parse values from the command line and from files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gridweave.errors import OptionError

_BYTES = re.compile(r"(\d{1,15}(?:\.\d{1,15})?) ?(?:([kmgtp])(i?))?b?(/s)?", re.ASCII | re.IGNORECASE)

Kinds = Mapping[str, Callable[[str], Any]]
"""Maps the name of each value to its parser."""


def parse_bytes(option: str, text: str, *, per_second: bool = False) -> float:
    """Parse an amount of data, e.g. ``64 GB``, ``1.5GiB`` or ``4096``, or a rate, e.g. ``200 MB/s``.

    Raise OptionError for `option` unless the value is valid and more than 0. Return bytes, or bytes/s if `per_second`.

    Examples
    --------
    >>> parse_bytes("--node-memory", "64 GB"), parse_bytes("--node-memory", "2GiB")
    (64000000000.0, 2147483648.0)
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None or bool(match.group(4)) > per_second:
        example = "200 MB/s" if per_second else "64 GB or 64 GiB"
        raise OptionError(option, f"{text!r} is not an amount of data; write for example {example}")
    base = 1024 if match.group(3) else 1000
    value = float(match.group(1)) * float(base) ** " kmgtp".index((match.group(2) or " ").lower())
    if value <= 0:
        raise OptionError(option, f"{text!r} must be more than 0")
    return value


def counted(number: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 job`` or ``2,000 jobs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def named_values(option: str, text: str, kinds: Kinds, right: str) -> dict[str, Any]:
    """Parse ``name=value,name=value``; each name may occur only once.

    Raise OptionError for `option` if any part is invalid; the message ends with the hint `right`.

    Examples
    --------
    >>> named_values("--form", "width=4, speed=2.5", {"width": int, "speed": float}, "write width=4")
    {'width': 4, 'speed': 2.5}
    """
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, is_given, value = (field.strip() for field in part.partition("="))
        if not is_given or name in values or name not in kinds:
            raise OptionError(option, f"{text!r}: {part.strip()!r} is not understood; {right}")
        try:
            values[name] = kinds[name](value)
        except ValueError:
            raise OptionError(option, f"{text!r}: {value!r} is not valid for {name}; {right}") from None
    return values

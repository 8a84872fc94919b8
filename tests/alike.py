"""Compare two cores attribute by attribute, to find what an encoded state omits."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.random import Generator

# Attributes that are valid for one instant only, or used only in error messages.
PASSING = {"out", "over", "_out", "_inner", "_fresh", "_life"}
# Caches, which are computed again on demand.
WORKED_OUT = {"_one_job._state", "_scratch", "_whys", "_why_never", "memo", "choice", "_find"}

# Dicts whose order does not matter.
UNORDERED = {"_end_ms"}

_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


def differences(mine: Any, other: Any, path: str = "it", seen: set[tuple[int, int]] | None = None) -> Iterator[str]:
    """Yield the paths at which two values differ."""
    seen = set() if seen is None else seen
    pair = id(mine), id(other)
    if mine is other or pair in seen or isinstance(mine, _CODE):
        return
    seen.add(pair)
    if type(mine) is not type(other):
        yield f"{path}: {mine!r:.200} and {other!r:.200}"
    elif isinstance(mine, np.ndarray):
        if mine.dtype != other.dtype or mine.shape != other.shape or mine.tobytes() != other.tobytes():
            yield f"{path}: {mine!r:.500} and {other!r:.500}"
    elif isinstance(mine, Generator):
        yield from differences(mine.bit_generator.state, other.bit_generator.state, path, seen)
    elif isinstance(mine, dict):
        if (sorted(mine) != sorted(other)) if path.rpartition(".")[2] in UNORDERED else (list(mine) != list(other)):
            yield f"{path}: {list(mine)!r:.200} and {list(other)!r:.200}"
        else:
            for key in mine:
                yield from differences(mine[key], other[key], f"{path}[{key!r}]", seen)
    elif isinstance(mine, tuple) and hasattr(mine, "_fields"):
        yield from _of_names(mine._fields, mine, other, path, seen)
    elif isinstance(mine, list | tuple):
        if len(mine) != len(other):
            yield f"{path}: {mine!r:.200} and {other!r:.200}"
        else:
            for number, (first, second) in enumerate(zip(mine, other, strict=True)):
                yield from differences(first, second, f"{path}[{number}]", seen)
    elif names := _names(mine):
        yield from _of_names(names, mine, other, path, seen)
    elif mine != other:
        yield f"{path}: {mine!r:.200} and {other!r:.200}"


def _names(value: Any) -> list[str]:
    """Return the names of all attributes of a value."""
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(value, "__dict__", {}), *slots]


def _of_names(names: Any, mine: Any, other: Any, path: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    for name in names:
        if not {name, f"{path.rpartition('.')[2]}.{name}"} & (PASSING | WORKED_OUT):
            yield from differences(getattr(mine, name), getattr(other, name), f"{path}.{name}", seen)

"""The state of a core as plain typed data, and as bytes: what a journal keeps, so that a core goes on where it stood.

Every core has ``state()``, which returns a `CoreState` of its own kind, and ``restore(state)``, by which a fresh core
of the same settings takes it in. A state holds numbers, texts, structs, tuples and dicts; arrays by the names of their
columns (`arrays_state`), generators of chance by their numbers (`generator_state`), and the states of its parts. No
name in the bytes is looked up. What a release may change of it says docs/journal.md, "Versions".
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from types import UnionType
from typing import Any, NamedTuple, Protocol, TypeVar, get_args, get_origin

import msgspec
import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from gridweave.errors import InputError

_LEVEL = 1  # of compression: most of a state are zeros, which the quickest level finds as well

A = TypeVar("A", bound=NamedTuple)


class CoreState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="state"):
    """What a core knows; the tag of each kind says whose state it is, and in which version: ``tag="SiteCore 1"``."""


class HasState(Protocol):
    """A core, or a part of one that may be another."""

    @property
    def state_type(self) -> Any:
        """What `state` returns and `restore` takes: a `CoreState`.

        Or a union of several, of which older releases have written all but the last; or, where a part may be another,
        `with_parts` of those parts.
        """

    def state(self) -> Any:
        """Return what is known; it is to be encoded before the core goes on, with which it may share parts."""

    def restore(self, state: Any) -> None:
        """Take in what another of the same settings knew; this one is fresh, and keeps parts of the state."""


def with_parts(kind: Any, *parts: HasState) -> Any:
    """Return a generic `CoreState` of what these parts know."""
    return kind[tuple(part.state_type for part in parts)]


class ArrayState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array, or a column of one."""

    dtype: str  # as numpy writes it, with the order of bytes: ``<i8``
    shape: tuple[int, ...]
    data: bytes  # in the order of C


Arrays = dict[str, ArrayState]
"""Arrays and columns by their names; a column of ``jobs`` is ``jobs.width``."""


class GeneratorState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a generator of chance stands."""

    kind: str  # ``PCG64``, or another of the same numbers
    # Of 128 bits, as hexadecimal digits.
    state: str
    increment: str
    # The half of a number that was not given out yet.
    has_uint32: int
    uinteger: int


def arrays_state(arrays: NamedTuple) -> Arrays:
    """Return the arrays of a named tuple, and of the named tuples within; what is no array is left out."""
    columns = _columns(arrays, "")
    return {name: ArrayState(array.dtype.str, array.shape, array.tobytes()) for name, array in columns}


def _columns(arrays: NamedTuple, prefix: str) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for name, value in zip(arrays._fields, arrays, strict=True):
        if hasattr(value, "_fields"):
            yield from _columns(value, f"{prefix}{name}.")
        elif isinstance(value, np.ndarray):
            if value.dtype.names is None:
                yield prefix + name, value
            else:
                yield from ((f"{prefix}{name}.{column}", value[column]) for column in value.dtype.names)


def restored_arrays(fresh: A, kept: Arrays) -> A:
    """Return the arrays that `arrays_state` was given, in their sizes; what was not kept is as in a fresh core."""
    left = dict(kept)
    try:
        arrays = _filled(fresh, left, "")
    except (TypeError, ValueError) as error:
        raise InputError(f"an array does not fit: {error}") from error
    if left:
        raise InputError(f"arrays that are not known: {', '.join(sorted(left))}")
    return arrays


def _filled(fresh: A, left: Arrays, prefix: str) -> A:
    """Take the arrays of a named tuple out of those that are left."""
    found: dict[str, Any] = {}
    for name, value in zip(fresh._fields, fresh, strict=True):
        if hasattr(value, "_fields"):
            found[name] = _filled(value, left, f"{prefix}{name}.")
        elif isinstance(value, np.ndarray):
            found[name] = _filled_array(value, left, prefix + name)
    return fresh._replace(**found)


def _filled_array(fresh: npt.NDArray[Any], left: Arrays, name: str) -> npt.NDArray[Any]:
    if fresh.dtype.names is None:
        kept = left.pop(name, None)
        return fresh if kept is None else _array(kept, fresh.dtype)
    columns = {column: left.pop(f"{name}.{column}") for column in fresh.dtype.names if f"{name}.{column}" in left}
    if not columns:
        return fresh
    # A column may have several numbers a row.
    shapes = {kept.shape[: len(kept.shape) - fresh.dtype[column].ndim] for column, kept in columns.items()}
    if len(shapes) > 1:
        raise ValueError(f"the columns of {name} are of {len(shapes)} sizes")
    shape = shapes.pop()
    found = fresh.copy() if shape == fresh.shape else np.zeros(shape, fresh.dtype)
    for column, kept in columns.items():
        found[column] = _array(kept, fresh.dtype[column].base)
    return found


def _array(kept: ArrayState, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    found = np.frombuffer(kept.data, np.dtype(kept.dtype)).reshape(kept.shape)
    return found.astype(dtype, casting="safe", copy=True)


def generator_state(rng: Generator) -> GeneratorState:
    """Return where a generator stands."""
    known: Any = rng.bit_generator.state
    numbers = known["state"]
    return GeneratorState(
        known["bit_generator"],
        f"{numbers['state']:x}",
        f"{numbers['inc']:x}",
        known["has_uint32"],
        known["uinteger"],
    )


def restore_generator(rng: Generator, kept: GeneratorState) -> None:
    """Have a generator go on where another of its kind stood."""
    try:
        rng.bit_generator.state = {
            "bit_generator": kept.kind,
            "state": {"state": int(kept.state, 16), "inc": int(kept.increment, 16)},
            "has_uint32": kept.has_uint32,
            "uinteger": kept.uinteger,
        }
    except (TypeError, ValueError) as error:
        raise InputError(f"the generator of chance there is another: {error}") from error


def kind_of(core: HasState) -> str:
    """Return whose state a core has, and in which version: ``SiteCore 1``."""
    newest = (get_args(core.state_type) if isinstance(core.state_type, UnionType) else (core.state_type,))[-1]
    return str((get_origin(newest) or newest).__struct_config__.tag)


def dump_state(core: HasState) -> bytes:
    """Return the state of a core as bytes."""
    return compressed(state_bytes(core))


def compressed(state: bytes) -> bytes:
    """Return what `state_bytes` has made as `read_state` takes it in."""
    return zlib.compress(state, _LEVEL)


def state_bytes(core: HasState) -> bytes:
    """Return the state of a core as bytes that are not compressed yet."""
    try:
        return _ENCODER.encode(core.state())
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"the state of a {type(core).__name__} cannot be kept: {error}") from error


def read_state(core: HasState, data: bytes) -> Any:
    """Return the state that `dump_state` has made bytes of, for a fresh core to take in (``restore``)."""
    try:
        return msgspec.msgpack.decode(zlib.decompress(data), type=core.state_type)
    except zlib.error as error:
        raise InputError(f"it is damaged: {error}") from error
    except msgspec.MsgspecError as error:
        raise InputError(f"it is not what a {type(core).__name__} of this release knows: {error}") from error


def hand_over(old: HasState, new: HasState) -> None:
    """Have a fresh core take in what another knows; it may have other settings, as far as these make no other state."""
    new.restore(msgspec.msgpack.decode(state_bytes(old), type=new.state_type))


_ENCODER = msgspec.msgpack.Encoder()

"""Convert a scheduler's state to plain typed data and to bytes, which a journal stores for recovery.

Every core has ``state()``, which returns the core's own type of `CoreState`, and ``restore(state)``, for a new core
with the same settings. A state consists of numbers, strings, structs, tuples, dicts and the states of parts; arrays are
saved as named columns (`arrays_state`), and random number generators as numbers (`generator_state`). Decoding never
imports anything named in the bytes. docs/journal.md, "Versions", says how a release may change a state.
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

_LEVEL = 1  # compression level: most of a state is zeros, which even the fastest level compresses well

A = TypeVar("A", bound=NamedTuple)


class CoreState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="state"):
    """Base class of states; a subclass's tag names the owner and the version, e.g. ``tag="SiteCore 1"``."""


class HasState(Protocol):
    """A core, or a replaceable part of a core, whose state can be saved and restored."""

    @property
    def state_type(self) -> Any:
        """The `CoreState` type that `state` returns and `restore` accepts.

        The type can be a union: the last member is the current type, and older releases wrote the other members. For
        a core with replaceable parts, the type is the result of `with_parts`.
        """

    def state(self) -> Any:
        """Return the state, which may share objects with the core; encode it before the core changes."""

    def restore(self, state: Any) -> None:
        """Restore this new core from the state of a core with equal settings; the state's objects may be kept."""


def with_parts(kind: Any, *parts: HasState) -> Any:
    """Return the generic `CoreState` type `kind`, parametrized with the state types of these parts."""
    return kind[tuple(part.state_type for part in parts)]


class ArrayState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array, or one column of a structured array."""

    dtype: str  # NumPy name with the byte order, e.g. ``<i8``
    shape: tuple[int, ...]
    data: bytes  # in C order


Arrays = dict[str, ArrayState]
"""Arrays and columns by name; e.g. ``jobs.width`` is the column ``width`` of the array ``jobs``."""


class GeneratorState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a random number generator."""

    kind: str  # e.g. ``PCG64``; must have the same state fields as PCG64
    # 128-bit integers in hexadecimal.
    state: str
    increment: str
    # The buffered half of a 64-bit number.
    has_uint32: int
    uinteger: int


def arrays_state(arrays: NamedTuple) -> Arrays:
    """Return the arrays in a named tuple and in the named tuples nested in it; other values are omitted."""
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
    """Restore arrays from the result of `arrays_state`, with their saved sizes; take missing arrays from ``fresh``."""
    left = dict(kept)
    try:
        arrays = _filled(fresh, left, "")
    except (TypeError, ValueError) as error:
        raise InputError(f"an array does not fit: {error}") from error
    if left:
        raise InputError(f"unknown arrays: {', '.join(sorted(left))}")
    return arrays


def _filled(fresh: A, left: Arrays, prefix: str) -> A:
    """Build a named tuple from saved arrays; remove each array that is used from ``left``."""
    values: dict[str, Any] = {}
    for name, value in zip(fresh._fields, fresh, strict=True):
        if hasattr(value, "_fields"):
            values[name] = _filled(value, left, f"{prefix}{name}.")
        elif isinstance(value, np.ndarray):
            values[name] = _filled_array(value, left, prefix + name)
    return fresh._replace(**values)


def _filled_array(fresh: npt.NDArray[Any], left: Arrays, name: str) -> npt.NDArray[Any]:
    if fresh.dtype.names is None:
        kept = left.pop(name, None)
        return fresh if kept is None else _array(kept, fresh.dtype)
    columns = {column: left.pop(f"{name}.{column}") for column in fresh.dtype.names if f"{name}.{column}" in left}
    if not columns:
        return fresh
    # A column may have several numbers per row.
    shapes = {kept.shape[: len(kept.shape) - fresh.dtype[column].ndim] for column, kept in columns.items()}
    if len(shapes) > 1:
        raise ValueError(f"the columns of {name} have {len(shapes)} different sizes")
    shape = shapes.pop()
    array = fresh.copy() if shape == fresh.shape else np.zeros(shape, fresh.dtype)
    for column, kept in columns.items():
        array[column] = _array(kept, fresh.dtype[column].base)
    return array


def _array(kept: ArrayState, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    array = np.frombuffer(kept.data, np.dtype(kept.dtype)).reshape(kept.shape)
    return array.astype(dtype, casting="safe", copy=True)


def generator_state(rng: Generator) -> GeneratorState:
    """Return the state of a random number generator."""
    state: Any = rng.bit_generator.state
    numbers = state["state"]
    return GeneratorState(
        state["bit_generator"],
        f"{numbers['state']:x}",
        f"{numbers['inc']:x}",
        state["has_uint32"],
        state["uinteger"],
    )


def restore_generator(rng: Generator, kept: GeneratorState) -> None:
    """Set a random number generator to a state from a generator of the same kind."""
    try:
        rng.bit_generator.state = {
            "bit_generator": kept.kind,
            "state": {"state": int(kept.state, 16), "inc": int(kept.increment, 16)},
            "has_uint32": kept.has_uint32,
            "uinteger": kept.uinteger,
        }
    except (TypeError, ValueError) as error:
        raise InputError(f"the state is of another kind of random number generator: {error}") from error


def kind_of(core: HasState) -> str:
    """Return the owner and version of a core's state, e.g. ``SiteCore 1``."""
    newest = (get_args(core.state_type) if isinstance(core.state_type, UnionType) else (core.state_type,))[-1]
    return str((get_origin(newest) or newest).__struct_config__.tag)


def dump_state(core: HasState) -> bytes:
    """Return a core's state as compressed bytes."""
    return compressed(state_bytes(core))


def compressed(state: bytes) -> bytes:
    """Compress the result of `state_bytes`; `read_state` decompresses it."""
    return zlib.compress(state, _LEVEL)


def state_bytes(core: HasState) -> bytes:
    """Return a core's state as uncompressed bytes."""
    try:
        return _ENCODER.encode(core.state())
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"the state of a {type(core).__name__} cannot be encoded: {error}") from error


def read_state(core: HasState, data: bytes) -> Any:
    """Decode the result of `dump_state`; pass the decoded state to the ``restore`` method of a new core."""
    try:
        return msgspec.msgpack.decode(zlib.decompress(data), type=core.state_type)
    except zlib.error as error:
        raise InputError(f"it is damaged: {error}") from error
    except msgspec.MsgspecError as error:
        raise InputError(f"it is not the state of a {type(core).__name__} of this release: {error}") from error


def hand_over(old: HasState, new: HasState) -> None:
    """Restore a new core from the state of an old core; their settings may differ, but not their state types."""
    new.restore(msgspec.msgpack.decode(state_bytes(old), type=new.state_type))


_ENCODER = msgspec.msgpack.Encoder()

"""The state of a core as bytes, and back into a fresh core of the same sources."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import pickle
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError

_OURS = "gridweave."
_SHELLS = ("gridweave.site.journal.", "gridweave.site.machine.", "gridweave.site.service.")

# What else a core's state may name; nothing of it does more than to make a value.
_ALLOWED = {
    "builtins": {"set", "frozenset", "complex", "bytearray", "range", "slice"},
    "collections": {"OrderedDict", "defaultdict", "deque"},
    "copyreg": {"_reconstructor"},
    "gridweave.site.journal.snapshot": {"_view"},
    "gridweave.site.launch": {"Call", "Launch", "Rank", "RankReport", "Usage"},
    "msgspec._utils": {"rebuild"},
    "numpy": {"ndarray", "dtype", "int64", "float64", "bool_"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.random._pickle": {"__generator_ctor", "__bit_generator_ctor"},
    "numpy.random._pcg64": {"PCG64", "PCG64DXSM"},
    "numpy.random._philox": {"Philox"},
    "numpy.random._sfc64": {"SFC64"},
    "numpy.random._mt19937": {"MT19937"},
    "numpy.random.bit_generator": {"SeedSequence", "__pyx_unpickle_SeedSequence"},
}


def dump_core(core: object) -> bytes:
    """Return the state of a core as bytes.

    Parameters
    ----------
    core : object
        Its state is data (numbers, containers, structs, numpy arrays, generators), and functions that are attributes.

    Returns
    -------
    bytes
        The functions are left out: a fresh core of the same policy has them.

    Raises
    ------
    InputError
        If the state holds something else.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, core).dump(vars(core))
    except (pickle.PickleError, TypeError, AttributeError) as error:
        raise InputError(f"the state of a {type(core).__name__} cannot be kept: {error}") from error
    return buffer.getvalue()


def load_core(core: object, state: bytes, where: str) -> None:
    """Give a fresh core the state that `dump_core` has returned.

    Parameters
    ----------
    core : object
        Made as the one whose state it was. Nothing of it has changed if an error is raised.
    where : str
        How the journal is called in an error.

    Raises
    ------
    InputError
        If the bytes are not a state of such a core.
    """
    try:
        attributes = _Unpickler(io.BytesIO(state), core).load()
        if not isinstance(attributes, dict) or attributes.keys() != vars(core).keys():
            raise pickle.UnpicklingError("it has other attributes")
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError, ValueError) as error:
        raise InputError(f"{where}: the snapshot there is none of a {type(core).__name__}: {error}") from error
    vars(core).update(attributes)


class _Pickler(pickle.Pickler):
    """Writes functions as where they are found, and views of an array as views."""

    def __init__(self, file: io.BytesIO, core: object) -> None:
        super().__init__(file, protocol=5)
        self._known = {id(value): path for path, value in _functions(core)}
        self._known[id(core)] = ()

    def persistent_id(self, obj: object) -> tuple[str, ...] | None:
        return self._known.get(id(obj))

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, (type, FunctionType, BuiltinFunctionType)):
            _check_name(obj.__module__, obj.__qualname__)
        if type(obj) is np.ndarray and type(obj.base) is np.ndarray:
            # Pickled by itself a view becomes a copy, and no longer sees what changes in its array.
            offset = obj.__array_interface__["data"][0] - obj.base.__array_interface__["data"][0]
            return _view, (obj.base, offset, obj.dtype, obj.shape, obj.strides)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Loads data alone: no name but those of a core's state is looked up."""

    def __init__(self, file: io.BytesIO, core: object) -> None:
        super().__init__(file)
        self._core = core

    def find_class(self, module: str, name: str) -> Any:
        _check_name(module, name)
        found = super().find_class(module, name)
        if module.startswith(_OURS) and not isinstance(found, type) and found is not _view:
            raise pickle.UnpicklingError(f"{module}.{name} is no class")
        return found

    def persistent_load(self, pid: tuple[str, ...]) -> object:
        found = self._core
        for name in pid:
            found = getattr(found, name)
        return found


def _check_name(module: str, name: str) -> None:
    is_ours = module.startswith(_OURS) and not module.startswith(_SHELLS)
    if not is_ours and name not in _ALLOWED.get(module, ()):
        raise pickle.UnpicklingError(f"{module}.{name} is not data")


def _view(base: npt.NDArray[Any], offset: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Return a view of an array."""
    return np.ndarray(shape, dtype, buffer=base, offset=offset, strides=strides)


def _functions(core: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the functions that are attributes of a core, or of its parts, and the names that lead there."""
    seen = {id(core)}
    todo: list[tuple[tuple[str, ...], object]] = [((), core)]
    while todo:
        path, owner = todo.pop()
        for name, value in getattr(owner, "__dict__", {}).items():
            if id(value) in seen or isinstance(value, type):
                continue
            seen.add(id(value))
            if callable(value):
                yield (*path, name), value
            elif type(value).__module__.startswith(_OURS):
                todo.append(((*path, name), value))


def stamp_of(core: object) -> str:
    """Return a stamp of all that the bytes of `dump_core` depend on.

    Returns
    -------
    str
        It changes with the sources of the core and of all modules of gridweave that these import, but for comments and
        docstrings; and with the releases of Python, numpy and msgspec.
    """
    return _stamp(type(core).__module__, type(core).__qualname__)


@cache
def _stamp(module: str, name: str) -> str:
    known = hashlib.blake2b(digest_size=16)
    python = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor} {sys.byteorder}"
    known.update(f"{module}.{name} {python} numpy {np.__version__} msgspec {msgspec.__version__}".encode())
    found: dict[str, bytes] = {}
    todo = [module]
    while todo:
        next_module = todo.pop()
        if next_module not in found:
            found[next_module], imported = _source_of(next_module)
            todo += imported
    for each, source in sorted(found.items()):
        known.update(each.encode() + b"\0" + source + b"\0")
    return known.hexdigest()


def _source_of(module: str) -> tuple[bytes, list[str]]:
    """Return what a module says, and the modules of gridweave that it imports; of what is no module, nothing."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return b"", []
    tree = ast.parse(Path(spec.origin).read_bytes())
    imported: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_OURS):
            imported += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names if alias.name.startswith(_OURS)]
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree).encode(), imported

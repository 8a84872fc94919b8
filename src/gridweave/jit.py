"""The one place that names the compiler: how a kernel is declared, and where what it was compiled to is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import platformdirs
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher

P = ParamSpec("P")
R = TypeVar("R")

# The kernels allocate nothing, so they need none of numba's reference counting, which would cost half of their time:
# a site's state is a tuple of arrays, and each call would count up and down for every one of them. Nor are the wrappers
# made by which C code, or for a private kernel Python, could call them: they take a tenth of the time to compile.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}


class _PromptCache(FunctionCache):
    """Load what was compiled before without what only a compilation needs.

    Numba first reads in its knowledge of all that numpy and scipy offer to compiled code, which takes a second, and
    then loads the machine code, which takes a fiftieth of one and uses none of it. A compilation reads it in by itself.
    """

    def load_overload(self, sig: object, target_context: Any) -> object:
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a pure function over numbers and numpy arrays, at its first call, and keep the result on disk.

    Parameters
    ----------
    function : callable
        Reads and writes its arguments alone: no clock, no I/O, no global state. It allocates no array. Its module lies
        in a folder named ``kernels``.

    Returns
    -------
    callable
        The same function, compiled. The plain one stays at hand as its ``py_func``.
    """
    return _compiled(function)


def kernel_part(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a short function of the innermost loops: as `kernel`, but put in line wherever a kernel calls it."""
    return _compiled(function, forceinline=True)


def prepared(function: Callable[P, R], *arguments: object) -> Callable[P, R]:
    """Return the machine code of a kernel for arguments of these types, to be called many times one by one.

    Numba looks at every array of every argument, at every call, to find the code that fits: for the state of a grid ten
    times as long as the call then takes. What is returned here does not look, so whoever calls it sees to the types.

    Parameters
    ----------
    function : callable
        A `kernel`, or a `kernel_part` without an underscore.
    *arguments
        Of the types that it will be called with; their values do not matter.

    Returns
    -------
    callable
        The kernel itself where compilation is switched off.
    """
    if not isinstance(function, Dispatcher):
        return function
    types = tuple(map(numba.typeof, arguments))
    return cast("Callable[P, R]", function.compile(types))


def _compiled(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    # A user's own choice of folder (NUMBA_CACHE_DIR) goes before ours; other users of numba are left alone.
    chosen = numba.config.CACHE_DIR  # type: ignore[attr-defined]  # set from the environment, when numba is imported
    try:
        numba.config.CACHE_DIR = str(Path(chosen) / _STAMP if chosen else _FOLDER / _STAMP)  # type: ignore[attr-defined]
        options["no_cpython_wrapper"] = function.__name__.startswith("_")
        dispatcher = numba.njit(**_OPTIONS, **options)(function)
        dispatcher._cache = _PromptCache(function)  # type: ignore[no-untyped-call]
        return cast("Callable[P, R]", dispatcher)
    finally:
        numba.config.CACHE_DIR = chosen  # type: ignore[attr-defined]


def _stamp() -> str:
    """Return a hash of the sources of all kernels, and of this file.

    Numba compiles a function anew when its own file has changed, but not when a function that it calls has; so what was
    compiled is kept apart for each state of all the sources.
    """
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in [Path(__file__), *sorted(package.glob("*/kernels/*.py"))]:
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


_FOLDER = platformdirs.user_cache_path("gridweave") / "kernels"
_STAMP = _stamp()

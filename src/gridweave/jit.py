"""The one place that names the compiler: how a kernel is declared, and where what it was compiled to is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import platformdirs

P = ParamSpec("P")
R = TypeVar("R")

# The kernels allocate nothing, so they need none of numba's reference counting, which would cost half of their time:
# a site's state is a tuple of arrays, and each call would count up and down for every one of them.
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}


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


def _compiled(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    # A user's own choice of folder (NUMBA_CACHE_DIR) goes before ours; other users of numba are left alone.
    chosen = numba.config.CACHE_DIR  # type: ignore[attr-defined]  # set from the environment, when numba is imported
    try:
        numba.config.CACHE_DIR = str(Path(chosen) / _STAMP if chosen else _FOLDER / _STAMP)  # type: ignore[attr-defined]
        return cast("Callable[P, R]", numba.njit(**_OPTIONS, **options)(function))
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

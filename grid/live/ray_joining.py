"""How commands join a Ray cluster: quietly, and without waiting minutes for one that is not there."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from gridweave.errors import UnavailableError

RAY_ERRORS = (ConnectionError, TimeoutError, ValueError, RuntimeError, AssertionError)
"""What `ray.init` raises where there is no cluster, or none can be started."""

_PATIENCE_S = 5.0
_QUIET = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def knock(address: str) -> None:
    """Find out in a few seconds that nothing listens at an address; Ray would take many minutes.

    Parameters
    ----------
    address : str

    Raises
    ------
    UnavailableError
        If nothing listens there.
    """
    host, colon, port = address.strip().removeprefix("ray://").rpartition(":")
    if not colon:
        return  # auto, or what Ray knows better
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S).close()
    except (OSError, ValueError, OverflowError) as error:
        told = getattr(error, "strerror", None) or error
        raise UnavailableError(f"--address: no Ray cluster answers at {address}: {told}") from None


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Let Ray start without a report to its makers, and without remarks of its own, unless the user says so."""
    added = [name for name in _QUIET if name not in os.environ]
    os.environ.update({name: _QUIET[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def join_problem(where: str, error: Exception) -> UnavailableError:
    """Return the error for a cluster that cannot be joined or started, in one line.

    Parameters
    ----------
    where : str
    error : Exception
        One of `RAY_ERRORS`.

    Returns
    -------
    UnavailableError
    """
    told = " ".join(str(error).split()) or type(error).__name__
    return UnavailableError(f"--address: Ray cannot be used on {where}: {told}")

"""How commands join a Ray cluster: quietly, and without waiting minutes for one that is not there."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gridweave.errors import UnavailableError

RAY_ERRORS = (ConnectionError, TimeoutError, ValueError, RuntimeError, AssertionError)
"""What `ray.init` raises where there is no cluster, or none can be started."""

_PATIENCE_S = 5.0
_LOOK_AT_RAY_EVERY_S, _MISSES = 5.0, 3
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


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Let nobody see what compiled code says on standard error; what is wrong comes as an exception."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


def watch_node(
    node: str, nodes: Callable[[], Sequence[Mapping[str, Any]]], lost: Callable[[], None], pause: Callable[[], object]
) -> None:
    """Watch the Ray node by which this process has joined a cluster, until it is gone.

    A process that is connected to Ray does not end with it, nor does it find its way to the Ray in its place.

    Parameters
    ----------
    node : str
        Its id.
    nodes : callable
        Returns the nodes of the cluster, as `ray.nodes` does.
    lost : callable
        Called when it was not there several times on end, or nobody could tell.
    pause : callable
        Waits until it is time to look.
    """
    missed = 0
    while missed < _MISSES:
        pause()
        try:
            is_there = any(one["NodeID"] == node and one["Alive"] for one in nodes())
        except Exception:  # whatever Ray raises where there is none any more
            is_there = False
        missed = 0 if is_there else missed + 1
    lost()


def watch_ray(lost: Callable[[], None]) -> None:
    """Have it heard when the Ray node by which this process has joined is gone; a thread of its own looks."""
    import ray

    node, pause = ray.get_runtime_context().get_node_id(), threading.Event()
    work = (node, ray.nodes, lost, lambda: pause.wait(_LOOK_AT_RAY_EVERY_S))
    threading.Thread(target=watch_node, args=work, name="gridweave-ray-watch", daemon=True).start()


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

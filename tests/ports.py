"""Ports that nobody else takes before the test that asked for one listens there."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

_FIRST, _EACH = 32_000, 150
"""Not what the kernel gives to whoever asks for any port (from 32,768), Ray to its workers, or a grid to its jobs."""

_NUMBERS = itertools.count(os.getpid())


def unused_port() -> int:
    """Return a port of this machine at which nobody listens, another each time, also beside other test processes."""
    worker = _worker()
    for number in itertools.islice(_NUMBERS, _EACH):
        port = _FIRST + _EACH * worker + number % _EACH
        with contextlib.suppress(OSError), socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"all ports of worker {worker} are taken")


def meeting_ports(machine: int) -> tuple[int, int]:
    """Return ports at which ranks meet on a machine of a grid: no other machine or test process has them."""
    low = 26_000 + 1_000 * _worker() + 20 * (machine % 50)
    return low, low + 20


def _worker() -> int:
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 5

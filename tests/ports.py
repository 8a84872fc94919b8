"""Ports that no other process takes before the test listens on them."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

_FIRST, _EACH = 32_000, 150
"""First port, and number of ports per test worker.

The range is clear of the kernel's free ports (from 32,768), of Ray's workers and of the jobs of a grid.
"""

_NUMBERS = itertools.count(os.getpid())


def unused_port() -> int:
    """Return a free port of this machine, a different one at each call and in each test process."""
    worker = _worker()
    for number in itertools.islice(_NUMBERS, _EACH):
        port = _FIRST + _EACH * worker + number % _EACH
        with contextlib.suppress(OSError), socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"all ports of worker {worker} are taken")


def meeting_ports(machine: int) -> tuple[int, int]:
    """Return the port range at which ranks meet on a machine; other machines and test processes have other ranges."""
    low = 26_000 + 1_000 * _worker() + 20 * (machine % 50)
    return low, low + 20


def _worker() -> int:
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 5

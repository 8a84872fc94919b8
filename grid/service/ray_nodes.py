"""Starts Ray nodes on this machine that outlive the caller: ``python -m gridweave.grid.service.ray_nodes``.

Loading Ray's command line takes a second of CPU time, so one process loads it and forks a ``ray start --block`` for
each node. Each fork leads its node's session, and the node's other processes end when the fork ends. The nodes to start
are read from standard input; the processes that were started are written to standard output.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import NoReturn

import msgspec

from gridweave.grid.config.local_state import LocalProcess
from gridweave.site.machine.processes import PR_SET_NAME, control_process

HEAD_S = 60.0
_LOOK_EVERY_S = 0.02


class RayNode(msgspec.Struct, frozen=True):
    """A Ray node to start."""

    name: str
    options: tuple[str, ...]  # options of ``ray start``
    log: str  # file of its output


class Launching(msgspec.Struct, frozen=True, kw_only=True):
    """A request to start nodes."""

    host: str
    port: int  # address of Ray's head
    head: RayNode | None = None  # None: the head is already running
    nodes: tuple[RayNode, ...] = ()  # nodes that join the head
    end_with: int = 0  # pid of the process whose end also ends the nodes; 0: none


def main() -> int:
    """Start the nodes read from standard input; return 1 if the head does not start."""
    import ray.scripts.scripts  # noqa: F401  # once, before forking, while the request is written

    orders = sys.stdin.buffer.read()
    if not orders:
        return 0  # the caller has changed its mind
    task = msgspec.json.decode(orders, type=Launching)
    head = None
    if task.head is not None:
        head = _launch(task.head, task.end_with)
        if not _answers(task.host, task.port, head):
            return 1
    for node in task.nodes:
        _launch(node, task.end_with)
    return 0


def _launch(node: RayNode, end_with: int) -> int:
    """Fork a process that becomes a node; report the process on standard output and return its pid."""
    # If this process is terminated, it still reports the process it has just forked.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        pid = os.fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _become(node, end_with)
        process = LocalProcess.of_pid(node.name, pid)
        assert process is not None, "a running child has a pid"
        sys.stdout.buffer.write(msgspec.json.encode(process) + b"\n")
        sys.stdout.buffer.flush()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def _become(node: RayNode, end_with: int) -> NoReturn:
    """Run a node in this process until the node ends, then exit."""
    status = 1
    try:
        os.setsid()
        if end_with:
            threading.Thread(target=_end_with, args=(end_with,), daemon=True).start()
        with contextlib.suppress(OSError):
            control_process(PR_SET_NAME, b"gridweave-ray")
        empty = os.open(os.devnull, os.O_RDONLY)
        log = os.open(node.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number, handle in enumerate((empty, log, log)):
            os.dup2(handle, number)
        sys.argv = ["ray", "start", *node.options]
        from ray.scripts.scripts import cli

        cli(["start", *node.options], prog_name="ray")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def _end_with(pid: int) -> None:
    """Terminate this node when the process ``pid`` ends."""
    with contextlib.suppress(OSError):  # the process has ended already
        select.select([os.pidfd_open(pid)], [], [])
    os.kill(os.getpid(), signal.SIGTERM)


def _answers(host: str, port: int, head: int) -> bool:
    """Wait until the head accepts connections; return False if the head ends or needs more than `HEAD_S`."""
    until = time.monotonic() + HEAD_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1.0):
            return True
        if os.waitpid(head, os.WNOHANG)[0]:
            return False
        time.sleep(_LOOK_EVERY_S)
    return False


if __name__ == "__main__":
    sys.exit(main())

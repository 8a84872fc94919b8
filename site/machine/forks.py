"""The runner's client of the fork server: requests shims, and replaces a server that has ended or does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from gridweave.site.machine.forkserver import FAILED, HELLO, MAX_REQUEST_BYTES, OK

LOG = "forkserver.log"
_AT_ONCE = 64
_WAKE = signal.SIGCONT
_ATTEMPTS = 3

ANSWER_S = 30.0
"""A server that does not answer for this long is replaced; a job of the same user may have stopped it [s]."""

OnShim = Callable[[Path, int | None, str], None]


class Forks:
    """Requests shims from a machine's fork server, which logs its own errors in ``forkserver.log``.

    ``on_shim`` is called with the requested folder, a pidfd of its shim and "", or with the folder, None and the reason
    for the failure.
    """

    def __init__(self, root: Path, environment: Mapping[str, str], on_shim: OnShim) -> None:
        self._root = root
        self._environment = dict(environment)
        self._on_shim = on_shim
        self._socket: socket.socket | None = None
        self._waiting: deque[bytes] = deque()
        self._asked: dict[bytes, None] = {}
        self._server = -1  # a pidfd of the server, once the server has sent it
        self._in_vain = 0
        self._patience: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[int]] = set()

    def ask(self, folder: Path) -> None:
        """Request a shim for a folder."""
        self._waiting.append(os.fsencode(folder))
        self._send()

    async def close(self) -> None:
        """Disconnect from the server, which exits when it has no shims left."""
        if self._patience is not None:
            self._patience.cancel()
        self._drop_socket()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def open(self) -> None:
        """Start a fork server and connect to it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                starting = self._start_server(theirs.fileno())
        except OSError as error:
            ours.close()
            self._server_gone(error)
            return
        # The started process forks the server and exits.
        task = asyncio.get_running_loop().create_task(asyncio.to_thread(starting.wait))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        ours.setblocking(False)
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours, self._receive)

    def _start_server(self, requests: int) -> subprocess.Popen[bytes]:
        with open(os.open(self._root / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as log:
            # -P prevents imports from the current directory.
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "gridweave.site.machine.forkserver", "--serve", str(requests)],
                pass_fds=[requests],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )

    def _send(self) -> None:
        """Send waiting requests, but keep the number of open requests too low to fill the socket."""
        while self._waiting and len(self._asked) < _AT_ONCE:
            if self._socket is None:
                self.open()
            if self._socket is None:
                continue
            request = self._waiting.popleft()
            self._asked[request] = None
            try:
                self._socket.send(request)
            except OSError:
                self._server_gone(None)
        self._be_patient()

    def _be_patient(self) -> None:
        """Replace the server if it does not answer in time; its shims keep running."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._asked:
            self._patience = asyncio.get_running_loop().call_later(ANSWER_S, self._waited_in_vain)

    def _waited_in_vain(self) -> None:
        self._server_gone(None)
        self._send()

    def _receive(self) -> None:
        if self._socket is None:
            return
        try:
            packet, handles, _, _ = socket.recv_fds(self._socket, MAX_REQUEST_BYTES + 256, 1)
        except BlockingIOError:
            return
        except OSError:
            packet, handles = b"", []
        if not packet:
            self._server_gone(None)
            self._send()
            return
        kind, text = packet[:1], packet[1:]
        if kind == HELLO and handles:
            self._server = handles[0]
            return
        self._in_vain = 0
        if kind == OK and handles:
            self._answered(text, handles[0], "")
        elif kind == FAILED:
            reason, _, request = text.partition(b"\0")
            self._answered(request, None, f"this machine cannot start another process: {reason.decode()}")
        else:
            self._answered(text, None, "the runner has no file descriptor left; raise its limit (ulimit -n)")
        self._send()

    def _answered(self, request: bytes, handle: int | None, reason: str) -> None:
        self._asked.pop(request, None)
        self._on_shim(Path(os.fsdecode(request)), handle, reason)

    def _server_gone(self, error: OSError | None) -> None:
        """Queue the unanswered requests for a new server, or fail them after several attempts without any answer."""
        self._drop_socket()
        self._in_vain += 1
        self._waiting.extendleft(reversed(self._asked))
        self._asked.clear()
        if self._in_vain >= _ATTEMPTS:
            self._in_vain = 0
            why = f"the fork server ended {_ATTEMPTS} times; see {self._root / LOG}"
            if error is not None:
                why = f"the fork server cannot be started: {os.strerror(error.errno or 0)}"
            lost, self._waiting = self._waiting, deque()
            for request in lost:
                self._answered(request, None, why)

    def _drop_socket(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._server >= 0:
            # Resume a server that a job has stopped, so that it notices the disconnect and exits.
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._server, _WAKE)
            os.close(self._server)
            self._server = -1

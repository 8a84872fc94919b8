"""The fork server: a process with everything loaded, of which each shim is a fork, and the guard of what they leave.

A Python that starts and imports what a shim needs takes tens of milliseconds of a core; a fork takes one. The server is
a child of nobody that matters: it survives its runner as long as it has shims, and takes no orders then. It is their
subreaper: a process that turns up below it and is no shim was left by a shim that was killed, and is killed as well.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
from pathlib import Path

from gridweave.site.machine.processes import (
    PR_SET_NAME,
    become_subreaper,
    control_process,
    signal_descendants,
    signal_pipe,
)
from gridweave.site.machine.shim import supervise_and_exit, warm_up

MAX_REQUEST_BYTES = 8192
OK = b"+"
FAILED = b"-"

_FIRST_GUARD_S = 0.02
_LAST_GUARD_S = 1.0


class ForkServer:
    """Forks shims as the runner asks, and kills what killed shims leave."""

    def __init__(self) -> None:
        self.requests: socket.socket | None = None
        self.shims: set[int] = set()
        self.guarding = False
        self.guard_s = _FIRST_GUARD_S
        self.selector = selectors.DefaultSelector()
        self.base = dict(os.environ)

    def run(self, requests: socket.socket) -> None:
        """Serve until the runner is gone and no shim is left.

        Each packet from the runner is the path of a folder. The answer is `OK` and that path, with a pidfd of the shim;
        or `FAILED`, the reason, NUL and the path.
        """
        self.requests = requests
        become_subreaper()
        warm_up()
        reader = signal_pipe({signal.SIGCHLD})
        self.selector.register(reader, selectors.EVENT_READ)
        self.selector.register(requests, selectors.EVENT_READ)
        gc.collect()
        gc.freeze()
        while self._needed():
            for key, _ in self.selector.select(self.guard_s if self.guarding else None):
                if key.fd == reader:
                    with contextlib.suppress(BlockingIOError):
                        os.read(reader, 4096)
                else:
                    self._serve()
            self._collect()

    def _needed(self) -> bool:
        return self.requests is not None or bool(self.shims) or self.guarding

    def _serve(self) -> None:
        assert self.requests is not None
        try:
            request = self.requests.recv(MAX_REQUEST_BYTES)
        except OSError:
            request = b""
        if not request:
            self.selector.unregister(self.requests)
            self.requests.close()
            self.requests = None
            return
        # A shim must not miss a signal that comes before it listens; it lets them in itself.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
        pid = -1
        try:
            pid = os.fork()
        except OSError as error:
            self._answer(FAILED + os.strerror(error.errno or 0).encode() + b"\0" + request)
            return
        finally:
            if pid != 0:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})
        if pid == 0:
            self._be_shim(Path(os.fsdecode(request)))
        self.shims.add(pid)
        handle = os.pidfd_open(pid)  # it has not been waited for, so this is it, even if it has ended
        try:
            self._answer(OK + request, handle)
        finally:
            os.close(handle)

    def _be_shim(self, folder: Path) -> None:
        """Be the shim: nothing of the server stays but what is loaded."""
        signal.set_wakeup_fd(-1)
        os.setsid()
        assert self.requests is not None
        self.requests.close()
        self.selector.close()
        supervise_and_exit(folder, self.base)

    def _answer(self, packet: bytes, handle: int | None = None) -> None:
        assert self.requests is not None
        with contextlib.suppress(OSError):
            socket.send_fds(self.requests, [packet], [] if handle is None else [handle])

    def _collect(self) -> None:
        """Wait for shims and for what they left; kill the latter."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.guarding = False
                return
            if pid == 0:
                break
            if pid in self.shims:
                self.shims.discard(pid)
                if status != 0:
                    self.guarding, self.guard_s = True, _FIRST_GUARD_S
        if self.guarding:
            self.guard_s = min(2 * self.guard_s, _LAST_GUARD_S)
            self.guarding = signal_descendants(signal.SIGKILL, spare=self.shims) > 0


def detach() -> None:
    """Leave the starter: whoever ends its children, its process group or its session does not mean this process."""
    if os.fork():
        os._exit(0)
    os.setsid()


def main(arguments: list[str]) -> None:
    """Serve on the socket of this number."""
    requests = socket.socket(fileno=int(arguments[0]))
    requests.set_inheritable(False)
    with contextlib.suppress(OSError):
        control_process(PR_SET_NAME, b"gridweave-forks")
    ForkServer().run(requests)


if __name__ == "__main__":
    detach()
    main(sys.argv[1:])

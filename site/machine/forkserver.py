"""The fork server: a process with all modules loaded that forks shims and kills the orphans of killed shims.

A shim is the small parent process of a node task's ranks, and survives the process that started it. Starting Python
with its imports takes tens of milliseconds of CPU time; a fork takes one. The server is detached: it outlives its
runner as long as it has shims, but no longer accepts requests. It is the subreaper of the shims, so any child process
that is not a shim was orphaned by a killed shim, and the server kills it.

To run the shim of a single node task by hand, use ``python -m gridweave.site.machine.forkserver FOLDER``.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import resource  # noqa: F401 -- os.wait4 imports it when it is called first, which each fork would do again
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gridweave.site.launch import Launch, NodeTaskState, Rank, RankReport, launch_problem
from gridweave.site.machine.environment import rank_environment
from gridweave.site.machine.folders import SHIM_LOG, STATE, read_launch, task_key
from gridweave.site.machine.processes import (
    PR_SET_NAME,
    be_last_to_go,
    become_subreaper,
    boot_id,
    control_process,
    descendants,
    process_stat,
    signal_descendants,
    signal_pipe,
)
from gridweave.site.machine.supervisor import Supervisor
from gridweave.site.machine.usage import process_io

MAX_REQUEST_BYTES = 8192
OK = b"+"
FAILED = b"-"
HELLO = b"!"
"""The server's first packet, sent with a pidfd of the server."""

_FIRST_GUARD_S = 0.02
_LAST_GUARD_S = 1.0


# -- a shim -----------------------------------------------------------------------------------------------------------


def warm_up() -> None:
    """Run everything that is slow only the first time, so that it is fast in forks of this process."""
    boot_id()
    rank = Rank(0)
    launch = Launch(job_id=0, attempt=0, ranks=(rank,))
    state = NodeTaskState(job_id=0, attempt=0, phase="ended", boot_id="", ranks=(RankReport(0, 0, 0),))
    for message in (launch, state):
        msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))
    launch_problem(launch)
    rank_environment(launch, Path(), rank, 0, "", {})
    own = process_stat(os.getpid())
    assert own is not None
    descendants(own.pid)
    process_io(own.pid)


def supervise(folder: Path, base: Mapping[str, str]) -> None:
    """Run the node task in a folder, unless another process is running the task or the task has run before.

    Only the process that holds the folder's lock may run the task, and an existing state means that the task has run.
    So a task runs at most once, however often its start is requested. The lock is released when its holder exits.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if (folder / STATE).exists():
        return
    supervisor = _supervisor_of(folder, base)
    with contextlib.suppress(OSError):
        control_process(PR_SET_NAME, b"gridweave-shim")
    supervisor.run()


def _supervisor_of(folder: Path, base: Mapping[str, str]) -> Supervisor:
    """Return a supervisor for the node task in a folder; if its files are unreadable, it reports failure."""
    launch = read_launch(folder)
    if launch is not None and (launch.job_id, launch.attempt) == task_key(folder):
        return Supervisor(folder, launch, base)
    job_id, attempt = task_key(folder) or (0, 0)
    supervisor = Supervisor(folder, Launch(job_id=job_id, attempt=attempt, ranks=()), base)
    supervisor.outcome = "failed"
    supervisor.reason = "launch.msgpack is missing, damaged or of another node task; start the job again"
    return supervisor


def _privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def supervise_and_exit(folder: Path, base: Mapping[str, str]) -> None:
    """Run `supervise` and exit this process; errors of the shim itself go into ``shim.log``."""
    status = 1
    try:
        supervise(folder, base)
        status = 0
    except BaseException:
        with contextlib.suppress(OSError), open(folder / SHIM_LOG, "a", encoding="utf-8", opener=_privately) as log:
            traceback.print_exc(file=log)
    finally:
        os._exit(status)


# -- the server -------------------------------------------------------------------------------------------------------


class ForkServer:
    """Forks shims when the runner requests them, and kills the orphans of killed shims."""

    def __init__(self) -> None:
        self.requests: socket.socket | None = None
        self.shims: set[int] = set()
        self.guarding = False
        self.guard_s = _FIRST_GUARD_S
        self.selector = selectors.DefaultSelector()
        self.base = dict(os.environ)

    def run(self, requests: socket.socket) -> None:
        """Serve until the runner has disconnected and no shim is left.

        Each packet from the runner is the path of a folder. The answer is `OK` and the path, with a pidfd of the shim;
        or `FAILED`, the reason, a NUL character and the path.
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
        # Block signals, so that the shim misses none before it has installed its handlers; the shim unblocks them.
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
        handle = os.pidfd_open(pid)  # even if the shim has ended, the pid is still its own until it is waited for
        try:
            self._answer(OK + request, handle)
        finally:
            os.close(handle)

    def _be_shim(self, folder: Path) -> None:
        """Turn this fork into the shim, after releasing the server's resources."""
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
        """Reap ended shims and orphans; kill orphans that are still running."""
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
    """Detach from the parent, so that killing its children, process group or session does not kill this process."""
    if os.fork():
        os._exit(0)
    os.setsid()


def serve(number: int) -> None:
    """Serve requests on the socket with this file descriptor."""
    requests = socket.socket(fileno=number)
    requests.set_inheritable(False)
    with contextlib.suppress(OSError):
        control_process(PR_SET_NAME, b"gridweave-forks")
    be_last_to_go()  # inherited by the shims
    own = os.pidfd_open(os.getpid())
    socket.send_fds(requests, [HELLO], [own])
    os.close(own)
    ForkServer().run(requests)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--serve":
        detach()
        serve(int(sys.argv[2]))
    elif len(sys.argv) == 2 and Path(sys.argv[1]).is_dir():
        supervise_and_exit(Path(sys.argv[1]).resolve(), dict(os.environ))
    else:
        sys.exit("usage: python -m gridweave.site.machine.forkserver FOLDER (a folder that holds launch.msgpack)")

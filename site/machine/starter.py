"""Start the ranks of a node task, either by the shim as its own user, or by the launcher as the job's user.

Both report ended descendants and can signal all their descendants. The parent of the ranks is the shim or a
`gridweave.site.machine.launcher.RankParent`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from typing_extensions import override

from gridweave.errors import UnavailableError
from gridweave.site.launch import Launch
from gridweave.site.machine.cgroups import ControlGroup, group_name
from gridweave.site.machine.folders import user_folder
from gridweave.site.machine.processes import (
    CLONE_NEWIPC,
    be_first_to_go,
    become_subreaper,
    continue_descendants,
    die_with_parent,
    process_stat,
    signal_descendants,
    stop_descendants,
    unshare,
)
from gridweave.site.machine.rank import GO, HANDLED, NOT_STARTED, RankStart, become_rank, forget_parent, report_problem
from gridweave.site.machine.usage import EndedProcess, reap


class Starter(Protocol):
    """Starts ranks, and tracks all their descendants."""

    root: int  # the common ancestor of all processes of the task
    nothing_left: bool
    has_own_ipc: bool  # whether the ranks have a separate IPC namespace

    def start(self, start: RankStart, gate: tuple[int, int], output: Sequence[int]) -> tuple[int, int, int]:
        """Start a rank, which waits at its gate; return its pid, start time in clock ticks, and report pipe.

        ``output`` contains the rank's descriptors from number 1: standard output, standard error, and the rendezvous
        socket if the rank inherits it.
        """

    def collect(self) -> list[EndedProcess]:
        """Return the processes that have ended since the last call."""

    def signal(self, number: int, *, only: Collection[int] = (), but: Collection[int] = ()) -> None:
        """Send a signal to all processes, or to those in ``only`` if it is not empty, except the pids in ``but``."""

    def pause(self) -> None:
        """Pause all processes."""

    def resume(self) -> None:
        """Resume all processes."""

    def gather(self, group: ControlGroup) -> None:
        """Move all processes into a control group."""

    def give(self, handle: int) -> None:
        """Transfer ownership of one of the shim's files to the job's user."""


class OwnStarter(Starter):
    """Starts ranks as the shim's own user."""

    def __init__(self, group: ControlGroup | None) -> None:
        become_subreaper()
        self.root = os.getpid()
        self.nothing_left, self.has_own_ipc = True, False
        self._group = group
        with contextlib.suppress(OSError):  # needs root; without a namespace, the runner cleans up IPC objects
            unshare(CLONE_NEWIPC)
            self.has_own_ipc = True

    @override
    def start(self, start: RankStart, gate: tuple[int, int], output: Sequence[int]) -> tuple[int, int, int]:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        # Block signals, so that the rank does not handle any with the shim's handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            pid = os.fork()
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        finally:
            if os.getpid() == self.root:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if pid == 0:
            self._be_rank(start, gate, writer, output)
        os.close(writer)
        os.set_blocking(reader, False)
        self.nothing_left = False
        stat = process_stat(pid)
        return pid, stat.start_ticks if stat else 0, reader

    def _be_rank(self, start: RankStart, gate: tuple[int, int], writer: int, output: Sequence[int]) -> None:
        try:
            os.close(gate[1])
            forget_parent()
            die_with_parent(self.root)
            be_first_to_go()
            if self._group is not None:
                self._group.add(os.getpid())
            become_rank(start, gate[0], writer, output)
        except OSError as error:
            report_problem(writer, f"rank {start.rank}: {os.strerror(error.errno or 0)}")
        finally:
            os._exit(NOT_STARTED)

    @override
    def collect(self) -> list[EndedProcess]:
        """Return the processes that have ended, including orphans, because this process is their subreaper."""
        ended, self.nothing_left = reap()
        return ended

    @override
    def signal(self, number: int, *, only: Collection[int] = (), but: Collection[int] = ()) -> None:
        signal_descendants(number, only=only, but=but)

    @override
    def pause(self) -> None:
        stop_descendants()

    @override
    def resume(self) -> None:
        continue_descendants()

    @override
    def gather(self, group: ControlGroup) -> None:
        group.gather(self.root)

    @override
    def give(self, handle: int) -> None:
        """Do nothing, because the file already belongs to the user."""


class LauncherStarter(Starter):
    """Starts ranks through this machine's launcher, as the Unix user of the job's user.

    Raises
    ------
    UnavailableError
        If the launcher does not answer, or does not accept the user.
    """

    def __init__(self, launch: Launch, folder: Path, *, is_grouped: bool = False, clears: bool = False) -> None:
        # If the kernel lacks IPC namespaces, the launcher logs that; only the user could remove the IPC objects then.
        self.nothing_left, self.has_own_ipc = True, True
        self._early: list[dict[str, Any]] = []
        self._socket = connect_launcher(launch.launcher)
        own = user_folder(folder, launcher=launch.launcher)
        paths = [own] if clears else [own, own / "work", own / "tmp"]
        for path in paths:
            path.mkdir(exist_ok=True)
        handles = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC) for path in paths]
        self.news = self._socket.fileno()  # readable when a process has ended
        try:
            group = "" if clears else group_name(folder)
            _send(self._socket, {"do": "keep", "user": launch.user, "group": group, "limited": is_grouped}, handles)
            self.root = int(self._answer("parent")["parent"])
        except (UnavailableError, OSError):
            self._socket.close()
            raise
        finally:
            for handle in handles:
                os.close(handle)
        self._socket.setblocking(False)

    @override
    def start(self, start: RankStart, gate: tuple[int, int], output: Sequence[int]) -> tuple[int, int, int]:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        what = os.memfd_create("rank", os.MFD_CLOEXEC)
        try:
            with open(what, "wb", closefd=False) as file:
                file.write(msgspec.json.encode(start))
            _send(self._socket, {"do": "start"}, [what, gate[0], writer, *output])
        finally:
            os.close(what)
            os.close(writer)
        answer = self._answer("pid")
        os.set_blocking(reader, False)
        self.nothing_left = False
        for earlier in self._early:
            earlier["nothing_left"] = False
        return int(answer["pid"]), int(answer["ticks"]), reader

    def _answer(self, name: str) -> dict[str, Any]:
        """Return the next message that contains this key; queue all other messages."""
        self._socket.setblocking(True)
        try:
            while True:
                message = _receive(self._socket)
                if name in message:
                    return message
                self._early.append(message)
        finally:
            self._socket.setblocking(False)

    @override
    def collect(self) -> list[EndedProcess]:
        ended: list[EndedProcess] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                message = self._early.pop(0) if self._early else _receive(self._socket)
                ended += [EndedProcess(*fields) for fields in message["ended"]]
                self.nothing_left = bool(message["nothing_left"])
        return ended

    @override
    def signal(self, number: int, *, only: Collection[int] = (), but: Collection[int] = ()) -> None:
        self._command({"do": "signal", "number": int(number), "only": [*only], "but": [*but]})

    @override
    def pause(self) -> None:
        """Request that the rank parent pause all processes; the pause takes effect a moment later."""
        self._command({"do": "pause"})

    @override
    def resume(self) -> None:
        self._command({"do": "resume"})

    @override
    def gather(self, group: ControlGroup) -> None:
        self._command({"do": "gather"})
        self._answer("gathered")

    def _command(self, what: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # if the rank parent has ended, so have all processes
            _send(self._socket, what, [])

    @override
    def give(self, handle: int) -> None:
        with contextlib.suppress(OSError):
            _send(self._socket, {"do": "give"}, [handle])

    def close(self) -> None:
        """Disconnect, which makes the launcher kill the remaining processes."""
        self._socket.close()


def clear_as_user(folder: Path, launch: Launch) -> None:
    """Empty the user's part of a node task's folder, running as that user."""
    _as_user(folder, launch, "chmod -R u+rwX . ; find . -mindepth 1 -delete")


def bytes_as_user(folder: Path, launch: Launch) -> int:
    """Return the disk use of the user's part of a node task's folder [bytes], measured as that user.

    Entries are counted as in `gridweave.site.machine.kept.folder_bytes`. Raise ValueError if the measurement fails.
    """
    return int(_as_user(folder, launch, f"chmod -R u+rwX . ; find . -printf '%b\\n' | {_SUM}"))


_SUM = """awk '{ n += $1 < 8 ? 8 : $1 } END { printf "%.0f", n * 512 }'"""


def _as_user(folder: Path, launch: Launch, script: str) -> bytes:
    """Run a shell script as the user, in the user's part of a node task's folder; return the script's output."""
    starter = LauncherStarter(launch, folder, clears=True)
    nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    gate, (reader, writer) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    handles = [*gate, reader, writer, nothing]
    try:
        # The user may have made the folder unreadable, so start elsewhere and chmod it first.
        place = str(user_folder(folder, launcher=launch.launcher))
        command = ("sh", "-c", f'chmod u+rwx "$0" && cd "$0" || exit 1; {script}', place)
        start = RankStart(0, command, {"PATH": os.defpath}, "/", None)
        # Keep the report pipe open for reading, because the rank writes to it before it starts.
        handles.append(starter.start(start, gate, (writer, nothing))[2])
        os.write(gate[1], GO)
        while not starter.nothing_left:
            select.select([starter.news], [], [])
            starter.collect()
        os.set_blocking(reader, False)
        with contextlib.suppress(BlockingIOError):
            return os.read(reader, _MOST_PRINTED)
        return b""
    finally:
        starter.close()
        for handle in handles:
            os.close(handle)


_MOST_PRINTED = 100


def connect_launcher(path: str) -> socket.socket:
    """Connect to the launcher that listens at this path; raise UnavailableError if it does not answer."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        why = os.strerror(error.errno or 0)
        advice = "start it there as root (docs/launchers.md)"
        raise UnavailableError(f"the launcher at {path} does not answer: {why}; {advice}") from error
    return connection


def ask_launcher(path: str, what: dict[str, Any]) -> dict[str, Any]:
    """Send a request to a launcher and return its answer.

    Raises
    ------
    UnavailableError
        If the launcher does not answer, or denies the request.
    """
    with connect_launcher(path) as connection:
        connection.settimeout(_PATIENCE_S)
        _send(connection, what, [])
        return _receive(connection)


_PATIENCE_S = 60.0


def _send(connection: socket.socket, what: dict[str, Any], handles: list[int]) -> None:
    packet = json.dumps(what).encode()
    if handles:
        socket.send_fds(connection, [packet], handles)
    else:
        connection.send(packet)


def _receive(connection: socket.socket) -> dict[str, Any]:
    try:
        packet = connection.recv(1 << 16)
    except TimeoutError as error:
        raise UnavailableError("the launcher does not answer; check its log") from error
    except ConnectionError:
        packet = b""
    if not packet:
        raise UnavailableError("the launcher has closed the connection; check its log")
    message: dict[str, Any] = json.loads(packet)
    if "problem" in message:
        raise UnavailableError(str(message["problem"]))
    return message

"""Who starts the ranks of a piece: the shim itself, as its own user, or a launcher, as the user of the job.

Either tells what has ended below it, and signals all that is there. The shim is the parent of the ranks it starts; a
launcher's keeper (`gridweave.site.machine.launcher`) is that of the others.
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
from gridweave.site.machine.rank import GO, HANDLED, NOT_STARTED, RankStart, become_rank, forget_parent, tell_problem
from gridweave.site.machine.usage import EndedProcess, reap


class Starter(Protocol):
    """Starts ranks, and knows what becomes of all that stems from them."""

    root: int  # the process of which all stems
    nothing_left: bool
    has_own_ipc: bool  # whether its ranks have an IPC namespace of their own

    def start(self, start: RankStart, gate: tuple[int, int], output: Sequence[int]) -> tuple[int, int, int]:
        """Start a rank and hold it at the gate; return its pid, its start time in clock ticks, and its report pipe.

        `output` are its descriptors from 1 on: standard output, error, and where its ranks meet if it gets that.
        """

    def collect(self) -> list[EndedProcess]:
        """Return what has ended since the last time."""

    def signal(self, number: int, *, only: Collection[int] = (), but: Collection[int] = ()) -> None:
        """Signal all that there is, or `only` some of it, or all `but` some."""

    def pause(self) -> None:
        """Have all that there is stand still."""

    def resume(self) -> None:
        """Let all that there is go on."""

    def gather(self, group: ControlGroup) -> None:
        """Move all that there is into a control group of the piece."""

    def give(self, handle: int) -> None:
        """Make a file of the shim's the user's."""


class OwnStarter:
    """Starts ranks as the user that it runs as itself."""

    def __init__(self, group: ControlGroup | None) -> None:
        become_subreaper()
        self.root = os.getpid()
        self.nothing_left, self.has_own_ipc = True, False
        self._group = group
        with contextlib.suppress(OSError):  # only root can; after the jobs of others the runner cleans up
            unshare(CLONE_NEWIPC)
            self.has_own_ipc = True

    def start(self, start: RankStart, gate: tuple[int, int], output: Sequence[int]) -> tuple[int, int, int]:
        """See `Starter`."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        # The rank must not take a signal with the shim's handlers in place.
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
            tell_problem(writer, f"rank {start.rank}: {os.strerror(error.errno or 0)}")
        finally:
            os._exit(NOT_STARTED)

    def collect(self) -> list[EndedProcess]:
        """See `Starter`; orphans come to this process as their subreaper."""
        found, self.nothing_left = reap()
        return found

    def signal(self, number: int, *, only: Collection[int] = (), but: Collection[int] = ()) -> None:
        """See `Starter`."""
        signal_descendants(number, only=only, but=but)

    def pause(self) -> None:
        """See `Starter`."""
        stop_descendants()

    def resume(self) -> None:
        """See `Starter`."""
        continue_descendants()

    def gather(self, group: ControlGroup) -> None:
        """See `Starter`."""
        group.gather(self.root)

    def give(self, handle: int) -> None:
        """See `Starter`: it is the user's already."""


class LauncherStarter:
    """Has ranks started by the launcher of this machine, as the user that it has for the job's.

    Raises
    ------
    UnavailableError
        If the launcher does not answer.
    InputError
        If it starts nothing for this user.
    """

    def __init__(self, launch: Launch, folder: Path, *, is_grouped: bool = False, clears: bool = False) -> None:
        # The launcher says in its log if its kernel has no such namespace; nobody else may remove what is left then.
        self.nothing_left, self.has_own_ipc = True, True
        self._early: list[dict[str, Any]] = []
        self._socket = connect_launcher(launch.launcher)
        own = user_folder(folder, launcher=launch.launcher)
        paths = [own] if clears else [own, own / "work", own / "tmp"]
        for path in paths:
            path.mkdir(exist_ok=True)
        handles = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC) for path in paths]
        self.news = self._socket.fileno()  # readable when something has ended
        try:
            group = "" if clears else group_name(folder)
            _send(self._socket, {"do": "keep", "user": launch.user, "group": group, "limited": is_grouped}, handles)
            self.root = int(self._answer("keeper")["keeper"])
        except (UnavailableError, OSError):
            self._socket.close()
            raise
        finally:
            for handle in handles:
                os.close(handle)
        self._socket.setblocking(False)

    def start(self, start: RankStart, gate: tuple[int, int], output: Sequence[int]) -> tuple[int, int, int]:
        """See `Starter`."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        what = os.memfd_create("rank", os.MFD_CLOEXEC)
        try:
            with open(what, "wb", closefd=False) as file:
                file.write(msgspec.json.encode(start))
            _send(self._socket, {"do": "start"}, [what, gate[0], writer, *output])
        finally:
            os.close(what)
            os.close(writer)
        said = self._answer("pid")
        os.set_blocking(reader, False)
        self.nothing_left = False
        for earlier in self._early:
            earlier["nothing_left"] = False
        return int(said["pid"]), int(said["ticks"]), reader

    def _answer(self, name: str) -> dict[str, Any]:
        """Wait for an answer, and keep what else comes meanwhile."""
        self._socket.setblocking(True)
        try:
            while True:
                said = _receive(self._socket)
                if name in said:
                    return said
                self._early.append(said)
        finally:
            self._socket.setblocking(False)

    def collect(self) -> list[EndedProcess]:
        """See `Starter`."""
        found: list[EndedProcess] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                said = self._early.pop(0) if self._early else _receive(self._socket)
                found += [EndedProcess(*one) for one in said["ended"]]
                self.nothing_left = bool(said["nothing_left"])
        return found

    def signal(self, number: int, *, only: Collection[int] = (), but: Collection[int] = ()) -> None:
        """See `Starter`."""
        self._tell({"do": "signal", "number": int(number), "only": [*only], "but": [*but]})

    def pause(self) -> None:
        """See `Starter`; it is done once the keeper has read it, a moment later."""
        self._tell({"do": "pause"})

    def resume(self) -> None:
        """See `Starter`."""
        self._tell({"do": "resume"})

    def gather(self, group: ControlGroup) -> None:
        """See `Starter`."""
        self._tell({"do": "gather"})
        self._answer("gathered")

    def _tell(self, what: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a keeper that is gone has ended all before
            _send(self._socket, what, [])

    def give(self, handle: int) -> None:
        """See `Starter`."""
        with contextlib.suppress(OSError):
            _send(self._socket, {"do": "give"}, [handle])

    def close(self) -> None:
        """Let the launcher end what is left."""
        self._socket.close()


def clear_as_user(folder: Path, launch: Launch) -> None:
    """Empty what a user has in the folder of a piece, as that user."""
    _as_user(folder, launch, "chmod -R u+rwX . ; find . -mindepth 1 -delete")


def bytes_as_user(folder: Path, launch: Launch) -> int:
    """Return the disk space of what a user has in the folder of a piece, as that user counts it.

    Each entry counts as in `gridweave.site.machine.kept.folder_bytes`. ValueError if there is no count.
    """
    return int(_as_user(folder, launch, f"chmod -R u+rwX . ; find . -printf '%b\\n' | {_SUM}"))


_SUM = """awk '{ n += $1 < 8 ? 8 : $1 } END { printf "%.0f", n * 512 }'"""


def _as_user(folder: Path, launch: Launch, script: str) -> bytes:
    """Run a script of the shell in what a user has in the folder of a piece, as that user; return what it prints."""
    starter = LauncherStarter(launch, folder, clears=True)
    nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    gate, (reader, writer) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    handles = [*gate, reader, writer, nothing]
    try:
        # Whoever has closed the folder itself cannot begin in it.
        place = str(user_folder(folder, launcher=launch.launcher))
        command = ("sh", "-c", f'chmod u+rwx "$0" && cd "$0" || exit 1; {script}', place)
        start = RankStart(0, command, {"PATH": os.defpath}, "/", None)
        # It writes into its report before it begins, which somebody must be able to read then.
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
    """Return a connection to the launcher that listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        why = os.strerror(error.errno or 0)
        right = "it must run there as root (docs/launchers.md)"
        raise UnavailableError(f"the launcher at {path} does not answer: {why}; {right}") from error
    return connection


def ask_launcher(path: str, what: dict[str, Any]) -> dict[str, Any]:
    """Ask a launcher one thing, and return what it says.

    Raises
    ------
    UnavailableError
        If it does not answer, or will not do it.
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
        raise UnavailableError("the launcher does not answer; look at its log") from error
    except ConnectionError:
        packet = b""
    if not packet:
        raise UnavailableError("the launcher has ended the connection; look at its log")
    said: dict[str, Any] = json.loads(packet)
    if "problem" in said:
        raise UnavailableError(str(said["problem"]))
    return said

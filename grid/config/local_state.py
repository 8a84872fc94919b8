"""Record the processes that `gridweave up` starts on this machine, so that later commands can find and end them.

The record can be read without Ray or a journal. The client and the commands use it to find the user's grid.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import platformdirs

from gridweave.errors import GridweaveError, InputError, OptionError, UnavailableError
from gridweave.site.machine.folders import JOBS, read_state, task_key, write_whole
from gridweave.site.machine.processes import ProcessStat, boot_id, open_process, process_stat, send_signal, strays
from gridweave.site.resources.chunks import NodeKind

if TYPE_CHECKING:
    from gridweave.site.machine.runner import Runner

DEFAULT_NAME = "default"
VERSION = 1

STATE, LOCK, TOKEN, RAY_TOKEN, TOKENS, LIVE, LOGS, KEPT, GATEWAY_MARK = (
    "grid.json",
    "lock",
    "token",
    "ray-token",
    "tokens.db",
    "live",
    "logs",
    "keeper.json",
    "gateway.json",
)
"""Files in the folder of a grid's state: the running processes; the lock for starts and stops; the operator's token;
Ray's token; all tokens of the gateway; journals and jobs, unless another folder is named; logs; the watchdog's record;
the gateway's process."""

HEAD, GATEWAY, WATCHDOG = "head of Ray", "gateway", "watchdog"
"""Names of processes; `node_of` names a site's Ray node."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}", re.ASCII)


class LocalProcess(msgspec.Struct, frozen=True):
    """A process that was started for a grid and leads its own session."""

    name: str
    pid: int
    # Start in clock ticks since the machine's start; distinguishes the process from a later one with the same pid.
    start_ticks: int

    @property
    def is_alive(self) -> bool:
        """Whether the process is alive."""
        handle = open_process(self.pid, self.start_ticks)
        if handle is None:
            return False
        os.close(handle)
        return True

    @classmethod
    def of_pid(cls, name: str, pid: int) -> LocalProcess | None:
        """Return the running process with this pid, or None if there is none."""
        stat = process_stat(pid)
        return None if stat is None else cls(name, pid, stat.start_ticks)


class GatewayMark(msgspec.Struct, frozen=True):
    """The process that a grid's gateway recorded as its own when it started listening."""

    pid: int
    start_ticks: int


class LocalSite(msgspec.Struct, frozen=True):
    """A site of a local grid."""

    name: str
    nodes: int
    machines: int = 1
    launcher: str = ""


class LocalGridState(msgspec.Struct, frozen=True, kw_only=True):
    """The processes and settings of a grid that was started on this machine."""

    name: str
    marker: str  # value of ``GRIDWEAVE_LOCAL_GRID`` in the environment of all its processes
    boot: str  # boot id of the machine when the grid was started; no process survives a reboot
    since_ms: int  # Unix time at which the grid was started
    folder: str  # folder of journals, jobs and their output
    namespace: str  # Ray namespace of its actors
    sites: tuple[LocalSite, ...]
    address: str = ""
    own_ray: bool = True  # whether the Ray cluster was started for this grid only
    gateway_elsewhere: bool = False  # whether its gateway is on another host of the Ray cluster
    temp: str = ""  # folder of the sockets and logs of the grid's own Ray
    processes: tuple[LocalProcess, ...] = ()
    parts: tuple[str, ...] = ()  # names of the processes that the watchdog restarts
    url: str = ""  # URL of the gateway; empty: there is none
    tokens: bool = True  # whether the gateway requires a token
    cert: str = ""  # certificate file of the gateway; empty for plain HTTP
    plain_http: bool = False  # whether clients on other hosts may send tokens without TLS
    # Path and text of the grid's GRID.toml, and the folder to which its paths are relative.
    file: str = ""
    text: str = ""
    base: str = ""
    found_kinds: dict[str, tuple[NodeKind, ...]] = {}  # kinds of nodes found at the first start, by site
    version: int = VERSION

    @property
    def token(self) -> str | None:
        """Token of the user who started the grid, or None."""
        if not self.tokens:
            return None
        try:
            return (state_folder(self.name) / TOKEN).read_text(encoding="ascii").strip() or None
        except OSError:
            return None

    def process(self, name: str) -> LocalProcess | None:
        """Return the live process with this name, or None; the gateway's process comes from its `GatewayMark`."""
        marked = _marked_gateway(self.name) if name == GATEWAY else None
        processes = self.processes if marked is None else (*self.processes, marked)
        return next((process for process in processes if process.name == name and process.is_alive), None)

    @property
    def has_gateway(self) -> bool:
        """Whether the process that listens at the gateway's address is this grid's gateway."""
        process, port = self.process(GATEWAY), urlsplit(self.url).port
        return self.gateway_elsewhere or (process is not None and port is not None and listens_at(process.pid, port))

    @property
    def alive(self) -> tuple[LocalProcess, ...]:
        """The grid's live processes."""
        if self.boot != boot_id():
            return ()
        return tuple(process for process in self.processes if process.is_alive)

    @property
    def runs(self) -> bool:
        """Whether any process of the grid is running."""
        return bool(self.alive) or (self.boot == boot_id() and self.process(GATEWAY) is not None)

    @property
    def watchdog(self) -> tuple[LocalProcess, ...]:
        """The grid's watchdog, if it is alive."""
        return tuple(process for process in self.alive if process.name == WATCHDOG)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the processes that should be running but are not."""
        if self.boot != boot_id():
            return self.parts
        return tuple(name for name in self.parts if self.process(name) is None)


def _marked_gateway(name: str) -> LocalProcess | None:
    """Return the process that last ran a grid's gateway, alive or not; None if it is unknown."""
    try:
        mark = msgspec.json.decode((state_folder(name) / GATEWAY_MARK).read_bytes(), type=GatewayMark)
    except (OSError, msgspec.MsgspecError):
        return None
    return LocalProcess(GATEWAY, mark.pid, mark.start_ticks)


_LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp (proc(5))."""


def listens_at(pid: int, port: int) -> bool:
    """Whether a process of this user is listening on a TCP port."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                _, local, _, state, *more = line.split()
                if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{more[5]}]")
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for name in names:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{name}") in inodes:
                return True
    return False


def node_of(site: str) -> str:
    """Return the process name of a site's Ray node."""
    return f"Ray node of {site}"


def check_name(name: str) -> str:
    """Return a grid's name; raise OptionError if it is invalid."""
    if not _NAME.fullmatch(name):
        raise OptionError(
            "--grid", f"{name!r} is not a valid name of a grid; give 1 to 40 letters, digits, hyphens and underscores"
        )
    return name


def state_folder(name: str) -> Path:
    """Return the folder of a grid's state; it may not exist yet."""
    return platformdirs.user_state_path("gridweave") / check_name(name)


def make_private(folder: Path, *, passable: bool = False) -> Path:
    """Create a folder that other users cannot enter or, if `passable`, can only pass through.

    An existing folder keeps its mode, because its owner may share it; other users cannot read the grid's own files in
    it. Raise InputError if all users may write to it, because they could then replace those files.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o711 if passable else 0o700)
        mode = folder.stat().st_mode
        if passable and not mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(mode) | 0o011)
    except OSError as error:
        raise UnavailableError(f"{folder}: cannot be made: {error.strerror or error}") from None
    if mode & stat.S_IWOTH:
        raise InputError(f"{folder}: all users may write to it, and so replace files of the grid; run chmod o-w")
    return folder


def write_private(path: Path, text: str) -> None:
    """Write a file that other users cannot read, completely or not at all."""
    write_whole(path, text.encode(), mode=0o600)


def read_grid_state(name: str = DEFAULT_NAME) -> LocalGridState | None:
    """Return the record of a grid, whether or not the grid is running; None if there is no record."""
    path = state_folder(name) / STATE
    try:
        return msgspec.json.decode(path.read_bytes(), type=LocalGridState)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnavailableError(f"{path}: cannot be read: {error.strerror or error}") from None
    except msgspec.MsgspecError as error:
        raise UnavailableError(
            f"{path}: cannot be read: {error}; it was written by another version of gridweave"
        ) from None


def write_state(state: LocalGridState) -> None:
    """Write the record of a grid to its state folder."""
    write_whole(make_private(state_folder(state.name)) / STATE, msgspec.json.encode(state))


def forget_processes(state: LocalGridState) -> None:
    """Record that only the watchdog, if any, is still running.

    The GRID.toml and the paths are kept for the next start.
    """
    write_state(msgspec.structs.replace(state, processes=state.watchdog, temp=""))
    (state_folder(state.name) / GATEWAY_MARK).unlink(missing_ok=True)


def running_grid(name: str = DEFAULT_NAME) -> LocalGridState | None:
    """Return this user's grid on this machine, named as in `gridweave up --grid`; None if it is not running.

    Examples
    --------
    >>> running_grid("there-is-no-such-grid") is None
    True
    """
    state = read_grid_state(name)
    return state if state is not None and state.runs else None


def known_grids() -> list[str]:
    """Return the names of all recorded grids, sorted."""
    folder = platformdirs.user_state_path("gridweave")
    return sorted(path.parent.name for path in folder.glob(f"*/{STATE}") if _NAME.fullmatch(path.parent.name))


@contextlib.contextmanager
def working_on(name: str, patience_s: float = 0.0) -> Iterator[Path]:
    """Lock a grid so that no other command starts or stops it, and yield the folder of its state.

    If another process holds the lock, wait for up to `patience_s`, then raise UnavailableError.
    """
    folder = make_private(state_folder(name))
    right = "wait for it, or choose another --grid"
    with locked(folder / LOCK, f"another process is starting or stopping the grid {name!r}; {right}", patience_s):
        yield folder


@contextlib.contextmanager
def locked(path: Path, problem: str, patience_s: float = 0.0) -> Iterator[None]:
    """Hold a lock file; raise UnavailableError if another process holds it for longer than `patience_s`."""
    until = time.monotonic() + patience_s
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _take(handle):
            if time.monotonic() >= until:
                raise UnavailableError(problem)
            time.sleep(_TRY_LOCK_EVERY_S)
        yield
    finally:
        os.close(handle)


_TRY_LOCK_EVERY_S = 0.1


def _take(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# -- ending processes and jobs ----------------------------------------------------------------------------------------

MARKER_VARIABLE = "GRIDWEAVE_LOCAL_GRID"
"""Environment variable with the grid's marker, in every process started for it."""

TERM_S, KILL_S = 10.0, 10.0
"""How long to wait for processes to end after TERM, and to be gone after KILL, in seconds."""

JOBS_S = 30.0


def end_processes(processes: Sequence[LocalProcess], *, patience_s: float = TERM_S) -> None:
    """End processes and their sessions: send TERM, wait up to `patience_s`, then send KILL.

    A pid that has been reused by another process gets no signal.
    """
    leaders = [(process.pid, process.start_ticks) for process in processes]
    # While the leader is alive, its session id cannot have been reused.
    members = strays("", leaders)
    for process in processes:
        stat = process_stat(process.pid)
        if stat is not None and stat.start_ticks == process.start_ticks:
            send_signal(stat, signal.SIGTERM)
    wait_for_end(leaders, patience_s)
    members += strays("", leaders)
    kill(members)


def end_marked(marker: str, *, within: Iterable[int] | None = None) -> int:
    """Kill all processes with a grid's marker in their environment; return their number.

    `within` restricts the search to these sessions; each job's processes have a session of their own.
    """
    sessions = None if within is None else set(within)
    count = 0
    until = time.monotonic() + KILL_S
    while time.monotonic() < until:
        processes = [
            stat
            for stat in strays(marker, (), variable=MARKER_VARIABLE)
            if sessions is None or stat.session in sessions
        ]
        if not processes:
            break
        count += len(processes)
        kill(processes)
    return count


def kill(processes: Sequence[ProcessStat]) -> None:
    """Kill processes and wait until they are gone."""
    for process in processes:
        send_signal(process, signal.SIGKILL)
    wait_for_end([(process.pid, process.start_ticks) for process in processes], KILL_S)


def wait_for_end(processes: Iterable[tuple[int, int]], patience_s: float) -> bool:
    """Wait up to `patience_s` until processes are gone; return whether they are gone."""
    until = time.monotonic() + patience_s
    for pid, ticks in processes:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # The first thread of a process may have ended while others still hold its files and locks.
            stat = process_stat(pid)
            if stat is None or stat.start_ticks != ticks:
                continue
            if not select.select([handle], [], [], max(0.0, until - time.monotonic()))[0]:
                return False
        finally:
            os.close(handle)
    return True


def end_jobs(folder: Path, reason: str, *, patience_s: float = JOBS_S) -> None:
    """End the jobs that agents left running on this machine and wait until they have ended; no agent may be running.

    Agents that start later report `reason` to their sites. `patience_s` is the time limit per machine.
    """
    import asyncio

    asyncio.run(_end_left(folder, reason, patience_s))


async def _end_left(folder: Path, reason: str, patience_s: float) -> None:
    import asyncio

    from gridweave.site.machine.runner import Runner

    for jobs in sorted(folder.glob(f"*/*/{JOBS}")):
        states = [read_state(node_task) for node_task in jobs.iterdir() if task_key(node_task) is not None]
        if all(state is not None and state.phase == "ended" for state in states):
            continue
        with contextlib.suppress(GridweaveError, TimeoutError):
            async with Runner(jobs.parent) as runner, asyncio.timeout(patience_s):
                await _end_all(runner, reason)


async def _end_all(runner: Runner, reason: str) -> None:
    from gridweave.site.launch import NodeTaskEnded

    left = set(await runner.adopt())
    for key in left:
        await runner.cancel(*key, reason)
    events = runner.events()
    while left:
        event = await anext(events)
        if isinstance(event, NodeTaskEnded):
            left.discard((event.job_id, event.attempt))


def count_running(folder: Path, depth: str = "*/*") -> int:
    """Count the running node tasks on this machine; `depth` is the glob pattern of machines' folders in `folder`."""
    states = (
        read_state(node_task)
        for jobs in folder.glob(f"{depth}/{JOBS}")
        for node_task in jobs.iterdir()
        if task_key(node_task) is not None
    )
    return sum(state is not None and state.phase != "ended" for state in states)

"""Find, signal and kill processes on this machine (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PROC = "/proc"
STEP_COMMAND = "srun"
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

CLONE_NEWIPC = 0x08000000

TOKEN_VARIABLE = "GRIDWEAVE_PIECE"

_libc = ctypes.CDLL(None, use_errno=True)


_STOP_S, _STOP_LOOK_S = 1.0, 0.0005
"""Total time and interval of checks for processes that are still running after a stop signal: a process only stops
when it is next scheduled, and may fork until then; a process that is waiting for a disk can take longer."""


class ProcessStat(NamedTuple):
    """Fields of ``/proc/PID/stat``.

    `start_ticks` is the start time in clock ticks since boot. `cpu_ticks` includes reaped children.
    """

    pid: int
    state: str
    parent: int
    session: int
    start_ticks: int
    cpu_ticks: int
    memory_pages: int


def process_stat(pid: int) -> ProcessStat | None:
    """Return the status of a process, or ``None`` if there is no process with this id."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as file:
            data = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name in parentheses, which can contain any character, even ")" and blanks.
    fields = data[data.rindex(b")") + 2 :].split()
    cpu_ticks = sum(map(int, fields[11:15]))
    return ProcessStat(
        pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]), cpu_ticks, int(fields[21])
    )


@cache
def boot_id() -> str:
    """Return the id of the current boot."""
    return Path(f"{PROC}/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def open_process(pid: int, start_ticks: int) -> int | None:
    """Return a pidfd of the process with this id and start time, or ``None`` if it has ended.

    The start time is compared after the pidfd has been opened, so a reused id is detected.
    """
    try:
        handle = os.pidfd_open(pid)
    except (OSError, OverflowError, ValueError):
        return None
    stat = process_stat(pid)
    if stat is None or stat.start_ticks != start_ticks or stat.state in "ZX":
        os.close(handle)
        return None
    return handle


def call_kernel(name: str, *arguments: int | bytes | None) -> None:
    """Call a C library function that returns 0 or sets errno; raise OSError on failure."""
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def control_process(option: int, value: int | bytes) -> None:
    """Call prctl(2) for this process."""
    call_kernel("prctl", option, value, 0, 0, 0)


FIRST_TO_GO = 1000
"""The oom_score_adj of ranks: when memory runs out, the kernel kills jobs first."""

_LAST_TO_GO = (-900, 0)


def be_first_to_go() -> None:
    """Set the OOM score so that the kernel kills this process and its forks first when memory runs out."""
    with contextlib.suppress(OSError):
        _set_oom_score(FIRST_TO_GO)


def be_last_to_go() -> None:
    """Set the OOM score so that the kernel kills this process and its forks last; without privileges, reset it to 0."""
    for score in _LAST_TO_GO:
        with contextlib.suppress(OSError):
            _set_oom_score(score)
            return


def protect_ray_worker() -> None:
    """Call `be_last_to_go` in a Ray worker; by default, Ray makes the kernel kill its workers first."""
    if "RAY_JOB_ID" in os.environ:
        be_last_to_go()


def _set_oom_score(score: int) -> None:
    with open(f"{PROC}/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(score))


def unshare(namespaces: int) -> None:
    """Move this process and its future forks to new namespaces; needs CAP_SYS_ADMIN."""
    call_kernel("unshare", namespaces)


def signal_pipe(numbers: Iterable[int]) -> int:
    """Install handlers that write a byte to a pipe for each of these signals; return the pipe's read end."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    for number in numbers:
        signal.signal(number, lambda _number, _frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def become_subreaper() -> None:
    """Make this process adopt descendants whose parent ends, so that they cannot escape by a double fork or setsid."""
    control_process(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends; exit immediately if the parent has already ended."""
    control_process(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(127)


def all_pids() -> Iterator[int]:
    """Yield the ids of all processes."""
    for name in os.listdir(PROC):
        if name.isdecimal():
            yield int(name)


@cache
def _kernel_lists_children() -> bool:
    """Whether the kernel lists a process's children (CONFIG_PROC_CHILDREN)."""
    return os.path.exists(f"{PROC}/self/task/{os.getpid()}/children")


def _listed_children(pid: int) -> list[ProcessStat]:
    """Return the children of a process from the kernel's per-thread lists."""
    stats: list[ProcessStat] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"{PROC}/{pid}/task"):
            with (
                contextlib.suppress(FileNotFoundError, ProcessLookupError),
                open(f"{PROC}/{pid}/task/{thread}/children", "rb") as file,
            ):
                children = map(process_stat, map(int, file.read().split()))
                stats.extend(stat for stat in children if stat is not None and stat.parent == pid)
    return stats


def _scanned_children() -> Callable[[int], list[ProcessStat]]:
    """Scan all processes once; return a function that maps a pid to the process's children."""
    children: dict[int, list[ProcessStat]] = {}
    for stat in filter(None, map(process_stat, all_pids())):
        children.setdefault(stat.parent, []).append(stat)
    return lambda pid: children.get(pid, [])


def descendants(pid: int) -> list[ProcessStat]:
    """Return all descendants of a process, parents before children, including ended processes (state ``Z``)."""
    below = _listed_children if _kernel_lists_children() else _scanned_children()
    stats: list[ProcessStat] = []
    waiting = [pid]
    while waiting:
        children = below(waiting.pop())
        stats.extend(children)
        waiting.extend(stat.pid for stat in children)
    return stats


def steps_below(pid: int) -> list[int]:
    """Return the pids of the Slurm job steps below a process, i.e. of each outermost ``srun``.

    An ``srun`` process forwards signals to its step's tasks, which can run on other machines. It also forks helper
    processes named ``srun``.
    """
    steps, inside = list[int](), set[int]()
    for stat in descendants(pid):
        if stat.parent in inside:
            inside.add(stat.pid)
        elif _name(stat.pid) == STEP_COMMAND:
            inside.add(stat.pid)
            steps.append(stat.pid)
    return steps


def _name(pid: int) -> str:
    """Return a process's name (at most 15 characters), or "" if the process has ended."""
    try:
        return Path(f"{PROC}/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def signal_descendants(
    number: int, *, spare: Iterable[int] = (), only: Collection[int] = (), but: Collection[int] = ()
) -> int:
    """Send a signal to the descendants of this process; return how many processes got the signal.

    Stopped processes are resumed so that they handle it. Processes in `spare` and their descendants are spared. If
    `only` is not empty, only the processes in it get the signal. Processes in `but` do not get the signal.
    """
    me = os.getpid()
    spared = set(spare)
    count = 0
    for stat in descendants(me):
        # Parents come before their children, so sparing a process spares all processes below it.
        if stat.pid in spared or stat.parent in spared:
            spared.add(stat.pid)
        elif (only and stat.pid not in only) or stat.pid in but:
            continue
        elif stat.state not in "ZX" and send_signal(stat, number):
            count += 1
    return count


def stop_descendants() -> None:
    """Stop all descendants of this process, including those forked in the meantime; give up after a second."""
    until = time.monotonic() + _STOP_S
    while moving := [stat for stat in descendants(os.getpid()) if stat.state not in "ZXTt"]:
        if time.monotonic() > until:
            return
        for stat in moving:
            send_signal(stat, signal.SIGSTOP, wake=False)
        time.sleep(_STOP_LOOK_S)


def continue_descendants() -> None:
    """Resume all descendants of this process."""
    for stat in descendants(os.getpid()):
        if stat.state not in "ZX":
            send_signal(stat, signal.SIGCONT, wake=False)


def send_signal(stat: ProcessStat, number: int, *, wake: bool = True) -> bool:
    """Send a signal to a process unless it has ended, even if its pid was reused; return whether it was sent.

    If `wake` is true, a stopped process is resumed so that it handles the signal.
    """
    handle = open_process(stat.pid, stat.start_ticks)
    if handle is None:
        return False
    try:
        signal.pidfd_send_signal(handle, number)
        if wake and number != signal.SIGKILL:
            signal.pidfd_send_signal(handle, signal.SIGCONT)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)
    return True


def strays(token: str, ranks: Iterable[tuple[int, int]], *, variable: str = TOKEN_VARIABLE) -> list[ProcessStat]:
    """Return the processes that certainly belong to a node task whose supervisor is dead.

    These processes have the token in their environment, or are in the session of one of the ranks (pid, start_ticks). A
    session counts only while its leader is alive, because its id can be reused afterwards.
    """
    sessions = set()
    for pid, ticks in ranks:
        stat = process_stat(pid)
        if stat is not None and stat.start_ticks == ticks and stat.state not in "ZX":
            sessions.add(pid)
    mark = f"{variable}={token}".encode()
    matches = []
    for stat in filter(None, map(process_stat, all_pids())):
        if stat.state in "ZX" or stat.pid == os.getpid():
            continue
        if stat.session in sessions or (token and mark in _environment(stat.pid)):
            matches.append(stat)
    return matches


def _environment(pid: int) -> list[bytes]:
    """Return a process's initial environment; empty if access is denied or the process has ended."""
    try:
        with open(f"{PROC}/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []

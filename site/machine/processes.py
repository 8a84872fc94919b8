"""Processes of this machine: which is which, what stems from which, and how all of them are ended (Linux)."""

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
"""For how long processes are looked for that still move, and how often: one stops when it next has a processor, and may
fork before it; one that waits for a disk may take its time."""


class ProcessStat(NamedTuple):
    """What ``/proc/PID/stat`` says of a process.

    Its start is in clock ticks since that of the machine; its processor time is in clock ticks too, with that of the
    children that it has waited for.
    """

    pid: int
    state: str
    parent: int
    session: int
    start_ticks: int
    cpu_ticks: int
    memory_pages: int


def process_stat(pid: int) -> ProcessStat | None:
    """Return what is known of a process, or ``None`` if there is none of that number."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as file:
            data = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name in parentheses; it may hold any character, also ")" and blanks.
    fields = data[data.rindex(b")") + 2 :].split()
    cpu_ticks = sum(map(int, fields[11:15]))
    return ProcessStat(
        pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]), cpu_ticks, int(fields[21])
    )


@cache
def boot_id() -> str:
    """Return the name of this start of the machine."""
    return Path(f"{PROC}/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def open_process(pid: int, start_ticks: int) -> int | None:
    """Return a pidfd of the very process that had this number and start, or ``None`` if it is no more.

    The start is compared after the pidfd is open, so a number that was given anew in between is found out.
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
    """Call a function of the C library that returns 0, or sets errno."""
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def control_process(option: int, value: int | bytes) -> None:
    """Call prctl(2) for this process."""
    call_kernel("prctl", option, value, 0, 0, 0)


FIRST_TO_GO = 1000
"""What ranks have as oom_score_adj: when memory runs out, the kernel ends a job before anything else."""

_LAST_TO_GO = (-900, 0)


def be_first_to_go() -> None:
    """Have the kernel end this process, and what it forks, before all others when memory runs out."""
    with contextlib.suppress(OSError):
        _set_oom_score(FIRST_TO_GO)


def be_last_to_go() -> None:
    """Have the kernel end a part of the grid, and what it forks, after all others; without rights like any other."""
    for score in _LAST_TO_GO:
        with contextlib.suppress(OSError):
            _set_oom_score(score)
            return


def spare_ray_worker() -> None:
    """Do the same for a worker of Ray, which Ray lets the kernel end first unless its operator says otherwise."""
    if "RAY_JOB_ID" in os.environ:
        be_last_to_go()


def _set_oom_score(score: int) -> None:
    with open(f"{PROC}/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(score))


def unshare(namespaces: int) -> None:
    """Give this process, and all that it forks from now on, namespaces of its own; it needs CAP_SYS_ADMIN."""
    call_kernel("unshare", namespaces)


def signal_pipe(numbers: Iterable[int]) -> int:
    """Turn signals into bytes to read, one a signal, so that none is lost; return the end to read from."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    for number in numbers:
        signal.signal(number, lambda _number, _frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def become_subreaper() -> None:
    """Take in every process below this one whose parent ends: none can leave by forking twice or by setsid."""
    control_process(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends; exit at once if that has happened already."""
    control_process(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(127)


def all_pids() -> Iterator[int]:
    """Yield the numbers of all processes."""
    for name in os.listdir(PROC):
        if name.isdecimal():
            yield int(name)


@cache
def _kernel_lists_children() -> bool:
    """Tell whether the kernel lists a process's children (CONFIG_PROC_CHILDREN)."""
    return os.path.exists(f"{PROC}/self/task/{os.getpid()}/children")


def _listed_children(pid: int) -> list[ProcessStat]:
    """Return the children of a process as the kernel lists them, by thread."""
    found: list[ProcessStat] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"{PROC}/{pid}/task"):
            with (
                contextlib.suppress(FileNotFoundError, ProcessLookupError),
                open(f"{PROC}/{pid}/task/{thread}/children", "rb") as file,
            ):
                children = map(process_stat, map(int, file.read().split()))
                found.extend(stat for stat in children if stat is not None and stat.parent == pid)
    return found


def _scanned_children() -> Callable[[int], list[ProcessStat]]:
    """Look at all processes once, and return a function from a process to its children."""
    children: dict[int, list[ProcessStat]] = {}
    for stat in filter(None, map(process_stat, all_pids())):
        children.setdefault(stat.parent, []).append(stat)
    return lambda pid: children.get(pid, [])


def descendants(pid: int) -> list[ProcessStat]:
    """Return all processes that stem from one, parents before their children; also what has ended (state ``Z``)."""
    below = _listed_children if _kernel_lists_children() else _scanned_children()
    found: list[ProcessStat] = []
    waiting = [pid]
    while waiting:
        children = below(waiting.pop())
        found.extend(children)
        waiting.extend(stat.pid for stat in children)
    return found


def steps_below(pid: int) -> list[int]:
    """Return the processes below one that are job steps of Slurm: each outermost ``srun``.

    An ``srun`` passes signals on to the tasks of its step, which need not run on this machine; processes that it forks
    for itself are also called ``srun``.
    """
    found, inside = list[int](), set[int]()
    for stat in descendants(pid):
        if stat.parent in inside:
            inside.add(stat.pid)
        elif _name(stat.pid) == STEP_COMMAND:
            inside.add(stat.pid)
            found.append(stat.pid)
    return found


def _name(pid: int) -> str:
    """Return a process's name, at most 15 characters; empty if the process has ended."""
    try:
        return Path(f"{PROC}/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def signal_descendants(
    number: int, *, spare: Iterable[int] = (), only: Collection[int] = (), but: Collection[int] = ()
) -> int:
    """Send a signal to all that stems from this process, and return how many it went to.

    Stopped processes are woken to see it. Children to spare are left alone, with all below them. If there are processes
    in `only`, it goes to them alone; those in `but` do not get it.
    """
    me = os.getpid()
    spared = set(spare)
    count = 0
    for stat in descendants(me):
        # A parent stands before its children, so that a spared one spares all below it.
        if stat.pid in spared or stat.parent in spared:
            spared.add(stat.pid)
        elif (only and stat.pid not in only) or stat.pid in but:
            continue
        elif stat.state not in "ZX" and send_signal(stat, number):
            count += 1
    return count


def stop_descendants() -> None:
    """Stop all that stems from this process, also what is forked while it is being stopped."""
    until = time.monotonic() + _STOP_S
    while moving := [stat for stat in descendants(os.getpid()) if stat.state not in "ZXTt"]:
        if time.monotonic() > until:
            return
        for stat in moving:
            send_signal(stat, signal.SIGSTOP, wake=False)
        time.sleep(_STOP_LOOK_S)


def continue_descendants() -> None:
    """Let all that stems from this process go on."""
    for stat in descendants(os.getpid()):
        if stat.state not in "ZX":
            send_signal(stat, signal.SIGCONT, wake=False)


def send_signal(stat: ProcessStat, number: int, *, wake: bool = True) -> bool:
    """Signal one process, if it is still the one that was looked at; return whether it was.

    One that stands still is woken to see the signal, unless that is not wanted.
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
    """Return the processes of a piece whose shim is dead, as far as they can be told from others with certainty.

    They have the token in their environment, or are in the session of one of the ranks (pid, start_ticks). A session
    counts while its leader lives: only then is its number ours.
    """
    sessions = set()
    for pid, ticks in ranks:
        stat = process_stat(pid)
        if stat is not None and stat.start_ticks == ticks and stat.state not in "ZX":
            sessions.add(pid)
    mark = f"{variable}={token}".encode()
    found = []
    for stat in filter(None, map(process_stat, all_pids())):
        if stat.state in "ZX" or stat.pid == os.getpid():
            continue
        if stat.session in sessions or (token and mark in _environment(stat.pid)):
            found.append(stat)
    return found


def _environment(pid: int) -> list[bytes]:
    """Return the environment that a process was started with; nothing if it may not be seen."""
    try:
        with open(f"{PROC}/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []

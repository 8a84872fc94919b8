"""Pieces of jobs as the runner of a machine knows them: whether they began, when they must end, and what they leave."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from gridweave.errors import GridweaveError
from gridweave.site.elements import Element
from gridweave.site.launch import Outcome, PieceState
from gridweave.site.machine.cgroups import Cgroups, ControlGroup, group_name
from gridweave.site.machine.elements import ended_elements, interrupted_elements
from gridweave.site.machine.folders import (
    ASK,
    STATE,
    Key,
    leave,
    read_cancel,
    read_cancel_time,
    read_launch,
    read_state,
    remove_folder,
    user_folder,
)
from gridweave.site.machine.kept import folder_bytes
from gridweave.site.machine.processes import call_kernel, open_process, process_stat, strays
from gridweave.site.machine.starter import bytes_as_user, clear_as_user
from gridweave.site.times import span_text

SILENT_S = 5.0
"""A supervisor that does not answer for this long, when its piece should have ended, is killed."""


class KnownPiece:
    """What the runner knows of a piece."""

    def __init__(self, key: Key, folder: Path) -> None:
        self.key = key
        self.folder = folder
        self.shim: int | None = None
        self.alone_ms: int | None = None
        self.told_ready = False
        self.told_started = False
        self.cancelled = False
        self.ended = False
        self.grace_ms = 0
        self.paced_at_s = 0.0  # when it changes its pace, or last did (Unix time)
        self.since_s = 0.0  # no process of it began before (Unix time)
        # When it is looked at next whether it has ended, as it should have; and how it ended if its shim was killed.
        self.look: asyncio.TimerHandle | None = None
        self.forced: tuple[Outcome, str] | None = None

    def wake(self, number: int = signal.SIGCHLD) -> None:
        """Have the shim look for what was left in the folder, if it is known already which it is, and it lives.

        A shim that was stopped goes on: a job of the same user may have stopped it.
        """
        if self.shim is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.shim, number)
                signal.pidfd_send_signal(self.shim, signal.SIGCONT)

    def due_ms(self) -> int | None:
        """Return when KILL is due for its processes (Unix time), as far as is known; None: at no time.

        After a cancellation that is the end of its grace period; otherwise the supervisor has written it down.
        """
        due = []
        if self.cancelled:
            asked_at_ms, at_once = read_cancel_time(self.folder)
            due.append(asked_at_ms + (0 if at_once else self.grace_ms))
        state = read_state(self.folder)
        if state is not None and state.kill_due_ms is not None:
            due.append(state.kill_due_ms)
        return min(due, default=None)

    async def is_silent(self) -> bool:
        """Whether its supervisor does not answer within `SILENT_S` when it is asked to."""
        try:
            leave(self.folder, ASK)
        except OSError:
            return False  # on a full disk nothing can be asked
        self.wake()
        await asyncio.sleep(SILENT_S)
        return (self.folder / ASK).exists() and not self.ended

    def end_by_force(self) -> None:
        """Kill its supervisor; the kernel, the fork server and the runner end what that leaves."""
        reason = read_cancel(self.folder)
        launch = read_launch(self.folder)
        limit = "" if launch is None or launch.limit_ms is None else f" of {span_text(launch.limit_ms)}"
        why = f"ended at its limit{limit}" if reason is None else reason
        forced = "its supervising process did not answer, and was killed"
        self.forced = ("limit" if reason is None else "cancelled"), f"{why}; {forced}"
        if self.shim is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.shim, signal.SIGKILL)


@contextlib.contextmanager
def unstarted(folder: Path, failed: str = "") -> Iterator[tuple[Outcome, str] | None]:
    """Hold a piece that has no state, so that no shim starts it, while its end is written; yield that end.

    ``None``: a shim has it in hand, or it has a state by now. ``failed`` is why it could not be started, if that is
    known.
    """
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield "lost", "its folder was removed"
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield _unstarted_end(folder, failed)
    finally:
        os.close(lock)


def _unstarted_end(folder: Path, failed: str) -> tuple[Outcome, str] | None:
    """Say how a piece ended that nobody has in hand, if it has not begun."""
    if (folder / STATE).exists():
        return None if read_state(folder) is not None else ("lost", "its state is damaged; it may have run")
    reason = read_cancel(folder)
    if reason is not None:
        return "cancelled", reason
    if failed:
        return "failed", failed
    return "lost", "its runner or its shim ended before the start; it never ran"


async def end_strays(state: PieceState) -> None:
    """End what a shim has left that was killed since this start of the machine, and wait until it is gone."""
    while found := strays(state.token, [(rank.pid, rank.start_ticks) for rank in state.ranks]):
        for process in found:
            handle = open_process(process.pid, process.start_ticks)
            if handle is None:
                continue
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                await _readable(handle)
            except ProcessLookupError:
                pass
            except PermissionError:
                return  # a program that became somebody else (setuid); it cannot be ended from here
            finally:
                os.close(handle)


async def _readable(handle: int) -> None:
    """Wait until a descriptor is readable: of a pidfd, until its process has ended."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.add_reader(handle, done.set_result, None)
    try:
        await done
    finally:
        loop.remove_reader(handle)


def remove_piece(folder: Path) -> None:
    """Remove the folder of a piece, with what its user has in it."""
    launch = read_launch(folder)
    if launch is not None and launch.launcher and not _is_empty(user_folder(folder, launcher=launch.launcher)):
        with contextlib.suppress(GridweaveError, OSError):  # the next runner tries again
            clear_as_user(folder, launch)
    remove_folder(folder)


def piece_bytes(folder: Path) -> int:
    """Return the disk space of the folder of a piece; its user counts what nobody else can read."""
    size_bytes, is_whole = folder_bytes(folder)
    launch = None if is_whole else read_launch(folder)
    if launch is not None and launch.launcher:
        with contextlib.suppress(GridweaveError, OSError, ValueError):
            return max(size_bytes, bytes_as_user(folder, launch))
    return size_bytes


def _is_empty(folder: Path) -> bool:
    """Whether a user's folder is empty; an unreadable folder counts as not empty."""
    try:
        return not os.listdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def end_group(folder: Path) -> None:
    """End what is left in the control group of a piece, and remove it."""
    launch = read_launch(folder)
    if launch is not None and launch.groups:
        with contextlib.suppress(OSError):  # what belongs to others, their keeper ends
            group = Cgroups(ControlGroup(launch.groups)).group(group_name(folder))
            group.kill()
            group.remove()


def packed_ends(folder: Path) -> tuple[tuple[Element, ...], tuple[int, ...]]:
    """Return what became of the elements of a piece of a packed array, and which were drawn and have not ended."""
    launch = read_launch(folder)
    if launch is None or launch.elements is None:
        return (), ()
    own = user_folder(folder, launcher=launch.launcher)
    ended = ended_elements(own, launch.elements)
    return ended, interrupted_elements(own, launch.elements, ended)


# -- what they leave of IPC --------------------------------------------------------------------------------------------

# System V objects and POSIX queues outlive their processes, and of a set of semaphores nobody knows which process made
# it. So one counts as left by a piece if it was made while a piece ran, and no piece that runs now can have made it.

SYSVIPC = Path("/proc/sysvipc")
MQUEUE = Path("/dev/mqueue")

logger = logging.getLogger("gridweave.live")

_IPC_RMID = 0


class IpcObject(NamedTuple):
    """A segment of shared memory (`shm`), a set of semaphores (`sem`) or a message queue (`msg`, `mqueue`)."""

    kind: str
    name: int | str  # its number; of a POSIX queue its name
    made_s: int  # when it was made or its owner last changed it, Unix time
    is_used: bool  # whether a process is attached to it, or the one that made it lives


class JobSpan(NamedTuple):
    """From when to when a job ran, Unix time in seconds; `end_s` is None while it runs."""

    start_s: float
    end_s: float | None


def left_objects(objects: Iterable[IpcObject], jobs: Iterable[JobSpan]) -> list[IpcObject]:
    """Return what jobs of this user that are over have left.

    Examples
    --------
    >>> old, new = IpcObject("shm", 1, 5, False), IpcObject("sem", 2, 15, False)
    >>> left_objects([old, new], [JobSpan(10, 20)]) == [new]
    True
    >>> left_objects([old, new], [JobSpan(10, 20), JobSpan(12, None)])
    []
    """
    jobs = list(jobs)

    def is_left(each: IpcObject) -> bool:
        # The kernel tells whole seconds, rounded down.
        ends_s = [job.end_s for job in jobs if int(job.start_s) <= each.made_s]
        could_be_used = each.is_used or None in ends_s
        return not could_be_used and any(end_s is not None and each.made_s <= end_s for end_s in ends_s)

    return [each for each in objects if is_left(each)]


def objects_of(uid: int, sysvipc: Path = SYSVIPC, mqueue: Path = MQUEUE) -> list[IpcObject]:
    """Return the objects of a user; POSIX queues only where their file system is mounted."""
    found = []
    for kind, number in (("shm", "shmid"), ("sem", "semid"), ("msg", "msqid")):
        for row in _rows(sysvipc / kind):
            if row["uid"] == row["cuid"] == uid:
                pids = [row[name] for name in ("cpid", "lspid", "lrpid") if name in row]
                is_used = row.get("nattch", 0) > 0 or any(pid and process_stat(pid) for pid in pids)
                found.append(IpcObject(kind, row[number], row["ctime"], is_used))
    with contextlib.suppress(OSError):
        for path in mqueue.iterdir():
            status = path.stat()
            if status.st_uid == uid:
                found.append(IpcObject("mqueue", path.name, int(status.st_ctime), is_used=False))
    return found


def _rows(path: Path) -> Iterator[dict[str, int]]:
    """Yield the rows of a table of the kernel, which has none where the kernel has no System V IPC."""
    with contextlib.suppress(OSError):
        head, *lines = path.read_text(encoding="ascii").splitlines()
        for line in lines:
            yield dict(zip(head.split(), map(int, line.split()), strict=False))


def remove_left(jobs: Iterable[JobSpan]) -> None:
    """Remove what jobs of this process's user that are over have left on this machine."""
    for each in left_objects(objects_of(os.geteuid()), jobs):
        logger.info("removing %s %s, which a job has left", each.kind, each.name)
        remove_object(each)


def remove_object(each: IpcObject, mqueue: Path = MQUEUE) -> None:
    """Remove an object; one that is gone, or has become somebody else's, stays as it is."""
    with contextlib.suppress(OSError):
        if isinstance(each.name, str):
            os.unlink(mqueue / each.name)
        elif each.kind == "sem":
            call_kernel("semctl", each.name, 0, _IPC_RMID)
        else:
            call_kernel(f"{each.kind}ctl", each.name, _IPC_RMID, None)

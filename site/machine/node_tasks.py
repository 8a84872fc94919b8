"""The runner's view of node tasks: their starts and deadlines, and the cleanup after them."""

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
from gridweave.site.array_tasks import ArrayTask
from gridweave.site.launch import NodeTaskState, Outcome
from gridweave.site.machine.array_tasks import ended_tasks, interrupted_tasks
from gridweave.site.machine.cgroups import Cgroups, ControlGroup, group_name
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
"""How long a supervisor may fail to respond before it is killed, once its node task should have ended [s]."""


class LocalTask:
    """The runner's state for a node task."""

    def __init__(self, key: Key, folder: Path) -> None:
        self.key = key
        self.folder = folder
        self.shim: int | None = None
        self.alone_ms: int | None = None
        self.ready_reported = False
        self.started_reported = False
        self.cancelled = False
        self.ended = False
        self.grace_ms = 0
        self.paced_at_s = 0.0  # time of the next or last change of pace (Unix time)
        self.since_s = 0.0  # earliest possible start of the task's processes (Unix time)
        # The timer for the next check that the task has ended on time, and its outcome if the runner killed its shim.
        self.look: asyncio.TimerHandle | None = None
        self.forced: tuple[Outcome, str] | None = None

    def wake(self, number: int = signal.SIGCHLD) -> None:
        """Make the shim check its folder for requests if the shim is known and alive.

        The shim is also resumed, because a job of the same user may have stopped it.
        """
        if self.shim is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.shim, number)
                signal.pidfd_send_signal(self.shim, signal.SIGCONT)

    def due_ms(self) -> int | None:
        """Return the Unix time at which the task's processes must be killed, or None if it is unknown.

        This is the end of the grace period after a cancellation, or the supervisor's recorded time if that is earlier.
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
        """Whether the supervisor fails to answer a request within `SILENT_S`."""
        try:
            leave(self.folder, ASK)
        except OSError:
            return False  # the request could not be written because the disk is full
        self.wake()
        await asyncio.sleep(SILENT_S)
        return (self.folder / ASK).exists() and not self.ended

    def end_by_force(self) -> None:
        """Kill the supervisor; the kernel, the fork server and the runner then end the remaining processes."""
        reason = read_cancel(self.folder)
        launch = read_launch(self.folder)
        limit = "" if launch is None or launch.limit_ms is None else f" of {span_text(launch.limit_ms)}"
        why = f"ended at its limit{limit}" if reason is None else reason
        killed = "its supervisor did not answer and was killed"
        self.forced = ("limit" if reason is None else "cancelled"), f"{why}; {killed}"
        if self.shim is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.shim, signal.SIGKILL)


@contextlib.contextmanager
def unstarted(folder: Path, failed: str = "") -> Iterator[tuple[Outcome, str] | None]:
    """Lock a node task without a state, so that no shim starts it while its outcome is written; yield the outcome.

    Yields None if a shim holds the lock or the task already has a state. ``failed`` is the reason why the task could
    not be started, if known.
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
    """Return the outcome of a locked node task and the reason, or None if the task has a readable state after all."""
    if (folder / STATE).exists():
        return None if read_state(folder) is not None else ("lost", "its state is damaged; it may have run")
    reason = read_cancel(folder)
    if reason is not None:
        return "cancelled", reason
    if failed:
        return "failed", failed
    return "lost", "its runner or its shim ended before the start; it never ran"


async def end_strays(state: NodeTaskState) -> None:
    """Kill the processes left behind by a killed shim since the machine's last boot, and wait until they have ended."""
    while left := strays(state.token, [(rank.pid, rank.start_ticks) for rank in state.ranks]):
        for process in left:
            handle = open_process(process.pid, process.start_ticks)
            if handle is None:
                continue
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                await _readable(handle)
            except ProcessLookupError:
                pass
            except PermissionError:
                return  # another user's setuid program, which this process cannot kill
            finally:
                os.close(handle)


async def _readable(handle: int) -> None:
    """Wait until a descriptor is readable; a pidfd is readable once its process has ended."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.add_reader(handle, done.set_result, None)
    try:
        await done
    finally:
        loop.remove_reader(handle)


def remove_task(folder: Path) -> None:
    """Remove a node task's folder, including the user's files."""
    launch = read_launch(folder)
    if launch is not None and launch.launcher and not _is_empty(user_folder(folder, launcher=launch.launcher)):
        with contextlib.suppress(GridweaveError, OSError):  # the next runner tries again
            clear_as_user(folder, launch)
    remove_folder(folder)


def task_bytes(folder: Path) -> int:
    """Return the disk use of a node task's folder [bytes]; if necessary, the launcher measures it as the user."""
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
    """Kill the remaining processes in a node task's control group, and remove the group."""
    launch = read_launch(folder)
    if launch is not None and launch.groups:
        with contextlib.suppress(OSError):  # the launcher kills processes of other users
            group = Cgroups(ControlGroup(launch.groups)).group(group_name(folder))
            group.kill()
            group.remove()


def packed_ends(folder: Path) -> tuple[tuple[ArrayTask, ...], tuple[int, ...]]:
    """Return the ended array tasks of a packed array's node task, and the indexes of the interrupted array tasks."""
    launch = read_launch(folder)
    if launch is None or launch.array_tasks is None:
        return (), ()
    own = user_folder(folder, launcher=launch.launcher)
    ended = ended_tasks(own, launch.array_tasks)
    return ended, interrupted_tasks(own, launch.array_tasks, ended)


# -- IPC objects left behind -------------------------------------------------------------------------------------------

# System V objects and POSIX queues outlive their processes, and the creator of a semaphore set is unknown. So an object
# counts as left behind if it was created while an ended node task was running, and no task that is still running can
# have created it.

SYSVIPC = Path("/proc/sysvipc")
MQUEUE = Path("/dev/mqueue")

logger = logging.getLogger("gridweave.live")

_IPC_RMID = 0


class IpcObject(NamedTuple):
    """A shared memory segment (``shm``), a semaphore set (``sem``) or a message queue (``msg``, ``mqueue``)."""

    kind: str
    name: int | str  # the object's id, or the name of a POSIX queue
    made_s: int  # Unix time of the object's creation or of the last change by its owner
    is_used: bool  # whether a process is attached to the object, or its creator is alive


class JobSpan(NamedTuple):
    """The time span in which a job ran (Unix time in seconds); ``end_s`` is None while the job is running."""

    start_s: float
    end_s: float | None


def left_objects(objects: Iterable[IpcObject], jobs: Iterable[JobSpan]) -> list[IpcObject]:
    """Return the IPC objects that this user's ended jobs have left behind.

    Examples
    --------
    >>> old, new = IpcObject("shm", 1, 5, False), IpcObject("sem", 2, 15, False)
    >>> left_objects([old, new], [JobSpan(10, 20)]) == [new]
    True
    >>> left_objects([old, new], [JobSpan(10, 20), JobSpan(12, None)])
    []
    """
    jobs = list(jobs)

    def is_left(ipc: IpcObject) -> bool:
        # The kernel rounds times down to whole seconds.
        ends_s = [job.end_s for job in jobs if int(job.start_s) <= ipc.made_s]
        could_be_used = ipc.is_used or None in ends_s
        return not could_be_used and any(end_s is not None and ipc.made_s <= end_s for end_s in ends_s)

    return [ipc for ipc in objects if is_left(ipc)]


def objects_of(uid: int, sysvipc: Path = SYSVIPC, mqueue: Path = MQUEUE) -> list[IpcObject]:
    """Return a user's IPC objects; POSIX queues are included only if their file system is mounted."""
    objects = []
    for kind, number in (("shm", "shmid"), ("sem", "semid"), ("msg", "msqid")):
        for row in _rows(sysvipc / kind):
            if row["uid"] == row["cuid"] == uid:
                pids = [row[name] for name in ("cpid", "lspid", "lrpid") if name in row]
                is_used = row.get("nattch", 0) > 0 or any(pid and process_stat(pid) for pid in pids)
                objects.append(IpcObject(kind, row[number], row["ctime"], is_used))
    with contextlib.suppress(OSError):
        for path in mqueue.iterdir():
            status = path.stat()
            if status.st_uid == uid:
                objects.append(IpcObject("mqueue", path.name, int(status.st_ctime), is_used=False))
    return objects


def _rows(path: Path) -> Iterator[dict[str, int]]:
    """Yield the rows of a kernel table; yield none if the kernel lacks System V IPC."""
    with contextlib.suppress(OSError):
        head, *lines = path.read_text(encoding="ascii").splitlines()
        for line in lines:
            yield dict(zip(head.split(), map(int, line.split()), strict=False))


def remove_left(jobs: Iterable[JobSpan]) -> None:
    """Remove the IPC objects that ended jobs of this process's user have left behind on this machine."""
    for ipc in left_objects(objects_of(os.geteuid()), jobs):
        logger.info("removing %s %s, which a job left behind", ipc.kind, ipc.name)
        remove_object(ipc)


def remove_object(ipc: IpcObject, mqueue: Path = MQUEUE) -> None:
    """Remove an IPC object; do nothing if the object no longer exists or now belongs to another user."""
    with contextlib.suppress(OSError):
        if isinstance(ipc.name, str):
            os.unlink(mqueue / ipc.name)
        elif ipc.kind == "sem":
            call_kernel("semctl", ipc.name, 0, _IPC_RMID)
        else:
            call_kernel(f"{ipc.kind}ctl", ipc.name, _IPC_RMID, None)

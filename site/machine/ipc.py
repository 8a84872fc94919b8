"""System V and POSIX message objects that jobs leave behind where they have no IPC namespace of their own.

Such objects outlive their processes, and no process is known to have made a semaphore. So one counts as left by a job
if it was made while a job ran and no job that runs now can have made it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from gridweave.site.machine.processes import call_kernel, process_stat

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
        remove(each)


def remove(each: IpcObject, mqueue: Path = MQUEUE) -> None:
    """Remove an object; one that is gone, or has become somebody else's, stays as it is."""
    with contextlib.suppress(OSError):
        if isinstance(each.name, str):
            os.unlink(mqueue / each.name)
        elif each.kind == "sem":
            call_kernel("semctl", each.name, 0, _IPC_RMID)
        else:
            call_kernel(f"{each.kind}ctl", each.name, _IPC_RMID, None)

"""Read and write the files in a node task's folder; readers never see a partially written file."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from gridweave.errors import InputError
from gridweave.site.launch import Launch, NodeTaskState, UsageCurve

LAUNCH = "launch.msgpack"
CALL = "call.msgpack"
STATE = "state.msgpack"
CANCEL = "cancel"
PACE = "pace"
RATE = "rate"
CANCEL_NOW = "cancel-now"
ASK = "ask"
CANCEL_SAVE = "cancel-save"
GATE = "gate-open"
SIGNAL = "signal"
HEARD = "heard"
RESERVE = "reserve"
SHARED = "shared"
SHIM_LOG = "shim.log"
NOTICES = "notices"
USAGE = "usage.json"
JOBS = "jobs"

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The error numbers for a full disk or an exhausted quota."""

MIN_FREE_BYTES = 1 << 20
"""Free disk space needed to start a node task, for its records and a little output."""

_TRIAL_BYTES = 1 << 16

Key = tuple[int, int]
"""The job id and attempt of a node task."""

T = TypeVar("T")

_NAME = re.compile(r"(\d+)\.(\d+)")


def check_way(root: Path) -> None:
    """Raise InputError if a parent folder's permissions prevent the jobs' users from reaching a folder."""
    for folder in root.parents:
        if not folder.stat().st_mode & stat.S_IXOTH:
            problem = f"{folder} is closed to other users, but their jobs run below it"
            right = "name another folder (folder = ... in GRID.toml), or chmod o+x"
            raise InputError(f"{root}: {problem}; {right}")


def task_folder(root: Path, key: Key) -> Path:
    """Return a node task's folder within the runner's folder."""
    return root / JOBS / f"{key[0]}.{key[1]}"


def task_key(folder: Path) -> Key | None:
    """Return the key in a node task's folder name, or None if the folder is not a node task's."""
    match = _NAME.fullmatch(folder.name)
    return (int(match[1]), int(match[2])) if match else None


def result_path(folder: Path, rank: int) -> Path:
    """Return the file with the return value of a rank's callable."""
    return folder / f"result-{rank}.json"


def error_path(folder: Path, rank: int) -> Path:
    """Return the file with the traceback of a rank's callable, or the reason why the callable could not be called."""
    return folder / f"error-{rank}.txt"


def user_folder(folder: Path, *, launcher: str) -> Path:
    """Return the part of a node task's folder that its user can write to; without a launcher, the whole folder."""
    return folder / "own" if launcher else folder


def read_regular(path: Path, offset: int = 0, limit: int = 1 << 20) -> bytes:
    """Read a part of a file that a user may have created; return b"" for a missing file, a link, a pipe or a device.

    A file with a second hard link is also treated as missing, because the link may point to a file of the service.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            return b""
        return os.pread(handle, limit, offset)
    finally:
        os.close(handle)


def file_mode(folder: Path) -> int:
    """Return the mode of new files in a folder: private, or readable by its group if the flag `SHARED` is set."""
    return 0o640 if (folder / SHARED).exists() else 0o600


def write_whole(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Write a file atomically, by default with the mode from `file_mode`.

    The file is not synced to disk, because a power failure that loses it also ends the processes that it describes.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    mode = file_mode(path.parent) if mode is None else mode
    try:
        # A file left by an earlier process would keep its mode and its other hard links.
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def disk_problem(root: Path, *, trial: bool = False) -> str | None:
    """Return why the disk cannot take another node task, or None; ``trial`` writes a file to detect a full quota."""
    try:
        disk = os.statvfs(root)
        free_bytes = disk.f_bavail * disk.f_frsize
        if free_bytes < MIN_FREE_BYTES:
            return f"its disk has {free_bytes:,} bytes free; expected at least {MIN_FREE_BYTES:,}"
        # A file system that allocates inodes on demand reports zero inodes in total.
        if disk.f_files and not disk.f_favail:
            return "its disk has no free inode for another file"
        if trial:
            write_whole(root / ".trial", b"\0" * _TRIAL_BYTES)
            (root / ".trial").unlink()
    except OSError as error:
        return f"its folder cannot be written: {os.strerror(error.errno or 0)}"
    return None


def take_signal(folder: Path) -> int | None:
    """Return and clear the signal requested for the ranks of a node task; None if no signal was requested."""
    try:
        name = (folder / SIGNAL).read_bytes().decode("ascii")
        (folder / SIGNAL).unlink()
        return int(signal.Signals[f"SIG{name}"])
    except (OSError, ValueError, KeyError):
        return None


def write_cancel(folder: Path, reason: str) -> bool:
    """Request a node task's cancellation by writing a file; return False if an earlier request exists, which stays."""
    temporary = folder / f".{CANCEL}.{os.getpid()}"
    temporary.touch(mode=0o600)
    temporary.write_text(reason, encoding="utf-8")
    try:
        os.link(temporary, folder / CANCEL)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def one_line(reason: str) -> str:
    """Return the reason for a cancellation in one line."""
    return " ".join(reason.split()) or "cancelled"


def read_cancel(folder: Path) -> str | None:
    """Return the one-line reason for the cancel request, or ``None`` if there is no request."""
    try:
        return one_line((folder / CANCEL).read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return None


def read_cancel_time(folder: Path) -> tuple[int, bool]:
    """Return when cancellation was first requested (Unix time in ms), and whether the node task must end at once."""
    at_ms = []
    for sign in (CANCEL_NOW, CANCEL):
        with contextlib.suppress(OSError):
            at_ms.append((folder / sign).stat().st_mtime_ns // 1_000_000)
    # If the disk is full, there is no file; the signal alone then ends the task, now.
    return min(at_ms, default=0), (folder / CANCEL_NOW).exists()


class Pace(msgspec.Struct, frozen=True):
    """A request to run or pause a node task from a given time (Unix time in ms); the last request counts."""

    runs: bool
    at_unix_ms: int = 0
    speed: float = 1.0  # fraction of full speed while the node task is running


def write_pace(folder: Path, pace: Pace) -> None:
    """Write a pace request into a node task's folder."""
    write_whole(folder / PACE, msgspec.msgpack.encode(pace))


def read_pace(folder: Path) -> Pace | None:
    """Return the last pace request, or None if it is missing or unreadable."""
    try:
        return msgspec.msgpack.decode((folder / PACE).read_bytes(), type=Pace)
    except (OSError, msgspec.DecodeError):
        return None


def rate_path(own: Path, *, launcher: str) -> Path:
    """Return the file with a node task's rates; ``own`` is the user's part of the node task's folder."""
    return (own.parent if launcher else own) / RATE


def note_rate(folder: Path, rate: float) -> None:
    """Append a line to a node task's file of rates: the current Unix time in ms, and the work per ms from now on."""
    # The flags guard against links and pipes that a job running as the service may have put in place of the file.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(folder / RATE, flags, 0o644)  # readable by ranks that run as another user
    try:
        os.write(handle, f"{time.time() * 1000:.3f} {rate:.9g}\n".encode())
    finally:
        os.close(handle)


def leave(folder: Path, sign: str) -> None:
    """Create an empty file as a flag: `ASK`, `GATE`, `HEARD`, `SHARED`, `CANCEL_NOW` or `CANCEL_SAVE`."""
    (folder / sign).touch(mode=0o600)


def close_folder(folder: Path, *, passes: bool = False, shared: bool = False) -> None:
    """Make a folder private, or traversable by other users (``passes``), or keep it shared with its group."""
    if shared:
        # A chmod by a user outside the group would clear the setgid bit.
        leave(folder, SHARED)
    else:
        folder.chmod(0o711 if passes else 0o700)


def reserve(folder: Path, ranks: int) -> None:
    """Allocate disk space for the final state, so that the state can be written even if the job fills the disk."""
    handle = os.open(folder / RESERVE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, file_mode(folder))
    try:
        os.posix_fallocate(handle, 0, 4096 + 1024 * ranks)
    except OSError as error:
        if error.errno in FULL:
            raise
    finally:
        os.close(handle)


def write_state(folder: Path, state: NodeTaskState) -> None:
    """Write a node task's state; the final state goes into the reserved disk space, if any."""
    data = msgspec.msgpack.encode(state)
    if state.phase != "ended" or not _write_reserved(folder, data):
        write_whole(folder / STATE, data)


def _write_reserved(folder: Path, data: bytes) -> bool:
    """Write the state into the reserved file and rename it, using no new disk space; return False if it is missing."""
    try:
        handle = os.open(folder / RESERVE, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        os.pwrite(handle, data, 0)
        os.ftruncate(handle, len(data))
    finally:
        os.close(handle)
    (folder / RESERVE).replace(folder / STATE)
    return True


def write_usage(folder: Path, curve: UsageCurve) -> None:
    """Write a node task's resource use over time; nothing depends on this file."""
    write_whole(folder / USAGE, msgspec.json.encode(curve))


def read_state(folder: Path) -> NodeTaskState | None:
    """Return a node task's state; None if it is missing, or unreadable after a power failure."""
    return _read(folder / STATE, NodeTaskState)


def read_launch(folder: Path) -> Launch | None:
    """Return a node task's launch; None if it is missing or unreadable."""
    return _read(folder / LAUNCH, Launch)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def opened_folders(folder: Path, rights: int) -> Iterator[list[os.DirEntry[str]] | None]:
    """Yield the entries of a folder and of each folder below it, top down; None for a folder that cannot be read.

    If this user owns a folder but lacks the permissions ``rights``, they are added first, so that jobs cannot hide
    files. Links are not followed.
    """
    waiting = [os.fspath(folder)]
    while waiting:
        path = waiting.pop()
        _open_to_owner(path, rights)
        try:
            with os.scandir(path) as entries:
                children = list(entries)
        except FileNotFoundError:
            continue
        except OSError:
            yield None
            continue
        yield children
        waiting += [entry.path for entry in children if entry.is_dir(follow_symlinks=False)]


def _open_to_owner(path: str, rights: int) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            mode = stat.S_IMODE(os.fstat(handle).st_mode)
            if mode & rights != rights:
                os.chmod(f"/proc/self/fd/{handle}", mode | rights)
        finally:
            os.close(handle)


def remove_folder(folder: Path) -> None:
    """Remove a folder with everything below it, including folders that this user's jobs have made unreadable."""
    for _ in opened_folders(folder, stat.S_IRWXU):
        pass
    shutil.rmtree(folder, ignore_errors=True)

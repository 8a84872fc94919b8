"""The folder of a piece: what lies in it, and how it is written so that no reader ever sees half of it."""

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
from gridweave.site.launch import Launch, PieceState, UsageCurve

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
"""The errors of a disk without room."""

LEAST_ROOM_BYTES = 1 << 20
"""With less than that on its disk a machine starts nothing: the records of a piece, and a little output."""

_TRIAL_BYTES = 1 << 16

Key = tuple[int, int]
"""A job's id and the attempt."""

T = TypeVar("T")

_NAME = re.compile(r"(\d+)\.(\d+)")


def check_way(root: Path) -> None:
    """Refuse a folder that the users of jobs cannot reach."""
    for folder in root.parents:
        if not folder.stat().st_mode & stat.S_IXOTH:
            problem = f"{folder} lets no other users through, and jobs of others run below it"
            right = "name a folder elsewhere (folder = ... in GRID.toml), or chmod o+x"
            raise InputError(f"{root}: {problem}; {right}")


def piece_folder(root: Path, key: Key) -> Path:
    """Return the folder of a piece below the folder of a runner."""
    return root / JOBS / f"{key[0]}.{key[1]}"


def piece_key(folder: Path) -> Key | None:
    """Return the key that a folder is named by, or ``None`` if it is none of ours."""
    match = _NAME.fullmatch(folder.name)
    return (int(match[1]), int(match[2])) if match else None


def result_path(folder: Path, rank: int) -> Path:
    """Return the file of what the callable of a rank returned."""
    return folder / f"result-{rank}.json"


def error_path(folder: Path, rank: int) -> Path:
    """Return the file of what the callable of a rank raised, or of the line that says why it could not be called."""
    return folder / f"error-{rank}.txt"


def user_folder(folder: Path, *, launcher: str) -> Path:
    """Return the part of a piece's folder that its user may write; all of it, if that is the service itself."""
    return folder / "own" if launcher else folder


def read_regular(path: Path, offset: int = 0, limit: int = 1 << 20) -> bytes:
    """Return a part of a file that a user may have put there; nothing if it is none, or a link, a pipe or a device.

    A second name of a file is refused as well: it might be one of ours.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            return b""
        return os.pread(handle, limit, offset)
    finally:
        os.close(handle)


def file_mode(folder: Path) -> int:
    """Return the mode of files in a folder: its user's alone, or where the sign `SHARED` is, its group's to read."""
    return 0o640 if (folder / SHARED).exists() else 0o600


def write_whole(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Put a file in place with all its content, or not at all; its mode is that of the folder's files.

    It is not forced to the disk: what a power failure takes is the record of processes that it took as well.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    mode = file_mode(path.parent) if mode is None else mode
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def room_problem(root: Path, *, trial: bool = False) -> str | None:
    """Return why a folder has no room for another piece, or ``None``; a trial writes something, to see a quota."""
    try:
        disk = os.statvfs(root)
        free_bytes = disk.f_bavail * disk.f_frsize
        if free_bytes < LEAST_ROOM_BYTES:
            return f"its disk has {free_bytes:,} bytes free; {LEAST_ROOM_BYTES:,} are needed at least"
        # A file system that makes its inodes as they are needed says that it has none at all.
        if disk.f_files and not disk.f_favail:
            return "its disk has no room for another file"
        if trial:
            write_whole(root / ".trial", b"\0" * _TRIAL_BYTES)
            (root / ".trial").unlink()
    except OSError as error:
        return f"its folder cannot be written: {os.strerror(error.errno or 0)}"
    return None


def take_signal(folder: Path) -> int | None:
    """Return which signal the ranks of a piece are to get, once for each time that it is wished for; None: none is."""
    try:
        name = (folder / SIGNAL).read_bytes().decode("ascii")
        (folder / SIGNAL).unlink()
        return int(signal.Signals[f"SIG{name}"])
    except (OSError, ValueError, KeyError):
        return None


def write_cancel(folder: Path, reason: str) -> bool:
    """Leave the wish to end a piece in its folder; the first one stays. Return whether this was the first."""
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
    """Return why a piece was cancelled, in one line."""
    return " ".join(reason.split()) or "cancelled"


def read_cancel(folder: Path) -> str | None:
    """Return the reason for a requested end in one line, or ``None`` if no end was requested."""
    try:
        return one_line((folder / CANCEL).read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return None


def read_cancel_time(folder: Path) -> tuple[int, bool]:
    """Return when somebody first wished to end a piece (Unix time in ms), and whether it is to end at once."""
    at_ms = []
    for sign in (CANCEL_NOW, CANCEL):
        with contextlib.suppress(OSError):
            at_ms.append((folder / sign).stat().st_mtime_ns // 1_000_000)
    # On a full disk there is no file: by the signal alone it ends now.
    return min(at_ms, default=0), (folder / CANCEL_NOW).exists()


class Pace(msgspec.Struct, frozen=True):
    """The wish that a piece goes on or stands still from an instant on, Unix time in ms; the last one counts."""

    runs: bool
    at_unix_ms: int = 0
    speed: float = 1.0  # at which part of its full speed it works while it runs


def write_pace(folder: Path, pace: Pace) -> None:
    """Leave the wish in the folder of a piece."""
    write_whole(folder / PACE, msgspec.msgpack.encode(pace))


def read_pace(folder: Path) -> Pace | None:
    """Return the last wish, or ``None`` if there is none that can be read."""
    try:
        return msgspec.msgpack.decode((folder / PACE).read_bytes(), type=Pace)
    except (OSError, msgspec.DecodeError):
        return None


def rate_path(own: Path, *, launcher: str) -> Path:
    """Return the file that says how fast a piece works, by the part of its folder that is its user's."""
    return (own.parent if launcher else own) / RATE


def note_rate(folder: Path, rate: float) -> None:
    """Add a line to the rates of a piece: from now on (Unix time in ms) it does so much work in one ms."""
    # A job that runs as the service may have put anything there.
    how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(folder / RATE, how, 0o644)  # the ranks may run as another user, who may pass through the folder
    try:
        os.write(handle, f"{time.time() * 1000:.3f} {rate:.9g}\n".encode())
    finally:
        os.close(handle)


def leave(folder: Path, sign: str) -> None:
    """Leave an empty file as a sign: `ASK`, `GATE`, `HEARD`, `SHARED`, `CANCEL_NOW` or `CANCEL_SAVE`."""
    (folder / sign).touch(mode=0o600)


def close_folder(folder: Path, *, passes: bool = False, shared: bool = False) -> None:
    """Close a folder to other users, or let them pass through; or leave it shared with its group, as it was made."""
    if shared:
        # Whoever is not in the group cannot set the mode without taking the setgid bit away.
        leave(folder, SHARED)
    else:
        folder.chmod(0o711 if passes else 0o700)


def reserve(folder: Path, ranks: int) -> None:
    """Set room aside for the last state, so that a disk filled by the job cannot keep it from being written."""
    handle = os.open(folder / RESERVE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, file_mode(folder))
    try:
        os.posix_fallocate(handle, 0, 4096 + 1024 * ranks)
    except OSError as error:
        if error.errno in FULL:
            raise
    finally:
        os.close(handle)


def write_state(folder: Path, state: PieceState) -> None:
    """Write the state of a piece; the last one into the room set aside for it, if there is any."""
    data = msgspec.msgpack.encode(state)
    if state.phase != "ended" or not _write_reserved(folder, data):
        write_whole(folder / STATE, data)


def _write_reserved(folder: Path, data: bytes) -> bool:
    """Write the state over the reserve and move it into place, which takes no new block; return whether that worked."""
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
    """Write what a piece has used over time; it is lost with the folder, and nothing rests on it."""
    write_whole(folder / USAGE, msgspec.json.encode(curve))


def read_state(folder: Path) -> PieceState | None:
    """Return the state of a piece; ``None`` if it has none, or one that a power failure left unreadable."""
    return _read(folder / STATE, PieceState)


def read_launch(folder: Path) -> Launch | None:
    """Return what a piece was to run; ``None`` if that is missing or unreadable."""
    return _read(folder / LAUNCH, Launch)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def opened_folders(folder: Path, rights: int) -> Iterator[list[os.DirEntry[str]] | None]:
    """Yield what is in a folder and in each one below it, top down; None for one that cannot be read.

    A folder whose owner, who is this user, lacks these rights there is given them first: users must not hide what they
    keep. No link is followed.
    """
    waiting = [os.fspath(folder)]
    while waiting:
        path = waiting.pop()
        _open_to_owner(path, rights)
        try:
            with os.scandir(path) as entries:
                found = list(entries)
        except FileNotFoundError:
            continue
        except OSError:
            yield None
            continue
        yield found
        waiting += [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]


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
    """Remove a folder with all that is below it, what this user has closed to itself as well."""
    for _ in opened_folders(folder, stat.S_IRWXU):
        pass
    shutil.rmtree(folder, ignore_errors=True)

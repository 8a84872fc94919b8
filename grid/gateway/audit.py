"""Rotated log files that only their owner can read: the audit log and the request log.

A full file is renamed to ``NAME.1``, the previous ``NAME.1`` to ``NAME.2``, and so on.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import logging
import os
import threading
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path

import msgspec

from gridweave.errors import InputError, OptionError

MOST_BYTES, KEPT, AUDITS_KEPT = 10 << 20, 10, 100
"""Maximum file size in bytes, and the number of rotated files kept for the request log and for the audit log."""

AUDIT = "audit.log"
"""Default name of the audit log, which is next to the token database."""

_TAIL = 16 << 10
_FIRST = "0" * 64

logger = logging.getLogger("gridweave.gateway")


def audit_place(tokens: str | None, named: str | None) -> str | None:
    """Return the audit log's path: `named`, else a file next to the token database if that is a file, else None.

    Examples
    --------
    >>> audit_place("/var/lib/gridweave/tokens.db", None), audit_place("postgresql://db/tokens", None)
    ('/var/lib/gridweave/audit.log', None)
    """
    if named is not None or tokens is None:
        return named
    return None if "://" in tokens else str(Path(tokens).with_name(AUDIT))


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the audit log.

    Attributes
    ----------
    time : str
    user, token, address : str
        The client's user name, token id (empty without a token) and address.
    request : str
        Request id, as in the request log and in job histories.
    what : str
        Name of the route; ``login`` for an invalid token; ``token-create`` or ``token-revoke`` for the command line.
    target : str
        The job, site or token that the request acts on.
    jobs : int
    status : int
        HTTP status; 0 for the command line.
    problem : str
        Kind of refusal; empty if the request was not refused.
    before : str
        SHA-256 of the previous line in hexadecimal; it reveals changed and removed lines.
    """

    time: str
    user: str = ""
    token: str = ""
    address: str = ""
    request: str = ""
    what: str
    target: str = ""
    jobs: int = 0
    status: int = 0
    problem: str = ""
    before: str = ""


class AuditLog:
    """An append-only log in which each line holds the previous line's hash; several processes may share the file."""

    def __init__(self, path: str | Path, *, most_bytes: int = MOST_BYTES, kept: int = AUDITS_KEPT) -> None:
        self.path = Path(path)
        self._most_bytes, self._kept = most_bytes, kept
        self._lock = threading.Lock()
        self._is_logged = False
        with self._opened():
            pass

    def add(self, entry: AuditEntry) -> None:
        """Append a line; a failure is logged, but only once until a line can be written again."""
        try:
            with self._lock, self._opened() as handle:
                if os.fstat(handle).st_size < self._most_bytes:
                    self._write(handle, entry)
                else:
                    self._rotate()
                    with self._opened() as fresh:
                        self._write(fresh, entry)
            self._is_logged = False
        except (OSError, OptionError) as error:
            if not self._is_logged:
                logger.error("%s: the audit log cannot be written: %s", self.path, error)
            self._is_logged = True

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """Open and lock the file; yield its descriptor."""
        while True:
            try:
                handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                right = "name a file in a folder that exists and that you can write to"
                raise OptionError("audit", f"{self.path}: {error.strerror}; {right}") from None
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                if _is_same(handle, self.path):
                    yield handle
                    return
                # Another process has rotated the file.
            finally:
                os.close(handle)

    def _write(self, handle: int, entry: AuditEntry) -> None:
        linked = msgspec.structs.replace(entry, before=self._before(handle))
        os.write(handle, msgspec.json.encode(linked) + b"\n")

    def _before(self, handle: int) -> str:
        """Return the digest of the last line in this file, or in the newest rotated file if this file is empty.

        This continues the chain even if another process is the first to write after a rotation.
        """
        if not os.fstat(handle).st_size:
            with contextlib.suppress(FileNotFoundError):
                old = os.open(f"{self.path}.1", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    return _digest_of_last(old)
                finally:
                    os.close(old)
        return _digest_of_last(handle)

    def _rotate(self) -> None:
        for number in range(self._kept - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}.{number}", f"{self.path}.{number + 1}")
        os.replace(self.path, f"{self.path}.1")


def _is_same(handle: int, path: Path) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(handle)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _digest_of_last(handle: int) -> str:
    """Return the digest of the last line of a file; zeros if the file is empty."""
    size = os.fstat(handle).st_size
    tail = os.pread(handle, _TAIL, max(0, size - _TAIL))
    lines = tail.splitlines()
    return hashlib.sha256(lines[-1]).hexdigest() if lines else _FIRST


def check_audit(path: str | Path) -> tuple[int, int]:
    """Check an audit log's hash chain, starting with the oldest file; return the numbers of files and lines.

    `path` is the newest file; the rotated files are in the same folder. Raise InputError if a file cannot be
    read, or for the first line whose stored hash does not match the previous line.
    """
    names = _files_of(path)
    # The line before the first line may have been in a file that was deleted, so accept any digest there.
    last = _FIRST if len(names) <= AUDITS_KEPT else None
    n_lines = 0
    for name in names:
        try:
            lines = Path(name).read_bytes().splitlines()
        except OSError as error:
            raise InputError(f"{name}: cannot be read: {error.strerror}; name an audit log") from None
        for place, line in enumerate(lines, 1):
            before = _before(line)
            if before is None or last not in (None, before):
                changed = "the line was changed, or one between the two was removed"
                raise InputError(f"{name}: line {place} does not follow from the one before: {changed}")
            last = hashlib.sha256(line).hexdigest()
        n_lines += len(lines)
    return len(names), n_lines


def _files_of(path: str | Path) -> list[str]:
    """Return the files of an audit log, oldest first."""
    numbers = [0, *(number for number in range(1, AUDITS_KEPT + 1) if Path(f"{path}.{number}").exists())]
    if numbers != list(range(len(numbers))):
        gone = next(number for number, there in enumerate(numbers) if number != there)
        raise InputError(f"{path}.{gone}: is missing, and {path}.{numbers[-1]} is there")
    return [f"{path}.{number}" if number else str(path) for number in reversed(numbers)]


def _before(line: bytes) -> str | None:
    """Return the digest of the previous line that a line contains; None if the line is malformed."""
    try:
        return msgspec.json.decode(line, type=AuditEntry).before
    except msgspec.MsgspecError:
        return None


class PrivateRotation(RotatingFileHandler):
    """A rotating log file that only its owner can read."""

    def __init__(self, path: str | Path, *, most_bytes: int = MOST_BYTES, kept: int = KEPT) -> None:
        super().__init__(path, maxBytes=most_bytes, backupCount=kept, encoding="utf-8")

    def _open(self) -> io.TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return open(os.open(self.baseFilename, flags, 0o600), "a", encoding="utf-8")

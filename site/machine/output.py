"""Copy a rank's output from pipes into files, up to a limit; further output is dropped and never blocks the rank."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_CHUNK = 1 << 16
_CHUNKS_PER_TURN = 16
_DROPPED_PER_TURN = 1 << 22
_WIDE_PIPE = 1 << 20
_F_SETPIPE_SZ = 1031

STREAMS = ("out", "err")


def output_path(folder: Path, rank: int, stream: str) -> Path:
    """Return the file of a rank's standard output (``out``) or error (``err``), which exists once there is output."""
    return folder / f"rank-{rank}.{stream}"


@dataclass
class _Stream:
    """A pipe and its file, which is created on the first output."""

    pipe: int
    path: Path
    file: int = -1
    dropping: bool = False
    noted: bool = False


class RankOutput:
    """Standard output and error of a rank, which share one size limit.

    When output is dropped, a line that says so is added beyond the limit. ``writers`` are the pipe ends for the rank
    (call `close_writers` once the rank has them), and ``problem`` is the reason why output is missing. ``give``
    makes the user the owner of a new file.
    """

    def __init__(
        self, folder: Path, rank: int, limit_bytes: int, give: Callable[[int], None] = lambda handle: None
    ) -> None:
        self.limit_bytes = limit_bytes
        self.kept_bytes = 0
        self.dropped_bytes = 0
        self.problem = ""
        self.writers: list[int] = []
        self._streams: dict[int, _Stream] = {}
        self._nowhere = -1
        self._give = give
        for name in STREAMS:
            reader, writer = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(reader, False)
            self._streams[reader] = _Stream(reader, output_path(folder, rank, name))
            self.writers.append(writer)

    @property
    def readers(self) -> list[int]:
        """The read ends of the open pipes, for the caller to watch."""
        return list(self._streams)

    def close_writers(self) -> None:
        """Close this process's write ends, so that a pipe reaches its end when the rank closes its own write end."""
        for writer in self.writers:
            os.close(writer)
        self.writers = []

    def pump(self, reader: int) -> bool:
        """Copy a bounded amount of data from a pipe to its file; return whether the pipe is still open."""
        stream = self._streams[reader]
        moved = self._drop(stream) if stream.dropping else self._keep(stream)
        if moved:
            return True
        self._close(stream)
        return False

    def finish(self) -> None:
        """Copy the remaining data and close everything, without waiting for processes that still have a pipe open."""
        self.close_writers()
        for reader in self.readers:
            os.set_blocking(reader, False)
            before = -1
            while reader in self._streams and before != self.kept_bytes + self.dropped_bytes:
                before = self.kept_bytes + self.dropped_bytes
                self.pump(reader)
            if reader in self._streams:
                self._close(self._streams[reader])
        if self._nowhere >= 0:
            os.close(self._nowhere)
            self._nowhere = -1

    def _keep(self, stream: _Stream) -> bool:
        """Copy data from the pipe to the file; return whether the pipe is still open."""
        for _ in range(_CHUNKS_PER_TURN):
            try:
                data = os.read(stream.pipe, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            capacity_bytes = self.limit_bytes - self.kept_bytes
            written = self._write(stream, data[:capacity_bytes])
            self.kept_bytes += written
            self.dropped_bytes += len(data) - written
            if written < len(data):
                self._start_dropping(stream)
                return True
        return True

    def _write(self, stream: _Stream, data: bytes) -> int:
        """Write as much as the disk accepts; return the number of bytes written."""
        written = 0
        while written < len(data):
            try:
                written += os.write(self._file(stream), data[written:])
            except OSError as error:
                self.problem = f"output could not be written: {os.strerror(error.errno or errno.EIO)}"
                break
        return written

    def _file(self, stream: _Stream) -> int:
        if stream.file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            stream.file = os.open(stream.path, flags, 0o640)
            self._give(stream.file)
        return stream.file

    def _start_dropping(self, stream: _Stream) -> None:
        """Stop storing this stream: add a line to the file, and enlarge the pipe to empty it in large chunks."""
        stream.dropping = True
        self.problem = self.problem or f"output limit of {self.limit_bytes} bytes reached"
        self._note(stream)
        if self._nowhere < 0:
            self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(stream.pipe, _F_SETPIPE_SZ, _WIDE_PIPE)

    def _note(self, stream: _Stream) -> None:
        """Append the line about missing output to the file, if the disk has space."""
        line = f"\n[gridweave: {self.problem}; the rest is dropped]\n".encode()
        with contextlib.suppress(OSError):
            position = os.lseek(self._file(stream), 0, os.SEEK_CUR)
            stream.noted = os.write(stream.file, line) == len(line)
            if not stream.noted:
                os.ftruncate(stream.file, position)
                os.lseek(stream.file, position, os.SEEK_SET)

    def _drop(self, stream: _Stream) -> bool:
        """Discard data from the pipe without copying; return whether the pipe is still open."""
        gone = 0
        while gone < _DROPPED_PER_TURN:
            try:
                count = os.splice(stream.pipe, self._nowhere, _WIDE_PIPE, flags=os.SPLICE_F_NONBLOCK)
            except BlockingIOError:
                return True
            except OSError:
                # The kernel cannot splice to this device, so read instead.
                try:
                    count = len(os.read(stream.pipe, _CHUNK))
                except BlockingIOError:
                    return True
            if count == 0:
                return False
            gone += count
            self.dropped_bytes += count
        return True

    def _close(self, stream: _Stream) -> None:
        del self._streams[stream.pipe]
        if stream.dropping and not stream.noted:
            self._note(stream)
        os.close(stream.pipe)
        if stream.file >= 0:
            with contextlib.suppress(OSError):
                os.close(stream.file)

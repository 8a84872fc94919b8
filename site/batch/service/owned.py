"""What is read of a folder that a user of the cluster may have written: files of that user alone, by no link."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TypeVar

import msgspec

from gridweave.site.launch import Launch, PieceState
from gridweave.site.machine.folders import LAUNCH, STATE

MOST_BYTES = 16 << 20
"""So much of a record is read at most: what a job was to run, and how that ended."""

T = TypeVar("T")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OwnedPiece(msgspec.Struct, frozen=True):
    """A part of a job in the folder of an account.

    Attributes
    ----------
    base : pathlib.Path
        The folder of the account; the way to it is the site's own.
    way : tuple of str
        The folders from there to that of the part, which the account may have put there.
    uid : int
        The account; what belongs to anybody else is not read.
    """

    base: Path
    way: tuple[str, ...]
    uid: int

    @property
    def folder(self) -> Path:
        """Where the part is."""
        return self.base.joinpath(*self.way)

    def read(self, path: Path, offset: int = 0, limit: int = MOST_BYTES) -> tuple[bytes, int] | None:
        """Return a part of a file of the part, and how long it is; None if there is none that may be read."""
        try:
            handle = os.open(self.base, _FOLDER)
            for name in path.relative_to(self.base).parts[:-1]:
                inner = handle
                try:
                    handle = os.open(name, _FOLDER, dir_fd=inner)
                finally:
                    os.close(inner)
        except OSError:
            return None
        try:
            file = os.open(path.name, _FILE, dir_fd=handle)
        except OSError:
            return None
        finally:
            os.close(handle)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid != self.uid:
                return None
            return os.pread(file, limit, offset), found.st_size
        finally:
            os.close(file)

    def launch(self) -> Launch | None:
        """Return what was to run; None if that cannot be read."""
        return self._record(LAUNCH, Launch)

    def state(self) -> PieceState | None:
        """Return what is known of how it runs; None if that cannot be read."""
        return self._record(STATE, PieceState)

    def _record(self, name: str, kind: type[T]) -> T | None:
        found = self.read(self.folder / name)
        try:
            return None if found is None else msgspec.msgpack.decode(found[0], type=kind)
        except msgspec.MsgspecError:
            return None

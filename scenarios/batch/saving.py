"""Save a long simulation while it is running, and resume it later (docs/disciplines.md, "Save and resume")."""

from __future__ import annotations

import hashlib
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from gridweave.errors import InputError
from gridweave.scenarios.traces.text import new_file, one_line

VERSION = 1
"""Version of the file format. Raise it when an array's meaning changes; changed shapes or types are detected anyway."""

EVERY_S = 60.0

Arrays = npt.NDArray[Any]


class Saving:
    """Saves a simulation to a file at intervals, and resumes it from that file.

    Parameters
    ----------
    path : str or pathlib.Path
        A file of numpy arrays. It is replaced atomically, and removed at the end of the simulation.
    every_s : float, optional
        Interval in seconds of real time.
    resume : bool, optional
        Whether to resume from the file.
    clock : callable, optional
        Returns the real time in seconds.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        every_s: float = EVERY_S,
        resume: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.every_s, self.resume, self._clock = Path(path), every_s, resume, clock
        self.saved = threading.Event()
        self._asked = threading.Event()
        self._parts: object = None
        self._identity = ""
        self._last_s = clock()

    @property
    def has_begun(self) -> bool:
        """Whether the simulation has started, so that there is something to save."""
        return self._parts is not None

    def begin(self, identity: str, parts: object) -> None:
        """Register the simulation's arrays; if resuming, load their content from the file.

        Parameters
        ----------
        identity : str
            Identifies the simulation, from `identity_of`.
        parts : object
            Nested named tuples of arrays and None: everything that changes during the simulation.

        Raises
        ------
        InputError
            If the file cannot be read, or belongs to another simulation or another version of gridweave.
        """
        if self.resume:
            self._restore(identity, parts)
        self._identity, self._parts, self._last_s = identity, parts, self._clock()

    def after_chunk(self) -> None:
        """Save if the interval has passed or a save was requested."""
        if self._asked.is_set() or self._clock() - self._last_s >= self.every_s:
            self.save()

    def save(self) -> None:
        """Write all arrays to the file."""
        arrays = dict(_arrays(self._parts))
        about = np.array([str(VERSION), self._identity])
        with new_file(self.path) as (_, raw):
            np.savez(raw, allow_pickle=False, about=about, **arrays)
        self._last_s = self._clock()
        self.saved.set()

    def ask(self) -> None:
        """Request a save after the current chunk; call this from a thread other than the simulation's."""
        self.saved.clear()
        self._asked.set()

    def done(self) -> None:
        """Remove the file, since the simulation has ended."""
        self.path.unlink(missing_ok=True)
        self.saved.set()

    def _restore(self, identity: str, parts: object) -> None:
        try:
            # numpy.load would also accept a file with a single array.
            with self.path.open("rb") as raw, NpzFile(raw, allow_pickle=False) as archive:
                saved = {name: np.asarray(archive[name]) for name in archive.files}
        except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(f"{self.path}: cannot be read as a saved simulation: {one_line(error)}") from None
        about = [*np.ravel(saved.pop("about", ())).tolist(), "", ""]
        arrays = dict(_arrays(parts))
        alike = saved.keys() == arrays.keys() and all(
            (saved[name].shape, saved[name].dtype) == (array.shape, array.dtype) for name, array in arrays.items()
        )
        if about[0] != str(VERSION) or (about[1] == identity and not alike):
            raise InputError(f"{self.path}: was saved by another version of gridweave; start again without --resume")
        if about[1] != identity:
            raise InputError(
                f"{self.path}: belongs to another simulation; resume it with its original trace and options"
            )
        for name, array in arrays.items():
            array[...] = saved[name]


def identity_of(*things: object) -> str:
    """Return a hash that identifies a simulation by its inputs.

    Parameters
    ----------
    *things
        Arrays, and values whose ``repr`` fully describes them.
    """
    digest = hashlib.sha256()
    for thing in things:
        digest.update(np.ascontiguousarray(thing).tobytes() if isinstance(thing, np.ndarray) else repr(thing).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _arrays(parts: object, name: str = "part") -> Iterator[tuple[str, Arrays]]:
    """Yield the writeable arrays in nested named tuples, each with its path."""
    if isinstance(parts, np.ndarray):
        if parts.flags.writeable:
            yield name, parts
    elif isinstance(parts, tuple):
        for index, part in enumerate(parts):
            yield from _arrays(part, f"{name}.{index}")

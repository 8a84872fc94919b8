"""A long simulation that is saved as it goes, and taken up where it was (docs/disciplines.md, "Save and resume")."""

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
"""Of the file. It is raised when the meaning of an array changes; another shape or type is noticed anyway."""

EVERY_S = 60.0

Arrays = npt.NDArray[Any]


class Saving:
    """Where a simulation is saved, how often, and whether it is taken up from there.

    Parameters
    ----------
    path : str or pathlib.Path
        A file of numpy arrays; it is replaced whole or not at all, and removed when the simulation is done.
    every_s : float, optional
        How often, in seconds of the computer's time.
    resume : bool, optional
        Whether to go on from what the file holds.
    clock : callable, optional
        Returns seconds.
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
        """Whether there is anything to save."""
        return self._parts is not None

    def begin(self, identity: str, parts: object) -> None:
        """Learn what is played, and put what was saved in its place if the simulation is taken up.

        Parameters
        ----------
        identity : str
            What is simulated, as `identity_of` has it.
        parts : object
            Named tuples of arrays, or None, in any depth: all that changes as the simulation goes on.

        Raises
        ------
        InputError
            If the file cannot be read, or is of another simulation or another version of gridweave.
        """
        if self.resume:
            self._restore(identity, parts)
        self._identity, self._parts, self._last_s = identity, parts, self._clock()

    def after_piece(self) -> None:
        """Save if the time has come, or somebody has asked."""
        if self._asked.is_set() or self._clock() - self._last_s >= self.every_s:
            self.save()

    def save(self) -> None:
        """Write all arrays to the file."""
        kept = dict(_arrays(self._parts))
        about = np.array([str(VERSION), self._identity])
        with new_file(self.path) as (_, raw):
            np.savez(raw, allow_pickle=False, about=about, **kept)
        self._last_s = self._clock()
        self.saved.set()

    def ask(self) -> None:
        """Have the simulation, which runs in another thread, save itself soon."""
        self.saved.clear()
        self._asked.set()

    def done(self) -> None:
        """Remove the file: there is nothing to take up."""
        self.path.unlink(missing_ok=True)
        self.saved.set()

    def _restore(self, identity: str, parts: object) -> None:
        try:
            # Not numpy.load, which reads a file of one array as well.
            with self.path.open("rb") as raw, NpzFile(raw, allow_pickle=False) as kept:
                found = {name: np.asarray(kept[name]) for name in kept.files}
        except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(f"{self.path}: cannot be read as a saved simulation: {one_line(error)}") from None
        about = [*np.ravel(found.pop("about", ())).tolist(), "", ""]
        wanted = dict(_arrays(parts))
        alike = found.keys() == wanted.keys() and all(
            (found[name].shape, found[name].dtype) == (array.shape, array.dtype) for name, array in wanted.items()
        )
        if about[0] != str(VERSION) or (about[1] == identity and not alike):
            raise InputError(f"{self.path}: was saved by another version of gridweave; start afresh, without --resume")
        if about[1] != identity:
            raise InputError(
                f"{self.path}: is of another simulation; resume it with the trace and options of its start"
            )
        for name, array in wanted.items():
            array[...] = found[name]


def identity_of(*things: object) -> str:
    """Return what tells simulations apart: a hash of arrays, and of all else as it is written.

    Parameters
    ----------
    *things
        Arrays, and values whose ``repr`` says all that counts.
    """
    digest = hashlib.sha256()
    for thing in things:
        digest.update(np.ascontiguousarray(thing).tobytes() if isinstance(thing, np.ndarray) else repr(thing).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _arrays(parts: object, name: str = "part") -> Iterator[tuple[str, Arrays]]:
    """Yield the arrays of named tuples in any depth that can change, each with its place."""
    if isinstance(parts, np.ndarray):
        if parts.flags.writeable:
            yield name, parts
    elif isinstance(parts, tuple):
        for place, part in enumerate(parts):
            yield from _arrays(part, f"{name}.{place}")

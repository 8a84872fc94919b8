"""The elements of a packed array on a machine: each rank draws one after the other from a counter that all share.

A rank of a packed job is no program of its own: the process that would become it stays, draws the index of an element,
runs the command with it, waits, writes down what became of it, and draws the next. (Where a Python callable is mapped
over items, one Python calls it with many: `gridweave.site.launch.Call.each`.)

Beside the counter there is a file with a line for each element that has ended. What was drawn and has no line was
interrupted: its rank was killed with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import msgspec

from gridweave.site.elements import Element, Ranges, count_of, indexes_of
from gridweave.site.machine.folders import read_regular

COUNTER = "elements.next"
ENDED = "elements.json"
"""One line of JSON for each element that has ended."""

INDEX_VARIABLE = "GRIDWEAVE_ARRAY_INDEX"

NOT_STARTED = 127
"""Exit code of an element whose program could not be started."""

_NUMBER_BYTES = 8
_MOST_LINE_BYTES = 512
_CHUNK = 1 << 16
_LOOK_S = 1.0
_FIRST_OWN_DESCRIPTOR = 3


class Packed(NamedTuple):
    """What a rank of a packed array is told of it."""

    folder: str  # which its user may write
    elements: Ranges
    output_limit_bytes: int


class Elements:
    """The elements of a piece as one of its ranks sees them; each rank has one of its own, for the same folder."""

    def __init__(self, folder: Path, elements: Ranges) -> None:
        self._indexes = list(indexes_of(elements))
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._counter = os.open(folder / COUNTER, flags, 0o640)
        self._ended = os.open(folder / ENDED, flags | os.O_APPEND, 0o640)

    def draw(self) -> int | None:
        """Return the index of an element that nobody else draws, or None if none is left."""
        fcntl.lockf(self._counter, fcntl.LOCK_EX)
        try:
            number = _number(os.pread(self._counter, _NUMBER_BYTES, 0))
            if number >= len(self._indexes):
                return None
            os.pwrite(self._counter, (number + 1).to_bytes(_NUMBER_BYTES, "little"), 0)
        finally:
            fcntl.lockf(self._counter, fcntl.LOCK_UN)
        return self._indexes[number]

    def write_down(self, element: Element) -> None:
        """Keep what became of an element: all of it or, on a full disk, an OSError."""
        line = msgspec.json.encode(element) + b"\n"
        if os.write(self._ended, line) != len(line):
            raise OSError(28, "No space left on device")


def ended_elements(folder: Path, elements: Ranges) -> tuple[Element, ...]:
    """Return what became of the elements of a piece that have ended, each once, by index.

    A user may have written into the file: what is no element of the piece is passed over.
    """
    lines = read_regular(folder / ENDED, limit=_MOST_LINE_BYTES * (count_of(elements) + 1)).splitlines()
    known = set(indexes_of(elements)) if lines else set()
    found: dict[int, Element] = {}
    decoder = msgspec.json.Decoder(Element)
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):  # a line that a full disk cut off: it runs again
            element = decoder.decode(line)
            if element.index in known:
                found.setdefault(element.index, element)
    return tuple(found[index] for index in sorted(found))


def interrupted_elements(folder: Path, elements: Ranges, ended: tuple[Element, ...]) -> tuple[int, ...]:
    """Return the indexes that were drawn and have not ended, ascending; nothing of the piece runs any more."""
    number = min(_number(read_regular(folder / COUNTER, limit=_NUMBER_BYTES)), count_of(elements))
    done = {element.index for element in ended}
    return tuple(index for index in itertools.islice(indexes_of(elements), number) if index not in done)


def _number(data: bytes) -> int:
    return int.from_bytes(data[:_NUMBER_BYTES], "little")


class _Stream:
    """Standard output or error of the element that runs: a file without a name, whose content then goes to the rank's.

    So it is known where in the output of the rank that of each element is.
    """

    def __init__(self, folder: Path, target: int, limit_bytes: int) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - it lives as long as the process
        self.descriptor = self._file.fileno()
        # So that nothing is written behind a gap after it was cut.
        flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
        self._target, self._limit_bytes, self._written = target, limit_bytes, 0

    def cut(self) -> None:
        """Give the disk back what is beyond the limit."""
        if os.fstat(self.descriptor).st_size > self._limit_bytes:
            os.ftruncate(self.descriptor, self._limit_bytes)

    def hand_on(self) -> tuple[int, int]:
        """Move what was written to the output of the rank; return where it is there, and how much."""
        size = min(os.fstat(self.descriptor).st_size, self._limit_bytes)
        place, moved = self._written, 0
        # What the element has left running may have cut the file meanwhile.
        while moved < size and (data := os.pread(self.descriptor, min(_CHUNK, size - moved), moved)):
            while data:
                count = os.write(self._target, data)
                moved, data = moved + count, data[count:]
        if size:
            os.ftruncate(self.descriptor, 0)
        self._written += moved
        return place, moved


def _cut_now_and_then(streams: list[_Stream]) -> None:
    def cut(_number: int, _frame: FrameType | None) -> None:
        for stream in streams:
            stream.cut()

    signal.signal(signal.SIGALRM, cut)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)


def run_elements(
    packed: Packed, rank: int, program: str, command: tuple[str, ...], environment: Mapping[str, str]
) -> int:
    """Run elements one after the other until none is left; return the exit code of the rank.

    For a rank that is forked and has its output in place, but has not become its program.

    Parameters
    ----------
    rank : int
        Its number in the job.
    program, command : str, tuple of str
        The file to execute, and its arguments, from its name on.

    Raises
    ------
    OSError
        If what became of an element cannot be written down.
    """
    os.closerange(_FIRST_OWN_DESCRIPTOR, os.sysconf("SC_OPEN_MAX"))
    folder = Path(packed.folder)
    elements = Elements(folder, packed.elements)
    streams = [_Stream(folder, target, packed.output_limit_bytes) for target in (1, 2)]
    _cut_now_and_then(streams)
    own = dict(environment)
    actions = [(os.POSIX_SPAWN_DUP2, stream.descriptor, number) for number, stream in enumerate(streams, start=1)]

    def run() -> tuple[int, float, int]:
        """Run an element; return its exit code, the processor time and the most memory in KiB that it took."""
        try:
            pid = os.posix_spawn(program, command, own, file_actions=actions)
        except OSError as error:
            os.write(streams[1].descriptor, f"{program}: {os.strerror(error.errno or 0)}\n".encode())
            return NOT_STARTED, 0.0, 0
        _, status, used = os.wait4(pid, 0)
        return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss

    while (index := elements.draw()) is not None:
        own[INDEX_VARIABLE] = str(index)
        start_ms, began_s = int(time.time() * 1000), time.monotonic()
        code, cpu_s, peak_kib = run()
        element = Element(
            index=index,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            start_ms=start_ms,
            wall_ms=round((time.monotonic() - began_s) * 1000),
            cpu_ms=round(cpu_s * 1000),
            peak_memory_bytes=peak_kib * 1024,
            rank=rank,
            out=streams[0].hand_on(),
            err=streams[1].hand_on(),
        )
        elements.write_down(element)
    return 0

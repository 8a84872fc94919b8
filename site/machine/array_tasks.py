"""Run the tasks of a packed array on a machine: each rank draws one task after another from a shared counter.

A rank of a packed job does not execute the command itself. It draws the index of a task, runs the command in a child
process, waits, records the result, and draws the next index. (If a Python callable is mapped over items, a single
Python process calls it with many items: `gridweave.site.launch.Call.per_item`.)

Next to the counter is a file with one line per ended task. A drawn task without a line was interrupted when its rank
was killed.
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

from gridweave.site.array_tasks import ArrayTask, Ranges, count_of, indexes_of
from gridweave.site.machine.folders import read_regular

COUNTER = "elements.next"
ENDED = "elements.json"
"""The file with one line of JSON per ended array task."""

INDEX_VARIABLE = "GRIDWEAVE_ARRAY_INDEX"

NOT_STARTED = 127
"""Exit code of an array task whose program could not be started."""

_NUMBER_BYTES = 8
_MOST_LINE_BYTES = 512
_CHUNK = 1 << 16
_LOOK_S = 1.0
_FIRST_OWN_DESCRIPTOR = 3


class Packed(NamedTuple):
    """The array tasks from which a rank of a packed array draws."""

    folder: str  # writable by the user
    array_tasks: Ranges
    output_limit_bytes: int


class SharedTasks:
    """Gives a rank access to the array tasks that all ranks of a node task share; all of them use the same folder."""

    def __init__(self, folder: Path, array_tasks: Ranges) -> None:
        self._indexes = list(indexes_of(array_tasks))
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._counter = os.open(folder / COUNTER, flags, 0o640)
        self._ended = os.open(folder / ENDED, flags | os.O_APPEND, 0o640)

    def draw(self) -> int | None:
        """Draw the next array task, which no other rank gets; return its index, or None if no task is left."""
        fcntl.lockf(self._counter, fcntl.LOCK_EX)
        try:
            number = _number(os.pread(self._counter, _NUMBER_BYTES, 0))
            if number >= len(self._indexes):
                return None
            os.pwrite(self._counter, (number + 1).to_bytes(_NUMBER_BYTES, "little"), 0)
        finally:
            fcntl.lockf(self._counter, fcntl.LOCK_UN)
        return self._indexes[number]

    def write_down(self, element: ArrayTask) -> None:
        """Append an ended array task to the file; raise OSError if the disk is full."""
        line = msgspec.json.encode(element) + b"\n"
        if os.write(self._ended, line) != len(line):
            raise OSError(28, "No space left on device")


def ended_tasks(folder: Path, array_tasks: Ranges) -> tuple[ArrayTask, ...]:
    """Return a node task's ended array tasks without duplicates, sorted by index.

    Entries with unknown indexes are ignored, because the user can write to the file.
    """
    lines = read_regular(folder / ENDED, limit=_MOST_LINE_BYTES * (count_of(array_tasks) + 1)).splitlines()
    indexes = set(indexes_of(array_tasks)) if lines else set()
    ended: dict[int, ArrayTask] = {}
    decoder = msgspec.json.Decoder(ArrayTask)
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):  # a full disk truncated the line, so the task will run again
            element = decoder.decode(line)
            if element.index in indexes:
                ended.setdefault(element.index, element)
    return tuple(ended[index] for index in sorted(ended))


def interrupted_tasks(folder: Path, array_tasks: Ranges, ended: tuple[ArrayTask, ...]) -> tuple[int, ...]:
    """Return the indexes of the array tasks that were drawn but did not end; call it once the node task has ended."""
    number = min(_number(read_regular(folder / COUNTER, limit=_NUMBER_BYTES)), count_of(array_tasks))
    done = {element.index for element in ended}
    return tuple(index for index in itertools.islice(indexes_of(array_tasks), number) if index not in done)


def _number(data: bytes) -> int:
    return int.from_bytes(data[:_NUMBER_BYTES], "little")


class _Stream:
    """Standard output or error of the running array task, as an unnamed file; copied to the rank's output at the end.

    The copy gives each array task a known position in the rank's output.
    """

    def __init__(self, folder: Path, target: int, limit_bytes: int) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - it lives as long as the process
        self.descriptor = self._file.fileno()
        # With O_APPEND, writes after a truncation leave no gap.
        flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
        self._target, self._limit_bytes, self._written = target, limit_bytes, 0

    def cut(self) -> None:
        """Truncate the file to the size limit, to free disk space."""
        if os.fstat(self.descriptor).st_size > self._limit_bytes:
            os.ftruncate(self.descriptor, self._limit_bytes)

    def hand_on(self) -> tuple[int, int]:
        """Move the contents to the rank's output; return their position in that output and their size."""
        size = min(os.fstat(self.descriptor).st_size, self._limit_bytes)
        place, moved = self._written, 0
        # Processes left behind by the array task may truncate the file in the meantime.
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


def run_array_tasks(
    packed: Packed, rank: int, program: str, command: tuple[str, ...], environment: Mapping[str, str]
) -> int:
    """Run array tasks one after another until none is left; return the rank's exit code.

    The rank's process calls this function instead of executing its program, after redirecting its output.

    Parameters
    ----------
    rank : int
        The rank's number within the job.
    program, command : str, tuple of str
        The file to execute, and its arguments, starting with the program's name.

    Raises
    ------
    OSError
        If the result of an array task cannot be written.
    """
    os.closerange(_FIRST_OWN_DESCRIPTOR, os.sysconf("SC_OPEN_MAX"))
    folder = Path(packed.folder)
    array_tasks = SharedTasks(folder, packed.array_tasks)
    streams = [_Stream(folder, target, packed.output_limit_bytes) for target in (1, 2)]
    _cut_now_and_then(streams)
    own = dict(environment)
    actions = [(os.POSIX_SPAWN_DUP2, stream.descriptor, number) for number, stream in enumerate(streams, start=1)]

    def run() -> tuple[int, float, int]:
        """Run an array task; return its exit code, CPU time [s] and peak memory [KiB]."""
        try:
            pid = os.posix_spawn(program, command, own, file_actions=actions)
        except OSError as error:
            os.write(streams[1].descriptor, f"{program}: {os.strerror(error.errno or 0)}\n".encode())
            return NOT_STARTED, 0.0, 0
        _, status, used = os.wait4(pid, 0)
        return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss

    while (index := array_tasks.draw()) is not None:
        own[INDEX_VARIABLE] = str(index)
        start_ms, began_s = int(time.time() * 1000), time.monotonic()
        code, cpu_s, peak_kib = run()
        element = ArrayTask(
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
        array_tasks.write_down(element)
    return 0

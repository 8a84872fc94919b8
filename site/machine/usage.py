"""What the processes of a piece use: exactly of those that were waited for, by samples of those that run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import NamedTuple

from gridweave.site.launch import UsagePoint, Used
from gridweave.site.machine.processes import ProcessStat, descendants, process_stat

MOST_POINTS = 120
"""So many points of what a piece uses over time are kept."""

_KIB = 1024
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class EndedProcess(NamedTuple):
    """A process that has ended: what wait4(2) said of it, and what it was.

    It read and wrote so many bytes; its session and start are 0 if the kernel did not tell them.
    """

    pid: int
    status: int
    cpu_s: float
    peak_memory_kib: int
    read_bytes: int
    written_bytes: int
    session: int
    start_ticks: int


def reap() -> tuple[list[EndedProcess], bool]:
    """Wait for all children that have ended, without pause; return them, and whether no child is left."""
    found: list[EndedProcess] = []
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return found, True
        if ended is None:
            return found, False
        stat, counters = process_stat(ended.si_pid), process_io(ended.si_pid)
        pid, status, used = os.wait4(ended.si_pid, 0)
        session, start_ticks = (stat.session, stat.start_ticks) if stat else (0, 0)
        cpu_s = used.ru_utime + used.ru_stime
        found.append(EndedProcess(pid, status, cpu_s, used.ru_maxrss, *counters, session, start_ticks))


class _Sum:
    """What one rank, or nobody's processes, used so far."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.read_bytes = 0
        self.written_bytes = 0
        self.peak_memory_bytes = 0
        self.most_cpu_s = 0.0
        self.most_read_bytes = 0
        self.most_written_bytes = 0

    def add_sample(self, live: _Live) -> None:
        """Take in what runs now, on top of what has been waited for."""
        self.most_cpu_s = max(self.most_cpu_s, self.cpu_s + live.cpu_s)
        self.most_read_bytes = max(self.most_read_bytes, self.read_bytes + live.read_bytes)
        self.most_written_bytes = max(self.most_written_bytes, self.written_bytes + live.written_bytes)
        self.peak_memory_bytes = max(self.peak_memory_bytes, live.memory_bytes)

    def usage(self, wall_s: float) -> Used:
        """Return the larger of what was waited for and what was seen."""
        return Used(
            cpu_s=max(self.cpu_s, self.most_cpu_s),
            peak_memory_bytes=self.peak_memory_bytes,
            read_bytes=max(self.read_bytes, self.most_read_bytes),
            written_bytes=max(self.written_bytes, self.most_written_bytes),
            wall_s=wall_s,
        )


class _Live:
    """What the processes of one rank that run now have used, each with the children it has waited for."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.memory_bytes = 0
        self.read_bytes = 0
        self.written_bytes = 0

    def add(self, stat: ProcessStat) -> None:
        """Take in one process."""
        self.cpu_s += stat.cpu_ticks / _TICKS_PER_S
        self.memory_bytes += stat.memory_pages * _PAGE_BYTES
        read_bytes, written_bytes = process_io(stat.pid)
        self.read_bytes += read_bytes
        self.written_bytes += written_bytes


class BoundedCurve:
    """What was seen of a piece over time, in a bounded number of points.

    When they are full, each two become one, and from then on twice as many looks are. Processor time is counted from
    the beginning, and of memory the most is kept, so that nothing is lost by that but detail.

    Examples
    --------
    >>> curve = BoundedCurve(most=4)
    >>> for second in range(1, 8):
    ...     curve.add(1000 * second, float(second), 70 - 10 * second)
    >>> [(point.at_ms, point.cpu_s, point.memory_bytes) for point in curve.points]
    [(2000, 2.0, 60), (4000, 4.0, 40), (6000, 6.0, 20), (7000, 7.0, 0)]
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most, self._every, self._looks = most, 1, 0
        self._kept: list[UsagePoint] = []
        self._newest: UsagePoint | None = None  # which is not among them yet

    def add(self, at_ms: int, cpu_s: float, memory_bytes: int) -> None:
        """Take in a look."""
        point = UsagePoint(at_ms, cpu_s, memory_bytes)
        self._newest = point if self._newest is None else _joined(self._newest, point)
        self._looks += 1
        if self._looks < self._every:
            return
        self._kept.append(self._newest)
        self._newest, self._looks = None, 0
        if len(self._kept) == self._most:
            self._kept = [_joined(*pair) for pair in zip(self._kept[::2], self._kept[1::2], strict=True)]
            self._every *= 2

    @property
    def points(self) -> tuple[UsagePoint, ...]:
        """The points, and the newest look."""
        return (*self._kept, *(() if self._newest is None else (self._newest,)))


def _joined(one: UsagePoint, later: UsagePoint) -> UsagePoint:
    return UsagePoint(later.at_ms, later.cpu_s, max(one.memory_bytes, later.memory_bytes))


class Meter:
    """Counts what the processes below one use, by rank.

    The kernel hands the times of a process to whoever waits for it, with those of all that it has waited for itself. So
    what the shim collects from a rank is exact for every process of the rank that was waited for. A process whose
    parent ignores SIGCHLD is in no such sum; samples catch it while it runs. The larger of the two is reported.

    The largest process of a rank is never smaller than the fork of the shim that it was before its command began.
    """

    def __init__(self, root: int) -> None:
        self.memory_bytes = 0  # what all had together at the last look
        self._root = root  # the process of which they all stem
        self._sums: dict[int | None, _Sum] = {None: _Sum()}
        self._leaders: dict[int, int] = {}
        self._owners: dict[tuple[int, int], int] = {}

    def add_rank(self, rank: int, pid: int) -> None:
        """Count the session of this leader for a rank."""
        self._sums[rank] = _Sum()
        self._leaders[pid] = rank

    def collect(self, ended: EndedProcess) -> None:
        """Take in a process that has been waited for."""
        part = self._sums[self._owner(ended.pid, ended.session, ended.start_ticks)]
        part.cpu_s += ended.cpu_s
        part.peak_memory_bytes = max(part.peak_memory_bytes, ended.peak_memory_kib * _KIB)
        part.read_bytes += ended.read_bytes
        part.written_bytes += ended.written_bytes

    def sample(self) -> float:
        """Look at all processes that run, and return how many seconds that took."""
        began = time.monotonic()
        owners: dict[int, int | None] = {}
        live: dict[int | None, _Live] = {}
        known: dict[tuple[int, int], int] = {}
        for stat in descendants(self._root):
            owner = owners.get(stat.parent)
            owner = owner if owner is not None else self._owner(stat.pid, stat.session, stat.start_ticks)
            owners[stat.pid] = owner
            if owner is not None:
                known[stat.pid, stat.start_ticks] = owner
            live.setdefault(owner, _Live()).add(stat)
        self._owners = known
        for owner, part in live.items():
            self._sums[owner].add_sample(part)
        self.memory_bytes = sum(part.memory_bytes for part in live.values())
        return time.monotonic() - began

    def usage(self, rank: int, wall_s: float) -> Used:
        """Return what a rank used."""
        return self._sums[rank].usage(wall_s)

    @property
    def cpu_s(self) -> float:
        """The processor time of all, up to now."""
        return sum(part.usage(0.0).cpu_s for part in self._sums.values())

    def unowned(self) -> Used:
        """Return what those processes used that no rank can be found for."""
        return self._sums[None].usage(0.0)

    def _owner(self, pid: int, session: int, start_ticks: int) -> int | None:
        """Return the rank of a process: by itself, its session, or where it was seen before its parent ended."""
        rank = self._leaders.get(session, self._leaders.get(pid))
        return rank if rank is not None else self._owners.get((pid, start_ticks))


def process_io(pid: int) -> tuple[int, int]:
    """Return the bytes that a process, and the children that it waited for, read from and wrote to storage.

    It may have ended, as long as nobody has waited for it. Of one that may not be looked at, nothing is known: zeros.
    """
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            counters: Mapping[bytes, bytes] = dict(line.split(b": ") for line in file.read().splitlines())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return (0, 0)
    return (int(counters[b"read_bytes"]), int(counters[b"write_bytes"]))

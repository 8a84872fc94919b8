"""Measure the resource use of a node task: exactly for reaped processes, by sampling for running processes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import NamedTuple

from gridweave.site.launch import UsagePoint, Used
from gridweave.site.machine.processes import ProcessStat, descendants, process_stat

MOST_POINTS = 120
"""Largest number of points in a node task's resource use over time."""

_KIB = 1024
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class EndedProcess(NamedTuple):
    """A reaped process: its identity and its resource use, from wait4(2) and /proc.

    `session` and `start_ticks` are 0 if the kernel did not report them.
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
    """Reap all ended children without blocking; return these processes, and whether no child is left."""
    processes: list[EndedProcess] = []
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return processes, True
        if ended is None:
            return processes, False
        stat, counters = process_stat(ended.si_pid), process_io(ended.si_pid)
        pid, status, used = os.wait4(ended.si_pid, 0)
        session, start_ticks = (stat.session, stat.start_ticks) if stat else (0, 0)
        cpu_s = used.ru_utime + used.ru_stime
        processes.append(EndedProcess(pid, status, cpu_s, used.ru_maxrss, *counters, session, start_ticks))


class _Sum:
    """The resource use so far of a rank, or of all processes whose rank is unknown."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.read_bytes = 0
        self.written_bytes = 0
        self.peak_memory_bytes = 0
        self.most_cpu_s = 0.0
        self.most_read_bytes = 0
        self.most_written_bytes = 0

    def add_sample(self, live: _Live) -> None:
        """Update the peak values with a sample of the running processes, added to the reaped processes' use."""
        self.most_cpu_s = max(self.most_cpu_s, self.cpu_s + live.cpu_s)
        self.most_read_bytes = max(self.most_read_bytes, self.read_bytes + live.read_bytes)
        self.most_written_bytes = max(self.most_written_bytes, self.written_bytes + live.written_bytes)
        self.peak_memory_bytes = max(self.peak_memory_bytes, live.memory_bytes)

    def usage(self, wall_s: float) -> Used:
        """Return the larger of the exact and the sampled value of each resource."""
        return Used(
            cpu_s=max(self.cpu_s, self.most_cpu_s),
            peak_memory_bytes=self.peak_memory_bytes,
            read_bytes=max(self.read_bytes, self.most_read_bytes),
            written_bytes=max(self.written_bytes, self.most_written_bytes),
            wall_s=wall_s,
        )


class _Live:
    """The resource use of a rank's running processes, each including its reaped children."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.memory_bytes = 0
        self.read_bytes = 0
        self.written_bytes = 0

    def add(self, stat: ProcessStat) -> None:
        """Add the resource use of a process."""
        self.cpu_s += stat.cpu_ticks / _TICKS_PER_S
        self.memory_bytes += stat.memory_pages * _PAGE_BYTES
        read_bytes, written_bytes = process_io(stat.pid)
        self.read_bytes += read_bytes
        self.written_bytes += written_bytes


class BoundedCurve:
    """The sampled resource use of a node task over time, with a bounded number of points.

    When the bound is reached, adjacent points are merged in pairs, and from then on each point covers twice as many
    samples. CPU time is cumulative and memory keeps its peak, so merging only loses detail.

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
        self._newest: UsagePoint | None = None  # not in ``_kept`` yet

    def add(self, at_ms: int, cpu_s: float, memory_bytes: int) -> None:
        """Add a sample."""
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
        """All points, in order of time; the last point includes the newest sample."""
        return (*self._kept, *(() if self._newest is None else (self._newest,)))


def _joined(earlier: UsagePoint, later: UsagePoint) -> UsagePoint:
    return UsagePoint(later.at_ms, later.cpu_s, max(earlier.memory_bytes, later.memory_bytes))


class Meter:
    """Measures the resource use of all processes below a root process, by rank.

    The kernel adds a process's resource use to its parent's when the parent reaps it. So the supervisor gets an exact
    sum over all reaped processes of a rank when it reaps the rank. A process whose parent ignores SIGCHLD is missing
    from this sum, but included in the samples taken while it is running. The larger of the two values is reported.

    A rank's peak memory is never smaller than that of the supervisor's fork that becomes the rank.
    """

    def __init__(self, root: int) -> None:
        self.memory_bytes = 0  # memory of all processes at the last sample
        self._root = root  # the root process
        self._sums: dict[int | None, _Sum] = {None: _Sum()}
        self._leaders: dict[int, int] = {}
        self._owners: dict[tuple[int, int], int] = {}

    def add_rank(self, rank: int, pid: int) -> None:
        """Attribute the processes in the session led by this process to a rank."""
        self._sums[rank] = _Sum()
        self._leaders[pid] = rank

    def collect(self, ended: EndedProcess) -> None:
        """Add the resource use of a reaped process."""
        part = self._sums[self._owner(ended.pid, ended.session, ended.start_ticks)]
        part.cpu_s += ended.cpu_s
        part.peak_memory_bytes = max(part.peak_memory_bytes, ended.peak_memory_kib * _KIB)
        part.read_bytes += ended.read_bytes
        part.written_bytes += ended.written_bytes

    def sample(self) -> float:
        """Sample all running processes; return how long that took [s]."""
        began = time.monotonic()
        owners: dict[int, int | None] = {}
        live: dict[int | None, _Live] = {}
        owners_by_process: dict[tuple[int, int], int] = {}
        for stat in descendants(self._root):
            owner = owners.get(stat.parent)
            owner = owner if owner is not None else self._owner(stat.pid, stat.session, stat.start_ticks)
            owners[stat.pid] = owner
            if owner is not None:
                owners_by_process[stat.pid, stat.start_ticks] = owner
            live.setdefault(owner, _Live()).add(stat)
        self._owners = owners_by_process
        for owner, part in live.items():
            self._sums[owner].add_sample(part)
        self.memory_bytes = sum(part.memory_bytes for part in live.values())
        return time.monotonic() - began

    def usage(self, rank: int, wall_s: float) -> Used:
        """Return the resource use of a rank."""
        return self._sums[rank].usage(wall_s)

    @property
    def cpu_s(self) -> float:
        """The total CPU time of all processes so far."""
        return sum(part.usage(0.0).cpu_s for part in self._sums.values())

    def unowned(self) -> Used:
        """Return the resource use of the processes whose rank is unknown."""
        return self._sums[None].usage(0.0)

    def _owner(self, pid: int, session: int, start_ticks: int) -> int | None:
        """Return the rank of a process, from its session, its id, or the last sample; None if unknown."""
        rank = self._leaders.get(session, self._leaders.get(pid))
        return rank if rank is not None else self._owners.get((pid, start_ticks))


def process_io(pid: int) -> tuple[int, int]:
    """Return the numbers of bytes that a process and its reaped children have read from and written to storage.

    This also works for an ended process that has not been reaped. Both numbers are 0 if they cannot be read.
    """
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            counters: Mapping[bytes, bytes] = dict(line.split(b": ") for line in file.read().splitlines())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return (0, 0)
    return (int(counters[b"read_bytes"]), int(counters[b"write_bytes"]))

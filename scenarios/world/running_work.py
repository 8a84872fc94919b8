"""Running work in virtual time: the kernels of `gridweave.site.kernels.work` for drivers in Python."""

from __future__ import annotations

import numpy as np

from gridweave.jit import prepared
from gridweave.site.kernels.work import (
    RATE_ONE,
    Ends,
    begin_work,
    change_rate,
    no_ends,
    no_work,
    stop_work,
)

_FIRST_ROOM = 64


class RunningWork:
    """Jobs that run, each at a rate that may change, in virtual time.

    Examples
    --------
    >>> running = RunningWork()
    >>> running.begin(0, 7, 100)
    >>> running.change_rate(50, 7, RATE_ONE // 2)
    >>> running.next_end_ms(), running.ended(150)
    (150, [7])
    """

    def __init__(self) -> None:
        self._work, self._ends = no_work(_FIRST_ROOM), no_ends(_FIRST_ROOM)
        self._rows: dict[int, int] = {}
        self._unused = list(range(_FIRST_ROOM))
        self._begin = prepared(begin_work, self._ends, self._work, 0, 0, 0, 0, 0)
        self._change = prepared(change_rate, self._ends, self._work, 0, 0, 0)
        self._stop = prepared(stop_work, self._ends, self._work, 0)

    def begin(self, now_ms: int, job_id: int, length_ms: int, rate: int = RATE_ONE) -> None:
        """Let a job begin, which takes so long at rate 1."""
        if not self._unused:
            self._grow()
        self._rows[job_id] = row = self._unused.pop()
        self._begin(self._ends, self._work, row, job_id, length_ms * RATE_ONE, rate, now_ms)

    def change_rate(self, now_ms: int, job_id: int, rate: int) -> None:
        """Let a running job go on at another rate, 0 to pause it."""
        self._change(self._ends, self._work, self._rows[job_id], rate, now_ms)

    def left_ms(self, now_ms: int, job_id: int) -> int:
        """Return how much of a job's work is left, in milliseconds at rate 1, rounded up."""
        row = self._work[self._rows[job_id]]
        left = int(row["left"]) - int(row["rate"]) * (now_ms - int(row["since_ms"]))
        return max(0, -(-left // RATE_ONE))

    def leave(self, job_id: int) -> None:
        """Take a job out that has not come to its end."""
        row = self._rows.pop(job_id)
        self._stop(self._ends, self._work, row)
        self._unused.append(row)

    def next_end_ms(self) -> int | None:
        """Return the instant at which the next job ends; None if none does."""
        return int(self._ends.heap[0]["end_ms"]) if self._ends.size[0] else None

    def ended(self, now_ms: int) -> list[int]:
        """Take out the jobs that end at this instant; return their ids, ascending."""
        ended = []
        while self.next_end_ms() == now_ms:
            ended.append(int(self._ends.heap[0]["job_id"]))
            self.leave(ended[-1])
        return ended

    def _grow(self) -> None:
        """Make room for twice as many jobs."""
        room = len(self._work)
        self._unused = list(range(room, 2 * room))
        self._work = np.append(self._work, no_work(room))
        self._ends = Ends(np.append(self._ends.heap, no_ends(room).heap), self._ends.size)

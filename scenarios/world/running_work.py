"""The running jobs of a simulation: the work that each has left, the rate at which it does it, and when it ends."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from gridweave.site.kernels.rates import RATE_ONE, work_done_ms, work_left, work_of


@dataclass(slots=True)
class _Work:
    left: int
    rate: int
    since_ms: int
    end_ms: int


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
        self._work: dict[int, _Work] = {}
        # An end that is not that of the job any more counts no longer.
        self._ends: list[tuple[int, int]] = []

    def begin(self, now_ms: int, job_id: int, length_ms: int) -> None:
        """Let a job begin, which takes so long at rate 1."""
        self._work[job_id] = _Work(int(work_of(length_ms)), RATE_ONE, now_ms, now_ms + length_ms)
        heapq.heappush(self._ends, (now_ms + length_ms, job_id))

    def change_rate(self, now_ms: int, job_id: int, rate: int) -> None:
        """Let a running job go on at another rate."""
        work = self._work[job_id]
        work.left = int(work_left(work.left, work.rate, work.since_ms, now_ms))
        work.rate, work.since_ms = rate, now_ms
        work.end_ms = int(work_done_ms(work.left, rate, now_ms))
        heapq.heappush(self._ends, (work.end_ms, job_id))

    def leave(self, job_id: int) -> None:
        """Take a job out that has not come to its end."""
        del self._work[job_id]

    def next_end_ms(self) -> int | None:
        """Return the instant at which the next job ends; None if none runs."""
        while self._ends:
            end_ms, job_id = self._ends[0]
            if job_id in self._work and self._work[job_id].end_ms == end_ms:
                return end_ms
            heapq.heappop(self._ends)
        return None

    def ended(self, now_ms: int) -> list[int]:
        """Take out the jobs that end at this instant; return their ids, ascending."""
        ended = []
        while self.next_end_ms() == now_ms:
            _, job_id = heapq.heappop(self._ends)
            del self._work[job_id]
            ended.append(job_id)
        return ended

"""Fragments that something outside of their site slows: when their limits are, which count work and not time."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gridweave.site.kernels.work import late_end_ms, work_left, work_of
from gridweave.site.messages import RunsLate


class _Pace(msgspec.Struct):
    """The work of a fragment by its estimate, as of an instant, and where its limit stands."""

    attempt: int
    left: int
    rate: int
    since_ms: int
    limit_ms: int
    late: bool = False


class Paces:
    """The fragments of a site that have been told another rate than that at which they started.

    A fragment whose limit has come, and whose work is not done, has a later limit: the instant at which its work will
    be done at the rate that it has then (docs/grid.md, "Late ends"). From then on the grid is told of its rate.

    Attributes
    ----------
    by_job : dict
        Empty if there is none.
    """

    def __init__(self) -> None:
        self.by_job: dict[int, _Pace] = {}

    def measured(
        self, now_ms: int, job_id: int, attempt: int, rate: int, limit_ms: int, left: int | None = None
    ) -> RunsLate | None:
        """Take note of a rate; return what the grid is to be told, if the fragment is late already.

        Parameters
        ----------
        limit_ms : int
            Its limit, if its rate has been 1 so far.
        left : int, optional
            Of its work, if that is not what the rates so far have left.
        """
        pace = self.by_job.get(job_id)
        if pace is None:
            known = int(work_of(limit_ms - now_ms)) if left is None else left
            self.by_job[job_id] = _Pace(attempt, known, rate, now_ms, limit_ms)
            return None
        pace.left = int(work_left(pace.left, pace.rate, pace.since_ms, now_ms)) if left is None else left
        pace.rate, pace.since_ms = rate, now_ms
        return self._told(job_id, pace) if pace.late else None

    def overdue(self, now_ms: int) -> Iterator[tuple[int, int, RunsLate | None]]:
        """Yield the fragments whose limit has come though their work is not done.

        Yields
        ------
        int
            The job.
        int
            The new limit.
        RunsLate or None
            What the grid is to be told, the first time.
        """
        for job_id, pace in sorted(self.by_job.items()):
            if pace.limit_ms <= now_ms:
                left = int(work_left(pace.left, pace.rate, pace.since_ms, now_ms))
                if left > 0:
                    pace.limit_ms = int(late_end_ms(left, pace.rate, now_ms))
                    told, pace.late = not pace.late, True
                    yield job_id, pace.limit_ms, self._told(job_id, pace) if told else None

    def forget(self, job_id: int) -> None:
        """Take out a fragment that has left its nodes."""
        self.by_job.pop(job_id, None)

    def _told(self, job_id: int, pace: _Pace) -> RunsLate:
        return RunsLate(job_id, pace.attempt, pace.left, pace.rate, pace.since_ms)

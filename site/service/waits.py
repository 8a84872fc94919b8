"""Why jobs waited, over time: whenever it is worked out for somebody, a reason that is another one is kept."""

from __future__ import annotations

from collections import deque

from gridweave.site.explain import Forecast
from gridweave.site.journal.records import Note

MOST_JOBS = 2_000
"""Of so many jobs reasons are kept: of those that waited first they go first."""

MOST_REASONS = 20
"""So many reasons of a job are kept, the last ones."""


class WaitReasons:
    """The reasons that forecasts gave, in memory: they are no state of the grid, and go when its process ends.

    Examples
    --------
    >>> waits = WaitReasons()
    >>> for now_ms, cause in (1, "it is first"), (2, "it is first"), (3, "others are kept nodes"):
    ...     waits.heard(Forecast(job_id=7, now_ms=now_ms, cause=cause, reason=f"{cause}, at {now_ms}"))
    >>> [(note.at_ms, note.kind, note.detail) for note in waits.of(7)]
    [(1, 'waits', 'it is first, at 1'), (3, 'waits', 'others are kept nodes, at 3')]
    """

    def __init__(self) -> None:
        # The last cause of each job, and its notes.
        self._by_job: dict[int, tuple[str, deque[Note]]] = {}

    def heard(self, forecast: Forecast, where: str = "") -> None:
        """Take in why a job waits, told after `where`; what differs in its numbers alone is the same reason."""
        job_id, cause = forecast.job_id, forecast.cause
        if job_id is None or not cause:
            return
        last, notes = self._by_job.get(job_id, ("", deque[Note](maxlen=MOST_REASONS)))
        if cause == last:
            return
        notes.append(Note(job_id, forecast.now_ms, "waits", where + forecast.reason))
        self._by_job[job_id] = cause, notes
        if len(self._by_job) > MOST_JOBS:
            del self._by_job[next(iter(self._by_job))]

    def of(self, job_id: int) -> list[Note]:
        """Return the reasons of a job, the oldest first."""
        return list(self._by_job.get(job_id, ("", ()))[1])

"""What the grid remembers of a job that sites have evicted: it leaves them, and waits again as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gridweave.site.explain import Forecast, Forecaster, evicted_text, with_evictions
from gridweave.site.job import Job


class PastEvictions(msgspec.Struct, frozen=True, gc=False):
    """How often a job was evicted at all its sites together; and of the last time, which attempt, when, where and why.

    The reason is the site's: for which job of which level.
    """

    times: int
    attempt: int
    last_ms: int
    site: int
    reason: str

    def text(self, now_ms: int, names: Sequence[str]) -> str:
        """Return what a user wants to know of it.

        Examples
        --------
        >>> PastEvictions(2, 5, 50_000, 0, "job 7 of level 'high' takes nodes of level 'low'").text(60_000, ["north"])
        "it was evicted 2 times, last 10s ago, at north: job 7 of level 'high' takes nodes of level 'low'"
        """
        return evicted_text(self.times, self.last_ms, now_ms, self.reason, names[self.site])


def once_more_evicted(job: Job) -> Job:
    """Return a job that has been evicted once more than it had."""
    return msgspec.structs.replace(job, evictions=job.evictions + 1)


def forecast_of_evicted(forecaster: Forecaster, evicted: str) -> Forecast:
    """Return what is known of a job that waits again, with its evictions."""
    found = forecaster()
    return msgspec.structs.replace(found, reason=with_evictions(found.reason, evicted), evicted=evicted)

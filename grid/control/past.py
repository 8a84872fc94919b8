"""Record a job's evictions and refusals. Pure.

An evicted job leaves all of its sites, and then waits again for all of its nodes.

A site may accept a job and refuse it later, for example because its batch system cancels the job. The site is asked
again after a pause that grows with each refusal, until the site has refused the job `MOST_REFUSALS` times. If no other
site can run the job, the grid then refuses the job instead of retrying forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gridweave.site.explain import Forecast, Forecaster, evicted_text, with_evictions
from gridweave.site.job import Job
from gridweave.site.times import growing_pause_ms, when_text


class PastEvictions(msgspec.Struct, frozen=True, gc=False):
    """The number of times a job has been evicted on any site, with details of the last eviction.

    `reason` is the site's explanation, which names the job that took the nodes and that job's level.
    """

    times: int
    attempt: int
    last_ms: int
    site: int
    reason: str

    def text(self, now_ms: int, names: Sequence[str]) -> str:
        """Return the evictions as text for the user.

        Examples
        --------
        >>> PastEvictions(2, 5, 50_000, 0, "job 7 of level 'high' takes nodes of level 'low'").text(60_000, ["north"])
        "it was evicted 2 times, last 10 s ago, at north: job 7 of level 'high' takes nodes of level 'low'"
        """
        return evicted_text(self.times, self.last_ms, now_ms, self.reason, names[self.site])


def once_more_evicted(job: Job) -> Job:
    """Return a copy of a job with one more eviction."""
    return msgspec.structs.replace(job, evictions=job.evictions + 1)


def forecast_of_evicted(forecaster: Forecaster, evicted: str) -> Forecast:
    """Return the forecast for a job that is waiting again, extended by the text about its evictions."""
    forecast = forecaster()
    return msgspec.structs.replace(forecast, reason=with_evictions(forecast.reason, evicted), evicted=evicted)


MOST_REFUSALS = 6
"""After this many refusals of a job, the site is not asked about the job again (a guess).

With a first pause of 10 s, this takes about five minutes, so an administrator has time to repair a simple fault.
"""


class SiteRefusals(msgspec.Struct, frozen=True, gc=False):
    """How often a site has refused a job that it had first accepted, the last reason, and when to ask the site again.

    Examples
    --------
    >>> first = another(None, 0, "it was cancelled there", 10_000)
    >>> first.text(0)
    'it was cancelled there; the site is asked again in 10 s'
    >>> another(first, 10_000, "it was cancelled there", 10_000).text(15_000)
    'it was cancelled there; that was refusal 2 of 6, and the site is asked again in 15 s'
    """

    times: int
    reason: str
    again_ms: int | None  # None: never

    def is_left_alone(self, now_ms: int) -> bool:
        """Whether the site must not be asked about the job now."""
        return self.again_ms is None or now_ms < self.again_ms

    def text(self, now_ms: int) -> str:
        """Return the refusals as text for the user."""
        if self.again_ms is None:
            return f"{self.reason}; that was refusal {self.times}, and the site is not asked again"
        again = f"the site is asked again {when_text(self.again_ms, now_ms)}"
        if self.times == 1:
            return f"{self.reason}; {again}"
        return f"{self.reason}; that was refusal {self.times} of {MOST_REFUSALS}, and {again}"


def another(before: SiteRefusals | None, now_ms: int, reason: str, pause_ms: int) -> SiteRefusals:
    """Return the updated record of a site's refusals after the site has refused the job again.

    Parameters
    ----------
    before : SiteRefusals, optional
        The previous record; None if the site has not refused the job since the job last ran.
    pause_ms : int
        The pause after the first refusal.
    """
    times = 1 if before is None else before.times + 1
    again_ms = now_ms + growing_pause_ms(pause_ms, times - 1)
    return SiteRefusals(times, reason, None if times >= MOST_REFUSALS else again_ms)


class LeftAlone(NamedTuple):
    """The period in which a site is not asked about any job, and why it refused a job; empty if it did not answer.

    Examples
    --------
    >>> LeftAlone(5_000, 65_000, "others have its nodes").text(15_000)
    'refused a job 10 s ago: others have its nodes; is asked again in 50 s at the latest'
    >>> LeftAlone(5_000, 65_000).text(15_000)
    'did not answer 10 s ago; is asked again in 50 s at the latest'
    """

    since_ms: int
    until_ms: int
    refusal: str = ""

    def text(self, now_ms: int) -> str:
        """Return what the site did, and when it is asked again, as text."""
        since, again = when_text(self.since_ms, now_ms), when_text(max(self.until_ms, now_ms), now_ms)
        did = f"refused a job {since}: {self.refusal}" if self.refusal else f"did not answer {since}"
        return f"{did}; is asked again {again} at the latest"

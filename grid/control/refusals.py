"""When a site is asked again that took a job and then would not have it, as its batch system cancels it. Pure.

The pause doubles with each refusal, and after some the site is asked no more. A job that no other site can have is then
refused for good, so that nothing is asked for without end.
"""

from __future__ import annotations

import msgspec

from gridweave.site.times import growing_pause_ms, when_text

MOST_REFUSALS = 6
"""So often a site is asked for a job that it refuses each time: over some five minutes, where the first pause is 10 s
(a guess: what an administrator mends at once is mended by then)."""


class SiteRefusals(msgspec.Struct, frozen=True, gc=False):
    """How often a site has refused a job that it had taken, why the last time, and when it may be asked again.

    Examples
    --------
    >>> first = another(None, 0, "it was cancelled there", 10_000)
    >>> first.text(0)
    'it was cancelled there; the site is asked again in 10s'
    >>> another(first, 10_000, "it was cancelled there", 10_000).text(15_000)
    'it was cancelled there; that was refusal 2 of 6, and the site is asked again in 15s'
    """

    times: int
    reason: str
    again_ms: int | None  # None: never

    def is_left_alone(self, now_ms: int) -> bool:
        """Return whether the site is not to be asked now."""
        return self.again_ms is None or now_ms < self.again_ms

    def text(self, now_ms: int) -> str:
        """Say how often, why, and when next."""
        if self.again_ms is None:
            return f"{self.reason}; that was refusal {self.times}, and the site is asked no more"
        again = f"the site is asked again {when_text(self.again_ms, now_ms)}"
        if self.times == 1:
            return f"{self.reason}; {again}"
        return f"{self.reason}; that was refusal {self.times} of {MOST_REFUSALS}, and {again}"


def another(before: SiteRefusals | None, now_ms: int, reason: str, pause_ms: int) -> SiteRefusals:
    """Return what is known of a site that has refused a job once more.

    Parameters
    ----------
    before : SiteRefusals, optional
        None: it had not refused the job since that last ran.
    pause_ms : int
        The first pause.
    """
    times = 1 if before is None else before.times + 1
    again_ms = now_ms + growing_pause_ms(pause_ms, times - 1)
    return SiteRefusals(times, reason, None if times >= MOST_REFUSALS else again_ms)

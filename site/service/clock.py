"""The clock of a live grid: Unix time in ms, optionally sped up so that hours of a workload run in seconds."""

from __future__ import annotations

import math
import time

import msgspec

from gridweave.errors import OptionError

HISTORY_DAYS = 90
"""Default number of days for which a journal keeps an ended job's record, history, usage and submission key."""


class Clock(msgspec.Struct, frozen=True):
    """The clock that the cores use.

    Examples
    --------
    >>> Clock(speed=1000.0).real_ms(60_000)
    60
    """

    epoch_ms: int = 0  # Unix time at which the clock shows 0
    speed: float = 1.0  # ms of this clock per ms of real time, above 0

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise OptionError("speed", f"is {self.speed}; expected above 0, 1 for real time")

    def now_ms(self) -> int:
        """Return the current time on this clock [ms]."""
        return self.at(time.time() * 1000)

    def at(self, unix_ms: float) -> int:
        """Convert Unix time [ms] to time on this clock [ms]; times before the epoch become 0."""
        return max(0, int((unix_ms - self.epoch_ms) * self.speed))

    def shown_ms(self, real_ms: float) -> int:
        """Convert a real duration to a duration on this clock, in ms, at least 1."""
        return max(1, round(real_ms * self.speed))

    def unix_ms(self, shown_ms: int) -> int:
        """Convert a time on this clock to Unix time [ms], rounded up."""
        return self.epoch_ms + self.real_ms(shown_ms)

    def real_ms(self, span_ms: float) -> int:
        """Convert a duration on this clock to real milliseconds, rounded up."""
        return math.ceil(span_ms / self.speed)

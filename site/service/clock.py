"""The clock of a live grid: Unix time in ms, or faster than that, so that hours can be played in seconds."""

from __future__ import annotations

import math
import time

import msgspec

from gridweave.errors import OptionError

HISTORY_DAYS = 90
"""So long a journal keeps what it knows of jobs that are over: records, stories, usage, keys of submissions."""


class Clock(msgspec.Struct, frozen=True):
    """What time it is for the cores.

    Examples
    --------
    >>> Clock(speed=1000.0).real_ms(60_000)
    60
    """

    epoch_ms: int = 0  # Unix time at which the clock shows 0
    speed: float = 1.0  # how many ms pass on it in one ms, above 0

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise OptionError("speed", f"is {self.speed}; a number above 0, 1 for real time")

    def now_ms(self) -> int:
        """Return what the clock shows."""
        return self.at(time.time() * 1000)

    def at(self, unix_ms: float) -> int:
        """Return what the clock shows at an instant of Unix time."""
        return max(0, int((unix_ms - self.epoch_ms) * self.speed))

    def shown_ms(self, real_ms: float) -> int:
        """Return how long a real span takes on this clock, in ms, at least 1."""
        return max(1, round(real_ms * self.speed))

    def unix_ms(self, shown_ms: int) -> int:
        """Return the Unix time at which the clock shows this, rounded up."""
        return self.epoch_ms + self.real_ms(shown_ms)

    def real_ms(self, span_ms: float) -> int:
        """Return how long a span of this clock really takes, in ms, rounded up."""
        return math.ceil(span_ms / self.speed)

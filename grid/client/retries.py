"""How long to wait before the next try, and when to give up."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np

Sleep = Callable[[float], Awaitable[object]]


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long a client tries.

    Attributes
    ----------
    total_s : float
        After which time a request is given up, with all its tries and the pauses between them.
    connect_s : float
        ... if the gateway was never reached.
    try_s : float
        After which time one try is given up.
    silence_s : float
        After which time a stream that says nothing is taken for cut off. The gateway says something every 15 s.
    first_pause_s, longest_pause_s : float
        Between tries; each is twice as long as the one before, and then between half of that and the whole by chance,
        so that clients that were cut off together do not come back together.
    """

    total_s: float = 60.0
    connect_s: float = 60.0
    try_s: float = 20.0
    silence_s: float = 45.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0


class Pauses:
    """The pauses between tries.

    Parameters
    ----------
    patience : Patience
    rng : numpy.random.Generator, optional
        From which chance is drawn; a fresh one if left out.
    sleep : callable, optional
        What waits.
    """

    def __init__(
        self, patience: Patience, rng: np.random.Generator | None = None, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.patience, self.sleep, self._rng = patience, sleep, rng

    def length_s(self, tries: int) -> float:
        """Return how long to wait after so many tries (from 1)."""
        if self._rng is None:
            import numpy as np  # only who has to wait needs it

            self._rng = np.random.default_rng()
        longest = min(self.patience.longest_pause_s, self.patience.first_pause_s * 2.0 ** min(tries - 1, 60))
        return longest * float(self._rng.uniform(0.5, 1.0))


def seconds_to_wait(text: str | None, now: datetime.datetime) -> float | None:
    """Return what a header ``Retry-After`` says, in seconds, or None if it says nothing that can be read.

    Examples
    --------
    >>> now = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    >>> seconds_to_wait("3", now), seconds_to_wait("Thu, 01 Jan 2026 00:01:00 GMT", now), seconds_to_wait("soon", now)
    (3.0, 60.0, None)
    """
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdecimal() and len(text) <= 9:
        return float(text)
    try:
        when = parsedate_to_datetime(text)
        return max(0.0, (when - now).total_seconds())
    except (TypeError, ValueError):
        return None

"""What happens to jobs, for those who watch: the newest events in memory, so that watching costs no SQL."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from itertools import islice

from gridweave.site.live.desk_messages import JobEvent

KEEP_EVENTS = 20_000
"""So many events are known without the journal."""


class Events:
    """The newest events, in ascending order and without a gap.

    Parameters
    ----------
    last : int
        Number of the last event until now.

    Examples
    --------
    >>> events = Events(7)
    >>> events.add([JobEvent(number=8, at_ms=0, job_id=1, kind="submitted")])
    >>> [event.number for event in events.after(7, 10)], events.after(3, 10)
    ([8], None)
    """

    def __init__(self, last: int) -> None:
        self.last = last
        self._newest: deque[JobEvent] = deque(maxlen=KEEP_EVENTS)
        self._news = asyncio.Event()

    def add(self, events: Iterable[JobEvent]) -> None:
        """Take in what has happened, and wake those who wait for it."""
        for event in events:
            assert event.number == self.last + 1, "an event is missing"
            self._newest.append(event)
            self.last = event.number
        self._news.set()
        self._news = asyncio.Event()

    def after(self, number: int, limit: int) -> list[JobEvent] | None:
        """Return the events after one, so many at most; None if not all of them are known any more."""
        first = self.last - len(self._newest) + 1
        if number + 1 < first:
            return None
        return list(islice(self._newest, max(0, number + 1 - first), max(0, number + 1 - first) + limit))

    async def wait(self, number: int, timeout_s: float) -> None:
        """Wait until there is an event after one, or a time has passed."""
        if self.last <= number:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()

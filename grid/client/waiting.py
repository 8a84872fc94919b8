"""Waiting for many jobs with one stream of events, and by asking where that is not to be had."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from gridweave.errors import GridweaveError
from gridweave.grid.api import JobEvent
from gridweave.site.job import JobRecord

ENDS = ("ended", "refused")
"""The states, and the kinds of events, after which nothing happens to a job any more."""

OWN_IDS = 10**12
"""The jobs of sites' own users have numbers above; no stream tells of them."""

Connected = Callable[[bool], None]


class EndWatch:
    """Tells when jobs have ended.

    Parameters
    ----------
    follow : callable
        Returns the stream of events, and tells its argument whenever it was opened or cut off.
    record : callable
        Returns what is known of a job.
    first_poll_s, longest_poll_s : float
        Between two questions while there is no stream; each is half as long again as the one before.
    with_stream_s : float
        Between two questions while there is one, and it tells of the job.
    """

    def __init__(
        self,
        follow: Callable[[Connected], AsyncIterator[JobEvent]],
        record: Callable[[int], Awaitable[JobRecord]],
        *,
        first_poll_s: float = 0.2,
        longest_poll_s: float = 5.0,
        with_stream_s: float = 30.0,
    ) -> None:
        self._follow, self._record = follow, record
        self._first_poll_s, self._longest_poll_s, self._with_stream_s = first_poll_s, longest_poll_s, with_stream_s
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._is_open = False
        self._task: asyncio.Task[None] | None = None

    async def ended(self, job_id: int) -> JobRecord:
        """Return the record of a job once it has ended."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._listen())
        news = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(news)
        poll_s = self._first_poll_s
        try:
            while True:
                news.clear()
                record = await self._record(job_id)
                if record.state in ENDS:
                    return record
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._with_stream_s if self._is_told(job_id) else poll_s):
                        await news.wait()
                poll_s = min(1.5 * poll_s, self._longest_poll_s)
        finally:
            events = self._waiting[job_id]
            events.discard(news)
            if not events:
                del self._waiting[job_id]

    async def close(self) -> None:
        """Wait for nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _is_told(self, job_id: int) -> bool:
        return self._is_open and job_id <= OWN_IDS

    async def _listen(self) -> None:
        # Without the stream everything goes on, a little slower; what is wrong is told by the questions.
        with contextlib.suppress(GridweaveError):
            async for event in self._follow(self._connected):
                if event.kind in ENDS:
                    for news in self._waiting.get(event.job_id, ()):
                        news.set()
        self._connected(False)

    def _connected(self, is_open: bool) -> None:
        """Have all ask once: what ended before the stream was there is not told by it."""
        self._is_open = is_open
        for events in self._waiting.values():
            for news in events:
                news.set()

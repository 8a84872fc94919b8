"""Job events: the gateway polls the grid once for all watchers and distributes the events to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import Literal, TypeVar

import msgspec

from gridweave.errors import UnavailableError
from gridweave.grid.api import JobEvent, JobEvents, StreamEnd
from gridweave.grid.backend import Backend
from gridweave.grid.gateway.problems import refused_field

logger = logging.getLogger("gridweave.gateway")

POLL_S = 20.0
"""How long one poll of the grid waits for an event, in seconds."""

REST_S, UNWATCHED_REST_S, FEW = 0.05, 0.2, 100
"""Pause in seconds after a poll with at most `FEW` events, with and without watchers, so that the next poll returns
more events. After a poll with more events there is no pause, so that the hub does not fall further behind."""

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_RECENT = 10_000

T = TypeVar("T")


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the events that a watcher receives."""

    user: str | None = None  # only jobs of this user
    jobs: frozenset[int] = frozenset()  # only these jobs; empty: all
    kinds: frozenset[str] = frozenset()  # only these kinds; empty: all

    def takes(self, seen: JobEvent) -> bool:
        """Whether the filter accepts an event."""
        return (
            (self.user is None or seen.user == self.user)
            and (not self.jobs or seen.job_id in self.jobs)
            and (not self.kinds or seen.kind in self.kinds)
        )


class EventBatch:
    """Events for all watchers with the same filter, encoded once."""

    def __init__(self, events: list[JobEvent]) -> None:
        self.events = events
        self._sse: bytes | None = None
        self._frames: dict[str, list[bytes]] = {}

    def sse(self) -> bytes:
        """Encode the events as server-sent events."""
        if self._sse is None:
            encode = msgspec.json.encode
            self._sse = b"".join(b"id: %d\ndata: %b\n\n" % (seen.number, encode(seen)) for seen in self.events)
        return self._sse

    def frames(self, form: Literal["json", "msgpack"]) -> list[bytes]:
        """Encode each event as a WebSocket frame."""
        if form not in self._frames:
            encode = msgspec.json.encode if form == "json" else msgspec.msgpack.encode
            self._frames[form] = [encode(seen) for seen in self.events]
        return self._frames[form]


class Watcher:
    """One client's queue: the hub puts batches in, and the client's connection takes them out."""

    def __init__(self, event_filter: Filter, token_id: str, after: int) -> None:
        self.event_filter = event_filter
        self.token_id = token_id
        # Number of the last event that was put in, and of the last one taken out.
        self.delivered = self.taken = after
        self.waiting = 0
        self.ended_by: Literal["slow", "revoked", "stopping"] | None = None
        self._batches: deque[tuple[EventBatch, int]] = deque()
        self._news = asyncio.Event()

    def put(self, batch: EventBatch, last: int, most: int) -> None:
        """Add a batch with all events up to `last`; end the stream if more than `most` events are waiting."""
        self.delivered = max(last, self.delivered)
        self.waiting += len(batch.events)
        if self.waiting > most:
            self.stop("slow")
            return
        self._batches.append((batch, last))
        self._news.set()

    def pass_over(self, last: int) -> None:
        """Skip the events up to `last`, because none of them is for this watcher; do nothing while batches wait."""
        if not self._batches:
            self.delivered = self.taken = max(last, self.delivered)

    def stop(self, reason: Literal["slow", "revoked", "stopping"]) -> None:
        """End the stream and drop the waiting batches."""
        self.ended_by = self.ended_by or reason
        self._batches.clear()
        self._news.set()

    async def next(self, timeout_s: float) -> tuple[EventBatch, int] | None:
        """Return the next batch and the number of its last event; None after the timeout or the stream's end."""
        if not self._batches and self.ended_by is None:
            self._news.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                return None
        if not self._batches:
            return None
        batch, last = self._batches.popleft()
        self.waiting -= len(batch.events)
        return batch, last


class EventHub:
    """Polls the grid and distributes its events; a watcher with more than `backlog` waiting events is dropped.

    `usable` returns the ids of the valid tokens; it is called for each batch of events and every `check_s` seconds.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        usable: Callable[[], Awaitable[frozenset[str]]] | None,
        backlog: int,
        check_s: float,
    ) -> None:
        self._backend = backend
        self._usable = usable
        self._backlog = backlog
        self._check_s = check_s
        # By filter, so that an event costs nothing for the watchers that do not want it.
        self._watchers: dict[Filter, set[Watcher]] = {}
        self._recent: deque[JobEvent] = deque()
        self._recent_after = 0
        self._begun = asyncio.Event()
        self._watched = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.is_stopping, self.last = False, 0
        # Called with all events before the watchers get them.
        self.listeners: list[Callable[[list[JobEvent]], None]] = []
        # Called once the number of the first polled event is known, before any listener.
        self.on_begin: list[Callable[[], Awaitable[None]]] = []
        self.on_unavailable: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start polling."""
        self._tasks = [asyncio.create_task(self._run())]
        if self._usable is not None:
            self._tasks.append(asyncio.create_task(self._check_tokens()))

    async def stop(self) -> None:
        """End all streams and stop polling."""
        self.is_stopping = True
        for watcher in self._all():
            watcher.stop("stopping")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def watchers(self) -> int:
        """Number of watchers."""
        return sum(len(some) for some in self._watchers.values())

    def _all(self) -> list[Watcher]:
        return [watcher for some in self._watchers.values() for watcher in some]

    def revoked(self, token_id: str) -> None:
        """End the streams of a revoked token."""
        for watcher in self._all():
            if watcher.token_id == token_id:
                watcher.stop("revoked")

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self.last = self._recent_after = (await self._ask(-1, 0.0)).last
        for begin in self.on_begin:
            await self._retry(begin)
        self._begun.set()
        while True:
            batch = await self._ask(self.last, POLL_S)
            try:
                await self._deliver(batch)
            except Exception:
                # An error in one batch must not stop the following ones.
                logger.exception("events up to %d could not be delivered", batch.last)
                self.last = max(self.last, batch.last)
            if len(batch.events) <= FEW:
                await self._pause()

    async def _pause(self) -> None:
        """Let events accumulate before the next poll: briefly if there are watchers, else until one arrives."""
        if self._watchers:
            await asyncio.sleep(REST_S)
            return
        self._watched.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UNWATCHED_REST_S):
                await self._watched.wait()

    async def _ask(self, after: int, timeout_s: float) -> JobEvents:
        """Return the events with numbers above `after`, retrying until the grid answers."""
        return await self._retry(lambda: self._backend.events(after, timeout_s))

    async def _retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until the grid answers."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await work()
            except UnavailableError as error:
                if pause_s == _FIRST_PAUSE_S:
                    logger.warning("retrying until the grid answers: %s", error)
                self.on_unavailable()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _deliver(self, batch: JobEvents) -> None:
        before, events = self.last, [seen for seen in batch.events if seen.number > self.last]
        if batch.last <= before:
            return
        usable = await self._await_usable() if events and self._watchers else None
        # No await from here on, so a new watcher has all events up to `before`, or all of this batch.
        self.last = batch.last
        self._keep(events)
        for listener in self.listeners:
            listener(events)
        of_users: dict[str, list[JobEvent]] = {}
        for seen in events:
            of_users.setdefault(seen.user, []).append(seen)
        for event_filter, watchers in self._watchers.items():
            some = events if event_filter.user is None else of_users.get(event_filter.user, [])
            matches = [seen for seen in some if event_filter.takes(seen)]
            if matches:
                self._notify(watchers, matches, batch.last, usable)

    def _notify(
        self, watchers: Iterable[Watcher], events: list[JobEvent], last: int, usable: frozenset[str] | None
    ) -> None:
        """Send each watcher its events, except those that were already replayed to it."""
        batches: dict[int, EventBatch] = {}
        for watcher in watchers:
            if usable is not None and watcher.token_id not in usable:
                watcher.stop("revoked")
                continue
            heard = max(watcher.delivered, events[0].number - 1)
            if heard not in batches:
                batches[heard] = EventBatch([seen for seen in events if seen.number > heard])
            if batches[heard].events:
                watcher.put(batches[heard], last, self._backlog)

    def _keep(self, events: list[JobEvent]) -> None:
        self._recent.extend(events)
        while len(self._recent) > _RECENT:
            self._recent_after = self._recent.popleft().number

    # -- tokens -------------------------------------------------------------------------------------------------------

    async def _await_usable(self) -> frozenset[str] | None:
        """Return the ids of the valid tokens, retrying until they can be read; None if the gateway has no tokens."""
        return None if self._usable is None else await self._retry(self._usable)

    async def _check_tokens(self) -> None:
        """End the streams of revoked and expired tokens, even while there are no events."""
        while True:
            await asyncio.sleep(self._check_s)
            if not self._watchers:
                continue
            usable = await self._await_usable()
            for watcher in self._all():
                if usable is not None and watcher.token_id not in usable:
                    watcher.stop("revoked")

    # -- watching -----------------------------------------------------------------------------------------------------

    async def watch(
        self, event_filter: Filter, token_id: str, after: int | None, idle_s: float
    ) -> AsyncGenerator[EventBatch | StreamEnd | int, None]:
        """Yield the events with numbers above `after` (None: only new events), in order and without duplicates.

        A plain number is the number of the last event examined; it is yielded after a replay and after every `idle_s`
        seconds without an event. The last item is a `StreamEnd`.
        """
        watcher = Watcher(event_filter, token_id, -1 if after is None else after)
        try:
            async for batch, last in self._catch_up(watcher):
                yield batch
                watcher.taken = max(watcher.taken, last)
            # So a client whose connection breaks before the first event knows where to resume.
            yield watcher.taken
            while True:
                item = await watcher.next(idle_s)
                if watcher.ended_by is not None:
                    # The batch that was being sent when the stream ended counts as taken.
                    yield StreamEnd(reason=watcher.ended_by, after=watcher.taken)
                    return
                if item is None:
                    watcher.pass_over(self.last)
                    yield watcher.taken
                    continue
                yield item[0]
                watcher.taken = item[1]
        finally:
            self._forget(watcher)

    def _forget(self, watcher: Watcher) -> None:
        some = self._watchers.get(watcher.event_filter, set())
        some.discard(watcher)
        if not some:
            self._watchers.pop(watcher.event_filter, None)

    async def _catch_up(self, watcher: Watcher) -> AsyncIterator[tuple[EventBatch, int]]:
        """Yield a watcher's missed events with the last event's number; then subscribe the watcher to live events."""
        await self._begun.wait()
        if watcher.delivered < 0:
            # Events that the pausing hub has not polled yet must not count as new events.
            now = await self._ask(-1, 0.0)
            watcher.delivered = watcher.taken = max(now.last, self.last)
        while not self._recent_after <= watcher.delivered <= self.last:
            page = await self._ask(watcher.delivered, 0.0)
            usable = await self._await_usable()
            if usable is not None and watcher.token_id not in usable:
                watcher.stop("revoked")
            if self.is_stopping:
                watcher.stop("stopping")
            if watcher.ended_by is not None or page.last <= watcher.delivered:
                break
            watcher.delivered = page.last
            yield EventBatch([seen for seen in page.events if watcher.event_filter.takes(seen)]), page.last
        # No await between this line and the line that adds the watcher.
        missed = [seen for seen in self._recent if seen.number > watcher.delivered and watcher.event_filter.takes(seen)]
        watcher.delivered = max(watcher.delivered, self.last)
        if self.is_stopping:
            watcher.stop("stopping")
        if watcher.ended_by is None:
            self._watchers.setdefault(watcher.event_filter, set()).add(watcher)
            self._watched.set()
            yield EventBatch(missed), watcher.delivered

    async def check_after(self, after: int) -> None:
        """Raise RefusalError if `after` is greater than the number of the last event."""
        if after > self.last:
            last = (await self._backend.events(-1, 0.0)).last
            if after > last:
                raise refused_field("after", f"is {after}; the last event is {last}")

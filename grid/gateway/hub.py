"""Events of jobs: one long poll of the grid for the whole gateway, fanned out to all who watch."""

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
from gridweave.grid.gateway.backend import Backend
from gridweave.grid.gateway.problems import refused_field

logger = logging.getLogger("gridweave.gateway")

POLL_S = 20.0
"""So long one poll of the grid waits for something to happen."""

REST_S, UNWATCHED_REST_S, FEW = 0.05, 0.2, 100
"""So long after an answer with no more than a few events the grid is not asked again, while somebody watches and
while nobody does: what happens in the meantime is told by one answer. After more there is no rest: whoever is behind
is not to fall back further."""

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_RECENT = 10_000

T = TypeVar("T")


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events somebody wants to see."""

    user: str | None = None  # only of jobs of this user
    jobs: frozenset[int] = frozenset()  # only of these; empty: of all
    kinds: frozenset[str] = frozenset()  # only of these kinds; empty: of all

    def takes(self, seen: JobEvent) -> bool:
        """Return whether an event is one of those."""
        return (
            (self.user is None or seen.user == self.user)
            and (not self.jobs or seen.job_id in self.jobs)
            and (not self.kinds or seen.kind in self.kinds)
        )


class Chunk:
    """Some events for all who want the same; they are encoded once."""

    def __init__(self, events: list[JobEvent]) -> None:
        self.events = events
        self._sse: bytes | None = None
        self._frames: dict[str, list[bytes]] = {}

    def sse(self) -> bytes:
        """Return them as server-sent events."""
        if self._sse is None:
            encode = msgspec.json.encode
            self._sse = b"".join(b"id: %d\ndata: %b\n\n" % (seen.number, encode(seen)) for seen in self.events)
        return self._sse

    def frames(self, form: Literal["json", "msgpack"]) -> list[bytes]:
        """Return one frame of a WebSocket for each."""
        if form not in self._frames:
            encode = msgspec.json.encode if form == "json" else msgspec.msgpack.encode
            self._frames[form] = [encode(seen) for seen in self.events]
        return self._frames[form]


class Watcher:
    """One who watches, by a token if there are any: the hub puts chunks in, and its connection takes them out."""

    def __init__(self, wanted: Filter, token_id: str, after: int) -> None:
        self.wanted = wanted
        self.token_id = token_id
        # Up to which event it was given all, and took all.
        self.given = self.taken = after
        self.waiting = 0
        self.ended_by: Literal["slow", "revoked", "stopping"] | None = None
        self._chunks: deque[tuple[Chunk, int]] = deque()
        self._news = asyncio.Event()

    def put(self, chunk: Chunk, last: int, most: int) -> None:
        """Give it a chunk, and with that all up to an event; end it if too much waits then."""
        self.given = max(last, self.given)
        self.waiting += len(chunk.events)
        if self.waiting > most:
            self.stop("slow")
            return
        self._chunks.append((chunk, last))
        self._news.set()

    def pass_over(self, last: int) -> None:
        """Note that it was given all that is for it up to an event; nothing changes if it has still to take some."""
        if not self._chunks:
            self.given = self.taken = max(last, self.given)

    def stop(self, reason: Literal["slow", "revoked", "stopping"]) -> None:
        """End it; what waits is thrown away."""
        self.ended_by = self.ended_by or reason
        self._chunks.clear()
        self._news.set()

    async def next(self, timeout_s: float) -> tuple[Chunk, int] | None:
        """Return the next chunk and up to which event that is all; None at the end, or if nothing came in time."""
        if not self._chunks and self.ended_by is None:
            self._news.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                return None
        if not self._chunks:
            return None
        chunk, last = self._chunks.popleft()
        self.waiting -= len(chunk.events)
        return chunk, last


class EventHub:
    """Asks the grid what happens, and tells all who watch; who has more than `backlog` events waiting is dropped.

    `usable` returns the ids of the tokens that can be used, which is looked at every `check_s` if nothing happens.
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
        # By what they want: most events are for few of them, and the others cost nothing then.
        self._watchers: dict[Filter, set[Watcher]] = {}
        self._recent: deque[JobEvent] = deque()
        self._recent_after = 0
        self._begun = asyncio.Event()
        self._watched = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.is_stopping = False
        self.last = 0
        # Who else is told of each event, before those who watch.
        self.listeners: list[Callable[[list[JobEvent]], None]] = []
        # What is done once it is known from which event on all will be heard, before anybody is told of one.
        self.on_begin: list[Callable[[], Awaitable[None]]] = []
        self.on_unavailable: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin to ask."""
        self._tasks = [asyncio.create_task(self._run())]
        if self._usable is not None:
            self._tasks.append(asyncio.create_task(self._look_after_tokens()))

    async def stop(self) -> None:
        """Tell all who watch that it ends, and ask no more."""
        self.is_stopping = True
        for watcher in self._all():
            watcher.stop("stopping")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def watchers(self) -> int:
        """How many watch."""
        return sum(len(some) for some in self._watchers.values())

    def _all(self) -> list[Watcher]:
        return [watcher for some in self._watchers.values() for watcher in some]

    def revoked(self, token_id: str) -> None:
        """End the streams of a token that was revoked."""
        for watcher in self._all():
            if watcher.token_id == token_id:
                watcher.stop("revoked")

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self.last = self._recent_after = (await self._ask(-1, 0.0)).last
        for begin in self.on_begin:
            await self._persist(begin)
        self._begun.set()
        while True:
            batch = await self._ask(self.last, POLL_S)
            try:
                await self._deliver(batch)
            except Exception:
                # An error of ours in one batch is not to silence all that follow.
                logger.exception("events up to %d could not be told", batch.last)
                self.last = max(self.last, batch.last)
            if len(batch.events) <= FEW:
                await self._rest()

    async def _rest(self) -> None:
        """Let more happen, which one answer then tells; not for long if somebody watches, or comes to watch."""
        if self._watchers:
            await asyncio.sleep(REST_S)
            return
        self._watched.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UNWATCHED_REST_S):
                await self._watched.wait()

    async def _ask(self, after: int, timeout_s: float) -> JobEvents:
        """Return what happened after an event; ask until there is an answer."""
        return await self._persist(lambda: self._backend.events(after, timeout_s))

    async def _persist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something again and again, until there is an answer."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await work()
            except UnavailableError as error:
                if pause_s == _FIRST_PAUSE_S:
                    logger.warning("trying again until there is an answer: %s", error)
                self.on_unavailable()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _deliver(self, batch: JobEvents) -> None:
        before, events = self.last, [seen for seen in batch.events if seen.number > self.last]
        if batch.last <= before:
            return
        usable = await self._await_usable() if events and self._watchers else None
        # From here on nothing waits, so that whoever attaches has all up to `before`, or all up to the new one.
        self.last = batch.last
        self._keep(events)
        for listener in self.listeners:
            listener(events)
        of_users: dict[str, list[JobEvent]] = {}
        for seen in events:
            of_users.setdefault(seen.user, []).append(seen)
        for wanted, watchers in self._watchers.items():
            some = events if wanted.user is None else of_users.get(wanted.user, [])
            found = [seen for seen in some if wanted.takes(seen)]
            if found:
                self._tell(watchers, found, batch.last, usable)

    def _tell(
        self, watchers: Iterable[Watcher], events: list[JobEvent], last: int, usable: frozenset[str] | None
    ) -> None:
        """Tell all who want these events of them, but for what somebody has heard of before."""
        chunks: dict[int, Chunk] = {}
        for watcher in watchers:
            if usable is not None and watcher.token_id not in usable:
                watcher.stop("revoked")
                continue
            heard = max(watcher.given, events[0].number - 1)
            if heard not in chunks:
                chunks[heard] = Chunk([seen for seen in events if seen.number > heard])
            if chunks[heard].events:
                watcher.put(chunks[heard], last, self._backlog)

    def _keep(self, events: list[JobEvent]) -> None:
        self._recent.extend(events)
        while len(self._recent) > _RECENT:
            self._recent_after = self._recent.popleft().number

    # -- tokens -------------------------------------------------------------------------------------------------------

    async def _await_usable(self) -> frozenset[str] | None:
        """Return the tokens that can be used; while they cannot be read nobody is told of anything."""
        return None if self._usable is None else await self._persist(self._usable)

    async def _look_after_tokens(self) -> None:
        """End streams whose token was revoked, or is too old, also if nothing happens."""
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
        self, wanted: Filter, token_id: str, after: int | None, idle_s: float
    ) -> AsyncGenerator[Chunk | StreamEnd | int, None]:
        """Yield what happens after an event (None: from now on), in order, and nothing twice.

        A number is that of the last event that was looked at: it comes when all from before is told, and whenever there
        was nothing for `idle_s`. After a `StreamEnd` nothing comes.
        """
        watcher = Watcher(wanted, token_id, -1 if after is None else after)
        try:
            async for chunk, last in self._catch_up(watcher):
                yield chunk
                watcher.taken = max(watcher.taken, last)
            # Whoever is cut off before the first event knows from where to go on.
            yield watcher.taken
            while True:
                found = await watcher.next(idle_s)
                if watcher.ended_by is not None:
                    # What was under way when it was ended is what it took last.
                    yield StreamEnd(reason=watcher.ended_by, after=watcher.taken)
                    return
                if found is None:
                    watcher.pass_over(self.last)
                    yield watcher.taken
                    continue
                yield found[0]
                watcher.taken = found[1]
        finally:
            self._forget(watcher)

    def _forget(self, watcher: Watcher) -> None:
        some = self._watchers.get(watcher.wanted, set())
        some.discard(watcher)
        if not some:
            self._watchers.pop(watcher.wanted, None)

    async def _catch_up(self, watcher: Watcher) -> AsyncIterator[tuple[Chunk, int]]:
        """Yield what a watcher has not seen, and up to which event that is all; then it is told with the others."""
        await self._begun.wait()
        if watcher.given < 0:
            # What has happened and was not heard of here yet, as this rests, is not what happens from now on.
            now = await self._ask(-1, 0.0)
            watcher.given = watcher.taken = max(now.last, self.last)
        while not self._recent_after <= watcher.given <= self.last:
            page = await self._ask(watcher.given, 0.0)
            usable = await self._await_usable()
            if usable is not None and watcher.token_id not in usable:
                watcher.stop("revoked")
            if self.is_stopping:
                watcher.stop("stopping")
            if watcher.ended_by is not None or page.last <= watcher.given:
                break
            watcher.given = page.last
            yield Chunk([seen for seen in page.events if watcher.wanted.takes(seen)]), page.last
        # Nothing is awaited between here and where the hub knows it.
        missed = [seen for seen in self._recent if seen.number > watcher.given and watcher.wanted.takes(seen)]
        watcher.given = max(watcher.given, self.last)
        if self.is_stopping:
            watcher.stop("stopping")
        if watcher.ended_by is None:
            self._watchers.setdefault(watcher.wanted, set()).add(watcher)
            self._watched.set()
            yield Chunk(missed), watcher.given

    async def check_after(self, after: int) -> None:
        """Refuse an event as the last one that somebody saw if it is still to come."""
        if after > self.last:
            last = (await self._backend.events(-1, 0.0)).last
            if after > last:
                raise refused_field("after", f"is {after}; the last event is {last}")

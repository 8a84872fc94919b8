"""Streams that are cut off and go on: what happens to jobs, and what they write.

`EndWatch` waits for many jobs with one stream of events, and asks where that is not to be had.
"""

from __future__ import annotations

import codecs
import contextlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal

import msgspec

from gridweave.errors import GridweaveError, UnavailableError
from gridweave.grid.api import JobEvent
from gridweave.grid.client.records import MOST_TOGETHER
from gridweave.grid.client.transport import Transport, cut_errors
from gridweave.shared_calls import SharedCalls
from gridweave.site.job import OWN_IDS, JobRecord
from gridweave.site.lifecycle import OVER

if TYPE_CHECKING:
    import asyncio

Stream = Literal["out", "err", "result"]
"""What a rank has written to standard output, to standard error, and what its callable has returned, as JSON."""

PART_BYTES = 1 << 20
_WITH_STREAM_S = 30.0

_EVENT = msgspec.json.Decoder(JobEvent)


class EventLines:
    r"""The lines of a stream of server-sent events, made into what they say (HTML standard, section 9.2).

    `last_id` is the number of the last event, by which the stream is taken up again.

    Examples
    --------
    >>> lines = EventLines()
    >>> [lines.take(line) for line in (b": hello\n", b"id: 7\n", b"data: {}\n", b"\n")], lines.last_id
    ([None, None, None, b'{}'], '7')
    """

    def __init__(self) -> None:
        self.last_id = ""
        self._data: list[bytes] = []
        self._id, self._name = "", b""

    def take(self, line: bytes) -> bytes | None:
        """Take in a line; return the data of the event that it ends, if it ends one."""
        line = line.rstrip(b"\r\n")
        if not line:
            self.last_id, data = self._id or self.last_id, b"\n".join(self._data)
            is_message = self._name in (b"", b"message")  # others are about the stream: that it ends, say
            self._id, self._name, self._data = "", b"", []
            return data if data and is_message else None
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"id":
            self._id = value.decode(errors="replace")
        elif name == b"event":
            self._name = value
        return None


async def events(
    transport: Transport,
    *,
    after: int | None,
    jobs: tuple[int, ...] = (),
    kinds: tuple[str, ...] = (),
    user: str | None = None,
    connected: Callable[[bool], None] = lambda is_open: None,
) -> AsyncGenerator[JobEvent, None]:
    """Yield what happens to jobs, each event once and in order, whatever happens to the connection; without end.

    It begins after an event (None: from now on). `connected` is told whenever the stream has been opened or cut off.
    UnavailableError if the gateway is away for longer than the client's patience.
    """
    query = [("kind", kind) for kind in kinds] + [("job", str(job)) for job in jobs]
    query += [("user", user)] if user is not None else []
    last, cuts = after, 0
    while True:
        place = [("after", str(last))] if last is not None else []
        lines = EventLines()
        async with transport.stream("/v1/events", query=query + place, headers={"Accept": "text/event-stream"}) as part:
            connected(True)
            try:
                async for line in _lines(part.content.iter_any()):
                    data = lines.take(line)
                    if data is not None:
                        event = _decoded(data)
                        if last is None or event.number > last:  # a gateway may say one again
                            last, cuts = event.number, 0
                            yield event
                    elif not line.strip() and lines.last_id.isdecimal():
                        last = max(last if last is not None else 0, int(lines.last_id))
            except cut_errors():
                pass  # however it ended, it is opened again
        connected(False)
        cuts += 1
        await transport.pauses.sleep(transport.pauses.length_s(cuts))


def _decoded(data: bytes) -> JobEvent:
    try:
        return _EVENT.decode(data)
    except msgspec.MsgspecError as error:
        raise UnavailableError(f"an event cannot be read ({error}); is the gateway of another version?") from None


async def output(
    transport: Transport,
    job_id: int,
    *,
    rank: int,
    stream: Stream,
    follow: bool = False,
    part: tuple[int, int] | None = None,
    attempt: int | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield what a rank has written, each byte once; with `follow` until its job has ended.

    Of it a part may be wanted alone: from which byte on, and how many. If no attempt is named it is that of the last.
    """
    path = f"/v1/jobs/{job_id}/output"
    offset, end = (0, sys.maxsize) if part is None else (part[0], sum(part))
    cuts = 0
    while offset < end:
        query = {"rank": str(rank), "stream": stream, "offset": str(offset), "follow": str(int(follow))}
        query |= {} if attempt is None else {"attempt": str(attempt)}
        query |= {} if follow else {"limit": str(min(PART_BYTES, end - offset))}
        began, is_whole, is_last = offset, False, False
        async with transport.stream(path, query=query, headers={"Accept": "application/octet-stream"}) as sent:
            is_last = sent.headers.get("Gridweave-Last") == "1"
            try:
                async for data in sent.content.iter_any():
                    offset += len(data)
                    yield data
                is_whole = True
            except cut_errors():
                pass
        if is_whole and (follow or is_last or offset == began):
            return
        cuts = 0 if offset > began else cuts + 1
        if not is_whole:
            await transport.pauses.sleep(transport.pauses.length_s(max(cuts, 1)))


async def text_lines(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[str, None]:
    """Yield the lines of an output, without their ends; what is no UTF-8 is replaced."""
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    rest = ""
    async with aclosing(parts):
        async for data in parts:
            *whole, rest = (rest + decode(data)).split("\n")
            for line in whole:
                yield line
    rest += decode(b"", final=True)
    if rest:
        yield rest


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield whole lines of whatever length; half a line at the end is no line."""
    rest = b""
    async for data in parts:
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line


Connected = Callable[[bool], None]


class EndWatch:
    """Tells when jobs have ended.

    `follow` returns the stream of events, and tells its argument whenever it was opened or cut off. `records` asks for
    the records of jobs; all that are wanted while it does share the next request. While there is no stream, a record is
    asked for after `first_poll_s`, and each time half as long again, up to `longest_poll_s`; while there is one that
    tells of its job, every half minute.
    """

    def __init__(
        self,
        follow: Callable[[Connected], AsyncIterator[JobEvent]],
        records: Callable[[list[int]], Awaitable[list[JobRecord | GridweaveError]]],
        *,
        first_poll_s: float = 0.2,
        longest_poll_s: float = 5.0,
    ) -> None:
        self._follow, self._records = follow, SharedCalls(records, most_together=MOST_TOGETHER)
        self._first_poll_s, self._longest_poll_s = first_poll_s, longest_poll_s
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._is_open = False
        self._task: asyncio.Task[None] | None = None

    async def ended(self, job_id: int) -> JobRecord:
        """Return the record of a job once it has ended."""
        import asyncio  # a command that asks one thing does without, here and below

        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._listen())
        news = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(news)
        poll_s = self._first_poll_s
        try:
            while True:
                news.clear()
                record = await self._records.ask(job_id)
                if record.state in OVER:
                    return record
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_WITH_STREAM_S if self._is_told(job_id) else poll_s):
                        await news.wait()
                poll_s = min(1.5 * poll_s, self._longest_poll_s)
        finally:
            events = self._waiting[job_id]
            events.discard(news)
            if not events:
                del self._waiting[job_id]

    async def close(self) -> None:
        """Wait for nothing any more."""
        await self._records.close()
        if self._task is not None:
            import asyncio

            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _is_told(self, job_id: int) -> bool:
        # No stream tells of the jobs of sites' own users.
        return self._is_open and job_id < OWN_IDS

    async def _listen(self) -> None:
        # Without the stream everything goes on, a little slower; what is wrong is told by the questions.
        with contextlib.suppress(GridweaveError):
            async for event in self._follow(self._connected):
                if event.kind in OVER:
                    for news in self._waiting.get(event.job_id, ()):
                        news.set()
        self._connected(False)

    def _connected(self, is_open: bool) -> None:
        """Have all ask once: what ended before the stream was there is not told by it."""
        self._is_open = is_open
        for events in self._waiting.values():
            for news in events:
                news.set()

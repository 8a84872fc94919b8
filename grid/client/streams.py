"""Stream events and output, and resume each stream after its connection is interrupted.

`EndWatch` waits for many jobs with one stream of events, and polls while there is no stream.
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
"""An output stream of a rank: its standard output, its standard error, or the results of its callable as JSON."""

PART_BYTES = 1 << 20
_WITH_STREAM_S = 30.0

_EVENT = msgspec.json.Decoder(JobEvent)


class EventLines:
    r"""Parser for the lines of a stream of server-sent events (HTML standard, section 9.2).

    `last_id` is the number of the last event; a new connection continues after it.

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
        """Parse a line; return the event's data if the line ends an event, else None."""
        line = line.rstrip(b"\r\n")
        if not line:
            self.last_id, data = self._id or self.last_id, b"\n".join(self._data)
            is_message = self._name in (b"", b"message")  # other events are about the stream itself, such as its end
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
    """Yield job events indefinitely, each once and in order, even if the connection is interrupted.

    The stream starts after event number `after` (None: now). `connected` is called with True when the stream opens,
    with False when it breaks. Raise UnavailableError if the gateway is unreachable for longer than `Patience` allows.
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
                        if last is None or event.number > last:  # a gateway may repeat events
                            last, cuts = event.number, 0
                            yield event
                    elif not line.strip() and lines.last_id.isdecimal():
                        last = max(last if last is not None else 0, int(lines.last_id))
            except cut_errors():
                pass  # reopened below
        connected(False)
        cuts += 1
        await transport.pauses.sleep(transport.pauses.length_s(cuts))


def _decoded(data: bytes) -> JobEvent:
    try:
        return _EVENT.decode(data)
    except msgspec.MsgspecError as error:
        raise UnavailableError(f"an event cannot be read ({error}); does the gateway have another version?") from None


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
    """Yield a rank's output, each byte once; with `follow`, keep yielding new output until the job has ended.

    `part` restricts the output to a range: its first byte and number of bytes. `attempt` defaults to the last attempt.
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
    """Yield the lines of an output without line endings, and replace bytes that are not UTF-8."""
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
    """Yield complete lines of any length, and drop an incomplete last line."""
    rest = b""
    async for data in parts:
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line


Connected = Callable[[bool], None]


class EndWatch:
    """Waits for jobs to end.

    Parameters
    ----------
    follow : callable
        Returns the stream of events, and calls its argument when the stream has been opened or interrupted.
    records : callable
        Fetches the records of jobs; jobs that need a record during a request share the next request.
    first_poll_s, longest_poll_s : float
        The first and the longest pause between fetches of a record while there is no stream; each pause is 1.5 times
        the previous one. With a stream that has the job's events, the record is fetched every 30 s.
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
        """Wait until a job has ended and return its record."""
        import asyncio  # imported here because commands that make one request do without it

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
                    async with asyncio.timeout(_WITH_STREAM_S if self._is_reported(job_id) else poll_s):
                        await news.wait()
                poll_s = min(1.5 * poll_s, self._longest_poll_s)
        finally:
            events = self._waiting[job_id]
            events.discard(news)
            if not events:
                del self._waiting[job_id]

    async def close(self) -> None:
        """Stop waiting and close the stream."""
        await self._records.close()
        if self._task is not None:
            import asyncio

            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _is_reported(self, job_id: int) -> bool:
        # The stream has no events about jobs of the sites' own users.
        return self._is_open and job_id < OWN_IDS

    async def _listen(self) -> None:
        # Without a stream, polling still works; if the gateway is unreachable, polling raises the error.
        with contextlib.suppress(GridweaveError):
            async for event in self._follow(self._connected):
                if event.kind in OVER:
                    for news in self._waiting.get(event.job_id, ()):
                        news.set()
        self._connected(False)

    def _connected(self, is_open: bool) -> None:
        """Make every waiting call fetch its record once, because the stream lacks events from before it was opened."""
        self._is_open = is_open
        for events in self._waiting.values():
            for news in events:
                news.set()

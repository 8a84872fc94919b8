"""Events and output reach those who watch: in order, once, from where they were cut off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from gridweave.grid.api import JobEvent, StreamEnd
from gridweave.grid.gateway import hub as hub_module
from gridweave.grid.gateway.hub import EventBatch, EventHub, Watcher
from support.gateway import FakeBackend, Served, a_job, serving
from support.machine import PATIENCE_S

pytestmark = pytest.mark.asyncio


class Stream:
    """What comes over a stream of server-sent events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content = response.content
        self.comments: list[bytes] = []
        self.last_id = 0

    async def next(self) -> JobEvent | StreamEnd:
        """Return what is told next; comments are put aside."""
        name = b""
        while line := await self._content.readline():
            kind, _, value = line.rstrip(b"\n").partition(b": ")
            if kind == b"" and value:
                self.comments.append(value)
            elif kind == b"id":
                self.last_id = int(value)
            elif kind == b"event":
                name = value
            elif kind == b"data":
                return msgspec.json.decode(value, type=StreamEnd if name == b"end" else JobEvent)
        raise EOFError

    async def take(self, count: int) -> list[tuple[int, str]]:
        """Return so many events as their jobs and kinds."""
        found = [await self.next() for _ in range(count)]
        assert all(isinstance(one, JobEvent) for one in found), found
        return [(one.job_id, one.kind) for one in found if isinstance(one, JobEvent)]


@contextlib.asynccontextmanager
async def watching(grid: Served, query: str = "", **headers: str) -> AsyncIterator[Stream]:
    """Yield a stream that hears all that happens from now on."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with grid.session.get(f"{grid.url}/v1/events{query}", headers=named) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        stream = Stream(response)
        assert await response.content.readline() == b": gridweave\n"
        await response.content.readline()
        yield stream


async def test_events_come_in_order_with_their_numbers() -> None:
    """Whoever watches hears of each event once, in order, with the number by which to come back."""
    backend = FakeBackend()
    async with serving(backend) as grid:
        await grid.submit(a_job(user="anna", name="first"))
        async with watching(grid) as stream:
            await grid.submit(a_job(user="anna", name="second"))
            backend.start(1)
            backend.end(1)
            first = await stream.next()
            assert isinstance(first, JobEvent)
            assert (first.number, first.user, first.name, first.kind) == (3, "anna", "second", "submitted")
            assert await stream.take(2) == [(1, "runs"), (1, "ended")]
            assert stream.last_id == 7


async def test_whoever_was_greeted_hears_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said to a watcher before it is among those who are told."""
    may_join, catch_up = asyncio.Event(), EventHub._catch_up

    async def late(hub: EventHub, watcher: Watcher) -> AsyncIterator[tuple[EventBatch, int]]:
        await may_join.wait()
        async for told in catch_up(hub, watcher):
            yield told

    monkeypatch.setattr(EventHub, "_catch_up", late)
    backend = FakeBackend()
    async with serving(backend) as grid, grid.session.get(f"{grid.url}/v1/events") as response:
        first = asyncio.create_task(response.content.readline())
        for _ in range(300):
            await asyncio.sleep(0)
        assert not first.done()
        may_join.set()
        assert await first == b": gridweave\n"
        await grid.submit(a_job(name="at once"))
        seen = await Stream(response).next()
        assert isinstance(seen, JobEvent)
        assert (seen.name, seen.kind) == ("at once", "submitted")


async def test_whoever_comes_hears_of_nothing_from_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happened while the gateway rested is not told to those who came later; what happens then is."""
    monkeypatch.setattr(hub_module, "UNWATCHED_REST_S", 1e6)
    backend = FakeBackend()
    async with serving(backend) as grid:
        await grid.submit(a_job(name="ends the poll"))
        for _ in range(1000):
            await asyncio.sleep(0)
        await grid.submit(a_job(name="while it rests"))
        async with watching(grid) as stream:
            await grid.submit(a_job(name="new"))
            seen = await stream.next()
        assert isinstance(seen, JobEvent)
        assert seen.name == "new"


async def test_a_hub_that_is_behind_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """After many events at once the grid is asked again at once; after a few there is a rest."""
    monkeypatch.setattr(hub_module, "UNWATCHED_REST_S", 1e6)
    monkeypatch.setattr(hub_module, "FEW", 3)
    backend = FakeBackend()

    async def asks_again(*jobs: dict[str, Any]) -> bool:
        asked = backend.polls
        await grid.submit(*jobs)
        for _ in range(1000):
            await asyncio.sleep(0)
        return backend.polls > asked

    async with serving(backend) as grid:
        assert await asks_again(*(a_job() for _ in range(4)))
        assert not await asks_again(a_job())


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ("?job=1", [(1, "submitted"), (1, "ended")]),
        ("?job=1&job=3", [(1, "submitted"), (3, "submitted"), (1, "ended"), (3, "ended")]),
        ("?kind=ended", [(1, "ended"), (2, "ended"), (3, "ended")]),
        ("?user=bob&kind=submitted&kind=runs", [(2, "submitted")]),
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
async def test_events_are_filtered(query: str, seen: list[tuple[int, str]], is_late: bool) -> None:
    """Only events of the jobs, kinds and users that are asked for come, as they happen and when they are caught up."""
    backend = FakeBackend()
    async with serving(backend) as grid:

        async def happen() -> None:
            await grid.submit(*(a_job(user=user) for user in ("anna", "bob", "anna")))
            for job_id in (1, 2, 3):
                backend.end(job_id)

        if is_late:
            await happen()
        async with watching(grid, f"{query}&after=0") as stream:
            if not is_late:
                await happen()
            assert await stream.take(len(seen)) == seen


async def test_a_watcher_comes_back_to_where_it_was() -> None:
    """With Last-Event-ID all comes that was missed, and then what happens; also of another gateway, and over pages."""
    backend = FakeBackend()
    async with serving(backend) as grid:
        await grid.submit(*(a_job() for _ in range(1200)))
        async with watching(grid, "?after=0") as stream:
            assert await stream.take(700) == [(number, "submitted") for number in range(1, 701)]
            came = stream.last_id
        async with watching(grid, "?after=0", Last_Event_ID=str(came)) as stream:
            assert await stream.take(500) == [(number, "submitted") for number in range(701, 1201)]
            backend.end(5)
            assert await stream.take(1) == [(5, "ended")]
    async with serving(backend) as grid, watching(grid, f"?after={came}") as stream:
        backend.end(6)
        everything = await stream.take(502)
        assert everything == [*((n, "submitted") for n in range(701, 1201)), (5, "ended"), (6, "ended")]


async def test_one_poll_serves_all() -> None:
    """Two hundred watchers, and the grid is asked for events no more often than for one."""
    backend = FakeBackend()
    async with serving(backend) as grid, contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(watching(grid)) for _ in range(200)]
        before = backend.polls
        for _ in range(5):
            await grid.submit(a_job())
        for stream in streams:
            assert [kind for _, kind in await stream.take(5)] == ["submitted"] * 5
        assert backend.polls - before <= 6


async def test_a_slow_watcher_is_dropped_and_told_from_where_to_go_on() -> None:
    """Who takes nothing is ended and others are not held up; it has all up to the event that it is told."""
    backend = FakeBackend()
    async with serving(backend, backlog=3000) as grid:
        url = f"{grid.url}/v1/events?after=0"
        # Its own session, so that it reads no faster than the test does.
        async with aiohttp.ClientSession(read_bufsize=1024) as session, session.get(url) as response:
            slow = Stream(response)
            async with watching(grid, "?kind=submitted") as quick:
                for _ in range(50):
                    await grid.submit(*(a_job(name="n" * 200) for _job in range(400)))
                    await quick.take(400)
            numbers = []
            while isinstance(told := await slow.next(), JobEvent):
                numbers.append(told.number)
            assert told.reason == "slow"
            assert numbers == [seen.number for seen in backend.apply if seen.number <= told.after]
            assert told.after < backend.apply[-1].number
            with pytest.raises(EOFError):
                await slow.next()


async def test_a_stream_with_nothing_to_say_says_so() -> None:
    """Comments come while nothing happens."""
    async with serving(FakeBackend(), comment_s=0.01) as grid, watching(grid) as stream:
        waiting = asyncio.create_task(stream.next())
        while len(stream.comments) < 3:
            await asyncio.sleep(0.01)
        assert stream.comments[0] == b"still here"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_streams_end_when_the_gateway_stops() -> None:
    """Each watcher is told that the gateway stops, at once, and from where to go on; output is cut off."""
    backend = FakeBackend()
    async with serving(backend) as grid:
        [job_id] = await grid.submit(a_job())
        backend.write(job_id, b"some")
        async with (
            watching(grid) as stream,
            grid.session.ws_connect(f"{grid.url}/v1/events/ws") as socket,
            grid.session.get(f"{grid.url}/v1/jobs/{job_id}/output?follow=1") as response,
        ):
            assert await response.content.readany() == b"some"
            await asyncio.wait_for(grid.gateway.stop(), PATIENCE_S)
            assert await stream.next() == StreamEnd(reason="stopping", after=1)
            closed = await socket.receive()
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.GOING_AWAY)
            with pytest.raises(aiohttp.ClientError):
                await response.content.readany()


async def test_events_go_on_after_the_grid_was_away() -> None:
    """While the grid does not answer streams stay open, and then nothing is missing."""
    backend = FakeBackend()
    async with serving(backend) as grid, watching(grid) as stream:
        await grid.submit(a_job())
        await stream.take(1)
        backend.is_away = True
        backend.end(1)
        while "gridweave_backend_errors_total 0.0" in (await grid.ask("GET", "/metrics"))[1].decode():
            await asyncio.sleep(0)
        backend.is_away = False
        assert await stream.take(1) == [(1, "ended")]


@pytest.mark.parametrize("form", ["json", "msgpack"])
async def test_events_over_a_websocket(form: Any) -> None:
    """Over a WebSocket the same events come, one in each frame, with filters and from where one was."""
    backend = FakeBackend()
    decode = msgspec.json.decode if form == "json" else msgspec.msgpack.decode
    async with serving(backend) as grid:
        await grid.submit(a_job(), a_job())
        async with grid.session.ws_connect(f"{grid.url}/v1/events/ws?after=1&format={form}&job=2") as socket:
            backend.end(1)
            backend.end(2)
            frames = [(await socket.receive()).data for _ in range(2)]
            events = [decode(frame, type=JobEvent) for frame in frames]
            assert [(seen.job_id, seen.kind) for seen in events] == [(2, "submitted"), (2, "ended")]
            await socket.send_str("hello")
            assert (await socket.receive()).data == aiohttp.WSCloseCode.UNSUPPORTED_DATA


async def test_an_event_that_is_still_to_come_is_no_place_to_go_on_from() -> None:
    """A number that no event has yet, or none at all, is refused: the watcher would miss what comes."""
    async with serving(FakeBackend()) as grid:
        assert (await grid.ask("GET", "/v1/events?after=5"))[0] == 422
        assert (await grid.ask("GET", "/v1/events", Last_Event_ID="five"))[0] == 422
        assert (await grid.ask("GET", "/v1/events/ws?after=5"))[0] == 422


async def test_output_that_was_removed_is_gone() -> None:
    """The answer is 410 with the reason, never an empty output."""
    backend = FakeBackend()
    async with serving(backend) as grid:
        [job_id] = await grid.submit(a_job())
        backend.end(job_id)
        backend.removed[job_id] = "the output of job 1 was removed at 2026-11-27 08:00:00 UTC: it was too old"
        for query in ("", "?follow=1", "?stream=result"):
            status, problem, _ = await grid.ask("GET", f"/v1/jobs/{job_id}/output{query}")
            assert (status, problem["type"]) == (410, "urn:gridweave:problem:output-removed")
            assert problem["detail"] == backend.removed[job_id]


async def test_output_is_read_in_parts_and_followed() -> None:
    """Output comes from where it is asked for, with what follows; followed, all of it until the job has ended."""
    backend = FakeBackend()
    async with serving(backend) as grid:
        [job_id] = await grid.submit(a_job())
        path = f"/v1/jobs/{job_id}/output"
        backend.write(job_id, b"one two\n")
        _, data, headers = await grid.ask("GET", f"{path}?offset=4&limit=2")
        assert (data, headers["Gridweave-Offset"], headers["Gridweave-Last"]) == (b"tw", "4", "0")
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
        async with grid.session.get(f"{grid.url}{path}?follow=1&offset=4&limit=1") as response:
            assert await response.content.readexactly(4) == b"two\n"
            backend.write(job_id, b"three\n" * 1000)
            assert await response.content.readexactly(6000) == b"three\n" * 1000
            backend.end(job_id)
            assert await response.content.read() == b""
        _, data, headers = await grid.ask("GET", f"{path}?offset=0", Accept="application/octet-stream")
        assert (len(data), headers["Gridweave-Last"]) == (6008, "1")
        assert headers["Content-Type"] == "application/octet-stream"
        assert (await grid.ask("GET", f"{path}?stream=err"))[1] == b""
        assert (await grid.ask("GET", f"{path}?stream=both"))[0] == 422


async def test_a_watcher_that_goes_away_is_forgotten() -> None:
    """A stream whose client has gone takes no place any more."""
    async with serving(FakeBackend(), max_streams=1) as grid:
        for _ in range(3):
            async with watching(grid):
                assert (await grid.ask("GET", "/v1/events"))[0] == 429
            while (await grid.ask("GET", "/metrics"))[1].find(b"gridweave_streams 0.0") < 0:
                await asyncio.sleep(0)

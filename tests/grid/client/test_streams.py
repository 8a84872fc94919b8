"""Streams of events and of output: cut at any byte they go on, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import NotAllowedError, NotFoundError, UnavailableError
from gridweave.grid import api
from gridweave.grid.client import streams
from gridweave.grid.client.client import Client
from gridweave.grid.client.streams import EventLines, text_lines
from gridweave.grid.client.transport import Patience
from gridweave.grid.gateway.access import TokenStore
from support.gateway import GatewayBehindProxy, Naps, make_tokens, patient, served
from support.web import FlakyProxy


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(3))
async def test_events_are_heard_once_and_in_order(
    gateway: GatewayBehindProxy, flaky: FlakyProxy, naps: Naps, seed: int
) -> None:
    """However often the stream is cut, in the middle of an event as well, all events come, each once, in order."""
    flaky.rng, flaky.chance, flaky.cut_after = np.random.default_rng(seed), 0.2, 3.0
    numbers = []
    async with patient(gateway.url, naps, seed, total_s=1e9, connect_s=1e9) as grid:
        job = await grid.submit(["true"])
        async with aclosing(grid.events(after=0)) as events:
            async for event in events:
                numbers.append(event.number)
                if event.number >= 201:
                    break
                if len(gateway.grid.apply) < 101:
                    for _ in range(int(flaky.rng.integers(1, 4))):
                        gateway.grid.tell(job.id, "told", "x" * 100)
    assert numbers == list(range(1, 202, 2))
    assert flaky.faults["stream"] > 5


@pytest.mark.asyncio
async def test_a_stream_from_now_on_goes_on_from_where_it_began(
    gateway: GatewayBehindProxy, flaky: FlakyProxy, naps: Naps
) -> None:
    """Who asked for what happens from now on, and was cut off before anything did, misses nothing of it."""
    async with patient(gateway.url, naps, total_s=1e9) as grid:
        job = await grid.submit(["true"])
        events = grid.events()
        heard = asyncio.ensure_future(anext(events))
        while flaky.passed < 3:  # it knows where it stands
            await asyncio.sleep(0)
        flaky.chance, flaky.kinds = 1.0, ("503",)
        flaky.cut_streams()
        for number in range(3):
            gateway.grid.tell(job.id, "told", str(number))
        while flaky.faults.total() < 3:
            await asyncio.sleep(0)
        flaky.chance = 0.0
        assert (await heard).detail == "0"
        assert [(await anext(events)).detail for _ in range(2)] == ["1", "2"]
        await events.aclose()


@pytest.mark.asyncio
async def test_events_that_are_asked_for(gateway: GatewayBehindProxy, grid: Client) -> None:
    """Only events of the kinds and the job that were asked for come."""
    jobs = [await grid.submit(["true"]) for _ in range(3)]
    for job in jobs:
        gateway.grid.end(job.id)
    async with aclosing(grid.events(after=0, kinds=["ended"])) as events:
        assert [(await anext(events)).job_id for _ in jobs] == [1, 2, 3]
    async with aclosing(grid.events(after=0, jobs=[2])) as events:
        assert [(await anext(events)).kind for _ in range(2)] == ["submitted", "ended"]


@pytest.mark.asyncio
async def test_a_stream_ends_when_the_token_does(tmp_path: Path, naps: Naps) -> None:
    """A stream whose token was revoked ends in an error, and one whose gateway has gone does as well."""
    place = tmp_path / "tokens.db"
    token = make_tokens(place, anna="submit")["anna"]
    async with served(tokens=str(place), check_tokens_s=0.01) as gateway:
        connected = Client(gateway.url, token, patience=Patience(total_s=5), sleep=naps)
        async with connected as grid:
            await grid.submit(["true"])
            events = grid.events(after=0)
            await anext(events)
            store = TokenStore(place)
            store.revoke(token.split("_")[1])
            store.close()
            with pytest.raises(NotAllowedError):
                await anext(events)
            gateway.proxy.chance = 1.0
            with pytest.raises(UnavailableError):
                await anext(grid.events(after=0))


@given(st.lists(st.binary(max_size=40), max_size=30), st.data())
def test_any_bytes_are_lines(pieces: list[bytes], data: st.DataObject) -> None:
    """Whatever bytes come, and however they are cut, lines are those of the whole text."""

    async def parts():  # type: ignore[no-untyped-def]
        for piece in pieces:
            yield piece

    async def lines() -> list[str]:
        return [line async for line in text_lines(parts())]

    whole = b"".join(pieces).decode(errors="replace")
    expected = whole.split("\n")
    assert asyncio.run(lines()) == (expected if expected[-1] else expected[:-1])


def test_lines_of_a_stream_of_events() -> None:
    """Comments say nothing, data of several lines is one event, and an end of the stream is no event."""
    lines = EventLines()
    text = b": hi\nid: 4\n\ndata: a\ndata:b\nid:5\n\nretry: 3\nevent: end\ndata: {}\n\nevent: message\ndata: c\r\n\r\n"
    assert [found for line in text.split(b"\n") if (found := lines.take(line)) is not None] == [b"a\nb", b"c"]
    assert lines.last_id == "5"


# -- output


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("follow", [False, True])
async def test_output_is_whole(
    gateway: GatewayBehindProxy, flaky: FlakyProxy, naps: Naps, seed: int, follow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is cut, output comes whole: each byte once, whether it is followed or not."""
    rng = flaky.rng = np.random.default_rng(seed)
    monkeypatch.setattr(streams, "PART_BYTES", 1_000)
    data = rng.integers(0, 256, 12_345, dtype=np.uint8).tobytes()
    flaky.chance, flaky.cut_after = 0.3, 2.0
    async with patient(gateway.url, naps, seed, total_s=1e9, connect_s=1e9) as grid:
        job = await grid.submit(["true"])
        gateway.grid.write(job.id, data)
        gateway.grid.end(job.id)
        if follow:
            expected = data.decode(errors="replace").split("\n")
            assert [line async for line in job.logs(follow=True)] == (expected if expected[-1] else expected[:-1])
        else:
            assert await job.output() == data
    assert flaky.faults["stream"] > 0 or not follow


@pytest.mark.asyncio
async def test_output_is_followed_to_the_end(gateway: GatewayBehindProxy, grid: Client) -> None:
    """Lines come as they are written, one that is not ended yet with the rest of it, until the job has ended."""
    job = await grid.submit(["true"])
    place = (1, "err")
    gateway.grid.write(job.id, "one\ntwo\nth\u20ac".encode()[:-1], *place)
    lines = job.logs(follow=True, rank=1, stream="err")
    assert [await anext(lines), await anext(lines)] == ["one", "two"]
    gateway.grid.write(job.id, "\u20ac\nlast".encode()[2:], *place)
    assert await anext(lines) == "th\u20ac"
    gateway.grid.end(job.id)
    assert [line async for line in lines] == ["last"]


@pytest.mark.asyncio
async def test_output_that_is_not_there(gateway: GatewayBehindProxy, grid: Client) -> None:
    """A job that has written nothing has no lines; one that there is not is an error."""
    job = await grid.submit(["true"])
    assert [line async for line in job.logs()] == []
    assert await job.output(stream="err") == b""
    with pytest.raises(NotFoundError):
        await grid.job(77).output()
    with pytest.raises(NotFoundError):
        await anext(grid.job(77).logs(follow=True))


@pytest.mark.asyncio
async def test_many_streams_leave_room_for_requests(gateway: GatewayBehindProxy, grid: Client) -> None:
    """Who follows the output of many jobs at once can still ask for other things."""
    jobs = [await grid.submit(["true"]) for _ in range(50)]
    followers = [job.logs(follow=True) for job in jobs]
    for job in jobs:
        gateway.grid.write(job.id, b"begun\n")
    assert [await anext(follower) for follower in followers] == ["begun"] * 50
    assert len(await grid.sites()) == 2
    for follower in followers:
        await follower.aclose()


@pytest.mark.asyncio
async def test_a_reader_may_stop(gateway: GatewayBehindProxy, grid: Client) -> None:
    """Who stops reading in the middle leaves no stream behind."""
    job = await grid.submit(["true"])
    gateway.grid.write(job.id, b"one\ntwo\n")
    async with aclosing(job.logs(follow=True)) as lines:
        async for line in lines:
            assert line == "one"
            break
    assert isinstance((await grid.sites())[0], api.SiteInfo)

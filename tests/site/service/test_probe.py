"""Probes between sites, over real sockets: what they measure and may cost, and that nobody can do them harm."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave.site.service.probe_server import ProbeServer, ServerCounts
from gridweave.site.service.prober import (
    BLOCK_BYTES,
    BUSY,
    DOWNLOAD,
    ECHO,
    GO,
    MAC_BYTES,
    MAGIC,
    NONCE_BYTES,
    REFUSED,
    RESULT,
    UPLOAD,
    WELCOME,
    ProbeLimits,
    Prober,
    ProtocolError,
    frame,
    proof,
    read_frame,
    receive,
    throughput_bps,
)

pytestmark = pytest.mark.asyncio

HOST = "127.0.0.1"
SECRET = b"the same at all sites"
SMALL = ProbeLimits(bytes=1 << 20, timeout_ms=20_000)
HASTY = ProbeLimits(bytes=1 << 26, timeout_ms=2_000, duration_ms=50)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def ticking(step_ns: int) -> Callable[[], int]:
    """Return a clock that goes on by so much whenever somebody looks at it."""
    times = itertools.count(0, step_ns)
    return lambda: next(times)


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[ProbeServer, int]]:
    """Yield a server and its port; at the end no task of it is left."""
    before = asyncio.all_tasks()
    async with ProbeServer(SECRET, **{"limits": SMALL, **options}) as server:
        yield server, await server.start(HOST)
    assert asyncio.all_tasks() <= before


async def settled(server: ProbeServer) -> ServerCounts:
    """Wait until nobody is connected."""
    mine = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not mine and "_connected" in repr(task.get_coro())]
    await asyncio.gather(*others)
    return server.counts


@contextlib.asynccontextmanager
async def raw(port: int) -> AsyncIterator[Streams]:
    """Yield a connection on which anything can be said."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def greet(streams: Streams, secret: bytes = SECRET) -> bytes:
    """Say hello as a prober does, and return the first byte of the answer."""
    reader, writer = streams
    nonce = (await reader.readexactly(len(MAGIC) + NONCE_BYTES))[len(MAGIC) :]
    mine = bytes(NONCE_BYTES)
    writer.write(MAGIC + mine + proof(secret, b"client", nonce, mine))
    return (await reader.readexactly(1 + MAC_BYTES))[:1]


async def is_healthy(port: int) -> bool:
    """Tell whether the server answers as it should."""
    return len(await Prober(SECRET, limits=SMALL).round_trips(HOST, port, 3)) == 3


# -- what is measured


async def test_round_trips_are_timed_one_by_one() -> None:
    """Each is the time between the question and its answer."""
    async with serving() as (server, port):
        found = await Prober(SECRET, limits=SMALL, clock_ns=ticking(2_500_000)).round_trips(HOST, port, 4)
        assert found == (2.5, 2.5, 2.5, 2.5)
        real = await Prober(SECRET, limits=SMALL).round_trips(HOST, port)
        assert len(real) == 10
        assert min(real) > 0
        assert await settled(server) == ServerCounts(served=2)


@pytest.mark.parametrize("back", [False, True])
async def test_bandwidth_is_timed_by_who_receives(back: bool) -> None:
    """With a millisecond for each sample the rate is that of 16 KiB, and less than a block more, in a millisecond."""
    clocks = {"clock_ns": ticking(1_000_000)}
    async with serving(**({} if back else clocks)) as (server, port):
        prober = Prober(SECRET, limits=SMALL, **(clocks if back else {}))  # type: ignore[arg-type]
        rate_bps = await prober.bandwidth(HOST, port, back=back)
        assert 8 * 8192 * 1000 < rate_bps <= 8 * (16_384 + BLOCK_BYTES) * 1000
        assert await settled(server) == ServerCounts(served=1)
        assert await is_healthy(port)


async def test_only_the_later_half_of_the_time_counts() -> None:
    """A stream that begins slowly is as fast as it becomes; what came at one instant says nothing."""
    slow_start = [(0, 10), (400, 20), (900, 30), (1100, 530), (2000, 1430)]
    assert throughput_bps(slow_start) == 8 * 10**9 * 900 // 900
    assert throughput_bps([(0, 10), (1000, 20)]) == 8 * 10**9 * 10 // 1000
    assert throughput_bps([(0, 10), (100, 10**6), (1000, 2 * 10**6)]) == 8 * 10**9 * 10**6 // 900
    assert [throughput_bps(few) for few in ([], [(5, 100)], [(5, 100), (5, 200)])] == [0, 0, 0]


async def test_samples_are_few_however_small_the_pieces() -> None:
    """Somebody who sends byte by byte does not fill the memory; the last sample is the whole."""
    reader = asyncio.StreamReader()
    taking = asyncio.ensure_future(receive(reader, 100_000, 60_000, ticking(1)))
    for _ in range(1000):
        reader.feed_data(b"x" * 100)
        await asyncio.wait({taking}, timeout=0)
    samples = await taking
    assert samples[-1][1] == 100_000
    assert len(samples) <= 2 + 100_000 // 16_384
    assert await receive(reader, 100, 1, ticking(1)) == []
    reader.feed_data(b"more")
    reader.feed_eof()
    assert await receive(reader, 100, 60_000, ticking(1)) == [(0, 4)]


# -- what it may cost


@pytest.mark.parametrize("kind", [UPLOAD, DOWNLOAD])
async def test_the_limits_of_the_server_hold(kind: bytes) -> None:
    """Whoever asks for more data or time is given what the server allows, and not a byte more."""
    async with serving() as (server, port):
        async with raw(port) as (reader, writer):
            assert await greet((reader, writer)) == WELCOME
            writer.write(frame(kind, 1 << 50, 10**9))
            assert await read_frame(reader, GO) == (GO, SMALL.bytes, SMALL.duration_ms)
            if kind == DOWNLOAD:
                await reader.readexactly(SMALL.bytes)
            else:
                writer.write(bytes(SMALL.bytes))
                assert (await read_frame(reader, RESULT))[1] > 0
            writer.write_eof()
            assert await reader.read() == b""
        assert await settled(server) == ServerCounts(served=1)


async def test_the_limits_of_the_prober_hold() -> None:
    """A server that allows more than was asked for is not believed, and round trips are counted here too."""
    asked = []

    async def greedy(streams: Streams) -> None:
        asked.append(await read_frame(streams[0], UPLOAD))
        streams[1].write(frame(GO, SMALL.bytes + 1, 1))
        await streams[0].read()

    async with impostor(greedy) as port:
        with pytest.raises(UnavailableError, match="asks for more data than was offered"):
            await Prober(SECRET, limits=SMALL).bandwidth(HOST, port)
    assert asked == [(UPLOAD, SMALL.bytes, SMALL.duration_ms)]
    for count in (0, 101):
        with pytest.raises(OptionError, match="count"):
            await Prober(SECRET).round_trips(HOST, 1, count)


async def test_round_trips_of_one_connection_are_limited() -> None:
    """One more than the limit, and the connection is broken off."""
    async with serving(limits=ProbeLimits(round_trips=2)) as (server, port):
        async with raw(port) as (reader, writer):
            await greet((reader, writer))
            for number in range(3):
                writer.write(frame(ECHO, number))
                assert await read_frame(reader, ECHO) == (ECHO, number, 0)
            assert await reader.read() == b""
        assert await settled(server) == ServerCounts(broken=1)


async def test_one_measurement_at_a_time() -> None:
    """While the server's turn is taken, others are told so at once; round trips go on, and afterwards all is well."""
    turn = asyncio.Lock()
    async with serving(turn=turn) as (server, port):
        prober = Prober(SECRET, limits=SMALL)
        async with turn:
            with pytest.raises(UnavailableError, match="another site is measuring the bandwidth"):
                await prober.bandwidth(HOST, port)
            assert await is_healthy(port)
        assert await prober.bandwidth(HOST, port) > 0
        assert (await settled(server)).broken == 0


async def test_a_site_does_not_measure_while_it_is_measured() -> None:
    """A prober waits for the turn that it has in common with its own server."""
    turn = asyncio.Lock()
    async with serving() as (_, port):
        async with turn:
            measuring = asyncio.ensure_future(Prober(SECRET, limits=SMALL, turn=turn).bandwidth(HOST, port))
            assert await is_healthy(port)
            assert not measuring.done()
        assert await measuring > 0
        assert not turn.locked()


# -- strangers


async def test_a_stranger_is_refused() -> None:
    """Another secret ends the connection, with the reason, before anything is measured."""
    async with serving() as (server, port):
        with pytest.raises(UnavailableError, match=r"has another secret"):
            await Prober(b"quite another secret").round_trips(HOST, port)
        assert await settled(server) == ServerCounts(refused=1)
        async with raw(port) as streams:
            assert await greet(streams, b"x" * 16) == REFUSED
            assert await streams[0].read() == b""
        assert await is_healthy(port)


async def test_what_was_said_once_is_of_no_use_again() -> None:
    """A proof that was overheard does not open another connection, for the server's nonce is another."""
    heard = b""
    async with serving() as (server, port):
        for expected in (WELCOME, REFUSED):
            async with raw(port) as (reader, writer):
                nonce = (await reader.readexactly(len(MAGIC) + NONCE_BYTES))[len(MAGIC) :]
                heard = heard or MAGIC + nonce + proof(SECRET, b"client", nonce, nonce)
                writer.write(heard)
                assert (await reader.readexactly(1 + MAC_BYTES))[:1] == expected
        assert (await settled(server)).refused == 1


async def test_a_server_that_does_not_know_the_secret_is_found_out() -> None:
    """Neither a made-up proof nor our own, sent back, passes."""

    async def made_up(streams: Streams) -> None:
        streams[1].write(MAGIC + bytes(NONCE_BYTES))
        await streams[0].readexactly(len(MAGIC) + NONCE_BYTES + MAC_BYTES)
        streams[1].write(WELCOME + bytes(MAC_BYTES))
        await streams[0].read()

    async def mirror(streams: Streams) -> None:
        streams[1].write(MAGIC + bytes(NONCE_BYTES))
        hello = await streams[0].readexactly(len(MAGIC) + NONCE_BYTES + MAC_BYTES)
        streams[1].write(WELCOME + hello[-MAC_BYTES:])
        await streams[0].read()

    for serve in (made_up, mirror):
        async with listening(serve) as port:
            with pytest.raises(UnavailableError, match="does not know the secret"):
                await Prober(SECRET).round_trips(HOST, port)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(10_000),
        MAGIC,
        b"\xff" * (len(MAGIC) + NONCE_BYTES + MAC_BYTES),
        MAGIC * 100_000,
    ],
)
async def test_garbage_leaves_the_server_healthy(said: bytes) -> None:
    """Whatever somebody sends, the connection ends, it is counted, and the next probe is answered."""
    async with serving() as (server, port):
        async with raw(port) as (reader, writer):
            writer.write(said)
            with contextlib.suppress(ConnectionError):
                writer.write_eof()
                await reader.read()
        found = await settled(server)
        assert found.broken + found.refused == 1
        assert await is_healthy(port)


@pytest.mark.parametrize("said", [frame(BUSY), frame(b"\0"), frame(ECHO)[:5], frame(UPLOAD), frame(DOWNLOAD, 5, 0)])
async def test_a_site_that_says_what_it_must_not(said: bytes) -> None:
    """Knowing the secret is no licence: an unknown request, half of one, or one for nothing ends the connection."""
    async with serving() as (server, port):
        async with raw(port) as (reader, writer):
            assert await greet((reader, writer)) == WELCOME
            writer.write(said)
            writer.write_eof()
            assert await reader.read() == b""
        assert await settled(server) == ServerCounts(broken=1)
        assert await is_healthy(port)


# -- the slow and the many


@pytest.mark.parametrize("doing", ["nothing", "greeting", "asking", "not reading", "not sending", "sending on"])
async def test_the_slow_are_not_waited_for(doing: str) -> None:
    """Whoever stops at any point, or does not stop, is let go of when its time is over."""
    async with serving(limits=HASTY) as (server, port), raw(port) as (reader, writer):
        if doing == "nothing":
            await reader.readexactly(len(MAGIC) + NONCE_BYTES)
        else:
            await greet((reader, writer))
        if doing == "asking":
            writer.write(frame(ECHO)[:5])
        elif doing == "not reading":
            writer.write(frame(DOWNLOAD, HASTY.bytes, HASTY.duration_ms))
        elif doing in ("not sending", "sending on"):
            writer.write(frame(UPLOAD, HASTY.bytes, HASTY.duration_ms))
            await read_frame(reader, GO)
        if doing == "sending on":
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(bytes(65_536))
                    await writer.drain()
        assert await settled(server) == ServerCounts(broken=1)


async def test_strangers_make_room_for_sites() -> None:
    """When all connections are taken, the oldest that has not shown the secret goes."""
    async with serving(limits=ProbeLimits(connections=2, timeout_ms=20_000)) as (server, port):
        async with raw(port) as site, raw(port) as stranger:
            assert await greet(site) == WELCOME
            await stranger[0].readexactly(len(MAGIC) + NONCE_BYTES)
            assert await is_healthy(port)
            assert await stranger[0].read() == b""
            site[1].write(frame(ECHO, 5))
            assert await read_frame(site[0], ECHO) == (ECHO, 5, 0)
        assert await settled(server) == ServerCounts(served=2, turned_away=1)


async def test_too_many_sites_are_turned_away() -> None:
    """Those that have shown the secret stay; one more is told to come later."""
    async with serving(limits=ProbeLimits(connections=1, timeout_ms=20_000)) as (server, port):
        async with raw(port) as site:
            assert await greet(site) == WELCOME
            with pytest.raises(UnavailableError, match="has too many connections; try later"):
                await Prober(SECRET).round_trips(HOST, port)
        await settled(server)
        assert await is_healthy(port)


# -- servers that are none


@contextlib.asynccontextmanager
async def listening(serve: Callable[[Streams], Awaitable[None]]) -> AsyncIterator[int]:
    """Yield the port of a server that does what it likes."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve((reader, writer))
        writer.transport.abort()

    server = await asyncio.start_server(connected, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        mine = asyncio.current_task()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not mine))


@contextlib.asynccontextmanager
async def impostor(serve: Callable[[Streams], Awaitable[None]]) -> AsyncIterator[int]:
    """Yield the port of a server that knows the secret, and then does what it likes."""

    async def greeting(streams: Streams) -> None:
        reader, writer = streams
        writer.write(MAGIC + bytes(NONCE_BYTES))
        hello = await reader.readexactly(len(MAGIC) + NONCE_BYTES + MAC_BYTES)
        writer.write(WELCOME + proof(SECRET, b"server", bytes(NONCE_BYTES), hello[len(MAGIC) : -MAC_BYTES]))
        await serve(streams)

    async with listening(greeting) as port:
        yield port


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"", "closed the connection during the probe"),
        (b"SSH-2.0-OpenSSH_9.9 and more", "is it a probe server of gridweave"),
        (bytes(100_000), "is it a probe server of gridweave"),
        (MAGIC, "closed the connection during the probe"),
    ],
)
async def test_other_services_are_told_apart(said: bytes, told: str) -> None:
    """A port of something else is an error in one line."""

    async def serve(streams: Streams) -> None:
        streams[1].write(said)
        streams[1].write_eof()
        await streams[0].read()

    async with listening(serve) as port:
        with pytest.raises(UnavailableError, match=told) as error:
            await Prober(SECRET).round_trips(HOST, port)
        assert str(port) in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (frame(ECHO, 7), "answered another question"),
        (frame(RESULT, 7), "sent b'R'"),
        (frame(GO, 70_000, 10) + frame(RESULT, 0), "too little data arrived"),
        (frame(GO, 0, 10), "asks for more data than was offered"),
        (frame(GO, 70_000, 10) + frame(GO), "sent b'G'"),
        (frame(GO, 70_000, 10)[:-1], "closed the connection"),
    ],
)
async def test_a_site_that_answers_wrongly(said: bytes, told: str) -> None:
    """An answer that is none is an error in one line, and sending stops."""

    async def serve(streams: Streams) -> None:
        await streams[0].readexactly(len(frame(ECHO)))
        streams[1].write(said)
        streams[1].write_eof()
        await streams[0].read()

    prober = Prober(SECRET, limits=SMALL)
    async with impostor(serve) as port:
        with pytest.raises(UnavailableError, match=told):
            await (prober.round_trips(HOST, port) if said[:1] in ECHO + RESULT else prober.bandwidth(HOST, port))


@pytest.mark.parametrize("back", [False, True])
async def test_a_silent_site_is_given_up(back: bool) -> None:
    """Neither a greeting nor an answer is waited for longer than the limit, and no data is no bandwidth."""

    async def silent(streams: Streams) -> None:
        await streams[0].read()

    async def promising(streams: Streams) -> None:
        streams[1].write(frame(GO, 70_000, 10))
        await streams[0].read()

    prober = Prober(SECRET, limits=HASTY)
    async with listening(silent) as port:
        with pytest.raises(UnavailableError, match="does not answer within 2 s"):
            await prober.bandwidth(HOST, port, back=back)
    async with impostor(silent) as port:
        with pytest.raises(UnavailableError, match="does not answer within 2 s"):
            await prober.bandwidth(HOST, port, back=back)
    async with impostor(promising) as port:
        with pytest.raises(UnavailableError, match="too little data" if back else "does not answer"):
            await prober.bandwidth(HOST, port, back=back)


async def test_nobody_listens() -> None:
    """A port where nobody is, or that is none, is an error in one line."""
    async with serving() as (_, port):
        pass
    for place in (port, 70_000):
        with pytest.raises(UnavailableError, match=f"{place}: cannot be reached"):
            await Prober(SECRET).round_trips(HOST, place)


# -- beginning and end


async def test_a_server_begins_and_ends() -> None:
    """It listens once, on a port that is free; closing it twice is once, and ends what goes on."""
    server = ProbeServer(SECRET)
    await server.close()
    port = await server.start(HOST)
    with pytest.raises(InputError, match="already listening"):
        await server.start(HOST)
    other = ProbeServer(SECRET)
    with pytest.raises(UnavailableError, match=f"{HOST}:{port}"):
        await other.start(HOST, port)
    with pytest.raises(UnavailableError, match="70000"):
        await other.start(HOST, 70_000)
    async with raw(port) as streams:
        assert await greet(streams) == WELCOME
        await server.close()
        assert await streams[0].read() == b""
    await server.close()
    assert await server.start(HOST, port) == port
    assert await is_healthy(port)
    await server.close()


async def test_what_makes_no_sense_is_refused() -> None:
    """A short secret protects nothing, and limits are numbers within reason."""
    for make in (Prober, ProbeServer):
        with pytest.raises(OptionError, match="secret: has 5 bytes"):
            make(b"short")
    for name in ("round_trips", "bytes", "duration_ms", "timeout_ms", "connections"):
        for value in (0, 1 << 50):
            with pytest.raises(OptionError, match=name):
                ProbeLimits(**{name: value})
    reader = asyncio.StreamReader()
    reader.feed_data(frame(GO))
    with pytest.raises(ProtocolError):
        await read_frame(reader, BUSY)

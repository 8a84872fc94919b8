"""Measure the paths to other sites periodically: round-trip times, and the bandwidth in each direction.

This module also defines the protocol between the two ends of a probe (docs/netmodel.md, "Probes").
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec

from gridweave.errors import GridweaveError, OptionError, UnavailableError
from gridweave.site.messages import Probed
from gridweave.site.service.clock import Clock
from gridweave.site.times import span_text

logger = logging.getLogger("gridweave.live")

MAGIC, FULL = b"GWP1", b"GWPF"
NONCE_BYTES, MAC_BYTES = 16, 32
LEAST_SECRET_BYTES = 16

ECHO, UPLOAD, DOWNLOAD = b"T", b"U", b"D"
GO, BUSY, RESULT = b"G", b"B", b"R"
WELCOME, REFUSED = b"Y", b"N"
_FRAME = struct.Struct("!cQI")

BLOCK_BYTES = 262_144
_SAMPLE_BYTES = 16_384  # at most one sample per this many bytes, so that a peer cannot fill our memory

ClockNs = Callable[[], int]
"""A monotonic clock in nanoseconds."""


class ProbeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a probe; where the two ends differ, the stricter limit applies."""

    round_trips: int = 100  # per connection
    bytes: int = 16 << 20  # per bandwidth measurement
    duration_ms: int = 2000  # time limit of a bandwidth measurement
    timeout_ms: int = 5000  # time limit of each answer
    connections: int = 16  # simultaneous connections to a server

    def __post_init__(self) -> None:
        for name, least, most in (
            ("round_trips", 1, 10_000),
            ("bytes", 4 * _SAMPLE_BYTES, 1 << 40),
            ("duration_ms", 1, 600_000),
            ("timeout_ms", 1, 600_000),
            ("connections", 1, 10_000),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise OptionError(name, f"is {value:,}; expected {least:,} to {most:,}")


class ProtocolError(GridweaveError):
    """The other end has violated the protocol."""


def check_secret(secret: bytes) -> bytes:
    """Return `secret`; raise OptionError if it is too short."""
    if len(secret) < LEAST_SECRET_BYTES:
        expected = f"at least {LEAST_SECRET_BYTES}, the same at all sites"
        raise OptionError("secret", f"has {len(secret)} bytes; expected {expected}")
    return secret


def proof(secret: bytes, who: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Return a proof, valid for one connection, that an end knows the secret; the secret itself is never sent."""
    return hmac.digest(secret, MAGIC + who + server_nonce + client_nonce, "sha256")


def frame(kind: bytes, number: int = 0, duration_ms: int = 0) -> bytes:
    """Encode a request or an answer."""
    return _FRAME.pack(kind, number, duration_ms)


async def read_frame(reader: asyncio.StreamReader, *kinds: bytes) -> tuple[bytes, int, int]:
    """Read a request or answer of one of these kinds; return its kind, number and duration [ms]."""
    kind, number, duration_ms = _FRAME.unpack(await reader.readexactly(_FRAME.size))
    if kind not in kinds:
        raise ProtocolError(f"sent {kind!r}")
    return kind, number, duration_ms


async def send(writer: asyncio.StreamWriter, count: int) -> None:
    """Send ``count`` random bytes, which cannot be compressed on the way."""
    block = os.urandom(BLOCK_BYTES)
    while count > 0:
        writer.write(block[:count])
        count -= BLOCK_BYTES
        await writer.drain()


async def receive(
    reader: asyncio.StreamReader, most_bytes: int, duration_ms: int, clock_ns: ClockNs
) -> list[tuple[int, int]]:
    """Receive data until it ends or a limit is reached; return samples of (time [ns], total bytes)."""
    samples: list[tuple[int, int]] = []
    total = noted = 0
    try:
        async with asyncio.timeout(duration_ms / 1000):
            while total < most_bytes and (block := await reader.read(min(BLOCK_BYTES, most_bytes - total))):
                total += len(block)
                if not samples or total - noted >= _SAMPLE_BYTES:
                    samples.append((clock_ns(), total))
                    noted = total
    except TimeoutError:
        pass
    if total > noted:
        samples.append((clock_ns(), total))
    return samples


def throughput_bps(samples: Sequence[tuple[int, int]]) -> int:
    """Return the rate at which data was received [bits/s]; 0 if all data arrived at once.

    Only the second half of the measurement counts, because a TCP stream starts slowly.

    Examples
    --------
    >>> throughput_bps([(0, 1000), (500_000_000, 2000), (1_000_000_000, 6000)])
    64000
    >>> throughput_bps([(7, 100_000)])
    0
    """
    if len(samples) < 2:
        return 0
    began, end = samples[0][0], samples[-1]
    middle = next(sample for sample in samples if 2 * (sample[0] - began) >= end[0] - began)
    if middle[0] == end[0]:
        middle = samples[-2]
    took_ns, came = end[0] - middle[0], end[1] - middle[1]
    return 8_000_000_000 * came // took_ns if took_ns > 0 else 0


ROUND_TRIPS = 10
"""Default number of round trips of a probe."""


class ProbeEnd:
    """What both ends of a probe need: the secret, the limits, and a clock."""

    def __init__(
        self,
        secret: bytes,
        *,
        limits: ProbeLimits | None = None,
        turn: asyncio.Lock | None = None,
        clock_ns: ClockNs = time.perf_counter_ns,
    ) -> None:
        self._secret = check_secret(secret)
        self._limits = limits if limits is not None else ProbeLimits()
        self._turn = turn if turn is not None else asyncio.Lock()
        self._clock_ns = clock_ns
        self._wait_s = self._limits.timeout_ms / 1000


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""Reader and writer of a connection."""


class Prober(ProbeEnd):
    """Measures the paths to other sites, each of which runs a `gridweave.site.service.probe_server.ProbeServer`.

    All sites have the same secret. The lock ``turn`` is held during a bandwidth measurement and is shared with this
    site's server.

    Every method raises UnavailableError with a one-line reason if there is no probe server, or if the server does not
    know the secret, is busy or too slow, or disconnects.

    Examples
    --------
    >>> from gridweave.site.service.probe_server import ProbeServer
    >>> async def example():
    ...     secret = b"the same everywhere"
    ...     async with ProbeServer(secret) as server:
    ...         port = await server.start()
    ...         prober = Prober(secret)
    ...         samples_ms = await prober.round_trips("127.0.0.1", port)
    ...         there_bps = await prober.bandwidth("127.0.0.1", port)
    ...         back_bps = await prober.bandwidth("127.0.0.1", port, back=True)
    ...         return len(samples_ms), there_bps > 0, back_bps > 0
    >>> asyncio.run(example())
    (10, True, True)
    """

    async def measure(self, host: str, port: int, *, with_bandwidth: bool) -> tuple[tuple[float, ...], float, float]:
        """Return the round-trip times [ms] and the rate in each direction [bits/s]; the rates are 0 unless measured."""
        round_trips_ms = await self.round_trips(host, port)
        if not with_bandwidth:
            return round_trips_ms, 0.0, 0.0
        return round_trips_ms, await self.bandwidth(host, port), await self.bandwidth(host, port, back=True)

    async def round_trips(self, host: str, port: int, count: int = ROUND_TRIPS) -> tuple[float, ...]:
        """Measure ``count`` round trips to a site, one after another; return their times [ms]."""
        if not 1 <= count <= self._limits.round_trips:
            raise OptionError("count", f"is {count}; expected 1 to {self._limits.round_trips} round trips")
        samples_ms = []
        async with self._connection(host, port) as (reader, writer):
            for number in range(count):
                began_ns = self._clock_ns()
                writer.write(frame(ECHO, number))
                async with asyncio.timeout(self._wait_s):
                    _, answered, _ = await read_frame(reader, ECHO)
                samples_ms.append((self._clock_ns() - began_ns) / 1e6)
                if answered != number:
                    raise ProtocolError("answered another question")
        return tuple(samples_ms)

    async def bandwidth(self, host: str, port: int, *, back: bool = False) -> int:
        """Return one TCP stream's bandwidth after slow start [bits/s], to a site or, if ``back``, from the site."""
        async with self._turn, self._connection(host, port) as (reader, writer):
            limits = self._limits
            writer.write(frame(DOWNLOAD if back else UPLOAD, limits.bytes, limits.duration_ms))
            async with asyncio.timeout(self._wait_s):
                kind, count, longest_ms = await read_frame(reader, GO, BUSY)
            if kind == BUSY:
                raise UnavailableError(f"{host}:{port}: another site is measuring the bandwidth there; try later")
            if not 0 < count <= limits.bytes or not 0 < longest_ms <= limits.duration_ms:
                raise ProtocolError("asks for more data than was offered")
            if back:
                rate_bps = throughput_bps(await receive(reader, count, longest_ms, self._clock_ns))
            else:
                rate_bps = await self._sent((reader, writer), count, longest_ms)
        if not rate_bps:
            raise UnavailableError(f"{host}:{port}: too little data arrived to measure the bandwidth")
        return rate_bps

    async def _sent(self, streams: Streams, count: int, longest_ms: int) -> int:
        """Send data until the other end reports the rate at which the data arrived; return this rate [bits/s]."""
        reader, writer = streams
        sending = asyncio.ensure_future(send(writer, count))
        try:
            async with asyncio.timeout(longest_ms / 1000 + self._wait_s):
                _, rate_bps, _ = await read_frame(reader, RESULT)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        return rate_bps

    @contextlib.asynccontextmanager
    async def _connection(self, host: str, port: int) -> AsyncIterator[Streams]:
        """Yield a connection to a server that knows the secret; convert errors to one-line UnavailableErrors."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(self._wait_s):
                reader, writer = await self._open(host, port)
                await self._greet(reader, writer)
            yield reader, writer
        except TimeoutError:
            raise UnavailableError(
                f"{host}:{port}: does not answer within {span_text(self._limits.timeout_ms)}"
            ) from None
        except asyncio.IncompleteReadError:
            raise UnavailableError(f"{host}:{port}: closed the connection during the probe") from None
        except ProtocolError as error:
            raise UnavailableError(f"{host}:{port}: {error}; is it a probe server of gridweave?") from None
        except (OSError, OverflowError) as error:
            raise UnavailableError(f"{host}:{port}: cannot be reached: {error}") from error
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _open(self, host: str, port: int) -> Streams:
        """Open a connection; raise OSError if that fails."""
        return await asyncio.open_connection(host, port)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Prove that this end knows the secret, and check the other end's proof."""
        hello = await reader.readexactly(len(MAGIC) + NONCE_BYTES)
        if hello.startswith(FULL):
            raise UnavailableError(_at(writer, "has too many connections; try later"))
        if not hello.startswith(MAGIC):
            raise ProtocolError(f"said {hello!r:.60}")
        theirs, nonce = hello[len(MAGIC) :], os.urandom(NONCE_BYTES)
        writer.write(MAGIC + nonce + proof(self._secret, b"client", theirs, nonce))
        answer = await reader.readexactly(1 + MAC_BYTES)
        if answer.startswith(REFUSED):
            raise UnavailableError(_at(writer, "has another secret; give all sites the same secret"))
        expected = WELCOME + proof(self._secret, b"server", theirs, nonce)
        if not hmac.compare_digest(answer, expected):
            raise UnavailableError(_at(writer, "does not know the secret, so it is not a site of this grid"))


def _at(writer: asyncio.StreamWriter, problem: str) -> str:
    host, port = writer.get_extra_info("peername")[:2]
    return f"{host}:{port}: {problem}"


Address = tuple[str, int]


class ProbePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How often to measure the paths between sites."""

    secret: bytes = b""  # shared by all sites of a Ray cluster
    every_s: float = 60.0  # interval between round-trip measurements to each site
    # Interval between bandwidth measurements, which cost more; rounded to a multiple of `every_s`.
    bandwidth_every_s: float = 3_600.0

    def __post_init__(self) -> None:
        for name in ("every_s", "bandwidth_every_s"):
            if not getattr(self, name) > 0:
                raise OptionError(name, f"is {getattr(self, name)}; expected seconds above 0")


Measure = Callable[[str, bool], Awaitable[Probed]]
"""Measures the path to another site, with or without bandwidth; raises UnavailableError if that fails."""


class ProbeRounds:
    """Measures the paths from a site to its peers, one after another, and reports the results.

    A round trip counts for both directions, so only one of two sites needs to measure it.
    """

    def __init__(
        self,
        site: str,
        peers: Sequence[str],
        plan: ProbePlan,
        measure: Measure,
        report: Callable[[Probed], Awaitable[None]],
    ) -> None:
        self._site, self._peers, self._plan = site, tuple(peers), plan
        self._measure, self._report = measure, report
        # Number of rounds until the next bandwidth measurement, by peer.
        self._rounds_left: dict[str, int] = {}
        self._problems: dict[str, str] = {}

    async def run(self) -> None:
        """Measure periodically, forever."""
        while True:
            await self.round()
            await asyncio.sleep(self._plan.every_s)

    async def round(self) -> int:
        """Measure the path to each peer once; return the number of successful measurements."""
        measured = 0
        for peer in self._peers:
            with_bandwidth = self._rounds_left.get(peer, 0) <= 0
            try:
                await self._report(await self._measure(peer, with_bandwidth))
                measured += 1
                often = max(1, round(self._plan.bandwidth_every_s / self._plan.every_s))
                self._rounds_left[peer] = often if with_bandwidth else self._rounds_left[peer]
                self._rounds_left[peer] -= 1
                self._problems.pop(peer, None)
            except UnavailableError as error:
                # Earlier measurements stay valid until they are too old. Warn only when the reason changes.
                level = logging.INFO if self._problems.get(peer) == str(error) else logging.WARNING
                self._problems[peer] = str(error)
                logger.log(level, "the path from %s to %s was not measured: %s", self._site, peer, error)
        return measured


class Probing(ProbeRounds):
    """Measures the paths to other sites in the same Ray cluster, and reports the results."""

    def __init__(
        self,
        site: str,
        peers: Sequence[str],
        plan: ProbePlan,
        prober: Prober,
        *,
        address_of: Callable[[str], Awaitable[Address]],
        report: Callable[[Probed], Awaitable[None]],
        clock: Clock,
    ) -> None:
        super().__init__(site, peers, plan, self._probe, report)
        self._prober, self._address_of, self._clock = prober, address_of, clock

    async def _probe(self, peer: str, with_bandwidth: bool) -> Probed:
        measured = await self._prober.measure(*await self._address_of(peer), with_bandwidth=with_bandwidth)
        return Probed(self._site, peer, self._clock.now_ms(), *measured)

"""Measuring the way to another site: round trips, and bandwidth in each direction (docs/netmodel.md, "Probes")."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import time
from collections.abc import AsyncIterator

from gridweave.errors import OptionError, UnavailableError
from gridweave.site.live.probe_protocol import (
    BUSY,
    DOWNLOAD,
    ECHO,
    FULL,
    GO,
    MAC_BYTES,
    MAGIC,
    NONCE_BYTES,
    REFUSED,
    RESULT,
    UPLOAD,
    WELCOME,
    Clock,
    ProbeLimits,
    ProtocolError,
    check_secret,
    frame,
    proof,
    read_frame,
    receive,
    send,
    throughput_bps,
)

ROUND_TRIPS = 10
"""Of one probe, if nothing else is said."""

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Prober:
    """Measures the ways to other sites, each of which has a `gridweave.site.live.probe_server.ProbeServer`.

    Parameters
    ----------
    secret : bytes
        At least 16; the same at all sites.
    limits : ProbeLimits, optional
    turn : asyncio.Lock, optional
        Held while bandwidth is measured; the same as the server's of this site.
    clock_ns : callable
        Nanoseconds.

    Raises
    ------
    OptionError
        If the secret is too short.

    Notes
    -----
    Every method raises UnavailableError, in one line, if there is no probe server, it does not know the secret, is busy
    or too slow, or breaks off.

    Examples
    --------
    >>> from gridweave.site.live.probe_server import ProbeServer
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

    def __init__(
        self,
        secret: bytes,
        *,
        limits: ProbeLimits | None = None,
        turn: asyncio.Lock | None = None,
        clock_ns: Clock = time.perf_counter_ns,
    ) -> None:
        self._secret = check_secret(secret)
        self._limits = limits if limits is not None else ProbeLimits()
        self._turn = turn if turn is not None else asyncio.Lock()
        self._clock_ns = clock_ns
        self._wait_s = self._limits.timeout_ms / 1000

    async def round_trips(self, host: str, port: int, count: int = ROUND_TRIPS) -> tuple[float, ...]:
        """Return how long messages to a site and their answers take, one after the other.

        Parameters
        ----------
        host : str
        port : int
        count : int
            How many; the limits of both ends hold.

        Returns
        -------
        tuple of float
            Milliseconds.

        Raises
        ------
        OptionError
            If the count is not within the limits.
        UnavailableError
        """
        if not 1 <= count <= self._limits.round_trips:
            raise OptionError("count", f"is {count}; round trips, from 1 to {self._limits.round_trips}")
        samples_ms = []
        async with self._connection(host, port) as (reader, writer):
            for number in range(count):
                began_ns = self._clock_ns()
                writer.write(frame(ECHO, number))
                async with asyncio.timeout(self._wait_s):
                    _, answered, _ = await read_frame(reader, ECHO)
                samples_ms.append((self._clock_ns() - began_ns) / 1e6)
                if answered != number:
                    raise ProtocolError("answered to what was not asked")
        return tuple(samples_ms)

    async def bandwidth(self, host: str, port: int, *, back: bool = False) -> int:
        """Return at which rate data comes through to a site, once it is under way.

        Parameters
        ----------
        host : str
        port : int
        back : bool
            Whether data comes from there to here.

        Returns
        -------
        int
            Bits per second, of one TCP stream.

        Raises
        ------
        UnavailableError
            Also if so little came that the rate cannot be told.
        """
        async with self._turn, self._connection(host, port) as (reader, writer):
            limits = self._limits
            writer.write(frame(DOWNLOAD if back else UPLOAD, limits.bytes, limits.duration_ms))
            async with asyncio.timeout(self._wait_s):
                kind, count, longest_ms = await read_frame(reader, GO, BUSY)
            if kind == BUSY:
                raise UnavailableError(f"{host}:{port}: bandwidth is being measured there by another site; try later")
            if not 0 < count <= limits.bytes or not 0 < longest_ms <= limits.duration_ms:
                raise ProtocolError("wants more data than was offered")
            if back:
                rate_bps = throughput_bps(await receive(reader, count, longest_ms, self._clock_ns))
            else:
                rate_bps = await self._sent((reader, writer), count, longest_ms)
        if not rate_bps:
            raise UnavailableError(f"{host}:{port}: too little data came through to tell the bandwidth")
        return rate_bps

    async def _sent(self, streams: _Streams, count: int, longest_ms: int) -> int:
        """Send data until the other end says at which rate it has come."""
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
    async def _connection(self, host: str, port: int) -> AsyncIterator[_Streams]:
        """Yield the streams to a server that knows the secret; say in one line what goes wrong with them."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(self._wait_s):
                reader, writer = await asyncio.open_connection(host, port)
                await self._greet(reader, writer)
            yield reader, writer
        except TimeoutError:
            raise UnavailableError(f"{host}:{port}: does not answer within {self._limits.timeout_ms:,} ms") from None
        except asyncio.IncompleteReadError:
            raise UnavailableError(f"{host}:{port}: broke off the probe") from None
        except ProtocolError as error:
            raise UnavailableError(f"{host}:{port}: {error}; is it a probe server of gridweave?") from None
        except (OSError, OverflowError) as error:
            raise UnavailableError(f"{host}:{port}: cannot be reached: {error}") from error
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Show that we know the secret, and see that the other end does."""
        hello = await reader.readexactly(len(MAGIC) + NONCE_BYTES)
        if hello.startswith(FULL):
            raise UnavailableError(_at(writer, "has too many connections; try later"))
        if not hello.startswith(MAGIC):
            raise ProtocolError(f"said {hello!r:.60}")
        theirs, nonce = hello[len(MAGIC) :], os.urandom(NONCE_BYTES)
        writer.write(MAGIC + nonce + proof(self._secret, b"client", theirs, nonce))
        answer = await reader.readexactly(1 + MAC_BYTES)
        if answer.startswith(REFUSED):
            raise UnavailableError(_at(writer, "has another secret; give all sites the same"))
        expected = WELCOME + proof(self._secret, b"server", theirs, nonce)
        if not hmac.compare_digest(answer, expected):
            raise UnavailableError(_at(writer, "does not know the secret; it is no site of ours"))


def _at(writer: asyncio.StreamWriter, problem: str) -> str:
    host, port = writer.get_extra_info("peername")[:2]
    return f"{host}:{port}: {problem}"

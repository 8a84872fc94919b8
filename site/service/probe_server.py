"""The answering end of a probe (docs/netmodel.md, "Probes")."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
from types import TracebackType
from typing import Any, Self

import msgspec

from gridweave.errors import GridweaveError, InputError, UnavailableError
from gridweave.site.service.prober import (
    BLOCK_BYTES,
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
    ProbeEnd,
    ProtocolError,
    frame,
    proof,
    read_frame,
    receive,
    send,
    throughput_bps,
)


class ServerCounts(msgspec.Struct):
    """Number of connections to a server, by outcome."""

    served: int = 0  # completed
    refused: int = 0  # the peer did not know the secret
    turned_away: int = 0  # too many connections
    broken: int = 0  # interrupted, too slow, or violating the protocol


class ProbeServer(ProbeEnd):
    """Answers probes from other sites that know the same secret.

    The lock ``turn`` is held during a bandwidth measurement. The site's `Prober` uses the same lock, so that the site's
    own measurements and those by other sites do not overlap.
    """

    def __init__(self, secret: bytes, **options: Any) -> None:
        super().__init__(secret, **options)
        self.counts = ServerCounts()
        self._longest_s = 10 * self._wait_s + self._limits.duration_ms / 1000
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # The open connections, oldest first, each with whether the peer has proved that it knows the secret.
        self._known: dict[asyncio.Task[None], bool] = {}

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen on `host`, which must be reachable from other sites; return the port (0: the system chooses)."""
        if self._server is not None:
            raise InputError("this probe server is already listening")
        try:
            self._server = await asyncio.start_server(self._connected, host, port)
        except (OSError, OverflowError) as error:
            raise UnavailableError(f"probes cannot be answered at {host}:{port}: {error}") from error
        address: tuple[str, int] = self._server.sockets[0].getsockname()
        return address[1]

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            writer.transport.abort()
            return
        await self.answer(reader, writer)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection and close it, whatever the peer sends."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._known) >= self._limits.connections and not self._end_oldest():
                self.counts.turned_away += 1
                writer.write(FULL + bytes(NONCE_BYTES))
            else:
                self._known[task] = False
                async with asyncio.timeout(self._longest_s):
                    await self._serve(reader, writer, task)
                self.counts.served += 1
            async with asyncio.timeout(self._wait_s):
                writer.close()
                await writer.wait_closed()
        except _StrangerError:
            self.counts.refused += 1
        except (OSError, asyncio.IncompleteReadError, ProtocolError):  # a TimeoutError is an OSError
            self.counts.broken += 1
        except asyncio.CancelledError:
            pass  # cancelled by `close` or `_end_oldest`; nothing else waits for this task
        finally:
            self._tasks.discard(task)
            self._known.pop(task, None)
            writer.transport.abort()

    def _end_oldest(self) -> bool:
        """Close the oldest connection whose peer has not proved that it knows the secret; return False without one."""
        for task, is_known in self._known.items():
            if not is_known:
                self.counts.turned_away += 1
                task.cancel()
                del self._known[task]
                return True
        return False

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        async with asyncio.timeout(self._wait_s):
            await self._greet(reader, writer)
        self._known[task] = True
        for _ in range(self._limits.round_trips + 1):
            try:
                async with asyncio.timeout(self._wait_s):
                    kind, number, duration_ms = await read_frame(reader, ECHO, UPLOAD, DOWNLOAD)
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise
                return
            if kind != ECHO:
                await self._measure(kind, number, duration_ms, reader, writer)
                return
            await self._say(writer, frame(ECHO, number))
        raise ProtocolError("asks for more round trips than allowed")

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Check the other end's proof that it knows the secret, and send a proof in return."""
        nonce = os.urandom(NONCE_BYTES)
        writer.write(MAGIC + nonce)
        hello = await reader.readexactly(len(MAGIC) + NONCE_BYTES + MAC_BYTES)
        if not hello.startswith(MAGIC):
            raise ProtocolError("is not a prober of this version")
        theirs, shown = hello[len(MAGIC) : -MAC_BYTES], hello[-MAC_BYTES:]
        if not hmac.compare_digest(shown, proof(self._secret, b"client", nonce, theirs)):
            writer.write(REFUSED + bytes(MAC_BYTES))
            writer.close()
            await writer.wait_closed()
            raise _StrangerError
        writer.write(WELCOME + proof(self._secret, b"server", nonce, theirs))
        await writer.drain()

    async def _say(self, writer: asyncio.StreamWriter, text: bytes) -> None:
        writer.write(text)
        async with asyncio.timeout(self._wait_s):
            await writer.drain()

    async def _measure(
        self,
        kind: bytes,
        requested_bytes: int,
        duration_ms: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Measure bandwidth by receiving or sending data; answer `BUSY` if another measurement is in progress."""
        if not requested_bytes or not duration_ms:
            raise ProtocolError("asks for no data")
        if self._turn.locked():
            await self._say(writer, frame(BUSY))
            return
        count = min(requested_bytes, self._limits.bytes)
        longest_ms = min(duration_ms, self._limits.duration_ms)
        async with self._turn:
            await self._say(writer, frame(GO, count, longest_ms))
            if kind == UPLOAD:
                samples = await receive(reader, count, longest_ms, self._clock_ns)
                await self._say(writer, frame(RESULT, throughput_bps(samples)))
            async with asyncio.timeout(longest_ms / 1000 + self._wait_s):
                # The prober closes the connection once it has its result. Read until then, because closing with unread
                # data would lose our answer.
                with contextlib.suppress(ConnectionError):
                    if kind == DOWNLOAD:
                        await send(writer, count)
                    while await reader.read(BLOCK_BYTES):
                        pass


class _StrangerError(GridweaveError):
    """The peer does not know the secret."""

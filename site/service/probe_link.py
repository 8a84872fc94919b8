"""Probes between sites linked over HTTP, through WebSockets to the other site's gateway (docs/link.md, "Probes").

The grid orders a site to measure the path to another site, and gives it a key. The other site derives the same key
from the secret of its own link to the grid, the names of both sites, and the key's expiry time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ssl
from collections.abc import Awaitable, Callable
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec

from gridweave.errors import InputError, UnavailableError
from gridweave.site.service.link import LINK_PATH, LINK_VERSION, SITE_HEADER, VERSION_HEADER
from gridweave.site.service.prober import BLOCK_BYTES, Prober, Streams

if TYPE_CHECKING:
    import aiohttp
    from aiohttp import web

PROBE_PATH = f"{LINK_PATH}/probe"
PROBE_METHOD = "probe"
"""Name of a site's method that executes a `ProbeOrder` and returns a `LinkProbe`."""

PROBE_HEADER = "Gridweave-Probe"
"""Header that the measuring site sends: its name, its key's expiry time (Unix time), and a proof of the key."""

VALID_S = 60
PROBE_S = 30.0
"""Lifetime of a key, and time limit of a probe [s]."""

CLOSE_S = 1.0
"""Time limit for the other end to confirm that the WebSocket is closed [s]."""

_TAG = b"gridweave probe"


class ProbeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order to measure the path to another site."""

    target: str
    url: str  # URL of the target's gateway
    until_s: int  # when the key expires (Unix time)
    key: bytes
    ca: str = ""  # trusted certificates (PEM); empty for the system's
    with_bandwidth: bool = False


class LinkProbe(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a probe; the rates are 0 if they were not measured."""

    round_trips_ms: tuple[float, ...]
    there_bps: float = 0.0
    back_bps: float = 0.0
    problem: str = ""  # why the measurement failed


def probe_key(secret: bytes, origin: str, target: str, until_s: int) -> bytes:
    """Derive the key with which ``origin`` may probe ``target`` from the secret of the target's link."""
    return hmac.digest(secret, msgspec.json.encode(("probe", origin, target, until_s)), "sha256")


def probe_tag(key: bytes) -> str:
    """Return a proof that the sender knows a key; the proof does not reveal the key."""
    return hmac.digest(key, _TAG, "sha256").hex()


class LinkProber(Prober):
    """Executes an order to measure the path to another site, through the other site's gateway."""

    def __init__(self, site: str, order: ProbeOrder, **options: Any) -> None:
        super().__init__(order.key, **options)
        self._site, self._order = site, order
        self._opened: list[WebSocketStreams] = []

    async def run(self) -> LinkProbe:
        """Measure the path; raise UnavailableError with a one-line reason if that fails."""
        place = urlsplit(self._order.url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise InputError(
                f"{self._order.url!r:.200} is not a gateway's address; expected http:// or https://, and a host"
            )
        port = place.port or (443 if place.scheme == "https" else 80)
        try:
            round_trips_ms, there_bps, back_bps = await self.measure(
                place.hostname, port, with_bandwidth=self._order.with_bandwidth
            )
        finally:
            await asyncio.gather(*(streams.wait_closed() for streams in self._opened))
        return LinkProbe(round_trips_ms=round_trips_ms, there_bps=there_bps, back_bps=back_bps)

    async def _open(self, host: str, port: int) -> Streams:
        import aiohttp

        order = self._order
        trusted = ssl.create_default_context(cadata=order.ca) if order.ca else True
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted))
        headers = {
            SITE_HEADER: order.target,
            VERSION_HEADER: LINK_VERSION,
            PROBE_HEADER: f"{self._site} {order.until_s} {probe_tag(order.key)}",
        }
        try:
            socket = await session.ws_connect(
                order.url + PROBE_PATH,
                headers=headers,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
                max_msg_size=2 * BLOCK_BYTES,
            )
        except BaseException as error:
            await session.close()
            if isinstance(error, aiohttp.WSServerHandshakeError):
                raise UnavailableError(f"{order.url}: answers with status {error.status}, not with a probe") from None
            if isinstance(error, aiohttp.ClientError) and not isinstance(error, OSError):
                raise UnavailableError(f"{order.url}: {error}") from None
            raise

        connection = socket.get_extra_info("socket")

        async def cut() -> None:
            # Otherwise aiohttp would wait until the other end has read all data, which may never happen.
            with contextlib.suppress(OSError):
                connection.shutdown(SHUT_RDWR)
            await socket.close()
            await session.close()

        opened = WebSocketStreams(socket, cut)
        self._opened.append(opened)
        return opened.streams


class WebSocketStreams:
    """Presents a WebSocket as a pair of byte streams; ``cut`` drops the connection."""

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse | web.WebSocketResponse, cut: Callable[[], Awaitable[None]]
    ) -> None:
        self._socket, self._cut = socket, cut
        self._reader = asyncio.StreamReader()
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks = [asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._send())]
        self._ending: asyncio.Task[None] | None = None

    @property
    def streams(self) -> Streams:
        """The reader and writer; the writer has only the `asyncio.StreamWriter` methods that probes use."""
        return self._reader, cast("asyncio.StreamWriter", self)

    async def _receive(self) -> None:
        try:
            async for message in self._socket:
                if not isinstance(message.data, bytes):
                    break
                self._reader.feed_data(message.data)
        finally:
            self._reader.feed_eof()

    async def _send(self) -> None:
        while True:
            data = await self._waiting.get()
            try:
                await self._socket.send_bytes(data)
            except (ConnectionError, RuntimeError):
                self._reader.feed_eof()
            finally:
                self._waiting.task_done()

    @property
    def transport(self) -> WebSocketStreams:
        """The object that has `abort`, as for `asyncio.StreamWriter.transport`."""
        return self

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the connection, like `asyncio.StreamWriter.get_extra_info`."""
        return self._socket.get_extra_info(name, default)

    def write(self, data: bytes) -> None:
        """Queue data for sending."""
        self._waiting.put_nowait(bytes(data))

    async def drain(self) -> None:
        """Wait until the connection has accepted all queued data."""
        await self._waiting.join()

    def close(self) -> None:
        """Send the queued data, then close."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end(at_once=False))

    def abort(self) -> None:
        """Close at once and drop the queued data, even if `close` is still waiting for it to be sent."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end(at_once=True))
        else:
            self._ending.cancel()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        if self._ending is not None:
            await asyncio.wait([self._ending])

    async def _end(self, *, at_once: bool) -> None:
        try:
            if not at_once:
                await self._waiting.join()
                await self._stop_tasks()
                with contextlib.suppress(ConnectionError, RuntimeError):
                    await self._socket.close()
        finally:  # also if this task is cancelled, either by `abort` or because its event loop ends
            await self._stop_tasks()
            await self._cut()

    async def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

"""The link between a site and the grid: MessagePack over HTTP, as it is sent (docs/link.md).

Each end posts to the other's gateway, so that each direction may be cut by itself. What is sent may be lost or come
twice: the channels, and whoever asks, see to that. The end that takes it is `gridweave.grid.gateway.link`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import io
import logging
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gridweave.errors import OptionError, UnavailableError
from gridweave.site.desk_messages import LinkStatus
from gridweave.site.service.calls import CALL_S
from gridweave.version import __version__

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger("gridweave.link")

LINK_VERSION = "1"
"""Of the messages: an end refuses one that speaks another."""

VERSION_HEADER, SITE_HEADER = "Gridweave-Link", "Gridweave-Site"
LINK_PATH = "/v1/link"
PACKET_PATH, CALL_PATH, BEAT_PATH = f"{LINK_PATH}/packet", f"{LINK_PATH}/call", f"{LINK_PATH}/beat"
BODY_FORM = "application/msgpack"

LEAST_SECRET = 32
"""Characters of a secret at least."""

_MOST_SECRETS = 1 << 16
_FIRST_WORD_S, _BYTES_PER_S = 5.0, 20_000
"""A packet counts as lost after the first, and what its bytes take on a very slow line."""

_CONNECT_S, _IDLE_S = 3.0, 15.0
BEAT_S = 1.5
"""After so long without an answer the other end is asked whether it is there."""

_BEAT_ANSWER_S = 2.0
"""So long it has to say so: a cut of an idle link is known after 3.5 s."""

_MOST_PACKETS, _MOST_CALLS = 4, 64
"""So many may be under way to one end; what is beyond waits for its turn, or is lost and comes again."""

_TOLD_EVERY_S = 60.0
_LONG_BYTES = 1 << 20


class LinkEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How the other end of a link is reached."""

    site: str  # the site whose link it is; both ends name it
    url: str  # of the other end's gateway, without a slash at its end
    token_file: str  # the file of the secret that is sent
    ca: str | None = None  # a file of certificates that are trusted in place of those of the system
    # Files of the certificate, and its key, that this end shows.
    cert: str | None = None
    key: str | None = None


class Secrets:
    """The secrets in a file, one in each line; the file is read again when it has changed.

    The first line is what is sent; what is expected may be any of them, so that a secret can be changed at one end
    after the other. If the file cannot be used later on, what was read last counts until it can be again.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._seen: tuple[int, ...] | None = None
        self._texts: tuple[bytes, ...] = ()
        self._read()

    def _read(self) -> None:
        try:
            state = os.stat(self.path)
            seen = (state.st_mtime_ns, state.st_ino, state.st_size)
            if seen == self._seen:
                return
            self._texts = self._parsed(self.path.read_bytes() if state.st_size <= _MOST_SECRETS else b"")
            self._seen = seen
        except OSError as error:
            raise OptionError("secret", f"{self.path}: {error.strerror}; name a file that you can read") from None

    def _parsed(self, data: bytes) -> tuple[bytes, ...]:
        lines = [line.strip() for line in data.splitlines()]
        texts = tuple(line for line in lines if line)
        if not texts or any(len(text) < LEAST_SECRET or not _is_sendable(text) for text in texts):
            right = f"{LEAST_SECRET} characters of ASCII or more in a line, without blanks: openssl rand -hex 32"
            raise OptionError("secret", f"{self.path} contains no valid secret; {right}")
        return texts

    def _fresh(self) -> tuple[bytes, ...]:
        try:
            self._read()
        except OptionError as error:
            logger.error("%s; what was read before counts", error)
        return self._texts

    def sent(self) -> str:
        """Return the secret that is sent."""
        return self._fresh()[0].decode("ascii")

    def all(self) -> tuple[bytes, ...]:
        """Return all secrets of the file; the first is the one that is sent."""
        return self._fresh()

    def accepts(self, given: str) -> bool:
        """Return whether what was sent is one of them; it takes as long whichever it is, and if it is none."""
        text = given.encode("utf-8", "replace")
        return any([hmac.compare_digest(text, known) for known in self._fresh()])  # noqa: C419 - all are looked at


def _is_sendable(text: bytes) -> bool:
    return all(0x21 <= letter <= 0x7E for letter in text)


Observe = Callable[[str, float | None], None]
"""Hears of each request: what it was (``packet``, ``call``), and how long the answer took; None: there was none."""


class Link:
    """The way to the other end of a link."""

    def __init__(self, end: LinkEnd) -> None:
        self.end = end
        self.observe: Observe = lambda what, seconds: None
        self._secret = Secrets(end.token_file)
        self._trusted = client_context(end)
        self._session: aiohttp.ClientSession | None = None
        self._packets = 0
        self._calls = asyncio.Semaphore(_MOST_CALLS)
        self._told_s, self._told = 0.0, ""
        self._answered_s = 0.0
        self._seen = LinkStatus(end.site, end.url)
        self._way_back = ""

    def secret(self) -> bytes:
        """Return the secret that is sent, of which keys of probes are made."""
        return self._secret.all()[0]

    @property
    def problem(self) -> str:
        """What was wrong with the last request; empty: nothing."""
        return self._seen.problem

    @property
    def status(self) -> LinkStatus:
        """How the link is, with what the other end said of the way back."""
        return msgspec.structs.replace(self._seen, problem=self._seen.problem or self._way_back)

    async def packet(self, data: bytes) -> str | None:
        """Carry a packet; return why the other end refuses it. UnavailableError: it is not known to have arrived."""
        if self._packets >= _MOST_PACKETS:
            raise UnavailableError(f"{self.end.url}: {_MOST_PACKETS} packets are on their way already")
        self._packets += 1
        try:
            await self._post("packet", PACKET_PATH, data, _FIRST_WORD_S + len(data) / _BYTES_PER_S)
        except PacketRefusedError as error:
            return str(error)
        finally:
            self._packets -= 1
        return None

    async def beat(self) -> None:
        """Ask the other end, while nothing else goes over the link, whether it is there and can reach this end."""
        while True:
            await asyncio.sleep(BEAT_S)
            if time.monotonic() - self._answered_s < BEAT_S and not self._way_back:
                continue
            with contextlib.suppress(UnavailableError):
                why = (await self._post("beat", BEAT_PATH, b"", _BEAT_ANSWER_S)).decode(errors="replace")[:500]
                way_back = why and f"{self.end.url} does not reach this end: {why}"
                if way_back and not self._way_back:
                    logger.warning("link of %s: %s", self.end.site, way_back)
                self._way_back = way_back

    async def ask(self, machine: str, method: str, data: bytes, timeout_s: float = CALL_S) -> bytes:
        """Ask something at the desk of the other end, or of a machine there, as of a `Door`.

        If there is no answer, what was asked for may have been done all the same.
        """
        path = "/".join(part for part in (CALL_PATH, machine, method) if part)
        async with self._calls:
            return await self._post("call", path, data, timeout_s)

    async def _post(self, what: str, path: str, data: bytes, timeout_s: float) -> bytes:
        """Send something and return the answer; keep how that went, and how long it took."""
        import aiohttp

        begin_s = time.monotonic()
        try:
            answer = await self._answer(path, data, timeout_s)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or f"no answer within {timeout_s:.0f} s"
            if type(error) is aiohttp.ClientConnectorError and error.errno and error.errno > 0:
                why = os.strerror(error.errno)  # asyncio puts the address where the words of the error belong
            self._failed(what, why)
            raise UnavailableError(f"{self.end.url} does not answer: {why}") from error
        except UnavailableError as error:
            self._failed(what, str(error))
            raise
        self._succeeded(what, time.monotonic() - begin_s)
        return answer

    async def _answer(self, path: str, data: bytes, timeout_s: float) -> bytes:
        """Send something and return the answer; UnavailableError if it is none of ours."""
        import aiohttp

        headers = {
            "Authorization": f"Bearer {self._secret.sent()}",
            VERSION_HEADER: LINK_VERSION,
            SITE_HEADER: self.end.site,
            "Content-Type": BODY_FORM,
        }
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(_CONNECT_S, timeout_s))
        # What is long is read by a thread: to hand it over at once would hold up the loop.
        body = data if len(data) <= _LONG_BYTES else io.BytesIO(data)
        async with self._open(aiohttp).post(
            self.end.url + path, data=body, headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            answer = await response.read()
            if response.status not in (200, 204):
                raise self._refused(response.status, response.content_type, answer)
        return answer

    def _open(self, aiohttp: Any) -> aiohttp.ClientSession:
        if self._session is None:
            # After a cut nobody knows which connections still lead anywhere: those that were idle are given up.
            connector = aiohttp.TCPConnector(limit=0, ssl=self._trusted, keepalive_timeout=_IDLE_S)
            agent = {"User-Agent": f"gridweave/{__version__}", "Accept": "application/problem+msgpack, */*"}
            self._session = aiohttp.ClientSession(
                connector=connector, headers=agent, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    def _refused(self, status: int, form: str, data: bytes) -> UnavailableError:
        """Return what an answer means that is none."""
        detail = f"it answers with {status}"
        if form == "application/problem+msgpack":
            with contextlib.suppress(msgspec.MsgspecError):
                detail = msgspec.msgpack.decode(data, type=_Problem).detail
        kind = PacketRefusedError if status == _BAD_REQUEST else UnavailableError
        return kind(f"{self.end.url}: {detail}")

    def _succeeded(self, what: str, seconds: float) -> None:
        self.observe(what, seconds)
        status = self._seen
        if status.problem:
            logger.warning("%s answers again", self.end.url)
        self._told, self._answered_s = "", time.monotonic()
        self._seen = msgspec.structs.replace(
            status, answered=status.answered + 1, answered_ms=time.time_ns() // 1_000_000, seconds=seconds, problem=""
        )

    def _failed(self, what: str, why: str) -> None:
        """Count a request without an answer; each reason is told once, and then every minute."""
        self.observe(what, None)
        self._seen = msgspec.structs.replace(self._seen, failed=self._seen.failed + 1, problem=why)
        now_s = time.monotonic()
        if why != self._told or now_s - self._told_s > _TOLD_EVERY_S:
            logger.warning("link of %s: %s", self.end.site, why if self.end.url in why else f"{self.end.url}: {why}")
            self._told, self._told_s = why, now_s

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


_BAD_REQUEST = 400


class PacketRefusedError(UnavailableError):
    """The other end answers, and does not take what was sent."""


class _Problem(msgspec.Struct):
    """What is read of a problem document."""

    detail: str = ""


def client_context(end: LinkEnd) -> ssl.SSLContext | bool:
    """Return whose certificates are trusted at the other end, and which one is shown to it."""
    if end.ca is None and end.cert is None:
        return True
    try:
        context = ssl.create_default_context(cafile=end.ca)
    except (OSError, ssl.SSLError) as error:
        raise OptionError("ca", f"{end.ca}: {_why(error)}; name a file with certificates (PEM)") from None
    if end.cert is not None:
        try:
            context.load_cert_chain(end.cert, end.key, password=lambda: "")
        except (OSError, ssl.SSLError, ValueError) as error:
            problem = f"{end.cert} or {end.key}: {_why(error)}; PEM files of a certificate and its key are asked for"
            raise OptionError("cert", problem) from None
    return context


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)

"""The sending end of the link between a site and the grid: MessagePack over HTTP (docs/link.md).

Each end posts to the other end's gateway, so each direction can fail separately. Messages can be lost or arrive twice;
channels and callers handle both cases. The receiving end is `gridweave.grid.gateway.link`.
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
from gridweave.site.query_messages import LinkStatus
from gridweave.site.service.calls import CALL_S
from gridweave.site.times import span_text
from gridweave.version import __version__

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger("gridweave.link")

LINK_VERSION = "1"
"""Version of the link protocol; each end refuses other versions."""

VERSION_HEADER, SITE_HEADER = "Gridweave-Link", "Gridweave-Site"
LINK_PATH = "/v1/link"
PACKET_PATH, CALL_PATH, BEAT_PATH = f"{LINK_PATH}/packet", f"{LINK_PATH}/call", f"{LINK_PATH}/beat"
BODY_FORM = "application/msgpack"

LEAST_SECRET = 32
"""Minimum length of a secret, in characters."""

_MOST_SECRETS = 1 << 16
_FIRST_WORD_S, _BYTES_PER_S = 5.0, 20_000
"""Time limit for sending a packet: a base time [s], plus the packet's size divided by a slow line's rate [bytes/s]."""

_CONNECT_S, _IDLE_S = 3.0, 15.0
BEAT_S = 1.5
"""Time without an answer after which a heartbeat is sent [s]."""

_BEAT_ANSWER_S = 2.0
"""Time limit for the answer to a heartbeat [s]; the failure of an idle link is thus detected within 3.5 s."""

_MOST_PACKETS, _MOST_CALLS = 4, 64
"""Maximum packets and calls in transit to one end. Excess packets are dropped and resent later; excess calls wait."""

_LOG_EVERY_S = 60.0
_LONG_BYTES = 1 << 20


class LinkEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The address and credentials for the other end of a link."""

    site: str  # name of the site; both ends use the same name
    url: str  # URL of the other end's gateway, without a trailing slash
    token_file: str  # file with the secret to send
    ca: str | None = None  # file of certificates to trust instead of the system's
    # Files with this end's certificate and its key.
    cert: str | None = None
    key: str | None = None


class Secrets:
    """The secrets in a file, one per line; the file is read again when it has changed.

    The first secret is sent, and all secrets are accepted, so that the two ends can change a secret at different
    times. If the file becomes unusable, the secrets last read stay valid.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._status: tuple[int, ...] | None = None
        self._texts: tuple[bytes, ...] = ()
        self._read()

    def _read(self) -> None:
        try:
            state = os.stat(self.path)
            seen = (state.st_mtime_ns, state.st_ino, state.st_size)
            if seen == self._status:
                return
            self._texts = self._parsed(self.path.read_bytes() if state.st_size <= _MOST_SECRETS else b"")
            self._status = seen
        except OSError as error:
            raise OptionError("secret", f"{self.path}: {error.strerror}; name a file that you can read") from None

    def _parsed(self, data: bytes) -> tuple[bytes, ...]:
        lines = [line.strip() for line in data.splitlines()]
        texts = tuple(line for line in lines if line)
        if not texts or any(len(text) < LEAST_SECRET or not _is_sendable(text) for text in texts):
            advice = f"expected a line of at least {LEAST_SECRET} ASCII characters without blanks: openssl rand -hex 32"
            raise OptionError("secret", f"{self.path} contains no valid secret; {advice}")
        return texts

    def _fresh(self) -> tuple[bytes, ...]:
        try:
            self._read()
        except OptionError as error:
            logger.error("%s; the secrets read before stay valid", error)
        return self._texts

    def sent(self) -> str:
        """Return the secret to send."""
        return self._fresh()[0].decode("ascii")

    def all(self) -> tuple[bytes, ...]:
        """Return all secrets in the file; the first is the secret to send."""
        return self._fresh()

    def accepts(self, candidate: str) -> bool:
        """Whether `candidate` is one of the secrets; the comparison takes constant time."""
        text = candidate.encode("utf-8", "replace")
        return any([hmac.compare_digest(text, secret) for secret in self._fresh()])  # noqa: C419 - compare with all


def _is_sendable(text: bytes) -> bool:
    return all(0x21 <= letter <= 0x7E for letter in text)


Observe = Callable[[str, float | None], None]
"""Called after each request with its kind (e.g. ``packet``) and its response time [s], or None without a response."""


class Link:
    """The sending end of a link."""

    def __init__(self, end: LinkEnd) -> None:
        self.end = end
        self.observe: Observe = lambda what, seconds: None
        self._secret = Secrets(end.token_file)
        self._trusted = client_context(end)
        self._session: aiohttp.ClientSession | None = None
        self._packets = 0
        self._calls = asyncio.Semaphore(_MOST_CALLS)
        self._logged_s, self._logged = 0.0, ""
        self._answered_s = 0.0
        self._status = LinkStatus(end.site, end.url)
        self._way_back = ""

    def secret(self) -> bytes:
        """Return the secret to send, from which probe keys are derived."""
        return self._secret.all()[0]

    @property
    def problem(self) -> str:
        """Why the last request failed; empty if it succeeded."""
        return self._status.problem

    @property
    def status(self) -> LinkStatus:
        """The status of the link; it also shows if the other end reports that it cannot reach this end."""
        return msgspec.structs.replace(self._status, problem=self._status.problem or self._way_back)

    async def packet(self, data: bytes) -> str | None:
        """Send a packet; return why it was refused, or None. After an UnavailableError, the packet may still arrive."""
        if self._packets >= _MOST_PACKETS:
            raise UnavailableError(f"{self.end.url}: {_MOST_PACKETS} packets are already in transit")
        self._packets += 1
        try:
            await self._post("packet", PACKET_PATH, data, _FIRST_WORD_S + len(data) / _BYTES_PER_S)
        except PacketRefusedError as error:
            return str(error)
        finally:
            self._packets -= 1
        return None

    async def beat(self) -> None:
        """Send heartbeats forever while the link is idle; the answers say whether the other end can reach this end."""
        while True:
            await asyncio.sleep(BEAT_S)
            if time.monotonic() - self._answered_s < BEAT_S and not self._way_back:
                continue
            with contextlib.suppress(UnavailableError):
                why = (await self._post("beat", BEAT_PATH, b"", _BEAT_ANSWER_S)).decode(errors="replace")[:500]
                way_back = why and f"{self.end.url} cannot reach this end: {why}"
                if way_back and not self._way_back:
                    logger.warning("link of %s: %s", self.end.site, way_back)
                self._way_back = way_back

    async def ask(self, machine: str, method: str, data: bytes, timeout_s: float = CALL_S) -> bytes:
        """Send a question, encoded for `Door.ask`, to the other end or to one of its machines; return the answer.

        After an UnavailableError, the request may have been executed.
        """
        path = "/".join(part for part in (CALL_PATH, machine, method) if part)
        async with self._calls:
            return await self._post("call", path, data, timeout_s)

    async def _post(self, what: str, path: str, data: bytes, timeout_s: float) -> bytes:
        """Post data and return the answer; record the outcome and the response time."""
        import aiohttp

        begin_s = time.monotonic()
        try:
            answer = await self._answer(path, data, timeout_s)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or f"no answer within {span_text(timeout_s * 1000)}"
            if type(error) is aiohttp.ClientConnectorError and error.errno and error.errno > 0:
                why = os.strerror(error.errno)  # asyncio replaces the error text with the address
            self._failed(what, why)
            raise UnavailableError(f"{self.end.url} does not answer: {why}") from error
        except UnavailableError as error:
            self._failed(what, str(error))
            raise
        self._succeeded(what, time.monotonic() - begin_s)
        return answer

    async def _answer(self, path: str, data: bytes, timeout_s: float) -> bytes:
        """Post data and return the answer; raise UnavailableError for an HTTP error status."""
        import aiohttp

        headers = {
            "Authorization": f"Bearer {self._secret.sent()}",
            VERSION_HEADER: LINK_VERSION,
            SITE_HEADER: self.end.site,
            "Content-Type": BODY_FORM,
        }
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(_CONNECT_S, timeout_s))
        # aiohttp reads a file object in a thread; a long bytes object would block the event loop.
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
            # Idle connections may be dead after an interruption, so close them early.
            connector = aiohttp.TCPConnector(limit=0, ssl=self._trusted, keepalive_timeout=_IDLE_S)
            agent = {"User-Agent": f"gridweave/{__version__}", "Accept": "application/problem+msgpack, */*"}
            self._session = aiohttp.ClientSession(
                connector=connector, headers=agent, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    def _refused(self, status: int, form: str, data: bytes) -> UnavailableError:
        """Return the error to raise for an HTTP error status."""
        detail = f"it answers with {status}"
        if form == "application/problem+msgpack":
            with contextlib.suppress(msgspec.MsgspecError):
                detail = msgspec.msgpack.decode(data, type=_Problem).detail
        kind = PacketRefusedError if status == _BAD_REQUEST else UnavailableError
        return kind(f"{self.end.url}: {detail}")

    def _succeeded(self, what: str, seconds: float) -> None:
        self.observe(what, seconds)
        status = self._status
        if status.problem:
            logger.warning("%s answers again", self.end.url)
        self._logged, self._answered_s = "", time.monotonic()
        self._status = msgspec.structs.replace(
            status, answered=status.answered + 1, answered_ms=time.time_ns() // 1_000_000, seconds=seconds, problem=""
        )

    def _failed(self, what: str, why: str) -> None:
        """Record a failed request; log a new reason at once, and the same reason at most once a minute."""
        self.observe(what, None)
        self._status = msgspec.structs.replace(self._status, failed=self._status.failed + 1, problem=why)
        now_s = time.monotonic()
        if why != self._logged or now_s - self._logged_s > _LOG_EVERY_S:
            logger.warning("link of %s: %s", self.end.site, why if self.end.url in why else f"{self.end.url}: {why}")
            self._logged, self._logged_s = why, now_s

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


_BAD_REQUEST = 400


class PacketRefusedError(UnavailableError):
    """The other end has refused a packet."""


class _Problem(msgspec.Struct):
    """A problem document; only its detail is used."""

    detail: str = ""


def client_context(end: LinkEnd) -> ssl.SSLContext | bool:
    """Return a link's TLS settings: the trusted certificates and this end's certificate, or True for the defaults."""
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
            problem = f"{end.cert} or {end.key}: {_why(error)}; expected PEM files of a certificate and its key"
            raise OptionError("cert", problem) from None
    return context


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)

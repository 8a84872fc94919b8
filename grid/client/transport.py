"""Requests and answers: MessagePack over HTTP, tried again where that is safe, with refusals as typed errors.

`Patience` says how long to wait before the next try, and when to give up.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
import msgspec

from gridweave.errors import (
    GridweaveError,
    NotAllowedError,
    NotFoundError,
    OptionError,
    RefusedError,
    UnavailableError,
)
from gridweave.grid.api import Problem
from gridweave.grid.client.configuration import Connection
from gridweave.version import __version__

if TYPE_CHECKING:
    import numpy as np


Sleep = Callable[[float], Awaitable[object]]


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long a client tries.

    Attributes
    ----------
    total_s : float
        After which time a request is given up, with all its tries and the pauses between them.
    connect_s : float
        ... if the gateway was never reached.
    try_s : float
        After which time one try is given up.
    silence_s : float
        After which time a stream that says nothing is taken for cut off. The gateway says something every 15 s.
    first_pause_s, longest_pause_s : float
        Between tries; each is twice as long as the one before, and then between half of that and the whole by chance,
        so that clients that were cut off together do not come back together.
    """

    total_s: float = 60.0
    connect_s: float = 60.0
    try_s: float = 20.0
    silence_s: float = 45.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0


class Pauses:
    """The pauses between tries; chance is drawn from a fresh generator if none is given."""

    def __init__(
        self, patience: Patience, rng: np.random.Generator | None = None, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.patience, self.sleep, self._rng = patience, sleep, rng

    def length_s(self, tries: int) -> float:
        """Return how long to wait after so many tries (from 1)."""
        if self._rng is None:
            import numpy as np  # only who has to wait needs it

            self._rng = np.random.default_rng()
        longest = min(self.patience.longest_pause_s, self.patience.first_pause_s * 2.0 ** min(tries - 1, 60))
        return longest * float(self._rng.uniform(0.5, 1.0))


def seconds_to_wait(text: str | None, now: datetime.datetime) -> float | None:
    """Return what a header ``Retry-After`` says, in seconds, or None if it says nothing that can be read.

    Examples
    --------
    >>> now = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    >>> seconds_to_wait("3", now), seconds_to_wait("Thu, 01 Jan 2026 00:01:00 GMT", now), seconds_to_wait("soon", now)
    (3.0, 60.0, None)
    """
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdecimal() and len(text) <= 9:
        return float(text)
    try:
        when = parsedate_to_datetime(text)
        return max(0.0, (when - now).total_seconds())
    except (TypeError, ValueError):
        return None


T = TypeVar("T")

MSGPACK = "application/msgpack"
PROBLEM_MSGPACK = "application/problem+msgpack"
_ACCEPT = f"{MSGPACK}, {PROBLEM_MSGPACK}"
_CONNECTIONS = 32
"""For requests; streams have as many as there are, or whoever reads many of them could ask nothing more."""

CUT = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, asyncio.TimeoutError, ConnectionError)
"""How a request, or a stream, ends that another try may do better."""

Query = Mapping[str, str] | list[tuple[str, str]]


class TryAgain(Exception):  # noqa: N818 - it never leaves this module
    """What went wrong may go well at another try, after `after_s` at least; `error` is raised if there is none.

    `was_reached`: the gateway may have heard the request.
    """

    def __init__(self, error: GridweaveError, *, after_s: float = 0.0, was_reached: bool = True) -> None:
        self.error, self.after_s, self.was_reached = error, after_s, was_reached
        super().__init__(str(error))


class Transport:
    """The way to a gateway; made within a running event loop."""

    def __init__(self, connection: Connection, pauses: Pauses) -> None:
        self.connection, self.pauses, self.patience = connection, pauses, pauses.patience
        headers = {"User-Agent": f"gridweave/{__version__}"}
        if connection.token is not None:
            headers["Authorization"] = f"Bearer {connection.token}"
        trusted = _trusted(connection)
        self._session, self._streams = (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=limit, ssl=trusted), headers=headers)
            for limit in (_CONNECTIONS, 0)
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await self._streams.close()

    async def call(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        query: Query | None = None,
        body: msgspec.Struct | None = None,
    ) -> T:
        """Ask the gateway, again and again if need be, and return its answer.

        UnavailableError if there was none in time; what was asked for may have been done all the same.
        """
        data = msgspec.msgpack.encode(body) if body is not None else None

        async def once() -> T:
            headers = {"Accept": _ACCEPT} | ({"Content-Type": MSGPACK} if data is not None else {})
            limit = aiohttp.ClientTimeout(total=self.patience.try_s)
            async with self._session.request(
                method, self._url(path), params=query, data=data, headers=headers, timeout=limit, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise await _problem(response)
                return _decoded(response.content_type, await response.read(), answer, self.connection.url)

        return await self._again(once)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Query | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a stream of whatever length; what cuts it later is one of `CUT`, to be mended by who reads it."""
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self.patience.try_s, sock_read=self.patience.silence_s)

        async def once() -> aiohttp.ClientResponse:
            response = await self._streams.get(
                self._url(path), params=query, headers=headers, timeout=limit, allow_redirects=False
            )
            if response.status != 200:
                async with response:
                    raise await _problem(response)
            return response

        response = await self._again(once)
        try:
            yield response
        finally:
            response.close()

    async def _again(self, once: Callable[[], Awaitable[T]]) -> T:
        """Do something until it succeeds, fails for good, or has taken too long."""
        loop = asyncio.get_running_loop()
        began_s, tries, slept_s, was_reached = loop.time(), 0, 0.0, False
        while True:
            tries += 1
            try:
                return await once()
            except TryAgain as failed:
                last = failed
            except CUT as error:
                last = self._cut(error)
            was_reached = was_reached or last.was_reached
            pause_s = max(last.after_s, self.pauses.length_s(tries))
            # Pauses are counted as they were meant, whatever waits.
            spent_s = max(loop.time() - began_s, slept_s) + pause_s
            most_s = self.patience.total_s if was_reached else min(self.patience.connect_s, self.patience.total_s)
            if spent_s > most_s:
                raise last.error
            await self.pauses.sleep(pause_s)
            slept_s += pause_s

    def _cut(self, error: BaseException) -> TryAgain:
        """Return what a failed connection means."""
        url = self.connection.url
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            why = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
            raise UnavailableError(
                f"{url}: its certificate is not trusted ({why}); name a file with its authority: GRIDWEAVE_CA"
            ) from None
        if isinstance(error, aiohttp.ClientConnectorSSLError):
            raise UnavailableError(
                f"{url}: does not speak TLS ({error.strerror}); is it http in place of https?"
            ) from None
        if isinstance(error, aiohttp.ClientConnectorError):
            # asyncio puts the address where the words of the error belong.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.os_error)
            right = "start a grid with `gridweave up`, or name the one that runs with --url or GRIDWEAVE_URL"
            return TryAgain(UnavailableError(f"no gateway answers at {url}: {why}; {right}"), was_reached=False)
        if isinstance(error, asyncio.TimeoutError):
            return TryAgain(UnavailableError(f"the gateway at {url} does not answer in time"))
        return TryAgain(UnavailableError(f"the gateway at {url} was cut off: {str(error) or type(error).__name__}"))

    def _url(self, path: str) -> str:
        return self.connection.url + path


def _trusted(connection: Connection) -> ssl.SSLContext | bool:
    if connection.ca is None:
        return True
    try:
        if not Path(connection.ca).is_file():
            raise OptionError("ca", f"{connection.ca}: there is no such file; name one with certificates (PEM)")
        context = ssl.create_default_context(cafile=connection.ca)
        # Whoever names the certificate itself trusts it, whoever has signed it (the default from Python 3.13 on).
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context
    except (OSError, ValueError) as error:
        why = "contains no certificates (PEM)" if isinstance(error, ssl.SSLError) else str(error)
        raise OptionError("ca", f"{connection.ca}: {why}") from None


def _decoded(kind: str, data: bytes, answer: type[T], url: str) -> T:
    try:
        if kind == MSGPACK:
            return msgspec.msgpack.decode(data, type=answer)
        if kind == "application/json":
            return msgspec.json.decode(data, type=answer)
    except msgspec.MsgspecError as error:
        raise UnavailableError(f"{url}: its answer cannot be read ({error}); is it of another version?") from None
    raise UnavailableError(f"{url}: answers with {kind}, so it is not a gateway of gridweave; check the address")


async def _problem(response: aiohttp.ClientResponse) -> Exception:
    """Return what a refusal means: an error, or that another try may do better."""
    problem = _read_problem(response, await response.read())
    said: dict[str, Any] = {"status": problem.status, "kind": problem.type, "instance": problem.instance}
    detail = "; ".join([problem.detail, *(f"{error.where}: {error.detail}" for error in problem.errors[:5])])
    match problem.status:
        case 401 | 403:
            return NotAllowedError(detail, **said)
        case 404:
            return NotFoundError(detail, **said)
        case 429 | 502 | 503 | 504:
            now = datetime.datetime.now(datetime.UTC)
            after_s = problem.retry_after_s or seconds_to_wait(response.headers.get("Retry-After"), now) or 0.0
            return TryAgain(UnavailableError(detail), after_s=after_s)
        case status if status >= 500:
            named = f" (request {problem.instance})" if problem.instance else ""
            return UnavailableError(f"the gateway failed: {detail}{named}; its log says why")
    return RefusedError(detail, **said)


def _read_problem(response: aiohttp.ClientResponse, data: bytes) -> Problem:
    """Return the problem document, or one made of the status, as of a proxy that knows of none."""
    with contextlib.suppress(msgspec.MsgspecError):
        if response.content_type == PROBLEM_MSGPACK:
            return msgspec.msgpack.decode(data, type=Problem)
        if response.content_type == "application/problem+json":
            return msgspec.json.decode(data, type=Problem)
    reason = response.reason or "no reason given"
    what = "sends elsewhere" if 300 <= response.status < 400 else "answers"
    if where := response.headers.get("Location"):
        reason += f", to {where}"
    return Problem(
        type="about:blank",
        title=reason,
        status=response.status,
        detail=f"{response.url.origin()} {what} with {response.status} ({reason}); is that the address of a gateway?",
    )

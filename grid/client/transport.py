"""Send requests as MessagePack over HTTP, retry where that is safe, and turn refusals into typed errors.

`Patience` sets how long to wait between retries, and when to give up. `BriefTransport` uses only Python's own HTTP
client: for a command that makes one request, loading aiohttp and asyncio takes longer than the grid takes to answer.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import http.client
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from gridweave.errors import (
    GridweaveError,
    NotAllowedError,
    NotFoundError,
    OptionError,
    RefusedError,
    SiteAwayError,
    UnavailableError,
)
from gridweave.grid.api import Problem
from gridweave.grid.client.arguments import encoded
from gridweave.grid.client.configuration import Connection, followed, gateway_here
from gridweave.version import __version__

if TYPE_CHECKING:
    import asyncio

    import aiohttp
    import numpy as np


Sleep = Callable[[float], Awaitable[object]]


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long a client retries.

    Attributes
    ----------
    total_s : float
        Maximum time for a request, including all attempts and the pauses between them.
    connect_s : float
        Maximum time for a request if no attempt reaches the gateway.
    try_s : float
        Maximum time for one attempt.
    silence_s : float
        A stream that delivers no data for this long counts as interrupted; the gateway sends something every 15 s.
    first_pause_s, longest_pause_s : float
        Pauses between attempts. Pauses double up to the longest pause. Each pause is then multiplied by a random
        factor between 1/2 and 1, so that clients that lost their connections together do not retry together.
    """

    total_s: float = 60.0
    connect_s: float = 60.0
    try_s: float = 20.0
    silence_s: float = 45.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0


class Pauses:
    """The pauses between attempts; without `rng`, their random factors come from a new generator."""

    def __init__(self, patience: Patience, rng: np.random.Generator | None = None, sleep: Sleep | None = None) -> None:
        self.patience, self._sleep, self._rng = patience, sleep, rng

    async def sleep(self, pause_s: float) -> None:
        """Wait for `pause_s` seconds."""
        if self._sleep is None:
            import asyncio  # imported here because a single request that succeeds does without it

            self._sleep = asyncio.sleep
        await self._sleep(pause_s)

    def length_s(self, tries: int) -> float:
        """Return the length of the pause after this many attempts (at least 1)."""
        if self._rng is None:
            import numpy as np  # imported here because a request that succeeds at once does without it

            self._rng = np.random.default_rng()
        longest = min(self.patience.longest_pause_s, self.patience.first_pause_s * 2.0 ** min(tries - 1, 60))
        return longest * float(self._rng.uniform(0.5, 1.0))


def seconds_to_wait(text: str | None, now: datetime.datetime) -> float | None:
    """Return the seconds in a ``Retry-After`` header, or None if it is missing or unreadable.

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

SITE_AWAY = "urn:gridweave:problem:site-unavailable"

MSGPACK = "application/msgpack"
PROBLEM_MSGPACK = "application/problem+msgpack"
_ACCEPT = f"{MSGPACK}, {PROBLEM_MSGPACK}"
_CONNECTIONS = 32
"""Maximum number of connections for requests. Streams do not count, so they never block requests."""


def cut_errors() -> tuple[type[BaseException], ...]:
    """Return the exception types for a broken connection, after which retrying a request or a stream can succeed."""
    import aiohttp

    return aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, ConnectionError


class GatewayAnswer(NamedTuple):
    """An HTTP response from the gateway, or from another server at its address."""

    status: int
    reason: str
    headers: Mapping[str, str]
    data: bytes

    @property
    def kind(self) -> str:
        """The content type, without parameters."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()


Query = Mapping[str, str] | list[tuple[str, str]]


class TryAgain(GridweaveError):  # noqa: N818 - it never leaves this module
    """A failure after which a retry may succeed, at the earliest after `after_s`.

    The caller gets `error` if there is no time for a retry. `was_reached` is True if the request may have reached
    the gateway.
    """

    def __init__(self, error: GridweaveError, *, after_s: float = 0.0, was_reached: bool = True) -> None:
        self.error, self.after_s, self.was_reached = error, after_s, was_reached
        super().__init__(str(error))


class Transport:
    """The connection to a gateway; created inside a running event loop."""

    def __init__(self, connection: Connection, pauses: Pauses) -> None:
        self.connection, self.pauses, self.patience = connection, pauses, pauses.patience
        self.headers = _headers(connection)
        self.trusted = _trusted(connection)
        self._sessions: dict[int, aiohttp.ClientSession] = {}
        # For a grid on this machine: the gateway process that was last seen at its address.
        self._gateway = gateway_here(connection)

    @functools.cached_property
    def _turns(self) -> asyncio.Semaphore:
        """The semaphore that limits the number of connections, and serves waiting requests in order of arrival.

        aiohttp's own pool can give a released connection back to the same caller, so others could wait indefinitely.
        """
        import asyncio

        return asyncio.Semaphore(_CONNECTIONS)

    def _session(self, connections: int) -> aiohttp.ClientSession:
        """Return the session with this limit on connections (0: no limit); the first call creates it."""
        if connections not in self._sessions:
            import aiohttp  # imported here because commands that make one request do without it (`BriefTransport`)

            connector = aiohttp.TCPConnector(limit=connections, ssl=self.trusted)
            self._sessions[connections] = aiohttp.ClientSession(connector=connector, headers=self.headers)
        return self._sessions[connections]

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            await session.close()

    async def call(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        query: Query | None = None,
        body: msgspec.Struct | None = None,
    ) -> T:
        """Send a request, with retries, and return the answer.

        Raise UnavailableError if there was no answer in time; the gateway may still have carried out the request.
        """
        data = encoded(body) if body is not None else None
        encoded(query)  # raises InputError for a text that no URL can contain

        async def once() -> T:
            headers = {"Accept": _ACCEPT} | ({"Content-Type": MSGPACK} if data is not None else {})
            answered = await self.exchange(method, path, query or {}, data, headers)
            if answered.status != 200:
                raise _problem(answered, self.connection.url)
            return _decoded(answered.kind, answered.data, answer, self.connection.url)

        return await self._again(once)

    async def exchange(
        self, method: str, path: str, query: Query, data: bytes | None, headers: Mapping[str, str]
    ) -> GatewayAnswer:
        """Send a request once and return the answer; raise TryAgain or one of `cut_errors` if there is no answer."""
        import aiohttp

        limit = aiohttp.ClientTimeout(total=self.patience.try_s)
        session = self._session(_CONNECTIONS)
        async with (
            self._turns,
            session.request(
                method, self._url(path), params=query, data=data, headers=headers, timeout=limit, allow_redirects=False
            ) as response,
        ):
            return GatewayAnswer(response.status, response.reason or "", response.headers, await response.read())

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Query | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a stream; if it is interrupted later, the caller gets one of `cut_errors` and has to reopen it."""
        import aiohttp

        limit = aiohttp.ClientTimeout(total=None, sock_connect=self.patience.try_s, sock_read=self.patience.silence_s)

        async def once() -> aiohttp.ClientResponse:
            response = await self._session(0).get(
                self._url(path), params=query, headers=headers, timeout=limit, allow_redirects=False
            )
            if response.status != 200:
                async with response:
                    answered = GatewayAnswer(
                        response.status, response.reason or "", response.headers, await response.read()
                    )
                    raise _problem(answered, self.connection.url)
            return response

        response = await self._again(once)
        try:
            yield response
        finally:
            response.close()

    async def _again(self, once: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until it succeeds, fails with an error that no retry can fix, or has taken too long."""
        began_s, tries, slept_s, was_reached = time.monotonic(), 0, 0.0, False
        while True:
            tries += 1
            try:
                await self._follow()
                return await once()
            except TryAgain as failed:
                last = failed
            except cut_errors() as error:
                last = self._cut(error)
            was_reached = was_reached or last.was_reached
            # A gateway that sends Retry-After spreads its clients itself.
            pause_s = last.after_s or self.pauses.length_s(tries)
            # Pauses count with their intended length, as `sleep` may be a fake.
            spent_s = max(time.monotonic() - began_s, slept_s) + pause_s
            most_s = self.patience.total_s if was_reached else min(self.patience.connect_s, self.patience.total_s)
            if spent_s > most_s:
                raise last.error
            await self.pauses.sleep(pause_s)
            slept_s += pause_s

    async def _follow(self) -> None:
        """Update the address and the token if the connection leads to a local grid whose gateway has restarted."""
        if not self.connection.grid or (self._gateway is not None and self._gateway.is_alive):
            return
        try:
            self.connection = followed(self.connection)
        except UnavailableError as error:
            raise TryAgain(error, was_reached=False) from None
        self._gateway, self.headers = gateway_here(self.connection), _headers(self.connection)
        self.trusted = _trusted(self.connection)
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    def _cut(self, error: BaseException) -> TryAgain:
        """Convert a connection failure to a TryAgain; raise an error instead if a retry cannot succeed."""
        import aiohttp

        url = self.connection.url
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            why = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
            raise _untrusted(url, why) from None
        if isinstance(error, aiohttp.ClientConnectorSSLError):
            raise _not_tls(url, error.strerror) from None
        if isinstance(error, aiohttp.ClientConnectorError):
            return _nobody_there(url, error.os_error)
        return _broken_off(url, error)

    def _url(self, path: str) -> str:
        return self.connection.url + path


# -- without an event loop


def run_brief(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that needs no event loop because it only uses a `BriefTransport`, and return its result.

    Raises
    ------
    RuntimeError
        If the coroutine has to wait for something.

    Examples
    --------
    >>> async def work() -> int:
    ...     return 3
    >>> run_brief(work())
    3
    """
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("this coroutine waits for something, so it needs an event loop and a Transport")


async def brief_sleep(pause_s: float) -> None:
    """Block for `pause_s` seconds."""
    time.sleep(pause_s)


class BriefTransport(Transport):
    """A connection for one request at a time, which blocks the process.

    Streams need an event loop, so they do not work under `run_brief`.
    """

    async def exchange(
        self, method: str, path: str, query: Query, data: bytes | None, headers: Mapping[str, str]
    ) -> GatewayAnswer:
        """Send a request once over a new connection and return the answer."""
        url = self.connection.url
        connection = self._connected()
        try:
            target = urlsplit(url).path + path + (f"?{urlencode(query)}" if query else "")
            connection.request(method, target, body=data, headers={**self.headers, **headers})
            response = connection.getresponse()
            return GatewayAnswer(response.status, response.reason, response.headers, response.read())  # type: ignore[arg-type]
        except (OSError, http.client.HTTPException) as error:
            raise _broken_off(url, error) from None
        finally:
            connection.close()

    def _connected(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.connection.url)
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = self.trusted if isinstance(self.trusted, ssl.SSLContext) else ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=self.patience.try_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=self.patience.try_s)
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            raise _untrusted(self.connection.url, error.verify_message) from None
        except ssl.SSLError as error:
            raise _not_tls(self.connection.url, error.reason) from None
        except OSError as error:
            raise _nobody_there(self.connection.url, error) from None
        return connection


# -- headers, answers and errors


def _headers(connection: Connection) -> dict[str, str]:
    headers = {"User-Agent": f"gridweave/{__version__}"}
    if connection.token is not None:
        headers["Authorization"] = f"Bearer {connection.token}"
    return headers


def _untrusted(url: str, why: str) -> UnavailableError:
    """Return the error for a certificate that is not trusted."""
    return UnavailableError(
        f"{url}: its certificate is not trusted ({why}); name a file with its authority: GRIDWEAVE_CA"
    )


def _not_tls(url: str, why: str | None) -> UnavailableError:
    """Return the error for a server that does not speak TLS."""
    return UnavailableError(f"{url}: does not speak TLS ({why}); should it be http instead of https?")


def _nobody_there(url: str, error: OSError) -> TryAgain:
    """Return the error for a failed connection attempt."""
    # asyncio puts the address into the error's text, so the text is looked up by number.
    why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    right = "start a grid with `gridweave up`, or name the one that runs with --url or GRIDWEAVE_URL"
    return TryAgain(UnavailableError(f"no gateway answers at {url}: {why}; {right}"), was_reached=False)


def _broken_off(url: str, error: BaseException) -> TryAgain:
    """Return the error for an answer that was late or incomplete."""
    if isinstance(error, TimeoutError):
        return TryAgain(UnavailableError(f"the gateway at {url} does not answer in time"))
    return TryAgain(UnavailableError(f"the gateway at {url} was cut off: {str(error) or type(error).__name__}"))


def _trusted(connection: Connection) -> ssl.SSLContext | bool:
    if connection.ca is None:
        return True
    try:
        if not Path(connection.ca).is_file():
            raise OptionError("ca", f"{connection.ca}: there is no such file; name one with certificates (PEM)")
        context = ssl.create_default_context(cafile=connection.ca)
        # Trust a certificate in this file whatever its issuer (the default from Python 3.13 on).
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
        raise UnavailableError(f"{url}: its answer cannot be read ({error}); does it have another version?") from None
    raise UnavailableError(f"{url}: answers with {kind}, so it is not a gateway of gridweave; check the address")


def _problem(answered: GatewayAnswer, url: str) -> Exception:
    """Convert a refusal to the matching exception, or to TryAgain if a retry may succeed."""
    problem = _read_problem(answered, url)
    fields: dict[str, Any] = {"status": problem.status, "kind": problem.type, "instance": problem.instance}
    whole = problem.detail
    others = [error for error in problem.errors[:5] if error.where not in whole or error.detail not in whole]
    more = (f"{error.where}: {error.detail}" for error in others)
    detail = "; ".join([problem.detail, *more])
    match problem.status:
        case 401 | 403:
            return NotAllowedError(detail, **fields)
        case 404:
            return NotFoundError(detail, **fields)
        case 503 if problem.type == SITE_AWAY:
            return SiteAwayError(detail)
        case 429 | 502 | 503 | 504:
            now = datetime.datetime.now(datetime.UTC)
            after_s = problem.retry_after_s or seconds_to_wait(answered.headers.get("Retry-After"), now) or 0.0
            return TryAgain(UnavailableError(detail), after_s=after_s)
        case status if status >= 500:
            named = f" (request {problem.instance})" if problem.instance else ""
            return UnavailableError(f"the gateway failed: {detail}{named}; its log says why")
    return RefusedError(detail, **fields)


def _read_problem(answered: GatewayAnswer, url: str) -> Problem:
    """Return an answer's problem document; if a proxy sent none, build one from the HTTP status."""
    with contextlib.suppress(msgspec.MsgspecError):
        if answered.kind == PROBLEM_MSGPACK:
            return msgspec.msgpack.decode(answered.data, type=Problem)
        if answered.kind == "application/problem+json":
            return msgspec.json.decode(answered.data, type=Problem)
    reason = answered.reason or "no reason given"
    what = "sends elsewhere" if 300 <= answered.status < 400 else "answers"
    if where := answered.headers.get("Location"):
        reason += f", to {where}"
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    return Problem(
        type="about:blank",
        title=reason,
        status=answered.status,
        detail=f"{origin} {what} with {answered.status} ({reason}); is that the address of a gateway?",
    )

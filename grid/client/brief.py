"""Asks a gateway with what Python has itself: for a command that asks one thing and is to answer at once.

aiohttp, and asyncio, take a command longer to load than the grid takes to answer.
"""

from __future__ import annotations

import http.client
import os
import ssl
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from gridweave.grid.client.transport import (
    GatewayAnswer,
    Query,
    Transport,
    TryAgain,
    broken_off,
    nobody_there,
    not_tls,
    untrusted,
)

T = TypeVar("T")


def run_brief(work: Coroutine[Any, Any, T]) -> T:
    """Run what asks over a `BriefTransport` alone and so never waits for an event loop; return what it returns.

    Raises
    ------
    RuntimeError
        If it does wait for something.

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
    raise RuntimeError("this work waits for something: it needs an event loop, and a Transport")


async def brief_sleep(pause_s: float) -> None:
    """Wait, and let nothing else go on."""
    time.sleep(pause_s)


class BriefTransport(Transport):
    """The way to a gateway for one request at a time; while one is under way, nothing else in this process goes on.

    It has no streams where there is no event loop (`run_brief`); else they are as those of `Transport`.
    """

    async def exchange(
        self, method: str, path: str, query: Query, data: bytes | None, headers: Mapping[str, str]
    ) -> GatewayAnswer:
        """Ask once, over a connection of its own, and return what was answered."""
        url = self.connection.url
        connection = self._connected()
        try:
            target = urlsplit(url).path + path + (f"?{urlencode(query)}" if query else "")
            connection.request(method, target, body=data, headers={**self.headers, **headers})
            response = connection.getresponse()
            return GatewayAnswer(response.status, response.reason, response.headers, response.read())  # type: ignore[arg-type]
        except (OSError, http.client.HTTPException) as error:
            raise broken_off(url, error) from None
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
            raise untrusted(self.connection.url, error.verify_message) from None
        except ssl.SSLError as error:
            raise not_tls(self.connection.url, error.reason) from None
        except OSError as error:
            raise self._not_there(error) from None
        return connection

    def _not_there(self, error: OSError) -> TryAgain:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        return nobody_there(self.connection.url, why)

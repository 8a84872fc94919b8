"""A gateway on a port of this machine, and helpers that send requests to it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gridweave.grid.api import Problem, Scope
from gridweave.grid.backend import Backend
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.gateway.access import TokenStore
from gridweave.grid.gateway.server import Gateway

SLEEP: dict[str, Any] = {"program": {"argv": ["sleep", "1"]}, "limit_ms": 60_000}


def counted_bytes() -> Callable[[int], bytes]:
    """Return a source of predictable bytes that never repeat, in place of random ones."""
    numbers = itertools.count(1)
    return lambda size: next(numbers).to_bytes(size, "big")


class Served:
    """A running gateway and a client of it.

    Parameters
    ----------
    gateway : Gateway
    session : aiohttp.ClientSession
    """

    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.session = session
        self.url = gateway.url

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **headers: str
    ) -> tuple[int, Any, Any]:
        """Send a JSON request; return the status, the body and the headers of the answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            named["Authorization"] = f"Bearer {token}"
        async with self.session.request(method, self.url + path, json=body, headers=named) as response:
            data = await response.read()
            answer: Any = data
            if response.headers.get("Content-Type", "").endswith("json") and data:
                answer = msgspec.json.decode(data)
                if "problem" in response.headers["Content-Type"]:
                    msgspec.convert(answer, Problem)
            return response.status, answer, response.headers

    async def submit(self, *jobs: dict[str, Any], token: str | None = None, **headers: str) -> list[int]:
        """Submit jobs, assert that they are accepted, and return their numbers."""
        status, answer, _ = await self.ask("POST", "/v1/jobs", {"jobs": list(jobs)}, token=token, **headers)
        assert status == 200, answer
        return [one["job_id"] for one in answer["answers"]]


class Browser:
    """A browser's cookies, its headers about a request's origin, and the page's part of a login."""

    def __init__(self, served: Served, session: aiohttp.ClientSession) -> None:
        self._served, self._session = served, session
        self.key = ""

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Send a request like a page of the gateway; `headers` override the page's."""
        own = {"Origin": self._served.url, "Sec-Fetch-Site": "same-origin", "Gridweave-Login": self.key}
        named = own | {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in named.items() if value}
        async with self._session.request(method, self._served.url + path, json=body, headers=sent) as answer:
            found = await answer.json(content_type=None)
        if path == "/v1/login" and answer.status == 200:
            self.key = found["key"]
        return answer.status, found

    @property
    def cookie(self) -> str:
        """The value of the login's cookie."""
        (cookie,) = self._session.cookie_jar
        return cookie.value


@contextlib.asynccontextmanager
async def browsing_at(served: Served) -> AsyncIterator[Browser]:
    """Yield a browser without cookies."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield Browser(served, session)


@contextlib.asynccontextmanager
async def serving(backend: Backend, **settings: Any) -> AsyncIterator[Served]:
    """Yield a gateway to a grid; stop it afterwards."""
    gateway = Gateway(backend, GatewaySettings(**{"port": 0, **settings}))
    await gateway.start()
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Served(gateway, session)
    finally:
        await gateway.stop()


USUAL: dict[str, tuple[Scope, ...]] = {
    "read": ("read",),
    "submit": ("read", "submit", "cancel"),
    "operate": ("operate",),
}
"""Maps kinds of tokens to their scopes."""


def make_tokens(place: Path, **kinds: str) -> dict[str, str]:
    """Create a token of a kind in `USUAL` for each user, and return the tokens by user."""
    store = TokenStore(place)
    tokens = {user: store.create(user, USUAL[kind]).token for user, kind in kinds.items()}
    store.close()
    return tokens


def a_job(**changes: Any) -> dict[str, Any]:
    """Return a valid job for a submission, with changes."""
    return {"request": SLEEP | changes}

"""What stands between a gateway and its users: proxies that fail on demand, and a headless browser.

Use `FlakyProxy` for HTTP requests that fail, `Wire` to cut a TCP connection in one direction, and `browsing` to open a
page in Chromium and read the errors that the browser reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
import msgspec
import numpy as np
import pytest
from aiohttp import web

from support.machine import PATIENCE_S

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

# -- HTTP requests that fail ------------------------------------------------------------------------------------------

FAULTS = ("before", "after", "half", "429", "502", "503", "504")
"""The kinds of faults: cut the connection before the request is forwarded, after the gateway's answer, or in the middle
of the answer; or refuse with a status code that a retry resolves."""

_NOT_PASSED = frozenset(
    {"host", "transfer-encoding", "content-length", "connection", "content-encoding", "date", "server"}
)


PIECE = 300
"""Largest piece of a stream that is forwarded at once, in bytes."""


class FlakyProxy:
    """Forwards requests, and fails some of them.

    Parameters
    ----------
    target : str
        Address of the gateway.
    rng : numpy.random.Generator
    chance : float
        Probability that a request fails.
    cut_after : float, optional
        Mean number of pieces of a stream before it is cut; None cuts no stream.

    Attributes
    ----------
    rng, chance, cut_after
        The parameters; tests change them.
    kinds : tuple of str
        The kinds of faults to draw from.
    plan : list of str
        The faults of the next requests, regardless of `chance`.
    passed : int
        Number of forwarded pieces of streams.
    open : set
        The connections of open streams.
    faults : collections.Counter
        Number of faults by kind.
    heard : list of (str, object)
        Path and body of each forwarded request; the query if it has no body.
    """

    def __init__(
        self, target: str, rng: np.random.Generator, *, chance: float = 0.0, cut_after: float | None = None
    ) -> None:
        self._target, self.rng, self.chance, self.cut_after = target, rng, chance, cut_after
        self.kinds: tuple[str, ...] = FAULTS
        self.plan: list[str] = []
        self.passed = 0
        self.open: set[asyncio.BaseTransport] = set()
        self.faults: Counter[str] = Counter()
        self.heard: list[tuple[str, Any]] = []
        self.app = web.Application(client_max_size=64 << 20)
        self.app.add_routes([web.route("*", "/{rest:.*}", self._pass_on)])
        self.app.cleanup_ctx.append(self._opened)

    def cut_streams(self) -> None:
        """Cut all open streams."""
        for transport in self.open:
            transport.close()

    async def _opened(self, _: web.Application):  # type: ignore[no-untyped-def]
        self._session = aiohttp.ClientSession(auto_decompress=False)
        yield
        await self._session.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        fault = self.plan.pop(0) if self.plan else ""
        if not fault and self.rng.random() < self.chance:
            fault = str(self.rng.choice(self.kinds))
        self.faults[fault] += bool(fault)
        if fault.isdecimal():
            headers = {"Retry-After": "0"} if fault == "429" else {}
            return web.Response(status=int(fault), text="the proxy is busy", headers=headers)
        body = await request.read()
        if fault == "before":
            return self._cut(request)
        self.heard.append((request.path, msgspec.msgpack.decode(body) if body else request.query_string))
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _NOT_PASSED}
        url = self._target + request.path_qs
        async with self._session.request(
            request.method, url, data=body, headers=headers, allow_redirects=False
        ) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _NOT_PASSED}
            if "chunked" in answer.headers.get("Transfer-Encoding", ""):
                return await self._stream(request, answer, kept)
            data = await answer.read()
            if fault == "after":
                return self._cut(request)
            response = web.StreamResponse(status=answer.status, headers=kept)
            response.content_length = len(data)
            await response.prepare(request)
            await response.write(data[: len(data) // 2] if fault == "half" else data)
            return self._cut(request, response) if fault == "half" else response

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse, headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        transport = request.transport
        assert transport is not None
        self.open.add(transport)
        try:
            return await self._pieces(request, answer, response)
        finally:
            self.open.discard(transport)

    async def _pieces(
        self, request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse
    ) -> web.StreamResponse:
        left = int(self.rng.geometric(1 / self.cut_after)) if self.cut_after else None
        async for piece in answer.content.iter_chunked(PIECE):
            if left is not None:
                left -= 1
                if left < 0:
                    self.faults["stream"] += 1
                    await response.write(piece[: int(self.rng.integers(len(piece)))])
                    return self._cut(request, response)
            await response.write(piece)
            self.passed += 1
        return response

    def _cut(self, request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
        assert isinstance(request.transport, asyncio.Transport)
        if response is None:
            request.transport.abort()
        else:
            request.transport.close()
        return response or web.Response()


# -- connections that are cut -----------------------------------------------------------------------------------------

Cut = Literal["", "refused", "silent"]


class Wire:
    """Forwards connections to a port of this machine.

    Parameters
    ----------
    port : int
        The port to forward to.

    Attributes
    ----------
    cut : str
        Empty: the wire works. ``refused``: connections are closed at once. ``silent``: data is dropped without notice,
        as with an unplugged cable.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self.cut: Cut = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Wire:
        """Start to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    @property
    def port(self) -> int:
        """The port on which the wire listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The URL at which the wire listens."""
        return f"http://127.0.0.1:{self.port}"

    def set(self, cut: Cut) -> None:
        """Cut or repair the wire; unless it becomes ``silent``, close all open connections."""
        self.cut = cut
        if cut != "silent":
            for task in self._tasks:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._ends.add(writer)
        try:
            if self.cut == "refused":
                return
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", self._to)
                self._ends.add(back)
                try:
                    await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
                finally:
                    back.close()
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self.cut != "silent":
                writer.write(data)
                await writer.drain()
        writer.close()

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in self._ends:
            end.transport.abort()  # data that the other end no longer reads would keep the connection open


# -- a browser --------------------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")


_TIMEOUT_MS = 1000 * PATIENCE_S
"""Long enough for a busy machine; a page that works never takes this long."""


class Window:
    """A page of a browser, and all errors in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        self.asked: set[str] = set()
        page.on("console", lambda said: self._said(said.type, said.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.asked.add(request.url))

    def _said(self, kind: str, text: str) -> None:
        # The browser also logs each answer 401 or 503 there, which the pages expect and handle.
        if kind in ("error", "warning") and not text.startswith("Failed to load resource"):
            self.problems.append(text)

    async def go(self, url: str) -> None:
        """Open a page and wait until it has a heading."""
        await self.page.goto(url)
        await self.page.wait_for_selector("h1")


@contextlib.asynccontextmanager
async def a_browser() -> AsyncIterator[Browser]:
    """Yield a browser, which takes seconds to start; its windows share no cookies or storage."""
    from playwright.async_api import async_playwright, expect

    expect.set_options(timeout=_TIMEOUT_MS)
    # Chromium's sandbox does not work for root, and tests of the launcher run as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=_TIMEOUT_MS)
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def window_of(browser: Browser, **settings: Any) -> AsyncIterator[Window]:
    """Yield a window of a browser; `settings` are options of its context (viewport, color_scheme)."""
    context = await browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
    context.set_default_timeout(_TIMEOUT_MS)
    try:
        yield Window(await context.new_page())
    finally:
        await context.close()


@contextlib.asynccontextmanager
async def browsing(**settings: Any) -> AsyncIterator[Window]:
    """Yield the window of a new browser."""
    async with a_browser() as browser, window_of(browser, **settings) as window:
        yield window

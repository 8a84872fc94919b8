"""A proxy between a client and a gateway that fails under a seed: cuts, lost answers, refusals, cut streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import msgspec
import numpy as np
from aiohttp import web

FAULTS = ("before", "after", "half", "429", "502", "503", "504")
"""A connection that is cut before the request is passed on, after it was answered, in the middle of the answer; and
refusals that another try mends."""

_NOT_PASSED = frozenset(
    {"host", "transfer-encoding", "content-length", "connection", "content-encoding", "date", "server"}
)


PIECE = 300
"""Of streams that pass, in bytes at most."""


class FlakyProxy:
    """Passes requests on, and fails some of them.

    Parameters
    ----------
    target : str
        Where they go.
    rng : numpy.random.Generator
    chance : float
        How likely a request fails.
    cut_after : float, optional
        How many pieces of a stream pass before it is cut, on average; None: none is cut.

    Attributes
    ----------
    rng, chance, cut_after
        As given; tests change them.
    kinds : tuple of str
        How it fails.
    plan : list of str
        How the next requests fail, whatever the chance.
    passed : int
        Pieces of streams that have passed.
    open : set
        The connections of streams that are open.
    faults : collections.Counter
        How often it failed, by how.
    heard : list of (str, object)
        The path of each request that was passed on, and its body, or its query where it has none.
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
        """Cut all streams that are open."""
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

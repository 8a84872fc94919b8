"""A proxy between a client and a gateway that injects seeded faults: cuts, lost answers, refusals, cut streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import msgspec
import numpy as np
from aiohttp import web

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

"""A proxy between a client and a gateway that fails under a seed: cuts, lost answers, refusals, cut streams."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
import numpy as np
from aiohttp import web

FAULTS = ("before", "after", "half", "429", "502", "503", "504")
"""A connection that is cut before the request is passed on, after it was answered, in the middle of the answer; and
refusals that another try mends."""

_NOT_PASSED = frozenset(
    {"host", "transfer-encoding", "content-length", "connection", "content-encoding", "date", "server"}
)


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
    faults : collections.Counter
        How often it failed, by how.
    url : str
        Where it listens; set by who starts it.
    """

    def __init__(self, target: str, rng: np.random.Generator, *, chance: float, cut_after: float | None = None) -> None:
        self._target, self._rng, self.chance, self.cut_after = target, rng, chance, cut_after
        self.faults: Counter[str] = Counter()
        self.url = ""
        self.app = web.Application(client_max_size=64 << 20)
        self.app.add_routes([web.route("*", "/{rest:.*}", self._pass_on)])
        self.app.cleanup_ctx.append(self._opened)

    async def _opened(self, _: web.Application):  # type: ignore[no-untyped-def]
        self._session = aiohttp.ClientSession(auto_decompress=False)
        yield
        await self._session.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        fault = str(self._rng.choice(FAULTS)) if self._rng.random() < self.chance else ""
        self.faults[fault] += bool(fault)
        if fault.isdecimal():
            headers = {"Retry-After": "0"} if fault == "429" else {}
            return web.Response(status=int(fault), text="the proxy is busy", headers=headers)
        body = await request.read()
        if fault == "before":
            return self._cut(request)
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
        left = int(self._rng.geometric(1 / self.cut_after)) if self.cut_after else None
        async for piece in answer.content.iter_any():
            if left is not None:
                left -= 1
                if left < 0:
                    self.faults["stream"] += 1
                    await response.write(piece[: int(self._rng.integers(len(piece)))])
                    return self._cut(request, response)
            await response.write(piece)
        return response

    def _cut(self, request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
        assert isinstance(request.transport, asyncio.Transport)
        if response is None:
            request.transport.abort()
        else:
            request.transport.close()
        return response or web.Response()

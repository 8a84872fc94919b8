"""Helpers for tests of the client and its commands: a gateway to a grid in memory, and sleep that takes no time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
from aiohttp.test_utils import TestServer

from fake_backend import FakeBackend
from flaky_proxy import FlakyProxy
from gridweave.grid import api
from gridweave.grid.client.client import Client
from gridweave.grid.client.transport import Patience
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.gateway.server import Gateway
from gridweave.site.job import Accepted, Declined, JobRecord, JobRequest
from waiting import PATIENCE_S

COMMENT_S = 0.02
"""Interval of comments in an idle stream of events; the first comment has the number of the last event."""


class GridInMemory(FakeBackend):
    """A grid in memory with a hook for accepted jobs, and with forecasts that have every kind of reason.

    Attributes
    ----------
    runs : callable, optional
        Called for each accepted job.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runs: Callable[[JobRecord], None] | None = None

    def _take_in(self, key: str, request: JobRequest, site: str | None, origin: str) -> Accepted | Declined:
        answer = super()._take_in(key, request, site, origin)
        if self.runs is not None and isinstance(answer, Accepted):
            self.runs(self.records_by_id[answer.job_id])
        return answer

    def tell(self, job_id: int, kind: str, detail: str = "") -> None:
        """Add an event of a job."""
        self._note(job_id, kind, detail)

    async def forecast(self, job_id: int) -> api.Forecast | None:
        """Return a forecast of a job with reasons of all kinds."""
        record = self.records_by_id.get(job_id)
        return None if record is None else forecast(job_id, self.now_ms, record.request, record.state)

    async def quote(self, request: JobRequest, *, instead_of: int | None = None) -> api.Forecast:
        """Return a forecast of a job that is not submitted."""
        return forecast(None, self.now_ms, request, "waiting")


def forecast(job_id: int | None, now_ms: int, request: JobRequest, state: Any) -> api.Forecast:
    """Return a forecast with reasons of all kinds."""
    return api.Forecast(
        job_id=job_id,
        now_ms=now_ms,
        state=state,
        start_ms=now_ms + 600_000,
        places=(("north", request.nodes),),
        length_ms=request.limit_ms,
        ahead=2,
        reason="no site has 12 nodes free, and a split would end 4 minutes later",
        sites=(
            api.SiteReason(site="north", nodes=16, free=3, start_ms=now_ms + 600_000, reason="9 nodes are busy"),
            api.SiteReason(site="south", nodes=6, free=6, reason="has 6 nodes for the grid, and the job needs 12"),
        ),
        split=api.SplitReason(
            places=(("north", 3), ("south", 6)),
            start_ms=now_ms,
            length_ms=1_080_000,
            whole_ms=600_000,
            gain_ms=-240_000,
            reason="the links between north and south make it 1.8 times as long",
        ),
    )


class Served:
    """A gateway to a grid in memory, behind a proxy that records requests and fails on demand.

    Attributes
    ----------
    grid : GridInMemory
    proxy : FlakyProxy
    url : str
        Address of the proxy.
    """

    def __init__(self, grid: GridInMemory, proxy: FlakyProxy, url: str) -> None:
        self.grid, self.proxy, self.url = grid, proxy, url

    def heard(self, path: str) -> list[Any]:
        """Return the bodies of all requests to a path, or the queries of requests without a body."""
        return [said for heard, said in self.proxy.heard if heard == path]


@contextlib.asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Served]:
    """Yield a gateway on a port of this machine; stop it afterwards."""
    grid = GridInMemory()
    unlimited = {"requests_per_s": 1e6, "burst": 1e6, "comment_s": COMMENT_S}
    gateway = Gateway(grid, GatewaySettings(**{"port": 0, **unlimited, **settings}))
    await gateway.start()
    try:
        proxy = FlakyProxy(gateway.url, np.random.default_rng(7))
        async with TestServer(proxy.app) as server:
            yield Served(grid, proxy, str(server.make_url("")).rstrip("/"))
    finally:
        await gateway.stop()


class Elsewhere:
    """A gateway in the event loop of another thread.

    Attributes
    ----------
    gateway : Served
    grid : GridInMemory
    url : str
    """

    def __init__(self, **settings: Any) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self._context = served(**settings)
        self.gateway: Served = self.do(self._context.__aenter__())
        self.grid, self.url = self.gateway.grid, self.gateway.url

    def do(self, work: Any) -> Any:
        """Run a coroutine in that thread and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=PATIENCE_S)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call a function in that thread."""

        async def work() -> None:
            function(*args, **kwargs)

        self.do(work())

    def close(self) -> None:
        """Stop the gateway and its thread."""
        self.do(self._context.__aexit__(None, None, None))
        self.do(self._heard())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self._runner.close()

    async def _heard(self) -> None:
        """Let newly accepted connections notice that their clients are gone, so that they end."""
        for _ in range(10):
            await asyncio.sleep(0)


class Naps:
    """Replaces sleeping: records the length of each pause, and only yields to other tasks."""

    def __init__(self) -> None:
        self.lengths_s: list[float] = []

    async def __call__(self, length_s: float) -> None:
        """Record a pause without waiting."""
        self.lengths_s.append(length_s)
        await asyncio.sleep(0)


def patient(url: str, naps: Naps, seed: int = 1, **patience: Any) -> Client:
    """Return a client whose pauses take no time."""
    return Client(url, patience=Patience(**patience), rng=np.random.default_rng(seed), sleep=naps)

"""Probes over the links of a site's gateway: who may measure, and what is measured."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gridweave.errors import InputError, UnavailableError
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.gateway.link import LinkDoor, ProbeDoor
from gridweave.grid.gateway.server import Gateway
from gridweave.site.service.link import Secrets
from gridweave.site.service.probe_link import PROBE_PATH, LinkProbe, LinkProber, ProbeOrder, probe_key
from gridweave.site.service.prober import ProbeLimits, send
from support.gateway import FakeBackend
from support.machine import PATIENCE_S, make_certificate

SECRET, OLD = b"beta" * 10, b"older" * 10
SMALL = ProbeLimits(bytes=1 << 20, timeout_ms=2_000)


class Answering:
    """The gateway of beta, which answers probes."""

    def __init__(self, gateway: Gateway, turn: asyncio.Lock) -> None:
        self.gateway, self.turn = gateway, turn

    def order(self, secret: bytes = SECRET, **changes: Any) -> ProbeOrder:
        """Return alpha's order to measure the way there."""
        until_s = changes.pop("until_s", int(time.time()) + 60)
        key = probe_key(secret, changes.pop("origin", "alpha"), "beta", until_s)
        given = {"target": "beta", "url": self.gateway.url, "until_s": until_s, "key": key} | changes
        return ProbeOrder(**given)


@contextlib.asynccontextmanager
async def answering(folder: Path, *, probes: bool = True, **settings: Any) -> AsyncIterator[Answering]:
    """Yield a gateway that answers probes, or has no route for them."""
    path, turn = folder / "secrets", asyncio.Lock()
    path.write_bytes(SECRET + b"\n" + OLD + b"\n")
    secrets = Secrets(str(path))

    async def take(_site: str, _data: bytes) -> str | None:
        return None

    door = LinkDoor({"beta": secrets}, take, probes=ProbeDoor("beta", secrets, turn) if probes else None)
    gateway = Gateway(FakeBackend(), GatewaySettings(**{"port": 0, **settings}), link=door)
    await gateway.start()
    try:
        yield Answering(gateway, turn)
    finally:
        await gateway.stop()


async def measured(order: ProbeOrder, site: str = "alpha") -> LinkProbe:
    """Measure as a site does."""
    return await LinkProber(site, order, limits=SMALL).run()


@pytest.mark.asyncio
@pytest.mark.parametrize("secret", [SECRET, OLD])
async def test_a_site_with_a_key_measures_both_directions(tmp_path: Path, secret: bytes) -> None:
    """Round trips come with every probe and rates if they are asked for, with a key of any secret that is expected."""
    async with answering(tmp_path) as there:
        probe = await measured(there.order(secret))
        assert len(probe.round_trips_ms) == 10
        assert min(probe.round_trips_ms) > 0
        assert (probe.there_bps, probe.back_bps) == (0, 0)
        probe = await measured(there.order(secret, with_bandwidth=True))
        assert min(probe.there_bps, probe.back_bps) > 0
        assert not there.turn.locked()


@pytest.mark.asyncio
async def test_probes_go_over_tls(tmp_path: Path) -> None:
    """The certificates that the grid's side sends along are trusted, and no others."""
    cert, key = make_certificate(tmp_path, "beta")
    async with answering(tmp_path, cert=cert, key=key) as there:
        with pytest.raises(UnavailableError, match="certificate"):
            await measured(there.order())
        probe = await measured(there.order(ca=Path(cert).read_text()))
        assert len(probe.round_trips_ms) == 10


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "changes",
    [
        {"secret": b"wrong" * 10},
        {"until_s": 1},
        {"origin": "gamma"},
        {"target": "gamma"},
        {"key": b"k" * 32},
    ],
)
async def test_a_key_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A key of another secret, site or time opens nothing."""
    async with answering(tmp_path) as there:
        with pytest.raises(UnavailableError, match="answers with status 401, not with a probe"):
            await measured(there.order(**changes))


@pytest.mark.asyncio
async def test_the_other_end_shows_the_key_too(tmp_path: Path) -> None:
    """A gateway that lets everybody in, but has not the key, is found out."""
    async with answering(tmp_path) as there:
        order = there.order()
        stranger = LinkProber("alpha", order, limits=SMALL)
        stranger._secret = b"k" * 32  # what follows the greeting is made with this
        with pytest.raises(UnavailableError, match="has another secret"):
            await stranger.run()


@pytest.mark.asyncio
async def test_bandwidth_is_measured_by_one_at_a_time(tmp_path: Path) -> None:
    """A second site's bandwidth measurement is refused in one line while another is running."""
    async with answering(tmp_path) as there, there.turn:
        with pytest.raises(UnavailableError, match="another site is measuring the bandwidth there"):
            await measured(there.order(with_bandwidth=True))


@pytest.mark.asyncio
async def test_a_site_that_stops_reading_holds_up_no_probe_and_no_connection() -> None:
    """Data that the other end does not read is dropped when the prober gives up."""
    is_over = asyncio.Event()

    async def stops_reading(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        assert request.transport is not None
        request.transport.pause_reading()  # type: ignore[attr-defined]
        await is_over.wait()
        request.transport.abort()
        return socket

    async with TestServer(_app(stops_reading)) as server:
        prober = LinkProber("alpha", ProbeOrder(target="beta", url=str(server.make_url("")), until_s=0, key=SECRET))
        _, writer = await prober._open("127.0.0.1", server.port or 0)
        blocked = asyncio.ensure_future(send(writer, 64 << 20))
        await asyncio.wait([blocked], timeout=0.1)
        assert not blocked.done()
        blocked.cancel()
        writer.transport.abort()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await writer.wait_closed()
        finally:
            is_over.set()
        found = psutil.Process().net_connections("tcp")
        assert not [one for one in found if one.raddr and one.raddr.port == server.port and one.status == "ESTABLISHED"]


def _app(serve: Any) -> web.Application:
    app = web.Application()
    app.router.add_get(PROBE_PATH, serve)
    return app


@pytest.mark.asyncio
async def test_what_is_no_probe_is_a_problem(tmp_path: Path) -> None:
    """A plain request, one without a key, and a gateway that answers no probes are refused with the reason."""
    async with answering(tmp_path) as there, aiohttp.ClientSession() as session:
        async with session.get(there.gateway.url + PROBE_PATH) as got:
            assert (got.status, (await got.json())["type"]) == (401, "urn:gridweave:problem:link-refused")
        async with session.post(there.gateway.url + PROBE_PATH) as got:
            assert (got.status, got.headers["Allow"]) == (405, "GET")
    async with answering(tmp_path, probes=False) as there:
        with pytest.raises(UnavailableError, match="answers with status 404"):
            await measured(there.order())


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["", "ftp://beta", "beta:8765", "http://"])
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    """An order names the gateway by http or https."""
    order = ProbeOrder(target="beta", url=url, until_s=0, key=b"k" * 32)
    with pytest.raises(InputError, match="is not a gateway's address"):
        await measured(order)


@pytest.mark.asyncio
async def test_a_gateway_that_is_away_cannot_be_measured(tmp_path: Path) -> None:
    """If nobody listens, the error says so in one line."""
    async with answering(tmp_path) as there:
        order = there.order()
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await measured(order)

"""Tries, pauses and deadlines of the client, against a gateway behind a proxy that fails under a seed."""

from __future__ import annotations

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gridweave.errors import SiteAwayError, UnavailableError
from gridweave.grid.client.transport import MSGPACK, Patience, Pauses, Transport
from gridweave.site.job import JobRequest, Program
from support.gateway import GatewayBehindProxy, Naps, patient
from support.web import FAULTS, FlakyProxy


def request(name: str) -> JobRequest:
    """Return what is asked for."""
    return JobRequest(program=Program(argv=("true",)), limit_ms=60_000, user="anna", name=name)


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(4))
async def test_no_job_is_lost_or_doubled(gateway: GatewayBehindProxy, flaky: FlakyProxy, naps: Naps, seed: int) -> None:
    """However connections fail, each job is handed in once, with the number that its user is told."""
    flaky.rng, flaky.chance = np.random.default_rng(seed), 0.5
    told: list[tuple[int, str]] = []
    async with patient(gateway.url, naps, seed, total_s=1e9, connect_s=1e9) as grid:
        for number in range(20):
            names = [f"{number}-{place}" for place in range(1 + number % 3)]
            jobs = await grid.submit_many([request(name) for name in names])
            told += [(job.id, name) for job, name in zip(jobs, names, strict=True)]
        assert sorted(told) == sorted((job_id, r.request.name) for job_id, r in gateway.grid.records_by_id.items())
        assert [(await grid.record(job_id)).request.name for job_id, _ in told] == [name for _, name in told]
        assert await grid.cancel(job_id for job_id, _ in told) is not None
    assert all(record.outcome == "cancelled" for record in gateway.grid.records_by_id.values())
    assert sum(flaky.faults.values()) > 20
    # aiohttp itself tries once more what it may, where a connection that was kept open turns out to be cut.
    assert 0 < len(naps.lengths_s) <= sum(flaky.faults.values())


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_is_tried_again(
    gateway: GatewayBehindProxy, flaky: FlakyProxy, naps: Naps, fault: str
) -> None:
    """Each way in which a request can fail is mended by the next try, and is an error if all tries fail."""
    flaky.plan = [fault]
    async with patient(gateway.url, naps) as grid:
        assert len(await grid.sites()) == 2
        assert len(naps.lengths_s) == 1 or fault in ("before", "after", "half")  # see above
        flaky.chance, flaky.kinds = 1.0, (fault,)
        with pytest.raises(UnavailableError):
            await grid.sites()
    assert sum(naps.lengths_s[1:]) <= Patience().total_s


@pytest.mark.asyncio
async def test_a_gateway_says_how_long_to_wait(naps: Naps) -> None:
    """The client waits at least as long as it was told; if that is too long it says so at once."""
    waits = iter(["7", "0", "3600"])

    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": next(waits)}, text="too many requests")

    app = web.Application()
    app.router.add_get("/v1/sites", handler)
    async with TestServer(app) as server, patient(str(server.make_url("")), naps) as grid:
        with pytest.raises(UnavailableError, match="429"):
            await grid.sites()
    assert naps.lengths_s[0] == 7.0
    assert 0.1 <= naps.lengths_s[1] <= 0.2
    assert len(naps.lengths_s) == 2


@pytest.mark.asyncio
async def test_of_a_site_that_does_not_answer_one_is_told_at_once(
    gateway: GatewayBehindProxy, naps: Naps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway has waited for it already: the client asks once, and waits no more, with what is known."""

    async def away(*_: object, **__: object) -> None:
        raise SiteAwayError("site north does not answer; when it last did, it had 3 of 8 nodes free")

    monkeypatch.setattr(gateway.grid, "submit", away)
    async with patient(gateway.url, naps) as grid:
        with pytest.raises(SiteAwayError, match="it had 3 of 8 nodes free"):
            await grid.submit(request("there"), site="north")
    assert naps.lengths_s == []
    assert len(gateway.heard("/v1/jobs")) == 1


@pytest.mark.asyncio
async def test_an_answer_that_does_not_come(naps: Naps) -> None:
    """A try that takes too long is given up, and so is the request after all its time."""
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        import asyncio

        asked.append(request.path)
        await asyncio.Event().wait()
        return web.Response()

    app = web.Application()
    app.router.add_get("/v1/sites", handler)
    async with TestServer(app) as server, patient(str(server.make_url("")), naps, try_s=0.1, total_s=20.0) as grid:
        with pytest.raises(UnavailableError, match="does not answer in time"):
            await grid.sites()
    assert len(asked) > 1


@pytest.mark.asyncio
async def test_a_gateway_that_was_never_reached_is_given_up_sooner(naps: Naps) -> None:
    """Where nothing listens the client tries for its shorter time."""
    async with patient("http://127.0.0.1:9", naps, connect_s=100.0, total_s=1e9) as grid:
        with pytest.raises(UnavailableError):
            await grid.sites()
    assert 50.0 < sum(naps.lengths_s) <= 100.0


def test_pauses_grow_and_vary() -> None:
    """Each pause is between a half and the whole of twice the one before, up to the longest; the same under a seed."""
    patience = Patience(first_pause_s=0.1, longest_pause_s=2.0)
    pauses = Pauses(patience, np.random.default_rng(3))
    lengths = [[pauses.length_s(tries) for tries in range(1, 9)] for _ in range(50)]
    for most, found in zip((0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0), zip(*lengths, strict=True), strict=True):
        assert most / 2 <= min(found) < 0.6 * most
        assert 0.9 * most < max(found) <= most
    again = Pauses(patience, np.random.default_rng(3))
    assert [again.length_s(tries) for tries in range(1, 9)] == lengths[0]
    assert Pauses(patience).length_s(10**6) <= 2.0


@pytest.mark.asyncio
async def test_answers_may_be_json(naps: Naps) -> None:
    """A gateway that answers in JSON is understood, though MessagePack is asked for."""

    async def handler(request: web.Request) -> web.Response:
        assert MSGPACK in request.headers["Accept"]
        return web.json_response({"sites": [{"name": "north", "nodes": 4}]})

    app = web.Application()
    app.router.add_get("/grid/v1/sites", handler)
    async with TestServer(app) as server, patient(str(server.make_url("/grid/")), naps) as grid:
        assert [(site.name, site.nodes) for site in await grid.sites()] == [("north", 4)]
        assert isinstance(grid.transport, Transport)

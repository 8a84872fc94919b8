"""The routes of a link: who may use them, which version they speak, and what is not understood."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.gateway.link import MOST_BYTES, LinkDoor
from gridweave.grid.gateway.server import Gateway
from gridweave.site.service.link import LEAST_SECRET, Link, LinkEnd, Secrets
from support.gateway import FakeBackend, make_tokens
from support.machine import make_certificate

ALPHA, BETA, OTHER = "alpha" * 8, "beta" * 10, "other" * 10
GOOD = {
    "Authorization": f"Bearer {ALPHA}",
    "Gridweave-Site": "alpha",
    "Gridweave-Link": "1",
    "Content-Type": "application/msgpack",
}


class Side:
    """What is behind the door of a link: it keeps what it is given.

    Attributes
    ----------
    taken : list of (str, bytes)
    problem : str, optional
        Why packets are dropped.
    is_away : bool
    """

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes]] = []
        self.problem: str | None = None
        self.is_away = False

    async def take(self, site: str, data: bytes) -> str | None:
        """Take a packet."""
        if self.is_away:
            raise UnavailableError("actor site:alpha does not answer")
        self.taken.append((site, data))
        return self.problem

    async def answer(self, site: str, machine: str, method: str, data: bytes) -> bytes:
        """Answer with the question."""
        if method == "wrong":
            raise InputError("wrong cannot be asked")
        return f"{site} {machine} {method} ".encode() + data


@contextlib.asynccontextmanager
async def knocking(
    folder: Path, *, asks: bool = True, wants: bool = False, **settings: Any
) -> AsyncIterator[tuple[Side, Gateway]]:
    """Yield what is behind the door of a link, and the gateway that has the door."""
    accepts = {}
    for site, secret in (("alpha", ALPHA), ("beta", BETA)):
        (folder / site).write_text(f"\n {secret}  \n")
        accepts[site] = Secrets(str(folder / site))
    side = Side()
    door = LinkDoor(accepts, side.take, side.answer if asks else None, wants_certificate=wants)
    gateway = Gateway(FakeBackend(), GatewaySettings(**{"port": 0, **settings}), link=door)
    await gateway.start()
    try:
        yield side, gateway
    finally:
        await gateway.stop()


async def post(gateway: Gateway, path: str, headers: dict[str, str], data: bytes = b"x") -> tuple[int, bytes]:
    """Make a request as another end would; return status and body."""
    body = io.BytesIO(data)
    async with aiohttp.ClientSession() as session, session.post(gateway.url + path, data=body, headers=headers) as got:
        return got.status, await got.read()


def kind_of(data: bytes) -> str:
    """Return of which kind a problem is."""
    kind: str = msgspec.json.decode(data)["type"]
    return kind.removeprefix("urn:gridweave:problem:")


@pytest.mark.asyncio
async def test_a_packet_and_a_question(tmp_path: Path) -> None:
    """Who has the secret hands in packets, and asks the site and its machines."""
    async with knocking(tmp_path) as (side, gateway):
        assert await post(gateway, "/v1/link/packet", GOOD, b"packet") == (204, b"")
        assert side.taken == [("alpha", b"packet")]
        assert await post(gateway, "/v1/link/call/status", GOOD) == (200, b"alpha  status x")
        assert await post(gateway, "/v1/link/call/m0/part", GOOD) == (200, b"alpha m0 part x")
        assert await post(gateway, "/v1/link/beat", GOOD, b"") == (200, b"")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "status", "kind"),
    [
        ({"Authorization": f"Bearer {OTHER}"}, 401, "link-refused"),
        ({"Authorization": f"Bearer {BETA}"}, 401, "link-refused"),
        ({"Authorization": f"Basic {ALPHA}"}, 401, "link-refused"),
        ({"Authorization": "Bearer \u00e4"}, 401, "link-refused"),
        ({"Authorization": ""}, 401, "link-refused"),
        ({"Gridweave-Site": "gamma"}, 401, "link-refused"),
        ({"Gridweave-Site": "beta"}, 401, "link-refused"),
        ({"Gridweave-Link": "2"}, 400, "link-version"),
        ({"Gridweave-Link": ""}, 400, "link-version"),
        ({"Content-Type": "application/json"}, 415, "unsupported-media-type"),
        ({"Content-Encoding": "gzip"}, 415, "unsupported-media-type"),
    ],
)
async def test_who_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, str], status: int, kind: str) -> None:
    """A wrong secret, that of another site, another version or form is a problem, and nothing is taken in."""
    async with knocking(tmp_path) as (side, gateway):
        got, body = await post(gateway, "/v1/link/packet", GOOD | changes)
        assert (got, kind_of(body)) == (status, kind)
        assert side.taken == []
        assert ALPHA not in body.decode()


@pytest.mark.asyncio
async def test_users_and_links_are_kept_apart(tmp_path: Path) -> None:
    """A user's token, be it an operator's, opens no link, and the secret of a link nothing but that."""
    tokens = make_tokens(tmp_path / "tokens", olga="operate")
    async with knocking(tmp_path, tokens=str(tmp_path / "tokens")) as (side, gateway):
        as_user = GOOD | {"Authorization": f"Bearer {tokens['olga']}"}
        status, body = await post(gateway, "/v1/link/packet", as_user)
        assert (status, kind_of(body)) == (401, "link-refused")
        status, body = await post(gateway, "/v1/jobs", GOOD)
        assert (status, kind_of(body)) == (401, "unauthenticated")
        assert side.taken == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/v1/link/other", 404, "unknown-route"),
        ("/v1/link/call/", 404, "unknown-route"),
        ("/v1/link/call/a/b/c", 404, "unknown-route"),
        ("/v1/link/call/a%20b", 404, "unknown-route"),
        ("/v1/link/call/wrong", 422, "invalid-request"),
    ],
)
async def test_what_there_is_not(tmp_path: Path, path: str, status: int, kind: str) -> None:
    """A path that names nothing, or a question that cannot be asked, is a problem."""
    async with knocking(tmp_path) as (_, gateway):
        got, body = await post(gateway, path, GOOD)
        assert (got, kind_of(body)) == (status, kind)


@pytest.mark.asyncio
async def test_the_side_that_is_asked_nothing_has_no_route_for_it(tmp_path: Path) -> None:
    """The grid's side takes packets alone."""
    async with knocking(tmp_path, asks=False) as (_, gateway):
        status, body = await post(gateway, "/v1/link/call/status", GOOD)
        assert (status, kind_of(body)) == (404, "unknown-route")
        async with aiohttp.ClientSession() as session, session.get(f"{gateway.url}/v1/link/packet") as got:
            assert (got.status, got.headers["Allow"]) == (405, "POST")


@pytest.mark.asyncio
async def test_garbage_and_what_is_too_large(tmp_path: Path) -> None:
    """A packet that cannot be read, an actor that is away, and a body without end are problems, never an error."""
    async with knocking(tmp_path) as (side, gateway):
        side.problem = "the packet cannot be read"
        status, body = await post(gateway, "/v1/link/packet", GOOD, b"\xc1 garbage")
        assert (status, kind_of(body)) == (400, "malformed-body")
        side.is_away = True
        status, body = await post(gateway, "/v1/link/packet", GOOD)
        assert (status, kind_of(body)) == (503, "unavailable")
        with contextlib.suppress(aiohttp.ClientError):  # it may stop reading before all is sent
            status, body = await post(gateway, "/v1/link/packet", GOOD, b"x" * (MOST_BYTES + 1))
            assert (status, kind_of(body)) == (413, "body-too-large")


@pytest.mark.asyncio
async def test_users_limits_are_not_for_links(tmp_path: Path) -> None:
    """Where users may make one request a second the other end of a link makes as many as it has to."""
    async with knocking(tmp_path, requests_per_s=0.001, burst=1.0) as (side, gateway):
        for _ in range(20):
            assert (await post(gateway, "/v1/link/packet", GOOD))[0] == 204
        assert len(side.taken) == 20


@pytest.mark.asyncio
async def test_a_link_and_its_secret(tmp_path: Path) -> None:
    """The real other end is understood; a secret changed at one end after the other goes on working."""
    async with knocking(tmp_path) as (side, gateway):
        mine = tmp_path / "mine"
        mine.write_text(ALPHA)
        link = Link(LinkEnd(site="alpha", url=gateway.url, token_file=str(mine)))
        await link.packet(b"p" * (2 << 20))
        assert len(side.taken[0][1]) == 2 << 20
        assert await link.ask("m0", "part", b"q") == b"alpha m0 part q"
        (tmp_path / "alpha").write_text(f"{OTHER}\n{ALPHA}\n")
        await link.packet(b"still")
        mine.write_text(OTHER)
        await link.packet(b"new")
        (tmp_path / "alpha").write_text(OTHER)
        await link.packet(b"new")
        assert (link.status.answered, link.status.failed, link.status.problem) == (5, 0, "")
        side.is_away = True
        with pytest.raises(UnavailableError, match="site:alpha does not answer"):
            await link.packet(b"lost")
        assert link.status.failed == 1
        await link.close()
    with pytest.raises(UnavailableError, match="does not answer"):
        await link.packet(b"nobody listens")
    await link.close()


@pytest.mark.asyncio
async def test_no_more_than_some_packets_are_under_way(tmp_path: Path) -> None:
    """While the other end is silent packets beyond a few are lost at once: they do not heap up."""

    async def swallow(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    gone = asyncio.Event()
    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    (tmp_path / "mine").write_text(ALPHA)
    port = server.sockets[0].getsockname()[1]
    link = Link(LinkEnd(site="alpha", url=f"http://127.0.0.1:{port}", token_file=str(tmp_path / "mine")))
    waiting = [asyncio.ensure_future(link.packet(b"x")) for _ in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="4 packets are already in transit"):
        await link.packet(b"x")
    gone.set()
    assert all(isinstance(end, UnavailableError) for end in await asyncio.gather(*waiting, return_exceptions=True))
    await link.close()
    server.close()


@pytest.mark.parametrize("text", ["", "short", "x" * (LEAST_SECRET - 1), "a b" * 20, "\u00e4" * 40])
def test_what_is_no_secret(tmp_path: Path, text: str) -> None:
    """A file without a secret is refused, and says what one is."""
    (tmp_path / "secret").write_text(text)
    with pytest.raises(OptionError, match="openssl rand -hex 32"):
        Secrets(str(tmp_path / "secret"))
    with pytest.raises(OptionError, match="name a file that you can read"):
        Secrets(str(tmp_path / "missing"))


@pytest.mark.asyncio
async def test_with_certificates_both_ends_show_one(tmp_path: Path) -> None:
    """With `client_ca` a link without a certificate that it has signed is refused, and users need none."""
    cert, key = make_certificate(tmp_path, "server")
    other_cert, other_key = make_certificate(tmp_path, "other")
    (tmp_path / "mine").write_text(ALPHA)
    async with knocking(tmp_path, wants=True, cert=cert, key=key, client_ca=other_cert) as (side, gateway):
        end = LinkEnd(site="alpha", url=gateway.url, token_file=str(tmp_path / "mine"), ca=cert)
        without = Link(end)
        with pytest.raises(UnavailableError, match="no certificate was shown"):
            await without.packet(b"x")
        wrong = Link(msgspec.structs.replace(end, cert=cert, key=key))
        with pytest.raises(UnavailableError):
            await wrong.packet(b"x")
        assert side.taken == []
        good = Link(msgspec.structs.replace(end, cert=other_cert, key=other_key))
        await good.packet(b"x")
        assert side.taken == [("alpha", b"x")]
        trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=cert))
        async with aiohttp.ClientSession(connector=trusting) as session, session.get(f"{gateway.url}/healthz") as got:
            assert got.status == 200
        untrusting = Link(msgspec.structs.replace(end, ca=other_cert))
        with pytest.raises(UnavailableError, match="certificate verify failed"):
            await untrusting.packet(b"x")
        for link in (without, wrong, good, untrusting):
            await link.close()

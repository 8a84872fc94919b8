"""The receiving end of links (docs/link.md): authentication, version check, and dispatch.

Links are separate from users: a user's token does not open a link, and a link's secret opens nothing else. Other
sites' probes also arrive at this end, with keys derived from the secrets (docs/link.md, "Probes").
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import cast

from aiohttp import web

from gridweave.grid.gateway.call import GatewayCall, HttpRoute, Router, route
from gridweave.grid.gateway.limits import Slots
from gridweave.grid.gateway.problems import RefusalError
from gridweave.site.service.link import (
    BEAT_PATH,
    BODY_FORM,
    CALL_PATH,
    LINK_PATH,
    LINK_VERSION,
    PACKET_PATH,
    SITE_HEADER,
    VERSION_HEADER,
    Secrets,
)
from gridweave.site.service.probe_link import (
    CLOSE_S,
    PROBE_HEADER,
    PROBE_PATH,
    WebSocketStreams,
    probe_key,
    probe_tag,
)
from gridweave.site.service.probe_server import ProbeServer
from gridweave.site.service.prober import BLOCK_BYTES

MOST_BYTES = 64 << 20
"""Maximum body size in bytes. The driver keeps packets well below this size (`MOST_PACKET_BYTES`), unless a single job
is larger."""

_MOST_AT_ONCE, _MOST_PROBES = 200, 16
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)

TakePacket = Callable[[str, bytes], Awaitable[str | None]]
"""Handles a packet from a site; returns why the packet was dropped, or None."""

Answer = Callable[[str, str, str, bytes], Awaitable[bytes]]
"""Answers a query, given the site, the machine (empty: the site itself), the method and its encoded arguments."""


class ProbeDoor:
    """Answers other sites' probes over WebSockets.

    The lock ``turn`` is held while bandwidth is measured. The site also holds it for its own measurements, so that two
    measurements never overlap.
    """

    def __init__(self, site: str, accepts: Secrets, turn: asyncio.Lock) -> None:
        self._site, self._accepts, self._turn = site, accepts, turn
        self._under_way = 0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve one probe connection; raise RefusalError if its key is invalid."""
        key = self._key_of(request)
        if self._under_way >= _MOST_PROBES:
            raise RefusalError("too-many-at-once", f"{_MOST_PROBES} probes are being answered; try later")
        socket = web.WebSocketResponse(timeout=CLOSE_S, compress=False, max_msg_size=2 * BLOCK_BYTES)
        if not socket.can_prepare(request).ok:
            raise RefusalError("bad-http", "a probe is a WebSocket: send Upgrade: websocket")
        self._under_way += 1
        try:
            await socket.prepare(request)

            async def cut() -> None:
                if request.transport is not None:
                    request.transport.abort()

            streams = WebSocketStreams(socket, cut)
            try:
                await ProbeServer(key, turn=self._turn).answer(*streams.streams)
            finally:
                await streams.wait_closed()
        finally:
            self._under_way -= 1
        return socket

    def _key_of(self, request: web.BaseRequest) -> bytes:
        """Return the key that the other end has authenticated with, or raise RefusalError."""
        headers = request.headers
        origin, until, tag = [*headers.get(PROBE_HEADER, "").split(" "), "", "", ""][:3]
        until_s = int(until) if until.isascii() and until.isdigit() and len(until) < 16 else 0
        keys = [probe_key(secret, origin, self._site, until_s) for secret in self._accepts.all()]
        fits = [hmac.compare_digest(tag.encode("utf-8", "replace"), probe_tag(key).encode()) for key in keys]
        if headers.get(SITE_HEADER, "") != self._site or not any(fits):
            raise RefusalError("link-refused", f"{PROBE_HEADER} does not fit the secret of the link of {self._site}")
        if until_s <= time.time():
            raise RefusalError("link-refused", "the key is no longer valid; do the clocks of both ends agree?")
        if (version := headers.get(VERSION_HEADER, "")) != LINK_VERSION:
            problem = f"{VERSION_HEADER} is {version!r:.50}, and this end speaks {LINK_VERSION}"
            raise RefusalError("link-version", f"{problem}: bring both to one release")
        return keys[fits.index(True)]


class LinkDoor:
    """Receives requests over links.

    `accepts` maps sites to secrets. Without `answer`, the other ends cannot send queries; without `probes`, other
    sites cannot measure the network path to this end. `problem` returns why this end does not reach a site, or "".
    `heard_ms` has the Unix time of each site's last request.
    """

    def __init__(
        self,
        accepts: Mapping[str, Secrets],
        take: TakePacket,
        answer: Answer | None = None,
        *,
        wants_certificate: bool = False,
        problem: Callable[[str], str] = lambda site: "",
        probes: ProbeDoor | None = None,
    ) -> None:
        self._accepts, self._take, self._answer, self._problem = dict(accepts), take, answer, problem
        self._wants_certificate, self._probes = wants_certificate, probes
        self.router = Router(self._routes(), self._serve, "docs/link.md lists all paths")
        self._slots = Slots(_MOST_AT_ONCE, "too-many-at-once", "requests of this link")
        self.heard_ms: dict[str, int] = {}

    @property
    def sites(self) -> list[str]:
        """Names of the sites whose links end here."""
        return list(self._accepts)

    def heard_s(self, site: str) -> float:
        """Return the Unix time in seconds of a site's last request; 0 if there was none."""
        return self.heard_ms.get(site, 0) / 1000

    def _routes(self) -> Iterator[HttpRoute]:
        yield route(f"POST {PACKET_PATH}", self._packet, None, name="link_packet")
        yield route(f"POST {BEAT_PATH}", self._beat, None, name="link_beat")
        if self._answer is not None:
            for path in ("{method}", "{machine}/{method}"):
                yield route(f"POST {CALL_PATH}/{path}", self._call, None, name="link_call")
        if self._probes is not None:
            yield route(f"GET {PROBE_PATH}", self._probes.answer, None, name="link_probe", is_stream=True)

    async def _serve(self, route: HttpRoute, call: GatewayCall) -> web.StreamResponse:
        """Answer a site's request or a probe."""
        call.route = route
        if route.is_stream:
            return cast("web.StreamResponse", await route.handler(call.request))
        site = self._identify(call)
        call.target = site
        if (form := call.request.headers.get("Content-Type", "")) != BODY_FORM:
            raise RefusalError("unsupported-media-type", f"Content-Type is {form!r:.100}; send {BODY_FORM}")
        with self._slots.hold(site), call.parts.memory.holding() as take:
            data = await call.read_body(MOST_BYTES, take)
            self.heard_ms[site] = time.time_ns() // 1_000_000
            return cast("web.StreamResponse", await route.handler(call, site, data))

    async def _packet(self, _call: GatewayCall, site: str, data: bytes) -> web.Response:
        problem = await self._take(site, data)
        if problem is not None:
            raise RefusalError("malformed-body", problem)
        return web.Response(status=204)

    async def _beat(self, _call: GatewayCall, site: str, _data: bytes) -> web.Response:
        return web.Response(text=self._problem(site))

    async def _call(self, call: GatewayCall, site: str, data: bytes) -> web.Response:
        assert self._answer is not None, "the route exists only with an answer"
        machine, method = call.names.get("machine"), call.names["method"]
        if not all(_NAME.fullmatch(name) for name in (machine, method) if name is not None):
            detail = f"{call.request.path!r:.200} is unknown; send {CALL_PATH}/[MACHINE/]METHOD"
            raise RefusalError("unknown-route", detail)
        return web.Response(body=await self._answer(site, machine or "", method, data), content_type=BODY_FORM)

    def _identify(self, call: GatewayCall) -> str:
        """Return a request's site if its secret, certificate and version are right, or raise RefusalError."""
        headers = call.request.headers
        site = headers.get(SITE_HEADER, "")
        scheme, _, secret = headers.get("Authorization", "").partition(" ")
        credentials = self._accepts.get(site)
        # An unknown site takes as long as a wrong secret, and gets the same answer.
        fits = (credentials or next(iter(self._accepts.values()))).accepts(secret.strip())
        if credentials is None or not fits or scheme.lower() != "bearer":
            detail = f"{SITE_HEADER} {site!r:.100} and the secret do not fit: see token_file there, accepts_file here"
            raise RefusalError("link-refused", detail, headers={"WWW-Authenticate": 'Bearer realm="gridweave link"'})
        if self._wants_certificate and not _certificate(call.request):
            problem = "no certificate was shown: cert and key there, signed by client_ca here"
            raise RefusalError("link-refused", problem, headers={"Connection": "close"})
        if (version := headers.get(VERSION_HEADER, "")) != LINK_VERSION:
            problem = (
                f"{VERSION_HEADER} is {version!r:.50}, and this end speaks {LINK_VERSION}: bring both to one release"
            )
            raise RefusalError("link-version", problem)
        return site


def _certificate(request: web.BaseRequest) -> bool:
    """Whether the other end has presented a certificate; TLS has already verified it."""
    tls = None if request.transport is None else request.transport.get_extra_info("ssl_object")
    return tls is not None and bool(tls.getpeercert())


def is_of_link(path: str) -> bool:
    """Whether a path belongs to a link."""
    return path.startswith(f"{LINK_PATH}/")

"""The end of a link that takes what the other one sends (docs/link.md): who it is, which version, and then what.

A link has nothing to do with users: their tokens do not open it, and its secrets open nothing else. Probes of other
sites come in here too, with keys that are made of the secrets (docs/link.md, "Probes").
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from gridweave.grid.gateway.call import GatewayCall, HttpRoute, route
from gridweave.grid.gateway.limits import Slots
from gridweave.grid.gateway.problems import RefusalError, wrong_method
from gridweave.grid.gateway.wire import read_body
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
from gridweave.site.service.probes.link import (
    CLOSE_S,
    PROBE_HEADER,
    PROBE_PATH,
    WebSocketStreams,
    probe_key,
    probe_tag,
)
from gridweave.site.service.probes.prober import BLOCK_BYTES
from gridweave.site.service.probes.server import ProbeServer

MOST_BYTES = 64 << 20
"""Of a body. Packets are cut well before that (`MOST_PACKET_BYTES` of the driver), unless one job fills them."""

_MOST_AT_ONCE, _MOST_PROBES = 200, 16
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)

TakePacket = Callable[[str, bytes], Awaitable[str | None]]
"""Takes a packet of a site's link; returns why it was dropped, if it was."""

Answer = Callable[[str, str, str, bytes], Awaitable[bytes]]
"""Answers what is asked: site, machine (empty: the site itself), method and arguments."""


class ProbeDoor:
    """Answers probes of a site over WebSockets.

    The ``turn`` is held while bandwidth is measured. The site holds it when it measures itself, so that the two do not
    overlap.
    """

    def __init__(self, site: str, accepts: Secrets, turn: asyncio.Lock) -> None:
        self._site, self._accepts, self._turn = site, accepts, turn
        self._under_way = 0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one connection; RefusalError unless it has a valid key."""
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

            await ProbeServer(key, turn=self._turn).answer(*WebSocketStreams(socket, cut).streams)
        finally:
            self._under_way -= 1
        return socket

    def _key_of(self, request: web.BaseRequest) -> bytes:
        """Return the key for which the other end has sent a proof."""
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
    """Where the other ends of links knock.

    `accepts` has by site what is expected of its other end; without `answer` nothing can be asked here, without
    `probes` no other site measures the way to here. `problem` says of a site why this end does not reach it now, if it
    knows. `heard_ms` is when each end was heard last, in Unix time.
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
        self._slots = Slots(_MOST_AT_ONCE, "too-many-at-once", "requests of this link")
        self.heard_ms: dict[str, int] = {}

    @property
    def sites(self) -> list[str]:
        """The sites whose links end here."""
        return list(self._accepts)

    def heard_s(self, site: str) -> float:
        """Return when the other end of a link was heard last, in Unix time; 0: not yet."""
        return self.heard_ms.get(site, 0) / 1000

    def route(self, call: GatewayCall) -> HttpRoute:
        """Return what a request is for."""
        path, method = call.request.path, call.request.method
        if path == PACKET_PATH:
            found = _PACKET
        elif path == BEAT_PATH:
            found = _BEAT
        elif path == PROBE_PATH and self._probes is not None:
            found = _PROBE
        elif self._answer is not None and path.startswith(f"{CALL_PATH}/"):
            found = _CALL
        else:
            raise RefusalError("unknown-route", f"there is nothing at {path!r:.200}; docs/link.md lists what there is")
        if method != found.method:
            raise wrong_method(path, method, [found.method])
        return found

    async def handle(self, call: GatewayCall) -> web.StreamResponse:
        """Answer a request of the other end, or a probe of another site."""
        call.route = self.route(call)
        if call.route is _PROBE:
            assert self._probes is not None, "a route without an answer"
            return await self._probes.answer(call.request)
        site = self._identify(call)
        call.target = site
        if (form := call.request.headers.get("Content-Type", "")) != BODY_FORM:
            raise RefusalError("unsupported-media-type", f"Content-Type is {form!r:.100}; send {BODY_FORM}")
        settings = call.parts.settings
        with self._slots.one(site), call.parts.memory.holding() as take:
            data = await read_body(call.request, MOST_BYTES, settings.body_timeout_s, take)
            self.heard_ms[site] = time.time_ns() // 1_000_000
            if call.route is _BEAT:
                return web.Response(text=self._problem(site))
            if call.route is _PACKET:
                problem = await self._take(site, data)
                if problem is not None:
                    raise RefusalError("malformed-body", problem)
                return web.Response(status=204)
            answer = await self._ask(call.request.path, site, data)
            return web.Response(body=answer, content_type=BODY_FORM)

    async def _ask(self, path: str, site: str, data: bytes) -> bytes:
        assert self._answer is not None, "a route without an answer"
        parts = path.removeprefix(f"{CALL_PATH}/").split("/")
        if len(parts) > 2 or not all(_NAME.fullmatch(part) for part in parts):
            raise RefusalError("unknown-route", f"{path!r:.200} leads nowhere; {CALL_PATH}/[MACHINE/]METHOD")
        return await self._answer(site, parts[0] if len(parts) == 2 else "", parts[-1], data)

    def _identify(self, call: GatewayCall) -> str:
        """Return the site whose link it is, if the other end has its secret and speaks as this one does."""
        headers = call.request.headers
        site = headers.get(SITE_HEADER, "")
        scheme, _, secret = headers.get("Authorization", "").partition(" ")
        known = self._accepts.get(site)
        # What is not known takes as long, and is told no other thing, than what is wrong.
        fits = (known or next(iter(self._accepts.values()))).accepts(secret.strip())
        if known is None or not fits or scheme.lower() != "bearer":
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
    """Return whether the other end has shown a certificate; TLS has found it good then."""
    tls = None if request.transport is None else request.transport.get_extra_info("ssl_object")
    return tls is not None and bool(tls.getpeercert())


async def _never(call: GatewayCall) -> web.Response:
    raise AssertionError("a link is not answered by the table of routes")


_PACKET = route(f"POST {PACKET_PATH}", _never, None, name="link_packet")
_BEAT = route(f"POST {BEAT_PATH}", _never, None, name="link_beat")
_CALL = route(f"POST {CALL_PATH}/{{method}}", _never, None, name="link_call")
_PROBE = route(f"GET {PROBE_PATH}", _never, None, name="link_probe", is_stream=True)


def is_of_link(path: str) -> bool:
    """Return whether a path is one of a link."""
    return path.startswith(f"{LINK_PATH}/")

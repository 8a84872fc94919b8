"""The gateway's HTTP server in front of a live grid (docs/gateway.md)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import secrets
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gridweave.errors import GridweaveError, InputError, OptionError, SiteAwayError, UnavailableError
from gridweave.grid.api import Scope
from gridweave.grid.backend import Backend
from gridweave.grid.config.gateway import Certificate, GatewaySettings, is_loopback
from gridweave.grid.gateway.access import EVERYBODY, AsyncTokens, Identity, TokenStore, identify
from gridweave.grid.gateway.audit import AuditEntry, AuditLog, audit_place
from gridweave.grid.gateway.browser import LoginCodes, check_browser
from gridweave.grid.gateway.call import GatewayCall, HttpRoute, Parts, Router, cut
from gridweave.grid.gateway.connections import Logins, OpenConnections
from gridweave.grid.gateway.hub import EventHub
from gridweave.grid.gateway.issuer import Issuer
from gridweave.grid.gateway.limits import Memory, OpenJobs, Rates, Slots, Turns
from gridweave.grid.gateway.link import LinkDoor, is_of_link
from gridweave.grid.gateway.metrics import GatewayMetrics, LoggedRequest, is_valid_id, log_request, time_text
from gridweave.grid.gateway.pages import is_of_web, send_file
from gridweave.grid.gateway.problems import RefusalError
from gridweave.grid.gateway.routes import ROUTES
from gridweave.grid.gateway.wire import (
    NoParameters,
    accepted,
    body_form,
    decode,
    encode,
    parameters,
    problem_response,
)
from gridweave.site.service.link import Link

logger = logging.getLogger("gridweave.gateway")

_LINGER_S = 2.0
_CHECK_CERTIFICATE_S = 30.0
_LOG_EVERY_S = 60.0
_DISCONNECTED = 499
_OTHER_FILES = 256
"""Maximum number of files that a gateway has open, not counting its connections."""


class Gateway:
    """A gateway in front of a live grid.

    `link` receives requests over links; `links` are this process's own link ends, whose requests are counted.
    """

    def __init__(
        self,
        backend: Backend,
        settings: GatewaySettings,
        *,
        link: LinkDoor | None = None,
        links: Mapping[str, Link] | None = None,
    ) -> None:
        self.settings = settings
        self._link = link
        self._router = Router(ROUTES, self._serve, "/openapi.json lists all paths")
        self._certificate: Certificate | None = None
        if settings.cert is not None and settings.key is not None:
            self._certificate = Certificate(settings.cert, settings.key, settings.client_ca)
        self._parts = _parts(backend, settings)
        audit = audit_place(settings.tokens, settings.audit)
        self._audit = None if audit is None else AuditLog(audit)
        hub = self._parts.hub
        if link is not None:
            self._parts.metrics.watch_links(links or {}, link.sites, link.heard_s)
        hub.listeners += [self._parts.metrics.heard, self._parts.open_jobs.heard]
        hub.on_begin.append(self._parts.open_jobs.load)
        hub.on_unavailable = self._parts.metrics.backend_failed
        self.connections: OpenConnections[web.RequestHandler] = OpenConnections(
            settings.max_connections, settings.max_connections_per_address
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._runner: web.ServerRunner | None = None
        self._n_closed, self._log_closed_s = 0, 0.0
        self.port = 0

    @property
    def url(self) -> str:
        """URL of the gateway."""
        host = self.settings.host
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def start(self) -> None:
        """Start listening; the grid does not have to answer yet."""
        _allow_files(self.settings.max_connections + _OTHER_FILES)
        server = _Server(self, handler_cancellation=True, keepalive_timeout=self.settings.idle_s)
        self._runner = web.ServerRunner(server, shutdown_timeout=self.settings.stop_s)
        await self._runner.setup()
        context = None if self._certificate is None else self._certificate.context
        site = web.TCPSite(self._runner, self.settings.host, self.settings.port, ssl_context=context, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            where = f"{self.settings.host}:{self.settings.port}"
            raise OptionError("port", f"{where}: {error.strerror}; name another address or port") from None
        self.port = int(self._runner.addresses[0][1])
        self._parts.hub.start()
        self._tasks = [asyncio.create_task(self._parts.open_jobs.settle())]
        tokens = self._parts.tokens
        if tokens is not None and tokens.issuer is not None:
            self._tasks.append(asyncio.create_task(tokens.issuer.look()))
        if self._certificate is not None:
            self._tasks.append(asyncio.create_task(self._renew_certificate()))

    async def stop(self) -> None:
        """Stop the gateway: accept no more requests, end all streams, and finish the requests in progress."""
        await self._parts.hub.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
        if self._parts.tokens is not None:
            await asyncio.to_thread(self._parts.tokens.close)

    def reload_certificate(self) -> None:
        """Reload the certificate and its key; only new connections use them."""
        if self._certificate is None:
            return
        try:
            self._certificate.reload()
        except OptionError as error:
            logger.error("the old certificate stays in use: %s", error)
        else:
            logger.info("the certificate was reloaded")

    async def _renew_certificate(self) -> None:
        while self._certificate is not None:
            await asyncio.sleep(_CHECK_CERTIFICATE_S)
            if self._certificate.has_changed():
                self.reload_certificate()

    # -- one request --------------------------------------------------------------------------------------------------

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        begin_s = time.monotonic()
        self.connections.busy(request.protocol)
        call = self._call(request)
        status, problem = _DISCONNECTED, ""
        try:
            try:
                response = await self._answer(call)
            except RefusalError as error:
                response, problem = self._refused(call, error), error.kind
            status = response.status
            return response
        except ConnectionError:
            cut(request)
            raise
        finally:
            self._log(call, status, problem, time.monotonic() - begin_s)

    async def _answer(self, call: GatewayCall) -> web.StreamResponse:
        try:
            return await self._dispatch(call)
        except RefusalError:
            raise
        except InputError as error:
            raise RefusalError("invalid-request", str(error)) from None
        except SiteAwayError as error:
            raise RefusalError("site-unavailable", str(error)) from None
        except UnavailableError as error:
            self._parts.metrics.backend_failed()
            raise RefusalError("unavailable", str(error), retry_after_s=1.0) from None
        except GridweaveError as error:
            raise RefusalError("internal", str(error)) from None
        except ConnectionError:
            raise
        except Exception as error:
            logger.exception("request %s failed", call.request_id)
            problem = f"see the gateway's log under this request's id ({type(error).__name__})"
            raise RefusalError("internal", problem) from None

    async def _authorize(self, call: GatewayCall, route: HttpRoute, scope: Scope) -> None:
        """Authenticate the client, then check its scope and its request rate."""
        call.identity = await self._identified(call)
        if route.makes_tokens and call.identity.info.is_login:
            raise RefusalError("forbidden", "a browser login cannot create tokens; send the request with a token")
        if not call.identity.may(scope):
            scopes = ", ".join(call.identity.info.scopes)
            raise RefusalError("forbidden", f"the token has the scopes {scopes}; {scope} is needed")
        self._check_rate(call)

    async def _dispatch(self, call: GatewayCall) -> web.StreamResponse:
        path = call.request.path
        if self._link is not None and is_of_link(path):
            return self._finished(call, await self._link.router.answer(call))
        if self._parts.tokens is None:
            check_browser(call.request)
        if is_of_web(path):
            return send_file(call)
        return await self._router.answer(call)

    async def _serve(self, route: HttpRoute, call: GatewayCall) -> web.StreamResponse:
        """Answer a call that matched this route."""
        request, parts = call.request, self._parts
        call.route = route
        if route.scope is not None:
            await self._authorize(call, route, route.scope)
        form = accepted(request.headers.get("Accept", ""), route.media_types)
        if form is None:
            raise RefusalError("not-acceptable", f"Accept names none of {', '.join(route.media_types)}")
        call.answer_form = form
        query = parameters(request.query, NoParameters if route.query is None else route.query)
        args = {} if route.query is None else {"query": query}
        if route.is_stream:
            return await self._respond(call, route, args)
        # An unauthenticated client shares its slots only with clients at the same address.
        client = call.identity.user or f"at {request.remote}"
        with parts.at_once.hold(client), parts.memory.holding() as take:
            if route.body is not None:
                call.form = body_form(request)
                call.data = await call.read_body(route.most_bytes(self.settings), take)
                if not route.reads_body:
                    args["body"] = decode(call.data, call.form, route.body)
            return await self._respond(call, route, args)

    async def _identified(self, call: GatewayCall) -> Identity:
        try:
            return await identify(call.request, self._parts.tokens, self._parts.logins)
        except RefusalError as error:
            call.login_failed = error.kind == "unauthenticated" and "Authorization" in call.request.headers
            raise

    async def _respond(self, call: GatewayCall, route: HttpRoute, args: dict[str, Any]) -> web.StreamResponse:
        answer = await route.handler(call, **args)
        if not isinstance(answer, web.StreamResponse):
            answer = web.Response(body=encode(answer, call.answer_form), content_type=call.answer_form)
        return self._finished(call, answer)

    @staticmethod
    def _finished(call: GatewayCall, answer: web.StreamResponse) -> web.StreamResponse:
        """Add the headers common to all answers, unless the answer has already been sent."""
        if isinstance(answer, web.Response) and not answer.prepared:
            call.bytes_out += len(answer.body) if isinstance(answer.body, bytes) else 0
            answer.headers.update(call.headers)
            answer.headers["Cache-Control"] = "no-store"
            answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    def _check_rate(self, call: GatewayCall) -> None:
        if call.identity.is_operator and is_loopback(str(call.request.remote or "")):
            return  # the operator on the gateway's own machine may make as many requests as needed
        # Short-lived tokens do not give a user a higher rate.
        wait_s = self._parts.rates.wait_s(call.identity.user or call.identity.token_id)
        if wait_s > 0:
            settings = self.settings
            problem = f"more than {settings.requests_per_s:g} requests a second; submit many jobs with one request"
            raise RefusalError("too-many-requests", problem, retry_after_s=wait_s)

    def _refused(self, call: GatewayCall, error: RefusalError) -> web.StreamResponse:
        if call.request.writer.output_size > 0:
            # Part of the answer has been sent; the aborted connection shows the client that the rest is missing.
            cut(call.request)
            raise ConnectionResetError(str(error))
        headers = call.headers | error.headers | {"Cache-Control": "no-store"}
        accept = call.request.headers.get("Accept", "")
        response = problem_response(error.document(call.request_id), accept, headers)
        if headers.get("Connection") == "close":
            response.force_close()
        call.bytes_out += len(response.body) if isinstance(response.body, bytes) else 0
        return response

    def bad_http(self, request: web.BaseRequest, status: int, error: BaseException | None) -> web.StreamResponse:
        """Answer a malformed request (400), or a request whose handling failed (500)."""
        call = self._call(request)
        if status == 400:
            what = error.message if isinstance(error, HttpProcessingError) else str(error or "")
            refusal = RefusalError("bad-http", f"{what or 'it cannot be parsed'}; send a request of HTTP/1.1")
        else:
            logger.error("request %s failed", call.request_id, exc_info=error)
            refusal = RefusalError("internal", "see the gateway's log under this request's id")
        response = self._refused(call, refusal)
        response.force_close()
        self._log(call, response.status, refusal.kind, 0.0)
        return response

    def closed_for_others(self) -> None:
        """Count a connection that was closed in favour of a new one; log the count at most once a minute."""
        self._n_closed += 1
        now_s = time.monotonic()
        if now_s >= self._log_closed_s:
            self._log_closed_s = now_s + _LOG_EVERY_S
            problem = "there are %d connections; %d idle ones were closed so far in favour of new ones"
            logger.warning(problem, len(self.connections), self._n_closed)

    def _call(self, request: web.BaseRequest) -> GatewayCall:
        sent_id = request.headers.get("X-Request-Id", "")
        request_id = sent_id if is_valid_id(sent_id) else secrets.token_hex(8)
        headers = {"X-Request-Id": request_id, "Server": "gridweave"}
        return GatewayCall(parts=self._parts, request=request, request_id=request_id, headers=headers)

    def _log(self, call: GatewayCall, status: int, problem: str, seconds: float) -> None:
        route = call.route
        timed = None if route is not None and route.is_stream else seconds
        self._parts.metrics.answered(route.name if route else "", call.request.method, status, timed)
        if route is not None and is_of_link(route.path) and not problem:
            return  # links make many requests each second; only refused ones are logged
        if route is not None and route.name == "readyz" and status < 400:
            return  # monitoring polls this route all the time
        now = time_text(time.time_ns() // 1_000_000)
        if self._audit is not None and _is_audited(call, problem):
            self._audit.add(_audit_entry(call, now, status, problem))
        log_request(_logged(call, now, status, problem, seconds))


def _is_audited(call: GatewayCall, problem: str) -> bool:
    """Whether the audit log records a request: if it changed something, was forbidden, or had an invalid token.

    Requests without a token are left out, because anybody could fill the log with them.
    """
    is_known = call.route is not None and call.identity is not EVERYBODY
    return call.login_failed or (is_known and (call.request.method not in ("GET", "HEAD") or problem == "forbidden"))


def _logged(call: GatewayCall, now: str, status: int, problem: str, seconds: float) -> LoggedRequest:
    return LoggedRequest(
        time=now,
        id=call.request_id,
        user=call.identity.user,
        token=call.identity.token_id,
        method=call.request.method[:20],
        route=call.route.name if call.route else "",
        target=call.target[:100].encode("utf-8", "replace").decode(),
        status=status,
        duration_ms=round(seconds * 1000, 3),
        bytes_in=call.request.content_length or 0,
        bytes_out=call.bytes_out,
        jobs=call.jobs,
        problem=problem,
    )


def _audit_entry(call: GatewayCall, now: str, status: int, problem: str) -> AuditEntry:
    return AuditEntry(
        time=now,
        user=call.identity.user,
        token=call.identity.token_id,
        address=str(call.request.remote or ""),
        request=call.request_id,
        what="login" if call.login_failed or call.route is None else call.route.name,
        target=call.target[:100].encode("utf-8", "replace").decode(),
        jobs=call.jobs,
        status=status,
        problem=problem,
    )


def _parts(backend: Backend, settings: GatewaySettings) -> Parts:
    tokens: AsyncTokens | None = None
    if settings.tokens is not None:
        issuer = None if settings.issuer is None else Issuer(settings.issuer)
        tokens = AsyncTokens(TokenStore(settings.tokens), issuer)
    usable = None if tokens is None else tokens.usable
    hub = EventHub(backend, usable=usable, backlog=settings.backlog, check_s=settings.check_tokens_s)
    streams = Slots(settings.max_streams, "too-many-streams", "streams")
    return Parts(
        settings=settings,
        backend=backend,
        tokens=tokens,
        hub=hub,
        open_jobs=OpenJobs(backend, settings.max_open_jobs),
        metrics=GatewayMetrics(watchers=lambda: hub.watchers, streams=streams.total),
        rates=Rates(settings.requests_per_s, settings.burst, time.monotonic),
        at_once=Slots(settings.max_at_once, "too-many-at-once", "requests"),
        streams=streams,
        forecasts=Turns(),
        bulk=Turns(),
        logins=Logins(settings.failed_logins_per_minute, time.monotonic),
        memory=Memory(max(settings.max_held_bytes, settings.max_body_bytes)),
        codes=LoginCodes(),
    )


def _allow_files(most: int) -> None:
    """Raise this process's limit on open files to `most`, or as far as allowed; each connection is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    if target < most:
        logger.warning("this process may open only %d files, but max_connections needs %d", target, most)


class _Server(web.Server):
    """aiohttp's server, but with our own connection class."""

    def __init__(self, gateway: Gateway, *, handler_cancellation: bool, **options: Any) -> None:
        super().__init__(gateway.handle, handler_cancellation=handler_cancellation)
        self.gateway = gateway
        self._options = options

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self.gateway, self._options)


class _Connection(web.RequestHandler):
    __slots__ = ("_gateway",)

    def __init__(self, server: _Server, gateway: Gateway, options: dict[str, Any]) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            # A few compressed bytes could expand enormously.
            auto_decompress=False,
            lingering_time=_LINGER_S,
            logger=logger,
            **options,
        )
        self._gateway = gateway

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add a connection; above a limit, close the connection that has been idle longest."""
        super().connection_made(transport)
        address = transport.get_extra_info("peername")
        over = self._gateway.connections.opened(self, address[0] if address else None)
        if over is not None:
            self._gateway.closed_for_others()
            over.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Remove a connection."""
        self._gateway.connections.closed(self)
        super().connection_lost(exc)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer, then mark the connection as idle."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._gateway.connections.idle(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a malformed request with a problem document."""
        with contextlib.suppress(AttributeError):
            self.keep_alive(False)
        return self._gateway.bad_http(request, status, exc)

"""Calls and routes: the input of handlers, the dispatch of requests, and the state that handlers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, cast, get_type_hints

import msgspec
from aiohttp import web

from gridweave.grid.api import Scope
from gridweave.grid.backend import Backend
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.gateway.access import EVERYBODY, AsyncTokens, Identity
from gridweave.grid.gateway.browser import LoginCodes
from gridweave.grid.gateway.connections import Logins
from gridweave.grid.gateway.hub import EventHub
from gridweave.grid.gateway.limits import Memory, OpenJobs, Rates, Slots, Turns
from gridweave.grid.gateway.metrics import GatewayMetrics
from gridweave.grid.gateway.problems import RefusalError, refused_field, wrong_method
from gridweave.grid.gateway.wire import BOTH, JSON, check_body, read_body
from gridweave.site.job import JobRecord, JobRequest

T = TypeVar("T")

FEW_IDS = 100
"""Requests for at most this many jobs do not wait for the user's other requests."""

_MOST_IDS_BYTES = 1 << 20
_MOST_OPEN_BYTES = 16 << 10
"""Maximum body size in bytes on routes that need no token."""


@dataclass(frozen=True, slots=True)
class Parts:
    """State shared by all handlers of a gateway."""

    settings: GatewaySettings
    backend: Backend
    tokens: AsyncTokens | None
    hub: EventHub
    open_jobs: OpenJobs
    metrics: GatewayMetrics
    rates: Rates
    at_once: Slots
    streams: Slots
    forecasts: Turns
    bulk: Turns
    logins: Logins
    memory: Memory
    codes: LoginCodes


@dataclass(slots=True)
class GatewayCall:
    """One request, with its identity, route and other details that the gateway has determined."""

    parts: Parts
    request: web.BaseRequest
    request_id: str
    identity: Identity = EVERYBODY
    route: HttpRoute | None = None
    match: web.UrlMappingMatchInfo | None = None  # aiohttp's match of the path
    target: str = ""  # for the logs: the job, site, machine or token that the path names
    # The raw body, for handlers that decode it themselves.
    data: bytes = b""
    form: str = JSON
    answer_form: str = JSON  # one of the route's media types
    # Only for the logs.
    login_failed: bool = False
    jobs: int = 0
    bytes_out: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def backend(self) -> Backend:
        """The live grid."""
        return self.parts.backend

    @property
    def origin(self) -> str:
        """User and request id, as recorded in job histories."""
        return f"{self.identity.user or 'this machine'}, request {self.request_id}"

    def as_user(self, request: JobRequest, where: str) -> JobRequest:
        """Set a submitted job's user; only an operator may submit a job for another user."""
        if request.user == self.identity.user or (request.user and self.identity.is_operator):
            return request
        if request.user:
            problem = f"is {request.user!r:.100}, and the token is {self.identity.user}'s; leave it out"
            raise refused_field(f"{where}.user", problem, "forbidden")
        return msgspec.structs.replace(request, user=self.identity.user)

    @property
    def names(self) -> Mapping[str, str]:
        """Values of the route's path parameters, e.g. ``{"id": "7"}``."""
        return self.match or {}

    async def read_body(self, most: int, take: Callable[[int], None]) -> bytes:
        """Read the body, sending ``100 Continue`` first if the client expects it; pass each chunk's size to `take`.

        Raise RefusalError if the body is longer than `most` bytes, too slow, or compressed.
        """
        check_body(self.request, most)
        if self.match is not None and (expected := self.request.headers.get("Expect")):
            try:
                await self.match.expect_handler(cast("web.Request", self.request))
            except web.HTTPExpectationFailed:
                detail = f"Expect is {expected!r:.100}; send 100-continue, or leave it out"
                raise RefusalError("unknown-expectation", detail) from None
        return await read_body(self.request, most, self.parts.settings.body_timeout_s, take)

    def job_id(self) -> int:
        """Return the job number in the path, or raise RefusalError."""
        text = self.names.get("id", "")
        if text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0:
            return int(text)
        raise RefusalError("unknown-job", f"{text!r:.100} is not a job number")

    async def in_turn(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run work that needs a simulation of the grid; each user's requests for simulations run one at a time."""
        return await self.parts.forecasts.take(self.identity.user, work)

    async def own_job(self) -> JobRecord:
        """Return the record of the job in the path; another user's job is reported as unknown."""
        job_id = self.job_id()
        for record in await self.backend.records([job_id]):
            if record.job_id == job_id and self.identity.sees(record.request.user):
                self.jobs = 1
                return record
        raise unknown_job(job_id)


def unknown_job(job_id: int) -> RefusalError:
    """Return the refusal for a job that does not exist or belongs to another user."""
    return RefusalError("unknown-job", f"there is no job {job_id}, or it is another user's")


def cut(request: web.BaseRequest) -> None:
    """Abort the connection, so that the client sees that the answer is incomplete."""
    if request.transport is not None:
        request.transport.abort()


Handler = Callable[..., Awaitable[object]]
"""A handler gets the call and, if it has parameters `query` and `body`, the decoded query parameters and body.
Returns a value to encode, or a complete response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRoute:
    """A method and path, with the details needed for dispatch and for the OpenAPI description."""

    method: str
    path: str  # parts in braces match any text without a slash
    name: str
    summary: str
    handler: Handler
    scope: Scope | None  # scope that the token needs; None: no token is needed
    # Types of the query parameters, of the body and of the answer.
    query: type[Any] | None
    body: type[Any] | None
    answer: type[Any] | None  # None: the handler returns a response
    media_types: tuple[str, ...] = BOTH  # of the answer
    problems: tuple[str, ...] = ()  # kinds of refusals of this route, in addition to the general ones
    reads_body: bool = False  # whether the handler decodes the body, which may be as large as the settings allow
    is_stream: bool = False  # whether the answer may take a long time
    makes_tokens: bool = False  # whether the answer contains a token or login; a login may not ask for one
    # Names and meanings.
    request_headers: tuple[tuple[str, str], ...] = ()
    answer_headers: tuple[tuple[str, str], ...] = ()

    def most_bytes(self, settings: GatewaySettings) -> int:
        """Return the maximum size of a request body in bytes."""
        if self.scope is None:
            return min(settings.max_body_bytes, _MOST_OPEN_BYTES)
        return settings.max_body_bytes if self.reads_body else min(settings.max_body_bytes, _MOST_IDS_BYTES)


def route(where: str, handler: Handler, scope: Scope | None = "read", **more: Any) -> HttpRoute:
    """Create a handler's route; fields that are not passed are taken from the handler.

    The name, the summary and the types are the handler's name, the first line of its docstring, and its annotations.
    """
    method, path = where.split(" ")
    types = get_type_hints(handler)
    answer = types["return"]
    from_handler: dict[str, Any] = {
        "name": handler.__name__,
        "summary": (handler.__doc__ or "").partition("\n")[0].removesuffix("."),
        "query": types.get("query"),
        "body": types.get("body"),
        "answer": None if issubclass(answer, web.StreamResponse) else answer,
    }
    return HttpRoute(method=method, path=path, handler=handler, scope=scope, **(from_handler | more))


Serve = Callable[[HttpRoute, GatewayCall], Awaitable[web.StreamResponse]]
"""Answers a call that matched a route."""


class Router:
    """Routes calls to `serve`; a 404 response's detail ends with `hint`, which says where the valid paths are listed.

    The router uses aiohttp's low-level server instead of an `aiohttp.web.Application`. An application answers
    ``Expect: 100-continue`` before it runs middlewares, so it would let a client without a token send its body. An
    application also creates its own connections, whose number the gateway must limit.
    """

    def __init__(self, routes: Iterable[HttpRoute], serve: Serve, hint: str) -> None:
        self._serve, self._hint = serve, hint
        self._dispatcher = web.UrlDispatcher()
        path = attrgetter("path")
        for _, of_path in groupby(sorted(routes, key=path), path):
            self._add_resource(list(of_path))

    def _add_resource(self, routes: list[HttpRoute]) -> None:
        # By default {NAME} does not match empty text, so the job "" would be an unknown route.
        resource = self._dispatcher.add_resource(routes[0].path.replace("}", ":[^/]*}"))
        for route in routes:
            # aiohttp only stores the handlers. `answer` calls them with the call instead of the request.
            handler: Any = partial(self._serve, route)
            resource.add_route(route.method, handler)
            if route.method == "GET" and not route.is_stream:
                resource.add_route("HEAD", handler)
        # Without this route the dispatcher would try other paths: GET /v1/jobs/cancel would be the job "cancel".
        refuse: Any = partial(_refuse_method, sorted(route.method for route in routes))
        resource.add_route("*", refuse)

    async def answer(self, call: GatewayCall) -> web.StreamResponse:
        """Dispatch a call by its method and path, or raise RefusalError if no route matches."""
        # The dispatcher reads only the method and the URL of a request.
        call.match = await self._dispatcher.resolve(cast("web.Request", call.request))
        if call.match.http_exception is not None:
            raise RefusalError("unknown-route", f"there is nothing at {call.request.path!r:.200}; {self._hint}")
        call.target = "/".join(call.match.values())
        handler: Any = call.match.handler
        response: web.StreamResponse = await handler(call)
        return response


async def _refuse_method(allowed: list[str], call: GatewayCall) -> NoReturn:
    raise wrong_method(call.request.path, call.request.method, allowed)

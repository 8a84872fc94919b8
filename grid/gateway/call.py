"""What a handler of a route is given, and what is there for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints

import msgspec
from aiohttp import web

from gridweave.grid.api import Scope
from gridweave.grid.gateway.access import EVERYBODY, AsyncTokens, Identity
from gridweave.grid.gateway.backend import Backend
from gridweave.grid.gateway.connections import Logins
from gridweave.grid.gateway.hub import EventHub
from gridweave.grid.gateway.limits import Memory, OpenJobs, Rates, Slots, Turns
from gridweave.grid.gateway.metrics import GatewayMetrics
from gridweave.grid.gateway.problems import RefusalError, refused_field
from gridweave.grid.gateway.settings import GatewaySettings
from gridweave.grid.gateway.wire import BOTH, JSON
from gridweave.grid.web.browser import LoginCodes
from gridweave.site.job import JobRecord, JobRequest

T = TypeVar("T")

FEW_IDS = 100
"""Requests about at most so many jobs wait for no other request of their user."""

_MOST_IDS_BYTES = 1 << 20
_MOST_OPEN_BYTES = 16 << 10
"""Of a body that comes without a token."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the handlers of a gateway share."""

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
    """A request on its way through the gateway."""

    parts: Parts
    request: web.BaseRequest
    request_id: str
    identity: Identity = EVERYBODY
    route: HttpRoute | None = None
    target: str = ""  # what stands for the braces in the path of the route, with a slash between two
    # The body as it came, for routes that read it themselves.
    data: bytes = b""
    form: str = JSON
    answer_form: str = JSON  # one of the forms that the route offers
    # For the logs.
    login_failed: bool = False
    jobs: int = 0
    bytes_out: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def backend(self) -> Backend:
        """The grid."""
        return self.parts.backend

    @property
    def origin(self) -> str:
        """Who asks, and with which request, for the stories of jobs."""
        return f"{self.identity.user or 'this machine'}, request {self.request_id}"

    def as_user(self, request: JobRequest, where: str) -> JobRequest:
        """Return a job as one of who asks; refuse one of another user, unless an operator asks."""
        if request.user == self.identity.user or (request.user and self.identity.is_operator):
            return request
        if request.user:
            problem = f"is {request.user!r:.100}, and the token is {self.identity.user}'s; leave it out"
            raise refused_field(f"{where}.user", problem, "forbidden")
        return msgspec.structs.replace(request, user=self.identity.user)

    def job_id(self) -> int:
        """Return the number of the job that the path names, or refuse what is none."""
        text = self.target
        if text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0:
            return int(text)
        raise RefusalError("unknown-job", f"{text!r:.100} is not a job number")

    async def in_turn(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what work returns for which the grid simulates its future: one such question of a user at a time."""
        return await self.parts.forecasts.take(self.identity.user, work)

    async def own_job(self) -> JobRecord:
        """Return what is known of the job that the path names; others' jobs look like jobs that are not there."""
        job_id = self.job_id()
        for record in await self.backend.records([job_id]):
            if record.job_id == job_id and self.identity.sees(record.request.user):
                self.jobs = 1
                return record
        raise unknown_job(job_id)


def unknown_job(job_id: int) -> RefusalError:
    """Return that there is no such job, at least for whoever asks."""
    return RefusalError("unknown-job", f"there is no job {job_id}, or it is another user's")


def cut(request: web.BaseRequest) -> None:
    """Cut a connection, so that its client sees that the answer is not whole."""
    if request.transport is not None:
        request.transport.abort()


Handler = Callable[..., Awaitable[object]]
"""Takes the call, and what the URL (``query``) and the body say, if it has parameters of these names; returns what is
encoded, or a response that is whole or was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRoute:
    """What is at a path, for one method: by this the gateway answers, and the interface is described."""

    method: str
    path: str  # at most two parts are in braces
    name: str
    summary: str
    handler: Handler
    scope: Scope | None  # what a token must be for; None: none is needed
    # Structs of what may be in the URL, and must be in the body.
    query: type[Any] | None
    body: type[Any] | None
    answer: type[Any] | None  # of what the handler returns; None: a response of its own
    forms: tuple[str, ...] = BOTH  # what the answer can be
    problems: tuple[str, ...] = ()  # which kinds of refusals are its own, beside those that every route has
    reads_body: bool = False  # whether the handler reads the body itself, which may be as large as the settings say
    is_stream: bool = False  # whether the answer may go on for long
    makes_tokens: bool = False  # whether what it answers lets somebody in; a login may not ask for that
    # Their names, and what they mean.
    request_headers: tuple[tuple[str, str], ...] = ()
    answer_headers: tuple[tuple[str, str], ...] = ()

    def most_bytes(self, settings: GatewaySettings) -> int:
        """Return how large a body may be."""
        if self.scope is None:
            return min(settings.max_body_bytes, _MOST_OPEN_BYTES)
        return settings.max_body_bytes if self.reads_body else min(settings.max_body_bytes, _MOST_IDS_BYTES)


def route(where: str, handler: Handler, scope: Scope | None = "read", **more: Any) -> HttpRoute:
    """Return the route of a handler at a method and path; what is not said is told by the handler.

    Its name is that of the operation, the first line of its docstring the summary, and the types of what goes in and
    comes out are those of its annotations.
    """
    method, path = where.split(" ")
    types = get_type_hints(handler)
    answer = types["return"]
    told: dict[str, Any] = {
        "name": handler.__name__,
        "summary": (handler.__doc__ or "").partition("\n")[0].removesuffix("."),
        "query": types.get("query"),
        "body": types.get("body"),
        "answer": None if issubclass(answer, web.StreamResponse) else answer,
    }
    return HttpRoute(method=method, path=path, handler=handler, scope=scope, **(told | more))

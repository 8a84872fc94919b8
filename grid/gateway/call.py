"""What a handler of a route is given, and what is there for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from gridweave.grid.api import Role
from gridweave.grid.gateway.access import EVERYBODY, AsyncTokens, Identity
from gridweave.grid.gateway.backend import Backend
from gridweave.grid.gateway.hub import EventHub
from gridweave.grid.gateway.limits import HeldBytes, Memory, OpenJobs, Rates, Slots
from gridweave.grid.gateway.metrics import GatewayMetrics
from gridweave.grid.gateway.problems import RefusalError
from gridweave.grid.gateway.settings import GatewaySettings
from gridweave.grid.gateway.wire import BOTH, JSON
from gridweave.site.job import JobRecord

_MOST_IDS_BYTES = 1 << 20


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
    memory: Memory
    random_bytes: Callable[[int], bytes]


@dataclass(slots=True)
class GatewayCall:
    """A request on its way through the gateway.

    Attributes
    ----------
    parts : Parts
    request : aiohttp.web.BaseRequest
    request_id : str
    identity : Identity
    route : HttpRoute, optional
    target : str
        What stands for the braces in the path of the route.
    query, body : msgspec.Struct
        Of the types that the route names.
    data, form : bytes, str
        The body as it came, for routes that read it themselves.
    held : HeldBytes, optional
    answer_form : str
        One of the forms that the route offers.
    jobs, bytes_out : int
        For the log.
    """

    parts: Parts
    request: web.BaseRequest
    request_id: str
    identity: Identity = EVERYBODY
    route: HttpRoute | None = None
    target: str = ""
    query: Any = None
    body: Any = None
    data: bytes = b""
    form: str = JSON
    held: HeldBytes | None = None
    answer_form: str = JSON
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

    def job_id(self) -> int:
        """Return the number of the job that the path names.

        Raises
        ------
        RefusalError
            If it is none.
        """
        text = self.target
        if text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0:
            return int(text)
        raise RefusalError("unknown-job", f"{text!r:.100} is not a job number")

    async def own_job(self) -> JobRecord:
        """Return what is known of the job that the path names, if whoever asks may see it.

        Raises
        ------
        RefusalError
            If not; others' jobs look like jobs that are not there.
        """
        job_id = self.job_id()
        for record in await self.backend.records([job_id]):
            if record.job_id == job_id and self.identity.sees(record.request.user):
                self.jobs = 1
                return record
        raise unknown_job(job_id)


def unknown_job(job_id: int) -> RefusalError:
    """Return that there is no such job, at least for whoever asks."""
    return RefusalError("unknown-job", f"there is no job {job_id}, or it is another user's")


Handler = Callable[[GatewayCall], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRoute:
    """What is at a path, for one method: by this the gateway answers, and the interface is described.

    Attributes
    ----------
    method, path : str
        The path has at most one part in braces.
    name : str
        Of the operation.
    summary : str
        In one line.
    handler : callable
        Returns what is encoded, or a response that is whole or was sent.
    role : str, optional
        Which one is needed at least; None: not even a token.
    query, body : type, optional
        Structs of what may be in the URL, and must be in the body.
    answer : type, optional
        Of what the handler returns; None: a response of its own.
    forms : tuple of str
        What the answer can be.
    problems : tuple of str
        Which kinds of refusals are its own, beside those that every route has.
    reads_body : bool
        Whether the handler reads the body itself, which may be as large as the settings say.
    is_stream : bool
        Whether the answer may go on for long.
    request_headers, answer_headers : dict from str to str
        What they mean.
    """

    method: str
    path: str
    name: str
    summary: str
    handler: Handler
    role: Role | None
    query: type[Any] | None = None
    body: type[Any] | None = None
    answer: type[Any] | None = None
    forms: tuple[str, ...] = BOTH
    problems: tuple[str, ...] = ()
    reads_body: bool = False
    is_stream: bool = False
    request_headers: tuple[tuple[str, str], ...] = ()
    answer_headers: tuple[tuple[str, str], ...] = ()

    def most_bytes(self, settings: GatewaySettings) -> int:
        """Return how large a body may be."""
        return settings.max_body_bytes if self.reads_body else min(settings.max_body_bytes, _MOST_IDS_BYTES)

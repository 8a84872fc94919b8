"""The table of routes: what the gateway answers, who may ask, and what goes in and comes out."""

from __future__ import annotations

from collections.abc import Iterable

from gridweave.grid.api import (
    Done,
    Forecast,
    Health,
    JobIds,
    JobPage,
    JobQuery,
    MadeToken,
    NewToken,
    Queue,
    QuoteJob,
    Scheduling,
    Sites,
    Story,
    SubmitJobs,
    Submitted,
    TokenInfo,
    Tokens,
)
from gridweave.grid.gateway import handlers as grid_routes
from gridweave.grid.gateway import handlers as job_routes
from gridweave.grid.gateway import streams, submission
from gridweave.grid.gateway.call import ApiRoute, GatewayCall
from gridweave.grid.gateway.problems import RefusalError
from gridweave.grid.gateway.wire import BYTES, EVENT_STREAM, JSON, TEXT
from gridweave.site.job import JobRecord

_JOB = ("unknown-job",)
_KEY = (
    "Idempotency-Key",
    "Jobs without a key of their own get this one and their place: made again, it is no new job.",
)
_RESUME = ("Last-Event-ID", "The number of the last event that was seen; counts more than `after`.")
_OFFSET = (streams.OFFSET_HEADER, "Where the first byte of the answer stands in the output.")
_LAST = (streams.LAST_HEADER, "1 if nothing follows, 0 if something may; not sent with `follow`.")


def _changes() -> Iterable[ApiRoute]:
    """Return the routes by which jobs are changed."""
    for name, what in (
        ("cancel", "End {}, or keep {} from starting"),
        ("hold", "Keep {} from the queue"),
        ("release", "Let {} that {} held go into the queue again"),
    ):
        one = what.format(*(("a job", "it") if name == "cancel" else ("a job", "is")))
        many = what.format(*(("jobs", "them") if name == "cancel" else ("jobs", "are")))
        yield ApiRoute(
            method="POST",
            path=f"/v1/jobs/{name}",
            name=f"{name}_jobs",
            summary=f"{many}; unknown ones and others' are passed over",
            handler=job_routes.change_many(name),
            role="submit",
            body=JobIds,
            answer=Done,
            problems=("too-many-jobs",),
        )
        yield ApiRoute(
            method="POST",
            path=f"/v1/jobs/{{id}}/{name}",
            name=f"{name}_job",
            summary=one,
            handler=job_routes.change_one(name),
            role="submit",
            answer=Done,
            problems=_JOB,
        )


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        method="POST",
        path="/v1/jobs",
        name="submit",
        summary="Hand in jobs; they are durable when the answer comes",
        handler=submission.submit,
        role="submit",
        body=SubmitJobs,
        answer=Submitted,
        reads_body=True,
        problems=("too-many-jobs", "too-many-open-jobs"),
        request_headers=(_KEY,),
    ),
    ApiRoute(
        method="GET",
        path="/v1/jobs",
        name="list_jobs",
        summary="List jobs, the newest first",
        handler=job_routes.list_jobs,
        role="read",
        query=JobQuery,
        answer=JobPage,
    ),
    *_changes(),
    ApiRoute(
        method="GET",
        path="/v1/jobs/{id}",
        name="show_job",
        summary="Show what is known of a job",
        handler=job_routes.show,
        role="read",
        answer=JobRecord,
        problems=_JOB,
    ),
    ApiRoute(
        method="GET",
        path="/v1/jobs/{id}/story",
        name="story",
        summary="Tell all that happened to a job",
        handler=job_routes.story,
        role="read",
        answer=Story,
        problems=_JOB,
    ),
    ApiRoute(
        method="GET",
        path="/v1/jobs/{id}/forecast",
        name="forecast",
        summary="Explain when a job starts, and why it waits",
        handler=job_routes.forecast,
        role="read",
        answer=Forecast,
        problems=_JOB,
    ),
    ApiRoute(
        method="GET",
        path="/v1/jobs/{id}/output",
        name="output",
        summary="Read what a rank of a job has written, or follow it",
        handler=streams.output,
        role="read",
        query=streams.OutputQuery,
        forms=(TEXT, BYTES),
        problems=(*_JOB, "too-many-streams"),
        is_stream=True,
        answer_headers=(_OFFSET, _LAST),
    ),
    ApiRoute(
        method="GET",
        path="/v1/events",
        name="events",
        summary="Watch jobs: server-sent events, one JobEvent each",
        handler=streams.events,
        role="read",
        query=streams.EventQuery,
        forms=(EVENT_STREAM,),
        problems=(*_JOB, "too-many-streams"),
        is_stream=True,
        request_headers=(_RESUME,),
    ),
    ApiRoute(
        method="GET",
        path="/v1/events/ws",
        name="events_ws",
        summary="Watch jobs over a WebSocket: one JobEvent in each frame",
        handler=streams.events_ws,
        role="read",
        query=streams.EventQuery,
        problems=(*_JOB, "too-many-streams"),
        is_stream=True,
    ),
    ApiRoute(
        method="GET",
        path="/v1/sites",
        name="sites",
        summary="Show how the sites are",
        handler=grid_routes.sites,
        role="read",
        answer=Sites,
    ),
    ApiRoute(
        method="POST",
        path="/v1/sites/{name}/drain",
        name="drain",
        summary="Have a site take nothing new of the grid",
        handler=grid_routes.drain(True),
        role="operate",
        answer=Done,
        problems=("unknown-site",),
    ),
    ApiRoute(
        method="POST",
        path="/v1/sites/{name}/resume",
        name="resume",
        summary="Have a site take jobs of the grid again",
        handler=grid_routes.drain(False),
        role="operate",
        answer=Done,
        problems=("unknown-site",),
    ),
    ApiRoute(
        method="GET",
        path="/v1/queue",
        name="queue",
        summary="Show the jobs that wait, the first first",
        handler=grid_routes.queue,
        role="read",
        query=grid_routes.QueueQuery,
        answer=Queue,
    ),
    ApiRoute(
        method="GET",
        path="/v1/scheduling",
        name="scheduling",
        summary="Show how the grid schedules",
        handler=grid_routes.scheduling,
        role="read",
        answer=Scheduling,
    ),
    ApiRoute(
        method="POST",
        path="/v1/quote",
        name="quote",
        summary="Ask when a job would start, and where; nothing is handed in",
        handler=job_routes.quote,
        role="read",
        body=QuoteJob,
        answer=Forecast,
    ),
    ApiRoute(
        method="GET",
        path="/v1/tokens",
        name="list_tokens",
        summary="List the tokens that can be used",
        handler=grid_routes.list_tokens,
        role="operate",
        answer=Tokens,
    ),
    ApiRoute(
        method="POST",
        path="/v1/tokens",
        name="make_token",
        summary="Make a token; it is shown only here",
        handler=grid_routes.make_token,
        role="operate",
        body=NewToken,
        answer=MadeToken,
        problems=("unknown-token",),
    ),
    ApiRoute(
        method="DELETE",
        path="/v1/tokens/{id}",
        name="revoke_token",
        summary="Revoke a token; its streams end at once",
        handler=grid_routes.revoke_token,
        role="operate",
        answer=Done,
        problems=("unknown-token",),
    ),
    ApiRoute(
        method="GET",
        path="/v1/whoami",
        name="whoami",
        summary="Show what the token of the request stands for",
        handler=grid_routes.whoami,
        role="read",
        answer=TokenInfo,
    ),
    ApiRoute(
        method="GET",
        path="/metrics",
        name="metrics",
        summary="Numbers for Prometheus",
        handler=grid_routes.metrics,
        role="read",
        forms=(grid_routes.METRICS_FORM,),
    ),
    ApiRoute(
        method="GET",
        path="/healthz",
        name="healthz",
        summary="Whether the gateway lives",
        handler=grid_routes.healthz,
        role=None,
        answer=Health,
    ),
    ApiRoute(
        method="GET",
        path="/readyz",
        name="readyz",
        summary="Whether the meta-scheduler answers; 503 if it does not",
        handler=grid_routes.readyz,
        role=None,
        answer=Health,
    ),
    ApiRoute(
        method="GET",
        path="/openapi.json",
        name="openapi",
        summary="This description of the interface",
        handler=grid_routes.openapi,
        role=None,
        forms=(JSON,),
    ),
)

_Parts = tuple[str, ...]


def _pattern(path: str) -> _Parts:
    return tuple("{}" if part.startswith("{") else part for part in path.split("/"))


_BY_PATH: dict[_Parts, dict[str, ApiRoute]] = {}
for _route in ROUTES:
    _BY_PATH.setdefault(_pattern(_route.path), {})[_route.method] = _route

_BRACES_AT = 3


def find_route(call: GatewayCall, path: str, method: str) -> ApiRoute:
    """Return the route of a request, and note in the call what its path names.

    Raises
    ------
    RefusalError
        If there is none.
    """
    parts = tuple(path.split("/"))
    methods = _BY_PATH.get(parts)
    if methods is None and len(parts) > _BRACES_AT:
        methods = _BY_PATH.get((*parts[:_BRACES_AT], "{}", *parts[_BRACES_AT + 1 :]))
        call.target = parts[_BRACES_AT]
    if methods is None:
        call.target = ""
        raise RefusalError("unknown-route", f"there is nothing at {path!r:.200}; /openapi.json tells what there is")
    route = methods.get(method)
    if route is None and method == "HEAD" and "GET" in methods and not methods["GET"].is_stream:
        route = methods["GET"]
    if route is None:
        allowed = ", ".join(sorted(methods))
        raise RefusalError("wrong-method", f"{method!r:.50} at {path!r:.200}; {allowed}", headers={"Allow": allowed})
    return route

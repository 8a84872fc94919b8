"""The table of routes: what the gateway answers, who may ask, and what goes in and comes out."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec
from aiohttp import web

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
from gridweave.grid.gateway import handlers, streams, submission
from gridweave.grid.gateway.call import GatewayCall, HttpRoute
from gridweave.grid.gateway.openapi import describe
from gridweave.grid.gateway.problems import RefusalError
from gridweave.grid.gateway.wire import BYTES, EVENT_STREAM, JSON, TEXT
from gridweave.site.job import JobRecord, WishKind

_JOB = ("unknown-job",)
_KEY = (
    "Idempotency-Key",
    "Jobs without a key of their own get this one and their place: made again, it is no new job.",
)
_RESUME = ("Last-Event-ID", "The number of the last event that was seen; counts more than `after`.")
_OFFSET = (streams.OFFSET_HEADER, "Where the first byte of the answer stands in the output.")
_LAST = (streams.LAST_HEADER, "1 if nothing follows, 0 if something may; not sent with `follow`.")


def _wishes() -> Iterable[HttpRoute]:
    """Return the routes by which users say what they want of jobs."""
    wishes: tuple[tuple[WishKind, str, str], ...] = (
        ("cancel", "End a job, or keep it from starting", "End jobs, or keep them from starting"),
        ("hold", "Keep a job from the queue", "Keep jobs from the queue"),
        (
            "release",
            "Let a job that is held go into the queue again",
            "Let jobs that are held go into the queue again",
        ),
    )
    for kind, one, many in wishes:
        yield HttpRoute(
            method="POST",
            path=f"/v1/jobs/{kind}",
            name=f"{kind}_jobs",
            summary=f"{many}; unknown ones and others' are passed over",
            handler=handlers.wish_many(kind),
            role="submit",
            body=JobIds,
            answer=Done,
            problems=("too-many-jobs",),
        )
        yield HttpRoute(
            method="POST",
            path=f"/v1/jobs/{{id}}/{kind}",
            name=f"{kind}_job",
            summary=one,
            handler=handlers.wish_one(kind),
            role="submit",
            answer=Done,
            problems=_JOB,
        )


async def _openapi(call: GatewayCall) -> web.Response:
    """Return the description of the interface."""
    return web.Response(body=_description(call.parts.tokens is not None), content_type=JSON)


@functools.cache
def _description(with_tokens: bool) -> bytes:
    return msgspec.json.encode(describe(ROUTES, with_tokens=with_tokens))


ROUTES: tuple[HttpRoute, ...] = (
    HttpRoute(
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
    HttpRoute(
        method="GET",
        path="/v1/jobs",
        name="list_jobs",
        summary="List jobs, the newest first",
        handler=handlers.list_jobs,
        role="read",
        query=JobQuery,
        answer=JobPage,
    ),
    *_wishes(),
    HttpRoute(
        method="GET",
        path="/v1/jobs/{id}",
        name="show_job",
        summary="Show what is known of a job",
        handler=handlers.show,
        role="read",
        answer=JobRecord,
        problems=_JOB,
    ),
    HttpRoute(
        method="GET",
        path="/v1/jobs/{id}/story",
        name="story",
        summary="Tell all that happened to a job",
        handler=handlers.story,
        role="read",
        answer=Story,
        problems=_JOB,
    ),
    HttpRoute(
        method="GET",
        path="/v1/jobs/{id}/forecast",
        name="forecast",
        summary="Explain when a job starts, and why it waits",
        handler=handlers.forecast,
        role="read",
        answer=Forecast,
        problems=_JOB,
    ),
    HttpRoute(
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
    HttpRoute(
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
    HttpRoute(
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
    HttpRoute(
        method="GET",
        path="/v1/sites",
        name="sites",
        summary="Show how the sites are",
        handler=handlers.sites,
        role="read",
        answer=Sites,
    ),
    HttpRoute(
        method="POST",
        path="/v1/sites/{name}/drain",
        name="drain",
        summary="Have a site take nothing new of the grid",
        handler=handlers.drain(True),
        role="operate",
        answer=Done,
        problems=("unknown-site",),
    ),
    HttpRoute(
        method="POST",
        path="/v1/sites/{name}/resume",
        name="resume",
        summary="Have a site take jobs of the grid again",
        handler=handlers.drain(False),
        role="operate",
        answer=Done,
        problems=("unknown-site",),
    ),
    HttpRoute(
        method="GET",
        path="/v1/queue",
        name="queue",
        summary="Show the jobs that wait, the first first",
        handler=handlers.queue,
        role="read",
        query=handlers.QueueQuery,
        answer=Queue,
    ),
    HttpRoute(
        method="GET",
        path="/v1/scheduling",
        name="scheduling",
        summary="Show how the grid schedules",
        handler=handlers.scheduling,
        role="read",
        answer=Scheduling,
    ),
    HttpRoute(
        method="POST",
        path="/v1/quote",
        name="quote",
        summary="Ask when a job would start, and where; nothing is handed in",
        handler=handlers.quote,
        role="read",
        body=QuoteJob,
        answer=Forecast,
    ),
    HttpRoute(
        method="GET",
        path="/v1/tokens",
        name="list_tokens",
        summary="List the tokens that can be used",
        handler=handlers.list_tokens,
        role="operate",
        answer=Tokens,
    ),
    HttpRoute(
        method="POST",
        path="/v1/tokens",
        name="make_token",
        summary="Make a token; it is shown only here",
        handler=handlers.make_token,
        role="operate",
        body=NewToken,
        answer=MadeToken,
        problems=("unknown-token",),
    ),
    HttpRoute(
        method="DELETE",
        path="/v1/tokens/{id}",
        name="revoke_token",
        summary="Revoke a token; its streams end at once",
        handler=handlers.revoke_token,
        role="operate",
        answer=Done,
        problems=("unknown-token",),
    ),
    HttpRoute(
        method="GET",
        path="/v1/whoami",
        name="whoami",
        summary="Show what the token of the request stands for",
        handler=handlers.whoami,
        role="read",
        answer=TokenInfo,
    ),
    HttpRoute(
        method="GET",
        path="/metrics",
        name="metrics",
        summary="Numbers for Prometheus",
        handler=handlers.metrics,
        role="read",
        forms=(handlers.METRICS_FORM,),
    ),
    HttpRoute(
        method="GET",
        path="/healthz",
        name="healthz",
        summary="Whether the gateway lives",
        handler=handlers.healthz,
        role=None,
        answer=Health,
    ),
    HttpRoute(
        method="GET",
        path="/readyz",
        name="readyz",
        summary="Whether the meta-scheduler answers; 503 if it does not",
        handler=handlers.readyz,
        role=None,
        answer=Health,
    ),
    HttpRoute(
        method="GET",
        path="/openapi.json",
        name="openapi",
        summary="This description of the interface",
        handler=_openapi,
        role=None,
        forms=(JSON,),
    ),
)

_Parts = tuple[str, ...]


def _pattern(path: str) -> _Parts:
    return tuple("{}" if part.startswith("{") else part for part in path.split("/"))


_BY_PATH: dict[_Parts, dict[str, HttpRoute]] = {}
for _route in ROUTES:
    _BY_PATH.setdefault(_pattern(_route.path), {})[_route.method] = _route

_BRACES_AT = 3


def find_route(call: GatewayCall, path: str, method: str) -> HttpRoute:
    """Return the route of a request, and note in the call what its path names."""
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

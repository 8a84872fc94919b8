"""The table of routes, with the scope that each route needs.

A route's name, summary and types come from its handler.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec
from aiohttp import web

from gridweave.grid.api import Done, Health, Login, SubmitJobs
from gridweave.grid.gateway import handlers, pages, streams, submission
from gridweave.grid.gateway.call import GatewayCall, HttpRoute, route
from gridweave.grid.gateway.openapi import describe
from gridweave.grid.gateway.wire import BYTES, EVENT_STREAM, JSON, TEXT
from gridweave.site.job import ActionKind

_JOB = ("unknown-job",)
_LOGIN = (
    *("unauthenticated", "forbidden", "foreign-origin"),
    *("unknown-token", "too-many-failed-logins", "tokens-unavailable"),
)
_STREAM_OF_JOBS = (*_JOB, "too-many-streams")
_KEY = (
    "Idempotency-Key",
    "Idempotency key for jobs without one, combined with their index: repeating the request creates no new jobs.",
)
_RESUME = ("Last-Event-ID", "Number of the last event received; overrides `after`.")
_OFFSET = (streams.OFFSET_HEADER, "Offset of the answer's first byte in the output.")
_LAST = (streams.LAST_HEADER, "1 at the end of the output, 0 if more may follow; not sent with `follow`.")


def _actions() -> Iterable[HttpRoute]:
    actions: tuple[tuple[ActionKind, str, str], ...] = (
        ("cancel", "Cancel a job, whether it waits or runs", "Cancel jobs, whether they wait or run"),
        ("kill", "Cancel a job at once, without its grace period", "Cancel jobs at once"),
        (
            "requeue",
            "Have a running job save its work, exit, and run again",
            "Have running jobs save their work, exit, and run again",
        ),
        ("hold", "Hold a job: take it out of the queue", "Hold jobs: take them out of the queue"),
        (
            "release",
            "Return a held job to the queue",
            "Return held jobs to the queue",
        ),
    )
    for kind, singular, many in actions:
        yield route(
            f"POST /v1/jobs/{kind}",
            handlers.apply_to_many(kind),
            "cancel",
            name=f"{kind}_jobs",
            summary=f"{many}; skip unknown jobs and those of others",
            problems=("too-many-jobs",),
        )
        yield route(
            f"POST /v1/jobs/{{id}}/{kind}",
            handlers.apply_to_one(kind),
            "cancel",
            name=f"{kind}_job",
            summary=singular,
            problems=_JOB,
        )


async def openapi(call: GatewayCall) -> web.Response:
    """Return this description."""
    return web.Response(body=_description(call.parts.tokens is not None), content_type=JSON)


@functools.cache
def _description(with_tokens: bool) -> bytes:
    return msgspec.json.encode(describe(ROUTES, with_tokens=with_tokens))


_SIGNAL = route("POST /v1/jobs/signal", handlers.signal_jobs, "cancel", problems=("too-many-jobs",))

ROUTES: tuple[HttpRoute, ...] = (
    route(
        "POST /v1/jobs",
        submission.submit,
        "submit",
        body=SubmitJobs,
        reads_body=True,
        problems=("too-many-jobs", "too-many-open-jobs", "declined"),
        request_headers=(_KEY,),
    ),
    route("GET /v1/jobs", handlers.list_jobs),
    *_actions(),
    _SIGNAL,
    route("GET /v1/jobs/{id}", handlers.show_job, problems=_JOB),
    route("GET /v1/jobs/{id}/history", handlers.history, problems=_JOB),
    route("GET /v1/jobs/{id}/forecast", handlers.forecast, problems=_JOB),
    route("GET /v1/jobs/{id}/usage", handlers.usage, problems=_JOB),
    route(
        "GET /v1/jobs/{id}/output",
        streams.output,
        media_types=(TEXT, BYTES),
        problems=(*_STREAM_OF_JOBS, "output-removed"),
        is_stream=True,
        answer_headers=(_OFFSET, _LAST),
    ),
    route(
        "GET /v1/events",
        streams.events,
        media_types=(EVENT_STREAM,),
        problems=_STREAM_OF_JOBS,
        is_stream=True,
        request_headers=(_RESUME,),
    ),
    route("GET /v1/events/ws", streams.events_ws, problems=_STREAM_OF_JOBS, is_stream=True),
    route("GET /v1/sites", handlers.sites),
    route("POST /v1/sites/{name}/drain", handlers.drain, "operate", problems=("unknown-site",)),
    route("POST /v1/sites/{name}/resume", handlers.resume, "operate", problems=("unknown-site",)),
    route(
        "POST /v1/sites/{name}/machines/{machine}/give-up",
        handlers.give_up,
        "operate",
        problems=("unknown-site", "unknown-machine", "machine-answers"),
    ),
    route("GET /v1/sites/{name}/experience", handlers.experience, "operate", problems=("unknown-site",)),
    route("POST /v1/sites/{name}/experience", handlers.edit_experience, "operate", problems=("unknown-site",)),
    route("GET /v1/experience", handlers.learnt, "operate"),
    route("GET /v1/queue", handlers.queue),
    route("GET /v1/network", handlers.network),
    route("GET /v1/scheduling", handlers.scheduling),
    route("POST /v1/quote", handlers.quote, problems=_JOB),
    route("GET /v1/schedule", handlers.schedule),
    route("GET /v1/plan", handlers.plan),
    route("POST /v1/what-if", handlers.what_if, "operate"),
    route("GET /v1/tokens", handlers.list_tokens, "operate"),
    route("POST /v1/tokens", handlers.make_token, "operate", problems=("unknown-token",), makes_tokens=True),
    route("POST /v1/tokens/short", handlers.make_short_token, "submit", problems=("unknown-token",), makes_tokens=True),
    route("DELETE /v1/tokens/{id}", handlers.revoke_token, "operate", problems=("unknown-token",)),
    route("GET /v1/whoami", handlers.whoami),
    route("POST /v1/login", pages.log_in, None, answer=Login, problems=_LOGIN),
    route("POST /v1/login/code", pages.make_code, problems=("unknown-token",), makes_tokens=True),
    route("POST /v1/logout", pages.log_out, answer=Done),
    route("GET /metrics", handlers.metrics, media_types=(handlers.METRICS_FORM,)),
    route("GET /healthz", handlers.healthz, None),
    route("GET /readyz", handlers.readyz, None, answer=Health),
    route("GET /openapi.json", openapi, None, media_types=(JSON,)),
)

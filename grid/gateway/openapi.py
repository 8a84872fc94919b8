"""The OpenAPI 3.1 description, generated from the routes and their types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gridweave.grid.api import JobEvent, Problem, StreamEnd
from gridweave.grid.gateway.call import HttpRoute
from gridweave.grid.gateway.problems import KINDS
from gridweave.grid.gateway.wire import BOTH, PROBLEM_FORMS
from gridweave.version import __version__

_REF = "#/components/schemas/{name}"

_ALWAYS = (
    *("bad-http", "not-acceptable", "invalid-request", "too-many-requests", "too-many-at-once"),
    *("internal", "unavailable", "busy", "site-unavailable"),
)
_WITH_TOKEN = ("unauthenticated", "forbidden", "foreign-origin", "tokens-unavailable")
_WITH_BODY = ("malformed-body", "slow-body", "body-too-large", "unsupported-media-type", "unknown-expectation")


def describe(routes: Sequence[HttpRoute], *, with_tokens: bool) -> dict[str, Any]:
    """Return the OpenAPI description of routes."""
    types = {kind for route in routes for kind in (route.query, route.body, route.answer) if kind is not None} | {
        Problem,
        JobEvent,
        StreamEnd,
    }
    in_order = sorted(types, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(in_order, ref_template=_REF)
    by_type = dict(zip(in_order, schemas, strict=True))
    queries = {route.query for route in routes if route.query is not None}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type, components)
        if not with_tokens:
            paths[route.path][route.method.lower()]["security"] = []
    for kind in queries:
        components.pop(kind.__name__, None)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gridweave",
            "version": __version__,
            "description": "A grid of sites that schedules parallel jobs as if they were one machine.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "gw_ID_SECRET; gridweave token create"}
            },
        },
    }


def _operation(route: HttpRoute, by_type: dict[type[Any], Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "security": [] if route.scope is None else [{"token": []}],
        "parameters": [*_parameters(route, components)],
        "responses": _responses(route, by_type),
    }
    if route.scope is not None:
        operation["description"] = f"Needs a token with the scope {route.scope}."
    if route.body is not None:
        content = {form: {"schema": by_type[route.body]} for form in BOTH}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameters(route: HttpRoute, components: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", route.path):
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if route.path.startswith("/v1/jobs/"):
            schema = {"type": "integer", "minimum": 1, "maximum": 2**62}
        elif route.path.startswith("/v1/tokens/"):
            schema = {"type": "string", "pattern": "^[0-9a-f]{12}$"}
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    if route.query is not None:
        for name, schema in components[route.query.__name__]["properties"].items():
            yield {"name": name, "in": "query", "required": False, "schema": _without_null(schema)}
    for name, meaning in route.request_headers:
        yield {"name": name, "in": "header", "required": False, "description": meaning, "schema": _HEADERS[name]}
    yield {
        "name": "X-Request-Id",
        "in": "header",
        "required": False,
        "description": "Request id, 1 to 64 of A-Za-z0-9._:-; a missing or invalid one is replaced.",
        "schema": {"type": "string"},
    }


_HEADERS: dict[str, dict[str, Any]] = {
    "Idempotency-Key": {"type": "string", "pattern": "^[!-~]{1,190}$"},
    "Last-Event-ID": {"type": "string", "pattern": "^[0-9]{1,18}$"},
}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that does not allow null, because a URL cannot express null."""
    cleaned = {key: value for key, value in schema.items() if key != "default" or value is not None}
    choices = [choice for choice in cleaned.get("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1:
        del cleaned["anyOf"]
        cleaned |= choices[0]
    return cleaned


def _responses(route: HttpRoute, by_type: dict[type[Any], Any]) -> dict[str, Any]:
    always: dict[str, Any] = {"X-Request-Id": {"description": "The id of the request.", "schema": {"type": "string"}}}
    headers = always | {
        name: {"description": meaning, "schema": {"type": "string"}} for name, meaning in route.answer_headers
    }
    schema: dict[str, Any] = by_type[route.answer] if route.answer is not None else {}
    good: dict[str, Any] = {
        "description": route.summary,
        "headers": headers,
        "content": {form: {"schema": schema} if schema else {} for form in route.media_types},
    }
    responses: dict[str, Any] = {"200": good}
    if route.name == "events_ws":
        responses = {"101": {"description": "The WebSocket is open; each frame is a JobEvent."}}
    responses |= _problems(route, always, by_type[Problem])
    if route.name == "readyz":
        responses["503"]["content"] |= good["content"]
    return responses


def _problems(route: HttpRoute, headers: dict[str, Any], schema: Any) -> dict[str, Any]:
    """Return the error responses of a route, by status."""
    kinds: dict[int, list[str]] = {}
    for kind in _kinds(route):
        kinds.setdefault(KINDS[kind].status, []).append(kind)
    return {
        str(status): {
            "description": "; ".join(f"{name}: {KINDS[name].title}" for name in names),
            "headers": headers,
            "content": {form: {"schema": schema} for form in PROBLEM_FORMS.values()},
        }
        for status, names in sorted(kinds.items())
    }


def _kinds(route: HttpRoute) -> Iterable[str]:
    kinds = [*_ALWAYS, *route.problems]
    if route.scope is not None:
        kinds += _WITH_TOKEN
    if route.body is not None:
        kinds += _WITH_BODY
    return kinds

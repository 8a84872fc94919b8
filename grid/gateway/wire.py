"""Decode requests and encode answers, as JSON or MessagePack, with strict checks of the clients' data."""

from __future__ import annotations

import asyncio
import difflib
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from gridweave.grid.api import FieldProblem, Problem
from gridweave.grid.gateway.problems import RefusalError, refused_field, shortened
from gridweave.site.times import span_text

JSON = "application/json"
MSGPACK = "application/msgpack"
BOTH = (JSON, MSGPACK)
TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"
EVENT_STREAM = "text/event-stream"

_DECODE: dict[str, Callable[..., Any]] = {JSON: msgspec.json.decode, MSGPACK: msgspec.msgpack.decode}

PROBLEM_FORMS = {JSON: "application/problem+json", MSGPACK: "application/problem+msgpack"}

_ALIASES = {"application/x-msgpack": MSGPACK, "application/vnd.msgpack": MSGPACK}
_AT = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<place>[^`]*)`(?: in `(?P<within>.*)`)?)?$", re.DOTALL)
_QUALITY = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)
_MOST_TYPES = 32
_MOST_REPORTED = 20

T = TypeVar("T")


def accepted(header: str, offered: Sequence[str]) -> str | None:
    """Return the offered media type that an ``Accept`` header prefers (ties: the first offered), or None.

    Examples
    --------
    >>> accepted("text/html, application/*;q=0.5", BOTH)
    'application/json'
    >>> accepted("application/json;q=0.1, application/msgpack", BOTH)
    'application/msgpack'
    >>> accepted("text/html", BOTH) is None
    True
    """
    if not header.strip():
        return offered[0]
    best: tuple[float, str] | None = None
    for part in header.split(",")[:_MOST_TYPES]:
        media_range, *parameters = (field.strip().lower() for field in part.split(";"))
        quality = next((float(match[1]) for text in parameters if (match := _QUALITY.fullmatch(text))), 1.0)
        for form in offered:
            if quality > 0 and (best is None or quality > best[0]) and _covers(media_range, form.partition(";")[0]):
                best = (quality, form)
    return None if best is None else best[1]


def _covers(media_range: str, form: str) -> bool:
    media_range = _ALIASES.get(media_range, media_range)
    # A client that accepts application/problem+json also accepts application/json.
    media_range = media_range.replace("application/problem+", "application/")
    return media_range in ("*/*", "*", form) or media_range == form.partition("/")[0] + "/*"


def body_form(request: web.BaseRequest) -> str:
    """Return a body's media type, JSON or MessagePack, from its ``Content-Type``; refuse any other type."""
    form = _ALIASES.get(request.content_type, request.content_type)
    if form not in BOTH or (request.charset or "utf-8").lower() not in ("utf-8", "utf8"):
        header = request.headers.get("Content-Type", "")
        what = f"is {header!r:.100}" if header else "is missing"
        raise RefusalError("unsupported-media-type", f"Content-Type {what}; send {JSON} or {MSGPACK}, in UTF-8")
    return form


def check_body(request: web.BaseRequest, most: int) -> None:
    """Refuse a body that is longer than `most` bytes, or compressed, because it could expand enormously."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity":
        raise RefusalError("unsupported-media-type", f"Content-Encoding is {encoding!r:.100}; send the body as it is")
    if (request.content_length or 0) > most:
        raise RefusalError("body-too-large", f"the body has {request.content_length} bytes; at most {most}")


async def read_body(request: web.BaseRequest, most: int, timeout_s: float, take: Callable[[int], None]) -> bytes:
    """Read a body of at most `most` bytes within `timeout_s`; `take` is called with each chunk's size."""
    parts: list[bytes] = []
    total = 0
    try:
        async with asyncio.timeout(timeout_s):
            while part := await request.content.readany():
                total += len(part)
                if total > most:
                    raise RefusalError("body-too-large", f"the body has more than {most} bytes; that is the limit")
                take(len(part))
                parts.append(part)
    except TimeoutError:
        problem = (
            f"{total} bytes of the body came within {span_text(timeout_s * 1000)}, not all; send it faster, or in parts"
        )
        raise RefusalError("slow-body", problem, headers={"Connection": "close"}) from None
    except RequestPayloadError as error:
        raise RefusalError("bad-http", f"the body is broken: {error}", headers={"Connection": "close"}) from None
    return b"".join(parts)


def decode(data: bytes | msgspec.Raw, form: str, kind: type[T], where: str = "") -> T:
    """Decode a body, or its part at `where`; unknown fields are refused."""
    try:
        value: T = _DECODE[form](data, type=kind)
        _check_names(data, form, kind, where)
        return value
    except msgspec.ValidationError as error:
        problem = field_problem(error, where)
        raise RefusalError(
            "invalid-request", f"{problem.where or 'the body'}: {problem.detail}", errors=[problem]
        ) from None
    except RecursionError:
        raise RefusalError("malformed-body", f"{where or 'the body'} is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:  # invalid UTF-8 is a ValueError
        name = "JSON" if form == JSON else "MessagePack"
        raise RefusalError("malformed-body", f"{where or 'the body'} is not {name}: {shortened(str(error))}") from None


# The types themselves ignore unknown fields, because journals and links may contain fields of newer versions. Clients
# must not send unknown fields, so each body is decoded a second time by names only, which takes a few microseconds.


@functools.cache
def _names_of(kind: Any) -> Any:
    """Return a struct type with only the field names of `kind`, at any depth, that refuses unknown fields."""
    fields: list[tuple[str, Any, Any]] = [(field.name, _names_in(field.type), None) for field in _fields(kind)]
    return msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=True)


def _names_in(kind: Any) -> Any:
    """Apply `_names_of` to a field's type; a type without structs becomes `Raw`, which is not decoded."""
    inner = _struct_in(kind)
    if inner is None:
        return msgspec.Raw
    return list[_names_of(inner)] | None if _is_many(kind) else _names_of(inner) | None  # type: ignore[misc]


def _struct_in(kind: Any) -> Any:
    """Return the struct in a type such as `list[T]` or `T | None`, or None.

    Examples
    --------
    >>> _struct_in(tuple[Problem, ...]).__name__, _struct_in(Problem | None).__name__, _struct_in(dict[str, int])
    ('Problem', 'Problem', None)
    """
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return None if get_origin(kind) is dict else next(filter(None, map(_struct_in, get_args(kind))), None)


def _is_many(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        return _is_many(get_args(kind)[0])
    return get_origin(kind) in (list, tuple)


@functools.cache
def _fields(kind: type[Any]) -> Sequence[msgspec.structs.FieldInfo]:
    return msgspec.structs.fields(kind)


def _check_names(data: bytes | msgspec.Raw, form: str, kind: type[Any], where: str) -> None:
    """Raise RefusalError if there are unknown fields; list all of them, each with the most similar known name."""
    structure: Any = kind
    names = _names_of(structure)
    try:
        _DECODE[form](data, type=names)
    except msgspec.ValidationError:
        value = _DECODE[form](data)
        problems = list(_unknown(value, kind, where))
        if problems:
            problem = "; ".join(f"{entry.where}: {entry.detail}" for entry in problems[:_MOST_REPORTED])
            raise RefusalError("invalid-request", problem, errors=problems[:_MOST_REPORTED]) from None


def _unknown(value: Any, kind: Any, where: str) -> Iterator[FieldProblem]:
    """Yield the unknown fields of a struct, at any depth."""
    field_types = {element.encode_name: element.type for element in _fields(kind)}
    for name, inner in value.items():
        path = f"{where}.{name}" if where else str(name)
        if name not in field_types:
            yield FieldProblem(where=shortened(path), detail=f"is not known; {nearest(str(name), list(field_types))}")
        elif (struct := _struct_in(field_types[name])) is not None and inner is not None:
            for number, element in enumerate(inner) if _is_many(field_types[name]) else [(None, inner)]:
                yield from _unknown(element, struct, path if number is None else f"{path}[{number}]")


def nearest(name: str, valid_names: Sequence[str]) -> str:
    """Suggest the known name most similar to an unknown one, or list all known names.

    Examples
    --------
    >>> nearest("node", ["nodes", "limit_ms"]), nearest("x", ["nodes", "limit_ms"]), nearest("x", [])
    ("did you mean 'nodes'?", 'there are nodes, limit_ms', 'there are none')
    """
    close = difflib.get_close_matches(name, valid_names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(valid_names) or 'none'}"


def field_problem(error: msgspec.ValidationError, within: str = "") -> FieldProblem:
    """Convert a msgspec error into a field and its problem.

    Examples
    --------
    >>> field_problem(msgspec.ValidationError("Expected `int`, got `str` - at `$.request.nodes`"), "jobs[3]")
    FieldProblem(where='jobs[3].request.nodes', detail='Expected `int`, got `str`')
    """
    match = _AT.match(str(error))
    assert match is not None, "the pattern takes any text"
    path = match["within"] or match["place"] or ""
    if match["within"] and match["place"]:
        path += f" ({match['place']})"
    return FieldProblem(where=(within + path.removeprefix("$")).removeprefix("."), detail=shortened(match["problem"]))


def _check_parameters(query: Any, valid_names: Sequence[str]) -> None:
    """Raise RefusalError if there are unknown query parameters; list all of them."""
    unknown = [name for name in dict.fromkeys(query) if name not in valid_names and _is_text(name)]
    problems = [
        FieldProblem(where=shortened(name), detail=f"is not known; {nearest(name, valid_names)}") for name in unknown
    ]
    if problems:
        problem = "; ".join(f"{entry.where}: {entry.detail}" for entry in problems[:_MOST_REPORTED])
        raise RefusalError("invalid-request", problem, errors=problems[:_MOST_REPORTED])


class NoParameters(msgspec.Struct, frozen=True):
    """Query parameters of a route that has none."""


def parameters(query: Any, kind: type[T]) -> T:
    """Decode a query string; fields of `kind` whose default is a tuple may be repeated."""
    structure: Any = kind
    fields: Sequence[msgspec.structs.FieldInfo] = _fields(structure)
    repeatable = {field.name for field in fields if isinstance(field.default, tuple)}
    valid_names = [field.name for field in fields]
    _check_parameters(query, valid_names)
    by_name: dict[str, Any] = {}
    for name in dict.fromkeys(query):
        values = query.getall(name)
        if not all(text.isascii() or _is_text(text) for text in (name, *values)):
            raise refused_field(shortened(name), "is not UTF-8")
        if name not in repeatable and len(values) > 1:
            raise refused_field(shortened(name), "is given more than once")
        by_name[name] = values if name in repeatable else values[0]
    try:
        answer = msgspec.convert(by_name, kind, strict=False)
        for name in by_name:
            if getattr(answer, name) is None:  # the text "null" would be None
                raise msgspec.ValidationError(f"Expected a value, got `null` - at `$.{name}`")
    except msgspec.ValidationError as error:
        problem = field_problem(error)
        detail = f"{problem.where or 'the query'}: {problem.detail}; parameters: {', '.join(valid_names) or 'none'}"
        raise RefusalError("invalid-request", detail, errors=[problem]) from None
    return answer


def _is_text(text: str) -> bool:
    """Whether a text is valid Unicode; invalid bytes in a URL become surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode(value: object, form: str) -> bytes:
    """Encode an answer in the given media type."""
    return msgspec.json.encode(value) if form == JSON else msgspec.msgpack.encode(value)


def problem_response(problem: Problem, accept: str, headers: dict[str, str]) -> web.Response:
    """Return a problem's response in the media type that the client prefers, or in JSON."""
    form = accepted(accept, BOTH) or JSON
    if problem.retry_after_s is not None:
        headers = headers | {"Retry-After": str(max(1, math.ceil(problem.retry_after_s)))}
    return web.Response(
        body=encode(problem, form), status=problem.status, headers=headers | {"Content-Type": PROBLEM_FORMS[form]}
    )

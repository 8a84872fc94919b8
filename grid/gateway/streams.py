"""Streaming answers: job events as server-sent events or over a WebSocket, and job output as it is written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web
from msgspec import Meta

from gridweave.errors import UnavailableError
from gridweave.grid.api import EventKind, FieldProblem, JobId, OutputPart, StreamEnd
from gridweave.grid.gateway.call import GatewayCall, cut, unknown_job
from gridweave.grid.gateway.hub import EventBatch, Filter
from gridweave.grid.gateway.problems import RefusalError, refused_field
from gridweave.grid.gateway.wire import EVENT_STREAM

OFFSET_HEADER = "Gridweave-Offset"
LAST_HEADER = "Gridweave-Last"
MOST_OUTPUT_BYTES = 1 << 20

_SEND_S = 30.0
"""Time in seconds after which a client that reads nothing counts as disconnected."""

_FIRST_LOOK_S = 0.05
_LONGEST_LOOK_S = 0.5
_GIVE_UP_S = 60.0
_MOST_NUMBER = 2**62


class EventQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of an event stream."""

    # number of the last known event; default: events from now on
    after: Annotated[int, Meta(ge=0, le=_MOST_NUMBER)] | None = None
    # Only these jobs and kinds.
    job: Annotated[tuple[JobId, ...], Meta(max_length=1_000)] = ()
    kind: Annotated[tuple[EventKind, ...], Meta(max_length=100)] = ()
    user: str | None = None  # only jobs of this user
    format: Literal["json", "msgpack"] = "json"  # of the WebSocket's frames


class OutputQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of a rank's output."""

    rank: Annotated[int, Meta(ge=0, le=10**7)] = 0
    attempt: Annotated[int, Meta(ge=1, le=_MOST_NUMBER)] | None = None  # of the job; default: the last
    stream: Literal["out", "err", "result"] = "out"  # standard output, standard error, or the result of a callable
    offset: Annotated[int, Meta(ge=0, le=_MOST_NUMBER)] = 0  # of the first byte
    # At most this many bytes; ignored with `follow`.
    limit: Annotated[int, Meta(ge=1, le=MOST_OUTPUT_BYTES)] = MOST_OUTPUT_BYTES
    follow: bool = False  # whether to continue until the job has ended


# -- events -----------------------------------------------------------------------------------------------------------


async def _request_of(call: GatewayCall, query: EventQuery) -> tuple[Filter, int | None]:
    """Return the filter of a request for events, and the number of the last event that the client has received."""
    after = query.after
    heard = call.request.headers.get("Last-Event-ID")
    if heard:
        # A reconnecting browser requests the same URL, so the header has the newer number.
        if not (heard.isascii() and heard.isdigit() and len(heard) < 19):
            raise refused_field("Last-Event-ID", f"is {heard!r:.50}, which is not the number of an event")
        after = int(heard)
    user = query.user
    if not call.identity.is_operator:
        if user not in (None, call.identity.user):
            raise refused_field("user", "belongs to another user, whose events you may not see", "forbidden")
        user = call.identity.user
        await _check_own(call, query.job)
    if after is not None:
        await call.parts.hub.check_after(after)
    return Filter(user=user, jobs=frozenset(query.job), kinds=frozenset(query.kind)), after


async def _check_own(call: GatewayCall, job_ids: tuple[int, ...]) -> None:
    if job_ids:
        records = await call.backend.records(sorted(set(job_ids)))
        own = {record.job_id for record in records if call.identity.sees(record.request.user)}
        for job_id in job_ids:
            if job_id not in own:
                raise unknown_job(job_id)


async def events(call: GatewayCall, query: EventQuery) -> web.StreamResponse:
    """Stream job events as server-sent events, with one JobEvent in each."""
    event_filter, after = await _request_of(call, query)
    with call.parts.streams.hold(call.identity.user):
        response = web.StreamResponse(headers={**call.headers, "Content-Type": EVENT_STREAM, "X-Accel-Buffering": "no"})
        await response.prepare(call.request)
        # A client may expect every event after this line, so it is sent only once the hub knows the watcher.
        greeting = b": gridweave\n\n"
        watching = call.parts.hub.watch(event_filter, call.identity.token_id, after, call.parts.settings.comment_s)
        async with contextlib.aclosing(watching):
            async for item in watching:
                if greeting:
                    await _send(call, response, greeting)
                    greeting = b""
                if isinstance(item, StreamEnd):
                    await _send(call, response, b"event: end\ndata: %b\n\n" % msgspec.json.encode(item))
                    break
                # A number without an event lets a client resume without duplicates.
                data = b": still here\nid: %d\n\n" % item if isinstance(item, int) else item.sse()
                if data:
                    await _send(call, response, data)
        await response.write_eof()
    return response


async def _send(call: GatewayCall, response: web.StreamResponse, data: bytes) -> None:
    try:
        async with asyncio.timeout(_SEND_S):
            await response.write(data)
    except TimeoutError:
        cut(call.request)
        raise ConnectionResetError("the client does not read") from None
    call.bytes_out += len(data)


async def events_ws(call: GatewayCall, query: EventQuery) -> web.StreamResponse:
    """Stream job events over a WebSocket, with one JobEvent in each frame."""
    if call.request.headers.get("Upgrade", "").lower() != "websocket":
        problem = "this path is a WebSocket; send Upgrade: websocket, or use /v1/events"
        raise RefusalError("invalid-request", problem, errors=[FieldProblem(where="Upgrade", detail="is missing")])
    event_filter, after = await _request_of(call, query)
    with call.parts.streams.hold(call.identity.user):
        socket = web.WebSocketResponse(
            heartbeat=call.parts.settings.comment_s, max_msg_size=1024, compress=False, timeout=5.0
        )
        socket.headers.update(call.headers)
        try:
            await socket.prepare(call.request)
        except web.HTTPException as error:
            raise RefusalError("invalid-request", f"this is not a WebSocket handshake: {error.text}") from None
        settings = call.parts.settings
        watching = call.parts.hub.watch(event_filter, call.identity.token_id, after, settings.comment_s)
        sending = asyncio.create_task(_send_frames(call, socket, watching, query.format))
        try:
            await _until_closed(socket, sending)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    return socket


async def _until_closed(socket: web.WebSocketResponse, sending: asyncio.Task[None]) -> None:
    """Wait until the client disconnects or `sending` is done; close the socket if the client sends data."""
    while True:
        hearing = asyncio.create_task(socket.receive())
        try:
            await asyncio.wait({hearing, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not hearing.done():
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
        if sending.done() or hearing.result().type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED):
            return
        if hearing.result().type in (WSMsgType.TEXT, WSMsgType.BINARY):
            await socket.close(code=WSCloseCode.UNSUPPORTED_DATA, message=b"send nothing over this connection")
            return
        if hearing.result().type is WSMsgType.ERROR:
            return


async def _send_frames(
    call: GatewayCall,
    socket: web.WebSocketResponse,
    watching: AsyncGenerator[EventBatch | StreamEnd | int, None],
    form: Literal["json", "msgpack"],
) -> None:
    async with contextlib.aclosing(watching):
        async for item in watching:
            if isinstance(item, StreamEnd):
                await _close(socket, item)
                return
            if isinstance(item, EventBatch):
                await _send_chunk(call, socket, item, form)


async def _send_chunk(
    call: GatewayCall, socket: web.WebSocketResponse, batch: EventBatch, form: Literal["json", "msgpack"]
) -> None:
    try:
        async with asyncio.timeout(_SEND_S):
            for frame in batch.frames(form):
                await (socket.send_str(frame.decode()) if form == "json" else socket.send_bytes(frame))
                call.bytes_out += len(frame)
    except TimeoutError:
        cut(call.request)
        raise ConnectionResetError("the client does not read") from None


_CLOSE_CODES = {
    "slow": WSCloseCode.TRY_AGAIN_LATER,
    "revoked": WSCloseCode.POLICY_VIOLATION,
    "stopping": WSCloseCode.GOING_AWAY,
}


async def _close(socket: web.WebSocketResponse, end: StreamEnd) -> None:
    """Close a WebSocket and send the `StreamEnd` as JSON in the close reason."""
    await socket.close(code=_CLOSE_CODES[end.reason], message=msgspec.json.encode(end))


# -- output -----------------------------------------------------------------------------------------------------------


async def output(call: GatewayCall, query: OutputQuery) -> web.StreamResponse:
    """Read or follow a rank's output."""
    record = await call.own_job()
    part = await _output_part(call, record.job_id, query, query.offset)
    headers = {OFFSET_HEADER: str(part.offset), "Content-Type": call.answer_form}
    if query.follow:
        with call.parts.streams.hold(call.identity.user):
            return await _follow(call, record.job_id, query, part, headers)
    headers[LAST_HEADER] = str(int(part.is_last))
    return web.Response(body=part.data, headers=headers)


async def _output_part(call: GatewayCall, job_id: int, query: OutputQuery, offset: int) -> OutputPart:
    where = job_id, query.rank, query.stream, offset, query.limit
    part = await call.backend.output(*where, attempt=query.attempt)
    if part is None:
        raise unknown_job(job_id)
    if part.removed:
        raise RefusalError("output-removed", part.removed)
    return part


async def _follow(
    call: GatewayCall, job_id: int, query: OutputQuery, part: OutputPart, headers: dict[str, str]
) -> web.StreamResponse:
    """Send a part and all later output. An aborted stream has no last chunk, so the client notices."""
    response = web.StreamResponse(headers={**call.headers, **headers, "X-Accel-Buffering": "no"})
    response.enable_chunked_encoding()
    await response.prepare(call.request)
    loop = asyncio.get_running_loop()
    pause_s, heard_s = _FIRST_LOOK_S, loop.time()
    while True:
        if part.data:
            await _send(call, response, part.data)
            pause_s = _FIRST_LOOK_S
        if part.is_last:
            await response.write_eof()
            return response
        if not part.data:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_LOOK_S)
        try:
            await _check_request(call)
            part = await _output_part(call, job_id, query, part.offset + len(part.data))
            heard_s = loop.time()
        except UnavailableError:
            part = msgspec.structs.replace(part, data=b"", offset=part.offset + len(part.data))
            if loop.time() - heard_s > _GIVE_UP_S:
                cut(call.request)
                raise ConnectionResetError("the grid does not answer") from None
        except RefusalError:
            cut(call.request)
            raise ConnectionResetError("the stream must end here") from None


async def _check_request(call: GatewayCall) -> None:
    """Raise RefusalError if the stream's token is no longer valid or the gateway is stopping."""
    tokens = call.parts.tokens
    if tokens is not None and call.identity.token_id not in await tokens.usable():
        raise RefusalError("unauthenticated", "the token is no longer valid")
    if call.parts.hub.is_stopping:
        raise RefusalError("unavailable", "the gateway stops")

"""A gateway of a grid that exists in memory alone: the interface of docs/gateway.md, and nothing behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from gridweave.grid import api
from gridweave.site.program import JobRecord, JobRequest

MSGPACK = "application/msgpack"


class TinyGateway:
    """Jobs in a dictionary, and the answers that a gateway gives of them.

    Attributes
    ----------
    records, keys, events, outputs
        What it knows; tests change them.
    url : str
        Where it listens; set by who starts it.
    heard : list
        Method, path and body of each request, as it came.
    runs : callable, optional
        What becomes of a job as soon as it was handed in.
    """

    def __init__(self) -> None:
        self.records: dict[int, JobRecord] = {}
        self.keys: dict[tuple[str, str], int] = {}
        self.events: list[api.JobEvent] = []
        self.outputs: dict[tuple[int, int, str], bytes] = {}
        self.heard: list[tuple[str, str, Any]] = []
        self.runs: Callable[[JobRecord], None] | None = None
        self.token = ""
        self.url = ""
        self.now_ms = 1_800_000_000_000
        self.drained: set[str] = set()
        self._news = asyncio.Condition()
        self.app = web.Application(client_max_size=64 << 20, middlewares=[self._refuse_strangers])
        self.app.add_routes(
            [
                web.post("/v1/jobs", self._submit),
                web.get("/v1/jobs", self._list),
                web.post("/v1/jobs/{verb:cancel|hold|release}", self._change),
                web.get("/v1/jobs/{id}", self._show),
                web.get("/v1/jobs/{id}/story", self._story),
                web.get("/v1/jobs/{id}/forecast", self._forecast),
                web.get("/v1/jobs/{id}/output", self._output),
                web.get("/v1/events", self._events),
                web.get("/v1/sites", self._sites),
                web.post("/v1/sites/{name}/{verb:drain|resume}", self._drain),
                web.get("/v1/queue", self._queue),
                web.post("/v1/quote", self._quote),
                web.get("/v1/whoami", self._whoami),
                web.get("/readyz", self._ready),
            ]
        )

    # -- what becomes of jobs

    async def tell(self, job_id: int, kind: str, detail: str = "") -> None:
        """Have an event happen."""
        record = self.records[job_id]
        self._happen(record, kind, detail)
        async with self._news:
            self._news.notify_all()

    def _happen(self, record: JobRecord, kind: str, detail: str = "") -> None:
        number = len(self.events) + 1
        request = record.request
        self.events.append(
            api.JobEvent(
                number=number,
                at_ms=self.now_ms,
                job_id=record.job_id,
                kind=kind,
                detail=detail,
                user=request.user,
                name=request.name,
            )
        )

    def end(self, record: JobRecord, outcome: str = "finished", reason: str = "") -> None:
        """Have a job end, without telling those who watch before the next `tell`."""
        record.state, record.outcome, record.reason = "ended", outcome, reason
        record.start_ms, record.end_ms, record.places = self.now_ms, self.now_ms + 5_000, (("north", 2), ("south", 2))
        self._happen(record, "ended", outcome)

    async def ended(self, job_id: int, outcome: str = "finished", reason: str = "") -> None:
        """Have a job end, and tell those who watch."""
        self.end(self.records[job_id], outcome, reason)
        async with self._news:
            self._news.notify_all()

    # -- answers

    @web.middleware
    async def _refuse_strangers(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return problem(request, 401, "this token is not known, or was revoked; ask an operator for another")
        return await handler(request)  # type: ignore[no-any-return]

    async def _submit(self, request: web.Request) -> web.Response:
        body = await self._body(request, api.SubmitJobs)
        answers = []
        for new in body.jobs:
            if new.request.nodes > 100:
                answers.append(api.SubmitAnswer(key=new.key or "", reason="no site has so many nodes"))
                continue
            known = self.keys.get((new.request.user, new.key or ""))
            if known is None:
                known = self.keys[new.request.user, new.key or ""] = self._take_in(new.request, body.site)
            answers.append(api.SubmitAnswer(key=new.key or "", job_id=known))
        async with self._news:
            self._news.notify_all()
        return answer(request, api.Submitted(answers=answers))

    def _take_in(self, wanted: JobRequest, site: str | None) -> int:
        job_id = len(self.records) + 1 + (10**12 if site else 0)
        record = self.records[job_id] = JobRecord(
            job_id=job_id, request=wanted, state="held" if wanted.hold else "waiting", submit_ms=self.now_ms
        )
        self._happen(record, "submitted")
        if self.runs is not None:
            self.runs(record)
        return job_id

    async def _list(self, request: web.Request) -> web.Response:
        asked = request.query
        self.heard.append((request.method, request.path_qs, None))
        found = [
            record
            for job_id, record in sorted(self.records.items(), reverse=True)
            if (not asked.get("below") or job_id < int(asked["below"]))
            and asked.get("user", record.request.user) == record.request.user
            and asked.get("name", record.request.name) == record.request.name
            and record.state in (asked.getall("state", []) or [record.state])
            and record.outcome in (asked.getall("outcome", []) or [record.outcome])
            and ("array" not in asked or (record.request.array and record.request.array.name == asked["array"]))
        ]
        limit = min(int(asked.get("limit", 100)), 50)
        page = found[:limit]
        return answer(request, api.JobPage(jobs=page, below=page[-1].job_id if len(found) > limit else None))

    async def _show(self, request: web.Request) -> web.Response:
        record = self.records.get(int(request.match_info["id"]))
        return answer(request, record) if record is not None else unknown(request)

    async def _change(self, request: web.Request) -> web.Response:
        body = await self._body(request, api.JobIds)
        verb, done = request.match_info["verb"], []
        before = {"cancel": ("held", "waiting", "running"), "hold": ("waiting",), "release": ("held",)}[verb]
        for record in (self.records[job_id] for job_id in body.job_ids if job_id in self.records):
            if record.state in before:
                done.append(record.job_id)
                if verb == "cancel":
                    await self.ended(record.job_id, "cancelled", "by wish")
                else:
                    record.state = "held" if verb == "hold" else "waiting"
        return answer(request, api.Done(job_ids=done))

    async def _story(self, request: web.Request) -> web.Response:
        job_id = int(request.match_info["id"])
        if job_id not in self.records:
            return unknown(request)
        entries = [
            api.StoryEntry(at_ms=one.at_ms, kind=one.kind, detail=one.detail)
            for one in self.events
            if one.job_id == job_id
        ]
        return answer(request, api.Story(job_id=job_id, entries=entries))

    async def _forecast(self, request: web.Request) -> web.Response:
        record = self.records.get(int(request.match_info["id"]))
        if record is None:
            return unknown(request)
        return answer(request, forecast(record.job_id, self.now_ms, record.request))

    async def _quote(self, request: web.Request) -> web.Response:
        body = await self._body(request, api.QuoteJob)
        return answer(request, forecast(None, self.now_ms, body.request))

    async def _output(self, request: web.Request) -> web.StreamResponse:
        job_id, asked = int(request.match_info["id"]), request.query
        self.heard.append((request.method, request.path_qs, None))
        if job_id not in self.records:
            return unknown(request)
        place = (job_id, int(asked["rank"]), asked["stream"])
        offset = int(asked["offset"])
        if asked.get("follow") != "1":
            data = self.outputs.get(place, b"")
            part = data[offset : offset + min(int(asked["limit"]), 1000)]
            is_last = offset + len(part) == len(data)
            headers = {"Gridweave-Offset": str(offset), "Gridweave-Last": str(int(is_last))}
            return web.Response(body=part, headers=headers)
        response = web.StreamResponse(headers={"Gridweave-Offset": str(offset), "Gridweave-Last": "0"})
        await response.prepare(request)
        while True:
            data = self.outputs.get(place, b"")[offset:]
            if data:
                await response.write(data[:1000])
                offset += len(data[:1000])
            elif self.records[job_id].state == "ended":
                return response
            else:
                async with self._news:
                    await self._news.wait()

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self.heard.append((request.method, request.path_qs, None))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        last = int(request.query.get("after", len(self.events)))
        await response.write(f": hello\nid: {last}\n\n".encode())
        kinds, job = request.query.getall("kind", []), request.query.get("job")
        while True:
            for event in self.events[last:]:
                last = event.number
                if (not kinds or event.kind in kinds) and job in (None, str(event.job_id)):
                    await response.write(b"id: %d\ndata: %b\n\n" % (last, msgspec.json.encode(event)))
            async with self._news:
                if last == len(self.events):
                    await self._news.wait()

    async def _sites(self, request: web.Request) -> web.Response:
        return answer(request, api.Sites(sites=sites(self.drained)))

    async def _drain(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in ("north", "south", "east"):
            return problem(request, 404, f"there is no site {name!r}; there are north, south, east")
        (self.drained.add if request.match_info["verb"] == "drain" else self.drained.discard)(name)
        return answer(request, api.Done())

    async def _queue(self, request: web.Request) -> web.Response:
        waiting = [record for record in self.records.values() if record.state == "waiting"]
        jobs = [
            api.QueuedJob(
                job_id=record.job_id,
                user=record.request.user,
                nodes=record.request.nodes,
                limit_ms=record.request.limit_ms,
                submit_ms=record.submit_ms,
            )
            for record in waiting[: int(request.query["limit"])]
        ]
        counts = {state: sum(r.state == state for r in self.records.values()) for state in ("held", "running")}
        return answer(request, api.Queue(waiting=len(waiting), jobs=jobs, **counts))

    async def _whoami(self, request: web.Request) -> web.Response:
        return answer(request, api.TokenInfo(token_id="abc", user="anna", role="submit", made_ms=self.now_ms))

    async def _ready(self, request: web.Request) -> web.Response:
        return answer(request, api.Health(status="ok", sites={"north": True, "south": True, "east": False}))

    async def _body(self, request: web.Request, kind: type[Any]) -> Any:
        assert request.content_type == MSGPACK
        body = msgspec.msgpack.decode(await request.read(), type=kind)
        self.heard.append((request.method, request.path_qs, body))
        return body


def answer(request: web.Request, body: msgspec.Struct, status: int = 200, kind: str = MSGPACK) -> web.Response:
    """Return an answer in MessagePack, as the client asks for."""
    assert MSGPACK in request.headers["Accept"]
    return web.Response(body=msgspec.msgpack.encode(body), content_type=kind, status=status)


def problem(request: web.Request, status: int, detail: str, **said: Any) -> web.Response:
    """Return a refusal."""
    document = api.Problem(type="urn:gridweave:problem:test", title="test", status=status, detail=detail, **said)
    return web.Response(body=msgspec.json.encode(document), content_type="application/problem+json", status=status)


def unknown(request: web.Request) -> web.Response:
    """Return that there is no such job."""
    return problem(request, 404, f"there is no job {request.match_info['id']}, or it is another user's")


def sites(drained: set[str]) -> list[api.SiteInfo]:
    """Return three sites; one does not answer."""
    return [
        api.SiteInfo(name="north", nodes=16, for_grid=16, free=3, waiting=2, running=4, draining="north" in drained),
        api.SiteInfo(name="south", nodes=8, for_grid=6, free=6, draining="south" in drained),
        api.SiteInfo(name="east", answers=False, nodes=4, for_grid=4),
    ]


def forecast(job_id: int | None, now_ms: int, request: JobRequest) -> api.Forecast:
    """Return when a job would start, with reasons of all kinds."""
    return api.Forecast(
        job_id=job_id,
        now_ms=now_ms,
        start_ms=now_ms + 600_000,
        places=(("north", request.nodes),),
        length_ms=request.limit_ms,
        ahead=2,
        reason="no site has 12 nodes free, and a split would end 4 minutes later",
        sites=(
            api.SiteReason(
                site="north", nodes=16, free=3, start_ms=now_ms + 600_000, reason="13 nodes are busy until 12:10"
            ),
            api.SiteReason(site="south", nodes=6, free=6, reason="has 6 nodes for the grid, and the job needs 12"),
            api.SiteReason(site="east", nodes=4, free=0, reason="does not answer"),
        ),
        split=api.SplitReason(
            places=(("north", 3), ("south", 6)),
            start_ms=now_ms,
            length_ms=1_080_000,
            whole_ms=600_000,
            gain_ms=-240_000,
            reason="the links between north and south make it 1.8 times as long",
        ),
    )

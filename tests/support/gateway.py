"""A grid in memory, gateways in front of it, and what sends requests to them.

Use it for tests of the gateway, its clients and the commands, which need a grid that answers but no jobs that run.
`serving` yields a gateway in the event loop of the test. `served` adds a proxy in front that fails on demand, and
`Elsewhere` runs both in another thread, for the synchronous client and the commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
from aiohttp.test_utils import TestServer

from gridweave.errors import InputError, UnavailableError
from gridweave.grid import api
from gridweave.grid.api import (
    BusyNodes,
    Forecast,
    GivenUp,
    GridExperience,
    Health,
    HistoryEntry,
    JobEvent,
    JobEvents,
    JobPage,
    JobProgress,
    JobQuery,
    KeptNodes,
    KnownNetwork,
    LearntSplit,
    NetworkLink,
    NetworkNode,
    NetworkPath,
    Outlook,
    Outlooks,
    OutputPart,
    PlannedStarts,
    Problem,
    Queue,
    QueuedJob,
    ScheduledJob,
    Scheduling,
    Scope,
    SiteInfo,
    SiteReason,
    UsedSite,
    WhatIf,
    WhatIfAnswer,
)
from gridweave.grid.backend import Backend
from gridweave.grid.client.client import Client
from gridweave.grid.client.transport import Patience
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.gateway.access import TokenStore
from gridweave.grid.gateway.server import Gateway
from gridweave.site.explain import nodes_text
from gridweave.site.job import Accepted, ActionKind, Declined, JobRecord, JobRequest, SignalName, request_problem
from gridweave.site.known_times import EXPERIENCE, KnownTimes, TimesKey, in_order, read_times
from gridweave.site.lifecycle import OPEN
from gridweave.site.needs.estimates import NeedsExperience
from gridweave.site.query_messages import ResourceAmount
from gridweave.site.resources.chunks import WHOLE_NODE, NodeKind
from gridweave.site.resources.use import resource_use
from support.machine import PATIENCE_S
from support.web import FlakyProxy

# -- a grid in memory -------------------------------------------------------------------------------------------------

OWN_FIRST = 10**12
PAGE = 500
TAKES = "accepts jobs of anna, bert"


class FakeBackend(Backend):
    """A grid of two sites, in memory.

    Attributes
    ----------
    is_away : bool
        Whether the grid does not answer.
    open_gate : asyncio.Event
        Submissions are answered only while it is set; they are accepted at once in any case.
    away : dict from str to tuple of str
        The machines of each site that are away; each site has m0 and m1.
    given_up : list of (str, str)
        The machines that were given up, as (site, machine).
    polls, submits : int
        Number of requests for events that waited, and number of submissions.
    """

    def __init__(self) -> None:
        self.records_by_id: dict[int, JobRecord] = {}
        self.stories: dict[int, list[HistoryEntry]] = {}
        self.apply: list[JobEvent] = []
        self.written: dict[tuple[int, int, str], bytes] = {}
        self.removed: dict[int, str] = {}  # why the output of a job was removed
        self.learned: dict[TimesKey, KnownTimes] = {}
        self.draining: dict[str, bool] = {"north": False, "south": False}
        self.away = {"north": ("m1",), "south": ()}
        self.given_up: list[tuple[str, str]] = []
        self.progress: dict[str, list[JobProgress]] = {}
        self.kept: dict[str, list[KeptNodes]] = {}
        self.nodes = {"north": 4, "south": 8}
        self.kinds: dict[str, tuple[NodeKind, ...]] = {}  # of sites that count resources
        self.is_away = False
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.polls = self.submits = 0
        self.now_ms = 1_700_000_000_000
        self._answers: dict[tuple[str | None, str], Accepted | Declined] = {}
        self._next = {None: 1, "north": OWN_FIRST + 1, "south": 2 * OWN_FIRST + 1}
        self._news = asyncio.Event()

    def _check(self) -> None:
        if self.is_away:
            raise UnavailableError("the meta-scheduler does not answer; try again")

    def _note(self, job_id: int, kind: str, detail: str = "") -> None:
        self.now_ms += 1
        self.stories.setdefault(job_id, []).append(HistoryEntry(at_ms=self.now_ms, kind=kind, detail=detail))
        if job_id < OWN_FIRST:
            request = self.records_by_id[job_id].request
            number = self.apply[-1].number + 2 if self.apply else 1  # with gaps, like the numbers of a journal
            self.apply.append(
                JobEvent(
                    number=number,
                    at_ms=self.now_ms,
                    job_id=job_id,
                    kind=kind,
                    detail=detail,
                    user=request.user,
                    name=request.name,
                )
            )
            news, self._news = self._news, asyncio.Event()
            news.set()

    # -- for tests ----------------------------------------------------------------------------------------------------

    def start(self, job_id: int, places: tuple[tuple[str, int], ...] = ()) -> None:
        """Let a job run; by default all of its nodes are at north."""
        record = self.records_by_id[job_id]
        record.state, record.start_ms, record.attempt, record.starts = "running", self.now_ms, 1, 1
        record.places = places or (("north", record.request.nodes),)
        self._note(job_id, "runs", " and ".join(f"{nodes} nodes at {name}" for name, nodes in record.places))

    def end(self, job_id: int, outcome: str = "finished") -> None:
        """Let a job end with an outcome."""
        record = self.records_by_id[job_id]
        record.state, record.outcome, record.end_ms = "ended", outcome, self.now_ms
        self._note(job_id, "ended", outcome)

    def refuse(self, job_id: int, *, for_good: bool) -> None:
        """Let the site north refuse a job, or with `for_good` the grid."""
        if for_good:
            self.records_by_id[job_id].state = "refused"
        self._note(job_id, "refused", "impossible" if for_good else "at north: not now")

    def write(self, job_id: int, data: bytes, rank: int = 0, stream: str = "out") -> None:
        """Append to the output of a rank."""
        place = (job_id, rank, stream)
        self.written[place] = self.written.get(place, b"") + data

    # -- for the gateway ----------------------------------------------------------------------------------------------

    async def submit(
        self, jobs: Sequence[tuple[str, JobRequest]], *, site: str | None, origin: str
    ) -> list[Accepted | Declined]:
        """Accept or decline jobs; a repeated key gets its first answer again."""
        self._check()
        self.submits += 1
        if site not in self._next:
            raise InputError(f"site {site!r:.50} is none of north, south")
        answers = []
        for key, request in jobs:
            assert len(msgspec.msgpack.encode(request)) > 0, "it goes to a process by MessagePack"
            place = (site, key)
            if place not in self._answers:
                self._answers[place] = self._take_in(key, request, site, origin)
            answers.append(self._answers[place])
        await self.open_gate.wait()
        return answers

    def _take_in(self, key: str, request: JobRequest, site: str | None, origin: str) -> Accepted | Declined:
        problem = request_problem(request)
        if problem is None and request.nodes > sum(self.nodes.values()):
            problem = f"{request.nodes} nodes; the grid has 12"
        if problem is not None:
            return Declined(key, problem)
        job_id = self._next[site]
        self._next[site] += 1
        state = "held" if request.hold else "waiting"
        self.records_by_id[job_id] = JobRecord(job_id=job_id, request=request, submit_ms=self.now_ms, state=state)
        self._note(job_id, "submitted", f"{nodes_text(request.nodes)}, by {origin}")
        return Accepted(key, job_id)

    def _is_in(self, job_id: int, *states: str) -> bool:
        return job_id in self.records_by_id and self.records_by_id[job_id].state in states

    async def apply_action(
        self, kind: ActionKind, job_ids: Sequence[int], *, origin: str, signal: SignalName | None = None
    ) -> list[int]:
        """Apply an action to the jobs whose state allows it, and return their numbers."""
        self._check()
        before = {"cancel": OPEN, "kill": OPEN, "signal": ("running",), "requeue": ("running",)}
        before |= {"hold": ("waiting",), "release": ("held",)}
        done = [job_id for job_id in job_ids if self._is_in(job_id, *before[kind])]
        for job_id in done:
            if kind in ("cancel", "kill"):
                self._note(job_id, "cancelled", f"by {origin}" if kind == "cancel" else f"at once, by {origin}")
                self.end(job_id, "cancelled")
            elif kind == "signal":
                self._note(job_id, "signal", f"{signal} by {origin}")
            else:
                self.records_by_id[job_id].state = "held" if kind == "hold" else "waiting"
                self._note(job_id, self.records_by_id[job_id].state, f"by {origin}")
        return done

    async def records(self, job_ids: Sequence[int]) -> list[JobRecord]:
        """Return the records of the jobs that are known."""
        self._check()
        return [self.records_by_id[job_id] for job_id in job_ids if job_id in self.records_by_id]

    async def jobs(self, query: JobQuery) -> JobPage:
        """Return a page of jobs."""
        self._check()
        low, high = 1, OWN_FIRST
        if query.site not in (None, *self.nodes):
            raise InputError(f"site is {query.site!r:.50}; north or south")
        if query.own:
            if query.own not in self.nodes:
                raise InputError(f"own is {query.own!r:.50}; north or south")
            low = self._next[query.own] // OWN_FIRST * OWN_FIRST
            high = low + OWN_FIRST
        found = [
            record
            for job_id, record in sorted(self.records_by_id.items(), reverse=True)
            if low <= job_id < min(high, query.below or high) and _fits(record, query)
        ]
        page = found[: query.limit]
        return JobPage(jobs=page, below=page[-1].job_id if len(found) > len(page) else None)

    async def history(self, job_id: int) -> list[HistoryEntry]:
        """Return the history of a job."""
        self._check()
        return self.stories.get(job_id, [])

    async def events(self, after: int, timeout_s: float) -> JobEvents:
        """Return the events after a number, waiting up to `timeout_s` for the first."""
        self._check()
        last = self.apply[-1].number if self.apply else 0
        if after < 0:
            return JobEvents(events=[], last=last)
        if after >= last and timeout_s > 0:
            self.polls += 1
            news = self._news
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await news.wait()
        self._check()
        # Events are numbered 1, 3, 5, ...
        found = self.apply[max(0, (after + 1) // 2) :][:PAGE]
        return JobEvents(events=found, last=found[-1].number if found else max(after, last))

    async def forecast(self, job_id: int) -> Forecast | None:
        """Return the forecast of a job."""
        self._check()
        record = self.records_by_id.get(job_id)
        if record is None:
            return None
        reasons = tuple(SiteReason(site=name, nodes=nodes, free=0) for name, nodes in self.nodes.items())
        return Forecast(job_id=job_id, now_ms=self.now_ms, state=record.state, reason="it waits", sites=reasons)

    async def plan(self, limit: int) -> PlannedStarts:
        """Return planned starts: the waiting jobs start at north, one after the other."""
        self._check()
        start_ms, found = self.now_ms + 1000, list[ScheduledJob]()
        for record in [each for each in self.records_by_id.values() if each.state == "waiting"][:limit]:
            request, end_ms = record.request, start_ms + record.request.limit_ms
            told = record.state, record.submit_ms, start_ms, end_ms, (("north", request.nodes),)
            found.append(ScheduledJob(record.job_id, request.user, request.name, *told))
            start_ms = end_ms
        return PlannedStarts(now_ms=self.now_ms, jobs=found)

    async def what_if(self, asked: WhatIf) -> WhatIfAnswer:
        """Return an answer in which jobs wait twice as long with fewer nodes."""
        self._check()
        unknown = set(asked.drain) - set(self.nodes)
        if unknown:
            raise InputError(f"drain: there is no site {min(unknown)!r}; the grid has north, south")
        sites = tuple(UsedSite(name, nodes, 0.5) for name, nodes in (self.nodes | asked.nodes).items())
        now = Outlook(jobs=3, started=3, never=0, wait_ms=60_000, longest_ms=90_000, used=0.5, sites=sites[:2])
        wait_ms = 120_000 if asked.drain else 60_000
        then = Outlook(jobs=3, started=2, never=1, wait_ms=wait_ms, longest_ms=240_000, used=0.6, sites=sites)
        plays = tuple(Outlooks(length=length, now=now, then=then) for length in (1.0, 0.4))
        told = (
            "both simulations yield longer waits, by 1 min and 1 min on average",
            ("running jobs continue where they are",),
        )
        return WhatIfAnswer(now_ms=self.now_ms, plays=plays, sure=told[0], assumed=told[1])

    async def quote(self, request: JobRequest, *, instead_of: int | None = None) -> Forecast:
        """Return the forecast of a job that is not submitted."""
        self._check()
        problem = request_problem(request)
        if problem is not None:
            raise InputError(problem)
        return Forecast(now_ms=self.now_ms, start_ms=self.now_ms, places=(("north", request.nodes),))

    async def output(
        self, job_id: int, rank: int, stream: str, offset: int, limit: int, *, attempt: int | None = None
    ) -> OutputPart | None:
        """Return a part of a rank's output."""
        self._check()
        record = self.records_by_id.get(job_id)
        if record is None:
            return None
        data = self.written.get((job_id, rank, stream), b"")
        part = data[offset : offset + limit]
        is_over = record.state in ("ended", "refused")
        is_last, removed = is_over and offset + len(part) >= len(data), self.removed.get(job_id, "")
        return OutputPart(data=part, offset=offset, is_last=is_last, removed=removed)

    async def sites(self) -> list[SiteInfo]:
        """Return the state of both sites."""
        self._check()
        return [self._site(name, nodes) for name, nodes in self.nodes.items()]

    def _site(self, name: str, nodes: int) -> SiteInfo:
        running = [record for record in self.records_by_id.values() if record.state == "running"]
        busy, first = [], 0
        for record in running:
            width = dict(record.places).get(name, 0)
            if width:
                busy.append(BusyNodes(record.job_id, ((first, first + width),)))
            first += width
        kinds = self.kinds.get(name, ())
        held = [(record.request.chunk or WHOLE_NODE, dict(record.places).get(name, 0), ()) for record in running]
        return SiteInfo(
            name=name,
            nodes=nodes,
            for_grid=nodes,
            free=nodes - first,
            running=len(busy),
            draining=self.draining[name],
            users=TAKES,
            progress=tuple(self.progress.get(name, ())),
            busy=tuple(busy),
            kept=tuple(self.kept.get(name, ())),
            kinds=kinds,
            amounts=tuple(ResourceAmount(*row) for row in resource_use(kinds, held)),
        )

    async def drain(self, site: str, draining: bool) -> None:
        """Drain a site, or resume it."""
        self._check()
        if site not in self.draining:
            raise InputError(f"site {site!r:.50} is none of north, south")
        self.draining[site] = draining

    async def give_up(self, site: str, machine: str) -> GivenUp:
        """Give up a machine."""
        self._check()
        if site not in self.away:
            raise InputError(f"site {site!r:.50} is none of north, south")
        if machine not in ("m0", "m1"):
            return GivenUp("unknown-machine", f"site {site} has no machine {machine!r:.50}; it has m0, m1")
        if machine not in self.away[site]:
            return GivenUp("machine-answers", f"machine {machine} of site {site} may still be up")
        self.given_up.append((site, machine))
        return GivenUp()

    async def ask_discipline(self, site: str, question: str, changes: Any = None) -> Any:
        """Apply changes to the run times that a site has learned, and return them; only north learns."""
        self._check()
        if site not in self.draining:
            raise InputError(f"site {site!r:.50} is none of north, south")
        if site == "south" or question != EXPERIENCE:
            return None
        for known in read_times(changes or []):
            self.learned.pop(known.key, None)
            self.learned |= {known.key: known} if known.runs else {}
        return msgspec.to_builtins(in_order(self.learned.values()))

    async def queue(self, limit: int, *, explain: bool = False) -> Queue:
        """Return the first jobs in the queue."""
        self._check()
        of_grid = [record for job_id, record in sorted(self.records_by_id.items()) if job_id < OWN_FIRST]
        waiting = [record for record in of_grid if record.state == "waiting"]
        return Queue(
            waiting=len(waiting),
            held=sum(record.state == "held" for record in of_grid),
            running=sum(record.state == "running" for record in of_grid),
            jobs=[
                QueuedJob(
                    job_id=record.job_id,
                    user=record.request.user,
                    nodes=record.request.nodes,
                    limit_ms=record.request.limit_ms,
                    submit_ms=record.submit_ms,
                    start_ms=self.now_ms + 600_000 if explain else None,
                    places=(("north" if record.request.nodes <= 4 else "south", record.request.nodes),)
                    if explain
                    else (),
                    reason="no node is free" if explain else "",
                )
                for record in waiting[:limit]
            ],
        )

    async def learnt(self) -> GridExperience:
        """Return the learned split cost of one kind of jobs, and the learned resource use of two kinds."""
        self._check()
        kind = LearntSplit(
            user="anna", job_class="cfd", nodes=12, whole_runs=7, split_runs=5, factor=1.3, modelled=1.1, used=True
        )
        known = NeedsExperience(user="anna", job_class="cfd", runs=5, cpu=0.5, network=0.3, disk=0.2)
        new = NeedsExperience(user="bert", job_class="ml", runs=1, cpu=1.0)
        return GridExperience(splits=[kind], needs=[known, new])

    async def network(self) -> KnownNetwork:
        """Return two sites with a link, a router with a link that is down, and their positions."""
        self._check()
        places = (("north", 54.3, 10.1), ("south", 48.1, 11.6), ("middle", 50.1, 8.7))
        nodes = [
            NetworkNode(name=name, sites=(name,) if name in self.nodes else (), latitude=latitude, longitude=longitude)
            for name, latitude, longitude in places
        ]
        fast = NetworkLink(one="north", other="south", latency_ms=4.5, bandwidth_bps=1e10, jobs=1)
        down = NetworkLink(one="south", other="middle", latency_ms=2.0, bandwidth_bps=1e9, part=0.0)
        there = NetworkPath(origin="north", target="south", latency_ms=4.5, bandwidth_bps=1e10, measured=True)
        back = NetworkPath(origin="south", target="north", latency_ms=4.0, bandwidth_bps=1e10)
        return KnownNetwork(nodes=nodes, links=[fast, down], paths=[there, back])

    async def scheduling(self) -> Scheduling:
        """Return the scheduling policy of the grid."""
        self._check()
        return Scheduling(
            now_ms=self.now_ms,
            mode="multi-site",
            control="full",
            order="fcfs",
            backfill="easy",
            selection="best-fit",
            overhead=(0.0,),
            lower_bound=0,
            max_fragments=(),
            links=False,
            margin_ms=500,
        )

    async def health(self) -> Health:
        """Return whether the grid answers."""
        return Health(status="unavailable" if self.is_away else "ok", sites={"north": True, "south": True})


def _fits(record: JobRecord, query: JobQuery) -> bool:
    request = record.request
    return (
        (query.user is None or request.user == query.user)
        and (query.name is None or request.name == query.name)
        and (query.array is None or (request.array is not None and request.array.name == query.array))
        and (query.site is None or query.site in dict(record.places))
        and (not query.state or record.state in query.state)
        and (not query.outcome or record.outcome in query.outcome)
        and (query.follows is None or any(after.job_id == query.follows for after in request.after))
        and (query.since_ms is None or record.end_ms is None or record.end_ms >= query.since_ms)
        and (query.until_ms is None or record.submit_ms < query.until_ms)
    )


# -- a gateway in the event loop of a test ----------------------------------------------------------------------------

SLEEP: dict[str, Any] = {"program": {"argv": ["sleep", "1"]}, "limit_ms": 60_000}


class Served:
    """A running gateway and a client of it.

    Parameters
    ----------
    gateway : Gateway
    session : aiohttp.ClientSession
    """

    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.session = session
        self.url = gateway.url

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **headers: str
    ) -> tuple[int, Any, Any]:
        """Send a JSON request; return the status, the body and the headers of the answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            named["Authorization"] = f"Bearer {token}"
        async with self.session.request(method, self.url + path, json=body, headers=named) as response:
            data = await response.read()
            answer: Any = data
            if response.headers.get("Content-Type", "").endswith("json") and data:
                answer = msgspec.json.decode(data)
                if "problem" in response.headers["Content-Type"]:
                    msgspec.convert(answer, Problem)
            return response.status, answer, response.headers

    async def submit(self, *jobs: dict[str, Any], token: str | None = None, **headers: str) -> list[int]:
        """Submit jobs, assert that they are accepted, and return their numbers."""
        status, answer, _ = await self.ask("POST", "/v1/jobs", {"jobs": list(jobs)}, token=token, **headers)
        assert status == 200, answer
        return [one["job_id"] for one in answer["answers"]]


class Browser:
    """A browser's cookies, its headers about a request's origin, and the page's part of a login."""

    def __init__(self, served: Served, session: aiohttp.ClientSession) -> None:
        self._served, self._session = served, session
        self.key = ""

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Send a request like a page of the gateway; `headers` override the page's."""
        own = {"Origin": self._served.url, "Sec-Fetch-Site": "same-origin", "Gridweave-Login": self.key}
        named = own | {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in named.items() if value}
        async with self._session.request(method, self._served.url + path, json=body, headers=sent) as answer:
            found = await answer.json(content_type=None)
        if path == "/v1/login" and answer.status == 200:
            self.key = found["key"]
        return answer.status, found

    @property
    def cookie(self) -> str:
        """The value of the login's cookie."""
        (cookie,) = self._session.cookie_jar
        return cookie.value


@contextlib.asynccontextmanager
async def browsing_at(served: Served) -> AsyncIterator[Browser]:
    """Yield a browser without cookies."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield Browser(served, session)


@contextlib.asynccontextmanager
async def serving(backend: Backend, **settings: Any) -> AsyncIterator[Served]:
    """Yield a gateway to a grid; stop it afterwards."""
    gateway = Gateway(backend, GatewaySettings(**{"port": 0, **settings}))
    await gateway.start()
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Served(gateway, session)
    finally:
        await gateway.stop()


USUAL: dict[str, tuple[Scope, ...]] = {
    "read": ("read",),
    "submit": ("read", "submit", "cancel"),
    "operate": ("operate",),
}
"""Maps kinds of tokens to their scopes."""


def make_tokens(place: Path, **kinds: str) -> dict[str, str]:
    """Create a token of a kind in `USUAL` for each user, and return the tokens by user."""
    store = TokenStore(place)
    tokens = {user: store.create(user, USUAL[kind]).token for user, kind in kinds.items()}
    store.close()
    return tokens


def a_job(**changes: Any) -> dict[str, Any]:
    """Return a valid job for a submission, with changes."""
    return {"request": SLEEP | changes}


# -- a gateway behind a proxy, and its clients ------------------------------------------------------------------------

COMMENT_S = 0.02
"""Interval of comments in an idle stream of events; the first comment has the number of the last event."""


class GridInMemory(FakeBackend):
    """A grid in memory with a hook for accepted jobs, and with forecasts that have every kind of reason.

    Attributes
    ----------
    runs : callable, optional
        Called for each accepted job.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runs: Callable[[JobRecord], None] | None = None

    def _take_in(self, key: str, request: JobRequest, site: str | None, origin: str) -> Accepted | Declined:
        answer = super()._take_in(key, request, site, origin)
        if self.runs is not None and isinstance(answer, Accepted):
            self.runs(self.records_by_id[answer.job_id])
        return answer

    def tell(self, job_id: int, kind: str, detail: str = "") -> None:
        """Add an event of a job."""
        self._note(job_id, kind, detail)

    async def forecast(self, job_id: int) -> api.Forecast | None:
        """Return a forecast of a job with reasons of all kinds."""
        record = self.records_by_id.get(job_id)
        return None if record is None else forecast(job_id, self.now_ms, record.request, record.state)

    async def quote(self, request: JobRequest, *, instead_of: int | None = None) -> api.Forecast:
        """Return a forecast of a job that is not submitted."""
        return forecast(None, self.now_ms, request, "waiting")


def forecast(job_id: int | None, now_ms: int, request: JobRequest, state: Any) -> api.Forecast:
    """Return a forecast with reasons of all kinds."""
    return api.Forecast(
        job_id=job_id,
        now_ms=now_ms,
        state=state,
        start_ms=now_ms + 600_000,
        places=(("north", request.nodes),),
        length_ms=request.limit_ms,
        ahead=2,
        reason="no site has 12 nodes free, and a split would end 4 minutes later",
        sites=(
            api.SiteReason(site="north", nodes=16, free=3, start_ms=now_ms + 600_000, reason="9 nodes are busy"),
            api.SiteReason(site="south", nodes=6, free=6, reason="has 6 nodes for the grid, and the job needs 12"),
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


class GatewayBehindProxy:
    """A gateway to a grid in memory, behind a proxy that records requests and fails on demand.

    Attributes
    ----------
    grid : GridInMemory
    proxy : FlakyProxy
    url : str
        Address of the proxy.
    """

    def __init__(self, grid: GridInMemory, proxy: FlakyProxy, url: str) -> None:
        self.grid, self.proxy, self.url = grid, proxy, url

    def heard(self, path: str) -> list[Any]:
        """Return the bodies of all requests to a path, or the queries of requests without a body."""
        return [said for heard, said in self.proxy.heard if heard == path]


@contextlib.asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[GatewayBehindProxy]:
    """Yield a gateway on a port of this machine; stop it afterwards."""
    grid = GridInMemory()
    unlimited = {"requests_per_s": 1e6, "burst": 1e6, "comment_s": COMMENT_S}
    gateway = Gateway(grid, GatewaySettings(**{"port": 0, **unlimited, **settings}))
    await gateway.start()
    try:
        proxy = FlakyProxy(gateway.url, np.random.default_rng(7))
        async with TestServer(proxy.app) as server:
            yield GatewayBehindProxy(grid, proxy, str(server.make_url("")).rstrip("/"))
    finally:
        await gateway.stop()


class Elsewhere:
    """A gateway in the event loop of another thread.

    Attributes
    ----------
    gateway : GatewayBehindProxy
    grid : GridInMemory
    url : str
    """

    def __init__(self, **settings: Any) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self._context = served(**settings)
        self.gateway: GatewayBehindProxy = self.do(self._context.__aenter__())
        self.grid, self.url = self.gateway.grid, self.gateway.url

    def do(self, work: Any) -> Any:
        """Run a coroutine in that thread and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=PATIENCE_S)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call a function in that thread."""

        async def work() -> None:
            function(*args, **kwargs)

        self.do(work())

    def close(self) -> None:
        """Stop the gateway and its thread."""
        self.do(self._context.__aexit__(None, None, None))
        self.do(self._heard())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self._runner.close()

    async def _heard(self) -> None:
        """Let newly accepted connections notice that their clients are gone, so that they end."""
        for _ in range(10):
            await asyncio.sleep(0)


class Naps:
    """Replaces sleeping: records the length of each pause, and only yields to other tasks."""

    def __init__(self) -> None:
        self.lengths_s: list[float] = []

    async def __call__(self, length_s: float) -> None:
        """Record a pause without waiting."""
        self.lengths_s.append(length_s)
        await asyncio.sleep(0)


def patient(url: str, naps: Naps, seed: int = 1, **patience: Any) -> Client:
    """Return a client whose pauses take no time."""
    return Client(url, patience=Patience(**patience), rng=np.random.default_rng(seed), sleep=naps)

"""What answers the routes: of jobs (listed, shown, explained, cancelled, held, released), sites, tokens and itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from gridweave.errors import InputError, UnavailableError
from gridweave.grid.api import (
    MOST_LISTED,
    BusyNodes,
    Done,
    ExperienceChanges,
    Forecast,
    GridExperience,
    Health,
    Instant,
    JobId,
    JobIds,
    JobPage,
    JobQuery,
    KnownNetwork,
    KnownTimes,
    MadeToken,
    NewToken,
    PlannedStarts,
    Queue,
    QuoteJob,
    ScheduledJob,
    SchedulePart,
    Scheduling,
    ShortToken,
    SignalJobs,
    SiteExperience,
    SiteInfo,
    Sites,
    Story,
    TokenInfo,
    Tokens,
    UsageOverTime,
    WhatIf,
    WhatIfAnswer,
)
from gridweave.grid.gateway.access import AsyncTokens, TokenStore
from gridweave.grid.gateway.call import FEW_IDS, GatewayCall, unknown_job
from gridweave.grid.gateway.problems import RefusalError, refused_field
from gridweave.grid.gateway.submission import keeping_problem
from gridweave.grid.gateway.wire import encode
from gridweave.site.desk_messages import matches, page_of
from gridweave.site.job import JobRecord, SignalName, WishKind
from gridweave.site.launch import UsageCurve
from gridweave.version import __version__

METRICS_FORM = "text/plain; version=0.0.4; charset=utf-8"

_LOOK_S = 5.0

MOST_PIECES = 32
"""Of so many machines of a job it is told what it uses over time."""

_MOST_CURVE_BYTES = 1 << 16


class QueueQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the queue is asked for."""

    limit: Annotated[int, Meta(ge=0, le=MOST_LISTED)] = 100
    explain: bool = False  # whether it is told when they start, and why not sooner


async def sites(call: GatewayCall) -> Sites:
    """Show how the sites are; whose jobs they take is told to operators alone, of others' jobs only where they are."""
    found = await call.backend.sites()
    return Sites(sites=found if call.identity.is_operator else await _without_others(call, found))


async def _without_others(call: GatewayCall, sites: list[SiteInfo]) -> list[SiteInfo]:
    """Return sites that do not tell which jobs of others run there."""
    told = [busy.job_id for site in sites for busy in site.busy]
    told += [kept.number for site in sites for kept in site.kept if kept.kind == "lease"]
    own = set(await _own(call, told))
    known = own.__contains__
    return [
        msgspec.structs.replace(
            site,
            users="",
            fault=None,
            busy=tuple(busy if known(busy.job_id) else BusyNodes(0, busy.nodes) for busy in site.busy),
            paused=tuple(filter(known, site.paused)),
            kept=tuple(
                kept if kept.kind == "reservation" or known(kept.number) else msgspec.structs.replace(kept, number=0)
                for kept in site.kept
            ),
            progress=tuple(each for each in site.progress if known(each.job_id)),
        )
        for site in sites
    ]


async def drain(call: GatewayCall) -> Done:
    """Have a site take nothing new of the grid."""
    return await _drain(call, True)


async def resume(call: GatewayCall) -> Done:
    """Have a site take jobs of the grid again."""
    return await _drain(call, False)


@contextlib.contextmanager
def _of_a_site() -> Iterator[None]:
    """Refuse what is asked of a site that there is not."""
    try:
        yield
    except InputError as error:
        raise RefusalError("unknown-site", str(error)) from None


async def _drain(call: GatewayCall, draining: bool) -> Done:
    with _of_a_site():
        await call.backend.drain(call.names["name"], draining)
    return Done()


async def give_up(call: GatewayCall) -> Done:
    """Have what a machine ran that never comes back run again."""
    with _of_a_site():
        found = await call.backend.give_up(call.names["name"], call.names["machine"])
    if found.refused:
        raise RefusalError(found.refused, found.reason)
    return Done()


async def experience(call: GatewayCall) -> SiteExperience:
    """Show how long jobs take, as far as a site knows."""
    return await _experience(call, ())


async def edit_experience(call: GatewayCall, body: ExperienceChanges) -> SiteExperience:
    """Have a site know better how long jobs take; what it knows then is answered."""
    for number, times in enumerate(body.times):
        # Those that are forgotten need no times.
        whole = times if times.runs else msgspec.structs.replace(times, runs=1, mean_ms=1.0, deviation_ms=0.0)
        if problem := whole.problem():
            raise refused_field(f"times[{number}]", problem)
    found = await _experience(call, tuple(body.times))
    if not found.learns:
        raise RefusalError(
            "invalid-request", f"site {found.site} does not learn run times; only sites whose machines differ do"
        )
    return found


async def _experience(call: GatewayCall, changes: tuple[KnownTimes, ...]) -> SiteExperience:
    with _of_a_site():
        return await call.backend.experience(call.names["name"], changes)


async def queue(call: GatewayCall, query: QueueQuery) -> Queue:
    """Show the jobs that wait, the first first; the last fault is told to operators alone."""
    work = partial(call.backend.queue, query.limit, explain=query.explain)
    found = await (call.in_turn(work) if query.explain else work())
    return found if call.identity.is_operator else msgspec.structs.replace(found, fault=None)


async def scheduling(call: GatewayCall) -> Scheduling:
    """Show how the grid schedules."""
    return await call.backend.scheduling()


async def learnt(call: GatewayCall) -> GridExperience:
    """Show what splits of jobs really cost, by user, class and width, and whether the grid goes by it."""
    return await call.backend.learnt()


async def network(call: GatewayCall) -> KnownNetwork:
    """Show the network between the sites as it is known, and how many running jobs are on each link."""
    return await call.backend.network()


async def whoami(call: GatewayCall) -> TokenInfo:
    """Show who the token of the request belongs to, and what it allows."""
    return call.identity.info


# -- tokens -----------------------------------------------------------------------------------------------------------


def _tokens(call: GatewayCall) -> AsyncTokens:
    if call.parts.tokens is None:
        raise RefusalError("unknown-token", "this gateway has no tokens; start it with a token database (--tokens)")
    return call.parts.tokens


async def list_tokens(call: GatewayCall) -> Tokens:
    """List the tokens that can be used."""
    if call.parts.tokens is None:
        return Tokens(tokens=[])
    return Tokens(tokens=await call.parts.tokens.do(TokenStore.list))


async def make_token(call: GatewayCall, body: NewToken) -> MadeToken:
    """Make a token; it is shown only here."""
    return await _tokens(call).do(TokenStore.create, body.user, body.scopes, days=body.days, limits=body.limits)


async def make_short_token(call: GatewayCall, body: ShortToken) -> MadeToken:
    """Make a token of the same user for at most a day, e.g. for a job that hands in jobs."""
    tokens, info = _tokens(call), call.identity.info
    wrong = [scope for scope in body.scopes if not call.identity.may(scope)]
    if wrong:
        problem = f"the token is for {', '.join(info.scopes)}; one that it makes cannot be for {', '.join(wrong)}"
        raise RefusalError("forbidden", problem)
    return await tokens.do(TokenStore.create_short, info, body.scopes, body.hours)


async def revoke_token(call: GatewayCall) -> Done:
    """Revoke a token; its streams end at once."""
    token_id = call.names["id"]
    if not await _tokens(call).do(TokenStore.revoke, token_id):
        raise RefusalError("unknown-token", f"there is no valid token {token_id!r:.100}")
    call.parts.hub.revoked(token_id)
    return Done()


# -- the gateway itself -----------------------------------------------------------------------------------------------


async def healthz(call: GatewayCall) -> Health:
    """Whether the gateway lives."""
    return Health(status="ok", version=__version__)


async def readyz(call: GatewayCall) -> web.Response:
    """Whether the meta-scheduler answers; 503 if it does not."""
    health = await call.backend.health()
    return web.Response(
        status=200 if health.status == "ok" else 503,
        body=encode(health, call.answer_form),
        content_type=call.answer_form,
    )


async def metrics(call: GatewayCall) -> web.Response:
    """Numbers for Prometheus."""
    found: Queue | None = None
    seen: list[SiteInfo] = []
    try:
        async with asyncio.timeout(_LOOK_S):
            found, seen = await asyncio.gather(call.backend.queue(0), call.backend.sites())
    except (UnavailableError, TimeoutError):
        call.parts.metrics.backend_failed()
    call.parts.metrics.looked(found, seen)
    return web.Response(body=call.parts.metrics.text(), headers={"Content-Type": METRICS_FORM})


async def list_jobs(call: GatewayCall, query: JobQuery) -> JobPage:
    """List jobs, the newest first.

    They are those of their user unless an operator asks.
    """
    if not call.identity.is_operator:
        if query.user not in (None, call.identity.user):
            return JobPage(jobs=[])
        query = msgspec.structs.replace(query, user=call.identity.user)
    if query.job:
        records = await call.backend.records(query.job)
        page = page_of({record.job_id: record for record in records if matches(record, query)}, query)
    else:
        page = await call.backend.jobs(query)
    call.jobs = len(page.jobs)
    return page


async def show_job(call: GatewayCall) -> JobRecord:
    """Show what is known of a job."""
    return await call.own_job()


async def story(call: GatewayCall) -> Story:
    """Tell all that happened to a job."""
    record = await call.own_job()
    return Story(job_id=record.job_id, entries=await call.backend.story(record.job_id))


async def usage(call: GatewayCall) -> UsageOverTime:
    """Tell what a job uses over time, machine by machine, as long as its output is kept there."""
    record = await call.own_job()
    pieces: list[UsageCurve] = []
    rank, size = 0, 1
    while rank < size and len(pieces) < MOST_PIECES:
        try:
            part = await call.backend.output(record.job_id, rank, "usage", 0, _MOST_CURVE_BYTES)
            piece = msgspec.json.decode(b"" if part is None else part.data, type=UsageCurve)
        except UnavailableError:
            if not pieces:
                raise
            break
        except (msgspec.MsgspecError, RecursionError, InputError):  # there is none, or its user has written over it
            break
        pieces.append(piece)
        rank, size = max(rank, piece.last_rank) + 1, piece.size
    return UsageOverTime(job_id=record.job_id, pieces=pieces, is_whole=rank >= size)


async def forecast(call: GatewayCall) -> Forecast:
    """Explain when a job starts, and why it waits."""
    record = await call.own_job()
    found = await call.in_turn(partial(call.backend.forecast, record.job_id))
    if found is None:
        raise unknown_job(record.job_id)
    return found


async def quote(call: GatewayCall, body: QuoteJob) -> Forecast:
    """Ask when a job would start, and where; nothing is submitted."""
    request = call.as_user(body.request, "request")
    problem = keeping_problem(request)
    if problem is not None:
        raise RefusalError("invalid-request", f"request: {problem}")
    instead_of = body.instead_of
    if instead_of is not None and await _own(call, [instead_of]) != [instead_of]:
        raise unknown_job(instead_of)
    return await call.in_turn(partial(call.backend.quote, request, instead_of=instead_of))


class ScheduleQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the schedule is asked for."""

    since_ms: Instant | None = None
    until_ms: Instant | None = None
    below: JobId | None = None


async def schedule(call: GatewayCall, query: ScheduleQuery) -> SchedulePart:
    """Show what has started, and where, in few bytes: the newest jobs first.

    They are those of their user unless an operator asks.
    """
    user = None if call.identity.is_operator else call.identity.user
    found = await call.backend.jobs(JobQuery(user=user, limit=MOST_LISTED, **msgspec.structs.asdict(query)))
    return SchedulePart(jobs=[_scheduled(record) for record in found.jobs if record.places], below=found.below)


def _scheduled(record: JobRecord) -> ScheduledJob:
    request, end_ms = record.request, record.end_ms
    if end_ms is None and record.start_ms is not None:
        end_ms = record.start_ms + request.limit_ms
    span = record.submit_ms, record.start_ms, end_ms
    state = record.outcome or record.state
    return ScheduledJob(record.job_id, request.user, request.name, state, *span, record.places)


class PlanQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the plan is asked for."""

    limit: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = 500


async def plan(call: GatewayCall, query: PlanQuery) -> PlannedStarts:
    """Show when and where what waits starts, if each job takes as long as it may and no other comes.

    Only operators see the names of others' jobs.
    """
    found = await call.in_turn(partial(call.backend.plan, query.limit))
    if call.identity.is_operator:
        return found
    replace, sees = msgspec.structs.replace, call.identity.sees
    return replace(found, jobs=[job if sees(job.user) else replace(job, name="") for job in found.jobs])


async def what_if(call: GatewayCall, body: WhatIf) -> WhatIfAnswer:
    """Ask what would become of waits and of the use of nodes if the grid were another; nothing is changed."""
    return await call.in_turn(partial(call.backend.what_if, body))


def wish_one(kind: WishKind) -> Callable[[GatewayCall], Awaitable[Done]]:
    """Return the handler that does what a user wants of the job in the path."""

    async def handler(call: GatewayCall) -> Done:
        record = await call.own_job()
        return Done(job_ids=sorted(await call.backend.wish(kind, [record.job_id], origin=call.origin)))

    return handler


def wish_many(kind: WishKind) -> Callable[[GatewayCall, JobIds], Awaitable[Done]]:
    """Return the handler that does what a user wants of the jobs in the body; others' are passed over."""

    async def handler(call: GatewayCall, body: JobIds) -> Done:
        return await _wish_own(call, kind, body.job_ids)

    return handler


async def _wish_own(call: GatewayCall, kind: WishKind, asked: list[int], signal: SignalName | None = None) -> Done:
    """Do what a user wants of those jobs that are theirs; of requests about many one of a user at a time."""

    async def work() -> Done:
        job_ids = await _own(call, asked)
        done = await call.backend.wish(kind, job_ids, origin=call.origin, signal=signal) if job_ids else []
        return Done(job_ids=sorted(done))

    return await (work() if len(asked) <= FEW_IDS else call.parts.bulk.take(call.identity.user, work))


async def signal_jobs(call: GatewayCall, body: SignalJobs) -> Done:
    """Send the processes of running jobs a signal; others, and others' jobs, are passed over."""
    return await _wish_own(call, "signal", body.job_ids, body.signal)


async def _own(call: GatewayCall, job_ids: list[int]) -> list[int]:
    """Return those of the jobs that are of who asks, each once."""
    most = call.parts.settings.max_jobs
    if len(job_ids) > most:
        raise RefusalError("too-many-jobs", f"{len(job_ids)} jobs; at most {most} in one request")
    found = sorted(set(job_ids))
    call.jobs = len(found)
    if call.identity.is_operator or not found:
        return found
    records = await call.backend.records(found)
    return sorted(record.job_id for record in records if call.identity.sees(record.request.user))

"""Handlers of the routes for jobs, sites, tokens, and the gateway itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from gridweave.errors import InputError, UnavailableError
from gridweave.grid.api import (
    MOST_LISTED,
    BusyNodes,
    Done,
    Forecast,
    GridExperience,
    Health,
    Instant,
    JobHistory,
    JobId,
    JobIds,
    JobPage,
    JobQuery,
    KnownNetwork,
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
    SiteInfo,
    Sites,
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
from gridweave.site.job import ActionKind, JobRecord, SignalName
from gridweave.site.known_times import EXPERIENCE, ExperienceChanges, SiteExperience, read_times
from gridweave.site.launch import UsageCurve
from gridweave.site.query_messages import matches, page_of
from gridweave.version import __version__

METRICS_FORM = "text/plain; version=0.0.4; charset=utf-8"

_LOOK_S = 5.0

MAX_CURVES = 32
"""Maximum number of a job's machines whose resource use over time is returned."""

_MOST_CURVE_BYTES = 1 << 16


class QueueQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of the queue."""

    limit: Annotated[int, Meta(ge=0, le=MOST_LISTED)] = 100
    explain: bool = False  # whether to explain when jobs start, and why not sooner


async def sites(call: GatewayCall) -> Sites:
    """Show the sites. Only operators see who may use a site, and which jobs of other users are running there."""
    site_infos = await call.backend.sites()
    return Sites(sites=site_infos if call.identity.is_operator else await _without_others(call, site_infos))


async def _without_others(call: GatewayCall, sites: list[SiteInfo]) -> list[SiteInfo]:
    """Remove other users' job ids, and details that only operators may see, from the sites."""
    named = [busy.job_id for site in sites for busy in site.busy]
    named += [kept.number for site in sites for kept in site.kept if kept.kind == "lease"]
    own = set(await _own(call, named))
    is_own = own.__contains__
    return [
        msgspec.structs.replace(
            site,
            users="",
            fault=None,
            busy=tuple(busy if is_own(busy.job_id) else BusyNodes(0, busy.nodes) for busy in site.busy),
            paused=tuple(filter(is_own, site.paused)),
            kept=tuple(
                kept if kept.kind == "reservation" or is_own(kept.number) else msgspec.structs.replace(kept, number=0)
                for kept in site.kept
            ),
            progress=tuple(entry for entry in site.progress if is_own(entry.job_id)),
        )
        for site in sites
    ]


async def drain(call: GatewayCall) -> Done:
    """Stop a site from accepting jobs of the grid."""
    return await _drain(call, True)


async def resume(call: GatewayCall) -> Done:
    """Let a site accept jobs of the grid again."""
    return await _drain(call, False)


@contextlib.contextmanager
def _of_a_site() -> Iterator[None]:
    """Convert an InputError into the refusal ``unknown-site``."""
    try:
        yield
    except InputError as error:
        raise RefusalError("unknown-site", str(error)) from None


async def _drain(call: GatewayCall, draining: bool) -> Done:
    with _of_a_site():
        await call.backend.drain(call.names["name"], draining)
    return Done()


async def give_up(call: GatewayCall) -> Done:
    """Declare a machine lost, so that its jobs run again elsewhere."""
    with _of_a_site():
        answer = await call.backend.give_up(call.names["name"], call.names["machine"])
    if answer.refused:
        raise RefusalError(answer.refused, answer.reason)
    return Done()


async def experience(call: GatewayCall) -> SiteExperience:
    """Show the run times that a site has learned."""
    return await _experience(call)


async def edit_experience(call: GatewayCall, body: ExperienceChanges) -> SiteExperience:
    """Change the run times that a site has learned; the answer shows them after the change."""
    for number, times in enumerate(body.times):
        if problem := times.edit_problem():
            raise refused_field(f"times[{number}]", problem)
    answer = await _experience(call, msgspec.to_builtins(body.times))
    if not answer.learns:
        raise RefusalError("invalid-request", f"site {answer.site} does not learn run times")
    return answer


async def _experience(call: GatewayCall, changes: Any = None) -> SiteExperience:
    site = call.names["name"]
    with _of_a_site():
        plain = await call.backend.ask_discipline(site, EXPERIENCE, changes)
    return SiteExperience(site=site, learns=plain is not None, times=read_times(plain or []))


async def queue(call: GatewayCall, query: QueueQuery) -> Queue:
    """Show the waiting jobs in queue order. Only operators see the last fault."""
    work = partial(call.backend.queue, query.limit, explain=query.explain)
    answer = await (call.in_turn(work) if query.explain else work())
    return answer if call.identity.is_operator else msgspec.structs.replace(answer, fault=None)


async def scheduling(call: GatewayCall) -> Scheduling:
    """Show the scheduling settings of the grid."""
    return await call.backend.scheduling()


async def learnt(call: GatewayCall) -> GridExperience:
    """Show the measured costs of job splits by user, class and width, and whether the grid uses them."""
    return await call.backend.learnt()


async def network(call: GatewayCall) -> KnownNetwork:
    """Show the network between the sites, with the number of running jobs on each link."""
    return await call.backend.network()


async def whoami(call: GatewayCall) -> TokenInfo:
    """Show the user, the scopes and the limits of the request's token."""
    return call.identity.info


# -- tokens -----------------------------------------------------------------------------------------------------------


def _tokens(call: GatewayCall) -> AsyncTokens:
    if call.parts.tokens is None:
        raise RefusalError("unknown-token", "this gateway has no tokens; start it with a token database (--tokens)")
    return call.parts.tokens


async def list_tokens(call: GatewayCall) -> Tokens:
    """List the valid tokens."""
    if call.parts.tokens is None:
        return Tokens(tokens=[])
    return Tokens(tokens=await call.parts.tokens.do(TokenStore.list))


async def make_token(call: GatewayCall, body: NewToken) -> MadeToken:
    """Create a token; only this answer contains it."""
    return await _tokens(call).do(TokenStore.create, body.user, body.scopes, days=body.days, limits=body.limits)


async def make_short_token(call: GatewayCall, body: ShortToken) -> MadeToken:
    """Create a token of the same user for at most a day, e.g. for a job that submits jobs."""
    tokens, info = _tokens(call), call.identity.info
    wrong = [scope for scope in body.scopes if not call.identity.may(scope)]
    if wrong:
        problem = f"the token is for {', '.join(info.scopes)}; a token that it creates cannot be for {', '.join(wrong)}"
        raise RefusalError("forbidden", problem)
    return await tokens.do(TokenStore.create_short, info, body.scopes, body.hours)


async def revoke_token(call: GatewayCall) -> Done:
    """Revoke a token and end its streams."""
    token_id = call.names["id"]
    if not await _tokens(call).do(TokenStore.revoke, token_id):
        raise RefusalError("unknown-token", f"there is no valid token {token_id!r:.100}")
    call.parts.hub.revoked(token_id)
    return Done()


# -- the gateway itself -----------------------------------------------------------------------------------------------


async def healthz(call: GatewayCall) -> Health:
    """Whether the gateway is running."""
    return Health(status="ok", version=__version__)


async def readyz(call: GatewayCall) -> web.Response:
    """Whether the meta-scheduler is responding; status 503 if not."""
    health = await call.backend.health()
    return web.Response(
        status=200 if health.status == "ok" else 503,
        body=encode(health, call.answer_form),
        content_type=call.answer_form,
    )


async def metrics(call: GatewayCall) -> web.Response:
    """Return metrics for Prometheus."""
    queue_state: Queue | None = None
    seen: list[SiteInfo] = []
    try:
        async with asyncio.timeout(_LOOK_S):
            queue_state, seen = await asyncio.gather(call.backend.queue(0), call.backend.sites())
    except (UnavailableError, TimeoutError):
        call.parts.metrics.backend_failed()
    call.parts.metrics.looked(queue_state, seen)
    return web.Response(body=call.parts.metrics.text(), headers={"Content-Type": METRICS_FORM})


async def list_jobs(call: GatewayCall, query: JobQuery) -> JobPage:
    """List jobs, newest first.

    Operators see all users' jobs; other users see only their own.
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
    """Show a job."""
    return await call.own_job()


async def history(call: GatewayCall) -> JobHistory:
    """Show the history of a job."""
    record = await call.own_job()
    return JobHistory(job_id=record.job_id, entries=await call.backend.history(record.job_id))


async def usage(call: GatewayCall) -> UsageOverTime:
    """Show a job's resource use over time for each machine, as long as the machine keeps the job's output."""
    record = await call.own_job()
    curves: list[UsageCurve] = []
    rank, size = 0, 1
    while rank < size and len(curves) < MAX_CURVES:
        try:
            part = await call.backend.output(record.job_id, rank, "usage", 0, _MOST_CURVE_BYTES)
            curve = msgspec.json.decode(b"" if part is None else part.data, type=UsageCurve)
        except UnavailableError:
            if not curves:
                raise
            break
        except (msgspec.MsgspecError, RecursionError, InputError):  # missing, or overwritten by the user
            break
        curves.append(curve)
        rank, size = max(rank, curve.last_rank) + 1, curve.size
    return UsageOverTime(job_id=record.job_id, pieces=curves, is_whole=rank >= size)


async def forecast(call: GatewayCall) -> Forecast:
    """Forecast when a job starts, and explain why it is waiting."""
    record = await call.own_job()
    answer = await call.in_turn(partial(call.backend.forecast, record.job_id))
    if answer is None:
        raise unknown_job(record.job_id)
    return answer


async def quote(call: GatewayCall, body: QuoteJob) -> Forecast:
    """Forecast when and where a job would start; nothing is submitted."""
    request = call.as_user(body.request, "request")
    problem = keeping_problem(request)
    if problem is not None:
        raise RefusalError("invalid-request", f"request: {problem}")
    instead_of = body.instead_of
    if instead_of is not None and await _own(call, [instead_of]) != [instead_of]:
        raise unknown_job(instead_of)
    return await call.in_turn(partial(call.backend.quote, request, instead_of=instead_of))


class ScheduleQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of the schedule."""

    since_ms: Instant | None = None
    until_ms: Instant | None = None
    below: JobId | None = None


async def schedule(call: GatewayCall, query: ScheduleQuery) -> SchedulePart:
    """Show in a compact form which jobs have started where, newest first.

    Operators see all users' jobs; other users see only their own.
    """
    user = None if call.identity.is_operator else call.identity.user
    page = await call.backend.jobs(JobQuery(user=user, limit=MOST_LISTED, **msgspec.structs.asdict(query)))
    return SchedulePart(jobs=[_scheduled(record) for record in page.jobs if record.places], below=page.below)


def _scheduled(record: JobRecord) -> ScheduledJob:
    request, end_ms = record.request, record.end_ms
    if end_ms is None and record.start_ms is not None:
        end_ms = record.start_ms + request.limit_ms
    span = record.submit_ms, record.start_ms, end_ms
    state = record.outcome or record.state
    return ScheduledJob(record.job_id, request.user, request.name, state, *span, record.places)


class PlanQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of the plan."""

    limit: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = 500


async def plan(call: GatewayCall, query: PlanQuery) -> PlannedStarts:
    """Show when and where waiting jobs start if each takes as long as its limit and no other jobs arrive.

    Only operators see the names of other users' jobs.
    """
    starts = await call.in_turn(partial(call.backend.plan, query.limit))
    if call.identity.is_operator:
        return starts
    replace, sees = msgspec.structs.replace, call.identity.sees
    return replace(starts, jobs=[job if sees(job.user) else replace(job, name="") for job in starts.jobs])


async def what_if(call: GatewayCall, body: WhatIf) -> WhatIfAnswer:
    """Simulate the grid with other settings and show the resulting waits and utilisation; nothing is changed."""
    return await call.in_turn(partial(call.backend.what_if, body))


def apply_to_one(kind: ActionKind) -> Callable[[GatewayCall], Awaitable[Done]]:
    """Return the handler that applies an action to the job in the path."""

    async def handler(call: GatewayCall) -> Done:
        record = await call.own_job()
        return Done(job_ids=sorted(await call.backend.apply_action(kind, [record.job_id], origin=call.origin)))

    return handler


def apply_to_many(kind: ActionKind) -> Callable[[GatewayCall, JobIds], Awaitable[Done]]:
    """Return the handler that applies an action to those jobs in the body that belong to the client."""

    async def handler(call: GatewayCall, body: JobIds) -> Done:
        return await _apply_to_own(call, kind, body.job_ids)

    return handler


async def _apply_to_own(
    call: GatewayCall, kind: ActionKind, asked: list[int], signal: SignalName | None = None
) -> Done:
    """Apply an action to the client's own jobs; each user's requests for many jobs run one at a time."""

    async def work() -> Done:
        job_ids = await _own(call, asked)
        done = await call.backend.apply_action(kind, job_ids, origin=call.origin, signal=signal) if job_ids else []
        return Done(job_ids=sorted(done))

    return await (work() if len(asked) <= FEW_IDS else call.parts.bulk.take(call.identity.user, work))


async def signal_jobs(call: GatewayCall, body: SignalJobs) -> Done:
    """Send a signal to the processes of running jobs; unknown jobs and other users' jobs are skipped."""
    return await _apply_to_own(call, "signal", body.job_ids, body.signal)


async def _own(call: GatewayCall, job_ids: list[int]) -> list[int]:
    """Return those jobs that the client may see, in ascending order without duplicates."""
    most = call.parts.settings.max_jobs
    if len(job_ids) > most:
        raise RefusalError("too-many-jobs", f"{len(job_ids)} jobs; at most {most} in one request")
    unique_ids = sorted(set(job_ids))
    call.jobs = len(unique_ids)
    if call.identity.is_operator or not unique_ids:
        return unique_ids
    records = await call.backend.records(unique_ids)
    return sorted(record.job_id for record in records if call.identity.sees(record.request.user))

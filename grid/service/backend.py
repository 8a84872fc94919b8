"""The gateway's view of a live grid on Ray or of a single site, independent of how calls are transported.

From the gateway of a single site, the grid may be unreachable, or there may be no grid at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
from collections.abc import Awaitable, Collection, Coroutine, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from typing_extensions import override

from gridweave.errors import InputError, SiteAwayError, UnavailableError
from gridweave.grid.api import (
    Forecast,
    GivenUp,
    GridExperience,
    Health,
    HistoryEntry,
    JobEvents,
    JobPage,
    JobQuery,
    KnownNetwork,
    MachineInfo,
    OutputPart,
    PlannedStarts,
    Queue,
    QueuedJob,
    ScheduledJob,
    Scheduling,
    SiteInfo,
    WhatIf,
    WhatIfAnswer,
)
from gridweave.grid.backend import Backend
from gridweave.grid.service.forecasts import FORECAST_S
from gridweave.grid.service.history import joined_history
from gridweave.site.explain import record_forecast, with_site_answer, without_site_answer
from gridweave.site.job import OWN_IDS, Accepted, ActionKind, Declined, JobRecord, JobRequest, SignalName
from gridweave.site.journal.records import Note
from gridweave.site.launch import Removal
from gridweave.site.lifecycle import OVER, PENDING
from gridweave.site.machine.agent import OutputRead
from gridweave.site.messages import Quoted, RequestQuote
from gridweave.site.query_messages import SiteNames
from gridweave.site.service.calls import (
    CALL_S,
    GRID_ACTOR,
    NAMESPACE,
    ActorCalls,
    Calls,
    agent_actor,
    answer_of,
    question,
    site_actor,
)
from gridweave.version import __version__

SUBMIT_S = 60.0
"""How long to wait for the answer to a submission, in seconds."""

WHAT_IF_S = 60.0
"""How long to wait for a what-if answer, in seconds; it takes two to four simulations of the grid."""

LOOK_S = 1.5
"""How long to wait for the state of a site or the grid, in seconds."""

PATIENT_S, HUNG_S = 0.5, 1.0
"""Seconds without an answer after which a site is asked for its state, and seconds that it then has to answer."""

RECORDS_AT_ONCE = 1_000
"""Maximum number of records requested in one call."""

T = TypeVar("T")


@functools.cache
def _decoder_of(kind: Hashable) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


class LiveBackend(Backend):
    """A live grid, queried through the actors of its meta-scheduler, its sites and its machines.

    Notes
    -----
    A backend has no state that must survive, so any number of backends may exist, anywhere.
    """

    home = GRID_ACTOR
    """Name of the actor that answers queries about the whole grid."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._names: list[SiteNames] = []
        self._last: dict[str, SiteInfo] = {}

    async def _ask(
        self,
        actor: str,
        method: str,
        kind: type[T],
        *arguments: object,
        timeout_s: float = CALL_S,
        alone: bool = False,
    ) -> T:
        call = self._calls.ask(actor, method, question(*arguments), timeout_s=timeout_s, alone=alone)
        data = await (self._unless_hung(actor, call) if timeout_s > LOOK_S and actor in self._site_actors else call)
        result_type: Any = kind
        try:
            answer: T = answer_of(data, _decoder_of(result_type))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UnavailableError(
                f"{actor}: its answer cannot be read ({error}); does it have another version?"
            ) from None
        return answer

    @property
    def _site_actors(self) -> dict[str, str]:
        """The names of the known sites, by actor."""
        return {site_actor(site.name): site.name for site in self._names}

    async def _unless_hung(self, actor: str, call: Coroutine[Any, Any, bytes]) -> bytes:
        """Return a call's answer; raise SiteAwayError if the answer is late and the site does not report its state."""
        task = asyncio.ensure_future(call)
        try:
            done, _ = await asyncio.wait([task], timeout=PATIENT_S)
            if not done:
                await self._look_at(actor)
            return await task
        finally:
            task.cancel()

    async def _look_at(self, actor: str) -> None:
        """Raise SiteAwayError if a site does not report its state."""
        try:
            await self._calls.ask(actor, "status", question(), timeout_s=HUNG_S, alone=True)
        except UnavailableError as error:
            site = self._site_actors[actor]
            last = self._last.get(site)
            detail = f"; when it last did, it had {last.free} of {last.nodes} nodes free" if last and last.nodes else ""
            raise SiteAwayError(
                f"site {site} does not answer{detail}; try again; other sites are not affected"
            ) from error

    # -- who there is -------------------------------------------------------------------------------------------------

    async def _about(self) -> list[SiteNames]:
        """Return the names of the sites, and which of them the grid currently considers cut off."""
        self._names = await self._ask(self.home, "about", list[SiteNames], timeout_s=LOOK_S)
        return self._names

    async def _sites(self) -> list[SiteNames]:
        """Return the names of the sites, which never change."""
        return self._names or await self._about()

    async def _answers(self, sites: Collection[str], method: str, kind: Any, *arguments: object) -> dict[str, Any]:
        """Query sites concurrently; return the answers by site, without the sites that do not answer."""
        answers: dict[str, Any] = {}

        async def ask(site: str) -> None:
            with contextlib.suppress(UnavailableError):
                answers[site] = await self._ask(site_actor(site), method, kind, *arguments, timeout_s=LOOK_S)

        await asyncio.gather(*map(ask, sites))
        return answers

    async def _site(self, name: str) -> str:
        """Return the name of a site's actor; raise InputError if the site is unknown."""
        names = [site.name for site in await self._sites()]
        if name not in names:
            raise InputError(f"there is no site {name!r:.100}; the grid has {', '.join(names)}")
        return site_actor(name)

    async def _owner(self, job_id: int) -> str:
        return (await self._sites())[job_id // OWN_IDS - 1].name

    async def _actor_of(self, job_id: int) -> str | None:
        """Return the actor that keeps a job's record; None if no job can have this id."""
        if job_id < OWN_IDS:
            return GRID_ACTOR
        sites = await self._sites()
        number = job_id // OWN_IDS - 1
        return site_actor(sites[number].name) if number < len(sites) else None

    async def _by_actor(self, job_ids: Sequence[int]) -> dict[str, list[int]]:
        """Group jobs by the actor that keeps their records."""
        jobs_by_actor: dict[str, list[int]] = {}
        for job_id in dict.fromkeys(job_ids):
            actor = await self._actor_of(job_id)
            if actor is not None:
                jobs_by_actor.setdefault(actor, []).append(job_id)
        return jobs_by_actor

    # -- jobs ---------------------------------------------------------------------------------------------------------

    @override
    async def submit(
        self, jobs: Sequence[tuple[str, JobRequest]], *, site: str | None, origin: str
    ) -> list[Accepted | Declined]:
        actor = GRID_ACTOR if site is None else await self._site(site)
        kind: Any = list[Accepted | Declined]
        answers: list[Accepted | Declined] = await self._ask(
            actor, "submit", kind, list(jobs), origin, timeout_s=SUBMIT_S
        )
        return answers

    @override
    async def apply_action(
        self, kind: ActionKind, job_ids: Sequence[int], *, origin: str, signal: SignalName | None = None
    ) -> list[int]:
        asked = (
            self._ask(actor, "apply_action", list[int], kind, mine, origin, signal)
            for actor, mine in (await self._by_actor(job_ids)).items()
        )
        return [job_id for done in await asyncio.gather(*asked) for job_id in done]

    @override
    async def records(self, job_ids: Sequence[int]) -> list[JobRecord]:
        asked = (self._records_at(actor, mine) for actor, mine in (await self._by_actor(job_ids)).items())
        by_id = {record.job_id: record for records in await asyncio.gather(*asked) for record in records}
        return [by_id[job_id] for job_id in dict.fromkeys(job_ids) if job_id in by_id]

    async def _records_at(self, actor: str, job_ids: list[int]) -> list[JobRecord]:
        """Return records from one actor, fetched page by page so that the actor can answer other calls in between."""
        records: list[JobRecord] = []
        for start in range(0, len(job_ids), RECORDS_AT_ONCE):
            page = job_ids[start : start + RECORDS_AT_ONCE]
            records += await self._ask(actor, "records", list[JobRecord], page)
        return records

    async def _record(self, job_id: int) -> JobRecord | None:
        return next(iter(await self.records([job_id])), None)

    @override
    async def jobs(self, query: JobQuery) -> JobPage:
        if query.site is not None:
            await self._site(query.site)  # raises InputError for an unknown site
        actor = GRID_ACTOR if not query.own else await self._site(query.own)
        if query.follows is not None:
            # Jobs depend only on jobs of the same actor.
            actor = await self._actor_of(query.follows) or actor
        return await self._ask(actor, "jobs", JobPage, query)

    @override
    async def history(self, job_id: int) -> list[HistoryEntry]:
        """Return a job's history from the grid and its sites, sorted by time.

        If one of the job's sites does not answer, the last entry says so.
        """
        actor = await self._actor_of(job_id)
        if actor is None:
            return []
        own, of_sites = await self._ask(actor, "history", list[Note], job_id), list[Note]()
        if own and actor == GRID_ACTOR:
            # The record names only the sites of the last attempt.
            names = [site.name for site in await self._sites()]
            answers = await self._answers(names, "history", list[Note], job_id)
            of_sites += [note for notes in answers.values() for note in notes]
            silent = [name for name in names if name not in answers]
            of_sites += await self._unheard(job_id, silent, own[-1].at_ms) if silent else []
        notes = joined_history(own, of_sites)
        return [HistoryEntry(at_ms=note.at_ms, kind=note.kind, detail=note.detail) for note in notes]

    async def _unheard(self, job_id: int, silent: Sequence[str], at_ms: int) -> list[Note]:
        """Return a note for each of the job's sites that did not answer, saying that the site's notes are missing."""
        record = await self._record(job_id)
        sites = [] if record is None else [name for name, _ in record.places]
        problem = "does not answer; its events are missing here"
        return [Note(job_id, at_ms, "unheard", f"site {name} {problem}") for name in silent if name in sites]

    @override
    async def events(self, after: int, timeout_s: float) -> JobEvents:
        patience_s = timeout_s + CALL_S
        return await self._ask(self.home, "events", JobEvents, after, timeout_s, timeout_s=patience_s, alone=True)

    @override
    async def forecast(self, job_id: int) -> Forecast | None:
        if job_id >= OWN_IDS:
            return await self._own_forecast(job_id)
        kind: Any = Forecast | None
        forecast: Forecast | None = await self._ask(GRID_ACTOR, "forecast", kind, job_id, timeout_s=FORECAST_S)
        if forecast is not None and forecast.state == "running" and len(forecast.places) == 1:
            return await self._with_pause(forecast, job_id, forecast.places[0][0])
        if forecast is None:
            return None
        return _with_sites(forecast, await self._answers(forecast.queues, "forecast", kind, job_id))

    async def _with_pause(self, forecast: Forecast, job_id: int, site: str) -> Forecast:
        """Add to a running job's forecast the reason why the job is paused at its site."""
        kind: Any = Forecast | None
        answer: Forecast | None = await _or_none(
            self._ask(site_actor(site), "forecast", kind, job_id, timeout_s=LOOK_S)
        )
        why = "" if answer is None else answer.reason
        return msgspec.structs.replace(forecast, reason=f"at {site}: {why}") if why else forecast

    async def _own_forecast(self, job_id: int) -> Forecast | None:
        record = await self._record(job_id)
        if record is None:
            return None
        name = await self._owner(job_id)
        kind: Any = Forecast | None
        answer: Forecast | None = await self._ask(site_actor(name), "forecast", kind, job_id)
        return answer or record_forecast(record, record.end_ms or 0)

    @override
    async def quote(self, request: JobRequest, *, instead_of: int | None = None) -> Forecast:
        forecast = await self._ask(GRID_ACTOR, "quote", Forecast, request, instead_of, {}, timeout_s=FORECAST_S)
        asked = {*forecast.offers, *forecast.queues}
        answers = await self._answers(asked, "quote", Forecast, request, True)
        combined = _with_sites(_with_offers(forecast, answers), answers)
        if not forecast.queues:
            return combined
        return await self._as_the_grid_would(combined, request, instead_of, asked - answers.keys())

    async def _as_the_grid_would(
        self, forecast: Forecast, request: JobRequest, instead_of: int | None, silent: Collection[str]
    ) -> Forecast:
        """Return a quote with the placement that the grid would choose, given the offers of the sites that answer."""
        questions = await self._ask(GRID_ACTOR, "questions", dict[str, RequestQuote], request)
        heard = {name: question for name, question in questions.items() if name not in silent}
        calls = (
            self._ask(site_actor(name), "offer", Quoted, request, question, timeout_s=LOOK_S)
            for name, question in heard.items()
        )
        answers = await asyncio.gather(*(_or_none(call) for call in calls))
        offers = {name: quoted for name, quoted in zip(heard, answers, strict=True) if quoted is not None}
        if not offers:
            return forecast
        chosen = await self._ask(GRID_ACTOR, "quote", Forecast, request, instead_of, offers, timeout_s=FORECAST_S)
        if chosen.start_ms is None and not chosen.places and chosen.state != "refused":
            return forecast
        ahead = {row.site: row.ahead for row in forecast.sites}
        only = chosen.places[0][0] if len(chosen.places) == 1 else ""
        return msgspec.structs.replace(chosen, sites=forecast.sites, ahead=ahead.get(only, 0))

    @override
    async def plan(self, limit: int) -> PlannedStarts:
        plan = await self._ask(GRID_ACTOR, "plan", PlannedStarts, limit, timeout_s=FORECAST_S)
        reports = await self._reports_of_sites(plan.waits_at)
        jobs = [
            _expected_there(job, reports[job.job_id], plan.now_ms) if job.job_id in reports else job
            for job in plan.jobs
        ]
        planned = [(job.start_ms, job.job_id, job) for job in jobs if job.start_ms is not None]
        return msgspec.structs.replace(plan, jobs=[job for _, _, job in sorted(planned, key=lambda start: start[:2])])

    @override
    async def what_if(self, asked: WhatIf) -> WhatIfAnswer:
        return await self._ask(GRID_ACTOR, "what_if", WhatIfAnswer, asked, timeout_s=WHAT_IF_S)

    # -- output -------------------------------------------------------------------------------------------------------

    @override
    async def output(
        self, job_id: int, rank: int, stream: str, offset: int, limit: int, *, attempt: int | None = None
    ) -> OutputPart | None:
        # Read the record first: if the job has ended by now, no more output follows.
        record = await self._record(job_id)
        if record is None:
            return None
        is_over = record.state in OVER or attempt not in (None, record.attempt)
        nothing = OutputPart(data=b"", offset=offset, is_last=is_over)
        if not record.places or not record.attempt:
            return nothing
        where, problem, removal = (job_id, attempt or record.attempt, rank), None, None
        for actor in await self._actors_with(record, rank, attempt):
            try:
                read = await self._ask(actor, "part", OutputRead, *where, stream, offset, limit)
            except UnavailableError as error:
                problem = problem or error
                continue
            if read.is_here:
                at_end = offset + len(read.data) >= read.size
                return OutputPart(data=read.data, offset=offset, is_last=is_over and at_end)
            removal = removal or read.removal
        if problem is not None:
            raise problem
        # There is no record of where an earlier attempt ran, or whether it ran.
        has_run = record.start_ms is not None and record.state in OVER and attempt in (None, record.attempt)
        return msgspec.structs.replace(nothing, removed=_removed(record, removal)) if removal or has_run else nothing

    async def _actors_with(self, record: JobRecord, rank: int, attempt: int | None) -> list[str]:
        """Return the actors that may be able to read a rank's output, most likely first."""
        if attempt in (None, record.attempt):
            site = _site_of_rank(record, rank)
            machines = {site: await self._machines_with(record, site, rank)}
        else:  # there is no record of where an earlier attempt ran
            machines = {site.name: list(site.machines) for site in await self._sites()}
        agents = [agent_actor(site, machine) for site, names in machines.items() for machine in names]
        # The site may be able to read output that a lost machine has left behind.
        return agents + [site_actor(site) for site in machines]

    async def _machines_with(self, record: JobRecord, site: str, rank: int) -> list[str]:
        """Return the machines of a site that may have a rank's output."""
        # A record of the grid also names the site; the record of a site's own job does not.
        ended = [machine.removeprefix(f"{site}/") for machine in record.machines if machine.startswith(f"{site}/")]
        if record.job_id >= OWN_IDS:
            ended = list(record.machines)
        if ended:
            return ended
        actor = site_actor(site)
        machine = await self._ask(actor, "machine_of", str, record.job_id, record.attempt, rank)
        if machine:
            return [machine]
        # The job has not started, or this part has ended and others have not.
        return [name for other in await self._sites() if other.name == site for name in other.machines]

    # -- the grid and its sites ---------------------------------------------------------------------------------------

    @override
    async def sites(self) -> list[SiteInfo]:
        if self._names:
            await _or_none(self._about())  # the grid's own view may fail; that must not hide the sites
        return await self._states(await self._sites())

    async def _states(self, names: Sequence[SiteNames]) -> list[SiteInfo]:
        """Return the states of sites; a site that does not answer has its last known state, with the problem."""
        calls = (self._ask(site_actor(site.name), "status", SiteInfo, timeout_s=LOOK_S) for site in names)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for site, status in zip(names, answers, strict=True):
            if isinstance(status, SiteInfo):
                self._last[site.name] = msgspec.structs.replace(status, problem=status.problem or site.problem)
            elif isinstance(status, UnavailableError):
                away = tuple(MachineInfo(name=name, here=False) for name in site.machines)
                last = self._last.get(site.name) or SiteInfo(name=site.name, for_grid=site.for_grid, machines=away)
                self._last[site.name] = msgspec.structs.replace(last, answers=False, problem=str(status))
            else:
                raise status
        return [self._last[site.name] for site in names]

    @override
    async def drain(self, site: str, draining: bool) -> None:
        await self._ask(await self._site(site), "drain", type(None), draining)

    @override
    async def give_up(self, site: str, machine: str) -> GivenUp:
        return await self._ask(await self._site(site), "give_up", GivenUp, machine)

    @override
    async def ask_discipline(self, site: str, question: str, changes: Any = None) -> Any:
        return await self._ask(await self._site(site), "ask_discipline", object, question, changes)

    @override
    async def queue(self, limit: int, *, explain: bool = False) -> Queue:
        queue = await self._ask(self.home, "queue", Queue, limit, explain)
        reports = await self._reports_of_sites({job.job_id: job.waits_at for job in queue.jobs if job.waits_at})
        jobs = [_queued_there(job, reports[job.job_id]) if job.job_id in reports else job for job in queue.jobs]
        return msgspec.structs.replace(queue, jobs=jobs)

    async def _reports_of_sites(self, waits_at: Mapping[int, str]) -> dict[int, Forecast]:
        """Return the sites' forecasts of their queued jobs, by job; sites that do not answer in time are left out."""
        names = sorted(set(waits_at.values()))
        waiting = [[job_id for job_id, site in waits_at.items() if site == name] for name in names]
        calls = (
            self._ask(site_actor(name), "forecasts", list[Forecast], job_ids, timeout_s=LOOK_S)
            for name, job_ids in zip(names, waiting, strict=True)
        )
        answers = await asyncio.gather(*map(_or_none, calls))
        return {
            forecast.job_id: forecast for answer in answers for forecast in answer or () if forecast.job_id is not None
        }

    @override
    async def network(self) -> KnownNetwork:
        return await self._ask(GRID_ACTOR, "network", KnownNetwork)

    @override
    async def learnt(self) -> GridExperience:
        return await self._ask(GRID_ACTOR, "learnt", GridExperience)

    @override
    async def scheduling(self) -> Scheduling:
        return await self._ask(GRID_ACTOR, "scheduling", Scheduling)

    @override
    async def health(self) -> Health:
        try:
            if self._names:
                _, infos = await asyncio.gather(self._about(), self._states(self._names))
            else:
                infos = await self._states(await self._about())
            sites = {site.name: site.answers for site in infos}
        except UnavailableError:
            sites = {site.name: False for site in self._names}
            return Health(status="unavailable", version=__version__, sites=sites)
        return Health(status="ok", version=__version__, sites=sites)


def _with_sites(forecast: Forecast, answers: Mapping[str, Forecast | None]) -> Forecast:
    """Add to a forecast the answers of the sites in whose queues the job is waiting; note sites without an answer."""
    for name in forecast.queues:
        if name not in answers:
            forecast = without_site_answer(forecast, name)
        elif (answer := answers[name]) is not None:
            forecast = with_site_answer(forecast, name, answer)
    return forecast


def _with_offers(forecast: Forecast, answers: Mapping[str, Forecast]) -> Forecast:
    """Add to a quote the offers of the sites with shared nodes that have answered."""
    offers = {name: answers[name].sites[0].offer for name in forecast.offers if name in answers and answers[name].sites}
    rows = [msgspec.structs.replace(row, offer=offers.get(row.site, "")).with_offer() for row in forecast.sites]
    return msgspec.structs.replace(forecast, sites=tuple(rows)) if offers else forecast


async def _or_none(answer: Awaitable[T]) -> T | None:
    try:
        return await answer
    except UnavailableError:
        return None


def _removed(record: JobRecord, removal: Removal | None) -> str:
    """Return in one line why a job that has run has no output."""
    what = f"the output of job {record.job_id}"
    if removal is None:
        return f"{what} is no longer on any of its machines"
    at = datetime.datetime.fromtimestamp(removal.at_ms // 1000, datetime.UTC)
    return f"{what} was removed at {at:%Y-%m-%d %H:%M:%S} UTC: {removal.reason}"


def _queued_there(job: QueuedJob, answer: Forecast) -> QueuedJob:
    """Return a job queued at a site, with the start time that the site expects and why it is not sooner."""
    forecast = Forecast(job_id=job.job_id, now_ms=answer.now_ms, places=job.places)
    forecast = with_site_answer(forecast, job.waits_at, answer)
    return msgspec.structs.replace(job, start_ms=forecast.start_ms, reason=forecast.reason)


def _expected_there(job: ScheduledJob, answer: Forecast, now_ms: int) -> ScheduledJob:
    """Return a job waiting at a site with the start and placement that the site expects (no start if unknown)."""
    if answer.start_ms is None or answer.state not in PENDING:
        return msgspec.structs.replace(job, start_ms=None, end_ms=None)
    start_ms, placement = max(answer.start_ms, now_ms), answer.places or job.places
    return msgspec.structs.replace(job, start_ms=start_ms, end_ms=start_ms + answer.length_ms, places=placement)


def _site_of_rank(record: JobRecord, rank: int) -> str:
    """Return the site at which a rank of a job's last attempt is running or ran."""
    one_each = record.request.program.ranks == "first-node"
    counts = [(site, 1 if one_each else nodes) for site, nodes in record.places]
    if record.job_id >= OWN_IDS and one_each:
        counts = counts[:1]
    first = 0
    for site, count in counts:
        if first <= rank < first + count:
            return site
        first += count
    raise InputError(f"job {record.job_id} has no rank {rank}; it has 0 to {first - 1}")


class RayBackend(LiveBackend):
    """A live grid on the Ray cluster that this process is connected to; its actors are found by name."""

    def __init__(self, namespace: str = NAMESPACE) -> None:
        super().__init__(ActorCalls(namespace))


class SiteBackend(LiveBackend):
    """A single site with its machines, which accepts jobs only from its own users."""

    def __init__(self, calls: Calls, site: str) -> None:
        super().__init__(calls)
        self.site = site
        self.home = site_actor(site)

    @override
    async def _actor_of(self, job_id: int) -> str | None:
        return self.home

    @override
    async def _owner(self, job_id: int) -> str:
        return self.site

    @override
    async def _site(self, name: str) -> str:
        if name != self.site:
            raise InputError(f"there is no site {name!r:.100} here; this gateway serves only site {self.site}")
        return self.home

    @override
    async def submit(
        self, jobs: Sequence[tuple[str, JobRequest]], *, site: str | None, origin: str
    ) -> list[Accepted | Declined]:
        """Submit jobs to the site as jobs of its own users."""
        return await super().submit(jobs, site=self.site if site is None else site, origin=origin)

    @override
    async def jobs(self, query: JobQuery) -> JobPage:
        return await super().jobs(msgspec.structs.replace(query, own=query.own or self.site))

    @override
    async def forecast(self, job_id: int) -> Forecast | None:
        return await self._own_forecast(job_id)

    @override
    async def quote(self, request: JobRequest, *, instead_of: int | None = None) -> Forecast:
        """Forecast when a job of the site's own users would start."""
        return await self._ask(self.home, "quote", Forecast, request, False)

    def _grid_only(self) -> InputError:
        """Return the refusal for a query that only the grid's gateway can answer."""
        return InputError(f"this gateway serves only site {self.site}; ask the grid's gateway")

    @override
    async def plan(self, limit: int) -> PlannedStarts:
        """Raise InputError, because only the grid has a plan."""
        raise self._grid_only()

    @override
    async def what_if(self, asked: WhatIf) -> WhatIfAnswer:
        """Raise InputError, because only a grid can be simulated."""
        raise self._grid_only()

    @override
    async def network(self) -> KnownNetwork:
        """Return an empty network, because only the grid has a network."""
        return KnownNetwork(nodes=[], links=[])

    @override
    async def learnt(self) -> GridExperience:
        """Raise InputError, because only the grid learns the costs of splits."""
        raise self._grid_only()

    @override
    async def scheduling(self) -> Scheduling:
        """Raise InputError, because only the grid has these settings."""
        raise self._grid_only()

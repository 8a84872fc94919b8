"""Answer users' queries about a site; the base class `Queries` is shared with the grid.

`Queries` shows only durable information. It does not depend on Ray: an actor or a test serves it through a `Door`. The
newest job events and the reasons why jobs wait are kept in memory, so that following a job needs no SQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from gridweave.errors import InputError
from gridweave.site.disciplines.dictionary import counted_kinds
from gridweave.site.explain import Forecast
from gridweave.site.job import Accepted, ActionKind, Declined, JobRecord, JobRequest, SignalName
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.records import Note, NumberedNote
from gridweave.site.lifecycle import OVER
from gridweave.site.machine.agent import OutputRead
from gridweave.site.messages import DisciplineEdited, Quoted, RequestQuote
from gridweave.site.query_messages import (
    BusyNodes,
    GivenUp,
    JobEvent,
    JobEvents,
    JobPage,
    JobProgress,
    JobQuery,
    KeptNodes,
    LinkStatus,
    MachineInfo,
    Queue,
    QueuedJob,
    ResourceAmount,
    SiteInfo,
    SiteNames,
    matches,
    page_of,
)
from gridweave.site.resources.chunks import WHOLE_NODE
from gridweave.site.resources.use import resource_use
from gridweave.site.service.driver import Driver, LiveCore
from gridweave.site.service.faults import recent_fault
from gridweave.site.service.history import HistoryReader
from gridweave.site.service.site_driver import GRID, SiteDriver
from gridweave.site.users.owner import policy_label

KEEP_EVENTS = 20_000
"""Number of events kept in memory; older events are read from the journal."""

EXPLAIN_S = 1.0
"""Time limit for computing the forecasts of a queue [s]."""


class Events:
    """The newest job events, numbered consecutively up to ``last``.

    Examples
    --------
    >>> events = Events(7)
    >>> events.add([JobEvent(number=8, at_ms=0, job_id=1, kind="submitted")])
    >>> [event.number for event in events.after(7, 10)], events.after(3, 10)
    ([8], None)
    """

    def __init__(self, last: int) -> None:
        self.last = last
        self._newest: deque[JobEvent] = deque(maxlen=KEEP_EVENTS)
        self._news = asyncio.Event()

    def add(self, events: Iterable[JobEvent]) -> None:
        """Add events, and wake the tasks that are waiting for them."""
        for event in events:
            assert event.number == self.last + 1, "an event is missing"
            self._newest.append(event)
            self.last = event.number
        self._news.set()
        self._news = asyncio.Event()

    def after(self, number: int, limit: int) -> list[JobEvent] | None:
        """Return up to ``limit`` events after event ``number``; None if some of them are no longer in memory."""
        start = number - self.last + len(self._newest)
        return None if start < 0 else list(islice(self._newest, start, start + limit))

    async def wait(self, number: int, timeout_s: float) -> None:
        """Wait until there is an event after event ``number``, or until the timeout."""
        if self.last <= number:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()


MOST_JOBS = 2_000
"""Maximum number of jobs whose reasons are kept; the job added first is dropped first."""

MOST_REASONS = 20
"""Maximum number of reasons per job; the newest are kept."""


class WaitReasons:
    """The reasons why jobs wait, taken from forecasts; kept only in memory, because they are not part of the state.

    Examples
    --------
    >>> waits = WaitReasons()
    >>> for now_ms, cause in (1, "it is first"), (2, "it is first"), (3, "others are kept nodes"):
    ...     waits.heard(Forecast(job_id=7, now_ms=now_ms, cause=cause, reason=f"{cause}, at {now_ms}"))
    >>> [(note.at_ms, note.kind, note.detail) for note in waits.of(7)]
    [(1, 'waits', 'it is first, at 1'), (3, 'waits', 'others are kept nodes, at 3')]
    """

    def __init__(self) -> None:
        # The last cause and the notes, by job id.
        self._by_job: dict[int, tuple[str, deque[Note]]] = {}

    def heard(self, forecast: Forecast, where: str = "") -> None:
        """Record why a job is waiting, prefixed by `where`, unless the cause has not changed."""
        job_id, cause = forecast.job_id, forecast.cause
        if job_id is None or not cause:
            return
        last, notes = self._by_job.get(job_id, ("", deque[Note](maxlen=MOST_REASONS)))
        if cause == last:
            return
        notes.append(Note(job_id, forecast.now_ms, "waits", where + forecast.reason))
        self._by_job[job_id] = cause, notes
        if len(self._by_job) > MOST_JOBS:
            del self._by_job[next(iter(self._by_job))]

    def of(self, job_id: int) -> list[Note]:
        """Return the reasons why a job has waited, oldest first."""
        return list(self._by_job.get(job_id, ("", ()))[1])


FEW_JOBS = 50
"""Submissions of up to this many jobs never wait for larger submissions."""

JOBS_AT_ONCE, ROWS_IN_A_TURN = 500, 4
"""Number of jobs per batch of a large submission, and number of batches in progress at a time."""

ACTIONS_AT_ONCE = 500
RECORDS_AT_ONCE = 1_000
"""Number of jobs that a call changes or reads before it lets other calls run."""

MOST_EVENTS = 1_000
"""Maximum number of events in an answer."""


D = TypeVar("D", bound=Driver[Any])


class Queries(Generic[D]):
    """Users' queries and actions on a core with a journal; must be created before the driver starts."""

    methods: ClassVar[tuple[str, ...]] = ("submit", "apply_action", "records", "jobs", "history", "events")
    """The methods that a `Door` exposes."""

    def __init__(self, driver: D, core: LiveCore, journal: Journal) -> None:
        self.driver, self.core = driver, core
        self._history = HistoryReader(journal.reader())
        self._events = Events(journal.last_note)
        # Large actions run in batches: one action at a time, and several submissions at a time.
        self._many, self._bulk = asyncio.Lock(), asyncio.Semaphore(ROWS_IN_A_TURN)
        self._waits = WaitReasons()
        driver.on_notes = self._noted

    async def submit(self, jobs: list[tuple[str, JobRequest]], origin: str) -> list[Accepted | Declined]:
        """Submit jobs; return their answers, in order, once they are durable."""
        if len(jobs) <= FEW_JOBS:
            return await self.driver.submit(jobs, origin=origin)
        answers: list[Accepted | Declined] = []
        for start in range(0, len(jobs), JOBS_AT_ONCE):
            async with self._bulk:
                answers += await self.driver.submit(jobs[start : start + JOBS_AT_ONCE], origin=origin)
        return answers

    async def apply_action(
        self, kind: ActionKind, job_ids: list[int], origin: str, signal: SignalName | None = None
    ) -> list[int]:
        """Apply a user's action to jobs; return the affected jobs once the action is durable.

        ``cancel`` and ``kill`` affect jobs that have not ended, and ``signal`` affects running jobs. ``requeue``
        affects running jobs that can run again. ``hold`` affects jobs that are held now, or will be unless they start
        first, and ``release`` affects jobs that users hold.
        """
        asked = list(dict.fromkeys(job_ids))
        if len(asked) <= ACTIONS_AT_ONCE:
            return await self._apply_action(kind, asked, origin, signal)
        done: list[int] = []
        for start in range(0, len(asked), ACTIONS_AT_ONCE):
            async with self._many:
                done += await self._apply_action(kind, asked[start : start + ACTIONS_AT_ONCE], origin, signal)
            await asyncio.sleep(0)  # actions on unknown jobs never await anything
        return done

    async def _apply_action(
        self, kind: ActionKind, asked: list[int], origin: str, signal: SignalName | None
    ) -> list[int]:
        allowed = [job_id for job_id in asked if self._can(kind, job_id)]
        if allowed:
            await self.driver.apply_action(kind, allowed, origin=origin, signal=signal)
        if kind not in ("hold", "release"):
            return allowed
        return [job_id for job_id in allowed if self._is_held(job_id) == (kind == "hold")]

    async def records(self, job_ids: list[int]) -> list[JobRecord]:
        """Return job records in ascending order of id, even of jobs that ended long ago; unknown ids are omitted."""
        await self.driver.durable()
        registered = self.core.registry.records
        records = {job_id: copy.copy(registered[job_id]) for job_id in job_ids if job_id in registered}
        next_id = self.core.registry.next_id
        rest = [job_id for job_id in job_ids if job_id not in records and job_id < next_id]
        records |= await self._history.ended(rest)
        return [records[job_id] for job_id in sorted(records)]

    async def jobs(self, query: JobQuery) -> JobPage:
        """Return a page of the jobs that match a query, newest first."""
        await self.driver.durable()
        records = await self._known(query)
        if query.follows is None and (not query.state or not set(query.state).isdisjoint(OVER)):
            more = msgspec.structs.replace(query, limit=query.limit + 1)
            for record in await self._history.find_ended(more):
                records.setdefault(record.job_id, record)
        return page_of(records, query)

    async def _known(self, query: JobQuery) -> dict[int, JobRecord]:
        """Return copies of the newest matching records in memory, up to one more than the query's limit."""
        records: dict[int, JobRecord] = {}
        async with self._many:
            # Ids are ascending, so the newest jobs are the last.
            for number, (job_id, record) in enumerate(list(reversed(self.core.registry.records.items())), 1):
                if len(records) > query.limit:
                    break
                if (query.below is None or job_id < query.below) and matches(record, query):
                    records[job_id] = copy.copy(record)
                if not number % RECORDS_AT_ONCE:
                    await asyncio.sleep(0)
        return records

    async def history(self, job_id: int) -> list[Note]:
        """Return a job's history, oldest event first, including the reasons for waiting from the job's forecasts."""
        await self.driver.durable()
        notes = await self._history.history(job_id)
        return sorted([*notes, *self._waits.of(job_id)], key=lambda note: note.at_ms)

    def _noted(self, notes: list[NumberedNote], ended: dict[int, JobRecord]) -> None:
        self._events.add(self._event(note, ended) for note in notes)

    def _event(self, note: NumberedNote, others: dict[int, JobRecord]) -> JobEvent:
        record = self.core.registry.records.get(note.job_id) or others.get(note.job_id)
        # A job that was declined when it was submitted has no record.
        user, name = ("", "") if record is None else (record.request.user, record.request.name)
        return JobEvent(**msgspec.structs.asdict(note), user=user, name=name)

    async def events(self, after: int, timeout_s: float) -> JobEvents:
        """Return the job events after event number `after`; if there are none yet, wait up to `timeout_s`.

        If `after` is -1 or does not exist yet, immediately return only the number of the last event.
        """
        if not 0 <= after <= self._events.last:
            return JobEvents(events=[], last=self._events.last)
        await self._events.wait(after, timeout_s)
        events = self._events.after(after, MOST_EVENTS)
        if events is None:
            events = await self._old_events(after)
        return JobEvents(events=events, last=events[-1].number if events else self._events.last)

    async def _old_events(self, after: int) -> list[JobEvent]:
        notes = await self._history.notes(after, MOST_EVENTS)
        rest = sorted({note.job_id for note in notes} - self.core.registry.records.keys())
        others = await self._history.ended(rest)
        return [self._event(note, others) for note in notes]

    def _can(self, kind: ActionKind, job_id: int) -> bool:
        """Whether an action can have an effect on a job."""
        record = self.core.registry.records.get(job_id)
        if record is None:
            return False
        match kind:
            case "release":
                return self._is_held(job_id)
            case "signal":
                return record.state == "running"
            case "requeue":
                return record.can_be_requeued
            case _:
                return record.state not in OVER

    def _is_held(self, job_id: int) -> bool:
        return self.core.registry.eligibility.is_wished(job_id)


def queued(record: JobRecord, forecast: Forecast | None = None) -> QueuedJob:
    """Return the fields of a waiting job that all users may see, with its forecast if given."""
    request = record.request
    return QueuedJob(
        job_id=record.job_id,
        user=request.user,
        nodes=request.nodes,
        limit_ms=request.limit_ms,
        submit_ms=record.submit_ms,
        state=record.state,
        start_ms=None if forecast is None else forecast.start_ms,
        places=record.places if forecast is None else forecast.places or record.places,
        reason="" if forecast is None else forecast.reason,
        waits_at=forecast.queues[0] if forecast is not None and len(forecast.queues) == 1 else "",
    )


class SiteQueries(Queries[SiteDriver]):
    """Answers queries about a site and its own users' jobs.

    ``uplink`` returns the status of the link to the grid. ``read`` reads output that the site can access without a
    machine; it takes the arguments of `AgentDriver.part`. `away` has the machines that are not responding.
    """

    methods = (
        *Queries.methods,
        "status",
        "drain",
        "give_up",
        "machine_of",
        "forecast",
        "forecasts",
        "quote",
        "offer",
        "queue",
        "about",
        "part",
        "ask_discipline",
    )

    def __init__(
        self,
        driver: SiteDriver,
        *,
        uplink: Callable[[], LinkStatus] | None = None,
        read: Callable[[int, int, int, str, int, int], OutputRead] | None = None,
    ) -> None:
        super().__init__(driver, driver.site, driver.journal)
        self._uplink, self._read = uplink, read
        self.away: Collection[str] = ()

    async def status(self) -> SiteInfo:
        """Return the site's current status."""
        await self.driver.durable()
        site, settings = self.driver.site, self.driver.settings
        core = site.core.site
        machines = tuple(
            MachineInfo(
                name=machine.name,
                host=site.runs.ports.host_of(machine.name),
                nodes=machine.nodes,
                here=machine.name not in self.away,
                problem=site.runs.problem_of(machine.name),
            )
            for machine in settings.machines
        )
        return SiteInfo(
            name=settings.name,
            nodes=core.nodes,
            for_grid=settings.owner.nodes_for_grid(core.nodes),
            free=core.source.idle,
            waiting=sum(1 for _ in core.waiting()),
            running=sum(1 for _ in core.running()),
            draining=site.core.draining,
            machines=machines,
            policy=policy_label(settings.policy, settings.owner),
            paused=site.runs.paused(),
            busy=tuple(BusyNodes(*row) for row in core.occupied()),
            progress=tuple(JobProgress(*fields) for fields in core.progress(self.driver.clock.now_ms())),
            uplink=None if self._uplink is None else self._uplink(),
            kept=tuple(KeptNodes(*row) for row in site.core.kept_nodes()),
            users=site.runs.users.words,
            problem=self.driver.peer_problem(GRID),
            fault=recent_fault(),
            kinds=counted_kinds(settings.policy),
            amounts=tuple(self._amounts()),
        )

    def _amounts(self) -> Iterator[ResourceAmount]:
        """Yield the use of each resource that the site counts."""
        core, kinds = self.driver.site.core.site, counted_kinds(self.driver.settings.policy)
        if kinds:
            jobs, nodes_of = {run.job.job_id: run.job for run in core.running()}, dict(core.occupied())
            held = ((job.chunk or WHOLE_NODE, job.width, nodes_of[job_id]) for job_id, job in jobs.items())
            yield from (ResourceAmount(*row) for row in resource_use(kinds, held))

    async def forecasts(self, job_ids: list[int]) -> list[Forecast]:
        """Return the forecasts of waiting jobs, as many as can be computed within `EXPLAIN_S`."""
        forecasts, until_s = [], time.monotonic() + EXPLAIN_S
        for job_id in job_ids:
            forecast = await self.forecast(job_id) if time.monotonic() < until_s else None
            forecasts += [] if forecast is None else [forecast]
        return forecasts

    async def about(self) -> list[SiteNames]:
        """Return the names of the site and its machines, in the same form as the grid's `about`."""
        settings = self.driver.settings
        machines = tuple(machine.name for machine in settings.machines)
        return [SiteNames(settings.name, settings.owner.nodes_for_grid(settings.nodes), machines)]

    async def queue(self, limit: int, explain: bool = False) -> Queue:
        """Return the number of jobs in each state, and the first ``limit`` waiting jobs of the site's own users.

        With `explain`, include the forecasts that can be computed within `EXPLAIN_S`.
        """
        await self.driver.durable()
        site, records = self.driver.site.core.site, self.core.registry.records
        states = Counter(record.state for record in records.values())
        waiting = [job.job_id for job, _ in site.waiting()]
        running = sum(1 for _ in site.running()) - states["starting"] - states["ending"]
        first = list(islice((copy.copy(records[job_id]) for job_id in waiting if job_id in records), limit))
        forecasts = await self._explained(first) if explain else {}
        return Queue(
            waiting=len(waiting),
            held=states["held"],
            starting=states["starting"],
            running=max(0, running),
            ending=states["ending"],
            jobs=[queued(record, forecasts.get(record.job_id)) for record in first],
        )

    async def _explained(self, records: list[JobRecord]) -> dict[int, Forecast | None]:
        """Return as many forecasts as can be computed within `EXPLAIN_S`; other calls can run between them."""
        forecasts: dict[int, Forecast | None] = {}
        until_s = time.monotonic() + EXPLAIN_S
        async with self._many:
            for record in records:
                if time.monotonic() >= until_s:
                    break
                forecasts[record.job_id] = await self.forecast(record.job_id)
                await asyncio.sleep(0)
        return forecasts

    async def drain(self, draining: bool) -> None:
        """Stop accepting new grid jobs if ``draining``, otherwise accept them again."""
        await self.driver.drain(draining)

    async def give_up(self, machine: str) -> GivenUp:
        """Give up an unresponsive machine, so that its jobs run again.

        A machine that responds is not given up, because its jobs are still running and would run twice.
        """
        name = self.driver.settings.name
        if (
            all(machine_settings.name != machine for machine_settings in self.driver.settings.machines)
            or machine in self.away
        ):
            try:
                await self.driver.forget_machine(machine)
            except InputError as error:
                return GivenUp("unknown-machine", str(error))
            return GivenUp()
        reason = (
            f"machine {machine} of site {name} may still be up, so its jobs would run twice; "
            "drain the site, or stop the machine's agent first"
        )
        return GivenUp("machine-answers", reason)

    async def ask_discipline(self, question: str, changes: Any) -> Any:
        """Return what the discipline has learned about `question`, after applying any `changes`.

        Return None, and change nothing, if the discipline does not know the question. Raise InputError if it cannot
        read the changes.
        """
        core = self.driver.site.core.site
        if changes is not None and core.answer(question) is not None:
            if problem := core.edit_problem(changes):
                raise InputError(problem)
            await self.driver.apply(DisciplineEdited(changes))
        await self.driver.durable()
        return core.answer(question)

    async def machine_of(self, job_id: int, attempt: int, rank: int) -> str:
        """Return the name of the machine on which a rank is running; empty if the rank is not running."""
        await self.driver.durable()
        return self.driver.site.runs.machine_of(job_id, attempt, rank)

    async def part(self, job_id: int, attempt: int, rank: int, stream: str, offset: int, limit: int) -> OutputRead:
        """Return a range of a rank's output without asking its machine, if the site can read the output itself."""
        if self._read is None:
            return OutputRead(is_here=False, data=b"", size=0)
        return await asyncio.to_thread(self._read, job_id, attempt, rank, stream, offset, limit)

    async def forecast(self, job_id: int) -> Forecast | None:
        """Return a job's forecast at this site, or None if the job is unknown."""
        await self.driver.durable()
        forecast = self.driver.site.forecast(self.driver.clock.now_ms(), job_id)
        if forecast is not None:
            self._waits.heard(forecast, f"at {self.driver.settings.name}: ")
        return forecast

    async def quote(self, request: JobRequest, for_grid: bool) -> Forecast:
        """Return a job's forecast if it were submitted now or, with `for_grid`, if the grid delegated it now."""
        return self.driver.site.quote(self.driver.clock.now_ms(), request, for_grid=for_grid)

    async def offer(self, request: JobRequest, question: RequestQuote) -> Quoted:
        """Return the site's answer to the grid's quote request for a job that is not submitted yet."""
        return self.driver.site.offer(self.driver.clock.now_ms(), request, question)

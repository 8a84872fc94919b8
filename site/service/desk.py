"""The desk of a site, and what it has in common with that of the grid: what users ask beside handing in jobs.

Whatever a desk shows is durable before. It knows nothing of Ray: an actor, or a test, puts it behind a `Door`. The
newest events of jobs are kept in memory, so that watching costs no SQL, and so are the reasons why jobs waited.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from gridweave.errors import InputError
from gridweave.site.desk_messages import (
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
    SiteExperience,
    SiteInfo,
    SiteNames,
    matches,
    page_of,
)
from gridweave.site.explain import Forecast
from gridweave.site.job import Accepted, Declined, JobRecord, JobRequest, SignalName, WishKind
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.records import Note, NumberedNote
from gridweave.site.known_times import KnownTimes
from gridweave.site.lifecycle import OVER
from gridweave.site.machine.agent import OutputRead
from gridweave.site.messages import ExperienceEdited, Quoted
from gridweave.site.service.driver import Driver, LiveCore
from gridweave.site.service.faults import recent_fault
from gridweave.site.service.history import JobHistory
from gridweave.site.service.site_driver import GRID, SiteDriver
from gridweave.site.users.owner import policy_label

KEEP_EVENTS = 20_000
"""So many events are known without the journal."""

EXPLAIN_S = 1.0
"""So long it is worked out at most when the jobs of a queue start, and why not sooner."""


class Events:
    """The newest events, in ascending order and without a gap, after the ``last`` until now.

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
        """Take in what has happened, and wake those who wait for it."""
        for event in events:
            assert event.number == self.last + 1, "an event is missing"
            self._newest.append(event)
            self.last = event.number
        self._news.set()
        self._news = asyncio.Event()

    def after(self, number: int, limit: int) -> list[JobEvent] | None:
        """Return the events after one, so many at most; None if not all of them are known any more."""
        start = number - self.last + len(self._newest)
        return None if start < 0 else list(islice(self._newest, start, start + limit))

    async def wait(self, number: int, timeout_s: float) -> None:
        """Wait until there is an event after one, or a time has passed."""
        if self.last <= number:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()


MOST_JOBS = 2_000
"""Of so many jobs reasons are kept: of those that waited first they go first."""

MOST_REASONS = 20
"""So many reasons of a job are kept, the last ones."""


class WaitReasons:
    """The reasons that forecasts gave, in memory: they are no state of the grid, and go when its process ends.

    Examples
    --------
    >>> waits = WaitReasons()
    >>> for now_ms, cause in (1, "it is first"), (2, "it is first"), (3, "others are kept nodes"):
    ...     waits.heard(Forecast(job_id=7, now_ms=now_ms, cause=cause, reason=f"{cause}, at {now_ms}"))
    >>> [(note.at_ms, note.kind, note.detail) for note in waits.of(7)]
    [(1, 'waits', 'it is first, at 1'), (3, 'waits', 'others are kept nodes, at 3')]
    """

    def __init__(self) -> None:
        # The last cause of each job, and its notes.
        self._by_job: dict[int, tuple[str, deque[Note]]] = {}

    def heard(self, forecast: Forecast, where: str = "") -> None:
        """Take in why a job waits, told after `where`; what differs in its numbers alone is the same reason."""
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
        """Return the reasons of a job, the oldest first."""
        return list(self._by_job.get(job_id, ("", ()))[1])


EXPLAIN_S = 1.0
"""So long it is worked out at most when the jobs of a queue start."""

FEW_JOBS = 50
"""Submissions of at most so many jobs never wait for others' larger ones."""

JOBS_AT_ONCE, PIECES_IN_A_TURN = 500, 4
"""Larger submissions are cut into pieces of so many jobs, of which so many are under way at once."""

WISHES_AT_ONCE = 500
RECORDS_AT_ONCE = 1_000
"""So many jobs of one question are changed, or looked at, before others get their turn."""

MOST_EVENTS = 1_000
"""So many events are told at one time."""


D = TypeVar("D", bound=Driver[Any])


class Desk(Generic[D]):
    """What users ask of a core with a journal, whose driver has taken no turn yet."""

    methods: ClassVar[tuple[str, ...]] = ("submit", "wish", "records", "jobs", "story", "events")
    """What may be asked through a `Door`."""

    def __init__(self, driver: D, core: LiveCore, journal: Journal) -> None:
        self.driver, self.core = driver, core
        self._history = JobHistory(journal.reader())
        self._events = Events(journal.last_note)
        # Work about many jobs is done in pieces: one at a time, and a few submissions in a turn.
        self._many, self._bulk = asyncio.Lock(), asyncio.Semaphore(PIECES_IN_A_TURN)
        self._waits = WaitReasons()
        driver.on_notes = self._noted

    async def submit(self, jobs: list[tuple[str, JobRequest]], origin: str) -> list[Accepted | Declined]:
        """Submit jobs; return the answer to each when that is durable."""
        if len(jobs) <= FEW_JOBS:
            return await self.driver.submit(jobs, origin=origin)
        answers: list[Accepted | Declined] = []
        for start in range(0, len(jobs), JOBS_AT_ONCE):
            async with self._bulk:
                answers += await self.driver.submit(jobs[start : start + JOBS_AT_ONCE], origin=origin)
        return answers

    async def wish(
        self, kind: WishKind, job_ids: list[int], origin: str, signal: SignalName | None = None
    ) -> list[int]:
        """Do what a user wants of jobs, when that is durable; return of which it was done.

        To cancel, at once or not: those that had not ended. To get a signal: those that ran. To be requeued: those that
        ran, and may be. To hold: those that are held now, or will be if they do not start before. To release: those
        that were held by their users.
        """
        asked = list(dict.fromkeys(job_ids))
        if len(asked) <= WISHES_AT_ONCE:
            return await self._wish(kind, asked, origin, signal)
        done: list[int] = []
        for start in range(0, len(asked), WISHES_AT_ONCE):
            async with self._many:
                done += await self._wish(kind, asked[start : start + WISHES_AT_ONCE], origin, signal)
            await asyncio.sleep(0)  # of jobs that are not known, nothing is waited for
        return done

    async def _wish(self, kind: WishKind, asked: list[int], origin: str, signal: SignalName | None) -> list[int]:
        known = [job_id for job_id in asked if self._can(kind, job_id)]
        if known:
            await self.driver.wish(kind, known, origin=origin, signal=signal)
        if kind not in ("hold", "release"):
            return known
        return [job_id for job_id in known if self._is_held(job_id) == (kind == "hold")]

    async def records(self, job_ids: list[int]) -> list[JobRecord]:
        """Return what is known of jobs, of those that ended long ago as well, by number; unknown ones are left out."""
        await self.driver.durable()
        known = self.core.book.records
        found = {job_id: copy.copy(known[job_id]) for job_id in job_ids if job_id in known}
        next_id = self.core.book.next_id
        rest = [job_id for job_id in job_ids if job_id not in found and job_id < next_id]
        found |= await self._history.ended(rest)
        return [found[job_id] for job_id in sorted(found)]

    async def jobs(self, wanted: JobQuery) -> JobPage:
        """Return the jobs that are asked for, the newest first."""
        await self.driver.durable()
        found = await self._known(wanted)
        if wanted.follows is None and (not wanted.state or not set(wanted.state).isdisjoint(OVER)):
            more = msgspec.structs.replace(wanted, limit=wanted.limit + 1)
            for record in await self._history.find_ended(more):
                found.setdefault(record.job_id, record)
        return page_of(found, wanted)

    async def _known(self, wanted: JobQuery) -> dict[int, JobRecord]:
        """Return copies of the newest jobs that are known without the journal: one more than are asked for."""
        found: dict[int, JobRecord] = {}
        async with self._many:
            # Numbers are given out ascending, so the newest are the last.
            for number, (job_id, record) in enumerate(list(reversed(self.core.book.records.items())), 1):
                if len(found) > wanted.limit:
                    break
                if (wanted.below is None or job_id < wanted.below) and matches(record, wanted):
                    found[job_id] = copy.copy(record)
                if not number % RECORDS_AT_ONCE:
                    await asyncio.sleep(0)
        return found

    async def story(self, job_id: int) -> list[Note]:
        """Return what happened to a job here, and why it waited as far as somebody asked, the oldest first."""
        await self.driver.durable()
        notes = await self._history.story(job_id)
        return sorted([*notes, *self._waits.of(job_id)], key=lambda note: note.at_ms)

    def _noted(self, notes: list[NumberedNote], ended: dict[int, JobRecord]) -> None:
        self._events.add(self._event(note, ended) for note in notes)

    def _event(self, note: NumberedNote, others: dict[int, JobRecord]) -> JobEvent:
        record = self.core.book.records.get(note.job_id) or others.get(note.job_id)
        # Of a job that was declined at that very instant nothing is known.
        user, name = ("", "") if record is None else (record.request.user, record.request.name)
        return JobEvent(**msgspec.structs.asdict(note), user=user, name=name)

    async def events(self, after: int, timeout_s: float) -> JobEvents:
        """Return what happened to jobs after an event; wait that long for something to happen.

        After -1, or an event that there is not yet: nothing but the number of the last one, at once.
        """
        if not 0 <= after <= self._events.last:
            return JobEvents(events=[], last=self._events.last)
        await self._events.wait(after, timeout_s)
        found = self._events.after(after, MOST_EVENTS)
        if found is None:
            found = await self._old_events(after)
        return JobEvents(events=found, last=found[-1].number if found else self._events.last)

    async def _old_events(self, after: int) -> list[JobEvent]:
        notes = await self._history.notes(after, MOST_EVENTS)
        rest = sorted({note.job_id for note in notes} - self.core.book.records.keys())
        others = await self._history.ended(rest)
        return [self._event(note, others) for note in notes]

    def _can(self, kind: WishKind, job_id: int) -> bool:
        """Return whether something can be done about such a wish."""
        record = self.core.book.records.get(job_id)
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
        return self.core.book.eligibility.is_wished(job_id)


def queued(record: JobRecord, forecast: Forecast | None = None) -> QueuedJob:
    """Return a job that waits, as everybody may see it, with when it starts and why not sooner if that is known."""
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


class SiteDesk(Desk[SiteDriver]):
    """What is asked of a site: of its own users' jobs, and of itself.

    ``uplink`` says how the way to the grid is; ``read`` reads output that machines have left, as `AgentDriver.part`;
    `away` are the machines that do not answer, as far as whoever carries orders knows.
    """

    methods = (
        *Desk.methods,
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
        "experience",
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
        """Return how the site is."""
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
            busy=tuple(BusyNodes(*each) for each in core.occupied()),
            progress=tuple(JobProgress(*told) for told in core.progress(self.driver.clock.now_ms())),
            uplink=None if self._uplink is None else self._uplink(),
            kept=tuple(KeptNodes(*each) for each in site.core.kept_nodes()),
            users=site.runs.users.words,
            problem=self.driver.peer_problem(GRID),
            fault=recent_fault(),
        )

    async def forecasts(self, job_ids: list[int]) -> list[Forecast]:
        """Return when jobs start that wait here, and why not sooner: of as many as can be told in a second."""
        found, until_s = [], time.monotonic() + EXPLAIN_S
        for job_id in job_ids:
            known = await self.forecast(job_id) if time.monotonic() < until_s else None
            found += [] if known is None else [known]
        return found

    async def about(self) -> list[SiteNames]:
        """Return of what it is made, as the grid's desk does."""
        settings = self.driver.settings
        machines = tuple(machine.name for machine in settings.machines)
        return [SiteNames(settings.name, settings.owner.nodes_for_grid(settings.nodes), machines)]

    async def queue(self, limit: int, explain: bool = False) -> Queue:
        """Return how many jobs there are here in each state, and the first of those of own users that wait.

        With `explain` when they start, and why not sooner, of as many as can be told in a second.
        """
        await self.driver.durable()
        site, records = self.driver.site.core.site, self.core.book.records
        states = Counter(record.state for record in records.values())
        waiting = [job.job_id for job, _ in site.waiting()]
        running = sum(1 for _ in site.running()) - states["starting"] - states["ending"]
        first = list(islice((copy.copy(records[job_id]) for job_id in waiting if job_id in records), limit))
        known = await self._explained(first) if explain else {}
        return Queue(
            waiting=len(waiting),
            held=states["held"],
            starting=states["starting"],
            running=max(0, running),
            ending=states["ending"],
            jobs=[queued(record, known.get(record.job_id)) for record in first],
        )

    async def _explained(self, records: list[JobRecord]) -> dict[int, Forecast | None]:
        """Return the forecasts of jobs, as many as can be worked out in a second; others are answered in between."""
        known: dict[int, Forecast | None] = {}
        until_s = time.monotonic() + EXPLAIN_S
        async with self._many:
            for record in records:
                if time.monotonic() >= until_s:
                    break
                known[record.job_id] = await self.forecast(record.job_id)
                await asyncio.sleep(0)
        return known

    async def drain(self, draining: bool) -> None:
        """Have the site take in nothing new for the grid, or take it in again."""
        await self.driver.drain(draining)

    async def give_up(self, machine: str) -> GivenUp:
        """Have what a machine ran begin anew, unless the machine answers: then its jobs run, and would run twice."""
        name = self.driver.settings.name
        if all(known.name != machine for known in self.driver.settings.machines) or machine in self.away:
            try:
                await self.driver.forget_machine(machine)
            except InputError as error:
                return GivenUp("unknown-machine", str(error))
            return GivenUp()
        reason = (
            f"machine {machine} of site {name} is not known to be away, so what it runs would run twice; "
            "drain the site, or stop the machine's agent first"
        )
        return GivenUp("machine-answers", reason)

    async def experience(self, changes: tuple[KnownTimes, ...]) -> SiteExperience:
        """Return how long jobs take, as far as the site knows, after some changes of that (`ExperienceEdited`)."""
        core, name = self.driver.site.core.site, self.driver.settings.name
        if not core.traits.learns:
            return SiteExperience(site=name, learns=False)
        if changes:
            await self.driver.told(ExperienceEdited(changes))
        await self.driver.durable()
        return SiteExperience(site=name, learns=True, times=list(core.known_times()))

    async def machine_of(self, job_id: int, attempt: int, rank: int) -> str:
        """Return which machine runs a rank of an attempt; empty if none does now."""
        await self.driver.durable()
        return self.driver.site.runs.machine_of(job_id, attempt, rank)

    async def part(self, job_id: int, attempt: int, rank: int, stream: str, offset: int, limit: int) -> OutputRead:
        """Return a part of the output of a rank whose machine cannot be asked, if the site can read it itself."""
        if self._read is None:
            return OutputRead(is_here=False, data=b"", size=0)
        return await asyncio.to_thread(self._read, job_id, attempt, rank, stream, offset, limit)

    async def forecast(self, job_id: int) -> Forecast | None:
        """Return when a job starts that is here, and why not earlier; None if it is not known."""
        await self.driver.durable()
        forecast = self.driver.site.forecast(self.driver.clock.now_ms(), job_id)
        if forecast is not None:
            self._waits.heard(forecast, f"at {self.driver.settings.name}: ")
        return forecast

    async def quote(self, request: JobRequest, for_grid: bool) -> Forecast:
        """Return when a job would start that were handed in now, or delegated by the grid."""
        return self.driver.site.quote(self.driver.clock.now_ms(), request, for_grid=for_grid)

    async def offer(self, request: JobRequest) -> Quoted:
        """Return what the site would quote the grid for a job now."""
        return self.driver.site.offer(self.driver.clock.now_ms(), request)

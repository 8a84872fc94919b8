"""The desk of the grid: what users ask of the meta-scheduler beside handing in jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import islice

import msgspec

from gridweave.grid.api import Forecast, JobEvent, JobEvents, Queue, QueuedJob, Scheduling
from gridweave.grid.forecast_words import record_forecast
from gridweave.grid.live.events import Events
from gridweave.grid.live.grid_driver import GridDriver
from gridweave.site.live.desk import DESK_METHODS, Desk
from gridweave.site.live.desk_messages import SiteNames
from gridweave.site.live.journal_records import NumberedNote
from gridweave.site.program import JobRecord, JobRequest

GRID_METHODS = (*DESK_METHODS, "about", "events", "queue", "forecast", "quote", "scheduling")
"""What may be asked at the desk of the grid through a `Door`."""

MOST_EVENTS = 1_000
"""So many events are told at one time."""


class Foretold(msgspec.Struct, frozen=True):
    """What the meta-scheduler says of a job, if it knows it, and the sites that know more."""

    forecast: Forecast | None
    sites: tuple[str, ...] = ()


class GridDesk(Desk[GridDriver]):
    """What is asked of the meta-scheduler.

    Parameters
    ----------
    driver : GridDriver
        It has taken no turn yet.
    machines : sequence of tuple of str
        The machines of each site, in site order; empty: not known.
    """

    def __init__(self, driver: GridDriver, machines: tuple[tuple[str, ...], ...] = ()) -> None:
        super().__init__(driver, driver.grid, driver.journal)
        self._machines = machines
        # One after the other: threads are there for the journal as well.
        self._forecasting = asyncio.Lock()
        self._events = Events(driver.journal.last_note)
        driver.on_notes = self._noted

    async def about(self) -> list[SiteNames]:
        """Return of which sites the grid is made, in their order."""
        sites = self.driver.settings.sites
        machines = self._machines or ((),) * len(sites)
        return [SiteNames(name, nodes, each) for (name, nodes), each in zip(sites, machines, strict=True)]

    def _noted(self, notes: list[NumberedNote], ended: dict[int, JobRecord]) -> None:
        """Take in what was written into the stories of jobs, and is durable."""
        self._events.add(self._event(note, ended) for note in notes)

    def _event(self, note: NumberedNote, others: dict[int, JobRecord]) -> JobEvent:
        record = self._core.records.get(note.job_id) or others.get(note.job_id)
        # Of a job that was declined at that very instant nothing is known.
        user, name = ("", "") if record is None else (record.request.user, record.request.name)
        return JobEvent(**msgspec.structs.asdict(note), user=user, name=name)

    async def events(self, after: int, timeout_s: float) -> JobEvents:
        """Return what happened to jobs after an event; wait that long for something to happen.

        Parameters
        ----------
        after : int
            -1, or one that there is not yet: none is wanted but the number of the last one, at once.
        timeout_s : float
        """
        if not 0 <= after <= self._events.last:
            return JobEvents(events=[], last=self._events.last)
        await self._events.wait(after, timeout_s)
        found = self._events.after(after, MOST_EVENTS)
        if found is None:
            found = await self._old_events(after)
        return JobEvents(events=found, last=found[-1].number if found else self._events.last)

    async def _old_events(self, after: int) -> list[JobEvent]:
        """Return events from the journal."""
        notes = await asyncio.to_thread(lambda: self._journal.notes(after=after, limit=MOST_EVENTS))
        rest = sorted({note.job_id for note in notes} - self._core.records.keys())
        others = await asyncio.to_thread(self._journal.ended, rest)
        return [self._event(note, others) for note in notes]

    async def queue(self, limit: int) -> Queue:
        """Return how many jobs there are in each state, and the first of those that wait."""
        await self.driver.durable()
        records = self._core.records
        counts = Counter(record.state for record in records.values())
        waiting = (records[job_id] for job_id in self.driver.grid.core.waiting() if job_id in records)
        first = islice((record for record in waiting if record.state == "waiting"), limit)
        states = {state: counts[state] for state in ("waiting", "held", "starting", "running")}
        return Queue(**states, jobs=[_queued(record) for record in first])

    async def forecast(self, job_id: int) -> Foretold:
        """Return when a job starts, and why it waits."""
        found = await self.records([job_id])
        if not found:
            return Foretold(None)
        async with self._forecasting:
            forecaster = self.driver.grid.forecaster(self.driver.clock.now_ms(), job_id)
            if forecaster is None:
                return Foretold(record_forecast(found[0], self.driver.clock.now_ms(), ""))
            forecast = await asyncio.to_thread(forecaster)
        waits_there = self._delegates and forecast.state == "waiting"
        return Foretold(forecast, tuple(name for name, _ in forecast.places) if waits_there else ())

    async def quote(self, request: JobRequest) -> Foretold:
        """Return when such a job would start."""
        async with self._forecasting:
            quoter = self.driver.grid.quoter(self.driver.clock.now_ms(), request)
            forecast = await asyncio.to_thread(quoter)
        large_enough = (site.site for site in forecast.sites if site.nodes >= request.nodes)
        return Foretold(forecast, tuple(large_enough) if self._delegates else ())

    async def scheduling(self) -> Scheduling:
        """Return how the grid schedules."""
        settings = self.driver.settings
        policy = settings.policy
        return Scheduling(
            now_ms=self.driver.clock.now_ms(),
            mode=policy.mode,
            control=policy.control,
            order=policy.order,
            backfill=policy.backfill,
            selection=policy.selection,
            overhead=policy.overheads,
            lower_bound=policy.lower_bound,
            max_fragments=policy.max_fragments,
            links=settings.network is not None,
            margin_ms=settings.margin_ms,
        )

    @property
    def _delegates(self) -> bool:
        """Whether jobs wait in the queues of sites."""
        return self.driver.settings.policy.control != "full"


def _queued(record: JobRecord) -> QueuedJob:
    request = record.request
    return QueuedJob(
        job_id=record.job_id,
        user=request.user,
        nodes=request.nodes,
        limit_ms=request.limit_ms,
        submit_ms=record.submit_ms,
        state=record.state,
    )

"""Users' queries to the meta-scheduler."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from gridweave.grid.api import (
    FragmentLimit,
    GridExperience,
    KnownNetwork,
    PlannedStarts,
    Queue,
    ScheduledJob,
    Scheduling,
    WhatIf,
    WhatIfAnswer,
)
from gridweave.grid.service.driver import GridDriver
from gridweave.grid.service.forecasts import ForecastQueue
from gridweave.site.explain import Forecast, record_forecast
from gridweave.site.job import JobRecord, JobRequest
from gridweave.site.lifecycle import OPEN
from gridweave.site.messages import Quoted, RequestQuote
from gridweave.site.query_messages import SiteNames
from gridweave.site.service.faults import recent_fault
from gridweave.site.service.queries import EXPLAIN_S, Queries, queued

MOST_EXPLAINED = 1_000
"""If more jobs are waiting, lists of jobs have no forecasts; `forecast` still works for a single job."""


class GridQueries(Queries[GridDriver]):
    """Answers users' queries about the grid."""

    methods = (
        *Queries.methods,
        "about",
        "queue",
        "forecast",
        "quote",
        "questions",
        "plan",
        "what_if",
        "network",
        "learnt",
        "scheduling",
    )

    def __init__(self, driver: GridDriver, machines: tuple[tuple[str, ...], ...] = ()) -> None:
        super().__init__(driver, driver.grid, driver.journal)
        self._machines = machines
        self._forecasts = ForecastQueue(driver.grid, driver.clock.now_ms)

    async def about(self) -> list[SiteNames]:
        """Return each site's name, nodes and machines, and why the site is cut off, if it is, in site order."""
        sites = self.driver.settings.sites
        machines = self._machines or ((),) * len(sites)
        problem = self.driver.peer_problem
        return [
            SiteNames(name, nodes, machine_names, problem(name))
            for (name, nodes), machine_names in zip(sites, machines, strict=True)
        ]

    async def queue(self, limit: int, explain: bool = False) -> Queue:
        """Return the number of jobs in each state, and the first waiting jobs.

        With `explain`, the jobs also have forecasts, as many as can be computed within a second; none if the queue is
        too long.
        """
        await self.driver.durable()
        records = self.core.registry.records
        counts = Counter(record.state for record in records.values())
        waiting = (records[job_id] for job_id in self.driver.grid.core.waiting() if job_id in records)
        first = islice((record for record in waiting if record.state == "waiting"), limit)
        states = {state: counts[state] for state in OPEN}
        shown = [copy.copy(record) for record in first]
        forecasts: dict[int, Forecast] = {}
        if explain and counts["waiting"] <= MOST_EXPLAINED:
            forecasts = await self._heard([record.job_id for record in shown], within_s=EXPLAIN_S)
        jobs = [queued(record, forecasts.get(record.job_id)) for record in shown]
        return Queue(**states, jobs=jobs, problem=self.driver.problem, fault=recent_fault())

    async def forecast(self, job_id: int) -> Forecast | None:
        """Forecast when a job starts and explain why it is waiting, as far as the grid knows; None for unknown jobs."""
        records = await self.records([job_id])
        if not records:
            return None
        forecast = (await self._heard([job_id])).get(job_id)
        return forecast or record_forecast(records[0], self.driver.clock.now_ms())

    async def _heard(self, job_ids: Sequence[int], within_s: float | None = None) -> dict[int, Forecast]:
        """Return forecasts of jobs, and record why these jobs are waiting."""
        forecasts = await self._forecasts.of(job_ids, within_s=within_s)
        for forecast in forecasts.values():
            self._waits.heard(forecast)
        return forecasts

    async def quote(
        self, request: JobRequest, instead_of: int | None = None, offers: dict[str, Quoted] | None = None
    ) -> Forecast:
        """Forecast when a job would start, given the sites' offers, optionally in place of a waiting job."""
        grid, clock = self.driver.grid, self.driver.clock
        asked = request, instead_of, offers or {}
        name = None if offers else asked[:2]  # quotes based on sites' offers are valid for one instant only
        return await self._forecasts.alone(lambda: grid.quoter(clock.now_ms(), *asked), name=name)

    async def questions(self, request: JobRequest) -> dict[str, RequestQuote]:
        """Return the quote request to send to each site for a job, if any; `quote` takes the answers as `offers`."""
        return self.driver.grid.questions(self.driver.clock.now_ms(), request)

    async def plan(self, limit: int) -> PlannedStarts:
        """Return when and where up to `limit` waiting jobs start; sites may know more about their own queues."""
        await self.driver.durable()
        starts = await self._forecasts.plan(limit)
        now_ms = starts[0].now_ms if starts else self.driver.clock.now_ms()
        records = self.core.registry.records
        planned = [(records[job.job_id], job) for job in starts if job.job_id in records]
        return PlannedStarts(
            now_ms=now_ms,
            jobs=[planned_job(record, job) for record, job in planned],
            waits_at={record.job_id: job.queues[0] for record, job in planned if len(job.queues) == 1},
        )

    async def what_if(self, asked: WhatIf) -> WhatIfAnswer:
        """Simulate the grid with other settings."""
        await self.driver.durable()
        grid, clock = self.driver.grid, self.driver.clock
        return await self._forecasts.alone(lambda: grid.what_if(clock.now_ms(), asked), name=asked)

    async def network(self) -> KnownNetwork:
        """Return the network between the sites, with the number of running jobs on each link."""
        return self.driver.grid.network()

    async def learnt(self) -> GridExperience:
        """Return what the grid has learned from jobs that have ended."""
        grid = self.driver.grid
        needs = sorted(grid.registry.needs.state(), key=lambda kind: (kind.user, kind.job_class))
        return GridExperience(splits=grid.learnt_splits(), needs=needs)

    async def scheduling(self) -> Scheduling:
        """Return the scheduling settings of the grid."""
        settings = self.driver.settings
        policy = settings.policy
        start_ms, end_ms = self.driver.grid.around_ms() or (None, None)
        return Scheduling(
            now_ms=self.driver.clock.now_ms(),
            mode=policy.mode,
            control=policy.control,
            order=policy.order,
            backfill=policy.backfill,
            selection=policy.selection,
            overhead=policy.overheads,
            lower_bound=policy.lower_bound,
            max_fragments=tuple(FragmentLimit(*limit) for limit in policy.max_fragments),
            links=settings.network is not None,
            margin_ms=settings.margin_ms,
            head_reservation=policy.head_reservation,
            start_ms=start_ms,
            end_ms=end_ms,
        )


def planned_job(record: JobRecord, forecast: Forecast) -> ScheduledJob:
    """Return a waiting job with its expected start, end and placement."""
    length_ms, start_ms = forecast.length_ms or record.request.limit_ms, forecast.start_ms
    span = record.submit_ms, start_ms, None if start_ms is None else start_ms + length_ms
    return ScheduledJob(record.job_id, record.request.user, record.request.name, record.state, *span, forecast.places)

"""What is asked of jobs: listed, shown, explained, cancelled, held, released."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from gridweave.grid.api import Done, Forecast, JobIds, JobPage, JobQuery, QuoteJob, Story
from gridweave.grid.gateway.call import Call, unknown_job
from gridweave.grid.gateway.problems import RefusalError
from gridweave.grid.gateway.submission import request_problem
from gridweave.site.job import JobRecord


class _Change(Protocol):
    """What is done to jobs: `Backend.cancel`, `hold` or `release`."""

    def __call__(self, job_ids: Sequence[int], *, origin: str) -> Awaitable[list[int]]: ...


async def list_jobs(call: Call) -> JobPage:
    """Return a page of jobs, of their user's own unless an operator asks."""
    query: JobQuery = call.query
    if not call.identity.is_operator:
        if query.user not in (None, call.identity.user):
            return JobPage(jobs=[])
        query = msgspec.structs.replace(query, user=call.identity.user)
    page = await call.backend.jobs(query)
    call.jobs = len(page.jobs)
    return page


async def show(call: Call) -> JobRecord:
    """Return what is known of a job."""
    return await call.own_job()


async def story(call: Call) -> Story:
    """Return what happened to a job."""
    record = await call.own_job()
    return Story(job_id=record.job_id, entries=await call.backend.story(record.job_id))


async def forecast(call: Call) -> Forecast:
    """Return when a job starts, and why it waits."""
    record = await call.own_job()
    found = await call.backend.forecast(record.job_id)
    if found is None:
        raise unknown_job(record.job_id)
    return found


async def quote(call: Call) -> Forecast:
    """Return when such a job would start."""
    body: QuoteJob = call.body
    request = body.request
    if not call.identity.is_operator:
        request = msgspec.structs.replace(request, user=call.identity.user)
    problem = request_problem(request)
    if problem is not None:
        raise RefusalError("invalid-request", f"request: {problem}")
    return await call.backend.quote(request)


def change_one(name: str) -> Callable[[Call], Awaitable[Done]]:
    """Return the handler that does something to the job in the path.

    Parameters
    ----------
    name : str
        Of the method of `Backend`.
    """

    async def handler(call: Call) -> Done:
        change: _Change = getattr(call.backend, name)
        record = await call.own_job()
        return Done(job_ids=sorted(await change([record.job_id], origin=call.origin)))

    return handler


def change_many(name: str) -> Callable[[Call], Awaitable[Done]]:
    """Return the handler that does something to the jobs in the body; others' are passed over, as unknown ones are.

    Parameters
    ----------
    name : str
        Of the method of `Backend`.
    """

    async def handler(call: Call) -> Done:
        change: _Change = getattr(call.backend, name)
        body: JobIds = call.body
        most = call.parts.settings.max_jobs
        if len(body.job_ids) > most:
            raise RefusalError("too-many-jobs", f"{len(body.job_ids)} jobs; at most {most} in one request")
        job_ids = sorted(set(body.job_ids))
        call.jobs = len(job_ids)
        if not call.identity.is_operator:
            records = await call.backend.records(job_ids) if job_ids else []
            job_ids = sorted(record.job_id for record in records if call.identity.sees(record.request.user))
        done = await change(job_ids, origin=call.origin) if job_ids else []
        return Done(job_ids=sorted(done))

    return handler

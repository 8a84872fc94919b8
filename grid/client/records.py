"""Fetch the records of many jobs in one request."""

from __future__ import annotations

from gridweave.errors import GridweaveError
from gridweave.grid.api import JobPage
from gridweave.grid.client import arguments
from gridweave.grid.client.transport import Transport
from gridweave.site.job import JobRecord

MOST_TOGETHER = 200
"""Maximum number of jobs per request, to keep the URL below the 8,000 characters that servers accept."""


async def records_of(transport: Transport, job_ids: list[int]) -> list[JobRecord | GridweaveError]:
    """Return, for each job, its record or the error that explains why the record cannot be shown."""
    records: dict[int, JobRecord] = {}
    if len(job_ids) > 1:
        query = [("job", str(job_id)) for job_id in dict.fromkeys(job_ids)] + [("limit", str(len(job_ids)))]
        page = await transport.call("GET", "/v1/jobs", JobPage, query=query)
        records = {record.job_id: record for record in page.jobs}
    return [records.get(job_id) or await _record_or_error(transport, job_id) for job_id in job_ids]


async def _record_or_error(transport: Transport, job_id: int) -> JobRecord | GridweaveError:
    """Fetch one record; if it cannot be shown, return the error, which only a request for a single job gets."""
    try:
        return await transport.call("GET", arguments.job_path(job_id), JobRecord)
    except GridweaveError as error:
        return error

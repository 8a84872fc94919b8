"""Read a journal for users without delaying its writer or other queries.

The writer has the journal's own connection. Queries use a second connection in a separate thread, and read in small
chunks, so that several queries can interleave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import msgspec

from gridweave.errors import UnavailableError
from gridweave.site.job import JobRecord
from gridweave.site.journal.reader import JournalReader
from gridweave.site.journal.records import Note, NumberedNote
from gridweave.site.query_messages import JobQuery

IDS_AT_ONCE = 500
NUMBERS_AT_ONCE = 20_000
"""Number of jobs looked up per chunk, and number of job ids searched per chunk."""

LOOK_S = 8.0
"""Time limit for a job search [s]; shorter than that of a call between actors, so that the error reaches the caller."""

T = TypeVar("T")
P = ParamSpec("P")


class HistoryReader:
    """Reads the records of ended jobs and the histories of all jobs from a journal."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")

    async def _read(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(read, *args, **kwargs))

    async def ended(self, job_ids: Sequence[int]) -> dict[int, JobRecord]:
        """Return job records by job id; jobs that have not ended are omitted."""
        records: dict[int, JobRecord] = {}
        for start in range(0, len(job_ids), IDS_AT_ONCE):
            records |= await self._read(self._reader.ended, job_ids[start : start + IDS_AT_ONCE])
        return records

    async def find_ended(self, query: JobQuery) -> list[JobRecord]:
        """Return the ended jobs that match a query, highest id first; raise UnavailableError after `LOOK_S` seconds."""
        numbers, records = await self._read(self._reader.ended_numbers), list[JobRecord]()
        below = numbers.stop if query.below is None else min(query.below, numbers.stop)
        try:
            async with asyncio.timeout(LOOK_S):
                while below > numbers.start and len(records) < query.limit:
                    first = max(numbers.start, below - NUMBERS_AT_ONCE)
                    rest = msgspec.structs.replace(query, below=below, limit=query.limit - len(records))
                    records += await self._read(self._reader.find_ended, rest, first)
                    below = first
        except TimeoutError:
            problem = "searching all ended jobs takes too long; name a user, or start at a lower number"
            raise UnavailableError(problem) from None
        return records

    async def history(self, job_id: int) -> list[Note]:
        """Return a job's history, oldest event first."""
        return await self._read(self._reader.history, job_id)

    async def notes(self, after: int, limit: int) -> list[NumberedNote]:
        """Return up to ``limit`` history events of all jobs, in order, starting after event number ``after``."""
        return await self._read(self._reader.notes, after=after, limit=limit)

"""Read a journal for users without delaying its writer or other questions.

The writer has the journal's own connection. Questions use another connection and a separate thread, and read in small
chunks, so that the chunks of several questions alternate.
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
"""Number of jobs to look up, and range of job ids to search, in one chunk."""

LOOK_S = 8.0
"""Time limit of a search for jobs; below the limit of a call between actors, so that the reason reaches the caller."""

T = TypeVar("T")
P = ParamSpec("P")


class HistoryReader:
    """The durable records of ended jobs, and the histories of all jobs, in a journal."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")

    async def _read(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(read, *args, **kwargs))

    async def ended(self, job_ids: Sequence[int]) -> dict[int, JobRecord]:
        """Return the records of ended jobs by job id, without the jobs that have not ended."""
        records: dict[int, JobRecord] = {}
        for start in range(0, len(job_ids), IDS_AT_ONCE):
            records |= await self._read(self._reader.ended, job_ids[start : start + IDS_AT_ONCE])
        return records

    async def find_ended(self, query: JobQuery) -> list[JobRecord]:
        """Return the ended jobs that match, highest id first; raise UnavailableError if the search takes too long."""
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
        """Return the history of a job in order."""
        return await self._read(self._reader.history, job_id)

    async def notes(self, after: int, limit: int) -> list[NumberedNote]:
        """Return up to ``limit`` history events of all jobs after number ``after``, in ascending order."""
        return await self._read(self._reader.notes, after=after, limit=limit)

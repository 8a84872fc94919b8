"""Reads for users what a journal keeps, so that no question keeps the journal's writer, or other questions, waiting.

A journal's own connection is its writer's. These questions have another one, and a thread of their own. Each piece of
work is small, and the pieces of all questions take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import msgspec

from gridweave.errors import UnavailableError
from gridweave.site.desk_messages import JobQuery
from gridweave.site.job import JobRecord
from gridweave.site.journal.reader import JournalReader
from gridweave.site.journal.records import Note, NumberedNote

IDS_AT_ONCE = 500
NUMBERS_AT_ONCE = 20_000
"""So many jobs are looked up, and of so many numbers jobs are looked through, in one piece."""

LOOK_S = 8.0
"""So long it is looked for jobs at most: less than a call between actors may take, so that the reason is heard."""

T = TypeVar("T")
P = ParamSpec("P")


class JobHistory:
    """The jobs that are over, and the stories of all jobs, as they are durable in a journal."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")

    async def _read(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(read, *args, **kwargs))

    async def ended(self, job_ids: Sequence[int]) -> dict[int, JobRecord]:
        """Return what is kept of jobs that are over, by their numbers; others are left out."""
        found: dict[int, JobRecord] = {}
        for start in range(0, len(job_ids), IDS_AT_ONCE):
            found |= await self._read(self._reader.ended, job_ids[start : start + IDS_AT_ONCE])
        return found

    async def find_ended(self, query: JobQuery) -> list[JobRecord]:
        """Return jobs that are over, those with the highest numbers first; UnavailableError if that takes too long."""
        numbers, found = await self._read(self._reader.ended_numbers), list[JobRecord]()
        below = numbers.stop if query.below is None else min(query.below, numbers.stop)
        try:
            async with asyncio.timeout(LOOK_S):
                while below > numbers.start and len(found) < query.limit:
                    first = max(numbers.start, below - NUMBERS_AT_ONCE)
                    asked = msgspec.structs.replace(query, below=below, limit=query.limit - len(found))
                    found += await self._read(self._reader.find_ended, asked, first)
                    below = first
        except TimeoutError:
            problem = "a search through all jobs that are over takes too long; name a user, or start at a lower number"
            raise UnavailableError(problem) from None
        return found

    async def story(self, job_id: int) -> list[Note]:
        """Return what happened to a job, in the order in which it was noted."""
        return await self._read(self._reader.story, job_id)

    async def notes(self, after: int, limit: int) -> list[NumberedNote]:
        """Return what happened to jobs after an event, in ascending order, so many at most."""
        return await self._read(self._reader.notes, after=after, limit=limit)

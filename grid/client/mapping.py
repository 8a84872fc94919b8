"""`Client.map`: call a function for each of many items, in jobs of one or several items, and yield the results."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Iterable, Sequence
from contextlib import aclosing, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gridweave.errors import GridweaveError, InputError, JobFailedError, OptionError
from gridweave.site.job import ArrayPlace, JobRecord, JobRequest
from gridweave.site.launch import Call, ItemEnd, json_problem
from gridweave.site.lifecycle import OPEN, JobState

if TYPE_CHECKING:
    import asyncio

    Waited = asyncio.Task[list[Any]]

TAIL_BYTES = 4_000
"""Number of bytes that an error quotes from the end of a failed rank's standard error or an item's traceback."""

_KEPT = 4
"""Maximum number of results held back until earlier results arrive, as a multiple of `at_once`."""

_ITEM_END = msgspec.json.Decoder(ItemEnd)


def called(record: JobRecord) -> Call:
    """Return the callable that a job runs; raise InputError if the job runs a command."""
    call = record.request.program.call
    if call is None:
        raise InputError(f"job {record.job_id} runs a command and so has no result; read its output")
    return call


def outcomes_of(record: JobRecord, data: bytes) -> list[Any]:
    """Return the known outcomes of a job's items, in order: results, or errors for items that raised an exception.

    Parameters
    ----------
    data : bytes
        The result stream of a rank, one line per item; reading stops at an incomplete line.
    """
    outcomes: list[Any] = []
    with suppress(msgspec.DecodeError):
        if not called(record).per_item:
            return [msgspec.json.decode(data)]
        array = record.request.array
        for number, line in enumerate(data.splitlines(), start=0 if array is None else array.index):
            end = _ITEM_END.decode(line)
            outcomes.append(_raised(record.job_id, number, end) if end.error else end.value)
    return outcomes[: len(called(record).args)]


def _raised(job_id: int, number: int, end: ItemEnd) -> JobFailedError:
    why = f"item {number}: {end.error}"
    return JobFailedError(job_id, "failed", why, exit_code=1, stderr_tail=end.trace[-TAIL_BYTES:])


class MappedJob(Protocol):
    """A submitted job."""

    @property
    def id(self) -> int:
        """The job's number."""

    def outcomes(self) -> Coroutine[Any, Any, list[Any]]:
        """Wait until the job has ended, and return the outcome of each of its items."""


class Submits(Protocol):
    """The methods of a client that `Results` needs."""

    async def submit_many(self, requests: Sequence[Any]) -> Sequence[MappedJob]:
        """Submit many jobs."""

    async def cancel(self, job_ids: Sequence[int]) -> list[int]:
        """Cancel jobs."""

    def jobs(self, *, array: str, state: Sequence[JobState]) -> AsyncIterator[JobRecord]:
        """Yield the jobs of an array that are in one of these states."""


class Results:
    """The results of `Client.map`: ``async for`` yields the results in order, ``await`` returns them as a list.

    Jobs are submitted only when iterating or awaiting begins. The results can be iterated or awaited only once.
    """

    def __init__(
        self,
        grid: Submits,
        items: Iterable[Any],
        plain: JobRequest,
        *,
        at_once: int,
        pack: int,
        return_exceptions: bool,
    ) -> None:
        for option, value in (("at_once", at_once), ("pack", pack)):
            if value < 1:
                raise OptionError(option, f"is {value}; at least 1")
        if not isinstance(items, Iterable):
            raise OptionError("items", f"{items!r:.100} is one item; give a list of items")
        self._grid, self._items, self._plain = grid, iter(items), plain
        self._at_once, self._pack, self._return_exceptions = at_once, pack, return_exceptions
        self._array, self._count = f"{plain.name}-{uuid.uuid4().hex[:8]}", 0
        self._is_begun = self._is_submitting = False

    def __aiter__(self) -> AsyncGenerator[Any, None]:
        return self._results()

    def __await__(self) -> Generator[Any, None, list[Any]]:
        return self._all().__await__()

    async def _all(self) -> list[Any]:
        async with aclosing(self._results()) as results:
            return [result async for result in results]

    async def _results(self) -> AsyncGenerator[Any, None]:
        import asyncio

        if self._is_begun:
            raise InputError("these results were already requested; call map again")
        self._is_begun = True
        window: deque[Waited] = deque()
        jobs: dict[Waited, MappedJob] = {}
        try:
            while await self._refill(window, jobs) or window:
                if not window[0].done():
                    await asyncio.wait([task for task in window if not task.done()], return_when="FIRST_COMPLETED")
                    continue
                task = window.popleft()
                del jobs[task]
                for outcome in task.result():
                    if isinstance(outcome, JobFailedError) and not self._return_exceptions:
                        raise outcome
                    yield outcome
        finally:
            await self._abandon(window, jobs)

    async def _refill(self, window: deque[Waited], jobs: dict[Waited, MappedJob]) -> int:
        """Submit new jobs up to the limits, several per request where possible; return the number of new jobs."""
        import asyncio

        under_way = sum(not task.done() for task in window)
        capacity = min(self._at_once - under_way, _KEPT * self._at_once - len(window))
        if under_way and capacity < max(1, self._at_once // 4):
            return 0
        requests: list[JobRequest] = []
        while len(requests) < capacity and (items := tuple(islice(self._items, self._pack))):
            requests.append(self._request(items))
        if requests:
            self._is_submitting = True
            for job in await self._grid.submit_many(requests):
                task = asyncio.get_running_loop().create_task(job.outcomes())
                window.append(task)
                jobs[task] = job
            self._is_submitting = False
        return len(requests)

    def _request(self, items: tuple[Any, ...]) -> JobRequest:
        """Return the request for a job that handles one item or one pack of items."""
        for number, item in enumerate(items, start=self._count):
            if held := json_problem(item):
                raise InputError(f"item {number}: cannot be sent as it is: it holds {held}")
        program = self._plain.program
        assert program.call is not None, "what is mapped is a callable"
        call = Call(program.call.function, items, per_item=self._pack > 1)
        program = msgspec.structs.replace(program, call=call)
        place = ArrayPlace(name=self._array, index=self._count)
        self._count += len(items)
        return msgspec.structs.replace(self._plain, program=program, array=place)

    async def _abandon(self, window: deque[Waited], jobs: dict[Waited, MappedJob]) -> None:
        """Cancel the jobs whose results are no longer needed."""
        import asyncio

        left = [jobs[task].id for task in window if not task.done()]
        for task in window:
            task.cancel()
        await asyncio.gather(*window, return_exceptions=True)
        with suppress(GridweaveError):  # the caller needs the error that ended the map, not one from cleaning up
            if self._is_submitting:  # the request failed or was interrupted, so only the grid knows which jobs exist
                left = [record.job_id async for record in self._grid.jobs(array=self._array, state=OPEN)]
            if left:
                await self._grid.cancel(left)

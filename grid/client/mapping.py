"""`Client.map`: a function called with many items, a job for each, and the results in order."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import aclosing, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from gridweave.errors import GridweaveError, InputError, OptionError
from gridweave.grid.client.requests import Limit, callable_name, checked, limit_ms
from gridweave.site.job import ArrayPlace, JobRequest, Program
from gridweave.site.launch import Call

if TYPE_CHECKING:
    from gridweave.grid.client.client import Client
    from gridweave.grid.client.job import Job

_KEPT = 4
"""Results that came early are kept for so many times the jobs under way; then nothing new is handed in."""


class Results:
    """The results of `Client.map`: ``async for`` yields them in order, ``await`` returns them all.

    Nothing is handed in before one of both is done, and each only once.
    """

    def __init__(
        self,
        client: Client,
        function: Callable[..., Any] | str,
        items: Iterable[Any],
        *,
        nodes: int,
        limit: Limit,
        at_once: int,
        name: str,
        environment: Mapping[str, str] | None,
        working_directory: str | None,
    ) -> None:
        if at_once < 1:
            raise OptionError("at_once", f"is {at_once}; at least 1")
        self._client, self._items, self._at_once = client, iter(items), at_once
        self._function = callable_name(function)
        short = name or self._function.rpartition(":")[2]
        self._array, self._count = f"{short}-{uuid.uuid4().hex[:8]}", 0
        self._plain = checked(
            JobRequest(
                program=Program(
                    call=Call(self._function), environment=dict(environment or {}), working_directory=working_directory
                ),
                nodes=nodes,
                limit_ms=limit_ms(limit),
                name=short,
            )
        )
        self._is_begun = False

    def __aiter__(self) -> AsyncGenerator[Any, None]:
        return self._results()

    def __await__(self) -> Generator[Any, None, list[Any]]:
        return self._all().__await__()

    async def _all(self) -> list[Any]:
        async with aclosing(self._results()) as results:
            return [result async for result in results]

    async def _results(self) -> AsyncGenerator[Any, None]:
        if self._is_begun:
            raise InputError("these results were asked for already; call map again")
        self._is_begun = True
        window: deque[asyncio.Task[Any]] = deque()
        jobs: dict[asyncio.Task[Any], Job] = {}
        try:
            while await self._refill(window, jobs) or window:
                if not window[0].done():
                    await asyncio.wait([task for task in window if not task.done()], return_when="FIRST_COMPLETED")
                    continue
                task = window.popleft()
                del jobs[task]
                yield task.result()
        finally:
            await self._abandon(window, jobs)

    async def _refill(self, window: deque[asyncio.Task[Any]], jobs: dict[asyncio.Task[Any], Job]) -> int:
        """Hand in what there is room for, many at once where it can be; return how many."""
        under_way = sum(not task.done() for task in window)
        room = min(self._at_once - under_way, _KEPT * self._at_once - len(window))
        if under_way and room < max(1, self._at_once // 4):
            return 0
        requests = [self._request(item) for item in islice(self._items, max(room, 0))]
        if requests:
            for job in await self._client.submit_many(requests):
                task = asyncio.get_running_loop().create_task(job.result())
                window.append(task)
                jobs[task] = job
        return len(requests)

    def _request(self, item: Any) -> JobRequest:
        """Return the job of an item."""
        try:
            msgspec.json.encode(item)
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise InputError(f"item {self._count}: cannot be sent, JSON has nothing like it ({error})") from None
        program = msgspec.structs.replace(self._plain.program, call=Call(self._function, (item,)))
        place = ArrayPlace(name=self._array, index=self._count)
        self._count += 1
        return msgspec.structs.replace(self._plain, program=program, array=place)

    async def _abandon(self, window: deque[asyncio.Task[Any]], jobs: dict[asyncio.Task[Any], Job]) -> None:
        """End the jobs that nobody waits for any more."""
        left = [jobs[task].id for task in window if not task.done()]
        for task in window:
            task.cancel()
        await asyncio.gather(*window, return_exceptions=True)
        if left:
            with suppress(GridweaveError):  # what ended the map is what its caller is to hear
                await self._client.cancel(left)

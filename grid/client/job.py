"""A job of a grid, as its user holds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from gridweave.errors import InputError, JobFailedError
from gridweave.grid.api import Forecast, Story
from gridweave.grid.client.streams import Stream, output, text_lines
from gridweave.site.job import JobRecord, State

if TYPE_CHECKING:
    from gridweave.grid.client.client import Client

TAIL_BYTES = 4_000
"""So much of what a failed rank wrote to standard error is in the error."""


class Job:
    """A job that was handed in; made by `Client.submit` and `Client.job`.

    Attributes
    ----------
    id : int
        Its number.
    key : str
        With which it was handed in; empty if this is not known.
    state : str or None
        As it was last heard; None: nothing was asked yet.
    """

    def __init__(self, client: Client, job_id: int, *, key: str = "", state: State | None = None) -> None:
        self.id, self.key, self.state = job_id, key, state
        self._client = client

    def __repr__(self) -> str:
        return f"<job {self.id}, {self.state or 'not asked yet'}>"

    async def record(self) -> JobRecord:
        """Return what is known of it now."""
        record = await self._client.record(self.id)
        self.state = record.state
        return record

    async def done(self, timeout_s: float | None = None) -> JobRecord:
        """Return its record once it has ended, however.

        Parameters
        ----------
        timeout_s : float, optional
            How long to wait at most.

        Raises
        ------
        TimeoutError
            If it has not ended by then; it goes on.
        """
        async with asyncio.timeout(timeout_s):
            record = await self._client.ended(self.id)
        self.state = record.state
        return record

    async def check(self, timeout_s: float | None = None) -> JobRecord:
        """Return its record once it has ended, and ended well.

        Raises
        ------
        JobFailedError
            If it has not; with the exit code, and the end of what that rank wrote to standard error.
        TimeoutError
            If it has not ended in time.
        """
        record = await self.done(timeout_s)
        if record.outcome != "finished":
            raise await self._failure(record)
        return record

    async def result(self, timeout_s: float | None = None, *, rank: int = 0) -> Any:
        """Return what its Python callable has returned, once it has ended well.

        Parameters
        ----------
        rank : int
            Of which rank.

        Returns
        -------
        object
            As JSON has it: a tuple has become a list.

        Raises
        ------
        JobFailedError, TimeoutError
            As for `check`.
        InputError
            If it runs a command in place of a callable.
        """
        record = await self.check(timeout_s)
        if record.request.program.call is None:
            raise InputError(f"job {self.id} runs a command, which returns nothing; read its output")
        data = await self.output(rank=rank, stream="result")
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError:
            raise InputError(
                f"job {self.id}: rank {rank} has left no result: there is no such rank, or its machine has lost it"
            ) from None

    async def cancel(self) -> bool:
        """End it; return whether it had not ended already."""
        return self.id in await self._client.cancel([self.id])

    async def hold(self) -> bool:
        """Keep it from starting; return whether it waited, and now does not start."""
        return self.id in await self._client.hold([self.id])

    async def release(self) -> bool:
        """Let it go into the queue again; return whether it was held."""
        return self.id in await self._client.release([self.id])

    async def explain(self) -> Forecast:
        """Return when it starts, where, and why not sooner."""
        return await self._client.explain(self.id)

    async def story(self) -> Story:
        """Return all that has happened to it."""
        return await self._client.story(self.id)

    async def output(self, *, rank: int = 0, stream: Stream = "out") -> bytes:
        """Return what a rank has written up to now.

        Parameters
        ----------
        stream : str
            ``out``, ``err`` or ``result``.
        """
        parts = output(self._client.transport, self.id, rank=rank, stream=stream)
        return b"".join([data async for data in parts])

    async def logs(self, *, follow: bool = False, rank: int = 0, stream: Stream = "out") -> AsyncGenerator[str, None]:
        """Yield the lines that a rank has written; with `follow` as they come, until the job has ended.

        Parameters
        ----------
        stream : str
            ``out`` or ``err``.
        """
        parts = output(self._client.transport, self.id, rank=rank, stream=stream, follow=follow)
        async with aclosing(text_lines(parts)) as lines:
            async for line in lines:
                yield line

    async def _failure(self, record: JobRecord) -> JobFailedError:
        """Return the error of a job that has not ended well."""
        rank, code, signal = record.exit_codes[0] if record.exit_codes else (0, None, None)
        tail = b""
        if record.start_ms is not None:
            async for data in output(self._client.transport, self.id, rank=rank, stream="err"):
                tail = (tail + data)[-TAIL_BYTES:]
        return JobFailedError(
            self.id,
            record.outcome or record.state,
            record.reason,
            exit_code=128 + signal if signal is not None else code,
            stderr_tail=tail.decode(errors="replace"),
        )

"""`SyncClient` and `SyncJobHandle`: the blocking versions of `Client` and `JobHandle`.

Each method has the same name and arguments as its asynchronous counterpart, and waits for the result.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from gridweave.errors import InputError
from gridweave.grid.client.arguments import AnyJob
from gridweave.grid.client.client import Client, JobHandle
from gridweave.site.lifecycle import JobState

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")
Original = TypeVar("Original")
"""The asynchronous class: `Client` or `JobHandle`."""


class _Loop:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gridweave-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine and return its result; an interrupt cancels the coroutine."""
        if self._loop.is_closed():
            work.close()
            raise InputError("the client was closed; open another: with gridweave.SyncClient() as grid")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise InputError("the client was closed during the call") from None
        finally:
            if not future.done():
                future.cancel()

    def iterate(self, source: AsyncIterator[T]) -> Generator[T, None, None]:
        """Yield the items of an asynchronous iterator, and close the iterator once the caller stops."""
        try:
            while True:
                try:
                    yield self.run(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            if isinstance(source, AsyncGenerator) and not self._loop.is_closed():
                self.run(_close(source))

    def close(self) -> None:
        """Close unfinished generators and end the thread."""
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)


async def _close(source: AsyncGenerator[Any, None]) -> None:
    await source.aclose()


# -- blocking methods from asynchronous ones


class _Blocking(ABC, Generic[Original]):
    """The blocking version of an asynchronous object."""

    _original: Original

    @property
    @abstractmethod
    def _loop(self) -> _Loop: ...


def _made(
    method: Callable[Concatenate[Original, P], Coroutine[Any, Any, T]], make: Callable[[T, _Loop], U]
) -> Callable[Concatenate[_Blocking[Original], P], U]:
    """Return the blocking version of a coroutine method; `make` converts the result."""

    @functools.wraps(method)
    def waiting(self: _Blocking[Original], /, *args: P.args, **kwargs: P.kwargs) -> U:
        loop = self._loop
        return make(loop.run(method(self._original, *args, **kwargs)), loop)

    return waiting


def _answer(answer: T, loop: _Loop) -> T:
    return answer


def _awaited(
    method: Callable[Concatenate[Original, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Blocking[Original], P], T]:
    """Return the blocking version of a coroutine method."""
    return _made(method, _answer)


def _each(
    method: Callable[Concatenate[Original, P], AsyncIterable[T]],
) -> Callable[Concatenate[_Blocking[Original], P], Generator[T, None, None]]:
    """Return the blocking version of a method that returns an asynchronous iterator."""

    @functools.wraps(method)
    def yielding(self: _Blocking[Original], /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return self._loop.iterate(aiter(method(self._original, *args, **kwargs)))

    return yielding


def _as(
    method: Callable[Concatenate[Original, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[_Blocking[Original], P], None]]:
    """Return a decorator that gives a function the signature and docstring of `method`."""

    def with_parameters(own: Callable[..., None]) -> Callable[Concatenate[_Blocking[Original], P], None]:
        return functools.wraps(method)(own)

    return with_parameters


# -- the public classes


class SyncJobHandle(_Blocking[JobHandle]):
    """A submitted job, returned by `SyncClient.submit` and `SyncClient.job`; the blocking version of `JobHandle`."""

    def __init__(self, job: JobHandle, loop: _Loop) -> None:
        self._original, self._running = job, loop

    def __repr__(self) -> str:
        return repr(self._original)

    @property
    def _loop(self) -> _Loop:
        return self._running

    @property
    def id(self) -> int:
        """The job's number."""
        return self._original.id

    @property
    def key(self) -> str:
        """The idempotency key of the submission; empty if unknown."""
        return self._original.key

    @property
    def state(self) -> JobState | None:
        """The state in the most recently fetched record; None if no record has been fetched."""
        return self._original.state

    record = _awaited(JobHandle.record)
    done = _awaited(JobHandle.done)
    check = _awaited(JobHandle.check)
    result = _awaited(JobHandle.result)
    outcomes = _awaited(JobHandle.outcomes)
    cancel = _awaited(JobHandle.cancel)
    signal = _awaited(JobHandle.signal)
    requeue = _awaited(JobHandle.requeue)
    hold = _awaited(JobHandle.hold)
    release = _awaited(JobHandle.release)
    explain = _awaited(JobHandle.explain)
    history = _awaited(JobHandle.history)
    output = _awaited(JobHandle.output)
    logs = _each(JobHandle.logs)


def _sync_jobs(jobs: list[JobHandle], loop: _Loop) -> list[SyncJobHandle]:
    return [SyncJobHandle(job, loop) for job in jobs]


class SyncClient(_Blocking[Client]):
    """Client of a grid's gateway; a context manager. The blocking version of `Client`.

    It runs an event loop in its own thread, so it works in a notebook, which already has a running loop.

    Parameters
    ----------
    url, token, ca, site, plain_http, profile, grid, patience, rng, sleep, connection
        As for `Client`.
    """

    @_as(Client.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._original = Client(*args, **kwargs)
        self.connection = self._original.connection
        self._running: _Loop | None = None

    def __enter__(self) -> Self:
        loop = _Loop()
        try:
            loop.run(self._original.__aenter__())
        except BaseException:
            loop.close()
            raise
        self._running = loop
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop, self._running = self._loop, None
        try:
            loop.run(self._original.__aexit__(kind, error, trace))
        finally:
            loop.close()

    @property
    def _loop(self) -> _Loop:
        if self._running is None:
            raise InputError("the client is not open; write: with gridweave.SyncClient() as grid")
        return self._running

    submit = _made(Client.submit, SyncJobHandle)
    submit_many = _made(Client.submit_many, _sync_jobs)
    map = _each(Client.map)

    def job(self, job_id: AnyJob) -> SyncJobHandle:
        """Return a handle for a job by its number, without a request to the grid."""
        return SyncJobHandle(self._original.job(job_id), self._loop)

    jobs = _each(Client.jobs)
    record = _awaited(Client.record)
    ended = _awaited(Client.ended)
    apply_action = _awaited(Client.apply_action)
    cancel = _awaited(Client.cancel)
    signal = _awaited(Client.signal)
    requeue = _awaited(Client.requeue)
    hold = _awaited(Client.hold)
    release = _awaited(Client.release)
    explain = _awaited(Client.explain)
    history = _awaited(Client.history)
    usage = _awaited(Client.usage)
    events = _each(Client.events)
    sites = _awaited(Client.sites)
    queue = _awaited(Client.queue)
    scheduling = _awaited(Client.scheduling)
    network = _awaited(Client.network)
    known_network = _awaited(Client.known_network)
    quote = _awaited(Client.quote)
    what_if = _awaited(Client.what_if)
    ask_discipline = _awaited(Client.ask_discipline)
    learnt_splits = _awaited(Client.learnt_splits)
    learnt_needs = _awaited(Client.learnt_needs)
    drain = _awaited(Client.drain)
    resume = _awaited(Client.resume)
    give_up = _awaited(Client.give_up)
    whoami = _awaited(Client.whoami)
    short_token = _awaited(Client.short_token)
    login_link = _awaited(Client.login_link)
    health = _awaited(Client.health)

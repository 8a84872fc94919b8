"""`SyncClient`: a grid from plain Python, for scripts and notebooks; the same names as in `Client`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from gridweave.errors import InputError
from gridweave.grid import api
from gridweave.grid.client.client import HOUR, Client
from gridweave.grid.client.configuration import Connection
from gridweave.grid.client.job import Job
from gridweave.grid.client.requests import Afters, Limit, Runnable
from gridweave.grid.client.streams import Stream
from gridweave.grid.client.transport import Patience, Sleep
from gridweave.site.job import ArrayPlace, JobRecord, JobRequest, State, Where, WishKind

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gridweave-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what comes of some work; an interrupt, or whatever ends the wait for it, ends the work as well."""
        if self._loop.is_closed():
            work.close()
            raise InputError("the client was closed; open another: with gridweave.SyncClient() as grid")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise InputError("the client was closed meanwhile") from None
        finally:
            if not future.done():
                future.cancel()

    def each(self, source: AsyncIterator[T]) -> Generator[T, None, None]:
        """Yield what comes, and close the source when nobody wants more."""
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
        """End the thread, and what was begun to be read and is not any more."""
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)


async def _close(source: AsyncGenerator[Any, None]) -> None:
    await source.aclose()


class SyncJob:
    """A job that was handed in; made by `SyncClient.submit` and `SyncClient.job`. As `Job`, but nothing is awaited."""

    def __init__(self, job: Job, loop: _Loop) -> None:
        self._job, self._loop = job, loop

    def __repr__(self) -> str:
        return repr(self._job)

    @property
    def id(self) -> int:
        """Its number."""
        return self._job.id

    @property
    def key(self) -> str:
        """With which it was handed in; empty if this is not known."""
        return self._job.key

    @property
    def state(self) -> State | None:
        """As it was last heard; None: nothing was asked yet."""
        return self._job.state

    def record(self) -> JobRecord:
        """See `Job.record`."""
        return self._loop.run(self._job.record())

    def done(self, timeout_s: float | None = None) -> JobRecord:
        """See `Job.done`."""
        return self._loop.run(self._job.done(timeout_s))

    def check(self, timeout_s: float | None = None) -> JobRecord:
        """See `Job.check`."""
        return self._loop.run(self._job.check(timeout_s))

    def result(self, timeout_s: float | None = None, *, rank: int = 0) -> Any:
        """See `Job.result`."""
        return self._loop.run(self._job.result(timeout_s, rank=rank))

    def cancel(self) -> bool:
        """See `Job.cancel`."""
        return self._loop.run(self._job.cancel())

    def hold(self) -> bool:
        """See `Job.hold`."""
        return self._loop.run(self._job.hold())

    def release(self) -> bool:
        """See `Job.release`."""
        return self._loop.run(self._job.release())

    def explain(self) -> api.Forecast:
        """See `Job.explain`."""
        return self._loop.run(self._job.explain())

    def story(self) -> api.Story:
        """See `Job.story`."""
        return self._loop.run(self._job.story())

    def output(self, *, rank: int = 0, stream: Stream = "out") -> bytes:
        """See `Job.output`."""
        return self._loop.run(self._job.output(rank=rank, stream=stream))

    def logs(self, *, follow: bool = False, rank: int = 0, stream: Stream = "out") -> Generator[str, None, None]:
        """See `Job.logs`."""
        return self._loop.each(self._job.logs(follow=follow, rank=rank, stream=stream))


class SyncClient:
    """A grid, reached through its gateway; a context manager. As `Client`, but nothing is awaited.

    It has an event loop in a thread of its own, so that it works in a notebook, whose loop runs already.

    Parameters
    ----------
    url, token, ca, site, plain_http, profile, grid, patience, rng, sleep, connection
        As for `Client`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        ca: str | None = None,
        site: str | None = None,
        plain_http: bool | None = None,
        profile: str | None = None,
        grid: str | None = None,
        patience: Patience | None = None,
        rng: np.random.Generator | None = None,
        sleep: Sleep = asyncio.sleep,
        connection: Connection | None = None,
    ) -> None:
        self._client = Client(
            url,
            token,
            ca=ca,
            site=site,
            plain_http=plain_http,
            profile=profile,
            grid=grid,
            patience=patience,
            rng=rng,
            sleep=sleep,
            connection=connection,
        )
        self.connection = self._client.connection
        self._running: _Loop | None = None

    def __enter__(self) -> Self:
        loop = _Loop()
        try:
            loop.run(self._client.__aenter__())
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
            loop.run(self._client.__aexit__(kind, error, trace))
        finally:
            loop.close()

    @property
    def _loop(self) -> _Loop:
        if self._running is None:
            raise InputError("the client is not open; write: with gridweave.SyncClient() as grid")
        return self._running

    def submit(
        self,
        what: Runnable,
        *,
        nodes: int = 1,
        limit: Limit = HOUR,
        name: str = "",
        site: str | None = None,
        environment: Mapping[str, str] | None = None,
        working_directory: str | None = None,
        ranks: Where = "each-node",
        if_lost: Literal["requeue", "fail"] = "requeue",
        hold: bool = False,
        after: Afters = (),
        array: ArrayPlace | None = None,
        priority: float = 0.0,
        job_class: str = "",
        user: str = "",
        key: str | None = None,
    ) -> SyncJob:
        """See `Client.submit`."""
        handing_in = self._client.submit(
            what,
            nodes=nodes,
            limit=limit,
            name=name,
            site=site,
            environment=environment,
            working_directory=working_directory,
            ranks=ranks,
            if_lost=if_lost,
            hold=hold,
            after=after,
            array=array,
            priority=priority,
            job_class=job_class,
            user=user,
            key=key,
        )
        return SyncJob(self._loop.run(handing_in), self._loop)

    def submit_many(
        self, requests: Iterable[JobRequest], *, site: str | None = None, keys: Sequence[str] | None = None
    ) -> list[SyncJob]:
        """See `Client.submit_many`."""
        jobs = self._loop.run(self._client.submit_many(requests, site=site, keys=keys))
        return [SyncJob(job, self._loop) for job in jobs]

    def map(
        self,
        function: Callable[..., Any] | str,
        items: Iterable[Any],
        *,
        nodes: int = 1,
        limit: Limit = HOUR,
        at_once: int = 100,
        name: str = "",
        environment: Mapping[str, str] | None = None,
        working_directory: str | None = None,
    ) -> Generator[Any, None, None]:
        """See `Client.map`; yields the results in the order of the items, as they come."""
        results = self._client.map(
            function,
            items,
            nodes=nodes,
            limit=limit,
            at_once=at_once,
            name=name,
            environment=environment,
            working_directory=working_directory,
        )
        return self._loop.each(aiter(results))

    def job(self, job_id: int) -> SyncJob:
        """See `Client.job`."""
        return SyncJob(self._client.job(job_id), self._loop)

    def jobs(
        self,
        *,
        own: str = "",
        user: str | None = None,
        name: str | None = None,
        array: str | None = None,
        site: str | None = None,
        state: Sequence[State] = (),
        outcome: Sequence[str] = (),
        below: int | None = None,
        limit: int | None = None,
    ) -> Generator[JobRecord, None, None]:
        """See `Client.jobs`."""
        found = self._client.jobs(
            own=own,
            user=user,
            name=name,
            array=array,
            site=site,
            state=state,
            outcome=outcome,
            below=below,
            limit=limit,
        )
        return self._loop.each(found)

    def record(self, job_id: int) -> JobRecord:
        """See `Client.record`."""
        return self._loop.run(self._client.record(job_id))

    def ended(self, job_id: int) -> JobRecord:
        """See `Client.ended`."""
        return self._loop.run(self._client.ended(job_id))

    def wish(self, kind: WishKind, job_ids: Iterable[int]) -> list[int]:
        """See `Client.wish`."""
        return self._loop.run(self._client.wish(kind, job_ids))

    def cancel(self, job_ids: Iterable[int]) -> list[int]:
        """See `Client.cancel`."""
        return self._loop.run(self._client.cancel(job_ids))

    def hold(self, job_ids: Iterable[int]) -> list[int]:
        """See `Client.hold`."""
        return self._loop.run(self._client.hold(job_ids))

    def release(self, job_ids: Iterable[int]) -> list[int]:
        """See `Client.release`."""
        return self._loop.run(self._client.release(job_ids))

    def explain(self, job_id: int) -> api.Forecast:
        """See `Client.explain`."""
        return self._loop.run(self._client.explain(job_id))

    def story(self, job_id: int) -> api.Story:
        """See `Client.story`."""
        return self._loop.run(self._client.story(job_id))

    def events(
        self,
        *,
        after: int | None = None,
        jobs: Sequence[int] = (),
        kinds: Sequence[str] = (),
        user: str | None = None,
    ) -> Generator[api.JobEvent, None, None]:
        """See `Client.events`."""
        return self._loop.each(self._client.events(after=after, jobs=jobs, kinds=kinds, user=user))

    def sites(self) -> list[api.SiteInfo]:
        """See `Client.sites`."""
        return self._loop.run(self._client.sites())

    def queue(self, limit: int = 100) -> api.Queue:
        """See `Client.queue`."""
        return self._loop.run(self._client.queue(limit))

    def scheduling(self) -> api.Scheduling:
        """See `Client.scheduling`."""
        return self._loop.run(self._client.scheduling())

    def quote(self, what: Runnable = ("true",), *, nodes: int = 1, limit: Limit = HOUR) -> api.Forecast:
        """See `Client.quote`."""
        return self._loop.run(self._client.quote(what, nodes=nodes, limit=limit))

    def drain(self, site: str) -> None:
        """See `Client.drain`."""
        self._loop.run(self._client.drain(site))

    def resume(self, site: str) -> None:
        """See `Client.resume`."""
        self._loop.run(self._client.resume(site))

    def whoami(self) -> api.TokenInfo:
        """See `Client.whoami`."""
        return self._loop.run(self._client.whoami())

    def health(self) -> api.Health:
        """See `Client.health`."""
        return self._loop.run(self._client.health())

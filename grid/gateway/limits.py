"""Limits on request rates, concurrent requests, memory, and each user's open jobs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from gridweave.errors import UnavailableError
from gridweave.grid.api import MOST_LISTED, JobEvent, JobQuery
from gridweave.grid.backend import Backend
from gridweave.grid.gateway.problems import RefusalError
from gridweave.site.job import Accepted, Declined, JobRecord
from gridweave.site.lifecycle import OPEN, OVER

_MOST_KNOWN = 10_000

T = TypeVar("T")


class Rates:
    """A token bucket for each client.

    Examples
    --------
    >>> times = iter([0.0, 0.0, 0.0, 0.5])
    >>> rates = Rates(2.0, 2.0, lambda: next(times))
    >>> rates.wait_s("anna"), rates.wait_s("anna"), rates.wait_s("anna"), rates.wait_s("anna")
    (0.0, 0.0, 0.5, 0.0)
    """

    def __init__(self, per_s: float, burst: float, now_s: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = max(1.0, burst)
        self._now_s = now_s
        # By client: the level of the bucket, and the time it was measured.
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait_s(self, client: str) -> float:
        """Take a token from a client's bucket and return 0, or return the seconds until the bucket has one."""
        now_s = self._now_s()
        level, at_s = self._buckets.get(client, (self._burst, now_s))
        level = min(self._burst, level + (now_s - at_s) * self._per_s)
        if level < 1.0:
            self._buckets[client] = (level, now_s)
            return (1.0 - level) / self._per_s
        self._buckets[client] = (level - 1.0, now_s)
        if len(self._buckets) > _MOST_KNOWN:
            self._forget_full(now_s)
        return 0.0

    def needed_s(self, client: str) -> float:
        """Return the seconds until a client's bucket has a token, without taking one."""
        now_s = self._now_s()
        level, at_s = self._buckets.get(client, (self._burst, now_s))
        return max(0.0, (1.0 - level) / self._per_s - (now_s - at_s))

    def _forget_full(self, now_s: float) -> None:
        self._buckets = {
            client: (level, at_s)
            for client, (level, at_s) in self._buckets.items()
            if level + (now_s - at_s) * self._per_s < self._burst
        }


class Slots:
    """Limits how many requests or streams each user may have open at once."""

    def __init__(self, most: int, kind: str, what: str) -> None:
        self._most = most
        self._kind = kind
        self._what = what
        self._taken: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, user: str) -> Iterator[None]:
        """Hold one slot within the block, or raise RefusalError."""
        if self._taken[user] >= self._most:
            problem = f"{self._taken[user]} {self._what} are open; close one, or wait until one ends"
            raise RefusalError(self._kind, problem, retry_after_s=1.0)
        self._taken[user] += 1
        try:
            yield
        finally:
            self._taken[user] -= 1
            if not self._taken[user]:
                del self._taken[user]

    def total(self) -> int:
        """Return the number of slots held by all users."""
        return self._taken.total()


class Turns:
    """Runs each user's work one at a time, in order of arrival.

    A caller that is cancelled while waiting gives up its turn. Work that has begun continues and keeps its turn,
    because the grid is still working on it.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def take(self, user: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the user's turn, then run the work and return its result."""
        lock = self._locks.setdefault(user, asyncio.Lock())
        await lock.acquire()
        task = asyncio.get_running_loop().create_task(work())

        def done(task: asyncio.Task[T]) -> None:
            lock.release()
            if not task.cancelled():
                task.exception()  # errors are for the caller; asyncio must not log them if the caller is gone

        task.add_done_callback(done)
        return await asyncio.shield(task)


class Memory:
    """Limits the bytes that all requests together may hold in memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    @contextlib.contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes or raises RefusalError; leaving the block releases all of them."""
        mine = 0

        def take(count: int) -> None:
            nonlocal mine
            if self.held + count > self._most:
                problem = "the bodies of other requests fill all the memory reserved for them"
                raise RefusalError("busy", problem, retry_after_s=1.0)
            self.held += count
            mine += count

        try:
            yield take
        finally:
            self.held -= mine


_KEYS = 20_000
"""Number of recent idempotency keys remembered: at least this many, at most twice as many."""

_PATIENCE_S = 10.0


class OpenJobs:
    """Counts each user's open jobs: they are read from the grid at startup, then updated by events."""

    def __init__(self, backend: Backend, most: int) -> None:
        self._backend = backend
        self._most = most
        self._users: dict[int, str] = {}
        self._counts: Counter[str] = Counter()
        # Jobs that are being submitted.
        self._coming: Counter[str] = Counter()
        # Jobs up to this id are known; a job that is missing in `_users` has ended.
        self._newest = 0
        self._is_known = asyncio.Event()
        # Keys of submitted jobs, in two generations. Submitting such a key again creates no job.
        self._keys: set[str] = set()
        self._older_keys: set[str] = set()
        self._doubtful: deque[int] = deque()
        self._doubt = asyncio.Event()

    async def load(self) -> None:
        """Read the open jobs; `heard` must already be receiving all events."""
        newest = (await self._backend.jobs(JobQuery(limit=1))).jobs
        users: dict[int, str] = {}
        async for page in _pages(self._backend, JobQuery(state=OPEN, limit=MOST_LISTED)):
            users |= {record.job_id: record.request.user for record in page}
        self._users = users
        self._counts = Counter(users.values())
        self._newest = max([*users, *(record.job_id for record in newest)], default=0)
        self._is_known.set()

    async def loaded(self) -> None:
        """Wait until the open jobs have been read; raise UnavailableError if that takes more than 10 seconds."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._is_known.wait()
        except TimeoutError:
            problem = "the grid has not reported yet how many jobs each user has; try again"
            raise UnavailableError(problem) from None

    def heard(self, events: Sequence[JobEvent]) -> None:
        """Update the counts from job events."""
        for seen in events:
            if seen.kind == "submitted":
                self._opened(seen.job_id, seen.user)
            elif seen.kind == "ended":
                self._over(seen.job_id)
            elif seen.kind == "refused" and seen.job_id in self._users:
                # Refused by one site or by the grid? The record has the answer.
                self._doubtful.append(seen.job_id)
                self._doubt.set()

    async def settle(self) -> None:
        """Run forever and look up jobs whose events do not show whether they have ended."""
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            doubtful = list(dict.fromkeys(self._doubtful))
            self._doubtful.clear()
            for start in range(0, len(doubtful), MOST_LISTED):
                part = doubtful[start : start + MOST_LISTED]
                try:
                    records = await self._backend.records(part)
                except UnavailableError:
                    self._doubtful.extend(doubtful[start:])
                    self._doubt.set()
                    await asyncio.sleep(1.0)
                    break
                for record in records:
                    if record.state in OVER:
                        self._over(record.job_id)

    def count(self, user: str) -> int:
        """Return the number of a user's open jobs."""
        return self._counts[user]

    @contextlib.contextmanager
    def admitting(self, jobs: Sequence[tuple[str, str]]) -> Iterator[Callable[[Sequence[Accepted | Declined]], None]]:
        """Admit jobs (key, user), or refuse them if a user has too many; yield a function to call with the answers."""
        assert self._is_known.is_set(), "it is waited for before"
        new = Counter(user for key, user in jobs if key not in self._keys and key not in self._older_keys)
        for user, count in sorted(new.items()):
            check_count(user, count, self._counts[user] + self._coming[user], self._most)
        self._coming += new
        try:
            yield functools.partial(self._count_accepted, jobs)
        finally:
            self._coming -= new

    def _count_accepted(self, jobs: Sequence[tuple[str, str]], answers: Sequence[Accepted | Declined]) -> None:
        """Count the accepted jobs."""
        for (key, user), answer in zip(jobs, answers, strict=True):
            if isinstance(answer, Accepted):
                self._keys.add(key)
                if answer.job_id > self._newest and answer.job_id not in self._users:
                    # No event of this job has arrived yet, so the event of its end is still to come.
                    self._users[answer.job_id] = user
                    self._counts[user] += 1
        if len(self._keys) > _KEYS:
            self._keys, self._older_keys = set(), self._keys

    def _opened(self, job_id: int, user: str) -> None:
        if job_id > self._newest:
            self._newest = job_id
            if job_id not in self._users:
                self._users[job_id] = user
                self._counts[user] += 1

    def _over(self, job_id: int) -> None:
        user = self._users.pop(job_id, None)
        if user is not None:
            self._counts[user] -= 1
            if not self._counts[user]:
                del self._counts[user]


def check_count(user: str, new: int, are_open: int, most: int) -> None:
    """Raise RefusalError if a user would have too many open jobs."""
    if are_open + new > most:
        problem = f"{user or 'nobody'} has {are_open} open jobs and submits {new} more; at most {most}"
        raise RefusalError("too-many-open-jobs", f"{problem}: wait until some have ended, or cancel some")


async def open_at_site(backend: Backend, site: str, user: str, most: int) -> int:
    """Return the number of a user's open jobs at a site, counted up to `most`."""
    count = 0
    async for page in _pages(backend, JobQuery(own=site, user=user, state=OPEN, limit=MOST_LISTED)):
        count += len(page)
        if count >= most:
            break
    return count


async def _pages(backend: Backend, query: JobQuery) -> AsyncGenerator[list[JobRecord], None]:
    """Yield all jobs that match a query, page by page."""
    page = await backend.jobs(query)
    while page.jobs:
        yield page.jobs
        if page.below is None:
            return
        page = await backend.jobs(msgspec.structs.replace(query, below=page.below))

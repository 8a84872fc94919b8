"""Limits: requests in a time and at once, bytes that are held, and the jobs of each user that are not over."""

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
from gridweave.grid.gateway.backend import Backend
from gridweave.grid.gateway.problems import RefusalError
from gridweave.site.job import Accepted, Declined, JobRecord
from gridweave.site.lifecycle import OPEN, OVER

_MOST_KNOWN = 10_000

T = TypeVar("T")


class Rates:
    """How fast each client may make requests: a bucket of tokens each, filled steadily.

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
        # Of each client: how much was in its bucket, and when.
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait_s(self, client: str) -> float:
        """Take one out of the bucket of a client; return after which time there would be one, if there is none."""
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
        """Return after which time there would be one in the bucket of a client; nothing is taken out."""
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
    """How many of something each user has at once; more are refused."""

    def __init__(self, most: int, kind: str, what: str) -> None:
        self._most = most
        self._kind = kind
        self._what = what
        self._taken: Counter[str] = Counter()

    @contextlib.contextmanager
    def one(self, user: str) -> Iterator[None]:
        """Have one more until the end of the block, or refuse."""
        if self._taken[user] >= self._most:
            problem = f"{self._taken[user]} {self._what} are open; wait until one is over, or end one"
            raise RefusalError(self._kind, problem, retry_after_s=1.0)
        self._taken[user] += 1
        try:
            yield
        finally:
            self._taken[user] -= 1
            if not self._taken[user]:
                del self._taken[user]

    def total(self) -> int:
        """Return how many there are of all users together."""
        return self._taken.total()


class Turns:
    """Lets one piece of work of each user be under way; what else they ask for waits for its turn, in order.

    Whoever is cancelled while it waits gives up its turn. Work that is under way goes on, and so keeps the user's turn,
    when nobody waits for it any more: the grid works on it as well.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def take(self, user: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what work returns, which begins when it is the user's turn."""
        lock = self._locks.setdefault(user, asyncio.Lock())
        await lock.acquire()
        task = asyncio.get_running_loop().create_task(work())

        def done(task: asyncio.Task[T]) -> None:
            lock.release()
            if not task.cancelled():
                task.exception()  # whoever waits hears of it; if nobody does, it is no error of the gateway

        task.add_done_callback(done)
        return await asyncio.shield(task)


class Memory:
    """How many bytes of bodies all requests together may hold."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    @contextlib.contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """Yield what lets one request hold more bytes, or refuses; all are given back at the end of the block."""
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
"""So many keys at least are known of the jobs that were taken in last, and twice as many at most."""

_PATIENCE_S = 10.0


class OpenJobs:
    """The jobs of the grid that are not over, by user: read at the start, and kept by what happens since then."""

    def __init__(self, backend: Backend, most: int) -> None:
        self._backend = backend
        self._most = most
        self._users: dict[int, str] = {}
        self._counts: Counter[str] = Counter()
        # Jobs that are being handed in.
        self._coming: Counter[str] = Counter()
        # All jobs of the grid up to this number are known, so that one that is not there is over.
        self._newest = 0
        self._is_known = asyncio.Event()
        # Keys of jobs that were taken in, the newer ones and those before: handed in again they are no new jobs.
        self._keys: set[str] = set()
        self._older_keys: set[str] = set()
        self._doubtful: deque[int] = deque()
        self._doubt = asyncio.Event()

    async def load(self) -> None:
        """Read which jobs are open; the events from before that are to be heard too."""
        newest = (await self._backend.jobs(JobQuery(limit=1))).jobs
        found: dict[int, str] = {}
        async for page in _pages(self._backend, JobQuery(state=OPEN, limit=MOST_LISTED)):
            found |= {record.job_id: record.request.user for record in page}
        self._users = found
        self._counts = Counter(found.values())
        self._newest = max([*found, *(record.job_id for record in newest)], default=0)
        self._is_known.set()

    async def known(self) -> None:
        """Return once it is known which jobs are open: soon after the start, if the grid answers."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._is_known.wait()
        except TimeoutError:
            problem = "it is not known yet how many jobs each user has, as the grid has not answered; try again"
            raise UnavailableError(problem) from None

    def heard(self, events: Sequence[JobEvent]) -> None:
        """Take in what has happened to jobs."""
        for seen in events:
            if seen.kind == "submitted":
                self._opened(seen.job_id, seen.user)
            elif seen.kind == "ended":
                self._over(seen.job_id)
            elif seen.kind == "refused" and seen.job_id in self._users:
                # By one site, or for good? The record tells.
                self._doubtful.append(seen.job_id)
                self._doubt.set()

    async def settle(self) -> None:
        """Find out, without end, of jobs of which it is not clear whether they are over."""
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
        """Return how many jobs of a user are open."""
        return self._counts[user]

    @contextlib.contextmanager
    def admitting(self, jobs: Sequence[tuple[str, str]]) -> Iterator[Callable[[Sequence[Accepted | Declined]], None]]:
        """Let jobs (a key and a user each) be handed in, if no user has too many then; yield what hears the answers."""
        assert self._is_known.is_set(), "it is waited for before"
        new = Counter(user for key, user in jobs if key not in self._keys and key not in self._older_keys)
        for user, count in sorted(new.items()):
            check_count(user, count, self._counts[user] + self._coming[user], self._most)
        self._coming += new
        try:
            yield functools.partial(self._taken_in, jobs)
        finally:
            self._coming -= new

    def _taken_in(self, jobs: Sequence[tuple[str, str]], answers: Sequence[Accepted | Declined]) -> None:
        """Count those of the jobs that were taken in."""
        for (key, user), answer in zip(jobs, answers, strict=True):
            if isinstance(answer, Accepted):
                self._keys.add(key)
                if answer.job_id > self._newest and answer.job_id not in self._users:
                    # Nobody has heard of it yet, so that its end is still to be heard, too.
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
    """Refuse new jobs of a user who would have too many."""
    if are_open + new > most:
        problem = f"{user or 'nobody'} has {are_open} jobs that are not over, and hands in {new} more; at most {most}"
        raise RefusalError("too-many-open-jobs", f"{problem}: wait until some have ended, or cancel some")


async def open_at_site(backend: Backend, site: str, user: str, most: int) -> int:
    """Return how many jobs a user has handed in to a site and are not over; counted no further than to `most`."""
    count = 0
    async for page in _pages(backend, JobQuery(own=site, user=user, state=OPEN, limit=MOST_LISTED)):
        count += len(page)
        if count >= most:
            break
    return count


async def _pages(backend: Backend, query: JobQuery) -> AsyncGenerator[list[JobRecord], None]:
    """Yield all jobs that are asked for, page after page."""
    page = await backend.jobs(query)
    while page.jobs:
        yield page.jobs
        if page.below is None:
            return
        page = await backend.jobs(msgspec.structs.replace(query, below=page.below))

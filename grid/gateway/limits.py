"""Limits: requests in a time, at once, and bytes that are held."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from gridweave.grid.gateway.problems import RefusalError

_MOST_KNOWN = 10_000


class Rates:
    """How fast each client may make requests: a bucket of tokens each, filled steadily.

    Parameters
    ----------
    per_s, burst : float
        How fast a bucket is filled, and how much it holds.
    now_s : callable
        A clock that never goes back.

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

    def _forget_full(self, now_s: float) -> None:
        """Forget the buckets that are full again."""
        self._buckets = {
            client: (level, at_s)
            for client, (level, at_s) in self._buckets.items()
            if level + (now_s - at_s) * self._per_s < self._burst
        }


class Slots:
    """How many of something each user has at once.

    Parameters
    ----------
    most : int
    kind : str
        Of the refusal if there are more.
    what : str
        In words.
    """

    def __init__(self, most: int, kind: str, what: str) -> None:
        self._most = most
        self._kind = kind
        self._what = what
        self._taken: Counter[str] = Counter()

    @contextlib.contextmanager
    def one(self, user: str) -> Iterator[None]:
        """Have one more, until the end of the block.

        Raises
        ------
        RefusalError
        """
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


class Memory:
    """How many bytes of bodies all requests together may hold.

    Parameters
    ----------
    most : int
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    @contextlib.contextmanager
    def holding(self) -> Iterator[HeldBytes]:
        """Yield what one request holds; all of it is given back at the end of the block."""
        mine = HeldBytes(self)
        try:
            yield mine
        finally:
            self.held -= mine.held

    def take(self, count: int) -> None:
        """Hold more bytes.

        Raises
        ------
        RefusalError
        """
        if self.held + count > self._most:
            raise RefusalError(
                "busy", "the bodies of other requests fill the memory that there is for them", retry_after_s=1.0
            )
        self.held += count


class HeldBytes:
    """What one request holds; made by `Memory.holding`."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.held = 0

    def take(self, count: int) -> None:
        """Hold more bytes.

        Raises
        ------
        RefusalError
            If all requests together hold too many.
        """
        self._memory.take(count)
        self.held += count

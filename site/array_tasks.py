"""Represent the tasks of a packed array and their results.

A packed array runs many tasks within one job, one after the other on each node. Ranges list the indexes of the tasks to
run as half-open intervals; `ArrayTask` is the result of one task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from gridweave.ranges import ranges_of

Ranges = tuple[tuple[int, int], ...]
"""Task indexes as half-open intervals, ascending and not empty."""

MAX_ARRAY_TASKS = 10_000
"""Maximum number of tasks in one job; a single message reports the results of all of them."""

MAX_LISTED = 5
"""Maximum number of failed tasks listed in an error message."""


class ArrayTask(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of an array task that has ended.

    Attributes
    ----------
    index : int
        Index in the array.
    exit_code, signal : int, optional
        Exit code of the task's process, or the signal that killed it; exactly one of the two is set.
    start_ms, wall_ms, cpu_ms : int
        Start (Unix time), run time, and CPU time.
    peak_memory_bytes : int
        Peak memory of the task's largest process; never less than the memory of the process that started the task.
    rank : int
        Rank of the job that ran the task.
    out, err : tuple of (int, int)
        Offset of the task's output in the rank's output, and its length in bytes.
    attempt : int
        Attempt of the job that ran the task; 0 if the attempt is clear from the context.
    """

    index: int
    exit_code: int | None
    signal: int | None
    start_ms: int
    wall_ms: int
    cpu_ms: int
    peak_memory_bytes: int
    rank: int
    out: tuple[int, int]
    err: tuple[int, int]
    attempt: int = 0

    @property
    def failed(self) -> bool:
        """Whether the task was killed or exited with a code other than 0."""
        return self.exit_code != 0


def of_attempt(array_tasks: Iterable[ArrayTask], attempt: int) -> tuple[ArrayTask, ...]:
    """Return copies of the results with the attempt set."""
    return tuple(msgspec.structs.replace(task, attempt=attempt) for task in array_tasks)


def indexes_of(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield the indexes of all ranges, in order."""
    for low, high in ranges:
        yield from range(low, high)


def count_of(ranges: Ranges) -> int:
    """Return the total number of indexes."""
    return sum(high - low for low, high in ranges)


def share_of(ranges: Ranges, first: int, count: int, size: int) -> Ranges:
    """Return the ranges for ``count`` consecutive ranks, beginning with rank ``first``, of a job with ``size`` ranks.

    The shares of all ranks together contain every index exactly once; their sizes differ by at most one from rank to
    rank.

    Examples
    --------
    >>> share_of(((1, 11),), 0, 1, 3), share_of(((1, 11),), 1, 2, 3)
    (((1, 4),), ((4, 11),))
    """
    total = count_of(ranges)
    low, high = total * first // size, total * (first + count) // size
    share: list[tuple[int, int]] = []
    passed = 0
    for start, stop in ranges:
        begin, end = max(start, start + low - passed), min(stop, start + high - passed)
        if begin < end:
            share.append((begin, end))
        passed += stop - start
    return tuple(share)


def without(ranges: Ranges, done: Collection[int]) -> Ranges:
    """Return the ranges without the finished indexes.

    Examples
    --------
    >>> without(((1, 5), (8, 9)), {2, 8})
    ((1, 2), (3, 5))
    """
    gone = set(done)
    return ranges_of(index for index in indexes_of(ranges) if index not in gone) if gone else ranges


def ranges_problem(ranges: Ranges) -> str | None:
    """Return the reason why ranges cannot be the tasks of a job, or None.

    Examples
    --------
    >>> ranges_problem(((3, 5), (4, 9)))
    'elements is [3, 5), [4, 9); expected ascending ranges that are not empty and do not overlap'
    """
    count, before = 0, 0
    for low, high in ranges:
        if not before <= low < high <= 2**31:
            text = ", ".join(f"[{start}, {other})" for start, other in ranges[:10])
            return f"elements is {text}; expected ascending ranges that are not empty and do not overlap"
        before, count = high, count + high - low
    too_many = f"{count:,} array tasks in one job; expected at most {MAX_ARRAY_TASKS:,}"
    return too_many if count > MAX_ARRAY_TASKS else None


def tasks_problem(array_tasks: Iterable[ArrayTask]) -> str:
    """Return a one-line message that lists the failed tasks; "" if no task failed."""
    failed = sorted((element for element in array_tasks if element.failed), key=lambda element: element.index)
    if not failed:
        return ""
    texts = [
        f"{task.index} ({f'exit code {task.exit_code}' if task.signal is None else f'signal {task.signal}'})"
        for task in failed[:MAX_LISTED]
    ]
    more = ", ..." if len(failed) > MAX_LISTED else ""
    return f"{len(failed):,} array task{'s' * (len(failed) > 1)} failed: {', '.join(texts)}{more}"

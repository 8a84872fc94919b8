"""The elements of a packed array: which are to run, and what has become of each.

A packed array runs many elements inside one job, one after the other on each of its nodes. Which are to run is said in
ranges, half-open intervals of their indexes; `Element` is what became of one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from gridweave.ranges import ranges_of

Ranges = tuple[tuple[int, int], ...]
"""Indexes as half-open intervals, ascending, none empty."""

MOST_ELEMENTS = 10_000
"""So many elements run in one job at most: what became of each is told in one message."""

MOST_TOLD = 5
"""So many elements that did not end well are named."""


class Element(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of an element that has ended.

    Attributes
    ----------
    index : int
        Its number in the array.
    exit_code, signal : int, optional
        How its process ended; one of both is known.
    start_ms, wall_ms, cpu_ms : int
        When it began (Unix time), how long it ran, and its time on the processors.
    peak_memory_bytes : int
        The most memory that one of its processes had at one time, at least that of the process which started it.
    rank : int
        Of the job, which ran it.
    out, err : tuple of (int, int)
        Where its output is in that of the rank, and how many bytes it has.
    attempt : int
        Of the job, which ran it; 0 where only one can be meant.
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
        """Whether it ended other than with exit code 0."""
        return self.exit_code != 0


def of_attempt(elements: Iterable[Element], attempt: int) -> tuple[Element, ...]:
    """Return elements as those of an attempt of their job."""
    return tuple(msgspec.structs.replace(one, attempt=attempt) for one in elements)


def indexes_of(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield the indexes of ranges, in their order."""
    for low, high in ranges:
        yield from range(low, high)


def count_of(ranges: Ranges) -> int:
    """Return how many indexes there are in ranges."""
    return sum(high - low for low, high in ranges)


def share_of(ranges: Ranges, first: int, count: int, size: int) -> Ranges:
    """Return the part of ranges for so many ranks of a job from the first on, of its whole size.

    The parts of all ranks together are all indexes, each once; they differ by one at most for each rank.

    Examples
    --------
    >>> share_of(((1, 11),), 0, 1, 3), share_of(((1, 11),), 1, 2, 3)
    (((1, 4),), ((4, 11),))
    """
    total = count_of(ranges)
    low, high = total * first // size, total * (first + count) // size
    found: list[tuple[int, int]] = []
    passed = 0
    for start, stop in ranges:
        begin, end = max(start, start + low - passed), min(stop, start + high - passed)
        if begin < end:
            found.append((begin, end))
        passed += stop - start
    return tuple(found)


def without(ranges: Ranges, done: Collection[int]) -> Ranges:
    """Return ranges without the indexes that are done.

    Examples
    --------
    >>> without(((1, 5), (8, 9)), {2, 8})
    ((1, 2), (3, 5))
    """
    gone = set(done)
    return ranges_of(index for index in indexes_of(ranges) if index not in gone) if gone else ranges


def ranges_problem(ranges: Ranges) -> str | None:
    """Return why ranges cannot be the elements of a job, or None.

    Examples
    --------
    >>> ranges_problem(((3, 5), (4, 9)))
    'elements are [3, 5), [4, 9): each range must begin before its end, and not before the end of the last'
    """
    count, before = 0, 0
    for low, high in ranges:
        if not before <= low < high <= 2**31:
            told = ", ".join(f"[{one}, {other})" for one, other in ranges[:10])
            return f"elements are {told}: each range must begin before its end, and not before the end of the last"
        before, count = high, count + high - low
    return f"{count:,} elements in one job; at most {MOST_ELEMENTS:,}" if count > MOST_ELEMENTS else None


def elements_problem(elements: Iterable[Element]) -> str:
    """Return which elements did not end well, in one line; empty if all did."""
    failed = sorted((element for element in elements if element.failed), key=lambda element: element.index)
    if not failed:
        return ""
    told = [
        f"{one.index} ({f'exit code {one.exit_code}' if one.signal is None else f'signal {one.signal}'})"
        for one in failed[:MOST_TOLD]
    ]
    more = ", ..." if len(failed) > MOST_TOLD else ""
    return f"{len(failed):,} element{'s' * (len(failed) > 1)} failed: {', '.join(told)}{more}"

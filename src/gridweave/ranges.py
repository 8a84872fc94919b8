"""Represent sets of integers as ranges, e.g. of nodes, hardware threads, jobs or array tasks."""

from __future__ import annotations

from collections.abc import Iterable


def ranges_of(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the numbers as sorted half-open ranges, as few as possible; order and duplicates do not matter.

    Examples
    --------
    >>> ranges_of([3, 1, 2, 7])
    ((1, 4), (7, 8))
    """
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number:
            ranges[-1] = ranges[-1][0], number + 1
        else:
            ranges.append((number, number + 1))
    return tuple(ranges)


def ranges_text(numbers: Iterable[int], between: str = " ") -> str:
    """Format numbers as sorted ranges, including both ends, joined by `between`.

    Examples
    --------
    >>> ranges_text([3, 4, 5, 9, 8, 17]), ranges_text([8, 0, 1, 2], ",")
    ('3-5 8-9 17', '0-2,8')
    """
    ranges = ranges_of(numbers)
    return between.join(f"{first}" if first + 1 == end else f"{first}-{end - 1}" for first, end in ranges)

"""Limits of a planning site: windows in which some jobs may not start, and caps on the nodes or jobs at one time.

The limits of a job are determined once, at its submission, as a bit mask (bit k for limit k). See docs/disciplines.md,
"Limits", and Streit, section 3.1.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.state import NEVER_MS

DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS


class WeekClock(NamedTuple):
    """Convert times to local time of the week, in a time zone with summer time.

    Attributes
    ----------
    from_ms : numpy.ndarray of int64, shape (spans,)
        When each offset starts to apply, ascending; the first also applies before that.
    offset_ms : numpy.ndarray of int64, shape (spans,)
        Added to a time, it gives the time since a Monday 00:00, modulo whole weeks.
    """

    from_ms: npt.NDArray[np.int64]
    offset_ms: npt.NDArray[np.int64]


FROM_MONDAY = WeekClock(np.zeros(1, np.int64), np.zeros(1, np.int64))
"""A clock whose weeks start at time zero, without summer time."""


def week_of(moves: Sequence[tuple[int, int]]) -> WeekClock:
    """Return a week clock from pairs of ``from_ms`` and ``offset_ms``; `FROM_MONDAY` without pairs."""
    if not moves:
        return FROM_MONDAY
    table = np.array(moves, np.int64)
    return WeekClock(table[:, 0].copy(), table[:, 1].copy())


class LimitArrays(NamedTuple):
    """All limits of a site.

    Attributes
    ----------
    window_bit : numpy.ndarray of int64, shape (windows,)
        Mask with the bit of the limit that a window belongs to.
    window_from_ms, window_to_ms : numpy.ndarray of int64, shape (windows,)
        Within the week, from Monday 00:00 local time; ``0 <= from < to <= WEEK_MS``.
    cap_bit : numpy.ndarray of int64, shape (profiles,)
        Mask with the bit of the limit that a profile belongs to; 0 for profile 0, the nodes.
    cap_counts_jobs : numpy.ndarray of bool, shape (profiles,)
        Whether a profile counts jobs; otherwise it counts nodes.
    week : WeekClock
        The clock of the windows.
    """

    window_bit: npt.NDArray[np.int64]
    window_from_ms: npt.NDArray[np.int64]
    window_to_ms: npt.NDArray[np.int64]
    cap_bit: npt.NDArray[np.int64]
    cap_counts_jobs: npt.NDArray[np.bool_]
    week: WeekClock


@kernel_part
def span_of_week(week: WeekClock, when_ms: Int) -> Int:
    """Return the index of the offset in force at a time."""
    low, high = 0, len(week.from_ms)
    while high - low > 1:
        middle = (low + high) // 2
        if week.from_ms[middle] <= when_ms:
            low = middle
        else:
            high = middle
    return low


@kernel_part
def of_week_at(week: WeekClock, when_ms: Int) -> Int:
    """Return the local time since Monday 00:00 (ms) at a time."""
    return (when_ms + week.offset_ms[span_of_week(week, when_ms)]) % WEEK_MS


@kernel
def next_open(limits: LimitArrays, mask: Int, from_ms: Int) -> Int:
    """Return the earliest time from ``from_ms`` on at which a job with these limits may start.

    ``NEVER_MS`` if its windows cover the whole week.
    """
    when_ms = from_ms
    moved = True
    while moved:
        moved = False
        for k in range(len(limits.window_bit)):
            if limits.window_bit[k] & mask == 0:
                continue
            of_week_ms = of_week_at(limits.week, when_ms)
            if limits.window_from_ms[k] <= of_week_ms < limits.window_to_ms[k]:
                until_ms = when_ms + limits.window_to_ms[k] - of_week_ms
                after = span_of_week(limits.week, when_ms) + 1
                if after < len(limits.week.from_ms):  # a change of the clock moves the end of the window
                    until_ms = min(until_ms, limits.week.from_ms[after])
                when_ms = until_ms
                moved = True
        if when_ms - from_ms > WEEK_MS + DAY_MS:  # a week in which the clock changes may be longer
            return NEVER_MS
    return when_ms


@kernel_part
def amount(limits: LimitArrays, profile: Int, width: Int, mask: Int) -> Int:
    """Return how much a job takes from a profile: its width or 1, and 0 if the profile's limit is not in its mask."""
    if limits.cap_bit[profile] & mask == 0:
        return 0
    return 1 if limits.cap_counts_jobs[profile] else width

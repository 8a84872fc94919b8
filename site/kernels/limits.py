"""Limits of a planning site: windows in which some jobs may not start, and caps on nodes or jobs in use.

A job's limits are determined once, at submission, as a bit mask (bit k for limit k). See docs/disciplines.md, "Limits",
and Streit, section 3.1.2.
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
    """A clock that converts times to the local time of the week, in a time zone with daylight saving time.

    Attributes
    ----------
    from_ms : numpy.ndarray of int64, shape (spans,)
        When each offset takes effect, ascending; the first offset also applies to earlier times.
    offset_ms : numpy.ndarray of int64, shape (spans,)
        Offset to add to a time to get the time since a Monday 00:00, modulo whole weeks.
    """

    from_ms: npt.NDArray[np.int64]
    offset_ms: npt.NDArray[np.int64]


FROM_MONDAY = WeekClock(np.zeros(1, np.int64), np.zeros(1, np.int64))
"""A clock whose weeks start at time zero, without daylight saving time."""


def week_of(moves: Sequence[tuple[int, int]]) -> WeekClock:
    """Return a week clock from pairs of ``from_ms`` and ``offset_ms``; `FROM_MONDAY` if there are no pairs."""
    if not moves:
        return FROM_MONDAY
    table = np.array(moves, np.int64)
    return WeekClock(table[:, 0].copy(), table[:, 1].copy())


class LimitArrays(NamedTuple):
    """All of a site's limits.

    Attributes
    ----------
    window_bit : numpy.ndarray of int64, shape (windows,)
        Bit mask of the limit to which each window belongs.
    window_from_ms, window_to_ms : numpy.ndarray of int64, shape (windows,)
        Start and end of each window, since Monday 00:00 local time; ``0 <= from < to <= WEEK_MS``.
    cap_bit : numpy.ndarray of int64, shape (profiles,)
        Bit mask of the limit to which each profile belongs; 0 for profile 0, which counts all nodes.
    cap_counts_jobs : numpy.ndarray of bool, shape (profiles,)
        Whether each profile counts jobs; otherwise it counts nodes.
    week : WeekClock
        The clock to which the windows refer.
    """

    window_bit: npt.NDArray[np.int64]
    window_from_ms: npt.NDArray[np.int64]
    window_to_ms: npt.NDArray[np.int64]
    cap_bit: npt.NDArray[np.int64]
    cap_counts_jobs: npt.NDArray[np.bool_]
    week: WeekClock


@kernel_part
def span_of_week(week: WeekClock, when_ms: Int) -> Int:
    """Return the index of the offset that applies at a time."""
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
    """Convert a time to the local time since Monday 00:00, in ms."""
    return (when_ms + week.offset_ms[span_of_week(week, when_ms)]) % WEEK_MS


@kernel
def next_open(limits: LimitArrays, mask: Int, from_ms: Int) -> Int:
    """Return the earliest time from ``from_ms`` on at which the windows of these limits allow a job to start.

    Return ``NEVER_MS`` if the windows cover the whole week.
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
                if after < len(limits.week.from_ms):  # a clock change moves the end of the window
                    until_ms = min(until_ms, limits.week.from_ms[after])
                when_ms = until_ms
                moved = True
        if when_ms - from_ms > WEEK_MS + DAY_MS:  # a week with a clock change may be longer
            return NEVER_MS
    return when_ms


@kernel_part
def amount(limits: LimitArrays, profile: Int, width: Int, mask: Int) -> Int:
    """Return how much of a profile a job uses: its width, 1 if jobs are counted, or 0 if the limit does not apply."""
    if limits.cap_bit[profile] & mask == 0:
        return 0
    return 1 if limits.cap_counts_jobs[profile] else width

"""Limits of a planning site: windows in which some jobs may not start, and caps on what they may hold at one time.

Which limits apply to a job is worked out once, at its submission, as a bit mask (bit k for limit k); see
docs/disciplines.md, "Limits", and Streit, section 3.1.2.
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
    """The local time of the week, in a zone whose clocks may be moved for summer time.

    Attributes
    ----------
    from_ms : numpy.ndarray of int64, shape (spans,)
        The instants from which the offsets count, ascending; the first counts before it, too.
    offset_ms : numpy.ndarray of int64, shape (spans,)
        What is added to an instant for the time since a Monday 00:00, up to whole weeks.
    """

    from_ms: npt.NDArray[np.int64]
    offset_ms: npt.NDArray[np.int64]


FROM_MONDAY = WeekClock(np.zeros(1, np.int64), np.zeros(1, np.int64))
"""Of weeks that begin at instant zero, where clocks are never moved."""


def week_of(moves: Sequence[tuple[int, int]]) -> WeekClock:
    """Return a week clock from pairs of ``from_ms`` and ``offset_ms``; `FROM_MONDAY` if there are none."""
    if not moves:
        return FROM_MONDAY
    table = np.array(moves, np.int64)
    return WeekClock(table[:, 0].copy(), table[:, 1].copy())


class LimitArrays(NamedTuple):
    """All limits of a site.

    Attributes
    ----------
    window_bit : numpy.ndarray of int64, shape (windows,)
        The limit, as a mask of one bit, that a window belongs to.
    window_from_ms, window_to_ms : numpy.ndarray of int64, shape (windows,)
        Within the week, from Monday 00:00 local time; ``0 <= from < to <= WEEK_MS``.
    cap_bit : numpy.ndarray of int64, shape (profiles,)
        The limit, as a mask, that a profile belongs to; profile 0, the nodes, belongs to none.
    cap_counts_jobs : numpy.ndarray of bool, shape (profiles,)
        Whether a job takes 1 from the profile, rather than its width.
    week : WeekClock
        In which windows are read.
    """

    window_bit: npt.NDArray[np.int64]
    window_from_ms: npt.NDArray[np.int64]
    window_to_ms: npt.NDArray[np.int64]
    cap_bit: npt.NDArray[np.int64]
    cap_counts_jobs: npt.NDArray[np.bool_]
    week: WeekClock


@kernel_part
def span_of_week(week: WeekClock, when_ms: Int) -> Int:
    """Return the place of the span between two moves of the clock that an instant lies in."""
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
    """Return the local time of an instant since Monday 00:00."""
    return (when_ms + week.offset_ms[span_of_week(week, when_ms)]) % WEEK_MS


@kernel
def next_open(limits: LimitArrays, mask: Int, from_ms: Int) -> Int:
    """Return the earliest instant, not before ``from_ms``, that lies in no closed window of a job with these limits.

    ``NEVER_MS`` if the whole week is closed to it.
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
                if after < len(limits.week.from_ms):  # once the clock is moved, the window ends at another instant
                    until_ms = min(until_ms, limits.week.from_ms[after])
                when_ms = until_ms
                moved = True
        if when_ms - from_ms > WEEK_MS + DAY_MS:  # a week of which clocks are moved may be longer
            return NEVER_MS
    return when_ms


@kernel_part
def amount(limits: LimitArrays, profile: Int, width: Int, mask: Int) -> Int:
    """Return what a job of this width takes from a profile: nothing if its limits, a bit mask, are others."""
    if limits.cap_bit[profile] & mask == 0:
        return 0
    return 1 if limits.cap_counts_jobs[profile] else width

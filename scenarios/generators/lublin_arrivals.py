"""Arrivals of the Lublin and Feitelson model: gaps that are paid in points, and a daily cycle that prices the time.

The gap between two jobs is drawn in *points*. A second in a bucket of the day with weight w is worth w points, so
points pass quickly in the rush hours and slowly at night. With W(t) the points of the time up to t, job k arrives when
W(t) is the sum of the first k gaps: the arrivals are a renewal process on a clock that goes at the pace of the day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError

FloatArray = npt.NDArray[np.float64]

BUCKETS = 48
DAY_S = 86_400.0
BUCKET_S = DAY_S / BUCKETS

FIRST_BUCKET = 11
"""The cycle starts here, with buckets counted from 1: bucket 1 is the half hour after midnight."""

MAX_LOG_GAP = 13.0
"""Gaps above e^13 points, five days, are drawn again."""

CHUNK = 4096
"""Gaps and jobs are drawn so many at a time. Fixed, so that a longer workload begins with the shorter one."""

# Below this share of the mean a bucket lets in less than one job of a billion; the day could not be turned around.
_LEAST_WEIGHT = 1e-9


@dataclass(frozen=True, slots=True)
class DailyCycle:
    """The points that time is worth, over one day.

    Parameters
    ----------
    weights : numpy.ndarray of float64, shape (48,)
        Points per second in each half hour from midnight on; their mean is 1.
    points : numpy.ndarray of float64, shape (49,)
        Points from midnight up to each edge between half hours, from 0 to those of a whole day.
    """

    weights: FloatArray
    points: FloatArray

    def time_s(self, points: npt.ArrayLike) -> FloatArray:
        """Return the times at which so many points have passed since a midnight.

        Parameters
        ----------
        points : array_like of float, shape (n,)
            Points, >= 0.

        Returns
        -------
        numpy.ndarray of float64, shape (n,)
            Seconds since that midnight.
        """
        days, rest = np.divmod(np.asarray(points, np.float64), self.points[-1])
        time_s: FloatArray = days * DAY_S + np.interp(rest, self.points, _EDGES_S)
        return time_s

    def points_at(self, time_s: npt.ArrayLike) -> FloatArray:
        """Return the points that have passed since a midnight: the inverse of `time_s`.

        Parameters
        ----------
        time_s : array_like of float, shape (n,)
            Seconds since that midnight, >= 0.

        Returns
        -------
        numpy.ndarray of float64, shape (n,)
        """
        days, rest = np.divmod(np.asarray(time_s, np.float64), DAY_S)
        points: FloatArray = days * self.points[-1] + np.interp(rest, _EDGES_S, self.points)
        return points


_EDGES_S = np.arange(BUCKETS + 1) * BUCKET_S


def daily_cycle(anum: float, bnum: float) -> DailyCycle:
    """Return the cycle that a gamma distribution over the half hours of a day makes.

    Parameters
    ----------
    anum, bnum : float
        Shape and scale in buckets, > 0. Bucket i, from 11 to 58 and wrapped around the day, gets the mass between
        i - 0.5 and i + 0.5.

    Returns
    -------
    DailyCycle

    Raises
    ------
    InputError
        If the distribution leaves some half hour of the day without arrivals.

    Examples
    --------
    The whole sample is busiest in the half hour from 13:30 on:

    >>> int(daily_cycle(8.1737, 3.9631).weights.argmax()) / 2
    13.5
    """
    from scipy.special import gammainc

    bucket = np.arange(FIRST_BUCKET, FIRST_BUCKET + BUCKETS)
    mass = gammainc(anum, (bucket + 0.5) / bnum) - gammainc(anum, (bucket - 0.5) / bnum)
    weights = np.zeros(BUCKETS)
    weights[(bucket - 1) % BUCKETS] = mass
    mean = float(weights.mean())
    if not weights.min() > _LEAST_WEIGHT * mean:
        raise InputError(f"anum {anum} and bnum {bnum} leave a half hour of the day without arrivals; widen the cycle")
    weights /= mean
    return DailyCycle(weights, np.concatenate([[0.0], np.cumsum(weights * BUCKET_S)]))


def draw_gaps(shape: float, scale: float, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw gaps between arrivals.

    Parameters
    ----------
    shape, scale : float
        Of the gamma distribution of their logarithm; the shape is aarr * arar.
    size : int
        How many, >= 1.
    rng : numpy.random.Generator

    Returns
    -------
    numpy.ndarray of float64, shape (size,)
        In points, 1 to e^13: seconds of a day in which all hours are alike. Fewer gaps are the first of more.
    """
    parts = []
    for _ in range(-(-size // CHUNK)):
        log_gap = rng.gamma(shape, scale, CHUNK)
        rows = np.flatnonzero(log_gap > MAX_LOG_GAP)
        while len(rows):
            log_gap[rows] = rng.gamma(shape, scale, len(rows))
            rows = rows[log_gap[rows] > MAX_LOG_GAP]
        parts.append(np.exp(log_gap))
    return np.concatenate(parts)[:size]


def factor_for_span(cycles: Sequence[DailyCycle], points: Sequence[FloatArray], span_s: float) -> float:
    """Return what all gaps must be multiplied by for the jobs to be submitted over a certain time.

    Parameters
    ----------
    cycles : sequence of DailyCycle
        One per arrival process.
    points : sequence of numpy.ndarray of float64
        Arrivals of each process in points, ascending; at least two arrivals in all, not all at one instant.
    span_s : float
        Wanted time from the first arrival of all to the last, > 0.

    Returns
    -------
    float
        The factor. The cycle of the day is not stretched with the gaps, so the span is not in proportion to it; it goes
        from nothing to any length without a jump, and one factor that gives this span is found.
    """
    from scipy.optimize import brentq

    ends = [(cycle, np.array([own[0], own[-1]])) for cycle, own in zip(cycles, points, strict=True) if len(own)]

    def excess(log_factor: float) -> float:
        times = np.array([cycle.time_s(own * np.exp(log_factor)) for cycle, own in ends])
        return float(times.max() - times.min()) - span_s

    low = high = float(np.log(span_s / max(own[1] for _, own in ends)))
    while excess(low) > 0:
        low -= 1.0
    while excess(high) < 0:
        high += 1.0
    return float(np.exp(brentq(excess, low, high, xtol=1e-15, rtol=1e-14)))

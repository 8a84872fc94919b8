"""Hyper-Erlang distributions of common order, fitted to three moments.

J. Jann, P. Pattnaik, H. Franke, F. Wang, J. Skovira and J. Riodan, *Modeling of Workload in MPPs* (JSSPP 1997; below:
*Jann*), which Zhang et al., section 2.1, use. The distribution is a mixture of two Erlang distributions with the same
number of phases n. M. Johnson and M. Taaffe (*Matching moments to phase distributions: mixtures of Erlang distributions
of common order*, 1989) show which moments such a mixture can have; see `fit_moments`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError

FloatArray = npt.NDArray[np.float64]

# With ten thousand phases the coefficient of variation of a branch is 0.01: from there on a branch is a constant.
MAX_ORDER = 10_000

# A branch may be longer than any time that occurs; but not so much longer that its moments leave the range of a float.
MAX_MEAN_MS = 1e30

# What rounding can do to moments of the size of 1: below it, a difference is none.
_NOISE = 1e-12


class HyperErlang(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mixture of one or two Erlang distributions of common order.

    With probability ``probabilities[i]`` the value is Erlang distributed with `order` phases and the mean
    ``means_ms[i]``; the rate of a phase is order / mean.

    Parameters
    ----------
    order : int or None
        Number of phases n >= 1. None is the limit of many phases: each branch is a constant.
    probabilities : tuple of float
        One or two, > 0, summing to 1.
    means_ms : tuple of float
        Means of the branches in milliseconds, ascending, > 0; of a constant one may be 0.

    Raises
    ------
    InputError
        If a parameter is out of its bounds.
    """

    order: Annotated[int, msgspec.Meta(ge=1, le=MAX_ORDER)] | None
    probabilities: Annotated[tuple[float, ...], msgspec.Meta(min_length=1, max_length=2)]
    means_ms: Annotated[tuple[float, ...], msgspec.Meta(min_length=1, max_length=2)]

    def __post_init__(self) -> None:
        if len(self.probabilities) != len(self.means_ms):
            raise InputError("a hyper-Erlang distribution has as many probabilities as means")
        if not all(0 < p <= 1 for p in self.probabilities) or abs(sum(self.probabilities) - 1) > 1e-9:
            raise InputError(f"the probabilities {self.probabilities} of a hyper-Erlang distribution must sum to 1")
        if not all(0 <= mean <= MAX_MEAN_MS for mean in self.means_ms) or max(self.means_ms) <= 0:
            raise InputError(
                f"the means {self.means_ms} of a hyper-Erlang distribution must be within 0 to {MAX_MEAN_MS}"
            )
        if self.order is not None and min(self.means_ms) <= 0:
            raise InputError(f"a branch of order {self.order} has the mean 0; it must be > 0")

    def moment(self, k: int) -> float:
        """Return the k-th raw moment, E[X^k].

        Parameters
        ----------
        k : int
            >= 0.

        Returns
        -------
        float
            In milliseconds to the power of k.
        """
        phases = 1.0 if self.order is None else math.prod(1 + j / self.order for j in range(k))
        return phases * math.fsum(p * mean**k for p, mean in zip(self.probabilities, self.means_ms, strict=True))

    def sample_ms(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Draw values.

        Parameters
        ----------
        rng : numpy.random.Generator
        size : int
            How many.

        Returns
        -------
        numpy.ndarray of float64, shape (size,)
            In milliseconds.
        """
        return self._draw(rng, size, self.probabilities, self.order)

    def sample_residual_ms(self, rng: np.random.Generator) -> float:
        """Draw the time to the next event of a renewal process of this law that has been running for ever.

        The interval that is under way at a given instant has the law weighted by length, and the instant lies anywhere
        in it. Weighted by length, Erlang of order n becomes Erlang of order n + 1 with the same rate.

        Parameters
        ----------
        rng : numpy.random.Generator

        Returns
        -------
        float
            In milliseconds.
        """
        weights = [p * mean / self.moment(1) for p, mean in zip(self.probabilities, self.means_ms, strict=True)]
        interval = self._draw(rng, 1, weights, None if self.order is None else self.order + 1)[0]
        return float(interval * rng.random())

    def _draw(self, rng: np.random.Generator, size: int, weights: Sequence[float], shape: int | None) -> FloatArray:
        """Draw from the branches with these weights, `shape` phases each of which has the rate of this law."""
        second = rng.random(size) >= weights[0] if len(weights) == 2 else np.zeros(size, np.bool_)
        mean = np.where(second, self.means_ms[-1], self.means_ms[0])
        if self.order is None or shape is None:
            return mean
        return rng.standard_gamma(shape, size) * (mean / self.order)


def fit_moments(m1: float, m2: float, m3: float) -> HyperErlang:
    """Fit a hyper-Erlang distribution of common order to the first three raw moments.

    Parameters
    ----------
    m1, m2, m3 : float
        E[X], E[X^2] and E[X^3] of a positive quantity in milliseconds.

    Returns
    -------
    HyperErlang
        Of the lowest order that has these moments.

    Raises
    ------
    InputError
        If no distribution on the positive numbers has them.

    Notes
    -----
    The k-th moment of an Erlang distribution of order n and mean a is a^k n (n + 1) ... (n + k - 1) / n^k. Dividing the
    given moments by these factors leaves the moments t1, t2, t3 of a distribution on the branch means, with two points.
    With the mean t1, the variance V and the third central moment K of that one, the two means are t1 + d, where d are
    the roots of d^2 - (K / V) d - V = 0, and the probability of the lesser is d+ / (d+ - d-).

    This is possible with positive means if and only if t2 > t1^2 and t1 t3 > t2^2, that is (Johnson and Taaffe, 1989)
    if n > m1^2 / (m2 - m1^2) and (n + 2) / (n + 1) < m1 m3 / m2^2. Both hold for large n whatever the data, unless all
    values are equal, or all but zeros. Then, and where more than `MAX_ORDER` phases are needed, the branches are
    constants (order None), which have the same three moments. Where t2 = t1^2 and t3 = t1^3 one branch is enough.

    Examples
    --------
    >>> fit_moments(1000.0, 2e6, 6e9)
    HyperErlang(order=1, probabilities=(1.0,), means_ms=(1000.0,))
    """
    if not all(math.isfinite(m) and m > 0 for m in (m1, m2, m3)):
        raise InputError(f"the moments {m1}, {m2}, {m3} are not all finite numbers > 0")
    # In units of the mean and exactly: where the values are nearly equal, the differences cancel nearly all digits.
    mean, second, third = Fraction(m1), Fraction(m2), Fraction(m3)
    variance = second / mean**2 - 1
    skew = third / mean**3 - 3 * (second / mean**2) + 2
    if variance < -_NOISE or mean * third < second**2 * (1 - Fraction(_NOISE)):
        raise InputError(f"no distribution on positive numbers has the moments {m1}, {m2}, {m3}")
    return _fit(m1, float(variance), float(skew))


def fit_sample(values_ms: npt.NDArray[np.integer] | FloatArray) -> HyperErlang:
    """Fit a hyper-Erlang distribution of common order to the first three moments of observed values.

    Parameters
    ----------
    values_ms : numpy.ndarray, shape (n,)
        Observed values >= 0, at least one, not all zero.

    Returns
    -------
    HyperErlang
        Of the lowest order that has the moments of the values. Values that are all equal give a constant.

    Raises
    ------
    InputError
        If there are no values, one is negative or not finite, or all are zero.
    """
    values = np.asarray(values_ms, np.float64)
    if not len(values) or not np.all(np.isfinite(values)) or values.min() < 0 or values.max() == 0:
        raise InputError("a distribution is fitted to at least one value, none negative and not all zero")
    mean = math.fsum(values) / len(values)
    deviation = values / mean - 1
    deviation -= deviation.mean()
    return _fit(mean, float(np.mean(deviation**2)), float(np.mean(deviation**3)))


def _fit(mean: float, variance: float, skew: float) -> HyperErlang:
    """Fit to the mean and to the second and third central moment in units of the mean."""
    if variance <= _NOISE:
        return HyperErlang(order=None, probabilities=(1.0,), means_ms=(mean,))
    order = _lowest_order(variance, skew)
    while order <= MAX_ORDER:
        branches = _branches(order, variance, skew)
        if branches is not None:
            probabilities, points = branches
            return HyperErlang(order, probabilities, tuple(mean * point for point in points))
        order += 1
    probabilities, points = _two_points(variance, skew)
    return HyperErlang(None, probabilities, tuple(mean * max(point, 0.0) for point in points))


def _lowest_order(variance: float, skew: float) -> int:
    """Return a lower bound of the order that the two conditions of Johnson and Taaffe allow, tight but for rounding."""
    from_variance = 1 / variance
    ratio_above_one = (skew + variance - variance**2) / (1 + variance) ** 2
    from_skew = 1 / ratio_above_one - 1 if ratio_above_one > 0 else math.inf
    return max(1, math.floor(min(max(from_variance, from_skew) * (1 - 1e-9), float(MAX_ORDER)) + 1e-9))


def _branches(order: int, variance: float, skew: float) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return probabilities and means (in units of the mean) of the branches of this order; None if it is too low."""
    n = float(order)
    left = (n * variance - 1) / (n + 1)
    third = (n * n * skew - 6 * n * variance + 4) / ((n + 1) * (n + 2))
    if abs(left) <= _NOISE and abs(third) <= _NOISE:
        return (1.0,), (1.0,)
    if left <= _NOISE:
        return None
    probabilities, points = _two_points(left, third)
    return (probabilities, points) if points[0] > 0 else None


def _two_points(variance: float, skew: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the two-point distribution of mean 1 with these central moments: probabilities, points ascending."""
    slope = skew / variance
    root = math.hypot(slope, 2 * math.sqrt(variance))
    # The greater deviation by addition, the other from their product -variance: neither loses digits.
    if slope >= 0:
        above = (slope + root) / 2
        below = -variance / above
    else:
        below = (slope - root) / 2
        above = -variance / below
    return (above / (above - below), -below / (above - below)), (1 + below, 1 + above)

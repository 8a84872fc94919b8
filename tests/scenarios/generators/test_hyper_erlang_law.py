"""Hyper-Erlang distributions of common order: fitting three moments, and sampling."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gridweave.errors import InputError
from gridweave.scenarios.generators.hyper_erlang import MAX_ORDER, HyperErlang, _fit, fit_sample


def moments_of(values: list[int]) -> tuple[Fraction, Fraction, Fraction]:
    """Return the first three raw moments of whole numbers, exactly."""
    first, second, third = (Fraction(sum(value**k for value in values), len(values)) for k in (1, 2, 3))
    return first, second, third


def fit_moments(m1: float, m2: float, m3: float) -> HyperErlang:
    """Fit to raw moments, through exact central moments, because floats could cancel nearly all digits."""
    mean, second, third = Fraction(m1), Fraction(m2), Fraction(m3)
    return _fit(m1, float(second / mean**2 - 1), float(third / mean**3 - 3 * (second / mean**2) + 2))


def allows(order: int, moments: tuple[Fraction, Fraction, Fraction], *, margin: float) -> bool:
    """Return whether a mixture of this order can have these moments (Johnson and Taaffe, 1989)."""
    m1, m2, m3 = moments
    room = 1 + Fraction(margin)
    return m2 * order > m1**2 * (order + 1) * room and m1 * m3 * (order + 1) > m2**2 * (order + 2) * room


def samples(most: int) -> st.SearchStrategy[list[int]]:
    """Draw observed times of at least two different values."""
    return st.lists(st.integers(1, most), min_size=2, max_size=30).filter(lambda values: len(set(values)) > 1)


@settings(deadline=None)
@given(values=st.one_of(samples(100), samples(10**8), samples(10**12)))
def test_the_fit_has_the_moments_of_the_data(values: list[int]) -> None:
    law = fit_sample(np.array(values))
    for k, moment in enumerate(moments_of(values), start=1):
        assert law.moment(k) == pytest.approx(float(moment), rel=1e-9)


@settings(deadline=None)
@given(
    values=samples(1000),
    scale=st.floats(1e-3, 1e6),
)
def test_the_fit_has_the_given_moments(values: list[int], scale: float) -> None:
    """The unit of time does not matter."""
    given_moments = [float(moment) * scale**k for k, moment in enumerate(moments_of(values), start=1)]
    law = fit_moments(*given_moments)
    for k, moment in enumerate(given_moments, start=1):
        assert law.moment(k) == pytest.approx(moment, rel=1e-9)


@settings(deadline=None)
@given(values=st.one_of(samples(10), samples(10**6)))
def test_the_order_is_the_lowest_possible(values: list[int]) -> None:
    """Constants replace orders above the maximum."""
    law = fit_sample(np.array(values))
    moments = moments_of(values)
    # The margin is what rounding may do; the bounds of two neighbouring orders are ten times as far apart.
    if law.order is None:
        assert not allows(MAX_ORDER, moments, margin=1e-9)
    elif len(law.means_ms) == 2:
        assert allows(law.order, moments, margin=-1e-9)
        assert law.order == 1 or not allows(law.order - 1, moments, margin=1e-9)


@pytest.mark.parametrize("order", [1, 2, 5, 40])
def test_an_erlang_distribution_is_recovered_in_one_branch(order: int) -> None:
    mean = 3000.0
    m2, m3 = mean**2 * (order + 1) / order, mean**3 * (order + 1) * (order + 2) / order**2
    law = fit_moments(mean, m2, m3)
    assert law.order == order
    assert law.means_ms == (pytest.approx(mean),)


def test_a_mixture_of_order_one_is_recovered() -> None:
    mixture = HyperErlang(order=1, probabilities=(0.9, 0.1), means_ms=(10.0, 5000.0))
    law = fit_moments(mixture.moment(1), mixture.moment(2), mixture.moment(3))
    assert law.order == 1
    assert law.probabilities == pytest.approx(mixture.probabilities)
    assert law.means_ms == pytest.approx(mixture.means_ms)


@pytest.mark.parametrize("values", [[5], [7, 7, 7]])
def test_equal_values_are_a_constant(values: list[int]) -> None:
    law = fit_sample(np.array(values))
    assert law == HyperErlang(order=None, probabilities=(1.0,), means_ms=(float(values[0]),))
    assert set(law.sample_ms(np.random.default_rng(1), 100)) == {float(values[0])}


def test_zeros_and_one_value_are_two_constants() -> None:
    """No mixture of positive order fits them."""
    law = fit_sample(np.array([0, 0, 0, 8]))
    assert law.order is None
    assert law.probabilities == pytest.approx((0.75, 0.25))
    assert law.means_ms == pytest.approx((0.0, 8.0), abs=1e-9)
    drawn = law.sample_ms(np.random.default_rng(1), 4000)
    assert set(np.round(drawn, 6)) == {0.0, 8.0}


@pytest.mark.parametrize("values", [[], [0, 0], [-1, 2], [1.0, math.inf]])
def test_unusable_samples_are_refused(values: list[float]) -> None:
    with pytest.raises(InputError, match="at least one value"):
        fit_sample(np.array(values, np.float64))


LAWS = [
    HyperErlang(order=1, probabilities=(0.8, 0.2), means_ms=(100.0, 3000.0)),
    HyperErlang(order=4, probabilities=(0.5, 0.5), means_ms=(10.0, 4000.0)),
    HyperErlang(order=9, probabilities=(1.0,), means_ms=(70.0,)),
    HyperErlang(order=None, probabilities=(0.3, 0.7), means_ms=(1.0, 9.0)),
]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_sampled_moments_converge(law: HyperErlang) -> None:
    n = 200_000
    drawn = law.sample_ms(np.random.default_rng(3), n)
    for k in (1, 2, 3):
        error = math.sqrt((law.moment(2 * k) - law.moment(k) ** 2) / n)
        assert abs(float(np.mean(drawn**k)) - law.moment(k)) < 4 * error


def _distribution_of_the_residual(law: HyperErlang, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the equilibrium distribution: length-weighted branches, with all orders up to n equally likely."""
    assert law.order is not None
    total = np.zeros_like(x)
    for p, mean in zip(law.probabilities, law.means_ms, strict=True):
        for phases in range(1, law.order + 1):
            total += p * mean / law.moment(1) / law.order * stats.gamma.cdf(x, phases, scale=mean / law.order)
    return total


@pytest.mark.parametrize("law", LAWS[:3], ids=str)
def test_the_first_gap_has_the_equilibrium_distribution(law: HyperErlang) -> None:
    rng = np.random.default_rng(8)
    drawn = np.array([law.sample_residual_ms(rng) for _ in range(5000)])
    assert stats.kstest(drawn, lambda x: _distribution_of_the_residual(law, x)).pvalue > 0.01


@pytest.mark.parametrize(
    "change",
    [
        {"probabilities": (0.5, 0.4)},
        {"probabilities": (1.0,)},
        {"probabilities": (-0.5, 1.5)},
        {"means_ms": (0.0, 5.0)},
        {"means_ms": (-1.0, 5.0)},
        {"means_ms": (math.nan, 5.0)},
        {"means_ms": (1.0, math.inf)},
        {"order": None, "means_ms": (0.0, 0.0)},
    ],
)
def test_invalid_parameters_are_refused(change: dict[str, object]) -> None:
    fields: dict[str, object] = {"order": 2, "probabilities": (0.5, 0.5), "means_ms": (1.0, 5.0), **change}
    with pytest.raises(InputError):
        HyperErlang(**fields)  # type: ignore[arg-type]

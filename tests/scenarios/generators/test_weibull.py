"""Interarrival times of the histogram model: published parameters, and fitting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gridweave.errors import InputError
from gridweave.scenarios.generators.histogram import WEIBULL_TABLE, Weibull, fit_weibull


def test_published_parameters_have_the_means_of_the_formula() -> None:
    """With beta * Gamma(1 + 1 / alpha), CTC has a mean of 301.7 s and KTH of 1005.8 s."""
    means_s = {name: law.mean_ms / 1000 for name, law in WEIBULL_TABLE.items()}
    assert list(means_s) == ["CTC", "KTH", "SDSC", "LANL", "PC2-2001", "PC2-2002", "CHPC", "MHPCC"]
    assert means_s["CTC"] == pytest.approx(301.75, abs=0.01)
    assert means_s["KTH"] == pytest.approx(1005.83, abs=0.01)
    assert means_s["PC2-2001"] == pytest.approx(40 * math.factorial(4))
    for law in WEIBULL_TABLE.values():
        reference = stats.weibull_min(law.alpha, scale=law.beta_ms)
        assert law.mean_ms == pytest.approx(reference.mean())


def test_weibull_samples_follow_the_distribution() -> None:
    law = WEIBULL_TABLE["LANL"]
    drawn = law.sample_ms(np.random.default_rng(1), 20_000)
    assert stats.kstest(drawn, lambda x: 1 - np.exp(-((x / law.beta_ms) ** law.alpha))).pvalue > 0.01


@pytest.mark.parametrize("alpha", [0.3, 0.5, 1.0, 2.5])
def test_fitting_recovers_the_shape(alpha: float) -> None:
    """The samples are rounded to seconds, and the mean is preserved."""
    drawn = Weibull(alpha=alpha, beta_ms=50_000.0).sample_ms(np.random.default_rng(2), 50_000)
    read = (np.rint(drawn / 1000) * 1000).astype(np.int64)
    law = fit_weibull(read, resolution_ms=1000)
    assert law.alpha == pytest.approx(alpha, rel=0.02)
    assert law.mean_ms == pytest.approx(read.mean(), rel=1e-12)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60).filter(any))
def test_fitting_preserves_the_mean_with_maximum_likelihood(times: list[int]) -> None:
    observed = np.array(times) * 1000
    law = fit_weibull(observed, resolution_ms=1000)
    assert law.mean_ms == pytest.approx(observed.mean(), rel=1e-9)

    def log_likelihood(alpha: float) -> float:
        reference = stats.weibull_min(alpha, scale=observed.mean() / math.gamma(1 + 1 / alpha))
        low, high = reference.logsf(np.maximum(observed - 500, 0)), reference.logsf(observed + 500)
        with np.errstate(all="ignore"):
            return float(np.sum(low + np.log(-np.expm1(high - low))))

    best = log_likelihood(law.alpha)
    for factor in (0.5, 0.8, 0.98, 1.02, 1.25, 2.0):
        other = law.alpha * factor
        if 0.1 <= other <= 20:
            assert not log_likelihood(other) > best + 1e-6 * abs(best)


def test_equal_gaps_get_the_largest_shape() -> None:
    assert fit_weibull(np.full(100, 60_000), resolution_ms=1000).alpha == pytest.approx(20, rel=1e-4)


@pytest.mark.parametrize("times", [[], [0, 0, 0]])
def test_fitting_needs_time_between_jobs(times: list[int]) -> None:
    with pytest.raises(InputError, match="no arrival process"):
        fit_weibull(np.array(times, np.int64), resolution_ms=1000)


@pytest.mark.parametrize(("alpha", "beta_ms"), [(0.05, 1.0), (21.0, 1.0), (0.5, 0.0), (0.5, math.inf), (math.nan, 1.0)])
def test_invalid_parameters_are_refused(alpha: float, beta_ms: float) -> None:
    with pytest.raises(InputError, match="Weibull"):
        Weibull(alpha=alpha, beta_ms=beta_ms)

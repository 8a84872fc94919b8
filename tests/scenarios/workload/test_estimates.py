"""Estimate models: the distributions of Zhang et al., section 2.1, and their limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gridweave.errors import OptionError
from gridweave.scenarios.workload.estimates import omega, perfect, phi, with_estimates
from gridweave.scenarios.workload.table import MAX_TIME_MS, Workload

JOBS = 20_000


def workload_of(run_ms: np.ndarray, *, overran: bool = False) -> Workload:
    """Return jobs with these run times; jobs that overran have the run time as estimate."""
    n = len(run_ms)
    return Workload(
        job_id=np.arange(n),
        submit_ms=np.arange(n) * 10,
        width=np.full(n, 3),
        estimate_ms=run_ms if overran else np.minimum(run_ms * 7, MAX_TIME_MS),
        run_ms=run_ms,
        overran=np.full(n, overran),
        columns={"user": np.arange(n) % 5},
        nodes=8,
        name="w",
    )


def long_jobs() -> Workload:
    """Return jobs so long that rounding to milliseconds does not affect a distribution."""
    return workload_of(np.random.default_rng(5).integers(10**7, 10**8, JOBS))


def test_perfect_estimates_are_the_run_times() -> None:
    changed = perfect(workload_of(np.array([5, 6, 7]), overran=True))
    assert changed.estimate_ms.tolist() == [5, 6, 7]
    assert not changed.overran.any()


@pytest.mark.parametrize("upper", [0.5, 3.0, 100.0])
def test_omega_factors_are_uniform(upper: float) -> None:
    """The range is 1 to 1 + Omega."""
    jobs = long_jobs()
    factor = omega(jobs, upper, np.random.default_rng(1)).estimate_ms / jobs.run_ms
    assert stats.kstest(factor, stats.uniform(1, upper).cdf).pvalue > 0.01


@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.7])
def test_phi_factors_have_the_stated_distribution(fraction: float) -> None:
    """A fraction Phi of the estimates is perfect; other jobs use a uniform fraction of theirs."""
    jobs = long_jobs()
    used = jobs.run_ms / phi(jobs, fraction, np.random.default_rng(2)).estimate_ms
    exact = int((used == 1).sum())
    assert stats.binomtest(exact, JOBS, max(fraction, 1e-6)).pvalue > 0.01
    assert stats.kstest(used[used < 1], stats.uniform(0, 1).cdf).pvalue > 0.01


def test_phi_factors_follow_the_formula_of_the_paper() -> None:
    """For a draw y, the factor is 1 below Phi, else (1 - Phi) / (1 - y)."""
    jobs, fraction = long_jobs(), 0.3
    y = np.random.default_rng(9).random(JOBS)
    expected = [run if u < fraction else run * (1 - fraction) / (1 - u) for run, u in zip(jobs.run_ms, y, strict=True)]
    got = phi(jobs, fraction, np.random.default_rng(9)).estimate_ms
    assert np.abs(got - np.array(expected)).max() <= 1


def test_omega_zero_and_phi_one_give_perfect_estimates() -> None:
    jobs, rng = long_jobs(), np.random.default_rng(3)
    assert np.array_equal(omega(jobs, 0.0, rng).estimate_ms, jobs.run_ms)
    assert np.array_equal(phi(jobs, 1.0, rng).estimate_ms, jobs.run_ms)


def test_estimates_are_cut_at_the_maximum_time() -> None:
    jobs = workload_of(np.full(1000, MAX_TIME_MS))
    assert np.all(phi(jobs, 0.0, np.random.default_rng(4)).estimate_ms == MAX_TIME_MS)
    assert np.all(omega(jobs, 1e300, np.random.default_rng(4)).estimate_ms == MAX_TIME_MS)


@given(
    run_ms=st.lists(st.integers(1, MAX_TIME_MS), max_size=50),
    model=st.sampled_from(["perfect", "omega:0.7", "omega:1e6", "phi:0", "phi:0.5", "phi:1"]),
    seed=st.integers(0, 1000),
)
def test_only_estimates_change(run_ms: list[int], model: str, seed: int) -> None:
    """They stay between the run time and the maximum time."""
    before = workload_of(np.array(run_ms, np.int64), overran=True)
    after = with_estimates(before, model, np.random.default_rng(seed))
    for name in ("job_id", "submit_ms", "width", "run_ms"):
        assert np.array_equal(getattr(before, name), getattr(after, name))
    assert np.array_equal(before.columns["user"], after.columns["user"])
    assert np.all((after.estimate_ms >= after.run_ms) & (after.estimate_ms <= MAX_TIME_MS))
    assert not after.overran.any()


def test_estimates_depend_only_on_the_seed() -> None:
    jobs = long_jobs()
    first, again, other = (with_estimates(jobs, "phi:0.2", np.random.default_rng(seed)) for seed in (7, 7, 8))
    assert np.array_equal(first.estimate_ms, again.estimate_ms)
    assert not np.array_equal(first.estimate_ms, other.estimate_ms)


def test_keep_returns_the_same_workload() -> None:
    jobs = long_jobs()
    assert with_estimates(jobs, "keep", np.random.default_rng(0)) is jobs


@pytest.mark.parametrize(
    ("model", "option"),
    [
        ("omega:-0.1", "omega"),
        ("omega:nan", "omega"),
        ("omega:inf", "omega"),
        ("phi:1.01", "phi"),
        ("phi:-1", "phi"),
        ("phi:nan", "phi"),
        ("phi", "estimates"),
        ("phi:x", "estimates"),
        ("keep:1", "estimates"),
        ("", "estimates"),
        ("gamma:2", "estimates"),
    ],
)
def test_unknown_models_and_invalid_parameters_are_refused(model: str, option: str) -> None:
    with pytest.raises(OptionError) as error:
        with_estimates(long_jobs(), model, np.random.default_rng(0))
    assert error.value.option == option

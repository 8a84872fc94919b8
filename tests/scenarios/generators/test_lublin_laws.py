"""The distributions of the Lublin and Feitelson model: sizes, run times, gaps and the daily cycle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gamma, kstest

from gridweave.scenarios.generators.lublin import (
    BATCH_JOBS,
    DAY_S,
    INTERACTIVE_JOBS,
    WHOLE_SAMPLE,
    LublinJobs,
    daily_cycle,
    draw_gaps,
    draw_run_s,
    draw_widths,
    factor_for_span,
)

TYPES = {"whole": WHOLE_SAMPLE, "batch": BATCH_JOBS, "interactive": INTERACTIVE_JOBS}


@settings(max_examples=200)
@given(nodes=st.integers(2, 10**7), kind=st.sampled_from(list(TYPES)))
def test_the_size_range_fits_any_machine(nodes: int, kind: str) -> None:
    """Low, med and hi ascend up to the machine size, and med keeps its distance on large machines."""
    jobs = TYPES[kind]
    low, med, hi = jobs.size_range(nodes)
    assert low == jobs.low <= med <= hi
    assert hi == max(math.log2(nodes) - jobs.hi_offset, low)
    if hi >= 2 * jobs.med_offset:
        assert med == hi - jobs.med_offset


def test_a_small_machine_has_the_suggested_med() -> None:
    """On 8 nodes the authors suggest a med of 1.5."""
    assert WHOLE_SAMPLE.size_range(8) == (0.8, 1.5, 3.0)


@pytest.mark.parametrize("nodes", [3, 100, 128, 430])
@pytest.mark.parametrize("jobs", TYPES.values(), ids=TYPES)
def test_sizes_have_the_two_stage_distribution(jobs: LublinJobs, nodes: int) -> None:
    """Serial jobs and powers of two have their shares; other sizes are two-stage uniform in log2."""
    n = 200_000
    width = draw_widths(jobs, nodes, n, np.random.default_rng(1))
    low, med, hi = jobs.size_range(nodes)

    def below(exponent: float) -> float:
        """Return the part of the parallel jobs with an exponent below this one."""
        first = np.interp(exponent, [low, med], [0, 1]) if med > low else float(exponent >= med)
        second = np.interp(exponent, [med, hi], [0, 1]) if hi > med else float(exponent >= hi)
        return float(jobs.prob * first + (1 - jobs.prob) * second)

    top = nodes.bit_length() - 1
    for size in range(2, min(nodes, 80) + 1):
        share = (1 - jobs.serial - jobs.pow2) * (below(math.log2(size + 0.5)) - below(math.log2(size - 0.5)))
        if size & (size - 1) == 0:
            power = size.bit_length() - 1
            share += jobs.pow2 * ((1 if power == top else below(power + 0.5)) - below(power - 0.5))
        # Machines that are cut at their size have the rest of the distribution in their last node: checked as a sum.
        if size < nodes:
            bound = 4.5 * math.sqrt(max(share, 1e-5) / n)
            assert np.mean(width == size) == pytest.approx(share, abs=bound), size
    assert np.mean(width == 1) == pytest.approx(jobs.serial, abs=4.5 * math.sqrt(0.25 / n))


@pytest.mark.parametrize("jobs", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("width", [1, 32, 200])
def test_run_times_are_truncated_hyper_gamma(jobs: LublinJobs, width: int) -> None:
    """For n nodes, p = pa n + pb; logarithms above 12 are drawn again."""
    p = min(max(jobs.pa * width + jobs.pb, 0), 1)
    first, second = gamma(jobs.a1, scale=jobs.b1), gamma(jobs.a2, scale=jobs.b2)
    run_s = draw_run_s(jobs, np.full(40_000, width), np.random.default_rng(width))
    whole = p * first.cdf(12) + (1 - p) * second.cdf(12)
    # Whole seconds, rounded down: P(run < k) is the distribution function at ln k, for every whole k.
    seconds = np.unique(run_s)
    found = np.searchsorted(np.sort(run_s), seconds, side="left") / len(run_s)
    expected = (p * first.cdf(np.log(seconds)) + (1 - p) * second.cdf(np.log(seconds))) / whole
    assert np.abs(found - expected).max() < 1.95 / math.sqrt(len(run_s))  # exceeded once in a thousand seeds
    assert run_s.min() >= 1
    assert run_s.max() <= math.floor(math.exp(12)) == 162_754


@pytest.mark.parametrize("jobs", TYPES.values(), ids=TYPES)
def test_gaps_are_truncated_gamma(jobs: LublinJobs) -> None:
    """The logarithm of a gap in points is gamma(aarr arar, barr), drawn again above 13."""
    law = gamma(jobs.aarr * jobs.arar, scale=jobs.barr)
    log_gap = np.log(draw_gaps(jobs.aarr * jobs.arar, jobs.barr, 40_000, np.random.default_rng(1)))
    assert kstest(log_gap, lambda x: law.cdf(x) / law.cdf(13)).statistic < 1.95 / math.sqrt(40_000)
    assert log_gap.max() <= 13


@pytest.mark.parametrize("jobs", TYPES.values(), ids=TYPES)
def test_the_daily_cycle_is_a_wrapped_gamma_distribution(jobs: LublinJobs) -> None:
    cycle = daily_cycle(jobs.anum, jobs.bnum)
    law = gamma(jobs.anum, scale=jobs.bnum)
    assert cycle.weights.mean() == pytest.approx(1)
    mass = {i: law.cdf(i + 0.5) - law.cdf(i - 0.5) for i in range(11, 59)}
    for i, one in mass.items():
        assert cycle.weights[(i - 1) % 48] == pytest.approx(48 * one / sum(mass.values()))
    assert cycle.points[-1] == pytest.approx(DAY_S)


@given(times=st.lists(st.floats(0, 1e9), min_size=1, max_size=30), kind=st.sampled_from(list(TYPES)))
def test_points_and_times_are_inverse(times: list[float], kind: str) -> None:
    cycle = daily_cycle(TYPES[kind].anum, TYPES[kind].bnum)
    ordered = np.sort(times)
    days, rest = np.divmod(ordered, DAY_S)
    points = days * DAY_S + np.interp(rest, np.arange(49) * (DAY_S / 48), cycle.points)
    assert cycle.time_s(points) == pytest.approx(ordered, rel=1e-9, abs=1e-3)
    assert cycle.time_s(points + DAY_S) == pytest.approx(ordered + DAY_S, rel=1e-9, abs=1e-3)


def test_arrivals_equal_a_walk_through_the_buckets() -> None:
    """The authors describe arrivals as such a walk."""
    cycle = daily_cycle(WHOLE_SAMPLE.anum, WHOLE_SAMPLE.bnum)
    gaps = draw_gaps(10.46, 0.4871, 3000, np.random.default_rng(3))
    bucket, paid_s, walked = 0, 0.0, []  # seconds of the present bucket that are gone
    days = 0
    for gap in gaps.tolist():
        left = gap
        while left > (1800 - paid_s) * cycle.weights[bucket]:
            left -= (1800 - paid_s) * cycle.weights[bucket]
            paid_s = 0.0
            days, bucket = days + (bucket == 47), (bucket + 1) % 48
        paid_s += left / cycle.weights[bucket]
        walked.append(days * DAY_S + bucket * 1800 + paid_s)
    assert cycle.time_s(np.cumsum(gaps)) == pytest.approx(np.array(walked), abs=1e-3)


def test_the_factor_for_a_span_reaches_it() -> None:
    cycles = [daily_cycle(jobs.anum, jobs.bnum) for jobs in (INTERACTIVE_JOBS, BATCH_JOBS)]
    points = [np.array([10.0, 5e4]), np.array([700.0])]
    for span_s in (1e-3, 1.0, 1e5, 1e10):
        factor = factor_for_span(cycles, points, span_s)
        times = np.concatenate([cycle.time_s(own * factor) for cycle, own in zip(cycles, points, strict=True)])
        assert times.max() - times.min() == pytest.approx(span_s, rel=1e-9)

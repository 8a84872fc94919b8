"""Work and rates in fixed point."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gridweave.site.job import MAX_TIME_MS
from gridweave.site.kernels.rates import RATE_ONE, late_end_ms, rate_of, work_done_ms, work_left, work_of
from gridweave.site.kernels.state import NEVER_MS

RATES = st.integers(1, RATE_ONE)


@given(length_ms=st.integers(1, 10**9), changes=st.lists(st.tuples(st.integers(0, 10**6), RATES), max_size=12))
def test_what_is_left_is_exact_after_any_number_of_changes(length_ms: int, changes: list[tuple[int, int]]) -> None:
    """The work that is left equals the length less the exact sum of rate times time, until nothing is left."""
    left, now_ms, exact = work_of(length_ms), 0, Fraction(length_ms)
    for lasted_ms, rate in changes:
        left = work_left(left, rate, now_ms, now_ms + lasted_ms)
        now_ms += lasted_ms
        exact = max(Fraction(0), exact - Fraction(rate, RATE_ONE) * lasted_ms)
    assert Fraction(left, RATE_ONE) == exact


@given(left=st.integers(1, 10**14), rate=RATES, now_ms=st.integers(0, 10**12))
def test_a_job_ends_at_the_first_millisecond_that_sees_its_work_done(left: int, rate: int, now_ms: int) -> None:
    """At its end nothing is left, and a millisecond earlier something is."""
    end_ms = work_done_ms(left, rate, now_ms)
    assert work_left(left, rate, now_ms, end_ms) == 0
    assert work_left(left, rate, now_ms, end_ms - 1) > 0


def test_the_longest_time_fits() -> None:
    """The longest length that a job may have ends when it should at rate 1, without overflow."""
    assert work_done_ms(work_of(MAX_TIME_MS), RATE_ONE, 5) == MAX_TIME_MS + 5


def test_a_paused_job_never_ends_and_a_done_one_ends_now() -> None:
    """Rate 0 moves an end beyond all instants, unless nothing is left to do."""
    assert work_done_ms(work_of(1), 0, 7) == NEVER_MS
    assert work_done_ms(0, 0, 7) == 7
    assert work_left(work_of(3), 0, 7, 1_000) == work_of(3)


@given(slowdown=st.floats(1, 1e9))
def test_a_rate_is_the_nearest_there_is(slowdown: float) -> None:
    """A slowdown becomes the nearest of the rates above zero."""
    rate = rate_of(slowdown)
    assert 1 <= rate <= RATE_ONE
    assert rate == 1 or abs(rate - RATE_ONE / slowdown) <= 0.5


@given(left=st.integers(0, 10**12), rate=RATES, now_ms=st.integers(0, 10**12))
def test_what_is_late_goes_on_at_its_rate(left: int, rate: int, now_ms: int) -> None:
    """A late job is expected at its present rate, and one that stands still as if it went on at rate 1."""
    assert late_end_ms(left, rate, now_ms) == work_done_ms(left, rate, now_ms)
    assert late_end_ms(left, 0, now_ms) == work_done_ms(left, RATE_ONE, now_ms)

"""Work, rates and ends."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gridweave.site.job import MAX_TIME_MS
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import (
    RATE_ONE,
    begin_work,
    change_rate,
    first_end_ms,
    late_end_ms,
    no_ends,
    no_work,
    pop_end,
    push_end,
    rate_of,
    stop_work,
    work_done_ms,
    work_left,
    work_of,
)

RATES = st.integers(1, RATE_ONE)
ROWS = 12


@given(length_ms=st.integers(1, 10**9), changes=st.lists(st.tuples(st.integers(0, 10**6), RATES), max_size=12))
def test_what_is_left_is_exact_after_any_number_of_changes(length_ms: int, changes: list[tuple[int, int]]) -> None:
    """The work that is left equals the length less the exact sum of rate times time, until nothing is left."""
    left, now_ms, exact = work_of(length_ms), 0, Fraction(length_ms)
    for lasted_ms, rate in changes:
        left = work_left(left, rate, now_ms, now_ms + lasted_ms)
        now_ms += lasted_ms
        exact = max(Fraction(0), exact - Fraction(rate, RATE_ONE) * lasted_ms)
    assert Fraction(int(left), RATE_ONE) == exact


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


class _Heap:
    """The kernels' table and heap, and beside them what they should be: plain numbers, looked through at every step."""

    def __init__(self) -> None:
        self.ends, self.work = no_ends(ROWS), no_work(ROWS)
        self.expected: dict[int, tuple[Fraction, int]] = {}  # what is left, and the rate
        self.now_ms = 0

    def pass_time(self, lasts_ms: int) -> None:
        """Let time pass, but not beyond an end."""
        lasts_ms = min([lasts_ms, *(end_ms - self.now_ms for end_ms, _ in self.true_ends())])
        self.now_ms += lasts_ms
        for row, (left, rate) in self.expected.items():
            self.expected[row] = left - Fraction(rate, RATE_ONE) * lasts_ms, rate

    def true_ends(self) -> list[tuple[int, int]]:
        """Return when each row ends that does, in the order in which they do."""
        running = ((row, left, rate) for row, (left, rate) in self.expected.items() if rate > 0 or left <= 0)
        return sorted(
            (self.now_ms + max(0, math.ceil(left * RATE_ONE / rate)) if rate else self.now_ms, -row)
            for row, left, rate in running
        )

    def change(self, row: int, length_ms: int, rate: int) -> None:
        """Begin, change or stop the work of a row."""
        if row not in self.expected:
            self.expected[row] = Fraction(length_ms), rate
            begin_work(self.ends, self.work, row, -row, work_of(length_ms), rate, self.now_ms)
        elif length_ms % 5 == 0:
            del self.expected[row]
            stop_work(self.ends, self.work, row)
        else:
            self.expected[row] = self.expected[row][0], rate
            change_rate(self.ends, self.work, row, rate, self.now_ms)

    def check(self) -> None:
        """Compare the first end, and that the heap and the table know each other's places."""
        ends = self.true_ends()
        assert first_end_ms(self.ends) == (ends[0][0] if ends else NEVER_MS)
        assert int(self.ends.size[0]) == len(ends)
        for place in range(len(ends)):
            assert self.work[self.ends.heap[place]["row"]]["place"] == place

    def take_all(self) -> list[tuple[int, int]]:
        """Take all ends out of the heap, in its order."""
        taken = []
        while self.ends.size[0]:
            first = self.ends.heap[0]
            taken.append((int(first["end_ms"]), int(first["job_id"])))
            assert pop_end(self.ends, self.work) == -taken[-1][1]
        return taken


CHANGES = st.tuples(st.integers(0, ROWS - 1), st.integers(1, 50), st.sampled_from([0, 1, RATE_ONE // 3, RATE_ONE]))


@given(steps=st.lists(st.tuples(st.integers(0, 20), CHANGES), max_size=60))
def test_ends_come_in_their_order_whatever_begins_pauses_and_stops(
    steps: list[tuple[int, tuple[int, int, int]]],
) -> None:
    """The heap holds each end once, the earliest first and at one instant by job id, as exact fractions say."""
    heap = _Heap()
    for lasts_ms, change in steps:
        heap.pass_time(lasts_ms)
        heap.change(*change)
        heap.check()
    ends = heap.true_ends()
    assert heap.take_all() == ends


def test_a_heap_without_a_table_has_the_same_order() -> None:
    """Where no rate changes there is no table, and ends come out as they do with one."""
    ends = no_ends(ROWS)
    for row, end_ms in enumerate([5, 3, 5, 9, 1, 3]):
        push_end(ends, None, end_ms, 10 - row, row)
    assert [pop_end(ends, None) for _ in range(6)] == [4, 5, 1, 2, 0, 3]

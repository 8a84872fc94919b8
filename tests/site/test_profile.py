"""Availability profiles against the plainest of all: one number per instant."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.site.kernels.profile import advance, clear, earliest_fit, occupy
from gridweave.site.kernels.state import NEVER_MS

HORIZON = 60
WIDTH = 6

occupations = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15), st.integers(1, WIDTH)), max_size=12)


def make(taken: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
    """Return a profile and the plain list, with each occupation entered that fits."""
    step_ms, step_free = np.zeros(100, np.int64), np.zeros(100, np.int64)
    n = clear(step_ms, step_free, np.int64(0), np.int64(WIDTH))
    plain = np.full(HORIZON, WIDTH)
    for start, length, width in taken:
        if plain[start : start + length].min() >= width:
            n = occupy(step_ms, step_free, n, np.int64(start), np.int64(start + length), np.int64(width))
            plain[start : start + length] -= width
    return step_ms, step_free, n, plain


def flat(step_ms: np.ndarray, step_free: np.ndarray, n: int) -> np.ndarray:
    """Return what a profile says for each instant."""
    return step_free[:n][np.searchsorted(step_ms[:n], np.arange(HORIZON), side="right") - 1]


@settings(max_examples=300, deadline=None)
@given(occupations)
def test_occupations_add_up(taken: list[tuple[int, int, int]]) -> None:
    """A profile says the same as the plain list at every instant, in as few steps as that needs."""
    step_ms, step_free, n, plain = make(taken)
    assert (flat(step_ms, step_free, n) == plain).all()
    assert n == 1 + np.count_nonzero(np.diff(plain))


@settings(max_examples=300, deadline=None)
@given(occupations, st.data())
def test_giving_back_undoes(taken: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Taking occupations out again, in any order, leaves everything free."""
    step_ms, step_free, n, plain = make([])
    entered = []
    for start, length, width in taken:
        if plain[start : start + length].min() >= width:
            n = occupy(step_ms, step_free, n, np.int64(start), np.int64(start + length), np.int64(width))
            plain[start : start + length] -= width
            entered.append((start, length, width))
    for start, length, width in data.draw(st.permutations(entered)):
        n = occupy(step_ms, step_free, n, np.int64(start), np.int64(start + length), np.int64(-width))
    assert n == 1
    assert step_free[0] == WIDTH


@settings(max_examples=300, deadline=None)
@given(occupations, st.integers(0, 45), st.integers(1, WIDTH + 1), st.integers(1, 12), st.integers(0, 20))
def test_earliest_fit(taken: list[tuple[int, int, int]], start: int, width: int, length: int, now: int) -> None:
    """The earliest fit is the first instant from which enough is free throughout, also after the past is forgotten."""
    step_ms, step_free, n, plain = make(taken)
    n = advance(step_ms, step_free, n, np.int64(now))
    start = max(start, now)
    long_plain = np.concatenate([plain, np.full(HORIZON, WIDTH)])
    fits = [t for t in range(start, HORIZON + 1) if long_plain[t : t + length].min() >= width]
    want = fits[0] if fits else NEVER_MS
    assert earliest_fit(step_ms, step_free, n, np.int64(start), np.int64(width), np.int64(length)) == want

"""Spans of time as people read and type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.site.times import parse_time_ms, span_text, typed_time

TABLE = json.loads((Path(__file__).parents[1] / "data" / "spans.json").read_text(encoding="utf-8"))
"""Spans in ms and their texts; the browser tests hold the pages' JavaScript against the same table."""


@pytest.mark.parametrize(("span_ms", "text"), TABLE)
def test_a_span_is_written_in_at_most_two_units(span_ms: float, text: str) -> None:
    """The second unit is left out where it is zero."""
    assert span_text(span_ms) == text


@given(span_ms=st.integers(10_000, 10**12))
def test_a_span_as_written_is_within_half_of_its_second_unit(span_ms: int) -> None:
    """What is written is the nearest of all spans that can be written."""
    units_ms = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1000}
    words = span_text(span_ms).split()
    written_ms = sum(int(count) * units_ms[unit] for count, unit in zip(words[::2], words[1::2], strict=True))
    smaller_ms = {"d": 3_600_000, "h": 60_000}.get(words[1], 1000)
    assert abs(written_ms - span_ms) <= smaller_ms / 2
    assert len(words) <= 4


@given(span_ms=st.integers(0, 10**12))
def test_a_span_as_typed_is_read_again_exactly(span_ms: int) -> None:
    """A span that is shown to be typed loses nothing."""
    assert parse_time_ms("--limit", typed_time(span_ms)) == span_ms

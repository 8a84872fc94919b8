"""Probe measurements: robust, aged, and safe to repeat."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError
from gridweave.netmodel.correction import Measurements, PairMeasured


def test_a_pair_has_the_medians_of_its_probes() -> None:
    seen = Measurements()
    for at_ms, samples in enumerate([[10.0, 12.0, 30.0], [11.0, 11.0], [9.0, 14.0, 15.0]]):
        seen.add_round_trip("a", "b", at_ms, samples)
    for at_ms, speed in enumerate([1e8, 9e8, 2e8, 8e8, 5e8]):
        seen.add_bandwidth("a", "b", at_ms, speed)
    assert seen.pair("a", "b", 10) == PairMeasured(
        origin="a",
        target="b",
        round_trip_ms=12.0,
        least_ms=10.0,
        bandwidth_bps=5e8,
        round_trips=3,
        bandwidths=3,
        newest_ms=4,
    )


def test_a_round_trip_counts_for_both_directions_and_bandwidth_for_one() -> None:
    seen = Measurements()
    seen.add_round_trip("a", "b", 1, [10.0])
    seen.add_round_trip("b", "a", 2, [20.0])
    seen.add_bandwidth("b", "a", 3, 1e9)
    there, back = seen.pair("a", "b", 5), seen.pair("b", "a", 5)
    assert there is not None
    assert back is not None
    assert (there.round_trip_ms, there.round_trips, there.bandwidth_bps, there.newest_ms) == (10.0, 2, None, 2)
    assert (back.round_trip_ms, back.round_trips, back.bandwidth_bps, back.newest_ms) == (10.0, 2, 1e9, 3)
    assert seen.pair("a", "c", 5) is None


@given(st.floats(1, 100), st.floats(0, 1e6), st.integers(0, 4))
def test_a_single_outlier_does_not_change_the_round_trip(true_ms: float, wrong_ms: float, place: int) -> None:
    seen = Measurements()
    for at_ms in range(5):
        seen.add_round_trip("a", "b", at_ms, [wrong_ms] if at_ms == place else [true_ms] * 3)
        found = seen.pair("a", "b", at_ms)
        assert found is not None
        if at_ms >= 2:
            assert (found.round_trip_ms, found.least_ms) == (true_ms, true_ms)


@given(st.floats(1, 100), st.floats(1, 100), st.integers(1, 5))
def test_two_probes_establish_a_change(before_ms: float, after_ms: float, probes: int) -> None:
    seen = Measurements()
    for at_ms in range(probes + 2):
        seen.add_round_trip("a", "b", at_ms, [before_ms if at_ms < probes else after_ms])
        seen.add_bandwidth("a", "b", at_ms, 1e6 * (before_ms if at_ms < probes else after_ms))
    found = seen.pair("a", "b", probes + 2)
    assert found is not None
    assert (found.round_trip_ms, found.bandwidth_bps) == (after_ms, 1e6 * after_ms)


def test_a_single_outlier_does_not_change_the_bandwidth() -> None:
    seen = Measurements()
    for at_ms, speed in enumerate([1e9, 1e9, 2e8, 1e9, 1e12, 1e9]):
        seen.add_bandwidth("a", "b", at_ms, speed)
        found = seen.pair("a", "b", at_ms)
        assert found is not None
        assert found.bandwidth_bps == 1e9


def test_old_measurements_do_not_count() -> None:
    seen = Measurements(window=3, round_trip_age_ms=100, bandwidth_age_ms=1000)
    for at_ms in range(5):
        seen.add_round_trip("a", "b", at_ms, [float(at_ms)])
    seen.add_bandwidth("a", "b", 0, 5e8)
    found = seen.pair("a", "b", 5)
    assert found is not None
    assert (found.round_trips, found.round_trip_ms) == (3, 3.0)
    found = seen.pair("a", "b", 103)
    assert found is not None
    assert (found.round_trips, found.round_trip_ms) == (1, 4.0)
    found = seen.pair("a", "b", 104)
    assert found is not None
    assert (found.round_trip_ms, found.least_ms, found.bandwidth_bps) == (None, None, 5e8)
    assert seen.pair("a", "b", 1000) is None
    assert seen.pair("b", "a", 1000) is None
    assert seen.pairs(1000) == []


@given(st.permutations(range(24)))
def test_repeated_and_reordered_measurements_do_not_matter(order: list[int]) -> None:
    straight, mixed = Measurements(window=24), Measurements(window=24)
    for at_ms in range(24):
        straight.add_round_trip("a", "b", at_ms, [float(at_ms % 5), 9.0])
        straight.add_bandwidth("a", "b", at_ms, 1e9 + at_ms)
    for at_ms in [*order, *order[:7]]:
        mixed.add_bandwidth("a", "b", at_ms, 1e9 + at_ms)
        mixed.add_round_trip("a", "b", at_ms, [9.0, float(at_ms % 5)])
    assert mixed.pairs(30) == straight.pairs(30)


def test_pairs_are_in_the_order_of_the_sites() -> None:
    """A round trip yields a pair in each direction."""
    seen = Measurements()
    seen.add_round_trip("c", "a", 1, [10.0])
    seen.add_bandwidth("b", "a", 1, 1e9)
    assert [(pair.origin, pair.target) for pair in seen.pairs(2)] == [("a", "c"), ("b", "a"), ("c", "a")]
    assert [(pair.origin, pair.target) for pair in seen.pairs(2, ["c", "x", "a"])] == [("c", "a"), ("a", "c")]


@pytest.mark.parametrize("samples", [[], [-1.0], [1.0, math.inf], [math.nan], [2.0, math.nan]])
def test_invalid_round_trips_are_refused(samples: list[float]) -> None:
    seen = Measurements()
    with pytest.raises(InputError, match="round trips from a to b"):
        seen.add_round_trip("a", "b", 1, samples)
    assert seen.pairs(2) == []


@pytest.mark.parametrize("speed", [0.0, -1.0, math.inf, math.nan])
def test_invalid_bandwidths_are_refused(speed: float) -> None:
    seen = Measurements()
    with pytest.raises(InputError, match="bandwidth from a to b"):
        seen.add_bandwidth("a", "b", 1, speed)
    assert seen.pairs(2) == []


def test_a_probe_from_a_site_to_itself_is_refused() -> None:
    seen = Measurements()
    with pytest.raises(InputError, match="from a to itself"):
        seen.add_round_trip("a", "a", 1, [1.0])
    with pytest.raises(InputError, match="from a to itself"):
        seen.add_bandwidth("a", "a", 1, np.float64(1.0))


@pytest.mark.parametrize("option", ["window", "round_trip_age_ms", "bandwidth_age_ms"])
def test_options_below_one_are_refused(option: str) -> None:
    with pytest.raises(OptionError, match=option):
        Measurements(**{option: 0})

"""Columns for messages and data: constant or drawn, each independent of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import OptionError
from gridweave.grid.sends import MAX_BYTES
from gridweave.netmodel.communication import PATTERNS
from gridweave.scenarios.workload.columns import AT_HOME, PATTERN_NAMES, with_communication, with_data
from gridweave.scenarios.workload.table import Workload

SITES = ("alpha", "beta", "gamma")


def jobs(count: int) -> Workload:
    """Return jobs that differ only in their ids."""
    ones = np.ones(count, np.int64)
    return Workload(job_id=np.arange(count), submit_ms=0 * ones, width=4 * ones, estimate_ms=9 * ones, run_ms=9 * ones)


def sending(count: int, seed: int = 1, **changes: Any) -> Workload:
    """Return jobs that communicate."""
    options: dict[str, Any] = {"pattern": "ring", "fraction": 0.2, "message_bytes": 1e6} | changes
    return with_communication(jobs(count), **options, rng=np.random.default_rng(seed))


def moving(count: int, seed: int = 1, **changes: Any) -> Workload:
    """Return jobs with data, whose users are at the sites in turn."""
    home = np.arange(count) % len(SITES)
    return with_data(jobs(count), home=home, sites=SITES, **changes, rng=np.random.default_rng(seed))


def names(workload: Workload) -> list[str]:
    """Return the pattern of each job."""
    return [PATTERN_NAMES[code] for code in workload.columns["pattern"]]


def test_constant_values_do_not_depend_on_the_generator() -> None:
    for seed in (1, 2):
        workload = sending(5, seed)
        assert names(workload) == ["ring"] * 5
        assert workload.columns["communication_fraction"].tolist() == [0.2] * 5
        assert workload.columns["message_bytes"].tolist() == [1_000_000] * 5


def test_jobs_with_pattern_none_have_no_messages() -> None:
    workload = sending(3, pattern="none", fraction=(0.1, 0.5), message_bytes=(10, 1e6))
    assert not workload.columns["communication_fraction"].any()
    assert not workload.columns["message_bytes"].any()


def test_patterns_are_drawn_by_their_shares() -> None:
    """A share of 0 is never drawn, and the shares need not sum to 1."""
    drawn = names(sending(20_000, pattern={"ring": 3, "all-to-all": 1, "3d-neighbours": 0}))
    assert set(drawn) == {"ring", "all-to-all"}
    assert drawn.count("ring") == pytest.approx(15_000, abs=5 * np.sqrt(20_000 * 3 / 16))


@given(
    low=st.floats(0, 1),
    high=st.floats(0, 1),
    bytes_low=st.integers(1, MAX_BYTES),
    bytes_high=st.integers(1, MAX_BYTES),
    seed=st.integers(0, 9),
)
def test_drawn_values_stay_in_their_range(low: float, high: float, bytes_low: int, bytes_high: int, seed: int) -> None:
    fraction, size = sorted((low, high)), sorted((bytes_low, bytes_high))
    workload = sending(50, seed, fraction=fraction, message_bytes=[float(end) for end in size])
    drawn = workload.columns["communication_fraction"]
    assert fraction[0] <= drawn.min() <= drawn.max() <= fraction[1]
    sizes = workload.columns["message_bytes"]
    assert size[0] <= sizes.min() <= sizes.max() <= size[1]


def test_sizes_are_log_uniform_and_fractions_uniform() -> None:
    workload = sending(30_000, message_bytes=(1e3, 1e9), fraction=(0.2, 0.4))
    decades = np.histogram(np.log10(workload.columns["message_bytes"].astype(np.float64)), [3, 5, 7, 9.0001])[0]
    assert decades == pytest.approx([10_000] * 3, abs=5 * np.sqrt(30_000 * 2 / 9))
    assert float(np.mean(workload.columns["communication_fraction"])) == pytest.approx(0.3, abs=0.002)


def test_drawing_one_column_does_not_change_another() -> None:
    """More jobs begin with the same ones."""
    fixed, drawn = (
        sending(40, pattern={"ring": 1, "none": 1}),
        sending(40, pattern={"ring": 1, "none": 1}, fraction=(0, 1)),
    )
    assert names(fixed) == names(drawn)
    more = sending(60, pattern={"ring": 1, "none": 1}, fraction=(0, 1))
    for name, values in drawn.columns.items():
        assert more.columns[name][:40].tolist() == values.tolist()


def test_data_is_at_the_home_site_or_at_drawn_sites() -> None:
    workload = moving(6, input_bytes=1e9, output_bytes=5, output_site="gamma")
    assert workload.columns["input_site"].tolist() == [0, 1, 2, 0, 1, 2]
    assert workload.columns["output_site"].tolist() == [2] * 6
    assert workload.columns["input_bytes"].tolist() == [10**9] * 6
    assert workload.columns["output_bytes"].tolist() == [5] * 6
    drawn = moving(9_000, input_site={"alpha": 1, "gamma": 2}).columns["input_site"]
    assert set(drawn.tolist()) == {0, 2}
    assert int(np.count_nonzero(drawn == 2)) == pytest.approx(6_000, abs=5 * np.sqrt(9_000 * 2 / 9))


def test_other_columns_are_kept() -> None:
    workload = jobs(2).replace(columns={"user": np.array([7, 8])})
    rng = np.random.default_rng(1)
    both = with_data(
        with_communication(workload, pattern="ring", fraction=0.1, message_bytes=1, rng=rng),
        home=[0, 0],
        sites=SITES,
        rng=rng,
    )
    assert both.columns["user"].tolist() == [7, 8]
    assert {"pattern", "input_site"} <= set(both.columns)


def test_pattern_codes_follow_the_order_of_the_network_model() -> None:
    assert names(sending(1, pattern=PATTERN_NAMES[-1])) == [list(PATTERNS)[-1]]
    assert set(PATTERN_NAMES) == set(PATTERNS)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pattern": "gossip"}, "pattern: 'gossip' is not known; one of none, all-to-all, ring"),
        ({"pattern": {"ring": 0.0}}, "pattern: has no share above 0"),
        ({"pattern": {"ring": -1.0, "none": 2.0}}, "pattern: has a share of -1 for ring; a number from 0 up"),
        ({"fraction": 1.5}, "fraction: is 1.5; expected a fraction of the run time, from 0 to 1"),
        (
            {"fraction": (0.5, 0.1)},
            "fraction: is [0.5, 0.1]; expected one number, or the lower and the upper end of a range",
        ),
        ({"fraction": (0.1, 0.2, 0.3)}, "fraction: is [0.1, 0.2, 0.3]; expected one number"),
        ({"message_bytes": float("nan")}, "message_bytes: is nan; bytes, from 0 to"),
        (
            {"message_bytes": (0, 1e6)},
            "message_bytes: is drawn from 0 up; sizes are drawn log-uniformly, from at least 1 byte",
        ),
    ],
)
def test_invalid_patterns_shares_and_ranges_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError) as caught:
        sending(3, **changes)
    assert told in str(caught.value)


def test_unknown_sites_are_refused() -> None:
    with pytest.raises(
        OptionError, match="input_site: there is no site 'delta'; give home, or one of alpha, beta, gamma"
    ):
        moving(3, input_site="delta")
    assert moving(3, input_site=AT_HOME).columns["input_site"].tolist() == [0, 1, 2]

"""Ids of the jobs of a workload."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridweave.scenarios.workload.table import repeated_id


@given(st.lists(st.integers(0, 12), max_size=8))
def test_the_smallest_id_that_stands_twice(ids: list[int]) -> None:
    """The smallest id that stands more than once is found, wherever it stands; and none if there is none."""
    assert repeated_id(np.array(ids, np.int64)) == min((one for one in ids if ids.count(one) > 1), default=None)

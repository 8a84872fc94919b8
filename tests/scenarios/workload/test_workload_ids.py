"""Ids of the jobs of a workload."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gridweave.scenarios.workload.table import repeated_id


@given(st.lists(st.integers(0, 12), max_size=8))
def test_the_smallest_repeated_id_is_found(ids: list[int]) -> None:
    assert repeated_id(np.array(ids, np.int64)) == min((one for one in ids if ids.count(one) > 1), default=None)

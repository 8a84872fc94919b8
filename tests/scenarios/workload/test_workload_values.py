"""The values that a workload accepts: whole numbers, never truncated fractions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gridweave.errors import InputError
from gridweave.scenarios.workload.table import Workload

GOOD: dict[str, Any] = {
    "job_id": [1, 2],
    "submit_ms": [0, 5],
    "width": [1, 2],
    "estimate_ms": [10, 20],
    "run_ms": [10, 15],
}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"submit_ms": [0.0, 1.9]}, r"submit_ms\[1\] is 1.9; expected whole numbers, with times in milliseconds"),
        ({"run_ms": [np.nan, 1.0]}, r"run_ms\[0\] is nan"),
        ({"estimate_ms": [np.inf, 20.0]}, r"estimate_ms\[0\] is inf"),
        ({"width": [1e30, 1.0]}, r"width\[0\] is 1e\+30"),
        ({"job_id": ["a", "b"]}, "job_id holds 'a'"),
        ({"job_id": [2**70, 1]}, "job_id holds 1180591620717411303424"),
        ({"job_id": np.array([1, 2**63], np.uint64)}, r"job_id\[1\] is 9223372036854775808"),
        ({"submit_ms": np.array(["2020-01-01", "2020-01-02"], "datetime64[s]")}, "submit_ms holds"),
        ({"width": [[1], [1, 2]]}, "width holds"),
        ({"width": None}, "width holds None"),
        ({"columns": {"user": [1.5, 2.0]}}, r"user\[0\] is 1.5"),
        ({"columns": {"user": ["anna", "berta"]}}, "user holds 'anna'"),
        ({"columns": {"weight": ["a", "b"]}}, "weight holds 'a'"),
        ({"columns": {"weight": [1.0, np.nan]}}, "job 2: weight nan is not a weight"),
        ({"columns": {"weight": [0.0, 1.0]}}, "job 1: weight 0.0 is not a weight"),
    ],
)
def test_fractions_and_text_are_refused_with_the_column(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=f"^workload: {says}") as caught:
        Workload(**(GOOD | wrong))
    assert "\n" not in str(caught.value)


def test_whole_numbers_of_any_type_are_accepted() -> None:
    """Pandas stores integer columns with missing values as floats."""
    workload = Workload(**(GOOD | {"submit_ms": [0.0, 5.0], "width": np.array([1, 2], np.uint8)}))
    assert workload.submit_ms.dtype == workload.width.dtype == np.int64
    assert workload.submit_ms.tolist() == [0, 5]
    assert len(Workload([], [], [], [], [])) == 0

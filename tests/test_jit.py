"""What is prepared to be called many times does what the kernel does."""

from __future__ import annotations

import numpy as np

from gridweave.grid.kernels.overhead import stretched_ms
from gridweave.jit import prepared


def test_code_that_was_found_before_is_not_taken_for_arrays_of_another_layout() -> None:
    """Tables that lie dense in memory, with gaps, and of whole numbers are each read as what they are."""
    dense = np.array([1.0, 2.0, 3.0])
    gaps = np.array([4.0, 9.0, 5.0, 9.0, 6.0])[::2]
    whole = np.array([7, 8, 9])
    for _ in range(2):
        found = [prepared(stretched_ms, table, 1, 1.0, 1)(table, 3, 1.0, 100) for table in (dense, gaps, whole)]
        assert found == [300, 600, 900]


def test_code_is_found_once_for_arguments_that_are_alike() -> None:
    """A second table of the same layout, of whatever length, needs no look at its type."""
    first = prepared(stretched_ms, np.zeros(2), 1, 1.0, 1)
    assert prepared(stretched_ms, np.ones(5), 7, 0.5, 9) is first

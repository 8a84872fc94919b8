"""Sets of columns (nodes), stored as bits in words: a job's columns in the matrix, or a row's occupied columns."""

from __future__ import annotations

import numpy as np

from gridweave.jit import Int, Ints, kernel, kernel_part

WORD_BITS = 62
"""Number of columns per 64-bit word; the upper bits stay 0, so that no word is negative."""

_FULL = np.int64((1 << WORD_BITS) - 1)


def words_for(nodes: int) -> int:
    """Return the number of words needed for the columns of ``nodes`` nodes."""
    return -(-nodes // WORD_BITS)


@kernel_part
def overlap(a: Ints, b: Ints) -> bool:
    """Whether two sets have a column in common."""
    common = 0
    for word in range(len(a)):
        common |= a[word] & b[word]
    return common != 0


@kernel_part
def add(target: Ints, other: Ints) -> None:
    """Add the columns of ``other`` to ``target``."""
    for word in range(len(target)):
        target[word] |= other[word]


@kernel_part
def remove(target: Ints, other: Ints) -> None:
    """Remove the columns of ``other`` from ``target``."""
    for word in range(len(target)):
        target[word] &= ~other[word]


@kernel_part
def copy(target: Ints, other: Ints) -> None:
    """Overwrite ``target`` with ``other``."""
    for word in range(len(target)):
        target[word] = other[word]


@kernel_part
def count(columns: Ints) -> Int:
    """Return the number of columns in a set."""
    number = 0
    for word in range(len(columns)):
        bits = columns[word]
        while bits:
            bits &= bits - 1
            number += 1
    return number


@kernel
def take_lowest(taken: Ints, width: Int, target: Ints) -> None:
    """Add the ``width`` lowest columns that are not in ``taken`` to ``target``; ``taken`` does not change.

    Parameters
    ----------
    taken : numpy.ndarray of int64, shape (words,)
        At least ``width`` columns must be free. Columns beyond the last node must be marked as taken.
    width : int
    target : numpy.ndarray of int64, shape (words,)
        Must not contain a free column.
    """
    for word in range(len(taken)):
        free = _FULL & ~taken[word]
        while free and width > 0:
            lowest = free & -free
            target[word] |= lowest
            free ^= lowest
            width -= 1
        if width == 0:
            return

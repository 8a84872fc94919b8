"""Sets of nodes as bits in words: the columns of a job in the matrix, and those that are taken in a row."""

from __future__ import annotations

import numpy as np

from gridweave.jit import Int, Ints, kernel, kernel_part

WORD_BITS = 62
"""Columns in a word: what is left of 64 bits so that no word is negative."""

_FULL = np.int64((1 << WORD_BITS) - 1)


def words_for(nodes: int) -> int:
    """Return how many words hold the columns of so many nodes."""
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
    """Put the columns of another set into one."""
    for word in range(len(target)):
        target[word] |= other[word]


@kernel_part
def remove(target: Ints, other: Ints) -> None:
    """Take the columns of another set out of one."""
    for word in range(len(target)):
        target[word] &= ~other[word]


@kernel_part
def copy(target: Ints, other: Ints) -> None:
    """Make one set the same as another."""
    for word in range(len(target)):
        target[word] = other[word]


@kernel_part
def count(columns: Ints) -> Int:
    """Return how many columns a set has."""
    number = 0
    for word in range(len(columns)):
        bits = columns[word]
        while bits:
            bits &= bits - 1
            number += 1
    return number


@kernel
def take_lowest(taken: Ints, width: Int, target: Ints) -> None:
    """Add the lowest columns that are not taken to a set; they are not marked as taken.

    Parameters
    ----------
    taken : numpy.ndarray of int64, shape (words,)
        With at least ``width`` columns left, of all that the words have room for.
    width : int
    target : numpy.ndarray of int64, shape (words,)
        Shares no column with those left.
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

"""How many messages of one exchange go from each part of a job to each other (docs/netmodel.md, "Counting messages").

The ranks stand part after part, so a part is an interval of ranks, and every count has a closed form.
"""

from __future__ import annotations

import numpy as np

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.netmodel.kernels.state import ALL_TO_ALL


@kernel_part
def _in_step(rank: Int, period: Int, stay: Int) -> Int:
    """Return how many ranks before this one stand among the first ``stay`` of their period."""
    # A division of 64 digits takes several times as long as one of 32, and ranks are fewer than 2^31.
    periods = np.int64(np.uint32(rank) // np.uint32(period))
    return periods * stay + min(rank - periods * period, stay)


@kernel
def _shifted(first: Int, end: Int, to_first: Int, to_end: Int, period: Int, shift: Int) -> Int:
    """Return how many ranks of one interval have their partner in another: ``shift`` further, around each period."""
    stay = period - shift
    count = 0
    low, high = max(first, to_first - shift), min(end, to_end - shift)
    if low < high:
        count += _in_step(high, period, stay) - _in_step(low, period, stay)
    low, high = max(first, to_first + stay), min(end, to_end + stay)
    if low < high:
        count += high - low - (_in_step(high, period, stay) - _in_step(low, period, stay))
    return count


@kernel
def _shifted_around(first: Int, end: Int, to_first: Int, to_end: Int, width: Int, shift: Int) -> Int:
    """Return what `_shifted` does if all ranks are one period."""
    stay = width - shift
    forward = min(end, to_end - shift, stay) - max(first, to_first - shift)
    around = min(end, to_end + stay) - max(first, to_first + stay, stay)
    return max(np.int64(0), forward) + max(np.int64(0), around)


@kernel
def exchanged(communication: Record, first: Int, end: Int, to_first: Int, to_end: Int) -> Int:
    """Return how many messages go from one interval of ranks to another in one exchange; as many come back.

    Parameters
    ----------
    communication : COMMUNICATION
        All to all or neighbours.
    first, end, to_first, to_end : int
        Two intervals of ranks that do not overlap, the first of each included, the end not.
    """
    if communication.pattern == ALL_TO_ALL:
        return (end - first) * (to_end - to_first)
    count = 0
    columns = communication.columns
    plane = communication.rows * columns
    # Each rank sends to the next and to the previous one; the messages back are those that the others send forward.
    if columns == communication.width:
        # A ring.
        count += _shifted_around(first, end, to_first, to_end, columns, np.int64(1))
        count += _shifted_around(to_first, to_end, first, end, columns, np.int64(1))
        return count
    if columns > 1:
        count += _shifted(first, end, to_first, to_end, columns, 1)
        count += _shifted(to_first, to_end, first, end, columns, 1)
    if communication.planes > 1:
        count += _shifted_around(first, end, to_first, to_end, communication.width, plane)
        count += _shifted_around(to_first, to_end, first, end, communication.width, plane)
    elif communication.rows > 1:
        count += _shifted_around(first, end, to_first, to_end, plane, columns)
        count += _shifted_around(to_first, to_end, first, end, plane, columns)
        return count
    if communication.rows > 1:
        count += _shifted(first, end, to_first, to_end, plane, columns)
        count += _shifted(to_first, to_end, first, end, plane, columns)
    return count

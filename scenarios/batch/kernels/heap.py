"""A heap of the ends of running jobs: the earliest first, at one instant by job id."""

from __future__ import annotations

from gridweave.jit import kernel_part

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"


@kernel_part
def _before(a_ms, a_row, b_ms, b_row, jobs):
    """Whether end a comes before end b: earlier, or at the same instant with the smaller job id."""
    if a_ms == b_ms:
        return jobs[a_row].job_id < jobs[b_row].job_id
    return a_ms < b_ms


@kernel_part
def push_end(ends, ends_row, n_ends, jobs, end_ms, row):
    """Put an end into the heap; return its new size."""
    _sift_up(ends, ends_row, n_ends, jobs, end_ms, row)
    return n_ends + 1


@kernel_part
def _sift_up(ends, ends_row, child, jobs, end_ms, row):
    """Put an end where it belongs on the way from a leaf up to the root."""
    while child > 0:
        parent = (child - 1) >> 1
        if not _before(end_ms, row, ends[parent], ends_row[parent], jobs):
            break
        ends[child] = ends[parent]
        ends_row[child] = ends_row[parent]
        child = parent
    ends[child] = end_ms
    ends_row[child] = row


@kernel_part
def pop_end(ends, ends_row, n_ends, jobs):
    """Take the first end out of the heap; return its new size.

    The hole goes down to a leaf along the smaller children, and the last end goes up from there: it nearly always
    belongs near the leaves, so this takes fewer comparisons than a sift down.
    """
    n_ends -= 1
    hole = 0
    child = 2
    while child < n_ends:
        if _before(ends[child - 1], ends_row[child - 1], ends[child], ends_row[child], jobs):
            child -= 1
        ends[hole] = ends[child]
        ends_row[hole] = ends_row[child]
        hole = child
        child = 2 * child + 2
    if child == n_ends:
        ends[hole] = ends[child - 1]
        ends_row[hole] = ends_row[child - 1]
        hole = child - 1
    _sift_up(ends, ends_row, hole, jobs, ends[n_ends], ends_row[n_ends])
    return n_ends

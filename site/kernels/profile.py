"""Availability profiles: the number of free nodes, or of jobs still allowed, as a step function of time.

A profile is a pair of arrays: ``step_ms`` (ascending times) and ``step_free`` (the number free from each of these times
until the next). The last step has no end. The first step starts at the time to which the profile was last advanced.
"""

from __future__ import annotations

from gridweave.jit import Int, Ints, kernel
from gridweave.site.kernels.state import NEVER_MS


@kernel
def clear(step_ms: Ints, step_free: Ints, now_ms: Int, free: Int) -> Int:
    """Reset a profile to the constant ``free`` from now on; return its number of steps, which is 1."""
    step_ms[0] = now_ms
    step_free[0] = free
    return 1


@kernel
def advance(step_ms: Ints, step_free: Ints, n_steps: Int, now_ms: Int) -> Int:
    """Drop the steps that ended before now; return the new number of steps."""
    past = 0
    while past + 1 < n_steps and step_ms[past + 1] <= now_ms:
        past += 1
    if past > 0:
        for i in range(past, n_steps):
            step_ms[i - past] = step_ms[i]
            step_free[i - past] = step_free[i]
    step_ms[0] = max(step_ms[0], now_ms)
    return n_steps - past


@kernel
def earliest_fit(step_ms: Ints, step_free: Ints, n_steps: Int, from_ms: Int, width: Int, length_ms: Int) -> Int:
    """Return the earliest start at which ``width`` nodes stay free for ``length_ms``, or ``NEVER_MS``.

    Parameters
    ----------
    step_ms, step_free : numpy.ndarray of int64
        The profile.
    n_steps : int
    from_ms : int
        The earliest allowed start.
    width : int
        Number of nodes that must be free.
    length_ms : int
        Time for which these nodes must be free.
    """
    i = 0
    while i + 1 < n_steps and step_ms[i + 1] <= from_ms:
        i += 1
    start_ms = max(from_ms, step_ms[i])
    end_ms = start_ms + length_ms
    while i < n_steps and step_ms[i] < end_ms:
        if step_free[i] < width:
            if i + 1 == n_steps:
                return NEVER_MS
            start_ms = step_ms[i + 1]
            end_ms = start_ms + length_ms
        i += 1
    return start_ms


@kernel
def occupy(step_ms: Ints, step_free: Ints, n_steps: Int, start_ms: Int, end_ms: Int, width: Int) -> Int:
    """Subtract ``width`` from the profile between start and end; return the new number of steps.

    A negative width adds nodes back. The time before the first step is ignored.
    """
    first, n_steps = _split(step_ms, step_free, n_steps, start_ms)
    last, n_steps = _split(step_ms, step_free, n_steps, end_ms)
    for i in range(first, last):
        step_free[i] -= width
    n_steps = _join(step_ms, step_free, n_steps, last)
    return _join(step_ms, step_free, n_steps, first)


@kernel
def _split(step_ms: Ints, step_free: Ints, n_steps: Int, when_ms: Int) -> tuple[Int, Int]:
    """Insert a step at this time unless it already exists; return its index and the new number of steps."""
    if when_ms <= step_ms[0]:
        return 0, n_steps
    i = n_steps
    while step_ms[i - 1] >= when_ms:
        i -= 1
    if i < n_steps and step_ms[i] == when_ms:
        return i, n_steps
    for k in range(n_steps, i, -1):
        step_ms[k] = step_ms[k - 1]
        step_free[k] = step_free[k - 1]
    step_ms[i] = when_ms
    step_free[i] = step_free[i - 1]
    return i, n_steps + 1


@kernel
def _join(step_ms: Ints, step_free: Ints, n_steps: Int, i: Int) -> Int:
    """Merge the step at this index with the previous step if both are equal; return the number of steps."""
    if i == 0 or i >= n_steps or step_free[i] != step_free[i - 1]:
        return n_steps
    for k in range(i, n_steps - 1):
        step_ms[k] = step_ms[k + 1]
        step_free[k] = step_free[k + 1]
    return n_steps - 1

"""Work and rates: the one mechanism for whatever slows, pauses or resumes a running job.

A job has work: its length in milliseconds at rate 1, in fixed point with 16 binary digits. A running job has a rate, a
whole number of 2**-16 (`RATE_ONE` is rate 1, 0 pauses it). Work is done by whole milliseconds and nothing is rounded as
it is: what is left after any number of changes is exact, whatever their order. There are two roundings, both here: a
rate is the nearest 2**-16 to what it was worked out as, and a job ends at the first whole millisecond by which its work
is done.

The longest time of the project (``MAX_TIME_MS``, 10**14) is less than 2**63 of these units, so 64 bits hold it all, but
would not with more digits. A slowdown of 1.3 is kept to within one part in a hundred thousand.
"""

from __future__ import annotations

from gridweave.jit import kernel_part
from gridweave.site.kernels.state import NEVER_MS

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"

RATE_ONE = 1 << 16
"""Rate 1, at which a millisecond of work takes a millisecond."""


@kernel_part
def work_of(length_ms):
    """Return the work of a job that runs this long at rate 1."""
    return length_ms * RATE_ONE


@kernel_part
def rate_of(slowdown):
    """Return the rate of a job that takes ``slowdown`` times as long, a float of at least 1; at least 2**-16."""
    return max(1, round(RATE_ONE / slowdown))


@kernel_part
def work_left(left, rate, since_ms, now_ms):
    """Return what is left of the work ``left`` of instant ``since_ms`` after running at this rate until now."""
    return max(0, left - rate * (now_ms - since_ms))


@kernel_part
def work_done_ms(left, rate, now_ms):
    """Return the first millisecond by which this work is done at this rate; NEVER_MS at rate 0, if any is left."""
    if left <= 0:
        return now_ms
    if rate == 0:
        return NEVER_MS
    return now_ms + (left + rate - 1) // rate


@kernel_part
def late_end_ms(left, rate, now_ms):
    """Return when a job is expected to end that was to have ended by now: it goes on at its rate, or at 1 if that is 0.

    ``left`` is its work as of now, by its estimate (docs/grid.md, "Late ends").
    """
    return work_done_ms(left, rate if rate > 0 else RATE_ONE, now_ms)

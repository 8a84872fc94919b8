"""The adaptive switch: time is shared below a critical utilisation, and space above it (Zhang, sections 6.3 and 7).

The paper leaves it to future work. The site measures its utilisation, and which part of its work switches cost while it
shares time, both over a window. From that part it works out the critical utilisation itself: where a site that shares
time, and can be used to ``1 - part`` at most, has as high a slowdown as one that shares space. Slowdowns are taken to
grow as ``1 / (1 - utilisation / most)``, and that of shared time to be `GAIN` times lower at low utilisation.
"""

from __future__ import annotations

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.disciplines.gang.kernels.state import NO_ROW, GangCodes, GangSite, all_rows

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

GAIN = 1.3
"""How many times higher the slowdown of shared space is where switches do not count. A guess: with it the critical
utilisations are about the paper's, 0.92 and 0.83 at switches of 2% and 5%."""

HYSTERESIS = 0.03
"""How far the utilisation must fall below the critical one before time is shared again. A guess: the distance of two of
the paper's nine workloads is 0.055."""


@kernel_part
def critical_utilisation(part: float) -> float:
    """Return the utilisation from which space is to be shared, if switches cost this part of the work."""
    return (GAIN - 1.0) * (1.0 - part) / (GAIN - 1.0 + part)


@kernel
def adapt(state: GangSite, codes: GangCodes, now_ms: Int) -> None:
    """Measure since the last decision, and choose whether time or space is shared from now on.

    Parameters
    ----------
    state : GangSite
        After `count_loss`. Its ``open_rows`` are set: all if time is shared; otherwise those in use but the least
        populated (ties: the last), so that they empty one after the other until one is left.
    codes : GangCodes
        With ``window_ms`` above 0.
    now_ms : int

    Notes
    -----
    A mean over the window forgets with time: what was measured in a time dt counts for ``dt / (window + dt)``.
    """
    counters = state.counters[0]
    span_ms = now_ms - counters.measured_ms
    if span_ms > 0 and counters.nodes > 0:
        capacity = 1.0 * counters.nodes * span_ms
        useful = capacity - (counters.lost_any - counters.lost_measured)
        switched = counters.switched - counters.switched_measured
        weight = span_ms / (1.0 * codes.window_ms + span_ms)
        counters.utilisation += weight * (useful / capacity - counters.utilisation)
        if counters.shares_space == 0 and useful + switched > 0:
            counters.switch_part += weight * (switched / (useful + switched) - counters.switch_part)
    counters.measured_ms = now_ms
    counters.lost_measured, counters.switched_measured = counters.lost_any, counters.switched
    critical = critical_utilisation(counters.switch_part)
    if counters.shares_space:
        critical -= HYSTERESIS
    shares_space = counters.utilisation > critical
    counters.changes += shares_space and counters.shares_space == 0
    counters.shares_space = shares_space
    counters.open_rows = _rows_of_space(state) if shares_space else all_rows(state)


@kernel_part
def _rows_of_space(state: GangSite) -> Int:
    """Return the rows that jobs may be put into while space is shared, as bits."""
    open_rows, least, n_used = 0, NO_ROW, 0
    for row in range(state.counters[0].rows):
        if state.used[row] > 0:
            open_rows |= 1 << row
            n_used += 1
            if least == NO_ROW or state.used[row] <= state.used[least]:
                least = row
    if n_used > 1:
        open_rows ^= 1 << least
    return open_rows if n_used > 0 else 1

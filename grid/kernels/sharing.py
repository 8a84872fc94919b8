"""Whether a job starts now on nodes that others use, slowed, or waits, or is split (docs/control.md, "Wait, or share").

A site with hyperthreaded nodes offers that. Every level of control that knows of offers weighs them by these functions.
"""

from __future__ import annotations

import math

import numpy as np

from gridweave.grid.kernels.links_placement import ends_on_one_site_by
from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.kernels.state import GridState, Slot
from gridweave.jit import Int, kernel, kernel_part


@kernel_part
def shared_end_ms(slowdown: float, length_ms: Int, now_ms: Int) -> Int:
    """Return when a job ends that starts now beside others, and takes so many times as long as alone."""
    return now_ms + np.int64(math.ceil(slowdown * length_ms))


@kernel_part
def is_first(end_ms: Int, otherwise_ms: Int) -> bool:
    """Whether what has a price, a split or shared nodes, ends a job before what has none; if both end at once, not."""
    return end_ms < otherwise_ms


@kernel
def shares_now(state: GridState, codes: GridCodes, slot: Slot, now_ms: Int, end_ms: Int) -> bool:
    """Whether a waiting job that would end then on shared nodes ends before it would on one site alone.

    Parameters
    ----------
    state : GridState
    codes : GridCodes
    slot : int
        Of the job.
    now_ms, end_ms : int
        When it would start and end on shared nodes.
    """
    return not ends_on_one_site_by(state, codes.net, slot, now_ms, end_ms)

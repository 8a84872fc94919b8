"""Choose between starting a job now on shared nodes, waiting, and splitting it (docs/control.md, "Wait, or share").

Sites with hyperthreaded nodes offer shared nodes, on which a job starts at once but runs slower. Every level of control
that knows of such offers uses these functions to compare them.
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
    """Return the end of a job that starts now on shared nodes, where it takes ``slowdown`` times as long as alone."""
    return now_ms + np.int64(math.ceil(slowdown * length_ms))


@kernel_part
def is_first(end_ms: Int, otherwise_ms: Int) -> bool:
    """Whether a costly option (a split, shared nodes) ends a job earlier than the alternative, which wins ties."""
    return end_ms < otherwise_ms


@kernel
def shares_now(state: GridState, codes: GridCodes, slot: Slot, now_ms: Int, end_ms: Int) -> bool:
    """Whether a waiting job ends earlier on shared nodes now than on any single site without sharing.

    Parameters
    ----------
    state : GridState
    codes : GridCodes
    slot : int
        Slot of the job.
    now_ms, end_ms : int
        The job's start and end on shared nodes.
    """
    return not ends_on_one_site_by(state, codes.net, state.resources, slot, now_ms, end_ms)

"""Where a job goes: one site by a selection, or several with the fewest fragments (docs/grid.md, "Placing a job now").

Sources: Streit, sections 6.5.2 and 6.5.3; Figure 7.12 and Table 7.5.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.state import give_back
from gridweave.jit import kernel, kernel_part
from gridweave.site.kernels.state import NEVER_MS, NO_PLACE

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def, assignment"

BEST_FIT, BIGGEST_FREE, EQUAL_UTIL, RANDOM = 0, 1, 2, 3


class GridCodes(NamedTuple):
    """A grid's policy as compiled code reads it.

    Attributes
    ----------
    splits : bool
        Whether a job may be split at all.
    adaptive : bool
        Whether it is split only if that ends earlier than waiting for a single site.
    backfills : bool
    selection : int
        BEST_FIT, BIGGEST_FREE, EQUAL_UTIL or RANDOM.
    lower_bound : int
        A job that is to be split is wider than this, or than the largest site.
    width_up_to, fragments : numpy.ndarray of int64, shape (rows,)
        Fragments allowed for widths up to a bound, in ascending order; wider jobs have no limit.
    """

    splits: bool
    adaptive: bool
    backfills: bool
    selection: int
    lower_bound: int
    width_up_to: npt.NDArray[np.int64]
    fragments: npt.NDArray[np.int64]


@kernel_part
def fragments_allowed(codes, width):
    """Return into how many fragments a job of this width may be split."""
    for row in range(len(codes.width_up_to)):
        if width <= codes.width_up_to[row]:
            return codes.fragments[row]
    return NEVER_MS


@kernel
def choose_site(state, codes, slot, available, free):
    """Return the one site for a job, among those with enough available; ``NO_PLACE`` if there is none.

    ``available`` are the nodes that the job may have, ``free`` those that no job holds, by which sites are compared.
    """
    width = state.jobs[slot].width
    if codes.selection == RANDOM:
        return _choose_at_random(state, slot, available)
    best = NO_PLACE
    for site in range(len(available)):
        if available[site] < width:
            continue
        if best == NO_PLACE:
            best = site
        elif codes.selection == BEST_FIT:
            if free[site] < free[best]:
                best = site
        elif codes.selection == BIGGEST_FREE:
            if free[site] > free[best]:
                best = site
        else:
            in_use = state.nodes[site] - free[site]
            if in_use * state.nodes[best] < (state.nodes[best] - free[best]) * state.nodes[site]:
                best = site
    return best


@kernel
def _choose_at_random(state, slot, available):
    """Return the site that the job's draw means among those with enough available, in site order."""
    width = state.jobs[slot].width
    fitting = 0
    for site in range(len(available)):
        fitting += available[site] >= width
    wanted = int(state.draw[slot] * fitting)
    for site in range(len(available)):
        if available[site] >= width:
            if wanted == 0:
                return site
            wanted -= 1
    return NO_PLACE


@kernel_part
def take_site(state, slot, site):
    """Note that a job takes its nodes from one site."""
    state.taken[0].site = site
    state.taken[0].width = state.jobs[slot].width
    state.counters[0].n_taken = 1


@kernel_part
def may_split(state, codes, slot):
    """Whether a job may be split: by the mode, and by the lower bound unless it fits on no site."""
    width = state.jobs[slot].width
    return codes.splits and (width > codes.lower_bound or width > state.counters[0].largest)


@kernel
def take_split(state, codes, slot, available):
    """Split a job over the fewest sites; return whether it can be, with the fragments in ``taken``.

    The sites are found one after the other, the one with the most nodes left first: fragments are few, so that beats
    sorting all sites. ``available`` is used up on the way.
    """
    missing = state.jobs[slot].width
    most = min(fragments_allowed(codes, missing), len(available))
    count = 0
    while missing > 0:
        best = NO_PLACE
        for site in range(len(available)):
            if available[site] > 0 and (best == NO_PLACE or available[site] > available[best]):
                best = site
        if best == NO_PLACE or count >= most:
            return False
        width = min(missing, available[best])
        state.taken[count].site = best
        state.taken[count].width = width
        available[best] = 0
        missing -= width
        count += 1
    state.counters[0].n_taken = count
    return True


@kernel
def earliest_single_end(state, slot, now_ms):
    """Return the earliest end of a job on a single site, by estimates; ``NEVER_MS`` if none is so large.

    The instants at which more becomes free on one site are worked out once, and hold until a job starts or ends.
    """
    counters = state.counters[0]
    if counters.n_horizon == 0:
        _find_horizon(state)
    width = state.jobs[slot].width
    for k in range(counters.n_horizon):
        if state.horizon_most[k] >= width:
            return max(state.horizon_ms[k], now_ms) + state.jobs[slot].estimate_ms
    return NEVER_MS


@kernel
def _find_horizon(state):
    """Work out when, by estimates, the most nodes that are free on one site become more."""
    later = state.later
    most = 0
    for site in range(len(later)):
        later[site] = state.free[site]
        most = max(most, later[site])
    state.horizon_ms[0] = 0
    state.horizon_most[0] = most
    count = 1
    for i in range(state.counters[0].n_running):
        slot = state.running[i].slot
        give_back(state, slot, later)
        first = state.first_fragment[slot]
        for k in range(first, first + state.n_fragments[slot]):
            most = max(most, later[state.fragments[k].site])
        if most > state.horizon_most[count - 1]:
            state.horizon_ms[count] = state.running[i].end_ms
            state.horizon_most[count] = most
            count += 1
    state.counters[0].n_horizon = count

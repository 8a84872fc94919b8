"""What the meta-scheduler learns about its sites after it has decided: nodes that went or came, starts that moved."""

from __future__ import annotations

from gridweave.grid.kernels.running import join_blocks, leave_blocks, place_of
from gridweave.grid.kernels.state import add_free
from gridweave.jit import kernel
from gridweave.site.kernels.state import NO_PLACE

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"


@kernel
def change_free(state, site, nodes):
    """Make so many nodes more of a site free (fewer, if negative)."""
    add_free(state, site, nodes)
    state.counters[0].free += nodes
    state.counters[0].n_horizon = 0


@kernel
def move_end(state, slot, end_ms):
    """Expect a running job to end at another instant."""
    place = place_of(state, slot)
    if place != NO_PLACE:
        leave_blocks(state, place)
        join_blocks(state, slot, end_ms)
        state.end_ms[slot] = end_ms
        state.counters[0].n_horizon = 0

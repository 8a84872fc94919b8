"""How a job of the grid takes its nodes when it starts, and gives them back when it ends."""

from __future__ import annotations

from gridweave.grid.kernels.links import note_taken
from gridweave.grid.kernels.overhead import split_length_ms
from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.kernels.running import join_blocks, leave_blocks
from gridweave.grid.kernels.state import GridState, Place, add_free, freed
from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.state import GONE


@kernel
def begin_taken(state: GridState, codes: GridCodes, place: Place, now_ms: Int) -> Int:
    """Start the job at this place of the queue on the nodes that were just taken for it; return its end by estimate.

    Its place in the queue stays, marked, until `drop_started` (candidates.py).
    """
    counters = state.counters[0]
    slot = state.waiting[place]
    job = state.jobs[slot]
    end_ms = now_ms + split_length_ms(state, codes, slot, job.estimate_ms)
    note_taken(state, codes.net, slot)
    state.end_ms[slot] = end_ms
    state.first_fragment[slot] = counters.n_fragments
    state.n_fragments[slot] = counters.n_taken
    for k in range(counters.n_taken):
        fragment = state.taken[k]
        state.fragments[counters.n_fragments + k] = fragment
        add_free(state, fragment.site, -fragment.width)
    counters.n_fragments += counters.n_taken
    counters.free -= job.width
    join_blocks(state, slot, end_ms)
    if counters.n_started == 0:
        counters.first_gap = place
    counters.last_gap = place
    state.started[counters.n_started] = slot
    counters.n_started += 1
    state.waiting[place] = GONE
    freed(state)
    return end_ms


@kernel_part
def finish_job(state: GridState, place: Place) -> None:
    """Take the job at this place out of the running jobs; its nodes are free."""
    counters = state.counters[0]
    slot = leave_blocks(state, place)
    first = state.first_fragment[slot]
    for k in range(first, first + state.n_fragments[slot]):
        add_free(state, state.fragments[k].site, state.fragments[k].width)
    counters.free += state.jobs[slot].width
    freed(state)

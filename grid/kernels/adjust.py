"""What a meta-scheduler does to its arrays step by step: jobs come one by one, nodes go and come, ends move."""

from __future__ import annotations

from gridweave.grid.kernels.grid_queue import grid_pass
from gridweave.grid.kernels.running import join_blocks, leave_blocks, place_of
from gridweave.grid.kernels.state import add_free, freed
from gridweave.jit import kernel, kernel_part
from gridweave.site.kernels.state import HEAD, NO_LIMITS, NO_PLACE, enqueue

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"


@kernel
def job_arrived(state, slot, key, submit_ms, job_id, width, estimate_ms, sensitivity, draw):
    """Fill a slot in with a job, and put that into the queue."""
    job = state.jobs[slot]
    job.key = key
    job.submit_ms = submit_ms
    job.job_id = job_id
    job.width = width
    job.estimate_ms = estimate_ms
    job.limits = NO_LIMITS
    state.sensitivity[slot] = sensitivity
    state.draw[slot] = draw
    enqueue(state, slot)


@kernel
def pass_and_placement(state, codes, now_ms):
    """Run the pass of an instant; return how many jobs it started, and of the first what `placement_of` does."""
    grid_pass(state, codes, now_ms)
    return state.counters[0].n_started, placement_of(state, HEAD)


@kernel_part
def placement_of(state, number):
    """Return slot, end by estimate, number of fragments, first site and its nodes, of a job that was started."""
    slot = state.started[number]
    first = state.fragments[state.first_fragment[slot]]
    return slot, state.end_ms[slot], state.n_fragments[slot], first.site, first.width


@kernel
def change_free(state, site, nodes):
    """Make so many nodes more of a site free (fewer, if negative)."""
    add_free(state, site, nodes)
    state.counters[0].free += nodes
    freed(state)


@kernel
def move_end(state, slot, end_ms):
    """Expect a running job to end at another instant."""
    place = place_of(state, slot)
    if place != NO_PLACE:
        leave_blocks(state, place)
        join_blocks(state, slot, end_ms)
        state.end_ms[slot] = end_ms
        freed(state)

"""What a meta-scheduler does to its arrays step by step: jobs come one by one, nodes go and come, ends move."""

from __future__ import annotations

from gridweave.grid.kernels.grid_queue import grid_pass
from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.kernels.running import join_blocks, leave_blocks, place_of
from gridweave.grid.kernels.state import GridState, Slot, add_free, freed
from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.state import HEAD, NO_LIMITS, NO_PLACE, enqueue

PlacedRow = tuple[int, int, int, int, int]
"""Of a job that was started: slot, end by estimate, number of fragments, first site and its nodes there."""


@kernel
def job_arrived(
    state: GridState,
    slot: Slot,
    key: float,
    submit_ms: Int,
    job_id: Int,
    width: Int,
    estimate_ms: Int,
    sensitivity: float,
    draw: float,
) -> None:
    """Fill a slot in with a job, and put that into the queue.

    Parameters
    ----------
    state : GridState
        Changed in place.
    slot : int
        A row that no job has.
    key : float
        By which the queue is ordered.
    submit_ms, job_id, width, estimate_ms : int
        Of the job; its width in nodes.
    sensitivity : float
        By which the overhead of a split is multiplied.
    draw : float
        In [0, 1): what chance it has, for the selection ``random``.
    """
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
def pass_and_placement(state: GridState, codes: GridCodes, now_ms: Int) -> tuple[int, PlacedRow]:
    """Run the pass of an instant; return how many jobs it started, and of the first what `placement_of` does.

    Parameters
    ----------
    state : GridState
        Changed in place.
    codes : GridCodes
    now_ms : int
    """
    grid_pass(state, codes, now_ms)
    return state.counters[0].n_started, placement_of(state, HEAD)


@kernel_part
def placement_of(state: GridState, number: Int) -> PlacedRow:
    """Return slot, end by estimate, number of fragments, first site and its nodes, of a job that was started."""
    slot = state.started[number]
    first = state.fragments[state.first_fragment[slot]]
    return slot, state.end_ms[slot], state.n_fragments[slot], first.site, first.width


@kernel
def change_free(state: GridState, site: Int, nodes: Int) -> None:
    """Make so many nodes more of a site free (fewer, if negative).

    Parameters
    ----------
    state : GridState
        Changed in place.
    site, nodes : int
    """
    add_free(state, site, nodes)
    state.counters[0].free += nodes
    freed(state)


@kernel
def move_end(state: GridState, slot: Slot, end_ms: Int) -> None:
    """Expect a running job to end at another instant.

    Parameters
    ----------
    state : GridState
        Changed in place.
    slot : int
        Of the job.
    end_ms : int
    """
    place = place_of(state, slot)
    if place != NO_PLACE:
        leave_blocks(state, place)
        join_blocks(state, slot, end_ms)
        state.end_ms[slot] = end_ms
        freed(state)

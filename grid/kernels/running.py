"""The running jobs of a grid, sorted by (estimated end, job id), in blocks.

In a single sorted array, each start or end would move half of the jobs; here it moves only jobs of one block.
``block_order`` lists the blocks in use, in the order of their jobs, and then the free blocks. A full block is split,
and two neighbours that together fill at most half a block are merged, so that few blocks are needed.

A *place* counts through the blocks in use: index of the block in ``block_order`` x BLOCK + index within the block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.state import BLOCK, BLOCK_BITS, GridState, Place, Slot
from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.state import NO_PLACE

FIRST_PLACE = np.int64(0)
"""The place of the job with the earliest end."""


def running_slots(state: GridState) -> npt.NDArray[np.int64]:
    """Return the slots of the running jobs, shape (running,), sorted by estimated end."""
    blocks = state.block_order[: int(state.counters[0]["n_blocks"])]
    in_use = np.arange(BLOCK) < state.block_count[blocks, None]
    slots: npt.NDArray[np.int64] = state.running["slot"].reshape(-1, BLOCK)[blocks][in_use]
    return slots


@kernel_part
def end_place(state: GridState) -> Int:
    """Return the place after the last running job."""
    return state.counters[0].n_blocks * BLOCK


@kernel_part
def row_at(state: GridState, place: Place) -> Int:
    """Return the row of ``running`` at a place."""
    return state.block_order[place >> BLOCK_BITS] * BLOCK + (place & (BLOCK - 1))


@kernel_part
def next_place(state: GridState, place: Place) -> Int:
    """Return the place of the next running job."""
    number = place >> BLOCK_BITS
    is_last = (place & (BLOCK - 1)) + 1 == state.block_count[state.block_order[number]]
    return (number + 1) * BLOCK if is_last else place + 1


@kernel_part
def _ends_before(state: GridState, row: Int, end_ms: Int, job_id: Int) -> bool:
    """Whether the job in this row is sorted before a job with the given end and id."""
    if state.running[row].end_ms != end_ms:
        return state.running[row].end_ms < end_ms
    return state.jobs[state.running[row].slot].job_id < job_id


@kernel_part
def _block_number(state: GridState, end_ms: Int, job_id: Int) -> Int:
    """Return the index in ``block_order`` of the block that contains a job or must receive it."""
    low = 0
    left = state.counters[0].n_blocks - 1
    while left > 0:
        half = (left + 1) >> 1
        block = state.block_order[low + half - 1]
        if _ends_before(state, block * BLOCK + state.block_count[block] - 1, end_ms, job_id):
            low += half
        left -= half
    return low


@kernel_part
def place_of(state: GridState, slot: Slot) -> Int:
    """Return the place of the job in a slot; ``NO_PLACE`` if the job is not running."""
    if state.counters[0].n_running == 0:
        return NO_PLACE
    end_ms = state.end_ms[slot]
    job_id = state.jobs[slot].job_id
    number = _block_number(state, end_ms, job_id)
    block = state.block_order[number]
    row = block * BLOCK
    left = state.block_count[block]
    last = row + left
    while left > 0:
        half = (left + 1) >> 1
        # Both outcomes are equally likely, so this form lets the compiler use a conditional move instead of a branch.
        row += half if state.running[row + half - 1].end_ms < end_ms else 0
        left -= half
    while row < last and state.running[row].slot != slot:
        row += 1
    return NO_PLACE if row == last else (number - block) * BLOCK + row


@kernel_part
def join_blocks(state: GridState, slot: Slot, end_ms: Int) -> None:
    """Insert a job into the running jobs."""
    counters = state.counters[0]
    job_id = state.jobs[slot].job_id
    if counters.n_blocks == 0:
        state.block_count[state.block_order[0]] = 0
        counters.n_blocks = 1
    number = _block_number(state, end_ms, job_id)
    if state.block_count[state.block_order[number]] == BLOCK:
        _divide(state.counters, state.running, state.block_order, state.block_count, number)
        number = _block_number(state, end_ms, job_id)
    block = state.block_order[number]
    row = block * BLOCK + state.block_count[block]
    while row > block * BLOCK and not _ends_before(state, row - 1, end_ms, job_id):
        state.running[row] = state.running[row - 1]
        row -= 1
    state.running[row].end_ms = end_ms
    state.running[row].slot = slot
    state.block_count[block] += 1
    counters.n_running += 1


@kernel_part
def leave_blocks(state: GridState, place: Place) -> Int:
    """Remove the job at this place from the running jobs; return its slot."""
    number = place >> BLOCK_BITS
    block = state.block_order[number]
    row = block * BLOCK + (place & (BLOCK - 1))
    slot = state.running[row].slot
    state.counters[0].n_running -= 1
    state.block_count[block] -= 1
    last = block * BLOCK + state.block_count[block]
    while row < last:
        state.running[row] = state.running[row + 1]
        row += 1
    if state.block_count[block] == 0 or (state.block_count[block] <= BLOCK // 2 and state.counters[0].n_blocks > 1):
        _unite(state.counters, state.running, state.block_order, state.block_count, number)
    return slot


@kernel
def _divide(
    counters: npt.NDArray[np.void],
    running: npt.NDArray[np.void],
    block_order: npt.NDArray[np.int64],
    block_count: npt.NDArray[np.int64],
    number: Int,
) -> None:
    """Move the second half of a full block into a new block after it."""
    old = block_order[number]
    new = block_order[counters[0].n_blocks]
    for i in range(counters[0].n_blocks, number + 1, -1):
        block_order[i] = block_order[i - 1]
    block_order[number + 1] = new
    counters[0].n_blocks += 1
    kept = BLOCK // 2
    for i in range(kept, BLOCK):
        running[new * BLOCK + i - kept] = running[old * BLOCK + i]
    block_count[old] = kept
    block_count[new] = BLOCK - kept


@kernel
def _unite(
    counters: npt.NDArray[np.void],
    running: npt.NDArray[np.void],
    block_order: npt.NDArray[np.int64],
    block_count: npt.NDArray[np.int64],
    number: Int,
) -> None:
    """Free an empty block, or merge a block with a neighbour if together they fill at most half a block."""
    for first in range(max(number - 1, 0), min(number + 1, counters[0].n_blocks - 1)):
        block, other = block_order[first], block_order[first + 1]
        count = block_count[block]
        if count + block_count[other] <= BLOCK // 2:
            for i in range(block_count[other]):
                running[block * BLOCK + count + i] = running[other * BLOCK + i]
            block_count[block] += block_count[other]
            _drop(counters, block_order, first + 1)
            return
    if block_count[block_order[number]] == 0:
        _drop(counters, block_order, number)


@kernel_part
def _drop(counters: npt.NDArray[np.void], block_order: npt.NDArray[np.int64], number: Int) -> None:
    """Move a block from the blocks in use to the free blocks."""
    block = block_order[number]
    counters[0].n_blocks -= 1
    for i in range(number, counters[0].n_blocks):
        block_order[i] = block_order[i + 1]
    block_order[counters[0].n_blocks] = block

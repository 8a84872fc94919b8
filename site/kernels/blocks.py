"""An index over a long queue that lets a pass skip waiting jobs that cannot start.

The queue is divided into blocks of several dozen jobs. For each block the index stores its first position, a lower
bound on the width of its jobs and, for each width class, a lower bound on the length of its jobs. A pass skips blocks
in which no job can start. The bounds become exact when a pass visits the whole block. Between such passes they stay
valid, because removing a job only makes them too cautious. A short queue has no index. Withdrawing a job drops the
index, and the next pass builds a new index.
"""

from __future__ import annotations

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.kernels.state import BLOCK_PLACES, GONE, NEVER_MS, WIDTH_CLASSES, SiteState, drop_started, move_down

INDEXED_FROM = 4 * BLOCK_PLACES
"""Queue length from which an index pays off."""

_MOST_PLACES = 4 * BLOCK_PLACES
_FEWEST_PLACES = BLOCK_PLACES // 4


@kernel
def keep_index(state: SiteState) -> None:
    """Build the index if the queue is long; rebuild it if there are many small blocks."""
    counters = state.counters[0]
    n_waiting = counters.n_waiting
    if n_waiting < INDEXED_FROM:
        counters.n_blocks = 0
    elif counters.n_blocks == 0 or counters.n_blocks * _FEWEST_PLACES > n_waiting:
        counters.n_blocks = 0
        for first in range(0, n_waiting, BLOCK_PLACES):
            number = counters.n_blocks
            counters.n_blocks += 1
            state.blocks[number].first = first
            forget_block(state, number)
            learn_block(state, number, first, min(first + BLOCK_PLACES, n_waiting))


@kernel_part
def learn_block(state: SiteState, number: Int, begin: Int, end: Int) -> None:
    """Compute a block's bounds from its positions, `begin` to `end`; some of these may be gaps."""
    forget_block(state, number)
    for place in range(begin, end):
        if state.waiting[place] != GONE:
            widen_block(state, number, state.jobs[state.waiting[place]])


@kernel_part
def forget_block(state: SiteState, number: Int) -> None:
    """Reset a block's bounds to those of an empty block."""
    state.blocks[number].narrowest = NEVER_MS
    for k in range(WIDTH_CLASSES):
        state.shortest_ms[number, k] = NEVER_MS


@kernel_part
def widen_block(state: SiteState, number: Int, job: Record) -> None:
    """Widen a block's bounds to cover one more job."""
    block = state.blocks[number]
    block.narrowest = min(block.narrowest, job.width)
    k = width_class(job.width)
    state.shortest_ms[number, k] = min(state.shortest_ms[number, k], job.estimate_ms)


@kernel_part
def width_class(width: Int) -> Int:
    """Return the class of a width: one class per power of two, and one for all widths between two powers.

    Widths below 1 have class -1. All widths above a certain size share the last class.
    """
    if width < 1:
        return -1
    power = 0
    between = 0
    while width > 1:
        between |= width & 1
        width >>= 1
        power += 1
    return min(2 * power + between, WIDTH_CLASSES - 1)


@kernel_part
def block_may_have(state: SiteState, number: Int, lowest: Int, highest: Int, latest_end_ms: Int, now_ms: Int) -> bool:
    """Whether a block could contain a job of these width classes that would end by ``latest_end_ms`` if started now."""
    for k in range(lowest, highest + 1):  # noqa: SIM110  # kernels have no generators
        if now_ms + state.shortest_ms[number, k] <= latest_end_ms:
            return True
    return False


@kernel_part
def block_of(state: SiteState, place: Int) -> Int:
    """Return the number of the block that contains a queue position."""
    number = state.counters[0].n_blocks - 1
    while state.blocks[number].first > place:
        number -= 1
    return number


@kernel_part
def block_end(state: SiteState, number: Int) -> Int:
    """Return the queue position after the end of a block."""
    counters = state.counters[0]
    return state.blocks[number + 1].first if number + 1 < counters.n_blocks else counters.n_waiting


@kernel
def index_new(state: SiteState, place: Int) -> None:
    """Update the index for a job that was just inserted at queue position `place`."""
    counters = state.counters[0]
    blocks = state.blocks
    if counters.n_blocks == 0:
        return
    number = counters.n_blocks - 1
    if place == counters.n_waiting - 1 and place - blocks[number].first >= BLOCK_PLACES:
        if counters.n_blocks == len(blocks):
            counters.n_blocks = 0
            return
        number = counters.n_blocks
        counters.n_blocks += 1
        blocks[number].first = place
        forget_block(state, number)
    while blocks[number].first > place:
        blocks[number].first += 1
        number -= 1
    widen_block(state, number, state.jobs[state.waiting[place]])
    if block_end(state, number) - blocks[number].first > _MOST_PLACES:
        counters.n_blocks = 0


@kernel
def close_gaps(state: SiteState, first: Int) -> None:
    """Close gaps like `drop_started`, and update the index."""
    counters = state.counters[0]
    if counters.n_blocks == 0:
        drop_started(state, first)
        return
    waiting = state.waiting
    gaps = 0
    for number in range(block_of(state, first), counters.n_blocks):
        begin, end = state.blocks[number].first, block_end(state, number)
        state.blocks[number].first = begin - gaps
        if gaps == counters.n_started:
            move_down(waiting, begin, end, gaps)
        else:
            for place in range(begin, end):
                slot = waiting[place]
                waiting[place - gaps] = slot
                gaps += slot == GONE
    counters.n_waiting -= gaps

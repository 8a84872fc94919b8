"""An index over a long queue, so that a pass need not look at every job that waits.

The places of the queue are parted into blocks of some dozens. Of each block it is known where it begins, how wide its
narrowest job is at least and, for each class of widths, how long its shortest job is at least: so a walk leaves out the
blocks in which no job can start. The bounds of a block become exact when a walk sees all of it, and hold in between, as
a job that leaves can only make them too cautious. A short queue has no index; nor has one from which a job was
withdrawn, until the next pass makes it anew.
"""

from __future__ import annotations

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.kernels.state import BLOCK_PLACES, GONE, NEVER_MS, WIDTH_CLASSES, SiteState, drop_started, move_down

INDEXED_FROM = 4 * BLOCK_PLACES
"""A shorter queue is walked as fast without an index."""

_MOST_PLACES = 4 * BLOCK_PLACES
_FEWEST_PLACES = BLOCK_PLACES // 4


@kernel
def keep_index(state: SiteState) -> None:
    """Make the index, make it anew if its blocks have become many and small, or do without it."""
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
    """Make the bounds of a block exact; these are its places, and some may be gaps."""
    forget_block(state, number)
    for place in range(begin, end):
        if state.waiting[place] != GONE:
            tell_block(state, number, state.jobs[state.waiting[place]])


@kernel_part
def forget_block(state: SiteState, number: Int) -> None:
    """Have the bounds of a block be those of no job."""
    state.blocks[number].narrowest = NEVER_MS
    for k in range(WIDTH_CLASSES):
        state.shortest_ms[number, k] = NEVER_MS


@kernel_part
def tell_block(state: SiteState, number: Int, job: Record) -> None:
    """Have the bounds of a block hold for one more job."""
    block = state.blocks[number]
    block.narrowest = min(block.narrowest, job.width)
    k = width_class(job.width)
    state.shortest_ms[number, k] = min(state.shortest_ms[number, k], job.estimate_ms)


@kernel_part
def width_class(width: Int) -> Int:
    """Return the class of a width: powers of two, which most widths are, have their own, and so has what is between.

    -1 for a width below 1; what is too wide for its own class belongs to the last.
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
    """Whether a block may have a job of these classes that would end by an instant."""
    for k in range(lowest, highest + 1):  # noqa: SIM110  # kernels have no generators
        if now_ms + state.shortest_ms[number, k] <= latest_end_ms:
            return True
    return False


@kernel_part
def block_of(state: SiteState, place: Int) -> Int:
    """Return the block in which a place is."""
    number = state.counters[0].n_blocks - 1
    while state.blocks[number].first > place:
        number -= 1
    return number


@kernel_part
def block_end(state: SiteState, number: Int) -> Int:
    """Return the place behind the last of a block."""
    counters = state.counters[0]
    return state.blocks[number + 1].first if number + 1 < counters.n_blocks else counters.n_waiting


@kernel
def index_new(state: SiteState, place: Int) -> None:
    """Have the index hold for a job that has just been put into the queue at this place."""
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
    tell_block(state, number, state.jobs[state.waiting[place]])
    if block_end(state, number) - blocks[number].first > _MOST_PLACES:
        counters.n_blocks = 0


@kernel
def close_gaps(state: SiteState, first: Int) -> None:
    """Do what `drop_started` does, and have the index hold for it."""
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

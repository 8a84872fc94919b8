"""The arrays that the grid queue works on.

The queue itself is kept by the kernels of a site (`gridweave.site.kernels.state.enqueue` and its like): a `GridState`
has the same ``jobs``, ``waiting`` and counters, with the nodes told apart by site.

The sites stand in ascending order of their free nodes, kept up to date, so that none need be looked at in vain. An
entry of a `SiteOrder` is a single number, free nodes x 2^24 + site: no grid has 2^24 nodes, nor therefore sites. A
search takes as many steps as the sites have binary digits; a change moves the entries between the old place and the new
one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel_part
from gridweave.site.kernels.state import JOB, NEVER_MS, RUNNING

SITE_BITS = np.int64(24)
SITE_MASK = np.int64(2**24 - 1)

SiteOrder = npt.NDArray[np.int64]
"""The entries of all sites, ascending: shape (sites,)."""

Slot = Int
"""The row of a job in the tables of jobs; it keeps that as long as it waits or runs."""

Place = Int
"""Where a job stands: in the queue, or among the running jobs (running.py)."""

SiteNodes = npt.NDArray[np.int64]
"""A number of nodes for each site: shape (sites,)."""

BLOCK_BITS = 6
BLOCK = 1 << BLOCK_BITS
"""Jobs in a block."""

FRAGMENT = np.dtype([("site", np.int64), ("width", np.int64)], align=True)
"""A part of a job: so many nodes of one site."""

COUNTERS = np.dtype(
    [
        ("nodes", np.int64),
        ("largest", np.int64),
        ("free", np.int64),
        ("n_waiting", np.int64),
        ("n_running", np.int64),
        ("n_blocks", np.int64),
        ("n_started", np.int64),
        ("n_fragments", np.int64),
        ("n_taken", np.int64),
        ("first_new", np.int64),
        ("narrowest", np.int64),
        ("shadow_ms", np.int64),
        ("n_reserved", np.int64),
        ("n_kept", np.int64),
        ("spare", np.int64),
        ("n_horizon", np.int64),
        ("horizon_next", np.int64),
        ("settled", np.int64),
        ("n_noted", np.int64),
        ("first_gap", np.int64),
        ("last_gap", np.int64),
        ("reserved_for", np.int64),
    ],
    align=True,
)
"""The numbers of a grid: ``free`` of ``nodes`` on all sites, nodes of the ``largest``, and how full each array is.

``spare`` is the sum of what ``spare_order`` holds, `UNKNOWN` if that is not up to date; ``horizon_next`` is the running
job up to which the horizon is known. ``settled`` is the head, by its slot, for which the last pass started nothing, if
nothing has started, ended or moved since; otherwise `UNKNOWN`. ``n_noted`` is up to which place it is known what the
waiting jobs want; ``first_gap`` and ``last_gap`` where the first and the last job stood that the pass has started.
``reserved_for`` is the head, by its slot, for which ``shadow_ms``, ``ahead`` and ``n_kept`` entries of ``reserved``
were found, if nothing has started, ended or moved since; otherwise `UNKNOWN`.
"""

UNKNOWN = np.int64(-1)

ALL_NODES = np.int64(2**62)
"""The extra nodes of a site on which nothing is reserved for the head."""


def blocks_for(jobs: int) -> int:
    """Return how many blocks so many running jobs can need: any two neighbours fill more than half of one."""
    return 4 * jobs // BLOCK + 2


class GridState(NamedTuple):
    """All arrays of one grid queue.

    Attributes
    ----------
    counters : numpy.ndarray of COUNTERS, shape (1,)
    jobs : numpy.ndarray of JOB, shape (slots,)
    sensitivity : numpy.ndarray of float64, shape (slots,)
        By which the overhead of each job is multiplied, for jobs that communicate more than others, or less.
    draw : numpy.ndarray of float64, shape (slots,)
        In [0, 1): what chance each job has, for the selection ``random``.
    waiting : numpy.ndarray of int64, shape (slots,)
        Slots in the order of the queue.
    queue_width, queue_ms : numpy.ndarray of int32, shape (slots,)
        What the waiting jobs want, in the order of the queue (candidates.py): their widths and estimates.
    running : numpy.ndarray of RUNNING, shape (blocks x BLOCK,)
        Ascending (end by estimate, job id) through the blocks in use (running.py).
    block_order, block_count : numpy.ndarray of int64, shape (blocks,)
        The blocks in the order of their jobs, those in use first; and how many jobs each block has.
    started : numpy.ndarray of int64, shape (capacity,)
        Slots of the jobs that the last pass started.
    nodes, free : numpy.ndarray of int64, shape (sites,)
    fragments : numpy.ndarray of FRAGMENT, shape (capacity,)
        Of all jobs that ever started, one job after the other.
    first_fragment, n_fragments : numpy.ndarray of int64, shape (slots,)
        Where the fragments of a job stand, and how many they are.
    end_ms : numpy.ndarray of int64, shape (slots,)
        The end by estimate of each job that has started.
    taken : numpy.ndarray of FRAGMENT, shape (sites,)
        What the last placement took.
    free_order, spare_order, ahead_order : numpy.ndarray of int64, shape (sites,)
        The sites in the order of their free nodes (`SiteOrder`): now; of what a candidate may take that ends after
        the shadow time; and at the instant up to which the shadow time has been looked for.
    reserved : numpy.ndarray of FRAGMENT, shape (sites,)
        What the head will take at the shadow time.
    extra : numpy.ndarray of int64, shape (sites,)
        Nodes that can be spared beyond the shadow time on the sites that are reserved; `ALL_NODES` elsewhere.
    available, ahead, later : numpy.ndarray of int64, shape (sites,)
        Room to work in: nodes that a candidate may take, and nodes free at some later instant.
    horizon_ms, horizon_most : numpy.ndarray of int64, shape (capacity,)
        The instants, by estimates, at which the most nodes free on one site become more, and how many they then are.
    shut : numpy.ndarray of bool, shape (sites,)
        Whether a site takes in nothing new for the grid: jobs that end there free no nodes for it.
    """

    counters: npt.NDArray[np.void]
    jobs: npt.NDArray[np.void]
    sensitivity: npt.NDArray[np.float64]
    draw: npt.NDArray[np.float64]
    waiting: npt.NDArray[np.int64]
    queue_width: npt.NDArray[np.int32]
    queue_ms: npt.NDArray[np.int32]
    running: npt.NDArray[np.void]
    block_order: npt.NDArray[np.int64]
    block_count: npt.NDArray[np.int64]
    started: npt.NDArray[np.int64]
    nodes: npt.NDArray[np.int64]
    free: npt.NDArray[np.int64]
    fragments: npt.NDArray[np.void]
    first_fragment: npt.NDArray[np.int64]
    n_fragments: npt.NDArray[np.int64]
    end_ms: npt.NDArray[np.int64]
    taken: npt.NDArray[np.void]
    free_order: npt.NDArray[np.int64]
    spare_order: npt.NDArray[np.int64]
    ahead_order: npt.NDArray[np.int64]
    reserved: npt.NDArray[np.void]
    extra: npt.NDArray[np.int64]
    available: npt.NDArray[np.int64]
    ahead: npt.NDArray[np.int64]
    later: npt.NDArray[np.int64]
    horizon_ms: npt.NDArray[np.int64]
    horizon_most: npt.NDArray[np.int64]
    shut: npt.NDArray[np.bool_]


def empty_grid(nodes: npt.NDArray[np.int64], *, slots: int) -> GridState:
    """Return the state of an idle grid, with slots for the jobs that may wait or run at one time."""
    sites = len(nodes)
    running = int(min(nodes.sum(), slots))
    state = GridState(
        counters=np.zeros(1, COUNTERS),
        jobs=np.zeros(slots, JOB),
        sensitivity=np.ones(slots, np.float64),
        draw=np.zeros(slots, np.float64),
        waiting=np.zeros(slots, np.int64),
        queue_width=np.zeros(slots, np.int32),
        queue_ms=np.zeros(slots, np.int32),
        running=np.zeros(blocks_for(running) * BLOCK, RUNNING),
        block_order=np.arange(blocks_for(running)),
        block_count=np.zeros(blocks_for(running), np.int64),
        started=np.zeros(running, np.int64),
        nodes=nodes.astype(np.int64),
        free=nodes.astype(np.int64),
        fragments=np.zeros(slots + int(nodes.sum()), FRAGMENT),
        first_fragment=np.zeros(slots, np.int64),
        n_fragments=np.zeros(slots, np.int64),
        end_ms=np.zeros(slots, np.int64),
        taken=np.zeros(sites, FRAGMENT),
        free_order=np.sort((nodes.astype(np.int64) << SITE_BITS) | np.arange(sites)),
        spare_order=np.zeros(sites, np.int64),
        ahead_order=np.zeros(sites, np.int64),
        reserved=np.zeros(sites, FRAGMENT),
        extra=np.full(sites, ALL_NODES),
        available=np.zeros(sites, np.int64),
        ahead=np.zeros(sites, np.int64),
        later=np.zeros(sites, np.int64),
        horizon_ms=np.zeros(running + 1, np.int64),
        horizon_most=np.zeros(running + 1, np.int64),
        shut=np.zeros(sites, np.bool_),
    )
    state.counters["nodes"] = state.counters["free"] = nodes.sum()
    state.counters["largest"] = nodes.max()
    state.counters["settled"] = state.counters["reserved_for"] = UNKNOWN
    state.counters["first_new"] = state.counters["narrowest"] = NEVER_MS
    return state


@kernel_part
def is_full(state: GridState) -> bool:
    """Whether the fragments of one more pass might not find room: a pass starts no more than one per node."""
    return state.counters[0].n_fragments + state.counters[0].nodes > len(state.fragments)


@kernel_part
def forget_head(state: GridState) -> None:
    """Note that what was found of the head, which is known by its slot, holds no more."""
    state.counters[0].settled = UNKNOWN
    state.counters[0].reserved_for = UNKNOWN


@kernel_part
def freed(state: GridState) -> None:
    """Note that what is free on one site, now or later, has changed."""
    state.counters[0].n_horizon = 0
    forget_head(state)


@kernel_part
def add_free(state: GridState, site: Int, nodes: Int) -> None:
    """Make so many nodes more of a site free (fewer, if negative)."""
    before = state.free[site]
    state.free[site] = before + nodes
    move_site(state.free_order, site, before, before + nodes)


@kernel_part
def recall_taken(state: GridState, slot: Slot) -> None:
    """Put the fragments of a job that has started back into ``taken``."""
    first = state.first_fragment[slot]
    for k in range(state.n_fragments[slot]):
        state.taken[k] = state.fragments[first + k]
    state.counters[0].n_taken = state.n_fragments[slot]


@kernel_part
def give_back(state: GridState, slot: Slot, free: SiteNodes) -> None:
    """Add the nodes that the end of a running job frees to a vector of free nodes."""
    first = state.first_fragment[slot]
    for k in range(first, first + state.n_fragments[slot]):
        free[state.fragments[k].site] += freed_by(state, k)


@kernel_part
def freed_by(state: GridState, k: Int) -> Int:
    """Return how many nodes the end of a fragment frees for the grid: none at a site that is shut."""
    return 0 if state.shut[state.fragments[k].site] else state.fragments[k].width


@kernel_part
def freed_in_all(state: GridState, slot: Slot) -> Int:
    """Return how many nodes the end of a running job frees for the grid, on all its sites."""
    nodes = np.int64(0)
    first = state.first_fragment[slot]
    for k in range(first, first + state.n_fragments[slot]):
        nodes += freed_by(state, k)
    return nodes


@kernel_part
def entry_of(site: Int, nodes: Int) -> Int:
    """Return the entry of a site with so many nodes free."""
    return (nodes << SITE_BITS) | site


@kernel_part
def site_of(entry: Int) -> Int:
    """Return the site of an entry."""
    return entry & SITE_MASK


@kernel_part
def nodes_of(entry: Int) -> Int:
    """Return the free nodes of an entry."""
    return entry >> SITE_BITS


@kernel_part
def most_of(order: SiteOrder) -> Int:
    """Return the most nodes that are free on one site."""
    return nodes_of(order[len(order) - 1])


@kernel_part
def first_from(order: SiteOrder, entry: Int) -> Int:
    """Return the place of the first entry that is not below this one: a site, or so many nodes on the first site."""
    low = 0
    left = len(order)
    while left > 0:
        half = (left + 1) >> 1
        # Written for a conditional move: both outcomes are as likely.
        low += half if order[low + half - 1] < entry else 0
        left -= half
    return low


@kernel_part
def first_with(order: SiteOrder, nodes: Int) -> Int:
    """Return the place of the first entry with at least so many nodes free."""
    return first_from(order, nodes << SITE_BITS)


@kernel_part
def copy_order(source: SiteOrder, target: SiteOrder) -> None:
    """Copy all entries."""
    for place in range(len(source)):
        target[place] = source[place]


@kernel_part
def move_site(order: SiteOrder, site: Int, before: Int, after: Int) -> None:
    """Move a site to its new place when its free nodes change."""
    entry = entry_of(site, after)
    place = first_from(order, entry_of(site, before))
    if after > before:
        while place + 1 < len(order) and order[place + 1] < entry:
            order[place] = order[place + 1]
            place += 1
    else:
        while place > 0 and order[place - 1] > entry:
            order[place] = order[place - 1]
            place -= 1
    order[place] = entry

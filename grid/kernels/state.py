"""The arrays of the grid queue.

A site's kernels also maintain the grid's queue (`gridweave.site.kernels.state.enqueue` and others): a `GridState` has
the same ``jobs``, ``waiting`` and counters, but counts nodes per site.

If a site counts resources, ``resources`` has the nodes of all sites, and all numbers of nodes count cores instead. They
are then only upper bounds on the chunks that fit, because every chunk has at least one core.

The sites are kept sorted by their free nodes, so that a search touches only sites with enough nodes. An entry of a
`SiteOrder` is a single number, free nodes x 2^24 + site; no grid has 2^24 nodes or sites. A search is binary, and a
change moves the entries between the old and the new position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.resources import CountedSite, GridNodes, empty_grid_nodes
from gridweave.jit import Int, kernel_part
from gridweave.site.kernels.state import JOB, NEVER_MS, RUNNING

SITE_BITS = np.int64(24)
SITE_MASK = np.int64(2**24 - 1)

SiteOrder = npt.NDArray[np.int64]
"""The entries of all sites in ascending order, shape (sites,)."""

Slot = Int
"""A job's row in the job tables, which is fixed while the job is waiting or running."""

Place = Int
"""The position of a job in the queue, or among the running jobs (running.py)."""

SiteNodes = npt.NDArray[np.int64]
"""A number of nodes for each site, shape (sites,)."""

BLOCK_BITS = 6
BLOCK = 1 << BLOCK_BITS
"""Number of jobs in a block."""

FRAGMENT = np.dtype([("site", np.int64), ("width", np.int64)], align=True)
"""A part of a job: a number of nodes on one site."""

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
"""The counters of a grid: total and ``free`` nodes, nodes of the ``largest`` site, and the used length of each array.

``spare`` is the sum of the nodes in ``spare_order``, `UNKNOWN` if outdated. ``horizon_next`` is the place of
the running job at which the search for the horizon continues. ``settled`` is the slot of the head if the last pass
started no job and nothing has changed since, otherwise `UNKNOWN`. ``n_noted`` is the number of places for which
``queue_width`` and ``queue_ms`` are up to date. ``first_gap`` and ``last_gap`` are the places of the first and last job
that the pass has started. ``reserved_for`` is the slot of the head whose reservation (``shadow_ms``, ``ahead`` and the
first ``n_kept`` entries of ``reserved``) is still valid, otherwise `UNKNOWN`.
"""

UNKNOWN = np.int64(-1)

ALL_NODES = np.int64(2**62)
"""The number of extra nodes of a site on which the head has no reservation."""


def blocks_for(jobs: int) -> int:
    """Return the maximum number of blocks for running jobs, given that two neighbours fill more than half a block."""
    return 4 * jobs // BLOCK + 2


class GridState(NamedTuple):
    """All arrays of one grid queue.

    Attributes
    ----------
    counters : numpy.ndarray of COUNTERS, shape (1,)
    jobs : numpy.ndarray of JOB, shape (slots,)
    sensitivity : numpy.ndarray of float64, shape (slots,)
        Factor by which the overhead of each job's splits is multiplied; it depends on how much the job communicates.
    draw : numpy.ndarray of float64, shape (slots,)
        Random number in [0, 1) of each job, for the selection ``random``.
    waiting : numpy.ndarray of int64, shape (slots,)
        Slots in queue order.
    queue_width, queue_ms : numpy.ndarray of int32, shape (slots,)
        Widths and estimates of the waiting jobs in queue order (candidates.py).
    running : numpy.ndarray of RUNNING, shape (blocks x BLOCK,)
        Sorted by (estimated end, job id) across the blocks in use (running.py).
    block_order, block_count : numpy.ndarray of int64, shape (blocks,)
        The blocks in use in the order of their jobs, then the free blocks; and the number of jobs in each block.
    started : numpy.ndarray of int64, shape (capacity,)
        Slots of the jobs that the last pass started.
    nodes, free : numpy.ndarray of int64, shape (sites,)
    fragments : numpy.ndarray of FRAGMENT, shape (capacity,)
        Fragments of all jobs that ever started, job after job.
    first_fragment, n_fragments : numpy.ndarray of int64, shape (slots,)
        Index of a job's first fragment, and the number of its fragments.
    end_ms : numpy.ndarray of int64, shape (slots,)
        Estimated end of each started job.
    taken : numpy.ndarray of FRAGMENT, shape (sites,)
        The result of the last placement.
    free_order, spare_order, ahead_order : numpy.ndarray of int64, shape (sites,)
        The sites sorted by nodes (`SiteOrder`): by free nodes now; by the nodes that a candidate ending after the
        shadow time may take; and by free nodes at the time reached by the search for the shadow time.
    reserved : numpy.ndarray of FRAGMENT, shape (sites,)
        The head's reservation at the shadow time.
    extra : numpy.ndarray of int64, shape (sites,)
        Nodes that the head leaves free at the shadow time on its reserved sites; `ALL_NODES` on other sites.
    available, ahead, later : numpy.ndarray of int64, shape (sites,)
        Scratch: nodes that a candidate may take, and nodes free at a later time.
    horizon_ms, horizon_most : numpy.ndarray of int64, shape (capacity,)
        The estimated times at which the largest number of free nodes on one site grows, and that number.
    shut : numpy.ndarray of bool, shape (sites,)
        Whether a site accepts no new jobs from the grid; jobs that end on such a site free no nodes for the grid.
    resources : GridNodes or None
        The nodes of all sites if some site counts resources. ``ahead`` and ``available`` then count chunks of the job
        in question, and ``extra`` and the widths of fragments count chunks, too.
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
    resources: GridNodes | None = None


def empty_counted_grid(sites: Sequence[CountedSite], *, slots: int) -> GridState:
    """Return the state of an idle grid in which at least one site counts resources."""
    cores = np.array([site.cores for site in sites], np.int64)
    return empty_grid(cores, slots=slots)._replace(resources=empty_grid_nodes(sites, slots=slots))


def empty_grid(nodes: npt.NDArray[np.int64], *, slots: int) -> GridState:
    """Return the state of an idle grid with capacity for ``slots`` waiting and running jobs."""
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
    """Whether one more pass, which adds at most one fragment per node, might exceed the capacity."""
    return state.counters[0].n_fragments + state.counters[0].nodes > len(state.fragments)


@kernel_part
def forget_head(state: GridState) -> None:
    """Invalidate the cached results about the head."""
    state.counters[0].settled = UNKNOWN
    state.counters[0].reserved_for = UNKNOWN


@kernel_part
def freed(state: GridState) -> None:
    """Invalidate the cached results after a site's current or future free nodes have changed."""
    state.counters[0].n_horizon = 0
    forget_head(state)


@kernel_part
def add_free(state: GridState, site: Int, nodes: Int) -> None:
    """Change the free nodes of a site by ``nodes``, which may be negative."""
    before = state.free[site]
    state.free[site] = before + nodes
    move_site(state.free_order, site, before, before + nodes)


@kernel_part
def recall_taken(state: GridState, slot: Slot) -> None:
    """Copy the fragments of a started job into ``taken``."""
    first = state.first_fragment[slot]
    for k in range(state.n_fragments[slot]):
        state.taken[k] = state.fragments[first + k]
    state.counters[0].n_taken = state.n_fragments[slot]


@kernel_part
def give_back(state: GridState, slot: Slot, free: SiteNodes) -> None:
    """Add the nodes that a running job will free to an array of free nodes by site."""
    first = state.first_fragment[slot]
    for k in range(first, first + state.n_fragments[slot]):
        free[state.fragments[k].site] += freed_by(state, k)


@kernel_part
def largest_for(state: GridState, resources: GridNodes | None, slot: Slot) -> Int:
    """Return the largest width of a job with this job's chunk that fits on one idle site."""
    if resources is not None:
        return resources.largest[slot]
    return state.counters[0].largest


@kernel_part
def freed_by(state: GridState, k: Int) -> Int:
    """Return how many nodes the end of a fragment frees for the grid; 0 on a closed site."""
    return 0 if state.shut[state.fragments[k].site] else state.fragments[k].width


@kernel_part
def freed_in_all(state: GridState, slot: Slot) -> Int:
    """Return how many nodes the end of a running job frees for the grid on all its sites together."""
    nodes = np.int64(0)
    first = state.first_fragment[slot]
    for k in range(first, first + state.n_fragments[slot]):
        nodes += freed_by(state, k)
    return nodes


@kernel_part
def entry_of(site: Int, nodes: Int) -> Int:
    """Return the entry of a site with this number of free nodes."""
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
    """Return the largest number of nodes on one site."""
    return nodes_of(order[len(order) - 1])


@kernel_part
def first_from(order: SiteOrder, entry: Int) -> Int:
    """Return the index of the first entry that is at least ``entry``."""
    low = 0
    left = len(order)
    while left > 0:
        half = (left + 1) >> 1
        # Both outcomes are equally likely, so this form lets the compiler use a conditional move instead of a branch.
        low += half if order[low + half - 1] < entry else 0
        left -= half
    return low


@kernel_part
def first_with(order: SiteOrder, nodes: Int) -> Int:
    """Return the index of the first entry with at least this number of nodes."""
    return first_from(order, nodes << SITE_BITS)


@kernel_part
def copy_order(source: SiteOrder, target: SiteOrder) -> None:
    """Copy all entries from ``source`` to ``target``."""
    for place in range(len(source)):
        target[place] = source[place]


@kernel_part
def move_site(order: SiteOrder, site: Int, before: Int, after: Int) -> None:
    """Move a site to its new position after its number of nodes has changed."""
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

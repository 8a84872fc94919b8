"""Placement of jobs on sites that count resources (docs/resources.md, rule 8).

The rules for choosing sites are in placement.py; this file counts how many chunks of a job each site can take.
"""

from __future__ import annotations

import numpy as np

from gridweave.grid.kernels.placement import EQUAL_UTIL, GridCodes, choose_site
from gridweave.grid.kernels.resources import (
    GridNodes,
    chunks_beside,
    chunks_on_node,
    compare_left,
    count_fitting,
    count_free,
    count_given_back,
    hold_part,
    most_on_one_site,
    move_units,
)
from gridweave.grid.kernels.running import FIRST_PLACE, end_place, next_place, row_at
from gridweave.grid.kernels.state import ALL_NODES, GridState, SiteNodes, Slot, add_free
from gridweave.jit import Int, kernel
from gridweave.site.kernels.chunks import CORES, NO_ENTRY, Amounts, add_held, amount
from gridweave.site.kernels.state import NEVER_MS, NO_PLACE


@kernel
def choose_counted_site(
    state: GridState, codes: GridCodes, resources: GridNodes, slot: Slot, available: SiteNodes, free: Amounts
) -> Int:
    """Return the selected site among those that can take all chunks of a job, or ``NO_PLACE``.

    Parameters
    ----------
    state : GridState
    codes : GridCodes
    resources : GridNodes
    slot : int
        Slot of the job.
    available : numpy.ndarray of int64, shape (sites,)
        How many chunks the job may take on each site.
    free : Amounts
        The free amounts by which the sites are compared.
    """
    width = state.jobs[slot].width
    if most_on_one_site(available) < width:
        return NO_PLACE
    if codes.selection == EQUAL_UTIL:
        count_free(resources, free, slot)
    else:
        compare_left(resources, free, slot, width, available)
    return choose_site(state, codes, slot, available, resources.compared, resources.total)


@kernel
def count_available(state: GridState, resources: GridNodes, slot: Slot, late: bool) -> Int:
    """Write to ``available`` how many chunks of a job each site can take now; return their sum.

    A job that ends after the shadow time (``late``) must leave the head its reserved chunks.
    """
    in_all = count_fitting(resources, resources.nodes.free, slot, state.available)
    if late:
        width = state.jobs[slot].width
        for site in range(len(state.available)):
            chunks = state.available[site]
            if state.extra[site] != ALL_NODES and chunks > 0:
                in_all -= chunks
                chunks = chunks_beside(resources, slot, site, min(chunks, width), state.extra[site])
                state.available[site] = chunks
                in_all += chunks
    return in_all


@kernel
def choose_free_counted_site(state: GridState, codes: GridCodes, resources: GridNodes, slot: Slot, late: bool) -> Int:
    """Return the selected site for a job that starts now, or ``NO_PLACE``."""
    if count_available(state, resources, slot, late) < state.jobs[slot].width:
        return NO_PLACE
    return choose_counted_site(state, codes, resources, slot, state.available, resources.nodes.free)


@kernel
def reach_from_now(state: GridState, resources: GridNodes, slot: Slot, free: Amounts, fitting: SiteNodes) -> Int:
    """Begin a search through the ends of running jobs; return how many chunks of a job fit now.

    Set ``free`` and ``fitting`` to the current values; `count_given_back` updates them for each ending job.
    """
    for node in range(len(free)):
        for column in range(free.shape[1]):
            free[node, column] = resources.nodes.free[node, column]
    return count_fitting(resources, free, slot, fitting)


@kernel
def fits_counted_site_ms(state: GridState, resources: GridNodes, slot: Slot, limit_ms: Int) -> Int:
    """Return the first time at which a job fits on a single site, by the running jobs' estimates.

    It is 0 if the job fits now, and `NEVER_MS` if it never does or only after ``limit_ms``.
    """
    width = state.jobs[slot].width
    later, fitting = resources.nodes.later, resources.fitting
    reach_from_now(state, resources, slot, later, fitting)
    if most_on_one_site(fitting) >= width:
        return np.int64(0)
    if width > resources.largest[slot]:
        return NEVER_MS
    place = FIRST_PLACE
    while place < end_place(state):
        ending = state.running[row_at(state, place)]
        if ending.end_ms > limit_ms:
            return NEVER_MS
        gained = count_given_back(resources, ending.slot, state.shut, later, slot, fitting)
        if gained > 0 and most_on_one_site(fitting) >= width:
            return ending.end_ms
        place = next_place(state, place)
    return NEVER_MS


@kernel
def hold_taken(state: GridState, resources: GridNodes, slot: Slot) -> None:
    """Give a job nodes for the chunks in ``taken``."""
    for k in range(state.counters[0].n_taken):
        site = state.taken[k].site
        cores = hold_part(resources, slot, site, state.taken[k].width)
        add_free(state, site, -cores)
        state.counters[0].free -= cores
    add_held(resources.nodes, slot, resources.nodes.free, -1)


@kernel
def let_go_of_nodes(state: GridState, resources: GridNodes, slot: Slot) -> None:
    """Free the nodes of a job on all its sites."""
    first = state.first_fragment[slot]
    for k in range(first, first + state.n_fragments[slot]):
        let_go_of_site(state, resources, slot, state.fragments[k].site)


@kernel
def let_go_of_site(state: GridState, resources: GridNodes, slot: Slot, site: Int) -> None:
    """Free the nodes of a job on a site."""
    nodes = resources.nodes
    before, number = NO_ENTRY, nodes.first[slot]
    while number != NO_ENTRY:
        entry = nodes.entries[number]
        after = entry.next
        if resources.site[entry.node] == site:
            cores = amount(nodes, slot, entry.node, entry.units, CORES)
            add_free(state, site, cores)
            state.counters[0].free += cores
            move_units(resources, nodes.free, slot, entry.node, entry.units, 1)
            if before == NO_ENTRY:
                nodes.first[slot] = after
            else:
                nodes.entries[before].next = after
            entry.next = nodes.unused[0]
            nodes.unused[0] = number
        else:
            before = number
        number = after


@kernel
def use_up_ahead(state: GridState, resources: GridNodes, slot: Slot) -> None:
    """Subtract the resources of a started job that ends after the shadow time from those free at that time."""
    head = resources.head[0]
    number = resources.nodes.first[slot]
    while number != NO_ENTRY:
        entry = resources.nodes.entries[number]
        before = chunks_on_node(resources, resources.ahead, head, entry.node)
        move_units(resources, resources.ahead, slot, entry.node, entry.units, -1)
        site = resources.site[entry.node]
        if state.extra[site] != ALL_NODES:
            state.extra[site] -= before - chunks_on_node(resources, resources.ahead, head, entry.node)
        number = entry.next

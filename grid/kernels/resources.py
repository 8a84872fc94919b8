"""The nodes of all sites whose cores, memory and GPUs are counted (docs/resources.md, rule 8).

One `NodeArrays` holds the nodes of all sites, site after site. `nodes_of` returns the part of one site as a
`NodeArrays`, so that the rules for the nodes of a site apply to each site of the grid.

Amounts that are free on nodes, now or later, are passed as ``free``: shape (nodes of all sites, resources).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.chunks import (
    CORES,
    FIRST_FIT,
    NO_ENTRY,
    Amounts,
    NodeArrays,
    add_held,
    amount,
    choose,
    empty_nodes,
    fill_request,
    hold_chosen,
    request_row,
    units_on,
)
from gridweave.site.policy import PLACEMENTS
from gridweave.site.resources.chunks import Chunk, NodeKind, chunks_on, columns_of

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

WHOLE_NODES = np.int64(-1)
"""In the place of a resource: sites are compared by their idle nodes."""


class CountedSite(NamedTuple):
    """The nodes of a site of a grid that counts resources.

    Attributes
    ----------
    kinds : tuple of NodeKind
    placement : int
        BEST_FIT, WORST_FIT or FIRST_FIT.
    counts : bool
        Whether the site counts resources; if not, it has one kind of node with one core, for whole nodes only.
    """

    kinds: tuple[NodeKind, ...]
    placement: int
    counts: bool

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return sum(kind.count for kind in self.kinds)

    @property
    def cores(self) -> int:
        """The number of cores of all nodes."""
        return sum(kind.count * kind.cores for kind in self.kinds)

    def most_chunks(self, chunk: Chunk | msgspec.UnsetType) -> int:
        """Return how many chunks of a job fit on the idle site."""
        if chunk is msgspec.UNSET:
            return self.nodes
        if not self.counts:
            return 0
        counts = ((kind.count, chunks_on(chunk, kind)) for kind in self.kinds)
        if chunk.per_node:
            return sum(count * chunk.per_node for count, chunks in counts if chunks >= chunk.per_node)
        return sum(count * chunks for count, chunks in counts)


def whole_nodes(count: int) -> CountedSite:
    """Return a site that does not count resources, for a grid in which another site does."""
    return CountedSite((NodeKind(name="", count=count),), FIRST_FIT, counts=False)


def counted_grid(
    nodes: Sequence[int], kinds: Sequence[tuple[NodeKind, ...]], placements: Sequence[str]
) -> tuple[CountedSite, ...]:
    """Return the nodes of the sites of a grid; empty if no site counts resources.

    Parameters
    ----------
    nodes : sequence of int
        The number of nodes of each site.
    kinds : sequence of tuple of NodeKind
        The kinds of the nodes of each site; empty for a site that gives out whole nodes.
    placements : sequence of str
        The placement of each site (`PLACEMENTS`); without meaning for a site of whole nodes.
    """
    if not any(kinds):
        return ()
    sites = zip(nodes, kinds, placements, strict=True)
    return tuple(
        CountedSite(of_site, PLACEMENTS.index(placement), counts=True) if of_site else whole_nodes(count)
        for count, of_site, placement in sites
    )


class GridNodes(NamedTuple):
    """The nodes of all sites, and each job's request at each site.

    Attributes
    ----------
    nodes : NodeArrays
        The nodes of all sites, with the resources of any of them as columns. ``kind`` counts the kinds of each site
        from 0, ``scarcest`` is the resource by which a job compares sites (or `WHOLE_NODES`), ``kinds`` is unused.
    first_node : numpy.ndarray of int64, shape (sites + 1,)
        Number of the first node of each site, and the number of all nodes.
    site : numpy.ndarray of int64, shape (nodes,)
        Site of each node.
    placement : numpy.ndarray of int64, shape (sites,)
    kinds, scarcest : numpy.ndarray of int64, shape (sites, slots)
        As in `NodeArrays`, for each site.
    largest : numpy.ndarray of int64, shape (slots,)
        The largest number of chunks of each job that fit on one idle site.
    ahead : Amounts
        Free amounts on each node at the head's shadow time or, during the search for it, at the time reached so far.
    head : numpy.ndarray of int64, shape (1,)
        Slot of the job to which ``ahead`` belongs.
    fitting : numpy.ndarray of int64, shape (sites,)
        Scratch: how many chunks of a job fit on each site.
    compared, total : numpy.ndarray of int64, shape (sites,)
        Scratch: the numbers by which sites are compared.
    """

    nodes: NodeArrays
    first_node: npt.NDArray[np.int64]
    site: npt.NDArray[np.int64]
    placement: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]
    scarcest: npt.NDArray[np.int64]
    largest: npt.NDArray[np.int64]
    ahead: Amounts
    head: npt.NDArray[np.int64]
    fitting: npt.NDArray[np.int64]
    compared: npt.NDArray[np.int64]
    total: npt.NDArray[np.int64]


def empty_grid_nodes(sites: Sequence[CountedSite], *, slots: int) -> GridNodes:
    """Return the idle nodes of these sites, with capacity for ``slots`` jobs."""
    counts = [site.nodes for site in sites]
    # Every unit of a running job has at least one core.
    entries = sum(site.cores for site in sites) + 1
    nodes = empty_nodes([kind for site in sites for kind in site.kinds], FIRST_FIT, slots=slots, entries=entries)
    of_site = [np.repeat(np.arange(len(site.kinds)), [kind.count for kind in site.kinds]) for site in sites]
    return GridNodes(
        nodes=nodes._replace(kind=np.concatenate(of_site).astype(np.int64)),
        first_node=np.cumsum([0, *counts], dtype=np.int64),
        site=np.repeat(np.arange(len(sites)), counts).astype(np.int64),
        placement=np.array([site.placement for site in sites], np.int64),
        kinds=np.zeros((len(sites), slots), np.int64),
        scarcest=np.zeros((len(sites), slots), np.int64),
        largest=np.zeros(slots, np.int64),
        ahead=np.zeros_like(nodes.free),
        head=np.zeros(1, np.int64),
        fitting=np.zeros(len(sites), np.int64),
        compared=np.zeros(len(sites), np.int64),
        total=np.zeros(len(sites), np.int64),
    )


def fill_grid_request(
    grid: GridNodes, slot: int | npt.NDArray[np.int64], chunk: Chunk | msgspec.UnsetType, sites: Sequence[CountedSite]
) -> None:
    """Store the requests of the jobs in these slots, for all sites."""
    all_kinds = [kind for site in sites for kind in site.kinds]
    names = columns_of(all_kinds)
    # Sites without resources do not count towards the total of which a unit asks for a share.
    whole_grid = request_row(chunk, [kind for site in sites if site.counts for kind in site.kinds] or all_kinds)
    fill_request(grid.nodes, slot, request_row(chunk, all_kinds)._replace(kinds=0))  # type: ignore[arg-type]
    is_whole = chunk is msgspec.UNSET or chunk.is_whole
    counted = columns_of([kind for site in sites if site.counts for kind in site.kinds])
    grid.nodes.scarcest[slot] = WHOLE_NODES if is_whole else names.index(counted[whole_grid.scarcest])
    for number, site in enumerate(sites):
        row = request_row(chunk, site.kinds)
        suits = site.counts or chunk is msgspec.UNSET
        grid.kinds[number, slot] = row.kinds if suits else 0
        grid.scarcest[number, slot] = names.index(columns_of(site.kinds)[row.scarcest])
    grid.largest[slot] = max(site.most_chunks(chunk) for site in sites)


def checked_free_cores(grid: GridNodes, running: Iterable[int], unavailable: Amounts) -> npt.NDArray[np.int64]:
    """Return the free cores of each site; raise AssertionError if free amounts and running jobs do not add up.

    Parameters
    ----------
    grid : GridNodes
    running : iterable of int
        Slots of the running jobs.
    unavailable : Amounts
        What the grid cannot use on each node.
    """
    free = grid.nodes.total.copy()
    for slot in running:
        add_held(grid.nodes, np.int64(slot), free, np.int64(-1))
    assert (free >= 0).all(), "a node is overbooked"
    free -= unavailable
    assert (free == grid.nodes.free).all(), "free and held resources do not add up"
    return np.add.reduceat(free[:, CORES], grid.first_node[:-1])


@kernel_part
def nodes_of(grid: GridNodes, site: Int) -> NodeArrays:
    """Return the nodes of a site, numbered from 0; the arrays are views."""
    nodes = grid.nodes
    first, end = grid.first_node[site], grid.first_node[site + 1]
    return NodeArrays(
        nodes.total[first:end],
        nodes.free[first:end],
        nodes.kind[first:end],
        grid.placement[site],
        nodes.request,
        nodes.chunks,
        nodes.most,
        nodes.exclusive,
        grid.kinds[site],
        grid.scarcest[site],
        nodes.entries,
        nodes.first,
        nodes.unused,
        nodes.chosen[first:end],
        nodes.n_chosen,
        nodes.later[first:end],
        nodes.bound,
        nodes.freed[first:end],
        nodes.n_freed,
    )


@kernel_part
def chunks_on_node(grid: GridNodes, free: Amounts, slot: Int, node: Int) -> Int:
    """Return how many chunks of a job fit on a node, given by its number in the grid."""
    first = grid.first_node[grid.site[node]]
    return units_on(nodes_of(grid, grid.site[node]), free[first:], slot, node - first) * grid.nodes.chunks[slot]


@kernel_part
def most_on_one_site(fitting: npt.NDArray[np.int64]) -> Int:
    """Return the largest number of chunks on one site."""
    most = np.int64(0)
    for site in range(len(fitting)):
        most = max(most, fitting[site])
    return most


@kernel
def count_fitting(grid: GridNodes, free: Amounts, slot: Int, fitting: npt.NDArray[np.int64]) -> Int:
    """Write how many chunks of a job fit on each site to ``fitting``; return their sum."""
    in_all = np.int64(0)
    for site in range(len(fitting)):
        nodes, there = nodes_of(grid, site), free[grid.first_node[site] : grid.first_node[site + 1]]
        units = np.int64(0)
        for node in range(len(there)):
            units += units_on(nodes, there, slot, node)
        fitting[site] = units * nodes.chunks[slot]
        in_all += fitting[site]
    return in_all


@kernel
def count_given_back(
    grid: GridNodes,
    ending: Int,
    shut: npt.NDArray[np.bool_],
    free: Amounts,
    slot: Int,
    fitting: npt.NDArray[np.int64],
) -> Int:
    """Add an ending job's resources on open sites to ``free``; return how many more chunks of another job then fit.

    Also update ``fitting``.
    """
    gained = np.int64(0)
    number = grid.nodes.first[ending]
    while number != NO_ENTRY:
        entry = grid.nodes.entries[number]
        if not shut[grid.site[entry.node]]:
            before = chunks_on_node(grid, free, slot, entry.node)
            move_units(grid, free, ending, entry.node, entry.units, 1)
            more = chunks_on_node(grid, free, slot, entry.node) - before
            fitting[grid.site[entry.node]] += more
            gained += more
        number = entry.next
    return gained


@kernel_part
def move_units(grid: GridNodes, free: Amounts, slot: Int, node: Int, units: Int, sign: Int) -> None:
    """Add the resources of a job's units on a node to ``free``; subtract them if ``sign`` is -1."""
    for column in range(free.shape[1]):
        free[node, column] += sign * amount(grid.nodes, slot, node, units, column)


@kernel
def chunks_beside(grid: GridNodes, slot: Int, site: Int, chunks: Int, spare: Int) -> Int:
    """Return how many of a job's ``chunks`` can run on a site from now on without taking the head's reserved chunks.

    Parameters
    ----------
    grid : GridNodes
        ``ahead`` has the amounts at the shadow time.
    slot : int
        Slot of the job, of which at least ``chunks`` fit on the site now.
    site, chunks : int
    spare : int
        Number of the head's chunks that fit on the site at the shadow time beyond those that are reserved.
    """
    nodes = nodes_of(grid, site)
    if not choose(nodes, nodes.free, slot, chunks):
        return np.int64(0)
    head, taken = grid.head[0], np.int64(0)
    for i in range(nodes.n_chosen[0]):
        node, most = grid.first_node[site] + nodes.chosen[i, 0], nodes.chosen[i, 1]
        before = chunks_on_node(grid, grid.ahead, head, node)
        units = most
        lost = np.int64(0)
        while units > 0:
            move_units(grid, grid.ahead, slot, node, units, -1)
            lost = before - chunks_on_node(grid, grid.ahead, head, node)
            move_units(grid, grid.ahead, slot, node, units, 1)
            if lost <= spare:
                break
            units -= 1
        taken += units
        if units < most:
            break
        spare -= lost
    return taken * nodes.chunks[slot]


@kernel
def hold_part(grid: GridNodes, slot: Int, site: Int, chunks: Int) -> Int:
    """Choose and store nodes of a site for a job's chunks, which must fit; return the number of cores they take.

    ``free`` is not changed.
    """
    nodes = nodes_of(grid, site)
    choose(nodes, nodes.free, slot, chunks)
    cores = np.int64(0)
    for i in range(nodes.n_chosen[0]):
        node, units = grid.first_node[site] + nodes.chosen[i, 0], nodes.chosen[i, 1]
        grid.nodes.chosen[i, 0], grid.nodes.chosen[i, 1] = node, units
        cores += amount(grid.nodes, slot, node, units, CORES)
    hold_chosen(grid.nodes, slot)
    return cores


@kernel
def compare_left(grid: GridNodes, free: Amounts, slot: Int, width: Int, fits_on: npt.NDArray[np.int64]) -> None:
    """Write to ``compared`` how much a job of ``width`` chunks would leave free on each site where it fits."""
    count_free(grid, free, slot)
    column = grid.nodes.scarcest[slot]
    for site in range(len(grid.compared)):
        taken = width // grid.nodes.chunks[slot]
        if column != WHOLE_NODES and not grid.nodes.exclusive[slot]:
            taken *= grid.nodes.request[slot, column]
        elif column != WHOLE_NODES and fits_on[site] >= width:
            nodes, taken = nodes_of(grid, site), np.int64(0)
            choose(nodes, free[grid.first_node[site] : grid.first_node[site + 1]], slot, width)
            for i in range(nodes.n_chosen[0]):
                taken += nodes.total[nodes.chosen[i, 0], column]
        grid.compared[site] -= taken


@kernel
def count_free(grid: GridNodes, free: Amounts, slot: Int) -> None:
    """Write the free and the total amount of a job's scarcest resource on suitable nodes to ``compared`` and ``total``.

    For a job that needs whole nodes, write the numbers of idle nodes and of all nodes.
    """
    column = grid.nodes.scarcest[slot]
    for site in range(len(grid.compared)):
        nodes, there = nodes_of(grid, site), free[grid.first_node[site] : grid.first_node[site + 1]]
        is_free, in_all = np.int64(0), np.int64(0)
        for node in range(len(there)):
            if (nodes.kinds[slot] >> nodes.kind[node]) & 1:
                if column == WHOLE_NODES:
                    is_free += units_on(nodes, there, slot, node)
                    in_all += 1
                else:
                    is_free += there[node, column]
                    in_all += nodes.total[node, column]
        grid.compared[site], grid.total[site] = is_free, in_all

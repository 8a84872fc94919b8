"""Nodes whose cores, memory and GPUs are counted: which units of a job fit where, and which nodes a job gets.

The rules are those of docs/resources.md, "Rules". A job consists of *units*: a chunk, the chunks of one node
(``Chunk.per_node``), or a whole node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.resources.chunks import MAX_AMOUNT, WHOLE_NODE, Chunk, NodeKind, capacity_of, columns_of, request_of

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

BEST_FIT, WORST_FIT, FIRST_FIT = 0, 1, 2
"""Codes of `gridweave.site.policy.PLACEMENTS`."""

CORES = np.int64(0)
"""The column of the cores; every chunk asks for at least one, so a node is idle if all of its cores are free."""

NO_ENTRY = np.int64(-1)
"""Ends a list of entries."""

MANY = np.int64(2**31 - 1)
"""The number of units on a node if there is no limit except the node's resources."""

ENTRY = np.dtype([("node", np.int64), ("units", np.int64), ("next", np.int64)], align=True)
"""A job's units on a node, and the next entry of the same job, or of the list of unused entries."""

Amounts = npt.NDArray[np.int64]
"""How much of each resource is free on each node, shape (nodes, resources)."""


class NodeArrays(NamedTuple):
    """The nodes of a site that counts resources, and each job's request and allocation.

    Attributes
    ----------
    total, free : numpy.ndarray of int64, shape (nodes, resources)
        Capacity and currently free amounts of each node; columns as in `columns_of`.
    kind : numpy.ndarray of int64, shape (nodes,)
        Kind of each node.
    placement : int
        BEST_FIT, WORST_FIT or FIRST_FIT.
    request : numpy.ndarray of int64, shape (slots, resources)
        What a unit of each job asks for; all 0 for a whole node.
    chunks : numpy.ndarray of int64, shape (slots,)
        Chunks per unit.
    most : numpy.ndarray of int64, shape (slots,)
        Maximum number of units on one node.
    exclusive : numpy.ndarray of bool, shape (slots,)
    kinds : numpy.ndarray of int64, shape (slots,)
        Bit mask of the kinds of nodes that suit each job.
    scarcest : numpy.ndarray of int64, shape (slots,)
        Column of each job's scarcest resource.
    entries : numpy.ndarray of ENTRY, shape (capacity,)
        The units of all jobs that hold nodes or have nodes in a plan.
    first : numpy.ndarray of int64, shape (slots,)
        First entry of each job, or `NO_ENTRY`.
    unused : numpy.ndarray of int64, shape (1,)
        First unused entry.
    chosen : numpy.ndarray of int64, shape (nodes, 2)
        Nodes and units of the last placement, in the order in which they were chosen.
    n_chosen : numpy.ndarray of int64, shape (1,)
    later : numpy.ndarray of int64, shape (nodes, resources)
        Scratch: free amounts at a later time.
    bound : numpy.ndarray of int64, shape (slots,)
        Upper bound on the number of units of each waiting job that fit now, without the nodes in ``freed``.
    freed : numpy.ndarray of int64, shape (nodes,)
        Nodes on which resources were given back since the last pass; a node may be listed several times.
    n_freed : numpy.ndarray of int64, shape (1,)
        Number of these nodes.
    """

    total: Amounts
    free: Amounts
    kind: npt.NDArray[np.int64]
    placement: int
    request: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]
    most: npt.NDArray[np.int64]
    exclusive: npt.NDArray[np.bool_]
    kinds: npt.NDArray[np.int64]
    scarcest: npt.NDArray[np.int64]
    entries: npt.NDArray[np.void]
    first: npt.NDArray[np.int64]
    unused: npt.NDArray[np.int64]
    chosen: npt.NDArray[np.int64]
    n_chosen: npt.NDArray[np.int64]
    later: Amounts
    bound: npt.NDArray[np.int64]
    freed: npt.NDArray[np.int64]
    n_freed: npt.NDArray[np.int64]


def empty_nodes(kinds: Sequence[NodeKind], placement: int, *, slots: int, entries: int) -> NodeArrays:
    """Return idle nodes, with capacity for ``slots`` jobs and ``entries`` entries."""
    columns = columns_of(kinds)
    of_kinds = np.array([capacity_of(kind, columns) for kind in kinds], np.int64).reshape(-1, len(columns))
    kind = np.repeat(np.arange(len(kinds)), [kind.count for kind in kinds]).astype(np.int64)
    table = np.zeros(entries, ENTRY)
    table["next"] = np.arange(1, entries + 1)
    table["next"][-1:] = NO_ENTRY
    return NodeArrays(
        total=of_kinds[kind],
        free=of_kinds[kind],
        kind=kind,
        placement=placement,
        request=np.zeros((slots, len(columns)), np.int64),
        chunks=np.ones(slots, np.int64),
        most=np.ones(slots, np.int64),
        exclusive=np.zeros(slots, np.bool_),
        kinds=np.zeros(slots, np.int64),
        scarcest=np.zeros(slots, np.int64),
        entries=table,
        first=np.full(slots, NO_ENTRY),
        unused=np.zeros(1, np.int64),
        chosen=np.zeros((len(kind), 2), np.int64),
        n_chosen=np.zeros(1, np.int64),
        later=np.zeros((len(kind), len(columns)), np.int64),
        bound=np.full(slots, MANY),
        freed=np.zeros(len(kind), np.int64),
        n_freed=np.zeros(1, np.int64),
    )


def grown_nodes(nodes: NodeArrays, *, slots: int, entries: int) -> NodeArrays:
    """Return the nodes with capacity for more jobs and entries; the arrays of the nodes themselves are shared."""
    table = np.zeros(entries, ENTRY)
    old = len(nodes.entries)
    table[:old] = nodes.entries
    table["next"][old:] = np.arange(old + 1, entries + 1)
    unused = nodes.unused.copy()
    if entries > old:
        table["next"][-1], unused[0] = nodes.unused[0], old
    per_slot: dict[str, Any] = {"first": np.full(slots, NO_ENTRY), "bound": np.full(slots, MANY)}
    for name in RequestRow._fields:
        values = getattr(nodes, name)
        per_slot[name] = np.zeros((slots, *values.shape[1:]), values.dtype)
    for name, values in per_slot.items():
        values[: len(nodes.first)] = getattr(nodes, name)
    return nodes._replace(entries=table, unused=unused, **per_slot)


class RequestRow(NamedTuple):
    """A job's request, as a row of `NodeArrays`."""

    request: tuple[int, ...]
    chunks: int
    most: int
    exclusive: bool
    kinds: int
    scarcest: int


def request_row(chunk: Chunk | msgspec.UnsetType, kinds: Sequence[NodeKind]) -> RequestRow:
    """Return a job's request at a site with these kinds of nodes; whole nodes if ``chunk`` is unset."""
    chunk = chunk or WHOLE_NODE
    columns = columns_of(kinds)
    per_unit = chunk.per_node or 1
    request = tuple(amount * per_unit for amount in request_of(chunk, columns))
    site = [sum(kind.count * capacity_of(kind, columns)[column] for kind in kinds) for column in range(len(columns))]
    shares = [amount / total if total else 0.0 for amount, total in zip(request, site, strict=True)]
    return RequestRow(
        # A larger amount fits on no node either; the limit keeps sums within int64.
        request=tuple(min(amount, 2 * MAX_AMOUNT) for amount in request),
        chunks=per_unit,
        most=1 if chunk.is_whole or chunk.per_node else int(MANY),
        exclusive=chunk.exclusive,
        kinds=sum(1 << number for number, kind in enumerate(kinds) if chunk.suits(kind)),
        scarcest=shares.index(max(shares)),
    )


def fill_request(nodes: NodeArrays, slot: int, row: RequestRow) -> None:
    """Fill in the row of a new job."""
    nodes.bound[slot] = MANY
    for name, value in zip(RequestRow._fields, row, strict=True):
        getattr(nodes, name)[slot] = value


@kernel_part
def units_on(nodes: NodeArrays, free: Amounts, slot: Int, node: Int) -> Int:
    """Return how many units of a job fit on a node with these free amounts (rules 1 and 2)."""
    return units_in_row(nodes, free, node, slot, node)


@kernel
def fits(nodes: NodeArrays, free: Amounts, slot: Int, width: Int) -> bool:
    """Whether a job of ``width`` chunks fits (rule 3)."""
    left = width // nodes.chunks[slot]
    for node in range(len(free)):
        left -= units_on(nodes, free, slot, node)
        if left <= 0:
            return True
    return False


@kernel
def choose(nodes: NodeArrays, free: Amounts, slot: Int, width: Int) -> bool:
    """Choose the nodes of a job by rule 4, in ``chosen``; return whether the job fits."""
    needed = width // nodes.chunks[slot]
    return choose_units(nodes, free, slot, needed) >= needed


@kernel
def choose_units(nodes: NodeArrays, free: Amounts, slot: Int, needed: Int) -> Int:
    """Choose nodes by rule 4 for ``needed`` units, or for all units that fit if they are fewer; return their number.

    ``chosen`` stays sorted during the search, and nodes that are no longer needed are removed from it.
    """
    column = nodes.scarcest[slot]
    sign = 1 if nodes.placement == BEST_FIT else -1
    if nodes.placement == FIRST_FIT or nodes.request[slot, CORES] == 0:
        sign = 0
    chosen, least = nodes.chosen, nodes.request[slot, column]
    n_chosen, total, last = 0, np.int64(0), np.int64(0)
    for node in range(len(free)):
        if free[node, column] < least:  # most nodes of a busy site
            continue
        rank = sign * free[node, column]
        if total >= needed and rank >= last:
            if sign == 0:
                break
            continue
        units = units_on(nodes, free, slot, node)
        if units > 0:
            i = n_chosen
            while i > 0 and sign * free[chosen[i - 1, 0], column] > rank:
                chosen[i, 0], chosen[i, 1] = chosen[i - 1, 0], chosen[i - 1, 1]
                i -= 1
            chosen[i, 0], chosen[i, 1] = node, units
            n_chosen += 1
            total += units
            while total - chosen[n_chosen - 1, 1] >= needed:
                n_chosen -= 1
                total -= chosen[n_chosen, 1]
            last = sign * free[chosen[n_chosen - 1, 0], column]
    if total > needed:
        chosen[n_chosen - 1, 1] -= total - needed
        total = needed
    nodes.n_chosen[0] = n_chosen
    return total


@kernel_part
def amount(nodes: NodeArrays, slot: Int, node: Int, units: Int, column: Int) -> Int:
    """Return how much of a resource a job's units take on a node."""
    return nodes.total[node, column] if nodes.exclusive[slot] else units * nodes.request[slot, column]


@kernel
def hold_chosen(nodes: NodeArrays, slot: Int) -> None:
    """Store the chosen nodes as the job's entries, in ascending order of the node numbers; ``free`` stays as it is."""
    for i in range(nodes.n_chosen[0]):
        number = nodes.unused[0]
        entry = nodes.entries[number]
        nodes.unused[0] = entry.next
        entry.node = nodes.chosen[i, 0]
        entry.units = nodes.chosen[i, 1]
        before, after = NO_ENTRY, nodes.first[slot]
        while after != NO_ENTRY and nodes.entries[after].node < entry.node:
            before, after = after, nodes.entries[after].next
        entry.next = after
        if before == NO_ENTRY:
            nodes.first[slot] = number
        else:
            nodes.entries[before].next = number


@kernel
def drop_entries(nodes: NodeArrays, slot: Int) -> None:
    """Remove a job's entries; ``free`` stays as it is."""
    while nodes.first[slot] != NO_ENTRY:
        number = nodes.first[slot]
        nodes.first[slot] = nodes.entries[number].next
        nodes.entries[number].next = nodes.unused[0]
        nodes.unused[0] = number


@kernel
def add_held(nodes: NodeArrays, slot: Int, free: Amounts, sign: Int) -> None:
    """Add the resources of a job's entries to ``free``; subtract them if ``sign`` is -1."""
    number = nodes.first[slot]
    while number != NO_ENTRY:
        entry = nodes.entries[number]
        for column in range(free.shape[1]):
            free[entry.node, column] += sign * amount(nodes, slot, entry.node, entry.units, column)
        number = entry.next


def held_nodes(nodes: Any, slot: int) -> list[tuple[int, int]]:
    """Return a job's nodes and the number of its chunks on each of them, ascending."""
    held, number = [], int(nodes.first[slot])
    while number != NO_ENTRY:
        entry = nodes.entries[number]
        held.append((int(entry["node"]), int(entry["units"] * nodes.chunks[slot])))
        number = int(entry["next"])
    return held


@kernel_part
def units_in_row(nodes: NodeArrays, free: Amounts, row: Int, slot: Int, node: Int) -> Int:
    """Return how many units of a job fit on a node if the amounts in this row of ``free`` are free there."""
    if (nodes.kinds[slot] >> nodes.kind[node]) & 1 == 0:
        return 0
    if nodes.exclusive[slot] and free[row, CORES] < nodes.total[node, CORES]:
        return 0
    units = nodes.most[slot]
    for column in range(free.shape[1]):
        needed = nodes.request[slot, column]
        if needed > 0:
            there = free[row, column]
            if there < needed:
                return 0
            if units > 1:
                units = min(units, there // needed)
    return units

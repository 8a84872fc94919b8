"""Add up the cores, memory, GPUs and other resources of a site that running jobs hold."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from gridweave.site.resources.chunks import Chunk, NodeKind, capacity_of, columns_of, request_of


def resource_use(
    kinds: Sequence[NodeKind], held: Iterable[tuple[Chunk, int, Iterable[tuple[int, int]]]]
) -> Iterator[tuple[str, int, int]]:
    """Yield each resource that nodes of these kinds have: its name, how much they have, and how much jobs hold.

    Memory is left out unless all kinds have a size, because nodes without one do not count memory.

    Parameters
    ----------
    held : iterable of (Chunk, int, iterable of (int, int))
        For each running job: what it asks for, its number of chunks, and its nodes as half-open intervals of numbers.
        An exclusive job holds everything on its nodes.

    Examples
    --------
    >>> kinds = [NodeKind(name="gpu", count=2, cores=8, gpus=4)]
    >>> list(resource_use(kinds, [(Chunk(cores=2, gpus=1), 3, [(0, 2)])]))
    [('cores', 16, 6), ('gpus', 8, 3)]
    >>> list(resource_use(kinds, [(Chunk(cores=2, exclusive=True), 1, [(1, 2)])]))
    [('cores', 16, 8), ('gpus', 8, 4)]
    """
    columns = columns_of(kinds)
    capacities = [capacity_of(kind, columns) for kind in kinds]
    totals = _sums(capacities, [kind.count for kind in kinds], len(columns))
    used = [0] * len(columns)
    for chunk, width, nodes in held:
        rows, counts = capacities, _by_kind(kinds, nodes)
        if not chunk.exclusive:
            rows, counts = [request_of(chunk, columns)], [width]
        used = [before + amount for before, amount in zip(used, _sums(rows, counts, len(columns)), strict=True)]
    counts_memory = all(kind.memory_mb is not None for kind in kinds)
    for name, total, amount in zip(columns, totals, used, strict=True):
        if total and (counts_memory or name != "memory_mb"):
            yield name, total, amount


def _sums(rows: Sequence[tuple[int, ...]], counts: Sequence[int], columns: int) -> list[int]:
    """Return the sum of each column over the rows, with each row multiplied by its count."""
    return [sum(row[c] * count for row, count in zip(rows, counts, strict=True)) for c in range(columns)]


def _by_kind(kinds: Sequence[NodeKind], nodes: Iterable[tuple[int, int]]) -> list[int]:
    """Return how many of the nodes with these numbers are of each kind."""
    ends = list(accumulate(kind.count for kind in kinds))
    counts = [0] * len(kinds)
    for first, end in nodes:
        for number in range(first, end):
            counts[bisect_right(ends, number)] += 1
    return counts

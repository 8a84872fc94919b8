"""Nodes that are partly used by other jobs: how many chunks fit, and when more will fit.

A site whose nodes belong to a batch system cannot choose nodes, so it counts nodes in groups instead of one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gridweave.site.resources.chunks import Chunk, NodeKind, capacity_of, chunks_within, columns_of, request_of


class NodeGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Nodes of the same kind that have the same amounts of each resource left.

    Attributes
    ----------
    kind : int
        Index of the kind.
    count : int
        Number of nodes, at least 1.
    free : tuple of int
        Amounts free on each node now; columns as in `columns_of`.
    idle_from_ms : int
        Latest time by which the nodes will be idle.
    """

    kind: int
    count: int
    free: tuple[int, ...]
    idle_from_ms: int


def chunks_at(chunk: Chunk, kinds: Sequence[NodeKind], groups: Iterable[NodeGroup], at_ms: int) -> int:
    """Return how many chunks of one job fit at an instant, if no other job starts."""
    columns = columns_of(kinds)
    return sum(group.count * fitting for group, fitting in _fitting(chunk, kinds, columns, groups, at_ms))


def earliest_fit(
    chunk: Chunk, width: int, kinds: Sequence[NodeKind], groups: Sequence[NodeGroup], now_ms: int
) -> int | None:
    """Return the time by which ``width`` chunks fit if no other job starts; None if they never fit on these nodes.

    A node that is partly in use is assumed to free nothing more until all of its jobs have ended.
    """
    instants = sorted({now_ms, *(group.idle_from_ms for group in groups if group.idle_from_ms > now_ms)})
    return next((instant for instant in instants if chunks_at(chunk, kinds, groups, instant) >= width), None)


def without_chunks(
    chunk: Chunk, width: int, kinds: Sequence[NodeKind], groups: Sequence[NodeGroup], at_ms: int, until_ms: int
) -> tuple[NodeGroup, ...]:
    """Return the groups that remain if a job takes its chunks at an instant, group by group.

    The nodes that the job takes count as in use until ``until_ms``. Chunks that do not fit are ignored.
    """
    columns, needs, left = columns_of(kinds), request_of(chunk, columns_of(kinds)), width
    taken: list[NodeGroup] = []
    for group, fitting in _fitting(chunk, kinds, columns, groups, at_ms):
        free = _free_at(group, kinds, columns, at_ms)
        rest = group.count
        while fitting and left > 0 and rest:
            here = min(fitting, left)
            # Nodes that are filled alike stay in one group.
            alike = min(rest, left // here)
            amounts = tuple(there - here * need for there, need in zip(free, needs, strict=True))
            if chunk.is_whole or chunk.exclusive:
                amounts = (0,) * len(columns)
            idle_from_ms = max(until_ms, group.idle_from_ms)
            taken.append(NodeGroup(group.kind, alike, amounts, idle_from_ms))
            left, rest = left - alike * here, rest - alike
        if rest:
            taken.append(msgspec.structs.replace(group, count=rest))
    return tuple(taken)


def _fitting(
    chunk: Chunk, kinds: Sequence[NodeKind], columns: Sequence[str], groups: Iterable[NodeGroup], at_ms: int
) -> Iterator[tuple[NodeGroup, int]]:
    """Yield each group, and how many chunks of one job fit on each of its nodes at an instant."""
    for group in groups:
        yield group, chunks_within(chunk, kinds[group.kind], columns, _free_at(group, kinds, columns, at_ms))


def _free_at(group: NodeGroup, kinds: Sequence[NodeKind], columns: Sequence[str], at_ms: int) -> tuple[int, ...]:
    return capacity_of(kinds[group.kind], columns) if at_ms >= group.idle_from_ms else group.free


def merged(groups: Iterable[NodeGroup], limit: int) -> tuple[NodeGroup, ...]:
    """Return groups without duplicates, in the order of the kinds and of the instants at which the nodes are idle.

    If there are more than ``limit`` groups, merge the last groups of each kind, with their smallest amounts and their
    latest instant, so that no node counts as free before it is.
    """
    counts: dict[tuple[int, int, tuple[int, ...]], int] = {}
    for group in groups:
        key = group.kind, group.idle_from_ms, group.free
        counts[key] = counts.get(key, 0) + group.count
    unique = [NodeGroup(kind, count, free, ms) for (kind, ms, free), count in sorted(counts.items())]
    excess = len(unique) - limit
    if excess <= 0:
        return tuple(unique)
    kept: list[NodeGroup] = []
    for group in reversed(unique):
        last = kept[-1] if kept else group
        if excess > 0 and kept and last.kind == group.kind:
            least = tuple(map(min, last.free, group.free))
            kept[-1] = NodeGroup(group.kind, last.count + group.count, least, last.idle_from_ms)
            excess -= 1
        else:
            kept.append(group)
    return tuple(reversed(kept))

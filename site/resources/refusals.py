"""The reasons why a job could never run on a site's nodes (docs/resources.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gridweave.site.resources.chunks import (
    WHOLE_NODE,
    Chunk,
    NodeKind,
    capacity_of,
    chunks_on,
    columns_of,
    request_of,
)
from gridweave.site.resources.text import memory_text


def why_whole_only(chunk: Chunk | msgspec.UnsetType) -> str | None:
    """Return why a site that gives out whole nodes cannot run a job with this chunk, or None if it can."""
    if not chunk or (chunk.is_whole and not chunk.labels and not chunk.gpu_type):
        return None
    return "it asks for parts of nodes or for labels, and this site gives out whole nodes that are all alike"


def why_never_on(kinds: Sequence[NodeKind], width: int, chunk: Chunk | msgspec.UnsetType) -> str | None:
    """Return why a job could not run on these nodes even if they were idle, in one line; None if it could."""
    chunk = chunk or WHOLE_NODE
    misfit = why_no_node(kinds, chunk)
    if misfit is not None:
        return misfit
    most = most_chunks(kinds, chunk)
    if width <= most:
        return None
    if chunk.is_whole:
        which = " with the labels that it asks for" if chunk.labels or chunk.gpu_type else ""
        return f"it needs {width} nodes{which} and the site has {most}"
    return f"it needs {width} chunks and {most} fit on the idle site"


def why_no_node(kinds: Sequence[NodeKind], chunk: Chunk) -> str | None:
    """Return why not even one chunk (with ``per_node``, those of one node) fits on an idle node; None if it fits."""
    return "; ".join([*_why_no_kind(kinds, chunk)] or [*_why_too_large(kinds, chunk)]) or None


def most_chunks(kinds: Sequence[NodeKind], chunk: Chunk) -> int:
    """Return how many chunks these nodes can hold together if they are idle."""
    return sum(kind.count * chunks_on(chunk, kind) for kind in kinds)


def _why_no_kind(kinds: Sequence[NodeKind], chunk: Chunk) -> Iterator[str]:
    """Yield why no kind has the labels and the type of GPU that a job asks for."""
    labels = {label for kind in kinds for label in (kind.name, *kind.labels) if label}
    types = {kind.gpu_type for kind in kinds if kind.gpus and kind.gpu_type}
    columns = columns_of(kinds)
    for label in chunk.labels:
        if label not in labels:
            yield f"no node has the label {label!r}; one of {', '.join(sorted(labels)) or 'no label'}"
    if chunk.gpu_type and chunk.gpu_type not in types:
        yield f"no node has GPUs of type {chunk.gpu_type!r}; one of {', '.join(sorted(types)) or 'no type'}"
    for name, amount in chunk.others:
        if amount and name not in columns:
            yield f"no node has {name!r}"
    all_exist = {*chunk.labels} <= labels and chunk.gpu_type in ("", *types)
    if all_exist and not any(chunk.suits(kind) for kind in kinds):
        asked = [*chunk.labels, *([f"GPUs of type {chunk.gpu_type}"] if chunk.gpu_type else [])]
        yield f"no node has all of {', '.join(asked)}"


def _why_too_large(kinds: Sequence[NodeKind], chunk: Chunk) -> Iterator[str]:
    """Yield, by resource, why a chunk (with ``per_node``, all chunks of a node) needs more than any node has."""
    if any(chunks_on(chunk, kind) for kind in kinds):
        return
    columns = columns_of(kinds)
    capacities = [capacity_of(kind, columns) for kind in kinds if chunk.suits(kind)]
    per_unit = chunk.per_node or 1
    what = f"{per_unit} chunks on one node need" if per_unit > 1 else "a chunk needs"
    needed = [amount * per_unit for amount in request_of(chunk, columns)]
    too_large = [column for column in range(len(columns)) if needed[column] > max(c[column] for c in capacities)]
    for column in too_large:
        largest = max(capacity[column] for capacity in capacities)
        has = memory_text(largest) if columns[column] == "memory_mb" else f"{largest:,}"
        yield f"{what} {amount_text(columns[column], needed[column])} and the largest node that suits has {has}"
    if not too_large:
        asked = (amount_text(name, amount) for name, amount in zip(columns, needed, strict=True) if amount)
        yield f"{what} {' and '.join(asked)}, and no node has all of them"


def amount_text(column: str, amount: int) -> str:
    """Return an amount of a resource in words.

    Examples
    --------
    >>> amount_text("gpus", 1), amount_text("memory_mb", 1500), amount_text("fpga", 2)
    ('1 GPU', '1.5 GB of memory', '2 fpga')
    """
    if column == "memory_mb":
        return f"{memory_text(amount)} of memory"
    names = {"cores": ("core", "cores"), "gpus": ("GPU", "GPUs")}
    return f"{amount:,} {names.get(column, (column, column))[amount != 1]}"

"""How many of a site's nodes a job counts as, for limits on the nodes of the grid's jobs (docs/contract.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gridweave.site.resources.chunks import Chunk, NodeKind, capacity_of, chunks_on, columns_of, request_of

NODE = 1_000_000
"""The share of one node. Shares are whole numbers, so that the shares of many small jobs add up exactly."""


def share_of(width: int, chunk: Chunk | msgspec.UnsetType, kinds: Sequence[NodeKind]) -> int:
    """Return the share of a site that a job counts as, in millionths of a node.

    A job on parts of nodes counts as its largest share of any resource of the whole site. Whole nodes count as
    themselves, and the nodes of an exclusive job as the fewest that can hold its chunks.

    Examples
    --------
    >>> gpu = NodeKind(name="gpu", count=4, cores=64, gpus=4)
    >>> [share_of(2, chunk, [gpu]) / NODE for chunk in (msgspec.UNSET, Chunk(cores=8), Chunk(gpus=2))]
    [2.0, 0.25, 1.0]
    """
    if not chunk or chunk.is_whole:
        return width * NODE
    if chunk.exclusive:
        most = max((chunks_on(chunk, kind) for kind in kinds), default=0)
        return nodes_for(width, most) * NODE
    columns = columns_of(kinds)
    nodes = sum(kind.count for kind in kinds)
    totals = [0] * len(columns)
    for kind in kinds:
        totals = [total + kind.count * amount for total, amount in zip(totals, capacity_of(kind, columns), strict=True)]
    needs = zip(request_of(chunk, columns), totals, strict=True)
    return max((-(-width * amount * nodes * NODE // total) for amount, total in needs if total), default=width * NODE)


def nodes_for(width: int, most: int) -> int:
    """Return the fewest nodes that can hold ``width`` chunks, at most ``most`` (at least 1) on each."""
    return -(-width // max(1, most))


def chunks_in_share(left: int, most: int, per_unit: int, share: Callable[[int], int]) -> int:
    """Return how many chunks of a job, at most ``most``, have a share of at most ``left`` together.

    Parameters
    ----------
    per_unit : int
        The result is a multiple of this number.
    share : callable
        Returns the share of a number of chunks, which must not decrease as the number grows.
    """
    low, high = 0, most // per_unit
    while low < high:
        middle = (low + high + 1) // 2
        if share(middle * per_unit) <= left:
            low = middle
        else:
            high = middle - 1
    return low * per_unit

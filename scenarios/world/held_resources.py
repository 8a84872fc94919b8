"""Check, without the kernels, the resources that jobs hold at a site that counts cores, memory and GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.site.job import NodeIntervals
from gridweave.site.resources.chunks import WHOLE_NODE, Chunk, NodeKind, capacity_of, columns_of, request_of

Held = dict[int, npt.NDArray[np.int64]]
"""How much of each resource a job holds on each of its nodes."""


class HeldResources:
    """The free resources of a site's nodes, as jobs come and go."""

    def __init__(self, kinds: Sequence[NodeKind]) -> None:
        self._columns = columns_of(kinds)
        self._kinds = [kind for kind in kinds for _ in range(kind.count)]
        self._total = np.array([capacity_of(kind, self._columns) for kind in self._kinds], np.int64)
        self._free = self._total.copy()
        self._held: dict[int, Held] = {}

    def take(self, job_id: int, nodes: NodeIntervals, chunk: Chunk | msgspec.UnsetType) -> str | None:
        """Allocate a job's chunks; ``nodes`` lists a node once for each chunk on it. Return the problem, or None."""
        chunk = chunk or WHOLE_NODE
        request = np.array(request_of(chunk, self._columns), np.int64)
        held: Held = {}
        for node, count in sorted(Counter(node for start, stop in nodes for node in range(start, stop)).items()):
            if not chunk.suits(self._kinds[node]):
                return f"node {node} has not the labels or the GPUs that it asks for"
            if count != chunk.per_node and (chunk.per_node or (chunk.is_whole and count > 1)):
                return f"node {node} has {count} of its chunks"
            if chunk.exclusive and (self._free[node] < self._total[node]).any():
                return f"node {node} is not idle"
            held[node] = self._total[node].copy() if chunk.exclusive else request * count
            if (request * count > self._free[node]).any():
                column = int(np.argmax(request * count > self._free[node]))
                return f"node {node} has not enough {self._columns[column]} free"
        for node, amounts in held.items():
            self._free[node] -= amounts
        self._held[job_id] = held
        return None

    def give_back(self, job_id: int) -> None:
        """Free a job's resources."""
        for node, amounts in self._held.pop(job_id).items():
            self._free[node] += amounts

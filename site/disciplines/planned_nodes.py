"""The nodes of a site that counts cores, memory and GPUs and keeps a plan (docs/resources.md, rule 6)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec
import numpy as np
from typing_extensions import override

from gridweave.site.allocation import intervals_of_sorted
from gridweave.site.disciplines.compiled import Ints, Jobs
from gridweave.site.disciplines.queue_nodes import CountedNodes, chunk_of_rows
from gridweave.site.disciplines.slots import copied, copy_into
from gridweave.site.job import Job, NodeIntervals
from gridweave.site.kernels.chunks import NodeArrays, grown_nodes
from gridweave.site.kernels.node_plan import NO_STEP, NodePlan, empty_node_plan
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import Chunk
from gridweave.site.state import Arrays, arrays_state, restored_arrays

_KEPT = ("is_used", "reserved", "has_begun")
"""The arrays of a plan that cannot be computed from the jobs and the reservations."""


def most_nodes(chunk: Chunk | msgspec.UnsetType, width: int, nodes: int) -> int:
    """Return the largest number of nodes that a job can hold at a site with this number of nodes."""
    per_node = chunk.per_node if isinstance(chunk, Chunk) else 0
    return min(width // (per_node or 1), nodes)


def most_nodes_of_rows(jobs: Jobs, rows: Ints, nodes: int) -> int:
    """Return the largest number of nodes that the jobs in these rows of a workload can hold, added up."""
    per_node = np.array([*(chunk.per_node or 1 for chunk in jobs.chunks), 1])
    return int(np.minimum(jobs.width[rows] // per_node[chunk_of_rows(jobs)[rows]], nodes).sum())


class PlannedNodes(CountedNodes):
    """The nodes of a site with a plan, where waiting jobs and reservations can also have nodes.

    Attributes
    ----------
    plan : NodePlan
        Contains ``arrays``.
    """

    plan: NodePlan

    def __init__(self, policy: SitePolicy, nodes: int, slots: int, reservations: int) -> None:
        super().__init__(policy, nodes, slots)
        self.plan = empty_node_plan(self.arrays, kinds=len(policy.kinds), reservations=reservations)
        self._entries = 0

    @override
    def copy(self) -> Self:
        new = super().copy()
        new._use(new.arrays, copied(self.plan._replace(nodes=new.arrays)))
        return new

    def _use(self, arrays: NodeArrays, plan: NodePlan) -> None:
        self.arrays, self.plan = arrays, plan._replace(nodes=arrays)

    @override
    def grow(self, slots: int) -> None:
        self._resize(slots, len(self.arrays.entries), 2 * len(self.plan.has_begun))

    def _resize(self, slots: int, entries: int, reservations: int) -> None:
        arrays = grown_nodes(self.arrays, slots=slots, entries=entries)
        plan = empty_node_plan(arrays, kinds=len(self._policy.kinds), reservations=reservations)
        copy_into(plan[2:], self.plan[2:])
        self._use(arrays, plan)

    def add(self, nodes: int) -> bool:
        """Make space for a job or reservation that can hold this many nodes; return whether the arrays were replaced.

        Pass a negative number when a job or reservation leaves.
        """
        self._entries += nodes
        if self._entries <= len(self.arrays.entries):
            return False
        self._resize(len(self.arrays.first), 2 * self._entries, len(self.plan.has_begun))
        return True

    def most_nodes(self, job: Job) -> int:
        """Return the largest number of nodes that a job can hold."""
        return most_nodes(job.chunk, job.width, len(self.arrays.kind))

    # Reservations: `place` is the index in `Plan.reservations`.

    def reorder(self, order: Ints) -> None:
        """Sort the reservations: the new list consists of these indexes of the old list."""
        kept = self.plan.reserved[order], self.plan.has_begun[order]
        self.plan.reserved[:], self.plan.has_begun[:] = False, False
        self.plan.reserved[: len(order)], self.plan.has_begun[: len(order)] = kept

    def begin_reservation(self, place: int, width: int) -> NodeIntervals | None:
        """Allocate a reservation's planned nodes or, if that fails, the lowest-numbered idle and unreserved nodes.

        Return None if too few nodes are idle.
        """
        planned = self.plan.reserved[place]
        if planned.sum() < width or not self._idle[planned].all():
            others = np.delete(self.plan.reserved, place, axis=0).any(axis=0)
            numbers = np.flatnonzero(self._idle & ~others)[:width]
            if len(numbers) < width:
                return None
            planned[:] = False
            planned[numbers] = True
        self.plan.has_begun[place] = True
        self.arrays.free[planned] -= self.arrays.total[planned]
        return intervals_of_sorted(np.flatnonzero(planned).tolist())

    def end_reservation(self, place: int) -> None:
        """Give back the nodes of a reservation that has begun."""
        if self.plan.has_begun[place]:
            held = self.plan.reserved[place]
            self.arrays.free[held] += self.arrays.total[held]

    @override
    def state(self) -> Arrays:
        return super().state() | {f"plan.{name}": arrays_state(self.plan)[name] for name in _KEPT}

    @override
    def restore(self, state: Arrays) -> None:
        """Restore the arrays, except the steps of the plan, which the caller must compute."""
        kept = {name.removeprefix("plan."): array for name, array in state.items() if name.startswith("plan.")}
        super().restore({name: array for name, array in state.items() if not name.startswith("plan.")})
        reservations = kept["has_begun"].shape[0] if kept else len(self.plan.has_begun)
        plan = empty_node_plan(self.arrays, kinds=len(self._policy.kinds), reservations=reservations)
        self._use(self.arrays, restored_arrays(plan, kept))

    @override
    def check_invariants(self, running: Iterable[int]) -> None:
        begun = self.plan.reserved[self.plan.has_begun]
        free = self.arrays.free.copy()
        free += (begun[:, :, None] * self.arrays.total).sum(axis=0)
        self._check_free(free, running)

    def check_plan(self) -> None:
        """Raise AssertionError if more is planned on a node than it has, or a node's steps are out of order."""
        steps, amounts = self.plan.steps, self.plan.amounts
        for node, first in enumerate(self.plan.first.tolist() if self.plan.is_used[0] else ()):
            number, last_ms = first, None
            while number != NO_STEP:
                start_ms = int(steps[number]["start_ms"])
                assert last_ms is None or last_ms < start_ms, "the steps of a node are out of order"
                assert (amounts[number] >= 0).all(), "more is planned on a node than it has"
                assert (amounts[number] <= self.arrays.total[node]).all(), "more is free on a node than it has"
                number, last_ms = int(steps[number]["next"]), start_ms

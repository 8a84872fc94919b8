"""The nodes of a queue that counts cores, memory and GPUs, and the resources that jobs hold (docs/resources.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.site.allocation import intervals_of_sorted
from gridweave.site.disciplines.compiled import Ints, Jobs
from gridweave.site.disciplines.slots import copied
from gridweave.site.job import NodeIntervals
from gridweave.site.kernels.chunks import (
    CORES,
    MANY,
    Amounts,
    NodeArrays,
    RequestRow,
    add_held,
    empty_nodes,
    fill_request,
    grown_nodes,
    held_nodes,
    request_row,
)
from gridweave.site.policy import PLACEMENTS, SitePolicy
from gridweave.site.resources.chunks import MAX_KINDS, Chunk, NodeKind, columns_of
from gridweave.site.state import Arrays, arrays_state, restored_arrays

ABSENT = MAX_KINDS
"""The kind of a node that is out of service, which suits no job."""


def most_running(policy: SitePolicy) -> int | None:
    """Return the largest number of jobs that can run at the same time; None: one for each node."""
    return sum(kind.count * kind.cores for kind in policy.kinds) or None


def nodes_of_site(policy: SitePolicy, nodes: int, slots: int, entries: int | None = None) -> NodeArrays:
    """Return a site's idle nodes, with capacity for ``slots`` jobs and for running jobs on all nodes.

    Set ``entries`` if waiting jobs have planned nodes, which need additional entries.
    """
    count = sum(kind.count for kind in policy.kinds)
    if count != nodes:
        raise OptionError("nodes", f"is {nodes}, but the kinds of nodes add up to {count}")
    placement = PLACEMENTS.index(policy.placement)
    return empty_nodes(policy.kinds, placement, slots=slots, entries=entries or _most_entries(policy, slots))


def _most_entries(policy: SitePolicy, slots: int) -> int:
    """Return the largest number of entries of running jobs: each entry takes at least one core of its node."""
    return min(most_running(policy) or 0, slots * sum(kind.count for kind in policy.kinds))


class CountedNodes:
    """The nodes of a site that counts resources, its jobs' requests, and the running jobs' allocations."""

    def __init__(self, policy: SitePolicy, nodes: int, slots: int) -> None:
        self._policy = policy
        self.arrays = nodes_of_site(policy, nodes, slots)
        self._kind = self.arrays.kind.copy()
        self._rows: dict[Chunk | msgspec.UnsetType, RequestRow] = {}

    def copy(self) -> Self:
        """Return an independent copy."""
        new = type(self).__new__(type(self))
        new.__dict__ |= self.__dict__
        new.arrays = copied(self.arrays)
        return new

    def grow(self, slots: int) -> None:
        """Make space for more jobs."""
        self.arrays = grown_nodes(self.arrays, slots=slots, entries=_most_entries(self._policy, slots))

    def fill(self, slot: int, chunk: Chunk | msgspec.UnsetType) -> None:
        """Store the request of the job in a slot."""
        if chunk not in self._rows:
            self._rows[chunk] = request_row(chunk, self._policy.kinds)
        fill_request(self.arrays, slot, self._rows[chunk])

    def held(self, slot: int) -> NodeIntervals:
        """Return the nodes of a running job, each once for each of the job's chunks on it."""
        return intervals_of_sorted(node for node, chunks in held_nodes(self.arrays, slot) for _ in range(chunks))

    def held_amounts(self, slots: Iterable[int]) -> Amounts:
        """Return how much of each resource on each node the jobs in these slots hold; all of a node out of service."""
        held = np.zeros_like(self.arrays.total)
        for slot in slots:
            add_held(self.arrays, np.int64(slot), held, np.int64(1))
        absent = self.arrays.kind == ABSENT
        held[absent] = self.arrays.total[absent]
        return held

    @property
    def for_queries(self) -> NodeArrays:
        """The arrays with separate scratch space, so that queries do not overwrite values that the next pass reuses."""
        scratch = {name: getattr(self.arrays, name).copy() for name in ("later", "chosen", "n_chosen")}
        return self.arrays._replace(**scratch)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the resources."""
        return columns_of(self._policy.kinds)

    @property
    def n_idle(self) -> int:
        """The number of nodes without any running job."""
        return int(self._idle.sum())

    @property
    def _idle(self) -> npt.NDArray[np.bool_]:
        """Whether each node has no running job."""
        return np.asarray(self.arrays.free[:, CORES] == self.arrays.total[:, CORES])

    def serve(self, nodes: int) -> None:
        """Let jobs start only on these nodes, given as a bit mask."""
        present = np.array([nodes >> node & 1 for node in range(len(self._kind))], np.bool_)
        self.arrays.kind[:] = np.where(present, self._kind, ABSENT)
        self.arrays.bound[:] = MANY

    def idle_from(self, ends: Iterable[tuple[int, int]]) -> Iterable[int]:
        """Return when each node that has running jobs becomes idle [ms].

        Parameters
        ----------
        ends : iterable of (int, int)
            Slot and estimated end in ms of each running job, in the order of the ends.
        """
        return {node: end_ms for slot, end_ms in ends for node, _ in held_nodes(self.arrays, slot)}.values()

    def state(self) -> Arrays:
        """Return the arrays as plain data."""
        return arrays_state(self.arrays)

    def restore(self, state: Arrays) -> None:
        """Restore the arrays of a site with the same kinds of nodes."""
        self.arrays = restored_arrays(self.arrays, state)

    def check_invariants(self, running: Iterable[int]) -> None:
        """Raise AssertionError if free amounts and the allocations of the jobs in these slots do not add up."""
        self._check_free(self.arrays.free, running)

    def _check_free(self, free: Amounts, running: Iterable[int]) -> None:
        unused = self.arrays.total.copy()
        for slot in running:
            add_held(self.arrays, np.int64(slot), unused, np.int64(-1))
        assert (free == unused).all(), "free and held resources do not add up"
        assert (unused >= 0).all(), "a node is overbooked"


def fill_requests(arrays: NodeArrays, kinds: tuple[NodeKind, ...], jobs: Jobs, rows: Ints) -> None:
    """Store the requests of the jobs in these rows of a workload, one slot per job."""
    chunks = chunk_of_rows(jobs)[rows]
    for number in np.unique(chunks).tolist():
        row = request_row(jobs.chunks[number] if number >= 0 else msgspec.UNSET, kinds)
        for name, value in zip(RequestRow._fields, row, strict=True):
            getattr(arrays, name)[chunks == number] = value


def chunk_of_rows(jobs: Jobs) -> Ints:
    """Return the index of each job's chunk; -1 for whole nodes."""
    return np.asarray(jobs.columns.get("chunk", np.full(len(jobs), -1)), np.int64)

"""The nodes of pilots for a discipline that only counts nodes: which of them each job has, and which take jobs."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Mapping
from typing import Self

from gridweave.site.allocation import NodePool, bits_of, intervals_of
from gridweave.site.disciplines.queue import ArrayDiscipline
from gridweave.site.job import Job, NodeIntervals


class CountedPlaces:
    """Gives the jobs of a discipline that only counts nodes their own, the lowest first; one that `ServesNodes`.

    A node that leaves while a job has it leaves when that has ended. Until then the discipline counts it, and evicts
    nobody from it: who came after would have to leave at once.

    Parameters
    ----------
    nodes : int
        Nodes of the site; none is in service yet.
    discipline : ArrayDiscipline
    """

    threads_per_node = 1
    """A job has its nodes whole."""

    def __init__(self, nodes: int, discipline: ArrayDiscipline) -> None:
        self._discipline = discipline
        self._pool = NodePool(nodes)
        self._pool.take(nodes)
        discipline.resize(-nodes)
        # As the bits of numbers (allocation.py): the nodes that take jobs, and those of each job.
        self._open = 0
        self._nodes_of: dict[int, int] = {}

    def aside(self, discipline: ArrayDiscipline) -> Self:
        """Return what can be asked anything, and leaves no trace of that here."""
        twin = copy.copy(self)
        twin._discipline = discipline
        return twin

    @property
    def free(self) -> int:
        """Nodes in service that no job has."""
        return self._pool.free

    @property
    def in_use(self) -> int:
        """The nodes that jobs have, as the bits of a number."""
        return functools.reduce(operator.or_, self._nodes_of.values(), 0)

    def place_of(self, job_id: int) -> tuple[NodeIntervals, NodeIntervals]:
        """Return the nodes of a running job."""
        return intervals_of(self._nodes_of[job_id]), ()

    def slowdown_offered(self, now_ms: int, job: Job) -> float | None:
        """Return None: no node is shared."""
        return None

    def serve(self, now_ms: int, nodes: int) -> None:
        """Have these nodes in service, and no others; of those that leave the ones in use when they are free."""
        in_use = self.in_use
        coming, leaving = nodes & ~self._open, self._open & ~nodes
        self._pool.give_back(coming)
        self._pool.occupy(leaving & ~in_use)
        self._open = nodes
        self._discipline.resize(coming.bit_count() - (leaving & ~in_use).bit_count())
        for job_id, bits in self._nodes_of.items():
            if bits & leaving:
                self._discipline.spare(job_id)

    def ended(self, now_ms: int, job_id: int) -> None:
        """Take out a running job."""
        self._discipline.ended(now_ms, job_id)
        self._leave(job_id)

    def _leave(self, job_id: int) -> None:
        """Give back the nodes of a job; those that only waited for that leave."""
        bits = self._nodes_of.pop(job_id)
        self._pool.give_back(bits & self._open)
        if gone := bits & ~self._open:
            self._discipline.resize(-gone.bit_count())

    def run_pass(self, now_ms: int) -> list[Job]:
        """Start what may start now, on nodes of its own; return these jobs, in the order in which they were started."""
        started = self._discipline.run_pass(now_ms)
        # What ran and does not, or starts once more, was evicted.
        again = {job.job_id for job in started}
        runs = {running.job.job_id for running in self._discipline.running()} - again
        for job_id in self._nodes_of.keys() - runs:
            self._leave(job_id)
        for job in started:
            self._nodes_of[job.job_id] = self._pool.take(job.width)[1]
        return started

    def nodes_of(self) -> dict[int, NodeIntervals]:
        """Return the nodes of each job."""
        return {job_id: intervals_of(bits) for job_id, bits in self._nodes_of.items()}

    def restore(self, nodes: int, nodes_of: Mapping[int, NodeIntervals]) -> None:
        """Take in which nodes take jobs, and which each job has; the discipline has taken in its own state."""
        self._nodes_of = {job_id: bits_of(nodes) for job_id, nodes in nodes_of.items()}
        self._open = nodes
        self._pool.give_back(nodes & ~self.in_use)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        self._pool.check_invariants()
        assert self._pool.free == (self._open & ~self.in_use).bit_count(), "free nodes and those in service differ"
        runs = {running.job.job_id for running in self._discipline.running()}
        assert runs == self._nodes_of.keys(), "a job runs that has no nodes"

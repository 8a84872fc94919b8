"""Assign jobs to *slots*, the rows of an owner's arrays. The owner enlarges its arrays when all slots are in use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self, TypeVar

import msgspec
import numpy as np

from gridweave.site.job import Job

A = TypeVar("A", bound=NamedTuple)

FIRST_SLOTS = 64
"""Initial number of slots."""


class SlotsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The jobs by slot, and the free slots; the last free slot in the list is used first."""

    jobs: dict[int, Job]
    free: list[int]


class JobSlots:
    """An owner's jobs and their slots: `of` maps job ids to slots, `jobs` maps slots to jobs.

    A new job gets the most recently freed slot, or else the lowest slot never used so far. So the slots depend only on
    the sequence of calls.

    Examples
    --------
    >>> slots = JobSlots()
    >>> slots.enter(Job(job_id=7, width=1, estimate_ms=10)), slots.enter(Job(job_id=8, width=1, estimate_ms=10))
    (0, 1)
    >>> slots.leave(7).width, slots.of
    (1, {8: 1})
    """

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.jobs: dict[int, Job] = {}
        self._free = list(range(FIRST_SLOTS - 1, -1, -1))

    @property
    def is_full(self) -> bool:
        """Whether all slots are in use, so that `double` must be called before the next `enter`."""
        return not self._free

    @property
    def next_free(self) -> int:
        """The slot that the next job will get; at least one slot must be free."""
        return self._free[-1]

    def job(self, job_id: int) -> Job:
        """Return the job with this id, which must have a slot."""
        return self.jobs[self.of[job_id]]

    def enter(self, job: Job) -> int:
        """Assign a slot to a job; return the slot."""
        slot = self._free.pop()
        self.of[job.job_id] = slot
        self.jobs[slot] = job
        return slot

    def leave(self, job_id: int) -> Job:
        """Remove a job, free its slot, and return the job."""
        slot = self.of.pop(job_id)
        self._free.append(slot)
        return self.jobs.pop(slot)

    def double(self) -> int:
        """Double the number of slots; return the new number."""
        count = self.count
        self._free[:0] = range(2 * count - 1, count - 1, -1)
        return 2 * count

    def state(self) -> SlotsState:
        """Return the assignment of jobs to slots."""
        return SlotsState(self.jobs, self._free)

    def restore(self, state: SlotsState) -> None:
        """Replace the assignment of jobs to slots."""
        self.jobs, self._free = state.jobs, state.free
        self.of = {job.job_id: slot for slot, job in self.jobs.items()}

    @property
    def count(self) -> int:
        """Total number of slots, used or free."""
        return len(self.of) + len(self._free)

    def copy(self) -> Self:
        """Return an independent copy."""
        new = type(self)()
        new.of, new.jobs, new._free = self.of.copy(), self.jobs.copy(), self._free.copy()
        return new


def copied(arrays: A) -> A:
    """Return a deep copy of a named tuple of arrays, which may contain other such tuples."""
    fresh: dict[str, object] = {}
    for name, value in zip(arrays._fields, arrays, strict=True):
        if isinstance(value, np.ndarray):
            fresh[name] = value.copy()
        elif hasattr(value, "_fields"):
            fresh[name] = copied(value)
    return arrays._replace(**fresh)


def copy_into(new: Iterable[object], old: Iterable[object]) -> None:
    """Copy each old array to the beginning of the corresponding new array, which must be at least as large.

    Arrays in nested tuples are copied, too; other values are skipped.
    """
    for target, source in zip(new, old, strict=True):
        if isinstance(source, np.ndarray) and isinstance(target, np.ndarray):
            target[tuple(slice(length) for length in source.shape)] = source
        elif isinstance(source, tuple) and isinstance(target, tuple):
            copy_into(target, source)

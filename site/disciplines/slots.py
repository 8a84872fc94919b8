"""Which row of an owner's arrays each job has: its *slot*. The owner makes them longer when all slots are taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.site.job import Job

A = TypeVar("A", bound=NamedTuple)

FIRST_SLOTS = 64
"""Slots of an owner that has had no job yet."""


class SlotsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs by their slots, and the free slots, of which the last is taken first."""

    jobs: dict[int, Job]
    free: list[int]


class JobSlots:
    """The jobs that somebody has, and the slot of each: `of` has slots by job id, `jobs` the jobs by slot.

    Of the free slots the one that was left last is taken first, and those never taken in ascending order; so slots
    depend on nothing but the sequence of calls.

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
        """Whether all slots are taken, so that `double` goes before the next `enter`."""
        return not self._free

    @property
    def next_free(self) -> int:
        """The slot that the next job will have; the slots must not be full."""
        return self._free[-1]

    def job(self, job_id: int) -> Job:
        """Return a job that is here."""
        return self.jobs[self.of[job_id]]

    def enter(self, job: Job) -> int:
        """Give a job a slot; return that."""
        slot = self._free.pop()
        self.of[job.job_id] = slot
        self.jobs[slot] = job
        return slot

    def leave(self, job_id: int) -> Job:
        """Take a job out; its slot is free again."""
        slot = self.of.pop(job_id)
        self._free.append(slot)
        return self.jobs.pop(slot)

    def double(self) -> int:
        """Have twice as many slots; return how many that are."""
        count = self.count
        self._free[:0] = range(2 * count - 1, count - 1, -1)
        return 2 * count

    def state(self) -> SlotsState:
        """Return which job has which slot."""
        return SlotsState(self.jobs, self._free)

    def restore(self, state: SlotsState) -> None:
        """Take in which job has which slot."""
        self.jobs, self._free = state.jobs, state.free
        self.of = {job.job_id: slot for slot, job in self.jobs.items()}

    @property
    def count(self) -> int:
        """How many slots there are."""
        return len(self.of) + len(self._free)

    def copy(self) -> Self:
        """Return slots of the same state; neither sees what is done to the other."""
        twin = type(self)()
        twin.of, twin.jobs, twin._free = self.of.copy(), self.jobs.copy(), self._free.copy()
        return twin


def copied(arrays: A) -> A:
    """Return arrays that hold the same, also those of a tuple within; neither sees what is done to the other."""
    fresh: dict[str, object] = {}
    for name, value in zip(arrays._fields, arrays, strict=True):
        if isinstance(value, np.ndarray):
            fresh[name] = value.copy()
        elif hasattr(value, "_fields"):
            fresh[name] = copied(value)
    return arrays._replace(**fresh)


def copy_into(new: Iterable[npt.NDArray[Any]], old: Iterable[npt.NDArray[Any]]) -> None:
    """Copy arrays into others that are as long or longer, each to the beginning."""
    for target, source in zip(new, old, strict=True):
        target[tuple(slice(length) for length in source.shape)] = source

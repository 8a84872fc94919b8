"""Base classes of disciplines that store their jobs in arrays, one slot per job, and make decisions in kernels."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

from typing_extensions import override

from gridweave.jit import Ints
from gridweave.site.disciplines.base import Discipline, ExpectedRun, Rate, Start, run_from
from gridweave.site.disciplines.slots import FIRST_SLOTS, JobSlots, copied, copy_into
from gridweave.site.job import Job
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.state import restored_arrays

A = TypeVar("A", bound=NamedTuple)


class ArrayDiscipline(Discipline, Generic[A]):
    """A discipline that stores its jobs in arrays, one slot per job.

    Its `CoreState` has the fields ``slots`` and ``arrays``.
    """

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self._slots = JobSlots()
        self._state = self._empty(FIRST_SLOTS)

    @abstractmethod
    def _empty(self, slots: int) -> A:
        """Return the arrays of an idle site, with this number of job slots."""

    @override
    def copy(self) -> Self:
        new = copy.copy(self)
        new._state, new._slots = copied(self._state), self._slots.copy()
        return new

    def _entered(self, job: Job) -> int:
        """Assign a slot to a job and return the slot; grow the arrays if all slots are taken."""
        if self._slots.is_full:
            self._grow()
        return self._slots.enter(job)

    def _next_slot(self) -> int:
        """Return the slot that the next job will get; grow the arrays if all slots are taken."""
        if self._slots.is_full:
            self._grow()
        return self._slots.next_free

    def _grow(self) -> None:
        """Double the number of slots."""
        old = self._state
        self._state = self._empty(self._slots.double())
        copy_into(self._state, old)

    @override
    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        if self.why_never(job) is not None:
            return None
        return run_from(self.earliest_start_ms(now_ms, job.width, job.estimate_ms), now_ms, job)

    @override
    @abstractmethod
    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job submitted now, behind all waiting jobs, would start; None if it would never start."""

    @override
    def restore(self, state: Any) -> None:
        self._slots.restore(state.slots)
        self._state = restored_arrays(self._empty_for(state), state.arrays)

    def _empty_for(self, state: Any) -> A:
        """Return an idle site's arrays, large enough for a saved state; the slots must already have been restored."""
        return self._empty(self._slots.count)


class PacedDiscipline(ArrayDiscipline[A]):
    """An array discipline whose jobs may run at rates other than 1; its state also has the field ``rates``."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        # The last reported rate of each running job.
        self._rate: dict[int, int] = {}

    @override
    def copy(self) -> Self:
        new = super().copy()
        new._rate = self._rate.copy()
        return new

    @override
    def restore(self, state: Any) -> None:
        super().restore(state)
        self._rate = state.rates

    def _started(self, starts: Iterable[Start]) -> Sequence[Start]:
        """Record that jobs have started, at full speed."""
        starts = tuple(starts)
        self._rate.update((start.job.job_id, RATE_ONE) for start in starts)
        return starts

    def _new_rates(self, slots: Iterable[int], rates: Ints) -> list[Rate]:
        """Return the new rates of the running jobs whose rate differs from the last reported one, and record them.

        Parameters
        ----------
        slots : iterable of int
            The slots to check; some may be free.
        rates : numpy.ndarray of int64, shape (slots,)
        """
        changes = []
        for slot in slots:
            job, rate = self._slots.jobs.get(slot), int(rates[slot])
            if job is not None and self._rate.get(job.job_id, rate) != rate:
                self._rate[job.job_id] = rate
                changes.append(Rate(job.job_id, rate))
        return sorted(changes)

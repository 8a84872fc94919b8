"""The grid queue's arrays: gives every job a slot in them, makes them larger when they are full, decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from gridweave.grid.coallocation import Fragments
from gridweave.grid.kernels.adjust import change_free, move_end
from gridweave.grid.kernels.grid_queue import grid_job_ended, grid_pass
from gridweave.grid.kernels.running import running_slots
from gridweave.grid.kernels.state import FRAGMENT, empty_grid
from gridweave.grid.policy import GridPolicy
from gridweave.site.kernels.order import order_key
from gridweave.site.kernels.state import NO_LIMITS, UNPLACED_MS, dequeue, enqueue
from gridweave.site.messages import Job

_FIRST_SLOTS = 64


class Placement(msgspec.Struct, frozen=True):
    """Where a pass has placed a job, and how long it takes there at most."""

    job: Job
    fragments: Fragments
    length_ms: int


class GridQueue:
    """The waiting and the running jobs of the grid in arrays, and the kernels that decide on them.

    Parameters
    ----------
    nodes : sequence of int
        Nodes of each site.
    policy : GridPolicy
    """

    def __init__(self, nodes: Sequence[int], policy: GridPolicy) -> None:
        self._policy = policy
        self._codes = policy.codes()
        self._nodes = np.array(nodes, np.int64)
        self._state = empty_grid(self._nodes, slots=_FIRST_SLOTS)
        self._others = [0] * len(self._nodes)
        self._why_never: dict[int, str | None] = {}
        self._jobs: dict[int, Job] = {}
        self._slot: dict[int, int] = {}
        self._unused = list(range(_FIRST_SLOTS - 1, -1, -1))

    @property
    def waiting(self) -> Iterator[Job]:
        """The waiting jobs, in the order of the queue."""
        for slot in self._state.waiting[: self._state.counters[0]["n_waiting"]]:
            yield self._jobs[int(self._state.jobs[slot]["job_id"])]

    @property
    def n_waiting(self) -> int:
        """How many jobs wait."""
        return int(self._state.counters[0]["n_waiting"])

    def free(self, site: int) -> int:
        """Return how many nodes of a site are free, as far as is known."""
        return int(self._state.free[site])

    def why_never(self, job: Job) -> str | None:
        """Return why a job could not be placed on the idle grid, or None."""
        if job.width not in self._why_never:
            self._why_never[job.width] = self._policy.why_never(self._nodes, job.width)
        return self._why_never[job.width]

    def submit(self, now_ms: int, job: Job, *, draw: float, sensitivity: float) -> None:
        """Take in a job."""
        if not self._unused:
            self._grow()
        slot = self._unused.pop()
        self._jobs[job.job_id] = job
        self._slot[job.job_id] = slot
        key = order_key(
            self._policy.order,
            submit_ms=now_ms,
            width=job.width,
            estimate_ms=job.estimate_ms,
            weight=job.weight,
            priority=job.priority,
        )
        self._state.jobs[slot] = (key, now_ms, job.job_id, job.width, job.estimate_ms, UNPLACED_MS, NO_LIMITS)
        self._state.draw[slot] = draw
        self._state.sensitivity[slot] = sensitivity
        enqueue(self._state, np.int64(slot))

    def withdraw(self, job_id: int) -> bool:
        """Take out a waiting job; return whether it waited."""
        places = np.flatnonzero(self._state.waiting[: self.n_waiting] == self._slot.get(job_id, -1))
        if not len(places):
            return False
        dequeue(self._state, np.int64(places[0]))
        self._forget(job_id)
        return True

    def run_pass(self, now_ms: int) -> list[Placement]:
        """Place what can start now; return where, in the order in which the jobs were placed."""
        if not self._state.counters["n_waiting"][0]:
            return []
        if self._state.counters[0]["n_fragments"] + self._state.counters[0]["nodes"] > len(self._state.fragments):
            self._compact()
        state = self._state
        grid_pass(state, self._codes, np.int64(now_ms))
        placed = []
        for slot in state.started[: state.counters[0]["n_started"]].tolist():
            first = int(state.first_fragment[slot])
            taken = state.fragments[first : first + int(state.n_fragments[slot])]
            job = self._jobs[int(state.jobs["job_id"][slot])]
            placed.append(Placement(job, tuple(taken.tolist()), int(state.end_ms[slot]) - now_ms))
        return placed

    def ended(self, job_id: int) -> None:
        """Take out a running job for good."""
        self._leave(job_id)
        self._forget(job_id)

    def requeue(self, job_id: int) -> None:
        """Put a running job back into the queue, at the place that it had by its submission."""
        self._leave(job_id)
        enqueue(self._state, np.int64(self._slot[job_id]))

    def expect_end(self, job_id: int, end_ms: int) -> None:
        """Expect a running job to end at this instant."""
        slot = self._slot[job_id]
        if int(self._state.end_ms[slot]) != end_ms:
            move_end(self._state, np.int64(slot), np.int64(end_ms))

    def set_others(self, site: int, nodes: int) -> None:
        """Take note that so many nodes of a site are not the grid's to have."""
        if nodes != self._others[site]:
            change_free(self._state, np.int64(site), np.int64(self._others[site] - nodes))
            self._others[site] = nodes

    def others(self, site: int) -> int:
        """Return how many nodes of a site are not the grid's to have."""
        return self._others[site]

    def _leave(self, job_id: int) -> None:
        left = grid_job_ended(self._state, np.int64(self._slot[job_id]))
        assert left, f"job {job_id} is not among the running jobs"

    def _forget(self, job_id: int) -> None:
        self._unused.append(self._slot.pop(job_id))
        del self._jobs[job_id]

    def _compact(self) -> None:
        """Keep the fragments of running jobs alone, in an array with room for twice as many."""
        state = self._state
        slots = running_slots(state)
        counts = state.n_fragments[slots]
        n_kept = int(counts.sum())
        larger = np.zeros(max(len(state.fragments), 2 * (n_kept + int(state.counters[0]["nodes"]))), FRAGMENT)
        kept = 0
        for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
            first = int(state.first_fragment[slot])
            larger[kept : kept + count] = state.fragments[first : first + count]
            state.first_fragment[slot] = kept
            kept += count
        state.counters[0]["n_fragments"] = kept
        self._state = state._replace(fragments=larger)

    def _grow(self) -> None:
        """Move into arrays of twice the size."""
        old = self._state
        slots = 2 * len(old.jobs)
        # The fragments have room of their own: `_compact` sees to that.
        self._state = empty_grid(self._nodes, slots=slots)._replace(fragments=old.fragments)
        for target, source in zip(self._state, old, strict=True):
            target[tuple(slice(length) for length in source.shape)] = source
        self._unused.extend(range(slots - 1, len(old.jobs) - 1, -1))

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        counters = self._state.counters[0]
        slots = running_slots(self._state).tolist()
        held = np.zeros(len(self._nodes), np.int64)
        for slot in slots:
            first = int(self._state.first_fragment[slot])
            taken = self._state.fragments[first : first + int(self._state.n_fragments[slot])]
            assert taken["width"].sum() == self._state.jobs["width"][slot], "fragments do not make up the job"
            np.add.at(held, taken["site"], taken["width"])
        free = self._nodes - held - np.array(self._others)
        assert (free == self._state.free).all(), "free nodes and running jobs do not add up"
        assert free.sum() == counters["free"], "the sum of free nodes is wrong"
        waiting = self._state.waiting[: counters["n_waiting"]].tolist()
        assert sorted([*waiting, *slots]) == sorted(self._slot.values()), "a slot is lost or doubled"
        ranks = [tuple(self._state.jobs[slot][["key", "submit_ms", "job_id"]]) for slot in waiting]
        assert ranks == sorted(ranks), "the queue is out of order"

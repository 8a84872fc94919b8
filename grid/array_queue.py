"""The grid queue's arrays: gives every job a slot in them, makes them larger when they are full, decides nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from gridweave.grid.coallocation import Fragments
from gridweave.grid.kernels.adjust import change_free, job_arrived, move_end, pass_and_placement, placement_of
from gridweave.grid.kernels.grid_plan import (
    grid_plan_pass,
    planned_end_moved,
    planned_job_ended,
    planned_job_withdrawn,
)
from gridweave.grid.kernels.grid_queue import grid_job_ended
from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.kernels.reservations import GridPlan, empty_grid_plan, enlarged, has_room
from gridweave.grid.kernels.running import running_slots
from gridweave.grid.kernels.state import FRAGMENT, empty_grid
from gridweave.grid.policy import GridPolicy
from gridweave.jit import prepared
from gridweave.site.kernels.order import ORDERS
from gridweave.site.kernels.state import NEVER_MS, REPLAN, UNPLACED_MS, dequeue, enqueue
from gridweave.site.messages import Job

_FIRST_SLOTS = 64


class Placement(msgspec.Struct, frozen=True, gc=False):
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
        self._codes = self._codes_of(policy)
        self._nodes = np.array(nodes, np.int64)
        self._total = int(self._nodes.sum())
        self._state = empty_grid(self._nodes, slots=_FIRST_SLOTS)
        self._others = [0] * len(self._nodes)
        self._why_never: dict[int, str | None] = {}
        self._jobs: dict[int, Job] = {}
        self._slot: dict[int, int] = {}
        self._unused = list(range(_FIRST_SLOTS - 1, -1, -1))
        self._plan: GridPlan | None = None
        if policy.backfill == "conservative":
            self._plan = empty_grid_plan(self._state, self._codes, room=_FIRST_SLOTS)
        self._order = ORDERS[policy.order]
        self._name_numbers()
        state, number = self._state, 0
        self._arrive = prepared(job_arrived, state, number, 0.0, *(number,) * 4, 0.0, 0.0)
        self._decide = prepared(pass_and_placement, state, self._codes, number)
        self._placed = prepared(placement_of, state, number)
        self._depart = prepared(grid_job_ended, state, number)

    def _name_numbers(self) -> None:
        """Keep at hand what is asked for at every step: finding a field of a record takes longer than reading it."""
        counters = self._state.counters
        self._n_waiting, self._n_started, self._n_fragments = (
            counters[name] for name in ("n_waiting", "n_started", "n_fragments")
        )

    def _codes_of(self, policy: GridPolicy) -> GridCodes:
        """Return the policy as kernels read it."""
        return policy.codes()

    @property
    def waiting(self) -> Iterator[Job]:
        """The waiting jobs, in the order of the queue."""
        for slot in self._state.waiting[: self.n_waiting].tolist():
            yield self._jobs[slot]

    @property
    def n_waiting(self) -> int:
        """How many jobs wait."""
        return int(self._n_waiting[0])

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
        self._jobs[slot] = job
        self._slot[job.job_id] = slot
        key = float(self._order(now_ms, job.width, job.estimate_ms, job.weight, job.priority, math.inf))
        self._arrive(self._state, slot, key, now_ms, job.job_id, job.width, job.estimate_ms, sensitivity, draw)

    def withdraw(self, job_id: int) -> bool:
        """Take out a waiting job; return whether it waited."""
        places = np.flatnonzero(self._state.waiting[: self.n_waiting] == self._slot.get(job_id, -1))
        if not len(places):
            return False
        if self._plan is None:
            dequeue(self._state, np.int64(places[0]))
        else:
            planned_job_withdrawn(self._state, self._plan, np.int64(places[0]))
        self._forget(job_id)
        return True

    def next_start_ms(self) -> int | None:
        """Return the next reserved start; None if starts are not reserved, or none is to come."""
        if self._plan is None:
            return None
        next_ms = int(self._plan.counters["next_start_ms"][0])
        return None if next_ms == NEVER_MS else next_ms

    def run_pass(self, now_ms: int) -> list[Placement]:
        """Place what can start now; return where, in the order in which the jobs were placed."""
        if not self._n_waiting[0]:
            return []
        if self._n_fragments.item(0) + self._total > len(self._state.fragments):
            self._compact()
        state = self._state
        if self._plan is None:
            n_started, first = self._decide(state, self._codes, now_ms)
        else:
            while not has_room(state, self._plan, 0):
                self._plan = enlarged(self._plan)
            grid_plan_pass(state, self._codes, self._plan, np.int64(now_ms))
            n_started, first = self._n_started.item(0), self._placed(state, 0)
        placed = []
        for number in range(n_started):
            slot, end_ms, count, site, width = self._placed(state, number) if number else first
            fragments: Fragments = ((site, width),)
            if count > 1:
                first = int(state.first_fragment[slot])
                fragments = tuple(state.fragments[first : first + count].tolist())
            placed.append(Placement(self._jobs[slot], fragments, end_ms - now_ms))
        return placed

    def ended(self, now_ms: int, job_id: int) -> None:
        """Take out a running job for good."""
        self._leave(now_ms, job_id)
        self._forget(job_id)

    def requeue(self, now_ms: int, job_id: int) -> None:
        """Put a running job back into the queue, at the place that it had by its submission."""
        self._leave(now_ms, job_id)
        enqueue(self._state, np.int64(self._slot[job_id]))
        self._replan()

    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        """Expect a running job to end at this instant."""
        slot = np.int64(self._slot[job_id])
        if int(self._state.end_ms[slot]) == end_ms:
            return
        if self._plan is None:
            move_end(self._state, slot, np.int64(end_ms))
        else:
            planned_end_moved(self._state, self._plan, slot, np.int64(end_ms), np.int64(now_ms))

    def set_others(self, site: int, nodes: int) -> None:
        """Take note that so many nodes of a site are not the grid's to have."""
        if nodes != self._others[site]:
            change_free(self._state, np.int64(site), np.int64(self._others[site] - nodes))
            self._others[site] = nodes
            self._replan()

    def others(self, site: int) -> int:
        """Return how many nodes of a site are not the grid's to have."""
        return self._others[site]

    def _replan(self) -> None:
        """Have the next pass reserve every place anew."""
        if self._plan is not None:
            self._plan.counters["stale"] = REPLAN

    def _leave(self, now_ms: int, job_id: int) -> None:
        slot = self._slot[job_id]
        if self._plan is None:
            left = self._depart(self._state, slot)
        else:
            left = planned_job_ended(self._state, self._plan, np.int64(slot), np.int64(now_ms))
        assert left, f"job {job_id} is not among the running jobs"

    def _forget(self, job_id: int) -> None:
        slot = self._slot.pop(job_id)
        self._unused.append(slot)
        del self._jobs[slot]

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
        if self._plan is not None:
            rows = np.zeros(slots, np.int64)
            rows[: len(self._plan.row)] = self._plan.row
            self._plan = self._plan._replace(row=rows)
        self._name_numbers()
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
        if self._plan is not None:
            self._check_plan(self._plan, waiting)
        ranks = [tuple(self._state.jobs[slot][["key", "submit_ms", "job_id"]]) for slot in waiting]
        assert ranks == sorted(ranks), "the queue is out of order"

    def _check_plan(self, plan: GridPlan, waiting: list[int]) -> None:
        """Raise AssertionError if the reservations contradict themselves."""
        reserved = [slot for slot in waiting if self._state.jobs["promised_ms"][slot] != UNPLACED_MS]
        rows = plan.row[reserved].tolist()
        spare = plan.spare[: int(plan.counters["n_spare"][0])].tolist()
        assert sorted([*rows, *spare]) == list(range(len(plan.reserved))), "a row of the plan is lost or doubled"
        for site, n_steps in enumerate(plan.n_steps.tolist()):
            assert (np.diff(plan.step_ms[site, :n_steps]) > 0).all(), "a profile is out of order"
            if plan.counters["stale"][0] != REPLAN and site < len(self._nodes):
                least = min(0, int(self._state.free[site]))
                assert (plan.step_free[site, :n_steps] >= least).all(), "a site is overbooked"

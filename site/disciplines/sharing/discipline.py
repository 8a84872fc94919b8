"""The discipline of a site with shared nodes, run event by event (docs/sharing.md).

It owns the arrays and gives every job a slot in them; the kernels make the decisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from typing_extensions import override

from gridweave.ranges import ranges_of
from gridweave.site.disciplines.arrays import PacedDiscipline
from gridweave.site.disciplines.base import NOTHING, Decisions, Rate, SharedOffer, Start
from gridweave.site.disciplines.entry import must_end_by
from gridweave.site.disciplines.sharing.kernels.nodes import close_nodes
from gridweave.site.disciplines.sharing.kernels.sharing_pass import (
    idle_to_spare,
    order_now,
    reserve,
    sharing_pass,
    slowdown_offered,
    start_behind_queue,
)
from gridweave.site.disciplines.sharing.kernels.slowdown import job_ended
from gridweave.site.disciplines.sharing.kernels.state import (
    NO_CELL,
    UNKNOWN_ROW,
    SharedSite,
    empty_site,
    forget_changes,
    job_submitted,
    job_withdrawn,
)
from gridweave.site.disciplines.sharing.policy import SharedNodes, is_usable, kind_array, threads_of
from gridweave.site.disciplines.sharing.slowdown_tables import IntArray, SlowdownModel
from gridweave.site.disciplines.slots import SlotsState
from gridweave.site.explain import SiteReason, ahead_text, free_text, nodes_text
from gridweave.site.job import Job, NodeIntervals, Resources, Running
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import work_of
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.state import Arrays, CoreState, arrays_state
from gridweave.site.times import when_text


class SharedDisciplineState(CoreState, frozen=True, kw_only=True, tag="SharedDiscipline 1"):
    """A site's jobs and hardware threads in arrays, and the rate last reported for each running job."""

    slots: SlotsState
    arrays: Arrays
    rates: dict[int, int]
    passed_ms: int = 0  # time of the last pass, up to which the waiting jobs have aged


class SharedDiscipline(PacedDiscipline[SharedSite]):
    """Runs jobs on shared nodes, with kernels that make the decisions on arrays of jobs and hardware threads."""

    state_type = SharedDisciplineState

    def __init__(self, nodes: int, policy: SharedNodes, week: WeekClock = FROM_MONDAY) -> None:
        self._policy = policy.sharing
        self._kinds = policy.kinds_of(nodes)
        self._codes = self._policy.codes(self._kinds)
        self._model = SlowdownModel(policy.formula)
        self._arrays = self._model.arrays()
        self._n_factors = len(self._model.cpu_factors.labels)
        self._threads = math.prod(threads_of(self._kinds))
        self._passed_ms = 0
        super().__init__(nodes)

    @override
    def _empty(self, slots: int) -> SharedSite:
        return empty_site(kind_array(self._kinds), [kind.count for kind in self._kinds], slots=slots, plans=True)

    @property
    @override
    def free(self) -> int:
        return int(self._state.counters["idle"][0])

    @override
    def serve(self, now_ms: int, nodes: int) -> None:
        close_nodes(self._state, np.array([nodes >> node & 1 ^ 1 for node in range(len(self._state.used))]))

    @override
    def why_never(self, job: Job) -> str | None:
        needs = _resources(job, self._kinds)
        if not 0 <= needs.cpu_kind < self._n_factors:
            return f"its kind of CPU work is {needs.cpu_kind}; this site knows 0 to {self._n_factors - 1}"
        usable = sum(kind.count for kind in self._kinds if is_usable(kind, needs.cores, needs.memory))
        if job.width > usable:
            return f"it needs {job.width} nodes; it can use only {usable} of this site"
        if self._policy.backfill == "conservative" and usable < sum(kind.count for kind in self._kinds):
            return "not all nodes have the cores and the memory for it, as conservative backfilling requires"
        return None

    @override
    def submit(self, now_ms: int, job: Job) -> None:
        slot = self._entered(job)
        self._fill(slot, now_ms, job)
        job_submitted(self._state, np.int64(slot))

    def _fill(self, slot: int, now_ms: int, job: Job) -> None:
        """Fill in a job's row with everything known at submission."""
        needs = _resources(job, self._kinds)
        row = self._state.jobs[slot]
        row["submit_ms"], row["job_id"] = now_ms, job.job_id
        row["width"], row["estimate_ms"] = job.width, job.estimate_ms
        for name in ("cpu", "network", "disk", "memory", "cores"):
            row[name] = getattr(needs, name)
        for name, values in self._model.sorts_of(_columns(needs)).items():
            row[name] = values[0]
        row["job_class"] = self._policy.classes([job.estimate_ms])[0]
        if job.resources is None and job.assumed is None:
            row["row"] = UNKNOWN_ROW

    @override
    def ended(self, now_ms: int, job_id: int) -> None:
        job_ended(self._state, self._arrays, np.int64(self._slots.of[job_id]), np.int64(now_ms))
        del self._rate[job_id]
        self._slots.leave(job_id)

    @override
    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        row = self._state.jobs[self._slots.of[job_id]]
        row["left"], row["since_ms"], row["end_ms"] = work_of(end_ms - now_ms), now_ms, end_ms

    @override
    def withdraw(self, now_ms: int, job_id: int) -> None:
        job_withdrawn(self._state, np.int64(self._slots.of[job_id]))
        self._slots.leave(job_id)

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        self._passed_ms = now_ms
        if not self._state.counters["waiting_width"][0]:
            rates = self._changed_rates()
            return Decisions(rates=rates) if rates else NOTHING
        sharing_pass(self._state, self._arrays, self._codes, np.int64(now_ms))
        slots = self._state.started[: self._state.counters["n_started"][0]].tolist()
        starts = self._started(Start(self._slots.jobs[slot], *self._place(slot)) for slot in slots)
        return Decisions(starts, rates=self._changed_rates())

    def _changed_rates(self) -> list[Rate]:
        changed = self._state.changed[: self._state.counters["n_changed"][0]].tolist()
        forget_changes(self._state)
        return self._new_rates(changed, self._state.jobs["rate"])

    def _place(self, slot: int) -> tuple[NodeIntervals, NodeIntervals]:
        """Return a running job's nodes and hardware threads."""
        cells = []
        cell = int(self._state.jobs["first_cell"][slot])
        while cell != NO_CELL:
            cells.append(cell)
            cell = int(self._state.next_cell[cell])
        return ranges_of(cell // self._threads for cell in cells), ranges_of(cells)

    @override
    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return how many nodes a job of this length could get immediately without sharing them."""
        return int(idle_to_spare(self._state, self._codes, np.int64(now_ms), np.int64(length_ms)))

    @override
    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job that does not share its nodes would start; None if it would never start."""
        if width > sum(kind.count for kind in self._kinds):
            return None
        if width <= self.startable(now_ms, length_ms):
            return now_ms
        times = np.int64(now_ms), np.int64(width), np.int64(length_ms)
        start_ms = int(start_behind_queue(self._state, self._codes, *times))
        return None if start_ms == NEVER_MS else start_ms

    @override
    def sharing_offered(self, now_ms: int, job: Job) -> SharedOffer | None:
        if self.why_never(job) is not None:
            return None
        slot = self._next_slot()
        self._fill(slot, now_ms, job)
        asked = np.int64(slot), np.int64(now_ms)
        slowdown, host = slowdown_offered(self._state, self._arrays, self._codes, *asked)
        return SharedOffer(float(slowdown), (self._slots.jobs[int(host)].job_id,)) if slowdown > 0 else None

    @override
    def next_end_ms(self) -> int | None:
        slots = self._running_slots()
        return int(self._state.jobs["end_ms"][slots].min()) if len(slots) else None

    def _running_slots(self) -> IntArray:
        slots: IntArray = self._state.running[: self._state.counters["n_running"][0]]
        return slots

    @override
    def running(self) -> Iterator[Running]:
        table = self._state.jobs
        slots = sorted(self._running_slots().tolist(), key=lambda slot: (table["end_ms"][slot], table["job_id"][slot]))
        for slot in slots:
            yield Running(self._slots.jobs[slot], int(table["start_ms"][slot]), int(table["end_ms"][slot]))

    @override
    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield the waiting jobs in the order of the last pass; no start times are promised."""
        # Sort copies of the arrays, so that listing the jobs does not change the state.
        state = self._state._replace(queue=self._state.queue.copy(), counters=self._state.counters.copy())
        order_now(state, self._codes, np.int64(self._passed_ms))
        for slot in state.queue[: state.counters["n_queue"][0]].tolist():
            yield self._slots.jobs[slot], None

    @override
    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        state = self._state
        order_now(state, self._codes, np.int64(now_ms))
        queue = state.queue[: state.counters["n_queue"][0]].tolist()
        place = queue.index(self._slots.of[job_id])
        job = self._slots.job(job_id)
        reserve(state, np.int64(queue[0]), np.int64(now_ms))
        limit_ms = int(state.counters["limit_ms"][0])
        start_ms = max(limit_ms, now_ms) if place == 0 and limit_ms != NEVER_MS else None
        head_due = (
            when_text(max(limit_ms, now_ms), now_ms) if limit_ms != NEVER_MS else "when more nodes are in service"
        )
        if place == 0:
            reason = f"it is first in the queue; it needs {nodes_text(job.width)} without jobs, expected {head_due}"
        else:
            reason = (
                f"it needs {nodes_text(job.width)}, and {free_text(self.free)}; {ahead_text(place)} would be offered "
                f"them before it, and job {self._slots.jobs[queue[0]].job_id} at the head, which is to start "
                f"{head_due}, must not be delayed"
            )
        return SiteReason(
            start_ms=start_ms,
            ahead=place,
            waits_for=must_end_by(self.running(), start_ms),
            reason=f"{reason}; and no running job matches it",
        )

    @override
    def state(self) -> SharedDisciplineState:
        return SharedDisciplineState(
            slots=self._slots.state(),
            arrays=arrays_state(self._state),
            rates=self._rate,
            passed_ms=self._passed_ms,
        )

    @override
    def restore(self, state: SharedDisciplineState) -> None:
        super().restore(state)
        self._passed_ms = state.passed_ms

    @override
    def check_invariants(self) -> None:
        state = self._state
        running = self._running_slots().tolist()
        waiting = [self._slots.of[job.job_id] for job, _ in self.waiting()]
        assert sorted([*running, *waiting]) == sorted(self._slots.of.values()), "a slot is lost or doubled"
        for kind, count in enumerate(state.n_waiting.tolist()):
            classes = state.jobs["job_class"][state.waiting[kind, :count]]
            assert (classes == kind).all(), "a job waits in a wrong class"
        held = dict.fromkeys(running, 0)
        for row in state.occupant.tolist():
            for slot in {slot for slot in row if slot >= 0}:
                assert slot in held, "a job that does not run holds a thread"
                held[slot] += 1
        for slot, nodes in held.items():
            assert nodes == state.jobs["width"][slot], "a job does not have its nodes"
        rows = zip(state.occupant.tolist(), state.closed.tolist(), strict=True)
        idle = sum(all(slot < 0 for slot in row) for row, is_closed in rows if not is_closed)
        assert self.free == idle, "idle nodes differ"
        assert set(self._rate) == {int(state.jobs["job_id"][slot]) for slot in running}, "a rate is lost"


def _resources(job: Job, kinds: tuple[NodeKind, ...]) -> Resources:
    """Return a job's resource needs. If they are unknown, assume a node's whole memory, so that the job runs alone."""
    return job.resources or job.assumed or Resources(memory=max(kind.memory for kind in kinds))


def _columns(needs: Resources) -> dict[str, np.ndarray[tuple[int], np.dtype[Any]]]:
    columns = {f"{name}_fraction": np.array([getattr(needs, name)]) for name in ("cpu", "network", "disk")}
    columns |= {"cpu_kind": np.array([needs.cpu_kind]), "cache_bytes": np.array([needs.cache_bytes])}
    if needs.message_bytes is not None:
        columns["message_bytes"] = np.array([needs.message_bytes])
    return columns

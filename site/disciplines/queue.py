"""The discipline queue, run event by event by kernels on arrays of jobs (docs/disciplines.md, "Queue").

A planning site uses the same code with different kernels (planning.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
from typing_extensions import override

from gridweave.jit import prepared
from gridweave.site.disciplines.arrays import ArrayDiscipline
from gridweave.site.disciplines.base import NOTHING, Decisions, Discipline, ExpectedRun, Start, Traits, run_from
from gridweave.site.disciplines.compiled import Compiled, CompiledSite, Jobs, fill_jobs, keys_of, rows_without
from gridweave.site.disciplines.entry import Entry, Options, must_end_by, refuse_unknown
from gridweave.site.disciplines.planned_nodes import PlannedNodes, most_nodes_of_rows
from gridweave.site.disciplines.queue_nodes import (
    CountedNodes,
    chunk_of_rows,
    fill_requests,
    most_running,
    nodes_of_site,
)
from gridweave.site.disciplines.queue_shortage import find_shortage
from gridweave.site.disciplines.slots import FIRST_SLOTS, SlotsState, copied, copy_into
from gridweave.site.explain import SiteReason, ahead_text, free_text, nodes_text
from gridweave.site.job import ASKED_ID, Job, NodeIntervals, Running
from gridweave.site.kernels.chunks import Amounts, NodeArrays
from gridweave.site.kernels.counted import head_limit_on_nodes, startable_on_nodes
from gridweave.site.kernels.dispatch import (
    SiteRules,
    free_throughout,
    job_arrived,
    job_ended,
    job_withdrawn,
    pass_and_outlook,
    start_behind_queue,
    startable_behind_queue,
)
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock, next_open
from gridweave.site.kernels.node_plan import NodePlan, choose_reserved, empty_node_plan, occupy_reserved
from gridweave.site.kernels.order import ORDERS, check_keys, order_keys
from gridweave.site.kernels.planning import earliest_start, occupy_plan, rebuild, update_plan
from gridweave.site.kernels.queueing import free_at, shadow_time
from gridweave.site.kernels.state import (
    HEAD,
    NEVER_MS,
    NO_LIMITS,
    REPLAN,
    TAKE,
    Plan,
    SiteState,
    empty_plan,
    empty_state,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import Chunk, NodeKind
from gridweave.site.state import Arrays, CoreState, arrays_state, restored_arrays
from gridweave.site.times import span_text, when_text

_NEVER = int(NEVER_MS)


class SiteQueueState(CoreState, frozen=True, kw_only=True, tag="ArrayDiscipline 1"):
    """A site's jobs in arrays; ``plan`` is empty without a plan, and ``nodes`` is unset without kinds of nodes."""

    slots: SlotsState
    arrays: Arrays
    plan: Arrays
    next_start_ms: int
    nodes: Arrays | msgspec.UnsetType = msgspec.UNSET


class SiteQueue(ArrayDiscipline[SiteState]):
    """Runs a queue or a planning site, with kernels that make the decisions on arrays of jobs."""

    state_type: Any = SiteQueueState

    def __init__(self, nodes: int, policy: SitePolicy, week: WeekClock = FROM_MONDAY) -> None:
        self._policy = policy
        super().__init__(nodes)
        self._in_service = nodes
        self._counted = _counted_nodes(policy, nodes)
        self._limits, self._has_limits = policy.limit_arrays(week=week), bool(policy.limits)
        self._plan = self._empty_plan()
        self._rules = self._made_rules()
        self._scratch: Plan | None = None
        self._end_ms: dict[int, int] = {}
        # The earliest end and the next planned start as of the last pass; `ended` keeps the earliest end up to date.
        self._first_end_ms = self._next_start_ms = _NEVER
        self._whys: dict[tuple[int, int, Chunk | msgspec.UnsetType], str | None] = {}
        self._order = ORDERS[policy.order]
        self._name_numbers()
        state, rules, number = self._state, self._rules, 0
        self._arrive = prepared(job_arrived, state, rules, number, 0.0, *(number,) * 5)
        self._depart = prepared(job_ended, state, rules, number, number, number)
        self._decide = prepared(pass_and_outlook, state, rules, number)

    @override
    def copy(self) -> Self:
        new = super().copy()
        new._end_ms, new._whys = self._end_ms.copy(), self._whys.copy()
        new._counted = None if self._counted is None else self._counted.copy()
        new._plan, new._scratch = None if self._plan is None else copied(self._plan), None
        new._rules = new._made_rules()
        new._name_numbers()
        return new

    @override
    def _empty(self, slots: int) -> SiteState:
        return empty_state(self.nodes, slots=slots, most_running=most_running(self._policy))

    def _name_numbers(self) -> None:
        """Store the columns that every step reads, because looking up a record's field takes longer than reading it."""
        self._running_end_ms, self._job_ids = self._state.running["end_ms"], self._state.jobs["job_id"]

    def _empty_plan(self) -> Plan | None:
        """Return an empty plan with space for as many jobs as the arrays hold; None if the policy makes no plan."""
        if not self._policy.makes_plan:
            return None
        return empty_plan(self._state, self._policy.profile_totals(self.nodes), reservations=FIRST_SLOTS)

    def _made_rules(self) -> SiteRules:
        """Return the rules for the kernels, with the current plan, limits and nodes."""
        return self._policy.rules(self._plan, self._limits, self._node_arrays, self._node_plan)

    @property
    def _node_arrays(self) -> NodeArrays | None:
        return None if self._counted is None else self._counted.arrays

    @property
    def _planned(self) -> PlannedNodes | None:
        """The nodes of a site that counts resources and keeps a plan."""
        return self._counted if isinstance(self._counted, PlannedNodes) else None

    @property
    def _node_plan(self) -> NodePlan | None:
        return None if self._planned is None else self._planned.plan

    @override
    def why_never(self, job: Job) -> str | None:
        about = job.width, self._mask(job) if self._has_limits else 0, job.chunk
        if about not in self._whys:
            self._whys[about] = self._policy.why_never(self.nodes, *about)
        return self._whys[about]

    @override
    def submit(self, now_ms: int, job: Job) -> None:
        slot = self._entered(job)
        if self._counted is not None:
            self._counted.fill(slot, job.chunk)
        if self._planned is not None and self._planned.add(self._planned.most_nodes(job)):
            self._rules = self._made_rules()
        job_id, width, estimate_ms = job.job_id, job.width, job.estimate_ms
        if job.behind:
            key = math.inf
        else:
            key = float(self._order(now_ms, width, estimate_ms, job.weight, job.priority, self._policy.aging_ms))
            if math.isnan(key):
                check_keys(self._policy.order, np.array([key]))
        arrive, mask = self._arrive, self._mask(job) if self._has_limits else 0
        arrive(self._state, self._rules, slot, key, now_ms, job_id, width, estimate_ms, mask)

    @override
    def ended(self, now_ms: int, job_id: int) -> None:
        end_ms = self._end_ms.pop(job_id)
        depart = self._depart
        departed = depart(self._state, self._rules, end_ms, job_id, now_ms)
        assert departed, f"job {job_id} is not among the running jobs"
        if end_ms == self._first_end_ms:
            self._first_end_ms = self._running_end_ms.item(0) if self._end_ms else _NEVER
        self._leave(job_id)

    @override
    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        running = self._state.running[: self._state.counters[0]["n_running"]]
        place = np.flatnonzero(running["slot"] == self._slots.of[job_id])
        running["end_ms"][place] = self._end_ms[job_id] = end_ms
        ids = self._job_ids[running["slot"]]
        running[:] = running[np.lexsort((ids, running["end_ms"]))]
        self._first_end_ms = self._running_end_ms.item(0)
        self._state.counters["stale"] = REPLAN

    @override
    def withdraw(self, now_ms: int, job_id: int) -> None:
        job_withdrawn(self._state, self._rules, np.int64(self._place(job_id)))
        self._leave(job_id)

    def _leave(self, job_id: int) -> None:
        job = self._slots.leave(job_id)
        if self._planned is not None:
            self._planned.add(-self._planned.most_nodes(job))

    @override
    def reserve(self, now_ms: int, reservation_id: int, start_ms: int, length_ms: int, width: int) -> int | None:
        if self._plan is None or self._limits is None or width > self.nodes:
            return None
        if self._state.counters[0]["n_reservations"] == len(self._plan.reservations):
            self._grow()
        slot = HEAD
        if self._planned is not None:
            # The next job's row says that a reservation asks for whole nodes, until that job overwrites it.
            slot = np.int64(self._next_slot())
            self._planned.fill(int(slot), msgspec.UNSET)
        self._update_plan(now_ms)
        times = np.int64(max(start_ms, now_ms)), np.int64(width), np.int64(length_ms)
        fits_ms = int(earliest_start(self._plan, self._limits, self._node_plan, slot, *times, NO_LIMITS))
        if fits_ms == start_ms:
            self._enter(reservation_id, start_ms, start_ms + length_ms, width)
        return fits_ms

    def _update_plan(self, now_ms: int) -> None:
        """Bring a planning site's plan up to date without starting jobs."""
        assert self._plan is not None, "a site without a plan"
        assert self._limits is not None, "a plan of a queue"
        backfills = self._policy.backfill != "none"
        update_plan(self._state, self._plan, self._limits, self._node_plan, backfills, np.int64(now_ms))

    @property
    @override
    def node_amounts(self) -> Amounts | None:
        return None if self._counted is None else self._counted.arrays.total

    @override
    def held_amounts(self, job_ids: Collection[int]) -> Amounts:
        assert self._counted is not None, "only a queue that counts resources has amounts"
        return self._counted.held_amounts(self._slots.of[job_id] for job_id in job_ids)

    @override
    def resize(self, by: int) -> None:
        counters = self._state.counters[0]
        self._in_service += by
        counters["free"] += by
        self._rules.resized(by)
        counters["stale"], counters["n_blocks"] = REPLAN, 0

    @override
    def serve(self, now_ms: int, nodes: int) -> None:
        assert self._counted is not None, "only a queue that counts resources chooses nodes"
        self._counted.serve(nodes)
        if self._plan is not None:
            self._plan.total[0] = nodes.bit_count()
        self._state.counters["stale"] = REPLAN

    def _enter(self, reservation_id: int, start_ms: int, end_ms: int, width: int) -> None:
        """Add an accepted reservation to the sorted list and to the plan, in which the reservation must fit."""
        count = int(self._state.counters[0]["n_reservations"])
        assert self._plan is not None, "a reservation in a queue"
        entries = self._plan.reservations
        entries[count] = (start_ms, end_ms, width, reservation_id)
        order = np.argsort(entries[: count + 1], order=["start_ms", "reservation_id"])
        entries[: count + 1] = entries[: count + 1][order]
        self._state.counters[0]["n_reservations"] = count + 1
        times = np.int64(start_ms), np.int64(end_ms)
        if self._planned is not None:
            self._planned.reorder(order)
            if self._planned.add(width):
                self._rules = self._made_rules()
            if self._planned.plan.is_used[0]:
                place = np.int64(order.tolist().index(count))
                choose_reserved(self._planned.plan, place, np.int64(width), *times)
                occupy_reserved(self._planned.plan, place, *times)
                return
        occupy_plan(self._plan, self._limits, *times, np.int64(width), NO_LIMITS, TAKE)

    @override
    def begin_reservation(self, now_ms: int, reservation_id: int) -> NodeIntervals | None:
        assert self._planned is not None, "the site's pool chooses the nodes of reservations"
        assert self._plan is not None, "a reservation without a plan"
        self._update_plan(now_ms)
        entries = self._plan.reservations[: self._state.counters[0]["n_reservations"]]
        place = int(np.flatnonzero(entries["reservation_id"] == reservation_id)[0])
        before = self._planned.plan.reserved[place].copy()
        nodes = self._planned.begin_reservation(place, int(entries[place]["width"]))
        if self._planned.plan.is_used[0] and (before != self._planned.plan.reserved[place]).any():
            self._state.counters["stale"] = REPLAN  # a job past its limit holds the planned nodes
        return nodes

    @override
    def unreserve(self, now_ms: int, reservation_id: int) -> None:
        if self._plan is None:
            return
        counters = self._state.counters[0]
        count = int(counters["n_reservations"])
        entries = self._plan.reservations
        keep = entries[:count]["reservation_id"] != reservation_id
        gone = entries[:count][~keep]
        if self._planned is not None:
            for place in np.flatnonzero(~keep).tolist():
                self._planned.end_reservation(place)
            self._planned.reorder(np.flatnonzero(keep))
            self._planned.add(-int(gone["width"].sum()))
        left = int(keep.sum())
        entries[:left] = entries[:count][keep]
        counters["n_reservations"] = left
        if gone["end_ms"].max(initial=now_ms) > now_ms:
            counters["stale"] = REPLAN

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        if self._plan is None and len(self._slots.of) == len(self._end_ms):
            # No job is waiting.
            return NOTHING
        count, self._first_end_ms, self._next_start_ms = self._decide(self._state, self._rules, now_ms)
        if not count:
            return NOTHING
        slots, starts, counted = self._state.started, [], self._counted
        for number in range(count):
            slot = slots.item(number)
            job = self._slots.jobs[slot]
            self._end_ms[job.job_id] = now_ms + job.estimate_ms
            starts.append(Start(job, None if counted is None else counted.held(slot)))
        return Decisions(starts)

    @override
    def startable(self, now_ms: int, length_ms: int) -> int:
        times = np.int64(now_ms), np.int64(length_ms)
        if self._counted is not None and self._plan is None:
            return self._startable_chunks(self._counted, msgspec.UNSET, now_ms, length_ms)
        if self._plan is None:
            return int(startable_behind_queue(self._state, self._policy.codes, *times))
        if self._has_limits or self._planned is not None:
            return super().startable(now_ms, length_ms)
        return max(0, int(free_throughout(self._plan, np.int64(now_ms), np.int64(now_ms + length_ms))))

    @override
    def chunks_now(self, now_ms: int, job: Job) -> int:
        if self._counted is None or self._plan is not None:
            return super().chunks_now(now_ms, job)
        return self._startable_chunks(self._counted, job.chunk, now_ms, job.estimate_ms)

    def _startable_chunks(
        self, counted: CountedNodes, chunk: Chunk | msgspec.UnsetType, now_ms: int, length_ms: int
    ) -> int:
        """Return how many chunks of a job could start now, behind all waiting jobs."""
        slot = self._next_slot()
        counted.fill(slot, chunk)
        times = np.int64(now_ms), np.int64(length_ms)
        return int(startable_on_nodes(self._state, counted.for_queries, self._policy.codes, np.int64(slot), *times))

    @property
    @override
    def kinds(self) -> tuple[NodeKind, ...]:
        return self._policy.kinds

    @override
    def outlook(self, now_ms: int, job: Job, run: ExpectedRun) -> str:
        """Return which resource is short for a new job, and until when; "" at a site that gives out whole nodes."""
        if self._counted is None:
            return ""
        trial = self.copy()
        trial.submit(now_ms, msgspec.structs.replace(job, job_id=ASKED_ID))
        assert trial._counted is not None, "a copy that counts no resources"
        nodes, slot = trial._counted.for_queries, trial._slots.of[ASKED_ID]
        short = find_shortage(trial._state, nodes, trial._counted.columns, job, slot, now_ms)
        if short is not None:
            return short.reason
        if run.start_ms == now_ms:
            return "what it needs is free, and it could start at once"
        ahead = len(self._slots.of) - len(self._end_ms)
        return f"what it needs is free, but {ahead_text(ahead)} would be delayed if it started now"

    @override
    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        if self._planned is not None and self.why_never(job) is None:
            return run_from(self._planned_start_ms(now_ms, job), now_ms, job)
        if self._counted is not None:
            return Discipline.expected_run(self, now_ms, job)
        if not self._has_limits or self.why_never(job) is not None:
            return super().expected_run(now_ms, job)
        return run_from(self._start_under_limits_ms(now_ms, job), now_ms, job)

    def _planned_start_ms(self, now_ms: int, job: Job) -> int | None:
        """Return when a job would start in the plan that includes the job; None if it would never start."""
        copy = self.copy()
        copy.submit(now_ms, msgspec.structs.replace(job, job_id=ASKED_ID))
        copy.run_pass(now_ms)
        slot = copy._slots.of[ASKED_ID]
        start_ms = int(copy._state.jobs[slot]["promised_ms"])
        return None if start_ms == _NEVER else start_ms

    def _start_under_limits_ms(self, now_ms: int, job: Job) -> int | None:
        """Return when a job behind all other jobs would start under its limits; None if it would never start."""
        assert self._plan is not None, "limits without a plan"
        if job.width > self._in_service:
            return None
        times = np.int64(now_ms), np.int64(job.width), np.int64(job.estimate_ms)
        start_ms = earliest_start(self._plan, self._limits, None, HEAD, *times, np.int64(self._mask(job)))
        return None if start_ms == NEVER_MS else int(start_ms)

    @override
    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job would start; per-user limits are ignored, because the job's user is unknown."""
        if self._counted is not None:
            return Discipline.earliest_start_ms(self, now_ms, width, length_ms)
        if self._has_limits:
            return self._start_under_limits_ms(now_ms, Job(job_id=ASKED_ID, width=width, estimate_ms=length_ms))
        if width > self._in_service:
            return None
        if width <= self.startable(now_ms, length_ms):
            return now_ms
        times = np.int64(now_ms), np.int64(width), np.int64(length_ms)
        if self._plan is not None:
            start_ms = earliest_start(self._plan, self._limits, None, HEAD, *times, NO_LIMITS)
        else:
            scratch = self._scratch_plan()
            start_ms = start_behind_queue(self._state, scratch, self._policy.backfill != "none", *times)
        return None if start_ms == NEVER_MS else int(start_ms)

    def _scratch_plan(self) -> Plan:
        """Return scratch arrays in which queries can plan the queue."""
        if self._scratch is None or self._scratch.step_ms.shape[1] < 2 * len(self._state.jobs) + 4:
            total = np.array([self.nodes], np.int64)
            self._scratch = empty_plan(self._state, total, reservations=1)
        self._scratch.total[0] = self._in_service
        return self._scratch

    @property
    @override
    def free(self) -> int:
        return super().free if self._counted is None else self._counted.n_idle

    @override
    def nodes_ready(self, now_ms: int, free: int) -> list[tuple[int, int]]:
        if self._counted is None:
            return super().nodes_ready(now_ms, free)
        ends = ((int(entry["slot"]), int(entry["end_ms"])) for entry in self._running_entries())
        ready = Counter({now_ms: free})
        ready.update(max(end_ms, now_ms + 1) for end_ms in self._counted.idle_from(ends))
        return sorted((instant, nodes) for instant, nodes in ready.items() if nodes)

    @override
    def next_wakeup_ms(self) -> int | None:
        return None if self._next_start_ms == _NEVER else self._next_start_ms

    @override
    def next_end_ms(self) -> int | None:
        return self._first_end_ms if self._end_ms else None

    @override
    def running(self) -> Iterator[Running]:
        for entry in self._running_entries():
            job = self._slots.jobs[int(entry["slot"])]
            yield Running(job, int(entry["end_ms"]) - job.estimate_ms, int(entry["end_ms"]))

    @override
    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        for place, slot in enumerate(self._waiting_slots()):
            job = self._slots.jobs[slot]
            if self._plan is not None:
                promised_ms = int(self._state.jobs[slot]["promised_ms"])
                yield job, None if promised_ms == _NEVER else promised_ms
            else:
                shadow_ms = self._shadow_ms(job) if place == 0 else _NEVER
                yield job, None if shadow_ms == _NEVER else shadow_ms

    @override
    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        place = self._place(job_id)
        job = self._slots.job(job_id)
        promised_ms = int(self._state.jobs[self._slots.of[job_id]]["promised_ms"])
        if self._plan is not None:
            start_ms: int | None = promised_ms
            cause, reason = self._why_planned_then(job, place, promised_ms, now_ms)
        elif self._counted is not None:
            start_ms, cause, reason = self._why_not_on_nodes(self._counted, job, place, now_ms)
        elif place == 0:
            start_ms = max(self._shadow_ms(job), now_ms)
            free = free_text(int(self._state.counters[0]["free"]))
            cause = "it is first in the queue"
            reason = f"{cause}; it needs {nodes_text(job.width)}, and {free}"
        else:
            start_ms = None
            cause, reason = self._why_not_backfilled(job, place, now_ms)
        return SiteReason(
            start_ms=start_ms,
            is_bound=start_ms is not None and start_ms > now_ms and self._policy.keeps_promises,
            ahead=place,
            waits_for=must_end_by(self.running(), start_ms),
            reason=reason,
            cause=cause,
        )

    def _shadow_ms(self, head: Job) -> int:
        if self._counted is None:
            return int(shadow_time(self._state, np.int64(head.width)))
        nodes, slot = self._counted.for_queries, self._slots.of[head.job_id]
        return int(head_limit_on_nodes(self._state, nodes, np.int64(slot), 0.0).shadow_ms)

    def _why_not_on_nodes(
        self, counted: CountedNodes, job: Job, place: int, now_ms: int
    ) -> tuple[int | None, str, str]:
        """Return a job's start if it is first in the queue, and why it waits, as texts without and with numbers."""
        slot = self._slots.of[job.job_id]
        short = find_shortage(self._state, counted.for_queries, counted.columns, job, slot, now_ms)
        if place == 0:
            first, start_ms = "it is first in the queue", now_ms if short is None else max(short.fit_ms, now_ms)
            reason = first if short is None else f"{first}; {short.reason}"
            return None if start_ms == _NEVER else start_ms, first, reason
        if self._policy.backfill == "none":
            ahead = f"{ahead_text(place)} must start before it: this queue lets none be overtaken"
            return None, "others must start before it", ahead
        if short is not None:
            return None, short.cause, f"{short.reason}; {ahead_text(place)} would be offered them before it"
        head = self._state.waiting[0]
        limit = head_limit_on_nodes(self._state, counted.for_queries, head, self._policy.codes.slack)
        head_id, limit_ms = int(self._job_ids[head]), int(limit.limit_ms)
        return (
            None,
            "free resources are kept for the first",
            (
                f"it would run for {span_text(job.estimate_ms)}, and job {head_id} at the head is to start "
                f"{when_text(limit_ms, now_ms)}; this job would leave too little for it on the nodes that it would get"
            ),
        )

    def _why_planned_then(self, job: Job, place: int, start_ms: int, now_ms: int) -> tuple[str, str]:
        """Return why no earlier start is planned (window, order, nodes, cap), as texts without and with numbers."""
        mask = np.int64(self._mask(job))
        if self._limits is not None and now_ms < start_ms == next_open(self._limits, mask, np.int64(now_ms)):
            return "a limit of the site", "a limit of the site allows no such job to start earlier"
        if self._policy.backfill == "none" and place > 0:
            return "others must start before it", "this site starts no job before the job ahead of it"
        kept = f"the jobs that run and {ahead_text(place)}" if place else "the jobs that run"
        if self._state.counters[0]["n_reservations"]:
            kept += " and the reservations"
        if mask:
            kept += ", under the limits that apply to it,"
        length = span_text(job.estimate_ms)
        need = f"it needs {nodes_text(job.width)} for {length}"
        return "no earlier gap is left", f"{need}, and {kept} leave no earlier gap for it"

    def _why_not_backfilled(self, job: Job, place: int, now_ms: int) -> tuple[str, str]:
        """Return which backfilling test a job behind the head fails, as texts without and with numbers."""
        free = int(self._state.counters[0]["free"])
        if self._policy.backfill == "none":
            ahead = f"{ahead_text(place)} must start before it: this queue lets none be overtaken"
            return "others must start before it", ahead
        if job.width > free:
            need = f"it needs {nodes_text(job.width)}, and {free_text(free)}"
            return "too few nodes are free", f"{need}; {ahead_text(place)} would be offered them before it"
        head = self._slots.jobs[int(self._state.waiting[0])]
        limit_ms = int(self._state.counters[0]["limit_ms"])
        extra = int(free_at(self._state, np.int64(limit_ms))) - head.width
        return "free nodes are kept for the first", (
            f"it would run for {span_text(job.estimate_ms)}, and job {head.job_id} at the head is to start "
            f"{when_text(limit_ms, now_ms)}; it needs {nodes_text(job.width)} and only {extra} can be spared after that"
        )

    def _mask(self, job: Job) -> int:
        if not self._policy.limits:
            return 0
        return int(self._policy.limit_masks(width=job.width, estimate_ms=job.estimate_ms, user=job.user))

    def _running_entries(self) -> npt.NDArray[np.void]:
        return self._state.running[: self._state.counters[0]["n_running"]]

    def _waiting_slots(self) -> list[int]:
        return [int(slot) for slot in self._state.waiting[: self._state.counters[0]["n_waiting"]]]

    def _place(self, job_id: int) -> int:
        return self._waiting_slots().index(self._slots.of[job_id])

    @override
    def _grow(self) -> None:
        super()._grow()
        plan = self._plan
        if plan is not None:
            larger = empty_plan(self._state, plan.total, reservations=2 * len(plan.reservations))
            copy_into(larger, plan)
            self._plan = larger
        if self._counted is not None:
            self._counted.grow(self._slots.count)
        self._rules = self._made_rules()
        self._name_numbers()

    @override
    def state(self) -> SiteQueueState:
        plan = {} if self._plan is None else arrays_state(self._plan)
        return SiteQueueState(
            slots=self._slots.state(),
            arrays=arrays_state(self._state),
            plan=plan,
            next_start_ms=self._next_start_ms,
            nodes=msgspec.UNSET if self._counted is None else self._counted.state(),
        )

    @override
    def restore(self, state: SiteQueueState) -> None:
        super().restore(state)
        if self._plan is not None:
            self._plan = restored_arrays(self._plan, state.plan)
        if self._counted is not None and state.nodes:
            self._counted.restore(state.nodes)
        if self._planned is not None:
            self._restore_node_plan(self._planned)
        self._rules = self._made_rules()
        self._name_numbers()
        self._end_ms = {running.job.job_id: running.end_by_estimate_ms for running in self.running()}
        self._first_end_ms = self._running_end_ms.item(0) if self._end_ms else _NEVER
        self._next_start_ms = state.next_start_ms
        held = self._state.jobs["width"][self._state.running["slot"][: self._state.counters[0]["n_running"]]].sum()
        self._in_service = int(self._state.counters[0]["free"] + held)
        self._reorder()

    def _restore_node_plan(self, planned: PlannedNodes) -> None:
        """Compute the steps of each node's plan from the jobs and the reservations."""
        assert self._plan is not None, "planned nodes without a plan"
        planned.add(sum(planned.most_nodes(job) for job in self._slots.jobs.values()))
        planned.add(int(self._plan.reservations["width"][: self._state.counters[0]["n_reservations"]].sum()))
        # The profiles of the limits are among the restored arrays, so the rebuilt ones are dropped.
        profiles, place = copied(self._plan), np.int64(self._state.counters[0]["n_waiting"])
        rebuild(self._state, profiles, self._limits, planned.plan, self._plan.step_ms[0, 0], place)

    def _reorder(self) -> None:
        """Sort the queue in this policy's order, because the state may come from a policy with another order."""
        jobs, waiting = self._state.jobs, self._state.waiting[: self._state.counters[0]["n_waiting"]]
        waiting_jobs = [self._slots.jobs[slot] for slot in waiting.tolist()]
        keys = order_keys(
            self._policy.order,
            submit_ms=jobs["submit_ms"][waiting],
            width=jobs["width"][waiting],
            estimate_ms=jobs["estimate_ms"][waiting],
            weight=np.array([job.weight for job in waiting_jobs]),
            priority=np.array([job.priority for job in waiting_jobs]),
            aging_ms=self._policy.aging_ms,
        )
        keys[[job.behind for job in waiting_jobs]] = math.inf
        if not np.array_equal(keys, jobs["key"][waiting]):
            jobs["key"][waiting] = keys
            waiting[:] = waiting[np.lexsort((jobs["job_id"][waiting], jobs["submit_ms"][waiting], keys))]
            self.replan()

    @override
    def replan(self) -> None:
        self._state.counters["stale"], self._state.counters["n_blocks"] = REPLAN, 0

    @override
    def check_invariants(self) -> None:
        counters = self._state.counters[0]
        jobs, running = self._state.jobs, self._state.running[: counters["n_running"]]
        waiting = self._waiting_slots()
        held = int(jobs["width"][running["slot"]].sum())
        assert counters["free"] == self._in_service - held, "free nodes and running jobs do not add up"
        if self._counted is None:
            assert counters["free"] >= 0, "more nodes are held than the site has"
        else:
            self._counted.check_invariants(running["slot"].tolist())
        slots = [*waiting, *running["slot"].tolist()]
        assert sorted(slots) == sorted(self._slots.of.values()), "a slot is lost or doubled"
        assert sorted(self._end_ms) == sorted(jobs["job_id"][running["slot"]].tolist()), "running jobs differ"
        self._check_order(waiting)
        ends = [(int(entry["end_ms"]), int(jobs[entry["slot"]]["job_id"])) for entry in running]
        assert ends == sorted(ends), "the running jobs are out of order"
        if self._plan is not None:
            # The number of free nodes can be negative, because a job past its limit may occupy reserved nodes.
            overdue = len(running) and running["end_ms"][0] <= self._plan.step_ms[0, 0]
            for p, n_steps in enumerate(self._plan.n_steps):
                free = self._plan.step_free[p, :n_steps]
                assert (free >= 0).all() or overdue, "a profile is overbooked"
                assert (free <= self._plan.total[p]).all(), "a profile has more free nodes than the site has"
                assert (np.diff(self._plan.step_ms[p, :n_steps]) > 0).all(), "a profile is out of order"
            if self._planned is not None and not overdue:
                self._planned.check_plan()

    def _check_order(self, waiting: list[int]) -> None:
        ranks = [tuple(self._state.jobs[slot][["key", "submit_ms", "job_id"]]) for slot in waiting]
        assert ranks == sorted(ranks), "the queue is out of order"


def _counted_nodes(policy: SitePolicy, nodes: int) -> CountedNodes | None:
    """Return the idle nodes of a site that counts resources; None for other sites."""
    if not policy.kinds:
        return None
    if policy.makes_plan:
        return PlannedNodes(policy, nodes, FIRST_SLOTS, reservations=FIRST_SLOTS)
    return CountedNodes(policy, nodes, FIRST_SLOTS)


def read_policy(discipline: str, site_options: Options, usual: Options) -> SitePolicy:
    """Return the policy of a queue or planning site."""
    accepted = SitePolicy.__struct_fields__
    refuse_unknown(site_options, accepted, f"is for another discipline, and this site has {discipline!r}")
    values = {name: value for name, value in usual.items() if name in accepted}
    values |= {name: value for name, value in site_options.items() if value is not None}
    return SitePolicy(**values | {"discipline": discipline})


def limit_masks(jobs: Jobs, policy: SitePolicy) -> npt.NDArray[np.int64]:
    """Return the limits that apply to each job, as a bit mask."""
    return policy.limit_masks(width=jobs.width, estimate_ms=jobs.estimate_ms, user=jobs.columns.get("user"))


def refusals(jobs: Jobs, nodes: int, policy: SitePolicy) -> dict[int, str]:
    """Return the reasons for refusing jobs that can never start on the site, by job id."""
    masks, chunks = limit_masks(jobs, policy), chunk_of_rows(jobs)
    doubtful = np.flatnonzero((jobs.width > nodes) | (masks != 0) | (chunks >= 0))
    reasons: dict[tuple[int, int, int], str | None] = {}
    refused = {}
    for row in doubtful:
        kind = int(jobs.width[row]), int(masks[row]), int(chunks[row])
        if kind not in reasons:
            chunk = jobs.chunks[kind[2]] if kind[2] >= 0 else msgspec.UNSET
            reasons[kind] = policy.why_never(nodes, kind[0], kind[1], chunk)
        reason = reasons[kind]
        if reason is not None:
            refused[int(jobs.job_id[row])] = reason
    return refused


def compiled_site(
    nodes: int,
    policy: SitePolicy,
    jobs: Jobs,
    week: Callable[[], WeekClock],
    refused_besides: Mapping[int, str] | None = None,
) -> CompiledSite:
    """Return an idle site for the compiled loop, with its table of jobs; jobs in `refused_besides` are left out."""
    refused = {**(refused_besides or {}), **refusals(jobs, nodes, policy)}
    rows = rows_without(jobs, refused)
    state = empty_state(nodes, slots=len(rows), most_running=most_running(policy))
    fill_jobs(state.jobs, jobs, rows, policy.order, aging_ms=policy.aging_ms)
    state.jobs["limits"] = limit_masks(jobs, policy)[rows]
    # Ask for the local time only if the policy has windows, so that an unknown time zone is harmless otherwise.
    limits = policy.limit_arrays(week=week() if policy.has_windows else FROM_MONDAY)
    plan = empty_plan(state, policy.profile_totals(nodes)) if policy.makes_plan else None
    counted, node_plan = None, None
    if policy.kinds:
        entries = most_nodes_of_rows(jobs, rows, nodes) if policy.makes_plan else None
        counted = nodes_of_site(policy, nodes, len(rows), entries)
        fill_requests(counted, policy.kinds, jobs, rows)
        node_plan = empty_node_plan(counted, kinds=len(policy.kinds)) if policy.makes_plan else None
    return CompiledSite(
        rows=rows,
        refused=refused,
        state=state,
        rules=policy.rules(plan, limits, counted, node_plan),
        capacity=len(state.running),
        nodes=counted,
        keys_at=partial(keys_of, jobs, rows, policy.order, aging_ms=policy.aging_ms),
    )


def traits_on(traits: Traits, policy: SitePolicy) -> Traits:
    """Return the traits of a queue or planning site whose policy may have kinds of nodes."""
    return replace(traits, chooses_nodes=True, counts_resources=True) if policy.kinds else traits


COMPILED = Compiled(site=compiled_site, nodes_may_fail=True, counts_resources=True, chunk=20_000)

TRAITS = Traits(elastic=True)

ENTRY = Entry(
    name="queue",
    about="jobs wait in a queue, and jobs behind the head may be backfilled",
    make=SiteQueue,
    read=lambda nodes, options, usual: read_policy("queue", options, usual),
    reads_kinds=True,
    traits=TRAITS,
    traits_by=lambda policy: traits_on(TRAITS, policy),
    compiled=COMPILED,
)

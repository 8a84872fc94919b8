"""The discipline ``fractional``, stepped event by event (docs/fractional.md)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from gridweave.jit import Ints, Record, Records
from gridweave.ranges import ranges_of
from gridweave.site.disciplines.arrays import PacedDiscipline
from gridweave.site.disciplines.base import Decisions, Move, SharedOffer, Start
from gridweave.site.disciplines.fractional.averages import average_yields
from gridweave.site.disciplines.fractional.groups import enter_groups, groups_of_job, why_too_large
from gridweave.site.disciplines.fractional.kernels.fractional_pass import (
    NOTHING,
    STRETCH_PER,
    give_yields,
    horizon_of,
    place_jobs,
    set_rates,
)
from gridweave.site.disciplines.fractional.kernels.state import (
    FRACTIONAL_JOB,
    PAUSED,
    RUNS,
    SHARE_ONE,
    WAITS,
    FractionalSite,
    empty_fractional,
    fractional_left,
    fractional_submitted,
)
from gridweave.site.disciplines.fractional.policy import FractionalPolicy
from gridweave.site.disciplines.slots import FIRST_SLOTS, SlotsState, copy_into
from gridweave.site.explain import SiteReason, nodes_text
from gridweave.site.job import Job, NodeIntervals, Running, TaskGroup, task_groups
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.kernels.parts import UNIT, parts_of_node
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import RATE_ONE, work_done_ms, work_of
from gridweave.site.state import Arrays, CoreState, arrays_state
from gridweave.site.times import span_text


class FractionalState(CoreState, frozen=True, kw_only=True, tag="Fractional 1"):
    """The saved state of a fractional site: its arrays, and the last reported rate of each running job."""

    slots: SlotsState
    arrays: Arrays
    rates: dict[int, int]


class Fractional(PacedDiscipline[FractionalSite]):
    """A discipline that stores its jobs and nodes in arrays and leaves the decisions to kernels.

    Parameters
    ----------
    nodes : int
    policy : FractionalPolicy
    week : WeekClock
        Ignored.
    """

    state_type = FractionalState

    def __init__(self, nodes: int, policy: FractionalPolicy, week: WeekClock = FROM_MONDAY) -> None:
        self._policy, self._codes = policy, policy.codes()
        super().__init__(nodes)

    @override
    def _empty(self, slots: int) -> FractionalSite:
        return empty_fractional(self.nodes, slots=slots, groups=FIRST_SLOTS, pool=FIRST_SLOTS)

    @property
    @override
    def free(self) -> int:
        return int((self._state.nodes["memory"] == 0).sum())

    @override
    def why_never(self, job: Job) -> str | None:
        return why_too_large(groups_of_job(_task_groups(job)), len(self._state.nodes))

    @override
    def submit(self, now_ms: int, job: Job) -> None:
        groups = groups_of_job(_task_groups(job))
        self._reserve_slots(job.width, len(groups.job))
        counters, slot = self._state.counters[0], self._slots.enter(job)
        self._state.jobs[slot] = np.zeros((), FRACTIONAL_JOB)
        row = self._state.jobs[slot]
        row["submit_ms"], row["job_id"], row["width"] = now_ms, job.job_id, job.width
        row["estimate_ms"], row["start_ms"] = job.estimate_ms, -1
        row["weight"] = row["share"] = share_of(job.weight)
        enter_groups(self._state, np.array([slot]), groups, int(counters["n_groups"]), int(counters["n_pool"]))
        counters["n_groups"] += len(groups.job)
        counters["n_pool"] += job.width
        fractional_submitted(self._state, np.int64(slot))

    @override
    def _grow(self) -> None:
        self._grow_pools(self._slots.double(), len(self._state.groups), len(self._state.tasks))

    def _reserve_slots(self, tasks: int, groups: int) -> None:
        """Ensure that there is a free slot, and that the pools have space for this many tasks and groups at the end."""
        if self._slots.is_full:
            self._grow()
        counters = self._state.counters[0]
        has_tasks = counters["n_pool"] + tasks <= len(self._state.tasks)
        if not has_tasks or counters["n_groups"] + groups > len(self._state.groups):
            self._pack_pools()
            counters = self._state.counters[0]
            most = 2 * (int(counters["n_groups"]) + groups), 2 * (int(counters["n_pool"]) + tasks)
            self._grow_pools(self._slots.count, *most)

    def _pack_pools(self) -> None:
        """Move the groups and tasks of all jobs at the site to the beginning of the pools, without gaps."""
        state, n_groups, used = self._state, 0, 0
        for slot in sorted(self._here().tolist(), key=lambda slot: int(state.jobs["first"][slot])):
            row = state.jobs[slot]
            groups, tasks = self._groups_of(row).copy(), self._tasks_of(row).copy()
            groups["first"] += used - row["first"]
            row["first"], row["first_group"], row["end_group"] = used, n_groups, n_groups + len(groups)
            self._groups_of(row)[:], self._tasks_of(row)[:] = groups, tasks
            n_groups, used = n_groups + len(groups), used + len(tasks)
        state.counters["n_groups"], state.counters["n_pool"] = n_groups, used

    def _grow_pools(self, slots: int, groups: int, pool: int) -> None:
        """Copy the state into longer arrays."""
        old = self._state
        most = {"groups": max(groups, len(old.groups)), "pool": max(pool, len(old.tasks))}
        self._state = empty_fractional(self.nodes, slots=slots, **most)
        copy_into(self._state, old)

    @override
    def ended(self, now_ms: int, job_id: int) -> None:
        self._leave(job_id)
        del self._rate[job_id]

    @override
    def withdraw(self, now_ms: int, job_id: int) -> None:
        self._leave(job_id)

    def _leave(self, job_id: int) -> None:
        fractional_left(self._state, np.int64(self._slots.of[job_id]))
        self._slots.leave(job_id)

    @override
    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        """Do nothing, because no decision uses the ends of jobs, and limits apply to work."""

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        """Place jobs and set their yields; list the starts in submit order."""
        state, codes, now = self._state, self._codes, np.int64(now_ms)
        moved: list[int] = []
        if place_jobs(state, codes, now):
            give_yields(state, codes, now)
            if self._policy.averages:
                stretch = codes.periodic == STRETCH_PER
                average_yields(state, int(horizon_of(codes, now)) if stretch else None, now_ms)
            moved = self._placed_anew()
        set_rates(state, codes, now)
        changed = state.changed[: state.counters["n_changed"][0]].tolist()
        state.counters["n_changed"] = 0
        slots = state.started[: state.counters["n_started"][0]].tolist()
        starts = self._started(Start(self._slots.jobs[slot], self._nodes_of(slot)) for slot in slots)
        moves = [Move(job_id, self._nodes_of(self._slots.of[job_id])) for job_id in moved]
        return Decisions(starts, moves=moves, rates=self._new_rates(changed, state.jobs["rate"]))

    def _placed_anew(self) -> list[int]:
        """Return the ids, ascending, of the jobs started before this pass that this pass paused, resumed or moved."""
        rows = self._state.jobs[self._here()]
        changed: list[int] = rows["job_id"][rows["changed_place"] == 1].tolist()
        return sorted(job_id for job_id in changed if job_id in self._rate)

    def _nodes_of(self, slot: int) -> NodeIntervals:
        """Return a job's nodes, once per task, in the order of its task groups; empty if the job has no nodes."""
        row = self._state.jobs[slot]
        if row["status"] != RUNS:
            return ()
        nodes_of = {}
        for group in self._groups_of(row):
            tasks = self._state.tasks[group["first"] : group["first"] + group["count"]]
            nodes_of[int(group["need"]), int(group["memory"])] = iter(tasks.tolist())
        intervals: NodeIntervals = ()
        for task_group in _task_groups(self._slots.jobs[slot]):
            alike = nodes_of[int(parts_of_node(task_group.cpu_need)), int(parts_of_node(task_group.memory))]
            intervals += intervals_of_numbers(list(itertools.islice(alike, task_group.tasks)))
        return intervals

    def _tasks_of(self, row: Record) -> Ints:
        return self._state.tasks[row["first"] : row["first"] + row["width"]]

    def _groups_of(self, row: Record) -> Records:
        return self._state.groups[row["first_group"] : row["end_group"]]

    @override
    def figures(self, now_ms: int, job_id: int) -> tuple[float, ...]:
        """Return the number of a job's pauses, the number of its moves, and the memory that both transferred.

        The unit of memory is the whole memory of a node.
        """
        row = self._state.jobs[self._slots.of[job_id]]
        return float(row["preempted"]), float(row["migrated"]), int(row["moved"]) / UNIT

    @override
    def progress(self, now_ms: int, job_id: int) -> tuple[float, int]:
        """Return a started job's rate (0 during a pause or penalty), and its work so far, in ms at full speed."""
        row = self._state.jobs[self._slots.of[job_id]]
        done = int(row["virtual"]) + int(row["rate"]) * (now_ms - int(row["since_ms"]))
        return int(row["rate"]) / RATE_ONE, done // RATE_ONE

    @override
    def sharing_offered(self, now_ms: int, job: Job) -> SharedOffer | None:
        """Return an offer with the slowdown of a job submitted now; None if the next placement would not place it."""
        if self.why_never(job) is not None:
            return None
        trial = self.copy()
        trial.submit(now_ms, job)
        trial.run_pass(now_ms)
        start_ms = self._next_placement_ms(now_ms)
        if start_ms > now_ms:
            trial.run_pass(start_ms)
        rate = int(trial._state.jobs["yield_"][trial._slots.of[job.job_id]])
        if rate == 0:
            return None
        if start_ms == now_ms:
            return SharedOffer(RATE_ONE / rate)
        return SharedOffer((start_ms - now_ms) / job.estimate_ms + RATE_ONE / rate, start_ms=start_ms)

    @property
    def _has_only_periods(self) -> bool:
        """Whether the algorithm places jobs only at the end of each period."""
        return int(self._codes.on_submit) == NOTHING

    def _next_placement_ms(self, now_ms: int) -> int:
        """Return when a job submitted now would be placed: immediately or at the end of the period."""
        if not self._has_only_periods:
            return now_ms
        next_ms = int(self._state.counters["next_period_ms"][0])
        if next_ms == NEVER_MS:  # the site has no jobs, so its period begins with this one
            return now_ms + int(horizon_of(self._codes, np.int64(now_ms)))
        return max(now_ms, next_ms)

    @override
    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return the number of empty nodes, or 0 if a job submitted now would have to wait until the period ends."""
        return self.free if self._next_placement_ms(now_ms) == now_ms else 0

    @override
    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when enough nodes will be empty, based on estimates and current yields; None if never or unknown.

        If jobs are placed only at the end of each period, the time is rounded up to the end of a period.
        """
        if width > len(self._state.nodes):
            return None
        empty_ms = np.full(len(self._state.nodes), now_ms)
        for run in self.running():
            row = self._state.jobs[self._slots.of[run.job.job_id]]
            if row["status"] == RUNS:
                tasks = self._tasks_of(row)
                empty_ms[tasks] = np.maximum(empty_ms[tasks], run.end_by_estimate_ms)
        start_ms = int(np.sort(empty_ms)[width - 1])
        if start_ms >= NEVER_MS:  # a job that is not working now has no known end
            return None
        first_ms = self._next_placement_ms(now_ms)
        if start_ms <= first_ms:
            return first_ms
        return start_ms + -start_ms % self._policy.period_ms if self._has_only_periods else start_ms

    @override
    def next_wakeup_ms(self) -> int | None:
        """Return when the next penalty ends or the next period begins, whichever comes first."""
        wake_ms = int(self._state.counters["next_wake_ms"][0])
        return None if wake_ms == NEVER_MS else wake_ms

    @override
    def next_end_ms(self) -> int | None:
        """Return the earliest estimated end of a running job, at the current yields."""
        ends = (run.end_by_estimate_ms for run in self.running())
        return min((end_ms for end_ms in ends if end_ms < NEVER_MS), default=None)

    def _here(self) -> Ints:
        return self._state.here[: self._state.counters["n_here"][0]]

    @override
    def running(self) -> Iterator[Running]:
        """Yield the started jobs in the order of their estimated ends at current rates; jobs with rate 0 come last."""
        runs = []
        for slot in self._here().tolist():
            row = self._state.jobs[slot]
            if row["start_ms"] >= 0:
                left = work_of(int(row["estimate_ms"])) - int(row["virtual"])
                end_ms = min(int(NEVER_MS), int(work_done_ms(left, int(row["rate"]), int(row["since_ms"]))))
                runs.append(Running(self._slots.jobs[slot], int(row["start_ms"]), end_ms))
        yield from sorted(runs, key=lambda run: (run.end_by_estimate_ms, run.job.job_id))

    @override
    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield the jobs that have not started, in submit order; no start is promised."""
        for slot in self._here().tolist():
            if self._state.jobs["start_ms"][slot] < 0:
                yield self._slots.jobs[slot], None

    @override
    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        job = self._slots.job(job_id)
        ahead = [other.job_id for other, _ in self.waiting()].index(job_id)
        wants = "; ".join(self._memory_text(group) for group in _task_groups(job))
        return SiteReason(ahead=ahead, reason=f"it has {wants}; the site tries again {self._next_chance()}")

    def _memory_text(self, group: TaskGroup) -> str:
        nodes = self._state.nodes
        capacity = int(((UNIT - nodes["memory"]) // int(parts_of_node(group.memory))).sum())
        tasks = "1 task that needs" if group.tasks == 1 else f"{group.tasks} tasks that each need"
        memory_text = f"the free memory fits {capacity} such tasks on {nodes_text(len(nodes))}"
        return f"{tasks} {group.memory:.0%} of a node's memory, and {memory_text}"

    def _next_chance(self) -> str:
        if self._codes.periodic:
            return f"every {span_text(self._policy.period_ms)}"
        return "when a job ends"

    @override
    def state(self) -> FractionalState:
        return FractionalState(slots=self._slots.state(), arrays=arrays_state(self._state), rates=self._rate)

    @override
    def _empty_for(self, state: FractionalState) -> FractionalSite:
        return empty_fractional(self.nodes, slots=self._slots.count, **pools_of(state.arrays))

    @override
    def check_invariants(self) -> None:
        state, here = self._state, self._here()
        assert sorted(here.tolist()) == sorted(self._slots.of.values()), "a slot is lost or doubled"
        load, memory, granted = np.zeros((3, len(state.nodes)), np.int64)
        for row in state.jobs[here]:
            if row["status"] == RUNS:
                tasks = self._tasks_of(row)
                groups = self._groups_of(row)
                assert groups["count"].sum() == row["width"], "a task is in no group"
                needs = np.repeat(groups["need"], groups["count"])
                np.add.at(load, tasks, needs)
                np.add.at(memory, tasks, np.repeat(groups["memory"], groups["count"]))
                np.add.at(granted, tasks, needs * row["yield_"])
            else:
                assert row["rate"] == 0, "a job without nodes works"
                assert row["status"] in (WAITS, PAUSED), "a job in the table has left"
        assert (load == state.nodes["load"]).all(), "a load is wrong"
        assert (memory == state.nodes["memory"]).all(), "a sum of memory is wrong"
        assert (memory <= UNIT).all(), "a node is above its memory"
        assert (granted <= UNIT * RATE_ONE).all(), "a node gives more CPU than it has"


def share_of(weight: float) -> int:
    """Convert a job's weight, limited to the range 0.001 to 1000, to its share in thousandths."""
    return round(SHARE_ONE * max(1 / SHARE_ONE, min(1000.0, weight)))


def _task_groups(job: Job) -> tuple[TaskGroup, ...]:
    return task_groups(job.resources, job.width)


def intervals_of_numbers(numbers: list[int]) -> NodeIntervals:
    """Convert numbers to half-open intervals; a number that occurs n times is in n intervals.

    Examples
    --------
    >>> intervals_of_numbers([0, 1, 1, 1, 2, 4])
    ((0, 3), (1, 2), (1, 2), (4, 5))
    """
    counts = Counter(numbers)
    intervals: list[tuple[int, int]] = []
    while counts:
        intervals += ranges_of(counts)
        counts = Counter({number: count - 1 for number, count in counts.items() if count > 1})
    return tuple(sorted(intervals))


def pools_of(arrays: Arrays) -> dict[str, int]:
    """Return the sizes of saved arrays, as keyword arguments for `empty_fractional`."""
    return {"groups": arrays["listed"].shape[0], "pool": arrays["tasks"].shape[0]}

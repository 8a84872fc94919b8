"""The interface between drivers and compiled disciplines: events, the scheduling pass, and offers.

A compiled discipline is a named tuple of data with kernels as methods. It implements `SiteRules` if jobs run from start
to end at full speed, or `RateRules` if rates change because jobs share nodes, time or fractions of nodes. The functions
in this module are common to all disciplines and compiled separately for each class of rules. All rules share one
compiled loop and one implementation of running work (work.py).

A pass may return running jobs to the queue; it reports these jobs in `Evictions`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_method, kernel_part
from gridweave.site.kernels.blocks import index_new
from gridweave.site.kernels.chunks import NodeArrays
from gridweave.site.kernels.counted import counted_pass, leave_nodes
from gridweave.site.kernels.limits import LimitArrays
from gridweave.site.kernels.node_plan import NodePlan
from gridweave.site.kernels.planning import (
    conservative_pass,
    earliest_start,
    forget_nodes,
    job_ended_early,
    leave_plan,
    occupy_plan,
    plan_pass,
    rebuild,
)
from gridweave.site.kernels.queueing import QueueCodes, free_at, head_limit, queue_pass, spare_nodes
from gridweave.site.kernels.state import (
    HEAD,
    NEVER_MS,
    NO_LIMITS,
    NO_PLACE,
    REPLAN,
    TAKE,
    Plan,
    SiteState,
    dequeue,
    enqueue,
    finish,
    leave_running,
    running_place,
)
from gridweave.site.kernels.work import (
    NOT_RUNNING,
    NOT_YET,
    RunArrays,
    WorkTable,
    begin_work,
    change_rate,
    work_of,
)


class SiteRules(Protocol):
    """A discipline whose jobs run at full speed; all methods are decorated with `gridweave.jit.kernel_method`."""

    def submitted(self, state: SiteState, slot: Int) -> None:
        """Insert a slot's job, whose row must be filled in, into the queue."""

    def withdrawn(self, state: SiteState, place: Int) -> None:
        """Prepare for the removal of a waiting job from the queue."""

    def ended(self, state: SiteState, place: Int, end_ms: Int, now_ms: Int) -> None:
        """Prepare for the removal of a running job; ``end_ms`` is its estimated end."""

    def resized(self, by: Int) -> None:
        """Apply a change in the number of nodes; `by` is negative if nodes were removed."""

    def run_pass(self, state: SiteState, now_ms: Int) -> None:
        """Run the only scheduling pass at this time; afterwards, ``state.started`` lists the started jobs."""


class QueueRules(NamedTuple):
    """A queue without a plan: no backfilling, EASY, or EASY with slack.

    Attributes
    ----------
    codes : QueueCodes
    nodes : NodeArrays or None
        The nodes, if the site counts resources; None: only the number of free nodes counts.
    """

    codes: QueueCodes
    nodes: NodeArrays | None = None

    @kernel_method
    def submitted(self, state: SiteState, slot: Int) -> None:
        index_new(state, enqueue(state, slot))

    @kernel_method
    def withdrawn(self, state: SiteState, place: Int) -> None:
        state.counters[0].stale = REPLAN

    @kernel_method
    def ended(self, state: SiteState, place: Int, end_ms: Int, now_ms: Int) -> None:
        state.counters[0].stale = REPLAN
        give_back_nodes(state, self.nodes, place)

    @kernel_method
    def resized(self, by: Int) -> None:
        pass

    @kernel_method
    def run_pass(self, state: SiteState, now_ms: Int) -> None:
        _queue_pass_on(state, self.nodes, self.codes, now_ms)


@kernel_part
def give_back_nodes(state: SiteState, nodes: NodeArrays | None, place: Int) -> None:
    """Give back what a running job holds, if the site counts resources."""
    if nodes is not None:
        leave_nodes(nodes, state.running[place].slot)


@kernel_part
def _queue_pass_on(state: SiteState, nodes: NodeArrays | None, codes: QueueCodes, now_ms: Int) -> None:
    if nodes is None:
        queue_pass(state, codes, now_ms)
    if nodes is not None:
        counted_pass(state, nodes, codes, now_ms)


class PromiseRules(NamedTuple):
    """A queue with conservative backfilling.

    Attributes
    ----------
    plan : Plan
    nodes : NodePlan or None
        The plan for each node, if the site counts resources; None: only the number of free nodes counts.
    """

    plan: Plan
    nodes: NodePlan | None = None

    @kernel_method
    def submitted(self, state: SiteState, slot: Int) -> None:
        enqueue(state, slot)

    @kernel_method
    def withdrawn(self, state: SiteState, place: Int) -> None:
        leave_plan(state, self.plan, self.nodes, place)

    @kernel_method
    def ended(self, state: SiteState, place: Int, end_ms: Int, now_ms: Int) -> None:
        if end_ms < now_ms:
            state.counters[0].stale = REPLAN
        elif end_ms > now_ms:
            job_ended_early(state, self.plan, None, self.nodes, place, now_ms)
        _give_back_planned(state, self.nodes, place)

    @kernel_method
    def resized(self, by: Int) -> None:
        self.plan.total[0] += by

    @kernel_method
    def run_pass(self, state: SiteState, now_ms: Int) -> None:
        conservative_pass(state, self.plan, None, self.nodes, now_ms)


class PlanRules(NamedTuple):
    """A planning site.

    Attributes
    ----------
    plan : Plan
    limits : LimitArrays
    backfills : bool
        Whether a job may be planned to start before the job ahead of it.
    nodes : NodePlan or None
        The plan for each node, if the site counts resources; None: only the number of free nodes counts.
    """

    plan: Plan
    limits: LimitArrays
    backfills: bool
    nodes: NodePlan | None = None

    @kernel_method
    def submitted(self, state: SiteState, slot: Int) -> None:
        enqueue(state, slot)
        _replan_nodes(state, self.nodes)

    @kernel_method
    def withdrawn(self, state: SiteState, place: Int) -> None:
        state.counters[0].stale = REPLAN
        forget_nodes(self.nodes, state.waiting[place])

    @kernel_method
    def ended(self, state: SiteState, place: Int, end_ms: Int, now_ms: Int) -> None:
        if end_ms != now_ms:
            state.counters[0].stale = REPLAN
        _replan_nodes(state, self.nodes)
        _give_back_planned(state, self.nodes, place)

    @kernel_method
    def resized(self, by: Int) -> None:
        self.plan.total[0] += by

    @kernel_method
    def run_pass(self, state: SiteState, now_ms: Int) -> None:
        plan_pass(state, self.plan, self.limits, self.nodes, self.backfills, now_ms)


@kernel_part
def _replan_nodes(state: SiteState, nodes: NodePlan | None) -> None:
    """Let the next pass choose the nodes of all waiting jobs again, if the plan is kept for each node.

    Rule 4 can choose other nodes once jobs have started that were planned after the jobs ahead of them.
    """
    if nodes is not None and nodes.is_used[0]:
        state.counters[0].stale = REPLAN


@kernel_part
def _give_back_planned(state: SiteState, nodes: NodePlan | None, place: Int) -> None:
    """Give back what a running job holds, if the site counts resources."""
    if nodes is not None:
        leave_nodes(nodes.nodes, state.running[place].slot)


@kernel
def pass_and_outlook(state: SiteState, rules: SiteRules, now_ms: Int) -> tuple[int, int, int]:
    """Run a pass; return the number of jobs started, the first estimated end, and the next planned start."""
    rules.run_pass(state, now_ms)
    counters = state.counters[0]
    first_end_ms = state.running[0].end_ms if counters.n_running > 0 else NEVER_MS
    return counters.n_started, first_end_ms, counters.next_start_ms


@kernel_part
def job_ended(state: SiteState, rules: SiteRules, end_ms: Int, job_id: Int, now_ms: Int) -> bool:
    """Remove a job that has ended, found by estimated end and id; return whether the job was running."""
    place = running_place(state, end_ms, job_id)
    if place == NO_PLACE:
        return False
    rules.ended(state, place, end_ms, now_ms)
    finish(state, place)
    return True


@kernel
def job_arrived(
    state: SiteState,
    rules: SiteRules,
    slot: Int,
    key: float,
    submit_ms: Int,
    job_id: Int,
    width: Int,
    estimate_ms: Int,
    limits: Int,
) -> None:
    """Fill a slot with a job, and insert the job into the queue."""
    job = state.jobs[slot]
    job.key = key
    job.submit_ms = submit_ms
    job.job_id = job_id
    job.width = width
    job.estimate_ms = estimate_ms
    job.limits = limits
    rules.submitted(state, slot)


@kernel
def job_withdrawn(state: SiteState, rules: SiteRules, place: Int) -> None:
    """Remove a waiting job from the queue."""
    state.counters[0].n_blocks = 0
    rules.withdrawn(state, place)
    dequeue(state, place)


class Evictions(NamedTuple):
    """The evictions of the last pass, and totals over all passes.

    Attributes
    ----------
    slots : numpy.ndarray of int64, shape (capacity,)
        Slots of the jobs evicted by the last pass, in order.
    keeps_work : numpy.ndarray of bool, shape (capacity,)
        Whether each of these jobs will resume from its checkpoint.
    counts : numpy.ndarray of int64, shape (2,)
        Number of evictions in the last pass and in total.
    lost_node_ms : numpy.ndarray of float64, shape (1,)
        Node time spent on jobs that have to start over.
    """

    slots: npt.NDArray[np.int64]
    keeps_work: npt.NDArray[np.bool_]
    counts: npt.NDArray[np.int64]
    lost_node_ms: npt.NDArray[np.float64]


def no_evictions(capacity: int) -> Evictions:
    """Return an empty list of evictions with this capacity."""
    return Evictions(np.zeros(capacity, np.int64), np.zeros(capacity, np.bool_), np.zeros(2, np.int64), np.zeros(1))


@kernel_part
def evict(state: SiteState, evictions: Evictions, place: Int, keeps_work: bool, now_ms: Int) -> None:
    """Remove the running job at index `place` from its nodes, without adding it to the queue.

    If the job keeps its work, its estimate is reduced to the remaining time.
    """
    counters = state.counters[0]
    end_ms = state.running[place].end_ms
    slot = leave_running(state, place)
    job = state.jobs[slot]
    counters.free += job.width
    counters.stale = REPLAN
    done_ms = now_ms - (end_ms - job.estimate_ms)
    if keeps_work:
        job.estimate_ms -= done_ms
    else:
        evictions.lost_node_ms[0] += done_ms * job.width
    evictions.slots[evictions.counts[0]] = slot
    evictions.keeps_work[evictions.counts[0]] = keeps_work
    evictions.counts[0] += 1
    evictions.counts[1] += 1


class RateRules(Protocol):
    """A discipline whose jobs change rates; all methods are decorated with `gridweave.jit.kernel_method`.

    ``state`` belongs to the discipline. It must have ``jobs``, a table with the field ``submit_ms`` and one row per job
    in order of submission, and ``counters``, a table with one row.
    """

    def wakeup_ms(self, state: Any) -> Int:
        """Return the next time at which a pass is needed without an event, or `NEVER_MS`."""

    def counted(self, state: Any, now_ms: Int) -> None:
        """Update the totals for the time since the last call; called before every change."""

    def submitted(self, state: Any, row: Int, now_ms: Int) -> None:
        """Insert a row's job into the queue."""

    def withdrawn(self, state: Any, work: WorkTable, run: RunArrays, row: Int, now_ms: Int) -> bool:
        """Remove a row's job if it is waiting; return whether it was waiting."""

    def ended(self, state: Any, run: RunArrays, row: Int, now_ms: Int) -> None:
        """Remove a job that has ended from its nodes; it is no longer in ``work``."""

    def run_pass(self, state: Any, work: WorkTable, run: RunArrays, now_ms: Int) -> None:
        """Run the only pass at this time, record the starts in ``run``, and apply the new rates to ``work``."""


@kernel
def follow_rates(state: Any, work: WorkTable, run: RunArrays, now_ms: Int) -> None:
    """Apply the rates set by a pass to the running work.

    Parameters
    ----------
    state : named tuple
        The first entries of ``changed`` (``n_changed`` in ``counters``) are the rows whose rate may have changed;
        ``jobs`` has their ``rate`` and ``job_id``.
    work : numpy.ndarray of WORK, shape (n,)
    run : RunArrays
    now_ms : int
    """
    for i in range(state.counters[0].n_changed):
        row = state.changed[i]
        job = state.jobs[row]
        if run.start_ms[row] != NOT_YET and run.end_ms[row] == NOT_YET:
            if work[row].rate == NOT_RUNNING:
                begin_work(run.ends, work, row, job.job_id, work_of(run.run_ms[row]), job.rate, now_ms)
            elif work[row].rate != job.rate:
                change_rate(run.ends, work, row, job.rate, now_ms)


@kernel
def startable_behind_queue(state: SiteState, queue: QueueCodes, now_ms: Int, length_ms: Int) -> Int:
    """Return how many nodes a job of this length could get now at the end of a queue without promises.

    Parameters
    ----------
    state : SiteState
        Read only, after a pass.
    queue : QueueCodes
    now_ms, length_ms : int
    """
    free = state.counters[0].free
    if state.counters[0].n_waiting == 0:
        return free
    if not queue.backfills:
        return 0
    head = state.jobs[state.waiting[0]]
    limit_ms, _ = head_limit(state, head, queue.slack)
    extra = free_at(state, limit_ms) - head.width
    return max(0, spare_nodes(length_ms, now_ms, free, limit_ms, extra))


@kernel
def start_behind_queue(state: SiteState, plan: Plan, backfills: bool, now_ms: Int, width: Int, length_ms: Int) -> Int:
    """Return when a job could start behind the whole queue if the queue were planned and all estimates were exact.

    Parameters
    ----------
    state : SiteState
        Read only.
    plan : Plan
        Scratch arrays with one profile.
    backfills : bool
        Whether a job may start before the job ahead of it.
    now_ms, width, length_ms : int
    """
    rebuild(state, plan, None, None, now_ms, HEAD)
    from_ms = now_ms
    for place in range(state.counters[0].n_waiting):
        job = state.jobs[state.waiting[place]]
        start_ms = earliest_start(plan, None, None, HEAD, from_ms, job.width, job.estimate_ms, job.limits)
        occupy_plan(plan, None, start_ms, start_ms + job.estimate_ms, job.width, job.limits, TAKE)
        if not backfills:
            from_ms = start_ms
    return earliest_start(plan, None, None, HEAD, from_ms, width, length_ms, NO_LIMITS)


@kernel
def free_throughout(plan: Plan, from_ms: Int, to_ms: Int) -> Int:
    """Return the minimum number of free nodes in a plan between two times."""
    free = plan.total[0]
    for i in range(plan.n_steps[0]):
        until_ms = plan.step_ms[0, i + 1] if i + 1 < plan.n_steps[0] else to_ms
        if until_ms > from_ms and plan.step_ms[0, i] < to_ms:
            free = min(free, plan.step_free[0, i])
    return free

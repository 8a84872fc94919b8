"""The arrays of a fractional site, and the functions that add, place and remove jobs (docs/fractional.md).

A job has *tasks*, each of which runs on one node; a node may run several tasks. A job's tasks with the same CPU need
and memory form a *group*; most jobs have one group. Needs and memory are integers in millionths of a node (`UNIT`), and
yields are rates (`gridweave.site.kernels.work`), so all sums are exact. A job's *slot* is its row in the job table. Its
groups are consecutive rows of the group table, and its tasks are consecutive entries of the pools.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gridweave.jit import Int, Ints, Record, Records, kernel, kernel_part
from gridweave.site.kernels.state import NEVER_MS

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

SHARE_ONE = 1_000
"""The share of a job with weight 1; a job with twice the share gets twice the yield."""

ABSENT, WAITS, RUNS, PAUSED = np.int64(0), np.int64(1), np.int64(2), np.int64(3)
"""Status of a job: not at the site, waiting to start, running on nodes, or started but currently without nodes."""

FRACTIONAL_JOB = np.dtype(
    [
        *((name, np.int64) for name in ("submit_ms", "job_id", "width", "estimate_ms")),
        *((name, np.int64) for name in ("weight", "share", "first", "first_group", "end_group")),
        *((name, np.int64) for name in ("status", "virtual", "since_ms", "yield_", "rate", "pays_until_ms")),
        *((name, np.int64) for name in ("start_ms", "preempted", "migrated", "moved")),
        # Used during a pass.
        *((name, np.int64) for name in ("ran", "pinned", "new_yield", "place", "out", "changed_place")),
        ("priority", np.float64),
    ],
    align=True,
)
"""A job.

``share`` is its ``weight`` in thousandths, or less if the job has run for a long time. Its tasks begin at ``first`` in
the pools, and its groups are the rows ``first_group`` to ``end_group - 1``. ``virtual`` is its virtual time, as work
(`gridweave.site.kernels.work`), at ``since_ms``. Since then, the job has been running at ``rate``, which is its
``yield_``, or 0 until ``pays_until_ms`` as the penalty for a pause or a move. ``moved`` is the memory of tasks that
were moved, saved or restored, in millionths of a node.

Used during a pass: whether the job ``ran`` before the pass, whether it is ``pinned`` to its nodes, its ``new_yield``,
its index in ``here`` (``place``), whether it is left ``out`` of the packing, and whether its nodes have changed.
"""

GROUP = np.dtype([(name, np.int64) for name in ("need", "memory", "count", "first", "cpu_need", "left")], align=True)
"""A group of ``count`` identical tasks, from ``first`` on in the pools; ``need`` and ``memory`` are per task.

Used during packing: the CPU that a task needs (``cpu_need``), and the number of tasks ``left`` to place.
"""

NODE = np.dtype(
    [(name, np.int64) for name in ("load", "memory", "cpu_left", "memory_left", "sum", "frozen")], align=True
)
"""A node: the sums of its tasks' CPU needs (``load``) and ``memory``; other fields are only used during a pass."""

COUNTERS = np.dtype(
    [
        *((name, np.int64) for name in ("n_here", "n_new", "n_started", "n_changed", "n_pool", "n_groups")),
        *((name, np.int64) for name in ("ended", "next_wake_ms", "next_period_ms", "n_listed", "n_cpu", "n_memory")),
    ],
    align=True,
)


class FractionalSite(NamedTuple):
    """The arrays of a fractional site.

    Attributes
    ----------
    jobs : numpy.ndarray of FRACTIONAL_JOB, shape (slots,)
    groups : numpy.ndarray of GROUP, shape (groups,)
        A job's groups are sorted by descending memory, then by descending CPU need, and are all different.
    nodes : numpy.ndarray of NODE, shape (nodes,)
    tasks, before, trial : numpy.ndarray of int64, shape (pool,)
        The node of each task now, before the pass, and in a trial packing; ascending within a group.
    here : numpy.ndarray of int64, shape (slots,)
        Slots of the jobs at the site, in submit order; the first ``counters.n_here`` entries are valid.
    started, changed : numpy.ndarray of int64, shape (slots,)
        Slots of jobs that the last pass started for the first time, and of jobs whose rate it may have changed.
    order : numpy.ndarray of int64, shape (slots,)
        Scratch space: slots sorted by priority.
    listed, by_cpu, by_memory : numpy.ndarray of int64, shape (groups,)
        Scratch space: the groups to pack, in submit order, and the two lists of MCB8.
    counters : numpy.ndarray of COUNTERS, shape (1,)
    """

    jobs: Records
    groups: Records
    nodes: Records
    tasks: Ints
    before: Ints
    trial: Ints
    here: Ints
    started: Ints
    changed: Ints
    order: Ints
    listed: Ints
    by_cpu: Ints
    by_memory: Ints
    counters: Records


def empty_fractional(nodes: int, *, slots: int, groups: int, pool: int) -> FractionalSite:
    """Return an idle site with space for ``slots`` jobs that have ``groups`` groups and ``pool`` tasks in total."""
    here, started, changed, order = (np.zeros(slots, np.int64) for _ in range(4))
    listed, by_cpu, by_memory = (np.zeros(groups, np.int64) for _ in range(3))
    tasks, before, trial = (np.zeros(pool, np.int64) for _ in range(3))
    counters = np.zeros(1, COUNTERS)
    counters["next_wake_ms"] = counters["next_period_ms"] = NEVER_MS
    return FractionalSite(
        jobs=np.zeros(slots, FRACTIONAL_JOB),
        groups=np.zeros(groups, GROUP),
        nodes=np.zeros(nodes, NODE),
        tasks=tasks,
        before=before,
        trial=trial,
        here=here,
        started=started,
        changed=changed,
        order=order,
        listed=listed,
        by_cpu=by_cpu,
        by_memory=by_memory,
        counters=counters,
    )


@kernel
def fractional_submitted(state: FractionalSite, slot: Int) -> None:
    """Add a new job to the site; the caller must have filled in its row, except for the status, and its groups.

    Parameters
    ----------
    state : FractionalSite
    slot : int
        The pools must have space for the job's tasks from ``first`` on.
    """
    counters = state.counters[0]
    state.jobs[slot].status = WAITS
    state.jobs[slot].since_ms = state.jobs[slot].submit_ms
    state.here[counters.n_here] = slot
    counters.n_here += 1
    counters.n_new += 1


@kernel
def fractional_left(state: FractionalSite, slot: Int) -> None:
    """Remove a job that has ended or was withdrawn.

    Parameters
    ----------
    state : FractionalSite
    slot : int
        The slot of a job at the site.
    """
    counters = state.counters[0]
    if state.jobs[slot].status == RUNS:
        take_off(state, slot)
        counters.ended = 1
    state.jobs[slot].status = ABSENT
    state.jobs[slot].rate = 0
    place = 0
    while state.here[place] != slot:
        place += 1
    if place >= counters.n_here - counters.n_new:
        counters.n_new -= 1
    counters.n_here -= 1
    for i in range(place, counters.n_here):
        state.here[i] = state.here[i + 1]


@kernel_part
def take_off(state: FractionalSite, slot: Int) -> None:
    """Remove a running job from its nodes; it is then paused, or waiting if it had not started."""
    job = state.jobs[slot]
    count_tasks(state, slot, job.first + job.width, -1)
    job.status = PAUSED if job.start_ms >= 0 else WAITS


@kernel_part
def put_back(state: FractionalSite, slot: Int) -> None:
    """Place a job on the nodes in ``tasks`` and mark it as running."""
    job = state.jobs[slot]
    count_tasks(state, slot, job.first + job.width, 1)
    job.status = RUNS


@kernel_part
def put_on(state: FractionalSite, slot: Int) -> None:
    """Copy a job's nodes from ``trial`` to ``tasks``, and place the job on them."""
    job = state.jobs[slot]
    for task in range(job.first, job.first + job.width):
        state.tasks[task] = state.trial[task]
    put_back(state, slot)


@kernel_part
def count_tasks(state: FractionalSite, slot: Int, end: Int, times: Int) -> None:
    """Add each task's needs times ``times`` to its node, for a job's tasks before index ``end`` of the pool."""
    job = state.jobs[slot]
    for number in range(job.first_group, job.end_group):
        group = state.groups[number]
        need, memory = times * group.need, times * group.memory
        for task in range(group.first, min(end, group.first + group.count)):
            node = state.nodes[state.tasks[task]]
            node.load += need
            node.memory += memory


@kernel
def advance(state: FractionalSite, long_ms: Int, now_ms: Int) -> None:
    """Update the virtual times, shares and priorities of all jobs; the priority is share x flow / (virtual time)^2.

    Source: Stillwell, section 4.1. A job without virtual time has infinite priority. Above the virtual time ``long_ms``
    (0: never), a job's share is inversely proportional to its virtual time. The paper suggests such a bound in
    section 6.
    """
    for place in range(state.counters[0].n_here):
        job = state.jobs[state.here[place]]
        job.virtual += job.rate * (now_ms - job.since_ms)
        job.since_ms = now_ms
        job.share = job.weight
        if long_ms > 0 and job.virtual >> 16 > long_ms:
            job.share = max(1, job.weight * long_ms // (job.virtual >> 16))
        if job.virtual == 0:
            job.priority = np.inf
        else:
            virtual_ms = job.virtual / 65536.0
            job.priority = (now_ms - job.submit_ms) * (job.share / 1000.0) / (virtual_ms * virtual_ms)


@kernel_part
def goes_before(job: Record, one_place: Int, other: Record, other_place: Int) -> bool:
    """Whether ``job`` has higher priority than ``other`` (ties: the job submitted first)."""
    return job.priority > other.priority or (job.priority == other.priority and one_place < other_place)

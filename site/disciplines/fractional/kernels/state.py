"""The arrays of a site that gives jobs fractions of nodes, and how jobs enter, run and leave (docs/fractional.md).

A job is so many *tasks*, each on some node, several perhaps on one. Those that have the same CPU need and the same
memory requirement are a *group*; most jobs have one. Needs and requirements are whole millionths of a node (`UNIT`),
yields are rates (work.py), so that nothing is rounded when they are summed: a node is full or it is not. A job's *slot*
is its row in the table of jobs, as everywhere; its groups are rows of a table of their own, one after the other, and so
are its tasks in the pools.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gridweave.jit import Int, Ints, Record, Records, kernel, kernel_part
from gridweave.site.kernels.state import NEVER_MS

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

SHARE_ONE = 1_000
"""The share of a job that is to have the same yield as others: twice that, twice their yield."""

ABSENT, WAITS, RUNS, PAUSED = np.int64(0), np.int64(1), np.int64(2), np.int64(3)
"""Status of a job: not here; not started yet; with its tasks on nodes; started, and now on none."""

FRACTIONAL_JOB = np.dtype(
    [
        *((name, np.int64) for name in ("submit_ms", "job_id", "width", "estimate_ms")),
        *((name, np.int64) for name in ("weight", "share", "first", "first_group", "end_group")),
        *((name, np.int64) for name in ("status", "virtual", "since_ms", "yield_", "rate", "pays_until_ms")),
        *((name, np.int64) for name in ("start_ms", "preempted", "migrated", "moved")),
        # Of the pass that goes on.
        *((name, np.int64) for name in ("ran", "pinned", "found", "place", "out", "changed_place")),
        ("priority", np.float64),
    ],
    align=True,
)
"""What a site knows of a job.

``share`` of the CPU is its ``weight``, in thousandths, or less if the job has run for long; ``first`` is where its
tasks begin in the pools of tasks, and its groups are those from ``first_group`` until before ``end_group``.
``virtual`` is its virtual time as work done (work.py), as of ``since_ms``, since when it runs at ``rate``: its
``yield_``, or 0 while it pays for having been paused or moved, ``pays_until_ms``. ``moved`` is the memory of tasks
that were moved, saved or brought back.

In a pass: whether it ``ran`` before it, is ``pinned`` to its nodes, the yield that was ``found`` for it, its ``place``
among the jobs that are here, and whether it is ``out`` of the packing.
"""

GROUP = np.dtype([(name, np.int64) for name in ("need", "memory", "count", "first", "wanted", "left")], align=True)
"""Tasks of a job that are alike: ``count`` of them, from ``first`` on in the pools; ``need`` and ``memory`` are of one.

In a packing: the CPU ``wanted`` for a task, and how many are ``left`` to be placed.
"""

NODE = np.dtype(
    [(name, np.int64) for name in ("load", "memory", "cpu_left", "memory_left", "sum", "frozen")], align=True
)
"""A node: the CPU ``load`` (sum of needs) and ``memory`` of the tasks on it; the rest is of the pass that goes on."""

COUNTERS = np.dtype(
    [
        *((name, np.int64) for name in ("n_here", "n_new", "n_started", "n_changed", "n_pool", "n_groups")),
        *((name, np.int64) for name in ("ended", "next_wake_ms", "next_period_ms", "n_listed", "n_cpu", "n_memory")),
    ],
    align=True,
)


class FractionalSite(NamedTuple):
    """A site that gives jobs fractions of nodes.

    Attributes
    ----------
    jobs : numpy.ndarray of FRACTIONAL_JOB, shape (slots,)
    groups : numpy.ndarray of GROUP, shape (groups,)
        Those of a job by falling memory, then by falling need, no two alike.
    nodes : numpy.ndarray of NODE, shape (nodes,)
    tasks, before, trial : numpy.ndarray of int64, shape (pool,)
        The node of each task, ascending within a group: as it is, as it was before the pass, and as it might be.
    here : numpy.ndarray of int64, shape (slots,)
        Slots of the jobs that are here, in the order of submission; ``counters.n_here`` of them.
    started, changed : numpy.ndarray of int64, shape (slots,)
        Slots of the jobs that the last pass started for the first time, and whose rate may have changed.
    order : numpy.ndarray of int64, shape (slots,)
        Scratch: slots in some order.
    listed, by_cpu, by_memory : numpy.ndarray of int64, shape (groups,)
        Scratch: the groups that are packed, in the order of submission, and the two lists of them.
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
    """Return a site without jobs, with room for so many jobs, and for so many groups and tasks (``pool``) of theirs."""
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
    """Take in a job whose row, and whose groups, are filled in but for its status.

    Parameters
    ----------
    state : FractionalSite
    slot : int
        Its tasks have room from ``first`` on in the pools.
    """
    counters = state.counters[0]
    state.jobs[slot].status = WAITS
    state.jobs[slot].since_ms = state.jobs[slot].submit_ms
    state.here[counters.n_here] = slot
    counters.n_here += 1
    counters.n_new += 1


@kernel
def fractional_left(state: FractionalSite, slot: Int) -> None:
    """Take out a job that has ended, or does no longer wait.

    Parameters
    ----------
    state : FractionalSite
    slot : int
        Of a job that is here.
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
    """Take the tasks of a running job off their nodes."""
    job = state.jobs[slot]
    count_tasks(state, slot, job.first + job.width, -1)
    job.status = PAUSED if job.start_ms >= 0 else WAITS


@kernel_part
def put_back(state: FractionalSite, slot: Int) -> None:
    """Put the tasks of a job on the nodes that ``tasks`` names."""
    job = state.jobs[slot]
    count_tasks(state, slot, job.first + job.width, 1)
    job.status = RUNS


@kernel_part
def put_on(state: FractionalSite, slot: Int) -> None:
    """Put the tasks of a job on the nodes that ``trial`` names, which are then those in ``tasks``."""
    job = state.jobs[slot]
    for task in range(job.first, job.first + job.width):
        state.tasks[task] = state.trial[task]
    put_back(state, slot)


@kernel_part
def count_tasks(state: FractionalSite, slot: Int, end: Int, times: Int) -> None:
    """Add what the tasks of a job that stand before ``end`` in the pool need to their nodes, so many times."""
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
    """Count the virtual time of all jobs until now, and find their priorities: flow time / (virtual time)^2.

    Source: Stillwell, section 4.1. A job without virtual time has an infinite priority. The share of one with more
    virtual time than ``long_ms`` falls as its inverse; 0 is no such bound (section 6 asks for one).
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
def goes_before(one: Record, one_place: Int, other: Record, other_place: Int) -> bool:
    """Whether a job has the higher priority; of two alike it is the one that was submitted first."""
    return one.priority > other.priority or (one.priority == other.priority and one_place < other_place)

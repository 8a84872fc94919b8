"""Groups of identical tasks within a job, stored as rows of the table that the kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gridweave.jit import Ints
from gridweave.site.disciplines.fractional.kernels.greedy import place_greedily
from gridweave.site.disciplines.fractional.kernels.packing import Remapping, pack
from gridweave.site.disciplines.fractional.kernels.state import SHARE_ONE, FractionalSite, empty_fractional
from gridweave.site.job import TaskGroup
from gridweave.site.kernels.parts import UNIT, parts_of_node


class TaskGroups(NamedTuple):
    """Groups of identical tasks, as arrays of shape (groups,).

    Attributes
    ----------
    job : numpy.ndarray of int64
        The group's job, as a row number in other tables; ascending.
    tasks : numpy.ndarray of int64
        Number of tasks.
    need, memory : numpy.ndarray of int64
        CPU and memory needs of one task, in millionths of a node.
    """

    job: Ints
    tasks: Ints
    need: Ints
    memory: Ints

    def of(self, job: int) -> TaskGroups:
        """Return the groups of one job, with ``job`` set to 0."""
        first, end = np.searchsorted(self.job, (job, job + 1))
        return TaskGroups(self.job[first:end] - job, *(column[first:end] for column in self[1:]))


def merged(groups: TaskGroups) -> TaskGroups:
    """Sort groups by job, descending memory and descending CPU need, and merge identical groups within a job.

    This makes decisions independent of the order of a job's groups, and of how identical tasks are divided into groups.

    Examples
    --------
    >>> groups = TaskGroups(*np.array([[0, 0, 0], [1, 2, 4], [50, 90, 50], [10, 20, 10]]))
    >>> merged(groups)[1:]
    (array([2, 5]), array([90, 50]), array([20, 10]))
    """
    if len(groups.job) > 1:
        order = np.lexsort((-groups.need, -groups.memory, groups.job))
        groups = TaskGroups(*(column[order] for column in groups))
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (np.diff(groups.job) != 0) | (np.diff(groups.memory) != 0) | (np.diff(groups.need) != 0)
        first = np.flatnonzero(is_new)
        count = np.add.reduceat(groups.tasks, first)
        groups = TaskGroups(groups.job[first], count, groups.need[first], groups.memory[first])
    return groups


def groups_of_job(task_groups: Sequence[TaskGroup]) -> TaskGroups:
    """Return the merged groups of one job, with ``job`` set to 0."""
    count, need, memory = ([getattr(group, name) for group in task_groups] for name in ("tasks", "cpu_need", "memory"))
    zeros = np.zeros(len(task_groups), np.int64)
    return merged(TaskGroups(zeros, np.array(count, np.int64), parts_of_node(need), parts_of_node(memory)))


def enter_groups(state: FractionalSite, slots: Ints, groups: TaskGroups, first_group: int, first: int) -> None:
    """Write groups to a site's group table, and the positions of the groups and their tasks to the site's job table.

    The groups are written to the rows from ``first_group`` on, and their tasks occupy the pools from ``first`` on.
    ``slots[k]`` is the slot of job k in ``groups``.
    """
    counts = np.bincount(groups.job, minlength=len(slots))
    end = first_group + np.cumsum(counts)
    state.jobs["first_group"][slots], state.jobs["end_group"][slots] = end - counts, end
    rows = state.groups[first_group : first_group + len(groups.job)]
    rows["count"], rows["need"], rows["memory"] = groups[1:]
    rows["first"] = first + np.cumsum(groups.tasks) - groups.tasks
    state.jobs["first"][slots] = rows["first"][end - counts - first_group]


def why_too_large(groups: TaskGroups, nodes: int) -> str | None:
    """Return the reason why the tasks of one job do not fit on ``nodes`` idle nodes; None if they fit."""
    width = int(groups.tasks.sum())
    most = nodes * (UNIT // groups.memory)
    if len(groups.job) == 1:
        too_many = width > most[0]
        return f"it has {width} tasks, and the memory of this site fits only {most[0]} of them" if too_many else None
    if (groups.tasks <= most).all() and _fits_idle(groups, nodes):
        return None
    return f"it has {width} different tasks, which do not all fit into the memory of this site"


def _fits_idle(groups: TaskGroups, nodes: int) -> bool:
    """Whether Greedy and also MCB8, at minimum yield, can place a job on idle nodes; if not, it might never start."""
    state = empty_fractional(nodes, slots=1, groups=len(groups.job), pool=int(groups.tasks.sum()))
    state.jobs["width"], state.jobs["share"], state.jobs["start_ms"] = groups.tasks.sum(), SHARE_ONE, -1
    state.counters["n_here"] = 1
    enter_groups(state, np.zeros(1, np.int64), groups, 0, 0)
    zero = np.int64(0)
    return bool(place_greedily(state, zero) and pack(state, Remapping(zero, zero, zero), np.int64(1), zero))

"""Fractions of a node as integers, so that sums are exact, and the workload columns with the needs of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

UNIT = 1_000_000
"""A node's whole CPU or memory, in millionths."""


def parts_of_node(fractions: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Convert fractions of a node to millionths, rounded up so that a node is never overcommitted.

    Examples
    --------
    >>> parts_of_node([0.1, 1 / 3, 1]).tolist()
    [100000, 333334, 1000000]
    """
    exact = np.asarray(fractions, np.float64) * UNIT
    near = np.rint(exact)
    return np.where(np.abs(exact - near) < 1e-6, near, np.ceil(exact)).astype(np.int64)


MOST_GROUPS = 4
"""Maximum number of task groups per job in a workload."""

GROUP_COLUMNS = tuple((f"tasks_{k}", f"cpu_need_{k}", f"memory_fraction_{k}") for k in range(2, MOST_GROUPS + 1))
"""Columns of each group after the first: number of tasks (0: no group), and the CPU and memory needs of one task."""


class NeedsOfTasks(NamedTuple):
    """Groups of identical tasks, in arrays of shape (groups,).

    Attributes
    ----------
    row : numpy.ndarray of int64
        Row of the group's job, ascending.
    tasks : numpy.ndarray of int64
        Number of tasks in the group.
    cpu, memory : numpy.ndarray of float64
        Needs of one task, as fractions of a node.
    """

    row: npt.NDArray[np.int64]
    tasks: npt.NDArray[np.int64]
    cpu: npt.NDArray[np.float64]
    memory: npt.NDArray[np.float64]


def needs_in_columns(width: npt.NDArray[np.int64], columns: Mapping[str, npt.NDArray[Any]]) -> NeedsOfTasks:
    """Return the task groups of all jobs in a workload.

    Parameters
    ----------
    width : numpy.ndarray of int64, shape (n,)
        Number of tasks of each job.
    columns : mapping from str to numpy.ndarray, shape (n,)
        ``cpu_need`` and ``memory_fraction`` describe the first group, which contains all tasks that are in none of the
        groups of `GROUP_COLUMNS`. If a column is missing, each task needs a whole node.

    Examples
    --------
    >>> rows = {"memory_fraction": [0.5, 0.1], "tasks_2": [3, 0], "cpu_need_2": [0.5, 0], "memory_fraction_2": [0.2, 0]}
    >>> needs = needs_in_columns(np.array([4, 2]), {name: np.array(values) for name, values in rows.items()})
    >>> [column.tolist() for column in needs]
    [[0, 0, 1], [1, 3, 2], [1.0, 0.5, 1.0], [0.5, 0.2, 0.1]]
    """
    rows, ones = np.arange(len(width)), np.ones(len(width))
    first = width.copy()
    parts = [(rows, first, columns.get("cpu_need", ones), columns.get("memory_fraction", ones))]
    for names in GROUP_COLUMNS:
        if names[0] in columns:
            tasks, cpu, memory = (columns[name] for name in names)
            first -= tasks
            has = tasks > 0
            parts.append((rows[has], tasks[has], cpu[has], memory[has]))
    if len(parts) == 1:
        return NeedsOfTasks(*parts[0])
    joined = [np.concatenate(columns_of_groups) for columns_of_groups in zip(*parts, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    return NeedsOfTasks(*(column[order] for column in joined))

"""Parts of a node as whole numbers, so that nothing is rounded when they are summed: a node is full or it is not.

And how the columns of a workload tell which parts the tasks of its jobs need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

UNIT = 1_000_000
"""All of a node's CPU, or all of its memory."""


def parts_of_node(fractions: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return fractions of a node as whole millionths; what is between two is rounded up, so that no node is overfull.

    Examples
    --------
    >>> parts_of_node([0.1, 1 / 3, 1]).tolist()
    [100000, 333334, 1000000]
    """
    exact = np.asarray(fractions, np.float64) * UNIT
    near = np.rint(exact)
    return np.where(np.abs(exact - near) < 1e-6, near, np.ceil(exact)).astype(np.int64)


MOST_GROUPS = 4
"""Groups of tasks that the columns of a workload can tell apart in a job."""

GROUP_COLUMNS = tuple((f"tasks_{k}", f"cpu_need_{k}", f"memory_fraction_{k}") for k in range(2, MOST_GROUPS + 1))
"""How many tasks a job has in each group behind the first, 0 if it has none, and what one of them needs."""


class NeedsOfTasks(NamedTuple):
    """Groups of tasks that are alike: whose they are, how many, and what one of them needs; arrays of shape (groups,).

    Attributes
    ----------
    row : numpy.ndarray of int64
        The row of their job; ascending.
    tasks : numpy.ndarray of int64
        How many.
    cpu, memory : numpy.ndarray of float64
        Parts of a node.
    """

    row: npt.NDArray[np.int64]
    tasks: npt.NDArray[np.int64]
    cpu: npt.NDArray[np.float64]
    memory: npt.NDArray[np.float64]


def needs_in_columns(width: npt.NDArray[np.int64], columns: Mapping[str, npt.NDArray[Any]]) -> NeedsOfTasks:
    """Return the groups of tasks of all jobs of a workload.

    Parameters
    ----------
    width : numpy.ndarray of int64, shape (n,)
        Tasks of each job.
    columns : mapping from str to numpy.ndarray, shape (n,)
        ``cpu_need`` and ``memory_fraction`` are of the first group, to which all tasks belong that are in none of
        `GROUP_COLUMNS`; all of a node where they are missing.

    Examples
    --------
    >>> told = {"memory_fraction": [0.5, 0.1], "tasks_2": [3, 0], "cpu_need_2": [0.5, 0], "memory_fraction_2": [0.2, 0]}
    >>> found = needs_in_columns(np.array([4, 2]), {name: np.array(values) for name, values in told.items()})
    >>> [column.tolist() for column in found]
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
    found = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]
    order = np.argsort(found[0], kind="stable")
    return NeedsOfTasks(*(column[order] for column in found))

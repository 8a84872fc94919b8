"""The needs of a job's tasks: fractions of a node's CPU and memory (docs/fractional.md, "Needs").

The column ``cpu_need`` is the fraction of a node's CPU that a task needs to run at full speed; ``memory_fraction`` is
the fraction of a node's memory that a task occupies. A job's width is its number of tasks. If the tasks differ, these
columns describe the first group of tasks, which needs the most memory, and `GROUP_COLUMNS` describe the other groups.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError, check_known
from gridweave.scenarios.workload.table import MAX_TIME_MS, BoolArray, Workload
from gridweave.scenarios.workload.transform import shrink, with_cancels_moved
from gridweave.site.kernels.parts import GROUP_COLUMNS, NeedsOfTasks, needs_in_columns

NEED_COLUMNS = ("cpu_need", "memory_fraction")

_OF_GROUPS = frozenset(itertools.chain(*GROUP_COLUMNS))

ANNOTATIONS = ("lublin", "hpc2n", "whole", "lublin-root")
"""Methods of assigning needs to jobs that have none."""

SEQUENTIAL_NEED = 0.25
"""CPU need of a single-threaded task on a node with four cores."""

_SMALL_MEMORY, _SMALL_SHARE, _LARGEST = 0.1, 0.55, 10
_HPC2N_CORES = 2

_ROOTED_SHARE, _MEMORY_BESIDE_ROOT = 0.5, 0.25


def needs_of(workload: Workload) -> NeedsOfTasks:
    """Return the task groups of all jobs; a task without needs takes a whole node."""
    return needs_in_columns(workload.width, workload.columns)


def cpu_needs(workload: Workload) -> npt.NDArray[np.float64]:
    """Return the total CPU need of each job, in nodes, as an array of shape (n,)."""
    groups = needs_of(workload)
    needs = np.zeros(len(workload))
    np.add.at(needs, groups.row, groups.cpu * groups.tasks)
    return needs


def with_groups(workload: Workload, groups: NeedsOfTasks) -> Workload:
    """Replace the needs of a workload's jobs, and set each job's width to its number of tasks.

    Parameters
    ----------
    groups : NeedsOfTasks
        One to `MOST_GROUPS` groups per job, ordered by job, and by descending memory within a job.
    """
    count = np.bincount(groups.row, minlength=len(workload))
    group_index = np.arange(len(groups.row)) - (np.cumsum(count) - count)[groups.row]
    columns = _without_groups(workload)
    for group, names in enumerate((("", *NEED_COLUMNS), *GROUP_COLUMNS)):
        in_group = group_index == group
        if group and not in_group.any():
            break
        for name, values in zip(names, groups[1:], strict=True):
            if name:
                columns[name] = np.zeros(len(workload), values.dtype)
                columns[name][groups.row[in_group]] = values[in_group]
    width = np.bincount(groups.row, groups.tasks, minlength=len(workload)).astype(np.int64)
    return workload.replace(width=width, columns=columns)


def _without_groups(workload: Workload) -> dict[str, npt.NDArray[np.generic]]:
    return {name: values for name, values in workload.columns.items() if name not in _OF_GROUPS}


def check_needs(workload: Workload, columns: Iterable[str] = NEED_COLUMNS) -> None:
    """Check the needs of a workload's tasks.

    Raises
    ------
    InputError
        If a column is missing, a need is not in (0, 1], or a job's other groups leave no task for its first group. The
        message names the job and the field.
    """
    for name in columns:
        if name not in workload.columns:
            ways = ", ".join(ANNOTATIONS)
            raise InputError(f"{workload.name}: has no column {name}; assign needs with one of: {ways}")
        _check_above_zero(workload, name, np.ones(len(workload), np.bool_))
    for names in GROUP_COLUMNS:
        if any(name in workload.columns for name in names):
            _check_group(workload, *names)
    groups = needs_of(workload)
    if (groups.tasks < 1).any():
        row = int(groups.row[np.argmax(groups.tasks < 1)])
        problem = f"has {workload.width[row]} tasks, and its other groups leave none for the first group"
        raise InputError(f"{workload.name}: job {workload.job_id[row]}: {problem}")


def _check_above_zero(workload: Workload, name: str, is_asked: BoolArray) -> None:
    values = np.asarray(workload.columns[name])
    workload.refuse(name, is_asked & ~((values > 0) & (values <= 1)), "is not above 0 and up to 1, a node's")


def _check_group(workload: Workload, tasks: str, cpu: str, memory: str) -> None:
    """Check the columns of one group after the first."""
    for name in (tasks, cpu, memory):
        if name not in workload.columns:
            raise InputError(f"{workload.name}: has no column {name}; {tasks}, {cpu} and {memory} go together")
    count = np.asarray(workload.columns[tasks])
    workload.refuse(tasks, count < 0, "is not a number of tasks")
    is_there = count > 0
    for name in (cpu, memory):
        _check_above_zero(workload, name, is_there)
    wrong = is_there & ~(np.asarray(workload.columns[memory]) <= np.asarray(workload.columns["memory_fraction"]))
    if wrong.any():
        problem = f"{memory} is above memory_fraction; the first group must be the one that needs the most"
        raise InputError(f"{workload.name}: job {workload.job_id[int(np.argmax(wrong))]}: {problem}")


def with_needs(workload: Workload, annotation: str, rng: np.random.Generator) -> Workload:
    """Assign CPU and memory needs to the tasks of each job, in the columns `NEED_COLUMNS`.

    The annotation selects the method:

    - "lublin" is for nodes with four cores. A job with one task has one thread; the tasks of other jobs use a whole
      node's CPU. 55% of the jobs need a tenth of a node's memory per task, the rest 20% to 100%.
    - "lublin-root" is the same, except that in half of the jobs with several tasks, every task but the root needs only
      a quarter of the root's memory.
    - "hpc2n" is for nodes with two cores. The memory per processor comes from the columns ``memory_kb`` and
      ``requested_memory_kb`` of the HPC2N trace (-1: unknown). The width becomes the number of tasks: a task has two
      threads if the job's number of processors is even and a node has enough memory for two of them, else one thread.
    - "whole" assigns whole nodes.

    "lublin" draws two numbers per job, "lublin-root" three, and the other methods none. Raises OptionError if the
    annotation is unknown, and InputError if the workload does not have a column that the method needs.
    """
    check_known("needs", annotation, ANNOTATIONS)
    if annotation == "hpc2n":
        return _as_hpc2n(workload)
    count = len(workload)
    need, memory = np.ones(count), np.ones(count)
    if annotation.startswith("lublin"):
        small = rng.random(count) < _SMALL_SHARE
        large = rng.integers(2, _LARGEST + 1, count) / _LARGEST
        need = np.where(workload.width == 1, SEQUENTIAL_NEED, 1.0)
        memory = np.where(small, _SMALL_MEMORY, large)
    annotated = workload.replace(columns={**_without_groups(workload), "cpu_need": need, "memory_fraction": memory})
    return _with_roots(annotated, rng) if annotation == "lublin-root" else annotated


def _with_roots(workload: Workload, rng: np.random.Generator) -> Workload:
    """Reduce the memory need of every task but the first, in a random half of the jobs with several tasks."""
    has_root = (rng.random(len(workload)) < _ROOTED_SHARE) & (workload.width > 1)
    tasks, cpu, memory = GROUP_COLUMNS[0]
    others = {
        tasks: np.where(has_root, workload.width - 1, 0),
        cpu: np.where(has_root, np.asarray(workload.columns["cpu_need"]), 0.0),
        memory: np.where(
            has_root, _MEMORY_BESIDE_ROOT * np.asarray(workload.columns["memory_fraction"], np.float64), 0.0
        ),
    }
    return workload.replace(columns={**workload.columns, **others})


def with_load(workload: Workload, nodes: int, load: float) -> Workload:
    """Scale the times between submissions to reach a given offered load; the first job moves to time zero.

    Parameters
    ----------
    workload : Workload
        Must have at least one job.
    nodes : int
    load : float
        Sum of width x run time over all jobs, divided by nodes x time between the first and the last submission.

    Raises
    ------
    OptionError
        If the load is not above 0, or is so low that a submit time would become too large.
    InputError
        If all jobs are submitted at the same time.
    """
    if not 0 < load < np.inf:
        raise OptionError("load", f"is {load:g}; expected a number above 0")
    first_ms = int(workload.submit_ms[0])
    since_first = with_cancels_moved(workload.replace(submit_ms=workload.submit_ms - first_ms), -first_ms)
    span_ms = int(since_first.submit_ms[-1])
    if not span_ms:
        raise InputError(f"{workload.name}: all jobs are submitted at the same time, so no factor changes their load")
    current_load = float(workload.width @ workload.run_ms.astype(np.float64)) / (nodes * float(span_ms))
    try:
        return shrink(since_first, current_load / load)
    except OptionError:
        problem = f"is {load:g}, so submit times would exceed {MAX_TIME_MS} ms; give a higher load"
        raise OptionError("load", problem) from None


HPC2N_NODE_KB = 2 * 1024 * 1024
"""Memory of a node in the HPC2N cluster: two gigabytes."""


def _as_hpc2n(workload: Workload) -> Workload:
    memory_columns = [
        workload.columns[name] for name in ("memory_kb", "requested_memory_kb") if name in workload.columns
    ]
    if not memory_columns:
        raise InputError(
            f"{workload.name}: has neither memory_kb nor requested_memory_kb, from which the needs of HPC2N are derived"
        )
    part = np.max(memory_columns, axis=0) / HPC2N_NODE_KB
    memory = np.clip(part, _SMALL_MEMORY, 1.0)
    threaded = (workload.width % _HPC2N_CORES == 0) & (memory <= 1 / _HPC2N_CORES)
    columns = {
        **_without_groups(workload),
        "cpu_need": np.where(threaded, 1.0, 1 / _HPC2N_CORES),
        "memory_fraction": np.where(threaded, memory * _HPC2N_CORES, memory),
    }
    width = np.where(threaded, workload.width // _HPC2N_CORES, workload.width)
    return workload.replace(width=width, columns=columns)

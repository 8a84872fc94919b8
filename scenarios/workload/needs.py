"""What the tasks of a job need of a node: a part of its CPU and of its memory (docs/fractional.md, "Needs").

The column ``cpu_need`` is the part of a node's CPU with which a task runs at full speed, ``memory_fraction`` that of
its memory which a task holds. A job's width is then its number of tasks. Where the tasks of a job differ, these are
of its first group of tasks, which needs the most memory, and `GROUP_COLUMNS` tell of the others.
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
"""Ways to give needs to jobs of which none are known."""

SEQUENTIAL_NEED = 0.25
"""CPU need of a task with one thread on a node with four cores."""

_SMALL_MEMORY, _SMALL_SHARE, _LARGEST = 0.1, 0.55, 10
_HPC2N_CORES = 2

_ROOTED_SHARE, _MEMORY_BESIDE_ROOT = 0.5, 0.25


def needs_of(workload: Workload) -> NeedsOfTasks:
    """Return the groups of tasks of all jobs; where nothing is known a task needs all of a node."""
    return needs_in_columns(workload.width, workload.columns)


def cpu_needs(workload: Workload) -> npt.NDArray[np.float64]:
    """Return the CPU that all tasks of each job need together, in nodes, shape (n,)."""
    groups = needs_of(workload)
    found = np.zeros(len(workload))
    np.add.at(found, groups.row, groups.cpu * groups.tasks)
    return found


def with_groups(workload: Workload, groups: NeedsOfTasks) -> Workload:
    """Return a workload whose tasks have these needs, and whose widths are how many there are.

    Parameters
    ----------
    groups : NeedsOfTasks
        By job, and by falling memory within a job: one to `MOST_GROUPS` of each.
    """
    count = np.bincount(groups.row, minlength=len(workload))
    place = np.arange(len(groups.row)) - (np.cumsum(count) - count)[groups.row]
    columns = _without_groups(workload)
    for number, names in enumerate((("", *NEED_COLUMNS), *GROUP_COLUMNS)):
        chosen = place == number
        if number and not chosen.any():
            break
        for name, values in zip(names, groups[1:], strict=True):
            if name:
                columns[name] = np.zeros(len(workload), values.dtype)
                columns[name][groups.row[chosen]] = values[chosen]
    width = np.bincount(groups.row, groups.tasks, minlength=len(workload)).astype(np.int64)
    return workload.replace(width=width, columns=columns)


def _without_groups(workload: Workload) -> dict[str, npt.NDArray[np.generic]]:
    return {name: values for name, values in workload.columns.items() if name not in _OF_GROUPS}


def check_needs(workload: Workload, columns: Iterable[str] = NEED_COLUMNS) -> None:
    """Check that a workload says what its tasks need.

    Raises
    ------
    InputError
        If a column is missing, or a need is not above 0 and up to 1, or groups have more tasks than their job; with the
        job and the field.
    """
    for name in columns:
        if name not in workload.columns:
            ways = ", ".join(ANNOTATIONS)
            raise InputError(f"{workload.name}: has no column {name}; give its tasks needs, by one of: {ways}")
        _check_above_zero(workload, name, np.ones(len(workload), np.bool_))
    for names in GROUP_COLUMNS:
        if any(name in workload.columns for name in names):
            _check_group(workload, *names)
    groups = needs_of(workload)
    if (groups.tasks < 1).any():
        row = int(groups.row[np.argmax(groups.tasks < 1)])
        problem = f"has {workload.width[row]} tasks, and its groups behind the first leave none of them to that"
        raise InputError(f"{workload.name}: job {workload.job_id[row]}: {problem}")


def _check_above_zero(workload: Workload, name: str, is_asked: BoolArray) -> None:
    values = np.asarray(workload.columns[name])
    workload.refuse(name, is_asked & ~((values > 0) & (values <= 1)), "is not above 0 and up to 1, a node's")


def _check_group(workload: Workload, tasks: str, cpu: str, memory: str) -> None:
    """Check the columns of one group behind the first."""
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
        problem = f"{memory} is above memory_fraction; the first group of tasks is the one that needs the most"
        raise InputError(f"{workload.name}: job {workload.job_id[int(np.argmax(wrong))]}: {problem}")


def with_needs(workload: Workload, annotation: str, rng: np.random.Generator) -> Workload:
    """Give the tasks of each job a CPU need and a memory requirement: the columns `NEED_COLUMNS`.

    Which, the annotation says. "lublin" is for nodes with four cores: a job of one task has one thread, and all others
    keep their nodes busy; 55% of the jobs need a tenth of the memory, the others 20% to 100%. "lublin-root": the same,
    but in half of the jobs of several tasks all of these except one, the root, need a quarter of its memory. "hpc2n" is
    for nodes with two cores, as the trace of HPC2N says in ``memory_kb`` and ``requested_memory_kb``, per processor (-1
    is unknown): the width becomes tasks, and two processors of a job of an even number of them, with memory for both on
    one node, are one task of two threads. "whole": all of a node.

    Two numbers are drawn for each job with "lublin", and then another with "lublin-root"; none with the others.
    OptionError if there is no such annotation, InputError if the workload lacks what it needs.
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
    found = workload.replace(columns={**_without_groups(workload), "cpu_need": need, "memory_fraction": memory})
    return _with_roots(found, rng) if annotation == "lublin-root" else found


def _with_roots(workload: Workload, rng: np.random.Generator) -> Workload:
    """Let all tasks but the first of some jobs need less memory than that."""
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
    """Multiply the times between submissions so that the offered load is as given; the first is at time zero.

    Parameters
    ----------
    workload : Workload
        At least one job.
    nodes : int
    load : float
        Sum of tasks x run time, over nodes x time from the first submission to the last.

    Raises
    ------
    OptionError
        If the load is not above 0, or so low that a submit time would become too large.
    InputError
        If all jobs are submitted at once.
    """
    if not 0 < load < np.inf:
        raise OptionError("load", f"is {load:g}; above 0")
    first_ms = int(workload.submit_ms[0])
    since_first = with_cancels_moved(workload.replace(submit_ms=workload.submit_ms - first_ms), -first_ms)
    span_ms = int(since_first.submit_ms[-1])
    if not span_ms:
        raise InputError(f"{workload.name}: all jobs are submitted at once, and no factor changes their load")
    now = float(workload.width @ workload.run_ms.astype(np.float64)) / (nodes * float(span_ms))
    try:
        return shrink(since_first, now / load)
    except OptionError:
        problem = f"is {load:g}, and jobs would come later than {MAX_TIME_MS} ms; give a greater load"
        raise OptionError("load", problem) from None


HPC2N_NODE_KB = 2 * 1024 * 1024
"""Memory of a node of the HPC2N cluster: two gigabytes."""


def _as_hpc2n(workload: Workload) -> Workload:
    known = [workload.columns[name] for name in ("memory_kb", "requested_memory_kb") if name in workload.columns]
    if not known:
        raise InputError(
            f"{workload.name}: does not say how much memory its jobs use, which the needs of HPC2N come from"
        )
    part = np.max(known, axis=0) / HPC2N_NODE_KB
    memory = np.clip(part, _SMALL_MEMORY, 1.0)
    threaded = (workload.width % _HPC2N_CORES == 0) & (memory <= 1 / _HPC2N_CORES)
    columns = {
        **_without_groups(workload),
        "cpu_need": np.where(threaded, 1.0, 1 / _HPC2N_CORES),
        "memory_fraction": np.where(threaded, memory * _HPC2N_CORES, memory),
    }
    width = np.where(threaded, workload.width // _HPC2N_CORES, workload.width)
    return workload.replace(width=width, columns=columns)

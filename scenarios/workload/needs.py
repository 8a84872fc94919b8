"""What the tasks of a job need of a node: a part of its CPU and of its memory (docs/fractional.md, "Needs").

The column ``cpu_need`` is the part of a node's CPU with which a task runs at full speed, ``memory_fraction`` that of
its memory which a task holds. A job's width is then its number of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.workload.table import Workload

NEED_COLUMNS = ("cpu_need", "memory_fraction")

ANNOTATIONS = ("lublin", "hpc2n", "whole")
"""Ways to give needs to jobs of which none are known."""

SEQUENTIAL_NEED = 0.25
"""CPU need of a task with one thread on a node with four cores."""

_SMALL_MEMORY, _SMALL_SHARE, _LARGEST = 0.1, 0.55, 10
_HPC2N_CORES = 2


def cpu_needs(workload: Workload) -> npt.NDArray[np.float64]:
    """Return the CPU need of each job's tasks, shape (n,); all of a node where nothing is known."""
    known = workload.columns.get("cpu_need")
    return np.ones(len(workload)) if known is None else np.asarray(known, np.float64)


def check_needs(workload: Workload, columns: Iterable[str] = NEED_COLUMNS) -> None:
    """Check that a workload says what its tasks need.

    Raises
    ------
    InputError
        If a column is missing, or a need is not above 0 and up to 1; with the job and the field.
    """
    for name in columns:
        values = workload.columns.get(name)
        if values is None:
            ways = ", ".join(ANNOTATIONS)
            raise InputError(f"{workload.name}: has no column {name}; give its tasks needs, by one of: {ways}")
        wrong = ~((np.asarray(values) > 0) & (np.asarray(values) <= 1))
        if wrong.any():
            row = int(np.argmax(wrong))
            problem = f"job {workload.job_id[row]}: {name} {values[row]} is not above 0 and up to 1, a node's"
            raise InputError(f"{workload.name}: {problem}")


def with_needs(workload: Workload, annotation: str, rng: np.random.Generator) -> Workload:
    """Give the tasks of each job a CPU need and a memory requirement.

    Parameters
    ----------
    workload : Workload
        For "hpc2n" with the columns ``memory_kb`` and ``requested_memory_kb``, per processor; -1 is unknown.
    annotation : {"lublin", "hpc2n", "whole"}
        For nodes with four cores: a job of one task has one thread, and all others keep their nodes busy; 55% of the
        jobs need a tenth of the memory, the others 20% to 100%. For nodes with two: as the trace of HPC2N says.
        All of a node.
    rng : numpy.random.Generator
        Two numbers for each job with "lublin", none with the others.

    Returns
    -------
    Workload
        With `NEED_COLUMNS`. With "hpc2n" its width is tasks: two processors of a job of an even number of them, with
        memory for both on one node, are one task of two threads.

    Raises
    ------
    OptionError
        If there is no such annotation.
    InputError
        If the workload lacks what it needs.
    """
    if annotation not in ANNOTATIONS:
        raise OptionError("needs", f"{annotation!r} is not known; one of {', '.join(ANNOTATIONS)}")
    if annotation == "hpc2n":
        return _as_hpc2n(workload)
    count = len(workload)
    need, memory = np.ones(count), np.ones(count)
    if annotation == "lublin":
        small = rng.random(count) < _SMALL_SHARE
        large = rng.integers(2, _LARGEST + 1, count) / _LARGEST
        need = np.where(workload.width == 1, SEQUENTIAL_NEED, 1.0)
        memory = np.where(small, _SMALL_MEMORY, large)
    return workload.replace(columns={**workload.columns, "cpu_need": need, "memory_fraction": memory})


def with_load(workload: Workload, nodes: int, load: float) -> Workload:
    """Multiply the times between submissions so that the offered load is as given.

    Parameters
    ----------
    workload : Workload
    nodes : int
    load : float
        Sum of tasks x run time, over nodes x time from the first submission to the last.

    Raises
    ------
    OptionError
        If the load is not above 0.
    InputError
        If all jobs are submitted at once.
    """
    if not 0 < load < np.inf:
        raise OptionError("load", f"is {load:g}; above 0")
    since_ms = workload.submit_ms - workload.submit_ms[0]
    if not since_ms[-1]:
        raise InputError(f"{workload.name}: all jobs are submitted at once, and no factor changes their load")
    now = float(workload.width @ workload.run_ms.astype(np.float64)) / (nodes * float(since_ms[-1]))
    return workload.replace(submit_ms=np.rint(since_ms * (now / load)).astype(np.int64))


HPC2N_NODE_KB = 2 * 1024 * 1024
"""Memory of a node of the HPC2N cluster: two gigabytes."""


def _as_hpc2n(workload: Workload) -> Workload:
    known = [workload.columns[name] for name in ("memory_kb", "requested_memory_kb") if name in workload.columns]
    if not known:
        raise InputError(f"{workload.name}: does not tell the memory of its jobs, which the needs of HPC2N come from")
    part = np.max(known, axis=0) / HPC2N_NODE_KB
    memory = np.clip(part, _SMALL_MEMORY, 1.0)
    threaded = (workload.width % _HPC2N_CORES == 0) & (memory <= 1 / _HPC2N_CORES)
    columns = {
        **workload.columns,
        "cpu_need": np.where(threaded, 1.0, 1 / _HPC2N_CORES),
        "memory_fraction": np.where(threaded, memory * _HPC2N_CORES, memory),
    }
    width = np.where(threaded, workload.width // _HPC2N_CORES, workload.width)
    return workload.replace(width=width, columns=columns)

"""Home sites of jobs. A job is submitted at its home site, whose index is in the column ``partition``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gridweave.errors import InputError
from gridweave.scenarios.workload.columns import places_by_share
from gridweave.scenarios.workload.table import FIXED_COLUMNS, MS_PER_S, IntArray, Workload
from gridweave.scenarios.workload.transform import with_cancels_moved
from gridweave.site.resources.chunks import Chunk


def assign_homes(
    workload: Workload, home: str | dict[str, float], site_names: list[str], rng: np.random.Generator
) -> Workload:
    """Assign each job a home site, and write the site's index to the column ``partition``.

    With ``round-robin``, job i in submit order gets site i mod S, where S is the number of sites (Streit, section 7.2).
    With ``partition``, the k-th lowest partition number is mapped to the k-th site; InputError if a job has no
    partition, or there are more partitions than sites. With a share for each site, jobs are drawn independently.
    """
    jobs = len(workload)
    if isinstance(home, dict):
        sites = places_by_share({name: home.get(name, 0.0) for name in site_names}, rng.random(jobs))
    elif home == "partition":
        sites = _by_partition(workload, len(site_names))
    else:
        sites = np.arange(jobs) % len(site_names)
    return workload.replace(columns={**workload.columns, "partition": sites})


def home_of(workload: Workload) -> IntArray:
    """Return the index of each job's home site, as assigned by `assign_homes`.

    Returns
    -------
    numpy.ndarray of int64, shape (n,)
    """
    return workload.columns["partition"].astype(np.int64)


def overlap(workloads: Sequence[Workload]) -> bool:
    """Whether all workloads have jobs and recording dates, and all of their recordings have a period in common."""
    starts = [jobs.start_unix_s for jobs in workloads]
    if None in starts or not all(len(jobs) for jobs in workloads):
        return False
    ends = [(jobs.start_unix_s or 0) + int(jobs.submit_ms[-1]) // MS_PER_S for jobs in workloads]
    return max(start or 0 for start in starts) <= min(ends)


_KEPT = ("cancel_ms", "memory_kb", "requested_memory_kb")
"""Optional columns that a merged workload keeps; -1 is the value of jobs without one."""


def of_sites(workloads: Sequence[tuple[int, Workload]], name: str) -> Workload:
    """Merge (site index, workload) pairs; each job's home is its workload's site, and new ids follow the submit order.

    Workloads keep their dates if they `overlap`; otherwise they all start at time 0. Of the optional columns, only
    `_KEPT` and the chunks are kept.
    """
    job_tables = [workload for _, workload in workloads]
    first_s = min(workload.start_unix_s or 0 for workload in job_tables) if overlap(job_tables) else None
    if first_s is not None:
        job_tables = [_later(workload, ((workload.start_unix_s or 0) - first_s) * MS_PER_S) for workload in job_tables]
    fixed = {column: np.concatenate([getattr(workload, column) for workload in job_tables]) for column in FIXED_COLUMNS}
    columns = {"partition": np.repeat([number for number, _ in workloads], [len(workload) for workload in job_tables])}
    for column in _KEPT:
        if any(column in workload.columns for workload in job_tables):
            parts = [workload.columns.get(column, np.full(len(workload), -1)) for workload in job_tables]
            columns[column] = np.concatenate(parts).astype(np.int64)
    chunks: dict[Chunk, int] = {}
    if any(workload.chunks for workload in job_tables):
        columns["chunk"] = np.concatenate([_renumbered(workload, chunks) for workload in job_tables])
    order = np.lexsort((fixed["job_id"], columns["partition"], fixed["submit_ms"]))
    in_order: dict[str, Any] = {column: values[order] for column, values in fixed.items()}
    in_order["job_id"] = np.arange(1, len(order) + 1)
    in_order["columns"] = {column: values[order] for column, values in columns.items()}
    return Workload(**in_order, name=name, start_unix_s=first_s, chunks=tuple(chunks))


def _renumbered(workload: Workload, numbers: dict[Chunk, int]) -> IntArray:
    """Return a workload's column ``chunk`` with indices from ``numbers``; add new chunks to ``numbers``."""
    number = np.array([numbers.setdefault(chunk, len(numbers)) for chunk in workload.chunks] + [-1], np.int64)
    chunk = workload.columns.get("chunk", np.full(len(workload), -1))
    return number[chunk.astype(np.int64)]


def _later(workload: Workload, by_ms: int) -> Workload:
    return with_cancels_moved(workload.replace(submit_ms=workload.submit_ms + by_ms), by_ms)


def _by_partition(workload: Workload, sites: int) -> IntArray:
    if "partition" not in workload.columns or not (home_of(workload) >= 0).any():
        raise InputError("is by partition, but the workload has no partitions")
    partition = home_of(workload)
    numbers = np.unique(partition[partition >= 0])
    missing = int(np.count_nonzero(partition < 0))
    if missing:
        raise InputError(f"is by partition, but {missing} of the jobs have none")
    if len(numbers) > sites:
        raise InputError(f"is by partition, but the workload has {len(numbers)} partitions and there are {sites} sites")
    return np.searchsorted(numbers, partition).astype(np.int64)

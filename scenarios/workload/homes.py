"""At which site each job is submitted: its home, carried in the column ``partition`` as the number of the site."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gridweave.errors import InputError
from gridweave.scenarios.workload.table import MS_PER_S, IntArray, Workload
from gridweave.scenarios.workload.transform import split, split_stride, strided, with_cancels_moved


def assign_homes(
    workload: Workload, home: str | dict[str, float], site_names: list[str], rng: np.random.Generator
) -> Workload:
    """Give each job a home: the number of a site, from 0, in the column ``partition``.

    With ``round-robin``, job i, in order of submission, belongs to site i mod S (Streit, section 7.2). With
    ``partition``, the partitions of the trace, in ascending order of their numbers, are the sites in their order. With
    shares by site, each job is drawn by itself, with a probability in proportion to the share. InputError if the
    workload has no partitions, more of them than there are sites, or jobs of none.
    """
    jobs = len(workload)
    if isinstance(home, dict):
        shares = np.array([home.get(name, 0.0) for name in site_names])
        bounds = np.cumsum(shares / shares.max())
        sites = np.searchsorted(bounds / bounds[-1], rng.random(jobs), side="right")
    elif home == "partition":
        sites = _by_partition(workload, len(site_names))
    else:
        sites = np.arange(jobs) % len(site_names)
    return workload.replace(columns=dict(workload.columns) | {"partition": sites})


def home_of(workload: Workload) -> IntArray:
    """Return the home of each job, as `assign_homes` gave it.

    Returns
    -------
    numpy.ndarray of int64, shape (n,)
    """
    return workload.columns["partition"].astype(np.int64)


def overlap(workloads: Sequence[Workload]) -> bool:
    """Return whether workloads say when they were recorded, and were at one time."""
    starts = [jobs.start_unix_s for jobs in workloads]
    if None in starts or not all(len(jobs) for jobs in workloads):
        return False
    ends = [(jobs.start_unix_s or 0) + int(jobs.submit_ms[-1]) // MS_PER_S for jobs in workloads]
    return max(start or 0 for start in starts) <= min(ends)


def of_sites(workloads: Sequence[tuple[int, Workload]], name: str) -> Workload:
    """Return the jobs of several sites, numbered from 0, each with a workload of its own users, as one, numbered anew.

    Workloads that `overlap` keep their times; otherwise all of them begin at time 0. Of their columns the one that says
    when jobs are cancelled is kept, if any has it.
    """
    jobs = [each for _, each in workloads]
    first_s = min((each.start_unix_s or 0) for each in jobs)
    shift = [((each.start_unix_s or 0) - first_s) * MS_PER_S if overlap(jobs) else 0 for each in jobs]
    moved = [with_cancels_moved(each, late) for each, late in zip(jobs, shift, strict=True)]
    submit_ms = np.concatenate([each.submit_ms + late for each, late in zip(jobs, shift, strict=True)])
    site = np.repeat([number for number, _ in workloads], [len(each) for each in jobs])
    order = np.lexsort((np.concatenate([each.job_id for each in jobs]), site, submit_ms))

    def joined(field: str) -> IntArray:
        return np.concatenate([getattr(each, field) for each in jobs])[order]

    columns = {"partition": site[order]}
    if any("cancel_ms" in each.columns for each in jobs):
        cancels = [each.columns.get("cancel_ms", np.full(len(each), -1)) for each in moved]
        columns["cancel_ms"] = np.concatenate(cancels)[order]
    return Workload(
        job_id=np.arange(1, len(order) + 1),
        submit_ms=submit_ms[order],
        width=joined("width"),
        estimate_ms=joined("estimate_ms"),
        run_ms=joined("run_ms"),
        overran=joined("overran").astype(np.bool_),
        columns=columns,
        name=name,
        start_unix_s=first_s if overlap(jobs) else None,
    )


def split_at_home(workload: Workload, nodes: IntArray) -> Workload:
    """Cut jobs that are wider than their home into parts of its size (Streit, section 7.2, modification 1).

    Parameters
    ----------
    workload : Workload
        With homes.
    nodes : numpy.ndarray of int64, shape (sites,)

    Returns
    -------
    Workload
        The parts are as `gridweave.scenarios.workload.transform.split` makes them, and have the home of their job. All
        ids are multiplied by one number, that of the site where it must be largest.
    """
    home = home_of(workload)
    own = [workload.take(home == site) for site in range(len(nodes))]
    strides = [split_stride(jobs, int(most)) for jobs, most in zip(own, nodes, strict=True)]
    stride = max(strides)
    pieces = []
    for jobs, most, mine in zip(own, nodes, strides, strict=True):
        parts = split(jobs, int(most))
        pieces.append(parts.replace(job_id=_restrided(parts, mine, stride)))
    return _merged(workload, pieces)


def _by_partition(workload: Workload, sites: int) -> IntArray:
    partition = workload.columns.get("partition")
    if partition is None or not (partition.astype(np.int64) >= 0).any():
        raise InputError("is by partition, and the workload has none")
    known = partition[partition.astype(np.int64) >= 0]
    numbers = np.unique(known)
    if len(known) < len(partition):
        raise InputError(f"is by partition, and {len(partition) - len(known)} of the jobs have none")
    if len(numbers) > sites:
        raise InputError(f"is by partition; the workload has {len(numbers)} of them, and there are {sites} sites")
    return np.searchsorted(numbers, partition).astype(np.int64)


def _restrided(workload: Workload, mine: int, stride: int) -> IntArray:
    """Return ids whose parts are numbered in one range for all sites."""
    return strided(workload.name, workload.job_id // mine, stride) + workload.job_id % mine


def _merged(whole: Workload, pieces: list[Workload]) -> Workload:
    """Return the jobs of several workloads, in order of submission."""

    def joined(name: str) -> IntArray:
        return np.concatenate([getattr(piece, name) for piece in pieces])

    order = np.lexsort((joined("job_id"), joined("submit_ms")))
    columns = {name: np.concatenate([piece.columns[name] for piece in pieces])[order] for name in whole.columns}
    fixed = ("job_id", "submit_ms", "width", "estimate_ms", "run_ms", "overran")
    return whole.replace(columns=columns, **{name: joined(name)[order] for name in fixed})

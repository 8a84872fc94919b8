"""The jobs of a workload as messages to cores."""

from __future__ import annotations

from typing import Any

from gridweave.grid.sends import QUIET, JobData, Sends
from gridweave.netmodel.communication import PATTERNS, Communication
from gridweave.scenarios.resources import RESOURCE_COLUMNS
from gridweave.scenarios.workload import IntArray, Workload
from gridweave.site.job import Job, Resources


def job_messages(workload: Workload, rows: IntArray | None = None) -> list[Job]:
    """Return what a user says of each job when it is submitted.

    Parameters
    ----------
    workload : Workload
    rows : numpy.ndarray of int64, shape (k,), optional
        The jobs; all if left out.

    Returns
    -------
    list of Job
        With `Resources` if the workload has the columns of `gridweave.scenarios.resources.assign_resources`.
    """
    workload = workload if rows is None else workload.take(rows)
    columns = {name: values.tolist() for name, values in workload.columns.items()}
    count = len(workload)
    users = columns.get("user", [None] * count)
    priorities = columns.get("priority", [0.0] * count)
    weights = columns.get("weight", [1.0] * count)
    ids, widths, estimates = workload.job_id.tolist(), workload.width.tolist(), workload.estimate_ms.tolist()
    return [
        Job(
            job_id=job_id,
            width=width,
            estimate_ms=estimate_ms,
            user=user,
            priority=float(priority),
            weight=weight,
            resources=resources,
        )
        for job_id, width, estimate_ms, user, priority, weight, resources in zip(
            ids, widths, estimates, users, priorities, weights, _resources(columns, count), strict=True
        )
    ]


def sends_of(workload: Workload) -> list[Sends]:
    """Return what the user says of each job that it sends over the links between sites.

    Parameters
    ----------
    workload : Workload
        With the columns of `gridweave.scenarios.grid_net.communication_of` and ``data_of``; where one of them is
        missing, there is no communication, no input, or no output.

    Returns
    -------
    list of Sends

    Raises
    ------
    OptionError
        If a part of the run time is none.
    """
    count = len(workload)
    talks = [QUIET] * count
    if {"pattern", "communication_fraction", "message_bytes"} <= set(workload.columns):
        names = list(PATTERNS)
        talks = [
            Communication(fraction=fraction, message_bytes=float(n_bytes), pattern=names[pattern])
            for fraction, n_bytes, pattern in zip(
                *(workload.columns[name].tolist() for name in ("communication_fraction", "message_bytes", "pattern")),
                strict=True,
            )
        ]
    moved: list[list[int]] = []
    for what in ("input", "output"):
        names = [f"{what}_bytes", f"{what}_site"]
        known = all(name in workload.columns for name in names)
        moved += [workload.columns[name].tolist() if known else [0] * count for name in names]
    return [
        Sends(talk, JobData(input_bytes=size, input_site=at, output_bytes=out, output_site=to))
        for talk, size, at, out, to in zip(talks, *moved, strict=True)
    ]


def _resources(columns: dict[str, list[Any]], count: int) -> list[Resources] | list[None]:
    if not all(name in columns for name in RESOURCE_COLUMNS[:4]):
        return [None] * count
    parts = [columns[name] for name in RESOURCE_COLUMNS[:4]]
    kinds, caches = (columns.get(name, [0] * count) for name in RESOURCE_COLUMNS[4:])
    messages = columns.get("message_bytes", [None] * count)
    return [
        Resources(
            cpu=cpu,
            network=network,
            disk=disk,
            memory=memory,
            cpu_kind=kind,
            cache_bytes=cache,
            message_bytes=message,
        )
        for cpu, network, disk, memory, kind, cache, message in zip(*parts, kinds, caches, messages, strict=True)
    ]

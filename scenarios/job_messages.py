"""The jobs of a workload as messages to cores."""

from __future__ import annotations

from gridweave.scenarios.workload import IntArray, Workload
from gridweave.site.messages import Job, Resources

_FRACTIONS = ("cpu_fraction", "network_fraction", "disk_fraction", "memory_fraction")


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


def _resources(columns: dict[str, list[float]], count: int) -> list[Resources] | list[None]:
    if not all(name in columns for name in _FRACTIONS):
        return [None] * count
    kinds = columns.get("cpu_kind", [0] * count)
    parts = [columns[name] for name in _FRACTIONS]
    return [
        Resources(cpu=cpu, network=network, disk=disk, memory=memory, cpu_kind=int(kind))
        for cpu, network, disk, memory, kind in zip(*parts, kinds, strict=True)
    ]

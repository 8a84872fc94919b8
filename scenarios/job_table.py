"""Jobs of a workload as the kernels take them: rows of a site's or a grid's table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gridweave.scenarios.workload import IntArray, Workload
from gridweave.site.kernels.order import order_keys


def fill_jobs(
    table: npt.NDArray[np.void], workload: Workload, rows: IntArray, order: str, *, aging_ms: float = np.inf
) -> None:
    """Enter jobs into a table of `gridweave.site.kernels.state.JOB`, one slot each, in the order of submission.

    Parameters
    ----------
    table : numpy.ndarray of JOB, shape (rows,)
        Filled in, but for the limits.
    workload : Workload
    rows : numpy.ndarray of int64
        The jobs to enter.
    order : str
        Of the queue.
    aging_ms : float
        For the order ``priority``.
    """
    for name in ("submit_ms", "job_id", "width", "estimate_ms"):
        table[name] = getattr(workload, name)[rows]
    columns = workload.columns
    table["key"] = order_keys(
        order,
        submit_ms=workload.submit_ms[rows],
        width=workload.width[rows],
        estimate_ms=workload.estimate_ms[rows],
        weight=columns["weight"][rows] if "weight" in columns else 1.0,
        priority=columns["priority"][rows] if "priority" in columns else 0.0,
        aging_ms=aging_ms,
    )

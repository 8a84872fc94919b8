"""What a schedule with levels of priority came to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gridweave.site.disciplines.protocol import Played

COLUMNS = ("level", "evictions")
"""What is told of each job: its level by its priority, from 0, the highest, down; and how often it was evicted."""


def times_by_level(played: Played) -> dict[str, float]:
    """Return the mean time from submission to the end of all jobs and, if there are several levels, of each."""
    job_time_ms = (played.end_ms - played.submit_ms).astype(np.float64)
    level = played.columns["level"]
    found = {"job_time_ms": float(job_time_ms.mean())}
    for number in np.unique(level).astype(int).tolist() if len(np.unique(level)) > 1 else ():
        found[f"job_time_level_{number + 1}_ms"] = float(job_time_ms[level == number].mean())
    return found


def metrics_of(played: Played) -> Mapping[str, float]:
    """Return the metrics of a schedule.

    Returns
    -------
    dict from str to float
        ``job_time_ms``: the mean of the times from submission to the end, and of each level; ``evictions``;
        ``lost_node_ms``: what nodes had worked on jobs that began again.
    """
    told = {"evictions": int(played.totals["evictions"]), "lost_node_ms": played.totals["lost_node_ms"]}
    return times_by_level(played) | told

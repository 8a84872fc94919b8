"""What a workload is told before it is played at a site: its week, and the jobs that can never start."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from gridweave.errors import InputError
from gridweave.scenarios.workload.columns import load_zone
from gridweave.scenarios.workload.table import MS_PER_S, IntArray, Workload
from gridweave.site.policy import SitePolicy


def week_offset_ms(workload: Workload) -> int:
    """Return the local time of a workload's instant zero, as ms since Monday 00:00; 0 if its date is not known.

    Raises
    ------
    InputError
        If the workload's time zone is not known, or its date is beyond the calendar.

    Notes
    -----
    Daylight saving time that begins or ends later in the workload is not followed: a week has 168 hours.
    """
    if workload.start_unix_s is None:
        return 0
    try:
        start = datetime.fromtimestamp(workload.start_unix_s, load_zone(workload.timezone))
    except InputError as error:
        raise InputError(f"{workload.name}: {error}") from None
    except (OverflowError, ValueError, OSError):
        problem = f"{workload.start_unix_s} s since 1970 is beyond the calendar (years 1 to 9999)"
        raise InputError(f"{workload.name}: {problem}") from None
    return (((start.weekday() * 24 + start.hour) * 60 + start.minute) * 60 + start.second) * MS_PER_S


def limit_masks(workload: Workload, policy: SitePolicy) -> IntArray:
    """Return which limits apply to each job, as bit masks."""
    return policy.limit_masks(width=workload.width, estimate_ms=workload.estimate_ms, user=workload.columns.get("user"))


def refusals(workload: Workload, nodes: int, policy: SitePolicy) -> dict[int, str]:
    """Return the jobs that can never start on the site, each with the reason."""
    masks = limit_masks(workload, policy)
    doubtful = np.flatnonzero((workload.width > nodes) | (masks != 0))
    reasons: dict[tuple[int, int], str | None] = {}
    refused = {}
    for row in doubtful:
        kind = int(workload.width[row]), int(masks[row])
        if kind not in reasons:
            reasons[kind] = policy.why_never(nodes, width=kind[0], limits=kind[1])
        reason = reasons[kind]
        if reason is not None:
            refused[int(workload.job_id[row])] = reason
    return refused

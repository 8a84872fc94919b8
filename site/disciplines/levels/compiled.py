"""A queue with levels of priority in the compiled loop (docs/levels.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gridweave.site.disciplines import queue
from gridweave.site.disciplines.compiled import CompiledSite, Jobs, OwnFigures
from gridweave.site.disciplines.levels.discipline import totals_of
from gridweave.site.disciplines.levels.kernels.levels import LevelRules
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import level_of, why_not_allowed


def compiled_site(nodes: int, policy: LevelsPolicy, jobs: Jobs, week_offset_ms: Callable[[], int]) -> CompiledSite:
    """Return an idle site with its table of jobs, and the levels of these, filled in."""
    priority = np.broadcast_to(jobs.columns.get("priority", 0.0), len(jobs)).tolist()
    user = jobs.columns["user"].tolist() if "user" in jobs.columns else [None] * len(jobs)
    asked = zip(jobs.job_id.tolist(), priority, user, strict=True)
    refused = {job_id: why for job_id, p, who in asked if (why := why_not_allowed(policy.levels, p, who))}
    site = queue.compiled_site(nodes, policy.under, jobs, week_offset_ms, refused)
    table = policy.table(len(site.rows), site.room)
    table.base[:] = [level_of(policy.levels, priority[row]) for row in site.rows.tolist()]

    def figures() -> OwnFigures:
        columns = {"level": table.base.astype(np.float64), "evictions": table.times.astype(np.float64)}
        return OwnFigures(columns, totals_of(table))

    rules = LevelRules(site.rules, table)
    return replace(site, rules=rules, figures=figures, evictions=table.evictions, keys_at=None)

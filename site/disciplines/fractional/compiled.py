"""A site that gives jobs fractions of its nodes, in the compiled loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gridweave.errors import InputError
from gridweave.site.disciplines.compiled import CompiledSite, Ints, Jobs, OwnFigures, rows_without
from gridweave.site.disciplines.fractional.discipline import share_of, why_no_room
from gridweave.site.disciplines.fractional.kernels.rules import FractionalRules
from gridweave.site.disciplines.fractional.kernels.state import FractionalSite, empty_fractional
from gridweave.site.disciplines.fractional.policy import FractionalPolicy
from gridweave.site.kernels.parts import UNIT, parts_of_node

MAX_TASKS = 2**28
"""Tasks of a workload that there is room for: two gigabytes for each of three lists."""


def compiled_site(nodes: int, policy: FractionalPolicy, jobs: Jobs, week_offset_ms: Callable[[], int]) -> CompiledSite:
    """Return an idle site with its table of jobs filled in; they have the needs that the entry names."""
    refused = _refusals(jobs, nodes)
    rows = rows_without(jobs, refused)
    state = _idle_site(jobs, rows, nodes)

    def figures() -> OwnFigures:
        columns = {
            "preemptions": state.jobs["preempted"].astype(np.float64),
            "migrations": state.jobs["migrated"].astype(np.float64),
            "moved_nodes": state.jobs["moved"] / UNIT,
        }
        return OwnFigures(columns)

    rules = FractionalRules(policy.codes())
    return CompiledSite(
        rows=rows, refused=refused, state=state, rules=rules, is_paced=True, room=len(rows), figures=figures
    )


def _refusals(jobs: Jobs, nodes: int) -> dict[int, str]:
    """Return why jobs can never run, by their ids."""
    memory = parts_of_node(jobs.columns["memory_fraction"])
    never = np.flatnonzero(jobs.width > nodes * (UNIT // memory))
    found = zip(jobs.job_id[never].tolist(), jobs.width[never].tolist(), memory[never].tolist(), strict=True)
    return {job_id: why_no_room(width, memory, nodes) or "" for job_id, width, memory in found}


def _idle_site(jobs: Jobs, rows: Ints, nodes: int) -> FractionalSite:
    width = jobs.width[rows]
    if int(width.sum()) > MAX_TASKS:
        raise InputError(f"{jobs.name}: has {int(width.sum()):,} tasks; there is room for {MAX_TASKS:,}")
    state = empty_fractional(nodes, slots=len(rows), pool=int(width.sum()))
    for name in ("submit_ms", "job_id", "width", "estimate_ms"):
        state.jobs[name] = getattr(jobs, name)[rows]
    state.jobs["need"] = parts_of_node(jobs.columns["cpu_need"][rows])
    state.jobs["memory"] = parts_of_node(jobs.columns["memory_fraction"][rows])
    weights = jobs.columns.get("weight", np.ones(len(jobs)))[rows]
    state.jobs["weight"] = [share_of(weight) for weight in weights.tolist()]
    state.jobs["first"], state.jobs["start_ms"] = np.cumsum(width) - width, -1
    return state

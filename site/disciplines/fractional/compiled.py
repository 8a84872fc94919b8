"""A site that gives jobs fractions of its nodes, in the compiled loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gridweave.errors import InputError
from gridweave.site.disciplines.compiled import CompiledSite, Ints, Jobs, OwnFigures, rows_without
from gridweave.site.disciplines.fractional.discipline import share_of
from gridweave.site.disciplines.fractional.groups import TaskGroups, enter_groups, merged, why_no_room
from gridweave.site.disciplines.fractional.kernels.rules import FractionalRules
from gridweave.site.disciplines.fractional.kernels.state import FractionalSite, empty_fractional
from gridweave.site.disciplines.fractional.policy import FractionalPolicy
from gridweave.site.kernels.parts import UNIT, needs_in_columns, parts_of_node

MAX_TASKS = 2**28
"""Tasks of a workload that there is room for: two gigabytes for each of three lists."""


def compiled_site(nodes: int, policy: FractionalPolicy, jobs: Jobs, week_offset_ms: Callable[[], int]) -> CompiledSite:
    """Return an idle site with its table of jobs filled in; they have the needs that the entry names."""
    groups = groups_of_jobs(jobs)
    refused = _refusals(jobs, groups, nodes)
    rows = rows_without(jobs, refused)
    state = _idle_site(jobs, groups, rows, nodes)

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


def groups_of_jobs(jobs: Jobs) -> TaskGroups:
    """Return the groups of tasks of all jobs, by their rows."""
    row, count, cpu, memory = needs_in_columns(jobs.width, jobs.columns)
    return merged(TaskGroups(row, count, parts_of_node(cpu), parts_of_node(memory)))


def _refusals(jobs: Jobs, groups: TaskGroups, nodes: int) -> dict[int, str]:
    """Return why jobs can never run, by their ids."""
    # Those whose tasks are alike, and have room, need not be asked for one by one.
    has_room = groups.tasks <= nodes * (UNIT // groups.memory)
    is_alone = np.bincount(groups.job, minlength=len(jobs)) == 1
    asked = np.unique(groups.job[~(has_room & is_alone[groups.job])]).tolist()
    reasons = {int(jobs.job_id[row]): why_no_room(groups.of(row), nodes) for row in asked}
    return {job_id: reason for job_id, reason in reasons.items() if reason is not None}


def _idle_site(jobs: Jobs, groups: TaskGroups, rows: Ints, nodes: int) -> FractionalSite:
    width = jobs.width[rows]
    if int(width.sum()) > MAX_TASKS:
        raise InputError(f"{jobs.name}: has {int(width.sum()):,} tasks; there is room for {MAX_TASKS:,}")
    place = np.full(len(jobs), -1)
    place[rows] = np.arange(len(rows))
    played = place[groups.job] >= 0
    groups = TaskGroups(place[groups.job[played]], *(column[played] for column in groups[1:]))
    state = empty_fractional(nodes, slots=len(rows), groups=len(groups.job), pool=int(width.sum()))
    for name in ("submit_ms", "job_id", "width", "estimate_ms"):
        state.jobs[name] = getattr(jobs, name)[rows]
    weights = jobs.columns.get("weight", np.ones(len(jobs)))[rows]
    state.jobs["weight"] = [share_of(weight) for weight in weights.tolist()]
    state.jobs["start_ms"] = -1
    enter_groups(state, np.arange(len(rows)), groups, 0, 0)
    return state

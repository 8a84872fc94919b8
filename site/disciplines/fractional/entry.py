"""The dictionary entry of fractional scheduling: options, metrics and compiled simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from gridweave.errors import InputError, OptionError
from gridweave.site.disciplines.base import Traits
from gridweave.site.disciplines.compiled import Compiled, CompiledSite, Ints, Jobs, OwnFigures, enter_jobs, rows_without
from gridweave.site.disciplines.entry import Entry, Options, SiteOutcome, refuse_different, refuse_unknown
from gridweave.site.disciplines.fractional.discipline import Fractional, share_of
from gridweave.site.disciplines.fractional.groups import TaskGroups, enter_groups, merged, why_too_large
from gridweave.site.disciplines.fractional.kernels.fractional_pass import FractionalRules
from gridweave.site.disciplines.fractional.kernels.state import FractionalSite, empty_fractional
from gridweave.site.disciplines.fractional.policy import BEST, MAX_LONG_MS, MS_PER_S, NAME, FractionalPolicy
from gridweave.site.job import MAX_TIME_MS
from gridweave.site.kernels.limits import WeekClock
from gridweave.site.kernels.parts import UNIT, needs_in_columns, parts_of_node

MAX_TASKS = 2**28
"""Maximum number of tasks in a workload; this many tasks take 2 GiB in each of three arrays."""

MS_PER_H = 3600 * MS_PER_S


class FractionalTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a fractional site, given under the key ``fractional`` of a ``[[sites]]`` entry.

    Attributes
    ----------
    algorithm : str
        A name from docs/fractional.md.
    period_s : float
        Time between two placements of all tasks, if the name of the algorithm contains ``per``.
    penalty_s : float
        Time for which a job does not work after it resumes or one of its tasks moves.
    long_s : float
        Above this virtual time, a job's share is inversely proportional to its virtual time; 0: never.
    """

    algorithm: Annotated[str, Meta(description="A name such as " + BEST)] = BEST
    period_s: Annotated[float, Meta(gt=0)] = 600.0
    penalty_s: Annotated[float, Meta(ge=0)] = 300.0
    long_s: Annotated[float, Meta(ge=0)] = 0.0


def read_policy(nodes: int, site_options: Options, usual: Options) -> FractionalPolicy:
    """Return the policy of a fractional site from its option ``fractional``; its kinds of nodes must be alike."""
    why = f"is not for a {NAME} site, which orders jobs by flow time and virtual time"
    refuse_unknown(site_options, (NAME, "kinds"), why)
    refuse_different(site_options.get("kinds") or ())
    table: FractionalTable = site_options.get(NAME) or FractionalTable()
    for name, most_ms in (("period_s", MAX_TIME_MS), ("penalty_s", MAX_TIME_MS), ("long_s", MAX_LONG_MS)):
        if getattr(table, name) * MS_PER_S == math.inf:
            raise OptionError(name, f"is {getattr(table, name):g}; expected at most {most_ms // MS_PER_S:,} seconds")
    return FractionalPolicy(
        algorithm=table.algorithm,
        period_ms=round(table.period_s * MS_PER_S),
        penalty_ms=round(table.penalty_s * MS_PER_S),
        long_ms=round(table.long_s * MS_PER_S),
    )


def moves_of(outcome: SiteOutcome) -> dict[str, float]:
    """Return the numbers of pauses and moves, and the memory that both transferred, per hour and per job.

    ``moved_nodes`` is the memory of all tasks that were saved, restored or moved, in units of a node's memory.
    """
    hours = max(1, int(outcome.end_ms.max() - outcome.submit_ms.min())) / MS_PER_H
    metrics: dict[str, float] = {}
    for name in ("preemptions", "migrations", "moved_nodes"):
        total = float(outcome.columns[name].sum())
        metrics |= {f"{name}_per_h": total / hours, f"{name}_per_job": total / len(outcome.submit_ms)}
    return metrics


def compiled_site(nodes: int, policy: FractionalPolicy, jobs: Jobs, week: Callable[[], WeekClock]) -> CompiledSite:
    """Return an idle site with its job table filled in; the workload must have the columns in ``TRAITS.needs``."""
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
        rows=rows, refused=refused, state=state, rules=rules, is_paced=True, capacity=len(rows), figures=figures
    )


def groups_of_jobs(jobs: Jobs) -> TaskGroups:
    """Return the task groups of all jobs; the ``job`` of a group is the job's row in the workload."""
    row, count, cpu, memory = needs_in_columns(jobs.width, jobs.columns)
    return merged(TaskGroups(row, count, parts_of_node(cpu), parts_of_node(memory)))


def _refusals(jobs: Jobs, groups: TaskGroups, nodes: int) -> dict[int, str]:
    """Return the reasons why jobs can never run, by job id."""
    # A job with a single group that fits into memory needs no further check.
    has_capacity = groups.tasks <= nodes * (UNIT // groups.memory)
    is_alone = np.bincount(groups.job, minlength=len(jobs)) == 1
    asked = np.unique(groups.job[~(has_capacity & is_alone[groups.job])]).tolist()
    reasons = {int(jobs.job_id[row]): why_too_large(groups.of(row), nodes) for row in asked}
    return {job_id: reason for job_id, reason in reasons.items() if reason is not None}


def _idle_site(jobs: Jobs, groups: TaskGroups, rows: Ints, nodes: int) -> FractionalSite:
    width = jobs.width[rows]
    if int(width.sum()) > MAX_TASKS:
        raise InputError(f"{jobs.name}: has {int(width.sum()):,} tasks; expected at most {MAX_TASKS:,}")
    place = np.full(len(jobs), -1)
    place[rows] = np.arange(len(rows))
    selected = place[groups.job] >= 0
    groups = TaskGroups(place[groups.job[selected]], *(column[selected] for column in groups[1:]))
    state = empty_fractional(nodes, slots=len(rows), groups=len(groups.job), pool=int(width.sum()))
    enter_jobs(state.jobs, jobs, rows)
    weights = jobs.columns.get("weight", np.ones(len(jobs)))[rows]
    state.jobs["weight"] = [share_of(weight) for weight in weights.tolist()]
    state.jobs["start_ms"] = -1
    enter_groups(state, np.arange(len(rows)), groups, 0, 0)
    return state


TRAITS = Traits(
    chooses_nodes=True,
    shares_nodes=True,
    shares_time=True,
    fractions=True,
    moves=True,
    counts_work=True,
    needs=("cpu_need", "memory_fraction"),
    columns=("preemptions", "migrations", "moved_nodes"),
)

ENTRY = Entry(
    name=NAME,
    about="tasks get parts of a node's CPU and memory, are paused and moved; no estimates are used",
    make=Fractional,
    read=read_policy,
    reads_kinds=True,
    traits=TRAITS,
    traits_by=lambda policy: replace(TRAITS, moves=policy.moves_jobs),
    table=FractionalTable,
    table_key=NAME,
    metrics=moves_of,
    compiled=Compiled(site=compiled_site, supports=lambda policy: not policy.averages, chunk=500),
)

"""The dictionary entry of gang scheduling: options, metrics and compiled simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np

from gridweave.errors import InputError
from gridweave.site.disciplines.base import Traits
from gridweave.site.disciplines.compiled import Compiled, CompiledSite, Jobs, OwnFigures, fill_jobs
from gridweave.site.disciplines.entry import Entry, Options, SiteOutcome, one_of, refuse_different, refuse_unknown
from gridweave.site.disciplines.gang.discipline import GangDiscipline
from gridweave.site.disciplines.gang.kernels.gang_pass import GangRules
from gridweave.site.disciplines.gang.kernels.state import empty_matrix
from gridweave.site.disciplines.gang.matrix import gang_totals
from gridweave.site.disciplines.gang.policy import (
    MIGRATIONS,
    NAME,
    PHASES,
    SCHEDULINGS,
    GangPolicy,
)
from gridweave.site.explain import nodes_text
from gridweave.site.kernels.limits import WeekClock
from gridweave.site.kernels.parts import parts_of_node
from gridweave.site.kernels.state import NEVER_MS

SHORTEST_MS = 10_000
"""Minimum value used for response and run times when computing slowdowns (Zhang, section 2.3)."""


class GangTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a gang site, given under the key ``gang`` of a ``[[sites]]`` entry.

    Attributes
    ----------
    mpl, slice_ms, switch_ms, scheduling, phases, migration, migration_ms, max_tasks, window_ms
        As in `gridweave.site.disciplines.gang.policy.GangPolicy`.
    """

    mpl: int = 5
    slice_ms: int = 200_000
    switch_ms: int = 0
    scheduling: Annotated[str, one_of(SCHEDULINGS, "When decisions are made.")] = "continuous"
    phases: Annotated[str, one_of(PHASES, "Phases of a decision.")] = "compact"
    migration: Annotated[str, one_of(MIGRATIONS, "When jobs move to other nodes.")] = "none"
    migration_ms: int = 0
    max_tasks: int | None = None
    window_ms: int | None = None


def read_policy(nodes: int, site_options: Options, usual: Options) -> GangPolicy:
    """Return the policy of a gang site from its options ``gang``, ``order`` and ``backfill``.

    Its kinds of nodes must be alike. If ``order`` or ``backfill`` is not given, the value in ``usual`` is used.
    """
    refuse_unknown(site_options, ("gang", "order", "backfill", "kinds"), f"is not for a {NAME} site")
    refuse_different(site_options.get("kinds") or ())
    table: GangTable = site_options.get("gang") or GangTable()
    chosen = {name: site_options.get(name) or usual.get(name) for name in ("order", "backfill")}
    named = {name: value for name, value in chosen.items() if value is not None}
    return GangPolicy(**msgspec.structs.asdict(table), **named)


def gang_metrics(outcome: SiteOutcome) -> dict[str, float]:
    """Return the paper's metrics; a run time can be less than the time from start to end, because jobs pause.

    Returns
    -------
    dict from str to float
        ``slowdown_10s``: mean slowdown, response time / run time when alone, both at least 10 s (section 2.3);
        ``wait_ms``: mean wait; ``slowdown_10s_sd`` and ``wait_ms_sd``: their standard deviations over all jobs;
        ``utilisation``: equation 1; ``loss_of_capacity``: equation 3 while jobs are waiting, as in equation 2;
        ``loss_as_printed``: equation 3 as printed, at all times; ``migrations`` and ``tasks_migrated``: numbers of jobs
        and tasks moved; ``migration_loss`` and ``switch_loss``: fractions of the capacity lost to moves and to
        switches; ``changes_to_space``: how often the adaptive switch changed to space sharing.
    """
    response_ms = np.maximum(outcome.end_ms - outcome.submit_ms, SHORTEST_MS)
    slowdown = response_ms / np.maximum(outcome.run_ms, SHORTEST_MS)
    wait_ms = (outcome.start_ms - outcome.submit_ms).astype(np.float64)
    capacity = float(outcome.nodes * (outcome.end_ms.max() - outcome.submit_ms.min()).astype(np.float64))
    totals = outcome.totals
    return {
        "slowdown_10s": float(slowdown.mean()),
        "slowdown_10s_sd": float(slowdown.std()),
        "wait_ms": float(wait_ms.mean()),
        "wait_ms_sd": float(wait_ms.std()),
        "utilisation": float((outcome.width * outcome.run_ms.astype(np.float64)).sum()) / capacity,
        "loss_of_capacity": totals["lost"] / capacity,
        "loss_as_printed": totals["lost_any"] / capacity,
        "migrations": totals["migrations"],
        "tasks_migrated": totals["tasks_migrated"],
        "migration_loss": totals["migrated"] / capacity,
        "switch_loss": totals["switched"] / capacity,
        "changes_to_space": totals["changes"],
    }


def gang_remarks(policy: GangPolicy, widest: int) -> list[str]:
    """Return a warning if ``max_tasks`` is so small that the widest job can never move once it is running."""
    most = policy.max_tasks
    if policy.migration == "none" or most is None or most >= widest:
        return []
    return [
        f"max_tasks = {most} is below the {nodes_text(widest)} of the widest job: such a job never moves once it runs"
    ]


def compiled_site(nodes: int, policy: GangPolicy, jobs: Jobs, week: Callable[[], WeekClock]) -> CompiledSite:
    """Return an idle site with its job table filled in.

    Raises
    ------
    InputError
        If the sum of all estimates, times the number of rows of the matrix, exceeds the range of times.
    """
    longest_ms = float(jobs.estimate_ms.sum(dtype=np.float64)) * policy.mpl
    if longest_ms > NEVER_MS:
        total = f"its estimates, times the {policy.mpl} rows of the matrix, add up to {longest_ms:.3g} ms"
        raise InputError(f"{jobs.name}: {total}; expected at most {NEVER_MS:.3g} ms")
    wide, rows = np.flatnonzero(jobs.width > nodes), np.flatnonzero(jobs.width <= nodes)
    state = empty_matrix(nodes, policy.mpl, slots=len(rows))
    fill_jobs(state.jobs, jobs, rows, policy.order)
    if "memory_fraction" in jobs.columns:
        state.jobs["memory"] = parts_of_node(jobs.columns["memory_fraction"][rows])
    return CompiledSite(
        rows=rows,
        refused={
            int(jobs.job_id[row]): f"it needs {jobs.width[row]} nodes and the site has {nodes}" for row in wide.tolist()
        },
        state=state,
        rules=GangRules(policy.codes()),
        is_paced=True,
        capacity=len(state.placed),
        figures=lambda: OwnFigures(totals=gang_totals(state)),
    )


TRAITS = Traits(
    chooses_nodes=True, shares_nodes=True, slices_time=True, moves=True, saves_work=True, counts_work=True, elastic=True
)


def _traits(policy: GangPolicy) -> Traits:
    """Return a policy's traits; jobs move, and save their work to do so, only if the policy allows migration."""
    return replace(TRAITS, moves=policy.moves_jobs, saves_work=policy.moves_jobs)


ENTRY = Entry(
    name=NAME,
    about="jobs share nodes in time: each runs in some slices of a cycle",
    make=GangDiscipline,
    read=read_policy,
    reads_kinds=True,
    traits=TRAITS,
    traits_by=_traits,
    stay_ms=GangPolicy.longest_stay_ms,
    table=GangTable,
    table_key="gang",
    remarks=gang_remarks,
    metrics=gang_metrics,
    compiled=Compiled(site=compiled_site),
)

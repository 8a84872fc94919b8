"""A self-tuning site in the compiled loop (docs/dynp.md)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gridweave.site.disciplines.compiled import CompiledSite, Ints, Jobs, OwnFigures, fill_jobs, rows_without
from gridweave.site.disciplines.dynp.figures import COLUMNS, switches_after, totals_of, tuning_use
from gridweave.site.disciplines.dynp.kernels.state import NO_CANDIDATE
from gridweave.site.disciplines.dynp.kernels.tuning import TuningRules
from gridweave.site.disciplines.dynp.policy import DynPPolicy
from gridweave.site.disciplines.queue import limit_masks, refusals
from gridweave.site.kernels.state import SiteState, empty_plan, empty_state


def compiled_site(nodes: int, policy: DynPPolicy, jobs: Jobs, week_offset_ms: Callable[[], int]) -> CompiledSite:
    """Return an idle site with its table of jobs, and those of its candidates, filled in."""
    refused = refusals(jobs, nodes, policy.planning)
    rows = rows_without(jobs, refused)
    state = empty_state(nodes, slots=len(rows))
    fill_jobs(state.jobs, jobs, rows, policy.policies[0], aging_ms=policy.aging_ms)
    state.jobs["limits"] = limit_masks(jobs, policy.planning)[rows]
    asks = policy.calendar or any(limit.window is not None for limit in policy.limits)
    rules = _rules(state, jobs, rows, nodes, policy, week_offset_ms() if asks else 0)
    memory = rules.tuning.memory

    def figures() -> OwnFigures:
        started_by = np.maximum(memory.started_by, 0).astype(np.float64)
        of_all = np.full(len(jobs), NO_CANDIDATE)
        of_all[rows] = memory.started_by
        own = tuning_use(policy.policies, memory, switches_after(memory, 0), of_all)
        return OwnFigures(dict.fromkeys(COLUMNS, started_by), totals_of(policy.policies, memory), own)

    return CompiledSite(rows=rows, refused=refused, state=state, rules=rules, room=len(state.running), figures=figures)


def _rules(
    state: SiteState, jobs: Jobs, rows: Ints, nodes: int, policy: DynPPolicy, week_offset_ms: int
) -> TuningRules:
    limits = policy.planning.limit_arrays(week_offset_ms=week_offset_ms)
    plan = empty_plan(state, policy.planning.profile_totals(nodes))
    assert limits is not None, "a planning site without limits"
    # At most a switch a step, and a step at every submission, end and cancellation, and for what starts then.
    rules = policy.rules(state, plan, limits, log=6 * len(rows) + 1)
    candidates = rules.tuning.candidates.jobs
    for table, order in zip(candidates, policy.policies, strict=True):
        fill_jobs(table, jobs, rows, order, aging_ms=policy.aging_ms)
    if policy.reading == "thesis":
        candidates["key"][0] = np.arange(len(rows))
    candidates["limits"] = state.jobs["limits"]
    return rules

"""A site that shares its nodes in time, in the compiled loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gridweave.errors import InputError
from gridweave.site.disciplines.compiled import CompiledSite, Jobs, OwnFigures, fill_jobs
from gridweave.site.disciplines.gang.kernels.rules import GangRules
from gridweave.site.disciplines.gang.kernels.state import empty_matrix
from gridweave.site.disciplines.gang.matrix import gang_totals
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.kernels.parts import parts_of_node
from gridweave.site.kernels.state import NEVER_MS


def compiled_site(nodes: int, policy: GangPolicy, jobs: Jobs, week_offset_ms: Callable[[], int]) -> CompiledSite:
    """Return an idle site with its table of jobs filled in.

    InputError if estimates, times the rows of the matrix, leave the range of times.
    """
    longest_ms = float(jobs.estimate_ms.sum(dtype=np.float64)) * policy.mpl
    if longest_ms > NEVER_MS:
        total = f"its estimates, times the {policy.mpl} rows of the matrix, add up to {longest_ms:.3g} ms"
        raise InputError(f"{jobs.name}: {total}; there is room for {NEVER_MS:.3g}")
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
        room=len(state.placed),
        figures=lambda: OwnFigures(totals=gang_totals(state)),
    )

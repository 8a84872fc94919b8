"""A site that gives jobs fractions of its nodes, in the compiled loop (docs/fractional.md)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gridweave.errors import InputError
from gridweave.scenarios.batch.cancellations import cancellations
from gridweave.scenarios.batch.kernels.loop import run_batch
from gridweave.scenarios.batch.kernels.paced import Paced
from gridweave.scenarios.batch.kernels.run import new_run
from gridweave.scenarios.batch.pieces import in_pieces, times_of
from gridweave.scenarios.batch.stepped import Stepped, run_core
from gridweave.scenarios.results.schedule import NEVER
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.site.disciplines.fractional.discipline import share_of, why_no_room
from gridweave.site.disciplines.fractional.kernels.state import UNIT, FractionalSite, empty_fractional, parts_of_node
from gridweave.site.disciplines.fractional.policy import FractionalPolicy
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import no_work

# Jobs that are played before progress is reported.
_SLICE = 500

MAX_TASKS = 2**28
"""Tasks of a workload that there is room for: two gigabytes for each of three lists."""


def play_fractional(
    workload: Workload,
    nodes: int,
    policy: FractionalPolicy,
    report: Callable[[int, int], None] | None,
) -> Stepped:
    """Return what becomes of the jobs in the compiled loop; where yields are a linear program, in a stepped core.

    Parameters
    ----------
    workload : Workload
        With the columns of `gridweave.scenarios.workload.needs.with_needs`.
    nodes : int
    policy : FractionalPolicy
    report : callable, optional
        Called with the number of jobs played and of all.
    """
    if policy.averages:
        return run_core(workload, nodes, policy, report=report)
    refused = _refusals(workload, nodes)
    rows = np.flatnonzero(~np.isin(workload.job_id, list(refused)))
    state = _idle_site(workload, rows, nodes)
    run, work = new_run(workload.run_ms[rows], room=len(rows)), no_work(len(rows))
    paced, cancelled = Paced(fractional=policy.codes()), cancellations(workload, rows)
    for until in in_pieces(len(rows), _SLICE, report):
        run_batch(state, work, None, paced, None, None, cancelled, None, run, np.int64(until), NEVER_MS)
    columns = {name: np.zeros(len(workload)) for name in ("preemptions", "migrations", "moved_nodes")}
    start_ms, end_ms = times_of(run.start_ms, run.end_ms, rows, len(workload))
    never = rows[(run.start_ms == NEVER) & (state.jobs["status"] != 0)]
    if len(never):
        waiting = f"{len(never)} jobs waiting on an idle site, the first job {workload.job_id[never[0]]}"
        raise InputError(f"{workload.name}: {policy.algorithm} leaves {waiting}")
    columns["preemptions"][rows], columns["migrations"][rows] = state.jobs["preempted"], state.jobs["migrated"]
    columns["moved_nodes"][rows] = state.jobs["moved"] / UNIT
    return Stepped(start_ms, end_ms, refused, (), columns, {})


def _refusals(workload: Workload, nodes: int) -> dict[int, str]:
    """Return why jobs can never run, by their ids."""
    memory = parts_of_node(workload.columns["memory_fraction"])
    never = np.flatnonzero(workload.width > nodes * (UNIT // memory))
    jobs = zip(workload.job_id[never].tolist(), workload.width[never].tolist(), memory[never].tolist(), strict=True)
    return {job_id: why_no_room(width, memory, nodes) or "" for job_id, width, memory in jobs}


def _idle_site(workload: Workload, rows: IntArray, nodes: int) -> FractionalSite:
    """Return an idle site whose table of jobs is filled in."""
    width = workload.width[rows]
    if int(width.sum()) > MAX_TASKS:
        raise InputError(f"{workload.name}: has {int(width.sum()):,} tasks; there is room for {MAX_TASKS:,}")
    state = empty_fractional(nodes, slots=len(rows), pool=int(width.sum()))
    for name in ("submit_ms", "job_id", "width", "estimate_ms"):
        state.jobs[name] = getattr(workload, name)[rows]
    state.jobs["need"] = parts_of_node(workload.columns["cpu_need"][rows])
    state.jobs["memory"] = parts_of_node(workload.columns["memory_fraction"][rows])
    weights = workload.columns.get("weight", np.ones(len(workload)))[rows]
    state.jobs["weight"] = [share_of(weight) for weight in weights.tolist()]
    state.jobs["first"], state.jobs["start_ms"] = np.cumsum(width) - width, -1
    return state

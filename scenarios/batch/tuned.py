"""A self-tuning site in the compiled loop (docs/dynp.md)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gridweave.scenarios.batch.beforehand import limit_masks, refusals, week_offset_ms
from gridweave.scenarios.batch.cancellations import cancellations
from gridweave.scenarios.batch.kernels.loop import run_batch
from gridweave.scenarios.batch.kernels.run import new_run
from gridweave.scenarios.batch.pieces import in_pieces, times_of
from gridweave.scenarios.batch.stepped import Stepped
from gridweave.scenarios.results.tuning import tuning_use
from gridweave.scenarios.workload.table import IntArray, Workload, fill_jobs
from gridweave.site.disciplines.dynp.figures import COLUMNS, totals_of
from gridweave.site.disciplines.dynp.kernels.state import TuningMemory
from gridweave.site.disciplines.dynp.policy import DynPPolicy
from gridweave.site.kernels.dispatch import DisciplineArrays
from gridweave.site.kernels.state import NEVER_MS, SiteState, empty_plan, empty_state

# Jobs that are played before progress is reported: about a tenth of a second.
_SLICE = 2_000


class TunedRun:
    """A workload on a self-tuning site, in the compiled loop, played in as many pieces as one likes.

    Parameters
    ----------
    rows : numpy.ndarray of int64
        The rows of the jobs to play; none is refused by the site.

    Attributes
    ----------
    state : SiteState
    memory : TuningMemory
    start_ms, end_ms : numpy.ndarray of int64, shape (rows,)
        `NEVER` for jobs that have not started, or ended.
    """

    def __init__(self, workload: Workload, rows: IntArray, nodes: int, policy: DynPPolicy) -> None:
        self.state = empty_state(nodes, slots=len(rows))
        fill_jobs(self.state.jobs, workload, rows, policy.policies[0], aging_ms=policy.aging_ms)
        self.state.jobs["limits"] = limit_masks(workload, policy.planning)[rows]
        self._discipline, self.memory = _tuned(self.state, workload, rows, nodes, policy)
        self._cancels = cancellations(workload, rows)
        self._run = new_run(workload.run_ms[rows], room=len(self.state.running))
        self.start_ms, self.end_ms = self._run.start_ms, self._run.end_ms

    def play(self, until: int, stop_ms: int = int(NEVER_MS)) -> None:
        """Play on until this many jobs have been submitted, or up to an instant; if all are, until nothing is left."""
        numbers = np.int64(until), np.int64(stop_ms)
        run_batch(self.state, None, self._discipline, None, None, None, self._cancels, None, self._run, *numbers)


def _tuned(
    state: SiteState, workload: Workload, rows: IntArray, nodes: int, policy: DynPPolicy
) -> tuple[DisciplineArrays, TuningMemory]:
    """Return what the kernels of dynP work with, with the tables of its candidates filled in."""
    asks = policy.calendar or any(limit.window is not None for limit in policy.limits)
    limits = policy.planning.limit_arrays(week_offset_ms=week_offset_ms(workload) if asks else 0)
    plan = empty_plan(state, policy.planning.profile_totals(nodes))
    assert limits is not None, "a planning site without limits"
    # At most a switch a step, and a step at every submission, end and cancellation, and for what starts then.
    made = policy.arguments(state, plan, limits, log=6 * len(rows) + 1)
    assert made.tuning is not None, "dynP without its tuning"
    jobs = made.tuning.candidates.jobs
    for table, order in zip(jobs, policy.policies, strict=True):
        fill_jobs(table, workload, rows, order, aging_ms=policy.aging_ms)
    if policy.reading == "thesis":
        jobs["key"][0] = np.arange(len(rows))
    jobs["limits"] = state.jobs["limits"]
    return made, made.tuning.memory


def played_tuned(
    workload: Workload, nodes: int, policy: DynPPolicy, progress: Callable[[int, int], None] | None
) -> Stepped:
    """Return what becomes of the jobs of a workload, played in the compiled loop."""
    refused = refusals(workload, nodes, policy.planning)
    rows = np.flatnonzero(~np.isin(workload.job_id, list(refused)))
    run = TunedRun(workload, rows, nodes, policy)
    for until in in_pieces(len(rows), _SLICE, progress):
        run.play(until)
    start_ms, end_ms = times_of(run.start_ms, run.end_ms, rows, len(workload))
    tuning = tuning_use(policy.policies, run.memory, rows, len(workload))
    columns = dict.fromkeys(COLUMNS, np.maximum(tuning.started_by, 0).astype(np.float64))
    return Stepped(start_ms, end_ms, refused, (), columns, totals_of(policy.policies, run.memory), tuning)

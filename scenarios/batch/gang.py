"""A site that shares its nodes in time, in simulation (docs/gang.md)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gridweave.errors import InputError
from gridweave.scenarios.batch.cancellations import cancellations
from gridweave.scenarios.batch.kernels.loop import run_batch
from gridweave.scenarios.batch.kernels.paced import Paced
from gridweave.scenarios.batch.kernels.run import new_run
from gridweave.scenarios.batch.stepped import Stepped
from gridweave.scenarios.results.schedule import NEVER
from gridweave.scenarios.workload.table import IntArray, Workload, fill_jobs
from gridweave.site.disciplines.gang.kernels.state import empty_matrix
from gridweave.site.disciplines.gang.matrix import gang_totals
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import no_work

# Jobs that are played before progress is reported: about a tenth of a second.
_SLICE = 2_000


class GangRun:
    """A workload on a site that shares its nodes in time, in the compiled loop, played in pieces.

    Parameters
    ----------
    rows : numpy.ndarray of int64
        The rows of the jobs to play; none is wider than the site.

    Attributes
    ----------
    state : GangSite
    start_ms, end_ms : numpy.ndarray of int64, shape (rows,)
        `NEVER` for jobs that have not ended.

    Raises
    ------
    InputError
        If estimates, times the rows of the matrix, leave the range of times.
    """

    def __init__(self, workload: Workload, rows: IntArray, nodes: int, policy: GangPolicy) -> None:
        longest_ms = float(workload.estimate_ms.sum(dtype=np.float64)) * policy.mpl
        if longest_ms > NEVER_MS:
            total = f"its estimates, times the {policy.mpl} rows of the matrix, add up to {longest_ms:.3g} ms"
            raise InputError(f"{workload.name}: {total}; there is room for {NEVER_MS:.3g}")
        self.state = empty_matrix(nodes, policy.mpl, slots=len(rows))
        fill_jobs(self.state.jobs, workload, rows, policy.order)
        self._work, self._paced = no_work(len(rows)), Paced(gang=policy.codes())
        self._cancels = cancellations(workload, rows)
        self._run = new_run(workload.run_ms[rows], room=len(self.state.placed))
        self.start_ms, self.end_ms = self._run.start_ms, self._run.end_ms

    def play(self, until: int, stop_ms: int = int(NEVER_MS)) -> None:
        """Play on until this many jobs have been submitted, or up to an instant; if all are, until nothing is left."""
        numbers = np.int64(until), np.int64(stop_ms)
        run_batch(self.state, self._work, None, self._paced, None, None, self._cancels, None, self._run, *numbers)


def played_gang(
    workload: Workload, nodes: int, policy: GangPolicy, progress: Callable[[int, int], None] | None
) -> Stepped:
    """Return what becomes of the jobs of a workload, played in the compiled loop."""
    wide = np.flatnonzero(workload.width > nodes)
    refused = {
        int(workload.job_id[row]): f"it needs {workload.width[row]} nodes and the site has {nodes}" for row in wide
    }
    rows = np.flatnonzero(workload.width <= nodes)
    start_ms, end_ms = np.full((2, len(workload)), NEVER, np.int64)
    run = GangRun(workload, rows, nodes, policy)
    for until in [*range(_SLICE, len(rows), _SLICE), len(rows)] if len(rows) else []:
        run.play(until)
        if progress is not None:
            progress(until, len(rows))
    start_ms[rows], end_ms[rows] = run.start_ms, run.end_ms
    return Stepped(start_ms, end_ms, refused, (), {}, gang_totals(run.state))

"""How the compiled loop serves disciplines under which rates change: jobs share nodes, or time, or parts of nodes.

Such a discipline hands it `RateRules`: a named tuple of what its kernels work with, and these kernels as methods.
There is one loop for all of them, compiled for each class of rules, and one account of what runs (work.py).
"""

from __future__ import annotations

from typing import Any, Protocol

from gridweave.jit import Int, kernel
from gridweave.site.kernels.work import (
    NOT_RUNNING,
    NOT_YET,
    RunArrays,
    WorkTable,
    begin_work,
    change_rate,
    work_of,
)


class RateRules(Protocol):
    """What the loop asks of a discipline; all methods are made by `gridweave.jit.kernel_method`.

    ``state`` is the discipline's own. It has ``jobs``, a table with the field ``submit_ms`` whose rows are the jobs in
    the order of submission, and ``counters``, a table of one row.
    """

    def wakeup_ms(self, state: Any) -> Int:
        """Return the next instant at which there is to be a pass though nothing happens; `NEVER_MS` for none."""

    def counted(self, state: Any, now_ms: Int) -> None:
        """Count what the time since the last instant came to, before anything changes."""

    def submitted(self, state: Any, row: Int, now_ms: Int) -> None:
        """Put the job of a row into the queue."""

    def withdrawn(self, state: Any, work: WorkTable, run: RunArrays, row: Int, now_ms: Int) -> bool:
        """Take the job of a row out if it waits; return whether it did."""

    def ended(self, state: Any, run: RunArrays, row: Int, now_ms: Int) -> None:
        """Take a running job off its nodes; it is out of ``work`` already."""

    def run_pass(self, state: Any, work: WorkTable, run: RunArrays, now_ms: Int) -> None:
        """Run the pass of an instant, note the starts in ``run``, and let jobs go on at the rates it gives them."""


@kernel
def follow_rates(state: Any, work: WorkTable, run: RunArrays, now_ms: Int) -> None:
    """Let jobs that have started begin, or go on, at the rates that a pass has given them.

    Parameters
    ----------
    state : named tuple
        The first ``n_changed`` (of ``counters``) entries of ``changed`` are the rows whose rate may be another, and
        ``jobs`` has their ``rate`` and ``job_id``.
    work : numpy.ndarray of WORK, shape (n,)
    run : RunArrays
    now_ms : int
    """
    for i in range(state.counters[0].n_changed):
        row = state.changed[i]
        job = state.jobs[row]
        if run.start_ms[row] != NOT_YET and run.end_ms[row] == NOT_YET:
            if work[row].rate == NOT_RUNNING:
                begin_work(run.ends, work, row, job.job_id, work_of(run.run_ms[row]), job.rate, now_ms)
            elif work[row].rate != job.rate:
                change_rate(run.ends, work, row, job.rate, now_ms)

"""How the compiled loop plays a site whose nodes jobs share."""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import Int, Ints, kernel_method
from gridweave.site.disciplines.sharing.kernels.pairing import SharingCodes
from gridweave.site.disciplines.sharing.kernels.sharing_pass import sharing_pass
from gridweave.site.disciplines.sharing.kernels.slowdown import SlowdownArrays, job_ended
from gridweave.site.disciplines.sharing.kernels.state import SharedSite, forget_changes, job_submitted, job_withdrawn
from gridweave.site.kernels.rates import follow_rates
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import RunArrays, WorkTable


class SharingRules(NamedTuple):
    """The `RateRules` of a `SharedSite`.

    Attributes
    ----------
    model : SlowdownArrays
    codes : SharingCodes
    beside : numpy.ndarray of int64, shape (n,)
        Filled in: how many jobs a job shared nodes with after the pass that started it.
    busy : numpy.ndarray of int64, shape (2,)
        Node milliseconds that were used, and until when that is counted.
    """

    model: SlowdownArrays
    codes: SharingCodes
    beside: Ints
    busy: Ints

    @kernel_method
    def wakeup_ms(self, state: SharedSite) -> Int:
        return NEVER_MS

    @kernel_method
    def counted(self, state: SharedSite, now_ms: Int) -> None:
        self.busy[0] += (len(state.used) - state.counters[0].idle) * (now_ms - self.busy[1])
        self.busy[1] = now_ms

    @kernel_method
    def submitted(self, state: SharedSite, row: Int, now_ms: Int) -> None:
        job_submitted(state, row)

    @kernel_method
    def withdrawn(self, state: SharedSite, work: WorkTable, run: RunArrays, row: Int, now_ms: Int) -> bool:
        if state.jobs[row].waits != 1:
            return False
        job_withdrawn(state, row)
        return True

    @kernel_method
    def ended(self, state: SharedSite, run: RunArrays, row: Int, now_ms: Int) -> None:
        job_ended(state, self.model, row, now_ms)

    @kernel_method
    def run_pass(self, state: SharedSite, work: WorkTable, run: RunArrays, now_ms: Int) -> None:
        counters = state.counters[0]
        if counters.waiting_width > 0:
            sharing_pass(state, self.model, self.codes, now_ms)
            for i in range(counters.n_started):
                run.start_ms[state.started[i]] = now_ms
                self.beside[state.started[i]] = state.jobs[state.started[i]].n_partners
        follow_rates(state, work, run, now_ms)
        forget_changes(state)

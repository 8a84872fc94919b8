"""How the compiled loop plays a site that gives jobs fractions of its nodes."""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import Int, kernel_method
from gridweave.site.disciplines.fractional.kernels.fractional_pass import FractionalCodes, fractional_pass
from gridweave.site.disciplines.fractional.kernels.state import (
    WAITS,
    FractionalSite,
    fractional_left,
    fractional_submitted,
)
from gridweave.site.kernels.rates import follow_rates
from gridweave.site.kernels.work import RunArrays, WorkTable


class FractionalRules(NamedTuple):
    """The `RateRules` of a `FractionalSite`."""

    codes: FractionalCodes

    @kernel_method
    def wakeup_ms(self, state: FractionalSite) -> Int:
        return state.counters[0].next_wake_ms

    @kernel_method
    def counted(self, state: FractionalSite, now_ms: Int) -> None:
        pass

    @kernel_method
    def submitted(self, state: FractionalSite, row: Int, now_ms: Int) -> None:
        fractional_submitted(state, row)

    @kernel_method
    def withdrawn(self, state: FractionalSite, work: WorkTable, run: RunArrays, row: Int, now_ms: Int) -> bool:
        if state.jobs[row].status != WAITS:
            return False
        fractional_left(state, row)
        return True

    @kernel_method
    def ended(self, state: FractionalSite, run: RunArrays, row: Int, now_ms: Int) -> None:
        fractional_left(state, row)

    @kernel_method
    def run_pass(self, state: FractionalSite, work: WorkTable, run: RunArrays, now_ms: Int) -> None:
        fractional_pass(state, self.codes, now_ms)
        for i in range(state.counters[0].n_started):
            run.start_ms[state.started[i]] = now_ms
        follow_rates(state, work, run, now_ms)

"""How the compiled loop plays a site that shares its nodes in time."""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import Int, kernel, kernel_method
from gridweave.site.disciplines.gang.kernels.gang_pass import gang_pass
from gridweave.site.disciplines.gang.kernels.state import (
    GangCodes,
    GangSite,
    cycle_of,
    gang_job_ended,
    gang_job_submitted,
    gang_job_withdrawn,
)
from gridweave.site.kernels.turns import done_in_turns_ms
from gridweave.site.kernels.work import RunArrays, WorkTable, expect_work, stop_work, work_of


class GangRules(NamedTuple):
    """The `RateRules` of a `GangSite`."""

    codes: GangCodes

    @kernel_method
    def wakeup_ms(self, state: GangSite) -> Int:
        return state.counters[0].due_ms

    @kernel_method
    def counted(self, state: GangSite, now_ms: Int) -> None:
        pass

    @kernel_method
    def submitted(self, state: GangSite, row: Int, now_ms: Int) -> None:
        gang_job_submitted(state, self.codes, row, now_ms)

    @kernel_method
    def withdrawn(self, state: GangSite, work: WorkTable, run: RunArrays, row: Int, now_ms: Int) -> bool:
        waits = gang_job_withdrawn(state, self.codes, row, now_ms)
        if waits:
            stop_work(run.ends, work, row)
        return waits

    @kernel_method
    def ended(self, state: GangSite, run: RunArrays, row: Int, now_ms: Int) -> None:
        run.start_ms[row] = state.jobs[row].begin_ms
        gang_job_ended(state, self.codes, row, now_ms)

    @kernel_method
    def run_pass(self, state: GangSite, work: WorkTable, run: RunArrays, now_ms: Int) -> None:
        if gang_pass(state, self.codes, now_ms):
            _follow_turns(state, self.codes, work, run, now_ms)


@kernel
def _follow_turns(state: GangSite, codes: GangCodes, work: WorkTable, run: RunArrays, now_ms: Int) -> None:
    """Let the jobs go on in the slices that they have been given: each ends when it has worked long enough in them."""
    cycle = cycle_of(state, codes)
    for i in range(state.counters[0].n_placed):
        row = state.placed[i]
        job = state.jobs[row]
        left_ms = job.owed_ms + run.run_ms[row] - job.worked_ms
        end_ms = now_ms + done_in_turns_ms(job, cycle, left_ms)
        expect_work(run.ends, work, row, job.job_id, work_of(left_ms), now_ms, end_ms)

"""Make a decision: rebuild the matrix phase by phase, then start a new cycle of slices (Zhang, section 5.2).

`GangRules` connects this module to the compiled loop; a site that is stepped gets its rates from `rates_at`.

The adaptive switch selects time sharing below a critical utilisation and space sharing above it (future work in Zhang,
sections 6.3 and 7). The site measures, over a window, its utilisation and the part of its work that is lost to switches
during time sharing. This part determines the critical utilisation, at which time sharing and space sharing have the
same slowdown. In the model, slowdown grows as ``1 / (1 - utilisation / most)``, where ``most`` is ``1 - part`` for time
sharing and 1 for space sharing; at low utilisation, the slowdown of time sharing is lower by a factor of `GAIN`.
"""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import Int, Ints, Record, kernel, kernel_method, kernel_part
from gridweave.site.disciplines.gang.kernels.phases import clean, compact, fill, schedule
from gridweave.site.disciplines.gang.kernels.state import (
    NO_ROW,
    GangCodes,
    GangSite,
    all_rows,
    count_loss,
    cycle_of,
    free_in,
    gang_job_ended,
    gang_job_submitted,
    gang_job_withdrawn,
)
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.turns import Cycle, done_in_turns_ms, turn_at, walk_turns
from gridweave.site.kernels.work import NOT_RUNNING, RATE_ONE, RunArrays, WorkTable, expect_work, stop_work, work_of

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"


@kernel
def gang_pass(state: GangSite, codes: GangCodes, now_ms: Int) -> bool:
    """Make a decision if one is due; return whether a decision was made.

    Parameters
    ----------
    state : GangSite
        Changed in place: the rows of the jobs, the cycle of slices from now on, and each job's begin and end.
    codes : GangCodes
    now_ms : int
    """
    counters = state.counters[0]
    count_loss(state, codes, now_ms)
    if counters.is_stirred == 0 or counters.due_ms > now_ms:
        return False
    counters.is_stirred = 0
    counters.due_ms = NEVER_MS
    counters.decisions += 1
    counters.tasks_left = codes.max_tasks
    _bring_up(state, codes, now_ms)
    if codes.cleans:
        clean(state)
    if codes.compacts:
        compact(state, codes, now_ms, False)
    if codes.window_ms > 0:
        adapt(state, codes, now_ms)
    schedule(state, codes, now_ms)
    if codes.migrates_to_compact and compact(state, codes, now_ms, True):
        schedule(state, codes, now_ms)
    fill(state, codes, False)
    if codes.migrates_to_fill:
        fill(state, codes, True)
    _go_round(state, codes, now_ms)
    return True


@kernel_part
def _bring_up(state: GangSite, codes: GangCodes, now_ms: Int) -> None:
    """Update each job's progress and the row of the last slice, from the last decision until now."""
    counters = state.counters[0]
    cycle = cycle_of(state, codes)
    elapsed_ms = now_ms - counters.since_ms
    if cycle.n_turns == 0 or elapsed_ms == 0:
        return
    last = turn_at(elapsed_ms, cycle)
    for i in range(counters.n_placed):
        job = state.jobs[state.placed[i]]
        if job.begin_ms >= now_ms:
            continue
        walked = walk_turns(job, cycle, elapsed_ms, NEVER_MS)
        paid_ms = min(job.owed_ms, walked.gained_ms)
        job.owed_ms -= paid_ms
        job.worked_ms += walked.gained_ms - paid_ms
        job.works, job.switch_left_ms, job.is_fresh = walked.works, walked.switch_left_ms, 0
        turn = last
        while turn >= 0 and not (job.turns >> (turn % cycle.n_turns)) & 1:
            turn -= 1
        job.last_row = state.turn_row[turn % cycle.n_turns] if turn >= 0 else job.last_row
    counters.last_row = state.turn_row[last % cycle.n_turns]


@kernel_part
def _go_round(state: GangSite, codes: GangCodes, now_ms: Int) -> None:
    """Start a new cycle: each row in use gets one slice, beginning with the row after the last slice's row."""
    counters = state.counters[0]
    turns = 0
    for step in range(counters.rows):
        row = (counters.last_row + 1 + step) % counters.rows
        if state.used[row] > 0:
            state.turn_row[turns] = row
            state.empty[turns] = free_in(state, row)
            state.first_switched[turns] = state.switched[turns] = 0
            turns += 1
    counters.n_turns = turns
    counters.since_ms = now_ms
    counters.lost_before = counters.switched_before = 0.0
    cycle = cycle_of(state, codes)
    for i in range(counters.n_placed):
        _take_turns(state, state.jobs[state.placed[i]], cycle, now_ms)


@kernel_part
def _take_turns(state: GangSite, job: Record, cycle: Cycle, now_ms: Int) -> None:
    """Give a job the slices of its rows, set when it begins and ends, and count its nodes in slices that resume it."""
    job.turns = 0
    for turn in range(cycle.n_turns):
        job.turns |= ((job.rows >> state.turn_row[turn]) & 1) << turn
    before = (job.turns >> (cycle.n_turns - 1)) & 1
    first = True
    works = job.works
    for turn in range(cycle.n_turns):
        has = (job.turns >> turn) & 1
        if has and not before:
            state.switched[turn] += job.width
        if has and not works and not (first and job.is_fresh):
            state.first_switched[turn] += job.width
        if has and first:
            first = False
            if job.is_fresh:
                job.begin_ms = now_ms + turn * cycle.slice_ms
        before = works = has
    job.end_ms = now_ms + done_in_turns_ms(job, cycle, job.owed_ms + job.estimate_ms - job.worked_ms)


GAIN = 1.3
"""Slowdown of space sharing relative to time sharing if switches are free. A guess: with this value, the critical
utilisations are close to those in the paper, 0.92 and 0.83 if switches cost 2% and 5%."""

HYSTERESIS = 0.03
"""How far the utilisation must fall below the critical utilisation before the site returns to time sharing. A guess:
in the paper, the utilisations of successive workloads differ by 0.055."""


@kernel_part
def critical_utilisation(part: float) -> float:
    """Return the utilisation above which to use space sharing, given the fraction of work lost to switches."""
    return (GAIN - 1.0) * (1.0 - part) / (GAIN - 1.0 + part)


@kernel
def adapt(state: GangSite, codes: GangCodes, now_ms: Int) -> None:
    """Update the measurements since the last decision, and choose between time sharing and space sharing.

    Parameters
    ----------
    state : GangSite
        The state after `count_loss`. Sets ``open_rows`` to all rows for time sharing; for space sharing, to all rows in
        use except the least populated (ties: the last), so that rows become empty one by one until one is left.
    codes : GangCodes
        Must have ``window_ms`` above 0.
    now_ms : int

    Notes
    -----
    The measurements are moving averages: a new value over a time dt has weight ``dt / (window + dt)``.
    """
    counters = state.counters[0]
    span_ms = now_ms - counters.measured_ms
    if span_ms > 0 and counters.nodes > 0:
        capacity = 1.0 * counters.nodes * span_ms
        useful = capacity - (counters.lost_any - counters.lost_measured)
        switched = counters.switched - counters.switched_measured
        weight = span_ms / (1.0 * codes.window_ms + span_ms)
        counters.utilisation += weight * (useful / capacity - counters.utilisation)
        if counters.shares_space == 0 and useful + switched > 0:
            counters.switch_part += weight * (switched / (useful + switched) - counters.switch_part)
    counters.measured_ms = now_ms
    counters.lost_measured, counters.switched_measured = counters.lost_any, counters.switched
    critical = critical_utilisation(counters.switch_part)
    if counters.shares_space:
        critical -= HYSTERESIS
    shares_space = counters.utilisation > critical
    counters.changes += shares_space and counters.shares_space == 0
    counters.shares_space = shares_space
    counters.open_rows = _rows_of_space(state) if shares_space else all_rows(state)


@kernel_part
def _rows_of_space(state: GangSite) -> Int:
    """Return the rows, as bits, that new jobs can join during space sharing; row 0 if no row is in use."""
    open_rows, least, n_used = 0, NO_ROW, 0
    for row in range(state.counters[0].rows):
        if state.used[row] > 0:
            open_rows |= 1 << row
            n_used += 1
            if least == NO_ROW or state.used[row] <= state.used[least]:
                least = row
    if n_used > 1:
        open_rows ^= 1 << least
    return open_rows if n_used > 0 else 1


class GangRules(NamedTuple):
    """The `RateRules` of a gang site."""

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
    """Schedule each placed job's end for the time when its slices will have added up to the rest of its run time."""
    cycle = cycle_of(state, codes)
    for i in range(state.counters[0].n_placed):
        row = state.placed[i]
        job = state.jobs[row]
        left_ms = job.owed_ms + run.run_ms[row] - job.worked_ms
        end_ms = now_ms + done_in_turns_ms(job, cycle, left_ms)
        expect_work(run.ends, work, row, job.job_id, work_of(left_ms), now_ms, end_ms)


@kernel
def rates_at(state: GangSite, codes: GangCodes, now_ms: Int, rates: Ints) -> Int:
    """Write the current rates of all placed jobs to ``rates``; return the time when the next rate changes.

    Parameters
    ----------
    state : GangSite
        The state after the pass at ``now_ms``.
    codes : GangCodes
    now_ms : int
    rates : numpy.ndarray of int64, shape (capacity,)
        Output, in the order of ``placed``: `RATE_ONE` if the job is working, 0 if it is paused or losing time to a
        switch or a move, `NOT_RUNNING` if it has not begun.

    Returns
    -------
    int
        The time in ms, or `NEVER_MS` if no rate changes before the next decision.
    """
    counters = state.counters[0]
    next_ms = NEVER_MS
    cycle = cycle_of(state, codes)
    if cycle.n_turns == 0:
        return next_ms
    elapsed_ms = now_ms - counters.since_ms
    slices = elapsed_ms // codes.slice_ms
    turn = slices % cycle.n_turns
    for i in range(counters.n_placed):
        job = state.jobs[state.placed[i]]
        rates[i] = NOT_RUNNING
        if job.begin_ms > now_ms:
            next_ms = min(next_ms, job.begin_ms)
            continue
        rates[i] = 0
        if (job.turns >> turn) & 1:
            walked = walk_turns(job, cycle, elapsed_ms, NEVER_MS)
            to_pay_ms = walked.switch_left_ms
            if elapsed_ms % codes.slice_ms == 0 and walked.works == 0 and job.begin_ms < now_ms:
                to_pay_ms = codes.switch_ms
            to_pay_ms += max(0, job.owed_ms - walked.gained_ms)
            if to_pay_ms == 0:
                rates[i] = RATE_ONE
            else:
                next_ms = min(next_ms, now_ms + to_pay_ms)
        if job.turns != (1 << cycle.n_turns) - 1:
            next_ms = min(next_ms, counters.since_ms + (slices + 1) * codes.slice_ms)
    return next_ms

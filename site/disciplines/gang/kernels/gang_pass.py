"""A decision: the matrix is made anew, phase by phase, and its slices go round from now on (Zhang, section 5.2)."""

from __future__ import annotations

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.disciplines.gang.kernels.adaptive import adapt
from gridweave.site.disciplines.gang.kernels.compact import compact
from gridweave.site.disciplines.gang.kernels.fill import clean, fill
from gridweave.site.disciplines.gang.kernels.schedule import schedule
from gridweave.site.disciplines.gang.kernels.state import GangCodes, GangSite, count_loss, cycle_of, free_in
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.turns import Cycle, done_in_turns_ms, turn_at, walk_turns

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"


@kernel
def gang_pass(state: GangSite, codes: GangCodes, now_ms: Int) -> bool:
    """Decide, if anything has happened that asks for a decision now; return whether one was taken.

    Parameters
    ----------
    state : GangSite
        Changed in place: where jobs are, which slices go round from now on, and when each job begins and ends.
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
    if codes.fills:
        fill(state, codes, False)
    if codes.migrates_to_fill:
        fill(state, codes, True)
    _go_round(state, codes, now_ms)
    return True


@kernel_part
def _bring_up(state: GangSite, codes: GangCodes, now_ms: Int) -> None:
    """Note what each job has done since the last decision, and which row had the last slice."""
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
    """Let the rows in use have their slices, one after the other, from the row behind the last slice's."""
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
    """Give a job the slices of its rows; note on how many nodes jobs are resumed in each."""
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

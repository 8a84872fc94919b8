"""The pass of a dynP site: a tuning step, if one is due, and then the starts in the active plan (docs/dynp.md)."""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import Int, kernel, kernel_method, kernel_part
from gridweave.site.disciplines.dynp.kernels.deciding import NO_VALUE, by_bounds, by_calendar, case_of, decide, worth
from gridweave.site.disciplines.dynp.kernels.state import (
    BOUNDS,
    ENDED,
    NO_CANDIDATE,
    SELF_TUNING,
    STARTED,
    Tuning,
    add_to_candidates,
    follow_start,
    leave_candidates,
    make_stale,
    note_next_starts,
    plan_of,
    site_of,
)
from gridweave.site.kernels.planning import update_plan
from gridweave.site.kernels.state import NEVER_MS, REPLAN, SiteState, begin, enqueue

_THREE = 3
"""Number of candidates in Table 4.3."""


class TuningRules(NamedTuple):
    """The `SiteRules` of a dynP site."""

    tuning: Tuning

    @kernel_method
    def submitted(self, state: SiteState, slot: Int) -> None:
        add_to_candidates(state, self.tuning, slot)
        enqueue(state, slot)

    @kernel_method
    def withdrawn(self, state: SiteState, place: Int) -> None:
        # As after the end of a job, there is a tuning step and the plan is made from scratch.
        leave_candidates(state, self.tuning, state.waiting[place])
        self.tuning.memory.now[0].due |= ENDED
        state.counters[0].stale = REPLAN

    @kernel_method
    def ended(self, state: SiteState, place: Int, end_ms: Int, now_ms: Int) -> None:
        if end_ms != now_ms:
            state.counters[0].stale = REPLAN
        self.tuning.memory.now[0].due |= ENDED

    @kernel_method
    def resized(self, by: Int) -> None:
        self.tuning.plan.total[0] += by

    @kernel_method
    def run_pass(self, state: SiteState, now_ms: Int) -> None:
        tuned_pass(state, self.tuning, now_ms)


@kernel
def tuned_pass(state: SiteState, tuning: Tuning, now_ms: Int) -> None:
    """Choose the policy if a tuning step is due, update the plan, and start the jobs that are planned to start now.

    Parameters
    ----------
    state : SiteState
    tuning : Tuning
        Changed in place, like ``state``.
    now_ms : int
    """
    counters, now = state.counters[0], tuning.memory.now[0]
    n_started = 0
    due = now.due & tuning.codes.follows
    now.due = 0
    while True:
        if counters.stale == REPLAN:
            make_stale(tuning)
        if due != 0 and counters.n_waiting >= tuning.codes.least_waiting:
            _tune(state, tuning, now_ms)
        update_plan(state, tuning.plan, tuning.limits, None, True, now_ms)
        # `update_plan` has reset the counter, but jobs that started before this tuning step count too.
        counters.n_started = n_started
        _start_planned(state, tuning, now_ms)
        due = tuning.codes.follows & STARTED
        if counters.n_started == n_started or due == 0:
            break
        n_started = counters.n_started
    note_next_starts(tuning)


@kernel
def _tune(state: SiteState, tuning: Tuning, now_ms: Int) -> None:
    """Choose a candidate and activate it."""
    codes, now = tuning.codes, tuning.memory.now[0]
    now.decisions += 1
    if codes.way == SELF_TUNING:
        chosen = _judge(state, tuning, now_ms)
    elif codes.way == BOUNDS:
        chosen = by_bounds(state, codes)
    else:
        chosen = by_calendar(tuning.calendar, tuning.limits.week, now_ms)
    if chosen != now.active:
        _note_switch(tuning, chosen, now_ms)
        _take_order(state, tuning, chosen)
    if codes.way == SELF_TUNING:
        if codes.unsorted != NO_CANDIDATE:
            _leave_list(state, tuning, chosen, now_ms)
        _take_plan(state, tuning, chosen)


@kernel
def _judge(state: SiteState, tuning: Tuning, now_ms: Int) -> Int:
    """Make and evaluate every candidate's plan; return the candidate that the decider chooses."""
    codes, memory = tuning.codes, tuning.memory
    for k in range(len(memory.values)):
        c = k
        if codes.unsorted != NO_CANDIDATE:
            c = _nth_tried(memory.now[0].active, k)
            _leave_list(state, tuning, c, now_ms)
        site = site_of(state, tuning.candidates, c)
        update_plan(site, plan_of(tuning.plan, tuning.candidates, c), tuning.limits, None, True, now_ms)
        memory.values[c] = worth(tuning.candidates, c, memory, codes, now_ms)
    if memory.values[memory.now[0].active] < NO_VALUE:
        memory.values[memory.now[0].active] *= codes.keeps
    if len(memory.values) == _THREE:
        memory.cases[case_of(memory.values, memory.now[0].active)] += 1
    return decide(memory.values, memory.now[0].active, codes)


@kernel_part
def _nth_tried(active: Int, k: Int) -> Int:
    """Return the candidate (0, 1, 2: FCFS, SJF, LJF) whose plan is made k-th, with ``reading="thesis"`` and k from 0.

    The active candidate comes first, because the event itself requires its plan. The other two follow in the order SJF,
    FCFS, LJF.
    """
    if k == 0:
        return active
    if active == 0:
        return k
    if active == 1:
        return 0 if k == 1 else 2
    return 1 if k == 1 else 0


@kernel
def _leave_list(state: SiteState, tuning: Tuning, c: Int, now_ms: Int) -> None:
    """Sort the shared list of waiting jobs for a candidate or, for FCFS, make the plan from the list as it is.

    Used only with ``reading="thesis"``: the tables suggest that a single list was sorted in place, except by FCFS.
    """
    listed, candidates = tuning.memory.listed, tuning.candidates
    n_waiting = state.counters[0].n_waiting
    if c != tuning.codes.unsorted:
        for place in range(n_waiting):
            listed[place] = candidates.waiting[c, place]
        return
    for place in range(n_waiting):
        candidates.waiting[c, place] = listed[place]
    candidates.counters[c, 0].stale = REPLAN
    site = site_of(state, candidates, c)
    update_plan(site, plan_of(tuning.plan, candidates, c), tuning.limits, None, True, now_ms)


@kernel
def _note_switch(tuning: Tuning, chosen: Int, now_ms: Int) -> None:
    memory = tuning.memory
    now = memory.now[0]
    memory.active_ms[now.active] += now_ms - now.since_ms
    memory.switches[chosen] += 1
    entry = memory.log[now.n_logged % len(memory.log)]
    entry.when_ms = now_ms
    entry.candidate = chosen
    now.n_logged += 1
    now.since_ms = now_ms
    now.active = chosen


@kernel
def _take_order(state: SiteState, tuning: Tuning, chosen: Int) -> None:
    """Reorder the site's queue like a candidate's queue, and mark the site's plan as stale."""
    candidates = tuning.candidates
    for place in range(state.counters[0].n_waiting):
        slot = candidates.waiting[chosen, place]
        state.waiting[place] = slot
        state.jobs[slot].key = candidates.jobs[chosen, slot].key
    state.counters[0].stale = REPLAN


@kernel
def _take_plan(state: SiteState, tuning: Tuning, chosen: Int) -> None:
    """Copy a candidate's queue order and plan to the site."""
    candidates, plan, counters = tuning.candidates, tuning.plan, state.counters[0]
    for place in range(counters.n_waiting):
        slot = candidates.waiting[chosen, place]
        state.waiting[place] = slot
        state.jobs[slot].promised_ms = candidates.jobs[chosen, slot].promised_ms
    for p in range(len(plan.n_steps)):
        n_steps = candidates.n_steps[chosen, p]
        plan.n_steps[p] = n_steps
        for i in range(n_steps):
            plan.step_ms[p, i] = candidates.step_ms[chosen, p, i]
            plan.step_free[p, i] = candidates.step_free[chosen, p, i]
    counters.stale = candidates.counters[chosen, 0].stale
    counters.first_new = NEVER_MS


@kernel
def _start_planned(state: SiteState, tuning: Tuning, now_ms: Int) -> None:
    """Start the jobs whose planned start has been reached, and record the next planned start."""
    counters = state.counters[0]
    before = counters.n_started
    counters.next_start_ms = NEVER_MS
    kept = 0
    for place in range(counters.n_waiting):
        slot = state.waiting[place]
        promised_ms = state.jobs[slot].promised_ms
        if promised_ms <= now_ms:
            begin(state, place, now_ms)
        else:
            counters.next_start_ms = min(counters.next_start_ms, promised_ms)
            state.waiting[kept] = slot
            kept += 1
    counters.n_waiting = kept
    for i in range(before, counters.n_started):
        follow_start(state, tuning, state.started[i], now_ms)

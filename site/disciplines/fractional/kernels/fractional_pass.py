"""The pass of a fractional site: place jobs, give them CPU, and charge penalties for pauses and moves.

At each instant, call `fractional_left`, `fractional_submitted`, `place_jobs`, `give_yields` (or a linear program) and
`set_rates`, in this order. In the compiled loop, `FractionalRules` makes these calls.
"""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import Int, kernel, kernel_method, kernel_part
from gridweave.site.disciplines.fractional.kernels.allocation import fair_yields, level_yields, stretch_yields
from gridweave.site.disciplines.fractional.kernels.greedy import displace, place_greedily, place_waiting
from gridweave.site.disciplines.fractional.kernels.packing import Remapping, remap_all
from gridweave.site.disciplines.fractional.kernels.state import (
    PAUSED,
    RUNS,
    WAITS,
    FractionalSite,
    advance,
    fractional_left,
    fractional_submitted,
)
from gridweave.site.kernels.dispatch import follow_rates
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import RunArrays, WorkTable

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

NOTHING, GREEDY, GREEDY_P, GREEDY_PM, MCB8 = 0, 1, 2, 3, 4
"""How a new job is placed; with NOTHING, the job is not placed before the period ends."""

PER, STRETCH_PER = 1, 2
"""How all jobs are placed at the end of each period; with NOTHING, there are no periods."""

LEVEL, OPT_MIN, OPT_MAX = 0, 1, 2
"""Which yields `give_yields` computes; LEVEL yields are the starting point of a linear program."""


class FractionalCodes(NamedTuple):
    """An algorithm, encoded for the kernels.

    Attributes
    ----------
    on_submit, periodic, yields : int
        Constants of this module.
    on_end : int
        1 if jobs are also placed when a job ends, else 0.
    min_flow_ms, min_virtual : int
        MINFT in ms, and MINVT as work; 0 if not set.
    period_ms, penalty_ms, long_ms : int
        As in `gridweave.site.disciplines.fractional.policy.FractionalPolicy`.
    """

    on_submit: Int
    periodic: Int
    yields: Int
    on_end: Int
    min_flow_ms: Int
    min_virtual: Int
    period_ms: Int
    penalty_ms: Int
    long_ms: Int


@kernel
def fractional_pass(state: FractionalSite, codes: FractionalCodes, now_ms: Int) -> None:
    """Run the pass of an algorithm that does not need a linear program.

    Parameters
    ----------
    state : FractionalSite
        Changed in place; ``started`` and ``changed`` list the jobs started and the rates changed by this pass.
    codes : FractionalCodes
    now_ms : int
    """
    if place_jobs(state, codes, now_ms):
        give_yields(state, codes, now_ms)
    set_rates(state, codes, now_ms)


@kernel
def place_jobs(state: FractionalSite, codes: FractionalCodes, now_ms: Int) -> bool:
    """Place jobs as the algorithm requires at this instant; return whether yields must be recomputed.

    Notes
    -----
    Source: Stillwell, section 4.4. If a period ends now, all jobs are placed, which covers all other events. Otherwise,
    if a job has ended, older jobs are placed before new jobs.
    """
    counters = state.counters[0]
    advance(state, codes.long_ms, now_ms)
    due = counters.next_period_ms <= now_ms and counters.n_here > counters.n_new
    if not (due or counters.ended == 1 or counters.n_new > 0):
        counters.n_started = 0
        return False
    _remember(state)
    if due:
        horizon_ms = codes.period_ms if codes.periodic == STRETCH_PER else 0
        remap_all(state, Remapping(codes.min_flow_ms, codes.min_virtual, horizon_ms), now_ms)
    elif codes.on_submit == MCB8:
        if counters.n_new > 0 or codes.on_end == 1:
            remap_all(state, Remapping(codes.min_flow_ms, codes.min_virtual, 0), now_ms)
    elif codes.on_submit != NOTHING:
        if counters.ended == 1 and codes.on_end == 1:
            place_waiting(state, counters.n_here - counters.n_new)
        _admit(state, codes)
    counters.ended = counters.n_new = 0
    _settle(state, codes, now_ms)
    return True


@kernel_part
def _admit(state: FractionalSite, codes: FractionalCodes) -> None:
    """Place the new jobs in submit order, pausing or moving other jobs if necessary."""
    counters = state.counters[0]
    for place in range(counters.n_here - counters.n_new, counters.n_here):
        slot = state.here[place]
        if not place_greedily(state, slot) and codes.on_submit != GREEDY:
            displace(state, slot, codes.on_submit == GREEDY_PM)


@kernel_part
def _remember(state: FractionalSite) -> None:
    """Save the nodes of the running jobs' tasks in ``before``."""
    for place in range(state.counters[0].n_here):
        job = state.jobs[state.here[place]]
        job.ran = 1 if job.status == RUNS else 0
        if job.ran == 1:
            for task in range(job.first, job.first + job.width):
                state.before[task] = state.tasks[task]


@kernel_part
def _settle(state: FractionalSite, codes: FractionalCodes, now_ms: Int) -> None:
    """Record the jobs that were started, paused or moved at this instant, and charge the penalties.

    Only the net change at this instant counts. A job that was resumed or moved pays a penalty: it holds its memory and
    CPU but does not work for ``penalty_ms``.
    """
    counters = state.counters[0]
    counters.n_started = 0
    for place in range(counters.n_here):
        slot = state.here[place]
        job = state.jobs[slot]
        moved = _moved_memory(state, slot) if job.status == RUNS else 0
        job.changed_place = 1 if moved > 0 or (job.ran == 1 and job.status != RUNS) else 0
        if job.status == RUNS and job.start_ms < 0:
            job.start_ms = now_ms
            state.started[counters.n_started] = slot
            counters.n_started += 1
        elif job.status == RUNS and moved > 0:
            job.pays_until_ms = now_ms + codes.penalty_ms
            job.migrated += job.ran
            job.moved += moved
        elif job.status == PAUSED and job.ran == 1:
            job.pays_until_ms = 0
            job.preempted += 1
            job.moved += _memory_of(state, slot)


@kernel_part
def _memory_of(state: FractionalSite, slot: Int) -> Int:
    """Return the memory of all tasks of a job, in millionths of a node."""
    job = state.jobs[slot]
    memory = 0
    for number in range(job.first_group, job.end_group):
        memory += state.groups[number].count * state.groups[number].memory
    return memory


@kernel_part
def _moved_memory(state: FractionalSite, slot: Int) -> Int:
    """Return the memory of a job's tasks that changed nodes in this pass, or of all its tasks if it was not running."""
    job = state.jobs[slot]
    moved = _memory_of(state, slot)
    if job.ran == 1:
        for number in range(job.first_group, job.end_group):
            moved -= _stayed(state, number) * state.groups[number].memory
    return moved


@kernel_part
def _stayed(state: FractionalSite, number: Int) -> Int:
    """Return how many tasks of a group stayed on their nodes in this pass; the tasks of a group are interchangeable."""
    stayed = 0
    old = new = state.groups[number].first
    end = old + state.groups[number].count
    while old < end and new < end:
        if state.before[old] == state.tasks[new]:
            stayed += 1
            old += 1
            new += 1
        elif state.before[old] < state.tasks[new]:
            old += 1
        else:
            new += 1
    return stayed


@kernel
def give_yields(state: FractionalSite, codes: FractionalCodes, now_ms: Int) -> None:
    """Compute the yields of the running jobs.

    Parameters
    ----------
    state : FractionalSite
    codes : FractionalCodes
        With LEVEL, the minimum yield is maximised (or the maximum expected stretch minimised), and spare CPU stays
        unused.
    now_ms : int
    """
    if codes.periodic == STRETCH_PER:
        horizon_ms = horizon_of(codes, now_ms)
        stretch_yields(state, horizon_ms, now_ms, len(state.jobs) if codes.yields == OPT_MAX else 1)
    elif codes.yields == OPT_MIN:
        fair_yields(state)
    else:
        level_yields(state)


@kernel_part
def horizon_of(codes: FractionalCodes, now_ms: Int) -> Int:
    """Return the time from now until the next period; periods begin at multiples of ``period_ms``."""
    return codes.period_ms - now_ms % codes.period_ms


@kernel
def set_rates(state: FractionalSite, codes: FractionalCodes, now_ms: Int) -> None:
    """Set each job's rate to its yield, or to 0 while it has no nodes or pays a penalty; list changes in ``changed``.

    Parameters
    ----------
    state : FractionalSite
        Sets ``counters.next_wake_ms`` to the next time when a penalty ends or a period begins.
    codes : FractionalCodes
    now_ms : int
    """
    counters = state.counters[0]
    counters.n_changed = 0
    wake_ms = NEVER_MS
    for place in range(counters.n_here):
        slot = state.here[place]
        job = state.jobs[slot]
        rate = 0
        if job.status == RUNS:
            if job.pays_until_ms > now_ms:
                wake_ms = min(wake_ms, job.pays_until_ms)
            else:
                rate = job.yield_
        if rate != job.rate or job.start_ms == now_ms:
            job.rate = rate
            state.changed[counters.n_changed] = slot
            counters.n_changed += 1
    if codes.periodic != NOTHING:
        counters.next_period_ms = NEVER_MS
        if counters.n_here > 0:
            counters.next_period_ms = now_ms + horizon_of(codes, now_ms)
        wake_ms = min(wake_ms, counters.next_period_ms)
    counters.next_wake_ms = wake_ms


class FractionalRules(NamedTuple):
    """The `RateRules` of a fractional site."""

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

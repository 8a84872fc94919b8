"""Disciplines that keep a plan: planning systems and conservative backfilling (docs/disciplines.md).

Both assign every waiting job a start in the availability profiles. A planning site recomputes the whole plan in queue
order. Conservative backfilling never delays a promised start.
"""

from __future__ import annotations

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.limits import LimitArrays, amount, next_open
from gridweave.site.kernels.profile import advance, clear, earliest_fit, occupy
from gridweave.site.kernels.state import (
    COMPRESS,
    FRESH,
    GIVE_BACK,
    HEAD,
    NEVER_MS,
    NO_LIMITS,
    NO_PLACE,
    REPLAN,
    TAKE,
    UNPLACED_MS,
    Plan,
    SiteState,
    begin,
    drop_started,
)

OVERDUE_MS = 1000
"""Assumed time until a job past its time limit frees its nodes; such jobs occur only on live sites."""


@kernel
def earliest_start(plan: Plan, limits: LimitArrays | None, from_ms: Int, width: Int, length_ms: Int, mask: Int) -> Int:
    """Return the earliest start, from ``from_ms`` on, allowed by the profiles and windows, or ``NEVER_MS``."""
    start_ms = earliest_fit(plan.step_ms[0], plan.step_free[0], plan.n_steps[0], from_ms, width, length_ms)
    if limits is None or mask == NO_LIMITS:
        return start_ms
    # The windows and each profile may delay the start; repeat until none of them does.
    before_ms = NEVER_MS
    while start_ms not in (before_ms, NEVER_MS):
        before_ms = start_ms
        start_ms = next_open(limits, mask, start_ms)
        for p in range(len(plan.n_steps)):
            if start_ms < NEVER_MS:
                needed = width if p == 0 else amount(limits, p, width, mask)
                start_ms = earliest_fit(
                    plan.step_ms[p], plan.step_free[p], plan.n_steps[p], start_ms, needed, length_ms
                )
    return start_ms


@kernel
def occupy_plan(
    plan: Plan, limits: LimitArrays | None, start_ms: Int, end_ms: Int, width: Int, mask: Int, sign: Int
) -> None:
    """Add an occupation to the profiles (sign ``TAKE``), or remove it (``GIVE_BACK``), unless it never starts."""
    if start_ms == NEVER_MS:
        return
    plan.n_steps[0] = occupy(plan.step_ms[0], plan.step_free[0], plan.n_steps[0], start_ms, end_ms, sign * width)
    if limits is None:
        return
    for p in range(1, len(plan.n_steps)):
        taken = sign * amount(limits, p, width, mask)
        if taken != 0:
            plan.n_steps[p] = occupy(plan.step_ms[p], plan.step_free[p], plan.n_steps[p], start_ms, end_ms, taken)


@kernel
def job_ended_early(state: SiteState, plan: Plan, limits: LimitArrays | None, place: Int, now_ms: Int) -> None:
    """Free the nodes of the job at index `place`, which has ended early, for the rest of its estimated time."""
    job = state.jobs[state.running[place].slot]
    occupy_plan(plan, limits, now_ms, state.running[place].end_ms, job.width, job.limits, GIVE_BACK)
    state.counters[0].stale = max(state.counters[0].stale, COMPRESS)


@kernel
def plan_pass(state: SiteState, plan: Plan, limits: LimitArrays, backfills: bool, now_ms: Int) -> None:
    """Update a planning site's plan, and start the jobs whose planned start is now.

    Parameters
    ----------
    state : SiteState
    plan : Plan
        Changed in place, like `state`.
    limits : LimitArrays
    backfills : bool
        Whether a job may start before the job ahead of it.
    now_ms : int
    """
    update_plan(state, plan, limits, backfills, now_ms)
    _start_promised(state, now_ms)


@kernel
def update_plan(state: SiteState, plan: Plan, limits: LimitArrays, backfills: bool, now_ms: Int) -> None:
    """Recompute those parts of a planning site's plan that may have changed.

    Notes
    -----
    The plan is recomputed at every submission, completion and cancellation. If no job has ended early, the new plan is
    the same as the old plan up to the first new job, because there are no new gaps. So only the jobs from the first new
    job on are placed; with FCFS, that is only the new job.
    """
    counters = state.counters[0]
    counters.n_started = 0
    if _is_late(state, now_ms):
        counters.stale = REPLAN
    first = counters.first_new if counters.stale == FRESH else HEAD
    counters.first_new = NEVER_MS
    if counters.stale != FRESH or _is_promised_from(state, first):
        rebuild(state, plan, limits, now_ms, first)
    else:
        _advance(plan, now_ms)
    counters.stale = FRESH
    _place_from(state, plan, limits, backfills, first, now_ms)


@kernel_part
def _is_late(state: SiteState, now_ms: Int) -> bool:
    """Whether a promised start has passed or a job is running past its time limit, so that promises cannot be kept.

    This happens only on live sites, where events come late.
    """
    counters = state.counters[0]
    return counters.next_start_ms < now_ms or (counters.n_running > 0 and state.running[0].end_ms <= now_ms)


@kernel
def _is_promised_from(state: SiteState, first: Int) -> bool:
    """Whether any job from queue position ``first`` on is already in the profiles."""
    for place in range(first, state.counters[0].n_waiting):
        if state.jobs[state.waiting[place]].promised_ms != UNPLACED_MS:
            return True
    return False


@kernel
def _advance(plan: Plan, now_ms: Int) -> None:
    for p in range(len(plan.n_steps)):
        plan.n_steps[p] = advance(plan.step_ms[p], plan.step_free[p], plan.n_steps[p], now_ms)


@kernel
def rebuild(state: SiteState, plan: Plan, limits: LimitArrays | None, now_ms: Int, first: Int) -> None:
    """Rebuild the profiles from running jobs, reservations, and promises to jobs ahead of position ``first``."""
    counters = state.counters[0]
    for p in range(len(plan.n_steps)):
        plan.n_steps[p] = clear(plan.step_ms[p], plan.step_free[p], now_ms, plan.total[p])
    for i in range(counters.n_running):
        job = state.jobs[state.running[i].slot]
        end_ms = state.running[i].end_ms
        if end_ms <= now_ms:
            end_ms = now_ms + OVERDUE_MS
        occupy_plan(plan, limits, now_ms, end_ms, job.width, job.limits, TAKE)
    for i in range(counters.n_reservations):
        reservation = plan.reservations[i]
        occupy_plan(plan, limits, reservation.start_ms, reservation.end_ms, reservation.width, NO_LIMITS, TAKE)
    for place in range(first):
        job = state.jobs[state.waiting[place]]
        occupy_plan(plan, limits, job.promised_ms, job.promised_ms + job.estimate_ms, job.width, job.limits, TAKE)


@kernel
def _place(state: SiteState, plan: Plan, limits: LimitArrays | None, place: Int, from_ms: Int) -> None:
    """Promise a waiting job its earliest start, and add the job to the profiles."""
    job = state.jobs[state.waiting[place]]
    start_ms = earliest_start(plan, limits, from_ms, job.width, job.estimate_ms, job.limits)
    job.promised_ms = start_ms
    occupy_plan(plan, limits, start_ms, start_ms + job.estimate_ms, job.width, job.limits, TAKE)


@kernel
def _place_from(state: SiteState, plan: Plan, limits: LimitArrays, backfills: bool, first: Int, now_ms: Int) -> None:
    """Promise starts to the waiting jobs from position ``first`` on, in queue order."""
    from_ms = now_ms
    for place in range(first, state.counters[0].n_waiting):
        if not backfills and place > 0:
            from_ms = max(now_ms, state.jobs[state.waiting[place - 1]].promised_ms)
        _place(state, plan, limits, place, from_ms)


@kernel
def _start_promised(state: SiteState, now_ms: Int) -> None:
    """Start the jobs whose promised start has been reached, and record the next promised start."""
    counters = state.counters[0]
    first = counters.n_waiting
    next_start_ms = NEVER_MS
    for place in range(counters.n_waiting):
        promised_ms = state.jobs[state.waiting[place]].promised_ms
        if promised_ms <= now_ms:
            begin(state, place, now_ms)
            first = min(first, place)
        elif promised_ms < next_start_ms:
            next_start_ms = promised_ms
    counters.next_start_ms = next_start_ms
    drop_started(state, first)


@kernel
def conservative_pass(state: SiteState, plan: Plan, limits: LimitArrays | None, now_ms: Int) -> None:
    """Update the promises of conservative backfilling, and start the jobs whose promised start is now.

    Parameters
    ----------
    state : SiteState
    plan : Plan
        Changed in place, like `state`.
    limits : None
        A queue has no limits.
    now_ms : int
    """
    keep_promises(state, plan, limits, now_ms)
    _start_promised(state, now_ms)


@kernel
def keep_promises(state: SiteState, plan: Plan, limits: LimitArrays | None, now_ms: Int) -> None:
    """Update the promised starts of conservative backfilling without starting any jobs.

    If jobs have ended early, first move promised starts to earlier times. Then place the new jobs in submit order.

    Parameters
    ----------
    state : SiteState
    plan : Plan
        Changed in place, like `state`.
    limits : None
        A queue has no limits.
    now_ms : int
    """
    counters = state.counters[0]
    counters.n_started = 0
    if _is_late(state, now_ms):
        counters.stale = REPLAN
    if counters.stale == REPLAN:
        _replan_promises(state, plan, limits, now_ms)
    else:
        _advance(plan, now_ms)
        if counters.stale == COMPRESS:
            _compress(state, plan, limits, now_ms)
    counters.stale = FRESH
    while counters.first_new < counters.n_waiting:
        place = _earliest_unplaced(state, counters.first_new)
        if place == NO_PLACE:
            break
        _place(state, plan, limits, place, now_ms)
    counters.first_new = NEVER_MS


@kernel
def _compress(state: SiteState, plan: Plan, limits: LimitArrays | None, now_ms: Int) -> None:
    """Move every promise to the job's earliest start, in queue order, until no promise changes.

    The nodes promised to a job are freed before it is placed again, so no promise is delayed.
    """
    moved = True
    while moved:
        moved = False
        for place in range(state.counters[0].n_waiting):
            job = state.jobs[state.waiting[place]]
            promised_ms = job.promised_ms
            if promised_ms != UNPLACED_MS:
                occupy_plan(plan, limits, promised_ms, promised_ms + job.estimate_ms, job.width, job.limits, GIVE_BACK)
                _place(state, plan, limits, place, now_ms)
                moved = moved or job.promised_ms != promised_ms


@kernel
def _replan_promises(state: SiteState, plan: Plan, limits: LimitArrays | None, now_ms: Int) -> None:
    """Recompute all promises, given the jobs that are actually running."""
    rebuild(state, plan, limits, now_ms, HEAD)
    for place in range(state.counters[0].n_waiting):
        if state.jobs[state.waiting[place]].promised_ms != UNPLACED_MS:
            _place(state, plan, limits, place, now_ms)


@kernel
def _earliest_unplaced(state: SiteState, first: Int) -> Int:
    """Return the position of the first job, by submit time and id, without a promise; ``NO_PLACE`` if there is none."""
    best = NO_PLACE
    for place in range(first, state.counters[0].n_waiting):
        job = state.jobs[state.waiting[place]]
        if job.promised_ms == UNPLACED_MS:
            other = state.jobs[state.waiting[best]]
            if best == NO_PLACE or (job.submit_ms, job.job_id) < (other.submit_ms, other.job_id):
                best = place
    return best

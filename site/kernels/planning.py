"""Disciplines that keep a plan: planning systems and conservative backfilling (docs/disciplines.md).

Both assign every waiting job a start in the availability profiles. A planning site recomputes the whole plan in queue
order. Conservative backfilling never delays a promised start.
"""

from __future__ import annotations

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.chunks import NO_ENTRY, add_held, choose, drop_entries, hold_chosen
from gridweave.site.kernels.limits import LimitArrays, amount, next_open
from gridweave.site.kernels.node_plan import (
    NodePlan,
    advance_nodes,
    clear_nodes,
    earliest_on_nodes,
    forget_reserved,
    hold_planned,
    keep_reserved,
    most_gained,
    occupy_entries,
    takes_any_node,
)
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
def earliest_start(
    plan: Plan,
    limits: LimitArrays | None,
    nodes: NodePlan | None,
    slot: Int,
    from_ms: Int,
    width: Int,
    length_ms: Int,
    mask: Int,
) -> Int:
    """Return the earliest start, from ``from_ms`` on, allowed by the profiles and windows, or ``NEVER_MS``.

    ``slot`` is the row that says what the job asks for, if the site counts resources.
    """
    start_ms = _earliest_free(plan, nodes, slot, from_ms, width, length_ms, NEVER_MS)
    if limits is None or mask == NO_LIMITS:
        return start_ms
    # The windows and each profile may delay the start; repeat until none of them does.
    before_ms = NEVER_MS
    while start_ms not in (before_ms, NEVER_MS):
        before_ms = start_ms
        start_ms = next_open(limits, mask, start_ms)
        if start_ms < NEVER_MS:
            start_ms = _earliest_free(plan, nodes, slot, start_ms, width, length_ms, NEVER_MS)
        for p in range(1, len(plan.n_steps)):
            if start_ms < NEVER_MS:
                needed = amount(limits, p, width, mask)
                start_ms = earliest_fit(
                    plan.step_ms[p], plan.step_free[p], plan.n_steps[p], start_ms, needed, length_ms
                )
    return start_ms


@kernel_part
def _earliest_free(
    plan: Plan, nodes: NodePlan | None, slot: Int, from_ms: Int, width: Int, length_ms: Int, before_ms: Int
) -> Int:
    """Return the earliest start at which the nodes are free, whatever the limits.

    ``before_ms`` is `NEVER_MS`, or a start at which they are known to be free.
    """
    if nodes is not None and nodes.is_used[0]:
        return earliest_on_nodes(nodes, slot, width, from_ms, length_ms, before_ms)
    return earliest_fit(plan.step_ms[0], plan.step_free[0], plan.n_steps[0], from_ms, width, length_ms)


@kernel
def occupy_plan(
    plan: Plan, limits: LimitArrays | None, start_ms: Int, end_ms: Int, width: Int, mask: Int, sign: Int
) -> None:
    """Add an occupation to the profiles (sign ``TAKE``), or remove it (``GIVE_BACK``), unless it never starts."""
    if start_ms == NEVER_MS:
        return
    plan.n_steps[0] = occupy(plan.step_ms[0], plan.step_free[0], plan.n_steps[0], start_ms, end_ms, sign * width)
    _occupy_caps(plan, limits, start_ms, end_ms, width, mask, sign)


@kernel
def _occupy_caps(
    plan: Plan, limits: LimitArrays | None, start_ms: Int, end_ms: Int, width: Int, mask: Int, sign: Int
) -> None:
    """Add an occupation to the profiles of the limits, or remove it."""
    if limits is None:
        return
    for p in range(1, len(plan.n_steps)):
        taken = sign * amount(limits, p, width, mask)
        if taken != 0:
            plan.n_steps[p] = occupy(plan.step_ms[p], plan.step_free[p], plan.n_steps[p], start_ms, end_ms, taken)


@kernel_part
def occupy_job(
    state: SiteState,
    plan: Plan,
    limits: LimitArrays | None,
    nodes: NodePlan | None,
    slot: Int,
    start_ms: Int,
    end_ms: Int,
    sign: Int,
) -> None:
    """Add a job to the plan, or remove it; where the plan is kept for each node, the job must have entries."""
    job = state.jobs[slot]
    if nodes is not None and nodes.is_used[0]:
        if start_ms != NEVER_MS:
            occupy_entries(nodes, slot, start_ms, end_ms, sign)
            _occupy_caps(plan, limits, start_ms, end_ms, job.width, job.limits, sign)
        return
    occupy_plan(plan, limits, start_ms, end_ms, job.width, job.limits, sign)


@kernel
def job_ended_early(
    state: SiteState, plan: Plan, limits: LimitArrays | None, nodes: NodePlan | None, place: Int, now_ms: Int
) -> None:
    """Free the nodes of the job at index `place`, which has ended early, for the rest of its estimated time."""
    running = state.running[place]
    occupy_job(state, plan, limits, nodes, running.slot, now_ms, running.end_ms, GIVE_BACK)
    _note_freed(state, nodes, running.slot, now_ms, running.end_ms)
    state.counters[0].stale = max(state.counters[0].stale, COMPRESS)


@kernel_part
def leave_plan(state: SiteState, plan: Plan, nodes: NodePlan | None, place: Int) -> None:
    """Remove the waiting job at index `place`, which is withdrawn, from the plan of conservative backfilling."""
    counters = state.counters[0]
    slot = state.waiting[place]
    job = state.jobs[slot]
    if job.promised_ms != UNPLACED_MS and counters.stale != REPLAN:
        end_ms = job.promised_ms + job.estimate_ms
        occupy_job(state, plan, None, nodes, slot, job.promised_ms, end_ms, GIVE_BACK)
        _note_freed(state, nodes, slot, job.promised_ms, end_ms)
        if counters.stale == FRESH:
            counters.stale = COMPRESS
    forget_nodes(nodes, slot)


@kernel
def _note_freed(state: SiteState, nodes: NodePlan | None, leaving: Int, start_ms: Int, end_ms: Int) -> None:
    """Record that the resources of another job's entries are available to waiting jobs between start and end."""
    if nodes is not None and nodes.is_used[0]:
        for place in range(state.counters[0].n_waiting):
            slot = state.waiting[place]
            if slot != leaving and nodes.missing[slot] > 0:
                nodes.missing[slot] -= most_gained(nodes, slot, leaving, start_ms, end_ms)


@kernel_part
def forget_nodes(nodes: NodePlan | None, slot: Int) -> None:
    """Remove a waiting job's planned nodes, if any; the plan stays as it is."""
    if nodes is not None:
        drop_entries(nodes.nodes, slot)


@kernel
def plan_pass(
    state: SiteState, plan: Plan, limits: LimitArrays, nodes: NodePlan | None, backfills: bool, now_ms: Int
) -> None:
    """Update a planning site's plan, and start the jobs whose planned start is now.

    Parameters
    ----------
    state : SiteState
    plan : Plan
        Changed in place, like `state`.
    limits : LimitArrays
    nodes : NodePlan or None
        The plan for each node, if the site counts resources.
    backfills : bool
        Whether a job may start before the job ahead of it.
    now_ms : int
    """
    update_plan(state, plan, limits, nodes, backfills, now_ms)
    _start_promised(state, nodes, now_ms)


@kernel
def update_plan(
    state: SiteState, plan: Plan, limits: LimitArrays, nodes: NodePlan | None, backfills: bool, now_ms: Int
) -> None:
    """Recompute those parts of a planning site's plan that may have changed.

    Notes
    -----
    The plan is recomputed at every submission, completion and cancellation. If no job has ended early, the new plan is
    the same as the old plan up to the first new job, because there are no new gaps. So only the jobs from the first new
    job on are placed; with FCFS, that is only the new job. When the site begins or stops to count nodes, all jobs are
    placed again.
    """
    counters = state.counters[0]
    counters.n_started = 0
    if _is_late(state, now_ms):
        counters.stale = REPLAN
    if nodes is not None:
        is_needed = _any_asks_for_parts(state, nodes, UNPLACED_MS)
        if nodes.is_used[0] != is_needed:
            nodes.is_used[0] = is_needed
            counters.stale = REPLAN
    first = counters.first_new if counters.stale == FRESH else HEAD
    counters.first_new = NEVER_MS
    if counters.stale != FRESH or _is_promised_from(state, first):
        rebuild(state, plan, limits, nodes, now_ms, first)
    else:
        _advance(plan, nodes, now_ms)
    counters.stale = FRESH
    _place_from(state, plan, limits, nodes, backfills, first, now_ms)


@kernel_part
def _is_late(state: SiteState, now_ms: Int) -> bool:
    """Whether a promised start has passed or a job is running past its time limit, so that promises cannot be kept.

    This happens only on live sites, where events come late.
    """
    counters = state.counters[0]
    return counters.next_start_ms < now_ms or (counters.n_running > 0 and state.running[0].end_ms <= now_ms)


@kernel
def _any_asks_for_parts(state: SiteState, nodes: NodePlan, from_ms: Int) -> bool:
    """Whether a running job, or a waiting job promised a start from ``from_ms`` on, needs parts or kinds of nodes.

    With `UNPLACED_MS`, the waiting jobs without a promised start count, too.
    """
    for i in range(state.counters[0].n_running):
        if not takes_any_node(nodes, state.running[i].slot):
            return True
    for place in range(state.counters[0].n_waiting):
        slot = state.waiting[place]
        if state.jobs[slot].promised_ms >= from_ms and not takes_any_node(nodes, slot):
            return True
    return False


@kernel
def _is_promised_from(state: SiteState, first: Int) -> bool:
    """Whether any job from queue position ``first`` on is already in the profiles."""
    for place in range(first, state.counters[0].n_waiting):
        if state.jobs[state.waiting[place]].promised_ms != UNPLACED_MS:
            return True
    return False


@kernel
def _advance(plan: Plan, nodes: NodePlan | None, now_ms: Int) -> None:
    for p in range(len(plan.n_steps)):
        plan.n_steps[p] = advance(plan.step_ms[p], plan.step_free[p], plan.n_steps[p], now_ms)
    if nodes is not None and nodes.is_used[0]:
        advance_nodes(nodes, now_ms)


@kernel
def rebuild(
    state: SiteState, plan: Plan, limits: LimitArrays | None, nodes: NodePlan | None, now_ms: Int, first: Int
) -> None:
    """Rebuild the profiles without the waiting jobs from position ``first`` on; these jobs lose their planned nodes."""
    counters = state.counters[0]
    for p in range(len(plan.n_steps)):
        plan.n_steps[p] = clear(plan.step_ms[p], plan.step_free[p], now_ms, plan.total[p])
    if nodes is not None and nodes.is_used[0]:
        clear_nodes(nodes, now_ms)
    for i in range(counters.n_running):
        end_ms = state.running[i].end_ms
        if end_ms <= now_ms:
            end_ms = now_ms + OVERDUE_MS
        occupy_job(state, plan, limits, nodes, state.running[i].slot, now_ms, end_ms, TAKE)
    _keep_reservations(state, plan, limits, nodes)
    for place in range(first):
        slot = state.waiting[place]
        job = state.jobs[slot]
        if job.promised_ms != UNPLACED_MS:
            occupy_job(state, plan, limits, nodes, slot, job.promised_ms, job.promised_ms + job.estimate_ms, TAKE)
    if nodes is not None:
        for place in range(first, counters.n_waiting):
            forget_nodes(nodes, state.waiting[place])


@kernel
def _keep_reservations(state: SiteState, plan: Plan, limits: LimitArrays | None, nodes: NodePlan | None) -> None:
    """Add the reservations to the profiles, or to the plan of each node."""
    if nodes is not None:
        if nodes.is_used[0]:
            keep_reserved(nodes, plan.reservations[: state.counters[0].n_reservations])
            return
        forget_reserved(nodes)
    for i in range(state.counters[0].n_reservations):
        reservation = plan.reservations[i]
        occupy_plan(plan, limits, reservation.start_ms, reservation.end_ms, reservation.width, NO_LIMITS, TAKE)


@kernel
def _place(
    state: SiteState, plan: Plan, limits: LimitArrays | None, nodes: NodePlan | None, place: Int, from_ms: Int
) -> None:
    """Promise a waiting job its earliest start, and add the job to the profiles."""
    slot = state.waiting[place]
    job = state.jobs[slot]
    start_ms = earliest_start(plan, limits, nodes, slot, from_ms, job.width, job.estimate_ms, job.limits)
    _promise(state, plan, limits, nodes, slot, start_ms)


@kernel_part
def _promise(
    state: SiteState, plan: Plan, limits: LimitArrays | None, nodes: NodePlan | None, slot: Int, start_ms: Int
) -> None:
    """Promise a start to a job that is not in the profiles and has no nodes, and add the job to the profiles."""
    job = state.jobs[slot]
    if nodes is not None and nodes.is_used[0] and start_ms != NEVER_MS:
        hold_planned(nodes, slot, job.width, start_ms, job.estimate_ms)
    job.promised_ms = start_ms
    occupy_job(state, plan, limits, nodes, slot, start_ms, start_ms + job.estimate_ms, TAKE)


@kernel
def _place_from(
    state: SiteState,
    plan: Plan,
    limits: LimitArrays,
    nodes: NodePlan | None,
    backfills: bool,
    first: Int,
    now_ms: Int,
) -> None:
    """Promise starts to the waiting jobs from position ``first`` on, in queue order."""
    from_ms = now_ms
    for place in range(first, state.counters[0].n_waiting):
        if not backfills and place > 0:
            from_ms = max(now_ms, state.jobs[state.waiting[place - 1]].promised_ms)
        _place(state, plan, limits, nodes, place, from_ms)


@kernel
def _start_promised(state: SiteState, nodes: NodePlan | None, now_ms: Int) -> None:
    """Start the jobs whose promised start has been reached, and record the next promised start."""
    counters = state.counters[0]
    first = counters.n_waiting
    next_start_ms = NEVER_MS
    for place in range(counters.n_waiting):
        promised_ms = state.jobs[state.waiting[place]].promised_ms
        if promised_ms <= now_ms:
            _take_nodes(state, nodes, state.waiting[place])
            begin(state, place, now_ms)
            first = min(first, place)
        elif promised_ms < next_start_ms:
            next_start_ms = promised_ms
    counters.next_start_ms = next_start_ms
    drop_started(state, first)


@kernel_part
def _take_nodes(state: SiteState, nodes: NodePlan | None, slot: Int) -> None:
    """Give a starting job its planned nodes; if it has none because the plan counts nodes, choose them by rule 4."""
    if nodes is not None:
        if nodes.nodes.first[slot] == NO_ENTRY:
            choose(nodes.nodes, nodes.nodes.free, slot, state.jobs[slot].width)
            hold_chosen(nodes.nodes, slot)
        add_held(nodes.nodes, slot, nodes.nodes.free, -1)


@kernel
def conservative_pass(
    state: SiteState, plan: Plan, limits: LimitArrays | None, nodes: NodePlan | None, now_ms: Int
) -> None:
    """Update the promises of conservative backfilling, and start the jobs whose promised start is now.

    Parameters
    ----------
    state : SiteState
    plan : Plan
        Changed in place, like `state`.
    limits : None
        A queue has no limits.
    nodes : NodePlan or None
        The plan for each node, if the site counts resources.
    now_ms : int
    """
    keep_promises(state, plan, limits, nodes, now_ms)
    _start_promised(state, nodes, now_ms)


@kernel
def keep_promises(
    state: SiteState, plan: Plan, limits: LimitArrays | None, nodes: NodePlan | None, now_ms: Int
) -> None:
    """Update the promised starts of conservative backfilling without starting any jobs.

    If jobs have ended early, first move promised starts to earlier times. Then place the new jobs in submit order.

    Parameters
    ----------
    state : SiteState
    plan : Plan
        Changed in place, like `state`.
    limits : None
        A queue has no limits.
    nodes : NodePlan or None
        The plan for each node, if the site counts resources.
    now_ms : int
    """
    counters = state.counters[0]
    counters.n_started = 0
    if _is_late(state, now_ms):
        counters.stale = REPLAN
    if nodes is not None:
        _count_nodes_again(state, plan, limits, nodes, now_ms)
    if counters.stale == REPLAN:
        _replan_promises(state, plan, limits, nodes, now_ms)
    else:
        _advance(plan, nodes, now_ms)
        if counters.stale == COMPRESS:
            _compress(state, plan, limits, nodes, now_ms)
    counters.stale = FRESH
    while counters.first_new < counters.n_waiting:
        place = _earliest_unplaced(state, counters.first_new)
        if place == NO_PLACE:
            break
        if nodes is not None:
            _plan_for_nodes(state, plan, limits, nodes, state.waiting[place], now_ms)
        _place(state, plan, limits, nodes, place, now_ms)
    counters.first_new = NEVER_MS


@kernel
def _count_nodes_again(state: SiteState, plan: Plan, limits: LimitArrays | None, nodes: NodePlan, now_ms: Int) -> None:
    """Switch the plan to counting nodes if all its jobs take whole nodes of any kind; keep the promised starts."""
    if nodes.is_used[0] and not _any_asks_for_parts(state, nodes, UNPLACED_MS + 1):
        nodes.is_used[0] = False
        for place in range(state.counters[0].n_waiting):
            forget_nodes(nodes, state.waiting[place])
        rebuild(state, plan, limits, nodes, now_ms, state.counters[0].n_waiting)


@kernel
def _plan_for_nodes(
    state: SiteState, plan: Plan, limits: LimitArrays | None, nodes: NodePlan, slot: Int, now_ms: Int
) -> None:
    """Switch to a plan for each node if a new job needs one.

    The jobs with a promised start get nodes in the order of their starts (ties: by job id): the lowest numbers that are
    free throughout. There are always enough, because at each start, only jobs with an earlier start hold nodes.
    """
    if nodes.is_used[0] or takes_any_node(nodes, slot):
        return
    nodes.is_used[0] = True
    rebuild(state, plan, limits, nodes, now_ms, HEAD)
    place = _next_promised(state, UNPLACED_MS, NO_PLACE)
    while place != NO_PLACE:
        job = state.jobs[state.waiting[place]]
        nodes.missing[state.waiting[place]] = 0
        _promise(state, plan, limits, nodes, state.waiting[place], job.promised_ms)
        place = _next_promised(state, job.promised_ms, job.job_id)


@kernel
def _next_promised(state: SiteState, start_ms: Int, job_id: Int) -> Int:
    """Return the position of the next job by (promised start, id) after these values; ``NO_PLACE`` if there is none."""
    best = NO_PLACE
    for place in range(state.counters[0].n_waiting):
        job = state.jobs[state.waiting[place]]
        other = state.jobs[state.waiting[best]]
        is_next = job.promised_ms != UNPLACED_MS and (job.promised_ms, job.job_id) > (start_ms, job_id)
        if is_next and (best == NO_PLACE or (job.promised_ms, job.job_id) < (other.promised_ms, other.job_id)):
            best = place
    return best


@kernel
def _compress(state: SiteState, plan: Plan, limits: LimitArrays | None, nodes: NodePlan | None, now_ms: Int) -> None:
    """Move every promise to the job's earliest start, in queue order, until no promise changes.

    The nodes promised to a job are freed before it is placed again, so no promise is delayed.
    """
    moved = True
    while moved:
        moved = False
        for place in range(state.counters[0].n_waiting):
            if state.jobs[state.waiting[place]].promised_ms != UNPLACED_MS:
                moved = _moves_up(state, plan, limits, nodes, place, now_ms) or moved


@kernel
def _moves_up(
    state: SiteState, plan: Plan, limits: LimitArrays | None, nodes: NodePlan | None, place: Int, now_ms: Int
) -> bool:
    """Move a job to its earliest start; return whether the start has changed. If not, the job keeps its nodes."""
    slot = state.waiting[place]
    job = state.jobs[slot]
    promised_ms = job.promised_ms
    if nodes is not None and nodes.is_used[0] and nodes.missing[slot] > 0:
        return False
    occupy_job(state, plan, limits, nodes, slot, promised_ms, promised_ms + job.estimate_ms, GIVE_BACK)
    start_ms = _earliest_free(plan, nodes, slot, now_ms, job.width, job.estimate_ms, promised_ms)
    if start_ms == promised_ms:
        occupy_job(state, plan, limits, nodes, slot, promised_ms, promised_ms + job.estimate_ms, TAKE)
        return False
    _note_freed(state, nodes, slot, promised_ms, promised_ms + job.estimate_ms)
    forget_nodes(nodes, slot)
    _promise(state, plan, limits, nodes, slot, start_ms)
    return True


@kernel
def _replan_promises(
    state: SiteState, plan: Plan, limits: LimitArrays | None, nodes: NodePlan | None, now_ms: Int
) -> None:
    """Recompute all promises, given the jobs that are actually running."""
    rebuild(state, plan, limits, nodes, now_ms, HEAD)
    for place in range(state.counters[0].n_waiting):
        if state.jobs[state.waiting[place]].promised_ms != UNPLACED_MS:
            _place(state, plan, limits, nodes, place, now_ms)


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

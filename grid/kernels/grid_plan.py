"""The grid queue under conservative backfilling: every job holds a reserved start (docs/grid.md, "Reserved starts").

Sources: the rule is Mu'alem and Feitelson's, over several sites; Streit's thesis, chapter 8, names it as future work.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.kernels.reserved_places import find_place
from gridweave.grid.kernels.running import place_of
from gridweave.grid.kernels.state import FRAGMENT, GridState, begin_taken, finish_job
from gridweave.jit import kernel, kernel_part
from gridweave.site.kernels.profile import advance, clear, occupy
from gridweave.site.kernels.state import (
    GIVE_BACK,
    NEVER_MS,
    NO_PLACE,
    TAKE,
    UNPLACED_MS,
    dequeue,
    drop_started,
)

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def, assignment"

RESERVED = np.dtype([("length_ms", np.int64), ("n_fragments", np.int64)], align=True)
"""What is reserved for a waiting job: for how long, and on how many sites. Its start is ``promised_ms`` of its slot."""

PLAN_COUNTERS = np.dtype([("n_spare", np.int64), ("stale", np.int64), ("next_start_ms", np.int64)], align=True)
"""How many rows are spare, whether something ended early since the last pass, and the next reserved start."""


class GridPlan(NamedTuple):
    """What the grid has reserved.

    Attributes
    ----------
    counters : numpy.ndarray of PLAN_COUNTERS, shape (1,)
    step_ms, step_free : numpy.ndarray of int64, shape (sites + 1, steps)
        The availability profile of each site (`gridweave.site.kernels.profile`), and last of all sites together.
    n_steps : numpy.ndarray of int64, shape (sites + 1,)
    row : numpy.ndarray of int64, shape (slots,)
        Of each waiting job its row in the next two.
    reserved : numpy.ndarray of RESERVED, shape (room,)
    fragments : numpy.ndarray of FRAGMENT, shape (room, most fragments)
    spare : numpy.ndarray of int64, shape (room,)
        The rows that belong to no job.
    earliest_ms, cursor : numpy.ndarray of int64, shape (sites,)
        Room to work in: the earliest start of a job on each site alone, and the step that holds at an instant.
    """

    counters: npt.NDArray[np.void]
    step_ms: npt.NDArray[np.int64]
    step_free: npt.NDArray[np.int64]
    n_steps: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    reserved: npt.NDArray[np.void]
    fragments: npt.NDArray[np.void]
    spare: npt.NDArray[np.int64]
    earliest_ms: npt.NDArray[np.int64]
    cursor: npt.NDArray[np.int64]


def empty_grid_plan(state: GridState, codes: GridCodes, *, room: int) -> GridPlan:
    """Return a plan for an idle grid, in which nothing is reserved.

    Parameters
    ----------
    state : GridState
    codes : GridCodes
    room : int
        Jobs that may wait or run at one time.

    Returns
    -------
    GridPlan
    """
    sites = len(state.nodes)
    # Each job changes what is free at its start and at its end; one step stands for the last pass, and one for now.
    steps = 2 * room + 2
    plan = GridPlan(
        counters=np.zeros(1, PLAN_COUNTERS),
        step_ms=np.zeros((sites + 1, steps), np.int64),
        step_free=np.zeros((sites + 1, steps), np.int64),
        n_steps=np.zeros(sites + 1, np.int64),
        row=np.zeros(len(state.jobs), np.int64),
        reserved=np.zeros(room, RESERVED),
        fragments=np.zeros((room, sites if codes.splits else 1), FRAGMENT),
        spare=np.arange(room),
        earliest_ms=np.zeros(sites, np.int64),
        cursor=np.zeros(sites, np.int64),
    )
    plan.counters["n_spare"] = room
    plan.counters["next_start_ms"] = NEVER_MS
    for row, nodes in enumerate([*state.nodes, state.nodes.sum()]):
        plan.n_steps[row] = clear(plan.step_ms[row], plan.step_free[row], np.int64(0), nodes)
    return plan


def enlarged(plan: GridPlan) -> GridPlan:
    """Return the same plan with room for twice as many jobs.

    Parameters
    ----------
    plan : GridPlan

    Returns
    -------
    GridPlan
    """
    room = len(plan.reserved)
    wider = ((0, 0), (0, 2 * room))
    spare = np.zeros(2 * room, np.int64)
    n_spare = int(plan.counters[0]["n_spare"])
    spare[:n_spare] = plan.spare[:n_spare]
    spare[n_spare : n_spare + room] = np.arange(room, 2 * room)
    plan.counters["n_spare"] += room
    return plan._replace(
        step_ms=np.pad(plan.step_ms, wider),
        step_free=np.pad(plan.step_free, wider),
        reserved=np.concatenate([plan.reserved, np.zeros_like(plan.reserved)]),
        fragments=np.concatenate([plan.fragments, np.zeros_like(plan.fragments)]),
        spare=spare,
    )


@kernel_part
def has_room(state, plan, n_new):
    """Whether the plan has room for so many new jobs."""
    counters = state.counters[0]
    return counters.n_waiting + counters.n_running + n_new <= len(plan.reserved)


@kernel
def planned_job_ended(state, plan, slot, now_ms):
    """Take the job of a slot out, which has ended; return whether it was running.

    What it was expected to go on holding is given back.
    """
    end_ms = state.end_ms[slot]
    place = place_of(state, slot)
    if place == NO_PLACE:
        return False
    if end_ms > now_ms:
        first = state.first_fragment[slot]
        for k in range(first, first + state.n_fragments[slot]):
            _occupy(plan, state.fragments[k].site, now_ms, end_ms, -state.fragments[k].width)
        _occupy(plan, len(state.nodes), now_ms, end_ms, -state.jobs[slot].width)
        plan.counters[0].stale = 1
    finish_job(state, place)
    return True


@kernel
def planned_job_withdrawn(state, plan, place):
    """Take the waiting job at this place out of the queue, and give back what was reserved for it."""
    slot = state.waiting[place]
    if state.jobs[slot].promised_ms != UNPLACED_MS:
        _hold(state, plan, slot, GIVE_BACK)
        _release_row(plan, slot)
        plan.counters[0].stale = 1
    dequeue(state, place)


@kernel
def grid_plan_pass(state, codes, plan, now_ms):
    """Keep every reservation, reserve the new jobs theirs, and start what was reserved to start now.

    Reservations are moved up first if jobs have ended early, then the new jobs are placed, in submit order.

    Parameters
    ----------
    state : GridState
    codes : GridCodes
    plan : GridPlan
        Changed in place, as is the state; ``started`` lists the slots of the jobs that started.
    now_ms : int
        No later than the next reserved start.
    """
    counters = state.counters[0]
    counters.n_started = 0
    for row in range(len(plan.n_steps)):
        plan.n_steps[row] = advance(plan.step_ms[row], plan.step_free[row], plan.n_steps[row], now_ms)
    if plan.counters[0].stale:
        _compress(state, codes, plan, now_ms)
    plan.counters[0].stale = 0
    while counters.first_new < counters.n_waiting:
        slot = _first_unplaced(state, counters.first_new)
        if slot == NO_PLACE:
            break
        start_ms, length_ms = find_place(state, codes, plan, slot, now_ms, NEVER_MS)
        plan.counters[0].n_spare -= 1
        plan.row[slot] = plan.spare[plan.counters[0].n_spare]
        _reserve(state, plan, slot, start_ms, length_ms)
        _hold(state, plan, slot, TAKE)
    counters.first_new = NEVER_MS
    _start_reserved(state, codes, plan, now_ms)


@kernel
def _first_unplaced(state, first):
    """Return the slot of the first job, by submit time and id, with nothing reserved; ``NO_PLACE`` if all have that."""
    best = NO_PLACE
    for place in range(first, state.counters[0].n_waiting):
        slot = state.waiting[place]
        job = state.jobs[slot]
        if job.promised_ms == UNPLACED_MS:
            other = state.jobs[best]
            if best == NO_PLACE or (job.submit_ms, job.job_id) < (other.submit_ms, other.job_id):
                best = slot
    return best


@kernel
def _compress(state, codes, plan, now_ms):
    """Move reservations to better places, in the order of the queue, until none moves any more."""
    moved = True
    while moved:
        moved = False
        for place in range(state.counters[0].n_waiting):
            slot = state.waiting[place]
            if state.jobs[slot].promised_ms != UNPLACED_MS and _improve(state, codes, plan, slot, now_ms):
                moved = True


@kernel
def _improve(state, codes, plan, slot, now_ms):
    """Move a reservation to where it ends earlier, or then in fewer fragments; return whether there is such a place."""
    job = state.jobs[slot]
    row = plan.row[slot]
    n_fragments = plan.reserved[row].n_fragments
    if job.promised_ms == now_ms and n_fragments == 1:
        return False
    end_ms = job.promised_ms + plan.reserved[row].length_ms
    _hold(state, plan, slot, GIVE_BACK)
    start_ms, length_ms = find_place(state, codes, plan, slot, now_ms, end_ms)
    better = start_ms < NEVER_MS and (start_ms + length_ms < end_ms or state.counters[0].n_taken < n_fragments)
    if better:
        _reserve(state, plan, slot, start_ms, length_ms)
    _hold(state, plan, slot, TAKE)
    return better


@kernel
def _reserve(state, plan, slot, start_ms, length_ms):
    """Note the nodes in ``taken`` as what is reserved for a job."""
    row = plan.row[slot]
    n_taken = state.counters[0].n_taken
    for k in range(n_taken):
        plan.fragments[row, k] = state.taken[k]
    plan.reserved[row].length_ms = length_ms
    plan.reserved[row].n_fragments = n_taken
    state.jobs[slot].promised_ms = start_ms


@kernel
def _hold(state, plan, slot, sign):
    """Enter a job's reservation into the profiles (sign ``TAKE``), or take it out (``GIVE_BACK``)."""
    row = plan.row[slot]
    start_ms = state.jobs[slot].promised_ms
    end_ms = start_ms + plan.reserved[row].length_ms
    for k in range(plan.reserved[row].n_fragments):
        _occupy(plan, plan.fragments[row, k].site, start_ms, end_ms, sign * plan.fragments[row, k].width)
    _occupy(plan, len(state.nodes), start_ms, end_ms, sign * state.jobs[slot].width)


@kernel_part
def _occupy(plan, row, start_ms, end_ms, width):
    """Take nodes out of a profile; a negative width gives them back."""
    plan.n_steps[row] = occupy(plan.step_ms[row], plan.step_free[row], plan.n_steps[row], start_ms, end_ms, width)


@kernel_part
def _release_row(plan, slot):
    """Put the row of a job back among the spare ones."""
    plan.spare[plan.counters[0].n_spare] = plan.row[slot]
    plan.counters[0].n_spare += 1


@kernel
def _start_reserved(state, codes, plan, now_ms):
    """Start the jobs whose reserved start has come, and note the next one."""
    counters = state.counters[0]
    first = counters.n_waiting
    next_start_ms = NEVER_MS
    for place in range(counters.n_waiting):
        slot = state.waiting[place]
        promised_ms = state.jobs[slot].promised_ms
        if promised_ms <= now_ms:
            row = plan.row[slot]
            counters.n_taken = plan.reserved[row].n_fragments
            for k in range(counters.n_taken):
                state.taken[k] = plan.fragments[row, k]
            begin_taken(state, codes, place, now_ms)
            _release_row(plan, slot)
            first = min(first, place)
        elif promised_ms < next_start_ms:
            next_start_ms = promised_ms
    plan.counters[0].next_start_ms = next_start_ms
    drop_started(state, first)

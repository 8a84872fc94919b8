"""The grid queue: one queue over all sites with EASY backfilling that protects the head's reservation (docs/grid.md).

A meta-scheduler runs the queue step by step, as jobs arrive, nodes come and go, and expected ends change.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.candidates import drop_started, limits_now, next_candidate, note_wants
from gridweave.grid.kernels.links import note_taken
from gridweave.grid.kernels.links_placement import (
    ends_late_on_links,
    ends_on_one_site_by,
    fits_now,
    stays_settled,
    take_free_site,
    take_parts_ahead,
    take_parts_now,
    take_site_ahead,
    take_spare_parts,
)
from gridweave.grid.kernels.overhead import shortest_split_ms, shortest_split_now_ms, split_length_ms
from gridweave.grid.kernels.placement import ANYWHERE, NOTHING, GridCodes, may_split
from gridweave.grid.kernels.resource_placement import (
    hold_taken,
    let_go_of_nodes,
    reach_from_now,
    use_up_ahead,
)
from gridweave.grid.kernels.resources import GridNodes, count_given_back, most_on_one_site
from gridweave.grid.kernels.running import (
    FIRST_PLACE,
    end_place,
    join_blocks,
    leave_blocks,
    next_place,
    place_of,
    row_at,
)
from gridweave.grid.kernels.state import (
    ALL_NODES,
    UNKNOWN,
    GridState,
    Place,
    SiteNodes,
    Slot,
    add_free,
    copy_order,
    freed,
    freed_by,
    freed_in_all,
    largest_for,
    move_site,
)
from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.state import GONE, HEAD, NEVER_MS, NO_LIMITS, NO_PLACE, enqueue


@kernel_part
def grid_job_ended(state: GridState, slot: Slot) -> bool:
    """Remove an ended job; return whether the job was running."""
    place = place_of(state, slot)
    if place == NO_PLACE:
        return False
    finish_job(state, place)
    return True


@kernel
def grid_pass(state: GridState, codes: GridCodes, now_ms: Int) -> None:
    """Start the head while it can be placed, then backfill candidates.

    Parameters
    ----------
    state : GridState
        Changed in place; ``started`` lists the slots of the started jobs.
    codes : GridCodes
    now_ms : int

    Notes
    -----
    In contrast to a single site, most passes start from scratch: a start on one site can move the head's reservation to
    another site and, under ``adaptive``, can make a split worthwhile. ``narrowest`` is a lower bound on the widths in
    the queue.

    There is one shortcut. If the last pass started no job, and since then no job has started or ended and no expected
    end has changed, then no job examined in that pass can start now: it would only end later, while the shadow time and
    the ends on single sites are the same. So only the new jobs are examined, and the head keeps its reservation.

    A call that is not inlined passes all arrays of the grid and its links, more than a hundred words. That takes a
    considerable part of a pass's time, so there are few such calls, each at a single place in the code.
    """
    counters = state.counters[0]
    note_wants(state)
    first_new = counters.first_new
    counters.n_started = 0
    counters.first_new = NEVER_MS
    if counters.n_waiting == 0 or counters.free < counters.narrowest:
        return
    head = HEAD
    new_alone = first_new > head and counters.settled == state.waiting[head] and stays_settled(codes.net)
    if new_alone:
        first = first_new
        if not _any_fits(state, first):
            return
    else:
        while head < counters.n_waiting and _place_head(state, codes, state.waiting[head], now_ms):
            begin_taken(state, codes, head, now_ms)
            head += 1
        first = head + 1
    if codes.backfills and head < counters.n_waiting and counters.free > 0:
        if new_alone and counters.reserved_for == state.waiting[head]:
            _reserve_again(state)
        else:
            _reserve(state, codes, state.waiting[head])
        _backfill(state, codes, head, first, now_ms)
        _forget_reserved(state)
    if counters.n_started > 0:
        drop_started(state)
    elif not new_alone:
        counters.settled = state.waiting[HEAD]
    if counters.n_waiting == 0:
        counters.narrowest = NEVER_MS


@kernel_part
def _any_fits(state: GridState, first: Int) -> bool:
    """Whether any job from place ``first`` on fits into the free nodes of the whole grid."""
    for place in range(first, state.counters[0].n_waiting):
        if state.jobs[state.waiting[place]].width <= state.counters[0].free:
            return True
    return False


@kernel_part
def _place_head(state: GridState, codes: GridCodes, slot: Slot, now_ms: Int) -> bool:
    """Try to place the head now, with its fragments in ``taken``; return whether that succeeded."""
    if take_free_site(state, codes, codes.net, state.resources, slot, now_ms, NEVER_MS):
        return True
    return (
        state.jobs[slot].width <= state.counters[0].free
        and _may_pay_now(state, codes, slot, now_ms)
        and take_parts_now(state, codes, state.resources, slot, now_ms)
        and _taken_pays(state, codes, slot, now_ms)
    )


@kernel_part
def _pays(state: GridState, codes: GridCodes, slot: Slot, length_ms: Int, when_ms: Int) -> bool:
    """Whether a split of this length that starts at ``when_ms`` is worthwhile; True unless the policy is adaptive.

    An adaptive split must end before the job would end on any single site or on offered shared nodes.
    """
    if not codes.adaptive:
        return True
    end_ms = when_ms + length_ms
    return not (
        _is_offered_by(codes.offers, slot, end_ms)
        or ends_on_one_site_by(state, codes.net, state.resources, slot, when_ms, end_ms)
    )


@kernel_part
def _is_offered_by(offers: npt.NDArray[np.int64] | None, slot: Slot, end_ms: Int) -> bool:
    """Whether a job would end by ``end_ms`` on offered shared nodes; True while the job's offers are unknown."""
    return offers is not None and offers[slot] <= end_ms


@kernel_part
def _may_pay(state: GridState, codes: GridCodes, slot: Slot, when_ms: Int) -> bool:
    """Whether a split at ``when_ms`` is allowed and could be worthwhile; if not, no later split is."""
    return may_split(state, codes, slot) and _pays(
        state, codes, slot, shortest_split_ms(state, codes, slot, state.jobs[slot].estimate_ms), when_ms
    )


@kernel_part
def _may_pay_now(state: GridState, codes: GridCodes, slot: Slot, now_ms: Int) -> bool:
    """Whether a split over the nodes that are free now is allowed and could be worthwhile."""
    return may_split(state, codes, slot) and _pays(
        state, codes, slot, shortest_split_now_ms(state, codes, slot, state.jobs[slot].estimate_ms), now_ms
    )


@kernel_part
def _taken_pays(state: GridState, codes: GridCodes, slot: Slot, when_ms: Int) -> bool:
    """Whether the split in ``taken`` is worthwhile if the job starts at ``when_ms``."""
    return _pays(state, codes, slot, split_length_ms(state, codes, slot, state.jobs[slot].estimate_ms), when_ms)


@kernel
def _reserve(state: GridState, codes: GridCodes, slot: Slot) -> None:
    """Find the head's shadow time and reserved nodes, and record each site's extra nodes.

    The search tries one site whenever a site gains enough nodes, and a split whenever all sites together have
    enough. There is no shadow time if the links never allow a placement, or if the policy reserves nothing.
    """
    total = _reserve_nothing(state, state.resources, slot)
    if codes.head_reservation == NOTHING:
        return
    width = state.jobs[slot].width
    largest = largest_for(state, state.resources, slot)
    splits = codes.splits and (codes.head_reservation == ANYWHERE or width > largest)
    in_order = False
    place = FIRST_PLACE
    last = end_place(state)
    while place < last:
        ending = state.running[row_at(state, place)]
        when_ms = ending.end_ms
        fits = False
        while ending.end_ms == when_ms:
            fits = _free_ahead(state, state.resources, ending.slot, slot, width, in_order) or fits
            total = _total_ahead(state, state.resources, total, ending.slot)
            place = next_place(state, place)
            if place == last:
                break
            ending = state.running[row_at(state, place)]
        placed = fits and take_site_ahead(state, codes, codes.net, state.resources, slot, when_ms)
        if not placed and splits and total >= width:
            splits = _may_pay(state, codes, slot, when_ms)
            if splits and not in_order:
                _order_ahead(state, state.resources)
            in_order = splits
            placed = (
                splits
                and take_parts_ahead(state, codes, state.resources, slot, when_ms)
                and _taken_pays(state, codes, slot, when_ms)
            )
        if placed:
            _reserve_taken(state, when_ms)
            return


@kernel_part
def _reserve_nothing(state: GridState, resources: GridNodes | None, slot: Slot) -> Int:
    """Reset the head's reservation, and start the search from the nodes that are free now; return their number."""
    counters = state.counters[0]
    counters.shadow_ms = NEVER_MS
    counters.spare = UNKNOWN
    counters.reserved_for = slot
    counters.n_kept = 0
    if resources is not None:
        resources.head[0] = slot
        return reach_from_now(state, resources, slot, resources.ahead, state.ahead)
    for site in range(len(state.ahead)):
        state.ahead[site] = state.free[site]
    return counters.free


@kernel_part
def _free_ahead(
    state: GridState, resources: GridNodes | None, slot: Slot, head: Slot, width: Int, in_order: bool
) -> bool:
    """Add an ending job's nodes to ``ahead``; return whether the head, of this width, then fits on one of its sites."""
    if resources is not None:
        count_given_back(resources, slot, state.shut, resources.ahead, head, state.ahead)
        return most_on_one_site(state.ahead) >= width
    fits = False
    first = state.first_fragment[slot]
    for k in range(first, first + state.n_fragments[slot]):
        site = state.fragments[k].site
        before = state.ahead[site]
        after = before + freed_by(state, k)
        state.ahead[site] = after
        if in_order:
            move_site(state.ahead_order, site, before, after)
        fits = fits or after >= width
    return fits


@kernel_part
def _total_ahead(state: GridState, resources: GridNodes | None, total: Int, slot: Slot) -> Int:
    """Return the sum of ``ahead``, which was ``total`` before the nodes of an ending job were added."""
    if resources is not None:
        total = np.int64(0)
        for site in range(len(state.ahead)):
            total += state.ahead[site]
        return total
    return total + freed_in_all(state, slot)


@kernel_part
def _order_ahead(state: GridState, resources: GridNodes | None) -> None:
    """Sort the sites by ``ahead``, their free nodes at the time that the search has reached."""
    if resources is not None:
        return
    copy_order(state.free_order, state.ahead_order)
    for site in range(len(state.ahead)):
        if state.ahead[site] != state.free[site]:
            move_site(state.ahead_order, site, state.free[site], state.ahead[site])


@kernel_part
def _reserve_taken(state: GridState, shadow_ms: Int) -> None:
    """Reserve the nodes in ``taken`` for the head at the shadow time."""
    counters = state.counters[0]
    counters.shadow_ms = shadow_ms
    counters.n_kept = counters.n_taken
    for k in range(counters.n_taken):
        state.reserved[k] = state.taken[k]
    _reserve_again(state)


@kernel_part
def _reserve_again(state: GridState) -> None:
    """Restore the head's reservation from the last pass; it is still valid, as no job's start or end has changed."""
    counters = state.counters[0]
    counters.spare = UNKNOWN
    counters.n_reserved = counters.n_kept
    for k in range(counters.n_kept):
        fragment = state.reserved[k]
        state.extra[fragment.site] = state.ahead[fragment.site] - fragment.width


@kernel_part
def _forget_reserved(state: GridState) -> None:
    """Drop the head's reservation, so that all nodes of every site are extra nodes again."""
    for k in range(state.counters[0].n_reserved):
        state.extra[state.reserved[k].site] = ALL_NODES
    state.counters[0].n_reserved = 0


@kernel
def kept_for_head(state: GridState, codes: GridCodes, kept: SiteNodes) -> tuple[Int, Int]:
    """Return the reservation that the head would get, without storing it; used for explanations.

    Parameters
    ----------
    state : GridState
        At least one job is waiting. Afterwards ``reserved`` holds the fragments of the reservation.
    codes : GridCodes
    kept : numpy.ndarray of int64, shape (sites,)
        Output: how many free nodes of each site are denied to jobs that end after the shadow time.

    Returns
    -------
    shadow_ms : int
        ``NEVER_MS`` without a reservation.
    n_reserved : int
        Number of fragments in ``reserved``.
    """
    counters = state.counters[0]
    _reserve(state, codes, state.waiting[HEAD])
    for site in range(len(kept)):
        kept[site] = max(np.int64(0), state.free[site] - state.extra[site])
    n_reserved = counters.n_reserved
    _forget_reserved(state)
    return counters.shadow_ms, n_reserved


@kernel_part
def _backfill(state: GridState, codes: GridCodes, head: Int, first: Int, now_ms: Int) -> None:
    """Try to start every candidate from place ``first`` on, in queue order."""
    counters = state.counters[0]
    narrowest = state.jobs[state.waiting[head]].width
    if first > head + 1:
        narrowest = min(narrowest, counters.narrowest)
    limits = limits_now(state, codes, now_ms)
    place, narrowest_passed = next_candidate(state, limits, first)
    while place < counters.n_waiting:
        slot = state.waiting[place]
        if _place_behind_head(state, codes, slot, now_ms):
            _begin_behind_head(state, codes, place, now_ms)
            if counters.free == 0:
                return
            limits = limits_now(state, codes, now_ms)
        else:
            narrowest = min(narrowest, state.jobs[slot].width)
        narrowest = min(narrowest, narrowest_passed)
        place, narrowest_passed = next_candidate(state, limits, place + 1)
    counters.narrowest = min(narrowest, narrowest_passed)


@kernel_part
def _begin_behind_head(state: GridState, codes: GridCodes, place: Place, now_ms: Int) -> None:
    """Start a candidate; if the job ends after the shadow time, subtract its nodes from the extra nodes."""
    counters = state.counters[0]
    slot = state.waiting[place]
    end_ms = begin_taken(state, codes, place, now_ms)
    counters.spare = UNKNOWN
    if end_ms > counters.shadow_ms:
        _use_up_extra(state, state.resources, slot)


@kernel_part
def _use_up_extra(state: GridState, resources: GridNodes | None, slot: Slot) -> None:
    """Subtract the nodes in ``taken`` from the extra nodes."""
    if resources is not None:
        use_up_ahead(state, resources, slot)
    else:
        for k in range(state.counters[0].n_taken):
            site = state.taken[k].site
            if state.extra[site] != ALL_NODES:
                state.extra[site] -= state.taken[k].width


@kernel_part
def _place_behind_head(state: GridState, codes: GridCodes, slot: Slot, now_ms: Int) -> bool:
    """Try to place a candidate, in ``taken``, without delaying the head; return whether that succeeded."""
    counters = state.counters[0]
    if take_free_site(state, codes, codes.net, state.resources, slot, now_ms, counters.shadow_ms):
        return True
    if codes.adaptive and fits_now(state, codes.net, state.resources, slot):
        # A split would not end sooner, even though the job would delay the head on that site.
        return False
    if not _may_pay_now(state, codes, slot, now_ms):
        return False
    # Try all free nodes if the job ends by the shadow time; otherwise try the spare nodes.
    if ends_late_on_links(state, codes.net, slot, now_ms, counters.shadow_ms):
        pass
    elif take_parts_now(state, codes, state.resources, slot, now_ms):
        end_ms = now_ms + split_length_ms(state, codes, slot, state.jobs[slot].estimate_ms)
        if end_ms <= counters.shadow_ms and _taken_pays(state, codes, slot, now_ms):
            return True
    elif codes.net is None:
        # With fewer nodes on each site, a split would need more fragments, if it were possible at all.
        return False
    return take_spare_parts(state, codes, state.resources, slot, now_ms) and _taken_pays(state, codes, slot, now_ms)


@kernel
def begin_taken(state: GridState, codes: GridCodes, place: Place, now_ms: Int) -> Int:
    """Start the job at this place of the queue on the nodes in ``taken``; return its estimated end.

    Its place in the queue is only marked as a gap, which `drop_started` (candidates.py) closes.
    """
    counters = state.counters[0]
    slot = state.waiting[place]
    job = state.jobs[slot]
    end_ms = now_ms + split_length_ms(state, codes, slot, job.estimate_ms)
    note_taken(state, codes.net, slot)
    state.end_ms[slot] = end_ms
    state.first_fragment[slot] = counters.n_fragments
    state.n_fragments[slot] = counters.n_taken
    _hold_nodes(state, state.resources, slot)
    counters.n_fragments += counters.n_taken
    join_blocks(state, slot, end_ms)
    if counters.n_started == 0:
        counters.first_gap = place
    counters.last_gap = place
    state.started[counters.n_started] = slot
    counters.n_started += 1
    state.waiting[place] = GONE
    freed(state)
    return end_ms


@kernel_part
def _hold_nodes(state: GridState, resources: GridNodes | None, slot: Slot) -> None:
    """Append the fragments in ``taken`` to ``fragments``, and subtract their nodes from the free nodes."""
    counters = state.counters[0]
    for k in range(counters.n_taken):
        fragment = state.taken[k]
        state.fragments[counters.n_fragments + k] = fragment
        if resources is None:
            add_free(state, fragment.site, -fragment.width)
    if resources is not None:
        hold_taken(state, resources, slot)
    else:
        counters.free -= state.jobs[slot].width


@kernel_part
def finish_job(state: GridState, place: Place) -> None:
    """Remove the job at this place from the running jobs and free its nodes."""
    _free_nodes(state, state.resources, leave_blocks(state, place))
    freed(state)


@kernel_part
def _free_nodes(state: GridState, resources: GridNodes | None, slot: Slot) -> None:
    """Free the nodes of a job."""
    if resources is not None:
        let_go_of_nodes(state, resources, slot)
    else:
        first = state.first_fragment[slot]
        for k in range(first, first + state.n_fragments[slot]):
            # A fragment that has already ended has width 0.
            add_free(state, state.fragments[k].site, state.fragments[k].width)
            state.counters[0].free += state.fragments[k].width


PlacedRow = tuple[int, int, int, int, int]
"""A started job: slot, estimated end, number of fragments, first site, and the job's nodes on that site."""


@kernel
def job_arrived(
    state: GridState,
    slot: Slot,
    key: float,
    submit_ms: Int,
    job_id: Int,
    width: Int,
    estimate_ms: Int,
    sensitivity: float,
    draw: float,
) -> None:
    """Fill a slot with a job and insert it into the queue.

    Parameters
    ----------
    state : GridState
        Changed in place.
    slot : int
        A free slot.
    key : float
        Sort key of the queue.
    submit_ms, job_id, width, estimate_ms : int
        Attributes of the job; its width is in nodes.
    sensitivity : float
        Factor on the overhead of a split.
    draw : float
        Random number in [0, 1) for the selection ``random``.
    """
    job = state.jobs[slot]
    job.key = key
    job.submit_ms = submit_ms
    job.job_id = job_id
    job.width = width
    job.estimate_ms = estimate_ms
    job.limits = NO_LIMITS
    state.sensitivity[slot] = sensitivity
    state.draw[slot] = draw
    enqueue(state, slot)


@kernel
def pass_and_placement(state: GridState, codes: GridCodes, now_ms: Int) -> tuple[int, PlacedRow]:
    """Run a scheduling pass; return the number of started jobs and the first started job's `PlacedRow`.

    Parameters
    ----------
    state : GridState
        Changed in place.
    codes : GridCodes
    now_ms : int
    """
    grid_pass(state, codes, now_ms)
    return state.counters[0].n_started, placement_of(state, HEAD)


@kernel_part
def placement_of(state: GridState, number: Int) -> PlacedRow:
    """Return the `PlacedRow` of a job that the last pass started, by its index in ``started``."""
    slot = state.started[number]
    first = state.fragments[state.first_fragment[slot]]
    return slot, state.end_ms[slot], state.n_fragments[slot], first.site, first.width


@kernel
def change_free(state: GridState, site: Int, nodes: Int) -> None:
    """Change the number of free nodes of a site.

    Parameters
    ----------
    state : GridState
        Changed in place.
    site : int
    nodes : int
        Added to the free nodes; may be negative.
    """
    add_free(state, site, nodes)
    state.counters[0].free += nodes
    freed(state)


@kernel
def move_end(state: GridState, slot: Slot, end_ms: Int) -> None:
    """Change the expected end of a running job.

    Parameters
    ----------
    state : GridState
        Changed in place.
    slot : int
        Slot of the job.
    end_ms : int
    """
    place = place_of(state, slot)
    if place != NO_PLACE:
        leave_blocks(state, place)
        join_blocks(state, slot, end_ms)
        state.end_ms[slot] = end_ms
        freed(state)

"""Placement of jobs with a network between the sites (docs/grid.md, "With a network").

Each function takes the links as a separate argument, so that numba compiles it without the network if they are None.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.links import (
    MAX_OVERHEAD,
    NO_DATA,
    GridLinks,
    Memo,
    data_delay_ms,
    grown_ms,
    judge_taken,
    moves_data,
)
from gridweave.grid.kernels.placement import (
    GridCodes,
    choose_free_site,
    choose_site,
    fits_one_site_by,
    fits_one_site_ms,
    fragments_allowed,
    may_split,
    take_site,
    take_split,
    take_split_in_order,
)
from gridweave.grid.kernels.resource_placement import (
    choose_counted_site,
    choose_free_counted_site,
    count_available,
    fits_counted_site_ms,
)
from gridweave.grid.kernels.resources import GridNodes, count_fitting, most_on_one_site
from gridweave.grid.kernels.running import FIRST_PLACE, end_place, next_place, row_at
from gridweave.grid.kernels.state import (
    UNKNOWN,
    GridState,
    SiteNodes,
    SiteOrder,
    Slot,
    copy_order,
    freed_by,
    largest_for,
    most_of,
    move_site,
    nodes_of,
    site_of,
)
from gridweave.jit import Int, kernel, kernel_apart, kernel_part
from gridweave.netmodel.kernels.choice import choose_sites, first_parts_factor, may_grow_by, waits_for_all
from gridweave.netmodel.kernels.placements import Choice
from gridweave.site.kernels.state import NEVER_MS, NO_PLACE

# mypy cannot see that the functions below are compiled only for links that are not None.
# mypy: disable-error-code="arg-type, union-attr"

STARTS, ROUNDS = np.int64(16), np.int64(8)
"""Parameters of the heuristic that chooses sites (netmodel/model.py)."""


@kernel_part
def take_free_site(
    state: GridState,
    codes: GridCodes,
    net: GridLinks | None,
    resources: GridNodes | None,
    slot: Slot,
    now_ms: Int,
    shadow_ms: Int,
) -> bool:
    """Try to place a job on one site now, with its nodes in ``taken``; return whether that succeeded.

    A job that ends after ``shadow_ms`` gets only spare nodes. For the head, pass ``NEVER_MS``.
    """
    if net is not None:
        if moves_data(net, slot):
            return _take_near_site(state, codes, slot, state.free, now_ms, shadow_ms)
        net.taken_data_ms[0] = 0
    late = now_ms + state.jobs[slot].estimate_ms > shadow_ms
    if resources is not None:
        site = choose_free_counted_site(state, codes, resources, slot, late)
    else:
        site = choose_free_site(state, codes, slot, late)
    if site == NO_PLACE:
        return False
    take_site(state, slot, site)
    return True


@kernel_part
def take_site_ahead(
    state: GridState, codes: GridCodes, net: GridLinks | None, resources: GridNodes | None, slot: Slot, when_ms: Int
) -> bool:
    """Try to place a job on one site at a later time, given the nodes in ``ahead``; return whether that succeeded."""
    if net is not None:
        if moves_data(net, slot):
            return _take_near_site(state, codes, slot, state.ahead, when_ms, NEVER_MS)
        net.taken_data_ms[0] = 0
    if resources is not None:
        site = choose_counted_site(state, codes, resources, slot, state.ahead, resources.ahead)
    else:
        site = choose_site(state, codes, slot, state.ahead, state.ahead, state.nodes)
    take_site(state, slot, site)
    return True


@kernel_apart
def _take_near_site(
    state: GridState, codes: GridCodes, slot: Slot, free: SiteNodes, when_ms: Int, shadow_ms: Int
) -> bool:
    """Place a job with data on the site where it ends earliest; the selection breaks ties."""
    net = codes.net
    job = state.jobs[slot]
    least_ms = NEVER_MS
    for site in range(len(free)):
        delay_ms = data_delay_ms(net, slot, job.submit_ms, site, when_ms)
        nodes = free[site]
        if delay_ms < NEVER_MS and when_ms + delay_ms + job.estimate_ms > shadow_ms:
            nodes = min(nodes, state.extra[site])
        net.room[site] = delay_ms if nodes >= job.width else NEVER_MS
        least_ms = min(least_ms, net.room[site])
    if least_ms == NEVER_MS:
        return False
    for site in range(len(free)):
        state.available[site] = job.width if net.room[site] == least_ms else 0
    take_site(state, slot, choose_site(state, codes, slot, state.available, free, state.nodes))
    return judge_taken(state, net, slot, when_ms)


@kernel_part
def take_parts_in_order(
    state: GridState, codes: GridCodes, net: GridLinks | None, slot: Slot, order: SiteOrder, when_ms: Int
) -> bool:
    """Split a job that starts at ``when_ms`` over sites sorted by available nodes; return whether that is possible."""
    if net is None:
        return take_split_in_order(state, codes, slot, order)
    return _take_parts_on_links(state, codes, net.choice, slot, order, when_ms)


@kernel_part
def take_parts_now(state: GridState, codes: GridCodes, resources: GridNodes | None, slot: Slot, now_ms: Int) -> bool:
    """Split a job over all nodes that are free now; return whether that is possible."""
    if resources is not None:
        if count_available(state, resources, slot, False) < state.jobs[slot].width:
            return False
        return take_parts(state, codes, codes.net, slot, state.available, now_ms)
    return state.jobs[slot].width <= state.counters[0].free and take_parts_in_order(
        state, codes, codes.net, slot, state.free_order, now_ms
    )


@kernel_part
def take_spare_parts(state: GridState, codes: GridCodes, resources: GridNodes | None, slot: Slot, now_ms: Int) -> bool:
    """Split a job over the nodes that jobs ending after the shadow time may take; return whether that is possible."""
    if resources is not None:
        if count_available(state, resources, slot, True) < state.jobs[slot].width:
            return False
        return take_parts(state, codes, codes.net, slot, state.available, now_ms)
    if state.counters[0].spare == UNKNOWN:
        _order_spare(state)
    return state.jobs[slot].width <= state.counters[0].spare and take_parts_in_order(
        state, codes, codes.net, slot, state.spare_order, now_ms
    )


@kernel_part
def take_parts_ahead(state: GridState, codes: GridCodes, resources: GridNodes | None, slot: Slot, when_ms: Int) -> bool:
    """Split a job at a later time over the nodes in ``ahead``; return whether that is possible."""
    if resources is not None:
        for site in range(len(state.available)):
            state.available[site] = state.ahead[site]
        return take_parts(state, codes, codes.net, slot, state.available, when_ms)
    return take_parts_in_order(state, codes, codes.net, slot, state.ahead_order, when_ms)


@kernel_part
def _order_spare(state: GridState) -> None:
    """Sort the sites by their spare nodes, i.e. the nodes that jobs ending after the shadow time may take.

    On a site without a reservation all free nodes are spare.
    """
    counters = state.counters[0]
    copy_order(state.free_order, state.spare_order)
    counters.spare = counters.free
    for k in range(counters.n_reserved):
        site = state.reserved[k].site
        spare = min(state.free[site], state.extra[site])
        if spare < state.free[site]:
            move_site(state.spare_order, site, state.free[site], spare)
            counters.spare -= state.free[site] - spare


@kernel_apart
def _take_parts_on_links(
    state: GridState, codes: GridCodes, choice: Choice | None, slot: Slot, order: SiteOrder, when_ms: Int
) -> bool:
    """Split a job, given a network, over the fewest sites or, if ``choice`` is given, so that the job ends earliest."""
    net = codes.net
    if net.least_factor[slot] > net.max_factor:
        return False
    if choice is None:
        return (
            take_split_in_order(state, codes, slot, order)
            and _taken_may_pay(state, codes, slot, when_ms)
            and judge_taken(state, net, slot, when_ms)
        )
    for place in range(len(order)):
        net.room[site_of(order[place])] = max(np.int64(0), nodes_of(order[place]))
    return _take_where_it_ends_first(state, codes, slot, net.room, when_ms, codes.adaptive)


@kernel_part
def _taken_may_pay(state: GridState, codes: GridCodes, slot: Slot, when_ms: Int) -> bool:
    """Whether the split in ``taken``, which is over the fewest sites, could be worthwhile.

    The split is not worthwhile if the job ends earlier on one site, even if only the first two parts communicate.
    """
    net = codes.net
    communication = net.communication[slot]
    if not codes.adaptive or moves_data(net, slot) or not waits_for_all(net.paths, communication):
        return True
    if state.counters[0].n_taken < 2:
        return True
    factor = first_parts_factor(net.paths, communication, state.taken)
    if factor > net.least_factor[slot]:
        longer_ms = grown_ms(state.jobs[slot].estimate_ms, min(factor, 1.0 + MAX_OVERHEAD) - 1.0)
        return not fits_one_site_by(state, slot, when_ms + longer_ms)
    return True


@kernel
def _any_may_pay(state: GridState, codes: GridCodes, slot: Slot, available: SiteNodes, when_ms: Int) -> bool:
    """Whether any split could end before the job would end on one site, judged by a lower bound for all splits."""
    net = codes.net
    communication = net.communication[slot]
    if moves_data(net, slot) or not waits_for_all(net.paths, communication):
        return True
    fits_ms = fits_one_site_ms(state, slot, NEVER_MS - 1)
    if fits_ms == NEVER_MS:
        return True
    factor = 1.0 + (fits_ms - when_ms) / state.jobs[slot].estimate_ms
    return may_grow_by(net.paths, communication, available, factor)


@kernel_part
def take_parts(
    state: GridState, codes: GridCodes, net: GridLinks | None, slot: Slot, available: SiteNodes, when_ms: Int
) -> bool:
    """Split a job that starts at ``when_ms``, with the parts in ``taken[:n_taken]``; return whether that is possible.

    ``net`` is ``codes.net``, passed separately for the compiler. The function may change ``available``.
    """
    if net is None:
        return take_split(state, codes, slot, available)
    return _take_available_parts(state, codes, net.choice, slot, available, when_ms)


@kernel_apart
def _take_available_parts(
    state: GridState, codes: GridCodes, choice: Choice | None, slot: Slot, available: SiteNodes, when_ms: Int
) -> bool:
    if codes.net.least_factor[slot] > codes.net.max_factor:
        return False
    if choice is None:
        return take_split(state, codes, slot, available) and judge_taken(state, codes.net, slot, when_ms)
    return _take_where_it_ends_first(state, codes, slot, available, when_ms, False)


@kernel
def _take_where_it_ends_first(
    state: GridState, codes: GridCodes, slot: Slot, available: SiteNodes, when_ms: Int, has_to_pay: bool
) -> bool:
    """Split a job so that it ends earliest, or over the fewest sites if that split has more fragments than allowed.

    With ``has_to_pay``, the search may be skipped if no split ends before the job would end on one site.
    """
    net = codes.net
    job = state.jobs[slot]
    row = _remembered(net, slot, job.job_id, available)
    if row >= 0:
        return _take_remembered(state, codes, slot, available, when_ms, row)
    if has_to_pay and not _any_may_pay(state, codes, slot, available, when_ms):
        return False
    for site in range(len(available)):
        delay_ms = data_delay_ms(net, slot, job.submit_ms, site, when_ms)
        net.delay_ms[site] = np.inf if delay_ms == NEVER_MS else float(delay_ms)
    _recall_last(net, slot, job.job_id)
    is_possible = choose_sites(
        net.paths,
        net.communication[slot],
        available,
        float(job.estimate_ms),
        net.delay_ms,
        net.exact_up_to,
        STARTS,
        ROUNDS,
        net.choice,
    )
    if net.choice.all_tried[0] == 1:
        _note_last(net, job.job_id, available)
    return _take_remembered(state, codes, slot, available, when_ms, _remember(net, job.job_id, available, is_possible))


@kernel_part
def _recall_last(net: GridLinks, slot: Slot, job_id: Int) -> None:
    """Start the search from the job's previous result, if it has one; jobs with input data never have one."""
    memo, earlier = net.memo, net.choice.earlier
    row = job_id & (len(memo.last_job_id) - 1)
    earlier.n_parts[0] = 0
    if not moves_data(net, slot) and memo.last_job_id[row] == job_id:
        earlier.n_parts[0] = memo.last_n_parts[row]
        earlier.factor[0] = memo.last_factor[row]
        for place in range(memo.last_n_parts[row]):
            earlier.parts[place] = memo.last_parts[row, place]
        for site in range(len(earlier.free)):
            earlier.free[site] = memo.last_available[row, site]


@kernel_part
def _note_last(net: GridLinks, job_id: Int, available: SiteNodes) -> None:
    """Cache the result of an exhaustive search."""
    memo, choice = net.memo, net.choice
    row = job_id & (len(memo.last_job_id) - 1)
    memo.last_job_id[row] = job_id
    memo.last_n_parts[row] = choice.n_best[0]
    memo.last_factor[row] = choice.factor[0]
    for place in range(choice.n_best[0]):
        memo.last_parts[row, place] = choice.best[place]
    for site in range(len(available)):
        memo.last_available[row, site] = available[site]


@kernel
def _take_remembered(
    state: GridState, codes: GridCodes, slot: Slot, available: SiteNodes, when_ms: Int, row: Int
) -> bool:
    """Use the split cached in a row, or split over the fewest sites if the cached split has too many fragments."""
    memo = codes.net.memo
    count = memo.n_parts[row]
    if count == 0:
        return False
    if count > fragments_allowed(codes, state.jobs[slot].width):
        return take_split(state, codes, slot, available) and judge_taken(state, codes.net, slot, when_ms)
    for k in range(count):
        state.taken[k] = memo.parts[row, k]
    state.counters[0].n_taken = count
    return judge_taken(state, codes.net, slot, when_ms)


@kernel_part
def _row_for(memo: Memo, job_id: Int, available: SiteNodes) -> Int:
    """Return the only cache row that can hold a job's placement on these nodes."""
    mixed = job_id
    for site in range(len(available)):
        mixed = mixed * 31 + available[site]
    return mixed & (len(memo.job_id) - 1)


@kernel
def _remembered(net: GridLinks, slot: Slot, job_id: Int, available: SiteNodes) -> Int:
    """Return the row with the cached placement of this job on the same nodes, or -1.

    The key is the job and the nodes; a change of links clears the cache. A job with data is never cached, because its
    placement also depends on the time.
    """
    if moves_data(net, slot):
        return -1
    memo = net.memo
    row = _row_for(memo, job_id, available)
    if memo.job_id[row] != job_id:
        return -1
    for site in range(len(available)):
        if memo.available[row, site] != available[site]:
            return -1
    return row


@kernel
def _remember(net: GridLinks, job_id: Int, available: SiteNodes, is_possible: bool) -> Int:
    """Cache the placement that was just chosen; return the cache row."""
    memo = net.memo
    row = _row_for(memo, job_id, available)
    memo.job_id[row] = job_id
    for site in range(len(available)):
        memo.available[row, site] = available[site]
    memo.n_parts[row] = net.choice.n_best[0] if is_possible else 0
    for k in range(memo.n_parts[row]):
        memo.parts[row, k] = net.choice.best[k]
    return row


@kernel_part
def ends_late_on_links(state: GridState, net: GridLinks | None, slot: Slot, now_ms: Int, shadow_ms: Int) -> bool:
    """Whether, by a lower bound, every split of a job ends after the shadow time; False without links."""
    if net is None:
        return False
    return now_ms + grown_ms(state.jobs[slot].estimate_ms, net.least_factor[slot]) > shadow_ms


@kernel_part
def sites_are_alike(net: GridLinks | None) -> bool:
    """Whether a job ends at the same time on every single site; False if jobs may transfer data."""
    return net is None or net.staging == NO_DATA


@kernel_part
def fits_now(state: GridState, net: GridLinks | None, resources: GridNodes | None, slot: Slot) -> bool:
    """Whether one site has enough free nodes for a job now and no other placement would end earlier."""
    width = state.jobs[slot].width
    if resources is not None:
        count_fitting(resources, resources.nodes.free, slot, resources.fitting)
        return most_on_one_site(resources.fitting) >= width
    return (net is None or not moves_data(net, slot)) and most_of(state.free_order) >= width


@kernel_part
def stays_settled(net: GridLinks | None) -> bool:
    """Whether links and data are unchanged since the last pass, so that a job that could not start still cannot."""
    if net is None:
        return True
    same = net.staging == NO_DATA and net.changed[0] == 0
    net.changed[0] = 0
    return same


@kernel_part
def ends_on_one_site_by(
    state: GridState, net: GridLinks | None, resources: GridNodes | None, slot: Slot, when_ms: Int, end_ms: Int
) -> bool:
    """Whether a job that starts on one site at ``when_ms`` or later would end by ``end_ms``, according to estimates."""
    if resources is not None:
        limit_ms = end_ms - state.jobs[slot].estimate_ms
        return fits_counted_site_ms(state, resources, slot, limit_ms) <= limit_ms
    if net is not None and moves_data(net, slot):
        return _ends_near_by(state, net, slot, when_ms, end_ms)
    return fits_one_site_by(state, slot, end_ms - state.jobs[slot].estimate_ms)


@kernel_apart
def _ends_near_by(state: GridState, net: GridLinks, slot: Slot, when_ms: Int, end_ms: Int) -> bool:
    """Compute `ends_on_one_site_by` for a job with data, whose run time differs between the sites."""
    width = state.jobs[slot].width
    if width > state.counters[0].largest:
        return False
    for site in range(len(net.room)):
        net.room[site] = state.free[site]
        if net.room[site] >= width and _ends_there_by(state, net, slot, site, when_ms, end_ms):
            return True
    place = FIRST_PLACE
    while place < end_place(state):
        ending = state.running[row_at(state, place)]
        if ending.end_ms > end_ms:
            return False
        first = state.first_fragment[ending.slot]
        for k in range(first, first + state.n_fragments[ending.slot]):
            site = state.fragments[k].site
            before = net.room[site]
            net.room[site] = before + freed_by(state, k)
            start_ms = max(when_ms, ending.end_ms)
            if before < width <= net.room[site] and _ends_there_by(state, net, slot, site, start_ms, end_ms):
                return True
        place = next_place(state, place)
    return False


@kernel_part
def _ends_there_by(state: GridState, net: GridLinks, slot: Slot, site: Int, start_ms: Int, end_ms: Int) -> bool:
    job = state.jobs[slot]
    delay_ms = data_delay_ms(net, slot, job.submit_ms, site, start_ms)
    return delay_ms < NEVER_MS and start_ms + delay_ms + job.estimate_ms <= end_ms


@kernel
def find_possible(state: GridState, codes: GridCodes, possible: npt.NDArray[np.bool_]) -> None:
    """Determine which jobs could be placed on the idle grid with the current links.

    Parameters
    ----------
    state : GridState
        State of the idle grid, with a job in every slot.
    codes : GridCodes
        Policy with links.
    possible : numpy.ndarray of bool, shape (slots,)
        Output.
    """
    net = codes.net
    for slot in range(len(state.jobs)):
        job = state.jobs[slot]
        possible[slot] = job.width <= largest_for(state, state.resources, slot) and not moves_data(net, slot)
        if not possible[slot]:
            possible[slot] = take_free_site(state, codes, net, state.resources, slot, job.submit_ms, NEVER_MS) or (
                may_split(state, codes, slot) and take_parts_now(state, codes, state.resources, slot, job.submit_ms)
            )


@kernel
def find_splittable(state: GridState, codes: GridCodes, splittable: npt.NDArray[np.bool_]) -> None:
    """Determine which jobs may be split.

    Parameters
    ----------
    state : GridState
        State with a job in every slot.
    codes : GridCodes
    splittable : numpy.ndarray of bool, shape (slots,)
        Output.
    """
    for slot in range(len(state.jobs)):
        splittable[slot] = may_split(state, codes, slot)

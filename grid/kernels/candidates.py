"""Filter the backfill candidates of a long queue, in which most jobs cannot start.

Five limits, which hold until a job starts, can rule a job out by its width and estimate alone. Widths and estimates are
therefore kept in separate arrays in queue order and compared in chunks without branches, so that the compiler can use
vector instructions. Only the remaining jobs are placed, one by one.

The arrays hold 32-bit numbers, because vector instructions compare more of these at a time. A larger value (e.g. an
estimate of over 25 days) is stored as `MOST`; such a job may pass the filter, and is then rejected by its exact values.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.links_placement import sites_are_alike
from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.kernels.resources import GridNodes
from gridweave.grid.kernels.state import GridState, Place, forget_head, most_of, nodes_of, site_of
from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.state import GONE, NEVER_MS, dequeue

STRETCH = 64
"""Number of jobs that are filtered together."""

MOST = np.int32(2**31 - 1)
"""Largest 32-bit number; it is stored instead of any larger width or estimate."""


Limits = tuple[np.int32, np.int32, np.int32, np.int32, np.int32]
"""The limits that `limits_now` returns."""


@kernel_part
def _short(number: Int) -> np.int32:
    """Clamp a number to 32 bits; negative numbers become -1."""
    return np.int32(max(np.int64(-1), min(number, np.int64(MOST))))


@kernel_part
def limits_now(state: GridState, codes: GridCodes, now_ms: Int) -> Limits:
    """Return the limits for `next_candidate`; they hold until a job starts or ends.

    Returns
    -------
    widest : int32
        A wider job cannot start: it needs more nodes than are free in the grid or, without splits, on any single site.
    fitting : int32
        A job up to this width starts on one site or not at all.
    in_time_ms : int32
        A longer job ends after the shadow time, whether it is split or not.
    spare, spare_in_all : int32
        Maximum width of a job that ends after the shadow time: on one site, and over several sites.

    Notes
    -----
    A job that fits on one site does not end sooner if it is split, even if it would delay the head on that site.
    ``fitting`` is 0 if such jobs are split anyway (``multi-site``) or if the sites differ because of the job's data.
    """
    most = most_of(state.free_order)
    widest = state.counters[0].free if codes.splits else most
    in_time_ms = state.counters[0].shadow_ms - now_ms
    fitting, spare, spare_in_all = _limits_beside(state, codes, state.resources, most)
    return _short(widest), _short(fitting), _short(in_time_ms), _short(spare), _short(spare_in_all)


@kernel_part
def _limits_beside(state: GridState, codes: GridCodes, resources: GridNodes | None, most: Int) -> tuple[Int, Int, Int]:
    """Return ``fitting``, ``spare`` and ``spare_in_all``; ``most`` is the largest number of free nodes on one site."""
    if resources is not None:
        # A width says too little about what a job needs.
        return np.int64(0), NEVER_MS, NEVER_MS
    judged_by_site = (codes.adaptive or not codes.splits) and sites_are_alike(codes.net)
    return most if judged_by_site else np.int64(0), _most_to_spare(state), _all_to_spare(state)


@kernel_part
def _most_to_spare(state: GridState) -> Int:
    """Return the maximum number of nodes on one site for a job that ends after the shadow time."""
    most = 0
    for place in range(len(state.free_order) - 1, -1, -1):
        nodes = nodes_of(state.free_order[place])
        if nodes <= most:
            break
        most = max(most, min(nodes, state.extra[site_of(state.free_order[place])]))
    return most


@kernel_part
def _all_to_spare(state: GridState) -> Int:
    """Return the maximum number of nodes on all sites for a job that ends after the shadow time."""
    nodes = state.counters[0].free
    for k in range(state.counters[0].n_reserved):
        site = state.reserved[k].site
        nodes -= max(np.int64(0), state.free[site] - state.extra[site])
    return nodes


@kernel
def next_candidate(state: GridState, limits: Limits, first: Int) -> tuple[Place, Int]:
    """Return the place of the next backfill candidate, and the smallest width among the jobs that were ruled out.

    Parameters
    ----------
    state : GridState
    limits : tuple of int32
        From `limits_now`, with no job started since.
    first : int
        Place in the queue at which the search starts.

    Returns
    -------
    place : int
        The end of the queue if there is no candidate.
    narrowest : int
        Smallest width of the jobs that were ruled out, up to the end of the last chunk; at most `MOST`.
    """
    end = state.counters[0].n_waiting
    narrowest = MOST
    while first < end:
        last = min(first + STRETCH, end)
        widths, estimates_ms = state.queue_width[first:last], state.queue_ms[first:last]
        offset = MOST
        for i in range(len(widths)):
            may_start = _may_start(limits, widths[i], estimates_ms[i])
            offset = min(offset, np.int32(i) if may_start else MOST)
            narrowest = min(narrowest, MOST if may_start else widths[i])
        if offset < MOST:
            return first + offset, np.int64(narrowest)
        first = last
    return end, np.int64(narrowest)


@kernel_part
def _may_start(limits: Limits, width: np.int32, estimate_ms: np.int32) -> bool:
    """Whether a job might start, computed without branches."""
    widest, fitting, in_time_ms, spare, spare_in_all = limits
    fits_in_spare = (width <= spare) | ((width > fitting) & (width <= spare_in_all))
    return (width <= widest) & ((estimate_ms <= in_time_ms) | fits_in_spare)


@kernel_part
def note_wants(state: GridState) -> None:
    """Update the arrays of widths and estimates, starting at the first job that is new since the last pass."""
    counters = state.counters[0]
    for place in range(min(counters.n_noted, counters.first_new), counters.n_waiting):
        job = state.jobs[state.waiting[place]]
        state.queue_width[place] = _short(job.width)
        state.queue_ms[place] = _short(job.estimate_ms)
    counters.n_noted = counters.n_waiting


@kernel_part
def drop_started(state: GridState) -> None:
    """Close the gaps that `begin_taken` left in the queue; this pass has started at least one job."""
    counters = state.counters[0]
    first = counters.first_gap
    if counters.n_started <= 2:
        # Close the last gap first, because that does not move the first gap.
        if counters.n_started == 2:
            _close_gaps_from(state, counters.last_gap)
        _close_gaps_from(state, first)
    else:
        gaps = 0
        for place in range(first, counters.n_waiting):
            slot = state.waiting[place]
            state.waiting[place - gaps] = slot
            state.queue_width[place - gaps] = state.queue_width[place]
            state.queue_ms[place - gaps] = state.queue_ms[place]
            gaps += slot == GONE
    counters.n_waiting -= counters.n_started
    counters.n_noted -= counters.n_started


@kernel
def _close_gaps_from(state: GridState, gap: Int) -> None:
    """Close the gap at this place in all arrays that are in queue order."""
    _close_gap(state.waiting, gap, state.counters[0].n_waiting)
    _close_gap(state.queue_width, gap, state.counters[0].n_waiting)
    _close_gap(state.queue_ms, gap, state.counters[0].n_waiting)


@kernel_part
def _close_gap(entries: npt.NDArray[np.int64] | npt.NDArray[np.int32], gap: Int, end: Int) -> None:
    """Move the entries behind a gap forward by one place.

    Because the distance is always one, the compiler can move several entries at a time.
    """
    rest = entries[gap:end]
    for i in range(len(rest) - 1):
        rest[i] = rest[i + 1]


@kernel
def withdraw(state: GridState, place: Place) -> None:
    """Remove the job at this place from the queue.

    Parameters
    ----------
    state : GridState
        Changed in place.
    place : int
        Place in the queue.
    """
    dequeue(state, place)
    state.counters[0].n_noted = min(state.counters[0].n_noted, place)
    # The next job may get the same slot.
    forget_head(state)

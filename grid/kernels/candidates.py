"""Which waiting jobs are worth a look when the queue is backfilled: of a long queue most plainly cannot start.

Five numbers say that of a job, by its width and its estimate alone, and they are the same for all jobs until one
starts. So what the jobs want stands in arrays of its own, in the order of the queue, and is sifted in stretches without
a branch: the compiler then has the processor compare several jobs at a time. Only what is left is placed, one by one.

The fewer digits the numbers have, the more of them are compared at a time. So they have 32, and `MOST` stands for what
is more: a job that is wider than that, or longer (25 days), may be taken for a candidate, and is found to be none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.links_placement import sites_are_alike
from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.kernels.state import GridState, Place, forget_head, most_of, nodes_of, site_of
from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.state import GONE, dequeue

STRETCH = 64
"""Jobs that are sifted at one stroke."""

MOST = np.int32(2**31 - 1)
"""What stands for a width, or an estimate, that is more."""


Limits = tuple[np.int32, np.int32, np.int32, np.int32, np.int32]
"""What `limits_now` returns."""


@kernel_part
def _short(number: Int) -> np.int32:
    """Return a number with 32 digits, as it is compared here; no number that counts is below 0."""
    return np.int32(max(np.int64(-1), min(number, np.int64(MOST))))


@kernel_part
def limits_now(state: GridState, codes: GridCodes, now_ms: Int) -> Limits:
    """Return the numbers by which `next_candidate` judges: they hold until a job starts or ends.

    Returns
    -------
    widest : int32
        A wider job does not start, since it is wider than all that is free, or, where no job is split, than what is
        free on any one site.
    fitting : int32
        A job that is no wider starts on one site or not at all.
    in_time_ms : int32
        A longer job ends after the shadow time wherever it starts: split it takes no less.
    spare, spare_in_all : int32
        On one site no job may have more nodes that ends after the shadow time; nor in several parts.

    Notes
    -----
    That a job which fits on one site is in the head's way there makes no split of it end sooner. But if it is split
    even so (``multi-site``), or the sites are not alike to it, ``fitting`` is 0.
    """
    counters = state.counters[0]
    most = most_of(state.free_order)
    widest = counters.free if codes.splits else most
    judged_by_site = (codes.adaptive or not codes.splits) and sites_are_alike(codes.net)
    fitting = most if judged_by_site else np.int64(0)
    in_time_ms = counters.shadow_ms - now_ms
    spare, spare_in_all = _most_to_spare(state), _all_to_spare(state)
    return _short(widest), _short(fitting), _short(in_time_ms), _short(spare), _short(spare_in_all)


@kernel_part
def _most_to_spare(state: GridState) -> Int:
    """Return the most nodes of one site that a job may have that ends after the shadow time."""
    most = 0
    for place in range(len(state.free_order) - 1, -1, -1):
        nodes = nodes_of(state.free_order[place])
        if nodes <= most:
            break
        most = max(most, min(nodes, state.extra[site_of(state.free_order[place])]))
    return most


@kernel_part
def _all_to_spare(state: GridState) -> Int:
    """Return the nodes of all sites that a job may have that ends after the shadow time."""
    nodes = state.counters[0].free
    for k in range(state.counters[0].n_reserved):
        site = state.reserved[k].site
        nodes -= max(np.int64(0), state.free[site] - state.extra[site])
    return nodes


@kernel
def next_candidate(state: GridState, limits: Limits, first: Int) -> tuple[Place, Int]:
    """Return the next place of the queue whose job might start behind the head, and the least width of others.

    Parameters
    ----------
    state : GridState
    limits : tuple of int32
        What `limits_now` returned, if no job has started since.
    first : int
        The place from which on candidates are looked for.

    Returns
    -------
    place : int
        The end of the queue, if there is none.
    narrowest : int
        Of the jobs up to there, and some behind, that are no candidates; `MOST` if there are none, or if it is more.
    """
    end = state.counters[0].n_waiting
    narrowest = MOST
    while first < end:
        last = min(first + STRETCH, end)
        widths, estimates_ms = state.queue_width[first:last], state.queue_ms[first:last]
        found = MOST
        for i in range(len(widths)):
            may_start = _may_start(limits, widths[i], estimates_ms[i])
            found = min(found, np.int32(i) if may_start else MOST)
            narrowest = min(narrowest, MOST if may_start else widths[i])
        if found < MOST:
            return first + found, np.int64(narrowest)
        first = last
    return end, np.int64(narrowest)


@kernel_part
def _may_start(limits: Limits, width: np.int32, estimate_ms: np.int32) -> bool:
    """Whether a job might start, worked out without a branch."""
    widest, fitting, in_time_ms, spare, spare_in_all = limits
    out_of_the_way = (width <= spare) | ((width > fitting) & (width <= spare_in_all))
    return (width <= widest) & ((estimate_ms <= in_time_ms) | out_of_the_way)


@kernel_part
def note_wants(state: GridState) -> None:
    """Write down what the jobs want that are new in the queue since the last pass, and those that they stand before."""
    counters = state.counters[0]
    for place in range(min(counters.n_noted, counters.first_new), counters.n_waiting):
        job = state.jobs[state.waiting[place]]
        state.queue_width[place] = _short(job.width)
        state.queue_ms[place] = _short(job.estimate_ms)
    counters.n_noted = counters.n_waiting


@kernel_part
def drop_started(state: GridState) -> None:
    """Close the gaps that `begin_taken` left in the queue in this pass, which has started some job."""
    counters = state.counters[0]
    first = counters.first_gap
    if counters.n_started <= 2:
        # The gap behind first: the one before it stays where it is.
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
    """Close the gap at a place of the queue in all arrays that are in its order."""
    _close_gap(state.waiting, gap, state.counters[0].n_waiting)
    _close_gap(state.queue_width, gap, state.counters[0].n_waiting)
    _close_gap(state.queue_ms, gap, state.counters[0].n_waiting)


@kernel_part
def _close_gap(entries: npt.NDArray[np.int64] | npt.NDArray[np.int32], gap: Int, end: Int) -> None:
    """Move the entries behind a gap to the front by one place, which most passes come to.

    By how much is known to the compiler, so that it can have several entries moved at a time.
    """
    rest = entries[gap:end]
    for i in range(len(rest) - 1):
        rest[i] = rest[i + 1]


@kernel
def withdraw(state: GridState, place: Place) -> None:
    """Take the job at this place out of the queue.

    Parameters
    ----------
    state : GridState
        Changed in place.
    place : int
        In the queue.
    """
    dequeue(state, place)
    state.counters[0].n_noted = min(state.counters[0].n_noted, place)
    # The next job may have its slot.
    forget_head(state)

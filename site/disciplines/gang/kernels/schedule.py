"""The phase Schedule: jobs that wait are put into the row that they fit best (Zhang, sections 6.1 and 6.2)."""

from __future__ import annotations

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.disciplines.gang.kernels.promises import (
    RUNNING_ALONE,
    fill_profiles,
    longest_ms,
    occupy_row,
    row_start_ms,
)
from gridweave.site.disciplines.gang.kernels.state import (
    CONSERVATIVE,
    NO_BACKFILL,
    NO_MEMORY,
    NO_ROW,
    GangCodes,
    GangSite,
    free_in,
    has_room,
    place_job,
    turns_until,
)
from gridweave.site.kernels.state import GONE, NEVER_MS, UNPLACED_MS

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"


@kernel
def schedule(state: GangSite, codes: GangCodes, now_ms: Int) -> None:
    """Put those of the waiting jobs into the matrix that may be.

    Notes
    -----
    Without backfilling the first that fits nowhere ends the phase. With backfilling it is promised a start: in the row
    in which that is earliest by estimates, of several the first. Under EASY it is the only one. A job may be put into
    a row if it delays none of the promises there. Of the rows that may take a job it gets that with the fewest free
    nodes, of several that whose turn is next. The first job that lacks nothing but memory is promised nothing, and ends
    the phase with any backfilling, as nobody knows whose memory is free when.
    """
    counters = state.counters[0]
    if counters.n_waiting == 0:
        return
    backfills = codes.backfill != NO_BACKFILL
    if backfills:
        fill_profiles(state, now_ms, RUNNING_ALONE)
    promises = 0
    placed = 0
    widest = _most_free(state)
    for place in range(counters.n_waiting):
        slot = state.waiting[place]
        job = state.jobs[slot]
        job.promised_ms = UNPLACED_MS
        row = NO_ROW
        if job.width <= widest:
            row = _best_row(state, job, backfills, now_ms)
        if row >= 0:
            place_job(state, slot, row)
            state.waiting[place] = GONE
            placed += 1
            widest = _most_free(state)
            if backfills:
                occupy_row(state, row, now_ms, longest_ms(state, job), job.width)
        elif not backfills or row == NO_MEMORY:
            _promise_nothing_from(state, place)
            break
        elif promises == 0 or codes.backfill == CONSERVATIVE:
            _promise(state, job, now_ms)
            promises += 1
    if placed > 0:
        _close_gaps(state)


@kernel_part
def _promise_nothing_from(state: GangSite, first: Int) -> None:
    """Promise nothing to the jobs from a place of the queue on."""
    for place in range(first, state.counters[0].n_waiting):
        state.jobs[state.waiting[place]].promised_ms = UNPLACED_MS


@kernel_part
def _most_free(state: GangSite) -> Int:
    """Return the free nodes of the row that has most."""
    counters = state.counters[0]
    most = 0
    for row in range(counters.rows):
        if _is_open(state, row):
            most = max(most, free_in(state, row))
    return most


@kernel_part
def _is_open(state: GangSite, row: Int) -> bool:
    """Whether jobs may be put into a row."""
    return (state.counters[0].open_rows >> row) & 1 == 1


@kernel_part
def _best_row(state: GangSite, job: Record, backfills: bool, now_ms: Int) -> Int:
    """Return the row that a job may be put into and fits best; `NO_ROW` or `NO_MEMORY` if there is none."""
    counters = state.counters[0]
    best = none = NO_ROW
    for row in range(counters.rows):
        free = free_in(state, row)
        if not _is_open(state, row) or job.width > free:
            continue
        if best != NO_ROW and (free, turns_until(state, row)) >= (
            free_in(state, best),
            turns_until(state, best),
        ):
            continue
        if backfills and row_start_ms(state, row, now_ms, job.width, longest_ms(state, job)) != now_ms:
            continue
        if not has_room(state, job, row):
            none = NO_MEMORY
            continue
        best = row
    return best if best != NO_ROW else none


@kernel_part
def _promise(state: GangSite, job: Record, now_ms: Int) -> None:
    """Promise a job the earliest start that a row has for it."""
    length_ms = longest_ms(state, job)
    job.promised_ms = NEVER_MS
    for row in range(state.counters[0].rows):
        if _is_open(state, row):
            start_ms = row_start_ms(state, row, now_ms, job.width, length_ms)
            if start_ms < job.promised_ms:
                job.promised_ms = start_ms
                job.promised_row = row
    if job.promised_ms != NEVER_MS:
        occupy_row(state, job.promised_row, job.promised_ms, length_ms, job.width)


@kernel_part
def _close_gaps(state: GangSite) -> None:
    """Close the gaps that placed jobs have left in the queue."""
    counters = state.counters[0]
    kept = 0
    for place in range(counters.n_waiting):
        state.waiting[kept] = state.waiting[place]
        kept += state.waiting[place] != GONE
    counters.n_waiting = kept

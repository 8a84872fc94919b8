"""What those who step a site ask between two decisions: which jobs work at an instant, and when that changes."""

from __future__ import annotations

from gridweave.jit import Int, Ints, kernel
from gridweave.site.disciplines.gang.kernels.state import GangCodes, GangSite, cycle_of
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.turns import walk_turns
from gridweave.site.kernels.work import NOT_RUNNING, RATE_ONE

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"


@kernel
def rates_at(state: GangSite, codes: GangCodes, now_ms: Int, rates: Ints) -> Int:
    """Write the rates of all placed jobs from an instant on, and return when the first of them changes.

    Parameters
    ----------
    state : GangSite
        After the pass of that instant.
    codes : GangCodes
    now_ms : int
    rates : numpy.ndarray of int64, shape (room,)
        Filled in, in the order of ``placed``: `RATE_ONE` for a job that works, 0 for one that stands still or pays for
        a switch or a move, `NOT_RUNNING` for one that has not begun.

    Returns
    -------
    int
        `NEVER_MS` if none changes until something happens.
    """
    counters = state.counters[0]
    next_ms = NEVER_MS
    cycle = cycle_of(state, codes)
    if cycle.n_turns == 0:
        return next_ms
    elapsed_ms = now_ms - counters.since_ms
    slices = elapsed_ms // codes.slice_ms
    turn = slices % cycle.n_turns
    for i in range(counters.n_placed):
        job = state.jobs[state.placed[i]]
        rates[i] = NOT_RUNNING
        if job.begin_ms > now_ms:
            next_ms = min(next_ms, job.begin_ms)
            continue
        rates[i] = 0
        if (job.turns >> turn) & 1:
            walked = walk_turns(job, cycle, elapsed_ms, NEVER_MS)
            to_pay_ms = walked.switch_left_ms
            if elapsed_ms % codes.slice_ms == 0 and walked.works == 0 and job.begin_ms < now_ms:
                to_pay_ms = codes.switch_ms
            to_pay_ms += max(0, job.owed_ms - walked.gained_ms)
            if to_pay_ms == 0:
                rates[i] = RATE_ONE
            else:
                next_ms = min(next_ms, now_ms + to_pay_ms)
        if job.turns != (1 << cycle.n_turns) - 1:
            next_ms = min(next_ms, counters.since_ms + (slices + 1) * codes.slice_ms)
    return next_ms

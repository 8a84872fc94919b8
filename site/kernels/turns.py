"""Time slices: a job that time-shares its nodes runs in some slices of a cycle and is paused in the others.

Between two scheduling decisions the cycle repeats, so a job's progress and end time can be computed from at most two
cycles, whatever the number of slices. Results are exact, in whole milliseconds.

A job that was also running in the previous slice loses no time. A resumed job loses the switch cost at the beginning of
its slice. A job that was moved pays for the move before it makes progress.
"""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.kernels.state import NEVER_MS


class Cycle(NamedTuple):
    """A cycle of time slices.

    Attributes
    ----------
    n_turns : int
        Number of slices in the cycle.
    slice_ms : int
        Length of a slice.
    switch_ms : int
        Time that a job loses when it is resumed; shorter than a slice.
    """

    n_turns: Int
    slice_ms: Int
    switch_ms: Int


class Walked(NamedTuple):
    """A job's progress through its time slices.

    Attributes
    ----------
    elapsed_ms : int
        Time since the first slice began.
    gained_ms : int
        Time that the job spent working or paying for moves.
    switch_left_ms : int
        Remaining cost of the last switch.
    works : int
        1 if the job was working at the end of the elapsed time, otherwise 0.
    """

    elapsed_ms: Int
    gained_ms: Int
    switch_left_ms: Int
    works: Int


@kernel
def walk_turns(job: Record, cycle: Cycle, until_ms: Int, need_ms: Int) -> Walked:
    """Return a job's progress once ``until_ms`` has passed or the job has gained ``need_ms``, whichever is first.

    Parameters
    ----------
    job : record
        A record with the int64 fields ``turns`` (bit k is set if the job runs in slice k of each cycle), ``works`` (1
        if it was running right before the first slice), ``switch_left_ms`` (remaining switch cost at that time) and
        ``is_fresh`` (1 if it has never run, so that its first slice costs no switch).
    cycle : Cycle
    until_ms : int
        Time limit from the start of the first slice; `NEVER_MS`: no limit, allowed only if the job has a slice.
    need_ms : int
        Work limit, at least 1; `NEVER_MS`: no limit.
    """
    n_turns, slice_ms, switch_ms = cycle
    elapsed_ms = gained_ms = turn = 0
    works, left_ms, fresh = job.works, job.switch_left_ms, job.is_fresh
    while True:
        if turn == n_turns:
            # All cycles after the first are identical.
            turn = 0
            each_ms = gain_of_cycle(job.turns, cycle)
            cycles = (until_ms - elapsed_ms) // (n_turns * slice_ms)
            if each_ms > 0:
                cycles = min(cycles, (need_ms - gained_ms - 1) // each_ms)
            elapsed_ms += cycles * n_turns * slice_ms
            gained_ms += cycles * each_ms
        if elapsed_ms == until_ms:
            return Walked(elapsed_ms, gained_ms, left_ms, works)
        length_ms = min(slice_ms, until_ms - elapsed_ms)
        if (job.turns >> turn) & 1:
            if works == 0:
                left_ms = 0 if fresh else switch_ms
            works, fresh = 1, 0
            paid_ms = min(left_ms, length_ms)
            left_ms -= paid_ms
            if length_ms - paid_ms >= need_ms - gained_ms:
                return Walked(elapsed_ms + paid_ms + need_ms - gained_ms, need_ms, left_ms, works)
            gained_ms += length_ms - paid_ms
        else:
            works = left_ms = 0
        elapsed_ms += length_ms
        turn += 1


@kernel_part
def gain_of_cycle(turns: Int, cycle: Cycle) -> Int:
    """Return a job's progress (ms) in each cycle after the first; ``turns`` is a bit mask of the job's slices."""
    gained_ms = 0
    before = (turns >> (cycle.n_turns - 1)) & 1
    for turn in range(cycle.n_turns):
        now = (turns >> turn) & 1
        if now:
            gained_ms += cycle.slice_ms if before else cycle.slice_ms - cycle.switch_ms
        before = now
    return gained_ms


@kernel_part
def done_in_turns_ms(job: Record, cycle: Cycle, need_ms: Int) -> Int:
    """Return when a job has gained ``need_ms``, in ms since the start of the first slice; see `walk_turns`."""
    return walk_turns(job, cycle, NEVER_MS, need_ms).elapsed_ms


@kernel_part
def turn_at(elapsed_ms: Int, cycle: Cycle) -> Int:
    """Return the number of the slice in progress just before ``elapsed_ms``, counted from 0 across all cycles."""
    return (elapsed_ms - 1) // cycle.slice_ms


@kernel_part
def time_of_turn_ms(turn: Int, elapsed_ms: Int, cycle: Cycle) -> Int:
    """Return the total time (ms) spent so far in slice ``turn`` of all cycles."""
    slices, part_ms = divmod(elapsed_ms, cycle.slice_ms)
    cycles, rest = divmod(slices, cycle.n_turns)
    time_ms = cycles * cycle.slice_ms
    if turn < rest:
        time_ms += cycle.slice_ms
    elif turn == rest:
        time_ms += part_ms
    return time_ms


@kernel_part
def times_of_turn(turn: Int, elapsed_ms: Int, cycle: Cycle) -> Int:
    """Return how many times slice ``turn`` has begun so far."""
    begun = (elapsed_ms + cycle.slice_ms - 1) // cycle.slice_ms
    cycles, rest = divmod(begun, cycle.n_turns)
    return cycles + 1 if turn < rest else cycles

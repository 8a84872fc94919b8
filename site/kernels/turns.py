"""Work in turns: a job that shares its nodes in time works in some slices of a cycle, and stands still in the others.

Between two decisions the slices repeat, so what a job has done by an instant, and when its work is done, is arithmetic:
at most two cycles are walked, whatever the number of slices between. It is exact, in whole milliseconds.

A job that works on from the slice before loses nothing. One that is resumed loses the cost of the switch at the
beginning of its slice. What it owes besides, for having been moved, it pays before it works on.
"""

from __future__ import annotations

from typing import NamedTuple

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.kernels.state import NEVER_MS


class Cycle(NamedTuple):
    """The slices that repeat.

    Attributes
    ----------
    n_turns : int
        Slices of a cycle.
    slice_ms : int
        Length of each.
    switch_ms : int
        What a job loses that is resumed, less than a slice.
    """

    n_turns: Int
    slice_ms: Int
    switch_ms: Int


class Walked(NamedTuple):
    """How far a job has come.

    Attributes
    ----------
    elapsed_ms : int
        Time since the first slice began.
    gained_ms : int
        How long it worked, or paid what it owed for moves.
    switch_left_ms : int
        What is left to pay of the switch.
    works : int
        1 if it worked up to that instant, otherwise 0.
    """

    elapsed_ms: Int
    gained_ms: Int
    switch_left_ms: Int
    works: Int


@kernel
def walk_turns(job: Record, cycle: Cycle, until_ms: Int, need_ms: Int) -> Walked:
    """Return how far a job has come when a time has passed or it has gained a time, whichever is first.

    Parameters
    ----------
    job : record
        Any with the int64 fields ``turns`` (bit k is set if it works in slice k of each cycle), ``works`` (1 if it
        worked right before the first slice), ``switch_left_ms`` (what was left then of its switch), and ``is_fresh``
        (1 if it has never worked: its first slice is a start, not a resumption, and costs no switch).
    cycle : Cycle
    until_ms : int
        Time from the beginning of the first slice, `NEVER_MS` for no end of it; the job has a turn then.
    need_ms : int
        What it is to gain, at least 1; `NEVER_MS` for no end of it.
    """
    n_turns, slice_ms, switch_ms = cycle
    elapsed_ms = gained_ms = turn = 0
    works, left_ms, fresh = job.works, job.switch_left_ms, job.is_fresh
    while True:
        if turn == n_turns:
            # From the second cycle on all are alike.
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
    """Return what a job gains in each cycle but the first, in ms."""
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
    """Return when a job will have gained a time, from the beginning of the first slice; see `walk_turns`."""
    return walk_turns(job, cycle, NEVER_MS, need_ms).elapsed_ms


@kernel_part
def turn_at(elapsed_ms: Int, cycle: Cycle) -> Int:
    """Return the number of the slice that goes on right before an instant after the beginning of the first."""
    return (elapsed_ms - 1) // cycle.slice_ms


@kernel_part
def time_of_turn_ms(turn: Int, elapsed_ms: Int, cycle: Cycle) -> Int:
    """Return how long a slice of the cycle has been on, in all cycles."""
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
    """Return how often a slice of the cycle has begun."""
    begun = (elapsed_ms + cycle.slice_ms - 1) // cycle.slice_ms
    cycles, rest = divmod(begun, cycle.n_turns)
    return cycles + 1 if turn < rest else cycles

"""Work in turns is the same by arithmetic as slice by slice."""

from __future__ import annotations

import numpy as np

from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.turns import Cycle, done_in_turns_ms, time_of_turn_ms, times_of_turn, walk_turns

JOB = np.dtype([(name, np.int64) for name in ("turns", "works", "switch_left_ms", "is_fresh")], align=True)


def walked_by_ms(job: np.void, cycle: Cycle, until_ms: int) -> tuple[list[int], int, int]:
    """Return what a job has gained after each millisecond, what is left of its switch, and whether it worked last."""
    works, left, fresh = int(job["works"]), int(job["switch_left_ms"]), bool(job["is_fresh"])
    gained = [0]
    for now in range(until_ms):
        has_turn = int(job["turns"]) >> (now // int(cycle.slice_ms) % int(cycle.n_turns)) & 1
        if has_turn and not works:
            left, fresh = (0 if fresh else int(cycle.switch_ms)), False
        elif not has_turn:
            left = 0
        works = has_turn
        pays = has_turn and left > 0
        left -= pays
        gained.append(gained[-1] + (1 if has_turn and not pays else 0))
    return gained, left, works


def test_walks_as_far_as_millisecond_by_millisecond() -> None:
    """Gains, what is left of a switch, and the instant at which work is done, on random cycles."""
    rng = np.random.default_rng(1)
    for _ in range(400):
        n_turns, slice_ms = int(rng.integers(1, 5)), int(rng.integers(1, 9))
        cycle = Cycle(np.int64(n_turns), np.int64(slice_ms), np.int64(rng.integers(0, slice_ms)))
        job = np.zeros(1, JOB)[0]
        job["turns"], job["is_fresh"] = rng.integers(1, 2**n_turns), rng.integers(2)
        job["works"] = 0 if job["is_fresh"] else rng.integers(2)
        job["switch_left_ms"] = rng.integers(0, cycle.switch_ms + 1) if job["works"] else 0
        gained, left, works = walked_by_ms(job, cycle, until := int(rng.integers(0, 120)))
        walked = walk_turns(job, cycle, np.int64(until), NEVER_MS)
        assert walked == (until, gained[-1], left, works)
        long, *_ = walked_by_ms(job, cycle, 400)
        need = int(rng.integers(1, long[-1] + 1))
        assert done_in_turns_ms(job, cycle, np.int64(need)) == long.index(need)


def test_counts_slices_of_a_cycle() -> None:
    """How long each slice has been on, and how often it has begun."""
    cycle = Cycle(np.int64(3), np.int64(10), np.int64(0))
    for elapsed in range(1, 100):
        turns = [now // 10 % 3 for now in range(elapsed)]
        starts = [now // 10 % 3 for now in range(0, elapsed, 10)]
        for turn in range(3):
            assert time_of_turn_ms(np.int64(turn), np.int64(elapsed), cycle) == turns.count(turn)
            assert times_of_turn(np.int64(turn), np.int64(elapsed), cycle) == starts.count(turn)


def test_a_long_way_takes_no_longer() -> None:
    """A month of slices of a millisecond each is arithmetic: to the millisecond, and at once."""
    job = np.zeros(1, JOB)[0]
    job["turns"] = 0b01
    month_ms = 30 * 24 * 3600 * 1000
    cycle = Cycle(np.int64(2), np.int64(1), np.int64(0))
    assert done_in_turns_ms(job, cycle, np.int64(month_ms)) == 2 * month_ms - 1

"""Schedules of the slow reference that were worked out by hand: conservative backfilling."""

from __future__ import annotations

from typing import Any

from reference.model import Job, Outcome
from reference.simulation import simulate
from reference.validation import validate


def job(job_id: int, width: int, estimate: int, *, at: int = 0, run: int | None = None) -> Job:
    """Return a job; it runs for its estimate unless told otherwise."""
    return Job(job_id, at, width, estimate, estimate if run is None else run)


def run(jobs: list[Job], nodes: int, **options: Any) -> Outcome:
    """Simulate with conservative backfilling, check what must always hold, and return the outcome."""
    outcome = simulate(jobs, nodes, backfill="conservative", **options)
    assert validate(outcome, jobs, nodes) == []
    return outcome


def test_every_job_is_given_a_start_that_no_later_job_can_take() -> None:
    """An estimate of 15 fits beside jobs 1 and 2; one of 16 would stand in the way of job 3 and is placed behind it."""
    assert run([job(1, 2, 10), job(2, 3, 5), job(3, 4, 5), job(4, 1, 15)], 4).start[4] == 0
    outcome = run([job(1, 2, 10), job(2, 3, 5), job(3, 4, 5), job(4, 1, 16)], 4)
    assert outcome.log[0].plan == {1: 0, 2: 10, 3: 15, 4: 20}
    assert outcome.start == {1: 0, 2: 10, 3: 15, 4: 20}


def test_a_hole_is_filled_to_its_very_end() -> None:
    """An estimate of 10 fits before job 2 exactly, one of 11 does not."""
    assert run([job(1, 3, 10), job(2, 4, 5), job(3, 1, 10)], 4).start[3] == 0
    assert run([job(1, 3, 10), job(2, 4, 5), job(3, 1, 11)], 4).start[3] == 15


def test_jobs_of_one_instant_are_placed_in_submit_order_whatever_the_order() -> None:
    """Under SJF the longer job 2 is placed first all the same, and keeps its place as nothing ends early."""
    assert run([job(1, 4, 10), job(2, 4, 8, at=1), job(3, 4, 2, at=1)], 4, order="sjf").start == {1: 0, 2: 10, 3: 18}


def test_compression_goes_through_the_queue_in_its_order() -> None:
    """Job 1 ends 5 early; FCFS gives the gap to job 2, SJF to job 3."""
    # reserved               FCFS                   SJF
    # 0     5     10  18     0     5        13      0     5   8
    # 11111 .....  2   3     11111 22222222 333     11111 333 22222222
    jobs = [job(1, 4, 10, run=5), job(2, 4, 8), job(3, 4, 3)]
    assert run(jobs, 4).start == {1: 0, 2: 5, 3: 13}
    assert run(jobs, 4, order="sjf").start == {1: 0, 3: 5, 2: 8}


def test_compression_goes_through_the_queue_until_nothing_moves() -> None:
    """Job 4 moves out of the way of job 3 after job 3 has had its turn, so job 3 has another."""
    # reserved at 0                      compressed at 5
    # 0          10    15    20          0     5     10    15
    # 1111111111 44444 ..... 33333       11111 11111 33333
    # 1111111111 44444 ..... 33333       11111 11111 33333
    # 2222222222 22222 22222 33333       22222 44444 33333
    # 2222222222 22222 22222 33333       22222 44444 33333
    jobs = [job(1, 2, 10), job(2, 2, 20, run=5), job(3, 4, 5), job(4, 2, 5)]
    outcome = run(jobs, 4)
    assert outcome.log[0].plan == {1: 0, 2: 0, 3: 20, 4: 10}
    assert outcome.log[1].plan == {3: 10, 4: 5}
    assert outcome.start == {1: 0, 2: 0, 3: 10, 4: 5}
    # A planning site makes the same plan.
    assert simulate(jobs, 4, discipline="planning").start == outcome.start


def test_the_schedule_is_compressed_before_new_jobs_are_placed() -> None:
    """At 5 job 1 ends early and job 3 comes in: the gap is for job 2, which was there before."""
    assert run([job(1, 4, 10, run=5), job(2, 4, 5), job(3, 4, 5, at=5)], 4).start == {1: 0, 2: 5, 3: 10}


def test_two_early_ends_at_one_instant_compress_once_with_both_gone() -> None:
    """Compressed after the first end alone, job 4 would move to 5 and take job 3's place."""
    # 0     5     10    15 ...
    # 11111 33333
    # 11111 33333
    # 22222 33333
    # 22222 33333 44444
    jobs = [job(1, 2, 10, run=5), job(2, 2, 20, run=5), job(3, 4, 5), job(4, 1, 15)]
    outcome = run(jobs, 4)
    assert outcome.log[0].plan == {1: 0, 2: 0, 3: 20, 4: 25}
    assert outcome.start == {1: 0, 2: 0, 3: 5, 4: 10}


def test_a_cancelled_reservation_is_given_to_those_behind_it() -> None:
    """Job 2 is cancelled while it waits, and job 3 moves to its place."""
    outcome = run([job(1, 4, 10), job(2, 4, 5), job(3, 4, 5)], 4, cancellations=[(3, 2)])
    assert outcome.log[1].plan == {3: 10}
    assert outcome.start == {1: 0, 3: 10}


def test_a_job_may_start_at_once_before_all_reservations() -> None:
    """A short narrow job that comes in late starts on its submission, and no reservation moves."""
    outcome = run([job(1, 3, 10), job(2, 4, 5), job(3, 1, 7, at=3)], 4)
    assert outcome.start == {1: 0, 2: 10, 3: 3}

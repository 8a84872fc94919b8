"""Schedules of the slow reference that were worked out by hand: orders, queues, backfilling.

In the diagrams a row is a node (or as many nodes as are named), a column one millisecond or as many as the scale says,
a digit the job that runs there, a dot an idle node.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from reference.model import Job, Outcome
from reference.simulation import simulate
from reference.validation import validate


def job(job_id: int, width: int, estimate: int, *, at: int = 0, run: int | None = None, **more: Any) -> Job:
    """Return a job; it runs for its estimate unless told otherwise."""
    return Job(job_id, at, width, estimate, estimate if run is None else run, **more)


def run(jobs: list[Job], nodes: int, **options: Any) -> Outcome:
    """Simulate, check what must always hold, and return the outcome."""
    outcome = simulate(jobs, nodes, **options)
    assert validate(outcome, jobs, nodes) == []
    return outcome


def starts(jobs: list[Job], nodes: int, **options: Any) -> dict[int, int]:
    """Return the start of each job."""
    return run(jobs, nodes, **options).start


def shown(outcome: Outcome) -> list[tuple[int, int | None, int | None]]:
    """Return instant, head and shadow time of each pass that left a head waiting."""
    return [(one.now, one.head, one.shadow) for one in outcome.log if one.head is not None]


# Time and jobs


def test_a_job_that_ends_leaves_its_nodes_to_one_submitted_at_that_instant() -> None:
    """Completions come before submissions, so a full machine is free again at the end of its job."""
    jobs = [job(1, 4, 10), job(2, 4, 5, at=10)]
    for options in ({"backfill": "none"}, {"backfill": "conservative"}, {"discipline": "planning"}):
        outcome = run(jobs, 4, **options)
        assert outcome.start == {1: 0, 2: 10}
        assert [one.now for one in outcome.log] == [0, 10, 15]


def test_a_job_is_killed_at_its_estimate() -> None:
    """A job with a longer run time than its estimate ends at the estimate."""
    outcome = run([job(1, 4, 5, run=8), job(2, 4, 5)], 4)
    assert outcome.end == {1: 5, 2: 10}


def test_a_job_wider_than_the_machine_is_refused_and_holds_up_nobody() -> None:
    """The refused job has no start and the job after it starts at once."""
    outcome = run([job(1, 5, 5), job(2, 4, 5)], 4)
    assert list(outcome.refused) == [1]
    assert outcome.start == {2: 0}


def test_all_that_happens_at_one_instant_is_settled_in_one_pass() -> None:
    """Two ends and two submissions at instant 10 make one pass there."""
    outcome = run([job(1, 2, 10), job(2, 2, 10), job(3, 4, 5, at=10), job(4, 4, 5, at=10)], 4)
    assert [one.now for one in outcome.log] == [0, 10, 15, 20]
    assert outcome.start == {1: 0, 2: 0, 3: 10, 4: 15}


# Order of the waiting jobs


@pytest.mark.parametrize(
    ("order", "aging_ms", "expected"),
    [
        ("fcfs", 0, [1, 2, 3, 4]),
        ("sjf", 0, [3, 4, 2, 1]),  # estimates 6 5 2 4
        ("ljf", 0, [1, 2, 4, 3]),
        ("saf", 0, [3, 4, 1, 2]),  # areas 18 20 6 16
        ("laf", 0, [2, 1, 4, 3]),
        ("bfit", 0, [2, 4, 1, 3]),  # widths 3 4 3 4: ties by submit time
        ("wfit", 0, [1, 3, 2, 4]),
        ("smith", 0, [4, 1, 3, 2]),  # area by weight 9 20 12 4
        ("weight", 0, [4, 1, 2, 3]),  # weights 2 1 0.5 4
        ("priority", 0, [1, 2, 3, 4]),  # without worth, a level of priority changes nothing
        ("priority", 1, [1, 2, 3, 4]),  # keys 1 2 3-1 4: job 3 ties with job 2, which was submitted before it
        ("priority", 1.5, [1, 3, 2, 4]),  # keys 1 2 3-1.5 4
        ("priority", 3, [3, 1, 2, 4]),  # keys 1 2 3-3 4
        ("priority", math.inf, [3, 1, 2, 4]),
    ],
)
def test_each_order_sorts_by_its_key(order: str, aging_ms: float, expected: list[int]) -> None:
    """Four jobs that exclude each other start one after the other in the order asked for."""
    jobs = [
        job(9, 4, 10),
        job(1, 3, 6, at=1, weight=2.0),
        job(2, 4, 5, at=2),
        job(3, 3, 2, at=3, weight=0.5, priority=1),
        job(4, 4, 4, at=4, weight=4.0),
    ]
    for options in ({"backfill": "none"}, {"discipline": "planning", "backfill": "none"}):
        begun = starts(jobs, 4, order=order, aging_ms=aging_ms, **options)
        assert sorted(expected, key=begun.__getitem__) == expected
        assert len(set(begun.values())) == 5


def test_jobs_alike_in_key_and_submit_time_start_by_their_id() -> None:
    """Of two jobs of one instant the one with the lower id is first, in whatever order they are handed over."""
    assert starts([job(7, 4, 5), job(3, 4, 5)], 4) == {3: 0, 7: 5}
    assert starts([job(7, 4, 5), job(3, 4, 5)], 4, order="ljf") == {3: 0, 7: 5}


def test_a_job_of_no_weight_comes_last_by_the_smith_ratio() -> None:
    """A weight of zero gives a ratio of zero, which is the smallest."""
    jobs = [job(1, 4, 1, weight=0.0), job(2, 4, 9, weight=0.1)]
    assert starts(jobs, 4, order="smith") == {2: 0, 1: 9}


# Queue without backfilling, and EASY


def test_without_backfilling_a_blocked_head_blocks_all_behind_it() -> None:
    """Job 3 would fit beside job 1, but job 2 is first and does not."""
    # 0         10
    # 1111111111 22222
    # 1111111111 22222
    # 1111111111 33...
    # .......... .....
    jobs = [job(1, 3, 10), job(2, 2, 5), job(3, 1, 2)]
    assert starts(jobs, 4, backfill="none") == {1: 0, 2: 10, 3: 10}


def test_easy_lets_a_short_job_pass_a_blocked_head() -> None:
    """Job 3 ends before the shadow time of job 2."""
    jobs = [job(1, 3, 10), job(2, 2, 5), job(3, 1, 2)]
    outcome = run(jobs, 4)
    assert outcome.start == {1: 0, 2: 10, 3: 0}
    assert shown(outcome)[0] == (0, 2, 10)


def test_easy_lets_a_job_end_at_the_very_shadow_time_and_no_later() -> None:
    """The head needs the whole machine at 10: an estimate of 10 passes it, one of 11 waits for its end."""
    assert starts([job(1, 3, 10), job(2, 4, 5), job(3, 1, 10)], 4) == {1: 0, 2: 10, 3: 0}
    assert starts([job(1, 3, 10), job(2, 4, 5), job(3, 1, 11)], 4) == {1: 0, 2: 10, 3: 15}


def test_extra_nodes_count_all_jobs_that_end_at_the_shadow_time() -> None:
    """Job 1 alone would do for the head at 10, but job 2 ends there as well: 5 - 3 = 2 extra nodes, not 0."""
    # 0 1         10    15
    # 1 111111111 33333
    # 1 111111111 33333
    # 2 222222222 33333
    # 2 222222222 .....
    # . 444444444 44444 444444
    jobs = [job(1, 2, 10), job(2, 2, 10), job(3, 3, 5, at=1), job(4, 1, 20, at=1)]
    outcome = run(jobs, 5)
    assert outcome.start == {1: 0, 2: 0, 3: 10, 4: 1}
    assert outcome.log[1].extra == 2


def test_extra_nodes_are_used_up() -> None:
    """One extra node serves one long job; the second waits until the head has gone."""
    # 0          10    15
    # 4x 1111111 22222 4444...
    #    3333333 33333 3333...
    #    .       22222
    jobs = [job(1, 4, 10), job(2, 5, 5), job(3, 1, 20), job(4, 1, 20)]
    assert starts(jobs, 6) == {1: 0, 2: 10, 3: 0, 4: 15}


def test_a_job_that_ends_by_the_shadow_time_leaves_the_extra_nodes_alone() -> None:
    """The short job comes first in the queue and the long one still finds the extra node."""
    jobs = [job(1, 4, 10), job(2, 5, 5), job(3, 1, 10), job(4, 1, 20)]
    assert starts(jobs, 6) == {1: 0, 2: 10, 3: 0, 4: 0}


def test_easy_may_delay_the_second_in_the_queue() -> None:
    """Job 4 goes into the extra node of job 2 and stands in the way of job 3; conservative backfilling forbids that."""
    # EASY                          conservative
    # 0          10    15 ... 100   0          10    15    20
    # 1111111111 22222        33333 1111111111 22222 33333
    # 1111111111 22222        33333 1111111111 22222 33333
    # .......... 22222        33333 .......... 22222 33333
    # 4444444444 44444 44 ... 33333 .......... ..... 33333 4444 ...
    jobs = [job(1, 2, 10), job(2, 3, 5), job(3, 4, 5), job(4, 1, 100)]
    assert starts(jobs, 4) == {1: 0, 2: 10, 3: 100, 4: 0}
    assert starts(jobs, 4, backfill="conservative") == {1: 0, 2: 10, 3: 15, 4: 20}
    assert starts(jobs, 4, discipline="planning") == {1: 0, 2: 10, 3: 15, 4: 20}


def test_an_early_end_lets_the_head_start_before_its_shadow_time() -> None:
    """The head was shown 10; job 1 ends at 4."""
    outcome = run([job(1, 4, 10, run=4), job(2, 4, 5)], 4)
    assert shown(outcome) == [(0, 2, 10)]
    assert outcome.start == {1: 0, 2: 4}


def test_a_new_job_may_take_the_head_from_an_old_one_under_sjf() -> None:
    """Job 2 was promised 10; the shorter job 3 becomes head and job 2 starts after it."""
    outcome = run([job(1, 4, 10), job(2, 4, 9, at=1), job(3, 4, 2, at=2)], 4, order="sjf")
    assert shown(outcome) == [(1, 2, 10), (2, 3, 10), (10, 2, 12)]
    assert outcome.start == {1: 0, 3: 10, 2: 12}
    assert outcome.log[3].promise == 10


# First fit and best fit


def test_best_fit_takes_the_widest_candidate_first() -> None:
    """First fit fills 3 free nodes with 1 + 2, best fit with 3."""
    # first fit                     best fit
    # 0          10                 0          10
    # 3x 1111111 2222 ...           3x 1111111 2222 ...
    # 33333 44444                   44444 55555
    # 55555 44444                   44444 55555
    # 55555 44444                   44444 33333
    jobs = [job(1, 3, 10), job(2, 6, 5), job(3, 1, 5), job(4, 3, 5), job(5, 2, 5)]
    assert starts(jobs, 6) == {1: 0, 2: 10, 3: 0, 5: 0, 4: 5}
    best = run(jobs, 6, choice="best-fit")
    assert best.start == {1: 0, 2: 10, 4: 0, 3: 5, 5: 5}
    assert best.log[1].started == (5, 3)


def test_best_fit_takes_the_first_of_two_candidates_of_one_width() -> None:
    """Both fill the two free nodes; the queue's order decides."""
    jobs = [job(1, 2, 10), job(2, 4, 5), job(5, 2, 5), job(4, 2, 4)]
    assert starts(jobs, 4, choice="best-fit") == {1: 0, 2: 10, 4: 0, 5: 4}
    assert starts(jobs, 4, choice="best-fit", order="ljf") == {1: 0, 2: 10, 5: 0, 4: 5}


def test_best_fit_looks_only_at_candidates_that_may_start() -> None:
    """The widest candidate would end too late, so the next one is chosen."""
    jobs = [job(1, 2, 10), job(2, 4, 5), job(3, 1, 9), job(4, 2, 11)]
    assert starts(jobs, 4, choice="best-fit") == {1: 0, 2: 10, 3: 0, 4: 15}


# Slack


def test_slack_lets_candidates_delay_the_head_by_half_its_estimate() -> None:
    """The head is shown 10 and may be delayed to 15: an estimate of 15 passes it, one of 16 does not."""
    assert starts([job(1, 3, 10), job(2, 4, 10), job(3, 1, 15)], 4, backfill="slack") == {1: 0, 3: 0, 2: 15}
    assert starts([job(1, 3, 10), job(2, 4, 10), job(3, 1, 16)], 4, backfill="slack") == {1: 0, 2: 10, 3: 20}
    assert starts([job(1, 3, 10), job(2, 4, 10), job(3, 1, 15)], 4) == {1: 0, 2: 10, 3: 20}


def test_slack_does_not_add_up() -> None:
    """At 10 the shadow time has moved to 15, but the promise of 10 still bounds the delay: nothing may pass 15."""
    # 0          10    15
    # 3x 1111111 5.... 2222222222
    #    3333333 33333 2222222222    (job 5: three nodes)
    jobs = [job(1, 3, 10), job(2, 4, 10), job(3, 1, 15), job(4, 3, 6, at=9), job(5, 3, 5, at=9)]
    outcome = run(jobs, 4, backfill="slack")
    assert outcome.start == {1: 0, 3: 0, 5: 10, 2: 15, 4: 25}
    at_ten = next(one for one in outcome.log if one.now == 10)
    assert (at_ten.head, at_ten.shadow, at_ten.promise, at_ten.limit) == (2, 15, 10, 15)


def test_slack_times_estimate_is_rounded_down() -> None:
    """Half of 3 is 1: a job that ends at 11 passes the head, one that ends at 12 does not."""
    assert starts([job(1, 3, 10), job(2, 4, 3), job(3, 1, 11)], 4, backfill="slack")[3] == 0
    assert starts([job(1, 3, 10), job(2, 4, 3), job(3, 1, 12)], 4, backfill="slack")[3] == 13


def test_the_slack_is_the_product_of_two_doubles() -> None:
    """0.29 x 100 is 28.999... in doubles and rounds down to 28; the exact fraction gives 29."""
    jobs = [job(1, 3, 10), job(2, 4, 100), job(3, 1, 39)]
    assert starts(jobs, 4, backfill="slack", slack=0.29)[3] == 110
    assert starts(jobs, 4, backfill="slack", slack=Fraction(29, 100))[3] == 0


def test_with_slack_the_extra_nodes_are_those_at_the_limit() -> None:
    """None is spare at the shadow time 10, one at the limit 15, as job 2 has ended: the endless job 4 gets it."""
    # 0          10   14         24
    # 3x 1111111 .... 3333333333
    #    2222222 2222 3333333333
    #    4444444 4444 4444444444 4444 ...
    jobs = [job(1, 3, 10), job(2, 1, 14), job(3, 4, 10), job(4, 1, 90)]
    outcome = run(jobs, 5, backfill="slack")
    assert outcome.start == {1: 0, 2: 0, 4: 0, 3: 14}
    assert (outcome.log[0].shadow, outcome.log[0].limit, outcome.log[0].extra) == (10, 15, 1)
    assert starts(jobs, 5) == {1: 0, 2: 0, 3: 10, 4: 14}


def test_a_head_that_comes_back_keeps_its_old_promise() -> None:
    """Job 2 was shown 10 before shorter jobs went first; back as head at 10 it is given no new slack."""
    # SJF; job 2 has a promise of 10, a slack of 4, and so a limit of 14.
    jobs = [job(1, 4, 10), job(2, 4, 8, at=1), job(3, 3, 2, at=2), job(4, 1, 8, at=3), job(5, 1, 5, at=4)]
    # Without job 5: at 10 job 3 starts and job 2 is shown 12; job 4 would end at 18.
    outcome = run(jobs[:4], 4, order="sjf", backfill="slack")
    at_ten = next(one for one in outcome.log if one.now == 10)
    assert (at_ten.head, at_ten.shadow, at_ten.promise, at_ten.limit) == (2, 12, 10, 14)
    assert outcome.start == {1: 0, 3: 10, 2: 12, 4: 20}
    # With it: at 10 jobs 3 and 5 start and job 2 is shown 15, beyond its old limit: nothing may delay it more.
    outcome = run(jobs, 4, order="sjf", backfill="slack")
    at_ten = next(one for one in outcome.log if one.now == 10)
    assert at_ten.started == (3, 5)
    assert (at_ten.head, at_ten.shadow, at_ten.promise, at_ten.limit) == (2, 15, 10, 15)
    assert outcome.start == {1: 0, 3: 10, 5: 10, 2: 15, 4: 23}


# Cancellations


def test_cancelling_the_head_lets_the_next_job_start() -> None:
    """Job 2 blocks job 3 until it is cancelled at 3."""
    outcome = run([job(1, 3, 10), job(2, 4, 5), job(3, 1, 20)], 4, cancellations=[(3, 2)])
    assert outcome.start == {1: 0, 3: 3}
    assert outcome.cancelled == {2: 3}


def test_cancelling_a_running_job_ends_it() -> None:
    """Job 1 ends at 4 and job 2 starts there, whatever the discipline."""
    jobs = [job(1, 4, 10), job(2, 4, 5)]
    for options in ({"backfill": "none"}, {}, {"backfill": "conservative"}, {"discipline": "planning"}):
        outcome = run(jobs, 4, cancellations=[(4, 1)], **options)
        assert outcome.start == {1: 0, 2: 4}
        assert outcome.end == {1: 4, 2: 9}


def test_a_cancellation_that_meets_no_job_changes_nothing() -> None:
    """Too late by completion, and too early by submission: both come in another order at that instant."""
    jobs = [job(1, 4, 10), job(2, 4, 5, at=10)]
    outcome = run(jobs, 4, cancellations=[(10, 1), (10, 2), (12, 1), (99, 2)])
    assert outcome.cancelled == {}
    assert outcome.start == {1: 0, 2: 10}


@pytest.mark.parametrize(
    ("nodes", "jobs", "options"),
    [
        (0, [], {}),
        (4, [job(1, 1, 0)], {}),
        (4, [job(1, 1, 5, run=0)], {}),
        (4, [job(1, 0, 5)], {}),
        (4, [job(1, 1, 5), job(1, 1, 5)], {}),
        (4, [job(1, 1, 5, weight=-1.0)], {}),
        (4, [], {"discipline": "gang"}),
        (4, [], {"order": "lifo"}),
        (4, [], {"backfill": "aggressive"}),
        (4, [], {"choice": "next-fit"}),
        (4, [], {"slack": -0.5}),
        (4, [], {"aging_ms": math.nan}),
    ],
)
def test_what_makes_no_sense_is_refused(nodes: int, jobs: list[Job], options: dict[str, Any]) -> None:
    """A wrong option or job is an error, never a schedule."""
    with pytest.raises(ValueError, match=r"."):
        simulate(jobs, nodes, **options)

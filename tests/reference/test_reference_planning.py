"""Schedules of the slow reference that were worked out by hand: planning, advance reservations, limits."""

from __future__ import annotations

from typing import Any

import pytest

from reference.limits import is_closed, openings
from reference.model import DAY, WEEK, Answer, Job, Limit, Outcome, Reservation, Window
from reference.simulation import simulate
from reference.validation import validate

HOUR = DAY // 24
MONDAY, FRIDAY, SATURDAY, SUNDAY = 0, 4, 5, 6
WEEKDAYS = frozenset(range(5))
ALL_DAYS = frozenset(range(7))
PRIME_TIME = Window(WEEKDAYS, 8 * HOUR, 18 * HOUR)


def job(job_id: int, width: int, estimate: int, *, at: int = 0, run: int | None = None, user: int | None = None) -> Job:
    """Return a job; it runs for its estimate unless told otherwise."""
    return Job(job_id, at, width, estimate, estimate if run is None else run, user=user)


def run(jobs: list[Job], nodes: int, **options: Any) -> Outcome:
    """Simulate a planning site, check what must always hold, and return the outcome."""
    outcome = simulate(jobs, nodes, discipline="planning", **options)
    named = {name: options[name] for name in ("limits", "week_offset_ms") if name in options}
    assert validate(outcome, jobs, nodes, **named) == []
    return outcome


def ask(*requests: Reservation, jobs: list[Job], nodes: int = 4) -> list[Answer]:
    """Return the answers to requests for reservations."""
    outcome = run(jobs, nodes, reservations=requests)
    return [outcome.reservations[request.id][1] for request in requests]


# Plans


def test_backfilling_is_implicit_in_a_plan() -> None:
    """Job 3 is planned before job 2, as that delays nobody planned before it."""
    outcome = run([job(1, 3, 10), job(2, 2, 5), job(3, 1, 3)], 4)
    assert outcome.log[0].plan == {1: 0, 2: 10, 3: 0}
    assert outcome.start == {1: 0, 2: 10, 3: 0}


def test_without_backfilling_no_job_is_planned_before_the_one_in_front_of_it() -> None:
    """The search for job 3 begins at the planned start of job 2."""
    outcome = run([job(1, 3, 10), job(2, 2, 5), job(3, 1, 3)], 4, backfill="none")
    assert outcome.log[0].plan == {1: 0, 2: 10, 3: 10}


def test_an_early_end_makes_a_new_plan_from_nothing() -> None:
    """Job 4 was planned in front of job 3 for want of room; the new plan puts job 3 first and both move up."""
    # planned at 0                       planned at 5
    # 0          10    15    20          0     5     10    15
    # 1111111111 44444 ..... 33333       11111 11111 33333
    # 1111111111 44444 ..... 33333       11111 11111 33333
    # 2222222222 22222 22222 33333       22222 44444 33333
    # 2222222222 22222 22222 33333       22222 44444 33333
    outcome = run([job(1, 2, 10), job(2, 2, 20, run=5), job(3, 4, 5), job(4, 2, 5)], 4)
    assert outcome.log[0].plan == {1: 0, 2: 0, 3: 20, 4: 10}
    assert outcome.log[1].plan == {3: 10, 4: 5}
    assert outcome.start == {1: 0, 2: 0, 4: 5, 3: 10}


def test_a_planned_job_may_be_put_off_by_one_that_stands_before_it() -> None:
    """Under SJF job 2 is planned for 10, until the shorter job 3 comes in."""
    outcome = run([job(1, 4, 10), job(2, 4, 8, at=1), job(3, 4, 2, at=2)], 4, order="sjf")
    assert [one.plan.get(2) for one in outcome.log] == [None, 10, 12, 12, 12, None]
    assert outcome.start == {1: 0, 3: 10, 2: 12}


def test_a_cancelled_job_leaves_the_plan() -> None:
    """Job 2 is cancelled at 3 and job 3 moves to its place."""
    outcome = run([job(1, 4, 10), job(2, 4, 5), job(3, 4, 5)], 4, cancellations=[(3, 2)])
    assert outcome.log[1].plan == {3: 10}


@pytest.mark.parametrize("backfill", ["conservative", "slack"])
def test_planning_has_no_other_backfilling(backfill: str) -> None:
    """Other names of backfilling are refused."""
    with pytest.raises(ValueError, match=backfill):
        run([], 4, backfill=backfill)


# Advance reservations


def test_jobs_are_planned_around_an_accepted_reservation() -> None:
    """Two nodes are reserved from 5 to 10: a job of 3 goes before it, one of 4 behind it."""
    # 0  2   5     10
    # 11 111 11111 3333     (two nodes)
    # .. 222 RRRRR ....     (two nodes)
    jobs = [job(1, 2, 10), job(2, 2, 3, at=2), job(3, 2, 4, at=2)]
    outcome = run(jobs, 4, reservations=[Reservation("R", 1, 5, 5, 2)])
    assert outcome.reservations["R"][1] == Answer(accepted=True, start=5)
    assert outcome.start == {1: 0, 2: 2, 3: 10}


def test_a_reservation_that_does_not_fit_is_told_the_earliest_start() -> None:
    """Three nodes are free when job 1 ends by its estimate; job 2, which waits, comes first."""
    request = Reservation("R", 1, 5, 5, 3)
    assert ask(request, jobs=[job(1, 2, 10)]) == [Answer(accepted=False, start=10)]
    assert ask(request, jobs=[job(1, 2, 10), job(2, 4, 5)]) == [Answer(accepted=False, start=15)]


def test_a_refused_reservation_keeps_nothing() -> None:
    """Job 2 is planned as if nobody had asked."""
    outcome = run([job(1, 2, 10), job(2, 4, 5, at=2)], 4, reservations=[Reservation("R", 1, 5, 50, 3)])
    assert outcome.start == {1: 0, 2: 10}


def test_a_reservation_fits_between_two_planned_jobs_to_the_millisecond() -> None:
    """Four nodes are free from 5 to 10: a length of 5 is accepted, one of 6 finds the next room at 12."""
    # 0     5     10 12
    # 11111 ..... RR        R: an earlier reservation of the whole machine
    earlier = Reservation("early", 0, 10, 2, 4)
    assert ask(earlier, Reservation("R", 1, 5, 5, 4), jobs=[job(1, 4, 5)])[1] == Answer(accepted=True, start=5)
    assert ask(earlier, Reservation("R", 1, 5, 6, 4), jobs=[job(1, 4, 5)])[1] == Answer(accepted=False, start=12)


def test_a_start_in_the_past_is_refused() -> None:
    """The earliest start named is now at best."""
    request = Reservation("R", 12, 11, 5, 1)
    assert ask(request, jobs=[job(1, 4, 10)]) == [Answer(accepted=False, start=12)]
    assert ask(request, jobs=[job(1, 4, 15)]) == [Answer(accepted=False, start=15)]


def test_a_reservation_may_start_at_the_instant_of_its_request() -> None:
    """Now is not the past: it is accepted at once and keeps the nodes from a job submitted after it."""
    jobs = [job(1, 4, 3, at=5)]
    outcome = run(jobs, 4, reservations=[Reservation("R", 5, 5, 10, 1, place=0)])
    assert outcome.start == {1: 15}


def test_a_request_is_answered_at_its_place_among_the_submissions() -> None:
    """Before job 1 it is accepted and job 1 waits; after job 1 it is refused and job 1 starts."""
    before = run([job(1, 4, 10)], 4, reservations=[Reservation("R", 0, 0, 5, 4, place=0)])
    assert before.reservations["R"][1].accepted
    assert before.start == {1: 5}
    after = run([job(1, 4, 10)], 4, reservations=[Reservation("R", 0, 0, 5, 4, place=1)])
    assert after.reservations["R"][1] == Answer(accepted=False, start=10)
    assert after.start == {1: 0}


def test_a_reservation_wider_than_the_machine_has_no_start_at_all() -> None:
    """It is refused, and no earliest start is named."""
    assert ask(Reservation("R", 0, 5, 5, 5), jobs=[job(1, 1, 1)]) == [Answer(accepted=False, start=None)]


def test_two_requests_of_one_instant_see_each_other() -> None:
    """The second finds the nodes of the first taken."""
    first, second = Reservation("a", 0, 5, 5, 3), Reservation("b", 0, 5, 5, 2)
    assert ask(first, second, jobs=[job(1, 1, 1)]) == [Answer(accepted=True, start=5), Answer(accepted=False, start=10)]


# Limits: no start in a window


@pytest.mark.parametrize(
    ("submit", "start"),
    [
        (7, 7),  # Monday before eight
        (8, 18),  # `from` is inside
        (17, 18),
        (18, 18),  # `to` is outside
        (4 * 24 + 17, 4 * 24 + 18),  # Friday
        (5 * 24 + 9, 5 * 24 + 9),  # Saturday
    ],
)
def test_no_wide_job_starts_in_prime_time(submit: int, start: int) -> None:
    """From 8:00 to 18:00 on weekdays no job wider than three of the four nodes starts; a narrower one does."""
    limit = Limit(wider_than=3, window=PRIME_TIME)
    jobs = [job(1, 4, HOUR, at=submit * HOUR), job(2, 3, HOUR, at=submit * HOUR + 2 * HOUR)]
    assert run(jobs, 4, limits=[limit]).start[1] == start * HOUR
    assert run(jobs[1:], 4, limits=[limit]).start[2] == (submit + 2) * HOUR


def test_a_job_that_started_before_the_window_runs_on() -> None:
    """Started on Sunday evening, it holds the machine through Monday's prime time."""
    wide = job(1, 4, 48 * HOUR)
    outcome = run([wide], 4, limits=[Limit(wider_than=3, window=PRIME_TIME)], week_offset_ms=SUNDAY * DAY + 20 * HOUR)
    assert outcome.start == {1: 0}


def test_a_start_at_the_opening_of_a_window_is_a_timer() -> None:
    """Nothing else happens at 18:00, and the job starts there."""
    outcome = run([job(1, 4, HOUR)], 4, limits=[Limit(window=PRIME_TIME)], week_offset_ms=9 * HOUR)
    assert [one.now for one in outcome.log] == [0, 9 * HOUR, 10 * HOUR]
    assert outcome.start == {1: 9 * HOUR}


def test_a_job_whose_nodes_become_free_within_a_window_waits_for_its_end() -> None:
    """The machine is free from 10:00 on, but prime time lasts until 18:00; a narrow job uses the gap."""
    limit = Limit(wider_than=3, window=PRIME_TIME)
    jobs = [job(1, 4, 3 * HOUR), job(2, 4, HOUR), job(3, 1, 8 * HOUR), job(4, 1, 8 * HOUR + 1)]
    outcome = run(jobs, 4, limits=[limit], week_offset_ms=7 * HOUR)
    assert outcome.start == {1: 0, 2: 11 * HOUR, 3: 3 * HOUR, 4: 12 * HOUR}


def test_without_backfilling_a_job_held_by_a_window_holds_those_behind_it() -> None:
    """Job 1 is planned for 18:00, so job 2 starts no earlier."""
    limit = Limit(wider_than=3, window=PRIME_TIME)
    jobs = [job(1, 4, HOUR), job(2, 1, HOUR)]
    assert run(jobs, 4, limits=[limit], week_offset_ms=9 * HOUR, backfill="none").start == {1: 9 * HOUR, 2: 10 * HOUR}
    assert run(jobs, 4, limits=[limit], week_offset_ms=9 * HOUR).start == {1: 9 * HOUR, 2: 0}


@pytest.mark.parametrize(
    ("day", "hour", "closed"),
    [
        (FRIDAY, 5, False),  # Thursday is not named
        (FRIDAY, 21, False),
        (FRIDAY, 22, True),
        (SATURDAY, 5, True),  # the night of Friday
        (SATURDAY, 6, False),
        (SATURDAY, 23, False),
        (SUNDAY, 23, True),
        (MONDAY, 5, True),  # the night of Sunday
        (MONDAY, 6, False),
        (MONDAY, 22, False),
    ],
)
def test_a_window_over_midnight_belongs_to_the_day_on_which_it_begins(day: int, hour: int, closed: bool) -> None:
    """From 22:00 to 6:00 on Fridays and Sundays, which reaches into Saturday and the next week's Monday."""
    window = Window(frozenset({FRIDAY, SUNDAY}), 22 * HOUR, 6 * HOUR)
    for week in (0, 1, 7):
        assert is_closed(window, week * WEEK + day * DAY + hour * HOUR, 0) is closed
        assert is_closed(window, week * WEEK + day * DAY, hour * HOUR) is closed


def test_the_openings_of_a_window_are_the_ends_of_its_nights() -> None:
    """Saturday and Monday at 6:00, in local time, in every week."""
    window = Window(frozenset({FRIDAY, SUNDAY}), 22 * HOUR, 6 * HOUR)
    local = [6 * HOUR, SATURDAY * DAY + 6 * HOUR, WEEK + 6 * HOUR, WEEK + SATURDAY * DAY + 6 * HOUR]
    assert openings(window, -1, 2 * WEEK, 0) == local
    assert openings(window, 6 * HOUR, WEEK + 6 * HOUR, 0) == local[1:3]
    assert openings(window, -1, WEEK, DAY) == [one - DAY for one in local[1:3]]


def test_a_window_that_ends_when_it_begins_lasts_a_whole_day() -> None:
    """Jobs that are estimated to run for more than two days start at weekends only."""
    limit = Limit(longer_than_ms=2 * DAY, window=Window(WEEKDAYS, 0, 0))
    jobs = [job(1, 1, 2 * DAY + 1, at=2 * DAY), job(2, 1, 2 * DAY, at=2 * DAY), job(3, 1, 3 * DAY, at=6 * DAY)]
    assert run(jobs, 4, limits=[limit]).start == {1: SATURDAY * DAY, 2: 2 * DAY, 3: SUNDAY * DAY}


# Limits: at most so many nodes or jobs


def test_three_jobs_of_a_third_of_the_machine_do_not_run_together() -> None:
    """At most two at one time; the third waits although its nodes are free, and a narrower job does not."""
    # 0     5
    # 11111 33333     (three nodes each)
    # 22222 .....
    # 44... .....
    limit = Limit(wider_than=2, max_jobs=2)
    jobs = [job(1, 3, 5), job(2, 3, 5), job(3, 3, 5), job(4, 2, 2)]
    assert run(jobs, 9, limits=[limit]).start == {1: 0, 2: 0, 3: 5, 4: 0}


def test_a_user_is_given_part_of_the_machine() -> None:
    """User 1 has at most 4 of 10 nodes; until job 1 has ended, its end by estimate is what counts."""
    limit = Limit(user=1, max_nodes=4)
    jobs = [
        job(1, 3, 10, run=5, user=1),
        job(2, 2, 5, user=1),
        job(3, 1, 7, user=1),
        job(4, 6, 5, user=2),
        job(5, 1, 5),
    ]
    outcome = run(jobs, 10, limits=[limit])
    assert outcome.log[0].plan == {1: 0, 2: 10, 3: 0, 4: 0, 5: 5}
    assert outcome.start == {1: 0, 2: 5, 3: 0, 4: 0, 5: 5}


def test_a_cap_is_kept_for_the_whole_of_a_job() -> None:
    """Job 3 would run together with job 2 from 5 on, so it is planned behind it, though nodes are free."""
    limit = Limit(wider_than=1, max_jobs=1)
    jobs = [job(1, 4, 5), job(2, 2, 5), job(3, 2, 3), job(4, 1, 20)]
    outcome = run(jobs, 6, limits=[limit])
    assert outcome.start == {1: 0, 2: 5, 3: 10, 4: 0}


def test_a_reservation_is_no_job_and_no_limit_counts_it() -> None:
    """Job 1 starts beside a reservation of the same width although only one such job is allowed."""
    limits = [Limit(wider_than=1, max_jobs=1), Limit(max_nodes=2)]
    outcome = run([job(1, 2, 5)], 4, limits=limits, reservations=[Reservation("R", 0, 0, 5, 2, place=0)])
    assert outcome.reservations["R"][1].accepted
    assert outcome.start == {1: 0}


@pytest.mark.parametrize(
    "limits",
    [
        [Limit(wider_than=2, max_nodes=2)],
        [Limit(max_jobs=0)],
        [Limit(window=Window(ALL_DAYS, 9 * HOUR, 9 * HOUR))],
        [Limit(window=Window(ALL_DAYS, 8 * HOUR, 18 * HOUR)), Limit(window=Window(ALL_DAYS, 18 * HOUR, 8 * HOUR))],
    ],
)
def test_a_job_that_limits_never_let_start_is_refused_at_once(limits: list[Limit]) -> None:
    """Too wide for its cap, no job allowed at all, or the whole week closed, by one window or by two together."""
    outcome = run([job(1, 3, 5)], 4, limits=limits)
    assert list(outcome.refused) == [1]
    assert outcome.start == {}


def test_a_week_with_one_open_hour_is_not_closed() -> None:
    """The job starts in that hour, on Sunday at 23:00."""
    closed = [Window(ALL_DAYS - {SUNDAY}, 0, 0), Window(frozenset({SUNDAY}), 0, 23 * HOUR)]
    outcome = run([job(1, 1, 5)], 4, limits=[Limit(window=window) for window in closed])
    assert outcome.start == {1: SUNDAY * DAY + 23 * HOUR}


@pytest.mark.parametrize(
    "options",
    [
        {"discipline": "queue", "limits": [Limit(max_jobs=1)]},
        {"discipline": "queue", "reservations": [Reservation(1, 0, 0, 1, 1)]},
        {"limits": [Limit()]},
        {"limits": [Limit(window=PRIME_TIME, max_jobs=1)]},
        {"limits": [Limit(window=Window(frozenset({7}), 0, 1))]},
        {"limits": [Limit(window=Window(WEEKDAYS, DAY, 1))]},
        {"reservations": [Reservation(1, 0, 0, 0, 1)]},
        {"reservations": [Reservation(1, 0, 0, 1, 1), Reservation(1, 0, 0, 1, 1)]},
    ],
)
def test_limits_and_reservations_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    """A limit has one of two effects, windows lie in the week, and a queue site has neither limits nor reservations."""
    with pytest.raises(ValueError, match=r"."):
        simulate([], 4, **{"discipline": "planning", **options})

"""What the rules imply, checked on random workloads: bounds, theorems, and each decision looked at once more."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from reference.availability import Occupation, earliest_start, fits
from reference.limits import allows, is_closed, openings
from reference.model import WEEK, Job, Moment, Outcome, Reservation
from reference.ordering import ORDERS, key_of
from reference.simulation import simulate
from reference.validation import validate
from support.builders import (
    HOUR,
    Case,
    cancellation_lists,
    cases,
    limit_lists,
    planning_options,
    queue_options,
    reservation_lists,
)

unhurried = settings(deadline=None, max_examples=150)
NOBODY = 10**9


def waiting_after(moment: Moment, jobs: list[Job], outcome: Outcome, options: dict[str, Any]) -> list[Job]:
    """Return the jobs that still wait after a pass, in their order."""
    gone = {job_id for job_id, when in outcome.cancelled.items() if when <= moment.now} | set(outcome.refused)
    left = [
        job
        for job in jobs
        if job.submit <= moment.now and job.id not in gone and outcome.start.get(job.id, math.inf) > moment.now
    ]
    return sorted(left, key=lambda job: (key_of(job, options["order"], options["aging_ms"]), job.submit, job.id))


def running_after(moment: Moment, jobs: list[Job], outcome: Outcome) -> list[tuple[int, int]]:
    """Return end by estimate and width of each job that runs after a pass."""
    running = [job for job in jobs if job.id in outcome.start]
    running = [job for job in running if outcome.start[job.id] <= moment.now < outcome.end[job.id]]
    return [(outcome.start[job.id] + job.estimate, job.width) for job in running]


def shadow_of(head: Job, nodes: int, running: list[tuple[int, int]]) -> int:
    """Return the first end at which the head fits."""
    for instant in sorted(end for end, _ in running):
        if nodes - sum(width for end, width in running if end > instant) >= head.width:
            return instant
    raise AssertionError("the head fits on the empty machine")


# Every discipline


@unhurried
@given(st.data())
def test_every_outcome_is_valid(data: st.DataObject) -> None:
    """Whatever the discipline: nodes suffice, nobody starts before submission, everybody starts once or is told why."""
    case = data.draw(cases(too_wide=1))
    options = data.draw(st.one_of(queue_options(), planning_options()))
    outcome = simulate(case.jobs, case.nodes, cancellations=data.draw(cancellation_lists(case.jobs)), **options)
    assert validate(outcome, case.jobs, case.nodes) == []
    assert set(outcome.refused) == {job.id for job in case.jobs if job.width > case.nodes}


@unhurried
@given(st.data())
def test_the_order_in_which_jobs_are_handed_over_means_nothing(data: st.DataObject) -> None:
    """Submit time and id settle every tie."""
    case = data.draw(cases())
    options = data.draw(st.one_of(queue_options(), planning_options()))
    shuffled = data.draw(st.permutations(case.jobs))
    assert simulate(shuffled, case.nodes, **options).start == simulate(case.jobs, case.nodes, **options).start


@unhurried
@given(st.data())
def test_an_instant_at_which_nothing_happens_changes_nothing(data: st.DataObject) -> None:
    """A pass, or a plan made again, between two events finds nothing to do that was not done before."""
    case = data.draw(cases())
    options = data.draw(st.one_of(queue_options(), planning_options()))
    instants = data.draw(st.lists(st.integers(0, 60), max_size=20))
    idle: dict[str, Any]
    if options["discipline"] == "planning":
        idle = {"reservations": [Reservation(n, t, t, 1, case.nodes + 1) for n, t in enumerate(instants)]}
    else:
        idle = {"cancellations": [(instant, NOBODY) for instant in instants]}
    assert simulate(case.jobs, case.nodes, **options, **idle).start == simulate(case.jobs, case.nodes, **options).start


@unhurried
@given(cases(), st.sampled_from([{"discipline": "planning"}, {"backfill": "easy"}, {"backfill": "conservative"}]))
def test_orders_with_equal_keys_give_equal_schedules(case: Case, options: dict[str, Any]) -> None:
    """Without weights the Smith ratio is the area; without priorities, or worth of them, priority is FCFS."""

    def begun(order: str, aging_ms: float = 0.0, **same: Any) -> dict[int, int]:
        jobs = [dataclasses.replace(job, **same) for job in case.jobs]
        return simulate(jobs, case.nodes, order=order, aging_ms=aging_ms, **options).start

    assert begun("smith", weight=1.0) == begun("saf")
    fcfs = begun("fcfs")
    assert begun("weight", weight=1.0) == fcfs
    assert begun("priority", aging_ms=0.0) == fcfs
    assert begun("priority", aging_ms=3.0, priority=0) == fcfs
    assert begun("priority", aging_ms=math.inf, priority=2) == fcfs


@unhurried
@given(st.data())
def test_without_backfilling_a_queue_and_a_plan_start_the_same_jobs(data: st.DataObject) -> None:
    """Both start, at every event, the longest run of jobs from the front that fits, in any order, by any estimates."""
    case = data.draw(cases())
    options = data.draw(queue_options(["none"]))
    cancellations = data.draw(cancellation_lists(case.jobs))
    queue = simulate(case.jobs, case.nodes, cancellations=cancellations, **options)
    plan = simulate(case.jobs, case.nodes, cancellations=cancellations, **{**options, "discipline": "planning"})
    assert (queue.start, queue.end) == (plan.start, plan.end)


@unhurried
@given(cases(perfect=True), st.sampled_from(ORDERS))
def test_with_perfect_estimates_conservative_backfilling_is_fcfs_planning(case: Case, order: str) -> None:
    """Nothing ends early, so reservations never move, whatever the order, and a new FCFS plan repeats the old one."""
    conservative = simulate(case.jobs, case.nodes, backfill="conservative", order=order)
    assert conservative.start == simulate(case.jobs, case.nodes, discipline="planning").start


# Queue


@unhurried
@given(cases(), queue_options(["slack"]), st.sampled_from([0, 0.0, Fraction(0)]))
def test_no_slack_is_easy(case: Case, options: dict[str, Any], none: float | Fraction) -> None:
    """With a slack of zero the two give one schedule, job by job, pass by pass."""
    no_slack = simulate(case.jobs, case.nodes, **{**options, "slack": none})
    easy = simulate(case.jobs, case.nodes, **{**options, "backfill": "easy"})
    assert (no_slack.start, no_slack.log) == (easy.start, easy.log)


@unhurried
@given(cases(), queue_options(["easy", "slack"]))
def test_the_choice_means_nothing_among_jobs_of_one_width(case: Case, options: dict[str, Any]) -> None:
    """Best fit takes the first of the widest."""
    jobs = [dataclasses.replace(job, width=1 + case.nodes // 3) for job in case.jobs]
    first, best = (simulate(jobs, case.nodes, **{**options, "choice": name}) for name in ("first-fit", "best-fit"))
    assert first.log == best.log


@unhurried
@given(st.data())
def test_a_queue_starts_all_that_may_and_nothing_that_may_not(data: st.DataObject) -> None:
    """After a pass the head does not fit, still fits by its limit, and each other job would break one or the other."""
    case = data.draw(cases())
    options = data.draw(queue_options(["none", "easy", "slack"]))
    outcome = simulate(case.jobs, case.nodes, cancellations=data.draw(cancellation_lists(case.jobs)), **options)
    for moment in outcome.log:
        waiting = waiting_after(moment, case.jobs, outcome, options)
        running = running_after(moment, case.jobs, outcome)
        free = case.nodes - sum(width for _, width in running)
        if waiting:
            assert waiting[0].width > free
        if waiting and options["backfill"] != "none":
            assert moment.head == waiting[0].id
            assert moment.shadow is not None
            assert moment.limit is not None
            assert shadow_of(waiting[0], case.nodes, running) <= moment.limit
            if options["backfill"] == "easy":
                assert shadow_of(waiting[0], case.nodes, running) == moment.shadow == moment.limit
            for job in waiting[1:]:
                with_job = [*running, (moment.now + job.estimate, job.width)]
                assert job.width > free or shadow_of(waiting[0], case.nodes, with_job) > moment.limit


@unhurried
@given(st.data())
def test_a_head_that_stays_the_head_starts_by_its_promise(data: st.DataObject) -> None:
    """It starts no later than it was ever shown (EASY), or than that and its slack, unless a job comes in before it."""
    case = data.draw(cases())
    options = data.draw(queue_options(["easy", "slack"]))
    outcome = simulate(case.jobs, case.nodes, cancellations=data.draw(cancellation_lists(case.jobs)), **options)
    by_id = {job.id: job for job in case.jobs}

    def place(job_id: int) -> tuple[float, int, int]:
        job = by_id[job_id]
        return key_of(job, options["order"], options["aging_ms"]), job.submit, job.id

    head: int | None = None
    promise = 0
    for moment in outcome.log:
        if head is not None and any(place(job_id) < place(head) for job_id in moment.started):
            head = None
        if head is not None:
            slack = math.floor(options["slack"] * by_id[head].estimate) if options["backfill"] == "slack" else 0
            if head in moment.started:
                assert moment.now <= promise + slack
            elif moment.head == head:
                assert moment.shadow is not None
                assert moment.shadow <= promise + slack
        if moment.head is not None and moment.shadow is not None:
            promise = min(promise, moment.shadow) if moment.head == head else moment.shadow
        head = moment.head


@unhurried
@given(cases(), st.sampled_from(["easy", "slack", "none"]))
def test_fcfs_starts_heads_in_the_order_of_submission(case: Case, backfill: str) -> None:
    """Heads follow one another by submit time and id; without backfilling all jobs do."""
    outcome = simulate(case.jobs, case.nodes, backfill=backfill)
    rank = {job.id: n for n, job in enumerate(sorted(case.jobs, key=lambda job: (job.submit, job.id)))}
    heads = [rank[moment.head] for moment in outcome.log if moment.head is not None]
    assert heads == sorted(heads)
    if backfill == "none":
        ranks = [rank[job_id] for moment in outcome.log for job_id in moment.started]
        assert ranks == sorted(ranks)


# Conservative backfilling


@unhurried
@given(st.data())
def test_a_reserved_start_never_moves_later(data: st.DataObject) -> None:
    """From pass to pass a job's reservation stays or moves earlier, and the job starts at its last one."""
    case = data.draw(cases())
    options = data.draw(queue_options(["conservative"]))
    outcome = simulate(case.jobs, case.nodes, cancellations=data.draw(cancellation_lists(case.jobs)), **options)
    reserved: dict[int, int] = {}
    for moment in outcome.log:
        for job_id, start in moment.plan.items():
            assert moment.now <= start <= reserved.get(job_id, start)
        reserved.update(moment.plan)
    assert {job_id: reserved[job_id] for job_id in outcome.start} == outcome.start


# Planning


@unhurried
@given(st.data())
def test_a_refused_request_names_the_first_start_that_would_have_been_accepted(data: st.DataObject) -> None:
    """Asked for at its place, the named start is accepted, and every instant from the one asked for to it is not."""
    case = data.draw(cases(max_jobs=8))
    options = data.draw(planning_options())
    requests = data.draw(reservation_lists(case))
    outcome = simulate(case.jobs, case.nodes, reservations=requests, **options)
    assert validate(outcome, case.jobs, case.nodes) == []
    for number, request in enumerate(requests):
        answer = outcome.reservations[request.id][1]
        if answer.start is None:
            assert request.width > case.nodes
        elif not answer.accepted:
            for start in range(max(request.start, request.request), answer.start + 1):
                others = [*requests[:number], dataclasses.replace(request, start=start), *requests[number + 1 :]]
                again = simulate(case.jobs, case.nodes, reservations=others, **options)
                assert again.reservations[request.id][1].accepted == (start == answer.start)


@unhurried
@given(st.data())
def test_a_plan_puts_each_job_at_the_first_hour_it_is_allowed(data: st.DataObject) -> None:
    """Every hour before a planned start is looked at: some node or some limit stands in the way there."""
    case = data.draw(cases(max_jobs=7, tick=HOUR))
    options = data.draw(planning_options())
    limits = data.draw(limit_lists(case.nodes))
    requests = data.draw(reservation_lists(case, tick=HOUR))
    offset = data.draw(st.integers(0, 167)) * HOUR
    rules: dict[str, Any] = {"limits": limits, "week_offset_ms": offset}
    outcome = simulate(case.jobs, case.nodes, reservations=requests, **rules, **options)
    assert validate(outcome, case.jobs, case.nodes, **rules) == []
    by_id = {job.id: job for job in case.jobs}
    for moment in outcome.log:
        before = [job for job in case.jobs if outcome.start.get(job.id, math.inf) < moment.now < outcome.end[job.id]]
        taken = [
            Occupation(outcome.start[job.id], outcome.start[job.id] + job.estimate, job.width, job) for job in before
        ]
        for request, answer in outcome.reservations.values():
            if answer.accepted and request.request <= moment.now:
                taken.append(Occupation(request.start, request.start + request.length, request.width))
        planned = [by_id[job_id] for job_id in moment.plan]
        not_before = moment.now
        for job in sorted(
            planned, key=lambda job: (key_of(job, options["order"], options["aging_ms"]), job.submit, job.id)
        ):
            start = not_before
            while not (
                fits(start, job.estimate, job.width, case.nodes, taken)
                and all(allows(limit, job, start, taken, offset) for limit in limits)
            ):
                start += HOUR
            assert moment.plan[job.id] == start
            taken.append(Occupation(start, start + job.estimate, job.width, job))
            not_before = start if options["backfill"] == "none" else not_before


# Parts


occupation_lists = st.lists(
    st.builds(
        lambda start, length, width: Occupation(start, start + length, width),
        st.integers(0, 12),
        st.integers(1, 12),
        st.integers(1, 4),
    ),
    max_size=8,
)


@unhurried
@given(occupation_lists, st.integers(0, 20), st.integers(1, 8), st.integers(1, 8))
def test_the_earliest_start_is_found_by_looking_at_every_millisecond(
    occupations: list[Occupation], not_before: int, length: int, width: int
) -> None:
    """No start is missed between the instants that are tried, and no instant between those that are checked."""

    def free(start: int) -> bool:
        busy = [sum(o.width for o in occupations if o.start <= t < o.end) for t in range(start, start + length)]
        return max(busy) + width <= 8

    expected = next(start for start in range(not_before, 100) if free(start))
    assert earliest_start(not_before, occupations, lambda start: fits(start, length, width, 8, occupations)) == expected


@unhurried
@given(limit_lists(4), st.integers(0, 200), st.integers(1, 200), st.integers(0, 167))
def test_a_window_opens_where_a_closed_hour_is_followed_by_an_open_one(
    limits: list[Any], after: int, hours: int, offset: int
) -> None:
    """Every change from closed to open is among the openings."""
    for window in [limit.window for limit in limits if limit.window is not None]:
        found = openings(window, after * HOUR, (after + hours) * HOUR, offset * HOUR)
        closed = [is_closed(window, hour * HOUR, offset * HOUR) for hour in range(after, after + hours + 1)]
        changes = [(after + n) * HOUR for n in range(1, hours + 1) if closed[n - 1] and not closed[n]]
        assert set(changes) <= set(found)
        assert all(is_closed(window, instant - 1, offset * HOUR) for instant in found)
        assert all(is_closed(window, instant + WEEK, 0) == is_closed(window, instant, 0) for instant in found)

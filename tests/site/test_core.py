"""SiteCore as its callers see it: what it commands, what it refuses, what it explains."""

from __future__ import annotations

import pytest

from gridweave.errors import InputError
from gridweave.site.job import Job
from gridweave.site.messages import (
    AcceptReservation,
    CloseReservation,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    KillJob,
    OpenReservation,
    RefuseJob,
    RefuseReservation,
    ReservationCancelled,
    ReservationRequested,
    StartJob,
)
from gridweave.site.policy import Limit, SitePolicy, Window
from gridweave.site.scheduler.core import SiteCore
from support.builders import week_beginning

HOUR_MS = 3_600_000


def submitted(job_id: int, width: int, estimate_ms: int) -> JobSubmitted:
    """Return the submission of a plain job."""
    return JobSubmitted(Job(job_id=job_id, width=width, estimate_ms=estimate_ms))


def planning(nodes: int = 4, **options: object) -> SiteCore:
    """Return a planning site."""
    return SiteCore(nodes, SitePolicy(discipline="planning", **options))  # type: ignore[arg-type]


def test_jobs_get_the_lowest_free_nodes() -> None:
    """A job starts on the free nodes with the lowest numbers, in pieces if need be."""
    core = SiteCore(6, SitePolicy())
    core.handle(0, submitted(1, 2, 10), submitted(2, 2, 20))
    assert core.handle(5, JobFinished(1), submitted(3, 4, 10)) == [StartJob(3, ((0, 2), (4, 6)))]
    core.check_invariants()


def test_events_of_one_instant_have_one_order() -> None:
    """Completions come before submissions whatever the order in which they are told."""
    core = SiteCore(2, SitePolicy())
    core.handle(0, submitted(1, 2, 10))
    assert core.handle(10, submitted(2, 2, 5), JobFinished(1)) == [StartJob(2, ((0, 2),))]


def test_repeated_events_change_nothing() -> None:
    """A submission, completion or cancellation that comes twice, or speaks of an unknown job, is passed over."""
    core = SiteCore(2, SitePolicy())
    assert core.handle(0, submitted(1, 2, 10)) == [StartJob(1, ((0, 2),))]
    assert core.handle(1, submitted(1, 2, 10), submitted(2, 2, 10)) == []
    assert core.handle(2, submitted(2, 2, 10), JobFinished(9), JobCancelled(9)) == []
    assert core.handle(3, JobFinished(1)) == [StartJob(2, ((0, 2),))]
    assert core.handle(4, JobFinished(1)) == []
    core.check_invariants()


def test_a_job_at_its_limit_is_killed_once() -> None:
    """A core that hears nothing of a job wakes at its limit, commands its end, and keeps its nodes till it is gone."""
    core = SiteCore(2, SitePolicy())
    core.handle(0, submitted(1, 2, 10), submitted(2, 1, 10))
    assert core.next_wakeup_ms() == 10
    assert core.handle(10) == [KillJob(1, "reached its limit")]
    assert core.next_wakeup_ms() is None
    assert core.handle(12) == []
    assert core.handle(15, JobFinished(1)) == [StartJob(2, ((0, 1),))]


@pytest.mark.parametrize(
    "policy", [SitePolicy(), SitePolicy(backfill="conservative"), SitePolicy(discipline="planning")]
)
def test_nothing_starts_on_the_nodes_of_an_overdue_job(policy: SitePolicy) -> None:
    """While a job past its limit has not left, no discipline gives its nodes away, and all goes on when it has left."""
    core = SiteCore(4, policy)
    core.handle(0, submitted(1, 3, 10), submitted(2, 3, 10), submitted(3, 2, 50))
    for now_ms in range(1, 30):
        assert [c for c in core.handle(now_ms) if isinstance(c, StartJob)] == []
        core.check_invariants()
    assert StartJob(2, ((0, 3),)) in core.handle(30, JobFinished(1))
    core.check_invariants()


def test_cancelling_a_running_job_kills_it() -> None:
    """A cancelled job that waits is gone at once; one that runs is commanded to end, once."""
    core = SiteCore(2, SitePolicy())
    core.handle(0, submitted(1, 2, 10), submitted(2, 2, 10))
    assert core.handle(1, JobCancelled(2)) == []
    assert core.handle(2, JobCancelled(1)) == [KillJob(1, "cancelled")]
    assert core.handle(3, JobCancelled(1)) == []
    assert core.handle(4, JobFinished(1)) == []
    assert core.free == 2


def test_a_job_wider_than_the_site_is_refused() -> None:
    """A job that can never run is refused with the numbers, and is not in the queue."""
    core = SiteCore(4, SitePolicy())
    assert core.handle(0, submitted(1, 5, 10)) == [RefuseJob(1, "it needs 5 nodes and the site has 4", is_final=True)]
    assert list(core.waiting()) == []


def test_impossible_input_changes_nothing() -> None:
    """Time that goes back and a job without width are refused, and the site goes on as it was."""
    core = SiteCore(4, SitePolicy())
    core.handle(5, submitted(1, 1, 10))
    with pytest.raises(InputError, match="earlier than 5"):
        core.handle(4, submitted(2, 1, 10))
    with pytest.raises(InputError, match="job 3: width 0 is not within 1 to"):
        core.handle(6, submitted(2, 1, 10), submitted(3, 0, 10))
    assert [job.job.job_id for job in core.running()] == [1]


@pytest.mark.parametrize(
    "job",
    [
        Job(job_id=-1, width=1, estimate_ms=1),
        Job(job_id=2**63, width=1, estimate_ms=1),
        Job(job_id=2, width=10**12, estimate_ms=1),
        Job(job_id=2, width=1, estimate_ms=2**63 - 1),
        Job(job_id=2, width=1, estimate_ms=1, weight=0.0),
        Job(job_id=2, width=1, estimate_ms=1, priority=float("nan")),
    ],
)
def test_absurd_jobs_are_refused(job: Job) -> None:
    """A number that the arrays cannot hold, or that has no place in an order, is refused, and nothing has changed."""
    core = SiteCore(4, SitePolicy())
    with pytest.raises(InputError, match=f"job {job.job_id}: "):
        core.handle(0, submitted(1, 1, 10), JobSubmitted(job))
    assert core.handle(0, submitted(1, 1, 10)) == [StartJob(1, ((0, 1),))]
    core.check_invariants()


@pytest.mark.parametrize("request_", [(2**64, 5, 1, 1), (1, 2**62, 1, 1), (1, 5, 2**62, 1), (1, 5, 1, 0)])
def test_absurd_requests_are_refused(request_: tuple[int, int, int, int]) -> None:
    """The same of a request for a reservation."""
    with pytest.raises(InputError, match="reservation"):
        planning().handle(0, ReservationRequested(*request_))


def test_a_reservation_waits_for_a_job_past_its_limit() -> None:
    """A reservation that is due while a job overstays opens when the job has gone, and lapses if it never goes."""
    for leaves_ms, want in ((120, OpenReservation(7, ((0, 4),))), (200, CloseReservation(7))):
        core = planning()
        core.handle(0, submitted(1, 4, 100), ReservationRequested(7, 100, 100, 4))
        assert core.handle(100) == [KillJob(1, "reached its limit")]
        assert core.next_wakeup_ms() == 200
        core.check_invariants()
        assert want in core.handle(leaves_ms, JobFinished(1))
        core.check_invariants()


def test_slack_binds_nobody() -> None:
    """A head that may be held back is told its shadow time, but not that it is guaranteed."""
    core = SiteCore(4, SitePolicy(backfill="slack", slack=2.0))
    core.handle(0, submitted(1, 3, 100), submitted(2, 4, 50))
    assert (core.explain(0, 2).start_ms, core.explain(0, 2).is_bound) == (100, False)


def test_a_reservation_opens_and_closes() -> None:
    """An accepted reservation gets its nodes at its start, and gives them back at its end."""
    core = planning()
    assert core.handle(0, ReservationRequested(7, 10, 5, 4)) == [AcceptReservation(7)]
    assert core.handle(1, submitted(1, 4, 10)) == []
    assert core.next_wakeup_ms() == 10
    assert core.handle(10) == [OpenReservation(7, ((0, 4),))]
    assert core.free == 0
    assert core.next_wakeup_ms() == 15
    assert core.handle(15) == [CloseReservation(7), StartJob(1, ((0, 4),))]
    core.check_invariants()


def test_a_reservation_that_does_not_fit_is_told_when_it_would() -> None:
    """A refusal names the earliest start, and asking again for that start is accepted."""
    core = planning()
    core.handle(0, submitted(1, 3, 10))
    refusal = core.handle(1, ReservationRequested(1, 5, 10, 2))
    assert refusal == [RefuseReservation(1, "its nodes are not all free then", 10)]
    assert core.handle(2, ReservationRequested(1, 10, 10, 2)) == [AcceptReservation(1)]


def test_reservations_need_a_planning_site() -> None:
    """A queue makes no reservations, and says which site would."""
    core = SiteCore(4, SitePolicy())
    (refusal,) = core.handle(0, ReservationRequested(1, 5, 10, 2))
    assert isinstance(refusal, RefuseReservation)
    assert "a planning site does" in refusal.reason
    (refusal,) = core.handle(0, ReservationRequested(2, 5, 10, 9))
    assert isinstance(refusal, RefuseReservation)
    assert refusal.earliest_start_ms is None


def test_giving_a_reservation_back_lets_jobs_start() -> None:
    """A reservation that is given back while it is open frees its nodes at once."""
    core = planning()
    core.handle(0, ReservationRequested(7, 5, 100, 4))
    core.handle(1, submitted(1, 4, 10))
    core.handle(5)
    assert core.handle(8, ReservationCancelled(7)) == [CloseReservation(7), StartJob(1, ((0, 4),))]
    assert core.next_wakeup_ms() == 18
    core.check_invariants()


def test_the_head_of_a_queue_is_told_its_shadow_time() -> None:
    """The head waits until its shadow time for the jobs whose nodes it needs; no job behind it is promised anything."""
    core = SiteCore(4, SitePolicy())
    core.handle(0, submitted(1, 3, 100), submitted(2, 4, 50), submitted(3, 1, 200), submitted(4, 2, 10))
    head = core.explain(1, 2)
    assert (head.ahead, head.start_ms, head.is_bound, head.waits_for) == (0, 100, True, (1,))
    assert "it needs 4 nodes, and 1 is free" in head.reason
    long = core.explain(1, 3)
    assert long.start_ms is None
    assert "would run for 200 ms, and job 2 at the head is to start in 99 ms" in long.reason
    assert "0 can be spared" in long.reason
    assert "it needs 2 nodes, and 1 is free; the 2 jobs ahead" in core.explain(1, 4).reason
    assert [start for _, start in core.waiting()] == [100, None, None]


def test_a_planning_site_shows_its_plan() -> None:
    """Every waiting job of a planning site has a planned start, and a reason why it is not earlier."""
    core = planning()
    core.handle(0, submitted(1, 4, 100), submitted(2, 3, 50), submitted(3, 2, 70), submitted(4, 1, 40))
    assert [(job.job_id, start) for job, start in core.waiting()] == [(2, 100), (3, 150), (4, 100)]
    explanation = core.explain(0, 3)
    assert (explanation.start_ms, explanation.is_bound) == (150, False)
    assert "needs 2 nodes for 70 ms" in explanation.reason


def test_a_window_is_named_as_the_reason() -> None:
    """A job that a window alone holds back is told so."""
    closed = Window(days=(0,), from_ms=8 * HOUR_MS, to_ms=18 * HOUR_MS)
    policy = SitePolicy(discipline="planning", limits=(Limit(wider_than=3, window=closed),))
    core = SiteCore(4, policy, week=week_beginning(9 * HOUR_MS))
    assert core.handle(0, submitted(1, 4, 10)) == []
    explanation = core.explain(0, 1)
    assert explanation.start_ms == 9 * HOUR_MS
    assert "a limit of the site" in explanation.reason
    assert core.next_wakeup_ms() == 9 * HOUR_MS
    assert core.handle(9 * HOUR_MS) == [StartJob(1, ((0, 4),))]


def test_only_waiting_jobs_are_explained() -> None:
    """Asking about a running or an unknown job says what it is instead."""
    core = SiteCore(4, SitePolicy())
    core.handle(0, submitted(1, 4, 100))
    with pytest.raises(InputError, match="job 1 runs"):
        core.explain(0, 1)
    with pytest.raises(InputError, match="job 2 is not known here"):
        core.explain(0, 2)


def test_a_conservative_promise_is_bound() -> None:
    """Under conservative backfilling every waiting job holds a start that is only ever moved up."""
    core = SiteCore(4, SitePolicy(backfill="conservative"))
    core.handle(0, submitted(1, 4, 100), submitted(2, 4, 50), submitted(3, 1, 200))
    assert [core.explain(0, job_id).start_ms for job_id in (2, 3)] == [100, 150]
    assert core.explain(0, 3).is_bound
    core.handle(40, JobFinished(1))
    assert core.explain(40, 3).start_ms == 90

"""A site whose nodes are shared, stepped event by event."""

from __future__ import annotations

import pytest

from gridweave.errors import InputError, OptionError
from gridweave.site.disciplines.sharing.discipline import SharedDiscipline
from gridweave.site.disciplines.sharing.policy import SharedNodes, SharingPolicy
from gridweave.site.job import Job, Resources
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.messages import (
    ChangeRate,
    Command,
    Event,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    KillJob,
    RefuseJob,
    ReservationRequested,
    StartJob,
)
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.state import dump_state

HOUR_MS = 3_600_000
ON_CPU = Resources(cpu=0.9, network=0.1, disk=0.0, memory=0.5)
ON_DISK = Resources(cpu=0.1, network=0.0, disk=0.9, memory=0.5)
FULL_RATE = RATE_ONE
# Both want the CPU for a tenth of their time, and stretch each other there by 1.4.
PAIR_RATE = round(RATE_ONE / 1.04)


def submitted(job_id: int, width: int, resources: Resources | None, estimate_ms: int = HOUR_MS) -> JobSubmitted:
    """Return the submission of a job."""
    return JobSubmitted(Job(job_id=job_id, width=width, estimate_ms=estimate_ms, resources=resources))


def step(core: SiteCore, now_ms: int, *events: Event) -> list[Command]:
    """Return what a core commands; its state must hold."""
    commands = core.handle(now_ms, *events)
    core.check_invariants()
    return commands


def test_two_jobs_that_match_share_their_nodes_and_slow_each_other() -> None:
    """The second job starts on the nodes of the first, on their second threads, and both go at the rate of the pair."""
    core = SiteCore(4, SharedNodes())
    commands = step(core, 0, submitted(1, 4, ON_CPU), submitted(2, 2, ON_DISK))
    assert commands == [
        StartJob(1, ((0, 4),), ((0, 1), (2, 3), (4, 5), (6, 7))),
        StartJob(2, ((0, 2),), ((1, 2), (3, 4))),
        ChangeRate(1, PAIR_RATE),
        ChangeRate(2, PAIR_RATE),
    ]
    assert core.free == 0


def test_a_job_goes_on_at_full_rate_when_its_partner_has_left() -> None:
    """When one of two that share ends, the other is told to go on at rate 1, and its end by estimate moves nearer."""
    core = SiteCore(4, SharedNodes())
    step(core, 0, submitted(1, 4, ON_CPU), submitted(2, 2, ON_DISK))
    before_ms = core.next_wakeup_ms()
    assert before_ms is not None
    assert before_ms > HOUR_MS
    assert step(core, HOUR_MS // 2, JobFinished(2)) == [ChangeRate(1, FULL_RATE)]
    after_ms = core.next_wakeup_ms()
    assert after_ms is not None
    assert HOUR_MS < after_ms < before_ms


def test_the_limit_is_one_on_work() -> None:
    """A job that is slowed is killed when its estimate is worked off, not when that time has passed."""
    core = SiteCore(1, SharedNodes())
    step(core, 0, submitted(1, 1, ON_CPU), submitted(2, 1, ON_DISK))
    assert step(core, HOUR_MS) == []
    end_ms = core.next_wakeup_ms()
    assert end_ms is not None
    kinds = [type(command) for command in step(core, end_ms)]
    assert kinds == [KillJob, KillJob]


def test_a_job_of_which_nothing_is_known_shares_with_none() -> None:
    """A job without resources has its nodes alone, even where there is nothing else to wait for."""
    for policy in (SharingPolicy(heuristic="first"), SharingPolicy(coscheduling="always")):
        core = SiteCore(2, SharedNodes(sharing=policy))
        commands = step(core, 0, submitted(1, 2, None), submitted(2, 2, ON_DISK))
        assert [type(command) for command in commands] == [StartJob]
        assert core.explain(0, 2).reason.startswith("it is first in the queue")


def test_a_waiting_job_can_be_cancelled_and_what_runs_is_killed() -> None:
    """A cancelled job leaves the queue, or its nodes when its end is told."""
    core = SiteCore(2, SharedNodes(sharing=SharingPolicy(coscheduling="none")))
    step(core, 0, submitted(1, 2, ON_CPU), submitted(2, 2, ON_DISK))
    assert step(core, 5, JobCancelled(2)) == []
    assert step(core, 6, JobCancelled(1)) == [KillJob(1, "cancelled")]
    assert step(core, 7, JobFinished(1)) == []
    assert core.free == 2


def test_the_waiting_jobs_are_listed_in_the_order_in_which_they_are_served() -> None:
    """A long job that has aged goes before a short one that came later."""
    core = SiteCore(1, SharedNodes(sharing=SharingPolicy(coscheduling="none", aging_ms=1_000.0)))
    step(core, 0, submitted(1, 1, ON_CPU), submitted(2, 1, ON_CPU, 100 * HOUR_MS))
    step(core, 1_500, submitted(3, 1, ON_CPU, 1))
    assert [job.job_id for job, _ in core.waiting()] == [3, 2], "aged by one class of two"
    before = dump_state(core)
    step(core, 2_000, submitted(4, 1, ON_CPU, 1))
    order = [job.job_id for job, _ in core.waiting()]
    assert order == [2, 3, 4]
    again = SiteCore(1, SharedNodes(sharing=SharingPolicy(coscheduling="none", aging_ms=1_000.0)))
    again.restore(core.state())
    assert [job.job_id for job, _ in again.waiting()] == order
    assert dump_state(core) == dump_state(again) != before
    assert step(core, 2_001, JobFinished(1))[0].job_id == 2


def test_more_jobs_than_there_was_room_for_lose_nothing() -> None:
    """The arrays grow with the queue, and all jobs run in the end."""
    core = SiteCore(2, SharedNodes())
    running = {command.job_id for command in step(core, 0, *(submitted(i, 1, ON_CPU) for i in range(300)))
               if isinstance(command, StartJob)}  # fmt: skip
    done: set[int] = set()
    now_ms = 0
    while running:
        now_ms += 1000
        one = min(running)
        running.discard(one)
        done.add(one)
        running |= {c.job_id for c in step(core, now_ms, JobFinished(one)) if isinstance(c, StartJob)}
    assert done == set(range(300))


def test_what_can_never_run_is_refused_with_a_reason() -> None:
    """A job that needs more cores, memory or kinds of CPU work than any node has is refused."""
    kinds = (NodeKind(count=1, memory=0.5), NodeKind(count=1, cores=2))
    core = SiteCore(2, SharedNodes(kinds=kinds))
    wide = Resources(memory=0.8)
    assert step(core, 0, submitted(1, 2, wide)) == [
        RefuseJob(1, "it needs 2 nodes; it can use only 1 of this site", is_final=True)
    ]
    assert [type(c) for c in step(core, 0, submitted(2, 1, wide))] == [StartJob]
    (command,) = step(core, 0, submitted(3, 1, Resources(cpu_kind=7)))
    assert command == RefuseJob(3, "its kind of CPU work is 7; this site knows 0 to 1", is_final=True)
    planned = SiteCore(2, SharedNodes(sharing=SharingPolicy(backfill="conservative"), kinds=kinds))
    (command,) = step(planned, 0, submitted(1, 1, wide))
    assert "as conservative backfilling requires" in str(command)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu": 0.5},
        {"cpu": 1.5, "network": -0.5},
        {"cpu": float("nan")},
        {"memory": 0.0},
        {"memory": 1.1},
        {"cores": 0},
        {"cpu_kind": -1},
        {"cache_bytes": -1},
        {"message_bytes": -1},
    ],
)
def test_needs_that_no_job_can_have_are_an_error(wrong: dict[str, float]) -> None:
    """Fractions that do not sum to 1, memory above a node's and the like are refused by name, and change nothing."""
    core = SiteCore(2, SharedNodes())
    with pytest.raises(InputError, match=r"^job 1: "):
        core.handle(0, submitted(1, 1, Resources(**wrong)))  # type: ignore[arg-type]
    assert core.free == 2


def test_measured_slowdowns_go_by_what_a_job_is() -> None:
    """With a table of measured slowdowns a job on the CPU and one on the disk have those of their cells."""
    core = SiteCore(1, SharedNodes(formula="measured"))
    commands = step(core, 0, submitted(1, 1, ON_CPU), submitted(2, 1, ON_DISK))
    rates = {c.job_id: c.rate for c in commands if isinstance(c, ChangeRate)}
    assert rates == {2: round(RATE_ONE / 1.2)}


def test_a_site_that_shares_makes_no_reservation() -> None:
    """A request for nodes at a fixed time is refused, as in any queue."""
    core = SiteCore(2, SharedNodes())
    (command,) = step(core, 0, ReservationRequested(1, 100, 50, 1))
    assert "makes no reservations" in str(command)


def test_a_change_is_noted_once_for_each_slot() -> None:
    """A job in the slot of another that has just ended stands in its stead among those whose rate may have changed."""
    site = SharedDiscipline(1, SharedNodes())
    for now_ms, left, come in ((0, (), (1, 2)), (1000, (1, 2), (3, 4))):
        for job_id in left:
            site.ended(now_ms, job_id)
        for job_id, needs in zip(come, (ON_CPU, ON_DISK), strict=True):
            site.submit(now_ms, Job(job_id=job_id, width=1, estimate_ms=HOUR_MS, resources=needs))
        decided = site.run_pass(now_ms)
        assert [start.job.job_id for start in decided.starts] == list(come)
        assert decided.rates == [(job_id, PAIR_RATE) for job_id in come]


def test_a_site_says_what_it_could_offer() -> None:
    """A full site offers no nodes of its own before its jobs end, and at once those that a job can share."""
    core = SiteCore(2, SharedNodes())
    step(core, 0, submitted(1, 2, ON_CPU))
    job = Job(job_id=9, width=2, estimate_ms=HOUR_MS, resources=ON_DISK)
    assert core.startable(0, HOUR_MS) == 0
    assert core.earliest_start_ms(0, 2, HOUR_MS) == HOUR_MS
    assert core.sharing_offered(0, job) == (pytest.approx(1.04), (1,), None)
    alike = Job(job_id=9, width=2, estimate_ms=HOUR_MS, resources=ON_CPU)
    assert core.sharing_offered(0, alike) == (pytest.approx(1 + 0.4 * 0.9 + 0.1), (1,), None)
    assert core.sharing_offered(0, Job(job_id=9, width=2, estimate_ms=HOUR_MS)) is None
    assert core.sharing_offered(0, Job(job_id=9, width=2, estimate_ms=1000, resources=ON_DISK)) is None
    core.check_invariants()
    assert step(core, 1, submitted(9, 2, ON_DISK))[0] == StartJob(9, ((0, 2),), ((1, 2), (3, 4)))


def test_nothing_is_offered_that_delays_the_head() -> None:
    """While a job waits at the head, others may have idle nodes only until it is to start."""
    core = SiteCore(4, SharedNodes(sharing=SharingPolicy(coscheduling="none")))
    step(core, 0, submitted(1, 3, ON_CPU), submitted(2, 4, ON_DISK))
    assert core.startable(0, HOUR_MS) == 1
    assert core.startable(0, HOUR_MS + 1) == 0
    assert core.earliest_start_ms(0, 2, HOUR_MS) == 2 * HOUR_MS


def test_kinds_make_up_the_site() -> None:
    """Kinds whose nodes are not as many as the site has are refused."""
    with pytest.raises(OptionError, match="kinds: have 3 nodes together, but the site has 4"):
        SiteCore(4, SharedNodes(kinds=(NodeKind(count=3),)))

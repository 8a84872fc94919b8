"""Fragments that links slow: a site puts their limits off, and tells the grid when they are late."""

from __future__ import annotations

import pytest

from gridweave.site.disciplines.sharing.policy import SharedNodes
from gridweave.site.job import Job
from gridweave.site.kernels.work import RATE_ONE, work_of
from gridweave.site.messages import (
    CommitNodes,
    Ended,
    FragmentsMet,
    JobFinished,
    JobSubmitted,
    KillJob,
    RateMeasured,
    Reserved,
    ReserveNodes,
    RunsLate,
    Started,
    StartJob,
    ToGrid,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.scheduler.contract import ContractCore

HALF = RATE_ONE // 2


def started(policy: SitePolicy | SharedNodes | None = None) -> ContractCore:
    """Return a site of 4 nodes on which a fragment of 2 nodes and 100 ms has started at 0, with its others."""
    site = ContractCore(4, policy or SitePolicy())
    assert ToGrid(Reserved(1, 1)) in site.handle(0, ReserveNodes(1, 1, 2, 100, 0))
    assert ToGrid(Started(1, 1, 0)) in site.handle(0, CommitNodes(1, 1))
    site.handle(0, FragmentsMet(1, 1))
    return site


POLICIES = (SitePolicy(), SitePolicy(backfill="conservative"), SitePolicy(discipline="planning"), SharedNodes())


@pytest.mark.parametrize("policy", POLICIES, ids=["queue", "conservative", "planning", "shared"])
def test_a_slowed_fragment_is_not_killed_at_its_limit(policy: SitePolicy | SharedNodes) -> None:
    """Its limit counts work: at half the rate from 40 ms it comes 60 ms later, and then the grid is told."""
    site = started(policy)
    assert site.handle(40, RateMeasured(1, 1, HALF)) == []
    assert site.next_wakeup_ms() == 100
    assert site.handle(100) == [ToGrid(RunsLate(1, 1, int(work_of(60)), HALF, 40))]
    site.check_invariants()
    assert site.next_wakeup_ms() == 160
    assert [type(command) for command in site.handle(160)] == [KillJob]
    assert site.handle(160, JobFinished(1)) == [ToGrid(Ended(1, 1, 160, "limit"))]
    site.check_invariants()


def test_a_late_fragment_tells_of_every_new_rate() -> None:
    """Once it is late the grid hears of each change; before that it plans with the estimate."""
    site = started()
    assert site.handle(20, RateMeasured(1, 1, HALF)) == []
    assert site.handle(60, RateMeasured(1, 1, RATE_ONE)) == []
    assert site.handle(100) == [ToGrid(RunsLate(1, 1, int(work_of(60)), RATE_ONE, 60))]
    assert site.handle(110, RateMeasured(1, 1, HALF)) == [ToGrid(RunsLate(1, 1, int(work_of(10)), HALF, 110))]
    # It was expected at 120, at the rate that it had when that was found.
    assert site.next_wakeup_ms() == 120
    assert site.handle(120) == []
    assert site.next_wakeup_ms() == 130


def test_a_fragment_that_stands_still_is_expected_to_go_on() -> None:
    """At rate 0 its limit is put off by what is left of it, again and again."""
    site = started()
    site.handle(90, RateMeasured(1, 1, 0))
    assert site.handle(100) == [ToGrid(RunsLate(1, 1, int(work_of(10)), 0, 90))]
    for now_ms in (110, 120, 130):
        assert site.next_wakeup_ms() == now_ms
        assert site.handle(now_ms) == []
    site.handle(135, RateMeasured(1, 1, RATE_ONE))
    assert site.handle(140) == []
    assert site.next_wakeup_ms() == 145


def test_own_users_are_planned_around_late_fragments() -> None:
    """A job behind the late fragment starts when that has left, and one that would be in its way is not let ahead."""
    site = started()
    site.handle(1, JobSubmitted(Job(job_id=7, width=4, estimate_ms=50)))
    site.handle(50, RateMeasured(1, 1, HALF))
    site.handle(100)
    # The wide one is to start at 150 now, so 50 ms of two nodes are out of its way.
    assert site.handle(100, JobSubmitted(Job(job_id=8, width=2, estimate_ms=51))) == []
    commands = site.handle(100, JobSubmitted(Job(job_id=9, width=2, estimate_ms=50)))
    assert [command.job_id for command in commands if isinstance(command, StartJob)] == [9]
    assert [type(command) for command in site.handle(150, JobFinished(1), JobFinished(9))].count(StartJob) == 1
    site.check_invariants()


def test_rates_of_what_is_over_change_nothing() -> None:
    """A rate of another attempt, or of a job that has left, is passed over."""
    site = started()
    assert site.handle(10, RateMeasured(1, 2, HALF), RateMeasured(5, 1, HALF)) == []
    site.handle(20, RateMeasured(1, 1, HALF))
    assert ToGrid(Ended(1, 1, 30, "finished")) in site.handle(30, JobFinished(1))
    assert site.handle(40, RateMeasured(1, 1, RATE_ONE)) == []
    assert site.next_wakeup_ms() is None

"""A live site that shares its nodes in time: its machines are told who goes on and who stands still."""

from __future__ import annotations

from typing import Any

import pytest

from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.job import (
    ActionKind,
    Declined,
    DescribeJob,
    Job,
    JobRequest,
    Noted,
    Program,
    SignalName,
)
from gridweave.site.launch import Outcome
from gridweave.site.messages import (
    EndRun,
    EnqueueJob,
    JobAction,
    Machine,
    PaceRun,
    Refused,
    ReserveNodes,
    RunEnded,
    RunStarted,
    SendToGrid,
    StartJob,
    StartRun,
    ToGrid,
    UserSubmitted,
)
from gridweave.site.run.runs import PACE_MARGIN_MS, SiteSettings
from gridweave.site.scheduler.contract import ContractCore
from gridweave.site.scheduler.live import LiveSite

OWN = 1_000_000_000_001
TWO = (Machine(name="a", nodes=2, ports=(2000, 2002)), Machine(name="b", nodes=2, ports=(3000, 3001)))


def site(**options: Any) -> LiveSite:
    """Return a site of two machines, with slices of 100 ms."""
    policy = GangPolicy(mpl=2, slice_ms=100, **options)
    return LiveSite(SiteSettings(name="north", number=0, machines=TWO, policy=policy))


def submitted(key: str, nodes: int = 4, checkpoint_signal: SignalName | None = None) -> UserSubmitted:
    """Return a job, on all four nodes if nothing else is said."""
    program = Program(argv=("true",), checkpoint_signal=checkpoint_signal)
    return UserSubmitted(key, JobRequest(program=program, nodes=nodes, limit_ms=10_000))


def paces(commands: list[Any]) -> dict[tuple[str, int], bool]:
    """Return who was told to go on, or to stand still, by machine and job."""
    return {(each.machine, each.job_id): each.runs for each in commands if isinstance(each, PaceRun)}


def test_two_jobs_take_turns_on_all_their_machines() -> None:
    """When a slice ends, one job stands still on both machines and the other goes on, all at one instant just ahead."""
    north = site()
    commands = north.handle(0, submitted("one"), submitted("two"))
    assert [(each.machine, each.launch.job_id) for each in commands if isinstance(each, StartRun)] == [
        ("a", OWN),
        ("b", OWN),
    ]
    north.handle(10, RunStarted("a", OWN, 1), RunStarted("b", OWN, 1))
    assert north.next_wakeup_ms() == 100
    commands = north.handle(100)
    assert {each.launch.job_id for each in commands if isinstance(each, StartRun)} == {OWN + 1}
    assert paces(commands) == {("a", OWN): False, ("b", OWN): False}
    assert {each.at_ms for each in commands if isinstance(each, PaceRun)} == {100 + PACE_MARGIN_MS}
    north.handle(110, RunStarted("a", OWN + 1, 1), RunStarted("b", OWN + 1, 1))
    both = {(machine, OWN + number): number == 0 for machine in ("a", "b") for number in (0, 1)}
    assert paces(north.handle(200)) == both
    assert paces(north.handle(300)) == {name: not runs for name, runs in both.items()}
    # A machine that was away is told again how it stands.
    repeated = [each for each in north.runs.orders("a") if isinstance(each, PaceRun)]
    assert paces(repeated) == {("a", OWN): False, ("a", OWN + 1): True}


def test_what_is_done_of_a_job_is_told_in_work() -> None:
    """Of each running job it is known how fast it works now and how much it has done, turn by turn."""
    north = site()
    north.handle(0, submitted("one"), submitted("two"))
    assert list(north.core.site.progress(40)) == [(OWN, 1.0, 40)]
    north.handle(100)
    assert list(north.core.site.progress(170)) == [(OWN, 0.0, 100), (OWN + 1, 1.0, 70)]
    north.handle(200)
    assert list(north.core.site.progress(230)) == [(OWN, 1.0, 130), (OWN + 1, 0.0, 100)]


def test_a_single_machine_obeys_when_it_is_told() -> None:
    """Where nobody has to be waited for there is no instant to agree on."""
    policy = GangPolicy(mpl=2, slice_ms=100)
    north = LiveSite(SiteSettings(name="north", number=0, machines=(Machine(name="a", nodes=4),), policy=policy))
    north.handle(0, submitted("one"), submitted("two"))
    north.handle(10, RunStarted("a", OWN, 1))
    told = [each for each in north.handle(100) if isinstance(each, PaceRun)]
    assert told == [PaceRun("a", OWN, 1, runs=False)]


def test_no_part_of_a_job_on_several_sites_is_sliced() -> None:
    """Such a part is refused, with the reason; the only part of a job is not."""
    north = ContractCore(4, GangPolicy(mpl=2, slice_ms=100))
    answers = [
        each.answer for each in north.handle(0, ReserveNodes(7, 1, 2, 60_000, 1_000)) if isinstance(each, ToGrid)
    ]
    (refused,) = answers
    assert isinstance(refused, Refused)
    assert ("would wait for itself" in refused.reason, refused.cause) == (True, "never")
    commands = north.handle(1, ReserveNodes(8, 1, 2, 60_000))
    assert any(isinstance(each, StartJob) for each in commands)


def test_who_cannot_be_moved_is_refused_where_jobs_are() -> None:
    """A site with migration takes only jobs that say at which signal they save what they have done."""
    north = site(migration="all")
    (declined,) = [each for each in north.handle(0, submitted("one")) if isinstance(each, Declined)]
    assert declined.reason == (
        "the site moves running jobs to other nodes, and this one does not say that it can be: submit it with the "
        "signal at which it saves what it has done (--checkpoint-signal USR1)"
    )
    request = JobRequest(program=Program(argv=("true",)), nodes=2, limit_ms=1000)
    described = DescribeJob(7, 1, request, 1000, 0, 2, ("north",))
    enqueued = EnqueueJob(Job(job_id=7, width=2, estimate_ms=1000), 1, 10**6)
    told = [each.message for each in north.handle(1, described, enqueued) if isinstance(each, SendToGrid)]
    assert [each.reason for each in told if isinstance(each, Refused)] == [declined.reason]


def moving() -> tuple[LiveSite, list[Any]]:
    """Return a site in which the third job is moved from machine a to b, where another has ended, and what it says."""
    north = site(migration="all")
    north.handle(0, *(submitted(each, 2, "USR1") for each in ("first", "second")))
    commands = north.handle(1, submitted("third", 2, "USR1"))
    assert [(each.machine, each.launch.job_id) for each in commands if isinstance(each, StartRun)] == [("a", OWN + 2)]
    north.handle(2, *(RunStarted(machine, OWN + number, 1) for number, machine in enumerate("aba")))
    commands = north.handle(50, RunEnded("b", OWN + 1, 1, "finished"))
    north.check_invariants()
    return north, commands


def test_a_moved_job_saves_what_it_has_done_and_goes_on_elsewhere() -> None:
    """It is sent its signal, and starts on the other machine as its next attempt when it has ended."""
    north, commands = moving()
    saves = [each for each in commands if isinstance(each, EndRun)]
    assert saves == [EndRun("a", OWN + 2, 1, "it is moved to other nodes", saves=True)]
    assert not [each for each in commands if isinstance(each, StartRun)]
    commands = north.handle(60, RunEnded("a", OWN + 2, 1, "cancelled"))
    north.check_invariants()
    (start,) = [each for each in commands if isinstance(each, StartRun)]
    assert (start.machine, start.launch.attempt, start.launch.starts, start.slots) == ("b", 2, 1, (0, 1))
    assert [each.kind for each in commands if isinstance(each, Noted)] == ["moved"]
    north.handle(70, RunStarted("b", OWN + 2, 2))
    record = north.registry.records[OWN + 2]
    assert (record.state, record.attempt, record.starts) == ("running", 2, 2)
    north.handle(80, RunEnded("b", OWN + 2, 2, "finished"))
    assert (record.state, record.outcome) == ("ended", "finished")


@pytest.mark.parametrize(
    ("ends", "action", "expected"),
    [
        ("finished", None, ("ended", "finished")),
        ("failed", None, ("ended", "failed")),
        ("cancelled", "cancel", ("ended", "cancelled")),
        ("lost", None, ("starting", "")),
    ],
)
def test_a_job_that_ends_before_it_has_moved_goes_on_nowhere(
    ends: Outcome, action: ActionKind | None, expected: tuple[str, str]
) -> None:
    """It finished or failed by itself, or nobody wants it any more; if it was lost it begins again, from the queue."""
    north, _ = moving()
    if action is not None:
        north.handle(55, JobAction(action, (OWN + 2,)))
    commands = north.handle(60, RunEnded("a", OWN + 2, 1, ends))
    north.check_invariants()
    record = north.registry.records[OWN + 2]
    assert (record.state, record.outcome) == expected
    assert "moved" not in [each.kind for each in commands if isinstance(each, Noted)]

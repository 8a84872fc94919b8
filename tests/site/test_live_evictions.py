"""A live site on which high jobs evict low ones: these save what they have done, leave, and are back in the queue."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.job import ActionKind, DescribeJob, JobForm, JobRequest, Noted, Program, SignalName
from gridweave.site.launch import Outcome
from gridweave.site.messages import (
    CancelJob,
    CommitNodes,
    Ended,
    EndRun,
    JobAction,
    LeaseEnded,
    Machine,
    PaceRun,
    ReserveNodes,
    RunEnded,
    RunStarted,
    SendToGrid,
    StartRun,
    UserSubmitted,
)
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite
from gridweave.site.state import dump_state, read_state

OWN = 1_000_000_000_001
LEVELS = (Level(name="high", priority=2, evicts=("low",)), Level(name="low", priority=0))
WHY = f"evicted at north: job {OWN + 1} of level 'high' takes machines of level 'low'"


def site(machines: int = 1, **options: Any) -> LiveSite:
    """Return a site of so many machines, all alike."""
    classes = (NodeKind(name="plain", count=machines, memory_mb=100),)
    policy = HeterogeneousPolicy(nodes=machines, classes=classes, levels=LEVELS, **options)
    agents = tuple(Machine(name=f"m{number}", nodes=1, ports=(2000, 2003)) for number in range(machines))
    return LiveSite(SiteSettings(name="north", number=0, machines=agents, policy=policy))


def submitted(
    key: str, priority: float = 0, seconds: int = 100, forms: tuple[JobForm, ...] = (), **program: Any
) -> UserSubmitted:
    """Return a job for one machine."""
    told = Program(argv=("true",), **program)
    request = JobRequest(program=told, limit_ms=1000 * seconds, priority=priority, forms=forms)
    return UserSubmitted(key, request)


def starts(commands: list[Any]) -> list[tuple[str, int, int, int]]:
    """Return the machine, the job, the attempt and the limit of each order to start."""
    launches = [(each.machine, each.launch) for each in commands if isinstance(each, StartRun)]
    return [(machine, launch.job_id, launch.attempt, launch.limit_ms) for machine, launch in launches]


def notes(commands: list[Any], job_id: int) -> list[str]:
    """Return the kinds of what is noted of a job."""
    return [each.kind for each in commands if isinstance(each, Noted) and each.job_id == job_id]


def evicting(checkpoint_signal: SignalName | None = None) -> tuple[LiveSite, list[Any]]:
    """Return a site whose one machine runs a low job that a high one evicts after 20 s, and what it commands then."""
    north = site()
    north.handle(0, submitted("low", checkpoint_signal=checkpoint_signal))
    north.handle(5, RunStarted("m0", OWN, 1))
    commands = north.handle(20_000, submitted("high", 2, 50))
    north.check_invariants()
    return north, commands


def test_the_evicted_has_time_and_the_machine_is_left_before_another_begins() -> None:
    """The low job is sent its signal; the high one begins when it has ended, with all of its time before it."""
    north, commands = evicting("USR1")
    assert [each for each in commands if isinstance(each, EndRun)] == [EndRun("m0", OWN, 1, WHY, saves=True)]
    assert starts(commands) == []
    assert notes(commands, OWN) == ["evicted"]
    assert notes(commands, OWN + 1) == ["submitted", "evicts", "starting"]
    # Repeated orders keep what is not to begin from its machine as well.
    assert list(north.runs.orders("m0")) == [EndRun("m0", OWN, 1, WHY, saves=True)]
    commands = north.handle(27_000, RunEnded("m0", OWN, 1, "cancelled"))
    north.check_invariants()
    assert starts(commands) == [("m0", OWN + 1, 1, 50_000)]
    assert notes(commands, OWN) == ["retried"]
    low, high = north.registry.records[OWN], north.registry.records[OWN + 1]
    assert (low.state, low.attempt, low.starts, high.start_ms) == ("waiting", 1, 1, 27_000)
    told = north.forecast(30_000, OWN)
    assert told is not None
    assert told.start_ms == 77_000
    assert "it was evicted 10 s ago: job 1000000000002 of level 'high' takes machines of level 'low'" in told.reason
    north.handle(28_000, RunStarted("m0", OWN + 1, 1))
    commands = north.handle(70_000, RunEnded("m0", OWN + 1, 1, "finished"))
    # It keeps the 20 s that it had done.
    assert starts(commands) == [("m0", OWN, 2, 80_000)]
    north.handle(70_001, RunStarted("m0", OWN, 2))
    north.handle(90_000, RunEnded("m0", OWN, 2, "finished"))
    assert (low.state, low.outcome, low.starts) == ("ended", "finished", 2)
    north.check_invariants()


def test_a_queue_with_levels_does_so_too() -> None:
    """Whatever the discipline, the nodes are left first, and what was evicted starts again behind."""
    agents = (Machine(name="m0", nodes=1, ports=(2000, 2003)),)
    north = LiveSite(SiteSettings(name="north", number=0, machines=agents, policy=LevelsPolicy(levels=LEVELS)))
    north.handle(0, submitted("low", checkpoint_signal="USR1"))
    north.handle(5, RunStarted("m0", OWN, 1))
    commands = north.handle(20_000, submitted("high", 2, 50))
    assert [(each.job_id, each.saves) for each in commands if isinstance(each, EndRun)] == [(OWN, True)]
    assert starts(commands) == []
    commands = north.handle(27_000, RunEnded("m0", OWN, 1, "cancelled"))
    north.check_invariants()
    assert starts(commands) == [("m0", OWN + 1, 1, 50_000)]
    north.handle(27_001, RunStarted("m0", OWN + 1, 1))
    assert starts(north.handle(40_000, RunEnded("m0", OWN + 1, 1, "finished"))) == [("m0", OWN, 2, 80_000)]
    north.check_invariants()


def test_what_waits_for_a_machine_to_be_left_is_not_ended_at_its_limit() -> None:
    """However long the evicted takes, the other has its whole limit from its start on, and is ended then."""
    north, _ = evicting()
    for now_ms in (60_000, 110_000, 150_000):
        assert not [each for each in north.handle(now_ms) if isinstance(each, EndRun)]
    north.handle(160_000, RunEnded("m0", OWN, 1, "cancelled"))
    assert north.next_wakeup_ms() == 210_000
    ended = [each for each in north.handle(210_000) if isinstance(each, EndRun)]
    assert [(each.job_id, each.reason) for each in ended] == [(OWN + 1, "reached its limit")]


def test_an_evicted_job_that_has_another_machine_starts_there_when_it_has_ended() -> None:
    """It is never run twice at once: its next attempt waits for the end of the last."""
    north = site(2)
    commands = north.handle(0, submitted("low"), submitted("short", 2, 20))
    assert [each[:2] for each in starts(commands)] == [("m0", OWN + 1), ("m1", OWN)]
    north.handle(5, RunStarted("m1", OWN, 1), RunStarted("m0", OWN + 1, 1))
    north.handle(1_000, submitted("high", 2, 50))
    commands = north.handle(2_000, RunEnded("m0", OWN + 1, 1, "finished"))
    north.check_invariants()
    assert starts(commands) == []
    assert north.registry.records[OWN].state == "running"
    commands = north.handle(3_000, RunEnded("m1", OWN, 1, "cancelled"))
    north.check_invariants()
    assert starts(commands) == [("m1", OWN + 2, 1, 50_000), ("m0", OWN, 2, 100_000)]


@pytest.mark.parametrize(
    ("ends", "action", "expected"),
    [
        ("cancelled", None, ("waiting", "")),
        ("lost", None, ("waiting", "")),
        ("finished", None, ("ended", "finished")),
        ("failed", None, ("waiting", "")),
        ("cancelled", "cancel", ("ended", "cancelled")),
        ("cancelled", "requeue", ("waiting", "")),
        ("cancelled", "hold", ("waiting", "")),
    ],
)
def test_how_an_evicted_job_ends(ends: Outcome, action: ActionKind | None, expected: tuple[str, str]) -> None:
    """What had done its work is over, what nobody wants too; all else waits, and only once."""
    north, _ = evicting()
    if action is not None:
        north.handle(21_000, JobAction(action, (OWN,)))
        north.check_invariants()
    commands = north.handle(22_000, RunEnded("m0", OWN, 1, ends))
    north.check_invariants()
    record = north.registry.records[OWN]
    assert (record.state, record.outcome) == expected
    assert starts(commands) == [("m0", OWN + 1, 1, 50_000)]
    waiting = [job.job_id for job, _ in north.core.site.waiting()]
    assert waiting == ([OWN] if expected[0] == "waiting" else [])


def test_a_job_that_must_not_begin_again_is_not_evicted() -> None:
    """``--no-requeue`` says so; the high job waits for its end."""
    north = site()
    north.handle(0, submitted("low", if_lost="fail"))
    commands = north.handle(10, submitted("high", 2))
    assert not [each for each in commands if isinstance(each, EndRun | StartRun)]
    assert north.registry.records[OWN + 1].state == "waiting"


def of_the_grid(job_id: int, start_ms: int | None = None) -> tuple[DescribeJob, ReserveNodes]:
    """Return a job of the grid for one machine, which is a part of a larger one if its start was agreed on."""
    sites = ("north",) if start_ms is None else ("north", "south")
    request = JobRequest(program=Program(argv=("true",)), nodes=len(sites), limit_ms=100_000)
    described = DescribeJob(job_id, 1, request, 100_000, 0, len(sites), sites)
    return described, ReserveNodes(job_id, 1, 1, 100_000, start_ms)


def answers(commands: list[Any]) -> list[Any]:
    """Return what the grid is told of ends."""
    told = [each.message for each in commands if isinstance(each, SendToGrid)]
    return [each for each in told if isinstance(each, Ended | LeaseEnded)]


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_part_of_the_grid_goes_back_when_it_has_left(has_begun: bool) -> None:
    """The grid hears that it is lost once no machine runs it, and not before; the site does not run it again."""
    north = site()
    start_ms = 1_000 if has_begun else None
    north.handle(0, *of_the_grid(7, start_ms))
    if has_begun:
        north.handle(10, CommitNodes(7, 1))
        north.handle(1_000)
    north.handle(1_005, RunStarted("m0", 7, 1))
    commands = north.handle(20_000, submitted("high", 2, 50))
    north.check_invariants()
    assert answers(commands) == []
    commands = north.handle(22_000, RunEnded("m0", 7, 1, "cancelled"))
    north.check_invariants()
    why = f"job {OWN} of level 'high' takes machines of level 'low'"
    assert answers(commands) == [Ended(7, 1, 22_000, "lost", why)]
    assert starts(commands) == [("m0", OWN, 1, 50_000)]
    assert list(north.core.site.waiting()) == []


def test_a_part_that_has_not_started_is_released() -> None:
    """What was reserved until an agreed start is given to the high job at once: nothing of it runs yet."""
    north = site()
    north.handle(0, *of_the_grid(7, 60_000))
    commands = north.handle(20_000, submitted("high", 2, 50))
    north.check_invariants()
    assert answers(commands) == [LeaseEnded(7, 1, f"job {OWN} of level 'high' takes machines of level 'low'")]
    assert starts(commands) == [("m0", OWN, 1, 50_000)]


def test_a_part_that_the_grid_cancels_while_it_leaves_is_cancelled() -> None:
    """It does not come back to the grid as lost, which would run it again."""
    north = site()
    north.handle(0, *of_the_grid(7))
    north.handle(5, RunStarted("m0", 7, 1))
    north.handle(20_000, submitted("high", 2, 50))
    north.handle(21_000, CancelJob(7, 1))
    north.check_invariants()
    commands = north.handle(22_000, RunEnded("m0", 7, 1, "cancelled"))
    assert [each.outcome for each in answers(commands)] == ["cancelled"]
    north.check_invariants()


def test_a_part_of_the_grid_brings_the_evictions_that_it_has_had() -> None:
    """One that was evicted elsewhere as often as raises its level is not evicted here, though it is described again."""
    north = site(raise_after=1)
    described, reserve = of_the_grid(7)
    north.handle(0, described, msgspec.structs.replace(reserve, evictions=1))
    north.handle(5, RunStarted("m0", 7, 1))
    assert starts(north.handle(20_000, submitted("high", 2, 50))) == []
    assert [running.job.evictions for running in north.core.site.running()] == [1]
    north.check_invariants()


def test_a_site_goes_on_from_its_state_while_a_job_leaves() -> None:
    """A site that was restored between the signal and the end commands the same from then on."""
    one, _ = evicting()
    other = site()
    state = msgspec.json.decode(msgspec.json.encode(one.state()), type=one.state_type)
    other.restore(state)
    other.check_invariants()
    for now_ms, event in ((22_000, RunEnded("m0", OWN, 1, "cancelled")), (23_000, RunStarted("m0", OWN + 1, 1))):
        assert one.handle(now_ms, event) == other.handle(now_ms, event)
    assert one.state() == other.state()


def test_where_jobs_are_paused_the_evicted_stands_still_on_its_machine() -> None:
    """The high job begins at once; the low one is told to stand still, and to go on when the other has ended."""
    north = site(evicted="pause")
    north.handle(0, submitted("low", checkpoint_signal="USR1"))
    north.handle(5, RunStarted("m0", OWN, 1))
    commands = north.handle(20_000, submitted("high", 2, 50))
    assert starts(commands) == [("m0", OWN + 1, 1, 50_000)]
    assert [each for each in commands if isinstance(each, PaceRun)] == [PaceRun("m0", OWN, 1, False)]
    assert [each for each in commands if isinstance(each, EndRun)] == []
    assert notes(commands, OWN) == ["paused"]
    north.handle(20_005, RunStarted("m0", OWN + 1, 1))
    told = north.forecast(30_000, OWN)
    assert told is not None
    assert told.reason == (
        "it was paused 10 s ago: job 1000000000002 of level 'high' takes machines of level 'low'; "
        "it is expected to resume in 40 s"
    )
    assert north.runs.paused() == (OWN,)
    again = site(evicted="pause")
    again.restore(read_state(again, dump_state(north)))
    for each in (north, again):
        # What machines are told again after a restart of the site.
        assert PaceRun("m0", OWN, 1, False) in list(each.runs.orders("m0"))
        # It is past its first limit, which was 100 s after its start.
        commands = each.handle(69_000, RunEnded("m0", OWN + 1, 1, "finished"))
        assert [order for order in commands if isinstance(order, PaceRun)] == [PaceRun("m0", OWN, 1, True)]
        assert notes(commands, OWN) == ["resumed"]
        assert each.handle(140_000) == []
        low = each.registry.records[OWN]
        assert (low.state, low.attempt, low.starts) == ("running", 1, 1)
        each.handle(145_000, RunEnded("m0", OWN, 1, "finished"))
        assert (each.registry.records[OWN].outcome, low.starts) == ("finished", 1)
        each.check_invariants()


def test_what_is_to_end_leaves_its_machine_and_is_not_paused() -> None:
    """Nothing that saves what it has done can stand still meanwhile: the high job begins when it has left."""
    north = site(evicted="pause")
    north.handle(0, submitted("low"))
    north.handle(5, RunStarted("m0", OWN, 1))
    north.handle(10_000, JobAction("requeue", (OWN,)))
    commands = north.handle(11_000, submitted("high", 2, 50))
    assert [each for each in commands if isinstance(each, PaceRun | StartRun)] == []
    assert (notes(commands, OWN), north.runs.paused()) == ([], ())
    commands = north.handle(12_000, RunEnded("m0", OWN, 1, "cancelled"))
    assert starts(commands) == [("m0", OWN + 1, 1, 50_000)]
    assert notes(commands, OWN) == ["retried"]
    north.check_invariants()


def test_a_job_that_is_paused_where_it_has_not_begun_yet_begins_paused() -> None:
    """It stands still from the start if others took its next machine while it left the last one."""
    north = site(2, evicted="pause")
    # Two such jobs have no room on a machine; who evicts can have it beside what stands still.
    small, large = JobForm(memory_mb=10), JobForm(memory_mb=60)
    north.handle(0, submitted("low", forms=(large,)), submitted("short", 2, 20, forms=(large,)))
    north.handle(5, RunStarted("m1", OWN, 1), RunStarted("m0", OWN + 1, 1))
    north.handle(1_000, submitted("high", 2, 50, forms=(large,)))
    commands = north.handle(2_000, RunEnded("m0", OWN + 1, 1, "finished"))
    assert (starts(commands), north.registry.records[OWN].state) == ([], "running")
    commands = north.handle(2_500, submitted("higher", 2, 90, forms=(small,)))
    assert [each for each in commands if isinstance(each, PaceRun)] == []
    assert starts(commands) == [("m0", OWN + 3, 1, 90_000)]
    commands = north.handle(3_000, RunEnded("m1", OWN, 1, "cancelled"))
    assert starts(commands) == [("m1", OWN + 2, 1, 50_000), ("m0", OWN, 2, 100_000)]
    assert [each for each in commands if isinstance(each, PaceRun)] == [PaceRun("m0", OWN, 2, False)]
    north.check_invariants()

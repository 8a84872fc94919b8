"""A live site with pilots: its nodes are told to pause jobs, to go on, and to save what they have done in time."""

from __future__ import annotations

from typing import Any

from gridweave.site.disciplines.entry import Policy
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.job import JobRequest, Program
from gridweave.site.messages import (
    BatchSnapshot,
    EndRun,
    Machine,
    PaceRun,
    RequestStatus,
    RunEnded,
    RunStarted,
    StartRun,
    UserSubmitted,
)
from gridweave.site.nodes.source import PILOT
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite
from gridweave.slurm.policy import BatchPolicy, PilotRules

MINUTE = 60_000
FIRST = 1_000_000_000_001


def site(policy: Policy) -> LiveSite:
    """Return a site of two machines, which are the nodes of pilots."""
    rules = PilotRules(policy=policy, length_ms=60 * MINUTE, job_ms=10 * MINUTE)
    machines = (Machine(name="a", nodes=1, ports=(2000, 2002)), Machine(name="b", nodes=1, ports=(3000, 3002)))
    return LiveSite(SiteSettings(name="north", number=0, machines=machines, policy=BatchPolicy(pilots=rules)))


def submitted(key: str, nodes: int = 2) -> UserSubmitted:
    """Return a job."""
    return UserSubmitted(key, JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=10 * MINUTE))


def ready(*pilots: int, start_ms: int | None = None) -> BatchSnapshot:
    """Return that pilots are there."""
    return BatchSnapshot(
        2, None, ((0, 2),), tuple(RequestStatus(PILOT, number, "ready", start_ms) for number in pilots)
    )


def of(commands: list[Any], kind: type[Any]) -> list[tuple[str, int]]:
    """Return which machines were told something of which jobs."""
    return [
        (each.launch.job_id if kind is StartRun else each.job_id, each.machine)[::-1]
        for each in commands
        if isinstance(each, kind)
    ]


def test_jobs_in_pilots_take_turns() -> None:
    """All nodes of a job are told to pause, and those of the other to begin or go on, at the end of each slice."""
    live = site(GangPolicy(mpl=2, slice_ms=1_000))
    live.handle(0, submitted("one"), submitted("two"))
    said = live.handle(0, ready(1, 2))
    assert of(said, StartRun) == [("a", FIRST), ("b", FIRST)]
    live.handle(5, *(RunStarted(machine, FIRST, 1) for machine in "ab"))
    said = live.handle(1_000)
    assert of(said, StartRun) == [("a", FIRST + 1), ("b", FIRST + 1)]
    assert [(each.machine, each.job_id, each.runs) for each in said if isinstance(each, PaceRun)] == [
        ("a", FIRST, False), ("b", FIRST, False),
    ]  # fmt: skip
    live.handle(1_005, *(RunStarted(machine, FIRST + 1, 1) for machine in "ab"))
    said = live.handle(2_000)
    assert {(each.machine, each.job_id, each.runs) for each in said if isinstance(each, PaceRun)} == {
        ("a", FIRST, True), ("b", FIRST, True), ("a", FIRST + 1, False), ("b", FIRST + 1, False),
    }  # fmt: skip
    live.check_invariants()


def test_what_runs_when_the_time_of_its_pilot_is_up_saves_what_it_has_done() -> None:
    """It is lost, and waits again for nodes of another pilot."""
    live = site(SitePolicy())
    live.handle(0, submitted("one", nodes=1))
    assert of(live.handle(0, ready(1, start_ms=-15 * MINUTE)), StartRun) == [("a", FIRST)]
    live.handle(5, RunStarted("a", FIRST, 1))
    said = live.handle(6 * MINUTE)
    (end,) = [each for each in said if isinstance(each, EndRun)]
    assert (end.machine, end.reason, end.saves) == ("a", "the time of its pilot is up at north", True)
    live.handle(6 * MINUTE + 5, RunEnded("a", FIRST, 1, "cancelled", end.reason))
    record = live.registry.records[FIRST]
    assert (record.state, record.attempt) == ("waiting", 1)
    assert of(live.handle(6 * MINUTE + 9, ready(2)), StartRun) == [("a", FIRST)]
    live.check_invariants()

"""A live site that shares its nodes in time: its machines are told who goes on and who stands still."""

from __future__ import annotations

from typing import Any

import pytest

from gridweave.errors import OptionError
from gridweave.site.contract import ContractCore
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.job import JobRequest, Program
from gridweave.site.live import LiveSite
from gridweave.site.messages import (
    Machine,
    PaceRun,
    Refused,
    ReserveNodes,
    RunStarted,
    StartJob,
    StartRun,
    ToGrid,
    UserSubmitted,
)
from gridweave.site.runs import PACE_MARGIN_MS, SiteSettings

OWN = 1_000_000_000_001
TWO = (Machine(name="a", nodes=2, ports=(2000, 2002)), Machine(name="b", nodes=2, ports=(3000, 3001)))


def site(**options: Any) -> LiveSite:
    """Return a site of two machines, with slices of 100 ms."""
    policy = GangPolicy(mpl=2, slice_ms=100, **options)
    return LiveSite(SiteSettings(name="north", number=0, machines=TWO, policy=policy))


def submitted(key: str) -> UserSubmitted:
    """Return a job on all four nodes."""
    return UserSubmitted(key, JobRequest(program=Program(argv=("true",)), nodes=4, limit_ms=10_000))


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
    assert [type(answer) for answer in answers] == [Refused]
    assert "would wait for itself" in answers[0].reason
    commands = north.handle(1, ReserveNodes(8, 1, 2, 60_000))
    assert any(isinstance(each, StartJob) for each in commands)


def test_a_live_site_moves_nobody() -> None:
    """Migration is refused when the site is made, in one line."""
    with pytest.raises(OptionError, match="migration: a live site moves no running job to other nodes; leave it out"):
        site(migration="all")

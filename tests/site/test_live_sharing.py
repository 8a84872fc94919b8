"""A live site with hyperthreaded nodes: who runs beside whom, what that costs, and what machines are told of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gridweave.site.disciplines.sharing.policy import SharedNodes
from gridweave.site.job import DescribeJob, JobRequest, Noted, Program, RecordEnded, Resources
from gridweave.site.launch import NodeSharing
from gridweave.site.messages import Machine, PaceRun, ReserveNodes, RunEnded, RunStarted, StartRun
from gridweave.site.messages import UserSubmitted as Submitted
from gridweave.site.needs.estimates import UsualNeeds
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite
from support.stepping import do

OWN = 1_000_000_000_001
MINUTE_MS = 60_000
ON_CPU = Resources(cpu=0.6, network=0.3, disk=0.1, memory=0.5)
ON_DISK = Resources(cpu=0.2, network=0.1, disk=0.7, memory=0.5)
SLOWDOWN = 1 + 0.4 * 0.2 + 0.1 + 0.1  # docs/sharing.md, "Slowdown"


def site(*nodes: int) -> LiveSite:
    """Return a site of machines with so many nodes of one core with two threads."""
    machines = tuple(Machine(name="abc"[number], nodes=count) for number, count in enumerate(nodes))
    return LiveSite(SiteSettings(name="north", number=0, machines=machines, policy=SharedNodes()))


def job(key: str, needs: Resources | None, nodes: int = 2, name: str = "") -> Submitted:
    """Return a job of an own user that may take ten minutes."""
    program = Program(argv=("true",))
    limit_ms = 10 * MINUTE_MS
    return Submitted(key, JobRequest(program=program, nodes=nodes, limit_ms=limit_ms, resources=needs, name=name))


def of(commands: list[Any], kind: type) -> list[Any]:
    """Return the commands of a kind."""
    return [command for command in commands if isinstance(command, kind)]


def notes(commands: list[Any], kind: str) -> list[tuple[int, str]]:
    """Return what is noted of jobs under a kind."""
    return [(note.job_id, note.detail) for note in of(commands, Noted) if note.kind == kind]


def test_a_pair_is_named_with_its_slowdown_and_what_it_came_to() -> None:
    """Record and story say beside whom a job runs and how much longer that makes it; at its end, what it came to."""
    north = site(2)
    do(north, 0, job("a", ON_CPU))
    assert north.registry.records[OWN].sharing is None
    commands = do(north, MINUTE_MS, job("b", ON_DISK))
    records = north.registry.records
    text = "on nodes shared with job {}: 12 min 48 s instead of 10 min (factor 1.28)"
    assert records[OWN].sharing == NodeSharing(
        beside=(OWN + 1,), now=(OWN + 1,), slowdown=pytest.approx(SLOWDOWN, abs=1e-4), text=text.format(OWN + 1)
    )
    assert records[OWN + 1].sharing is not None
    assert records[OWN + 1].sharing.now == (OWN,)
    assert dict(notes(commands, "shares")) == {
        OWN: f"its nodes at north: {text.format(OWN + 1)}",
        OWN + 1: f"its nodes at north: {text.format(OWN)}",
    }
    do(north, MINUTE_MS, RunStarted("a", OWN, 1), RunStarted("a", OWN + 1, 1))
    forecast = north.forecast(2 * MINUTE_MS, OWN)
    assert forecast is not None
    assert forecast.reason == text.format(OWN + 1)
    commands = do(north, 3 * MINUTE_MS, RunEnded("a", OWN, 1, "finished"))
    (ended,) = of(commands, RecordEnded)
    # A minute alone, and two at 1 / 1.28.
    assert ended.record.sharing.beside == (OWN + 1,)
    assert ended.record.sharing.now == ()
    assert ended.record.sharing.slowdown == pytest.approx(3 / (1 + 2 / SLOWDOWN), abs=1e-4)
    assert ended.record.sharing.real is None
    ((_, took),) = notes(commands, "took")
    assert took.startswith(
        f"it took 3 min, on nodes shared with job {OWN + 1}: expected to take 1.17 times as long as alone; its run"
    )
    alone = records[OWN + 1].sharing
    assert (alone.now, alone.slowdown, alone.text) == ((), 1.0, f"alone again, after sharing nodes with job {OWN}")


def test_a_quote_names_the_partner_and_what_it_would_cost() -> None:
    """A job that could share nodes hears beside whom, before it is submitted; one that says nothing does not."""
    north = site(2)
    do(north, 0, job("a", ON_CPU))
    found = north.quote(MINUTE_MS, job("b", ON_DISK).request)
    assert found.start_ms == 10 * MINUTE_MS
    assert found.reason.endswith(f"; or it could start now on nodes shared with job {OWN}, and take 1.28 times as long")
    assert "beside" not in north.quote(MINUTE_MS, job("b", None).request).reason


def test_what_sharing_really_did_is_measured_by_runs_alone() -> None:
    """A run is compared with those of such jobs, by user, class, name and width, that had their nodes alone."""
    north = site(2)
    do(north, 0, job("alone", ON_CPU, name="solve"))
    do(north, 0, RunStarted("a", OWN, 1))
    do(north, 4 * MINUTE_MS, RunEnded("a", OWN, 1, "finished", ran_ms=(0, 4 * MINUTE_MS)))
    do(north, 4 * MINUTE_MS, job("other", ON_CPU, name="else"), job("beside", ON_DISK))
    do(north, 5 * MINUTE_MS, RunEnded("a", OWN + 1, 1, "finished", ran_ms=(4 * MINUTE_MS, 5 * MINUTE_MS)))
    do(north, 5 * MINUTE_MS, job("again", ON_CPU, name="solve"))
    ran_ms = 5 * MINUTE_MS, 10 * MINUTE_MS
    commands = do(north, 10 * MINUTE_MS, RunEnded("a", OWN + 3, 1, "finished", ran_ms=ran_ms))
    (ended,) = of(commands, RecordEnded)
    sharing = ended.record.sharing
    assert (sharing.real, sharing.alone_ms, sharing.alone_runs) == (pytest.approx(1.25), 4 * MINUTE_MS, 1)
    ((_, took),) = notes(commands, "took")
    assert took.endswith("it actually took 1.25 times as long (alone: 4 min, one run)")
    # What is known of runs alone outlives a restart.
    other = site(2)
    other.restore(north.state())
    assert other.state() == north.state()


def test_machines_are_told_how_fast_a_job_works_beside_others() -> None:
    """Machines are told how fast a job gets on beside others, and at its end at once."""
    north = site(1, 1)
    (start, _) = of(do(north, 0, job("a", ON_CPU)), StartRun)
    assert (start.launch.lanes, start.launch.ranks[0].threads) == ((1, 2), (0,))
    commands = do(north, 1, RunStarted("a", OWN, 1), RunStarted("b", OWN, 1), job("b", ON_DISK, nodes=1))
    (start,) = of(commands, StartRun)
    assert start.launch.ranks[0].threads == (1,)
    paces = of(commands, PaceRun)
    assert {(pace.machine, pace.job_id) for pace in paces} == {("a", OWN), ("b", OWN), ("a", OWN + 1)}
    assert all(pace.runs and pace.speed == pytest.approx(1 / SLOWDOWN, abs=1e-4) for pace in paces)
    paces = of(do(north, 10, RunEnded("a", OWN + 1, 1, "finished")), PaceRun)
    assert {(pace.machine, pace.job_id, pace.speed) for pace in paces} == {("a", OWN, 1.0), ("b", OWN, 1.0)}


@pytest.mark.parametrize(("job_class", "started"), [("io", [OWN + 1]), ("other", [])])
def test_who_says_nothing_has_what_is_known_of_its_class(job_class: str, started: list[int]) -> None:
    """A job of a class in the file of the grid shares nodes; one of another class does not."""
    machines = (Machine(name="a", nodes=2),)
    needs = UsualNeeds(by_class={"io": ON_DISK})
    north = LiveSite(SiteSettings(name="north", number=0, machines=machines, policy=SharedNodes(), needs=needs))
    do(north, 0, job("a", ON_CPU))
    silent = msgspec.structs.replace(job("b", None).request, job_class=job_class)
    commands = do(north, 1, Submitted("b", silent))
    assert [start.launch.job_id for start in of(commands, StartRun)] == started


def test_who_says_nothing_of_its_needs_is_alone() -> None:
    """Nothing is reported of jobs that share nothing."""
    north = site(2)
    do(north, 0, job("a", None))
    commands = do(north, 1, job("b", ON_DISK))
    assert (of(commands, StartRun), of(commands, PaceRun), notes(commands, "shares")) == ([], [], [])
    assert of(do(north, 2, RunEnded("a", OWN, 1, "finished")), RecordEnded)[0].record.sharing is None


@pytest.mark.parametrize(("start_ms", "joins"), [(None, True), (1_000, False)])
def test_who_may_be_joined_does_not_depend_on_what_the_grid_says(start_ms: int | None, joins: bool) -> None:
    """A grid that does not know yet that nodes are shared says no needs; parts of a job on several sites stay alone."""
    north = site(2)
    sites = ("north",) if start_ms is None else ("north", "south")
    described = DescribeJob(7, 1, job("a", ON_CPU).request, 10 * MINUTE_MS, 0, 2, sites)
    commands = do(north, 0, described, ReserveNodes(7, 1, 2, 10 * MINUTE_MS, start_ms))
    assert bool(of(commands, StartRun)) == (start_ms is None)
    assert bool(of(do(north, 5, job("b", ON_DISK)), StartRun)) == joins

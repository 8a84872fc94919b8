"""A live site that gives jobs parts of its nodes: what its machines are told of CPU, memory, pauses and moves."""

from __future__ import annotations

from typing import Any

import pytest

from gridweave.site.disciplines.fractional.policy import FractionalPolicy
from gridweave.site.job import (
    Accepted,
    ArrayPlace,
    Declined,
    JobRequest,
    Noted,
    Program,
    Resources,
    SignalName,
    TaskGroup,
    needs_of_groups,
    request_problem,
)
from gridweave.site.launch import NodePart
from gridweave.site.messages import (
    EndRun,
    Machine,
    PaceRun,
    RunEnded,
    RunStarted,
    StartRun,
    UserSubmitted,
)
from gridweave.site.run.runs import PACE_MARGIN_MS, SiteSettings
from gridweave.site.scheduler.live import LiveSite
from support.stepping import do

OWN = 1_000_000_000_001


def site(*nodes: int, algorithm: str = "GreedyP*/OPT=MIN") -> LiveSite:
    """Return a site of machines with so many nodes."""
    policy = FractionalPolicy(algorithm=algorithm, penalty_ms=0)
    machines = tuple(Machine(name="abc"[number], nodes=count) for number, count in enumerate(nodes))
    return LiveSite(SiteSettings(name="north", number=0, machines=machines, policy=policy))


def job(
    key: str, tasks: int, cpu: float, memory: float, *, checkpoint_signal: SignalName | None = None, priority: float = 1
) -> UserSubmitted:
    """Return a job of so many tasks, each of which needs so much of a node."""
    program = Program(argv=("true",), checkpoint_signal=checkpoint_signal)
    needs = Resources(cpu_need=cpu, memory=memory)
    request = JobRequest(program=program, nodes=tasks, limit_ms=100_000, resources=needs, weight=priority)
    return UserSubmitted(key, request)


def of(commands: list[Any], kind: type) -> list[Any]:
    """Return the commands of a kind."""
    return [command for command in commands if isinstance(command, kind)]


def test_tasks_share_nodes_and_their_speed_follows_who_is_there() -> None:
    """Several tasks of a job may be on a node; all go slower when another comes, and faster when it has ended."""
    north = site(1)
    (first,) = of(do(north, 0, job("first", 2, 0.5, 0.25)), StartRun)
    assert (first.launch.part, first.slots, len(first.launch.ranks)) == (NodePart(1.0, 0.5), (0, 0), 2)
    commands = do(north, 10, RunStarted("a", OWN, 1), job("second", 1, 1.0, 0.5))
    (second,) = of(commands, StartRun)
    assert second.launch.part == NodePart(1.0, 0.5)
    told = {(each.job_id, each.runs, each.speed) for each in of(commands, PaceRun)}
    assert told == {(OWN, True, 0.5), (OWN + 1, True, 0.5)}
    # A machine that was away hears it again.
    repeated = [each for each in north.runs.orders("a") if isinstance(each, PaceRun)]
    assert {(each.job_id, each.speed) for each in repeated} == {(OWN, 0.5), (OWN + 1, 0.5)}
    do(north, 20, RunStarted("a", OWN + 1, 1))
    assert {each[0]: each[1:] for each in north.core.site.progress(1010)} == {
        OWN: (0.5, 510),
        OWN + 1: (0.5, 500),
    }
    (again,) = of(do(north, 1010, RunEnded("a", OWN + 1, 1, "finished")), PaceRun)
    assert (again.job_id, again.runs, again.speed) == (OWN, True, 1.0)


def test_tasks_on_two_machines_get_their_parts_of_each() -> None:
    """A machine holds a job to what the tasks there need; all machines change at one instant."""
    north = site(1, 1)
    starts = of(do(north, 0, job("first", 3, 0.5, 0.3, checkpoint_signal="USR1")), StartRun)
    parts = {(each.machine, len(each.launch.ranks), each.launch.part) for each in starts}
    assert {(machine, ranks) for machine, ranks, _ in parts} == {("a", 2), ("b", 1)}
    assert {machine: part for machine, _, part in parts} == {"a": NodePart(1.0, 0.6), "b": NodePart(0.5, 0.3)}
    do(north, 1, *(RunStarted(machine, OWN, 1) for machine in "ab"))
    commands = do(north, 5, job("second", 2, 1.0, 0.3, checkpoint_signal="USR1"))
    assert {each.at_ms for each in of(commands, PaceRun)} == {5 + PACE_MARGIN_MS}


def test_tasks_that_differ_have_their_ranks_and_their_parts_of_each_machine() -> None:
    """The root, which needs the most, is placed first, on a; its rank is the last, as it is told last."""
    north = site(1, 1)
    groups = TaskGroup(tasks=3, cpu_need=0.5, memory=0.3), TaskGroup(tasks=1, cpu_need=1.0, memory=0.7)
    program = Program(argv=("true",), checkpoint_signal="USR1")
    request = JobRequest(program=program, nodes=4, limit_ms=100_000, resources=needs_of_groups(groups))
    starts = of(do(north, 0, UserSubmitted("first", request)), StartRun)
    ranks = {each.machine: [rank.rank for rank in each.launch.ranks] for each in starts}
    assert ranks == {"a": [0, 3], "b": [1, 2]}
    assert {each.machine: each.launch.part for each in starts} == {"a": NodePart(1.5, 1.0), "b": NodePart(1.0, 0.6)}
    do(north, 1, *(RunStarted(machine, OWN, 1) for machine in "ab"))
    (told,) = {each.speed for each in of(do(north, 5, job("second", 1, 1.0, 0.3, checkpoint_signal="USR1")), PaceRun)}
    assert told == 0.5  # the second goes to b, where there was less load, and fills it up


@pytest.mark.parametrize(
    ("nodes", "memory", "array_tasks", "why"),
    [
        (4, float("nan"), (), "resources: memory is nan; expected a fraction of a node"),
        (3, 0.1, (), "nodes is 3, but the groups have 4 tasks; give the same number, or omit nodes"),
        (4, 0.1, ((1, 9),), "a packed array cannot have groups of tasks"),
    ],
)
def test_groups_that_do_not_go_with_their_job_are_refused(
    nodes: int, memory: float, array_tasks: Any, why: str
) -> None:
    """In one line, before anything of it is placed."""
    groups = [TaskGroup(tasks=1, memory=0.5), TaskGroup(tasks=3, memory=memory)]
    array = ArrayPlace(name="sweep", index=1, array_tasks=array_tasks) if array_tasks else None
    resources = needs_of_groups(groups)
    request = JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=1_000, resources=resources, array=array)
    assert (request_problem(request) or "").startswith(why)


def test_who_is_paused_goes_on_elsewhere_if_it_says_that_it_can() -> None:
    """A paused job that gets room on the other machine saves there what it has done, and starts as its next attempt."""
    north = site(1, 1)
    do(north, 0, *(job(key, 1, 1.0, 0.6, checkpoint_signal="USR1") for key in ("first", "second")))
    do(north, 1, RunStarted("a", OWN, 1), RunStarted("b", OWN + 1, 1))
    # The third has room only if one of them makes way.
    commands = do(north, 1000, job("third", 1, 1.0, 0.6, checkpoint_signal="USR1"))
    (paused,) = [each for each in of(commands, PaceRun) if not each.runs]
    (start,) = of(commands, StartRun)
    assert start.machine == paused.machine
    stays = OWN if paused.job_id == OWN + 1 else OWN + 1
    other = "b" if paused.machine == "a" else "a"
    assert of(commands, EndRun) == []
    do(north, 1010, RunStarted(start.machine, OWN + 2, 1))
    commands = do(north, 2000, RunEnded(other, stays, 1, "finished"))
    assert of(commands, EndRun) == [EndRun(paused.machine, paused.job_id, 1, "it is moved to other nodes", saves=True)]
    commands = do(north, 2010, RunEnded(paused.machine, paused.job_id, 1, "cancelled"))
    (again,) = of(commands, StartRun)
    assert (again.machine, again.launch.attempt, again.launch.starts) == (other, 2, 1)
    assert [each.runs for each in of(commands, PaceRun)] == [True]
    assert [each.kind for each in of(commands, Noted)] == ["moved"]


def test_on_one_machine_a_paused_job_goes_on_where_it_is() -> None:
    """Its processes are there, whatever nodes of the machine it has: it is let go on, and needs no signal for it."""
    north = site(2)
    do(north, 0, *(job(key, 1, 1.0, 0.6) for key in ("first", "second")))
    do(north, 1, *(RunStarted("a", OWN + number, 1) for number in (0, 1)))
    (paused,) = [each for each in of(do(north, 1000, job("third", 1, 1.0, 0.6)), PaceRun) if not each.runs]
    stays = OWN if paused.job_id == OWN + 1 else OWN + 1
    commands = do(north, 2000, RunEnded("a", stays, 1, "finished"))
    assert [(each.job_id, each.runs) for each in of(commands, PaceRun)] == [(paused.job_id, True)]
    assert not of(commands, EndRun)
    assert not of(commands, StartRun)


@pytest.mark.parametrize(
    ("nodes", "algorithm", "is_taken"),
    [((1, 1), "GreedyP*/OPT=MIN", False), ((1, 1), "Greedy*/OPT=MIN", True), ((2,), "GreedyPM*/per/OPT=MIN", True)],
)
def test_jobs_must_be_movable_only_where_they_are_moved(nodes: tuple[int, ...], algorithm: str, is_taken: bool) -> None:
    """Where an algorithm pauses or moves jobs, and there is another machine, a job has to say that it can go there."""
    commands = do(site(*nodes, algorithm=algorithm), 0, job("one", 1, 1.0, 0.5))
    assert bool(of(commands, Accepted)) == is_taken
    assert [
        each.reason for each in of(commands, Declined) if "does not declare that it can be moved" not in each.reason
    ] == []

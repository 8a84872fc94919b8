"""What each machine has to run of a job, and what its ends come to."""

from __future__ import annotations

from typing import Any

import pytest

from gridweave.site.job import DescribeJob, JobRequest, NodeIntervals, Program
from gridweave.site.launch import RankReport, Used
from gridweave.site.messages import ConfirmRun, EndRun, Machine, RunEnded, StartJob, StartRun
from gridweave.site.policy import SitePolicy
from gridweave.site.run.make_run import make_run
from gridweave.site.run.runs import MOST_CODES, Run, SiteSettings, repeated_orders

SETTINGS = SiteSettings(
    name="north",
    number=0,
    machines=(Machine(name="a", nodes=2), Machine(name="b", nodes=1), Machine(name="c", nodes=3)),
    policy=SitePolicy(),
)


def run(
    *nodes: tuple[int, int],
    threads: NodeIntervals = (),
    lanes: tuple[int, int] = (1, 1),
    first: int = 0,
    **program: Any,
) -> Run:
    """Return what the machines of a site have to run of a job on these nodes."""
    width = sum(high - low for low, high in nodes)
    request = JobRequest(program=Program(argv=("true",), **program), nodes=width, limit_ms=100)
    described = DescribeJob(7, 2, request, 100, first, first + width, ("north",))
    return make_run(SETTINGS, StartJob(7, nodes, threads), described, lanes, 5)


def end(made: Run, *outcomes: str) -> Run:
    """Have the machines of a job end with these outcomes, in their order."""
    for (agent, piece), outcome in zip(made.node_tasks.items(), outcomes, strict=True):
        piece.end = RunEnded(agent, 7, 2, outcome, f"{agent} {outcome}", used=Used(cpu_s=1.0, wall_s=2.0))  # type: ignore[arg-type]
        piece.has_run = True
    return made


def test_ranks_go_up_with_the_nodes_and_each_machine_has_its_own() -> None:
    """Nodes are those of the first machine, then of the next; a machine that has none of a job runs nothing of it."""
    made = run((1, 2), (3, 6), first=10)
    found = {
        agent: ([(rank.rank, rank.node) for rank in piece.launch.ranks], piece.slots)
        for agent, piece in made.node_tasks.items()
    }
    assert found == {"a": ([(10, 0)], (1,)), "c": ([(11, 1), (12, 2), (13, 3)], (0, 1, 2))}
    assert (made.width, made.start_ms, made.where) == (4, 5, "a, c")


def test_ranks_on_shared_nodes_have_their_hardware_threads() -> None:
    """Threads are counted from 0 on each node; where a node is a job's alone its ranks may run anywhere on it."""
    made = run((0, 2), threads=((1, 2), (4, 5), (7, 8)), lanes=(2, 2))
    assert [rank.threads for rank in made.node_tasks["a"].launch.ranks] == [(1,), (0, 3)]
    assert made.node_tasks["a"].launch.lanes == (2, 2)
    assert run((2, 3)).node_tasks["b"].launch.ranks[0].threads is None


@pytest.mark.parametrize(
    ("outcomes", "killed", "if_lost", "expected"),
    [
        (("finished", "finished"), "", "requeue", ("finished", "")),
        (("finished", "finished"), "limit", "requeue", ("finished", "")),
        (("finished", "finished"), "cancelled", "requeue", ("finished", "")),
        (("cancelled", "failed"), "", "requeue", ("failed", "c failed")),
        (("failed", "finished"), "limit", "requeue", ("failed", "a failed")),
        (("cancelled", "finished"), "limit", "requeue", ("limit", "why")),
        (("limit", "limit"), "limit", "requeue", ("limit", "why")),
        (("limit", "cancelled"), "", "requeue", ("limit", "a limit")),
        (("cancelled", "lost"), "cancelled", "requeue", ("cancelled", "why")),
        (("cancelled", "lost"), "limit", "requeue", ("lost", "c lost")),
        (("failed", "lost"), "", "requeue", ("lost", "c lost")),
        (("failed", "lost"), "", "fail", ("failed", "lost: c lost")),
    ],
)
def test_the_ends_of_the_parts_come_to_one(
    outcomes: tuple[str, str], killed: str, if_lost: str, expected: tuple[str, str]
) -> None:
    """What ended well has finished, what was lost was, unless the user wanted it no more; else the worst counts."""
    made = end(run((1, 2), (3, 4), if_lost=if_lost), *outcomes)
    made.killed, made.why_killed = killed, "why" if killed else ""
    assert made.outcome() == expected
    assert (made.used.cpu_s, made.used.wall_s) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("killed", "delayed", "expected"),
    [
        ("limit", "", ("lost", "its machines did not start it within its limit")),
        ("limit", "its disk is full", ("lost", "its disk is full")),
        ("cancelled", "its disk is full", ("cancelled", "why")),
        ("lost", "its disk is full", ("lost", "why")),
    ],
)
@pytest.mark.parametrize("if_lost", ["requeue", "fail"])
def test_what_never_ran_has_reached_no_limit(
    killed: str, delayed: str, expected: tuple[str, str], if_lost: str
) -> None:
    """A job whose machines were away or full is begun again, even if it must not run twice, unless it is not wanted."""
    made = end(run((1, 2), (3, 4), if_lost=if_lost), "cancelled", "cancelled")
    for piece in made.node_tasks.values():
        piece.has_run = False
    made.node_tasks["c"].delayed = delayed
    made.killed, made.why_killed = killed, "why"
    assert made.outcome() == expected


def test_what_has_run_and_is_begun_anew_is_lost() -> None:
    """A job that is handed back though a part of it had begun has failed if it must not run twice."""
    made = end(run((1, 2), (3, 4), if_lost="fail"), "cancelled", "cancelled")
    made.killed, made.why_killed = "lost", "why"
    assert made.outcome() == ("failed", "lost: why")


def test_only_so_many_exit_codes_are_told() -> None:
    """Ranks that did not end well are told of, by rank, up to a number."""
    made = run((0, 3))
    reports = tuple(RankReport(99 - rank, 1, 1, exit_code=rank % 2) for rank in range(100))
    for agent, piece in made.node_tasks.items():
        piece.end = RunEnded(agent, 7, 2, "failed", ranks=reports if agent == "a" else ())
    codes = made.exit_codes
    assert len(codes) == MOST_CODES
    assert codes[:2] == ((0, 1, None), (2, 1, None))


def test_orders_are_what_machines_have_not_confirmed() -> None:
    """A start until it is confirmed, a question while there is doubt, an end until it has come."""
    made = run((1, 2), (2, 3), (3, 4))
    made.node_tasks["b"].has_started = made.node_tasks["b"].in_doubt = True
    made.node_tasks["c"].end = RunEnded("c", 7, 2, "failed")
    made.ending = "why"
    orders = list(repeated_orders([made], {"a", "b", "c"}))
    assert [type(order) for order in orders] == [EndRun, ConfirmRun, EndRun], "what is to end is not started first"
    assert list(repeated_orders([made], {"b"})) == [ConfirmRun("b", 7, 2), EndRun("b", 7, 2, "why")]
    made.node_tasks["b"].in_doubt, made.ending = False, ""
    assert list(repeated_orders([made], {"b", "c"})) == []
    assert [type(order) for order in repeated_orders([made], {"a"})] == [StartRun]

"""Which cores and GPUs of a node the ranks of jobs get, at sites that count resources."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.site.job import DescribeJob, JobRequest, NodeIntervals, Program, Where
from gridweave.site.launch import Launch, Rank, RankResources
from gridweave.site.messages import Machine, StartJob
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import Chunk, NodeKind
from gridweave.site.run.make_run import make_run
from gridweave.site.run.numbers import NodeNumbers, RankNeed, needs_on
from gridweave.site.run.runs import NodeTask, Run, SiteSettings

KINDS = (
    NodeKind(name="cpu", count=2, cores=8, memory_mb=8000),
    NodeKind(name="gpu", count=1, cores=4, memory_mb=1000, gpus=4, gpu_type="a100"),
)
MACHINES = (Machine(name="a", nodes=2), Machine(name="b", nodes=1))
SETTINGS = SiteSettings(name="north", number=0, machines=MACHINES, policy=SitePolicy(kinds=KINDS))


def made(nodes: NodeIntervals, chunk: Chunk | None, ranks: Where = "each-node", first_rank: int = 0) -> Run:
    """Return the run of a job with one chunk for each listed node."""
    width = sum(high - low for low, high in nodes)
    asked: dict[str, Any] = {} if chunk is None else {"chunk": chunk}
    request = JobRequest(program=Program(argv=("true",), ranks=ranks), nodes=width, limit_ms=100, **asked)
    described = DescribeJob(7, 1, request, 100, first_rank, width, ("north",))
    return make_run(SETTINGS, StartJob(7, nodes), described, (1, 1), 0)


def shares(run: Run) -> dict[str, list[tuple[int, int, RankResources | msgspec.UnsetType]]]:
    """Return the rank, the number of its node within the job, and what it has, by machine."""
    return {
        machine: [(rank.rank, rank.node, rank.resources) for rank in task.launch.ranks]
        for machine, task in run.node_tasks.items()
    }


def test_each_chunk_has_a_rank_with_the_lowest_free_numbers() -> None:
    numbers = NodeNumbers(MACHINES, KINDS)
    first = made(((2, 3),), Chunk(cores=1, gpus=1))
    numbers.take(first.node_tasks)
    second = made(((1, 2), (1, 3)), Chunk(cores=1, gpus=0, memory_mb=10), first_rank=5)
    numbers.take(second.node_tasks)
    assert shares(first) == {"b": [(0, 0, RankResources(cores=(0,), gpus=(0,)))]}
    assert shares(second) == {
        "a": [(5, 0, RankResources(cores=(0,), memory_mb=10)), (6, 0, RankResources(cores=(1,), memory_mb=10))],
        "b": [(7, 1, RankResources(cores=(1,), memory_mb=10))],
    }
    assert [task.launch.memory_mb for task in second.node_tasks.values()] == [20, 10]
    numbers.give("b", first.node_tasks["b"])
    third = made(((2, 3), (2, 3)), Chunk(cores=1, gpus=2))
    numbers.take(third.node_tasks)
    assert [kept for _, _, kept in shares(third)["b"]] == [
        RankResources(cores=(0,), gpus=(0, 1)),
        RankResources(cores=(2,), gpus=(2, 3)),
    ]
    numbers.check_invariants([*second.node_tasks.items(), *third.node_tasks.items()])


def test_a_single_rank_has_all_chunks_of_the_first_node() -> None:
    run = made(((1, 2), (1, 3)), Chunk(cores=2, memory_mb=5), ranks="first-node")
    NodeNumbers(MACHINES, KINDS).take(run.node_tasks)
    assert shares(run) == {"a": [(0, 0, RankResources(cores=(0, 1, 2, 3), memory_mb=10))]}


def test_a_job_of_whole_nodes_has_all_of_them() -> None:
    run = made(((1, 3),), None)
    NodeNumbers(MACHINES, KINDS).take(run.node_tasks)
    assert shares(run) == {
        "a": [(0, 0, RankResources(cores=tuple(range(8)), memory_mb=8000))],
        "b": [(1, 1, RankResources(cores=(0, 1, 2, 3), gpus=(0, 1, 2, 3), memory_mb=1000))],
    }


def test_a_site_without_kinds_gives_no_numbers() -> None:
    numbers = NodeNumbers(MACHINES, ())
    task = NodeTask(Launch(job_id=1, attempt=1, ranks=(Rank(0),), argv=("true",)), (0,))
    assert not numbers.has_free({"a": task})
    before = msgspec.msgpack.encode(task.launch)
    numbers.take({"a": task})
    numbers.give("a", task)
    assert msgspec.msgpack.encode(task.launch) == before
    assert b"resources" not in before


@given(st.integers(1, 64), st.integers(0, 8), st.integers(1, 8))
def test_the_chunks_of_an_exclusive_job_divide_the_whole_node(cores: int, gpus: int, count: int) -> None:
    """Each gets at least what it asks for, and nothing is left over."""
    kind = NodeKind(name="x", count=1, cores=max(cores, count), gpus=gpus, memory_mb=1000)
    asked = Chunk(cores=kind.cores // count, gpus=gpus // count, memory_mb=1000 // count, exclusive=True)
    needs = needs_on(kind, asked, count)
    assert sum(need.cores for need in needs) == kind.cores
    assert sum(need.gpus for need in needs) == kind.gpus
    assert sum(need.memory_mb for need in needs) == 1000
    assert all(need.cores >= asked.cores and need.gpus >= asked.gpus for need in needs)
    assert needs_on(kind, msgspec.UNSET, 1) == [RankNeed(kind.cores, gpus, 1000)]


@given(st.data())
def test_no_number_is_held_twice_and_a_restart_knows_them_all(data: st.DataObject) -> None:
    """Tasks begin and end in any order, and at any time the site restarts from the launches of its runs."""
    numbers, runs = NodeNumbers(MACHINES, KINDS), list[Run]()
    for _ in range(data.draw(st.integers(1, 12))):
        if runs and data.draw(st.booleans()):
            run = runs.pop(data.draw(st.integers(0, len(runs) - 1)))
            for machine, task in run.node_tasks.items():
                numbers.give(machine, task)
        nodes = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(sorted))
        chunk = data.draw(
            st.builds(Chunk, cores=st.integers(1, 4), gpus=st.integers(0, 1), exclusive=st.booleans()) | st.none()
        )
        if chunk is None or chunk.exclusive:
            nodes = sorted(set(nodes))
        run = made(tuple((node, node + 1) for node in nodes), chunk)
        fits = numbers.has_free(run.node_tasks)
        if fits:
            numbers.take(run.node_tasks)
            runs.append(run)
        else:
            with pytest.raises(AssertionError):
                NodeNumbers.take(copied(runs), run.node_tasks)
        open_tasks = [item for run in runs for item in run.node_tasks.items()]
        numbers.check_invariants(open_tasks)
        if data.draw(st.booleans()):
            numbers = copied(runs)
            numbers.check_invariants(open_tasks)


def copied(runs: list[Run]) -> NodeNumbers:
    """Return the numbers as a site restores them from its journal."""
    numbers = NodeNumbers(MACHINES, KINDS)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(runs), type=list[Run])
    numbers.restore(item for run in stored for item in run.node_tasks.items())
    return numbers

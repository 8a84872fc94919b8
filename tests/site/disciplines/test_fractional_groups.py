"""Jobs whose tasks differ, on sites that give fractions of nodes: what is told of them, and what that changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gridweave.errors import InputError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.batch.stepped import job_messages
from gridweave.scenarios.results.bound import stretch_bound
from gridweave.scenarios.workload.needs import NEED_COLUMNS, check_needs, cpu_needs, needs_of, with_groups, with_needs
from gridweave.scenarios.workload.table import Workload
from gridweave.site.allocation import nodes_of_groups
from gridweave.site.disciplines.fractional.discipline import Fractional
from gridweave.site.disciplines.fractional.policy import FractionalPolicy
from gridweave.site.job import Job, TaskGroup, needs_of_groups
from gridweave.site.kernels.parts import NeedsOfTasks
from gridweave.site.messages import JobSubmitted
from gridweave.site.scheduler.core import SiteCore


def random_jobs(rng: np.random.Generator, count: int) -> Workload:
    """Return jobs of four to nine tasks that are alike."""
    run_ms = rng.integers(1_000, 900_000, count)
    return Workload(
        job_id=np.arange(1, count + 1),
        submit_ms=np.sort(rng.integers(0, count * 60_000, count)),
        width=rng.integers(4, 10, count),
        estimate_ms=run_ms,
        run_ms=run_ms,
        columns={
            "cpu_need": rng.choice([0.25, 0.5, 1.0], count),
            "memory_fraction": rng.choice([0.1, 0.2, 0.35], count),
        },
    )


def in_groups(workload: Workload, parts: int) -> Workload:
    """Return the same jobs, told as so many groups of tasks that are all alike."""
    row = np.repeat(np.arange(len(workload)), parts)
    count = np.ones(len(row), np.int64)
    count[::parts] = workload.width - parts + 1
    needs = (workload.columns[name][row] for name in ("cpu_need", "memory_fraction"))
    return with_groups(workload, NeedsOfTasks(row, count, *needs))


@pytest.mark.parametrize("driver", ["batch", "core"])
@pytest.mark.parametrize(
    "algorithm", ["GreedyPM*/per/OPT=MIN/MINVT=600", "MCB8*/per/OPT=MIN", "/stretch-per/OPT=MAX", "GreedyP*/OPT=MIN"]
)
def test_groups_that_are_alike_are_one_group(algorithm: str, driver: Any) -> None:
    """Whatever is paused and moved: a job is told in one group or in three, and has the same schedule."""
    policy = FractionalPolicy(algorithm=algorithm, period_ms=120_000)
    one = random_jobs(np.random.default_rng(1), 40)
    three = in_groups(one, 3)
    assert (np.bincount(needs_of(three).row) == 3).all()
    first, second = (simulate(jobs, 9, policy, driver=driver) for jobs in (one, three))
    assert first.start_ms.tolist() == second.start_ms.tolist()
    assert first.end_ms.tolist() == second.end_ms.tolist()
    for name, values in first.columns.items():
        assert values.tolist() == second.columns[name].tolist()
    assert first.columns["preemptions"].any() or first.columns["migrations"].any(), "nothing was paused or moved"


def discipline(nodes: int, algorithm: str = "Greedy*/OPT=MIN") -> Fractional:
    """Return an idle site."""
    return Fractional(nodes, FractionalPolicy(algorithm=algorithm))


def job_of(*groups: TaskGroup) -> Job:
    """Return a job of these tasks."""
    width = sum(group.tasks for group in groups)
    return Job(job_id=1, width=width, estimate_ms=60_000, resources=needs_of_groups(groups))


def test_tasks_that_need_more_memory_are_placed_first_and_told_in_the_order_of_the_ranks() -> None:
    """By hand: the root, told last, takes the first node; two small tasks the second, where there is less load."""
    site = discipline(2)
    told = (TaskGroup(tasks=3, cpu_need=0.5, memory=0.3), TaskGroup(tasks=1, cpu_need=1.0, memory=0.7))
    site.submit(0, job_of(*told))
    (start,) = site.run_pass(0).starts
    assert start.nodes is not None
    assert nodes_of_groups(start.nodes, [3, 1]) == [[0, 1, 1], [0]]
    assert start.threads == ()
    assert site._state.nodes["memory"].tolist() == [1_000_000, 600_000]
    assert site._state.nodes["load"].tolist() == [1_500_000, 1_000_000]
    site.check_invariants()


@pytest.mark.parametrize("algorithm", ["GreedyPM*/OPT=MIN", "MCB8*/per/OPT=MIN"])
def test_in_which_order_groups_are_told_makes_no_difference(algorithm: str) -> None:
    """The nodes have the same load and the same memory, and so has the job the same yield."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        groups = [
            TaskGroup(tasks=int(rng.integers(1, 4)), cpu_need=float(rng.uniform(0.1, 1)), memory=float(memory))
            for memory in rng.choice([0.1, 0.2, 0.4], 3)
        ]
        found = []
        for told in (groups, groups[::-1]):
            site = discipline(5, algorithm)
            site.submit(0, job_of(*told))
            site.run_pass(0)
            found.append((site._state.nodes[["load", "memory"]].tolist(), site._state.jobs["yield_"][0]))
        assert found[0] == found[1]


def jobs_of_two_groups(memory: float, needs: tuple[float, float] = (1.0, 0.5)) -> Workload:
    """Return one job of two tasks that need 60% of a node's memory, and two that need so much of it."""
    return Workload(
        job_id=[1],
        submit_ms=[0],
        width=[4],
        estimate_ms=[60_000],
        run_ms=[60_000],
        columns={
            "cpu_need": [needs[0]],
            "memory_fraction": [0.6],
            "tasks_2": [2],
            "cpu_need_2": [needs[1]],
            "memory_fraction_2": [memory],
        },
    )


@pytest.mark.parametrize(("memory", "is_refused"), [(0.4, False), (0.5, True)])
def test_a_job_is_refused_whose_groups_have_room_one_by_one_and_not_together(memory: float, is_refused: bool) -> None:
    """Two nodes hold two tasks of 60%, or four of 50%; with two of 40% both are full."""
    for driver in ("batch", "core"):
        jobs = jobs_of_two_groups(memory, needs=(1.0, 1.0))
        result = simulate(jobs, 2, FractionalPolicy(), driver=driver)
        why = "it has 4 different tasks, which do not all fit into the memory of this site"
        assert tuple(result.refused) == (((1, why),) if is_refused else ())
        assert result.end_ms.tolist() == [-1 if is_refused else 120_000]  # each node has a load of 2


def test_who_waits_hears_of_each_group_for_how_many_there_is_room() -> None:
    """The root does not fit beside who is there; the others would."""
    core = SiteCore(2, FractionalPolicy(algorithm="Greedy*/OPT=MIN"))
    core.handle(0, JobSubmitted(job_of(TaskGroup(tasks=2, memory=0.5))))
    groups = TaskGroup(tasks=1, memory=0.6), TaskGroup(tasks=3, memory=0.1)
    waiting = Job(job_id=2, width=4, estimate_ms=60_000, resources=needs_of_groups(groups))
    core.handle(1_000, JobSubmitted(waiting))
    assert core.explain(1_000, 2).reason.startswith(
        "it has 1 task that needs 60% of a node's memory, and the free memory fits 0 such tasks on 2 nodes; "
        "3 tasks that each need 10% of a node's memory, and the free memory fits 10 such tasks on 2 nodes; "
    )


def test_all_tasks_of_a_job_have_one_yield() -> None:
    """A root with all of a node's CPU and a helper beside it on one node: both get two thirds of what they need."""
    site = discipline(1)
    site.submit(0, job_of(TaskGroup(tasks=1, cpu_need=1.0, memory=0.5), TaskGroup(tasks=1, cpu_need=0.5, memory=0.1)))
    site.run_pass(0)
    assert site.progress(0, 1)[0] == pytest.approx(2 / 3, abs=1e-4)


def with_largest(workload: Workload) -> Workload:
    """Return a workload in which every task needs what the largest of its job needs, of CPU and of memory."""
    groups = needs_of(workload)
    columns = {name: np.zeros(len(workload)) for name in NEED_COLUMNS}
    for largest, needs in zip(columns.values(), (groups.cpu, groups.memory), strict=True):
        np.maximum.at(largest, groups.row, needs)
    return workload.replace(columns=columns)


def test_the_bound_and_the_demand_sum_over_all_tasks() -> None:
    """Two such jobs at once, which need three nodes each, take two minutes on three nodes; with a need of 1, 8/3."""
    one = jobs_of_two_groups(0.1)
    assert cpu_needs(one).tolist() == [3.0]
    two = Workload(
        job_id=[1, 2],
        submit_ms=[0, 0],
        width=[4, 4],
        estimate_ms=[60_000] * 2,
        run_ms=[60_000] * 2,
        columns={name: np.repeat(values, 2) for name, values in one.columns.items()},
    )
    for method in ("flow", "lp"):
        assert stretch_bound(two, 3, method=method) == pytest.approx(2, abs=0.0011)
        assert stretch_bound(with_largest(two), 3, method=method) == pytest.approx(8 / 3, abs=0.0011)
    largest = with_largest(jobs_of_two_groups(0.1, needs=(0.25, 0.5)))
    assert {name: values.tolist() for name, values in largest.columns.items()} == {
        "cpu_need": [0.5],
        "memory_fraction": [0.6],
    }


def test_root_tasks_are_drawn_for_half_of_the_jobs_with_several_tasks() -> None:
    """One task has the memory that "lublin" gives to all, the others a quarter; jobs of one task are as they were."""
    rng = np.random.default_rng(3)
    plain = random_jobs(rng, 2_000).replace(width=rng.integers(1, 10, 2_000))
    alike = with_needs(plain, "lublin", np.random.default_rng(4))
    found = with_needs(plain, "lublin-root", np.random.default_rng(4))
    check_needs(found)
    for name in ("cpu_need", "memory_fraction"):
        assert found.columns[name].tolist() == alike.columns[name].tolist()
    several = found.width > 1
    assert np.mean(found.columns["tasks_2"][several] > 0) == pytest.approx(0.5, abs=0.05)
    groups = needs_of(found)
    rooted = np.flatnonzero(np.bincount(groups.row) == 2)
    assert (found.width[rooted] > 1).all()
    for row in rooted[:50]:
        mine = groups.row == row
        assert groups.tasks[mine].tolist() == [1, found.width[row] - 1]
        assert groups.memory[mine][1] == groups.memory[mine][0] / 4
    needs = job_messages(found)[rooted[0]].resources
    assert needs is not None
    assert [group.tasks for group in needs.groups] == [1, found.width[rooted[0]] - 1]
    assert needs.memory == found.columns["memory_fraction"][rooted[0]]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tasks_2": [4]}, "job 1: has 4 tasks, and its other groups leave none for the first group"),
        ({"tasks_2": [-1]}, "job 1: tasks_2 -1 is not a number of tasks"),
        ({"cpu_need_2": [0.0]}, r"job 1: cpu_need_2 0\.0 is not above 0 and up to 1"),
        ({"memory_fraction_2": [0.7]}, "memory_fraction_2 is above memory_fraction; the first group must be the"),
        ({"memory_fraction_2": None}, "has no column memory_fraction_2; tasks_2, cpu_need_2 and memory_fraction_2 go"),
    ],
)
def test_wrong_groups_are_told_in_one_line(changes: dict[str, Any], problem: str) -> None:
    """Which job, which field, and what would be right."""
    jobs = jobs_of_two_groups(0.4)
    columns = {name: values for name, values in {**jobs.columns, **changes}.items() if values is not None}
    with pytest.raises(InputError, match=problem):
        simulate(jobs.replace(columns=columns), 4, FractionalPolicy())

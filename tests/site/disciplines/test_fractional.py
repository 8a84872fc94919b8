"""Fractions of nodes: the kernels against the slow reference, brute force and linear programs (docs/fractional.md)."""

from __future__ import annotations

import copy
import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog

from gridweave.errors import InputError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.bound import stretch_bound
from gridweave.scenarios.workload.needs import needs_of
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.base import SharedOffer
from gridweave.site.disciplines.fractional.averages import average_yields
from gridweave.site.disciplines.fractional.discipline import Fractional
from gridweave.site.disciplines.fractional.groups import TaskGroups, enter_groups
from gridweave.site.disciplines.fractional.kernels.allocation import fair_yields, level_yields, stretch_yields
from gridweave.site.disciplines.fractional.kernels.greedy import place_greedily
from gridweave.site.disciplines.fractional.kernels.packing import Remapping, pack
from gridweave.site.disciplines.fractional.kernels.state import FractionalSite, empty_fractional
from gridweave.site.disciplines.fractional.policy import ALGORITHMS, FractionalPolicy, algorithm_named
from gridweave.site.job import Job, Resources, TaskGroup, needs_of_groups
from gridweave.site.kernels.parts import GROUP_COLUMNS, UNIT, parts_of_node
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.messages import ChangeRate, JobSubmitted, MoveJob, RefuseJob, StartJob
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.state import dump_state
from reference import fractional as reference

MEMORIES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
NEEDS = (0.25, 0.5, 1.0)


def random_workload(rng: np.random.Generator, count: int, nodes: int, *, groups: int = 1) -> Workload:
    """Return jobs that a site of so many nodes is busy with, a third of them with other weights.

    With more than one group, some of their tasks differ from the others.
    """
    memory = rng.choice(MEMORIES, count)
    width = np.minimum(rng.integers(1, nodes + 1, count), nodes * (UNIT // parts_of_node(memory)))
    run_ms = (rng.choice([1_000, 60_000, 600_000, 3_600_000], count) * rng.uniform(0.5, 1.5, count)).astype(np.int64)
    weight = np.where(rng.random(count) < 1 / 3, rng.choice([0.5, 2.0], count), 1.0)
    columns = {"memory_fraction": memory, "weight": weight}
    workload = Workload(
        job_id=np.arange(1, count + 1),
        submit_ms=np.sort(rng.integers(0, count * 3_000, count) * 100),
        width=width,
        estimate_ms=run_ms,
        run_ms=run_ms,
        columns={"cpu_need": rng.choice(NEEDS, count), **columns},
    )
    return with_groups(workload, rng, groups) if groups > 1 else workload


def with_groups(workload: Workload, rng: np.random.Generator, groups: int) -> Workload:
    """Return jobs of which many have further groups of tasks, some of them alike, all with no more memory."""
    columns, left = dict(workload.columns), workload.width - 1
    for tasks, cpu, memory in GROUP_COLUMNS[: groups - 1]:
        columns[tasks] = np.where(rng.random(len(workload)) < 2 / 3, rng.integers(0, left + 1), 0)
        left = left - columns[tasks]
        columns[cpu] = rng.choice(NEEDS, len(workload))
        columns[memory] = columns["memory_fraction"] * rng.choice([0.3, 0.5, 1.0], len(workload))
    return workload.replace(columns=columns)


def played_slowly(workload: Workload, nodes: int, policy: FractionalPolicy) -> list[reference.Job]:
    """Return the jobs as the reference plays them."""
    how = algorithm_named(policy.algorithm)
    algorithm = reference.Algorithm(
        on_submit=how.on_submit,
        on_end=how.on_end,
        periodic=how.periodic,
        min_flow_ms=1000 * how.min_flow_s,
        min_virtual_ms=1000 * how.min_virtual_s,
        period_ms=policy.period_ms,
        penalty_ms=policy.penalty_ms,
        long_ms=policy.long_ms,
    )
    tasks: list[list[tuple[int, int]]] = [[] for _ in range(len(workload))]
    for row, count, need, memory in zip(*needs_of(workload), strict=True):
        tasks[row] += [(int(parts_of_node(need)), int(parts_of_node(memory)))] * count
    jobs = [
        reference.Job(
            job_id=int(workload.job_id[row]),
            submit_ms=int(workload.submit_ms[row]),
            run_ms=int(workload.run_ms[row]),
            tasks=tasks[row],
            weight=Fraction(float(workload.columns["weight"][row])),
        )
        for row in range(len(workload))
    ]
    reference.simulate(jobs, nodes, algorithm)
    return jobs


NAMES = [name for name, one in ALGORITHMS.items() if one.optimise != "AVG"]


@pytest.mark.parametrize("name", NAMES)
def test_the_kernels_do_as_the_reference(name: str) -> None:
    """Of every algorithm without a linear program, on random workloads: the same starts, ends, pauses and moves."""
    rng = np.random.default_rng(NAMES.index(name))
    for penalty_ms, long_ms, groups in ((300_000, 0, 1), (0, 600_000, 1), (300_000, 0, 3)):
        nodes = int(rng.integers(1, 7))
        workload = random_workload(rng, int(rng.integers(5, 20)), nodes, groups=groups)
        policy = FractionalPolicy(algorithm=name, penalty_ms=penalty_ms, long_ms=long_ms)
        result = simulate(workload, nodes, policy)
        slow = played_slowly(workload, nodes, policy)
        assert result.start_ms.tolist() == [job.start_ms for job in slow]
        assert result.end_ms.tolist() == [job.end_ms for job in slow]
        assert result.columns["preemptions"].tolist() == [job.preempted for job in slow]
        assert result.columns["migrations"].tolist() == [job.migrated for job in slow]
        assert result.columns["moved_nodes"].tolist() == [job.moved / UNIT for job in slow]


@pytest.mark.parametrize("name", ["/stretch-per/OPT=MAX", "/stretch-per/OPT=MAX/MINFT=300"])
def test_jobs_that_need_more_cpu_than_all_nodes_have_come_to_their_end(name: str) -> None:
    """However long they have waited, and so want all of their need: one has what there is, as the reference says."""
    rng = np.random.default_rng(5)
    run_ms = rng.integers(300_000, 1_200_000, 5)
    workload = Workload(
        job_id=np.arange(1, 6),
        submit_ms=np.sort(rng.integers(0, 600_000, 5)),
        width=rng.integers(4, 10, 5),
        estimate_ms=run_ms,
        run_ms=run_ms,
        columns={"cpu_need": np.ones(5), "memory_fraction": np.full(5, 0.3), "weight": np.ones(5)},
    )
    policy = FractionalPolicy(algorithm=name, penalty_ms=300_000, period_ms=20_000)
    result = simulate(workload, 4, policy)
    slow = played_slowly(workload, 4, policy)
    assert result.start_ms.tolist() == [job.start_ms for job in slow]
    assert result.end_ms.tolist() == [job.end_ms for job in slow]


@pytest.mark.parametrize("name", ["GreedyPM*/per/OPT=MIN/MINVT=600", "MCB8*/OPT=MIN", "/stretch-per/OPT=MAX/MINFT=300"])
def test_core_and_loop_give_the_same_schedule(name: str) -> None:
    """A core that is stepped event by event, its sums checked each time, does as the compiled loop."""
    rng = np.random.default_rng(11)
    for groups in (1, 2, 3):
        workload = random_workload(rng, 90, 5, groups=groups)
        policy = FractionalPolicy(algorithm=name)
        fast, stepped = simulate(workload, 5, policy), simulate(workload, 5, policy, driver="core", check=True)
        assert fast.end_ms.tolist() == stepped.end_ms.tolist()
        assert fast.start_ms.tolist() == stepped.start_ms.tolist()
        for column, values in fast.columns.items():
            assert values.tolist() == stepped.columns[column].tolist()
        assert fast.own_metrics == stepped.own_metrics


@pytest.mark.parametrize("name", [name for name, one in ALGORITHMS.items() if one.optimise == "AVG"])
def test_all_algorithms_with_a_linear_program_run(name: str) -> None:
    """All jobs end, no node gives more than it has, and nobody beats the bound."""
    rng = np.random.default_rng(3)
    workload = random_workload(rng, 12, 3, groups=3)
    result = simulate(workload, 3, FractionalPolicy(algorithm=name), check=True)
    assert (result.end_ms - result.start_ms >= workload.run_ms).all()
    stretch = np.maximum(result.end_ms - workload.submit_ms, 10_000) / np.maximum(workload.run_ms, 10_000)
    assert stretch.max() >= stretch_bound(workload, 3)


def random_group(rng: np.random.Generator, tasks: int) -> TaskGroup:
    """Return so many tasks that are alike."""
    return TaskGroup(tasks=tasks, cpu_need=float(rng.choice(NEEDS)), memory=float(rng.choice(MEMORIES[:4])))


def site_with(rng: np.random.Generator, nodes: int, count: int, *, weights: bool = False) -> FractionalSite:
    """Return a site with jobs that have come; as many as fit are placed by Greedy."""
    discipline = Fractional(nodes, FractionalPolicy(algorithm="Greedy*/OPT=MIN"))
    for job_id in range(count):
        width = int(rng.integers(1, nodes + 1))
        counts = [count for count in rng.multinomial(width, [0.5, 0.3, 0.2]).tolist() if count]
        needs = needs_of_groups([random_group(rng, count) for count in counts])
        weight = float(rng.choice([0.5, 1.0, 3.0])) if weights else 1.0
        discipline.submit(0, Job(job_id=job_id, width=width, estimate_ms=60_000, weight=weight, resources=needs))
    discipline.run_pass(0)
    return discipline._state


def needs_on_nodes(state: FractionalSite) -> tuple[list[int], np.ndarray]:
    """Return the slots of the running jobs, and what each needs on each node, as parts of it."""
    slots = [int(slot) for slot in state.here[: state.counters["n_here"][0]] if state.jobs["status"][slot] == 2]
    needs = np.zeros((len(state.nodes), len(slots)))
    for place, slot in enumerate(slots):
        job = state.jobs[slot]
        groups = state.groups[job["first_group"] : job["end_group"]]
        tasks = state.tasks[job["first"] : job["first"] + job["width"]]
        np.add.at(needs[:, place], tasks, np.repeat(groups["need"], groups["count"]) / UNIT)
    return slots, needs


def test_the_least_yield_is_as_large_as_the_mapping_allows() -> None:
    """Against a linear program that maximises the least yield; and 1 / max(1, largest load) is that."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        state = site_with(rng, 4, 8)
        slots, needs = needs_on_nodes(state)
        fair_yields(state)
        fair = state.jobs["yield_"][slots] / RATE_ONE
        level_yields(state)
        assert fair.min() == pytest.approx(state.jobs["yield_"][slots].min() / RATE_ONE, abs=0)
        least = linprog(
            [*np.zeros(len(slots)), -1.0],
            A_ub=np.block([[needs, np.zeros((4, 1))], [-np.eye(len(slots)), np.ones((len(slots), 1))]]),
            b_ub=[*np.ones(4), *np.zeros(len(slots))],
            bounds=[(0, 1)] * (len(slots) + 1),
        )
        assert fair.min() == pytest.approx(-least.fun, abs=1e-4)
        assert (needs @ fair <= 1 + 1e-12).all()


def test_no_yield_can_be_raised_but_at_the_cost_of_a_smaller_one() -> None:
    """Max-min fairness: every job has all that it needs, or a full node on which nobody has more for its weight."""
    rng = np.random.default_rng(6)
    for _ in range(40):
        state = site_with(rng, 4, 8, weights=True)
        slots, needs = needs_on_nodes(state)
        fair_yields(state)
        rates, shares = state.jobs["yield_"][slots] / RATE_ONE, state.jobs["share"][slots] / 1000
        level = rates / shares
        for place in range(len(slots)):
            full = [node for node in np.flatnonzero(needs[:, place]) if needs[node] @ rates > 1 - 1e-3]
            mine = [node for node in full if (level[needs[node] > 0] <= level[place] + 1e-3).all()]
            assert rates[place] == 1 or mine


def test_the_average_yield_is_the_largest_that_leaves_nobody_less() -> None:
    """OPT=AVG is at least the average of OPT=MIN, keeps its least yield, and is what the linear program says."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        state = site_with(rng, 4, 8)
        slots, needs = needs_on_nodes(state)
        fair_yields(state)
        fair = state.jobs["yield_"][slots] / RATE_ONE
        level_yields(state)
        least = state.jobs["yield_"][slots].min() / RATE_ONE
        average_yields(state, None, 0)
        mean = state.jobs["yield_"][slots] / RATE_ONE
        best = linprog(-np.ones(len(slots)), A_ub=needs, b_ub=np.ones(4), bounds=[(least, 1)] * len(slots))
        assert mean.mean() == pytest.approx(-best.fun / len(slots), abs=1e-3)
        assert mean.mean() >= fair.mean() - 1e-3
        assert mean.min() >= least
        assert (needs @ mean <= 1 + 1e-12).all()


def test_the_average_expected_stretch_is_no_larger_than_that_of_the_other_way() -> None:
    """OPT=AVG of stretch-per against OPT=MAX: a smaller sum of flow time / virtual time, no larger maximum."""
    rng = np.random.default_rng(8)
    for _ in range(20):
        state = site_with(rng, 4, 8)
        slots, _ = needs_on_nodes(state)
        state.jobs["virtual"][slots] = rng.integers(1, 600_000, len(slots)) * RATE_ONE
        state.jobs["submit_ms"][slots] = -rng.integers(600_000, 3_000_000, len(slots))

        def expected(state: FractionalSite = state, slots: list[int] = slots) -> np.ndarray:
            rows = state.jobs[slots]
            done_ms = (rows["virtual"] + rows["yield_"] * 600_000) / RATE_ONE
            return (600_000 - rows["submit_ms"]) / done_ms

        stretch_yields(state, np.int64(600_000), np.int64(0), np.int64(99))
        fair = expected()
        stretch_yields(state, np.int64(600_000), np.int64(0), np.int64(1))
        average_yields(state, 600_000, 0)
        assert expected().sum() <= fair.sum() * 1.01
        assert expected().max() <= fair.max() * 1.001


def packing_exists(wanted: list[int], memory: list[int], nodes: int) -> bool:
    """Try all ways to place tasks on nodes."""
    for places in itertools.product(range(nodes), repeat=len(wanted)):
        for sizes in (wanted, memory):
            used = [0] * nodes
            for place, size in zip(places, sizes, strict=True):
                used[place] += size
            if max(used) > UNIT:
                break
        else:
            return True
    return False


def test_packing_against_brute_force() -> None:
    """What MCB8 packs fits; what it does not pack seldom would (a heuristic: at most one in eight that do fit)."""
    rng = np.random.default_rng(9)
    fits = missed = 0
    for _ in range(150):
        nodes, count = int(rng.integers(1, 4)), int(rng.integers(2, 6))
        # Each task stands for itself; the first and the second of a job differ, the others are jobs of one.
        job = np.maximum(np.arange(count) - 1, 0)
        need, held = rng.integers(1, 10, (2, count)) * UNIT // 10
        held[:2] = np.sort(held[:2])[::-1]
        state = site_of(nodes, TaskGroups(job, np.ones(count, np.int64), need, held))
        level = int(rng.integers(40, 101))
        packed = pack(state, Remapping(np.int64(0), np.int64(0), np.int64(0)), np.int64(level), np.int64(0))
        wanted = [-(-each * level // 100) for each in need.tolist()]
        memory = held.tolist()
        if packed:
            for sizes in (wanted, memory):
                assert max(np.bincount(state.trial, weights=sizes)) <= UNIT
        possible = packing_exists(wanted, memory, nodes)
        assert possible or not packed
        fits += possible
        missed += possible and not packed
    assert fits > 50
    assert missed <= fits / 8


def site_of(nodes: int, groups: TaskGroups) -> FractionalSite:
    """Return a site at which jobs wait."""
    count = int(groups.job.max()) + 1
    state = empty_fractional(nodes, slots=count, groups=len(groups.job), pool=int(groups.tasks.sum()))
    state.jobs["width"] = np.bincount(groups.job, groups.tasks)
    state.jobs["share"], state.jobs["status"], state.jobs["start_ms"] = 1000, 1, -1
    state.here[:], state.counters["n_here"] = np.arange(count), count
    enter_groups(state, np.arange(count), groups, 0, 0)
    return state


def test_greedy_takes_the_least_loaded_node_that_has_the_memory() -> None:
    """By hand: of three nodes one is loaded, one has no memory left; the third takes two tasks, then the first."""
    state = site_of(3, TaskGroups(*np.array([[0], [3], [1_000_000], [200_000]])))
    state.nodes["load"], state.nodes["memory"] = [1_500_000, 0, 0], [0, 900_000, 0]
    assert place_greedily(state, np.int64(0))
    assert state.tasks.tolist() == [0, 2, 2]
    assert state.nodes["load"].tolist() == [2_500_000, 0, 2_000_000]


def test_work_is_conserved_whatever_is_paused_and_moved() -> None:
    """Without a penalty and with as much CPU as all need, jobs take as long as alone; with less, never less."""
    rng = np.random.default_rng(10)
    workload = random_workload(rng, 30, 4)
    slow = simulate(workload, 4, FractionalPolicy(penalty_ms=0))
    assert (slow.end_ms - workload.submit_ms >= workload.run_ms).all()
    alone = workload.replace(submit_ms=np.arange(30) * 10_000_000)
    quick = simulate(alone, 4, FractionalPolicy(algorithm="GreedyP*/OPT=MIN"))
    assert (quick.end_ms - alone.submit_ms == alone.run_ms).all()


def test_a_workload_without_needs_is_refused_in_one_line() -> None:
    """The message says which column is missing and how jobs get it; or which job has which wrong need."""
    plain = Workload(job_id=[1], submit_ms=[0], width=[1], estimate_ms=[9], run_ms=[9])
    with pytest.raises(InputError, match="has no column cpu_need; assign needs with one of: lublin, hpc2n"):
        simulate(plain, 1, FractionalPolicy())
    idle = plain.replace(columns={"cpu_need": [0.0], "memory_fraction": [0.5]})
    with pytest.raises(InputError, match=r"job 1: cpu_need 0\.0 is not above 0 and up to 1"):
        simulate(idle, 1, FractionalPolicy())
    with pytest.raises(InputError, match=r"memory_fraction 1\.5 is not within 0 to 1"):
        plain.replace(columns={"cpu_need": [0.5], "memory_fraction": [1.5]})


def test_a_job_with_more_tasks_than_the_memory_holds_is_refused() -> None:
    """Loop and core give the same reason."""
    wide = Workload(
        job_id=[1, 2],
        submit_ms=[0, 0],
        width=[5, 4],
        estimate_ms=[9, 9],
        run_ms=[9, 9],
        columns={"cpu_need": [0.1, 0.1], "memory_fraction": [0.5, 0.5]},
    )
    refused = ((1, "it has 5 tasks, and the memory of this site fits only 4 of them"),)
    for driver in ("batch", "core"):
        result = simulate(wide, 2, FractionalPolicy(), driver=driver)
        assert tuple(result.refused) == refused
        assert result.end_ms.tolist() == [-1, 9]


def test_what_a_site_says_of_its_jobs() -> None:
    """A job that runs has its yield, one that waits hears why, one not handed in at which slowdown it could run."""
    core = SiteCore(1, FractionalPolicy(algorithm="Greedy*/OPT=MIN"))
    large, small = Resources(cpu_need=1.0, memory=0.6), Resources(cpu_need=1.0, memory=0.4)
    core.handle(0, JobSubmitted(Job(job_id=1, width=1, estimate_ms=60_000, resources=large)))
    core.handle(1_000, JobSubmitted(Job(job_id=2, width=1, estimate_ms=60_000, resources=large)))
    why = core.explain(1_000, 2)
    assert (why.ahead, why.start_ms) == (0, None)
    assert "1 task that needs 60% of a node's memory, and the free memory fits 0 such tasks" in why.reason
    third = Job(job_id=3, width=1, estimate_ms=60_000, resources=small)
    assert core.sharing_offered(1_000, third) == SharedOffer(2.0)
    assert core.sharing_offered(1_000, Job(job_id=3, width=1, estimate_ms=60_000, resources=large)) is None
    core.handle(1_000, JobSubmitted(third))
    discipline = core._discipline
    assert isinstance(discipline, Fractional)
    assert discipline.progress(3_000, 1) == (0.5, 1_000 + 1_000)


def test_an_algorithm_with_periods_alone_offers_the_start_at_the_end_of_the_period() -> None:
    """The offer counts the wait until then: the job ends when the slowdown says."""
    core = SiteCore(1, FractionalPolicy(algorithm="/per/OPT=MIN", period_ms=10_000, penalty_ms=0))
    job = Job(job_id=2, width=1, estimate_ms=60_000, resources=Resources(cpu_need=1.0, memory=0.4))
    assert core.sharing_offered(4_000, job) == SharedOffer(1.1, (), 10_000), "also at a site without jobs"
    core.handle(1_000, JobSubmitted(Job(job_id=1, width=1, estimate_ms=900_000, resources=job.resources)))
    core.handle(10_000)
    assert core.sharing_offered(14_000, job) == SharedOffer(2.1, (), 20_000)
    assert core.startable(14_000, 1_000) == 0
    quote, _ = core.quote(14_000, job)
    text = "or it could start in 6 s on nodes shared with other jobs, and end after 2.10 times its length from now"
    assert text in quote.offer
    assert core.handle(14_000, JobSubmitted(job)) == []
    assert StartJob(2, ((0, 1),)) in core.handle(20_000)


def test_a_question_leaves_no_trace() -> None:
    """Whoever asks at which slowdown a job could run has nobody moved, and no rate told."""
    core = SiteCore(1, FractionalPolicy(algorithm="GreedyP*/OPT=MIN"))
    large = Resources(cpu_need=1.0, memory=0.6)
    core.handle(0, JobSubmitted(Job(job_id=1, width=1, estimate_ms=600_000, resources=large)))
    core.handle(10_000)
    before = dump_state(core)
    assert core.sharing_offered(20_000, Job(job_id=9, width=1, estimate_ms=600_000, resources=large)) == SharedOffer(
        1.0
    )
    assert dump_state(core) == before
    assert core.handle(30_000) == []


def test_a_job_is_moved_at_the_instant_of_its_start() -> None:
    """What is told later of one instant may move a job that has just started; whoever runs it is told."""
    core = SiteCore(2, FractionalPolicy(algorithm="MCB8*/OPT=MIN"))
    small, large = Resources(cpu_need=0.5, memory=0.3), Resources(cpu_need=1.0, memory=0.9)
    one, other = (Job(job_id=k, width=1, estimate_ms=9_000, resources=r) for k, r in ((1, small), (2, large)))
    assert core.handle(0, JobSubmitted(one)) == [StartJob(1, ((0, 1),))]
    assert core.handle(0, JobSubmitted(other)) == [StartJob(2, ((0, 1),)), MoveJob(1, ((1, 2),), ()), ChangeRate(1, 0)]
    core.check_invariants()


def test_rates_are_told_of_both_passes_of_an_instant() -> None:
    """There is a second pass where a job was to start at once, and could not."""
    core = SiteCore(1, FractionalPolicy(algorithm="Greedy*/OPT=MIN"))
    small, large = Resources(cpu_need=1.0, memory=0.3), Resources(cpu_need=1.0, memory=0.9)
    jobs = [Job(job_id=k, width=1, estimate_ms=9_000, resources=r) for k, r in ((1, small), (2, small), (3, large))]
    core.handle(0, JobSubmitted(jobs[0]))
    commands = core.handle(1_000, JobSubmitted(jobs[1]), JobSubmitted(jobs[2], now_or_never=True))
    assert commands[0] == StartJob(2, ((0, 1),))
    assert isinstance(commands[1], RefuseJob)
    assert commands[2:] == [ChangeRate(1, RATE_ONE // 2), ChangeRate(2, RATE_ONE // 2)]


def test_a_site_goes_on_where_it_stood() -> None:
    """What another takes in of a site's state decides as that one does."""
    rng = np.random.default_rng(12)
    policy = FractionalPolicy(algorithm="MCB8*/per/OPT=MIN")
    one = SiteCore(3, policy)
    for job_id in range(80):
        width = int(rng.integers(1, 4))
        needs = needs_of_groups([random_group(rng, 1), *([random_group(rng, width - 1)] if width > 1 else [])])
        job = Job(job_id=job_id, width=width, estimate_ms=600_000, resources=needs)
        one.handle(1_000 * job_id, JobSubmitted(job))
    other = SiteCore(3, policy)
    other.restore(copy.deepcopy(one.state()))  # a state may share parts with its core
    other.check_invariants()
    for now_ms in (300_000, 600_000, 1_200_000):
        assert one.handle(now_ms) == other.handle(now_ms)

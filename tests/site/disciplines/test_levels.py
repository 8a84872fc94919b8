"""Levels of priority in queues and plans: who goes first, who is evicted, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import NEVER
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.dictionary import read_policy
from gridweave.site.disciplines.levels.entry import LevelsTable
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.job import Job
from gridweave.site.messages import EvictJob, JobFinished, JobSubmitted, RefuseJob, StartJob
from gridweave.site.policy import SitePolicy
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.state import dump_state, read_state
from reference import levels as reference
from reference import model
from reference.simulation import simulate as simulate_reference

THREE = (
    Level(name="high", priority=2, evicts=("low",)),
    Level(name="medium", priority=1),
    Level(name="low", priority=0),
)
CHAIN = (
    Level(name="high", priority=2, evicts=("medium", "low")),
    Level(name="medium", priority=1, evicts=("low",)),
    Level(name="low", priority=0),
)
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"priority": 10},
    {"users": (1,)},
    {"users": (1, 2)},
    {"users": ()},
    {"evicts": ("low",)},
    {"evicts": ("low",), "users": (1,)},
)
NODES = 8


def queue_of(levels: tuple[Level, ...] = THREE, **options: Any) -> LevelsPolicy:
    """Return the policy of a queue with levels."""
    of_levels = {name: options.pop(name) for name in ("evicted", "raise_after", "least_gain_ms") if name in options}
    return LevelsPolicy(under=SitePolicy(**options), levels=levels, **of_levels)


def random_workload(seed: int, jobs: int = 60) -> Workload:
    """Return jobs of three priorities on a machine that is nearly always full, some of them cancelled."""
    rng = np.random.default_rng(seed)
    run_ms = rng.integers(1, 60, jobs)
    submit_ms = np.sort(rng.integers(0, 12 * jobs, jobs))
    cancel_ms = np.where(rng.random(jobs) < 0.1, submit_ms + rng.integers(1, 80, jobs), -1)
    return Workload(
        job_id=np.arange(jobs),
        submit_ms=submit_ms,
        width=rng.integers(1, NODES + 1, jobs),
        estimate_ms=run_ms + rng.integers(0, 30, jobs),
        run_ms=run_ms,
        columns={"priority": rng.choice([0, 0, 0, 1, 2], jobs), "cancel_ms": cancel_ms},
    )


def slowly(policy: LevelsPolicy, workload: Workload) -> model.Outcome:
    """Return what the reference makes of a workload."""
    names = [level.name for level in policy.levels]
    evicts = {(a, names.index(b)) for a, level in enumerate(policy.levels) for b in level.evicts}
    columns = (workload.job_id, workload.submit_ms, workload.width, workload.estimate_ms, workload.run_ms)
    jobs = [
        model.Job(*numbers, priority=priority)
        for *numbers, priority in zip(
            *(column.tolist() for column in columns), workload.columns["priority"].tolist(), strict=True
        )
    ]
    # What runs is not cancelled in a simulation.
    cancelled = zip(workload.columns["cancel_ms"].tolist(), workload.job_id.tolist(), strict=True)
    return simulate_reference(
        jobs,
        NODES,
        discipline=policy.under.discipline,
        order=policy.under.order,
        backfill=policy.under.backfill,
        choice=policy.under.choice,
        slack=policy.under.slack,
        cancellations=[(at_ms, job_id) for at_ms, job_id in cancelled if at_ms >= 0],
        cancels_running=False,
        levels=reference.Levels(
            [level.priority for level in policy.levels],
            evicts,
            policy.evicted == "checkpoint",
            policy.raise_after,
            policy.least_gain_ms,
        ),
    )


DRIVERS = ("batch", "core")

POLICIES = [
    queue_of(),
    queue_of(backfill="none", evicted="checkpoint"),
    queue_of(CHAIN, order="sjf", raise_after=2),
    queue_of(CHAIN, order="saf", evicted="checkpoint", raise_after=1),
    queue_of(CHAIN, choice="best-fit", backfill="slack", slack=1.0, least_gain_ms=25),
    queue_of(CHAIN, discipline="planning", order="ljf", raise_after=3),
    queue_of(discipline="planning", backfill="none", evicted="checkpoint", least_gain_ms=10),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.label)
def test_the_schedule_is_that_of_the_slow_reference(policy: LevelsPolicy) -> None:
    """The compiled loop and the stepped core give its schedule, with evictions and cancellations."""
    evictions = 0
    for seed in range(8):
        workload = random_workload(seed)
        expected = slowly(policy, workload)
        results = [simulate(workload, NODES, policy, driver=driver, check=driver == "core") for driver in DRIVERS]
        times = [[outcome.get(job_id, NEVER) for job_id in workload.job_id.tolist()] for outcome in ends_of(expected)]
        counts = np.bincount([job_id for _, job_id, _ in expected.evictions], minlength=len(workload))[workload.job_id]
        ran = results[0].start_ms != NEVER
        for result in results:
            assert [result.start_ms.tolist(), result.end_ms.tolist()] == times
            assert result.columns["evictions"][ran].tolist() == counts[ran].tolist()
        evictions += len(expected.evictions)
    assert evictions > 20, "the workloads show nothing"


def ends_of(outcome: model.Outcome) -> tuple[dict[int, int], dict[int, int]]:
    """Return the starts and the ends of the reference."""
    return outcome.start, outcome.end


@pytest.mark.parametrize("discipline", ["queue", "planning"])
def test_without_levels_the_schedule_is_that_of_the_queue(discipline: str) -> None:
    """One level for all changes nothing."""
    workload = random_workload(3)
    policy = SitePolicy(discipline=discipline, order="sjf")
    result = simulate(workload, NODES, LevelsPolicy(under=policy, levels=(Level(name="all", priority=0),)))
    assert result.start_ms.tolist() == simulate(workload, NODES, policy).start_ms.tolist()


def test_the_work_of_an_evicted_job_is_accounted() -> None:
    """A job works its run time once; what was worked in vain is counted, and nothing where work is kept."""
    workload = random_workload(5)
    for policy in (queue_of(CHAIN), queue_of(CHAIN, evicted="checkpoint")):
        result = simulate(workload, NODES, policy)
        ran = result.start_ms != NEVER
        last_ms = (result.end_ms - result.start_ms)[ran]
        evicted = result.columns["evictions"][ran] > 0
        assert evicted.any()
        keeps = policy.evicted == "checkpoint"
        assert (last_ms[~evicted] == workload.run_ms[ran][~evicted]).all()
        assert (last_ms[evicted] < workload.run_ms[ran][evicted]).any() == keeps
        assert (result.own_metrics["lost_node_ms"] == 0) == keeps


def job(number: int, width: int, length_ms: int, priority: float = 0.0, **more: Any) -> Job:
    """Return a job."""
    return Job(job_id=number, width=width, estimate_ms=length_ms, priority=priority, **more)


def test_only_who_is_needed_is_evicted_and_says_by_whom() -> None:
    """The job that started last goes, unless the others suffice; it waits in its old place, and explains itself."""
    core = SiteCore(8, queue_of())
    core.handle(0, JobSubmitted(job(1, 4, 100)))
    core.handle(1, JobSubmitted(job(2, 1, 100)))
    core.handle(2, JobSubmitted(job(3, 3, 100)), JobSubmitted(job(4, 8, 50)))
    commands = core.handle(10, JobSubmitted(job(5, 3, 10, priority=2)))
    why = "job 5 of level 'high' takes nodes of level 'low'"
    assert commands == [EvictJob(3, False, 5, why), StartJob(5, ((5, 8),))]
    told = core.explain(10, 3).reason
    assert "its level is 'low', and it was evicted once, last for job 5, of a level that may take its nodes" in told
    assert [waiting.job_id for waiting, _ in core.waiting()] == [3, 4]
    assert core.handle(20, JobFinished(5)) == [StartJob(3, ((5, 8),))]
    # 3 nodes of job 3, which started last, and the one of job 2: job 1 has 4, and is not needed.
    evicted = [each for each in core.handle(30, JobSubmitted(job(6, 4, 10, priority=2))) if isinstance(each, EvictJob)]
    assert [(each.job_id, each.by) for each in evicted] == [(3, 6), (2, 6)]
    core.check_invariants()


def test_a_job_says_what_becomes_of_it() -> None:
    """One that is never evicted keeps its nodes, though it started last; another keeps its work."""
    core = SiteCore(8, queue_of())
    core.handle(0, JobSubmitted(job(1, 4, 100, if_evicted="checkpoint")))
    core.handle(1, JobSubmitted(job(2, 4, 100, if_evicted="never")))
    evicted, _ = core.handle(30, JobSubmitted(job(3, 2, 10, priority=2)))
    assert isinstance(evicted, EvictJob)
    assert (evicted.job_id, evicted.keeps_work) == (1, True)
    core.handle(40, JobFinished(3))
    assert [each.end_by_estimate_ms for each in core.running()] == [101, 110]


def test_a_site_goes_on_from_its_state() -> None:
    """A fresh core that takes in the state of another, with evicted jobs, does what that does."""
    policy = queue_of(CHAIN, evicted="checkpoint", raise_after=2)
    core, now_ms = SiteCore(NODES, policy), 0
    rng = np.random.default_rng(11)
    for number in range(120):  # more than there is room for at first
        now_ms += int(rng.integers(1, 20))
        core.handle(now_ms, JobSubmitted(job(number, int(rng.integers(1, 9)), 400, priority=int(rng.integers(3)))))
    twin = SiteCore(NODES, policy)
    twin.restore(read_state(twin, dump_state(core)))
    for number in range(120, 140):
        now_ms += 15
        events = [JobSubmitted(job(number, 3, 90, priority=number % 3))]
        assert core.handle(now_ms, *events) == twin.handle(now_ms, *events)
        core.check_invariants()
    assert list(core.waiting()) == list(twin.waiting())
    assert list(core.running()) == list(twin.running())


def test_a_job_of_a_level_that_its_user_may_not_use_is_refused() -> None:
    """In both drivers, with the reason."""
    policy = queue_of((msgspec.structs.replace(THREE[0], users=(7,)), *THREE[1:]))
    core = SiteCore(NODES, policy)
    (command,) = core.handle(0, JobSubmitted(job(1, 1, 10, priority=3, user=8)))
    why = "priority 3 belongs to level 'high', which is for users 7; its user is 8"
    assert command == RefuseJob(1, why, is_final=True)
    workload = Workload(
        job_id=[1, 2], submit_ms=[0, 0], width=[1, 1], estimate_ms=[5, 5], run_ms=[5, 5],
        columns={"priority": [3, 3], "user": [8, 7]},
    )  # fmt: skip
    for driver in DRIVERS:
        assert simulate(workload, NODES, policy, driver=driver).refused == ((1, why),)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"levels": ()}, "levels is empty; expected at least one level"),
        ({"levels": (THREE[0],)}, "level 'high' evicts 'low', which is not a level; one of high"),
        (
            {"levels": (THREE[0], Level(name="low", priority=0, evicts=("high",)))},
            "'low' evicts 'high', which is not below it: evictions would go in a circle; name levels below it",
        ),
        ({"backfill": "conservative"}, "conservative backfilling promises starts, which evictions would break"),
        (
            {"raise_after": 0, "least_gain_ms": -1},
            "raise_after is 0; expected at least 1 eviction; least_gain_ms is -1; expected at ",
        ),
        (
            {"raise_after": 10**30, "least_gain_ms": 10**30},
            f"raise_after is {10**30}; expected at most 1,000,000,000; least_gain_ms is {10**30}; expected at most 10",
        ),
        ({"evicted": "freeze"}, "evicted 'freeze' is not known; one of restart, checkpoint"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], problem: str) -> None:
    """All at once, each with what would be right."""
    with pytest.raises(OptionError) as caught:
        queue_of(options.pop("levels", THREE), **options)
    assert problem in str(caught.value)


def test_the_dictionary_reads_levels() -> None:
    """Order and backfilling are those of the site; the table says the rest."""
    table = LevelsTable(under="planning", levels=THREE)
    policy = read_policy("levels", 8, {"levels": table, "order": "sjf"}, {"order": "fcfs", "backfill": "none"})
    levels = "3 levels [high from 2 evicts=low; medium from 1; low]"
    assert policy.label == f"planning sjf none {levels} evicting (restart)"
    with pytest.raises(OptionError, match="under 'gang' is not known; one of queue, planning"):
        read_policy("levels", 8, {"levels": LevelsTable(under="gang", levels=THREE)}, {})


def test_policies_that_schedule_differently_have_different_labels() -> None:
    low, plain = Level(name="low", priority=0), Level(name="high", priority=1)
    levels = [
        *((msgspec.structs.replace(plain, **changed), low) for changed in CHANGES),
        (plain, msgspec.structs.replace(low, users=(3,))),
        (plain, low, Level(name="lowest", priority=-1)),
        THREE,
        CHAIN,
    ]
    policies = [LevelsPolicy(levels=each) for each in levels]
    policies += [LevelsPolicy(levels=CHAIN, least_gain_ms=gain_ms) for gain_ms in (1_234_567_001, 1_234_567_002)]
    policies += [LevelsPolicy(levels=CHAIN, evicted="checkpoint"), LevelsPolicy(levels=CHAIN, raise_after=1)]
    assert len({policy.label for policy in policies}) == len(policies)


@pytest.mark.parametrize(
    ("levels", "label"),
    [(CHAIN, "fcfs easy 3 levels evicting (restart)"), (CHAIN[-1:], "fcfs easy 1 level")],
)
def test_levels_that_need_no_words_are_only_counted(levels: tuple[Level, ...], label: str) -> None:
    assert LevelsPolicy(levels=levels).label == label


def test_a_quote_reckons_with_levels_and_evictions() -> None:
    """On a full site a high job is quoted the nodes of the low one at once, and a medium one stands before the low."""
    core = SiteCore(NODES, queue_of())
    for job_id in (1, 2):
        core.handle(0, JobSubmitted(Job(job_id=job_id, width=NODES, estimate_ms=500)))
    quotes = {}
    for priority in (2, 1, 0):
        said, run = core.quote(100, Job(job_id=9, width=4, estimate_ms=50, priority=priority))
        assert run is not None
        quotes[priority] = run.start_ms, said.start_ms, said.ahead, run.evicts
    assert quotes == {2: (100, 100, 0, True), 1: (500, 500, 0, False), 0: (1000, 1000, 1, False)}
    said, _ = core.quote(100, Job(job_id=9, width=4, estimate_ms=50, priority=2))
    assert said.reason == "0 of 8 nodes are free, and it could start at once, on nodes of jobs that it may evict"
    said, _ = core.quote(100, Job(job_id=9, width=4, estimate_ms=50, priority=1))
    assert said.reason == "it needs 4 nodes, 0 of 8 nodes are free, and no job waits before it"
    assert core.expected_run(100, Job(job_id=9, width=NODES + 1, estimate_ms=50)) is None


@pytest.mark.parametrize("levels", [THREE, CHAIN])
@pytest.mark.parametrize("discipline", ["queue", "planning"])
def test_what_is_expected_of_a_job_comes_true_at_once(discipline: str, levels: tuple[Level, ...]) -> None:
    """A job is expected now if it starts when it is submitted, else as the plan then says; asking changes nothing."""
    policy = queue_of(levels, discipline=discipline, order="sjf", raise_after=2)
    rng, core, at_once = np.random.default_rng(1), SiteCore(NODES, policy), []
    ends: dict[int, int] = {}
    for job_id in range(1, 200):
        now_ms = job_id * 20
        while ends and min(ends.values()) <= now_ms:
            end_ms, one = min((end_ms, one) for one, end_ms in ends.items())
            del ends[one]
            for command in core.handle(end_ms, JobFinished(one)):
                _follow(command, ends, end_ms, core)
        width, estimate_ms, priority = (int(rng.integers(*span)) for span in ((1, NODES + 1), (5, 60), (0, 3)))
        job = Job(job_id=job_id, width=width, estimate_ms=estimate_ms, priority=priority)
        before = dump_state(core)
        run = core.expected_run(now_ms, job)
        assert dump_state(core) == before
        commands = core.handle(now_ms, JobSubmitted(job))
        core.check_invariants()
        for command in commands:
            _follow(command, ends, now_ms, core)
        starts = any(isinstance(command, StartJob) and command.job_id == job_id for command in commands)
        assert run is not None
        assert (run.start_ms == now_ms) == starts
        at_once.append(starts)
        if discipline == "planning" and not starts:
            assert {one.job_id: start_ms for one, start_ms in core.waiting()}[job_id] == run.start_ms
    assert 20 < sum(at_once) < 180


def _follow(command: Any, ends: dict[int, int], now_ms: int, core: SiteCore) -> None:
    """Take note of when a job ends that starts, by its estimate, and of one that is evicted."""
    if isinstance(command, StartJob):
        ends[command.job_id] = now_ms + core.limit_left_ms(now_ms, command.job_id)
    elif isinstance(command, EvictJob):
        del ends[command.job_id]

"""Sites of machines that differ: forms, levels of priority, evictions, and what a site learns of its runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gridweave.cli.options import own_options
from gridweave.errors import OptionError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.table import Workload
from gridweave.settings import settings_changes
from gridweave.site.disciplines.dictionary import entry_named, read_policy
from gridweave.site.disciplines.heterogeneous.discipline import Heterogeneous, IntArray, LevelJobs
from gridweave.site.disciplines.heterogeneous.entry import HeterogeneousTable
from gridweave.site.disciplines.heterogeneous.experience import ExperienceDatabase
from gridweave.site.disciplines.heterogeneous.machines import Cluster, Form
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.job import Job
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.known_times import EXPERIENCE, KnownTimes, read_times
from gridweave.site.messages import (
    ChangeRate,
    CommitNodes,
    DisciplineEdited,
    EvictJob,
    FragmentsMet,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    RefuseJob,
    ReserveNodes,
    SiteRestarted,
    StartJob,
)
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.scheduler.contract import ContractCore
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.state import dump_state, read_state

S_MS = 1000

LEVELS = (
    Level(name="high", priority=2, evicts=("low",)),
    Level(name="medium", priority=1),
    Level(name="low", priority=0),
)

FAST_AND_SLOW = HeterogeneousPolicy(
    nodes=6,
    classes=(
        NodeKind(name="fast", count=4, speed=2.0, labels=("big",)),
        NodeKind(name="slow", count=2, speed=0.5),
    ),
    clusters=(Cluster(name="four", nodes="0-3"), Cluster(name="two", nodes="4-5")),
    forms=(Form(), Form(job_class=1), Form(job_class=1, width=4, speed=3.0), Form(job_class=2, on=("slow",))),
    levels=LEVELS,
)

ONE_MACHINE = HeterogeneousPolicy(nodes=1, classes=(NodeKind(name="only", count=1),), levels=LEVELS)


def test_policies_that_schedule_differently_have_different_labels() -> None:
    levels = (Level(name="high", priority=1, evicts=("low",)), Level(name="low", priority=0))
    changes: list[dict[str, Any]] = [
        {},
        {"profit": "length"},
        {"algorithm": "gsa"},
        {"algorithm": "gsa", "profit": "length"},
        {"algorithm": "gsa", "seed": 2},
        {"predict": "estimate"},
        {"deviations": 1.0},
        {"deviations": 1.0000001},
        {"levels": (Level(name="all", priority=0, users=(1,)),)},
        {"levels": levels},
        {"levels": levels, "evicted": "pause"},
        {"levels": levels, "raise_after": 3},
        {"levels": levels, "least_gain_ms": 60_000},
        {"levels": (msgspec.structs.replace(levels[0], priority=2), levels[1])},
    ]
    classes = (NodeKind(name="old", count=2),)
    labels = [HeterogeneousPolicy(nodes=2, classes=classes, **changed).label for changed in changes]
    assert labels[0] == "heterogeneous pjs"
    assert labels[9] == "heterogeneous pjs 2 levels evicting (restart)"
    assert len(set(labels)) == len(labels)


def changed(policy: HeterogeneousPolicy, **options: Any) -> HeterogeneousPolicy:
    """Return a policy with other options."""
    return msgspec.structs.replace(policy, **options)


def job(number: int, length_s: int, priority: float = 0.0, **more: Any) -> Job:
    """Return a job of one node."""
    return Job(job_id=number, width=1, estimate_ms=length_s * S_MS, priority=priority, **more)


def random_workload(seed: int, jobs: int = 60, every_ms: int = 4_000) -> Workload:
    """Return jobs of three classes and three priorities that leave machines idle at times."""
    rng = np.random.default_rng(seed)
    run_ms = rng.integers(1, 40, jobs) * S_MS
    return Workload(
        job_id=np.arange(jobs),
        submit_ms=np.sort(rng.integers(0, jobs * every_ms, jobs)),
        width=np.ones(jobs),
        estimate_ms=run_ms + rng.integers(0, 3, jobs) * 5 * S_MS,
        run_ms=run_ms,
        columns={"priority": rng.integers(0, 3, jobs), "job_class": rng.integers(0, 3, jobs), "user": run_ms % 3},
    )


def played(policy: HeterogeneousPolicy, workload: Workload) -> SimulationResult:
    """Return a simulation in which the invariants of the site are checked after every step."""
    return simulate(workload, policy.nodes, policy, check=True)


def test_a_job_runs_in_the_form_that_ends_first() -> None:
    """An idle cluster takes a job of class 1 at 6 times its speed, a form that names the slow machines keeps there."""
    core = SiteCore(6, FAST_AND_SLOW)
    commands = core.handle(0, JobSubmitted(job(1, 60, job_class=1)), JobSubmitted(job(2, 60, job_class=2)))
    starts = {command.job_id: command.nodes for command in commands if isinstance(command, StartJob)}
    rates = {command.job_id: command.rate for command in commands if isinstance(command, ChangeRate)}
    assert starts == {1: ((0, 1), (1, 2), (2, 3), (3, 4)), 2: ((4, 5),)}
    assert rates == {1: 6 * RATE_ONE, 2: RATE_ONE // 2}
    core.check_invariants()


def test_high_evicts_low_and_neither_evicts_medium() -> None:
    """The evicted job is in the queue again, in its old place, and starts when the machine is free (case study 4)."""
    core = SiteCore(1, ONE_MACHINE)
    core.handle(0, JobSubmitted(job(1, 100)))
    assert core.handle(10_000, JobSubmitted(job(2, 50, priority=1))) == []
    assert core.handle(20_000, JobSubmitted(job(3, 50, priority=2))) == [
        EvictJob(1, False, 3, "job 3 of level 'high' takes machines of level 'low'"),
        StartJob(3, ((0, 1),)),
    ]
    told = core.explain(25_000, 1)
    assert told.reason.endswith("; it was evicted 5 s ago: job 3 of level 'high' takes machines of level 'low'")
    assert told.start_ms == 120_000  # behind job 3 and the medium job 2
    assert core.handle(70_000, JobFinished(3)) == [StartJob(2, ((0, 1),))]
    assert core.handle(80_000, JobSubmitted(job(4, 10, priority=2))) == []
    assert core.handle(120_000, JobFinished(2)) == [StartJob(4, ((0, 1),))]
    assert core.handle(130_000, JobFinished(4)) == [StartJob(1, ((0, 1),))]
    core.check_invariants()


@pytest.mark.parametrize("algorithm", ["olb", "best-assignment", "sjs", "pjs", "gsa"])
def test_nobody_is_evicted_while_an_alike_machine_is_idle(algorithm: str) -> None:
    """The high job starts beside the low one, and its team is of the three machines that nobody has."""
    classes, forms = (NodeKind(name="all", count=4),), (Form(job_class=1, width=3), Form())
    clusters = (Cluster(name="whole", nodes="0-3"),)
    policy = changed(ONE_MACHINE, nodes=4, classes=classes, clusters=clusters, forms=forms, algorithm=algorithm)
    for kind, nodes in ((0, ((1, 2),)), (1, ((1, 2), (2, 3), (3, 4)))):
        core = SiteCore(4, policy)
        core.handle(0, JobSubmitted(job(1, 100)))
        assert core.handle(10, JobSubmitted(job(2, 50, 2, job_class=kind))) == [StartJob(2, nodes)]


def test_of_equally_good_places_the_one_that_evicts_nobody_is_taken() -> None:
    """Of two classes or clusters on which the high job ends as early it takes the one on which no low job is."""
    classes = (NodeKind(name="a", count=2), NodeKind(name="b", count=2))
    clusters = (Cluster(name="one", nodes="0-1"), Cluster(name="two", nodes="2-3"))
    forms = (Form(job_class=1, width=2), Form())
    policy = changed(ONE_MACHINE, nodes=4, classes=classes, clusters=clusters, forms=forms)
    for kind, nodes in ((0, ((2, 3),)), (1, ((2, 3), (3, 4)))):
        core = SiteCore(4, policy)
        core.handle(0, JobSubmitted(job(1, 100)), JobSubmitted(job(2, 100)))
        assert core.handle(10, JobSubmitted(job(3, 50, 2, job_class=kind))) == [StartJob(3, nodes)]


def test_an_evicted_job_begins_again_or_goes_on() -> None:
    """After 20 s of 100 the job needs 100 s more if it begins again, and 80 s if it keeps what it has done."""
    jobs = Workload(
        job_id=[1, 2],
        submit_ms=[0, 20 * S_MS],
        width=[1, 1],
        estimate_ms=[100 * S_MS, 50 * S_MS],
        run_ms=[100 * S_MS, 50 * S_MS],
        columns={"priority": [0, 2]},
    )
    ends = {way: played(changed(ONE_MACHINE, evicted=way), jobs).end_ms.tolist() for way in ("restart", "checkpoint")}
    assert ends == {"restart": [170 * S_MS, 70 * S_MS], "checkpoint": [150 * S_MS, 70 * S_MS]}


def test_nobody_is_evicted_for_less_than_the_least_gain() -> None:
    """What the high job would gain is 80 s: the threshold decides."""
    for least_ms, evicts in ((80 * S_MS, True), (80 * S_MS + 1, False)):
        core = SiteCore(1, changed(ONE_MACHINE, least_gain_ms=least_ms))
        core.handle(0, JobSubmitted(job(1, 100)))
        commands = core.handle(20 * S_MS, JobSubmitted(job(2, 50, priority=2)))
        assert any(isinstance(command, EvictJob) for command in commands) == evicts


def test_a_job_that_was_evicted_often_enough_is_of_the_next_level() -> None:
    """After two evictions a low job is a medium one, which is not evicted."""
    core = SiteCore(1, changed(ONE_MACHINE, raise_after=2))
    core.handle(0, JobSubmitted(job(1, 100)))
    for number in (2, 3, 4):
        now_ms = number * 100 * S_MS
        commands = core.handle(now_ms, JobSubmitted(job(number, 10, priority=2)))
        assert [each.by for each in commands if isinstance(each, EvictJob)] == ([number] if number < 4 else [])
        core.handle(now_ms + 10 * S_MS, JobFinished(number if number < 4 else 1))


def test_a_job_that_is_raised_to_a_level_that_was_mapped_starts_in_the_same_pass() -> None:
    """The high job runs on one machine only; whom it evicts there is a high one then, and the other is idle."""
    classes = (NodeKind(name="one", count=1), NodeKind(name="other", count=1))
    options = {"levels": (LEVELS[0], LEVELS[2]), "forms": (Form(), Form(job_class=1, on=("one",))), "raise_after": 1}
    core = SiteCore(2, HeterogeneousPolicy(nodes=2, classes=classes, **options))
    core.handle(0, JobSubmitted(job(1, 100)))
    evicted, *started = core.handle(10 * S_MS, JobSubmitted(job(2, 50, 2, job_class=1)))
    assert isinstance(evicted, EvictJob)
    assert started == [StartJob(2, ((0, 1),)), StartJob(1, ((1, 2),))]
    core.check_invariants()


@pytest.mark.parametrize("evicted", ["restart", "pause"])
def test_nobody_waits_while_a_machine_is_idle(evicted: str) -> None:
    """Where machines are alike, whomever evictions raise."""
    levels = tuple(Level(name=name, priority=3 - at, evicts=tuple("abcd"[at + 1 :])) for at, name in enumerate("abcd"))
    policy = changed(ONE_MACHINE, nodes=4, classes=(NodeKind(name="all", count=4),), levels=levels)
    evictions = 0
    for seed in range(5):
        rng = np.random.default_rng(seed)
        core = SiteCore(4, changed(policy, raise_after=1, evicted=evicted))
        for number in range(80):
            kinds = [
                Job(job_id=3 * number + at, width=1, estimate_ms=9 * S_MS, priority=p)
                for at, p in enumerate(rng.integers(0, 4, rng.integers(0, 4)).tolist())
            ]
            done = [one.job.job_id for one in core.running()][: int(rng.integers(0, 3))]
            commands = core.handle(number * S_MS, *map(JobFinished, done), *map(JobSubmitted, kinds))
            core.check_invariants()
            assert core.free == 0 or not list(core.waiting())
            evictions += sum(
                isinstance(each, EvictJob) or (isinstance(each, ChangeRate) and each.rate == 0) for each in commands
            )
    assert evictions > 20


@pytest.mark.parametrize(("speed", "evicted_ms", "left_ms"), [(1.0, 20, 80), (1.25, 10, 71)])
def test_a_job_that_kept_all_that_was_expected_of_it_is_expected_at_its_limit(
    speed: float, evicted_ms: int, left_ms: int
) -> None:
    """Of 12 ms it has done 20, or 12 to the last digit; those behind it wait for the rest of its 100 ms."""
    classes, known = (NodeKind(name="only", count=1, speed=speed),), (KnownTimes(job_class=1, runs=3, mean_ms=12),)
    core = SiteCore(1, changed(ONE_MACHINE, classes=classes, experience=known, evicted="checkpoint", algorithm="olb"))
    core.handle(0, JobSubmitted(Job(job_id=1, width=1, estimate_ms=100, job_class=1)))
    behind = Job(job_id=3, width=1, estimate_ms=10)
    above = Job(job_id=2, width=1, estimate_ms=50, priority=2)
    core.handle(evicted_ms, JobSubmitted(above), JobSubmitted(behind))
    starts_ms = [core.explain(evicted_ms, number).start_ms for number in (1, 3)]
    assert starts_ms == [evicted_ms + 50 / speed, evicted_ms + 50 / speed + left_ms]


@pytest.mark.parametrize("algorithm", ["olb", "pjs"])
@pytest.mark.parametrize("evicted", ["restart", "checkpoint"])
def test_every_job_runs_its_whole_work_once(algorithm: str, evicted: str) -> None:
    """Random jobs: each ends, after its work at one of the rates of its forms since its last start, or less if kept."""
    evictions = 0
    for seed, raise_after, least_gain_ms in ((1, None, 0), (2, 1, 0), (3, None, 10 * S_MS)):
        options = {"algorithm": algorithm, "evicted": evicted, "raise_after": raise_after}
        workload = random_workload(seed, every_ms=2_000)
        result = played(changed(FAST_AND_SLOW, least_gain_ms=least_gain_ms, **options), workload)
        own = result.columns
        for row in range(len(workload)):
            took_ms, run_ms = int(result.end_ms[row] - result.start_ms[row]), int(workload.run_ms[row])
            speed = 6.0 if own["team"][row] else None
            lengths = {-(-run_ms // rate) if rate >= 1 else run_ms * 2 for rate in ((speed,) if speed else (2, 0.5))}
            if own["evictions"][row] and evicted == "checkpoint":
                assert 0 < took_ms <= max(lengths)
            else:
                assert took_ms in lengths
        evictions += result.own_metrics["evictions"]
        assert own["evictions"].sum() == result.own_metrics["evictions"]
        assert (own["evictions"][workload.columns["priority"] > 0] == 0).all()
    assert evictions > 10


def test_what_machines_worked_in_vain_is_told() -> None:
    """Of each eviction the time since the start, on each machine of the job, unless it goes on from a checkpoint."""
    core, rng = SiteCore(6, FAST_AND_SLOW), np.random.default_rng(6)
    began: dict[int, tuple[int, int]] = {}
    lost_ms, evictions, teams, kept = 0, 0, 0, 0
    for number in range(200):
        now_ms, priority = number * 5 * S_MS, int(rng.integers(0, 3))
        length_s, if_evicted = int(rng.integers(20, 200)), ("", "checkpoint")[number % 4 == 0]
        comes = job(number, length_s, priority, job_class=(1, 2, 0)[priority], if_evicted=if_evicted)
        done = [job_id for job_id in sorted(began) if rng.random() < 0.3]
        for job_id in done:
            del began[job_id]
        for command in core.handle(now_ms, *map(JobFinished, done), JobSubmitted(comes)):
            if isinstance(command, EvictJob):
                start_ms, machines = began.pop(command.job_id)
                lost_ms += 0 if command.keeps_work else (now_ms - start_ms) * machines
                evictions, teams, kept = evictions + 1, teams + (machines > 1), kept + command.keeps_work
            elif isinstance(command, StartJob):
                began[command.job_id] = now_ms, sum(last - first for first, last in command.nodes)
    assert core.totals() == {"evictions": evictions, "lost_machine_ms": lost_ms}
    assert min(lost_ms, teams, kept) > 0


def test_high_priority_jobs_end_sooner() -> None:
    """The mean job time of the levels ascends, with evictions more than without."""
    plain = changed(FAST_AND_SLOW, levels=tuple(msgspec.structs.replace(level, evicts=()) for level in LEVELS))
    workload = random_workload(4, jobs=60, every_ms=2_500)
    times = {
        policy.label: [played(policy, workload).own_metrics[f"job_time_level_{n}_ms"] for n in (1, 2, 3)]
        for policy in (plain, FAST_AND_SLOW)
    }
    for levels in times.values():
        assert levels == sorted(levels)
    assert times[FAST_AND_SLOW.label][0] < times[plain.label][0]


def test_incomplete_clusters_go_by_their_policy() -> None:
    """With a machine out of service a cluster takes whole-cluster jobs if its minimum says so, that much slower."""
    whole = (Form(width="all", speed=3.0), Form())
    for minimum, machines, rate in ((None, 1, 2.0), (3, 3, 4.5)):
        clusters = (Cluster(name="four", nodes="0-3", minimum=minimum), FAST_AND_SLOW.clusters[1])
        core = SiteCore(6, changed(FAST_AND_SLOW, clusters=clusters, forms=whole, out_of_service="2"))
        start, change = core.handle(0, JobSubmitted(job(1, 60)))
        assert isinstance(start, StartJob)
        assert isinstance(change, ChangeRate)
        assert (len(start.nodes), change.rate) == (machines, rate * RATE_ONE)
        assert (2, 3) not in start.nodes


def test_a_site_goes_on_from_its_state() -> None:
    """A site restored in the middle of a run commands the same from then on, and has the same experience."""
    one = SiteCore(6, FAST_AND_SLOW)
    rng = np.random.default_rng(3)
    for number in range(30):
        one.handle(number * S_MS, JobSubmitted(job(number, int(rng.integers(5, 90)), number % 3, job_class=number % 3)))
        if number % 4 == 3:
            one.handle(number * S_MS, JobFinished(next(one.running()).job.job_id))
    other = SiteCore(6, FAST_AND_SLOW)
    other.restore(read_state(other, dump_state(one)))
    for now_ms in range(40 * S_MS, 400 * S_MS, 20 * S_MS):
        done = [running.job.job_id for running in one.running()][:2]
        assert one.handle(now_ms, *map(JobFinished, done)) == other.handle(now_ms, *map(JobFinished, done))
    assert dump_state(one) == dump_state(other)


@pytest.mark.parametrize("algorithm", ["olb", "pjs"])
def test_a_job_that_is_asked_for_stands_behind_those_of_the_same_instant(algorithm: str) -> None:
    """It is quoted the start that it then gets."""
    core = SiteCore(1, changed(ONE_MACHINE, algorithm=algorithm))
    core.handle(0, JobSubmitted(job(1, 100)), JobSubmitted(job(2, 50)))
    asked = job(3, 50)
    run, start_ms = core.expected_run(0, asked), core.earliest_start_ms(0, 1, 50 * S_MS)
    assert run is not None
    core.handle(0, JobSubmitted(asked))
    assert run.start_ms == start_ms == core.explain(0, 3).start_ms
    assert start_ms == (150 if algorithm == "olb" else 50) * S_MS


@pytest.mark.parametrize("evicted", ["restart", "pause"])
@pytest.mark.parametrize(("fast", "out", "low", "evicts"), [(2, "", 2, True), (2, "", 1, False), (1, "1", 1, True)])
def test_a_quote_says_whether_others_are_evicted(evicted: str, fast: int, out: str, low: int, evicts: bool) -> None:
    """Whatever else is free: machines on which the job does not run, or that are out of service."""
    classes = (NodeKind(name="fast", count=fast), NodeKind(name="slow", count=2))
    forms = (Form(job_class=1, on=("fast",)),)
    options = {"classes": classes, "forms": forms, "evicted": evicted, "out_of_service": out}
    core = SiteCore(fast + 2, changed(ONE_MACHINE, nodes=fast + 2, **options))
    core.handle(0, *(JobSubmitted(job(number, 100, job_class=1)) for number in range(low)))
    said, run = core.quote(10, job(9, 50, 2, job_class=1))
    assert run is not None
    assert (run.start_ms, run.evicts) == (10, evicts)
    assert ("on nodes of jobs that it may evict" in said.reason) == evicts


def test_a_site_whose_lowest_level_is_for_some_says_what_is_free() -> None:
    """Who asks when nodes are free is nobody in particular: it is told what those get who may use the level."""
    low = msgspec.structs.replace(LEVELS[2], users=(7,))
    core = SiteCore(6, changed(FAST_AND_SLOW, levels=(*LEVELS[:2], low)))
    core.handle(0, [])
    assert (core.startable(0, 1000), core.earliest_start_ms(0, 1, 1000)) == (6, 0)


def test_experience_is_mean_and_variance_of_the_runs() -> None:
    """Of a pair of class and resource; then of the class by work, then of the user, then the estimate."""
    known, times = ExperienceDatabase(), np.random.default_rng(2).integers(100, 900, 50)
    for number, time_ms in enumerate(times.tolist()):
        known.learn(job(number, 1, job_class=5, user=1), "fast", 2 * RATE_ONE, time_ms)
    places = [("fast", 2 * RATE_ONE), ("slow", RATE_ONE // 2), ("slow", 100 * RATE_ONE)]
    found, by_class, shortest = known.predictions(job(0, 10, job_class=5, user=2), places)
    assert (found.runs, found.source) == (50, "resource")
    assert found.mean_ms == pytest.approx(times.mean())
    assert found.deviation_ms == pytest.approx(times.std(ddof=1))
    assert (by_class.source, by_class.mean_ms) == ("class", pytest.approx(4 * times.mean()))
    assert shortest.mean_ms == pytest.approx(times.mean() / 50)
    (by_user,) = known.predictions(job(0, 10, job_class=6, user=1), [("slow", RATE_ONE)])
    assert (by_user.source, by_user.mean_ms) == ("user", pytest.approx(2 * times.mean()))
    unknown, short = job(0, 10, job_class=6, user=9), job(0, 1, job_class=5)
    assert list(known.predictions(unknown, places[1:2])) == [(20_000, 0.0, 0, "estimate")]
    (limited,) = known.predictions(short, [("slow", 100 * RATE_ONE)])
    assert limited.mean_ms == 10  # no longer than it may run


def test_a_site_learns_from_every_run() -> None:
    """After a run that was far shorter than its estimate, the next job of the class is expected to be as short."""
    core = SiteCore(1, changed(ONE_MACHINE, levels=LEVELS[2:]))
    core.handle(0, JobSubmitted(job(1, 1000, job_class=1)))
    core.handle(10 * S_MS, JobFinished(1), JobSubmitted(job(2, 1000, job_class=1)), JobSubmitted(job(3, 1000)))
    assert core.explain(10 * S_MS, 3).start_ms == 20 * S_MS


def test_a_site_learns_nothing_from_runs_that_did_not_end_well() -> None:
    """What was cancelled, even if it ends well then, what failed, and what ran to its limit teaches nothing."""
    core = SiteCore(1, ONE_MACHINE)
    for number in range(4):
        core.handle(1_000 * number, JobSubmitted(job(number, 1, job_class=1)))
        core.handle(1_000 * number + 10, *([JobCancelled(number)] if number == 0 else []))
        end_ms = 1_000 * (number + 1) if number == 2 else 1_000 * number + 50
        core.handle(end_ms, JobFinished(number, succeeded=number != 1))
    assert [(one.resource, one.runs, one.mean_ms) for one in read_times(core.answer(EXPERIENCE))] == [
        ("", 1, 50),
        ("only", 1, 50),
    ]


def test_a_site_that_was_lost_or_kept_nodes_for_a_lease_has_learned_nothing() -> None:
    """Runs that a restart of the site has ended teach nothing, nor do reservations that nobody came to use."""
    core = ContractCore(2, changed(ONE_MACHINE, nodes=2, classes=(NodeKind(name="only", count=2),)))
    core.handle(0, JobSubmitted(job(1, 60, job_class=1)))
    asked = job(2, 60, job_class=1)
    core.handle(0, ReserveNodes(2, 1, 1, start_ms=20_000, length_ms=60_000, job=asked))
    core.handle(20_001)
    assert core.part_state(2) is None
    core.handle(30_000, SiteRestarted())
    assert core.site.answer(EXPERIENCE) == []


def test_a_part_of_a_job_on_several_sites_teaches_nothing() -> None:
    """It works at the rate of all its parts, and its nodes were reserved before it began."""
    core = ContractCore(1, changed(ONE_MACHINE, classes=(NodeKind(name="only", count=1, speed=2.0),)))
    asked = job(1, 60, job_class=1)
    core.handle(0, ReserveNodes(1, 1, 1, start_ms=20_000, length_ms=60_000, job=asked))
    core.handle(1, CommitNodes(1, 1))
    core.handle(20_000)
    core.handle(20_001, FragmentsMet(1, 1))
    core.handle(30_000, JobFinished(1))
    assert core.part_state(1) is None
    assert core.site.answer(EXPERIENCE) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"classes": ()}, "names no classes of machines; give at least one"),
        ({"clusters": (Cluster(name="c", nodes="4-9"),)}, "cluster 'c' names machine 6; the site has machines 0 to 5"),
        (
            {"clusters": (Cluster(name="c", nodes="2-9,0-99999999999999"),)},
            "names machine 6; the site has machines 0 to",
        ),
        ({"out_of_service": "7-99999999999999"}, "out_of_service names machine 7; the site has machines 0 to 5"),
        ({"classes": (NodeKind(name="", count=6),)}, "a class or a cluster has no name; give each a unique name"),
        ({"clusters": (Cluster(name="c", nodes="x"),)}, "cluster 'c': 'x' is neither a number nor a range such as 0-7"),
        (
            {"forms": (Form(job_class=3, on=("gpu",)),)},
            "form 1 .job class 3. runs on 'gpu', neither a class nor a label",
        ),
        ({"forms": (Form(width=5),)}, "form 1 runs on no cluster here: none has its width, cores and memory"),
        ({"forms": (Form(cores=64),)}, "form 1 runs on no machine here: none has its width, cores and memory"),
        ({"classes": (NodeKind(name="a", count=5),)}, "the classes have 5 machines and the site has 6 nodes"),
        (
            {"classes": (NodeKind(name="a", count=6, gpus=2, memory=0.5),)},
            "class 'a' has gpus, memory, which this discipline does not use; leave it out",
        ),
        (
            {"levels": (LEVELS[0], Level(name="low", priority=0, evicts=("high",)))},
            "'low' evicts 'high', which is not below it: evictions would go in a circle",
        ),
        (
            {"levels": (Level(name="high", priority=1), Level(name="low", priority=0, evicts=("high",)))},
            "'low' evicts 'high', which is above it: the higher level is served first, and would take the nodes back",
        ),
        ({"levels": (LEVELS[2], LEVELS[1])}, "list the levels from the highest down"),
        ({"algorithm": "smart"}, "algorithm 'smart' is not known; one of olb"),
        (
            {"evicted": "x", "raise_after": 0},
            "evicted 'x' is not known; .*; raise_after is 0; expected at least 1 eviction",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options: dict[str, Any], said: str) -> None:
    """Each says what was wrong and what would be right; several are said at once."""
    usual = {"classes": FAST_AND_SLOW.classes, "clusters": FAST_AND_SLOW.clusters, "levels": LEVELS[1:]}
    if "evicts" in said:
        usual |= {"forms": ()}
    with pytest.raises(OptionError, match=said) as caught:
        read_policy("heterogeneous", 6, {"heterogeneous": HeterogeneousTable(**(usual | options))}, {})
    assert "\n" not in str(caught.value)


def test_classes_that_a_journal_kept_compare_equal_to_the_same_kinds() -> None:
    kept = {"nodes": 2, "classes": [{"name": "old", "count": 2, "speed": 0.5, "memory_mb": 64, "labels": ["x86"]}]}
    kinds = (NodeKind(name="old", count=2, speed=0.5, memory_mb=64, labels=("x86",)),)
    assert list(settings_changes(kept, HeterogeneousPolicy(nodes=2, classes=kinds))) == []


def test_a_job_that_runs_nowhere_or_may_not_have_its_priority_is_refused() -> None:
    """The reason names the level and who may use it, or the width that no cluster has."""
    levels = (msgspec.structs.replace(LEVELS[0], users=(7,)), *LEVELS[1:])
    core = SiteCore(6, changed(FAST_AND_SLOW, levels=levels, forms=()))
    high = "priority 2 belongs to level 'high', which is for users 7; its user is 8"
    assert core.handle(0, JobSubmitted(job(1, 1, priority=2, user=8))) == [RefuseJob(1, high, is_final=True)]
    assert isinstance(core.handle(0, JobSubmitted(job(2, 1, priority=2, user=7)))[0], StartJob)
    wide = Job(job_id=3, width=5, estimate_ms=10)
    never = "none of its forms fits a machine or a cluster in service here (jobs of width 5)"
    assert core.handle(0, JobSubmitted(wide)) == [RefuseJob(3, never, is_final=True)]


def test_a_simulation_begins_with_what_an_earlier_one_has_learned(tmp_path: Path) -> None:
    """The file of a result is an option of the next; there each job is expected to run as its class did before."""
    policy, workload = changed(FAST_AND_SLOW, evicted="restart"), random_workload(4)
    first = simulate(workload, policy.nodes, policy)
    first.write(tmp_path, plots=False)
    (table,) = own_options(entry_named("heterogeneous"), [f"@{tmp_path / 'experience.toml'}"])
    known = table["heterogeneous"].experience
    assert known == first.own.times
    assert {"fast", "slow", "four x 4"} <= {one.resource for one in known}
    core = SiteCore(6, changed(policy, experience=known))
    core.handle(0, JobSubmitted(job(1, 1_000, job_class=2)))
    (slow,) = [one for one in known if (one.job_class, one.resource) == (2, "slow")]
    core.handle(1, JobSubmitted(job(2, 1_000, job_class=2)), JobSubmitted(job(3, 1_000, job_class=2)))
    assert core.explain(1, 3).start_ms == math.ceil(slow.mean_ms)
    again = simulate(workload, policy.nodes, changed(policy, experience=known))
    assert sum(one.runs for one in again.own.times) == 2 * sum(one.runs for one in known)


@pytest.mark.parametrize(
    ("known", "problem"),
    [
        (KnownTimes(runs=1, mean_ms=5), "experience needs either a job_class or a user"),
        (KnownTimes(user=7, resource="fast", runs=1, mean_ms=5), "experience of user 7 has resource 'fast'"),
        (KnownTimes(job_class=1, runs=0, mean_ms=5), "experience of job class 1 is out of range"),
    ],
)
def test_experience_that_makes_no_sense_is_refused(known: KnownTimes, problem: str) -> None:
    """With what would be right."""
    with pytest.raises(OptionError, match=problem):
        changed(FAST_AND_SLOW, experience=(known,))


@pytest.mark.parametrize(("deviations", "node"), [(0.0, 0), (1.0, 1)])
def test_a_careful_site_takes_the_machine_on_which_run_times_differ_less(deviations: float, node: int) -> None:
    """By the mean the first machine is better, by mean and one standard deviation the second."""
    policy = HeterogeneousPolicy(
        nodes=2,
        classes=(NodeKind(name="fickle", count=1), NodeKind(name="steady", count=1)),
        experience=(
            KnownTimes(job_class=1, resource="fickle", runs=9, mean_ms=10_000, deviation_ms=9_000),
            KnownTimes(job_class=1, resource="steady", runs=9, mean_ms=12_000, deviation_ms=100),
        ),
        deviations=deviations,
    )
    (start,) = SiteCore(2, policy).handle(0, JobSubmitted(job(1, 1_000, job_class=1)))
    assert start == StartJob(1, ((node, node + 1),))
    with pytest.raises(OptionError, match="deviations is -1; expected a number from 0 to 10"):
        changed(policy, deviations=-1.0)


@pytest.mark.parametrize("out_of_service", ["", "5"])
def test_what_is_planned_is_of_the_last_pass_whenever_it_is_asked(
    out_of_service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The starts that are told at the instant of a pass are told later too, on levels that it has put off as well."""
    levels: list[int] = []
    run_level = Heterogeneous._run_level

    def watched(site: Heterogeneous, now_ms: int, queue: LevelJobs, claimed: IntArray) -> list[Job]:
        levels.append(queue.level)
        return run_level(site, now_ms, queue, claimed)

    monkeypatch.setattr(Heterogeneous, "_run_level", watched)
    cores = [SiteCore(6, changed(FAST_AND_SLOW, out_of_service=out_of_service)) for _ in range(2)]
    rng, asked, put_off = np.random.default_rng(5), 0, 0
    for number in range(60):
        now_ms = number * 3 * S_MS
        done = sorted(running.job.job_id for running in cores[0].running())[: int(rng.integers(0, 2))]
        length_s, kind = int(rng.integers(5, 90)), int(rng.integers(0, 3))
        comes = JobSubmitted(job(number, length_s, int(rng.integers(0, 3)), job_class=kind))
        at_once, later = (core.handle(now_ms, comes, *map(JobFinished, done)) for core in cores)
        assert at_once == later
        waiting = [one.job_id for one, _ in cores[0].waiting()]
        levels.clear()
        starts = [cores[0].explain(now_ms, job_id).start_ms for job_id in waiting]
        if number % 3 == 0:
            assert starts == [cores[1].explain(now_ms + 2 * S_MS, job_id).start_ms for job_id in waiting]
            assert dump_state(cores[0]) == dump_state(cores[1])
            asked += len(waiting)
        put_off += bool(levels)
        for core in cores:
            core.check_invariants()
    assert asked > 100
    assert put_off > 10


def test_users_known_by_name_have_experience_of_their_own() -> None:
    """Jobs alike but for the names of their users are expected to take as long as theirs did, as edited last."""
    known = (KnownTimes(user="ann", runs=3, mean_ms=10 * S_MS), KnownTimes(user="bob", runs=3, mean_ms=100 * S_MS))
    core = SiteCore(1, changed(ONE_MACHINE, algorithm="olb", experience=known))
    core.handle(0, JobSubmitted(job(0, 50)))
    core.handle(0, *(JobSubmitted(job(at, 200, user_name=name)) for at, name in enumerate(("ann", "bob", "ann"), 1)))
    assert [core.explain(0, number).start_ms for number in (1, 2, 3)] == [50 * S_MS, 60 * S_MS, 160 * S_MS]
    core.handle(1, DisciplineEdited([{"user": "bob", "runs": 4, "mean_ms": 30 * S_MS}]))
    assert [core.explain(1, number).start_ms for number in (1, 2, 3)] == [50 * S_MS, 60 * S_MS, 90 * S_MS]


def test_kinds_of_nodes_take_the_place_of_the_classes_of_a_policy() -> None:
    kinds = (NodeKind(name="fast", count=2, speed=2.0), NodeKind(name="slow", count=1))
    nodes, policy = changed(ONE_MACHINE, algorithm="olb").on(kinds)
    assert (nodes, policy.nodes, policy.classes, policy.algorithm) == (3, 3, kinds, "olb")
    assert policy.on(None) == (3, policy)

"""Evicted jobs that stand still on their machines beside those that take these, and go on there."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.heterogeneous.machines import Cluster, Form
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.job import Job, JobForm
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.messages import ChangeRate, Command, EvictJob, JobFinished, JobSubmitted, StartJob
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.state import dump_state, read_state
from reference.pauses import PausedJob, play_pauses

S_MS = 1000
LEVELS = (
    Level(name="high", priority=2, evicts=("medium", "low")),
    Level(name="medium", priority=1, evicts=("low",)),
    Level(name="low", priority=0),
)


def alike(machines: int, **options: Any) -> HeterogeneousPolicy:
    """Return a site whose machines are alike, and are one cluster."""
    memory_mb = options.pop("memory_mb", None)
    clusters = (Cluster(name="all", nodes=f"0-{machines - 1}"),) if machines > 1 else ()
    return HeterogeneousPolicy(
        nodes=machines,
        classes=(NodeKind(name="plain", count=machines, memory_mb=memory_mb),),
        clusters=clusters,
        levels=options.pop("levels", LEVELS),
        evicted="pause",
        **options,
    )


def job(number: int, length_s: int, priority: float = 0.0, width: int = 1, memory_mb: int = 0, **more: Any) -> Job:
    """Return a job of so many machines, and so much memory on each."""
    forms = (JobForm(width=width, memory_mb=memory_mb),)
    return Job(job_id=number, width=width, estimate_ms=length_s * S_MS, priority=priority, forms=forms, **more)


def rates(commands: list[Command]) -> dict[int, int]:
    """Return the rates that are commanded, by job."""
    return {each.job_id: each.rate for each in commands if isinstance(each, ChangeRate)}


def started(commands: list[Command]) -> list[int]:
    """Return the jobs that start."""
    return [each.job_id for each in commands if isinstance(each, StartJob)]


def test_several_take_the_machines_of_one_that_the_first_has_raised() -> None:
    """Whom a mapping evicts it evicts for all of its jobs, though after the first it is of their own level."""
    levels = (Level(name="high", priority=1, evicts=("low",)), Level(name="low", priority=0))
    core = SiteCore(3, alike(3, levels=levels, raise_after=1))
    core.handle(0, JobSubmitted(job(1, 100, width=3)))
    commands = core.handle(20 * S_MS, JobSubmitted(job(2, 50, 1)), JobSubmitted(job(3, 50, 1)))
    core.check_invariants()
    assert (started(commands), rates(commands)) == ([2, 3], {1: 0})
    assert core.handle(30 * S_MS, JobSubmitted(job(4, 10, 1))) == []  # the third machine is kept from it
    assert rates(core.handle(70 * S_MS, JobFinished(2), JobFinished(3))) == {1: RATE_ONE}
    core.check_invariants()


def test_an_evicted_job_stands_still_and_goes_on() -> None:
    """After 20 s of 100 it stands still for the 50 s of the other, and its limit is put off by as much."""
    core = SiteCore(1, alike(1))
    core.handle(0, JobSubmitted(job(1, 100)))
    assert core.handle(20 * S_MS, JobSubmitted(job(2, 50, 2))) == [StartJob(2, ((0, 1),)), ChangeRate(1, 0)]
    core.check_invariants()
    assert core.next_wakeup_ms() == 70 * S_MS
    again = SiteCore(1, alike(1))
    again.restore(read_state(again, dump_state(core)))
    for each in (core, again):
        assert each.handle(70 * S_MS, JobFinished(2)) == [ChangeRate(1, RATE_ONE)]
        assert each.next_wakeup_ms() == 150 * S_MS
        assert [command.job_id for command in each.handle(150 * S_MS)] == [1]  # it is ended at its limit
        each.check_invariants()


def test_jobs_stand_still_one_above_the_other() -> None:
    """Low stands still under medium, which stands still under high; each goes on when the one above it has ended."""
    core = SiteCore(1, alike(1))
    core.handle(0, JobSubmitted(job(1, 100)))
    assert rates(core.handle(10 * S_MS, JobSubmitted(job(2, 100, 1)))) == {1: 0}
    assert rates(core.handle(20 * S_MS, JobSubmitted(job(3, 100, 2)))) == {2: 0}
    assert [(one.job.job_id, one.end_by_estimate_ms) for one in core.running()] == [
        (3, 120 * S_MS),
        (2, 210 * S_MS),
        (1, 300 * S_MS),
    ]
    assert rates(core.handle(120 * S_MS, JobFinished(3))) == {2: RATE_ONE}
    # A low job waits behind the one that stands still; a cancelled one leaves.
    assert started(core.handle(130 * S_MS, JobSubmitted(job(4, 5)))) == []
    assert core.explain(130 * S_MS, 4).start_ms == 300 * S_MS
    assert rates(core.handle(200 * S_MS, JobFinished(2))) == {1: RATE_ONE}
    core.check_invariants()


def test_a_team_goes_on_when_all_its_machines_are_free() -> None:
    """Two high jobs take two of its four machines; medium ones may have the others, and low ones nothing."""
    core = SiteCore(4, alike(4, algorithm="olb"))
    core.handle(0, JobSubmitted(job(1, 100, width=4)))
    commands = core.handle(10 * S_MS, *(JobSubmitted(job(number, 20 * number, 2)) for number in (2, 3)))
    assert (started(commands), rates(commands)) == ([2, 3], {1: 0})
    assert started(core.handle(11 * S_MS, JobSubmitted(job(4, 10, 1)), JobSubmitted(job(5, 10)))) == [4]
    assert rates(core.handle(21 * S_MS, JobFinished(4))) == {}
    assert rates(core.handle(50 * S_MS, JobFinished(2))) == {}
    assert rates(core.handle(70 * S_MS, JobFinished(3))) == {1: RATE_ONE}
    assert started(core.handle(160 * S_MS, JobFinished(1))) == [5]
    core.check_invariants()


@pytest.mark.parametrize(("memory_mb", "stays"), [(56, True), (57, False)])
def test_memory_must_fit_beside_the_other(memory_mb: int, stays: bool) -> None:
    """Of 256 MB the low job has 200: beside more than 56 it does not stand still, but leaves, and begins again."""
    core = SiteCore(1, alike(1, memory_mb=256))
    core.handle(0, JobSubmitted(job(1, 100, memory_mb=200)))
    commands = core.handle(10 * S_MS, JobSubmitted(job(2, 50, 2, memory_mb=memory_mb)))
    assert rates(commands) == ({1: 0} if stays else {})
    assert [(each.job_id, each.keeps_work) for each in commands if isinstance(each, EvictJob)] == (
        [] if stays else [(1, False)]
    )
    commands = core.handle(60 * S_MS, JobFinished(2))
    assert (started(commands), rates(commands)) == (([], {1: RATE_ONE}) if stays else ([1], {}))


def test_a_part_of_a_job_on_several_sites_is_not_paused() -> None:
    """The others would wait for it: it is evicted as a whole."""
    core = SiteCore(1, alike(1))
    core.handle(0, JobSubmitted(job(1, 100, in_step=True)))
    commands = core.handle(10 * S_MS, JobSubmitted(job(2, 50, 2)))
    assert [each.job_id for each in commands if isinstance(each, EvictJob)] == [1]


@pytest.mark.parametrize("has_other", [True, False])
def test_who_is_paused_and_then_evicted_in_the_same_pass_is_not_told_to_stand_still(has_other: bool) -> None:
    """The first high job pauses the team, the second has no room beside it: it begins again, at once if it can."""
    names = ("a", "b", "c")
    policy = HeterogeneousPolicy(
        nodes=3,
        classes=tuple(NodeKind(name=name, count=1, memory_mb=100) for name in names),
        clusters=(Cluster(name="ab", nodes="0-1"),),
        forms=(
            Form(job_class=1, width=2, speed=2.0, memory_mb=40),
            *((Form(job_class=1, on=("c",), memory_mb=40),) if has_other else ()),
            Form(job_class=2, on=("a",), memory_mb=40),
            Form(job_class=3, on=("b",), memory_mb=80),
        ),
        levels=LEVELS,
        evicted="pause",
    )
    length_s, kinds, priority = (100, 50, 50), (1, 2, 3), (0, 2, 2)
    core = SiteCore(3, policy)
    low, *high = (
        Job(job_id=kind, width=1, estimate_ms=s * S_MS, priority=p, job_class=kind)
        for s, kind, p in zip(length_s, kinds, priority, strict=True)
    )
    core.handle(0, JobSubmitted(low))
    commands = core.handle(10, *map(JobSubmitted, high))
    core.check_invariants()
    assert [each.job_id for each in commands if isinstance(each, EvictJob)] == [1]
    assert (started(commands), rates(commands)) == ([2, 3, 1] if has_other else [2, 3], {})
    ms = [s * S_MS for s in length_s]
    columns = {"priority": list(priority), "job_class": list(kinds)}
    workload = Workload(
        job_id=[1, 2, 3], submit_ms=[0, 10, 10], width=[1, 1, 1], estimate_ms=ms, run_ms=ms, columns=columns
    )
    # It works for 100 s there, or for 50 s on both others once they are free.
    assert simulate(workload, 3, policy, check=True).end_ms.tolist() == [100_010, 50_010, 50_010]


@pytest.mark.parametrize(("machines", "capacity"), [(1, None), (3, None), (3, 100)])
def test_random_jobs_start_and_end_as_the_reference_says(machines: int, capacity: int | None) -> None:
    """Levels, machines and memory at random: starts, ends and evictions are those of a second writing."""
    evictions = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        jobs = [
            PausedJob(number, int(submit), int(level), int(run + more), int(run), int(memory))
            for number, (submit, level, run, more, memory) in enumerate(
                zip(
                    np.sort(rng.integers(0, 400 // machines, 40)),
                    rng.integers(0, 3, 40),
                    rng.integers(1, 30, 40),
                    rng.integers(0, 10, 40),
                    rng.integers(10, 70, 40),
                    strict=True,
                )
            )
        ]
        forms = tuple(Form(job_class=one.number, memory_mb=one.memory) for one in jobs) if capacity is not None else ()
        policy = alike(machines, algorithm="olb", predict="estimate", memory_mb=capacity, forms=forms)
        workload = Workload(
            job_id=[one.number for one in jobs],
            submit_ms=[one.submit * S_MS for one in jobs],
            width=[1] * len(jobs),
            estimate_ms=[one.estimate * S_MS for one in jobs],
            run_ms=[one.run * S_MS for one in jobs],
            columns={"priority": [2 - one.level for one in jobs], "job_class": [one.number for one in jobs]},
        )
        result = simulate(workload, machines, policy, check=True)
        play_pauses(jobs, machines, [{1, 2}, {2}, set()], capacity)
        assert (result.start_ms // S_MS).tolist() == [one.start for one in jobs]
        assert (result.end_ms // S_MS).tolist() == [one.end for one in jobs]
        assert result.columns["evictions"].tolist() == [one.evictions for one in jobs]
        evictions += sum(one.evictions for one in jobs)
    assert evictions > 30


def test_metrics_of_machines_of_several_speeds() -> None:
    """A pause is a part of the run: a job that is twice as fast, and stands still for 50 s, runs for 80 s."""
    workload = Workload(
        job_id=[1, 2],
        submit_ms=[0, 10 * S_MS],
        width=[1, 1],
        estimate_ms=[60 * S_MS, 100 * S_MS],
        run_ms=[60 * S_MS, 100 * S_MS],
        columns={"priority": [0, 2]},
    )
    policy = msgspec.structs.replace(alike(1), classes=(NodeKind(name="fast", count=1, speed=2.0),))
    result = simulate(workload, 1, policy, check=True)
    assert result.end_ms.tolist() == [80 * S_MS, 60 * S_MS]
    assert result.metrics().awt_ms == 0
    assert result.own_metrics["evictions"] == 1


def test_other_sites_refuse_it_in_one_line() -> None:
    """A queue with levels does not know where its jobs are."""
    with pytest.raises(OptionError, match="evicted 'pause' is for sites of machines that differ; one of restart, chec"):
        LevelsPolicy(levels=LEVELS, evicted="pause")
    assert msgspec.structs.replace(alike(2), evicted="restart").evicted == "restart"

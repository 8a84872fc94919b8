"""Sharing nodes in time: the compiled loop against the slow reference, the stepped core, and what must always hold."""

from __future__ import annotations

import numpy as np
import pytest

from gridweave import simulate
from gridweave.errors import GridweaveError
from gridweave.scenarios.batch.one_site import SiteRun
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.gang.discipline import GangDiscipline
from gridweave.site.disciplines.gang.kernels.phases import (
    PROMISED,
    clean,
    compact,
    fill_profiles,
    occupy_row,
    row_start_ms,
)
from gridweave.site.disciplines.gang.kernels.state import GangSite
from gridweave.site.disciplines.gang.matrix import check_matrix, matrix_of
from gridweave.site.disciplines.gang.policy import BACKFILLS, MIGRATIONS, PHASES, SCHEDULINGS, GangPolicy
from gridweave.site.job import Job, Resources
from gridweave.site.kernels.state import UNPLACED_MS
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.messages import ChangeRate, JobCancelled, JobFinished, JobSubmitted, MoveJob, StartJob
from gridweave.site.scheduler.core import SiteCore
from reference.gang import GangReference


def drawn(seed: int) -> tuple[Workload, int, GangPolicy]:
    """Return a small workload, nodes, and a policy with any options; jobs may be cancelled, and their memory known."""
    rng = np.random.default_rng(seed)
    nodes, n = int(rng.integers(1, 14)), int(rng.integers(1, 25))
    run_ms = rng.integers(1, 400, n)
    submit_ms = np.sort(rng.integers(0, int(rng.integers(1, 150 * n + 2)), n))
    cancel_ms = np.where(rng.random(n) < 0.2, submit_ms + rng.integers(1, 600, n), -1)
    workload = Workload(
        job_id=np.arange(1, n + 1),
        submit_ms=submit_ms,
        width=rng.integers(1, nodes + 1, n),
        estimate_ms=run_ms * rng.integers(1, 4, n),
        run_ms=run_ms,
        columns={"cancel_ms": cancel_ms} if rng.random() < 0.3 else {},
    )
    slice_ms = int(rng.integers(2, 60))
    migration = rng.choice(MIGRATIONS)
    policy = GangPolicy(
        mpl=int(rng.integers(1, 6)),
        slice_ms=slice_ms,
        switch_ms=int(rng.choice([0, rng.integers(0, slice_ms)])),
        order=str(rng.choice(["fcfs", "sjf", "wfit"])),
        backfill=str(rng.choice(list(BACKFILLS))),
        scheduling=str(rng.choice(SCHEDULINGS)),
        phases="compact" if migration != "none" else str(rng.choice(PHASES)),
        migration=str(migration),
        migration_ms=int(rng.integers(0, 50)),
        max_tasks=int(rng.integers(0, 20)) if rng.random() < 0.5 else None,
        window_ms=int(rng.integers(1, 3000)) if rng.random() < 0.3 else None,
    )
    if rng.random() < 0.4:
        needs = {"cpu_need": np.ones(n), "memory_fraction": rng.choice([0.1, 0.34, 0.5, 0.6, 1.0], n)}
        workload = workload.replace(columns={**workload.columns, **needs})
    return workload, nodes, policy


def played(workload: Workload, nodes: int, policy: GangPolicy) -> SiteRun:
    """Return a workload played to its end in the compiled loop."""
    run = SiteRun(workload, nodes, policy)
    run.run(len(workload))
    return run


@pytest.mark.parametrize("first", range(0, 1200, 400))
def test_loop_and_reference_agree(first: int) -> None:
    """Starts, ends, loss of capacity and what was moved are those of the slow second writing of the rules."""
    for seed in range(first, first + 400):
        workload, nodes, policy = drawn(seed)
        run, want = played(workload, nodes, policy), GangReference(workload, nodes, policy).run()
        counters = run.site.state.counters[0]
        assert run.start_ms.tolist() == [job.start_ms for job in want.jobs], (seed, policy)
        assert run.end_ms.tolist() == [job.end_ms for job in want.jobs], (seed, policy)
        assert (counters["lost"], counters["lost_any"]) == (want.lost, want.lost_any), (seed, policy)
        moved = counters["migrations"], counters["tasks_migrated"]
        assert moved == (want.migrations, want.tasks_migrated), (seed, policy)
        assert (counters["changes"], counters["switched"]) == (want.changes, want.switched), (seed, policy)


def test_stepped_core_and_loop_agree() -> None:
    """A core stepped slice by slice gives the same schedule and the same metrics, and never contradicts itself."""
    for seed in range(5000, 5120):
        workload, nodes, policy = drawn(seed)
        batch = simulate(workload, nodes, policy)
        core = simulate(workload, nodes, policy, driver="core", check=True)
        assert core.start_ms.tolist() == batch.start_ms.tolist(), (seed, policy)
        assert core.end_ms.tolist() == batch.end_ms.tolist(), (seed, policy)
        assert core.own_metrics == batch.own_metrics, (seed, policy)


@pytest.mark.parametrize("backfill", list(BACKFILLS))
def test_one_row_is_space_sharing(backfill: str) -> None:
    """With a multiprogramming level of 1 the schedule is that of a queue, or of a planning site, job by job."""
    other = {"discipline": "planning"} if backfill == "conservative" else {"backfill": backfill}
    for seed in range(60):
        workload, nodes, _ = drawn(seed)
        want = simulate(workload, nodes=nodes, **other)  # type: ignore[arg-type]
        for scheduling_free in (GangPolicy(mpl=1, backfill=backfill), GangPolicy(mpl=1, backfill=backfill, slice_ms=7)):
            got = simulate(workload, nodes, scheduling_free)
            assert got.start_ms.tolist() == want.start_ms.tolist()
            assert got.end_ms.tolist() == want.end_ms.tolist()


def test_jobs_of_one_column_fit_into_its_memory() -> None:
    """A job whose memory is not free beside what stays in core waits, with all behind it; it is said why."""
    discipline = GangDiscipline(4, GangPolicy(mpl=3))
    for job_id, (width, memory) in enumerate(((4, 0.5), (2, 0.5), (3, 0.4), (1, 0.1)), start=1):
        needs = Resources(memory=memory)
        discipline.submit(0, Job(job_id=job_id, width=width, estimate_ms=10**6, resources=needs))
    discipline.run_pass(0)
    assert matrix_of(discipline._state) == [[1, 1, 1, 1], [2, 2, None, None], [None] * 4]
    assert discipline._state.memory.tolist() == [10**6, 10**6, 500_000, 500_000]
    assert [(job.job_id, start_ms) for job, start_ms in discipline.waiting()][1:] == [(3, None), (4, None)]
    assert discipline.explain(0, 3).reason == (
        "it needs 3 nodes in one row of the matrix; at most 4 are free in one, and 2 nodes have 40% of their memory "
        "beside what stays in core there"
    )
    discipline.ended(10, 1)
    discipline.run_pass(10)
    assert [job.job_id for job, _ in discipline.waiting()] != [3, 4], "memory is given back"
    discipline.check_invariants()


def test_slices_are_no_events() -> None:
    """However short the slices, there are as many decisions as instants at which a job comes or ends."""
    workload = Workload(
        job_id=[1, 2, 3],
        submit_ms=[0, 0, 10],
        width=[4, 4, 4],
        estimate_ms=[10**9] * 3,
        run_ms=[10**9, 10**9 - 5, 10**9 - 7],
    )
    for slice_ms in (1, 200, 200_000):
        run = played(workload, 4, GangPolicy(mpl=3, slice_ms=slice_ms))
        assert run.site.state.counters["decisions"][0] == 5
        assert run.end_ms.max() == 3 * 10**9 - 12


def test_matrix_of_figure_9() -> None:
    """Jobs of the widths of Figure 9 are placed as there, and J4 and J5 run in two rows."""
    discipline = GangDiscipline(8, GangPolicy(mpl=4, backfill="none"))
    for job_id, width in enumerate((8, 8, 4, 2, 2, 4), start=1):
        discipline.submit(0, Job(job_id=job_id, width=width, estimate_ms=10**6))
    started = discipline.run_pass(0).starts
    assert matrix_of(discipline._state) == [
        [1] * 8,
        [2] * 8,
        [3, 3, 3, 3, 4, 4, 5, 5],
        [6, 6, 6, 6, 4, 4, 5, 5],
    ]
    assert [start.job.job_id for start in started] == [1]


def test_invariants_after_every_decision() -> None:
    """The matrix is whole whenever the loop stops, and no promise is made later by a compaction."""
    seen = 0
    for seed in range(200):
        workload, nodes, policy = drawn(seed)
        run = SiteRun(workload, nodes, policy)
        for instant in sorted({*workload.submit_ms.tolist(), *(workload.submit_ms + 97).tolist()}):
            run.run(len(workload), instant + 1)
            check_matrix(run.site.state)
            if (
                policy.phases == "compact"
                and policy.backfill != "none"
                and not run.site.state.counters["is_stirred"][0]
            ):
                seen += _promises_survive(run.site.state, policy, instant + 1)
    assert seen > 50, "nothing was promised"


def _promises_survive(state: GangSite, policy: GangPolicy, now_ms: int) -> int:
    """Compact a copy, and look that no promise can be kept only later than before; return how many there were."""
    state = GangSite._make(array.copy() for array in state)
    clean(state)
    state.counters["decisions"] += 1
    state.counters["tasks_left"] = 1000
    before = _kept_ms(state, now_ms)
    for migrates in (False, policy.migration == "all"):
        compact(state, policy.codes(), np.int64(now_ms), migrates)
        after = _kept_ms(state, now_ms)
        assert all(after[slot] <= before[slot] for slot in before), "a promise is kept later"
    return len(before)


def _kept_ms(state: GangSite, now_ms: int) -> dict[int, int]:
    """Return when each promise could be kept at the earliest, but not before it was made for, by its slot."""
    kept = {}
    for slot in state.waiting[: state.counters["n_waiting"][0]].tolist():
        job = state.jobs[slot]
        if job["promised_ms"] != UNPLACED_MS:
            fill_profiles(state, np.int64(now_ms), PROMISED)
            start_ms, length = max(job["promised_ms"], now_ms), job["estimate_ms"] * state.counters["rows"][0]
            occupy_row(state, job["promised_row"], start_ms, length, -job["width"])
            kept[slot] = int(row_start_ms(state, job["promised_row"], start_ms, job["width"], length))
    return kept


def test_a_waiting_job_knows_how_many_are_ahead() -> None:
    core = SiteCore(8, GangPolicy(mpl=2, slice_ms=100))
    for job_id in range(1, 9):
        core.handle(job_id, JobSubmitted(Job(job_id=job_id, width=5, estimate_ms=1000)))
    assert core.earliest_start_ms(8, 5, 100) is not None
    assert core.startable(8, 100) == 3
    reasons = [core.explain(8, job.job_id) for job, _ in core.waiting()]
    assert [reason.ahead for reason in reasons] == [0, 1, 2, 3, 4, 5]


def submitted(job_id: int, width: int) -> JobSubmitted:
    """Return the submission of a job."""
    return JobSubmitted(Job(job_id=job_id, width=width, estimate_ms=1000))


def test_who_started_at_this_instant_may_have_to_wait_again() -> None:
    """What is told later of one instant may give another row the slice that goes on: then no two work on a node."""
    core = SiteCore(2, GangPolicy(mpl=2, slice_ms=100))
    core.handle(100, submitted(1, 1))
    assert core.handle(150, submitted(2, 1)) == [StartJob(2, ((1, 2),))]
    assert core.handle(150, JobFinished(1), submitted(3, 2)) == [StartJob(3, ((0, 2),)), ChangeRate(2, 0)]
    core.check_invariants()
    assert core.next_wakeup_ms() == 250
    assert core.handle(250) == [ChangeRate(2, RATE_ONE), ChangeRate(3, 0)]


def test_a_job_is_cancelled_whose_slice_has_begun_unseen() -> None:
    """Nobody has asked the site at the beginning of the slice, so its job was not started, and waits."""
    core = SiteCore(2, GangPolicy(mpl=2, slice_ms=100))
    assert core.handle(0, submitted(1, 2), submitted(2, 2)) == [StartJob(1, ((0, 2),))]
    assert core.handle(150, JobCancelled(2)) == []
    core.check_invariants()
    assert core.handle(200, submitted(3, 2)) == [StartJob(3, ((0, 2),)), ChangeRate(1, 0)]


def test_a_moved_job_is_told() -> None:
    """Job 3 leaves the nodes of job 4 when there is room, so that job 4 runs in both rows; it is told where it goes."""
    core = SiteCore(8, GangPolicy(mpl=2, slice_ms=100, migration="fill"))
    for number, width in enumerate((5, 6, 3, 2)):
        core.handle(150 * number, JobSubmitted(Job(job_id=number + 1, width=width, estimate_ms=10_000)))
    for now_ms in (600, 700, 800):
        core.handle(now_ms)
    commands = core.handle(850, JobFinished(1))
    core.check_invariants()
    assert MoveJob(3, ((0, 2), (5, 6)), ()) in commands
    assert {command.job_id for command in commands if isinstance(command, MoveJob)} == {3}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mpl": 0}, "mpl: is 0; a matrix has from 1 row"),
        ({"slice_ms": 0}, "slice_ms: is 0; a slice takes from 1"),
        ({"slice_ms": -5}, "slice_ms: is -5; a slice takes from 1"),
        ({"slice_ms": 100, "switch_ms": 100}, "switch_ms: is 100; from 0 to less than the slice of 100 ms"),
        ({"migration_ms": -1}, "migration_ms: is -1; from 0"),
        ({"max_tasks": -1}, "max_tasks: is -1; from 0"),
        ({"window_ms": 0}, "window_ms: is 0; from 1"),
        ({"migration": "all", "phases": "clean"}, "migration: goes with all phases"),
        ({"scheduling": "sometimes"}, "scheduling: 'sometimes' is not known; one of continuous, discrete"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], says: str) -> None:
    """One line says what was wrong and what would be right."""
    with pytest.raises(GridweaveError, match=says):
        GangPolicy(**options)  # type: ignore[arg-type]


def test_labels_tell_policies_apart() -> None:
    """The paper's names, and what differs from the usual."""
    assert GangPolicy(mpl=5, backfill="none").label == "GS-5"
    assert GangPolicy(mpl=2).label == "BGS-2"
    assert GangPolicy(mpl=3, backfill="none", migration="all").label == "MGS-3"
    assert GangPolicy(mpl=3, migration="all", switch_ms=10, max_tasks=64).label == "MBGS-3 switch_ms=10 max_tasks=64"
    assert GangPolicy(backfill="conservative", migration="fill").label == "MBGS-5 backfill=conservative migration=fill"

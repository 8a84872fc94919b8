"""Shared nodes in simulation: against the slow reference, against plain EASY, and by hand."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from gridweave.errors import InputError, OptionError, TraceError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.traces.resources import read_slowdowns
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.sharing.entry import SharedUse, idle_site
from gridweave.site.disciplines.sharing.kernels.sharing_pass import sharing_pass
from gridweave.site.disciplines.sharing.kernels.slowdown import job_ended
from gridweave.site.disciplines.sharing.kernels.state import SharedSite, forget_changes, job_submitted, job_withdrawn
from gridweave.site.disciplines.sharing.policy import VARIANTS, SharedNodes, SharingPolicy
from gridweave.site.disciplines.sharing.slowdown_tables import (
    FORMULAS,
    TABLE_1,
    TABLE_3,
    SlowdownModel,
    SlowdownTable,
    rows_of,
)
from gridweave.site.kernels.work import RATE_ONE, rate_of
from gridweave.site.resources.chunks import NodeKind
from reference.lomarc import Job as ReferenceJob
from reference.lomarc import Kind, Options
from reference.lomarc import simulate as simulate_reference
from support.builders import (
    HOUR,
    MINUTE,
    random_workload,
    workload_of,
)

CPU_JOB = {"cpu": 0.9, "network": 0.1, "disk": 0.0}
DISK_JOB = {"cpu": 0.1, "network": 0.0, "disk": 0.9}


def random_policy(rng: np.random.Generator, variant: str, backfills: Sequence[str]) -> SharingPolicy:
    """Draw a policy of a variant, with some of its numbers changed."""
    changes: dict[str, Any] = {"backfill": str(rng.choice(list(backfills)))}
    if rng.random() < 0.5:
        changes["aging_ms"] = [None, 10.0 * MINUTE, float("inf")][rng.integers(3)]
    if rng.random() < 0.5:
        changes["max_slowdown"] = float(rng.choice([1.2, 1.6, 2.5]))
    if rng.random() < 0.3:
        changes["load_threshold"] = float(rng.choice([0, 0.5, 1]))
    if rng.random() < 0.3:
        changes["joins_behind"] = False
    return msgspec.structs.replace(VARIANTS[variant], **changes)


def random_kinds(rng: np.random.Generator, nodes: int, cpu: str, *, alike: bool) -> list[NodeKind]:
    """Draw the kinds of a site's nodes, with random cores and threads; with `alike`, all nodes are of one kind."""
    shape = rng.integers(3 if alike else 4)
    if shape == 0:
        return [NodeKind(count=nodes, cpu=cpu)]
    if shape == 1:
        return [NodeKind(count=nodes, threads=int(rng.integers(1, 5)), cpu=cpu)]
    if shape == 2:
        return [NodeKind(count=nodes, cores=int(rng.integers(1, 4)), threads=int(rng.integers(1, 4)), cpu=cpu)]
    first = int(rng.integers(1, nodes))
    return [
        NodeKind(count=first, cpu="standard", memory=0.6),
        NodeKind(count=nodes - first, threads=3, cores=2),
    ]


def random_cores(rng: np.random.Generator, kinds: Sequence[NodeKind], jobs: int) -> npt.NDArray[np.int64]:
    """Draw the number of cores that each job uses on a node."""
    return rng.integers(1, max(kind.cores for kind in kinds) + 1, jobs)


def reference_jobs(workload: Workload, cores: npt.NDArray[np.int64], refused: set[int]) -> list[ReferenceJob]:
    """Convert the jobs for the reference, without the refused ones."""
    columns, rows = workload.columns, rows_of(TABLE_3, workload.columns)
    return [
        ReferenceJob(
            id=int(workload.job_id[i]),
            submit=int(workload.submit_ms[i]),
            width=int(workload.width[i]),
            estimate=int(workload.estimate_ms[i]),
            run=int(workload.run_ms[i]),
            cpu=float(columns["cpu_fraction"][i]),
            network=float(columns["network_fraction"][i]),
            disk=float(columns["disk_fraction"][i]),
            memory=float(columns["memory_fraction"][i]),
            cpu_kind=int(columns["cpu_kind"][i]),
            cores=int(cores[i]),
            row=int(rows[i]),
        )
        for i in range(len(workload))
        if int(workload.job_id[i]) not in refused
    ]


def reference_kinds(kinds: Sequence[NodeKind]) -> list[Kind]:
    """Convert kinds of nodes for the reference."""
    return [Kind(kind.count, kind.cores, kind.threads, kind.memory, kind.cpu == "hyperthreaded") for kind in kinds]


def reference_options(policy: SharingPolicy, model: SlowdownModel) -> Options:
    """Convert a policy and a slowdown model for the reference."""
    return Options(
        coscheduling=policy.coscheduling,
        heuristic=policy.heuristic,
        max_slowdown=policy.max_slowdown,
        short_up_to=policy.short_up_to_ms,
        medium_up_to=policy.medium_up_to_ms,
        aging=policy.aging_ms,
        load_threshold=policy.load_threshold,
        partners=policy.partners,
        backfill=policy.backfill,
        joins_behind=policy.joins_behind,
        formula=model.formula,
        cpu_factors=tuple(tuple(row) for row in model.cpu_factors.slowdown.tolist()),
        measured=tuple(tuple(row) for row in model.table.slowdown.tolist()),
        paging=model.paging,
    )


def shared(workload: Workload, nodes: Any = None, policy: Any = "L-U1", **options: Any) -> SimulationResult:
    """Simulate a site with shared nodes."""
    return simulate(workload, nodes, policy, **options)


def ends(result: SimulationResult) -> list[int]:
    """Return the ends of all jobs."""
    return [int(end) for end in result.end_ms]


def starts(result: SimulationResult) -> list[int]:
    """Return the starts of all jobs."""
    return [int(start) for start in result.start_ms]


def lasts(length_ms: int, slowdown: float) -> int:
    """Return the run time of a job of this length at a slowdown, in whole milliseconds."""
    return -(-length_ms * RATE_ONE // int(rate_of(slowdown)))


# --- against the reference -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("formula", FORMULAS)
def test_random_workloads_run_as_in_the_reference(variant: str, formula: str) -> None:
    """Every variant and formula is covered, on any kinds of nodes."""
    rng = np.random.default_rng([list(VARIANTS).index(variant), list(FORMULAS).index(formula)])
    model, beside = SlowdownModel(formula=formula), 0
    for number in range(12):
        nodes = int(rng.integers(2, 12))
        workload = random_workload(rng, nodes, coarse=number % 2 == 0)
        backfills = ("easy", "easy", "none") if number < 8 else ("conservative",)
        policy = random_policy(rng, variant, backfills)
        kinds = random_kinds(rng, nodes, policy.cpu, alike=policy.backfill == "conservative")
        cores = random_cores(rng, kinds, len(workload))
        result = shared(workload, kinds, policy, model=model, cores=cores)
        jobs = reference_jobs(workload, cores, {job_id for job_id, _ in result.refused})
        for _ in simulate_reference(jobs, reference_kinds(kinds), reference_options(policy, model)):
            pass
        got = {int(i): span for i, *span in zip(workload.job_id, starts(result), ends(result), strict=True)}
        assert {job.id: [job.start, job.end] for job in jobs} == {job.id: got[job.id] for job in jobs}
        beside += result.sharing_metrics().shared_starts
    assert (beside == 0) == (variant == "PSS")


@pytest.mark.parametrize("backfill", ["easy", "none"])
def test_pss_with_one_class_equals_the_queue_in_fcfs_order(backfill: str) -> None:
    rng = np.random.default_rng(5)
    policy = SharingPolicy(coscheduling="none", short_up_to_ms=0, medium_up_to_ms=10**14, backfill=backfill)
    for _ in range(20):
        workload = random_workload(rng, 8, coarse=True)
        plain = simulate(workload, 8, backfill=backfill)
        assert starts(shared(workload, 8, policy)) == plain.start_ms.tolist()


def test_conservative_backfilling_with_one_class_equals_planning() -> None:
    rng = np.random.default_rng(6)
    policy = SharingPolicy(coscheduling="none", short_up_to_ms=0, medium_up_to_ms=10**14, backfill="conservative")
    for _ in range(20):
        workload = random_workload(rng, 8, coarse=True)
        plain = simulate(workload, 8, discipline="planning")
        assert starts(shared(workload, 8, policy)) == plain.start_ms.tolist()


# --- event by event --------------------------------------------------------------------------------------------------


def step_through(
    workload: Workload, nodes: int, policy: SharingPolicy, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Pass every event to the kernels, in any order within an instant; return starts and ends."""
    kinds, model = [NodeKind(count=nodes, cpu=policy.cpu)], SlowdownModel()
    state, _ = idle_site(workload, kinds, SharedNodes(sharing=policy), model, 1, None)
    arrays, codes = model.arrays(), policy.codes(kinds)
    jobs, n = state.jobs, len(workload)
    start, end, running = [-1] * n, [-1] * n, dict[int, int]()
    submitted = 0
    while submitted < n or running:
        instants = [*running.values(), *workload.submit_ms[submitted : submitted + 1].tolist()]
        now_ms = np.int64(min(instants))
        for slot in rng.permutation([slot for slot, when in running.items() if when == now_ms]):
            del running[int(slot)]
            end[int(slot)] = int(now_ms)
            job_ended(state, arrays, slot, now_ms)
        arriving = [slot for slot in range(submitted, n) if workload.submit_ms[slot] == now_ms]
        for slot in rng.permutation(arriving):
            job_submitted(state, np.int64(slot))
        submitted += len(arriving)
        sharing_pass(state, arrays, codes, now_ms)
        for slot in state.started[: state.counters[0]["n_started"]].tolist():
            start[slot] = int(now_ms)
        for slot in state.changed[: state.counters[0]["n_changed"]].tolist():
            if jobs[slot]["first_cell"] >= 0:
                spared = int(workload.estimate_ms[slot] - workload.run_ms[slot]) * RATE_ONE
                left = max(0, int(jobs[slot]["left"]) - spared)
                running[slot] = int(now_ms) + -(-left // int(jobs[slot]["rate"]))
        forget_changes(state)
        check(state)
    return start, end


def check(state: SharedSite) -> None:
    """Assert that cells and running jobs are consistent, and that no job has too many partners."""
    held = state.occupant[state.occupant >= 0].tolist()
    running = state.running[: state.counters[0]["n_running"]].tolist()
    assert sorted(held) == sorted(slot for slot in running for _ in range(int(state.jobs[slot]["width"])))
    assert state.counters[0]["idle"] == int((state.occupant < 0).all(axis=1).sum())
    assert all(state.jobs[slot]["n_partners"] <= 1 for slot in running)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_order_of_simultaneous_events_does_not_matter(variant: str) -> None:
    rng = np.random.default_rng(list(VARIANTS).index(variant))
    for _ in range(6):
        workload = random_workload(rng, 6, coarse=True)
        result = shared(workload, 6, variant)
        first, again = (step_through(workload, 6, VARIANTS[variant], rng) for _ in range(2))
        assert first == again == (starts(result), ends(result))


def test_a_withdrawn_job_leaves_no_trace() -> None:
    workload = workload_of([CPU_JOB, CPU_JOB | {"kind": 1}, CPU_JOB])
    kinds, policy, model = [NodeKind(count=1)], VARIANTS["PSS"], SlowdownModel()
    state, _ = idle_site(workload, kinds, SharedNodes(sharing=policy), model, 1, None)
    for slot in range(3):
        job_submitted(state, np.int64(slot))
    job_withdrawn(state, np.int64(0))
    sharing_pass(state, model.arrays(), policy.codes(kinds), np.int64(0))
    assert state.started[: state.counters[0]["n_started"]].tolist() == [1]
    assert int(state.counters[0]["waiting_width"]) == 1


def test_the_loop_can_stop_and_resume_after_any_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = random_workload(np.random.default_rng(3), 6, coarse=True)
    whole = shared(workload, 6)
    monkeypatch.setattr("gridweave.scenarios.batch.one_site._CHUNK", 1)
    calls: list[tuple[int, int]] = []
    parts = shared(workload, 6, progress=lambda done, total: calls.append((done, total)))
    assert (starts(parts), ends(parts), parts.own.busy_node_ms) == (
        starts(whole),
        ends(whole),
        whole.own.busy_node_ms,
    )
    assert calls == [(done, len(workload)) for done in range(1, len(workload) + 1)]


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_matching_jobs_share_until_the_shorter_one_ends() -> None:
    """Both run at rate 1 / 1.04; then the longer one continues at rate 1."""
    workload = workload_of([CPU_JOB | {"estimate": 2 * HOUR}, DISK_JOB | {"estimate": 2 * HOUR, "run": HOUR}])
    result = shared(workload, 1)
    assert starts(result) == [0, 0]
    shared_ms = lasts(HOUR, 1.04)
    left = 2 * HOUR * RATE_ONE - shared_ms * int(rate_of(1.04))
    assert ends(result) == [shared_ms + -(-left // RATE_ONE), shared_ms]
    assert result.own.beside.tolist() == [1, 1]
    metrics = result.sharing_metrics()
    assert metrics.shared_starts == 2
    assert metrics.util == 1
    assert metrics.efficiency == pytest.approx(3 * HOUR / max(ends(result)))


def test_a_job_runs_at_the_rate_of_its_slowest_node() -> None:
    wide = CPU_JOB | {"width": 3}
    narrow = DISK_JOB | {"width": 3}
    few = shared(workload_of([wide, narrow]), 3)
    assert ends(few) == [lasts(HOUR, 1.04)] * 2
    part = shared(workload_of([wide, DISK_JOB | {"width": 2}]), 3, "L-FM")
    assert ends(part) == [lasts(HOUR, 1.04)] * 2


def test_a_machine_with_low_load_does_not_share() -> None:
    """The limit is 80% of the idle nodes."""
    jobs = [CPU_JOB | {"width": 4}, DISK_JOB | {"width": 4}]
    assert shared(workload_of(jobs), 10).own.beside.tolist() == [0, 0]
    assert shared(workload_of(jobs), 9).own.beside.tolist() == [1, 1]
    never = SharingPolicy(load_threshold=0.0)
    assert shared(workload_of(jobs), 8, never).own.beside.tolist() == [0, 0]


def test_short_jobs_never_share() -> None:
    """A job of a minute does not join; one that is a millisecond longer does."""
    short, medium = (shared(workload_of([CPU_JOB, DISK_JOB | {"estimate": one, "submit": 1}]), 1, "L-FM")
                     for one in (MINUTE, MINUTE + 1))  # fmt: skip
    assert starts(short) == [0, HOUR]
    assert starts(medium) == [0, 1]


@pytest.mark.parametrize(
    ("job", "joins"),
    [
        (DISK_JOB, True),
        (DISK_JOB | {"memory": 0.5 + 1e-6}, False),
        (CPU_JOB | {"kind": 0}, True),
        (CPU_JOB | {"kind": 1}, False),
        ({"cpu": 0.1, "network": 0.9, "disk": 0.0}, True),
        ({"cpu": 0.45, "network": 0.55, "disk": 0.0}, True),
    ],
)
def test_memory_cpu_kind_and_bound_decide_who_joins_a_cpu_bound_job(job: dict[str, Any], joins: bool) -> None:
    """The host is a floating-point job."""
    result = shared(workload_of([CPU_JOB | {"kind": 1}, job | {"submit": 1}]), 1, "L-FM")
    assert (starts(result)[1] == 1) == joins


def test_ln_lets_only_disk_bound_jobs_join_a_cpu_bound_job() -> None:
    disk = shared(workload_of([CPU_JOB, DISK_JOB]), 1, "L-N")
    network = shared(workload_of([CPU_JOB, {"cpu": 0.1, "network": 0.9, "disk": 0.0}]), 1, "L-N")
    assert starts(disk) == [0, 0]
    # On a standard CPU what both do there is serial: 1 + (2 - 1) 0.1.
    assert ends(disk) == [lasts(HOUR, 1.1)] * 2
    assert starts(network) == [0, HOUR]


def test_max_slowdown_bounds_matches() -> None:
    """A pair with a slowdown of 1.4 shares at that limit but not below it."""
    half = {"cpu": 0.6, "network": 0.4, "disk": 0.0}, {"cpu": 0.2, "network": 0.4, "disk": 0.4}
    for limit, joins in ((1.5, True), (1.4, False)):
        result = shared(workload_of(half), 1, SharingPolicy(heuristic="first", max_slowdown=limit))
        assert (starts(result)[1] == 0) == joins


def test_ac_always_shares_and_pays_for_paging() -> None:
    """Two full-memory jobs on one node are slowed by 1.4 for the CPU and by another 2.5."""
    hungry = {"cpu": 1.0, "disk": 0.0, "memory": 1.0}
    result = shared(workload_of([hungry, hungry]), 1, "AC")
    assert ends(result) == [lasts(HOUR, 1.4 + 2.5)] * 2
    assert starts(shared(workload_of([hungry, hungry]), 1)) == [0, HOUR]


def test_am_considers_only_the_next_job() -> None:
    """L-FM also finds a match behind it, and reorders the queue."""
    jobs = [CPU_JOB | {"kind": 1}, CPU_JOB | {"kind": 1}, DISK_JOB]
    assert starts(shared(workload_of(jobs), 1, "AM")) == [0, HOUR, HOUR]
    assert starts(shared(workload_of(jobs), 1, "L-FM"))[2] == 0


def test_backfilling_by_joining_never_delays_the_head() -> None:
    host, head = CPU_JOB | {"width": 2}, CPU_JOB | {"width": 3, "kind": 1, "submit": 1, "memory": 1.0}
    late, early = DISK_JOB | {"submit": 2}, DISK_JOB | {"submit": 2, "estimate": MINUTE + 1}
    # Joining slows the host, whose end is the shadow time: with a job as long, or as short, the head would be late.
    for job in (late, early):
        result = shared(workload_of([host, head, job | {"width": 2}]), 3, "L-FM")
        assert starts(result)[1] == HOUR
        assert starts(result)[2] > 2
    # If the head is as narrow as the host, the third node is to spare: who takes it breaks no promise.
    spare = shared(workload_of([host, head | {"width": 2}, late]), 3, "L-FM")
    assert starts(spare)[2] == 2


def test_candidates_forbidden_by_a_reservation_are_not_counted() -> None:
    """The number of the selected candidate is therefore always 1 for L-FM."""
    rng = np.random.default_rng(3)
    for backfill in ("easy", "conservative"):
        matches = 0
        for _ in range(10):
            result = shared(
                random_workload(rng, 8, coarse=False), 8, SharingPolicy(heuristic="first", backfill=backfill)
            )
            assert isinstance(result.own, SharedUse)
            matches += result.own.searches["matches"]
            assert result.own.searches["selected"] == result.own.searches["matches"]
        assert matches > 0


def test_a_policy_can_restrict_backfilled_jobs_to_idle_nodes() -> None:
    """The head still joins running jobs."""
    full = CPU_JOB | {"estimate": HOUR // 2, "memory": 1.0}
    jobs = workload_of([CPU_JOB | {"width": 2}, full, full | {"submit": 1}, DISK_JOB | {"submit": 2}])
    on_idle = SharingPolicy(heuristic="first", joins_behind=False)
    assert starts(shared(jobs, 3, "L-FM"))[2:] == [HOUR // 2, 2]
    assert starts(shared(jobs, 3, on_idle))[2:] == [HOUR // 2, HOUR // 2]


def test_long_jobs_overtake_short_ones_after_twice_the_aging_time() -> None:
    long = CPU_JOB | {"estimate": 2 * HOUR, "submit": 1}
    stream = [CPU_JOB | {"estimate": MINUTE, "submit": 2 + one * (MINUTE - 1)} for one in range(8)]
    jobs = workload_of([CPU_JOB | {"estimate": MINUTE}, long, *stream])
    aged = shared(jobs, 1, msgspec.structs.replace(VARIANTS["PSS"], aging_ms=1.5 * MINUTE))
    never = shared(jobs, 1, msgspec.structs.replace(VARIANTS["PSS"], aging_ms=float("inf")))
    assert starts(never)[1] == max(starts(never))
    assert 3 * MINUTE <= starts(aged)[1] < starts(never)[1]


def test_three_threads_per_core_let_three_jobs_share() -> None:
    """Each is slowed by both others."""
    jobs = [CPU_JOB, DISK_JOB | {"memory": 0.2}, {"cpu": 0.0, "network": 1.0, "disk": 0.0, "memory": 0.2}]
    policy = SharingPolicy(heuristic="first")
    result = shared(workload_of(jobs), [NodeKind(count=1, threads=3)], policy)
    assert starts(result) == [0, 0, 0]
    # CPU with disk: 0.4 x 0.1; CPU with network: 0.1; disk with network: nothing in common.
    first = lasts(HOUR, 1.04)
    assert ends(result)[1] == first
    assert ends(result)[0] > first > HOUR


def test_jobs_on_different_cores_do_not_share_a_cpu() -> None:
    heavy = {"cpu": 1.0, "disk": 0.0, "kind": 1}
    result = shared(workload_of([heavy, heavy]), [NodeKind(count=1, cores=2)], "AC")
    assert ends(result) == [HOUR, HOUR]
    both = shared(workload_of([heavy, heavy]), [NodeKind(count=1, cores=2)], "AC", cores=2)
    assert ends(both) == [2 * HOUR, 2 * HOUR]


def test_a_job_uses_the_kind_of_nodes_that_fits() -> None:
    """A job that is too wide for every kind is refused."""
    kinds = [NodeKind(count=2, memory=0.5), NodeKind(count=1)]
    result = shared(workload_of([CPU_JOB | {"memory": 0.9}, CPU_JOB | {"memory": 0.9, "width": 2}]), kinds)
    assert starts(result) == [0, -1]
    assert result.refused == ((2, "it needs 2 nodes; it can use only 1 of this site"),)


def test_the_slowdowns_of_table_1_can_be_used() -> None:
    """Two multiplying float jobs with 80k in the cache slow each other by 1.1."""
    jobs = workload_of([{"cpu": 1.0, "disk": 0.0, "kind": 1}] * 2)
    jobs = jobs.replace(columns={**jobs.columns, "cache_bytes": np.full(2, 80 * 1024)})
    result = shared(jobs, 1, "AC", model=SlowdownModel(cpu_factors=TABLE_1))
    assert ends(result) == [lasts(HOUR, 1.1)] * 2


def test_a_custom_slowdown_table_is_applied() -> None:
    """Rows are given or found by the resources that bound a job."""
    table = SlowdownTable("mine", ("cpu", "network", "disk"), [[1.5, 1, 1.25], [1, 1, 1], [1.75, 1, 1]])
    model = SlowdownModel(formula="measured", table=table)
    jobs = workload_of([CPU_JOB, DISK_JOB])
    end_cpu, end_disk = ends(shared(jobs, 1, "AC", model=model))
    assert end_cpu == lasts(HOUR, 1.25)
    assert lasts(HOUR, 1.25) < end_disk < lasts(HOUR, 1.75)
    assert ends(shared(jobs, 1, "AC", model=model, rows=[0, 0])) == [lasts(HOUR, 1.5)] * 2


# --- bad input -------------------------------------------------------------------------------------------------------


def _jobs(**changes: Sequence[float]) -> Workload:
    jobs = workload_of([CPU_JOB, DISK_JOB])
    return jobs.replace(columns={**jobs.columns, **{name: np.array(value) for name, value in changes.items()}})


def test_invalid_jobs_are_refused_by_id_and_field() -> None:
    with pytest.raises(InputError, match=r"job 2: its fractions .* sum to 1\.1;"):
        shared(_jobs(disk_fraction=[0.0, 1.0]), 1)
    with pytest.raises(InputError, match=r"job 1: cpu_kind 2 is not within 0 to 1"):
        shared(_jobs(cpu_kind=[2, 0]), 1)
    with pytest.raises(InputError, match=r"job 1: memory_fraction 1\.5 is not within 0 to 1"):
        _jobs(memory_fraction=[1.5, 0.5])
    with pytest.raises(InputError, match=r"job 2: cores 0 is not within 1 to 64"):
        shared(_jobs(), 1, cores=[1, 0])
    with pytest.raises(InputError, match=r"job 2: row 9 is not within 0 to 3"):
        shared(_jobs(), 1, model=SlowdownModel(formula="measured"), rows=[0, 9])
    with pytest.raises(InputError, match=r"row has shape \(1,\)"):
        shared(_jobs(), 1, model=SlowdownModel(formula="measured"), rows=[0])
    plain = _jobs()
    with pytest.raises(InputError, match="no column memory_fraction"):
        shared(plain.replace(columns={k: v for k, v in plain.columns.items() if k != "memory_fraction"}), 1)


def test_invalid_sites_are_refused() -> None:
    with pytest.raises(InputError, match=r"policy 'L-X' is not known; one of PSS"):
        shared(_jobs(), 1, "L-X")
    with pytest.raises(InputError, match="does not state the size of its machine"):
        shared(_jobs())
    with pytest.raises(InputError, match="at least one kind"):
        shared(_jobs(), [])
    with pytest.raises(OptionError, match="nodes: is 0; expected 1"):
        shared(_jobs(), 0)
    kinds = [NodeKind(count=1, memory=0.3), NodeKind(count=1)]
    with pytest.raises(InputError, match=r"job 1: not all nodes have the cores and the memory"):
        shared(_jobs(), kinds, SharingPolicy(backfill="conservative"))


def test_work_beyond_64_bits_is_refused() -> None:
    jobs = workload_of([CPU_JOB | {"width": 10**6, "estimate": 10**13}] * 2)
    with pytest.raises(InputError, match="its work exceeds"):
        shared(jobs, 10**6)


def test_slowdown_tables_are_read_from_csv(tmp_path: Path) -> None:
    """Errors name the file and the cell."""
    path = tmp_path / "mine.csv"
    path.write_text(",cpu,disk,network\ncpu,1.5,1,1\ndisk,1,1.9,1\nnetwork,1,1,1.4\n")
    assert read_slowdowns(path).slowdown.tolist() == [[1.5, 1, 1], [1, 1.9, 1], [1, 1, 1.4]]
    path.write_text(",cpu,disk\ncpu,1.5,0.9\ndisk,1,1.9\n")
    with pytest.raises(InputError, match=r"mine\.csv: row 'cpu', column 'disk': slowdown 0\.9 is not"):
        read_slowdowns(path)
    with pytest.raises(TraceError, match=r"absent\.csv: cannot be read"):
        read_slowdowns(tmp_path / "absent.csv")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="UTF-8"):
        read_slowdowns(path)


def test_an_empty_workload_gives_an_empty_schedule() -> None:
    nothing = workload_of([CPU_JOB]).take(np.zeros(1, np.bool_))
    metrics = shared(nothing, 4).sharing_metrics()
    assert metrics.jobs == 0
    assert np.isnan(metrics.art_ms)


def test_a_simulation_does_not_change_its_workload() -> None:
    workload = random_workload(np.random.default_rng(9), 5, coarse=False)
    before = copy.deepcopy({name: values.tolist() for name, values in workload.columns.items()})
    first, second = (shared(workload, 5, "L-R") for _ in range(2))
    assert ends(first) == ends(second)
    assert {name: values.tolist() for name, values in workload.columns.items()} == before

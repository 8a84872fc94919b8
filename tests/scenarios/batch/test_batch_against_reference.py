"""The compiled loop, the slow reference and SiteCore give the same schedule, job by job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.table import BoolArray, IntArray, Workload
from gridweave.site.kernels.order import ORDERS
from gridweave.site.policy import SitePolicy
from reference.simulation import simulate as simulate_reference
from reference.validation import validate
from support.builders import (
    HOUR,
    cancelling,
    cases,
    limit_lists,
    planning_options,
    queue_options,
    random_jobs,
    to_workload,
)
from support.stepping import is_expressible, site_limit, site_policy

POLICIES = [
    *({"discipline": "queue", "backfill": backfill} for backfill in ("none", "easy", "conservative")),
    *({"discipline": "queue", "backfill": "slack", "slack": slack} for slack in (0.0, 0.3, 2.0)),
    *({"discipline": "queue", "backfill": backfill, "choice": "best-fit"} for backfill in ("easy", "slack")),
    *({"discipline": "planning", "backfill": backfill} for backfill in ("none", "easy")),
]

# Only these have an index over the queue.
LONG_QUEUES = [one for one in POLICIES if one["discipline"] == "queue" and one["backfill"] != "conservative"]


def starts(workload: Workload, nodes: int, policy: SitePolicy, driver: str = "batch") -> dict[int, int]:
    """Return the start of every job that started, by its id."""
    result = simulate(workload, nodes, policy, driver=driver)
    ids, started = workload.job_id[result.ran].tolist(), result.start_ms[result.ran].tolist()
    return dict(zip(ids, started, strict=True))


def cancels_of(workload: Workload) -> tuple[IntArray, IntArray]:
    """Return the time and the id of each cancellation."""
    return np.asarray(workload.columns["cancel_ms"], np.int64), workload.job_id


def still_waiting(result: SimulationResult) -> BoolArray:
    """Return the jobs that had not started before their cancellation, by the stated rule."""
    cancel_ms, _ = cancels_of(result.workload)
    never = np.isin(result.workload.job_id, [job_id for job_id, _ in result.refused])
    waited: BoolArray = (cancel_ms >= 0) & ((result.start_ms < 0) | (result.start_ms >= cancel_ms)) & ~never
    return waited


@pytest.mark.parametrize("options", POLICIES, ids=lambda options: " ".join(str(v) for v in options.values()))
def test_only_waiting_jobs_are_cancelled(options: dict[str, Any]) -> None:
    rng = np.random.default_rng([POLICIES.index(options), 7])
    options = options | {"order": "sjf"}
    met = 0
    for _ in range(15):
        nodes = int(rng.integers(1, 24))
        jobs = random_jobs(rng, 40, nodes, load=float(rng.uniform(0.8, 1.6)))
        workload = cancelling(rng, to_workload(jobs))
        result = simulate(workload, nodes, site_policy(options))
        stepped = simulate(workload, nodes, site_policy(options), driver="core", check=True)
        assert result.start_ms.tolist() == stepped.start_ms.tolist()
        assert result.cancelled.tolist() == stepped.cancelled.tolist()
        assert result.cancelled.tolist() == still_waiting(result).tolist()
        cancels = np.stack(cancels_of(workload), axis=1)[result.cancelled].tolist()
        want = simulate_reference(jobs, nodes, cancellations=list(map(tuple, cancels)), **options)
        ran = result.ran
        assert dict(zip(workload.job_id[ran].tolist(), result.start_ms[ran].tolist(), strict=True)) == want.start
        met += int(result.cancelled.sum())
    assert met > 20


def test_a_cancellation_before_the_submission_is_refused() -> None:
    jobs = to_workload(random_jobs(np.random.default_rng(1), 5, 4))
    with pytest.raises(InputError, match="cancel_ms 0 is not after its submission"):
        simulate(jobs.replace(columns=dict(jobs.columns) | {"cancel_ms": [0] * 5}), 4)


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("options", POLICIES, ids=lambda options: " ".join(str(v) for v in options.values()))
def test_random_workloads_give_the_same_schedule(options: dict[str, Any], order: str) -> None:
    """25 workloads per policy, 2,500 in all, with loads from 0.5 to 1.6."""
    options = options | {"order": order, "aging_ms": 7.0}
    # crc-like spread of seeds: every policy has workloads of its own, the same in every run.
    rng = np.random.default_rng(
        [
            sorted(ORDERS).index(order),
            POLICIES.index({k: options[k] for k in options if k not in ("order", "aging_ms")}),
        ]
    )
    for number in range(25):
        nodes = int(rng.integers(1, 24))
        jobs = random_jobs(rng, int(rng.integers(2, 40)), nodes, load=float(rng.uniform(0.5, 1.6)))
        want = simulate_reference(jobs, nodes, **options).start
        workload, policy = to_workload(jobs), site_policy(options)
        assert starts(workload, nodes, policy) == want
        if number % 5 == 0:
            assert starts(workload, nodes, policy, "core") == want


@pytest.mark.parametrize("order", ["fcfs", "sjf", "ljf", "wfit", "priority"])
@pytest.mark.parametrize("options", LONG_QUEUES, ids=lambda options: " ".join(str(v) for v in options.values()))
def test_long_queues_give_the_same_schedule(options: dict[str, Any], order: str) -> None:
    """With hundreds of waiting jobs, the queue uses an index."""
    options = options | {"order": order, "aging_ms": 7.0}
    rng = np.random.default_rng([sorted(ORDERS).index(order), *str(options).encode()])
    for load in (4.0, 1e9):
        nodes = int(rng.integers(1, 40))
        jobs = random_jobs(rng, 550, nodes, load=load)
        want = simulate_reference(jobs, nodes, **options).start
        workload, policy = to_workload(jobs), site_policy(options)
        assert starts(workload, nodes, policy) == want
    assert starts(workload, nodes, policy, "core") == want


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_workloads_full_of_ties_give_the_same_schedule(data: st.DataObject) -> None:
    case = data.draw(cases(too_wide=2))
    options = data.draw(st.one_of(queue_options(), planning_options())) | {"aging_ms": 3.0}
    outcome = simulate_reference(case.jobs, case.nodes, **options)
    assert starts(to_workload(case.jobs), case.nodes, site_policy(options)) == outcome.start
    assert validate(outcome, case.jobs, case.nodes) == []


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_windows_and_caps_give_the_same_schedule_and_refusals(data: st.DataObject) -> None:
    case = data.draw(cases(tick=HOUR, too_wide=1))
    options = data.draw(planning_options()) | {"aging_ms": 3.0 * HOUR}
    limits = [limit for limit in data.draw(limit_lists(case.nodes)) if is_expressible(limit)]
    outcome = simulate_reference(case.jobs, case.nodes, limits=limits, **options)
    policy = site_policy(options | {"limits": tuple(site_limit(limit) for limit in limits)})
    result = simulate(to_workload(case.jobs), case.nodes, policy)
    assert {job_id for job_id, _ in result.refused} == set(outcome.refused)
    assert starts(to_workload(case.jobs), case.nodes, policy) == outcome.start


@settings(max_examples=100, deadline=None)
@given(cases(max_jobs=30), queue_options(), st.integers(1, 7))
def test_the_loop_can_stop_and_resume_after_any_submission(case: Any, options: dict[str, Any], length: int) -> None:
    from gridweave.scenarios.batch import one_site as simulator

    workload, policy = to_workload(case.jobs), site_policy(options | {"aging_ms": 3.0})
    whole = starts(workload, case.nodes, policy)
    saved = simulator._CHUNK
    try:
        simulator._CHUNK = length
        assert starts(workload, case.nodes, policy) == whole
    finally:
        simulator._CHUNK = saved

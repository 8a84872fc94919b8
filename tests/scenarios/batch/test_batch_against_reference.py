"""The compiled loop against the slow reference, and against SiteCore: the same schedule, job by job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import HOUR, cases, limit_lists, planning_options, queue_options, random_jobs, to_workload
from gridweave.scenarios.batch.simulate import simulate_policy
from gridweave.scenarios.workload.table import Workload
from gridweave.site.kernels.order import ORDERS
from gridweave.site.policy import SitePolicy
from reference.simulation import simulate as simulate_reference
from reference.validation import validate
from stepping import is_expressible, site_limit, site_policy

POLICIES = [
    *({"discipline": "queue", "backfill": backfill} for backfill in ("none", "easy", "conservative")),
    *({"discipline": "queue", "backfill": "slack", "slack": slack} for slack in (0.0, 0.3, 2.0)),
    *({"discipline": "queue", "backfill": backfill, "choice": "best-fit"} for backfill in ("easy", "slack")),
    *({"discipline": "planning", "backfill": backfill} for backfill in ("none", "easy")),
]

# Only these have an index over the queue.
LONG_QUEUES = [one for one in POLICIES if one["discipline"] == "queue" and one["backfill"] != "conservative"]


def starts(workload: Workload, nodes: int, policy: SitePolicy, driver: str = "batch") -> dict[int, int]:
    """Return the start of every job that was started, by its id."""
    result = simulate_policy(workload, nodes, policy, driver=driver)
    ids, started = workload.job_id[result.ran].tolist(), result.start_ms[result.ran].tolist()
    return dict(zip(ids, started, strict=True))


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("options", POLICIES, ids=lambda options: " ".join(str(v) for v in options.values()))
def test_random_workloads(options: dict[str, Any], order: str) -> None:
    """Loop, core and reference give one schedule on 25 random workloads per policy, 2,500 in all, loads 0.5 to 1.6."""
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
def test_long_queues(options: dict[str, Any], order: str) -> None:
    """Where hundreds of jobs wait, so that the queue has an index, loop, core and reference still give one schedule."""
    options = options | {"order": order, "aging_ms": 7.0}
    rng = np.random.default_rng([sorted(ORDERS).index(order), *str(options).encode()])
    for load in (4.0, 1e9):
        nodes = int(rng.integers(1, 40))
        jobs = random_jobs(rng, 550, nodes, load=load)
        want = simulate_reference(jobs, nodes, **options).start
        workload, policy = to_workload(jobs), site_policy(options)
        assert starts(workload, nodes, policy) == want
    assert starts(workload, nodes, policy, "core") == want


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_coarse_workloads_full_of_ties(data: st.DataObject) -> None:
    """Loop and reference agree where ends, submissions and shadow times fall on one instant all the time."""
    case = data.draw(cases(too_wide=2))
    options = data.draw(st.one_of(queue_options(), planning_options())) | {"aging_ms": 3.0}
    outcome = simulate_reference(case.jobs, case.nodes, **options)
    assert starts(to_workload(case.jobs), case.nodes, site_policy(options)) == outcome.start
    assert validate(outcome, case.jobs, case.nodes) == []


@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_limits(data: st.DataObject) -> None:
    """Loop and reference agree under windows and caps, refusals included."""
    case = data.draw(cases(tick=HOUR, too_wide=1))
    options = data.draw(planning_options()) | {"aging_ms": 3.0 * HOUR}
    limits = [limit for limit in data.draw(limit_lists(case.nodes)) if is_expressible(limit)]
    outcome = simulate_reference(case.jobs, case.nodes, limits=limits, **options)
    policy = site_policy(options | {"limits": tuple(site_limit(limit) for limit in limits)})
    result = simulate_policy(to_workload(case.jobs), case.nodes, policy)
    assert {job_id for job_id, _ in result.refused} == set(outcome.refused)
    assert starts(to_workload(case.jobs), case.nodes, policy) == outcome.start


@settings(max_examples=100, deadline=None)
@given(cases(max_jobs=30), queue_options(), st.integers(1, 7))
def test_slices_do_not_show(case: Any, options: dict[str, Any], length: int) -> None:
    """The loop may be stopped after any number of submissions and taken up again."""
    from gridweave.scenarios.batch import simulate as simulator

    workload, policy = to_workload(case.jobs), site_policy(options | {"aging_ms": 3.0})
    whole = starts(workload, case.nodes, policy)
    saved = simulator._SLICE
    try:
        simulator._SLICE = length
        assert starts(workload, case.nodes, policy) == whole
    finally:
        simulator._SLICE = saved

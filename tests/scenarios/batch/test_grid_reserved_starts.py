"""The grid loop with reserved starts, against the slow reference and against a single site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from reference.grid_conservative import simulate_reserved
from reference.model import Job
from reference.ordering import ORDERS
from support.builders import assert_alike, cancelling, grid_cases, grid_options, random_jobs, to_workload

MODES = ("sharing", "multi-site", "adaptive")
SENSITIVITIES = (1.0, 1.0, 0.0, 0.3, 2.5)

POLICIES: list[dict[str, Any]] = [
    *(
        {"mode": "sharing", "selection": selection}
        for selection in ("best-fit", "biggest-free", "equal-util", "random", "earliest-end")
    ),
    {"mode": "sharing", "order": "sjf"},
    *({"mode": "multi-site", "overhead": overhead} for overhead in (0.0, 0.3, 1.7)),
    {"mode": "multi-site", "overhead": 0.3, "lower_bound": 4},
    {"mode": "multi-site", "overhead": 0.3, "max_fragments": ((4, 1), (8, 2), (16, 3))},
    {"mode": "multi-site", "overhead": (0.7, 0.0), "selection": "random"},
    *({"mode": "adaptive", "overhead": overhead} for overhead in (0.0, 0.3, 1.7)),
    {"mode": "adaptive", "overhead": 0.4, "selection": "equal-util", "max_fragments": ((8, 2),)},
    {"mode": "adaptive", "overhead": 0.25, "lower_bound": 3, "order": "sjf"},
    {"mode": "adaptive", "overhead": (0.1, 0.3, 0.9), "order": "laf"},
    {"mode": "adaptive", "overhead": (0.4, 0.0, 1.2), "selection": "biggest-free"},
]


class SameDraws:
    """A generator that returns prepared draws, so that kernel and reference use the same."""

    def __init__(self, draws: Sequence[float]) -> None:
        self._draws = draws

    def random(self, count: int) -> np.ndarray:
        """Return the draws, one per job."""
        assert count == len(self._draws)
        return np.array(self._draws)


def agree(
    jobs: Sequence[Job],
    nodes: Sequence[int],
    options: dict[str, Any],
    rng: np.random.Generator,
    *,
    users_cancel: bool = False,
) -> SimulationResult:
    """Run both, compare them, and return our result."""
    workload = to_workload(jobs)
    if users_cancel:
        workload = cancelling(rng, workload)
    ids = workload.job_id.tolist()
    draws = rng.random(len(ids)).tolist()
    factors = rng.choice(SENSITIVITIES, len(ids))
    by_id = {
        "draws": dict(zip(ids, draws, strict=True)),
        "sensitivity": dict(zip(ids, factors.tolist(), strict=True)),
    }
    policy = GridPolicy(
        **options | {"max_fragments": tuple(options.get("max_fragments") or ())}, backfill="conservative"
    )
    chance: Any = SameDraws(draws)
    got = simulate(workload, nodes, policy, rng=chance, sensitivity=factors)
    cancelled = np.flatnonzero(got.cancelled).tolist()
    cancels = [(int(workload.columns["cancel_ms"][row]), ids[row]) for row in cancelled]  # type: ignore[call-overload]
    want = simulate_reserved(jobs, nodes, **by_id, **options, cancellations=cancels)
    if users_cancel:
        cancel_ms = np.asarray(workload.columns["cancel_ms"], np.int64)
        assert (got.start_ms[got.ran & (cancel_ms >= 0)] < cancel_ms[got.ran & (cancel_ms >= 0)]).all()
    assert_alike(got, want)
    return got


@pytest.mark.parametrize("number", range(len(POLICIES)), ids=[str(sorted(p.items())) for p in POLICIES])
def test_random_workloads_give_the_same_schedule(number: int) -> None:
    """25 workloads per policy, with up to 45 jobs on up to 6 sites."""
    rng = np.random.default_rng([11, number])
    split = 0
    for each in range(25):
        nodes = rng.integers(1, 17, int(rng.integers(1, 7))).tolist()
        jobs = random_jobs(rng, int(rng.integers(2, 45)), sum(nodes), load=float(rng.uniform(0.5, 1.6)))
        split += int(agree(jobs, nodes, POLICIES[number], rng, users_cancel=each % 3 == 0).multi_site.sum())
    assert (split > 0) == (POLICIES[number]["mode"] != "sharing")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_workloads_full_of_ties_give_the_same_schedule(data: st.DataObject) -> None:
    """Sites have equal sizes."""
    case = data.draw(grid_cases(too_wide=1))
    options = data.draw(grid_options(MODES, orders=ORDERS))
    del options["backfill"]
    agree(case.jobs, case.nodes, options, np.random.default_rng(data.draw(st.integers(0, 2**32))))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(MODES), st.sampled_from(("fcfs", "sjf", "laf")))
def test_a_grid_of_one_site_equals_its_conservative_queue(seed: int, mode: str, order: str) -> None:
    rng = np.random.default_rng(seed)
    workload = cancelling(rng, to_workload(random_jobs(rng, 40, 12, load=1.0)))
    own = simulate(workload, 12, order=order, backfill="conservative").start_ms
    policy = GridPolicy(mode=mode, order=order, backfill="conservative", overhead=0.3)
    assert simulate(workload, [12], policy).start_ms.tolist() == own.tolist()


def test_under_mode_local_each_site_keeps_its_own_reservations() -> None:
    jobs = random_jobs(np.random.default_rng(3), 60, 8, load=1.5)
    workload = to_workload(jobs)
    result = simulate(workload, [8, 8], GridPolicy(mode="local", backfill="conservative"))
    for site in (0, 1):
        rows = np.arange(len(workload)) % 2 == site
        ids = set(workload.job_id[rows].tolist())
        own = simulate(to_workload([one for one in jobs if one.id in ids]), 8, backfill="conservative")
        assert result.start_ms[rows].tolist() == own.start_ms.tolist()


def test_the_plan_grows_with_the_queue() -> None:
    """A thousand simultaneous jobs for one node exceed the initial capacity of the plan."""
    jobs = [Job(number, 0, 1, 7, 7) for number in range(1, 1001)]
    policy = GridPolicy(mode="sharing", backfill="conservative")
    result = simulate(to_workload(jobs), [2, 3], policy)
    assert result.start_ms.tolist() == [7 * (number // 5) for number in range(1000)]


def test_a_reserved_start_needs_no_other_event() -> None:
    """If further fragments take much longer, nothing else may happen at a reserved start."""
    rng = np.random.default_rng(11)
    options: dict[str, Any] = {"mode": "multi-site", "overhead": (0.1, 0.6, 2.0), "order": "sjf"}
    nodes = (10, 10, 7, 5, 3)
    alone = 0
    for _ in range(100):
        jobs = random_jobs(rng, 40, sum(nodes), load=1.2)
        result = simulate(to_workload(jobs), nodes, GridPolicy(**options, backfill="conservative"))
        events = {*result.workload.submit_ms.tolist(), *result.end_ms.tolist()}
        if any(start not in events for start in result.start_ms.tolist()):
            assert dict(zip(result.workload.job_id.tolist(), result.start_ms.tolist(), strict=True)) == (
                simulate_reserved(jobs, nodes, **options).start
            )
            alone += 1
    assert alone > 0

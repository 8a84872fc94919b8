"""The grid queue's compiled loop and the slow reference give the same starts on the same nodes and sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.grid.kernels.candidates import STRETCH
from gridweave.grid.kernels.state import BLOCK
from gridweave.grid.policy import LIMITED_FRAGMENTS, GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from reference.grid import HEAD_RESERVATIONS
from reference.grid import simulate_grid as simulate_reference
from reference.model import Job
from support.builders import assert_alike, cancelling, grid_cases, grid_options, random_jobs, to_workload

POLICIES: list[dict[str, Any]] = [
    {"mode": "local"},
    *(
        {"mode": "sharing", "selection": selection}
        for selection in ("best-fit", "biggest-free", "equal-util", "random", "earliest-end")
    ),
    {"mode": "sharing", "backfill": "none"},
    *({"mode": "multi-site", "overhead": overhead} for overhead in (0.0, 0.3, 1.7)),
    {"mode": "multi-site", "overhead": 0.3, "lower_bound": 4},
    {"mode": "multi-site", "overhead": 0.3, "max_fragments": ((4, 1), (8, 2), (16, 3))},
    {"mode": "multi-site", "overhead": 0.1, "backfill": "none", "selection": "random"},
    *({"mode": "adaptive", "overhead": overhead} for overhead in (0.0, 0.3, 1.7)),
    {"mode": "adaptive", "overhead": 0.4, "selection": "equal-util", "max_fragments": ((8, 2),)},
    *({"mode": "adaptive", "overhead": overhead, "head_reservation": "single-site"} for overhead in (0.0, 0.3)),
    {"mode": "multi-site", "overhead": 0.2, "head_reservation": "single-site", "max_fragments": ((8, 2),)},
    {"mode": "multi-site", "overhead": 0.3, "head_reservation": "nothing"},
    {"mode": "adaptive", "overhead": 0.3, "head_reservation": "nothing", "order": "sjf"},
    {"mode": "adaptive", "overhead": 0.25, "lower_bound": 3, "order": "sjf"},
    {"mode": "multi-site", "overhead": (0.1, 0.2, 0.5)},
    {"mode": "multi-site", "overhead": (0.7, 0.0), "selection": "earliest-end"},
    {"mode": "adaptive", "overhead": (0.1, 0.3, 0.9), "order": "laf"},
    {"mode": "adaptive", "overhead": (0.4, 0.0, 1.2), "selection": "biggest-free"},
]

SENSITIVITIES = (1.0, 1.0, 0.0, 0.3, 2.5)
"""Of the jobs to overhead."""


class SameDraws:
    """A generator that returns prepared draws, so that kernel and reference use the same."""

    def __init__(self, draws: Sequence[float]) -> None:
        self._draws = draws

    def random(self, count: int) -> np.ndarray:
        """Return the draws, one per job."""
        assert count == len(self._draws)
        return np.array(self._draws)


def agree(
    jobs: Sequence[Job], nodes: Sequence[int], options: dict[str, Any], rng: np.random.Generator
) -> SimulationResult:
    """Run both, compare them, and return our result."""
    workload = to_workload(jobs)
    ids = workload.job_id.tolist()
    draws = rng.random(len(ids)).tolist()
    homes = rng.integers(0, len(nodes), len(ids))
    factors = rng.choice(SENSITIVITIES, len(ids))
    want = simulate_reference(
        jobs,
        nodes,
        home=dict(zip(ids, homes.tolist(), strict=True)),
        draws=dict(zip(ids, draws, strict=True)),
        sensitivity=dict(zip(ids, factors.tolist(), strict=True)),
        **options,
    )
    policy = GridPolicy(**options | {"max_fragments": tuple(options.get("max_fragments") or ())})
    chance: Any = SameDraws(draws)
    got = simulate(workload, nodes, policy, home=homes, rng=chance, sensitivity=factors)
    assert_alike(got, want)
    return got


@pytest.mark.parametrize("number", range(len(POLICIES)), ids=[str(sorted(p.items())) for p in POLICIES])
def test_random_workloads_give_the_same_schedule(number: int) -> None:
    """40 workloads per policy, with up to 60 jobs on up to 6 sites."""
    rng = np.random.default_rng([7, number])
    split = 0
    for _ in range(40):
        nodes = rng.integers(1, 17, int(rng.integers(1, 7))).tolist()
        jobs = random_jobs(rng, int(rng.integers(2, 60)), sum(nodes), load=float(rng.uniform(0.5, 1.6)))
        split += int(agree(jobs, nodes, POLICIES[number], rng).multi_site.sum())
    assert (split > 0) == (POLICIES[number]["mode"] in ("multi-site", "adaptive"))


@pytest.mark.parametrize("number", range(len(POLICIES)), ids=[str(sorted(p.items())) for p in POLICIES])
def test_many_similar_sites_give_the_same_schedule(number: int) -> None:
    """30 to 60 sites, most of them alike at any time."""
    rng = np.random.default_rng([8, number])
    split = 0
    for tick in (1, 50, 400):
        nodes = rng.choice((2, 3, 8), int(rng.integers(30, 61))).tolist()
        jobs = random_jobs(rng, 90, sum(nodes) // 4, load=float(rng.uniform(4, 8)), tick=tick)
        split += int(agree(jobs, nodes, POLICIES[number], rng).multi_site.sum())
    assert (split > 0) == (POLICIES[number]["mode"] in ("multi-site", "adaptive"))


@pytest.mark.parametrize("mode", ["sharing", "multi-site", "adaptive"])
def test_hundreds_of_running_jobs_give_the_same_schedule(mode: str) -> None:
    """They exceed a block of running jobs, then shrink again; many end at the same time."""
    rng = np.random.default_rng(9)
    jobs = [
        Job(
            number + 1,
            number // 3 + 600 * (number // 320),
            int(width),
            int(estimate),
            int(rng.integers(1, estimate + 1)),
        )
        for number, (width, estimate) in enumerate(
            zip(rng.integers(1, 4, 480), rng.integers(1, 40, 480) * 10, strict=True)
        )
    ]
    got = agree(jobs, [4] * 60 + [2] * 20, {"mode": mode, "overhead": (0.1, 0.2)}, rng)
    running = [(got.start_ms <= start) & (start < got.end_ms) for start in got.start_ms.tolist()]
    assert max(int(ones.sum()) for ones in running) > 2 * BLOCK


@pytest.mark.parametrize("order", ["fcfs", "sjf"])
@pytest.mark.parametrize("mode", ["sharing", "multi-site", "adaptive"])
def test_long_queues_give_the_same_schedule(mode: str, order: str) -> None:
    """They exceed the number of jobs examined at once; many may start in one pass."""
    rng = np.random.default_rng(10)
    jobs = random_jobs(rng, 8 * STRETCH, 24, load=12.0)
    got = agree(jobs, [4, 8, 12], {"mode": mode, "order": order, "overhead": (0.1, 0.4)}, rng)
    waiting = [(got.workload.submit_ms <= at_ms) & (got.start_ms > at_ms) for at_ms in got.start_ms.tolist()]
    assert max(int(ones.sum()) for ones in waiting) > 2 * STRETCH


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_workloads_full_of_ties_give_the_same_schedule(data: st.DataObject) -> None:
    """Sites have equal sizes."""
    case = data.draw(grid_cases())
    options = data.draw(grid_options(heads=HEAD_RESERVATIONS))
    agree(case.jobs, case.nodes, options, np.random.default_rng(data.draw(st.integers(0, 2**32))))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_a_grid_of_one_site_equals_its_easy_queue(seed: int) -> None:
    rng = np.random.default_rng(seed)
    workload = cancelling(rng, to_workload(random_jobs(rng, 40, 12, load=1.0)))
    own = simulate(workload, 12, order="sjf").start_ms
    assert simulate(workload, [12], GridPolicy(mode="sharing", order="sjf")).start_ms.tolist() == own.tolist()


def test_the_fragment_limits_follow_table_7_5() -> None:
    """Up to 64 nodes one fragment, up to 128 two, up to 512 eight."""
    nodes = np.array([32] * 16)
    policy = GridPolicy(mode="multi-site", max_fragments=LIMITED_FRAGMENTS)
    allowed = {width: policy.why_never(nodes, width) is None for width in (32, 33, 64, 65, 128, 256, 257, 512)}
    # On sites of 32 nodes the fewest fragments are width / 32, rounded up.
    assert allowed == {32: True, 33: False, 64: False, 65: False, 128: False, 256: True, 257: False, 512: False}

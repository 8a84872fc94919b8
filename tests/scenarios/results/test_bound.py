"""The least maximum stretch of any schedule: flow against linear program, and every discipline against the bound."""

from __future__ import annotations

import numpy as np
import pytest

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.bound import stretch_bound
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.fractional.policy import FractionalPolicy


def random_workload(rng: np.random.Generator, nodes: int) -> Workload:
    """Return up to thirty jobs, some shorter than the bounded stretch's ten seconds."""
    count = int(rng.integers(1, 30))
    run_ms = rng.integers(1_000, 200_000, count)
    return Workload(
        job_id=np.arange(1, count + 1),
        submit_ms=np.sort(rng.integers(0, count * 20_000, count)),
        width=rng.integers(1, nodes + 1, count),
        estimate_ms=run_ms,
        run_ms=run_ms,
        columns={"cpu_need": rng.choice([0.25, 0.3, 1.0], count), "memory_fraction": rng.choice([0.1, 0.5], count)},
    )


def test_flow_and_linear_program_agree() -> None:
    """HiGHS is exact to 10^-7, so a difference of one thousandth is allowed."""
    rng = np.random.default_rng(1)
    above = 0
    for _ in range(25):
        nodes = int(rng.integers(1, 5))
        workload = random_workload(rng, nodes)
        flow, lp = stretch_bound(workload, nodes), stretch_bound(workload, nodes, method="lp")
        assert flow == pytest.approx(lp, abs=0.0011)
        above += flow > 1
    assert above > 10


def test_no_schedule_beats_the_bound() -> None:
    """Neither a queue nor any fractional algorithm has a lower maximum stretch."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        workload = random_workload(rng, 3)
        bound = stretch_bound(workload, 3)
        free = FractionalPolicy(algorithm="MCB8*/per/OPT=MIN", penalty_ms=0, period_ms=10_000)
        for policy in (None, FractionalPolicy(), free):
            result = simulate(workload, 3, policy)
            stretch = np.maximum(result.end_ms - workload.submit_ms, 10_000) / np.maximum(workload.run_ms, 10_000)
            assert stretch.max() >= bound


@pytest.mark.parametrize(
    ("submit_s", "run_s", "width", "bound"),
    [
        ((0, 0, 0), (60, 60, 60), (1, 1, 1), 1.5),  # three minutes of work on two nodes
        ((0, 0), (60, 60), (2, 2), 2.0),
        ((0, 0), (1, 1), (2, 2), 1.0),  # within ten seconds all stretches are 1
        ((0, 30), (60, 10), (2, 2), 7 / 6),  # the long one yields to the short one
    ],
)
def test_bounds_of_examples_computed_by_hand(
    submit_s: tuple[int, ...], run_s: tuple[int, ...], width: tuple[int, ...], bound: float
) -> None:
    """On two nodes; the bound is less than a thousandth below the exact value."""
    workload = Workload(
        job_id=np.arange(len(run_s)),
        submit_ms=np.array(submit_s) * 1000,
        width=width,
        estimate_ms=np.array(run_s) * 1000,
        run_ms=np.array(run_s) * 1000,
    )
    assert bound - 0.0011 <= stretch_bound(workload, 2) <= bound


def test_unknown_methods_and_empty_workloads_are_refused() -> None:
    none = Workload(job_id=[], submit_ms=[], width=[], estimate_ms=[], run_ms=[])
    with pytest.raises(InputError, match="has no jobs"):
        stretch_bound(none, 2)
    one = Workload(job_id=[1], submit_ms=[0], width=[1], estimate_ms=[1], run_ms=[1])
    with pytest.raises(OptionError, match="one of flow, lp"):
        stretch_bound(one, 2, method="guess")

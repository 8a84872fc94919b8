"""The best plan of an instant: both solvers against brute force, the repair, the bound, and invalid arguments."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from gridweave.errors import OptionError, UnavailableError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.optimum.table import (
    GapPoint,
    by_size,
    instance_at,
    instants_by_size,
    instants_of,
    lines_of,
    write_gaps,
)
from gridweave.scenarios.optimum.time_indexed import solve, solve_time_indexed, time_scale_s
from gridweave.site.disciplines.dynp.policy import DynPPolicy
from gridweave.site.disciplines.optimal.instance import METRICS, Instance
from gridweave.site.disciplines.optimal.intervals import solve_intervals
from gridweave.site.policy import SitePolicy
from support.builders import random_jobs, to_workload

THREE = ("fcfs", "sjf", "ljf")
S_MS = 1000


def random_instance(rng: np.random.Generator, count: int) -> Instance:
    """Return an instance with times in full seconds and some nodes occupied at first."""
    nodes = int(rng.integers(2, 9))
    ends = np.sort(rng.choice(np.arange(1, 30), size=int(rng.integers(0, 4)), replace=False))
    free = np.sort(rng.integers(0, nodes + 1, len(ends)))
    return Instance(
        now_ms=50 * S_MS,
        job_id=np.arange(1, count + 1),
        submit_ms=np.sort(rng.integers(0, 51, count)) * S_MS,
        width=rng.integers(1, nodes + 1, count),
        estimate_ms=rng.integers(1, 20, count) * S_MS,
        step_ms=(50 + np.concatenate([[0], ends])) * S_MS,
        step_free=np.concatenate([free, [nodes]]),
    )


def brute_force(instance: Instance, metric: str) -> float:
    """Return the worth of the best list schedule over all orders, one of which is optimal."""
    orders = itertools.permutations(range(len(instance)))
    return min(instance.worth(instance.listed(list(order)), metric) for order in orders)


@pytest.mark.parametrize("metric", METRICS)
def test_intervals_find_the_optimum(metric: str) -> None:
    """CP-SAT finds and proves the optimum that brute force over all orders finds."""
    rng = np.random.default_rng([METRICS.index(metric), 46])
    for _ in range(6):
        instance = random_instance(rng, int(rng.integers(1, 7)))
        found = solve_intervals(instance, metric=metric)
        assert instance.is_plan(found.start_ms)
        # Weights that are no whole numbers are rounded to one part in 2^20.
        assert found.worth == pytest.approx(brute_force(instance, metric), rel=1e-5)
        assert found.bound == found.worth <= found.policy_worth
        assert found.gap_pct == 0


def test_the_integer_program_finds_the_optimum() -> None:
    """On a time scale that divides all times, the thesis's program is exact."""
    rng = np.random.default_rng(7)
    for _ in range(4):
        instance = random_instance(rng, int(rng.integers(2, 6)))
        found = solve_time_indexed(instance, scale_s=1)
        assert instance.is_plan(found.start_ms)
        assert found.worth == pytest.approx(brute_force(instance, "artww"))


def test_a_coarse_time_scale_may_miss_the_optimum() -> None:
    """On a coarse scale the repaired plan is feasible, not better than the optimum, and reports its scale."""
    rng = np.random.default_rng(8)
    for _ in range(4):
        instance = random_instance(rng, 5)
        found = solve_time_indexed(instance, scale_s=7)
        assert instance.is_plan(found.start_ms)
        assert found.worth >= solve_intervals(instance).worth - 1e-6
        assert found.scale_s == 7


def test_the_time_scale_is_that_of_the_thesis() -> None:
    """It follows equation 4.7, rounded up to full minutes; less memory makes it coarser."""
    # Ten equal jobs that all start at once.
    run_s = 1_862_437
    lengths = np.full(10, run_s * S_MS // 10)
    instance = Instance(
        now_ms=0, job_id=np.arange(10), submit_ms=np.zeros(10, np.int64), width=np.ones(10, np.int64),
        estimate_ms=lengths, step_ms=np.zeros(1, np.int64), step_free=np.full(1, 10),
    )  # fmt: skip
    # sqrt(186,243.7 s x 1,862,437 s / 2,000,000) = 416.5 s.
    assert time_scale_s(instance) == 7 * 60
    assert time_scale_s(instance, memory_kb=20_000.0) == 22 * 60


def test_an_instant_of_a_schedule_is_planned_as_the_site_did() -> None:
    """Planned in the order in force, the waiting jobs that start now are those that the schedule started."""
    workload = to_workload(random_jobs(np.random.default_rng(3), 120, 10, load=1.3, tick=S_MS))
    result = simulate(workload, 10, SitePolicy(discipline="planning", order="sjf"))
    met = 0
    for when_ms in instants_of(result, 1):
        instance = instance_at(result, when_ms)
        started = result.workload.job_id[result.start_ms == when_ms]
        assert set(instance.job_id[instance.planned("sjf") == when_ms]) == set(started)
        met += len(started)
    assert met > 10


def test_lines_report_the_loss_of_policies() -> None:
    """At the instants of a run, no exact plan is worse than the best policy, and some are better."""
    workload = to_workload(random_jobs(np.random.default_rng(5), 60, 8, load=1.3, tick=S_MS))
    result = simulate(workload, 8, DynPPolicy())
    lines = list(lines_of(result, instants_of(result, 3, most=8), limit_s=600.0))
    assert len(lines) > 4
    assert min(line.loss_pct for line in lines) > -1e-9
    assert max(line.loss_pct for line in lines) > 0.1
    assert all(line.gap_pct == 0 for line in lines)


def test_losses_by_the_number_of_waiting_jobs(tmp_path: Path) -> None:
    """Instants have about the requested number of jobs; gaps close over time, as the file shows."""
    workload = to_workload(random_jobs(np.random.default_rng(5), 60, 8, load=1.5, tick=S_MS))
    result = simulate(workload, 8, DynPPolicy())
    instants_ms = instants_by_size(result, [2, 5, 10_000], 2)
    assert [len(of_size) for of_size in instants_ms.values()] == [2, 1, 0]
    heard: list[GapPoint | None] = []
    lines = {
        size: list(lines_of(result, of_size, lambda done, total, point: heard.append(point), limit_s=600.0))
        for size, of_size in instants_ms.items()
    }
    assert [line.jobs for of_size in lines.values() for line in of_size] == [2, 2, 5]
    found = by_size(lines)
    assert [(line.jobs, line.instants, line.proven) for line in found] == [(2, 2, 2), (5, 1, 1)]
    course = [point for line in lines[5] for point in line.course]
    assert [point for point in heard if point is not None]
    for line in lines[5]:
        gaps = [point.gap_pct for point in line.course]
        assert gaps == sorted(gaps, reverse=True)
        assert gaps[-1] == pytest.approx(0, abs=1e-9)
    write_gaps(lines[5], tmp_path / "gap.csv")
    assert len((tmp_path / "gap.csv").read_text().splitlines()) == 1 + len(course)


def test_invalid_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instants outside the schedule, unknown metrics and solvers, and missing OR-Tools give one line each."""
    workload = to_workload(random_jobs(np.random.default_rng(5), 20, 8, tick=S_MS))
    result = simulate(workload, 8, DynPPolicy())
    with pytest.raises(OptionError, match=r"at: .* s is outside of the schedule, which is from 0 to"):
        instance_at(result, 10**12)
    instance = random_instance(np.random.default_rng(1), 3)
    with pytest.raises(OptionError, match="metric: 'makespan' is not a weighted sum of response times; one of artww"):
        solve(instance, metric="makespan")
    with pytest.raises(OptionError, match="solver: 'cplex' is not known; one of cp-sat, highs"):
        solve(instance, "cplex")
    with pytest.raises(OptionError, match="every: is 0; expected at least 1"):
        instants_of(result, 0)
    with pytest.raises(OptionError, match="sizes: has 1; expected at least 2 jobs"):
        instants_by_size(result, [1], 1)
    with pytest.raises(OptionError, match="per_size: is 0; expected at least 1"):
        instants_by_size(result, [2], 0)
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(
        UnavailableError, match="OR-Tools is not installed; in a checkout of gridweave run: pip install"
    ):
        solve_intervals(instance)

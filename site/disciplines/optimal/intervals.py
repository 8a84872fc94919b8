"""Find the best plan for an `Instance` with CP-SAT: one interval per job and one cumulative constraint."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gridweave.errors import not_installed
from gridweave.site.disciplines.optimal.instance import FloatArray, Instance, IntArray

THREE = ("fcfs", "sjf", "ljf")
"""The policies in Streit's thesis."""

WORKERS = 8
"""Number of parallel CP-SAT searches, even on fewer cores: they work differently, and a single one proves little."""

Progress = Callable[[float, float], None]
"""A function called with the value of the best plan so far and the bound, whenever either improves."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Solution:
    """A plan, and a proven bound on the value of any plan.

    Attributes
    ----------
    start_ms : numpy.ndarray of int64, shape (n,)
    worth : float
        The plan's value in the metric; lower is better.
    bound : float
        Proven lower bound on the value of any plan. Minus infinity if nothing was proven.
    seconds : float
        Run time of the solver.
    policy : str
        The policy with the best plan.
    policy_worth : float
        The value of that policy's plan.
    scale_s : int
        The time scale in seconds; 0 if there is none.
    scale_gap_pct : float, optional
        Maximum possible improvement, in per cent, of any plan on the time scale over the best such plan found; None if
        there is no time scale.
    """

    start_ms: IntArray
    worth: float
    bound: float
    seconds: float
    policy: str
    policy_worth: float
    scale_s: int = 0
    scale_gap_pct: float | None = None

    @property
    def quality(self) -> float:
        """The plan's value divided by the value of the best policy's plan (equation 4.8)."""
        return self.worth / self.policy_worth

    @property
    def loss_pct(self) -> float:
        """Loss of the best policy relative to this plan in per cent; negative if a time scale makes this plan worse."""
        return 100.0 * (1.0 - self.quality)

    @property
    def gap_pct(self) -> float:
        """Maximum possible improvement of any plan over this plan, in per cent; 0 if this plan is proven optimal."""
        return 100.0 * max(0.0, 1.0 - self.bound / self.worth)


def solve_intervals(
    instance: Instance,
    *,
    metric: str = "artww",
    policies: Sequence[str] = THREE,
    limit_s: float = 60.0,
    effort_s: float = math.inf,
    workers: int = WORKERS,
    progress: Progress | None = None,
) -> Solution:
    """Find the best plan with CP-SAT, with interval variables and a cumulative constraint, exact to the millisecond.

    Parameters
    ----------
    instance : Instance
    metric : str
        One of `gridweave.site.disciplines.optimal.instance.METRICS`.
    policies : sequence of str
        The search starts from the best of these policies' plans.
    limit_s : float
        Time limit for the search in seconds; the best plan found by then is returned.
    effort_s : float
        Limit on the search effort, in the solver's deterministic time, whose units are about a second.
    workers : int
        Number of parallel searches, one thread each; some only look for bounds. With 1 worker, the plan is the same on
        every machine unless ``limit_s`` is reached.
    progress : Progress, optional

    Returns
    -------
    Solution
        Its plan is never worse than the best policy's plan.

    Raises
    ------
    UnavailableError
        If OR-Tools is not installed.
    """
    cp_model = cp_model_of()
    best, plan = instance.best_policy(policies, metric)
    unit_ms = int(np.gcd.reduce(np.concatenate([instance.estimate_ms, instance.step_ms - instance.now_ms])))
    model, starts = _interval_model(cp_model, instance, plan, unit_ms)
    weights = instance.weights(metric)
    coefficients = _whole(weights)
    model.minimize(sum(int(weight) * start for weight, start in zip(coefficients, starts, strict=True)))
    solver = _solver(cp_model, limit_s, effort_s, workers)
    per_unit = float(weights.sum() / coefficients.sum()) * unit_ms
    offset = instance.worth(np.full(len(instance), instance.now_ms), metric)
    improvements = None if progress is None else _Improvements(progress, offset, per_unit, instance.worth(plan, metric))
    status = solver.solve(model, None if improvements is None else _watch(cp_model, solver, improvements))
    start_ms, bound = plan, -math.inf
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        solved_ms = instance.now_ms + unit_ms * np.array([solver.value(start) for start in starts], np.int64)
        start_ms = solved_ms if instance.worth(solved_ms, metric) <= instance.worth(plan, metric) else plan
        bound = offset + per_unit * solver.best_objective_bound
    worth = instance.worth(start_ms, metric)
    return Solution(
        start_ms=start_ms,
        worth=worth,
        bound=worth if status == cp_model.OPTIMAL else min(bound, worth),
        seconds=solver.wall_time,
        policy=best,
        policy_worth=instance.worth(plan, metric),
    )


def cp_model_of() -> Any:
    """Import and return the CP-SAT module.

    Raises
    ------
    UnavailableError
        If OR-Tools is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise not_installed("OR-Tools", "optimum") from None
    return cp_model


def _interval_model(cp_model: Any, instance: Instance, plan: IntArray, unit_ms: int) -> tuple[Any, list[Any]]:
    """Return the model without its objective, and the start time variables, in units of ``unit_ms`` from now."""
    model = cp_model.CpModel()
    lengths = (instance.estimate_ms // unit_ms).tolist()
    steps = ((instance.step_ms - instance.now_ms) // unit_ms).tolist()
    # An optimal plan ends no later than this: when all jobs run one after another, after all running jobs.
    latest = steps[-1] + sum(lengths)
    starts = [model.new_int_var(0, latest - length, "") for length in lengths]
    intervals = [
        model.new_fixed_size_interval_var(start, length, "") for start, length in zip(starts, lengths, strict=True)
    ]
    demands = instance.width.tolist()
    nodes = int(instance.step_free[-1])
    for begin, end, free in zip(steps, steps[1:], instance.step_free.tolist(), strict=False):
        if free < nodes:
            intervals.append(model.new_fixed_size_interval_var(begin, end - begin, ""))
            demands.append(nodes - free)
    model.add_cumulative(intervals, demands, nodes)
    for start, planned in zip(starts, ((plan - instance.now_ms) // unit_ms).tolist(), strict=True):
        model.add_hint(start, planned)
    _order_equal_jobs(model, instance, starts)
    return model, starts


def _order_equal_jobs(model: Any, instance: Instance, starts: list[Any]) -> None:
    """Make jobs of equal width and estimate start in order of submission; swapping such jobs changes no metric."""
    last_of_kind: dict[tuple[int, int], int] = {}
    for row, kind in enumerate(zip(instance.width.tolist(), instance.estimate_ms.tolist(), strict=True)):
        if kind in last_of_kind:
            model.add(starts[last_of_kind[kind]] <= starts[row])
        last_of_kind[kind] = row


def _whole(weights: FloatArray) -> IntArray:
    """Scale weights to integers: exactly if the smallest weight divides all others, else to one part in 2^20."""
    scaled = weights / weights.min()
    if np.allclose(scaled, np.rint(scaled), rtol=1e-12):
        return np.asarray(np.rint(scaled), np.int64)
    return np.asarray(np.maximum(1, np.rint(weights / weights.max() * 2**20)), np.int64)


def _solver(cp_model: Any, limit_s: float, effort_s: float, workers: int) -> Any:
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.max_deterministic_time = effort_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 1
    return solver


class _Improvements:
    """Keeps the best value and bound so far, and reports each improvement to a `Progress`."""

    def __init__(self, progress: Progress, offset: float, per_unit: float, worth: float) -> None:
        self._progress, self._offset, self._per_unit = progress, offset, per_unit
        self._worth, self._bound = worth, -math.inf

    def hear(self, *, objective: float = math.inf, bound: float = -math.inf) -> None:
        """Record a new objective or bound from the solver, and report the progress."""
        self._worth = min(self._worth, self._offset + self._per_unit * objective)
        self._bound = max(self._bound, self._offset + self._per_unit * bound)
        self._progress(self._worth, min(self._bound, self._worth))


def _watch(cp_model: Any, solver: Any, improvements: _Improvements) -> Any:
    """Return a callback for better plans, and register a callback for better bounds with the solver."""

    class Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        """Reports the objective of every better plan."""

        def on_solution_callback(self) -> None:
            """Report a better plan."""
            improvements.hear(objective=self.objective_value)

    solver.best_bound_callback = lambda bound: improvements.hear(bound=bound)
    return Watch()

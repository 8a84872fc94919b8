"""Two ways to the best plan of an instant: the integer program of the thesis, and a cumulative constraint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gridweave.errors import OptionError, UnavailableError
from gridweave.scenarios.optimum.instance import FloatArray, Instance, IntArray

THREE = ("fcfs", "sjf", "ljf")
"""The policies of the thesis."""

ENTRY_KB = 0.1
"""Memory of an entry of the matrix: x of equations 4.6 and 4.7, "0.1 kB"."""

MEMORY_KB = 200_000.0
"""Memory for the program. With this the time scales are those of Table 4.4, but for one of its twelve lines."""

_S_MS = 1_000
_MINUTE_S = 60

Progress = Callable[[float, float, float], None]
"""Told of every better plan: seconds, what it is worth, and the bound."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Solution:
    """A plan, and how good it can be proven to be.

    Attributes
    ----------
    start_ms : numpy.ndarray of int64, shape (n,)
    worth : float
        What the plan is worth by the metric; less is better.
    bound : float
        No plan is worth less. Minus infinity if nothing was proven.
    seconds : float
        That the solver took.
    policy : str
        The best policy.
    policy_worth : float
        What its plan is worth.
    scale_s : int
        The time scale in seconds; 0 where there is none.
    """

    start_ms: IntArray
    worth: float
    bound: float
    seconds: float
    policy: str
    policy_worth: float
    scale_s: int = 0

    @property
    def quality(self) -> float:
        """Worth of the plan over that of the best policy (equation 4.8)."""
        return self.worth / self.policy_worth

    @property
    def loss_pct(self) -> float:
        """How much is lost with the best policy, in per cent; below 0 if that is better, with a time scale."""
        return 100.0 * (1.0 - self.quality)

    @property
    def gap_pct(self) -> float:
        """By how much a plan may still be better than this one, in per cent; 0 if it is the optimum."""
        return 100.0 * max(0.0, 1.0 - self.bound / self.worth)


def time_scale_s(instance: Instance, *, memory_kb: float = MEMORY_KB) -> int:
    """Return the time scale of the thesis's program (equation 4.7), in seconds, rounded up to a full minute.

    Parameters
    ----------
    instance : Instance
    memory_kb : float
        The memory for the program.
    """
    makespan_s = _longest_ms(instance) / _S_MS
    run_s = float(instance.estimate_ms.sum()) / _S_MS
    scale_s = math.sqrt(makespan_s * run_s * ENTRY_KB / memory_kb)
    return max(1, math.ceil(scale_s / _MINUTE_S)) * _MINUTE_S


def _longest_ms(instance: Instance) -> int:
    """Return the longest makespan of the three policies, from now: T of constraint 4.5."""
    plans = (instance.planned(policy) for policy in THREE)
    return max(int((plan + instance.estimate_ms).max()) for plan in plans) - instance.now_ms


def solve_time_indexed(
    instance: Instance,
    *,
    metric: str = "artww",
    policies: Sequence[str] = THREE,
    scale_s: int | None = None,
    limit_s: float = 60.0,
) -> Solution:
    """Solve the thesis's integer program with HiGHS, and repair its plan (equations 4.2 to 4.7).

    Parameters
    ----------
    instance : Instance
    metric : str
        One of `gridweave.scenarios.optimum.instance.METRICS`.
    policies : sequence of str
        With whose best plan it is compared.
    scale_s : int, optional
        The time scale; that of equation 4.7 if left out.
    limit_s : float
        After so many seconds the best plan so far is taken; that of the best policy if there is none.

    Returns
    -------
    Solution
        Its bound is that of the program before the repair, so it holds of plans on the time scale alone, and is left
        out: minus infinity.

    Notes
    -----
    A variable says that a job starts at the begin of an interval. Its length is rounded up to full intervals, so that
    what is solved can be done. The repair places the jobs in the order of their starts, each as early as it fits.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    scale_s = time_scale_s(instance) if scale_s is None else scale_s
    began_s = time.perf_counter()
    cost, rows, free = _program(instance, instance.weights(metric), scale_s * _S_MS)
    constraints = [LinearConstraint(rows[0], 1, 1), LinearConstraint(rows[1], -np.inf, free)]
    found = milp(
        cost, integrality=np.ones(len(cost), np.int64), bounds=Bounds(0, 1), constraints=constraints,
        options={"time_limit": limit_s},
    )  # fmt: skip
    best, plan = instance.best_policy(policies, metric)
    start_ms = plan
    if found.x is not None:
        slots = np.argmax(np.asarray(found.x).reshape(len(instance), -1), axis=1)
        start_ms = instance.listed(np.lexsort((np.arange(len(instance)), slots)))
    return Solution(
        start_ms=start_ms,
        worth=instance.worth(start_ms, metric),
        bound=-math.inf,
        seconds=time.perf_counter() - began_s,
        policy=best,
        policy_worth=instance.worth(plan, metric),
        scale_s=scale_s,
    )


def _program(instance: Instance, weights: FloatArray, scale_ms: int) -> tuple[FloatArray, list[Any], IntArray]:
    """Return the costs of the variables, the two constraints as sparse matrices, and the free nodes by interval.

    Variable i * slots + t says that job i starts at the begin of interval t.
    """
    from scipy.sparse import csr_array, kron

    lengths = -(-instance.estimate_ms // scale_ms)
    coarse = replace(
        instance,
        estimate_ms=lengths * scale_ms,
        step_ms=instance.now_ms - (instance.now_ms - instance.step_ms) // scale_ms * scale_ms,
    )
    # The plans of the three policies on the time scale are plans of the program.
    slots = int(-(-_longest_ms(coarse) // scale_ms))
    begin_ms = instance.now_ms + scale_ms * np.arange(slots, dtype=np.int64)
    # What is free all through an interval is what is free at its begin: what runs only ends.
    free = instance.step_free[np.searchsorted(instance.step_ms, begin_ms, side="right") - 1]
    once = kron(csr_array(np.eye(len(instance))), csr_array(np.ones((1, slots))), format="csr")
    entries: list[tuple[IntArray, IntArray, IntArray]] = []
    for row, length in enumerate(lengths.tolist()):
        start = np.repeat(np.arange(slots), length)
        covers = start + np.tile(np.arange(length), slots)
        kept = covers < slots
        entries.append((np.full(int(kept.sum()), instance.width[row]), covers[kept], row * slots + start[kept]))
    data, covered, variable = (np.concatenate(column) for column in zip(*entries, strict=True))
    capacity = csr_array((data, (covered, variable)), shape=(slots, len(instance) * slots))
    response_ms = (begin_ms - instance.now_ms).astype(np.float64)
    cost = (weights[:, None] * response_ms[None, :]).ravel()
    return cost, [once, capacity], free


def solve_intervals(
    instance: Instance,
    *,
    metric: str = "artww",
    policies: Sequence[str] = THREE,
    limit_s: float = 60.0,
    workers: int = 1,
    progress: Progress | None = None,
) -> Solution:
    """Find the best plan with CP-SAT: interval variables under a cumulative constraint, exact to the millisecond.

    Parameters
    ----------
    instance : Instance
    metric : str
        One of `gridweave.scenarios.optimum.instance.METRICS`.
    policies : sequence of str
        The search starts from the plan of the best of them.
    limit_s : float
        After so many seconds the best plan so far is taken.
    workers : int
        Threads. With one, and without a limit that is met, the plan is the same on every machine.
    progress : callable, optional
        Told of every better plan.

    Returns
    -------
    Solution
        Never worse than the best policy.

    Raises
    ------
    UnavailableError
        If OR-Tools is not installed.
    """
    cp_model = _cp_model()
    began_s = time.perf_counter()
    best, plan = instance.best_policy(policies, metric)
    unit_ms = int(np.gcd.reduce(np.concatenate([instance.estimate_ms, instance.step_ms - instance.now_ms])))
    model, starts = _interval_model(cp_model, instance, plan, unit_ms)
    weights = instance.weights(metric)
    coefficients = _whole(weights)
    model.minimize(sum(int(weight) * start for weight, start in zip(coefficients, starts, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 1
    per_unit = float(weights.sum() / coefficients.sum()) * unit_ms
    offset = instance.worth(np.full(len(instance), instance.now_ms), metric)
    watch = _watch(cp_model, progress, offset, per_unit)
    status = solver.solve(model, watch)
    start_ms, bound = plan, -math.inf
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found = instance.now_ms + unit_ms * np.array([solver.value(start) for start in starts], np.int64)
        start_ms = found if instance.worth(found, metric) <= instance.worth(plan, metric) else plan
        bound = offset + per_unit * solver.best_objective_bound
    worth = instance.worth(start_ms, metric)
    return Solution(
        start_ms=start_ms,
        worth=worth,
        bound=worth if status == cp_model.OPTIMAL else min(bound, worth),
        seconds=time.perf_counter() - began_s,
        policy=best,
        policy_worth=instance.worth(plan, metric),
    )


def _cp_model() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise UnavailableError("the best plan needs OR-Tools: pip install 'gridweave[optimum]'") from None
    return cp_model


def _interval_model(cp_model: Any, instance: Instance, plan: IntArray, unit_ms: int) -> tuple[Any, list[Any]]:
    """Return the model without its objective, and the variables of the starts, in units from now on."""
    model = cp_model.CpModel()
    lengths = (instance.estimate_ms // unit_ms).tolist()
    steps = ((instance.step_ms - instance.now_ms) // unit_ms).tolist()
    # The last end of a plan without a needless gap: all one after the other behind all that runs.
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
    _order_twins(model, instance, starts)
    return model, starts


def _order_twins(model: Any, instance: Instance, starts: list[Any]) -> None:
    """Have jobs of the same width and estimate start in the order of submission: to exchange them changes no metric."""
    twins: dict[tuple[int, int], int] = {}
    for row, kind in enumerate(zip(instance.width.tolist(), instance.estimate_ms.tolist(), strict=True)):
        if kind in twins:
            model.add(starts[twins[kind]] <= starts[row])
        twins[kind] = row


def _whole(weights: FloatArray) -> IntArray:
    """Return weights as whole numbers: exactly in proportion where they can be, else to one part in 2^20."""
    scaled = weights / weights.min()
    if np.allclose(scaled, np.rint(scaled), rtol=1e-12):
        return np.asarray(np.rint(scaled), np.int64)
    return np.asarray(np.maximum(1, np.rint(weights / weights.max() * 2**20)), np.int64)


def _watch(cp_model: Any, progress: Progress | None, offset: float, per_unit: float) -> Any:
    """Return what is told of better plans, or None."""
    if progress is None:
        return None
    tell = progress

    class Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        """Passes on what every better plan is worth."""

        def on_solution_callback(self) -> None:
            """Tell of a better plan."""
            value, bound = self.objective_value, self.best_objective_bound
            tell(self.wall_time, offset + per_unit * value, offset + per_unit * bound)

    return Watch()


SOLVERS = ("cp-sat", "highs")


def solve(instance: Instance, solver: str = "cp-sat", **options: Any) -> Solution:
    """Find the best plan of an instance with one of `SOLVERS`; the options are those of its function."""
    if solver not in SOLVERS:
        raise OptionError("solver", f"{solver!r} is not known; one of {', '.join(SOLVERS)}")
    return solve_intervals(instance, **options) if solver == "cp-sat" else solve_time_indexed(instance, **options)

"""Find the best plan as in Streit's thesis (section 4.6): solve a time-indexed integer program with HiGHS."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gridweave.errors import check_known
from gridweave.site.disciplines.optimal.instance import FloatArray, Instance, IntArray
from gridweave.site.disciplines.optimal.intervals import THREE, Solution, solve_intervals

ENTRY_KB = 0.1
"""Memory per matrix entry: x of equations 4.6 and 4.7, "0.1 kB"."""

MEMORY_KB = 200_000.0
"""Memory for the program. This value reproduces the time scales in eleven of the twelve lines of Table 4.4."""

_S_MS = 1_000
_MINUTE_S = 60


def time_scale_s(instance: Instance, *, memory_kb: float = MEMORY_KB) -> int:
    """Return the time scale of the thesis's program (equation 4.7), in seconds, rounded up to a full minute.

    Parameters
    ----------
    instance : Instance
    memory_kb : float
        Memory for the program, in kB.
    """
    makespan_s = longest_ms(instance) / _S_MS
    run_s = float(instance.estimate_ms.sum()) / _S_MS
    scale_s = math.sqrt(makespan_s * run_s * ENTRY_KB / memory_kb)
    return max(1, math.ceil(scale_s / _MINUTE_S)) * _MINUTE_S


def longest_ms(instance: Instance) -> int:
    """Return the longest makespan of the three policies' plans, counted from now: T of constraint 4.5."""
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
    """Solve the thesis's integer program with HiGHS, and repair the resulting plan (equations 4.2 to 4.7).

    Parameters
    ----------
    instance : Instance
    metric : str
        One of `gridweave.site.disciplines.optimal.instance.METRICS`.
    policies : sequence of str
        The solution is compared with the best plan of these policies.
    scale_s : int, optional
        The time scale; by default, it follows equation 4.7.
    limit_s : float
        Time limit of the solver. When it expires, the best plan so far is used or, without one, the best policy's plan.

    Returns
    -------
    Solution
        Its bound is minus infinity, because the program's bound holds only for plans on the time scale.

    Notes
    -----
    A variable is 1 if a job starts at the beginning of an interval. Run times are rounded up to full intervals, so that
    solutions are feasible. The repair places the jobs in order of their starts, each job as early as it fits.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    scale_s = time_scale_s(instance) if scale_s is None else scale_s
    began_s = time.perf_counter()
    cost, rows, free = _program(instance, instance.weights(metric), scale_s * _S_MS)
    constraints = [LinearConstraint(rows[0], 1, 1), LinearConstraint(rows[1], -np.inf, free)]
    solution = milp(
        cost, integrality=np.ones(len(cost), np.int64), bounds=Bounds(0, 1), constraints=constraints,
        options={"time_limit": limit_s},
    )  # fmt: skip
    best, plan = instance.best_policy(policies, metric)
    start_ms = plan
    if solution.x is not None:
        slots = np.argmax(np.asarray(solution.x).reshape(len(instance), -1), axis=1)
        start_ms = instance.listed(np.lexsort((np.arange(len(instance)), slots)))
    return Solution(
        start_ms=start_ms,
        worth=instance.worth(start_ms, metric),
        bound=-math.inf,
        seconds=time.perf_counter() - began_s,
        policy=best,
        policy_worth=instance.worth(plan, metric),
        scale_s=scale_s,
        scale_gap_pct=None if solution.x is None else 100.0 * solution.mip_gap,
    )


def _program(instance: Instance, weights: FloatArray, scale_ms: int) -> tuple[FloatArray, list[Any], IntArray]:
    """Return the variables' costs, the two constraints as sparse matrices, and the number of free nodes per interval.

    Variable i * slots + t is 1 if job i starts at the beginning of interval t.
    """
    from scipy.sparse import csr_array, kron

    lengths = -(-instance.estimate_ms // scale_ms)
    coarse = replace(
        instance,
        estimate_ms=lengths * scale_ms,
        step_ms=instance.now_ms - (instance.now_ms - instance.step_ms) // scale_ms * scale_ms,
    )
    # Enough intervals for the three policies' plans on the time scale.
    slots = int(-(-longest_ms(coarse) // scale_ms))
    begin_ms = instance.now_ms + scale_ms * np.arange(slots, dtype=np.int64)
    # Running jobs can only end, so nodes that are free at the beginning of an interval stay free during the interval.
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


SOLVERS = ("cp-sat", "highs")


def solve(instance: Instance, solver: str = "cp-sat", **options: Any) -> Solution:
    """Find the best plan of an instance with one of `SOLVERS`; ``options`` are passed to the solver's function."""
    check_known("solver", solver, SOLVERS)
    return solve_intervals(instance, **options) if solver == "cp-sat" else solve_time_indexed(instance, **options)

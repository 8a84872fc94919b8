"""Maximise the average yield or minimise the average stretch, using a linear program solved by HiGHS (OPT=AVG).

Source: Stillwell, sections 4.6 and 4.7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gridweave.site.disciplines.fractional.kernels.state import RUNS, FractionalSite
from gridweave.site.kernels.parts import UNIT
from gridweave.site.kernels.work import RATE_ONE

if TYPE_CHECKING:
    from scipy.sparse import coo_array

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_TANGENTS = 9
"""Number of tangents that approximate the stretch as a function of the yield; they are at most 0.8% too low."""


def average_yields(state: FractionalSite, horizon_ms: int | None, now_ms: int) -> None:
    """Increase the yields of running jobs to optimise their average; no yield decreases.

    The minimum yield must already be maximal or, with a horizon, the maximum expected stretch minimal. With a horizon
    (the time until the next rescheduling), minimise the average expected stretch; without, maximise the average yield.

    Notes
    -----
    HiGHS is accurate to about 10^-7, so its yields are rounded down to rates and then lowered on nodes that they
    overload. The expected stretch is convex in the yield, so the maximum of its tangents approximates it from below.
    """
    here = state.here[: state.counters[0]["n_here"]]
    slots = here[state.jobs["status"][here] == RUNS]
    if not len(slots):
        return
    rows, needs = _tasks_on_nodes(state, slots)
    least = state.jobs["yield_"][slots] / RATE_ONE
    if horizon_ms is None:
        bounds = np.column_stack([least, np.ones(len(slots))])
        yields = _solved(-np.ones(len(slots)), needs, np.ones(rows), bounds)
    else:
        yields = _least_stretch(state, slots, needs, least, horizon_ms, now_ms)
    if yields is not None:
        _take_over(state, slots, yields)


def _tasks_on_nodes(state: FractionalSite, slots: IntArray) -> tuple[int, coo_array]:
    """Return the number of nodes that have tasks, and a matrix (nodes x jobs) of each job's CPU need on each node."""
    from scipy.sparse import coo_array

    widths = state.jobs["width"][slots]
    nodes, row = np.unique(np.concatenate([_nodes_of_tasks(state, slot) for slot in slots]), return_inverse=True)
    needs = np.concatenate([_needs_of_tasks(state, slot) for slot in slots]) / UNIT
    job = np.repeat(np.arange(len(slots)), widths)
    return len(nodes), coo_array((needs, (row, job)), shape=(len(nodes), len(slots)))


def _nodes_of_tasks(state: FractionalSite, slot: int) -> IntArray:
    job = state.jobs[slot]
    return state.tasks[job["first"] : job["first"] + job["width"]]


def _needs_of_tasks(state: FractionalSite, slot: int) -> IntArray:
    job = state.jobs[slot]
    groups = state.groups[job["first_group"] : job["end_group"]]
    return np.repeat(groups["need"], groups["count"])


def _least_stretch(
    state: FractionalSite, slots: IntArray, needs: coo_array, least: FloatArray, horizon_ms: int, now_ms: int
) -> FloatArray | None:
    """Return the yields that minimise the average expected stretch; None if HiGHS finds no solution."""
    from scipy.sparse import block_array, coo_array

    count = len(slots)
    flow = (now_ms - state.jobs["submit_ms"][slots] + horizon_ms) / horizon_ms
    virtual = state.jobs["virtual"][slots] / RATE_ONE / horizon_ms
    # The points of tangency are spaced geometrically; for a job without virtual time, they begin just above 0.
    low, high = np.maximum(virtual + least, 1e-3), virtual + 1
    parts = np.linspace(0, 1, _TANGENTS)[:, None]
    points = low * (high / low) ** parts
    height, slope = flow / points, -flow / points**2
    # For each point: stretch >= height + slope (virtual + yield - point).
    eye = np.arange(count)
    lines = np.arange(_TANGENTS * count)
    own = np.tile(eye, _TANGENTS)
    below = coo_array((slope.ravel(), (lines, own)), shape=(len(lines), count))
    minus = coo_array((-np.ones(len(lines)), (lines, own)), shape=(len(lines), count))
    blocks: Any = [[needs, None], [below, minus]]
    matrix: Any = block_array(blocks)
    right = np.concatenate([np.ones(needs.shape[0]), (slope * (points - virtual) - height).ravel()])
    bounds = np.concatenate([np.column_stack([least, np.ones(count)]), np.tile([1.0, np.inf], (count, 1))])
    solution = _solved(np.concatenate([np.zeros(count), np.ones(count)]), matrix, right, bounds)
    return None if solution is None else solution[:count]


def _solved(costs: FloatArray, matrix: Any, right: FloatArray, bounds: FloatArray) -> FloatArray | None:
    """Return the solution with the lowest cost; None if HiGHS finds no solution; jobs then keep their yields."""
    from scipy import optimize

    solve: Any = optimize.linprog
    solution = solve(costs, A_ub=matrix, b_ub=right, bounds=bounds, method="highs")
    return solution.x if solution.status == 0 else None


def _take_over(state: FractionalSite, slots: IntArray, yields: FloatArray) -> None:
    """Round the yields to rates, and lower rates that overload a node, but not below the old rates."""
    had = state.jobs["yield_"][slots]
    rates = np.clip(np.floor(yields * RATE_ONE + 1e-6).astype(np.int64), had, RATE_ONE)
    state.jobs["yield_"][slots] = rates
    used = np.zeros(len(state.nodes), np.int64)
    for slot in slots.tolist():
        needs = _needs_of_tasks(state, slot)
        np.add.at(used, _nodes_of_tasks(state, slot), needs * state.jobs["yield_"][slot])
    for slot, before in zip(slots.tolist(), had.tolist(), strict=True):
        nodes, needs = _nodes_of_tasks(state, slot), _needs_of_tasks(state, slot)
        while state.jobs["yield_"][slot] > before and (used[nodes] > UNIT * RATE_ONE).any():
            state.jobs["yield_"][slot] -= 1
            np.add.at(used, nodes, -needs)

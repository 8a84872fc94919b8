"""A live run, simulated again with what really happened: when jobs were submitted, and how long they held their nodes.

The simulation before a run knows neither. Where this one still decides otherwise than the live grid, that is not a
matter of timing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gridweave.scenarios.results.schedule import NEVER, SimulationResult
from gridweave.scenarios.scenario.build import Built
from gridweave.scenarios.scenario.run import run_built
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.scenarios.world.connections import LiveTimes

Fragments = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, slots=True)
class LiveReplay:
    """What was decided for each job, in the order of the workload.

    Attributes
    ----------
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        `NEVER` for a job that did not start.
    fragments : tuple of tuple of (int, int)
        Of each job, the sites and the nodes on each.
    """

    start_ms: IntArray
    end_ms: IntArray
    fragments: tuple[Fragments, ...]


def replayed(
    built: Built, live: SimulationResult, submitted_ms: IntArray, placed_ms: IntArray, needed_ms: IntArray
) -> LiveReplay:
    """Simulate a scenario with the submit times of a live run, and with how long each job held its nodes there.

    Parameters
    ----------
    built : Built
        With the times of the live grid; of these only the margin of starts on several sites is left to be simulated.
    submitted_ms : numpy.ndarray of int64, shape (n,)
        When each job was accepted.
    placed_ms : numpy.ndarray of int64, shape (n,)
        When the grid placed each job; `NEVER` for those of a site's own users.
    needed_ms : numpy.ndarray of int64, shape (n,)
        How long the work of each job takes where it was placed.
    """
    workload = built.workload
    run_ms = _run_times(built, live, placed_ms, needed_ms)
    submit_ms = np.maximum(submitted_ms, 0)
    order = np.lexsort((workload.job_id, submit_ms))
    again = workload.take(
        order,
        submit_ms=submit_ms[order],
        run_ms=run_ms[order],
        # The limit of a job does not count the time until its end is known.
        estimate_ms=np.maximum(workload.estimate_ms, run_ms)[order],
        columns=_columns(workload, submit_ms, order),
    )
    margin = LiveTimes(margin_ms=built.live.margin_ms)
    result = run_built(
        replace(built, workload=again, home=built.home[order], to_grid=built.to_grid[order], live=margin)
    )
    row_of = np.argsort(order)
    fragments = tuple(tuple(sorted(result.fragments_of(row))) for row in row_of.tolist())
    return LiveReplay(result.start_ms[row_of], result.end_ms[row_of], fragments)


def _columns(workload: Workload, submit_ms: IntArray, order: IntArray) -> dict[str, npt.NDArray[Any]]:
    """Return what else is known of the jobs, in an order; none is cancelled before it was accepted."""
    columns = {name: values[order] for name, values in workload.columns.items()}
    if "cancel_ms" in columns:
        cancel_ms = np.asarray(columns["cancel_ms"], np.int64)
        columns["cancel_ms"] = np.where(cancel_ms >= 0, np.maximum(cancel_ms, submit_ms[order] + 1), cancel_ms)
    return columns


def _run_times(built: Built, live: SimulationResult, placed_ms: IntArray, needed_ms: IntArray) -> IntArray:
    """Return the work of each job at rate 1, made longer in proportion to how much longer it held its nodes.

    A job on several sites starts a margin after it was placed.
    """
    run_ms = built.workload.run_ms
    begun_ms = np.where(placed_ms == NEVER, live.start_ms, placed_ms + live.multi_site * built.live.margin_ms)
    longer = (live.end_ms - begun_ms) / np.maximum(needed_ms, 1)
    return np.where(live.start_ms != NEVER, np.maximum(1, np.rint(run_ms * longer)), run_ms).astype(np.int64)

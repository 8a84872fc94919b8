"""Simulate a live run again with its actual times: when jobs were submitted, and how long they held their nodes.

The first simulation does not know these times. Decisions that still differ from the live grid's are not due to timing.
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
    """Each job's start, end and fragments in the replay, in workload order.

    Attributes
    ----------
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        `NEVER` for a job that did not start.
    fragments : tuple of tuple of (int, int)
        The (site, nodes) pairs of each job.
    """

    start_ms: IntArray
    end_ms: IntArray
    fragments: tuple[Fragments, ...]


def replayed(
    built: Built, live: SimulationResult, submitted_ms: IntArray, placed_ms: IntArray, needed_ms: IntArray
) -> LiveReplay:
    """Simulate a scenario with the submit times and hold times of a live run.

    Parameters
    ----------
    built : Built
        The scenario with the live grid's delays. Only ``margin_ms`` is simulated, because the hold times already
        include the time to start and end processes.
    submitted_ms : numpy.ndarray of int64, shape (n,)
        Time at which each job was accepted.
    placed_ms : numpy.ndarray of int64, shape (n,)
        Time at which the grid placed each job; `NEVER` for jobs of a site's own users.
    needed_ms : numpy.ndarray of int64, shape (n,)
        Time that each job's work takes with its placement.
    """
    workload = built.workload
    run_ms = _run_times(built, live, placed_ms, needed_ms)
    submit_ms = np.maximum(submitted_ms, 0)
    order = np.lexsort((workload.job_id, submit_ms))
    resubmitted = workload.take(
        order,
        submit_ms=submit_ms[order],
        run_ms=run_ms[order],
        # The time until the grid learns of a job's end does not count towards the job's limit.
        estimate_ms=np.maximum(workload.estimate_ms, run_ms)[order],
        columns=_columns(workload, submit_ms, order),
    )
    margin = LiveTimes(margin_ms=built.live.margin_ms)
    result = run_built(
        replace(built, workload=resubmitted, home=built.home[order], to_grid=built.to_grid[order], live=margin)
    )
    row_of = np.argsort(order)
    fragments = tuple(tuple(sorted(result.fragments_of(row))) for row in row_of.tolist())
    return LiveReplay(result.start_ms[row_of], result.end_ms[row_of], fragments)


def _columns(workload: Workload, submit_ms: IntArray, order: IntArray) -> dict[str, npt.NDArray[Any]]:
    """Return the additional columns in ``order``; move cancellations to at least 1 ms after the submission."""
    columns = {name: values[order] for name, values in workload.columns.items()}
    if "cancel_ms" in columns:
        cancel_ms = np.asarray(columns["cancel_ms"], np.int64)
        columns["cancel_ms"] = np.where(cancel_ms >= 0, np.maximum(cancel_ms, submit_ms[order] + 1), cancel_ms)
    return columns


def _run_times(built: Built, live: SimulationResult, placed_ms: IntArray, needed_ms: IntArray) -> IntArray:
    """Return each job's run time at rate 1, scaled by the ratio of its hold time to the time that its work takes.

    A job on several sites starts a margin after its placement.
    """
    run_ms = built.workload.run_ms
    begun_ms = np.where(placed_ms == NEVER, live.start_ms, placed_ms + live.multi_site * built.live.margin_ms)
    longer = (live.end_ms - begun_ms) / np.maximum(needed_ms, 1)
    return np.where(live.start_ms != NEVER, np.maximum(1, np.rint(run_ms * longer)), run_ms).astype(np.int64)

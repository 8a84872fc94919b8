"""Node failures, draining and recovery in the compiled loop (docs/disciplines.md, "Nodes that fail").

Site kernels count nodes. To keep unavailable nodes out of all counts, the width of a running job is reduced by the
number of its nodes that are unavailable; when the job ends, it releases only its available nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.site.kernels.dispatch import SiteRules
from gridweave.site.kernels.state import NEVER_MS, REPLAN, SiteState, finish, running_place
from gridweave.site.kernels.work import NOT_YET, RunArrays, WorkTable, take_end

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

UP, DRAIN, DOWN = 0, 1, 2
"""Kinds of node events: the node recovers, becomes unavailable once its job has ended, or fails."""

NOBODY = np.int64(-1)
"""Holder of a node that no job has used."""


class Outages(NamedTuple):
    """Node events, and the job that holds each node.

    Attributes
    ----------
    at_ms, kind, first, end : numpy.ndarray of int64, shape (k,)
        Time, kind (`UP`, `DRAIN`, `DOWN`) and node range (``end`` excluded) of each event, in order of time.
    holder : numpy.ndarray of int64, shape (nodes,)
        Row of the last job on each node; the job still holds the node if it is running.
    is_out : numpy.ndarray of bool, shape (nodes,)
        Whether each node is unavailable to new jobs.
    width : numpy.ndarray of int64, shape (n,)
        Width of each job.
    new_key : numpy.ndarray of float64, shape (n,)
        Sort key that each job would have if it were submitted at time 0.
    ages : bool
        Whether sort keys grow with the submit time.
    restarts : numpy.ndarray of int64, shape (n,)
        Output: how often each job was lost and restarted.
    """

    at_ms: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    holder: npt.NDArray[np.int64]
    is_out: npt.NDArray[np.bool_]
    width: npt.NDArray[np.int64]
    new_key: npt.NDArray[np.float64]
    ages: bool
    restarts: npt.NDArray[np.int64]


@kernel_part
def next_change_ms(outages: Outages, run: RunArrays) -> Int:
    """Return the time of the next node event."""
    changed = run.clock[0].changed
    return outages.at_ms[changed] if changed < len(outages.at_ms) else NEVER_MS


@kernel_part
def _holds(outages: Outages, run: RunArrays, node: Int) -> bool:
    """Whether a running job holds the node."""
    row = outages.holder[node]
    return row != NOBODY and run.start_ms[row] != NOT_YET and run.end_ms[row] == NOT_YET


@kernel
def take_nodes(outages: Outages, run: RunArrays, row: Int) -> None:
    """Assign the lowest-numbered free nodes to a starting job."""
    left = outages.width[row]
    node = 0
    while left > 0:
        if not outages.is_out[node] and not _holds(outages, run, node):
            outages.holder[node] = row
            left -= 1
        node += 1


@kernel
def change_nodes(
    state: SiteState, work: WorkTable, site: SiteRules, outages: Outages, run: RunArrays, now_ms: Int
) -> bool:
    """Apply the node events that are due now; return whether there were any.

    Parameters
    ----------
    state : SiteState
    work : numpy.ndarray of WORK, shape (n,)
        Used to find the ends of lost jobs.
    site : SiteRules
    outages : Outages
    run : RunArrays
    now_ms : int
    """
    clock = run.clock[0]
    before = clock.changed
    while clock.changed < len(outages.at_ms) and outages.at_ms[clock.changed] == now_ms:
        number = clock.changed
        for node in range(outages.first[number], outages.end[number]):
            if outages.kind[number] == DOWN and _holds(outages, run, node):
                _lose(state, work, site, outages, run, outages.holder[node], now_ms)
            is_out = outages.kind[number] != UP
            if outages.is_out[node] != is_out:
                outages.is_out[node] = is_out
                _count(state, site, outages, run, node, -1 if is_out else 1)
        clock.changed += 1
    if clock.changed == before:
        return False
    state.counters[0].stale = REPLAN
    state.counters[0].n_blocks = 0
    return True


@kernel_part
def _count(state: SiteState, site: SiteRules, outages: Outages, run: RunArrays, node: Int, by: Int) -> None:
    """Add ``by`` to the width of the job on a node, or to the free nodes."""
    if _holds(outages, run, node):
        state.jobs[outages.holder[node]].width += by
    else:
        state.counters[0].free += by
    site.resized(by)


@kernel
def _lose(
    state: SiteState,
    work: WorkTable,
    site: SiteRules,
    outages: Outages,
    run: RunArrays,
    row: Int,
    now_ms: Int,
) -> None:
    """Stop a job that has lost a node, and resubmit it."""
    job = state.jobs[row]
    finish(state, running_place(state, run.start_ms[row] + job.estimate_ms, job.job_id))
    take_end(run.ends, work, work[row].place)
    run.start_ms[row] = NOT_YET
    for node in range(len(outages.holder)):
        if outages.holder[node] == row:
            outages.holder[node] = NOBODY
    outages.restarts[row] += 1
    job.width = outages.width[row]
    job.submit_ms = now_ms
    job.key = outages.new_key[row] + (now_ms if outages.ages else 0)
    state.counters[0].n_blocks = 0
    site.submitted(state, row)

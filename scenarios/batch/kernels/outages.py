"""Nodes of a site that fail, drain and come back in the compiled loop (docs/disciplines.md, "Nodes that fail").

Kernels of sites count nodes. So that a node which is out is counted nowhere, a running job that sits on some has its
width less those: what it gives back when it ends is what is left for others.
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
"""What happens to a node: it comes back; it leaves when its job has ended; it fails."""

NOBODY = np.int64(-1)
"""The holder of a node that no job has held."""


class Outages(NamedTuple):
    """What happens to nodes, and who holds them.

    Attributes
    ----------
    at_ms, kind, first, end : numpy.ndarray of int64, shape (k,)
        When, what (`UP`, `DRAIN`, `DOWN`), and to which nodes, ``end`` excluded; ascending instants.
    holder : numpy.ndarray of int64, shape (nodes,)
        The row of the job that had each node last; it has it still if it runs.
    is_out : numpy.ndarray of bool, shape (nodes,)
        Whether no job may start on it.
    width : numpy.ndarray of int64, shape (n,)
        Of each job.
    new_key : numpy.ndarray of float64, shape (n,)
        What each job would be sorted by if it were submitted at instant 0.
    ages : bool
        Whether what jobs are sorted by grows with the instant of submission.
    restarts : numpy.ndarray of int64, shape (n,)
        Filled in: how often each job was lost, and begun anew.
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
    """Return when something happens to nodes next."""
    changed = run.clock[0].changed
    return outages.at_ms[changed] if changed < len(outages.at_ms) else NEVER_MS


@kernel_part
def _holds(outages: Outages, run: RunArrays, node: Int) -> bool:
    """Whether a job that runs holds the node."""
    row = outages.holder[node]
    return row != NOBODY and run.start_ms[row] != NOT_YET and run.end_ms[row] == NOT_YET


@kernel
def take_nodes(outages: Outages, run: RunArrays, row: Int) -> None:
    """Give a job that starts the free nodes with the lowest numbers."""
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
    """Let nodes fail, drain and come back that do so now; return whether there are any.

    Parameters
    ----------
    state : SiteState
    work : numpy.ndarray of WORK, shape (n,)
        By which the ends of jobs that are lost are found.
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
    """Count a node that has come back, or is out, where it stands."""
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
    """Take a job off its nodes that has lost one, and submit it anew."""
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

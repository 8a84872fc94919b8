"""Contention between the jobs of a simulated grid on the links between sites (docs/netmodel.md, "Contention").

A job on several sites and a data transfer progress at the rate that the links allow, like running work
(`gridweave.site.kernels.work`). A job whose data is in transfer has no end time; all or none of its work remains.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.grid_plan import planned_end_moved
from gridweave.grid.kernels.grid_queue import move_end
from gridweave.grid.kernels.links import PREFETCH, GridLinks, grown_ms
from gridweave.grid.kernels.reservations import ReservedStarts
from gridweave.grid.kernels.running import FIRST_PLACE, row_at
from gridweave.grid.kernels.state import GridState, recall_taken
from gridweave.jit import Int, kernel, kernel_part
from gridweave.netmodel.kernels.contention import add_job_flows, all_slowdowns, drop_flows, share_links
from gridweave.netmodel.kernels.state import Filling, Flows
from gridweave.scenarios.batch.kernels.moves import (
    IN_USE,
    NO_MOVE,
    STIRRED,
    Moves,
    added_work,
    deliver,
    fetch,
    fetch_ahead,
    last_move,
    output_work,
    set_move_rates,
)
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import (
    RATE_ONE,
    Ends,
    WorkTable,
    begin_work,
    change_rate,
    first_end_ms,
    late_end_ms,
    place_end,
    rate_of,
    work_left,
    work_of,
)

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"


class Contention(NamedTuple):
    """The traffic of jobs on the links, and its effects.

    Attributes
    ----------
    dynamic : bool
        Whether all traffic affects jobs at any time; if not, only the traffic at their start affects them.
    flows : Flows
        Flows of running jobs (the owner is the job's row) and of moves.
        filling : Filling
        slowdown : numpy.ndarray of float64, shape (n + capacity of moves,)
            Slowdown of each flow's owner since the links' bandwidth was last divided among the flows.
    moves : Moves
        Transfers of input and output.
    moves_data : bool
        Whether transfers use the links; if not, jobs have no data.
    anywhere : numpy.ndarray of bool, shape (n,)
        Whether each job may be split.
    spare_ms, moved_ms : numpy.ndarray of int64, shape (n,)
        Estimated minus actual work of each job; output: how long each job held nodes while its data was in transfer.
    """

    dynamic: bool
    flows: Flows
    filling: Filling
    slowdown: npt.NDArray[np.float64]
    moves: Moves
    moves_data: bool
    anywhere: npt.NDArray[np.bool_]
    spare_ms: npt.NDArray[np.int64]
    moved_ms: npt.NDArray[np.int64]


@kernel_part
def next_data_ms(links: Contention) -> Int:
    """Return the time at which the next data transfer ends, or `NEVER_MS`."""
    return first_end_ms(links.moves.ends) if links.moves_data else NEVER_MS


@kernel_part
def moves_fit(state: GridState, links: Contention, new: Int) -> bool:
    """Whether `Moves` has capacity for ``new`` newly submitted jobs and for all jobs that could start."""
    most = links.moves.counts[IN_USE] + new * len(state.nodes) + 2 * state.counters[0].nodes
    return most <= len(links.moves.row)


@kernel_part
def fetch_for(state: GridState, net: GridLinks, links: Contention, row: Int, now_ms: Int) -> None:
    """Start transferring a newly submitted job's input if input is prefetched."""
    if links.moves_data and net.staging == PREFETCH:
        job = net.data[row], row, state.jobs[row].width
        fetch_ahead(net.paths, links.moves, links.flows, *job, state.nodes, links.anywhere[row], now_ms)


@kernel
def begin_job(
    state: GridState,
    work: WorkTable,
    net: GridLinks,
    links: Contention,
    clock: Any,
    ends: Ends,
    row: Int,
    run_ms: Int,
    length_ms: Int,
    now_ms: Int,
) -> None:
    """Begin the work of a job that the scheduling pass started; if its input is missing, begin the transfer instead.

    Parameters
    ----------
    clock : record
        Clock of the run; ``stirred`` is set if flows begin.
    run_ms, length_ms : int
        Run time on a single site, and run time with this placement on idle links, including data transfers.
    """
    links.spare_ms[row] = state.end_ms[row] - now_ms - length_ms
    work[row].job_id = state.jobs[row].job_id
    work[row].left = work_of(grown_ms(run_ms, net.factor[row]))
    if links.moves_data:
        recall_taken(state, row)
        parts = state.taken, state.counters[0].n_taken
        if fetch(net.paths, links.moves, links.flows, net.data[row], row, *parts, now_ms):
            _pause(work, ends, row, work[row].left, now_ms)
            return
    begin_to_work(state, work, net, links, clock, ends, row, now_ms)


@kernel
def begin_to_work(
    state: GridState, work: WorkTable, net: GridLinks, links: Contention, clock: Any, ends: Ends, row: Int, now_ms: Int
) -> None:
    """Start the work of a job whose input has arrived, at rate 1 until bandwidth is divided again."""
    begin_work(ends, work, row, work[row].job_id, work[row].left, RATE_ONE, now_ms)
    if state.n_fragments[row] > 1:
        recall_taken(state, row)
        parts = state.taken, state.counters[0].n_taken
        if add_job_flows(net.paths, links.flows, row, net.communication[row], *parts, net.factor[row]) > 0:
            clock.stirred = 1


@kernel_part
def _pause(work: WorkTable, ends: Ends, row: Int, left: Int, now_ms: Int) -> None:
    """Pause a job while its data is transferred; ``left`` is its remaining work."""
    job = work[row]
    job.left = left
    job.rate = 0
    job.since_ms = now_ms
    job.end_ms = NEVER_MS
    place_end(ends, work, row)


@kernel
def delivers_output(
    state: GridState, work: WorkTable, links: Contention, clock: Any, ends: Ends, row: Int, now_ms: Int
) -> bool:
    """End the flows of a job whose work is done, and transfer its output; return whether the job has output."""
    if state.n_fragments[row] > 1 and drop_flows(links.flows, row) > 0 and links.dynamic:
        # Under static contention, the other jobs keep their slowdown.
        clock.stirred = 1
    if links.moves_data and deliver(links.moves, links.flows, row, now_ms):
        _pause(work, ends, row, 0, now_ms)
        return True
    return False


@kernel
def expect_late_ends(
    state: GridState, work: WorkTable, plan: ReservedStarts | None, links: Contention, now_ms: Int
) -> None:
    """Recompute the expected ends of overdue jobs from their current rates; a rate of 0 counts as 1."""
    while state.counters[0].n_running > 0:
        ending = state.running[row_at(state, FIRST_PLACE)]
        if ending.end_ms > now_ms:
            return
        slot = ending.slot
        left, rate = _left_by_estimate(work, links, slot, now_ms)
        end_ms = late_end_ms(left, rate, now_ms)
        if plan is None:
            move_end(state, slot, end_ms)
        else:
            planned_end_moved(state, plan, slot, end_ms, now_ms)


@kernel_part
def _left_by_estimate(work: WorkTable, links: Contention, row: Int, now_ms: Int) -> tuple[Int, Int]:
    """Return a running job's remaining work according to its estimate, and the current rate of that work."""
    job = work[row]
    left = work_left(job.left, job.rate, job.since_ms, now_ms) + work_of(links.spare_ms[row])
    if not links.moves_data:
        return left, job.rate
    moves = links.moves
    move = last_move(moves, row)
    if move == NO_MOVE:
        return added_work(left, output_work(moves, row)), job.rate
    data = moves.work[move]
    coming = work_left(data.left, data.rate, data.since_ms, now_ms)
    if job.left > 0:
        coming = added_work(coming, added_work(left, output_work(moves, row)))
    return coming, data.rate


@kernel_part
def is_to_share(links: Contention, clock: Any) -> bool:
    """Whether flows began or ended, or links changed, since the links' bandwidth was last divided."""
    return clock.stirred == 1 or links.moves.counts[STIRRED] == 1


@kernel
def share_anew(work: WorkTable, net: GridLinks, links: Contention, clock: Any, ends: Ends, now_ms: Int) -> None:
    """Divide bandwidth among flows and apply the rates; under static contention, only to new or stalled flows."""
    clock.stirred = 0
    share_links(net.paths, links.flows, links.filling)
    all_slowdowns(links.flows, links.slowdown)
    last = np.int64(-1)
    for place in range(links.flows.n_flows[0]):
        row = links.flows.owner[place]
        # The flows of a job are adjacent; the owner numbers of moves follow those of jobs.
        if row != last and row < len(work) and _feels(work[row], links, now_ms):
            rate = 0 if links.slowdown[row] == np.inf else rate_of(links.slowdown[row])
            if rate != work[row].rate:
                change_rate(ends, work, row, rate, now_ms)
        last = row
    if links.moves_data:
        set_move_rates(links.moves, links.flows, links.slowdown, links.dynamic, now_ms)


@kernel_part
def _feels(job: Any, links: Contention, now_ms: Int) -> bool:
    """Whether reallocating bandwidth changes a running job's rate."""
    return links.dynamic or job.since_ms == now_ms or job.rate == 0

"""Contention between the jobs of a simulated grid on the links between sites (docs/netmodel.md, "Contention").

A job on several sites, and data in transfer, progress at the rate that the links allow, like running work
(`gridweave.site.kernels.work`). While its data is in transfer, a job has all of its work left or none, and no end.
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
        Whether jobs are affected by all traffic at any time; otherwise only by the traffic at their start.
    flows : Flows
        Flows of running jobs, owned by their rows, and of moves.
    filling : Filling slowdown : numpy.ndarray of float64, shape (n + capacity of moves,)
        Slowdown of each owner of a flow, as of the last sharing.
    moves : Moves
        Transfers of input and output.
    moves_data : bool
        Whether these transfers use the links; otherwise jobs have no data.
    anywhere : numpy.ndarray of bool, shape (n,)
        Whether each job may be split.
    spare_ms : numpy.ndarray of int64, shape (n,)
        Estimated minus actual work of each job.
    moved_ms : numpy.ndarray of int64, shape (n,)
        Output: how long each job's data was in transfer while the job held nodes.
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
    """Return when the next data arrives."""
    return first_end_ms(links.moves.ends) if links.moves_data else NEVER_MS


@kernel_part
def moves_fit(state: GridState, links: Contention, new: Int) -> bool:
    """Whether there is capacity for the moves of ``new`` submitted jobs and of jobs that may start."""
    most = links.moves.counts[IN_USE] + new * len(state.nodes) + 2 * state.counters[0].nodes
    return most <= len(links.moves.row)


@kernel_part
def fetch_for(state: GridState, net: GridLinks, links: Contention, row: Int, now_ms: Int) -> None:
    """Start transferring the input of a submitted job, if it is prefetched."""
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
    """Begin a job that the scheduling pass started, or the transfer of its input.

    Parameters
    ----------
    clock : record
        Clock of the run; ``stirred`` is set if flows begin.
    run_ms, length_ms : int
        Run time on a single site; and on idle links with this placement, including data transfers.
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
    """Start the work of a job whose input has arrived, at rate 1 until links are shared."""
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
    """End the flows of a job whose work is done, and transfer its output; return whether it has any."""
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
    """Update the expected ends of jobs that exceed their estimate from their current rates; rate 0 counts as 1."""
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
    """Return the remaining work of a running job by its estimate, and its current rate."""
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
    """Whether flows began or ended, or links changed, since the last sharing."""
    return clock.stirred == 1 or links.moves.counts[STIRRED] == 1


@kernel
def share_anew(work: WorkTable, net: GridLinks, links: Contention, clock: Any, ends: Ends, now_ms: Int) -> None:
    """Share the links and apply the new rates; under static contention only to new or stalled jobs and moves."""
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
    """Whether a new sharing applies to a running job."""
    return links.dynamic or job.since_ms == now_ms or job.rate == 0

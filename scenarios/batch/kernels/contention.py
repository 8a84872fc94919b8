"""What the jobs of a simulated grid do to each other on the links between its sites (docs/netmodel.md, "Contention").

A job that runs on several sites, and data on its way, go on at the rate that the links leave them, as running work does
(`gridweave.site.kernels.work`). While its data moves, a job has all its work, or none, and no end.
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
    """What jobs send over the links, and what is left of these.

    Attributes
    ----------
    dynamic : bool
        Whether jobs feel what runs at any instant; otherwise what runs at their start.
    flows : Flows
        Of the running jobs, whose rows are the owners, and of the moves.
    filling : Filling
    slowdown : numpy.ndarray of float64, shape (n + room for moves,)
        Of each owner of a flow, as of the last sharing.
    moves : Moves
        Input and output on their way.
    moves_data : bool
        Whether these are flows on the links; otherwise jobs have no data.
    anywhere : numpy.ndarray of bool, shape (n,)
        Whether each job might be split.
    spare_ms : numpy.ndarray of int64, shape (n,)
        How much less the work of a job is than by its estimate.
    moved_ms : numpy.ndarray of int64, shape (n,)
        Filled in: how long the data of each job moved while it held its nodes.
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
    """Whether there is room for what so many new jobs, and those that start on all nodes, might move."""
    most = links.moves.counts[IN_USE] + new * len(state.nodes) + 2 * state.counters[0].nodes
    return most <= len(links.moves.row)


@kernel_part
def fetch_for(state: GridState, net: GridLinks, links: Contention, row: Int, now_ms: Int) -> None:
    """Let the input of a job that is submitted set out, if it does before the job starts."""
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
    """Let a job run that the pass has started, or its input come.

    Parameters
    ----------
    clock : record
        Of the run; ``stirred`` is set if flows begin.
    run_ms, length_ms : int
        How long it takes on one site, and on idle links where it is placed, its data included.
    """
    links.spare_ms[row] = state.end_ms[row] - now_ms - length_ms
    work[row].job_id = state.jobs[row].job_id
    work[row].left = work_of(grown_ms(run_ms, net.factor[row]))
    if links.moves_data:
        recall_taken(state, row)
        parts = state.taken, state.counters[0].n_taken
        if fetch(net.paths, links.moves, links.flows, net.data[row], row, *parts, now_ms):
            _stand_still(work, ends, row, work[row].left, now_ms)
            return
    begin_to_work(state, work, net, links, clock, ends, row, now_ms)


@kernel
def begin_to_work(
    state: GridState, work: WorkTable, net: GridLinks, links: Contention, clock: Any, ends: Ends, row: Int, now_ms: Int
) -> None:
    """Let a job work that has its input, at rate 1 so far."""
    begin_work(ends, work, row, work[row].job_id, work[row].left, RATE_ONE, now_ms)
    if state.n_fragments[row] > 1:
        recall_taken(state, row)
        parts = state.taken, state.counters[0].n_taken
        if add_job_flows(net.paths, links.flows, row, net.communication[row], *parts, net.factor[row]) > 0:
            clock.stirred = 1


@kernel_part
def _stand_still(work: WorkTable, ends: Ends, row: Int, left: Int, now_ms: Int) -> None:
    """Let a job wait for its data, with this work left."""
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
    """Let the flows of a job end whose work is done, and its output set out; return whether there is any."""
    if state.n_fragments[row] > 1 and drop_flows(links.flows, row) > 0 and links.dynamic:
        # Those that run are not slowed less under static contention.
        clock.stirred = 1
    if links.moves_data and deliver(links.moves, links.flows, row, now_ms):
        _stand_still(work, ends, row, 0, now_ms)
        return True
    return False


@kernel
def expect_late_ends(
    state: GridState, work: WorkTable, plan: ReservedStarts | None, links: Contention, now_ms: Int
) -> None:
    """Expect jobs that run past their end by estimate to go on at the rate that they have; if that is 0, at rate 1."""
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
    """Return what is left of a running job by its estimate, and the rate at which it goes on now."""
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
    """Whether flows have begun or ended, or links changed, since links were shared last."""
    return clock.stirred == 1 or links.moves.counts[STIRRED] == 1


@kernel
def share_anew(work: WorkTable, net: GridLinks, links: Contention, clock: Any, ends: Ends, now_ms: Int) -> None:
    """Share the links anew; under static contention this counts for what has just begun alone, or stands still."""
    clock.stirred = 0
    share_links(net.paths, links.flows, links.filling)
    all_slowdowns(links.flows, links.slowdown)
    last = np.int64(-1)
    for place in range(links.flows.n_flows[0]):
        row = links.flows.owner[place]
        # The flows of a job stand together; those of moves have owners behind the jobs.
        if row != last and row < len(work) and _feels(work[row], links, now_ms):
            rate = 0 if links.slowdown[row] == np.inf else rate_of(links.slowdown[row])
            if rate != work[row].rate:
                change_rate(ends, work, row, rate, now_ms)
        last = row
    if links.moves_data:
        set_move_rates(links.moves, links.flows, links.slowdown, links.dynamic, now_ms)


@kernel_part
def _feels(job: Any, links: Contention, now_ms: Int) -> bool:
    """Whether what has just been shared counts for a job that works."""
    return links.dynamic or job.since_ms == now_ms or job.rate == 0

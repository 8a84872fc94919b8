"""Transfers of input and output as flows on the links (docs/grid.md, "Transfers under contention").

A *move* is one transfer: a job's input to one of its sites, or output from one of its sites. During the transfer, a
move has a flow and a rate, like running work (`gridweave.site.kernels.work`). The moves of a job form a linked list.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel, kernel_part
from gridweave.netmodel.kernels.contention import add_flow, drop_flows, lone_rate, transfer_ms
from gridweave.netmodel.kernels.state import Flows, NetArrays
from gridweave.site.job import MAX_TIME_MS
from gridweave.site.kernels.work import (
    RATE_ONE,
    Ends,
    begin_work,
    change_rate,
    first_end_ms,
    no_ends,
    no_work,
    rate_of,
    stop_work,
    work_of,
)

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

NO_MOVE = np.int64(-1)

AHEAD, ARRIVED, FETCHED, PENDING, DELIVERED = np.int64(0), np.int64(1), np.int64(2), np.int64(3), np.int64(4)
"""Kinds of moves.

Before the job starts: input in transfer, or arrived. After the start: input in transfer; output that is pending until
the job's work ends; output in transfer.
"""

FREE, HIGH, IN_USE, STIRRED = 0, 1, 2, 3
"""Indices into `Moves.counts`."""

_MOST_WORK = np.int64(2**63 - 1 - RATE_ONE)


class Moves(NamedTuple):
    """The transfers of all jobs.

    Attributes
    ----------
    first : numpy.ndarray of int64, shape (jobs,)
        First move of each job's list; `NO_MOVE` if it is empty.
    under_way : numpy.ndarray of int64, shape (jobs,)
        Number of moves that each started job has in transfer.
    following : numpy.ndarray of int64, shape (capacity,)
        Next move of the same job; for an unused row, the next unused row.
    row, site, kind, path : numpy.ndarray of int64, shape (capacity,)
        Job, site, kind and path of each move.
    demand : numpy.ndarray of float64, shape (capacity,)
        Rate on idle links, in bits per millisecond.
    work : numpy.ndarray of WORK, shape (capacity,)
        Remaining work; a move that is not in transfer has no end time.
    ends : Ends
        Ends of the moves in transfer.
    counts : numpy.ndarray of int64, shape (4,)
        First row of the free list; number of rows ever used; number of rows in use; whether a flow began or ended
        since the links' bandwidth was last divided among the flows.
    """

    first: npt.NDArray[np.int64]
    under_way: npt.NDArray[np.int64]
    following: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    site: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    path: npt.NDArray[np.int64]
    demand: npt.NDArray[np.float64]
    work: npt.NDArray[np.void]
    ends: Ends
    counts: npt.NDArray[np.int64]


def new_moves(jobs: int, capacity: int) -> Moves:
    """Allocate an empty set of moves."""
    following, row, site, kind, path = np.zeros((5, capacity), np.int64)
    return Moves(
        first=np.full(jobs, NO_MOVE),
        under_way=np.zeros(jobs, np.int64),
        following=following,
        row=row,
        site=site,
        kind=kind,
        path=path,
        demand=np.zeros(capacity),
        work=no_work(capacity),
        ends=no_ends(capacity),
        counts=np.array([NO_MOVE, 0, 0, 0], np.int64),
    )


def more_moves(moves: Moves, capacity: int) -> Moves:
    """Copy the moves to arrays of this capacity."""
    larger = new_moves(len(moves.first), capacity)
    for new, old in zip(_arrays_of(larger), _arrays_of(moves), strict=True):
        new[: len(old)] = old
    return larger


def _arrays_of(moves: Moves) -> list[npt.NDArray[Any]]:
    return [*(part for part in moves if not isinstance(part, Ends)), *moves.ends]


@kernel_part
def owner_of(moves: Moves, move: Int) -> Int:
    """Return the number of a move as the owner of its flow; moves are numbered after all jobs."""
    return len(moves.first) + move


@kernel
def _new_move(
    net: NetArrays, moves: Moves, row: Int, site: Int, kind: Int, origin: Int, target: Int, time_ms: Int
) -> Int:
    """Add a move to a job's list and return it; the move takes ``time_ms`` on idle links."""
    move = moves.counts[FREE]
    if move == NO_MOVE:
        move = moves.counts[HIGH]
        moves.counts[HIGH] += 1
    else:
        moves.counts[FREE] = moves.following[move]
    moves.counts[IN_USE] += 1
    moves.following[move] = moves.first[row]
    moves.first[row] = move
    moves.row[move] = row
    moves.site[move] = site
    moves.kind[move] = kind
    moves.path[move] = origin * len(net.lag_ms) + target
    moves.demand[move] = lone_rate(net, origin, target)
    moves.work[move].left = work_of(time_ms)
    return move


@kernel
def _set_out(moves: Moves, flows: Flows, move: Int, now_ms: Int) -> None:
    """Start a move, at rate 1 until bandwidth is divided again."""
    add_flow(flows, owner_of(moves, move), moves.path[move], moves.demand[move])
    begin_work(moves.ends, moves.work, move, move, moves.work[move].left, RATE_ONE, now_ms)
    moves.counts[STIRRED] = 1


@kernel
def _release(moves: Moves, flows: Flows, move: Int) -> None:
    """Free the row of a move that was removed from its list, and end its flow if it has one."""
    if moves.kind[move] != ARRIVED and moves.kind[move] != PENDING:
        drop_flows(flows, owner_of(moves, move))
        moves.counts[STIRRED] = 1
    stop_work(moves.ends, moves.work, move)
    moves.following[move] = moves.counts[FREE]
    moves.counts[FREE] = move
    moves.counts[IN_USE] -= 1


@kernel
def drop_moves(moves: Moves, flows: Flows, row: Int) -> None:
    """Remove all moves of a job."""
    move = moves.first[row]
    while move != NO_MOVE:
        following = moves.following[move]
        _release(moves, flows, move)
        move = following
    moves.first[row] = NO_MOVE
    moves.under_way[row] = 0


@kernel
def fetch_ahead(
    net: NetArrays,
    moves: Moves,
    flows: Flows,
    data: Any,
    row: Int,
    width: Int,
    nodes: npt.NDArray[np.int64],
    anywhere: bool | np.bool_,
    now_ms: Int,
) -> None:
    """Start transferring the input of a submitted job to each site where it may be placed.

    Parameters
    ----------
    net : NetArrays
    moves : Moves
        Must have capacity for one more move per site.
    flows : Flows
    data : JOB_DATA
    row, width : int
        Row and width of the job.
    nodes : numpy.ndarray of int64, shape (sites,)
    anywhere : bool
        Whether the job may be split and so use any site; if not, only sites with enough nodes for the whole job count.
    now_ms : int
    """
    for site in range(len(nodes)):
        if anywhere or nodes[site] >= width:
            time_ms = transfer_ms(net, data.input_site, site, data.input_bytes)
            if 0 < time_ms <= MAX_TIME_MS:
                move = _new_move(net, moves, row, site, AHEAD, data.input_site, site, time_ms)
                _set_out(moves, flows, move, now_ms)


@kernel
def fetch(
    net: NetArrays,
    moves: Moves,
    flows: Flows,
    data: Any,
    row: Int,
    parts: npt.NDArray[np.void],
    n_parts: Int,
    now_ms: Int,
) -> bool:
    """Start a job's input transfers to its sites, drop its transfers to other sites, and add its pending output.

    Parameters
    ----------
    net : NetArrays
        The links for which the job was placed.
    moves : Moves
        Must have capacity for two more moves per part.
    flows : Flows
    data : JOB_DATA
    row : int
    parts : numpy.ndarray of PART
    n_parts : int
    now_ms : int

    Returns
    -------
    bool
        Whether the job must wait for input.
    """
    for k in range(n_parts):
        site = parts[k].site
        move = moves.first[row]
        while move != NO_MOVE and moves.site[move] != site:
            move = moves.following[move]
        if move == NO_MOVE:
            time_ms = transfer_ms(net, data.input_site, site, data.input_bytes)
            if time_ms > 0:
                move = _new_move(net, moves, row, site, FETCHED, data.input_site, site, time_ms)
                _set_out(moves, flows, move, now_ms)
        elif moves.kind[move] == AHEAD:
            moves.kind[move] = FETCHED
    move = moves.first[row]
    moves.first[row] = NO_MOVE
    moves.under_way[row] = 0
    while move != NO_MOVE:
        following = moves.following[move]
        if moves.kind[move] == FETCHED:
            moves.following[move] = moves.first[row]
            moves.first[row] = move
            moves.under_way[row] += 1
        else:
            _release(moves, flows, move)
        move = following
    for k in range(n_parts):
        time_ms = transfer_ms(net, parts[k].site, data.output_site, data.output_bytes)
        if time_ms > 0:
            _new_move(net, moves, row, parts[k].site, PENDING, parts[k].site, data.output_site, time_ms)
    return moves.under_way[row] > 0


@kernel
def deliver(moves: Moves, flows: Flows, row: Int, now_ms: Int) -> bool:
    """Start transferring the output of a job whose work is done; return whether the job has output."""
    move = moves.first[row]
    while move != NO_MOVE:
        if moves.kind[move] == PENDING:
            moves.kind[move] = DELIVERED
            moves.under_way[row] += 1
            _set_out(moves, flows, move, now_ms)
        move = moves.following[move]
    return moves.under_way[row] > 0


@kernel
def next_job_served(moves: Moves, flows: Flows, now_ms: Int) -> Int:
    """End completed moves until a started job has no move left in transfer; return the job's row, or `NO_MOVE`."""
    while first_end_ms(moves.ends) <= now_ms:
        move = moves.ends.heap[0].row
        if moves.kind[move] == AHEAD:
            drop_flows(flows, owner_of(moves, move))
            moves.counts[STIRRED] = 1
            moves.kind[move] = ARRIVED
            stop_work(moves.ends, moves.work, move)
            continue
        row = moves.row[move]
        _unchain(moves, row, move)
        _release(moves, flows, move)
        moves.under_way[row] -= 1
        if moves.under_way[row] == 0:
            return row
    return NO_MOVE


@kernel
def _unchain(moves: Moves, row: Int, move: Int) -> None:
    """Remove a move from its job's list."""
    if moves.first[row] == move:
        moves.first[row] = moves.following[move]
        return
    before = moves.first[row]
    while moves.following[before] != move:
        before = moves.following[before]
    moves.following[before] = moves.following[move]


@kernel
def set_move_rates(moves: Moves, flows: Flows, slowdown: npt.NDArray[np.float64], dynamic: bool, now_ms: Int) -> None:
    """Set the rates of moves after bandwidth was divided; under static contention, only new or stalled moves change.

    Parameters
    ----------
    slowdown : numpy.ndarray of float64, shape (jobs + capacity,)
        Slowdown of each flow's owner.
    dynamic : bool
        Whether contention is dynamic.
    """
    for place in range(flows.n_flows[0]):
        owner = flows.owner[place]
        move = owner - len(moves.first)
        if move >= 0 and (dynamic or moves.work[move].since_ms == now_ms or moves.work[move].rate == 0):
            rate = 0 if slowdown[owner] == np.inf else rate_of(slowdown[owner])
            if rate != moves.work[move].rate:
                change_rate(moves.ends, moves.work, move, rate, now_ms)
    moves.counts[STIRRED] = 0


@kernel
def last_move(moves: Moves, row: Int) -> Int:
    """Of the moves that a started job has in transfer, return the last to end, or `NO_MOVE`; ties: the lowest site."""
    last = NO_MOVE
    move = moves.first[row]
    while move != NO_MOVE:
        if moves.kind[move] != PENDING and (
            last == NO_MOVE
            or moves.work[move].end_ms > moves.work[last].end_ms
            or (moves.work[move].end_ms == moves.work[last].end_ms and moves.site[move] < moves.site[last])
        ):
            last = move
        move = moves.following[move]
    return last


@kernel
def output_work(moves: Moves, row: Int) -> Int:
    """Return the work, on idle links, of a job's longest pending output transfer."""
    longest = np.int64(0)
    move = moves.first[row]
    while move != NO_MOVE:
        if moves.kind[move] == PENDING:
            longest = max(longest, moves.work[move].left)
        move = moves.following[move]
    return longest


@kernel_part
def added_work(work: Int, other: Int) -> Int:
    """Return the sum of two amounts of work, capped at `_MOST_WORK`."""
    return work + min(other, _MOST_WORK - work)

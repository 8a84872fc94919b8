"""What the links between the sites mean to the grid queue: how long a job takes where (docs/grid.md, "With a network").

A grid without a network has None in the place of `GridLinks`; numba then leaves out what is done for one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.state import GridState, Slot
from gridweave.jit import Int, kernel, kernel_apart, kernel_part
from gridweave.netmodel.kernels.contention import transfer_ms
from gridweave.netmodel.kernels.overhead import local_exchange_ms, split_factor
from gridweave.netmodel.kernels.placements import Choice
from gridweave.netmodel.kernels.state import ALL_TO_ALL, NO_COMMUNICATION, PART, NetArrays
from gridweave.site.job import MAX_TIME_MS
from gridweave.site.kernels.state import NEVER_MS

MAX_OVERHEAD = 10_000
"""A split job that takes ten thousand times as long is a slip of the pen; by the links, it is none that can be made."""

MAX_SPLIT_FACTOR = 2.0
"""The largest factor by which a split may make a job longer, by default (docs/grid.md, "With a network")."""

NO_DATA, BLOCKING, PREFETCH = 0, 1, 2
"""Whether jobs have data to move, and whether it moves while they wait."""

JOB_DATA = np.dtype(
    [
        ("input_bytes", np.int64),
        ("input_site", np.int64),
        ("output_bytes", np.int64),
        ("output_site", np.int64),
    ],
    align=True,
)
"""What a job reads and writes, and at which site that lies."""


MEMO_ROWS, LAST_ROWS = 256, 64
NO_JOB = np.int64(-(2**62))


class Memo(NamedTuple):
    """Where jobs go, as it was worked out before: as long as a head waits, the same question comes pass after pass.

    Attributes
    ----------
    job_id : numpy.ndarray of int64, shape (rows,)
        Of the job; `NO_JOB` if there is none. The rows are a power of 2.
    available : numpy.ndarray of int64, shape (rows, sites)
        The nodes that it might have.
    n_parts : numpy.ndarray of int64, shape (rows,)
        Parts of the best placement; 0 if there is none.
    parts : numpy.ndarray of PART, shape (rows, sites)
    last_job_id, last_available, last_n_parts, last_parts : numpy.ndarray
        The same for the last choice of a job, if it was the best of all placements: one row for each of some jobs.
    last_factor : numpy.ndarray of float64, shape (rows,)
        By which the job grows then.
    """

    job_id: npt.NDArray[np.int64]
    available: npt.NDArray[np.int64]
    n_parts: npt.NDArray[np.int64]
    parts: npt.NDArray[np.void]
    last_job_id: npt.NDArray[np.int64]
    last_available: npt.NDArray[np.int64]
    last_n_parts: npt.NDArray[np.int64]
    last_parts: npt.NDArray[np.void]
    last_factor: npt.NDArray[np.float64]

    def forget(self) -> None:
        """Forget all of it: the links have changed."""
        self.job_id[:] = self.last_job_id[:] = NO_JOB


def new_memo(sites: int) -> Memo:
    """Return a memory of places with nothing in it."""
    return Memo(
        job_id=np.full(MEMO_ROWS, NO_JOB),
        available=np.zeros((MEMO_ROWS, sites), np.int64),
        n_parts=np.zeros(MEMO_ROWS, np.int64),
        parts=np.zeros((MEMO_ROWS, sites), PART),
        last_job_id=np.full(LAST_ROWS, NO_JOB),
        last_available=np.zeros((LAST_ROWS, sites), np.int64),
        last_n_parts=np.zeros(LAST_ROWS, np.int64),
        last_parts=np.zeros((LAST_ROWS, sites), PART),
        last_factor=np.ones(LAST_ROWS),
    )


class GridLinks(NamedTuple):
    """What the grid queue knows of the links between its sites, and of what its jobs send over them.

    Attributes
    ----------
    paths : NetArrays
        Of the links as they are now.
    communication : numpy.ndarray of COMMUNICATION, shape (slots,)
    data : numpy.ndarray of JOB_DATA, shape (slots,)
    staging : int
        NO_DATA, BLOCKING or PREFETCH.
    exact_up_to : float
        If there are no more placements than this, all are looked at.
    max_factor : float
        A split that makes a job longer by a larger factor is not made.
    choice : Choice or None
        Room for choosing sites, if a job is split where it ends first; None if over the fewest sites. (Without it the
        code that chooses is not compiled, which takes most of the time.)
    memo : Memo
        Forgotten when the links change.
    changed : numpy.ndarray of int64, shape (1,)
        Whether the links have changed since the last pass.
    delay_ms : numpy.ndarray of float64, shape (sites,)
        Room: how long what a job moves keeps each site.
    room : numpy.ndarray of int64, shape (sites,)
        Room: nodes of each site.
    taken_factor : numpy.ndarray of float64, shape (1,)
        By which a job grows on the nodes in ``taken``, if these are on several sites.
    taken_data_ms : numpy.ndarray of int64, shape (1,)
        How long its data moves then.
    least_factor : numpy.ndarray of float64, shape (slots,)
        Below that of every split of the job.
    crossing_factor : numpy.ndarray of float64, shape (slots,)
        By how much a job grows at least per share of its messages that crosses, if that share follows from the free
        nodes (overlapped, all to all); otherwise 0.
    factor : numpy.ndarray of float64, shape (slots,)
        Of each job that has started.
    data_ms : numpy.ndarray of int64, shape (slots,)
        How long the data of each job that has started moves.
    """

    paths: NetArrays
    communication: npt.NDArray[np.void]
    data: npt.NDArray[np.void]
    staging: int
    exact_up_to: float
    max_factor: float
    choice: Choice | None
    memo: Memo
    changed: npt.NDArray[np.int64]
    delay_ms: npt.NDArray[np.float64]
    room: npt.NDArray[np.int64]
    taken_factor: npt.NDArray[np.float64]
    taken_data_ms: npt.NDArray[np.int64]
    least_factor: npt.NDArray[np.float64]
    crossing_factor: npt.NDArray[np.float64]
    factor: npt.NDArray[np.float64]
    data_ms: npt.NDArray[np.int64]


@kernel_part
def grown_ms(length_ms: Int, factor: float) -> Int:
    """Return a length of time, times a factor, in whole milliseconds, rounded up."""
    return np.int64(math.ceil(length_ms * factor))


@kernel_part
def length_on_links_ms(net: GridLinks, n_taken: Int, length_ms: Int) -> Int:
    """Return how long a job takes on the nodes in ``taken``, as `judge_taken` found; its data included."""
    if n_taken == 1:
        return net.taken_data_ms[0] + length_ms
    return net.taken_data_ms[0] + grown_ms(length_ms, net.taken_factor[0])


@kernel_part
def moves_data(net: GridLinks, slot: Slot) -> bool:
    """Whether a job has data that keeps the sites that it runs on."""
    return net.staging != NO_DATA and (net.data[slot].input_bytes > 0 or net.data[slot].output_bytes > 0)


@kernel
def data_delay_ms(net: GridLinks, slot: Slot, submit_ms: Int, site: Int, when_ms: Int) -> Int:
    """Return how long the data of a job keeps a site that it starts on at an instant; NEVER_MS if there is no path.

    Parameters
    ----------
    net : GridLinks
    slot : int
        Of the job.
    submit_ms : int
        When it was submitted: prefetched data has been on its way since then.
    site : int
    when_ms : int
        When it starts there.
    """
    if not moves_data(net, slot):
        return np.int64(0)
    data = net.data[slot]
    there_ms = transfer_ms(net.paths, data.input_site, site, data.input_bytes)
    back_ms = transfer_ms(net.paths, site, data.output_site, data.output_bytes)
    if there_ms > MAX_TIME_MS or back_ms > MAX_TIME_MS:
        return NEVER_MS
    if net.staging == PREFETCH:
        there_ms = max(np.int64(0), submit_ms + there_ms - when_ms)
    return there_ms + back_ms


@kernel_apart
def judge_taken(state: GridState, net: GridLinks, slot: Slot, when_ms: Int) -> bool:
    """Work out how long a job takes on the nodes in ``taken`` if it starts there at an instant.

    Returns
    -------
    bool
        False if that is more than a job may take, or the bound on factors allows, or its parts have no path to each
        other, or to its data.
    """
    job = state.jobs[slot]
    n_taken = state.counters[0].n_taken
    factor = 1.0
    if n_taken > 1:
        factor = split_factor(net.paths, net.communication[slot], state.taken, n_taken)
    net.taken_factor[0] = factor
    net.taken_data_ms[0] = 0
    if factor > net.max_factor or job.estimate_ms * factor > MAX_TIME_MS:
        return False
    if moves_data(net, slot):
        longest_ms = np.int64(0)
        for k in range(n_taken):
            longest_ms = max(longest_ms, data_delay_ms(net, slot, job.submit_ms, state.taken[k].site, when_ms))  # type: ignore[arg-type]
        net.taken_data_ms[0] = longest_ms
        return longest_ms + job.estimate_ms * factor <= MAX_TIME_MS
    return True


@kernel_part
def judge_started(state: GridState, net: GridLinks | None, slot: Slot, now_ms: Int) -> None:
    """Work out anew how long a job takes on nodes that were reserved for it."""
    if net is not None:
        judge_taken(state, net, slot, now_ms)


@kernel_part
def note_taken(state: GridState, net: GridLinks | None, slot: Slot) -> None:
    """Keep what was found for the nodes in ``taken``: the job starts there."""
    if net is not None:
        net.factor[slot] = 1.0 if state.counters[0].n_taken == 1 else net.taken_factor[0]
        net.data_ms[slot] = net.taken_data_ms[0]


@kernel_part
def least_factor_now(net: GridLinks, slot: Slot, width: Int, most: Int) -> float:
    """Return what a job grows by at least if no site can give it more than so many nodes.

    Of all pairs of ranks (width - most) / (width - 1) at least are apart then, in any split.
    """
    apart = max(np.int64(0), width - most) / max(np.int64(1), width - 1)
    return max(net.least_factor[slot], (1.0 + net.crossing_factor[slot] * apart) * (1.0 - 1e-9))


@kernel
def find_least_factors(net: GridLinks, lag_ms: float, ms_per_bit: float) -> None:
    """Write for each job what no split of it can grow less by, from the best that any two sites have.

    Bulk-synchronous one message, the slowest, crosses in any split; overlapped, and among all messages, it is one there
    and one back at least, and between all ranks as many as if a single rank were apart.

    Parameters
    ----------
    net : GridLinks
        ``least_factor`` and ``crossing_factor`` are written.
    lag_ms, ms_per_bit : float
        The least of all paths between two sites.
    """
    for slot in range(len(net.communication)):
        communication = net.communication[slot]
        least = 1.0
        net.crossing_factor[slot] = 0.0
        if communication.fraction > 0.0 and communication.pattern != NO_COMMUNICATION:
            own_ms = communication.messages * communication.bits * net.paths.local_ms_per_bit
            local_ms = local_exchange_ms(net.paths, communication)
            carried_ms = communication.bits * ms_per_bit if communication.bits > 0.0 else 0.0
            more_ms = lag_ms + max(own_ms, carried_ms) - own_ms
            share = 1.0
            if net.paths.overlapped:
                share = 2.0 / (communication.width * max(communication.messages, 1))
                if communication.pattern == ALL_TO_ALL:
                    share = 2.0 / communication.width
                    net.crossing_factor[slot] = min(communication.fraction * more_ms / local_ms, float(MAX_OVERHEAD))
            # A little less, for the roundings on the way.
            least = max(1.0, (1.0 + communication.fraction * share * more_ms / local_ms) * (1.0 - 1e-9))
            least = min(least, 1.0 + MAX_OVERHEAD)
        net.least_factor[slot] = least

"""Links between sites in the grid queue: a job's length on a given set of sites (docs/grid.md, "With a network").

A grid without a network passes None instead of `GridLinks`, and numba compiles the code without the network.
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
"""Upper bound on overheads: a larger option is refused as a typing error; a split with more is impossible."""

MAX_SPLIT_FACTOR = 2.0
"""Default limit on the factor by which a split may make a job longer (docs/grid.md, "With a network")."""

NO_DATA, BLOCKING, PREFETCH = 0, 1, 2
"""How data is staged: not at all; while the job occupies its nodes; or input already while the job is waiting."""

JOB_DATA = np.dtype(
    [
        ("input_bytes", np.int64),
        ("input_site", np.int64),
        ("output_bytes", np.int64),
        ("output_site", np.int64),
    ],
    align=True,
)
"""The size and site of a job's input and output."""


MEMO_ROWS, LAST_ROWS = 256, 64
NO_JOB = np.int64(-(2**62))


class Memo(NamedTuple):
    """A cache of placements, because successive passes search for the same placement while a head is waiting.

    Attributes
    ----------
    job_id : numpy.ndarray of int64, shape (rows,)
        Id of the job, `NO_JOB` in an empty row. The number of rows is a power of 2.
    available : numpy.ndarray of int64, shape (rows, sites)
        Available nodes, part of the key.
    n_parts : numpy.ndarray of int64, shape (rows,)
        Number of parts of the best placement; 0 if there is none.
    parts : numpy.ndarray of PART, shape (rows, sites)
    last_job_id, last_available, last_n_parts, last_parts : numpy.ndarray
        Last result of an exhaustive search for some jobs, one row per job, with the same meanings as above.
    last_factor : numpy.ndarray of float64, shape (rows,)
        Factor by which the job takes longer in that placement.
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
        """Clear the cache after the links have changed."""
        self.job_id[:] = self.last_job_id[:] = NO_JOB


def new_memo(sites: int) -> Memo:
    """Return an empty cache."""
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
    """The links between the sites, the traffic of the jobs, and scratch space for placing jobs.

    Attributes
    ----------
    paths : NetArrays
        Paths over the current links.
    communication : numpy.ndarray of COMMUNICATION, shape (slots,)
    data : numpy.ndarray of JOB_DATA, shape (slots,)
    staging : int
        NO_DATA, BLOCKING or PREFETCH.
    exact_up_to : float
        Maximum number of placements for which the search is exhaustive.
    max_factor : float
        Largest factor by which a split may make a job longer.
    choice : Choice or None
        Scratch space for splits that end earliest; None for splits over the fewest sites. (With None, the search is not
        compiled, which saves most of the compile time.)
    memo : Memo
        Cleared when the links change.
    changed : numpy.ndarray of int64, shape (1,)
        Whether the links have changed since the last pass.
    delay_ms : numpy.ndarray of float64, shape (sites,)
        Scratch: how long a job's data transfers occupy each site.
    room : numpy.ndarray of int64, shape (sites,)
        Scratch: number of nodes of each site.
    taken_factor : numpy.ndarray of float64, shape (1,)
        Factor by which a job takes longer on the nodes in ``taken``, if these are on several sites.
    taken_data_ms : numpy.ndarray of int64, shape (1,)
        Duration of the job's data transfers on these nodes.
    least_factor : numpy.ndarray of float64, shape (slots,)
        Lower bound on the factor by which any split makes the job longer.
    crossing_factor : numpy.ndarray of float64, shape (slots,)
        Lower bound on (factor - 1) divided by the fraction of rank pairs on different sites, for overlapped all-to-all
        communication; otherwise 0. The free nodes determine that fraction.
    factor : numpy.ndarray of float64, shape (slots,)
        Factor by which each started job takes longer than on one site.
    data_ms : numpy.ndarray of int64, shape (slots,)
        Duration of the data transfers of each started job.
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
    """Multiply a duration by a factor, rounded up to whole milliseconds."""
    return np.int64(math.ceil(length_ms * factor))


@kernel_part
def length_on_links_ms(net: GridLinks, n_taken: Int, length_ms: Int) -> Int:
    """Return a job's length on the nodes in ``taken``, with data transfers, as computed by the last `judge_taken`."""
    if n_taken == 1:
        return net.taken_data_ms[0] + length_ms
    return net.taken_data_ms[0] + grown_ms(length_ms, net.taken_factor[0])


@kernel_part
def moves_data(net: GridLinks, slot: Slot) -> bool:
    """Whether a job has data whose transfer occupies its sites."""
    return net.staging != NO_DATA and (net.data[slot].input_bytes > 0 or net.data[slot].output_bytes > 0)


@kernel
def data_delay_ms(net: GridLinks, slot: Slot, submit_ms: Int, site: Int, when_ms: Int) -> Int:
    """Return how long a job's data transfers occupy a site; NEVER_MS without a path.

    Parameters
    ----------
    net : GridLinks
    slot : int
        Slot of the job.
    submit_ms : int
        Time of submission, when the transfer of prefetched data starts.
    site : int
    when_ms : int
        Start of the job on this site.
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
    """Compute ``taken_factor`` and ``taken_data_ms`` for a job that starts at ``when_ms`` on the nodes in ``taken``.

    Returns
    -------
    bool
        Whether the placement is allowed: the factor and the run time are within their bounds, and there are paths
        between the parts and to the data.
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
    """Recompute a job's length on its reserved nodes, which are in ``taken``."""
    if net is not None:
        judge_taken(state, net, slot, now_ms)


@kernel_part
def note_taken(state: GridState, net: GridLinks | None, slot: Slot) -> None:
    """Record the factor and transfer time of a job that starts on the nodes in ``taken``."""
    if net is not None:
        net.factor[slot] = 1.0 if state.counters[0].n_taken == 1 else net.taken_factor[0]
        net.data_ms[slot] = net.taken_data_ms[0]


@kernel_part
def least_factor_now(net: GridLinks, slot: Slot, width: Int, most: Int) -> float:
    """Return a lower bound on the factor of a split if each site has at most ``most`` nodes for the job.

    In such a split, at least a fraction (width - most) / (width - 1) of all pairs of ranks are on different sites.
    """
    apart = max(np.int64(0), width - most) / max(np.int64(1), width - 1)
    return max(net.least_factor[slot], (1.0 + net.crossing_factor[slot] * apart) * (1.0 - 1e-9))


@kernel
def find_least_factors(net: GridLinks, lag_ms: float, ms_per_bit: float) -> None:
    """Compute lower bounds on the factors of all splits, from the best path between any two sites.

    In a bulk-synchronous job, only the slowest message counts, and any split sends at least one message between sites.
    In an overlapped job, all messages count, and at least one is sent between sites in each direction. If all ranks
    exchange messages, at least as many are sent between sites as if a single rank were on another site.

    Parameters
    ----------
    net : GridLinks
        ``least_factor`` and ``crossing_factor`` are written.
    lag_ms, ms_per_bit : float
        The smallest delay, and the smallest time per bit, of any path between two sites.
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
            # Slightly lower, to allow for rounding errors.
            least = max(1.0, (1.0 + communication.fraction * share * more_ms / local_ms) * (1.0 - 1e-9))
            least = min(least, 1.0 + MAX_OVERHEAD)
        net.least_factor[slot] = least

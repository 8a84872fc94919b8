"""Compute the length of a split job (docs/grid.md, "How long a split job takes").

The other kernels only see lengths, whether the overhead is a fixed number or follows from the links (links.py).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from gridweave.grid.kernels.links import GridLinks, grown_ms, least_factor_now, length_on_links_ms
from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.kernels.state import GridState, Slot, most_of
from gridweave.jit import Int, kernel_part
from gridweave.site.kernels.state import NEVER_MS


@kernel_part
def stretched_ms(overhead: npt.NDArray[np.float64], n_fragments: Int, sensitivity: float, length_ms: Int) -> Int:
    """Return a split job's length; ``overhead`` has the overheads of 2, 3, ... fragments, the last also for more."""
    if n_fragments == 1:
        return length_ms
    factor = overhead[min(n_fragments, len(overhead) + 1) - 2] * sensitivity
    return length_ms + np.int64(math.floor(length_ms * factor))


@kernel_part
def split_length_ms(state: GridState, codes: GridCodes, slot: Slot, length_ms: Int) -> Int:
    """Return how long a job takes on the nodes in ``taken``.

    Parameters
    ----------
    state : GridState
        The fragments of the job are ``taken[:n_taken]``.
    codes : GridCodes
        ``overhead`` holds the overheads of 2, 3, ... fragments; the last value also applies to more fragments. It is
        not used with a network.
    slot : int
        Slot of the job, whose ``sensitivity`` multiplies the overhead.
    length_ms : int
        Length of the job on one site.

    Returns
    -------
    int
        ``length_ms`` for a single fragment, otherwise length + floor(length x overhead x sensitivity), where the
        overhead is p in Streit, section 6.5.3. With a network: length x factor, rounded up, plus the time of the job's
        data transfers.
    """
    return _split_length_ms(state, codes, codes.net, slot, length_ms)


@kernel_part
def _split_length_ms(state: GridState, codes: GridCodes, net: GridLinks | None, slot: Slot, length_ms: Int) -> Int:
    if net is None:
        return stretched_ms(codes.overhead, state.counters[0].n_taken, state.sensitivity[slot], length_ms)
    return length_on_links_ms(net, state.counters[0].n_taken, length_ms)


@kernel_part
def shortest_split_ms(state: GridState, codes: GridCodes, slot: Slot, length_ms: Int) -> Int:
    """Return a lower bound on the length of any split of a job, so that searches that cannot succeed are skipped."""
    return _shortest_split_ms(state, codes, codes.net, slot, length_ms)


@kernel_part
def _shortest_split_ms(state: GridState, codes: GridCodes, net: GridLinks | None, slot: Slot, length_ms: Int) -> Int:
    if net is not None:
        return grown_ms(length_ms, net.least_factor[slot])
    shortest = NEVER_MS
    for n_fragments in range(2, len(codes.overhead) + 2):
        shortest = min(shortest, stretched_ms(codes.overhead, n_fragments, state.sensitivity[slot], length_ms))  # type: ignore[arg-type]
    return shortest


@kernel_part
def shortest_split_now_ms(state: GridState, codes: GridCodes, slot: Slot, length_ms: Int) -> Int:
    """Return a lower bound on the length of any split over the free nodes, for a job that fits on no single site."""
    return _shortest_split_now_ms(state, codes, codes.net, slot, length_ms)


@kernel_part
def _shortest_split_now_ms(
    state: GridState, codes: GridCodes, net: GridLinks | None, slot: Slot, length_ms: Int
) -> Int:
    if net is None:
        return _shortest_split_ms(state, codes, net, slot, length_ms)
    return grown_ms(length_ms, least_factor_now(net, slot, state.jobs[slot].width, most_of(state.free_order)))


@kernel_part
def longest_split_ms(state: GridState, codes: GridCodes, slot: Slot, length_ms: Int) -> float:
    """Return an upper bound on the length of any split, as a float because it may exceed 64-bit integers."""
    return _longest_split_ms(state, codes, codes.net, slot, length_ms)


@kernel_part
def _longest_split_ms(state: GridState, codes: GridCodes, net: GridLinks | None, slot: Slot, length_ms: Int) -> float:
    if net is not None:
        return length_ms * net.max_factor
    overhead = 0.0
    for row in range(min(len(codes.overhead), len(state.free) - 1, state.jobs[slot].width - 1)):
        overhead = max(overhead, codes.overhead[row])
    return length_ms * (1.0 + overhead * state.sensitivity[slot])

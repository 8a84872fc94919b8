"""How much longer a job takes when it is split: the one place that knows (docs/grid.md, "How long a split job takes").

Whatever the overhead comes from, the rest of the kernels see lengths alone: behind `split_length_ms` stands a number,
or a model of the links between the sites (links.py).
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
    """Return how long a job takes in so many fragments, by overheads for 2, 3, ... of them; the last holds for more."""
    if n_fragments == 1:
        return length_ms
    factor = overhead[min(n_fragments, len(overhead) + 1) - 2] * sensitivity
    return length_ms + np.int64(math.floor(length_ms * factor))


@kernel_part
def split_length_ms(state: GridState, codes: GridCodes, slot: Slot, length_ms: Int) -> Int:
    """Return how long a job takes on the nodes that stand in ``taken``.

    Parameters
    ----------
    state : GridState
        The fragments of the job are ``taken[:n_taken]``.
    codes : GridCodes
        ``overhead`` is by how much more a job takes in 2, 3, ... fragments; the last one holds for more. With a network
        it does not count.
    slot : int
        Of the job, whose ``sensitivity`` to that counts too.
    length_ms : int
        How long it takes on one site.

    Returns
    -------
    int
        ``length_ms`` for a single fragment, otherwise time + floor(time x overhead x sensitivity): the overhead p of
        Streit, section 6.5.3, for each number of fragments and each job. With a network time x factor, rounded up, and
        what its data takes.
    """
    return _split_length_ms(state, codes, codes.net, slot, length_ms)


@kernel_part
def _split_length_ms(state: GridState, codes: GridCodes, net: GridLinks | None, slot: Slot, length_ms: Int) -> Int:
    if net is None:
        return stretched_ms(codes.overhead, state.counters[0].n_taken, state.sensitivity[slot], length_ms)
    return length_on_links_ms(net, state.counters[0].n_taken, length_ms)


@kernel_part
def shortest_split_ms(state: GridState, codes: GridCodes, slot: Slot, length_ms: Int) -> Int:
    """Return what no split of a job takes less than, so that splits that cannot pay need not be found."""
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
    """Return what no split of a job takes less than with what is free now, if it fits on no single site."""
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
    """Return what no split of a job takes longer than, as a double: it may be more than any number of milliseconds."""
    return _longest_split_ms(state, codes, codes.net, slot, length_ms)


@kernel_part
def _longest_split_ms(state: GridState, codes: GridCodes, net: GridLinks | None, slot: Slot, length_ms: Int) -> float:
    if net is not None:
        return length_ms * net.max_factor
    overhead = 0.0
    for row in range(min(len(codes.overhead), len(state.free) - 1, state.jobs[slot].width - 1)):
        overhead = max(overhead, codes.overhead[row])
    return length_ms * (1.0 + overhead * state.sensitivity[slot])

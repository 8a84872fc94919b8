"""Bins for times: exact where times are short, of a constant ratio where they are long."""

from __future__ import annotations

import functools

import numpy as np

from gridweave.scenarios.workload import MAX_TIME_MS, IntArray

# Eight to an octave: neighbouring bins differ by 9%.
BINS_PER_OCTAVE = 8


@functools.cache
def bin_edges() -> IntArray:
    """Return the edges of the bins, in ticks of the clock.

    Bin b holds the whole numbers t with ``edges[b] <= t < edges[b + 1]``. The edges are the powers of
    2^(1 / `BINS_PER_OCTAVE`), rounded up; where these coincide there is one, so that up to a few ticks every number has
    a bin of its own.

    Returns
    -------
    numpy.ndarray of int64
        Ascending, from 1 to beyond the longest time that a workload holds. Read-only.
    """
    octaves = int(MAX_TIME_MS).bit_length()
    within = np.exp2(np.arange(BINS_PER_OCTAVE) / BINS_PER_OCTAVE)
    # Scaled by ldexp, which is exact: the powers of two are edges, whatever the last bit of exp2.
    powers = np.ldexp(within[None, :], np.arange(octaves + 1)[:, None])
    edges = np.unique(np.ceil(powers).astype(np.int64))
    edges.flags.writeable = False
    return edges


def bin_of(ticks: IntArray) -> IntArray:
    """Return the bin of each time.

    Parameters
    ----------
    ticks : numpy.ndarray of int64, shape (n,)
        Times in ticks, >= 1.

    Returns
    -------
    numpy.ndarray of int64, shape (n,)
    """
    return np.searchsorted(bin_edges(), ticks, side="right").astype(np.int64) - 1

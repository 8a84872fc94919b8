"""A placement of a job, and when it ends (docs/netmodel.md, "Where to split")."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import kernel, kernel_apart, kernel_part
from gridweave.netmodel.kernels.overhead import least_split_factor, share_nothing, split_factor
from gridweave.netmodel.kernels.state import FloatArray, IntArray

# Numba infers the types of kernels; their docstrings say them.
# mypy: disable-error-code="no-untyped-def"


class Placements(NamedTuple):
    """Some placements.

    Attributes
    ----------
    parts : numpy.ndarray of PART, shape (room, sites)
    n_parts : numpy.ndarray of int64, shape (room,)
    n_rows : numpy.ndarray of int64, shape (1,)
    """

    parts: npt.NDArray[np.void]
    n_parts: IntArray
    n_rows: IntArray


class Choice(NamedTuple):
    """Room for choosing sites, and what was chosen.

    Attributes
    ----------
    best, parts, last : numpy.ndarray of PART, shape (sites,)
        The best placement so far, the one in hand, and the best of the starts before; by site.
    nodes : numpy.ndarray of int64, shape (sites,)
        Nodes of each site in the placement in hand.
    begun, ended : Placements
        What was improved so far, and what no move improves.
    starts : numpy.ndarray of int64, shape (sites,)
    ways : numpy.ndarray of float64, shape (widest job + 1,)
    ahead : numpy.ndarray of int64, shape (sites + 1,)
        Nodes that are free on the sites from each one on.
    end_ms, factor : numpy.ndarray of float64, shape (1,)
        Of the best; infinite if there is none.
    limit_ms : numpy.ndarray of float64, shape (1,)
        The best does not end later.
    n_best, tried : numpy.ndarray of int64, shape (1,)
        Parts of the best (0: none), and how many placements were looked at.
    """

    best: npt.NDArray[np.void]
    parts: npt.NDArray[np.void]
    last: npt.NDArray[np.void]
    nodes: IntArray
    begun: Placements
    ended: Placements
    starts: IntArray
    ways: FloatArray
    ahead: IntArray
    end_ms: FloatArray
    factor: FloatArray
    limit_ms: FloatArray
    n_best: IntArray
    tried: IntArray


@kernel_part
def _list_parts(delay_ms, choice):
    """List the parts of the placement in ``nodes``; return how many, and for how long the last of them waits."""
    count = 0
    wait_ms = 0.0
    for site in range(len(choice.nodes)):
        if choice.nodes[site] > 0:
            choice.parts[count].site = site
            choice.parts[count].width = choice.nodes[site]
            wait_ms = max(wait_ms, delay_ms[site])
            count += 1
    return count, wait_ms


@kernel_apart
def judge(net, communication, length_ms, delay_ms, choice):
    """Work out when the placement in ``nodes`` ends, and keep it if it is the best so far.

    The best ends first; of several that do, it has the fewest parts; of those, it is the one that was tried first.

    Returns
    -------
    bool
        Whether it was kept.
    """
    count, wait_ms = _list_parts(delay_ms, choice)
    choice.tried[0] += 1
    if wait_ms + length_ms > choice.end_ms[0]:
        return False
    factor = least_split_factor(net, communication, choice.parts, count)
    if wait_ms + length_ms * factor > min(choice.end_ms[0], choice.limit_ms[0]):
        return False
    if not share_nothing(net, choice.parts, count):
        factor = split_factor(net, communication, choice.parts, count)
    end_ms = wait_ms + length_ms * factor
    fewer = end_ms == choice.end_ms[0] and count < choice.n_best[0]
    if end_ms == np.inf or not (end_ms < choice.end_ms[0] or fewer):
        return False
    for place in range(count):
        choice.best[place] = choice.parts[place]
    choice.n_best[0] = count
    choice.end_ms[0] = end_ms
    choice.factor[0] = factor
    return True


@kernel
def placed_end_ms(net, communication, length_ms, delay_ms, choice):
    """Return when the placement in ``nodes`` ends."""
    count, wait_ms = _list_parts(delay_ms, choice)
    return wait_ms + length_ms * split_factor(net, communication, choice.parts, count)


@kernel
def take_fewest_sites(free, width, nodes):
    """Take all that the sites with the most free nodes have (Streit, section 6.5.3)."""
    for site in range(len(free)):
        nodes[site] = 0
    while width > 0:
        site = largest_left(free, nodes)
        nodes[site] = min(free[site], width)
        width -= nodes[site]


@kernel
def largest_left(free, nodes):
    """Return the site with the most free nodes among those that have no part yet, the first of several; -1 if none."""
    best = -1
    for site in range(len(free)):
        if nodes[site] == 0 and free[site] > 0 and (best < 0 or free[site] > free[best]):
            best = site
    return best

"""Placements of a job and the times at which they end (docs/netmodel.md, "Where to split")."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Floats, Int, Ints, Record, kernel, kernel_apart, kernel_part
from gridweave.netmodel.kernels.overhead import is_counted, is_more_than, split_factor
from gridweave.netmodel.kernels.state import FloatArray, IntArray, NetArrays

BEGUN, WHOLE = np.int64(0), np.int64(1)
"""Codes for a partial placement, with nodes still to place, and for a complete placement."""


class Placements(NamedTuple):
    """A list of placements.

    Attributes
    ----------
    parts : numpy.ndarray of PART, shape (capacity, sites)
    n_parts : numpy.ndarray of int64, shape (capacity,)
    n_rows : numpy.ndarray of int64, shape (1,)
        Number of placements in the list.
    """

    parts: npt.NDArray[np.void]
    n_parts: IntArray
    n_rows: IntArray


class EarlierChoice(NamedTuple):
    """The best placement of the same job in an earlier search, with different free nodes, the same links and no delays.

    Attributes
    ----------
    n_parts : numpy.ndarray of int64, shape (1,)
        0 if there was no earlier search.
    parts : numpy.ndarray of PART, shape (sites,)
    factor : numpy.ndarray of float64, shape (1,)
    free : numpy.ndarray of int64, shape (sites,)
        Free nodes in the earlier search.
    rising : numpy.ndarray of int64, shape (sites + 1,)
        Scratch space: whether any site from this index on has more free nodes than in the earlier search.
    rose : numpy.ndarray of int64, shape (sites + 1,)
        Scratch space: whether the current placement uses, on any site before this index, more nodes than were free in
        the earlier search.
    """

    n_parts: IntArray
    parts: npt.NDArray[np.void]
    factor: FloatArray
    free: IntArray
    rising: IntArray
    rose: IntArray


class Alike(NamedTuple):
    """The last evaluated placement; a placement with the same sites and message counts has the same factor.

    Attributes
    ----------
    n_parts : numpy.ndarray of int64, shape (1,)
        0 if there is none.
    sites : numpy.ndarray of int64, shape (sites,)
    messages : numpy.ndarray of float64, shape (sites x sites,)
        Number of messages from each part to later parts.
    factor : numpy.ndarray of float64, shape (1,)
    """

    n_parts: IntArray
    sites: IntArray
    messages: FloatArray
    factor: FloatArray


class Choice(NamedTuple):
    """Scratch space for choosing sites, and the result.

    Attributes
    ----------
    best, parts, last : numpy.ndarray of PART, shape (sites,)
        The best placement so far, the current placement, and the best of earlier starts; each by site.
    nodes : numpy.ndarray of int64, shape (sites,)
        Nodes per site in the current placement.
    begun, settled : Placements
        Placements from which the heuristic has moved nodes, and placements that no move improves.
    starts : numpy.ndarray of int64, shape (sites,)
    ways : numpy.ndarray of float64, shape (widest job + 1,)
    ahead : numpy.ndarray of int64, shape (sites + 1,)
        Total free nodes on the sites from this index on.
    end_ms, factor : numpy.ndarray of float64, shape (1,)
        End and factor of the best placement; infinite if there is none.
    limit_ms : numpy.ndarray of float64, shape (1,)
        Upper bound on the end of the best placement.
    earlier : EarlierChoice
        Result of an earlier search for the same job, if any.
    alike : Alike
        The last evaluated placement.
    n_best, tried, all_tried : numpy.ndarray of int64, shape (1,)
        Number of parts of the best placement (0: none), number of placements tried, and whether all were tried.
    """

    best: npt.NDArray[np.void]
    parts: npt.NDArray[np.void]
    last: npt.NDArray[np.void]
    nodes: IntArray
    begun: Placements
    settled: Placements
    starts: IntArray
    ways: FloatArray
    ahead: IntArray
    end_ms: FloatArray
    factor: FloatArray
    limit_ms: FloatArray
    earlier: EarlierChoice
    alike: Alike
    n_best: IntArray
    tried: IntArray
    all_tried: IntArray


@kernel_part
def _list_parts(delay_ms: Floats, choice: Choice) -> tuple[Int, float]:
    """Copy the placement from ``nodes`` to ``parts``; return the number of parts and the longest delay among them."""
    count = 0
    wait_ms = 0.0
    for site in range(len(choice.nodes)):
        if choice.nodes[site] > 0:
            choice.parts[count].site = site
            choice.parts[count].width = choice.nodes[site]
            wait_ms = max(wait_ms, delay_ms[site])
            count += 1
    return count, wait_ms


@kernel_part
def _factor_limit(length_ms: float, wait_ms: float, choice: Choice) -> float:
    """Return the largest factor with which the current placement can still be the best."""
    limit_ms = min(choice.end_ms[0], choice.limit_ms[0])
    return (limit_ms * (1.0 + 1e-12) - wait_ms) / length_ms


@kernel_apart
def judge(net: NetArrays, communication: Record, length_ms: float, delay_ms: Floats, choice: Choice, what: Int) -> bool:
    """Compute when the placement in ``nodes`` ends, and keep it if it is the best so far.

    The best placement ends first; ties go to fewer parts, then to the placement tried first.

    Returns
    -------
    bool
        Whether the placement was kept. For a partial placement (`BEGUN`): whether a completion of it might be the best.
    """
    count, wait_ms = _list_parts(delay_ms, choice)
    choice.tried[0] += what
    if wait_ms + length_ms > choice.end_ms[0]:
        return False
    limit = _factor_limit(length_ms, wait_ms, choice)
    if is_more_than(net, communication, choice.parts, count, limit):
        return False
    if what == BEGUN:
        return True
    counted = limit < np.inf and is_counted(net, communication, count)
    if counted and _is_alike(net, choice, count):
        factor = choice.alike.factor[0]
    else:
        factor = split_factor(net, communication, choice.parts, count)
        if counted:
            _note_alike(net, choice, count, factor)
    end_ms = wait_ms + length_ms * factor
    fewer = end_ms == choice.end_ms[0] and (count < choice.n_best[0] or _is_before_known(choice, count))
    if end_ms == np.inf or not (end_ms < choice.end_ms[0] or fewer):
        return False
    choice.earlier.n_parts[0] = 0
    for place in range(count):
        choice.best[place] = choice.parts[place]
    choice.n_best[0] = count
    choice.end_ms[0] = end_ms
    choice.factor[0] = factor
    return True


@kernel_part
def _is_alike(net: NetArrays, choice: Choice, count: Int) -> bool:
    """Whether the current placement has the same sites and message counts as the last evaluated placement."""
    alike = choice.alike
    if alike.n_parts[0] != count:
        return False
    for part in range(count):
        if alike.sites[part] != choice.parts[part].site:
            return False
        for other in range(part + 1, count):
            if alike.messages[part * count + other] != net.messages[part * count + other]:
                return False
    return True


@kernel_part
def _note_alike(net: NetArrays, choice: Choice, count: Int, factor: float) -> None:
    """Record the current placement as the last evaluated placement."""
    alike = choice.alike
    alike.n_parts[0] = count
    alike.factor[0] = factor
    for part in range(count):
        alike.sites[part] = choice.parts[part].site
        for other in range(part + 1, count):
            alike.messages[part * count + other] = net.messages[part * count + other]


@kernel
def _is_before_known(choice: Choice, count: Int) -> bool:
    """Whether the best placement is from an earlier search, has ``count`` parts, and is tried after the current one."""
    if choice.earlier.n_parts[0] != count:
        return False
    for place in range(count):
        part, other = choice.parts[place], choice.best[place]
        if part.site != other.site:
            return part.site < other.site
        if part.width != other.width:
            return part.width > other.width
    return False


@kernel
def placed_end_ms(net: NetArrays, communication: Record, length_ms: float, delay_ms: Floats, choice: Choice) -> float:
    """Return the end of the placement in ``nodes``, in milliseconds from now."""
    count, wait_ms = _list_parts(delay_ms, choice)
    return wait_ms + length_ms * split_factor(net, communication, choice.parts, count)


@kernel
def take_fewest_sites(free: Ints, width: Int, nodes: Ints) -> None:
    """Fill the sites with the most free nodes first, which needs the fewest sites (Streit, section 6.5.3)."""
    for site in range(len(free)):
        nodes[site] = 0
    while width > 0:
        site = largest_left(free, nodes)
        nodes[site] = min(free[site], width)
        width -= nodes[site]


@kernel
def largest_left(free: Ints, nodes: Ints) -> Int:
    """Return the site without a part that has the most free nodes; ties: the first site; -1 if there is none."""
    best = -1
    for site in range(len(free)):
        if nodes[site] == 0 and free[site] > 0 and (best < 0 or free[site] > free[best]):
            best = site
    return best

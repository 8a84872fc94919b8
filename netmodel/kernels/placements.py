"""A placement of a job, and when it ends (docs/netmodel.md, "Where to split")."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Floats, Int, Ints, Record, kernel, kernel_apart, kernel_part
from gridweave.netmodel.kernels.overhead import is_counted, is_more_than, split_factor
from gridweave.netmodel.kernels.state import FloatArray, IntArray, NetArrays

BEGUN, WHOLE = np.int64(0), np.int64(1)
"""Whether there are nodes of a job that are not placed yet."""


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


class Known(NamedTuple):
    """The best of all placements of the same job on other free nodes, with the same links and no delays.

    Attributes
    ----------
    n_parts : numpy.ndarray of int64, shape (1,)
        0 if nothing is known.
    parts : numpy.ndarray of PART, shape (sites,)
    factor : numpy.ndarray of float64, shape (1,)
    free : numpy.ndarray of int64, shape (sites,)
        The nodes that the job might have then.
    rising : numpy.ndarray of int64, shape (sites + 1,)
        Room: whether more is free now on any site from each one on.
    rose : numpy.ndarray of int64, shape (sites + 1,)
        Room: whether the placement in hand takes more than was free then on any site before each one.
    """

    n_parts: IntArray
    parts: npt.NDArray[np.void]
    factor: FloatArray
    free: IntArray
    rising: IntArray
    rose: IntArray


class Alike(NamedTuple):
    """The placement that was worked out last: one on the same sites whose parts send as many messages is like it.

    Attributes
    ----------
    n_parts : numpy.ndarray of int64, shape (1,)
        0 if there is none.
    sites : numpy.ndarray of int64, shape (sites,)
    messages : numpy.ndarray of float64, shape (sites x sites,)
        From each part to those behind it.
    factor : numpy.ndarray of float64, shape (1,)
    """

    n_parts: IntArray
    sites: IntArray
    messages: FloatArray
    factor: FloatArray


class Choice(NamedTuple):
    """Room for choosing sites, and what was chosen.

    Attributes
    ----------
    best, parts, last : numpy.ndarray of PART, shape (sites,)
        The best placement so far, the one in hand, and the best of the starts before; by site.
    nodes : numpy.ndarray of int64, shape (sites,)
        Nodes of each site in the placement in hand.
    begun, settled : Placements
        What was improved so far, and what no move improves.
    starts : numpy.ndarray of int64, shape (sites,)
    ways : numpy.ndarray of float64, shape (widest job + 1,)
    ahead : numpy.ndarray of int64, shape (sites + 1,)
        Nodes that are free on the sites from each one on.
    end_ms, factor : numpy.ndarray of float64, shape (1,)
        Of the best; infinite if there is none.
    limit_ms : numpy.ndarray of float64, shape (1,)
        The best does not end later.
    known : Known
        What was chosen for the same job before, if anything.
    alike : Alike
        The placement that was worked out last.
    n_best, tried, all_tried : numpy.ndarray of int64, shape (1,)
        Parts of the best (0: none), how many placements were looked at, and whether the best is that of all.
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
    known: Known
    alike: Alike
    n_best: IntArray
    tried: IntArray
    all_tried: IntArray


@kernel_part
def _list_parts(delay_ms: Floats, choice: Choice) -> tuple[Int, float]:
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


@kernel_part
def _factor_limit(length_ms: float, wait_ms: float, choice: Choice) -> float:
    """Return more than which the factor of a placement cannot be that is the best so far."""
    limit_ms = min(choice.end_ms[0], choice.limit_ms[0])
    return (limit_ms * (1.0 + 1e-12) - wait_ms) / length_ms


@kernel_apart
def judge(net: NetArrays, communication: Record, length_ms: float, delay_ms: Floats, choice: Choice, what: Int) -> bool:
    """Work out when the placement in ``nodes`` ends, and keep it if it is the best so far.

    The best ends first; of several that do, it has the fewest parts; of those, it is the one that was tried first.

    Returns
    -------
    bool
        Whether it was kept; of what is only `BEGUN`, whether a placement that begins so might be.
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
    choice.known.n_parts[0] = 0
    for place in range(count):
        choice.best[place] = choice.parts[place]
    choice.n_best[0] = count
    choice.end_ms[0] = end_ms
    choice.factor[0] = factor
    return True


@kernel_part
def _is_alike(net: NetArrays, choice: Choice, count: Int) -> bool:
    """Whether the placement in hand is on the sites of the one worked out last, with as many messages between them."""
    alike = choice.alike
    if alike.n_parts[0] != count:
        return False
    for one in range(count):
        if alike.sites[one] != choice.parts[one].site:
            return False
        for other in range(one + 1, count):
            if alike.messages[one * count + other] != net.messages[one * count + other]:
                return False
    return True


@kernel_part
def _note_alike(net: NetArrays, choice: Choice, count: Int, factor: float) -> None:
    """Keep what was just worked out."""
    alike = choice.alike
    alike.n_parts[0] = count
    alike.factor[0] = factor
    for one in range(count):
        alike.sites[one] = choice.parts[one].site
        for other in range(one + 1, count):
            alike.messages[one * count + other] = net.messages[one * count + other]


@kernel
def _is_before_known(choice: Choice, count: Int) -> bool:
    """Whether the best so far was known before, and the placement in hand, with as many parts, is tried before it."""
    if choice.known.n_parts[0] != count:
        return False
    for place in range(count):
        one, other = choice.parts[place], choice.best[place]
        if one.site != other.site:
            return one.site < other.site
        if one.width != other.width:
            return one.width > other.width
    return False


@kernel
def placed_end_ms(net: NetArrays, communication: Record, length_ms: float, delay_ms: Floats, choice: Choice) -> float:
    """Return when the placement in ``nodes`` ends."""
    count, wait_ms = _list_parts(delay_ms, choice)
    return wait_ms + length_ms * split_factor(net, communication, choice.parts, count)


@kernel
def take_fewest_sites(free: Ints, width: Int, nodes: Ints) -> None:
    """Take all that the sites with the most free nodes have (Streit, section 6.5.3)."""
    for site in range(len(free)):
        nodes[site] = 0
    while width > 0:
        site = largest_left(free, nodes)
        nodes[site] = min(free[site], width)
        width -= nodes[site]


@kernel
def largest_left(free: Ints, nodes: Ints) -> Int:
    """Return the site with the most free nodes among those that have no part yet, the first of several; -1 if none."""
    best = -1
    for site in range(len(free)):
        if nodes[site] == 0 and free[site] > 0 and (best < 0 or free[site] > free[best]):
            best = site
    return best

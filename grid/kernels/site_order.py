"""The sites in ascending order of their free nodes, kept up to date, so that no site need be looked at in vain.

An entry is a single number, free nodes x 2^24 + site: no grid has 2^24 nodes, nor therefore sites. A search takes as
many steps as the sites have binary digits; a change moves the entries between the old place and the new one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel_part

SITE_BITS = np.int64(24)
SITE_MASK = np.int64(2**24 - 1)

SiteOrder = npt.NDArray[np.int64]
"""The entries of all sites, ascending: shape (sites,)."""


@kernel_part
def entry_of(site: Int, nodes: Int) -> Int:
    """Return the entry of a site with so many nodes free."""
    return (nodes << SITE_BITS) | site


@kernel_part
def site_of(entry: Int) -> Int:
    """Return the site of an entry."""
    return entry & SITE_MASK


@kernel_part
def nodes_of(entry: Int) -> Int:
    """Return the free nodes of an entry."""
    return entry >> SITE_BITS


@kernel_part
def most_of(order: SiteOrder) -> Int:
    """Return the most nodes that are free on one site."""
    return nodes_of(order[len(order) - 1])


@kernel_part
def first_from(order: SiteOrder, entry: Int) -> Int:
    """Return the place of the first entry that is not below this one: a site, or so many nodes on the first site."""
    low = 0
    left = len(order)
    while left > 0:
        half = (left + 1) >> 1
        # Written for a conditional move: both outcomes are as likely.
        low += half if order[low + half - 1] < entry else 0
        left -= half
    return low


@kernel_part
def first_with(order: SiteOrder, nodes: Int) -> Int:
    """Return the place of the first entry with at least so many nodes free."""
    return first_from(order, nodes << SITE_BITS)


@kernel_part
def copy_order(source: SiteOrder, target: SiteOrder) -> None:
    """Copy all entries."""
    for place in range(len(source)):
        target[place] = source[place]


@kernel_part
def move_site(order: SiteOrder, site: Int, before: Int, after: Int) -> None:
    """Move a site to its new place when its free nodes change."""
    entry = entry_of(site, after)
    place = first_from(order, entry_of(site, before))
    if after > before:
        while place + 1 < len(order) and order[place + 1] < entry:
            order[place] = order[place + 1]
            place += 1
    else:
        while place > 0 and order[place - 1] > entry:
            order[place] = order[place - 1]
            place -= 1
    order[place] = entry

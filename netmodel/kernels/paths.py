"""Kernels that sum the links of paths and find the links that two paths share."""

from __future__ import annotations

import numpy as np

from gridweave.jit import Bools, Floats, Ints, kernel
from gridweave.netmodel.kernels.state import LinkRows


@kernel
def add_up_paths(
    first: Ints,
    links: LinkRows,
    latency_ms: Floats,
    jitter_ms: Floats,
    bandwidth_bps: Floats,
    loss: Floats,
    sums: Floats,
) -> None:
    """Sum the properties of the links of each path.

    Parameters
    ----------
    first, links : numpy.ndarray of int
    latency_ms, jitter_ms, bandwidth_bps, loss : numpy.ndarray of float64, shape (links,)
    sums : numpy.ndarray of float64, shape (4, paths)
        Output: latency, jitter, smallest bandwidth (infinite without a link) and loss of each path.
    """
    for path in range(len(first) - 1):
        latency, jitter, least, kept = 0.0, 0.0, np.inf, 1.0
        for place in range(first[path], first[path + 1]):
            link = links[place]
            latency += latency_ms[link]
            jitter += jitter_ms[link]
            least = min(least, bandwidth_bps[link])
            kept *= 1.0 - loss[link]
        sums[0, path], sums[1, path], sums[2, path], sums[3, path] = latency, jitter, least, 1.0 - kept


@kernel
def find_ways_apart(first: Ints, links: LinkRows, mark: Ints, apart: Bools) -> None:
    """Compute, for each pair of sites, whether the paths in the two directions share no link.

    Parameters
    ----------
    first, links : numpy.ndarray of int
    mark : numpy.ndarray of int64, shape (links,)
        Scratch space, -1 everywhere on entry.
    apart : numpy.ndarray of bool, shape (sites, sites)
        Output.
    """
    sites = len(apart)
    for site in range(sites):
        for other in range(site, sites):
            there, back = site * sites + other, other * sites + site
            for place in range(first[there], first[there + 1]):
                mark[links[place]] = there
            common = False
            for place in range(first[back], first[back + 1]):
                common = common or mark[links[place]] == there
            apart[site, other] = apart[other, site] = not common or site == other


@kernel
def find_mirrors(first: Ints, links: LinkRows, ms_per_bit: Floats, mirror: Ints, both: LinkRows) -> bool:
    """Return whether every reverse path mirrors the forward path: link for link, with the same speed.

    Parameters
    ----------
    first, links : numpy.ndarray of int
    ms_per_bit : numpy.ndarray of float64, shape (links,)
    mirror : numpy.ndarray of int64, shape (links,)
        Scratch space, -1 everywhere on entry.
    both : numpy.ndarray of uint32, shape (links of all paths,)
        Output: for each link of the paths, the lower number of the link and its mirror.

    Returns
    -------
    bool
        If False, the content of ``both`` is meaningless.
    """
    sites = int(np.sqrt(len(first) - 1))
    for site in range(sites):
        for other in range(site + 1, sites):
            there, back = site * sites + other, other * sites + site
            count = first[there + 1] - first[there]
            if first[back + 1] - first[back] != count:
                return False
            for step in range(count):
                link, opposite = links[first[there] + step], links[first[back + 1] - 1 - step]
                is_paired = mirror[link] == opposite and mirror[opposite] == link
                if not is_paired and (mirror[link] >= 0 or mirror[opposite] >= 0):
                    return False
                if link == opposite or ms_per_bit[link] != ms_per_bit[opposite]:
                    return False
                mirror[link], mirror[opposite] = opposite, link
    for place in range(len(links)):
        both[place] = min(links[place], mirror[links[place]]) if mirror[links[place]] >= 0 else links[place]
    return True

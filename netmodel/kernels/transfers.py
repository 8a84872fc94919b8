"""How long data takes from site to site (docs/netmodel.md, "Transfers")."""

from __future__ import annotations

import math

import numpy as np

from gridweave.jit import Int, Records, kernel, kernel_part
from gridweave.netmodel.kernels.contention import add_flow, share_links
from gridweave.netmodel.kernels.state import Filling, Flows, NetArrays

NEVER_MS = np.int64(2**62)
"""Later than everything; the same instant as for the sites."""


@kernel_part
def whole_ms(time_ms: float) -> Int:
    """Return a length of time in whole milliseconds, rounded up; NEVER_MS if it is infinite or longer than that."""
    return NEVER_MS if time_ms >= float(NEVER_MS) else np.int64(math.ceil(time_ms))


@kernel
def transfer_ms(net: NetArrays, origin: Int, target: Int, n_bytes: float) -> Int:
    """Return how long data takes from one site to another on links that nobody else uses, in whole milliseconds.

    Parameters
    ----------
    net : NetArrays
    origin, target : int
        Sites; within one site no time passes.
    n_bytes : int or float

    Returns
    -------
    int
        NEVER_MS if there is no path.
    """
    if origin == target or n_bytes <= 0:
        return np.int64(0)
    sites = len(net.lag_ms)
    path = origin * sites + target
    ms_per_bit = max(net.stream_ms_per_bit[origin, target], net.local_ms_per_bit)
    for place in range(net.first[path], net.first[path + 1]):
        ms_per_bit = max(ms_per_bit, net.ms_per_bit[net.links[place]])
    return whole_ms(net.lag_ms[origin, target] + 8.0 * n_bytes * ms_per_bit)


@kernel
def spread_ms(
    net: NetArrays, home: Int, parts: Records, n_parts: Int, n_bytes: float, each: bool, to_home: bool
) -> Int:
    """Return how long it takes until all parts of a job have its input from one site, or one site all the output.

    The transfers begin at the same time and share the links; each takes as long as the busiest link on its way.

    Parameters
    ----------
    net : NetArrays
    home : int
        The site of the data.
    parts : numpy.ndarray of PART
    n_parts : int
    n_bytes : int or float
        Of the whole data.
    each : bool
        Whether every site moves all of it; otherwise each its share, by its nodes.
    to_home : bool
        Whether it goes from the parts to the site (output) rather than to the parts (input).

    Returns
    -------
    int
        In whole milliseconds; NEVER_MS if a path is missing.
    """
    if n_bytes <= 0:
        return np.int64(0)
    width = 0
    for place in range(n_parts):
        width += parts[place].width
    _load_spread(net, home, parts, n_parts, width, each, to_home, 1.0)
    longest_ms = 0.0
    sites = len(net.lag_ms)
    for place in range(n_parts):
        site = parts[place].site
        if site == home:
            continue
        origin, target = (site, home) if to_home else (home, site)
        share = 1.0 if each else parts[place].width / width
        time_ms = share * max(net.stream_ms_per_bit[origin, target], net.local_ms_per_bit)
        for at in range(net.first[origin * sites + target], net.first[origin * sites + target + 1]):
            time_ms = max(time_ms, net.load[net.links[at]] * net.ms_per_bit[net.links[at]])
        longest_ms = max(longest_ms, net.lag_ms[origin, target] + 8.0 * n_bytes * time_ms)
    _load_spread(net, home, parts, n_parts, width, each, to_home, 0.0)
    return whole_ms(longest_ms)


@kernel
def _load_spread(
    net: NetArrays, home: Int, parts: Records, n_parts: Int, width: Int, each: bool, to_home: bool, factor: float
) -> None:
    """Add to each link which part of the data crosses it; with factor 0, clear it."""
    sites = len(net.lag_ms)
    for place in range(n_parts):
        site = parts[place].site
        if site == home:
            continue
        path = site * sites + home if to_home else home * sites + site
        share = 1.0 if each else parts[place].width / width
        for at in range(net.first[path], net.first[path + 1]):
            link = net.links[at]
            net.load[link] = factor * (net.load[link] + share)


@kernel
def shared_transfer_ms(net: NetArrays, flows: Flows, filling: Filling, origin: Int, target: Int, n_bytes: float) -> Int:
    """Return how long data would take at the rate that it would have now, beside the flows that there are.

    Parameters
    ----------
    net : NetArrays
    flows : Flows
        With room for one more; as before, afterwards.
    filling : Filling
    origin, target : int
    n_bytes : int or float

    Returns
    -------
    int
        In whole milliseconds; NEVER_MS if it would get nothing.
    """
    if origin == target or n_bytes <= 0:
        return np.int64(0)
    place = flows.n_flows[0]
    add_flow(flows, np.int64(-1), origin * len(net.lag_ms) + target, transfer_demand(net, origin, target))
    share_links(net, flows, filling)
    time_ms = net.lag_ms[origin, target] + 8.0 * n_bytes / flows.rate[place]
    flows.n_flows[0] = place
    share_links(net, flows, filling)
    return whole_ms(time_ms)


@kernel_part
def transfer_demand(net: NetArrays, origin: Int, target: Int) -> float:
    """Return the most bits per millisecond that one transfer can use, by its stream and by a site's own network."""
    return 1.0 / max(net.stream_ms_per_bit[origin, target], net.local_ms_per_bit)


@kernel
def lone_rate(net: NetArrays, origin: Int, target: Int) -> float:
    """Return the bits per millisecond of one transfer on links that nobody else uses."""
    return 1.0 / max(
        net.stream_ms_per_bit[origin, target], net.local_ms_per_bit, net.narrowest_ms_per_bit[origin, target]
    )

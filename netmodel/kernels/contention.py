"""Duration of data transfers, alone and in contention (docs/netmodel.md, "Transfers" and "Contention").

A driver adds a job's flows when the job starts and removes them when the job ends. Under dynamic contention, it also
shares the links again and updates all slowdowns; under static contention a job keeps its initial slowdown.

Links are shared max-min fairly, by progressive filling ("Sharing links"; Bertsekas and Gallager, Data Networks, second
edition, section 6.5.2).
"""

from __future__ import annotations

import math

import numpy as np

from gridweave.jit import Floats, Int, Ints, Record, Records, kernel, kernel_part
from gridweave.netmodel.kernels.overhead import BACK, OUT, count_messages, step_ms
from gridweave.netmodel.kernels.state import MASTER_WORKERS, NO_COMMUNICATION, Filling, Flows, LinkRows, NetArrays


@kernel_part
def add_flow(flows: Flows, owner: Int, path: Int, demand: float) -> None:
    """Append a flow; its rate is 0 until the links are shared."""
    place = flows.n_flows[0]
    flows.owner[place] = owner
    flows.path[place] = path
    flows.demand[place] = demand
    flows.rate[place] = 0.0
    flows.n_flows[0] = place + 1


@kernel
def add_job_flows(
    net: NetArrays, flows: Flows, owner: Int, communication: Record, parts: Records, n_parts: Int, factor: float
) -> Int:
    """Add flows for the traffic between the parts of a split job; a flow's demand is its rate on idle links.

    Parameters
    ----------
    net : NetArrays
    flows : Flows
        Must have capacity for ``n_parts`` x (``n_parts`` - 1) more flows.
    owner : int
        Owner of the new flows.
    communication : COMMUNICATION
    parts : numpy.ndarray of PART
    n_parts : int
    factor : float
        Result of `split_factor`: the job's slowdown on idle links.

    Returns
    -------
    int
        Number of flows added.
    """
    before = flows.n_flows[0]
    sends = communication.pattern != NO_COMMUNICATION and communication.fraction > 0.0 and communication.bits > 0.0
    if n_parts < 2 or not sends or factor == np.inf:
        return 0
    bits_per_ms = communication.bits / (factor * step_ms(net, communication))
    _add_exchange(net, flows, owner, communication, parts, n_parts, bits_per_ms, OUT)
    if communication.pattern == MASTER_WORKERS:
        _add_exchange(net, flows, owner, communication, parts, n_parts, bits_per_ms, BACK)
    return flows.n_flows[0] - before


@kernel
def _add_exchange(
    net: NetArrays,
    flows: Flows,
    owner: Int,
    communication: Record,
    parts: Records,
    n_parts: Int,
    bits_per_ms: float,
    exchange: Int,
) -> None:
    """Add the flows of one exchange; two parts whose path has no links need no flow.

    Two parts whose path has failed still get a flow, because the path had links when the job was placed.
    """
    count_messages(net, communication, parts, n_parts, exchange)
    sites = len(net.lag_ms)
    for part in range(n_parts):
        for other in range(n_parts):
            count = net.messages[part * n_parts + other]
            path = parts[part].site * sites + parts[other].site
            is_gone = net.lag_ms[parts[part].site, parts[other].site] == np.inf
            if count > 0.0 and (is_gone or net.first[path] < net.first[path + 1]):
                add_flow(flows, owner, path, count * bits_per_ms)


@kernel
def drop_flows(flows: Flows, owner: Int) -> Int:
    """Remove all flows of an owner; return the number of flows removed."""
    kept = 0
    for place in range(flows.n_flows[0]):
        if flows.owner[place] != owner:
            if kept < place:
                flows.owner[kept] = flows.owner[place]
                flows.path[kept] = flows.path[place]
                flows.demand[kept] = flows.demand[place]
                flows.rate[kept] = flows.rate[place]
            kept += 1
    dropped = flows.n_flows[0] - kept
    flows.n_flows[0] = kept
    return dropped


@kernel
def share_links(net: NetArrays, flows: Flows, filling: Filling) -> None:
    """Recompute the rate of every flow; a flow without a path gets 0."""
    share_max_min(flows.n_flows[0], flows.path, flows.demand, net.first, net.links, net.capacity, filling, flows.rate)
    sites = len(net.lag_ms)
    for place in range(flows.n_flows[0]):
        if net.lag_ms[flows.path[place] // sites, flows.path[place] % sites] == np.inf:
            flows.rate[place] = 0.0


@kernel_part
def _flow_slowdown(flows: Flows, place: Int) -> float:
    """Return a flow's demand divided by its rate, at least 1."""
    if flows.rate[place] >= flows.demand[place]:
        return 1.0
    return flows.demand[place] / flows.rate[place]


@kernel
def all_slowdowns(flows: Flows, slowdown: Floats) -> None:
    """Write the slowdown of each owner's slowest flow to ``slowdown[owner]``; other entries stay unchanged."""
    for place in range(flows.n_flows[0]):
        slowdown[flows.owner[place]] = 1.0
    for place in range(flows.n_flows[0]):
        owner = flows.owner[place]
        slowdown[owner] = max(slowdown[owner], _flow_slowdown(flows, place))


NO_LINK = np.int64(-1)


@kernel
def share_max_min(
    n_flows: Int,
    path: Ints,
    demand: Floats,
    first: Ints,
    links: LinkRows,
    capacity: Floats,
    filling: Filling,
    rate: Floats,
) -> None:
    """Assign max-min fair rates: no rate can rise without lowering the rate of a flow whose rate is equal or lower.

    Parameters
    ----------
    n_flows : int
        Number of entries of ``path``, ``demand`` and ``rate`` in use.
    path : numpy.ndarray of int64
        Path number of each flow.
    demand : numpy.ndarray of float64
        Maximum useful rate of each flow; infinite for a flow without a limit.
    first, links : numpy.ndarray of int
        The links of path *p* are ``links[first[p]:first[p + 1]]``, without repetition.
    capacity : numpy.ndarray of float64, shape (links,)
    filling : Filling
    rate : numpy.ndarray of float64
        Output, in the unit of demand and capacity. A flow that crosses no link gets its demand.
    """
    n_used = _count_crossing(n_flows, path, demand, first, links, capacity, filling)
    n_rising = n_flows
    if _all_have_enough(filling, n_used):
        for flow in range(n_flows):
            rate[flow] = demand[flow]
        n_rising = 0
    while n_rising > 0:
        fair, tightest = _tightest(filling, n_used)
        left = _settle_modest(n_rising, path, demand, first, links, filling, rate, fair)
        if left == n_rising:
            left = _settle_link(n_rising, path, first, links, filling, rate, fair, tightest)
        n_rising = left


@kernel
def _count_crossing(
    n_flows: Int, path: Ints, demand: Floats, first: Ints, links: LinkRows, capacity: Floats, filling: Filling
) -> Int:
    """Mark all flows as rising and count them per link; return the number of links in use."""
    n_used = 0
    for flow in range(n_flows):
        filling.rising[flow] = flow
        for place in range(first[path[flow]], first[path[flow] + 1]):
            link = links[place]
            if filling.crossing[link] == 0:
                filling.used[n_used] = link
                filling.left[link] = capacity[link]
                filling.demand[link] = 0.0
                n_used += 1
            filling.crossing[link] += 1
            filling.demand[link] += demand[flow]
    return n_used


@kernel
def _all_have_enough(filling: Filling, n_used: Int) -> bool:
    """Whether no link's total demand exceeds its capacity; if so, reset ``crossing``."""
    for place in range(n_used):
        if filling.demand[filling.used[place]] > filling.left[filling.used[place]]:
            return False
    for place in range(n_used):
        filling.crossing[filling.used[place]] = 0
    return True


@kernel
def _tightest(filling: Filling, n_used: Int) -> tuple[float, Int]:
    """Return the smallest fair share that a link can give to its rising flows, and that link."""
    fair, tightest = np.inf, NO_LINK
    for place in range(n_used):
        link = filling.used[place]
        if filling.crossing[link] > 0:
            share = filling.left[link] / filling.crossing[link]
            if share < fair:
                fair, tightest = share, link
    return fair, tightest


@kernel
def _settle_modest(
    n_rising: Int, path: Ints, demand: Floats, first: Ints, links: LinkRows, filling: Filling, rate: Floats, fair: float
) -> Int:
    """Settle the flows whose demand is at most the smallest fair share; return the number of flows left."""
    left = 0
    for place in range(n_rising):
        flow = filling.rising[place]
        if demand[flow] <= fair:
            _settle(flow, demand[flow], path, first, links, filling, rate)
        else:
            filling.rising[left] = flow
            left += 1
    return left


@kernel
def _settle_link(
    n_rising: Int, path: Ints, first: Ints, links: LinkRows, filling: Filling, rate: Floats, fair: float, tightest: Int
) -> Int:
    """Settle the flows on the tightest link at its fair share; return the number of flows left."""
    left = 0
    for place in range(n_rising):
        flow = filling.rising[place]
        crosses = False
        for at in range(first[path[flow]], first[path[flow] + 1]):
            crosses = crosses or links[at] == tightest
        if crosses:
            _settle(flow, fair, path, first, links, filling, rate)
        else:
            filling.rising[left] = flow
            left += 1
    return left


@kernel_part
def _settle(flow: Int, share: float, path: Ints, first: Ints, links: LinkRows, filling: Filling, rate: Floats) -> None:
    """Fix the final rate of a flow and subtract it from the links on its path."""
    rate[flow] = share
    for place in range(first[path[flow]], first[path[flow] + 1]):
        link = links[place]
        filling.left[link] = max(0.0, filling.left[link] - share)
        filling.crossing[link] -= 1


NEVER_MS = np.int64(2**62)
"""A time later than any other, which means never; sites use the same value."""


@kernel_part
def whole_ms(time_ms: float) -> Int:
    """Round a duration up to whole milliseconds, but return at most `NEVER_MS`."""
    return NEVER_MS if time_ms >= float(NEVER_MS) else np.int64(math.ceil(time_ms))


@kernel
def transfer_ms(net: NetArrays, origin: Int, target: Int, n_bytes: float) -> Int:
    """Return the duration of a data transfer on idle links, rounded up to milliseconds.

    Parameters
    ----------
    net : NetArrays
    origin, target : int
        Sites. A transfer within a site takes no time.
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
def lone_rate(net: NetArrays, origin: Int, target: Int) -> float:
    """Return the rate of a single transfer on idle links, in bits per millisecond."""
    return 1.0 / max(
        net.stream_ms_per_bit[origin, target], net.local_ms_per_bit, net.narrowest_ms_per_bit[origin, target]
    )

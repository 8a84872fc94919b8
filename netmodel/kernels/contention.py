"""How long data takes over links, alone and beside other data (docs/netmodel.md, "Transfers" and "Contention").

A driver adds the flows of a job when it starts and drops them when it ends. Under dynamic contention it then shares the
links anew and applies the new slowdowns to all; under static contention a job keeps the slowdown of its start.

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
    """Add one flow."""
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
    """Add what a split job sends from part to part, each with the rate at which it is sent on idle links.

    Parameters
    ----------
    net : NetArrays
    flows : Flows
        With room for ``n_parts`` x (``n_parts`` - 1) more.
    owner : int
        Of the flows.
    communication : COMMUNICATION
    parts : numpy.ndarray of PART
    n_parts : int
    factor : float
        By which the job takes longer on idle links: that of `split_factor`.

    Returns
    -------
    int
        How many flows there are more.
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
    """Add the flows of one exchange; parts that have no link between them need none.

    A path that is gone has had links: the job was placed when it was there.
    """
    count_messages(net, communication, parts, n_parts, exchange)
    sites = len(net.lag_ms)
    for one in range(n_parts):
        for other in range(n_parts):
            count = net.messages[one * n_parts + other]
            path = parts[one].site * sites + parts[other].site
            is_gone = net.lag_ms[parts[one].site, parts[other].site] == np.inf
            if count > 0.0 and (is_gone or net.first[path] < net.first[path + 1]):
                add_flow(flows, owner, path, count * bits_per_ms)


@kernel
def drop_flows(flows: Flows, owner: Int) -> Int:
    """Take out all flows of an owner; return how many they were."""
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
    """Work out anew what each flow gets; where no path is left it gets nothing."""
    share_max_min(flows.n_flows[0], flows.path, flows.demand, net.first, net.links, net.capacity, filling, flows.rate)
    sites = len(net.lag_ms)
    for place in range(flows.n_flows[0]):
        if net.lag_ms[flows.path[place] // sites, flows.path[place] % sites] == np.inf:
            flows.rate[place] = 0.0


@kernel_part
def _flow_slowdown(flows: Flows, place: Int) -> float:
    """Return how many times as long a flow takes as on idle links."""
    if flows.rate[place] >= flows.demand[place]:
        return 1.0
    return flows.demand[place] / flows.rate[place]


@kernel
def all_slowdowns(flows: Flows, slowdown: Floats) -> None:
    """Write the slowdown of every owner of a flow to ``slowdown[owner]``; those of others stay as they are."""
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
    """Give each flow its max-min fair rate: none can have more but at the cost of one that has no more than it.

    Parameters
    ----------
    n_flows : int
        How many entries of ``path``, ``demand`` and ``rate`` count.
    path : numpy.ndarray of int64
        On which path each flow goes.
    demand : numpy.ndarray of float64
        What each can use at most; infinite for one that takes what it gets.
    first, links : numpy.ndarray of int
        The links of path *p* are ``links[first[p]:first[p + 1]]``, none of them twice.
    capacity : numpy.ndarray of float64, shape (links,)
    filling : Filling
    rate : numpy.ndarray of float64
        Is written. In the unit of demand and capacity; a flow that crosses no link has its demand.
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
    """Let all flows rise; return how many links they cross."""
    n_used = 0
    for flow in range(n_flows):
        filling.rising[flow] = flow
        for place in range(first[path[flow]], first[path[flow] + 1]):
            link = links[place]
            if filling.crossing[link] == 0:
                filling.used[n_used] = link
                filling.left[link] = capacity[link]
                filling.wanted[link] = 0.0
                n_used += 1
            filling.crossing[link] += 1
            filling.wanted[link] += demand[flow]
    return n_used


@kernel
def _all_have_enough(filling: Filling, n_used: Int) -> bool:
    """Whether no link is wanted for more than it has; then nobody is left to rise."""
    for place in range(n_used):
        if filling.wanted[filling.used[place]] > filling.left[filling.used[place]]:
            return False
    for place in range(n_used):
        filling.crossing[filling.used[place]] = 0
    return True


@kernel
def _tightest(filling: Filling, n_used: Int) -> tuple[float, Int]:
    """Return the least that a link can give to each flow that still rises on it, and which link that is."""
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
    """Settle flows that want no more than the least share, which any link can give; return how many still rise."""
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
    """Settle the flows of the tightest link at its share; return how many still rise."""
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
    """Give a flow its rate, once and for all."""
    rate[flow] = share
    for place in range(first[path[flow]], first[path[flow] + 1]):
        link = links[place]
        filling.left[link] = max(0.0, filling.left[link] - share)
        filling.crossing[link] -= 1


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
def lone_rate(net: NetArrays, origin: Int, target: Int) -> float:
    """Return the bits per millisecond of one transfer on links that nobody else uses."""
    return 1.0 / max(
        net.stream_ms_per_bit[origin, target], net.local_ms_per_bit, net.narrowest_ms_per_bit[origin, target]
    )

"""What split jobs and transfers do to each other on the links that they share (docs/netmodel.md, "Contention").

A driver adds the flows of a job when it starts and drops them when it ends. Under dynamic contention it then shares the
links anew and applies the new slowdowns to all; under static contention a job keeps the slowdown of its start.
"""

from __future__ import annotations

import numpy as np

from gridweave.jit import Floats, Int, Record, Records, kernel, kernel_part
from gridweave.netmodel.kernels.overhead import BACK, OUT, count_messages, step_ms
from gridweave.netmodel.kernels.sharing import share_max_min
from gridweave.netmodel.kernels.state import MASTER_WORKERS, NO_COMMUNICATION, Filling, Flows, NetArrays


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

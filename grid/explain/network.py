"""The network between the sites as it is now, and how many running jobs are on each link."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

from gridweave.grid.api import KnownNetwork, NetworkLink, NetworkNode
from gridweave.grid.control.links import GridNetwork
from gridweave.netmodel.correction import PairMeasured
from gridweave.netmodel.topology import Topology

Pair = tuple[int, int]


def network_now(
    names: Sequence[str],
    network: GridNetwork | None,
    measured: Sequence[PairMeasured],
    spread: Sequence[Sequence[int]],
) -> KnownNetwork:
    """Return the network as it is known.

    Without a `network` the sites are the nodes, and the links are what was measured, or has jobs. `spread` has the
    sites of each running job that is on several.
    """
    pairs = Counter(pair for sites in spread for pair in itertools.combinations(sorted(sites), 2))
    if network is None:
        return _of_sites(names, measured, pairs)
    topology, arrays = network.model.topology, network.model.arrays
    on_cable: Counter[int] = Counter()
    for sites in spread:
        crossed: set[int] = set()
        for one, other in itertools.permutations(sites, 2):
            path = one * len(names) + other
            crossed |= {int(topology.cable[link]) for link in arrays.links[arrays.first[path] : arrays.first[path + 1]]}
        on_cable.update(crossed)
    return KnownNetwork(nodes=_nodes(topology), links=_links(topology, on_cable))


def _nodes(topology: Topology) -> list[NetworkNode]:
    found = []
    for number, name in enumerate(topology.nodes):
        sites = [
            site for site, node in zip(topology.sites, topology.node_of_site.tolist(), strict=True) if node == number
        ]
        place = [float(each) if math.isfinite(each) else None for each in topology.positions[number]]
        found.append(NetworkNode(name=name, sites=tuple(sites), latitude=place[0], longitude=place[1]))
    return found


def _links(topology: Topology, on_cable: Counter[int]) -> list[NetworkLink]:
    """Return the cables; of one that is used both ways the first way stands for both."""
    found: dict[int, NetworkLink] = {}
    for link, cable in enumerate(topology.cable.tolist()):
        if cable not in found:
            found[cable] = NetworkLink(
                one=topology.nodes[topology.source[link]],
                other=topology.nodes[topology.target[link]],
                latency_ms=float(topology.latency_ms[link]),
                bandwidth_bps=float(topology.bandwidth_bps[link]),
                part=float(topology.up[link]),
                jobs=on_cable[cable],
            )
    return list(found.values())


def _of_sites(names: Sequence[str], measured: Sequence[PairMeasured], jobs: Counter[Pair]) -> KnownNetwork:
    known = {(pair.origin, pair.target): pair for pair in measured}
    links = []
    for one, other in itertools.combinations(range(len(names)), 2):
        ends = names[one], names[other]
        pair = known.get(ends) or known.get(ends[::-1])
        if pair is None and not jobs[one, other]:
            continue
        latency_ms = None if pair is None or pair.round_trip_ms is None else pair.round_trip_ms / 2
        links.append(
            NetworkLink(
                one=ends[0],
                other=ends[1],
                latency_ms=latency_ms,
                bandwidth_bps=None if pair is None else pair.bandwidth_bps,
                jobs=jobs[one, other],
                measured=pair is not None,
            )
        )
    return KnownNetwork(nodes=[NetworkNode(name=name, sites=(name,)) for name in names], links=links)

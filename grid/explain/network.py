"""The network between the sites as it is now, and how many running jobs are on each link."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

from gridweave.grid.api import KnownNetwork, NetworkLink, NetworkNode, NetworkPath
from gridweave.grid.control.links import GridNetwork
from gridweave.netmodel.correction import PairMeasured
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.topology import Topology

Pair = tuple[int, int]


def network_now(
    names: Sequence[str],
    network: GridNetwork | None,
    model: NetworkModel | None,
    measured: Sequence[PairMeasured],
    spread: Sequence[Sequence[int]],
) -> KnownNetwork:
    """Return the network as it is known.

    Without a `network` the sites are the nodes, and the links are what was measured, or has jobs. `model` is the
    network as decisions go by it, which measurements have corrected. `spread` has the sites of each running job that
    is on several.
    """
    pairs = Counter(pair for sites in spread for pair in itertools.combinations(sorted(sites), 2))
    if network is None or model is None:
        return _of_sites(names, measured, pairs)
    topology, arrays = network.model.topology, network.model.arrays
    on_cable: Counter[int] = Counter()
    for sites in spread:
        crossed: set[int] = set()
        for one, other in itertools.permutations(sites, 2):
            path = one * len(names) + other
            crossed |= {int(topology.cable[link]) for link in arrays.links[arrays.first[path] : arrays.first[path + 1]]}
        on_cable.update(crossed)
    return KnownNetwork(
        nodes=_nodes(topology), links=_links(network.model, model, on_cable), paths=_paths(names, network.model, model)
    )


def _paths(names: Sequence[str], written: NetworkModel, model: NetworkModel) -> list[NetworkPath]:
    """Return the way from each site to each other one, as decisions go by it."""
    return [
        NetworkPath(
            origin=names[one],
            target=names[other],
            latency_ms=_latency_ms(model, one, other),
            bandwidth_bps=_bandwidth_bps(model, one, other),
            measured=_is_corrected(written, model, one, other),
        )
        for one, other in itertools.permutations(range(len(names)), 2)
    ]


def _latency_ms(model: NetworkModel, one: int, other: int) -> float | None:
    latency_ms = float(model.paths.latency_ms[one, other])
    return latency_ms if math.isfinite(latency_ms) else None


def _bandwidth_bps(model: NetworkModel, one: int, other: int) -> float | None:
    """Return what a job gets on the way between two sites; None: nothing, or as much as it likes."""
    bandwidth_bps = float(min(model.paths.bandwidth_bps[one, other], model.paths.stream_bps[one, other]))
    return bandwidth_bps if 0 < bandwidth_bps < math.inf else None


def _is_corrected(written: NetworkModel, model: NetworkModel, one: int, other: int) -> bool:
    """Whether measurements have changed what decisions know of the way between two sites."""
    known = (_latency_ms, _bandwidth_bps)
    return any(of(written, one, other) != of(model, one, other) for of in known)


def _nodes(topology: Topology) -> list[NetworkNode]:
    found = []
    for number, name in enumerate(topology.nodes):
        sites = [
            site for site, node in zip(topology.sites, topology.node_of_site.tolist(), strict=True) if node == number
        ]
        place = [float(each) if math.isfinite(each) else None for each in topology.positions[number]]
        found.append(NetworkNode(name=name, sites=tuple(sites), latitude=place[0], longitude=place[1]))
    return found


def _links(written: NetworkModel, model: NetworkModel, on_cable: Counter[int]) -> list[NetworkLink]:
    """Return the cables; of one that is used both ways the first way stands for both.

    A link that is all of the way between two sites is as decisions go by it. Which of several links on a way is slower
    than written down, no measurement tells.
    """
    topology, found = written.topology, dict[int, NetworkLink]()
    alone = _ways_of_one_link(written)
    for link, cable in enumerate(topology.cable.tolist()):
        if cable in found:
            continue
        latency_ms, bandwidth_bps = float(topology.latency_ms[link]), float(topology.bandwidth_bps[link])
        ends = alone.get(link)
        corrected = ends is not None and _is_corrected(written, model, *ends)
        if ends is not None and corrected:
            latency_ms = _latency_ms(model, *ends) or latency_ms
            bandwidth_bps = _bandwidth_bps(model, *ends) or bandwidth_bps
        found[cable] = NetworkLink(
            one=topology.nodes[topology.source[link]],
            other=topology.nodes[topology.target[link]],
            latency_ms=latency_ms,
            bandwidth_bps=bandwidth_bps,
            part=float(topology.up[link]),
            jobs=on_cable[cable],
            measured=corrected,
        )
    return list(found.values())


def _ways_of_one_link(model: NetworkModel) -> dict[int, Pair]:
    """Return the links that are all of the way between two sites, and these."""
    sites, arrays = len(model.topology.sites), model.arrays
    lengths = arrays.first[1:] - arrays.first[:-1]
    ways = [way for way, length in enumerate(lengths.tolist()) if length == 1]
    return {int(arrays.links[arrays.first[way]]): divmod(way, sites) for way in ways}


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

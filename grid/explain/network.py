"""Describe the current network between the sites, with measured values and the number of running jobs per link."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter

import numpy as np
from msgspec.structs import asdict, replace

from gridweave.grid.api import KnownNetwork, NetworkLink, NetworkNode, NetworkPath, NetworkWay
from gridweave.grid.control.links import GridNetwork
from gridweave.netmodel.correction import PairMeasured
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.routing import Paths
from gridweave.netmodel.topology import BoolArray, Topology

Pair = tuple[int, int]


def network_now(
    names: Sequence[str],
    network: GridNetwork | None,
    model: NetworkModel | None,
    measured: Sequence[PairMeasured],
    spread: Sequence[Sequence[int]],
) -> KnownNetwork:
    """Return the current network with measured values and the number of running jobs per link.

    Parameters
    ----------
    network : GridNetwork or None
        The configured network. Without it, the nodes are the sites, and the links are the pairs of sites that were
        measured or run parts of the same job.
    model : NetworkModel or None
        The network that decisions use, corrected by measurements.
    spread : sequence of sequence of int
        The sites of each running job that spans several sites.
    """
    if network is None or model is None:
        pairs = Counter(pair for sites in spread for pair in itertools.combinations(sorted(sites), 2))
        return _of_sites(names, measured, pairs)
    return KnownNetwork(
        nodes=_nodes(network.model.topology),
        links=_links(network.model, model, _jobs_on_cables(network.model, spread)),
        paths=_paths(network.model, model),
    )


def _jobs_on_cables(model: NetworkModel, spread: Sequence[Sequence[int]]) -> Counter[int]:
    cable = model.topology.cable.tolist()
    jobs: Counter[int] = Counter()
    for sites in spread:
        crossed = {
            cable[link] for site, other in itertools.permutations(sites, 2) for link in model.paths.between(site, other)
        }
        jobs.update(crossed)
    return jobs


def _nodes(topology: Topology) -> list[NetworkNode]:
    return [
        NetworkNode(
            name=name,
            sites=attributes.get("sites", ()),
            latitude=attributes.get("latitude"),
            longitude=attributes.get("longitude"),
        )
        for name, attributes in topology.graph.nodes(data=True)
    ]


def _links(written: NetworkModel, model: NetworkModel, on_cable: Mapping[int, int]) -> list[NetworkLink]:
    """Return the links; the two directions of a cable are merged into one link.

    If a link is the whole path between two sites, it shows the path's measured values. On a path of several links,
    a measurement cannot tell which link is slower than configured.
    """
    topology, lone = written.topology, _lone_links(written, model)
    links: list[NetworkLink] = []
    place: dict[tuple[int, str, str], int] = {}
    for link, cable in enumerate(topology.cable.tolist()):
        way = lone.get(link) or _way(topology, model.topology, link)
        is_measured = link in lone or way.bandwidth_bps != float(topology.bandwidth_bps[link])
        node, other = topology.nodes[topology.source[link]], topology.nodes[topology.target[link]]
        first = place.pop((cable, other, node), None)
        if first is not None:
            there = links[first]
            back = None if way == _way_there(there) else way
            links[first] = replace(there, back=back, one_way=False, measured=there.measured or is_measured)
            continue
        place[cable, node, other] = len(links)
        links.append(
            NetworkLink(
                one=node,
                other=other,
                part=float(topology.up[link]),
                jobs=on_cable[cable],
                measured=is_measured,
                name=topology.link_names[link],
                one_way=True,
                cable=cable,
                **asdict(way),
            )
        )
    return links


def _way(topology: Topology, corrected: Topology, link: int) -> NetworkWay:
    return NetworkWay(
        latency_ms=float(topology.latency_ms[link]),
        bandwidth_bps=float(corrected.bandwidth_bps[link]),
        loss=float(topology.loss[link]),
        jitter_ms=float(topology.jitter_ms[link]),
    )


def _way_there(link: NetworkLink) -> NetworkWay:
    return NetworkWay(**{name: getattr(link, name) for name in NetworkWay.__struct_fields__})


def _lone_links(written: NetworkModel, model: NetworkModel) -> dict[int, NetworkWay]:
    """Return the measured values of each corrected link that is the whole path between two sites, by link."""
    corrected, paths = _corrected(written.paths, model.paths), model.paths
    alone = np.diff(written.paths.first).reshape(corrected.shape) == 1
    ways = {}
    for site, other in np.argwhere(corrected & alone).tolist():
        (link,) = written.paths.between(site, other)
        jitter_ms = float(paths.jitter_ms[site, other])
        ways[link] = NetworkWay(
            latency_ms=max(0.0, float(paths.latency_ms[site, other]) - jitter_ms / 2),
            bandwidth_bps=float(paths.bandwidth_bps[site, other]),
            jitter_ms=jitter_ms,
        )
    return ways


def _corrected(written: Paths, paths: Paths) -> BoolArray:
    """Return which paths between sites were corrected by measurements, as a (sites, sites) mask."""
    figures = (attrgetter(name) for name in ("latency_ms", "jitter_ms", "bandwidth_bps", "stream_bps"))
    corrected: BoolArray = np.logical_or.reduce([of(written) != of(paths) for of in figures])
    return corrected


def _paths(written: NetworkModel, model: NetworkModel) -> list[NetworkPath]:
    """Return the path between each ordered pair of sites, with the values that decisions use."""
    sites, corrected = model.topology.sites, _corrected(written.paths, model.paths)
    return [
        NetworkPath(
            origin=sites[ends[0]],
            target=sites[ends[1]],
            latency_ms=_latency_ms(model, ends),
            bandwidth_bps=_bandwidth_bps(model, ends),
            measured=bool(corrected[ends]),
            jitter_ms=float(model.paths.jitter_ms[ends]),
            written_latency_ms=_latency_ms(written, ends),
            written_bandwidth_bps=_bandwidth_bps(written, ends),
        )
        for ends in itertools.permutations(range(len(sites)), 2)
    ]


def _latency_ms(model: NetworkModel, ends: Pair) -> float | None:
    latency_ms = float(model.paths.latency_ms[ends])
    return latency_ms if math.isfinite(latency_ms) else None


def _bandwidth_bps(model: NetworkModel, ends: Pair) -> float | None:
    """Return the bandwidth available to one job between two sites; None if there is no path or no limit."""
    bandwidth_bps = float(min(model.paths.bandwidth_bps[ends], model.paths.stream_bps[ends]))
    return bandwidth_bps if 0 < bandwidth_bps < math.inf else None


def _of_sites(names: Sequence[str], measured: Sequence[PairMeasured], jobs: Mapping[Pair, int]) -> KnownNetwork:
    by_pair = {(pair.origin, pair.target): pair for pair in measured}
    links = []
    for site, other in itertools.combinations(range(len(names)), 2):
        ends = names[site], names[other]
        there, back = (
            _way_of(by_pair.get(ends), by_pair.get(ends[::-1])),
            _way_of(by_pair.get(ends[::-1]), by_pair.get(ends)),
        )
        is_measured = ends in by_pair or ends[::-1] in by_pair
        if is_measured or jobs[site, other]:
            links.append(
                NetworkLink(
                    one=ends[0],
                    other=ends[1],
                    jobs=jobs[site, other],
                    measured=is_measured,
                    back=None if back == there else back,
                    **asdict(there),
                )
            )
    return KnownNetwork(nodes=[NetworkNode(name=name, sites=(name,)) for name in names], links=links)


def _way_of(there: PairMeasured | None, back: PairMeasured | None) -> NetworkWay:
    """Return one direction's measured values; jitter is the usual minus the smallest round-trip time."""
    trips = there if there is not None and there.round_trip_ms is not None else back
    bandwidth_bps = None if there is None else there.bandwidth_bps
    if trips is None or trips.round_trip_ms is None or trips.least_ms is None:
        return NetworkWay(bandwidth_bps=bandwidth_bps)
    jitter_ms = trips.round_trip_ms - trips.least_ms
    return NetworkWay(latency_ms=trips.least_ms / 2, bandwidth_bps=bandwidth_bps, jitter_ms=jitter_ms)

"""What probes have measured between sites, and the model of a network that it corrects, or that is made of it alone.

The rules are in docs/netmodel.md, "Measured".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_high, median_low
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from gridweave.errors import InputError
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.routing import Paths, value_paths
from gridweave.netmodel.tables import LOCAL_BANDWIDTH_BPS, LOCAL_LATENCY_MS, SEGMENT_BYTES
from gridweave.netmodel.topology import FloatArray, IntArray, Topology, check_number

if TYPE_CHECKING:
    import networkx as nx

WINDOW = 3
"""So many of the newest measurements of a pair count, if nothing else is said: of three, one odd one moves no median,
and two that agree do."""

LEAST = 2
"""So many measurements are needed before a model is corrected by them: one alone may be odd."""

ROUND_TRIP_AGE_MS, BANDWIDTH_AGE_MS = 3_600_000, 86_400_000
"""Older measurements do not count, if nothing else is said: an hour, and a day, as bandwidth is measured seldom."""


class PairMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the way from one site to another.

    Attributes
    ----------
    round_trip_ms : float or None
        What a message and its answer usually take: the median, of two the lower.
    least_ms : float or None
        What they take without waiting.
    bandwidth_bps : float or None
        Of the data from origin to target: the median, of two the higher.
    round_trips, bandwidths : int
        Of how many measurements.
    newest_ms : int
        Instant of the newest.
    """

    origin: str
    target: str
    round_trip_ms: float | None
    least_ms: float | None
    bandwidth_bps: float | None
    round_trips: int
    bandwidths: int
    newest_ms: int


class _Row(NamedTuple):
    """One probe: a time or a speed as it usually was, and the least."""

    at_ms: int
    usual: float
    least: float


_Rows = list[tuple[str, str, list[_Row]]]


class MeasurementsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measurements that are known, by the two sites."""

    round_trips: _Rows
    bandwidths: _Rows


class Measurements:
    """The newest measurements of each pair of sites.

    Parameters
    ----------
    window : int
        So many of the newest of a pair count.
    round_trip_age_ms, bandwidth_age_ms : int
        Older ones do not count.

    Raises
    ------
    OptionError
        If a number makes no sense.

    Examples
    --------
    >>> seen = Measurements()
    >>> seen.add_round_trip("ams", "fra", 1000, [9.0, 8.1, 8.3])
    >>> seen.add_bandwidth("ams", "fra", 1000, 9.4e8)
    >>> found = seen.pair("fra", "ams", 2000)
    >>> found.round_trip_ms, found.least_ms, found.bandwidth_bps
    (8.3, 8.1, None)
    """

    def __init__(
        self,
        *,
        window: int = WINDOW,
        round_trip_age_ms: int = ROUND_TRIP_AGE_MS,
        bandwidth_age_ms: int = BANDWIDTH_AGE_MS,
    ) -> None:
        check_number("window", window, 1, "measurements, from 1 up")
        check_number("round_trip_age_ms", round_trip_age_ms, 1, "milliseconds, from 1 up")
        check_number("bandwidth_age_ms", bandwidth_age_ms, 1, "milliseconds, from 1 up")
        self._window = window
        self._age_ms = round_trip_age_ms, bandwidth_age_ms
        # A round trip belongs to both directions: these are kept by the two sites in order.
        self._round_trips: dict[tuple[str, str], list[_Row]] = {}
        self._bandwidths: dict[tuple[str, str], list[_Row]] = {}

    def state(self) -> MeasurementsState:
        """Return the measurements that are known."""
        known = (self._round_trips, self._bandwidths)
        return MeasurementsState(*([(*pair, rows) for pair, rows in of.items()] for of in known))

    def restore(self, state: MeasurementsState) -> None:
        """Take in the measurements that were known."""
        self._round_trips = {(first, second): rows for first, second, rows in state.round_trips}
        self._bandwidths = {(origin, target): rows for origin, target, rows in state.bandwidths}

    def add_round_trip(self, origin: str, target: str, at_ms: int, samples_ms: Sequence[float]) -> None:
        """Take in the round trips of one probe.

        Parameters
        ----------
        origin, target : str
            Sites; the probe counts for both directions.
        at_ms : int
            When it was made. A second probe of the same instant is taken for the first one, repeated.

        Raises
        ------
        InputError
            If the sites are the same, or a sample is no time.
        """
        if not samples_ms or not all(0 <= sample < np.inf for sample in samples_ms):
            raise InputError(
                f"round trips from {origin} to {target}: {list(samples_ms)!r:.100}; milliseconds, from 0 up"
            )
        _check_ends(origin, target)
        pair = (origin, target) if origin < target else (target, origin)
        row = _Row(at_ms, float(np.median(samples_ms)), float(min(samples_ms)))
        _insert(self._round_trips.setdefault(pair, []), row, self._window)

    def add_bandwidth(self, origin: str, target: str, at_ms: int, bandwidth_bps: float) -> None:
        """Take in what data came through from one site to another.

        Parameters
        ----------
        at_ms : int
            When it was measured; as of `add_round_trip`.

        Raises
        ------
        InputError
            If the sites are the same, or it is no bandwidth.
        """
        if not 0 < bandwidth_bps < np.inf:
            raise InputError(f"bandwidth from {origin} to {target}: {bandwidth_bps!r}; bits per second, above 0")
        _check_ends(origin, target)
        rows = self._bandwidths.setdefault((origin, target), [])
        _insert(rows, _Row(at_ms, float(bandwidth_bps), float(bandwidth_bps)), self._window)

    def pair(self, origin: str, target: str, now_ms: int) -> PairMeasured | None:
        """Return what is known now of the way from one site to another; None if nothing is."""
        ends = (origin, target) if origin < target else (target, origin)
        trips = self._newest(self._round_trips.get(ends, []), now_ms - self._age_ms[0])
        speeds = self._newest(self._bandwidths.get((origin, target), []), now_ms - self._age_ms[1])
        if not trips and not speeds:
            return None
        return PairMeasured(
            origin=origin,
            target=target,
            round_trip_ms=median_low([row.usual for row in trips]) if trips else None,
            least_ms=median_low([row.least for row in trips]) if trips else None,
            # What else was on the way makes a bandwidth seem less, hardly ever more.
            bandwidth_bps=median_high([row.usual for row in speeds]) if speeds else None,
            round_trips=len(trips),
            bandwidths=len(speeds),
            newest_ms=max(row.at_ms for row in (*trips, *speeds)),
        )

    def _newest(self, rows: list[_Row], after_ms: int) -> list[_Row]:
        """Return the rows that count."""
        return [row for row in rows[-self._window :] if row.at_ms > after_ms]

    def pairs(self, now_ms: int, sites: Sequence[str] | None = None) -> list[PairMeasured]:
        """Return what is known now of all pairs.

        Parameters
        ----------
        sites : sequence of str, optional
            Only between these, in their order; all, by name, if left out.
        """
        known = {pair for one, other in self._round_trips for pair in ((one, other), (other, one))}
        known |= self._bandwidths.keys()
        names = sorted({site for pair in known for site in pair}) if sites is None else sites
        place = {site: number for number, site in enumerate(names)}
        wanted = sorted((place[one], place[other], one, other) for one, other in known if {one, other} <= place.keys())
        found = (self.pair(one, other, now_ms) for _, _, one, other in wanted)
        return [pair for pair in found if pair is not None]


def _check_ends(origin: str, target: str) -> None:
    if origin == target:
        raise InputError(f"a probe from {origin} to itself measures no network; name two sites")


def _insert(rows: list[_Row], row: _Row, window: int) -> None:
    """Add a row in the order of time, unless there is one of its instant, and keep the newest."""
    place = bisect_left(rows, row.at_ms, key=lambda other: other.at_ms)
    if place == len(rows) or rows[place].at_ms != row.at_ms:
        rows.insert(place, row)
    del rows[:-window]


TOLERANCE = 0.1
"""By which part a measurement may differ from a model that is left as it is, if nothing else is said."""

_LEAST_MS = 0.1  # smaller differences are of clocks and event loops, not of networks

MEASURED = "measured"
"""What links are named that stand for what was measured."""


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model was wrong: a round trip or jitter alone in milliseconds, a bandwidth in bits per second."""

    origin: str
    target: str
    what: str
    modelled: float
    measured: float


@dataclass(frozen=True, eq=False)
class Corrected:
    """A model as measurements have corrected it: the very one that was given if nothing differs."""

    model: NetworkModel
    corrections: tuple[Correction, ...]


def correct(model: NetworkModel, measured: Sequence[PairMeasured], *, tolerance: float = TOLERANCE) -> Corrected:
    """Correct a model where it differs from what was measured.

    Parameters
    ----------
    model : NetworkModel
        As it was written down: measurements take the place of earlier ones, so one that was corrected is not to be
        corrected again.
    measured : sequence of PairMeasured
        As `Measurements.pairs` gives them; those of sites that the model does not have are passed over, as are round
        trips and bandwidths of fewer than `LEAST` measurements.
    tolerance : float
        By which part they may differ; from 0 up.

    Raises
    ------
    OptionError
        If the tolerance makes no sense.
    """
    check_number("tolerance", tolerance, 0.0, "a part, from 0 up")
    place = {site: number for number, site in enumerate(model.topology.sites)}
    known = {
        (place[pair.origin], place[pair.target]): pair
        for pair in measured
        if pair.origin in place and pair.target in place and pair.origin != pair.target
    }
    changed: _Changed = {}
    paths = _with_latencies(model.paths, known, tolerance, changed)
    topology, paths = _with_bandwidths(model.topology, paths, known, tolerance, changed)
    if not changed:
        return Corrected(model, ())
    return Corrected(replace(model, topology=topology, paths=paths), tuple(changed[key] for key in sorted(changed)))


_Known = Mapping[tuple[int, int], PairMeasured]
_Changed = dict[tuple[int, int, str], Correction]


def _with_latencies(paths: Paths, known: _Known, tolerance: float, changed: _Changed) -> Paths:
    """Replace latencies: a measured round trip is divided as the model divides its own, or in halves."""
    latency_ms, jitter_ms = paths.latency_ms.copy(), paths.jitter_ms.copy()
    for (one, other), pair in known.items():
        if pair.round_trip_ms is None or pair.least_ms is None or pair.round_trips < LEAST:
            continue
        there_ms, back_ms = paths.latency_ms[one, other], paths.latency_ms[other, one]
        modelled_ms = float(there_ms + back_ms)
        modelled_jitter_ms = float(paths.jitter_ms[one, other] + paths.jitter_ms[other, one]) / 2
        measured_jitter_ms = pair.round_trip_ms - pair.least_ms
        allowed_ms = max(tolerance * modelled_ms, _LEAST_MS)
        differs = _differs(pair.round_trip_ms, modelled_ms, allowed_ms)
        if not differs and not _differs(measured_jitter_ms, modelled_jitter_ms, allowed_ms):
            continue
        if modelled_ms == np.inf and pair.bandwidth_bps is None:
            continue  # there is no path, and nothing is known of how much one would carry
        share = there_ms / modelled_ms if 0 < modelled_ms < np.inf else 0.5
        latency_ms[one, other] = share * pair.round_trip_ms
        jitter_ms[one, other] = measured_jitter_ms
        if differs:
            changed[one, other, "latency"] = _correction(pair, "round trip", modelled_ms, pair.round_trip_ms)
        else:
            changed[one, other, "jitter"] = _correction(pair, "jitter", modelled_jitter_ms, measured_jitter_ms)
    return replace(paths, latency_ms=latency_ms, jitter_ms=jitter_ms)


def _differs(measured: float, modelled: float, allowed: float) -> bool:
    return not np.isfinite(modelled) or abs(measured - modelled) > allowed


def _correction(pair: PairMeasured, what: str, modelled: float, measured: float) -> Correction:
    return Correction(origin=pair.origin, target=pair.target, what=what, modelled=modelled, measured=measured)


def _with_bandwidths(
    topology: Topology, paths: Paths, known: _Known, tolerance: float, changed: _Changed
) -> tuple[Topology, Paths]:
    """Widen the links that have carried more than they should; narrow paths that carry less, each by a gate."""
    speeds = {
        ends: pair.bandwidth_bps
        for ends, pair in known.items()
        if pair.bandwidth_bps is not None and pair.bandwidths >= LEAST
    }
    bandwidth_bps = topology.bandwidth_bps.copy()
    stream_bps = paths.stream_bps.copy()
    for (one, other), speed in speeds.items():
        stream_bps[one, other] = max(stream_bps[one, other], speed)
        if speed > (1 + tolerance) * paths.bandwidth_bps[one, other] > 0:
            crossed = paths.between(one, other)
            bandwidth_bps[crossed] = np.maximum(bandwidth_bps[crossed], speed)
    narrowest = _narrowest(paths, bandwidth_bps)
    gates = {}
    for ends, speed in sorted(speeds.items()):
        if not np.isfinite(paths.latency_ms[ends]):
            continue  # there is no path, and no round trip was measured either
        modelled = float(paths.bandwidth_bps[ends])
        if _differs(speed, modelled, tolerance * modelled):
            changed[(*ends, "bandwidth")] = _correction(known[ends], "bandwidth", modelled, speed)
        if modelled == 0 or speed < (1 - tolerance) * narrowest[ends]:
            gates[ends] = narrowest[ends] = speed
    paths = replace(paths, bandwidth_bps=narrowest, stream_bps=stream_bps)
    topology = topology.with_figures(bandwidth_bps=bandwidth_bps)
    if not gates:
        return topology, paths
    targets = topology.node_of_site[[other for _, other in gates]]
    return (
        _with_gates(topology, targets, np.array(list(gates.values()))),
        _through_gates(paths, list(gates), len(topology.sites), len(topology.source)),
    )


def _through_gates(paths: Paths, ends: Sequence[tuple[int, int]], sites: int, first_gate: int) -> Paths:
    """Return paths of which those between some ends lead through a gate at last: links, numbered in their order."""
    at = np.array([one * sites + other for one, other in ends], np.int64)
    numbers = first_gate + np.arange(len(ends))
    links = np.insert(paths.links, paths.first[at + 1], numbers.astype(np.uint32))
    longer = np.zeros(sites * sites + 1, np.int64)
    np.add.at(longer, at + 1, 1)
    return replace(paths, first=paths.first + np.cumsum(longer), links=links)


def _narrowest(paths: Paths, bandwidth_bps: FloatArray) -> FloatArray:
    """Return the bandwidth of the narrowest link of every path."""
    narrowest = paths.bandwidth_bps.copy().ravel()
    lengths = np.diff(paths.first)
    crossing = np.flatnonzero(lengths)
    if len(crossing):
        narrowest[crossing] = np.minimum.reduceat(bandwidth_bps[paths.links], paths.first[crossing])
    return narrowest.reshape(paths.bandwidth_bps.shape)


def _with_gates(topology: Topology, at: IntArray, bandwidth_bps: FloatArray) -> Topology:
    """Add a link from a node to itself for each gate: no other path ever leads over one."""
    nodes = [topology.nodes[node] for node in at]
    graph = topology.graph.copy()
    _add_links(
        graph,
        topology.n_cables,
        [(node, node, 0.0, 0.0, bps) for node, bps in zip(nodes, bandwidth_bps.tolist(), strict=True)],
    )
    return replace(topology, graph=graph)


def _add_links(graph: nx.MultiDiGraph[str], cable: int, rows: Sequence[tuple[str, str, float, float, float]]) -> None:
    """Add measured links, each on its own cable; a row is from, to, latency [ms], jitter [ms], bandwidth [bit/s]."""
    first = graph.number_of_edges()
    for place, (origin, target, latency_ms, jitter_ms, bandwidth_bps) in enumerate(rows):
        figures = {"latency_ms": latency_ms, "bandwidth_bps": bandwidth_bps, "loss": 0.0, "jitter_ms": jitter_ms}
        graph.add_edge(origin, target, first + place, **figures, cable=cable + place, name=MEASURED, up=True)


def measured_model(
    sites: Sequence[str],
    measured: Sequence[PairMeasured],
    *,
    bandwidth_bps: float | None = None,
    exchange: str = "synchronous",
    local_latency_ms: float = LOCAL_LATENCY_MS,
    local_bandwidth_bps: float = LOCAL_BANDWIDTH_BPS,
) -> NetworkModel:
    """Return a model that is made of measurements alone: each pair of sites has a link of its own, and no other way.

    Parameters
    ----------
    measured : sequence of PairMeasured
        Those of other sites are passed over. A pair without a round trip has no path.
    bandwidth_bps : float, optional
        Of pairs whose bandwidth was not measured; without it they have no path.
    exchange, local_latency_ms, local_bandwidth_bps
        As of `NetworkModel`.

    Raises
    ------
    InputError
        If there are no sites, or one is there twice.
    OptionError
        If a number or the exchange makes no sense.
    """
    if not sites or len(set(sites)) < len(sites):
        raise InputError(f"sites {', '.join(sites)}: name at least one, and each once")
    if bandwidth_bps is not None:
        check_number("bandwidth_bps", bandwidth_bps, 0.0, "bits per second, above 0", above=True)
    place = {site: number for number, site in enumerate(sites)}
    rows = []
    for pair in measured:
        speed = pair.bandwidth_bps if pair.bandwidth_bps is not None else bandwidth_bps
        if pair.origin not in place or pair.target not in place or pair.origin == pair.target:
            continue
        if pair.round_trip_ms is not None and pair.least_ms is not None and speed is not None:
            jitter_ms = pair.round_trip_ms - pair.least_ms
            rows.append((place[pair.origin], place[pair.target], 0.5 * pair.least_ms, jitter_ms, speed))
    rows.sort()
    topology = _mesh(tuple(sites), rows)
    lengths = np.zeros(len(sites) ** 2, np.int64)
    lengths[topology.source * len(sites) + topology.target] = 1
    first = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    paths = value_paths(topology, first, np.arange(len(rows), dtype=np.uint32), SEGMENT_BYTES)
    return NetworkModel(topology, paths, exchange, local_latency_ms, local_bandwidth_bps)


def _mesh(sites: tuple[str, ...], rows: Sequence[tuple[int, int, float, float, float]]) -> Topology:
    """Return a node for each site, and links: from, to, latency, jitter, bandwidth."""
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    graph.add_nodes_from((site, {"sites": (site,)}) for site in sites)
    _add_links(graph, 0, [(sites[row[0]], sites[row[1]], *row[2:]) for row in rows])
    return Topology(name=MEASURED, graph=graph, sites=sites, node_of_site=np.arange(len(sites), dtype=np.int64))

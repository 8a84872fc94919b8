"""Measurements from probes between sites, and network models corrected by or built from these measurements.

docs/netmodel.md, "Measured", states the rules.
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
"""Default number of recent measurements used per pair of sites.

With three, a single outlier does not move the median, but two measurements that agree do.
"""

LEAST = 2
"""Minimum number of measurements for a correction; a single one may be an outlier."""

ROUND_TRIP_AGE_MS, BANDWIDTH_AGE_MS = 3_600_000, 86_400_000
"""Default maximum ages of measurements: an hour, and a day for bandwidth, which is measured less often."""


class PairMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """The measured properties of the path from one site to another.

    Attributes
    ----------
    round_trip_ms : float or None
        Typical round-trip time: the low median.
    least_ms : float or None
        Round-trip time without queueing.
    bandwidth_bps : float or None
        Bandwidth from origin to target: the high median.
    round_trips, bandwidths : int
        Number of measurements.
    newest_ms : int
        Time of the newest measurement.
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
    """One probe: the median and minimum of its round trips, or its bandwidth in both fields."""

    at_ms: int
    usual: float
    least: float


_Rows = list[tuple[str, str, list[_Row]]]


class MeasurementsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The recorded measurements of each pair of sites."""

    round_trips: _Rows
    bandwidths: _Rows


class Measurements:
    """The newest measurements of each pair of sites.

    Parameters
    ----------
    window : int
        Number of recent measurements used per pair of sites.
    round_trip_age_ms, bandwidth_age_ms : int
        Maximum ages of the measurements used.

    Raises
    ------
    OptionError
        If a number is out of range.

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
        check_number("window", window, 1, "at least 1 measurement")
        check_number("round_trip_age_ms", round_trip_age_ms, 1, "at least 1 ms")
        check_number("bandwidth_age_ms", bandwidth_age_ms, 1, "at least 1 ms")
        self._window = window
        self._age_ms = round_trip_age_ms, bandwidth_age_ms
        # A round trip belongs to both directions, so its key is the sorted pair.
        self._round_trips: dict[tuple[str, str], list[_Row]] = {}
        self._bandwidths: dict[tuple[str, str], list[_Row]] = {}

    def state(self) -> MeasurementsState:
        """Return the recorded measurements."""
        recorded = (self._round_trips, self._bandwidths)
        return MeasurementsState(*([(*pair, rows) for pair, rows in rows_by_pair.items()] for rows_by_pair in recorded))

    def restore(self, state: MeasurementsState) -> None:
        """Replace the recorded measurements."""
        self._round_trips = {(first, second): rows for first, second, rows in state.round_trips}
        self._bandwidths = {(origin, target): rows for origin, target, rows in state.bandwidths}

    def add_round_trip(self, origin: str, target: str, at_ms: int, samples_ms: Sequence[float]) -> None:
        """Record the round trips of one probe.

        Parameters
        ----------
        origin, target : str
            Sites. The probe counts for both directions.
        at_ms : int
            Time of the probe. A second probe at the same time is a repetition and is ignored.

        Raises
        ------
        InputError
            If the sites are the same, there is no sample, or a sample is negative or infinite.
        """
        if not samples_ms or not all(0 <= sample < np.inf for sample in samples_ms):
            raise InputError(
                f"round trips from {origin} to {target}: {list(samples_ms)!r:.100}; expected at least 0 ms"
            )
        _check_ends(origin, target)
        pair = (origin, target) if origin < target else (target, origin)
        row = _Row(at_ms, float(np.median(samples_ms)), float(min(samples_ms)))
        _insert(self._round_trips.setdefault(pair, []), row, self._window)

    def add_bandwidth(self, origin: str, target: str, at_ms: int, bandwidth_bps: float) -> None:
        """Record the measured bandwidth from one site to another.

        Parameters
        ----------
        at_ms : int
            Time of the measurement; a repetition is ignored, as in `add_round_trip`.

        Raises
        ------
        InputError
            If the sites are the same, or the bandwidth is not positive and finite.
        """
        if not 0 < bandwidth_bps < np.inf:
            raise InputError(
                f"bandwidth from {origin} to {target}: {bandwidth_bps!r}; expected more than 0 bits per second"
            )
        _check_ends(origin, target)
        rows = self._bandwidths.setdefault((origin, target), [])
        _insert(rows, _Row(at_ms, float(bandwidth_bps), float(bandwidth_bps)), self._window)

    def pair(self, origin: str, target: str, now_ms: int) -> PairMeasured | None:
        """Return the current measurements from one site to another; None if there are none."""
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
            # Other traffic makes a bandwidth look lower, hardly ever higher.
            bandwidth_bps=median_high([row.usual for row in speeds]) if speeds else None,
            round_trips=len(trips),
            bandwidths=len(speeds),
            newest_ms=max(row.at_ms for row in (*trips, *speeds)),
        )

    def _newest(self, rows: list[_Row], after_ms: int) -> list[_Row]:
        """Return the rows in the window that are recent enough to be used."""
        return [row for row in rows[-self._window :] if row.at_ms > after_ms]

    def pairs(self, now_ms: int, sites: Sequence[str] | None = None) -> list[PairMeasured]:
        """Return the current measurements of all pairs.

        Parameters
        ----------
        sites : sequence of str, optional
            Return only pairs of these sites, in this order; defaults to all sites, sorted by name.
        """
        measured = {pair for origin, target in self._round_trips for pair in ((origin, target), (target, origin))}
        measured |= self._bandwidths.keys()
        names = sorted({site for pair in measured for site in pair}) if sites is None else sites
        index = {site: number for number, site in enumerate(names)}
        selected = sorted(
            (index[origin], index[target], origin, target)
            for origin, target in measured
            if {origin, target} <= index.keys()
        )
        measurements = (self.pair(origin, target, now_ms) for _, _, origin, target in selected)
        return [pair for pair in measurements if pair is not None]


def _check_ends(origin: str, target: str) -> None:
    if origin == target:
        raise InputError(f"a probe from {origin} to itself measures no network; name two sites")


def _insert(rows: list[_Row], row: _Row, window: int) -> None:
    """Insert a row by time, unless the same time is already recorded; keep only the newest rows."""
    index = bisect_left(rows, row.at_ms, key=lambda existing: existing.at_ms)
    if index == len(rows) or rows[index].at_ms != row.at_ms:
        rows.insert(index, row)
    del rows[:-window]


TOLERANCE = 0.1
"""Default relative difference between measurement and model that needs no correction."""

_LEAST_MS = 0.1  # smaller differences come from clocks and event loops, not from the network

MEASURED = "measured"
"""Name of links added by measurements."""


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """A correction of one property: round trip or jitter in milliseconds, or bandwidth in bits per second."""

    origin: str
    target: str
    what: str
    modelled: float
    measured: float


@dataclass(frozen=True, eq=False)
class Corrected:
    """A corrected model and its corrections; without corrections, the original model object."""

    model: NetworkModel
    corrections: tuple[Correction, ...]


def correct(model: NetworkModel, measured: Sequence[PairMeasured], *, tolerance: float = TOLERANCE) -> Corrected:
    """Correct a model where it differs from measurements.

    Parameters
    ----------
    model : NetworkModel
        The uncorrected model. Do not pass a model that was already corrected: newer measurements replace older ones.
    measured : sequence of PairMeasured
        Pairs from `Measurements.pairs`. Pairs with unknown sites, and values from fewer than `LEAST` measurements, are
        ignored.
    tolerance : float
        Relative difference that is left uncorrected, at least 0.

    Raises
    ------
    OptionError
        If the tolerance is negative or not finite.
    """
    check_number("tolerance", tolerance, 0.0, "a fraction of at least 0")
    index = {site: number for number, site in enumerate(model.topology.sites)}
    measured_pairs = {
        (index[pair.origin], index[pair.target]): pair
        for pair in measured
        if pair.origin in index and pair.target in index and pair.origin != pair.target
    }
    changed: _Changed = {}
    paths = _with_latencies(model.paths, measured_pairs, tolerance, changed)
    topology, paths = _with_bandwidths(model.topology, paths, measured_pairs, tolerance, changed)
    if not changed:
        return Corrected(model, ())
    return Corrected(replace(model, topology=topology, paths=paths), tuple(changed[key] for key in sorted(changed)))


_MeasuredPairs = Mapping[tuple[int, int], PairMeasured]
_Changed = dict[tuple[int, int, str], Correction]


def _with_latencies(paths: Paths, measured: _MeasuredPairs, tolerance: float, changed: _Changed) -> Paths:
    """Replace latencies by measured ones; each direction keeps its modelled share of the round trip (default: half)."""
    latency_ms, jitter_ms = paths.latency_ms.copy(), paths.jitter_ms.copy()
    for (origin, target), pair in measured.items():
        if pair.round_trip_ms is None or pair.least_ms is None or pair.round_trips < LEAST:
            continue
        there_ms, back_ms = paths.latency_ms[origin, target], paths.latency_ms[target, origin]
        modelled_ms = float(there_ms + back_ms)
        modelled_jitter_ms = float(paths.jitter_ms[origin, target] + paths.jitter_ms[target, origin]) / 2
        measured_jitter_ms = pair.round_trip_ms - pair.least_ms
        allowed_ms = max(tolerance * modelled_ms, _LEAST_MS)
        differs = _differs(pair.round_trip_ms, modelled_ms, allowed_ms)
        if not differs and not _differs(measured_jitter_ms, modelled_jitter_ms, allowed_ms):
            continue
        if modelled_ms == np.inf and pair.bandwidth_bps is None:
            continue  # no path, and no bandwidth measured for a new one
        share = there_ms / modelled_ms if 0 < modelled_ms < np.inf else 0.5
        latency_ms[origin, target] = share * pair.round_trip_ms
        jitter_ms[origin, target] = measured_jitter_ms
        if differs:
            changed[origin, target, "latency"] = _correction(pair, "round trip", modelled_ms, pair.round_trip_ms)
        else:
            changed[origin, target, "jitter"] = _correction(pair, "jitter", modelled_jitter_ms, measured_jitter_ms)
    return replace(paths, latency_ms=latency_ms, jitter_ms=jitter_ms)


def _differs(measured: float, modelled: float, allowed: float) -> bool:
    return not np.isfinite(modelled) or abs(measured - modelled) > allowed


def _correction(pair: PairMeasured, what: str, modelled: float, measured: float) -> Correction:
    return Correction(origin=pair.origin, target=pair.target, what=what, modelled=modelled, measured=measured)


def _with_bandwidths(
    topology: Topology, paths: Paths, measured: _MeasuredPairs, tolerance: float, changed: _Changed
) -> tuple[Topology, Paths]:
    """Widen links that carried more than modelled; narrow each path that carried less by adding a gate link."""
    speeds = {
        ends: pair.bandwidth_bps
        for ends, pair in measured.items()
        if pair.bandwidth_bps is not None and pair.bandwidths >= LEAST
    }
    bandwidth_bps = topology.bandwidth_bps.copy()
    stream_bps = paths.stream_bps.copy()
    for (origin, target), speed in speeds.items():
        stream_bps[origin, target] = max(stream_bps[origin, target], speed)
        if speed > (1 + tolerance) * paths.bandwidth_bps[origin, target] > 0:
            crossed = paths.between(origin, target)
            bandwidth_bps[crossed] = np.maximum(bandwidth_bps[crossed], speed)
    narrowest = _narrowest(paths, bandwidth_bps)
    gates = {}
    for ends, speed in sorted(speeds.items()):
        if not np.isfinite(paths.latency_ms[ends]):
            continue  # no path, and no round trip measured for a new one
        modelled = float(paths.bandwidth_bps[ends])
        if _differs(speed, modelled, tolerance * modelled):
            changed[(*ends, "bandwidth")] = _correction(measured[ends], "bandwidth", modelled, speed)
        if modelled == 0 or speed < (1 - tolerance) * narrowest[ends]:
            gates[ends] = narrowest[ends] = speed
    paths = replace(paths, bandwidth_bps=narrowest, stream_bps=stream_bps)
    topology = topology.with_figures(bandwidth_bps=bandwidth_bps)
    if not gates:
        return topology, paths
    targets = topology.node_of_site[[target for _, target in gates]]
    return (
        _with_gates(topology, targets, np.array(list(gates.values()))),
        _through_gates(paths, list(gates), len(topology.sites), len(topology.source)),
    )


def _through_gates(paths: Paths, ends: Sequence[tuple[int, int]], sites: int, first_gate: int) -> Paths:
    """Return the paths with a gate link appended to each path in ``ends``; gates are numbered from ``first_gate``."""
    at = np.array([origin * sites + target for origin, target in ends], np.int64)
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
    """Add a gate at each node: a link from the node to itself, which routing never uses."""
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
    for number, (origin, target, latency_ms, jitter_ms, bandwidth_bps) in enumerate(rows):
        figures = {"latency_ms": latency_ms, "bandwidth_bps": bandwidth_bps, "loss": 0.0, "jitter_ms": jitter_ms}
        graph.add_edge(origin, target, first + number, **figures, cable=cable + number, name=MEASURED, up=True)


def measured_model(
    sites: Sequence[str],
    measured: Sequence[PairMeasured],
    *,
    bandwidth_bps: float | None = None,
    exchange: str = "synchronous",
    local_latency_ms: float = LOCAL_LATENCY_MS,
    local_bandwidth_bps: float = LOCAL_BANDWIDTH_BPS,
) -> NetworkModel:
    """Build a model from measurements alone: a direct link per pair of sites and no other paths.

    Parameters
    ----------
    measured : sequence of PairMeasured
        Pairs with unknown sites are ignored. A pair without a round trip has no path.
    bandwidth_bps : float, optional
        Bandwidth of pairs without a bandwidth measurement; if None, these pairs have no path.
    exchange, local_latency_ms, local_bandwidth_bps
        As in `NetworkModel`.

    Raises
    ------
    InputError
        If there are no sites, or a site is listed twice.
    OptionError
        If a number is out of range, or the exchange is unknown.
    """
    if not sites or len(set(sites)) < len(sites):
        raise InputError(f"sites {', '.join(sites)}: expected at least one site, without repetition")
    if bandwidth_bps is not None:
        check_number("bandwidth_bps", bandwidth_bps, 0.0, "more than 0 bits per second", above=True)
    index = {site: number for number, site in enumerate(sites)}
    rows = []
    for pair in measured:
        speed = pair.bandwidth_bps if pair.bandwidth_bps is not None else bandwidth_bps
        if pair.origin not in index or pair.target not in index or pair.origin == pair.target:
            continue
        if pair.round_trip_ms is not None and pair.least_ms is not None and speed is not None:
            jitter_ms = pair.round_trip_ms - pair.least_ms
            rows.append((index[pair.origin], index[pair.target], 0.5 * pair.least_ms, jitter_ms, speed))
    rows.sort()
    topology = _mesh(tuple(sites), rows)
    lengths = np.zeros(len(sites) ** 2, np.int64)
    lengths[topology.source * len(sites) + topology.target] = 1
    first = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    paths = value_paths(topology, first, np.arange(len(rows), dtype=np.uint32), SEGMENT_BYTES)
    return NetworkModel(topology, paths, exchange, local_latency_ms, local_bandwidth_bps)


def _mesh(sites: tuple[str, ...], rows: Sequence[tuple[int, int, float, float, float]]) -> Topology:
    """Build a topology with a node per site; link rows are from, to, latency, jitter, bandwidth."""
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    graph.add_nodes_from((site, {"sites": (site,)}) for site in sites)
    _add_links(graph, 0, [(sites[row[0]], sites[row[1]], *row[2:]) for row in rows])
    return Topology(name=MEASURED, graph=graph, sites=sites, node_of_site=np.arange(len(sites), dtype=np.int64))

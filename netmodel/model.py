"""The network model: the paths between sites, and the cost of using them for a job or a transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, check_known
from gridweave.netmodel.communication import Communication
from gridweave.netmodel.kernels.choice import choose_sites, count_placements
from gridweave.netmodel.kernels.contention import NEVER_MS, transfer_ms
from gridweave.netmodel.kernels.overhead import split_factor
from gridweave.netmodel.kernels.paths import find_mirrors, find_ways_apart
from gridweave.netmodel.kernels.placements import Alike, Choice, EarlierChoice, Placements
from gridweave.netmodel.kernels.state import PART, FloatArray, NetArrays
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import Paths, find_changed_paths, find_paths
from gridweave.netmodel.tables import (
    EXACT_UP_TO,
    EXCHANGES,
    LOCAL_BANDWIDTH_BPS,
    LOCAL_LATENCY_MS,
    NetTable,
    parse_bandwidth,
)
from gridweave.netmodel.topology import Topology, check_number

if TYPE_CHECKING:
    import networkx as nx

STARTS, ROUNDS = 16, 8
"""Defaults of the placement heuristic: number of starting sites, and number of passes over all moves."""


class ChosenPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The sites and nodes that `NetworkModel.choose_sites` chose for a job.

    Attributes
    ----------
    nodes : dict from str to int
        Nodes per site, in site order; sites that run no part of the job are left out.
    factor : float
        Run time relative to the run time on a single site.
    end_ms : float
        Time from now until the job ends: the longest delay of its sites plus length x factor.
    exact : bool
        Whether all placements were tried.
    tried : int
        Number of placements that were tried.
    """

    nodes: dict[str, int]
    factor: float
    end_ms: float
    exact: bool
    tried: int


@dataclass(frozen=True, eq=False)
class NetworkModel:
    """A topology, the paths between its sites, and the way ranks exchange messages.

    Parameters
    ----------
    exchange : str
        ``synchronous``: every exchange waits for its slowest message. ``overlapped``: an exchange takes the average
        time of its messages.
    local_latency_ms : float
        Latency of a message between two nodes of the same site.
    local_bandwidth_bps : float
        Bandwidth of the network connection of one node.

    Raises
    ------
    OptionError
        If the exchange is unknown, or a number is out of range.
    """

    topology: Topology
    paths: Paths
    exchange: str = "synchronous"
    local_latency_ms: float = LOCAL_LATENCY_MS
    local_bandwidth_bps: float = LOCAL_BANDWIDTH_BPS
    arrays: NetArrays = field(init=False, repr=False)
    _changed: dict[bytes, NetworkModel] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        check_known("exchange", self.exchange, EXCHANGES)
        check_number("local_latency_ms", self.local_latency_ms, 0.0, "at least 0 ms")
        check_number("local_bandwidth_bps", self.local_bandwidth_bps, 1.0, "at least 1 bit per second")
        object.__setattr__(self, "arrays", self._arrays())

    def _arrays(self) -> NetArrays:
        topology, paths = self.topology, self.paths
        sites, links = len(topology.sites), len(topology.source)
        bits_per_ms = np.where(topology.up, topology.bandwidth_bps, 0.0) / 1000.0
        synchronous = self.exchange == "synchronous"
        apart = np.zeros((sites, sites), np.bool_)
        find_ways_apart(paths.first, paths.links, np.full(links, -1), apart)
        with np.errstate(divide="ignore"):
            ms_per_bit = 1.0 / bits_per_ms
            both = np.zeros_like(paths.links)
            mirrored = find_mirrors(paths.first, paths.links, ms_per_bit, np.full(links, -1), both)
            return NetArrays(
                lag_ms=paths.latency_ms + (0.5 * paths.jitter_ms if synchronous else 0.0),
                stream_ms_per_bit=1000.0 / paths.stream_bps,
                narrowest_ms_per_bit=np.where(paths.bandwidth_bps > 0, 1.0 / (paths.bandwidth_bps / 1000.0), 0.0),
                apart=apart,
                first=paths.first,
                links=paths.links,
                mirrored=bool(mirrored),
                both=both,
                ms_per_bit=ms_per_bit,
                capacity=bits_per_ms,
                outgoing=_outgoing(paths, bits_per_ms),
                local_latency_ms=float(self.local_latency_ms),
                local_ms_per_bit=1000.0 / self.local_bandwidth_bps,
                overlapped=not synchronous,
                load=np.zeros(links),
                messages=np.zeros(sites * sites),
                busy_ms=np.zeros(sites * sites),
            )

    @classmethod
    def of_table(cls, table: NetTable, topology: Topology) -> NetworkModel:
        """Return the model of a topology, with the settings of a ``[net]`` table."""
        paths = find_paths(topology, table.routes, k=table.k, segment_bytes=table.segment_bytes)
        return cls(topology, paths, table.exchange, table.local_latency_ms, table.local_bandwidth_bps)

    @classmethod
    def of_graph(
        cls, graph: nx.Graph[Any], table: NetTable | None = None, *, sites: Sequence[str] | None = None
    ) -> NetworkModel:
        """Return the model of a networkx graph, with the settings of a ``[net]`` table.

        Parameters
        ----------
        graph, sites
            As for `gridweave.netmodel.reading.topology_of_graph`.
        table : NetTable, optional
            Settings, e.g. routes and exchange. Its detour, bandwidth and ``attach`` apply where the graph has no values
            of its own; its nodes and links are ignored.

        Raises
        ------
        ScenarioError
            If the graph is invalid; lists every problem.

        Examples
        --------
        >>> import networkx as nx
        >>> graph = nx.Graph()
        >>> graph.add_edge("a", "b", latency_ms=10.0, bandwidth_bps=1e9)
        >>> NetworkModel.of_graph(graph).transfer_ms("a", "b", 1e6)
        18
        """
        settings = table or NetTable()
        bandwidth_bps = settings.bandwidth_bps if settings.bandwidth is None else parse_bandwidth(settings.bandwidth)
        topology = topology_of_graph(
            graph, sites=sites, attach=settings.attach, detour=settings.detour, bandwidth_bps=bandwidth_bps
        )
        return cls.of_table(settings, topology)

    def with_cables(self, factors: Sequence[float] | FloatArray) -> NetworkModel:
        """Return the network with some cables slowed or down; results are cached per combination of factors.

        Parameters
        ----------
        factors : sequence of float, shape (cables,)
            Fraction of its bandwidth that each cable keeps; 0 if the cable is down.

        Returns
        -------
        NetworkModel
            Link numbers stay the same. Two sites without a connection have infinite latency and no bandwidth.

        Raises
        ------
        InputError
            If there is not exactly one number from 0 to 1 for each cable.
        """
        parts, cables = np.asarray(factors, np.float64), self.topology.n_cables
        if parts.shape != (cables,) or not ((parts >= 0) & (parts <= 1)).all():
            raise InputError(
                f"factors are {len(factors)} numbers; expected one from 0 to 1 for each of the {cables} cables"
            )
        if (parts == 1).all():
            return self
        key = parts.tobytes()
        if key not in self._changed:
            topology = self.topology.with_cables(parts)
            paths = find_changed_paths(self.paths, topology, parts[topology.cable] < 1)
            self._changed[key] = replace(self, topology=topology, paths=paths)
        return self._changed[key]

    def split_factor(self, communication: Communication, nodes: Mapping[str, int]) -> float:
        """Return the factor by which a split increases a job's run time, on otherwise idle links.

        Parameters
        ----------
        nodes : mapping from str to int
            Nodes per site. Ranks fill the sites in this order.

        Returns
        -------
        float
            At least 1; infinite if two of the sites have no path between them.

        Raises
        ------
        InputError
            If a site is unknown, or a part has no node.
        """
        parts = self.parts_of(nodes)
        record = communication.records([int(parts["width"].sum())])[0]
        return float(split_factor(self.arrays, record, parts, len(parts)))

    def parts_of(self, nodes: Mapping[str, int]) -> npt.NDArray[np.void]:
        """Convert nodes per site to the record array that kernels read; raise InputError if a site has no node."""
        if not nodes or min(nodes.values()) < 1:
            raise InputError("a job has at least one site, and at least one node on each of its sites")
        return np.array([(self.topology.site_number(site), width) for site, width in nodes.items()], PART)

    def transfer_ms(self, origin: str, target: str, n_bytes: float) -> int | None:
        """Return the duration of a transfer on idle links, rounded up to milliseconds; None if there is no path."""
        ends = np.int64(self.topology.site_number(origin)), np.int64(self.topology.site_number(target))
        time_ms = transfer_ms(self.arrays, *ends, float(n_bytes))
        return None if time_ms == NEVER_MS else int(time_ms)

    def choose_sites(
        self,
        communication: Communication,
        width: int,
        free: Sequence[int] | npt.NDArray[np.int64],
        *,
        length_ms: float = 1.0,
        delay_ms: Sequence[float] | npt.NDArray[np.float64] | None = None,
        exact_up_to: int = EXACT_UP_TO,
    ) -> ChosenPlacement | None:
        """Return the placement with which a job ends earliest.

        Parameters
        ----------
        free : sequence of int, shape (sites,)
            Number of nodes that the job can use on each site.
        length_ms : float
            Run time on a single site.
        delay_ms : sequence of float, shape (sites,), optional
            Time until each site can start its part.
        exact_up_to : int
            Try all placements if there are at most this many; otherwise use the heuristic.

        Returns
        -------
        ChosenPlacement or None
            None if there are too few nodes, or no paths between them.

        Raises
        ------
        InputError
            If the width is below 1, a site has a negative number of free nodes, or an array does not have one value per
            site.
        """
        available = np.asarray(free, np.int64)
        waits = np.zeros(len(available)) if delay_ms is None else np.asarray(delay_ms, np.float64)
        sites = len(self.topology.sites)
        for what, values in (("free", available), ("delay_ms", waits)):
            if values.shape != (sites,):
                raise InputError(f"{what} has shape {values.shape}; expected one number for each of the {sites} sites")
        if width < 1 or available.min(initial=0) < 0:
            raise InputError(
                f"width is {width}, free {available.tolist()}; expected a width >= 1 and free nodes >= 0 at each site"
            )
        choice = new_choice(len(available), width)
        record = communication.records([width])[0]
        limit = float(exact_up_to)
        if not choose_sites(
            self.arrays, record, available, float(length_ms), waits, limit, np.int64(STARTS), np.int64(ROUNDS), choice
        ):
            return None
        chosen = choice.best[: choice.n_best[0]]
        return ChosenPlacement(
            nodes={self.topology.sites[part["site"]]: int(part["width"]) for part in chosen},
            factor=float(choice.factor[0]),
            end_ms=float(choice.end_ms[0]),
            exact=bool(count_placements(available, np.int64(width), choice.ways, limit) <= limit),
            tried=int(choice.tried[0]),
        )


def _outgoing(paths: Paths, bits_per_ms: FloatArray) -> FloatArray:
    """Return, per site, the total capacity of its paths' first links; infinite if one of the paths has no link."""
    sites = len(paths.latency_ms)
    outgoing = np.full(sites, np.inf)
    has_links = (paths.first[1:] > paths.first[:-1]).reshape(sites, sites)
    without_links = ~has_links & np.isfinite(paths.latency_ms) & ~np.eye(sites, dtype=np.bool_)
    for site in np.flatnonzero(~without_links.any(axis=1)):
        crossed = site * sites + np.flatnonzero(has_links[site])
        outgoing[site] = bits_per_ms[np.unique(paths.links[paths.first[crossed]])].sum()
    return outgoing


def _no_placements(sites: int) -> Placements:
    rows = min(sites, STARTS) + 1
    return Placements(
        parts=np.zeros((rows, sites), PART), n_parts=np.zeros(rows, np.int64), n_rows=np.zeros(1, np.int64)
    )


def new_choice(sites: int, widest: int) -> Choice:
    """Allocate the arrays that kernels need to choose sites for jobs of at most ``widest`` nodes."""
    return Choice(
        best=np.zeros(sites, PART),
        parts=np.zeros(sites, PART),
        last=np.zeros(sites, PART),
        nodes=np.zeros(sites, np.int64),
        begun=_no_placements(sites),
        settled=_no_placements(sites),
        starts=np.zeros(sites, np.int64),
        ways=np.zeros(widest + 1),
        ahead=np.zeros(sites + 1, np.int64),
        end_ms=np.full(1, np.inf),
        factor=np.full(1, np.inf),
        limit_ms=np.full(1, np.inf),
        earlier=EarlierChoice(
            n_parts=np.zeros(1, np.int64),
            parts=np.zeros(sites, PART),
            factor=np.ones(1),
            free=np.zeros(sites, np.int64),
            rising=np.zeros(sites + 1, np.int64),
            rose=np.zeros(sites + 1, np.int64),
        ),
        alike=Alike(
            n_parts=np.zeros(1, np.int64),
            sites=np.zeros(sites, np.int64),
            messages=np.zeros(sites * sites),
            factor=np.ones(1),
        ),
        n_best=np.zeros(1, np.int64),
        tried=np.zeros(1, np.int64),
        all_tried=np.zeros(1, np.int64),
    )

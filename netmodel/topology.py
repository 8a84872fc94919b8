"""The network between sites: a networkx graph, the sites attached to it, and the tables that kernels read.

Missing latencies are derived from positions, as the travel time of light in a fibre that takes a detour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError

if TYPE_CHECKING:
    import networkx as nx

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

FIGURES = ("latency_ms", "bandwidth_bps", "loss", "jitter_ms")
"""Numeric attributes of a link; graph edges and tables use the same names."""


@dataclass(frozen=True, eq=False)
class Topology:
    """A network graph, the sites attached to it, and the graph's attributes as arrays.

    `gridweave.netmodel.reading` builds and checks topologies from a table, a file, a generator or a graph.

    Attributes
    ----------
    graph : networkx.MultiDiGraph
        Nodes are names (str) with the optional attributes ``latitude`` and ``longitude`` in degrees and ``sites``, a
        tuple of the names of attached sites. An edge is a link in one direction; its key is the link number, from 0.
        Its attributes are ``latency_ms``, ``bandwidth_bps`` (above 0; 0 if the link is down), ``loss`` (probability
        that a packet is lost), ``jitter_ms`` (a message takes up to this much longer than the latency), ``cable``
        (links with the same number fail together), ``name`` (distinguishes parallel cables; often empty) and ``up``.
        The graph is frozen: to change it, copy it and build a new topology.
    sites : tuple of str
    node_of_site : numpy.ndarray of int64, shape (sites,)
        Node number of each site.
    remarks : tuple of str
        Messages about values missing from the file, and the defaults used instead.
    nodes : tuple of str
        Nodes in graph order.
    positions : numpy.ndarray of float64, shape (nodes, 2)
        Latitude and longitude in degrees; NaN if unknown.
    source, target : numpy.ndarray of int64, shape (links,)
        Numbers of the nodes at the start and the end of each link.
    latency_ms, bandwidth_bps, loss, jitter_ms : numpy.ndarray of float64, shape (links,)
    cable : numpy.ndarray of int64, shape (links,)
    link_names : tuple of str
    up : numpy.ndarray of bool, shape (links,)
    """

    name: str
    graph: nx.MultiDiGraph[str] = field(repr=False)
    sites: tuple[str, ...]
    node_of_site: IntArray
    remarks: tuple[str, ...] = ()
    nodes: tuple[str, ...] = field(init=False, repr=False)
    positions: FloatArray = field(init=False, repr=False)
    source: IntArray = field(init=False, repr=False)
    target: IntArray = field(init=False, repr=False)
    latency_ms: FloatArray = field(init=False, repr=False)
    bandwidth_bps: FloatArray = field(init=False, repr=False)
    loss: FloatArray = field(init=False, repr=False)
    jitter_ms: FloatArray = field(init=False, repr=False)
    cable: IntArray = field(init=False, repr=False)
    link_names: tuple[str, ...] = field(init=False, repr=False)
    up: BoolArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        import networkx as nx

        for name, value in _tables_of(self.graph).items():
            object.__setattr__(self, name, value)
        nx.freeze(self.graph)

    def with_figures(self, **columns: FloatArray | BoolArray) -> Topology:
        """Return the same network with new values for all links, one array per edge attribute."""
        graph = self.graph.copy()
        for name, values in columns.items():
            values_by_link = values.tolist()
            for _, _, link, attributes in graph.edges(keys=True, data=True):
                attributes[name] = values_by_link[link]
        return replace(self, graph=graph)

    def with_cables(self, factors: Sequence[float] | FloatArray) -> Topology:
        """Return the network with each cable's bandwidth multiplied by a factor; a factor of 0 takes the cable down."""
        of_link = np.asarray(factors, np.float64)[self.cable]
        return self.with_figures(bandwidth_bps=self.bandwidth_bps * of_link, up=self.up & (of_link > 0))

    @property
    def n_cables(self) -> int:
        """The highest cable number plus one."""
        return int(self.cable.max(initial=-1)) + 1

    @property
    def has_map(self) -> bool:
        """Whether positions are known for at least two nodes and for at least half of them."""
        n_known = int(np.isfinite(self.positions).all(axis=1).sum())
        return n_known >= 2 and 2 * n_known >= len(self.nodes)

    def link_label(self, link: int) -> str:
        """Return the name of a link as shown in messages."""
        name = self.link_names[link]
        ends = f"{self.nodes[self.source[link]]} - {self.nodes[self.target[link]]}"
        return f"{ends} ({name})" if name else ends

    def node_number(self, name: str) -> int:
        """Return the number of a node; raise InputError if there is no node with this name."""
        return self._place(self.nodes, name, "node")

    def site_number(self, name: str) -> int:
        """Return the number of a site; raise InputError if there is no site with this name."""
        return self._place(self.sites, name, "site")

    def _place(self, names: tuple[str, ...], name: str, what: str) -> int:
        if name not in names:
            raise InputError(f"{self.name}: there is no {what} {name!r}; there are {named(names)}")
        return names.index(name)

    def cables_between(self, node: str, other: str, name: str | None = None) -> list[int]:
        """Return the cables that join two nodes, in ascending order; if ``name`` is given, only cables with that name.

        Raise InputError if there is no such cable.
        """
        ends = {self.node_number(node), self.node_number(other)}
        cables = {
            int(self.cable[link])
            for link in range(len(self.source))
            if {int(self.source[link]), int(self.target[link])} == ends and name in (None, self.link_names[link])
        }
        if not cables:
            called = f" named {name!r}" if name is not None else ""
            raise InputError(f"{self.name}: there is no link between {node} and {other}{called}")
        return sorted(cables)


def _tables_of(graph: nx.MultiDiGraph[str]) -> dict[str, Any]:
    """Return the array attributes of `Topology` by name, with links in the order of their keys."""
    nodes = tuple(graph)
    number = {node: index for index, node in enumerate(nodes)}
    edges = sorted(graph.edges(keys=True, data=True), key=itemgetter(2))
    links = [attributes for _, _, _, attributes in edges]
    positions = [[at.get("latitude", math.nan), at.get("longitude", math.nan)] for _, at in graph.nodes(data=True)]
    return {
        "nodes": nodes,
        "positions": np.array(positions, np.float64).reshape(-1, 2),
        "source": np.array([number[origin] for origin, _, _, _ in edges], np.int64),
        "target": np.array([number[target] for _, target, _, _ in edges], np.int64),
        **{name: np.array([link[name] for link in links], np.float64) for name in FIGURES},
        "cable": np.array([link["cable"] for link in links], np.int64),
        "link_names": tuple(link["name"] for link in links),
        "up": np.array([link["up"] for link in links], np.bool_),
    }


def named(names: Sequence[str], most: int = 8) -> str:
    """Join names with commas; a longer list is truncated after ``most`` names.

    Examples
    --------
    >>> named(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    if len(names) <= most:
        return ", ".join(names) if names else "none"
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"


def check_number(option: str, value: float, low: float, what: str, *, above: bool = False) -> None:
    """Raise OptionError if a number is not finite or too low; ``what`` describes the allowed values."""
    if not np.isfinite(value) or value < low or (above and value == low):
        raise OptionError(option, f"is {value:g}; expected {what}")


EARTH_RADIUS_KM = 6371.0088
"""Mean radius (IUGG)."""

FIBRE_KM_PER_MS = 299_792.458 / 1000 * 2 / 3
"""Speed of light in fibre: two thirds of the speed in vacuum."""


def great_circle_km(latitude: float, longitude: float, other_latitude: float, other_longitude: float) -> float:
    """Return the great-circle distance between two points given in degrees, by the haversine formula.

    Examples
    --------
    >>> round(great_circle_km(52.37403, 4.88969, 50.85045, 4.34878), 1)  # Amsterdam to Brussels
    173.5
    """
    latitude_rad, other_latitude_rad = math.radians(latitude), math.radians(other_latitude)
    half_up = (other_latitude_rad - latitude_rad) / 2
    half_along = math.radians(other_longitude - longitude) / 2
    chord = math.sin(half_up) ** 2 + math.cos(latitude_rad) * math.cos(other_latitude_rad) * math.sin(half_along) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, chord)))


def fibre_latency_ms(distance_km: float, detour: float) -> float:
    """Return the travel time through a fibre that is ``detour`` times as long as the straight distance."""
    return distance_km * detour / FIBRE_KM_PER_MS

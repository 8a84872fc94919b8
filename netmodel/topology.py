"""The network between sites: a graph of networkx, the sites on it, and the tables that kernels read.

Latency from positions: light in a fibre that does not quite go straight.
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
"""The numeric attributes of a link, named alike on graph edges and in the tables."""


@dataclass(frozen=True, eq=False)
class Topology:
    """A network as a graph, the sites on it, and tables of the graph.

    `gridweave.netmodel.reading` makes a topology from a table, a file, a generator or a graph, and checks it.

    Attributes
    ----------
    graph : networkx.MultiDiGraph
        Its nodes are names (str), with ``latitude`` and ``longitude`` in degrees where they are known, and ``sites``, a
        tuple of names, where sites are attached. An edge is a link in one direction; its key is the number of the
        link, from 0. Its attributes are ``latency_ms``, ``bandwidth_bps`` (above 0; 0 if the link is down), ``loss``
        (probability that a packet is lost), ``jitter_ms`` (a message takes the latency and up to the jitter more),
        ``cable`` (links of the same number fail together), ``name`` (distinguishes parallel cables; often empty) and
        ``up``. The graph is frozen: change a copy of it, and make a topology of that.
    sites : tuple of str
    node_of_site : numpy.ndarray of int64, shape (sites,)
        Numbers of nodes.
    remarks : tuple of str
        What the file left open, and what was taken instead.
    nodes : tuple of str
        The nodes of the graph, in its order.
    positions : numpy.ndarray of float64, shape (nodes, 2)
        Latitude and longitude; NaN where they are not known.
    source, target : numpy.ndarray of int64, shape (links,)
        Numbers of the nodes that each link leads from and to.
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
        """Return the same network with other values of all links, by the names of edge attributes."""
        graph = self.graph.copy()
        for name, values in columns.items():
            known = values.tolist()
            for _, _, link, attributes in graph.edges(keys=True, data=True):
                attributes[name] = known[link]
        return replace(self, graph=graph)

    def with_cables(self, factors: Sequence[float] | FloatArray) -> Topology:
        """Return the network when each cable has this part of its bandwidth; a cable that has none is down."""
        of_link = np.asarray(factors, np.float64)[self.cable]
        return self.with_figures(bandwidth_bps=self.bandwidth_bps * of_link, up=self.up & (of_link > 0))

    @property
    def n_cables(self) -> int:
        """The highest cable number plus one."""
        return int(self.cable.max(initial=-1)) + 1

    @property
    def has_map(self) -> bool:
        """Whether at least two nodes, and half of all, have positions."""
        known = int(np.isfinite(self.positions).all(axis=1).sum())
        return known >= 2 and 2 * known >= len(self.nodes)

    def link_label(self, link: int) -> str:
        """Return what messages call a link."""
        name = self.link_names[link]
        ends = f"{self.nodes[self.source[link]]} - {self.nodes[self.target[link]]}"
        return f"{ends} ({name})" if name else ends

    def node_number(self, name: str) -> int:
        """Return the number of a node; an InputError if there is none of that name."""
        return self._place(self.nodes, name, "node")

    def site_number(self, name: str) -> int:
        """Return the number of a site; an InputError if there is none of that name."""
        return self._place(self.sites, name, "site")

    def _place(self, names: tuple[str, ...], name: str, what: str) -> int:
        if name not in names:
            raise InputError(f"{self.name}: there is no {what} {name!r}; there are {named(names)}")
        return names.index(name)

    def cables_between(self, one: str, other: str, name: str | None = None) -> list[int]:
        """Return the cables, ascending, that two nodes are joined by; those of a name, if one is given."""
        ends = {self.node_number(one), self.node_number(other)}
        found = {
            int(self.cable[link])
            for link in range(len(self.source))
            if {int(self.source[link]), int(self.target[link])} == ends and name in (None, self.link_names[link])
        }
        if not found:
            called = f" named {name!r}" if name is not None else ""
            raise InputError(f"{self.name}: there is no link between {one} and {other}{called}")
        return sorted(found)


def _tables_of(graph: nx.MultiDiGraph[str]) -> dict[str, Any]:
    """Return the tables of a graph, by the names of the attributes of `Topology`; links in the order of their keys."""
    nodes = tuple(graph)
    number = {node: place for place, node in enumerate(nodes)}
    edges = sorted(graph.edges(keys=True, data=True), key=itemgetter(2))
    links = [attributes for _, _, _, attributes in edges]
    places = [[at.get("latitude", math.nan), at.get("longitude", math.nan)] for _, at in graph.nodes(data=True)]
    return {
        "nodes": nodes,
        "positions": np.array(places, np.float64).reshape(-1, 2),
        "source": np.array([number[origin] for origin, _, _, _ in edges], np.int64),
        "target": np.array([number[target] for _, target, _, _ in edges], np.int64),
        **{name: np.array([link[name] for link in links], np.float64) for name in FIGURES},
        "cable": np.array([link["cable"] for link in links], np.int64),
        "link_names": tuple(link["name"] for link in links),
        "up": np.array([link["up"] for link in links], np.bool_),
    }


def named(names: Sequence[str], most: int = 8) -> str:
    """Return names in a row, the first of them if they are many.

    Examples
    --------
    >>> named(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    if len(names) <= most:
        return ", ".join(names) if names else "none"
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"


def check_number(option: str, value: float, low: float, what: str, *, above: bool = False) -> None:
    """Refuse a number that is not finite or too low; ``what`` says what would be right."""
    if not np.isfinite(value) or value < low or (above and value == low):
        raise OptionError(option, f"is {value:g}; {what}")


EARTH_RADIUS_KM = 6371.0088
"""Mean radius (IUGG)."""

FIBRE_KM_PER_MS = 299_792.458 / 1000 * 2 / 3
"""Two thirds of the speed of light in vacuum."""


def great_circle_km(latitude: float, longitude: float, other_latitude: float, other_longitude: float) -> float:
    """Return the distance between two places on a sphere, by the haversine formula, from degrees.

    Examples
    --------
    >>> round(great_circle_km(52.37403, 4.88969, 50.85045, 4.34878), 1)  # Amsterdam to Brussels
    173.5
    """
    one, other = math.radians(latitude), math.radians(other_latitude)
    half_up = (other - one) / 2
    half_along = math.radians(other_longitude - longitude) / 2
    chord = math.sin(half_up) ** 2 + math.cos(one) * math.cos(other) * math.sin(half_along) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, chord)))


def fibre_latency_ms(distance_km: float, detour: float) -> float:
    """Return how long a signal takes over a distance as the crow flies, by a fibre that is a detour as long."""
    return distance_km * detour / FIBRE_KM_PER_MS
